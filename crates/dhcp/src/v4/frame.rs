//! IPv4 packets with DHCP messages.

use std::net::Ipv4Addr;

use dhcproto::v4::{CLIENT_PORT, SERVER_PORT};
use etherparse::{IpNumber, Ipv4Header, Ipv4Slice, UdpHeader, UdpSlice};

/// The TTL of packets to a server: a relay forwards messages, not packets.
const TTL: u8 = 64;

/// The IPv4 packet with this message, from the client's port to the server's.
pub(crate) fn packet(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(UdpHeader::LEN + payload.len()).unwrap_or(u16::MAX);
    let Ok(mut ip) = Ipv4Header::new(length, TTL, IpNumber::UDP, from.octets(), to.octets()) else { return Vec::new() };
    ip.header_checksum = ip.calc_header_checksum();
    let Ok(udp) = UdpHeader::with_ipv4_checksum(CLIENT_PORT, SERVER_PORT, &ip, payload) else { return Vec::new() };
    let mut packet = Vec::with_capacity(Ipv4Header::MIN_LEN + UdpHeader::LEN + payload.len());
    packet.extend(ip.to_bytes());
    packet.extend(udp.to_bytes());
    packet.extend(payload);
    packet
}

/// The message in an IPv4 packet to the client's port; `None` if the packet is a fragment or anything else.
///
/// Checksums are not compared: the kernel of a server on the same host leaves them to a network card that the packet never
/// reaches.
pub(crate) fn payload(packet: &[u8]) -> Option<&[u8]> {
    let ip = Ipv4Slice::from_slice(packet).ok()?;
    if ip.payload_ip_number() != IpNumber::UDP || ip.is_payload_fragmented() {
        return None;
    }
    let udp = UdpSlice::from_slice(ip.payload().payload).ok()?;
    if udp.destination_port() == CLIENT_PORT { Some(udp.payload()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_the_addresses_ports_and_checksums() {
        let packet = packet(Ipv4Addr::new(10, 0, 0, 5), Ipv4Addr::new(10, 0, 0, 1), b"message");
        let ip = Ipv4Slice::from_slice(&packet).unwrap();
        let udp = UdpSlice::from_slice(ip.payload().payload).unwrap();
        let header = ip.header().to_header();
        assert_eq!((ip.header().source(), ip.header().destination()), ([10, 0, 0, 5], [10, 0, 0, 1]));
        assert_eq!((udp.source_port(), udp.destination_port(), udp.payload()), (68, 67, &b"message"[..]));
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(udp.to_header().calc_checksum_ipv4(&header, b"message"), Ok(udp.checksum()));
        assert_eq!(payload(&packet), None, "it is for a server");
    }

    #[test]
    fn only_whole_datagrams_to_the_client_are_read() {
        let mut good = packet(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::BROADCAST, b"message");
        good[22..24].copy_from_slice(&CLIENT_PORT.to_be_bytes());
        assert_eq!(payload(&good), Some(&b"message"[..]));
        for length in 0..good.len() {
            assert_eq!(payload(&good[..length]), None, "{length} bytes of it");
        }
        let changed = |at: usize, byte: u8| {
            let mut packet = good.clone();
            packet[at] = byte;
            packet
        };
        for (at, byte, what) in
            [(0, 0x65, "version 6"), (6, 0x20, "a first fragment"), (7, 1, "a later one"), (9, 6, "TCP")]
        {
            assert_eq!(payload(&changed(at, byte)), None, "{what}");
        }
        assert_eq!(payload(&changed(26, 0)), Some(&b"message"[..]), "a checksum that is not computed yet");
        let padded = [&good[..], &[0; 18]].concat();
        assert_eq!(payload(&padded), Some(&b"message"[..]), "a frame of the least length");
    }
}
