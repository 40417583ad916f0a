//! A test's own host: a network namespace with containers and a directory.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cnikit_netlink::{LinkChange, Netlink};
use cnikit_netns::Netns;
use cnikit_process::{Deadline, Env, How, Program, find_program};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::CloneFlags;
use tempfile::TempDir;

use crate::mounts::{bind, hide_entries};

/// A network namespace that is the host of a test, and a directory for its state. Both are removed with the value, and with the
/// process: nothing is mounted, except with [`Host::on_small_disk`].
///
/// ```no_run
/// let host = cnikit_testing::Host::new();
/// ```
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    /// Before `dir`: it is unmounted before the directory is removed.
    disk: Option<SmallDisk>,
    dir: TempDir,
    /// Directories of which programs on this host see a copy of its own: see [`Host::with_own`].
    own: Vec<PathBuf>,
}

/// The source of the file systems of [`Host::on_small_disk`]. They come and go with hosts, and are in no snapshot.
pub(crate) const SMALL_DISK: &str = "cnikit-small-disk";

/// A mounted file system, until it is dropped.
#[derive(Debug)]
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Where it cannot be unmounted, it goes with the mount namespace of the tests.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// A network namespace that is a container of a test.
///
/// ```no_run
/// # let host = cnikit_testing::Host::new();
/// let container = host.container();
/// ```
#[derive(Debug)]
pub struct Container {
    netns: Netns,
}

/// The kernel's file with the ID of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Where a host's own directories are below its directory.
const OWN: &str = "state";

/// The longest time that a program of a test may run.
const TIMEOUT: Duration = Duration::from_mins(2);

impl Host {
    /// Creates a host with its loopback up.
    pub fn new() -> Host {
        let netns = cnikit_netns::make::anonymous().unwrap();
        let host = Host { netns, disk: None, dir: tempfile::tempdir().unwrap(), own: Vec::new() };
        host.enter(bring_loopback_up);
        host
    }

    /// The machine itself, for tests that have one of their own: the namespace that this process is in, and a new directory.
    pub fn machine() -> Host {
        Host { netns: Netns::own().unwrap(), disk: None, dir: tempfile::tempdir().unwrap(), own: Vec::new() }
    }

    /// Returns the host with an empty directory of its own at each of these paths, which have to exist: programs on it see
    /// `state/PATH` below the host's directory there. It is for plugins whose state has a fixed place, such as `/var/lib/cni`.
    #[must_use]
    pub fn with_own(mut self, directories: &[PathBuf]) -> Host {
        for place in directories {
            std::fs::create_dir_all(self.place_of(place)).unwrap();
        }
        self.own.extend_from_slice(directories);
        self
    }

    /// Returns the host with a file system of this many KiB in its directory, a tmpfs, which a test can fill. It is mounted in the
    /// mount namespace of the calling thread until the host is dropped.
    #[must_use]
    pub fn on_small_disk(mut self, kib: u32) -> Host {
        let options = format!("size={kib}k,mode=700");
        mount(Some(SMALL_DISK), self.dir(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        self.disk = Some(SmallDisk(self.dir().to_owned()));
        self
    }

    /// The directory that programs on this host see at a path.
    fn place_of(&self, path: &Path) -> PathBuf {
        self.dir().join(OWN).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Creates a container.
    pub fn container(&self) -> Container {
        Container::new()
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
        if self.own.is_empty() {
            return self.netns.enter(|_| work()).unwrap();
        }
        on_a_thread(|| {
            enter_mount_namespace();
            self.own.iter().for_each(|path| bind(&self.place_of(path), path));
            self.netns.enter(|_| work()).unwrap()
        })
    }

    /// The host after a reboot: a new namespace with the same directory.
    #[must_use]
    pub fn rebooted(self) -> Host {
        Host { disk: self.disk, dir: self.dir, own: self.own, ..Host::new() }
    }

    /// Runs `work` on a thread where another boot ID is mounted over the kernel's (random(4)). Only that thread and its programs
    /// see it.
    pub fn in_another_boot<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let id = self.dir().join(".boot_id");
        std::fs::write(&id, format!("{:032x}\n", fastrand::u128(1..))).unwrap();
        on_a_thread(|| {
            mount_boot_id(&id);
            self.enter(work)
        })
    }

    /// Runs `work` on a thread where `/etc/cnikit/node.json`, the node's policy, has this text. Only that thread and its programs
    /// see it; `work` may change the file. The rest of `/etc` is as before.
    pub fn with_node_policy<T: Send>(&self, policy: &str, work: impl FnOnce() -> T + Send) -> T {
        let etc = self.dir().join(".etc");
        std::fs::create_dir_all(&etc).unwrap();
        on_a_thread(|| {
            mount_etc_with_policy(&etc, policy);
            self.enter(work)
        })
    }

    /// Runs `work` on a thread where the namespaces of these containers are mounted below the host's directory, as runtimes mount
    /// them. Only that thread and its programs see the mounts.
    pub fn with_mounted<T: Send>(&self, containers: &[Container], work: impl FnOnce() -> T + Send) -> T {
        let dir = self.dir().join(".netns");
        std::fs::create_dir_all(&dir).unwrap();
        on_a_thread(|| {
            enter_mount_namespace();
            for (place, container) in containers.iter().enumerate() {
                let path = dir.join(place.to_string());
                std::fs::write(&path, "").unwrap();
                bind(Path::new(&container.path()), &path);
            }
            self.enter(work)
        })
    }

    /// Runs a shell line on this host and returns its output. Panics if it fails.
    pub fn sh(&self, line: &str) -> String {
        succeeded(line, self.try_sh(line))
    }

    /// Runs a shell line on this host. Returns whether it succeeded, and its stdout followed by its stderr.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        self.enter(|| try_shell(line))
    }

    /// Runs a program on this host with additional variables and this stdin. Returns its exit status (negative: a signal), stdout
    /// and stderr.
    pub fn run(&self, program: &Path, env: &[(String, String)], stdin: &[u8]) -> (i32, Vec<u8>, Vec<u8>) {
        self.enter(|| run_here(program, &[], env, stdin))
    }
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl Container {
    pub(crate) fn new() -> Container {
        Container { netns: cnikit_netns::make::anonymous().unwrap() }
    }

    /// A container ID that no other container has as long as the value exists: `CNI_CONTAINERID` of [`Host::runtime`].
    pub fn id(&self) -> String {
        format!("container-{}", self.netns.name_while_held().unwrap())
    }

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
        succeeded(line, self.try_sh(line))
    }

    /// Runs a shell line in this container. Returns whether it succeeded, and its stdout followed by its stderr.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        self.netns.enter(|_| try_shell(line)).unwrap()
    }

    /// The names of its links but the loopback's, from proc(5): `ip link` also says on stderr which files of `/run/netns` are no
    /// namespaces yet, and other tests make some.
    pub fn links(&self) -> Vec<String> {
        let table = self.netns.enter(|_| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
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
    bind(file, Path::new(BOOT_ID));
}

/// Mounts an `/etc` with this policy, for the calling thread only. The files of the real one, which `etc` shows, are linked.
fn mount_etc_with_policy(etc: &Path, policy: &str) {
    enter_mount_namespace();
    hide_entries(Path::new("/etc"), etc, &["cnikit"]);
    std::fs::create_dir("/etc/cnikit").unwrap();
    std::fs::write("/etc/cnikit/node.json", policy).unwrap();
    // The modes must not depend on the umask.
    for (path, mode) in [("/etc/cnikit", 0o755), ("/etc/cnikit/node.json", 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Runs `work` on a thread of its own, which may have mounts of its own: [`Netns::enter`] starts none in a process with one thread.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
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

pub(crate) fn shell(netns: &Netns, line: &str) -> String {
    succeeded(line, netns.enter(|_| try_shell(line)).unwrap())
}

/// The output of a shell line that has to succeed.
fn succeeded(line: &str, (succeeded, output): (bool, String)) -> String {
    assert!(succeeded, "{line}: {output}");
    output
}

/// What ip(8) says on Linux 5.10 about each link whose other end is in a namespace without an ID, though it succeeds.
const NO_PEER: &str = "Error: Peer netns reference is invalid.";

fn try_shell(line: &str) -> (bool, String) {
    let (exit, stdout, stderr) = match program_of(line) {
        Some((program, words)) => run_here(&program, &words, &[], b""),
        None => run_here(Path::new("/bin/sh"), &["-c", line], &[], b""),
    };
    let mut output = String::from_utf8_lossy(&stdout).into_owned();
    let stderr = String::from_utf8_lossy(&stderr);
    output.extend(stderr.split_inclusive('\n').filter(|line| line.trim_end() != NO_PEER));
    (exit == 0, output)
}

/// The program and the arguments of a line in which a shell would only start that program. Starting the shell as well takes twice
/// as long, and the tests run such lines tens of thousands of times.
fn program_of(line: &str) -> Option<(PathBuf, Vec<&str>)> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || " -_./:,@%+".contains(character);
    if !line.chars().all(is_plain) {
        return None;
    }
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    // A builtin command, such as `cd`, is not found: the shell has to run it.
    let program = find_program(words.next()?)?;
    Some((program, words.collect()))
}

/// Sets the loopback of the calling thread's namespace up.
pub(crate) fn bring_loopback_up() {
    let here = Netlink::here().unwrap();
    let loopback = here.link("lo").unwrap();
    here.change(loopback.index, &LinkChange::default().up(true)).unwrap();
}

/// Runs a program in the namespaces of the calling thread.
fn run_here(path: &Path, args: &[&str], env: &[(String, String)], stdin: &[u8]) -> (i32, Vec<u8>, Vec<u8>) {
    let program =
        Program::new(path, Env::inherited(env.iter().map(|(key, value)| (key.into(), value.into())).collect()))
            .args(args.iter().map(OsString::from).collect())
            .stdin(stdin.to_vec())
            .limit(64 << 20);
    let ended = cnikit_process::run(&program, Deadline::after(TIMEOUT));
    let ended = ended.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let exit = match ended.how {
        How::Exit(status) => status,
        How::Signal(signal) => -signal,
    };
    (exit, ended.stdout, ended.stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_started_only_for_what_it_has_to_do() {
        let words = |line| program_of(line).map(|(_, words)| words);
        assert_eq!(
            words("ip  -6 address add fd00::1/64 dev eth0"),
            Some(vec!["-6", "address", "add", "fd00::1/64", "dev", "eth0"])
        );
        assert_eq!(program_of("sh -c").unwrap().0, find_program("sh").unwrap());
        let of_a_shell = [
            "",
            "cd /",
            "no-such-program x",
            "ip a && ip r",
            "ip 'a b'",
            "ls *",
            "echo $HOME",
            "A=1 env",
            "ip a >f",
            "ls ~",
        ];
        for line in of_a_shell {
            assert_eq!(words(line), None, "{line}");
        }
    }

    #[test]
    fn the_loopback_of_a_host_is_up_and_lines_run_alike_with_and_without_a_shell() {
        let host = Host::new();
        assert!(host.sh("ip link show lo").contains("LOOPBACK,UP"));
        for line in ["ip link show", "ip link show nosuchlink", "ip", "ip route get 300.1.1.1"] {
            assert_eq!(host.try_sh(line), host.try_sh(&format!("{line};")), "{line}");
        }
    }
}
