//! Starts a program whose every system call waits for our decision.
//!
//! Crate `process` starts programs that run by themselves. Here even the first call, execve(2), waits for our decision, so the
//! function that starts the program must not wait for it. That needs a fork of its own, and system calls without a safe wrapper.
#![expect(unsafe_code, reason = "code between fork and exec, and four system calls without a wrapper")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::ptr;

use nix::sys::resource::Resource;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// The result of [`launch`].
pub(super) struct Launched {
    pub(super) pid: Pid,
    /// Its pidfd.
    pub(super) process: OwnedFd,
    /// The descriptor on which the calls of the program and of all its children arrive.
    pub(super) listener: OwnedFd,
    pub(super) stdout: PipeReader,
    pub(super) stderr: PipeReader,
}

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// The exit status of a child that could not execute the program.
const NOT_STARTED: i32 = 127;

/// Starts a program on the calling thread's host. The variables are added to our own, and stdin has to fit in a pipe. The program
/// is killed when the calling thread ends.
pub(super) fn launch(program: &Path, args: &[String], env: &[(String, String)], stdin: &[u8]) -> io::Result<Launched> {
    let image = Image::new(program, args, env)?;
    let (input, mut feed) = pipe()?;
    let (stdout, output) = pipe()?;
    let (stderr, errors) = pipe()?;
    let (mut number, tell) = pipe()?;
    feed.write_all(stdin)?;
    drop(feed);
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
    // SAFETY: until it becomes the program, the child makes system calls and allocates nothing.
    let pid = match unsafe { fork() }? {
        ForkResult::Child => image.exec(streams, &tell),
        ForkResult::Parent { child } => child,
    };
    drop((input, output, errors, tell));
    let mut bytes = [0; 4];
    number.read_exact(&mut bytes)?;
    // SAFETY: numbers; the returned descriptor is new, so only the result owns it.
    let process = unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0)) }?;
    let listener = fetch_listener(pid, &process, RawFd::from_ne_bytes(bytes))?;
    Ok(Launched { pid, process, listener, stdout, stderr })
}

/// The arguments of execve(2), prepared before the fork.
struct Image {
    path: CString,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// The strings that `argv` and `envp` point to.
    _strings: [Vec<CString>; 2],
}

impl Image {
    fn new(program: &Path, args: &[String], env: &[(String, String)]) -> io::Result<Image> {
        let path = CString::new(program.as_os_str().to_owned().into_vec())?;
        let mut own_args = Vec::new();
        for arg in args {
            own_args.push(CString::new(arg.as_str())?);
        }
        let mut argv = vec![path.as_ptr()];
        argv.extend(own_args.iter().map(|arg| arg.as_ptr()));
        argv.push(ptr::null());
        let mut pairs = Vec::new();
        for (key, value) in std::env::vars_os() {
            if !env.iter().any(|(name, _)| key == name.as_str()) {
                pairs.push(variable(key, &value)?);
            }
        }
        for (key, value) in env {
            pairs.push(variable(key.into(), value.as_ref())?);
        }
        let mut envp: Vec<_> = pairs.iter().map(|pair| pair.as_ptr()).collect();
        envp.push(ptr::null());
        Ok(Image { argv, path, envp, _strings: [own_args, pairs] })
    }

    /// In the child: sets up the streams and the filter, and executes the program.
    fn exec(&self, streams: [BorrowedFd<'_>; 3], tell: &PipeWriter) -> ! {
        for (target, stream) in (0..).zip(streams) {
            // SAFETY: plain numbers. None of our pipes has a number below 3, because a test has its three streams open.
            unsafe { libc::dup2(stream.as_raw_fd(), target) };
        }
        // SAFETY: no handler is set.
        let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
        let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
        // SAFETY: a number. Without random addresses the allocator makes the same calls each time.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        let filter = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF }; // BPF_RET | BPF_K
        let program = libc::sock_fprog { len: 1, filter: ptr::from_ref(&filter).cast_mut() };
        // SAFETY: the listener gets the lowest free number. We find that out by a duplicate that is closed again, and send it while
        // we still can: with the filter every call waits for the process that has the listener. The filter is on our stack; the
        // arrays end with null.
        unsafe {
            let number = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3);
            libc::close(number);
            libc::write(tell.as_raw_fd(), ptr::from_ref(&number).cast(), 4);
            let filter = |flags: libc::c_ulong| {
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
            };
            // A signal with a handler, such as a shell's `SIGCHLD` handler, would interrupt the call that waits for us.
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            let unmoved = flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
            if filter(unmoved) >= 0 || filter(flags) >= 0 {
                libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
            }
            libc::_exit(NOT_STARTED)
        }
    }
}

/// A variable as execve(2) takes it: `KEY=VALUE`.
fn variable(key: OsString, value: &OsStr) -> io::Result<CString> {
    let mut pair = key;
    pair.push("=");
    pair.push(value);
    Ok(CString::new(pair.into_vec())?)
}

/// Copies the listener from the child, which makes it soon or ends.
fn fetch_listener(pid: Pid, process: &OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    loop {
        // SAFETY: numbers; the returned descriptor is new, so only the result owns it.
        match unsafe { owned(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0)) } {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => std::thread::yield_now(),
            fetched => return fetched.inspect(wake_quickly),
        }
        if waitpid(pid, Some(WaitPidFlag::WNOHANG)) != Ok(WaitStatus::StillAlive) {
            return Err(io::Error::other("the kernel gives a test no listener for system calls (seccomp(2))"));
        }
    }
}

/// Takes ownership of the descriptor that a system call returned; a negative number is the error of that call.
///
/// # Safety
/// The descriptor must be new, and without another owner.
unsafe fn owned(returned: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        // SAFETY: the caller guarantees it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Wakes the other side on the same processor: the program and the tracer take turns, so this halves the time on one processor.
/// Kernels before 6.6 do not have this flag, and work without it.
fn wake_quickly(listener: &OwnedFd) {
    // SAFETY: the listener is open, and this request takes a number.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Receives the next call; `None` if its thread has ended.
pub(super) fn receive(listener: &OwnedFd) -> io::Result<Option<libc::seccomp_notif>> {
    // SAFETY: a structure of integers; the kernel requires that it is zeroed.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the listener is open, and this request fills such a structure.
    let received = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) };
    match io::Error::last_os_error() {
        _ if received == 0 => Ok(Some(notice)),
        error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        error => Err(error),
    }
}

/// Continues a call, or makes it fail with this error number. It is not an error if the thread has ended.
pub(super) fn respond(listener: &OwnedFd, notice: &libc::seccomp_notif, errno: Option<i32>) {
    let go_on = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or_default();
    let flags = if errno.is_some() { 0 } else { go_on };
    let answer = libc::seccomp_notif_resp { id: notice.id, val: 0, error: -errno.unwrap_or_default(), flags };
    // SAFETY: the listener is open, and this request reads such a structure.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
}

/// Limits what a running program may use; see prlimit(2).
pub(super) fn limit(pid: Pid, resource: Resource, most: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the structure lives, and no old one is asked for.
    let done = unsafe { libc::prlimit(pid.as_raw(), resource as _, &raw const limit, ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a pipe that is no longer written to, to its end.
pub(super) fn drain(pipe: PipeReader) -> io::Result<String> {
    let mut text = Vec::new();
    File::from(OwnedFd::from(pipe)).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
