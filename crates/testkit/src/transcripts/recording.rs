//! Recorded calls, and the files that contain them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::env::snapshot::line_contains;

/// A recorded call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedCall {
    /// The number of the call in the transcript.
    pub seq: u64,
    /// The called plugin.
    pub plugin: String,
    /// All variables of the protocol.
    pub env: BTreeMap<String, String>,
    /// The exact text on stdin.
    pub stdin: String,
    /// The exit status of the recorded plugin.
    pub exit: i64,
    /// The result of a successful ADD, or null.
    pub answer: Value,
}

impl RecordedCall {
    fn read(line: &str, place: &str) -> RecordedCall {
        let mut value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{place}: {error}"));
        let keys = ["seq", "plugin", "env", "stdin", "exit"];
        keys.iter().for_each(|key| assert!(!value[key].is_null(), "{place}: it has no {key}"));
        RecordedCall {
            seq: value["seq"].as_u64().unwrap(),
            plugin: value["plugin"].as_str().unwrap().to_owned(),
            env: serde_json::from_value(value["env"].take()).unwrap(),
            stdin: value["stdin"].as_str().unwrap().to_owned(),
            exit: value["exit"].as_i64().unwrap(),
            answer: value["stdout"].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap()),
        }
    }

    /// Whether the call has this verb.
    pub fn is(&self, verb: &str) -> bool {
        self.env["CNI_COMMAND"] == verb
    }

    /// Returns the call with another verb.
    #[must_use]
    pub fn with_verb(&self, verb: &str) -> RecordedCall {
        let mut other = self.clone();
        other.env.insert("CNI_COMMAND".into(), verb.into());
        other
    }

    /// Returns a DEL of the same attachment without a namespace, as a runtime sends it after it lost its state.
    #[must_use]
    pub fn without_netns(&self) -> RecordedCall {
        let mut del = RecordedCall { exit: 0, ..self.with_verb("DEL") };
        del.env.insert("CNI_NETNS".into(), String::new());
        del
    }

    /// The configuration on its stdin.
    pub fn conf(&self) -> Value {
        serde_json::from_str(&self.stdin).unwrap()
    }

    /// The identity of its attachment.
    pub fn attachment(&self) -> String {
        [&self.env["CNI_CONTAINERID"], &self.env["CNI_IFNAME"], self.conf()["name"].as_str().unwrap_or_default()]
            .join(" ")
    }

    /// The name of its namespace; `None` if there is no namespace, or one that never existed (Podman's VERSION).
    pub fn namespace(&self) -> Option<&str> {
        self.env["CNI_NETNS"].strip_prefix("@NETNS@/")
    }
}

/// The recorded calls of one file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transcript {
    /// The file's name.
    pub name: String,
    /// The calls, in the order in which they began.
    pub calls: Vec<RecordedCall>,
}

impl Transcript {
    /// Reads a transcript from the text of a file. Panics if it does not have the form in [`transcripts`](super).
    pub fn parse(name: &str, text: &str) -> Transcript {
        let mut calls = Vec::new();
        for (n, line) in text.lines().enumerate() {
            calls.push(RecordedCall::read(line, &format!("{name}, line {}", n + 1)));
        }
        Transcript { name: name.to_owned(), calls }
    }

    /// The DELs of a runtime that lost its state. Such a DEL may be refused if the recorded last DEL of the attachment was.
    pub(super) fn final_dels(&self) -> impl Iterator<Item = RecordedCall> + '_ {
        let adds = self.calls.iter().filter(|call| call.is("ADD"));
        adds.map(|add| RecordedCall { exit: self.exit_of_last_del(add), ..add.without_netns() })
    }

    /// The exit status of the last recorded DEL of an attachment; 0 if there was none.
    fn exit_of_last_del(&self, add: &RecordedCall) -> i64 {
        for call in self.calls.iter().rev() {
            if call.is("DEL") && call.plugin == add.plugin && call.attachment() == add.attachment() {
                return call.exit;
            }
        }
        0
    }

    fn bridges(&self) -> BTreeSet<String> {
        self.calls.iter().filter_map(|call| Some(call.conf()["bridge"].as_str()?.to_owned())).collect()
    }

    fn containers(&self) -> BTreeSet<&str> {
        let ids = self.calls.iter().map(|call| call.env["CNI_CONTAINERID"].as_str());
        ids.filter(|id| !id.is_empty()).collect()
    }

    /// The lines of `came` that belong to a container. State that attachments share is left out: the bridges of the transcript, and
    /// what contains one of these texts (see [`Subject::shared`](crate::Subject::shared)).
    pub fn left(&self, came: Vec<String>, shared: &[&str]) -> Vec<String> {
        let bridges = self.bridges();
        let containers = self.containers();
        let is_shared = |line: &String| {
            shared.iter().any(|text| line_contains(line, text)) || bridges.iter().any(|name| line.contains(name))
        };
        let traced = |line: &String| line.contains("veth") || containers.iter().any(|id| line.contains(id));
        came.into_iter().filter(|line| !is_shared(line) || traced(line)).collect()
    }
}

/// Reads all transcripts of a directory, sorted by name. Panics if a file does not have the form in [`transcripts`](super).
pub fn read(dir: &Path) -> Vec<Transcript> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    let mut all = Vec::with_capacity(files.len());
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        all.push(Transcript::parse(&name, &fs::read_to_string(&path).unwrap()));
    }
    all
}
