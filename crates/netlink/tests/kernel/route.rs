//! Routes.

use cnikit_netlink::{Batch, Family, KernelRoute, Link, MAIN_TABLE, Netlink};
use cnikit_netns::Netns;

use crate::scene::{address, inside, ip, net, pair_up, up};

/// A link that is up, with an address of each family.
#[expect(clippy::unwrap_used, reason = "a test whose scene cannot be set has failed")]
fn routed() -> (Netns, Netlink, Link) {
    let (netns, netlink) = inside();
    let (near, _) = pair_up(&netns, &netlink);
    netlink.add_address(near.index, &address("10.1.0.2/24")).unwrap();
    let quiet = address("fd00::2/64").no_dad(true);
    netlink.add_address(near.index, &quiet).unwrap();
    (netns, netlink, near)
}

#[expect(clippy::unwrap_used, reason = "a test whose scene cannot be set has failed")]
fn via(dst: &str, gateway: &str, link: &Link) -> KernelRoute {
    KernelRoute { gateway: Some(gateway.parse().unwrap()), index: Some(link.index), ..KernelRoute::to(net(dst)) }
}

#[test]
fn a_route_is_read_as_it_was_added() {
    let (netns, netlink, near) = routed();
    for (dst, gateway, source) in [
        ("10.9.0.0/16", "10.1.0.1", "10.1.0.2"),
        ("0.0.0.0/0", "10.1.0.1", "10.1.0.2"),
        ("fd09::/32", "fd00::1", "fd00::2"),
    ] {
        let wanted = KernelRoute {
            source: Some(source.parse().unwrap()),
            scope: Some(0),
            priority: Some(77),
            mtu: Some(1300),
            advmss: Some(1200),
            ..via(dst, gateway, &near)
        };
        netlink.add_route(&wanted).unwrap();
        assert_eq!(netlink.routes_to(net(dst), MAIN_TABLE).unwrap(), [wanted]);
    }
    let seen = ip(&netns, "route show default");
    let expected = "default via 10.1.0.1 dev near src 10.1.0.2 metric 77 mtu 1300 advmss 1200";
    assert_eq!(seen.trim(), expected);
}

#[test]
fn a_route_without_gateway_has_scope_link_by_default() {
    let (netns, netlink, near) = routed();
    netlink.add_route(&KernelRoute { index: Some(near.index), ..KernelRoute::to(net("10.9.0.0/16")) }).unwrap();
    assert_eq!(netlink.routes_to(net("10.9.0.0/16"), MAIN_TABLE).unwrap()[0].scope, Some(253));
    assert_eq!(ip(&netns, "route show 10.9.0.0/16").trim(), "10.9.0.0/16 dev near scope link");
}

#[test]
fn a_gateway_off_the_link_is_refused_in_the_kernels_words_unless_onlink() {
    let (_netns, netlink, near) = routed();
    let route = via("10.9.0.0/16", "192.0.2.1", &near);
    let error = netlink.add_route(&route).unwrap_err();
    let text = "add route \"10.9.0.0/16 via 192.0.2.1 dev near\": Network is unreachable \
        (the kernel says: Nexthop has invalid gateway)";
    assert_eq!(error.to_string(), text);
    netlink.add_route(&KernelRoute { onlink: true, ..route.clone() }).unwrap();
    let found = netlink.routes_to(route.dst, MAIN_TABLE).unwrap();
    assert!(found[0].onlink, "{found:?}");
}

#[test]
fn an_ipv4_route_may_have_an_ipv6_gateway_but_not_the_reverse() {
    let (netns, netlink, near) = routed();
    let route = via("10.9.0.0/16", "fd00::1", &near);
    netlink.add_route(&route).unwrap();
    assert_eq!(netlink.routes_to(route.dst, MAIN_TABLE).unwrap()[0].gateway, route.gateway);
    assert!(ip(&netns, "route show 10.9.0.0/16").contains("via inet6 fd00::1"));
    let error = netlink.add_route(&via("fd09::/32", "10.1.0.1", &near)).unwrap_err();
    assert_eq!(error.errno, 0, "{error}");
}

#[test]
fn host_bits_in_a_destination_are_refused_by_the_kernel() {
    let (_netns, netlink, near) = routed();
    let error = netlink.add_route(&via("10.9.0.1/16", "10.1.0.1", &near)).unwrap_err();
    assert_eq!((error.errno, error.kernel.as_deref()), (libc::EINVAL, Some("Invalid prefix for given prefix length")));
}

#[test]
fn a_second_like_route_exists_and_a_missing_one_is_absent() {
    let (_netns, netlink, near) = routed();
    for (dst, gateway) in [("10.9.0.0/16", "10.1.0.1"), ("fd09::/32", "fd00::1")] {
        let route = via(dst, gateway, &near);
        netlink.add_route(&route).unwrap();
        assert!(netlink.add_route(&route).unwrap_err().exists());
        netlink.delete_route(&route).unwrap();
        assert!(netlink.delete_route(&route).unwrap_err().is_absent());
    }
}

#[test]
fn a_route_is_deleted_by_its_gateway_and_priority() {
    let (_netns, netlink, near) = routed();
    let first = KernelRoute { priority: Some(10), ..via("10.9.0.0/16", "10.1.0.1", &near) };
    let second = KernelRoute { priority: Some(20), ..via("10.9.0.0/16", "10.1.0.3", &near) };
    netlink.add_route(&first).unwrap();
    netlink.add_route(&second).unwrap();
    netlink.delete_route(&second).unwrap();
    let left = netlink.routes_to(first.dst, MAIN_TABLE).unwrap();
    assert_eq!(left.iter().map(|route| route.priority).collect::<Vec<_>>(), [Some(10)]);
}

#[test]
fn tables_with_large_numbers_are_read_and_an_empty_one_has_no_routes() {
    let (_netns, netlink, near) = routed();
    for (dst, gateway) in [("10.9.0.0/16", "10.1.0.1"), ("fd09::/32", "fd00::1")] {
        assert_eq!(netlink.routes_to(net(dst), 100_000).unwrap(), []);
        netlink.add_route(&KernelRoute { table: 100_000, ..via(dst, gateway, &near) }).unwrap();
        assert_eq!(netlink.routes_to(net(dst), 100_000).unwrap().len(), 1);
        assert_eq!(netlink.routes_to(net(dst), MAIN_TABLE).unwrap(), []);
        assert_eq!(
            netlink
                .routes_of(near.index)
                .unwrap()
                .iter()
                .filter(|route| route.table == 100_000 && route.dst == net(dst))
                .count(),
            1
        );
    }
}

#[test]
fn the_routes_of_a_link_are_of_both_families_and_of_no_other_link() {
    let (_netns, netlink, near) = routed();
    let far = netlink.link("far").unwrap();
    netlink.add_address(far.index, &address("10.2.0.2/24")).unwrap();
    let routes = netlink.routes_of(near.index).unwrap();
    assert!(routes.iter().all(|route| route.index == Some(near.index)), "{routes:?}");
    for dst in ["10.1.0.0/24", "10.1.0.2/32", "fd00::/64"] {
        assert!(routes.iter().any(|route| route.dst == net(dst)), "{dst} in {routes:?}");
    }
    assert!(netlink.routes_of(99).unwrap_err().is_absent());
}

#[test]
fn each_next_hop_of_a_multipath_route_is_read_as_a_route() {
    let (netns, netlink, near) = routed();
    let far = netlink.link("far").unwrap();
    netlink.add_address(far.index, &address("10.2.0.2/24")).unwrap();
    ip(&netns, "route add 10.9.0.0/16 nexthop via 10.1.0.1 dev near weight 1 nexthop via 10.2.0.1 dev far weight 3");
    ip(&netns, "route add fd09::/32 nexthop via fd00::1 dev near nexthop via fd00::3 dev near");
    let gateways = |dst: &str| -> Vec<String> {
        let routes = netlink.routes_to(net(dst), MAIN_TABLE).unwrap();
        routes.iter().filter_map(|route| route.gateway).map(|gateway| gateway.to_string()).collect()
    };
    assert_eq!(gateways("10.9.0.0/16"), ["10.1.0.1", "10.2.0.1"]);
    assert_eq!(gateways("fd09::/32"), ["fd00::1", "fd00::3"]);
    let over_far = netlink.routes_of(far.index).unwrap();
    let over_far: Vec<_> = over_far.iter().filter(|route| route.dst == net("10.9.0.0/16")).collect();
    assert_eq!(over_far.len(), 1, "{over_far:?}");
    assert_eq!(over_far[0].gateway, Some("10.2.0.1".parse().unwrap()));
    assert!(netlink.routes_of(near.index).unwrap().iter().filter(|route| route.dst == net("fd09::/32")).count() == 2);
}

#[test]
fn routes_of_other_kinds_are_added_and_read() {
    let (netns, netlink, _near) = routed();
    netlink.add_route(&KernelRoute { kind: 7, ..KernelRoute::to(net("10.66.0.0/16")) }).unwrap();
    assert_eq!(ip(&netns, "route show type unreachable").trim(), "unreachable 10.66.0.0/16");
    assert_eq!(netlink.routes_to(net("10.66.0.0/16"), MAIN_TABLE).unwrap()[0].kind, 7);
    assert!(netlink.routes(Family::V6).unwrap().iter().all(|route| route.dst.is_ipv6()));
    assert!(KernelRoute::to(net("::/0")).is_default() && !KernelRoute::to(net("10.0.0.0/8")).is_default());
}

#[test]
fn the_route_for_an_address_is_the_closest_one() {
    let (_netns, netlink, near) = routed();
    for (wide, own, gateway) in [("10.9.0.0/16", "10.9.0.7/32", "10.1.0.1"), ("fd09::/32", "fd09::7/128", "fd00::1")] {
        let address = net(own).ip();
        assert_eq!(netlink.route_for(address).unwrap(), None, "nothing leads to {address} yet");
        netlink.add_route(&via(wide, gateway, &near)).unwrap();
        assert_eq!(netlink.route_for(address).unwrap().unwrap().dst, net(wide));
        netlink.add_route(&KernelRoute { index: Some(near.index), ..KernelRoute::to(net(own)) }).unwrap();
        let found = netlink.route_for(address).unwrap().unwrap();
        assert_eq!((found.dst, found.index), (net(own), Some(near.index)));
    }
}

#[test]
fn the_hosts_own_are_its_addresses_and_the_loopback_network() {
    let (_netns, netlink, _) = routed();
    let lo = netlink.find_link("lo").unwrap().unwrap();
    let mut batch = Batch::new();
    batch.set_link(lo.index, &up());
    netlink.send(batch).unwrap();
    let own = netlink.own_networks(Family::V4).unwrap();
    assert!(own.contains(&net("10.1.0.2/32")) && own.contains(&net("127.0.0.0/8")), "{own:?}");
    assert!(
        !own.contains(&net("10.1.0.255/32"))
            && !own.iter().any(|network| network.contains("10.1.0.1".parse().unwrap()))
    );
    // The kernel accepts any other IPv6 address as its own only a moment after it was added.
    let own = netlink.own_networks(Family::V6).unwrap();
    assert!(own.contains(&net("::1/128")), "{own:?}");
    assert!(own.iter().all(|network| network.prefix() == 128), "{own:?}");
}
