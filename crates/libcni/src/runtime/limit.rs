//! Limits how many plugin lists run at the same time in this process.

use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::cache::lock::Waiting;

/// Lists per processor: plugins wait for the kernel more than they compute.
const PER_PROCESSOR: usize = 8;

/// How often a waiting call checks whether it was cancelled.
const TICK: Duration = Duration::from_millis(20);

/// How many plugin lists may run at the same time in this process. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    running: Mutex<usize>,
    fewer: Condvar,
    limit: OnceLock<usize>,
}

/// The permission to run one plugin list, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Shared>);

impl Slots {
    /// A limit of `count`, at least one.
    pub fn new(count: usize) -> Self {
        Self::with(OnceLock::from(count.max(1)))
    }

    /// The default limit: eight per processor.
    pub(crate) fn of_machine() -> Self {
        Self::with(OnceLock::new())
    }

    fn with(limit: OnceLock<usize>) -> Self {
        Self(Arc::new(Shared { running: Mutex::new(0), fewer: Condvar::new(), limit }))
    }

    pub(crate) fn take(&self, waiting: Waiting<'_>) -> Result<Slot, Error> {
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.0.allows_one_more_than(*running) {
            let left = waiting.left();
            if left.is_zero() || (waiting.is_cancelled)() {
                return Err(Error::Busy("the maximum number of lists runs already".to_owned()));
            }
            running = self.0.fewer.wait_timeout(running, left.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        *running += 1;
        Ok(Slot(Arc::clone(&self.0)))
    }
}

impl Shared {
    /// Counts the processors only if more lists run than one processor may: the standard library reads files of cgroups for it.
    fn allows_one_more_than(&self, running: usize) -> bool {
        let count = || PER_PROCESSOR * thread::available_parallelism().map_or(1, usize::from);
        match self.limit.get() {
            Some(limit) => running < *limit,
            None => running < PER_PROCESSOR || running < *self.limit.get_or_init(count),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.fewer.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn eight_lists_run_for_each_processor() {
        let slots = Slots::of_machine();
        let take = || slots.take(Waiting { until: Instant::now(), is_cancelled: &|| false });
        let limit = 8 * thread::available_parallelism().unwrap().get();
        let mut taken: Vec<Slot> = (0..limit).map(|_| take().unwrap()).collect();
        assert!(matches!(take(), Err(Error::Busy(_))));
        taken.pop();
        taken.push(take().unwrap());
        assert!(matches!(take(), Err(Error::Busy(_))));
    }
}
