//! The program, as a runtime calls it. Its results are compared with upstream's, except where upstream's are wrong.

#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const OURS: &str = env!("CARGO_BIN_EXE_host-local");
const REFERENCE: &str = "/usr/lib/cni/host-local";

struct Call<'a> {
    plugin: &'a str,
    verb: &'a str,
    container: &'a str,
    args: &'a str,
}

impl Call<'_> {
    /// Exit status and stdout.
    fn with(&self, conf: &Value) -> (bool, String, String) {
        #[expect(clippy::disallowed_methods, reason = "a plugin is a program")]
        let mut child = Command::new(self.plugin)
            .env_clear()
            .envs([("CNI_COMMAND", self.verb), ("CNI_CONTAINERID", self.container), ("CNI_IFNAME", "eth0")])
            // This plugin enters no namespace, so whatever is there will do, or nothing.
            .envs([("CNI_NETNS", "/dev/null"), ("CNI_PATH", "/nonexistent")])
            .env("CNI_ARGS", self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // VERSION does not read it.
        let _ = child.stdin.take().unwrap().write_all(conf.to_string().as_bytes());
        let ended = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (ended.status.success(), text(ended.stdout), text(ended.stderr))
    }
}

fn call(verb: &str, container: &str, conf: &Value) -> Result<String, Value> {
    let (good, output, _) = Call { plugin: OURS, verb, container, args: "" }.with(conf);
    if good { Ok(output) } else { Err(serde_json::from_str(&output).unwrap()) }
}

fn conf(place: &TempDir, version: &str, ipam: &Value) -> Value {
    let mut conf = json!({"cniVersion": version, "name": "net", "type": "x", "ipam": ipam});
    conf["ipam"]["type"] = "host-local".into();
    conf["ipam"]["dataDir"] = place.path().display().to_string().into();
    conf
}

fn small() -> Value {
    json!({"ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.5", "rangeEnd": "10.1.2.6"}]]})
}

fn names(place: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(place).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_result_is_that_of_upstream_in_every_version() {
    let resolv = tempfile::tempdir().unwrap();
    let path = resolv.path().join("resolv.conf");
    std::fs::write(&path, "nameserver 192.0.2.1\nsearch a b\ndomain d\noptions ndots:2\n").unwrap();
    let dual =
        json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64", "gateway": "2001:db8::9"}]]});
    let mut rich = dual.clone();
    rich["resolvConf"] = path.display().to_string().into();
    rich["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.2.9"}, {"dst": "::/0"}]);
    let old = json!({"subnet": "10.7.0.0/16", "rangeStart": "10.7.3.1", "gateway": "10.7.0.254"});
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        for ipam in [&dual, &rich, &old] {
            let told = |plugin| {
                let place = tempfile::tempdir().unwrap();
                let call = Call { plugin, verb: "ADD", container: "c", args: "IgnoreUnknown=1;K8S_POD_NAME=x" };
                let (good, output, _) = call.with(&conf(&place, version, ipam));
                assert!(good, "{plugin} {version}: {output}");
                (without_empty_dns(&output, version), names(&place.path().join("net")))
            };
            assert_eq!(told(OURS), told(REFERENCE), "{version} {ipam}");
        }
    }
}

/// The packaged reference is older than its contract, which leaves an empty `dns` out from 1.0.0 on.
fn without_empty_dns(output: &str, version: &str) -> Value {
    let mut answer: Value = serde_json::from_str(output).unwrap();
    if version == "1.0.0" && answer["dns"] == json!({}) {
        answer.as_object_mut().unwrap().remove("dns");
    }
    answer
}

#[test]
fn all_verbs_speak() {
    let place = tempfile::tempdir().unwrap();
    let mut conf = conf(&place, "1.1.0", &small());
    let given = call("ADD", "c", &conf).unwrap();
    conf["prevResult"] = serde_json::from_str(&given).unwrap();
    for verb in ["CHECK", "STATUS"] {
        assert_eq!(call(verb, "c", &conf).unwrap(), "", "{verb}");
    }
    assert!(call("VERSION", "", &conf).unwrap().contains("1.1.0"));
    conf["cni.dev/valid-attachments"] = json!([{"containerID": "c", "ifname": "eth0"}]);
    call("GC", "", &conf).unwrap();
    assert_eq!(names(&place.path().join("net")), ["10.1.2.5", "last_reserved_ip.0", "lock"]);
    conf["cni.dev/valid-attachments"] = json!([]);
    call("GC", "", &conf).unwrap();
    assert_eq!(names(&place.path().join("net")), ["last_reserved_ip.0", "lock"]);
    let drift = call("CHECK", "c", &conf).unwrap_err();
    assert_eq!(drift["code"], 102);
    assert!(drift["msg"].as_str().unwrap().contains("Failed to find address added by container ID"), "{drift}");
    assert_eq!(call("DEL", "c", &conf).unwrap(), "");
}

#[test]
fn a_plan_lists_the_steps_of_add_and_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let output = call("PLAN", "c", &conf(&place, "1.1.0", &small())).unwrap();
    assert!(output.contains("reserve the next free address of 10.1.2.5-10.1.2.6 for c/eth0 in "), "{output}");
    assert_eq!(names(place.path()), [""; 0]);
}

#[test]
fn every_refusal_has_its_code_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let conf = |ipam: &Value| conf(&place, "1.0.0", ipam);
    let code = |ipam: &Value, args| {
        let (good, output, _) = Call { plugin: OURS, verb: "ADD", container: "c", args }.with(&conf(ipam));
        assert!(!good, "{output}");
        serde_json::from_str::<Value>(&output).unwrap()["code"].as_u64().unwrap()
    };
    assert_eq!(code(&json!({}), ""), 7);
    assert_eq!(code(&json!({"subnet": "bad"}), ""), 7);
    assert_eq!(code(&json!({"subnet": 7}), ""), 6);
    assert_eq!(code(&json!({"subnet": "10.1.2.0/24", "resolvConf": "/nonexistent"}), ""), 100);
    assert_eq!(code(&small(), "IP=bogus"), 4);
    assert_eq!(code(&small(), "FOO=bar"), 4);
    assert_eq!(code(&small(), "IP=10.1.2.5;"), 4);
    assert_eq!(code(&small(), "IP=192.0.2.1"), 7);
    assert_eq!(names(place.path()), [""; 0], "nothing was touched");
    call("ADD", "c", &conf(&small())).unwrap();
    assert_eq!(code(&small(), ""), 104);
    call("ADD", "d", &conf(&small())).unwrap();
    let full = call("ADD", "e", &conf(&small())).unwrap_err();
    assert_eq!(full["code"], 11);
    assert!(
        full["msg"].as_str().unwrap().contains("no IP addresses available in range set: 10.1.2.5-10.1.2.6 (2 of 2")
    );
    assert!(full["details"].as_str().unwrap().contains("GC"), "{full}");
    assert_eq!(names(&place.path().join("net")), ["10.1.2.5", "10.1.2.6", "last_reserved_ip.0", "lock"]);
}

#[test]
fn a_del_needs_nothing_but_the_names_and_the_place() {
    let place = tempfile::tempdir().unwrap();
    for broken in [json!({"ranges": 7}), json!({"subnet": "bad"}), json!({}), small()] {
        call("ADD", "c", &conf(&place, "1.0.0", &small())).unwrap();
        let (good, output, _) =
            Call { plugin: OURS, verb: "DEL", container: "c", args: "garbage" }.with(&conf(&place, "1.0.0", &broken));
        assert!(good, "{broken}: {output}");
        assert_eq!(names(&place.path().join("net")), ["last_reserved_ip.0", "lock"], "{broken}");
    }
}

#[test]
fn a_status_names_files_that_cannot_be_read_and_stays_good() {
    let place = tempfile::tempdir().unwrap();
    let conf = conf(&place, "1.1.0", &small());
    std::fs::create_dir(place.path().join("net")).unwrap();
    std::fs::write(place.path().join("net/10.1.2.5"), "what is this?").unwrap();
    let (good, output, aside) = Call { plugin: OURS, verb: "STATUS", container: "", args: "" }.with(&conf);
    assert!(good && output.is_empty(), "{output}");
    assert!(aside.contains("/net/10.1.2.5 has no container id"), "{aside}");
    let unwritable = {
        let mut conf = conf.clone();
        conf["ipam"]["dataDir"] = "/proc/nowhere".into();
        call("STATUS", "", &conf).unwrap_err()
    };
    assert_eq!(unwritable["code"], 50, "{unwritable}");
    assert!(
        unwritable["msg"].as_str().unwrap().starts_with("no reservation can be stored in /proc/nowhere/net: "),
        "{unwritable}"
    );
}

#[test]
fn an_add_that_cannot_write_its_result_releases_the_address() {
    let place = tempfile::tempdir().unwrap();
    let conf = conf(&place, "1.0.0", &small());
    call("ADD", "earlier", &conf).unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    #[expect(clippy::disallowed_methods, reason = "a plugin is a program")]
    let mut child = Command::new(OURS)
        .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/")])
        .envs([("CNI_NETNS", "/proc/self/ns/net"), ("CNI_NETNS_OVERRIDE", "1")])
        .stdin(Stdio::piped())
        .stdout(full)
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(names(&place.path().join("net")), ["10.1.2.5", "last_reserved_ip.0", "lock"]);
}

#[test]
fn sixty_four_processes_at_once_are_given_sixty_four_addresses() {
    let place = tempfile::tempdir().unwrap();
    let conf =
        conf(&place, "1.0.0", &json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.65"}));
    std::thread::scope(|scope| {
        let conf = &conf;
        let adds: Vec<_> = (0..64).map(|n| scope.spawn(move || call("ADD", &format!("c{n}"), conf).unwrap())).collect();
        assert!(adds.into_iter().all(|add| add.join().unwrap().contains("10.1.2.")));
    });
    assert_eq!(names(&place.path().join("net")).len(), 66);
    std::thread::scope(|scope| {
        let conf = &conf;
        for n in 0..64 {
            scope.spawn(move || call("DEL", &format!("c{n}"), conf).unwrap());
        }
    });
    assert_eq!(names(&place.path().join("net")), ["last_reserved_ip.0", "lock"]);
}
