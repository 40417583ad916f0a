//! Many calls at once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::thread;

use crate::campaign;
use crate::env::host::Container;
use crate::env::snapshot::{HINTS, HostSnapshot};
use crate::env::subject::{Subject, addresses};
use crate::model_node::{Node, Tally, Workload};

/// The number of calls at once: as many as on a very busy node.
const WORKERS: usize = 64;
/// How many of a hundred calls are killed.
const KILLS: u32 = 12;
/// Operations between two audits.
pub(crate) const BATCH: usize = 2000;

/// Makes random calls with 64 workers on one network: ADD, DEL, CHECK, GC, STATUS and RESTORE. Some are killed at any moment. After
/// that the runtime calls DEL, or it forgets the container and leaves it to GC.
///
/// No address has two owners; CHECK passes for each running container, and GC never removes one; an ADD of an existing attachment
/// is refused with code 101 or 104 ([`cnikit::code`]) and the word "already". After each 2,000 operations all containers are
/// deleted and the host is as before: no link, rule, route, setting or file is left.
pub fn random_calls(subject: &Subject, operations: usize) {
    let what = format!("flood {}", subject.title);
    let mut chance = campaign::seeded_rng(&what);
    let mut tally = Tally::default();
    let workload = Workload::of(subject);
    let mut node = Node::new(&workload);
    while tally.operations < operations {
        let one = node.batch(&mut chance, (operations - tally.operations).min(BATCH));
        if !one.found.is_empty() {
            node = Node::new(&workload);
        }
        tally.add(one);
    }
    tally.line(what, operations).with_seed().print();
    let tally = tally.conclude();
    assert!(tally.kills > 0 && tally.audits > 0, "nothing was killed or audited: {tally:?}");
}

impl Workload {
    /// Makes a workload of 64 workers with one container each: of the subject, and of the implementation [beside](Subject::beside)
    /// it.
    pub(crate) fn of(subject: &Subject) -> Workload {
        let beside = subject.beside.iter().map(|bin| Subject { bin: bin.clone(), ..subject.clone() });
        let by = std::iter::once(subject.clone()).chain(beside).collect();
        Workload { by, workers: WORKERS, containers: 1, kills: KILLS, but: &HINTS }
    }
}

/// Runs this many ADDs at once, then as many DELs: each address belongs to one container, every CHECK passes, and nothing is left.
pub fn survives(subject: &Subject, count: usize) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let containers: Vec<Container> = (0..count).map(|_| subject.container(&host)).collect();
    let before = HostSnapshot::of(&host);
    let results = each(&containers, |n, container| subject.add(&host, &format!("c-{n}"), container));
    let mut addresses: Vec<&str> = results.iter().flat_map(addresses).collect();
    // Each container has these on its own loopback link.
    addresses.retain(|address| !address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()));
    let distinct: BTreeSet<&str> = addresses.iter().copied().collect();
    assert_eq!(distinct.len(), addresses.len(), "an address was given twice: {addresses:?}");
    each(&containers, |n, container| {
        subject.check(&host, &format!("c-{n}"), container, &results[n]).ok();
    });
    each(&containers, |n, container| subject.del(&host, &format!("c-{n}"), container, &results[n]));
    let left = HostSnapshot::of(&host).added_since(&before, &subject.shared);
    assert!(left.is_empty(), "{count} at once left {left:#?}");
}

/// Runs `work` on one thread per container. Returns the results in the order of the containers.
fn each<T: Send>(containers: &[Container], work: impl Fn(usize, &Container) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let mut threads = Vec::with_capacity(containers.len());
        for (n, container) in containers.iter().enumerate() {
            threads.push(scope.spawn(move || work(n, container)));
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
