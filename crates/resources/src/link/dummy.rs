//! A dummy: an interface of the container that leads nowhere.

use std::fmt;

use cnikit_netlink::{Netlink, NewDummy};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};

use crate::link::container_link::{self, OwnLink, group_of, no_kind, release, sweep};
use crate::link::veth_ends;

/// A dummy in the container. Its MAC is made from the tag.
#[derive(Clone, Debug)]
pub struct Dummy {
    /// The container's interface.
    pub ifname: String,
}

/// Dummies are found by their alias or group, in the container's namespace.
pub const KIND: Kind = Kind {
    name: "dummy",
    release: |context| release(KIND.name, context),
    sweep: |context| sweep(KIND.name, context),
    outlives_link: true,
};

impl Resource for Dummy {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        container_link::check_name_is_free(&self.ifname, context)
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let tag = &context.tag;
        let name = self.ifname.clone();
        let wanted = NewDummy { name, mac: veth_ends::mac(tag, None), group: group_of(tag) };
        let own = OwnLink::of(KIND.name, context)?;
        if let Err(error) = own.container.create_dummy(&wanted) {
            let taken = error.exists();
            return Err(own.clean_up_failed_create(explained(error), taken));
        }
        let _ = journal.undo(&own, OwnLink::delete);
        own.mark(&context.sandbox)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        container_link::verify(KIND.name, &self.ifname, None, context, drifts).map(drop)
    }
}

fn explained(failed: cnikit_netlink::Error) -> Error {
    if failed.unsupported() { no_kind(KIND.name, KIND.name).detail(failed.to_string()) } else { failed.into() }
}

/// Checks that this kernel can make a dummy.
///
/// # Errors
/// The kernel lacks the kind of link, or cannot be asked.
pub fn available() -> Result<()> {
    if Netlink::here()?.knows_dummy()? { Ok(()) } else { Err(no_kind(KIND.name, KIND.name)) }
}

impl fmt::Display for Dummy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dummy {} in the container", self.ifname)
    }
}
