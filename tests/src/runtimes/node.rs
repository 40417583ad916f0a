//! A node: namespaces for network, mounts and processes, with the fixed paths of runtimes empty.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use cnikit_process::{Deadline, Env, How, Program};
use cnikit_testkit::Host;
use tempfile::TempDir;

use super::{Maker, image};

/// The first process of a node: it sets up mounts, reports that, and waits until it may end. It is bash, which also reaps orphaned
/// processes.
const INIT: &str = r#"set -eu
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock /run/etc/upper /run/etc/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
mkdir -p /etc/cni /etc/containerd
mount -t tmpfs tmpfs /etc/cni
mount -t tmpfs tmpfs /etc/containerd
mkdir /etc/cni/net.d
mount -t tmpfs tmpfs /var/lib
mkdir "$DIR/cni" /var/lib/cni
mount --bind "$DIR/cni" /var/lib/cni
mount -t tmpfs tmpfs /opt
if test -n "$BIN"; then
    mkdir -p /opt/cni/bin
    mount --bind -o ro "$BIN" /opt/cni/bin
fi
eval "$MORE"
echo ready
read -r _ || true
"#;

/// As the test kit's hints, where a node has these files: see [`cnikit_testkit::snapshot::HINTS`].
pub const HINTS: [&str; 3] = [
    "file: cni/networks/<network>/last_reserved_ip.",
    "file: cni/networks/.idx/<network> = ",
    "file: cni/networks/.pool/<network> = \"cooling1 ",
];

/// The longest time for a command on a node.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A node that a runtime can be let loose on. All its processes end with it, and the mounts and namespaces with them.
pub struct Node {
    /// Its network. The content of `/var/lib/cni` is below its directory.
    pub host: Host,
    /// The plugins that are installed.
    pub maker: Maker,
    scratch: TempDir,
    first: Child,
    /// The first process reads this; when it ends, so does everything.
    held: Option<ChildStdin>,
}

impl Node {
    /// A node with these plugins, and no configuration.
    pub fn new(maker: Maker) -> Node {
        Node::with(maker, "")
    }

    /// The same, after shell lines that set up more mounts. A line that fails is the end of the node.
    pub fn with(maker: Maker, more: &str) -> Node {
        Node::make(maker, maker.bin().as_os_str(), more)
    }

    /// A node on which our plugins are still to be installed: it has no directory for them.
    pub fn bare(more: &str) -> Node {
        Node::make(Maker::Ours, OsStr::new(""), more)
    }

    fn make(maker: Maker, bin: &OsStr, more: &str) -> Node {
        let host = Host::new();
        let scratch = tempfile::tempdir().unwrap();
        image::rootfs(&scratch.path().join("rootfs"));
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", INIT]);
        unshare.env("DIR", host.dir()).env("BIN", bin).env("MORE", more).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut first = host.enter(|| unshare.spawn()).expect("unshare can be started");
        let held = first.stdin.take();
        let stdout = first.stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let node = Node { host, maker, scratch, first, held };
        assert_eq!(line, "ready\n", "the node cannot be made: what it lacks stands above");
        node
    }

    /// A directory with the same path inside and outside of the node. Its files do not count as leftovers of a plugin.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A file system for a container, with busybox only.
    pub fn rootfs(&self) -> String {
        self.scratch().join("rootfs").display().to_string()
    }

    /// The control group of its containers. There is no namespace that would remove it with the node.
    pub fn cgroup(&self) -> String {
        format!("/cnikit{}", self.scratch().file_name().unwrap().display())
    }

    /// Writes a file at this path of the node.
    pub fn write(&self, path: &str, text: &str) {
        self.run("/bin/sh", &["-c", "mkdir -p \"${1%/*}\" && exec cat >\"$1\"", "sh", path], text.as_bytes());
    }

    /// Runs a shell line on the node. It has to succeed. Returns its standard output.
    pub fn sh(&self, line: &str) -> String {
        String::from_utf8_lossy(&self.run("/bin/sh", &["-ec", line], b"").0).into_owned()
    }

    /// Runs a shell line on the node. Returns whether it succeeded, and all its output.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        let (how, mut output, stderr) = self.try_run("/bin/sh", &["-ec", line], b"");
        output.extend(stderr);
        (how.is_success(), String::from_utf8_lossy(&output).into_owned())
    }

    /// Runs a program on the node; it has to succeed. Its standard output and error.
    pub fn run(&self, program: &str, args: &[&str], stdin: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (how, stdout, stderr) = self.try_run(program, args, stdin);
        let printed = || [&stdout[..], &stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(how.is_success(), "{program} {args:?}: {how}: {}", printed());
        (stdout, stderr)
    }

    /// Runs a program on the node: how it ended, its standard output and error.
    pub(super) fn try_run(&self, program: &str, args: &[&str], stdin: &[u8]) -> (How, Vec<u8>, Vec<u8>) {
        let of = |kind: &str| format!("/proc/{}/ns/{kind}", self.first.id());
        let enter = [
            format!("--net={}", of("net")),
            format!("--mount={}", of("mnt")),
            format!("--pid={}", of("pid_for_children")),
            "--".into(),
            program.into(),
        ];
        let nsenter = Program::new("/usr/bin/nsenter", Env::inherited(Vec::new()))
            .args(enter.iter().map(String::as_str).chain(args.iter().copied()).map(Into::into).collect())
            .stdin(stdin.to_vec())
            .limit(64 << 20);
        let ended = cnikit_process::run(&nsenter, Deadline::after(TIMEOUT));
        let ended = ended.unwrap_or_else(|error| panic!("{program} {args:?}: {error}"));
        (ended.how, ended.stdout, ended.stderr)
    }

    /// Starts a program that goes on running, with a shell line that begins with its variables. Its output is added to the end of a
    /// file. Returns its pid, in the node's numbers.
    pub fn daemon(&self, line: &str, log: &Path) -> String {
        let log = log.display();
        let line = format!("ulimit -c 0; exec 3>&1 >>{log} 2>&1 </dev/null; setsid env {line} 3>&- & echo $! >&3");
        self.sh(&line).trim().to_owned()
    }

    /// Kills a process of the node, and waits until it is gone.
    pub fn kill(&self, pid: &str) {
        self.sh(&format!("kill -KILL {pid}"));
        self.wait_for(&format!("! test -e /proc/{pid}"));
    }

    /// The alias of every container's host end shows whether our plugins made it. They must be those of the node.
    pub fn assert_made_by_its_maker(&self) {
        let links = self.sh("ip -o -d link show type veth");
        assert!(!links.is_empty(), "no container has a link");
        let is_right = |link: &str| link.contains("alias cnikit:") == self.maker.is_ours();
        assert!(links.lines().all(is_right), "{:?}: {links}", self.maker);
    }

    /// Waits until a shell line succeeds on the node.
    pub fn wait_for(&self, line: &str) {
        let tries = format!("for i in $(seq 600); do if {line}; then exit; fi; sleep 0.1; done 2>&1; exit 1");
        let (succeeded, output) = self.try_sh(&tries);
        assert!(succeeded, "in vain was waited for: {line}: {output}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.held.take());
        let _ = self.first.wait();
        let find = "find /sys/fs/cgroup -depth -type d -path \"*$1*\" -exec rmdir {} +";
        let _ = Command::new("sh").args(["-c", find, "sh", &self.cgroup()]).status();
    }
}
