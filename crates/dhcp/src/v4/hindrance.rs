//! Why a client has no lease yet.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use cnikit_netlink::Mac;

use crate::exchange::{UNCONFIRMED, write_unanswered};

/// What keeps a client from having a lease, or from renewing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// A packet got no answer that could be used.
    Unanswered {
        /// The packet, as `DHCPDISCOVER`.
        packet: &'static str,
        /// How often it was sent.
        sent: u32,
        /// The time since it was sent first.
        waited: Duration,
    },
    /// The server refused the address (DHCPNAK).
    Refused {
        /// The server.
        server: Ipv4Addr,
        /// The address.
        address: Ipv4Addr,
        /// The server's explanation; may be empty.
        message: String,
    },
    /// Another host uses the address that the server assigned. It was declined (DHCPDECLINE).
    InUse {
        /// The address.
        address: Ipv4Addr,
        /// The hardware address of that host.
        by: Mac,
    },
    /// The client was restarted, and has not asked yet.
    Unconfirmed,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hindrance::Unanswered { packet, sent, waited } => write_unanswered(f, packet, *sent, *waited),
            Hindrance::Refused { server, address, message } => {
                write!(f, "the server {server} refused {address} (DHCPNAK)")?;
                if message.is_empty() { Ok(()) } else { write!(f, ": {message}") }
            }
            Hindrance::InUse { address, by } => {
                write!(f, "{by} already uses {address}, which the server assigned; it was declined (DHCPDECLINE)")
            }
            Hindrance::Unconfirmed => f.write_str(UNCONFIRMED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_packet_the_server_or_the_other_host() {
        let unanswered =
            |sent| Hindrance::Unanswered { packet: "DHCPDISCOVER", sent, waited: Duration::from_millis(6_040) };
        assert_eq!(unanswered(3).to_string(), "DHCPDISCOVER got no answer: it was sent 3 times in 6.0 s");
        assert_eq!(unanswered(1).to_string(), "DHCPDISCOVER got no answer: it was sent once in 6.0 s");
        let (server, address) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 5));
        let refused = |message: &str| Hindrance::Refused { server, address, message: message.to_owned() };
        assert_eq!(refused("").to_string(), "the server 10.0.0.1 refused 10.0.0.5 (DHCPNAK)");
        assert!(refused("wrong network").to_string().ends_with("(DHCPNAK): wrong network"));
        let in_use = Hindrance::InUse { address, by: Mac([2, 0, 0, 0, 0, 9]) };
        assert!(in_use.to_string().starts_with("02:00:00:00:00:09 already uses 10.0.0.5"));
    }
}
