//! Replaces the rules of one owner.

use std::collections::HashSet;

use super::attempts::Attempts;
use super::nftables::Nftables;
use crate::Result;
use crate::ruleset::desired_rules::{DesiredRules, Rules, replacement_messages};
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::keys::KeyChanges;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::snapshot::Snapshot;
use crate::ruleset::table_state::TableState;
use crate::wire::batch::Batch;

/// With more keys than this, a first attempt assumes that they are free and does not ask the kernel.
const MANY: usize = 16;
/// With more keys than this, the kernel is always asked: the change takes several transactions, and those before a refusal
/// would have been carried out.
const TOO_MANY: usize = 1_000;

/// The replacement of the rules of one owner, made by [`Nftables::begin_replace`]: read, decide and commit until it
/// is done. Another program may change the ruleset between reading and committing: then both are done again.
///
/// ```no_run
/// # use cnikit_nftables::{Nftables, Result, Rule, TableLayout};
/// # fn replace(nftables: &Nftables, layout: &TableLayout, rules: &[Rule]) -> Result<()> {
/// let mut replacement = nftables.begin_replace(layout, "owner", rules)?;
/// while !replacement.is_done() {
///     let snapshot = replacement.read()?;
///     println!("{} rules are replaced", snapshot.before().len());
///     replacement.commit(snapshot)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Replacement<'a> {
    nftables: &'a Nftables,
    layout: &'a TableLayout,
    filter: OwnerFilter,
    desired: DesiredRules,
    attempts: Attempts,
    is_done: bool,
}

impl Nftables {
    /// Makes `rules`, and the content of the owner's chains, all the rules of this owner, and returns those that it had
    /// before, for [`Nftables::put_back`].
    ///
    /// The table is made or completed first. New rules are added behind those of other owners; if the same rules exist already,
    /// in this order, nothing is changed. If the layout has chains of this owner and none of them exists, no rule can jump to
    /// them, and the rules of other owners are not read.
    ///
    /// # Errors
    /// A rule whose comment does not begin with the prefix, since it would never be found again; a chain of the layout that has
    /// another hook; a chain of the owner that has rules of another one; the kernel's refusals.
    pub fn replace(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<Vec<InstalledRule>> {
        self.begin_replace(layout, filter, rules)?.carry_out()
    }

    /// The steps of [`Nftables::replace`] one by one, for a caller that inspects what there is before it is changed.
    ///
    /// # Errors
    /// A rule whose comment does not begin with the prefix; a rule that cannot be encoded.
    pub fn begin_replace<'a>(
        &'a self,
        layout: &'a TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<Replacement<'a>> {
        let filter = filter.into();
        let desired = DesiredRules::of(layout, &filter, &rules.into())?;
        Ok(Replacement::new(self, layout, filter, desired))
    }

    /// Makes `before`, which [`Nftables::replace`] returned, all the rules of this owner.
    ///
    /// They come back byte for byte, also those that this crate cannot read, but behind all others of the chain. Only a rule
    /// with an anonymous set (`tcp dport { 80, 443 }`) cannot be put back: its set was deleted with it.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn put_back(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        before: &[InstalledRule],
    ) -> Result<()> {
        if before.is_empty() {
            return self.release(layout, filter).map(drop);
        }
        let desired = DesiredRules::from_installed(layout, before);
        Replacement::new(self, layout, filter.into(), desired).carry_out().map(drop)
    }

    /// Where the shared part of the layout is incomplete, has the kernel make all that [`Nftables::replace`] would, and abort
    /// before it takes effect: the answer is whether it could be made. Nothing is changed.
    ///
    /// # Errors
    /// As [`Nftables::replace`].
    pub fn rehearse(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<()> {
        let replacement = self.begin_replace(layout, filter, rules)?;
        let batch = replacement.batch(replacement.snapshot(Some(KeyCheck::Ask))?)?;
        if batch.guard.is_none() {
            return Ok(());
        }
        // That another program makes the table meanwhile does not matter.
        Batch { guard: None, ..batch }.rehearse(&mut self.socket.borrow_mut())
    }

    /// Deletes those of the keys that no rule has.
    fn forget_unused(&self, layout: &TableLayout, keys: &[Element]) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            let generation = self.generation(layout)?;
            let rules = self.rules_by_chain(layout, |_| true)?;
            let used: HashSet<Element> = Element::all_of(layout, rules.iter().flatten()).into_iter().collect();
            let unused: Vec<Element> = keys.iter().filter(|key| !used.contains(key)).cloned().collect();
            let mut messages = Vec::new();
            for key in self.existing_elements(layout, &unused)? {
                messages.push(key.deletion(layout)?);
            }
            if attempts.send(self, &Batch { guard: Some(generation), messages, ..Batch::default() })? {
                return Ok(());
            }
        }
    }
}

impl<'a> Replacement<'a> {
    fn new(nftables: &'a Nftables, layout: &'a TableLayout, filter: OwnerFilter, desired: DesiredRules) -> Self {
        Self { nftables, layout, filter, desired, attempts: Attempts::new(), is_done: false }
    }

    /// Whether the desired rules are installed.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Whether some transactions of an attempt were carried out before one was refused.
    pub fn has_begun(&self) -> bool {
        self.attempts.begun
    }

    /// The table that the rules are in.
    pub fn layout(&self) -> &'a TableLayout {
        self.layout
    }

    /// The owner of the rules.
    pub fn filter(&self) -> &OwnerFilter {
        &self.filter
    }

    /// Reads what there is. The caller may inspect it before it commits the change; if it refuses, it calls
    /// [`Replacement::abandon`].
    ///
    /// # Errors
    /// A chain of the layout that has another hook; the kernel's refusals.
    pub fn read(&self) -> Result<Snapshot<'a>> {
        self.snapshot(None).inspect_err(|_| self.abandon())
    }

    /// Changes what differs, in one transaction if a socket has room for it. Where nothing differs, nothing is sent.
    ///
    /// # Errors
    /// A chain of the owner that has rules of another one; the kernel's refusals.
    pub fn commit(&mut self, snapshot: Snapshot<'a>) -> Result<()> {
        let batch = self.batch(snapshot).inspect_err(|_| self.abandon())?;
        let sent = self.attempts.send(self.nftables, &batch);
        self.is_done = sent.inspect_err(|_| self.abandon())?;
        Ok(())
    }

    /// Deletes the keys that the first transactions of a change have added, if the change will not be completed. Its rules are
    /// removed by [`Nftables::put_back`]; keys without rules would stay for ever.
    pub fn abandon(&self) {
        if self.attempts.begun {
            let _ = self.nftables.forget_unused(self.layout, &self.desired.keys);
        }
    }

    /// For a caller that inspects nothing: the rules that there were before.
    fn carry_out(mut self) -> Result<Vec<InstalledRule>> {
        loop {
            let snapshot = self.read()?;
            let before = snapshot.before.clone();
            self.commit(snapshot)?;
            if self.is_done {
                return Ok(before);
            }
        }
    }

    fn snapshot(&self, check: Option<KeyCheck>) -> Result<Snapshot<'a>> {
        let nftables = self.nftables;
        let filter = &self.filter;
        let state = nftables.state(self.layout, filter, |state| nftables.is_unregistered(state, filter))?;
        let repair = state.repair()?;
        let is_guarded = !repair.is_empty();
        let check = check.unwrap_or_else(|| KeyCheck::of(self.attempts.is_first(), &state, &self.desired, is_guarded));
        let keys = match check {
            KeyCheck::AssumeFree => KeyChanges::assume_free(&self.desired),
            KeyCheck::Ask => nftables.key_changes(&state, filter, &self.desired, is_guarded)?,
        };
        let mut before = state.owner_rules.concat();
        for chain in &state.owned_chains {
            if !chain.is_others(filter) {
                before.extend_from_slice(&chain.rules);
            }
        }
        Ok(Snapshot { nftables, filter: filter.clone(), state, repair, keys, before, begun: self.attempts.begun })
    }

    /// The messages of the change: first chains, then keys, then the rules that jump there, at last the removal of chains that are
    /// no target any more.
    fn batch(&self, snapshot: Snapshot<'a>) -> Result<Batch> {
        let Snapshot { state, keys, repair, .. } = snapshot;
        let is_incomplete = !repair.is_empty();
        let mut messages = repair;
        messages.extend(state.owned_chain_changes(&self.filter, &self.desired)?);
        messages.extend(keys.additions(self.layout)?);
        let installed_and_desired = state.owner_rules.iter().zip(&self.desired.by_chain);
        for (chain, (installed, desired)) in self.layout.rule_chains.iter().zip(installed_and_desired) {
            messages.extend(replacement_messages(installed, desired, self.layout, chain));
        }
        for element in &keys.dropped {
            messages.push(element.deletion(self.layout)?);
        }
        messages.extend(state.own_removals(&self.filter, &self.desired));
        // Another program must not make the table meanwhile. Nor may it add a rule with a key that is deleted, or with one
        // that another rule has: that rule was not inspected.
        let is_guarded = is_incomplete || !keys.dropped.is_empty() || !keys.taken.is_empty();
        Ok(Batch { guard: is_guarded.then_some(state.generation), messages, ..Batch::default() })
    }
}

/// Whether the kernel is asked, before the transaction, which keys of an owner's rules other rules have.
enum KeyCheck {
    /// It refuses the transaction if a key is not free; the next attempt asks.
    AssumeFree,
    Ask,
}

impl KeyCheck {
    /// Many keys of an owner without rules are nearly always free. `is_guarded`: the transaction is bound to the ruleset
    /// that was read.
    fn of(is_first: bool, state: &TableState, desired: &DesiredRules, is_guarded: bool) -> Self {
        let many = (MANY + 1..TOO_MANY).contains(&desired.keys.len());
        let is_new = state.owner_rules.iter().all(Vec::is_empty);
        if is_first && !is_guarded && many && is_new { Self::AssumeFree } else { Self::Ask }
    }
}
