//! A host and a container for tests of the tool: two new namespaces, and a directory for all files.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use cnikit_netns::{Netns, make};
use serde_json::Value;
use tempfile::TempDir;

/// The directory of the packaged upstream plugins.
const UPSTREAM: &str = "/usr/lib/cni";

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

    /// The directory of all files.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn netns(&self) -> String {
        self.container.path().display().to_string()
    }

    /// Writes a configuration file. `DIR` in it is replaced by the directory of all files.
    pub(crate) fn file(&self, name: &str, text: &str) {
        fs::write(self.path("net.d").join(name), text.replace("DIR", &self.dir.path().display().to_string())).unwrap();
    }

    /// Installs a plugin that appends each call to `calls`, writes its stdin to `<name>.<verb>`, and runs `script`.
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

    /// The calls of plugins since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        fs::write(self.path("calls"), "").unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The stdin of the last call of a plugin of [`Bench::plugin`].
    pub(crate) fn stdin(&self, plugin: &str, verb: &str) -> String {
        fs::read_to_string(self.path(&format!("{plugin}.{verb}"))).unwrap()
    }

    /// The files of the cache.
    pub(crate) fn cached_files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("cache/results")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Rewrites the only cached attachment as earlier versions of upstream's libcni write it: without the path of the namespace,
    /// and without what is ours.
    pub(crate) fn cache_as_old_libcni(&self) {
        let [file] = &self.cached_files()[..] else { panic!("{:?}", self.cached_files()) };
        let mut cached = json(&fs::read_to_string(file).unwrap());
        for newer in ["netns", "cnikit"] {
            cached.as_object_mut().unwrap().remove(newer).unwrap();
        }
        fs::write(file, cached.to_string()).unwrap();
    }

    /// `cnitool VERB NETWORK <the container> …` on the host.
    pub(crate) fn cnitool(&self, verb: &str, network: &str, variables: &[(&str, &str)]) -> Output {
        self.run(&[verb, network, &self.netns()], variables)
    }

    /// `cnitool ARGUMENTS…` on the host.
    pub(crate) fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let path = format!("{}:{UPSTREAM}", self.path("bin").display());
        self.on_host(|| {
            command(env!("CARGO_BIN_EXE_cnitool"))
                .args(arguments)
                .env("NETCONFPATH", self.path("net.d"))
                .env("CNI_CACHE_DIR", self.path("cache"))
                .env("CNI_PATH", path)
                .env_remove("CNI_IFNAME")
                .env_remove("NO_COLOR")
                .envs(variables.iter().copied())
                .output()
                .unwrap()
        })
    }

    /// Runs `cnitool ARGUMENTS…`, which must end with this status; returns stdout and stderr.
    pub(crate) fn says(&self, status: i32, arguments: &str) -> (String, String) {
        let output = self.run(&arguments.split_whitespace().collect::<Vec<_>>(), &[]);
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(output.status.code(), Some(status), "{arguments}: {stdout}{stderr}");
        (stdout, stderr)
    }

    /// Runs `cnitool ARGUMENTS…` on a terminal with this input; returns what the terminal shows. See script(1).
    pub(crate) fn on_terminal(&self, arguments: &str, typed: &str) -> String {
        let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_cnitool"));
        let mut script = command("script");
        script.args(["-qec", &line, "/dev/null"]).env("NETCONFPATH", self.path("net.d")).env("TERM", "xterm");
        script.env("CNI_CACHE_DIR", self.path("cache")).env_remove("NO_COLOR");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.on_host(|| {
            let mut child = script.spawn().unwrap();
            child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
            String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
        })
    }

    /// Runs `cnitool --json ARGUMENTS…`, which must succeed; returns its document.
    pub(crate) fn json(&self, arguments: &str) -> Value {
        json(&self.says(0, &format!("--json {arguments}")).0)
    }

    /// Makes a namespace that is mounted at a path.
    pub(crate) fn namespace(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        make::fresh(&path).unwrap();
        path
    }

    /// As [`Bench::cnitool`], which must succeed; returns its stdout.
    pub(crate) fn done(&self, verb: &str, network: &str, variables: &[(&str, &str)]) -> String {
        let output = self.cnitool(verb, network, variables);
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// As [`Bench::cnitool`], which must fail with status 1 and write nothing to stdout; returns its stderr.
    pub(crate) fn refused(&self, verb: &str, network: &str, variables: &[(&str, &str)]) -> String {
        let output = self.cnitool(verb, network, variables);
        assert_eq!(output.status.code(), Some(1), "{verb} {network}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The stdout of a program on the host.
    pub(crate) fn host_says(&self, line: &str) -> String {
        self.on_host(|| stdout_of(line))
    }

    /// The stdout of a program in the container.
    pub(crate) fn container_says(&self, line: &str) -> String {
        self.container.enter(|_| stdout_of(line)).unwrap()
    }

    pub(crate) fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host.enter(|_| work()).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A directory with a mount in it could not be removed.
        for entry in fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            if Netns::open(entry.path()).is_ok() {
                let _ = make::remove(&entry.path());
            }
        }
    }
}

/// Parses a document.
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The stdout of a program that must succeed.
pub(crate) fn stdout_of(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = command(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test starts what it tests from outside")]
fn command(program: &str) -> Command {
    Command::new(program)
}
