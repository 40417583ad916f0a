//! The daemon reads packets of servers, and any host of a network can pretend to be one. Before it reads the first packet it gives
//! up what it does not need: capabilities, programs with other rights, and most system calls.

use std::time::Duration;

use caps::{CapSet, Capability, CapsHashSet};
use cnikit_netns::is_only_thread;
use cnikit_process::Deadline;
use nix::sys::prctl::set_no_new_privs;

/// What stays of the capabilities; the unit of systemd has the same.
const KEPT: [Capability; 5] = [
    Capability::CAP_SYS_ADMIN,        // setns(2)
    Capability::CAP_NET_ADMIN,        // addresses, routes, MTU
    Capability::CAP_NET_RAW,          // packet sockets
    Capability::CAP_NET_BIND_SERVICE, // ports 68 and 546
    Capability::CAP_SYS_PTRACE,       // /proc/PID/ns/net of containers with other capabilities than these
];

/// How long another thread may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// Waits until this thread is the only one: capabilities and calls are given up by one thread. The one that has waited for the lock
/// of the daemon before may be about to end.
pub(crate) fn await_other_threads() -> Result<(), String> {
    let deadline = Deadline::after(ENDING);
    loop {
        match is_only_thread() {
            Ok(true) => return Ok(()),
            Ok(false) if deadline.pause(Duration::from_millis(1)) => {}
            Ok(false) => return Err("another thread of the daemon does not end".to_owned()),
            Err(error) => return Err(format!("count the threads of the daemon: {error}")),
        }
    }
}

/// Gives up all that the daemon does not need, for this thread and those that it starts. A capability that the process never had is
/// not missed before a call needs it.
pub(crate) fn confine() -> Result<(), String> {
    drop_capabilities().map_err(|error| format!("give up capabilities: {error}"))?;
    // A filter of one who may not change it (seccomp(2)).
    set_no_new_privs().map_err(|errno| format!("give up new privileges: {errno}"))?;
    filter_calls()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
fn filter_calls() -> Result<(), String> {
    crate::syscall_filter::install()
}

/// seccompiler has no other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
#[expect(clippy::unnecessary_wraps, reason = "as where there is a filter")]
fn filter_calls() -> Result<(), String> {
    Ok(())
}

fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    let kept: CapsHashSet = KEPT.into_iter().collect();
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for capability in caps::read(None, CapSet::Bounding)?.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let own: CapsHashSet = caps::read(None, CapSet::Permitted)?.intersection(&kept).copied().collect();
    caps::set(None, CapSet::Effective, &own)?;
    caps::set(None, CapSet::Permitted, &own)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;

    use nix::errno::Errno;
    use nix::sys::signal::kill;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use nix::unistd::{AccessFlags, access, chroot, getpid};

    /// The error of `clone(2)` or `clone3(2)` with flags that the kernel itself refuses, with `EINVAL`.
    #[expect(unsafe_code, reason = "no library has the bare call")]
    fn refused(call: libc::c_long, flags: libc::c_int) -> Errno {
        // SAFETY: no memory is passed, and the caller's flags make no process and no thread.
        Errno::result(unsafe { libc::syscall(call, libc::c_long::from(flags), 0, 0, 0, 0) }).unwrap_err()
    }

    /// What is given up is given up by this thread alone.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "no program is started")]
    fn what_the_daemon_does_not_do_is_refused() {
        let confined = std::thread::spawn(|| {
            confine().unwrap();
            let open = |family| socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map(drop);
            assert_eq!(open(AddressFamily::Can), Err(Errno::EPERM));
            assert_eq!(open(AddressFamily::Vsock), Err(Errno::EPERM));
            assert_eq!(open(AddressFamily::Inet6), Ok(()));
            assert!(UnixStream::pair().is_err() && UdpSocket::bind("127.0.0.1:0").is_ok());
            // A server of TCP needs listen(2).
            assert!(TcpListener::bind("127.0.0.1:0").is_err());
            assert_eq!(chroot("/"), Err(Errno::EPERM));
            assert_eq!(kill(getpid(), None), Err(Errno::EPERM));
            assert_eq!(access("/", AccessFlags::R_OK), Ok(()));
            let spawned = std::process::Command::new("/bin/true").spawn();
            assert!(spawned.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)), "a process");
            let clone = |flags| refused(libc::SYS_clone, flags);
            // A thread without CLONE_SIGHAND, and signal handlers without CLONE_VM, are what the kernel does not make.
            let thread = libc::CLONE_THREAD | libc::CLONE_VM;
            assert_eq!(clone(thread), Errno::EINVAL, "by the kernel alone");
            for flags in [libc::CLONE_THREAD, libc::CLONE_SIGHAND] {
                assert_eq!(clone(flags), Errno::EPERM, "{flags:x}");
            }
            for namespace in [
                libc::CLONE_NEWCGROUP,
                libc::CLONE_NEWIPC,
                libc::CLONE_NEWNET,
                libc::CLONE_NEWNS,
                libc::CLONE_NEWPID,
                libc::CLONE_NEWUSER,
                libc::CLONE_NEWUTS,
            ] {
                assert_eq!(clone(thread | namespace), Errno::EPERM, "{namespace:x}");
            }
            assert_eq!(refused(libc::SYS_clone3, 0), Errno::ENOSYS);
            std::thread::spawn(|| assert_eq!(kill(getpid(), None), Err(Errno::EPERM))).join().unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = confined.join().unwrap();
        let mut kept = 0;
        for capability in KEPT {
            kept |= capability.bitmask();
        }
        for set in ["CapPrm:", "CapEff:"] {
            let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
            let held = u64::from_str_radix(line.trim(), 16).unwrap();
            assert_eq!(held & !kept, 0, "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    }
}
