//! A table of iptables' own as it stands in `nf_tables`: what of it is worth reading, and removals without a program.
//!
//! What its rules say there is between iptables' programs and the kernel. But nobody needs to understand a rule to count
//! those of a chain, or to remove the third of them, when it is known by the program's words that the third is meant and
//! that nobody has changed anything since.

use std::collections::{HashMap, VecDeque};

use cnikit_nftables::{Deletion, InstalledChain, InstalledRule, Nftables, TableLayout};

use crate::changes::{Changes, Removal};
use crate::installed_chains::layout;
use crate::read_scope::{Listed, ReadScope};
use crate::rule::IptablesRule;
use crate::table::Table;
use crate::variant::IpVersion;

/// How many rules the program may read in the time that it takes to ask for one chain more.
const A_CHAIN: usize = 20;

/// What the kernel said before the programs were asked.
pub(crate) struct KernelTable {
    nftables: Nftables,
    layout: TableLayout,
    generation: u32,
    chains: Vec<(String, InstalledChain)>,
}

impl KernelTable {
    /// None where the kernel cannot tell: what is wrong with it the programs will say.
    pub(crate) fn look(version: IpVersion, table: &'static str) -> Option<Self> {
        let nftables = Nftables::if_any().ok()??;
        let layout = layout(version, table);
        let generation = nftables.generation(&layout).ok()?;
        let chains = nftables.chains(&layout).ok()?;
        Some(Self { nftables, layout, generation, chains })
    }

    /// The chains that are of interest, if to read these alone is less than to read the whole table.
    pub(crate) fn worth_listing(&self, part: &ReadScope) -> Option<Listed> {
        let far = self.chains.iter().filter(|chain| !is_near(chain, part));
        let lines_of_others = far.fold(0, |lines: usize, (_, chain)| lines.saturating_add(chain.uses()));
        self.near(part).filter(|near| lines_of_others > near.chains.len() * A_CHAIN)
    }

    /// The chains that are of interest, if there are any.
    pub(crate) fn near(&self, part: &ReadScope) -> Option<Listed> {
        let near = self.chains.iter().filter(|chain| is_near(chain, part));
        let chains: Vec<String> = near.map(|(name, _)| name.clone()).collect();
        let all = self.chains.iter().map(|(name, _)| name.clone()).collect();
        (!chains.is_empty()).then_some(Listed { chains, all })
    }

    /// Makes the changes, if they only remove, and if nobody has changed anything since; whether they are made.
    ///
    /// The program would make them as well, and take ten times as long: at its end it waits for the kernel to free what it
    /// has removed.
    pub(crate) fn remove(&self, read: &Table, changes: &Changes) -> bool {
        let Some(removals) = changes.removals() else { return false };
        let Some(deletions) = self.deletions(read, &removals) else { return false };
        self.nftables.delete(&self.layout, self.generation, &deletions).is_ok()
    }

    /// None where what was read is not what stands.
    fn deletions(&self, read: &Table, removals: &[&Removal]) -> Option<Vec<Deletion>> {
        let mut deletions = Vec::new();
        let mut places = HashMap::new();
        let mut handles = HashMap::new();
        for removal in removals {
            deletions.push(match removal {
                Removal::Chain(name) => Deletion::Chain(name.clone()),
                Removal::Rule { chain, rule } => {
                    let of_chain = places.entry(chain).or_insert_with(|| by_rule(read, chain));
                    let place = of_chain.get_mut(rule)?.pop_front()?;
                    if !handles.contains_key(chain) {
                        handles.insert(chain, self.handles(read, chain)?);
                    }
                    let handle = *handles[chain].get(place - 1)?;
                    Deletion::Rule { chain: chain.clone(), handle, shown: rule.to_string() }
                }
            });
        }
        Some(deletions)
    }

    /// Those of all rules of a chain in their order, if they are as many as were read.
    fn handles(&self, read: &Table, chain: &str) -> Option<Vec<u64>> {
        let rules = self.nftables.chain_rules(&self.layout, chain).ok()?;
        (rules.len() == read.length(chain)).then(|| rules.iter().map(InstalledRule::handle).collect())
    }
}

/// By rule of a chain: its places, the first one first.
fn by_rule<'a>(read: &'a Table, chain: &str) -> HashMap<&'a IptablesRule, VecDeque<usize>> {
    let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
    read.places(chain).for_each(|(place, rule)| places.entry(rule).or_default().push_back(place));
    places
}

fn is_near((name, chain): &(String, InstalledChain), part: &ReadScope) -> bool {
    chain.is_base() || part.is_near(name)
}
