//! Where each target starts from: the kept corpus, and what real runtimes and plugins once sent.

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_types::Value;

use crate::Target;

/// What runtimes of the reference sent, a call a line.
const TRANSCRIPTS: &str = "tests/transcripts";
/// Most calls of a scene are like those before them.
const EVERY: usize = 5;

impl Target {
    /// The directory of its kept inputs.
    pub fn corpus(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// All that it starts from, the kept inputs first.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let mut seeds = read_files(&self.corpus());
        let take = match self.name {
            "request" => |call: &Value| Some(request(call)),
            "plugins" => configuration,
            "conversion" | "delegate" => result,
            "arguments" => |call: &Value| call["env"]["CNI_ARGS"].as_str().map(|text| text.as_bytes().to_vec()),
            _ => return seeds,
        };
        let calls = transcribed_calls();
        seeds.extend(calls.iter().step_by(EVERY).filter_map(take));
        seeds
    }
}

/// The files of a corpus, in the order of their names.
fn read_files(corpus: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(corpus).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    files.iter().filter_map(|file| fs::read(file).ok()).collect()
}

fn transcribed_calls() -> Vec<Value> {
    let scenes = read_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(TRANSCRIPTS));
    let texts = scenes.iter().map(|scene| String::from_utf8_lossy(scene));
    let calls = texts.map(|text| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>());
    calls.flatten().collect()
}

fn text<'a>(call: &'a Value, path: &[&str]) -> &'a str {
    path.iter().fold(call, |value, key| &value[*key]).as_str().unwrap_or_default()
}

fn request(call: &Value) -> Vec<u8> {
    let said = |name: &str| text(call, &["env", name]);
    let netns = if said("CNI_NETNS").is_empty() { "" } else { "own" };
    let fields = [
        said("CNI_COMMAND"),
        said("CNI_CONTAINERID"),
        netns,
        said("CNI_IFNAME"),
        said("CNI_ARGS"),
        "/bin",
        text(call, &["stdin"]),
    ];
    fields.join("\0").into_bytes()
}

fn configuration(call: &Value) -> Option<Vec<u8>> {
    let which =
        ["bridge", "ptp", "loopback", "static", "tuning", "macvlan", "ipvlan", "firewall", "portmap", "dummy", "vlan"]
            .iter()
            .position(|plugin| *plugin == text(call, &["plugin"]))?;
    let which = u8::try_from(which).ok()?;
    Some([&[which], text(call, &["env", "CNI_ARGS"]).as_bytes(), &[0], text(call, &["stdin"]).as_bytes()].concat())
}

fn result(call: &Value) -> Option<Vec<u8>> {
    let said = Some(text(call, &["stdout"])).filter(|said| !said.is_empty())?;
    Some([&[6], said.as_bytes()].concat())
}
