//! `doctor`: a healthy node has no finding, and each thing that is wrong is one, with a hint.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cnikit_netns::make;
use cnikit_pool::{BlockState, LocalBlock, NodeFiles};
use serde_json::Value;

use crate::bench::{Bench, json, stdout_of};

const NET: &str = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [
    {"type": "bridge", "bridge": "cni-t0", "isGateway": true, "ipam": {
     "type": "host-local", "dataDir": "DIR/leases", "subnet": "10.94.0.0/24"}}]}"#;

/// A host with a network and an attached container.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.file("10-net.conflist", NET);
    bench.says(0, &format!("add net {}", bench.namespace("c1").display()));
    bench
}

/// Runs a shell line on the host.
fn sh(bench: &Bench, line: &str) {
    let file = bench.path("line");
    fs::write(&file, line).unwrap();
    bench.on_host(|| stdout_of(&format!("sh -e {}", file.display())));
}

/// The findings that are not `ok`: level, area, text and hint.
fn findings(bench: &Bench) -> Vec<[String; 4]> {
    let document = json(&bench.says(3, "--json doctor").0);
    assert_eq!(document["healthy"], false);
    let bad = document["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] != "ok");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    bad.map(|finding| ["level", "area", "text", "hint"].map(|key| text(&finding[key]))).collect()
}

/// Checks that there is exactly one finding, of this level and area, and that text and hint contain these words.
fn finds(bench: &Bench, level: &str, area: &str, words: &[&str]) {
    let found = findings(bench);
    assert!(found.len() == 1 && found[0][0] == level && found[0][1] == area, "{found:?}");
    for word in words {
        assert!(found[0][2..].concat().contains(word), "{word}: {found:?}");
    }
}

#[test]
fn a_healthy_node_has_no_finding() {
    let bench = bench();
    let document = bench.json("doctor");
    assert_eq!(document["healthy"], true, "{document}");
    let areas: Vec<&str> =
        document["findings"].as_array().unwrap().iter().map(|finding| finding["area"].as_str().unwrap()).collect();
    for area in [
        "kernel",
        "configurations",
        "plugins",
        "networks",
        "attachments",
        "links",
        "rules",
        "addresses",
        "forwarding",
        "packet filter",
        "backends",
    ] {
        assert!(areas.contains(&area), "{area}: {document}");
    }
    let (text, _) = bench.says(0, "doctor");
    assert!(text.lines().all(|line| line.starts_with("ok      ")), "{text}");
}

#[test]
fn a_rule_of_an_unknown_container_is_found() {
    let bench = bench();
    let rule = r#"POSTROUTING -m comment --comment 'name: "net" id: "gone-1"' -j RETURN"#;
    sh(&bench, &format!("iptables -t nat -A {rule}"));
    finds(&bench, "warning", "rules", &["1 containers that are not known: gone-1", "GC or DEL"]);
    sh(&bench, &format!("iptables -t nat -D {rule}"));
    assert_eq!(bench.json("doctor")["healthy"], true);
}

#[test]
fn what_is_wrong_with_configurations_and_plugins_is_found() {
    let bench = bench();
    bench.file("20-broken.conflist", "{");
    finds(&bench, "problem", "configurations", &["20-broken.conflist", "cnitool validate"]);
    fs::remove_file(bench.path("net.d/20-broken.conflist")).unwrap();

    bench.file(
        "20-none.conflist",
        r#"{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "no-such-plugin"}]}"#,
    );
    finds(&bench, "problem", "networks", &["none: ", "no-such-plugin"]);
    fs::remove_file(bench.path("net.d/20-none.conflist")).unwrap();

    fs::set_permissions(bench.path("bin"), Permissions::from_mode(0o777)).unwrap();
    finds(&bench, "problem", "plugins", &["0777", "chmod go-w"]);
    fs::set_permissions(bench.path("bin"), Permissions::from_mode(0o755)).unwrap();

    fs::remove_file(bench.path("net.d/10-net.conflist")).unwrap();
    let found = findings(&bench);
    assert!(found.iter().any(|one| one[1] == "configurations" && one[3].contains("cnitool init")), "{found:?}");
}

#[test]
fn lost_attachments_links_and_addresses_are_found() {
    let bench = bench();
    make::remove(&bench.path("c1")).unwrap();
    let found = findings(&bench);
    assert!(found.iter().any(|one| one[1] == "attachments" && one[3].contains("cnitool gc")), "{found:?}");
    assert!(found.iter().any(|one| one[1] == "addresses"), "{found:?}");

    let alias = format!("cnikit:{}:{} net/gone/eth0", "0".repeat(16), "1".repeat(32));
    sh(&bench, "ip link add lost0 type veth peer name lost1");
    sh(&bench, &format!("ip link set lost0 alias '{alias}'"));
    let found = findings(&bench);
    assert!(found.iter().any(|one| one[1] == "links" && one[2].contains("lost0 of net/gone/eth0")), "{found:?}");
}

#[test]
fn a_host_that_drops_or_does_not_forward_is_found() {
    let bench = bench();
    sh(&bench, "sysctl -qw net.ipv4.ip_forward=0");
    finds(&bench, "problem", "forwarding", &["ip_forward is 0", "sysctl -w"]);
    sh(&bench, "sysctl -qw net.ipv4.ip_forward=1");
    sh(&bench, "iptables -P FORWARD DROP");
    finds(&bench, "problem", "packet filter", &["chain FORWARD of iptables", "net", "`firewall`"]);
    sh(&bench, "iptables -P FORWARD ACCEPT");
    sh(&bench, "nft 'table inet fw { chain through { type filter hook forward priority 0; policy drop; }; }'");
    finds(&bench, "problem", "packet filter", &["chain through of nftables table inet fw"]);
}

/// Whether doctor reports a need of this plugin of network `tried` as unmet, with its text and hint.
fn unmet(bench: &Bench, plugin: &str, keys: &str) -> Option<String> {
    let comma = if keys.is_empty() { "" } else { "," };
    bench.file(
        "20-tried.conflist",
        &format!(r#"{{"cniVersion": "1.0.0", "name": "tried", "plugins": [{{"type": "{plugin}"{comma} {keys}}}]}}"#),
    );
    // Which plugins the packaged release has is not of interest.
    let output = bench.run(&["--json", "doctor"], &[]);
    let document = json(std::str::from_utf8(&output.stdout).unwrap());
    fs::remove_file(bench.path("net.d/20-tried.conflist")).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| {
        one["area"] == "networks" && one["text"].as_str().unwrap().starts_with(&format!("tried: {plugin}: "))
    })?;
    assert_eq!(found["level"], "problem", "{found}");
    let text = format!("{} {}", found["text"].as_str().unwrap(), found["hint"].as_str().unwrap());
    assert!(!found["hint"].as_str().unwrap().is_empty(), "it does not say what to do: {text}");
    Some(text)
}

#[test]
fn a_feature_of_the_kernel_is_reported_exactly_where_a_trial_shows_that_it_is_missing() {
    const TBF: &str = "tc qdisc add dev lo root handle 1: tbf rate 1mbit burst 10k limit 20k";
    const IFB: &str = "ip link add t0 type ifb && tc qdisc add dev lo ingress && \
        tc filter add dev lo parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev t0";
    let bench = Bench::new();
    for (plugin, keys, trial, word) in [
        (
            "vlan",
            r#""vlanId": 7, "linkInContainer": true"#,
            "ip link add m0 type veth && ip link add link m0 name t0 type vlan id 7",
            "8021q",
        ),
        ("dummy", "", "ip link add t0 type dummy", "dummy"),
        ("tap", "", "ip tuntap add t0 mode tap", "tun"),
        ("vrf", r#""vrfname": "red""#, "ip link add t0 type vrf table 7", "vrf"),
        ("sbr", "", "ip rule list | grep -q main", "CONFIG_IP_MULTIPLE_TABLES"),
        ("bandwidth", r#""ingressRate": 8000000, "ingressBurst": 80000"#, TBF, "sch_tbf"),
        (
            "bandwidth",
            r#""ingressRate": 8000000, "ingressBurst": 80000, "fq_codel": true"#,
            &format!("{TBF} && tc qdisc add dev lo parent 1:1 fq_codel"),
            "sch_fq_codel",
        ),
        (
            "bandwidth",
            r#""ingressRate": 8000000, "ingressBurst": 80000, "shapedSubnets": ["10.0.0.0/8"]"#,
            "tc qdisc add dev lo root handle 1: htb && tc class add dev lo parent 1: classid 1:1 htb rate 1mbit",
            "sch_htb",
        ),
        ("bandwidth", r#""capabilities": {"bandwidth": true}"#, &format!("{TBF} && {IFB}"), ""),
    ] {
        let file = bench.path("trial");
        fs::write(&file, trial).unwrap();
        let line = format!("unshare --net sh -c 'sh -e {} >/dev/null 2>&1 && echo met || echo unmet'", file.display());
        let script = bench.path("line");
        fs::write(&script, line).unwrap();
        let is_met = bench.host_says(&format!("sh {}", script.display())) == "met\n";
        let found = unmet(&bench, plugin, keys);
        assert_eq!(found.is_none(), is_met, "{plugin} {keys}: {found:?}");
        assert!(found.is_none_or(|text| text.contains(word)), "{plugin} {keys}");
    }
}

#[test]
fn devices_directories_and_labels_that_the_node_lacks_are_reported() {
    let bench = Bench::new();
    let text = unmet(&bench, "host-device", r#""device": "nic0""#).unwrap();
    assert!(text.contains("nic0") && text.contains("`ip link`"), "{text}");
    sh(&bench, "ip link add nic0 type veth peer name nic1");
    assert_eq!(unmet(&bench, "host-device", r#""device": "nic0""#), None);
    // Only ADD knows the device that a runtime passes.
    assert_eq!(unmet(&bench, "host-device", r#""capabilities": {"deviceID": true}"#), None);

    for (plugin, keys) in [("host-device", r#""device": "nic0""#), ("sbr", r#""table": 7"#)] {
        let text = unmet(&bench, plugin, &format!(r#"{keys}, "dataDir": "/proc/none""#)).unwrap();
        assert!(text.contains("/proc/none"), "{text}");
    }

    if fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs") {
        let label = r#""selinuxContext": "no_such_u:no_such_r:no_such_t:s0""#;
        assert!(unmet(&bench, "tap", label).unwrap().contains("selinuxContext"));
    } else if std::path::Path::new("/dev/net/tun").exists() {
        let text = unmet(&bench, "tap", r#""selinuxContext": "system_u:object_r:tun_t:s0""#).unwrap();
        assert!(text.contains("SELinux is off"), "{text}");
    }
}

#[test]
fn a_master_that_is_missing_or_down_is_reported() {
    let bench = Bench::new();
    sh(&bench, "ip link add up0 type veth peer name up1 && ip link set up0 up");
    if unmet(&bench, "vlan", r#""vlanId": 7, "master": "up0""#).is_some_and(|text| text.contains("8021q")) {
        return; // the other test compares this with a trial
    }
    let text = unmet(&bench, "vlan", r#""vlanId": 7, "master": "none0""#).unwrap();
    assert!(text.contains("none0") && text.contains("`master`"), "{text}");
    assert!(unmet(&bench, "vlan", r#""vlanId": 7, "master": "up1""#).unwrap().contains("up1"), "it is down");
    assert_eq!(unmet(&bench, "vlan", r#""vlanId": 7, "master": "up0""#), None);
}

#[test]
fn a_bridge_without_a_gateway_needs_no_forwarding() {
    let bench = Bench::new();
    bench.file("10-net.conflist", &NET.replace(r#""isGateway": true, "#, ""));
    bench.says(0, &format!("add net {}", bench.namespace("c1").display()));
    sh(&bench, "sysctl -qw net.ipv4.ip_forward=0");
    sh(&bench, "iptables -P FORWARD DROP");
    assert_eq!(bench.json("doctor")["healthy"], true);
}

#[test]
fn an_address_of_a_pool_that_a_container_has_without_a_reservation_is_a_problem() {
    let bench = bench();
    bench.plugin("pool", "VERSION) echo '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}';;");
    let pooled = NET.replace("\"net\"", "\"pooled\"").replace("host-local", "pool").replace("cni-t0", "cni-t1");
    bench.file("20-pooled.conflist", &pooled.replace("\"subnet\": \"10.94.0.0/24\"", "\"pool\": \"blue\""));
    let block = LocalBlock {
        pool: "blue".into(),
        cidr: "10.94.0.0/28".parse().unwrap(),
        is_static: false,
        epoch: 1,
        state: BlockState::Active,
    };
    let network = NodeFiles::new(bench.path("leases")).network("net", Duration::from_secs(5), |_| {});
    network.lock().unwrap().write_blocks(&[block]).unwrap();
    assert_eq!(bench.json("doctor")["healthy"], true);
    fs::remove_file(bench.path("leases/net/10.94.0.2")).unwrap();
    finds(
        &bench,
        "problem",
        "addresses",
        &["10.94.0.2 is used by ", " of network net, and is not reserved", "restart that container"],
    );
}
