//! Features of the kernel, and programs, that tests need, and whether they are there.
//!
//! The configuration and the module list of a kernel do not suffice to decide this: a module may be absent, blacklisted or
//! incomplete. So each feature is tried in a network namespace of its own.

use crate::Host;

/// A feature of the kernel that a test needs and many kernels lack.
///
/// ```no_run
/// use cnikit_testing::need::Need;
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
    /// A bridge that separates VLANs, with configurable membership: `CONFIG_BRIDGE_VLAN_FILTERING`.
    #[doc(alias = "vlan_filtering")]
    pub const BRIDGE_VLAN_FILTERING: Need = Need::new(
        "bridge-vlan-filtering",
        "ip link add br0 type bridge vlan_filtering 1 && bridge vlan add vid 7 dev br0 self && bridge vlan show dev br0",
        " 7\n",
    );

    /// VLAN links: the module `8021q`.
    #[doc(alias = "CONFIG_VLAN_8021Q")]
    pub const VLAN: Need = Need::new(
        "8021q",
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name veth0.7 type vlan id 7 && ip -d link show veth0.7",
        "vlan protocol 802.1Q id 7 ",
    );

    /// VRF links, which have a routing table of their own: the module `vrf`.
    #[doc(alias = "CONFIG_NET_VRF")]
    pub const VRF: Need = Need::new("vrf", "ip link add vrf0 type vrf table 7 && ip -d link show vrf0", "vrf table 7 ");

    /// Links with their own MACs on top of another link: the module `macvlan`.
    #[doc(alias = "CONFIG_MACVLAN")]
    pub const MACVLAN: Need = Need::new(
        "macvlan",
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name macv0 type macvlan mode bridge && ip -d link show macv0",
        "macvlan mode bridge ",
    );

    /// Links with the MAC of the link below them: the module `ipvlan`.
    #[doc(alias = "CONFIG_IPVLAN")]
    pub const IPVLAN: Need = Need::new(
        "ipvlan",
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name ipvl0 type ipvlan mode l2 && ip -d link show ipvl0",
        "ipvlan  mode l2 ",
    );

    /// Links that drop all packets: the module `dummy`.
    #[doc(alias = "CONFIG_DUMMY")]
    pub const DUMMY: Need = Need::new("dummy", "ip link add dummy0 type dummy && ip -d link show dummy0", " dummy ");

    /// TAP and TUN devices: the module `tun`, and its file `/dev/net/tun`.
    #[doc(alias = "CONFIG_TUN")]
    pub const TUN: Need = Need::new("tun", "ip tuntap add tap0 mode tap && ip -d link show tap0", "tun type tap ");

    /// Links to which received packets are redirected, so that a shaper limits them: the module `ifb`.
    #[doc(alias = "CONFIG_IFB")]
    pub const IFB: Need = Need::new("ifb", "ip link add ifb7 type ifb && ip -d link show ifb7", " ifb ");

    /// The queueing discipline `tbf`, a token bucket: the module `sch_tbf`.
    #[doc(alias = "CONFIG_NET_SCH_TBF")]
    pub const TBF: Need = Need::new(
        "tbf",
        "ip link add veth0 type veth peer name veth1 && tc qdisc add dev veth0 root tbf rate 1mbit burst 10000 latency 5ms \
         && tc qdisc show dev veth0",
        "qdisc tbf ",
    );

    /// The queueing discipline `htb`, token buckets for classes that filters choose: the modules `sch_htb` and `cls_u32`.
    #[doc(alias = "CONFIG_NET_SCH_HTB")]
    pub const HTB: Need = Need::new(
        "htb",
        "ip link add veth0 type veth peer name veth1 && tc qdisc add dev veth0 root handle 1: htb \
         && tc filter add dev veth0 parent 1: u32 match u32 0 0 flowid 1:1 && tc qdisc show dev veth0",
        "qdisc htb 1: ",
    );

    /// The queueing discipline `fq_codel`, which keeps the queues of flows short: the module `sch_fq_codel`.
    #[doc(alias = "CONFIG_NET_SCH_FQ_CODEL")]
    pub const FQ_CODEL: Need = Need::new(
        "fq_codel",
        "ip link add veth0 type veth peer name veth1 && tc qdisc add dev veth0 root fq_codel && tc qdisc show dev veth0",
        "qdisc fq_codel ",
    );

    /// Links that carry frames in UDP to other hosts: the module `vxlan`.
    #[doc(alias = "CONFIG_VXLAN")]
    pub const VXLAN: Need =
        Need::new("vxlan", "ip link add vxlan0 type vxlan id 1 dstport 8472 && ip -d link show vxlan0", "vxlan id 1 ");

    /// Bridged packets pass the host's iptables rules: the module `br_netfilter`.
    #[doc(alias = "CONFIG_BRIDGE_NETFILTER")]
    pub const BRIDGE_NETFILTER: Need = Need::new(
        "br_netfilter",
        "sysctl -w net.bridge.bridge-nf-call-iptables=1",
        "net.bridge.bridge-nf-call-iptables = 1",
    );

    /// Rules of family `bridge` can match the name of the bridge: the module `nft_meta_bridge`.
    #[doc(alias = "CONFIG_NFT_BRIDGE_META")]
    pub const BRIDGE_META: Need = Need::new(
        "nft_meta_bridge",
        "nft 'add table bridge t; add chain bridge t c; add rule bridge t c meta ibrname \"br0\"' && nft list table bridge t",
        "ibrname \"br0\"",
    );

    /// Two network cards on the PCI bus that nothing else uses, in a machine of the tests: `VM_CARDS` of `scripts/vm`, which tells
    /// the kernel their places. No card that a machine has of itself meets it.
    #[doc(alias = "VM_CARDS")]
    pub const PCI_CARDS: Need =
        Need::new("pci-cards", "grep -o 'cnikit[.]cards=[^ ,]*,[^ ,]*' /proc/cmdline", "cnikit.cards=");

    /// A device on the auxiliary bus with a link of its own, which nothing else uses: the module of `tests/auxiliary`, which
    /// `scripts/test vm` builds and `VM_MODULE` of `scripts/vm` loads.
    #[doc(alias = "VM_MODULE")]
    pub const AUXILIARY_DEVICE: Need =
        Need::new("auxiliary-device", "ls /sys/bus/auxiliary/devices", "cnikit_auxiliary.port.0");

    /// A network namespace has a number of its own until the next boot, `SO_NETNS_COOKIE` (71) of its sockets: Linux 5.14.
    #[doc(alias = "SO_NETNS_COOKIE")]
    pub const NETNS_COOKIE: Need = Need::new(
        "netns-cookie",
        "python3 -c 'import socket; print(len(socket.socket(socket.AF_UNIX).getsockopt(socket.SOL_SOCKET, 71, 8)), \"bytes\")'",
        "8 bytes",
    );

    /// The kernel tells which device a link has, `IFLA_PARENT_DEV_NAME`: Linux 5.14. No option of a kernel takes it away, and a
    /// new namespace has no link with a device, so the version is compared.
    #[doc(alias = "IFLA_PARENT_DEV_NAME")]
    pub const LINK_PARENT: Need = Need::new(
        "link-parent",
        "release=$(uname -r) && printf '%s\\n' 5.14 \"$release\" | sort --version-sort --check && echo \"$release has it\"",
        " has it",
    );

    /// A link that is moved to another namespace is found there by its alternative names. A kernel without it still has them in
    /// the first namespace, and refuses to remove them.
    #[doc(alias = "IFLA_ALT_IFNAME")]
    pub const MOVED_ALTNAMES: Need = Need::new(
        "moved-altnames",
        "ip link add a0 type veth peer name b0 && ip link property add dev a0 altname other; unshare --net sleep 60 & \
         until [ \"$(readlink /proc/$!/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do :; done; \
         ip link set a0 netns $!; nsenter --net=/proc/$!/ns/net ip -o link show other; kill $!",
        "altname other",
    );

    /// systemd, and control groups of the second version in which it can make its own.
    #[doc(alias = "cgroup2")]
    pub const SYSTEMD: Need = Need::new(
        "cgroup2-and-systemd",
        "test -x /lib/systemd/systemd && unshare --mount sh -c 'mount -t cgroup2 none /mnt && \
         rmdir $(mktemp -d /mnt/cnikit-XXXXXX) && echo a control group was made'",
        "a control group was made",
    );

    /// All needs defined here.
    pub const ALL: &[Need] = &[
        Need::BRIDGE_VLAN_FILTERING,
        Need::VLAN,
        Need::VRF,
        Need::MACVLAN,
        Need::IPVLAN,
        Need::DUMMY,
        Need::TUN,
        Need::IFB,
        Need::TBF,
        Need::HTB,
        Need::FQ_CODEL,
        Need::VXLAN,
        Need::BRIDGE_NETFILTER,
        Need::BRIDGE_META,
        Need::PCI_CARDS,
        Need::AUXILIARY_DEVICE,
        Need::NETNS_COOKIE,
        Need::LINK_PARENT,
        Need::MOVED_ALTNAMES,
        Need::SYSTEMD,
    ];

    /// Defines a need: its name, a shell line that creates the feature on a new host and prints it, and a text that the output
    /// contains if that worked.
    pub const fn new(name: &'static str, attempt: &'static str, shows: &'static str) -> Need {
        Need { name, attempt, shows }
    }

    /// The name, as in reports.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Tries the feature. Returns what was tried and the outcome if the kernel lacks it, or else `None`.
    pub fn unmet(&self) -> Option<String> {
        let (succeeded, output) = Host::new().try_sh(self.attempt);
        if succeeded && output.contains(self.shows) {
            return None;
        }
        Some(format!("{}: `{}` should show {:?}: {}", self.name, self.attempt, self.shows, output.trim()))
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
