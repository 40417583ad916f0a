//! IPv6 packets with DHCP messages, for a client whose interface is gone.

use std::net::Ipv6Addr;

use cnikit_netlink::Mac;
use etherparse::{IpNumber, Ipv6FlowLabel, Ipv6Header, UdpHeader};

use super::client::ALL_SERVERS;
use super::{CLIENT_PORT, SERVER_PORT};

/// The hardware address of [`ALL_SERVERS`] (RFC 2464, section 7).
const ALL_SERVERS_MAC: Mac = Mac([0x33, 0x33, 0, 1, 0, 2]);

/// The packet with this message from the client's link-local address to all servers of a link, and the hardware address that it is
/// sent to. The link-local address is that of the hardware address (RFC 4291, appendix A).
pub fn multicast_packet(mac: Mac, payload: &[u8]) -> (Mac, Vec<u8>) {
    let ip = Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: u16::try_from(UdpHeader::LEN + payload.len()).unwrap_or(u16::MAX),
        next_header: IpNumber::UDP,
        hop_limit: 1,
        source: link_local(mac).octets(),
        destination: ALL_SERVERS.octets(),
    };
    let mut packet = ip.to_bytes().to_vec();
    if let Ok(udp) = UdpHeader::with_ipv6_checksum(CLIENT_PORT, SERVER_PORT, &ip, payload) {
        packet.extend(udp.to_bytes());
    }
    packet.extend(payload);
    (ALL_SERVERS_MAC, packet)
}

fn link_local(mac: Mac) -> Ipv6Addr {
    let [first, second, third, rest @ ..] = mac.0;
    let mut address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, first ^ 2, second, third, 0xff, 0xfe, 0, 0, 0];
    address[13..].copy_from_slice(&rest);
    Ipv6Addr::from(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Ipv6Slice, UdpSlice};

    #[test]
    fn a_packet_has_the_addresses_ports_and_checksum() {
        let (to, packet) = multicast_packet(Mac([0x52, 0x54, 0, 1, 2, 3]), b"message");
        assert_eq!(to, Mac([0x33, 0x33, 0, 1, 0, 2]));
        let ip = Ipv6Slice::from_slice(&packet).unwrap();
        let header = ip.header().to_header();
        assert_eq!(Ipv6Addr::from(header.source), "fe80::5054:ff:fe01:203".parse::<Ipv6Addr>().unwrap());
        let udp = UdpSlice::from_slice(ip.payload().payload).unwrap();
        assert_eq!((udp.source_port(), udp.destination_port(), udp.payload()), (546, 547, &b"message"[..]));
        assert_eq!(udp.to_header().calc_checksum_ipv6(&header, b"message"), Ok(udp.checksum()));
    }
}
