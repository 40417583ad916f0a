//! A lease.

use std::net::Ipv4Addr;
use std::time::Duration;

use cnikit_netlink::Mac;
use serde::{Deserialize, Serialize};

use super::parameters::Parameters;
use super::reply::LeaseTimes;

/// An address that a server has assigned, and what it configures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// The server that assigned it.
    pub server: Ipv4Addr,
    /// The hardware address that its reply came from: the server's, or that of the router or relay on the way to it.
    pub server_mac: Mac,
    /// When the lease was requested, on the caller's clock. Its times count from then.
    pub since: Duration,
    /// Its times.
    pub times: LeaseTimes,
    /// What the server configures.
    pub parameters: Parameters,
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// No server renewed it in time.
    Expired,
    /// A server said that the address may no longer be used (DHCPNAK).
    Refused {
        /// The server.
        server: Ipv4Addr,
        /// Its explanation; may be empty.
        message: String,
    },
    /// Another host uses the address, as was found after the lease was reported. It was declined.
    InUse {
        /// The hardware address of that host.
        by: Mac,
    },
}

impl Lease {
    /// When the client begins to renew it with its server; `None` if it lasts for ever.
    pub fn renewal_at(&self) -> Option<Duration> {
        self.times.expiry.map(|_| self.since.saturating_add(self.times.renewal))
    }

    /// When the client begins to ask any server; `None` if it lasts for ever.
    pub fn rebinding_at(&self) -> Option<Duration> {
        self.times.expiry.map(|_| self.since.saturating_add(self.times.rebinding))
    }

    /// When it ends; `None` if it lasts for ever.
    pub fn expires_at(&self) -> Option<Duration> {
        self.times.expiry.map(|expiry| self.since.saturating_add(expiry))
    }

    /// Whether it has ended.
    pub fn has_expired(&self, now: Duration) -> bool {
        self.expires_at().is_some_and(|end| end <= now)
    }
}
