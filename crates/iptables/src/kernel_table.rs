//! A table of iptables as `nf_tables` has it: which chains are worth reading, and removals without a program.
//!
//! How a rule is written in `nf_tables` is known to the programs of iptables and the kernel alone. But a rule need not be
//! understood to count the rules of a chain, or to delete the third of them, if the program has printed which rule is the third and
//! nothing has changed since.

use std::collections::{HashMap, VecDeque};

use cnikit_nftables::{Deletion, InstalledChain, InstalledRule, Nftables, TableLayout};

use crate::changes::{Changes, Removal};
use crate::installed_chains::layout;
use crate::read_scope::{ListedChains, ReadScope};
use crate::rule::IptablesRule;
use crate::table::Table;
use crate::variant::IpVersion;

/// How many rules the program can read in the time that one more chain takes.
const RULES_PER_CHAIN: usize = 20;

/// The state of a table in the kernel, read before a program was started.
pub(crate) struct KernelTable {
    nftables: Nftables,
    layout: TableLayout,
    generation: u32,
    chains: Vec<(String, InstalledChain)>,
}

impl KernelTable {
    /// Reads the chains of a table; `None` if that fails. The programs will report the reason.
    pub(crate) fn read(version: IpVersion, table: &'static str) -> Option<Self> {
        let nftables = Nftables::if_any().ok()??;
        let layout = layout(version, table);
        let generation = nftables.generation(&layout).ok()?;
        let chains = nftables.chains(&layout).ok()?;
        Some(Self { nftables, layout, generation, chains })
    }

    /// The chains in scope, if it is faster to read these alone than the whole table.
    pub(crate) fn worth_listing(&self, scope: &ReadScope) -> Option<ListedChains> {
        let mut rules_out_of_scope: usize = 0;
        for (name, chain) in &self.chains {
            if !is_in_scope(name, chain, scope) {
                rules_out_of_scope = rules_out_of_scope.saturating_add(chain.uses());
            }
        }
        let listed = self.chains_in_scope(scope)?;
        if rules_out_of_scope > listed.names.len() * RULES_PER_CHAIN { Some(listed) } else { None }
    }

    /// The chains in scope, if there are any.
    pub(crate) fn chains_in_scope(&self, scope: &ReadScope) -> Option<ListedChains> {
        let mut names = Vec::new();
        let mut all = Vec::new();
        for (name, chain) in &self.chains {
            if is_in_scope(name, chain, scope) {
                names.push(name.clone());
            }
            all.push(name.clone());
        }
        if names.is_empty() { None } else { Some(ListedChains { names, all }) }
    }

    /// Makes the changes, if all are removals and the table has not changed since it was read. Returns whether they are made.
    ///
    /// The program could make them too, in ten times the time: before it exits it waits until the kernel has freed the removed
    /// rules.
    pub(crate) fn remove(&self, read: &Table, changes: &Changes) -> bool {
        let Some(removals) = changes.removals() else { return false };
        let Some(deletions) = self.deletions(read, &removals) else { return false };
        self.nftables.delete(&self.layout, self.generation, &deletions).is_ok()
    }

    /// The removals by the handles of rules; `None` if the kernel has other rules than were read.
    fn deletions(&self, read: &Table, removals: &[&Removal]) -> Option<Vec<Deletion>> {
        let mut deletions = Vec::new();
        let mut numbers_by_chain = HashMap::new();
        let mut handles_by_chain = HashMap::new();
        for removal in removals {
            let deletion = match removal {
                Removal::Chain(name) => Deletion::Chain(name.clone()),
                Removal::Rule { chain, rule } => {
                    let numbers = numbers_by_chain.entry(chain).or_insert_with(|| numbers_by_rule(read, chain));
                    let number = numbers.get_mut(rule)?.pop_front()?;
                    if !handles_by_chain.contains_key(chain) {
                        handles_by_chain.insert(chain, self.handles(read, chain)?);
                    }
                    let handle = *handles_by_chain[chain].get(number - 1)?;
                    Deletion::Rule { chain: chain.clone(), handle, shown: rule.to_string() }
                }
            };
            deletions.push(deletion);
        }
        Some(deletions)
    }

    /// The handles of all rules of a chain in their order; `None` if the kernel has more or fewer rules than were read.
    fn handles(&self, read: &Table, chain: &str) -> Option<Vec<u64>> {
        let rules = self.nftables.chain_rules(&self.layout, chain).ok()?;
        if rules.len() != read.length(chain) {
            return None;
        }
        Some(rules.iter().map(InstalledRule::handle).collect())
    }
}

/// The numbers that each rule of a chain has, in ascending order.
fn numbers_by_rule<'a>(read: &'a Table, chain: &str) -> HashMap<&'a IptablesRule, VecDeque<usize>> {
    let mut numbers: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (number, rule) in read.numbered_rules(chain) {
        numbers.entry(rule).or_default().push_back(number);
    }
    numbers
}

fn is_in_scope(name: &str, chain: &InstalledChain, scope: &ReadScope) -> bool {
    chain.is_base() || scope.includes(name)
}
