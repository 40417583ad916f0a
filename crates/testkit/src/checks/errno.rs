//! Each system call fails once.

use nix::errno::Errno;

use crate::campaign::{CampaignReport, Disturbance, DisturbedCall, Verb, conclude, run_sample, usual_trace};
use crate::env::subject::Subject;

/// A system call, and the errors with which it may plausibly fail.
type Failing = (i64, &'static [Errno]);

const MEMORY: &[Errno] = &[Errno::ENOMEM];
const LOOK: &[Errno] = &[Errno::EIO, Errno::ENOMEM, Errno::EPERM];
const OPEN: &[Errno] = &[Errno::EIO, Errno::ENOMEM, Errno::EINTR, Errno::EPERM, Errno::EMFILE];
const READ: &[Errno] = &[Errno::EIO, Errno::EINTR];
const WRITE: &[Errno] = &[Errno::ENOSPC, Errno::EIO, Errno::EINTR, Errno::EROFS, Errno::EPERM];
const REMOVE: &[Errno] = &[Errno::EROFS, Errno::EIO, Errno::EBUSY, Errno::EPERM];
const SEND: &[Errno] = &[Errno::ENOBUFS, Errno::ENOMEM, Errno::EINTR, Errno::EAGAIN, Errno::EPERM];
const WAIT: &[Errno] = &[Errno::EINTR, Errno::ENOMEM];
const START: &[Errno] = &[Errno::EAGAIN, Errno::ENOMEM, Errno::EPERM];
const DESCRIPTOR: &[Errno] = &[Errno::EMFILE, Errno::ENOMEM];

/// The system calls that are made to fail. Others cannot fail, or fail only because of a mistake of the caller, or do their work
/// also when they fail, as close(2) does: a call that fails here is not made.
const FAILING: &[Failing] = &[
    (libc::SYS_bind, &[Errno::ENOMEM, Errno::EPERM, Errno::EBUSY]),
    (libc::SYS_clone, START),
    (libc::SYS_clone3, START),
    (libc::SYS_connect, &[Errno::ENOMEM, Errno::EPERM]),
    (libc::SYS_dup, DESCRIPTOR),
    (libc::SYS_execve, &[Errno::ENOMEM, Errno::EAGAIN, Errno::EIO, Errno::EPERM]),
    (libc::SYS_fcntl, DESCRIPTOR),
    (libc::SYS_fdatasync, WRITE),
    (libc::SYS_flock, &[Errno::EINTR, Errno::EAGAIN, Errno::ENOLCK]),
    (libc::SYS_fstat, LOOK),
    (libc::SYS_fstatfs, LOOK),
    (libc::SYS_fsync, WRITE),
    (libc::SYS_ftruncate, WRITE),
    (libc::SYS_getdents64, LOOK),
    (libc::SYS_getrandom, &[Errno::EINTR]),
    (libc::SYS_getsockname, &[Errno::ENOBUFS]),
    (libc::SYS_getsockopt, &[Errno::ENOBUFS, Errno::EPERM]),
    (libc::SYS_ioctl, &[Errno::EIO, Errno::EPERM]),
    (libc::SYS_linkat, WRITE),
    (libc::SYS_mkdirat, WRITE),
    (libc::SYS_mmap, MEMORY),
    (libc::SYS_mprotect, MEMORY),
    (libc::SYS_mremap, MEMORY),
    (libc::SYS_newfstatat, LOOK),
    (libc::SYS_openat, OPEN),
    (libc::SYS_pidfd_open, DESCRIPTOR),
    (libc::SYS_pipe2, DESCRIPTOR),
    (libc::SYS_ppoll, WAIT),
    (libc::SYS_pread64, READ),
    (libc::SYS_pwrite64, WRITE),
    (libc::SYS_read, READ),
    (libc::SYS_readlinkat, LOOK),
    (libc::SYS_recvfrom, SEND),
    (libc::SYS_recvmsg, SEND),
    (libc::SYS_renameat, WRITE),
    (libc::SYS_renameat2, WRITE),
    (libc::SYS_sendmsg, SEND),
    (libc::SYS_sendto, SEND),
    (libc::SYS_setns, &[Errno::ENOMEM, Errno::EPERM]),
    (libc::SYS_setsockopt, &[Errno::ENOMEM, Errno::EPERM, Errno::ENOBUFS]),
    (libc::SYS_socket, &[Errno::EMFILE, Errno::ENOBUFS, Errno::EPERM]),
    (libc::SYS_socketpair, DESCRIPTOR),
    (libc::SYS_statx, LOOK),
    (libc::SYS_unlinkat, REMOVE),
    (libc::SYS_utimensat, WRITE),
    (libc::SYS_wait4, &[Errno::EINTR]),
    (libc::SYS_waitid, &[Errno::EINTR]),
    (libc::SYS_write, WRITE),
    (libc::SYS_writev, WRITE),
];

/// System calls that only older processors have: musl and Go use them where glibc uses those above.
#[cfg(target_arch = "x86_64")]
const OLD: &[Failing] = &[
    (libc::SYS_access, LOOK),
    (libc::SYS_fork, START),
    (libc::SYS_lstat, LOOK),
    (libc::SYS_mkdir, WRITE),
    (libc::SYS_open, OPEN),
    (libc::SYS_poll, WAIT),
    (libc::SYS_readlink, LOOK),
    (libc::SYS_rename, WRITE),
    (libc::SYS_rmdir, REMOVE),
    (libc::SYS_stat, LOOK),
    (libc::SYS_unlink, REMOVE),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Failing] = &[];

/// Makes every system call of ADD, DEL and GC fail, one at a time, with each plausible error. ADD then succeeds and CHECK passes,
/// or ADD reports the cause and leaves nothing; DEL and GC succeed and leave nothing, or succeed when they are repeated.
///
/// Without `CNIKIT_CAMPAIGNS=whole` a random choice of at most `most` failures per verb is tried.
pub fn at_every_call(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    let mut reports = Vec::new();
    for verb in Verb::of(subject) {
        let gone = verb.without_netns();
        let (trace, infallible) = usual_trace(subject, verb, gone);
        let mut calls_to_disturb = Vec::new();
        for at in trace.calls().filter(|at| !infallible.contains(at)) {
            for errno in errnos(at.2) {
                calls_to_disturb.push(DisturbedCall { verb, at, disturbance: Disturbance::Errno(*errno), gone });
            }
        }
        let report = CampaignReport::new(format!("fault {} {verb}", subject.title), "failures", calls_to_disturb.len());
        reports.push(run_sample(report, subject, &calls_to_disturb, most, &trace).print());
    }
    conclude(reports)
}

/// The errors with which a system call is made to fail.
pub fn errnos(number: i32) -> &'static [Errno] {
    let row = FAILING.iter().chain(OLD).find(|(known, _)| *known == i64::from(number));
    row.map_or(&[], |(_, errnos)| errnos)
}
