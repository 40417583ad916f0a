//! A node on which two makers' plugins work on one network: one adds what the other checks and removes.

use std::path::Path;

use serde_json::{Value, json};

use crate::campaign::{SummaryLine, assert_no_findings, seeded_rng};
use crate::env::host::{Container, Host};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{Subject, attachments};
use crate::model_node::{Node, Tally, Workload};
use crate::parallel::while_repeating;

/// Containers of a node on which calls are interleaved.
const CONTAINERS: usize = 12;
/// Operations between two audits.
const BATCH: usize = 150;

/// Calls one after the other on one network and in one directory of reservations, each by one of the two as chance has it:
/// ADD, CHECK and DEL by either; GC, STATUS, and whatever a runtime tells only half of, by ours, which are tested.
///
/// Nothing is ever refused but an ADD of what is there; no address has two owners; and after each 150 operations, when all
/// are deleted, the host is as it was before, but for lines that hold one of these texts, as those of
/// [`HINTS`](crate::env::snapshot::HINTS). `CNIKIT_SEED` repeats it call for call.
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

/// Containers that run while the plugins are exchanged.
const RUNNING: usize = 4;

/// A directory of plugins with whatever was installed last.
struct PluginDirectory<'a> {
    subject: Subject,
    host: &'a Host,
    /// Who runs: name, container, result.
    running: Vec<(String, Container, Value)>,
    /// Who ran. Their numbers ([`Subject::after`]), and so their addresses, are nobody else's: of a rule for an address alone, as
    /// the reference writes them, nobody can say whose it is by then.
    gone: Vec<Container>,
    names: usize,
}

/// All plugins of a node are exchanged while containers run and talk, and then once more, back: no packet is lost; CHECK by
/// the new ones passes for whoever runs; their GC takes nobody, if they are `ours`; they delete some of the old containers
/// and add others; and when all are gone, the host is as it was when both had used the network once.
///
/// `but` is as with [`interleaved`]. Of both directories the plugin itself, its delegate and its IPAM plugin are taken; `ours`
/// are there first, or are not.
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
        node.while_pinging(|node| {
            node.install(next);
            node.assert_running(next == ours);
        });
        node.replace_half();
        done += 1;
    }
    while !node.running.is_empty() {
        node.del_oldest();
    }
    // Theirs leave what they do not know, whose rules there were, to the next of ours.
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
    /// Each file appears whole, by rename, as installers do it. Not by us: what another thread starts meanwhile would hold the
    /// file open for writing, and it could not be executed.
    fn install(&self, from: &Path) {
        for name in self.subject.programs() {
            let from = from.join(name);
            let to = self.subject.bin.join(name);
            self.host.sh(&format!("cp '{0}' '{1}.new' && mv -f '{1}.new' '{1}'", from.display(), to.display()));
        }
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

    /// Runs the installed plugins' CHECK for every attachment, after a GC if the plugins are ours.
    fn assert_running(&self, ours: bool) {
        if ours {
            let valid = attachments(self.running.iter().map(|(id, ..)| id));
            let more = [("cni.dev/valid-attachments", valid), ("cniVersion", json!("1.1.0"))];
            self.subject.call(self.host, "GC", "", "", &more).ok();
        }
        for (id, container, result) in &self.running {
            let said = self.subject.check(self.host, id, container, result);
            assert_eq!(said.exit, 0, "{}: CHECK of {id}: {}", self.subject.title, said.stdout);
        }
    }

    /// Half of them go, and as many come.
    fn replace_half(&mut self) {
        (0..RUNNING / 2).for_each(|_| self.del_oldest());
        (0..RUNNING / 2).for_each(|_| self.add());
        self.running.iter().for_each(|(id, container, result)| {
            let gateway = gateway(result);
            assert!(container.reaches(gateway), "{}: {id} does not reach {gateway}", self.subject.title);
        });
    }

    /// Each container talks to its gateway all the while, without a loss.
    fn while_pinging(&self, work: impl FnOnce(&Self)) {
        let mut talks = Vec::new();
        let title = &self.subject.title;
        for (id, container, result) in &self.running {
            let gateway = gateway(result);
            container.sh(&format!("ping -n -q -c 1 -W 5 {gateway}"));
            talks.push(move || {
                let said = container.sh(&format!("ping -n -q -i 0.01 -c 40 -W 1 {gateway}"));
                assert!(said.contains(" 0% packet loss"), "{title}: {id}: {said}");
            });
        }
        while_repeating(talks, || work(self));
    }
}

fn gateway(result: &Value) -> &str {
    result["ips"][0]["gateway"].as_str().unwrap()
}
