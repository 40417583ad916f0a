//! Every object and setting that bridge and ptp make, and ways to tamper with each.

use cnikit_testkit::life::Tampering;

/// An object or setting that a plugin makes.
#[derive(Clone, Copy, Debug)]
pub struct Thing {
    /// The lines of [`crate::mixed::Names::state`] that show it; `*` matches any text.
    pub shows: &'static [&'static str],
    /// The tampering, and the text of CHECK's error.
    pub by: Tampering,
}

const fn on_host(shows: &'static [&'static str], line: &'static str, names: &'static str) -> Thing {
    Thing { shows, by: Tampering::on_host(line, names) }
}

const fn inside(shows: &'static [&'static str], line: &'static str, names: &'static str) -> Thing {
    Thing { shows, by: Tampering::inside(line, names) }
}

/// What both plugins make with both families, an MTU of 1400, and masquerade.
pub const COMMON: [Thing; 17] = [
    inside(&["container link eth0 flags *"], "ip link set eth0 down", "eth0: wanted up, found down"),
    inside(
        &["container link eth0 linkinfo info_kind = veth"],
        "ip link del eth0 && ip link add eth0 type bridge",
        "kind of eth0: wanted veth, found bridge",
    ),
    inside(&[], "ip link set eth0 address 0a:00:00:00:00:01", "MAC of eth0"),
    inside(&["container link eth0 mtu = 1400"], "ip link set eth0 mtu 1300", "MTU of eth0: wanted 1400, found 1300"),
    inside(
        &["container address eth0 inet 10.77.0.2/24 *", "container ip4 local 10.77.0.2 *", "container ip4 broadcast *"],
        "ip address del 10.77.0.2/24 dev eth0",
        "address of eth0: wanted 10.77.0.2/24",
    ),
    inside(
        &["container address eth0 inet6 fd00:77::2/64 *", "container ip6 local fd00:77::2 *"],
        "ip address del fd00:77::2/64 dev eth0",
        "address of eth0: wanted fd00:77::2/64",
    ),
    on_host(&["host link $END flags = *"], "ip link set $HOSTEND down", "wanted up, found down"),
    on_host(
        &["host link $END linkinfo info_kind = veth"],
        "ip link del $HOSTEND",
        "interface eth0: wanted a veth, found none",
    ),
    on_host(&["host link $END ifalias = its tag"], "ip link set $HOSTEND alias ''", "found the alias None"),
    on_host(&["host mac $END is of kind 3"], "ip link set $HOSTEND address 0a:00:00:00:00:01", "MAC of veth"),
    on_host(
        &["host link $END mtu = 1400", "host sysctl */$END/mtu:1400"],
        "ip link set $HOSTEND mtu 1300",
        "wanted 1400, found 1300",
    ),
    on_host(
        &["host sysctl /proc/sys/net/ipv6/conf/$END/accept_ra:0"],
        "sysctl -qw net.ipv6.conf.$HOSTEND.accept_ra=1",
        "accept_ra of veth",
    ),
    on_host(
        &["host sysctl /proc/sys/net/ipv6/conf/$END/autoconf:0"],
        "sysctl -qw net.ipv6.conf.$HOSTEND.autoconf=1",
        "autoconf of veth",
    ),
    on_host(
        &[
            "host sysctl /proc/sys/net/ipv4/*forwarding:1",
            "host sysctl /proc/sys/net/ipv4/ip_forward:1",
            "host sysctl /proc/sys/net/ipv4/conf/all/accept_redirects:0",
        ],
        "sysctl -qw net.ipv4.ip_forward=0",
        "net/ipv4/ip_forward: wanted 1, found 0",
    ),
    on_host(
        &["host sysctl /proc/sys/net/ipv6/*forwarding:1"],
        "sysctl -qw net.ipv6.conf.all.forwarding=0",
        "net/ipv6/conf/all/forwarding: wanted 1, found 0",
    ),
    on_host(&["host file *leases/testnet/10.77.0.2*"], "rm $DIR/leases/testnet/10.77.0.2", "10.77.0.2"),
    on_host(&["host file *leases/testnet/fd00:77::2*"], "rm $DIR/leases/testnet/fd00:77::2", "fd00:77::2"),
];

/// What bridge makes in addition, with `isDefaultGateway`.
pub const BRIDGE: [Thing; 14] = [
    inside(&["container ip4 10.77.0.0/24 *"], "ip route del 10.77.0.0/24", "route of eth0: wanted 10.77.0.0/24"),
    inside(&["container ip6 fd00:77::/64 *"], "ip -6 route del fd00:77::/64", "route of eth0: wanted fd00:77::/64"),
    inside(&["container ip4 default *"], "ip route del default", "route of eth0: wanted 0.0.0.0/0 via 10.77.0.1"),
    inside(&["container ip6 default *"], "ip -6 route del default", "route of eth0: wanted ::/0 via fd00:77::1"),
    on_host(
        &["host address cni0 inet 10.77.0.1/24 *", "host ip4 * dev cni0 *"],
        "ip address del 10.77.0.1/24 dev cni0",
        "gateway on cni0: wanted 10.77.0.1/24",
    ),
    on_host(
        &["host address cni0 inet6 fd00:77::1/64 *", "host ip6 * dev cni0 *"],
        "ip address del fd00:77::1/64 dev cni0",
        "gateway on cni0: wanted fd00:77::1/64",
    ),
    on_host(&["host mac cni0 is of kind 3"], "ip link set cni0 address 0a:00:00:00:00:02", "MAC of cni0"),
    on_host(&["host link cni0 flags *"], "ip link set cni0 down", "bridge cni0: wanted up, found down"),
    on_host(&[], "ip link del cni0", "bridge cni0: wanted on the host, found none"),
    on_host(
        &["host link cni0 linkinfo info_kind = bridge"],
        "ip link del cni0 && ip link add cni0 type veth",
        "kind of cni0: wanted bridge, found veth",
    ),
    on_host(
        &["host sysctl /proc/sys/net/ipv6/conf/cni0/accept_ra:0"],
        "sysctl -qw net.ipv6.conf.cni0.accept_ra=1",
        "accept_ra of cni0",
    ),
    on_host(
        &["host link $END master = cni0", "host link $END linkinfo info_slave_kind = bridge"],
        "ip link set $HOSTEND nomaster",
        "bridge of veth",
    ),
    on_host(
        &["host link $END linkinfo info_slave_data hairpin = false"],
        "ip link set $HOSTEND type bridge_slave hairpin on",
        "hairpin of veth",
    ),
    on_host(
        &["host link $END linkinfo info_slave_data isolated = false"],
        "ip link set $HOSTEND type bridge_slave isolated on",
        "isolation of veth",
    ),
];

/// What ptp makes in addition.
pub const PTP: [Thing; 9] = [
    on_host(
        &["host address $END inet 10.77.0.1/32 *", "host ip4 local 10.77.0.1 *"],
        "ip address del 10.77.0.1/32 dev $HOSTEND",
        "wanted 10.77.0.1/32",
    ),
    on_host(
        &["host address $END inet6 fd00:77::1/128 *", "host ip6 * fd00:77::1 *", "host ip6 fd00:77::1 *"],
        "ip address del fd00:77::1/128 dev $HOSTEND",
        "wanted fd00:77::1/128",
    ),
    on_host(
        &["host ip4 10.77.0.2 dev $END scope host"],
        "ip route del 10.77.0.2 dev $HOSTEND",
        "host route to 10.77.0.2/32",
    ),
    on_host(
        &["host ip6 fd00:77::2 dev $END *"],
        "ip -6 route del fd00:77::2 dev $HOSTEND",
        "host route to fd00:77::2/128",
    ),
    inside(
        &["container ip4 10.77.0.0/24 *"],
        "ip route del 10.77.0.0/24",
        "route of eth0: wanted 10.77.0.0/24 via 10.77.0.1",
    ),
    inside(&["container ip4 10.77.0.1 *"], "ip route del 10.77.0.1", "route of eth0: wanted 10.77.0.1/32"),
    inside(
        &["container ip6 fd00:77::/64 *"],
        "ip -6 route del fd00:77::/64",
        "route of eth0: wanted fd00:77::/64 via fd00:77::1",
    ),
    inside(&["container ip6 fd00:77::1 *"], "ip -6 route del fd00:77::1", "route of eth0: wanted fd00:77::1/128"),
    inside(
        &[],
        "ip route replace 10.77.0.0/24 via 10.77.0.1",
        "route of eth0: wanted 10.77.0.0/24 via 10.77.0.1 src 10.77.0.2",
    ),
];

/// The settings that tuning changes ([`tuned`](crate::campaign_subjects::tuned)). The last tampering removes the others with it.
pub const TUNING: [Tampering; 9] = [
    Tampering::inside(
        "ip link set eth0 address 0a:00:00:00:00:03",
        "MAC of eth0: wanted 0a:00:00:00:00:07, found 0a:00:00:00:00:03",
    ),
    Tampering::inside("ip link set eth0 mtu 1450", "MTU of eth0: wanted 1400, found 1450"),
    Tampering::inside("ip link set eth0 promisc off", "promisc of eth0: wanted on, found off"),
    Tampering::inside("ip link set eth0 allmulticast off", "allmulti of eth0: wanted on, found off"),
    Tampering::inside("ip link set eth0 txqueuelen 501", "txQLen of eth0: wanted 500, found 501"),
    Tampering::inside("sysctl -qw net.ipv4.conf.eth0.arp_notify=0", "net/ipv4/conf/eth0/arp_notify: wanted 1, found 0"),
    Tampering::inside("sysctl -qw net.core.somaxconn=101", "net/core/somaxconn: wanted 100, found 101"),
    Tampering::inside(
        "sysctl -qw net.ipv4.ip_local_port_range='20000 30001'",
        "net/ipv4/ip_local_port_range: wanted 20000 0x7530, found 20000\t30001",
    ),
    Tampering::inside("ip link del eth0", "interface eth0: wanted in the container, found none"),
];

/// What vrf makes, as [`vrf_member`](crate::campaign_subjects::vrf_member) says.
pub const VRF: [Tampering; 9] = [
    Tampering::inside("ip link set eth0 nomaster", "failed to find eth0 associated to vrf red"),
    Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24, found ["),
    Tampering::inside("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64, found ["),
    Tampering::inside("ip link set red down", "VRF red: wanted up, found down"),
    Tampering::inside(
        "ip route del 10.9.0.0/16 table 1",
        "route of eth0: wanted 10.9.0.0/16 via 10.77.0.1 metric 7 mtu 1400",
    ),
    Tampering::inside("ip link del red", "VRF red: wanted in the container, found none"),
    Tampering::inside("ip link del red && ip link add red type bridge", "Netlink red is not a VRF"),
    Tampering::inside("ip link del eth0", "interface eth0: wanted in the container, found none"),
    Tampering::inside(
        "ip route del 10.9.0.0/16 table 1 && ip route add 10.9.0.0/16 via 10.77.0.3 table 1",
        "metric 7 mtu 1400 scope 0 table 1, found [10.9.0.0/16 via 10.77.0.3 scope 0 table 1]",
    ),
];

/// What sbr changes, as [`source_routing`](crate::campaign_subjects::source_routing) says; the last takes the others with it.
pub const SOURCE_ROUTING: [Tampering; 6] = [
    Tampering::inside(
        "ip rule del from 10.77.0.2",
        "routing rule of eth0: wanted from 10.77.0.2/32 lookup 100, found []",
    ),
    Tampering::inside(
        "ip -6 rule del from fd00:77::2 && ip -6 rule add from fd00:77::2 lookup 7",
        "routing rule of eth0: wanted from fd00:77::2/128 lookup 101, found [7]",
    ),
    Tampering::inside(
        "ip route replace default via 10.77.0.7 dev eth0 table 100",
        "route of eth0: wanted 0.0.0.0/0 via 10.77.0.1 scope 0 table 100, found [0.0.0.0/0 via 10.77.0.7 scope 0 table 100]",
    ),
    Tampering::inside("ip -6 route del fd09::/64 table 101", "route of eth0: wanted fd09::/64 via fe80::9 metric 8"),
    Tampering::inside(
        "ip route add 10.77.0.0/24 dev eth0 proto kernel scope link src 10.77.0.2",
        "wanted 10.77.0.0/24 src 10.77.0.2 scope 253 not in the main table, found it there",
    ),
    Tampering::inside("ip link del eth0", "interface eth0: wanted in the container, found none"),
];

/// The limits of bandwidth ([`shaped`](crate::campaign_subjects::shaped)).
pub const BANDWIDTH: [Tampering; 7] = [
    Tampering::on_host("tc qdisc del dev $(ip -o link | grep -o 'pairend[0-9]*') root", "wanted tbf, found none"),
    Tampering::on_host(
        "tc qdisc change dev $(ip -o link | grep -o 'pairend[0-9]*') root handle 1: tbf rate 9mbit burst 100000 latency 25ms",
        "in bytes per second: wanted 1000000, found 1125000",
    ),
    Tampering::on_host(
        "tc qdisc change dev $(ip -o link | grep -o 'bwp[0-9a-f]*') root handle 1: tbf rate 16mbit burst 30000 latency 25ms",
        "in ticks of 64 ns: wanted 156250, found 234375",
    ),
    Tampering::on_host(
        "tc qdisc del dev $(ip -o link | grep -o 'pairend[0-9]*') ingress",
        "wanted first one that redirects all to",
    ),
    Tampering::on_host(
        "tc filter del dev $(ip -o link | grep -o 'pairend[0-9]*') ingress",
        "wanted first one that redirects all to",
    ),
    Tampering::on_host("ip link set $(ip -o link | grep -o 'bwp[0-9a-f]*') down", "wanted up, found down"),
    Tampering::on_host(
        "ip link del $(ip -o link | grep -o 'bwp[0-9a-f]*')",
        "limit of traffic from eth0: wanted an ifb of its own",
    ),
];

/// The rules that portmap makes with nftables ([`publishing`](crate::campaign_subjects::publishing)).
pub const PORTS: [Tampering; 8] = [
    Tampering::on_host("nft flush chain ip cni_hostport hostports", "tcp dport 8080 dnat to 10.77.0.2:80"),
    Tampering::on_host(
        "nft flush chain ip6 cni_hostport masquerading",
        "ip6 saddr fd00:77::2 ip6 daddr fd00:77::2 masquerade",
    ),
    Tampering::on_host(
        "nft flush chain ip cni_hostport prerouting",
        "chain prerouting of table ip cni_hostport begins with nothing",
    ),
    Tampering::on_host(
        "nft flush chain ip6 cni_hostport output",
        "chain output of table ip6 cni_hostport begins with nothing",
    ),
    Tampering::on_host(
        "nft flush chain ip cni_hostport hostports_all",
        "chain hostports_all of table ip cni_hostport begins with nothing",
    ),
    Tampering::on_host("nft flush set ip6 cni_hostport hostports_in_use", "element udp . 5353 of set hostports_in_use"),
    Tampering::on_host("nft delete table ip cni_hostport", "table ip cni_hostport is missing"),
    Tampering::on_host("echo 0 > /proc/sys/net/ipv4/conf/toward0/route_localnet", "route_localnet: wanted 1, found 0"),
];

/// The rules that firewall makes with iptables ([`firewall`](crate::campaign_subjects::firewall)). The last tampering removes the
/// others with it.
pub const FIREWALL: [Tampering; 14] = [
    Tampering::on_host(
        "iptables -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
        "from chain FORWARD of",
    ),
    Tampering::on_host(
        "ip6tables -I FORWARD -j ACCEPT",
        "chain FORWARD of table filter of ip6tables does not begin with",
    ),
    Tampering::on_host(
        "iptables -I FORWARD 3 -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
        "each once",
    ),
    Tampering::on_host("iptables -D CNI-FORWARD 1", "-j CNI-ADMIN` is missing from chain CNI-FORWARD"),
    Tampering::on_host(
        "iptables -I CNI-FORWARD -j DROP",
        "chain CNI-FORWARD of table filter of iptables does not begin with",
    ),
    Tampering::on_host(
        "iptables -D CNI-FORWARD -s 10.77.0.2 -j ACCEPT",
        "`-s 10.77.0.2/32 -j ACCEPT` is missing from chain CNI-FORWARD",
    ),
    Tampering::on_host(
        "ip6tables -D CNI-FORWARD 2",
        "RELATED,ESTABLISHED -j ACCEPT` is missing from chain CNI-FORWARD",
    ),
    Tampering::on_host("iptables -D CNI-ISOLATION-STAGE-1 1", "-i cni0 -o cni0 -m comment"),
    Tampering::on_host("ip6tables -D CNI-ISOLATION-STAGE-1 2", "-i cni0 ! -o cni0 -m comment"),
    Tampering::on_host(
        "iptables -I CNI-ISOLATION-STAGE-1 -j RETURN",
        "chain CNI-ISOLATION-STAGE-1 of table filter of iptables does",
    ),
    Tampering::on_host("iptables -D CNI-ISOLATION-STAGE-2 1", "-o cni0 -m comment"),
    Tampering::on_host(
        "ip6tables -D CNI-ISOLATION-STAGE-2 2",
        "-j RETURN` is missing from chain CNI-ISOLATION-STAGE-2",
    ),
    Tampering::on_host("ip link del cni0", "needs a bridge, and prevResult has cni0, peer0"),
    Tampering::on_host(
        "iptables -F; iptables -X; ip6tables -F; ip6tables -X",
        "from chain CNI-FORWARD of table filter of ip6tables",
    ),
];

/// The rules that firewall makes with nftables.
pub const FIREWALL_NFTABLES: [Tampering; 6] = [
    Tampering::on_host("nft flush chain inet cni_firewall owners", "rule `ip saddr 10.77.0.2 accept comment"),
    Tampering::on_host(
        "nft flush chain inet cni_firewall forward",
        "chain forward of table inet cni_firewall begins with nothing",
    ),
    Tampering::on_host(
        "nft flush chain inet cni_firewall admins",
        "rule `jump CNI-ADMIN comment \"operator:CNI-ADMIN\"` is missing from chain admins",
    ),
    Tampering::on_host(
        "nft flush set inet cni_firewall ipv4",
        "element 10.77.0.2 of set ipv4 of table inet cni_firewall is missing",
    ),
    Tampering::on_host(
        "nft flush set inet cni_firewall isolated",
        "of set isolated of table inet cni_firewall is missing",
    ),
    Tampering::on_host("nft delete table inet cni_firewall", "table inet cni_firewall is missing"),
];

/// Masquerade with iptables.
pub const IPTABLES: [Thing; 6] = [
    on_host(&["host iptables -A POSTROUTING *"], "iptables -t nat -D POSTROUTING 1", "masquerade"),
    on_host(
        &["host iptables -A CNI-* -j ACCEPT"],
        "iptables -t nat -D $(iptables -t nat -S | sed -n 's/^-N \\(CNI-.*\\)/\\1/p') 1",
        "masquerade",
    ),
    on_host(
        &["host iptables -A CNI-* -j MASQUERADE"],
        "iptables -t nat -D $(iptables -t nat -S | sed -n 's/^-N \\(CNI-.*\\)/\\1/p') 2",
        "masquerade",
    ),
    on_host(&["host ip6tables -A POSTROUTING *"], "ip6tables -t nat -D POSTROUTING 1", "masquerade"),
    on_host(
        &["host ip6tables -A CNI-* -j ACCEPT"],
        "ip6tables -t nat -D $(ip6tables -t nat -S | sed -n 's/^-N \\(CNI-.*\\)/\\1/p') 1",
        "masquerade",
    ),
    on_host(
        &["host ip6tables -A CNI-* -j MASQUERADE"],
        "ip6tables -t nat -D $(ip6tables -t nat -S | sed -n 's/^-N \\(CNI-.*\\)/\\1/p') 2",
        "masquerade",
    ),
];

/// Masquerade with nftables.
pub const NFTABLES: [Thing; 3] = [
    on_host(&[], "nft flush chain inet cni_plugins_masquerade masq_checks", "masquerade"),
    on_host(&[], "nft flush chain inet cni_plugins_masquerade postrouting", "masquerade"),
    on_host(&[], "nft delete table inet cni_plugins_masquerade", "masquerade"),
];

/// The MAC spoof check.
pub const SPOOF: [Thing; 2] = [
    on_host(&[], "nft delete table bridge nat", "table bridge nat is missing"),
    on_host(&[], "ip link set cni0 type bridge no_linklocal_learn 0", "no_linklocal_learn of cni0: wanted 1, found 0"),
];

/// The IP spoof check of a bridge's port.
pub const IP_SPOOF: [Thing; 1] =
    [on_host(&[], "nft delete table bridge cni_ipspoofchk", "table bridge cni_ipspoofchk is missing")];

/// A layer 2 bridge: the container's interface is only up.
pub const LAYER2: [Thing; 4] = [
    on_host(&[], "ip link set cni0 down", "bridge cni0: wanted up, found down"),
    on_host(&[], "ip link set $HOSTEND down", "wanted up, found down"),
    on_host(&[], "ip link set $HOSTEND nomaster", "bridge of veth"),
    inside(&[], "ip link set eth0 down", "eth0: wanted up, found down"),
];

/// The kinds of resources that not every kernel supports. Tests that need such a feature of the kernel tamper with them.
pub const IN_THE_RING: [&str; 3] = ["VLANs of the port", "VLAN gateway", "VRF"];

/// The kinds of host-device: `tests/tests/host_device.rs` tampers with the first; of the second there is nothing to tamper with,
/// because the kernel has no link of it.
pub const OF_HOST_DEVICE: [&str; 2] = ["host device", "device in user space"];

/// The kinds that `tests/tests/macvlan.rs` and the ring tamper with, because they need a feature of the kernel too.
pub const WITHOUT_A_HOST_END: [&str; 5] = ["macvlan", "ipvlan", "vlan", "dummy", "tap"];

/// Visible state that CHECK does not compare: the line, and the reason.
///
/// The gateway of a VLAN is not among the lines, for not every kernel has it: of its MTU only that both ends have the same is
/// compared. It was the bridge's when the pair was made, and the bridge's follows its ports since.
pub const NOT_COMPARED: [(&str, &str); 21] = [
    ("container sysctl */eth0/*", "a container's own settings belong to later plugins, such as tuning"),
    ("container link eth0 num_*x_queues = 1", "a link keeps what it was made with"),
    ("host link $END num_*x_queues = 1", "as above"),
    ("container link eth0 qdisc = noqueue", "the kernel's, with every veth that is up"),
    ("container qdisc *", "the kernel's, with every veth that is up"),
    ("host link * qdisc = noqueue", "the kernel's, with every link that is up"),
    ("host qdisc *", "the kernel's, with every link that is up"),
    (
        "host link $END linkinfo info_slave_data state = forwarding",
        "the bridge decides, by its spanning tree if it has one",
    ),
    ("host link $END linkinfo info_slave_data *", "the kernel's, with every port of a bridge"),
    ("host link $END promiscuity = *", "the kernel's, with every port of a bridge"),
    ("host link $END allmulti = *", "the kernel's, with every port of a bridge"),
    ("host link cni0 mtu = *", "set only when the bridge is made: its maker decides, and it is shared"),
    ("host sysctl */cni0/mtu:1400", "as above"),
    ("host link cni0 tso_max_size = *", "the kernel's, from the ports"),
    ("host link cni0 linkinfo info_data no_linklocal_learn = 1", "compared where macspoofchk is on, which needs it"),
    ("host sysctl */accept_dad:0", "only hastens what ADD waits for"),
    ("host sysctl /proc/sys/net/ipv6/conf/cni0/autoconf:0", "of a bridge of another program it is that program's"),
    ("host file * leases*", "host-local's own: made again, or only a hint where to look first"),
    ("host file leases/testnet/last_reserved_ip.*", "only a hint where to look first"),
    ("host ip*tables *", "tables, chains and policies that every rule brings along"),
    ("host nft*", "what iptables wrote, in other words"),
];
