//! Addresses as configurations spell them, read as strictly as users of the reference know it.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Reads an address; IPv4 mapped into IPv6 is IPv4.
pub(crate) fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map(|ip: IpAddr| ip.to_canonical()).map_err(|_| format!("invalid IP address: {text}"))
}

/// Reads an address that may carry a prefix, which says nothing here: the range's does.
pub(crate) fn wanted(text: &str) -> Result<IpAddr, String> {
    if text.is_empty() {
        return Err("cannot understand ip: IP <nil> not v4 nor v6".into());
    }
    let bare = text.split_once('/').map_or(text, |(ip, _)| ip);
    let canonical = if bare == text { ip(bare)? } else { cidr(text)?.ip().to_canonical() };
    Ok(canonical)
}

/// Reads a subnet. It has a prefix; its host bits, and IPv4 mapped into IPv6, are judged later.
pub(crate) fn cidr(text: &str) -> Result<IpNetwork, String> {
    let parts = text.split_once('/').filter(|(_, prefix)| prefix.bytes().all(|digit| digit.is_ascii_digit()));
    let network = parts.and_then(|(ip, prefix)| IpNetwork::new(ip.parse().ok()?, prefix.parse().ok()?).ok());
    network.ok_or_else(|| format!("invalid CIDR address: {text}"))
}

/// For `deserialize_with`: a subnet; unlike with addresses the empty text is not "absent".
pub(crate) fn subnet<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpNetwork>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| cidr(&text)).transpose().map_err(D::Error::custom)
}

/// For `deserialize_with`: an address; the empty text is "absent".
pub(crate) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(from)?.filter(|text| !text.is_empty());
    text.map(|text| ip(&text)).transpose().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_address_may_carry_a_prefix_that_says_nothing() {
        for text in ["10.0.0.7", "10.0.0.7/30", "::ffff:10.0.0.7", "::ffff:10.0.0.7/120"] {
            assert_eq!(wanted(text).unwrap().to_string(), "10.0.0.7", "{text}");
        }
        assert_eq!(wanted("").unwrap_err(), "cannot understand ip: IP <nil> not v4 nor v6");
        assert_eq!(wanted("x").unwrap_err(), "invalid IP address: x");
        assert_eq!(wanted("10.0.0.7/33").unwrap_err(), "invalid CIDR address: 10.0.0.7/33");
    }

    #[test]
    fn a_subnet_has_a_prefix_in_digits() {
        assert_eq!(cidr("10.1.2.3/24").unwrap().to_string(), "10.1.2.3/24");
        for text in [
            "bad",
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/33",
            "10.0.0.0/255.0.0.0",
            "010.0.0.0/8",
            "/8",
        ] {
            assert_eq!(cidr(text).unwrap_err(), format!("invalid CIDR address: {text}"));
        }
    }
}
