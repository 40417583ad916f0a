//! VLANs of bridge ports.

#![expect(clippy::unwrap_used, reason = "a test whose scene cannot be set has failed")]

use cnikit_netlink::{Batch, Error, Link, Netlink, NewBridge, VlanRange};
use cnikit_netns::Netns;

use crate::scene::{inside, veth};

/// A port of a bridge that filters by VLAN; `None` if this kernel was built without `CONFIG_BRIDGE_VLAN_FILTERING`, which its
/// error must then show.
fn port(netns: &Netns, netlink: &Netlink) -> Option<Link> {
    let bridge = NewBridge::new("br0").vlan_filtering(true);
    let made = netlink.create_bridge(&bridge);
    if made.as_ref().is_err_and(Error::unsupported) {
        let plain = netlink.create_bridge(&bridge.vlan_filtering(None)).unwrap();
        assert_eq!(plain.default_vlan, None, "a kernel that knows no VLANs has no default among them");
        return None;
    }
    let made = made.unwrap();
    assert_eq!(made.default_vlan, Some(1));
    Some(netlink.create_veth(&veth("near", "far", netns).master(made.index)).unwrap())
}

fn set(netlink: &Netlink, port: u32, ranges: &[VlanRange]) {
    let mut batch = Batch::new();
    batch.delete_vlans(port, VlanRange::ALL);
    batch.add_vlans(port, ranges);
    netlink.send(batch).unwrap();
}

#[test]
fn the_vlans_of_a_port_are_replaced_as_a_whole() {
    let (netns, netlink) = inside();
    let Some(port) = port(&netns, &netlink) else { return };
    assert_eq!(netlink.vlans(port.index).unwrap(), [VlanRange::native(1)], "as the kernel makes it");
    let wanted = [VlanRange::native(100), VlanRange::tagged(200, 210), VlanRange::tagged(4094, 4094)];
    set(&netlink, port.index, &wanted);
    assert_eq!(netlink.vlans(port.index).unwrap(), wanted);
    set(&netlink, port.index, &[VlanRange::tagged(2, 4094), VlanRange::native(1)]);
    assert_eq!(netlink.vlans(port.index).unwrap(), [VlanRange::native(1), VlanRange::tagged(2, 4094)]);
    set(&netlink, port.index, &[VlanRange::native(5)]);
    assert_eq!(netlink.vlans(port.index).unwrap(), [VlanRange::native(5)]);
}

#[test]
fn a_vlan_that_is_there_is_changed() {
    let (netns, netlink) = inside();
    let Some(port) = port(&netns, &netlink) else { return };
    set(&netlink, port.index, &[VlanRange::native(100), VlanRange::tagged(200, 201)]);
    let mut batch = Batch::new();
    batch.add_vlans(port.index, &[VlanRange { untagged: true, ..VlanRange::tagged(200, 200) }]);
    netlink.send(batch).unwrap();
    let texts: Vec<String> = netlink.vlans(port.index).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["100 PVID untagged", "200 untagged", "201"]);
}

#[test]
fn vlans_of_another_port_are_not_returned() {
    let (netns, netlink) = inside();
    let Some(first) = port(&netns, &netlink) else { return };
    let second = veth("near2", "far2", &netns).master(first.master);
    let second = netlink.create_veth(&second).unwrap();
    set(&netlink, second.index, &[VlanRange::native(7)]);
    assert_eq!(netlink.vlans(first.index).unwrap(), [VlanRange::native(1)]);
}

#[test]
fn a_link_that_is_not_a_port_is_refused_with_its_name() {
    let (netns, netlink) = inside();
    if port(&netns, &netlink).is_none() {
        let error = netlink.vlans(1).unwrap_err();
        assert!(error.unsupported(), "{error}");
        return;
    }
    let far = netlink.link("far").unwrap();
    netlink.vlans(far.index).unwrap_err();
    let mut batch = Batch::new();
    batch.add_vlans(far.index, &[VlanRange::native(7)]);
    let error = netlink.send(batch).unwrap_err();
    assert!(error.to_string().contains("add VLANs of \"far\""), "{error}");
}
