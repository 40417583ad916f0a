//! Dump requests, which are repeated until the answer is complete and consistent.

use std::io;
use std::time::Duration;

use cnikit_process::Deadline;
use netlink_packet_core::NLM_F_DUMP_INTR;
use nix::errno::Errno;

use crate::frame::{self, Frame, NetlinkError, frames};
use crate::socket::{TIMEOUT, lost};
use crate::{Error, Result, Socket};

/// The first pause before a dump is tried again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The position of the sequence number in a message.
pub(crate) const SEQUENCE: std::ops::Range<usize> = 8..12;

/// How one attempt at a dump ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Dumped<T> {
    Whole(T),
    /// To be repeated: the dumped state changed meanwhile, messages were lost, or another dump was running.
    Again(NetlinkError),
    Refused(NetlinkError),
}

impl<T> Dumped<T> {
    /// The value of a complete dump, or the error of any other.
    pub(crate) fn into_taken(self) -> std::result::Result<T, NetlinkError> {
        match self {
            Self::Whole(taken) => Ok(taken),
            Self::Again(refusal) | Self::Refused(refusal) => Err(refusal),
        }
    }
}

impl Socket {
    /// Sends a dump request and returns all its messages with their headers.
    ///
    /// `request` is one message with `NLM_F_DUMP`; its sequence number is replaced. A dump that the kernel marks as interrupted
    /// (`NLM_F_DUMP_INTR`), that was lost in part or that met another one (`EBUSY`) is repeated, with growing pauses, for at
    /// most 10 seconds: the returned messages are complete and consistent.
    ///
    /// # Errors
    /// The kernel refuses the request, the dump was still interrupted after 10 seconds, or send(2) or recv(2) fails or times
    /// out.
    #[doc(alias = "NLM_F_DUMP_INTR")]
    pub fn dump(&mut self, request: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.dump_into(request, keep)
    }

    /// As [`Socket::dump`], for a dump that is too large to be collected: each message is passed to `take` as it arrives.
    ///
    /// When the dump is repeated, the value so far is replaced by the default of `T`, and `take` gets the messages from the
    /// first one again.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn dump_into<T: Default>(&mut self, request: &[u8], mut take: impl FnMut(&mut T, &[u8])) -> Result<T> {
        let deadline = Deadline::after(TIMEOUT);
        let failed = |source: io::Error| Error::new("dump", "", source);
        let mut pause = FIRST_PAUSE;
        loop {
            let refusal = match self.dump_once(request, deadline, &mut take).map_err(failed)? {
                Dumped::Whole(taken) => return Ok(taken),
                Dumped::Refused(refusal) => return Err(Error::refused("dump", "", &refusal)),
                Dumped::Again(refusal) => refusal,
            };
            if !deadline.pause(pause) {
                return Err(Error::refused("dump", "", &refusal));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn dump_once<T: Default>(
        &mut self,
        request: &[u8],
        deadline: Deadline,
        take: &mut impl FnMut(&mut T, &[u8]),
    ) -> io::Result<Dumped<T>> {
        let mut request = request.to_vec();
        let sequence = self.next_sequence();
        let place = request.get_mut(SEQUENCE).ok_or(Errno::EINVAL)?;
        place.copy_from_slice(&sequence.to_ne_bytes());
        self.send(&request)?;
        let mut dump = Dump::default();
        while dump.end.is_none() {
            match self.receive(deadline) {
                Ok(size) => self.missed |= dump.take_all((self.port, sequence), &self.buffer[..size], take),
                Err(error) if lost(&error) => {
                    self.missed = true;
                    dump.interrupted = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(dump.result())
    }
}

/// A dump that is being received.
#[derive(Default)]
pub(crate) struct Dump<T> {
    taken: T,
    interrupted: bool,
    /// Set when the dump has ended.
    pub(crate) end: Option<std::result::Result<(), NetlinkError>>,
}

/// Stores a message.
pub(crate) fn keep(messages: &mut Vec<Vec<u8>>, message: &[u8]) {
    messages.push(message.to_vec());
}

impl<T> Dump<T> {
    /// Takes the messages for this port and sequence number. Returns whether there were messages that are not part of the dump.
    pub(crate) fn take_all(&mut self, ours: (u32, u32), datagram: &[u8], take: &mut impl FnMut(&mut T, &[u8])) -> bool {
        let mut others = false;
        for frame in frames(datagram) {
            if (frame.port, frame.sequence) == ours {
                self.take(&frame, take);
            } else {
                others = true;
            }
        }
        others
    }

    fn take(&mut self, frame: &Frame<'_>, take: &mut impl FnMut(&mut T, &[u8])) {
        self.interrupted |= frame.flags & NLM_F_DUMP_INTR != 0;
        match frame.kind {
            frame::ERROR | frame::DONE => {
                self.end = Some(match frame.refusal() {
                    Some(refusal) => Err(refusal),
                    None => Ok(()),
                });
            }
            frame::OVERRUN => self.interrupted = true,
            frame::NOOP => {}
            _ => take(&mut self.taken, frame.bytes),
        }
    }

    pub(crate) fn result(self) -> Dumped<T> {
        match self.end {
            Some(Err(refusal)) if [libc::EINTR, libc::EBUSY, libc::EAGAIN].contains(&refusal.errno) => {
                Dumped::Again(refusal)
            }
            Some(Err(refusal)) => Dumped::Refused(refusal),
            _ if self.interrupted => Dumped::Again(NetlinkError { errno: libc::EINTR, text: None }),
            _ => Dumped::Whole(self.taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_ACK_TLVS;

    use super::*;

    fn dumped(messages: &[(u16, u16, &[u8])]) -> Dumped<Vec<Vec<u8>>> {
        let mut dump = Dump::default();
        for (kind, flags, body) in messages {
            let bytes = [&[0; 16], *body].concat();
            dump.take(&Frame { kind: *kind, flags: *flags, sequence: 1, port: 1, bytes: &bytes }, &mut keep);
        }
        dump.result()
    }

    fn code(errno: i32) -> [u8; 4] {
        (-errno).to_ne_bytes()
    }

    #[test]
    fn a_dump_without_incident_is_whole() {
        let whole = dumped(&[(16, 2, b"link"), (16, 2, b"mate"), (frame::DONE, 2, &[0; 4])]);
        assert_eq!(whole, Dumped::Whole(vec![[&[0; 16], &b"link"[..]].concat(), [&[0; 16], &b"mate"[..]].concat()]));
    }

    #[test]
    fn a_dump_marked_as_interrupted_anywhere_is_read_again() {
        let again = Dumped::Again(NetlinkError { errno: libc::EINTR, text: None });
        assert_eq!(dumped(&[(16, NLM_F_DUMP_INTR, b"link"), (frame::DONE, 0, &[0; 4])]), again);
        assert_eq!(dumped(&[(16, 0, b"link"), (frame::DONE, NLM_F_DUMP_INTR, &[0; 4])]), again);
        assert_eq!(dumped(&[(frame::OVERRUN, 0, b""), (frame::DONE, 0, &[0; 4])]), again);
        assert_eq!(dumped(&[(16, 0, b"link"), (frame::DONE, 0, &code(libc::EINTR))]), again);
    }

    #[test]
    fn a_dump_that_met_another_one_is_read_again() {
        let busy = NetlinkError { errno: libc::EBUSY, text: None };
        assert_eq!(dumped(&[(frame::ERROR, 0, &code(libc::EBUSY))]), Dumped::Again(busy));
    }

    #[test]
    fn an_error_at_the_end_of_a_dump_has_its_text() {
        let body = [&code(libc::ENODEV)[..], &[9, 0, 1, 0], b"gone\0", &[0; 3]].concat();
        let refused = NetlinkError { errno: libc::ENODEV, text: Some("gone".to_owned()) };
        assert_eq!(dumped(&[(frame::DONE, NLM_F_ACK_TLVS, &body)]), Dumped::Refused(refused));
    }
}
