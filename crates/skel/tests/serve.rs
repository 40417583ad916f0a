//! One call from its input to its output, whatever the plugin or the other end of stdout does.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use cnikit_skel::{Add, Check, Del, Error, Input, Journal, Plugin, Result, Stdin, UnknownKeys, code, serve};
use cnikit_types::CniResult;
use serde::Deserialize;
use serde_json::Value;

/// How often something was undone.
static UNDONE: AtomicUsize = AtomicUsize::new(0);
/// The tests count together, so they take turns.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A plugin that makes something and then behaves as its configuration requires.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Moody {
    mood: String,
}

impl Plugin for Moody {
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP"]);

    fn add(&self, _: &Add, journal: &mut Journal) -> Result<CniResult> {
        let _made = journal.undo(&"a thing", |_| {
            UNDONE.fetch_add(1, Ordering::Relaxed);
            Ok::<(), Error>(())
        });
        if self.mood == "stubborn" {
            let _stays = journal.undo(&"a stubborn thing", |_| Err(Error::new(code::SYSTEM, "it stays")));
        }
        if self.mood == "mad" {
            let _panics = journal.undo(&"a mad thing", |_| -> Result<()> { panic!("undoing went mad") });
        }
        assert_eq!(self.mood, "", "the mood is bad");
        Ok(CniResult::default())
    }

    fn del(_: &Del) -> Result<()> {
        Ok(())
    }
}

/// An ADD that can be served.
fn input(mood: &str) -> Input {
    call("ADD", format!(r#"{{"cniVersion":"1.0.0","name":"n","mood":"{mood}"}}"#))
}

/// A call for eth0 of the container "c", which is in the namespace of the test.
fn call(verb: &str, conf: String) -> Input {
    let mut input = Input::new(verb, conf);
    input.container_id = "c".into();
    input.ifname = "eth0".into();
    input.netns = "/proc/thread-self/ns/net".into();
    input.netns_override = true;
    input
}

/// One ADD: its status, and how often something was undone.
fn add(mood: &str, out: &mut dyn Write) -> (u8, usize) {
    let before = UNDONE.load(Ordering::Relaxed);
    let exit = serve::<Moody>("moody", input(mood), &[], out);
    (exit, UNDONE.load(Ordering::Relaxed) - before)
}

#[test]
fn a_result_that_was_written_is_not_undone() {
    let _turn = TURN.lock();
    let mut out = Vec::new();
    assert_eq!(add("", &mut out), (0, 0));
    assert_eq!(String::from_utf8(out).unwrap(), "{\"cniVersion\":\"1.0.0\"}\n");
}

#[test]
fn a_panic_becomes_one_error_object_and_what_was_made_is_undone() {
    let _turn = TURN.lock();
    let mut out = Vec::new();
    assert_eq!(add("bad", &mut out), (1, 1));
    let error: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&error["code"], &error["cniVersion"]), (&Value::from(199), &Value::from("1.0.0")));
    assert!(error["msg"].as_str().unwrap().contains("the mood is bad"), "{error}");
    assert!(
        error["details"].as_str().unwrap().starts_with("moody ADD, network n, container c, interface eth0; "),
        "{error}"
    );
}

#[test]
fn a_failed_undo_is_reported_with_the_error() {
    let _turn = TURN.lock();
    let mut out = Vec::new();
    assert_eq!(add("stubborn", &mut out), (1, 1), "the rest is undone all the same");
    let output = String::from_utf8(out).unwrap();
    assert!(output.contains("not everything could be undone: undo a stubborn thing: it stays"), "{output}");
    assert!(output.contains("hint: DEL removes the rest"), "{output}");
}

#[test]
fn a_panic_in_an_undo_is_reported_and_the_rest_is_undone() {
    let _turn = TURN.lock();
    let mut out = Vec::new();
    assert_eq!(add("mad", &mut out), (1, 1));
    let error: Value = serde_json::from_slice(&out).unwrap();
    assert!(error["msg"].as_str().unwrap().contains("the mood is bad"), "{error}");
    let details = error["details"].as_str().unwrap();
    assert!(details.contains("not everything could be undone: undo a mad thing: panic: undoing went mad"), "{error}");
}

/// A change that makes a call invalid.
type Change = fn(&mut Input);

/// The code and the details of the error of a call that is refused before the plugin is asked.
fn refused(change: impl FnOnce(&mut Input)) -> (u64, String) {
    let mut asked = input("bad");
    let mut out = Vec::new();
    change(&mut asked);
    assert_eq!(serve::<Moody>("moody", asked, &[], &mut out), 1);
    let error: Value = serde_json::from_slice(&out).unwrap_or_default();
    (error["code"].as_u64().unwrap_or_default(), error["details"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn an_invalid_ignore_unknown_is_refused_without_unknown_args_too() {
    for args in ["IgnoreUnknown=yes", "IgnoreUnknown=", "IP=10.0.0.1;IgnoreUnknown=2"] {
        let (code, details) = refused(|input| input.args = args.into());
        assert!(code == 4 && details.contains("hint: set IgnoreUnknown"), "{args}: {code} {details}");
    }
}

#[test]
fn every_refusal_of_a_call_has_a_hint() {
    let stdin = |text: &str| Stdin::Given(text.into());
    let on_stdin = [
        ("7", 6),
        ("{", 6),
        ("{}", 7),
        (r#"{"name":""}"#, 7),
        (r#"{"name":7}"#, 6),
        (r#"{"name":"a/b"}"#, 7),
        (r#"{"name":"n","cniVersion":7}"#, 6),
        (r#"{"name":"n","cniVersion":"9.0.0"}"#, 1),
        (r#"{"name":"n","cniVersion":"1.0.0","type":7}"#, 6),
        (r#"{"name":"n","cniVersion":"1.0.0","mood":7}"#, 6),
        (r#"{"name":"n","cniVersion":"1.0.0","prevResult":7}"#, 6),
    ];
    for (text, expected) in on_stdin {
        let (code, details) = refused(|input| input.stdin = stdin(text));
        assert!(code == expected && details.contains("hint: "), "{text}: {code} {details}");
    }
    let changes: [(&str, u64, Change); 9] = [
        ("unknown verb", 4, |input| input.command = "JUMP".into()),
        ("CHECK without prevResult", 7, |input| input.command = "CHECK".into()),
        ("too old for STATUS", 1, |input| input.command = "STATUS".into()),
        ("GC without a list", 7, |input| {
            input.command = "GC".into();
            input.stdin = Stdin::Given(br#"{"name":"n","cniVersion":"1.1.0"}"#.to_vec());
        }),
        ("bad container", 4, |input| input.container_id = "/".into()),
        ("bad interface", 4, |input| input.ifname = "/".into()),
        ("no namespace", 4, |input| input.netns = "/dev/null".into()),
        ("gone namespace", 3, |input| input.netns = "/nowhere".into()),
        ("our own namespace", 8, |input| input.netns_override = false),
    ];
    for (what, expected, change) in changes {
        let (code, details) = refused(change);
        assert!(code == expected && details.contains("hint: "), "{what}: {code} {details}");
    }
    let newer = |input: &mut Input| {
        input.command = "CHECK".into();
        input.stdin = stdin(r#"{"name":"n","cniVersion":"9.0.0"}"#);
    };
    assert!(refused(newer).1.contains("hint: set `cniVersion` to 1.1.0 or older"));
}

/// A reader that closes the pipe after this many bytes.
struct Leaving {
    room: usize,
    taken: Vec<u8>,
}

impl Write for Leaving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.room - self.taken.len());
        self.taken.extend(&bytes[..fits]);
        if fits == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(fits) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn half_an_answer_is_followed_by_nothing_and_what_was_made_is_undone() {
    let _turn = TURN.lock();
    for room in [0, 1, 10, 22] {
        let mut out = Leaving { room, taken: Vec::new() };
        assert_eq!(add("", &mut out), (1, 1), "{room}");
        assert_eq!(out.taken, b"{\"cniVersion\":\"1.0.0\"}\n"[..room]);
    }
}

/// A plugin that refuses keys that it does not know.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Strict {
    #[serde(default)]
    only_key: u32,
}

impl Plugin for Strict {
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Refused;

    fn add(&self, _: &Add, _: &mut Journal) -> Result<CniResult> {
        assert!(self.only_key < 2);
        Ok(CniResult::default())
    }

    fn del(_: &Del) -> Result<()> {
        Ok(())
    }
}

/// The call of a verb with these members of the configuration: its status and output.
fn strict<P: Plugin>(verb: &str, members: &str) -> (u8, String) {
    let conf = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"strict"{members}}}"#);
    let mut out = Vec::new();
    let exit = serve::<P>("strict", call(verb, conf), &[], &mut out);
    (exit, String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn a_key_that_the_plugin_does_not_know_is_refused_if_it_says_so() {
    let of_cni = r#","ONLYKEY":1,"capabilities":{},"runtimeConfig":{},"args":{},"dns":{},"ipam":{},"cni.dev/x":1"#;
    assert_eq!(strict::<Strict>("ADD", of_cni).0, 0);
    for verb in ["ADD", "STATUS"] {
        let (exit, text) = strict::<Strict>(verb, r#","onlykeys":1,"another":2"#);
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((exit, &error["code"]), (1, &Value::from(7)), "{text}");
        assert_eq!(error["msg"], "onlykeys, another: the plugin has no such key");
        assert!(text.contains("hint: remove onlykeys, or correct its name; the plugin knows onlyKey"), "{text}");
    }
    assert_eq!(strict::<Strict>("DEL", r#","another":2"#).0, 0, "what it made has to be removable");
    let _turn = TURN.lock();
    assert_eq!(strict::<Moody>("ADD", r#","another":2"#).0, 0, "most plugins ignore them");
}

/// A plugin that restores every container except `c2`, and then reports what it was called with.
#[derive(Deserialize)]
struct Restoring {}

impl Plugin for Restoring {
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP"]);

    fn add(&self, _: &Add, _: &mut Journal) -> Result<CniResult> {
        Ok(CniResult::default())
    }

    fn del(_: &Del) -> Result<()> {
        Ok(())
    }

    fn restore(&self, restore: &Check, _: &mut Journal) -> Result<()> {
        let attachment = &restore.attachment;
        if attachment.tag.container != "c2" {
            return Ok(());
        }
        let port = restore.call.conf.at(&["runtimeConfig", "port"]);
        let text = format!(
            "{} {} {:?} {port:?} {}",
            attachment.tag.ifname,
            attachment.sandbox,
            attachment.args.get("IP"),
            restore.prev.interfaces.len()
        );
        Err(Error::new(code::SYSTEM, text))
    }
}

/// A RESTORE of the attachments in this list, or of the one of the variables.
fn restored(list: &str, container_id: &str) -> (u8, String) {
    let conf = format!(
        r#"{{"cniVersion":"1.1.0","name":"n","prevResult":{{"cniVersion":"1.1.0"}},"cni.dev/attachments":{list}}}"#
    );
    let mut input = call("RESTORE", conf);
    input.container_id = container_id.into();
    let mut out = Vec::new();
    let exit = serve::<Restoring>("restoring", input, &[], &mut out);
    (exit, String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn each_attachment_of_a_list_is_restored_with_what_the_list_has_for_it() {
    let list = r#"[
        {"containerID":"c1","ifname":"eth0","netns":"/proc/thread-self/ns/net"},
        {"containerID":"c2","ifname":"net1","netns":"/proc/self/task/../ns/net","args":"IP=10.0.0.1",
         "runtimeConfig":{"port":80},"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"net1"}]}},
        {"containerID":"/","ifname":"eth0","netns":"/proc/thread-self/ns/net"},
        7]"#;
    let (exit, text) = restored(list, "");
    let document: Value = serde_json::from_str(&text).unwrap();
    let all = document["cni.dev/attachments"].as_array().unwrap();
    assert_eq!((exit, all.len()), (0, 4), "{text}");
    assert_eq!(all[0], serde_json::json!({"containerID": "c1", "ifname": "eth0"}));
    let second = r#"net1 /proc/self/task/../ns/net Some("10.0.0.1") Some(Number(80)) 1"#;
    assert_eq!((&all[1]["containerID"], &all[1]["error"]["msg"]), (&Value::from("c2"), &Value::from(second)), "{text}");
    assert_eq!(all[2]["error"]["code"], 4, "{text}");
    assert!(all[3]["error"]["msg"].as_str().unwrap().contains("a member that is not an object: 7"), "{text}");
}

#[test]
fn a_list_is_read_only_by_a_restore_that_has_no_attachment_of_its_own() {
    let (exit, text) = restored("7", "");
    assert!(exit == 1 && text.contains("`cni.dev/attachments` is not a list"), "{text}");
    assert_eq!(restored("7", "c1").0, 0, "the attachment of the variables");
    let mut add = call("ADD", r#"{"cniVersion":"1.1.0","name":"n","cni.dev/attachments":[]}"#.to_owned());
    add.container_id = String::new();
    let mut out = Vec::new();
    assert_eq!(serve::<Restoring>("restoring", add, &[], &mut out), 1);
    assert!(String::from_utf8(out).unwrap().contains("CNI_CONTAINERID"));
}
