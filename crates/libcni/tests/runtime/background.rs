//! Any call as a future.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, Wake};

use cnikit_libcni::{Background, Error};

use crate::node::{LONG, Node, container, list};

/// Sends whenever the future asks to be polled again.
struct Waker(Sender<()>);

impl Wake for Waker {
    fn wake(self: Arc<Self>) {
        // The test may have ended.
        let _ = self.0.send(());
    }
}

/// Polls whenever the future asks for it, until it is done.
fn wait<T>(mut running: Background<T>) -> T {
    let (wake, woken): (_, Receiver<()>) = mpsc::channel();
    let waker = Arc::new(Waker(wake)).into();
    loop {
        match Pin::new(&mut running).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => woken.recv_timeout(LONG).unwrap(),
        }
    }
}

#[test]
fn a_future_has_the_result_of_its_call_whenever_it_is_polled() {
    let node = Node::new();
    let running =
        node.runtime.in_background(|runtime| runtime.add(&list("net", &["first"]), &container("c1"))).unwrap();
    assert_eq!(wait(running).unwrap()["ips"][0]["address"], "10.9.0.2/24");

    let (begin, begins) = mpsc::channel::<()>();
    let running = node.runtime.in_background(move |_| begins.recv().map_err(|_| "not begun")).unwrap();
    let (wake, woken) = mpsc::channel();
    let waker = Arc::new(Waker(wake)).into();
    let mut context = Context::from_waker(&waker);
    let mut running = running;
    assert!(Pin::new(&mut running).poll(&mut context).is_pending());
    assert!(woken.try_recv().is_err());
    begin.send(()).unwrap();
    woken.recv_timeout(LONG).unwrap();
    assert_eq!(Pin::new(&mut running).poll(&mut context), Poll::Ready(Ok(())));
}

#[test]
fn a_panic_of_the_call_is_that_of_its_future() {
    let node = Node::new();
    let running = node.runtime.in_background(|_| panic!("on purpose")).unwrap();
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| wait::<()>(running))).unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"on purpose"));
}

#[test]
fn a_future_that_is_dropped_cancels_its_call_and_no_other() {
    let node = Node::new();
    let (go, goes) = mpsc::channel::<()>();
    let (done, result) = mpsc::channel();
    let running = node.runtime.in_background(move |runtime| {
        goes.recv().unwrap();
        done.send(runtime.add(&list("net", &["first"]), &container("c1"))).unwrap();
    });
    drop(running.unwrap());
    go.send(()).unwrap();
    assert!(matches!(result.recv().unwrap().unwrap_err(), Error::Cancelled));
    node.runtime.add(&list("net", &["first"]), &container("c1")).unwrap();
    assert_eq!(node.called(), ["ADD first"]);
}
