//! What real runtimes sent: the calls, and a host to send them to again. `tests/transcripts/README.md` says what the files are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cnikit_testkit::life::SHARED;
use cnikit_testkit::snapshot::holds;
use cnikit_testkit::{Container, Host, Snapshot};
use serde_json::Value;
use tempfile::TempDir;

use crate::bin;

/// One recorded call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its number in the scene.
    pub seq: u64,
    /// Who was called.
    pub plugin: String,
    /// Every variable of the protocol.
    pub env: BTreeMap<String, String>,
    /// The exact text.
    pub stdin: String,
    /// The reference's exit status.
    pub exit: i64,
    /// The reference's answer to an ADD.
    pub answer: Value,
}

impl Call {
    fn read(line: &str) -> Call {
        let mut value: Value = serde_json::from_str(line).unwrap();
        Call {
            seq: value["seq"].as_u64().unwrap(),
            plugin: value["plugin"].as_str().unwrap().to_owned(),
            env: serde_json::from_value(value["env"].take()).unwrap(),
            stdin: value["stdin"].as_str().unwrap().to_owned(),
            exit: value["exit"].as_i64().unwrap(),
            answer: value["stdout"].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap()),
        }
    }

    /// Is it of this verb?
    pub fn is(&self, verb: &str) -> bool {
        self.env["CNI_COMMAND"] == verb
    }

    /// The same with another verb.
    #[must_use]
    pub fn with_verb(&self, verb: &str) -> Call {
        let mut other = self.clone();
        other.env.insert("CNI_COMMAND".into(), verb.into());
        other
    }

    /// What a runtime that lost track sends: DEL, and no namespace.
    #[must_use]
    pub fn lost(&self) -> Call {
        let mut del = Call { exit: 0, ..self.with_verb("DEL") };
        del.env.insert("CNI_NETNS".into(), String::new());
        del
    }

    /// What was on its stdin.
    pub fn conf(&self) -> Value {
        serde_json::from_str(&self.stdin).unwrap()
    }

    /// What tells attachments apart.
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
pub struct Scene {
    /// The file's name.
    pub name: String,
    /// In the order in which they began.
    pub calls: Vec<Call>,
}

impl Scene {
    fn read(path: &Path) -> Scene {
        let calls = fs::read_to_string(path).unwrap().lines().map(Call::read).collect();
        Scene { name: path.file_stem().unwrap().to_str().unwrap().to_owned(), calls }
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
        let (bridges, containers) = (self.bridges(), self.containers());
        let shared = |line: &String| {
            SHARED.iter().any(|text| holds(line, text)) || bridges.iter().any(|name| line.contains(name))
        };
        let traced = |line: &String| line.contains("veth") || containers.iter().any(|id| line.contains(id));
        came.into_iter().filter(|line| !shared(line) || traced(line)).collect()
    }
}

/// The scenes of a runtime.
pub fn scenes(of: &str) -> Vec<Scene> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts");
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    files.sort();
    let scenes = files.iter().map(|path| Scene::read(path));
    scenes.filter(|scene| scene.name.starts_with(of)).collect()
}

/// A host for one scene, with what the placeholders stand for.
#[derive(Debug)]
pub struct Ground {
    /// Where the plugins run.
    pub host: Host,
    before: Snapshot,
    /// Where the paths of namespaces are.
    run: TempDir,
    containers: BTreeMap<String, Container>,
}

impl Ground {
    /// Nothing is there.
    pub fn new() -> Ground {
        let host = Host::new();
        Ground { before: Snapshot::of(&host), host, run: tempfile::tempdir().unwrap(), containers: BTreeMap::new() }
    }

    /// The variables of a call, its namespace made if it is not there.
    pub fn environment(&mut self, call: &Call) -> Vec<(String, String)> {
        if let Some(name) = call.namespace().filter(|name| !self.containers.contains_key(*name)) {
            let (container, path) = (self.host.container(), self.path(name));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(container.path(), path).unwrap();
            self.containers.insert(name.to_owned(), container);
        }
        call.env.iter().map(|(key, value)| (key.clone(), self.fill(value))).collect()
    }

    /// The configuration keeps its spelling: only the leases' directory comes in.
    pub fn fill(&self, text: &str) -> String {
        let leases = format!(r#""dataDir":"{}","type":"host-local""#, self.leases().display());
        text.replace("@NETNS@", &self.run.path().join("netns").to_string_lossy())
            .replace("@BIN@", &bin().to_string_lossy())
            .replace("@STATE@/bin", &bin().to_string_lossy())
            .replace(r#""type":"host-local""#, &leases)
    }

    /// Where host-local keeps what it gave.
    pub fn leases(&self) -> PathBuf {
        self.host.dir().join("leases")
    }

    /// A namespace goes away.
    pub fn forget(&mut self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
        self.containers.remove(name);
    }

    /// What came since it was new.
    pub fn came(&self) -> Vec<String> {
        Snapshot::of(&self.host).added_since(&self.before, &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.run.path().join("netns").join(name)
    }
}

impl Default for Ground {
    fn default() -> Ground {
        Ground::new()
    }
}
