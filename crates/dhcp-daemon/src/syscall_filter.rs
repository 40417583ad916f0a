//! The filter of system calls. Every other call is refused with `EPERM`: the daemon reports that and goes on, and no lease is lost.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

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
    #[cfg(not(target_arch = "riscv64"))] // it has the newer one alone
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
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
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

/// The flags of `clone(2)` that decide what is made.
const CLONE_FLAGS: i32 = libc::CLONE_THREAD
    | libc::CLONE_VM
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;
/// Those of a thread in the namespaces of this one.
const CLONE_THREAD: i32 = libc::CLONE_THREAD | libc::CLONE_VM;

/// Refuses every other call from now on, for this thread and those that it starts.
pub(crate) fn install() -> Result<(), String> {
    for filter in [without_clone3(), filter()] {
        let filter = filter.map_err(|error| format!("make the filter of system calls: {error}"))?;
        apply_filter(&filter).map_err(|error| format!("install the filter of system calls: {error}"))?;
    }
    Ok(())
}

/// Has `clone3(2)` fail as on an old kernel. A filter does not see its flags; a C library then calls `clone(2)`.
fn without_clone3() -> Result<BpfProgram, Box<dyn std::error::Error>> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(u32::try_from(libc::ENOSYS)?);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, unknown, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

fn filter() -> Result<BpfProgram, Box<dyn std::error::Error>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in CALLS.iter().chain(OLDER) {
        rules.insert(*call, Vec::new());
    }
    rules.insert(libc::SYS_clone3, Vec::new()); // the other filter decides
    let made = SeccompCmpOp::MaskedEq(u64::try_from(CLONE_FLAGS)?);
    let is_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, made, u64::try_from(CLONE_THREAD)?)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
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
