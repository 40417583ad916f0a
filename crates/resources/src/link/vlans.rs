//! The VLANs of a bridge port.

use std::fmt;
use std::ops::RangeInclusive;

use cnikit_netlink::{Batch, Link, Netlink, VlanRange};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Journal, Result};

use crate::link::{bridge_port, veth};

/// The VLANs that a bridge port is in, on a bridge that filters by VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlans {
    native: u16,
    tagged: Vec<VlanRange>,
    keep_default: bool,
}

impl Vlans {
    /// Untagged frames are in `native`; those of the trunk, in any order, twice or not, are tagged. The native VLAN stays
    /// native if it stands in the trunk too. With `keep_default` the port also stays in the VLAN that the bridge puts every
    /// port in, whose frames then leave it untagged.
    pub fn new(native: u16, trunk: &[RangeInclusive<u16>], keep_default: bool) -> Vlans {
        let around = |range: &RangeInclusive<u16>| {
            let first = *range.start();
            let last = *range.end();
            [(first, last.min(native.saturating_sub(1))), (first.max(native.saturating_add(1)), last)]
        };
        let parts = trunk.iter().flat_map(around).filter(|(first, last)| first <= last);
        let tagged = joined(parts.map(|(first, last)| VlanRange::tagged(first, last)).collect());
        Vlans { native, tagged, keep_default }
    }

    /// Gives them to a port: two messages, however many there are. The kernel may take a moment over each VLAN, but for
    /// those that the port is not in.
    pub(crate) fn give(&self, host: &Netlink, port: &Link) -> Result<()> {
        let mut batch = Batch::new();
        if !self.keep_default {
            batch.delete_vlans(port.index, VlanRange::ALL);
        }
        batch.add_vlans(port.index, &[&[VlanRange::native(self.native)], self.tagged.as_slice()].concat());
        Ok(host.send(batch)?)
    }

    /// What a port has to have on a bridge whose ports are in this VLAN by default.
    pub(crate) fn on(&self, default: Option<u16>) -> Vec<VlanRange> {
        let is_said =
            |vlan| vlan == self.native || self.tagged.iter().any(|one| (one.first..=one.last).contains(&vlan));
        let default = default.filter(|vlan| self.keep_default && *vlan != 0 && !is_said(*vlan));
        let kept = default.map(|vlan| VlanRange { untagged: true, ..VlanRange::tagged(vlan, vlan) });
        let native = VlanRange::native(self.native);
        joined(self.tagged.iter().copied().chain([native]).chain(kept).collect())
    }
}

/// In order, and what is alike and side by side in one.
fn joined(mut ranges: Vec<VlanRange>) -> Vec<VlanRange> {
    ranges.sort_unstable();
    let mut joined: Vec<VlanRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(before) if before.continues_in(&range) => before.last = before.last.max(range.last),
            _ => joined.push(range),
        }
    }
    joined
}

pub(crate) fn listed(ranges: &[VlanRange]) -> String {
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    format!("[{}]", texts.join(", "))
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} untagged", self.native)?;
        let tagged: Vec<String> = self.tagged.iter().map(ToString::to_string).collect();
        if !tagged.is_empty() {
            write!(f, ", {} tagged", tagged.join(", "))?;
        }
        f.write_str(if self.keep_default { ", beside the bridge's default" } else { "" })
    }
}

/// The host's end of the pair is in these VLANs of its bridge, and in no other.
#[derive(Clone, Debug)]
pub struct PortVlans {
    /// The container's end.
    pub ifname: String,
    /// The bridge.
    pub bridge: String,
    /// The VLANs.
    pub vlans: Vlans,
}

/// The kind that these are of.
pub const KIND: Kind = Kind::goes_with_link("VLANs of the port");

impl Resource for PortVlans {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        self.vlans.give(host, &veth::own_host_end(host, &context.tag)?)?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let host = context.host()?;
        // That it is no port of the bridge any more is said where the pair is compared.
        let Some(bridge) = host.find_recent_link(&self.bridge)? else { return Ok(()) };
        let port = bridge_port::of(context, &self.ifname)?.filter(|port| port.master == Some(bridge.index));
        let Some(port) = port else { return Ok(()) };
        let wanted = self.vlans.on(bridge.default_vlan);
        let found = joined(host.vlans(port.index)?);
        drifts.compare(format!("VLANs of {}", port.name), listed(&wanted), listed(&found));
        Ok(())
    }
}

impl fmt::Display for PortVlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the port of bridge {} in VLAN {}", self.bridge, self.vlans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(vlans: &Vlans, default: u16) -> String {
        listed(&vlans.on(Some(default)))
    }

    #[test]
    fn a_trunk_is_sorted_joined_and_never_takes_the_native_vlan() {
        let trunk = |ranges: &[RangeInclusive<u16>]| on(&Vlans::new(100, ranges, false), 1);
        assert_eq!(trunk(&[]), "[100 PVID untagged]");
        assert_eq!(trunk(&[300..=300, 7..=9, 8..=20, 21..=21, 300..=300]), "[7-21, 100 PVID untagged, 300]");
        assert_eq!(trunk(&[100..=100]), "[100 PVID untagged]");
        assert_eq!(trunk(&[1..=4094]), "[1-99, 100 PVID untagged, 101-4094]");
        assert_eq!(on(&Vlans::new(1, &[1..=3], false), 1), "[1 PVID untagged, 2-3]");
        assert_eq!(on(&Vlans::new(4094, &[4093..=4094], false), 1), "[4093, 4094 PVID untagged]");
    }

    #[test]
    fn the_default_vlan_is_kept_untagged_unless_more_is_said_of_it() {
        assert_eq!(on(&Vlans::new(100, &[2..=3], true), 1), "[1 untagged, 2-3, 100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[], true), 0), "[100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[], true), 100), "[100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[1..=2], true), 1), "[1-2, 100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[], false), 1), "[100 PVID untagged]");
    }

    #[test]
    fn they_are_said_in_words() {
        let said = Vlans::new(100, &[5..=5, 200..=210], true).to_string();
        assert_eq!(said, "100 untagged, 5, 200-210 tagged, beside the bridge's default");
        assert_eq!(Vlans::new(7, &[], false).to_string(), "7 untagged");
    }
}
