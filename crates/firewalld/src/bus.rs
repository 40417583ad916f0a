//! A connection to a message bus.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cnikit_process::Deadline;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::address::{Address, addresses};
use crate::message::{self, Call, HEADER, Reply, Value};
use crate::{Cause, Error, Result};

/// Authentication by the credentials of the socket (`EXTERNAL`). With an empty `DATA` the bus takes the user id from the socket
/// alone, which also works in a user namespace.
const AUTHENTICATION: &[u8] = b"\0AUTH EXTERNAL\r\nDATA\r\n";
/// The longest single wait for a connection; waits are repeated until the deadline. The value only has to fit into a `timeval`.
const AT_ONCE: Duration = Duration::from_hours(1);
/// The longest line of the authentication protocol, in bytes.
const LONGEST_LINE: usize = 16 << 10;
/// The name under which the bus itself can be called.
pub(crate) const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// A connection to a bus. Its deadline holds for all calls together.
#[derive(Debug)]
pub(crate) struct Bus {
    stream: UnixStream,
    deadline: Deadline,
    serial: u32,
    /// The bytes that were received and are not parsed yet.
    received: Vec<u8>,
}

impl Bus {
    /// Connects to the first address of the list where a bus listens; `None` if none does.
    pub(crate) fn connect(list: &str, deadline: Deadline) -> Result<Option<Self>> {
        let failed = |error| Error::new(format!("connect to the bus at \"{list}\""), Cause::Socket(error));
        let addresses = addresses(list);
        if addresses.is_empty() {
            return Err(failed(io::Error::new(ErrorKind::InvalidInput, "it has no unix:path= or unix:abstract=")));
        }
        for address in &addresses {
            match stream(address, deadline) {
                Ok(stream) => {
                    let mut bus = Self { stream, deadline, serial: 0, received: Vec::new() };
                    bus.introduce().map_err(|error| error.during(format!("speak to the bus at \"{list}\"")))?;
                    return Ok(Some(bus));
                }
                Err(error) if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind()) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Calls a method of the bus itself.
    pub(crate) fn ask(&mut self, member: &str, arguments: &[&str]) -> Result<Value> {
        self.call(&Call { destination: BUS, path: BUS_PATH, interface: BUS, member, arguments })
    }

    /// Calls a method, and waits for the answer.
    pub(crate) fn call(&mut self, call: &Call<'_>) -> Result<Value> {
        self.try_call(call).map_err(|cause| Error::new(format!("call {} of {}", call.member, call.destination), cause))
    }

    fn try_call(&mut self, call: &Call<'_>) -> std::result::Result<Value, Cause> {
        if let Some(text) = call.arguments.iter().find(|text| text.contains('\0')) {
            return Err(Cause::Unreadable(format!("{text:?} contains a NUL, which D-Bus does not allow in strings")));
        }
        self.serial += 1;
        self.send(&call.encode(self.serial)).map_err(Cause::Socket)?;
        loop {
            let Reply { to, result } = self.answer()?;
            if to == self.serial {
                return result.map_err(|error| Cause::Refused { name: error.name, message: error.message });
            }
        }
    }

    /// Authenticates and calls `Hello`, which must be the first method call of a connection.
    fn introduce(&mut self) -> Result<()> {
        self.authenticate().map_err(|cause| Error::new("introduce ourselves", cause))?;
        self.ask("Hello", &[]).map(drop)
    }

    fn authenticate(&mut self) -> std::result::Result<(), Cause> {
        self.send(AUTHENTICATION).map_err(Cause::Socket)?;
        for expected in ["DATA", "OK"] {
            let line = self.line()?;
            if line.split(' ').next() != Some(expected) {
                return Err(Cause::Unreadable(format!("it answered {line:?} to the question whether it knows us")));
            }
        }
        self.send(b"BEGIN\r\n").map_err(Cause::Socket)
    }

    fn line(&mut self) -> std::result::Result<String, Cause> {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                let line = self.received.drain(..end + 2).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.received.len() > LONGEST_LINE {
                return Err(Cause::Unreadable(
                    "the program that listens there is not a bus: its line does not end".to_owned(),
                ));
            }
            self.receive().map_err(Cause::Socket)?;
        }
    }

    /// Receives messages up to the next method return or error.
    fn answer(&mut self) -> std::result::Result<Reply, Cause> {
        let unreadable = || Cause::Unreadable("the answer is not a D-Bus message".to_owned());
        loop {
            if self.received.len() >= HEADER {
                let length = message::length(&self.received).ok_or_else(unreadable)?;
                if self.received.len() >= length {
                    let message: Vec<u8> = self.received.drain(..length).collect();
                    match message::answer(&message).map_err(|_| unreadable())? {
                        Some(answer) => return Ok(answer),
                        None => continue,
                    }
                }
            }
            self.receive().map_err(Cause::Socket)?;
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            self.stream.set_read_timeout(left(self.deadline)?)?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the bus hung up")),
                Ok(length) => {
                    self.received.extend(&bytes[..length]);
                    return Ok(());
                }
                Err(error) if passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(left(self.deadline)?)?;
            match self.stream.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether an operation of the socket has to be tried again: it was interrupted, or its timeout passed. Whether the deadline has
/// passed is checked separately.
fn passing(error: &io::Error) -> bool {
    [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind())
}

/// The timeout for the next operation of the socket; `None` if there is no deadline.
fn left(deadline: Deadline) -> io::Result<Option<Duration>> {
    match deadline.remaining() {
        Some(left) if left.is_zero() => Err(ErrorKind::TimedOut.into()),
        left => Ok(left.map(|left| left.max(Duration::from_millis(1)))),
    }
}

/// Connects to a socket. If its listen queue is full, it waits until there is room or the deadline passes.
fn stream(address: &Address, deadline: Deadline) -> io::Result<UnixStream> {
    let address = match address {
        Address::Path(path) => UnixAddr::new(path)?,
        Address::Abstract(name) => UnixAddr::new_abstract(name)?,
    };
    let stream = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    loop {
        left(deadline)?;
        let timeout = deadline.at_most(AT_ONCE).poll_timeout_ms().max(1);
        setsockopt(&stream, sockopt::SendTimeout, &TimeVal::milliseconds(timeout.into()))?;
        match connect(stream.as_raw_fd(), &address).map_err(io::Error::from) {
            Err(error) if passing(&error) => {}
            connected => return connected.map(|()| UnixStream::from(stream)),
        }
    }
}
