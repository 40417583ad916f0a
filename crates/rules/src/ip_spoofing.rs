//! IP spoof check: drop packets that a container sends from another IP address than its own, or that announce another one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use cnikit_netlink::LinkChange;
use cnikit_netns::{Inside, sysctl};
use cnikit_nftables::{Direction, HookPoint, L4Protocol, Layer, Mac, Match, Rule, Side, TableFamily, Verdict};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_resources::veth;
use cnikit_skel::{Errors, Journal, Result};

use crate::port_rules::{Content, GuardedPort, PortRules};

/// Restricts the packets of a container to its own addresses, and then sets the host end up. The veth pair is made with the host
/// end down, so that the container cannot send before.
///
/// On a bridge: the source of IPv4 and IPv6 packets, the sender of ARP packets, the target and the link-layer option of
/// neighbour discovery. Router advertisements, redirects, what multicast routers send and answers of DHCP servers are dropped,
/// and so is everything that is none of IPv4, IPv6 and ARP. The port gets no redirects either. On a routed pair: the source
/// of packets.
///
/// Besides its addresses, the container may use the link-local address that is made from the MAC (EUI-64), duplicate address
/// detection and ARP probes for one's own addresses, and DHCP requests from 0.0.0.0.
#[derive(Clone, Debug)]
#[doc(alias = "ipspoofchk")]
pub struct IpSpoofCheck {
    /// The container's interface.
    pub ifname: String,
    /// Its MAC; absent: the MAC that is derived from the tag, as for the veth pair.
    pub mac: Option<Mac>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether the host end is a port of a bridge; otherwise packets are routed to it.
    pub is_port: bool,
}

/// DEL and GC find rules by their owner, of a bridge's port and of a routed pair.
pub const KIND: Kind = Kind { name: "IP spoof check", release, sweep, outlives_link: true };

const TABLE: &str = "cni_ipspoofchk";
const COMMENT: &str = "What containers may send under which address";

/// The rules of a bridge's port. Their priority is after that of macspoofchk, -300.
const PORT: PortRules = PortRules {
    what: "IP spoof check",
    key: "ipspoofchk",
    family: TableFamily::Bridge,
    table: TABLE,
    table_comment: Some(COMMENT),
    base: &[("prerouting", HookPoint::Prerouting, -299), ("postrouting", HookPoint::Postrouting, 0)],
    names: &[
        ("ipspoofchk-", ""),
        ("ipspoofchk-", "-dad"),
        ("ipspoofchk-", "-nd"),
        ("ipspoofchk-", "-ext"),
        ("ipspoofchk-", "-ext2"),
    ],
    hashed: true,
    lacking: "ipspoofchk needs nf_tables for bridges: load nf_tables and nft_meta_bridge (CONFIG_NF_TABLES_BRIDGE, \
              CONFIG_NFT_BRIDGE_META), or remove the key",
};

/// The rules of a routed pair. Their priority is before connection tracking.
const ROUTED: PortRules = PortRules {
    what: "IP spoof check",
    key: "ipspoofchk",
    family: TableFamily::Inet,
    table: TABLE,
    table_comment: Some(COMMENT),
    base: &[("prerouting", HookPoint::Prerouting, -300)],
    names: &[("ipspoofchk-", "")],
    hashed: true,
    lacking: "ipspoofchk needs nf_tables: load it (CONFIG_NF_TABLES_INET), or remove the key",
};

/// Numbers of transport protocols.
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const PIM: u8 = 103;
const ICMPV6: u8 = 58;
/// A reserved number: every packet whose transport protocol the kernel finds has another one.
const RESERVED: u8 = 255;

/// Those of extension headers of IPv6: hop-by-hop, routing, fragment, authentication, destination, mobility, HIP and shim6.
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];

/// Types of ICMP and `ICMPv6` messages.
const REDIRECT_V4: u8 = 5;
const ROUTER_SOLICIT: u8 = 133;
const ROUTER_ADVERT: u8 = 134;
const NEIGHBOUR_SOLICIT: u8 = 135;
const NEIGHBOUR_ADVERT: u8 = 136;
const REDIRECT: u8 = 137;
/// By messages like these a bridge learns behind which port there is a multicast router, which then gets the traffic of all
/// groups: queries for memberships, and advertisements of multicast routers (RFC 4286), of IGMP and of `ICMPv6`.
const MEMBERSHIP_QUERY_V4: u8 = 0x11;
const MULTICAST_ROUTER_V4: u8 = 0x30;
const MEMBERSHIP_QUERY: u8 = 130;
const MULTICAST_ROUTER: u8 = 151;
/// Reports of memberships in groups: of `MLDv1`, that one ends, and of `MLDv2`.
const MEMBERSHIP: [u8; 3] = [131, 132, 143];

/// The beginnings of options of neighbour discovery: type, and length in units of 8 bytes.
const SOURCE_MAC: [u8; 2] = [1, 1];
const TARGET_MAC: [u8; 2] = [2, 1];
const NONCE: [u8; 2] = [14, 1];

impl IpSpoofCheck {
    fn rules(&self) -> &'static PortRules {
        if self.is_port { &PORT } else { &ROUTED }
    }

    fn content(&self, chains: &[String], port: &str, mac: Mac) -> Content {
        match chains {
            [main, detection, neighbours, extended, twice] => {
                let chains = [main, detection, neighbours, extended, twice].map(String::as_str);
                of_port(&self.addresses, mac, port, chains)
            }
            [main] => of_routed(&self.addresses, mac, port, main),
            _ => Content { base: Vec::new(), own: Vec::new() },
        }
    }

    fn put(&self, context: &ApplyContext, port: &str, mac: Mac, journal: &mut Journal) -> Result<()> {
        self.rules().put(&context.tag, &|chains| self.content(chains, port, mac), journal)
    }

    /// Makes the container ignore ICMP redirects. A kernel without IPv4 or IPv6 has no such setting, and then there are no
    /// redirects.
    fn refuse_redirects(&self, inside: &Inside) {
        for family in ["ipv4", "ipv6"] {
            let _ = sysctl::set(inside, &format!("net/{family}/conf/{}/accept_redirects", self.ifname), "0");
        }
    }
}

impl Resource for IpSpoofCheck {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        available(self.is_port)
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let port = veth::own_host_end(host, &context.tag)?;
        self.put(context, &port.name, veth::mac(&context.tag, self.mac), journal)?;
        context.netns.enter(|inside| self.refuse_redirects(inside))?;
        host.change(port.index, &LinkChange::default().up(true))?;
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        let Some(guarded) = GuardedPort::find(context, self.mac)? else { return Ok(()) };
        let put = |journal: &mut Journal| self.put(context, &guarded.port.name, guarded.mac, journal);
        guarded.refuse_unknown_mac(context, put)?;
        put(journal)
    }

    /// With the addresses and the MAC that the result of the whole chain records: where a later plugin has changed them, the
    /// rules of ADD are reported, and RESTORE makes those of the result.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(GuardedPort { port, mac, .. }) = GuardedPort::find(context, self.mac)? else { return Ok(()) };
        self.rules().verify(&context.tag, &|chains| self.content(chains, &port.name, mac), drifts)
    }
}

impl fmt::Display for IpSpoofCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        write!(
            f,
            "drop packets from the container with another source address than {} (nftables)",
            addresses.join(", ")
        )
    }
}

/// Checks for STATUS that the kernel supports these rules, for the port of a bridge or for a routed pair.
///
/// # Errors
/// The kernel lacks `nf_tables`, or `nf_tables` for bridges.
pub fn available(is_port: bool) -> Result<()> {
    let check = IpSpoofCheck { ifname: String::new(), mac: None, addresses: Vec::new(), is_port };
    check.rules().available(&|chains| check.content(chains, "lo", Mac([2, 0, 0, 0, 0, 0])))
}

fn release(context: &ReleaseContext) -> Result<()> {
    [PORT.release(context), ROUTED.release(context)].into_iter().collect::<Errors>().finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    [PORT.sweep(context), ROUTED.sweep(context)].into_iter().collect::<Errors>().finish()
}

fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { matches, verdict, comment: None }
}

fn network(offset: u32, bytes: impl Into<Vec<u8>>) -> Match {
    Match::Bytes { layer: Layer::Network, offset, bytes: bytes.into() }
}

fn transport(offset: u32, bytes: impl Into<Vec<u8>>) -> Match {
    Match::Bytes { layer: Layer::Transport, offset, bytes: bytes.into() }
}

fn of_type(kind: u8) -> Match {
    transport(0, [kind])
}

fn is_protocol(number: u8) -> Match {
    Match::Transport { is: true, number }
}

fn udp_port(side: Side, port: u16) -> Match {
    Match::Port { protocol: L4Protocol::Udp, side, is: true, port }
}

fn to_port(port: &str) -> Match {
    Match::Interface { way: Direction::Out, is: true, name: port.to_owned() }
}

/// The link-local address that the kernel makes from a MAC (RFC 4291, appendix A).
fn link_local(Mac(mac): Mac) -> IpAddr {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&[0xfe, 0x80]);
    bytes[8..11].copy_from_slice(&mac[..3]);
    bytes[8] ^= 2;
    bytes[11..13].copy_from_slice(&[0xff, 0xfe]);
    bytes[13..].copy_from_slice(&mac[3..]);
    Ipv6Addr::from(bytes).into()
}

/// The addresses of each family that the container may use.
fn by_family(addresses: &[IpAddr], mac: Mac) -> (Vec<IpAddr>, Vec<Ipv6Addr>) {
    let ipv4 = addresses.iter().copied().filter(IpAddr::is_ipv4).collect();
    let mut ipv6 = Vec::new();
    for address in addresses.iter().copied().chain([link_local(mac)]) {
        if let IpAddr::V6(address) = address
            && !ipv6.contains(&address)
        {
            ipv6.push(address);
        }
    }
    (ipv4, ipv6)
}

/// The rules of a bridge's port. The kernel removes the outermost VLAN tag before it runs them, so they apply to tagged frames too.
/// A frame with a second tag is neither IPv4 nor IPv6 nor ARP.
fn of_port(addresses: &[IpAddr], mac: Mac, port: &str, chains: [&str; 5]) -> Content {
    let [main, detection, neighbours, extended, twice] = chains;
    let (ipv4, ipv6) = by_family(addresses, mac);
    let no_address = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let mut rules = vec![
        // To DHCP clients, which accept replies from any port.
        rule(vec![udp_port(Side::Destination, 68)], Verdict::Drop),
        rule(vec![udp_port(Side::Destination, 546)], Verdict::Drop),
        rule(vec![is_protocol(IGMP), of_type(MEMBERSHIP_QUERY_V4)], Verdict::Drop),
        rule(vec![is_protocol(IGMP), of_type(MULTICAST_ROUTER_V4)], Verdict::Drop),
        rule(vec![is_protocol(PIM)], Verdict::Drop),
        rule(vec![Match::Source(no_address), is_protocol(ICMPV6)], Verdict::Goto(detection.to_owned())),
        rule(vec![is_protocol(ICMPV6)], Verdict::Jump(neighbours.to_owned())),
    ];
    rules.extend(ipv4.iter().map(|address| rule(vec![Match::Source(*address)], Verdict::Accept)));
    for address in &ipv6 {
        // Except packets whose transport protocol is in another fragment.
        let is_complete = Match::Transport { is: false, number: RESERVED };
        let source = Match::Source((*address).into());
        rules.push(rule(vec![source, is_complete], Verdict::Goto(extended.to_owned())));
    }
    rules.extend(ipv4.iter().flat_map(|address| of_arp(*address, mac)));
    let ports = [(Side::Source, 68), (Side::Destination, 67)].map(|(side, port)| udp_port(side, port));
    let dhcp = [vec![Match::Source([0, 0, 0, 0].into())], ports.to_vec()].concat();
    rules.push(rule(dhcp, Verdict::Accept));
    rules.push(rule(Vec::new(), Verdict::Drop));
    let redirects = [(ICMP, REDIRECT_V4), (ICMPV6, REDIRECT)]
        .map(|(protocol, kind)| rule(vec![to_port(port), is_protocol(protocol), of_type(kind)], Verdict::Drop));
    Content {
        base: vec![vec![rule(vec![Match::from(port)], Verdict::Jump(main.to_owned()))], redirects.to_vec()],
        own: vec![rules, of_detection(&ipv6), of_neighbours(&ipv6, mac), of_extended(twice), of_extended_twice()],
    }
}

/// An IPv6 packet whose source is right may have one extension header. With two, the first fragment could end before the
/// header of the message (RFC 7113), and nothing could be known of that.
fn of_extended(twice: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> =
        EXTENSIONS.map(|header| rule(vec![network(6, [header])], Verdict::Jump(twice.to_owned()))).to_vec();
    rules.push(rule(Vec::new(), Verdict::Accept));
    rules
}

/// The byte behind the IPv6 header says what follows the first extension header.
fn of_extended_twice() -> Vec<Rule> {
    EXTENSIONS.map(|header| rule(vec![network(40, [header])], Verdict::Drop)).to_vec()
}

/// ARP for Ethernet and IPv4 (RFC 826) whose sender is the container, and probes for its address (RFC 5227).
fn of_arp(address: IpAddr, Mac(mac): Mac) -> [Rule; 2] {
    let IpAddr::V4(address) = address else { return [(); 2].map(|()| rule(vec![Match::Arp], Verdict::Drop)) };
    let sender = |ip: [u8; 4]| network(8, [&mac[..], &ip].concat());
    let form = [0, 1, 8, 0, 6, 4];
    let request = [0, 1, 8, 0, 6, 4, 0, 1];
    let probe = vec![Match::Arp, network(0, request), sender([0; 4]), network(24, address.octets())];
    [rule(vec![Match::Arp, network(0, form), sender(address.octets())], Verdict::Accept), rule(probe, Verdict::Accept)]
}

/// An IPv6 header whose payload is this long and an `ICMPv6` message, right behind it, that no router has passed on.
fn message_of(length: u8) -> Match {
    network(4, [0, length, ICMPV6, 255])
}

/// From the unspecified address: duplicate address detection (with a nonce: RFC 7527) for its own addresses, router
/// solicitations, and reports of memberships.
fn of_detection(ipv6: &[Ipv6Addr]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for address in ipv6 {
        let target = || vec![of_type(NEIGHBOUR_SOLICIT), transport(8, address.octets())];
        rules.push(rule([vec![message_of(24)], target()].concat(), Verdict::Accept));
        rules.push(rule([vec![message_of(32)], target(), vec![transport(24, NONCE)]].concat(), Verdict::Accept));
    }
    rules.push(rule(vec![message_of(8), of_type(ROUTER_SOLICIT)], Verdict::Accept));
    rules.extend(MEMBERSHIP.map(|kind| rule(vec![of_type(kind)], Verdict::Accept)));
    rules.push(rule(Vec::new(), Verdict::Drop));
    rules
}

/// Checks neighbour discovery. After a return from this chain the source is still checked. Messages may have at most one option,
/// the MAC, as the kernel sends them: options of any number in any order could not be checked.
fn of_neighbours(ipv6: &[Ipv6Addr], Mac(mac): Mac) -> Vec<Rule> {
    let option = |kind: [u8; 2]| [&kind[..], &mac].concat();
    let mut rules = Vec::new();
    let mut pass = |matches: Vec<Match>| rules.push(rule(matches, Verdict::Return));
    pass(vec![message_of(24), of_type(NEIGHBOUR_SOLICIT)]);
    pass(vec![message_of(32), of_type(NEIGHBOUR_SOLICIT), transport(24, option(SOURCE_MAC))]);
    for address in ipv6 {
        let target = || transport(8, address.octets());
        pass(vec![message_of(24), of_type(NEIGHBOUR_ADVERT), target()]);
        pass(vec![message_of(32), of_type(NEIGHBOUR_ADVERT), target(), transport(24, option(TARGET_MAC))]);
    }
    pass(vec![message_of(8), of_type(ROUTER_SOLICIT)]);
    pass(vec![message_of(16), of_type(ROUTER_SOLICIT), transport(8, option(SOURCE_MAC))]);
    let of_routers = [ROUTER_ADVERT, REDIRECT, MEMBERSHIP_QUERY, MULTICAST_ROUTER];
    for kind in [NEIGHBOUR_SOLICIT, NEIGHBOUR_ADVERT, ROUTER_SOLICIT].into_iter().chain(of_routers) {
        rules.push(rule(vec![of_type(kind)], Verdict::Drop));
    }
    rules
}

/// The rules of a routed pair. ARP and neighbour discovery are not restricted: only the host receives these packets.
fn of_routed(addresses: &[IpAddr], mac: Mac, port: &str, main: &str) -> Content {
    let (ipv4, ipv6) = by_family(addresses, mac);
    let mut rules: Vec<Rule> = [(ICMP, REDIRECT_V4), (ICMPV6, ROUTER_ADVERT), (ICMPV6, REDIRECT)]
        .map(|(protocol, kind)| rule(vec![is_protocol(protocol), of_type(kind)], Verdict::Drop))
        .to_vec();
    let sources = ipv4.into_iter().chain(ipv6.into_iter().map(IpAddr::from));
    rules.extend(sources.map(|address| rule(vec![Match::Source(address)], Verdict::Accept)));
    // Duplicate address detection.
    let no_address = Match::Source(Ipv6Addr::UNSPECIFIED.into());
    rules.push(rule(vec![no_address, is_protocol(ICMPV6)], Verdict::Accept));
    rules.push(rule(Vec::new(), Verdict::Drop));
    Content { base: vec![vec![rule(vec![Match::from(port)], Verdict::Jump(main.to_owned()))]], own: vec![rules] }
}

#[cfg(test)]
mod tests {
    use cnikit_resources::alias::hex;

    use super::*;

    const OURS: Mac = Mac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);

    #[test]
    fn the_link_local_address_is_the_kernels() {
        assert_eq!(link_local(OURS), "fe80::11:22ff:fe33:4455".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn every_rule_can_be_compiled_and_every_chain_ends() {
        let addresses = ["10.0.0.2", "fd00::2"].map(|one| one.parse().unwrap());
        let port = of_port(&addresses, OURS, "veth0", ["main", "dad", "nd", "ext", "ext2"]);
        let routed = of_routed(&addresses, OURS, "veth0", "main");
        for (content, family, chains) in [(port, TableFamily::Bridge, 5), (routed, TableFamily::Inet, 1)] {
            assert_eq!(content.own.len(), chains);
            for rule in content.base.iter().chain(&content.own).flatten() {
                rule.validate(family).unwrap();
            }
            assert_eq!(content.own[0].last().map(|rule| &rule.verdict), Some(&Verdict::Drop));
        }
    }

    const LINK_LOCAL: &str = "fe80::11:22ff:fe33:4455";

    fn check(is_port: bool) -> IpSpoofCheck {
        let addresses = ["10.0.0.2", "fd00::2"].map(|one| one.parse().unwrap()).to_vec();
        IpSpoofCheck { ifname: "eth0".into(), mac: Some(OURS), addresses, is_port }
    }

    /// The rules of each base chain and of each chain of the attachment, as nft prints them.
    fn shown(check: &IpSpoofCheck) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
        let names = ["main", "dad", "nd", "ext", "ext2"].map(str::to_owned);
        let content = check.content(&names[..check.rules().names.len()], "veth0", OURS);
        let shown = |chains: Vec<Vec<Rule>>| -> Vec<Vec<String>> {
            chains.iter().map(|rules| rules.iter().map(Rule::to_string).collect()).collect()
        };
        (shown(content.base), shown(content.own))
    }

    /// An address in the digits of `nft`.
    fn digits(address: &str) -> String {
        hex(&address.parse::<Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn a_port_passes_what_is_from_its_addresses_and_nothing_that_is_for_servers_and_routers() {
        let (base, own) = shown(&check(true));
        assert_eq!(base[0], ["iifname \"veth0\" jump main"]);
        let redirects = ["1 @th,0,8 0x05", "58 @th,0,8 0x89"];
        assert_eq!(base[1], redirects.map(|one| format!("oifname \"veth0\" meta l4proto {one} drop")));
        let main = [
            "udp dport 68 drop",
            "udp dport 546 drop",
            "meta l4proto 2 @th,0,8 0x11 drop",
            "meta l4proto 2 @th,0,8 0x30 drop",
            "meta l4proto 103 drop",
            "ip6 saddr :: meta l4proto 58 goto dad",
            "meta l4proto 58 jump nd",
            "ip saddr 10.0.0.2 accept",
            "ip6 saddr fd00::2 meta l4proto != 255 goto ext",
            &format!("ip6 saddr {LINK_LOCAL} meta l4proto != 255 goto ext"),
            // The hardware type, the protocol and both lengths; the sender's MAC and address; the target's address.
            "meta protocol arp @nh,0,48 0x000108000604 @nh,64,80 0x0211223344550a000002 accept",
            "meta protocol arp @nh,0,64 0x0001080006040001 @nh,64,80 0x02112233445500000000 @nh,192,32 0x0a000002 accept",
            "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
            "drop",
        ];
        assert_eq!(own[0], main);
        let headers = ["00", "2b", "2c", "33", "3c", "87", "8b", "8c"];
        let once: Vec<String> = headers.iter().map(|one| format!("@nh,48,8 0x{one} jump ext2")).collect();
        assert_eq!(own[3], [&once[..], &["accept".to_owned()]].concat());
        assert_eq!(own[4], headers.map(|one| format!("@nh,320,8 0x{one} drop")));
    }

    /// The length of the payload, the next header and the hop limit are at byte 4 of the IPv6 header (RFC 8200, section 3); the
    /// type is the first byte of a message, a target is at byte 8, and its options follow (RFC 4861, section 4).
    #[test]
    fn neighbour_discovery_is_of_its_own_addresses_with_its_own_mac() {
        let (_, own) = shown(&check(true));
        let of = |length: &str, kind: &str| format!("@nh,32,32 0x00{length}3aff @th,0,8 0x{kind}");
        let addresses = ["fd00::2", LINK_LOCAL].map(digits);
        let mut detection = Vec::new();
        for address in &addresses {
            detection.push(format!("{} @th,64,128 0x{address} accept", of("18", "87")));
            detection.push(format!("{} @th,64,128 0x{address} @th,192,16 0x0e01 accept", of("20", "87")));
        }
        detection.push(format!("{} accept", of("08", "85")));
        detection.extend(["83", "84", "8f"].map(|kind| format!("@th,0,8 0x{kind} accept")));
        detection.push("drop".into());
        assert_eq!(own[1], detection);
        let mut neighbours = vec![
            format!("{} return", of("18", "87")),
            format!("{} @th,192,64 0x0101021122334455 return", of("20", "87")),
        ];
        for address in &addresses {
            neighbours.push(format!("{} @th,64,128 0x{address} return", of("18", "88")));
            neighbours.push(format!("{} @th,64,128 0x{address} @th,192,64 0x0201021122334455 return", of("20", "88")));
        }
        neighbours.push(format!("{} return", of("08", "85")));
        neighbours.push(format!("{} @th,64,64 0x0101021122334455 return", of("10", "85")));
        neighbours.extend(["87", "88", "85", "86", "89", "82", "97"].map(|kind| format!("@th,0,8 0x{kind} drop")));
        assert_eq!(own[2], neighbours);
    }

    #[test]
    fn a_routed_container_sends_from_its_addresses_and_is_no_router() {
        let (base, own) = shown(&check(false));
        assert_eq!(base, [["iifname \"veth0\" jump main"]]);
        let main = [
            "meta l4proto 1 @th,0,8 0x05 drop",
            "meta l4proto 58 @th,0,8 0x86 drop",
            "meta l4proto 58 @th,0,8 0x89 drop",
            "ip saddr 10.0.0.2 accept",
            "ip6 saddr fd00::2 accept",
            &format!("ip6 saddr {LINK_LOCAL} accept"),
            "ip6 saddr :: meta l4proto 58 accept",
            "drop",
        ];
        assert_eq!(own, [main]);
    }

    /// On a bridge -300 is the priority of macspoofchk; elsewhere -200 is that of connection tracking.
    #[test]
    fn the_rules_come_behind_macspoofchk_and_before_connection_tracking() {
        let priorities = |rules: PortRules| rules.base.iter().map(|(_, _, priority)| *priority).collect::<Vec<_>>();
        assert_eq!((priorities(PORT), priorities(ROUTED)), (vec![-299, 0], vec![-300]));
    }

    #[test]
    fn each_address_has_its_rules_once_and_an_address_of_ipv6_none_of_arp() {
        let mut check = check(true);
        check.addresses.push(LINK_LOCAL.parse().unwrap());
        assert_eq!(shown(&check), shown(&super::tests::check(true)));
        assert_eq!(by_family(&check.addresses, OURS).0, [IpAddr::from([10, 0, 0, 2]); 1]);
        let arp = of_arp(LINK_LOCAL.parse().unwrap(), OURS);
        assert_eq!(arp.map(|rule| rule.to_string()), ["meta protocol arp drop"; 2]);
        assert!(
            check
                .to_string()
                .starts_with("drop packets from the container with another source address than 10.0.0.2, ")
        );
        let none = check.content(&[], "veth0", OURS);
        assert!(none.base.is_empty() && none.own.is_empty());
    }
}
