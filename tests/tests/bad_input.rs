//! A table of everything that can be wrong with a call: each has its code and a part of its message, is reported as one document,
//! and makes nothing.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use cnikit_testkit::life::SHARED;
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot};
use cnikit_tests::schema::Schema;
use cnikit_tests::{bin, flannel, program};
use serde_json::{Map, Value, json};

/// One bad call. The fields that it leaves empty have correct values.
struct Bad {
    plugins: &'static [&'static str],
    verb: &'static str,
    /// Variables other than usual. `None` is unset.
    env: Vec<(&'static str, Option<String>)>,
    stdin: Stdin,
    code: u64,
    says: String,
}

enum Stdin {
    /// The plugin's configuration with these pointers (RFC 6901) set.
    With(Vec<(String, Value)>),
    /// These bytes, made when they are needed.
    Raw(fn() -> Vec<u8>),
}

const ALL: &[&str] = &[
    "bandwidth",
    "bridge",
    "ptp",
    "macvlan",
    "ipvlan",
    "loopback",
    "flannel",
    "host-local",
    "static",
    "pool",
    "tuning",
    "sbr",
    "vrf",
    "firewall",
    "portmap",
    "dummy",
    "vlan",
    "tap",
    "host-device",
    "dhcp",
];
/// They enter the container, or have its path to be entered.
const MAIN: &[&str] = &[
    "bridge",
    "ptp",
    "macvlan",
    "ipvlan",
    "vlan",
    "dummy",
    "tap",
    "host-device",
    "loopback",
    "flannel",
    "tuning",
    "sbr",
    "vrf",
    "firewall",
    "portmap",
    "bandwidth",
    "dhcp",
];
const ASKING_IPAM: &[&str] = &["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy", "tap", "host-device"];
const TAKING_AN_MTU: &[&str] = &["bridge", "ptp", "macvlan", "ipvlan", "vlan", "tap"];
const TAKING_DNS: &[&str] = TAKING_AN_MTU;
const MASQUERADING: &[&str] = &["bridge", "ptp"];
const ON_A_MASTER: &[&str] = &["macvlan", "ipvlan", "vlan"];
const OF_A_MODE: &[&str] = &["macvlan", "ipvlan"];
const KNOWING_ARGS: &[&str] = &["bridge", "macvlan", "host-local", "static", "pool", "tap", "tuning"];
const IPAM: &[&str] = &["host-local", "static", "pool"];
const POOL: &[&str] = &["pool"];
const DHCP: &[&str] = &["dhcp"];
const TUNING: &[&str] = &["tuning"];
const SBR: &[&str] = &["sbr"];
const VRF: &[&str] = &["vrf"];
const HOST_DEVICE: &[&str] = &["host-device"];
const BANDWIDTH: &[&str] = &["bandwidth"];
const FIREWALL: &[&str] = &["firewall"];

/// A host on which no call may make anything, and the objects that calls refer to.
struct Scene {
    host: Host,
    container: Container,
    file: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let host = Host::new();
        host.sh("ip link add dev0 type ifb");
        let file = host.dir().join("a file");
        std::fs::write(&file, "").unwrap();
        Scene { container: host.container(), file, host }
    }

    /// A valid configuration.
    fn conf(&self, plugin: &str) -> Value {
        let leases = self.host.dir().join("leases");
        let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]);
        let ipam = json!({"type": "host-local", "dataDir": leases, "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]});
        let mut conf = json!({"cniVersion": "1.1.0", "name": "badnet", "type": plugin});
        let addresses = json!([{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}]);
        let written = json!({"type": "static", "addresses": addresses, "routes": [{"dst": "0.0.0.0/0"}]});
        match plugin {
            "loopback" | "firewall" | "portmap" => {}
            "tuning" | "sbr" => conf["dataDir"] = json!(self.host.dir().join(plugin)),
            "vrf" => {
                conf["vrfname"] = json!("red");
                conf["dataDir"] = json!(self.host.dir().join("vrf"));
            }
            "static" => conf["ipam"] = written,
            "pool" => {
                let dir = self.host.dir();
                conf["ipam"] = json!({"type": "pool", "pool": "blue", "dataDir": leases, "agentSocket": dir.join("agent.sock"),
                    "agentConfig": dir.join("agent.json"), "families": ["v4"], "allowedPools": ["red"], "routes": [{"dst": "0.0.0.0/0"}]});
            }
            "dhcp" => {
                let dir = self.host.dir();
                conf["ipam"] = json!({"type": "dhcp", "daemonSocketPath": dir.join("dhcp.sock"), "dataDir": dir.join("dhcp"),
                    "families": ["v4"], "provide": [{"option": "host-name", "value": "x"}], "request": [{"option": "66"}]});
            }
            _ => conf["ipam"] = ipam,
        }
        if plugin == "flannel" {
            conf["subnetFile"] = flannel().conf["subnetFile"].clone();
            conf["dataDir"] = json!(self.host.dir().join("flannel"));
        }
        if ON_A_MASTER.contains(&plugin) {
            conf["master"] = json!("lo"); // which is there, and is up to every MTU
        }
        if plugin == "vlan" {
            conf["vlanId"] = json!(7);
        }
        if plugin == "host-device" {
            conf["device"] = json!("dev0");
            conf["dataDir"] = json!(self.host.dir().join("devices"));
        }
        conf
    }

    fn prev(&self) -> Value {
        json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": self.container.path()}],
               "ips": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1", "interface": 0}], "routes": [], "dns": {}})
    }

    /// The configuration that a call has, if the reason of its refusal is in the configuration.
    fn refused_conf(&self, plugin: &str, bad: &Bad) -> Option<Value> {
        let Stdin::With(changes) = &bad.stdin else { return None };
        // With the other verbs it may be the verb that the configuration does not have.
        let is_of_gc = bad.verb == "GC" && changes.iter().all(|(pointer, _)| pointer.starts_with("/cni.dev"));
        if changes.is_empty() || !bad.env.is_empty() || !(bad.verb == "ADD" || is_of_gc) {
            return None;
        }
        let mut conf = self.conf(plugin);
        for (pointer, value) in changes {
            set(&mut conf, pointer, value.clone());
        }
        Some(conf)
    }

    fn call(&self, plugin: &str, bad: &Bad) -> CallOutput {
        let stdin = match &bad.stdin {
            Stdin::Raw(bytes) => bytes(),
            Stdin::With(changes) => {
                let mut conf = self.conf(plugin);
                if bad.verb == "CHECK" && !bad.says.contains("prevResult missing") {
                    conf["prevResult"] = self.prev();
                }
                if bad.verb == "GC" {
                    conf["cni.dev/valid-attachments"] = json!([{"containerID": "c", "ifname": "eth0"}]);
                }
                for (pointer, value) in changes {
                    set(&mut conf, pointer, value.clone());
                }
                conf.to_string().into_bytes()
            }
        };
        self.run(plugin, bad.verb, &bad.env, &stdin)
    }

    fn run(&self, plugin: &str, verb: &str, env: &[(&'static str, Option<String>)], stdin: &[u8]) -> CallOutput {
        let usual = [
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", "c-bad".to_owned()),
            ("CNI_NETNS", self.container.path()),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_PATH", bin().display().to_string()),
        ];
        let changed = |name: &str| env.iter().any(|(changed, _)| *changed == name);
        let kept = usual.into_iter().filter(|(name, _)| !changed(name));
        let set = env.iter().filter_map(|(name, value)| Some((*name, value.clone()?)));
        let env: Vec<(String, String)> = kept.chain(set).map(|(name, value)| (name.to_owned(), value)).collect();
        let (exit, stdout, stderr) = self.host.run(&bin().join(plugin), &env, stdin);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CallOutput { exit, stdout: text(stdout), stderr: text(stderr) }
    }

    /// The output of `CNI_COMMAND=PLAN` for a configuration.
    fn plan(&self, plugin: &str, conf: &str) -> Value {
        self.run(plugin, "PLAN", &[], conf.as_bytes()).ok()
    }
}

/// Sets the value at a JSON pointer. Missing objects on the path are made.
fn set(conf: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    if conf.pointer(parent).is_none() {
        set(conf, parent, Value::Object(Map::new()));
    }
    match conf.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        parent => parent[key.replace("~1", "/")] = value,
    }
}

/// The path of a key as an error writes it: `ipam.ranges[0][1].subnet`.
fn path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let key = part.replace("~1", "/");
        match key.parse::<usize>() {
            Ok(index) => write!(path, "[{index}]").unwrap(),
            Err(_) if path.is_empty() => path.push_str(&key),
            Err(_) => write!(path, ".{key}").unwrap(),
        }
    }
    path
}

const NONE: [(&str, Value); 0] = [];

fn bad<const N: usize>(
    plugins: &'static [&'static str],
    verb: &'static str,
    changes: [(&str, Value); N],
    code: u64,
    says: impl Into<String>,
) -> Bad {
    let changes = changes.into_iter().map(|(pointer, value)| (pointer.to_owned(), value)).collect();
    Bad { plugins, verb, env: Vec::new(), stdin: Stdin::With(changes), code, says: says.into() }
}

fn raw(verb: &'static str, bytes: fn() -> Vec<u8>, code: u64, says: &str) -> Bad {
    Bad { stdin: Stdin::Raw(bytes), ..bad(ALL, verb, NONE, code, says) }
}

impl Bad {
    fn env(mut self, name: &'static str, value: impl Into<String>) -> Bad {
        self.env.push((name, Some(value.into())));
        self
    }

    fn without(mut self, names: &[&'static str]) -> Bad {
        self.env.extend(names.iter().map(|name| (*name, None)));
        self
    }

    fn what(&self, plugin: &str) -> String {
        let stdin = match &self.stdin {
            Stdin::With(changes) => format!("{changes:?}"),
            Stdin::Raw(_) => "raw bytes".into(),
        };
        format!("{plugin} {} with {:?} and {stdin}", self.verb, self.env)
    }
}

/// Bytes that are not a configuration.
fn documents() -> Vec<Bad> {
    let unreadable = "error unmarshall network config";
    let all =
        |bytes, code, says| ["ADD", "DEL", "CHECK", "GC", "STATUS", "PLAN"].map(|verb| raw(verb, bytes, code, says));
    let mut table = Vec::new();
    table.extend(all(Vec::new, 6, unreadable));
    table.extend(all(|| b"not json".to_vec(), 6, unreadable));
    table.extend(all(|| br#"[{"name":"n"}]"#.to_vec(), 6, "expected an object, found a list"));
    table.extend(all(|| br#""text""#.to_vec(), 6, unreadable));
    table.extend(all(|| br#"{"name":"n"} trailing"#.to_vec(), 6, unreadable));
    table.extend(all(|| b"\xef\xbb\xbf{\"name\":\"n\"}".to_vec(), 6, unreadable));
    table.extend(all(|| br#"{"name":"n","x":tru"#.to_vec(), 6, unreadable));
    table.extend(all(|| br#"{"name":"n","x":1.}"#.to_vec(), 6, unreadable));
    table.extend(all(|| b"null".to_vec(), 7, "missing network name"));
    table.extend(all(|| b"{}".to_vec(), 7, "missing network name"));
    table.push(raw("ADD", || vec![b' '; 50 << 20], 6, "longer than 16 MiB"));
    table.push(raw(
        "ADD",
        || [br#"{"name":""#.to_vec(), vec![b'n'; 50 << 20], br#""}"#.to_vec()].concat(),
        6,
        "longer than",
    ));
    table.push(raw("ADD", || nested(b"[", b"]"), 6, unreadable));
    table.push(raw("DEL", || nested(br#"{"a":"#, b"}"), 6, unreadable));
    table
}

fn nested(open: &[u8], close: &[u8]) -> Vec<u8> {
    let open = open.repeat(100_000);
    let close = close.repeat(100_000);
    [br#"{"name":"n","x":"#.as_slice(), &open, b"1", &close, b"}"].concat()
}

/// Variables that are missing or have invalid values.
fn variables() -> Vec<Bad> {
    const NEEDED: [&str; 3] = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
    let missing = |verb, without: &[&'static str], names: &str| {
        bad(ALL, verb, NONE, 4, format!("required env variables [{names}] missing")).without(without)
    };
    let mut table = vec![
        missing("ADD", &NEEDED, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
        missing("CHECK", &NEEDED, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
        missing("DEL", &NEEDED, "CNI_CONTAINERID,CNI_IFNAME"),
        missing("PLAN", &NEEDED, "CNI_CONTAINERID,CNI_IFNAME"),
        missing("ADD", &["CNI_NETNS"], "CNI_NETNS"),
        missing("ADD", &["CNI_IFNAME", "CNI_CONTAINERID"], "CNI_CONTAINERID,CNI_IFNAME"),
        missing("ADD", &[], "CNI_NETNS").env("CNI_NETNS", ""),
        bad(ASKING_IPAM, "ADD", NONE, 4, "required env variables [CNI_PATH] missing").without(&["CNI_PATH"]),
        bad(ALL, "EXEC", NONE, 4, "unknown CNI_COMMAND: EXEC"),
        bad(ALL, "add", NONE, 4, "unknown CNI_COMMAND: add"),
        raw("EXEC", Vec::new, 6, "error unmarshall network config"),
        bad(ALL, "ADD", NONE, 4, "invalid characters in containerID")
            .env("CNI_CONTAINERID", "a/b")
            .without(&["CNI_NETNS"]),
    ];
    for id in ["a/b", "..", ".a", "-a", "_a", "a b", "a\nb", "a\u{1}b", "é", "a;b"] {
        for verb in ["ADD", "CHECK", "DEL", "PLAN"] {
            table.push(bad(ALL, verb, NONE, 4, "invalid characters in containerID").env("CNI_CONTAINERID", id));
        }
    }
    for (ifname, says) in IFNAMES {
        for verb in ["ADD", "CHECK", "DEL", "PLAN"] {
            table.push(bad(ALL, verb, NONE, 4, says).env("CNI_IFNAME", ifname));
        }
    }
    table
}

const IFNAMES: [(&str, &str); 11] = [
    ("sixteen-bytes-xx", "interface name is too long"),
    ("..............éé", "interface name is too long"),
    (".", "interface name is . or .."),
    ("..", "interface name is . or .."),
    ("a/b", "interface name contains / or : or whitespace"),
    ("a:b", "interface name contains / or : or whitespace"),
    ("a b", "interface name contains / or : or whitespace"),
    ("a\tb", "interface name contains / or : or whitespace"),
    ("a\nb", "interface name contains / or : or whitespace"),
    ("a\u{7}b", "interface name contains % or control characters"),
    ("eth%d", "interface name contains % or control characters"),
];

/// Names and versions of a configuration outside their grammar.
fn names() -> Vec<Bad> {
    let mut table = Vec::new();
    for name in ["a/b", "../x", ".", "..", "-a", "a b", "a\u{1}b", "é"] {
        for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS", "PLAN"] {
            table.push(bad(ALL, verb, [("/name", json!(name))], 7, "invalid characters found in network name"));
        }
    }
    for version in ["9.9.9", "1.1", "x", "0.3.2", "v1.1.0", "1.1.0 ", "1.2.0"] {
        for verb in ["ADD", "DEL", "PLAN"] {
            let says = format!("config is \"{version}\", plugin supports [\"0.1.0\"");
            table.push(bad(ALL, verb, [("/cniVersion", json!(version))], 1, says));
        }
    }
    for (verb, too_old) in [("CHECK", "0.3.1"), ("CHECK", "0.1.0"), ("CHECK", ""), ("GC", "1.0.0"), ("STATUS", "0.4.0")]
    {
        let says = format!("config version does not allow {verb}");
        table.push(bad(ALL, verb, [("/cniVersion", json!(too_old))], 1, &says));
        table.push(bad(ALL, verb, [("/cniVersion", Value::Null)], 1, says));
        table.push(bad(
            ALL,
            verb,
            [("/cniVersion", json!("1.2.0"))],
            1,
            format!("plugin version does not allow {verb}"),
        ));
        table.push(bad(ALL, verb, [("/cniVersion", json!("x"))], 6, "x"));
    }
    for name in ["../x", "a/b", ".", "..", "/bin/true", "-x", "a\u{1}"] {
        let says = format!("invalid plugin name: {name:?}");
        for (verb, code) in [("ADD", 7), ("CHECK", 7), ("DEL", 7), ("GC", 7), ("STATUS", 50)] {
            table.push(bad(ASKING_IPAM, verb, [("/ipam/type", json!(name))], code, &says));
        }
    }
    table
}

/// Targets of `CNI_NETNS`.
fn sandboxes(scene: &Scene) -> Vec<Bad> {
    let prev = ("/prevResult", scene.prev());
    let file = scene.file.display().to_string();
    let dir = scene.host.dir().display().to_string();
    let gone = format!("{dir}/gone");
    let own = "plugin's netns and netns from CNI_NETNS should not be the same";
    let add = |code, says: &str, netns: &str| bad(MAIN, "ADD", NONE, code, says).env("CNI_NETNS", netns);
    let check = |code, says: &str, netns: &str| bad(MAIN, "CHECK", NONE, code, says).env("CNI_NETNS", netns);
    vec![
        add(4, "is not a network namespace", &file),
        add(4, "is not a network namespace", &dir),
        add(4, "is not a network namespace", "/dev/null"),
        add(4, "is not a network namespace", "/proc/self/ns/mnt"),
        add(3, "is gone", &gone),
        add(3, "is gone", "/proc/1/task/0/ns/net"),
        bad(MAIN, "ADD", [prev], 4, "is gone").env("CNI_NETNS", &gone),
        check(4, "is not a network namespace", &file),
        check(4, "is gone", &gone),
        bad(ALL, "ADD", NONE, 8, own).env("CNI_NETNS", "/proc/self/ns/net"),
        bad(ALL, "ADD", NONE, 8, own).env("CNI_NETNS", "/proc/self/ns/net").env("CNI_NETNS_OVERRIDE", "no"),
        bad(ALL, "CHECK", NONE, 8, own).env("CNI_NETNS", "/proc/self/ns/net"),
    ]
}

/// `CNI_ARGS` with unknown keys, or without pairs.
fn args() -> Vec<Bad> {
    let mut table = Vec::new();
    for verb in ["ADD", "CHECK", "PLAN"] {
        let refused = |says, args: &str| bad(KNOWING_ARGS, verb, NONE, 4, says).env("CNI_ARGS", args);
        table.extend([
            refused("ARGS: unknown args [\"FOO=bar\"]", "FOO=bar"),
            refused("ARGS: unknown args [\"FOO=bar\"]", "FOO=bar;IgnoreUnknown=false"),
            refused("ARGS: unknown args [\"ip=10.77.0.7\"]", "ip=10.77.0.7"),
            refused("ARGS: invalid pair \"garbage\"", "garbage"),
            refused("ARGS: invalid pair \"\"", "FOO=bar;"),
            refused("ARGS: invalid pair \"A=b=c\"", "A=b=c;IgnoreUnknown=1"),
            refused("ARGS: IgnoreUnknown is \"maybe\"", "FOO=bar;IgnoreUnknown=maybe"),
        ]);
    }
    let unheard = |plugins, verb, says: &str, args: &str| bad(plugins, verb, NONE, 4, says).env("CNI_ARGS", args);
    table.push(unheard(&["bridge"], "ADD", "unknown args [\"IP=10.77.0.7\"]", "IP=10.77.0.7"));
    table.push(unheard(&["host-local"], "ADD", "unknown args [\"MAC=0a:00:00:00:00:01\"]", "MAC=0a:00:00:00:00:01"));
    table.push(unheard(&["bridge"], "ADD", "CNI_ARGS MAC", "MAC=nonsense"));
    table.push(unheard(&["host-local"], "ADD", "IP=nonsense", "IP=nonsense"));
    table
}

/// The JSON type that a key has.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    Bool,
    Integer,
    Text,
    List,
    Object,
}

use Type::{Bool, Integer, List, Object, Text};

impl Type {
    /// A value of every other type.
    fn wrong(self) -> Vec<Value> {
        let sorts = [Bool, Integer, Text, List, Object];
        let values = [json!(true), json!(5), json!("text"), json!([]), json!({})];
        let others = sorts.into_iter().zip(values).filter(|(sort, _)| *sort != self).map(|(_, value)| value);
        others.chain([json!(5.5), json!(1e3)]).collect()
    }
}

/// Every key of each plugin, with its type.
const KEYS: &[(&[&str], &str, Type)] = &[
    (ALL, "/cniVersion", Text),
    (ALL, "/name", Text),
    (ALL, "/type", Text),
    (ALL, "/args", Object),
    (ALL, "/args/cni", Object),
    (ALL, "/capabilities", Object),
    (ALL, "/runtimeConfig", Object),
    (ALL, "/prevResult", Object),
    (ALL, "/prevResult/cniVersion", Text),
    (ALL, "/prevResult/interfaces", List),
    (ALL, "/prevResult/interfaces/0", Object),
    (ALL, "/prevResult/interfaces/0/name", Text),
    (ALL, "/prevResult/interfaces/0/mac", Text),
    (ALL, "/prevResult/interfaces/0/mtu", Integer),
    (ALL, "/prevResult/interfaces/0/sandbox", Text),
    (ALL, "/prevResult/ips", List),
    (ALL, "/prevResult/ips/0", Object),
    (ALL, "/prevResult/ips/0/address", Text),
    (ALL, "/prevResult/ips/0/gateway", Text),
    (ALL, "/prevResult/ips/0/interface", Integer),
    (ALL, "/prevResult/routes", List),
    (ALL, "/prevResult/dns", Object),
    (ALL, "/prevResult/dns/nameservers", List),
    (ALL, "/prevResult/dns/domain", Text),
    (ASKING_IPAM, "/ipam", Object),
    (ASKING_IPAM, "/ipam/type", Text),
    (MASQUERADING, "/ipMasq", Bool),
    (MASQUERADING, "/ipMasqBackend", Text),
    (TAKING_AN_MTU, "/mtu", Integer),
    (TAKING_DNS, "/dns", Object),
    (TAKING_DNS, "/dns/nameservers", List),
    (TAKING_DNS, "/dns/domain", Text),
    (TAKING_DNS, "/dns/search", List),
    (TAKING_DNS, "/dns/options", List),
    (ON_A_MASTER, "/master", Text),
    (OF_A_MODE, "/mode", Text),
    (ON_A_MASTER, "/linkInContainer", Bool),
    (ON_A_MASTER, "/enabledad", Bool),
    (ON_A_MASTER, "/slaac", Bool),
    (&["vlan"], "/vlanId", Integer),
    (&["vlan"], "/protocol", Text),
    (&["macvlan"], "/bcqueuelen", Integer),
    (&["macvlan"], "/mac", Text),
    (&["macvlan"], "/runtimeConfig/mac", Text),
    (&["macvlan"], "/args/cni/mac", Text),
    (&["tap"], "/multiQueue", Bool),
    (&["tap"], "/mac", Text),
    (&["tap"], "/owner", Integer),
    (&["tap"], "/group", Integer),
    (&["tap"], "/vnetHdr", Bool),
    (&["tap"], "/selinuxContext", Text),
    (&["tap"], "/bridge", Text),
    (&["tap"], "/runtimeConfig/mac", Text),
    (&["bridge"], "/bridge", Text),
    (&["bridge"], "/isGateway", Bool),
    (&["bridge"], "/isDefaultGateway", Bool),
    (&["bridge"], "/forceAddress", Bool),
    (&["bridge"], "/hairpinMode", Bool),
    (&["bridge"], "/promiscMode", Bool),
    (&["bridge"], "/portIsolation", Bool),
    (&["bridge"], "/enabledad", Bool),
    (&["bridge"], "/disableContainerInterface", Bool),
    (&["bridge"], "/slaac", Bool),
    (&["bridge"], "/vlan", Integer),
    (&["bridge"], "/vlanTrunk", List),
    (&["bridge"], "/preserveDefaultVlan", Bool),
    (&["bridge"], "/macspoofchk", Bool),
    (&["bridge", "ptp"], "/ipspoofchk", Bool),
    (&["bridge"], "/runtimeConfig/mac", Text),
    (&["bridge"], "/args/cni/mac", Text),
    (TUNING, "/sysctl", Object),
    (TUNING, "/sysctl/net.core.somaxconn", Text),
    (TUNING, "/restoreSysctls", Bool),
    (TUNING, "/mac", Text),
    (TUNING, "/promisc", Bool),
    (TUNING, "/mtu", Integer),
    (TUNING, "/txQLen", Integer),
    (TUNING, "/allmulti", Bool),
    (TUNING, "/dataDir", Text),
    (TUNING, "/runtimeConfig/mac", Text),
    (TUNING, "/args/cni/mac", Text),
    (TUNING, "/args/cni/sysctl", Object),
    (TUNING, "/args/cni/promisc", Bool),
    (TUNING, "/args/cni/mtu", Integer),
    (TUNING, "/args/cni/txQLen", Integer),
    (TUNING, "/args/cni/allmulti", Bool),
    (FIREWALL, "/backend", Text),
    (FIREWALL, "/iptablesAdminChainName", Text),
    (FIREWALL, "/firewalldZone", Text),
    (FIREWALL, "/ingressPolicy", Text),
    (IPAM, "/ipam", Object),
    (&["host-local"], "/ipam/dataDir", Text),
    (&["host-local"], "/ipam/resolvConf", Text),
    (IPAM, "/ipam/routes", List),
    (IPAM, "/ipam/routes/0", Object),
    (IPAM, "/ipam/routes/0/dst", Text),
    (IPAM, "/ipam/routes/0/gw", Text),
    (IPAM, "/ipam/routes/0/mtu", Integer),
    (IPAM, "/ipam/routes/0/advmss", Integer),
    (IPAM, "/ipam/routes/0/priority", Integer),
    (IPAM, "/ipam/routes/0/table", Integer),
    (IPAM, "/ipam/routes/0/scope", Integer),
    (&["host-local"], "/ipam/subnet", Text),
    (&["host-local"], "/ipam/rangeStart", Text),
    (&["host-local"], "/ipam/rangeEnd", Text),
    (&["host-local"], "/ipam/gateway", Text),
    (&["host-local"], "/ipam/ranges", List),
    (&["host-local"], "/ipam/ranges/0", List),
    (&["host-local"], "/ipam/ranges/0/0", Object),
    (&["host-local"], "/ipam/ranges/0/0/subnet", Text),
    (&["host-local"], "/ipam/ranges/0/0/rangeStart", Text),
    (&["host-local"], "/ipam/ranges/0/0/rangeEnd", Text),
    (&["host-local"], "/ipam/ranges/0/0/gateway", Text),
    (IPAM, "/runtimeConfig/ips", List),
    (&["host-local"], "/runtimeConfig/ipRanges", List),
    (IPAM, "/args/cni/ips", List),
    (POOL, "/ipam/pool", Text),
    (POOL, "/ipam/allowedPools", List),
    (POOL, "/ipam/allowedPools/0", Text),
    (POOL, "/ipam/sticky", Bool),
    (POOL, "/ipam/families", List),
    (POOL, "/ipam/families/0", Text),
    (POOL, "/ipam/minFree", Integer),
    (POOL, "/ipam/timeout", Integer),
    (POOL, "/ipam/dataDir", Text),
    (POOL, "/ipam/agentSocket", Text),
    (POOL, "/ipam/agent", Text),
    (POOL, "/ipam/agentConfig", Text),
    (POOL, "/args/cni/pool", Text),
    (DHCP, "/ipam", Object),
    (DHCP, "/ipam/daemonSocketPath", Text),
    (DHCP, "/ipam/daemon", Text),
    (DHCP, "/ipam/families", List),
    (DHCP, "/ipam/families/0", Text),
    (DHCP, "/ipam/dataDir", Text),
    (DHCP, "/ipam/priority", Integer),
    (DHCP, "/ipam/timeout", Integer),
    (DHCP, "/ipam/provide", List),
    (DHCP, "/ipam/provide/0", Object),
    (DHCP, "/ipam/provide/0/option", Text),
    (DHCP, "/ipam/provide/0/value", Text),
    (DHCP, "/ipam/provide/0/hexValue", Text),
    (DHCP, "/ipam/provide/0/fromArg", Text),
    (DHCP, "/ipam/request", List),
    (DHCP, "/ipam/request/0", Object),
    (DHCP, "/ipam/request/0/option", Text),
    (DHCP, "/ipam/request/0/skipDefault", Bool),
    (&["flannel"], "/subnetFile", Text),
    (&["flannel"], "/dataDir", Text),
    (&["flannel"], "/delegate", Object),
    (&["flannel"], "/ipam", Object),
    (&["static"], "/ipam/addresses", List),
    (&["static"], "/ipam/addresses/0", Object),
    (&["static"], "/ipam/addresses/0/address", Text),
    (&["static"], "/ipam/addresses/0/gateway", Text),
    (&["static"], "/ipam/dns", Object),
    (&["static"], "/ipam/dns/nameservers", List),
    (&["static"], "/ipam/dns/domain", Text),
    (&["static"], "/ipam/dns/search", List),
    (&["static"], "/ipam/dns/options", List),
];

/// Every known key with every wrong type; the error names its path.
fn types(scene: &Scene) -> Vec<Bad> {
    let typed = KEYS
        .iter()
        .flat_map(|(plugins, pointer, sort)| sort.wrong().into_iter().map(move |value| (*plugins, *pointer, value)));
    let on_add = typed.map(|(plugins, pointer, value)| {
        let mut changes = [("/prevResult", Value::Null), (pointer, value)];
        if pointer.starts_with("/prevResult") {
            changes[0].1 = scene.prev();
        }
        bad(plugins, "ADD", changes, 6, path(pointer))
    });
    let listed = "/cni.dev~1valid-attachments";
    let members = [
        (listed.to_owned(), List),
        (format!("{listed}/0"), Object),
        (format!("{listed}/0/containerID"), Text),
        (format!("{listed}/0/ifname"), Text),
    ];
    let on_gc = members.iter().flat_map(|(pointer, sort)| {
        sort.wrong().into_iter().map(|value| bad(ALL, "GC", [(pointer.as_str(), value)], 6, path(pointer)))
    });
    on_add.chain(on_gc).collect()
}

/// Values of the right type that cannot be.
fn values() -> Vec<Bad> {
    let of = |plugins, pointer: &str, value: Value, says: &str| bad(plugins, "ADD", [(pointer, value)], 7, says);
    let bridge = |pointer, value, says| of(&["bridge"], pointer, value, says);
    vec![
        of(ALL, "/name", Value::Null, "missing network name"),
        of(ALL, "/name", json!(""), "missing network name"),
        of(ALL, "/prevResult", json!({"cniVersion": "7.0.0"}), "unsupported CNI result version"),
        of(ALL, "/prevResult", json!({"ips": [{"address": "10.0.0.1"}]}), "prevResult.ips[0].address"),
        of(ALL, "/prevResult", json!({"ips": [{}]}), "prevResult.ips[0].address: is missing"),
        of(TAKING_AN_MTU, "/mtu", json!(70_000), "70000"),
        of(TAKING_AN_MTU, "/mtu", json!(u64::MAX), "mtu"),
        of(MASQUERADING, "/ipMasqBackend", json!("ipfw"), "\"ipfw\""),
        of(MASQUERADING, "/ipMasqBackend", json!(""), "known are \"iptables\" and \"nftables\""),
        of(&["ptp"], "/ipam", Value::Null, "no plugin name provided"),
        of(&["ptp"], "/ipam/type", json!(""), "no plugin name provided"),
        of(&["macvlan"], "/mode", json!("source"), "unknown macvlan mode: \"source\""),
        of(&["macvlan"], "/mac", json!("01:00:5e:00:00:01"), "cannot be the MAC of an interface"),
        of(&["macvlan"], "/mtu", json!(-1), "invalid MTU -1, must be [0, master MTU]"),
        of(&["macvlan"], "/bcqueuelen", json!(-1), "bcqueuelen"),
        of(&["ipvlan"], "/mode", json!("L2"), "unknown ipvlan mode: \"L2\""),
        of(&["vlan"], "/vlanId", Value::Null, "\"vlanId\" field is required"),
        of(&["vlan"], "/vlanId", json!(4095), "invalid VLAN ID 4095 (must be between 0 and 4094 inclusive)"),
        of(&["vlan"], "/vlanId", json!(-1), "invalid VLAN ID -1"),
        of(&["vlan"], "/vlanId", json!(u64::MAX), "vlanId"),
        of(&["vlan"], "/protocol", json!("802.1x"), "unknown VLAN protocol: \"802.1x\""),
        of(&["vlan"], "/mtu", json!(-1), "invalid MTU -1, must be [0, master MTU]"),
        bridge("/bridge", json!(""), "interface name is empty"),
        bridge("/bridge", json!("a/b"), "`bridge` \"a/b\": interface name contains"),
        bridge("/bridge", json!("sixteen-bytes-xx"), "interface name is too long"),
        bridge("/bridge", json!("a\u{1}"), "interface name contains % or control characters"),
        bridge("/vlan", json!(4095), "invalid VLAN ID 4095"),
        bridge("/vlan", json!(-1), "invalid VLAN ID -1"),
        bridge("/vlanTrunk", json!([{"id": 0}]), "incorrect trunk id parameter 0"),
        bridge("/vlanTrunk", json!([{"minID": 9, "maxID": 5}]), "minID is greater than maxID: 9 > 5"),
        bridge("/disableContainerInterface", json!(true), "cannot use IPAM when DisableContainerInterface"),
        bridge("/runtimeConfig/mac", json!("nonsense"), "runtimeConfig.mac"),
        bridge("/args/cni/mac", json!("01:00:5e:00:00:01"), "cannot be the MAC of an interface"),
        bridge("/args/cni/mac", json!("00:00:00:00:00:00"), "cannot be the MAC of an interface"),
        bad(
            &["bridge"],
            "ADD",
            [("/hairpinMode", json!(true)), ("/promiscMode", json!(true))],
            7,
            "cannot set hairpin mode and promiscuous",
        ),
        bad(ALL, "CHECK", NONE, 7, "Required prevResult missing"),
        bad(
            ALL,
            "GC",
            [("/cni.dev~1valid-attachments", json!([{"containerID": "c"}]))],
            7,
            "cni.dev/valid-attachments[0].ifname: is missing",
        ),
        bad(
            ALL,
            "GC",
            [("/cni.dev~1valid-attachments", json!([{"ifname": "eth0"}]))],
            7,
            "cni.dev/valid-attachments[0].containerID: is missing",
        ),
    ]
}

/// Values of tuning's keys that cannot be; `tests/tuning.rs` has those of its sysctls.
fn values_of_tuning() -> Vec<Bad> {
    let tuning = |pointer, value: Value, says: &str| bad(TUNING, "ADD", [(pointer, value)], 7, says);
    vec![
        bad(TUNING, "ADD", NONE, 7, "Required prevResult missing"),
        tuning("/mac", json!("nonsense"), "is not a MAC address"),
        tuning("/mac", json!("0a:58:00:ff:01:02:03:04"), "is not a MAC address"),
        tuning("/runtimeConfig/mac", json!("01:00:5e:00:00:01"), "cannot be the MAC of an interface"),
        tuning("/args/cni/mac", json!("00:00:00:00:00:00"), "cannot be the MAC of an interface"),
        tuning("/mtu", json!(70_000), "70000"),
        tuning("/args/cni/mtu", json!(70_000), "args.cni.mtu"),
        tuning("/txQLen", json!(-1), "txQLen"),
    ]
}

/// Values of sbr's keys that cannot be.
fn values_of_sbr() -> Vec<Bad> {
    let sbr = |pointer, value: Value, says: &str| bad(SBR, "ADD", [(pointer, value)], 7, says);
    let none = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}]});
    vec![
        bad(SBR, "ADD", NONE, 7, "Required prevResult missing"),
        sbr("/prevResult", none, "No IP addresses supplied on interface: eth0"),
        sbr("/table", json!(0), "table 0 is not a routing table"),
        sbr("/table", json!(-1), "table -1 is not a routing table"),
        sbr("/table", json!(1_u64 << 32), "table 4294967296 is not a routing table"),
        bad(SBR, "ADD", [("/table", json!("100"))], 6, "table"),
        sbr("/gateways", json!(["bad"]), "invalid static gateway IP address: bad"),
        sbr("/gateways", json!(["10.0.0.1/24"]), "invalid static gateway IP address: 10.0.0.1/24"),
        sbr("/gateways", json!(["10.0.0.1", "10.0.0.2"]), "multiple IPv4 addresses: 10.0.0.1 and 10.0.0.2"),
        sbr("/gateways", json!(["fd00::1", "fd00::2"]), "multiple IPv6 addresses: fd00::1 and fd00::2"),
        sbr("/gateways", json!(["10.0.0.1", "fd00::1", "10.0.0.2"]), "more than 2 entries (one IPv4, one IPv6)"),
        bad(SBR, "ADD", [("/addSourceHints", json!("yes"))], 6, "addSourceHints"),
    ]
}

/// Values of host-device's keys that cannot be.
fn values_of_host_device() -> Vec<Bad> {
    let of = |pointer, value: Value, code, says: &str| bad(HOST_DEVICE, "ADD", [(pointer, value)], code, says);
    let by = |key, value: &str, code, says: &str| {
        bad(HOST_DEVICE, "ADD", [("/device", json!("")), (key, json!(value))], code, says)
    };
    let begin = "must be absolute and begin with /sys/devices/";
    vec![
        of("/device", json!(""), 7, "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
        of("/device", Value::Null, 7, "specify either"),
        of("/device", json!(7), 6, "device"),
        of("/device", json!("nowhere0"), 101, "the host has no device nowhere0"),
        of("/device", json!("../dev0"), 101, "the host has no device ../dev0"),
        of("/device", json!("lo"), 7, "lo is the host's loopback, which cannot be moved"),
        by("/hwaddr", "zz", 7, "\"zz\" is not a hardware address"),
        by("/hwaddr", "02:00:00:00:00:00:00", 7, "is not a hardware address"),
        by("/hwaddr", "02:00:00:00:00:77", 101, "no device with the address 02:00:00:00:00:77"),
        by("/kernelpath", "/sys/class/net/dev0", 7, begin),
        by("/kernelpath", "/sys/devices/../../etc", 7, begin),
        by("/kernelpath", "/sys/devices/virtual", 7, "is not a device"),
        by("/kernelpath", "/sys/devices/nowhere", 100, "failed to read directory /sys/devices/nowhere"),
        of("/pciBusID", json!("../../../net"), 7, "cannot be the name of a device"),
        by("/pciBusID", "ffff:ff:1f.7", 101, "failed to find host device: the host has no PCI device ffff:ff:1f.7"),
        of("/runtimeConfig/deviceID", json!("a/b"), 7, "cannot be the name of a device"),
        of("/runtimeConfig/deviceID", json!("nowhere"), 7, "runtime config DeviceID nowhere not found or unsupported"),
        of("/runtimeConfig/deviceID", json!(["x"]), 6, "deviceID"),
        of("/dpdkMode", json!("yes"), 6, "dpdkMode"),
    ]
}

/// Values of vrf's keys that cannot be.
fn values_of_vrf() -> Vec<Bad> {
    let vrf = |pointer, value: Value, says: &str| bad(VRF, "ADD", [(pointer, value)], 7, says);
    vec![
        bad(VRF, "ADD", NONE, 7, "Required prevResult missing"),
        vrf("/vrfname", json!(""), "configuration is expected to have a valid vrf name"),
        vrf("/vrfname", Value::Null, "configuration is expected to have a valid vrf name"),
        vrf("/vrfname", json!("a/b"), "cannot be the name of a link"),
        vrf("/vrfname", json!("a-name-of-sixteen"), "cannot be the name of a link"),
        vrf("/table", json!(-1), "table"),
        bad(VRF, "ADD", [("/vrfname", json!(7))], 6, "vrfname"),
    ]
}

/// Values of tap's keys that cannot be.
fn values_of_tap() -> Vec<Bad> {
    let tap = |pointer, value: Value, says: &str| bad(&["tap"], "ADD", [(pointer, value)], 7, says);
    vec![
        tap("/mac", json!("01:00:5e:00:00:01"), "cannot be the MAC of an interface"),
        tap("/mtu", json!(-1), "invalid MTU -1, must be 0 or [68, 65521]"),
        tap("/mtu", json!(67), "invalid MTU 67, must be 0 or [68, 65521]"),
        tap("/owner", json!(-1), "owner"),
        tap("/owner", json!(u32::MAX), "owner 4294967295 is -1, which is not a valid id"),
        tap("/group", json!(u32::MAX), "group 4294967295 is -1, which is not a valid id"),
        tap("/group", json!(1_u64 << 32), "group"),
        tap("/bridge", json!("a/b"), "`bridge` \"a/b\": interface name contains"),
        tap("/bridge", json!("sixteen-bytes-xx"), "interface name is too long"),
        tap("/selinuxContext", json!("a\u{0}b"), "selinuxContext"),
    ]
}

/// Values of bandwidth's keys that cannot be.
fn values_of_bandwidth() -> Vec<Bad> {
    let bandwidth = |pointer, value: Value, says: &str| bad(BANDWIDTH, "ADD", [(pointer, value)], 7, says);
    let mistyped = |pointer, value: Value, says: &str| bad(BANDWIDTH, "ADD", [(pointer, value)], 6, says);
    let runtime = "/runtimeConfig/bandwidth";
    let rates = |rate: Value, burst: Value| json!({"ingressRate": rate, "ingressBurst": burst});
    vec![
        bad(BANDWIDTH, "ADD", NONE, 7, "Required prevResult missing"),
        bandwidth("/ingressRate", json!(8_000), "ingressRate, ingressBurst: if rate is set, burst must also be set"),
        bandwidth("/egressBurst", json!(8_000), "egressRate, egressBurst: if burst is set, rate must also be set"),
        bandwidth("/egressRate", json!(-1), "egressRate"),
        mistyped("/egressRate", json!(1.5), "egressRate"),
        mistyped("/ingressBurst", json!("8000"), "ingressBurst"),
        bandwidth("/latency", json!(-1), "latency"),
        mistyped("/fq_codel", json!("on"), "fq_codel"),
        mistyped("/shapedSubnets", json!("10.0.0.0/8"), "shapedSubnets"),
        bandwidth("/shapedSubnets", json!(["10.0.0.0"]), "is not an address with a prefix length"),
        bandwidth("/unshapedSubnets", json!(vec!["10.0.0.0/8"; 257]), "257 subnets are too many"),
        bandwidth(runtime, rates(json!(7), json!(8_000)), "a rate of 7 bit/s is too low"),
        bandwidth(runtime, rates(json!(8), json!(u64::MAX)), "burst cannot be more than 4GB"),
        mistyped(runtime, json!({"ingressRate": "fast"}), "runtimeConfig.bandwidth.ingressRate"),
        mistyped(runtime, json!([8_000]), "runtimeConfig.bandwidth"),
    ]
}

/// Values of firewall's keys that cannot be.
fn values_of_firewall() -> Vec<Bad> {
    let firewall = |pointer, value: Value, says: &str| bad(FIREWALL, "ADD", [(pointer, value)], 7, says);
    let cannot = "cannot be the name of a chain";
    vec![
        bad(FIREWALL, "ADD", NONE, 7, "Required prevResult missing"),
        firewall("/backend", json!("ipfw"), "unknown backend: \"ipfw\""),
        firewall("/ingressPolicy", json!("closed"), "unknown ingress policy: \"closed\""),
        firewall("/iptablesAdminChainName", json!("a chain"), cannot),
        firewall("/iptablesAdminChainName", json!("-F"), cannot),
        firewall("/iptablesAdminChainName", json!("a-chain-of-twenty-nine-letters"), cannot),
        firewall("/iptablesAdminChainName", json!("CNI-FORWARD"), "is a reserved name"),
        firewall("/iptablesAdminChainName", json!("DROP"), "is a reserved name"),
        firewall("/iptablesAdminChainName", json!("owners"), "is a reserved name"),
        firewall("/iptablesAdminChainName", json!("admins"), "is a reserved name"),
        firewall("/iptablesAdminChainName", json!("forward"), "is a reserved name"),
        bad(
            FIREWALL,
            "ADD",
            [
                ("/ingressPolicy", json!("isolated")),
                ("/prevResult", json!({"interfaces": [{"name": "lo"}], "ips": [{"address": "10.77.0.2/24"}]})),
            ],
            7,
            "ingressPolicy \"isolated\" needs a bridge, and prevResult has lo",
        ),
    ]
}

/// Values of portmap's keys that cannot be.
fn values_of_portmap() -> Vec<Bad> {
    fn several<const N: usize>(keys: [(&str, Value); N], says: &str) -> Bad {
        bad(&["portmap"], "ADD", keys, 7, says)
    }
    let one = |pointer, value: Value, says: &str| several([(pointer, value)], says);
    let mapping = |key: &str, value: Value, says: &str| {
        let mut mapping = json!({"hostPort": 80, "containerPort": 80, "protocol": "tcp"});
        mapping[key] = value;
        one("/runtimeConfig/portMappings", json!([mapping]), says)
    };
    let bit = ("/markMasqBit", json!(5));
    let chain = ("/externalSetMarkChain", json!("X"));
    let for_iptables = ("/conditionsV4", json!(["-s", "10.0.0.0/8"]));
    let for_nftables = ("/conditionsV6", json!(["ip6 saddr fd00::/8"]));
    let backend = |name: &str| ("/backend", json!(name));
    let loopback = json!([{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "::ffff:127.0.0.1"}]);
    vec![
        bad(&["portmap"], "ADD", NONE, 7, "Required prevResult missing"),
        several([bit, chain.clone()], "failed to parse config: Cannot specify externalSetMarkChain and markMasqBit"),
        one("/markMasqBit", json!(32), "MasqMarkBit must be between 0 and 31"),
        one("/markMasqBit", json!(-1), "MasqMarkBit must be between 0 and 31"),
        several(
            [backend("nftables"), chain.clone(), for_iptables.clone()],
            "nftables backend was requested but configuration contains iptables-specific options \
             [externalSetMarkChain conditionsV4]",
        ),
        several(
            [backend("iptables"), for_nftables.clone()],
            "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]",
        ),
        several([for_iptables, for_nftables], "nftables-specific options [conditionsV6]"),
        several([backend("foo"), chain], "foo backend was requested but"),
        one("/backend", json!("foo"), "unrecognized backend \"foo\""),
        one("/backend", json!(""), "unrecognized backend \"\""),
        one("/hostPortTaken", json!("maybe"), "hostPortTaken"),
        mapping("containerPort", json!(0), "Invalid container port number: 0"),
        mapping("hostPort", json!(-1), "Invalid host port number: -1"),
        mapping("hostPort", json!(70_000), "Invalid host port number: 70000"),
        mapping("protocol", json!("icmp"), "unknown protocol \"icmp\" of host port 80"),
        mapping("hostIP", json!("localhost"), "hostIP \"localhost\" of host port 80 is not an address"),
        mapping("hostIP", json!("::1"), "the kernel lets nothing from ::1 leave the host"),
        several(
            [("/snat", json!(false)), ("/runtimeConfig/portMappings", loopback)],
            "hostIP 127.0.0.1 of host port 80: without snat the kernel lets nothing",
        ),
    ]
}

/// Values of host-local's keys that cannot be.
fn values_of_host_local() -> Vec<Bad> {
    let host_local = |pointer, value: Value, says: &str| bad(&["host-local"], "ADD", [(pointer, value)], 7, says);
    vec![
        host_local("/ipam", Value::Null, "ipam"),
        host_local("/ipam", json!({"type": "host-local"}), "no IP ranges specified"),
        host_local("/ipam/ranges", json!([[]]), "invalid range set 0"),
        host_local("/ipam/ranges/0/0/subnet", json!("10.0.0.3/24"), "Network has host bits set"),
        host_local("/ipam/ranges/0/0/subnet", json!("nonsense"), "ipam.ranges[0][0].subnet: invalid CIDR address"),
        host_local(
            "/ipam/ranges/0/0/rangeStart",
            json!("nonsense"),
            "ipam.ranges[0][0].rangeStart: invalid IP address",
        ),
        host_local("/ipam/routes/0/dst", json!("nonsense"), "ipam.routes[0].dst"),
        host_local("/runtimeConfig/ips", json!(["nonsense"]), "runtimeConfig.ips[0]"),
        host_local("/args/cni/ips", json!([""]), "args.cni.ips[0]"),
    ]
}

/// Values of static's keys that cannot be.
fn values_of_static() -> Vec<Bad> {
    let written = |pointer, value: Value, says: &str| bad(&["static"], "ADD", [(pointer, value)], 7, says);
    let asked = |args: &str, says: &str| bad(&["static"], "ADD", NONE, 4, says).env("CNI_ARGS", args);
    let expected = "field is expected to be in CIDR notation, got: ";
    let entry = "an entry in the 'ips' field is NOT in CIDR notation, got: ";
    let two = json!([{"address": "10.77.0.5/24"}, {"address": "10.77.0.6/24"}]);
    vec![
        written("/ipam", Value::Null, "ipam"),
        written("/ipam/addresses/0/address", json!("10.77.0.5"), &format!("'address' {expected}'10.77.0.5'")),
        written("/ipam/addresses/0/address", json!(""), &format!("ipam.addresses[0]: the 'address' {expected}''")),
        written("/ipam/addresses/0/gateway", json!("bad"), "ipam.addresses[0]: invalid IP address: bad"),
        written("/ipam/routes/0", json!({"gw": "10.77.0.1"}), "ipam.routes[0].dst: is missing"),
        written("/runtimeConfig/ips", json!(["10.77.0.5"]), &format!("runtimeConfig.ips[0]: {entry}'10.77.0.5'")),
        written("/args/cni/ips", json!(["10.77.0.5/24", ""]), &format!("args.cni.ips[1]: {entry}''")),
        bad(
            &["static"],
            "ADD",
            [("/cniVersion", json!("0.1.0")), ("/ipam/addresses", two)],
            7,
            "CNI version 0.1.0 does not support more than 1 address per family",
        ),
        asked("IP=nonsense", &format!("CNI_ARGS IP: the 'ip' {expected}'nonsense'")),
        asked("IP=10.77.0.5/24,", &format!("CNI_ARGS IP: the 'ip' {expected}''")),
        asked("GATEWAY=zz", "CNI_ARGS GATEWAY: invalid gateway address: zz"),
        // Whether or not it counts.
        bad(&["static"], "ADD", [("/runtimeConfig/ips", json!(["10.77.0.5/24"]))], 4, "'nonsense'")
            .env("CNI_ARGS", "IP=nonsense"),
    ]
}

/// Values of dhcp's keys that cannot be, and a daemon that is not there.
fn values_of_dhcp() -> Vec<Bad> {
    let of = |pointer, value: Value, code, says: &str| bad(DHCP, "ADD", [(pointer, value)], code, says);
    vec![
        of("/ipam", Value::Null, 7, "ipam"),
        of("/ipam/provide/0/option", json!("x"), 7, "ipam.provide[0].option: \"x\" is no option"),
        of("/ipam/provide/0/option", json!("256"), 7, "ipam.provide[0].option: \"256\" is no option"),
        of("/ipam/provide/0/option", json!("53"), 7, "ipam.provide[0] (53): the DHCP client writes option 53"),
        of("/ipam/provide/0/value", json!("x".repeat(256)), 7, "ipam.provide[0] (host-name): the value has 256"),
        of("/ipam/provide/0/hexValue", json!("0g"), 7, "ipam.provide[0].hexValue: \"0g\" is not a"),
        of("/ipam/request/0/option", json!("-1"), 7, "ipam.request[0].option: \"-1\" is no option"),
        of("/ipam/daemon", json!("always"), 7, "ipam.daemon: \"always\" is not \"auto\""),
        of("/ipam/families", json!(["v5"]), 7, "ipam.families: \"v5\" is not \"v4\", \"v6\" or \"slaac\""),
        of("/ipam/families", json!("v6"), 6, "ipam.families: expected a list"),
        of("/ipam/priority", json!(-1), 7, "ipam.priority"),
        of("/ipam/timeout", json!(1_u64 << 32), 7, "ipam.timeout"),
        bad(DHCP, "ADD", NONE, 100, "no DHCP daemon listens on"),
        bad(DHCP, "STATUS", NONE, 50, "no DHCP daemon listens on"),
    ]
}

/// Values of flannel's keys that cannot be, and a delegate that is not there.
fn values_of_flannel() -> Vec<Bad> {
    let of = |pointer, value: Value, code, says: &str| bad(&["flannel"], "ADD", [(pointer, value)], code, says);
    vec![
        of("/delegate/type", json!(5), 7, "must have (string) 'type' field"),
        of("/delegate/name", json!("n"), 7, "'delegate' dictionary must not have 'name' field"),
        of("/delegate/ipam", json!({}), 7, "'delegate' dictionary must not have 'ipam' field"),
        of("/delegate/type", json!("flannel"), 7, "flannel cannot delegate to itself"),
        of("/delegate/type", json!("../x"), 7, "invalid plugin name"),
        of("/delegate/type", json!("nowhere"), 103, "failed to find plugin \"nowhere\""),
        of("/ipam/routes", json!([{"gw": "10.77.0.1"}]), 7, "failed to parse ipam.routes: routes[0].dst: is missing"),
        of("/subnetFile", json!("/nonexistent"), 11, "flanneld has not written /nonexistent yet"),
        of("/subnetFile", json!("/"), 100, "failed to load flannel 'subnet.env' file: read /: not a regular file"),
        bad(&["flannel"], "ADD", NONE, 4, "required env variables [CNI_PATH] missing").without(&["CNI_PATH"]),
    ]
}

#[test]
fn an_invalid_call_has_its_code_and_one_document_and_makes_nothing() {
    let scene = Scene::new();
    let before = HostSnapshot::of(&scene.host);
    let inside = HostSnapshot::inside(&scene.container);
    let values = [
        values(),
        values_of_host_local(),
        values_of_static(),
        values_of_dhcp(),
        values_of_flannel(),
        values_of_tuning(),
        values_of_sbr(),
        values_of_vrf(),
        values_of_host_device(),
        values_of_bandwidth(),
        values_of_tap(),
        values_of_firewall(),
        values_of_portmap(),
    ];
    let table = [documents(), variables(), names(), sandboxes(&scene), args(), types(&scene)].into_iter().chain(values);
    let mut wrong = Vec::new();
    let schemas: BTreeMap<&str, Schema> = ALL.iter().map(|plugin| (*plugin, Schema::of(Some(plugin)))).collect();
    for plugin in ALL {
        let errors = schemas[plugin].errors(&scene.conf(plugin));
        assert_eq!(errors, "", "the schema refuses the valid configuration of {plugin}");
    }
    let mut unseen: BTreeSet<&str> = NOT_IN_THE_SCHEMA.into();
    for bad in table.flatten() {
        for plugin in bad.plugins {
            if let Some(conf) = scene.refused_conf(plugin, &bad) {
                let expected = NOT_IN_THE_SCHEMA.iter().find(|says| bad.says.contains(**says));
                // To JSON Schema 1e3 is an integer.
                let is_valid = schemas[plugin].errors(&conf).is_empty() && !conf.to_string().contains("1000.0");
                match expected {
                    Some(says) if is_valid => _ = unseen.remove(says),
                    None if is_valid => wrong.push(format!("{}: valid by the schema", bad.what(plugin))),
                    _ => {}
                }
            }
            let output = scene.call(plugin, &bad);
            wrong.extend(
                check_refusal(plugin, &bad, &output)
                    .err()
                    .map(|why| format!("{}: {why}: {output:?}", bad.what(plugin))),
            );
        }
    }
    assert!(unseen.is_empty(), "no schema accepts what is refused with {unseen:?}");
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after all bad calls");
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&inside, &[], "in the container after all bad calls");
}

/// The refusals that no schema expresses, by their texts: relations between values, the state of the host, what another plugin
/// reads, and the names of chains.
const NOT_IN_THE_SCHEMA: [&str; 50] = [
    "selinuxContext",
    "is no option",
    "the DHCP client writes option",
    "the value has 256",
    "hexValue",
    "nftables-specific options",
    "iptables-specific options",
    "invalid MTU 67",
    "does not support more than 1 address per family",
    "No IP addresses supplied",
    "multiple IPv4 addresses",
    "multiple IPv6 addresses",
    "more than 2 entries",
    "without snat",
    "the kernel lets nothing from ::1",
    "Cannot specify externalSetMarkChain",
    "Network has host bits set",
    "invalid range set 0",
    "no IP ranges specified",
    "cannot be the name of a device",
    "the host has no device",
    "cannot be moved",
    "specify either",
    "the host has no PCI device",
    "must be absolute and begin with",
    "is not a device",
    "failed to read directory",
    "is not a hardware address",
    "no device with the address",
    "runtime config DeviceID",
    "flanneld has not written",
    "not a regular file",
    "routes[0].dst: is missing",
    "failed to find plugin",
    "cannot delegate to itself",
    "invalid plugin name",
    "'type' field",
    "'name' field",
    "'ipam' field",
    "is a reserved name",
    "cannot be the name of a chain",
    "needs a bridge",
    "minID is greater",
    "cannot set hairpin",
    "cannot use IPAM",
    "subnets are too many",
    "burst cannot be more",
    "is too low",
    "burst must also be set",
    "rate must also be set",
];

/// Exactly one document with the keys of an error object, whose details name the call.
fn check_refusal(plugin: &str, bad: &Bad, output: &CallOutput) -> Result<(), String> {
    let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    check(output.exit == 1, "the exit status is not 1")?;
    check(output.stderr.is_empty(), "it speaks on stderr")?;
    let error: Value = serde_json::from_str(&output.stdout).map_err(|error| error.to_string())?;
    let keys: Vec<&String> = error.as_object().into_iter().flat_map(Map::keys).collect();
    check(keys == ["cniVersion", "code", "msg", "details"], "not the keys of an error object")?;
    check(
        ["0.1.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].contains(&error["cniVersion"].as_str().unwrap()),
        "cniVersion",
    )?;
    check(error["code"] == bad.code, &format!("the code is not {}", bad.code))?;
    let msg = error["msg"].as_str().unwrap();
    let details = error["details"].as_str().unwrap();
    check(format!("{msg}; {details}").contains(&bad.says), &format!("{:?} is not said", bad.says))?;
    check(context(plugin, bad).iter().all(|one| details.contains(one)), "the details do not tell whose call it was")
}

/// The details of the error: plugin and verb, and container, interface and network as far as they are parsed.
fn context(plugin: &str, bad: &Bad) -> Vec<String> {
    let known = |name| match bad.env.iter().find(|(changed, _)| *changed == name) {
        Some((_, value)) => value.clone().filter(|value| !value.is_empty()),
        None => Some(if name == "CNI_IFNAME" { "eth0".to_owned() } else { "c-bad".to_owned() }),
    };
    let early = ["required env", "invalid characters in containerID", "interface name"];
    let network = match &bad.stdin {
        // The variables are validated before stdin is read.
        _ if bad.code == 4 && early.iter().any(|says| bad.says.starts_with(says)) => None,
        Stdin::With(changes) if changes.iter().any(|(pointer, _)| pointer == "/name") => None,
        Stdin::With(_) => Some("network badnet".to_owned()),
        Stdin::Raw(_) => None,
    };
    let container = known("CNI_CONTAINERID").map(|id| format!("container {id}"));
    let interface = known("CNI_IFNAME").map(|ifname| format!("interface {ifname}"));
    [Some(format!("{plugin} {}", bad.verb)), network, container, interface].into_iter().flatten().collect()
}

/// Required keys, and elements of lists.
const REQUIRED: &[(&[&str], &str)] = &[
    (ALL, "/name"),
    (ALL, "/prevResult/interfaces/0"),
    (ALL, "/prevResult/ips/0"),
    (ALL, "/prevResult/ips/0/address"),
    (&["ptp", "host-local", "static", "dhcp"], "/ipam"),
    (DHCP, "/ipam/provide/0"),
    (DHCP, "/ipam/families/0"),
    (DHCP, "/ipam/request/0"),
    (POOL, "/ipam/allowedPools/0"),
    (POOL, "/ipam/families/0"),
    (&["ptp"], "/ipam/type"),
    (IPAM, "/ipam/routes/0"),
    (IPAM, "/ipam/routes/0/dst"),
    (&["host-local"], "/ipam/ranges/0"),
    (&["host-local"], "/ipam/ranges/0/0"),
    (&["host-local"], "/ipam/ranges/0/0/subnet"),
    (&["static"], "/ipam/addresses/0"),
];

fn is_required(plugin: &str, pointer: &str) -> bool {
    REQUIRED.iter().any(|(plugins, required)| plugins.contains(&plugin) && *required == pointer)
}

#[test]
fn a_null_is_as_good_as_an_absent_key() {
    let scene = Scene::new();
    for (plugins, pointer, _) in KEYS {
        for plugin in plugins.iter().filter(|plugin| !is_required(plugin, pointer)) {
            let mut absent = scene.conf(plugin);
            if pointer.starts_with("/prevResult/") {
                absent["prevResult"] = scene.prev();
            }
            let mut null = absent.clone();
            set(&mut null, pointer, Value::Null);
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            absent.pointer_mut(parent).and_then(Value::as_object_mut).map(|parent| parent.shift_remove(key));
            // Both are planned the same way, or refused the same way because something is missing. A delegate gets its
            // configuration unchanged.
            let planned = |conf: Value| {
                let mut output = scene.run(plugin, "PLAN", &[], conf.to_string().as_bytes()).json();
                if let Some(steps) = output["plan"].as_array_mut() {
                    steps.retain(|step| step.as_str().is_some_and(|step| !step.starts_with("hand to ")));
                }
                output
            };
            let plans = [null, absent].map(planned);
            assert_eq!(plans[0], plans[1], "{plugin} {pointer}");
        }
    }
}

#[test]
fn keys_in_any_case_are_read_and_of_several_spellings_the_last_wins() {
    let scene = Scene::new();
    let usual = |keys: &str| {
        format!(
            r#"{{"cniVersion":"1.1.0","name":"badnet","type":"x","ipam":{{"type":"host-local","subnet":"10.0.0.0/24"}},{keys}}}"#
        )
    };
    let alike = [
        ("bridge", r#""bridge":"br7","isGateway":true,"mtu":1400"#, r#""BRIDGE":"br7","IsGateway":true,"Mtu":1400"#),
        ("bridge", r#""bridge":"br7""#, r#""bridge":"br6","Bridge":"br7""#),
        ("bridge", r#""bridge":"br7""#, r#""bridge":"br7","Bridge":null"#),
        ("bridge", r#""mtu":1400"#, r#""mtu":"a wrong type","Mtu":1400"#),
        ("bridge", r#""runtimeConfig":{"mac":"0a:00:00:00:00:01"}"#, r#""RuntimeConfig":{"MAC":"0a:00:00:00:00:01"}"#),
        ("ptp", r#""ipMasq":true,"mtu":1400"#, r#""IPMasq":false,"IPMASQ":true,"MTU":1400"#),
        ("host-local", r#""runtimeConfig":{"ips":["10.0.0.9"]}"#, r#""RUNTIMECONFIG":{"IPs":["10.0.0.9"]}"#),
        (
            "host-local",
            r#""Ipam":{"subnet":"10.9.0.0/24"}"#,
            r#""IPAM":{"Subnet":"10.8.0.0/24","SUBNET":"10.9.0.0/24"}"#,
        ),
        // Comments are not keys.
        ("bridge", r#""mtu":1400"#, r#""mtu":1400,"//":"one","//":"two","_":1,"_":2"#),
    ];
    for (plugin, one, other) in alike {
        let plans = [one, other].map(|keys| scene.plan(plugin, &usual(keys)));
        assert_eq!(plans[0], plans[1], "{plugin}: {one} and {other}");
        assert_ne!(plans[0], scene.plan(plugin, &usual(r#""unknown":1"#)), "{plugin}: {one} changes nothing");
    }
}

#[test]
fn a_duplicate_key_is_refused_by_all_verbs_but_del_and_gc() {
    let scene = Scene::new();
    let before = HostSnapshot::of(&scene.host);
    let duplicates = [
        (r#""mtu":1400,"mtu":1300"#, r#"duplicated keys are not allowed: "mtu" is given more than once"#),
        (r#""mtu":null,"mtu":1300"#, r#""mtu" is given"#),
        (
            r#""sysctl":{"net.core.somaxconn":"1","net.core.somaxconn":"2"}"#,
            "duplicated sysctl keys are not allowed: \"net.core",
        ),
        (r#""args":{"cni":{"ips":[],"ips":[]}}"#, r#"duplicated args.cni keys are not allowed: "ips""#),
        (r#""capabilities":{"mac":true,"mac":false}"#, r#"duplicated capabilities keys are not allowed: "mac""#),
        (
            r#""runtimeConfig":{"portMappings":[{},{"hostPort":80,"hostPort":81}]}"#,
            r#"duplicated runtimeConfig.portMappings[1] keys are not allowed: "hostPort""#,
        ),
    ];
    for plugin in ALL {
        let conf = scene.conf(plugin);
        let with = |keys: &str| conf.to_string().replacen('{', &format!("{{{keys},"), 1).into_bytes();
        for (keys, says) in duplicates {
            for verb in ["ADD", "PLAN", "CHECK", "STATUS"] {
                let (code, text) = scene.run(plugin, verb, &[], &with(keys)).refused();
                assert!(code == 7 && text.contains(says), "{plugin} {verb} {keys}: {code} {text}");
                assert!(text.contains("remove all but one of them"), "{plugin} {verb} {keys}: {text}");
            }
            scene.run(plugin, "DEL", &[], &with(keys)).ok();
            scene.run(plugin, "GC", &[], &with(&format!(r#""cni.dev/valid-attachments":[],{keys}"#))).ok();
        }
        // Documents that only programs write are not searched for duplicate keys.
        let said_twice =
            r#""prevResult":{"dns":{"domain":"a","domain":"b"},"cniVersion":"1.1.0","cniVersion":"1.1.0"}"#;
        scene.run(plugin, "PLAN", &[], &with(said_twice)).ok();
    }
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &SHARED, "after calls with duplicate keys");
}

#[test]
fn cni_args_are_ignored_by_del_and_by_plugins_without_args() {
    let scene = Scene::new();
    let before = HostSnapshot::of(&scene.host);
    for args in ["FOO=bar", "garbage", "A=b=c", "FOO=bar;IgnoreUnknown=maybe"] {
        let env = [("CNI_ARGS", Some(args.to_owned()))];
        for plugin in ALL {
            scene.run(plugin, "DEL", &env, scene.conf(plugin).to_string().as_bytes()).ok();
        }
        let (_, text) = scene.run("ptp", "PLAN", &env, scene.conf("ptp").to_string().as_bytes()).refused();
        assert!(text.contains("host-local PLAN"), "it is the IPAM plugin that looks at them: {text}");
        scene.run("loopback", "PLAN", &env, scene.conf("loopback").to_string().as_bytes()).ok();
        scene.run("loopback", "ADD", &env, scene.conf("loopback").to_string().as_bytes()).ok();
    }
    for plugin in KNOWING_ARGS {
        let env = [("CNI_ARGS", Some("IgnoreUnknown=TRUE;FOO=bar".to_owned()))];
        scene.run(plugin, "PLAN", &env, scene.conf(plugin).to_string().as_bytes()).ok();
    }
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after calls with strange CNI_ARGS");
}

#[test]
fn del_asks_nothing_of_a_key_that_it_does_not_need() {
    let scene = Scene::new();
    let needed = ["/cniVersion", "/name"];
    for (plugins, pointer, sort) in KEYS.iter().filter(|(_, pointer, _)| !needed.contains(pointer)) {
        // Without its directory it would use the machine's own.
        for plugin in plugins.iter().filter(|plugin| **plugin != "host-local" && !pointer.starts_with("/ipam")) {
            let mut conf = scene.conf(plugin);
            conf["prevResult"] = scene.prev();
            set(&mut conf, pointer, sort.wrong()[0].clone());
            let output = scene.run(plugin, "DEL", &[], conf.to_string().as_bytes());
            assert_eq!((output.exit, output.stdout.as_str()), (0, ""), "{plugin} {pointer}: {}", output.stderr);
        }
    }
}

#[test]
fn the_hosts_own_namespace_is_served_where_that_is_meant() {
    let scene = Scene::new();
    scene.host.sh("ip link add wire0 type veth peer name wire1 && ip link set wire0 up && ip link set wire1 up");
    let before = HostSnapshot::of(&scene.host);
    let conf = scene.conf("bridge").to_string();
    let mut above = scene.conf("macvlan");
    above["master"] = json!("wire0");
    above["ipam"] = json!({});
    let above = above.to_string();
    for meant in ["1", "true", "TRUE"] {
        let own = [("CNI_NETNS", Some("/proc/self/ns/net".to_owned())), ("CNI_NETNS_OVERRIDE", Some(meant.to_owned()))];
        scene.run("bridge", "ADD", &own, conf.as_bytes()).ok();
        assert!(scene.host.sh("ip address show dev eth0").contains("10.77.0."), "{meant}");
        scene.run("bridge", "DEL", &own, conf.as_bytes()).ok();
        // A DEL of macvlan has the container's namespace alone to look for the link in.
        scene.run("macvlan", "ADD", &own, above.as_bytes()).ok();
        scene.run("macvlan", "DEL", &own, above.as_bytes()).ok();
        assert!(!scene.host.try_sh("ip link show dev eth0").0, "{meant}");
    }
    let left = HostSnapshot::of(&scene.host).added_since(&before, &SHARED);
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failed_add_that_leaves_nothing() {
    let scene = Scene::new();
    let before = HostSnapshot::of(&scene.host);
    let inside = HostSnapshot::inside(&scene.container);
    let ways = [
        ("full", "", ">/dev/full"),
        ("a pipe that is not read", "trap '' PIPE; while echo x; do :; done 2>/dev/null;", ""),
    ];
    for (n, (stdout, before, redirection)) in ways.into_iter().enumerate() {
        for plugin in ["bridge", "ptp", "host-local"] {
            let conf = scene.host.dir().join("conf.json");
            std::fs::write(&conf, scene.conf(plugin).to_string()).unwrap();
            let call = format!(
                "CNI_COMMAND=ADD CNI_CONTAINERID=c-{n} CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={bin} {bin}/{plugin} <{}",
                scene.container.path(),
                conf.display(),
                bin = bin().display(),
            );
            let (_, output) =
                scene.host.try_sh(&format!("{{ {before} {call} {redirection}; echo exit $? >&2; }} | true"));
            assert!(
                output.contains("could not be written to stdout") && output.ends_with("exit 1\n"),
                "{plugin}, {stdout}: {output}"
            );
            std::fs::remove_file(&conf).unwrap();
        }
    }
    let left = HostSnapshot::of(&scene.host).added_since(&before, &SHARED);
    assert!(left.is_empty(), "{left:#?}");
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&inside, &[], "in the container");
}

#[test]
fn an_unreadable_stdin_differs_from_an_empty_one() {
    let scene = Scene::new();
    for plugin in ALL {
        for (stdin, code, says) in
            [("</", 5, "error reading from stdin: Is a directory"), ("<&-", 6, "error unmarshall")]
        {
            let call =
                format!("CNI_COMMAND=DEL CNI_CONTAINERID=c CNI_IFNAME=eth0 {}/{plugin} {stdin}", bin().display());
            let error: Value = serde_json::from_str(&scene.host.try_sh(&call).1).unwrap();
            assert_eq!(error["code"], code, "{plugin} {stdin}: {error}");
            assert!(error["msg"].as_str().unwrap().contains(says), "{plugin} {stdin}: {error}");
        }
    }
}

#[test]
fn a_type_with_a_path_in_it_is_never_run() {
    let scene = Scene::new();
    let dir = scene.host.dir();
    // The target of `../x` from the directory of plugins.
    let plugins = dir.join("plugins");
    let ran = dir.join("ran");
    std::fs::create_dir(&plugins).unwrap();
    scene.host.sh(&format!(
        "printf '#!/bin/sh\ntouch {}\n' >{2}/x; chmod +x {2}/x; mkdir {1}/a; cp {2}/x {1}/a/b",
        ran.display(),
        plugins.display(),
        dir.display()
    ));
    for name in ["../x", "a/b", "/bin/true", ".", ".."] {
        let conf = json!({"cniVersion": "1.0.0", "name": "paths", "plugins": [{"type": name}]});
        std::fs::write(dir.join("paths.conflist"), conf.to_string()).unwrap();
        for verb in ["add", "check", "del"] {
            let (_, output) = scene.host.try_sh(&format!(
                "CNI_PATH={} NETCONFPATH={d} CNI_CACHE_DIR={d}/cache {} {verb} paths {}",
                plugins.display(),
                program("cnitool").display(),
                scene.container.path(),
                d = dir.display()
            ));
            assert!(output.contains(name) || verb == "check", "{verb} {name}: {output}");
        }
    }
    for plugin in ASKING_IPAM {
        for name in ["../x", "a/b"] {
            let mut conf = scene.conf(plugin);
            conf["ipam"]["type"] = name.into();
            let env = [("CNI_PATH", Some(plugins.display().to_string()))];
            for verb in ["ADD", "DEL", "STATUS"] {
                scene.run(plugin, verb, &env, conf.to_string().as_bytes()).refused();
            }
        }
    }
    assert!(!ran.exists(), "a path was run");
}
