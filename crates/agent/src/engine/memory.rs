//! An engine in memory, for the model and for tests.

use std::collections::{BTreeMap, BTreeSet};

use cnikit_pool::{Incarnation, KeyOfEngine};

use crate::protocol::{BlockId, Guard, Outcome, StoredValue, Survey, Transaction, WriteOperation};

/// Keys and values with one revision for all, as etcd has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryStore {
    /// The revision of the last write.
    pub revision: i64,
    /// The values.
    pub values: BTreeMap<KeyOfEngine, StoredValue>,
}

impl MemoryStore {
    /// Executes a transaction.
    pub fn commit(&mut self, transaction: &Transaction) -> Outcome {
        if !transaction.guards.iter().all(|guard| self.holds(guard)) {
            return Outcome::Refused(
                transaction.guards.iter().map(|guard| self.values.get(guard.key()).cloned()).collect(),
            );
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
        Outcome::Committed(self.revision)
    }

    /// What it has of a node.
    pub fn survey(&self, node: &str, incarnation: Incarnation, held: &BTreeSet<BlockId>) -> Survey {
        let values = self.values.iter().map(|(key, stored)| (key.clone(), stored.clone()));
        Survey::gather(node, incarnation, held, values)
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Absent(key) => !self.values.contains_key(key),
            Guard::Unchanged(key, revision) => self.values.get(key).is_some_and(|stored| stored.revision == *revision),
        }
    }
}
