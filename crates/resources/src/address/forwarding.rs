//! The host passes packets on.

use std::fmt;

use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use ipnetwork::IpNetwork;

/// Forwarding is on for these families. Never switched off: the whole host shares it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ip_forward")]
pub struct Forwarding {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

const IPV4: &str = "net/ipv4/ip_forward";
const IPV6: &str = "net/ipv6/conf/all/forwarding";

impl Forwarding {
    /// For the families of these addresses.
    pub fn of(networks: &[IpNetwork]) -> Forwarding {
        Forwarding { ipv4: networks.iter().any(IpNetwork::is_ipv4), ipv6: networks.iter().any(IpNetwork::is_ipv6) }
    }

    fn keys(&self) -> impl Iterator<Item = &'static str> {
        [(self.ipv4, IPV4), (self.ipv6, IPV6)].into_iter().filter_map(|(wanted, key)| wanted.then_some(key))
    }
}

/// The kind that these are of.
pub const KIND: Kind = Kind::shared("forwarding");

impl Resource for Forwarding {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, _context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        self.keys().try_for_each(|key| {
            let set = sysctl::set(&Inside::here(), key, "1").map(drop);
            set.map_err(|error| Error::from(error).hint(format!("set /proc/sys/{key} to 1, or make it writable")))
        })?;
        Ok(Made::nothing())
    }

    fn verify(&self, _context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        for key in self.keys() {
            drifts.compare(key, "1", &sysctl::read(&Inside::here(), key)?);
        }
        Ok(())
    }
}

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let families = [(self.ipv4, "IPv4"), (self.ipv6, "IPv6")];
        let named: Vec<&str> = families.iter().filter_map(|(wanted, name)| wanted.then_some(*name)).collect();
        write!(f, "forwarding on the host: {}", named.join(" and "))
    }
}
