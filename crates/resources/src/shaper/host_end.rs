//! The host end of the container's interface: the link on the host whose other end it is.

use cnikit_netlink::{Link, Netlink};
use cnikit_netns::NetnsLookup;
use cnikit_plan::{ApplyContext, ReleaseContext};
use cnikit_skel::{Error, Result};

use crate::identity::alias::{self, AliasOwner};
use crate::identity::recorded;
use crate::link::veth_ends;
use crate::shaper::ifb_links::{self, NamedLinks};

/// The host end from which a limit of an earlier ADD is lifted: none if the interface has none, or it is another attachment's.
pub(crate) fn to_lift(context: &ApplyContext, ifname: &str) -> Result<Option<Link>> {
    let Some(end) = context.container()?.find_recent_link(ifname)? else { return Ok(None) };
    let host_end = veth_ends::peer_on_host(context.host()?, &context.netns, &end)?;
    Ok(host_end.filter(|link| alias::owner(link, &context.tag) != AliasOwner::Another))
}

/// The host end of the container's interface of this name.
///
/// # Errors
/// There is no such interface, it has no other end on the host, or the host end belongs to another attachment.
pub(crate) fn of(context: &ApplyContext, ifname: &str) -> Result<Link> {
    let refused = |why: String| Error::conflict(format!("container interface {ifname} has no veth peer: {why}"));
    let Some(end) = context.container()?.find_recent_link(ifname)? else {
        return Err(refused(format!("there is no such interface in {}", context.sandbox))
            .hint("a plugin that makes the interface has to come before this one in the list"));
    };
    let Some(host_end) = veth_ends::peer_on_host(context.host()?, &context.netns, &end)? else {
        let kind = end.kind.as_deref().unwrap_or("link without a kind");
        return Err(refused(format!("it is a {kind} without another end in the host's namespace"))
            .hint("rates are limited on the host's side: use a plugin that makes a veth pair, such as bridge or ptp"));
    };
    if alias::owner(&host_end, &context.tag) == AliasOwner::Another {
        let text = format!("{} is the host end of another attachment: {:?}", host_end.name, host_end.alias);
        return Err(Error::conflict(text).hint("the interfaces of the container were exchanged: DEL it"));
    }
    Ok(host_end)
}

/// The host end, for DEL: by its alias; where it has none, by the ifb that it redirects to, or by the container's interface if
/// prevResult has the MAC of that and the name of the host end. By now the path may be another container's namespace. A container
/// that was started anew under its id, while its former namespace exists, has two host ends that redirect to its ifb.
pub(crate) fn to_release(context: &ReleaseContext) -> Result<Vec<Link>> {
    let host = context.host()?;
    if let Some(link) = veth_ends::host_end(host, &context.tag)? {
        return Ok(vec![link]);
    }
    if let Some(ifb) = NamedLinks::read(host, &context.tag)?.marked() {
        let users: Vec<Link> = ifb_links::users_of(host, &ifb)?.collect::<Result<_>>()?;
        if !users.is_empty() {
            return Ok(users);
        }
    }
    let (NetnsLookup::Present(netns), Some(prev)) = (&context.netns, &context.prev) else { return Ok(Vec::new()) };
    let ifname = &context.tag.ifname;
    let Some(end) = Netlink::inside(netns)?.find_link(ifname)? else { return Ok(Vec::new()) };
    if prev.interfaces.is_empty() || !recorded::has_mac_of(Some(prev), ifname, &end) {
        return Ok(Vec::new());
    }
    let host_end = veth_ends::peer_on_host(host, netns, &end)?;
    Ok(host_end.filter(|link| ifb_links::is_recorded(context, link)).into_iter().collect())
}
