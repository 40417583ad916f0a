//! Which rules of a container's chain belong to which attachment.

use std::net::IpAddr;

use cnikit_iptables::{Changes, IptablesRule, Table};
use cnikit_resources::alias::hex;
use cnikit_skel::AttachmentId;
use ipnetwork::IpNetwork;
use sha2::{Digest, Sha512};

use crate::addresses::network;
use crate::rule_lists::{chain_differences, missing, only_in_first};

/// The chain with the jumps to the chains of containers.
const JUMP_CHAIN: &str = "POSTROUTING";
/// Digits of the hash in a chain's name.
const DIGITS: usize = 24;
/// The longest comment of iptables (`XT_MAX_COMMENT_LEN`, without the byte that ends it).
const LONGEST_COMMENT: usize = 255;

/// The chain and the comments of an attachment.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The chain, which all interfaces of the container on this network share.
    pub(super) chain: String,
    /// The comment of jumps, equal to upstream's.
    pub(super) jump: String,
    /// The comment of rules in the chain, with the interface.
    pub(super) rule: String,
}

impl Names {
    pub(super) fn of(tag: &AttachmentId) -> Names {
        let ifname = tag.ifname.replace('\\', "\\\\").replace('"', "\\\"");
        Names {
            chain: chain(&tag.network, &tag.container),
            jump: comment(tag, ""),
            rule: comment(tag, &format!(" if: \"{ifname}\"")),
        }
    }

    /// Whether a rule has one of the two comments.
    fn is_comment_of(&self, rule: &IptablesRule) -> bool {
        rule.comment() == Some(&self.jump) || rule.comment() == Some(&self.rule)
    }

    /// The rules of the attachment if it has these addresses.
    pub(super) fn share(&self, addresses: &[IpNetwork]) -> Share {
        let mut share = Share::default();
        for address in addresses {
            let from = IptablesRule::any().source(address.ip());
            share.jumps.push(from.clone().commented(&self.jump).jump(&self.chain));
            share.rules.extend(rules(&from, *address, &self.rule));
        }
        share
    }

    /// The differences from what an attachment with these addresses should have, each a sentence.
    ///
    /// An address may have the rules of upstream instead of its own, as before an upgrade. Upstream's rules are wanted for an
    /// address if no rule matches the address and the chain has any of them.
    pub(super) fn differences(&self, table: &Table, addresses: &[IpNetwork], place: &str) -> Vec<String> {
        let installed = self.installed(table, |own| addresses.iter().any(|address| address.ip() == own));
        let upstream_rules: Vec<&IptablesRule> =
            table.rules(&self.chain).filter(|rule| rule.comment() == Some(&self.jump)).collect();
        let mut by_upstream = Vec::new();
        let mut by_own = Vec::new();
        for address in addresses {
            let has_rules = installed.rules.iter().any(|rule| rule.source_address() == Some(address.ip()));
            if has_rules || upstream_rules.is_empty() {
                by_own.push(*address);
            } else {
                by_upstream.push(*address);
            }
        }
        let wanted = Share { jumps: self.share(addresses).jumps, rules: self.share(&by_own).rules };
        let mut differences = installed.differences(&wanted, &self.chain, place);
        for address in by_upstream {
            for rule in rules(&IptablesRule::any(), address, &self.jump) {
                if !upstream_rules.contains(&&rule) {
                    differences.push(missing(&rule, &self.chain, place));
                }
            }
        }
        differences
    }

    /// The attachment's rules in this table: the rules with its comment; the jumps with their addresses; and of the jumps with
    /// addresses of no such rule, which are upstream's, those for which `is_own` returns true.
    pub(super) fn installed(&self, table: &Table, is_own: impl Fn(IpAddr) -> bool) -> Share {
        let rules: Vec<IptablesRule> =
            table.rules(&self.chain).filter(|rule| rule.comment() == Some(&self.rule)).cloned().collect();
        let unclaimed = self.unclaimed(table);
        let mut jumps = Vec::new();
        for jump in self.jumps(table) {
            let Some(address) = jump.source_address() else { continue };
            let has_rule = rules.iter().any(|rule| rule.source_address() == Some(address));
            if has_rule || unclaimed.contains(&address) && is_own(address) {
                jumps.push(jump.clone());
            }
        }
        Share { jumps, rules }
    }

    /// The rules that DEL removes: the installed rules, and the jumps of very old releases of upstream, which match the whole
    /// network of one of the addresses. If no rule names another interface, all jumps of such releases are removed.
    pub(super) fn released(&self, table: &Table, is_own: impl Fn(IpAddr) -> bool) -> Share {
        let mut released = self.installed(table, is_own);
        let is_shared = rules_with_interface(table, &self.chain).any(|rule| rule.comment() != Some(&self.rule));
        let addresses: Vec<IpAddr> =
            released.jumps.iter().chain(&released.rules).filter_map(IptablesRule::source_address).collect();
        for jump in self.jumps(table) {
            if jump.source_network().is_some_and(|network| is_old_jump(network, &addresses, is_shared)) {
                released.jumps.push(jump.clone());
            }
        }
        released
    }

    /// The addresses of jumps that no rule with an interface has.
    pub(super) fn unclaimed(&self, table: &Table) -> Vec<IpAddr> {
        let claimed: Vec<IpAddr> =
            rules_with_interface(table, &self.chain).filter_map(IptablesRule::source_address).collect();
        let addresses = self.jumps(table).filter_map(IptablesRule::source_address);
        addresses.filter(|address| !claimed.contains(address)).collect()
    }

    fn jumps<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = &'a IptablesRule> {
        let jumps = table.jumps(&self.chain).filter(|(from, _)| *from == JUMP_CHAIN).map(|(_, jump)| jump);
        jumps.filter(|jump| jump.comment() == Some(&self.jump))
    }
}

/// Rules of one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// The jumps to the container's chain.
    pub(super) jumps: Vec<IptablesRule>,
    /// The rules in the container's chain.
    pub(super) rules: Vec<IptablesRule>,
}

impl Share {
    /// The changes after which the attachment has `wanted` instead of this share. Its rules come before those of upstream, which
    /// match every address.
    pub(super) fn changes_to(&self, wanted: &Share, table: &Table, chain: &str) -> Changes {
        let mut changes = Changes::default();
        let exists = table.has_chain(chain);
        let removes_all = *wanted == Share::default();
        if !exists && !removes_all {
            changes.new_chain(chain);
        }
        only_in_first(&self.jumps, &wanted.jumps).iter().for_each(|jump| changes.delete(JUMP_CHAIN, jump));
        if exists && removes_all && self.is_all(table, chain) {
            changes.delete_chain(chain);
            return changes;
        }
        if self.rules != wanted.rules {
            self.rules.iter().for_each(|rule| changes.delete(chain, rule));
            changes.prepend(chain, &wanted.rules);
        }
        only_in_first(&wanted.jumps, &self.jumps).iter().for_each(|jump| changes.append(JUMP_CHAIN, jump));
        if removes_all {
            self.orphans(table, chain).iter().for_each(|rule| changes.delete(chain, rule));
        }
        changes
    }

    /// Whether the chain is of this share alone: there is no other jump to it, and no rule of another attachment in it.
    fn is_all(&self, table: &Table, chain: &str) -> bool {
        for (from, jump) in table.jumps(chain) {
            if from != JUMP_CHAIN || !self.jumps.contains(jump) {
                return false;
            }
        }
        rules_with_interface(table, chain).all(|rule| self.rules.contains(rule))
    }

    /// Upstream's rules that have no jump any more, in a chain that stays for other attachments: they would match the addresses of
    /// the others.
    fn orphans(&self, table: &Table, chain: &str) -> Vec<IptablesRule> {
        let claimed: Vec<IpAddr> =
            rules_with_interface(table, chain).filter_map(IptablesRule::source_address).collect();
        let mut comments_in_use = Vec::new();
        for (_, jump) in table.jumps(chain) {
            let is_claimed = jump.source_address().is_some_and(|address| claimed.contains(&address));
            if !self.jumps.contains(jump) && !is_claimed {
                comments_in_use.push(jump.comment());
            }
        }
        let mut orphans = Vec::new();
        for rule in table.rules(chain) {
            let is_upstreams = Claim::of(rule).is_some_and(|claim| !claim.names_interface);
            if is_upstreams && !comments_in_use.contains(&rule.comment()) {
                orphans.push(rule.clone());
            }
        }
        orphans
    }

    /// The differences from `wanted`, each a sentence.
    fn differences(&self, wanted: &Share, chain: &str, place: &str) -> Vec<String> {
        let mut differences = chain_differences(&self.jumps, &wanted.jumps, JUMP_CHAIN, place);
        differences.extend(chain_differences(&self.rules, &wanted.rules, chain, place));
        differences
    }
}

/// The owner of a rule, by its comment.
struct Claim<'a> {
    network: &'a str,
    container: &'a str,
    /// The comment names an interface too; upstream's do not.
    names_interface: bool,
}

impl<'a> Claim<'a> {
    fn of(rule: &'a IptablesRule) -> Option<Claim<'a>> {
        let (network, after_network) = rule.comment()?.strip_prefix("name: \"")?.split_once("\" id: \"")?;
        let (container, after_container) = after_network.split_once('"')?;
        Some(Claim { network, container, names_interface: after_container.starts_with(" if: ") })
    }

    /// Whether a rule of the chain `of` belongs to a network. A long name may be cut off in the comment, but not in the chain's
    /// hash.
    fn is_of(&self, network: &str, of: &str) -> bool {
        network == self.network || chain(network, self.container) == of
    }
}

/// The rules that GC removes: those of one network that belong to no valid attachment.
pub(super) struct GcFilter<'a> {
    pub(super) network: &'a str,
    /// The names of the valid attachments.
    pub(super) valid: Vec<Names>,
}

impl GcFilter<'_> {
    /// The changes that remove these rules.
    pub(super) fn changes(&self, table: &Table) -> Changes {
        let mut changes = Changes::default();
        for chain in table.chains().filter(|chain| is_chain(chain)) {
            if let Some(stale) = self.stale_share(table, chain) {
                changes.extend(stale.changes_to(&Share::default(), table, chain));
            }
        }
        changes
    }

    /// What GC removes of one container's chain; `None` if nothing.
    ///
    /// Stale rules of upstream are not in the share: when a share is removed, `Share::changes_to` removes them together with the
    /// chain, or as orphans if other attachments use the chain. So a share without rules and jumps has a meaning too.
    fn stale_share(&self, table: &Table, chain: &str) -> Option<Share> {
        let mut rules = Vec::new();
        let mut has_upstream_rules = false;
        for rule in table.rules(chain) {
            let Some(claim) = Claim::of(rule) else { continue };
            if !claim.is_of(self.network, chain) || self.is_valid(rule) {
                continue;
            }
            if claim.names_interface {
                rules.push(rule.clone());
            } else {
                has_upstream_rules = true;
            }
        }
        let jumps = self.stale_jumps(table, chain, &rules);
        if rules.is_empty() && jumps.is_empty() && !has_upstream_rules {
            return None;
        }
        Some(Share { jumps, rules })
    }

    /// The jumps to a chain that GC removes together with `stale_rules`. The comment of a jump names no interface, so a jump of a
    /// valid container is stale if it has the address of a stale rule: that interface alone is gone.
    fn stale_jumps(&self, table: &Table, chain: &str, stale_rules: &[IptablesRule]) -> Vec<IptablesRule> {
        let stale_addresses: Vec<IpAddr> = stale_rules.iter().filter_map(IptablesRule::source_address).collect();
        let mut jumps = Vec::new();
        for (from, jump) in table.jumps(chain) {
            let is_of_network = Claim::of(jump).is_some_and(|claim| claim.is_of(self.network, chain));
            if from != JUMP_CHAIN || !is_of_network {
                continue;
            }
            let is_of_stale_rule = jump.source_address().is_some_and(|address| stale_addresses.contains(&address));
            if !self.is_valid(jump) || is_of_stale_rule {
                jumps.push(jump.clone());
            }
        }
        jumps
    }

    /// Whether a rule has a comment of a valid attachment.
    fn is_valid(&self, rule: &IptablesRule) -> bool {
        self.valid.iter().any(|names| names.is_comment_of(rule))
    }
}

/// The rules of a chain whose comment names an interface.
fn rules_with_interface<'a>(table: &'a Table, chain: &str) -> impl Iterator<Item = &'a IptablesRule> {
    let rules: Vec<&IptablesRule> = table.rules(chain).collect();
    rules.into_iter().filter(|rule| Claim::of(rule).is_some_and(|claim| claim.names_interface))
}

/// Whether a jump that matches this network is of an old release, and of one of these addresses or of an interface that does not
/// share the chain.
fn is_old_jump(network: IpNetwork, addresses: &[IpAddr], is_shared: bool) -> bool {
    let is_single_address = IpNetwork::from(network.ip()).prefix() == network.prefix();
    !is_single_address && (!is_shared || addresses.iter().any(|address| network.contains(*address)))
}

/// The rules of an address in a container's chain. They begin with the matches of `from`.
fn rules(from: &IptablesRule, address: IpNetwork, comment: &str) -> [IptablesRule; 2] {
    let inside = from.clone().destination(network(address)).commented(comment).jump("ACCEPT");
    let outside = from.clone().not_destination(multicast(address)).commented(comment).jump("MASQUERADE");
    [inside, outside]
}

fn chain(network: &str, container: &str) -> String {
    format!("CNI-{}", &hex(&Sha512::digest(format!("{network}{container}").as_bytes()))[..DIGITS])
}

/// Whether a chain may be a container's.
pub(super) fn is_chain(name: &str) -> bool {
    let Some(hash) = name.strip_prefix("CNI-") else { return false };
    hash.len() == DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A comment that ends with `end`. If it is too long, the network's name is cut, then the container's: both are in the chain's
/// hash.
fn comment(tag: &AttachmentId, end: &str) -> String {
    let room = LONGEST_COMMENT.saturating_sub(r#"name: "" id: """#.len() + end.len());
    let container = &tag.container[..tag.container.len().min(room)];
    let network = &tag.network[..tag.network.len().min(room - container.len())];
    format!(r#"name: "{network}" id: "{container}"{end}"#)
}

/// The multicast addresses of the family of `address`.
fn multicast(address: IpNetwork) -> IpNetwork {
    let multicast = match address {
        IpNetwork::V4(_) => IpNetwork::new([224, 0, 0, 0].into(), 4),
        IpNetwork::V6(_) => IpNetwork::new([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
    };
    multicast.unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(network: &str, container: &str, ifname: &str) -> Names {
        Names::of(&AttachmentId { network: network.into(), container: container.into(), ifname: ifname.into() })
    }

    #[test]
    fn chain_and_jump_are_equal_to_upstreams() {
        let names = names("n1", "c1", "eth0");
        assert_eq!(names.chain, "CNI-7be53730afe4dc6eb2178d03");
        assert_eq!(names.jump, r#"name: "n1" id: "c1""#);
        assert_eq!(names.rule, r#"name: "n1" id: "c1" if: "eth0""#);
        assert_eq!(chain("test", "1234"), "CNI-2bbe0c48b91a7d1b8a6753a8");
        assert!(is_chain(&names.chain) && !is_chain("CNI-HOSTPORT-MASQ") && !is_chain("CNI-DN-0123456789abcdef01234"));
    }

    #[test]
    fn a_comment_fits_and_names_the_interface_whatever_the_names() {
        for (network, container) in [(300, 5), (5, 300), (200, 100), (300, 300)] {
            let network = "n".repeat(network);
            let container = "c".repeat(container);
            let names = names(&network, &container, "an\"\\interface1");
            assert!(names.rule.len() <= LONGEST_COMMENT && names.jump.len() <= LONGEST_COMMENT);
            assert!(names.rule.ends_with(r#"" if: "an\"\\interface1""#), "{}", names.rule);
        }
    }

    #[test]
    fn a_claim_belongs_to_the_network_of_its_comment_or_its_chain() {
        let (network, jump) =
            ("n".repeat(250), |names: &Names| IptablesRule::any().commented(&names.jump).jump(&names.chain));
        let short = names("n", "c1", "eth0");
        let long = names(&network, "c1", "eth0");
        let is_of = |names: &Names, network: &str| Claim::of(&jump(names)).unwrap().is_of(network, &names.chain);
        assert!(is_of(&short, "n") && !is_of(&short, "m") && !is_of(&long, "n"));
        assert!(is_of(&long, &network));
        assert!(Claim::of(&IptablesRule::any().commented("dnat name: \"n\" id: \"c1\"")).is_none());
    }

    #[test]
    fn an_old_network_jump_is_removed_with_its_address_or_last_interface() {
        for (own, other, single) in [("10.0.0.2", "10.1.0.2", 32), ("::10.0.0.2", "fd00::2", 128)] {
            let network = |length| IpNetwork::new(own.parse().unwrap(), length).unwrap();
            let wide = network(single - 8);
            let going = |address: &str| [address.parse().unwrap()];
            assert!(is_old_jump(wide, &going(own), true) && !is_old_jump(wide, &going(other), true));
            assert!(is_old_jump(wide, &[], false) && !is_old_jump(wide, &[], true));
            assert!(!is_old_jump(network(single), &going(own), false));
        }
    }
}
