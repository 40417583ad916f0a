//! Links that are made in the container and have no other end on the host: macvlan, ipvlan, VLAN, dummy, tap, and any kind of link
//! that a plugin of your own makes.
//!
//! [`create`] makes such a link for ADD, [`verify`] compares it for CHECK, and [`release`] and [`sweep`] are the functions of its
//! [`Kind`](cnikit_plan::Kind). All of them take the kind of the link in the kernel's words:
//!
//! ```
//! use cnikit_plan::Kind;
//! use cnikit_resources::container_link;
//!
//! const KIND: Kind = Kind {
//!     name: "vxlan",
//!     release: |context| container_link::release(KIND.name, context),
//!     sweep: |context| container_link::sweep(KIND.name, context),
//!     outlives_link: true,
//! };
//! ```
//!
//! A link is marked in two steps, because the kernel does not accept an alias in the message that makes a link: until the alias is
//! written, the link is in a group whose number is made from the tag.

use std::fmt;
use std::path::Path;

use cnikit_netlink::{Link, LinkChange, Netlink, NewLink, UpperKind};
use cnikit_netns::{Netns, NetnsLookup, find, mounted};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Made, ReleaseContext};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result, code};
use cnikit_types::Interface;

use crate::identity::alias::{self, AliasOwner, Marks};
use crate::identity::recorded;
use crate::link::delete_links::{delete, delete_all};

/// Makes the container's interface as a link of any kind, in its final namespace and with its final name, and marks it as this
/// attachment's. The request is sent on the host: a link below it (`lower`) and the numbers of links in `data` are the host's.
///
/// Of `new` are used the kind and its settings, the link below, MAC, MTU, queues and whether it is up; name, namespace, index and
/// group come from the attachment.
///
/// # Errors
/// The kernel refuses the link, or lacks its kind; what it may have made is deleted. The code is [`code::CONFLICT`] if the kernel
/// says that something exists already (`EEXIST`): the name, which [`check_name_is_free`] reports in advance, or another value that
/// must be unique for this kind, such as the VNI of a VXLAN.
pub fn create(mut new: NewLink, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
    let own = OwnLink::of(&new.kind, context)?;
    new.name.clone_from(&context.tag.ifname);
    new.netns = Some(context.netns.clone());
    // Kernels before 6.15 refuse a name that is in use in the namespace of the socket, unless there is an index.
    new.index = Some(high_index(&context.tag));
    new.group = group_of(&context.tag);
    if let Err(failed) = context.host()?.create_link(&new) {
        let taken = failed.exists();
        return Err(own.clean_up_failed_create(explained(failed, &new.kind), taken));
    }
    let _ = journal.undo(&own, OwnLink::delete);
    own.mark(&context.sandbox)
}

/// The error of a link that the kernel did not make.
fn explained(failed: cnikit_netlink::Error, kind: &str) -> Error {
    if failed.unsupported() {
        return no_kind(kind, kind).detail(failed.to_string());
    }
    let exists = failed.exists();
    let mut error = Error::from(failed);
    if exists {
        error.code = code::CONFLICT;
    }
    error
}

/// The link that this ADD makes, for the journal.
#[derive(Clone)]
pub(crate) struct OwnLink {
    /// The container's namespace.
    pub(crate) container: Netlink,
    /// The kind of the link, as the kernel names it.
    pub(crate) kind: String,
    /// The attachment.
    pub(crate) tag: AttachmentId,
}

impl OwnLink {
    /// The link of this kind that this ADD is about to make.
    pub(crate) fn of(kind: &str, context: &ApplyContext) -> Result<OwnLink> {
        Ok(OwnLink { container: context.container()?.clone(), kind: kind.to_owned(), tag: context.tag.clone() })
    }

    /// Writes the alias, and takes the link out of the group that marked it until then.
    ///
    /// These are two messages, one after the other: of one message, or of one batch, the kernel may apply the second change and
    /// refuse the first. The roll-back does not find a link with neither alias nor group.
    pub(crate) fn mark(&self, sandbox: &str) -> Result<Made> {
        let link = self.container.link(&self.tag.ifname)?;
        let alias = LinkChange::default().alias(alias::of(&self.tag));
        self.container.change(link.index, &alias)?;
        self.container.change(link.index, &LinkChange::default().group(0))?;
        Ok(Made::one(Interface { name: link.name, sandbox: sandbox.to_owned(), ..Interface::default() }))
    }

    /// Deletes the link, if it is this attachment's.
    pub(crate) fn delete(&self) -> Result<()> {
        match self.container.find_link(&self.tag.ifname)? {
            Some(link) if is(&self.kind, &link) && owner(&link, &self.tag) == AliasOwner::This => {
                delete(&self.container, &link)
            }
            _ => Ok(()),
        }
    }

    /// The error of a link that could not be made. Unless the name was taken by another link (`taken`), the kernel may have made
    /// the link and its answer was lost. Then it is deleted.
    pub(crate) fn clean_up_failed_create(&self, error: Error, taken: bool) -> Error {
        if taken {
            return error;
        }
        match self.delete() {
            Ok(()) => error,
            Err(second) => error.detail(second.to_string()),
        }
    }
}

impl fmt::Display for OwnLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.tag.ifname)
    }
}

/// Checks that the container has no interface of this name.
///
/// # Errors
/// It has one (code 101), or its links cannot be read.
pub fn check_name_is_free(ifname: &str, context: &ApplyContext) -> Result<()> {
    if context.container()?.find_link(ifname)?.is_none() {
        return Ok(());
    }
    Err(Error::conflict(format!("interface {ifname:?} already exists in {}", context.sandbox))
        .hint("DEL the attachment that made it, or choose another CNI_IFNAME"))
}

/// Compares existence, kind, alias, MAC and MTU of the container's link. Returns the link; `None` if it is missing or of another
/// kind. The MTU that the recorded result has is wanted, else `mtu`; with `mtu` as `None` it is not compared.
///
/// # Errors
/// The links cannot be read. A difference is not an error.
pub fn verify(
    kind: &str,
    ifname: &str,
    mtu: Option<u32>,
    context: &ApplyContext,
    drifts: &mut Drifts,
) -> Result<Option<Link>> {
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
    recorded::verify(context, ifname, mtu, &link, drifts);
    Ok(Some(link))
}

/// The error of a kernel without this kind of link, which is in the kernel module `module`.
pub fn no_kind(kind: &str, module: &str) -> Error {
    let error = Error::new(code::SYSTEM, format!("this kernel has no {kind}"));
    error.hint(format!("`modprobe {module}`, or boot a kernel that has it"))
}

/// Whether a link is of a kind.
pub(crate) fn is(kind: &str, link: &Link) -> bool {
    link.kind.as_deref() == Some(kind)
}

/// The group that a link is made with, a number made from the tag. It is not 0, which is the default group of all links.
pub(crate) fn group_of(tag: &AttachmentId) -> u32 {
    let hash = tag.hash();
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]).max(1)
}

/// The interface index that a link is made with where the kernel needs one, one of 2²⁹. It is higher than the numbers that the
/// kernel assigns.
pub(crate) fn high_index(tag: &AttachmentId) -> u32 {
    (group_of(tag) >> 3) | (1 << 29)
}

/// The attachment that a link belongs to. A link without an alias, but with a group of another tag, is being made by another ADD.
pub(crate) fn owner(link: &Link, tag: &AttachmentId) -> AliasOwner {
    match alias::owner(link, tag) {
        AliasOwner::Unknown if link.group == group_of(tag) => AliasOwner::This,
        AliasOwner::Unknown if link.group != 0 => AliasOwner::Another,
        owner => owner,
    }
}

/// Removes the link of the tag, whatever its name is by now.
///
/// A link without a tag, which another implementation made, is removed only if it has the attachment's name and the recorded MAC:
/// by now the path may be another container's namespace. All ipvlans and VLANs of a master have the same MAC, so such a link has to
/// have a recorded address too.
///
/// # Errors
/// The namespace may exist but cannot be entered, or the kernel refuses the deletion. That nothing is there is not an error.
pub fn release(kind: &str, context: &ReleaseContext) -> Result<()> {
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
    // Upstream makes persistent TAP devices only.
    if link.tun.is_some_and(|tun| !tun.tap || !tun.persistent) {
        return Ok(false);
    }
    if link.upper.is_some_and(UpperKind::shares_mac) {
        return recorded::has_address_of(record, container, link);
    }
    Ok(true)
}

/// Removes the links of attachments that are not valid any more, in all namespaces that are mounted. There is no path to any other,
/// and a namespace that is not mounted is destroyed with its last process.
///
/// # Errors
/// A namespace cannot be inspected, or a link not deleted; all others are deleted.
pub fn sweep(kind: &str, context: &GcContext) -> Result<()> {
    let marks = Marks::of(context);
    let paths = mounted().map_err(|error| Error::from(error).context("search for mounted namespaces"))?;
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
            let text = format!("the network namespace {} cannot be inspected: {why}", path.display());
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

#[cfg(test)]
mod tests {
    use cnikit_netlink::NewBridge;
    use cnikit_netns::Inside;

    use super::*;

    fn tag(container: &str) -> AttachmentId {
        AttachmentId { network: "n".into(), container: container.into(), ifname: "eth0".into() }
    }

    fn link(group: u32, alias: Option<String>) -> Link {
        let mut link = Link::default();
        link.kind = Some("dummy".into());
        link.group = group;
        link.alias = alias;
        link
    }

    #[test]
    fn a_link_is_its_tags_by_alias_or_by_group_until_it_has_an_alias() {
        let [own, other] = ["c1", "c2"].map(tag);
        for (group, alias, whose) in [
            (0, Some(&own), AliasOwner::This),
            (0, Some(&other), AliasOwner::Another),
            (group_of(&own), Some(&other), AliasOwner::Another),
            (group_of(&own), None, AliasOwner::This),
            (group_of(&other), None, AliasOwner::Another),
            (0, None, AliasOwner::Unknown),
        ] {
            assert_eq!(owner(&link(group, alias.map(alias::of)), &own), whose, "{group} {alias:?}");
        }
        assert!(is("dummy", &link(0, None)) && !is("macvlan", &link(0, None)) && !is("dummy", &Link::default()));
    }

    #[test]
    fn a_group_is_not_that_of_all_links_and_an_index_none_that_the_kernel_chooses() {
        let tags: Vec<AttachmentId> = (0..100).map(|n| tag(&format!("c{n}"))).collect();
        for tag in &tags {
            let hash = tag.hash();
            assert_eq!(group_of(tag), u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]));
            assert_eq!(high_index(tag), group_of(tag) / 8 + 0x2000_0000);
            assert!(i32::try_from(high_index(tag)).is_ok());
        }
    }

    /// A bridge has the name of the interface. Its alias names another attachment at first, and then this one.
    #[test]
    fn a_roll_back_deletes_the_link_of_its_kind_and_attachment_alone() {
        let work = |_: &Inside| {
            let container = Netlink::here().unwrap();
            let made = container.create_bridge(&NewBridge::new("eth0")).unwrap();
            let is_left_by = |kind: &str, of: &AttachmentId| {
                let alias = LinkChange::default().alias(alias::of(of));
                container.change(made.index, &alias).unwrap();
                OwnLink { container: container.clone(), kind: kind.into(), tag: tag("c1") }.delete().unwrap();
                container.find_link("eth0").unwrap().is_some()
            };
            assert!(is_left_by("bridge", &tag("c2")) && is_left_by("dummy", &tag("c1")));
            assert!(!is_left_by("bridge", &tag("c1")));
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap();
    }

    #[test]
    fn a_kernel_that_lacks_the_kind_is_told_by_its_module() {
        let said = no_kind("VXLAN", "vxlan").to_string();
        assert!(said.contains("this kernel has no VXLAN") && said.contains("`modprobe vxlan`"), "{said}");
    }
}
