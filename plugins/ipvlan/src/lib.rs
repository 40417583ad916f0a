//! Makes an ipvlan on a link of the host: the container is in the master's network with the master's MAC.
//!
//! Nothing is made on the host, which cannot reach the container over the master. In a chain, without a `master`, the master is the
//! only interface that the plugins before it made, and without an `ipam` the ipvlan has their addresses. The keys are those of
//! [`IpvlanKeys`].
#![forbid(unsafe_code)]

use cnikit::keys::{self, DnsOverride, IpamType, Mtu, On};
use cnikit::plan::{Kind, Plan};
use cnikit::resources::layer3;
use cnikit::resources::parent::{Master, Which};
use cnikit::resources::stacked::{self, StackedLink};
use cnikit::resources::{IpvlanMode, UpperKind, ipvlan};
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, NetConf, Result, Source};
use serde::{Deserialize, Deserializer};

/// ipvlan's configuration.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct IpvlanPlugin(IpvlanKeys);

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IpvlanKeys {
    /// The link below. Default: in a chain the only interface of the plugins before it, otherwise the link of the default route.
    pub master: String,
    /// The master is in the container, not on the host. Default: false.
    pub link_in_container: bool,
    /// `l2`, `l3` or `l3s`. Default, and empty: `l2`.
    pub mode: ModeKey,
    /// The MTU in bytes, at most the master's. Default, and 0: the master's.
    pub mtu: Mtu,
    /// The container detects duplicate IPv6 addresses, and ADD waits for it. Default: true.
    pub enabledad: On,
    /// The container may also configure itself from router advertisements. Default: true.
    pub slaac: On,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// The IPAM plugin. Default: in a chain the result of the plugins before it, otherwise none.
    pub ipam: IpamType,
}

/// `mode`; empty is `l2`.
#[derive(Clone, Copy, Debug)]
pub struct ModeKey(pub IpvlanMode);

impl Default for ModeKey {
    fn default() -> ModeKey {
        ModeKey(IpvlanMode::L2)
    }
}

impl<'de> Deserialize<'de> for ModeKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ModeKey, D::Error> {
        let known = r#""l2", "l3" and "l3s""#;
        let mode = keys::word(deserializer, IpvlanMode::named, "unknown ipvlan mode", known)?;
        Ok(mode.map_or_else(ModeKey::default, ModeKey))
    }
}

impl InterfacePlugin for IpvlanPlugin {
    const LINK: Kind = ipvlan::KIND;

    fn link(&self, at: &AttachmentSpec) -> Plan {
        let ifname = at.tag.ifname.clone();
        let master = self.master(at.conf.get("prevResult").is_some());
        let link = StackedLink { ifname, master, mtu: self.0.mtu.0, up: false };
        Plan::of(ipvlan::Ipvlan { link, mode: self.0.mode.0 })
    }

    fn source(conf: &NetConf) -> Source {
        Source::configured(conf).or_prev_result()
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.0.dns.replace(&mut addresses.dns);
        Ok(())
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        let dad = self.0.enabledad.0;
        let slaac = self.0.slaac.0 || keys::needs_router_adverts(&at.conf);
        layer3::on_master(&at.tag.ifname, &addresses.ips, &addresses.routes, dad, slaac, false)
    }

    fn status(&self) -> Result<()> {
        // STATUS has no prevResult. If the addresses come from it on ADD, so does the master.
        stacked::available(UpperKind::Ipvlan(self.0.mode.0), &self.master(self.0.ipam.name.is_empty())).map(drop)
    }
}

impl IpvlanPlugin {
    /// The configured master; in a chain without one, the interface of the plugins before it.
    fn master(&self, is_chained: bool) -> Master {
        let master = keys::master(&self.0.master, self.0.link_in_container);
        if is_chained && master.which == Which::OfDefaultRoute {
            return Master { which: Which::OfPrevResult, ..master };
        }
        master
    }
}
