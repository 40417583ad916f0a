//! The packet filter of one network namespace, and questions to it.

use std::cell::RefCell;

use cnikit_netlink::attribute::number;
use cnikit_netlink::nfnetlink::{HEADERS, NETFILTER, NetfilterMessage};
use cnikit_netlink::{NetlinkError, Socket};
use cnikit_netns::Netns;

use crate::wire::attribute::object;
use crate::{Error, Result};

/// The packet filter of one network namespace, as `nf_tables` has it.
///
/// Rules belong to an owner if an [`OwnerFilter`](crate::OwnerFilter) selects them; a prefix of their comments is the simplest
/// one. All changes of one call are one transaction, which takes effect as a whole. Only if they are more than the kernel takes
/// at once (some thousand rules) are they several: each is whole, and [`Snapshot::begun`](crate::Snapshot::begun) tells whether
/// some were made.
///
/// Only the chains of a layout are read, and only selected rules are removed. A removal has a price: the next process that closes
/// such a socket waits 8 to 16 ms, until the kernel has freed the rules. So nothing is sent if nothing differs, and our own
/// sockets are left to the kernel to close.
#[doc(alias = "nft")]
pub struct Nftables {
    /// Borrowed for one exchange at a time, and never while code of a caller runs.
    pub(super) socket: RefCell<Socket>,
}

impl Nftables {
    /// The packet filter of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// Without netfilter in the kernel one that is [`Error::unsupported`].
    pub fn here() -> Result<Self> {
        Ok(Self::over(Socket::here(NETFILTER)?))
    }

    /// The packet filter of the namespace that the calling thread is in; none where the kernel has no netfilter at all.
    pub fn if_any() -> Result<Option<Self>> {
        match Self::here() {
            Err(error) if error.unsupported() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The packet filter of this namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`Nftables::here`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        Ok(Self::over(Socket::inside(netns, NETFILTER)?))
    }

    fn over(socket: Socket) -> Self {
        Self { socket: RefCell::new(socket.ending_slowly()) }
    }

    /// The answers to questions for one thing each, `None` for those that are not there.
    pub(super) fn ask(&self, questions: &[NetfilterMessage]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut socket = self.socket.borrow_mut();
        let sequences: Vec<_> = questions.iter().map(|_| socket.next_sequence()).collect();
        let asked = questions.iter().zip(&sequences);
        let exchanged = socket.exchange(&NetfilterMessage::encode_all(asked.clone()), &sequences)?;
        let answer = |(question, sequence): (&NetfilterMessage, &u32)| match exchanged
            .errors
            .iter()
            .find(|(own, _)| own == sequence)
        {
            Some((_, refusal)) if refusal.errno == libc::ENOENT => Ok(None),
            Some((_, refusal)) => Err(Error::refused(question.operation, question.object.as_str(), refusal)),
            None => Ok(exchanged.messages.iter().find(|message| answers(message, *sequence)).cloned()),
        };
        asked.map(answer).collect()
    }

    /// All that the kernel has to say to a question for many things.
    pub(super) fn list(&self, question: &NetfilterMessage) -> Result<Vec<Vec<u8>>> {
        let told = self.socket.borrow_mut().dump(&question.encode(0));
        told.map_err(|error| error.during(question.operation, question.object.clone()))
    }
}

/// The number of the ruleset in the kernel's answer.
pub(super) fn generation(answer: Option<&[u8]>) -> Result<u32> {
    let told = answer.and_then(|message| number(message.get(HEADERS..)?, object::GENERATION_ID));
    told.ok_or_else(|| Error::ours("read", "the ruleset", "the kernel gave no number"))
}

/// What netfilter calls invalid is a part of it that the kernel has not got and cannot load: `nf_tables` as a whole.
pub(super) fn lacking(error: Error) -> Error {
    if error.errno != libc::EINVAL {
        return error;
    }
    Error::refused("use nf_tables for", error.object, &NetlinkError { errno: libc::EOPNOTSUPP, text: error.kernel })
}

/// Whether there is no `nf_tables` to be asked.
pub(super) fn is_lacking(error: &Error) -> bool {
    error.errno == libc::EINVAL || error.unsupported()
}

/// Whether a message is the answer with this sequence number.
fn answers(message: &[u8], sequence: u32) -> bool {
    message.get(8..12) == Some(&sequence.to_ne_bytes())
}
