//! What a test needs of the kernel, by name, and whether it is there.
//!
//! What a kernel says of itself (its configuration, its modules) is not what it does: a module may be absent, blacklisted or
//! half there. So each need is tried, in a network namespace that goes away.

use crate::env::host::Host;

/// A feature of the kernel that a test needs and many kernels lack.
///
/// ```no_run
/// use cnikit_testkit::need::Need;
/// const NETKIT: Need = Need::new("netkit", "ip link add n0 type netkit && ip -d link show n0", "netkit mode");
/// assert_eq!(NETKIT.unmet(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    name: &'static str,
    attempt: &'static str,
    shows: &'static str,
}

impl Need {
    /// A bridge that parts VLANs, and may be told which: `CONFIG_BRIDGE_VLAN_FILTERING`.
    #[doc(alias = "vlan_filtering")]
    pub const BRIDGE_VLAN_FILTERING: Need = Need::new(
        "bridge-vlan-filtering",
        "ip link add br0 type bridge vlan_filtering 1 && bridge vlan add vid 7 dev br0 self && bridge vlan show dev br0",
        " 7\n",
    );

    /// A link with the tagged frames of another: the module `8021q`.
    #[doc(alias = "CONFIG_VLAN_8021Q")]
    pub const VLAN: Need = Need::new(
        "8021q",
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name veth0.7 type vlan id 7 && ip -d link show veth0.7",
        "vlan protocol 802.1Q id 7 ",
    );

    /// A link with a routing table of its own: the module `vrf`.
    #[doc(alias = "CONFIG_NET_VRF")]
    pub const VRF: Need = Need::new("vrf", "ip link add vrf0 type vrf table 7 && ip -d link show vrf0", "vrf table 7 ");

    /// Several links with MACs of their own on top of another: the module `macvlan`.
    #[doc(alias = "CONFIG_MACVLAN")]
    pub const MACVLAN: Need = Need::new(
        "macvlan",
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name macv0 type macvlan mode bridge && ip -d link show macv0",
        "macvlan mode bridge ",
    );

    /// Several links with the MAC of another: the module `ipvlan`.
    #[doc(alias = "CONFIG_IPVLAN")]
    pub const IPVLAN: Need = Need::new(
        "ipvlan",
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name ipvl0 type ipvlan mode l2 && ip -d link show ipvl0",
        "ipvlan  mode l2 ",
    );

    /// A link that leads nowhere: the module `dummy`.
    #[doc(alias = "CONFIG_DUMMY")]
    pub const DUMMY: Need = Need::new("dummy", "ip link add dummy0 type dummy && ip -d link show dummy0", " dummy ");

    /// A link that carries frames in UDP to other hosts: the module `vxlan`.
    #[doc(alias = "CONFIG_VXLAN")]
    pub const VXLAN: Need =
        Need::new("vxlan", "ip link add vxlan0 type vxlan id 1 dstport 8472 && ip -d link show vxlan0", "vxlan id 1 ");

    /// What crosses a bridge is shown to the rules of a host: the module `br_netfilter`.
    #[doc(alias = "CONFIG_BRIDGE_NETFILTER")]
    pub const BRIDGE_NETFILTER: Need = Need::new(
        "br_netfilter",
        "sysctl -w net.bridge.bridge-nf-call-iptables=1",
        "net.bridge.bridge-nf-call-iptables = 1",
    );

    /// Rules of a bridge may ask of which bridge a port is: the module `nft_meta_bridge`.
    #[doc(alias = "CONFIG_NFT_BRIDGE_META")]
    pub const BRIDGE_META: Need = Need::new(
        "nft_meta_bridge",
        "nft 'add table bridge t; add chain bridge t c; add rule bridge t c meta ibrname \"br0\"' && nft list table bridge t",
        "ibrname \"br0\"",
    );

    /// All that stand here.
    pub const ALL: &[Need] = &[
        Need::BRIDGE_VLAN_FILTERING,
        Need::VLAN,
        Need::VRF,
        Need::MACVLAN,
        Need::IPVLAN,
        Need::DUMMY,
        Need::VXLAN,
        Need::BRIDGE_NETFILTER,
        Need::BRIDGE_META,
    ];

    /// A need of one's own: its name, a shell line that makes such a thing on a fresh host and shows it, and a text that is
    /// in what the line says if the thing is there.
    pub const fn new(name: &'static str, attempt: &'static str, shows: &'static str) -> Need {
        Need { name, attempt, shows }
    }

    /// Its name, as reports have it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Why this kernel does not meet the need: what was tried and the outcome; `None` if it does.
    pub fn unmet(&self) -> Option<String> {
        let (succeeded, said) = Host::new().try_sh(self.attempt);
        let met = succeeded && said.contains(self.shows);
        (!met).then(|| format!("{}: `{}` should show {:?}: {}", self.name, self.attempt, self.shows, said.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_fails_and_one_that_shows_nothing_do_not_meet_a_need() {
        assert_eq!(Need::new("met", "ip link show lo", "LOOPBACK").unmet(), None);
        let fails = Need::new("no-such-type", "ip link add x type nosuch && ip link show x", "x").unmet().unwrap();
        assert!(fails.starts_with("no-such-type: ") && fails.contains("nosuch"), "{fails}");
        let shows_nothing = Need::new("silent", "true", "x").unmet().unwrap();
        assert!(shows_nothing.contains("`true` should show \"x\""), "{shows_nothing}");
    }
}
