//! The values of `vlan` and `vlanTrunk`.

use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// The valid VLAN ids.
const VLANS: RangeInclusive<i64> = 1..=4094;

/// The key `vlan`: absent or 0 means no VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan(pub Option<u16>);

impl<'de> Deserialize<'de> for Vlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vlan, D::Error> {
        let vlan = i64::deserialize(deserializer)?;
        if vlan == 0 {
            return Ok(Vlan(None));
        }
        match in_range(vlan) {
            Some(vlan) => Ok(Vlan(Some(vlan))),
            None => Err(D::Error::custom(format!("invalid VLAN ID {vlan} (must be between 0 and 4094)"))),
        }
    }
}

/// An element of `vlanTrunk`: the VLANs from `minID` to `maxID`, and that of `id`. Each may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TrunkConfig")]
pub struct Trunk(pub(crate) Vec<RangeInclusive<u16>>);

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
        let mut ranges = Vec::new();
        match (checked(min, "minID")?, checked(max, "maxID")?) {
            (Some(min), Some(max)) if min > max => {
                return Err(format!("minID is greater than maxID: {min} > {max}; hint: exchange them"));
            }
            (Some(min), Some(max)) => ranges.push(min..=max),
            (None, None) => {}
            (min, _) => {
                let missing = if min.is_none() { "minID" } else { "maxID" };
                return Err(format!("minID and maxID should be configured simultaneously, {missing} is missing"));
            }
        }
        if let Some(id) = checked(id, "id")? {
            ranges.push(id..=id);
        }
        Ok(Trunk(ranges))
    }
}

fn checked(vlan: Option<i64>, key: &str) -> Result<Option<u16>, String> {
    let Some(vlan) = vlan else { return Ok(None) };
    match in_range(vlan) {
        Some(vlan) => Ok(Some(vlan)),
        None => Err(format!("incorrect trunk {key} parameter {vlan} (must be between 1 and 4094)")),
    }
}

fn in_range(vlan: i64) -> Option<u16> {
    if !VLANS.contains(&vlan) {
        return None;
    }
    u16::try_from(vlan).ok()
}
