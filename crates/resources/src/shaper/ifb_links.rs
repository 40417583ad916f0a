//! The ifb of an attachment: its names, and how it is found.

use cnikit_netlink::{Link, Netlink, QdiscPlace};
use cnikit_plan::ReleaseContext;
use cnikit_skel::{AttachmentId, Error, Result};
use sha2::{Digest, Sha512};

use crate::identity::alias::{self, AliasOwner, hex};
use crate::link::container_link::owner;

/// What the kernel calls it.
pub(crate) const IFB: &str = "ifb";
/// How many names a tag has.
const NAMES: usize = 4;
/// The prefix of all names, and how many digits follow it.
const PREFIX: &str = "bwp";
const DIGITS: usize = 12;

/// The names of a tag's ifb, first choice first. The first one is upstream's, so that upstream's DEL removes it. All interfaces of
/// a container on a network have that one in common; the next one is used for the second of them.
fn names(tag: &AttachmentId) -> [String; NAMES] {
    let shared = hex(&Sha512::digest(format!("{}{}", tag.network, tag.container)));
    let own = hex(&tag.hash());
    std::array::from_fn(|n| match n {
        0 => format!("{PREFIX}{}", &shared[..DIGITS]),
        n => format!("{PREFIX}{}", &own[n * DIGITS..(n + 1) * DIGITS]),
    })
}

pub(crate) fn is_ifb(link: &Link) -> bool {
    link.kind.as_deref() == Some(IFB)
}

/// The links of the host that have the names of a tag's ifb.
pub(crate) struct NamedLinks<'a> {
    host: &'a Netlink,
    tag: &'a AttachmentId,
    names: [String; NAMES],
    /// In the order of the names.
    links: Vec<Option<Link>>,
}

impl NamedLinks<'_> {
    /// Reads the links.
    pub(crate) fn read<'a>(host: &'a Netlink, tag: &'a AttachmentId) -> Result<NamedLinks<'a>> {
        let names = names(tag);
        let links = host.find_links(&names)?;
        Ok(NamedLinks { host, tag, names, links })
    }

    /// The network namespace of the host.
    pub(crate) fn host(&self) -> &Netlink {
        self.host
    }

    /// The names, first choice first.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The ifb of this attachment, by its alias.
    pub(crate) fn marked(&self) -> Option<Link> {
        let mut links = self.links.iter().flatten();
        links.find(|link| is_ifb(link) && owner(link, self.tag) == AliasOwner::This).cloned()
    }

    /// The ifb of upstream's name without an alias: of this attachment, or of another interface of the same container.
    fn unmarked(&self) -> Option<Link> {
        let link = self.links.first()?.as_ref()?;
        (is_ifb(link) && owner(link, self.tag) == AliasOwner::Unknown).then(|| link.clone())
    }

    /// The ifb of this attachment, whichever implementation made it: one without an alias is this attachment's if the host end's
    /// traffic is redirected to it.
    pub(crate) fn of(&self, host_end: &Link) -> Result<Option<Link>> {
        if let Some(link) = self.marked() {
            return Ok(Some(link));
        }
        let Some(link) = self.unmarked() else { return Ok(None) };
        Ok(redirects_to(self.host, host_end, &link)?.then_some(link))
    }

    /// The first name of the tag that no link has.
    ///
    /// # Errors
    /// All of them are taken.
    pub(crate) fn free_name(&self) -> Result<String> {
        for (name, link) in self.names.iter().zip(&self.links) {
            if link.is_none() {
                return Ok(name.clone());
            }
        }
        let text = format!("all names of the ifb of {} are taken: {}", self.tag, self.names.join(", "));
        Err(Error::conflict(text).hint("`ip -details link show type ifb` shows them"))
    }

    /// The ifb without an alias, if DEL of this attachment removes it. It is left alone if it serves another interface of the
    /// container, which only the link that redirects to it can tell.
    pub(crate) fn unmarked_to_release(&self, context: &ReleaseContext, host_ends: &[Link]) -> Result<Option<Link>> {
        let Some(ifb) = self.unmarked() else { return Ok(None) };
        let is_own = match users_of(self.host, &ifb)?.next().transpose()? {
            None => true,
            Some(user) if host_ends.is_empty() => is_recorded(context, &user),
            Some(user) => host_ends.iter().any(|own| own.index == user.index),
        };
        Ok(is_own.then_some(ifb))
    }
}

/// Whether what a link receives is redirected to another link.
pub(crate) fn redirects_to(host: &Netlink, link: &Link, to: &Link) -> Result<bool> {
    let filters = host.filters(link.index, QdiscPlace::Ingress)?;
    Ok(filters.iter().any(|filter| filter.redirects_to() == Some(to.index)))
}

/// The links whose traffic is redirected to this ifb. The filters of a link are read when it is its turn.
pub(crate) fn users_of(host: &Netlink, ifb: &Link) -> Result<impl Iterator<Item = Result<Link>>> {
    let links = host.links_of_kind("veth")?.into_iter();
    Ok(links.filter_map(move |link| redirects_to(host, &link, ifb).map(|is_user| is_user.then_some(link)).transpose()))
}

/// Whether a link of the host is this attachment's by its alias, and where it has none by prevResult. Without that, nothing speaks
/// against it.
pub(crate) fn is_recorded(context: &ReleaseContext, link: &Link) -> bool {
    match (alias::owner(link, &context.tag), &context.prev) {
        (AliasOwner::This, _) | (AliasOwner::Unknown, None) => true,
        (AliasOwner::Another, _) => false,
        (AliasOwner::Unknown, Some(prev)) => {
            prev.interfaces.iter().any(|one| one.sandbox.is_empty() && one.name == link.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_upstreams_and_the_others_are_the_interfaces_own() {
        let tag = |network: &str, container: &str, ifname: &str| AttachmentId {
            network: network.into(),
            container: container.into(),
            ifname: ifname.into(),
        };
        assert_eq!(names(&tag("n1", "c1", "eth0"))[0], "bwp7be53730afe4");
        assert_eq!(names(&tag("cni-plugin-bandwidth-test", "dummy", "eth0"))[0], "bwpa8eda89404b7");
        let eth0 = names(&tag("n1", "c1", "eth0"));
        let eth1 = names(&tag("n1", "c1", "eth1"));
        assert_eq!(eth0[0], eth1[0]);
        assert!(eth0[1..].iter().all(|name| name.len() == 15 && !eth1.contains(name)));
    }
}
