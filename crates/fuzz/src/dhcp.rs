//! Fuzz target: packets that a DHCP client receives, in each of its states.

use std::time::Duration;

use cnikit_dhcp::v4::{Client, ClientOptions, ClientSettings, Lease, MAX_ROUTES, Parameters, Reply, Timing, client_id};
use cnikit_netlink::Mac;

/// The client's hardware address and the number of its exchanges, which are in the stored corpus too.
const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 1]);
const XID: u32 = 0x0404_0404;
/// The headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;
/// The sender of the packets.
const SERVER: Mac = Mac([2, 0, 0, 0, 1, 1]);
/// The beginning of option 53, and two of its values.
const MESSAGE_TYPE: [u8; 2] = [53, 1];
const OFFER: u8 = 2;
const ACK: u8 = 5;
/// The most steps until a client without answers loses its lease: an exchange, probes, a renewal, the end.
const STEPS: usize = 40;

/// Parses the packet, and gives it to a client in every state: from the start of the client to a lease, and to its end.
pub(crate) fn run(packet: &[u8]) {
    if let Some(reply) = packet.get(HEADERS..).and_then(Reply::parse) {
        assert!(reply.message.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic()));
        if let Some(expiry) = reply.times.expiry {
            assert!(
                !expiry.is_zero() && reply.times.renewal <= reply.times.rebinding && reply.times.rebinding <= expiry
            );
        }
        check_parameters(&reply.parameters);
    }
    let options = ClientOptions::new(client_id("c/n/eth0"));
    let settings = ClientSettings { mac: CLIENT, options, timing: Timing::default(), broadcast: false };
    let mut client = Client::new(settings, || XID);
    let mut now = Duration::ZERO;
    client.start(now, None);
    let mut former: Option<Lease> = None;
    for _ in 0..STEPS {
        for kind in [OFFER, ACK] {
            client.receive(now, SERVER, &with_type(packet, kind));
        }
        client.receive(now, SERVER, packet);
        client.receive_arp(now, packet);
        while client.event().is_some() {}
        while client.transmit().is_some() {}
        former = client.lease().cloned().or(former);
        let Some(deadline) = client.deadline() else { break };
        now = now.max(deadline);
        client.advance(now);
        assert!(!client.lease().is_some_and(|lease| lease.has_expired(now)));
    }
    if let Some(lease) = former {
        check_parameters(&lease.parameters);
        client.reboot(now, lease, true);
        client.receive(now, SERVER, packet);
    }
    client.release(now);
    assert!(client.lease().is_none() && client.deadline().is_none());
}

/// The packet with this type of message (an offer or an assignment), so that one packet can be the answer to each step.
fn with_type(packet: &[u8], kind: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let value = packet.windows(2).position(|pair| pair == MESSAGE_TYPE).and_then(|at| packet.get_mut(at + 2));
    if let Some(value) = value {
        *value = kind;
    }
    packet
}

/// Names have no character with a meaning in configuration files, and no list is longer than its limit.
fn check_parameters(parameters: &Parameters) {
    let names = parameters.search.iter().chain(&parameters.domain).chain(&parameters.host_name);
    for name in names {
        assert!(!name.is_empty() && name.len() < 256, "{name:?}");
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)), "{name:?}");
    }
    assert!(parameters.routes.len() <= MAX_ROUTES && parameters.mtu.is_none_or(|mtu| mtu >= 576));
    let addresses = parameters.routers.iter().chain(&parameters.dns).chain(&parameters.ntp);
    let gateways = parameters.routes.iter().filter_map(|route| route.gateway.as_ref());
    for address in addresses.chain(gateways) {
        assert!(!address.is_loopback() && !address.is_multicast() && !address.is_unspecified(), "{address}");
    }
    for route in &parameters.routes {
        assert_eq!(route.destination.ip(), route.destination.network());
    }
}
