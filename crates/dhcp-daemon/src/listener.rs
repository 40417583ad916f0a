//! The daemon's socket: passed on by systemd or by the daemon before, or bound.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_store::Directory;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen,
    recvmsg, sendmsg, socket,
};
use nix::sys::stat::{Mode, fchmod};

use crate::kernel;
use crate::log::log;
use crate::protocol::{self, CallError, LeaseReply, LeaseRequest, again_while};

/// The longest time until the daemon before has ended: it finishes the requests that it has.
const TAKEOVER: Duration = Duration::from_mins(4);
/// The longest time that another start of a daemon may take until the socket is bound.
const LOCKED: Duration = Duration::from_secs(10);
const DIRECTORY_MODE: u32 = 0o700;

/// The listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    /// Whether the file is ours to remove: not systemd's.
    is_ours: bool,
}

impl Listener {
    /// The socket that systemd has passed on, if it has; see `sd_listen_fds(3)`. `pid` and `count` are `LISTEN_PID` and
    /// `LISTEN_FDS`.
    pub(crate) fn of_systemd(path: &Path, pid: Option<&str>, count: Option<&str>) -> Result<Option<Listener>, String> {
        let is_meant = pid.and_then(|pid| pid.parse().ok()) == Some(std::process::id());
        match count.and_then(|count| count.parse::<u32>().ok()) {
            Some(1) if is_meant => {
                let socket = UnixListener::from(kernel::passed_on());
                socket.set_nonblocking(true).map_err(|error| format!("the socket of systemd: {error}"))?;
                Ok(Some(Listener { socket, path: path.to_owned(), is_ours: false }))
            }
            Some(count) if is_meant && count > 1 => {
                Err(format!("systemd has passed on {count} sockets, and the daemon has one: correct its .socket unit"))
            }
            _ => Ok(None),
        }
    }

    /// The socket that the plugin has bound and passes on as stdin.
    pub(crate) fn of_stdin(path: &Path) -> Result<Listener, String> {
        let failed = |error: io::Error| format!("the socket of stdin: {error}");
        let socket = UnixListener::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Listener { socket, path: path.to_owned(), is_ours: true })
    }

    /// Binds the socket unless a daemon listens there, and passes it to `start`, which starts one. Of several callers at once one
    /// starts a daemon.
    pub(crate) fn bind_for_daemon(
        path: &Path,
        start: impl FnOnce(&UnixListener) -> Result<(), String>,
    ) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("listen on {}: {error}", path.display());
        let (directory, name) = open_directory(path)?;
        let _lock = directory.lock(&format!("{name}.lock"), 0o600, LOCKED).map_err(|error| failed(&error))?;
        if connect_unless_stale(path).map_err(|error| error.to_string())?.is_some() {
            return Ok(());
        }
        directory.remove(&name).map_err(|error| failed(&error))?;
        let socket = bound(path).map_err(|error| failed(&error))?;
        start(&socket).inspect_err(|_| drop(directory.remove(&name)))
    }

    /// Binds the socket. A daemon of ours that listens there ends and passes it on; a socket that no process listens on is
    /// replaced.
    pub(crate) fn bind(path: &Path) -> Result<Listener, String> {
        let failed = |error: &dyn std::fmt::Display| format!("listen on {}: {error}", path.display());
        let (directory, name) = open_directory(path)?;
        // Two daemons that start at once: one binds, the other takes over.
        let lock = directory.lock(&format!("{name}.lock"), 0o600, LOCKED).map_err(|error| failed(&error))?;
        let taken = again_while(CallError::is_broken, || match connect_unless_stale(path)? {
            Some(stream) => take_over(stream, path, TAKEOVER).map(Some),
            None => Ok(None),
        });
        let (socket, is_of_systemd) = if let Some(taken) = taken.map_err(|error| not_taken(path, &error))? {
            taken
        } else {
            directory.remove(&name).map_err(|error| failed(&error))?;
            (bound(path).map_err(|error| failed(&error))?, false)
        };
        drop(lock);
        socket.set_nonblocking(true).map_err(|error| failed(&error))?;
        Ok(Listener { socket, path: path.to_owned(), is_ours: !is_of_systemd })
    }

    /// Has a daemon end that serves on this socket too. The socket that it passes on is this one. If it was killed meanwhile, it is
    /// not asked again: this process would be.
    pub(crate) fn end_other(&self) {
        let ended = protocol::connect(&self.path).and_then(|stream| take_over(stream, &self.path, LOCKED));
        if let Err(error) = ended {
            log("socket", not_taken(&self.path, &error));
        }
    }

    /// Passes the socket on to the daemon that asked for it.
    pub(crate) fn pass_on(&self, to: &UnixStream) -> io::Result<()> {
        let line = protocol::takeover_line(!self.is_ours);
        let descriptors = [self.socket.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(&line)], &message, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Removes the socket's file, if it is ours. A socket that was passed on is not to be removed.
    pub(crate) fn close(self) {
        if self.is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The directory of the socket, which is made if it does not exist, and the socket's name in it.
fn open_directory(path: &Path) -> Result<(Directory, String), String> {
    let failed = |error: &dyn std::fmt::Display| format!("listen on {}: {error}", path.display());
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(failed(&"it is no path of a file"));
    };
    let directory = Directory::make(dir, DIRECTORY_MODE).map_err(|error| failed(&error))?;
    Ok((directory, name.to_owned()))
}

/// A connection to the daemon; `None` if no process listens on the socket, or it does not exist.
fn connect_unless_stale(path: &Path) -> Result<Option<UnixStream>, CallError> {
    match protocol::connect(path) {
        Ok(stream) => Ok(Some(stream)),
        Err(CallError::NotRunning { source, .. }) if is_stale(&source) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_stale(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT))
}

/// What to do about another program on the socket.
fn advice(path: &Path) -> String {
    let stop = "stop it (`systemctl disable --now cni-dhcp.socket cni-dhcp.service` if it is upstream's)";
    format!(
        "{stop}, or choose another socket for both: `-socketpath` and `ipam.daemonSocketPath`, now {}",
        path.display()
    )
}

/// A new socket at the path, which only its owner can connect to from the beginning: its mode is that of the file.
fn bound(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    // As many as net.core.somaxconn allows: a number of our own is limited by the C library's SOMAXCONN, 128 in musl.
    listen(&socket, Backlog::MAXALLOWABLE)?;
    Ok(socket.into())
}

/// Why a daemon does not end and pass its socket on.
fn not_taken(path: &Path, why: &CallError) -> String {
    format!("take over from the daemon that listens: {why}; hint: {}", advice(path))
}

/// Asks the daemon that listens to end, and takes its socket. Also returns whether that is systemd's.
fn take_over(mut stream: UnixStream, path: &Path, timeout: Duration) -> Result<(UnixListener, bool), CallError> {
    stream.set_read_timeout(Some(timeout)).map_err(CallError::Broken)?;
    stream.set_write_timeout(Some(LOCKED)).map_err(CallError::Broken)?;
    stream.write_all(&protocol::line(LeaseRequest::End)).map_err(|error| protocol::broken(error, LOCKED))?;
    let (reply, descriptor) =
        receive(&stream, Deadline::after(timeout)).map_err(|error| protocol::broken(error, timeout))?;
    protocol::refuse_http(&reply, path)?;
    match (protocol::parse_reply(&reply)?, descriptor) {
        (LeaseReply::Done, Some(descriptor)) => Ok((descriptor.into(), protocol::is_of_systemd(&reply))),
        (reply, _) => Err(CallError::Unreadable(format!("it does not pass a socket on: {reply:?}"))),
    }
}

/// A reply with a descriptor.
fn receive(stream: &UnixStream, deadline: Deadline) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = [0; 4_096];
    loop {
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        match recvmsg::<()>(stream.as_fd().as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) => {
                let length = message.bytes;
                let mut descriptor = None;
                for control in message.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(numbers) = control {
                        descriptor = numbers.first().map(|number| kernel::received(*number));
                    }
                }
                return Ok((buffer[..length].to_vec(), descriptor));
            }
            Err(Errno::EINTR) if !deadline.passed() => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
