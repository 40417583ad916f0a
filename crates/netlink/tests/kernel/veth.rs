//! Veth pairs.

use cnikit_netlink::{Mac, Netlink};

use crate::scene::{inside, ip, veth};

#[test]
fn a_pair_is_made_across_namespaces_in_one_message() {
    let (here_netns, here) = inside();
    let (there_netns, there) = inside();
    ip(&here_netns, "link add br0 type bridge");
    let bridge = here.link("br0").unwrap();
    let near_mac: Mac = "0a:00:00:00:00:01".parse().unwrap();
    let far_mac: Mac = "0a:00:00:00:00:02".parse().unwrap();
    let mut veth = veth("near", "eth0", &there_netns).mac(near_mac).mtu(1400).queues(1).master(bridge.index);
    veth.peer.mac = Some(far_mac);

    let mut near = here.create_veth(&veth).unwrap();
    let far = there.link("eth0").unwrap();

    assert_eq!((near.name.as_str(), near.mac, near.mtu, near.up), ("near", Some(near_mac), 1400, false));
    assert_eq!((near.kind.as_deref(), near.master, near.lower), (Some("veth"), Some(bridge.index), Some(far.index)));
    assert_eq!((far.mac, far.mtu, far.up, far.lower, far.master), (Some(far_mac), 1400, false, Some(near.index), None));
    assert!(near.lower_netns.is_some());
    let mut read = here.link("near").unwrap();
    assert_eq!(read.port.map(|port| (port.hairpin, port.isolated)), Some((false, false)));
    // Linux 5.10 tells it at once.
    (read.port, near.port) = (None, None);
    near.promiscuity = 1;
    assert_eq!(read, near);
    assert_eq!(here.find_link("eth0").unwrap(), None);
}

#[test]
fn a_pair_within_one_namespace_has_no_namespace_of_its_peer() {
    let (netns, netlink) = inside();
    let near = netlink.create_veth(&veth("near", "far", &netns)).unwrap();
    assert_eq!(near.lower_netns, None);
    assert_eq!(near.lower, Some(netlink.link("far").unwrap().index));
}

#[test]
fn a_name_that_exists_on_either_side_differs_from_other_errors() {
    let (_here_netns, here) = inside();
    let (there_netns, there) = inside();
    here.create_veth(&veth("near", "far", &there_netns)).unwrap();
    for (near, far) in [("near", "other"), ("other", "far")] {
        let error = here.create_veth(&veth(near, far, &there_netns)).unwrap_err();
        assert!(error.exists(), "{error}");
    }
    assert_eq!(here.find_link("other").unwrap(), None);
    assert_eq!(there.find_link("other").unwrap(), None);
    let error = here.create_veth(&veth("tiny", "eth1", &there_netns).mtu(10)).unwrap_err();
    assert_eq!(error.errno, libc::EINVAL);
}

#[test]
fn a_multicast_mac_is_refused_and_leaves_nothing() {
    let (_here_netns, here) = inside();
    let (there_netns, there) = inside();
    let mac: Mac = "01:00:5e:00:00:01".parse().unwrap();
    assert!(mac.is_multicast());
    let mut veth = veth("near", "far", &there_netns);
    veth.peer.mac = Some(mac);
    assert_eq!(here.create_veth(&veth).unwrap_err().errno, libc::EADDRNOTAVAIL);
    assert_eq!((here.find_link("near").unwrap(), there.find_link("far").unwrap()), (None, None));
}

#[test]
fn sixty_four_threads_make_pairs_at_once() {
    let (here_netns, here) = inside();
    std::thread::scope(|scope| {
        for number in 0..64 {
            let here_netns = &here_netns;
            scope.spawn(move || {
                let here = Netlink::inside(here_netns).unwrap();
                let (there_netns, there) = inside();
                let near = here.create_veth(&veth(&format!("veth{number}"), "eth0", &there_netns)).unwrap();
                assert_eq!(near.name, format!("veth{number}"));
                assert_eq!(near.lower, Some(there.link("eth0").unwrap().index));
                assert_eq!(here.link_at(near.index).unwrap().name, near.name);
            });
        }
    });
    // The far namespaces ended with their threads. The kernel deletes their veth pairs a while later.
    assert!(here.links_of_kind("veth").unwrap().len() <= 64);
}
