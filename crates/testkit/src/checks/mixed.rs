//! Two implementations of a plugin on one network: one adds attachments that the other checks and deletes.

use std::path::Path;

use serde_json::{Value, json};

use crate::campaign::{SummaryLine, assert_no_findings, seeded_rng};
use crate::env::host::{Container, Host};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{Subject, attachments};
use crate::model_node::{Node, Tally, Workload};
use crate::parallel::while_repeating;

/// The number of containers on the node.
const CONTAINERS: usize = 12;
/// Operations between two audits.
const BATCH: usize = 150;

/// Makes random calls, one after the other, on one network with one directory of reservations. ADD, CHECK and DEL are made by
/// either implementation; GC, STATUS and calls with incomplete input by ours, which is the one that is tested.
///
/// No call is refused, except an ADD of an existing attachment; no address has two owners. After each 150 operations all containers
/// are deleted and the host is as before, except for lines that contain one of these texts; see
/// [`HINTS`](crate::env::snapshot::HINTS). `CNIKIT_SEED` repeats the calls.
pub fn interleaved(ours: &Subject, theirs: &Path, operations: usize, but: &'static [&'static str]) -> Tally {
    let what = format!("interleaved {}", ours.title);
    let by = vec![ours.clone(), Subject { bin: theirs.to_owned(), ..ours.clone() }];
    let workload = Workload { by, workers: 1, containers: CONTAINERS, kills: 0, but };
    let mut chance = seeded_rng(&what);
    let mut tally = Tally::default();
    while tally.operations < operations {
        tally.add(Node::new(&workload).batch(&mut chance, (operations - tally.operations).min(BATCH)));
    }
    tally.line(what, operations).with_seed().print();
    tally.conclude()
}

/// The number of containers that run while the plugins are replaced.
const RUNNING: usize = 4;

/// A directory with the plugins that were installed last, and the containers of the node.
struct PluginDirectory<'a> {
    subject: Subject,
    host: &'a Host,
    /// The running containers: ID, container, result.
    running: Vec<(String, Container, Value)>,
    /// Deleted containers. They are not dropped, so that no other container gets their numbers ([`Subject::after`]) and thereby
    /// their addresses: upstream's rules for an address alone do not show which container they belong to.
    gone: Vec<Container>,
    names: usize,
}

/// Replaces all plugins of a node while containers run and exchange packets, and replaces them back. No packet is lost; CHECK of
/// the new plugins passes for each running container; a GC of `ours` removes none; the new plugins delete some of the old
/// containers and add others. When all are deleted, the host is as it was after both implementations had used the network once.
///
/// `but` is as with [`interleaved`]. The plugin, its delegate and its IPAM plugin are copied from both directories. `ours_first`:
/// the node starts with `ours`.
pub fn replaced(subject: &Subject, ours: &Path, theirs: &Path, ours_first: bool, but: &[&str]) {
    let host = subject.host();
    let bin = tempfile::tempdir().unwrap();
    let mut node = PluginDirectory {
        subject: Subject { bin: bin.path().to_owned(), ..subject.at(host.dir()) },
        host: &host,
        running: Vec::new(),
        gone: Vec::new(),
        names: 0,
    };
    for dir in [ours, theirs] {
        node.install(dir);
        node.add();
        node.del_oldest();
    }
    let before = HostSnapshot::of(&host);
    let (begins, other) = if ours_first { (ours, theirs) } else { (theirs, ours) };
    node.install(begins);
    (0..RUNNING).for_each(|_| node.add());
    let exchanges = [other, begins];
    let mut done = 0;
    for next in exchanges {
        node.while_pinging(|node| node.install_and_check(next, next == ours));
        node.replace_half();
        done += 1;
    }
    while !node.running.is_empty() {
        node.del_oldest();
    }
    // `theirs` leave rules behind that they do not know. A call of `ours` removes them.
    if subject.after.is_some() {
        node.install(ours);
        node.assert_running(true);
    }
    let left = HostSnapshot::leftovers(&host, &before, but);
    let whence = if ours_first { "from ours to theirs and back" } else { "from theirs to ours and back" };
    let what = format!("exchanged {} {whence}", subject.title);
    let found = left.map(|left| format!("{}: on the host, when all are gone: {left}", subject.title));
    let counts =
        SummaryLine { tried: done, of: exchanges.len(), found: usize::from(found.is_some()), ..SummaryLine::default() };
    SummaryLine { what, unit: "exchanges".into(), ..counts }.print();
    assert_no_findings(&found);
}

impl PluginDirectory<'_> {
    /// Installs each plugin by rename, as installers do. A shell does it: if this process did, a program that another thread starts
    /// meanwhile would inherit the descriptor that is open for writing, and the plugin could not be executed (`ETXTBSY`).
    fn install(&self, from: &Path) {
        for name in self.subject.programs() {
            let from = from.join(name);
            let to = self.subject.bin.join(name);
            self.host.sh(&format!("cp '{0}' '{1}.new' && mv -f '{1}.new' '{1}'", from.display(), to.display()));
        }
    }

    fn install_and_check(&self, from: &Path, ours: bool) {
        self.install(from);
        self.assert_running(ours);
    }

    fn add(&mut self) {
        self.names += 1;
        let id = format!("c-run-{}", self.names);
        let container = self.subject.container(self.host);
        let result = self.subject.add(self.host, &id, &container);
        self.running.push((id, container, result));
    }

    fn del_oldest(&mut self) {
        let (id, container, result) = self.running.remove(0);
        self.subject.del(self.host, &id, &container, &result);
        self.gone.push(container);
    }

    /// Runs CHECK of the installed plugins for every attachment, after a GC if they are ours.
    fn assert_running(&self, ours: bool) {
        if ours {
            let valid = attachments(self.running.iter().map(|(id, ..)| id));
            let more = [("cni.dev/valid-attachments", valid), ("cniVersion", json!("1.1.0"))];
            self.subject.call(self.host, "GC", "", "", &more).ok();
        }
        for (id, container, result) in &self.running {
            let output = self.subject.check(self.host, id, container, result);
            assert_eq!(output.exit, 0, "{}: CHECK of {id}: {}", self.subject.title, output.stdout);
        }
    }

    /// Deletes half of the containers, and adds as many.
    fn replace_half(&mut self) {
        (0..RUNNING / 2).for_each(|_| self.del_oldest());
        (0..RUNNING / 2).for_each(|_| self.add());
        for (id, container, result) in &self.running {
            let gateway = gateway(result);
            assert!(container.reaches(gateway), "{}: {id} does not reach {gateway}", self.subject.title);
        }
    }

    /// Runs `work` while each container pings its gateway; no packet may be lost.
    fn while_pinging(&self, work: impl FnOnce(&Self)) {
        let mut pings = Vec::new();
        let title = &self.subject.title;
        for (id, container, result) in &self.running {
            let gateway = gateway(result);
            container.sh(&format!("ping -n -q -c 1 -W 5 {gateway}"));
            pings.push(move || assert_no_packet_loss(container, gateway, &format!("{title}: {id}")));
        }
        while_repeating(pings, || work(self));
    }
}

fn assert_no_packet_loss(container: &Container, gateway: &str, who: &str) {
    let output = container.sh(&format!("ping -n -q -i 0.01 -c 40 -W 1 {gateway}"));
    assert!(output.contains(" 0% packet loss"), "{who}: {output}");
}

fn gateway(result: &Value) -> &str {
    result["ips"][0]["gateway"].as_str().unwrap()
}
