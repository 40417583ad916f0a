//! Send requests and collect their answers.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use cnikit_process::Deadline;
use netlink_packet_core::NLM_F_ACK;
use nix::errno::Errno;

use crate::frame::{self, Frame, NetlinkError, frames};
use crate::socket::{TIMEOUT, lost, timed_out};
use crate::{Error, Result, Socket};

/// The answers of the kernel to one datagram.
#[derive(Debug, Default)]
pub struct Exchanged {
    /// The messages that are not acknowledgements, with their headers, in order of arrival.
    pub messages: Vec<Vec<u8>>,
    /// The refusals, each with the sequence number of the refused message, in order of arrival.
    pub errors: Vec<(u32, NetlinkError)>,
}

impl Socket {
    /// Sends ONE datagram of one or many messages, and collects the answers until each sequence number in `awaited` has been
    /// acknowledged, refused or answered.
    ///
    /// The caller provides headers and sequence numbers. A message with `NLM_F_ACK` is awaited until it is acknowledged; a
    /// message without it must be a request for one object, and is awaited until that object arrives. The kernel processes the
    /// messages in order. If it refuses one and sends no acknowledgements of others, as `nf_tables` may when it aborts a
    /// transaction, the function returns without these.
    ///
    /// # Errors
    /// send(2) or recv(2) fails, or no answer arrives in time. A refusal by the kernel is not an error of this function: it is
    /// in [`Exchanged::errors`].
    pub fn exchange(&mut self, datagram: &[u8], awaited: &[u32]) -> Result<Exchanged> {
        self.try_exchange(datagram, awaited).map(|answers| answers.exchanged).map_err(failed)
    }

    /// As [`Socket::exchange`], for messages of which some are not acknowledged and not awaited. They come before the last awaited
    /// one, so their refusals have arrived when that has been acknowledged.
    ///
    /// # Errors
    /// As [`Socket::exchange`], and answers were lost, among which a refusal may have been (`ENOBUFS`).
    pub(crate) fn exchange_some_silent(&mut self, datagram: &[u8], awaited: &[u32]) -> Result<Exchanged> {
        let answers = self.try_exchange(datagram, awaited).map_err(failed)?;
        if answers.lost && answers.ours.len() > awaited.len() {
            return Err(failed(Errno::ENOBUFS.into()));
        }
        Ok(answers.exchanged)
    }

    fn try_exchange(&mut self, datagram: &[u8], awaited: &[u32]) -> io::Result<Answers> {
        let mut answers = Answers::to(datagram, awaited);
        self.send(datagram)?;
        let result = self.collect(&mut answers);
        self.missed |= answers.missed || answers.lost;
        result?;
        Ok(answers)
    }

    fn collect(&mut self, answers: &mut Answers) -> io::Result<()> {
        let deadline = Deadline::after(TIMEOUT);
        while !answers.complete() {
            match self.receive(Deadline::after(Duration::ZERO)) {
                Ok(size) => answers.take(self.port, &self.buffer[..size]),
                Err(error) if lost(&error) => answers.lost = true,
                Err(error) if timed_out(&error) && !answers.exchanged.errors.is_empty() => break,
                Err(error) if timed_out(&error) && answers.lost => return Err(Errno::ENOBUFS.into()),
                Err(error) if timed_out(&error) => self.wait(deadline)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn failed(source: io::Error) -> Error {
    Error::new("exchange netlink messages", "", source)
}

/// The answers to one datagram that have arrived so far.
pub(crate) struct Answers {
    /// The sequence numbers of the sent messages, each with whether it has `NLM_F_ACK`.
    ours: BTreeMap<u32, bool>,
    /// The sequence numbers that are still awaited.
    open: Vec<u32>,
    /// Answers may have been lost.
    lost: bool,
    /// Messages arrived that are not answers.
    missed: bool,
    pub(crate) exchanged: Exchanged,
}

impl Answers {
    pub(crate) fn to(datagram: &[u8], awaited: &[u32]) -> Self {
        let ours = frames(datagram).map(|frame| (frame.sequence, frame.flags & NLM_F_ACK != 0)).collect();
        Self { ours, open: awaited.to_vec(), lost: false, missed: false, exchanged: Exchanged::default() }
    }

    pub(crate) fn complete(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn take(&mut self, port: u32, datagram: &[u8]) {
        for frame in frames(datagram) {
            match self.ours.get(&frame.sequence) {
                Some(acknowledged) if frame.port == port => self.take_one(&frame, *acknowledged),
                _ => self.missed = true,
            }
        }
    }

    fn take_one(&mut self, frame: &Frame<'_>, acknowledged: bool) {
        match frame.kind {
            frame::ERROR => {
                self.done(frame.sequence);
                if let Some(refusal) = frame.refusal() {
                    self.exchanged.errors.push((frame.sequence, refusal));
                }
            }
            frame::OVERRUN => self.lost = true,
            frame::NOOP | frame::DONE => {}
            _ => {
                self.exchanged.messages.push(frame.bytes.to_vec());
                if !acknowledged {
                    self.done(frame.sequence);
                }
            }
        }
    }

    fn done(&mut self, sequence: u32) {
        self.open.retain(|open| *open != sequence);
    }
}
