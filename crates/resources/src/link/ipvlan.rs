//! An ipvlan: an interface of the container on top of another link, with that link's MAC.

use std::fmt;

use cnikit_netlink::{IpvlanMode, Link, UpperKind};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};

use crate::link::container_link::{release, sweep};
use crate::link::stacked::StackedLink;
use crate::link::stacked_links::first_on;
use crate::lock_netns;

/// An ipvlan.
#[derive(Clone, Debug)]
pub struct Ipvlan {
    /// The interface and its master.
    pub link: StackedLink,
    /// The mode, which all ipvlans of a master share.
    pub mode: IpvlanMode,
}

/// ipvlans are found by their alias or group, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "ipvlan",
    release: |context| release(KIND.name, context),
    sweep: |context| sweep(KIND.name, context),
    outlives_link: true,
};

impl Resource for Ipvlan {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let master = self.link.preflight(context)?;
        self.check_mode(&master, context)
    }

    /// Holds the lock of the master's namespace. Without it, two ADDs with different modes would both find no ipvlan, and the
    /// second would switch the mode of the first.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let master = &self.link.master;
        let _lock = lock_netns::of(&master.home(context)?, "make ipvlans")?;
        self.check_mode(&master.find(context)?, context)?;
        self.link.make(UpperKind::Ipvlan(self.mode), None, context, journal)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        if let Some(UpperKind::Ipvlan(mode)) = self.link.verify(KIND.name, context, drifts)? {
            drifts.compare(format!("mode of {}", self.link.ifname), self.mode, mode);
        }
        Ok(())
    }
}

impl Ipvlan {
    /// Refuses a mode that differs from that of the ipvlans on the master. The kernel has one mode per master, and making an ipvlan
    /// with another mode would switch all of them, running containers' included.
    fn check_mode(&self, master: &Link, context: &ApplyContext) -> Result<()> {
        let (one, place) = match master.upper {
            // The master is an ipvlan itself. The kernel puts the new one on the same link as that one.
            Some(UpperKind::Ipvlan(_)) => (master.clone(), self.link.master.place().to_owned()),
            _ => match first_on(master, KIND.name, &|_| true, &self.link.master, context)? {
                Some(found) => found,
                None => return Ok(()),
            },
        };
        let Some(UpperKind::Ipvlan(mode)) = one.upper else { return Ok(()) };
        if mode == self.mode {
            return Ok(());
        }
        let name = &master.name;
        let wanted = self.mode;
        let text = format!("{name} has ipvlans of mode {mode}, and one of mode {wanted} would change the mode of all");
        let alias = one.alias.map_or_else(String::new, |alias| format!(", {alias}"));
        let error = Error::conflict(text).detail(format!("one of them is {} {place}{alias}", one.name));
        Err(error.hint(format!("set `mode` to {mode}, or choose another `master`")))
    }
}

impl fmt::Display for Ipvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipvlan {} in the container, mode {}{}", self.link.ifname, self.mode, self.link)
    }
}
