//! Makes one routed veth pair per container: the container sends every packet to the gateway, which is an address of the host end.
//!
//! There is no bridge and no shared segment: the host has a route to each container. The keys are those of [`PtpKeys`]; `ipam` is
//! required. Every address needs a gateway of its family.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use cnikit::keys::{DnsOverride, IpamType, MasqueradeBackend, Mtu, Queues};
use cnikit::plan::{Kind, Plan};
use cnikit::resources::KernelRoute;
use cnikit::resources::forwarding::Forwarding;
use cnikit::resources::host_route::HostRoute;
use cnikit::resources::layer3::{self, Detection, Layer3, SCOPE_LINK};
use cnikit::resources::veth::{self, HostEnd, Veth};
use cnikit::rules::ip_spoofing::{self, IpSpoofCheck};
use cnikit::rules::masquerade::{self, Masquerade};
use cnikit::types::Ip;
use cnikit::{Addresses, AttachmentSpec, Error, HostState, InterfacePlugin, Result};
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// ptp's configuration.
#[derive(Debug, Deserialize)]
#[serde(try_from = "PtpKeys")]
pub struct PtpPlugin(PtpKeys);

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PtpKeys {
    /// Masquerade (SNAT) the container's traffic to other networks. Default: false.
    pub ip_masq: bool,
    /// `iptables` or `nftables`. Default: `iptables` where it works, else `nftables`.
    pub ip_masq_backend: MasqueradeBackend,
    /// The MTU of both ends, in bytes. Default, and 0: the kernel's choice.
    pub mtu: Mtu,
    /// The number of queues of each end, in each direction; 0 is the kernel's choice. Default: 1.
    pub queues: Queues,
    /// Packets that the container sends with another address than its own are dropped. Default: false.
    pub ipspoofchk: bool,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// The IPAM plugin: required.
    pub ipam: IpamType,
}

impl TryFrom<PtpKeys> for PtpPlugin {
    type Error = String;

    fn try_from(keys: PtpKeys) -> Result<PtpPlugin, String> {
        if keys.ipam.name.is_empty() {
            return Err(
                "no plugin name provided; hint: set `ipam.type`: ptp routes the addresses of an IPAM plugin".into()
            );
        }
        keys.ipam.usable_for_spoof_check(keys.ipspoofchk)?;
        Ok(PtpPlugin(keys))
    }
}

impl InterfacePlugin for PtpPlugin {
    const LINK: Kind = veth::KIND;
    const EXAMPLE: &'static str = r#""ipMasq":true,"ipam":{"type":"host-local","subnet":"10.99.0.0/24"}"#;
    const KINDS: &'static [Kind] = &[ip_spoofing::KIND, masquerade::KIND];

    fn link(&self, at: &AttachmentSpec) -> Plan {
        let ifname = at.tag.ifname.clone();
        let PtpKeys { mtu, queues, ipspoofchk, .. } = &self.0;
        Plan::of(Veth::new(ifname, HostEnd::Routed).mtu(mtu.0).queues(queues.0).shut(*ipspoofchk))
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.0.dns.replace(&mut addresses.dns);
        for ip in &addresses.ips {
            if ip.gateway.is_none_or(|gateway| gateway.is_ipv4() != ip.address.is_ipv4()) {
                let text = format!("{} has no gateway of its family, and ptp routes everything by it", ip.address);
                return Err(Error::config(text).hint("give the range of the IPAM plugin a `gateway`"));
            }
        }
        Ok(())
    }

    fn host_state(&self) -> HostState {
        HostState::Routes
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        let ifname = at.tag.ifname.clone();
        let networks = addresses.networks();
        let routes = routes(addresses);
        let mut gateways: Vec<IpAddr> = Vec::new();
        for gateway in addresses.ips.iter().filter_map(|ip| ip.gateway) {
            if !gateways.contains(&gateway) {
                gateways.push(gateway);
            }
        }
        let own: Vec<IpAddr> = networks.iter().map(IpNetwork::ip).collect();
        let check = IpSpoofCheck { ifname: ifname.clone(), mac: None, addresses: own.clone(), is_port: false };
        Plan::default()
            .and_each(self.0.ipspoofchk.then_some(check))
            .and(Forwarding::of(&networks))
            .and(HostRoute { ifname: ifname.clone(), gateways, addresses: own })
            .and_each(self.0.ip_masq.then(|| Masquerade::of(networks.clone(), self.0.ip_masq_backend.0)))
            .and(Layer3 {
                ifname,
                addresses: networks,
                prefix_routes: false,
                routes,
                detection: Detection::Off,
                slaac: false,
                announce: false,
            })
    }

    fn status(&self) -> Result<()> {
        if self.0.ipspoofchk {
            ip_spoofing::available(false)?;
        }
        if self.0.ip_masq { masquerade::available(self.0.ip_masq_backend.0) } else { Ok(()) }
    }
}

/// The routes of the container: those by the gateways first, then those of the result. There is one route per destination and
/// table.
fn routes(addresses: &Addresses) -> Vec<KernelRoute> {
    let mut all: Vec<KernelRoute> = addresses.ips.iter().flat_map(by_gateway).collect();
    for route in layer3::routes(&addresses.ips, &addresses.routes) {
        // A gateway of an address has a route of its own. Any other router is marked `onlink`, because its network is behind the
        // gateway.
        let is_own = |router: IpAddr| addresses.ips.iter().any(|ip| ip.gateway == Some(router));
        let onlink = route.gateway.is_some_and(|router| !is_own(router));
        all.push(KernelRoute { onlink, ..route });
    }
    let mut routes: Vec<KernelRoute> = Vec::new();
    for route in all {
        if routes.iter().all(|one| (one.dst, one.table) != (route.dst, route.table)) {
            routes.push(route);
        }
    }
    routes
}

/// The routes for one address: the gateway is on the link, and the rest of the network is behind it.
fn by_gateway(ip: &Ip) -> Vec<KernelRoute> {
    let Some(gateway) = ip.gateway else { return Vec::new() };
    let source = Some(ip.address.ip());
    let whole = if ip.address.is_ipv4() { 32 } else { 128 };
    let on_link =
        KernelRoute { source, scope: gateway.is_ipv4().then_some(SCOPE_LINK), ..KernelRoute::to(gateway.into()) };
    let network = IpNetwork::new(ip.address.network(), ip.address.prefix()).unwrap_or(ip.address);
    let mut routes = vec![on_link];
    if ip.address.prefix() < whole {
        routes.push(KernelRoute { source, gateway: Some(gateway), ..KernelRoute::to(network) });
    }
    routes
}
