//! The container's interface on top of another, with the MAC of that.

use std::fmt;

use cnikit_netlink::{IpvlanMode, Upper as Sort};
use cnikit_plan::{Drifts, Kind, Made, Resource, Scene};
use cnikit_skel::{Journal, Result};

use crate::upper::{self, Upper};

/// An ipvlan.
#[derive(Clone, Debug)]
pub struct Ipvlan {
    /// The interface, and what it is on top of.
    pub link: Upper,
    /// Up to which layer it is the link below.
    pub mode: IpvlanMode,
}

/// ipvlans are found by what they bear, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "ipvlan",
    release: |remains| upper::release(KIND.name, remains),
    sweep: |stale| upper::sweep(KIND.name, stale),
    outlives_link: true,
};

impl Resource for Ipvlan {
    fn kind(&self) -> Kind {
        KIND
    }

    fn judge(&self, scene: &Scene) -> Result<()> {
        self.link.judge(scene)
    }

    fn ensure(&self, scene: &Scene, journal: &mut Journal) -> Result<Made> {
        self.link.make(Sort::Ipvlan(self.mode), None, scene, journal)
    }

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        if let Some(Sort::Ipvlan(mode)) = self.link.verify(KIND.name, scene, drifts)? {
            drifts.compare(format!("mode of {}", self.link.ifname), self.mode, mode);
        }
        Ok(())
    }
}

impl fmt::Display for Ipvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipvlan {} in the container, mode {}{}", self.link.ifname, self.mode, self.link)
    }
}
