//! Which rules of a container's chain, and which entries to it, belong to which attachment.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use cnikit_iptables::{Changes, IpVersion, IptablesRule, Table};
use cnikit_resources::alias::{cut, hex, mark, mark_of, network_mark};
use cnikit_skel::AttachmentId;
use sha2::{Digest, Sha512};

use super::super::mapping::{Mapping, Mark, Masquerades, PortMap};
use super::chain::{Piece, Ports, entries, ports};
use super::conditions;
use super::shared::{DEFAULT_BIT, ENTRIES, SETMARK, bits};
use crate::rule_lists::{Counted, chain_differences, only_in_first};

/// The prefix of the names of containers' chains.
const PREFIX: &str = "CNI-DN-";
/// Digits of the hash in a chain's name.
const DIGITS: usize = 21;
/// The longest comment of iptables (`XT_MAX_COMMENT_LEN`, without the byte that ends it).
const LONGEST_COMMENT: usize = 255;

/// The chain and the comments of an attachment.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The chain, which all interfaces of the container on this network share.
    pub(super) chain: String,
    /// The comment of entries, equal to upstream's.
    pub(super) entry: String,
    /// The comment of the two rules around this interface's block.
    pub(super) owner: String,
}

impl Names {
    pub(super) fn of(tag: &AttachmentId) -> Names {
        let owner = cut(format!("{} if: {}", mark_of(tag), tag.ifname), LONGEST_COMMENT);
        Names { chain: chain(&tag.network, &tag.container), entry: comment(tag), owner }
    }

    /// The attachment's rules in this table: its block; upstream's rules that lead to addresses for which `is_own` returns true;
    /// and the entries for both. If no rule of the chain leads to another attachment, all of the chain.
    pub(super) fn installed(&self, table: &Table, is_own: impl Fn(IpAddr) -> bool) -> Share {
        share_of(table, &self.chain, |owner| owner == self.owner, is_own)
    }

    /// The addresses that upstream's rules lead to.
    pub(super) fn unclaimed(&self, table: &Table) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for piece in Piece::all(table, &self.chain) {
            if piece.owner.is_none() {
                addresses.extend(piece.by_address().into_iter().filter_map(|group| group.address));
            }
        }
        addresses
    }
}

/// The rules of one attachment, or of several together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Its blocks: one, or those of several attachments.
    pub(super) blocks: Vec<Piece>,
    /// Its rules in no block, which upstream wrote.
    pub(super) upstream: Vec<IptablesRule>,
    /// The rules that jump to the chain.
    pub(super) entries: Vec<IptablesRule>,
}

impl Share {
    /// All rules in the container's chain.
    pub(super) fn rules(&self) -> impl Iterator<Item = &IptablesRule> {
        self.blocks.iter().flat_map(|block| &block.rules).chain(&self.upstream)
    }

    /// The rules that the attachment wants.
    pub(super) fn wanted(portmap: &PortMap, version: IpVersion, names: &Names) -> Share {
        let Some(target) = portmap.addresses_of(version).first().copied() else { return Share::default() };
        if portmap.mappings.is_empty() {
            return Share::default();
        }
        let sources = masqueraded_sources(portmap, version);
        let mut block = Vec::new();
        let mut mapped = Vec::new();
        for mapping in &portmap.mappings {
            block.extend(rules(mapping, target, &sources, &portmap.mark));
            mapped.push((mapping.protocol.to_string(), mapping.host_port));
        }
        let (before, behind) = conditions::as_saved(conditions::of(portmap, version));
        let mut entries = Vec::new();
        for (protocol, some_ports) in ports(mapped) {
            let entry = IptablesRule::any().words(&before).protocol(&protocol).commented(&names.entry);
            entries.push(entry.destination_ports(&some_ports).words(&behind).jump(&names.chain));
        }
        let own = Piece { owner: Some(names.owner.clone()), rules: block };
        Share { blocks: vec![own], upstream: Vec::new(), entries }
    }

    /// The rules of a chain that belong to this network and to no valid attachment. Upstream's rules have no interface: they are
    /// valid if any attachment of their container is.
    pub(super) fn stale(table: &Table, chain: &str, network: &str, valid: &[Names]) -> Option<Share> {
        let prefix = network_mark(network);
        let is_valid_chain = valid.iter().any(|names| names.chain == chain);
        let is_of_network = entries_to(table, chain).iter().any(|entry| is_of(entry, network, chain));
        let is_stale =
            |owner: &str| owner.starts_with(&prefix) && !valid.iter().any(|names| mark(&names.owner) == mark(owner));
        let is_upstream_stale = is_of_network && !is_valid_chain;
        let has_stale_block = Piece::all(table, chain).iter().any(|piece| piece.owner.as_deref().is_some_and(is_stale));
        if !is_upstream_stale && !has_stale_block {
            return None;
        }
        Some(share_of(table, chain, is_stale, |_| is_upstream_stale))
    }

    /// The changes after which the attachment has `wanted` instead of this share.
    pub(super) fn changes_to(&self, wanted: &Share, table: &Table, chain: &str) -> Changes {
        let mut changes = Changes::default();
        let exists = table.has_chain(chain);
        let nothing = Share::default();
        if *self == nothing && *wanted == nothing && !(exists && is_left_over(table, chain)) {
            return changes;
        }
        let before: Vec<IptablesRule> = table.rules(chain).cloned().collect();
        let after: Vec<IptablesRule> = self.replaced(wanted, table, chain).iter().flat_map(Piece::in_chain).collect();
        only_in_first(&self.entries, &wanted.entries).iter().for_each(|entry| changes.delete(ENTRIES, entry));
        if !exists && !after.is_empty() {
            changes.new_chain(chain);
        }
        if exists && after.is_empty() && wanted.entries.is_empty() && !self.has_other_jumps(table, chain) {
            changes.delete_chain(chain);
        } else {
            changes.replace_rules(chain, &before, &after);
        }
        only_in_first(&wanted.entries, &self.entries).iter().for_each(|entry| changes.append(ENTRIES, entry));
        changes
    }

    /// Whether there are jumps to the chain besides the entries of this share.
    fn has_other_jumps(&self, table: &Table, chain: &str) -> bool {
        let own: HashSet<&IptablesRule> = self.entries.iter().collect();
        for (from, jump) in table.jumps(chain) {
            if from != ENTRIES || !own.contains(jump) {
                return true;
            }
        }
        false
    }

    /// The pieces of the chain after this share is replaced by `wanted`. A new block is where the old one was.
    fn replaced(&self, wanted: &Share, table: &Table, chain: &str) -> Vec<Piece> {
        let mut new_blocks = wanted.blocks.clone();
        let mut removed = Counted::of(&self.upstream);
        let mut pieces: Vec<Piece> = Piece::all(table, chain);
        for piece in &mut pieces {
            if piece.owner.is_none() {
                let all = std::mem::take(&mut piece.rules);
                piece.rules = all.into_iter().filter(|rule| !removed.take(rule)).collect();
            } else if let Some(at) = new_blocks.iter().position(|block| block.owner == piece.owner) {
                *piece = new_blocks.remove(at);
            } else if self.blocks.iter().any(|block| block.owner == piece.owner) {
                piece.rules.clear();
            }
        }
        pieces.extend(new_blocks);
        pieces.push(Piece { owner: None, rules: wanted.upstream.clone() });
        pieces.retain(|piece| !piece.rules.is_empty());
        pieces
    }

    /// Whether the entries are equal word for word.
    pub(super) fn has_same_entries(&self, wanted: &Share) -> bool {
        only_in_first(&self.entries, &wanted.entries).is_empty()
            && only_in_first(&wanted.entries, &self.entries).is_empty()
    }

    /// The differences from `wanted`, each a sentence. Upstream's rules are accepted. With `are_entries_equal`, entries are known
    /// to be equal although their words differ.
    pub(super) fn differences(&self, wanted: &Share, are_entries_equal: bool, chain: &str, place: &str) -> Vec<String> {
        let mut wanted_rules: Vec<IptablesRule> = wanted.rules().cloned().collect();
        if self.blocks.is_empty() {
            // Upstream writes no rules without a target.
            wanted_rules.retain(|rule| rule.target().is_some());
        }
        let found: Vec<IptablesRule> = self.rules().cloned().collect();
        let mut in_chain = chain_differences(&found, &wanted_rules, chain, place);
        if in_chain.is_empty() && found != wanted_rules {
            in_chain.push(format!("the rules of chain {chain} of {place} are in another order than wanted"));
        }
        if are_entries_equal {
            return in_chain;
        }
        let mut differences = chain_differences(&self.entries, &wanted.entries, ENTRIES, place);
        differences.extend(in_chain);
        differences
    }
}

/// The blocks for whose owner `is_owner` returns true, upstream's rules for whose address `is_own` returns true, and the entries
/// for both. If all blocks and addresses are among them, all of the chain.
fn share_of(table: &Table, chain: &str, is_owner: impl Fn(&str) -> bool, is_own: impl Fn(IpAddr) -> bool) -> Share {
    let mut blocks = Vec::new();
    let mut other_blocks = Vec::new();
    let mut groups = Vec::new();
    for piece in Piece::all(table, chain) {
        match &piece.owner {
            Some(owner) if is_owner(owner) => blocks.push(piece),
            Some(_) => other_blocks.push(piece),
            None => groups.extend(piece.by_address()),
        }
    }
    let installed = entries_to(table, chain);
    let has_other_address = groups.iter().any(|group| group.address.is_some_and(|address| !is_own(address)));
    if other_blocks.is_empty() && !has_other_address {
        let upstream = groups.into_iter().flat_map(|group| group.rules).collect();
        return Share { blocks, upstream, entries: installed };
    }
    let mut own_ports: Vec<Ports> = blocks.iter().flat_map(|block| entries(&block.rules)).collect();
    let mut other_ports: Vec<Ports> = other_blocks.iter().flat_map(|block| entries(&block.rules)).collect();
    // It is not known what else the entries of upstream's rules list.
    let are_all_known = groups.is_empty();
    let mut upstream = Vec::new();
    for group in groups {
        match group.address {
            Some(address) if is_own(address) => {
                own_ports.extend(entries(&group.rules));
                upstream.extend(group.rules);
            }
            Some(_) => other_ports.extend(entries(&group.rules)),
            None => {}
        }
    }
    Share { blocks, upstream, entries: entries_of(&installed, &own_ports, &other_ports, are_all_known) }
}

/// The installed entries of one owner. An entry that others have too is theirs.
fn entries_of(installed: &[IptablesRule], own: &[Ports], others: &[Ports], are_all_known: bool) -> Vec<IptablesRule> {
    let own: HashSet<&Ports> = own.iter().collect();
    let mut of_others: HashMap<&Ports, usize> = HashMap::new();
    for ports in others {
        *of_others.entry(ports).or_default() += 1;
    }
    let mut entries = Vec::new();
    for entry in installed {
        let Some(ports) = ports_of(entry) else { continue };
        match of_others.get_mut(&ports) {
            Some(count) if *count > 0 => *count -= 1,
            _ if are_all_known || own.contains(&ports) => entries.push(entry.clone()),
            _ => {}
        }
    }
    entries
}

fn ports_of(entry: &IptablesRule) -> Option<Ports> {
    Some((entry.protocol_name()?.to_owned(), entry.ports()?))
}

/// The entries that jump to a chain.
pub(super) fn entries_to(table: &Table, chain: &str) -> Vec<IptablesRule> {
    table.jumps(chain).filter(|(from, _)| *from == ENTRIES).map(|(_, entry)| entry.clone()).collect()
}

/// Whether a chain is empty and unused, as a killed upstream plugin leaves it.
fn is_left_over(table: &Table, chain: &str) -> bool {
    table.rules(chain).next().is_none() && table.jumps(chain).next().is_none()
}

/// The sources whose connections are masqueraded, as the first matches of rules.
fn masqueraded_sources(portmap: &PortMap, version: IpVersion) -> Vec<IptablesRule> {
    match portmap.masquerades {
        Masquerades::Nothing => Vec::new(),
        Masquerades::All => vec![IptablesRule::any()],
        Masquerades::Hairpin => {
            let is_ipv4 = version == IpVersion::V4;
            let networks = portmap.networks(is_ipv4);
            let mut sources: Vec<IptablesRule> =
                networks.into_iter().map(|network| IptablesRule::any().source_in(network)).collect();
            if is_ipv4 {
                sources.push(IptablesRule::any().source([127, 0, 0, 1].into()));
            }
            sources
        }
    }
}

/// The rules of one mapping. A mapping of the other family has a rule without a target: the entries have its port too, and the
/// entries of a block are computed from its rules.
fn rules(mapping: &Mapping, target: IpAddr, sources: &[IptablesRule], mark: &Mark) -> Vec<IptablesRule> {
    let Some(to) = mapping.dnat_target(target) else {
        return vec![with_host_port(IptablesRule::any(), mapping)];
    };
    let mut rules = Vec::new();
    for source in sources {
        let matches = to_host_port(source.clone(), mapping);
        rules.push(match mark {
            Mark::Chain(chain) => matches.jump(chain),
            Mark::Bit(DEFAULT_BIT) => matches.jump(SETMARK),
            Mark::Bit(bit) => matches.set_mark(bits(*bit)),
        });
    }
    rules.push(to_host_port(IptablesRule::any(), mapping).dnat_to(to));
    rules
}

/// The rule with matches of a mapping's host address and port.
fn to_host_port(rule: IptablesRule, mapping: &Mapping) -> IptablesRule {
    match mapping.single_host_address() {
        Some(address) => with_host_port(rule.destination(address.into()), mapping),
        None => with_host_port(rule, mapping),
    }
}

/// The rule with a match of a mapping's host port.
fn with_host_port(rule: IptablesRule, mapping: &Mapping) -> IptablesRule {
    rule.destination_port(&mapping.protocol.to_string(), mapping.host_port)
}

fn chain(network: &str, container: &str) -> String {
    format!("{PREFIX}{}", &hex(&Sha512::digest(format!("{network}{container}").as_bytes()))[..DIGITS])
}

/// The addresses that rules in no block lead to.
pub(super) fn upstream_targets<'a>(rules: impl IntoIterator<Item = &'a IptablesRule>) -> Vec<IpAddr> {
    let mut targets = Vec::new();
    for piece in Piece::of(rules).iter().filter(|piece| piece.owner.is_none()) {
        targets.extend(piece.rules.iter().filter_map(IptablesRule::dnat_target).map(|to| to.ip()));
    }
    targets
}

/// Whether a chain exists and has no block.
pub(super) fn is_upstreams(table: &Table, chain: &str) -> bool {
    table.has_chain(chain) && Piece::all(table, chain).iter().all(|piece| piece.owner.is_none())
}

/// Whether a chain may be a container's.
pub(super) fn is_chain(name: &str) -> bool {
    let Some(hash) = name.strip_prefix(PREFIX) else { return false };
    hash.len() == DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Upstream's comment. Upstream cuts a long one a byte too late for the last of its three dots.
fn comment(tag: &AttachmentId) -> String {
    let whole = format!(r#"dnat name: "{}" id: "{}""#, tag.network, tag.container);
    if whole.len() <= LONGEST_COMMENT { whole } else { format!("{}..", cut(whole, LONGEST_COMMENT - 2)) }
}

/// Whether an entry jumps to a chain of this container, in any network. The comment may be cut off, so the chain's name is
/// compared.
pub(super) fn jumps_to_container(entry: &IptablesRule, tag: &AttachmentId) -> bool {
    let is_target = |network: &str| entry.target() == Some(&chain(network, &tag.container));
    is_target(&tag.network) || names_in_comment(entry).is_some_and(|(network, _)| is_target(network))
}

/// The network and the container in an entry's comment.
pub(super) fn names_in_comment(entry: &IptablesRule) -> Option<(&str, &str)> {
    let (network, container) = entry.comment()?.strip_prefix("dnat name: \"")?.split_once("\" id: \"")?;
    Some((network, container.strip_suffix('"').unwrap_or(container)))
}

/// Whether an entry to the chain `of` belongs to a network. The comment may be cut off, so the chain's name is compared too.
fn is_of(entry: &IptablesRule, network: &str, of: &str) -> bool {
    names_in_comment(entry).is_some_and(|(name, container)| name == network || chain(network, container) == of)
}

#[cfg(test)]
#[path = "share_tests.rs"]
pub(super) mod tests;
