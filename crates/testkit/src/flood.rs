//! Many at once.

use std::collections::BTreeSet;
use std::thread;

use serde_json::Value;

use crate::host::{Container, Host};
use crate::life::SHARED;
use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// So many ADDs at once, then as many DELs: every address is one container's, every CHECK passes, nothing is left.
pub fn survives(subject: &Subject, count: usize) {
    let host = Host::new();
    let subject = subject.at(host.dir());
    let before = Snapshot::of(&host);
    let containers: Vec<Container> = (0..count).map(|_| host.container()).collect();
    let results = each(&containers, |n, container| subject.add(&host, &format!("c-{n}"), container));
    let addresses: Vec<&str> = results.iter().flat_map(addresses).collect();
    let distinct: BTreeSet<&str> = addresses.iter().copied().collect();
    assert_eq!(distinct.len(), addresses.len(), "an address was given twice: {addresses:?}");
    each(&containers, |n, container| {
        subject.check(&host, &format!("c-{n}"), container, &results[n]).ok();
    });
    each(&containers, |n, container| subject.del(&host, &format!("c-{n}"), container, &results[n]));
    let left = Snapshot::of(&host).added_since(&before, &SHARED);
    assert!(left.is_empty(), "{count} at once left {left:#?}");
}

fn addresses(result: &Value) -> impl Iterator<Item = &str> {
    result["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str())
}

/// Runs one thread a container; the outcomes in their order.
fn each<T: Send>(containers: &[Container], work: impl Fn(usize, &Container) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            containers.iter().enumerate().map(|(n, container)| scope.spawn(move || work(n, container))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a call failed")).collect()
    })
}
