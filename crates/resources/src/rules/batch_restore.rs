//! What many attachments want of one table of iptables, made by a read and a write or two.

use std::collections::HashSet;

use cnikit_netfilter::iptables::{Chains, Changes, Changing, Error as Refused, IpVersion, Programs, Table};
use cnikit_netfilter::{BatchOutcome, Nftables};
use cnikit_plan::Wanted;
use cnikit_skel::{Result, log};

use crate::rules::iptables::{Read, RuleTable};

/// How often a table is read and written. What all share is made with the first of them, the rest with the next.
const ROUNDS: usize = 4;

/// What became of each. Whatever meets with any difficulty is left, to say by itself what that is.
pub(crate) fn make(place: RuleTable, meant: Chains, version: IpVersion, all: &[Wanted]) -> Vec<BatchOutcome> {
    let mut outcomes = vec![BatchOutcome::Left; all.len()];
    if let Err(error) = make_in_rounds(place, meant, version, (all, &mut outcomes)) {
        log::info(format_args!("{} are restored one after the other: {error}", place.what));
    }
    outcomes
}

fn make_in_rounds(
    place: RuleTable,
    meant: Chains,
    version: IpVersion,
    (all, outcomes): (&[Wanted], &mut [BatchOutcome]),
) -> Result<()> {
    let _alone = place.alone()?;
    if stands_elsewhere(place, meant, version).map_err(|error| place.explained(error))? {
        return Ok(());
    }
    let mut pending: Vec<usize> = (0..all.len()).collect();
    for _ in 0..ROUNDS {
        let opened = place.begin_open(std::iter::once(version), meant.mention()).finish_if_usable()?;
        let Some((_, ruleset)) = opened.ok().and_then(|opened| opened.into_iter().next()) else { break };
        let mut round = Round::default();
        pending.retain(|at| round.takes(*at, &all[*at], ruleset.table(), outcomes));
        match ruleset.begin(&round.changes).and_then(|begun| begun.map_or(Ok(()), Changing::finish)) {
            Ok(()) => round.all.iter().for_each(|at| outcomes[*at] = BatchOutcome::Made),
            // Somebody else may have changed what was read before it could be changed.
            Err(Refused::Failed { .. } | Refused::Unread { .. }) => pending.extend(round.all),
            Err(error) => return Err(place.explained(error)),
        }
        if pending.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Whether rules stand where the administrator's choice of programs does not reach.
fn stands_elsewhere(place: RuleTable, meant: Chains, version: IpVersion) -> Read<bool> {
    let (nftables, chosen) = (Nftables::if_any()?, Programs::find(version)?);
    let reached = Programs::reaching(nftables.as_ref(), version, place.table, meant)?;
    Ok(reached.iter().any(|(programs, _)| *programs != chosen))
}

/// What is made by one write. Each has decided by the table as it was read, so all of it has to be such that none would have
/// decided otherwise had it seen what the others add: chains of their own, and rules behind all others.
#[derive(Default)]
struct Round {
    changes: Changes,
    all: Vec<usize>,
    claimed: HashSet<String>,
    is_full: bool,
}

impl Round {
    /// Whether it is still to be made after this round.
    fn takes(&mut self, at: usize, wanted: &Wanted, table: &Table, outcomes: &mut [BatchOutcome]) -> bool {
        if self.is_full {
            return true;
        }
        let Ok(changes) = (wanted.changes)(table) else { return false };
        if changes.is_empty() {
            outcomes[at] = BatchOutcome::Stood;
            return false;
        }
        let (text, adds) = (changes.to_string(), changes.only_add());
        let claims: HashSet<String> = text.lines().map(str::to_owned).chain(wanted.sole.iter().cloned()).collect();
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
