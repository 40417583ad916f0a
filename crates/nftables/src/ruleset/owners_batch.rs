//! Replaces the rules of many owners in as few transactions as possible.

use std::collections::{HashMap, HashSet};

use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::ruleset::attempts::Attempts;
use crate::ruleset::desired_rules::{DesiredRules, Rules, replacement_messages};
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::nftables::Nftables;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::TableState;
use crate::wire::batch::Batch;
use crate::{Error, Result};

/// The most bytes of rules in one transaction. A socket with the default buffer sends 208 KiB at once; the messages for keys and
/// for deletions come in addition to the rules.
const MAX_BYTES: usize = 96 << 10;

/// The desired rules of many owners, for [`Nftables::apply_batch`].
///
/// The result for each owner is that of [`Nftables::replace`]. Each transaction is bound to the ruleset that was read, so no
/// change that another program makes in between is lost.
#[derive(Default)]
pub struct OwnersBatch {
    tables: Vec<TableBatch>,
    owners: usize,
    /// For each request, in order: the number of its owner.
    requests: Vec<usize>,
}

/// The outcome of one request of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchOutcome {
    /// The desired rules were installed already.
    Unchanged,
    /// The desired rules were installed, by this request or another one in the same transaction.
    Made,
    /// Nothing was changed, because the request is impossible or in conflict with the rules of another owner.
    /// [`Nftables::replace`] returns the error.
    #[default]
    Skipped,
}

/// The requests for one table.
struct TableBatch {
    layout: TableLayout,
    /// The index in which no two owners may have the same key.
    exclusive_index: Option<usize>,
    owners: Vec<Owner>,
}

struct Owner {
    /// Its number among the owners of all tables.
    number: usize,
    filter: OwnerFilter,
    desired: DesiredRules,
}

impl OwnersBatch {
    /// How many requests were added.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Adds the desired rules of one owner. The same request may be added again. No two owners may have rules with the same key
    /// in the index of the set `exclusive_index`.
    ///
    /// # Errors
    /// Those of [`Nftables::begin_replace`]; a layout with chains of the owner's own, which are not supported here; an index that
    /// the layout does not have; other rules of the same owner.
    pub fn add(
        &mut self,
        layout: TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
        exclusive_index: Option<&str>,
    ) -> Result<()> {
        let filter = filter.into();
        let rules = rules.into();
        let refused = |why: &str| Error::ours("join", layout.to_string(), why.to_owned());
        if !layout.owned_chains.is_empty() {
            return Err(refused("it has chains of one owner"));
        }
        let exclusive_index = match exclusive_index {
            Some(set) => Some(layout.index_of(set).map_err(|_| refused("it has no such index"))?),
            None => None,
        };
        let desired = DesiredRules::of(&layout, &filter, &rules)?;
        let existing = self.tables.iter().position(|table| table.has_layout(&layout));
        let position = existing.unwrap_or(self.tables.len());
        if existing.is_none() {
            self.tables.push(TableBatch { layout, exclusive_index, owners: Vec::new() });
        }
        let table = &mut self.tables[position];
        let Some(same) = table.owners.iter().find(|owner| owner.filter == filter) else {
            table.owners.push(Owner { number: self.owners, filter, desired });
            self.requests.push(self.owners);
            self.owners += 1;
            return Ok(());
        };
        if same.desired.by_chain != desired.by_chain {
            return Err(Error::ours("join", table.layout.to_string(), "one owner wants two things of it"));
        }
        self.requests.push(same.number);
        Ok(())
    }
}

impl Nftables {
    /// Makes the changes of a batch and returns the outcome of each request, in the order in which they were added. If the kernel
    /// refuses a transaction, all its requests are skipped.
    pub fn apply_batch(&self, batch: OwnersBatch) -> Vec<BatchOutcome> {
        let mut outcomes = vec![BatchOutcome::Skipped; batch.owners];
        for table in batch.tables {
            for owners in table.transactions() {
                let Ok(change) = self.apply_to_owners(&table, owners) else { continue };
                for number in change.owners {
                    outcomes[number] = change.outcome;
                }
            }
        }
        batch.requests.into_iter().map(|number| outcomes[number]).collect()
    }

    fn apply_to_owners(&self, table: &TableBatch, owners: &[Owner]) -> Result<Change> {
        let mut attempts = Attempts::new();
        loop {
            let change = self.change(table, owners)?;
            if attempts.send(self, &change.batch)? {
                return Ok(change);
            }
        }
    }

    /// The transaction that installs the desired rules of some owners.
    fn change(&self, table: &TableBatch, owners: &[Owner]) -> Result<Change> {
        let layout = &table.layout;
        let state = self.table_state(layout)?;
        let by_chain = self.rules_by_chain(layout, |_| true)?;
        let skipped = table.conflicting_owners(&by_chain);
        let owners: Vec<&Owner> = owners.iter().filter(|owner| !skipped.contains(&owner.number)).collect();
        let numbers = owners.iter().map(|owner| owner.number).collect();
        let (rule_changes, owner_handles) = rule_changes(layout, &owners, &by_chain);
        if rule_changes.is_empty() && owners.iter().all(|owner| owner.desired.is_empty()) {
            return Ok(Change { batch: Batch::default(), owners: numbers, outcome: BatchOutcome::Unchanged });
        }
        let mut owner_rules = Vec::new();
        let mut other_rules = Vec::new();
        for rule in by_chain.iter().flatten() {
            if owner_handles.contains(&rule.handle()) {
                owner_rules.push(rule);
            } else {
                other_rules.push(rule);
            }
        }
        let messages = self.change_messages(&state, &owners, owner_rules, other_rules, rule_changes)?;
        let outcome = if messages.is_empty() { BatchOutcome::Unchanged } else { BatchOutcome::Made };
        let batch = Batch { guard: Some(state.generation), messages, ..Batch::default() };
        Ok(Change { batch, owners: numbers, outcome })
    }

    /// The messages of a change: the repair of the table, keys to add, rules, and keys to delete.
    fn change_messages(
        &self,
        state: &TableState<'_>,
        owners: &[&Owner],
        owner_rules: Vec<&InstalledRule>,
        other_rules: Vec<&InstalledRule>,
        rule_changes: Vec<NetfilterMessage>,
    ) -> Result<Vec<NetfilterMessage>> {
        let layout = state.layout;
        let mut messages = state.repair()?;
        let mut added: Vec<Element> = Vec::new();
        for owner in owners {
            added.extend_from_slice(&owner.desired.keys);
        }
        let other_keys = Element::all_of(layout, other_rules);
        let mut dropped = Element::all_of(layout, owner_rules);
        let used: HashSet<&Element> = added.iter().chain(&other_keys).collect();
        dropped.retain(|element| !used.contains(element));
        // The sets of an incomplete table may lack keys of installed rules.
        if !messages.is_empty() {
            added.extend(other_keys);
        }
        let mut seen = HashSet::new();
        added.retain(|element| seen.insert(element.clone()));
        for element in self.missing_elements(layout, added)? {
            messages.push(element.addition(layout, false)?);
        }
        messages.extend(rule_changes);
        for element in self.existing_elements(layout, &dropped)? {
            messages.push(element.deletion(layout)?);
        }
        Ok(messages)
    }
}

/// The transaction for some owners of a table.
struct Change {
    batch: Batch,
    /// The numbers of the owners that it is about.
    owners: Vec<usize>,
    outcome: BatchOutcome,
}

/// The messages that replace the owners' rules, and the handles of the rules that these owners have before.
fn rule_changes(
    layout: &TableLayout,
    owners: &[&Owner],
    by_chain: &[Vec<InstalledRule>],
) -> (Vec<NetfilterMessage>, HashSet<u64>) {
    let mut messages = Vec::new();
    let mut handles = HashSet::new();
    for owner in owners {
        let installed_and_desired = by_chain.iter().zip(&owner.desired.by_chain);
        for (chain, (installed, desired)) in layout.rule_chains.iter().zip(installed_and_desired) {
            let mut owner_rules = Vec::new();
            for rule in installed {
                if owner.filter.selects(rule) {
                    handles.insert(rule.handle());
                    owner_rules.push(rule.clone());
                }
            }
            messages.extend(replacement_messages(&owner_rules, desired, layout, chain));
        }
    }
    (messages, handles)
}

impl TableBatch {
    /// Whether this is the same layout. The functions that make keys are not compared: they follow from the names of the sets.
    fn has_layout(&self, layout: &TableLayout) -> bool {
        let own = &self.layout;
        own.family == layout.family
            && own.table == layout.table
            && own.chains == layout.chains
            && own.rule_chains == layout.rule_chains
            && own.prologue == layout.prologue
            && own.accepted_prologues == layout.accepted_prologues
            && own.jump_conditions == layout.jump_conditions
            && own.indexes.iter().map(|index| index.set.name).eq(layout.indexes.iter().map(|index| index.set.name))
    }

    /// The owners, grouped so that the rules of each group fit into one transaction.
    fn transactions(&self) -> Vec<&[Owner]> {
        let mut transactions = Vec::new();
        let mut start = 0;
        let mut size = 0;
        for (position, owner) in self.owners.iter().enumerate() {
            let added = owner.desired.size();
            if position > start && size + added > MAX_BYTES {
                transactions.push(&self.owners[start..position]);
                start = position;
                size = 0;
            }
            size += added;
        }
        transactions.push(&self.owners[start..]);
        transactions
    }

    /// The numbers of the owners that are skipped: those that share an installed rule or an exclusive key with another owner, and
    /// those with rules that do not name them. The latter may be rules of another program that are equivalent.
    fn conflicting_owners(&self, by_chain: &[Vec<InstalledRule>]) -> HashSet<usize> {
        let mut conflicting = HashSet::new();
        // The owners that have or want each key of the exclusive index. `None` is an owner without a request.
        let mut owners_of_keys: HashMap<Element, HashSet<Option<usize>>> = HashMap::new();
        for rule in by_chain.iter().flatten() {
            let owners: Vec<&Owner> = self.owners.iter().filter(|owner| owner.filter.selects(rule)).collect();
            for owner in &owners {
                if owners.len() > 1 || owner.filter.owner().is_some() != rule.owner().is_some() {
                    conflicting.insert(owner.number);
                }
            }
            for key in Element::all_of(&self.layout, [rule]) {
                if Some(key.index) == self.exclusive_index {
                    owners_of_keys.entry(key).or_default().insert(owners.first().map(|owner| owner.number));
                }
            }
        }
        for owner in &self.owners {
            for key in &owner.desired.keys {
                if Some(key.index) == self.exclusive_index {
                    owners_of_keys.entry(key.clone()).or_default().insert(Some(owner.number));
                }
            }
        }
        for owners in owners_of_keys.into_values() {
            if owners.len() > 1 {
                conflicting.extend(owners.into_iter().flatten());
            }
        }
        conflicting
    }
}
