//! A host and a container to try the tool on: two fresh namespaces, and a directory for everything that is written.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use cnikit_netns::{Netns, make};
use serde_json::Value;
use tempfile::TempDir;

/// Where the packaged reference is.
const REFERENCE: &str = "/usr/lib/cni";

pub(crate) struct Bench {
    dir: TempDir,
    host: Netns,
    container: Netns,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let dir = TempDir::new().unwrap();
        for name in ["net.d", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Bench { dir, host: make::anonymous().unwrap(), container: make::anonymous().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn netns(&self) -> String {
        self.container.path().display().to_string()
    }

    /// A configuration file; `DIR` in it is the directory for state.
    pub(crate) fn file(&self, name: &str, text: &str) {
        fs::write(self.path("net.d").join(name), text.replace("DIR", &self.dir.path().display().to_string())).unwrap();
    }

    /// A plugin that notes each call in `calls`, keeps its stdin in `<name>.<verb>`, and goes on with `script`.
    pub(crate) fn plugin(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        let dir = self.dir.path().display();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(file).unwrap();
        write!(
            file,
            "#!/bin/sh\necho $CNI_COMMAND {name} >>{dir}/calls\ncat >{dir}/{name}.$CNI_COMMAND\ncase $CNI_COMMAND in\n{script}\nesac\n"
        )
        .unwrap();
    }

    /// What plugins have been asked so far; the notes begin anew.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        fs::write(self.path("calls"), "").unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// What a plugin of [`Bench::plugin`] read when it was last asked.
    pub(crate) fn stdin(&self, plugin: &str, verb: &str) -> String {
        fs::read_to_string(self.path(&format!("{plugin}.{verb}"))).unwrap()
    }

    /// The files of the cache.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("cache/results")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// `cnitool VERB NETWORK <the container> …` on the host.
    pub(crate) fn cnitool(&self, verb: &str, network: &str, variables: &[(&str, &str)]) -> Output {
        let netns = self.netns();
        let path = format!("{}:{REFERENCE}", self.path("bin").display());
        self.on_host(|| {
            command(env!("CARGO_BIN_EXE_cnitool"))
                .args([verb, network, &netns])
                .env("NETCONFPATH", self.path("net.d"))
                .env("CNI_CACHE_DIR", self.path("cache"))
                .env("CNI_PATH", path)
                .env_remove("CNI_IFNAME")
                .envs(variables.iter().copied())
                .output()
                .unwrap()
        })
    }

    /// As [`Bench::cnitool`], which must succeed; its stdout.
    pub(crate) fn done(&self, verb: &str, network: &str, variables: &[(&str, &str)]) -> String {
        let output = self.cnitool(verb, network, variables);
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// As [`Bench::cnitool`], which must fail with status 1 and silent stdout; its stderr.
    pub(crate) fn refused(&self, verb: &str, network: &str, variables: &[(&str, &str)]) -> String {
        let output = self.cnitool(verb, network, variables);
        assert_eq!(output.status.code(), Some(1), "{verb} {network}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What a program says on the host.
    pub(crate) fn host_says(&self, line: &str) -> String {
        self.on_host(|| said(line))
    }

    /// What a program says in the container.
    pub(crate) fn container_says(&self, line: &str) -> String {
        self.container.enter(|_| said(line)).unwrap()
    }

    fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host.enter(|_| work()).unwrap()
    }
}

/// A document, for comparison.
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// What a program says, which must succeed.
pub(crate) fn said(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = command(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test starts what it tests from outside")]
fn command(program: &str) -> Command {
    Command::new(program)
}
