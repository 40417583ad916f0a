//! The table, chains and sets that must exist before rules are added.

use std::fmt;

use crate::rule::set::{Index, Set};
use crate::rule::types::{Match, Rule, TableFamily};
use crate::{Error, Result};

/// A table with its chains and sets, which all owners of rules share: made when absent, never removed, never flushed. In addition
/// the chains that belong to one owner alone.
///
/// Another program may have made them with other comments or none, so comments are not compared.
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
    /// By chain: the rules that it must begin with, in this order. Their expressions are compared, not their comments.
    pub prologue: Vec<(&'static str, Vec<Rule>)>,
    /// By chain: the rules that another program makes it begin with instead, which are equivalent. They are removed when ours are
    /// added.
    pub accepted_prologues: Vec<(&'static str, Vec<Rule>)>,
    /// Rules that violate one of these conditions bypass the prologue and are removed.
    pub jump_conditions: Vec<JumpCondition>,
    /// The shared chains that owners add their rules to.
    pub rule_chains: Vec<&'static str>,
    /// Sets that have a key for each rule in these chains.
    pub indexes: Vec<Index>,
    /// The chains of one owner: only its rules jump there.
    pub owned_chains: Vec<OwnedChain>,
}

/// A match that is required of rules that jump from some chains to others. A rule that jumps without it is removed, whichever
/// program made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JumpCondition {
    /// The chains of such rules, which have a prologue.
    pub from: Vec<&'static str>,
    /// The targets of such rules.
    pub to: Vec<&'static str>,
    /// The match that is required.
    pub required: Match,
}

/// A regular chain of one owner alone. It is made and removed together with the rules that jump to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedChain {
    /// Its name, at most 255 bytes.
    pub name: String,
    /// All its rules, in this order. If there are none, the chain is removed.
    pub rules: Vec<Rule>,
}

/// A shared chain of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// The comment that it gets when it is made.
    pub comment: Option<&'static str>,
    /// Where packets enter it; `None` for a regular chain, which packets enter only by rules that jump to it.
    pub hook: Option<Hook>,
}

/// The type, hook and priority of a base chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hook {
    /// The type of the chain.
    pub kind: HookKind,
    /// The hook.
    pub hook: HookPoint,
    /// The priority: chains of one hook are run in ascending order. 100 is nft's `srcnat`.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookKind {
    /// Run for the first packet of a connection only; its rules can change addresses.
    Nat,
    /// Run for every packet.
    Filter,
}

/// A hook, at which the kernel runs base chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "nf_inet_hooks")]
pub enum HookPoint {
    /// Packets that arrive, before routing.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Packets that are forwarded.
    Forward,
    /// Packets from this host.
    Output,
    /// Packets that leave, after routing.
    Postrouting,
}

impl TableLayout {
    /// A table without comment, chains and sets.
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
            owned_chains: Vec::new(),
        }
    }

    /// The position of the index with this set.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn index_of(&self, set: &str) -> Result<usize> {
        let position = self.indexes.iter().position(|index| index.set.name == set);
        position.ok_or_else(|| Error::ours("look into", set, "the layout has no such index"))
    }

    /// The accepted prologue of a chain; empty if it has none.
    pub(crate) fn accepted_prologue(&self, chain: &str) -> &[Rule] {
        for (name, rules) in &self.accepted_prologues {
            if *name == chain {
                return rules;
            }
        }
        &[]
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
    /// The kernel's number of the hook, the same in all families of [`TableFamily`].
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

/// `table inet x`, as in nft(8).
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
