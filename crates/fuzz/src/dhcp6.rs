//! Fuzz target: messages that a client of `DHCPv6` receives, in each of its states.

use std::time::Duration;

use cnikit_dhcp::v6::{Client6, Client6Event, Client6Settings, Lease6, MAX_ADDRESSES, Reply6};
use cnikit_netlink::Mac;

/// The client's DUID, its association, and the number of its exchanges, which are in the stored corpus too.
const DUID: [u8; 4] = [0, 4, 1, 2];
const IAID: u32 = 77;
const XID: u32 = 0x0004_0404;
/// Another host on the link.
const OTHER: Mac = Mac([2, 0, 0, 0, 1, 1]);
/// The types of server's messages.
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;
/// The most steps until a client that hears nothing has no lease.
const STEPS: usize = 40;

/// Parses the message, and has a client receive it again and again, from its start to a lease and to the end of that. Then the same
/// as a packet of neighbour discovery.
pub(crate) fn run(message: &[u8]) {
    if let Some(reply) = Reply6::parse(message, IAID) {
        assert!(reply.addresses.len() <= MAX_ADDRESSES && (1..=130).contains(&reply.server.len()));
        if let Some(status) = &reply.status {
            assert!(status.text.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic()), "{}", status.text);
        }
    }
    let mut client = Client6::new(Client6Settings { duid: DUID.to_vec(), iaid: IAID }, || XID);
    let mut now = Duration::ZERO;
    client.start(now);
    let mut former: Option<Lease6> = None;
    for _ in 0..STEPS {
        for kind in [ADVERTISE, REPLY] {
            client.receive(now, &with_type(message, kind));
        }
        client.receive(now, message);
        client.receive_neighbor(now, OTHER, message);
        while let Some(event) = client.event() {
            if let Client6Event::Bound(lease) | Client6Event::Renewed(lease) = event {
                check(&lease);
                former = Some(lease);
            }
        }
        while client.transmit().is_some() {}
        let Some(deadline) = client.deadline() else { break };
        now = now.max(deadline);
        client.advance(now);
        assert!(!client.lease().is_some_and(|lease| lease.has_expired(now)));
    }
    if let Some(lease) = former {
        client.reboot(now, lease);
        client.receive(now, message);
    }
    client.release(now);
    assert!(client.lease().is_none());
}

/// The message with another type, so that one message leads through a whole exchange.
fn with_type(message: &[u8], kind: u8) -> Vec<u8> {
    let mut message = message.to_vec();
    if let Some(first) = message.first_mut() {
        *first = kind;
    }
    message
}

/// What the caller configures can be configured, and what is written into files has no character that means anything there.
fn check(lease: &Lease6) {
    assert!(!lease.addresses.is_empty() && lease.addresses.len() <= MAX_ADDRESSES);
    assert!(lease.renewal >= Duration::from_secs(1) && lease.renewal <= lease.rebinding);
    for one in &lease.addresses {
        let is_special = one.address.is_unspecified() || one.address.is_loopback() || one.address.is_multicast();
        assert!(!is_special && !one.valid.is_zero() && one.preferred <= one.valid, "{one:?}");
    }
    for name in &lease.search {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)), "{name:?}");
    }
}
