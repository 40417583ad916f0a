//! Named sets that index the rules of a table.

use std::fmt;

use cnikit_netlink::attribute::Attributes;

use crate::Result;
use crate::rule::types::{Concatenation, KeyType, KeyValue, Rule};
use crate::wire::attribute::object;
use crate::wire::userdata::{self, Label};

/// A named set of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    /// The name of the set.
    pub name: &'static str,
    /// The types of the parts of a key. Several parts are a concatenation.
    pub key: Vec<KeyType>,
    /// The comment that it gets when it is made.
    pub comment: Option<&'static str>,
}

/// A key in a set: one value per part.
pub type Key = Vec<KeyValue>;

/// A set that has the key of each rule in some chains, whichever program made the rule.
///
/// Keys are added and deleted together with the rules. A rule that this crate cannot read has no key. If another program deletes a
/// rule, its key remains: a key in the set may have a rule, a key that is missing has none.
#[derive(Clone, Debug)]
pub struct Index {
    /// The set; made when absent, never removed.
    pub set: Set,
    /// The chains whose rules are indexed, some of the layout's `rule_chains`.
    pub chains: Vec<&'static str>,
    /// How the key of a rule is made.
    pub by: IndexBy,
}

/// How the key of a rule is made.
#[derive(Clone, Copy, Debug)]
pub enum IndexBy {
    /// From the rule itself; `None` if it has no key.
    Rule(fn(&Rule) -> Option<Key>),
    /// From the owner, or from the comment of a rule that names no owner: a hash of the first word, as two marks. If the set has
    /// neither key of an owner, the owner has no rules and they are not read. nft(8) does not show the owner: a rule whose comment
    /// begins with it keeps its key when the ruleset is saved and loaded.
    Owner,
}

impl Index {
    /// The key of a rule with this label; `None` if it has none.
    pub(crate) fn key(&self, rule: Option<&Rule>, label: &Label<'_>) -> Option<Key> {
        match self.by {
            IndexBy::Rule(key) => rule.and_then(key),
            IndexBy::Owner => label.owner.or(label.comment).map(hash),
        }
    }
}

/// The hash of an owner, FNV-1a of 64 bits. If two owners have the same hash, rules are read in vain and nothing else happens.
pub(crate) fn hash(owner: &str) -> Key {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in owner.bytes().take_while(|byte| *byte != b' ') {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let half = |shift: u32| KeyValue::Mark(u32::try_from(hash >> shift & u64::from(u32::MAX)).unwrap_or_default());
    vec![half(32), half(0)]
}

impl Set {
    /// nft(8)'s number of the key's type: each part takes six bits.
    pub(crate) fn key_type(&self) -> u32 {
        self.key.iter().fold(0, |number, part| number << 6 | part.number())
    }

    /// The length of a key in bytes. Each part of a concatenation is padded to a multiple of four bytes.
    fn key_length(&self) -> usize {
        match &self.key[..] {
            [one] => one.length(),
            several => several.iter().map(|part| part.length().next_multiple_of(4)).sum(),
        }
    }

    /// The attributes of the message that adds the set.
    ///
    /// # Errors
    /// A comment that nft(8) does not accept.
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

/// The type of its keys, as nft(8) shows it.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type {}", Concatenation(&self.key))
    }
}
