//! The table of what is measured: scenarios with their verbs, and the targets of their rows.

pub(crate) mod runtime;
pub(crate) mod stage;

use std::time::Duration;

use serde_json::{Value, json};

/// A call: a plugin with a verb of the specification, a command of a side's cnitool, or a program of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Version,
    /// The same of a hard link to `cni-plugins`, which is executed without a launcher.
    VersionLinked,
    Status,
    Add,
    Check,
    Del,
    Gc,
    /// `cnitool add`: the chain of the scenario.
    Attach,
    /// `cnitool del`.
    Detach,
    /// `cnitool status`.
    Ready,
    /// `cnitool list`.
    List,
    /// `cnitool ipam usage`.
    Usage,
    /// A plain read of every file that `cnitool list` reads: open, read, close.
    ReadKept,
    /// The same of those that `cnitool ipam usage` reads.
    ReadAll,
    /// A runtime built on libcni that sets up all containers at once, with as many threads as it chooses.
    Setup,
    /// The same runtime removes them.
    Remove,
}

use Verb::{
    Add, Attach, Check, Del, Detach, Gc, List, ReadAll, ReadKept, Ready, Remove, Setup, Status, Usage, Version,
    VersionLinked,
};

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Version => "VERSION",
            VersionLinked => "VERSION by a hard link",
            Status => "STATUS",
            Add => "ADD",
            Check => "CHECK",
            Del => "DEL",
            Gc => "GC",
            Attach => "cnitool add",
            Detach => "cnitool del",
            Ready => "cnitool status",
            List => "cnitool list",
            Usage => "cnitool ipam usage",
            ReadKept => "cached results, a plain read",
            ReadAll => "cached results and addresses, a plain read",
            Setup => "setup",
            Remove => "remove",
        }
    }

    /// The verb that a plugin gets.
    pub(crate) fn of_plugin(self) -> &'static str {
        if self == VersionLinked { Version.name() } else { self.name() }
    }

    /// The arguments of cnitool, with `NETNS` for the container's namespace; `None` if this is not a command of cnitool.
    pub(crate) fn command(self) -> Option<&'static str> {
        match self {
            Attach => Some("add bench NETNS"),
            Detach => Some("del bench NETNS"),
            // Upstream's cnitool requires a namespace here and does not use it.
            Ready => Some("status bench NETNS"),
            List => Some("list"),
            Usage => Some("ipam usage"),
            _ => None,
        }
    }

    /// The arguments of this program, with `DIR` for the scenario's directory; `None` if another program is called. Those of a
    /// runtime are followed by the directory of plugins and the containers.
    pub(crate) fn own_words(self) -> Option<&'static str> {
        match self {
            ReadKept => Some("read DIR/state/results"),
            ReadAll => Some("read DIR/state/results DIR/leases/bench"),
            Setup => Some("setup DIR"),
            Remove => Some("remove DIR"),
            _ => None,
        }
    }

    /// Whether its output grows with the number of containers.
    pub(crate) fn is_talkative(self) -> bool {
        matches!(self, List | Usage)
    }

    pub(crate) fn is_of_all_containers(self) -> bool {
        matches!(self, Setup | Remove)
    }

    /// Whether it removes the attachment.
    pub(crate) fn takes_down(self) -> bool {
        matches!(self, Del | Detach | Remove)
    }

    /// Whether a call is for one container. Otherwise one call is for the network.
    pub(crate) fn is_of_a_container(self) -> bool {
        matches!(self, Add | Check | Del | Attach | Detach)
    }

    pub(crate) fn takes_prev(self) -> bool {
        matches!(self, Check | Del)
    }

    /// The oldest version of the specification that has it, as far as that matters: all speak the first of these.
    pub(crate) fn spoken_since(self) -> &'static str {
        if matches!(self, Status | Gc | Ready) { "1.1.0" } else { "1.0.0" }
    }
}

/// Rules of another program, which no packet of a scenario matches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Foreign {
    /// In a table of their own.
    Nftables(u32),
    /// In a chain of their own of table `nat`, which iptables-save(8) reads whole.
    Iptables(u32),
}

/// The calls of one round, and the preparation of the host.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// The beginning of its rows' names.
    pub(crate) name: &'static str,
    pub(crate) plugin: &'static str,
    /// The configuration. It gets the version that its verbs need unless it has one. `DIR` in it is the side's directory.
    pub(crate) conf: &'static str,
    /// The configurations of the plugins after it in the chain, for cnitool.
    pub(crate) then: &'static [&'static str],
    /// The number of ports that the runtime requests, from [`Scenario::FIRST_PORT`] on.
    pub(crate) ports: u16,
    /// The verbs of a round, in order.
    pub(crate) steps: &'static [Verb],
    /// Those of them that become rows.
    pub(crate) rows: &'static [Verb],
    /// Whether these together become a row too.
    pub(crate) together: bool,
    /// Whether the floor plays it too (`bin/floor`).
    pub(crate) has_floor: bool,
    /// How many containers, all called at once.
    pub(crate) at_once: usize,
    /// How many addresses are reserved beforehand.
    pub(crate) reserved: u32,
    /// Whether the results of their containers are in the cache, each with an existing namespace.
    pub(crate) kept: bool,
    /// The number of rules of another program that exist beforehand, and their tables.
    pub(crate) foreign_rules: Foreign,
    /// A shell line that prepares the host; `DIR` in it is the side's directory, and `BIN` the one of its plugins.
    pub(crate) before: &'static str,
    /// A shell line that ends what `before` has started.
    pub(crate) after: &'static str,
    /// A shell line that is run in each container beforehand; `HOST` in it is the path of the host's namespace. It makes the links
    /// that the plugins before a chained one would make.
    pub(crate) inside: &'static str,
    /// Whether `eth0` is deleted and `inside` run again after each DEL, for a side that does not put back what it changed.
    pub(crate) is_renewed: bool,
    /// Set over the environment of every call; `DIR` in it is the side's directory.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Whether the binary is dropped from the page cache before each step.
    pub(crate) cold: bool,
    /// A shell line that is run on the host after this verb. It succeeds if the side did the work of the scenario.
    pub(crate) proof: (Verb, &'static str),
    /// Rounds of a whole run, and of a short one; a scenario without the latter is left out there.
    pub(crate) rounds: usize,
    pub(crate) short: usize,
    /// Waited after each step, so that nothing which the kernel puts off (freeing of links and rules) hits the next one.
    pub(crate) pause: Duration,
}

impl Scenario {
    /// The first requested host port.
    pub(crate) const FIRST_PORT: u16 = 8_000;

    /// The ports as a runtime passes them, in `runtimeConfig` and `CAP_ARGS`.
    pub(crate) fn capabilities(&self) -> Option<Value> {
        let one = |port| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"});
        let ports: Vec<Value> = (0..self.ports).map(|n| one(Self::FIRST_PORT + n)).collect();
        (self.ports > 0).then(|| json!({"portMappings": ports}))
    }
}

const CALM: Duration = Duration::from_millis(30);
const BRIEF: Duration = Duration::from_millis(2);

const ONE: Scenario = Scenario {
    name: "",
    plugin: "bridge",
    conf: "{}",
    then: &[],
    ports: 0,
    steps: &[Add, Del],
    rows: &[Add, Del],
    together: false,
    has_floor: false,
    at_once: 1,
    reserved: 0,
    kept: false,
    foreign_rules: Foreign::Nftables(0),
    before: "true",
    after: "",
    inside: ":",
    is_renewed: false,
    env: &[],
    cold: false,
    proof: (Add, "true"),
    rounds: 40,
    short: 5,
    pause: CALM,
};

macro_rules! ipam {
    () => {
        r#""ipam":{"type":"host-local","dataDir":"DIR/leases","ranges":[[{"subnet":"10.97.0.0/16"}]]}"#
    };
    (dual) => {
        r#""ipam":{"type":"host-local","dataDir":"DIR/leases",
           "ranges":[[{"subnet":"10.97.0.0/16"}],[{"subnet":"fd00:97::/64"}]]}"#
    };
}

macro_rules! bridge {
    ($more:literal, $ipam:expr) => {
        concat!(r#"{"bridge":"bench0","isDefaultGateway":true,"#, $more, $ipam, "}")
    };
}

const BRIDGE: &str = bridge!("", ipam!());

/// A rule of the host that tracks connections, as nearly every node has one, beside [`Scenario::foreign_rules`]. Without it the
/// kernel begins to track with each rule that masquerades or translates, and walks the whole table if there is a connection, which
/// by chance one side has and another has not.
macro_rules! tracked {
    () => {
        "nft 'table inet host { chain input { type filter hook input priority 0; ct state established accept; }; }'"
    };
}

const NFTABLES: Scenario = Scenario {
    before: tracked!(),
    conf: bridge!(r#""ipMasq":true,"ipMasqBackend":"nftables","#, ipam!()),
    proof: (Add, "nft list table inet cni_plugins_masquerade | grep -q masquerade"),
    ..ONE
};
const HOST_LOCAL: Scenario = Scenario { plugin: "host-local", conf: concat!("{", ipam!(), "}"), pause: BRIEF, ..ONE };
/// What the agent of a node has written: a pool, and one block of it for the network.
const POOL_FILES: &str = r#"mkdir -p DIR/leases && mkdir -m 700 DIR/leases/.pool && cd DIR/leases/.pool &&
    printf '{"version":1,"incarnation":"0000000000000000000000000000000a","boot":"%s","state":"serving"}'         "$(cat /proc/sys/kernel/random/boot_id)" >node.json &&
    echo '{"version":1,"pools":[{"name":"blue","ranges":[{"subnet":"10.97.0.0/16"}],"blockSize4":24}]}' >pools.json &&
    echo '{"version":1,"blocks":[{"pool":"blue","cidr":"10.97.1.0/24","epoch":1,"state":"active"}]}' >bench.blocks"#;
const STATIC: &str = r#"{"ipam":{"type":"static","addresses":[{"address":"10.97.0.5/16","gateway":"10.97.0.1"}]}}"#;
/// A chain as `cnitool` runs it. loopback after bridge only passes its result on. Both sides have it, and it is one more process,
/// as portmap or tuning would be.
const CHAIN: Scenario =
    Scenario { then: &[r#"{"type":"loopback"}"#], steps: &[Attach, Detach], rows: &[Attach, Detach], short: 3, ..ONE };
const IPTABLES: Scenario = Scenario {
    conf: bridge!(r#""ipMasq":true,"ipMasqBackend":"iptables","#, ipam!()),
    proof: (Add, "iptables -t nat -S | grep -q -i -e '-j MASQUERADE'"),
    ..ONE
};
const ALL_AT_ONCE: Scenario = Scenario { conf: BRIDGE, rounds: 12, short: 3, ..ONE };

/// A bridge with so many ports, to each of which the kernel sends a copy of a broadcast. Their other ends are without IPv6, which
/// would send for seconds.
macro_rules! ports {
    ($count:literal) => {
        concat!(
            "sysctl -qw net.ipv6.conf.default.disable_ipv6=1 && ip link add bench0 up type bridge && for n in $(seq ",
            $count,
            "); do echo link add p$n master bench0 up type veth peer name q$n; echo link set q$n up; done | ip -batch - && ",
            "sysctl -qw net.ipv6.conf.default.disable_ipv6=0"
        )
    };
}

/// The text in an error of `before` if this kernel has no such links. The scenario is then skipped.
pub(crate) const LACKING: &str = "this kernel lacks";

/// A master with another link of the same kind on it, because the kernel does more work for the first such link than for later
/// ones. Its mode is the one that our plugins and the peers' use, so none of them has to switch it.
macro_rules! master {
    ($kind:literal, $mode:literal) => {
        concat!(
            "ip link add master0 type veth peer name outer0; ip link set outer0 up; ip link set master0 up; ",
            "ip link add link master0 name sibling0 type ",
            $kind,
            " mode ",
            $mode,
            " || { echo this kernel lacks ",
            $kind,
            " >&2; exit 1; }; ",
            "ip link set sibling0 up"
        )
    };
}

/// A configuration with the result of a plugin before it in the chain.
macro_rules! chained {
    ($($own:expr),*) => {
        concat!(
            "{",
            $($own,)*
            r#""prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"master0"}],
               "ips":[{"address":"10.97.0.2/16","gateway":"10.97.0.1","interface":0}]}}"#
        )
    };
}

const MACVLAN: Scenario = Scenario {
    plugin: "macvlan",
    conf: concat!(r#"{"master":"master0","#, ipam!(), "}"),
    before: master!("macvlan", "bridge"),
    ..ONE
};
const IPVLAN: Scenario = Scenario {
    plugin: "ipvlan",
    conf: concat!(r#"{"master":"master0","#, ipam!(), "}"),
    before: master!("ipvlan", "l2"),
    ..ONE
};

const VLAN: Scenario = Scenario {
    plugin: "vlan",
    conf: concat!(r#"{"master":"master0","vlanId":7,"#, ipam!(), "}"),
    before: "ip link add master0 type veth peer name outer0; ip link set outer0 up; ip link set master0 up; \
             ip link add link master0 name sibling0 type vlan id 8 || { echo this kernel lacks 8021q >&2; exit 1; }; \
             ip link set sibling0 up",
    ..ONE
};
const DUMMY: Scenario = Scenario {
    plugin: "dummy",
    conf: concat!("{", ipam!(), "}"),
    before: "ip link add sibling0 type dummy || { echo this kernel lacks dummy >&2; exit 1; }",
    ..ONE
};
const TAP: Scenario =
    Scenario { plugin: "tap", conf: concat!(r#"{"owner":1000,"multiQueue":true,"mtu":1400,"#, ipam!(), "}"), ..ONE };

/// One end of a veth, which is down on the host as upstream leaves it after DEL. The other end is up.
const HOST_DEVICE: Scenario = Scenario {
    plugin: "host-device",
    conf: concat!(r#"{"device":"device0","dataDir":"/run/DIR","#, ipam!(), "}"),
    before: "ip link add device0 type veth peer name outer0; ip link set outer0 up",
    steps: &[Add, Check, Del],
    rows: &[Add, Check, Del],
    proof: (Add, "! ip link show device0"),
    ..ONE
};

/// A DHCP server on the host's bridge, and the side's daemon, of which ours alone has a directory of records.
const DHCP: Scenario = Scenario {
    plugin: "dhcp",
    conf: r#"{"ipam":{"type":"dhcp","daemonSocketPath":"DIR/dhcp.sock"}}"#,
    before: "command -v dnsmasq >/dev/null || { echo dnsmasq is missing >&2; exit 1; }; \
        ip link add dhcp0 type bridge && ip addr add 10.97.0.1/16 dev dhcp0 && ip link set dhcp0 up && \
        dnsmasq --conf-file=/dev/null --user=root --port=0 --bind-interfaces --interface=dhcp0 --dhcp-authoritative \
            --no-ping --dhcp-range=10.97.0.10,10.97.9.250,255.255.0.0,2m --dhcp-leasefile=DIR/leases.dnsmasq \
            --pid-file=DIR/dnsmasq.pid && \
        { BIN/dhcp daemon -socketpath DIR/dhcp.sock -pidfile DIR/daemon.pid \
            $(BIN/dhcp daemon -help 2>&1 | grep -q -e -datadir && echo -datadir DIR/dhcp) >/dev/null 2>&1 & } && \
        timeout 20 sh -c 'until test -S DIR/dhcp.sock -a -s DIR/daemon.pid; do sleep 0.05; done'",
    after: "for name in daemon dnsmasq; do kill $(cat DIR/$name.pid); done",
    inside: "ip link add eth0 type veth peer name b$$ netns HOST && ip link set eth0 up && \
        nsenter --net=HOST ip link set b$$ master dhcp0 up",
    proof: (
        Add,
        "grep -q 10.97. DIR/leases.dnsmasq && test $(awk '/VmRSS/ {print $2}' /proc/$(cat DIR/daemon.pid)/status) -gt 0",
    ),
    rounds: 20,
    ..ONE
};

macro_rules! tuning {
    ($dir:literal) => {
        concat!(
            r#"{"dataDir":""#,
            $dir,
            r#"","mac":"0a:00:00:00:00:07","mtu":1400,"promisc":true,
                "sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"},"prevResult":{"cniVersion":"1.0.0"}}"#
        )
    };
}

/// Its records are below `/run` unless configured otherwise, and a sync takes no time there.
const TUNING: Scenario = Scenario {
    plugin: "tuning",
    conf: tuning!("DIR/tuning"),
    inside: "ip link add eth0 type veth peer name peer0",
    steps: &[Add, Check, Del],
    rows: &[Add, Check, Del],
    proof: (Add, "test -e DIR/tuning/bench-0_eth0.json"),
    pause: BRIEF,
    ..ONE
};

/// An interface with addresses and default routes of both families. Upstream does not put them back, so each round has a new one.
const SBR: Scenario = Scenario {
    plugin: "sbr",
    conf: r#"{"dataDir":"/run/DIR","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/bench"}],
        "ips":[{"address":"10.97.0.2/16","gateway":"10.97.0.1","interface":0},
               {"address":"fd00:97::2/64","gateway":"fd00:97::1","interface":0}]}}"#,
    inside: "ip link add eth0 type veth peer name peer0; ip link set peer0 up; ip link set eth0 up; \
        ip addr add 10.97.0.2/16 dev eth0; ip addr add fd00:97::2/64 dev eth0 nodad; \
        ip route add default via 10.97.0.1; ip -6 route add default via fd00:97::1",
    is_renewed: true,
    pause: BRIEF,
    ..ONE
};

/// As [`SBR`]: upstream does not give the routes back either. The kernel adds its rules for VRFs with the first one.
const VRF: Scenario = Scenario {
    plugin: "vrf",
    conf: r#"{"vrfname":"red","dataDir":"/run/DIR","prevResult":{"cniVersion":"1.0.0",
        "interfaces":[{"name":"eth0","sandbox":"/run/netns/bench"}],
        "ips":[{"address":"10.97.0.2/16","gateway":"10.97.0.1","interface":0},
               {"address":"fd00:97::2/64","gateway":"fd00:97::1","interface":0}]}}"#,
    before: "ip link add sibling0 type vrf table 9 || { echo this kernel lacks vrf >&2; exit 1; }",
    ..SBR
};

/// A veth pair. Upstream leaves the limits of the host end where they are, so each round has a new one.
const BANDWIDTH: Scenario = Scenario {
    plugin: "bandwidth",
    conf: r#"{"ingressRate":8000000,"ingressBurst":800000,"egressRate":16000000,"egressBurst":160000,
        "prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"bench0"},
            {"name":"eth0","mac":"0a:00:00:00:00:07","sandbox":"/run/netns/bench"}]}}"#,
    inside: "ip link add eth0 address 0a:00:00:00:00:07 type veth peer name bench0 netns HOST && ip link set eth0 up && \
        nsenter --net=HOST ip link set bench0 up",
    is_renewed: true,
    steps: &[Add, Check, Del],
    rows: &[Add, Check, Del],
    proof: (Add, "[ $(tc qdisc show | grep -c 'qdisc tbf 1: ') = 2 ]"),
    ..ONE
};

/// A configuration with the result of a bridge before it. The bridge exists, because the route to the container leads there.
macro_rules! behind_a_bridge {
    ($own:literal) => {
        concat!(
            "{",
            $own,
            r#","prevResult":{"cniVersion":"1.0.0",
                "interfaces":[{"name":"bench0"},{"name":"eth0","sandbox":"/run/netns/bench"}],
                "ips":[{"address":"10.97.0.2/16","gateway":"10.97.0.1","interface":1}]}}"#
        )
    };
}

macro_rules! bridged {
    () => {
        "ip link add bench0 type bridge; ip addr add 10.97.0.1/16 dev bench0; ip link set bench0 up"
    };
}

/// Finds the DNAT rule of the first port, as the backend writes it.
macro_rules! leads {
    (iptables) => {
        "iptables -t nat -S | grep -q -e '--dport 8000 .*DNAT.*:80'"
    };
    (nftables) => {
        "nft list table ip cni_hostport | grep -q 'dport 8000 .*dnat.*:80'"
    };
}

const PUBLISHED_IPTABLES: Scenario = Scenario {
    plugin: "portmap",
    conf: behind_a_bridge!(r#""backend":"iptables","capabilities":{"portMappings":true}"#),
    before: bridged!(),
    ports: 1,
    together: true,
    proof: (Add, leads!(iptables)),
    rounds: 20,
    short: 0,
    ..ONE
};
const PUBLISHED_NFTABLES: Scenario = Scenario {
    conf: behind_a_bridge!(r#""backend":"nftables","capabilities":{"portMappings":true}"#),
    before: concat!(bridged!(), "; ", tracked!()),
    proof: (Add, leads!(nftables)),
    ..PUBLISHED_IPTABLES
};
const FIREWALL: Scenario = Scenario {
    plugin: "firewall",
    conf: behind_a_bridge!(r#""backend":"iptables""#),
    before: bridged!(),
    together: true,
    proof: (Add, "iptables -S CNI-FORWARD | grep -q -e '-s 10.97.0.2/32 .*ACCEPT'"),
    ..ONE
};

/// The list that `podman network create` writes. The backends are configured at `$bridge`, `$portmap` and `$firewall`.
macro_rules! podman {
    ($bridge:literal) => {
        concat!(
            r#"{"cniVersion":"0.4.0","bridge":"cni-podman1","isGateway":true,"ipMasq":true,"hairpinMode":true,
                "capabilities":{"ips":true},"#,
            $bridge,
            r#""ipam":{"type":"host-local","dataDir":"DIR/leases","routes":[{"dst":"0.0.0.0/0"}],
                "ranges":[[{"subnet":"10.89.0.0/24","gateway":"10.89.0.1"}]]}}"#
        )
    };
}

/// Podman's network with a published port. Without a configured backend our plugins use iptables, as upstream's do.
const PODMAN: Scenario = Scenario {
    conf: podman!(""),
    then: &[
        r#"{"type":"portmap","capabilities":{"portMappings":true}}"#,
        r#"{"type":"firewall","backend":""}"#,
        r#"{"type":"tuning"}"#,
    ],
    ports: 1,
    together: true,
    proof: (Attach, leads!(iptables)),
    rounds: 20,
    short: 2,
    ..CHAIN
};

/// Every scenario, in the order of the table that is made of them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "bridge", steps: &[Version], rows: &[Version], pause: BRIEF, ..ONE },
    Scenario {
        name: "launched bridge",
        conf: BRIDGE,
        // STATUS is called first and not reported: the first call of a round takes half as long again, because the processor's
        // caches are cold. After it, each of the two is called once before and once after the other.
        steps: &[Status, Version, VersionLinked, VersionLinked, Version],
        rows: &[Version, VersionLinked],
        pause: BRIEF,
        rounds: 150,
        short: 30,
        ..ONE
    },
    Scenario { name: "cold bridge", steps: &[Version], rows: &[Version], cold: true, rounds: 20, ..ONE },
    Scenario { name: "loopback", plugin: "loopback", pause: BRIEF, ..ONE },
    Scenario {
        name: "bridge",
        conf: BRIDGE,
        steps: &[Add, Check, Del],
        rows: &[Add, Check, Del],
        has_floor: true,
        ..ONE
    },
    Scenario {
        name: "bridge, log at debug",
        conf: BRIDGE,
        env: &[("CNI_LOG", "debug"), ("CNI_LOG_FILE", "DIR/log")],
        rows: &[Add],
        rounds: 20,
        short: 3,
        ..ONE
    },
    Scenario { name: "bridge, iptables", steps: &[Add, Check, Del], rows: &[Add, Check, Del], ..IPTABLES },
    Scenario {
        name: "bridge, nftables",
        steps: &[Add, Check, Del],
        rows: &[Add, Check, Del],
        has_floor: true,
        ..NFTABLES
    },
    Scenario {
        name: "bridge, dual stack",
        conf: bridge!("", ipam!(dual)),
        steps: &[Add, Check, Del],
        rows: &[Add, Check, Del],
        ..ONE
    },
    Scenario { name: "ptp", plugin: "ptp", conf: concat!("{", ipam!(), "}"), has_floor: true, ..ONE },
    Scenario {
        name: "ptp, dual stack",
        plugin: "ptp",
        conf: concat!("{", ipam!(dual), "}"),
        rounds: 8,
        short: 0,
        ..ONE
    },
    Scenario {
        name: "tuning",
        conf: tuning!("/run/DIR"),
        proof: (Add, "test -e /run/DIR/bench-0_eth0.json"),
        ..TUNING
    },
    Scenario { name: "tuning, record on a disk", rows: &[Add, Del], ..TUNING },
    Scenario { name: "sbr", has_floor: true, ..SBR },
    Scenario { name: "vrf", ..VRF },
    Scenario { name: "bandwidth", has_floor: true, ..BANDWIDTH },
    Scenario { name: "portmap, iptables, 1 port", short: 3, ..PUBLISHED_IPTABLES },
    Scenario { name: "portmap, iptables, 10 ports", ports: 10, ..PUBLISHED_IPTABLES },
    Scenario { name: "portmap, iptables, 100 ports", ports: 100, rounds: 8, ..PUBLISHED_IPTABLES },
    Scenario { name: "portmap, nftables, 1 port", short: 3, ..PUBLISHED_NFTABLES },
    Scenario { name: "portmap, nftables, 10 ports", ports: 10, short: 2, ..PUBLISHED_NFTABLES },
    Scenario { name: "portmap, nftables, 100 ports", ports: 100, ..PUBLISHED_NFTABLES },
    // These rules are in the table of iptables, so both sides read them.
    Scenario {
        name: "portmap, iptables, 10,000 foreign rules",
        foreign_rules: Foreign::Iptables(10_000),
        rounds: 8,
        ..PUBLISHED_IPTABLES
    },
    Scenario {
        name: "portmap, iptables, 100,000 foreign rules",
        foreign_rules: Foreign::Iptables(100_000),
        rounds: 3,
        ..PUBLISHED_IPTABLES
    },
    Scenario {
        name: "portmap, nftables, 10,000 foreign rules",
        foreign_rules: Foreign::Nftables(10_000),
        ..PUBLISHED_NFTABLES
    },
    Scenario {
        name: "portmap, nftables, 100,000 foreign rules",
        foreign_rules: Foreign::Nftables(100_000),
        ..PUBLISHED_NFTABLES
    },
    Scenario { name: "firewall, iptables", rounds: 20, short: 3, ..FIREWALL },
    // Upstream has no such backend and uses iptables if the value is not known.
    Scenario {
        name: "firewall, nftables",
        conf: behind_a_bridge!(r#""backend":"nftables""#),
        proof: (Add, "nft list table inet cni_firewall | grep -q 10.97.0.2"),
        short: 3,
        ..FIREWALL
    },
    Scenario { name: "macvlan", has_floor: true, ..MACVLAN },
    Scenario { name: "macvlan, chained", conf: chained!(r#""master":"master0","#, ipam!(), ","), ..MACVLAN },
    Scenario {
        name: "macvlan, dual stack",
        conf: concat!(r#"{"master":"master0","#, ipam!(dual), "}"),
        rounds: 8,
        short: 0,
        ..MACVLAN
    },
    Scenario { name: "macvlan, 64 at once", at_once: 64, rounds: 6, short: 0, ..MACVLAN },
    Scenario { name: "ipvlan", ..IPVLAN },
    Scenario { name: "ipvlan, chained", conf: chained!(), ..IPVLAN },
    Scenario { name: "vlan", ..VLAN },
    Scenario { name: "dummy", ..DUMMY },
    Scenario { name: "tap", ..TAP },
    Scenario { name: "host-device", ..HOST_DEVICE },
    Scenario { name: "dhcp", ..DHCP },
    Scenario { name: "dhcp, 16 at once", at_once: 16, short: 0, ..DHCP },
    Scenario { name: "host-local, empty", has_floor: true, ..HOST_LOCAL },
    Scenario { name: "host-local, 1,000 taken", reserved: 1_000, rounds: 30, ..HOST_LOCAL },
    Scenario { name: "host-local, 10,000 taken", reserved: 10_000, rounds: 15, short: 0, ..HOST_LOCAL },
    Scenario { name: "host-local, 65,000 taken", reserved: 65_000, rounds: 8, short: 0, ..HOST_LOCAL },
    Scenario {
        name: "pool",
        plugin: "pool",
        conf: r#"{"ipam":{"type":"pool","pool":"blue","dataDir":"DIR/leases","agentSocket":"DIR/agent.sock"}}"#,
        before: POOL_FILES,
        ..HOST_LOCAL
    },
    Scenario {
        name: "flannel over bridge",
        plugin: "flannel",
        // The last release of upstream that had flannel supports no newer version.
        conf: r#"{"cniVersion":"0.4.0","subnetFile":"DIR/subnet.env","dataDir":"DIR/flannel","ipam":{"dataDir":"DIR/leases"},
                  "delegate":{"bridge":"bench0","isDefaultGateway":true}}"#,
        before: "printf 'FLANNEL_%s\n' NETWORK=10.96.0.0/15 SUBNET=10.97.0.1/16 MTU=1450 IPMASQ=true >DIR/subnet.env",
        ..ONE
    },
    Scenario { name: "static", plugin: "static", conf: STATIC, pause: BRIEF, ..ONE },
    Scenario { name: "bridge, 2 at once", at_once: 2, rounds: 20, short: 0, ..ALL_AT_ONCE },
    Scenario { name: "bridge, 16 at once", at_once: 16, short: 0, ..ALL_AT_ONCE },
    Scenario { name: "bridge, 64 at once", at_once: 64, short: 2, has_floor: true, ..ALL_AT_ONCE },
    Scenario { name: "bridge, burst of 250", at_once: 250, rounds: 5, short: 0, has_floor: true, ..ALL_AT_ONCE },
    Scenario { name: "bridge with 300 ports", before: ports!("300"), conf: BRIDGE, short: 0, ..ONE },
    Scenario { name: "bridge with 1,000 ports", before: ports!("1000"), conf: BRIDGE, short: 0, ..ONE },
    Scenario { name: "bridge", conf: BRIDGE, steps: &[Status], rows: &[Status], pause: BRIEF, ..ONE },
    Scenario {
        name: "bridge, 1,000 valid, 100 stale",
        conf: BRIDGE,
        steps: &[Add, Gc, Del],
        rows: &[Gc],
        at_once: 100,
        reserved: 1_000,
        proof: (Gc, "test $(ls DIR/leases/bench | grep -c '^10[.]') = 1000"),
        rounds: 5,
        short: 1,
        ..ONE
    },
    Scenario { name: "bridge, nftables, no foreign rule", rows: &[Add], rounds: 20, short: 3, ..NFTABLES },
    Scenario {
        name: "bridge, nftables, 1,000 foreign rules",
        foreign_rules: Foreign::Nftables(1_000),
        rows: &[Add],
        rounds: 20,
        short: 3,
        ..NFTABLES
    },
    Scenario {
        name: "bridge, nftables, 10,000 foreign rules",
        foreign_rules: Foreign::Nftables(10_000),
        rows: &[Add],
        rounds: 20,
        short: 0,
        ..NFTABLES
    },
    Scenario { name: "bridge and loopback", conf: BRIDGE, short: 0, ..CHAIN },
    Scenario { name: "bridge and loopback, iptables", conf: IPTABLES.conf, proof: (Attach, IPTABLES.proof.1), ..CHAIN },
    Scenario {
        name: "bridge and loopback, nftables",
        conf: NFTABLES.conf,
        before: tracked!(),
        proof: (Attach, NFTABLES.proof.1),
        ..CHAIN
    },
    Scenario { name: "Podman's network", ..PODMAN },
    // Upstream's plugins have no firewall in this case.
    Scenario {
        name: "Podman's network, nftables",
        conf: podman!(r#""ipMasqBackend":"nftables","#),
        then: &[
            r#"{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}"#,
            r#"{"type":"firewall","backend":"nftables"}"#,
            r#"{"type":"tuning"}"#,
        ],
        proof: (
            Attach,
            concat!(
                leads!(nftables),
                " && nft list table inet cni_firewall | grep -q 10.89.0 && ! iptables -S CNI-FORWARD"
            ),
        ),
        ..PODMAN
    },
    // Called in turn through cnitool and directly: the difference is the share of cnitool and libcni.
    Scenario {
        name: "bridge alone",
        conf: BRIDGE,
        steps: &[Attach, Detach, Add, Del],
        rows: &[Attach, Detach, Add, Del],
        short: 2,
        ..ONE
    },
    Scenario { name: "bridge", conf: BRIDGE, steps: &[Ready], rows: &[Ready], pause: BRIEF, ..ONE },
    Scenario {
        name: "1,000 attachments,",
        conf: BRIDGE,
        reserved: 1_000,
        kept: true,
        steps: &[List, Usage, ReadKept, ReadAll],
        rows: &[List, Usage, ReadKept, ReadAll],
        proof: (List, "test $(ls DIR/state/results | wc -l) = 1000"),
        pause: BRIEF,
        short: 3,
        ..ONE
    },
    Scenario {
        name: "bridge, 100 at once",
        at_once: 100,
        steps: &[Attach, Detach],
        rows: &[Attach, Detach],
        short: 0,
        ..ALL_AT_ONCE
    },
    Scenario {
        name: "bridge, 100 pods,",
        at_once: 100,
        steps: &[Setup, Remove],
        rows: &[Setup, Remove],
        short: 1,
        ..ALL_AT_ONCE
    },
];

/// The target of a row.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) row: &'static str,
    /// The least ratio to the fastest peer.
    pub(crate) times: f64,
    /// The smallest ratio on any machine that was measured. Below half of it something is broken, whether or not the target is met.
    pub(crate) usual: f64,
}

const fn target(row: &'static str, times: f64, usual: f64) -> Target {
    Target { row, times, usual }
}

/// Every row of which something is wanted.
pub(crate) const TARGETS: &[Target] = &[
    target("bridge VERSION", 4.0, 8.0),
    target("bridge ADD", 5.0, 2.9),
    target("bridge DEL", 1.2, 1.0),
    target("bridge, iptables ADD", 4.0, 2.75),
    target("bridge, iptables DEL", 3.0, 2.1),
    target("bridge, nftables ADD", 20.0, 7.3),
    target("bridge, nftables DEL", 3.0, 2.3),
    target("ptp, dual stack ADD", 500.0, 47.0),
    target("tuning ADD", 4.0, 3.0),
    target("sbr ADD", 5.0, 3.0),
    target("sbr DEL", 1.2, 2.0),
    target("vrf ADD", 5.0, 2.0),
    target("vrf DEL", 1.2, 0.8),
    target("bandwidth ADD", 5.0, 2.0),
    target("bandwidth DEL", 1.2, 0.8),
    target("portmap, iptables, 1 port ADD and DEL", 5.0, 5.0),
    target("portmap, iptables, 10 ports ADD and DEL", 5.0, 8.5),
    target("portmap, iptables, 100 ports ADD and DEL", 5.0, 30.0),
    target("portmap, nftables, 1 port ADD and DEL", 10.0, 7.0),
    target("portmap, nftables, 10 ports ADD and DEL", 10.0, 5.0),
    target("portmap, nftables, 100 ports ADD and DEL", 10.0, 5.0),
    target("firewall, iptables ADD and DEL", 5.0, 2.2),
    target("macvlan ADD", 5.0, 2.8),
    target("macvlan, chained ADD", 5.0, 2.8),
    target("ipvlan ADD", 5.0, 2.0),
    target("ipvlan, chained ADD", 5.0, 2.0),
    target("vlan ADD", 5.0, 2.0),
    target("vlan DEL", 1.2, 0.8),
    target("dummy ADD", 5.0, 2.0),
    target("dummy DEL", 1.2, 0.8),
    target("tap ADD", 5.0, 2.0),
    target("tap DEL", 1.2, 0.8),
    target("host-device ADD", 1.5, 1.0),
    target("host-device DEL", 1.2, 1.0),
    // Upstream does not probe for the address, which takes a tenth of a second.
    target("dhcp ADD", 0.2, 0.15),
    target("host-local, empty ADD", 4.0, 5.0),
    target("host-local, 10,000 taken ADD", 100.0, 48.0),
    target("host-local, 65,000 taken ADD", 500.0, 30.0),
    target("flannel over bridge ADD", 5.0, 5.0),
    target("static ADD", 4.0, 4.0),
    target("bridge, 64 at once ADD", 5.0, 4.6),
    target("bridge and loopback, iptables cnitool add", 5.0, 3.0),
    target("bridge and loopback, nftables cnitool add", 5.0, 5.0),
    target("Podman's network cnitool add and cnitool del", 8.0, 3.1),
];

/// A verb may take that many times as long as the floor, which does the same in the same scenario.
pub(crate) const FLOOR: [(Verb, f64); 3] = [(Add, 1.35), (Check, 1.5), (Del, 1.1)];

/// Of these two rows of ours, the second may cost at most that many times the first.
pub(crate) const COMPARED: &[(&str, &str, f64)] = &[
    ("host-local, empty ADD", "host-local, 65,000 taken ADD", 1.5),
    ("host-local, empty ADD", "pool ADD", 1.5),
    ("bridge DEL", "flannel over bridge DEL", 1.5),
    ("portmap, nftables, 1 port ADD", "portmap, nftables, 100,000 foreign rules ADD", 1.5),
    ("portmap, nftables, 1 port DEL", "portmap, nftables, 100,000 foreign rules DEL", 1.5),
    ("1,000 attachments, cached results, a plain read", "1,000 attachments, cnitool list", 3.0),
    ("1,000 attachments, cached results and addresses, a plain read", "1,000 attachments, cnitool ipam usage", 3.0),
];

/// The rows of a plugin called directly and through cnitool. Their difference is the share of cnitool and libcni.
pub(crate) const THROUGH: [(&str, &str); 2] =
    [("bridge alone ADD", "bridge alone cnitool add"), ("bridge alone DEL", "bridge alone cnitool del")];

/// The largest allowed value of that share. libcni syncs its cache to the disk before an ADD ends; the plugin does not wait for the
/// disk.
pub(crate) const SHARE: f64 = 0.75;

/// A plugin's name that is a launcher, and one that is a hard link to the binary.
pub(crate) const LAUNCHED: (&str, &str) = ("launched bridge VERSION", "launched bridge VERSION by a hard link");

/// The most milliseconds that the launcher may add to a call: docs/adr/0023-launchers.md.
pub(crate) const LAUNCHER: f64 = 0.1;

/// The largest share of such a call that it added on any machine that was measured.
pub(crate) const LAUNCHER_USUAL: f64 = 0.25;

/// Without a log and with all of it.
pub(crate) const LOG: (&str, &str) = ("bridge ADD", "bridge, log at debug ADD");

/// The largest share of a call that log steps may take while the log is off. A measurement of the call would not show that little.
pub(crate) const LOG_OFF: f64 = 0.001;

/// The largest ratio of our memory to the smallest of the peers.
pub(crate) const MEMORY: f64 = 0.5;

/// The largest size of all our plugins on a disk with their launchers, in bytes.
pub(crate) const SIZE: u64 = 8 << 20;

/// How many times as long as the floor a verb may take: one call after another, because those that wait for each other multiply it.
pub(crate) fn over_floor(scenario: &Scenario, verb: Verb) -> Option<f64> {
    let limit = FLOOR.iter().find(|(limited, _)| *limited == verb);
    limit.filter(|_| scenario.at_once == 1).map(|(_, most)| *most)
}

/// The row of all of a scenario's verbs together, if it has one.
pub(crate) fn row_together(scenario: &Scenario) -> Option<String> {
    let verbs: Vec<&str> = scenario.rows.iter().map(|verb| verb.name()).collect();
    scenario.together.then(|| format!("{} {}", scenario.name, verbs.join(" and ")))
}

/// The row of a scenario's verb.
pub(crate) fn row(scenario: &Scenario, verb: Verb) -> String {
    format!("{} {}", scenario.name, verb.name())
}
