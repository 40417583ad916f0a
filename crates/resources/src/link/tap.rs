//! A TAP device: an interface of the container whose frames a program reads and writes, such as a virtual machine monitor.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Mac, TunSettings};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result, code};
use cnikit_tun::{NODE, NewTap, Tap};
use cnikit_types::Interface;

use crate::identity::alias;
use crate::link::container_link::{self, OwnLink, is, release, sweep};
pub use crate::link::tap_label::ROLE;
use crate::link::{tap_label, veth_ends};

/// A persistent TAP device in the container, which no program is attached to yet.
///
/// The kernel destroys the device with the file that made it until it is made persistent, which is the last step. So a device
/// that was not finished never stays.
#[derive(Clone, Debug, Default)]
pub struct TapDevice {
    /// The container's interface.
    pub ifname: String,
    /// The MTU in bytes, from 68 to 65521; absent: the kernel's choice.
    pub mtu: Option<u32>,
    /// The MAC; absent: one that is made from the tag.
    pub mac: Option<Mac>,
    /// The user that may attach to it without `CAP_NET_ADMIN`.
    pub owner: Option<u32>,
    /// The group whose members may attach to it.
    pub group: Option<u32>,
    /// Several files may attach to it at the same time.
    pub multi_queue: bool,
    /// Frames have a `virtio_net_hdr` in front of them, until a program attaches that chooses otherwise.
    pub vnet_hdr: bool,
    /// The bridge in the container that it is a port of; empty: none.
    pub bridge: String,
    /// The SELinux label of the device; empty: that of this process.
    pub selinux_context: String,
}

/// The kind of link, as the kernel names both TUN and TAP devices.
const LINK_KIND: &str = "tun";

/// TAP devices are found by their alias, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "tap",
    release: |context| release(LINK_KIND, context),
    sweep: |context| sweep(LINK_KIND, context),
    outlives_link: true,
};

impl Resource for TapDevice {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        container_link::check_name_is_free(&self.ifname, context)?;
        self.find_bridge(context)?;
        if self.selinux_context.is_empty() { Ok(()) } else { tap_label::check(&self.selinux_context) }
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let own = OwnLink::of(LINK_KIND, context)?;
        let wanted = NewTap { name: self.ifname.clone(), multi_queue: self.multi_queue, vnet_hdr: self.vnet_hdr };
        let tap = match self.create(&wanted, context)? {
            Ok(tap) => tap,
            Err(failed) => return Err(self.not_created(failed, context)),
        };
        self.configure(&tap, &own, context)?;
        let _ = journal.undo(&own, OwnLink::delete);
        tap.persist()?;
        let name = self.ifname.clone();
        Ok(Made::one(Interface { name, sandbox: context.sandbox.clone(), ..Interface::default() }))
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let ifname = &self.ifname;
        let Some(link) = container_link::verify(LINK_KIND, ifname, self.mtu, context, drifts)? else { return Ok(()) };
        if let Some(found) = link.tun {
            self.verify_settings(found, drifts);
        }
        self.verify_bridge(&link, context, drifts)
    }
}

impl TapDevice {
    /// Makes the device, under its label if it has one.
    fn create(&self, wanted: &NewTap, context: &ApplyContext) -> Result<Result<Tap, cnikit_tun::Error>> {
        if self.selinux_context.is_empty() {
            return Ok(context.netns.enter(|inside| wanted.create(inside))?);
        }
        let tap = match context.netns.enter(|inside| wanted.open(inside))? {
            Ok(tap) => tap,
            Err(failed) => return Ok(Err(failed)),
        };
        Ok(match tap_label::create(wanted, &tap, &self.selinux_context)? {
            None => Ok(tap),
            Some(failed) => Err(failed),
        })
    }

    /// Writes owner, group, alias, MAC, MTU and bridge. After an error the device goes with `tap`.
    fn configure(&self, tap: &Tap, own: &OwnLink, context: &ApplyContext) -> Result<()> {
        if let Some(uid) = self.owner {
            tap.set_owner(uid)?;
        }
        if let Some(gid) = self.group {
            tap.set_group(gid)?;
        }
        let change = LinkChange::default()
            .alias(alias::of(&own.tag))
            .mac(veth_ends::mac(&own.tag, self.mac))
            .mtu(self.mtu)
            .master(self.find_bridge(context)?.map(|bridge| bridge.index));
        let link = own.container.link(&self.ifname)?;
        Ok(own.container.change(link.index, &change)?)
    }

    /// The configured bridge, which has to exist in the container.
    fn find_bridge(&self, context: &ApplyContext) -> Result<Option<Link>> {
        let name = &self.bridge;
        if name.is_empty() {
            return Ok(None);
        }
        let hint = "`bridge` names a bridge in the container's namespace: make it before this ADD, or correct the key";
        match context.container()?.find_link(name)? {
            Some(link) if is("bridge", &link) => Ok(Some(link)),
            Some(link) => {
                let kind = link.kind.as_deref().unwrap_or("no virtual link");
                let text = format!("{name:?} in {} is not a bridge: its kind is {kind}", context.sandbox);
                Err(Error::conflict(text).hint(hint))
            }
            None => Err(Error::conflict(format!("there is no bridge {name:?} in {}", context.sandbox)).hint(hint)),
        }
    }

    /// The error of a device that could not be made. Another program may have taken the name since the preflight.
    fn not_created(&self, failed: cnikit_tun::Error, context: &ApplyContext) -> Error {
        match container_link::check_name_is_free(&self.ifname, context) {
            Err(taken) if failed.exists() => taken,
            _ => explained(failed),
        }
    }

    /// Compares what only a privileged program should change. Packet information and `virtio_net_hdr` are not compared, because
    /// the program that attaches to the device chooses them.
    fn verify_settings(&self, found: TunSettings, drifts: &mut Drifts) {
        let ifname = &self.ifname;
        let type_of = |tap| if tap { "tap" } else { "tun" };
        let id = |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |number| number.to_string());
        drifts.compare(format!("type of {ifname}"), type_of(true), type_of(found.tap));
        drifts.compare(format!("owner of {ifname}"), id(self.owner), id(found.owner));
        drifts.compare(format!("group of {ifname}"), id(self.group), id(found.group));
        drifts.compare(format!("multi_queue of {ifname}"), self.multi_queue, found.multi_queue);
        drifts.unless(found.persistent, || format!("{ifname}: wanted persistent, found not persistent"));
    }

    fn verify_bridge(&self, link: &Link, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        if self.bridge.is_empty() {
            return Ok(());
        }
        let found = match link.master {
            Some(index) => context.container()?.find_link_at(index)?,
            None => None,
        };
        let found = found.map_or_else(|| "none".to_owned(), |master| master.name);
        drifts.compare(format!("bridge of {}", self.ifname), self.bridge.as_str(), found.as_str());
        Ok(())
    }
}

/// The kernel's error, with a hint if the node has no TAP devices at all.
fn explained(failed: cnikit_tun::Error) -> Error {
    if !failed.no_device() {
        return failed.into();
    }
    Error::new(code::SYSTEM, "this node has no /dev/net/tun").detail(failed.to_string()).hint(format!(
        "`modprobe tun`; if the file is missing after that, `mkdir -p /dev/net && mknod {NODE} c 10 200`"
    ))
}

/// Checks that this node can make TAP devices.
///
/// # Errors
/// `/dev/net/tun` is missing, is another file, or cannot be opened; or there is a label, and SELinux is off or does not have it.
pub fn available(selinux_context: &str) -> Result<()> {
    cnikit_tun::available().map_err(explained)?;
    if selinux_context.is_empty() { Ok(()) } else { tap_label::check(selinux_context) }
}

impl fmt::Display for TapDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tap {} in the container", self.ifname)?;
        if let Some(uid) = self.owner {
            write!(f, ", owner {uid}")?;
        }
        if let Some(gid) = self.group {
            write!(f, ", group {gid}")?;
        }
        f.write_str(if self.multi_queue { ", multi_queue" } else { "" })?;
        f.write_str(if self.vnet_hdr { ", vnet_hdr" } else { "" })?;
        if let Some(mac) = self.mac {
            write!(f, ", mac {mac}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        if !self.selinux_context.is_empty() {
            write!(f, ", SELinux label {}", self.selinux_context)?;
        }
        match self.bridge.as_str() {
            "" => Ok(()),
            bridge => write!(f, ", a port of bridge {bridge} of the container"),
        }
    }
}
