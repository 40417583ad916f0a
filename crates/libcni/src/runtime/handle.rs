//! The runtime: where plugins and cached results are, how long to wait, and what a call holds while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cnikit_invoke::{TIMEOUT, absolute_path};
use cnikit_process::CancellationToken;

use crate::cache::lock::{Locks, Waiting};
use crate::runtime::limit::{Slot, Slots};
use crate::{Attachment, Cache, Error, Executor, ProgramExecutor};

/// Carries out what a caller wants of a network.
///
/// Any number of threads and processes may do so at once: who is at work on one container waits for the others there, and
/// GC of a network has it for itself. Clones are cheap, and share the bound of [`Runtime::at_most`].
#[derive(Clone, Debug)]
pub struct Runtime {
    /// `CNI_PATH`: where plugins are found. Relative directories are those of the working directory when a verb is called: plugins
    /// are given absolute ones.
    pub path: String,
    /// Where results are kept.
    pub cache: Cache,
    /// How long one plugin may take; four minutes if nobody says otherwise. Then it is ended with all that it started.
    pub patience: Duration,
    /// How long to wait for others who are at work on the container or the network; four minutes too.
    pub waiting: Duration,
    /// The trace that the plugins go on with; `None` leaves them what our own environment says.
    pub trace: Option<TraceContext>,
    /// How plugins are asked.
    pub executor: Arc<dyn Executor>,
    /// The caller's word that it wants no more: a plugin that runs is ended, no other is started.
    pub cancel: Option<CancellationToken>,
    /// How many chains may run at once; by default eight for each processor.
    pub slots: Slots,
}

/// Where a call stands in a distributed trace (W3C Trace Context).
#[doc(alias = "TRACEPARENT")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `TRACEPARENT`.
    pub parent: String,
    /// `TRACESTATE`; set empty if it is, so that no other trace's shines through.
    pub state: String,
    /// `BAGGAGE`, likewise.
    pub baggage: String,
}

/// What went well, and what somebody should look at all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    /// Damaged files, locks that could not be taken, each in a sentence.
    pub warnings: Vec<String>,
}

impl TraceContext {
    pub(crate) fn variables(&self) -> [(String, String); 3] {
        let named = [("TRACEPARENT", &self.parent), ("TRACESTATE", &self.state), ("BAGGAGE", &self.baggage)];
        named.map(|(name, value)| (name.to_owned(), value.clone()))
    }
}

impl Runtime {
    /// With programs as plugins, the usual patience, and as many chains at once as suit this machine.
    pub fn new(path: impl Into<String>, cache: Cache) -> Self {
        Self {
            path: path.into(),
            cache,
            patience: TIMEOUT,
            waiting: TIMEOUT,
            trace: None,
            executor: Arc::new(ProgramExecutor),
            cancel: None,
            slots: Slots::of_machine(),
        }
    }

    /// `CNI_PATH` as plugins are given it: absolute.
    pub(crate) fn plugin_path(&self) -> String {
        absolute_path(&self.path)
    }

    /// The same runtime with at most this many chains at once in this process, over all its clones; at least one.
    #[must_use]
    pub fn at_most(self, chains: usize) -> Self {
        Self { slots: Slots::new(chains), ..self }
    }

    /// The same runtime, which stops when `cancel` is cancelled.
    #[must_use]
    pub fn cancelled_by(self, cancel: &CancellationToken) -> Self {
        Self { cancel: Some(cancel.clone()), ..self }
    }

    /// Waits until nobody else is at work on the container or clears up in one of the networks.
    pub(crate) fn lock(&self, networks: &[&str], at: &Attachment) -> Result<Locks, Error> {
        self.waited(|waiting| Locks::of_attachment(&self.cache, networks, at, waiting))
    }

    /// As [`Runtime::lock`], for what compares or takes down: where a lock cannot even be made (the file system is
    /// read-only or full, the name is none), that is a warning, for nothing may be stranded by it.
    pub(crate) fn lock_if_possible(
        &self,
        networks: &[&str],
        at: &Attachment,
        report: &mut Warnings,
    ) -> Result<Locks, Error> {
        match self.lock(networks, at) {
            Err(Error::Cache(why)) => {
                report.warnings.push(format!("done without a lock: {why}"));
                Ok(Locks::default())
            }
            locked => locked,
        }
    }

    /// Does what waits, no longer than this runtime has patience, and not when the caller has given up.
    pub(crate) fn waited<T>(&self, work: impl FnOnce(Waiting<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let given_up = || self.cancel.as_ref().is_some_and(CancellationToken::is_cancelled);
        if given_up() {
            return Err(Error::Cancelled);
        }
        let until = Instant::now() + self.waiting;
        work(Waiting { until, given_up: &given_up }).map_err(|error| match error {
            Error::Busy(_) if given_up() => Error::Cancelled,
            other => other,
        })
    }

    /// A place among the chains that may run at once.
    pub(crate) fn slot(&self) -> Result<Slot, Error> {
        self.waited(|waiting| self.slots.take(waiting))
    }
}
