//! Derives a container's address from its name: the same container gets the same address again, on every host that has the same
//! subnet, unless another one has it.
//!
//! This is the worked example of the guide (`docs/guide-4-ipam.md`). The keys under `ipam` are those of [`HashedKeys`].
#![forbid(unsafe_code)]

mod reservations;

use std::collections::HashSet;
use std::net::IpAddr;

use cnikit::types::{Ip, Route, Value, parse_cidr};
use cnikit::{Addresses, AttachmentSpec, Check, Del, Error, Gc, IpamPlugin, Journal, NetConf, Result, Status, code};
use ipnetwork::IpNetwork;
use serde::Deserialize;

use reservations::Reservations;

// guide: keys
/// The keys under `ipam`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HashedKeys {
    /// The subnet, of IPv4 or IPv6. Its first address is the gateway's. Required.
    pub subnet: String,
    /// Routes for the result. Default: none.
    pub routes: Vec<Route>,
    /// The directory of the reservations. Default: `/var/lib/cni/hashed`.
    #[serde(rename = "dataDir")]
    pub data_dir: String,
}

/// The configuration, validated.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "HashedKeys")]
pub struct HashedPlugin {
    subnet: IpNetwork,
    routes: Vec<Route>,
}

impl TryFrom<HashedKeys> for HashedPlugin {
    type Error = String;

    fn try_from(keys: HashedKeys) -> Result<HashedPlugin, String> {
        if keys.subnet.is_empty() {
            return Err("there is no subnet; hint: set `ipam.subnet`, such as 10.1.2.0/24".to_owned());
        }
        let subnet = parse_cidr(&keys.subnet)?;
        if host_bits(&subnet) < 2 {
            return Err(format!("{subnet} has no addresses for containers; hint: use a larger subnet"));
        }
        Ok(HashedPlugin { subnet, routes: keys.routes })
    }
}
// guide: end

fn host_bits(subnet: &IpNetwork) -> u8 {
    let all = if subnet.is_ipv4() { 32 } else { 128 };
    all - subnet.prefix()
}

// guide: candidates
impl HashedPlugin {
    /// The addresses for a container: first the one that its hash selects, then those after it. Excluded are the network's own
    /// address, the gateway's, and the last one, which is the broadcast address of IPv4.
    fn candidates(&self, at: &AttachmentSpec) -> impl Iterator<Item = IpAddr> {
        let count = (1_u64 << host_bits(&self.subnet).min(32)) - 3;
        let hash = at.tag.hash();
        let first =
            u64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]]) % count;
        let subnet = self.subnet;
        (0..count).map(move |step| nth(&subnet, 2 + (first + step) % count))
    }

    fn addresses(&self, address: IpAddr) -> Result<Addresses> {
        let address = IpNetwork::new(address, self.subnet.prefix())?;
        let ip = Ip { gateway: Some(nth(&self.subnet, 1)), ..Ip::new(address) };
        Ok(Addresses { ips: vec![ip], routes: self.routes.clone(), ..Addresses::default() })
    }
}
// guide: end

/// The address of this number in a subnet.
fn nth(subnet: &IpNetwork, number: u64) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(network) => {
            IpAddr::from((network.to_bits() | u32::try_from(number).unwrap_or(u32::MAX)).to_be_bytes())
        }
        IpAddr::V6(network) => IpAddr::from((network.to_bits() | u128::from(number)).to_be_bytes()),
    }
}

// guide: plugin
impl IpamPlugin for HashedPlugin {
    const ENTERS_NETNS: bool = false;
    const EXAMPLE: &'static str = r#""ipam":{"type":"hashed","subnet":"10.99.0.0/24"}"#;
    const RELEASE: &'static str = concat!("example-", env!("CARGO_PKG_VERSION"));

    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses> {
        let reservations = Reservations::make(&data_dir(&at.conf), &at.tag.network)?;
        let address = reservations.take(&at.tag, self.candidates(at), journal)?;
        self.addresses(address)
    }

    fn release(del: &Del) -> Result<()> {
        match Reservations::open(&data_dir(&del.call.conf), &del.tag.network)? {
            Some(reservations) => reservations.release(&del.tag),
            None => Ok(()),
        }
    }

    fn sweep(gc: &Gc) -> Result<()> {
        match Reservations::open(&data_dir(&gc.call.conf), &gc.network)? {
            Some(reservations) => reservations.sweep(gc),
            None => Ok(()),
        }
    }

    fn confirm(&self, check: &Check) -> Result<()> {
        let tag = &check.attachment.tag;
        let held = match Reservations::open(&data_dir(&check.call.conf), &tag.network)? {
            Some(reservations) => reservations.held_by(tag)?,
            None => None,
        };
        match held {
            Some(held) if check.prev.ips.iter().any(|ip| ip.address.ip() == held) => Ok(()),
            Some(held) => {
                Err(Error::new(code::DRIFT, format!("the reservation of {tag} is {held}, which the result lacks")))
            }
            None => Err(Error::new(code::DRIFT, format!("{tag} has no reservation")).hint("DEL, then ADD again")),
        }
    }

    fn status(&self, status: &Status) -> Result<()> {
        reservations::available(&data_dir(&status.call.conf))
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let taken = match Reservations::open(&data_dir(&at.conf), &at.tag.network)? {
            Some(reservations) => reservations.addresses()?,
            None => HashSet::new(),
        };
        let Some(address) = self.candidates(at).find(|address| !taken.contains(address)) else {
            return Err(reservations::full());
        };
        Ok((vec![format!("reserve {address} for {}", at.tag)], self.addresses(address)?))
    }
}
// guide: end

/// The directory of the reservations. DEL and GC need it whatever the rest of the configuration is.
fn data_dir(conf: &NetConf) -> String {
    match conf.at(&["ipam", "dataDir"]).and_then(Value::as_str) {
        Some(dir) if !dir.is_empty() => dir.to_owned(),
        _ => "/var/lib/cni/hashed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(json: &str) -> Result<HashedPlugin, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_subnet_without_addresses_is_refused() {
        for (json, text) in [
            ("{}", "there is no subnet; hint: set `ipam.subnet`"),
            (r#"{"subnet":"10.1.2.0"}"#, "10.1.2.0"),
            (r#"{"subnet":"10.1.2.0/31"}"#, "10.1.2.0/31 has no addresses for containers"),
            (r#"{"subnet":"fd00::/127"}"#, "fd00::/127 has no addresses for containers"),
        ] {
            let refused = plugin(json).expect_err(json);
            assert!(refused.contains(text), "{json}: {refused}");
        }
    }

    #[test]
    fn an_address_is_never_the_networks_the_gateways_or_the_last_one() {
        let subnet: IpNetwork = "10.1.2.0/29".parse().expect("a network");
        let all: Vec<String> = (2..7).map(|number| nth(&subnet, number).to_string()).collect();
        assert_eq!(all, ["10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"]);
        let wide: IpNetwork = "fd00::/64".parse().expect("a network");
        assert_eq!(nth(&wide, u64::from(u32::MAX)).to_string(), "fd00::ffff:ffff");
    }
}
