//! Named sets, by which one look tells what many rules would.

use std::fmt;

use crate::attribute::{Attributes, number};
use crate::field::{Joined, KeyType, Value};
use crate::installed_rule::InstalledRule;
use crate::layout::TableLayout;
use crate::message::{HEADERS, Message, object};
use crate::owner_filter::{Label, OwnerFilter};
use crate::rule::Rule;
use crate::{Error, Result, userdata};

/// A named set of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// What its elements are, one part or several.
    pub key: Vec<KeyType>,
    /// The comment that it gets when it is made.
    pub comment: Option<&'static str>,
}

/// An element of a set: one value a part of its key.
pub type Key = Vec<Value>;

/// A set that has a key of each rule in a chain, whoever wrote the rule.
///
/// Keys come and go with the rules. A rule that this crate has no words for has none. What another program removes leaves
/// its key behind: what is in the set may have a rule, what is not has none.
#[derive(Clone, Debug)]
pub struct Index {
    /// The set; made when absent, never removed.
    pub set: Set,
    /// Which of the chains that hold rules.
    pub chains: Vec<&'static str>,
    /// What the key of a rule is.
    pub by: By,
}

/// What the key of a rule is.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// What the rule itself says, if it does.
    Rule(fn(&Rule) -> Option<Key>),
    /// A hash of the first word of its owner, or of its comment if it names none, in two marks. Who has neither in the set has
    /// no rules, and none is looked for. nft(8) prints no owner: where the comment begins with him, a rule that was saved and
    /// loaded keeps its key.
    Owner,
}

impl Index {
    /// The key of a rule that bears this label.
    pub(crate) fn key(&self, rule: Option<&Rule>, label: &Label<'_>) -> Option<Key> {
        match self.by {
            By::Rule(key) => rule.and_then(key),
            By::Owner => label.owner.or(label.comment).map(hash),
        }
    }

    /// The key of a rule that was found.
    pub(crate) fn key_of(&self, found: &InstalledRule) -> Option<Key> {
        self.chains.contains(&found.chain()).then(|| self.key(found.rule(), &found.label())).flatten()
    }
}

/// FNV-1a of 64 bits: two owners that are alike in it cost a look at the rules, and nothing else.
fn hash(owner: &str) -> Key {
    let hashed = owner
        .bytes()
        .take_while(|byte| *byte != b' ')
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let half = |shift: u32| Value::Mark(u32::try_from(hashed >> shift & u64::from(u32::MAX)).unwrap_or_default());
    vec![half(32), half(0)]
}

/// A key of one of the frame's indexes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Element {
    /// The place of the index in the frame.
    pub(crate) index: usize,
    pub(crate) key: Key,
}

impl Element {
    /// The keys of rules that were found, each once.
    pub(crate) fn all_of<'a>(frame: &TableLayout, found: impl IntoIterator<Item = &'a InstalledRule>) -> Vec<Element> {
        let mut seen = std::collections::HashSet::new();
        let mut elements = Vec::new();
        for rule in found {
            for (index, one) in frame.indexes.iter().enumerate() {
                let element = one.key_of(rule).map(|key| Element { index, key });
                elements.extend(element.filter(|element| seen.insert(element.clone())));
            }
        }
        elements
    }

    /// The keys by which rules that were found may be registered: their own, and where they name no owner but are this one's
    /// all that he may be registered by. They may have named him until somebody saved and loaded them.
    pub(crate) fn known_by(frame: &TableLayout, whose: &OwnerFilter, found: &[InstalledRule]) -> Vec<Element> {
        let mut elements = Element::all_of(frame, found);
        if found.iter().any(|found| found.owner().is_none() && whose.is_of(found)) {
            let more: Vec<_> = Element::names(frame, whose).filter(|name| !elements.contains(name)).collect();
            elements.extend(more);
        }
        elements
    }

    /// By what the frame's index of owners knows this one, if it has such an index.
    pub(crate) fn names<'a>(frame: &TableLayout, whose: &'a OwnerFilter) -> impl Iterator<Item = Element> + use<'a> {
        let index = frame.indexes.iter().position(|index| matches!(index.by, By::Owner));
        index.into_iter().flat_map(|index| whose.names().map(move |name| Element { index, key: hash(name) }))
    }

    fn set<'a>(&self, frame: &'a TableLayout) -> Option<&'a Set> {
        frame.indexes.get(self.index).map(|index| &index.set)
    }

    /// The set and the element in it, as they go over the wire.
    fn attributes(&self, frame: &TableLayout) -> Result<Attributes> {
        let of_type = |set: &&Set| self.key.iter().map(Value::key_type).eq(set.key.iter().copied());
        let shown = || format!("element {} to {frame}", Joined(&self.key));
        let set = self.set(frame).filter(of_type);
        let set = set.ok_or_else(|| Error::ours("add", shown(), "the set has keys of another type"))?;
        let mut key = Vec::new();
        for part in &self.key {
            key.extend(part.bytes()?);
            key.resize(key.len().next_multiple_of(if self.key.len() > 1 { 4 } else { 1 }), 0);
        }
        let element = Attributes::new().nested(1, &Attributes::new().bytes(1, &key));
        Ok(Attributes::new().text(1, frame.table).text(2, set.name).nested(3, &Attributes::new().nested(1, &element)))
    }

    /// The message that adds it. `new`: it must not be there yet (`EEXIST`).
    pub(crate) fn addition(&self, frame: &TableLayout, new: bool) -> Result<Message> {
        Ok(Message::new_element(frame, new, self.attributes(frame)?, self.shown(frame)))
    }

    /// The message that removes it; that it is gone is refused (`ENOENT`).
    pub(crate) fn deletion(&self, frame: &TableLayout) -> Result<Message> {
        Ok(Message::delete_element(frame, self.attributes(frame)?, self.shown(frame)))
    }

    /// Asks for it.
    pub(crate) fn question(&self, frame: &TableLayout) -> Result<Message> {
        Ok(Message::element(frame, self.attributes(frame)?, self.shown(frame)))
    }

    /// `element tcp . 80 of set s of table ip x`.
    pub(crate) fn shown(&self, frame: &TableLayout) -> String {
        let set = self.set(frame).map_or("?", |set| set.name);
        format!("element {} of set {set} of {frame}", Joined(&self.key))
    }
}

impl Set {
    /// The number that nft(8) has for the type of the key: each part takes six bits.
    fn key_type(&self) -> u32 {
        self.key.iter().fold(0, |number, part| number << 6 | part.number())
    }

    /// In bytes; of several parts each is filled up to four.
    fn key_length(&self) -> usize {
        match &self.key[..] {
            [one] => one.length(),
            several => several.iter().map(|part| part.length().next_multiple_of(4)).sum(),
        }
    }

    /// What the message says that makes it.
    pub(crate) fn attributes(&self, frame: &TableLayout, number: u32) -> Result<Attributes> {
        let length = u32::try_from(self.key_length()).unwrap_or(u32::MAX);
        let order = match &self.key[..] {
            [one] if one.is_of_host() => userdata::Order::Host,
            [_] => userdata::Order::Network,
            _ => userdata::Order::Mixed,
        };
        Ok(Attributes::new()
            .text(1, frame.table)
            .text(2, self.name)
            .number(3, 0)
            .number(object::SET_KEY_TYPE, self.key_type())
            .number(5, length)
            .number(10, number)
            .bytes(13, &userdata::of_set(order, self.comment)?))
    }

    /// Judges the set that stands under this name.
    ///
    /// # Errors
    /// Its keys are of another type.
    pub(crate) fn refuse_other(&self, frame: &TableLayout, message: &[u8]) -> Result<()> {
        let found = message.get(HEADERS..).and_then(|list| number(list, object::SET_KEY_TYPE));
        if found == Some(self.key_type()) {
            return Ok(());
        }
        Err(Error::ours("use", self.shown(frame), format!("its keys are of another type, wanted `{self}`")))
    }

    /// `set s of table ip x`.
    pub(crate) fn shown(&self, frame: &TableLayout) -> String {
        format!("set {} of {frame}", self.name)
    }
}

/// The type of its keys, as nft(8) writes it.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type {}", Joined(&self.key))
    }
}
