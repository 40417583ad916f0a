//! What is done to which call.

use std::fmt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::syscall_trace::{self, Limit};

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// On a host where an attachment runs.
    Add,
    /// On a host where there never was one.
    First,
    /// With the result of the ADD, as runtimes send it first.
    Del,
    /// With no result and no namespace, as runtimes send it when all is lost.
    IncompleteDel,
    Gc,
}

/// What is done to a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Disturbance {
    /// A signal to the process that makes the system call, so long after it was asked for. `SIGKILL` prevents it.
    Signal(Signal, Duration),
    /// The system call fails.
    Errno(Errno),
    /// Less than is needed, maybe.
    Limit(Limit),
}

/// A system call: process, place and number.
pub(crate) type CallPosition = (usize, usize, i32);

/// One disturbed call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisturbedCall {
    pub(crate) verb: Verb,
    /// At which system call.
    pub(crate) at: CallPosition,
    pub(crate) disturbance: Disturbance,
    /// The namespace is gone by the time of the next call.
    pub(crate) gone: bool,
}

impl DisturbedCall {
    /// So many calls before its end a process may have ended some time after one: there a signal comes before the call. And
    /// so many calls later at most it comes everywhere.
    pub(crate) const LAST: usize = 16;
}

impl Verb {
    pub(crate) const ALL: [Verb; 5] = [Verb::Add, Verb::First, Verb::Del, Verb::IncompleteDel, Verb::Gc];

    /// `CNI_COMMAND`.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Verb::Add | Verb::First => "ADD",
            Verb::Del | Verb::IncompleteDel => "DEL",
            Verb::Gc => "GC",
        }
    }

    /// The container is one whose namespace is gone by the time of the next call, for it is not cleared from inside.
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
            Verb::IncompleteDel => "poor DEL",
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
