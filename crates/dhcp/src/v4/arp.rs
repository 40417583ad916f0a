//! ARP probes and announcements (RFC 5227): is an address in use on the link already, and which hardware address has it now?

use std::net::Ipv4Addr;

use cnikit_netlink::Mac;
use etherparse::{ArpEthIpv4Packet, ArpOperation, ArpPacketSlice};

/// A probe for the address: a request that fills no neighbour's table, because it names no sender's address.
pub(crate) fn probe(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    request(mac, Ipv4Addr::UNSPECIFIED, address)
}

/// An announcement of the address: hosts that know it with another hardware address correct that (RFC 5227, section 2.3).
pub(crate) fn announcement(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    request(mac, address, address)
}

fn request(mac: Mac, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation: ArpOperation::REQUEST,
        sender_mac: mac.0,
        sender_ipv4: from.octets(),
        target_mac: [0; 6],
        target_ipv4: to.octets(),
    };
    packet.to_bytes().to_vec()
}

/// The other host that uses the address, or probes for it too, by its hardware address (RFC 5227, section 2.1.1).
pub(crate) fn conflict(packet: &[u8], mac: Mac, address: Ipv4Addr) -> Option<Mac> {
    let packet = ArpPacketSlice::from_slice(packet).ok()?;
    let packet: ArpEthIpv4Packet = packet.to_packet().try_eth_ipv4().ok()?;
    let sender = Mac(packet.sender_mac);
    if sender == mac {
        return None;
    }
    let is_used = packet.sender_ipv4_addr() == address;
    let is_probed = packet.operation == ArpOperation::REQUEST
        && packet.sender_ipv4_addr().is_unspecified()
        && packet.target_ipv4_addr() == address;
    if is_used || is_probed { Some(sender) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);

    fn packet(operation: ArpOperation, sender: Mac, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let packet = ArpEthIpv4Packet {
            operation,
            sender_mac: sender.0,
            sender_ipv4: from.octets(),
            target_mac: [0; 6],
            target_ipv4: to.octets(),
        };
        packet.to_bytes().to_vec()
    }

    #[test]
    fn a_host_that_has_the_address_or_probes_for_it_is_a_conflict() {
        let (other, none) = (Ipv4Addr::new(10, 0, 0, 6), Ipv4Addr::UNSPECIFIED);
        let (request, reply) = (ArpOperation::REQUEST, ArpOperation::REPLY);
        assert_eq!(conflict(&packet(reply, THEIRS, ADDRESS, none), OURS, ADDRESS), Some(THEIRS));
        assert_eq!(conflict(&packet(request, THEIRS, ADDRESS, other), OURS, ADDRESS), Some(THEIRS));
        assert_eq!(conflict(&probe(THEIRS, ADDRESS), OURS, ADDRESS), Some(THEIRS));
        assert_eq!(conflict(&announcement(THEIRS, ADDRESS), OURS, ADDRESS), Some(THEIRS));
        assert_eq!(conflict(&probe(OURS, ADDRESS), OURS, ADDRESS), None, "our own");
        assert_eq!(
            conflict(&packet(request, THEIRS, other, ADDRESS), OURS, ADDRESS),
            None,
            "another host looks for it"
        );
        assert_eq!(conflict(&packet(reply, THEIRS, other, ADDRESS), OURS, ADDRESS), None);
        assert_eq!(conflict(&packet(reply, THEIRS, none, ADDRESS), OURS, ADDRESS), None, "no probe");
        let whole = packet(reply, THEIRS, ADDRESS, none);
        for length in 0..whole.len() {
            assert_eq!(conflict(&whole[..length], OURS, ADDRESS), None);
        }
    }
}
