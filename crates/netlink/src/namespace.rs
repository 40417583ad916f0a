//! The numbers that a namespace has for others.

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::parse_i32;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};

use crate::attribute::value;
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Error, Netlink, Result};

/// `NETNSA_NSID` of `linux/net_namespace.h`.
const NSID: u16 = 1;
/// Length of an `rtgenmsg`, filled up to where attributes may begin.
const NAMESPACE_HEADER: usize = 4;

impl Netlink {
    /// The id that the namespace of this socket has for `netns`, which [`crate::Link::lower_netns`] refers to.
    ///
    /// `None` if it has none yet: the kernel assigns it when it first describes a link here that leads there, so read the link
    /// before. It lasts as long as both namespaces. Each namespace has ids of its own, and usually none for itself. See
    /// ip-netns(8), `list-id`.
    ///
    /// # Errors
    /// The kernel refuses the request, or its answer has no id.
    #[doc(alias = "RTM_GETNSID")]
    #[doc(alias = "nsid")]
    pub fn namespace_id(&self, netns: &Netns) -> Result<Option<i32>> {
        let operation = "find the number of namespace";
        let object = netns.path().to_string_lossy().into_owned();
        let unreadable = Error::unreadable(operation, object.clone(), "the kernel's answer holds no number");
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(netns.as_fd().as_raw_fd().cast_unsigned()));
        let message = RouteNetlinkMessage::GetNsId(message);
        let request = Request { message, flags: 0, operation, object, link: None, forgives: Forgives::Nothing };
        let id = self.ask(request)?.iter().find_map(|answer| number(answer)).ok_or(unreadable)?;
        // -1 stands for none.
        Ok((id >= 0).then_some(id))
    }
}

/// Reads an `RTM_NEWNSID` message.
fn number(message: &[u8]) -> Option<i32> {
    let value = value(message.get(HEADER + NAMESPACE_HEADER..)?, NSID)?;
    parse_i32(value).ok()
}
