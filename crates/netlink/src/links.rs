//! Finding and deleting links.

use netlink_packet_core::{DefaultNla, parse_u32};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::dump::SEQUENCE;
use crate::link::{ALT_IFNAME, IFNAME};
use crate::netlink::{Forgives, Request};
use crate::{Error, Link, Netlink, Result};

/// `IFLA_TARGET_NETNSID` of `linux/if_link.h`.
const TARGET_NETNSID: u16 = 46;
/// The maximum length of an interface name in bytes; only alternative names can be longer.
const LONGEST_NAME: usize = 15;

impl Netlink {
    /// The link with this name or alternative name.
    ///
    /// # Errors
    /// There is no such link ([`Error::is_absent`]), or the request fails.
    #[doc(alias = "RTM_GETLINK")]
    pub fn link(&self, name: &str) -> Result<Link> {
        self.read_link(by_name(name), name)
    }

    /// The link with this name or alternative name; `None` if there is none.
    ///
    /// # Errors
    /// The request fails, or the kernel's answer cannot be parsed.
    pub fn find_link(&self, name: &str) -> Result<Option<Link>> {
        absent_is_none(self.link(name))
    }

    /// The links with these names or alternative names, each `None` if there is none. They are asked for in one datagram.
    ///
    /// # Errors
    /// As [`Netlink::find_link`].
    pub fn find_links(&self, names: &[String]) -> Result<Vec<Option<Link>>> {
        let mut requests = Vec::with_capacity(names.len());
        for name in names {
            requests.push(Request { forgives: Forgives::Absent, ..reading(by_name(name), name) });
        }
        let (sequences, messages) = self.carry_out_numbered(&requests)?;
        let mut links = vec![None; names.len()];
        for message in &messages {
            let place = sequences.iter().position(|sequence| Some(*sequence) == sequence_of(message));
            if let (Some(place), Some(link)) = (place, Link::parse(message)) {
                self.remember(&link);
                links[place] = Some(link);
            }
        }
        Ok(links)
    }

    /// The link with this index.
    ///
    /// # Errors
    /// There is no such link ([`Error::is_absent`]), or the request fails.
    pub fn link_at(&self, index: u32) -> Result<Link> {
        self.read_link(LinkUnspec::new_with_index(index).build(), &format!("number {index}"))
    }

    /// The link with this index; `None` if there is none.
    ///
    /// # Errors
    /// As [`Netlink::find_link`].
    pub fn find_link_at(&self, index: u32) -> Result<Option<Link>> {
        absent_is_none(self.link_at(index))
    }

    /// As [`Netlink::find_link`], but returns the link as it was last read, unless this handle has changed any link since.
    /// Changes by other programs are not noticed.
    ///
    /// # Errors
    /// As [`Netlink::find_link`].
    pub fn find_recent_link(&self, name: &str) -> Result<Option<Link>> {
        match self.remembered(|link| link.name == name) {
            Some(link) => Ok(Some(link)),
            None => self.find_link(name),
        }
    }

    /// As [`Netlink::link`], but returns the link as it was last read; see [`Netlink::find_recent_link`].
    ///
    /// # Errors
    /// As [`Netlink::link`].
    pub fn recent_link(&self, name: &str) -> Result<Link> {
        match self.remembered(|link| link.name == name) {
            Some(link) => Ok(link),
            None => self.link(name),
        }
    }

    /// As [`Netlink::find_link_at`], but returns the link as it was last read; see [`Netlink::find_recent_link`].
    ///
    /// # Errors
    /// As [`Netlink::find_link`].
    pub fn find_recent_link_at(&self, index: u32) -> Result<Option<Link>> {
        match self.remembered(|link| link.index == index) {
            Some(link) => Ok(Some(link)),
            None => self.find_link_at(index),
        }
    }

    /// All links of a kind, such as `veth`. The kernel filters them.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    pub fn links_of_kind(&self, kind: &str) -> Result<Vec<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::from(kind))]));
        message.attributes.push(without_statistics());
        let messages = self.dump(&RouteNetlinkMessage::GetLink(message), "list links", kind)?;
        // If the module of the kind is not loaded, the kernel does not filter and sends all links.
        let of_kind = |link: &Link| link.kind.as_deref() == Some(kind);
        Ok(messages.iter().filter_map(|message| Link::parse(message)).filter(of_kind).collect())
    }

    /// The links whose master has this index: the ports of a bridge. The kernel filters them.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "IFLA_MASTER")]
    pub fn links_of_master(&self, master: u32) -> Result<Vec<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Controller(master));
        message.attributes.push(without_statistics());
        let object = format!("of master number {master}");
        let messages = self.dump(&RouteNetlinkMessage::GetLink(message), "list links", &object)?;
        let of_master = |link: &Link| link.master == Some(master);
        Ok(messages.iter().filter_map(|message| Link::parse(message)).filter(of_master).collect())
    }

    /// The link with this index in another namespace, which is given by its nsid, see [`Link::lower_netns`]. `None` if there is
    /// no such link, or no process or mount holds the namespace any longer.
    ///
    /// # Errors
    /// The kernel refuses the request otherwise, or its answer cannot be parsed.
    #[doc(alias = "IFLA_TARGET_NETNSID")]
    pub fn find_link_in(&self, netns: i32, index: u32) -> Result<Option<Link>> {
        let mut message = LinkUnspec::new_with_index(index).build();
        let netns_id = DefaultNla::new(TARGET_NETNSID, netns.to_ne_bytes().to_vec());
        message.attributes.push(LinkAttribute::Other(netns_id));
        message.attributes.push(without_statistics());
        let message = RouteNetlinkMessage::GetLink(message);
        let operation = "find link";
        let object = format!("number {index} of namespace {netns}");
        let request = Request {
            message: message.into(),
            flags: 0,
            operation,
            object: object.clone().into(),
            link: None,
            forgives: Forgives::Nothing,
        };
        let answers = match self.ask(request) {
            Ok(answers) => answers,
            // Here EINVAL only means that the nsid belongs to no existing namespace.
            Err(error) if error.is_absent() || error.errno == libc::EINVAL => return Ok(None),
            Err(error) => return Err(error),
        };
        match answers.iter().find_map(|message| Link::parse(message)) {
            Some(link) => Ok(Some(link)),
            None => Err(Error::unreadable(operation, object, "the kernel's answer is not a link")),
        }
    }

    /// All links of the namespace.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    pub fn links(&self) -> Result<Vec<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(without_statistics());
        let messages = self.dump(&RouteNetlinkMessage::GetLink(message), "list links", "")?;
        Ok(messages.iter().filter_map(|message| Link::parse(message)).collect())
    }

    /// Deletes a link, and the peer of a veth with it.
    ///
    /// The call returns once the kernel has freed the link, which takes 10 to 30 ms; [`Netlink::unregister_link`] returns before.
    ///
    /// # Errors
    /// There is no such link ([`Error::is_absent`]), or the kernel refuses it, as it does for `lo`.
    #[doc(alias = "RTM_DELLINK")]
    pub fn delete_link(&self, index: u32) -> Result<()> {
        self.ask(deletion(index)).map(drop)
    }

    /// Deletes all links of a group, whatever program created them, and the peers of veths. It takes the kernel hardly longer
    /// than the deletion of one link.
    ///
    /// # Errors
    /// There is no link in the group ([`Error::is_absent`]), or the kernel refuses it.
    #[doc(alias = "IFLA_GROUP")]
    pub fn delete_group(&self, group: u32) -> Result<()> {
        self.ask(deletion_of_group(group)).map(drop)
    }

    fn read_link(&self, message: LinkMessage, object: &str) -> Result<Link> {
        let answers = self.ask(reading(message, object))?;
        let Some(link) = answers.iter().find_map(|message| Link::parse(message)) else {
            return Err(Error::unreadable("find link", object, "the kernel's answer is not a link"));
        };
        self.remember(&link);
        Ok(link)
    }
}

/// The request to delete a link.
pub(crate) fn deletion(index: u32) -> Request {
    Request {
        message: RouteNetlinkMessage::DelLink(LinkUnspec::new_with_index(index).build()).into(),
        flags: 0,
        operation: "delete link",
        object: "".into(),
        link: Some(index),
        forgives: Forgives::Nothing,
    }
}

/// The request to delete all links of a group.
pub(crate) fn deletion_of_group(group: u32) -> Request {
    let builder = LinkMessageBuilder::<LinkUnspec>::default();
    Request {
        message: RouteNetlinkMessage::DelLink(builder.link_group(group).build()).into(),
        flags: 0,
        operation: "delete links of group",
        object: group.to_string().into(),
        link: None,
        forgives: Forgives::Nothing,
    }
}

/// The request for a link.
pub(crate) fn reading(mut message: LinkMessage, object: &str) -> Request {
    message.attributes.push(without_statistics());
    Request {
        message: RouteNetlinkMessage::GetLink(message).into(),
        flags: 0,
        operation: "find link",
        object: object.into(),
        link: None,
        forgives: Forgives::Nothing,
    }
}

/// The sequence number of a message.
fn sequence_of(message: &[u8]) -> Option<u32> {
    parse_u32(message.get(SEQUENCE)?).ok()
}

fn absent_is_none(found: Result<Link>) -> Result<Option<Link>> {
    match found {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// A message that names a link by its name or an alternative name.
///
/// The kernel looks up both sorts of names for either attribute; the attributes differ only in their maximum length.
fn by_name(name: &str) -> LinkMessage {
    let kind = if name.len() > LONGEST_NAME { ALT_IFNAME } else { IFNAME };
    let text = [name.as_bytes(), &[0]].concat();
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Other(DefaultNla::new(kind, text)));
    message
}

/// The attribute that makes the kernel leave out the counters, which are half of a link's message and not used here.
fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}
