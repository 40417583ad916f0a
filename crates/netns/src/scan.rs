//! Find out which network namespaces of this machine still exist.
//!
//! The kernel has no list of them. A namespace exists as long as anything holds it: a thread in it, a mount of it, an open file of
//! it, a socket that was created in it. All four are searched, for every process that `/proc` shows. What could not be inspected is
//! reported, because then the result is not proven. A mount that is covered by another mount cannot be opened, but since Linux 6.18
//! the kernel can say whether it is a mount of a given namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

use crate::mounted::mounts;
use crate::{Netns, kernel};

/// The inode number of the kernel's first PID namespace (`PROC_PID_INIT_INO`, `linux/proc_fs.h`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The lowest inode number that the kernel gives a namespace (`PROC_DYNAMIC_FIRST`, `fs/proc/generic.c`). The link in
/// `/proc/PID/fd` of a namespace that was opened by a mount shows the path of the mount, so only the inode number distinguishes it
/// from other files.
const FIRST_INODE: u32 = 0xf000_0000;

/// How many scans are made if something that was found ends before it can be opened.
const MAX_SCANS: usize = 3;

/// The processes that are scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All processes of the machine. From inside a PID namespace they are not all visible, so nothing is proven there.
    Machine,
    /// The processes of this PID namespace. This is right if nothing outside it can hold a namespace that is asked about.
    PidNamespace,
}

/// The network namespaces that exist, found by a scan of all processes.
#[derive(Debug, Default)]
pub struct NetnsScan {
    cookies: BTreeSet<u64>,
    /// Found, but they could not be opened: the reason by inode number.
    unopened: BTreeMap<u32, String>,
    unseen: BTreeSet<String>,
    /// Whether to scan again: a process ended, or unmounted, before its mounts were opened, and other processes may have them too.
    incomplete: bool,
}

/// Whether a namespace still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetnsStatus {
    /// A process, a mount, a file or a socket holds it.
    Lives,
    /// Nothing holds it.
    Dead,
    /// It was not found, but something that could not be inspected may hold it.
    Unknown(String),
}

/// What is still to be opened: the paths by the name of the namespace, `net:[INODE]`, and the mount namespaces already read.
#[derive(Default)]
struct Seen {
    paths: BTreeMap<String, Vec<PathBuf>>,
    mounts: BTreeSet<String>,
}

impl NetnsScan {
    /// Scans all processes. `each` is called with the number of processes done and their total.
    pub fn scan(scope: Scope, mut each: impl FnMut(usize, usize)) -> NetnsScan {
        let mut scan = NetnsScan::scan_once(scope, &mut each);
        for _ in 1..MAX_SCANS {
            if !scan.incomplete {
                break;
            }
            scan = NetnsScan::scan_once(scope, &mut each);
        }
        scan
    }

    fn scan_once(scope: Scope, each: &mut impl FnMut(usize, usize)) -> NetnsScan {
        let mut scan = NetnsScan::default();
        scan.check_proc(scope);
        let mut seen = Seen::default();
        let processes = scan.list(Path::new("/proc")).unwrap_or_default();
        let processes: Vec<PathBuf> = processes.into_iter().filter(|path| number(path).is_some()).collect();
        for (done, process) in processes.iter().enumerate() {
            scan.scan_process(process, &mut seen);
            each(done, processes.len());
        }
        for (name, paths) in &seen.paths {
            scan.open(name, paths);
        }
        scan
    }

    /// Whether the namespace with this cookie still exists; see [`Netns::cookie`].
    pub fn status(&self, cookie: u64) -> NetnsStatus {
        if self.cookies.contains(&cookie) {
            return NetnsStatus::Lives;
        }
        for (inode, why) in &self.unopened {
            match has_cookie(*inode, cookie) {
                Some(true) => return NetnsStatus::Lives,
                Some(false) => {}
                None => return NetnsStatus::Unknown(why.clone()),
            }
        }
        self.unseen.first().map_or(NetnsStatus::Dead, |unseen| NetnsStatus::Unknown(unseen.clone()))
    }

    /// What could not be scanned, one sentence each.
    pub fn unseen(&self) -> impl Iterator<Item = &str> {
        self.unseen.iter().chain(self.unopened.values()).map(String::as_str)
    }

    /// Checks that this `/proc` shows every process of `scope`.
    fn check_proc(&mut self, scope: Scope) {
        match fs::read_link("/proc/self/ns/pid") {
            Ok(found) if scope == Scope::PidNamespace || found.to_str() == Some(FIRST_PID_NAMESPACE) => {}
            Ok(_) => self.miss("this is a PID namespace: processes outside of it are not visible".to_owned()),
            Err(error) => self.miss(format!("/proc/self/ns/pid: {error}")),
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let proc = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc")).unwrap_or_default();
        let hides = proc.split([' ', ',']).find_map(|option| option.strip_prefix("hidepid="));
        if hides.is_some_and(|hides| !matches!(hides, "0" | "off")) {
            self.miss("/proc is mounted with `hidepid`: it does not show all processes".to_owned());
        }
    }

    fn scan_process(&mut self, process: &Path, seen: &mut Seen) {
        for thread in self.list(&process.join("task")).unwrap_or_default() {
            let way = thread.join("ns/net");
            if let Some(name) = self.target(&way) {
                seen.add(&name, way);
            }
        }
        if let Some(mounts) = self.target(&process.join("ns/mnt"))
            && !seen.mounts.contains(&mounts)
            && self.scan_mounts(process, seen)
        {
            seen.mounts.insert(mounts);
        }
        for file in self.list(&process.join("fd")).unwrap_or_default() {
            let Some(target) = self.target(&file) else { continue };
            if target.starts_with("net:[") {
                seen.add(&target, file);
            } else if target.starts_with("socket:[") {
                self.scan_socket(process, &file);
            } else if target.starts_with('/')
                && let Some(inode) = self.inode_of(process, &file)
                && inode >= FIRST_INODE
            {
                seen.add(&format!("net:[{inode}]"), file);
            }
        }
    }

    /// The inode number of an open file, from `proc_pid_fdinfo(5)`. stat(2) of the file itself may block for ever on a network file
    /// system.
    fn inode_of(&mut self, process: &Path, file: &Path) -> Option<u32> {
        let path = process.join("fdinfo").join(file.file_name()?);
        let text = self.unless_gone(&path, fs::read_to_string(&path))?;
        text.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
    }

    /// Collects mounts of namespaces, as `ip netns` makes them. Returns `false` if the process has ended and another one of the
    /// same mount namespace has to be read.
    fn scan_mounts(&mut self, process: &Path, seen: &mut Seen) -> bool {
        let path = process.join("mountinfo");
        let read = fs::read_to_string(&path).map_err(|error| ended(error, libc::EINVAL));
        let Some(text) = self.unless_gone(&path, read) else { return false };
        for (name, point) in mounts(&text) {
            seen.add(name, path_to_mount(process, &point));
        }
        true
    }

    /// Records the cookie of the namespace that a socket was created in; only the socket itself has this information.
    fn scan_socket(&mut self, process: &Path, file: &Path) {
        let (Some(pid), Some(fd)) = (number(process), number(file)) else { return };
        // By now the number may be that of another file: the socket was closed.
        let cookie = kernel::cookie_of_socket(pid, fd).map_err(|error| ended(error, libc::ENOTSOCK));
        if let Some(cookie) = self.unless_gone(file, cookie) {
            self.cookies.insert(cookie);
        }
    }

    /// Opens a namespace by the first path that still leads to it, and records its cookie.
    fn open(&mut self, name: &str, paths: &[PathBuf]) {
        let mut last = None;
        for way in paths {
            match Netns::open(way) {
                Ok(netns) if is_named(&netns, name) => match netns.cookie() {
                    Ok(cookie) => {
                        self.cookies.insert(cookie);
                        return;
                    }
                    Err(error) => last = Some(error.to_string()),
                },
                Ok(_) => last = Some(format!("{name}: another mount covers {}", way.display())),
                // Its process has ended, or the path was one of another file; every other holder has a path of its own. A mount,
                // however, may exist although it cannot be seen.
                Err(error) if (error.is_absent() || error.is_verdict()) && !is_mount(way) => {}
                Err(error) => {
                    self.incomplete |= is_mount(way) && !is_mounted(way);
                    last = Some(error.to_string());
                }
            }
        }
        match (last, inode_named(name)) {
            (None, _) => {}
            (Some(why), Some(inode)) => drop(self.unopened.insert(inode, why)),
            (Some(why), None) => self.miss(why),
        }
    }

    fn list(&mut self, path: &Path) -> Option<Vec<PathBuf>> {
        let entries = fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        self.unless_gone(path, entries)
    }

    fn target(&mut self, path: &Path) -> Option<String> {
        self.unless_gone(path, fs::read_link(path)).map(|target| target.to_string_lossy().into_owned())
    }

    /// The value that was read; `None` if its process has ended or closed the file meanwhile. Any other error is recorded as
    /// unseen.
    fn unless_gone<T>(&mut self, path: &Path, read: io::Result<T>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                let gone = [libc::ENOENT, libc::ESRCH, libc::EBADF];
                if !error.raw_os_error().is_some_and(|errno| gone.contains(&errno)) {
                    self.miss(format!("{}: {error}", path.display()));
                }
                None
            }
        }
    }

    fn miss(&mut self, what: String) {
        self.unseen.insert(what);
    }
}

impl Seen {
    fn add(&mut self, name: &str, way: PathBuf) {
        self.paths.entry(name.to_owned()).or_default().push(way);
    }
}

/// Replaces `errno` by `ESRCH`: the call reports with `errno` that the process has ended.
fn ended(error: io::Error, errno: i32) -> io::Error {
    if error.raw_os_error() == Some(errno) { io::Error::from_raw_os_error(libc::ESRCH) } else { error }
}

/// The path to a mount through the root of a process that has it.
fn path_to_mount(process: &Path, point: &str) -> PathBuf {
    process.join("root").join(point.trim_start_matches('/'))
}

/// Whether the process that this path goes through still has the mount.
fn is_mounted(way: &Path) -> bool {
    let process: PathBuf = way.components().take(3).collect();
    let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    mounts(&text).any(|(_, point)| path_to_mount(&process, &point) == way)
}

/// Whether it is a path to a mount, through the root of a process.
fn is_mount(way: &Path) -> bool {
    way.components().nth(3).is_some_and(|part| part.as_os_str() == "root")
}

/// Whether the namespace has this name, `net:[INODE]`, in the links of `/proc/PID/ns`.
fn is_named(netns: &Netns, name: &str) -> bool {
    fstat(netns.as_fd()).is_ok_and(|found| format!("net:[{}]", found.st_ino) == name)
}

/// The inode number in a name `net:[INODE]`.
fn inode_named(name: &str) -> Option<u32> {
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether the namespace with this inode number has the cookie; `None` if this kernel cannot tell. Whether it can is tested with
/// our own namespace, of which both are known.
fn has_cookie(inode: u32, cookie: u64) -> Option<bool> {
    let own = Netns::own().ok()?;
    let own_inode = u32::try_from(fstat(own.as_fd()).ok()?.st_ino).ok()?;
    let can_tell = kernel::has_cookie(own.as_fd(), own_inode, own.cookie().ok()?).ok()?;
    can_tell.then(|| kernel::has_cookie(own.as_fd(), inode, cookie).ok()).flatten()
}

/// The last component of a path as a number.
fn number(path: &Path) -> Option<i32> {
    path.file_name()?.to_str()?.parse().ok()
}
