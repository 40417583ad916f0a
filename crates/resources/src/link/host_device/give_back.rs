//! Giving a device back to the host as it was.

use std::time::Duration;

use cnikit_netlink::{Link, LinkChange, Netlink};
use cnikit_netns::{Netns, NetnsLookup, find};
use cnikit_process::Deadline;
use cnikit_skel::{AttachmentId, Error, Result, code, log};
use nix::errno::Errno;

use crate::link::delete_links::delete;
use crate::link::host_device::selector::is_on_bus;
use crate::link::host_device::state::{DeviceState, LinkBefore, StoredAddress};
use crate::link::link_settings::put_on;
use crate::saved_settings::is_value_refused;
use crate::state_file::Undone;

/// The name of a device whose own name the host has given to another link. The kernel fills in a number, and names devices of dead
/// namespaces so too.
const SPARE_NAME: &str = "dev%d";
/// How often a device is moved, if names are taken meanwhile.
const TRIES: usize = 8;
/// How long the kernel gets to move a device out of a namespace that has ended. It needs some milliseconds.
const RETURN: Duration = Duration::from_secs(2);
/// The namespace that the kernel moves devices of dead namespaces to: that of the first process.
const FIRST: &str = "/proc/1/ns/net";
/// Kinds that are made on top of another link, besides those that [`Link::upper`] describes.
const UPPER_KINDS: [&str; 3] = ["macvtap", "ipvtap", "macsec"];

/// Gives the device of an attachment back. The caller has the lock.
///
/// A device that is neither in the container's namespace nor on the host is in another one, and is given back when the kernel has
/// brought it to the host; a link without hardware has been deleted.
pub(super) fn give_back(state: &DeviceState, tag: &AttachmentId, netns: Option<&Netns>) -> Result<Undone> {
    let host = Netlink::here()?;
    if let Some(netns) = netns
        && let Some(link) = state.find_inside(&host, netns, &tag.ifname)?
    {
        let link = take_out(state, &Netlink::inside(netns)?, &link, &host)?;
        restore(&host, &link, &state.before)?;
        return Ok(Undone::Completely);
    }
    if let Some(link) = find_returned(state, &host)? {
        restore(&host, &link, &state.before)?;
        return Ok(Undone::Completely);
    }
    if !state.identity.is_hardware() || !is_still_there(state) {
        return Ok(Undone::Completely);
    }
    if let Some(link) = wait_for_return(state, &host)? {
        restore(&host, &link, &state.before)?;
        return Ok(Undone::Completely);
    }
    log::warn(format_args!(
        "{} is neither on the host nor in the container of {tag}, which may have moved it to another namespace: the kernel returns \
         it when that ends, and the next ADD, DEL or GC of the plugin gives it its name and settings back",
        state.before.name
    ));
    Ok(Undone::NotYet)
}

/// The device on the host, also if the kernel has brought it to the namespace of the first process and that is another one.
pub(super) fn find_returned(state: &DeviceState, host: &Netlink) -> Result<Option<Link>> {
    if let Some(link) = state.find_on_host(host)? {
        return Ok(Some(link));
    }
    if !state.identity.is_hardware() {
        return Ok(None);
    }
    let NetnsLookup::Present(first) = find(FIRST) else { return Ok(None) };
    let there = Netlink::inside(&first)?;
    match state.find_on_host(&there)? {
        Some(link) => take_out(state, &there, &link, host).map(Some),
        None => Ok(None),
    }
}

/// Waits until the kernel has brought the device to the host, for a moment.
pub(super) fn wait_for_return(state: &DeviceState, host: &Netlink) -> Result<Option<Link>> {
    let look = || host.links().map(|links| state.identity.hardware_among(links));
    Ok(host.wait_for(Deadline::after(RETURN), look)?)
}

/// Whether the device has not been removed from its bus.
fn is_still_there(state: &DeviceState) -> bool {
    let parent = state.identity.parent.as_ref();
    parent.is_none_or(|parent| is_on_bus(&parent.bus, &parent.name))
}

/// Moves a device from another namespace to the host, under its own name if that is free there. Returns it as it is then.
///
/// Processes of the container may change the device meanwhile, so a name that was free may be taken: then it is tried again.
pub(super) fn take_out(state: &DeviceState, from: &Netlink, link: &Link, host: &Netlink) -> Result<Link> {
    delete_upper_links(from, link)?;
    let mut link = link.clone();
    for _ in 1..TRIES {
        match move_out(state, from, &link, host) {
            Err(error) if error.exists() || error.is_at_odds() => {}
            moved => return Ok(moved?),
        }
        match from.find_link_at(link.index)? {
            Some(found) => link = found,
            // The kernel moved it and refused its name.
            None => return found_on_host(&link, [Some(state.identity.index), Some(link.index)], host),
        }
    }
    Ok(move_out(state, from, &link, host)?)
}

/// Moves it once. It is renamed before it is moved where that is possible, so that programs of the host see it under one name only.
/// Alternative names that it got in the container are removed before, because the host may have them.
fn move_out(state: &DeviceState, from: &Netlink, link: &Link, host: &Netlink) -> cnikit_netlink::Result<Link> {
    let before = &state.before;
    from.change(link.index, &LinkChange::default().up(false))?;
    from.retain_altnames(link.index, |altname| {
        Ok(is_own_altname(before, altname) && host.find_link(altname)?.is_none())
    })?;
    let mut name = before.name.clone();
    if host.find_link(&name)?.is_some() {
        SPARE_NAME.clone_into(&mut name);
    } else if link.name != name && from.find_link(&name)?.is_none() {
        // It gets the name on the host otherwise.
        let _ = from.change(link.index, &LinkChange::default().name(name.clone()));
    }
    let mut index = None;
    for candidate in [state.identity.index, link.index] {
        if index.is_none() && host.find_link_at(candidate)?.is_none() {
            index = Some(candidate);
        }
    }
    let home = Netns::own().map_err(|error| cnikit_netlink::Error::ours("move link", &link.name, error.to_string()))?;
    from.move_link(link.index, &home, &LinkChange::default().name(name.clone()), index)?;
    found_among(link, [index, Some(link.index)], host)?.map_or_else(|| host.link(&name), Ok)
}

fn found_among(link: &Link, indexes: [Option<u32>; 2], host: &Netlink) -> cnikit_netlink::Result<Option<Link>> {
    for index in indexes.into_iter().flatten() {
        if let Some(found) = host.find_link_at(index)?
            && found.kind == link.kind
            && found.permanent_address == link.permanent_address
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn found_on_host(link: &Link, indexes: [Option<u32>; 2], host: &Netlink) -> Result<Link> {
    match found_among(link, indexes, host)? {
        Some(found) => Ok(found),
        None => {
            Err(Error::new(code::TRY_AGAIN, format!("{} was moved by another process", link.name)).hint("try again"))
        }
    }
}

/// Deletes the links that were made on top of a device in its namespace: the kernel would leave them there, connected to the device
/// on the host.
fn delete_upper_links(netlink: &Netlink, device: &Link) -> Result<()> {
    for link in netlink.links()? {
        let is_upper = link.upper.is_some() || link.kind.as_deref().is_some_and(|kind| UPPER_KINDS.contains(&kind));
        if is_upper && link.lower == Some(device.index) && link.lower_netns.is_none() {
            log::info(format_args!("{} on top of {} is deleted with it", link.name, device.name));
            delete(netlink, &link)?;
        }
    }
    Ok(())
}

/// Gives a link of the host its name and settings back.
pub(super) fn restore(host: &Netlink, found: &Link, before: &LinkBefore) -> Result<()> {
    let mut link = found.clone();
    // The container may have given it its name on the host as an alternative name, which would be in the way.
    host.retain_altnames(link.index, |altname| Ok(altname != before.name && is_own_altname(before, altname)))?;
    if link.name != before.name {
        if host.find_link(&before.name)?.is_some_and(|other| other.index != link.index) {
            log::warn(format_args!(
                "{} is back on the host as {}, because another interface of the host has its name",
                before.name, link.name
            ));
        } else {
            let name = Some(before.name.clone());
            host.change(link.index, &LinkChange::default().up(false))?;
            host.change(link.index, &LinkChange::default().name(name))?;
            link = host.link_at(link.index)?;
        }
    }
    // Some drivers change the MAC only of a link that is down.
    if link.up && before.settings.mac.is_some_and(|mac| Some(mac) != link.mac) {
        host.change(link.index, &LinkChange::default().up(false))?;
    }
    put_on(host, &link, &before.settings)?;
    let mut change = LinkChange::default();
    if link.alias.as_deref().unwrap_or_default() != before.alias {
        change.alias = Some(before.alias.clone());
    }
    if link.group != before.group {
        change.group = Some(before.group);
    }
    if change != LinkChange::default() {
        host.change(link.index, &change)?;
    }
    restore_altnames(host, &link, before)?;
    restore_master(host, &link, before)?;
    for StoredAddress(address) in &before.addresses {
        let mut batch = cnikit_netlink::Batch::new();
        batch.add_address_copy(link.index, address);
        unless_refused(host.send(batch))?;
    }
    if host.link_at(link.index)?.up != before.up {
        host.change(link.index, &LinkChange::default().up(before.up))?;
    }
    Ok(())
}

/// Whether the device had this alternative name on the host, or may have had it.
fn is_own_altname(before: &LinkBefore, altname: &str) -> bool {
    before.altnames.as_ref().is_none_or(|names| names.iter().any(|name| name == altname))
}

fn restore_altnames(host: &Netlink, link: &Link, before: &LinkBefore) -> Result<()> {
    for altname in before.altnames.iter().flatten() {
        if !link.altnames.contains(altname) && host.find_link(altname)?.is_none() {
            host.add_altname(link.index, altname)?;
        }
    }
    Ok(())
}

fn restore_master(host: &Netlink, link: &Link, before: &LinkBefore) -> Result<()> {
    let Some(name) = &before.master else { return Ok(()) };
    match host.find_link(name)? {
        Some(master) if link.master == Some(master.index) => Ok(()),
        Some(master) => unless_refused(host.change(link.index, &LinkChange::default().master(master.index))),
        None => Ok(()),
    }
}

/// Logs what the kernel refuses, and always will, such as an IPv6 address where IPv6 is switched off.
fn unless_refused(result: cnikit_netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if is_value_refused(error.errno) || Errno::from_raw(error.errno) == Errno::EACCES => {
            log::warn(format_args!("{error}: it is not given back"));
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(()) => Ok(()),
    }
}
