//! The rules of a namespace, read and changed.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use cnikit_netlink::{Refusal, Socket};
use cnikit_netns::Netns;

use crate::attribute::{number, text};
use crate::batch::Batch;
use crate::compile::compile;
use crate::found::Found;
use crate::frame::Frame;
use crate::hook::FoundChain;
use crate::message::{HEADERS, Message, object, place};
use crate::own::{Own, Wanted, exchange};
use crate::rule::Rule;
use crate::state::{Standing, State};
use crate::whose::{Label, Whose};
use crate::{Error, Result};

/// The protocol of the socket.
#[doc(alias = "NETLINK_NETFILTER")]
const NETFILTER: isize = 12;
/// How long we try again when others change the ruleset between our look at it and our change.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often we try again when something is not there, which may be for good.
const TRIES: usize = 20;
/// The most rules removed in one transaction; what a socket can send at once is limited where we are not root.
const MOST: usize = 250;

/// The packet filter of one network namespace, as `nf_tables` has it.
///
/// Rules are told apart by [`Whose`] they are; a prefix of their comments is the simplest way to say it. All changes of
/// one call are one transaction; nobody ever sees half of it.
///
/// Only the chains of the frame are read, and only rules that are meant are removed. A removal has its price: the kernel
/// frees rules when the socket is closed, and that takes 8 to 16 ms; so nothing is sent where nothing differs.
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
        Self { socket: RefCell::new(socket) }
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
    pub fn replace(&self, frame: &Frame, whose: impl Into<Whose>, rules: &[Rule]) -> Result<Vec<Found>> {
        let mut before = Vec::new();
        self.replace_noting(frame, whose, rules, |found| before = found)?;
        Ok(before)
    }

    /// [`Nftables::replace`], which hands out what is there before it changes anything: the change may be made, and what it
    /// returns is lost.
    pub fn replace_noting(
        &self,
        frame: &Frame,
        whose: impl Into<Whose>,
        rules: &[Rule],
        note: impl FnMut(Vec<Found>),
    ) -> Result<()> {
        let whose = whose.into();
        self.set(frame, &whose, &Wanted::of(frame, &whose, rules)?, note)
    }

    /// Makes `before`, which [`Nftables::replace`] returned, all the rules there are of this owner.
    ///
    /// They come back byte for byte, those too that this crate has no words for, but behind all others of the chain.
    /// Only a rule with a set of its own (`tcp dport { 80, 443 }`) cannot: its set went when it did.
    pub fn put_back(&self, frame: &Frame, whose: impl Into<Whose>, before: &[Found]) -> Result<()> {
        if before.is_empty() {
            return self.release(frame, whose).map(drop);
        }
        self.set(frame, &whose.into(), &Wanted::again(frame, before), drop)
    }

    /// Removes the rules of this owner and his chains, and says how many rules led to them or stood alone. The frame
    /// stays, and is not made either; so does a chain that a rule of somebody else's is in or leads to.
    ///
    /// Where the frame has chains of the owner's and none of them stands, the rules of others are not looked at.
    pub fn release(&self, frame: &Frame, whose: impl Into<Whose>) -> Result<usize> {
        if !frame.own.is_empty() && !self.stands(frame)? {
            return Ok(0);
        }
        self.remove(frame, &whose.into(), |_| true)
    }

    /// Removes the rules that are meant, and the chains of their owners, unless `keep` holds of the text by which a rule
    /// was found: its comment, or the owner it names. Says how many.
    pub fn sweep(&self, frame: &Frame, whose: impl Into<Whose>, keep: impl Fn(&str) -> bool) -> Result<usize> {
        self.remove(frame, &whose.into(), |found| !keep(found))
    }

    /// What of the frame and the rules is missing or different, each a sentence: wanted, found, where.
    ///
    /// A rule of this owner that is not among `rules` is named too. Rules of others are not looked at.
    pub fn verify(&self, frame: &Frame, whose: impl Into<Whose>, rules: &[Rule]) -> Result<Vec<String>> {
        let state = self.state(frame, &whose.into())?;
        let mut drifts = state.drifts()?;
        let mut extra: Vec<_> = state.held.iter().collect();
        for rule in rules {
            let wanted = compile(rule, frame.family)?;
            match extra.iter().position(|found| found.serves(&wanted, rule.comment.as_deref())) {
                Some(place) => drop(extra.remove(place)),
                None => drifts.push(format!("rule `{rule}` is missing from {}", place(frame, frame.holds))),
            }
        }
        let unwanted = |found| format!("rule `{found}` in {} is not wanted", place(frame, frame.holds));
        drifts.extend(extra.into_iter().map(unwanted));
        Ok(drifts)
    }

    /// The rules that are meant in the chain that holds them, in their order. Without the table or the chain there are
    /// none.
    pub fn rules(&self, frame: &Frame, whose: impl Into<Whose>) -> Result<Vec<Found>> {
        let whose = whose.into();
        self.rules_of(frame, frame.holds, |label| whose.finds(label).is_some())
    }

    /// Whether any of the owner's chains of the frame is there, whoever made it.
    pub fn stands(&self, frame: &Frame) -> Result<bool> {
        for own in &frame.own {
            if self.chain(frame, &own.name)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How it is with the chains that the frame wants for this owner: names are made of identities, and two may read alike.
    pub fn claim(&self, frame: &Frame, whose: impl Into<Whose>) -> Result<Claim> {
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
    pub fn rehearse(&self, frame: &Frame, whose: impl Into<Whose>, rules: &[Rule]) -> Result<()> {
        let whose = whose.into();
        match self.change(frame, &whose, &Wanted::of(frame, &whose, rules)?)? {
            // Somebody else who makes the frame meanwhile is no hindrance.
            (Batch { guard: Some(_), messages }, _) => {
                Batch { guard: None, messages }.rehearse(&mut self.socket.borrow_mut())
            }
            _ => Ok(()),
        }
    }

    fn set(&self, frame: &Frame, whose: &Whose, wanted: &Wanted, mut note: impl FnMut(Vec<Found>)) -> Result<()> {
        self.settle(|nftables| {
            let (batch, before) = nftables.change(frame, whose, wanted)?;
            note(before);
            Ok((batch, ()))
        })
    }

    /// What makes it so, and what is there now.
    fn change(&self, frame: &Frame, whose: &Whose, wanted: &Wanted) -> Result<(Batch, Vec<Found>)> {
        let state = self.state(frame, whose)?;
        let mut messages = state.repair()?;
        // Only what makes the frame must not meet somebody else who makes it too.
        let guard = (!messages.is_empty()).then_some(state.generation);
        messages.extend(state.own_changes(whose, wanted)?);
        messages.extend(exchange(&state.held, &wanted.held, frame, frame.holds));
        messages.extend(state.own_removals(whose, wanted));
        let own = state.own.into_iter().filter(|own| !own.is_anothers(whose));
        let before = state.held.into_iter().chain(own.flat_map(|own| own.rules)).collect();
        Ok((Batch { guard, messages }, before))
    }

    fn remove(&self, frame: &Frame, whose: &Whose, goes: impl Fn(&str) -> bool) -> Result<usize> {
        let mut removed = 0;
        loop {
            let count = self.settle(|nftables| {
                let meant = |label: &Label<'_>| whose.finds(label).is_some_and(&goes);
                let mut going = nftables.rules_of(frame, frame.holds, meant)?;
                going.truncate(MOST);
                let count = going.len();
                let mut messages: Vec<_> = going.iter().map(|found| found.deletion(frame)).collect();
                messages.extend(nftables.chains_of(frame, whose, going)?);
                Ok((Batch { guard: None, messages }, count))
            })?;
            removed += count;
            if count < MOST {
                return Ok(removed);
            }
        }
    }

    /// The messages that remove the owner's chains: those of the frame, and those to which the rules that go lead.
    fn chains_of(&self, frame: &Frame, whose: &Whose, mut leaving: Vec<Found>) -> Result<Vec<Message>> {
        let mut names: Vec<String> = frame.own.iter().map(|own| own.name.clone()).collect();
        names.extend(leaving.iter().filter_map(Found::target).map(str::to_owned));
        let (mut messages, mut next) = (Vec::new(), 0);
        while let Some(name) = names.get(next).cloned() {
            next += 1;
            if names[..next - 1].contains(&name) || frame.chains.iter().any(|chain| chain.name == name) {
                continue;
            }
            let own = self.own(frame, &name)?;
            if own.goes_with(&leaving, frame, whose) {
                messages.push(Message::delete_chain(frame, &name));
                names.extend(own.rules.iter().filter_map(Found::target).map(str::to_owned));
                leaving.extend(own.rules);
            }
        }
        Ok(messages)
    }

    /// Looks and changes, again and again while others change what we looked at in between.
    fn settle<T>(&self, mut look: impl FnMut(&Self) -> Result<(Batch, T)>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut tries = 0;
        loop {
            let (batch, outcome) = look(self)?;
            if batch.messages.is_empty() {
                return Ok(outcome);
            }
            tries += 1;
            let sent = batch.send(&mut self.socket.borrow_mut());
            match sent {
                Ok(()) => return Ok(outcome),
                Err(error) if overtaken(&error, tries) && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What stands of the frame, the rules of this owner, and his chains.
    fn state<'a>(&self, frame: &'a Frame, whose: &Whose) -> Result<State<'a>> {
        let state = self.standing(frame)?;
        let own = frame.own.iter().map(|own| self.own(frame, &own.name)).collect::<Result<Vec<_>>>()?;
        // No rule leads to a chain that is not there.
        let none = !own.is_empty() && own.iter().all(|own| own.found.is_none());
        let held = if none { Vec::new() } else { self.rules(frame, whose.clone())? };
        Ok(State { held, own, ..state })
    }

    /// What stands of the frame.
    fn standing<'a>(&self, frame: &'a Frame) -> Result<State<'a>> {
        let mut questions = vec![Message::generation(frame), Message::table(frame)];
        questions.extend(frame.chains.iter().map(|chain| Message::chain(frame, chain.name)));
        let answers = self.ask(&questions).map_err(lacking)?;
        let list = |place: usize| answers.get(place)?.as_ref()?.get(HEADERS..);
        let generation = list(0).and_then(|list| number(list, object::GENERATION_ID));
        let generation = generation.ok_or_else(|| Error::ours("read", "the ruleset", "the kernel gave no number"))?;
        let table = Standing::read(answers.get(1).and_then(Option::as_deref));
        let chains = (2..answers.len()).map(|place| list(place).map(FoundChain::read)).collect();
        let fixed =
            frame.fixed.iter().map(|(chain, _)| self.rules_of(frame, chain, |_| true)).collect::<Result<_>>()?;
        Ok(State { frame, generation, table, chains, fixed, held: Vec::new(), own: Vec::new() })
    }

    /// A chain of an owner's, if it is there, with its rules.
    fn own(&self, frame: &Frame, name: &str) -> Result<Own> {
        let found = self.chain(frame, name)?;
        let rules = if found.is_some() { self.rules_of(frame, name, |_| true)? } else { Vec::new() };
        Ok(Own { name: name.to_owned(), found, rules })
    }

    /// Whether a table has this chain, whoever made it; in a kernel without `nf_tables` none has.
    pub(crate) fn has(&self, table: &Frame, chain: &str) -> Result<bool> {
        match self.ask(&[Message::chain(table, chain)]) {
            Ok(answers) => Ok(answers.iter().any(Option::is_some)),
            Err(error) if is_lacking(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is any rule in a chain.
    pub(crate) fn has_rules(&self, table: &Frame, chain: &str) -> Result<bool> {
        Ok(!self.rules_of(table, chain, |_| true)?.is_empty())
    }

    /// The names of a table's chains, whoever made them; in a kernel without `nf_tables` there is none.
    pub(crate) fn chains(&self, table: &Frame) -> Result<Vec<String>> {
        let question = Message::chains(table);
        let name = |message: &Vec<u8>| {
            let list = message.get(HEADERS..)?;
            let here = text(list, object::CHAIN_TABLE) == Some(table.table);
            text(list, object::CHAIN_NAME).filter(|_| here).map(str::to_owned)
        };
        let told = self.socket.borrow_mut().dump(&question.encode(0));
        match told {
            Ok(messages) => Ok(messages.iter().filter_map(name).collect()),
            Err(error) if is_lacking(&error) => Ok(Vec::new()),
            Err(error) => Err(error.during(question.operation, question.object)),
        }
    }

    /// What the kernel says of a chain; none if there is no such chain or table, or no `nf_tables` at all.
    fn chain(&self, frame: &Frame, name: &str) -> Result<Option<FoundChain>> {
        match self.ask(&[Message::chain(frame, name)]) {
            Ok(answers) => {
                let list = answers.into_iter().flatten().next();
                Ok(list.as_ref().and_then(|message| message.get(HEADERS..)).map(FoundChain::read))
            }
            Err(error) if error.errno == libc::EINVAL => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The answers to questions for one thing each, `None` for those that are not there.
    fn ask(&self, questions: &[Message]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut socket = self.socket.borrow_mut();
        let sequences: Vec<_> = questions.iter().map(|_| socket.next_sequence()).collect();
        let asked = questions.iter().zip(&sequences);
        let datagram: Vec<u8> = asked.clone().flat_map(|(question, sequence)| question.encode(*sequence)).collect();
        let exchanged = socket.exchange(&datagram, &sequences)?;
        let answer =
            |(question, sequence): (&Message, &u32)| match exchanged.errors.iter().find(|(own, _)| own == sequence) {
                Some((_, refusal)) if refusal.errno == libc::ENOENT => Ok(None),
                Some((_, refusal)) => Err(Error::refused(question.operation, question.object.as_str(), refusal)),
                None => Ok(exchanged.messages.iter().find(|message| answers(message, *sequence)).cloned()),
            };
        asked.map(answer).collect()
    }

    /// The rules of a chain whose label is `wanted`; none if there is no such chain or table, or no `nf_tables` at all.
    fn rules_of(&self, frame: &Frame, chain: &str, wanted: impl Fn(&Label<'_>) -> bool) -> Result<Vec<Found>> {
        let question = Message::rules(frame, chain);
        let read = |message: &Vec<u8>| Found::read(message, frame, chain, &wanted);
        let told = self.socket.borrow_mut().dump(&question.encode(0));
        match told {
            Ok(messages) => Ok(messages.iter().filter_map(read).collect()),
            // What netfilter answers for a part of it that the kernel has not got and cannot load.
            Err(error) if error.errno == libc::EINVAL => Ok(Vec::new()),
            Err(error) => Err(error.during(question.operation, question.object)),
        }
    }
}

/// What netfilter calls invalid is a part of it that the kernel has not got and cannot load: `nf_tables` as a whole.
fn lacking(error: Error) -> Error {
    if error.errno != libc::EINVAL {
        return error;
    }
    Error::refused("use nf_tables for", error.object, &Refusal { errno: libc::EOPNOTSUPP, text: error.kernel })
}

/// Whether there is no `nf_tables` to be asked.
fn is_lacking(error: &Error) -> bool {
    error.errno == libc::EINVAL || error.unsupported()
}

/// Whether a message is the answer with this sequence number.
fn answers(message: &[u8], sequence: u32) -> bool {
    message.get(8..12) == Some(&sequence.to_ne_bytes())
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
