//! A host with one network, on which containers are added and deleted at random.

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

/// Counts of operations, and findings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// Calls of plugins, including those of audits.
    pub operations: usize,
    /// Calls that were killed before they ended.
    pub kills: usize,
    /// Calls that failed with code 11 (try again later).
    #[serde(default)]
    pub busy: usize,
    /// Calls of ADD and STATUS that failed because the disk was full.
    #[serde(default)]
    pub on_full_disk: usize,
    /// The number of audits.
    pub audits: usize,
    /// Violations of a property.
    pub found: Vec<String>,
}

impl Tally {
    /// The result as one line.
    pub(crate) fn line(&self, what: String, of: usize) -> SummaryLine {
        let Tally { operations, kills, busy, on_full_disk, audits, found } = self;
        let mut notes = vec![format!("{kills} killed"), format!("{audits} audits")];
        if *busy > 0 {
            notes.push(format!("{busy} to be repeated"));
        }
        if *on_full_disk > 0 {
            notes.push(format!("{on_full_disk} refused on a full disk"));
        }
        SummaryLine { tried: *operations, of, found: found.len(), notes, ..SummaryLine::new(what, "operations") }
    }

    /// Panics with the findings, if there are any.
    pub(crate) fn conclude(self) -> Tally {
        assert_no_findings(&self.found);
        self
    }

    /// Adds the counts and findings of another tally.
    pub(crate) fn add(&mut self, other: Tally) {
        self.operations += other.operations;
        self.kills += other.kills;
        self.busy += other.busy;
        self.on_full_disk += other.on_full_disk;
        self.audits += other.audits;
        self.found.extend(other.found);
    }
}

/// The workload of a host: plugins, workers and containers.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// The plugins. The first one is tested. Any further one gets only calls that every release of every plugin supports: ADD,
    /// CHECK, and DEL with complete input.
    pub(crate) by: Vec<Subject>,
    /// The number of calls at the same time.
    pub(crate) workers: usize,
    /// Containers per worker.
    pub(crate) containers: usize,
    /// How many of a hundred calls are killed.
    pub(crate) kills: u32,
    /// Texts of lines of a snapshot that may change.
    pub(crate) but: &'static [&'static str],
}

/// The next call of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Add,
    Check,
    Del,
    Gc,
    Status,
    Restore,
}

impl Verb {
    const COUNT: usize = 6;

    fn command(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Check => "CHECK",
            Verb::Del => "DEL",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Restore => "RESTORE",
        }
    }
}

/// The next call for a container without an attachment, and for one with an attachment, with weights that sum to 100. An ADD of an
/// existing attachment is refused with one of [`ALREADY_PRESENT_CODES`] and the word "already", and changes nothing.
const NEXT_IF_ABSENT: [(u32, Verb); 4] = [(84, Verb::Add), (8, Verb::Del), (4, Verb::Status), (4, Verb::Gc)];
const NEXT_IF_PRESENT: [(u32, Verb); 6] =
    [(37, Verb::Check), (44, Verb::Del), (4, Verb::Add), (5, Verb::Status), (5, Verb::Gc), (5, Verb::Restore)];

/// How many of a hundred DELs are made after the namespace is gone.
const GONE: u32 = 4;
/// How many of a hundred killed ADDs are forgotten by the runtime and left to GC.
const FORGOTTEN: u32 = 10;

/// The codes of a refused ADD of an existing attachment: its link exists, or its address is reserved.
const ALREADY_PRESENT_CODES: [u32; 2] = [code::CONFLICT, code::HOLDS_ALREADY];

/// One of this many calls may fail with code 11: on a busy machine a lock may not be free in time.
const BUSY: usize = 100;

/// Fills the disk in `$DIR` for a moment.
const FILL: &str = "cat /dev/zero 2>/dev/null >$DIR/fill; sleep 0.05; rm $DIR/fill && sleep 0.15";

/// The assumed duration of a call before the first measurement, in microseconds.
const FIRST: u64 = 20_000;

/// The state of a container's attachment.
#[derive(Clone, Debug)]
enum AttachmentState {
    /// There is none.
    Absent,
    /// There is one, with this result of ADD.
    Present(Value),
    /// Unknown, because a call was killed or failed with code 11. DEL has to follow.
    Unknown,
}

/// A container, and its ID.
#[derive(Debug)]
struct Slot {
    id: String,
    container: Container,
    /// The snapshot before a chained plugin changes the container.
    inside: Option<HostSnapshot>,
    state: AttachmentState,
    /// How many IDs the slot has had.
    names: usize,
    place: usize,
}

/// A host with a workload.
pub(crate) struct Node {
    host: Host,
    workload: Workload,
    slots: Vec<Mutex<Slot>>,
    /// The IDs that the runtime knows. They are the valid attachments of a GC, and no ID is added during a GC, as the specification
    /// demands.
    known: RwLock<BTreeSet<String>>,
    /// The owner of each address.
    owners: Mutex<HashMap<String, String>>,
    /// The average duration of each verb, in microseconds.
    usual: [AtomicU64; Verb::COUNT],
    base: HostSnapshot,
    tally: Mutex<Tally>,
}

impl Node {
    /// Makes a host on which the network was used once, so that all shared state exists.
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

    /// Makes this many calls with all workers, then an audit. Returns the counts and findings.
    pub(crate) fn batch(&self, chance: &mut Rng, operations: usize) -> Tally {
        let subject = &self.workload.by[0];
        let fill = subject.disk.map(|_| FILL.replace("$DIR", &self.host.dir().display().to_string()));
        let lines = fill.into_iter().chain([subject.background.to_owned()]).filter(|line| !line.is_empty());
        let background = lines.map(|line| move || self.run_background(&line)).collect();
        self.host.enter(|| {
            while_repeating(background, || self.run_workers(chance, operations));
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

    /// Runs all workers, each with an equal part of the calls.
    fn run_workers(&self, chance: &mut Rng, operations: usize) {
        let each = operations.div_ceil(self.workload.workers);
        thread::scope(|scope| {
            for worker in 0..self.workload.workers {
                let chance = chance.fork();
                scope.spawn(move || self.work(worker, chance, each));
            }
        });
    }

    /// Runs the background line of the subject.
    fn run_background(&self, line: &str) {
        let (succeeded, output) = self.host.try_sh(line);
        if !succeeded {
            self.report(format!("the background line failed: {line}: {output}"));
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
            (Verb::Restore, AttachmentState::Present(result)) => self.restore(slot, &result, chance),
            (verb, _) => self.call_that_succeeds(verb, "", "", &[], chance),
        }
    }

    fn add(&self, slot: &mut Slot, chance: &mut Rng) {
        let output =
            self.call(self.random_subject(chance), Verb::Add, &slot.id, &slot.container.path(), &[], Some(chance));
        match output.exit {
            0 => match serde_json::from_str::<Value>(&output.stdout) {
                Ok(result) => {
                    self.claim_addresses(&slot.id, &result);
                    slot.state = AttachmentState::Present(result);
                }
                Err(error) => self.report(format!("ADD of {}: {error}: {output:?}", slot.id)),
            },
            KILLED if percent(FORGOTTEN, chance) => self.forget(slot),
            _ if is_unknown(&output) || self.found_disk_full(&output) => slot.state = AttachmentState::Unknown,
            _ => {
                self.report(format!("ADD of {}: {}", slot.id, describe(&output)));
                slot.state = AttachmentState::Unknown;
            }
        }
    }

    /// Adds an existing attachment: the tested plugin refuses that, or succeeds if it is a chained one. The attachment still works.
    fn add_again(&self, slot: &mut Slot, result: &Value, chance: &mut Rng) {
        let output = self.call(&self.workload.by[0], Verb::Add, &slot.id, &slot.container.path(), &[], Some(chance));
        let is_right = if self.workload.by[0].is_chained() { output.exit == 0 } else { refuses_again(&output) };
        if !is_unknown(&output) && !is_right {
            self.report(format!("ADD of {}, which was there: {}", slot.id, describe(&output)));
        }
        self.check(slot, result, chance);
    }

    fn check(&self, slot: &mut Slot, result: &Value, chance: &mut Rng) {
        let more = [("prevResult", result.clone())];
        let by = self.random_subject(chance);
        let output = self.call(by, Verb::Check, &slot.id, &slot.container.path(), &more, Some(chance));
        if output.exit != 0 && !is_unknown(&output) {
            self.report(format!("CHECK of {}, which runs, by {}: {}", slot.id, by.bin.display(), describe(&output)));
        }
    }

    /// Restores what another program may have removed, which is nothing here. A plugin may not know the verb, which is cnikit's.
    fn restore(&self, slot: &mut Slot, result: &Value, chance: &mut Rng) {
        let more = [("prevResult", result.clone())];
        let by = &self.workload.by[0];
        let output = self.call(by, Verb::Restore, &slot.id, &slot.container.path(), &more, Some(chance));
        if output.exit != 0 && !is_unknown(&output) && !output.stdout.contains("unknown CNI_COMMAND") {
            self.report(format!("RESTORE of {}: {}", slot.id, describe(&output)));
        }
    }

    /// Deletes an attachment. The tested plugin may get incomplete input. Other plugins get complete input, and their calls are not
    /// killed.
    fn del(&self, slot: &mut Slot, state: &AttachmentState, chance: &mut Rng) {
        let result = if let AttachmentState::Present(result) = state { Some(result) } else { None };
        self.release_addresses(&slot.id);
        let by = if result.is_some() { self.random_subject(chance) } else { &self.workload.by[0] };
        let rude = std::ptr::eq(by, &raw const self.workload.by[0]);
        // If another implementation of a chained plugin made the changes, only the result identifies them.
        let needed = slot.inside.is_some() && self.workload.by.len() > 1;
        let told_result = result.filter(|_| !rude || needed || percent(80, chance));
        let more: Vec<_> = told_result.map(|result| ("prevResult", result.clone())).into_iter().collect();
        let mut path = slot.container.path();
        if rude && percent(GONE, chance) {
            path += "-that-is-gone";
            slot.renew(&self.workload.by[0], &self.host);
        }
        let output = self.call(by, Verb::Del, &slot.id, &path, &more, Some(chance));
        slot.state = match output.exit {
            0 => AttachmentState::Absent,
            _ if is_unknown(&output) => AttachmentState::Unknown,
            _ => {
                self.report(format!("DEL of {} by {}: {}", slot.id, by.bin.display(), describe(&output)));
                AttachmentState::Unknown
            }
        };
    }

    /// Runs GC with all known attachments as the valid ones, while others are added and deleted.
    fn gc(&self, chance: &mut Rng) {
        let known = self.known.read().unwrap();
        self.call_that_succeeds(Verb::Gc, "", "", &[("cni.dev/valid-attachments", attachments(&*known))], chance);
    }

    /// Calls the tested plugin with a verb of CNI 1.1.0, which has to succeed.
    fn call_that_succeeds(&self, verb: Verb, id: &str, path: &str, more: &[(&'static str, Value)], chance: &mut Rng) {
        let more = [more, &[("cniVersion", json!("1.1.0"))]].concat();
        let output = self.call(&self.workload.by[0], verb, id, path, &more, Some(chance));
        // A STATUS says that no ADD would succeed.
        let is_refused = verb == Verb::Status && self.found_disk_full(&output);
        if output.exit != 0 && !is_unknown(&output) && !is_refused {
            self.report(format!("{}: {}", verb.command(), describe(&output)));
        }
    }

    /// Whether the call failed because the disk was full, which may be; counts it.
    fn found_disk_full(&self, output: &CallOutput) -> bool {
        let is_full = self.workload.by[0].disk.is_some() && is_for_want_of_space(output);
        self.tally.lock().unwrap().on_full_disk += usize::from(is_full);
        is_full
    }

    /// Simulates a runtime that is killed during an ADD and knows nothing of it afterwards: the container is gone, and its ID is
    /// not used again.
    fn forget(&self, slot: &mut Slot) {
        let mut known = self.known.write().unwrap();
        known.remove(&slot.id);
        slot.names += 1;
        slot.id = name(slot.place, slot.names);
        slot.renew(&self.workload.by[0], &self.host);
        slot.state = AttachmentState::Absent;
        known.insert(slot.id.clone());
    }

    /// One of the plugins, at random.
    fn random_subject(&self, chance: &mut Rng) -> &Subject {
        &self.workload.by[chance.usize(..self.workload.by.len())]
    }

    /// Calls a plugin. If `chance` is given and it is the tested one, the call may be killed at a random moment of up to 5/4 of its
    /// usual duration.
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
        let mut kill_after = None;
        if let Some(chance) = chance
            && std::ptr::eq(by, &raw const self.workload.by[0])
            && percent(self.workload.kills, chance)
        {
            let end = usual.load(Ordering::Relaxed) * 5 / 4;
            kill_after = Some(Duration::from_micros(chance.u64(..=end)));
        }
        let mut conf = by.conf_of(verb.command(), netns);
        more.iter().for_each(|(key, value)| conf[*key] = value.clone());
        let env = by.environment(verb.command(), id, netns, &[]);
        let begin = Instant::now();
        let output = call::call(&by.bin.join(&by.plugin), &env, conf.to_string().as_bytes(), kill_after);
        let made = usize::from(output.is_ok());
        let output =
            output.unwrap_or_else(|error| CallOutput { exit: 1, stdout: error.to_string(), stderr: String::new() });
        if kill_after.is_none() {
            let took = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
            usual.store((usual.load(Ordering::Relaxed) * 7 + took) / 8, Ordering::Relaxed);
        }
        let mut tally = self.tally.lock().unwrap();
        tally.operations += made;
        tally.kills += usize::from(output.exit == KILLED);
        tally.busy += usize::from(is_busy(&output));
        output
    }

    /// Records the container as the owner of the addresses, which must not have another owner.
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

    /// Replaces the container by a new one.
    fn renew(&mut self, subject: &Subject, host: &Host) {
        let Slot { container, inside, .. } = Slot::new(subject, host, self.place);
        self.container = container;
        self.inside = inside;
    }
}

/// A container ID. All have one length, so that none is part of another.
fn name(place: usize, names: usize) -> String {
    format!("c-{place:03}-{names:06}")
}

/// Whether the call failed with code 11 (try again later).
fn is_busy(output: &CallOutput) -> bool {
    output.exit == 1
        && serde_json::from_str::<Value>(&output.stdout).is_ok_and(|error| error["code"] == code::TRY_AGAIN)
}

/// Whether the effect of the call is unknown: it was killed, or failed with code 11.
fn is_unknown(output: &CallOutput) -> bool {
    output.exit == KILLED || is_busy(output)
}

/// Whether the error is that of a full disk.
fn is_for_want_of_space(output: &CallOutput) -> bool {
    output.exit == 1 && ["No space left", "is full"].iter().any(|text| output.stdout.contains(text))
}

/// Whether an ADD was refused because the attachment exists.
fn refuses_again(output: &CallOutput) -> bool {
    let error = serde_json::from_str::<Value>(&output.stdout).unwrap_or_default();
    let text = ["msg", "details"].map(|key| error[key].as_str().unwrap_or_default()).concat();
    output.exit == 1 && ALREADY_PRESENT_CODES.iter().any(|code| error["code"] == *code) && text.contains("already")
}

/// True in this many of a hundred cases.
fn percent(times: u32, chance: &mut Rng) -> bool {
    chance.u32(..100) < times
}

/// Chooses one of these verbs by weight; the weights sum to 100.
fn weighted_choice(weighed: &[(u32, Verb)], chance: &mut Rng) -> Verb {
    let mut at = chance.u32(..100);
    for (weight, verb) in weighed {
        if at < *weight {
            return *verb;
        }
        at -= weight;
    }
    panic!("the weights do not sum to 100")
}

fn describe(output: &CallOutput) -> String {
    format!("exit {}: {}{}", output.exit, output.stdout.trim(), output.stderr.trim())
}
