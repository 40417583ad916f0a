//! A macvlan: an interface of the container on top of another link, with a MAC of its own.

use std::fmt;

use cnikit_netlink::{Mac, MacvlanMode, UpperKind};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result, code};

use crate::link::container_link::{release, sweep};
use crate::link::stacked::StackedLink;

/// A macvlan.
#[derive(Clone, Debug)]
pub struct Macvlan {
    /// The interface and its master.
    pub link: StackedLink,
    /// The mode: which of the other macvlans on the master it exchanges frames with.
    pub mode: MacvlanMode,
    /// The length of its broadcast queue; absent: the kernel's choice.
    pub bcqueuelen: Option<u32>,
    /// The MAC; absent: the kernel's choice. It is not made from the tag, because another node on the segment may have the same
    /// tag.
    pub mac: Option<Mac>,
}

/// macvlans are found by their alias or group, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "macvlan",
    release: |context| release(KIND.name, context),
    sweep: |context| sweep(KIND.name, context),
    outlives_link: true,
};

impl Resource for Macvlan {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        self.link.preflight(context).map(drop)
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let made = self.link.make(self.upper_kind(), self.mac, context, journal)?;
        if self.bcqueuelen.is_some() {
            self.check_queue(context)?;
        }
        Ok(made)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let ifname = &self.link.ifname;
        if let Some(UpperKind::Macvlan { mode, queue }) = self.link.verify(KIND.name, context, drifts)? {
            drifts.compare(format!("mode of {ifname}"), self.mode, mode);
            if let Some(length) = self.bcqueuelen {
                drifts.compare(format!("bcqueuelen of {ifname}"), length, queue.unwrap_or_default());
            }
        }
        Ok(())
    }
}

impl Macvlan {
    /// A kernel that has no queue of this length ignores the request, and reports none.
    fn check_queue(&self, context: &ApplyContext) -> Result<()> {
        let ifname = &self.link.ifname;
        if let Some(UpperKind::Macvlan { queue: None, .. }) = context.container()?.link(ifname)?.upper {
            let text = format!("{ifname} cannot have `bcqueuelen`, which Linux has since 5.11");
            return Err(Error::new(code::SYSTEM, text).hint("remove the key, or use a newer kernel"));
        }
        Ok(())
    }

    /// The kind of link, as netlink takes it.
    pub fn upper_kind(&self) -> UpperKind {
        UpperKind::Macvlan { mode: self.mode, queue: self.bcqueuelen }
    }
}

impl fmt::Display for Macvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "macvlan {} in the container, mode {}", self.link.ifname, self.mode)?;
        if let Some(length) = self.bcqueuelen {
            write!(f, ", bcqueuelen {length}")?;
        }
        if let Some(mac) = self.mac {
            write!(f, ", mac {mac}")?;
        }
        write!(f, "{}", self.link)
    }
}
