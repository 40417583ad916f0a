//! The protocol checks on every plugin of ours, and the program `cni-conformance` on plugins in three languages.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cnikit_testkit::{Subject, protocol};
use cnikit_tests::conformance_run::Run;
use cnikit_tests::{bin, dual_stack, each_subject, program, subject};
use serde_json::{Value, json};

macro_rules! conforms {
    ($($name:ident: $subject:expr $(, $more:ident)*;)+) => {$(
        #[test]
        fn $name() {
            conforms(&$subject);
        }
    )+};
}

each_subject!(conforms);

fn conforms(subject: &Subject) {
    protocol::reports_versions(subject);
    protocol::converts_results(subject);
    // The result of simulated plugins before a chained one does not say what they made.
    if subject.after.is_none() {
        protocol::results_are_true(subject);
    }
    protocol::prints_nothing_but_results(subject);
    protocol::reports_its_status(subject);
}

#[test]
fn bad_requests_and_existing_interfaces_are_refused_and_losses_noticed() {
    let bridge = subject("bridge", json!({"isDefaultGateway": true, "ipam": dual_stack()}));
    protocol::refuses_bad_requests(&bridge, true);
    protocol::refuses_an_existing_interface(&bridge);
    protocol::keeps_valid_attachments(&bridge);
    protocol::notices_losses(&bridge);
    // Each container gets another address, also on a new host.
    let mut hashed = bridge.with("ipam", json!({"type": "hashed", "subnet": "10.77.0.0/24", "dataDir": "$DIR/hashed"}));
    hashed.env.push(("CNI_PATH".to_owned(), program("hashed").parent().unwrap().display().to_string()));
    protocol::notices_losses(&hashed);
    protocol::refuses_bad_requests(&subject("host-local", json!({"ipam": dual_stack()})), false);
}

fn plugin(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins").join(name).display().to_string()
}

fn ours(name: &str) -> String {
    bin().join(name).display().to_string()
}

/// The campaigns are tested by themselves, and take long.
const WITHOUT_CAMPAIGNS: [&str; 2] = ["--skip", "kill,recorded,fault,terminate"];

#[test]
fn a_bridge_of_ours_is_excellent_with_every_test() {
    let run = Run::with(&[("net.json", json!({"name": "testnet", "isDefaultGateway": true}))]);
    let options = ["--plugin", &ours("bridge"), "--conf", "net.json", "--with-ipam", "host-local", "--cases", "1"];
    let output = run.run(&options);
    assert!(output.exit == 0 && output.stdout.contains("level: excellent"), "{output:?}");
    assert!(output.stdout.contains("21 passed, 0 failed, 1 do not apply"), "{output:?}");
}

#[test]
fn a_chain_is_tested_as_one_plugin() {
    let bridge = json!({"type": "bridge", "isDefaultGateway": true, "ipam": dual_stack()});
    let list = json!({"cniVersion": "1.1.0", "name": "testnet", "plugins": [bridge]});
    let ports = json!({"backend": "nftables", "runtimeConfig": {"portMappings": [{"hostPort": "$NUMBER", "containerPort": 80, "protocol": "tcp"}]}});
    let run = Run::with(&[("list.conflist", list), ("ports.json", ports)]);
    let options = ["--plugin", &ours("portmap"), "--conf", "ports.json", "--chain", "list.conflist"];
    let outcomes = run.outcomes(&[&options[..], &WITHOUT_CAMPAIGNS].concat());
    assert!(outcomes.iter().all(|(_, outcome)| outcome != "failed"), "{outcomes:?}");
    assert!(outcomes.contains(&("chained".to_owned(), "passed".to_owned())), "{outcomes:?}");
}

#[test]
fn what_a_plugin_in_shell_does_wrong_is_found() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    let options = ["--plugin", &plugin("lo.sh"), "--conf", "net.json"];
    // It sets `lo` down in any namespace that DEL names, the host's and that of another container.
    assert_eq!(run.failed(&[&options[..], &WITHOUT_CAMPAIGNS].concat()), ["del"]);
    let output = run.run(&[&options[..], &["--only", "del"]].concat());
    assert!(output.exit == 1 && output.stdout.contains("with the host's namespace: came ["), "{output:?}");
    let [source, again] = ["Plugins should generally complete a DEL action without error", "again: CNIKIT_SEED="];
    assert!(output.stdout.contains(source) && output.stdout.contains(again), "{output:?}");
}

#[test]
fn a_plugin_in_python_conforms() {
    let run = Run::with(&[("net.json", json!({"name": "testnet", "address": "10.88.$PLACE/16"}))]);
    let options = ["--plugin", &plugin("pair.py"), "--conf", "net.json"];
    // 64 interpreters at once take long.
    assert_eq!(run.failed(&[&options[..], &["--skip", "parallel,kill,recorded,fault,terminate"]].concat()), [""; 0]);
}

#[test]
fn an_add_that_fails_is_the_finding_and_other_tests_are_skipped() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    let ipam = r#"{"type": "host-local", "subnet": "nowhere"}"#;
    let options = ["--plugin", &ours("bridge"), "--conf", "net.json", "--with-ipam", ipam];
    let outcomes = run.outcomes(&options);
    let ended = |id: &str| outcomes.iter().find(|(name, _)| name == id).map(|(_, outcome)| outcome.as_str());
    assert_eq!([ended("version"), ended("add"), ended("del")], [Some("passed"), Some("failed"), Some("skipped")]);
}

#[test]
fn without_root_it_runs_in_a_user_namespace() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    run.host.sh(&format!(
        "chmod 755 {0} && cp {1} {2} {0}",
        run.host.dir().display(),
        program("cni-conformance").display(),
        ours("loopback")
    ));
    let dir = run.host.dir().display().to_string();
    let line = format!(
        "cd {dir} && setpriv --reuid 65534 --regid 65534 --clear-groups ./cni-conformance --plugin ./loopback --conf net.json --level specification"
    );
    let (succeeded, output) = run.host.try_sh(&line);
    assert!(succeeded && output.contains("level: specification"), "{output}");
}

#[test]
fn a_directory_of_state_may_be_anywhere_and_need_not_exist() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    let plugin = ours("loopback");
    let states = ["--state", "/run/containers", "--state", "/var/absent/state", "--state", "/var/lib/cni/deeper"];
    let output = run.run(&[&["--plugin", &plugin, "--conf", "net.json", "--only", "add"], &states[..]].concat());
    assert_eq!((output.exit, output.stderr.as_str()), (0, ""), "{output:?}");
    assert!(!Path::new("/var/absent").exists(), "it is not made on the machine");
    let output = run.run(&["--plugin", &plugin, "--conf", "net.json", "--state", "/nowhere/state"]);
    assert!(output.exit == 2 && output.stderr.contains("--state /nowhere/state: it does not exist"), "{output:?}");
}

#[test]
fn a_campaign_is_left_out_after_a_test_of_its_level_has_failed() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    let outcomes = |plugin: &str, campaigns: &str| {
        let options = [
            "--plugin",
            plugin,
            "--conf",
            "net.json",
            "--only",
            "version,del,kill",
            "--cases",
            "1",
            "--format",
            "json",
        ];
        let report = run.run(&[&options[..], &["--campaigns", campaigns]].concat()).json();
        let of = |test: &Value| format!("{} {}", test["id"].as_str().unwrap(), test["outcome"].as_str().unwrap());
        report["tests"].as_array().unwrap().iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let shell = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/lo.sh").display().to_string();
    assert_eq!(outcomes(&shell, "if-passed"), "version passed, del failed, kill skipped");
    assert_eq!(outcomes(&ours("loopback"), "if-passed"), "version passed, del passed, kill passed");
    assert_eq!(outcomes(&ours("loopback"), "never"), "version passed, del passed, kill skipped");
}

#[test]
fn a_master_that_gets_frames_for_a_macvlan_is_as_it_was() {
    let conf = json!({"name": "testnet", "master": "master0",
        "ipam": {"type": "static", "addresses": [{"address": "10.88.$PLACE/16"}]}});
    let run = Run::with(&[("net.json", conf)]);
    let setup = "ip link add master0 type veth peer name outer0 && ip link set master0 up && ip link set outer0 up";
    let output = run.run(&["--plugin", &ours("macvlan"), "--conf", "net.json", "--only", "foreign", "--setup", setup]);
    assert_eq!(output.exit, 0, "{output:?}");
}

#[test]
fn the_other_forms_have_one_entry_for_each_test() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    let options = ["--plugin", &ours("loopback"), "--conf", "net.json", "--only", "version,add,del"];
    let tap = run.run(&[&options[..], &["--format", "tap"]].concat()).stdout;
    assert!(tap.starts_with("TAP version 14\n1..3\nok 1 - "), "{tap}");
    let file = run.host.dir().join("report.xml");
    std::fs::write(&file, "").unwrap();
    let output = run.run(&[&options[..], &["--format", "junit", "--output", "report.xml"]].concat());
    assert!(output.exit == 0 && output.stdout.is_empty(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap().matches("<testcase ").count(), 3);
}

#[test]
fn a_report_may_be_written_below_run() {
    let run = Run::with(&[("net.json", json!({"name": "testnet"}))]);
    let file = Path::new("/run").join(run.host.dir().file_name().unwrap());
    let path = file.display().to_string();
    let options = ["--plugin", &ours("loopback"), "--conf", "net.json", "--only", "version"];
    let output = run.run(&[&options[..], &["--output", &path]].concat());
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.exit == 0 && output.stdout.is_empty(), "{output:?}");
    assert!(written.ends_with("1 passed, 0 failed, 0 do not apply; level: none\n"), "{written}");
}

/// A plugin whose ADD leaves a daemon, its configuration, and a program that counts such daemons, in the directory of a run.
fn with_daemon(when_started: &str) -> Run {
    let run = Run::with(&[("net.json", json!({"name": "testnet", "cniVersion": "1.0.0"}))]);
    let text = format!(
        "#!/bin/sh
         case $CNI_COMMAND in
         VERSION) echo '{{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}}' ;;
         ADD)
             setsid tail -f $0 >/dev/null 2>&1 </dev/null &
             {when_started}
             echo '{{\"cniVersion\": \"1.0.0\", \"ips\": []}}' ;;
         esac\n"
    );
    let dir = run.host.dir().display();
    let count = format!(
        "#!/bin/sh\ncat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'tail [-]f {dir}/daemonic'\n"
    );
    for (name, text) in [("daemonic", text), ("daemons", count)] {
        let path = run.host.dir().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    run.host.sh(&format!(
        "chmod 755 {0} && cp {1} {0}",
        run.host.dir().display(),
        program("cni-conformance").display()
    ));
    run
}

const TEST_DAEMON: &str = "./cni-conformance --plugin ./daemonic --conf net.json --only version,add";

#[test]
fn what_a_plugin_leaves_running_ends_with_the_program() {
    let run = with_daemon("");
    let dir = run.host.dir().display();
    let (_, output) = run.host.try_sh(&format!("cd {dir}; {TEST_DAEMON}; ./daemons"));
    assert!(output.contains("2 passed, 0 failed") && output.ends_with("\n0\n"), "{output}");
}

/// A user may not mount `/proc` where a part of it is hidden, as in many containers.
#[test]
fn it_ends_also_where_no_pid_namespace_can_be_made() {
    let run = with_daemon("");
    let dir = run.host.dir().display();
    let inside = format!(
        "mount --bind /dev/null /proc/uptime; user='setpriv --reuid 65534 --regid 65534 --clear-groups'
         ! $user unshare --map-root-user --pid --fork --mount-proc true 2>/dev/null || echo it can be made
         $user {TEST_DAEMON}"
    );
    let (_, output) =
        run.host.try_sh(&format!("cd {dir}; unshare --mount sh -c '{}'; ./daemons", inside.replace('\'', r"'\''")));
    assert!(!output.contains("it can be made"), "{output}");
    assert!(output.contains("2 passed, 0 failed") && output.ends_with("\n0\n"), "{output}");
}

#[test]
fn nothing_is_left_of_a_run_that_is_killed() {
    let run = with_daemon("touch $0.started; wait");
    let dir = run.host.dir().display();
    // A killed program cannot remove its own temporary directory: it is below the host's.
    let (_, output) = run.host.try_sh(&format!(
        "cd {dir}; export TMPDIR={dir}; {TEST_DAEMON} & timeout 60 sh -c 'until [ -e daemonic.started ]; do sleep 0.05; done'
         ./daemons; kill -KILL $!; timeout 60 sh -c 'until [ $(./daemons) = 0 ]; do sleep 0.05; done' && echo ended"
    ));
    assert!(output.ends_with("1\nended\n"), "{output}");
}

#[test]
fn the_host_is_prepared_for_each_container() {
    let conf = json!({"name": "testnet", "device": "pairend$NUMBER",
        "ipam": {"type": "static", "addresses": [{"address": "10.88.$PLACE/16"}]}});
    let run = Run::with(&[("net.json", conf)]);
    let options = ["--plugin", &ours("host-device"), "--conf", "net.json", "--only", "version,add,del"];
    let line = "ip link show pairend$NUMBER >/dev/null 2>&1 || ip link add pairend$NUMBER type ifb";
    assert_eq!(run.failed(&[&options[..], &["--setup-container", line]].concat()), [""; 0]);
    assert_eq!(run.failed(&options), ["add"]);
}

#[test]
fn what_cannot_be_tested_has_exit_status_2_and_a_reason() {
    let run = Run::with(&[]);
    let output = run.run(&["--plugin", "/nowhere/x", "--conf", "/nowhere/net.json"]);
    assert_eq!(output.exit, 2);
    assert!(output.stderr.starts_with("cni-conformance: /nowhere/x: No such file"), "{output:?}");
}

#[test]
fn the_page_has_the_tests_that_there_are() {
    let listed = Run::with(&[]).run(&["--list"]).stdout;
    let mut rows = String::new();
    for line in listed.lines() {
        let [level, rest] = line.split_once(' ').map(|(level, rest)| [level, rest.trim_start()]).unwrap();
        let [id, title] = rest.split_once(' ').map(|(id, title)| [id, title.trim_start()]).unwrap();
        writeln!(rows, "| {level} | `{id}` | {title} |").unwrap();
    }
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance.md")).unwrap();
    let table =
        page.split("<!-- tests -->\n").nth(1).and_then(|rest| rest.split("<!-- end of tests -->").next()).unwrap();
    assert_eq!(table, format!("| level | test | what holds |\n|---|---|---|\n{rows}"));
}
