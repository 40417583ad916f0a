//! One call from its input to its output, whatever the plugin or the other end of stdout does.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use cnikit_skel::input::Stdin;
use cnikit_skel::{Add, Del, Error, Input, Journal, Plugin, Result, code, serve};
use cnikit_types::Answer;
use serde::Deserialize;
use serde_json::Value;

/// How often something was undone.
static UNDONE: AtomicUsize = AtomicUsize::new(0);
/// The tests count together, so they take turns.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A plugin that makes something, and then does as its configuration says.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Moody {
    mood: String,
}

impl Plugin for Moody {
    fn add(&self, _: &Add, journal: &mut Journal) -> Result<Answer> {
        let _made = journal.undo(&"a thing", |_| {
            UNDONE.fetch_add(1, Ordering::Relaxed);
            Ok::<(), Error>(())
        });
        if self.mood == "stubborn" {
            let _stays = journal.undo(&"a stubborn thing", |_| Err(Error::new(code::SYSTEM, "it stays")));
        }
        assert_eq!(self.mood, "", "the mood is bad");
        Ok(Answer::default())
    }

    fn del(_: &Del) -> Result<()> {
        Ok(())
    }
}

/// One ADD: its status, and how often something was undone.
fn add(mood: &str, out: &mut dyn Write) -> (u8, usize) {
    let input = Input {
        command: "ADD".into(),
        container_id: "c".into(),
        ifname: "eth0".into(),
        netns: "/proc/thread-self/ns/net".into(),
        netns_override: true,
        stdin: Stdin::Given(format!(r#"{{"cniVersion":"1.0.0","name":"n","mood":"{mood}"}}"#).into_bytes()),
        ..Input::default()
    };
    let before = UNDONE.load(Ordering::Relaxed);
    let exit = serve::<Moody>("moody", input, &[], out);
    (exit, UNDONE.load(Ordering::Relaxed) - before)
}

#[test]
fn an_answer_that_got_out_is_kept() {
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
fn what_could_not_be_undone_is_told_with_the_error() {
    let _turn = TURN.lock();
    let mut out = Vec::new();
    assert_eq!(add("stubborn", &mut out), (1, 1), "the rest is undone all the same");
    let said = String::from_utf8(out).unwrap();
    assert!(said.contains("not all could be undone: undo a stubborn thing: it stays"), "{said}");
    assert!(said.contains("remedy: DEL removes what is left"), "{said}");
}

/// A reader that goes away after so many bytes.
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
