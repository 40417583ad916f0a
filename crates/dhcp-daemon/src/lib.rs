//! A daemon that holds DHCP leases for containers.
//!
//! Parts, in reading order:
//!
//! - [`LeaseRequest`], [`LeaseReply`] and [`call`]: the protocol of its socket, and the side that calls it.
//! - [`LeaseRecords`]: the leases on the disk. They survive the daemon; the next one goes on with them (INIT-REBOOT).
//! - [`run`]: the daemon as a program; [`start_own_daemon`]: starts it; [`serve`]: its event loop.
//!
//! Design decisions. One thread serves all leases: it enters the namespace of a lease only to open a socket or to change the
//! interface, and returns. Between exchanges no descriptor is open there, because an open socket keeps a deleted namespace and its
//! links alive; the namespace is found again by its path, and recognised by its cookie. The kernel takes long to close a packet
//! socket, so other threads do that. A lease is on the disk before it is reported, so a daemon that is killed loses none.
//! A daemon that starts takes the socket over from the one that runs.
//!
//! # Example
//!
//! What a plugin does on STATUS:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cnikit_dhcp_daemon::{CallError, LeaseRequest, SOCKET, call};
//!
//! match call(SOCKET.as_ref(), &LeaseRequest::Status, Duration::from_secs(5)) {
//!     Ok(_) => println!("a daemon serves"),
//!     Err(CallError::NotRunning { .. }) => println!("start it: dhcp daemon"),
//!     Err(other) => println!("{other}"),
//! }
//! ```

mod attachment;
mod attachment6;
mod clock;
mod closing;
mod confinement;
mod confirmations;
mod flags;
mod held;
mod interface;
mod kernel;
mod listener;
mod log;
mod protocol;
mod record;
mod server;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod syscall_filter;
mod uplink;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cnikit_dhcp::v4::Timing;
use cnikit_process::{Daemon, start_daemon};
use cnikit_store::{Directory, Lock};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub use protocol::{
    CallError, Lease6Order, LeaseFamily, LeaseOrder, LeaseOwner, LeaseReply, LeaseReport, LeaseRequest,
    PROTOCOL_VERSION, PendingCall, SOCKET, again_while, call,
};
pub use record::{LeaseRecords, RECORDS};
pub use server::DaemonEnd;

use crate::listener::Listener;
use crate::log::log;
use crate::server::Server;

/// This program, also after its file was replaced.
const OURSELVES: &str = "/proc/self/exe";
/// The plugin, whose first argument `daemon` makes it the daemon.
const PLUGIN: &str = "dhcp";

/// The name of the file that is locked by the daemon that has the leases.
const LOCK: &str = ".lock";
/// How long the daemon before may take to end.
const LOCKED: Duration = Duration::from_secs(10);

/// Why a file gets no number of a process.
const NOT_REGULAR: &str = "it is not a regular file";

/// How the daemon is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSettings {
    /// The path of its socket.
    pub socket: PathBuf,
    /// The directory of its records.
    pub records: PathBuf,
    /// What is put in front of the paths of namespaces.
    pub host_prefix: String,
    /// Whether servers are asked to broadcast their replies.
    pub broadcast: bool,
    /// The waiting times of each client.
    pub timing: Timing,
    /// The longest time that an order for a lease waits.
    pub patience: Duration,
}

impl Default for DaemonSettings {
    fn default() -> Self {
        Self {
            socket: SOCKET.into(),
            records: RECORDS.into(),
            host_prefix: String::new(),
            broadcast: false,
            timing: Timing::default(),
            patience: Duration::from_secs(208),
        }
    }
}

/// The daemon as a program; `arguments` are those after `daemon`.
pub fn run(arguments: &[String]) -> ExitCode {
    let done = match flags::parse(arguments) {
        Ok(Some(flags)) => start(&flags).map(drop),
        Ok(None) => std::io::stdout().write_all(flags::HELP.as_bytes()).map_err(|error| format!("stdout: {error}")),
        Err(why) => Err(why),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log("daemon", why);
            ExitCode::FAILURE
        }
    }
}

fn start(flags: &flags::Flags) -> Result<DaemonEnd, String> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().map_err(|errno| format!("block signals: {errno}"))?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| format!("signalfd: {errno}"))?;
    // Whoever can predict the numbers of requests can forge replies. The descriptor by which they are read stays open, so there are
    // random numbers also when no other descriptor is free.
    getrandom::u32().map_err(|error| format!("random numbers: {error}"))?;
    // Each exchange has two sockets and a caller. What the kernel does not allow is not needed by most.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let listener =
        if flags.is_inherited { Listener::of_stdin(&flags.settings.socket)? } else { listen(&flags.settings)? };
    let lock = lock_records(&flags.settings)?;
    if let Some(file) = &flags.pid_file {
        write_pid(file)?;
    }
    confinement::await_other_threads()?;
    let ended = confinement::confine().and_then(|()| serve_with(&flags.settings, listener, Some(signals)));
    drop(lock);
    if let (Some(file), Ok(DaemonEnd::Signal)) = (&flags.pid_file, &ended) {
        let _ = std::fs::remove_file(file);
    }
    ended
}

/// The socket of systemd, or one of our own.
#[expect(clippy::disallowed_methods, reason = "systemd says by the environment which socket it has opened")]
fn listen(settings: &DaemonSettings) -> Result<Listener, String> {
    let [pid, count] = ["LISTEN_PID", "LISTEN_FDS"].map(|name| std::env::var(name).ok());
    match Listener::of_systemd(&settings.socket, pid.as_deref(), count.as_deref())? {
        Some(listener) => {
            // Another daemon may have taken this socket over from one that systemd had started, and serve on it.
            if records_are_in_use(settings) {
                listener.end_other();
            }
            Ok(listener)
        }
        None => Listener::bind(&settings.socket),
    }
}

/// Takes the leases of the directory: two daemons, on two sockets perhaps, would both renew them and give them back. A daemon that
/// takes over gets the lock when the one before has ended.
fn lock_records(settings: &DaemonSettings) -> Result<Lock, String> {
    let directory =
        Directory::make_durably(&settings.records, record::DIRECTORY_MODE).map_err(|error| error.to_string())?;
    let lock = directory.lock(LOCK, record::MODE, LOCKED).map_err(|error| {
        let holder = holder_of(&settings.records.join(LOCK));
        let holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
        let dir = settings.records.display();
        format!(
            "{error}; hint: {holder} serves the leases of {dir}: stop it, or give this one its own directory (-datadir)"
        )
    })?;
    Ok(lock)
}

/// Whether another daemon has the leases of the directory.
fn records_are_in_use(settings: &DaemonSettings) -> bool {
    let Ok(directory) = Directory::open(&settings.records) else { return false };
    directory.lock(LOCK, record::MODE, Duration::ZERO).is_err_and(|error| error.is_deadline())
}

/// The process that has locked a file, from `proc_locks(5)`.
fn holder_of(file: &Path) -> Option<u32> {
    let inode = format!(":{}", std::fs::metadata(file).ok()?.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    for line in locks.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [_, "FLOCK", _, _, pid, place, ..] = fields[..]
            && place.ends_with(&inode)
        {
            return pid.parse().ok();
        }
    }
    None
}

/// Starts a daemon that outlives this process, which is the plugin, unless one listens on the socket. Of several processes that do
/// this at once, one starts a daemon. It can be called at once: the socket is there before it is.
///
/// # Errors
/// The socket cannot be bound, another program listens there, or the daemon cannot be started.
pub fn start_own_daemon(socket: &Path, records: &Path) -> Result<(), String> {
    let whole = |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let (socket, records) = (&whole(socket)?, &whole(records)?);
    Listener::bind_for_daemon(socket, |bound| {
        let args = [format!("-{}", flags::INHERITED).into(), "-socketpath".into(), socket.into(), "-datadir".into()];
        let daemon = Daemon {
            path: OURSELVES.into(),
            name: PLUGIN,
            args: [&["daemon".into()], &args[..], &[records.into()]].concat(),
            stdin: bound.as_fd(),
        };
        start_daemon(&daemon).map_err(|error| error.to_string())
    })
}

/// Binds the socket, or takes it over, and serves until another daemon takes it over.
///
/// # Errors
/// The socket cannot be had, or the records cannot be read.
pub fn serve(settings: &DaemonSettings) -> Result<DaemonEnd, String> {
    let listener = Listener::bind(&settings.socket)?;
    let _lock = lock_records(settings)?;
    serve_with(settings, listener, None)
}

fn serve_with(settings: &DaemonSettings, listener: Listener, signals: Option<SignalFd>) -> Result<DaemonEnd, String> {
    closing::start();
    log("daemon", format!("serves on {}", settings.socket.display()));
    let ended = Server::new(settings, listener, signals)?.serve()?;
    log("daemon", format!("ends: {ended:?}"));
    Ok(ended)
}

/// Writes the number of this process to a regular file. In a directory that other users can write to, the path may lead to another
/// file, which stays as it is, or to a FIFO, on which open(2) would wait for a reader.
fn write_pid(path: &Path) -> Result<(), String> {
    let failed = |why: &dyn Display| format!("Error writing pidfile {:?}: {why}", path.display().to_string());
    // Whatever the umask is, no other user writes it: an operator may send a signal to the process that it names.
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => failed(&"it is a symbolic link, and none is followed"),
        Some(libc::ENXIO) => failed(&NOT_REGULAR),
        _ => failed(&error),
    })?;
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&NOT_REGULAR));
    }
    file.set_len(0).map_err(|error| failed(&error))?;
    file.write_all(std::process::id().to_string().as_bytes()).map_err(|error| failed(&error))
}
