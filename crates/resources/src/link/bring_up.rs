//! The container's interface of a layer-2 attachment, up.

use std::fmt;

use cnikit_netlink::LinkChange;
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Journal, Result};

use crate::link::ipv6_settings;

/// The container's interface is up, without addresses from the plugin.
#[derive(Clone, Debug)]
pub struct BringUp {
    /// The interface.
    pub ifname: String,
    /// The interface may configure itself from router advertisements, as the kernel does by default.
    pub slaac: bool,
}

/// The kind of [`BringUp`].
pub const KIND: Kind = Kind::goes_with_link("interface up");

impl Resource for BringUp {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        if !self.slaac {
            context
                .netns
                .enter(|inside| ipv6_settings::ignore_router_adverts(inside, &self.ifname, &ipv6_settings::ALL))??;
        }
        let container = context.container()?;
        let link = container.link(&self.ifname)?;
        container.change(link.index, &LinkChange::default().up(true))?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        if let Some(link) = context.container()?.find_link(&self.ifname)? {
            drifts.unless(link.up, || format!("{}: wanted up, found down", self.ifname));
        }
        Ok(())
    }
}

impl fmt::Display for BringUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} up", self.ifname)?;
        f.write_str(if self.slaac { "" } else { ", ignoring router advertisements" })
    }
}
