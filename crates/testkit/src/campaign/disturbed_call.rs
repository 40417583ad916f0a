//! Disturbed calls: which call is disturbed, where, and how.

use std::fmt;
use std::time::Duration;

use cnikit::Version;
use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::env::subject::Subject;
use crate::syscall_trace::{self, Limit};

/// The call that is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// ADD on a host with another attachment.
    Add,
    /// ADD on a host without earlier attachments.
    First,
    /// DEL with the result of the ADD, as runtimes send it first.
    Del,
    /// DEL without result and namespace, as runtimes send it after they lost their state. Reports call it "incomplete DEL".
    IncompleteDel,
    Gc,
}

/// The disturbance of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Disturbance {
    /// A signal to the process that makes the system call, after this delay. `SIGKILL` without delay prevents the call.
    Signal(Signal, Duration),
    /// The system call fails with this error.
    Errno(Errno),
    /// A resource limit, which may be too small.
    Limit(Limit),
}

/// A system call: index of the process, index of the call in it, and number of the system call.
pub(crate) type CallPosition = (usize, usize, i32);

/// A call of a plugin, and its disturbance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisturbedCall {
    pub(crate) verb: Verb,
    /// The system call that is disturbed.
    pub(crate) at: CallPosition,
    pub(crate) disturbance: Disturbance,
    /// Whether the namespace is gone when the next call is made.
    pub(crate) gone: bool,
}

impl DisturbedCall {
    /// The delayed signal comes at most this many system calls later. If the process makes fewer calls after the disturbed one, the
    /// signal comes before the disturbed call, because the process might end before the delay is over.
    pub(crate) const LAST: usize = 16;
}

impl Verb {
    const ALL: [Verb; 5] = [Verb::Add, Verb::First, Verb::Del, Verb::IncompleteDel, Verb::Gc];

    /// The verbs of the subject's version of the specification.
    pub(crate) fn of(subject: &Subject) -> impl Iterator<Item = Verb> {
        let has_gc = subject.speaks(Version::V1_1_0);
        Verb::ALL.into_iter().filter(move |verb| *verb != Verb::Gc || has_gc)
    }

    /// `CNI_COMMAND`.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Verb::Add | Verb::First => "ADD",
            Verb::Del | Verb::IncompleteDel => "DEL",
            Verb::Gc => "GC",
        }
    }

    /// Whether the verb gets no namespace and cannot clear the container from inside, so that the namespace has to be gone
    /// afterwards.
    pub(crate) fn without_netns(self) -> bool {
        matches!(self, Verb::IncompleteDel | Verb::Gc)
    }

    pub(crate) fn adds(self) -> bool {
        self.command() == "ADD"
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::First => "first ADD",
            Verb::IncompleteDel => "incomplete DEL",
            _ => self.command(),
        })
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disturbance::Signal(signal, Duration::ZERO) => write!(f, "{signal}"),
            Disturbance::Signal(signal, after) => write!(f, "{signal} after {after:?}"),
            Disturbance::Errno(errno) => write!(f, "{errno}"),
            Disturbance::Limit((resource, most)) => write!(f, "{resource:?} = {most}"),
        }
    }
}

impl fmt::Display for DisturbedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (process, place, number) = self.at;
        write!(f, "{}, {}", self.verb, self.disturbance)?;
        if !matches!(self.disturbance, Disturbance::Limit(_)) {
            write!(f, " at call {place} ({}) of process {process}", syscall_trace::name(number))?;
        }
        f.write_str(if self.gone { ", then the namespace gone" } else { "" })
    }
}
