//! Forwarding entries of VXLAN links.

use cnikit_netlink::attribute::Attributes;
use cnikit_netlink::{ForwardingEntry, Mac, Netlink, NewLink};
use cnikit_testkit::Host;
use cnikit_testkit::need::Need;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[test!(the_zero_mac_has_many_destinations_and_each_is_read needs Need::VXLAN)];

const IFLA_VXLAN_ID: u16 = 1;
const BROADCAST: Mac = Mac([0; 6]);

fn the_zero_mac_has_many_destinations_and_each_is_read() {
    let host = Host::new();
    let netlink = Netlink::inside(host.netns()).unwrap();
    let mut vxlan = NewLink::new("vx0", "vxlan");
    vxlan.data = Attributes::new().bytes(IFLA_VXLAN_ID, &7_u32.to_ne_bytes());
    let index = netlink.create_link(&vxlan).unwrap().index;
    let entry = |mac: Mac, text: &str| ForwardingEntry { mac, destination: text.parse().unwrap() };
    let entries =
        [entry(BROADCAST, "192.0.2.1"), entry(BROADCAST, "192.0.2.2"), entry(Mac([2, 0, 0, 0, 0, 9]), "192.0.2.3")];
    for entry in entries {
        netlink.append_forwarding_entry(index, entry).unwrap();
        netlink.append_forwarding_entry(index, entry).unwrap();
    }
    let mut found = netlink.forwarding_entries(index).unwrap();
    found.sort_by_key(|entry| entry.destination);
    assert_eq!(found, entries);
    assert!(host.sh("bridge fdb show dev vx0").contains("00:00:00:00:00:00 dst 192.0.2.2 self permanent"));
    let error = netlink.append_forwarding_entry(index, entry(BROADCAST, "2001:db8::1")).unwrap_err();
    assert!(error.to_string().contains("00:00:00:00:00:00 to 2001:db8::1 on vx0"), "{error}");
    assert_eq!(netlink.forwarding_entries(1).unwrap(), [], "those of another link");
}
