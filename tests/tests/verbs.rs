//! Further effects of each verb besides making and removing one attachment, for a runtime or an operator.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cnikit_testkit::life::SHARED;
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{addressed, bridge_result, firewall, publishing};
use cnikit_tests::served::served;
use cnikit_tests::way::{PROGRAMS, on_path, script};
use cnikit_tests::{NAMES, bin, dual_stack, flannel, program, subject, written_down};
use serde_json::{Value, json};
use tempfile::TempDir;

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
fn bridge() -> Subject {
    subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": dual_stack()}))
}

fn ptp() -> Subject {
    subject("ptp", json!({"ipMasq": true, "ipam": dual_stack()}))
}

fn host_local() -> Subject {
    subject("host-local", json!({"ipam": dual_stack()}))
}

fn written() -> Subject {
    subject("static", json!({"ipam": written_down()}))
}

/// Chained plugins that write rules, with each backend.
fn chained() -> [Subject; 4] {
    let [iptables, nftables] = ["iptables", "nftables"];
    [publishing(bin(), iptables), publishing(bin(), nftables), firewall(bin(), iptables), firewall(bin(), nftables)]
}

/// A result for a container that is not there.
fn of_an_absent_container(result: &Value) -> Value {
    serde_json::from_str(&result.to_string().replace("$NETNS", "/not/there")).unwrap()
}

/// The key that lists valid attachments, with the attachments of these containers.
fn valid(key: &'static str, containers: &[&str]) -> (&'static str, Value) {
    let list = containers.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
    (key, Value::Array(list))
}

const VALID: &str = "cni.dev/valid-attachments";

fn gc(subject: &Subject, host: &Host, list: (&str, Value)) -> CallOutput {
    subject.call(host, "GC", "", "", &[list])
}

// GC

#[test]
fn gc_removes_all_unlisted_attachments_of_its_network_only() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let subject = subject.at(host.dir());
        let other_ranges =
            json!({"type": "host-local", "dataDir": host.dir().join("leases"), "subnet": "10.88.0.0/24"});
        let other = subject.with("name", json!("othernet")).with("ipam", other_ranges).with("bridge", json!("cni1"));
        let containers: Vec<Container> = (0..4).map(|_| host.container()).collect();
        let kept = subject.add(&host, "c-kept", &containers[0]);
        let others = other.add(&host, "c-stale", &containers[1]);
        let before = HostSnapshot::of(&host);
        for key in [VALID, "cni.dev/attachments"] {
            subject.add(&host, "c-stale", &containers[2]);
            subject.add(&host, "c-worse", &containers[3]);
            assert_eq!(gc(&subject, &host, valid(key, &["c-kept"])).ok(), Value::Null);
            HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, key);
        }
        subject.check(&host, "c-kept", &containers[0], &kept).ok();
        gc(&subject, &host, (VALID, Value::Null)).ok();
        let traces = HostSnapshot::of(&host).added_since(&HostSnapshot::default(), &[]);
        assert!(!traces.iter().any(|line| line.contains("c-kept")), "null is not an empty list: {traces:#?}");
        other.check(&host, "c-stale", &containers[1], &others).ok();
        other.del(&host, "c-stale", &containers[1], &others);
    }
}

#[test]
fn gc_of_host_local_frees_what_is_not_listed() {
    let host = Host::new();
    let subject = host_local().at(host.dir());
    let container = host.container();
    subject.add(&host, "c-kept", &container);
    let before = HostSnapshot::of(&host);
    subject.add(&host, "c-stale", &container);
    gc(&subject, &host, valid(VALID, &["c-kept"])).ok();
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after GC");
    gc(&subject, &host, valid(VALID, &[])).ok();
    assert!(!host.dir().join("leases/testnet/10.77.0.2").exists());
}

#[test]
fn gc_without_a_list_is_an_error_and_removes_nothing() {
    for subject in [bridge(), ptp(), host_local(), subject("loopback", json!({}))].into_iter().chain(chained()) {
        let host = subject.host();
        let subject = subject.at(host.dir());
        let container = subject.container(&host);
        subject.add(&host, "c-one", &container);
        let before = HostSnapshot::of(&host);
        let (code, text) = subject.call(&host, "GC", "", "", &[]).refused();
        assert!(code == 7 && text.contains("required key `cni.dev/valid-attachments` missing"), "{code}: {text}");
        HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "after GC without a list");
    }
}

#[test]
fn gc_continues_after_an_error_and_reports_it() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let mut subject = subject.at(host.dir());
        let container = host.container();
        let before = HostSnapshot::of(&host);
        subject.add(&host, "c-stale", &container);
        let without_ipam = Directory::with(&[]);
        subject.bin = without_ipam.link_ours(&subject.plugin);
        let (code, text) = gc(&subject, &host, valid(VALID, &[])).refused();
        assert!(code == 103 && text.contains("failed to find plugin \"host-local\""), "{code}: {text}");
        let left = HostSnapshot::of(&host).added_since(&before, &[&SHARED[..], &["file: leases/"]].concat());
        assert!(left.is_empty(), "what needed no IPAM plugin is left: {left:#?}");
    }
}

// STATUS

#[test]
fn status_of_a_plugin_that_is_ready_prints_nothing() {
    let host = Host::new();
    let plain = [bridge(), ptp(), flannel(), host_local(), written(), subject("loopback", json!({}))];
    for subject in plain.into_iter().chain(chained()) {
        assert_eq!(subject.at(host.dir()).call(&host, "STATUS", "", "", &[]).ok(), Value::Null);
    }
}

#[test]
fn status_is_50_where_addresses_cannot_be_had() {
    let host = Host::new();
    let file = host.dir().join("a file");
    fs::write(&file, "").unwrap();
    for plugin in ["bridge", "ptp"] {
        let mut missing = subject(plugin, json!({"ipam": {"type": "nowhere", "subnet": "10.77.0.0/24"}}));
        let (code, text) = missing.call(&host, "STATUS", "", "", &[]).refused();
        assert!(code == 50 && text.contains("failed to find plugin \"nowhere\""), "{code}: {text}");
        let nothing = Directory::with(&[]);
        missing.bin = nothing.link_ours(plugin);
        assert_eq!(missing.call(&host, "STATUS", "", "", &[]).refused().0, 50);
    }
    for plugin in ["bridge", "ptp", "host-local"] {
        for dir in [file.as_path(), Path::new("/proc/sys/leases")] {
            let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": dir});
            let (code, text) = subject(plugin, json!({"ipam": ipam})).call(&host, "STATUS", "", "", &[]).refused();
            assert!(code == 50 && text.contains(&dir.display().to_string()), "{plugin}: {code}: {text}");
        }
    }
}

#[test]
fn status_is_50_where_a_plugin_cannot_store_its_files() {
    let host = Host::new();
    let file = host.dir().join("a file");
    fs::write(&file, "").unwrap();
    for plugin in ["host-device", "sbr", "tuning"] {
        for (dir, named) in [(file.as_path(), "a file"), (Path::new("/proc/sys/states"), "/proc/sys/")] {
            let subject = served(plugin).with("dataDir", json!(dir));
            let (code, text) = subject.call(&host, "STATUS", "", "", &[]).refused();
            assert!(code == 50 && text.contains(named), "{plugin}: {code}: {text}");
        }
    }
}

#[test]
fn status_is_50_where_the_programs_of_iptables_do_not_work() {
    let host = Host::new();
    PROGRAMS.iter().for_each(|one| script(host.dir(), one, "echo 'no such table' >&2; exit 3"));
    for subject in chained() {
        let output = on_path(&subject, host.dir()).call(&host, "STATUS", "", "", &[]);
        if subject.conf["backend"] == "nftables" {
            output.ok();
            continue;
        }
        let (code, text) = output.refused();
        assert!(code == 50 && text.contains("no such table"), "{code}: {text}");
    }
}

#[test]
fn status_is_50_where_the_configuration_has_no_address_that_can_be() {
    let host = Host::new();
    let wrong = [
        (json!({"type": "static", "addresses": [{"address": "10.77.0.5"}]}), "ipam.addresses[0]"),
        (json!({"type": "host-local", "subnet": "10.77.0.1/24"}), "Network has host bits set"),
    ];
    for (ipam, says) in wrong {
        for plugin in [ipam["type"].as_str().unwrap(), "bridge"] {
            let subject = subject(plugin, json!({"ipam": ipam})).at(host.dir());
            let (code, text) = subject.call(&host, "STATUS", "", "", &[]).refused();
            assert!(code == 50 && text.contains(says), "{plugin}: {code}: {text}");
        }
    }
}

#[test]
fn check_of_static_names_each_address_that_the_record_lacks() {
    let host = Host::new();
    let subject = written();
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    let addresses = json!([{"address": "10.77.0.5/16"}, {"address": "10.77.0.9/24"}, {"address": "fd00:77::5/64"}]);
    let changed = subject.with("ipam", json!({"type": "static", "addresses": addresses}));
    let (code, text) = changed.check(&host, "c-one", &container, &result).refused();
    let named = ["wanted 10.77.0.5/16, found 10.77.0.5/24", "wanted 10.77.0.9/24, found none"];
    assert!(
        code == 102 && named.iter().all(|text_of| text.contains(text_of)) && !text.contains("fd00"),
        "{code} {text}"
    );
}

#[test]
fn a_full_range_is_still_ready() {
    let host = Host::new();
    let full = json!({"type": "host-local", "subnet": "10.77.0.0/30"});
    let subject = subject("bridge", json!({"isGateway": true, "ipam": full})).at(host.dir());
    let one = host.container();
    let two = host.container();
    let result = subject.add(&host, "c-one", &one);
    let before = HostSnapshot::of(&host);
    let (code, text) = subject.call(&host, "ADD", "c-two", &two.path(), &[]).refused();
    assert!(code == 11 && text.contains("10.77.0.1-10.77.0.2"), "{code}: {text}");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after an ADD for which no address was free");
    subject.call(&host, "STATUS", "", "", &[]).ok();
    subject.del(&host, "c-one", &one, &result);
}

// VERSION, PLAN, by hand

#[test]
fn version_is_answered_without_a_look_at_stdin_or_any_other_variable() {
    let host = Host::new();
    let dir = tempfile::tempdir().unwrap();
    for plugin in NAMES {
        // Open for reading and writing, a fifo never ends.
        let line = format!(
            "cd {} && rm -f f && mkfifo f && CNI_COMMAND=VERSION timeout 10 {}/{plugin} <>f",
            dir.path().display(),
            bin().display()
        );
        let output: Value = serde_json::from_str(&host.sh(&line)).unwrap();
        assert_eq!(output, json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS}), "{plugin}");
    }
}

#[test]
fn a_dry_run_needs_no_privilege_and_no_namespace_and_touches_nothing() {
    let host = Host::new();
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = open.path().join("cni-plugins");
    fs::copy(program("cni-plugins"), &binary).unwrap();
    ["host-local", "bridge"].iter().for_each(|name| fs::hard_link(&binary, open.path().join(name)).unwrap());
    let before = HostSnapshot::of(&host);
    let published = publishing(bin(), "nftables").with("prevResult", of_an_absent_container(&addressed()));
    let walled = firewall(bin(), "nftables").with("prevResult", of_an_absent_container(&bridge_result()));
    for (subject, words) in [
        (bridge(), vec!["host-local: reserve the next free address", "bridge cni0", "eth0", "gateway", "masquerade"]),
        (ptp(), vec!["host-local: reserve the next free address", "eth0", "route", "masquerade"]),
        (host_local(), vec!["reserve the next free address of 10.77.0.1-10.77.0.254 for c-one/eth0"]),
        (
            written(),
            vec![
                "give 10.77.0.5/24 with gateway 10.77.0.1 and fd00:77::5/64 with gateway fd00:77::1 to testnet/c-one/eth0",
            ],
        ),
        (
            flannel(),
            vec!["hand to bridge: {", "bridge: bridge cni0", "bridge: host-local: reserve the next free address"],
        ),
        (subject("loopback", json!({})), vec!["lo"]),
        (published.clone(), vec!["port mappings: tcp 8080 to 80, udp 5353 to 53 (nftables)"]),
        (published.with("backend", json!("iptables")), vec!["udp 5353 to 53 (iptables)"]),
        (walled.clone(), vec!["accept packets from 10.77.0.2, fd00:77::2 and the answers, isolated on cni0"]),
        (walled.with("backend", json!("iptables")), vec!["(iptables)"]),
    ] {
        let subject = subject.at(host.dir());
        let call = format!(
            "echo '{}' | setpriv --inh-caps=-all --bounding-set=-all env CNI_COMMAND=PLAN CNI_CONTAINERID=c-one \
             CNI_IFNAME=eth0 CNI_PATH={} {} {}",
            subject.conf,
            open.path().display(),
            binary.display(),
            subject.plugin
        );
        let unprivileged: Value = serde_json::from_str(&host.sh(&call)).unwrap();
        let root = subject.call(&host, "PLAN", "c-one", "", &[]).ok();
        assert_eq!(unprivileged, root, "{}", subject.plugin);
        let steps: Vec<&str> = root["plan"].as_array().unwrap().iter().map(|step| step.as_str().unwrap()).collect();
        // The result that it would return, for the plugin that calls it or comes after it in the list.
        let example = usize::from(subject.plugin != "loopback");
        assert_eq!(root.as_object().unwrap().len(), 1 + example, "{root}");
        for word in words {
            assert!(steps.iter().any(|step| step.contains(word)), "{}: {word:?} is not in {steps:#?}", subject.plugin);
        }
    }
    HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "after dry runs");
}

#[test]
fn called_by_hand_a_plugin_explains_itself() {
    let host = Host::new();
    for plugin in NAMES {
        let path = bin().join(plugin);
        let (exit, stdout, stderr) = host.run(&path, &[], b"");
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!((exit, stdout.as_slice()), (0, b"".as_slice()), "{plugin}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(&format!("CNI {plugin} plugin cnikit-")), "{text}");
        assert_eq!(lines[1], format!("CNI protocol versions supported: {}", VERSIONS.join(", ")));
        assert_eq!(host.sh(&format!("{} --help 2>/dev/null", path.display())), text, "{plugin}");
        assert_eq!(host.sh(&format!("{} --version 2>/dev/null", path.display())).trim_end(), lines[0], "{plugin}");
    }
}

#[test]
fn the_example_in_the_help_of_a_plugin_works() {
    let host = Host::new();
    for plugin in NAMES {
        let text = host.sh(&format!("{}/{plugin} --help", bin().display()));
        let bin = bin().display().to_string();
        let wide: Vec<&str> = text.lines().filter(|line| line.replace(&bin, "/opt/cni/bin").len() > 100).collect();
        assert_eq!(wide, Vec::<&str>::new(), "{plugin}");
        let example: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
        let run = example.join("\n");
        let output: Value = serde_json::from_str(&host.try_sh(&run).1).unwrap();
        if plugin == "flannel" {
            let details = output["details"].as_str().unwrap();
            assert!(details.contains("flanneld has not written /run/flannel/subnet.env yet"), "{output}");
            continue;
        }
        assert!(output["plan"].as_array().is_some_and(|plan| !plan.is_empty()), "{plugin}: {output}");
    }
}

#[test]
fn the_one_binary_is_each_plugin_by_its_own_name_and_by_its_first_argument() {
    let host = Host::new();
    let all = program("cni-plugins").display().to_string();
    assert_eq!(host.sh(&format!("{all} --list")).lines().collect::<Vec<_>>(), NAMES);
    for (line, begins) in
        [("-h", "cnikit-"), ("install -h", "Usage: cni-plugins install"), ("dhcp daemon -h", "Usage: dhcp daemon")]
    {
        let help = host.sh(&format!("{all} {line} 2>/dev/null"));
        assert!(help.starts_with(begins), "{line}: {help}");
    }
    for plugin in NAMES {
        let alone = program(plugin).display().to_string();
        let called = [format!("{}/{plugin}", bin().display()), format!("{all} {plugin}"), alone];
        let versions = called.map(|call| host.sh(&format!("{call} --version")));
        assert!(versions[0].starts_with(&format!("CNI {plugin} plugin")), "{versions:?}");
        assert_eq!(versions[0], versions[1]);
        assert_eq!(versions[0], versions[2]);
        let refused = host.try_sh(&format!("CNI_COMMAND=ADD {all} {plugin} </dev/null")).1;
        assert!(refused.contains(&format!("\"details\":\"{plugin} ADD")), "{refused}");
    }
    let (succeeded, output) = host.try_sh(&format!("CNI_COMMAND=ADD {all} nonsense </dev/null"));
    assert!(!succeeded && output.contains("Call it by a plugin's name"), "{output}");
}

// Logs and traces

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// One ADD with these variables, and its DEL. Returns the stderr of the ADD.
fn logged(host: &Host, subject: &Subject, variables: &[(&str, &str)]) -> String {
    let container = host.container();
    let output =
        subject.call_raw(host, "ADD", "c-log", &container.path(), subject.conf.to_string().as_bytes(), variables);
    let stderr = output.stderr.clone();
    subject.del(host, "c-log", &container, &output.ok());
    stderr
}

#[test]
fn log_lines_have_the_attachment_and_the_time_of_each_step() {
    let host = Host::new();
    let subject = bridge().at(host.dir());
    assert_eq!(logged(&host, &subject, &[]), "", "it is off by default");
    let info = lines(&logged(&host, &subject, &[("CNI_LOG", "info")]));
    assert_eq!(info.len(), 2, "a line a call: host-local's and bridge's: {info:#?}");
    let debug = lines(&logged(&host, &subject, &[("CNI_LOG", "debug")]));
    assert!(debug.len() > 8, "a line a step: {debug:#?}");
    for line in info.iter().chain(&debug) {
        let known = ["verb", "network", "container", "ifname"].map(|key| line[key].as_str().unwrap_or_default());
        assert_eq!(known, ["ADD", "testnet", "c-log", "eth0"], "{line}");
        assert!(["bridge", "host-local"].contains(&line["plugin"].as_str().unwrap()), "{line}");
        assert!(line["step"].is_string() && line["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
    }
    assert!(debug.iter().any(|line| line["step"].as_str().unwrap().contains("bridge cni0")), "{debug:#?}");
}

#[test]
fn a_log_file_takes_the_lines_and_a_failure_is_among_them() {
    let host = Host::new();
    let subject = ptp().at(host.dir());
    let file = host.dir().join("log").display().to_string();
    let variables = [("CNI_LOG", "info"), ("CNI_LOG_FILE", file.as_str())];
    assert_eq!(logged(&host, &subject, &variables), "");
    let output = subject.call_raw(&host, "ADD", "c-log", "/gone", subject.conf.to_string().as_bytes(), &variables);
    assert_eq!((output.refused().0, fs::read_to_string(&file).unwrap().lines().count()), (3, 3));
    let last = lines(&fs::read_to_string(&file).unwrap()).pop().unwrap();
    assert_eq!(last["level"], "error");
    assert!(last["error"].as_str().unwrap().contains("is gone"), "{last}");
    let below_a_file = format!("{file}/log");
    let nowhere = [("CNI_LOG", "info"), ("CNI_LOG_FILE", below_a_file.as_str())];
    let there = lines(&logged(&host, &subject, &nowhere));
    assert_eq!(there.len(), 3, "what cannot go to the file goes to stderr, and once the reason: {there:#?}");
    assert!(
        there[0]["msg"].as_str().unwrap().contains("is not written, the log goes to stderr: Not a directory"),
        "{there:#?}"
    );
}

#[test]
fn a_trace_is_continued_and_handed_to_an_executed_plugin() {
    let host = Host::new();
    let ours = format!("00-{TRACE}-{SPAN}-01");
    let log = lines(&logged(&host, &bridge().at(host.dir()), &[("CNI_LOG", "info"), ("TRACEPARENT", &ours)]));
    assert!(log.iter().all(|line| line["trace_id"] == TRACE), "{log:#?}");
    let [ipam, bridge] = &log[..] else { panic!("a line a call: {log:#?}") };
    assert_eq!((&bridge["plugin"], &bridge["parent_id"]), (&json!("bridge"), &json!(SPAN)));
    assert_eq!((&ipam["plugin"], &ipam["parent_id"]), (&json!("host-local"), &bridge["span_id"]));
    assert!(
        bridge["span_id"] != SPAN && bridge["span_id"] != ipam["span_id"],
        "each call is a span of its own: {log:#?}"
    );
    let ipam = Directory::with(&[(
        "static",
        "echo \"$TRACEPARENT\" >>$0.trace; echo '{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.79.0.2/24\"}]}'",
    )]);
    let mut asking = subject("bridge", json!({"ipam": {"type": "static"}}));
    asking.bin = ipam.link_ours("bridge");
    logged(&host, &asking, &[("TRACEPARENT", &ours)]);
    let handed = ipam.read("static.trace");
    let handed: Vec<&str> = handed.lines().next().unwrap().split('-').collect();
    assert_eq!((handed[0], handed[1], handed[3]), ("00", TRACE, "01"));
    assert!(handed[2] != SPAN && handed[2].len() == 16, "{handed:?}");
}

// Results

#[test]
fn the_previous_result_is_passed_on_with_our_part_added() {
    let before = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"first0","mac":"0a:00:00:00:00:09","sandbox":"SANDBOX","vendor":{"deep":[1]}}],
        "ips":[{"address":"10.9.0.2/24","interface":0,"lease":123456789012345678901234567890}],
        "routes":[{"dst":"10.9.1.0/24","gw":"10.9.0.1","note":1.50}],"serial":340282366920938463463374607431768211456}"#;
    for (subject, names) in
        [(bridge(), vec!["first0", "cni0", "veth", "eth0"]), (ptp(), vec!["first0", "veth", "eth0"])]
    {
        let host = Host::new();
        let subject = subject.at(host.dir());
        let container = host.container();
        let before: Value = serde_json::from_str(&before.replace("SANDBOX", &container.path())).unwrap();
        let output = subject.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", before.clone())]);
        let text = output.stdout.clone();
        let result = output.ok();
        for number in ["340282366920938463463374607431768211456", "123456789012345678901234567890", "1.50"] {
            assert!(text.contains(&format!(":{number}")), "{number} did not survive: {text}");
        }
        for list in ["interfaces", "ips", "routes"] {
            assert_eq!(result[list][0], before[list][0], "{list}");
        }
        let found: Vec<&str> =
            result["interfaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert!(
            found.len() == names.len() && found.iter().zip(&names).all(|(found, name)| found.starts_with(name)),
            "{found:?}"
        );
        let own = result["ips"].as_array().unwrap()[1..]
            .iter()
            .map(|ip| (ip["address"].as_str().unwrap(), ip["interface"].as_u64().unwrap()));
        let last = names.len() as u64 - 1;
        assert_eq!(own.collect::<Vec<_>>(), [("10.77.0.2/24", last), ("fd00:77::2/64", last)]);
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
    }
}

#[test]
fn a_result_has_the_shape_of_the_version_that_was_asked_for() {
    let host = Host::new();
    let container = host.container();
    for version in VERSIONS {
        for (ipam, conf) in [(true, bridge()), (false, subject("bridge", json!({})))] {
            let subject = conf.at(host.dir()).with("cniVersion", json!(version));
            let result = subject.add(&host, "c-one", &container);
            assert_eq!(shape(&result), expected(version, ipam), "{version}, addresses: {ipam}");
            assert_eq!(result["cniVersion"], version);
            subject.del(&host, "c-one", &container, &result);
        }
    }
    let left = HostSnapshot::of(&host).added_since(&HostSnapshot::of(&Host::new()), &SHARED);
    assert!(left.is_empty(), "{left:#?}");
}

/// The keys of a document; of each list, those of its first element.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let mut members: Vec<String> = object.iter().map(|(key, value)| format!("{key}{}", shape(value))).collect();
            members.sort();
            format!("{{{}}}", members.join(" "))
        }
        Value::Array(list) => format!("[{}]", list.last().map(shape).unwrap_or_default()),
        _ => String::new(),
    }
}

fn expected(version: &str, addresses: bool) -> &'static str {
    match (version, addresses) {
        ("0.1.0" | "0.2.0", true) => {
            "{cniVersion dns{} ip4{gateway ip routes[{dst gw}]} ip6{gateway ip routes[{dst gw}]}}"
        }
        ("0.1.0" | "0.2.0", false) => "{cniVersion dns{}}",
        ("0.3.0" | "0.3.1" | "0.4.0", true) => {
            "{cniVersion dns{} interfaces[{mac name sandbox}] ips[{address gateway interface version}] routes[{dst gw}]}"
        }
        ("0.3.0" | "0.3.1" | "0.4.0", false) => "{cniVersion dns{} interfaces[{mac name sandbox}]}",
        (_, true) => {
            "{cniVersion interfaces[{mac mtu name sandbox}] ips[{address gateway interface}] routes[{dst gw}]}"
        }
        (_, false) => "{cniVersion interfaces[{mac mtu name sandbox}]}",
    }
}

// Delegation

/// A directory of plugins.
struct Directory(TempDir);

impl Directory {
    /// With these shell scripts in it; each first notes its verb.
    fn with(scripts: &[(&str, &str)]) -> Directory {
        let dir = Directory(tempfile::tempdir().unwrap());
        for (name, body) in scripts {
            let path = dir.0.path().join(name);
            fs::write(&path, format!("#!/bin/sh\necho $CNI_COMMAND >>$0.verbs\ncat >/dev/null\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    /// The directory, with one of our plugins added.
    fn link_ours(&self, plugin: &str) -> PathBuf {
        symlink(bin().join(plugin), self.0.path().join(plugin)).unwrap();
        self.0.path().to_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// The verbs that a script was called with.
    fn verbs(&self, name: &str) -> Vec<String> {
        self.read(&format!("{name}.verbs")).lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_ipam_plugins_of_upstream_work_with_ours() {
    let fixed = json!({"type": "static", "addresses": [{"address": "10.79.0.2/24", "gateway": "10.79.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]});
    let held = json!({"type": "host-local", "subnet": "10.79.0.0/24", "rangeStart": "10.79.0.2"});
    for (name, ipam) in [("static", fixed), ("host-local", held)] {
        for plugin in ["bridge", "ptp"] {
            let host = Host::new();
            let dir = Directory::with(&[]);
            symlink(Path::new("/usr/lib/cni").join(name), dir.0.path().join(name)).unwrap();
            let conf = json!({"cniVersion": "1.0.0", "isGateway": true, "ipMasq": true, "ipam": ipam});
            let mut subject = subject(plugin, conf).at(host.dir());
            subject.bin = dir.link_ours(plugin);
            let before = HostSnapshot::of(&host);
            let container = host.container();
            let result = subject.add(&host, "c-one", &container);
            assert_eq!(result["ips"][0]["address"], "10.79.0.2/24", "{plugin} {name}");
            assert!(container.reaches("10.79.0.1"), "{plugin} {name}");
            subject.check(&host, "c-one", &container, &result).ok();
            subject.del(&host, "c-one", &container, &result);
            let left = HostSnapshot::of(&host).added_since(&before, &SHARED);
            assert!(left.is_empty(), "{plugin} {name} left {left:#?}");
        }
    }
}

#[test]
fn an_ipam_plugin_that_gives_no_answer_is_a_clear_error_and_is_asked_to_release() {
    let cases = [
        ("echo no lease today >&2; test $CNI_COMMAND = DEL || exit 3", 103, "exit status 3; stderr: no lease today"),
        ("echo '{\"ips\": garbage'", 103, "answered ADD with something that is not a result"),
        ("echo '[]'", 103, "answered ADD with something that is not a result"),
        ("true", 103, "answered ADD with something that is not a result"),
        ("echo '{\"cniVersion\":\"1.1.0\",\"dns\":{}}'", 103, "IPAM plugin returned missing IP config"),
        ("test $CNI_COMMAND = DEL || { echo dying >&2; kill -SEGV $$; }", 103, "signal 11 (SIGSEGV); stderr: dying"),
        (
            "test $CNI_COMMAND = DEL || { echo '{\"code\":11,\"msg\":\"later\",\"details\":\"busy\"}'; exit 1; }",
            11,
            "later; ",
        ),
        (
            "test $CNI_COMMAND = DEL || { echo '{\"code\":999,\"msg\":\"no\"}'; echo why >&2; exit 1; }",
            999,
            "stderr: why",
        ),
    ];
    for plugin in ["bridge", "ptp"] {
        for name in ["static", "foreign"] {
            let host = Host::new();
            let mut before = HostSnapshot::of(&host);
            for (n, (script, code, says)) in cases.iter().enumerate() {
                let dir = Directory::with(&[(name, script)]);
                let mut subject = subject(plugin, json!({"isGateway": true, "ipMasq": true, "ipam": {"type": name}}));
                subject.bin = dir.link_ours(plugin);
                let container = host.container();
                let inside = HostSnapshot::inside(&container);
                let (found, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
                assert!(found == *code && text.contains(says), "{plugin} {name}: {script}: {found}: {text}");
                assert_eq!(dir.verbs(name), ["ADD", "DEL"], "{plugin} {name}: {script}");
                HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], script);
                let now = HostSnapshot::of(&host);
                let but: &[&str] = if n == 0 { &SHARED } else { &[] };
                now.assert_unchanged_since(&before, but, script);
                before = now;
            }
        }
    }
}

#[test]
fn a_refusal_because_the_address_is_held_already_releases_nothing() {
    let says = |error: &str| format!("test $CNI_COMMAND = DEL || {{ echo '{error}'; exit 1; }}");
    let duplicate = r#"{"code":999,"msg":"failed to allocate for range 0: 10.1.2.5 has been allocated to c-one, duplicate allocation is not allowed"}"#;
    for error in [r#"{"code":104,"msg":"it holds one"}"#, duplicate] {
        for plugin in ["bridge", "ptp"] {
            let host = Host::new();
            let dir = Directory::with(&[("static", &says(error))]);
            let mut subject = subject(plugin, json!({"ipam": {"type": "static"}}));
            subject.bin = dir.link_ours(plugin);
            let (code, text) = subject.call(&host, "ADD", "c-one", &host.container().path(), &[]).refused();
            assert!(code == 104 && text.contains("DEL it before you add it again"), "{code}: {text}");
            assert_eq!(dir.verbs("static"), ["ADD"], "it was asked to release what a running container holds");
        }
    }
}

#[test]
fn a_repeated_add_is_refused_and_the_attachment_keeps_running() {
    let reference = Directory::with(&[]);
    symlink("/usr/lib/cni/host-local", reference.0.path().join("host-local")).unwrap();
    NAMES.iter().filter(|plugin| **plugin != "host-local").for_each(|plugin| drop(reference.link_ours(plugin)));
    for (subject, bin) in
        [(bridge(), bin()), (ptp(), bin()), (bridge(), reference.0.path()), (ptp(), reference.0.path())]
    {
        let host = Host::new();
        let mut subject = subject.at(host.dir()).with("cniVersion", json!("1.0.0"));
        subject.bin = bin.to_owned();
        let container = host.container();
        let fresh = host.container();
        let result = subject.add(&host, "c-one", &container);
        let before = HostSnapshot::of(&host);
        let inside = HostSnapshot::inside(&fresh);
        for again in [&container, &fresh] {
            subject.call(&host, "ADD", "c-one", &again.path(), &[]).refused();
        }
        HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after an ADD of what runs");
        HostSnapshot::inside(&fresh).assert_unchanged_since(&inside, &[], "in the other namespace");
        subject.check(&host, "c-one", &container, &result).ok();
        assert!(container.reaches("10.77.0.1"));
        // Its link is gone and the lease remains: no other call may release it.
        container.sh("ip link del eth0");
        let (code, text) = subject.call(&host, "ADD", "c-one", &fresh.path(), &[]).refused();
        assert!(code == 104 && host.dir().join("leases/testnet/10.77.0.2").exists(), "{code}: {text}");
        subject.del(&host, "c-one", &container, &result);
    }
}

/// How many there are, not how many are in use; the kernel's own choice depends on the machine.
#[test]
fn a_veth_pair_has_one_queue_per_direction_by_default() {
    let queues = |links: &str| {
        let links: Vec<Value> = serde_json::from_str(links).unwrap();
        links.iter().map(|link| (link["num_tx_queues"].clone(), link["num_rx_queues"].clone())).collect::<Vec<_>>()
    };
    let kernels =
        |host: &Host| queues(&host.sh("ip link add probe type veth && ip -d -j link show probe && ip link del probe"));
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        let expected = [(json!(null), vec![(json!(1), json!(1))]), (json!(3), vec![(json!(3), json!(3))])];
        for (output, expected) in expected.into_iter().chain([(json!(0), kernels(&host))]) {
            let subject = subject.with("queues", output).at(host.dir());
            let result = subject.add(&host, "c-one", &container);
            assert_eq!(queues(&container.sh("ip -d -j link show eth0")), expected);
            assert_eq!(queues(&host.sh("ip -d -j link show type veth")), expected);
            subject.del(&host, "c-one", &container, &result);
        }
    }
}
