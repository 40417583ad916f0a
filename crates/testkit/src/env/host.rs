//! A host of our own: a network namespace, containers beside it, a directory.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_process::{Deadline, Env, How, Program};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use tempfile::TempDir;

/// A network namespace that stands for a host, and a directory for its state. Both go away with the value, and with the
/// process: nothing is mounted anywhere.
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    dir: TempDir,
}

/// A network namespace that stands for a container.
#[derive(Debug)]
pub struct Container {
    netns: Netns,
}

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Nothing a test starts may take longer.
const TIMEOUT: Duration = Duration::from_mins(2);

impl Host {
    /// Creates a host with its loopback up.
    pub fn new() -> Host {
        let host = Host { netns: cnikit_netns::make::anonymous().unwrap(), dir: tempfile::tempdir().unwrap() };
        host.sh("ip link set lo up");
        host
    }

    /// Creates a container.
    pub fn container(&self) -> Container {
        Container { netns: cnikit_netns::make::anonymous().unwrap() }
    }

    /// A path to its namespace, as [`Container::path`].
    pub(crate) fn path(&self) -> String {
        path_of(&self.netns)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The file that our plugins lock while they change objects shared by all attachments of this host; it is created if it
    /// does not exist.
    pub fn lock_file(&self) -> PathBuf {
        let dir = Path::new("/run/cnikit/locks");
        DirBuilder::new().recursive(true).mode(0o700).create(dir).unwrap();
        let path = dir.join(format!("netns-{}", self.netns.name_while_held().unwrap()));
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).unwrap();
        path
    }

    /// Runs `work` on a thread that is on this host.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.enter(|_| work()).unwrap()
    }

    /// The same directory on a host that has just booted: nothing is left but files.
    pub(crate) fn rebooted(self) -> Host {
        Host { dir: self.dir, ..Host::new() }
    }

    /// Runs something on a thread whose programs find another boot id, by a mount that only they see; see random(4).
    pub(crate) fn in_another_boot<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let id = self.dir().join(".boot_id");
        std::fs::write(&id, format!("{:032x}\n", fastrand::u128(1..))).unwrap();
        self.enter(|| {
            enter_mount_namespace();
            mount(Some(&id), BOOT_ID, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            work()
        })
    }

    /// Runs something on a thread that finds this text as the node's policy, `/etc/cnikit/node.json`, as do the programs that it
    /// starts, by mounts that only they see; it may change the file. The rest of `/etc` is as it was.
    pub fn with_node_policy<T: Send>(&self, policy: &str, work: impl FnOnce() -> T + Send) -> T {
        let etc = self.dir().join(".etc");
        std::fs::create_dir_all(&etc).unwrap();
        self.enter(|| {
            enter_mount_namespace();
            mount(Some("/etc"), &etc, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>).unwrap();
            mount(Some("tmpfs"), "/etc", Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).unwrap();
            for entry in std::fs::read_dir(&etc).unwrap() {
                let name = entry.unwrap().file_name();
                if name != "cnikit" {
                    std::os::unix::fs::symlink(etc.join(&name), Path::new("/etc").join(&name)).unwrap();
                }
            }
            std::fs::create_dir("/etc/cnikit").unwrap();
            std::fs::write("/etc/cnikit/node.json", policy).unwrap();
            // Whatever the umask is.
            for (path, mode) in [("/etc/cnikit", 0o755), ("/etc/cnikit/node.json", 0o644)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            work()
        })
    }

    /// Runs a shell line on this host, which has to succeed. Returns its output.
    pub fn sh(&self, line: &str) -> String {
        shell(&self.netns, line)
    }

    /// Runs a shell line on this host; returns whether it succeeded, and its stdout and stderr.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        try_shell(&self.netns, line)
    }

    /// Runs a program on this host with these variables and this stdin.
    pub fn run(&self, program: &Path, env: &[(String, String)], stdin: &[u8]) -> (i32, Vec<u8>, Vec<u8>) {
        run_in(&self.netns, program, &[], env, stdin)
    }
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl Container {
    /// A path to its namespace that any process of this machine can open, as long as the value exists.
    pub fn path(&self) -> String {
        path_of(&self.netns)
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs a shell line in this container, which has to succeed. Returns its output.
    pub fn sh(&self, line: &str) -> String {
        shell(&self.netns, line)
    }

    /// Runs a shell line in this container; returns whether it succeeded, and its stdout and stderr.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        try_shell(&self.netns, line)
    }

    /// Whether an address answers a ping from this container.
    pub fn reaches(&self, address: &str) -> bool {
        self.try_sh(&format!("ping -n -q -c 3 -i 0.2 -W 2 -w 5 {address}")).0
    }
}

/// Gives the calling thread a mount namespace of its own, whose mounts no other sees. It goes with the thread.
fn enter_mount_namespace() {
    #[expect(clippy::disallowed_methods, reason = "a mount namespace, not a network's; it goes with this thread")]
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
}

fn path_of(netns: &Netns) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

fn shell(netns: &Netns, line: &str) -> String {
    let (succeeded, said) = try_shell(netns, line);
    assert!(succeeded, "{line}: {said}");
    said
}

fn try_shell(netns: &Netns, line: &str) -> (bool, String) {
    let (exit, mut stdout, stderr) = run_in(netns, Path::new("/bin/sh"), &["-c", line], &[], b"");
    stdout.extend(stderr);
    (exit == 0, String::from_utf8_lossy(&stdout).into_owned())
}

fn run_in(
    netns: &Netns,
    path: &Path,
    args: &[&str],
    env: &[(String, String)],
    stdin: &[u8],
) -> (i32, Vec<u8>, Vec<u8>) {
    let program = Program {
        path: PathBuf::from(path),
        args: args.iter().map(OsString::from).collect(),
        env: Env::inherited(env.iter().map(|(key, value)| (key.into(), value.into())).collect()),
        stdin: stdin.to_vec(),
        limit: 64 << 20,
        grace: Duration::from_secs(1),
    };
    let ended = netns.enter(|_| cnikit_process::run(&program, Deadline::after(TIMEOUT))).unwrap();
    let ended = ended.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let exit = match ended.how {
        How::Exit(status) => status,
        How::Signal(signal) => -signal,
    };
    (exit, ended.stdout, ended.stderr)
}
