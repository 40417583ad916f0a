//! The keys of the configuration, and their validation.

use cnikit::keys::{DnsOverride, IpamType, MasqueradeBackend, Mtu, Queues, usable};
use cnikit::resources::Mac;
use cnikit::resources::bridge::VlanFiltering;
use cnikit::resources::layer3::Detection;
use cnikit::resources::vlan_gateway::{self, VlanGateway};
use cnikit::resources::vlans::Vlans;
use cnikit::types::check_ifname;
use serde::Deserialize;

use crate::BridgePlugin;
use crate::vlans::{Trunk, Vlan};

/// The native VLAN of a port that has a trunk but no `vlan`, the same as upstream's.
const NATIVE_OF_TRUNK: u16 = 1;

/// The keys of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BridgeKeys {
    /// The bridge. Default: `cni0`.
    pub bridge: String,
    /// The bridge has the gateway's addresses, and the host forwards. Only with an `ipam`. Default: false.
    pub is_gateway: bool,
    /// As `isGateway`, and the container has default routes by the gateway. Default: false.
    pub is_default_gateway: bool,
    /// Another address of the bridge is removed. Default: false, it is an error.
    pub force_address: bool,
    /// Masquerade (SNAT) the container's traffic to other networks. Only with an `ipam`. Default: false.
    pub ip_masq: bool,
    /// `iptables` or `nftables`. Default: `iptables` where it works, else `nftables`.
    pub ip_masq_backend: MasqueradeBackend,
    /// The MTU of both ends, and of a bridge that is made, in bytes. Default, and 0: the kernel's choice.
    pub mtu: Mtu,
    /// The number of queues of each end, in each direction; 0 is the kernel's choice. Default: 1.
    pub queues: Queues,
    /// Frames may leave by the port that they came in by. Default: false.
    pub hairpin_mode: bool,
    /// The bridge is in promiscuous mode. Default: false, and then its mode is not changed.
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
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
    /// The VLAN of the container's untagged frames. Default, and 0: the bridge's default VLAN.
    pub vlan: Vlan,
    /// The VLANs of its tagged frames. Default: none.
    pub vlan_trunk: Option<Vec<Trunk>>,
    /// With either of these, the port stays in the bridge's default VLAN too. Default: false.
    pub preserve_default_vlan: bool,
    /// Frames that the container sends with another MAC than its own are dropped. Default: false.
    pub macspoofchk: bool,
    /// Packets that the container sends with another IP address than its own are dropped, and so are neighbour announcements of
    /// other addresses. Needs an `ipam`. Default: false.
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
        keys.check_names()?;
        if !keys.ipam.name.is_empty() && keys.disable_container_interface {
            return Err("cannot use IPAM when DisableContainerInterface flag is set; hint: remove `ipam` or `disableContainerInterface`".into());
        }
        if keys.hairpin_mode && keys.promisc_mode {
            return Err("cannot set hairpin mode and promiscuous mode at the same time; hint: remove `hairpinMode` or `promiscMode`".into());
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

    fn check_names(&self) -> Result<(), String> {
        check_ifname(&self.bridge).map_err(|error| {
            format!(
                "`bridge` {:?}: {error}; hint: a name has 1 to 15 bytes, without /, :, % and white space",
                self.bridge
            )
        })?;
        self.check_gateway_link()?;
        usable(self.mac)
    }

    /// The VLANs of the container's port, if any are configured.
    pub(crate) fn vlans(&self) -> Option<Vlans> {
        let mut trunk = Vec::new();
        for Trunk(ranges) in self.vlan_trunk.iter().flatten() {
            trunk.extend(ranges.iter().cloned());
        }
        let native = match self.vlan.0 {
            Some(vlan) => vlan,
            None if trunk.is_empty() => return None,
            None => NATIVE_OF_TRUNK,
        };
        Some(Vlans::new(native, &trunk, self.preserve_default_vlan))
    }

    /// The VLAN filtering that the bridge needs. A trunk without VLANs requires none of a bridge that exists already.
    pub(crate) fn filtering(&self) -> VlanFiltering {
        match (self.vlans(), &self.vlan_trunk) {
            (Some(_), _) => VlanFiltering::Required,
            (None, Some(_)) => VlanFiltering::IfMade,
            (None, None) => VlanFiltering::Any,
        }
    }

    /// The gateway's link into the container's VLAN. The bridge itself is only in its default VLAN.
    pub(crate) fn vlan_gateway(&self) -> Option<VlanGateway> {
        if !self.has_gateway() || self.ipam.name.is_empty() {
            return None;
        }
        let vlan = self.vlan.0?;
        let bridge = self.bridge.clone();
        let keep_default = self.preserve_default_vlan;
        Some(VlanGateway { bridge, vlan, keep_default, detection: self.detection() })
    }

    /// The link by which the host is in the container's segment.
    pub(crate) fn gateway_link(&self) -> String {
        match self.vlan_gateway() {
            Some(gateway) => vlan_gateway::name(&self.bridge, gateway.vlan),
            None => self.bridge.clone(),
        }
    }

    /// Validates the name of the gateway's link, which is longer than that of the bridge.
    fn check_gateway_link(&self) -> Result<(), String> {
        let name = self.gateway_link();
        match check_ifname(&name) {
            Ok(()) => Ok(()),
            Err(error) => Err(format!(
                "the link of the gateway would be called {name:?}: {error}: give `bridge` a name shorter than {:?}",
                self.bridge
            )),
        }
    }
}
