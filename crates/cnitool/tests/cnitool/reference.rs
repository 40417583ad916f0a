//! The packaged upstream plugins, called by the tool.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::bench::{Bench, json, stdout_of};

const CHAIN: &str = r#"{"cniVersion": "1.0.0", "name": "chain", "plugins": [
    {"type": "bridge", "bridge": "cni-t0", "isGateway": true, "ipam": {
     "type": "host-local", "dataDir": "DIR/leases", "subnet": "10.94.0.0/24"}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false}]}"#;

const PORTS: [(&str, &str); 1] =
    [("CAP_ARGS", r#"{"portMappings": [{"hostPort": 8094, "containerPort": 80, "protocol": "tcp"}], "mac": "x"}"#)];

#[test]
fn loopback_comes_up_and_goes_down_again() {
    let bench = Bench::new();
    bench.file("10-lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo-net", "type": "loopback"}"#);
    let lo = [("CNI_IFNAME", "lo")];
    let result = bench.done("add", "lo-net", &lo);
    assert!(bench.container_says("ip link show lo").contains("LOOPBACK,UP"));
    assert_eq!(json(&result)["ips"][0]["address"], "127.0.0.1/8");
    assert!(result.starts_with("{\n    \"") && result.ends_with("\n}"), "{result}");
    assert_eq!(bench.done("check", "lo-net", &lo), "");
    assert_eq!(bench.done("del", "lo-net", &lo), "");
    assert!(!bench.container_says("ip link show lo").contains("LOOPBACK,UP"));
    assert_eq!(bench.cached_files().len(), 0);
}

#[test]
fn a_chain_connects_the_container_forwards_its_port_and_leaves_nothing() {
    let bench = Bench::new();
    bench.file("20-chain.conflist", CHAIN);
    let result = json(&bench.done("add", "chain", &PORTS));
    let address = result["ips"][0]["address"].as_str().unwrap();
    assert!(bench.container_says("ip address show eth0").contains(address));
    bench.container_says("ping -c 1 -W 2 10.94.0.1");
    assert!(bench.host_says("iptables -t nat -S").contains("--dport 8094"));
    // Without ports, because the packaged portmap searches the IPv6 rules in the IPv4 tables.
    bench.done("check", "chain", &[]);
    bench.done("del", "chain", &PORTS);
    assert!(!bench.host_says("iptables -t nat -S").contains("8094"));
    assert!(!bench.host_says("ip link").contains("veth"));
    assert!(!bench.path("leases/chain").join("10.94.0.2").exists());
    assert_eq!(bench.cached_files().len(), 0);
    bench.done("del", "chain", &PORTS);
}

#[test]
fn the_result_is_cached_in_the_directory_and_format_of_upstream() {
    let bench = Bench::new();
    bench.file("20-chain.conflist", CHAIN);
    let variables = [PORTS[0], ("CNI_ARGS", "IgnoreUnknown=1;A=b")];
    let result = bench.done("add", "chain", &variables);
    let [cached] = &bench.cached_files()[..] else { panic!("{:?}", bench.cached_files()) };
    let document = json(&fs::read_to_string(cached).unwrap());
    let id = document["containerId"].as_str().unwrap().to_owned();
    assert_eq!(cached.file_name().unwrap().to_str().unwrap(), format!("chain-{id}-eth0"));
    assert_eq!(cached.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(cached.parent().unwrap().metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(document["kind"], "cniCacheV1");
    assert_eq!(document["ifName"], "eth0");
    assert_eq!(document["networkName"], "chain");
    assert_eq!(document["netns"], bench.netns());
    assert_eq!(document["cniArgs"], json(r#"[["IgnoreUnknown", "1"], ["A", "b"]]"#));
    assert_eq!(document["capabilityArgs"], json(PORTS[0].1));
    assert_eq!(document["result"], json(&result));
    assert_eq!(decoded(document["config"].as_str().unwrap()), fs::read(bench.path("net.d/20-chain.conflist")).unwrap());
    bench.done("del", "chain", &variables);
}

#[test]
fn an_error_has_the_plugin_its_code_and_its_message_once() {
    let bench = Bench::new();
    bench.file("20-chain.conflist", CHAIN);
    bench.done("add", "chain", &PORTS);
    bench.container_says("ip address flush dev eth0");
    let error = bench.refused("check", "chain", &PORTS);
    assert!(
        error.starts_with("Error: plugin type=\"bridge\" name=\"chain\" (1 of 2) failed (check) on eth0: "),
        "{error}"
    );
    assert!(error.ends_with("(code 999)\n") && error.lines().count() == 1, "{error}");
    bench.done("del", "chain", &PORTS);
}

/// Decodes by base64(1), because the encoder must not be tested by itself.
fn decoded(text: &str) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    stdout_of(&format!("base64 -d {}", file.path().display())).into_bytes()
}
