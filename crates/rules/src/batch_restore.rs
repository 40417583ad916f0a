//! The rules of many attachments restored at once: with nftables in a few transactions, with iptables by a read and a write or two.

use std::collections::HashSet;

use cnikit_iptables::{Chains, Changes, Changing, Error as Refused, IpVersion, Programs, Table};
use cnikit_nftables::{BatchOutcome, Nftables, OwnerFilter, OwnersBatch, Rules, TableLayout};
use cnikit_plan::{BatchPart, RestoreBatch, RestoreOutcome};
use cnikit_skel::{Result, log};

use crate::backend::RuleBackend;
use crate::iptables::Read;

/// How often a table is read and written. What all share is made with the first of them, the rest with the next.
const ROUNDS: usize = 4;

/// Rules of nftables that many attachments want.
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
        let wishes = self.0.requests();
        let step = format_args!("restore {wishes} at once with nftables");
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
    /// Of each wish: its table, and its place among the wishes of that table.
    wishes: Vec<(usize, usize)>,
}

/// What is wanted of one table of iptables.
struct TableBatch {
    backend: RuleBackend,
    chains: Chains<'static>,
    version: IpVersion,
    all: Vec<Wanted>,
}

/// Decides by a table what has to change in it.
type Decide = Box<dyn Fn(&Table) -> Result<Changes>>;

/// What one attachment wants of a table of iptables.
pub(crate) struct Wanted {
    /// What has to change in the table as it is; nothing if it is as it is wanted.
    pub(crate) changes: Decide,
    /// What it must not share with any attachment that is made with it.
    pub(crate) sole: Vec<String>,
}

/// Adds what one attachment wants of a table of iptables. Rules of this backend are in these `chains`.
///
/// # Errors
/// None today.
pub(crate) fn add_iptables(
    batch: &mut RestoreBatch,
    (backend, chains): (RuleBackend, Chains<'static>),
    version: IpVersion,
    wanted: Wanted,
) -> Result<()> {
    batch.add(|part: &mut IptablesBatch| {
        let is_same = |table: &TableBatch| (table.backend.what, table.version) == (backend.what, version);
        let table = part.tables.iter().position(is_same).unwrap_or(part.tables.len());
        if table == part.tables.len() {
            part.tables.push(TableBatch { backend, chains, version, all: Vec::new() });
        }
        part.wishes.push((table, part.tables[table].all.len()));
        part.tables[table].all.push(wanted);
        Ok(())
    })
}

impl BatchPart for IptablesBatch {
    fn make(self: Box<Self>) -> Vec<RestoreOutcome> {
        let made: Vec<Vec<RestoreOutcome>> = self.tables.iter().map(TableBatch::make).collect();
        self.wishes.iter().map(|(table, place)| made[*table][*place]).collect()
    }
}

impl TableBatch {
    /// What became of each wish. One that meets with any difficulty is left: restored by itself, it tells what that is.
    fn make(&self) -> Vec<RestoreOutcome> {
        let mut outcomes = vec![RestoreOutcome::Left; self.all.len()];
        let what = self.backend.what;
        let step = format_args!("restore {what} of {} at once with {}", self.all.len(), self.version);
        let made = log::step(step, || {
            if let Err(error) = self.make_in_rounds(&mut outcomes) {
                log::info(format_args!("{what} are restored one after the other: {error}"));
            }
            Ok(())
        });
        drop(made);
        outcomes
    }

    fn make_in_rounds(&self, outcomes: &mut [RestoreOutcome]) -> Result<()> {
        let backend = self.backend;
        let _lock = backend.lock()?;
        if self.are_elsewhere().map_err(|error| backend.explained(error))? {
            return Ok(());
        }
        let mut pending: Vec<usize> = (0..self.all.len()).collect();
        for _ in 0..ROUNDS {
            let Some(ruleset) = backend.read_if_usable(self.version, self.chains.line_text())? else { break };
            let mut round = Round::default();
            pending.retain(|at| round.takes(*at, &self.all[*at], ruleset.table(), outcomes));
            let written = match ruleset.begin(&round.changes) {
                Ok(Some(changing)) => Changing::finish(changing),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            match written {
                Ok(()) => round.all.iter().for_each(|at| outcomes[*at] = RestoreOutcome::Made),
                // Another program may have changed the table after it was read.
                Err(Refused::Failed { .. } | Refused::Unread { .. }) => pending.extend(round.all),
                Err(error) => return Err(backend.explained(error)),
            }
            if pending.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Whether there are rules that the programs which the administrator chose do not reach.
    fn are_elsewhere(&self) -> Read<bool> {
        let nftables = Nftables::if_any()?;
        let chosen = Programs::find(self.version)?;
        let reached = Programs::reaching(nftables.as_ref(), self.version, self.backend.table, self.chains)?;
        Ok(reached.iter().any(|(programs, _)| *programs != chosen))
    }
}

/// What is made by one write. Each wish was decided by the table as it was read, so all of them have to be such that none would
/// have been decided otherwise after the others were added: chains of their own, and rules behind all others.
#[derive(Default)]
struct Round {
    changes: Changes,
    all: Vec<usize>,
    claimed: HashSet<String>,
    is_full: bool,
}

impl Round {
    /// Whether the wish is still to be made after this round.
    fn takes(&mut self, at: usize, wanted: &Wanted, table: &Table, outcomes: &mut [RestoreOutcome]) -> bool {
        if self.is_full {
            return true;
        }
        let Ok(changes) = (wanted.changes)(table) else { return false };
        if changes.is_empty() {
            outcomes[at] = RestoreOutcome::Unchanged;
            return false;
        }
        let adds = changes.only_add();
        let mut claims: HashSet<String> = changes.to_string().lines().map(str::to_owned).collect();
        claims.extend(wanted.sole.iter().cloned());
        if !self.all.is_empty() && (!adds || !claims.is_disjoint(&self.claimed)) {
            return true;
        }
        self.is_full = !adds;
        self.claimed.extend(claims);
        self.changes.extend(changes);
        self.all.push(at);
        false
    }
}
