//! A test's own host: a network namespace with containers and a directory.

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

/// A network namespace that is the host of a test, and a directory for its state. Both are removed with the value, and with the
/// process: nothing is mounted.
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    dir: TempDir,
}

/// A network namespace that is a container of a test.
#[derive(Debug)]
pub struct Container {
    netns: Netns,
}

/// The kernel's file with the ID of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The longest time that a program of a test may run.
const TIMEOUT: Duration = Duration::from_mins(2);

impl Host {
    /// Creates a host with its loopback up.
    pub fn new() -> Host {
        let host = Host { netns: cnikit_netns::make::anonymous().unwrap(), dir: tempfile::tempdir().unwrap() };
        host.sh("ip link set lo up");
        host
    }

    /// The machine itself, for tests that have one of their own: the namespace that this process is in, and a new directory.
    pub fn machine() -> Host {
        Host { netns: Netns::own().unwrap(), dir: tempfile::tempdir().unwrap() }
    }

    /// Creates a container.
    pub fn container(&self) -> Container {
        Container { netns: cnikit_netns::make::anonymous().unwrap() }
    }

    /// A path to the host's namespace, as [`Container::path`].
    pub fn path(&self) -> String {
        path_of(&self.netns)
    }

    /// The host's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The file that our plugins lock while they change objects that all attachments of this host share. It is created if it does
    /// not exist.
    pub fn lock_file(&self) -> PathBuf {
        let dir = Path::new("/run/cnikit/locks");
        DirBuilder::new().recursive(true).mode(0o700).create(dir).unwrap();
        let path = dir.join(format!("netns-{}", self.netns.name_while_held().unwrap()));
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).unwrap();
        path
    }

    /// Runs `work` on a thread in the host's namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.enter(|_| work()).unwrap()
    }

    /// The host after a reboot: a new namespace with the same directory.
    pub(crate) fn rebooted(self) -> Host {
        Host { dir: self.dir, ..Host::new() }
    }

    /// Runs `work` on a thread where another boot ID is mounted over the kernel's (random(4)). Only that thread and its programs
    /// see it.
    pub(crate) fn in_another_boot<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let id = self.dir().join(".boot_id");
        std::fs::write(&id, format!("{:032x}\n", fastrand::u128(1..))).unwrap();
        self.enter(|| {
            mount_boot_id(&id);
            work()
        })
    }

    /// Runs `work` on a thread where `/etc/cnikit/node.json`, the node's policy, has this text. Only that thread and its programs
    /// see it; `work` may change the file. The rest of `/etc` is as before.
    pub fn with_node_policy<T: Send>(&self, policy: &str, work: impl FnOnce() -> T + Send) -> T {
        let etc = self.dir().join(".etc");
        std::fs::create_dir_all(&etc).unwrap();
        self.enter(|| {
            mount_etc_with_policy(&etc, policy);
            work()
        })
    }

    /// Runs `work` on a thread where the namespaces of these containers are mounted below the host's directory, as runtimes mount
    /// them. Only that thread and its programs see the mounts.
    pub(crate) fn with_mounted<T: Send>(&self, containers: &[Container], work: impl FnOnce() -> T + Send) -> T {
        let dir = self.dir().join(".netns");
        std::fs::create_dir_all(&dir).unwrap();
        self.enter(|| {
            enter_mount_namespace();
            for (place, container) in containers.iter().enumerate() {
                let path = dir.join(place.to_string());
                std::fs::write(&path, "").unwrap();
                mount(Some(container.path().as_str()), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            }
            work()
        })
    }

    /// Runs a shell line on this host and returns its output. Panics if it fails.
    pub fn sh(&self, line: &str) -> String {
        shell(&self.netns, line)
    }

    /// Runs a shell line on this host. Returns whether it succeeded, and its stdout followed by its stderr.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        try_shell(&self.netns, line)
    }

    /// Runs a program on this host with additional variables and this stdin. Returns its exit status (negative: a signal), stdout
    /// and stderr.
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
    /// A path to the container's namespace, which any process of this machine can open as long as the value exists.
    pub fn path(&self) -> String {
        path_of(&self.netns)
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs a shell line in this container and returns its output. Panics if it fails.
    pub fn sh(&self, line: &str) -> String {
        shell(&self.netns, line)
    }

    /// Runs a shell line in this container. Returns whether it succeeded, and its stdout followed by its stderr.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        try_shell(&self.netns, line)
    }

    /// The names of its links but the loopback's, from proc(5): `ip link` also says on stderr which files of `/run/netns` are no
    /// namespaces yet, and other tests make some.
    pub fn links(&self) -> Vec<String> {
        let table = self.sh("cat /proc/net/dev");
        let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.trim().to_owned()).filter(|name| name != "lo").collect()
    }

    /// Whether an address replies to a ping from this container.
    pub fn reaches(&self, address: &str) -> bool {
        self.try_sh(&format!("ping -n -q -c 3 -i 0.2 -W 2 -w 5 {address}")).0
    }
}

/// Mounts a file over the kernel's boot ID, for the calling thread only.
fn mount_boot_id(file: &Path) {
    enter_mount_namespace();
    mount(Some(file), BOOT_ID, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

/// Mounts an `/etc` with this policy, for the calling thread only. The files of the real one, which `etc` shows, are linked.
fn mount_etc_with_policy(etc: &Path, policy: &str) {
    enter_mount_namespace();
    mount(Some("/etc"), etc, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>).unwrap();
    mount(Some("tmpfs"), "/etc", Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).unwrap();
    for entry in std::fs::read_dir(etc).unwrap() {
        let name = entry.unwrap().file_name();
        if name != "cnikit" {
            std::os::unix::fs::symlink(etc.join(&name), Path::new("/etc").join(&name)).unwrap();
        }
    }
    std::fs::create_dir("/etc/cnikit").unwrap();
    std::fs::write("/etc/cnikit/node.json", policy).unwrap();
    // The modes must not depend on the umask.
    for (path, mode) in [("/etc/cnikit", 0o755), ("/etc/cnikit/node.json", 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Moves the calling thread into a new mount namespace, which ends with the thread.
fn enter_mount_namespace() {
    #[expect(clippy::disallowed_methods, reason = "a mount namespace, not a network's; it ends with this thread")]
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
}

fn path_of(netns: &Netns) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

fn shell(netns: &Netns, line: &str) -> String {
    let (succeeded, output) = try_shell(netns, line);
    assert!(succeeded, "{line}: {output}");
    output
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
