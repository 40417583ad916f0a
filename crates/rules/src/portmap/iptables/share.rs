//! What of a container's chain, and of the entries to it, belongs to which attachment.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use cnikit_iptables::{Changes, IpVersion, IptablesRule, Table};
use cnikit_resources::alias::{cut, hex, mark, mark_of, network_mark};
use cnikit_skel::AttachmentId;
use sha2::{Digest, Sha512};

use super::super::{Mapping, Mark, Masquerades, PortMap};
use super::chain::{Piece, Ports, entries, ports};
use super::shared::{ENTRIES, SETMARK, USUAL_BIT, bits};
use super::{conditions, own};

/// What all names of containers' chains begin with.
const PREFIX: &str = "CNI-DN-";
/// Digits of the hash in a chain's name.
const DIGITS: usize = 21;
/// What iptables takes of a comment (`XT_MAX_COMMENT_LEN`, with the byte that ends it).
const LONGEST_COMMENT: usize = 255;

/// The names that an attachment's rules bear.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The chain, which all interfaces of the container on this network share.
    pub(super) chain: String,
    /// The comment of entries, as the reference has it.
    pub(super) entry: String,
    /// The comment of the two rules between which this interface's rules stand.
    pub(super) owner: String,
}

impl Names {
    pub(super) fn of(tag: &AttachmentId) -> Names {
        let owner = cut(format!("{} if: {}", mark_of(tag), tag.ifname), LONGEST_COMMENT);
        Names { chain: chain(&tag.network, &tag.container), entry: comment(tag), owner }
    }

    /// What the attachment has in this table: its block; of what the reference wrote, rules that lead to addresses which are
    /// its own; the entries for either. All of the chain where nothing in it leads to anybody else.
    pub(super) fn found(&self, table: &Table, is_own: impl Fn(IpAddr) -> bool) -> Share {
        taken(table, &self.chain, |owner| owner == self.owner, is_own)
    }

    /// The addresses that rules without a mark lead to.
    pub(super) fn unclaimed(&self, table: &Table) -> Vec<IpAddr> {
        let bare = Piece::all(table, &self.chain).into_iter().filter(|piece| piece.owner.is_none());
        bare.flat_map(|piece| piece.by_address()).filter_map(|(address, _)| address).collect()
    }
}

/// What one attachment has, or several have together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Its block.
    pub(super) blocks: Vec<Piece>,
    /// Rules of its in no block, which the reference wrote.
    pub(super) bare: Vec<IptablesRule>,
    /// What leads into the chain.
    pub(super) entries: Vec<IptablesRule>,
}

impl Share {
    /// All rules in the container's chain.
    pub(super) fn rules(&self) -> impl Iterator<Item = &IptablesRule> {
        self.blocks.iter().flat_map(|block| &block.rules).chain(&self.bare)
    }

    /// What the attachment is to have.
    pub(super) fn wanted(portmap: &PortMap, version: IpVersion, names: &Names) -> Share {
        let Some(target) = own(portmap, version).first().copied().filter(|_| !portmap.mappings.is_empty()) else {
            return Share::default();
        };
        let marks = marks(portmap, version);
        let rules = portmap.mappings.iter().flat_map(|mapping| rules(mapping, target, &marks, &portmap.mark)).collect();
        let mapped = portmap.mappings.iter().map(|mapping| (mapping.protocol.to_string(), mapping.host_port));
        let (before, behind) = conditions::as_saved(conditions::of(portmap, version));
        let entry = |(protocol, some): Ports| {
            let entry = IptablesRule::any().words(&before).protocol(&protocol).commented(&names.entry);
            entry.destination_ports(&some).words(&behind).jump(&names.chain)
        };
        Share {
            blocks: vec![Piece { owner: Some(names.owner.clone()), rules }],
            bare: Vec::new(),
            entries: ports(mapped).into_iter().map(entry).collect(),
        }
    }

    /// What of a chain belongs to this network and to no valid attachment. What the reference wrote tells no interface: it is
    /// valid with its container.
    pub(super) fn context(table: &Table, chain: &str, network: &str, valid: &[Names]) -> Option<Share> {
        let (prefix, of_valid) = (network_mark(network), valid.iter().any(|names| names.chain == chain));
        let of_network = entries_to(table, chain).iter().any(|entry| is_of(entry, network, chain));
        let gone = |owner: &str| {
            let lives = valid.iter().any(|names| mark(&names.owner) == mark(owner));
            owner.starts_with(&prefix) && !lives
        };
        let bare_goes = of_network && !of_valid;
        let any = bare_goes || Piece::all(table, chain).iter().any(|piece| piece.owner.as_deref().is_some_and(gone));
        any.then(|| taken(table, chain, gone, |_| bare_goes))
    }

    /// What has to change so that the attachment has `wanted` instead of this.
    pub(super) fn becomes(&self, wanted: &Share, table: &Table, chain: &str) -> Changes {
        let (mut changes, there) = (Changes::default(), table.has_chain(chain));
        let nothing = Share::default();
        if *self == nothing && *wanted == nothing && !(there && is_left_over(table, chain)) {
            return changes;
        }
        let had: Vec<IptablesRule> = table.rules(chain).cloned().collect();
        let has: Vec<IptablesRule> = self.replaced(wanted, table, chain).iter().flat_map(Piece::laid_out).collect();
        less(&self.entries, &wanted.entries).iter().for_each(|entry| changes.delete(ENTRIES, entry));
        if !there && !has.is_empty() {
            changes.new_chain(chain);
        }
        let own: HashSet<&IptablesRule> = self.entries.iter().collect();
        let foreign = |(place, jump): (&str, &IptablesRule)| place != ENTRIES || !own.contains(jump);
        if there && has.is_empty() && wanted.entries.is_empty() && !table.jumps(chain).any(foreign) {
            changes.delete_chain(chain);
        } else {
            changes.replace_rules(chain, &had, &has);
        }
        less(&wanted.entries, &self.entries).iter().for_each(|entry| changes.append(ENTRIES, entry));
        changes
    }

    /// The pieces of the chain once this is replaced by `wanted`, in the places where they stood.
    fn replaced(&self, wanted: &Share, table: &Table, chain: &str) -> Vec<Piece> {
        let (mut coming, mut going) = (wanted.blocks.clone(), Counted::of(&self.bare));
        let mut pieces: Vec<Piece> = Piece::all(table, chain);
        for piece in &mut pieces {
            if piece.owner.is_none() {
                let all = std::mem::take(&mut piece.rules);
                piece.rules = all.into_iter().filter(|rule| !going.take(rule)).collect();
            } else if let Some(at) = coming.iter().position(|block| block.owner == piece.owner) {
                *piece = coming.remove(at);
            } else if self.blocks.iter().any(|block| block.owner == piece.owner) {
                piece.rules.clear();
            }
        }
        let rest = Piece { owner: None, rules: wanted.bare.clone() };
        let all = pieces.into_iter().chain(coming).chain([rest]);
        all.filter(|piece| !piece.rules.is_empty()).collect()
    }

    /// Whether the entries are in the same words.
    pub(super) fn entries_are(&self, wanted: &Share) -> bool {
        less(&self.entries, &wanted.entries).is_empty() && less(&wanted.entries, &self.entries).is_empty()
    }

    /// Where this is not what was wanted, each a sentence. What the reference wrote is as good; entries may be known to be
    /// the wanted ones in other words.
    pub(super) fn differences(&self, wanted: &Share, entries_are: bool, chain: &str, place: &str) -> Vec<String> {
        let of = |found: &[IptablesRule], wanted: &[IptablesRule], chain: &str| {
            let missing = less(wanted, found).into_iter();
            let missing = missing.map(|rule| format!("rule `{rule}` is missing from chain {chain} of {place}"));
            let extra = less(found, wanted).into_iter();
            let extra = extra.map(|rule| format!("rule `{rule}` in chain {chain} of {place} is not wanted"));
            missing.chain(extra).collect::<Vec<_>>()
        };
        let rules = |blocks: &[Piece]| blocks.iter().flat_map(|block| block.rules.clone()).collect::<Vec<_>>();
        let (wanted_rules, mut found) = (rules(&wanted.blocks), rules(&self.blocks));
        let by_reference = self.blocks.is_empty();
        let told: Vec<IptablesRule> =
            wanted_rules.into_iter().filter(|rule| !by_reference || rule.target().is_some()).collect();
        found.extend(self.bare.iter().cloned());
        let mut all = of(&found, &told, chain);
        if all.is_empty() && found != told {
            all.push(format!("the rules of chain {chain} of {place} are in another order than wanted"));
        }
        let entries = if entries_are { Vec::new() } else { of(&self.entries, &wanted.entries, ENTRIES) };
        entries.into_iter().chain(all).collect()
    }
}

/// Blocks of these owners, bare rules that lead to these addresses, and the entries to either.
fn taken(table: &Table, chain: &str, is_own: impl Fn(&str) -> bool, goes: impl Fn(IpAddr) -> bool) -> Share {
    let (blocks, rest): (Vec<Piece>, Vec<Piece>) =
        Piece::all(table, chain).into_iter().partition(|piece| piece.owner.as_deref().is_some_and(&is_own));
    let (others, bare): (Vec<Piece>, Vec<Piece>) = rest.into_iter().partition(|piece| piece.owner.is_some());
    let groups: Vec<(Option<IpAddr>, Vec<IptablesRule>)> = bare.iter().flat_map(Piece::by_address).collect();
    let staying = |(address, _): &&(Option<IpAddr>, Vec<IptablesRule>)| address.is_some_and(|address| !goes(address));
    let all_goes = others.is_empty() && !groups.iter().any(|group| staying(&group));
    let standing = entries_to(table, chain);
    if all_goes {
        let bare = groups.into_iter().flat_map(|(_, rules)| rules).collect();
        return Share { blocks, bare, entries: standing };
    }
    let leaves = |(address, _): &&(Option<IpAddr>, Vec<IptablesRule>)| address.is_some_and(&goes);
    let own_bare: Vec<Vec<IptablesRule>> = groups.iter().filter(leaves).map(|(_, rules)| rules.clone()).collect();
    let others_bare = groups.iter().filter(staying).map(|(_, rules)| rules);
    let of =
        |rules: Vec<&Vec<IptablesRule>>| rules.into_iter().flat_map(|rules| entries(rules)).collect::<Vec<Ports>>();
    let own = of(blocks.iter().map(|block| &block.rules).chain(&own_bare).collect());
    let staying = of(others.iter().map(|block| &block.rules).chain(others_bare).collect());
    // Of the reference's rules it cannot be told what else its entries list.
    let all_known = groups.is_empty();
    Share { blocks, bare: own_bare.concat(), entries: entries_of(&standing, &own, &staying, all_known) }
}

/// Of the entries that stand, those of one owner: what others have as well stays theirs.
fn entries_of(standing: &[IptablesRule], own: &[Ports], others: &[Ports], all_known: bool) -> Vec<IptablesRule> {
    let own: HashSet<&Ports> = own.iter().collect();
    let mut of_others: HashMap<&Ports, usize> = HashMap::new();
    others.iter().for_each(|ports| *of_others.entry(ports).or_default() += 1);
    let goes = |entry: &&IptablesRule| {
        let Some(ports) = ports_of(entry) else { return false };
        match of_others.get_mut(&ports).filter(|count| **count > 0) {
            Some(count) => {
                *count -= 1;
                false
            }
            None => all_known || own.contains(&ports),
        }
    };
    standing.iter().filter(goes).cloned().collect()
}

fn ports_of(entry: &IptablesRule) -> Option<Ports> {
    Some((entry.protocol_name()?.to_owned(), entry.ports()?))
}

/// What leads into a chain from where entries stand.
pub(super) fn entries_to(table: &Table, chain: &str) -> Vec<IptablesRule> {
    table.jumps(chain).filter(|(place, _)| *place == ENTRIES).map(|(_, entry)| entry.clone()).collect()
}

/// Whether a chain is what a reference that was killed has left: nothing in it.
fn is_left_over(table: &Table, chain: &str) -> bool {
    table.rules(chain).next().is_none() && table.jumps(chain).next().is_none()
}

/// From where connections have to be masqueraded.
fn marks(portmap: &PortMap, version: IpVersion) -> Vec<IptablesRule> {
    match portmap.masquerades {
        Masquerades::Nothing => Vec::new(),
        Masquerades::All => vec![IptablesRule::any()],
        Masquerades::Hairpin => {
            let sources = portmap.networks(version == IpVersion::V4);
            let sources = sources.into_iter().map(|network| IptablesRule::any().source_in(network));
            let loopback = (version == IpVersion::V4).then(|| IptablesRule::any().source([127, 0, 0, 1].into()));
            sources.chain(loopback).collect()
        }
    }
}

/// One mapping's rules. One that is for the other family has a rule that does nothing: entries list its port too, and by
/// its rules a block knows its entries.
fn rules(mapping: &Mapping, target: IpAddr, marks: &[IptablesRule], mark: &Mark) -> Vec<IptablesRule> {
    let (protocol, port) = (mapping.protocol.to_string(), mapping.host_port);
    let Some(to) = mapping.leads_to(target) else { return vec![IptablesRule::any().destination_port(&protocol, port)] };
    let met = |rule: IptablesRule| {
        let meant = mapping.host_address.filter(|address| !address.is_unspecified());
        meant.into_iter().fold(rule, |rule, address| rule.destination(address.into())).destination_port(&protocol, port)
    };
    let marked = |source: &IptablesRule| match mark {
        Mark::Chain(chain) => met(source.clone()).jump(chain),
        Mark::Bit(USUAL_BIT) => met(source.clone()).jump(SETMARK),
        Mark::Bit(bit) => met(source.clone()).set_mark(bits(*bit)),
    };
    marks.iter().map(marked).chain([met(IptablesRule::any()).dnat_to(to)]).collect()
}

fn chain(network: &str, container: &str) -> String {
    format!("{PREFIX}{}", &hex(&Sha512::digest(format!("{network}{container}").as_bytes()))[..DIGITS])
}

/// Where rules lead that stand in no block.
pub(super) fn upstream_targets<'a>(rules: impl IntoIterator<Item = &'a IptablesRule>) -> Vec<IpAddr> {
    let mut targets = Vec::new();
    for piece in Piece::of(rules).iter().filter(|piece| piece.owner.is_none()) {
        targets.extend(piece.rules.iter().filter_map(IptablesRule::dnat_target).map(|to| to.ip()));
    }
    targets
}

/// Whether a chain is there, and no block in it.
pub(super) fn is_upstreams(table: &Table, chain: &str) -> bool {
    table.has_chain(chain) && Piece::all(table, chain).iter().all(|piece| piece.owner.is_none())
}

/// Whether a chain may be a container's.
pub(super) fn is_chain(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|hash| hash.len() == DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// As the reference has it, cut where it does not fit: it cuts one byte too late for the last of three dots.
fn comment(tag: &AttachmentId) -> String {
    let whole = format!(r#"dnat name: "{}" id: "{}""#, tag.network, tag.container);
    if whole.len() <= LONGEST_COMMENT { whole } else { format!("{}..", cut(whole, LONGEST_COMMENT - 2)) }
}

/// Whether an entry leads to this container, by whichever network: the chain's name tells where the comment is cut off.
pub(super) fn leads_to(entry: &IptablesRule, tag: &AttachmentId) -> bool {
    let networks = [Some(tag.network.as_str()), named(entry).map(|(network, _)| network)];
    networks.into_iter().flatten().any(|network| entry.target() == Some(&chain(network, &tag.container)))
}

/// The network and the container that an entry's comment names, as far as it does.
pub(super) fn named(entry: &IptablesRule) -> Option<(&str, &str)> {
    let (network, rest) = entry.comment()?.strip_prefix("dnat name: \"")?.split_once("\" id: \"")?;
    Some((network, rest.strip_suffix('"').unwrap_or(rest)))
}

/// Whether an entry to this chain is of that network: the chain's name tells where the comment is cut off.
fn is_of(entry: &IptablesRule, network: &str, of: &str) -> bool {
    named(entry).is_some_and(|(name, container)| name == network || chain(network, container) == of)
}

/// Those of one list that the other does not have, each as often as it has it less often.
fn less(one: &[IptablesRule], other: &[IptablesRule]) -> Vec<IptablesRule> {
    let mut rest = Counted::of(other);
    one.iter().filter(|rule| !rest.take(rule)).cloned().collect()
}

/// How often each rule is there.
struct Counted<'a>(HashMap<&'a IptablesRule, usize>);

impl<'a> Counted<'a> {
    fn of(rules: &'a [IptablesRule]) -> Counted<'a> {
        let mut counted = HashMap::new();
        rules.iter().for_each(|rule| *counted.entry(rule).or_default() += 1);
        Counted(counted)
    }

    /// Takes it away once; whether it was there.
    fn take(&mut self, rule: &IptablesRule) -> bool {
        let left = self.0.get_mut(rule).filter(|count| **count > 0);
        left.is_some_and(|count| {
            *count -= 1;
            true
        })
    }
}

#[cfg(test)]
#[path = "share_tests.rs"]
pub(super) mod tests;
