//! Calls that wait for other calls, and calls that the caller cancels.

use std::fs::{self, File};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cnikit_libcni::{
    CancellationToken, Deadline, Error, InProcess, Networks, PluginError, PluginOutput, Runtime, State,
};

use crate::node::{LONG, Node, container, list};

/// A node's runtime that waits for no lock.
fn impatient(node: &Node) -> Runtime {
    Runtime { waiting: Duration::ZERO, ..node.runtime.clone() }
}

/// The same with a plugin `slow`, which sends the verb to the first channel, and ends when the second one has a message.
///
/// It also ends when the second channel's sender is dropped. So a test moves that into the scope that waits for the call: a failed
/// assertion drops it.
fn with_slow(node: &Node) -> (Runtime, mpsc::Receiver<String>, mpsc::Sender<()>) {
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let ends = Mutex::new(ends);
    let plugins = InProcess::default().with("slow", move |call| {
        begun.send(call.environment.command.clone()).unwrap();
        let _: Result<(), _> = ends.lock().unwrap().recv();
        let stdout = br#"{"cniVersion": "1.1.0"}"#.to_vec();
        Ok(PluginOutput { stdout, stderr: Vec::new() })
    });
    (Runtime { executor: Arc::new(plugins), ..impatient(node) }, begins, end)
}

#[test]
fn calls_for_one_container_and_gc_of_its_network_wait_and_others_do_not() {
    let node = Node::new();
    let (runtime, begins, end) = with_slow(&node);
    let slow = list("net", &["slow"]);
    thread::scope(|scope| {
        let end = end;
        let adding = scope.spawn(|| runtime.add(&slow, &container("c1")));
        begins.recv_timeout(LONG).unwrap();
        let cached = node.cached();
        assert_eq!(cached.state, State::Adding);
        assert_eq!(cached.problems, [""; 0]);
        let short = impatient(&node);
        let first = list("net", &["first"]);
        for error in [
            short.add(&first, &container("c1")).unwrap_err(),
            short.add(&list("other", &["first"]), &container("c1")).unwrap_err(),
            short.del(&first, &container("c1")).unwrap_err(),
            short.check(&first, &container("c1")).unwrap_err(),
            short.gc(&first, &[]).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Busy(_)) && error.is_retryable(), "{error}");
        }
        assert_eq!(node.called(), [""; 0]);
        short.add(&first, &container("c2")).unwrap();
        short.gc(&list("other", &["second"]), &[]).unwrap();
        assert_eq!(node.called(), ["ADD first", "GC second"]);
        end.send(()).unwrap();
        adding.join().unwrap().unwrap();
    });
    assert_eq!(runtime.cache.attachments().unwrap().len(), 2);
    let locks = fs::read_dir(node.dir.path().join("cnikit/locks")).unwrap();
    let names: Vec<String> = locks.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.starts_with("c-")), "{names:?}");
}

#[test]
fn while_gc_deletes_a_container_other_networks_serve_all_others() {
    let node = Node::new();
    let (runtime, begins, end) = with_slow(&node);
    let slow = list("net", &["slow"]);
    end.send(()).unwrap();
    runtime.add(&slow, &container("c1")).unwrap();
    begins.recv_timeout(LONG).unwrap();
    thread::scope(|scope| {
        let end = end;
        let collecting = scope.spawn(|| runtime.gc(&slow, &[]));
        assert_eq!(begins.recv_timeout(LONG).unwrap(), "DEL");
        let short = impatient(&node);
        let other = list("other", &["first"]);
        assert!(matches!(short.add(&other, &container("c1")).unwrap_err(), Error::Busy(_)));
        short.add(&other, &container("c2")).unwrap();
        assert!(matches!(short.add(&list("net", &["first"]), &container("c2")).unwrap_err(), Error::Busy(_)));
        end.send(()).unwrap(); // DEL
        end.send(()).unwrap(); // GC
        collecting.join().unwrap().unwrap();
    });
}

#[test]
fn no_gc_runs_in_any_network_of_a_container_while_it_is_attached_to_one() {
    let node = Node::new();
    let (runtime, begins, end) = with_slow(&node);
    let networks = Networks::new(runtime).with(list("a", &["slow"])).with(list("b", &["slow"]));
    thread::scope(|scope| {
        let end = end;
        let attaching = scope.spawn(|| networks.setup(&container("c1")));
        begins.recv_timeout(LONG).unwrap();
        let short = impatient(&node);
        for name in ["a", "b"] {
            assert!(matches!(short.gc(&list(name, &["first"]), &[]).unwrap_err(), Error::Busy(_)), "{name}");
        }
        short.gc(&list("c", &["first"]), &[]).unwrap();
        end.send(()).unwrap();
        end.send(()).unwrap();
        attaching.join().unwrap().unwrap();
    });
}

#[test]
fn what_a_cancelled_setup_has_attached_is_detached() {
    let node = Node::new();
    let cancel = CancellationToken::new().unwrap();
    let token = cancel.clone();
    let plugins = InProcess::default().with("first", |call| {
        let stdout =
            if call.environment.command == "ADD" { br#"{"cniVersion": "1.1.0"}"#.to_vec() } else { Vec::new() };
        Ok(PluginOutput { stdout, stderr: Vec::new() })
    });
    let plugins = plugins.with("second", move |_| {
        token.cancel();
        Err(PluginError::Cancelled { plugin: "second".into(), stderr: String::new() })
    });
    let runtime = Runtime { executor: Arc::new(plugins), ..node.runtime.clone() }.cancelled_by(&cancel);
    let networks = Networks::new(runtime).with(list("a", &["first"])).with(list("b", &["second"]));
    networks.setup(&container("c1")).unwrap_err();
    // The DEL of the second one was cancelled too.
    assert_eq!(node.cached().network, "b");
}

#[test]
fn no_more_lists_run_at_the_same_time_than_the_caller_allows() {
    let node = Node::new();
    let (runtime, begins, end) = with_slow(&node);
    let runtime = runtime.at_most(0); // at least one
    let slow = list("net", &["slow"]);
    thread::scope(|scope| {
        let end = end;
        let adding = scope.spawn(|| runtime.add(&slow, &container("c1")));
        begins.recv_timeout(LONG).unwrap();
        for id in ["c2", "c3"] {
            let error = runtime.add(&slow, &container(id)).unwrap_err();
            assert!(error.to_string().starts_with("the maximum number of lists runs already"), "{error}");
        }
        assert!(matches!(runtime.status(&slow).unwrap_err(), Error::Busy(_)));
        let waiting = Runtime { waiting: LONG, ..runtime.clone() };
        let other = scope.spawn(move || waiting.add(&list("net", &["slow"]), &container("c4")));
        end.send(()).unwrap();
        adding.join().unwrap().unwrap();
        begins.recv_timeout(LONG).unwrap();
        end.send(()).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(runtime.cache.attachments().unwrap().len(), 2, "those that found no slot are not recorded");
}

#[test]
fn a_cancelled_call_starts_nothing_and_ends_its_wait() {
    let node = Node::new();
    let cancel = CancellationToken::new().unwrap();
    let runtime = node.runtime.clone().cancelled_by(&cancel);
    let net = list("net", &["first"]);
    runtime.add(&net, &container("c1")).unwrap();
    node.called();
    let lock = File::open(node.dir.path().join("cnikit/locks/n-net")).unwrap();
    lock.lock().unwrap();
    thread::scope(|scope| {
        let lock = lock;
        let waiting = scope.spawn(|| runtime.add(&net, &container("c2")));
        Deadline::never().pause(Duration::from_millis(50));
        cancel.cancel();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled) && error.code() == 11, "{error}");
        assert_eq!(error.to_string(), "cancelled by the caller; hint: run DEL for this attachment");
        drop(lock);
    });
    for error in [
        runtime.add(&net, &container("c1")).unwrap_err(),
        runtime.del(&net, &container("c1")).unwrap_err(),
        runtime.check(&net, &container("c1")).unwrap_err(),
        runtime.gc(&net, &[]).unwrap_err(),
        runtime.status(&net).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
    assert_eq!(node.called(), [""; 0]);
}

#[test]
fn a_cancelled_plugin_ends_its_del_and_is_rolled_back_by_one_that_is_not_cancelled() {
    let node = Node::new();
    let cancel = CancellationToken::new().unwrap();
    let token = cancel.clone();
    let plugins = InProcess::default().with("patient", move |call| {
        assert_eq!(call.cancel.is_some(), call.environment.command != "DEL" || call.environment.container_id == "c2");
        if call.environment.command == "ADD" || call.environment.container_id == "c2" {
            token.cancel();
            return Err(PluginError::Cancelled { plugin: "patient".into(), stderr: String::new() });
        }
        Ok(PluginOutput { stdout: Vec::new(), stderr: Vec::new() })
    });
    let runtime = Runtime { executor: Arc::new(plugins), ..node.runtime.clone() }.cancelled_by(&cancel);
    let net = list("net", &["patient", "patient"]);
    let error = runtime.add_with_rollback(&net, &container("c1")).unwrap_err();
    assert_eq!(error.failures().len(), 1, "{error}");
    assert_eq!(runtime.cache.attachments().unwrap().len(), 0);
    let again = runtime.cancelled_by(&CancellationToken::new().unwrap());
    let error = again.del(&net, &container("c2")).unwrap_err();
    assert_eq!(error.failures().len(), 1, "the second plugin is not called: {error}");
}
