//! The runtime: the paths of plugins and cached results, the timeouts of calls, and their locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cnikit_invoke::{EXEC_TIMEOUT, absolute_path};
use cnikit_process::CancellationToken;

use crate::cache::lock::{Locks, Waiting};
use crate::runtime::limit::{Slot, Slots};
use crate::{Attachment, Cache, Error, Executor, ProgramExecutor};

/// Runs the plugins of networks.
///
/// Any number of threads and processes may run them at the same time: calls for one container run one after another, and GC of a
/// network runs alone. Clones are cheap, and share the limit of [`Runtime::at_most`].
#[derive(Clone, Debug)]
pub struct Runtime {
    /// `CNI_PATH`: the directories of plugins. Relative ones are those of the working directory when a verb is called; plugins get
    /// absolute ones.
    pub path: String,
    /// The cache of results.
    pub cache: Cache,
    /// How long one plugin may take; four minutes by default. Then it is terminated with all the processes that it started.
    pub timeout: Duration,
    /// How long to wait for other calls that hold the container or the network; four minutes by default.
    pub waiting: Duration,
    /// The trace that the plugins continue; with `None` they get the variables of our own environment.
    pub trace: Option<TraceContext>,
    /// How plugins are called.
    pub executor: Arc<dyn Executor>,
    /// With this token the caller cancels a call: a running plugin is terminated, and no other is started.
    pub cancel: Option<CancellationToken>,
    /// How many plugin lists may run at the same time; eight per processor by default.
    pub slots: Slots,
}

/// The position of a call in a distributed trace (W3C Trace Context).
#[doc(alias = "TRACEPARENT")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `TRACEPARENT`.
    pub parent: String,
    /// `TRACESTATE`; an empty one is set too, so that plugins do not get the one of another trace.
    pub state: String,
    /// `BAGGAGE`, likewise.
    pub baggage: String,
}

/// The warnings of a call that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    /// Damaged files and locks that could not be taken, one sentence each.
    pub warnings: Vec<String>,
}

impl TraceContext {
    pub(crate) fn variables(&self) -> [(String, String); 3] {
        let variables = [("TRACEPARENT", &self.parent), ("TRACESTATE", &self.state), ("BAGGAGE", &self.baggage)];
        variables.map(|(name, value)| (name.to_owned(), value.clone()))
    }
}

impl Runtime {
    /// A runtime with programs as plugins, and with the default timeouts and limit.
    pub fn new(path: impl Into<String>, cache: Cache) -> Self {
        Self {
            path: path.into(),
            cache,
            timeout: EXEC_TIMEOUT,
            waiting: EXEC_TIMEOUT,
            trace: None,
            executor: Arc::new(ProgramExecutor),
            cancel: None,
            slots: Slots::of_machine(),
        }
    }

    /// `CNI_PATH` with absolute directories.
    pub(crate) fn plugin_path(&self) -> String {
        absolute_path(&self.path)
    }

    /// Sets how many plugin lists may run at the same time in this process, in all clones together; at least one.
    #[must_use]
    pub fn at_most(self, chains: usize) -> Self {
        Self { slots: Slots::new(chains), ..self }
    }

    /// Sets the token with which the caller cancels calls.
    #[must_use]
    pub fn cancelled_by(self, cancel: &CancellationToken) -> Self {
        Self { cancel: Some(cancel.clone()), ..self }
    }

    /// Waits until no other call holds the container, and no GC runs in one of the networks.
    pub(crate) fn lock(&self, networks: &[&str], attachment: &Attachment) -> Result<Locks, Error> {
        self.wait(|waiting| Locks::of_attachment(&self.cache, networks, attachment, waiting))
    }

    /// As [`Runtime::lock`], for CHECK and DEL: if a lock file cannot be created (the file system is read-only or full, the name is
    /// invalid), that is a warning, because a DEL must not leave anything behind for that reason.
    pub(crate) fn lock_if_possible(
        &self,
        networks: &[&str],
        attachment: &Attachment,
        report: &mut Warnings,
    ) -> Result<Locks, Error> {
        match self.lock(networks, attachment) {
            Err(Error::Cache(why)) => {
                report.warnings.push(format!("done without a lock: {why}"));
                Ok(Locks::default())
            }
            locked => locked,
        }
    }

    /// Runs `work` with this runtime's limit on waiting. It is not run after a cancellation, and a cancellation ends its wait.
    pub(crate) fn wait<T>(&self, work: impl FnOnce(Waiting<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let is_cancelled = || self.cancel.as_ref().is_some_and(CancellationToken::is_cancelled);
        if is_cancelled() {
            return Err(Error::Cancelled);
        }
        let until = Instant::now() + self.waiting;
        match work(Waiting { until, is_cancelled: &is_cancelled }) {
            Err(Error::Busy(_)) if is_cancelled() => Err(Error::Cancelled),
            done => done,
        }
    }

    /// Waits for the permission to run one plugin list.
    pub(crate) fn slot(&self) -> Result<Slot, Error> {
        self.wait(|waiting| self.slots.take(waiting))
    }
}
