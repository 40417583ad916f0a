//! Parses the addresses of configurations, as strictly as upstream.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Parses an address; IPv4 mapped into IPv6 is IPv4.
pub(crate) fn ip(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(ip.to_canonical()),
        Err(_) => Err(format!("invalid IP address: {text}")),
    }
}

/// Parses a requested address. It may have a prefix, which is ignored: that of the range is used.
pub(crate) fn wanted(text: &str) -> Result<IpAddr, String> {
    if text.is_empty() {
        return Err("cannot understand ip: IP <nil> not v4 nor v6".into());
    }
    if text.contains('/') { Ok(cidr(text)?.ip().to_canonical()) } else { ip(text) }
}

/// Parses a subnet, which has a prefix. Its host bits, and IPv4 mapped into IPv6, are validated later.
pub(crate) fn cidr(text: &str) -> Result<IpNetwork, String> {
    if let Some((address, prefix)) = text.split_once('/')
        && prefix.bytes().all(|digit| digit.is_ascii_digit())
        && let (Ok(address), Ok(prefix)) = (address.parse(), prefix.parse())
        && let Ok(network) = IpNetwork::new(address, prefix)
    {
        return Ok(network);
    }
    Err(format!("invalid CIDR address: {text}"))
}

/// For `deserialize_with`: a subnet. An empty text is invalid, not absent.
pub(crate) fn subnet<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpNetwork>, D::Error> {
    match Option::<String>::deserialize(from)? {
        Some(text) => cidr(&text).map(Some).map_err(D::Error::custom),
        None => Ok(None),
    }
}

/// For `deserialize_with`: an address. An empty text counts as absent.
pub(crate) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(from)? {
        Some(text) if !text.is_empty() => ip(&text).map(Some).map_err(D::Error::custom),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_address_may_have_a_prefix_which_is_ignored() {
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
