//! A device of the host, moved into the container and given back.
//!
//! What the device was is stored in a file before it is moved, see `state_file.rs`; DEL, GC and a failed ADD give it back by that
//! file. In the container its alias is its name on the host, as upstream writes it.
//!
//! Design decision: the device is recognised by what a container cannot change: its bus and permanent address, otherwise the number
//! and the kind of the link, and for a veth whose other end is on the host that end. Its name, alias, addresses and MAC are the
//! container's. See docs/host-device.md.

mod give_back;
mod selector;
mod state;

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_netlink::{Link, LinkChange, Netlink};
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{AttachmentId, Error, Journal, NetnsLookup, Result, log};
use cnikit_store::Directory;
use cnikit_types::{Interface, NetConf, check_ifname};
use nix::errno::Errno;

use crate::identity::alias;
use crate::identity::recorded;
use crate::link::container_link::check_name_is_free;
use crate::link::host_device::give_back::{find_returned, give_back, restore, take_out, wait_for_return};
use crate::link::host_device::state::{DeviceIdentity, DeviceState, LinkBefore};
use crate::lock_netns;
use crate::state_file::{self, FoundState, StateFile, Undone};
use crate::stored_file;
pub use selector::{DeviceBus, DeviceSelector, bus_of, check_bus_name, check_kernel_path, is_in_userspace};

/// A device of the host as the container's interface.
#[derive(Clone, Debug)]
pub struct HostDevice {
    /// The container's interface.
    pub ifname: String,
    /// The device.
    pub device: DeviceSelector,
    /// The directory in which is stored what the device was; see [`data_dir`].
    pub data_dir: PathBuf,
}

/// The directory of the states. A reboot empties it, and puts every device back.
pub const DEFAULT_DIR: &str = "/run/cni/host-device";
/// What the lock is for.
const LOCKED_FOR: &str = "move devices of the host";

/// Devices are found by the stored state of their attachment; one that upstream moved by its alias.
pub const KIND: Kind = Kind { name: "host device", release, sweep, outlives_link: true };

/// The directory of the states: `dataDir`. DEL and GC read nothing else of the configuration, unless upstream moved the device.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    stored_file::data_dir(conf, DEFAULT_DIR)
}

/// Checks that a state could be stored in `dir`.
///
/// # Errors
/// A file could not be created, see [`Directory::probe_at`].
pub fn available(dir: &Path) -> Result<()> {
    Ok(Directory::probe_at(dir)?)
}

/// Checks that the host has a device, or that an attachment has it whose state is stored in `dir`.
///
/// # Errors
/// Neither has it, or the kernel or sysfs cannot be asked.
pub fn check_exists(device: &DeviceSelector, dir: &Path) -> Result<()> {
    let wanted = HostDevice { ifname: String::new(), device: device.clone(), data_dir: dir.to_owned() };
    let host = Netlink::here()?;
    if wanted.find(&host)?.is_some() {
        return Ok(());
    }
    let states = state_file::all::<DeviceState>(dir)?;
    if states.iter().any(|found| wanted.is_selected(&found.state)) {
        Ok(())
    } else {
        Err(wanted.missing(&host, &states))
    }
}

impl Resource for HostDevice {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        check_name_is_free(&self.ifname, context)?;
        available(&self.data_dir)?;
        let host = context.host()?;
        match self.find(host)? {
            Some(link) => check_is_movable(&link),
            None => self.check_returns(host),
        }
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let _lock = lock_netns::own(LOCKED_FOR)?;
        let host = context.host()?;
        give_back_returned(host, &self.data_dir)?;
        let Some(link) = self.find(host)? else { return Err(self.missing(host, &state_file::all(&self.data_dir)?)) };
        check_is_movable(&link)?;
        let container = context.container()?;
        let mut state = DeviceState::of(&link, host, container)?;
        StateFile::open::<DeviceState>(context, &self.data_dir)?.record(&self.data_dir, journal, &state)?;
        let moved = MovedDevice { state: state.clone(), tag: context.tag.clone(), netns: context.netns.clone() };
        let undo = journal.undo(&moved, MovedDevice::give_back);
        let change = LinkChange::default().name(self.ifname.clone()).alias(link.name.clone());
        host.move_link(link.index, &context.netns, &change, None).map_err(|error| explained(error, &link))?;
        let inside = container.link(&self.ifname)?;
        if state.identity.inside != Some(inside.index) {
            state.identity.inside = Some(inside.index);
            state_file::update(context, &self.data_dir, &state)?;
            journal.strike(undo);
            let _ = journal.undo(&MovedDevice { state, ..moved }, MovedDevice::give_back);
        }
        let pci_id = selector::pci_address(&link).unwrap_or_default();
        let sandbox = context.sandbox.clone();
        Ok(Made::one(Interface { name: self.ifname.clone(), sandbox, pci_id, ..Interface::default() }))
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let ifname = &self.ifname;
        let Some(link) = context.container()?.find_link(ifname)? else {
            drifts.unless(false, || {
                format!("interface {ifname}: wanted {}, found none in {}", self.device, context.sandbox)
            });
            return Ok(());
        };
        if let Some(state) = state_file::find::<DeviceState>(context, &self.data_dir)? {
            let found = state.find_inside(context.host()?, &context.netns, ifname)?;
            drifts.unless(found.is_some_and(|found| found.index == link.index), || {
                format!("{ifname}: wanted {}, found another interface", self.device)
            });
        }
        recorded::verify(context, ifname, None, &link, drifts);
        Ok(())
    }
}

impl HostDevice {
    fn find(&self, host: &Netlink) -> Result<Option<Link>> {
        self.device.find(host).map_err(|error| error.context("failed to find host device"))
    }

    /// Checks that a device that the host does not have will be given back before the ADD needs it: its attachment's namespace has
    /// ended.
    fn check_returns(&self, host: &Netlink) -> Result<()> {
        let states = state_file::all::<DeviceState>(&self.data_dir)?;
        for found in &states {
            if !self.is_selected(&found.state) || found.owner.namespace(&NetnsLookup::Empty)?.is_some() {
                continue;
            }
            if find_returned(&found.state, host)?.is_some()
                || found.state.identity.is_hardware() && wait_for_return(&found.state, host)?.is_some()
            {
                return Ok(());
            }
        }
        Err(self.missing(host, &states))
    }

    fn is_selected(&self, DeviceState { identity, before }: &DeviceState) -> bool {
        let mut link = Link::default();
        link.mac = before.settings.mac;
        link.permanent_address.clone_from(&identity.permanent);
        link.parent.clone_from(&identity.parent);
        self.device.is_about(&before.name, before.altnames.as_deref().unwrap_or_default(), &link)
    }

    /// The error of a device that the host does not have.
    fn missing(&self, host: &Netlink, states: &[FoundState<DeviceState>]) -> Error {
        if let Some(error) = self.device.explain_missing() {
            return error;
        }
        let text = format!("failed to find host device: the host has no {}", self.device);
        match states.iter().find(|found| self.is_selected(&found.state)) {
            Some(found) => {
                let text = format!("{text}: {} has it", found.owner.tag());
                Error::conflict(text).hint("DEL that attachment, or GC if its container is gone")
            }
            None => self.device.explain_untold(host).unwrap_or_else(|| {
                let hint = "`ip link` lists the devices of the host; another container may have this one";
                Error::conflict(text).hint(hint)
            }),
        }
    }
}

impl fmt::Display for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the host, in the container as {}", self.device, self.ifname)?;
        write!(f, "; what it was is stored in {}", self.data_dir.display())
    }
}

/// A device that this ADD moves, for the journal.
#[derive(Clone)]
struct MovedDevice {
    state: DeviceState,
    tag: AttachmentId,
    netns: Netns,
}

impl MovedDevice {
    fn give_back(&self) -> Result<()> {
        let _lock = lock_netns::own(LOCKED_FOR)?;
        give_back(&self.state, &self.tag, Some(&self.netns)).map(drop)
    }
}

impl fmt::Display for MovedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host device {}", self.state.before.name)
    }
}

/// Refuses links that belong to a running container, and the loopback.
fn check_is_movable(link: &Link) -> Result<()> {
    if link.name == "lo" {
        let text = "failed to find host device: lo is the host's loopback, which cannot be moved";
        return Err(Error::config(text).hint("select a device of the host"));
    }
    if link.alias.as_deref().and_then(alias::mark).is_some() {
        let owner = alias::clear_text(link).unwrap_or("another attachment");
        let text = format!("failed to find host device: {} is the host end of {owner}", link.name);
        return Err(Error::conflict(text).hint("select a device that is no container's"));
    }
    Ok(())
}

fn explained(error: cnikit_netlink::Error, link: &Link) -> Error {
    if Errno::from_raw(error.errno) == Errno::EINVAL {
        let text = format!("failed to move link {}: this kind of link cannot leave its namespace", link.name);
        return Error::conflict(text)
            .detail(error.to_string())
            .hint("bridges, VRFs and other links of the host stay there");
    }
    Error::from(error).context("failed to move link")
}

/// Gives back the devices of attachments whose namespace has ended, if the kernel has brought them to the host: they have the names
/// that they had in their containers. The caller has the lock. A device that cannot be given back is left to DEL.
fn give_back_returned(host: &Netlink, dir: &Path) -> Result<()> {
    for found in state_file::all::<DeviceState>(dir)? {
        if let Err(error) = give_back_if_returned(host, dir, &found) {
            log::warn(format_args!("{} of {} is not given back: {error}", found.state.before.name, found.owner.tag()));
        }
    }
    Ok(())
}

fn give_back_if_returned(host: &Netlink, dir: &Path, found: &FoundState<DeviceState>) -> Result<()> {
    let Some(link) = find_returned(&found.state, host)? else { return Ok(()) };
    if let Some(netns) = found.owner.namespace(&NetnsLookup::Empty)?
        && found.state.find_inside(host, &netns, &found.owner.ifname)?.is_some()
    {
        return Ok(());
    }
    restore(host, &link, &found.state.before)?;
    state_file::discard(dir, &found.name)
}

fn give_back_locked(state: &DeviceState, tag: &AttachmentId, netns: Option<&Netns>) -> Result<Undone> {
    let _lock = lock_netns::own(LOCKED_FOR)?;
    give_back(state, tag, netns)
}

fn release(context: &ReleaseContext) -> Result<()> {
    let dir = data_dir(&context.conf);
    if state_file::release_anywhere(context, &dir, give_back_locked)? {
        return Ok(());
    }
    match &context.netns {
        NetnsLookup::Present(netns) => give_back_of_upstream(context, netns, &dir),
        _ => Ok(()),
    }
}

fn sweep(context: &GcContext) -> Result<()> {
    state_file::sweep_anywhere(context, &data_dir(&context.conf), give_back_locked)
}

/// Kinds of links that lead nowhere: a container gains nothing if one of its own comes to the host.
const LEADING_NOWHERE: [&str; 2] = ["dummy", "ifb"];

/// Whether a container cannot have made this link to get it to the host: it is hardware, its other end or the link below it is
/// on the host, or it leads nowhere. The alias and the MAC prove nothing, because a container may change them.
fn cannot_be_the_containers(container: &Netlink, netns: &Netns, link: &Link) -> Result<bool> {
    let Some(kind) = &link.kind else { return Ok(link.parent.is_some() || link.permanent_address.is_some()) };
    if LEADING_NOWHERE.contains(&kind.as_str()) {
        return Ok(true);
    }
    let host = Netns::own()?;
    // The kernel gave the host its number when it described the link.
    let number = container.namespace_id(&host)?;
    Ok(!netns.is(&host) && link.lower.is_some() && link.lower_netns.is_some() && link.lower_netns == number)
}

/// Gives back a device that upstream moved, which stores its name on the host in its alias and nothing else.
///
/// By now the path may be another container's namespace, so the device must not be one of ours, and the result of the ADD or the
/// configuration has to name it.
fn give_back_of_upstream(context: &ReleaseContext, netns: &Netns, dir: &Path) -> Result<()> {
    let container = Netlink::inside(netns)?;
    let ifname = &context.tag.ifname;
    let Some(link) = container.find_link(ifname)? else { return Ok(()) };
    let Some(name) = link.alias.clone().filter(|name| check_ifname(name).is_ok()) else { return Ok(()) };
    let is_recorded = context
        .prev
        .as_ref()
        .is_some_and(|prev| !prev.interfaces.is_empty() && recorded::has_mac_of(Some(prev), ifname, &link));
    let is_configured = match &context.prev {
        None => context.conf.text("device") == Some(&name),
        Some(_) => false,
    };
    if !is_recorded && !is_configured {
        return Ok(());
    }
    let host = context.host()?;
    if !cannot_be_the_containers(&container, netns, &link)? {
        log::warn(format_args!("{ifname} stays in the container: nothing proves that it comes from the host"));
        return Ok(());
    }
    for found in state_file::all::<DeviceState>(dir)? {
        if found.state.find_inside(host, netns, ifname)?.is_some_and(|ours| ours.index == link.index) {
            return Ok(());
        }
    }
    let _lock = lock_netns::own(LOCKED_FOR)?;
    let identity = DeviceIdentity {
        index: link.index,
        inside: Some(link.index),
        kind: link.kind.clone(),
        parent: link.parent.clone(),
        permanent: link.permanent_address.clone(),
        peer: None,
    };
    let before = LinkBefore { name, group: link.group, ..LinkBefore::default() };
    let link = take_out(&DeviceState { identity, before: before.clone() }, &container, &link, host)?;
    restore(host, &link, &before)
}
