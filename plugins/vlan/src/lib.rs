//! Makes a VLAN on a link of the host: the container has the frames of that VLAN, without their tag.
//!
//! Nothing is made on the host. The keys are those of [`VlanKeys`].
#![forbid(unsafe_code)]

use cnikit::keys::{self, CountedMtu, DnsOverride, IpamType, On};
use cnikit::plan::{Kind, Plan};
use cnikit::resources::stacked::StackedLink;
use cnikit::resources::{VlanProtocol, layer3, vlan};
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, Result};
use serde::{Deserialize, Deserializer};

/// vlan's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "VlanKeys")]
pub struct VlanPlugin {
    id: u16,
    keys: VlanKeys,
}

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VlanKeys {
    /// The link below. Default: the link of the default route.
    pub master: String,
    /// The master is in the container, not on the host. Default: false.
    pub link_in_container: bool,
    /// The number of the VLAN, from 0 to 4094. 0 tags frames with a priority only. Required.
    pub vlan_id: Option<i64>,
    /// The tag: `802.1q`, or `802.1ad` for the outer tag of two. Default, and empty: `802.1q`.
    pub protocol: ProtocolKey,
    /// The MTU in bytes, at most the master's. Default, and 0: the master's.
    pub mtu: CountedMtu,
    /// The container detects duplicate IPv6 addresses, and ADD waits for it. Default: true.
    pub enabledad: On,
    /// The container may also configure itself from router advertisements. Default: true.
    pub slaac: On,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
}

/// `protocol`; empty is `802.1q`.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolKey(pub VlanProtocol);

impl Default for ProtocolKey {
    fn default() -> ProtocolKey {
        ProtocolKey(VlanProtocol::Dot1q)
    }
}

impl<'de> Deserialize<'de> for ProtocolKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ProtocolKey, D::Error> {
        let known = r#""802.1q" and "802.1ad""#;
        let protocol = keys::word(deserializer, VlanProtocol::named, "unknown VLAN protocol", known)?;
        Ok(protocol.map_or_else(ProtocolKey::default, ProtocolKey))
    }
}

/// The largest number of a VLAN: 4095 is reserved.
const LARGEST: u16 = 4094;

impl TryFrom<VlanKeys> for VlanPlugin {
    type Error = String;

    fn try_from(keys: VlanKeys) -> Result<VlanPlugin, String> {
        let Some(number) = keys.vlan_id else {
            return Err(
                "\"vlanId\" field is required; hint: set `vlanId` to the number of the container's VLAN".to_owned()
            );
        };
        match u16::try_from(number) {
            Ok(id) if id <= LARGEST => Ok(VlanPlugin { id, keys }),
            _ => Err(format!(
                "invalid VLAN ID {number} (must be between 0 and {LARGEST} inclusive); hint: correct `vlanId`"
            )),
        }
    }
}

impl InterfacePlugin for VlanPlugin {
    const LINK: Kind = vlan::KIND;
    const EXAMPLE: &'static str = r#""vlanId":100,"ipam":{"type":"host-local","subnet":"10.99.0.0/24"}"#;

    fn link(&self, at: &AttachmentSpec) -> Plan {
        Plan::of(self.vlan(&at.tag.ifname))
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.keys.dns.replace(&mut addresses.dns);
        Ok(())
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        let dad = self.keys.enabledad.0;
        let slaac = self.keys.slaac.0 || keys::needs_router_adverts(&at.conf);
        layer3::on_master(&at.tag.ifname, &addresses.ips, &addresses.routes, dad, slaac, self.up())
    }

    fn status(&self) -> Result<()> {
        self.vlan("").available()
    }
}

impl VlanPlugin {
    /// Whether the link is made up, because nothing has to be configured before.
    fn up(&self) -> bool {
        self.keys.ipam.name.is_empty() && self.keys.slaac.0
    }

    fn vlan(&self, ifname: &str) -> vlan::VlanLink {
        let keys = &self.keys;
        let master = keys::master(&keys.master, keys.link_in_container);
        vlan::VlanLink {
            link: StackedLink { ifname: ifname.to_owned(), master, mtu: keys.mtu.0, up: self.up() },
            id: self.id,
            protocol: keys.protocol.0,
        }
    }
}
