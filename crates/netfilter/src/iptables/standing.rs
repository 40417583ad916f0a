//! A table of iptables' own as it stands in `nf_tables`: what of it is worth reading, and removals without a program.
//!
//! What its rules say there is between iptables' programs and the kernel. But nobody needs to understand a rule to count
//! those of a chain, or to remove the third of them, when it is known by the program's words that the third is meant and
//! that nobody has changed anything since.

use std::collections::{HashMap, VecDeque};

use super::changes::Removal;
use super::installed_chains::frame;
use super::{Changes, IpVersion, IptablesRule, ReadScope, Table};
use crate::Nftables;
use crate::batch::Batch;
use crate::hook::FoundChain;
use crate::installed_rule::InstalledRule;
use crate::layout::TableLayout;
use crate::message::Message;

/// How many rules the program may read in the time that it takes to ask for one chain more.
const A_CHAIN: usize = 20;

/// What the kernel said before the programs were asked.
pub(crate) struct Standing {
    nftables: Nftables,
    frame: TableLayout,
    generation: u32,
    chains: Vec<(String, FoundChain)>,
}

/// Chains that the programs are to list.
pub(crate) struct Listed {
    pub(crate) chains: Vec<String>,
    /// With those that they are not to list.
    pub(crate) all: Vec<String>,
}

impl Standing {
    /// None where the kernel cannot tell: what is wrong with it the programs will say.
    pub(crate) fn look(version: IpVersion, table: &'static str) -> Option<Self> {
        let (nftables, frame) = (Nftables::if_any().ok()??, frame(version, table));
        let generation = nftables.generation(&frame).ok()?;
        let chains = nftables.chains(&frame).ok()?;
        Some(Self { nftables, frame, generation, chains })
    }

    /// The chains that are of interest, if to read these alone is less than to read the whole table.
    pub(crate) fn worth_listing(&self, part: &ReadScope) -> Option<Listed> {
        let far = self.chains.iter().filter(|chain| !is_near(chain, part));
        let lines_of_others = far.fold(0, |lines: usize, (_, chain)| lines.saturating_add(chain.uses));
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
        let messages = changes.removals().and_then(|removals| self.messages(read, &removals));
        messages.is_some_and(|messages| {
            let batch = Batch { guard: Some(self.generation), messages, ..Batch::default() };
            self.nftables.carry_out(&batch).is_ok()
        })
    }

    /// None where what was read is not what stands.
    fn messages(&self, read: &Table, removals: &[&Removal]) -> Option<Vec<Message>> {
        let (mut messages, mut places, mut standing) = (Vec::new(), HashMap::new(), HashMap::new());
        for removal in removals {
            messages.push(match removal {
                Removal::Chain(name) => Message::delete_chain(&self.frame, name),
                Removal::Rule { chain, rule } => {
                    let of_chain = places.entry(chain).or_insert_with(|| by_rule(read, chain));
                    let place = of_chain.get_mut(rule)?.pop_front()?;
                    if !standing.contains_key(chain) {
                        standing.insert(chain, self.handles(read, chain)?);
                    }
                    let handle = *standing[chain].get(place - 1)?;
                    Message::delete_rule(&self.frame, chain, handle, &rule.to_string())
                }
            });
        }
        Some(messages)
    }

    /// Those of all rules of a chain in their order, if they are as many as were read.
    fn handles(&self, read: &Table, chain: &str) -> Option<Vec<u64>> {
        let rules = self.nftables.rules_of(&self.frame, chain, |_| true).ok()?;
        (rules.len() == read.length(chain)).then(|| rules.iter().map(InstalledRule::handle).collect())
    }
}

/// By rule of a chain: its places, the first one first.
fn by_rule<'a>(read: &'a Table, chain: &str) -> HashMap<&'a IptablesRule, VecDeque<usize>> {
    let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
    read.places(chain).for_each(|(place, rule)| places.entry(rule).or_default().push_back(place));
    places
}

fn is_near((name, chain): &(String, FoundChain), part: &ReadScope) -> bool {
    chain.hook.is_some() || part.is_near(name)
}
