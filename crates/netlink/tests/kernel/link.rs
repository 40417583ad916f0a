//! Finding, reading, changing and deleting links.

use cnikit_netlink::{LinkChange, Mac, Netlink, NewBridge};
use cnikit_netns::sysctl;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::scene::{inside, ip, netns, pair, pair_up, up, veth};

#[test]
fn loopback_is_found_by_name_and_by_number() {
    let (_netns, netlink) = inside();
    let lo = netlink.link("lo").unwrap();
    assert_eq!(lo, netlink.link_at(lo.index).unwrap());
    assert_eq!((lo.index, lo.mtu, lo.kind.as_deref(), lo.up, lo.running), (1, 65536, None, false, false));
    assert!(lo.mac.unwrap().is_zero());
}

#[test]
fn a_socket_opened_inside_works_there_from_outside() {
    let (_netns, netlink) = inside();
    netlink.change(1, &up()).unwrap();
    let lo = netlink.link("lo").unwrap();
    assert!(lo.up && lo.running);
    assert_eq!(lo.operstate, "UNKNOWN");
    assert_eq!(netlink.links_of_kind("veth").unwrap(), []);
}

#[test]
fn the_namespace_of_the_calling_thread_is_here() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let found = netns.enter(|_| Netlink::here().unwrap().link("near").unwrap().index).unwrap();
    assert_eq!(found, near.index);
}

#[test]
fn an_absent_link_is_an_error_that_is_absent() {
    let (_netns, netlink) = inside();
    assert_eq!(netlink.find_link("eth9").unwrap(), None);
    assert_eq!(netlink.find_link_at(99).unwrap(), None);
    let error = netlink.link("eth9").unwrap_err();
    assert!(error.is_absent() && !error.exists());
    assert_eq!(error.to_string(), "find link \"eth9\": No such device");
    assert!(netlink.delete_link(99).unwrap_err().is_absent());
    assert!(netlink.change(99, &up()).unwrap_err().is_absent());
}

#[test]
fn a_name_that_no_link_can_have_is_an_error_and_not_an_absence() {
    let (_netns, netlink) = inside();
    let error = netlink.find_link(&"x".repeat(200)).unwrap_err();
    assert!(!error.is_absent(), "{error}");
    assert!(error.kernel.is_some(), "{error}");
}

#[test]
fn links_are_found_by_many_names_at_once_each_in_its_place() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    ip(&netns, "link property add dev near altname a-name-that-is-longer-than-fifteen-bytes");
    let names = ["none1", "near", "none2", "a-name-that-is-longer-than-fifteen-bytes", "lo"].map(str::to_owned);
    let found = netlink.find_links(&names).unwrap();
    let indexes: Vec<Option<u32>> = found.iter().map(|link| link.as_ref().map(|link| link.index)).collect();
    assert_eq!(indexes, [None, Some(near.index), None, Some(near.index), Some(1)]);
    assert_eq!(netlink.find_links(&[]).unwrap(), []);
    let names = ["lo".to_owned(), "x".repeat(200)];
    assert!(!netlink.find_links(&names).unwrap_err().is_absent());
}

#[test]
fn ipv6_settings_are_those_of_the_sysctls_and_none_where_there_is_no_ipv6() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    let settings =
        |index| netlink.link_at(index).unwrap().ipv6.map(|ipv6| (ipv6.accept_ra, ipv6.autoconf, ipv6.disabled));
    assert_eq!(settings(near.index), Some((1, 1, false)));
    netns
        .enter(|inside| {
            for (setting, value) in [("accept_ra", "2"), ("autoconf", "0"), ("disable_ipv6", "1")] {
                sysctl::set(inside, &format!("net/ipv6/conf/near/{setting}"), value).unwrap();
            }
        })
        .unwrap();
    assert_eq!(settings(near.index), Some((2, 0, true)));
    // The kernel has IPv6 only on links that carry its smallest packets (RFC 8200, section 5).
    netlink.change(far.index, &LinkChange::default().mtu(1279)).unwrap();
    assert_eq!(settings(far.index), None);
}

#[test]
fn alternative_names_of_any_length_find_the_link() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    ip(&netns, "link property add dev near altname short altname a-name-that-is-longer-than-fifteen-bytes");
    for name in ["short", "a-name-that-is-longer-than-fifteen-bytes"] {
        let link = netlink.link(name).unwrap();
        assert_eq!((link.index, link.name.as_str()), (near.index, "near"));
        assert!(link.altnames.iter().any(|altname| altname == name), "{link:?}");
    }
}

#[test]
fn links_are_listed_by_kind() {
    let (netns, netlink) = inside();
    pair(&netns, &netlink);
    ip(&netns, "link add br0 type bridge");
    let names = |kind| netlink.links_of_kind(kind).unwrap().into_iter().map(|link| link.name).collect::<Vec<_>>();
    assert_eq!(names("bridge"), ["br0"]);
    assert_eq!(names("veth"), ["far", "near"]);
    assert_eq!(names("no-such-kind"), [] as [&str; 0]);
}

#[test]
fn links_are_listed_by_master() {
    let (netns, netlink) = inside();
    pair(&netns, &netlink);
    ip(&netns, "link add br0 type bridge");
    ip(&netns, "link add br1 type bridge");
    ip(&netns, "link set near master br0");
    ip(&netns, "link set far master br1");
    let names = |bridge| {
        let ports = netlink.links_of_master(netlink.link(bridge).unwrap().index).unwrap();
        ports.into_iter().map(|link| link.name).collect::<Vec<_>>()
    };
    assert_eq!((names("br0"), names("br1"), names("near")), (vec!["near".into()], vec!["far".into()], Vec::new()));
}

#[test]
fn all_settings_change_in_one_message() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let change = LinkChange::default()
        .up(true)
        .alias("owned by no one".to_owned())
        .mtu(1400)
        .mac("0a:00:00:00:00:07".parse::<Mac>().unwrap())
        .promiscuous(true)
        .all_multicast(true)
        .tx_queue_length(77)
        .name("renamed".to_owned());
    netlink.change(near.index, &change).unwrap();
    let link = netlink.link("renamed").unwrap();
    assert_eq!((link.alias, link.mtu, link.mac), (change.alias, 1400, change.mac));
    assert!(link.up && link.promiscuous && link.promiscuity == 1);
    assert_eq!((link.all_multicast, link.tx_queue_length), (true, 77));
    let seen = ip(&netns, "-d link show dev renamed");
    assert!(seen.contains("alias owned by no one") && seen.contains("PROMISC") && seen.contains("mtu 1400"), "{seen}");
    assert!(seen.contains("ALLMULTI") && seen.contains("qlen 77"), "{seen}");
}

#[test]
fn an_empty_change_changes_nothing() {
    let (netns, netlink) = inside();
    let (near, _) = pair_up(&netns, &netlink);
    let before = netlink.link_at(near.index).unwrap();
    netlink.change(near.index, &LinkChange::default()).unwrap();
    assert_eq!(netlink.link_at(near.index).unwrap(), before);
}

#[test]
fn an_alias_of_254_bytes_is_set_and_an_empty_one_removes_it() {
    let (_netns, netlink) = inside();
    let alias = |text: String| LinkChange::default().alias(text);
    netlink.change(1, &alias("x".repeat(254))).unwrap();
    assert_eq!(netlink.link_at(1).unwrap().alias.unwrap().len(), 254);
    netlink.change(1, &alias("x".repeat(255))).unwrap_err();
    netlink.change(1, &alias(String::new())).unwrap();
    assert_eq!(netlink.link_at(1).unwrap().alias, None);
}

#[test]
fn the_error_of_a_change_names_the_link_and_quotes_the_kernel() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let error = netlink.change(near.index, &LinkChange::default().mtu(1_000_000)).unwrap_err();
    assert_eq!(error.errno, libc::EINVAL);
    let text = "change link \"near\": Invalid argument (the kernel says: mtu greater than device maximum)";
    assert_eq!(error.to_string(), text);
    let source = std::error::Error::source(&error).unwrap().downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(source.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn deleting_one_end_of_a_veth_takes_the_other_with_it() {
    let (_near_netns, here) = inside();
    let (far_netns, there) = inside();
    let near = here.create_veth(&veth("near", "far", &far_netns)).unwrap();
    there.delete_link(there.link("far").unwrap().index).unwrap();
    assert_eq!(here.find_link("near").unwrap(), None);
    assert!(here.delete_link(near.index).unwrap_err().is_absent());
}

#[test]
fn both_ends_and_their_names_are_gone_when_a_link_is_unregistered() {
    let (_near_netns, here) = inside();
    let (far_netns, there) = inside();
    for _ in 0..20 {
        let near = here.create_veth(&veth("near", "far", &far_netns)).unwrap();
        let child = here.unregister_link(near.index).unwrap().expect("this kernel has close_range(2)");
        assert_eq!((here.find_link("near").unwrap(), there.find_link("far").unwrap()), (None, None));
        child.wait();
    }
}

/// The child still waits for the kernel when the call returns: at least once, because a busy machine may run the child first.
#[test]
fn unregistering_a_link_does_not_wait_for_the_kernel_to_free_it() {
    let (_near_netns, here) = inside();
    let (far_netns, _) = inside();
    let runs_on = |_| {
        let near = here.create_veth(&veth("near", "far", &far_netns)).unwrap();
        let child = here.unregister_link(near.index).unwrap().unwrap();
        let ended = poll(&mut [PollFd::new(child.exit_notice(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap();
        child.wait();
        ended == 0
    };
    assert!((0..20).any(runs_on), "each child had ended");
}

#[test]
fn a_link_that_cannot_be_deleted_is_not_unregistered_either() {
    let (_netns, netlink) = inside();
    let lo = netlink.link("lo").unwrap().index;
    let refused = netlink.unregister_link(lo).unwrap_err();
    assert_eq!(refused.to_string(), netlink.delete_link(lo).unwrap_err().to_string());
    let refused = netlink.unregister_group(0, lo).unwrap_err();
    assert_eq!(refused.to_string(), netlink.delete_group(0).unwrap_err().to_string());
}

#[test]
fn an_absent_link_is_as_good_as_unregistered() {
    let (_netns, netlink) = inside();
    drop(netlink.unregister_link(99).unwrap());
    drop(netlink.unregister_group(8, 99).unwrap());
}

#[test]
fn a_group_of_links_is_unregistered_at_once() {
    let (_netns, netlink) = inside();
    let mut made = Vec::new();
    for name in ["one", "two", "three"] {
        let link = netlink.create_bridge(&NewBridge::new(name)).unwrap();
        netlink.change(link.index, &LinkChange::default().group(7)).unwrap();
        made.push(link.index);
    }
    drop(netlink.unregister_group(7, made[1]).unwrap());
    assert_eq!(netlink.links().unwrap().len(), 1, "only lo is left");
}

#[test]
fn clones_share_a_socket_and_do_not_mix_their_answers_up() {
    let netns = netns();
    let one = Netlink::inside(&netns).unwrap();
    let other = one.clone();
    assert_eq!(one.link("lo").unwrap(), other.link_at(1).unwrap());
    assert!(other.link("gone").unwrap_err().is_absent());
    assert_eq!(one.link("lo").unwrap().index, 1);
}

#[test]
fn a_group_of_links_is_deleted_at_once() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    let other = netlink.create_bridge(&NewBridge::new("br0")).unwrap();
    assert_eq!((near.group, far.group, other.group), (0, 0, 0));
    netlink.change(near.index, &LinkChange::default().group(7)).unwrap();
    assert_eq!((netlink.link("near").unwrap().group, netlink.link("br0").unwrap().group), (7, 0));
    assert!(netlink.delete_group(8).unwrap_err().is_absent());
    netlink.delete_group(7).unwrap();
    assert_eq!(netlink.links_of_kind("veth").unwrap(), []);
    assert!(netlink.find_link("br0").unwrap().is_some());
    assert!(netlink.delete_group(0).is_err(), "it would be every link that is in none");
}

#[test]
fn a_link_is_cached_until_a_link_is_changed() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let read = netlink.link("near").unwrap();
    ip(&netns, "link set dev near mtu 1300");
    assert_eq!(netlink.recent_link("near").unwrap(), read, "changes by other programs are not seen");
    assert_eq!(netlink.find_recent_link_at(near.index).unwrap(), Some(read));
    assert_eq!(netlink.find_recent_link("lo").unwrap().map(|link| link.index), Some(1), "one that was never read");
    assert_eq!(netlink.find_recent_link("eth9").unwrap(), None);
    netlink.change(1, &up()).unwrap();
    assert_eq!(netlink.recent_link("near").unwrap().mtu, 1300);
    netlink.delete_link(near.index).unwrap();
    assert_eq!(netlink.find_recent_link("near").unwrap(), None);
}
