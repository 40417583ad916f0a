//! One network on one host, and containers that come and go on it, as chance has it.

mod audit;
mod call;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use cnikit::code;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::campaign::{SummaryLine, assert_no_findings};
use crate::env::host::{Container, Host};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{CallOutput, Subject, addresses, attachments};
use crate::parallel::while_repeating;
use call::KILLED;

/// How much was done, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Calls of plugins that were made, those of audits too.
    pub operations: usize,
    /// Calls that were killed before they had ended.
    pub kills: usize,
    /// Calls that were refused with code 11, which says that they are to be repeated.
    #[serde(default)]
    pub busy: usize,
    /// How often everything was looked through.
    pub audits: usize,
    /// Everything that must not be.
    pub found: Vec<String>,
}

impl Tally {
    /// In one line.
    pub(crate) fn line(&self, what: String, of: usize) -> SummaryLine {
        let Tally { operations, kills, busy, audits, found } = self;
        let mut notes = vec![format!("{kills} killed"), format!("{audits} audits")];
        notes.extend((*busy > 0).then(|| format!("{busy} to be repeated")));
        SummaryLine { tried: *operations, of, found: found.len(), notes, ..SummaryLine::new(what, "operations") }
    }

    /// Panics with what was found, if anything was.
    pub(crate) fn conclude(self) -> Tally {
        assert_no_findings(&self.found);
        self
    }

    /// Adds another's.
    pub(crate) fn add(&mut self, other: Tally) {
        self.operations += other.operations;
        self.kills += other.kills;
        self.busy += other.busy;
        self.audits += other.audits;
        self.found.extend(other.found);
    }
}

/// Who carries calls out, and how.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// The plugin that is tested. Others do what every release of every plugin can: ADD, CHECK, and DEL with all that
    /// a runtime knows.
    pub(crate) by: Vec<Subject>,
    /// Calls at once.
    pub(crate) workers: usize,
    /// Containers a worker.
    pub(crate) containers: usize,
    /// Of a hundred calls, so many are killed.
    pub(crate) kills: u32,
    /// What a line holds that may come and go on the host.
    pub(crate) but: &'static [&'static str],
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Add,
    Check,
    Del,
    Gc,
    Status,
}

impl Verb {
    const COUNT: usize = 5;

    fn command(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Check => "CHECK",
            Verb::Del => "DEL",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
        }
    }
}

/// What comes next for a container without an attachment, and for one with: an ADD of that is refused with one of [`ALREADY_PRESENT_CODES`],
/// in a sentence with "already", and hurts nothing.
const NEXT_IF_ABSENT: [(u32, Verb); 4] = [(84, Verb::Add), (8, Verb::Del), (4, Verb::Status), (4, Verb::Gc)];
const NEXT_IF_PRESENT: [(u32, Verb); 5] =
    [(42, Verb::Check), (44, Verb::Del), (4, Verb::Add), (5, Verb::Status), (5, Verb::Gc)];

/// Of a hundred DELs, so many come when the namespace is gone; and of a hundred ADDs that were killed, so many are forgotten
/// by their runtime and left to GC.
const GONE: u32 = 4;
const FORGOTTEN: u32 = 10;

/// What an ADD is refused with, whose attachment is there: its link, or its address.
const ALREADY_PRESENT_CODES: [u32; 2] = [code::CONFLICT, code::HOLDS_ALREADY];

/// Of so many calls, one may be refused with code 11: on a machine with too much to do, a lock is not always had in time.
const BUSY: usize = 100;

/// How many microseconds a call is taken to last before there was any.
const FIRST: u64 = 20_000;

/// What is the case with a container.
#[derive(Clone, Debug)]
enum AttachmentState {
    /// It has no attachment.
    Absent,
    /// It has one: the result of the ADD.
    Present(Value),
    /// A call was killed, or is to be repeated: a DEL is due.
    Unknown,
}

/// A container with the name that its runtime gave it.
#[derive(Debug)]
struct Slot {
    id: String,
    container: Container,
    /// How that was before a chained plugin changed what others had made in it.
    inside: Option<HostSnapshot>,
    state: AttachmentState,
    /// How many names it had.
    names: usize,
    place: usize,
}

/// A host with a crowd on it.
pub(crate) struct Node {
    host: Host,
    workload: Workload,
    slots: Vec<Mutex<Slot>>,
    /// The names that a runtime knows. A GC is told all of them, and none comes while it runs: the specification wants that.
    known: RwLock<BTreeSet<String>>,
    /// Whose each address is.
    owners: Mutex<HashMap<String, String>>,
    /// How long each verb usually takes, in microseconds.
    usual: [AtomicU64; Verb::COUNT],
    base: HostSnapshot,
    tally: Mutex<Tally>,
}

impl Node {
    /// A host on which the network was used once, so that all that is shared is there.
    pub(crate) fn new(workload: &Workload) -> Node {
        let host = workload.by[0].host();
        let by: Vec<Subject> = workload.by.iter().map(|subject| subject.at(host.dir())).collect();
        let container = by[0].container(&host);
        for subject in &by {
            let result = subject.add(&host, "c-first", &container);
            subject.del(&host, "c-first", &container, &result);
        }
        let slot = |place| Slot::new(&by[0], &host, place);
        let slots: Vec<Slot> = (0..workload.workers * workload.containers).map(slot).collect();
        Node {
            known: RwLock::new(slots.iter().map(|slot| slot.id.clone()).collect()),
            slots: slots.into_iter().map(Mutex::new).collect(),
            owners: Mutex::default(),
            usual: [const { AtomicU64::new(FIRST) }; Verb::COUNT],
            base: HostSnapshot::of(&host),
            tally: Mutex::default(),
            workload: Workload { by, ..workload.clone() },
            host,
        }
    }

    /// So many operations by all workers, then an audit. What it came to.
    pub(crate) fn batch(&self, chance: &mut Rng, operations: usize) -> Tally {
        let each = operations.div_ceil(self.workload.workers);
        let background = Some(self.workload.by[0].background).filter(|line| !line.is_empty());
        let others: Vec<_> = background.into_iter().map(|line| move || self.run_background(line)).collect();
        self.host.enter(|| {
            while_repeating(others, || {
                thread::scope(|scope| {
                    for worker in 0..self.workload.workers {
                        let chance = chance.fork();
                        scope.spawn(move || self.work(worker, chance, each));
                    }
                });
            });
            self.audit();
        });
        let tally = std::mem::take(&mut *self.tally.lock().unwrap());
        if tally.busy * BUSY > tally.operations {
            self.report(format!("{} of {} calls were refused with code 11", tally.busy, tally.operations));
        }
        let mut found = std::mem::take(&mut *self.tally.lock().unwrap());
        found.add(tally);
        found
    }

    /// What somebody else does beside them.
    fn run_background(&self, line: &str) {
        let (succeeded, said) = self.host.try_sh(line);
        if !succeeded {
            self.report(format!("what others do beside it failed: {line}: {said}"));
        }
    }

    fn work(&self, worker: usize, mut chance: Rng, operations: usize) {
        let own = &self.slots[worker * self.workload.containers..][..self.workload.containers];
        for _ in 0..operations {
            self.step(&mut own[chance.usize(..own.len())].lock().unwrap(), &mut chance);
        }
    }

    fn step(&self, slot: &mut Slot, chance: &mut Rng) {
        let verb = match slot.state {
            AttachmentState::Absent => weighted_choice(&NEXT_IF_ABSENT, chance),
            AttachmentState::Present(_) => weighted_choice(&NEXT_IF_PRESENT, chance),
            AttachmentState::Unknown => Verb::Del,
        };
        match (verb, slot.state.clone()) {
            (Verb::Add, AttachmentState::Present(result)) => self.add_again(slot, &result, chance),
            (Verb::Add, _) => self.add(slot, chance),
            (Verb::Check, AttachmentState::Present(result)) => self.check(slot, &result, chance),
            (Verb::Del, state) => self.del(slot, &state, chance),
            (Verb::Gc, _) => self.gc(chance),
            (verb, _) => self.call_that_succeeds(verb, "", "", &[], chance),
        }
    }

    fn add(&self, slot: &mut Slot, chance: &mut Rng) {
        let said =
            self.call(self.random_subject(chance), Verb::Add, &slot.id, &slot.container.path(), &[], Some(chance));
        match said.exit {
            0 => match serde_json::from_str::<Value>(&said.stdout) {
                Ok(result) => {
                    self.claim_addresses(&slot.id, &result);
                    slot.state = AttachmentState::Present(result);
                }
                Err(error) => self.report(format!("ADD of {}: {error}: {said:?}", slot.id)),
            },
            KILLED if percent(FORGOTTEN, chance) => self.forget(slot),
            _ if is_unknown(&said) => slot.state = AttachmentState::Unknown,
            _ => {
                self.report(format!("ADD of {}: {}", slot.id, describe(&said)));
                slot.state = AttachmentState::Unknown;
            }
        }
    }

    /// Refused, by ours, or by a chained plugin found done; and what runs, runs on.
    fn add_again(&self, slot: &mut Slot, result: &Value, chance: &mut Rng) {
        let said = self.call(&self.workload.by[0], Verb::Add, &slot.id, &slot.container.path(), &[], Some(chance));
        let is_right = if slot.inside.is_some() { said.exit == 0 } else { refuses_again(&said) };
        if !is_unknown(&said) && !is_right {
            self.report(format!("ADD of {}, which was there: {}", slot.id, describe(&said)));
        }
        self.check(slot, result, chance);
    }

    fn check(&self, slot: &mut Slot, result: &Value, chance: &mut Rng) {
        let more = [("prevResult", result.clone())];
        let by = self.random_subject(chance);
        let said = self.call(by, Verb::Check, &slot.id, &slot.container.path(), &more, Some(chance));
        if said.exit != 0 && !is_unknown(&said) {
            self.report(format!("CHECK of {}, which runs, by {}: {}", slot.id, by.bin.display(), describe(&said)));
        }
    }

    /// With all that a runtime may know; nobody else's call is killed, so they are told all.
    fn del(&self, slot: &mut Slot, state: &AttachmentState, chance: &mut Rng) {
        let result = if let AttachmentState::Present(result) = state { Some(result) } else { None };
        self.release_addresses(&slot.id);
        let by = if result.is_some() { self.random_subject(chance) } else { &self.workload.by[0] };
        let rude = std::ptr::eq(by, &raw const self.workload.by[0]);
        // Whose the things are that another maker's chained plugin made is said by the result alone.
        let needed = slot.inside.is_some() && self.workload.by.len() > 1;
        let told_result = result.filter(|_| !rude || needed || percent(80, chance));
        let more: Vec<_> = told_result.map(|result| ("prevResult", result.clone())).into_iter().collect();
        let mut path = slot.container.path();
        if rude && percent(GONE, chance) {
            path += "-that-is-gone";
            slot.renew(&self.workload.by[0], &self.host);
        }
        let said = self.call(by, Verb::Del, &slot.id, &path, &more, Some(chance));
        slot.state = match said.exit {
            0 => AttachmentState::Absent,
            _ if is_unknown(&said) => AttachmentState::Unknown,
            _ => {
                self.report(format!("DEL of {} by {}: {}", slot.id, by.bin.display(), describe(&said)));
                AttachmentState::Unknown
            }
        };
    }

    /// Removes nothing of whom the runtime knows, while they come and go.
    fn gc(&self, chance: &mut Rng) {
        let known = self.known.read().unwrap();
        self.call_that_succeeds(Verb::Gc, "", "", &[("cni.dev/valid-attachments", attachments(&*known))], chance);
    }

    /// Of a verb that is only ours to know, in the version that brought it.
    fn call_that_succeeds(&self, verb: Verb, id: &str, path: &str, more: &[(&'static str, Value)], chance: &mut Rng) {
        let more = [more, &[("cniVersion", json!("1.1.0"))]].concat();
        let said = self.call(&self.workload.by[0], verb, id, path, &more, Some(chance));
        if said.exit != 0 && !is_unknown(&said) {
            self.report(format!("{}: {}", verb.command(), describe(&said)));
        }
    }

    /// The runtime dies with the call that it made, and knows nothing of it when it is back: the container is gone, and its
    /// name is never used again.
    fn forget(&self, slot: &mut Slot) {
        let mut known = self.known.write().unwrap();
        known.remove(&slot.id);
        slot.names += 1;
        slot.id = name(slot.place, slot.names);
        slot.renew(&self.workload.by[0], &self.host);
        slot.state = AttachmentState::Absent;
        known.insert(slot.id.clone());
    }

    fn random_subject(&self, chance: &mut Rng) -> &Subject {
        &self.workload.by[chance.usize(..self.workload.by.len())]
    }

    /// One call; with chance, it may be killed at any moment of the time that it usually takes, and a bit after.
    fn call(
        &self,
        by: &Subject,
        verb: Verb,
        id: &str,
        netns: &str,
        more: &[(&'static str, Value)],
        chance: Option<&mut Rng>,
    ) -> CallOutput {
        let usual = &self.usual[verb as usize];
        let killed = chance.and_then(|chance| {
            let end = usual.load(Ordering::Relaxed) * 5 / 4;
            percent(self.workload.kills, chance).then(|| Duration::from_micros(chance.u64(..=end)))
        });
        let mut conf = by.conf_of(verb.command(), netns);
        more.iter().for_each(|(key, value)| conf[*key] = value.clone());
        let env = by.environment(verb.command(), id, netns, &[]);
        let begin = Instant::now();
        let said = call::call(&by.bin.join(&by.plugin), &env, conf.to_string().as_bytes(), killed);
        let made = usize::from(said.is_ok());
        let said =
            said.unwrap_or_else(|error| CallOutput { exit: 1, stdout: error.to_string(), stderr: String::new() });
        if killed.is_none() {
            let took = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
            usual.store((usual.load(Ordering::Relaxed) * 7 + took) / 8, Ordering::Relaxed);
        }
        let mut tally = self.tally.lock().unwrap();
        tally.operations += made;
        tally.kills += usize::from(said.exit == KILLED);
        tally.busy += usize::from(is_busy(&said));
        said
    }

    /// Its addresses are this container's from now on, and were nobody's.
    fn claim_addresses(&self, id: &str, result: &Value) {
        let mut owners = self.owners.lock().unwrap();
        for address in addresses(result) {
            if let Some(other) = owners.insert(address.to_owned(), id.to_owned()) {
                self.report(format!("{address} was given to {id}, and {other} has it"));
            }
        }
    }

    fn release_addresses(&self, id: &str) {
        self.owners.lock().unwrap().retain(|_, owner| owner != id);
    }

    fn report(&self, text: impl Display) {
        self.tally.lock().unwrap().found.push(format!("{}: {text}", self.workload.by[0].title));
    }
}

impl Slot {
    fn new(subject: &Subject, host: &Host, place: usize) -> Slot {
        let container = subject.container(host);
        let inside = subject.after.as_ref().map(|_| HostSnapshot::inside(&container));
        Slot { id: name(place, 0), container, inside, state: AttachmentState::Absent, names: 0, place }
    }

    /// Another container in the place of this one.
    fn renew(&mut self, subject: &Subject, host: &Host) {
        let Slot { container, inside, .. } = Slot::new(subject, host, self.place);
        (self.container, self.inside) = (container, inside);
    }
}

/// All of one length: none is part of another.
fn name(place: usize, names: usize) -> String {
    format!("c-{place:03}-{names:06}")
}

/// Was it refused with code 11, and so is to be repeated?
fn is_busy(said: &CallOutput) -> bool {
    said.exit == 1 && serde_json::from_str::<Value>(&said.stdout).is_ok_and(|error| error["code"] == code::TRY_AGAIN)
}

/// Was it ended before it was done, so that nobody knows what it did?
fn is_unknown(said: &CallOutput) -> bool {
    said.exit == KILLED || is_busy(said)
}

/// Is an ADD refused because the attachment is there, and for nothing else?
fn refuses_again(said: &CallOutput) -> bool {
    let error = serde_json::from_str::<Value>(&said.stdout).unwrap_or_default();
    let text = ["msg", "details"].map(|key| error[key].as_str().unwrap_or_default()).concat();
    said.exit == 1 && ALREADY_PRESENT_CODES.iter().any(|code| error["code"] == *code) && text.contains("already")
}

/// True so many times of a hundred.
fn percent(times: u32, chance: &mut Rng) -> bool {
    chance.u32(..100) < times
}

/// One of these, whose weights are a hundred together.
fn weighted_choice(weighed: &[(u32, Verb)], chance: &mut Rng) -> Verb {
    let mut at = chance.u32(..100);
    let found = weighed.iter().find(|(weight, _)| {
        let here = at < *weight;
        at = at.saturating_sub(*weight);
        here
    });
    found.unwrap().1
}

fn describe(said: &CallOutput) -> String {
    format!("exit {}: {}{}", said.exit, said.stdout.trim(), said.stderr.trim())
}
