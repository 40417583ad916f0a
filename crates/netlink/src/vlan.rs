//! The VLANs of bridge ports.

use std::fmt;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, parse_u16};
use netlink_packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute, LinkHeader, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::attribute::{attributes, value};
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Error, Netlink, Result};

/// `RTM_GETVLAN` of `linux/rtnetlink.h`.
const GETVLAN: u16 = 114;
/// Length of a `br_vlan_msg`.
const VLAN_HEADER: usize = 8;

// The attributes that are read here, from `linux/if_bridge.h`.
const ENTRY: u16 = 1;
const ENTRY_INFO: u16 = 1;
const ENTRY_RANGE: u16 = 2;

/// One VLAN of a bridge port, or several consecutive ones with the same flags. See bridge(8), `vlan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[doc(alias = "bridge_vlan_info")]
pub struct VlanRange {
    /// The first VLAN id, 1 or more.
    pub first: u16,
    /// The last VLAN id, 4094 or less; the same as `first` for a single VLAN.
    pub last: u16,
    /// Untagged frames that come in at the port are in this VLAN. A port has at most one such VLAN; the kernel refuses the flag for
    /// a range of several.
    #[doc(alias = "BRIDGE_VLAN_INFO_PVID")]
    pub pvid: bool,
    /// Frames of this VLAN leave the port untagged.
    #[doc(alias = "BRIDGE_VLAN_INFO_UNTAGGED")]
    pub untagged: bool,
}

impl VlanRange {
    /// All VLANs, tagged.
    pub const ALL: VlanRange = VlanRange { first: 1, last: 4094, pvid: false, untagged: false };

    /// One VLAN for untagged frames, in both directions.
    pub fn native(vlan: u16) -> VlanRange {
        VlanRange { first: vlan, last: vlan, pvid: true, untagged: true }
    }

    /// A range of VLANs for tagged frames, in both directions.
    pub fn tagged(first: u16, last: u16) -> VlanRange {
        VlanRange { first, last, pvid: false, untagged: false }
    }

    /// Whether `other` overlaps or follows this range and has the same flags, so that both can be one range.
    pub fn continues_in(&self, other: &VlanRange) -> bool {
        let alike = (self.pvid, self.untagged) == (other.pvid, other.untagged);
        alike && !self.pvid && (self.first..=self.last.saturating_add(1)).contains(&other.first)
    }
}

/// The range as bridge(8) writes it: `100 PVID untagged`, `200-210`.
impl fmt::Display for VlanRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.last != self.first {
            write!(f, "-{}", self.last)?;
        }
        f.write_str(if self.pvid { " PVID" } else { "" })?;
        f.write_str(if self.untagged { " untagged" } else { "" })
    }
}

impl Netlink {
    /// The VLANs of a bridge port in ascending order; consecutive ones with the same flags are one range. The kernel filters by
    /// port.
    ///
    /// # Errors
    /// [`crate::Error::unsupported`] if the kernel is older than Linux 5.6 or built without `CONFIG_BRIDGE_VLAN_FILTERING`.
    /// Otherwise as [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "RTM_GETVLAN")]
    pub fn vlans(&self, port: u32) -> Result<Vec<VlanRange>> {
        let request = question(port);
        let failed = |error: Error| error.during("list VLANs of bridge port", format!("number {port}"));
        let messages = self.with_socket(|socket| socket.dump(&request)).map_err(failed)?;
        Ok(messages.iter().flat_map(|message| VlanRange::parse_all(message)).collect())
    }
}

/// A request that adds a port to all of these VLANs. If the port is in a VLAN already, its flags are changed to those given here.
///
/// # Errors
/// A range that ends before it begins.
pub(crate) fn addition(port: u32, ranges: &[VlanRange]) -> Result<Request> {
    ranges.iter().copied().try_for_each(VlanRange::check)?;
    let infos = ranges.iter().copied().flat_map(VlanRange::infos).map(AfSpecBridge::VlanInfo).collect();
    Ok(request("add VLANs of", RouteNetlinkMessage::SetLink(message(port, infos)), port))
}

/// A request that removes a port from a range of VLANs; the kernel ignores those that the port is not in.
///
/// # Errors
/// A range that ends before it begins.
pub(crate) fn deletion(port: u32, range: VlanRange) -> Result<Request> {
    range.check()?;
    let infos = range.infos().into_iter().map(AfSpecBridge::VlanInfo).collect();
    Ok(request("delete VLANs of", RouteNetlinkMessage::DelLink(message(port, infos)), port))
}

fn request(operation: &'static str, message: RouteNetlinkMessage, port: u32) -> Request {
    Request {
        message: message.into(),
        flags: 0,
        operation,
        object: "".into(),
        link: Some(port),
        forgives: Forgives::Nothing,
    }
}

fn message(port: u32, infos: Vec<AfSpecBridge>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header = LinkHeader { interface_family: AddressFamily::Bridge, index: port, ..LinkHeader::default() };
    message.attributes.push(LinkAttribute::AfSpecBridge(infos));
    message
}

/// An `RTM_GETVLAN` request for one port: an `nlmsghdr`, whose sequence number [`Socket::dump`](crate::Socket::dump) fills in, and
/// a `br_vlan_msg`.
fn question(port: u32) -> Vec<u8> {
    let length = u32::try_from(HEADER + VLAN_HEADER).unwrap_or_default();
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let family = [u8::try_from(libc::AF_BRIDGE).unwrap_or_default(), 0, 0, 0];
    let kind = GETVLAN.to_ne_bytes();
    let flags = flags.to_ne_bytes();
    let port = port.to_ne_bytes();
    [&length.to_ne_bytes()[..], &kind, &flags, &[0; 8], &family, &port].concat()
}

impl VlanRange {
    fn is_one(self) -> bool {
        self.first <= self.last
    }

    fn check(self) -> Result<()> {
        let refused = || Error::ours("use VLANs", self.to_string(), "the range ends before it begins");
        if self.is_one() { Ok(()) } else { Err(refused()) }
    }

    /// The attributes for this range: one for a single VLAN, otherwise one for the first VLAN and one for the last.
    fn infos(self) -> Vec<BridgeVlanInfo> {
        let mut flags = BridgeVlanInfoFlags::empty();
        flags.set(BridgeVlanInfoFlags::Pvid, self.pvid);
        flags.set(BridgeVlanInfoFlags::Untagged, self.untagged);
        let info = move |more, vid| BridgeVlanInfo { flags: flags | more, vid };
        let begin = BridgeVlanInfoFlags::RangeBegin;
        let end = BridgeVlanInfoFlags::RangeEnd;
        if self.last == self.first {
            return vec![info(BridgeVlanInfoFlags::empty(), self.first)];
        }
        vec![info(begin, self.first), info(end, self.last)]
    }

    /// Parses the entries of an `RTM_NEWVLAN` message.
    pub(crate) fn parse_all(message: &[u8]) -> Vec<VlanRange> {
        let mut ranges = Vec::new();
        for (kind, entry) in attributes(message.get(HEADER + VLAN_HEADER..).unwrap_or_default()) {
            if kind == ENTRY
                && let Some(range) = VlanRange::parse(entry)
            {
                ranges.push(range);
            }
        }
        ranges
    }

    fn parse(entry: &[u8]) -> Option<VlanRange> {
        let find = |wanted| value(entry, wanted);
        let BridgeVlanInfo { flags, vid } = find(ENTRY_INFO)?.try_into().ok()?;
        let last = find(ENTRY_RANGE).and_then(|last| parse_u16(last).ok()).unwrap_or(vid);
        let pvid = flags.contains(BridgeVlanInfoFlags::Pvid);
        let untagged = flags.contains(BridgeVlanInfoFlags::Untagged);
        let range = VlanRange { first: vid, last, pvid, untagged };
        range.is_one().then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, wire};

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused_and_never_read() {
        let backwards = VlanRange::tagged(20, 10);
        let mut added = Batch::new();
        let mut removed = Batch::new();
        added.add_vlans(3, &[VlanRange::native(1), backwards]);
        removed.delete_vlans(3, backwards);
        for batch in [added, removed] {
            assert!(wire::messages(batch).unwrap_err().to_string().contains("20-10"));
        }
        // An `RTM_NEWVLAN` message with one entry, whose range begins at VLAN 20 and ends at VLAN 10.
        let entry = [20, 0, 1, 0, 8, 0, 1, 0, 0, 0, 20, 0, 6, 0, 2, 0, 10, 0, 0, 0];
        assert_eq!(wire::vlans(&[&[0; HEADER + VLAN_HEADER][..], &entry].concat()), []);
    }
}
