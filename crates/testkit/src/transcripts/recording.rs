//! What was recorded, as it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::env::shared_state::SHARED;
use crate::env::snapshot::line_contains;

/// One recorded call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// Its number in the scene.
    pub seq: u64,
    /// Who was called.
    pub plugin: String,
    /// Every variable of the protocol.
    pub env: BTreeMap<String, String>,
    /// The exact text.
    pub stdin: String,
    /// The exit status that the recorded plugin had.
    pub exit: i64,
    /// Its answer to an ADD that succeeded.
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

    /// Whether it is a call of this verb.
    pub fn is(&self, verb: &str) -> bool {
        self.env["CNI_COMMAND"] == verb
    }

    /// The same call with another verb.
    #[must_use]
    pub fn with_verb(&self, verb: &str) -> RecordedCall {
        let mut other = self.clone();
        other.env.insert("CNI_COMMAND".into(), verb.into());
        other
    }

    /// The call of a runtime that lost its state: DEL, without a namespace.
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

    /// The name of its namespace; `None` if it names none, or one that was never there (Podman's VERSION).
    pub fn namespace(&self) -> Option<&str> {
        self.env["CNI_NETNS"].strip_prefix("@NETNS@/")
    }
}

/// The calls of one file.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The file's name.
    pub name: String,
    /// In the order in which they began.
    pub calls: Vec<RecordedCall>,
}

impl Transcript {
    fn read(path: &Path) -> Transcript {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().enumerate();
        let calls =
            lines.map(|(n, line)| RecordedCall::read(line, &format!("{}, line {}", path.display(), n + 1))).collect();
        Transcript { name: path.file_stem().unwrap().to_str().unwrap().to_owned(), calls }
    }

    /// What a runtime that lost track sends of each attachment. It was refused when it was recorded, if the last DEL was that the
    /// attachment had.
    pub(super) fn final_dels(&self) -> impl Iterator<Item = RecordedCall> + '_ {
        self.calls.iter().filter(|call| call.is("ADD")).map(|add| {
            let is_its = |call: &&RecordedCall| {
                call.is("DEL") && call.plugin == add.plugin && call.attachment() == add.attachment()
            };
            let exit = self.calls.iter().rfind(is_its).map_or(0, |del| del.exit);
            RecordedCall { exit, ..add.without_netns() }
        })
    }

    fn bridges(&self) -> BTreeSet<String> {
        self.calls.iter().filter_map(|call| Some(call.conf()["bridge"].as_str()?.to_owned())).collect()
    }

    fn containers(&self) -> BTreeSet<&str> {
        let ids = self.calls.iter().map(|call| call.env["CNI_CONTAINERID"].as_str());
        ids.filter(|id| !id.is_empty()).collect()
    }

    /// What there is of any container among what came. Shared things stay: the bridges, empty chains, forwarding.
    pub fn left(&self, came: Vec<String>) -> Vec<String> {
        let bridges = self.bridges();
        let containers = self.containers();
        let shared = |line: &String| {
            SHARED.iter().any(|text| line_contains(line, text)) || bridges.iter().any(|name| line.contains(name))
        };
        let traced = |line: &String| line.contains("veth") || containers.iter().any(|id| line.contains(id));
        came.into_iter().filter(|line| !shared(line) || traced(line)).collect()
    }
}

/// All scenes of a directory, by name. Panics where a file is not of the form that [`transcripts`](super) describes.
pub fn read(dir: &Path) -> Vec<Transcript> {
    let files = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let files = files.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    files.sort();
    files.iter().map(|path| Transcript::read(path)).collect()
}
