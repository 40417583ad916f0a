//! The common part of macvlan and ipvlan: an interface of the container on top of another link.

use std::fmt;
use std::path::Path;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewUpper, UpperKind};
use cnikit_netns::{Netns, NetnsLookup, find, mounted};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Made, ReleaseContext};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result, code};
use cnikit_types::Interface;

use crate::identity::alias::{self, AliasOwner, Marks};
use crate::identity::recorded;
use crate::link::delete_links::{delete, delete_all};
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
            return Err(Error::config(text).hint(format!("lower `mtu`, or raise that of {}", master.name)));
        }
        if context.container()?.find_link(&self.ifname)?.is_none() {
            return Ok(master);
        }
        Err(Error::conflict(format!("interface {:?} already exists in {}", self.ifname, context.sandbox))
            .hint("DEL the attachment that made it, or choose another CNI_IFNAME"))
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
        let container = context.container()?;
        // The request is sent in the master's namespace and names the container's. Sent in the container's, old kernels would make
        // the link there and move it.
        let (netlink, netns) =
            if self.master.in_container { (container, None) } else { (context.host()?, Some(context.netns.clone())) };
        let tag = &context.tag;
        let name = self.ifname.clone();
        let StackedLink { mtu, up, .. } = *self;
        let lower = master.index;
        let group = group_of(tag);
        let wanted = NewUpper { name, index: None, lower, netns, mac, mtu, group, up, upper };
        let own = OwnLink { container: container.clone(), kind: kind_name(upper), tag: tag.clone() };
        if let Err(error) = create(netlink, &wanted, &own) {
            return Err(clean_up_failed_create(&own, error, || incompatible_master_hint(netlink, &master)));
        }
        let _ = journal.undo(&own, OwnLink::delete);
        let link = container.link(&self.ifname)?;
        // Two messages, one after the other: of one message, or of one batch, the kernel may apply the second change and refuse the
        // first. The roll-back does not find a link with neither alias nor group.
        container.change(link.index, &LinkChange { alias: Some(alias::of(tag)), ..LinkChange::default() })?;
        container.change(link.index, &LinkChange { group: Some(0), ..LinkChange::default() })?;
        Ok(Made::one(Interface { name: link.name, sandbox: context.sandbox.clone(), ..Interface::default() }))
    }

    /// Compares the common part. Returns the mode, which the caller compares; `None` if the link is missing or of another kind.
    pub(crate) fn verify(&self, kind: &str, context: &ApplyContext, drifts: &mut Drifts) -> Result<Option<UpperKind>> {
        let ifname = &self.ifname;
        let Some(link) = context.container()?.find_link(ifname)? else {
            drifts.unless(false, || format!("interface {ifname}: wanted {kind}, found none in {}", context.sandbox));
            return Ok(None);
        };
        drifts.compare(format!("kind of {ifname}"), kind, link.kind.as_deref().unwrap_or("none"));
        if !is(kind, &link) {
            return Ok(None);
        }
        // Upstream writes no alias.
        drifts.unless(owner(&link, &context.tag) != AliasOwner::Another, || {
            format!("{ifname}: wanted the interface of {}, found the alias {:?}", context.tag, link.alias)
        });
        drifts.unless(!self.up || link.up, || format!("{ifname}: wanted up, found down"));
        drifts.unless(link.upper.is_some(), || format!("mode of {ifname}: found one that no plugin sets"));
        recorded::verify(context, ifname, self.mtu, &link, drifts);
        self.master.verify(context, &link, drifts)?;
        Ok(link.upper)
    }
}

/// The end of a plan's line, after the part of macvlan or ipvlan.
impl fmt::Display for StackedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        write!(f, ", on {}", self.master)?;
        f.write_str(if self.up { ", up" } else { "" })
    }
}

fn kind_name(upper: UpperKind) -> &'static str {
    match upper {
        UpperKind::Macvlan { .. } => "macvlan",
        UpperKind::Ipvlan(_) => "ipvlan",
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
    netlink.create_upper(&NewUpper { index: Some(high_index(&own.tag)), ..wanted.clone() })
}

/// The link number for that case, one of 2²⁹. It is higher than the numbers that the kernel assigns.
fn high_index(tag: &AttachmentId) -> u32 {
    (group_of(tag) >> 3) | (1 << 29)
}

/// The error of a link that could not be made. Unless the name was taken by another link, the kernel may have made the link and its
/// answer was lost. Then it is deleted.
fn clean_up_failed_create(own: &OwnLink, failed: cnikit_netlink::Error, hint: impl Fn() -> String) -> Error {
    let taken = failed.exists();
    let error = if failed.unsupported() {
        no_kind(own.kind).detail(failed.to_string())
    } else if failed.is_at_odds() {
        Error::from(failed).hint(hint())
    } else {
        Error::from(failed)
    };
    if taken {
        return error;
    }
    match own.delete() {
        Ok(()) => error,
        Err(second) => error.detail(second.to_string()),
    }
}

/// The hint for a master that cannot have such a link.
fn incompatible_master_hint(netlink: &Netlink, master: &Link) -> String {
    let owner = master.master.and_then(|index| netlink.find_link_at(index).ok().flatten());
    match owner {
        Some(owner) if !is("vrf", &owner) => {
            format!("{} is a port of {}: choose that as `master`, or take it out", master.name, owner.name)
        }
        _ => "a master bears either macvlans or ipvlans, one alone with `passthru`; it is no loopback: choose another \
                 `master` or `mode`"
            .to_owned(),
    }
}

/// The error of a kernel without this kind of link.
fn no_kind(kind: &str) -> Error {
    let error = Error::new(code::SYSTEM, format!("this kernel has no {kind}"));
    error.hint(format!("`modprobe {kind}`, or boot a kernel that has it"))
}

/// Checks that this kernel can make such a link, and that its master exists.
///
/// # Errors
/// The kernel lacks the kind of link, the master does not exist, or either cannot be determined.
pub fn available(upper: UpperKind, master: &Master) -> Result<()> {
    let host = Netlink::here()?;
    if host.knows_upper(upper)? { master.available(&host) } else { Err(no_kind(kind_name(upper))) }
}

/// The link that this ADD made, for the journal.
#[derive(Clone)]
struct OwnLink {
    container: Netlink,
    kind: &'static str,
    tag: AttachmentId,
}

impl OwnLink {
    fn delete(&self) -> Result<()> {
        match self.container.find_link(&self.tag.ifname)? {
            Some(link) if is(self.kind, &link) && owner(&link, &self.tag) == AliasOwner::This => {
                delete(&self.container, &link)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for OwnLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.tag.ifname)
    }
}

fn is(kind: &str, link: &Link) -> bool {
    link.kind.as_deref() == Some(kind)
}

/// The group that a link is made with, a number made from the tag. It marks the link until the alias is written, which the kernel
/// does not accept in the message that makes the link. It is not 0, which is the default group of all links.
fn group_of(tag: &AttachmentId) -> u32 {
    let hash = tag.hash();
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]).max(1)
}

/// The attachment that a link belongs to. A link without an alias, but with a group of another tag, is being made by another ADD.
fn owner(link: &Link, tag: &AttachmentId) -> AliasOwner {
    match alias::owner(link, tag) {
        AliasOwner::Unknown if link.group == group_of(tag) => AliasOwner::This,
        AliasOwner::Unknown if link.group != 0 => AliasOwner::Another,
        owner => owner,
    }
}

/// Removes the link of the tag, whatever its name is by now.
///
/// A link without a tag, which another implementation made, is removed only if it has the attachment's name and the recorded MAC:
/// by now the path may be another container's namespace. All ipvlans of a master have the same MAC, so an ipvlan has to have a
/// recorded address too.
pub(crate) fn release(kind: &str, context: &ReleaseContext) -> Result<()> {
    let Some(container) = context.container()? else { return Ok(()) };
    let mut errors = Errors::default();
    for link in container.links_of_kind(kind)? {
        errors.note(release_one(context, &container, &link));
    }
    errors.finish()
}

fn release_one(context: &ReleaseContext, container: &Netlink, link: &Link) -> Result<()> {
    let is_ours = match owner(link, &context.tag) {
        AliasOwner::This => true,
        AliasOwner::Another => false,
        AliasOwner::Unknown => is_recorded(context, container, link)?,
    };
    if is_ours { delete(container, link) } else { Ok(()) }
}

fn is_recorded(context: &ReleaseContext, container: &Netlink, link: &Link) -> Result<bool> {
    let ifname = &context.tag.ifname;
    let record = context.prev.as_ref();
    if link.name != *ifname || !recorded::has_mac_of(record, ifname, link) {
        return Ok(false);
    }
    match link.upper {
        Some(UpperKind::Ipvlan(_)) => recorded::has_address_of(record, container, link),
        _ => Ok(true),
    }
}

/// Removes the links of attachments that are not valid any more, in all namespaces that are mounted. There is no path to any other,
/// and a namespace that is not mounted is destroyed with its last process.
pub(crate) fn sweep(kind: &str, context: &GcContext) -> Result<()> {
    let marks = Marks::of(context);
    let paths = mounted().map_err(|error| Error::from(error).context("look for mounted namespaces"))?;
    let mut errors = Errors::default();
    for path in paths {
        errors.note(sweep_path(kind, &marks, &path));
    }
    errors.finish()
}

fn sweep_path(kind: &str, marks: &Marks, path: &Path) -> Result<()> {
    match find(&path.to_string_lossy()) {
        NetnsLookup::Present(netns) => sweep_in(kind, marks, &netns),
        NetnsLookup::Unknown { path, why } => {
            let text = format!("the network namespace {} cannot be looked at: {why}", path.display());
            Err(Error::new(code::SYSTEM, text).hint("try again, or remove it"))
        }
        _ => Ok(()),
    }
}

fn sweep_in(kind: &str, marks: &Marks, netns: &Netns) -> Result<()> {
    let container = Netlink::inside(netns)?;
    let is_meant = |link: &Link| is(kind, link) && marks.is_stale(link);
    let links: Vec<Link> = container.links_of_kind(kind)?.into_iter().filter(is_meant).collect();
    delete_all(&container, &links, is_meant)
}
