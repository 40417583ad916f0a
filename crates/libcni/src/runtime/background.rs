//! Any call as a future, for programs that wait for many things at once.
//!
//! Each call has a thread of its own, and belongs to no runtime of futures: whichever polls it is woken when it is done. A
//! thread costs little beside the processes that the call starts, and the kernel ends those when it goes.

use std::future::Future;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use cnikit_process::CancellationToken;

use crate::Runtime;

/// A call that is under way. Dropped before its end, it is cancelled: a plugin that runs is ended with all that it started,
/// no other is started, and the note that ADD has made tells the next DEL or GC what to remove.
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
        let told = Arc::clone(&shared);
        thread::Builder::new().name("cni".to_owned()).spawn(move || {
            let done = panic::catch_unwind(AssertUnwindSafe(|| work(&runtime)));
            let mut shared = locked(&told);
            shared.done = Some(done);
            let waker = shared.waker.take();
            drop(shared); // whoever is woken may ask at once
            waker.into_iter().for_each(Waker::wake);
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
    /// After its end nobody listens.
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn locked<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
