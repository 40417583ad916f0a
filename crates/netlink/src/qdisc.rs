//! Queueing disciplines: the root and the ingress of a link. See tc(8).

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE, parse_u32};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

use crate::attribute::value;
use crate::frame::{HEADER, words};
use crate::htb::{self, HTB};
use crate::netlink::{Forgives, Request};
use crate::{Netlink, Result, Tbf};

/// Length of a `tcmsg`, and the places of its members.
pub(crate) const TC_HEADER: usize = 20;
const HANDLE: std::ops::Range<usize> = 8..12;

// Attributes of `linux/rtnetlink.h`.
pub(crate) const KIND: u16 = 1;
pub(crate) const OPTIONS: u16 = 2;

/// What the kernel calls a queue of so many bytes.
const FIFO: &str = "bfifo";
/// The handle of the root that is made here, `1:`.
pub const ROOT_HANDLE: u32 = 1 << 16;
/// The only class of a root that is made here, `1:1`.
pub(crate) const CLASS: TcHandle = TcHandle { major: 1, minor: 1 };
/// The handle of the ingress, `ffff:`.
pub(crate) const INGRESS_HANDLE: TcHandle = TcHandle { major: 0xffff, minor: 0 };

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "tcmsg")]
pub struct Qdisc {
    /// Its number; 0 for one that the kernel chose by itself.
    pub handle: u32,
    /// What the kernel calls it: `tbf`, `ingress`.
    pub kind: String,
    /// The options of a `tbf`.
    pub tbf: Option<Tbf>,
    /// The class that an `htb` leaves packets to which no filter assigns.
    pub default_class: Option<u16>,
    /// The length of the queue of a `bfifo`, in bytes.
    pub fifo_limit: Option<u32>,
}

/// Where a queueing discipline is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QdiscPlace {
    /// What the link sends.
    Root,
    /// What the link receives.
    Ingress,
    /// The queue of the only class of the root, `1:1`.
    BelowRoot,
}

impl QdiscPlace {
    fn parent(self) -> TcHandle {
        match self {
            Self::Root => TcHandle::ROOT,
            Self::Ingress => TcHandle::INGRESS,
            Self::BelowRoot => CLASS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ingress => "ingress",
            Self::BelowRoot => "1:1",
        }
    }
}

impl Netlink {
    /// The queueing discipline at this place of a link; `None` if the link does not exist, or has only what the kernel chose.
    ///
    /// # Errors
    /// The kernel refuses the request otherwise.
    #[doc(alias = "RTM_GETQDISC")]
    pub fn find_qdisc(&self, link: u32, place: QdiscPlace) -> Result<Option<Qdisc>> {
        let message = message(link, place.parent(), TcHandle::UNSPEC);
        let request = Request {
            message: RouteNetlinkMessage::GetQueueDiscipline(message).into(),
            // Older kernels answer the listeners of a group, and who asks only if an echo is wanted.
            flags: NLM_F_ECHO,
            operation: "find qdisc",
            object: place.name().into(),
            link: Some(link),
            forgives: Forgives::Absent,
        };
        match self.ask(request) {
            Ok(answers) => Ok(answers.iter().find_map(|message| Qdisc::parse(message)).filter(|one| one.handle != 0)),
            // There is no discipline whose class that would be.
            Err(error) if error.is_at_odds() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Makes a tbf the root of a link, or changes the tbf that it is already; see [`crate::Batch::set_tbf`].
pub(crate) fn tbf(link: u32, tbf: &Tbf) -> Request {
    let handle = TcHandle::from(ROOT_HANDLE);
    let message = addition(link, QdiscPlace::Root, handle, Tbf::KIND, tbf.options());
    request("set qdisc tbf of", NLM_F_CREATE | NLM_F_REPLACE, link, message)
}

/// Adds an ingress to a link, which must not have one.
pub(crate) fn ingress(link: u32) -> Request {
    let message = addition(link, QdiscPlace::Ingress, INGRESS_HANDLE, "ingress", Vec::new());
    request("add qdisc ingress to", NLM_F_CREATE | NLM_F_EXCL, link, message)
}

/// Replaces the queue of the class of a link's root.
pub(crate) fn below_root(link: u32, kind: &str) -> Request {
    let message = addition(link, QdiscPlace::BelowRoot, TcHandle::UNSPEC, kind, Vec::new());
    request("set qdisc below root of", NLM_F_CREATE | NLM_F_REPLACE, link, message)
}

/// Replaces it by a `bfifo` of this many bytes.
pub(crate) fn fifo_below_root(link: u32, limit: u32) -> Request {
    let mut message = addition(link, QdiscPlace::BelowRoot, TcHandle::UNSPEC, FIFO, Vec::new());
    // A `tc_fifo_qopt` is a number, and no list of attributes.
    message.attributes.push(TcAttribute::Other(DefaultNla::new(OPTIONS, limit.to_ne_bytes().to_vec())));
    request("set qdisc below root of", NLM_F_CREATE | NLM_F_REPLACE, link, message)
}

/// Makes an htb the root of a link, in place of the kernel's own.
pub(crate) fn htb(link: u32, default: u16) -> Request {
    let message = addition(link, QdiscPlace::Root, TcHandle::from(ROOT_HANDLE), HTB, htb::options(default));
    request("set qdisc htb of", NLM_F_CREATE | NLM_F_EXCL, link, message)
}

/// Deletes the discipline at this place. The root is deleted only if it has the handle that [`tbf`] gives it.
pub(crate) fn deletion(link: u32, place: QdiscPlace) -> Request {
    let handle = match place {
        QdiscPlace::Root => TcHandle::from(ROOT_HANDLE),
        QdiscPlace::Ingress => INGRESS_HANDLE,
        QdiscPlace::BelowRoot => TcHandle::UNSPEC,
    };
    Request {
        message: RouteNetlinkMessage::DelQueueDiscipline(message(link, place.parent(), handle)).into(),
        flags: 0,
        operation: "delete qdisc",
        object: place.name().into(),
        link: Some(link),
        forgives: Forgives::Absent,
    }
}

fn request(operation: &'static str, flags: u16, link: u32, message: TcMessage) -> Request {
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    Request {
        message: message.into(),
        flags,
        operation,
        object: "".into(),
        link: Some(link),
        forgives: Forgives::Nothing,
    }
}

pub(crate) fn message(link: u32, parent: TcHandle, handle: TcHandle) -> TcMessage {
    // The kernel counts links in positive numbers of 32 bits with a sign.
    let mut message = TcMessage::with_index(i32::try_from(link).unwrap_or(i32::MAX));
    message.header.parent = parent;
    message.header.handle = handle;
    message
}

fn addition(link: u32, place: QdiscPlace, handle: TcHandle, kind: &str, options: Vec<TcOption>) -> TcMessage {
    let mut message = message(link, place.parent(), handle);
    message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    if !options.is_empty() {
        message.attributes.push(TcAttribute::Options(options));
    }
    message
}

impl Qdisc {
    /// Reads an `RTM_NEWQDISC` message; `None` if it is something else.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let list = body.get(TC_HEADER..)?;
        let kind = words(value(list, KIND)?);
        let options = value(list, OPTIONS).unwrap_or_default();
        let tbf = if kind == Tbf::KIND { Tbf::parse(options) } else { None };
        let default_class = if kind == HTB { htb::default_class(options) } else { None };
        let fifo_limit = if kind == FIFO { options.get(..4).and_then(|limit| parse_u32(limit).ok()) } else { None };
        Some(Self { handle: parse_u32(body.get(HANDLE)?).ok()?, kind, tbf, default_class, fifo_limit })
    }
}
