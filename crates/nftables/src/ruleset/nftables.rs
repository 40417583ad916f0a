//! The `nf_tables` of one network namespace.

use std::cell::RefCell;

use cnikit_netlink::attribute::number;
use cnikit_netlink::nfnetlink::{HEADERS, NETFILTER, NetfilterMessage};
use cnikit_netlink::{Exchanged, NetlinkError, Socket};
use cnikit_netns::Netns;

use crate::wire::attribute::object;
use crate::{Error, Result};

/// The `nf_tables` of one network namespace, over a netlink socket.
///
/// Rules belong to an owner if an [`OwnerFilter`](crate::OwnerFilter) selects them; the simplest filter is a prefix of their
/// comments. All changes of one call are one transaction, which takes effect as a whole. More changes than fit into one transaction
/// (some thousand rules) become several; [`Snapshot::begun`](crate::Snapshot::begun) tells whether some of them were carried out.
///
/// Only the chains of a layout are read, and only selected rules are removed. After a removal, the next process that closes such a
/// socket waits 8 to 16 ms until the kernel has freed the rules. So nothing is sent if nothing differs, and our own sockets are
/// closed later by the kernel.
#[doc(alias = "nft")]
pub struct Nftables {
    /// Borrowed for one exchange at a time, and never while a caller's code runs.
    pub(super) socket: RefCell<Socket>,
}

impl Nftables {
    /// The `nf_tables` of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// The kernel has no netfilter ([`Error::unsupported`]), or refuses the socket.
    pub fn here() -> Result<Self> {
        Ok(Self::over(Socket::here(NETFILTER)?))
    }

    /// The `nf_tables` of the namespace that the calling thread is in; `None` if the kernel has no netfilter.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn if_any() -> Result<Option<Self>> {
        match Self::here() {
            Err(error) if error.unsupported() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The `nf_tables` of this namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// As [`Nftables::here`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        Ok(Self::over(Socket::inside(netns, NETFILTER)?))
    }

    fn over(socket: Socket) -> Self {
        Self { socket: RefCell::new(socket.ending_slowly()) }
    }

    /// Reads one object per question; `None` if it does not exist.
    pub(super) fn ask(&self, questions: &[NetfilterMessage]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut socket = self.socket.borrow_mut();
        let sequences: Vec<u32> = questions.iter().map(|_| socket.next_sequence()).collect();
        let datagram = NetfilterMessage::encode_all(questions.iter().zip(&sequences));
        let exchanged = socket.exchange(&datagram, &sequences)?;
        let mut answers = Vec::new();
        for (question, sequence) in questions.iter().zip(sequences) {
            answers.push(answer(question, sequence, &exchanged)?);
        }
        Ok(answers)
    }

    /// Dumps all objects that a question asks for.
    pub(super) fn list(&self, question: &NetfilterMessage) -> Result<Vec<Vec<u8>>> {
        let messages = self.socket.borrow_mut().dump(&question.encode(0));
        messages.map_err(|error| error.during(question.operation, question.object.clone()))
    }
}

/// The answer to one question; `None` if the object does not exist.
fn answer(question: &NetfilterMessage, sequence: u32, exchanged: &Exchanged) -> Result<Option<Vec<u8>>> {
    for (refused, refusal) in &exchanged.errors {
        if *refused != sequence {
            continue;
        }
        if refusal.errno == libc::ENOENT {
            return Ok(None);
        }
        return Err(Error::refused(question.operation, question.object.as_str(), refusal));
    }
    Ok(exchanged.messages.iter().find(|message| has_sequence(message, sequence)).cloned())
}

/// The generation of the ruleset in the kernel's answer.
pub(super) fn generation(answer: Option<&[u8]>) -> Result<u32> {
    let id = answer.and_then(|message| number(message.get(HEADERS..)?, object::GENERATION_ID));
    id.ok_or_else(|| Error::ours("read", "the ruleset", "the kernel gave no number"))
}

/// Turns `EINVAL` into [`Error::unsupported`]: netfilter answers a question with it if the kernel has no `nf_tables` and cannot
/// load the module.
pub(super) fn lacking(error: Error) -> Error {
    if error.errno != libc::EINVAL {
        return error;
    }
    Error::refused("use nf_tables for", error.object, &NetlinkError { errno: libc::EOPNOTSUPP, text: error.kernel })
}

/// Whether the kernel has no `nf_tables`.
pub(super) fn is_lacking(error: &Error) -> bool {
    error.errno == libc::EINVAL || error.unsupported()
}

/// Whether a message has this sequence number.
fn has_sequence(message: &[u8], sequence: u32) -> bool {
    message.get(8..12) == Some(&sequence.to_ne_bytes())
}
