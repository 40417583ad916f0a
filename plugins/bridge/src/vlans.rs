//! `vlan`, `vlanTrunk` and `preserveDefaultVlan`: how they are written, and what they ask for.

use std::ops::RangeInclusive;

use cnikit::resources::bridge::VlanFiltering;
use cnikit::resources::vlan_gateway::{self, VlanGateway};
use cnikit::resources::vlans::Vlans;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::BridgeKeys;

/// The VLANs that there are.
const VLANS: RangeInclusive<i64> = 1..=4094;
/// What the reference gives a port that has a trunk but no `vlan`.
const FIRST: u16 = 1;

/// `vlan`: absent and 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan(pub Option<u16>);

impl<'de> Deserialize<'de> for Vlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vlan, D::Error> {
        let vlan = i64::deserialize(deserializer)?;
        let refused = || D::Error::custom(format!("invalid VLAN ID {vlan} (must be between 0 and 4094)"));
        if vlan == 0 { Ok(Vlan(None)) } else { in_range(vlan).map(|vlan| Vlan(Some(vlan))).ok_or_else(refused) }
    }
}

/// An element of `vlanTrunk`: the VLANs from `minID` to `maxID`, and the one of `id`; each may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TrunkConfig")]
pub struct Trunk(Vec<RangeInclusive<u16>>);

#[derive(Deserialize, Default)]
#[serde(default)]
struct TrunkConfig {
    id: Option<i64>,
    #[serde(rename = "minID")]
    min: Option<i64>,
    #[serde(rename = "maxID")]
    max: Option<i64>,
}

impl TryFrom<TrunkConfig> for Trunk {
    type Error = String;

    fn try_from(TrunkConfig { id, min, max }: TrunkConfig) -> Result<Trunk, String> {
        let one = |said: Option<i64>, key| said.map(|vlan| known(vlan, key)).transpose();
        let range = match (one(min, "minID")?, one(max, "maxID")?) {
            (Some(min), Some(max)) if min > max => {
                return Err(format!("minID is greater than maxID: {min} > {max}; exchange them"));
            }
            (Some(min), Some(max)) => Some(min..=max),
            (None, None) => None,
            (min, _) => {
                let missing = if min.is_none() { "minID" } else { "maxID" };
                return Err(format!("minID and maxID should be configured simultaneously, {missing} is missing"));
            }
        };
        let id = one(id, "id")?.map(|id| id..=id);
        Ok(Trunk(range.into_iter().chain(id).collect()))
    }
}

fn known(vlan: i64, key: &str) -> Result<u16, String> {
    in_range(vlan).ok_or_else(|| format!("incorrect trunk {key} parameter {vlan} (must be between 1 and 4094)"))
}

fn in_range(vlan: i64) -> Option<u16> {
    u16::try_from(vlan).ok().filter(|_| VLANS.contains(&vlan))
}

impl BridgeKeys {
    /// The VLANs of the container's port, if any are said.
    pub(crate) fn vlans(&self) -> Option<Vlans> {
        let trunk: Vec<_> = self.vlan_trunk.iter().flatten().flat_map(|Trunk(ranges)| ranges).cloned().collect();
        let native = self.vlan.0.or_else(|| (!trunk.is_empty()).then_some(FIRST))?;
        Some(Vlans::new(native, &trunk, self.preserve_default_vlan))
    }

    /// A trunk of no VLANs asks nothing of a bridge that is there.
    pub(crate) fn filtering(&self) -> VlanFiltering {
        match (self.vlans(), &self.vlan_trunk) {
            (Some(_), _) => VlanFiltering::Required,
            (None, Some(_)) => VlanFiltering::IfMade,
            (None, None) => VlanFiltering::Any,
        }
    }

    /// The gateway's own link into the container's VLAN: the bridge itself is in none of them but its default.
    pub(crate) fn vlan_gateway(&self) -> Option<VlanGateway> {
        let vlan = self.vlan.0.filter(|_| self.has_gateway() && !self.ipam.name.is_empty())?;
        let bridge = self.bridge.clone();
        let keep_default = self.preserve_default_vlan;
        Some(VlanGateway { bridge, vlan, keep_default, detection: self.detection() })
    }

    /// The link by which the host is in the container's segment.
    pub(crate) fn gateway_link(&self) -> String {
        self.vlan_gateway()
            .map_or_else(|| self.bridge.clone(), |gateway| vlan_gateway::name(&self.bridge, gateway.vlan))
    }

    /// A name of two parts may be too long where each is not.
    pub(crate) fn check_gateway_link(&self) -> Result<(), String> {
        let name = self.gateway_link();
        let bridge = &self.bridge;
        let refused = |error| {
            format!(
                "the link of the gateway would be called {name:?}: {error}: give `bridge` a name shorter than {bridge:?}"
            )
        };
        cnikit::types::check_ifname(&name).map_err(refused)
    }
}
