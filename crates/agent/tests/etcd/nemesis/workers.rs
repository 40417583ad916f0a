//! Workers, which call the plugin as a runtime does, and write down what came of it.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cnikit_process::{CancellationToken, Deadline};
use fastrand::Rng;

use super::history::{History, Moment, Operation, Verb};
use super::world::Node;
use crate::plugin::{Called, Disturbance, Network};

/// The history, and the clock of its times.
pub(super) struct Record {
    history: Mutex<History>,
    began: Instant,
}

impl Record {
    pub(super) fn new() -> Record {
        Record { history: Mutex::new(History::default()), began: Instant::now() }
    }

    /// When its time begins.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn now(&self) -> Moment {
        u64::try_from(self.began.elapsed().as_micros()).unwrap()
    }

    pub(super) fn count(&self) -> usize {
        self.history.lock().unwrap().operations.len()
    }

    /// The containers of a node are gone.
    pub(super) fn gone(&self, node: &Node) {
        self.history.lock().unwrap().gone.push((node.name.clone(), self.now()));
    }

    /// The addresses that a node has given since then.
    pub(super) fn given_since(&self, node: &Node, since: Moment) -> Vec<Operation> {
        let history = self.history.lock().unwrap();
        let is_given = |operation: &&Operation| {
            operation.node == node.name
                && operation.begin >= since
                && operation.verb == Verb::Add
                && matches!(operation.called, Called::Done(_))
        };
        history.operations.iter().filter(is_given).cloned().collect()
    }

    pub(super) fn take(&self) -> History {
        std::mem::take(&mut self.history.lock().unwrap())
    }

    /// Calls the plugin on a node, and writes that down. `network` is the node's.
    pub(super) fn call(
        &self,
        node: &Node,
        network: &Network,
        verb: Verb,
        attachment: &str,
        how: Disturbance,
        token: &CancellationToken,
    ) -> Called {
        let word = if verb == Verb::Add { "ADD" } else { "DEL" };
        let begin = self.now();
        let called = network.call(word, attachment, how, token);
        let end = self.now();
        let mut left = None;
        if verb == Verb::Add && !matches!(called, Called::Done(_)) {
            left = Some(reservations_of(node, attachment));
        }
        let seen = self.now();
        let mut history = self.history.lock().unwrap();
        for address in left.into_iter().flatten() {
            history.left.push((seen, node.name.clone(), attachment.to_owned(), address));
        }
        let (node, attachment) = (node.name.clone(), attachment.to_owned());
        history.operations.push(Operation { begin, end, node, attachment, verb, called: called.clone() });
        called
    }
}

/// The addresses that the node's files have for an attachment.
fn reservations_of(node: &Node, attachment: &str) -> Vec<IpAddr> {
    let Ok(entries) = std::fs::read_dir(node.files().join("pods")) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let is_ours = || {
            let content = std::fs::read_to_string(entry.path()).unwrap_or_default();
            content.lines().next().map(str::trim) == Some(attachment)
        };
        if let Some(Ok(address)) = entry.file_name().to_str().map(str::parse)
            && is_ours()
        {
            found.push(address);
        }
    }
    found
}

/// A worker of a node.
pub(super) struct Worker<'a> {
    pub(super) node: &'a Node,
    pub(super) record: &'a Record,
    pub(super) number: usize,
    pub(super) rng: Rng,
    /// Containers that run.
    live: Vec<String>,
    /// Attachments whose DEL has not been answered yet.
    ended: Vec<String>,
    added: usize,
    boot: usize,
}

impl<'a> Worker<'a> {
    pub(super) fn new(node: &'a Node, record: &'a Record, number: usize, seed: u64) -> Worker<'a> {
        let rng = Rng::with_seed(seed);
        Worker { node, record, number, rng, live: Vec::new(), ended: Vec::new(), added: 0, boot: 0 }
    }

    /// Adds and deletes until it is told to stop, then deletes all that is left.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let deadline = Deadline::never();
        let network = self.node.network(&[]);
        while !stop.load(Ordering::SeqCst) {
            {
                let _call = self.node.calls.read().unwrap();
                if self.node.is_on.load(Ordering::SeqCst) {
                    self.step(&network);
                }
            }
            deadline.pause(Duration::from_millis(self.rng.u64(2..12)));
        }
        self.ended.append(&mut self.live);
        let token = CancellationToken::new().unwrap();
        for attachment in &self.ended {
            let called = self.record.call(self.node, &network, Verb::Del, attachment, Disturbance::None, &token);
            assert_eq!(called, Called::Done(Vec::new()), "DEL of {attachment} after all was healed");
        }
    }

    fn step(&mut self, network: &Network) {
        let boot = self.node.boots.load(Ordering::SeqCst);
        if boot != self.boot {
            self.boot = boot;
            self.ended.append(&mut self.live);
        }
        let how = match self.rng.u32(0..100) {
            0..8 => Disturbance::Kill(Duration::from_micros(self.rng.u64(0..9_000))),
            8..10 => {
                let first = Duration::from_micros(self.rng.u64(0..6_000));
                Disturbance::Stop(first, Duration::from_millis(self.rng.u64(20..400)))
            }
            _ => Disturbance::None,
        };
        let token = self.node.token();
        let call = |verb, attachment: &str| self.record.call(self.node, network, verb, attachment, how, &token);
        if !self.ended.is_empty() && self.rng.u32(0..10) < 7 {
            let attachment = self.ended.swap_remove(self.rng.usize(..self.ended.len()));
            if !matches!(call(Verb::Del, &attachment), Called::Done(_)) {
                self.ended.push(attachment);
            }
        } else if self.live.len() < self.node.wanted.load(Ordering::Relaxed) {
            self.added += 1;
            let attachment = format!("{}-{}-{}", self.node.name, self.number, self.added);
            match call(Verb::Add, &attachment) {
                Called::Done(_) => self.live.push(attachment),
                Called::Failed(..) | Called::Killed => self.ended.push(attachment),
            }
        } else if !self.live.is_empty() {
            let attachment = self.live.swap_remove(self.rng.usize(..self.live.len()));
            if !matches!(call(Verb::Del, &attachment), Called::Done(_)) {
                self.ended.push(attachment);
            }
        }
    }
}
