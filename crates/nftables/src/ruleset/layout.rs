//! What must stand before rules can.

use std::fmt;

use crate::rule::set::{Index, Set};
use crate::rule::types::{Match, Rule, TableFamily};
use crate::{Error, Result};

/// A table with its chains, shared by everybody who adds rules: made when absent, never removed, never flushed. And the
/// chains beside them that one owner has for himself.
///
/// Whoever made it before us may have done so with other comments or none; those are not compared.
#[derive(Clone, Debug)]
pub struct TableLayout {
    /// The family of the table.
    pub family: TableFamily,
    /// The name of the table.
    pub table: &'static str,
    /// The comment that the table gets when it is made.
    pub table_comment: Option<&'static str>,
    /// Its chains.
    pub chains: Vec<Chain>,
    /// By chain: the rules that it must begin with, in this order. They are compared by what they do, not by comment.
    pub prologue: Vec<(&'static str, Vec<Rule>)>,
    /// By chain: what another program has it begin with instead, which serves as well. Where ours is put, it goes.
    pub accepted_prologues: Vec<(&'static str, Vec<Rule>)>,
    /// What leads past the fixed rules, and goes.
    pub jump_conditions: Vec<JumpCondition>,
    /// The chains our rules live in.
    pub rule_chains: Vec<&'static str>,
    /// Sets that have a key of each rule that these chains hold.
    pub indexes: Vec<Index>,
    /// The chains that our rules lead to, and that nobody else's do.
    pub own: Vec<OwnChain>,
}

/// From some chains, which begin with fixed rules, only packets that match come to others: a rule that leads there and does
/// not look for it goes, whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JumpCondition {
    /// Chains that begin with fixed rules.
    pub from: Vec<&'static str>,
    /// Where such a rule leads.
    pub to: Vec<&'static str>,
    /// What it has to look for.
    pub required: Match,
}

/// A regular chain of one owner alone: it comes and goes with the rules that lead to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnChain {
    /// Its name, at most 255 bytes.
    pub name: String,
    /// All its rules, in this order. None: the chain is not wanted, and goes if it is there.
    pub rules: Vec<Rule>,
}

/// A chain of the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// The comment that it gets when it is made.
    pub comment: Option<&'static str>,
    /// Where packets enter it; `None` makes a regular chain, which only rules lead to.
    pub hook: Option<Hook>,
}

/// Where packets enter a base chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hook {
    /// The type of the chain.
    pub kind: HookKind,
    /// The point on a packet's way.
    pub hook: HookPoint,
    /// The order among chains of one hook: lower comes first, 100 is nft's `srcnat`.
    pub priority: i32,
}

/// The type of a base chain: what its rules may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookKind {
    /// Asked for the first packet of a connection only, and may change addresses.
    Nat,
    /// Asked for every packet.
    Filter,
}

/// A point on a packet's way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "nf_inet_hooks")]
pub enum HookPoint {
    /// Just arrived.
    Prerouting,
    /// For this host.
    Input,
    /// For another host.
    Forward,
    /// Made by this host.
    Output,
    /// About to leave.
    Postrouting,
}

impl TableLayout {
    /// A table of which nothing else is said.
    pub fn of(family: TableFamily, table: &'static str) -> TableLayout {
        TableLayout {
            family,
            table,
            table_comment: None,
            chains: Vec::new(),
            prologue: Vec::new(),
            accepted_prologues: Vec::new(),
            jump_conditions: Vec::new(),
            rule_chains: Vec::new(),
            indexes: Vec::new(),
            own: Vec::new(),
        }
    }

    /// The place of the index with this set.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn index_of(&self, set: &str) -> Result<usize> {
        let place = self.indexes.iter().position(|index| index.set.name == set);
        place.ok_or_else(|| Error::ours("look into", set, "the layout has no such index"))
    }

    /// What serves as well at the beginning of a chain.
    pub(crate) fn instead_in(&self, chain: &str) -> &[Rule] {
        self.accepted_prologues.iter().find(|(of, _)| *of == chain).map_or(&[], |(_, rules)| rules)
    }
}

impl HookKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            HookKind::Nat => "nat",
            HookKind::Filter => "filter",
        }
    }
}

impl HookPoint {
    /// The kernel's number for it, the same in all families that we know.
    #[doc(alias = "NF_INET_POST_ROUTING")]
    pub(crate) fn number(self) -> u32 {
        match self {
            HookPoint::Prerouting => 0,
            HookPoint::Input => 1,
            HookPoint::Forward => 2,
            HookPoint::Output => 3,
            HookPoint::Postrouting => 4,
        }
    }
}

/// `table inet x`, in the words of nft(8).
impl fmt::Display for TableLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} {}", self.family, self.table)
    }
}

impl Set {
    /// `set s of table ip x`.
    pub(crate) fn shown(&self, layout: &TableLayout) -> String {
        format!("set {} of {layout}", self.name)
    }
}
