//! What of a container's chain belongs to which attachment.

use std::net::IpAddr;

use cnikit_iptables::{Changes, IptablesRule, Table};
use cnikit_resources::alias::hex;
use cnikit_skel::AttachmentId;
use ipnetwork::IpNetwork;
use sha2::{Digest, Sha512};

use super::super::network;

/// The chain that jumps stand in.
pub(super) const ENTRY: &str = "POSTROUTING";
/// Digits of the hash in a chain's name.
const DIGITS: usize = 24;
/// What iptables takes of a comment (`XT_MAX_COMMENT_LEN`, with the byte that ends it).
const LONGEST_COMMENT: usize = 255;

/// The names that an attachment's rules bear.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The chain, which all interfaces of the container on this network share.
    pub(super) chain: String,
    /// The comment of jumps, as the reference has it.
    pub(super) entry: String,
    /// The comment of rules in the chain, which names the interface.
    pub(super) rule: String,
}

impl Names {
    pub(super) fn of(tag: &AttachmentId) -> Names {
        let ifname = tag.ifname.replace('\\', "\\\\").replace('"', "\\\"");
        let (entry, rule) = (comment(tag, ""), comment(tag, &format!(" if: \"{ifname}\"")));
        Names { chain: chain(&tag.network, &tag.container), entry, rule }
    }

    /// What the attachment has when it has these addresses.
    pub(super) fn share(&self, addresses: &[IpNetwork]) -> Share {
        let jump =
            |address: &IpNetwork| IptablesRule::any().source(address.ip()).commented(&self.entry).jump(&self.chain);
        let rules = |address: &IpNetwork| rules(&IptablesRule::any().source(address.ip()), address, &self.rule);
        Share { jumps: addresses.iter().map(jump).collect(), rules: addresses.iter().flat_map(rules).collect() }
    }

    /// Where an attachment with these addresses does not have what it should, each a sentence.
    ///
    /// An address may have the reference's rules instead of its own, as before an upgrade: they are wanted where no rule
    /// names the address and one of them is there.
    pub(super) fn differences(&self, table: &Table, addresses: &[IpNetwork], place: &str) -> Vec<String> {
        let found = self.found(table, |own| addresses.iter().any(|address| address.ip() == own));
        let theirs: Vec<&IptablesRule> =
            table.rules(&self.chain).filter(|rule| rule.comment() == Some(&self.entry)).collect();
        let is_theirs = |address: &IpNetwork| {
            !theirs.is_empty() && found.rules.iter().all(|rule| rule.source_address() != Some(address.ip()))
        };
        let (by_theirs, by_own): (Vec<IpNetwork>, Vec<IpNetwork>) = addresses.iter().partition(|one| is_theirs(one));
        let wanted = Share { jumps: self.share(addresses).jumps, rules: self.share(&by_own).rules };
        let shared = by_theirs.iter().flat_map(|address| rules(&IptablesRule::any(), address, &self.entry));
        let missing = shared.filter(|rule| !theirs.contains(&rule)).map(|rule| missing(&rule, &self.chain, place));
        found.differences(&wanted, &self.chain, place).into_iter().chain(missing).collect()
    }

    /// What the attachment has in this table: its rules, the jumps for their addresses, and of the jumps that no rule
    /// claims, which are the reference's, those for addresses that are known to be its own.
    pub(super) fn found(&self, table: &Table, is_own: impl Fn(IpAddr) -> bool) -> Share {
        let rules: Vec<IptablesRule> =
            table.rules(&self.chain).filter(|rule| rule.comment() == Some(&self.rule)).cloned().collect();
        let unclaimed = self.unclaimed(table);
        let goes = |address: IpAddr| {
            let by_rule = rules.iter().any(|rule| rule.source_address() == Some(address));
            by_rule || unclaimed.contains(&address) && is_own(address)
        };
        let jumps = self.jumps(table).filter(|jump| jump.source_address().is_some_and(goes)).cloned().collect();
        Share { jumps, rules }
    }

    /// What DEL removes: what is found, and of the jumps of very old releases of the reference, which are for an address's
    /// whole network, those that lead one of these addresses here; all of them once no rule names another interface.
    pub(super) fn released(&self, table: &Table, is_own: impl Fn(IpAddr) -> bool) -> Share {
        let found = self.found(table, is_own);
        let shared = named(table, &self.chain).any(|rule| rule.comment() != Some(&self.rule));
        let going: Vec<IpAddr> =
            found.jumps.iter().chain(&found.rules).filter_map(IptablesRule::source_address).collect();
        let leads = |network| leads_any(network, &going, shared);
        let wide = self.jumps(table).filter(|jump| jump.source_network().is_some_and(leads));
        Share { jumps: found.jumps.iter().chain(wide).cloned().collect(), ..found }
    }

    /// The addresses that jumps are for and no rule of an interface is.
    pub(super) fn unclaimed(&self, table: &Table) -> Vec<IpAddr> {
        let claimed: Vec<IpAddr> = named(table, &self.chain).filter_map(IptablesRule::source_address).collect();
        let addresses = self.jumps(table).filter_map(IptablesRule::source_address);
        addresses.filter(|address| !claimed.contains(address)).collect()
    }

    fn jumps<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = &'a IptablesRule> {
        let own = |(place, jump): &(&str, &IptablesRule)| *place == ENTRY && jump.comment() == Some(&self.entry);
        table.jumps(&self.chain).filter(own).map(|(_, jump)| jump)
    }
}

/// Rules of one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// From the chain that all packets come through.
    pub(super) jumps: Vec<IptablesRule>,
    /// In the container's chain.
    pub(super) rules: Vec<IptablesRule>,
}

impl Share {
    /// What has to change so that the attachment has `wanted` instead of this. Its rules come before the reference's, which
    /// would speak for every address.
    pub(super) fn becomes(&self, wanted: &Share, table: &Table, chain: &str) -> Changes {
        let (mut changes, there) = (Changes::default(), table.has_chain(chain));
        if !there && *wanted != Share::default() {
            changes.new_chain(chain);
        }
        less(&self.jumps, &wanted.jumps).iter().for_each(|jump| changes.delete(ENTRY, jump));
        if there && *wanted == Share::default() && self.is_all(table, chain) {
            changes.delete_chain(chain);
            return changes;
        }
        if self.rules != wanted.rules {
            self.rules.iter().for_each(|rule| changes.delete(chain, rule));
            changes.prepend(chain, &wanted.rules);
        }
        less(&wanted.jumps, &self.jumps).iter().for_each(|jump| changes.append(ENTRY, jump));
        if *wanted == Share::default() {
            self.orphans(table, chain).iter().for_each(|rule| changes.delete(chain, rule));
        }
        changes
    }

    /// Whether nothing else keeps the chain: no jump leads there, and no rule in it is another attachment's.
    fn is_all(&self, table: &Table, chain: &str) -> bool {
        let foreign = |(place, jump): (&str, &IptablesRule)| place != ENTRY || !self.jumps.contains(jump);
        !table.jumps(chain).any(foreign) && named(table, chain).all(|rule| self.rules.contains(rule))
    }

    /// Rules of the reference's in a chain that others keep, and for which no jump is left: they would speak for addresses
    /// of the others.
    fn orphans(&self, table: &Table, chain: &str) -> Vec<IptablesRule> {
        let claimed: Vec<IpAddr> = named(table, chain).filter_map(IptablesRule::source_address).collect();
        let stays = |jump: &IptablesRule| {
            !self.jumps.contains(jump) && jump.source_address().is_none_or(|address| !claimed.contains(&address))
        };
        let kept =
            |rule: &IptablesRule| table.jumps(chain).any(|(_, jump)| jump.comment() == rule.comment() && stays(jump));
        let unnamed = |rule: &&IptablesRule| Claim::of(rule).is_some_and(|claim| !claim.named);
        table.rules(chain).filter(unnamed).filter(|rule| !kept(rule)).cloned().collect()
    }

    /// Where this is not what was wanted, each a sentence.
    fn differences(&self, wanted: &Share, chain: &str, place: &str) -> Vec<String> {
        let of = |found: &[IptablesRule], wanted: &[IptablesRule], chain: &str| {
            let missing = less(wanted, found).into_iter().map(|rule| missing(&rule, chain, place));
            let extra = less(found, wanted).into_iter();
            let extra = extra.map(|rule| format!("rule `{rule}` in chain {chain} of {place} is not wanted"));
            missing.chain(extra).collect::<Vec<_>>()
        };
        [of(&self.jumps, &wanted.jumps, ENTRY), of(&self.rules, &wanted.rules, chain)].concat()
    }
}

/// Whose a rule is, as its comment says.
pub(super) struct Claim<'a> {
    network: &'a str,
    container: &'a str,
    /// It names an interface too, as the reference's do not.
    pub(super) named: bool,
}

impl<'a> Claim<'a> {
    pub(super) fn of(rule: &'a IptablesRule) -> Option<Claim<'a>> {
        let (network, rest) = rule.comment()?.strip_prefix("name: \"")?.split_once("\" id: \"")?;
        let (container, rest) = rest.split_once('"')?;
        Some(Claim { network, container, named: rest.starts_with(" if: ") })
    }

    /// Whether the rule, which belongs to this chain, is of that network. A long name may be cut off, but the chain knows.
    pub(super) fn is_of(&self, network: &str, of: &str) -> bool {
        network == self.network || chain(network, self.container) == of
    }
}

/// The rules of a chain that name an interface.
fn named<'a>(table: &'a Table, chain: &str) -> impl Iterator<Item = &'a IptablesRule> {
    let rules: Vec<&IptablesRule> = table.rules(chain).collect();
    rules.into_iter().filter(|rule| Claim::of(rule).is_some_and(|claim| claim.named))
}

/// Whether a jump from this network is for more than one address, and for one of these, or for whichever if the chain is not
/// shared.
fn leads_any(network: IpNetwork, going: &[IpAddr], shared: bool) -> bool {
    let single = IpNetwork::from(network.ip()).prefix() == network.prefix();
    !single && (!shared || going.iter().any(|address| network.contains(*address)))
}

/// What a container's chain holds for an address: rules that begin with `from`, and bear a comment.
fn rules(from: &IptablesRule, address: &IpNetwork, comment: &str) -> [IptablesRule; 2] {
    let inside = from.clone().destination(network(*address)).commented(comment).jump("ACCEPT");
    let outside = from.clone().not_destination(multicast(address)).commented(comment).jump("MASQUERADE");
    [inside, outside]
}

fn missing(rule: &IptablesRule, chain: &str, place: &str) -> String {
    format!("rule `{rule}` is missing from chain {chain} of {place}")
}

fn chain(network: &str, container: &str) -> String {
    format!("CNI-{}", &hex(&Sha512::digest(format!("{network}{container}").as_bytes()))[..DIGITS])
}

/// Whether a chain may be a container's.
pub(super) fn is_chain(name: &str) -> bool {
    name.strip_prefix("CNI-")
        .is_some_and(|hash| hash.len() == DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Cut, where it does not fit, in the name of the network, then in that of the container: both are in the chain's name.
fn comment(tag: &AttachmentId, end: &str) -> String {
    let room = LONGEST_COMMENT.saturating_sub(r#"name: "" id: """#.len() + end.len());
    let container = &tag.container[..tag.container.len().min(room)];
    let network = &tag.network[..tag.network.len().min(room - container.len())];
    format!(r#"name: "{network}" id: "{container}"{end}"#)
}

fn multicast(address: &IpNetwork) -> IpNetwork {
    let (group, length) =
        if address.is_ipv4() { ([224, 0, 0, 0].into(), 4) } else { ([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8) };
    IpNetwork::new(group, length).unwrap_or(*address)
}

/// Those of one list that the other does not have, each as often as it has it less often.
fn less(one: &[IptablesRule], other: &[IptablesRule]) -> Vec<IptablesRule> {
    let mut rest = other.to_vec();
    let missing = |rule: &&IptablesRule| {
        let place = rest.iter().position(|found| found == *rule);
        place.map(|place| rest.remove(place)).is_none()
    };
    one.iter().filter(missing).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(network: &str, container: &str, ifname: &str) -> Names {
        Names::of(&AttachmentId { network: network.into(), container: container.into(), ifname: ifname.into() })
    }

    #[test]
    fn chain_and_jump_are_the_references_to_the_letter() {
        let names = names("n1", "c1", "eth0");
        assert_eq!(names.chain, "CNI-7be53730afe4dc6eb2178d03");
        assert_eq!(names.entry, r#"name: "n1" id: "c1""#);
        assert_eq!(names.rule, r#"name: "n1" id: "c1" if: "eth0""#);
        assert_eq!(chain("test", "1234"), "CNI-2bbe0c48b91a7d1b8a6753a8");
        assert!(is_chain(&names.chain) && !is_chain("CNI-HOSTPORT-MASQ") && !is_chain("CNI-DN-0123456789abcdef01234"));
    }

    #[test]
    fn a_comment_fits_and_names_the_interface_whatever_the_names() {
        for (network, container) in [(300, 5), (5, 300), (200, 100), (300, 300)] {
            let (network, container) = ("n".repeat(network), "c".repeat(container));
            let names = names(&network, &container, "an\"\\interface1");
            assert!(names.rule.len() <= LONGEST_COMMENT && names.entry.len() <= LONGEST_COMMENT);
            assert!(names.rule.ends_with(r#"" if: "an\"\\interface1""#), "{}", names.rule);
        }
    }

    #[test]
    fn a_claim_is_of_the_network_that_it_names_or_that_the_chain_knows() {
        let (network, jump) =
            ("n".repeat(250), |names: &Names| IptablesRule::any().commented(&names.entry).jump(&names.chain));
        let (short, long) = (names("n", "c1", "eth0"), names(&network, "c1", "eth0"));
        let is_of = |names: &Names, network: &str| Claim::of(&jump(names)).unwrap().is_of(network, &names.chain);
        assert!(is_of(&short, "n") && !is_of(&short, "m") && !is_of(&long, "n"));
        assert!(is_of(&long, &network));
        assert!(Claim::of(&IptablesRule::any().commented("dnat name: \"n\" id: \"c1\"")).is_none());
    }

    #[test]
    fn a_jump_for_a_whole_network_goes_with_an_address_of_it_or_with_the_last_interface() {
        for (own, other, single) in [("10.0.0.2", "10.1.0.2", 32), ("::10.0.0.2", "fd00::2", 128)] {
            let network = |length| IpNetwork::new(own.parse().unwrap(), length).unwrap();
            let (wide, going) = (network(single - 8), |address: &str| [address.parse().unwrap()]);
            assert!(leads_any(wide, &going(own), true) && !leads_any(wide, &going(other), true));
            assert!(leads_any(wide, &[], false) && !leads_any(wide, &[], true));
            assert!(!leads_any(network(single), &going(own), false));
        }
    }
}
