//! Parse addresses and networks as documents write them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, de::Error};

/// The prefix length of the IPv4-mapped addresses, `::ffff:0:0/96`.
const MAPPED: u8 = 96;

/// Parses an address with its prefix length, such as `10.1.0.5/16`; host bits are kept.
///
/// An IPv4-mapped IPv6 address is converted to the IPv4 address.
///
/// # Errors
/// The text has no prefix length, its address does not parse, or its prefix length is greater than the family allows. The error is
/// a sentence that quotes the text.
#[doc(alias = "CIDR")]
pub fn parse_cidr(text: &str) -> Result<IpNetwork, String> {
    network(text).ok_or_else(|| format!("{text:?} is not an address with a prefix length, such as 10.1.0.5/16"))
}

fn network(text: &str) -> Option<IpNetwork> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    if !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNetwork::new(address, prefix.parse().ok()?).ok().map(canonical)
}

/// Converts an IPv4-mapped network to the IPv4 network; any other is returned unchanged.
pub(crate) fn canonical(network: IpNetwork) -> IpNetwork {
    let address = network.ip().to_canonical();
    match network.prefix().checked_sub(MAPPED) {
        Some(prefix) if address.is_ipv4() => IpNetwork::new(address, prefix).unwrap_or(network),
        _ => network,
    }
}

/// Parses an address without a prefix length. An IPv4-mapped IPv6 address is converted to the IPv4 address.
///
/// # Errors
/// A text that is not an IP address. The error is a sentence that quotes the text.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("{text:?} is not an IP address"))?;
    Ok(address.to_canonical())
}

/// For `deserialize_with`: an address with its prefix length.
pub(crate) fn cidr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNetwork, D::Error> {
    parse_cidr(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// For `deserialize_with`: an address with its prefix length, for a member that may be absent.
pub(crate) fn optional_cidr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNetwork>, D::Error> {
    cidr(deserializer).map(Some)
}

/// For `deserialize_with`: an address; an empty text is `None`, as in Go.
pub(crate) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    parse_ip(&text).map(Some).map_err(D::Error::custom)
}
