//! A VLAN: an interface of the container that has the frames of one VLAN of another link.

use std::fmt;
use std::time::Duration;

use cnikit_netlink::{Link, UpperKind, VlanProtocol};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_process::Deadline;
use cnikit_skel::{Error, Journal, Result};

use crate::identity::alias;
use crate::link::container_link::{release, sweep};
use crate::link::stacked::{self, StackedLink};
use crate::link::stacked_links::first_on;

/// A VLAN on top of a master. The kernel allows one per master, number and protocol, in all namespaces together.
#[derive(Clone, Debug)]
pub struct VlanLink {
    /// The interface and its master.
    pub link: StackedLink,
    /// The number of the VLAN, from 0 to 4094.
    pub id: u16,
    /// The tag of its frames.
    pub protocol: VlanProtocol,
}

/// How long ADD waits for the kernel to destroy a namespace.
const DESTRUCTION: Duration = Duration::from_secs(5);

/// VLANs are found by their alias or group, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "vlan",
    release: |context| release(KIND.name, context),
    sweep: |context| sweep(KIND.name, context),
    outlives_link: true,
};

impl Resource for VlanLink {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let master = self.link.preflight(context)?;
        check_is_up(&master)?;
        if self.is_free(&master, context)? { Ok(()) } else { self.wait_until_free(&master, context) }
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let error = match self.link.make(self.upper_kind(), None, context, journal) {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        // Another ADD may have made this VLAN since the preflight, or the kernel could not be asked there: no MTU is larger than
        // the master's. An interface that exists is this ADD's own, which failed later.
        if context.container()?.find_link(&self.link.ifname)?.is_some() {
            return Err(error);
        }
        let master = self.link.master.find(context)?;
        match self.holder(&master, context) {
            Ok(Some(holder)) => Err(self.in_use(&master, &holder).detail(error.to_string())),
            // The kernel's error is reported also if the holder cannot be looked for.
            Ok(None) | Err(_) => Err(error),
        }
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let ifname = &self.link.ifname;
        if let Some(UpperKind::Vlan { id, protocol }) = self.link.verify(KIND.name, context, drifts)? {
            drifts.compare(format!("VLAN ID of {ifname}"), self.id, id);
            drifts.compare(format!("protocol of {ifname}"), self.protocol, protocol);
        }
        Ok(())
    }
}

impl VlanLink {
    /// The kind of link, as netlink takes it.
    pub fn upper_kind(&self) -> UpperKind {
        UpperKind::Vlan { id: self.id, protocol: self.protocol }
    }

    /// Checks that this kernel has VLANs, and that the master exists and is up.
    ///
    /// # Errors
    /// One of these is not so, or cannot be determined.
    pub fn available(&self) -> Result<()> {
        match stacked::available(self.upper_kind(), &self.link.master)? {
            Some(master) => check_is_up(&master),
            None => Ok(()),
        }
    }

    fn is_free(&self, master: &Link, context: &ApplyContext) -> Result<bool> {
        let netlink = self.link.master.netlink(context)?;
        let asked = netlink.is_vlan_free(master, self.id, self.protocol);
        asked.map_err(|error| stacked::explained(error, netlink, master, self.upper_kind()))
    }

    /// Waits for a VLAN that is in use in a namespace without a path, and refuses one whose holder is found.
    ///
    /// A container that was started again finds the VLAN in use for a moment: the kernel destroys the namespace of the one before
    /// it some time after it has lost its path. In the master's namespace it then reports the master as changed, because a link on
    /// top of it is gone.
    fn wait_until_free(&self, master: &Link, context: &ApplyContext) -> Result<()> {
        if let Some(holder) = self.holder(master, context)? {
            return Err(self.in_use(master, &holder));
        }
        let netlink = self.link.master.netlink(context)?;
        let is_decided = |_: &Link| !matches!(self.is_free(master, context), Ok(false));
        match netlink.wait_link(master.index, Deadline::after(DESTRUCTION), is_decided) {
            Err(error) if !error.timed_out() => return Err(error.into()),
            _ => {}
        }
        if self.is_free(master, context)? {
            return Ok(());
        }
        let holder = self.holder(master, context)?;
        Err(self.in_use(master, &holder.unwrap_or_else(|| "in a network namespace that has no path".to_owned())))
    }

    /// The link that has this VLAN of the master, with its namespace and attachment; `None` if it is in no namespace that can be
    /// found.
    fn holder(&self, master: &Link, context: &ApplyContext) -> Result<Option<String>> {
        let upper = Some(self.upper_kind());
        let has_it = |link: &Link| link.upper == upper;
        let Some((link, place)) = first_on(master, KIND.name, &has_it, &self.link.master, context)? else {
            return Ok(None);
        };
        Ok(Some(match alias::clear_text(&link) {
            Some(attachment) => format!("by {} {place}, the interface of {attachment}", link.name),
            None => format!("by {} {place}", link.name),
        }))
    }

    fn in_use(&self, master: &Link, holder: &str) -> Error {
        let error = Error::conflict(format!("{} of {} is already in use {holder}", self.named(), master.name));
        error.hint("choose another `vlanId` or `master`: the kernel allows one interface per VLAN of a link, in all namespaces together")
    }

    fn named(&self) -> String {
        match self.protocol {
            VlanProtocol::Dot1q => format!("VLAN {}", self.id),
            VlanProtocol::Dot1ad => format!("802.1ad VLAN {}", self.id),
        }
    }
}

/// Checks that a master is up. The kernel sets no VLAN up whose master is down.
fn check_is_up(master: &Link) -> Result<()> {
    if master.up {
        return Ok(());
    }
    let name = &master.name;
    Err(Error::conflict(format!("the master {name} is down, and a VLAN cannot be up on it"))
        .hint(format!("`ip link set {name} up`")))
}

impl fmt::Display for VlanLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vlan {} in the container, {}{}", self.link.ifname, self.named(), self.link)
    }
}
