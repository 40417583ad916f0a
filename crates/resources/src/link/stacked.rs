//! The common part of macvlan, ipvlan and VLAN: an interface of the container on top of another link.

use std::fmt;

use cnikit_netlink::{Link, Mac, Netlink, NewUpper, UpperKind};
use cnikit_plan::{ApplyContext, Drifts, Made};
use cnikit_skel::{Error, Journal, Result};

use crate::link::container_link::{self, OwnLink, group_of, high_index, is, no_kind};
use crate::link::parent::Master;

/// An interface of the container on top of a master. It is made in its final namespace and with its final name.
#[derive(Clone, Debug)]
pub struct StackedLink {
    /// The container's interface.
    pub ifname: String,
    /// The link that it is on top of.
    pub master: Master,
    /// The MTU in bytes, at most the master's; absent: the master's.
    pub mtu: Option<u32>,
    /// It is up from the start. Otherwise it is set up with its addresses.
    pub up: bool,
}

impl StackedLink {
    /// Checks that the master exists and has at least that MTU, and that the name is free. Returns the master.
    pub(crate) fn preflight(&self, context: &ApplyContext) -> Result<Link> {
        let master = self.master.find(context)?;
        if let Some(mtu) = self.mtu
            && mtu > master.mtu
        {
            let text = format!("invalid MTU {mtu}, must be [0, master MTU({})]", master.mtu);
            return Err(Error::config(text).hint(format!("lower `mtu`, or raise the MTU of {}", master.name)));
        }
        container_link::check_name_is_free(&self.ifname, context)?;
        Ok(master)
    }

    /// Makes the link with this MAC, or one of the kernel's choice, and writes its alias.
    pub(crate) fn make(
        &self,
        upper: UpperKind,
        mac: Option<Mac>,
        context: &ApplyContext,
        journal: &mut Journal,
    ) -> Result<Made> {
        let master = self.master.find(context)?;
        // The request is sent in the master's namespace and names the container's. Sent in the container's, old kernels would make
        // the link there and move it.
        let netlink = self.master.netlink(context)?;
        let netns = if self.master.in_container { None } else { Some(context.netns.clone()) };
        let tag = &context.tag;
        let name = self.ifname.clone();
        let StackedLink { mtu, up, .. } = *self;
        let lower = master.index;
        let group = group_of(tag);
        let wanted = NewUpper::new(name, lower, upper).netns(netns).mac(mac).mtu(mtu).group(group).up(up);
        let own = OwnLink::of(upper.name(), context)?;
        if let Err(error) = create(netlink, &wanted, &own) {
            let taken = error.exists();
            return Err(own.clean_up_failed_create(explained(error, netlink, &master, upper), taken));
        }
        let _ = journal.undo(&own, OwnLink::delete);
        own.mark(&context.sandbox)
    }

    /// Compares the common part. Returns the mode, which the caller compares; `None` if the link is missing or of another kind.
    pub(crate) fn verify(&self, kind: &str, context: &ApplyContext, drifts: &mut Drifts) -> Result<Option<UpperKind>> {
        let ifname = &self.ifname;
        let Some(link) = container_link::verify(kind, ifname, self.mtu, context, drifts)? else { return Ok(None) };
        drifts.unless(!self.up || link.up, || format!("{ifname}: wanted up, found down"));
        drifts.unless(link.upper.is_some(), || format!("mode of {ifname}: found one that no plugin sets"));
        self.master.verify(context, &link, drifts)?;
        Ok(link.upper)
    }
}

/// The end of a plan's line, after the part of macvlan, ipvlan or VLAN.
impl fmt::Display for StackedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        write!(f, ", on {}", self.master)?;
        f.write_str(if self.up { ", up" } else { "" })
    }
}

/// Makes the link in one message. Kernels before 6.15 refuse it if its name is taken in the namespace of the socket, which is often
/// so because hosts have an `eth0` too. Then it is made with a link number of its own, which those kernels accept.
fn create(netlink: &Netlink, wanted: &NewUpper, own: &OwnLink) -> cnikit_netlink::Result<()> {
    let Err(error) = netlink.create_upper(wanted) else { return Ok(()) };
    let is_taken_here = wanted.netns.is_some() && error.exists() && own.container.find_link(&wanted.name)?.is_none();
    if !is_taken_here {
        return Err(error);
    }
    netlink.create_upper(&wanted.clone().index(high_index(&own.tag)))
}

/// The kernel's error about such a link on this master, with a hint.
pub(crate) fn explained(failed: cnikit_netlink::Error, netlink: &Netlink, master: &Link, upper: UpperKind) -> Error {
    if failed.unsupported() {
        return unsupported(&failed, netlink, master, upper);
    }
    let is_at_odds = failed.is_at_odds();
    let error = Error::from(failed);
    if is_at_odds { error.hint(incompatible_master_hint(netlink, master, upper)) } else { error }
}

/// The error for `EOPNOTSUPP`: either this kernel has no such links, or the master cannot have one.
fn unsupported(failed: &cnikit_netlink::Error, netlink: &Netlink, master: &Link, upper: UpperKind) -> Error {
    if matches!(netlink.knows_upper(upper), Ok(true)) {
        let text = format!("{} cannot have a {} on it", master.name, upper.name());
        return Error::conflict(text).detail(failed.to_string()).hint("choose another `master`");
    }
    no_kind(upper.name(), upper.module()).detail(failed.to_string())
}

/// The hint for a master that cannot have such a link.
fn incompatible_master_hint(netlink: &Netlink, master: &Link, upper: UpperKind) -> String {
    let owner = master.master.and_then(|index| netlink.find_link_at(index).ok().flatten());
    match owner {
        Some(owner) if !is("vrf", &owner) => {
            format!("{} is a port of {}: use that as `master`, or remove the port from it", master.name, owner.name)
        }
        _ if matches!(upper, UpperKind::Vlan { .. }) => "choose another `master`".to_owned(),
        _ => "a master can have macvlans or ipvlans, not both, only one with `passthru`, and cannot be a loopback: choose another `master` or `mode`"
            .to_owned(),
    }
}

/// Checks that this kernel can make such a link, and that its master exists. Returns the master, if it is known.
///
/// # Errors
/// The kernel lacks the kind of link, the master does not exist, or either cannot be determined.
pub fn available(upper: UpperKind, master: &Master) -> Result<Option<Link>> {
    let host = Netlink::here()?;
    if host.knows_upper(upper)? { master.available(&host) } else { Err(no_kind(upper.name(), upper.module())) }
}
