//! Questions to the kernel about what stands.

use super::{Nftables, generation, is_lacking};
use crate::attribute::text;
use crate::hook::FoundChain;
use crate::installed_rule::InstalledRule;
use crate::layout::TableLayout;
use crate::message::{HEADERS, Message, object};
use crate::owner_filter::Label;
use crate::{Error, Result};

impl Nftables {
    /// Whether a table has this chain, whoever made it; in a kernel without `nf_tables` none has.
    pub(crate) fn has(&self, table: &TableLayout, chain: &str) -> Result<bool> {
        match self.ask(&[Message::chain(table, chain)]) {
            Ok(answers) => Ok(answers.iter().any(Option::is_some)),
            Err(error) if is_lacking(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is any rule in a chain.
    pub(crate) fn has_rules(&self, table: &TableLayout, chain: &str) -> Result<bool> {
        Ok(!self.rules_of(table, chain, |_| true)?.is_empty())
    }

    /// A table's chains by their names, whoever made them; in a kernel without `nf_tables` there is none.
    pub(crate) fn chains(&self, table: &TableLayout) -> Result<Vec<(String, FoundChain)>> {
        let chain = |message: &Vec<u8>| {
            let list = message.get(HEADERS..)?;
            let here = text(list, object::CHAIN_TABLE) == Some(table.table);
            let name = text(list, object::CHAIN_NAME).filter(|_| here)?;
            Some((name.to_owned(), FoundChain::read(list)))
        };
        match self.list(&Message::chains(table)) {
            Ok(messages) => Ok(messages.iter().filter_map(chain).collect()),
            Err(error) if is_lacking(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The number of the ruleset, which each change raises.
    pub(crate) fn generation(&self, table: &TableLayout) -> Result<u32> {
        let answers = self.ask(&[Message::generation(table)])?;
        generation(answers.first().and_then(Option::as_deref))
    }

    /// What the kernel says of a chain; none if there is no such chain or table, or no `nf_tables` at all.
    pub(super) fn chain(&self, frame: &TableLayout, name: &str) -> Result<Option<FoundChain>> {
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
    pub(super) fn ask(&self, questions: &[Message]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut socket = self.socket.borrow_mut();
        let sequences: Vec<_> = questions.iter().map(|_| socket.next_sequence()).collect();
        let asked = questions.iter().zip(&sequences);
        let exchanged = socket.exchange(&Message::encode_all(asked.clone()), &sequences)?;
        let answer =
            |(question, sequence): (&Message, &u32)| match exchanged.errors.iter().find(|(own, _)| own == sequence) {
                Some((_, refusal)) if refusal.errno == libc::ENOENT => Ok(None),
                Some((_, refusal)) => Err(Error::refused(question.operation, question.object.as_str(), refusal)),
                None => Ok(exchanged.messages.iter().find(|message| answers(message, *sequence)).cloned()),
            };
        asked.map(answer).collect()
    }

    /// The rules of a chain whose label is `wanted`; none if there is no such chain or table, or no `nf_tables` at all.
    pub(crate) fn rules_of(
        &self,
        frame: &TableLayout,
        chain: &str,
        wanted: impl Fn(&Label<'_>) -> bool,
    ) -> Result<Vec<InstalledRule>> {
        let read = |message: &Vec<u8>| InstalledRule::read(message, frame, chain, &wanted);
        match self.list(&Message::rules(frame, chain)) {
            Ok(messages) => Ok(messages.iter().filter_map(read).collect()),
            // What netfilter answers for a part of it that the kernel has not got and cannot load.
            Err(error) if error.errno == libc::EINVAL => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All that the kernel has to say to a question for many things.
    fn list(&self, question: &Message) -> Result<Vec<Vec<u8>>> {
        let told = self.socket.borrow_mut().dump(&question.encode(0));
        told.map_err(|error| error.during(question.operation, question.object.clone()))
    }
}

/// Whether a message is the answer with this sequence number.
fn answers(message: &[u8], sequence: u32) -> bool {
    message.get(8..12) == Some(&sequence.to_ne_bytes())
}
