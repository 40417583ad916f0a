//! Several changes in one system call.

use cnikit_netlink::{Batch, KernelRoute, MAIN_TABLE};

use crate::scene::{address, inside, net, pair, up};

#[test]
fn a_batch_is_carried_out_in_order() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    let mut batch = Batch::new();
    batch.set_link(far.index, &up());
    batch.set_link(near.index, &up().mtu(1400));
    batch.add_address(near.index, &address("10.1.0.2/24"));
    let default = KernelRoute { gateway: Some("10.1.0.1".parse().unwrap()), ..KernelRoute::to(net("0.0.0.0/0")) };
    batch.add_route(&default);
    netlink.send(batch).unwrap();
    assert_eq!(netlink.link_at(near.index).unwrap().mtu, 1400);
    let routes = netlink.routes_to(default.dst, MAIN_TABLE).unwrap();
    assert_eq!(routes[0].index, Some(near.index));
}

#[test]
fn the_first_refusal_is_the_error_and_what_follows_is_done_all_the_same() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let mut batch = Batch::new();
    batch.add_address(near.index, &address("10.1.0.2/24"));
    batch.add_address(near.index, &address("10.1.0.2/24"));
    batch
        .add_route(&KernelRoute { gateway: Some("192.0.2.1".parse().unwrap()), ..KernelRoute::to(net("10.9.0.0/16")) });
    batch.add_address(near.index, &address("10.1.0.3/24"));
    let error = netlink.send(batch).unwrap_err();
    assert!(error.exists());
    assert!(error.to_string().starts_with("add address \"10.1.0.2/24 to near\": File exists"), "{error}");
    assert_eq!(netlink.addresses(near.index).unwrap().len(), 2);
}

/// Of a change that is not acknowledged only a refusal is heard, so a lost one must not look like success.
#[test]
fn a_batch_whose_refusals_do_not_fit_into_the_queue_is_no_success() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let mut batch = Batch::new();
    for _ in 0..30_000 {
        batch.delete_route(&KernelRoute { index: Some(near.index), ..KernelRoute::to(net("10.9.0.0/16")) });
    }
    batch.add_address(near.index, &address("10.1.0.2/24"));
    assert_eq!(netlink.send(batch).unwrap_err().errno, libc::ENOBUFS);
    assert_eq!(netlink.addresses(near.index).unwrap().len(), 1, "the next request is answered");
}

#[test]
fn a_batch_accepts_what_exists_or_is_absent_already() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    for _ in 0..2 {
        let mut batch = Batch::new();
        batch.add_address_if_absent(near.index, &address("10.1.0.2/24"));
        batch.add_address_if_absent(near.index, &address("fd00::2/64"));
        batch.delete_route(&KernelRoute { index: Some(near.index), ..KernelRoute::to(net("10.9.0.0/16")) });
        batch.delete_neighbour(near.index, "10.1.0.7".parse().unwrap());
        netlink.send(batch).unwrap();
    }
    let mut batch = Batch::new();
    batch.add_address_if_absent(99, &address("10.1.0.2/24"));
    assert!(netlink.send(batch).unwrap_err().is_absent());
}

#[test]
fn a_replaced_route_takes_the_place_of_the_old_one() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let gateway =
        |text: &str| KernelRoute { gateway: Some(text.parse().unwrap()), ..KernelRoute::to(net("10.9.0.0/16")) };
    let mut batch = Batch::new();
    batch.set_link(near.index, &up());
    batch.add_address(near.index, &address("10.1.0.2/24"));
    batch.replace_route(&gateway("10.1.0.1"));
    batch.replace_route(&gateway("10.1.0.3"));
    netlink.send(batch).unwrap();
    let routes = netlink.routes_to(net("10.9.0.0/16"), MAIN_TABLE).unwrap();
    assert_eq!(routes.iter().map(|route| route.gateway).collect::<Vec<_>>(), [gateway("10.1.0.3").gateway]);
}

#[test]
fn an_empty_batch_is_success_and_a_contradictory_one_sends_nothing() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    assert!(Batch::new().is_empty());
    netlink.send(Batch::new()).unwrap();
    let mut batch = Batch::new();
    batch.add_address(near.index, &address("10.1.0.2/24"));
    batch.add_route(&KernelRoute { gateway: Some("10.1.0.1".parse().unwrap()), ..KernelRoute::to(net("fd09::/32")) });
    let error = netlink.send(batch).unwrap_err();
    assert!(error.to_string().starts_with("add route \"fd09::/32 via 10.1.0.1\""), "{error}");
    assert_eq!(netlink.addresses(near.index).unwrap(), []);
}

#[test]
fn a_thousand_changes_fit_in_one_batch() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let mut batch = Batch::new();
    for number in 0..1000 {
        batch.add_address(near.index, &address(&format!("10.{}.{}.1/32", number / 250, number % 250)));
    }
    netlink.send(batch).unwrap();
    assert_eq!(netlink.addresses(near.index).unwrap().len(), 1000);
}
