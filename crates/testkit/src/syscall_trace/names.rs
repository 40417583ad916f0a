//! The names of system calls.

/// Makes pairs of a constant's value and its name.
macro_rules! named {
    ($($constant:ident)*) => { &[$((libc::$constant, stringify!($constant))),*] };
}

/// The system calls of a plugin and an IPAM plugin. Others are printed as numbers.
const NAMES: &[(i64, &str)] = named! {
    SYS_bind SYS_brk SYS_clock_nanosleep SYS_clone SYS_clone3 SYS_close SYS_connect SYS_dup SYS_dup3 SYS_execve SYS_exit
    SYS_exit_group SYS_faccessat SYS_fchmod SYS_fcntl SYS_fdatasync SYS_flock SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate
    SYS_futex SYS_getdents64 SYS_getpid SYS_getppid SYS_getrandom SYS_getsockname SYS_getsockopt SYS_gettid SYS_ioctl
    SYS_linkat SYS_lseek SYS_madvise SYS_mkdirat SYS_mmap SYS_mprotect SYS_mremap SYS_munmap SYS_newfstatat SYS_openat
    SYS_pidfd_open SYS_pipe2 SYS_ppoll SYS_prctl SYS_pread64 SYS_prlimit64 SYS_pwrite64 SYS_read SYS_readlinkat SYS_recvfrom
    SYS_recvmsg SYS_renameat SYS_renameat2 SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_sched_getaffinity SYS_sched_yield
    SYS_sendmsg SYS_sendto SYS_set_robust_list SYS_set_tid_address SYS_setns SYS_setpgid SYS_setsockopt SYS_sigaltstack
    SYS_socket SYS_socketpair SYS_statfs SYS_statx SYS_unlinkat SYS_unshare SYS_utimensat SYS_wait4 SYS_waitid SYS_write
    SYS_writev
};

/// The system calls that only older processors have.
#[cfg(target_arch = "x86_64")]
const OLD: &[(i64, &str)] = named! {
    SYS_access SYS_arch_prctl SYS_dup2 SYS_link SYS_mkdir SYS_open SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_rmdir
    SYS_select SYS_stat SYS_unlink
};
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[(i64, &str)] = &[];

/// The name of a system call, or its number.
pub fn name(number: i32) -> String {
    let known = NAMES.iter().chain(OLD).find(|(known, _)| *known == i64::from(number));
    known.map_or_else(|| number.to_string(), |(_, constant)| constant.trim_start_matches("SYS_").to_owned())
}
