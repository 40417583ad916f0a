//! The daemon reads packets of servers, and any host of a network can pretend to be one. Before it reads the first packet it gives
//! up what it does not need: capabilities, programs with other rights, and most system calls.

use std::collections::BTreeMap;

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// What stays of the capabilities; the unit of systemd has the same.
const KEPT: [Capability; 5] = [
    Capability::CAP_SYS_ADMIN,        // setns(2)
    Capability::CAP_NET_ADMIN,        // addresses, routes, MTU
    Capability::CAP_NET_RAW,          // packet sockets
    Capability::CAP_NET_BIND_SERVICE, // ports 68 and 546
    Capability::CAP_SYS_PTRACE,       // /proc/PID/ns/net of containers with other capabilities than these
];

/// The calls that need no condition.
const CALLS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Files: records, namespaces, /proc.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Time, signals, the process itself.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Those that only older architectures have, beside the newer ones above.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_access,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// The families of sockets that are opened after the start. A namespace's cookie is read from one of `AF_UNIX`.
const FAMILIES: [i32; 5] = [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_INET, libc::AF_INET6];
/// `FIONBIO` and `NS_GET_NSTYPE` of `ioctl(2)`.
const REQUESTS: [u64; 2] = [0x5421, 0xb703];

/// Gives up all that the daemon does not need, for this thread and those that it starts. A capability that the process never had is
/// not missed before a call needs it.
pub(crate) fn confine() -> Result<(), String> {
    drop_capabilities().map_err(|error| format!("give up capabilities: {error}"))?;
    // A filter of one who may not change it (seccomp(2)).
    set_no_new_privs().map_err(|errno| format!("give up new privileges: {errno}"))?;
    let filter = filter().map_err(|error| format!("make the filter of system calls: {error}"))?;
    apply_filter(&filter).map_err(|error| format!("install the filter of system calls: {error}"))
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

/// Refuses every other call with `EPERM`: the daemon reports that and goes on, and no lease is lost.
fn filter() -> Result<BpfProgram, Box<dyn std::error::Error>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in CALLS.iter().chain(OLDER) {
        rules.insert(*call, Vec::new());
    }
    rules.insert(libc::SYS_socket, any_of(0, FAMILIES.map(u64::try_from))?);
    rules.insert(libc::SYS_ioctl, any_of(1, REQUESTS.map(Ok))?);
    rules.insert(libc::SYS_setns, any_of(1, [u64::try_from(libc::CLONE_NEWNET)])?);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let executable = u64::try_from(libc::PROT_EXEC)?;
        let is_data = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(executable), 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![is_data])?]);
    }
    let refused = SeccompAction::Errno(u32::try_from(libc::EPERM)?);
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

/// The argument with this number has one of the values.
fn any_of<const N: usize>(
    argument: u8,
    values: [Result<u64, std::num::TryFromIntError>; N],
) -> Result<Vec<SeccompRule>, Box<dyn std::error::Error>> {
    let mut rules = Vec::new();
    for value in values {
        let is_it = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value?)?;
        rules.push(SeccompRule::new(vec![is_it])?);
    }
    Ok(rules)
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

    /// What is given up is given up by this thread alone.
    #[test]
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
            assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "a thread or a process");
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
