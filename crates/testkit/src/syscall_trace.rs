//! Traces a program's system calls: each one waits for our decision before the kernel executes it.
//!
//! The program runs under a seccomp filter that sends a notification for every call (`seccomp_unotify(2)`, Linux 5.6). The plugin,
//! its threads and its children wait in each call until we continue it, make it fail with an error of our choice, or kill the
//! process. That costs some microseconds per call, needs no debug symbols, and works on every processor.
//!
//! The order of calls of threads and children is made deterministic, so that two runs make the same calls in the same order: a
//! thread that started another thread continues when that one has ended, and a process that waits for a child is held before the
//! waiting call until the child has ended. If that would take forever (because the child waits for its parent), it ends after a
//! timeout. A process that sleeps and then repeats its last calls is counted once, however often it repeats them; so is a write
//! that the kernel begins again. A program whose threads never end, as those of Go, is not held for them after the first timeout;
//! its calls have no order ([`SyscallTrace::is_ordered`]).

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

/// A system call before its execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Syscall {
    /// The index of the process: 0 is the program, 1 is its first child.
    pub process: usize,
    /// The process ID.
    pub pid: Pid,
    /// How many calls the process made before it.
    pub place: usize,
    /// The number of the system call.
    pub number: i32,
    /// The arguments.
    pub args: [u64; 6],
}

/// The decision about a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallVerdict {
    /// The kernel executes it.
    GoOn,
    /// It fails with this error and is not executed.
    Fail(Errno),
    /// The process gets this signal. After any signal except `SIGKILL` the call is executed.
    Signal(Signal),
}

/// All system calls of a run, one list per process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyscallTrace {
    processes: Vec<Vec<i32>>,
    has_lasting_threads: bool,
}

/// A limit of a resource (prlimit(2)).
pub type Limit = (Resource, u64);

/// If no call arrives for this time, the first held call is continued.
const TIMEOUT: Duration = Duration::from_millis(300);
/// The longest time of a run.
const LONGEST: Duration = Duration::from_mins(1);

/// While calls are held: the interval of the checks whether they can continue.
const TICK: Duration = Duration::from_micros(200);
/// While no calls are held: the interval of the checks of the time limit.
const PAUSE: Duration = Duration::from_secs(1);

/// The calls that may start a thread or process.
const STARTS: [i64; 2] = [libc::SYS_clone, libc::SYS_clone3];

/// The calls that only sleep.
const SLEEPS: [i64; 2] = [libc::SYS_clock_nanosleep, libc::SYS_nanosleep];

/// The call that the kernel begins again if it writes a setting of the network while another process has the lock for all links:
/// it does not wait, but has the processor execute the instruction once more, thousands of times a second
/// (`restart_syscall()` in net/ipv6/addrconf.c). A plain write has no position among its arguments: two that are alike may be two.
const BEGUN_AGAIN: i64 = libc::SYS_pwrite64;

/// The calls that may wait for another process.
const WAITS: [i64; 4] = [libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_pwait, libc::SYS_wait4];

/// The calls among these that only older processors have.
#[cfg(target_arch = "x86_64")]
const OLD_WAITS: [i64; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLD_WAITS: [i64; 0] = [];

impl SyscallTrace {
    /// Every system call, process by process.
    pub fn calls(&self) -> impl Iterator<Item = (usize, usize, i32)> {
        let mut all = Vec::new();
        for (process, calls) in self.processes.iter().enumerate() {
            for (place, number) in calls.iter().enumerate() {
                all.push((process, place, *number));
            }
        }
        all.into_iter()
    }

    /// The number of system calls.
    pub fn len(&self) -> usize {
        self.processes.iter().map(Vec::len).sum()
    }

    /// Whether there was no system call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The system call at an index.
    pub fn at(&self, process: usize, place: usize) -> Option<i32> {
        self.processes.get(process)?.get(place).copied()
    }

    /// Whether another run makes the same calls in the same order. It does not if a thread of the program never ends while another
    /// one works.
    pub fn is_ordered(&self) -> bool {
        !self.has_lasting_threads
    }

    /// How many calls with the same number the process makes before this one.
    pub fn occurrence(&self, process: usize, place: usize) -> usize {
        let calls = self.until(process, place).unwrap_or_default();
        let Some((number, before)) = calls.split_last() else { return 0 };
        before.iter().filter(|call| *call == number).count()
    }

    /// Whether both traces are the same up to and including this call.
    pub fn agrees_until(&self, other: &SyscallTrace, process: usize, place: usize) -> bool {
        let own_calls = self.until(process, place);
        own_calls.is_some() && own_calls == other.until(process, place)
    }

    /// The calls of a process up to and including this one; `None` if it made fewer.
    fn until(&self, process: usize, place: usize) -> Option<&[i32]> {
        self.processes.get(process)?.get(..=place)
    }
}

impl fmt::Display for SyscallTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.processes.iter().map(|calls| calls.len().to_string()).collect();
        f.write_str(&counts.join(" + "))
    }
}

/// Runs a program on the calling thread's host to its end, and calls `decide` before each system call.
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
    trace(launch::launch(program, &[], env, stdin)?, limits, decide)
}

/// As [`run`], with arguments and without input.
///
/// # Errors
/// As [`run`].
pub fn run_command(
    program: &Path,
    args: &[String],
    decide: impl FnMut(&Syscall) -> SyscallVerdict,
) -> io::Result<(CallOutput, SyscallTrace)> {
    trace(launch::launch(program, args, &[], &[])?, &[], decide)
}

fn trace(
    launched: launch::Launched,
    limits: &[Limit],
    decide: impl FnMut(&Syscall) -> SyscallVerdict,
) -> io::Result<(CallOutput, SyscallTrace)> {
    let mut watch = Tracer {
        listener: launched.listener,
        first: launched.pid,
        first_ends: launched.process,
        exit: None,
        limits,
        threads: Vec::new(),
        processes: Vec::new(),
        held: Vec::new(),
        has_lasting_threads: false,
        decide,
    };
    watch.serve()?;
    let ended = match watch.exit {
        Some(ended) => ended,
        None => waitpid(launched.pid, None)?,
    };
    let exit = match ended {
        WaitStatus::Exited(_, status) => status,
        WaitStatus::Signaled(_, signal, _) => -(signal as i32),
        other => return Err(io::Error::other(format!("{other:?}"))),
    };
    let output = CallOutput { exit, stdout: launch::drain(launched.stdout)?, stderr: launch::drain(launched.stderr)? };
    let processes = watch.processes.into_iter().map(|process| process.calls).collect();
    Ok((output, SyscallTrace { processes, has_lasting_threads: watch.has_lasting_threads }))
}

struct Tracer<'a, J> {
    listener: OwnedFd,
    first: Pid,
    /// The pidfd of the first process.
    first_ends: OwnedFd,
    /// How the first process has ended.
    exit: Option<WaitStatus>,
    limits: &'a [Limit],
    threads: Vec<Thread>,
    processes: Vec<Process>,
    held: Vec<libc::seccomp_notif>,
    /// Whether a thread was held until the timeout, because one that it started did not end.
    has_lasting_threads: bool,
    decide: J,
}

/// A traced thread.
struct Thread {
    tid: u32,
    process: usize,
    /// Whether its last call may have started a thread or process.
    started: bool,
    /// Its last call, where in the program it was, and its arguments.
    last: Option<(i32, u64, [u64; 6])>,
}

impl Thread {
    /// Whether this call is the last one, which the kernel begins again. It becomes the last one.
    fn is_begun_again(&mut self, data: &libc::seccomp_data) -> bool {
        let call = (data.nr, data.instruction_pointer, data.args);
        let same = self.last.replace(call) == Some(call);
        same && i64::from(data.nr) == BEGUN_AGAIN
    }
}

struct Process {
    pid: Pid,
    /// Whether it has executed the program, or is a child of it. Before execve(2) the first process is a copy of this one.
    counts: bool,
    calls: Vec<i32>,
    wait_loop: WaitLoop,
}

/// The position of a process in a loop that waits for something.
#[derive(Clone, Copy)]
enum WaitLoop {
    /// It is not in a loop.
    None,
    /// Its last call was a sleep.
    Slept,
    /// It repeats calls: the next repeated call would be the one with this index.
    Repeats(usize),
}

impl Process {
    /// Records a call and returns its index. `None` for a sleep, and for a repetition of calls before a sleep.
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
    /// Decides about calls until all traced processes have ended.
    fn serve(&mut self) -> io::Result<()> {
        let end = Deadline::after(LONGEST);
        let mut moved = Deadline::after(TIMEOUT);
        while let Some(asked) = self.wait(end)? {
            let before = self.held.len();
            let next = if asked { launch::receive(&self.listener)? } else { None };
            if let Some(notice) = next {
                self.answer_or_hold(notice)?;
            } else {
                // No call arrived: the processes that held calls wait for may have ended.
                for notice in std::mem::take(&mut self.held) {
                    self.answer_or_hold(notice)?;
                }
            }
            // A thread that only sleeps, again and again, does not bring the others on.
            let is_movement = next.is_some_and(|notice| !SLEEPS.contains(&notice.data.nr.into()));
            if is_movement || self.held.len() < before {
                moved = Deadline::after(TIMEOUT);
            } else if moved.passed() && !self.held.is_empty() {
                let longest = self.held.remove(0);
                let thread = self.thread(longest.pid);
                self.has_lasting_threads |= thread.is_some_and(|thread| self.waits_for_thread(thread));
                self.answer_notice(longest)?;
            }
        }
        Ok(())
    }

    /// Waits for a call. Returns whether there is one; `None` if all traced processes have ended.
    ///
    /// Until Linux 6.11 a process counts until it has been waited for.
    fn wait(&mut self, end: Deadline) -> io::Result<Option<bool>> {
        if end.passed() {
            return Err(io::Error::other(format!("it, or something that it left running, runs after {LONGEST:?}")));
        }
        let mut asked = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        if self.exit.is_none() {
            asked.push(PollFd::new(self.first_ends.as_fd(), PollFlags::POLLIN));
        }
        let longest = if self.held.is_empty() { PAUSE } else { TICK };
        match ppoll(&mut asked, Some(longest.into()), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = asked[0].revents().unwrap_or(PollFlags::empty());
        let has_ended = asked.get(1).is_some_and(|process| process.any().unwrap_or(false));
        if has_ended {
            self.exit = Some(waitpid(self.first, None)?);
        }
        Ok((!events.contains(PollFlags::POLLHUP)).then_some(events.contains(PollFlags::POLLIN)))
    }

    /// Decides about a call, or holds it until the processes it would wait for have ended.
    fn answer_or_hold(&mut self, notice: libc::seccomp_notif) -> io::Result<()> {
        match self.thread(notice.pid) {
            Some(thread) if self.has_to_wait(thread, &notice) => self.held.push(notice),
            Some(_) => self.answer_notice(notice)?,
            None => {} // the thread was killed meanwhile
        }
        Ok(())
    }

    /// The index of a thread, which is added if it is new. `None` if it has ended already.
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
        self.threads.push(Thread { tid, process, started: false, last: None });
        Some(self.threads.len() - 1)
    }

    fn has_to_wait(&self, thread: usize, notice: &libc::seccomp_notif) -> bool {
        if !self.has_lasting_threads && self.waits_for_thread(thread) {
            return true;
        }
        let process = self.threads[thread].process;
        let number = notice.data.nr.into();
        let waits = WAITS.contains(&number) || OLD_WAITS.contains(&number);
        waits && self.processes[process + 1..].iter().any(|child| is_alive(child.pid))
    }

    /// Whether a thread that this one started with its last call has not ended.
    fn waits_for_thread(&self, thread: usize) -> bool {
        let Thread { process, started, .. } = self.threads[thread];
        started && self.has_younger_thread(self.processes[process].pid, thread)
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
        let begun_again = self.threads[at].is_begun_again(&notice.data);
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
        let place = if begun_again { None } else { process.place(number) };
        let call = place.map(|place| Syscall { process: index, pid, place, number, args });
        let verdict = call.map_or(SyscallVerdict::GoOn, |call| (self.decide)(&call));
        self.carry_out(verdict, index, &notice)
    }

    fn carry_out(&mut self, verdict: SyscallVerdict, process: usize, notice: &libc::seccomp_notif) -> io::Result<()> {
        match verdict {
            SyscallVerdict::GoOn => launch::respond(&self.listener, notice, None),
            SyscallVerdict::Fail(errno) => launch::respond(&self.listener, notice, Some(errno as i32)),
            SyscallVerdict::Signal(signal) => {
                match kill(self.processes[process].pid, signal) {
                    Ok(()) | Err(Errno::ESRCH) => {} // it has ended meanwhile
                    Err(errno) => return Err(errno.into()),
                }
                if signal == Signal::SIGKILL {
                    let of_process = self.threads.iter().filter(|thread| thread.process == process);
                    let dead: Vec<u32> = of_process.map(|thread| thread.tid).collect();
                    self.held.retain(|held| !dead.contains(&held.pid));
                } else {
                    launch::respond(&self.listener, notice, None);
                }
            }
        }
        Ok(())
    }
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_write_twice_running_is_begun_again() {
        let data = |number: i64, offset| libc::seccomp_data {
            nr: number.try_into().unwrap(),
            arch: 0,
            instruction_pointer: 7,
            args: [3, 4, 1, offset, 0, 0],
        };
        let mut thread = Thread { tid: 1, process: 0, started: false, last: None };
        let mut again = |number, offset| thread.is_begun_again(&data(number, offset));
        assert!(!again(libc::SYS_pwrite64, 0) && again(libc::SYS_pwrite64, 0) && again(libc::SYS_pwrite64, 0));
        assert!(!again(libc::SYS_pwrite64, 1));
        // A program reads a file, or prints a line twice, with the same call.
        assert!(!again(libc::SYS_read, 0) && !again(libc::SYS_read, 0));
        assert!(!again(libc::SYS_write, 0) && !again(libc::SYS_write, 0));
        assert!(!again(libc::SYS_pwrite64, 1));
    }
}
