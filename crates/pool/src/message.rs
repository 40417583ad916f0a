//! The messages between the plugin and the agent of a node, on a socket that only root can use.
//!
//! The socket is a sequenced-packet socket (`SOCK_SEQPACKET`, unix(7)): one connection has one request, a JSON object in one packet
//! of at most 4 KiB, and one reply, likewise. A plugin that does not wait for the reply closes the connection, and the agent does
//! what is wanted all the same. Both sides check that the other is a process of root (`SO_PEERCRED`).
//!
//! A member that one side does not know is ignored, so that plugin and agent of different releases understand each other.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_store::Directory;
use cnikit_types::{document, limit, read};
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, recv, send,
    setsockopt, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::definition::PoolFamily;
use crate::error::Error;

/// The default path of the agent's socket.
pub const AGENT_SOCKET: &str = "/run/cnikit/agent.sock";
/// The longest message, in bytes.
pub const MESSAGE_LIMIT: usize = 4 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "RequestMembers")]
#[non_exhaustive]
pub enum AgentRequest {
    /// Addresses for a network.
    Want(Want),
    /// The addresses that stay with a name.
    Sticky(StickyWant),
}

/// The addresses of a name, which this node is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyWant {
    /// The network.
    pub network: String,
    /// The pool.
    pub pool: String,
    /// The namespace.
    pub namespace: String,
    /// The name in that namespace.
    pub name: String,
    /// The families that addresses are wanted of; empty: all that the pool has static addresses of.
    #[serde(default)]
    pub families: Vec<PoolFamily>,
    /// The attachment that gets them, as `<container id>/<interface>`.
    pub attachment: String,
}

/// The addresses that a network of this node wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// The network.
    pub network: String,
    /// The pool.
    pub pool: String,
    /// The families that the addresses are wanted of; empty: all that the pool has.
    #[serde(default)]
    pub families: Vec<PoolFamily>,
    /// How many free addresses there should be of each family.
    pub free: u32,
    /// Requested addresses, which are in no block of the network: their blocks are wanted, or they are static ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The attachment that requests them, as `<container id>/<interface>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "ReplyMembers")]
pub enum AgentReply {
    /// The files of the node are as they were wanted.
    Done(bool),
    /// The addresses of the name, to [`AgentRequest::Sticky`]. The node has them now.
    Addresses(Vec<IpAddr>),
    /// The request was not served.
    Error(AgentError),
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentError {
    /// The code of the CNI error that the plugin reports.
    pub code: u32,
    /// What failed and why.
    pub msg: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The members of a request, of which one is there.
#[derive(Deserialize)]
struct RequestMembers {
    want: Option<Want>,
    sticky: Option<StickyWant>,
}

/// The members of a reply, of which one is there.
#[derive(Deserialize)]
struct ReplyMembers {
    done: Option<bool>,
    addresses: Option<Vec<IpAddr>>,
    error: Option<AgentError>,
}

impl TryFrom<RequestMembers> for AgentRequest {
    type Error = &'static str;

    fn try_from(members: RequestMembers) -> Result<AgentRequest, &'static str> {
        match members {
            RequestMembers { want: Some(want), .. } => Ok(AgentRequest::Want(want)),
            RequestMembers { sticky: Some(sticky), .. } => Ok(AgentRequest::Sticky(sticky)),
            RequestMembers { .. } => Err("it has no `want`"),
        }
    }
}

impl TryFrom<ReplyMembers> for AgentReply {
    type Error = &'static str;

    fn try_from(members: ReplyMembers) -> Result<AgentReply, &'static str> {
        match members {
            ReplyMembers { error: Some(error), .. } => Ok(AgentReply::Error(error)),
            ReplyMembers { done: Some(done), .. } => Ok(AgentReply::Done(done)),
            ReplyMembers { addresses: Some(addresses), .. } => Ok(AgentReply::Addresses(addresses)),
            ReplyMembers { .. } => Err("it has none of `done`, `addresses` and `error`"),
        }
    }
}

/// Why a call of the agent failed.
#[derive(Debug)]
pub enum AgentCallError {
    /// No agent listens.
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A process of another user listens there.
    Foreign {
        /// The socket.
        socket: PathBuf,
        /// The user.
        uid: u32,
        /// The process.
        pid: i32,
    },
    /// There was no reply in time.
    Late(PathBuf),
    /// The connection failed, or the agent ended without a reply.
    Broken {
        /// The socket.
        socket: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The request or the reply is no message of this protocol.
    Invalid(Error),
}

impl fmt::Display for AgentCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentCallError::NotRunning { socket, source } => {
                write!(f, "no agent listens on {}: {source}", socket.display())
            }
            AgentCallError::Foreign { socket, uid, pid } => {
                write!(f, "process {pid} of user {uid}, which is not root, listens on {}", socket.display())
            }
            AgentCallError::Late(socket) => write!(f, "the agent on {} did not answer in time", socket.display()),
            AgentCallError::Broken { socket, source } => {
                write!(f, "the connection to the agent on {} failed: {source}", socket.display())
            }
            AgentCallError::Invalid(error) => write!(f, "the agent's message is invalid: {}", error.text),
        }
    }
}

impl std::error::Error for AgentCallError {}

/// Sends a request and waits for the reply.
///
/// # Errors
/// No agent listens, another user's process does, it does not reply by the deadline, or its reply is invalid.
pub fn ask_agent(path: &Path, request: &AgentRequest, deadline: Deadline) -> Result<AgentReply, AgentCallError> {
    let broken = |errno: Errno| broken(path, errno);
    let packet = packet(request).map_err(AgentCallError::Invalid)?;
    let socket = connected(path, SockFlag::empty(), Some(deadline))?;
    set_timeout(&socket, deadline).map_err(broken)?;
    send_whole(&socket, &packet).map_err(broken)?;
    let reply = receive(&socket).map_err(broken)?;
    if reply.is_empty() {
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a reply");
        return Err(AgentCallError::Broken { socket: path.to_owned(), source });
    }
    parse(&reply).map_err(AgentCallError::Invalid)
}

/// Sends a request, and waits neither for the reply nor for an agent that has no time to accept the connection.
///
/// # Errors
/// As [`ask_agent`]; the agent may be too busy, which is reported as [`AgentCallError::Late`].
pub fn tell_agent(path: &Path, request: &AgentRequest) -> Result<(), AgentCallError> {
    let packet = packet(request).map_err(AgentCallError::Invalid)?;
    let socket = connected(path, SockFlag::SOCK_NONBLOCK, None)?;
    send_whole(&socket, &packet).map_err(|errno| broken(path, errno))
}

fn broken(path: &Path, errno: Errno) -> AgentCallError {
    match errno {
        Errno::EAGAIN => AgentCallError::Late(path.to_owned()),
        errno => AgentCallError::Broken { socket: path.to_owned(), source: errno.into() },
    }
}

/// A connection to an agent of root.
fn connected(path: &Path, flags: SockFlag, deadline: Option<Deadline>) -> Result<OwnedFd, AgentCallError> {
    let absent = |errno: Errno| match errno {
        Errno::EAGAIN => AgentCallError::Late(path.to_owned()),
        errno => AgentCallError::NotRunning { socket: path.to_owned(), source: errno.into() },
    };
    let socket = new_socket(flags).map_err(absent)?;
    if let Some(deadline) = deadline {
        set_timeout(&socket, deadline).map_err(absent)?;
    }
    let address = UnixAddr::new(path).map_err(absent)?;
    uninterrupted(|| connect(socket.as_raw_fd(), &address)).map_err(absent)?;
    let peer = getsockopt(&socket, PeerCredentials).map_err(absent)?;
    if peer.uid() != 0 {
        return Err(AgentCallError::Foreign { socket: path.to_owned(), uid: peer.uid(), pid: peer.pid() });
    }
    Ok(socket)
}

fn new_socket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, flags | SockFlag::SOCK_CLOEXEC, None)
}

/// Sets how long a call on the socket waits: until the deadline, and at least a millisecond, because 0 would be for ever.
fn set_timeout(socket: &OwnedFd, deadline: Deadline) -> nix::Result<()> {
    let left = deadline.remaining().unwrap_or(Duration::from_hours(1)).max(Duration::from_millis(1));
    let left = TimeVal::microseconds(i64::try_from(left.as_micros()).unwrap_or(i64::MAX));
    setsockopt(socket, SendTimeout, &left)?;
    setsockopt(socket, ReceiveTimeout, &left)
}

fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn send_whole(socket: &OwnedFd, packet: &[u8]) -> nix::Result<()> {
    uninterrupted(|| send(socket.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL)).map(drop)
}

/// One packet; it is one byte too long if it is longer than allowed, and empty at the end of the connection.
fn receive(socket: &OwnedFd) -> nix::Result<Vec<u8>> {
    let mut buffer = vec![0; MESSAGE_LIMIT + 1];
    let length = uninterrupted(|| recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()))?;
    buffer.truncate(length);
    Ok(buffer)
}

/// The packet of a message.
///
/// # Errors
/// It is longer than 4 KiB.
fn packet(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    let packet = serde_json::to_vec(message).map_err(|error| Error::new(error.to_string()))?;
    if packet.len() > MESSAGE_LIMIT {
        return Err(Error::new(format!(
            "it would have {} bytes, and at most {MESSAGE_LIMIT} are allowed",
            packet.len()
        ))
        .hint("request fewer addresses at once"));
    }
    Ok(packet)
}

fn parse<T: DeserializeOwned>(packet: &[u8]) -> Result<T, Error> {
    if packet.len() > MESSAGE_LIMIT {
        return Err(Error::new(format!("it is longer than {MESSAGE_LIMIT} bytes")));
    }
    let document = document::parse(packet).map_err(|error| Error::new(format!("it is not JSON: {error}")))?;
    limit::check(&document)?;
    Ok(read(&document)?)
}

/// The reply in what `cnikit-agent claim` prints, and in a packet.
///
/// # Errors
/// It is longer than 4 KiB, not JSON, or no reply.
pub fn parse_reply(text: &[u8]) -> Result<AgentReply, Error> {
    parse(text)
}

/// The request in an argument of `cnikit-agent claim`, and in a packet.
///
/// # Errors
/// It is longer than 4 KiB, not JSON, or no request.
pub fn parse_request(text: &[u8]) -> Result<AgentRequest, Error> {
    parse(text)
}

/// The agent's end of the socket.
#[derive(Debug)]
pub struct AgentListener {
    socket: UnixListener,
    /// Its path, if it was bound here.
    path: Option<PathBuf>,
}

impl AsFd for AgentListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AgentListener {
    /// Binds the socket: its directory is created with mode 0700 if it does not exist, the socket has mode 0600, and one that no
    /// process listens on is replaced.
    ///
    /// # Errors
    /// Another process listens, or the socket cannot be made.
    pub fn bind(path: &Path) -> Result<AgentListener, Error> {
        let failed = |why: &dyn fmt::Display| Error::new(format!("listen on {}: {why}", path.display()));
        let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(failed(&"it is not the path of a file"));
        };
        let directory = Directory::make(above, 0o700).map_err(|error| failed(&error))?;
        // Two agents that start at once: one binds, the other finds it.
        let lock = directory.lock(&format!("{name}.lock"), 0o600, Duration::from_secs(10));
        let _lock = lock.map_err(|error| failed(&error))?;
        match connected(path, SockFlag::SOCK_NONBLOCK, None) {
            Err(AgentCallError::NotRunning { .. }) => {}
            Err(error @ AgentCallError::Foreign { .. }) => return Err(failed(&error)),
            _ => return Err(failed(&"another agent listens there").hint("stop it first")),
        }
        directory.remove(name).map_err(|error| failed(&error))?;
        bound(path).map_err(|error| failed(&error))
    }

    /// A socket that listens already, such as one that systemd passes on.
    pub fn of_descriptor(socket: OwnedFd) -> AgentListener {
        AgentListener { socket: socket.into(), path: None }
    }

    /// Removes the path of the socket, so that no further plugin connects; those that have are still accepted. A caller of
    /// [`ask_agent`] gets that no agent runs.
    ///
    /// # Errors
    /// unlink(2) fails.
    pub fn unlink(&self) -> io::Result<()> {
        self.path.as_ref().map_or(Ok(()), std::fs::remove_file)
    }

    /// The next connection. Reading its request and writing the reply wait at most for `timeout` each.
    ///
    /// # Errors
    /// accept(2) fails.
    pub fn accept(&self, timeout: Duration) -> io::Result<AgentConnection> {
        let (stream, _) = self.socket.accept()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(AgentConnection { socket: stream.into() })
    }
}

/// The socket of this path, which listens.
fn bound(path: &Path) -> nix::Result<AgentListener> {
    let socket = new_socket(SockFlag::empty())?;
    // The file gets the mode of the socket, so it is never another user's to connect to.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::MAXALLOWABLE)?;
    Ok(AgentListener { path: Some(path.to_owned()), ..AgentListener::of_descriptor(socket) })
}

/// A plugin's connection.
#[derive(Debug)]
pub struct AgentConnection {
    socket: OwnedFd,
}

impl AgentConnection {
    /// The request.
    ///
    /// # Errors
    /// The process on the other side is not root's, sends nothing in time, or what it sends is no request. The text is for a reply
    /// to it and for a log.
    pub fn request(&self) -> Result<AgentRequest, Error> {
        let peer =
            getsockopt(&self.socket, PeerCredentials).map_err(|errno| Error::new(format!("the peer: {errno}")))?;
        if peer.uid() != 0 {
            return Err(Error::new(format!("process {} of user {} is not root's", peer.pid(), peer.uid())));
        }
        let packet = receive(&self.socket).map_err(|errno| match errno {
            Errno::EAGAIN => Error::new("there was no request in time"),
            errno => Error::new(format!("the request: {errno}")),
        })?;
        if packet.is_empty() {
            return Err(Error::new("the connection ended without a request"));
        }
        parse(&packet)
    }

    /// Sends the reply. The plugin may have closed the connection, because it does not wait for it: that is no error.
    ///
    /// # Errors
    /// The reply is longer than 4 KiB, or send(2) fails.
    pub fn reply(&self, reply: &AgentReply) -> Result<(), Error> {
        match send_whole(&self.socket, &packet(reply)?) {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            Err(errno) => Err(Error::new(format!("the reply: {errno}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixDatagram;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn want() -> AgentRequest {
        AgentRequest::Want(Want {
            network: "pods".into(),
            pool: "blue".into(),
            families: vec![PoolFamily::V4, PoolFamily::V6],
            free: 16,
            addresses: Vec::new(),
            attachment: None,
        })
    }

    /// Serves one connection with `serve`, and returns what a caller gets.
    fn served(serve: impl FnOnce(AgentConnection) + Send, deadline: Duration) -> Result<AgentReply, AgentCallError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/agent.sock");
        let listener = AgentListener::bind(&path).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| serve(listener.accept(SOON).unwrap()));
            ask_agent(&path, &want(), Deadline::after(deadline))
        })
    }

    #[test]
    fn the_messages_are_json_objects() {
        let text = String::from_utf8(packet(&want()).unwrap()).unwrap();
        assert_eq!(text, r#"{"want":{"network":"pods","pool":"blue","families":["v4","v6"],"free":16}}"#);
        assert_eq!(parse::<AgentRequest>(text.as_bytes()).unwrap(), want());
        assert_eq!(parse_reply(br#"{"done":true}"#).unwrap(), AgentReply::Done(true));
        let more = br#"{"error":{"code":11,"msg":"pool blue is full","hint":"add a range","since":3}}"#;
        let error = AgentError { code: 11, msg: "pool blue is full".into(), hint: Some("add a range".into()) };
        assert_eq!(parse_reply(more).unwrap(), AgentReply::Error(error));
        for bad in ["", "{}", "[]", r#"{"other":1}"#, r#"{"done":true"#, r#"{"error":{"msg":"x"}}"#] {
            assert!(parse_reply(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_is_answered() {
        let reply = served(
            |connection| {
                assert_eq!(connection.request().unwrap(), want());
                connection.reply(&AgentReply::Done(true)).unwrap();
            },
            SOON,
        );
        assert_eq!(reply.unwrap(), AgentReply::Done(true));
    }

    #[test]
    fn a_caller_that_does_not_wait_is_served_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = AgentListener::bind(&path).unwrap();
        tell_agent(&path, &want()).unwrap();
        let connection = listener.accept(SOON).unwrap();
        assert_eq!(connection.request().unwrap(), want());
        connection.reply(&AgentReply::Done(true)).unwrap();
    }

    #[test]
    fn an_agent_that_is_too_busy_to_accept_delays_no_caller_that_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let _listener = AgentListener::bind(&path).unwrap();
        let began = Instant::now();
        let refused = (0..100_000).find_map(|_| tell_agent(&path, &want()).err());
        assert!(matches!(refused, Some(AgentCallError::Late(_))), "{refused:?}");
        assert!(began.elapsed() < SOON);
        let late = ask_agent(&path, &want(), Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert!(matches!(late, AgentCallError::Late(_)), "{late}");
    }

    #[test]
    fn a_slow_agent_is_waited_for_until_the_deadline() {
        let began = Instant::now();
        let reply = served(
            |connection| {
                connection.request().unwrap();
                // Until the caller has gone.
                assert_eq!(receive(&connection.socket).unwrap(), b"");
            },
            Duration::from_millis(200),
        );
        assert!(matches!(reply, Err(AgentCallError::Late(_))), "{reply:?}");
        assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < SOON);
    }

    #[test]
    fn an_agent_that_ends_before_its_reply_is_reported_at_once() {
        let reply = served(|connection| drop(connection.request().unwrap()), SOON).unwrap_err();
        assert!(matches!(reply, AgentCallError::Broken { .. }), "{reply}");
        assert!(reply.to_string().contains("ended without a reply"), "{reply}");
        let reply = served(drop, SOON).unwrap_err();
        assert!(matches!(reply, AgentCallError::Broken { .. }), "{reply}");
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for packet in [b"x".to_vec(), br#"{"done":"#.to_vec(), vec![b' '; MESSAGE_LIMIT + 1], vec![b'['; 4000]] {
            let sent = packet.clone();
            let reply = served(
                move |connection| {
                    connection.request().unwrap();
                    send_whole(&connection.socket, &sent).unwrap();
                },
                SOON,
            );
            assert!(matches!(reply, Err(AgentCallError::Invalid(_))), "{}: {reply:?}", packet.len());
        }
    }

    #[test]
    fn a_request_that_is_too_large_is_refused_on_both_sides() {
        let many = Want {
            addresses: vec!["10.1.2.3".parse().unwrap(); 1000],
            ..match want() {
                AgentRequest::Want(want) => want,
                AgentRequest::Sticky(_) => panic!("it wants addresses for a network"),
            }
        };
        let refused = ask_agent(Path::new("/nonexistent/x"), &AgentRequest::Want(many), Deadline::after(SOON));
        assert!(refused.unwrap_err().to_string().contains("at most 4096 are allowed"));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = AgentListener::bind(&path).unwrap();
        for (sent, says) in [
            (vec![b' '; MESSAGE_LIMIT + 1], "longer than 4096 bytes"),
            (b"{".to_vec(), "not JSON"),
            (br#"{"want":{"network":"n"}}"#.to_vec(), "pool"),
        ] {
            let socket = connected(&path, SockFlag::empty(), None).unwrap();
            send_whole(&socket, &sent).unwrap();
            let error = listener.accept(SOON).unwrap().request().unwrap_err();
            assert!(error.text.contains(says), "{error}");
        }
        let _socket = connected(&path, SockFlag::empty(), None).unwrap();
        let silent = listener.accept(Duration::from_millis(50)).unwrap().request().unwrap_err();
        assert!(silent.text.contains("no request in time"), "{silent}");
    }

    #[test]
    fn a_missing_socket_and_one_without_a_process_are_reported_as_no_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        for _ in 0..2 {
            let absent = ask_agent(&path, &want(), Deadline::after(SOON)).unwrap_err();
            assert!(matches!(absent, AgentCallError::NotRunning { .. }), "{absent}");
            drop(AgentListener::bind(&path).unwrap());
        }
        std::fs::remove_file(&path).unwrap();
        let _other = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(tell_agent(&path, &want()).unwrap_err(), AgentCallError::NotRunning { .. }), "another kind");
        assert!(matches!(
            tell_agent(&dir.path().join("x".repeat(200)), &want()),
            Err(AgentCallError::NotRunning { .. })
        ));
    }

    #[test]
    fn only_one_agent_listens_and_its_socket_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/agent.sock");
        let first = AgentListener::bind(&path).unwrap();
        let second = AgentListener::bind(&path).unwrap_err();
        assert!(second.text.ends_with("another agent listens there"), "{second}");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(first);
        AgentListener::bind(&path).unwrap();
    }
}
