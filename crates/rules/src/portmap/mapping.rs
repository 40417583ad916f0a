//! The port mappings of one attachment as values.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cnikit_conntrack::Flows;
use cnikit_iptables::IpVersion;
use cnikit_nftables::L4Protocol;
use ipnetwork::IpNetwork;

use crate::addresses::is_of_version;
use crate::backend::Backend;

/// The port mappings of one attachment, and how they are published.
#[derive(Clone, Debug)]
#[doc(alias = "portMappings")]
pub struct PortMap {
    /// In the order of the configuration.
    pub mappings: Vec<Mapping>,
    /// The container's addresses with their prefixes. Connections lead to the first address of each family.
    pub addresses: Vec<IpNetwork>,
    /// Which connections are masqueraded.
    pub masquerades: Masquerades,
    /// How iptables marks packets to be masqueraded.
    pub mark: Mark,
    /// Further matches of this container's rules, in the words of the backend, for IPv4.
    pub conditions_v4: Vec<String>,
    /// The same for IPv6.
    pub conditions_v6: Vec<String>,
    /// What the rules are written with.
    pub backend: Backend,
    /// What happens if a host port leads to another container already.
    pub on_conflict: OnPortConflict,
}

/// One host port and the container's port that it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The port of the host, not 0.
    pub host_port: u16,
    /// The container's port, not 0.
    pub container_port: u16,
    /// The protocol that both are of.
    pub protocol: L4Protocol,
    /// The address of the host; absent: every address of the host.
    #[doc(alias = "hostIP")]
    pub host_address: Option<IpAddr>,
}

/// Which connections to a published port are masqueraded, so that the replies are routed by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "snat")]
#[doc(alias = "masqAll")]
pub enum Masquerades {
    /// None. Then the port cannot be reached from the host's loopback.
    Nothing,
    /// Those of the container itself and its neighbours, and those from the host's loopback.
    Hairpin,
    /// All.
    All,
}

/// How iptables marks packets to be masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// This bit of the packet's mark, 0 to 31.
    #[doc(alias = "markMasqBit")]
    Bit(u8),
    /// A chain of another program, which sets a mark and masquerades packets with the mark.
    #[doc(alias = "externalSetMarkChain")]
    Chain(String),
}

/// What happens if a host port leads to another container already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnPortConflict {
    /// The ADD fails, and its error names the other container.
    #[default]
    Refuse,
    /// The port goes on leading to the other container.
    KeepFirst,
}

impl Mapping {
    /// Whether the mapping applies to this address of the host.
    pub fn is_for(&self, host: IpAddr) -> bool {
        let every = |own: IpAddr| own.is_unspecified() && own.is_ipv4() == host.is_ipv4();
        self.host_address.is_none_or(|own| own == host || every(own))
    }

    /// Whether both mappings apply to some connection.
    pub fn overlaps(&self, other: &Mapping) -> bool {
        let covers = |one: &Mapping, other: &Mapping| other.host_address.is_none_or(|host| one.is_for(host));
        self.port() == other.port() && (covers(self, other) || covers(other, self))
    }

    /// The protocol and the host port.
    pub(super) fn port(&self) -> (L4Protocol, u16) {
        (self.protocol, self.host_port)
    }

    /// The container's address and port, if the container has this address; `None` if the host address is of another family.
    pub fn dnat_target(&self, address: IpAddr) -> Option<SocketAddr> {
        if self.host_address.is_some_and(|host| host.is_ipv4() != address.is_ipv4()) {
            return None;
        }
        Some(SocketAddr::new(address, self.container_port))
    }

    /// The one host address that the mapping applies to; `None` if it applies to every address.
    pub(super) fn single_host_address(&self) -> Option<IpAddr> {
        match self.host_address {
            Some(address) if !address.is_unspecified() => Some(address),
            _ => None,
        }
    }

    /// The flows that the kernel tracks of this mapping, if it leads to `target`.
    pub(super) fn flows_to(&self, target: SocketAddr) -> Flows {
        let address = self.single_host_address();
        Flows { protocol: self.protocol.number(), port: self.host_port, address, target }
    }
}

/// The text in messages: `tcp 192.0.2.1:8080 to 80`.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mapping { host_port, container_port, protocol, host_address } = self;
        match host_address {
            Some(address) => write!(f, "{protocol} {} to {container_port}", SocketAddr::new(*address, *host_port)),
            None => write!(f, "{protocol} {host_port} to {container_port}"),
        }
    }
}

impl PortMap {
    /// The container's address of one family that connections lead to.
    pub(super) fn target(&self, ipv4: bool) -> Option<IpAddr> {
        let address = self.addresses.iter().map(IpNetwork::ip).find(|address| address.is_ipv4() == ipv4)?;
        let is_used = self.mappings.iter().any(|mapping| mapping.dnat_target(address).is_some());
        if is_used { Some(address) } else { None }
    }

    /// The container's addresses of a version of IP.
    pub(super) fn addresses_of(&self, version: IpVersion) -> Vec<IpAddr> {
        self.addresses.iter().map(IpNetwork::ip).filter(|address| is_of_version(*address, version)).collect()
    }

    /// The versions of IP of the container's addresses.
    pub(super) fn versions(&self) -> impl Iterator<Item = IpVersion> + '_ {
        IpVersion::ALL.into_iter().filter(|version| !self.addresses_of(*version).is_empty())
    }

    /// The mappings that lead to a container with this address.
    pub(super) fn mappings_to(&self, address: IpAddr) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(move |mapping| mapping.dnat_target(address).is_some())
    }

    /// The number of rules of the family that needs more.
    pub fn rules_needed(&self) -> usize {
        let networks = match self.masquerades {
            Masquerades::Hairpin => self.networks(true).len().max(self.networks(false).len()),
            Masquerades::Nothing | Masquerades::All => 1,
        };
        self.mappings.len().saturating_mul(networks + 1)
    }

    /// The networks of the container's addresses of one family, each once.
    pub(super) fn networks(&self, ipv4: bool) -> Vec<IpNetwork> {
        let mut seen = HashSet::new();
        let own = self.addresses.iter().filter(|address| address.is_ipv4() == ipv4);
        let networks = own.filter_map(|one| IpNetwork::new(one.network(), one.prefix()).ok());
        networks.filter(|network| seen.insert(*network)).collect()
    }

    /// The same without these mappings.
    pub(super) fn without<'a>(&self, removed: impl Iterator<Item = &'a Mapping>) -> PortMap {
        let removed: HashSet<&Mapping> = removed.collect();
        let mappings = self.mappings.iter().filter(|mapping| !removed.contains(mapping)).cloned().collect();
        PortMap { mappings, ..self.clone() }
    }

    /// The flows that the kernel tracks of these mappings.
    pub(super) fn flows(&self) -> Vec<Flows> {
        let mut flows = Vec::new();
        for ipv4 in [true, false] {
            let Some(address) = self.target(ipv4) else { continue };
            for mapping in &self.mappings {
                if let Some(target) = mapping.dnat_target(address) {
                    flows.push(mapping.flows_to(target));
                }
            }
        }
        flows
    }

    /// A mapping to this address, to try rules with.
    pub(super) fn tried(to: IpAddr) -> PortMap {
        let mapping = Mapping { host_port: 1, container_port: 1, protocol: L4Protocol::Tcp, host_address: None };
        PortMap {
            mappings: vec![mapping],
            addresses: vec![to.into()],
            masquerades: Masquerades::Hairpin,
            mark: Mark::Bit(13),
            conditions_v4: Vec::new(),
            conditions_v6: Vec::new(),
            backend: Backend::Nftables,
            on_conflict: OnPortConflict::Refuse,
        }
    }
}

/// The mappings by protocol and host port.
pub(super) fn by_port<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> HashMap<(L4Protocol, u16), Vec<&'a Mapping>> {
    let mut ports: HashMap<_, Vec<&Mapping>> = HashMap::new();
    for mapping in mappings {
        ports.entry(mapping.port()).or_default().push(mapping);
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    /// A mapping of TCP to port 80.
    fn mapping(host_port: u16, host: Option<&str>) -> Mapping {
        Mapping { host_port, container_port: 80, protocol: L4Protocol::Tcp, host_address: host.map(ip) }
    }

    fn map(addresses: &[&str], mappings: Vec<Mapping>) -> PortMap {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        PortMap { mappings, addresses, ..PortMap::tried(ip("10.1.0.2")) }
    }

    #[test]
    fn a_mapping_is_for_its_address_and_an_unspecified_one_for_every_address_of_its_family() {
        for (own, host, is_for) in [
            (None, "192.0.2.1", true),
            (None, "2001:db8::1", true),
            (Some("192.0.2.1"), "192.0.2.1", true),
            (Some("192.0.2.1"), "192.0.2.2", false),
            (Some("0.0.0.0"), "192.0.2.2", true),
            (Some("0.0.0.0"), "2001:db8::1", false),
            (Some("::"), "2001:db8::1", true),
            (Some("::"), "192.0.2.2", false),
        ] {
            assert_eq!(mapping(1, own).is_for(ip(host)), is_for, "{own:?} {host}");
        }
    }

    #[test]
    fn mappings_overlap_if_some_connection_meets_both() {
        for (one, other, overlaps) in [
            (mapping(1, None), mapping(1, Some("192.0.2.1")), true),
            (mapping(1, Some("192.0.2.1")), mapping(1, None), true),
            (mapping(1, Some("192.0.2.1")), mapping(1, Some("0.0.0.0")), true),
            (mapping(1, Some("192.0.2.1")), mapping(1, Some("192.0.2.2")), false),
            (mapping(1, Some("0.0.0.0")), mapping(1, Some("::")), false),
            (mapping(1, None), mapping(2, None), false),
            (mapping(1, None), Mapping { protocol: L4Protocol::Udp, ..mapping(1, None) }, false),
        ] {
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (overlaps, overlaps), "{one} and {other}");
        }
    }

    #[test]
    fn a_mapping_leads_to_an_address_of_the_family_of_its_host_address() {
        let v4 = mapping(8080, Some("0.0.0.0"));
        assert_eq!(v4.dnat_target(ip("10.1.0.2")), Some("10.1.0.2:80".parse().unwrap()));
        assert_eq!(v4.dnat_target(ip("fd00::2")), None);
        assert_eq!(mapping(1, None).dnat_target(ip("fd00::2")), Some("[fd00::2]:80".parse().unwrap()));
    }

    #[test]
    fn the_flows_of_a_mapping_are_to_its_port_and_its_only_address() {
        let target = "10.1.0.2:80".parse().unwrap();
        let flows = |address| Flows { protocol: 6, port: 8080, address, target };
        assert_eq!(mapping(8080, Some("192.0.2.1")).flows_to(target), flows(Some(ip("192.0.2.1"))));
        for every in [None, Some("0.0.0.0")] {
            assert_eq!(mapping(8080, every).flows_to(target), flows(None), "{every:?}");
        }
    }

    #[test]
    fn a_mapping_is_printed_with_its_host_address() {
        assert_eq!(mapping(8080, None).to_string(), "tcp 8080 to 80");
        assert_eq!(mapping(8080, Some("192.0.2.1")).to_string(), "tcp 192.0.2.1:8080 to 80");
        assert_eq!(mapping(8080, Some("::1")).to_string(), "tcp [::1]:8080 to 80");
    }

    #[test]
    fn ports_lead_to_the_first_address_of_a_family_that_a_mapping_is_for() {
        let addresses = ["10.1.0.2/24", "10.2.0.2/24", "fd00::2/64"];
        let both = map(&addresses, vec![mapping(1, Some("192.0.2.1")), mapping(2, None)]);
        assert_eq!((both.target(true), both.target(false)), (Some(ip("10.1.0.2")), Some(ip("fd00::2"))));
        assert_eq!(both.mappings_to(ip("10.1.0.2")).count(), 2);
        assert_eq!(both.mappings_to(ip("fd00::2")).collect::<Vec<_>>(), [&mapping(2, None)]);
        let v4 = map(&addresses, vec![mapping(1, Some("192.0.2.1"))]);
        assert_eq!((v4.target(true), v4.target(false)), (Some(ip("10.1.0.2")), None));
        let led: Vec<(Option<IpAddr>, SocketAddr)> =
            both.flows().into_iter().map(|flows| (flows.address, flows.target)).collect();
        assert_eq!(
            led,
            [
                (Some(ip("192.0.2.1")), "10.1.0.2:80".parse().unwrap()),
                (None, "10.1.0.2:80".parse().unwrap()),
                (None, "[fd00::2]:80".parse().unwrap()),
            ]
        );
    }

    #[test]
    fn addresses_and_networks_are_those_of_one_family_and_networks_once_each() {
        let map = map(&["10.1.0.2/24", "10.1.0.3/24", "10.2.0.2/16", "fd00::2/64"], Vec::new());
        assert_eq!(map.addresses_of(IpVersion::V4), [ip("10.1.0.2"), ip("10.1.0.3"), ip("10.2.0.2")]);
        assert_eq!(map.addresses_of(IpVersion::V6), [ip("fd00::2")]);
        let networks = |ipv4| map.networks(ipv4).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (networks(true), networks(false)),
            (vec!["10.1.0.0/24".into(), "10.2.0.0/16".into()], vec!["fd00::/64".into()])
        );
    }

    #[test]
    fn the_versions_are_those_of_the_addresses() {
        for (addresses, versions) in [
            (&["10.1.0.2/24"][..], &[IpVersion::V4][..]),
            (&["fd00::2/64"], &[IpVersion::V6]),
            (&["fd00::2/64", "10.1.0.2/24"], &[IpVersion::V4, IpVersion::V6]),
            (&[], &[]),
        ] {
            assert_eq!(map(addresses, Vec::new()).versions().collect::<Vec<_>>(), versions, "{addresses:?}");
        }
    }

    /// For each mapping one rule that leads to the container, and one that masquerades, for each network if they are for hairpins.
    #[test]
    fn as_many_rules_are_needed_as_the_family_with_more_networks_has() {
        let hairpin = map(&["10.1.0.2/24", "fd00::2/64", "fd01::2/64"], vec![mapping(1, None), mapping(2, None)]);
        assert_eq!(hairpin.rules_needed(), 6);
        for masquerades in [Masquerades::Nothing, Masquerades::All] {
            assert_eq!(PortMap { masquerades, ..hairpin.clone() }.rules_needed(), 4, "{masquerades:?}");
        }
    }

    #[test]
    fn mappings_are_removed_by_value_and_grouped_by_protocol_and_port() {
        let all = vec![mapping(1, None), mapping(1, Some("192.0.2.1")), mapping(2, None)];
        let rest = map(&["10.1.0.2/24"], all.clone()).without([mapping(1, None)].iter());
        assert_eq!(rest.mappings, all[1..]);
        let grouped = by_port(all.iter());
        assert_eq!(grouped[&(L4Protocol::Tcp, 1)], [&all[0], &all[1]]);
        assert_eq!((grouped.len(), &grouped[&(L4Protocol::Tcp, 2)][..]), (2, &[&all[2]][..]));
    }
}
