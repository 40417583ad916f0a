//! The keys of the configuration, and the checked values that the rest of the plugin works with.

use std::net::IpAddr;

use cnikit::keys::{IpamType, Mtu};
use cnikit::{KeySource, Sources};
use serde::Deserialize;

// guide: keys
/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VxlanKeys {
    /// The number of the VXLAN, from 1 to 16777215. Required, unless `vnis` is set and the runtime requests one of them.
    pub vni: Option<u32>,
    /// The VNIs that the runtime may request by `VNI` in `CNI_ARGS`: the first and the last one. Default: none.
    pub vnis: Option<(u32, u32)>,
    /// `VNI` of `CNI_ARGS`; no key of the configuration.
    #[serde(rename = "requestedVni")]
    pub requested_vni: Option<u32>,
    /// The addresses of the other hosts, all of one family. Required.
    pub peers: Vec<IpAddr>,
    /// The address of this host that the packets are sent from. Default: the kernel chooses.
    pub local: Option<IpAddr>,
    /// The UDP port of all hosts. Default: 4789, that of RFC 7348.
    pub port: Option<u16>,
    /// The MTU in bytes. Default, and 0: 1450 between IPv4 hosts, 1430 between IPv6 hosts, for networks of 1500.
    pub mtu: Mtu,
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
}

/// The configuration, validated.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "VxlanKeys")]
pub struct VxlanPlugin {
    pub(crate) segment: Segment,
    pub(crate) mtu: u32,
}

/// One VXLAN as this host sees it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) vni: u32,
    pub(crate) port: u16,
    pub(crate) local: Option<IpAddr>,
    pub(crate) peers: Vec<IpAddr>,
}
// guide: end

// guide: sources
/// Where keys may be set besides the configuration: the VNI that the runtime requests.
pub(crate) const SOURCES: Sources = &[("requestedVni", &[KeySource::CniArgNumber("VNI")])];
// guide: end

/// The largest VNI: it has 24 bits.
const LARGEST_VNI: u32 = 0xff_ffff;
/// The port of RFC 7348.
const PORT: u16 = 4789;
/// The MTU of the network between the hosts that the default is made for.
const NETWORK_MTU: u32 = 1500;
/// Ethernet, VXLAN and UDP headers around a frame.
const HEADERS: u32 = 14 + 8 + 8;

// guide: try_from
impl TryFrom<VxlanKeys> for VxlanPlugin {
    type Error = String;

    fn try_from(keys: VxlanKeys) -> Result<VxlanPlugin, String> {
        let vni = keys.chosen_vni()?;
        if vni == 0 || vni > LARGEST_VNI {
            return Err(format!("vni {vni} is not a VNI; hint: choose one from 1 to {LARGEST_VNI}"));
        }
        let Some(first) = keys.peers.first() else {
            return Err("there are no peers; hint: set `peers` to the addresses of the other hosts".to_owned());
        };
        for address in keys.peers.iter().chain(&keys.local) {
            if address.is_ipv4() != first.is_ipv4() {
                return Err(format!("{address} and {first} are of two families; hint: a VXLAN has one"));
            }
            if address.is_multicast() || address.is_unspecified() {
                return Err(format!("{address} is not the address of a host; hint: list each host in `peers`"));
            }
        }
        let ip_header = if first.is_ipv4() { 20 } else { 40 };
        let mtu = keys.mtu.0.unwrap_or(NETWORK_MTU - HEADERS - ip_header);
        let port = keys.port.unwrap_or(PORT);
        Ok(VxlanPlugin { segment: Segment { vni, port, local: keys.local, peers: keys.peers }, mtu })
    }
}

impl VxlanKeys {
    /// The VNI: the requested one, if the operator allows it, or else that of the configuration. Tenants who start containers
    /// may be able to set `CNI_ARGS`, and with a VNI of their choice they could enter each other's networks.
    fn chosen_vni(&self) -> Result<u32, String> {
        match (self.requested_vni, self.vnis, self.vni) {
            (Some(wanted), Some((first, last)), _) if (first..=last).contains(&wanted) => Ok(wanted),
            (Some(wanted), Some((first, last)), _) => Err(format!(
                "VNI {wanted} was requested, and `vnis` allows {first} to {last}; hint: request one of these"
            )),
            (Some(wanted), None, _) => {
                Err(format!("VNI {wanted} was requested, and the network allows no requests; hint: set `vnis`"))
            }
            (None, _, Some(vni)) => Ok(vni),
            (None, _, None) => Err("there is no VNI; hint: set `vni`, or `vnis` and VNI in CNI_ARGS".to_owned()),
        }
    }
}
// guide: end

#[cfg(test)]
mod tests {
    use super::*;

    // guide: refusals
    fn refusal(json: &str) -> String {
        serde_json::from_str::<VxlanPlugin>(json).map(|_| ()).expect_err(json).to_string()
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_key_and_a_hint() {
        for (json, text) in [
            (r#"{"peers":["192.0.2.2"]}"#, "there is no VNI; hint: set `vni`"),
            (r#"{"vni":0,"peers":["192.0.2.2"]}"#, "vni 0 is not a VNI"),
            (r#"{"vni":16777216,"peers":["192.0.2.2"]}"#, "vni 16777216 is not a VNI"),
            (r#"{"vni":9}"#, "there are no peers; hint: set `peers`"),
            (r#"{"vni":9,"peers":["192.0.2.2","2001:db8::2"]}"#, "2001:db8::2 and 192.0.2.2 are of two families"),
            (r#"{"vni":9,"peers":["192.0.2.2"],"local":"::1"}"#, "::1 and 192.0.2.2 are of two families"),
            (r#"{"vni":9,"peers":["224.0.0.9"]}"#, "224.0.0.9 is not the address of a host"),
            (r#"{"vni":9,"requestedVni":7,"peers":["192.0.2.2"]}"#, "the network allows no requests; hint: set `vnis`"),
            (r#"{"vnis":[5,6],"requestedVni":7,"peers":["192.0.2.2"]}"#, "`vnis` allows 5 to 6"),
        ] {
            let refused = refusal(json);
            assert!(refused.contains(text), "{json}: {refused}");
        }
    }
    // guide: end

    #[test]
    fn the_mtu_leaves_room_for_the_headers_of_the_family() {
        let mtu = |json: &str| serde_json::from_str::<VxlanPlugin>(json).map(|plugin| plugin.mtu).ok();
        assert_eq!(mtu(r#"{"vni":9,"peers":["192.0.2.2"]}"#), Some(1450));
        assert_eq!(mtu(r#"{"vni":9,"peers":["2001:db8::2"]}"#), Some(1430));
        assert_eq!(mtu(r#"{"vni":9,"peers":["2001:db8::2"],"mtu":8950}"#), Some(8950));
    }

    #[test]
    fn a_requested_vni_of_the_range_comes_before_that_of_the_configuration() {
        let json = r#"{"vni":9,"vnis":[5,7],"requestedVni":7,"peers":["192.0.2.2"]}"#;
        assert_eq!(serde_json::from_str::<VxlanPlugin>(json).map(|plugin| plugin.segment.vni).ok(), Some(7));
    }
}
