//! Duplicate address detection (RFC 4862, section 5.4): is an address in use on the link already?

use std::net::Ipv6Addr;

use cnikit_netlink::Mac;
use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{Icmpv6Header, Icmpv6Type, IpNumber, Ipv6FlowLabel, Ipv6Header, Ipv6Slice};

/// The hop limit of every packet of neighbour discovery: no router has forwarded it.
const HOP_LIMIT: u8 = 255;
/// The types of `ICMPv6` messages.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Where the target is in a message, behind its type, code, checksum and flags.
const TARGET: std::ops::Range<usize> = 8..24;
/// The header of the option that has the hardware address of the target: its type, and its length in units of eight bytes.
const LINK_LAYER_ADDRESS: [u8; 2] = [2, 1];

/// A solicitation for the address, and the hardware address that it is sent to. It names no sender, so it fills no neighbour's
/// table.
pub(crate) fn solicitation(address: Ipv6Addr) -> (Mac, Vec<u8>) {
    let [.., first, second, third] = address.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(first), u16::from_be_bytes([second, third]));
    let kind = Icmpv6Type::NeighborSolicitation;
    let packet = message(kind, Ipv6Addr::UNSPECIFIED, group, &address.octets());
    (Mac([0x33, 0x33, 0xff, first, second, third]), packet)
}

/// An unsolicited advertisement of the address, which is that of the link with this hardware address, and the hardware address that
/// it is sent to: hosts that know the address with another hardware address correct that (RFC 4861, section 7.2.6).
pub fn advertisement_packet(mac: Mac, address: Ipv6Addr) -> (Mac, Vec<u8>) {
    let everyone = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let header = NeighborAdvertisementHeader { router: false, solicited: false, r#override: true };
    let kind = Icmpv6Type::NeighborAdvertisement(header);
    let content = [&address.octets()[..], &LINK_LAYER_ADDRESS, &mac.0].concat();
    (Mac([0x33, 0x33, 0, 0, 0, 1]), message(kind, address, everyone, &content))
}

fn message(kind: Icmpv6Type, from: Ipv6Addr, to: Ipv6Addr, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(Icmpv6Header::MIN_LEN + content.len()).unwrap_or(u16::MAX);
    let ip = Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: length,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: HOP_LIMIT,
        source: from.octets(),
        destination: to.octets(),
    };
    let mut packet = ip.to_bytes().to_vec();
    if let Ok(header) = Icmpv6Header::with_checksum(kind, ip.source, ip.destination, content) {
        packet.extend(header.to_bytes());
    }
    packet.extend(content);
    packet
}

/// The one of these addresses that the sender of an IPv6 packet uses, or detects duplicates of too.
pub(crate) fn conflict(packet: &[u8], mut addresses: impl Iterator<Item = Ipv6Addr>) -> Option<Ipv6Addr> {
    let ip = Ipv6Slice::from_slice(packet).ok()?;
    let (header, payload) = (ip.header(), ip.payload());
    if payload.ip_number != IpNumber::IPV6_ICMP || header.hop_limit() != HOP_LIMIT {
        return None;
    }
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(payload.payload.get(TARGET)?).ok()?);
    let is_used = match payload.payload[..2] {
        [ADVERTISEMENT, 0] => true,
        [SOLICITATION, 0] => header.source_addr().is_unspecified(),
        _ => false,
    };
    if is_used { addresses.find(|address| *address == target) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0x12, 0x3456);
    const OTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0x12, 0x3457);

    fn found(packet: &[u8]) -> Option<Ipv6Addr> {
        conflict(packet, [OTHER, ADDRESS].into_iter())
    }

    #[test]
    fn a_solicitation_has_the_group_of_its_target_and_a_checksum() {
        let (to, packet) = solicitation(ADDRESS);
        assert_eq!(to, Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
        let ip = Ipv6Slice::from_slice(&packet).unwrap();
        let header = ip.header().to_header();
        assert_eq!(Ipv6Addr::from(header.destination), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!((header.hop_limit, Ipv6Addr::from(header.source)), (255, Ipv6Addr::UNSPECIFIED));
        let (icmp, target) = Icmpv6Header::from_slice(ip.payload().payload).unwrap();
        assert_eq!((icmp.icmp_type, target), (Icmpv6Type::NeighborSolicitation, &ADDRESS.octets()[..]));
        let wanted = icmp.icmp_type.calc_checksum(header.source, header.destination, target).unwrap();
        assert_eq!(icmp.checksum, wanted);
    }

    #[test]
    fn an_advertisement_names_the_hardware_address_and_overrides_others() {
        let (to, packet) = advertisement_packet(Mac([2, 0, 0, 0, 0, 1]), ADDRESS);
        assert_eq!(to, Mac([0x33, 0x33, 0, 0, 0, 1]));
        let ip = Ipv6Slice::from_slice(&packet).unwrap();
        let header = ip.header().to_header();
        assert_eq!((header.hop_limit, Ipv6Addr::from(header.source)), (255, ADDRESS));
        let (icmp, content) = Icmpv6Header::from_slice(ip.payload().payload).unwrap();
        assert_eq!(icmp.to_bytes()[..2], [ADVERTISEMENT, 0]);
        assert_eq!(icmp.to_bytes()[4..], [0x20, 0, 0, 0], "it overrides, and is not solicited");
        assert_eq!((&content[..16], &content[16..]), (&ADDRESS.octets()[..], &[2, 1, 2, 0, 0, 0, 0, 1][..]));
        assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(header.source, header.destination, content).unwrap());
        assert_eq!(found(&packet), Some(ADDRESS), "to another client it is a conflict");
    }

    #[test]
    fn a_conflict_is_whoever_advertises_the_address_or_detects_duplicates_of_it() {
        let (_, probe) = solicitation(ADDRESS);
        assert_eq!(found(&probe), Some(ADDRESS), "another host's detection");
        let changed = |at: usize, byte: u8| {
            let mut packet = probe.clone();
            packet[at] = byte;
            packet
        };
        assert_eq!(found(&changed(40, ADVERTISEMENT)), Some(ADDRESS));
        assert_eq!(found(&changed(8, 0xfe)), None, "somebody with an address looks for it");
        assert_eq!(found(&changed(63, 0)), None, "another target");
        assert_eq!(found(&changed(7, 64)), None, "a router forwarded it");
        assert_eq!(found(&changed(6, 17)), None, "a UDP datagram");
        assert_eq!(found(&changed(40, 128)), None, "an echo request");
        assert_eq!(found(&changed(41, 1)), None, "another code");
        for length in 0..probe.len() {
            assert_eq!(found(&probe[..length]), None, "{length} bytes of it");
        }
    }
}
