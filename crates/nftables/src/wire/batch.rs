//! Transactions of `nf_tables`.

use cnikit_netlink::nfnetlink::NetfilterMessage;
use cnikit_netlink::{Exchanged, Socket};

use crate::{Error, Result};

/// The subsystem `nf_tables` of netfilter.
#[doc(alias = "NFNL_SUBSYS_NFTABLES")]
pub(crate) const NF_TABLES: u16 = 10;
/// The most messages of one transaction. To delete a rule, the kernel walks its chain, past all rules that are deleted in the same
/// transaction: 65,535 at once would take two thousand million steps.
const MAX_MESSAGES: usize = 4_096;
/// The most bytes of one transaction, which take memory in the kernel and in this process.
const MAX_BYTES: usize = 2 << 20;
/// The bytes that every socket can send at once: half of the default send buffer (`wmem_default`).
const ALWAYS_SENT: usize = 96 << 10;
/// The bytes of a send buffer for the messages that open and end a transaction, and for the kernel's own use.
const OVERHEAD: usize = 256;

/// Changes of `nf_tables`: one transaction, or several in succession if they do not fit into one.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// If set, the kernel refuses the transaction (`ERESTART`) unless the ruleset still has this generation.
    #[doc(alias = "NFNL_BATCH_GENID")]
    pub(crate) guard: Option<u32>,
    /// Transactions that are sent before `messages` and must not be split.
    pub(crate) first: Vec<Vec<NetfilterMessage>>,
    pub(crate) messages: Vec<NetfilterMessage>,
}

impl Batch {
    /// Whether there are no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.messages.is_empty()
    }

    /// Sends the transactions: one datagram and one answer each. The guard of each transaction is the generation after the one
    /// before it.
    ///
    /// # Errors
    /// How many transactions were carried out, and the refusal of the next one.
    pub(crate) fn send(&self, socket: &mut Socket) -> std::result::Result<(), (usize, Error)> {
        let mut transactions: Vec<&[NetfilterMessage]> = self.first.iter().map(Vec::as_slice).collect();
        let split = self.split(|| match socket.send_buffer() {
            Ok(size) => size.saturating_sub(OVERHEAD),
            Err(_) => ALWAYS_SENT,
        });
        if !self.messages.is_empty() || transactions.is_empty() {
            transactions.extend(split);
        }
        let mut guard = self.guard;
        for (done, messages) in transactions.into_iter().enumerate() {
            exchange(messages, guard, socket, 0).map_err(|error| (done, error))?;
            guard = guard.map(|generation| generation.wrapping_add(1).max(1));
        }
        Ok(())
    }

    /// Makes the kernel check the changes without carrying them out: it aborts a transaction without an end message, and answers as
    /// if it had been carried out.
    ///
    /// # Errors
    /// The first refusal.
    pub(crate) fn rehearse(&self, socket: &mut Socket) -> Result<()> {
        exchange(&self.messages, self.guard, socket, NetfilterMessage::end(NF_TABLES).encode(0).len())
    }

    /// Splits the messages into transactions. `send_buffer` is called only if they may not fit into one.
    fn split(&self, send_buffer: impl FnOnce() -> usize) -> Vec<&[NetfilterMessage]> {
        let bytes: usize = self.messages.iter().map(NetfilterMessage::length).sum();
        if bytes <= ALWAYS_SENT && self.messages.len() <= MAX_MESSAGES {
            return vec![&self.messages];
        }
        let max_bytes = send_buffer().min(MAX_BYTES);
        let mut transactions = Vec::new();
        let mut start = 0;
        let mut size = 0;
        for (position, message) in self.messages.iter().enumerate() {
            let is_full = size + message.length() > max_bytes || position - start == MAX_MESSAGES;
            if position > start && is_full {
                transactions.push(&self.messages[start..position]);
                start = position;
                size = 0;
            }
            size += message.length();
        }
        transactions.push(&self.messages[start..]);
        transactions
    }
}

/// Sends one transaction in one datagram and reads one answer. `omitted` bytes at the end of the datagram are not sent.
fn exchange(messages: &[NetfilterMessage], guard: Option<u32>, socket: &mut Socket, omitted: usize) -> Result<()> {
    let (mut datagram, sequences) = encode(messages, guard, || socket.next_sequence());
    datagram.truncate(datagram.len() - omitted);
    let last = sequences.len().saturating_sub(1);
    let exchanged = socket.exchange(&datagram, &sequences[last..])?;
    check_answers(messages, &sequences, &exchanged)
}

/// Encodes a transaction: the datagram, and the sequence numbers of the opening message and of all changes.
///
/// Only the last change requests an acknowledgement. Refusals need no request, and kernels before 6.10 acknowledge neither the
/// opening nor the end message.
fn encode(
    changes: &[NetfilterMessage],
    guard: Option<u32>,
    mut next_sequence: impl FnMut() -> u32,
) -> (Vec<u8>, Vec<u32>) {
    let begin = NetfilterMessage::begin(NF_TABLES, guard);
    let mut messages = vec![&begin];
    messages.extend(changes);
    let last = messages.pop().unwrap_or(&begin).clone().acknowledged();
    messages.push(&last);
    let sequences: Vec<u32> = messages.iter().map(|_| next_sequence()).collect();
    let mut datagram = NetfilterMessage::encode_all(messages.into_iter().zip(&sequences));
    datagram.extend(NetfilterMessage::end(NF_TABLES).encode(next_sequence()));
    (datagram, sequences)
}

/// Returns the first refusal, described by the message that was refused. The refusals after it are often its consequences.
fn check_answers(messages: &[NetfilterMessage], sequences: &[u32], exchanged: &Exchanged) -> Result<()> {
    let Some((sequence, refusal)) = exchanged.errors.first() else {
        return Ok(());
    };
    // The first sequence number is that of the opening message.
    for (message, own) in messages.iter().zip(sequences.iter().skip(1)) {
        if own == sequence {
            return Err(Error::refused(message.operation, message.object.as_str(), refusal));
        }
    }
    Err(Error::refused("change", "the ruleset", refusal))
}

#[cfg(test)]
mod tests {
    use cnikit_netlink::NetlinkError;
    use cnikit_netlink::attribute::Attributes;

    use super::*;

    /// Deletes a rule by its handle.
    fn delete_rule(handle: u64) -> NetfilterMessage {
        const DELETE_RULE: u16 = NF_TABLES << 8 | 8;
        let attributes = Attributes::new().text(1, "t").text(2, "c").bytes(3, &handle.to_be_bytes());
        NetfilterMessage::request(DELETE_RULE, 0, 1, attributes)
            .described("delete rule", "`accept` from chain c of table inet t".to_owned())
    }

    fn batch(guard: Option<u32>) -> Batch {
        let messages = [7, 8].map(delete_rule);
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
        let messages = |count: u64| -> Vec<NetfilterMessage> { (0..count).map(delete_rule).collect() };
        let pieces = |count, room| -> Vec<usize> {
            let batch = Batch { messages: messages(count), ..Batch::default() };
            let pieces = batch.split(|| room);
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
    fn the_error_of_a_batch_is_that_of_its_first_refused_message() {
        let refusal = |errno| NetlinkError { errno, text: None };
        let errors = vec![(43, refusal(libc::ENOENT)), (42, refusal(libc::EINVAL))];
        let exchanged = Exchanged { errors, ..Exchanged::default() };
        let error = check_answers(&batch(None).messages, &[41, 42, 43], &exchanged).unwrap_err();
        assert_eq!(error.errno, libc::ENOENT);
        assert!(error.to_string().starts_with("delete rule \"`accept` from chain c of table inet t\": "), "{error}");
    }

    #[test]
    fn a_refusal_of_the_whole_batch_is_named() {
        let errors = vec![(41, NetlinkError { errno: libc::EPERM, text: None })];
        let exchanged = Exchanged { errors, ..Exchanged::default() };
        let error = check_answers(&batch(None).messages, &[41, 42, 43], &exchanged).unwrap_err();
        assert!(error.to_string().starts_with("change \"the ruleset\": Operation not permitted"), "{error}");
    }
}
