//! Named sets, by which one look tells what many rules would.

use std::fmt;

use cnikit_netlink::attribute::Attributes;

use crate::Result;
use crate::rule::types::{Joined, KeyType, Rule, Value};
use crate::wire::attribute::object;
use crate::wire::userdata::{self, Label};

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
    pub by: IndexBy,
}

/// What the key of a rule is.
#[derive(Clone, Copy, Debug)]
pub enum IndexBy {
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
            IndexBy::Rule(key) => rule.and_then(key),
            IndexBy::Owner => label.owner.or(label.comment).map(hash),
        }
    }
}

/// FNV-1a of 64 bits: two owners that are alike in it cost a look at the rules, and nothing else.
pub(crate) fn hash(owner: &str) -> Key {
    let hashed = owner
        .bytes()
        .take_while(|byte| *byte != b' ')
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let half = |shift: u32| Value::Mark(u32::try_from(hashed >> shift & u64::from(u32::MAX)).unwrap_or_default());
    vec![half(32), half(0)]
}

impl Set {
    /// The number that nft(8) has for the type of the key: each part takes six bits.
    pub(crate) fn key_type(&self) -> u32 {
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
    pub(crate) fn attributes(&self, table: &str, number: u32) -> Result<Attributes> {
        let length = u32::try_from(self.key_length()).unwrap_or(u32::MAX);
        let order = match &self.key[..] {
            [one] if one.is_of_host() => userdata::Order::Host,
            [_] => userdata::Order::Network,
            _ => userdata::Order::Mixed,
        };
        Ok(Attributes::new()
            .text(1, table)
            .text(2, self.name)
            .number(3, 0)
            .number(object::SET_KEY_TYPE, self.key_type())
            .number(5, length)
            .number(10, number)
            .bytes(13, &userdata::of_set(order, self.comment)?))
    }
}

/// The type of its keys, as nft(8) writes it.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type {}", Joined(&self.key))
    }
}
