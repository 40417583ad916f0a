//! What is tested: a plugin with a configuration, or a chain.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cnikit_testkit::parallel::catch_panic;
use cnikit_testkit::transcripts::{self, Transcript};
use cnikit_testkit::{Subject, protocol};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::chain;
use crate::cli::CommandLine;

/// Programs that the tests run.
const PROGRAMS: [&str; 6] = ["ip", "tc", "nft", "ping", "sed", "bridge"];

/// Where plugins have state if nothing else is configured; each host has its own.
const STATE: &str = "/var/lib/cni";

/// Recorded calls of real runtimes, which are replayed if no others are given.
const TRANSCRIPTS: [(&str, &str); 8] = [
    ("containerd-1.6-cni-0.4.0", include_str!("../../../tests/transcripts/containerd-1.6-cni-0.4.0.jsonl")),
    ("containerd-1.6-netns-gone", include_str!("../../../tests/transcripts/containerd-1.6-netns-gone.jsonl")),
    ("containerd-1.6-restart", include_str!("../../../tests/transcripts/containerd-1.6-restart.jsonl")),
    ("containerd-2.1-cni-1.1.0", include_str!("../../../tests/transcripts/containerd-2.1-cni-1.1.0.jsonl")),
    ("containerd-2.1-stop-twice", include_str!("../../../tests/transcripts/containerd-2.1-stop-twice.jsonl")),
    ("containerd-2.1-two-networks", include_str!("../../../tests/transcripts/containerd-2.1-two-networks.jsonl")),
    ("podman-4.3-killed", include_str!("../../../tests/transcripts/podman-4.3-killed.jsonl")),
    ("podman-4.3-multi", include_str!("../../../tests/transcripts/podman-4.3-multi.jsonl")),
];

/// The files of the command line, read before the process moves into namespaces of its own.
pub(crate) struct Inputs {
    plugin: Option<PathBuf>,
    conf: Value,
    /// The plugins before it, or all of a list.
    chain: Vec<Value>,
    cni_path: String,
    /// Directories of state.
    pub state: Vec<PathBuf>,
    transcripts: Vec<Transcript>,
}

impl Inputs {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read or decoded, a missing program.
    pub(crate) fn read(line: &CommandLine) -> Result<Inputs, String> {
        if let Some(missing) = PROGRAMS.iter().find(|name| !is_in_path(name)) {
            return Err(format!("the program {missing} is not in PATH; hint: install it, or add /usr/sbin to PATH"));
        }
        let plugin = line.plugin.as_ref().map(|path| absolute(path)).transpose()?;
        let conf = match &line.conf {
            Some(path) => read_json(path)?,
            None => json!({}),
        };
        let mut dirs: Vec<String> = Vec::new();
        dirs.extend(plugin.as_ref().and_then(|path| path.parent()).map(|dir| dir.display().to_string()));
        for dir in line.cni_path.iter().flat_map(|path| path.split(':')) {
            dirs.push(absolute(Path::new(dir))?.display().to_string());
        }
        let mut inputs = Inputs {
            plugin,
            conf,
            chain: Vec::new(),
            cni_path: dirs.join(":"),
            state: std::iter::once(PathBuf::from(STATE)).chain(line.state.iter().cloned()).collect(),
            transcripts: line.transcripts.as_ref().map_or_else(built_in_transcripts, |dir| transcripts::read(dir)),
        };
        if let Some(ipam) = &line.with_ipam {
            inputs.conf["ipam"] = ipam_of(ipam)?;
        }
        if let Some(file) = &line.chain {
            inputs.add_chain(file)?;
            if inputs.cni_path.is_empty() {
                return Err("--chain: there is no directory of plugins; hint: name it with --cni-path".to_owned());
            }
        }
        Ok(inputs)
    }

    fn add_chain(&mut self, file: &Path) -> Result<(), String> {
        let list = read_json(file)?;
        let Some(plugins) = list["plugins"].as_array().filter(|plugins| !plugins.is_empty()) else {
            let hint = "hint: a network list has one plugin or more, as a file `.conflist` in /etc/cni/net.d";
            return Err(format!("{}: the key `plugins` is not a list of plugins; {hint}", file.display()));
        };
        self.chain.clone_from(plugins);
        for key in ["cniVersion", "name"] {
            if self.conf.get(key).is_none() && !list[key].is_null() {
                self.conf[key] = list[key].clone();
            }
        }
        Ok(())
    }
}

/// Whether the shells of the tests find a program: they have the PATH of this process, without the standard directories that
/// [`cnikit_process::find_program`] adds.
fn is_in_path(name: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "it runs programs of the PATH")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

fn read_json(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The value of the key `ipam`.
fn ipam_of(text: &str) -> Result<Value, String> {
    if text == "host-local" {
        return Ok(json!({"type": text, "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]}));
    }
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| format!("--with-ipam: {error}"));
    }
    read_json(Path::new(text))
}

fn built_in_transcripts() -> Vec<Transcript> {
    TRANSCRIPTS.iter().map(|(name, text)| Transcript::parse(name, text)).collect()
}

/// The kind of a plugin, by the result of its ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It makes the interface in the container, or a plugin before it does.
    Interface,
    /// Its result has other interfaces only, such as `lo`.
    OtherInterface,
    /// It assigns addresses, and does not enter the container.
    Ipam,
}

impl Kind {
    /// The kind of a plugin with this result of ADD.
    fn of(result: &Value) -> Kind {
        let names: Vec<&Value> =
            result["interfaces"].as_array().into_iter().flatten().map(|one| &one["name"]).collect();
        match names.iter().any(|name| **name == "eth0") {
            true => Kind::Interface,
            false if names.is_empty() => Kind::Ipam,
            false => Kind::OtherInterface,
        }
    }
}

/// A plugin under test, and what is known of it.
#[derive(Clone)]
pub(crate) struct Case {
    /// The plugin, or the chain.
    pub subject: Subject,
    /// The chain without its last plugin, which is the one under test.
    pub shorter: Option<Subject>,
    /// The plugin under test alone, with the result of the plugins before it in its configuration.
    pub(crate) last: Option<Subject>,
    /// The kind of the plugin; `Err` has the reason why its ADD fails.
    pub kind: Result<Kind, String>,
    /// How many cases of a campaign are tried.
    pub cases: usize,
    /// Recorded calls.
    pub transcripts: Vec<Transcript>,
    /// The directory with the plugin that calls a chain, which ends with this value.
    #[expect(dead_code, reason = "it is dropped")]
    bin: Option<Rc<TempDir>>,
}

impl Case {
    /// Makes the case of a command line, and calls VERSION and ADD once.
    ///
    /// # Errors
    /// A directory cannot be created.
    pub(crate) fn of(line: &CommandLine, inputs: Inputs) -> Result<Case, String> {
        let mut bin = None;
        let (mut subject, mut shorter) = if inputs.chain.is_empty() {
            (single(&inputs)?, None)
        } else {
            let dir = chain_directory()?;
            let chains = chained(&inputs, dir.path());
            bin = Some(Rc::new(dir));
            chains
        };
        for subject in std::iter::once(&mut subject).chain(&mut shorter) {
            add_options(subject, line, &inputs)?;
        }
        let versions = protocol::supported_versions(&subject).unwrap_or_default();
        for subject in std::iter::once(&mut subject).chain(&mut shorter) {
            choose_version(subject, &inputs.conf, &versions);
        }
        let kind = catch_panic(|| learn(&mut subject));
        let mut last = None;
        if let Some(shorter) = &mut shorter {
            let mut plugin = single(&inputs)?;
            add_options(&mut plugin, line, &inputs)?;
            choose_version(&mut plugin, &inputs.conf, &versions);
            plugin.conf["prevResult"] = catch_panic(|| protocol::result_of_add(shorter)).unwrap_or_default();
            shorter.gateways_answer = subject.gateways_answer;
            last = Some(plugin);
        }
        let transcripts = inputs.transcripts;
        Ok(Case { subject, shorter, last, kind, cases: line.cases, transcripts, bin })
    }

    /// The chain without its last plugin, which is the one under test.
    pub(crate) fn without_last(&self) -> Option<Case> {
        let subject = self.shorter.clone()?;
        Some(Case { subject, shorter: None, last: None, ..self.clone() })
    }

    /// Whether a list is tested as a whole, without a plugin of its own.
    pub(crate) fn is_list(&self) -> bool {
        self.subject.plugin == chain::NAME && self.last.is_none()
    }
}

/// One plugin.
fn single(inputs: &Inputs) -> Result<Subject, String> {
    let path = inputs.plugin.as_ref().ok_or("neither --plugin nor --chain is given")?;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(format!("{} is not a file of a plugin", path.display()));
    };
    Ok(Subject::new(dir, name, inputs.conf.clone()))
}

/// A directory with this program as the plugin that calls a chain.
fn chain_directory() -> Result<TempDir, String> {
    let made = tempfile::tempdir().and_then(|dir| {
        std::os::unix::fs::symlink(std::env::current_exe()?, dir.path().join(chain::NAME))?;
        Ok(dir)
    });
    made.map_err(|error| format!("make a directory for the chain: {error}"))
}

/// The chain with the plugin under test as its last, and the chain without it.
fn chained(inputs: &Inputs, bin: &Path) -> (Subject, Option<Subject>) {
    let whole = |plugins: &[Value]| {
        let kinds: Vec<&str> = plugins.iter().filter_map(|plugin| plugin["type"].as_str()).collect();
        let mut conf = json!({"plugins": plugins});
        for key in ["cniVersion", "name"] {
            if let Some(value) = inputs.conf.get(key) {
                conf[key] = value.clone();
            }
        }
        let mut subject = Subject::new(bin, chain::NAME, conf);
        subject.title = kinds.join(" + ");
        subject.env.push((chain::PLUGINS.to_owned(), kinds.join(",")));
        subject
    };
    let Some(name) = inputs.plugin.as_ref().and_then(|path| path.file_name()?.to_str()) else {
        return (whole(&inputs.chain), None);
    };
    let mut last = inputs.conf.clone();
    last["type"] = json!(name);
    last.as_object_mut().map(|keys| ["cniVersion", "name"].map(|key| keys.remove(key)));
    let plugins = [&inputs.chain[..], &[last]].concat();
    (whole(&plugins), Some(whole(&inputs.chain)))
}

/// Adds what the options say about every call.
fn add_options(subject: &mut Subject, line: &CommandLine, inputs: &Inputs) -> Result<(), String> {
    subject.env.push(("CNI_PATH".to_owned(), inputs.cni_path.clone()));
    for one in &line.env {
        let (name, value) =
            one.split_once('=').ok_or_else(|| format!("--env {one}: it has no `=`; hint: write NAME=VALUE"))?;
        subject.env.push((name.to_owned(), value.to_owned()));
    }
    if line.may_stay.iter().any(String::is_empty) {
        return Err("--may-stay: an empty text is in every line; hint: name the object that may stay".to_owned());
    }
    subject.takes_foreign_keys = false;
    // These live as long as the process does.
    let forever = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    subject.host_setup = forever(&line.setup);
    subject.container_setup = forever(&line.setup_container);
    subject.shared.extend(line.may_stay.iter().map(|text| forever(text)));
    subject.state.clone_from(&inputs.state);
    Ok(())
}

/// Without a version in the configuration the newest is tested that the plugin supports.
fn choose_version(subject: &mut Subject, conf: &Value, supported: &BTreeSet<String>) {
    if conf.get("cniVersion").is_none()
        && let Some(newest) = supported.last()
    {
        subject.conf["cniVersion"] = json!(newest);
    }
}

/// Calls ADD and DEL once. Returns the kind of the plugin, and notes whether its gateways answer. Panics if ADD fails.
fn learn(subject: &mut Subject) -> Kind {
    let (kind, gateways_answer) = protocol::attached(subject, FIRST, |_, (_, container), result| {
        let mut ips = result["ips"].as_array().into_iter().flatten();
        let answer = ips.all(|ip| ip["gateway"].as_str().is_none_or(|gateway| container.reaches(gateway)));
        (Kind::of(result), answer)
    });
    subject.gateways_answer = gateways_answer;
    kind
}

/// The container of the call before the tests.
const FIRST: &str = "c-first";
