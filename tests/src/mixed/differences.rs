//! What differs, and why: the one list that the test believes, and the page for people is made of.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use cnikit_testkit::Host;

use super::{Found, Row, UpstreamRelease};

/// One intended difference between upstream and ours.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// Its name.
    pub id: &'static str,
    /// The rows in which it occurs: their ids, or prefixes of these.
    pub rows: &'static [&'static str],
    /// The releases of upstream with which it occurs.
    pub releases: &'static [UpstreamRelease],
    /// Lines that only upstream has; `*` matches any text. Each has to occur.
    pub theirs: &'static [&'static str],
    /// Lines that only ours has.
    pub ours: &'static [&'static str],
    /// The subject, for the documentation.
    pub what: &'static str,
    /// What upstream's plugin does, for the documentation.
    pub they: &'static str,
    /// What our plugin does, for the documentation.
    pub we: &'static str,
    /// Why ours is right.
    pub why: &'static str,
}

const BOTH: &[UpstreamRelease] = &[UpstreamRelease::Packaged, UpstreamRelease::Newest];
const NEWEST: &[UpstreamRelease] = &[UpstreamRelease::Newest];
const PACKAGED: &[UpstreamRelease] = &[UpstreamRelease::Packaged];

/// The row of differences that occur only if [`has_queues`] is true.
const QUEUES: &str = "queues";

/// All of them.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        id: "result-mtu",
        rows: &["bridge/", "ptp/", "macvlan/", "ipvlan/", "vlan/", "dummy/", "tap/", "host-device/"],
        releases: BOTH,
        theirs: &[],
        ours: &["result interfaces[*] mtu = *"],
        what: "`mtu` of the interfaces in the result",
        they: "absent",
        we: "the MTU of the link",
        why: "the specification has the key, and later plugins and runtimes can use it",
    },
    Difference {
        id: "bridge-dns",
        rows: &["bridge/in-"],
        releases: PACKAGED,
        theirs: &[],
        ours: &["result dns *"],
        what: "`dns` in the result of bridge",
        they: "that of the configuration, even if the configuration has none",
        we: "that of the IPAM plugin, if the configuration has none",
        why: "as upstream's newer release",
    },
    Difference {
        id: "tag",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &[],
        ours: &["host link $END ifalias = its tag"],
        what: "alias of the host end",
        they: "none",
        we: "the attachment's tag",
        why: "DEL and GC find the link even if the namespace, the result and half of the configuration are gone",
    },
    Difference {
        id: "tag-inside",
        rows: &["macvlan/", "ipvlan/", "vlan/", "dummy/", "tap/"],
        releases: BOTH,
        theirs: &[],
        ours: &["container link eth0 ifalias = its tag"],
        what: "alias of a macvlan, ipvlan, vlan, dummy or tap",
        they: "none",
        we: "the attachment's tag",
        why: "DEL of another attachment does not remove it, whatever namespace it is given",
    },
    Difference {
        id: "ipvlan-chained",
        rows: &["ipvlan/chained"],
        releases: NEWEST,
        theirs: &["result interfaces[0] *", "result ips[0] interface = 0"],
        ours: &["result interfaces[*] *", "result ips[0] interface = 1"],
        what: "the interfaces before a chained ipvlan",
        they: "removed from the result",
        we: "kept, followed by the container's interface",
        why: "the specification requires it, and later plugins can use them",
    },
    Difference {
        id: "macvlan-dns",
        rows: &[
            "macvlan/dns-of-the-ipam-plugin",
            "vlan/dns-of-the-ipam-plugin",
            "tap/dns-of-the-ipam-plugin",
            "host-device/dns-of-the-ipam-plugin",
        ],
        releases: BOTH,
        theirs: &[],
        ours: &["result dns *"],
        what: "DNS of the IPAM plugin in the result of macvlan, vlan, tap and host-device",
        they: "dropped",
        we: "kept, if the configuration has none",
        why: "as bridge in upstream's newer release",
    },
    Difference {
        id: "own-mac",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &["host mac $END is of kind 1"],
        ours: &["host mac $END is of kind 3"],
        what: "MAC of the host end",
        they: "random",
        we: "computed from the tag, set when the link is created",
        why: "udev and network managers do not replace a MAC that was set",
    },
    Difference {
        id: "bridge-mac",
        rows: &[
            "bridge/layer-2",
            "bridge/named",
            "bridge/no-ipam-type",
            "bridge/mtu",
            "bridge/hairpin",
            "bridge/promiscuous",
            "bridge/isolated",
            "bridge/left-down",
            "bridge/dns",
            "bridge/mac",
            "bridge/keys",
            "bridge/addresses",
            "bridge/vlan",
        ],
        releases: BOTH,
        theirs: &["host mac * is of kind 1", "host link * has the MAC of a port"],
        ours: &["host mac * is of kind 3"],
        what: "MAC of a bridge that is created",
        they: "the lowest MAC of its ports, until the bridge becomes a gateway",
        we: "its own from the start",
        why: "it does not change when ports are added and removed, and does not become zero with the last port",
    },
    Difference {
        id: "link-local-learning",
        rows: &["bridge/"],
        releases: BOTH,
        theirs: &["host link * linkinfo info_data no_linklocal_learn = 0"],
        ours: &["host link * linkinfo info_data no_linklocal_learn = 1"],
        what: "`no_linklocal_learn` of a bridge that is created, or of an existing bridge with `macspoofchk`",
        they: "off",
        we: "on",
        why: "from frames to 01:80:c2:00:00:0x the bridge learns a neighbour's MAC before any rule sees them, so `macspoofchk` alone does not prevent a container from receiving the neighbour's traffic",
    },
    Difference {
        id: "link-local-learning-check",
        rows: &["bridge/macspoofchk"],
        releases: BOTH,
        theirs: &[],
        ours: &["our CHECK of theirs: refused: 102 no_linklocal_learn of cni0: wanted 1, found 0*"],
        what: "CHECK with `macspoofchk` on a bridge that upstream created",
        they: "passes",
        we: "fails, until `cnitool restore` or the next ADD on that bridge sets `no_linklocal_learn`",
        why: "as above: the containers of that bridge are not protected",
    },
    Difference {
        id: "forced-mac",
        rows: &["bridge/forced"],
        releases: BOTH,
        theirs: &[],
        ours: &["host link cni0 has the MAC of a port"],
        what: "MAC of an existing bridge without a MAC of its own, when it becomes a gateway",
        they: "the MAC that it had before the container was added",
        we: "the MAC that it has with the container: that of its first port",
        why: "either one is kept from then on; netlink does not report whether a bridge's MAC is its own, and setting it before each container would flush the neighbour entries of the others",
    },
    Difference {
        id: "queue",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &[],
        ours: &["host link $END txqlen = 1000"],
        what: "length of the transmit queue of the host end",
        they: "0",
        we: "the kernel's default, 1000",
        why: "a queueing discipline that is added later has a queue",
    },
    Difference {
        id: "queue-inside",
        rows: &["bridge/", "ptp/", "macvlan/", "vlan/"],
        releases: PACKAGED,
        theirs: &[],
        ours: &["container link eth0 txqlen = 1000"],
        what: "length of the transmit queue of the container's end",
        they: "0",
        we: "the kernel's default, 1000",
        why: "as upstream's newer release",
    },
    Difference {
        id: QUEUES,
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &[
            "host link * num_tx_queues = *",
            "host link * num_rx_queues = *",
            "container link eth0 num_tx_queues = *",
            "container link eth0 num_rx_queues = *",
        ],
        ours: &[
            "host link * num_tx_queues = 1",
            "host link * num_rx_queues = 1",
            "container link eth0 num_tx_queues = 1",
            "container link eth0 num_rx_queues = 1",
        ],
        what: "number of queues of a veth pair",
        they: "the kernel's default: one per possible processor",
        we: "1; the key `queues` sets another number",
        why: "each queue is several objects in sysfs, for which ADD and DEL wait; with one processor there is no difference",
    },
    Difference {
        id: "advertisements-inside",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &[
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_ra:1",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/autoconf:1",
        ],
        ours: &[
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_ra:0",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/autoconf:0",
        ],
        what: "router advertisements in a container that has an IPAM plugin",
        they: "accepted",
        we: "ignored",
        why: "any neighbour could redirect the container's traffic (CVE-2020-10749)",
    },
    Difference {
        id: "advertisements-on-host",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &["host sysctl /proc/sys/net/ipv6/conf/*/autoconf:1"],
        ours: &["host sysctl /proc/sys/net/ipv6/conf/*/autoconf:0"],
        what: "`autoconf` of the host end and of a bridge that is created",
        they: "not changed",
        we: "off; `accept_ra` is off with both",
        why: "a container must not give the host an address",
    },
    Difference {
        id: "forwarding-port",
        rows: &["bridge/node-that-forwards"],
        releases: BOTH,
        theirs: &["host sysctl /proc/sys/net/ipv6/conf/*/forwarding:1"],
        ours: &["host sysctl /proc/sys/net/ipv6/conf/*/forwarding:0"],
        what: "IPv6 `forwarding` of a bridge's port, if the host forwards already",
        they: "on",
        we: "off",
        why: "a port does not route; with forwarding, the kernel keeps an anycast address there, and DEL takes twice as long",
    },
    Difference {
        id: "detection-on-host",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &["host sysctl /proc/sys/net/ipv6/conf/*/accept_dad:1"],
        ours: &["host sysctl /proc/sys/net/ipv6/conf/*/accept_dad:0"],
        what: "duplicate address detection on the host end and on a bridge that is created",
        they: "on",
        we: "off; with `enabledad` it is on for the bridge",
        why: "no other host is on the segment; detection delays the first packets by one to two seconds",
    },
    Difference {
        id: "detection-of-gateways",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &["host address * inet6 fd00:77::1/* scope global"],
        ours: &["host address * inet6 fd00:77::1/* scope global nodad"],
        what: "an IPv6 gateway address",
        they: "tentative for one to two seconds after ADD",
        we: "usable at once",
        why: "as above",
    },
    Difference {
        id: "detection-inside",
        rows: &["bridge/", "ptp/"],
        releases: BOTH,
        theirs: &["container address eth0 inet6 fd00:77::2/64 scope global"],
        ours: &["container address eth0 inet6 fd00:77::2/64 scope global nodad*"],
        what: "the container's IPv6 address without `enabledad`",
        they: "detection is off by the setting of the interface; with ptp it is on, and ADD waits for it",
        we: "detection is off for this address",
        why: "the address is usable at once, whatever the setting of the interface is later",
    },
    Difference {
        id: "detection-ptp",
        rows: &["ptp/"],
        releases: BOTH,
        theirs: &["container sysctl /proc/sys/net/ipv6/conf/eth0/accept_dad:1"],
        ours: &["container sysctl /proc/sys/net/ipv6/conf/eth0/accept_dad:0"],
        what: "duplicate address detection in a container of ptp",
        they: "on",
        we: "off",
        why: "only the host is on the segment",
    },
    Difference {
        id: "neighbours-told",
        rows: &["bridge/"],
        releases: BOTH,
        theirs: &["container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:0"],
        ours: &["container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:1"],
        what: "announcement of an IPv6 address on a bridge",
        they: "none",
        we: "as for IPv4 (`ndisc_notify` in addition to `arp_notify`)",
        why: "neighbours that remember the address's last holder learn the new MAC at once",
    },
    Difference {
        id: "macvlan-neighbours-told",
        rows: &["macvlan/"],
        releases: PACKAGED,
        theirs: &["container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:0"],
        ours: &["container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:1"],
        what: "announcement of an IPv6 address on a macvlan",
        they: "none",
        we: "announced",
        why: "as upstream's newer release",
    },
    Difference {
        id: "vlan-announced",
        rows: &["vlan/", "host-device/"],
        releases: BOTH,
        theirs: &[
            "container sysctl /proc/sys/net/ipv4/conf/eth0/arp_notify:0",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:0",
        ],
        ours: &[
            "container sysctl /proc/sys/net/ipv4/conf/eth0/arp_notify:1",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:1",
        ],
        what: "addresses of a vlan or a host-device when it comes up",
        they: "not announced to neighbours",
        we: "announced",
        why: "neighbours that remember the address's last holder learn the new MAC at once, as with macvlan",
    },
    Difference {
        id: "vlan-number",
        rows: &["vlan/without-a-number"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 7 \"vlanId\" field is required*"],
        what: "a vlan without `vlanId`",
        they: "has a tag with a priority and no VLAN, as with `\"vlanId\": 0`",
        we: "refused; an explicit 0 is accepted",
        why: "a forgotten or misspelt key would connect the container to the untagged network of most switches",
    },
    Difference {
        id: "host-device-detection",
        rows: &["host-device/"],
        releases: BOTH,
        theirs: &["container sysctl /proc/sys/net/ipv6/conf/eth0/accept_dad:-1"],
        ours: &["container sysctl /proc/sys/net/ipv6/conf/eth0/accept_dad:1"],
        what: "`accept_dad` of a device that takes no ARP",
        they: "-1, as the kernel made it",
        we: "1, as for every device, unless `enabledad` is false",
        why: "the kernel detects no duplicates on such a device with either value",
    },
    Difference {
        id: "dummy-settings",
        rows: &["dummy/"],
        releases: NEWEST,
        theirs: &[
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_ra:1",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/autoconf:1",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_dad:-1",
            "container address eth0 inet6 fd00:77::2/64 scope global",
        ],
        ours: &[
            "container address eth0 inet6 fd00:77::2/64 scope global nodad",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_ra:0",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/autoconf:0",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_dad:0",
        ],
        what: "IPv6 settings of a dummy",
        they: "the kernel's defaults: router advertisements are accepted, and duplicate address detection is off with `accept_dad` -1",
        we: "router advertisements are ignored, and detection is off with `accept_dad` 0 and for each address",
        why: "no packet reaches a dummy, and no link of cnikit accepts router advertisements unless that is configured",
    },
    Difference {
        id: "tap-advertisements",
        rows: &["tap/"],
        releases: NEWEST,
        theirs: &[
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_ra:1",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/autoconf:1",
        ],
        ours: &[
            "container sysctl /proc/sys/net/ipv6/conf/eth0/accept_ra:0",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/autoconf:0",
        ],
        what: "router advertisements on a tap in the container",
        they: "accepted",
        we: "ignored",
        why: "a guest must not change the routes of the container that it runs in",
    },
    Difference {
        id: "tap-neighbours-told",
        rows: &["tap/addresses", "tap/dns"],
        releases: NEWEST,
        theirs: &["container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:0"],
        ours: &["container sysctl /proc/sys/net/ipv6/conf/eth0/ndisc_notify:1"],
        what: "announcement of an IPv6 address on a tap",
        they: "none",
        we: "as for IPv4",
        why: "as for `neighbours-told`",
    },
    Difference {
        id: "tap-packet-info",
        rows: &["tap/owner-and-group"],
        releases: NEWEST,
        theirs: &["container link eth0 linkinfo info_data pi = true"],
        ours: &["container link eth0 linkinfo info_data pi = false"],
        what: "packet information in front of a tap's frames, with `owner` and `group` and without `multiQueue`",
        they: "on",
        we: "off, as with all other keys",
        why: "a program that reads plain frames would read the four bytes as the beginning of a MAC",
    },
    Difference {
        id: "tap-mtu",
        rows: &["tap/owner-and-group-with-mac"],
        releases: NEWEST,
        theirs: &["container link eth0 mtu = 1500", "container sysctl /proc/sys/net/ipv6/conf/eth0/mtu:1500"],
        ours: &[
            "container link eth0 mtu = 1400",
            "container sysctl /proc/sys/net/ipv6/conf/eth0/mtu:1400",
            "our CHECK of theirs: refused: 102 MTU of eth0: wanted 1400, found 1500*",
        ],
        what: "`mtu` and `mac` of a tap, with `owner` and `group`",
        they: "ignored",
        we: "applied, and CHECK compares the MTU",
        why: "a key that is accepted has its effect, whatever the other keys are",
    },
    Difference {
        id: "tap-name-taken",
        rows: &["tap/name-taken"],
        releases: NEWEST,
        theirs: &[],
        ours: &["ADD by Ours: refused: 101 interface \"eth0\" already exists in*"],
        what: "a tap with the name of another interface of the container",
        they: "the other interface is used: it gets the addresses, and DEL deletes it",
        we: "refused; the other interface is not changed",
        why: "the specification requires that ADD fails, and the interface belongs to another program",
    },
    Difference {
        id: "kept-addresses",
        rows: &["bridge/", "ptp/", "macvlan/both-families", "vlan/both-families", "host-device/both-families"],
        releases: PACKAGED,
        theirs: &["container sysctl /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down:0"],
        ours: &["container sysctl /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down:1"],
        what: "IPv6 addresses of an interface that goes down and up",
        they: "lost",
        we: "kept",
        why: "as upstream's newer release",
    },
    Difference {
        id: "ptp-prefix-routes",
        rows: &["ptp/"],
        releases: BOTH,
        theirs: &["container address eth0 inet 10.*/24 brd 10.*.255 scope global eth0"],
        ours: &["container address eth0 inet 10.*/24 brd 10.*.255 scope global noprefixroute eth0"],
        what: "addresses of ptp",
        they: "create a route that is removed again",
        we: "create none (`noprefixroute`)",
        why: "there is no moment with a wrong route",
    },
    Difference {
        id: "ptp-other-routers",
        rows: &["ptp/in-"],
        releases: BOTH,
        theirs: &["container ip4 10.9.0.0/16 via 10.77.0.9 dev eth0"],
        ours: &["container ip4 10.9.0.0/16 via 10.77.0.9 dev eth0 onlink"],
        what: "a route of ptp by a router that is not the gateway",
        they: "added while the network's own route still exists",
        we: "has the flag `onlink`",
        why: "the same route, in any order",
    },
    Difference {
        id: "route-metrics",
        rows: &["bridge/route-metrics"],
        releases: NEWEST,
        theirs: &["container ip4 10.9.0.0/16 via 10.77.0.1 dev eth0"],
        ours: &[
            "container ip4 10.9.0.0/16 via 10.77.0.1 dev eth0 mtu 1400 advmss 1360",
            "our CHECK of theirs: refused: 102 route of eth0: wanted 10.9.0.0/16 via 10.77.0.1 mtu 1400 advmss 1360, found*",
        ],
        what: "`mtu` and `advmss` of a route",
        they: "in the result, but not set",
        we: "set, and CHECK compares them",
        why: "the specification has them",
    },
    Difference {
        id: "masquerade-chain",
        rows: &["bridge/masquerade", "ptp/masquerade"],
        releases: BOTH,
        theirs: &[
            "host iptables -A CNI-* -d 10.77.0.0/24 -m comment * -j ACCEPT",
            "host iptables -A CNI-* ! -d 224.0.0.0/4 -m comment * -j MASQUERADE",
            "host ip6tables -A CNI-* -d fd00:77::/64 -m comment * -j ACCEPT",
            "host ip6tables -A CNI-* ! -d ff00::/8 -m comment * -j MASQUERADE",
            "host nft * daddr *",
        ],
        ours: &[
            "host iptables -A CNI-* -s 10.77.0.2/32 -d 10.77.0.0/24 -m comment * -j ACCEPT",
            "host iptables -A CNI-* -s 10.77.0.2/32 ! -d 224.0.0.0/4 -m comment * -j MASQUERADE",
            "host ip6tables -A CNI-* -s fd00:77::2/128 -d fd00:77::/64 -m comment * -j ACCEPT",
            "host ip6tables -A CNI-* -s fd00:77::2/128 ! -d ff00::/8 -m comment * -j MASQUERADE",
            "host nft * saddr * daddr *",
        ],
        what: "rules in the chain that masquerades with iptables",
        they: "match every packet that enters the chain",
        we: "match one address, and name its interface",
        why: "all interfaces of a container share the chain, and DEL of one interface must not remove the rules of the others",
    },
    Difference {
        id: "vlan-default",
        rows: &["bridge/vlan"],
        releases: PACKAGED,
        theirs: &[
            "host vlan $END 1 Egress Untagged",
            "host vlan $PEER 1 Egress Untagged",
            "host vlan 100 PVID Egress Untagged",
        ],
        ours: &[
            "host vlan $END 100 PVID Egress Untagged",
            "host vlan $PEER 100 PVID Egress Untagged",
            "our CHECK of theirs: refused: 102 VLANs of $END: wanted [100 PVID untagged], found [1 untagged, 100 PVID untagged]*",
        ],
        what: "default VLAN of the bridge on the port of a container in another VLAN",
        they: "kept",
        we: "removed, without `preserveDefaultVlan`",
        why: "as upstream's newer release",
    },
    Difference {
        id: "vlan-gateway",
        rows: &["bridge/vlan-gateway"],
        releases: BOTH,
        theirs: &["host sysctl /proc/sys/net/ipv6/conf/cni0.100/accept_ra:1"],
        ours: &["host sysctl /proc/sys/net/ipv6/conf/cni0.100/accept_ra:0"],
        what: "router advertisements on the gateway of a VLAN",
        they: "accepted",
        we: "ignored",
        why: "a container must not redirect the host's traffic",
    },
    Difference {
        id: "vlan-queue",
        rows: &["bridge/vlan-gateway"],
        releases: BOTH,
        theirs: &[],
        ours: &["host link $PEER txqlen = 1000"],
        what: "length of the transmit queue of the bridge's end of a VLAN's gateway",
        they: "0",
        we: "the kernel's default, 1000",
        why: "as for the host end",
    },
    Difference {
        id: "vlan-gateway-queue",
        rows: &["bridge/vlan-gateway"],
        releases: PACKAGED,
        theirs: &[],
        ours: &["host link cni0.100 txqlen = 1000"],
        what: "length of the transmit queue of the gateway of a VLAN",
        they: "0",
        we: "the kernel's default, 1000",
        why: "as upstream's newer release",
    },
    Difference {
        id: "vlan-on-a-flat-bridge",
        rows: &["bridge/vlan-on-a-flat-bridge"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 101 * does not filter by VLAN*"],
        what: "a VLAN on a bridge that does not filter by VLAN",
        they: "accepted, without effect",
        we: "refused, with the command that switches filtering on",
        why: "the operator expects the container to be isolated",
    },
    Difference {
        id: "requested-elsewhere",
        rows: &["bridge/requested-elsewhere", "ptp/requested-elsewhere"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "ADD by Ours: refused: * 10.99.0.9/16 with gateway 10.99.0.1 was requested, but the network's configuration names no subnet*",
        ],
        what: "an address that `runtimeConfig`, `args` or `CNI_ARGS` request in a subnet that the configuration does not name, if the host is the gateway",
        they: "given, and the host gets a gateway address or a route for it",
        we: "refused; the operator allows such subnets with `ipam.allowedSubnets`",
        why: "a tenant who can write there (Multus) could take the traffic of any network away from the host",
    },
    Difference {
        id: "requested-mac",
        rows: &["bridge/requested-mac-of-the-bridge"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 101 *the requested MAC 0a:00:00:00:00:0b is held by bridge cni0*"],
        what: "a requested MAC, with bridge or with tuning after it, that the bridge, one of its ports or another container on it has",
        they: "given",
        we: "refused, and the error names the holder",
        why: "frames for the holder would go to the container, and `macspoofchk` would allow its frames",
    },
    Difference {
        id: "gateway-as-address",
        rows: &["bridge/gateway-as-address"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 101 *the container cannot have 10.77.0.1: the host has it on cni0*"],
        what: "a container's address that the bridge has too",
        they: "given to both",
        we: "refused",
        why: "the container would answer for the gateway and receive the traffic of the others",
    },
    Difference {
        id: "file-modes",
        rows: &["host-local/", "bridge/", "ptp/", "macvlan/", "vlan/", "host-device/"],
        releases: PACKAGED,
        theirs: &["host file f 644 leases/testnet/*"],
        ours: &["host file f 600 leases/testnet/*"],
        what: "mode of host-local's reservations",
        they: "0644",
        we: "0600",
        why: "as upstream's newer release",
    },
    Difference {
        id: "lock-mode",
        rows: &["host-local/", "bridge/", "ptp/", "macvlan/", "ipvlan/", "vlan/", "dummy/", "tap/", "host-device/"],
        releases: BOTH,
        theirs: &["host file f 750 leases/testnet/lock"],
        ours: &["host file f 600 leases/testnet/lock"],
        what: "mode of host-local's lock file",
        they: "0750",
        we: "0600, also of an existing lock file",
        why: "a process of the file's group that is not root could hold the lock for ever",
    },
    Difference {
        id: "index",
        rows: &["host-local/", "bridge/", "ptp/", "macvlan/", "ipvlan/", "vlan/", "dummy/", "tap/", "host-device/"],
        releases: BOTH,
        theirs: &[],
        ours: &["host file * leases/.idx*"],
        what: "files in host-local's directory",
        they: "reservations",
        we: "an index `.idx` in addition; it can be deleted at any time",
        why: "ADD and DEL are as fast with 65,000 addresses as with one",
    },
    Difference {
        id: "static-gateway",
        rows: &["static/gateway-of-a-configured-address"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "result ips[0] gateway = 10.77.0.1",
            "our CHECK of theirs: refused: 102 static: Failed to match addr 10.77.0.5 on interface eth0: wanted 10.77.0.5/24 with gateway 10.77.0.1, found 10.77.0.5/24*",
        ],
        what: "`GATEWAY` in `CNI_ARGS`, for an address of static's configuration",
        they: "ignored: it applies to the addresses of `IP` only",
        we: "the gateway of each address of its network that has none",
        why: "upstream's documentation says so",
    },
    Difference {
        id: "unreadable",
        rows: &["host-local/unreadable"],
        releases: BOTH,
        theirs: &["own DEL: success"],
        ours: &["own DEL: refused: * c-mixed/eth0 may hold one more address: read */10.77.0.99*"],
        what: "DEL if a reservation cannot be read",
        they: "ignores it and succeeds",
        we: "releases the addresses of the attachment, then fails and names the file",
        why: "the file may belong to the attachment, and after a DEL that succeeds no program releases it",
    },
    Difference {
        id: "tuning-result",
        rows: &["tuning/link", "tuning/as-it-is"],
        releases: BOTH,
        theirs: &[],
        ours: &["result interfaces[1] mtu = 1*"],
        what: "`mtu` of the result after tuning has changed it",
        they: "not updated",
        we: "updated",
        why: "as for `result-mtu`; both update `mac`",
    },
    Difference {
        id: "tuning-other-interface",
        rows: &["tuning/link", "tuning/mac-in-"],
        releases: BOTH,
        theirs: &["result interfaces[0] mac = 0a:00:00:00:00:07"],
        ours: &["result interfaces[0] mac = 0a:00:00:00:00:02"],
        what: "`mac` in the result of an interface of the host that has the same name as the container's",
        they: "the container's new MAC",
        we: "its own MAC",
        why: "it is another interface",
    },
    Difference {
        id: "ifb-tag",
        rows: &["bandwidth/"],
        releases: BOTH,
        theirs: &[],
        ours: &["host link bwp* ifalias = its tag"],
        what: "alias of an ifb",
        they: "none",
        we: "the attachment's tag",
        why: "GC finds it, and DEL of another interface of the container does not remove it",
    },
    Difference {
        id: "ifb-advertisements",
        rows: &["bandwidth/"],
        releases: BOTH,
        theirs: &[
            "host sysctl /proc/sys/net/ipv6/conf/bwp*/accept_ra:1",
            "host sysctl /proc/sys/net/ipv6/conf/bwp*/autoconf:1",
        ],
        ours: &[
            "host sysctl /proc/sys/net/ipv6/conf/bwp*/accept_ra:0",
            "host sysctl /proc/sys/net/ipv6/conf/bwp*/autoconf:0",
        ],
        what: "router advertisements on an ifb",
        they: "accepted, if the host accepts them",
        we: "ignored",
        why: "as on every link of cnikit; no packet for the host arrives there",
    },
    Difference {
        id: "small-burst",
        rows: &["bandwidth/small-burst"],
        releases: BOTH,
        theirs: &["host qdisc qdisc tbf 1: dev $END *burst 1000b*"],
        ours: &["host qdisc qdisc tbf 1: dev $END *burst 1513b*"],
        what: "a burst that is smaller than a frame",
        they: "no full frame passes",
        we: "the bucket has the size of one frame; the CHECK of either implementation does not accept the other's",
        why: "a link that passes only small frames appears to work but is useless",
    },
    Difference {
        id: "tuning-directory",
        rows: &["tuning/link", "tuning/mac-in-", "tuning/queue"],
        releases: BOTH,
        theirs: &["host file d 600 tuning"],
        ours: &["host file d 700 tuning"],
        what: "mode of tuning's `dataDir`",
        they: "0600",
        we: "0700",
        why: "a directory without its x bit can be used only with root's capabilities",
    },
    Difference {
        id: "tuning-record",
        rows: &["tuning/as-it-is"],
        releases: BOTH,
        theirs: &["host file d 600 tuning", "host file f 600 tuning/c-mixed_eth0.json"],
        ours: &[],
        what: "tuning if all settings already have the configured values",
        they: "stores a file",
        we: "stores none",
        why: "there is nothing to restore",
    },
    Difference {
        id: "sbr-protocol",
        rows: &["sbr/"],
        releases: BOTH,
        theirs: &["container ip4 32765:*from 10.77.0.2 lookup *"],
        ours: &["container ip4 32765:*from 10.77.0.2 lookup * proto 203"],
        what: "protocol number of sbr's rules",
        they: "none",
        we: "203",
        why: "DEL removes our rules, and no rule that another program made for the same address",
    },
    Difference {
        id: "sbr-protocol-ipv6",
        rows: &["sbr/automatic", "sbr/table"],
        releases: BOTH,
        theirs: &["container ip6 32765:*from fd00:77::2 lookup *"],
        ours: &["container ip6 32765:*from fd00:77::2 lookup * proto 203"],
        what: "the same for IPv6",
        they: "none",
        we: "203",
        why: "as above",
    },
    Difference {
        id: "sbr-family",
        rows: &["sbr/automatic", "sbr/ipv4-only"],
        releases: BOTH,
        theirs: &["container ip6 fd00:77::/64 dev eth0 table 100 proto kernel metric 256 pref medium"],
        ours: &[],
        what: "IPv6 routes without source and gateway, in the table of an IPv4 address",
        they: "are copied to it",
        we: "are only in the tables of IPv6 addresses",
        why: "no IPv6 packet is routed by that table",
    },
    Difference {
        id: "sbr-other-family",
        rows: &["sbr/ipv4-only"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "container ip6 default via fd00:77::1 dev eth0 metric 1024 pref medium",
            "container ip6 fd00:77::/64 dev eth0 proto kernel metric 256 pref medium",
        ],
        what: "routes of a family in which the interface has no address in the result",
        they: "are removed from the main table",
        we: "stay in the main table",
        why: "they are in no other table, and packets of that family would have no route",
    },
    Difference {
        id: "vrf-alias",
        rows: &["vrf/"],
        releases: BOTH,
        theirs: &[],
        ours: &["container link red ifalias = cnikit VRF"],
        what: "alias of a VRF",
        they: "none",
        we: "`cnikit VRF`",
        why: "DEL does not remove a VRF of another program with its last member",
    },
    Difference {
        id: "vrf-routes",
        rows: &["vrf/"],
        releases: PACKAGED,
        theirs: &[],
        ours: &[
            "container ip4 10.9.0.0/16 via 10.77.0.1 dev eth0 table *",
            "container ip4 default via 10.77.0.1 dev eth0 table *",
            "container ip6 default via fd00:77::1 dev eth0 table *",
        ],
        what: "routes with a gateway, of an interface that joins a VRF",
        they: "are lost",
        we: "are moved to the table of the VRF",
        why: "as upstream's newer release; without them the container reaches only its own subnet",
    },
    Difference {
        id: "vrf-queue",
        rows: &["vrf/"],
        releases: PACKAGED,
        theirs: &[],
        ours: &["container link red txqlen = 1000"],
        what: "queue length of a VRF",
        they: "0",
        we: "the kernel's default, 1000",
        why: "as upstream's newer release",
    },
    Difference {
        id: "firewall-owners",
        rows: &["firewall/open", "firewall/admin-chain", "firewall/same-bridge", "firewall/isolated"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "host iptables :CNI-FORWARD-OWNERS -",
            "host iptables -A CNI-FORWARD-OWNERS * -m comment --comment \"cnikit:*",
            "host ip6tables :CNI-FORWARD-OWNERS -",
            "host ip6tables -A CNI-FORWARD-OWNERS * -m comment --comment \"cnikit:*",
            "host nft *chain CNI-FORWARD-OWNERS {",
            "host nft *saddr * counter packets 0 bytes 0",
        ],
        what: "owners of firewall's rules",
        they: "identified by the address only",
        we: "recorded by rules without effect, in a chain that no packet passes; upstream's DEL leaves them until our next ADD, DEL or GC",
        why: "an address that another container has by now keeps its rules, and the rules of a bridge are removed with its last container",
    },
    Difference {
        id: "firewall-bridge-owners",
        rows: &["firewall/same-bridge", "firewall/isolated"],
        releases: NEWEST,
        theirs: &[],
        ours: &["host nft *iifname \"cni0\" *counter packets 0 bytes 0"],
        what: "owners of the rules of a bridge",
        they: "not recorded: the rules stay for ever",
        we: "as `firewall-owners`; nothing is recorded or removed for a bridge that upstream isolated",
        why: "the bridge may be used for another purpose later",
    },
    Difference {
        id: "firewall-unknown-backend",
        rows: &["firewall/unknown-backend"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 7 backend: unknown backend: *"],
        what: "an unknown `backend` of firewall",
        they: "ignored",
        we: "refused, with the list of known backends",
        why: "with a misspelt key another backend than the intended one would be used",
    },
    Difference {
        id: "portmap-owners",
        rows: &["portmap/iptables", "portmap/no-backend"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "host iptables -A CNI-DN-* -m comment --comment \"cnikit:*",
            "host ip6tables -A CNI-DN-* -m comment --comment \"cnikit:*",
            "host nft \t\t counter packets 0 bytes 0",
        ],
        what: "owner of portmap's rules in iptables",
        they: "a container on a network",
        we: "an interface: its rules are between two rules without effect that name it",
        why: "DEL of one interface leaves the ports of the others",
    },
    Difference {
        id: "portmap-one-family",
        rows: &["portmap/iptables/host-ip"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "host iptables -A CNI-DN-* -p tcp -m tcp --dport 8081",
            "host ip6tables -A CNI-DN-* -p tcp -m tcp --dport 8081",
            "host nft \t\ttcp dport 8081 counter packets 0 bytes 0",
        ],
        what: "a port at an address of the other family, with iptables",
        they: "its entry leads to a chain that has no rule for it",
        we: "the chain has one rule without effect",
        why: "an entry is removed with the rules of its ports",
    },
    Difference {
        id: "portmap-mark",
        rows: &["portmap/iptables/mark"],
        releases: BOTH,
        theirs: &[
            "host iptables -A CNI-DN-* -j CNI-HOSTPORT-SETMARK",
            "host iptables -A CNI-HOSTPORT-SETMARK *",
            "host iptables :CNI-HOSTPORT-SETMARK -",
            "host ip6tables -A CNI-DN-* -j CNI-HOSTPORT-SETMARK",
            "host ip6tables -A CNI-HOSTPORT-SETMARK *",
            "host ip6tables :CNI-HOSTPORT-SETMARK -",
            "host nft *meta mark set mark or 0x20",
            "host nft *jump CNI-HOSTPORT-SETMARK",
            "host nft *chain CNI-HOSTPORT-SETMARK {",
            "their CHECK of theirs: *",
        ],
        ours: &[
            "host iptables -A CNI-DN-* -j MARK --set-xmark 0x20/0x20",
            "host ip6tables -A CNI-DN-* -j MARK --set-xmark 0x20/0x20",
            "host nft *dport * meta mark set mark or 0x20",
            "our CHECK of theirs: refused: 102 *",
            "their CHECK of ours: refused: 999 *",
        ],
        what: "a `markMasqBit` that is not 13",
        they: "set in a chain that all containers share, for all of them",
        we: "set by the container's own rules; neither CHECK accepts the other's rules",
        why: "a key of one network must not change others",
    },
    Difference {
        id: "portmap-of-loopback",
        rows: &["portmap/iptables/of-loopback", "portmap/nftables/of-loopback"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 7 failed to parse config: hostIP 127.0.0.1 of host port 8081: without snat *"],
        what: "a port of 127.0.0.1 with `\"snat\": false`",
        they: "published, and no connection is answered",
        we: "refused",
        why: "the kernel lets no packet from 127.0.0.1 leave the host",
    },
    Difference {
        id: "portmap-of-ipv6-loopback",
        rows: &["portmap/iptables/of-ipv6-loopback", "portmap/nftables/of-ipv6-loopback"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 7 failed to parse config: hostIP ::1 of host port 8081: *"],
        what: "a port of `::1`",
        they: "published, and no connection is answered",
        we: "refused",
        why: "the kernel lets no packet from `::1` leave the host",
    },
    Difference {
        id: "portmap-list",
        rows: &["portmap/iptables/list"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "ADD by Ours: refused: 7 conditionsV4: \"10.0.0.1,10.0.0.2\" is neither an address nor a network of IPv4 *",
        ],
        what: "several addresses in one condition, with iptables",
        they: "become several rules each",
        we: "refused, with the name of the match that takes several",
        why: "the rule that was written is the rule that is found again",
    },
    Difference {
        id: "portmap-options",
        rows: &["portmap/iptables/options"],
        releases: BOTH,
        theirs: &[],
        ours: &["ADD by Ours: refused: 7 conditionsV4: \"--modprobe=/bin/true\" is not a match: *"],
        what: "options of iptables that are not matches, among conditions",
        they: "passed to iptables, which runs the program that `--modprobe` names",
        we: "refused, also if abbreviated or written in one word with others",
        why: "a condition matches packets and does nothing else",
    },
    Difference {
        id: "portmap-set",
        rows: &["portmap/nftables/list"],
        releases: NEWEST,
        theirs: &[],
        ours: &["ADD by Ours: refused: 7 conditionsV4: \"{\" *"],
        what: "several addresses in one condition, with nftables",
        they: "become a set without a name",
        we: "refused, with the list of known expressions",
        why: "cnikit does not run `nft`: each known match can be compared with the rule in the kernel",
    },
    Difference {
        id: "portmap-ports-in-use",
        rows: &["portmap/nftables"],
        releases: NEWEST,
        theirs: &["host nft \t\tjump hostports"],
        ours: &[
            "host nft \t\tmeta l4proto . th dport @hostports_in_use jump hostports",
            "host nft \t\ttype inet_proto . inet_service",
            "host nft \t\ttype mark . mark",
            "host nft \t\telements = { *",
            "host nft \t\t\t *. * }",
            "host nft \tset hostports_in_use {",
            "host nft \tset hostports_owners {",
        ],
        what: "portmap's rules in nftables",
        they: "every packet to the host passes the rules of all containers",
        we: "only packets to ports in a set pass them; another set has the owners of the rules",
        why: "packets and ADDs do not take longer if more ports are published",
    },
    Difference {
        id: "portmap-neighbours",
        rows: &["portmap/nftables"],
        releases: NEWEST,
        theirs: &[],
        ours: &[
            "host nft \t\tct status dnat meta l4proto * ct original proto-dst * ip saddr * masquerade comment *",
            "host nft \t\tct status dnat meta l4proto * ct original proto-dst * ip6 saddr * masquerade comment *",
        ],
        what: "a neighbour's connection to a published port, with nftables",
        they: "keeps its source address, and the answer takes another path",
        we: "gets the host's address as its source, as with iptables",
        why: "the connection works",
    },
    Difference {
        id: "portmap-ipv6-loopback",
        rows: &["portmap/nftables"],
        releases: NEWEST,
        theirs: &[],
        ours: &["host nft \t\tip6 daddr != ::1 fib daddr type local jump hostports_all"],
        what: "a connection of the host to a published port of `::1`, with nftables",
        they: "is sent to the container, where it never arrives",
        we: "reaches the program that listens there",
        why: "the kernel lets no packet from `::1` leave the host",
    },
    Difference {
        id: "portmap-no-snat",
        rows: &["portmap/nftables/no-snat"],
        releases: NEWEST,
        theirs: &[],
        ours: &[
            "host nft \tchain masquerading {",
            "host nft \t\ttype nat hook postrouting priority srcnat; policy accept;",
        ],
        what: "nftables with `\"snat\": false`",
        they: "the chain `masquerading` is not created",
        we: "it is created, and empty",
        why: "every ADD creates the same table",
    },
    Difference {
        id: "portmap-masq-all",
        rows: &["portmap/nftables/everybody"],
        releases: NEWEST,
        theirs: &[],
        ours: &[
            "host nft \t\tct status dnat meta l4proto * ct original proto-dst * ip daddr * masquerade comment *",
            "host nft \t\tct status dnat meta l4proto * ct original proto-dst * ip6 daddr * masquerade comment *",
            "our CHECK of theirs: refused: 102 *",
        ],
        what: "`masqAll` with nftables",
        they: "ignored",
        we: "all connections to a published port are masqueraded; our CHECK does not accept upstream's rules",
        why: "it is the documented effect of the key",
    },
    Difference {
        id: "portmap-loopback",
        rows: &["portmap/iptables", "portmap/nftables", "portmap/no-backend"],
        releases: BOTH,
        theirs: &[],
        ours: &[
            "host nft table ip cnikit_loopback {",
            "host nft \tcomment \"packets to 127.0.0.0/8 from links of containers\"",
            "host nft \tchain prerouting {",
            "host nft \t\ttype filter hook prerouting priority raw; policy accept;",
            "host nft \t\tip daddr != 127.0.0.0/8 accept",
            "host nft \t\tiifname \"toward0\" jump link-toward0",
            "host nft \tchain link-toward0 {",
            "host nft \t\tdrop comment \"route_localnet was 0\"",
            "host nft \tchain cnikit-*",
            "host nft \t\tjump link-toward0",
        ],
        what: "packets to 127.0.0.0/8 that enter by the link of a container with published ports",
        they: "reach the host's loopback (the class of CVE-2020-8558): `route_localnet` is set, and stays",
        we: "are dropped, and the setting is restored with the last port that needs it",
        why: "services on 127.0.0.1 are for the host only",
    },
    Difference {
        id: "portmap-conditions",
        rows: &["portmap/nftables/conditions"],
        releases: NEWEST,
        theirs: &[
            "host nft \t\tip saddr 10.0.0.0/8 fib daddr type local jump hostports_all",
            "host nft \t\ttcp dport 8080 dnat to *",
            "host nft \t\tudp dport 5353 dnat to *",
        ],
        ours: &["host nft \t\tip saddr 10.0.0.0/8 * dnat to *", "our CHECK of theirs: refused: 102 *"],
        what: "conditions with nftables",
        they: "are in rules that all containers share: those of the last ADD apply to all",
        we: "apply to the container only; our CHECK does not accept upstream's rules",
        why: "a key of one network must not change others",
    },
];

impl Difference {
    fn is_about(&self, row: &Row, release: UpstreamRelease) -> bool {
        self.releases.contains(&release)
            && row.is_known_to(release)
            && self.rows.iter().any(|id| row.id.starts_with(id))
    }

    /// Whether it may occur in this row. The differences of a delegate occur in the rows of the plugins that delegate to it too.
    fn excuses(&self, row: &Row, release: UpstreamRelease) -> bool {
        let of_delegate = |id: &str| self.rows.iter().any(|beginning| id.starts_with(beginning));
        self.is_about(row, release)
            || self.releases.contains(&UpstreamRelease::Newest) && row.delegated().is_some_and(of_delegate)
    }
}

/// The differences of all rows.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Differences that no list can excuse.
    wrong: Vec<String>,
    /// Which pattern of which difference occurred.
    occurred: BTreeSet<(&'static str, &'static str)>,
    times: Vec<(Duration, String)>,
}

impl Report {
    pub(super) fn note(&mut self, row: &Row, release: UpstreamRelease, found: Result<Found, String>, took: Duration) {
        self.times.push((took, row.id.clone()));
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.wrong.push(format!("{}: {error}", row.id)),
        };
        self.wrong.extend(found.wrong.iter().map(|line| format!("{}: {line}", row.id)));
        let listed = || DIFFERENCES.iter().filter(|difference| difference.excuses(row, release));
        self.explain(row, "only theirs", &found.theirs, &listed().map(|one| (one.id, one.theirs)).collect::<Vec<_>>());
        self.explain(row, "only ours", &found.ours, &listed().map(|one| (one.id, one.ours)).collect::<Vec<_>>());
    }

    fn explain(
        &mut self,
        row: &Row,
        side: &str,
        lines: &BTreeSet<String>,
        listed: &[(&'static str, &'static [&'static str])],
    ) {
        for line in lines {
            let patterns = listed.iter().flat_map(|(id, patterns)| patterns.iter().map(move |pattern| (*id, *pattern)));
            let fitting: Vec<_> = patterns.filter(|(_, pattern)| fits(pattern, line)).collect();
            if fitting.is_empty() {
                self.wrong.push(format!("{}: {side}: {line}", row.id));
            }
            self.occurred.extend(fitting);
        }
    }

    /// Panics with every deviation from the list.
    pub(super) fn assert_as_listed(mut self, rows: &[&Row], release: UpstreamRelease) {
        let shows = |one: &&Difference| one.id != QUEUES || has_queues();
        for one in DIFFERENCES.iter().filter(|one| rows.iter().any(|row| one.is_about(row, release))).filter(shows) {
            let missing =
                one.theirs.iter().chain(one.ours).filter(|pattern| !self.occurred.contains(&(one.id, pattern)));
            self.wrong.extend(missing.map(|pattern| format!("the difference {} did not occur: {pattern}", one.id)));
        }
        self.times.sort();
        let slowest: Vec<String> =
            self.times.iter().rev().take(3).map(|(took, id)| format!("{id} {took:.1?}")).collect();
        assert!(
            self.wrong.is_empty(),
            "with {}, slowest {}:\n{}",
            release.version(),
            slowest.join(", "),
            self.wrong.join("\n")
        );
    }
}

/// Whether this machine's kernel makes more than one queue in a veth pair by default.
fn has_queues() -> bool {
    let output = Host::new().sh("ip link add probe type veth; ip -d link show probe");
    !output.contains("numtxqueues 1 ")
}

/// Whether a line matches a pattern, in which `*` matches any text.
pub fn fits(pattern: &str, line: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == line };
    let Some(rest) = line.strip_prefix(head) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| fits(tail, &rest[at..]))
}

/// The list as a table for the page.
pub fn table() -> String {
    let mut text = String::from("| id | subject | upstream | cnikit | reason |\n|---|---|---|---|---|\n");
    for one in DIFFERENCES {
        let releases = if one.releases == BOTH { String::new() } else { format!(" ({})", one.releases[0].version()) };
        let _ = writeln!(text, "| `{}` | {}{releases} | {} | {} | {} |", one.id, one.what, one.they, one.we, one.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_star_matches_any_text() {
        for (pattern, line) in
            [("a", "a"), ("a*", "a"), ("a*", "abc"), ("*c", "abc"), ("a*c", "abcbc"), ("a*b*c", "a-b-c"), ("*", "")]
        {
            assert!(fits(pattern, line), "{pattern} {line}");
        }
        for (pattern, line) in [("a", "ab"), ("a*c", "ab"), ("*b", "abc"), ("b*", "ab")] {
            assert!(!fits(pattern, line), "{pattern} {line}");
        }
    }
}
