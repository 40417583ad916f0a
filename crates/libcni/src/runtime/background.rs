//! Runs any call as a future, for asynchronous programs.
//!
//! Each call has a thread of its own and needs no particular async runtime. A thread costs little in comparison with the
//! processes that the call starts, and the kernel kills those when the thread ends.

use std::future::Future;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use cnikit_process::CancellationToken;

use crate::Runtime;

/// A running call. If it is dropped before its end, it is cancelled: a running plugin is terminated with all the processes that it
/// started, no other plugin is started, and the intent that ADD has recorded tells the next DEL or GC what to remove.
#[derive(Debug)]
#[must_use = "dropped, it is cancelled"]
pub struct Background<T> {
    shared: Arc<Mutex<Shared<T>>>,
    cancel: CancellationToken,
}

#[derive(Debug)]
struct Shared<T> {
    done: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

impl Runtime {
    /// Runs `work` with this runtime on a new thread.
    ///
    /// The runtime that `work` gets is cancelled by the future, and by nothing else.
    ///
    /// # Errors
    /// No thread or no descriptor is left.
    pub fn in_background<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Runtime) -> T + Send + 'static,
    ) -> io::Result<Background<T>> {
        let cancel = CancellationToken::new()?;
        let runtime = self.clone().cancelled_by(&cancel);
        let shared = Arc::new(Mutex::new(Shared { done: None, waker: None }));
        let result = Arc::clone(&shared);
        thread::Builder::new().name("cni".to_owned()).spawn(move || {
            let done = panic::catch_unwind(AssertUnwindSafe(|| work(&runtime)));
            let mut shared = locked(&result);
            shared.done = Some(done);
            let waker = shared.waker.take();
            drop(shared); // the woken task may poll at once
            if let Some(waker) = waker {
                waker.wake();
            }
        })?;
        Ok(Background { shared, cancel })
    }
}

impl<T> Future for Background<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut shared = locked(&self.shared);
        if let Some(done) = shared.done.take() {
            return Poll::Ready(done.unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Background<T> {
    /// Cancels the call; after its end this has no effect.
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn locked<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
