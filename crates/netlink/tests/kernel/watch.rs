//! Waiting for links and addresses.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cnikit_netlink::{Address, Batch, Link, LinkChange, Netlink};
use cnikit_process::Deadline;

use crate::scene::{address, inside, net, pair, pair_up, up};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

#[test]
fn a_link_that_is_ready_is_returned_at_once() {
    let (_netns, netlink) = inside();
    let lo = netlink.wait_link(1, Deadline::after(Duration::ZERO), |link| !link.up).unwrap();
    assert_eq!(lo.name, "lo");
}

#[test]
fn a_link_is_waited_for_until_its_peer_comes_up() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    netlink.change(near.index, &up()).unwrap();
    assert!(!netlink.link_at(near.index).unwrap().running);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Deadline::after(Duration::from_millis(50));
            deadline.pause(Duration::from_secs(1));
            Netlink::inside(&netns).unwrap().change(far.index, &up()).unwrap();
        });
        let link = netlink.wait_link(near.index, soon(), |link| link.running).unwrap();
        assert_eq!(link.operstate, "UP");
    });
}

#[test]
fn the_deadline_is_an_error_with_the_last_state() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    netlink.change(near.index, &up()).unwrap();
    let started = Instant::now();
    let error =
        netlink.wait_link(near.index, Deadline::after(Duration::from_millis(100)), |link| link.running).unwrap_err();
    assert!(started.elapsed() >= Duration::from_millis(100) && started.elapsed() < Duration::from_secs(10));
    assert_eq!(error.errno, libc::ETIMEDOUT);
    let text = error.to_string();
    // Linux 5.10 sets the state later.
    let states = ["LOWERLAYERDOWN", "UNKNOWN"].map(|state| format!("wait for link \"near (set up, state {state})\": "));
    assert!(states.iter().any(|start| text.starts_with(start)), "{text}");
}

#[test]
fn a_link_that_is_deleted_ends_the_wait() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    std::thread::scope(|scope| {
        scope.spawn(|| Netlink::inside(&netns).unwrap().delete_link(near.index).unwrap());
        let error = netlink.wait_link(near.index, soon(), |link| link.running).unwrap_err();
        assert!(error.is_absent(), "{error}");
    });
}

#[test]
fn addresses_are_waited_for_until_the_neighbours_were_asked() {
    let (netns, netlink) = inside();
    let (near, _) = pair_up(&netns, &netlink);
    netlink.add_address(near.index, &address("fd00::2/64")).unwrap();
    assert!(netlink.addresses(near.index).unwrap().iter().any(|address| address.tentative));
    let settled = netlink
        .wait_addresses(near.index, soon(), |addresses| addresses.iter().all(|address| !address.tentative))
        .unwrap();
    assert!(settled.iter().any(|address| address.address == net("fd00::2/64")), "{settled:?}");
}

#[test]
fn an_address_that_a_neighbour_has_is_seen_to_fail() {
    let (netns, here) = inside();
    let (other, there) = inside();
    here.create_veth(&crate::scene::veth("near", "far", &other)).unwrap();
    let near = here.link("near").unwrap().index;
    let far = there.link("far").unwrap().index;
    there.add_address(far, &address("fd00::2/64").no_dad(true)).unwrap();
    there.change(far, &up()).unwrap();
    here.change(near, &up()).unwrap();
    there.wait_link(far, soon(), |link| link.running).unwrap();
    here.add_address(near, &address("fd00::2/64")).unwrap();
    let failed =
        here.wait_addresses(near, soon(), |addresses| addresses.iter().any(|address| address.dad_failed)).unwrap();
    assert_eq!(failed.iter().find(|address| address.dad_failed).unwrap().address, net("fd00::2/64"));
    let error = here.wait_addresses(near, Deadline::after(Duration::ZERO), <[_]>::is_empty).unwrap_err();
    assert!(error.to_string().contains("fd00::2/64 duplicate"), "{error}");
    drop(netns);
}

#[test]
fn events_left_over_from_waiting_do_not_disturb_later_requests() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    let other = Netlink::inside(&netns).unwrap();
    let error = netlink.wait_link(near.index, Deadline::after(Duration::ZERO), |link| link.running).unwrap_err();
    assert_eq!(error.errno, libc::ETIMEDOUT);
    netlink
        .wait_link(near.index, soon(), |link| {
            for mtu in 1300..1400 {
                other.change(far.index, &LinkChange::default().mtu(mtu)).unwrap();
            }
            link.mtu == 1500
        })
        .unwrap();
    assert_eq!(netlink.link_at(far.index).unwrap().mtu, 1399);
    assert_eq!(netlink.addresses(near.index).unwrap(), []);
}

/// The number of messages that the kernel could not deliver to the sockets of this namespace.
#[expect(clippy::unwrap_used, reason = "a witness that cannot see has failed")]
fn drops(netns: &cnikit_netns::Netns) -> u32 {
    let table = netns.enter(|_| std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap()).unwrap();
    let drops = |line: &str| line.split_whitespace().nth(8).unwrap().parse::<u32>().unwrap();
    table.lines().skip(1).map(drops).sum()
}

/// Waits for a change of `near` that comes after 8,000 changes of the link that is chosen, and returns how many events of them the
/// socket had no room for.
#[expect(clippy::unwrap_used, reason = "a witness that cannot see has failed")]
fn drops_of_many_changes(choose: impl Fn(&Link, &Link) -> u32) -> u32 {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    let other = Netlink::inside(&netns).unwrap();
    let calls = std::cell::Cell::new(0);
    let ready = |link: &Link| {
        // The first reading happens before the subscription.
        if calls.replace(calls.get() + 1) == 1 {
            for number in 0..8000 {
                other.change(choose(&near, &far), &LinkChange::default().mtu(1300 + number % 100)).unwrap();
            }
            other.change(near.index, &LinkChange::default().mtu(1234)).unwrap();
        }
        link.mtu == 1234
    };
    assert_eq!(netlink.wait_link(near.index, soon(), ready).unwrap().mtu, 1234);
    assert_eq!(netlink.links_of_kind("veth").unwrap().len(), 2);
    drops(&netns)
}

#[test]
fn more_events_than_the_queue_holds_have_the_state_read_anew() {
    let drops = drops_of_many_changes(|near, _| near.index);
    assert!(drops > 0, "the queue held it all, so nothing was tested");
}

#[test]
fn events_about_other_links_are_not_received() {
    assert_eq!(drops_of_many_changes(|_, far| far.index), 0);
}

#[test]
fn any_link_is_waited_for_after_a_certain_one() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    netlink.wait_link(near.index, Deadline::after(Duration::ZERO), |link| link.running).unwrap_err();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Deadline::after(Duration::from_millis(50));
            deadline.pause(Duration::from_secs(1));
            Netlink::inside(&netns).unwrap().change(far.index, &LinkChange::default().mtu(1234)).unwrap();
        });
        let look = || Ok(Some(netlink.link_at(far.index)?.mtu).filter(|mtu| *mtu == 1234));
        assert_eq!(netlink.wait_for(soon(), look).unwrap(), Some(1234));
    });
}

/// Many addresses make the reading long, so that some changes happen during it.
#[test]
fn a_change_during_a_reading_is_not_missed() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let add = |batch: &mut Batch, text: String| {
        batch.add_address(near.index, &address(&text).no_dad(true));
    };
    let mut batch = Batch::new();
    (0..1000).for_each(|number| add(&mut batch, format!("fd00::{number:x}/128")));
    netlink.send(batch).unwrap();
    let (orders, ordered) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let other = Netlink::inside(&netns).unwrap();
            for number in ordered {
                let mut batch = Batch::new();
                add(&mut batch, format!("fd09::{number:x}/128"));
                other.send(batch).unwrap();
            }
        });
        for number in 1..=200 {
            orders.send(number).unwrap();
            let wanted = net(&format!("fd09::{number:x}/128"));
            let there = |found: &[Address]| found.iter().any(|found| found.address == wanted);
            netlink.wait_addresses(near.index, soon(), there).unwrap();
        }
        drop(orders);
    });
}
