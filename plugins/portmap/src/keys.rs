//! The keys of the configuration, and their validation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use cnikit::keys::{On, word};
use cnikit::rules::Backend;
use cnikit::rules::portmap::{L4Protocol, Mapping, Mark, Masquerades, OnPortConflict};
use serde::{Deserialize, Deserializer};

use crate::PortmapPlugin;

/// The default bit of the mark, the same as upstream's: 0x2000.
const USUAL_BIT: u8 = 13;

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortmapKeys {
    /// The packet filter of the rules: `iptables` or `nftables`. Default: that of the conditions, otherwise iptables where it
    /// works, otherwise nftables.
    pub backend: Option<String>,
    /// Masquerade the container's connections to its own published ports, and those from the host's loopback addresses. Default:
    /// true.
    pub snat: On,
    /// Masquerade all connections to published ports. Default: false.
    pub masq_all: bool,
    /// iptables: the bit of the mark of connections that are masqueraded, 0 to 31. Default: 13.
    pub mark_masq_bit: Option<i64>,
    /// iptables: a chain of another program that sets such a mark. Default: none.
    pub external_set_mark_chain: Option<String>,
    /// More conditions for IPv4, in the syntax of the backend. Default: none.
    #[serde(rename = "conditionsV4")]
    pub conditions_v4: Option<Vec<String>>,
    /// The same for IPv6.
    #[serde(rename = "conditionsV6")]
    pub conditions_v6: Option<Vec<String>>,
    /// What happens if a port of the host is published for another container: `refuse` or `firstWins`. Default: `refuse`.
    #[serde(deserialize_with = "taken")]
    pub host_port_taken: OnPortConflict,
    /// The ports, from the capability `portMappings` of a runtime. Default: none.
    pub port_mappings: Option<Vec<MappingKeys>>,
}

/// One of `portMappings`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MappingKeys {
    /// The port of the host, 1 to 65535.
    pub host_port: i64,
    /// The port of the container, 1 to 65535.
    pub container_port: i64,
    /// `tcp`, `udp` or `sctp`, in any case.
    pub protocol: String,
    /// An address of the host. Default: every address; `0.0.0.0` and `::` are every address of their family.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

fn taken<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OnPortConflict, D::Error> {
    Ok(word(deserializer, taken_named, "unknown hostPortTaken", "refuse and firstWins")?.unwrap_or_default())
}

fn taken_named(name: &str) -> Option<OnPortConflict> {
    match name {
        "refuse" => Some(OnPortConflict::Refuse),
        "firstWins" => Some(OnPortConflict::KeepFirst),
        _ => None,
    }
}

impl TryFrom<PortmapKeys> for PortmapPlugin {
    type Error = String;

    fn try_from(keys: PortmapKeys) -> Result<PortmapPlugin, String> {
        validated(keys).map_err(|why| format!("failed to parse config: {why}"))
    }
}

/// Validates the keys in upstream's order, so that of several errors the same one is reported.
fn validated(keys: PortmapKeys) -> Result<PortmapPlugin, String> {
    let mark = mark(&keys)?;
    let backend = backend(&keys)?;
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut places = HashMap::new();
    for one in keys.port_mappings.iter().flatten() {
        let mapping = mapping(one)?;
        match places.entry((mapping.protocol, mapping.host_port, mapping.host_address)) {
            Entry::Vacant(place) => {
                place.insert(mappings.len());
                mappings.push(mapping);
            }
            Entry::Occupied(place) if mappings[*place.get()] == mapping => {}
            Entry::Occupied(place) => {
                let other = &mappings[*place.get()];
                return Err(format!("one port of the host cannot lead to two: {other}, and {mapping}"));
            }
        }
    }
    let masquerades = match (keys.snat.0, keys.masq_all) {
        (false, _) => Masquerades::Nothing,
        (true, false) => Masquerades::Hairpin,
        (true, true) => Masquerades::All,
    };
    if masquerades == Masquerades::Nothing {
        for mapping in &mappings {
            refuse_loopback(mapping)?;
        }
    }
    let conditions_v4 = non_empty(keys.conditions_v4);
    let conditions_v6 = non_empty(keys.conditions_v6);
    Ok(PortmapPlugin {
        mappings,
        backend,
        masquerades,
        mark,
        conditions_v4,
        conditions_v6,
        on_conflict: keys.host_port_taken,
    })
}

/// Refuses a loopback address of the host, on which a port gets no replies without `snat`.
fn refuse_loopback(mapping: &Mapping) -> Result<(), String> {
    match mapping.host_address {
        Some(address) if address.is_loopback() => Err(format!(
            "hostIP {address} of host port {}: without snat the kernel lets nothing from 127.0.0.1 leave the host; leave \
             snat out, or hostIP",
            mapping.host_port
        )),
        _ => Ok(()),
    }
}

/// The conditions. A list whose first text is empty has none.
fn non_empty(conditions: Option<Vec<String>>) -> Vec<String> {
    match conditions {
        Some(texts) if texts.first().is_some_and(|first| !first.is_empty()) => texts,
        _ => Vec::new(),
    }
}

fn mark(keys: &PortmapKeys) -> Result<Mark, String> {
    match (&keys.external_set_mark_chain, keys.mark_masq_bit) {
        (Some(_), Some(_)) => {
            Err("Cannot specify externalSetMarkChain and markMasqBit; hint: remove one of them".to_owned())
        }
        (Some(chain), None) => Ok(Mark::Chain(chain.clone())),
        (None, None) => Ok(Mark::Bit(USUAL_BIT)),
        (None, Some(bit)) => match u8::try_from(bit) {
            Ok(bit) if bit < 32 => Ok(Mark::Bit(bit)),
            _ => Err("MasqMarkBit must be between 0 and 31; hint: correct `markMasqBit`".to_owned()),
        },
    }
}

/// The configured backend, or the one whose syntax the other keys have.
fn backend(keys: &PortmapKeys) -> Result<Backend, String> {
    let mut for_iptables = Vec::new();
    let mut for_nftables = Vec::new();
    if keys.external_set_mark_chain.is_some() {
        for_iptables.push("externalSetMarkChain");
    }
    for (key, conditions) in [("conditionsV4", &keys.conditions_v4), ("conditionsV6", &keys.conditions_v6)] {
        match conditions.iter().flatten().next() {
            None => {}
            Some(first) if first.is_empty() => {}
            Some(first) if first.starts_with(['-', '!']) => for_iptables.push(key),
            Some(_) => for_nftables.push(key),
        }
    }
    match keys.backend.as_deref() {
        Some(backend) if backend != "iptables" && !for_iptables.is_empty() => {
            Err(other_backends_keys(backend, "iptables", &for_iptables))
        }
        Some(backend) if backend != "nftables" && !for_nftables.is_empty() => {
            Err(other_backends_keys(backend, "nftables", &for_nftables))
        }
        Some("iptables") => Ok(Backend::Iptables),
        Some("nftables") => Ok(Backend::Nftables),
        Some(other) => Err(format!("unrecognized backend {other:?}: iptables and nftables are known")),
        None if for_nftables.is_empty() && for_iptables.is_empty() => Ok(Backend::Automatic),
        None if for_nftables.is_empty() => Ok(Backend::Iptables),
        None if for_iptables.is_empty() => Ok(Backend::Nftables),
        None => Err(other_backends_keys("iptables", "nftables", &for_nftables)),
    }
}

fn other_backends_keys(backend: &str, other: &str, keys: &[&str]) -> String {
    let keys = keys.join(" ");
    format!("{backend} backend was requested but configuration contains {other}-specific options [{keys}]")
}

fn port(number: i64, what: &str) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("Invalid {what} port number: {number}; hint: a published port is a number from 1 to 65535")),
    }
}

fn mapping(keys: &MappingKeys) -> Result<Mapping, String> {
    let container_port = port(keys.container_port, "container")?;
    let host_port = port(keys.host_port, "host")?;
    let of = format!("of host port {host_port}");
    let protocol = L4Protocol::named(&keys.protocol).ok_or_else(|| {
        format!("unknown protocol {:?} {of}; hint: tcp, udp and sctp can be published", keys.protocol)
    })?;
    let host_address = match keys.host_ip.as_str() {
        "" => None,
        text => {
            Some(text.parse::<IpAddr>().map_err(|_| format!("hostIP {text:?} {of} is not an address"))?.to_canonical())
        }
    };
    if let Some(IpAddr::V6(address)) = host_address
        && address.is_loopback()
    {
        return Err(format!("hostIP {address} {of}: the kernel lets nothing from ::1 leave the host"));
    }
    Ok(Mapping { host_port, container_port, protocol, host_address })
}
