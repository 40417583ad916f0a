//! Parse netlink datagrams into messages, and error messages into errors.

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NetlinkBuffer, parse_i32};

use crate::attribute::value;

/// Length of a `nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// A message without content. Types below 16 are netlink's control messages; see netlink(7).
pub(crate) const NOOP: u16 = 1;
/// An acknowledgement if its error number is zero, otherwise a refusal.
pub(crate) const ERROR: u16 = 2;
/// The end of a dump.
pub(crate) const DONE: u16 = 3;
/// The kernel lost messages.
pub(crate) const OVERRUN: u16 = 4;

/// Length of the error number at the beginning of an [`ERROR`] or [`DONE`] message, in bytes.
const CODE: usize = 4;
/// `NLMSGERR_ATTR_MSG` of `linux/netlink.h`.
const TEXT: u16 = 1;

/// One message of a datagram.
pub(crate) struct Frame<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) port: u32,
    /// The whole message, header included.
    pub(crate) bytes: &'a [u8],
}

/// The messages in a datagram; ends where no complete message follows.
pub(crate) fn frames(datagram: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.len() < HEADER {
            return None; // the usual end: the error of the next line would be a text that nobody reads
        }
        let header = NetlinkBuffer::new_checked(rest).ok()?;
        let length = header.length() as usize;
        let frame = Frame {
            kind: header.message_type(),
            flags: header.flags(),
            sequence: header.sequence_number(),
            port: header.port_number(),
            bytes: &rest[..length],
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(frame)
    })
}

/// The kernel's refusal of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkError {
    /// A positive error number of errno(3).
    pub errno: i32,
    /// The text of the extended acknowledgement, if the kernel gave one.
    #[doc(alias = "extack")]
    pub text: Option<String>,
}

impl Frame<'_> {
    /// The error in a message of type [`ERROR`] or [`DONE`]; `None` if its error number is zero.
    pub(crate) fn refusal(&self) -> Option<NetlinkError> {
        let body = self.bytes.get(HEADER..)?;
        let code = parse_i32(body.get(..CODE)?).ok()?;
        let text = || value(self.explanation(body)?, TEXT).map(words);
        (code != 0).then(|| NetlinkError { errno: code.saturating_neg(), text: text() })
    }

    /// The attributes of the extended acknowledgement. They follow the error number; in an [`ERROR`] message they follow the
    /// refused message, of which the kernel may send the header only (`NLM_F_CAPPED`). Old kernels send no attributes and do not
    /// set `NLM_F_ACK_TLVS`.
    fn explanation<'b>(&self, body: &'b [u8]) -> Option<&'b [u8]> {
        let refused = body.get(CODE..)?;
        let skip = match self.kind {
            DONE => 0,
            _ if self.flags & NLM_F_CAPPED != 0 => HEADER,
            _ => u32::from_ne_bytes(refused.get(..4)?.try_into().ok()?) as usize,
        };
        (self.flags & NLM_F_ACK_TLVS != 0).then(|| refused.get(skip.next_multiple_of(4)..))?
    }
}

/// A string of the kernel, without the NUL at its end.
pub(crate) fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32, kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[7, 0, 0, 0, 9, 0, 0, 0]];
        [&header.concat()[..], body].concat()
    }

    #[test]
    fn a_datagram_is_split_at_aligned_lengths() {
        let datagram = [message(18, 16, 2, b"abcd"), message(16, DONE, 0, b"")].concat();
        let kinds: Vec<(u16, usize)> = frames(&datagram).map(|frame| (frame.kind, frame.bytes.len())).collect();
        assert_eq!(kinds, [(16, 18), (DONE, 16)]);
        let frame = frames(&datagram).next().unwrap();
        assert_eq!((frame.flags, frame.sequence, frame.port), (2, 7, 9));
    }

    #[test]
    fn damaged_datagrams_end_the_reading() {
        for damaged in [&b""[..], b"short", &message(15, 16, 0, b""), &message(17, 16, 0, b""), &message(0, 16, 0, b"")]
        {
            assert_eq!(frames(damaged).count(), 0);
        }
        assert_eq!(crate::attribute::attributes(&[8, 0, 1, 0, 1, 2, 3, 4, 9, 0, 1, 0]).count(), 1);
        assert_eq!(crate::attribute::attributes(&[3, 0, 1, 0]).count(), 0);
    }

    #[test]
    fn the_text_of_a_refusal_is_found_with_and_without_the_message_refused() {
        let text = [&[9, 0, 1, 0][..], b"why?\0", &[0; 3]].concat();
        let refused = |flags, echo: &[u8]| {
            let body = [&(-17_i32).to_ne_bytes()[..], echo, &text].concat();
            let bytes = message(16 + u32::try_from(body.len()).unwrap(), ERROR, flags, &body);
            frames(&bytes).next().unwrap().refusal()
        };
        let with_text = Some(NetlinkError { errno: 17, text: Some("why?".to_owned()) });
        assert_eq!(refused(NLM_F_ACK_TLVS | NLM_F_CAPPED, &message(40, 16, 0, b"")), with_text);
        assert_eq!(refused(NLM_F_ACK_TLVS, &message(20, 16, 0, b"body")), with_text);
        assert_eq!(refused(NLM_F_CAPPED, &message(40, 16, 0, b"")), Some(NetlinkError { errno: 17, text: None }));
    }

    #[test]
    fn an_acknowledgement_is_no_refusal() {
        let ack = message(36, ERROR, NLM_F_CAPPED, &[&[0; 4], &message(40, 16, 0, b"")[..]].concat());
        assert_eq!(frames(&ack).next().unwrap().refusal(), None);
    }
}
