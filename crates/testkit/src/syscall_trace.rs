//! A program's system calls, one by one: each asks us before the kernel makes it.
//!
//! The program runs under a seccomp filter whose every answer is "ask" (`seccomp_unotify(2)`, Linux 5.6): plugin, threads and
//! whatever it starts wait in front of each call until we let it go on, let it fail with an error of our choice, or kill who
//! asks. That costs some microseconds a call, needs no symbols and knows no processor.
//!
//! What is left to chance in a program with threads and children is taken away, so that two runs make the same calls in the
//! same order: whoever started a thread goes on when that has ended, and who waits for a child waits in front of the call
//! that waits. Where that would be for ever (a child that waits for its parent), it ends after its timeout. And who sleeps
//! and then asks again what he asked before is counted once, however often he has to ask.

mod launch;
mod names;

pub use names::name;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use cnikit_process::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::resource::Resource;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::env::subject::CallOutput;

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// Of which process: 0 is the program, 1 what it starts first.
    pub process: usize,
    /// Its number, by which `/proc` knows it.
    pub pid: Pid,
    /// How many calls that process made before it.
    pub place: usize,
    /// The kernel's number for it.
    pub number: i32,
    /// What it is given.
    pub args: [u64; 6],
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallVerdict {
    /// It is made.
    GoOn,
    /// It is not made, and fails with this.
    Fail(Errno),
    /// The process that asks gets this signal; after any but `SIGKILL` the call goes on.
    Signal(Signal),
}

/// All calls of a run, a list a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyscallTrace(Vec<Vec<i32>>);

/// What a program may use at most.
pub type Limit = (Resource, u64);

/// How long nobody moves before somebody who waits for another's end may go on; and then how long a run may last.
const TIMEOUT: Duration = Duration::from_millis(300);
const LONGEST: Duration = Duration::from_mins(1);

/// How long nobody asks before it is looked whether somebody has ended for whom another is held.
const TICK: Duration = Duration::from_micros(200);
/// How long nobody asks before it is looked at the clock.
const PAUSE: Duration = Duration::from_secs(1);

/// The calls after which there may be one thread more.
const STARTS: [i64; 2] = [libc::SYS_clone, libc::SYS_clone3];

/// The calls that only wait.
const SLEEPS: [i64; 2] = [libc::SYS_clock_nanosleep, libc::SYS_nanosleep];

/// The calls that may wait for another process.
const WAITS: [i64; 4] = [libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_pwait, libc::SYS_wait4];

/// Those that only older processors have.
#[cfg(target_arch = "x86_64")]
const OLD_WAITS: [i64; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLD_WAITS: [i64; 0] = [];

impl SyscallTrace {
    /// Every system call, process by process.
    pub fn calls(&self) -> impl Iterator<Item = (usize, usize, i32)> {
        let numbered = |(process, calls): (usize, &Vec<i32>)| {
            calls.iter().copied().enumerate().map(move |(place, number)| (process, place, number)).collect::<Vec<_>>()
        };
        self.0.iter().enumerate().flat_map(numbered)
    }

    /// The number of system calls.
    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Whether there was no system call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The system call at an index.
    pub fn at(&self, process: usize, place: usize) -> Option<i32> {
        self.0.get(process)?.get(place).copied()
    }

    /// Was it the same up to here?
    pub fn agrees_until(&self, other: &SyscallTrace, process: usize, place: usize) -> bool {
        let until =
            |trace: &SyscallTrace| trace.0.get(process).and_then(|calls| calls.get(..=place)).map(<[i32]>::to_vec);
        until(self).is_some_and(|calls| Some(calls) == until(other))
    }
}

impl fmt::Display for SyscallTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.0.iter().map(|calls| calls.len().to_string()).collect();
        f.write_str(&counts.join(" + "))
    }
}

/// Runs a program on the calling thread's host to its end, and asks `decide` about each system call.
///
/// # Errors
/// The program cannot be started, the seccomp listener fails, or it cannot be waited for.
pub fn run(
    program: &Path,
    env: &[(String, String)],
    stdin: &[u8],
    limits: &[Limit],
    decide: impl FnMut(&Syscall) -> SyscallVerdict,
) -> io::Result<(CallOutput, SyscallTrace)> {
    let launched = launch::launch(program, env, stdin)?;
    let mut watch = Tracer {
        listener: launched.listener,
        first: launched.pid,
        limits,
        threads: Vec::new(),
        processes: Vec::new(),
        held: Vec::new(),
        decide,
    };
    watch.serve()?;
    let exit = match waitpid(launched.pid, None)? {
        WaitStatus::Exited(_, status) => status,
        WaitStatus::Signaled(_, signal, _) => -(signal as i32),
        other => return Err(io::Error::other(format!("{other:?}"))),
    };
    let said = CallOutput { exit, stdout: launch::drain(launched.stdout)?, stderr: launch::drain(launched.stderr)? };
    Ok((said, SyscallTrace(watch.processes.into_iter().map(|process| process.calls).collect())))
}

struct Tracer<'a, J> {
    listener: OwnedFd,
    first: Pid,
    limits: &'a [Limit],
    threads: Vec<Thread>,
    processes: Vec<Process>,
    held: Vec<libc::seccomp_notif>,
    decide: J,
}

/// Somebody who asks.
struct Thread {
    tid: u32,
    process: usize,
    /// Its last call may have started somebody.
    started: bool,
}

struct Process {
    pid: Pid,
    /// It is the program, or a copy of it; not still a copy of us.
    counts: bool,
    calls: Vec<i32>,
    wait_loop: WaitLoop,
}

/// Where in a loop that waits for something a process is.
#[derive(Clone, Copy)]
enum WaitLoop {
    /// In none.
    None,
    /// It has slept.
    Slept,
    /// It repeats calls; the next one, if it does, is the one at this place.
    Repeats(usize),
}

impl Process {
    /// The place of its next call; `None` for a sleep, or a repetition of what came before a sleep.
    fn place(&mut self, number: i32) -> Option<usize> {
        if SLEEPS.contains(&number.into()) {
            self.wait_loop = WaitLoop::Slept;
            return None;
        }
        let repeated = match self.wait_loop {
            WaitLoop::None => None,
            WaitLoop::Slept => self.calls.iter().rposition(|call| *call == number),
            WaitLoop::Repeats(place) => Some(place).filter(|place| self.calls[*place] == number),
        };
        self.wait_loop = match repeated {
            Some(place) if place + 1 < self.calls.len() => WaitLoop::Repeats(place + 1),
            _ => WaitLoop::None,
        };
        if repeated.is_some() {
            return None;
        }
        self.calls.push(number);
        Some(self.calls.len() - 1)
    }
}

impl<J: FnMut(&Syscall) -> SyscallVerdict> Tracer<'_, J> {
    /// Until nobody is left who could ask.
    fn serve(&mut self) -> io::Result<()> {
        let end = Deadline::after(LONGEST);
        let mut moved = Deadline::after(TIMEOUT);
        while let Some(asked) = self.wait(end)? {
            let before = self.held.len();
            let next = if asked { launch::receive(&self.listener)? } else { None };
            if let Some(notice) = next {
                self.answer_or_hold(notice)?;
            } else {
                // Whoever is waited for asks no more, for now: maybe it has ended.
                for notice in std::mem::take(&mut self.held) {
                    self.answer_or_hold(notice)?;
                }
            }
            if next.is_some() || self.held.len() < before {
                moved = Deadline::after(TIMEOUT);
            } else if moved.passed() && !self.held.is_empty() {
                let longest = self.held.remove(0);
                self.answer_notice(longest)?;
            }
        }
        Ok(())
    }

    /// Whether somebody asks; `None` when nobody ever will.
    fn wait(&self, end: Deadline) -> io::Result<Option<bool>> {
        if end.passed() {
            return Err(io::Error::other(format!("it, or something that it left running, runs after {LONGEST:?}")));
        }
        let mut asked = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        let longest = if self.held.is_empty() { PAUSE } else { TICK };
        match ppoll(&mut asked, Some(longest.into()), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = asked[0].revents().unwrap_or(PollFlags::empty());
        Ok((!events.contains(PollFlags::POLLHUP)).then_some(events.contains(PollFlags::POLLIN)))
    }

    /// Decides about a call, or holds it until those have ended for whom it would wait.
    fn answer_or_hold(&mut self, notice: libc::seccomp_notif) -> io::Result<()> {
        match self.thread(notice.pid) {
            Some(thread) if self.has_to_wait(thread, &notice) => self.held.push(notice),
            Some(_) => self.answer_notice(notice)?,
            None => {} // killed meanwhile
        }
        Ok(())
    }

    /// Which thread this is; `None` if it is gone before it was known.
    fn thread(&mut self, tid: u32) -> Option<usize> {
        if let Some(known) = self.threads.iter().position(|thread| thread.tid == tid) {
            return Some(known);
        }
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        let pid = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        let pid = Pid::from_raw(pid?);
        let known = self.processes.iter().position(|process| process.pid == pid);
        let process = known.unwrap_or(self.processes.len());
        if known.is_none() {
            self.processes.push(Process {
                pid,
                counts: pid != self.first,
                calls: Vec::new(),
                wait_loop: WaitLoop::None,
            });
        }
        self.threads.push(Thread { tid, process, started: false });
        Some(self.threads.len() - 1)
    }

    fn has_to_wait(&self, thread: usize, notice: &libc::seccomp_notif) -> bool {
        let Thread { process, started, .. } = self.threads[thread];
        if started && self.has_younger_thread(self.processes[process].pid, thread) {
            return true;
        }
        let number = notice.data.nr.into();
        let waits = WAITS.contains(&number) || OLD_WAITS.contains(&number);
        waits && self.processes[process + 1..].iter().any(|child| is_alive(child.pid))
    }

    fn has_younger_thread(&self, pid: Pid, than: usize) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        tids.any(|tid: u32| !self.threads[..=than].iter().any(|older| older.tid == tid))
    }

    fn answer_notice(&mut self, notice: libc::seccomp_notif) -> io::Result<()> {
        let Some(at) = self.thread(notice.pid) else { return Ok(()) };
        let number = notice.data.nr;
        self.threads[at].started = STARTS.contains(&number.into());
        let index = self.threads[at].process;
        let process = &mut self.processes[index];
        if !process.counts {
            process.counts = i64::from(number) == libc::SYS_execve;
            launch::respond(&self.listener, &notice, None);
            return Ok(());
        }
        if index == 0 && process.calls.is_empty() {
            self.limits.iter().try_for_each(|(resource, most)| launch::limit(process.pid, *resource, *most))?;
        }
        let args = notice.data.args;
        let pid = process.pid;
        let call = process.place(number).map(|place| Syscall { process: index, pid, place, number, args });
        let verdict = call.map_or(SyscallVerdict::GoOn, |call| (self.decide)(&call));
        self.carry_out(verdict, index, &notice)
    }

    fn carry_out(&mut self, verdict: SyscallVerdict, process: usize, notice: &libc::seccomp_notif) -> io::Result<()> {
        match verdict {
            SyscallVerdict::GoOn => launch::respond(&self.listener, notice, None),
            SyscallVerdict::Fail(errno) => launch::respond(&self.listener, notice, Some(errno as i32)),
            SyscallVerdict::Signal(signal) => {
                match kill(self.processes[process].pid, signal) {
                    Ok(()) | Err(Errno::ESRCH) => {} // somebody else ended it meanwhile
                    Err(errno) => return Err(errno.into()),
                }
                if signal == Signal::SIGKILL {
                    let threads = &self.threads;
                    let asks = |held: &libc::seccomp_notif| {
                        threads.iter().any(|thread| thread.tid == held.pid && thread.process == process)
                    };
                    self.held.retain(|held| !asks(held)); // the dead ask no more
                } else {
                    launch::respond(&self.listener, notice, None);
                }
            }
        }
        Ok(())
    }
}

/// Is it there, and not merely waiting to be reaped?
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
