//! `check --all`.

use std::fs;

use cnikit_libcni::{Attachment, Cache, Runtime, load};
use cnikit_netns::make;
use serde_json::Value;

use crate::bench::{Bench, json};

const ONE: &str = r#"{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "first"}]}"#;
const OLD: &str = r#"{"cniVersion": "0.3.1", "name": "old", "plugins": [{"type": "first"}]}"#;
const OFF: &str = r#"{"cniVersion": "1.0.0", "name": "off", "disableCheck": true, "plugins": [{"type": "first"}]}"#;
/// CHECK fails for the container `bad`.
const FIRST: &str = r#"ADD) echo '{"cniVersion": "VERSION", "ips": [], "dns": {}}' ;;
CHECK) [ "$CNI_CONTAINERID" != bad ] || { echo '{"cniVersion": "1.0.0", "code": 102, "msg": "no address"}'; exit 1; } ;;"#;

/// Adds a container under the id that a runtime has given it.
fn attach(bench: &Bench, network: &str, id: &str, netns: &str) {
    let path = format!("{}:/usr/lib/cni", bench.path("bin").display());
    let runtime = Runtime::new(path, Cache::below(&bench.path("cache")));
    let list = load(&bench.path("net.d"), network).unwrap();
    bench.on_host(|| runtime.add(&list, &Attachment::new(id, netns)).unwrap());
}

fn outcomes(document: &Value) -> Vec<String> {
    let all = document["attachments"].as_array().unwrap();
    all.iter().map(|one| format!("{} {}", one["container"], one["outcome"]).replace('"', "")).collect()
}

#[test]
fn check_all_checks_each_attachment_of_a_runtime_with_its_cached_configuration() {
    let bench = Bench::new();
    bench.plugin("first", &FIRST.replace("VERSION", "1.0.0"));
    bench.file("one.conflist", ONE);
    bench.file("off.conflist", OFF);
    let gone = bench.namespace("gone").display().to_string();
    attach(&bench, "one", "good", &bench.netns());
    attach(&bench, "one", "ended", &gone);
    attach(&bench, "off", "unchecked", &bench.netns());
    make::remove(&bench.path("gone")).unwrap();
    bench.file("one.conflist", &ONE.replace("first", "changed"));
    bench.calls();
    let (printed, errors) = bench.says(0, "check --all");
    assert_eq!(errors, "");
    assert!(printed.contains("one/good/eth0 passed\n"), "{printed}");
    assert!(printed.contains("one/ended/eth0 skipped: its namespace"), "{printed}");
    assert!(printed.contains("off/unchecked/eth0 skipped: its network list has `disableCheck`\n"), "{printed}");
    assert!(printed.ends_with("\n1 passed, 0 failed, 2 skipped\n"), "{printed}");
    assert_eq!(bench.calls(), ["CHECK first"], "nothing but CHECK, by the plugin that added it");
    assert_eq!(json(&bench.stdin("first", "CHECK"))["prevResult"]["cniVersion"], "1.0.0");
    assert_eq!(bench.cached_files().len(), 3);
}

#[test]
fn a_failed_check_of_one_attachment_is_reported_and_the_others_are_checked() {
    let bench = Bench::new();
    bench.plugin("first", &FIRST.replace("VERSION", "1.0.0"));
    bench.file("one.conflist", ONE);
    for id in ["bad", "good"] {
        attach(&bench, "one", id, &bench.netns());
    }
    bench.calls();
    let (printed, errors) = bench.says(1, "check --all");
    assert_eq!(printed, "one/bad/eth0 failed\none/good/eth0 passed\n1 passed, 1 failed, 0 skipped\n");
    assert!(errors.starts_with("Error: one/bad/eth0: ") && errors.contains("no address (code 102)"), "{errors}");
    assert_eq!(bench.calls().len(), 2);
    let document = json(&bench.says(1, "--json check --all").0);
    assert_eq!(outcomes(&document), ["bad failed", "good passed"]);
    assert_eq!(document["error"]["plugins"][0]["code"], 102, "{document}");
    // A file that cannot be read is not a success.
    fs::write(bench.path("cache/results/one-lost-eth0"), "{").unwrap();
    let (printed, errors) = bench.says(1, "check --all");
    assert!(printed.ends_with("\n1 passed, 2 failed, 0 skipped\n"), "{printed}");
    assert!(errors.contains("one-lost-eth0"), "{errors}");
}

#[test]
fn check_all_skips_a_version_without_check_and_other_networks() {
    let bench = Bench::new();
    bench.plugin("first", &FIRST.replace("VERSION", "0.3.1"));
    bench.file("old.conflist", OLD);
    attach(&bench, "old", "c1", &bench.netns());
    bench.calls();
    let (printed, _) = bench.says(0, "check --all");
    assert!(printed.starts_with("old/c1/eth0 skipped: configuration version \"0.3.1\""), "{printed}");
    let (printed, _) = bench.says(0, "check --all --network other");
    assert_eq!(printed, "0 passed, 0 failed, 0 skipped\n");
    assert_eq!(bench.calls(), [""; 0]);
    for line in ["check", "check old", "check --all old", "check old /run/netns/c1 --network old"] {
        bench.says(1, line);
    }
}

#[test]
fn check_all_compares_what_the_packaged_plugins_of_upstream_made() {
    let bench = Bench::new();
    bench.file(
        "net.conflist",
        r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "cni-t0",
            "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.94.0.0/24"}}]}"#,
    );
    attach(&bench, "net", "pod", &bench.netns());
    assert_eq!(bench.says(0, "check --all").0, "net/pod/eth0 passed\n1 passed, 0 failed, 0 skipped\n");
    // containerd 1.6 does not cache the path of the namespace, but the result has it.
    bench.cache_as_old_libcni();
    assert_eq!(bench.says(0, "check --all").0, "net/pod/eth0 passed\n1 passed, 0 failed, 0 skipped\n");
    bench.container_says("ip address flush dev eth0");
    let (printed, errors) = bench.says(1, "check --all");
    assert!(printed.starts_with("net/pod/eth0 failed\n") && errors.contains("10.94.0.2"), "{printed}{errors}");
}
