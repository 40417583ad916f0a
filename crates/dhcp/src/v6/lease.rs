//! A lease of IPv6 addresses.

use std::net::Ipv6Addr;
use std::time::Duration;

use cnikit_netlink::Mac;
use serde::{Deserialize, Serialize};

/// The addresses that a server has assigned, and what it configures. Its times count from [`Lease6::since`];
/// [`Duration::MAX`] means for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease6 {
    /// The DUID of the server.
    pub server: Vec<u8>,
    /// At least one.
    pub addresses: Vec<Lease6Address>,
    /// When the lease was requested, on the caller's clock.
    pub since: Duration,
    /// When the client begins to renew it with its server (T1).
    pub renewal: Duration,
    /// When it begins to ask any server (T2).
    pub rebinding: Duration,
    /// The DNS servers (option 23).
    #[serde(default)]
    pub dns: Vec<Ipv6Addr>,
    /// The domains that are searched (option 24).
    #[serde(default)]
    pub search: Vec<String>,
}

/// An address of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease6Address {
    /// The address. Its prefix on the link is known from router advertisements only.
    pub address: Ipv6Addr,
    /// How long new connections use it.
    pub preferred: Duration,
    /// How long it is valid.
    pub valid: Duration,
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease6Loss {
    /// No server renewed it in time.
    Expired,
    /// The server does not know it, or says that its addresses are of another link.
    Refused {
        /// The status in the server's words, such as `NoBinding`.
        status: String,
    },
    /// Another host uses an address of it, as was found after the lease was reported. That address was declined.
    InUse {
        /// The address.
        address: Ipv6Addr,
        /// The hardware address of that host.
        by: Mac,
    },
}

impl Lease6 {
    /// When the client begins to renew it with its server; `None` if it lasts for ever.
    pub fn renewal_at(&self) -> Option<Duration> {
        self.at(self.renewal)
    }

    /// When the client begins to ask any server; `None` if it lasts for ever.
    pub fn rebinding_at(&self) -> Option<Duration> {
        self.at(self.rebinding)
    }

    /// When its last address ends; `None` if never.
    pub fn expires_at(&self) -> Option<Duration> {
        self.at(self.addresses.iter().map(|one| one.valid).max().unwrap_or_default())
    }

    /// Whether it has ended.
    pub fn has_expired(&self, now: Duration) -> bool {
        self.expires_at().is_some_and(|end| end <= now)
    }

    fn at(&self, time: Duration) -> Option<Duration> {
        if time == Duration::MAX { None } else { Some(self.since.saturating_add(time)) }
    }
}
