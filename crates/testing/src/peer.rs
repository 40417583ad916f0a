//! Another namespace at the other end of a veth pair: a peer to ping.

use std::net::IpAddr;

use cnikit_netns::Netns;

use crate::host::shell;
use crate::{Container, Host};

/// The name of the peer's end of the pair.
const PEER_LINK: &str = "eth0";

/// Another host of the network, behind a veth pair: see [`Host::peer`]. Its end of the pair is called `eth0`.
///
/// ```no_run
/// # let host = cnikit_testing::Host::new();
/// let peer = host.peer("uplink0", "192.0.2.1/24", "192.0.2.2/24");
/// ```
#[derive(Debug)]
pub struct PeerHost {
    namespace: Container,
    address: String,
    other: String,
}

impl Host {
    /// Joins the host with a new namespace over a veth pair: `link` is the host's end and has the address `own`, the peer has
    /// `address`. Both are up. An address has a prefix length: `192.0.2.1/24`, `2001:db8::1/64`.
    pub fn peer(&self, link: &str, own: &str, address: &str) -> PeerHost {
        PeerHost::join(self.netns(), link, own, address)
    }
}

impl Container {
    /// As [`Host::peer`], for a container: `link` is the container's end.
    pub fn peer(&self, link: &str, own: &str, address: &str) -> PeerHost {
        PeerHost::join(self.netns(), link, own, address)
    }
}

impl PeerHost {
    fn join(netns: &Netns, link: &str, own: &str, address: &str) -> PeerHost {
        let namespace = Container::new();
        shell(netns, &format!("ip link add {link} type veth peer name {PEER_LINK} netns {}", namespace.path()));
        shell(netns, &bring_up(link, own));
        namespace.sh(&format!("ip link set lo up && {}", bring_up(PEER_LINK, address)));
        let [address, other] = [address, own].map(|one| bare(one).to_owned());
        PeerHost { namespace, address, other }
    }

    /// Returns the peer with a default route to the other end of the pair, so that it can reply to containers whose addresses are
    /// not masqueraded.
    #[must_use]
    pub fn routed_back(self) -> PeerHost {
        self.namespace.sh(&format!("ip route add default via {}", self.other));
        self
    }

    /// Its address without the prefix length, for [`Container::reaches`].
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its namespace, to run a line in or to ping from.
    pub fn namespace(&self) -> &Container {
        &self.namespace
    }
}

/// A shell line that gives a link its address. An IPv6 address can be used at once: no duplicate is waited for.
fn bring_up(link: &str, address: &str) -> String {
    let is_ipv6 = bare(address).parse().is_ok_and(|address: IpAddr| address.is_ipv6());
    let nodad = if is_ipv6 { "nodad" } else { "" };
    format!("ip address add {address} dev {link} {nodad} && ip link set {link} up")
}

/// An address without its prefix length.
fn bare(address: &str) -> &str {
    address.split('/').next().unwrap_or_default()
}
