//! The rules of a namespace, read and changed.

use std::time::{Duration, Instant};

use cnikit_netlink::Socket;
use cnikit_netns::Netns;

use crate::attribute::number;
use crate::batch::Batch;
use crate::found::Found;
use crate::frame::Frame;
use crate::hook::FoundChain;
use crate::message::{Body, HEADERS, Message, object, place};
use crate::rule::Rule;
use crate::state::{Standing, State, body};
use crate::{Error, Result};

/// The protocol of the socket.
#[doc(alias = "NETLINK_NETFILTER")]
const NETFILTER: isize = 12;
/// How long we try again when others change the ruleset between our look at it and our change.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often we try again when something is not there, which may be for good.
const TRIES: usize = 20;
/// The most rules removed in one transaction; what a socket can send at once is limited where we are not root.
const MOST: usize = 500;

/// The packet filter of one network namespace, as `nf_tables` has it.
///
/// Rules are told apart by the beginning of their comments, their *prefix*: whoever adds some chooses one that nobody
/// else has. All changes of one call are one transaction; nobody ever sees half of it.
///
/// Only the chains of the frame are read, and only rules with the prefix are removed. A removal has its price: the
/// kernel frees rules when the socket is closed, and that takes 8 to 16 ms; so nothing is sent where nothing differs.
#[doc(alias = "nft")]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    /// The packet filter of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// Without netfilter in the kernel one that is [`Error::unsupported`].
    pub fn here() -> Result<Self> {
        Ok(Self { socket: Socket::here(NETFILTER)? })
    }

    /// The packet filter of this namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`Nftables::here`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        Ok(Self { socket: Socket::inside(netns, NETFILTER)? })
    }

    /// Makes `rules` all the rules there are with this prefix, and returns those that were there before, for
    /// [`Nftables::put_back`].
    ///
    /// The frame is made if it is not whole. New rules come behind those of others; when the same rules are there
    /// already, in this order, nothing is changed.
    ///
    /// # Errors
    /// A rule whose comment does not begin with the prefix, for it would never be found again; a chain of the frame's
    /// that hangs elsewhere; the kernel's refusals.
    pub fn replace(&mut self, frame: &Frame, prefix: &str, rules: &[Rule]) -> Result<Vec<Found>> {
        let wanted = rules.iter().map(|rule| addition(rule, frame, prefix)).collect::<Result<Vec<_>>>()?;
        self.set(frame, prefix, &wanted)
    }

    /// Makes `before`, which [`Nftables::replace`] returned, all the rules there are with this prefix.
    ///
    /// They come back byte for byte, those too that this crate has no words for, but behind all others of the chain.
    /// Only a rule with a set of its own (`tcp dport { 80, 443 }`) cannot: its set went when it did.
    pub fn put_back(&mut self, frame: &Frame, prefix: &str, before: &[Found]) -> Result<()> {
        if before.is_empty() {
            return self.release(frame, prefix).map(drop);
        }
        let wanted: Vec<_> = before.iter().map(|found| (found.body.clone(), found.to_string())).collect();
        self.set(frame, prefix, &wanted).map(drop)
    }

    /// Removes the rules with this prefix and says how many there were. The frame stays, and is not made either.
    pub fn release(&mut self, frame: &Frame, prefix: &str) -> Result<usize> {
        self.remove(frame, |comment| comment.starts_with(prefix))
    }

    /// Removes the rules whose comment begins with `network_prefix` unless `keep` holds of the comment; says how many.
    pub fn sweep(&mut self, frame: &Frame, network_prefix: &str, keep: impl Fn(&str) -> bool) -> Result<usize> {
        self.remove(frame, |comment| comment.starts_with(network_prefix) && !keep(comment))
    }

    /// What of the frame and the rules is missing or different, each a sentence: wanted, found, where.
    ///
    /// A rule with this prefix that is not among `rules` is named too. Rules of others are not looked at.
    pub fn verify(&mut self, frame: &Frame, prefix: &str, rules: &[Rule]) -> Result<Vec<String>> {
        let state = self.state(frame, prefix)?;
        let mut drifts = state.drifts()?;
        let mut extra: Vec<_> = state.held.iter().collect();
        for rule in rules {
            let wanted = body(rule, frame)?;
            match extra.iter().position(|found| found.is(&wanted)) {
                Some(place) => drop(extra.remove(place)),
                None => drifts.push(format!("rule `{rule}` is missing from {}", place(frame, frame.holds))),
            }
        }
        let unwanted = |found| format!("rule `{found}` in {} is not wanted", place(frame, frame.holds));
        drifts.extend(extra.into_iter().map(unwanted));
        Ok(drifts)
    }

    /// The rules with this prefix, in their order. Without the table or the chain there are none.
    pub fn rules(&mut self, frame: &Frame, prefix: &str) -> Result<Vec<Found>> {
        self.rules_of(frame, frame.holds, begins(prefix))
    }

    fn set(&mut self, frame: &Frame, prefix: &str, wanted: &[(Body, String)]) -> Result<Vec<Found>> {
        self.settle(|nftables| {
            let state = nftables.state(frame, prefix)?;
            let mut messages = state.repair()?;
            // Only what makes the frame must not meet somebody else who makes it too.
            let guard = (!messages.is_empty()).then_some(state.generation);
            let before = state.held;
            if !same(&before, wanted) {
                messages.extend(before.iter().map(|found| found.deletion(frame, frame.holds)));
                let added = |(body, shown): &(Body, String)| Message::append_rule(frame, frame.holds, body, shown);
                messages.extend(wanted.iter().map(added));
            }
            Ok((Batch { guard, messages }, before))
        })
    }

    fn remove(&mut self, frame: &Frame, goes: impl Fn(&str) -> bool) -> Result<usize> {
        let mut removed = 0;
        loop {
            let count = self.settle(|nftables| {
                let going = nftables.rules_of(frame, frame.holds, |comment| comment.is_some_and(&goes))?;
                let messages: Vec<_> =
                    going.iter().take(MOST).map(|found| found.deletion(frame, frame.holds)).collect();
                let count = messages.len();
                Ok((Batch { guard: None, messages }, count))
            })?;
            removed += count;
            if count < MOST {
                return Ok(removed);
            }
        }
    }

    /// Looks and changes, again and again while others change what we looked at in between.
    fn settle<T>(&mut self, look: impl Fn(&mut Self) -> Result<(Batch, T)>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut tries = 0;
        loop {
            let (batch, outcome) = look(self)?;
            if batch.messages.is_empty() {
                return Ok(outcome);
            }
            tries += 1;
            match batch.send(&mut self.socket) {
                Ok(()) => return Ok(outcome),
                Err(error) if overtaken(&error, tries) && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What stands of the frame, and the rules with this prefix.
    fn state<'a>(&mut self, frame: &'a Frame, prefix: &str) -> Result<State<'a>> {
        let mut questions = vec![Message::generation(frame), Message::table(frame)];
        questions.extend(frame.chains.iter().map(|chain| Message::chain(frame, chain)));
        let answers = self.ask(questions)?;
        let list = |place: usize| answers.get(place)?.as_ref()?.get(HEADERS..);
        let generation = list(0).and_then(|list| number(list, object::GENERATION_ID));
        let generation = generation.ok_or_else(|| Error::ours("read", "the ruleset", "the kernel gave no number"))?;
        let table = Standing::read(answers.get(1).and_then(Option::as_deref));
        let chains = (2..answers.len()).map(|place| list(place).map(FoundChain::read)).collect();
        let fixed =
            frame.fixed.iter().map(|(chain, _)| self.rules_of(frame, chain, |_| true)).collect::<Result<_>>()?;
        let held = self.rules(frame, prefix)?;
        Ok(State { frame, generation, table, chains, fixed, held })
    }

    /// The answers to questions for one thing each, `None` for those that are not there.
    fn ask(&mut self, questions: Vec<Message>) -> Result<Vec<Option<Vec<u8>>>> {
        let questions: Vec<_> = questions.into_iter().map(Message::acknowledged).collect();
        let sequences: Vec<_> = questions.iter().map(|_| self.socket.next_sequence()).collect();
        let asked = questions.iter().zip(&sequences);
        let datagram: Vec<u8> = asked.clone().flat_map(|(question, sequence)| question.encode(*sequence)).collect();
        let exchanged = self.socket.exchange(&datagram, &sequences)?;
        let answer =
            |(question, sequence): (&Message, &u32)| match exchanged.errors.iter().find(|(own, _)| own == sequence) {
                Some((_, refusal)) if refusal.errno == libc::ENOENT => Ok(None),
                Some((_, refusal)) => Err(Error::refused(question.operation, question.object.as_str(), refusal)),
                None => Ok(exchanged.messages.iter().find(|message| answers(message, *sequence)).cloned()),
            };
        asked.map(answer).collect()
    }

    /// The rules of a chain whose comment is `wanted`; none if there is no such chain or table, or no `nf_tables` at all.
    fn rules_of(&mut self, frame: &Frame, chain: &str, wanted: impl Fn(Option<&str>) -> bool) -> Result<Vec<Found>> {
        let question = Message::rules(frame, chain);
        let read = |message: &Vec<u8>| Found::read(message, frame, chain, &wanted);
        match self.socket.dump(&question.encode(0)) {
            Ok(messages) => Ok(messages.iter().filter_map(read).collect()),
            // What netfilter answers for a part of it that the kernel has not got and cannot load.
            Err(error) if error.errno == libc::EINVAL => Ok(Vec::new()),
            Err(error) => Err(error.during(question.operation, question.object)),
        }
    }
}

/// Whether a comment begins so. A rule without comment is nobody's.
fn begins(prefix: &str) -> impl Fn(Option<&str>) -> bool {
    move |comment| comment.is_some_and(|comment| comment.starts_with(prefix))
}

fn addition(rule: &Rule, frame: &Frame, prefix: &str) -> Result<(Body, String)> {
    if rule.comment.as_deref().is_some_and(|comment| comment.starts_with(prefix)) {
        return Ok((body(rule, frame)?, rule.to_string()));
    }
    let why = format!("its comment has to begin with \"{prefix}\", by which it is found again");
    Err(Error::ours("add rule", format!("`{rule}` to {}", place(frame, frame.holds)), why))
}

fn same(found: &[Found], wanted: &[(Body, String)]) -> bool {
    found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, (wanted, _))| found.is(wanted))
}

/// Whether a message is the answer with this sequence number.
fn answers(message: &[u8], sequence: u32) -> bool {
    message.get(8..12) == Some(&sequence.to_ne_bytes())
}

/// Whether a refusal may come from somebody's change between our look and our batch.
///
/// What does not exist (a rule that was to go, a chain that was to take one) or is busy may also be our own fault, or
/// the kernel may lack a module: that is tried again a few times only.
fn overtaken(error: &Error, tries: usize) -> bool {
    match error.errno {
        // The guard: the ruleset has another number by now.
        libc::ERESTART => true,
        libc::ENOENT | libc::EBUSY => tries < TRIES,
        _ => false,
    }
}
