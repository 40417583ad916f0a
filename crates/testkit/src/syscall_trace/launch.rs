//! Start a program whose every system call asks us first.
//!
//! `process` starts programs that run by themselves; this one's first call, its execve(2), already waits for our answer, so
//! who starts it cannot wait for it. That takes a fork of its own, and the calls below that no safe wrapper makes.
#![expect(unsafe_code, reason = "code between fork and exec, and four system calls without a wrapper")]

use std::ffi::{CString, c_char};
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

/// What [`launch`] started.
pub(super) struct Launched {
    pub(super) pid: Pid,
    /// Where the calls of the program, and of all that it starts, ask.
    pub(super) listener: OwnedFd,
    pub(super) stdout: PipeReader,
    pub(super) stderr: PipeReader,
}

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// The exit status of a child that came to no program.
const NOT_STARTED: i32 = 127;

/// Starts a program on the calling thread's host with these variables over our own, and this on stdin, which has to fit in
/// a pipe. It is killed with the calling thread.
pub(super) fn launch(program: &Path, env: &[(String, String)], stdin: &[u8]) -> io::Result<Launched> {
    let image = Image::new(program, env)?;
    let [(input, mut feed), (stdout, output), (stderr, errors), (mut number, tell)] =
        [pipe()?, pipe()?, pipe()?, pipe()?];
    feed.write_all(stdin)?;
    drop(feed);
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
    // SAFETY: until it becomes the program, the child makes system calls and allocates nothing.
    let pid = match unsafe { fork() }? {
        ForkResult::Child => image.exec(streams, &tell),
        ForkResult::Parent { child } => child,
    };
    drop((input, output, errors, tell));
    let mut told = [0; 4];
    number.read_exact(&mut told)?;
    let listener = fetch_listener(pid, RawFd::from_ne_bytes(told))?;
    Ok(Launched { pid, listener, stdout, stderr })
}

/// What exec takes, made ready before the fork.
struct Image {
    path: CString,
    argv: [*const c_char; 2],
    envp: Vec<*const c_char>,
    /// What the pointers point to.
    _env: Vec<CString>,
}

impl Image {
    fn new(program: &Path, env: &[(String, String)]) -> io::Result<Image> {
        let path = CString::new(program.as_os_str().to_owned().into_vec())?;
        let given = |key: &std::ffi::OsStr| env.iter().any(|(name, _)| key == name.as_str());
        let inherited = std::env::vars_os().filter(|(key, _)| !given(key));
        let ours = env.iter().map(|(key, value)| (key.into(), value.into()));
        let pairs = inherited.chain(ours).map(|(mut pair, value): (std::ffi::OsString, std::ffi::OsString)| {
            pair.push("=");
            pair.push(value);
            Ok(CString::new(pair.into_vec())?)
        });
        let env = pairs.collect::<io::Result<Vec<CString>>>()?;
        let envp = env.iter().map(|pair| pair.as_ptr()).chain([ptr::null()]).collect();
        Ok(Image { argv: [path.as_ptr(), ptr::null()], path, envp, _env: env })
    }

    /// In the child: its streams, the filter, the program.
    fn exec(&self, streams: [BorrowedFd<'_>; 3], tell: &PipeWriter) -> ! {
        for (target, stream) in (0..).zip(streams) {
            // SAFETY: three numbers at most; none of our pipes has a number below 3, for a test has its three streams open.
            unsafe { libc::dup2(stream.as_raw_fd(), target) };
        }
        // SAFETY: no handler is set.
        let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
        let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
        // SAFETY: a number. Without chance in the addresses the allocator makes the same calls each time.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        let filter = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF }; // "return that"
        let program = libc::sock_fprog { len: 1, filter: ptr::from_ref(&filter).cast_mut() };
        // SAFETY: the listener gets the lowest free number, which we ask for, free again and tell while we still can: once
        // the filter is there, every call waits for who knows it. The filter lives on our stack; the arrays end with null.
        unsafe {
            let number = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3);
            libc::close(number);
            libc::write(tell.as_raw_fd(), ptr::from_ref(&number).cast(), 4);
            let filter = |flags: libc::c_ulong| {
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
            };
            // A signal that has a handler, such as a shell's for its children, would end the call that waits for us.
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            let unmoved = flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
            if filter(unmoved) >= 0 || filter(flags) >= 0 {
                libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
            }
            libc::_exit(NOT_STARTED)
        }
    }
}

/// Gets the listener out of the child, which has it in a moment or has ended without.
fn fetch_listener(pid: Pid, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers; a descriptor that is returned is nobody else's.
    let owned = |fd: libc::c_long| {
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0);
        fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).ok_or_else(io::Error::last_os_error)
    };
    // SAFETY: as above.
    let child = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    loop {
        // SAFETY: as above.
        match owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, child.as_raw_fd(), number, 0) }) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => std::thread::yield_now(),
            fetched => return fetched.inspect(wake_quickly),
        }
        if waitpid(pid, Some(WaitPidFlag::WNOHANG)) != Ok(WaitStatus::StillAlive) {
            return Err(io::Error::other("the kernel gives a test no listener for system calls (seccomp(2))"));
        }
    }
}

/// Who asks and who answers take turns: on one processor that takes half the time. Kernels before 6.6 do not know this, and
/// are as right without.
fn wake_quickly(listener: &OwnedFd) {
    // SAFETY: the listener is open, and this request takes a number.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// The next call that asks; `None` if whoever asked is gone by now.
pub(super) fn receive(listener: &OwnedFd) -> io::Result<Option<libc::seccomp_notif>> {
    // SAFETY: a structure of integers, which the kernel wants to find zeroed.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the listener is open, and this request fills such a structure.
    let received = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) };
    match io::Error::last_os_error() {
        _ if received == 0 => Ok(Some(notice)),
        error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        error => Err(error),
    }
}

/// Lets a call go on, or fail with this number. Whoever asked may be gone by now: that is no error.
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

/// What is in a pipe that nobody writes to any more.
pub(super) fn drain(pipe: PipeReader) -> io::Result<String> {
    let mut text = Vec::new();
    File::from(OwnedFd::from(pipe)).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
