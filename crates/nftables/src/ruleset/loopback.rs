//! Drop packets to 127.0.0.0/8 that enter by a link.
//!
//! The kernel refuses such packets unless `route_localnet` is set on the link by which they enter. With that setting, any host on
//! the link can reach services of this host that listen on 127.0.0.1 (CVE-2020-8558). Each attachment that needs the setting
//! holds the link's guard by a chain of its own, which no packet enters:
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
//! A link on top of a bridge, such as a VLAN device, has a rule for each link down to the bridge as well: `br_netfilter` passes
//! packets to the hook as they enter the bridge, under the bridge's name, and not again as they enter the link.
//!
//! The priority is before that of connection tracking. After connection tracking, the replies to the host's own masqueraded
//! connections from 127.0.0.1 would have that address as their destination again. The kernel counts the rules that jump to a
//! chain, so one question tells whether a holder is the last one, however many there are.

use std::fmt::Write as _;

use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::rule::compile::compile;
use crate::rule::types::{Match, Rule, TableFamily, Verdict};
use crate::ruleset::attempts::Attempts;
use crate::ruleset::hook::{InstalledChain, refuse_other_hook};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::{Chain, Hook, HookKind, HookPoint, TableLayout};
use crate::ruleset::message::{self, body, describe_chain};
use crate::ruleset::nftables::{Nftables, generation, lacking};
use crate::ruleset::table_state::TableStatus;
use crate::wire::batch::Batch;
use crate::{Error, Result};

/// The base chain, which every packet enters.
const BASE: &str = "prerouting";
/// The prefix of the names of links' chains.
const LINK: &str = "link-";
/// The prefix of the comment that records the former value of `route_localnet`.
const WAS: &str = "route_localnet was ";
/// The priority that nft(8) calls `raw`.
#[doc(alias = "NF_IP_PRI_RAW")]
const RAW: i32 = -300;

/// A link with a guard: packets to 127.0.0.0/8 that enter by it are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedLink {
    /// Its name.
    pub name: String,
    /// The value of `route_localnet` before the first holder set it; `None` if it is not recorded any more.
    pub before: Option<String>,
}

/// A change of a link's `route_localnet` that [`Nftables::release_loopback`] asks the caller for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteLocalnet {
    /// There is no other holder: restore the former value. The result is whether the guard can be removed.
    Restore,
    /// A holder was added meanwhile: set it again.
    SetAgain,
}

/// The state of the table, as far as one link and one holder are concerned.
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
    /// Drops packets to 127.0.0.0/8 that enter by a link, or by one of the links `below` it, until its last holder is released. If
    /// `holder` is the first one, `before` reads the value of `route_localnet`, which is recorded.
    ///
    /// # Errors
    /// The kernel's refusals; the errors of `before`.
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
            // Without a holder, the value is not ours. The transaction is bound to the ruleset, so it fails if a holder was added
            // since.
            let former_value = if state.link_rules.is_empty() { Some(format!("{WAS}{}", before()?)) } else { None };
            let mut messages = state.table_repair()?;
            let base_changes = state.base_changes(link, below)?;
            let is_guarded = former_value.is_some() || !messages.is_empty() || !base_changes.is_empty();
            messages.extend(state.additions(link, holder, former_value)?);
            messages.extend(base_changes);
            let guard = is_guarded.then_some(state.generation);
            if attempts.send(self, &Batch { guard, messages, ..Batch::default() })? {
                return Ok(());
            }
        }
    }

    /// The link whose guard this holder holds.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn guarded_loopback(&self, holder: &str) -> Result<Option<String>> {
        let rules = self.chain_rules(&layout(), holder)?;
        Ok(rules.iter().find_map(|rule| link_of(rule.target()?)))
    }

    /// Removes a holder, and with the last holder of a link its guard. Before a guard is removed, `setting` restores the setting,
    /// so that no packet enters in between. Returns whether there was such a holder.
    ///
    /// # Errors
    /// The kernel's refusals; the errors of `setting`.
    pub fn release_loopback<E: From<Error>>(
        &self,
        holder: &str,
        mut setting: impl FnMut(&GuardedLink, RouteLocalnet) -> std::result::Result<bool, E>,
    ) -> std::result::Result<bool, E> {
        let Some(name) = self.guarded_loopback(holder)? else {
            return Ok(self.delete_holder(holder)?);
        };
        let mut is_restored = false;
        let mut attempts = Attempts::new();
        loop {
            let state = self.guard_state(&name, holder)?;
            let link = GuardedLink { name: name.clone(), before: state.before() };
            let is_last = state.is_last();
            if is_last && !is_restored {
                is_restored = setting(&link, RouteLocalnet::Restore)?;
            } else if !is_last && is_restored && state.link.is_some() {
                setting(&link, RouteLocalnet::SetAgain)?;
                is_restored = false;
            }
            let messages = match state.holder {
                Some(_) => state.removals(is_last && is_restored, holder),
                None => Vec::new(),
            };
            if attempts.send(self, &Batch { guard: Some(state.generation), messages, ..Batch::default() })? {
                return Ok(true);
            }
        }
    }

    /// Deletes the chain of a holder that guards no link. Returns whether there was one.
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

    /// The holders of guards whose names begin with `prefix`.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn loopback_guards(&self, prefix: &str) -> Result<Vec<String>> {
        let mut holders = Vec::new();
        for (name, _) in self.chains(&layout())? {
            if name.starts_with(prefix) {
                holders.push(name);
            }
        }
        Ok(holders)
    }

    /// What is missing of a link's guard and of one of its holders, each as a sentence. Nothing if the kernel has no `nf_tables`.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn verify_loopback(&self, link: &str, below: &[String], holder: &str) -> Result<Vec<String>> {
        let state = match self.guard_state(link, holder) {
            Err(error) if error.unsupported() => return Ok(Vec::new()),
            state => state?,
        };
        state.drifts(link, below, holder)
    }

    fn guard_state(&self, link: &str, holder: &str) -> Result<GuardState> {
        let layout = layout();
        let chain = chain_of(link);
        let questions = [
            message::generation(&layout),
            message::table(&layout),
            message::chain(&layout, BASE),
            message::chain(&layout, &chain),
            message::chain(&layout, holder),
        ];
        let answers = self.ask(&questions).map_err(lacking)?;
        let answer = |position: usize| answers.get(position).and_then(Option::as_deref);
        let generation = generation(answer(0))?;
        let table = TableStatus::read(answer(1));
        let base = read_chain(answer(2));
        let link = read_chain(answer(3));
        let holder_chain = read_chain(answer(4));
        Ok(GuardState {
            generation,
            table,
            base_rules: self.rules_if_any(base.as_ref(), &layout, BASE)?,
            base,
            link_rules: self.rules_if_any(link.as_ref(), &layout, &chain)?,
            link,
            holder_rules: self.rules_if_any(holder_chain.as_ref(), &layout, holder)?,
            holder: holder_chain,
            layout,
        })
    }

    fn rules_if_any(
        &self,
        chain: Option<&InstalledChain>,
        layout: &TableLayout,
        name: &str,
    ) -> Result<Vec<InstalledRule>> {
        if chain.is_some() { self.chain_rules(layout, name) } else { Ok(Vec::new()) }
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

    /// The messages that make packets from the link jump to its chain, before the rules that other programs have added.
    fn base_changes(&self, link: &str, below: &[String]) -> Result<Vec<NetfilterMessage>> {
        let mut missing = Vec::new();
        for entry in entries(link, below) {
            if !self.has_entry(&entry)? {
                missing.push(entry);
            }
        }
        if self.begins_right()? && missing.is_empty() {
            return Ok(Vec::new());
        }
        let mut messages = Vec::new();
        // Each rule is added before all others, so the last one to be added is the first of the chain.
        missing.push(accept_other_destinations());
        for rule in missing {
            let expressions = compile(&rule, self.layout.family)?;
            for installed in &self.base_rules {
                if installed.same_expressions(&expressions) {
                    messages.push(installed.deletion(&self.layout));
                }
            }
            let body = body(&rule, &self.layout, None)?;
            messages.push(message::prepend_rule(&self.layout, BASE, &body, &rule.to_string()));
        }
        Ok(messages)
    }

    /// The messages that make what is missing of the link's chain and of the holder's. With `comment` the drop rule is added too.
    fn additions(&self, link: &str, holder: &str, comment: Option<String>) -> Result<Vec<NetfilterMessage>> {
        let chain = chain_of(link);
        let mut messages = Vec::new();
        if self.link.is_none() {
            messages.push(message::new_regular_chain(&self.layout, &chain));
        }
        if comment.is_some() {
            messages.push(self.append(&chain, &drop_rule(comment))?);
        }
        if self.holder.is_none() {
            messages.push(message::new_regular_chain(&self.layout, holder));
        }
        if !self.holder_rules.iter().any(|rule| rule.target() == Some(&chain)) {
            messages.push(self.append(holder, &jump(&chain, Vec::new()))?);
        }
        Ok(messages)
    }

    fn append(&self, chain: &str, rule: &Rule) -> Result<NetfilterMessage> {
        let body = body(rule, &self.layout, None)?;
        Ok(message::append_rule(&self.layout, chain, &body, &rule.to_string()))
    }

    /// The messages that remove the holder; `with_link` also the link's chain, or the table if it has no other link.
    fn removals(&self, with_link: bool, holder: &str) -> Vec<NetfilterMessage> {
        let mut messages = vec![message::delete_chain(&self.layout, holder)];
        if !with_link {
            return messages;
        }
        let Some(chain) = self.held_chain() else { return messages };
        let mut has_other_links = false;
        for rule in &self.base_rules {
            if rule.target() == Some(chain) {
                messages.push(rule.deletion(&self.layout));
            } else if rule.target().is_some() {
                has_other_links = true;
            }
        }
        if !has_other_links {
            return vec![message::delete_table(&self.layout)];
        }
        messages.push(message::delete_chain(&self.layout, chain));
        messages
    }

    /// The chain that the holder's rule jumps to.
    fn held_chain(&self) -> Option<&str> {
        self.holder_rules.iter().find_map(InstalledRule::target)
    }

    /// Whether only the base chain and this holder jump to the link's chain.
    fn is_last(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let mut own_uses = self.link_rules.len();
        if let Some(chain) = self.held_chain() {
            own_uses += self.base_rules.iter().filter(|rule| rule.target() == Some(chain)).count();
            own_uses += self.holder_rules.iter().filter(|rule| rule.target() == Some(chain)).count();
        }
        link.uses == own_uses
    }

    /// The former value of `route_localnet`, from the comment of the drop rule.
    fn before(&self) -> Option<String> {
        let value = |rule: &InstalledRule| Some(rule.comment()?.strip_prefix(WAS)?.to_owned());
        self.link_rules.iter().find_map(value)
    }

    /// Whether the base chain begins with the rule that accepts other destinations.
    fn begins_right(&self) -> Result<bool> {
        let first = compile(&accept_other_destinations(), self.layout.family)?;
        Ok(self.base_rules.first().is_some_and(|rule| rule.same_expressions(&first)))
    }

    /// Whether the base chain has this rule, and only rules that jump to links' chains before it.
    fn has_entry(&self, entry: &Rule) -> Result<bool> {
        let expressions = compile(entry, self.layout.family)?;
        for rule in self.base_rules.iter().skip(1) {
            if rule.target().and_then(link_of).is_none() {
                return Ok(false);
            }
            if rule.same_expressions(&expressions) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn drifts(&self, link: &str, below: &[String], holder: &str) -> Result<Vec<String>> {
        let mut drifts = Vec::new();
        match (self.table, &self.base) {
            (TableStatus::Missing, _) => return Ok(vec![format!("{} is missing", self.layout)]),
            (TableStatus::Dormant, _) => drifts.push(format!("{} is dormant, its rules do nothing", self.layout)),
            (TableStatus::Working, None) => drifts.push(format!("{} is missing", describe_chain(&self.layout, BASE))),
            (TableStatus::Working, Some(base)) => drifts.extend(self.base_drifts(base, link, below)?),
        }
        let chain = chain_of(link);
        let drop = compile(&drop_rule(None), self.layout.family)?;
        if !self.link_rules.first().is_some_and(|rule| rule.same_expressions(&drop)) {
            drifts.push(format!("rule `drop` is missing from {}", describe_chain(&self.layout, &chain)));
        }
        if !self.holder_rules.iter().any(|rule| rule.target() == Some(&chain)) {
            drifts.push(format!("rule `jump {chain}` is missing from {}", describe_chain(&self.layout, holder)));
        }
        Ok(drifts)
    }

    fn base_drifts(&self, base: &InstalledChain, link: &str, below: &[String]) -> Result<Vec<String>> {
        let mut drifts = Vec::new();
        if let Err(error) = refuse_other_hook(&self.layout, BASE, self.layout.chains[0].hook, base) {
            drifts.push(error.to_string());
        }
        let mut missing = Vec::new();
        if !self.begins_right()? {
            missing.push(accept_other_destinations());
        }
        for entry in entries(link, below) {
            if !self.has_entry(&entry)? {
                missing.push(entry);
            }
        }
        for rule in missing {
            drifts.push(format!("rule `{rule}` is missing from {}", describe_chain(&self.layout, BASE)));
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

/// Accepts packets to other destinations at once: most packets are.
fn accept_other_destinations() -> Rule {
    let loopback = ipnetwork::Ipv4Network::new(std::net::Ipv4Addr::new(127, 0, 0, 0), 8);
    let matches = loopback.into_iter().map(|network| Match::DestinationNotIn(network.into())).collect();
    Rule { matches, verdict: Verdict::Accept, comment: None }
}

/// The rules that jump to a link's chain: one for the link, and one for each link below it.
fn entries(link: &str, below: &[String]) -> Vec<Rule> {
    let chain = chain_of(link);
    let mut entries = vec![jump(&chain, vec![Match::from(link)])];
    for name in below {
        entries.push(jump(&chain, vec![Match::from(name)]));
    }
    entries
}

fn read_chain(answer: Option<&[u8]>) -> Option<InstalledChain> {
    Some(InstalledChain::read(answer?.get(HEADERS..)?))
}

fn jump(to: &str, matches: Vec<Match>) -> Rule {
    Rule { matches, verdict: Verdict::Jump(to.to_owned()), comment: None }
}

fn drop_rule(comment: Option<String>) -> Rule {
    Rule { matches: Vec::new(), verdict: Verdict::Drop, comment }
}

/// The name of a link's chain. A byte that nft(8) does not accept in a name is written as a slash, which no link has in its name,
/// and its hexadecimal number.
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

/// The link whose chain has this name.
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
    fn the_name_of_a_link_is_read_from_its_chain() {
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
