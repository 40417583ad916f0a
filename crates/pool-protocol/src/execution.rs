//! A transaction on an engine that writes one key at a time, such as the Kubernetes API: its requests, one after the other, each
//! decided by the replies before.
//!
//! # Write, then check
//!
//! Each key is written under its own guard: it is created if it does not exist, or replaced or deleted under the revision in which
//! it was written last. The other guards are read *after* the writes, and if one of them does not hold, what was written is undone
//! under the revision of that write. The transaction counts as committed only after these reads. This is as good as a transaction
//! over all keys at the moment of the first of the reads, for two reasons:
//!
//! - a guard that does not hold once never holds again, because no revision comes back and no fence is deleted. So guards that hold
//!   when they are read held at that moment, all of them;
//! - a key that is written before the check keeps other nodes from writing it, and no address is assigned from it: a block serves
//!   only after the check.
//!
//! A fence is also written first: the blocks are listed after it, so a block is either listed, or its owner sees the fence. The
//! definition of a pool is first marked as pending, under which no block is claimed, then the blocks are listed, then the mark is
//! removed.
//!
//! A process that ends in the middle leaves blocks of its own, which do not serve. The next survey finds them, and they are adopted
//! by a write of their own or given back: see [`super::plan()`].
//!
//! A transaction that only takes away (a fence, blocks of a fenced node, what a node gives back) has its guards read first,
//! because a deletion is not undone.

use cnikit_pool::{KeyOfEngine, StaticRecord, UnheldRecord, read_record};

use super::sticky::left_to_name;
use super::survey::StoredValue;
use super::transaction::{Guard, Outcome, Part, Transaction, WriteOperation};

/// A request about one key, or one that lists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyRequest {
    /// Create the key; refused if it exists.
    Create {
        /// The key.
        key: KeyOfEngine,
        /// The value.
        value: Vec<u8>,
        /// Whether the definition of a pool does not count yet.
        is_pending: bool,
    },
    /// Replace the value; refused if the key has another revision.
    Replace {
        /// The key.
        key: KeyOfEngine,
        /// The value.
        value: Vec<u8>,
        /// The revision that it must still have.
        revision: i64,
        /// As of [`KeyRequest::Create`].
        is_pending: bool,
    },
    /// Delete the key; refused if it has another revision.
    Delete {
        /// The key.
        key: KeyOfEngine,
        /// The revision that it must still have.
        revision: i64,
    },
    /// Read the key.
    Read(KeyOfEngine),
    /// List the keys of a part with their revisions.
    List(Part),
}

impl KeyRequest {
    /// As of [`Execution::map_revisions`].
    pub fn map_revisions(&mut self, map: &mut dyn FnMut(i64) -> i64) {
        if let KeyRequest::Replace { revision, .. } | KeyRequest::Delete { revision, .. } = self {
            *revision = map(*revision);
        }
    }

    /// Whether it can change something.
    pub fn writes(&self) -> bool {
        !matches!(self, KeyRequest::Read(_) | KeyRequest::List(_))
    }
}

/// The reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyReply {
    /// It was written in this revision.
    Written(i64),
    /// It was not written.
    Refused,
    /// What the key has.
    Found(Option<FoundValue>),
    /// The keys and their revisions.
    Listed(Vec<(KeyOfEngine, i64)>),
}

/// The value of one key, as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoundValue {
    /// The value.
    pub stored: StoredValue,
    /// Whether it is the definition of a pool that does not count yet: nothing is claimed by it.
    pub is_pending: bool,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRequest {
    /// Ask this, and give the reply to [`Execution::answer`].
    Ask(KeyRequest),
    /// Nothing: this is the outcome.
    Done(Outcome),
}

/// When the guards that are not about a written key are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckOrder {
    /// After the writes, which are undone if a guard does not hold.
    AfterWrites,
    /// Before the writes.
    BeforeWrites,
}

impl CheckOrder {
    /// That of a transaction: before the writes if these only take away.
    pub fn of(transaction: &Transaction) -> CheckOrder {
        if transaction.writes.iter().all(takes_away) { CheckOrder::BeforeWrites } else { CheckOrder::AfterWrites }
    }
}

fn takes_away(write: &WriteOperation) -> bool {
    match write {
        WriteOperation::Delete(_) | WriteOperation::Put(KeyOfEngine::Fence { .. }, _) => true,
        WriteOperation::Put(KeyOfEngine::Static { .. }, value) => is_unheld(value),
        WriteOperation::Put(..) | WriteOperation::PutLeased(..) => false,
    }
}

fn is_unheld(value: &[u8]) -> bool {
    read_record::<StaticRecord>(value).is_err() && read_record::<UnheldRecord>(value).is_ok()
}

/// A transaction that is executed one key at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Execution {
    transaction: Transaction,
    /// The guards that are not about a written key, by their places in the transaction.
    others: Vec<usize>,
    /// When they are read.
    order: CheckOrder,
    phase: Phase,
    /// What was read of the written keys before, where that is needed; one entry per write.
    before: Vec<Option<FoundValue>>,
    /// The revisions of the writes that were executed, in their order.
    written: Vec<i64>,
    /// What is known of the guards' keys, for [`Outcome::Refused`].
    values: Vec<Option<StoredValue>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Read what a written key has.
    ReadBefore(usize),
    /// Read a guard, by its place in `others`.
    Check(usize),
    /// Write.
    Write(usize),
    /// A write was refused: read why.
    ReadTaken(usize),
    /// Remove the mark of a definition that is pending.
    Settle(usize),
    /// Undo a write.
    Undo(usize),
    Done(Outcome),
}

impl Execution {
    /// Begins a transaction.
    pub fn new(transaction: Transaction) -> Execution {
        let order = CheckOrder::of(&transaction);
        Execution::in_order(transaction, order)
    }

    /// As [`Execution::new`], with a given order.
    pub fn in_order(transaction: Transaction, order: CheckOrder) -> Execution {
        let is_written =
            |guard: &Guard| guard.key().is_some_and(|key| transaction.writes.iter().any(|write| write.key() == key));
        let others = (0..transaction.guards.len()).filter(|n| !is_written(&transaction.guards[*n])).collect();
        let before = vec![None; transaction.writes.len()];
        let values = vec![None; transaction.guards.len()];
        let phase = Phase::ReadBefore(0);
        let mut begun = Execution { transaction, others, order, phase, before, written: Vec::new(), values };
        begun.phase = begun.first_read(0);
        begun
    }

    /// Whether something was written: then the transaction is open if a reply is lost.
    pub fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether it undoes what it has written.
    pub fn undoes(&self) -> bool {
        matches!(self.phase, Phase::Undo(_))
    }

    /// The transaction.
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }

    /// Replaces each revision, for a model that compares revisions and does not count them.
    pub fn map_revisions(&mut self, map: &mut dyn FnMut(i64) -> i64) {
        for guard in &mut self.transaction.guards {
            if let Guard::Unchanged(_, revision) | Guard::NoneSince(_, revision) = guard {
                *revision = map(*revision);
            }
        }
        for found in self.before.iter_mut().flatten() {
            found.stored.revision = map(found.stored.revision);
        }
        for revision in &mut self.written {
            *revision = map(*revision);
        }
        for stored in self.values.iter_mut().flatten() {
            stored.revision = map(stored.revision);
        }
    }

    /// What is to be done next.
    pub fn next(&self) -> NextRequest {
        let ask = |request: KeyRequest| NextRequest::Ask(request);
        match &self.phase {
            Phase::ReadBefore(n) | Phase::ReadTaken(n) => {
                ask(KeyRequest::Read(self.transaction.writes[*n].key().clone()))
            }
            Phase::Check(n) => ask(match &self.transaction.guards[self.others[*n]] {
                Guard::Absent(key) | Guard::Unchanged(key, _) => KeyRequest::Read(key.clone()),
                Guard::NoneSince(part, _) => KeyRequest::List(part.clone()),
            }),
            Phase::Write(n) => ask(self.write(*n)),
            Phase::Settle(n) => ask(self.settle(*n)),
            Phase::Undo(n) => match self.reversal(*n) {
                Some(request) => ask(request),
                // `undo_from` has skipped these.
                None => NextRequest::Done(self.refused()),
            },
            Phase::Done(outcome) => NextRequest::Done(outcome.clone()),
        }
    }

    /// Takes the reply to what [`Execution::next`] asked.
    pub fn answer(&mut self, reply: KeyReply) {
        self.phase = match (self.phase.clone(), reply) {
            (Phase::ReadBefore(n), KeyReply::Found(found)) => self.read_before(n, found),
            (Phase::Check(n), reply) => self.checked(n, &reply),
            (Phase::Write(n), KeyReply::Written(revision)) => {
                self.written.push(revision);
                self.first_write(n + 1)
            }
            (Phase::Write(n), _) => Phase::ReadTaken(n),
            (Phase::ReadTaken(n), KeyReply::Found(found)) => {
                self.note(n, found);
                self.undo_from(self.written.len())
            }
            (Phase::Settle(n), KeyReply::Written(revision)) => {
                self.written[n] = revision;
                self.first_settle(n + 1)
            }
            (Phase::Settle(_), _) => self.undo_from(self.written.len()),
            (Phase::Undo(n), KeyReply::Written(_)) => self.undo_from(n),
            // Another party has written the key since. What is left is this node's own, and the next survey finds it.
            (Phase::Undo(_), _) => Phase::Done(self.refused()),
            (phase, _) => phase,
        };
    }

    fn refused(&self) -> Outcome {
        Outcome::Refused(self.values.clone())
    }

    /// The guard about a written key, with its place.
    fn guard_of(&self, n: usize) -> Option<(usize, &Guard)> {
        let key = self.transaction.writes[n].key();
        self.transaction.guards.iter().enumerate().find(|(_, guard)| guard.key() == Some(key))
    }

    /// Notes what a written key has.
    fn note(&mut self, n: usize, found: Option<FoundValue>) {
        if let Some((place, _)) = self.guard_of(n) {
            self.values[place] = found.map(|found| found.stored);
        }
    }

    /// Whether it has to be known what a key had before it is written: to write it without a guard, or to undo the write.
    fn needs_before(&self, n: usize) -> bool {
        let write = &self.transaction.writes[n];
        match self.guard_of(n) {
            None => true,
            Some((_, Guard::Unchanged(..))) => {
                let is_last = self.order == CheckOrder::BeforeWrites && self.transaction.writes.len() == 1;
                let kinds = matches!(
                    write.key(),
                    KeyOfEngine::Static { .. }
                        | KeyOfEngine::Sticky { .. }
                        | KeyOfEngine::Pool(_)
                        | KeyOfEngine::Select(_)
                );
                kinds && !is_last
            }
            Some(_) => false,
        }
    }

    fn first_read(&self, from: usize) -> Phase {
        for n in from..self.transaction.writes.len() {
            if self.needs_before(n) {
                return Phase::ReadBefore(n);
            }
        }
        if self.order == CheckOrder::BeforeWrites { self.check(0) } else { self.first_write(0) }
    }

    fn read_before(&mut self, n: usize, found: Option<FoundValue>) -> Phase {
        if let Some((_, Guard::Unchanged(_, revision))) = self.guard_of(n)
            && found.as_ref().is_none_or(|found| found.stored.revision != *revision)
        {
            self.note(n, found);
            return Phase::Done(self.refused());
        }
        self.before[n] = found;
        self.first_read(n + 1)
    }

    fn check(&self, n: usize) -> Phase {
        if n < self.others.len() {
            return Phase::Check(n);
        }
        match self.order {
            CheckOrder::BeforeWrites => self.first_write(0),
            CheckOrder::AfterWrites => self.first_settle(0),
        }
    }

    fn checked(&mut self, n: usize, reply: &KeyReply) -> Phase {
        let place = self.others[n];
        let holds = match (&self.transaction.guards[place], reply) {
            (Guard::Absent(_), KeyReply::Found(found)) => found.is_none(),
            (Guard::Unchanged(_, revision), KeyReply::Found(Some(found))) => {
                found.stored.revision == *revision && !found.is_pending
            }
            (Guard::NoneSince(_, revision), KeyReply::Listed(listed)) => {
                let is_own = |key: &KeyOfEngine| self.transaction.writes.iter().any(|write| write.key() == key);
                listed.iter().all(|(key, found)| found <= revision || is_own(key))
            }
            _ => false,
        };
        if holds {
            return self.check(n + 1);
        }
        if let KeyReply::Found(found) = reply {
            self.values[place] = found.as_ref().map(|found| found.stored.clone());
        }
        self.undo_from(self.written.len())
    }

    fn first_write(&self, n: usize) -> Phase {
        if n < self.transaction.writes.len() {
            return Phase::Write(n);
        }
        match self.order {
            CheckOrder::BeforeWrites => self.first_settle(0),
            CheckOrder::AfterWrites => self.check(0),
        }
    }

    fn write(&self, n: usize) -> KeyRequest {
        let write = &self.transaction.writes[n];
        let key = write.key().clone();
        let before = self.before[n].as_ref().map(|found| found.stored.revision);
        let revision = match self.guard_of(n) {
            Some((_, Guard::Unchanged(_, revision))) => Some(*revision),
            Some(_) => None,
            None => before,
        };
        match (write.value(), revision) {
            (None, revision) => KeyRequest::Delete { key, revision: revision.unwrap_or_default() },
            (Some(value), None) => {
                let is_pending = self.is_settled(n);
                KeyRequest::Create { key, value: value.to_vec(), is_pending }
            }
            (Some(value), Some(revision)) => {
                let is_pending = self.is_settled(n);
                // The definition before stays in force for what nodes have, until the new one counts.
                let shown = match &self.before[n] {
                    Some(before) if is_pending => before.stored.value.clone(),
                    _ => value.to_vec(),
                };
                KeyRequest::Replace { key, value: shown, revision, is_pending }
            }
        }
    }

    /// Whether a write is made in two steps, with a mark between them.
    fn is_settled(&self, n: usize) -> bool {
        matches!(&self.transaction.writes[n], WriteOperation::Put(KeyOfEngine::Pool(_), _))
    }

    fn first_settle(&self, from: usize) -> Phase {
        for n in from..self.transaction.writes.len() {
            if self.is_settled(n) {
                return Phase::Settle(n);
            }
        }
        Phase::Done(Outcome::Committed(self.written.clone()))
    }

    fn settle(&self, n: usize) -> KeyRequest {
        let write = &self.transaction.writes[n];
        let value = write.value().unwrap_or_default().to_vec();
        KeyRequest::Replace { key: write.key().clone(), value, revision: self.written[n], is_pending: false }
    }

    /// The next write to undo, of those before this one.
    fn undo_from(&self, end: usize) -> Phase {
        for n in (0..end).rev() {
            if self.reversal(n).is_some() {
                return Phase::Undo(n);
            }
        }
        Phase::Done(self.refused())
    }

    /// The request that undoes a write, under the revision that it was given; `None` if it may stay.
    fn reversal(&self, n: usize) -> Option<KeyRequest> {
        let write = &self.transaction.writes[n];
        let (key, revision) = (write.key().clone(), self.written[n]);
        let before = self.before[n].as_ref();
        let Some(value) = write.value() else {
            // The deleted key had no owner.
            let value = before?.stored.value.clone();
            return Some(KeyRequest::Create { key, value, is_pending: false });
        };
        let is_created = matches!((self.guard_of(n), before), (Some((_, Guard::Absent(_))), _) | (None, None));
        let (value, is_pending) = match &key {
            // They give no node an address: the agent that has the session writes them anew.
            KeyOfEngine::Session(_) | KeyOfEngine::Node(_) | KeyOfEngine::Usage(_) | KeyOfEngine::Fence { .. } => {
                return None;
            }
            _ if is_created => return Some(KeyRequest::Delete { key, revision }),
            // Only the definition of a pool can be pending.
            KeyOfEngine::Pool(_) | KeyOfEngine::Sticky { .. } | KeyOfEngine::Select(_) => {
                (before?.stored.value.clone(), before?.is_pending)
            }
            // It was this node's before, and may be in use; otherwise it stays with its name.
            KeyOfEngine::Static { .. } => {
                let written = StoredValue { value: value.to_vec(), revision };
                if before.is_some_and(|before| has_same_owner(&before.stored, &written)) {
                    return None;
                }
                (left_to_name(&written)?, false)
            }
            // A block is replaced by its own value.
            KeyOfEngine::Block { .. } => return None,
        };
        Some(KeyRequest::Replace { key, value, revision, is_pending })
    }
}

fn has_same_owner(one: &StoredValue, other: &StoredValue) -> bool {
    let owner = |stored: &StoredValue| stored.record::<StaticRecord>().map(|record| (record.node, record.incarnation));
    owner(one).is_some() && owner(one) == owner(other)
}
