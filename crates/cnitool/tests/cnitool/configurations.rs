//! `config explain`, `validate` and `init`.

use std::fs;

use crate::bench::{Bench, json};

#[test]
fn explain_names_the_default_network_and_the_reasons_against_other_files() {
    let bench = Bench::new();
    let (printed, _) = bench.says(3, "config why");
    assert!(printed.contains("no file can be the default") && printed.contains("hint: write one"), "{printed}");
    bench.file("00-torn.conflist", "{");
    bench.file("10-lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    bench.file("20-later.conf", r#"{"cniVersion": "1.0.0", "name": "later", "type": "loopback"}"#);
    let (printed, _) = bench.says(0, "config explain --runtime cri-dockerd");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].contains("10-lo.conf") && lines[0].ends_with("network lo is the default"), "{printed}");
    assert!(lines[1].contains("00-torn.conflist") && lines[2].contains("20-later.conf"), "{printed}");
    let document = bench.json("config explain --runtime kubelet");
    assert_eq!(document["default"]["network"], "lo");
    assert_eq!(document["skipped"].as_array().unwrap().len(), 2);
    assert_eq!(bench.json("config explain --runtime cri-o")["default"]["network"], "lo");
    for containerd in ["config explain", "config explain --runtime containerd"] {
        let (printed, _) = bench.says(3, containerd);
        assert!(printed.contains("no file can be the default") && printed.contains("00-torn.conflist"), "{printed}");
    }
}

#[test]
fn validate_reports_errors_with_their_position() {
    let bench = Bench::new();
    bench.file("10-lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    assert!(bench.says(0, "validate").0.ends_with("nothing is wrong\n"));
    let output = bench.run(&["validate"], &[("CAP_ARGS", r#"{"portMappings": []}"#)]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("no plugin of the network takes the capability \"portMappings\""), "{text}");
    bench.file(
        "20-b.conflist",
        r#"{"cniVersion": "1.0.0", "name": "b", "plugins": [{"type": "bridge", "isGatway": true}]}"#,
    );
    let (printed, _) = bench.says(3, "validate");
    assert!(printed.contains("20-b.conflist:1:") && printed.contains("isGateway"), "a slip is a warning: {printed}");
    bench.file("30-c.conflist", r#"{"cniVersion": "1.0.0", "name": "c", "plugins": [{"type": "absent"}]}"#);
    let (printed, _) = bench.says(3, &format!("--json validate {}", bench.path("net.d").display()));
    let document = json(&printed);
    assert_eq!(document["valid"], false);
    let findings = document["findings"].as_array().unwrap();
    assert!(findings.iter().any(|one| one["severity"] == "error" && one["file"].as_str().unwrap().contains("30-c")));
    assert!(bench.says(1, "validate /nonexistent").1.contains("does not exist; hint: "));
}

#[test]
fn validate_takes_one_file_and_the_plugins_of_its_network() {
    let bench = Bench::new();
    bench.file("10-bad.conflist", "{");
    let lo = r#"{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}"#;
    bench.file("20-lo.conflist", lo);
    let file = bench.path("net.d/20-lo.conflist");
    assert_eq!(
        bench.says(0, &format!("validate {}", file.display())).0,
        format!("{}: nothing is wrong\n", file.display())
    );
    let document = bench.json(&format!("validate {}", file.display()));
    assert_eq!((&document["file"], &document["valid"]), (&file.to_str().unwrap().into(), &true.into()));
    fs::create_dir(bench.path("net.d/lo")).unwrap();
    bench.file("lo/10-more.conf", r#"{"type": "tuning", "mac": 5}"#);
    let (printed, _) = bench.says(3, &format!("validate {}", file.display()));
    assert!(printed.contains("lo/10-more.conf:1:20: mac: ") && !printed.contains("10-bad"), "{printed}");
    let (printed, _) = bench.says(3, &format!("validate {}", bench.path("net.d/10-bad.conflist").display()));
    assert!(
        printed.contains("10-bad.conflist:1:1: unexpected end of file") && printed.lines().count() == 1,
        "{printed}"
    );
    fs::copy(&file, bench.path("draft.txt")).unwrap();
    let (_, errors) = bench.says(1, &format!("validate {}", bench.path("draft.txt").display()));
    assert!(errors.contains("draft.txt: runtimes read only files that end in .conflist"), "{errors}");
    let (_, errors) = bench.says(1, &format!("config explain {}", file.display()));
    assert!(errors.contains("is not a directory; hint: ") && errors.contains("cnitool validate FILE"), "{errors}");
}

#[test]
fn a_wrong_ipam_type_hides_no_other_error() {
    let bench = Bench::new();
    bench.file(
        "10-b.conflist",
        r#"{"cniVersion": "1.0.0", "name": "b", "plugins": [
            {"type": "bridge", "isGateway": "yes", "isGatway": true, "mtu": 70000, "vlanTrunk": [{"id": 4095}],
             "ipam": {"type": "host-locl"}},
            {"type": "ptp"},
            {"type": "tuning", "mac": "x", "sysctl": {"net.core.somaxconn": 5}, "ipam": {"type": 5}},
            {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0"}], [{}]], "routes": [{"dst": 5}]}}
        ]}"#,
    );
    let (printed, _) = bench.says(3, "validate");
    for expected in [
        "error: FILE:2:32: plugins[0].isGateway: expected true or false, found the text \"yes\"; hint: write true or false, without quotation marks",
        "warning: FILE:2:52: plugins[0].isGatway: bridge has no such key; hint: did you mean `isGateway`?",
        "error: FILE:2:70: plugins[0].mtu: expected an integer of at most 65535, found 70000",
        "error: FILE:2:99: plugins[0].vlanTrunk[0].id: expected an integer from 1 to 4094, found 4095",
        "error: FILE:3:23: plugins[0].ipam.type: failed to find plugin \"host-locl\"",
        "hint: did you mean `host-local`? If not, install it there",
        "error: FILE:4:13: plugins[1].ipam: is missing",
        "error: FILE:5:32: plugins[2].mac: expected the MAC address of an interface, found \"x\"",
        "error: FILE:5:55: plugins[2].sysctl.net.core.somaxconn: expected a text, found 5",
        "error: FILE:5:90: plugins[2].ipam.type: expected a text, found 5",
        "error: FILE:6:76: plugins[3].ipam.ranges[0][0].subnet: expected an IP address with a prefix length, found \"10.0.0.0\"",
        "error: FILE:6:101: plugins[3].ipam.ranges[1][0].subnet: is missing",
        "error: FILE:6:119: plugins[3].ipam.routes[0].dst: expected a text, found 5",
    ] {
        let expected = expected.replace("FILE", &bench.path("net.d/10-b.conflist").display().to_string());
        assert!(printed.contains(&expected), "{expected}\n{printed}");
    }
    assert_eq!(printed.lines().count(), 12, "{printed}");
}

#[test]
fn on_a_terminal_the_running_plugin_is_shown() {
    let bench = Bench::new();
    let plugins = r#""plugins": [{"type": "slow"}, {"type": "slower"}]"#;
    bench.file("10-slow.conflist", &format!(r#"{{"cniVersion": "1.1.0", "name": "slow", {plugins}}}"#));
    for (name, seconds) in [("slow", 0.6), ("slower", 0.8)] {
        bench.plugin(name, &format!("STATUS) sleep {seconds} ;;"));
    }
    let path = format!("--plugin-path {}", bench.path("bin").display());
    let seen = bench.on_terminal(&format!("status slow {path}"), "");
    assert!(
        seen.contains("\r\x1b[Kwaiting for slower (STATUS, call 2): 1 s") && seen.ends_with("\r\x1b[K"),
        "{seen:?}"
    );
    assert_eq!(bench.says(0, "status slow").1, "", "no terminal, so no progress");
}

#[test]
fn init_writes_a_valid_configuration_of_a_working_network() {
    for plugin in ["bridge", "ptp"] {
        let bench = Bench::new();
        let flags = "--subnet 10.94.0.0/24 --gateway 10.94.0.9 --subnet fd00:94::/64 --bridge cni-t0";
        let (printed, _) = bench.says(0, &format!("init {plugin} pods {flags} --yes --dry-run"));
        assert!(json(&printed)["//"].is_array() && fs::read_dir(bench.path("net.d")).unwrap().count() == 0);
        bench.says(0, &format!("init --name pods --plugin {plugin} {flags} --yes"));
        let file = bench.path("net.d/10-pods.conflist");
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text, printed, "a dry run shows what is written");
        assert!(bench.says(0, "validate").0.ends_with("nothing is wrong\n"));
        fs::write(
            &file,
            text.replace(
                r#""host-local","#,
                &format!(r#""host-local", "dataDir": "{}/leases","#, bench.dir().display()),
            ),
        )
        .unwrap();
        bench.done("add", "pods", &[]);
        bench.container_says("ping -c 1 -W 2 10.94.0.9");
        bench.done("check", "pods", &[]);
        bench.done("del", "pods", &[]);
    }
}

/// They need features that not every kernel has, so nothing is added.
#[test]
fn init_writes_valid_configurations_of_the_other_plugins() {
    for (flags, plugins) in [
        ("--plugin vlan --vlan-id 7 --master eth1", vec!["vlan"]),
        ("--plugin vlan --vlan-id 7 --source-routing", vec!["vlan", "sbr"]),
        ("--plugin vlan --vlan-id 0 --vrf red", vec!["vlan", "vrf"]),
        ("--plugin dummy", vec!["dummy"]),
        ("--plugin tap", vec!["tap"]),
        ("--plugin host-device --device eth1", vec!["host-device"]),
        ("--plugin bridge --ports --limits", vec!["bridge", "portmap", "bandwidth"]),
        ("--plugin ptp --limits --source-routing", vec!["ptp", "bandwidth", "sbr"]),
    ] {
        let bench = Bench::new();
        // Upstream's packaged release does not have these.
        for missing in ["dummy", "tap"] {
            bench.plugin(missing, "VERSION) echo '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}';;");
        }
        bench.says(0, &format!("init --name pods --subnet 10.94.0.0/24 {flags} --yes"));
        let document = json(&fs::read_to_string(bench.path("net.d/10-pods.conflist")).unwrap());
        let chain = document["plugins"].as_array().unwrap();
        let types: Vec<&str> = chain.iter().map(|plugin| plugin["type"].as_str().unwrap()).collect();
        assert_eq!(types, plugins, "{flags}");
        assert!(bench.says(0, "validate").0.ends_with("nothing is wrong\n"), "{flags}");
    }
}

#[test]
fn init_writes_networks_whose_addresses_are_those_of_a_pool() {
    for (flags, is_routed) in [
        ("--plugin bridge --ports", false),
        ("--plugin ptp", true),
        ("--plugin vlan --vlan-id 7", true),
        ("--plugin host-device --device eth1", true),
        ("--plugin tap", false),
        ("--plugin dummy", false),
    ] {
        let bench = Bench::new();
        for missing in ["dummy", "tap", "pool"] {
            bench.plugin(missing, "VERSION) echo '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}';;");
        }
        bench.says(0, &format!("init --name pods --pool blue {flags} --yes"));
        let text = fs::read_to_string(bench.path("net.d/10-pods.conflist")).unwrap();
        let mut ipam = serde_json::json!({"type": "pool", "pool": "blue"});
        if is_routed {
            ipam["routes"] = serde_json::json!([{"dst": "0.0.0.0/0"}]);
        }
        assert_eq!(json(&text)["plugins"][0]["ipam"], ipam, "{flags}");
        assert!(text.contains("cnikit-agent claims") && !text.contains("ranges"), "{text}");
        assert!(bench.says(0, "validate").0.ends_with("nothing is wrong\n"), "{flags}");
    }
    let bench = Bench::new();
    assert!(bench.says(1, "init --name pods --pool a/b --yes").1.contains("--pool: \"a/b\" is not the name of a pool"));
    assert!(
        bench.says(1, "init --name pods --pool blue --subnet 10.94.0.0/24 --yes").1.contains("cannot be used with")
    );
}

#[test]
fn init_refuses_options_that_would_have_no_effect() {
    let bench = Bench::new();
    for (flags, says) in [
        ("--plugin host-device", "host-device needs `--device`"),
        ("--plugin host-device --device a/b", "--device: interface name contains /"),
        ("--plugin dummy --device eth1", "--device: only with --plugin host-device"),
        ("--plugin vlan", "vlan needs `--vlan-id`"),
        ("--plugin vlan --vlan-id 4095", "not a number from 0 to 4094"),
        ("--plugin vlan --vlan-id 7 --master a/b", "--master"),
        ("--plugin bridge --vlan-id 7", "--vlan-id: only with --plugin vlan"),
        ("--plugin dummy --master eth1", "--master: only with --plugin vlan"),
        ("--plugin vlan --vlan-id 7 --ports", "--ports: only with --plugin bridge or ptp"),
        ("--plugin dummy --limits", "--limits: only with --plugin bridge or ptp"),
        ("--plugin bridge --vrf a/b", "--vrf"),
        ("--plugin bridge --vrf red --source-routing", "--source-routing"),
    ] {
        let text = bench.says(1, &format!("init --name pods --subnet 10.94.0.0/24 {flags} --yes")).1;
        assert!(text.contains(says), "{flags}: {text}");
        assert_eq!(fs::read_dir(bench.path("net.d")).unwrap().count(), 0, "{flags}");
    }
}

#[test]
fn init_replaces_no_existing_file_or_network() {
    let bench = Bench::new();
    bench.says(0, "init --name pods --subnet 10.94.0.0/24 --yes");
    assert!(bench.says(1, "init --name pods --subnet 10.95.0.0/24 --yes").1.contains("already exists"));
    let elsewhere = format!("-o {}", bench.path("net.d/20-x.conflist").display());
    assert!(bench.says(1, &format!("init --name pods --yes {elsewhere}")).1.contains("a network \"pods\" is in"));
    assert!(bench.says(1, "init --name x --subnet 10.94.0.1/24 --yes").1.contains("--subnet"));
    assert!(bench.says(1, "init --name ../x --yes").1.contains("--name"));
    let (printed, _) = bench.says(0, "init --name x --yes -o -");
    let subnet = json(&printed)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"].as_str().unwrap().to_owned();
    assert!(subnet.ends_with(".0.0/24"), "{subnet}");
}

#[test]
fn on_a_terminal_init_asks_for_missing_options() {
    let bench = Bench::new();
    let printed = bench.on_terminal("init --subnet 10.94.0.0/24", "mine\nptp\nno\n\n\n");
    assert!(
        printed.contains("Name of the network [pods]: ")
            && printed.contains("(bridge, ptp, vlan, dummy, tap, host-device) [bridge]: "),
        "{printed}"
    );
    let document = json(&fs::read_to_string(bench.path("net.d/10-mine.conflist")).expect(&printed));
    let ptp = &document["plugins"][0];
    assert_eq!((&ptp["type"], &ptp["ipMasq"]), (&"ptp".into(), &false.into()));
    assert_eq!(document["plugins"].as_array().unwrap().len(), 1, "neither ports nor limits, as was proposed");
    assert!(bench.on_terminal("init --name other", "bridge\n").contains("nothing is written"));
    assert!(!bench.path("net.d/10-other.conflist").exists());
}

#[test]
fn a_terminal_has_colours_unless_they_are_disabled() {
    let bench = Bench::new();
    assert!(bench.on_terminal("list", "").contains("\x1b[1mNETWORK"));
    assert!(!bench.on_terminal("list --color never", "").contains('\x1b'));
}

#[test]
fn all_errors_of_a_file_are_reported_at_once() {
    let bench = Bench::new();
    bench.file(
        "20-b.conflist",
        r#"{"cniVersion": 1, "name": "b", "disableCheck": 3, "name": "b", "plugins": [
            {"type": 5, "capabilities": {"mac": "yes", "ips": 1}},
            {"type": "not-there", "capabilities": []},
            {"type": "bridge", "isGatway": true, "mtu": 1, "mtu": 2, "ipam": {"type": "nor-this", "x": {"y": 1, "y": 2}}},
            7
        ]}"#,
    );
    let (printed, _) = bench.says(3, "validate");
    for expected in [
        "error: FILE:1:2: cniVersion: is not a text",
        "error: FILE:1:32: disableCheck: is not true or false",
        "warning: FILE:1:51: name: is given more than once",
        "error: FILE:2:14: plugins[0].type: is not a text",
        "error: FILE:2:42: plugins[0].capabilities.mac: is not true or false",
        "error: FILE:2:56: plugins[0].capabilities.ips: is not true or false",
        "error: FILE:3:14: plugins[1].type: ",
        "error: FILE:3:35: plugins[1].capabilities: is not an object",
        "warning: FILE:4:32: plugins[2].isGatway: bridge has no such key",
        "error: FILE:4:60: plugins[2].mtu: is given more than once",
        "error: FILE:4:79: plugins[2].ipam.type: ",
        "error: FILE:4:113: plugins[2].ipam.x.y: is given more than once",
        "error: FILE:5:13: plugins[3]: is not an object",
    ] {
        let expected = expected.replace("FILE", &bench.path("net.d/20-b.conflist").display().to_string());
        assert!(printed.contains(&expected), "{expected}\n{printed}");
    }
    bench.file("20-b.conflist", r#"{"cniVersion": "1.0.0", "name": "b", "plugins": [{"type": "loopback"}]}"#);
    bench.file("30-single.conf", r#"{"CNIVersion": [], "Name": "c", "capabilities": {"mac": 1}}"#);
    let (printed, _) = bench.says(3, "validate");
    for expected in ["cniVersion: is not a text", "type: missing 'type'", "capabilities.mac: is not true or false"] {
        assert!(printed.contains(expected), "{expected}\n{printed}");
    }
    assert_eq!(printed.lines().filter(|line| line.contains("30-single.conf")).count(), 3, "{printed}");
}
