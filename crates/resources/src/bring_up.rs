//! The container's end of a layer-2 attachment, up.

use std::fmt;

use cnikit_netlink::Change;
use cnikit_plan::{Drifts, Kind, Made, Resource, Scene};
use cnikit_skel::{Journal, Result};

use crate::quiet;

/// The container's interface is up, with no address from us.
#[derive(Clone, Debug)]
pub struct BringUp {
    /// The interface.
    pub ifname: String,
    /// It may configure itself from router advertisements, as the kernel does by default.
    pub slaac: bool,
}

/// The kind that these are of.
pub const KIND: Kind = Kind::goes_with_link("interface up");

impl Resource for BringUp {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, scene: &Scene, _journal: &mut Journal) -> Result<Made> {
        if !self.slaac {
            scene.netns.enter(|inside| quiet::quiet(inside, &self.ifname, &quiet::ALL))??;
        }
        let container = scene.container()?;
        let link = container.link(&self.ifname)?;
        container.change(link.index, &Change { up: Some(true), ..Change::default() })?;
        Ok(Made::nothing())
    }

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        if let Some(link) = scene.container()?.find_link(&self.ifname)? {
            drifts.unless(link.up, || format!("{}: wanted up, found down", self.ifname));
        }
        Ok(())
    }
}

impl fmt::Display for BringUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} up", self.ifname)?;
        f.write_str(if self.slaac { "" } else { ", deaf to router advertisements" })
    }
}
