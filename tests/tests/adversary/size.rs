//! Large input is answered in bounded time, or refused at once.
//!
//! Times are processor times of the installed plugin and of its children, so a busy machine does not lengthen them.

use std::fs;

use cnikit::types::limit;
use cnikit_testkit::campaign::sample;
use cnikit_testkit::{CallOutput, Container, Host};
use cnikit_tests::way::script;
use cnikit_tests::{NAMES, installed};
use serde_json::{Value, json};

/// A little less than the limit of stdin.
const MOST: usize = 16_000_000;
/// Seconds for any input. The aim is 2; the rest is for other load of the processor.
const ANY: f64 = 5.0;
/// Seconds for input within the limits that took much longer: processors differ.
const ANY_WITHIN: f64 = 4.0;
/// Seconds for as many port mappings as are served.
const PORTS: f64 = 8.0;

/// One of the backends, by chance. `CNIKIT_CAMPAIGNS=whole`: both.
fn backends(what: &str) -> Vec<&'static str> {
    sample(&format!("backends of {what}"), vec!["nftables", "iptables"], 1)
}

struct Node {
    host: Host,
    container: Container,
}

impl Node {
    fn new() -> Node {
        let host = Host::new();
        let container = host.container();
        container
            .sh("ip link set lo up; ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up");
        Node { host, container }
    }

    /// The outcome of one call, and the seconds of processor time that it took.
    fn call(&self, plugin: &str, verb: &str, conf: &[u8]) -> (CallOutput, f64) {
        self.call_of("large", plugin, verb, conf)
    }

    /// The same for another container.
    fn call_of(&self, container: &str, plugin: &str, verb: &str, conf: &[u8]) -> (CallOutput, f64) {
        let dir = self.host.dir();
        fs::write(dir.join("conf"), conf).unwrap();
        let ifname = if plugin == "loopback" { "lo" } else { "eth0" };
        let variables = format!(
            "CNI_COMMAND={verb} CNI_CONTAINERID={container} CNI_NETNS={} CNI_IFNAME={ifname} CNI_PATH={}",
            self.container.path(),
            installed().display()
        );
        let program = installed().join(plugin);
        let line =
            format!("cd {} && {variables} {} <conf >out 2>err; echo $?; times", dir.display(), program.display());
        let told = self.host.sh(&line);
        let lines: Vec<&str> = told.lines().collect();
        let text = |name: &str| String::from_utf8_lossy(&fs::read(dir.join(name)).unwrap()).into_owned();
        let output = CallOutput { exit: lines[0].parse().unwrap(), stdout: text("out"), stderr: text("err") };
        (output, lines[2].split_whitespace().map(seconds).sum())
    }

    /// One call with a document.
    fn ask(&self, plugin: &str, verb: &str, conf: &Value) -> (CallOutput, f64) {
        self.call(plugin, verb, conf.to_string().as_bytes())
    }

    fn result(&self) -> Value {
        let interfaces = json!([{"name": "eth0", "sandbox": self.container.path()}]);
        json!({"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [{"address": "10.1.0.2/24", "interface": 0}]})
    }

    fn published(&self, backend: &str, count: usize) -> Value {
        let mapping = |port: usize| json!({"hostPort": port, "containerPort": port, "protocol": "tcp"});
        json!({
            "cniVersion": "1.1.0",
            "name": "large",
            "type": "portmap",
            "backend": backend,
            "runtimeConfig": {"portMappings": (1..=count).map(mapping).collect::<Vec<_>>()},
            "prevResult": self.result(),
        })
    }

    fn rules(&self) -> usize {
        self.host
            .sh("nft list ruleset 2>/dev/null | grep -v CNI-HOSTPORT | grep -cE 'dnat|DNAT' || true")
            .trim()
            .parse()
            .unwrap()
    }
}

/// Of `0m1.25s`.
fn seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}

fn as_many_ports_as_are_served(backend: &str) {
    let node = Node::new();
    let conf = node.published(backend, limit::MEMBERS);
    for verb in ["ADD", "CHECK", "ADD", "DEL", "DEL"] {
        let (output, took) = node.ask("portmap", verb, &conf);
        output.ok();
        assert!(took < PORTS, "{backend}: {verb} of {} mappings took {took} seconds", limit::MEMBERS);
        if verb == "ADD" {
            assert!(node.rules() >= limit::MEMBERS, "{backend}: {} rules", node.rules());
        }
    }
    assert_eq!(node.rules(), 0, "{backend}");
    let elements = node.host.sh("nft list ruleset 2>/dev/null | grep -c 'tcp \\. ' || true");
    assert_eq!(elements.trim(), "0", "{backend}: DEL removes the keys with the rules");
}

#[test]
fn nftables_serves_as_many_ports_as_are_allowed() {
    as_many_ports_as_are_served("nftables");
}

#[test]
fn iptables_serves_as_many_ports_as_are_allowed() {
    as_many_ports_as_are_served("iptables");
}

#[test]
fn more_ports_are_refused_at_once_and_nothing_is_made() {
    let node = Node::new();
    for backend in backends("more ports") {
        let conf = node.published(backend, 65_535);
        for verb in ["ADD", "CHECK", "RESTORE", "PLAN"] {
            let (output, took) = node.ask("portmap", verb, &conf);
            let (code, text) = output.refused();
            assert_eq!(code, 7, "{text}");
            assert!(text.contains("portMappings: has 65535 entries, and at most 16384 are allowed"), "{text}");
            assert!(took < ANY, "{backend}: {verb} took {took} seconds");
        }
        assert_eq!(node.rules(), 0);
        node.ask("portmap", "DEL", &conf).0.ok();
    }
}

/// Each port has a rule for each network that the container is in: the product is limited too.
#[test]
fn ports_of_many_networks_are_refused_where_their_rules_would_be_too_many() {
    let node = Node::new();
    for backend in backends("ports of networks") {
        let mut conf = node.published(backend, limit::MEMBERS);
        let address = |n: usize| json!({"address": format!("10.{}.{}.2/24", n / 256, n % 256), "interface": 0});
        conf["prevResult"]["ips"] = (0..limit::RESULT).map(address).collect();
        let (output, took) = node.ask("portmap", "ADD", &conf);
        let (code, text) = output.refused();
        assert_eq!(code, 7, "{text}");
        assert!(text.contains("rules to write, and at most 65536 are allowed"), "{text}");
        assert!(took < ANY, "{took} seconds");
        assert_eq!(node.rules(), 0);
    }
}

/// Of all ports that conflict one is named. It is found without a comparison of each pair.
#[test]
fn all_ports_of_another_container_are_refused_in_bounded_time() {
    let node = Node::new();
    for backend in backends("ports of another container") {
        let conf = node.published(backend, limit::MEMBERS);
        node.ask("portmap", "ADD", &conf).0.ok();
        let before = node.rules();
        for taken in ["refuse", "firstWins"] {
            let mut other = conf.clone();
            other["name"] = json!("other");
            other["hostPortTaken"] = json!(taken);
            other["prevResult"]["ips"][0]["address"] = json!("10.1.0.3/24");
            let (output, took) = node.call_of("other", "portmap", "ADD", other.to_string().as_bytes());
            if taken == "refuse" {
                assert_eq!(output.refused().0, 101, "{backend}");
                assert_eq!(node.rules(), before, "{backend}");
            }
            assert!(took < PORTS, "{backend}, {taken}: {took} seconds");
        }
        node.host.sh("nft flush ruleset");
    }
}

#[test]
fn the_first_of_many_differences_are_named_and_the_rest_counted() {
    let node = Node::new();
    let conf = node.published("nftables", 2_000);
    node.ask("portmap", "ADD", &conf).0.ok();
    node.host.sh("nft flush chain ip cni_hostport hostports");
    let (output, _) = node.ask("portmap", "CHECK", &conf);
    let (code, text) = output.refused();
    assert_eq!(code, 102, "{text}");
    assert!(text.contains("and 1900 more"), "{text}");
    assert!(output.stdout.len() < 3 * limit::ERROR, "{} bytes", output.stdout.len());
}

/// A text of any length in an error loses its middle.
#[test]
fn an_error_is_short_however_long_the_input_is() {
    let node = Node::new();
    let long = "/".repeat(MOST);
    for (plugin, key) in [("bridge", "bridge"), ("macvlan", "mode"), ("portmap", "name"), ("ptp", "cniVersion")] {
        let mut conf = json!({"cniVersion": "1.1.0", "name": "large", "type": plugin});
        conf[key] = json!(long);
        let (output, took) = node.ask(plugin, "ADD", &conf);
        assert_eq!(output.exit, 1);
        assert!(output.stdout.len() < 3 * limit::ERROR, "{plugin}: {key}: {} bytes", output.stdout.len());
        assert!(took < ANY, "{plugin}: {key}: {took} seconds");
    }
}

/// As many elements as fit, in bytes and in values.
fn fill(prefix: &str, suffix: &str, one: impl Fn(usize) -> String) -> Vec<u8> {
    let mut text = String::with_capacity(MOST + 100);
    text.push_str(prefix);
    let mut rest = limit::VALUES - 100;
    for n in 0.. {
        let element = one(n);
        let values = 1 + element.bytes().filter(|byte| b"{[,".contains(byte)).count();
        if text.len() > MOST || values > rest {
            break;
        }
        rest -= values;
        if n > 0 {
            text.push(',');
        }
        text.push_str(&element);
    }
    text.push_str(suffix);
    text.into_bytes()
}

fn address(n: usize) -> String {
    format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255)
}

/// Limits of both directions for bandwidth.
const LIMITS: &str = r#""ingressRate":8000000,"ingressBurst":80000,"egressRate":8000000,"egressBurst":80000"#;

/// A call of a plugin: its name and the verb.
type Call = (&'static str, &'static str);

/// How many of the documents a run takes.
const SOME: usize = 8;

/// Documents of the largest accepted size, by the part that is repeated; and the calls that read that part.
#[expect(clippy::too_many_lines, reason = "a table")]
fn documents() -> Vec<(&'static str, Vec<u8>, Vec<Call>)> {
    let head = r#"{"cniVersion":"1.1.0","name":"large","type":"any""#;
    let in_list = |path: &str, end: &str, one: &dyn Fn(usize) -> String| {
        fill(&format!("{head},{path}["), &format!("]{end}}}"), one)
    };
    let ip = |n: usize| format!(r#"{{"address":"{}/8"}}"#, address(n));
    let route = |n: usize| format!(r#"{{"dst":"{}/32"}}"#, address(n));
    let range = |n: usize| format!(r#"[{{"subnet":"{}/30"}}]"#, address(n * 4));
    let in_set = |n: usize| format!(r#"{{"subnet":"{}/30"}}"#, address(n * 4));
    let mapping = |n: usize| format!(r#"{{"hostPort":{},"containerPort":80,"protocol":"udp"}}"#, n % 65_535 + 1);
    let valid = |n: usize| format!(r#"{{"containerID":"c{n}","ifname":"eth0"}}"#);
    let text = |n: usize| format!(r#""{}""#, address(n));
    let subnet = |n: usize| format!(r#""{}/32""#, address(n));
    let provided = |n: usize| format!(r#"{{"option":"{}","value":"v"}}"#, n % 254 + 1);
    let requested = |n: usize| format!(r#"{{"option":"{}"}}"#, n % 254 + 1);
    let family = |n: usize| format!(r#""{}""#, ["v4", "v6", "slaac"][n % 3]);
    let again = |n: usize| format!(r#""k{}":{{"m{}":{n}}}"#, n % 100_000, n % 7);
    vec![
        (
            "addresses in prevResult",
            in_list(r#""prevResult":{"cniVersion":"1.1.0","ips":"#, "}", &ip),
            vec![("firewall", "ADD"), ("portmap", "DEL"), ("sbr", "ADD"), ("sbr", "DEL")],
        ),
        (
            "routes in prevResult",
            in_list(r#""prevResult":{"cniVersion":"1.1.0","routes":"#, "}", &route),
            vec![("macvlan", "DEL"), ("tuning", "ADD")],
        ),
        (
            "interfaces in prevResult",
            in_list(r#""prevResult":{"interfaces":"#, "}", &|n| format!(r#"{{"name":"i{n}"}}"#)),
            vec![("tuning", "DEL"), ("portmap", "ADD")],
        ),
        (
            "addresses of static",
            in_list(r#""ipam":{"type":"static","addresses":"#, "}", &ip),
            vec![("ptp", "ADD"), ("static", "DEL")],
        ),
        ("routes of static", in_list(r#""ipam":{"type":"static","routes":"#, "}", &route), vec![("bridge", "ADD")]),
        (
            "sets of host-local",
            in_list(r#""ipam":{"type":"host-local","ranges":"#, "}", &range),
            vec![("bridge", "ADD"), ("host-local", "DEL")],
        ),
        (
            "ranges of host-local",
            in_list(r#""ipam":{"type":"host-local","ranges":["#, "]}", &in_set),
            vec![("host-local", "ADD"), ("bridge", "DEL")],
        ),
        (
            "ipRanges",
            in_list(r#""ipam":{"type":"host-local"},"runtimeConfig":{"ipRanges":"#, "}", &range),
            vec![("host-local", "ADD"), ("ptp", "DEL")],
        ),
        ("ips", in_list(r#""ipam":{"type":"static"},"runtimeConfig":{"ips":"#, "}", &text), vec![("macvlan", "ADD")]),
        (
            "args.cni.ips",
            in_list(r#""ipam":{"type":"host-local"},"args":{"cni":{"ips":"#, "}}", &text),
            vec![("ipvlan", "ADD")],
        ),
        (
            "portMappings",
            in_list(r#""runtimeConfig":{"portMappings":"#, "}", &mapping),
            vec![("portmap", "ADD"), ("portmap", "DEL")],
        ),
        ("name servers", in_list(r#""dns":{"nameservers":"#, "}", &text), vec![("ptp", "ADD")]),
        (
            "valid attachments",
            in_list(r#""cni.dev/valid-attachments":"#, "", &valid),
            ["bandwidth", "dhcp", "firewall", "host-device", "host-local", "sbr", "vrf"]
                .map(|plugin| (plugin, "GC"))
                .into(),
        ),
        ("attachments of RESTORE", in_list(r#""cni.dev/attachments":"#, "", &valid), vec![("portmap", "RESTORE")]),
        (
            "subnets that are limited",
            in_list(&format!(r#"{LIMITS},"shapedSubnets":"#), "", &subnet),
            vec![("bandwidth", "ADD"), ("bandwidth", "DEL")],
        ),
        (
            "subnets that are not limited",
            in_list(&format!(r#"{LIMITS},"unshapedSubnets":"#), "", &subnet),
            vec![("bandwidth", "ADD"), ("bandwidth", "DEL")],
        ),
        ("gateways", in_list(r#""gateways":"#, "", &text), vec![("sbr", "ADD"), ("sbr", "DEL")]),
        (
            "options that are sent",
            in_list(r#""ipam":{"type":"dhcp","provide":"#, "}", &provided),
            vec![("dhcp", "ADD"), ("dhcp", "DEL")],
        ),
        (
            "options that are asked for",
            in_list(r#""ipam":{"type":"dhcp","request":"#, "}", &requested),
            vec![("dhcp", "ADD"), ("dhcp", "DEL")],
        ),
        (
            "families",
            in_list(r#""ipam":{"type":"dhcp","families":"#, "}", &family),
            vec![("dhcp", "ADD"), ("dhcp", "DEL")],
        ),
        (
            "VLANs",
            in_list(r#""bridge":"b","vlanTrunk":"#, "", &|n| format!(r#"{{"id":{}}}"#, n % 4094 + 1)),
            vec![("bridge", "ADD")],
        ),
        (
            "sysctls",
            fill(&format!(r#"{head},"sysctl":{{"#), "}}", |n| format!(r#""net.a{n}":"1""#)),
            vec![("tuning", "ADD"), ("tuning", "DEL")],
        ),
        (
            "members of a delegate",
            fill(&format!(r#"{head},"delegate":{{"#), "}}", |n| format!(r#""a{n}":1"#)),
            vec![("flannel", "ADD"), ("flannel", "DEL")],
        ),
        ("keys that come again", fill(&format!("{head},"), "}", again), vec![("ipvlan", "DEL"), ("loopback", "ADD")]),
    ]
}

/// Every list of any plugin, in the plugins that support it: some of them, by chance. `CNIKIT_CAMPAIGNS=whole`: all.
#[test]
fn any_input_of_16_megabytes_is_answered_in_bounded_time() {
    let node = Node::new();
    let mut slow = Vec::new();
    for (what, conf, calls) in sample("large documents", documents(), SOME) {
        for (plugin, verb) in calls {
            let (output, took) = node.call(plugin, verb, &conf);
            assert!(output.exit == 0 || output.exit == 1, "{plugin} {verb}, {what}: {output:?}");
            assert!(verb != "DEL" || output.exit == 0, "DEL refuses no list: {plugin}, {what}: {output:?}");
            if took > ANY {
                slow.push(format!("{plugin} {verb}, {what}: {took} seconds"));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

/// 16 MB can have eight million lists, of a hundred bytes in memory each: none is made.
#[test]
fn more_values_than_are_served_are_refused_at_once_by_every_plugin() {
    let node = Node::new();
    let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let conf = format!(
        r#"{{"cniVersion":"1.1.0","name":"large","type":"any","x":[{nested}{}]}}"#,
        format!(",{nested}").repeat(MOST / 201)
    );
    for plugin in NAMES {
        for verb in ["ADD", "DEL"] {
            let (output, took) = node.call(plugin, verb, conf.as_bytes());
            let (code, text) = output.refused();
            assert_eq!(code, 6, "{text}");
            assert!(text.contains("has more than 524288 values, which is the limit"), "{text}");
            assert!(took < 1.0, "{plugin} {verb}: {took} seconds");
        }
    }
}

/// The largest prevResult of a chained plugin, and the rules made from it.
#[test]
fn as_many_addresses_and_routes_as_are_served_are_answered_in_bounded_time() {
    let node = Node::new();
    let mut conf = json!({"cniVersion": "1.1.0", "name": "large", "type": "firewall", "prevResult": node.result()});
    let prev = &mut conf["prevResult"];
    prev["ips"] =
        (1..=limit::RESULT).map(|n| json!({"address": format!("{}/8", address(n)), "interface": 0})).collect();
    prev["routes"] = (1..=limit::RESULT).map(|n| json!({"dst": format!("{}/32", address(n << 8))})).collect();
    for backend in backends("addresses and routes") {
        conf["backend"] = json!(backend);
        for (plugin, verbs) in [("firewall", &["ADD", "CHECK", "DEL", "DEL"][..]), ("tuning", &["ADD", "DEL"])] {
            for verb in verbs {
                let (output, took) = node.ask(plugin, verb, &conf);
                output.ok();
                assert!(took < ANY_WITHIN, "{backend}: {plugin} {verb} took {took} seconds");
            }
        }
    }
    assert_eq!(node.host.sh("nft list ruleset 2>/dev/null | grep -F 10.0.1. | head -3"), "");
}

/// host-local had no limit: reservations that it made then are freed, all at once, with an index and without.
#[test]
fn as_many_reservations_as_an_older_version_made_are_freed_in_bounded_time() {
    let node = Node::new();
    let data = node.host.dir().join("networks");
    let reserved = data.join("large");
    fs::create_dir_all(&reserved).unwrap();
    let set = |n: usize| json!([{"subnet": format!("{}/30", address(n * 4))}]);
    let sets: Vec<Value> = (0..limit::MEMBERS).map(set).collect();
    let ipam = json!({"type": "host-local", "dataDir": data, "ranges": sets});
    let conf = json!({"cniVersion": "1.1.0", "name": "large", "type": "host-local", "ipam": ipam});
    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([]);
    for (verb, conf, has_index) in [("DEL", &conf, false), ("DEL", &conf, true), ("GC", &gc, true)] {
        for n in 0..limit::MEMBERS {
            fs::write(reserved.join(address(n * 4 + 2)), "large\r\neth0").unwrap();
        }
        fs::write(reserved.join("10.255.0.1"), if verb == "GC" { "large\r\neth1" } else { "other\r\neth0" }).unwrap();
        if has_index {
            // A DEL of a container without reservations builds the index.
            node.call_of("unknown", "host-local", "DEL", conf.to_string().as_bytes()).0.ok();
        }
        let (output, took) = node.ask("host-local", verb, conf);
        output.ok();
        assert!(took < ANY_WITHIN, "{verb}, index {has_index}: {took} seconds");
        let left: Vec<String> = fs::read_dir(&reserved)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("10."))
            .collect();
        assert_eq!(left.len(), usize::from(verb == "DEL"), "{left:?}");
    }
}

/// The second container's rules are behind those of the first one. DEL, which searches its rules among all, takes three times as
/// long as the first ADD. A busy machine multiplies the seconds of both, even those of a processor.
#[test]
fn one_of_two_containers_with_the_most_ports_is_removed_in_bounded_time() {
    let node = Node::new();
    for backend in backends("two containers") {
        let first = node.published(backend, limit::MEMBERS);
        let (output, alone) = node.ask("portmap", "ADD", &first);
        output.ok();
        let before = node.rules();
        let mut second = first.clone();
        second["name"] = json!("other");
        second["hostPortTaken"] = json!("firstWins");
        second["prevResult"]["ips"][0]["address"] = json!("10.1.0.3/24");
        for verb in ["ADD", "DEL"] {
            let (output, took) = node.call_of("other", "portmap", verb, second.to_string().as_bytes());
            output.ok();
            let most = ANY_WITHIN.max(6.0 * alone);
            assert!(took < most, "{backend}: {verb} took {took} seconds of {most}");
        }
        assert_eq!(node.rules(), before, "{backend}");
        let (output, took) = node.ask("portmap", "CHECK", &first);
        output.ok();
        assert!(took < PORTS, "{backend}: CHECK took {took} seconds");
        node.host.sh("nft flush ruleset");
    }
}

/// Files of networks, and the result of a plugin of another maker.
#[test]
fn cnitool_answers_in_bounded_time_whatever_is_in_files_and_results() {
    let node = Node::new();
    let dir = node.host.dir();
    let [nets, plugins] = ["net.d", "plugins"].map(|name| dir.join(name));
    fs::create_dir_all(&nets).unwrap();
    fs::create_dir_all(&plugins).unwrap();
    let tool = installed().with_file_name("tool").join("cnitool");
    let run = |args: &str| {
        let line = format!(
            "cd {dir} && {tool} --conf-dir net.d --cache-dir cache --plugin-path {plugins}:{bin} {args} >out 2>err; echo $?; times",
            dir = dir.display(),
            tool = tool.display(),
            plugins = plugins.display(),
            bin = installed().display(),
        );
        let told = node.host.sh(&line);
        let lines: Vec<&str> = told.lines().collect();
        let took: f64 = lines[2].split_whitespace().map(seconds).sum();
        assert!(took < ANY, "cnitool {args}: {took} seconds");
        let output =
            format!("{}{}", fs::read_to_string(dir.join("out")).unwrap(), fs::read_to_string(dir.join("err")).unwrap());
        (lines[0] == "0", output)
    };
    let head = r#"{"cniVersion":"1.1.0","name":"big","#;
    let loopback = |n: usize| format!(r#"{{"type":"loopback","n":{n}}}"#);
    let files = [
        (fill(&format!(r#"{head}"plugins":["#), "]}", loopback), "plugins, and at most 256 are allowed"),
        (
            fill(&format!(r#"{head}"plugins":[{{"type":"bridge","#), "}]}", |n| format!(r#""key{n}":1"#)),
            "bridge has no such key",
        ),
        (format!(r#"{head}"x":[{}]}}"#, vec!["[]"; MOST / 3].join(",")).into_bytes(), "values, which is the limit"),
    ];
    for (text, told) in files {
        fs::write(nets.join("10-big.conflist"), text).unwrap();
        let (_, output) = run("validate");
        assert!(output.contains(told), "{told}: {}", &output[..output.len().min(2_000)]);
        run(&format!("add big {}", node.container.path()));
        run(&format!("del big {}", node.container.path()));
    }
    fs::write(
        nets.join("10-big.conflist"),
        format!(r#"{head}"plugins":[{{"type":"foreign"}},{{"type":"loopback"}}]}}"#),
    )
    .unwrap();
    for result in [
        fill(r#"{"cniVersion":"1.1.0","ips":["#, "]}", |n| format!(r#"{{"address":"{}/8"}}"#, address(n))),
        format!(r#"{{"cniVersion":"1.1.0","x":[{}]}}"#, vec!["[]"; MOST / 3].join(",")).into_bytes(),
        format!(r#"{{"cniVersion":"1.1.0","x":"{}"}}"#, "x".repeat(MOST)).into_bytes(),
    ] {
        fs::write(dir.join("result"), result).unwrap();
        let result = dir.join("result");
        script(&plugins, "foreign", &format!("cat >/dev/null; [ $CNI_COMMAND != ADD ] || cat {}", result.display()));
        for verb in ["add", "check", "del"] {
            run(&format!("{verb} big {}", node.container.path()));
        }
        run("list");
    }
}

/// Many sets in few bytes: each would reserve an address, under the lock of the network.
#[test]
fn many_sets_of_ranges_are_refused_at_once() {
    let node = Node::new();
    let set = |n: usize| json!([{"subnet": format!("10.{}.{}.0/24", n / 256, n % 256)}]);
    let sets: Vec<Value> = (0..limit::MEMBERS).map(set).collect();
    let ipam = json!({"type": "host-local", "dataDir": node.host.dir(), "ranges": sets});
    let conf = json!({"cniVersion": "1.1.0", "name": "large", "type": "host-local", "ipam": ipam});
    let (output, took) = node.ask("host-local", "ADD", &conf);
    let (code, text) = output.refused();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("has 16384 range sets, and at most 256 are allowed"), "{text}");
    assert!(took < ANY, "{took} seconds");
}

/// RESTORE of a list makes a configuration of each entry: their size together is limited.
#[test]
fn a_restore_of_many_large_configurations_is_refused() {
    let node = Node::new();
    let entries: Vec<Value> = (0..1_000).map(|n| json!({"containerID": format!("c{n}"), "ifname": "eth0"})).collect();
    let conf = json!({
        "cniVersion": "1.1.0",
        "name": "large",
        "type": "firewall",
        "description": "x".repeat(100_000),
        "cni.dev/attachments": entries,
    });
    let dir = node.host.dir().join("conf");
    fs::write(&dir, conf.to_string()).unwrap();
    let program = installed().join("firewall");
    let (exit, stdout, _) =
        node.host.run(&program, &[("CNI_COMMAND".into(), "RESTORE".into())], conf.to_string().as_bytes());
    let text = String::from_utf8(stdout).unwrap();
    assert_eq!(exit, 1, "{text}");
    assert!(text.contains("cni.dev/attachments: has 100") && text.contains("are allowed"), "{text}");
}

/// A process that keeps a plugin's stdin open does not delay other calls.
#[test]
fn no_lock_is_held_while_input_is_read() {
    let node = Node::new();
    let conf = node.published("iptables", 3);
    let dir = node.host.dir();
    let bin = installed();
    fs::write(dir.join("conf"), conf.to_string()).unwrap();
    let variables =
        format!("CNI_COMMAND=ADD CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={}", node.container.path(), bin.display());
    let portmap = bin.join("portmap");
    let line = format!(
        "cd {dir} && mkfifo slow && exec 9<>slow && head -c 200 conf >&9
         {variables} CNI_CONTAINERID=slow {portmap} <slow >/dev/null & waiting=$!
         {variables} CNI_CONTAINERID=quick timeout 50 {portmap} <conf >/dev/null; echo $?
         kill $waiting",
        dir = dir.display(),
        portmap = portmap.display(),
    );
    assert_eq!(node.host.sh(&line).trim(), "0");
}
