//! Addresses.

use cnikit_netlink::Family;

use crate::scene::{address, inside, ip, net, pair, pair_up};

#[test]
fn addresses_are_read_as_they_were_added() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    netlink.add_address(near.index, &address("10.1.0.2/24")).unwrap();
    let quiet = address("fd00::2/64").no_dad(true).no_prefix_route(true);
    netlink.add_address(near.index, &quiet).unwrap();
    netlink.add_address(far.index, &address("10.2.0.2/24")).unwrap();

    let addresses = netlink.addresses(near.index).unwrap();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    let v4 = &addresses[0];
    let v6 = &addresses[1];
    assert_eq!((v4.address, v4.broadcast), (net("10.1.0.2/24"), Some("10.1.0.255".parse().unwrap())));
    assert_eq!((v4.scope, v4.permanent, v4.no_dad, v4.no_prefix_route), (0, true, false, false));
    assert_eq!((v6.address, v6.broadcast), (net("fd00::2/64"), None));
    assert!(v6.no_dad && v6.no_prefix_route && v6.permanent && !v6.tentative && !v6.dad_failed);
    let seen = ip(&netns, "address show dev near");
    assert!(seen.contains("inet 10.1.0.2/24 brd 10.1.0.255 scope global near"), "{seen}");
    assert!(seen.contains("inet6 fd00::2/64 scope global nodad noprefixroute"), "{seen}");
}

#[test]
fn prefixes_longer_than_30_bits_get_no_broadcast_address() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    for (text, broadcast) in [("10.1.0.1/30", Some("10.1.0.3")), ("10.1.1.0/31", None), ("10.1.2.1/32", None)] {
        netlink.add_address(near.index, &address(text)).unwrap();
        let addresses = netlink.addresses(near.index).unwrap();
        let found = addresses.iter().find(|found| found.address == net(text)).unwrap();
        assert_eq!(found.broadcast, broadcast.map(|text| text.parse().unwrap()), "{text}");
    }
}

#[test]
fn an_address_without_prefix_route_brings_no_route() {
    let (netns, netlink) = inside();
    let (near, _) = pair_up(&netns, &netlink);
    netlink.add_address(near.index, &address("10.1.0.2/24").no_prefix_route(true)).unwrap();
    let routes = netlink.routes(Family::V4).unwrap();
    assert!(routes.iter().all(|route| route.dst != net("10.1.0.0/24")), "{routes:?}");
}

#[test]
fn an_address_with_a_far_end_is_read_by_its_near_end() {
    let (netns, netlink) = inside();
    pair(&netns, &netlink);
    ip(&netns, "address add 10.1.0.1 peer 10.1.0.2/32 dev near");
    let near = netlink.link("near").unwrap();
    let addresses = netlink.addresses(near.index).unwrap();
    assert_eq!(addresses[0].address, net("10.1.0.1/32"));
}

#[test]
fn a_second_like_address_exists_and_a_missing_one_is_absent() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    for text in ["10.1.0.2/24", "fd00::2/64"] {
        netlink.add_address(near.index, &address(text)).unwrap();
        let error = netlink.add_address(near.index, &address(text)).unwrap_err();
        assert!(error.exists(), "{error}");
        assert!(error.to_string().starts_with(&format!("add address \"{text} to near\": File exists")), "{error}");
        netlink.delete_address(near.index, net(text)).unwrap();
        let error = netlink.delete_address(near.index, net(text)).unwrap_err();
        assert!(error.is_absent(), "{error}");
    }
    assert_eq!(netlink.addresses(near.index).unwrap(), []);
}

#[test]
fn the_addresses_of_an_absent_link_are_an_error() {
    let (_netns, netlink) = inside();
    assert!(netlink.addresses(99).unwrap_err().is_absent());
}
