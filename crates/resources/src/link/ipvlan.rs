//! The container's interface on top of another, with the MAC of that.

use std::fmt;

use cnikit_netlink::{IpvlanMode, Link, UpperKind};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};

use crate::link::stacked::{self, StackedLink};
use crate::link::stacked_links::any_on;
use crate::rules::lock_netns;

/// An ipvlan.
#[derive(Clone, Debug)]
pub struct Ipvlan {
    /// The interface, and what it is on top of.
    pub link: StackedLink,
    /// Up to which layer it is the link below.
    pub mode: IpvlanMode,
}

/// ipvlans are found by what they bear, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "ipvlan",
    release: |context| stacked::release(KIND.name, context),
    sweep: |context| stacked::sweep(KIND.name, context),
    outlives_link: true,
};

impl Resource for Ipvlan {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let master = self.link.preflight(context)?;
        self.judge_mode(&master, context)
    }

    /// One at a time: of two with different modes each would find nobody, and the second switch the first.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let master = &self.link.master;
        let _alone = lock_netns::of(&master.home(context)?, "make ipvlans")?;
        self.judge_mode(&master.find(context)?, context)?;
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
    /// The kernel has one mode a master, and switches all that are on it to that of the last: none of them may be running.
    fn judge_mode(&self, master: &Link, context: &ApplyContext) -> Result<()> {
        let (one, place) = match master.upper {
            // It is an ipvlan itself, beside which the new one comes to be.
            Some(UpperKind::Ipvlan(_)) => (master.clone(), self.link.master.place().to_owned()),
            _ => match any_on(master, KIND.name, &self.link.master, context)? {
                Some(found) => found,
                None => return Ok(()),
            },
        };
        match one.upper {
            Some(UpperKind::Ipvlan(mode)) if mode != self.mode => {
                let name = &master.name;
                let wanted = self.mode;
                let text =
                    format!("{name} bears ipvlans of mode {mode}, and one of mode {wanted} would switch them all");
                let bears = one.alias.map_or_else(String::new, |alias| format!(", {alias}"));
                let error = Error::conflict(text).detail(format!("one of them is {} {place}{bears}", one.name));
                Err(error.hint(format!("set `mode` to {mode}, or choose another `master`")))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Ipvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipvlan {} in the container, mode {}{}", self.link.ifname, self.mode, self.link)
    }
}
