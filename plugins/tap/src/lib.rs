//! Makes a persistent TAP device in the container: an interface whose frames a program reads and writes, such as a virtual machine
//! monitor.
//!
//! Nothing is made on the host. The keys are those of [`TapKeys`].
#![forbid(unsafe_code)]

use cnikit::keys::{DnsOverride, IpamType, usable};
use cnikit::plan::{Kind, Plan};
use cnikit::resources::{Mac, layer3, tap};
use cnikit::types::check_ifname;
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, KeySource, Result, Role, Sources};
use serde::Deserialize;

/// tap's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "TapKeys")]
pub struct TapPlugin {
    keys: TapKeys,
    mtu: Option<u32>,
}

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TapKeys {
    /// Several queues may be attached at the same time. Default: false.
    pub multi_queue: bool,
    /// The MTU in bytes, from 68 to 65521. Default, and 0: the kernel's choice.
    pub mtu: i64,
    /// The MAC, also from `runtimeConfig.mac` or `MAC` in `CNI_ARGS`. Default: one that is made from the attachment's tag.
    pub mac: Option<Mac>,
    /// The uid that may attach to the device without `CAP_NET_ADMIN`. Default: none.
    pub owner: Option<u32>,
    /// The gid whose members may attach to the device without `CAP_NET_ADMIN`. Default: none.
    pub group: Option<u32>,
    /// Frames have a `virtio_net_hdr` in front of them, until a program attaches that chooses otherwise. Default: true with
    /// `owner` and `group`, otherwise false, as upstream.
    pub vnet_hdr: Option<bool>,
    /// The SELinux label of the device. Default: that of the process.
    pub selinux_context: String,
    /// A bridge in the container that the device becomes a port of. Default: none.
    pub bridge: String,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
}

/// The MTUs of a TAP device: from the smallest of IPv4 (`ETH_MIN_MTU`) to the largest frame, less its header.
const MTUS: std::ops::RangeInclusive<u32> = 68..=65521;
/// The number that the kernel takes for no user and no group.
const NOBODY: u32 = u32::MAX;

impl TryFrom<TapKeys> for TapPlugin {
    type Error = String;

    fn try_from(keys: TapKeys) -> Result<TapPlugin, String> {
        usable(keys.mac)?;
        for (key, id) in [("owner", keys.owner), ("group", keys.group)] {
            if id == Some(NOBODY) {
                return Err(format!("{key} {NOBODY} is -1, which is not a valid id"));
            }
        }
        if !keys.bridge.is_empty()
            && let Err(why) = check_ifname(&keys.bridge)
        {
            return Err(format!(
                "`bridge` {:?}: {why}; hint: a name has 1 to 15 bytes, without /, :, % and white space",
                keys.bridge
            ));
        }
        if keys.selinux_context.contains('\0') {
            return Err("selinuxContext has a NUL, which no label has".to_owned());
        }
        let mtu = match u32::try_from(keys.mtu) {
            Ok(0) => None,
            Ok(mtu) if MTUS.contains(&mtu) => Some(mtu),
            _ => {
                return Err(format!(
                    "invalid MTU {}, must be 0 or [{}, {}]; hint: correct `mtu`",
                    keys.mtu,
                    MTUS.start(),
                    MTUS.end()
                ));
            }
        };
        Ok(TapPlugin { keys, mtu })
    }
}

impl InterfacePlugin for TapPlugin {
    const LINK: Kind = tap::KIND;
    const SOURCES: Sources = &[("mac", &[KeySource::Runtime("mac"), KeySource::CniArg("MAC"), KeySource::Key])];
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["MAC"]);
    const ROLE: Option<Role> = Some(tap::ROLE);

    fn link(&self, at: &AttachmentSpec) -> Plan {
        let keys = &self.keys;
        let with_owner_and_group = keys.owner.is_some() && keys.group.is_some() && keys.selinux_context.is_empty();
        Plan::of(tap::TapDevice {
            ifname: at.tag.ifname.clone(),
            mtu: self.mtu,
            mac: keys.mac,
            owner: keys.owner,
            group: keys.group,
            multi_queue: keys.multi_queue,
            vnet_hdr: keys.vnet_hdr.unwrap_or(with_owner_and_group),
            bridge: keys.bridge.clone(),
            selinux_context: keys.selinux_context.clone(),
        })
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.keys.dns.replace(&mut addresses.dns);
        Ok(())
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        layer3::on_master(
            &at.tag.ifname,
            &addresses.ips,
            &addresses.routes,
            true,
            cnikit::keys::needs_router_adverts(&at.conf),
            false,
        )
    }

    fn status(&self) -> Result<()> {
        tap::available(&self.keys.selinux_context)
    }
}
