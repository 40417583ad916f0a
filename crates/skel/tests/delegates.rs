//! A plugin that calls another one: what that one gets, and what becomes of its answer.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cnikit_skel::{Add, Call, Check, Del, Delegate, Gc, Input, Journal, Plugin, Result, Status, serve};
use cnikit_types::{CniResult, NetConf};
use serde::Deserialize;
use serde_json::{Value, json};

/// The tests take turns: a file that another thread has open for writing, and a child inherits, cannot be executed.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A plugin that has everything done by the one in its configuration, or by `ipam`.
#[derive(Deserialize)]
struct Delegating {}

fn delegate(call: &Call) -> Result<Delegate> {
    match call.conf.get("delegate") {
        Some(Value::Object(members)) => call.delegate_with(&NetConf(members.clone())),
        _ => call.delegate("ipam"),
    }
}

impl Plugin for Delegating {
    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let delegate = delegate(&add.call)?;
        match add.call.conf.text("how") {
            Some("attach") => delegate.attach(journal),
            Some("again") => delegate.attach_again(journal),
            _ => delegate.add(journal),
        }
    }

    fn del(del: &Del) -> Result<()> {
        delegate(&del.call)?.del()
    }

    fn check(&self, check: &Check) -> Result<()> {
        delegate(&check.call)?.check()
    }

    fn gc(gc: &Gc) -> Result<()> {
        delegate(&gc.call)?.gc()
    }

    fn status(&self, status: &Status) -> Result<()> {
        delegate(&status.call)?.status()
    }

    fn restore(&self, restore: &Check, _: &mut Journal) -> Result<()> {
        delegate(&restore.call)?.restore()
    }
}

const ADDRESS: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}"#;

/// A directory with the plugin `ipam`, which records its calls and their stdin, and answers ADD with this text and status.
fn directory(name: &str, answer: &str, status: u8) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("delegates-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let script = format!(
        "#!/bin/sh
echo \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS\" >>\"${{0%/*}}/calls\"
read -r line
printf '%s' \"$line\" >\"${{0%/*}}/stdin\"
[ $CNI_COMMAND != ADD ] || {{ printf '%s' '{answer}'; exit {status}; }}
"
    );
    fs::write(dir.join("ipam"), script).unwrap();
    fs::set_permissions(dir.join("ipam"), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A call of the plugin with these members of the configuration.
fn input(verb: &str, dir: &Path, members: &str) -> Input {
    let conf = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"outer"{members}}}"#);
    let mut input = Input::new(verb, conf);
    input.container_id = "c".into();
    input.ifname = "eth0".into();
    input.args = "A=1".into();
    input.netns = "/proc/thread-self/ns/net".into();
    input.netns_override = true;
    input.path = dir.to_str().unwrap().into();
    input
}

/// The same, carried out: the code of its error, and the error.
fn called(verb: &str, dir: &Path, members: &str) -> (u64, String) {
    served(input(verb, dir, members))
}

fn served(input: Input) -> (u64, String) {
    let mut out = Vec::new();
    let exit = serve::<Delegating>("outer", input, &[], &mut out);
    let answer: Value = serde_json::from_slice(&out).unwrap_or_default();
    let code = answer["code"].as_u64().unwrap_or_default();
    assert_eq!(exit == 0, code == 0, "{answer}");
    (code, answer.to_string())
}

/// The verbs that the delegate was called with.
fn verbs(dir: &Path) -> Vec<String> {
    let calls = fs::read_to_string(dir.join("calls")).unwrap_or_default();
    calls.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn each_verb_is_passed_on_with_the_variables_and_the_configuration_of_the_call() {
    let _turn = TURN.lock();
    let dir = directory("verbs", ADDRESS, 0);
    let members = r#","prevResult":{"cniVersion":"1.1.0"},"cni.dev/valid-attachments":[]"#;
    let all = ["ADD", "CHECK", "RESTORE", "STATUS", "GC", "DEL"];
    for verb in all {
        let (code, answer) = called(verb, &dir, members);
        assert_eq!(code, 0, "{verb}: {answer}");
        let stdin = fs::read_to_string(dir.join("stdin")).unwrap();
        assert_eq!(stdin, format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"outer"{members}}}"#), "{verb}");
    }
    let calls = fs::read_to_string(dir.join("calls")).unwrap();
    assert_eq!(calls, all.map(|verb| format!("{verb} c eth0 A=1\n")).concat());
}

#[test]
fn a_delegate_with_a_configuration_of_its_own_gets_the_version_and_the_result_too() {
    let _turn = TURN.lock();
    let dir = directory("configured", ADDRESS, 0);
    let stdin = || serde_json::from_str::<Value>(&fs::read_to_string(dir.join("stdin")).unwrap()).unwrap();
    let own = r#","delegate":{"type":"ipam","key":1}"#;
    assert_eq!(called("DEL", &dir, &format!(r#"{own},"prevResult":{{"cniVersion":"1.1.0"}}"#)).0, 0);
    let prev = json!({"cniVersion": "1.1.0"});
    assert_eq!(stdin(), json!({"type": "ipam", "key": 1, "cniVersion": "1.1.0", "prevResult": prev}));
    assert_eq!(called("DEL", &dir, &format!(r#"{own},"prevResult":7"#)).0, 0);
    assert_eq!(stdin(), json!({"type": "ipam", "key": 1, "cniVersion": "1.1.0"}), "a result that cannot be parsed");
}

#[test]
fn a_delegate_that_cannot_be_called_is_an_error() {
    let _turn = TURN.lock();
    let dir = directory("missing", ADDRESS, 0);
    let (code, answer) = called("ADD", &dir, r#","delegate":{"type":"outer"}"#);
    assert!(code == 7 && answer.contains("outer cannot delegate to itself"), "{answer}");
    let (code, answer) = called("ADD", Path::new(""), "");
    assert!(code == 4 && answer.contains("[CNI_PATH] missing"), "{answer}");
    assert_eq!(called("ADD", &dir, r#","delegate":{"type":"absent"}"#).0, 103);
    assert_eq!(called("ADD", &dir, r#","delegate":{"type":"../ipam"}"#).0, 7);
    assert!(verbs(&dir).is_empty());
}

#[test]
fn a_delegate_that_any_user_may_replace_is_refused_if_the_policy_of_the_node_says_so() {
    let _turn = TURN.lock();
    let dir = directory("writable", ADDRESS, 0);
    let with = |policy: &str| {
        let mut input = input("ADD", &dir, "");
        input.node = Some(serde_json::from_str(policy).unwrap());
        served(input)
    };
    let refuse = r#"{"refuseWritablePlugins":true}"#;
    assert_eq!(with(refuse).0, 0);
    fs::set_permissions(dir.join("ipam"), fs::Permissions::from_mode(0o757)).unwrap();
    assert_eq!(with("{}").0, 0);
    let (code, answer) = with(refuse);
    assert!(code == 103 && answer.contains("ipam is not run: any user may write to"), "{answer}");
    assert_eq!(verbs(&dir), ["ADD", "ADD"]);
}

/// Whether a failed delegate gets a DEL.
const UNDONE: bool = true;
const LEFT: bool = false;

/// For each answer of a delegate, with its exit status: ADD has this code, and the delegate gets a DEL or not.
fn assert_undone(name: &str, members: &str, cases: &[(&str, u8, u64, bool)]) {
    for (answer, status, expected, undone) in cases {
        let dir = directory(name, answer, *status);
        let (code, error) = called("ADD", &dir, members);
        assert_eq!(code, *expected, "{answer}: {error}");
        assert_eq!(verbs(&dir), if *undone { &["ADD", "DEL"][..] } else { &["ADD"] }, "{answer}");
    }
}

#[test]
fn an_ipam_plugin_that_fails_gets_a_del_unless_the_address_may_be_of_a_running_container() {
    let _turn = TURN.lock();
    let cases = [
        (r#"{"code":11,"msg":"full"}"#, 1, 11, UNDONE),
        (r#"{"code":101,"msg":"taken"}"#, 1, 101, UNDONE),
        (r#"{"code":104,"msg":"it has one"}"#, 1, 104, LEFT),
        (r#"{"code":11,"msg":"duplicate allocation is not allowed"}"#, 1, 104, LEFT),
        (r#"{"code":1,"msg":"incompatible CNI versions"}"#, 1, 1, LEFT),
        (r#"{"cniVersion":"1.1.0"}"#, 0, 103, UNDONE),
        ("7", 0, 103, UNDONE),
        ("no JSON", 0, 103, UNDONE),
    ];
    assert_undone("ipam", "", &cases);
}

#[test]
fn a_plugin_that_fails_to_attach_gets_a_del_unless_something_exists_already() {
    let _turn = TURN.lock();
    let cases = [
        (r#"{"code":100,"msg":"no"}"#, 1, 100, UNDONE),
        (r#"{"code":101,"msg":"taken"}"#, 1, 101, LEFT),
        (r#"{"code":104,"msg":"it has one"}"#, 1, 104, LEFT),
        (r#"{"code":1,"msg":"incompatible CNI versions"}"#, 1, 1, LEFT),
        (r#"{"cniVersion":"1.1.0"}"#, 0, 0, LEFT),
        ("7", 0, 103, UNDONE),
    ];
    assert_undone("attach", r#","how":"attach""#, &cases);
    // It may have been attached before: nothing of a running container is undone.
    let dir = directory("again", r#"{"code":100,"msg":"no"}"#, 1);
    assert_eq!(called("ADD", &dir, r#","how":"again""#).0, 100);
    assert_eq!(verbs(&dir), ["ADD"]);
}
