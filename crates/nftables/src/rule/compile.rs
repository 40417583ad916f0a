//! Compiles rules to expressions, the same ones that nft(8) sends.

use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

use crate::rule::key::{offset, padded_name, port};
use crate::rule::types::{Direction, Field, L4Protocol, Layer, Match, Rule, Side, TableFamily, Verdict};
use crate::wire::expression::{
    self, DESTINATION_TYPE, ETHER_TYPE, Expression, FAMILY, Header, Load, MARK, ORIGINAL_DPORT, PROTOCOL, REGISTER,
    STATE, STATUS,
};
use crate::{Error, Result};

/// The source address in an Ethernet frame.
const SOURCE_MAC: Load = Load::Payload { header: Header::Link, offset: 6, length: 6 };
/// `RTN_LOCAL` of rtnetlink(7).
const LOCAL: u32 = 2;
/// The bits of a connection's state: established and related.
#[doc(alias = "NF_CT_STATE_BIT")]
const ESTABLISHED: u32 = 2 | 4;
/// The bit of a connection's status: its destination was translated.
#[doc(alias = "IPS_DST_NAT")]
const DNAT: u32 = 1 << 5;
/// `EtherType` of ARP.
#[doc(alias = "ETH_P_ARP")]
pub(crate) const ARP: [u8; 2] = [0x08, 0x06];
/// The bytes of a register.
const REGISTER_BYTES: usize = 16;
/// The offsets of the addresses in the headers of IPv4 and IPv6.
const ADDRESS_OFFSETS: [u32; 4] = [8, 12, 16, 24];
/// The second register of 16 bytes.
const SECOND: u32 = REGISTER + 1;
/// The number of the first register of 4 bytes. Four of them share the memory of a register of 16 bytes.
#[doc(alias = "NFT_REG32_00")]
const REGISTER_OF_4_BYTES: u32 = 8;

impl Rule {
    /// Validates the rule for a table of this family.
    ///
    /// # Errors
    /// The rule could never match, or matches a field that packets of that family need not have.
    pub fn validate(&self, family: TableFamily) -> Result<()> {
        compile(self, family).map(drop)
    }
}

/// Compiles a rule for a table of this family.
///
/// # Errors
/// Matches of two families or two protocols in one rule, or of another family than the table's: such a rule could never match.
/// A port of a connection without its protocol. A MAC or a bridge in a table of another family than bridge, where a packet need
/// not have one. A name that no interface can have.
pub(crate) fn compile(rule: &Rule, family: TableFamily) -> Result<Vec<Expression>> {
    let refused = |why: &str| Err(Error::ours("add rule", format!("`{rule}`"), why));
    let mut expressions = Vec::new();
    let mut packet_family = None;
    let mut packet_protocol = None;
    let mut is_arp = false;
    for one in &rule.matches {
        if one.needs_bridge() && family != TableFamily::Bridge {
            return refused("only a table of family bridge sees the MAC and the bridge of every packet");
        }
        if let Some(needed) = one.family() {
            if packet_family.is_some_and(|earlier| earlier != needed) || !possible(family, needed) {
                return refused("it mixes families and would never match");
            }
            if packet_family.replace(needed).is_none() {
                expressions.extend(family_check(family, needed));
            }
        }
        is_arp = is_arp || *one == Match::Arp;
        if is_arp && packet_family.is_some() {
            return refused("it mixes families and would never match");
        }
        if !one.is_readable(is_arp) {
            return refused("what it looks at has a match of its own");
        }
        if let Some(needed) = one.protocol() {
            if packet_protocol.is_some_and(|earlier| earlier != needed) {
                return refused("it mixes protocols and would never match");
            }
            if packet_protocol.replace(needed).is_none() {
                expressions.extend(load(Load::Meta(PROTOCOL), vec![needed.number()], true));
            }
        }
        if matches!(one, Match::OriginalDport(_)) && packet_protocol.is_none() {
            return refused("a port needs a protocol before it");
        }
        expressions.extend(compile_match(one)?);
    }
    if let Verdict::Dnat(to) = &rule.verdict {
        let needed = of_version(to.is_ipv4());
        if packet_family.is_some_and(|earlier| earlier != needed)
            || !possible(family, needed)
            || family == TableFamily::Bridge
        {
            return refused("packets of this rule cannot be sent to an address of that family");
        }
    }
    expressions.extend(verdict(&rule.verdict));
    Ok(expressions)
}

impl Match {
    /// The family of packets that it can match; `None` if it can match both IPv4 and IPv6.
    fn family(&self) -> Option<TableFamily> {
        let address = match self {
            Match::Source(address) => *address,
            Match::SourceIn(network)
            | Match::SourceNotIn(network)
            | Match::DestinationIn(network)
            | Match::DestinationNotIn(network) => network.ip(),
            Match::InSet { fields, .. } => return fields.iter().find_map(|field| field.family()),
            _ => return None,
        };
        Some(of_version(address.is_ipv4()))
    }

    fn protocol(&self) -> Option<L4Protocol> {
        match self {
            Match::Protocol(protocol) | Match::Port { protocol, .. } => Some(*protocol),
            _ => None,
        }
    }

    /// Whether it matches a field that only frames on a bridge have.
    fn needs_bridge(&self) -> bool {
        let is_bridge = |way: Direction| matches!(way, Direction::InBridge | Direction::OutBridge);
        match self {
            Match::SourceMac(_) | Match::Arp => true,
            Match::Interface { way, .. } => is_bridge(*way),
            Match::InSet { fields, .. } => {
                fields.iter().any(|field| matches!(field, Field::Interface(way) if is_bridge(*way)))
            }
            _ => false,
        }
    }
}

impl Match {
    /// Whether its expressions are decompiled to the same match, and not to another one.
    fn is_readable(&self, is_arp: bool) -> bool {
        match self {
            Match::Transport { is, number } => !is || L4Protocol::numbered(*number).is_none(),
            Match::Bytes { layer: Layer::Network, offset, bytes } => {
                (1..=REGISTER_BYTES).contains(&bytes.len()) && (is_arp || !ADDRESS_OFFSETS.contains(offset))
            }
            Match::Bytes { layer: Layer::Transport, offset, bytes } => {
                let is_port = bytes.len() == 2 && (*offset == 0 || *offset == 2);
                (1..=REGISTER_BYTES).contains(&bytes.len()) && !is_port
            }
            _ => true,
        }
    }
}

fn of_version(ipv4: bool) -> TableFamily {
    if ipv4 { TableFamily::Ip } else { TableFamily::Ip6 }
}

/// Whether a table of one family sees packets of another.
fn possible(table: TableFamily, packet: TableFamily) -> bool {
    table == packet || matches!(table, TableFamily::Inet | TableFamily::Bridge)
}

/// The check of a packet's family, which a table of several families needs before a match of an address.
fn family_check(table: TableFamily, packet: TableFamily) -> Vec<Expression> {
    match table {
        TableFamily::Inet => load(Load::Meta(FAMILY), vec![packet.number()], true),
        TableFamily::Bridge => load(Load::Meta(ETHER_TYPE), ether_type(packet).to_vec(), true),
        TableFamily::Ip | TableFamily::Ip6 => Vec::new(),
    }
}

fn ether_type(packet: TableFamily) -> [u8; 2] {
    if packet == TableFamily::Ip { [0x08, 0x00] } else { [0x86, 0xdd] }
}

/// Compiles a match, without the checks of family and protocol before it.
pub(crate) fn compile_match(one: &Match) -> Result<Vec<Expression>> {
    Ok(match one {
        Match::Interface { way, is, name } => load(Field::from(*way).load(), padded_name(name)?.to_vec(), *is),
        Match::SourceMac(mac) => load(SOURCE_MAC, mac.0.to_vec(), true),
        Match::Source(address) => address_in(Side::Source, IpNetwork::from(*address), true),
        Match::SourceIn(network) => address_in(Side::Source, *network, true),
        Match::SourceNotIn(network) => address_in(Side::Source, *network, false),
        Match::DestinationIn(network) => address_in(Side::Destination, *network, true),
        Match::DestinationNotIn(network) => address_in(Side::Destination, *network, false),
        Match::Protocol(_) => Vec::new(),
        Match::Transport { is, number } => load(Load::Meta(PROTOCOL), vec![*number], *is),
        Match::Arp => load(Load::Meta(ETHER_TYPE), ARP.to_vec(), true),
        Match::Bytes { layer, offset, bytes } => {
            let header = if *layer == Layer::Network { Header::Network } else { Header::Transport };
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            load(Load::Payload { header, offset: *offset, length }, bytes.clone(), true)
        }
        Match::Port { side, is, port: number, .. } => load(port(*side), number.to_be_bytes().to_vec(), *is),
        Match::LocalDestination => load(DESTINATION_TYPE, LOCAL.to_ne_bytes().to_vec(), true),
        Match::Established => masked(Load::Ct(STATE), ESTABLISHED, 0, false),
        Match::CtStatusDnat => masked(Load::Ct(STATUS), DNAT, 0, false),
        Match::OriginalDport(port) => load(Load::CtOriginal(ORIGINAL_DPORT), port.to_be_bytes().to_vec(), true),
        Match::Mark { mask: u32::MAX, is, value } => load(Load::Meta(MARK), value.to_ne_bytes().to_vec(), *is),
        Match::Mark { mask, is, value } => masked(Load::Meta(MARK), *mask, *value, *is),
        Match::InSet { fields, is, set } => {
            let mut expressions = load_fields(fields);
            expressions.push(Expression::Lookup { set: set.clone(), inside: *is });
            expressions
        }
    })
}

/// Loads bytes and compares them.
fn load(source: Load, bytes: Vec<u8>, is: bool) -> Vec<Expression> {
    vec![Expression::Load(source, REGISTER), compare(bytes, is)]
}

fn compare(bytes: Vec<u8>, is: bool) -> Expression {
    if is { Expression::Equal(bytes) } else { Expression::NotEqual(bytes) }
}

/// Loads a number and compares some of its bits.
fn masked(source: Load, mask: u32, value: u32, is: bool) -> Vec<Expression> {
    let bitwise = Expression::Bitwise(mask.to_ne_bytes().to_vec());
    vec![Expression::Load(source, REGISTER), bitwise, compare(value.to_ne_bytes().to_vec(), is)]
}

/// Loads the fields of a concatenation, each into the first registers of 4 bytes that are still free.
pub(crate) fn load_fields(fields: &[Field]) -> Vec<Expression> {
    let mut slot = 0;
    let mut expressions = Vec::new();
    for field in fields {
        let register = if slot % 4 == 0 { REGISTER + slot / 4 } else { REGISTER_OF_4_BYTES + slot };
        slot += if field.key_type().length() > 4 { 4 } else { 1 };
        expressions.push(Expression::Load(field.load(), register));
    }
    expressions
}

/// Loads an address and compares it with a network: the whole bytes of the prefix, or the whole address under a mask.
fn address_in(side: Side, network: IpNetwork, is: bool) -> Vec<Expression> {
    let address = octets(network.network());
    let header = Header::Network;
    let offset = offset(network.is_ipv4(), side);
    let prefix_bytes = network.prefix() / 8;
    if network.prefix().is_multiple_of(8) && prefix_bytes > 0 {
        let source = Load::Payload { header, offset, length: u32::from(prefix_bytes) };
        return load(source, address[..usize::from(prefix_bytes)].to_vec(), is);
    }
    let source = Load::Payload { header, offset, length: if network.is_ipv4() { 4 } else { 16 } };
    let mask = Expression::Bitwise(octets(network.mask()));
    vec![Expression::Load(source, REGISTER), mask, compare(address, is)]
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn verdict(verdict: &Verdict) -> Vec<Expression> {
    let (code, chain) = match verdict {
        Verdict::Masquerade => return vec![Expression::Masquerade],
        Verdict::Dnat(to) => return dnat(to),
        Verdict::Return => (expression::RETURN, None),
        Verdict::Jump(chain) => (expression::JUMP, Some(chain.clone())),
        Verdict::Goto(chain) => (expression::GOTO, Some(chain.clone())),
        Verdict::Accept => (expression::ACCEPT, None),
        Verdict::Drop => (expression::DROP, None),
    };
    vec![Expression::Verdict { code, chain }]
}

fn dnat(to: &SocketAddr) -> Vec<Expression> {
    vec![
        Expression::Immediate(REGISTER, octets(to.ip())),
        Expression::Immediate(SECOND, to.port().to_be_bytes().to_vec()),
        Expression::Dnat(of_version(to.is_ipv4()).number().into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit_netlink::Mac;

    fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
        Rule { matches, verdict, comment: None }
    }

    #[test]
    fn a_mac_outside_of_bridges_and_a_name_too_long_are_refused() {
        let mac = rule(vec![Match::SourceMac(Mac([2; 6]))], Verdict::Drop);
        assert!(compile(&mac, TableFamily::Bridge).is_ok());
        assert!(compile(&mac, TableFamily::Inet).unwrap_err().to_string().contains("only a table of family bridge"));
        for name in ["", "vethsixteen01234"] {
            let from = rule(vec![Match::from(name)], Verdict::Drop);
            assert!(compile(&from, TableFamily::Bridge).unwrap_err().to_string().contains("no interface"));
        }
    }

    #[test]
    fn a_family_that_the_table_never_sees_is_refused() {
        let source = rule(vec![Match::Source("fd00::2".parse().unwrap())], Verdict::Accept);
        assert!(compile(&source, TableFamily::Ip).is_err());
        assert!(compile(&source, TableFamily::Ip6).is_ok());
    }

    #[test]
    fn protocols_and_destinations_that_never_meet_are_refused() {
        let tcp = Match::to_port(L4Protocol::Tcp, 80);
        let udp = Match::to_port(L4Protocol::Udp, 80);
        let both = rule(vec![tcp.clone(), udp], Verdict::Drop);
        assert!(compile(&both, TableFamily::Inet).unwrap_err().to_string().contains("mixes protocols"));
        let asked = rule(vec![Match::OriginalDport(80), Match::Protocol(L4Protocol::Tcp)], Verdict::Drop);
        assert!(compile(&asked, TableFamily::Inet).unwrap_err().to_string().contains("a port needs a protocol"));
        let to = |address: &str| Verdict::Dnat(address.parse().unwrap());
        let from = Match::Source("10.0.0.2".parse().unwrap());
        for (family, matches, verdict) in [
            (TableFamily::Ip, vec![tcp.clone()], to("[fd00::2]:80")),
            (TableFamily::Ip6, vec![tcp.clone()], to("10.0.0.2:80")),
            (TableFamily::Inet, vec![from, tcp.clone()], to("[fd00::2]:80")),
            (TableFamily::Bridge, vec![tcp], to("10.0.0.2:80")),
        ] {
            assert!(compile(&rule(matches, verdict), family).unwrap_err().to_string().contains("of that family"));
        }
    }
}
