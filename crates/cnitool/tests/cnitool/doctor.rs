//! `doctor`: a healthy node has no finding, and each thing that is wrong is one, with a hint.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use cnikit_netns::make;
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
