//! The two ends of a veth pair: their names and MACs, and how one is found from the other.

use std::time::Duration;

use cnikit_netlink::{Link, Mac, Netlink};
use cnikit_netns::Netns;
use cnikit_plan::ApplyContext;
use cnikit_process::Deadline;
use cnikit_skel::{AttachmentId, Error, Result};

use crate::identity::alias::{self, AliasOwner, hex};

/// How many names a tag has. The next one is used if a hash collides.
const NAMES: usize = 4;
/// The upstream plugins wait as long.
const TIMEOUT: Duration = Duration::from_millis(2550);

/// The names of a tag's host end, first choice first.
#[doc(alias = "ifname")]
pub fn names(tag: &AttachmentId) -> [String; NAMES] {
    let hash = hex(&tag.hash());
    std::array::from_fn(|n| format!("veth{}", &hash[n * 11..(n + 1) * 11]))
}

/// The MACs of a tag: that of the container's end, that of the host end. Both are locally administered. The host end's starts with
/// `fe`, so that a bridge which takes the lowest MAC of its ports never takes it.
pub(crate) fn macs(tag: &AttachmentId) -> [Mac; 2] {
    let hash = tag.hash();
    let mac = |first: u8, at: usize| Mac([first, hash[at], hash[at + 1], hash[at + 2], hash[at + 3], hash[at + 4]]);
    [mac((hash[31] & 0xfc) | 0x02, 22), mac(0xfe, 27)]
}

/// The MAC of the container's end: the requested one, or the tag's.
pub fn mac(tag: &AttachmentId, requested: Option<Mac>) -> Mac {
    requested.unwrap_or(macs(tag)[0])
}

/// The host end of this attachment's veth pair, found by its name; `None` if there is none.
///
/// # Errors
/// The kernel cannot be asked.
pub fn host_end(host: &Netlink, tag: &AttachmentId) -> Result<Option<Link>> {
    for name in names(tag) {
        if let Some(link) = host.find_recent_link(&name)?
            && is_veth(&link)
            && alias::owner(&link, tag) != AliasOwner::Another
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// The host end of a pair that this call has made.
///
/// # Errors
/// It does not exist any more (code 101), or the kernel cannot be asked.
pub fn own_host_end(host: &Netlink, tag: &AttachmentId) -> Result<Link> {
    match host_end(host, tag)? {
        Some(link) => Ok(link),
        None => Err(Error::conflict(format!("the host end of {tag} is gone: another program removed it"))),
    }
}

/// The host end of a veth of the container, if it is in the host's namespace.
///
/// Each end names the other by number *and* by namespace, because every namespace counts its links from 1.
///
/// # Errors
/// The kernel cannot be asked. A peer that is elsewhere, or that is not a veth, is not an error.
pub fn host_end_of(host: &Netlink, netns: &Netns, end: &Link) -> Result<Option<Link>> {
    let peer = peer_on_host(host, netns, end)?;
    Ok(peer.filter(is_veth))
}

/// The link of the host of which a link of the container is the other end, whatever its kind: veth, netkit.
///
/// # Errors
/// The kernel cannot be asked.
pub(crate) fn peer_on_host(host: &Netlink, netns: &Netns, end: &Link) -> Result<Option<Link>> {
    let Some(index) = end.lower else { return Ok(None) };
    // The link is read before the id of the namespace: the kernel assigns that id when it first describes a link into the
    // namespace.
    let Some(peer) = host.find_recent_link_at(index)? else { return Ok(None) };
    let id = host.namespace_id(netns)?;
    let is_peer = peer.lower == Some(end.index) && id.is_some() && peer.lower_netns == id;
    Ok(is_peer.then_some(peer))
}

/// The host end of the container's interface of this name.
pub(crate) fn host_end_of_interface(context: &ApplyContext, ifname: &str) -> Result<Option<Link>> {
    match context.container()?.find_recent_link(ifname)? {
        Some(end) => host_end_of(context.host()?, &context.netns, &end),
        None => Ok(None),
    }
}

/// Waits until the host end passes packets on, which is a moment after the container's end came up.
pub(crate) fn wait_running(host: &Netlink, end: &Link) -> Result<()> {
    if end.running {
        return Ok(());
    }
    match host.wait_link(end.index, Deadline::after(TIMEOUT), |link| link.running) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::from(error).context(format_args!("host end {} does not come up", end.name))),
    }
}

/// Whether the kernel reports that a link is an end of a veth pair.
pub fn is_veth(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_of_that_kind_is_a_veth() {
        let of_kind = |kind: Option<&str>| {
            let mut link = Link::default();
            link.kind = kind.map(str::to_owned);
            is_veth(&link)
        };
        assert_eq!([Some("veth"), Some("macvlan"), None].map(of_kind), [true, false, false]);
    }

    #[test]
    fn names_and_macs_are_the_tags_own_and_always_the_same() {
        let tag = |ifname: &str| AttachmentId { network: "n1".into(), container: "c1".into(), ifname: ifname.into() };
        assert_eq!(names(&tag("eth0")), names(&tag("eth0")));
        assert_ne!(names(&tag("eth0"))[0], names(&tag("eth1"))[0]);
        assert!(names(&tag("eth0")).iter().all(|name| name.len() == 15));
        let [container, host] = macs(&tag("eth0"));
        assert!(container.0[0] & 3 == 2 && host.0[0] == 0xfe && container != host);
    }
}
