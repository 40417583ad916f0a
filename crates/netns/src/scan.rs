//! Which network namespaces of this machine live.
//!
//! The kernel has no list of all of them. A namespace lives while anything holds it: a thread in it, a mount of it, an open file
//! of it, a socket made in it. All four are looked through, for every process that `/proc` shows; whatever could not be looked
//! at is told, for then nothing is proven. A mount that another one covers cannot be opened; whether it is of a certain
//! namespace can be asked all the same, since Linux 6.18.

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

/// The lowest inode number that the kernel gives a namespace (`PROC_DYNAMIC_FIRST`, `fs/proc/generic.c`). A file opened by way
/// of a mount bears the mount's path as its name, so its number is all that tells it from any other.
const FIRST_INODE: u32 = 0xf000_0000;

/// How often all is looked through while what was seen ends before it can be opened.
const LOOKS: usize = 3;

/// Whose processes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the machine: one that looks from inside a PID namespace of its own cannot see them, and proves nothing.
    Machine,
    /// Those of this PID namespace: right where nothing outside it can hold a namespace that is asked about.
    PidNamespace,
}

/// The network namespaces that were found alive.
#[derive(Debug, Default)]
pub struct NetnsScan {
    cookies: BTreeSet<u64>,
    /// Found, and not to be opened: by inode number, why not.
    covered: BTreeMap<u32, String>,
    unseen: BTreeSet<String>,
    /// Whether a process ended whose mounts were still to be opened, or had one no longer: others may have them too.
    fleeting: bool,
}

/// What is known of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetnsStatus {
    /// Something holds it.
    Lives,
    /// Nothing does.
    Dead,
    /// It was not found, but something could not be looked at, which may hold it.
    Unknown(String),
}

/// What is still to be opened: by inode number, the ways that lead there.
#[derive(Default)]
struct Seen {
    ways: BTreeMap<String, Vec<PathBuf>>,
    mounts: BTreeSet<String>,
}

impl NetnsScan {
    /// Scans all processes. `each` is called with the number of processes done and their total.
    pub fn look(scope: Scope, mut each: impl FnMut(usize, usize)) -> NetnsScan {
        let mut scan = NetnsScan::look_once(scope, &mut each);
        for _ in 1..LOOKS {
            if !scan.fleeting {
                break;
            }
            scan = NetnsScan::look_once(scope, &mut each);
        }
        scan
    }

    fn look_once(scope: Scope, each: &mut impl FnMut(usize, usize)) -> NetnsScan {
        let mut scan = NetnsScan::default();
        scan.check_proc(scope);
        let mut seen = Seen::default();
        let processes = scan.list(Path::new("/proc")).unwrap_or_default();
        let processes: Vec<PathBuf> = processes.into_iter().filter(|path| number(path).is_some()).collect();
        for (done, process) in processes.iter().enumerate() {
            scan.look_at(process, &mut seen);
            each(done, processes.len());
        }
        for (name, ways) in &seen.ways {
            scan.open(name, ways);
        }
        scan
    }

    /// Whether the namespace with this cookie still exists; see [`Netns::cookie`].
    pub fn fate(&self, cookie: u64) -> NetnsStatus {
        if self.cookies.contains(&cookie) {
            return NetnsStatus::Lives;
        }
        for (inode, why) in &self.covered {
            match bears(*inode, cookie) {
                Some(true) => return NetnsStatus::Lives,
                Some(false) => {}
                None => return NetnsStatus::Unknown(why.clone()),
            }
        }
        self.unseen.first().map_or(NetnsStatus::Dead, |unseen| NetnsStatus::Unknown(unseen.clone()))
    }

    /// What could not be scanned, one sentence each.
    pub fn unseen(&self) -> impl Iterator<Item = &str> {
        self.unseen.iter().chain(self.covered.values()).map(String::as_str)
    }

    /// Whether this `/proc` shows every process that counts.
    fn check_proc(&mut self, scope: Scope) {
        match fs::read_link("/proc/self/ns/pid") {
            Ok(found) if scope == Scope::PidNamespace || found.to_str() == Some(FIRST_PID_NAMESPACE) => {}
            Ok(_) => self.miss("this is a PID namespace: processes outside it are not seen".to_owned()),
            Err(error) => self.miss(format!("/proc/self/ns/pid: {error}")),
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let proc = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc")).unwrap_or_default();
        let hides = proc.split([' ', ',']).find_map(|option| option.strip_prefix("hidepid="));
        if hides.is_some_and(|hides| !matches!(hides, "0" | "off")) {
            self.miss("/proc is mounted with `hidepid`: it does not show all processes".to_owned());
        }
    }

    fn look_at(&mut self, process: &Path, seen: &mut Seen) {
        for thread in self.list(&process.join("task")).unwrap_or_default() {
            let way = thread.join("ns/net");
            if let Some(name) = self.target(&way) {
                seen.add(&name, way);
            }
        }
        if let Some(mounts) = self.target(&process.join("ns/mnt"))
            && !seen.mounts.contains(&mounts)
            && self.look_at_mounts(process, seen)
        {
            seen.mounts.insert(mounts);
        }
        for file in self.list(&process.join("fd")).unwrap_or_default() {
            let Some(target) = self.target(&file) else { continue };
            if target.starts_with("net:[") {
                seen.add(&target, file);
            } else if target.starts_with("socket:[") {
                self.look_at_socket(process, &file);
            } else if target.starts_with('/')
                && let Some(inode) = self.inode_of(process, &file)
                && inode >= FIRST_INODE
            {
                seen.add(&format!("net:[{inode}]"), file);
            }
        }
    }

    /// The inode number of an open file, see `proc_pid_fdinfo(5)`: a look at the file itself may wait for its server for ever.
    fn inode_of(&mut self, process: &Path, file: &Path) -> Option<u32> {
        let path = process.join("fdinfo").join(file.file_name()?);
        let text = self.told(&path, fs::read_to_string(&path))?;
        text.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
    }

    /// Mounts of namespaces, as `ip netns` makes them; false if the process has ended, and another is to be asked.
    fn look_at_mounts(&mut self, process: &Path, seen: &mut Seen) -> bool {
        let path = process.join("mountinfo");
        let read = fs::read_to_string(&path).map_err(|error| ended(error, libc::EINVAL));
        let Some(text) = self.told(&path, read) else { return false };
        for (name, point) in mounts(&text) {
            seen.add(name, way_to(process, &point));
        }
        true
    }

    /// The namespace that a socket was made in: nothing but the socket itself says which that is.
    fn look_at_socket(&mut self, process: &Path, file: &Path) {
        let (Some(pid), Some(fd)) = (number(process), number(file)) else { return };
        // A number that is another file's by now: the socket was closed.
        let cookie = kernel::cookie_of_socket(pid, fd).map_err(|error| ended(error, libc::ENOTSOCK));
        if let Some(cookie) = self.told(file, cookie) {
            self.cookies.insert(cookie);
        }
    }

    /// Opens a namespace by the first way that still leads there, and notes its cookie.
    fn open(&mut self, name: &str, ways: &[PathBuf]) {
        let mut last = None;
        for way in ways {
            match Netns::open(way) {
                Ok(netns) if is_named(&netns, name) => match netns.cookie() {
                    Ok(cookie) => {
                        self.cookies.insert(cookie);
                        return;
                    }
                    Err(error) => last = Some(error.to_string()),
                },
                Ok(_) => last = Some(format!("{name}: another mount covers {}", way.display())),
                // Its process has ended, or it was a file of another sort; who else holds it has a way of its own. A mount has
                // not ended by not being seen.
                Err(error) if (error.is_absent() || error.is_verdict()) && !is_mount(way) => {}
                Err(error) => {
                    self.fleeting |= is_mount(way) && !is_mounted(way);
                    last = Some(error.to_string());
                }
            }
        }
        match (last, inode_named(name)) {
            (None, _) => {}
            (Some(why), Some(inode)) => drop(self.covered.insert(inode, why)),
            (Some(why), None) => self.miss(why),
        }
    }

    fn list(&mut self, path: &Path) -> Option<Vec<PathBuf>> {
        let entries = fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        self.told(path, entries)
    }

    fn target(&mut self, path: &Path) -> Option<String> {
        self.told(path, fs::read_link(path)).map(|target| target.to_string_lossy().into_owned())
    }

    /// What was read, if its process had not ended meanwhile, nor closed it; any other error is something unseen.
    fn told<T>(&mut self, path: &Path, read: io::Result<T>) -> Option<T> {
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
        self.ways.entry(name.to_owned()).or_default().push(way);
    }
}

/// An error that says here what `ESRCH` says elsewhere.
fn ended(error: io::Error, errno: i32) -> io::Error {
    if error.raw_os_error() == Some(errno) { io::Error::from_raw_os_error(libc::ESRCH) } else { error }
}

/// The way to a mount: through the root of a process that has it.
fn way_to(process: &Path, point: &str) -> PathBuf {
    process.join("root").join(point.trim_start_matches('/'))
}

/// Whether the process that this way leads through still has the mount.
fn is_mounted(way: &Path) -> bool {
    let process: PathBuf = way.components().take(3).collect();
    let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    mounts(&text).any(|(_, point)| way_to(&process, &point) == way)
}

/// Whether it is the way to a mount: through the root of a process.
fn is_mount(way: &Path) -> bool {
    way.components().nth(3).is_some_and(|part| part.as_os_str() == "root")
}

/// Whether this is the namespace that links to it call so: `net:[INODE]`.
fn is_named(netns: &Netns, name: &str) -> bool {
    fstat(netns.as_fd()).is_ok_and(|found| format!("net:[{}]", found.st_ino) == name)
}

/// The number in the name.
fn inode_named(name: &str) -> Option<u32> {
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether the namespace with this inode number bears the cookie; `None` if this kernel cannot tell. That it can is tried on our
/// own, of which both are known.
fn bears(inode: u32, cookie: u64) -> Option<bool> {
    let own = Netns::own().ok()?;
    let own_inode = u32::try_from(fstat(own.as_fd()).ok()?.st_ino).ok()?;
    let can_tell = kernel::bears(own.as_fd(), own_inode, own.cookie().ok()?).ok()?;
    can_tell.then(|| kernel::bears(own.as_fd(), inode, cookie).ok()).flatten()
}

/// The number that the last part of a path is.
fn number(path: &Path) -> Option<i32> {
    path.file_name()?.to_str()?.parse().ok()
}
