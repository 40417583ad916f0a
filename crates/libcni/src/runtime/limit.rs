//! Limits how many plugin lists run at the same time in this process.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
pub struct Slots(Arc<Free>);

#[derive(Debug)]
struct Free {
    count: Mutex<usize>,
    more: Condvar,
}

/// The permission to run one plugin list, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Free>);

impl Slots {
    /// A limit of `count`, at least one.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Free { count: Mutex::new(count.max(1)), more: Condvar::new() }))
    }

    /// The default limit: eight per processor.
    pub(crate) fn of_machine() -> Self {
        Self::new(PER_PROCESSOR * thread::available_parallelism().map_or(1, usize::from))
    }

    pub(crate) fn take(&self, waiting: Waiting<'_>) -> Result<Slot, Error> {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count == 0 {
            let left = waiting.left();
            if left.is_zero() || (waiting.is_cancelled)() {
                return Err(Error::Busy("the maximum number of lists runs already".to_owned()));
            }
            count = self.0.more.wait_timeout(count, left.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        *count -= 1;
        Ok(Slot(Arc::clone(&self.0)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.more.notify_one();
    }
}
