//! The rules of a namespace, read and changed.

mod batch;
mod loopback;
mod queries;
mod refill;

pub use batch::{BatchOutcome, OwnersBatch};
pub use loopback::{GuardedLink, Localnet};

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use cnikit_netlink::{NetlinkError, Socket};
use cnikit_netns::Netns;

use crate::attribute::number;
use crate::batch::Batch;
use crate::compile::compile;
use crate::hook::FoundChain;
use crate::installed_rule::InstalledRule;
use crate::layout::TableLayout;
use crate::message::{HEADERS, Message, object, place};
use crate::owned_chain::{OwnedChain, Rules, Wanted, replacement_messages};
use crate::owner_filter::{Label, OwnerFilter};
use crate::set::{Element, Key};
use crate::snapshot::Snapshot;
use crate::state::{Standing, State};
use crate::{Error, Result};

/// The protocol of the socket.
#[doc(alias = "NETLINK_NETFILTER")]
pub(crate) const NETFILTER: isize = 12;
/// How long we try again when others change the ruleset between our look at it and our change.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often we try again when something is not there, which may be for good.
const TRIES: usize = 20;
/// Of more keys than this it is left to the kernel to find out whether one is taken.
const MANY: usize = 16;
/// Of more keys than this it is never left to the kernel: those before a refusal may have been added by then.
const TOO_MANY: usize = 1_000;
/// The most questions at once: their answers have to fit into what a socket keeps until they are read.
const QUESTIONS: usize = 250;

/// The packet filter of one network namespace, as `nf_tables` has it.
///
/// Rules are told apart by [`OwnerFilter`] they are; a prefix of their comments is the simplest way to say it. All changes of
/// one call are one transaction; nobody ever sees half of it. Only where they are more than the kernel takes at once (some
/// thousand rules) are they several: each is whole, and [`Snapshot::begun`] tells whoever undoes them.
///
/// Only the chains of the frame are read, and only rules that are meant are removed. A removal has its price: whoever closes
/// such a socket next waits 8 to 16 ms, until the kernel has freed the rules; so nothing is sent where nothing differs, and
/// our own sockets are left to the kernel to close.
#[doc(alias = "nft")]
pub struct Nftables {
    /// Borrowed for one exchange at a time, and never while anybody else's code runs.
    socket: RefCell<Socket>,
}

/// Whose the chains of a name are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// There are none.
    Free,
    /// The owner's that was asked for, or they are empty.
    This,
    /// Somebody else's.
    Another,
}

impl Nftables {
    /// The packet filter of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// Without netfilter in the kernel one that is [`Error::unsupported`].
    pub fn here() -> Result<Self> {
        Ok(Self::over(Socket::here(NETFILTER)?))
    }

    /// The packet filter of the namespace that the calling thread is in; none where the kernel has no netfilter at all.
    pub fn if_any() -> Result<Option<Self>> {
        match Self::here() {
            Err(error) if error.unsupported() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The packet filter of this namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`Nftables::here`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        Ok(Self::over(Socket::inside(netns, NETFILTER)?))
    }

    fn over(socket: Socket) -> Self {
        Self { socket: RefCell::new(socket.ending_slowly()) }
    }

    /// Has the kernel make changes of anybody's, once.
    pub(crate) fn carry_out(&self, batch: &Batch) -> Result<()> {
        batch.send(&mut self.socket.borrow_mut()).map_err(|(_, error)| error)
    }

    /// Makes `rules`, and the content of the owner's chains, all the rules there are of this owner, and returns those that
    /// were there before, for [`Nftables::put_back`].
    ///
    /// The frame is made if it is not whole. New rules come behind those of others; when the same rules are there
    /// already, in this order, nothing is changed. Where the frame has chains of the owner's and none of them stands, no
    /// rule can lead to them, and the rules of others are not even looked at.
    ///
    /// # Errors
    /// A rule whose comment does not begin with the prefix, for it would never be found again; a chain of the frame's
    /// that hangs elsewhere; a chain of the owner's in which somebody else's rules are; the kernel's refusals.
    pub fn replace(
        &self,
        frame: &TableLayout,
        whose: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<Vec<InstalledRule>> {
        let mut before = Vec::new();
        self.replace_judged(frame, whose, rules, |looked| {
            before = looked.before().to_vec();
            Ok::<(), Error>(())
        })?;
        Ok(before)
    }

    /// [`Nftables::replace`], which hands out what is there before it changes anything: the change may be made, and what it
    /// returns is lost. Whoever looks may refuse it; he is asked again whenever others have changed it meanwhile, and where
    /// many keys were taken for free and one is not.
    pub fn replace_judged<E: From<Error>>(
        &self,
        frame: &TableLayout,
        whose: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
        judge: impl FnMut(&Snapshot<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let whose = whose.into();
        self.set(frame, &whose, &Wanted::of(frame, &whose, &rules.into())?, judge)
    }

    /// Makes `before`, which [`Nftables::replace`] returned, all the rules there are of this owner.
    ///
    /// They come back byte for byte, those too that this crate has no words for, but behind all others of the chain.
    /// Only a rule with a set of its own (`tcp dport { 80, 443 }`) cannot: its set went when it did.
    pub fn put_back(&self, frame: &TableLayout, whose: impl Into<OwnerFilter>, before: &[InstalledRule]) -> Result<()> {
        if before.is_empty() {
            return self.release(frame, whose).map(drop);
        }
        self.set(frame, &whose.into(), &Wanted::again(frame, before), |_| Ok(()))
    }

    /// Removes the rules of this owner and his chains, and says how many rules led to them or stood alone. The frame
    /// stays, and is not made either; so does a chain that a rule of somebody else's is in or leads to.
    ///
    /// Where the frame has chains of the owner's and none of them stands, the rules of others are not looked at.
    pub fn release(&self, frame: &TableLayout, whose: impl Into<OwnerFilter>) -> Result<usize> {
        if !frame.own.is_empty() && !self.stands(frame)? {
            return Ok(0);
        }
        self.remove(frame, &whose.into(), |_| true)
    }

    /// Removes the rules that are meant, and the chains of their owners, unless `keep` holds of the text by which a rule
    /// was found: its comment, or the owner it names. Says how many.
    pub fn sweep(
        &self,
        frame: &TableLayout,
        whose: impl Into<OwnerFilter>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<usize> {
        self.remove(frame, &whose.into(), |found| !keep(found))
    }

    /// What of the frame and the rules is missing or different, each a sentence: wanted, found, where.
    ///
    /// A rule of this owner that is not among `rules` is named too. Rules of others are not looked at.
    pub fn verify(
        &self,
        frame: &TableLayout,
        whose: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<Vec<String>> {
        let (whose, rules) = (whose.into(), rules.into());
        // Whoever is not registered is looked for all the same: that he is not may be what is wrong.
        let state = self.state(frame, &whose, |_| Ok(false))?;
        let mut drifts = state.drifts()?;
        for ((chain, rules), held) in rules.by_chain(frame)?.into_iter().zip(&state.held) {
            // By what a rule does and says, the places of those that do and say so.
            let mut found: HashMap<_, VecDeque<usize>> = HashMap::new();
            for (place, held) in held.iter().enumerate() {
                found.entry((held.expressions().to_vec(), held.comment())).or_default().push_back(place);
            }
            let mut extra: Vec<Option<&InstalledRule>> = held.iter().map(Some).collect();
            for rule in rules {
                let wanted = (compile(rule, frame.family)?, rule.comment.as_deref());
                match found.get_mut(&wanted).and_then(VecDeque::pop_front) {
                    Some(place) => extra[place] = None,
                    None => drifts.push(format!("rule `{rule}` is missing from {}", place(frame, chain))),
                }
            }
            let unwanted = |found| format!("rule `{found}` in {} is not wanted", place(frame, chain));
            drifts.extend(extra.into_iter().flatten().map(unwanted));
        }
        if state.looks_up()? && state.sets.iter().all(|there| *there) {
            // What is missing of the rules is named already, and its keys say nothing more.
            let missing = self.unregistered(frame, &whose, state.held.iter().flatten())?;
            drifts.extend(missing.iter().map(|element| format!("{} is missing", element.shown(frame))));
        }
        Ok(drifts)
    }

    /// The rules that are meant in the chains that hold them, in their order. Without the table or a chain there are
    /// none.
    pub fn rules(&self, frame: &TableLayout, whose: impl Into<OwnerFilter>) -> Result<Vec<InstalledRule>> {
        let whose = whose.into();
        Ok(self.held_by(frame, &whose)?.into_iter().flatten().collect())
    }

    /// Whether this owner may have rules: a chain that holds any is there, and no register that can be relied on denies it.
    pub fn may_have(&self, frame: &TableLayout, whose: &OwnerFilter) -> Result<bool> {
        Ok(self.has_any(frame, &frame.rule_chains)? && !self.is_unregistered(&self.standing(frame)?, whose)?)
    }

    /// The rules that have one of these keys in an index, whoever wrote them. They are looked at only where the set has one,
    /// or cannot be relied on; without the table, or without `nf_tables`, there are none.
    ///
    /// # Errors
    /// The frame has no index of this name; the kernel's.
    pub fn holders(&self, frame: &TableLayout, set: &str, keys: &[Key]) -> Result<Vec<InstalledRule>> {
        let index = frame.index_of(set)?;
        if !self.has_any(frame, &frame.indexes[index].chains)? {
            return Ok(Vec::new());
        }
        let elements: Vec<Element> = keys.iter().map(|key| Element { index, key: key.clone() }).collect();
        // A frame that somebody has made otherwise is wrong for whoever writes; here it only makes the look longer.
        let relied_on = self.standing(frame).and_then(|state| state.repair());
        if relied_on.is_ok_and(|repair| repair.is_empty()) && self.standing_elements(frame, &elements)?.is_empty() {
            return Ok(Vec::new());
        }
        let keys: HashSet<&Key> = keys.iter().collect();
        self.rules_with(frame, index, |key| keys.contains(key))
    }

    /// The rules that have such a key in this index.
    pub(crate) fn rules_with(
        &self,
        frame: &TableLayout,
        index: usize,
        wanted: impl Fn(&Key) -> bool,
    ) -> Result<Vec<InstalledRule>> {
        let index = &frame.indexes[index];
        let mut with = Vec::new();
        for chain in &index.chains {
            let found = self.rules_of(frame, chain, |_| true)?.into_iter();
            with.extend(found.filter(|found| index.key_of(found).is_some_and(|key| wanted(&key))));
        }
        Ok(with)
    }

    fn has_any(&self, frame: &TableLayout, chains: &[&str]) -> Result<bool> {
        for chain in chains {
            if self.has(frame, chain)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether any of the owner's chains of the frame is there, whoever made it.
    pub fn stands(&self, frame: &TableLayout) -> Result<bool> {
        let own: Vec<&str> = frame.own.iter().map(|own| own.name.as_str()).collect();
        self.has_any(frame, &own)
    }

    /// How it is with the chains that the frame wants for this owner: names are made of identities, and two may read alike.
    pub fn claim(&self, frame: &TableLayout, whose: impl Into<OwnerFilter>) -> Result<Claim> {
        let (whose, mut claim) = (whose.into(), Claim::Free);
        for own in frame.own.iter().filter(|own| !own.rules.is_empty()) {
            match self.own(frame, &own.name)? {
                own if own.is_anothers(&whose) => return Ok(Claim::Another),
                own if own.found.is_some() => claim = Claim::This,
                _ => {}
            }
        }
        Ok(claim)
    }

    /// Where what is shared of the frame is not whole, has the kernel make all that [`Nftables::replace`] would, and give
    /// it up before it counts: the answer is whether it could be made. Nothing is changed.
    ///
    /// # Errors
    /// As [`Nftables::replace`].
    pub fn rehearse(&self, frame: &TableLayout, whose: impl Into<OwnerFilter>, rules: impl Into<Rules>) -> Result<()> {
        let (whose, rules) = (whose.into(), rules.into());
        match self.change(
            frame,
            &whose,
            &Wanted::of(frame, &whose, &rules)?,
            Attempt::AGAIN,
            |_| Ok::<(), Error>(()),
        )? {
            // Somebody else who makes the frame meanwhile is no hindrance.
            Batch { guard: Some(_), messages, .. } => {
                Batch { messages, ..Batch::default() }.rehearse(&mut self.socket.borrow_mut())
            }
            _ => Ok(()),
        }
    }

    fn set<E: From<Error>>(
        &self,
        frame: &TableLayout,
        whose: &OwnerFilter,
        wanted: &Wanted,
        mut judge: impl FnMut(&Snapshot<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let settled = self.settle_by_attempts(|nftables, attempt| {
            Ok((nftables.change(frame, whose, wanted, attempt, &mut judge)?, ()))
        });
        settled.map_err(|Failed { error, begun }| {
            // The rules that were made go by whoever undoes this; keys without rules nobody would remove.
            if begun {
                let _ = self.forget_unused(frame, &wanted.keys);
            }
            error
        })
    }

    /// Removes those of the keys that no rule has.
    fn forget_unused(&self, frame: &TableLayout, keys: &[Element]) -> Result<()> {
        self.settle(|nftables| {
            let generation = nftables.generation(frame)?;
            let rules = nftables.held(frame, |_| true)?;
            let used: HashSet<Element> = Element::all_of(frame, rules.iter().flatten()).into_iter().collect();
            let unused: Vec<Element> = keys.iter().filter(|key| !used.contains(key)).cloned().collect();
            let there = nftables.standing_elements(frame, &unused)?;
            let messages = there.iter().map(|key| key.deletion(frame)).collect::<Result<Vec<_>>>()?;
            Ok::<_, Error>((Batch { guard: Some(generation), messages, ..Batch::default() }, ()))
        })
    }

    /// What makes it so, unless what is there now is judged to be in its way. At the first attempt, many keys of whoever has no
    /// rules yet are taken for free and not asked for one by one; if any is not, the kernel refuses all of it (`EEXIST`).
    fn change<E: From<Error>>(
        &self,
        frame: &TableLayout,
        whose: &OwnerFilter,
        wanted: &Wanted,
        attempt: Attempt,
        mut judge: impl FnMut(&Snapshot<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Batch, E> {
        let state = self.state(frame, whose, |state| self.is_unregistered(state, whose))?;
        let mut messages = state.repair()?;
        // Only what makes the frame must not meet somebody else who makes it too.
        let mut guard = (!messages.is_empty()).then_some(state.generation);
        let keys = match KeyCheck::of(attempt, &state, wanted, guard.is_some()) {
            KeyCheck::AssumeFree => Keys::free(wanted),
            KeyCheck::Ask => self.keys(&state, whose, wanted, guard.is_some())?,
        };
        let own = state.own.iter().filter(|own| !own.is_anothers(whose));
        let before: Vec<InstalledRule> =
            state.held.iter().flatten().chain(own.flat_map(|own| &own.rules)).cloned().collect();
        let begun = attempt.begun;
        judge(&Snapshot { nftables: self, frame, whose, before: &before, taken: &keys.taken, begun })?;
        messages.extend(state.own_changes(whose, wanted)?);
        let mut changes = Vec::new();
        for ((chain, held), wanted) in frame.rule_chains.iter().zip(&state.held).zip(&wanted.held) {
            changes.extend(replacement_messages(held, wanted, frame, chain));
        }
        messages.extend(keys.additions(frame)?);
        messages.extend(changes);
        messages.extend(keys.dropped.iter().map(|element| element.deletion(frame)).collect::<Result<Vec<_>>>()?);
        if !keys.dropped.is_empty() || !keys.taken.is_empty() {
            // Whoever adds a rule with such a key meanwhile relies on what goes, or is a rival whom nobody has judged.
            guard = Some(state.generation);
        }
        messages.extend(state.own_removals(whose, wanted));
        Ok(Batch { guard, messages, ..Batch::default() })
    }

    /// What becomes of the keys of rules. `anew`: what stands of the indexes cannot be relied on.
    fn keys(&self, state: &State<'_>, whose: &OwnerFilter, wanted: &Wanted, anew: bool) -> Result<Keys> {
        let frame = state.frame;
        let mut keys = Keys::free(wanted);
        if frame.indexes.is_empty() {
            return Ok(keys);
        }
        let held = state.held.concat();
        let mut gone = Element::known_by(frame, whose, &held);
        let wished: HashSet<&Element> = wanted.keys.iter().collect();
        gone.retain(|element| !wished.contains(element));
        if anew || !gone.is_empty() {
            let all = self.held(frame, |_| true)?;
            let ours: HashSet<u64> = held.iter().map(InstalledRule::handle).collect();
            let others = Element::all_of(frame, all.iter().flatten().filter(|found| !ours.contains(&found.handle)));
            let of_others: HashSet<&Element> = others.iter().collect();
            keys.dropped = gone.into_iter().filter(|element| !of_others.contains(element)).collect();
            keys.filled = if anew { others } else { Vec::new() };
        }
        keys.taken = self.standing_elements(frame, &wanted.keys)?;
        keys.dropped = self.standing_elements(frame, &keys.dropped)?;
        keys.taken.extend(keys.filled.iter().filter(|element| wished.contains(element)).cloned());
        Ok(keys)
    }

    fn standing_elements(&self, frame: &TableLayout, elements: &[Element]) -> Result<Vec<Element>> {
        let there = self.has_elements(frame, elements)?;
        Ok(elements.iter().zip(there).filter(|(_, there)| *there).map(|(element, _)| element.clone()).collect())
    }

    /// The keys of an owner's rules that are in no set. By whichever of his names he is registered, he is found.
    fn unregistered<'a>(
        &self,
        frame: &TableLayout,
        whose: &OwnerFilter,
        held: impl Iterator<Item = &'a InstalledRule>,
    ) -> Result<Vec<Element>> {
        let keys = Element::all_of(frame, held);
        let there = self.has_elements(frame, &keys)?;
        let mut missing: Vec<Element> =
            keys.into_iter().zip(there).filter(|(_, there)| !there).map(|(element, _)| element).collect();
        let names: Vec<Element> = Element::names(frame, whose).collect();
        if missing.iter().any(|element| names.contains(element)) && self.has_elements(frame, &names)?.contains(&true) {
            missing.retain(|element| !names.contains(element));
        }
        Ok(missing)
    }

    /// Whether each is in its set.
    fn has_elements(&self, frame: &TableLayout, elements: &[Element]) -> Result<Vec<bool>> {
        let mut there = Vec::new();
        for some in elements.chunks(QUESTIONS) {
            let questions = some.iter().map(|element| element.question(frame)).collect::<Result<Vec<_>>>()?;
            there.extend(self.ask(&questions)?.iter().map(Option::is_some));
        }
        Ok(there)
    }

    fn remove(&self, frame: &TableLayout, whose: &OwnerFilter, goes: impl Fn(&str) -> bool) -> Result<usize> {
        let refilled = Cell::new(false);
        match self.remove_by(frame, whose, &goes, Some(&refilled)) {
            // Whatever the kernel has against such a transaction: one by one, rules can be removed.
            Err(_) if refilled.get() => self.remove_by(frame, whose, &goes, None),
            removed => removed,
        }
    }

    /// `refilled`: chains may be emptied and filled again, and whether one was to be is noted there.
    fn remove_by(
        &self,
        frame: &TableLayout,
        whose: &OwnerFilter,
        goes: impl Fn(&str) -> bool,
        refilled: Option<&Cell<bool>>,
    ) -> Result<usize> {
        let mut removed = 0;
        self.settle_by_attempts(|nftables, attempt| {
            let meant = |found: &InstalledRule| whose.finds(&found.label()).is_some_and(&goes) && whose.means(found);
            let Going { rules: going, elements, guard, refills } =
                nftables.going(frame, whose, meant, refilled.is_some())?;
            if let Some(refilled) = refilled {
                refilled.set(refilled.get() || !refills.is_empty());
            }
            // What others removed meanwhile does not count; what an earlier attempt removed of more than one transaction does.
            removed = if attempt.begun { removed.max(going.len()) } else { going.len() };
            let mut messages = Vec::new();
            for found in &going {
                if !refills.iter().any(|(chain, _)| *chain == found.chain) {
                    messages.push(found.deletion(frame));
                }
            }
            messages.extend(elements.iter().map(|element| element.deletion(frame)).collect::<Result<Vec<_>>>()?);
            messages.extend(nftables.chains_of(frame, whose, going)?);
            let first = refills.into_iter().map(|(_, messages)| messages).collect();
            Ok((Batch { guard, first, messages }, ()))
        })
        .map_err(|Failed { error, .. }: Failed<Error>| error)?;
        Ok(removed)
    }

    /// The rules that go, and the keys that no rule has then. `refill`: chains may be emptied and filled again.
    fn going(
        &self,
        frame: &TableLayout,
        whose: &OwnerFilter,
        meant: impl Fn(&InstalledRule) -> bool,
        refill: bool,
    ) -> Result<Going> {
        if frame.indexes.is_empty() {
            let going: Vec<InstalledRule> = self.held_by(frame, whose)?.into_iter().flatten().filter(meant).collect();
            return Ok(Going { rules: going, ..Going::default() });
        }
        let generation = match self.generation(frame) {
            Ok(generation) => generation,
            Err(error) if is_lacking(&error) => return Ok(Going::default()),
            Err(error) => return Err(error),
        };
        let held = self.held(frame, |_| true)?;
        let refills = if refill { self.refills(frame, &held, &meant) } else { Vec::new() };
        let (going, rest): (Vec<InstalledRule>, Vec<InstalledRule>) = held.into_iter().flatten().partition(&meant);
        let kept: HashSet<Element> = Element::known_by(frame, whose, &rest).into_iter().collect();
        let mut elements = Element::known_by(frame, whose, &going);
        elements.retain(|element| !kept.contains(element));
        let elements = self.standing_elements(frame, &elements)?;
        let guard = (!elements.is_empty() || !refills.is_empty()).then_some(generation);
        Ok(Going { rules: going, elements, guard, refills })
    }

    /// The messages that remove the owner's chains: those of the frame, and those to which the rules that go lead.
    fn chains_of(
        &self,
        frame: &TableLayout,
        whose: &OwnerFilter,
        mut leaving: Vec<InstalledRule>,
    ) -> Result<Vec<Message>> {
        let mut names: Vec<String> = frame.own.iter().map(|own| own.name.clone()).collect();
        names.extend(leaving.iter().filter_map(InstalledRule::target).map(str::to_owned));
        let (mut messages, mut next) = (Vec::new(), 0);
        while let Some(name) = names.get(next).cloned() {
            next += 1;
            if names[..next - 1].contains(&name) || frame.chains.iter().any(|chain| chain.name == name) {
                continue;
            }
            let own = self.own(frame, &name)?;
            if own.goes_with(&leaving, frame, whose) {
                messages.push(Message::delete_chain(frame, &name));
                names.extend(own.rules.iter().filter_map(InstalledRule::target).map(str::to_owned));
                leaving.extend(own.rules);
            }
        }
        Ok(messages)
    }

    /// Looks and changes, again and again while others change what we looked at in between.
    fn settle<T, E: From<Error>>(
        &self,
        mut look: impl FnMut(&Self) -> std::result::Result<(Batch, T), E>,
    ) -> std::result::Result<T, E> {
        self.settle_by_attempts(|nftables, _| look(nftables)).map_err(|Failed { error, .. }| error)
    }

    /// The same for changes that may be more than one transaction.
    fn settle_by_attempts<T, E: From<Error>>(
        &self,
        mut look: impl FnMut(&Self, Attempt) -> std::result::Result<(Batch, T), E>,
    ) -> std::result::Result<T, Failed<E>> {
        let deadline = Instant::now() + TIMEOUT;
        let (mut tries, mut attempt) = (0, Attempt { first: true, begun: false });
        loop {
            let looked = look(self, attempt).map_err(|error| Failed { error, begun: attempt.begun });
            let (batch, outcome) = looked?;
            if batch.is_empty() {
                return Ok(outcome);
            }
            tries += 1;
            let sent = batch.send(&mut self.socket.borrow_mut());
            match sent {
                Ok(()) => return Ok(outcome),
                Err((done, error)) if overtaken(&error, tries) && Instant::now() < deadline => {
                    attempt = Attempt { first: false, begun: attempt.begun || done > 0 };
                }
                Err((done, error)) => {
                    return Err(Failed { error: error.into(), begun: attempt.begun || done > 0 });
                }
            }
        }
    }

    /// What stands of the frame, the rules of this owner unless he has none, and his chains.
    fn state<'a>(
        &self,
        frame: &'a TableLayout,
        whose: &OwnerFilter,
        has_none: impl Fn(&State<'a>) -> Result<bool>,
    ) -> Result<State<'a>> {
        let state = self.standing(frame)?;
        let own = frame.own.iter().map(|own| self.own(frame, &own.name)).collect::<Result<Vec<_>>>()?;
        // No rule leads to a chain that is not there.
        let none = !own.is_empty() && own.iter().all(|own| own.found.is_none());
        let held = if none || has_none(&state)? {
            frame.rule_chains.iter().map(|_| Vec::new()).collect()
        } else {
            self.held_by(frame, whose)?
        };
        Ok(State { held, own, ..state })
    }

    /// Whether the frame has an index of owners that can be relied on, and this one is not in it.
    fn is_unregistered(&self, state: &State<'_>, whose: &OwnerFilter) -> Result<bool> {
        let names: Vec<Element> = Element::names(state.frame, whose).collect();
        // Whoever changed the frame may have added rules too, of which the register knows nothing.
        if names.is_empty() || !state.repair()?.is_empty() {
            return Ok(false);
        }
        Ok(!self.has_elements(state.frame, &names)?.contains(&true))
    }

    /// What stands of the frame.
    fn standing<'a>(&self, frame: &'a TableLayout) -> Result<State<'a>> {
        let mut questions = vec![Message::generation(frame), Message::table(frame)];
        questions.extend(frame.chains.iter().map(|chain| Message::chain(frame, chain.name)));
        questions.extend(frame.indexes.iter().map(|index| Message::set(frame, &index.set)));
        let answers = self.ask(&questions).map_err(lacking)?;
        let generation = generation(answers.first().and_then(Option::as_deref))?;
        let table = Standing::read(answers.get(1).and_then(Option::as_deref));
        let (chains, sets) = answers[2..].split_at(frame.chains.len());
        let list = |message: &Option<Vec<u8>>| message.as_ref()?.get(HEADERS..).map(FoundChain::read);
        let chains = chains.iter().map(list).collect();
        for (index, found) in frame.indexes.iter().zip(sets) {
            found.iter().try_for_each(|found| index.set.refuse_other(frame, found))?;
        }
        let sets = sets.iter().map(Option::is_some).collect();
        let fixed =
            frame.prologue.iter().map(|(chain, _)| self.rules_of(frame, chain, |_| true)).collect::<Result<_>>()?;
        Ok(State { frame, generation, table, chains, fixed, sets, held: Vec::new(), own: Vec::new() })
    }

    /// By chain that holds rules: those that are meant.
    fn held_by(&self, frame: &TableLayout, whose: &OwnerFilter) -> Result<Vec<Vec<InstalledRule>>> {
        let mut held = self.held(frame, |label| whose.finds(label).is_some())?;
        held.iter_mut().for_each(|rules| rules.retain(|found| whose.means(found)));
        Ok(held)
    }

    /// By chain that holds rules: those whose label is `wanted`.
    fn held(&self, frame: &TableLayout, wanted: impl Fn(&Label<'_>) -> bool) -> Result<Vec<Vec<InstalledRule>>> {
        frame.rule_chains.iter().map(|chain| self.rules_of(frame, chain, &wanted)).collect()
    }

    /// A chain of an owner's, if it is there, with its rules.
    fn own(&self, frame: &TableLayout, name: &str) -> Result<OwnedChain> {
        let found = self.chain(frame, name)?;
        let rules = if found.is_some() { self.rules_of(frame, name, |_| true)? } else { Vec::new() };
        Ok(OwnedChain { name: name.to_owned(), found, rules })
    }
}

/// Which look before a change it is.
#[derive(Clone, Copy)]
struct Attempt {
    /// The first one.
    first: bool,
    /// Of the changes that an earlier one led to, some were carried out before one was refused.
    begun: bool,
}

/// What goes when an owner's rules are removed.
#[derive(Default)]
struct Going {
    rules: Vec<InstalledRule>,
    /// The keys that no rule has then.
    elements: Vec<Element>,
    /// Where others must not have changed anything: the number of the ruleset that was looked at.
    guard: Option<u32>,
    /// Chains that are emptied and filled again instead, each with its transaction.
    refills: Vec<(&'static str, Vec<Message>)>,
}

/// Why nothing, or not all, was changed.
struct Failed<E> {
    error: E,
    /// Some of it was.
    begun: bool,
}

impl Attempt {
    const AGAIN: Attempt = Attempt { first: false, begun: false };
}

/// Whether the kernel is asked, before the transaction, which keys of an owner's rules other rules have.
enum KeyCheck {
    /// It refuses the transaction if a key is not free; the next attempt asks.
    AssumeFree,
    Ask,
}

impl KeyCheck {
    /// Many keys of an owner who has no rules yet are nearly always free. `is_guarded`: the transaction is bound to the ruleset
    /// that was read.
    fn of(attempt: Attempt, state: &State, wanted: &Wanted, is_guarded: bool) -> Self {
        let many = (MANY + 1..TOO_MANY).contains(&wanted.keys.len());
        let is_new = state.held.iter().all(Vec::is_empty);
        if attempt.first && !is_guarded && many && is_new { Self::AssumeFree } else { Self::Ask }
    }
}

/// What becomes of the keys of rules when an owner's are replaced.
#[derive(Default)]
struct Keys {
    /// Those of his rules.
    wanted: Vec<Element>,
    /// Those of them that some rule may have already.
    taken: Vec<Element>,
    /// Those of the rules of others, where the indexes are filled anew.
    filled: Vec<Element>,
    /// Those that no rule has any more.
    dropped: Vec<Element>,
}

impl Keys {
    /// All of them free.
    fn free(wanted: &Wanted) -> Self {
        Self { wanted: wanted.keys.clone(), ..Self::default() }
    }

    /// The messages that add what is missing. What was free must still be (`EEXIST`); what was taken is there, as long as the
    /// ruleset is the one that was looked at.
    fn additions(&self, frame: &TableLayout) -> Result<Vec<Message>> {
        let taken: HashSet<&Element> = self.taken.iter().collect();
        let filled = self.filled.iter().map(|element| element.addition(frame, false));
        let missing = self.wanted.iter().filter(|element| !taken.contains(element));
        filled.chain(missing.map(|element| element.addition(frame, true))).collect()
    }
}

/// The number of the ruleset in the kernel's answer.
fn generation(answer: Option<&[u8]>) -> Result<u32> {
    let told = answer.and_then(|message| number(message.get(HEADERS..)?, object::GENERATION_ID));
    told.ok_or_else(|| Error::ours("read", "the ruleset", "the kernel gave no number"))
}

/// What netfilter calls invalid is a part of it that the kernel has not got and cannot load: `nf_tables` as a whole.
fn lacking(error: Error) -> Error {
    if error.errno != libc::EINVAL {
        return error;
    }
    Error::refused("use nf_tables for", error.object, &NetlinkError { errno: libc::EOPNOTSUPP, text: error.kernel })
}

/// Whether there is no `nf_tables` to be asked.
fn is_lacking(error: &Error) -> bool {
    error.errno == libc::EINVAL || error.unsupported()
}

/// Whether a refusal may come from somebody's change between our look and our batch.
///
/// What does not exist (a rule that was to go, a chain that was to take one), exists already or is busy may also be our
/// own fault, or the kernel may lack a module: that is tried again a few times only.
fn overtaken(error: &Error, tries: usize) -> bool {
    match error.errno {
        // The guard: the ruleset has another number by now.
        libc::ERESTART => true,
        libc::ENOENT | libc::EEXIST | libc::EBUSY => tries < TRIES,
        _ => false,
    }
}
