//! The VLANs of a bridge port.

use std::fmt;
use std::ops::RangeInclusive;

use cnikit_netlink::{Batch, Link, Netlink, VlanRange};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Journal, Result};

use crate::link::veth_ends;

/// The VLANs of a bridge port, on a bridge that filters by VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlans {
    native: u16,
    tagged: Vec<VlanRange>,
    keep_default: bool,
}

impl Vlans {
    /// Untagged frames belong to `native`. Frames of the trunk's VLANs are tagged; its ranges may be in any order and overlap, and
    /// the native VLAN stays native if the trunk contains it. With `keep_default` the port also stays in the bridge's default VLAN,
    /// whose frames leave it untagged.
    pub fn new(native: u16, trunk: &[RangeInclusive<u16>], keep_default: bool) -> Vlans {
        let mut tagged = Vec::new();
        for range in trunk {
            // The parts of the range below and above the native VLAN.
            let below = *range.start()..=(*range.end()).min(native.saturating_sub(1));
            let above = (*range.start()).max(native.saturating_add(1))..=*range.end();
            for part in [below, above] {
                if !part.is_empty() {
                    tagged.push(VlanRange::tagged(*part.start(), *part.end()));
                }
            }
        }
        Vlans { native, tagged: joined(tagged), keep_default }
    }

    /// Puts a port into these VLANs, with two messages. The kernel needs a moment for each VLAN that the port was in.
    pub(crate) fn set_on(&self, host: &Netlink, port: &Link) -> Result<()> {
        let mut batch = Batch::new();
        if !self.keep_default {
            batch.delete_vlans(port.index, VlanRange::ALL);
        }
        batch.add_vlans(port.index, &[&[VlanRange::native(self.native)], self.tagged.as_slice()].concat());
        Ok(host.send(batch)?)
    }

    /// The VLANs that a port has to be in, on a bridge with this default VLAN.
    pub(crate) fn on(&self, default: Option<u16>) -> Vec<VlanRange> {
        let mut vlans = self.tagged.clone();
        vlans.push(VlanRange::native(self.native));
        if let Some(vlan) = default
            && self.keep_default
            && vlan != 0
            && !self.contains(vlan)
        {
            vlans.push(VlanRange { untagged: true, ..VlanRange::tagged(vlan, vlan) });
        }
        joined(vlans)
    }

    fn contains(&self, vlan: u16) -> bool {
        vlan == self.native || self.tagged.iter().any(|range| (range.first..=range.last).contains(&vlan))
    }
}

/// Sorts the ranges, and joins adjacent ones that are alike.
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

/// The host end is in these VLANs of its bridge, and in no other.
#[derive(Clone, Debug)]
pub struct PortVlans {
    /// The container's interface.
    pub ifname: String,
    /// The bridge.
    pub bridge: String,
    /// The VLANs.
    pub vlans: Vlans,
}

/// The kind of [`PortVlans`].
pub const KIND: Kind = Kind::goes_with_link("VLANs of the port");

impl Resource for PortVlans {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        self.vlans.set_on(host, &veth_ends::own_host_end(host, &context.tag)?)?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let host = context.host()?;
        // If the host end is not a port of the bridge any more, the comparison of the pair reports that.
        let Some(bridge) = host.find_recent_link(&self.bridge)? else { return Ok(()) };
        let Some(port) = veth_ends::host_end_of_interface(context, &self.ifname)? else { return Ok(()) };
        if port.master != Some(bridge.index) {
            return Ok(());
        }
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
    fn the_default_vlan_stays_untagged_unless_configured_otherwise() {
        assert_eq!(on(&Vlans::new(100, &[2..=3], true), 1), "[1 untagged, 2-3, 100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[], true), 0), "[100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[], true), 100), "[100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[1..=2], true), 1), "[1-2, 100 PVID untagged]");
        assert_eq!(on(&Vlans::new(100, &[], false), 1), "[100 PVID untagged]");
    }

    #[test]
    fn they_are_printed_for_people() {
        let text = Vlans::new(100, &[5..=5, 200..=210], true).to_string();
        assert_eq!(text, "100 untagged, 5, 200-210 tagged, beside the bridge's default");
        assert_eq!(Vlans::new(7, &[], false).to_string(), "7 untagged");
    }
}
