//! Drop packets to 127.0.0.0/8 that enter by a link.
//!
//! The kernel refuses such packets, unless `route_localnet` is set on the link by which they enter: then whoever can send a frame
//! there reaches services of the host that listen on 127.0.0.1 (CVE-2020-8558). Each attachment that needs the setting holds the
//! link's guard by a chain of its own, which no packet enters:
//!
//! ```text
//! table ip cnikit_loopback {
//!     chain prerouting {
//!         type filter hook prerouting priority raw
//!         ip daddr != 127.0.0.0/8 accept
//!         iifname "cni0" jump link-cni0
//!     }
//!     chain link-cni0 { drop comment "route_localnet was 0" }
//!     chain cnikit-NETWORK-ATTACHMENT { jump link-cni0 }
//! }
//! ```
//!
//! A link that lies upon a bridge, such as a VLAN device, has a rule for each link down to the bridge as well: `br_netfilter` shows
//! packets to the hook as they enter the bridge, under the bridge's name, and not again as they enter the link.
//!
//! The priority is before that of connection tracking. Later, the answers to the host's own connections from 127.0.0.1, whose
//! source is masqueraded, would have that address as their destination again. The kernel counts the rules that lead to a chain,
//! so one question tells whether a holder is the last one, however many there are.

use std::fmt::Write as _;

use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::rule::compile::compile;
use crate::rule::types::{Match, Rule, TableFamily, Verdict};
use crate::ruleset::attempts::Attempts;
use crate::ruleset::hook::{InstalledChain, refuse_other_hook};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::{Chain, Hook, HookKind, HookPoint, TableLayout};
use crate::ruleset::message::{self, body, place};
use crate::ruleset::nftables::{Nftables, generation, lacking};
use crate::ruleset::table_state::TableStatus;
use crate::wire::batch::Batch;
use crate::{Error, Result};

/// The chain that sees every packet.
const BASE: &str = "prerouting";
/// What the name of a link's chain begins with.
const LINK: &str = "link-";
/// What the comment of a link's rule says before the setting's former value.
const WAS: &str = "route_localnet was ";
/// nft's `raw`.
#[doc(alias = "NF_IP_PRI_RAW")]
const RAW: i32 = -300;

/// A link by which no packet to 127.0.0.0/8 enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedLink {
    /// Its name.
    pub name: String,
    /// The value of its `route_localnet` before the first holder; `None` if that is not recorded any more.
    pub before: Option<String>,
}

/// What [`Nftables::release_loopback`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteLocalnet {
    /// No holder is left: the setting gets its former value. The answer is whether the guard may go.
    Restore,
    /// A new holder came in between: the setting is needed again.
    SetAgain,
}

/// The table, with what concerns one link and one holder.
struct GuardState {
    layout: TableLayout,
    generation: u32,
    table: TableStatus,
    base: Option<InstalledChain>,
    base_rules: Vec<InstalledRule>,
    link: Option<InstalledChain>,
    link_rules: Vec<InstalledRule>,
    holder: Option<InstalledChain>,
    holder_rules: Vec<InstalledRule>,
}

impl Nftables {
    /// Drops packets to 127.0.0.0/8 that enter by a link, or by one of those `below` it, as long as `holder` or any other holder is
    /// there. `before` reads the setting's value if there is no other holder; it is recorded.
    ///
    /// # Errors
    /// The kernel's; those of `before`.
    pub fn guard_loopback<E: From<Error>>(
        &self,
        link: &str,
        below: &[String],
        holder: &str,
        mut before: impl FnMut() -> std::result::Result<String, E>,
    ) -> std::result::Result<(), E> {
        let mut attempts = Attempts::new();
        loop {
            let state = self.guard_state(link, holder)?;
            // While no holder is there, only somebody else can have set it: the number of the ruleset makes that certain.
            let was = if state.link_rules.is_empty() { Some(format!("{WAS}{}", before()?)) } else { None };
            let mut messages = state.table_repair()?;
            let base = state.base_changes(link, below)?;
            let exclusive = was.is_some() || !messages.is_empty() || !base.is_empty();
            messages.extend(state.additions(link, holder, was)?);
            messages.extend(base);
            let guard = exclusive.then_some(state.generation);
            if attempts.send(self, &Batch { guard, messages, ..Batch::default() })? {
                return Ok(());
            }
        }
    }

    /// The link whose guard this holder holds.
    pub fn guarded_loopback(&self, holder: &str) -> Result<Option<String>> {
        let rules = self.rules_of(&layout(), holder, |_| true)?;
        Ok(rules.iter().find_map(|rule| link_of(rule.target()?)))
    }

    /// Has this holder give up its link. Before the last one's guard goes, `setting` is asked to put the setting back, so that no
    /// packet enters in between. Whether there was anything to give up.
    ///
    /// # Errors
    /// The kernel's; those of `setting`.
    pub fn release_loopback<E: From<Error>>(
        &self,
        holder: &str,
        mut setting: impl FnMut(&GuardedLink, RouteLocalnet) -> std::result::Result<bool, E>,
    ) -> std::result::Result<bool, E> {
        let Some(name) = self.guarded_loopback(holder)? else {
            return Ok(self.delete_holder(holder)?);
        };
        let mut given_back = false;
        let mut attempts = Attempts::new();
        loop {
            let state = self.guard_state(&name, holder)?;
            let link = GuardedLink { name: name.clone(), before: state.before() };
            let is_last = state.is_last();
            if is_last && !given_back {
                given_back = setting(&link, RouteLocalnet::Restore)?;
            } else if !is_last && given_back && state.link.is_some() {
                setting(&link, RouteLocalnet::SetAgain)?;
                given_back = false;
            }
            let messages =
                if state.holder.is_some() { state.removals(is_last && given_back, holder) } else { Vec::new() };
            if attempts.send(self, &Batch { guard: Some(state.generation), messages, ..Batch::default() })? {
                return Ok(true);
            }
        }
    }

    /// Deletes the chain of a holder that guards no link. Whether there was one.
    fn delete_holder(&self, holder: &str) -> Result<bool> {
        let layout = layout();
        let mut attempts = Attempts::new();
        loop {
            if !self.has(&layout, holder)? {
                return Ok(false);
            }
            let messages = vec![message::delete_chain(&layout, holder)];
            if attempts.send(self, &Batch { guard: None, messages, ..Batch::default() })? {
                return Ok(true);
            }
        }
    }

    /// The holders whose names begin so.
    pub fn loopback_guards(&self, prefix: &str) -> Result<Vec<String>> {
        let chains = self.chains(&layout())?;
        Ok(chains.into_iter().map(|(name, _)| name).filter(|name| name.starts_with(prefix)).collect())
    }

    /// What is missing of a link's guard and of a holder of it, each a sentence.
    pub fn verify_loopback(&self, link: &str, below: &[String], holder: &str) -> Result<Vec<String>> {
        let state = match self.guard_state(link, holder) {
            Err(error) if error.unsupported() => return Ok(Vec::new()),
            state => state?,
        };
        state.drifts(link, below, holder)
    }

    fn guard_state(&self, link: &str, holder: &str) -> Result<GuardState> {
        let (layout, chain) = (layout(), chain_of(link));
        let questions = [
            message::generation(&layout),
            message::table(&layout),
            message::chain(&layout, BASE),
            message::chain(&layout, &chain),
            message::chain(&layout, holder),
        ];
        let answers = self.ask(&questions).map_err(lacking)?;
        let answer = |at: usize| answers.get(at).and_then(Option::as_deref);
        let found = |at: usize| answer(at).and_then(|message| message.get(HEADERS..)).map(InstalledChain::read);
        let rules = |at: usize, chain: &str| match found(at) {
            Some(_) => self.rules_of(&layout, chain, |_| true),
            None => Ok(Vec::new()),
        };
        Ok(GuardState {
            generation: generation(answer(0))?,
            table: TableStatus::read(answer(1)),
            base: found(2),
            base_rules: rules(2, BASE)?,
            link: found(3),
            link_rules: rules(3, &chain)?,
            holder: found(4),
            holder_rules: rules(4, holder)?,
            layout,
        })
    }
}

impl GuardState {
    /// The messages that make the table and its base chain.
    fn table_repair(&self) -> Result<Vec<NetfilterMessage>> {
        let mut messages = Vec::new();
        if self.table != TableStatus::Working {
            messages.push(message::new_table(&self.layout)?);
        }
        match &self.base {
            None => messages.push(message::new_chain(&self.layout, &self.layout.chains[0])?),
            Some(base) => refuse_other_hook(&self.layout, BASE, self.layout.chains[0].hook, base)?,
        }
        Ok(messages)
    }

    /// The messages that lead what enters by the link to its chain, before rules that somebody else put there.
    fn base_changes(&self, link: &str, below: &[String]) -> Result<Vec<NetfilterMessage>> {
        let mut missing = Vec::new();
        for entry in entries(link, below) {
            if !self.leads_to_link(&entry)? {
                missing.push(entry);
            }
        }
        if self.begins_right()? && missing.is_empty() {
            return Ok(Vec::new());
        }
        let mut messages = Vec::new();
        // Each goes before all others, so the one that is added last is the first.
        for rule in missing.into_iter().chain([elsewhere()]) {
            let does = compile(&rule, self.layout.family)?;
            let misplaced = self.base_rules.iter().filter(|found| found.same_expressions(&does));
            messages.extend(misplaced.map(|found| found.deletion(&self.layout)));
            messages.push(message::prepend_rule(
                &self.layout,
                BASE,
                &body(&rule, &self.layout, None)?,
                &rule.to_string(),
            ));
        }
        Ok(messages)
    }

    /// The messages that make what is missing of the link's chain and of the holder's.
    fn additions(&self, link: &str, holder: &str, was: Option<String>) -> Result<Vec<NetfilterMessage>> {
        let (chain, mut messages) = (chain_of(link), Vec::new());
        let append = |to: &str, rule: &Rule| -> Result<NetfilterMessage> {
            Ok(message::append_rule(&self.layout, to, &body(rule, &self.layout, None)?, &rule.to_string()))
        };
        if self.link.is_none() {
            messages.push(message::new_own_chain(&self.layout, &chain));
        }
        if was.is_some() {
            messages.push(append(&chain, &dropped(was))?);
        }
        if self.holder.is_none() {
            messages.push(message::new_own_chain(&self.layout, holder));
        }
        if !self.holder_rules.iter().any(|rule| rule.target() == Some(&chain)) {
            messages.push(append(holder, &jump(&chain, Vec::new()))?);
        }
        Ok(messages)
    }

    /// The messages that remove the holder; with its link, and with the table if there is no other link.
    fn removals(&self, with_link: bool, holder: &str) -> Vec<NetfilterMessage> {
        let delete_holder = message::delete_chain(&self.layout, holder);
        let Some(chain) = self.holder_rules.iter().find_map(InstalledRule::target).filter(|_| with_link) else {
            return vec![delete_holder];
        };
        let (own, others): (Vec<&InstalledRule>, Vec<&InstalledRule>) =
            self.base_rules.iter().partition(|rule| rule.target() == Some(chain));
        if others.iter().all(|rule| rule.target().is_none()) {
            return vec![message::delete_table(&self.layout)];
        }
        let mut messages = vec![delete_holder];
        messages.extend(own.iter().map(|rule| rule.deletion(&self.layout)));
        messages.push(message::delete_chain(&self.layout, chain));
        messages
    }

    /// Whether nothing leads to the link's chain but the base chain and this holder.
    fn is_last(&self) -> bool {
        let chain = self.holder_rules.iter().find_map(InstalledRule::target);
        let leading =
            |rules: &[InstalledRule]| rules.iter().filter(|rule| chain.is_some() && rule.target() == chain).count();
        let own = self.link_rules.len() + leading(&self.base_rules) + leading(&self.holder_rules);
        self.link.as_ref().is_some_and(|link| link.uses == own)
    }

    /// The setting's former value.
    fn before(&self) -> Option<String> {
        let told = |rule: &InstalledRule| Some(rule.comment()?.strip_prefix(WAS)?.to_owned());
        self.link_rules.iter().find_map(told)
    }

    fn begins_right(&self) -> Result<bool> {
        let first = compile(&elsewhere(), self.layout.family)?;
        Ok(self.base_rules.first().is_some_and(|rule| rule.same_expressions(&first)))
    }

    /// Whether the rule that leads to a link's chain has nothing of somebody else's before it.
    fn leads_to_link(&self, entry: &Rule) -> Result<bool> {
        let wanted = compile(entry, self.layout.family)?;
        let is_of_links = |rule: &&InstalledRule| rule.target().and_then(link_of).is_some();
        Ok(self.base_rules.iter().skip(1).take_while(is_of_links).any(|rule| rule.same_expressions(&wanted)))
    }

    fn drifts(&self, link: &str, below: &[String], holder: &str) -> Result<Vec<String>> {
        let mut drifts = Vec::new();
        let chain = chain_of(link);
        match (self.table, &self.base) {
            (TableStatus::Missing, _) => return Ok(vec![format!("{} is missing", self.layout)]),
            (TableStatus::Dormant, _) => drifts.push(format!("{} is dormant, its rules do nothing", self.layout)),
            (TableStatus::Working, None) => drifts.push(format!("{} is missing", place(&self.layout, BASE))),
            (TableStatus::Working, Some(base)) => {
                if let Err(error) = refuse_other_hook(&self.layout, BASE, self.layout.chains[0].hook, base) {
                    drifts.push(error.to_string());
                }
                let missing = |rule: Rule| format!("rule `{rule}` is missing from {}", place(&self.layout, BASE));
                if !self.begins_right()? {
                    drifts.push(missing(elsewhere()));
                }
                for entry in entries(link, below) {
                    if !self.leads_to_link(&entry)? {
                        drifts.push(missing(entry));
                    }
                }
            }
        }
        let drop = compile(&dropped(None), self.layout.family)?;
        if !self.link_rules.first().is_some_and(|rule| rule.same_expressions(&drop)) {
            drifts.push(format!("rule `drop` is missing from {}", place(&self.layout, &chain)));
        }
        if !self.holder_rules.iter().any(|rule| rule.target() == Some(&chain)) {
            drifts.push(format!("rule `jump {chain}` is missing from {}", place(&self.layout, holder)));
        }
        Ok(drifts)
    }
}

fn layout() -> TableLayout {
    let hook = Hook { kind: HookKind::Filter, hook: HookPoint::Prerouting, priority: RAW };
    TableLayout {
        table_comment: Some("packets to 127.0.0.0/8 from links of containers"),
        chains: vec![Chain { name: BASE, comment: None, hook: Some(hook) }],
        ..TableLayout::of(TableFamily::Ip, "cnikit_loopback")
    }
}

/// Most packets go elsewhere, and are looked at once.
fn elsewhere() -> Rule {
    let loopback = ipnetwork::Ipv4Network::new(std::net::Ipv4Addr::new(127, 0, 0, 0), 8);
    let matches = loopback.into_iter().map(|network| Match::DestinationNotIn(network.into())).collect();
    Rule { matches, verdict: Verdict::Accept, comment: None }
}

/// The rules that lead to a link's chain: from the link, and from those below it.
fn entries(link: &str, below: &[String]) -> Vec<Rule> {
    let from = |name: &str| jump(&chain_of(link), vec![Match::from(name)]);
    [link].into_iter().chain(below.iter().map(String::as_str)).map(from).collect()
}

fn jump(to: &str, matches: Vec<Match>) -> Rule {
    Rule { matches, verdict: Verdict::Jump(to.to_owned()), comment: None }
}

fn dropped(comment: Option<String>) -> Rule {
    Rule { matches: Vec::new(), verdict: Verdict::Drop, comment }
}

/// The chain of a link: what nft(8) does not take in a name is written as its number behind a slash, which no link has in its.
fn chain_of(link: &str) -> String {
    let mut chain = LINK.to_owned();
    for byte in link.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            chain.push(char::from(byte));
        } else {
            let _ = write!(chain, "/{byte:02x}");
        }
    }
    chain
}

/// The link that a chain is of.
fn link_of(chain: &str) -> Option<String> {
    let mut rest = chain.strip_prefix(LINK)?.bytes();
    let mut name = Vec::new();
    while let Some(byte) = rest.next() {
        if byte != b'/' {
            name.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        name.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use cnikit_netns::make;

    use super::*;

    #[test]
    fn a_links_chain_tells_its_name() {
        for link in ["cni0", "br-1.5_x", "a\"b", "-j", "eth+", "é", "a/b"] {
            let chain = chain_of(link);
            assert!(chain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)), "{chain}");
            assert_eq!(link_of(&chain).as_deref(), Some(link), "{chain}");
        }
        assert_eq!(link_of("cnikit-1-2"), None);
        assert_eq!(link_of("link-/z"), None);
    }

    #[test]
    fn the_last_holder_of_a_link_takes_the_guard_away_once_the_setting_is_back() {
        let netns = make::anonymous().unwrap();
        let told = netns.enter(|_| {
            let nftables = Nftables::here().unwrap();
            let guard = |link: &str, holder: &str, value: &str| {
                nftables.guard_loopback(link, &[], holder, || Ok::<_, Error>(value.to_owned())).unwrap();
                assert_eq!(nftables.verify_loopback(link, &[], holder).unwrap(), [""; 0]);
            };
            let asked = Cell::new(Vec::new());
            let release = |holder: &str, may_go: bool| {
                nftables.release_loopback(holder, |link, what| {
                    let mut all = asked.take();
                    all.push((link.name.clone(), link.before.clone(), what));
                    asked.set(all);
                    Ok::<_, Error>(may_go)
                })
            };
            let last = |name: &str, was: &str| (name.to_owned(), Some(was.to_owned()), RouteLocalnet::Restore);
            assert!(!release("cnikit-a", true).unwrap());
            guard("cni0", "cnikit-a", "0");
            guard("cni0", "cnikit-b", "1");
            guard("a\"b", "cnikit-c", "1");
            guard("cni0", "cnikit-a", "1");
            assert_eq!(nftables.guarded_loopback("cnikit-c").unwrap().as_deref(), Some("a\"b"));
            assert_eq!(nftables.loopback_guards("cnikit-").unwrap().len(), 3);
            assert!(release("cnikit-a", true).unwrap());
            assert_eq!(asked.take(), [], "another one holds it");
            assert!(release("cnikit-b", true).unwrap());
            assert_eq!(asked.take(), [last("cni0", "0")]);
            assert!(!release("cnikit-b", true).unwrap());
            assert_eq!(nftables.verify_loopback("cni0", &[], "cnikit-b").unwrap().len(), 3);
            assert!(release("cnikit-c", false).unwrap(), "the setting could not be put back");
            assert_eq!(asked.take(), [last("a\"b", "1")]);
            guard("a\"b", "cnikit-d", "0");
            assert!(release("cnikit-d", true).unwrap());
            assert_eq!(asked.take(), [last("a\"b", "1")]);
            nftables.chains(&layout()).unwrap()
        });
        assert_eq!(told.unwrap(), []);
    }
}
