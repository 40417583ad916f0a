//! The keys as they are written, and what is refused of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use cnikit::keys::{On, word};
use cnikit::rules::Backend;
use cnikit::rules::portmap::{L4Protocol, Mapping, Mark, Masquerades, Taken};
use serde::{Deserialize, Deserializer};

use crate::PortmapPlugin;

/// The bit of the mark that is the reference's: 0x2000.
const USUAL_BIT: u8 = 13;

/// The keys as they are written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortmapKeys {
    /// What the rules are written with: `iptables` or `nftables`. Default: what the conditions are written for, else iptables
    /// where it works, else nftables.
    pub backend: Option<String>,
    /// The container's own connections to its published ports, and those of the host's loopback, leave under the host's
    /// address. Default: true.
    pub snat: On,
    /// Those of everybody do. Default: false.
    pub masq_all: bool,
    /// iptables: the bit of the mark that says what is to be masqueraded, 0 to 31. Default: 13.
    pub mark_masq_bit: Option<i64>,
    /// iptables: a chain of somebody else's that sets such a mark. Default: none.
    pub external_set_mark_chain: Option<String>,
    /// Further matches for IPv4, in the words of the backend. Default: none.
    #[serde(rename = "conditionsV4")]
    pub conditions_v4: Option<Vec<String>>,
    /// The same for IPv6.
    #[serde(rename = "conditionsV6")]
    pub conditions_v6: Option<Vec<String>>,
    /// What happens when a port of the host leads to another container: `refuse` or `firstWins`. Default: `refuse`.
    #[serde(deserialize_with = "taken")]
    pub host_port_taken: Taken,
    /// The ports: what a runtime says as the capability `portMappings`. Default: none.
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
    /// The one address of the host that is meant. Default: every address; `0.0.0.0` and `::` are every one of their family.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

fn taken<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Taken, D::Error> {
    let named = |name: &str| match name {
        "refuse" => Some(Taken::Refused),
        "firstWins" => Some(Taken::FirstWins),
        _ => None,
    };
    Ok(word(deserializer, named, "unknown hostPortTaken", "refuse and firstWins")?.unwrap_or_default())
}

impl TryFrom<PortmapKeys> for PortmapPlugin {
    type Error = String;

    fn try_from(keys: PortmapKeys) -> Result<PortmapPlugin, String> {
        checked(keys).map_err(|why| format!("failed to parse config: {why}"))
    }
}

/// In the reference's order, so that of several mistakes the same one is named first.
fn checked(keys: PortmapKeys) -> Result<PortmapPlugin, String> {
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
        mappings.iter().try_for_each(answered)?;
    }
    let conditions_v4 = given(keys.conditions_v4);
    let conditions_v6 = given(keys.conditions_v6);
    Ok(PortmapPlugin {
        mappings,
        backend,
        masquerades,
        mark,
        conditions_v4,
        conditions_v6,
        taken: keys.host_port_taken,
    })
}

/// Refuses what nobody is answered on without `snat`.
fn answered(mapping: &Mapping) -> Result<(), String> {
    let loopback = mapping.host_address.filter(IpAddr::is_loopback);
    loopback.map_or(Ok(()), |address| {
        let of = format!("hostIP {address} of host port {}", mapping.host_port);
        Err(format!(
            "{of}: without snat the kernel lets nothing from 127.0.0.1 leave the host; leave snat out, or hostIP"
        ))
    })
}

/// A list whose first text is empty says nothing.
fn given(conditions: Option<Vec<String>>) -> Vec<String> {
    conditions.filter(|texts| texts.first().is_some_and(|first| !first.is_empty())).unwrap_or_default()
}

fn mark(keys: &PortmapKeys) -> Result<Mark, String> {
    match (&keys.external_set_mark_chain, keys.mark_masq_bit) {
        (Some(_), Some(_)) => Err("Cannot specify externalSetMarkChain and markMasqBit".to_owned()),
        (Some(chain), None) => Ok(Mark::Chain(chain.clone())),
        (None, None) => Ok(Mark::Bit(USUAL_BIT)),
        (None, Some(bit)) => {
            let fits = u8::try_from(bit).ok().filter(|bit| *bit < 32);
            fits.map(Mark::Bit).ok_or_else(|| "MasqMarkBit must be between 0 and 31".to_owned())
        }
    }
}

/// The one that is named, or that the other keys are written for.
fn backend(keys: &PortmapKeys) -> Result<Backend, String> {
    let conditions = [("conditionsV4", &keys.conditions_v4), ("conditionsV6", &keys.conditions_v6)];
    let written_for = |iptables: bool| {
        let such = move |texts: &Vec<String>| {
            let first = texts.first().filter(|first| !first.is_empty());
            first.is_some_and(|first| first.starts_with(['-', '!']) == iptables)
        };
        conditions.iter().filter(move |(_, texts)| texts.as_ref().is_some_and(such)).map(|(key, _)| *key)
    };
    let chain = keys.external_set_mark_chain.iter().map(|_| "externalSetMarkChain");
    let for_iptables: Vec<&str> = chain.chain(written_for(true)).collect();
    let for_nftables: Vec<&str> = written_for(false).collect();
    let refused = |asked: &str, other: &str, keys: &[&str]| {
        let keys = keys.join(" ");
        Err(format!("{asked} backend was requested but configuration contains {other}-specific options [{keys}]"))
    };
    match keys.backend.as_deref() {
        Some(asked) if asked != "iptables" && !for_iptables.is_empty() => refused(asked, "iptables", &for_iptables),
        Some(asked) if asked != "nftables" && !for_nftables.is_empty() => refused(asked, "nftables", &for_nftables),
        Some("iptables") => Ok(Backend::Iptables),
        Some("nftables") => Ok(Backend::Nftables),
        Some(other) => Err(format!("unrecognized backend {other:?}: iptables and nftables are known")),
        None if for_nftables.is_empty() && for_iptables.is_empty() => Ok(Backend::Automatic),
        None if for_nftables.is_empty() => Ok(Backend::Iptables),
        None if for_iptables.is_empty() => Ok(Backend::Nftables),
        None => refused("iptables", "nftables", &for_nftables),
    }
}

fn mapping(keys: &MappingKeys) -> Result<Mapping, String> {
    let port = |number: i64, what: &str| {
        let fits = u16::try_from(number).ok().filter(|port| *port > 0);
        fits.ok_or_else(|| format!("Invalid {what} port number: {number}"))
    };
    let container_port = port(keys.container_port, "container")?;
    let host_port = port(keys.host_port, "host")?;
    let of = format!("of host port {host_port}");
    let protocol = L4Protocol::named(&keys.protocol)
        .ok_or_else(|| format!("unknown protocol {:?} {of}: tcp, udp and sctp are known", keys.protocol))?;
    let host_address = match keys.host_ip.as_str() {
        "" => None,
        text => Some(text.parse::<IpAddr>().map_err(|_| format!("hostIP {text:?} {of} is no address"))?.to_canonical()),
    };
    if let Some(IpAddr::V6(address)) = host_address
        && address.is_loopback()
    {
        return Err(format!("hostIP {address} {of}: the kernel lets nothing from ::1 leave the host"));
    }
    Ok(Mapping { host_port, container_port, protocol, host_address })
}
