//! Bridges and their ports.

use cnikit_netlink::{LinkChange, Mac, NewBridge};

use crate::scene::{inside, ip, pair, veth};

fn bridge(name: &str) -> NewBridge {
    NewBridge::new(name)
}

#[test]
fn a_bridge_is_created_as_configured_and_is_down() {
    let (netns, netlink) = inside();
    let mac: Mac = "0a:00:00:00:00:09".parse().unwrap();
    let made = netlink.create_bridge(&bridge("br0").mac(mac).mtu(9000)).unwrap();
    assert_eq!((made.mac, made.mtu, made.up, made.kind.as_deref()), (Some(mac), 9000, false, Some("bridge")));
    assert_eq!(netlink.link("br0").unwrap(), made);
    assert!(ip(&netns, "-d link show br0").contains("link/ether 0a:00:00:00:00:09"));
}

/// A kernel built without `CONFIG_BRIDGE_VLAN_FILTERING` refuses the setting.
#[test]
fn vlan_filtering_is_set_at_birth_or_refused_as_unsupported() {
    let (netns, netlink) = inside();
    match netlink.create_bridge(&bridge("br0").vlan_filtering(true)) {
        Ok(made) => {
            assert_eq!(made.vlan_filtering, Some(true));
            assert!(ip(&netns, "-d link show br0").contains("vlan_filtering 1"));
        }
        Err(error) => {
            assert!(error.unsupported(), "{error}");
            assert_eq!(netlink.find_link("br0").unwrap(), None);
        }
    }
    assert_eq!(netlink.create_bridge(&bridge("br1")).unwrap().vlan_filtering, Some(false));
}

#[test]
fn learning_from_link_local_groups_is_set_at_birth_and_later() {
    let (netns, netlink) = inside();
    let shown = || ip(&netns, "-d link show br0").contains("no_linklocal_learn 1");
    let made = netlink.create_bridge(&bridge("br0").link_local_learning(false)).unwrap();
    assert_eq!((made.link_local_learning, shown()), (Some(false), true));
    for (learning, up) in [(true, true), (false, false)] {
        let change = LinkChange::default().link_local_learning(learning).up(up);
        netlink.change(made.index, &change).unwrap();
        let link = netlink.link("br0").unwrap();
        assert_eq!((link.link_local_learning, link.up, shown()), (Some(learning), up, !learning));
    }
    assert_eq!(netlink.create_bridge(&bridge("br1")).unwrap().link_local_learning, Some(true));
}

#[test]
fn an_existing_bridge_is_an_error_that_exists() {
    let (_netns, netlink) = inside();
    netlink.create_bridge(&bridge("br0")).unwrap();
    let error = netlink.create_bridge(&bridge("br0")).unwrap_err();
    assert!(error.exists());
    assert_eq!(error.to_string(), "create bridge \"br0\": File exists");
}

#[test]
fn port_settings_go_in_one_message_after_the_master() {
    let (netns, netlink) = inside();
    let bridge = netlink.create_bridge(&bridge("br0")).unwrap();
    let port = netlink.create_veth(&veth("near", "far", &netns).master(bridge.index));
    let port = port.unwrap().index;
    let change = LinkChange::default().hairpin(true).isolated(true).up(true);
    netlink.change(port, &change).unwrap();
    let link = netlink.link_at(port).unwrap();
    assert_eq!(link.port.map(|port| (port.hairpin, port.isolated)), Some((true, true)));
    assert!(link.up);
    let seen = ip(&netns, "-d link show near");
    assert!(seen.contains("hairpin on") && seen.contains("isolated on"), "{seen}");
    netlink.change(port, &LinkChange::default().hairpin(false)).unwrap();
    let link = netlink.link_at(port).unwrap();
    assert_eq!(link.port.map(|port| (port.hairpin, port.isolated)), Some((false, true)));
}

#[test]
fn port_settings_together_with_the_master_are_refused() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let bridge = netlink.create_bridge(&bridge("br0")).unwrap();
    let change = LinkChange::default().hairpin(true).master(bridge.index);
    assert!(netlink.change(near.index, &change).unwrap_err().unsupported());
    assert_eq!(netlink.link_at(near.index).unwrap().master, None);
}

#[test]
fn a_port_is_put_in_and_taken_out() {
    let (netns, netlink) = inside();
    let (near, _) = pair(&netns, &netlink);
    let bridge = netlink.create_bridge(&bridge("br0")).unwrap();
    netlink.change(near.index, &LinkChange::default().master(bridge.index)).unwrap();
    let link = netlink.link_at(near.index).unwrap();
    assert_eq!((link.master, link.port.map(|port| port.hairpin)), (Some(bridge.index), Some(false)));
    netlink.change(near.index, &LinkChange::default().master(0)).unwrap();
    let link = netlink.link_at(near.index).unwrap();
    assert_eq!((link.master, link.port), (None, None));
}

#[test]
fn only_a_change_makes_the_mtu_of_a_bridge_stay() {
    let (netns, netlink) = inside();
    let born = netlink.create_bridge(&bridge("born").mtu(9000)).unwrap().index;
    let changed = netlink.create_bridge(&bridge("changed")).unwrap().index;
    netlink.change(changed, &LinkChange::default().mtu(9000)).unwrap();
    for (master, near, far) in [(born, "near1", "far1"), (changed, "near2", "far2")] {
        netlink.create_veth(&veth(near, far, &netns).master(master)).unwrap();
    }
    assert_eq!((netlink.link_at(born).unwrap().mtu, netlink.link_at(changed).unwrap().mtu), (1500, 9000));
}
