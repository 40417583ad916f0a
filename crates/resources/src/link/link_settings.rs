//! Settings of the container's interface, which an earlier plugin of the chain made.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use cnikit_netlink::{Link, Netlink};
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result};

use crate::link::mac_holder::Behind;
pub use crate::saved_settings::LinkValues;
use crate::saved_settings::{self, SavedSettings};

/// Settings of the container's interface. The values from before are stored, and DEL restores them.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// The interface.
    pub ifname: String,
    /// The settings.
    pub settings: LinkValues,
    /// The directory in which the values from before are stored; see [`saved_settings::data_dir`].
    pub data_dir: PathBuf,
}

/// The kind of [`LinkSettings`].
pub const KIND: Kind = Kind {
    name: "link settings",
    release: |context| saved_settings::release(context, restore_values),
    sweep: |context| saved_settings::sweep(context, restore_values),
    outlives_link: true,
};

impl Resource for LinkSettings {
    fn kind(&self) -> Kind {
        KIND
    }

    /// Checks that the interface exists and can have this MTU and MAC, and that its values could be stored.
    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let link = self.link(context)?;
        let (wanted, _) = self.settings.differing(&link);
        let most = link.max_mtu.unwrap_or(u32::MAX);
        if let Some(mtu) = wanted.mtu
            && !(link.min_mtu..=most).contains(&mtu)
        {
            let text = format!("{} cannot have the MTU {mtu}: it takes {} to {most}", self.ifname, link.min_mtu);
            return Err(Error::config(text).hint("correct `mtu`"));
        }
        if let Some(mac) = wanted.mac
            && let Some(behind) = Behind::find(context.host()?, &context.netns, &link)?
        {
            behind.refuse_held(mac)?;
        }
        if wanted == LinkValues::default() { Ok(()) } else { saved_settings::available(&self.data_dir) }
    }

    /// Sends one message for all settings. The kernel may refuse one of them after it has applied another.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let container = context.container()?;
        let link = self.link(context)?;
        let (wanted, before) = self.settings.differing(&link);
        if wanted == LinkValues::default() {
            return Ok(Made::nothing());
        }
        let saved = SavedSettings { link: before.clone(), ..SavedSettings::default() };
        saved_settings::record(context, &self.data_dir, journal, &saved)?;
        let behind = match wanted.mac {
            Some(_) => Behind::find(context.host()?, &context.netns, &link)?,
            None => None,
        };
        let old = OldValues {
            container: container.clone(),
            link: link.clone(),
            before,
            tag: context.tag.clone(),
            behind: behind.clone(),
        };
        let _ = journal.undo(&old, OldValues::put_back);
        container.change(link.index, &wanted.change())?;
        if let (Some(behind), Some(mac)) = (behind, wanted.mac) {
            behind.record(&context.tag, mac)?;
            // Another attachment may have got the same MAC since preflight. If two compare now, both may be refused.
            behind.refuse_held(mac)?;
        }
        Ok(Made::nothing())
    }

    /// A MAC or MTU of prevResult is accepted too, because a later plugin of the chain may have changed it.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let name = &self.ifname;
        let recorded = context.recorded();
        let Some(link) = context.container()?.find_recent_link(name)? else {
            drifts.unless(false, || format!("interface {name}: wanted in the container, found none"));
            return Ok(());
        };
        let mac = recorded.and_then(|one| one.mac.parse().ok());
        let mtu = recorded.and_then(|one| one.mtu);
        let (mut wanted, found) = self.settings.differing(&link);
        if link.mac == mac {
            wanted.mac = None;
        }
        if Some(link.mtu) == mtu {
            wanted.mtu = None;
        }
        let found: HashMap<&str, String> = found.words().into_iter().collect();
        for (of, wanted) in wanted.words() {
            let value = found.get(of).map_or("none", String::as_str);
            drifts.compare(format!("{of} of {name}"), wanted.as_str(), value);
        }
        Ok(())
    }
}

impl LinkSettings {
    fn link(&self, context: &ApplyContext) -> Result<Link> {
        let absent = || {
            Error::conflict(format!("Cannot find container link {} in {}", self.ifname, context.sandbox))
                .hint("a plugin that makes the interface has to come before this one in the list")
        };
        context.container()?.find_recent_link(&self.ifname)?.ok_or_else(absent)
    }
}

impl fmt::Display for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.settings.words().into_iter().map(|(of, value)| format!("{of} {value}")).collect();
        let ifname = &self.ifname;
        let data_dir = self.data_dir.display();
        write!(f, "{ifname} in the container with {}; the old values are stored in {data_dir}", words.join(", "))
    }
}

/// The values that this ADD replaced, for the journal.
#[derive(Clone)]
struct OldValues {
    container: Netlink,
    link: Link,
    before: LinkValues,
    tag: AttachmentId,
    behind: Option<Behind>,
}

impl OldValues {
    fn put_back(&self) -> Result<()> {
        put(&self.container, &self.link.name, &self.before)?;
        match (&self.behind, self.before.mac) {
            (Some(behind), Some(mac)) => behind.record(&self.tag, mac),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for OldValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "settings of {}", self.link.name)
    }
}

fn restore_values(saved: &mut SavedSettings, ifname: &str, netns: Option<&Netns>) -> Result<()> {
    let before = std::mem::take(&mut saved.link);
    let Some(netns) = netns else { return Ok(()) };
    if before == LinkValues::default() {
        return Ok(());
    }
    let container = Netlink::inside(netns)?;
    put(&container, ifname, &before)?;
    let (Some(mac), Some(owner)) = (before.mac, &saved.owner) else { return Ok(()) };
    if let Some(link) = container.find_link(ifname)?
        && link.mac == Some(mac)
        && let Some(behind) = Behind::find(&Netlink::here()?, netns, &link)?
    {
        behind.record(&owner.tag(), mac)?;
    }
    Ok(())
}

/// Sets the values. A link that no longer exists is success. If the kernel refuses a value, the others are still set.
fn put(netlink: &Netlink, ifname: &str, settings: &LinkValues) -> Result<()> {
    match netlink.find_link(ifname)? {
        Some(link) => put_on(netlink, &link, settings),
        None => Ok(()),
    }
}

/// Sets the values of a link, see [`put`].
pub(crate) fn put_on(netlink: &Netlink, link: &Link, settings: &LinkValues) -> Result<()> {
    let (changed, _) = settings.differing(link);
    if changed == LinkValues::default() {
        return Ok(());
    }
    match netlink.change(link.index, &changed.change()) {
        Err(error) if saved_settings::is_value_refused(error.errno) => {
            changed.each().iter().map(|one| put_one(netlink, link, one)).collect::<Errors>().finish()
        }
        Err(error) if !error.is_absent() => Err(error.into()),
        _ => Ok(()),
    }
}

fn put_one(netlink: &Netlink, link: &Link, one: &LinkValues) -> Result<()> {
    match netlink.change(link.index, &one.change()) {
        Err(error) if saved_settings::is_value_refused(error.errno) => {
            let words: Vec<String> = one.words().into_iter().map(|(of, value)| format!("{of} {value}")).collect();
            saved_settings::warn_not_restored(
                error.during("give back", format!("{} to {}", words.join(", "), link.name)),
            );
            Ok(())
        }
        Err(error) if !error.is_absent() => Err(error.into()),
        _ => Ok(()),
    }
}
