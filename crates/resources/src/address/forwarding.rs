//! IP forwarding of the host.

use std::fmt;

use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use ipnetwork::IpNetwork;

/// Forwarding is on for these families. It is never switched off, because the whole host shares it.
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
    /// Forwarding for the families of these addresses.
    pub fn of(networks: &[IpNetwork]) -> Forwarding {
        Forwarding { ipv4: networks.iter().any(IpNetwork::is_ipv4), ipv6: networks.iter().any(IpNetwork::is_ipv6) }
    }

    /// The keys of the sysctls.
    fn keys(&self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        if self.ipv4 {
            keys.push(IPV4);
        }
        if self.ipv6 {
            keys.push(IPV6);
        }
        keys
    }
}

/// The kind of [`Forwarding`].
pub const KIND: Kind = Kind::shared("forwarding");

impl Resource for Forwarding {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, _context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        for key in self.keys() {
            if let Err(error) = sysctl::set(&Inside::here(), key, "1") {
                return Err(Error::from(error).hint(format!("set /proc/sys/{key} to 1, or make it writable")));
            }
        }
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
        f.write_str(match (self.ipv4, self.ipv6) {
            (true, true) => "forwarding on the host: IPv4 and IPv6",
            (true, false) => "forwarding on the host: IPv4",
            (false, true) => "forwarding on the host: IPv6",
            (false, false) => "forwarding on the host: ",
        })
    }
}
