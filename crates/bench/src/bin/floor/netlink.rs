//! Messages of netlink(7), and one socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType};

use crate::Result;

/// The bytes of `struct nlmsghdr`, and of the header of an attribute.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Asks for an answer, and for the creation of what does not exist yet.
pub(crate) const ACK: i32 = libc::NLM_F_ACK;
pub(crate) const CREATE: i32 = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// A message to the kernel.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A message of a type with flags, and the header of its family.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "types and flags have 16 bits")]
    pub(crate) fn new(kind: u16, flags: i32, header: &[u8]) -> Message {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        bytes.extend(header);
        Message(bytes)
    }

    /// Adds an attribute.
    pub(crate) fn with(self, kind: u16, value: &[u8]) -> Message {
        self.nest(kind, |message| message.raw(value))
    }

    /// Adds a text, which ends with a zero.
    pub(crate) fn text(self, kind: u16, value: &str) -> Message {
        self.nest(kind, |message| message.raw(value.as_bytes()).raw(&[0]))
    }

    /// Adds an attribute with what `fill` adds.
    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend([0; ATTRIBUTE]);
        let mut filled = fill(self);
        let length = u16::try_from(filled.0.len() - start).unwrap_or(u16::MAX);
        filled.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        filled.0.resize(filled.0.len().next_multiple_of(4), 0);
        filled
    }

    /// Adds bytes that have no header.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Message {
        self.0.extend(bytes);
        self
    }

    fn is(&self, flag: i32) -> bool {
        i32::from(u16::from_ne_bytes([self.0[6], self.0[7]])) & flag != 0
    }
}

/// The header of a message about links, `struct ifinfomsg`: an index, and flags to set.
#[expect(clippy::cast_sign_loss, reason = "flags are bits")]
pub(crate) fn link_header(index: u32, flags: i32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&(flags as u32).to_ne_bytes());
    header[12..16].copy_from_slice(&(flags as u32).to_ne_bytes());
    header
}

/// A socket of netlink.
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn new(protocol: SockProtocol) -> Result<Socket> {
        let socket = socket::socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        Ok(Socket(socket))
    }

    /// Sends messages at once and waits for the acknowledgement of each that asks for one, or for the end of a list. Returns what
    /// the kernel told besides: each answer without its header.
    pub(crate) fn ask(&self, messages: &[Message]) -> Result<Vec<Vec<u8>>> {
        let mut bytes = Vec::new();
        for Message(one) in messages {
            let start = bytes.len();
            bytes.extend(one);
            let length = u32::try_from(one.len()).unwrap_or(u32::MAX);
            bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        }
        socket::send(self.0.as_raw_fd(), &bytes, MsgFlags::empty())?;
        let mut waited = messages.iter().filter(|message| message.is(ACK) || message.is(libc::NLM_F_DUMP)).count();
        let mut answers = Vec::new();
        let mut buffer = vec![0; 32 << 10];
        while waited > 0 {
            let read = socket::recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..read];
            while rest.len() >= HEADER {
                let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                let kind = i32::from(u16::from_ne_bytes([rest[4], rest[5]]));
                let body = &rest[HEADER..length];
                match kind {
                    libc::NLMSG_DONE => waited -= 1,
                    libc::NLMSG_ERROR => {
                        let errno = i32::from_ne_bytes([body[0], body[1], body[2], body[3]]);
                        if errno != 0 {
                            return Err(io::Error::from_raw_os_error(-errno));
                        }
                        waited -= 1;
                    }
                    _ => answers.push(body.to_vec()),
                }
                rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            }
        }
        Ok(answers)
    }
}

/// An attribute of an answer, whose family's header has that many bytes.
pub(crate) fn attribute(answer: &[u8], header: usize, wanted: u16) -> Option<&[u8]> {
    let mut rest = answer.get(header..)?;
    while rest.len() >= ATTRIBUTE {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        if u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff == wanted {
            return rest.get(ATTRIBUTE..length);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}
