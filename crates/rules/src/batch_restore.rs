//! The rules of many attachments restored at once: with nftables in a few transactions, with iptables by a read and a write or two.

use std::collections::HashSet;

use cnikit_iptables::{
    Chains, Changes, Error as IptablesError, IpVersion, Programs, Result as IptablesResult, Ruleset, Table,
};
use cnikit_nftables::{BatchOutcome, Nftables, OwnerFilter, OwnersBatch, Rules, TableLayout};
use cnikit_plan::{BatchPart, RestoreBatch, RestoreOutcome};
use cnikit_skel::{Result, log};

use crate::backend::RuleBackend;

/// How often a table is read and written. The first attachment makes the chains that all share; the others follow in the next
/// round.
const ROUNDS: usize = 4;

/// The rules of nftables that many attachments want.
#[derive(Default)]
struct NftablesBatch(OwnersBatch);

/// Adds the rules that one owner wants in a table of nftables; see [`OwnersBatch::add`].
///
/// # Errors
/// As [`OwnersBatch::add`].
pub(crate) fn add_nftables(
    batch: &mut RestoreBatch,
    layout: TableLayout,
    filter: impl Into<OwnerFilter>,
    rules: impl Into<Rules>,
    sole: Option<&str>,
) -> Result<()> {
    batch.add(|part: &mut NftablesBatch| Ok(part.0.add(layout, filter, rules, sole)?))
}

impl BatchPart for NftablesBatch {
    fn make(self: Box<Self>) -> Vec<RestoreOutcome> {
        let requests = self.0.requests();
        let step = format_args!("restore {requests} at once with nftables");
        let made = log::step(step, || Ok(Nftables::here()?.apply_batch(self.0))).unwrap_or_default();
        made.into_iter().map(outcome).collect()
    }
}

fn outcome(of: BatchOutcome) -> RestoreOutcome {
    match of {
        BatchOutcome::Unchanged => RestoreOutcome::Unchanged,
        BatchOutcome::Made => RestoreOutcome::Made,
        BatchOutcome::Skipped => RestoreOutcome::Left,
    }
}

/// Rules of iptables that many attachments want.
#[derive(Default)]
struct IptablesBatch {
    tables: Vec<TableBatch>,
    /// In the order in which they were added.
    entries: Vec<BatchEntry>,
}

/// One attachment's entry: the index of its table, and its index there.
struct BatchEntry {
    table: usize,
    wanted: usize,
}

/// The changes that many attachments want in one table of iptables.
struct TableBatch {
    backend: RuleBackend,
    chains: Chains<'static>,
    version: IpVersion,
    all: Vec<Wanted>,
}

/// Computes from a table what has to change in it.
type Decide = Box<dyn Fn(&Table) -> Result<Changes>>;

/// The changes that one attachment wants in a table of iptables.
pub(crate) struct Wanted {
    /// Computes the changes; there are none if the table is as it should be.
    pub(crate) changes: Decide,
    /// Names that no two attachments of one round may both have, such as a chain or a host port.
    pub(crate) exclusive: Vec<String>,
}

/// Adds what one attachment wants of a table of iptables. Rules of this backend are in these `chains`.
///
/// # Errors
/// None today.
pub(crate) fn add_iptables(
    batch: &mut RestoreBatch,
    backend: RuleBackend,
    chains: Chains<'static>,
    version: IpVersion,
    wanted: Wanted,
) -> Result<()> {
    batch.add(|part: &mut IptablesBatch| {
        part.add(backend, chains, version, wanted);
        Ok(())
    })
}

impl IptablesBatch {
    fn add(&mut self, backend: RuleBackend, chains: Chains<'static>, version: IpVersion, wanted: Wanted) {
        let is_same = |table: &TableBatch| table.backend.what == backend.what && table.version == version;
        let index = self.tables.iter().position(is_same).unwrap_or(self.tables.len());
        if index == self.tables.len() {
            self.tables.push(TableBatch { backend, chains, version, all: Vec::new() });
        }
        let table = &mut self.tables[index];
        self.entries.push(BatchEntry { table: index, wanted: table.all.len() });
        table.all.push(wanted);
    }
}

impl BatchPart for IptablesBatch {
    fn make(self: Box<Self>) -> Vec<RestoreOutcome> {
        let made: Vec<Vec<RestoreOutcome>> = self.tables.iter().map(TableBatch::make).collect();
        self.entries.iter().map(|entry| made[entry.table][entry.wanted]).collect()
    }
}

impl TableBatch {
    /// The outcome of each attachment. One that fails is left: it is then restored alone, and reports the error.
    fn make(&self) -> Vec<RestoreOutcome> {
        let mut outcomes = vec![RestoreOutcome::Left; self.all.len()];
        let what = self.backend.what;
        let step = format_args!("restore {what} of {} at once with {}", self.all.len(), self.version);
        // An error is logged in the step and does not fail it.
        let _ = log::step(step, || {
            self.make_if_possible(&mut outcomes);
            Ok(())
        });
        outcomes
    }

    /// Makes the rules of all attachments for which that is possible. An error is logged.
    fn make_if_possible(&self, outcomes: &mut [RestoreOutcome]) {
        if let Err(error) = self.make_in_rounds(outcomes) {
            log::info(format_args!("{} are restored one after the other: {error}", self.backend.what));
        }
    }

    fn make_in_rounds(&self, outcomes: &mut [RestoreOutcome]) -> Result<()> {
        let backend = self.backend;
        let _lock = backend.lock()?;
        if self.has_other_variant().map_err(|error| backend.explained(error))? {
            return Ok(());
        }
        let mut pending: Vec<usize> = (0..self.all.len()).collect();
        for _ in 0..ROUNDS {
            let Some(ruleset) = backend.read_if_usable(self.version, self.chains.line_text())? else { break };
            let mut round = Round::default();
            pending.retain(|at| !round.add(*at, &self.all[*at], ruleset.table(), outcomes));
            match write(&ruleset, &round.changes) {
                Ok(()) => round.all.iter().for_each(|at| outcomes[*at] = RestoreOutcome::Made),
                // Another program may have changed the table after it was read.
                Err(IptablesError::Failed { .. } | IptablesError::Unread { .. }) => pending.extend(round.all),
                Err(error) => return Err(backend.explained(error)),
            }
            if pending.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Whether there are rules of the variant that the administrator has not chosen.
    fn has_other_variant(&self) -> IptablesResult<bool> {
        let nftables = Nftables::if_any()?;
        let chosen = Programs::find(self.version)?;
        let reached = Programs::reaching(nftables.as_ref(), self.version, self.backend.table, self.chains)?;
        Ok(reached.iter().any(|(programs, _)| *programs != chosen))
    }
}

fn write(ruleset: &Ruleset, changes: &Changes) -> IptablesResult<()> {
    match ruleset.begin(changes)? {
        Some(changing) => changing.finish(),
        None => Ok(()),
    }
}

/// The changes of one write. All of them are computed from the table as it was read. So they must not affect each other: each
/// attachment creates chains of its own, and appends rules.
#[derive(Default)]
struct Round {
    changes: Changes,
    /// The indexes of the attachments.
    all: Vec<usize>,
    claimed: HashSet<String>,
    is_full: bool,
}

impl Round {
    /// Adds the changes of an attachment. Returns false if they have to wait for the next round.
    fn add(&mut self, at: usize, wanted: &Wanted, table: &Table, outcomes: &mut [RestoreOutcome]) -> bool {
        if self.is_full {
            return false;
        }
        let Ok(changes) = (wanted.changes)(table) else { return true };
        if changes.is_empty() {
            outcomes[at] = RestoreOutcome::Unchanged;
            return true;
        }
        let only_adds = changes.only_add();
        let mut claims: HashSet<String> = changes.to_string().lines().map(str::to_owned).collect();
        claims.extend(wanted.exclusive.iter().cloned());
        let has_others = !self.all.is_empty();
        if has_others && (!only_adds || !claims.is_disjoint(&self.claimed)) {
            return false;
        }
        self.is_full = !only_adds;
        self.claimed.extend(claims);
        self.changes.extend(changes);
        self.all.push(at);
        true
    }
}

#[cfg(test)]
mod tests {
    use cnikit_iptables::IptablesRule;
    use cnikit_skel::Error;

    use super::*;
    use crate::backend::AbsentReport;

    fn wanted(exclusive: &[&str], changes: impl Fn(&mut Changes) -> Result<()> + 'static) -> Wanted {
        let made = move |_: &Table| {
            let mut made = Changes::default();
            changes(&mut made).map(|()| made)
        };
        Wanted { changes: Box::new(made), exclusive: exclusive.iter().map(|text| (*text).to_owned()).collect() }
    }

    fn adding(chain: &'static str, exclusive: &[&str]) -> Wanted {
        wanted(exclusive, move |changes| {
            changes.append(chain, &IptablesRule::any().jump("ACCEPT"));
            Ok(())
        })
    }

    fn removing() -> Wanted {
        wanted(&[], |changes| {
            changes.delete("A", &IptablesRule::any().jump("DROP"));
            Ok(())
        })
    }

    const BACKEND: RuleBackend = RuleBackend {
        kind: "tried rules",
        what: "tried rules",
        table: "nat",
        shared: &[],
        locks: false,
        key: "backend",
        nftables_needs: "",
        iptables_needs: "",
        absent: AbsentReport::Once,
    };

    #[test]
    fn each_kind_of_rules_has_a_table_of_each_version() {
        let mut batch = IptablesBatch::default();
        let other = RuleBackend { what: "other rules", ..BACKEND };
        let [v4, v6] = [IpVersion::V4, IpVersion::V6];
        for (backend, version) in [(BACKEND, v4), (BACKEND, v6), (other, v4), (BACKEND, v4), (other, v6), (BACKEND, v6)]
        {
            batch.add(backend, Chains::Named("A"), version, removing());
        }
        let entries: Vec<(usize, usize)> = batch.entries.iter().map(|entry| (entry.table, entry.wanted)).collect();
        assert_eq!(entries, [(0, 0), (1, 0), (2, 0), (0, 1), (3, 0), (1, 1)]);
        let tables: Vec<_> = batch.tables.iter().map(|one| (one.backend.what, one.version, one.all.len())).collect();
        let wanted = [(BACKEND.what, v4, 2), (BACKEND.what, v6, 2), (other.what, v4, 1), (other.what, v6, 1)];
        assert_eq!(tables, wanted);
    }

    #[test]
    fn what_nftables_skips_is_left_to_a_restore_of_its_own() {
        let of = [BatchOutcome::Unchanged, BatchOutcome::Made, BatchOutcome::Skipped].map(outcome);
        assert_eq!(of, [RestoreOutcome::Unchanged, RestoreOutcome::Made, RestoreOutcome::Left]);
    }

    #[test]
    fn one_write_has_what_only_adds_and_nothing_twice_or_one_removal() {
        let mut outcomes = [RestoreOutcome::Left; 7];
        let mut round = Round::default();
        let mut add = |at, one: &Wanted| round.add(at, one, &Table::default(), &mut outcomes);
        assert!(add(0, &adding("A", &[])) && add(1, &adding("B", &["tcp 80"])));
        assert!(!add(2, &adding("C", &["tcp 80"])), "two want one port");
        assert!(!add(3, &adding("A", &[])), "two want one line");
        assert!(!add(4, &removing()), "what is removed may be what others count on");
        assert!(add(5, &wanted(&[], |_| Ok(()))));
        assert!(add(6, &wanted(&[], |_| Err(Error::config("refused")))), "it fails again, alone");
        assert_eq!((round.all, round.changes.to_string()), (vec![0, 1], "-A A -j ACCEPT\n-A B -j ACCEPT\n".into()));
        let mut left = [RestoreOutcome::Left; 7];
        left[5] = RestoreOutcome::Unchanged;
        assert_eq!(outcomes, left);
        let mut alone = Round::default();
        assert!(alone.add(4, &removing(), &Table::default(), &mut outcomes));
        assert!(!alone.add(0, &adding("A", &[]), &Table::default(), &mut outcomes));
        assert_eq!(alone.all, [4]);
    }
}
