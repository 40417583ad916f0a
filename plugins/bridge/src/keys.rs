//! The keys as they are written, and what is refused of them.

use cnikit::keys::{DnsOverride, IpamType, MasqueradeBackend, Mtu};
use cnikit::resources::Mac;
use cnikit::resources::layer3::Detection;
use serde::Deserialize;

use crate::Bridge;

/// The keys as they are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Keys {
    /// The bridge. Default: `cni0`.
    pub bridge: String,
    /// The bridge has the gateway's addresses, and the host forwards. Only with an `ipam`. Default: false.
    pub is_gateway: bool,
    /// As `isGateway`, and the container's default routes go there. Default: false.
    pub is_default_gateway: bool,
    /// An address of the bridge that is in the way is removed. Default: false, it is an error.
    pub force_address: bool,
    /// What leaves the network leaves under the host's address. Only with an `ipam`. Default: false.
    pub ip_masq: bool,
    /// `nftables`. Default: that.
    pub ip_masq_backend: MasqueradeBackend,
    /// Of both ends and of a bridge that is made, in bytes. Default, and 0: the kernel's choice.
    pub mtu: Mtu,
    /// What comes out of the container's port may go back into it. Default: false.
    pub hairpin_mode: bool,
    /// The bridge receives every frame. Default: false, and then it is left as it is.
    pub promisc_mode: bool,
    /// The port exchanges nothing with other isolated ports. Default: false.
    pub port_isolation: bool,
    /// The container detects duplicate IPv6 addresses, and ADD waits for it. Default: false.
    pub enabledad: bool,
    /// The container's end is left down. Only without an `ipam`. Default: false.
    pub disable_container_interface: bool,
    /// Without an `ipam`: the container may configure itself from router advertisements. Default: true.
    pub slaac: bool,
    /// The container's MAC, from `runtimeConfig.mac`, `args.cni.mac` or `MAC` in `CNI_ARGS`. Default: from the attachment.
    pub mac: Option<Mac>,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// Who gives addresses. Default: nobody.
    pub ipam: IpamType,
    /// Not there yet, but for 0.
    pub vlan: i64,
    /// Not there yet.
    pub vlan_trunk: Option<serde_json::Value>,
    /// Of no effect without a VLAN.
    pub preserve_default_vlan: bool,
    /// Not there yet.
    pub macspoofchk: bool,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys {
            bridge: "cni0".into(),
            slaac: true,
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: MasqueradeBackend::default(),
            mtu: Mtu::default(),
            hairpin_mode: false,
            promisc_mode: false,
            port_isolation: false,
            enabledad: false,
            disable_container_interface: false,
            mac: None,
            dns: DnsOverride::default(),
            ipam: IpamType::default(),
            vlan: 0,
            vlan_trunk: None,
            preserve_default_vlan: false,
            macspoofchk: false,
        }
    }
}

impl TryFrom<Keys> for Bridge {
    type Error = String;

    fn try_from(keys: Keys) -> Result<Bridge, String> {
        keys.names()?;
        keys.not_yet()?;
        if !keys.ipam.name.is_empty() && keys.disable_container_interface {
            return Err("cannot use IPAM when DisableContainerInterface flag is set: drop `ipam` or the flag".into());
        }
        if keys.hairpin_mode && keys.promisc_mode {
            return Err("cannot set hairpin mode and promiscuous mode at the same time: drop one of them".into());
        }
        Ok(Bridge(keys))
    }
}

impl Keys {
    pub(crate) fn detection(&self) -> Detection {
        if self.enabledad { Detection::Full } else { Detection::Off }
    }

    fn names(&self) -> Result<(), String> {
        cnikit::types::check_ifname(&self.bridge).map_err(|error| format!("`bridge` {:?}: {error}", self.bridge))?;
        let unusable = self.mac.filter(|mac| mac.is_zero() || mac.is_multicast());
        unusable.map_or(Ok(()), |mac| Err(format!("{mac} cannot be the MAC of an interface: it is a group's or zero")))
    }

    fn not_yet(&self) -> Result<(), String> {
        if !(0..=4094).contains(&self.vlan) {
            return Err(format!("invalid VLAN ID {} (must be between 0 and 4094)", self.vlan));
        }
        let asked = [
            (self.vlan != 0, format!("`vlan` {}", self.vlan)),
            (self.vlan_trunk.is_some(), "`vlanTrunk`".to_owned()),
            (self.macspoofchk, "`macspoofchk` true".to_owned()),
        ];
        let unserved = asked.into_iter().find(|(asked, _)| *asked);
        unserved.map_or(Ok(()), |(_, what)| {
            Err(format!(
                "{what} is not there yet in this bridge: leave it out, or let the reference's serve this network"
            ))
        })
    }
}
