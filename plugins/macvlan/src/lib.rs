//! Makes a macvlan on a link of the host: the container is in the master's network with a MAC of its own.
//!
//! Nothing is made on the host, which cannot reach the container over the master. The keys are those of [`MacvlanKeys`].
#![forbid(unsafe_code)]

use cnikit::keys::{self, CountedMtu, DnsOverride, IpamType, On, usable};
use cnikit::plan::{Kind, Plan};
use cnikit::resources::layer3;
use cnikit::resources::stacked::{self, StackedLink};
use cnikit::resources::{Mac, MacvlanMode, macvlan};
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, KeySource, Result, Sources};
use serde::{Deserialize, Deserializer};

/// macvlan's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "MacvlanKeys")]
pub struct MacvlanPlugin(MacvlanKeys);

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MacvlanKeys {
    /// The link below. Default: the link of the default route.
    pub master: String,
    /// The master is in the container, not on the host. Default: false.
    pub link_in_container: bool,
    /// `bridge`, `private`, `vepa` or `passthru`. Default, and empty: `bridge`.
    pub mode: MacvlanModeKey,
    /// The MTU in bytes, at most the master's. Default, and 0: the master's.
    pub mtu: CountedMtu,
    /// The container's MAC, also from `runtimeConfig.mac`, `MAC` in `CNI_ARGS` or `args.cni.mac`. Default: the kernel's choice.
    /// None with `passthru`.
    pub mac: Option<Mac>,
    /// The length of the queue of broadcasts. Default, and 0: the kernel's choice.
    pub bcqueuelen: u32,
    /// The container detects duplicate IPv6 addresses, and ADD waits for it. Default: true.
    pub enabledad: On,
    /// The container may also configure itself from router advertisements. Default: true.
    pub slaac: On,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
}

/// `mode`; empty is `bridge`.
#[derive(Clone, Copy, Debug)]
pub struct MacvlanModeKey(pub MacvlanMode);

impl Default for MacvlanModeKey {
    fn default() -> MacvlanModeKey {
        MacvlanModeKey(MacvlanMode::Bridge)
    }
}

impl<'de> Deserialize<'de> for MacvlanModeKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MacvlanModeKey, D::Error> {
        let known = r#""bridge", "private", "vepa" and "passthru""#;
        let mode = keys::word(deserializer, MacvlanMode::named, "unknown macvlan mode", known)?;
        Ok(mode.map_or_else(MacvlanModeKey::default, MacvlanModeKey))
    }
}

impl TryFrom<MacvlanKeys> for MacvlanPlugin {
    type Error = String;

    fn try_from(keys: MacvlanKeys) -> Result<MacvlanPlugin, String> {
        usable(keys.mac)?;
        if let (Some(mac), MacvlanMode::Passthru) = (keys.mac, keys.mode.0) {
            return Err(format!("MAC {mac} with mode \"passthru\", in which the container has the master's"));
        }
        Ok(MacvlanPlugin(keys))
    }
}

impl InterfacePlugin for MacvlanPlugin {
    const LINK: Kind = macvlan::KIND;
    const SOURCES: Sources =
        &[("mac", &[KeySource::Runtime("mac"), KeySource::CniArg("MAC"), KeySource::ArgsCni("mac"), KeySource::Key])];
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["MAC"]);

    fn link(&self, at: &AttachmentSpec) -> Plan {
        Plan::of(self.link_on_master(&at.tag.ifname))
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.0.dns.replace(&mut addresses.dns);
        Ok(())
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        let dad = self.0.enabledad.0;
        let slaac = self.0.slaac.0 || keys::needs_router_adverts(&at.conf);
        layer3::on_master(&at.tag.ifname, &addresses.ips, &addresses.routes, dad, slaac, self.up())
    }

    fn status(&self) -> Result<()> {
        let link = self.link_on_master("");
        stacked::available(link.upper_kind(), &link.link.master).map(drop)
    }
}

impl MacvlanPlugin {
    /// Whether the link is made up, because nothing has to be configured before.
    fn up(&self) -> bool {
        self.0.ipam.name.is_empty() && self.0.slaac.0
    }

    fn link_on_master(&self, ifname: &str) -> macvlan::Macvlan {
        let keys = &self.0;
        let master = keys::master(&keys.master, keys.link_in_container);
        macvlan::Macvlan {
            link: StackedLink { ifname: ifname.to_owned(), master, mtu: keys.mtu.0, up: self.up() },
            mode: keys.mode.0,
            bcqueuelen: (keys.bcqueuelen > 0).then_some(keys.bcqueuelen),
            mac: keys.mac,
        }
    }
}
