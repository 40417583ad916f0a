//! Attaches containers to a bridge of the host.
//!
//! Each container has one end of a veth pair; the other is a port of the bridge, which is made if it does not exist. With an `ipam`
//! the container has addresses, the bridge may be its gateway, and its traffic to other networks may be masqueraded. Without one
//! the attachment is layer 2 only. The keys are those of [`BridgeKeys`].
#![forbid(unsafe_code)]

mod keys;
mod vlans;

pub use keys::BridgeKeys;
pub use vlans::{Trunk, Vlan};

use std::net::IpAddr;

use cnikit::keys::needs_router_adverts;
use cnikit::plan::{Kind, Plan};
use cnikit::resources::bridge::Bridge;
use cnikit::resources::bridge_port::ForwardingPort;
use cnikit::resources::bring_up::BringUp;
use cnikit::resources::forwarding::Forwarding;
use cnikit::resources::gateway::Gateway;
use cnikit::resources::layer3::{self, Layer3};
use cnikit::resources::veth::{self, HostEnd, Veth};
use cnikit::resources::vlans::PortVlans;
use cnikit::rules::ip_spoofing::{self, IpSpoofCheck};
use cnikit::rules::mac_spoofing::{self, SpoofCheck};
use cnikit::rules::masquerade::{self, Masquerade};
use cnikit::types::{Ip, Route};
use cnikit::{
    Addresses, AttachmentSpec, Error, HostState, InterfacePlugin, KeySource, Result, Sources, gateways_from_dhcp,
};
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// bridge's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "BridgeKeys")]
pub struct BridgePlugin(BridgeKeys);

impl InterfacePlugin for BridgePlugin {
    const LINK: Kind = veth::KIND;
    const EXAMPLE: &'static str =
        r#""isDefaultGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.99.0.0/24"}"#;
    const KINDS: &'static [Kind] = &[mac_spoofing::KIND, ip_spoofing::KIND, masquerade::KIND];
    const SOURCES: Sources =
        &[("mac", &[KeySource::Runtime("mac"), KeySource::ArgsCni("mac"), KeySource::CniArg("MAC")])];
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["MAC"]);

    fn link(&self, at: &AttachmentSpec) -> Plan {
        let BridgePlugin(keys) = self;
        let bridge = keys.bridge.clone();
        let ifname = at.tag.ifname.clone();
        let host = HostEnd::Port { bridge: bridge.clone(), hairpin: keys.hairpin_mode, isolated: keys.port_isolation };
        let layer2 = keys.ipam.name.is_empty() && !keys.disable_container_interface;
        Plan::of(self.bridge())
            .and_each(keys.macspoofchk.then_some(SpoofCheck { mac: keys.mac }))
            .and(
                Veth::new(ifname.clone(), host)
                    .mac(keys.mac)
                    .mtu(keys.mtu.0)
                    .queues(keys.queues.0)
                    .shut(keys.ipspoofchk),
            )
            .and_each(keys.vlans().map(|vlans| PortVlans { ifname: ifname.clone(), bridge: bridge.clone(), vlans }))
            .and_each(keys.vlan_gateway())
            .and_each(layer2.then(|| BringUp { ifname: ifname.clone(), slaac: keys.slaac }))
            .and_each(layer2.then(|| ForwardingPort {
                ifname,
                bridge,
                gateway: keys.gateway_link(),
                addresses: Vec::new(),
                shared_links: Vec::new(),
            }))
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        let BridgePlugin(keys) = self;
        keys.dns.replace(&mut addresses.dns);
        if keys.ipspoofchk && addresses.ips.is_empty() {
            let text = "ipspoofchk binds the container to its addresses, and the IPAM plugin gave none";
            return Err(Error::config(text)
                .hint("remove `ipspoofchk`, or configure the IPAM plugin so that it gives addresses"));
        }
        if keys.has_gateway() {
            // An address of DHCPv6 is alone in its prefix: its routers advertise themselves.
            let of_dhcp6 = |ip: &Ip| keys.ipam.name == "dhcp" && ip.address.is_ipv6();
            for ip in addresses.ips.iter_mut().filter(|ip| ip.gateway.is_none() && !of_dhcp6(ip)) {
                ip.gateway = Some(first(ip.address)?);
            }
        }
        if keys.is_default_gateway {
            addresses.routes.extend(missing_defaults(addresses));
        }
        Ok(())
    }

    fn host_state(&self) -> HostState {
        match &self.0 {
            keys if keys.has_gateway() => HostState::Gateways,
            keys if keys.ip_masq => HostState::Rules,
            _ => HostState::Nothing,
        }
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        if addresses.is_empty() {
            return Plan::default();
        }
        let BridgePlugin(keys) = self;
        let link = keys.gateway_link();
        let ifname = at.tag.ifname.clone();
        let networks = addresses.networks();
        let gateways = if keys.has_gateway() { gateways(addresses) } else { Vec::new() };
        let forwarding = Forwarding::of(&gateways);
        let containers: Vec<IpAddr> = networks.iter().map(IpNetwork::ip).collect();
        // The links of the host in the segment, except the gateway's own, which `Gateway` checks.
        let mut shared_links = Vec::new();
        if link != keys.bridge {
            shared_links.push(keys.bridge.clone());
        }
        if gateways.is_empty() {
            shared_links.push(link.clone());
        }
        let gateway = Gateway {
            link: link.clone(),
            addresses: gateways,
            force: keys.force_address,
            containers: containers.clone(),
            untrusted: gateways_from_dhcp(&at.conf, addresses),
        };
        let check =
            IpSpoofCheck { ifname: ifname.clone(), mac: keys.mac, addresses: containers.clone(), is_port: true };
        let slaac = needs_router_adverts(&at.conf);
        let own = layer3::on_segment(&ifname, &addresses.ips, &addresses.routes, keys.detection());
        let own = own.map(|layer3| Layer3 { slaac, announce: false, ..layer3 }); // `ForwardingPort` announces them
        Plan::default()
            .and_each(keys.ipspoofchk.then_some(check))
            .and_each((!gateway.addresses.is_empty()).then_some(gateway))
            .and_each((forwarding.ipv4 || forwarding.ipv6).then_some(forwarding))
            .and_each(keys.ip_masq.then(|| Masquerade::of(networks, keys.ip_masq_backend.0)))
            .and_each(own)
            .and(ForwardingPort {
                ifname,
                bridge: keys.bridge.clone(),
                gateway: link,
                addresses: containers,
                shared_links,
            })
    }

    fn status(&self) -> Result<()> {
        if self.0.macspoofchk {
            mac_spoofing::available()?;
        }
        if self.0.ipspoofchk {
            ip_spoofing::available(true)?;
        }
        if self.0.ip_masq { masquerade::available(self.0.ip_masq_backend.0) } else { Ok(()) }
    }
}

impl BridgePlugin {
    fn bridge(&self) -> Bridge {
        let BridgePlugin(keys) = self;
        Bridge {
            name: keys.bridge.clone(),
            mtu: keys.mtu.0,
            promiscuous: keys.promisc_mode,
            pinned: keys.has_gateway() && !keys.ipam.name.is_empty() && keys.vlan.0.is_none(),
            detection: keys.detection(),
            filtering: keys.filtering(),
            guarded: keys.macspoofchk,
        }
    }
}

/// The first address of a network after its own, which is the default of a gateway.
fn first(network: IpNetwork) -> Result<IpAddr> {
    let next = match network {
        IpNetwork::V4(ipv4) => {
            u32::from(ipv4.network()).checked_add(1).map(|bits| std::net::Ipv4Addr::from(bits).into())
        }
        IpNetwork::V6(ipv6) => {
            u128::from(ipv6.network()).checked_add(1).map(|bits| std::net::Ipv6Addr::from(bits).into())
        }
    };
    match next {
        Some(address) => Ok(address),
        None => {
            Err(Error::config(format!("{network} leaves no address for a gateway")).hint("give the range a `gateway`"))
        }
    }
}

/// The gateways with the prefixes of the addresses, without duplicates.
fn gateways(addresses: &Addresses) -> Vec<IpNetwork> {
    let mut gateways = Vec::new();
    for ip in &addresses.ips {
        if let Some(gateway) = ip.gateway
            && let Ok(network) = IpNetwork::new(gateway, ip.address.prefix())
            && !gateways.contains(&network)
        {
            gateways.push(network);
        }
    }
    gateways
}

/// A default route by the first gateway of each family that has a gateway and no default route.
fn missing_defaults(addresses: &Addresses) -> Vec<Route> {
    let mut missing = Vec::new();
    for everything in [IpNetwork::new([0; 4].into(), 0), IpNetwork::new([0; 16].into(), 0)] {
        let Ok(dst) = everything else { continue };
        let ipv4 = dst.is_ipv4();
        if addresses.routes.iter().any(|route| route.dst.prefix() == 0 && route.dst.is_ipv4() == ipv4) {
            continue;
        }
        let mut gateways = addresses.ips.iter().filter_map(|ip| ip.gateway);
        if let Some(gateway) = gateways.find(|gateway| gateway.is_ipv4() == ipv4) {
            missing.push(Route { gw: Some(gateway), ..Route::to(dst) });
        }
    }
    missing
}
