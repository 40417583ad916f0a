//! The ids (nsid) that a network namespace has for other ones.

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
/// Length of an `rtgenmsg`, padded to the alignment of attributes.
const NAMESPACE_HEADER: usize = 4;

impl Netlink {
    /// The id (nsid) that the namespace of this socket has for `netns`; [`crate::Link::lower_netns`] is such an id.
    ///
    /// `None` if there is none yet: the kernel assigns the id when it first describes a link here whose lower link or peer is in
    /// `netns`, so read that link before. The id exists as long as both namespaces. Each namespace has ids of its own, and
    /// usually none for itself. See ip-netns(8), `list-id`.
    ///
    /// # Errors
    /// The kernel refuses the request, or its answer has no id.
    #[doc(alias = "RTM_GETNSID")]
    #[doc(alias = "nsid")]
    pub fn namespace_id(&self, netns: &Netns) -> Result<Option<i32>> {
        if let Some(id) = self.remembered_id(netns) {
            return Ok(Some(id));
        }
        let operation = "find the number of namespace";
        let object = netns.path().to_string_lossy().into_owned();
        let unreadable = Error::unreadable(operation, object.clone(), "the kernel's answer has no number");
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(netns.as_fd().as_raw_fd().cast_unsigned()));
        let message = RouteNetlinkMessage::GetNsId(message);
        let request = Request {
            message: message.into(),
            flags: 0,
            operation,
            object: object.into(),
            link: None,
            forgives: Forgives::Nothing,
        };
        let id = self.ask(request)?.iter().find_map(|answer| number(answer)).ok_or(unreadable)?;
        // -1 is NETNSA_NSID_NOT_ASSIGNED.
        if id < 0 {
            return Ok(None);
        }
        self.remember_id(netns, id);
        Ok(Some(id))
    }
}

/// Parses an `RTM_NEWNSID` message.
fn number(message: &[u8]) -> Option<i32> {
    let value = value(message.get(HEADER + NAMESPACE_HEADER..)?, NSID)?;
    parse_i32(value).ok()
}
