//! The keys as they are written, and what is refused of them.

use cnikit::keys::{DnsOverride, IpamType, MasqueradeBackend, Mtu, Queues, usable};
use cnikit::resources::Mac;
use cnikit::resources::layer3::Detection;
use serde::Deserialize;

use crate::BridgePlugin;
use crate::vlans::{Trunk, Vlan};

/// The keys as they are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BridgeKeys {
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
    /// `iptables` or `nftables`. Default: `iptables` where it works, else `nftables`.
    pub ip_masq_backend: MasqueradeBackend,
    /// Of both ends and of a bridge that is made, in bytes. Default, and 0: the kernel's choice.
    pub mtu: Mtu,
    /// Of each end, each way; 0 is the kernel's choice. Default: 1.
    pub queues: Queues,
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
    /// The VLAN of the container's untagged frames. Default, and 0: that which the bridge puts every port in.
    pub vlan: Vlan,
    /// The VLANs of its tagged frames. Default: none.
    pub vlan_trunk: Option<Vec<Trunk>>,
    /// With either of these, the port stays in the bridge's default VLAN too. Default: false.
    pub preserve_default_vlan: bool,
    /// What the container sends under another MAC than its own is dropped. Default: false.
    pub macspoofchk: bool,
    /// What the container sends under another IP address than its own is dropped, and what could make others believe that it
    /// has one. Needs an `ipam`. Default: false.
    pub ipspoofchk: bool,
}

impl Default for BridgeKeys {
    fn default() -> BridgeKeys {
        BridgeKeys {
            bridge: "cni0".into(),
            slaac: true,
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: MasqueradeBackend::default(),
            mtu: Mtu::default(),
            queues: Queues::default(),
            hairpin_mode: false,
            promisc_mode: false,
            port_isolation: false,
            enabledad: false,
            disable_container_interface: false,
            mac: None,
            dns: DnsOverride::default(),
            ipam: IpamType::default(),
            vlan: Vlan::default(),
            vlan_trunk: None,
            preserve_default_vlan: false,
            macspoofchk: false,
            ipspoofchk: false,
        }
    }
}

impl TryFrom<BridgeKeys> for BridgePlugin {
    type Error = String;

    fn try_from(keys: BridgeKeys) -> Result<BridgePlugin, String> {
        keys.names()?;
        if !keys.ipam.name.is_empty() && keys.disable_container_interface {
            return Err("cannot use IPAM when DisableContainerInterface flag is set: drop `ipam` or the flag".into());
        }
        if keys.hairpin_mode && keys.promisc_mode {
            return Err("cannot set hairpin mode and promiscuous mode at the same time: drop one of them".into());
        }
        keys.ipam.usable_for_spoof_check(keys.ipspoofchk)?;
        Ok(BridgePlugin(keys))
    }
}

impl BridgeKeys {
    pub(crate) fn has_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    pub(crate) fn detection(&self) -> Detection {
        Detection::wished(self.enabledad)
    }

    fn names(&self) -> Result<(), String> {
        cnikit::types::check_ifname(&self.bridge).map_err(|error| format!("`bridge` {:?}: {error}", self.bridge))?;
        self.check_gateway_link()?;
        usable(self.mac)
    }
}
