//! Seeds: the inputs that mutations start from. These are the stored corpus, and recorded output of real runtimes and plugins.

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_types::Value;

use crate::Target;

/// Recorded calls of runtimes, with one call per line.
const TRANSCRIPTS: &str = "tests/transcripts";
/// Every n-th recorded call is a seed, because most calls are like those before them.
const EVERY: usize = 5;

impl Target {
    /// The directory of the stored corpus.
    pub fn corpus(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// All seeds, beginning with the stored corpus.
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

/// Reads the files of a directory, sorted by name.
fn read_files(corpus: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(corpus).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|file| file.path()).collect();
    files.sort();
    files.iter().filter_map(|file| fs::read(file).ok()).collect()
}

fn transcribed_calls() -> Vec<Value> {
    let mut calls = Vec::new();
    for file in read_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(TRANSCRIPTS)) {
        let text = String::from_utf8_lossy(&file);
        calls.extend(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
    }
    calls
}

fn text<'a>(call: &'a Value, path: &[&str]) -> &'a str {
    path.iter().fold(call, |value, key| &value[*key]).as_str().unwrap_or_default()
}

fn request(call: &Value) -> Vec<u8> {
    let variable = |name: &str| text(call, &["env", name]);
    let netns = if variable("CNI_NETNS").is_empty() { "" } else { "own" };
    let fields = [
        variable("CNI_COMMAND"),
        variable("CNI_CONTAINERID"),
        netns,
        variable("CNI_IFNAME"),
        variable("CNI_ARGS"),
        "/bin",
        text(call, &["stdin"]),
    ];
    fields.join("\0").into_bytes()
}

fn configuration(call: &Value) -> Option<Vec<u8>> {
    let which = [
        "bridge",
        "ptp",
        "loopback",
        "static",
        "tuning",
        "macvlan",
        "ipvlan",
        "firewall",
        "portmap",
        "dummy",
        "vlan",
        "sbr",
        "vrf",
        "bandwidth",
        "tap",
        "host-device",
        "dhcp",
        "pool",
    ]
    .iter()
    .position(|plugin| *plugin == text(call, &["plugin"]))?;
    let which = u8::try_from(which).ok()?;
    Some([&[which], text(call, &["env", "CNI_ARGS"]).as_bytes(), &[0], text(call, &["stdin"]).as_bytes()].concat())
}

fn result(call: &Value) -> Option<Vec<u8>> {
    let stdout = text(call, &["stdout"]);
    if stdout.is_empty() {
        return None;
    }
    Some([&[6], stdout.as_bytes()].concat())
}
