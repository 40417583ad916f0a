//! Changes that are made together or not at all.

use cnikit_netlink::nfnetlink::NetfilterMessage;
use cnikit_netlink::{Exchanged, Socket};

use crate::{Error, Result};

/// The subsystem `nf_tables` of netfilter.
#[doc(alias = "NFNL_SUBSYS_NFTABLES")]
pub(crate) const NF_TABLES: u16 = 10;
/// The most messages of one transaction. The kernel finds a rule that goes by walking its chain, past all that go in the same
/// transaction: 65,535 at once would take two thousand million steps.
const MOST_MESSAGES: usize = 4_096;
/// The most bytes of one transaction: memory in the kernel, and here.
const MOST_BYTES: usize = 2 << 20;
/// What every socket sends at once, whoever opened it: half of what the kernel gives one by default (`wmem_default`).
const SURELY_SENT: usize = 96 << 10;
/// The messages that open and end a transaction, and what the kernel keeps of a send buffer for itself.
const BRACKETS: usize = 256;

/// Changes of `nf_tables`: one transaction if they are few, else several, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// With it, the kernel refuses (`ERESTART`) unless the ruleset still has this number.
    #[doc(alias = "NFNL_BATCH_GENID")]
    pub(crate) guard: Option<u32>,
    /// Transactions that come before the others and must not be divided; the socket sends each at once.
    pub(crate) first: Vec<Vec<NetfilterMessage>>,
    pub(crate) messages: Vec<NetfilterMessage>,
}

impl Batch {
    /// Whether there is nothing to change.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.messages.is_empty()
    }

    /// Has the kernel carry it out: of each transaction one datagram and one answer. Where there are several, the guard of each
    /// is the number that the one before has left.
    ///
    /// # Errors
    /// The first refusal, and how many transactions were carried out before it.
    pub(crate) fn send(&self, socket: &mut Socket) -> std::result::Result<(), (usize, Error)> {
        let mut pieces: Vec<&[NetfilterMessage]> = self.first.iter().map(Vec::as_slice).collect();
        let rest = self.pieces(|| socket.send_buffer().map_or(SURELY_SENT, |size| size.saturating_sub(BRACKETS)));
        if !self.messages.is_empty() || pieces.is_empty() {
            pieces.extend(rest);
        }
        let mut guard = self.guard;
        for (done, messages) in pieces.into_iter().enumerate() {
            exchange(messages, guard, socket, 0).map_err(|error| (done, error))?;
            guard = guard.map(|generation| generation.wrapping_add(1).max(1));
        }
        Ok(())
    }

    /// Has the kernel do all of it but the last step: without its end it gives the transaction up, and answers as if.
    pub(crate) fn rehearse(&self, socket: &mut Socket) -> Result<()> {
        exchange(&self.messages, self.guard, socket, NetfilterMessage::end(NF_TABLES).encode(0).len())
    }

    /// The messages of each transaction. `room` is asked only where it matters.
    fn pieces(&self, room: impl FnOnce() -> usize) -> Vec<&[NetfilterMessage]> {
        let bytes: usize = self.messages.iter().map(NetfilterMessage::length).sum();
        if bytes <= SURELY_SENT && self.messages.len() <= MOST_MESSAGES {
            return vec![&self.messages];
        }
        let room = room().min(MOST_BYTES);
        let (mut pieces, mut rest, mut size, mut count) = (Vec::new(), &self.messages[..], 0, 0);
        for message in &self.messages {
            if count > 0 && (size + message.length() > room || count == MOST_MESSAGES) {
                let (piece, others) = rest.split_at(count);
                pieces.push(piece);
                (rest, size, count) = (others, 0, 0);
            }
            (size, count) = (size + message.length(), count + 1);
        }
        pieces.push(rest);
        pieces
    }
}

/// One datagram, without so many bytes at its end, and one answer.
fn exchange(messages: &[NetfilterMessage], guard: Option<u32>, socket: &mut Socket, left_out: usize) -> Result<()> {
    let (mut datagram, sequences) = encode(messages, guard, || socket.next_sequence());
    datagram.truncate(datagram.len() - left_out);
    let last = sequences.len().saturating_sub(1);
    let exchanged = socket.exchange(&datagram, &sequences[last..])?;
    check_answers(messages, &sequences, &exchanged)
}

/// The datagram, and the sequence numbers of the opening message and of all others.
///
/// Only the last change asks for an acknowledgement. Refusals come without being asked for, and kernels before
/// 6.10 acknowledge neither the beginning nor the end.
fn encode(all: &[NetfilterMessage], guard: Option<u32>, mut next_sequence: impl FnMut() -> u32) -> (Vec<u8>, Vec<u32>) {
    let begin = NetfilterMessage::begin(NF_TABLES, guard);
    let mut messages: Vec<&NetfilterMessage> = std::iter::once(&begin).chain(all).collect();
    let last = messages.pop().map(|last| last.clone().acknowledged());
    messages.extend(&last);
    let sequences: Vec<_> = messages.iter().map(|_| next_sequence()).collect();
    let mut datagram = NetfilterMessage::encode_all(messages.into_iter().zip(&sequences));
    datagram.extend(NetfilterMessage::end(NF_TABLES).encode(next_sequence()));
    (datagram, sequences)
}

/// The first refusal, in the words of the message that was refused; those that follow are often its consequences.
fn check_answers(messages: &[NetfilterMessage], sequences: &[u32], exchanged: &Exchanged) -> Result<()> {
    let Some((sequence, refusal)) = exchanged.errors.first() else {
        return Ok(());
    };
    let place = sequences.iter().position(|own| own == sequence);
    let refused = place.and_then(|place| place.checked_sub(1)).and_then(|place| messages.get(place));
    Err(match refused {
        Some(message) => Error::refused(message.operation, message.object.as_str(), refusal),
        None => Error::refused("change", "the ruleset", refusal),
    })
}

#[cfg(test)]
mod tests {
    use cnikit_netlink::NetlinkError;

    use super::*;
    use crate::rule::types::TableFamily;
    use crate::ruleset::layout::TableLayout;
    use crate::ruleset::message;

    fn layout() -> TableLayout {
        TableLayout { rule_chains: vec!["c"], ..TableLayout::of(TableFamily::Inet, "t") }
    }

    fn batch(guard: Option<u32>) -> Batch {
        let messages = [7, 8].map(|handle| message::delete_rule(&layout(), "c", handle, "accept"));
        Batch { guard, messages: messages.to_vec(), ..Batch::default() }
    }

    /// Length, type, flags and sequence number of each message.
    fn headers(mut datagram: &[u8]) -> Vec<(u32, u16, u16, u32)> {
        let mut headers = Vec::new();
        while let Some((header, _)) = datagram.split_first_chunk::<16>() {
            let long = |place: usize| u32::from_ne_bytes(header[place..place + 4].try_into().unwrap());
            let short = |place: usize| u16::from_ne_bytes(header[place..place + 2].try_into().unwrap());
            headers.push((long(0), short(4), short(6), long(8)));
            datagram = &datagram[long(0) as usize..];
        }
        headers
    }

    #[test]
    fn a_transaction_is_bracketed_and_its_last_change_alone_is_acknowledged() {
        let (datagram, sequences) = encode(&batch(None).messages, None, {
            let mut sequence = 40;
            move || {
                sequence += 1;
                sequence
            }
        });
        assert_eq!(sequences, [41, 42, 43]);
        let expected = [(20, 0x10, 1, 41), (48, 0xa08, 1, 42), (48, 0xa08, 5, 43), (20, 0x11, 1, 44)];
        assert_eq!(headers(&datagram), expected);
    }

    #[test]
    fn changes_are_one_transaction_until_they_are_too_many_or_too_long() {
        let messages = |count: u64| -> Vec<NetfilterMessage> {
            (0..count).map(|handle| message::delete_rule(&layout(), "c", handle, "accept")).collect()
        };
        let pieces = |count, room| -> Vec<usize> {
            let batch = Batch { messages: messages(count), ..Batch::default() };
            let pieces = batch.pieces(|| room);
            assert_eq!(pieces.concat(), batch.messages);
            pieces.iter().map(|piece| piece.len()).collect()
        };
        // Of 48 bytes each.
        assert_eq!(pieces(0, 1), [0]);
        assert_eq!(pieces(2_048, 1), [2_048], "what surely fits is not asked for");
        assert_eq!(pieces(2_049, 96_000), [2_000, 49]);
        assert_eq!(pieces(9_000, 1 << 30), [4_096, 4_096, 808]);
    }

    #[test]
    fn a_guard_is_in_the_opening_message() {
        let (datagram, _) = encode(&batch(None).messages, Some(0x0102_0304), || 1);
        // nfgenmsg: no family, version 0, the part of netfilter; then the attribute in network order.
        assert_eq!(datagram[16..28], [0, 0, 0, 10, 8, 0, 1, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_first_refusal_is_told_in_the_words_of_its_message() {
        let refusal = |errno| NetlinkError { errno, text: None };
        let errors = vec![(43, refusal(libc::ENOENT)), (42, refusal(libc::EINVAL))];
        let exchanged = Exchanged { errors, ..Exchanged::default() };
        let error = check_answers(&batch(None).messages, &[41, 42, 43], &exchanged).unwrap_err();
        assert_eq!(error.errno, libc::ENOENT);
        assert!(error.to_string().starts_with("delete rule \"`accept` from chain c of table inet t\": "), "{error}");
    }

    #[test]
    fn a_refusal_of_the_whole_is_told_as_such() {
        let errors = vec![(41, NetlinkError { errno: libc::EPERM, text: None })];
        let exchanged = Exchanged { errors, ..Exchanged::default() };
        let error = check_answers(&batch(None).messages, &[41, 42, 43], &exchanged).unwrap_err();
        assert!(error.to_string().starts_with("change \"the ruleset\": Operation not permitted"), "{error}");
    }
}
