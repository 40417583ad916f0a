//! The configurations: every key of the contracts' tables for loopback, bridge, ptp, macvlan, ipvlan, vlan, dummy, tap,
//! host-device, host-local, static, tuning, bandwidth, sbr, vrf, firewall, portmap and flannel.

use std::path::Path;

use serde_json::{Value, json};

use super::UpstreamRelease;
use crate::campaign_subjects::{
    FIRST_VRF, INTERFACE, ROUTED_INTERFACE, TOWARD, addressed, bridge_result, interface_result, result_of_pair,
    routed_interface,
};
use crate::{MASTER, dual_stack};

/// One configuration, and the host on which it is played.
#[derive(Clone, Debug)]
pub struct Row {
    /// `PLUGIN/WHAT`.
    pub id: String,
    /// The plugin.
    pub plugin: &'static str,
    /// Its keys; `$DIR` is a directory of the host.
    keys: Value,
    /// `CNI_ARGS`.
    pub args: &'static str,
    /// A shell line that prepares the host.
    pub on_host: &'static str,
    /// A shell line that prepares the container.
    pub inside: &'static str,
    /// Release 1.1.1 does not support one of the keys.
    newest_only: bool,
    /// The plugins before a chained one assigned an IPv4 address only.
    ipv4_only: bool,
    /// Only the result of ADD and the visible state are compared.
    pub(super) answers_only: bool,
    /// A reservation that exists when DEL is called, and that the plugin may not read; none if empty. Only the outcome of each side
    /// on its own attachment is compared.
    pub(super) unreadable: &'static str,
    /// Its configuration as text, in which configured MACs are searched.
    text: String,
}

/// What `resolvConf` names.
pub(super) const RESOLV_CONF: &str =
    "nameserver 10.0.0.53\nnameserver fd00::53\nsearch a.example b.example\noptions ndots:2\n";

/// flanneld's file. Upstream's flannel, 0.9.0, supports one family only.
pub(super) const SUBNET_ENV: &str =
    "FLANNEL_NETWORK=10.76.0.0/15\nFLANNEL_SUBNET=10.77.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

/// Of whom there are rows.
const PLUGINS: [&str; 18] = [
    "bandwidth",
    "loopback",
    "bridge",
    "ptp",
    "macvlan",
    "ipvlan",
    "host-local",
    "static",
    "tuning",
    "sbr",
    "flannel",
    "firewall",
    "portmap",
    "vlan",
    "dummy",
    "tap",
    "host-device",
    "vrf",
];

fn row(id: &str, keys: Value) -> Row {
    let plugin = id.split_once('/').map(|(plugin, _)| plugin);
    let plugin = PLUGINS.into_iter().find(|known| plugin == Some(known)).unwrap();
    let text = keys.to_string();
    Row {
        id: id.to_owned(),
        plugin,
        keys,
        args: "",
        on_host: ":",
        inside: ":",
        newest_only: false,
        ipv4_only: false,
        answers_only: false,
        unreadable: "",
        text,
    }
}

impl Row {
    fn newest_only(mut self) -> Row {
        self.newest_only = true;
        self
    }

    fn args(mut self, args: &'static str) -> Row {
        self.args = args;
        self.text += args;
        self
    }

    fn on_host(self, on_host: &'static str) -> Row {
        Row { on_host, ..self }
    }

    fn inside(self, inside: &'static str) -> Row {
        Row { inside, ..self }
    }

    pub(super) fn is_known_to(&self, release: UpstreamRelease) -> bool {
        (!self.newest_only || release != UpstreamRelease::Packaged)
            && (self.plugin == "flannel") == (release == UpstreamRelease::WithFlannel)
    }

    /// The id of the delegate's row, whose differences occur here too.
    pub(super) fn delegated(&self) -> Option<&str> {
        self.id.strip_prefix("flannel/")
    }

    /// The network configuration for a host, in this version unless the row has one.
    pub(super) fn conf(&self, dir: &Path, version: &str) -> Value {
        let text = self.keys.to_string().replace("$DIR", &dir.display().to_string());
        let mut conf: Value = serde_json::from_str(&text).unwrap();
        for (key, value) in [("cniVersion", version), ("name", "testnet"), ("type", self.plugin)] {
            if conf.get(key).is_none() {
                conf[key] = value.into();
            }
        }
        if conf["ipam"]["type"] == "host-local" {
            conf["ipam"]["dataDir"] = json!(dir.join("leases"));
        }
        if ["tuning", "sbr", "vrf", "flannel", "host-device"].contains(&self.plugin) {
            conf["dataDir"] = json!(dir.join(self.plugin));
        }
        conf
    }

    /// The result of the plugins before a chained one, for a container whose namespace exists.
    pub(super) fn before(&self, netns: &str) -> Option<Value> {
        let answered = match self.plugin {
            "firewall" => bridge_result(),
            "portmap" => addressed(),
            "tuning" => interface_result(),
            "bandwidth" => result_of_pair(),
            "sbr" | "vrf" => routed_interface(),
            _ => return None,
        };
        let mut result: Value = serde_json::from_str(&answered.to_string().replace("$NETNS", netns)).unwrap();
        result["cniVersion"] = json!("1.0.0");
        result["interfaces"][1]["mtu"].take();
        if let (true, Some(ips)) = (self.ipv4_only, result["ips"].as_array_mut()) {
            ips.truncate(1);
        }
        Some(result)
    }

    /// A text with every MAC that is configured.
    pub(super) fn keeps(&self) -> &str {
        &self.text
    }

    /// DEL and CHECK get the result since 0.4.0, and CHECK exists since then.
    pub(super) fn knows_prev_result(&self) -> bool {
        self.keys["cniVersion"].as_str().is_none_or(|version| version >= "0.4.0")
            && self.keys.get("prevResult").is_none()
    }

    pub(super) fn knows_check(&self) -> bool {
        self.keys["cniVersion"].as_str().is_none_or(|version| version >= "0.4.0")
    }
}

fn v4() -> Value {
    json!({"type": "host-local", "subnet": "10.77.0.0/24"})
}

/// Both families, with routes.
fn routed(routes: Value) -> Value {
    let mut ipam = dual_stack();
    ipam["routes"] = routes;
    ipam
}

fn defaults() -> Value {
    json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}])
}

/// Every row that this machine's kernel can play.
pub fn rows() -> Vec<Row> {
    [
        loopback(),
        bridge_layer2(),
        bridge_layer3(),
        bridge_requested(),
        ptp(),
        macvlan(),
        tap(),
        host_device(),
        host_local(),
        written_down(),
        tuning(),
        bandwidth(),
        sbr(),
        firewall(),
        portmap(),
        flannel(),
    ]
    .concat()
}

fn loopback() -> Vec<Row> {
    let before = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "mac": "0a:00:00:00:00:07", "sandbox": "/a/b"}],
        "ips": [{"address": "10.9.9.9/24", "interface": 0}], "dns": {"domain": "a.example"}});
    vec![
        row("loopback/alone", json!({})),
        row("loopback/ignores-what-is-not-its-own", json!({"ipam": {"type": "none"}, "mtu": "x"})).args("none"),
        row("loopback/chained", json!({"cniVersion": "1.0.0", "prevResult": before})),
        row("loopback/without-ipv6", json!({})).inside("echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6"),
    ]
}

fn bridge_layer2() -> Vec<Row> {
    vec![
        row("bridge/layer-2", json!({})),
        row("bridge/named", json!({"bridge": "br-other"})),
        row("bridge/no-ipam-type", json!({"ipam": {}, "isGateway": true, "ipMasq": true})),
        row("bridge/mtu", json!({"mtu": 1400})),
        row("bridge/mtu-of-the-kernel", json!({"mtu": -1})),
        row("bridge/hairpin", json!({"hairpinMode": true})),
        row("bridge/promiscuous", json!({"promiscMode": true})),
        row("bridge/isolated", json!({"portIsolation": true})).newest_only(),
        row("bridge/left-down", json!({"disableContainerInterface": true})).newest_only(),
        row(
            "bridge/dns",
            json!({"dns": {"nameservers": ["10.0.0.53"], "domain": "a.example", "search": ["b"], "options": ["c"]}}),
        ),
        row("bridge/mac-in-args", json!({"args": {"cni": {"mac": "0a:00:00:00:00:01"}}})),
        row("bridge/mac-in-cni-args", json!({})).args("IgnoreUnknown=1;K8S_POD_NAME=p;MAC=0a:00:00:00:00:02"),
        row(
            "bridge/mac-in-runtime-config",
            json!({"capabilities": {"mac": true}, "runtimeConfig": {"mac": "0a:00:00:00:00:03"},
            "args": {"cni": {"mac": "0a:00:00:00:00:01"}}}),
        )
        .args("MAC=0a:00:00:00:00:02"),
        row("bridge/keys-in-any-case", json!({"BRIDGE": "br-other", "Mtu": 1300, "hairpinmode": true})),
        row("bridge/adopted", json!({"mtu": 1400})).on_host(
            "ip link add cni0 address 0a:00:00:00:00:0b mtu 1450 type bridge forward_delay 200 && ip link set cni0 up",
        ),
    ]
}

fn bridge_layer3() -> Vec<Row> {
    let bare = |keys: Value| {
        let mut keys = keys;
        keys["isGateway"] = json!(true);
        keys
    };
    vec![
        row("bridge/addresses-alone", json!({"ipam": dual_stack()})),
        row("bridge/gateway", bare(json!({"ipam": dual_stack()}))),
        row("bridge/default-gateway", json!({"isDefaultGateway": true, "ipam": dual_stack()})),
        row("bridge/default-gateway-of-one-family", json!({"isDefaultGateway": true, "ipam": v4()})),
        row(
            "bridge/routes",
            bare(json!({"ipam": routed(json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00:77::9"},
            {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}]))})),
        ),
        row(
            "bridge/routes-in-full",
            bare(json!({"ipam": routed(json!([{"dst": "10.9.0.0/16", "priority": 7},
            {"dst": "10.8.0.0/16", "table": 70}, {"dst": "fd09::/64", "priority": 8, "table": 71}]))})),
        )
        .newest_only(),
        row(
            "bridge/route-metrics",
            bare(json!({"ipam": routed(json!([{"dst": "10.9.0.0/16", "mtu": 1400, "advmss": 1360}]))})),
        )
        .newest_only(),
        row(
            "bridge/addresses-without-gateways",
            bare(json!({"ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}})),
        ),
        row(
            "bridge/dns-replaced",
            json!({"dns": {"search": []}, "ipam": {"type": "host-local", "subnet": "10.77.0.0/24",
            "resolvConf": "$DIR/resolv.conf"}}),
        ),
        row("bridge/node-that-forwards", json!({"isGateway": true, "ipam": dual_stack()}))
            .on_host("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"),
        row("bridge/detection", json!({"enabledad": true, "isGateway": true, "ipam": dual_stack()})),
        row("bridge/forced", json!({"isGateway": true, "forceAddress": true, "ipam": v4()}))
            .on_host("ip link add cni0 type bridge && ip address add 192.168.7.1/24 dev cni0 && ip link set cni0 up"),
        row("bridge/masquerade", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": dual_stack()})),
        row(
            "bridge/masquerade-nftables",
            json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
            "ipam": dual_stack()}),
        )
        .newest_only(),
        row(
            "bridge/masquerade-iptables",
            json!({"isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "ipam": dual_stack()}),
        )
        .newest_only(),
        row("bridge/macspoofchk", json!({"isGateway": true, "macspoofchk": true, "ipam": v4()})),
        row("bridge/macspoofchk-layer-2", json!({"macspoofchk": true})).args("MAC=0a:00:00:00:00:02"),
        row("bridge/ipv6-off", json!({"isDefaultGateway": true, "ipam": dual_stack()}))
            .inside("cd /proc/sys/net/ipv6/conf; for all in all default lo; do echo 1 > $all/disable_ipv6; done"),
    ]
}

/// Addresses of the host that are requested or configured for a container.
fn bridge_requested() -> Vec<Row> {
    vec![
        row(
            "bridge/requested-elsewhere",
            json!({"isGateway": true, "ipam": {"type": "static"}, "runtimeConfig": {"ips": ["10.99.0.9/16"]}}),
        ),
        row("bridge/requested-mac-of-the-bridge", json!({}))
            .args("MAC=0a:00:00:00:00:0b")
            .on_host("ip link add cni0 address 0a:00:00:00:00:0b type bridge && ip link set cni0 up"),
        row(
            "bridge/gateway-as-address",
            json!({"isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.1/24"}]}}),
        ),
    ]
}

fn ptp() -> Vec<Row> {
    vec![
        row("ptp/alone", json!({"ipam": v4()})),
        row("ptp/requested-elsewhere", json!({"ipam": {"type": "static"}}))
            .args("IgnoreUnknown=1;IP=10.99.0.9/16;GATEWAY=10.99.0.1"),
        row("ptp/both-families", json!({"ipam": dual_stack()})),
        row("ptp/mtu", json!({"mtu": 1400, "ipam": v4()})),
        row("ptp/mtu-of-the-kernel", json!({"mtu": 0, "ipam": v4()})),
        row("ptp/default-routes", json!({"ipam": routed(defaults())})),
        row(
            "ptp/routes",
            json!({"ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "routes": [{"dst": "0.0.0.0/0"},
            {"dst": "10.9.0.0/16", "gw": "10.77.0.1"}]}}),
        ),
        row(
            "ptp/routes-in-full",
            json!({"ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "routes": [
            {"dst": "10.9.0.0/16", "priority": 7}]}}),
        )
        .newest_only(),
        row(
            "ptp/dns",
            json!({"dns": {"nameservers": ["10.0.0.53"]}, "ipam": {"type": "host-local", "subnet": "10.77.0.0/24",
            "resolvConf": "$DIR/resolv.conf"}}),
        ),
        row(
            "ptp/gateway-elsewhere",
            json!({"ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24",
            "gateway": "169.254.1.1"}]}}),
        ),
        row(
            "ptp/two-networks",
            json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}],
            [{"subnet": "10.78.0.0/24"}]]}}),
        ),
        row("ptp/masquerade-iptables", json!({"ipMasq": true, "ipMasqBackend": "iptables", "ipam": dual_stack()}))
            .newest_only(),
        row("ptp/masquerade", json!({"ipMasq": true, "ipam": dual_stack()})),
        row("ptp/masquerade-nftables", json!({"ipMasq": true, "ipMasqBackend": "nftables", "ipam": dual_stack()}))
            .newest_only(),
    ]
}

fn on_master(id: &str, mut keys: Value) -> Row {
    keys["master"] = json!("master0");
    row(id, keys).on_host(MASTER)
}

fn macvlan() -> Vec<Row> {
    let of_v4 = |id: &str, mut keys: Value| {
        keys["ipam"] = v4();
        on_master(id, keys)
    };
    let dns = json!({"type": "host-local", "subnet": "10.77.0.0/24", "resolvConf": "$DIR/resolv.conf"});
    let mut rows = vec![
        on_master("macvlan/layer-2", json!({})),
        on_master("macvlan/both-families", json!({"ipam": routed(defaults())})),
        of_v4("macvlan/private", json!({"mode": "private"})),
        of_v4("macvlan/vepa", json!({"mode": "vepa"})),
        of_v4("macvlan/passthru", json!({"mode": "passthru"})),
        of_v4("macvlan/mtu", json!({"mtu": 1400})),
        of_v4("macvlan/bcqueuelen", json!({"bcqueuelen": 50})).newest_only(),
        of_v4("macvlan/mac", json!({"mac": "0a:00:00:00:00:01"})),
        of_v4("macvlan/mac-in-cni-args", json!({"mac": "0a:00:00:00:00:01"})).args("IgnoreUnknown=1;MAC=0a:00:00:00:00:02"),
        of_v4("macvlan/mac-in-runtime-config", json!({"runtimeConfig": {"mac": "0a:00:00:00:00:03"}}))
            .args("IgnoreUnknown=1;MAC=0a:00:00:00:00:02"),
        of_v4("macvlan/dns", json!({"dns": {"nameservers": ["10.0.0.53"]}})),
        on_master("macvlan/dns-of-the-ipam-plugin", json!({"ipam": dns})),
        row("macvlan/default-route", json!({"ipam": v4()}))
            .on_host("ip link add up0 type veth peer name p0 && ip link set p0 up && ip link set up0 up && ip route add default dev up0"),
        row("macvlan/link-in-container", json!({"master": "inner0", "linkInContainer": true, "ipam": v4()}))
            .inside("ip link add inner0 type veth peer name p0 && ip link set p0 up && ip link set inner0 up")
            .newest_only(),
    ];
    // Each link's own address is under detection for a second or two.
    rows.iter_mut().skip(3).for_each(|row| row.answers_only = true);
    rows
}

/// Upstream's releases before 1.3.0 have no such plugin.
fn tap() -> Vec<Row> {
    let dns = json!({"type": "host-local", "subnet": "10.77.0.0/24", "resolvConf": "$DIR/resolv.conf"});
    let owned = json!({"owner": 1000, "group": 1001});
    let mut with_queues = owned.clone();
    with_queues["multiQueue"] = json!(true);
    let mut with_mac = owned.clone();
    with_mac["mac"] = json!("0a:00:00:00:00:01");
    with_mac["mtu"] = json!(1400);
    let mut rows = vec![
        row("tap/layer-2", json!({})),
        row("tap/addresses", json!({"ipam": v4()})),
        row("tap/mtu-and-mac", json!({"mtu": 1400, "mac": "0a:00:00:00:00:01"})),
        row(
            "tap/mac-in-runtime-config",
            json!({"mac": "0a:00:00:00:00:01", "runtimeConfig": {"mac": "0a:00:00:00:00:03"}}),
        )
        .args("IgnoreUnknown=1;MAC=0a:00:00:00:00:02"),
        row("tap/owner", json!({"owner": 0})),
        row("tap/group", json!({"group": 0, "multiQueue": true})),
        row("tap/owner-and-group", owned),
        row("tap/owner-and-group-and-queues", with_queues),
        row("tap/owner-and-group-with-mac", with_mac),
        row("tap/bridge", json!({"bridge": "inner0"})).inside("ip link add inner0 type bridge"),
        row("tap/name-taken", json!({})).inside("ip link add eth0 address 0a:00:00:00:00:09 type bridge"),
        row("tap/dns", json!({"dns": {"nameservers": ["10.0.0.53"]}, "ipam": v4()})),
        row("tap/dns-of-the-ipam-plugin", json!({"ipam": dns})),
    ];
    rows.iter_mut().for_each(|row| row.newest_only = true);
    rows
}

/// Of the kinds without hardware that a container cannot have made to get it to the host.
const SPARE: &str = "ip link add dev0 address 02:00:5e:10:00:01 type ifb";
const SPARE_IN_USE: &str = "ip link add dev0 address 02:00:5e:10:00:01 type ifb && ip link set dev0 alias spare mtu 1400 && \
    ip link property add dev dev0 altname a-spare-device && ip address add 10.66.0.1/24 dev dev0 && ip link set dev0 up";

fn host_device() -> Vec<Row> {
    let dns = json!({"type": "host-local", "subnet": "10.77.0.0/24", "resolvConf": "$DIR/resolv.conf"});
    let of = |id: &str, keys: Value| row(id, keys).on_host(SPARE);
    vec![
        of("host-device/layer-2", json!({"device": "dev0"})),
        of("host-device/hwaddr", json!({"hwaddr": "02:00:5e:10:00:01"})),
        row("host-device/in-use", json!({"device": "dev0"})).on_host(SPARE_IN_USE),
        row("host-device/altname", json!({"device": "a-spare-device", "ipam": v4()})).on_host(SPARE_IN_USE),
        of("host-device/addresses", json!({"device": "dev0", "ipam": v4()})),
        of("host-device/both-families", json!({"device": "dev0", "ipam": routed(defaults())})),
        of("host-device/dns", json!({"device": "dev0", "dns": {"nameservers": ["10.0.0.53"]}, "ipam": v4()})),
        of("host-device/dns-of-the-ipam-plugin", json!({"device": "dev0", "ipam": dns})),
        of("host-device/in-user-space", json!({"dpdkMode": true, "device": "dev0", "ipam": v4()})).newest_only(),
    ]
}

fn host_local() -> Vec<Row> {
    let with = |ipam: Value| {
        let mut ipam = ipam;
        ipam["type"] = json!("host-local");
        json!({"ipam": ipam})
    };
    let plain = || with(json!({"subnet": "10.77.0.0/24"}));
    let and = |mut conf: Value, key: &str, value: Value| {
        conf[key] = value;
        conf
    };
    vec![
        row("host-local/subnet", plain()),
        row(
            "host-local/part-of-a-subnet",
            with(json!({"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.20", "rangeEnd": "10.77.0.30",
            "gateway": "10.77.0.254"})),
        ),
        row(
            "host-local/smallest",
            with(json!({"ranges": [[{"subnet": "10.77.0.0/30"}], [{"subnet": "fd00:77::/126"}]]})),
        ),
        row(
            "host-local/old-and-new-spelling",
            with(json!({"subnet": "10.76.0.0/24", "ranges": [[{"subnet": "10.77.0.0/24"}]]})),
        ),
        row(
            "host-local/sets-of-ranges",
            with(json!({"ranges": [[{"subnet": "10.77.0.0/30", "rangeStart": "10.77.0.2"},
            {"subnet": "10.78.0.0/24", "rangeStart": "10.78.0.9", "gateway": "10.78.0.7"}], [{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::10"}]]})),
        ),
        row("host-local/gateway-outside", with(json!({"subnet": "10.77.0.0/24", "gateway": "192.168.0.1"}))),
        row(
            "host-local/routes",
            with(
                json!({"subnet": "10.77.0.0/24", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}]}),
            ),
        ),
        row(
            "host-local/routes-in-full",
            with(json!({"subnet": "10.77.0.0/24", "routes": [{"dst": "10.9.0.0/16", "mtu": 1400,
            "advmss": 1360, "priority": 7, "table": 70, "scope": 253}]})),
        )
        .newest_only(),
        row("host-local/resolv-conf", with(json!({"subnet": "10.77.0.0/24", "resolvConf": "$DIR/resolv.conf"}))),
        row("host-local/asked-in-cni-args", plain()).args("IP=10.77.0.40"),
        row("host-local/asked-in-args", and(plain(), "args", json!({"cni": {"ips": ["10.77.0.41/28"]}}))),
        row("host-local/asked-in-runtime-config", and(plain(), "runtimeConfig", json!({"ips": ["10.77.0.42/24"]}))),
        row(
            "host-local/ranges-in-runtime-config",
            and(plain(), "runtimeConfig", json!({"ipRanges": [[{"subnet": "10.79.0.0/24"}]]})),
        ),
        Row { unreadable: "10.77.0.99", ..row("host-local/unreadable", plain()) },
        row("host-local/old-version", and(plain(), "cniVersion", json!("0.2.0"))),
    ]
}

/// These keys with static and these addresses.
fn with_static(addresses: Value, mut keys: Value) -> Value {
    keys["ipam"]["type"] = json!("static");
    keys["ipam"]["addresses"] = addresses;
    keys
}

/// static, with addresses in every place where they can be configured.
fn written_down() -> Vec<Row> {
    let one = || json!([{"address": "10.77.0.5/24"}]);
    let both = json!([{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}, {"address": "fd00:77::5/64", "gateway": "fd00:77::1"}]);
    let args = json!({"args": {"cni": {"ips": ["10.76.0.2/24"]}}});
    let runtime = json!({"args": {"cni": {"ips": ["10.76.0.2/24"]}}, "runtimeConfig": {"ips": ["10.75.0.2/24", "fd00:75::2/64"]}});
    let dns = json!({"nameservers": ["10.0.0.53"], "domain": "a.example", "search": ["b"], "options": ["ndots:2"]});
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}]);
    let full = json!([{"dst": "10.9.0.0/16", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 70, "scope": 253}]);
    let own = "IP=10.77.1.5/24, 10.77.1.6/24,fd00:78::5/64;GATEWAY=10.77.1.1,10.77.1.2, fd00:78::1,192.0.2.1";
    vec![
        row("static/both-families", with_static(both.clone(), json!({}))),
        row(
            "static/routes-and-dns",
            with_static(both, json!({"ipam": {"routes": routes, "dns": dns}, "dns": {"domain": "x"}})),
        ),
        row("static/routes-in-full", with_static(one(), json!({"ipam": {"routes": full}}))).newest_only(),
        row(
            "static/gateway-elsewhere",
            with_static(json!([{"address": "10.77.0.5/32", "gateway": "169.254.1.1"}]), json!({})),
        ),
        row("static/mapped", with_static(json!([{"address": "::ffff:10.77.0.5/120"}]), json!({}))),
        row("static/without-an-address", with_static(json!([]), json!({}))),
        row("static/twice", with_static(json!([{"address": "10.77.0.5/24"}, {"address": "10.77.0.5/24"}]), json!({}))),
        row("static/cni-args", with_static(one(), json!({}))).args(own),
        row("static/cni-args-that-are-not-its-own", with_static(one(), json!({})))
            .args("IgnoreUnknown=1;K8S_POD_NAME=p;IP=10.77.0.6/24"),
        row("static/cni-args-without-a-value", with_static(one(), json!({}))).args("IP=;GATEWAY="),
        row("static/gateway-of-a-configured-address", with_static(one(), json!({}))).args("GATEWAY=10.77.0.1"),
        row("static/args", with_static(one(), args)).args("IP=10.77.1.5/24;GATEWAY=10.77.1.1"),
        row("static/runtime-config", with_static(json!([{"address": "replaced"}]), runtime)).args("IP=10.77.1.5/24"),
        row(
            "static/empty-lists-replace-nothing",
            with_static(one(), json!({"args": {"cni": {"ips": []}}, "runtimeConfig": {"ips": []}})),
        ),
        row(
            "static/old-version",
            with_static(
                json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]),
                json!({"cniVersion": "0.2.0"}),
            ),
        ),
    ]
}

fn firewall() -> Vec<Row> {
    let with = |mut keys: Value| {
        keys["backend"] = json!("iptables");
        keys
    };
    let rows = vec![
        row("firewall/open", with(json!({}))),
        row("firewall/admin-chain", with(json!({"iptablesAdminChainName": "SITE-RULES"}))),
        row("firewall/unknown-backend", json!({"backend": "ipfw"})),
        row("firewall/same-bridge", with(json!({"ingressPolicy": "same-bridge"}))).newest_only(),
        row("firewall/isolated", with(json!({"ingressPolicy": "isolated"}))).newest_only(),
    ];
    rows.into_iter().map(|row| row.on_host("ip link add cni0 type bridge").inside(INTERFACE)).collect()
}

fn portmap() -> Vec<Row> {
    let mapping = |host: u16, container: u16, protocol: &str| json!({"hostPort": host, "containerPort": container, "protocol": protocol});
    let both = json!([mapping(8080, 80, "tcp"), mapping(5353, 53, "udp")]);
    let at = |address: &str| json!({"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": address});
    let addresses = json!([at("192.0.2.1"), at("2001:db8::1"), mapping(8080, 80, "tcp")]);
    let with = |keys: Value, mappings: &Value| {
        let mut keys = keys;
        keys["runtimeConfig"] = json!({"portMappings": mappings});
        keys
    };
    let of = |backend: &str, id: &str, mut keys: Value, mappings: &Value| {
        keys["backend"] = json!(backend);
        row(&format!("portmap/{backend}{id}"), with(keys, mappings))
    };
    let iptables = |id: &str, keys: Value| of("iptables", id, keys, &both);
    let nftables = |id: &str, keys: Value| of("nftables", id, keys, &both).newest_only();
    let rows = vec![
        row("portmap/nothing", json!({})),
        row("portmap/no-backend", with(json!({}), &both)),
        iptables("", json!({})),
        Row { ipv4_only: true, ..iptables("/ipv4", json!({})) },
        of("iptables", "/host-ip", json!({}), &addresses),
        Row { ipv4_only: true, ..of("iptables", "/host-ip-ipv4", json!({}), &json!([at("192.0.2.1"), at("0.0.0.0")])) },
        iptables("/no-snat", json!({"snat": false})),
        iptables("/everybody", json!({"masqAll": true})).newest_only(),
        iptables("/mark", json!({"markMasqBit": 5})),
        iptables("/external-chain", json!({"externalSetMarkChain": "SITE-MARK"})).on_host(TOWARD_AND_MARK),
        of("iptables", "/of-loopback", json!({"snat": false}), &json!([at("127.0.0.1")])),
        of("iptables", "/of-ipv6-loopback", json!({}), &json!([at("::1")])),
        iptables("/list", json!({"conditionsV4": ["-s", "10.0.0.1,10.0.0.2"]})),
        iptables("/conditions", json!({"conditionsV4": ["-s", "10.0.0.0/8"], "conditionsV6": ["!", "-i", "eth9"]})),
        iptables("/options", json!({"conditionsV4": ["--modprobe=/bin/true"]})),
        nftables("", json!({})),
        Row { ipv4_only: true, ..nftables("/ipv4", json!({})) },
        of("nftables", "/host-ip", json!({}), &addresses).newest_only(),
        nftables("/no-snat", json!({"snat": false})),
        nftables("/everybody", json!({"masqAll": true})),
        nftables("/conditions", json!({"conditionsV4": ["ip saddr 10.0.0.0/8"]})),
        nftables("/list", json!({"conditionsV4": ["ip saddr { 10.0.0.1, 10.0.0.2 }"]})),
        of("nftables", "/of-loopback", json!({"snat": false}), &json!([at("127.0.0.1")])).newest_only(),
        of("nftables", "/of-ipv6-loopback", json!({}), &json!([at("::1")])).newest_only(),
    ];
    let on_host = |row: &Row| if row.on_host == ":" { TOWARD } else { row.on_host };
    rows.into_iter().map(|row| row.clone().on_host(on_host(&row)).inside(INTERFACE)).collect()
}

/// An operator's own rules, which masquerade marked packets.
const TOWARD_AND_MARK: &str = "ip link add toward0 type bridge && ip link set toward0 up && \
    ip address add 10.77.0.1/24 dev toward0 && for of in iptables ip6tables; do \
    $of -t nat -N SITE-MARK && $of -t nat -A SITE-MARK -j MARK --set-xmark 0x4000/0x4000 || exit; done";

fn tuning() -> Vec<Row> {
    let mac = "0a:00:00:00:00:07";
    let all = json!({"mac": mac, "mtu": 1400, "promisc": true, "allmulti": true});
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_notify": "1", "net/core/somaxconn": "100", "net.ipv4.conf.all.arp_filter": "1"});
    let rows = vec![
        row("tuning/nothing", json!({})),
        row("tuning/as-it-is", json!({"mtu": 1500})),
        row("tuning/link", all.clone()),
        row("tuning/queue", json!({"txQLen": 500})).newest_only(),
        row("tuning/link-in-args", json!({"mtu": 1300, "args": {"cni": all}})),
        row(
            "tuning/link-switched-off",
            json!({"promisc": true, "allmulti": true,
            "args": {"cni": {"promisc": false, "allmulti": false, "mtu": 1400}}}),
        ),
        row("tuning/mac-in-cni-args", json!({"mac": "0a:00:00:00:00:08"}))
            .args("MAC=0a:00:00:00:00:07;IgnoreUnknown=1"),
        row("tuning/mac-in-runtime-config", json!({"capabilities": {"mac": true}, "runtimeConfig": {"mac": mac}}))
            .args("MAC=0a:00:00:00:00:09"),
        row("tuning/mac-taken-away", json!({"mac": mac, "args": {"cni": {"mac": ""}}})),
        row("tuning/sysctl", json!({"sysctl": sysctl})),
        row(
            "tuning/sysctl-in-args",
            json!({"sysctl": sysctl, "args": {"cni": {"sysctl": {"net/core/somaxconn": "99"}}}}),
        ),
        row(
            "tuning/sysctl-as-the-kernel-writes-it",
            json!({"sysctl": {"net.ipv4.ip_local_port_range": "20000 30000"}}),
        ),
    ];
    rows.into_iter().map(|row| row.inside(INTERFACE)).collect()
}

fn sbr() -> Vec<Row> {
    let rows = vec![
        row("sbr/automatic", json!({})),
        row("sbr/ipv4-only", json!({})),
        row("sbr/table", json!({"table": 300})).newest_only(),
    ];
    let mut rows: Vec<Row> = rows.into_iter().map(|row| row.inside(ROUTED_INTERFACE)).collect();
    rows[1].ipv4_only = true;
    rows
}

/// A veth pair as another plugin makes it.
const PAIR: &str = "ip link add eth0 address 0a:00:00:00:00:01 type veth peer name toward0 netns $HOST && \
    ip link set eth0 up && nsenter --net=$HOST ip link set toward0 address 0a:00:00:00:00:02 up";

fn bandwidth() -> Vec<Row> {
    let ingress = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000});
    let both =
        json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 24_000_000, "egressBurst": 80_000});
    let wide = json!({"egressRate": 80_000_000_000_u64, "egressBurst": 8_000_000});
    let rows = vec![
        row("bandwidth/nothing", json!({})),
        row("bandwidth/zero", json!({"ingressRate": 0, "egressBurst": 0})),
        row("bandwidth/ingress", ingress.clone()),
        row("bandwidth/both", both.clone()),
        row(
            "bandwidth/of-the-runtime",
            json!({"capabilities": {"bandwidth": true}, "runtimeConfig": {"bandwidth": both}}),
        ),
        row("bandwidth/64-bits", wide),
        row("bandwidth/before-the-runtimes", {
            let mut keys = ingress;
            keys["runtimeConfig"] = json!({"bandwidth": both});
            keys
        }),
        Row {
            answers_only: true,
            ..row("bandwidth/small-burst", json!({"ingressRate": 8_000_000, "ingressBurst": 8_000}))
        },
    ];
    rows.into_iter().map(|row| row.inside(PAIR)).collect()
}

fn flannel() -> Vec<Row> {
    let over = |id: &str, delegate: Value, mut keys: Value| {
        (keys["delegate"], keys["subnetFile"], keys["ipam"]["type"]) =
            (delegate, json!("$DIR/subnet.env"), json!("host-local"));
        row(&format!("flannel/{id}"), keys)
    };
    let none = || json!({});
    vec![
        over("bridge/masquerade", none(), none()),
        over("bridge/default-gateway", json!({"isDefaultGateway": true, "hairpinMode": true, "ipMasq": false}), none()),
        over("bridge/layer-2", json!({"type": "bridge", "isGateway": false, "mtu": 1400, "ipMasq": false}), none()),
        over(
            "bridge/routes",
            json!({"bridge": "br-other", "ipMasq": false}),
            json!({"ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}]}}),
        ),
        over(
            "bridge/mac-in-runtime-config",
            json!({"ipMasq": false}),
            json!({"capabilities": {"mac": true}, "runtimeConfig": {"mac": "0a:00:00:00:00:03"}}),
        ),
        over("bridge/mac-in-cni-args", json!({"ipMasq": false}), none()).args("IgnoreUnknown=1;MAC=0a:00:00:00:00:02"),
        over("ptp/alone", json!({"type": "ptp", "ipMasq": false}), none()),
        over("host-local/subnet", json!({"type": "host-local"}), none()),
    ]
}

/// The rows that need a kernel with ipvlan.
pub fn ipvlans() -> Vec<Row> {
    let before = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "master0"}],
        "ips": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1", "interface": 0}], "routes": [{"dst": "0.0.0.0/0"}]});
    let mut rows = vec![
        on_master("ipvlan/v4", json!({"ipam": v4()})),
        row("ipvlan/chained", json!({"cniVersion": "1.0.0", "prevResult": before})).on_host(MASTER),
    ];
    rows.iter_mut().skip(1).for_each(|row| row.answers_only = true);
    rows
}

/// The rows that need a kernel with VLANs on top of links.
pub fn vlan_links() -> Vec<Row> {
    let dns = json!({"type": "host-local", "subnet": "10.77.0.0/24", "resolvConf": "$DIR/resolv.conf"});
    let mut rows = vec![
        on_master("vlan/both-families", json!({"vlanId": 7, "mtu": 1400, "ipam": routed(defaults())})),
        on_master("vlan/dns", json!({"vlanId": 7, "dns": {"nameservers": ["10.0.0.53"]}, "ipam": v4()})),
        on_master("vlan/dns-of-the-ipam-plugin", json!({"vlanId": 4094, "ipam": dns})),
        on_master("vlan/number-0", json!({"vlanId": 0, "ipam": v4()})),
        on_master("vlan/without-a-number", json!({"ipam": v4()})),
        row("vlan/link-in-container", json!({"master": "inner0", "linkInContainer": true, "vlanId": 7, "ipam": v4()}))
            .inside("ip link add inner0 type veth peer name p0 && ip link set p0 up && ip link set inner0 up")
            .newest_only(),
    ];
    rows.iter_mut().skip(1).for_each(|row| row.answers_only = true);
    rows
}

/// The rows that need a kernel with dummies. Older releases have no such plugin.
pub fn dummies() -> Vec<Row> {
    let dns = json!({"type": "host-local", "subnet": "10.77.0.0/24", "resolvConf": "$DIR/resolv.conf"});
    let mut rows = vec![
        row("dummy/both-families", json!({"ipam": dual_stack()})).newest_only(),
        row("dummy/dns", json!({"dns": {"domain": "a.example"}, "ipam": dns})).newest_only(),
    ];
    rows.iter_mut().skip(1).for_each(|row| row.answers_only = true);
    rows
}

/// The rows that need a kernel with VRFs. The table is chosen from 1 on, or configured.
pub fn vrfs() -> Vec<Row> {
    // It lives as long as the test program.
    let inside: &'static str = format!("{FIRST_VRF}; {ROUTED_INTERFACE}").leak();
    let mut rows = vec![
        row("vrf/automatic", json!({"vrfname": "red"})),
        row("vrf/table", json!({"vrfname": "red", "table": 300})),
    ];
    for row in &mut rows {
        row.inside = inside;
    }
    rows[1].answers_only = true;
    rows
}

/// These keys with a gateway of both families.
fn with_gateway(mut keys: Value) -> Value {
    keys["isGateway"] = json!(true);
    keys["ipam"] = dual_stack();
    keys
}

/// The rows that need a kernel with VLAN filtering of bridges.
pub fn vlans() -> Vec<Row> {
    let mut rows = vec![
        row("bridge/vlan", json!({"vlan": 100})),
        row("bridge/vlan-gateway", with_gateway(json!({"vlan": 100}))),
        row("bridge/vlan-kept-default", json!({"vlan": 100, "preserveDefaultVlan": true})).newest_only(),
        row("bridge/vlan-trunk", json!({"vlanTrunk": [{"id": 7}, {"minID": 10, "maxID": 12}, {"id": 11}]}))
            .newest_only(),
        row("bridge/vlan-and-trunk", json!({"vlan": 100, "vlanTrunk": [{"minID": 10, "maxID": 12, "id": 20}]}))
            .newest_only(),
        row("bridge/vlan-trunk-kept-default", json!({"vlanTrunk": [{"id": 7}], "preserveDefaultVlan": true}))
            .newest_only(),
        row("bridge/vlan-trunk-of-nothing", json!({"vlanTrunk": [{}]})).newest_only(),
        row("bridge/vlan-trunk-gateway", with_gateway(json!({"vlanTrunk": [{"id": 7}]}))).newest_only(),
        row("bridge/vlan-on-a-flat-bridge", json!({"vlan": 100}))
            .on_host("ip link add cni0 type bridge && ip link set cni0 up"),
    ];
    // On the kernel that supports VLANs, a virtual machine, everything is slow.
    rows.iter_mut().skip(2).for_each(|row| row.answers_only = true);
    rows
}

/// One comprehensive row in each version of the specification that the release supports.
pub fn versions() -> Vec<Row> {
    let mut rows = Vec::new();
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut ipam = routed(json!([{"dst": "10.9.0.0/16", "gw": "10.77.0.9"}]));
        ipam["resolvConf"] = json!("$DIR/resolv.conf");
        let keys = |keys: Value| {
            let mut keys = keys;
            keys["cniVersion"] = json!(version);
            keys["ipam"] = ipam.clone();
            keys
        };
        let both = [
            row(&format!("bridge/in-{version}"), keys(json!({"isDefaultGateway": true, "mtu": 1400}))),
            row(&format!("ptp/in-{version}"), keys(json!({"mtu": 1400}))),
        ];
        rows.extend(
            both.map(|row| Row { answers_only: true, ..row })
                .map(|row| if version == "1.1.0" { row.newest_only() } else { row }),
        );
    }
    rows
}
