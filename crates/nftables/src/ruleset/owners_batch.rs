//! The rules of many owners, made theirs at once.

use std::collections::{HashMap, HashSet};

use crate::rule::set::Index;
use crate::ruleset::attempts::Attempts;
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::nftables::Nftables;
use crate::ruleset::owned_chain::{Rules, Wanted, replacement_messages};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::batch::Batch;
use crate::{Error, Result};

/// What a socket sends at once where nobody gave it more room is 208 KiB; keys and what is removed come beside the rules.
const MOST: usize = 96 << 10;

/// What many owners want, gathered to be made in as few transactions as a socket has room for.
///
/// What it does for one is what [`Nftables::replace`] does. Each transaction holds for the ruleset that was read alone, so
/// nobody's change in between is ever overlooked.
#[derive(Default)]
pub struct OwnersBatch {
    parts: Vec<TableBatch>,
    owners: usize,
    /// By wish, the place of its owner.
    wishes: Vec<usize>,
}

/// What became of what one owner wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchOutcome {
    /// It stood as it is wanted.
    Unchanged,
    /// It was made so, or others of its transaction were.
    Made,
    /// It was not made, for it cannot be, or meets what others have or want: by itself it shows why.
    #[default]
    Skipped,
}

/// What is wanted of one frame.
struct TableBatch {
    layout: TableLayout,
    /// The index of which a key is one owner's alone.
    sole: Option<usize>,
    owners: Vec<Owner>,
}

struct Owner {
    /// Counted over all frames.
    place: usize,
    filter: OwnerFilter,
    wanted: Wanted,
}

impl OwnersBatch {
    /// How many wishes were added.
    pub fn requests(&self) -> usize {
        self.wishes.len()
    }

    /// Adds what one owner wants of a frame; the same wish may come again. In the index `sole` no key of a rule may be anybody
    /// else's too.
    ///
    /// # Errors
    /// As [`Nftables::replace`], as far as the rules themselves tell; a frame with chains of the owner's, which are made by
    /// themselves; an index that the frame has not got.
    pub fn add(
        &mut self,
        layout: TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
        sole: Option<&str>,
    ) -> Result<()> {
        let (filter, rules) = (filter.into(), rules.into());
        let refused = |why: &str| Error::ours("join", layout.to_string(), why.to_owned());
        if !layout.own.is_empty() {
            return Err(refused("it has chains of one owner"));
        }
        let index = |name: &str| layout.indexes.iter().position(|index| index.set.name == name);
        let sole = sole.map(|name| index(name).ok_or_else(|| refused("it has no such index"))).transpose()?;
        let wanted = Wanted::of(&layout, &filter, &rules)?;
        let part = self.parts.iter().position(|part| part.is_of(&layout)).unwrap_or(self.parts.len());
        if part == self.parts.len() {
            self.parts.push(TableBatch { layout, sole, owners: Vec::new() });
        }
        let part = &mut self.parts[part];
        let place = match part.owners.iter().find(|owner| owner.filter == filter) {
            Some(same) if same.wanted.held == wanted.held => same.place,
            Some(_) => return Err(Error::ours("join", part.layout.to_string(), "one owner wants two things of it")),
            None => {
                part.owners.push(Owner { place: self.owners, filter, wanted });
                self.owners += 1;
                self.owners - 1
            }
        };
        self.wishes.push(place);
        Ok(())
    }
}

impl Nftables {
    /// Makes what was gathered; what became of each wish. A transaction that is refused leaves all that it was about.
    pub fn apply_batch(&self, joint: OwnersBatch) -> Vec<BatchOutcome> {
        let mut outcomes = vec![BatchOutcome::Skipped; joint.owners];
        for part in joint.parts {
            for some in part.transactions() {
                for (place, outcome) in self.make_some(&part, some).unwrap_or_default() {
                    outcomes[place] = outcome;
                }
            }
        }
        joint.wishes.into_iter().map(|place| outcomes[place]).collect()
    }

    fn make_some(&self, part: &TableBatch, some: &[Owner]) -> Result<Vec<(usize, BatchOutcome)>> {
        let mut attempts = Attempts::new();
        loop {
            let (batch, outcomes) = self.change_joint(part, some)?;
            if attempts.send(self, &batch)? {
                return Ok(outcomes);
            }
        }
    }

    /// What makes it so for some owners of a part, and what becomes of each who is not left out.
    fn change_joint(&self, part: &TableBatch, some: &[Owner]) -> Result<(Batch, Vec<(usize, BatchOutcome)>)> {
        let layout = &part.layout;
        let state = self.table_state(layout)?;
        let standing = self.held(layout, |_| true)?;
        let left = part.left_out(&standing);
        let some: Vec<&Owner> = some.iter().filter(|owner| !left.contains(&owner.place)).collect();
        let all_are = |outcome| some.iter().map(|owner| (owner.place, outcome)).collect();
        let (mut changes, mut own, mut wanted) = (Vec::new(), HashSet::new(), Vec::new());
        for owner in &some {
            for ((chain, found), content) in layout.rule_chains.iter().zip(&standing).zip(&owner.wanted.held) {
                let had: Vec<InstalledRule> = found.iter().filter(|found| owner.has(found)).cloned().collect();
                own.extend(had.iter().map(InstalledRule::handle));
                changes.extend(replacement_messages(&had, content, layout, chain));
            }
            wanted.extend(&owner.wanted.keys);
        }
        if changes.is_empty() && some.iter().all(|owner| owner.wanted.is_nothing()) {
            return Ok((Batch::default(), all_are(BatchOutcome::Unchanged)));
        }
        let mut messages = state.repair()?;
        let anew = !messages.is_empty();
        let (own, others): (Vec<&InstalledRule>, Vec<&InstalledRule>) =
            standing.iter().flatten().partition(|found| own.contains(&found.handle()));
        let (mut gone, others) = (Element::all_of(layout, own), Element::all_of(layout, others));
        let mut stays: HashSet<&Element> = wanted.iter().copied().chain(&others).collect();
        gone.retain(|element| !stays.contains(element));
        // What stands of the sets cannot be relied on where the frame is not whole.
        wanted.extend(others.iter().filter(|_| anew));
        wanted.retain(|element| stays.remove(element));
        let wanted: Vec<Element> = wanted.into_iter().cloned().collect();
        let missing = wanted.iter().zip(self.has_elements(layout, &wanted)?).filter(|(_, there)| !there);
        messages.extend(missing.map(|(element, _)| element.addition(layout, false)).collect::<Result<Vec<_>>>()?);
        messages.extend(changes);
        let gone = self.existing_elements(layout, &gone)?;
        messages.extend(gone.iter().map(|element| element.deletion(layout)).collect::<Result<Vec<_>>>()?);
        let outcome = if messages.is_empty() { BatchOutcome::Unchanged } else { BatchOutcome::Made };
        Ok((Batch { guard: Some(state.generation), messages, ..Batch::default() }, all_are(outcome)))
    }
}

impl Owner {
    /// Whether a rule is his.
    fn has(&self, found: &InstalledRule) -> bool {
        self.filter.finds(&found.label()).is_some() && self.filter.means(found)
    }
}

impl TableBatch {
    /// Whether this is the same frame. What keys are made of is a function, and follows from the names of the sets.
    fn is_of(&self, layout: &TableLayout) -> bool {
        let own = &self.layout;
        let names =
            |layout: &TableLayout| layout.indexes.iter().map(|index: &Index| index.set.name).collect::<Vec<_>>();
        (own.family, own.table, &own.chains, &own.rule_chains)
            == (layout.family, layout.table, &layout.chains, &layout.rule_chains)
            && (&own.prologue, &own.accepted_prologues, &own.jump_conditions)
                == (&layout.prologue, &layout.accepted_prologues, &layout.jump_conditions)
            && names(own) == names(layout)
    }

    /// Its owners, so many at once as there is room for in a transaction.
    fn transactions(&self) -> Vec<&[Owner]> {
        let (mut all, mut rest, mut size, mut count) = (Vec::new(), &self.owners[..], 0, 0);
        for owner in &self.owners {
            let more = owner.wanted.size();
            if count > 0 && size + more > MOST {
                let (some, others) = rest.split_at(count);
                all.push(some);
                (rest, size, count) = (others, 0, 0);
            }
            (size, count) = (size + more, count + 1);
        }
        all.push(rest);
        all
    }

    /// Whoever cannot be told apart from another one, or wants for himself what somebody else has or wants. And whose rules do
    /// not name him: another program's may serve as they are.
    fn left_out(&self, standing: &[Vec<InstalledRule>]) -> HashSet<usize> {
        let mut left = HashSet::new();
        // By key of the sole index: whoever has it or wants it, once each; nobody who wants it has no place.
        let mut claims: HashMap<Element, HashSet<Option<usize>>> = HashMap::new();
        for found in standing.iter().flatten() {
            let claiming: Vec<&Owner> = self.owners.iter().filter(|owner| owner.has(found)).collect();
            let names =
                |owner: &&&Owner| claiming.len() == 1 && owner.filter.owner().is_some() == found.owner().is_some();
            left.extend(claiming.iter().filter(|owner| !names(owner)).map(|owner| owner.place));
            let keys = Element::all_of(&self.layout, [found]).into_iter().filter(|key| Some(key.index) == self.sole);
            for key in keys {
                claims.entry(key).or_default().insert(claiming.first().map(|owner| owner.place));
            }
        }
        for owner in &self.owners {
            let keys = owner.wanted.keys.iter().filter(|key| Some(key.index) == self.sole);
            for key in keys {
                claims.entry(key.clone()).or_default().insert(Some(owner.place));
            }
        }
        left.extend(claims.into_values().filter(|claiming| claiming.len() > 1).flatten().flatten());
        left
    }
}
