//! The handle on one network namespace.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use cnikit_netns::Netns;
use netlink_packet_core::{Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader};
use netlink_packet_route::RouteNetlinkMessage;

use crate::frame::HEADER;
use crate::{Error, KernelRoute, Link, Result, Socket};

/// `NETLINK_ROUTE` of `linux/netlink.h`.
const ROUTE: isize = 0;
/// How many links are cached: more than one verb reads one by one, and few enough for a linear search.
const REMEMBERED: usize = 8;

/// The links, addresses, routes and neighbours of one network namespace. Clones share the socket.
///
/// The socket is opened inside the namespace and keeps working on it, whichever namespace the calling thread is in.
#[derive(Clone)]
#[doc(alias = "rtnetlink")]
pub struct Netlink {
    socket: Rc<RefCell<Socket>>,
    /// The links that were read last, as they were then; emptied when this handle changes any link.
    recent: Rc<RefCell<Vec<Link>>>,
    /// The ids of namespaces that were read. An id does not change, and the namespace is held, so it does not end either.
    namespace_ids: Rc<RefCell<Vec<(Netns, i32)>>>,
}

impl Netlink {
    /// Opens a handle on the namespace of the calling thread.
    ///
    /// # Errors
    /// As [`Socket::here`].
    pub fn here() -> Result<Self> {
        Socket::here(ROUTE).map(Self::over)
    }

    /// Opens a handle on the namespace `netns`.
    ///
    /// # Errors
    /// As [`Socket::inside`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        Socket::inside(netns, ROUTE).map(Self::over)
    }

    fn over(socket: Socket) -> Self {
        Self { socket: Rc::new(RefCell::new(socket)), recent: Rc::default(), namespace_ids: Rc::default() }
    }

    /// Runs `work` with the socket. `work` must not use this handle: the socket is borrowed meanwhile.
    pub(crate) fn with_socket<T>(&self, work: impl FnOnce(&mut Socket) -> T) -> T {
        work(&mut self.socket.borrow_mut())
    }

    /// Sends one request and returns the messages of the answer, without the acknowledgement.
    pub(crate) fn ask(&self, request: Request) -> Result<Vec<Vec<u8>>> {
        self.carry_out(&[request])
    }

    /// Sends all requests in one datagram and returns the messages of the answer. The error is the first refusal that its request
    /// does not count as success ([`Forgives`]).
    pub(crate) fn carry_out(&self, requests: &[Request]) -> Result<Vec<Vec<u8>>> {
        self.carry_out_numbered(requests).map(|(_, messages)| messages)
    }

    /// As [`Netlink::carry_out`], with the sequence numbers of the requests.
    pub(crate) fn carry_out_numbered(&self, requests: &[Request]) -> Result<(Vec<u32>, Vec<Vec<u8>>)> {
        let Some(first) = requests.first() else { return Ok((Vec::new(), Vec::new())) };
        if requests.iter().any(|request| changes_links(&request.message)) {
            self.forget_links();
        }
        let mut sequences = Vec::with_capacity(requests.len());
        let mut awaited = Vec::with_capacity(requests.len());
        let mut datagram = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let sequence = self.with_socket(Socket::next_sequence);
            sequences.push(sequence);
            if request.may_succeed_silently() && index + 1 < requests.len() {
                datagram.extend(request.pack_with(0, sequence));
            } else {
                datagram.extend(request.pack(sequence));
                awaited.push(sequence);
            }
        }
        let exchanged = self
            .with_socket(|socket| socket.exchange_some_silent(&datagram, &awaited))
            .map_err(|error| error.during(first.operation, first.object.to_string()))?;
        for (sequence, refusal) in exchanged.errors {
            let Some(at) = sequences.iter().position(|number| *number == sequence) else { continue };
            let request = &requests[at];
            let error = Error::refused(request.operation, request.object.to_string(), &refusal);
            if !request.forgives.covers(&error) {
                return Err(self.name_the_link(error, request.link));
            }
        }
        Ok((sequences, exchanged.messages))
    }

    /// Empties the cache of links.
    pub(crate) fn forget_links(&self) {
        self.recent.borrow_mut().clear();
    }

    /// Caches a link that was just read.
    pub(crate) fn remember(&self, link: &Link) {
        let mut recent = self.recent.borrow_mut();
        recent.retain(|one| one.index != link.index && one.name != link.name);
        let surplus = (recent.len() + 1).saturating_sub(REMEMBERED);
        recent.drain(..surplus);
        recent.push(link.clone());
    }

    /// The id that was read before for the open file of this namespace.
    pub(crate) fn remembered_id(&self, netns: &Netns) -> Option<i32> {
        let file = netns.as_fd().as_raw_fd();
        self.namespace_ids.borrow().iter().find(|(known, _)| known.as_fd().as_raw_fd() == file).map(|(_, id)| *id)
    }

    /// Caches the id of a namespace. The clone keeps its file open, so that the number of the file stays its own.
    pub(crate) fn remember_id(&self, netns: &Netns, id: i32) {
        self.namespace_ids.borrow_mut().push((netns.clone(), id));
    }

    /// The cached link that `is_it` accepts, unless this handle has changed any link since.
    pub(crate) fn remembered(&self, is_it: impl Fn(&Link) -> bool) -> Option<Link> {
        self.recent.borrow().iter().find(|link| is_it(link)).cloned()
    }

    /// Adds the link of the refused request to the error: its name, or its index if it does not exist any more.
    fn name_the_link(&self, error: Error, link: Option<u32>) -> Error {
        let Some(index) = link else { return error };
        let name = match self.find_link_at(index) {
            Ok(Some(link)) => link.name,
            _ => format!("link {index}"),
        };
        let object = [error.object.as_str(), name.as_str()].join(" ").trim().to_owned();
        let operation = error.operation.clone();
        error.during(&operation, &object)
    }

    /// Sends a dump request and returns its messages.
    pub(crate) fn dump(&self, message: &RouteNetlinkMessage, operation: &str, object: &str) -> Result<Vec<Vec<u8>>> {
        let request = pack_typed(message, NLM_F_REQUEST | NLM_F_DUMP, 0);
        self.with_socket(|socket| socket.dump(&request)).map_err(|error| error.during(operation, object))
    }
}

/// One message to the kernel, and the texts for the error if it is refused.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) message: Message,
    /// The flags in addition to `NLM_F_REQUEST` and, for a change, `NLM_F_ACK`.
    pub(crate) flags: u16,
    pub(crate) operation: &'static str,
    pub(crate) object: Object,
    /// The index of the link that the object belongs to. An error names it after the object.
    pub(crate) link: Option<u32>,
    pub(crate) forgives: Forgives,
}

/// A message, without the header of netlink.
#[derive(Debug)]
pub(crate) enum Message {
    Typed(RouteNetlinkMessage),
    /// One that is encoded already.
    Encoded {
        /// `RTM_NEWROUTE` or another type.
        kind: u16,
        body: Vec<u8>,
    },
}

impl From<RouteNetlinkMessage> for Message {
    fn from(message: RouteNetlinkMessage) -> Message {
        Message::Typed(message)
    }
}

/// The object of a request. Only an error needs it as text.
#[derive(Debug)]
pub(crate) enum Object {
    Text(String),
    Route(KernelRoute),
}

impl From<String> for Object {
    fn from(text: String) -> Object {
        Object::Text(text)
    }
}

impl From<&str> for Object {
    fn from(text: &str) -> Object {
        Object::Text(text.to_owned())
    }
}

impl From<&KernelRoute> for Object {
    fn from(route: &KernelRoute) -> Object {
        Object::Route(route.clone())
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Text(text) => f.write_str(text),
            Object::Route(route) => f.write_str(&route.describe()),
        }
    }
}

/// The refusals that count as success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgives {
    Nothing,
    Present,
    Absent,
}

impl Forgives {
    fn covers(self, error: &Error) -> bool {
        match self {
            Self::Nothing => false,
            Self::Present => error.exists(),
            Self::Absent => error.is_absent(),
        }
    }
}

impl Request {
    pub(crate) fn pack(&self, sequence: u32) -> Vec<u8> {
        self.pack_with(if is_question(&self.message) { 0 } else { NLM_F_ACK }, sequence)
    }

    /// Whether no acknowledgement is needed if another message follows in the same datagram. The kernel works on them in order, and
    /// reports each refusal except `EINTR`. A change of a route, a rule, an address or a neighbour does not wait for anything that
    /// a signal could interrupt. An acknowledgement takes one or two microseconds.
    fn may_succeed_silently(&self) -> bool {
        use RouteNetlinkMessage::{
            DelAddress, DelNeighbour, DelRoute, DelRule, NewAddress, NewNeighbour, NewRoute, NewRule,
        };
        match &self.message {
            Message::Typed(message) => matches!(
                message,
                NewAddress(_)
                    | DelAddress(_)
                    | NewNeighbour(_)
                    | DelNeighbour(_)
                    | NewRoute(_)
                    | DelRoute(_)
                    | NewRule(_)
                    | DelRule(_)
            ),
            Message::Encoded { kind, .. } => [libc::RTM_NEWROUTE, libc::RTM_DELROUTE].contains(kind),
        }
    }

    fn pack_with(&self, acknowledged: u16, sequence: u32) -> Vec<u8> {
        let flags = self.flags | NLM_F_REQUEST | acknowledged;
        match &self.message {
            Message::Typed(message) => pack_typed(message, flags, sequence),
            Message::Encoded { kind, body } => {
                let mut bytes = room_for(*kind, body.len(), flags, sequence);
                bytes[HEADER..].copy_from_slice(body);
                bytes
            }
        }
    }
}

/// Whether a request only reads. Such a request is answered or refused, so an acknowledgement would only be one more message to
/// receive.
fn is_question(message: &Message) -> bool {
    use RouteNetlinkMessage::{GetLink, GetNsId, GetRoute};
    matches!(message, Message::Typed(GetLink(_) | GetNsId(_) | GetRoute(_)))
}

fn changes_links(message: &Message) -> bool {
    use RouteNetlinkMessage::{DelLink, DelLinkProp, NewLink, NewLinkProp, SetLink};
    matches!(message, Message::Typed(NewLink(_) | SetLink(_) | DelLink(_) | NewLinkProp(_) | DelLinkProp(_)))
}

fn pack_typed(message: &RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut bytes = room_for(message.message_type(), message.buffer_len(), flags, sequence);
    message.emit(&mut bytes[HEADER..]);
    bytes
}

/// A message of this type with a body of so many zeros.
fn room_for(kind: u16, body: usize, flags: u16, sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; HEADER + body];
    let mut header = NetlinkHeader::default();
    header.length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    header.message_type = kind;
    header.flags = flags;
    header.sequence_number = sequence;
    header.emit(&mut bytes[..HEADER]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_links_are_remembered_and_no_more() {
        let netlink = Netlink::here().unwrap();
        for index in (1..=20).chain([20]) {
            netlink.remember(&Link { index, name: format!("link{index}"), ..Link::default() });
        }
        let remembered: Vec<u32> = netlink.recent.borrow().iter().map(|link| link.index).collect();
        assert_eq!(remembered, [13, 14, 15, 16, 17, 18, 19, 20]);
    }
}
