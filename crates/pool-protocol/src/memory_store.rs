//! The keys of an engine in memory, for the model and for tests.

use std::collections::{BTreeMap, BTreeSet};

use cnikit_pool::{Incarnation, KeyOfEngine};

use crate::{
    BlockId, FoundValue, Guard, KeyReply, KeyRequest, Outcome, StoredValue, Survey, Transaction, WriteOperation,
};

/// Keys and values with one revision for all, as etcd has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryStore {
    /// The revision of the last write.
    pub revision: i64,
    /// The values.
    pub values: BTreeMap<KeyOfEngine, StoredValue>,
    /// The pools whose definition does not count yet.
    pub pending: BTreeSet<KeyOfEngine>,
}

impl MemoryStore {
    /// Executes a transaction.
    pub fn commit(&mut self, transaction: &Transaction) -> Outcome {
        if !transaction.guards.iter().all(|guard| self.holds(guard)) {
            let value = |guard: &Guard| self.values.get(guard.key()?).cloned();
            return Outcome::Refused(transaction.guards.iter().map(value).collect());
        }
        self.revision += 1;
        for write in &transaction.writes {
            match write {
                WriteOperation::Put(key, value) | WriteOperation::PutLeased(key, value) => {
                    let stored = StoredValue { value: value.clone(), revision: self.revision };
                    self.values.insert(key.clone(), stored);
                }
                WriteOperation::Delete(key) => drop(self.values.remove(key)),
            }
        }
        Outcome::Committed(vec![self.revision; transaction.writes.len()])
    }

    /// Executes a request about one key, as an engine without transactions does.
    pub fn request(&mut self, request: &KeyRequest) -> KeyReply {
        match request {
            KeyRequest::Read(key) => {
                let found = |stored: &StoredValue| FoundValue {
                    stored: stored.clone(),
                    is_pending: self.pending.contains(key),
                };
                KeyReply::Found(self.values.get(key).map(found))
            }
            KeyRequest::List(part) => {
                let of_part = self.values.iter().filter(|(key, _)| part.has(key));
                KeyReply::Listed(of_part.map(|(key, stored)| (key.clone(), stored.revision)).collect())
            }
            KeyRequest::Create { key, .. } if self.values.contains_key(key) => KeyReply::Refused,
            KeyRequest::Replace { key, revision, .. } | KeyRequest::Delete { key, revision }
                if self.values.get(key).is_none_or(|stored| stored.revision != *revision) =>
            {
                KeyReply::Refused
            }
            KeyRequest::Create { key, value, is_pending } | KeyRequest::Replace { key, value, is_pending, .. } => {
                self.revision += 1;
                self.values.insert(key.clone(), StoredValue { value: value.clone(), revision: self.revision });
                if *is_pending {
                    self.pending.insert(key.clone());
                } else {
                    self.pending.remove(key);
                }
                KeyReply::Written(self.revision)
            }
            KeyRequest::Delete { key, .. } => {
                self.revision += 1;
                self.values.remove(key);
                self.pending.remove(key);
                KeyReply::Written(self.revision)
            }
        }
    }

    /// The survey of a node, of all its blocks and those that are `held`.
    pub fn survey(&self, node: &str, incarnation: Incarnation, held: &BTreeSet<BlockId>) -> Survey {
        let values = self.values.iter().map(|(key, stored)| (key.clone(), stored.clone()));
        Survey::gather(node, incarnation, held, values)
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Absent(key) => !self.values.contains_key(key),
            Guard::Unchanged(key, revision) => self.values.get(key).is_some_and(|stored| stored.revision == *revision),
            Guard::NoneSince(part, revision) => {
                self.values.iter().all(|(key, stored)| !part.has(key) || stored.revision <= *revision)
            }
        }
    }
}
