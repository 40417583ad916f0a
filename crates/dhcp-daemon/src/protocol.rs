//! The protocol of the daemon's socket, version 1: one line of JSON as request, one as reply, and then the connection ends.
//!
//! Plugin and daemon of different releases understand each other while the version is the same: a member that one of them does not
//! know is ignored, and each member that is newer than the version has a default for one that does not send it.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_dhcp::v4::{ClientOptions, Lease};
use cnikit_dhcp::v6::Lease6;
use cnikit_process::Deadline;
use ipnetwork::IpNetwork;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const PROTOCOL_VERSION: u64 = 1;
/// The default path of the socket, which is that of upstream's daemon.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// The longest request or reply, in bytes.
pub(crate) const LONGEST: usize = 4 << 20;
/// How a reply of upstream's daemon begins, which speaks HTTP.
const HTTP: &[u8] = b"HTTP/";

/// Whose lease it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseOwner {
    /// The container.
    pub container: String,
    /// The network.
    pub network: String,
    /// The interface in the container.
    pub ifname: String,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseRequest {
    /// Get a lease, or report the one that there is.
    Add(LeaseOrder),
    /// The same for a lease of IPv6 addresses.
    Add6(Lease6Order),
    /// Give the leases of both families back. There may be none.
    Del {
        /// Whose.
        owner: LeaseOwner,
    },
    /// Compare the lease with the interface.
    Check {
        /// Whose.
        owner: LeaseOwner,
        /// The path of the namespace.
        netns: String,
        /// The addresses of the result of the ADD; `None`: they are not compared.
        #[serde(default)]
        reported: Option<Vec<IpNetwork>>,
        /// The families that there have to be leases of. Default: IPv4.
        #[serde(default = "default_families")]
        families: Vec<LeaseFamily>,
    },
    /// Give back the leases of this network whose owners are not valid.
    Gc {
        /// The network.
        network: String,
        /// Container and interface of each valid owner.
        valid: Vec<(String, String)>,
    },
    /// Is the daemon there?
    Status,
    /// Report all leases.
    List,
    /// End, without giving any lease back, and pass the socket on to the caller.
    End,
}

/// An order for a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOrder {
    /// Whose it will be.
    pub owner: LeaseOwner,
    /// The path of the namespace that has the interface.
    pub netns: String,
    /// What is sent to the server and asked for.
    pub options: ClientOptions,
    /// Whether the interface gets the MTU that the server names, if it is smaller. Default: yes.
    #[serde(default = "yes")]
    pub mtu: bool,
    /// The metric of the lease's routes.
    #[serde(default)]
    pub priority: Option<u32>,
    /// How long the caller waits, in milliseconds. Default: [`LeaseOrder::TIMEOUT_MS`].
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
}

/// An order for a lease of IPv6 addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease6Order {
    /// Whose it will be.
    pub owner: LeaseOwner,
    /// The path of the namespace that has the interface.
    pub netns: String,
    /// How long the caller waits, in milliseconds. Default: [`LeaseOrder::TIMEOUT_MS`].
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
}

/// A family of addresses. An owner can have a lease of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseFamily {
    /// IPv4: DHCP.
    V4,
    /// IPv6: `DHCPv6`.
    V6,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseReply {
    /// It is done.
    Done,
    /// The lease.
    Lease {
        /// Its parameters.
        lease: Box<Lease>,
        /// Whether there was none before this order. Default: yes.
        #[serde(default = "yes")]
        is_new: bool,
    },
    /// The lease of IPv6 addresses.
    Lease6 {
        /// Its parameters.
        lease: Box<Lease6>,
        /// Whether there was none before this order. Default: yes.
        #[serde(default = "yes")]
        is_new: bool,
    },
    /// All leases.
    Leases {
        /// One each, in the order of their owners.
        leases: Vec<LeaseReport>,
    },
    /// It is refused or failed.
    Failed {
        /// Why.
        message: String,
    },
    /// CHECK: the interface is not as the lease says.
    Drift {
        /// Each difference.
        differences: Vec<String>,
    },
}

/// A lease of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// Whose.
    pub owner: LeaseOwner,
    /// Of which family. Default: IPv4.
    #[serde(default = "default_family")]
    pub family: LeaseFamily,
    /// The path of the namespace.
    #[serde(default)]
    pub netns: String,
    /// The lease of IPv4, if it is of that family and there is one now.
    pub lease: Option<Lease>,
    /// The lease of IPv6, if it is of that family and there is one now.
    pub lease6: Option<Lease6>,
    /// How long it lasts; `None` if for ever or if there is none.
    pub seconds_left: Option<u64>,
    /// What keeps it from being got or renewed.
    pub hindrance: Option<String>,
}

/// A line: a request or a reply with the version of the protocol.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u64,
    message: T,
}

/// The line to the daemon that takes over: one of an earlier release reads it as [`Versioned`].
#[derive(Serialize, Deserialize)]
struct TakeoverReply {
    version: u64,
    message: LeaseReply,
    #[serde(default)]
    is_of_systemd: bool,
}

/// Why a call of the daemon failed.
#[derive(Debug)]
pub enum CallError {
    /// No daemon listens on the socket.
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Another program listens there: upstream's daemon, or one of a user.
    Foreign {
        /// The socket.
        socket: PathBuf,
        /// Which program.
        what: String,
    },
    /// The daemon did not answer in time.
    Late(Duration),
    /// The connection failed.
    Broken(io::Error),
    /// The reply cannot be read.
    Unreadable(String),
}

fn yes() -> bool {
    true
}

fn default_family() -> LeaseFamily {
    LeaseFamily::V4
}

fn default_families() -> Vec<LeaseFamily> {
    vec![default_family()]
}

fn default_timeout() -> u64 {
    LeaseOrder::TIMEOUT_MS
}

impl CallError {
    /// Whether the connection failed: the daemon may just have been killed.
    pub fn is_broken(&self) -> bool {
        matches!(self, CallError::Broken(_))
    }
}

impl LeaseOrder {
    /// How long a caller waits that does not say so, in milliseconds.
    pub const TIMEOUT_MS: u64 = 50_000;
}

impl LeaseOwner {
    /// The text that the client identifier is made of. No part has a slash in it.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.container, self.network, self.ifname)
    }

    /// Whether it is of this network, and not one of its valid owners (container and interface).
    pub(crate) fn is_garbage(&self, network: &str, valid: &[(String, String)]) -> bool {
        let is_it = |(container, ifname): &(String, String)| *container == self.container && *ifname == self.ifname;
        self.network == network && !valid.iter().any(is_it)
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

/// The message as a line.
pub(crate) fn line<T: Serialize>(message: T) -> Vec<u8> {
    terminated(&Versioned { version: PROTOCOL_VERSION, message })
}

fn terminated<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The reply to the daemon that takes over: with whether the socket is systemd's, whose file is not to be removed.
pub(crate) fn takeover_line(is_of_systemd: bool) -> Vec<u8> {
    terminated(&TakeoverReply { version: PROTOCOL_VERSION, message: LeaseReply::Done, is_of_systemd })
}

/// Whether the socket that comes with this reply is systemd's. A daemon of an earlier release does not tell.
pub(crate) fn is_of_systemd(reply: &[u8]) -> bool {
    serde_json::from_slice::<TakeoverReply>(reply).is_ok_and(|reply| reply.is_of_systemd)
}

/// The request in a line.
pub(crate) fn parse_request(line: &[u8]) -> Result<LeaseRequest, String> {
    let whole: serde_json::Value = serde_json::from_slice(line).map_err(|error| format!("it is not JSON: {error}"))?;
    let version = whole.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(PROTOCOL_VERSION) {
        let found = version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
        return Err(format!(
            "the request has {found} of the protocol, and this daemon speaks version {PROTOCOL_VERSION}"
        ));
    }
    let request: Versioned<LeaseRequest> = serde_json::from_value(whole).map_err(|error| error.to_string())?;
    Ok(request.message)
}

/// Connects to the daemon.
///
/// # Errors
/// No process listens, or one of another user.
pub(crate) fn connect(socket: &Path) -> Result<UnixStream, CallError> {
    let absent = |source| CallError::NotRunning { socket: socket.to_owned(), source };
    let stream = UnixStream::connect(socket).map_err(absent)?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(|errno| CallError::Broken(errno.into()))?;
    if peer.uid() != 0 {
        let what = format!("a program of user {}, process {}", peer.uid(), peer.pid());
        return Err(CallError::Foreign { socket: socket.to_owned(), what });
    }
    Ok(stream)
}

/// Sends a request to the daemon, and returns its reply.
///
/// # Errors
/// There is no daemon, it is not ours, or it does not answer in time.
pub fn call(socket: &Path, request: &LeaseRequest, timeout: Duration) -> Result<LeaseReply, CallError> {
    again_while(CallError::is_broken, || PendingCall::begin(socket, request, timeout)?.finish())
}

/// Calls again, for a second, while the connection breaks: the socket of a daemon that was killed stays open until the last of its
/// threads has ended.
///
/// # Errors
/// The last one of the calls.
pub fn again_while<T, E>(is_broken: impl Fn(&E) -> bool, mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Deadline::after(Duration::from_secs(1));
    loop {
        match call() {
            Err(error) if is_broken(&error) && deadline.pause(Duration::from_millis(20)) => {}
            done => return done,
        }
    }
}

/// A request that the daemon has, and whose reply is not read yet. Dropping it gives an order up.
#[derive(Debug)]
pub struct PendingCall {
    stream: UnixStream,
    socket: PathBuf,
    deadline: Deadline,
    timeout: Duration,
}

impl PendingCall {
    /// Sends a request to the daemon.
    ///
    /// # Errors
    /// There is no daemon, or it is not ours.
    pub fn begin(socket: &Path, request: &LeaseRequest, timeout: Duration) -> Result<PendingCall, CallError> {
        let deadline = Deadline::after(timeout);
        let mut pending = PendingCall { stream: connect(socket)?, socket: socket.to_owned(), deadline, timeout };
        let left = pending.left()?;
        pending.stream.set_write_timeout(Some(left)).map_err(CallError::Broken)?;
        pending.stream.write_all(&line(request)).map_err(|error| broken(error, timeout))?;
        Ok(pending)
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// The daemon is not ours, or does not answer in time.
    pub fn finish(mut self) -> Result<LeaseReply, CallError> {
        let mut reply = Vec::new();
        let mut buffer = [0; 4_096];
        while !reply.contains(&b'\n') {
            let left = self.left()?;
            self.stream.set_read_timeout(Some(left)).map_err(CallError::Broken)?;
            let length = match self.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(error, self.timeout)),
            };
            reply.extend(&buffer[..length]);
            refuse_http(&reply, &self.socket)?;
            if reply.len() > LONGEST {
                return Err(CallError::Unreadable(format!("the reply is longer than {LONGEST} bytes")));
            }
        }
        parse_reply(&reply)
    }

    fn left(&self) -> Result<Duration, CallError> {
        self.deadline.remaining().filter(|left| !left.is_zero()).ok_or(CallError::Late(self.timeout))
    }
}

/// An error if the reply is one of HTTP.
pub(crate) fn refuse_http(reply: &[u8], socket: &Path) -> Result<(), CallError> {
    if !reply.starts_with(HTTP) {
        return Ok(());
    }
    let what = "a daemon that speaks HTTP, as upstream's does".to_owned();
    Err(CallError::Foreign { socket: socket.to_owned(), what })
}

pub(crate) fn parse_reply(reply: &[u8]) -> Result<LeaseReply, CallError> {
    if reply.is_empty() {
        let ended = "the daemon ended the connection without an answer";
        return Err(CallError::Broken(io::Error::new(io::ErrorKind::UnexpectedEof, ended)));
    }
    let unreadable = |error: serde_json::Error| CallError::Unreadable(error.to_string());
    let reply: Versioned<LeaseReply> = serde_json::from_slice(reply).map_err(unreadable)?;
    Ok(reply.message)
}

pub(crate) fn broken(error: io::Error, timeout: Duration) -> CallError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CallError::Late(timeout),
        _ => CallError::Broken(error),
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::NotRunning { socket, source } => {
                write!(f, "no DHCP daemon listens on {}: {source}", socket.display())
            }
            CallError::Foreign { socket, what } => write!(f, "{} belongs to {what}", socket.display()),
            CallError::Late(timeout) => {
                write!(f, "the DHCP daemon did not answer within {:.0} s", timeout.as_secs_f64())
            }
            CallError::Broken(source) => write!(f, "the connection to the DHCP daemon failed: {source}"),
            CallError::Unreadable(why) => write!(f, "the DHCP daemon's reply cannot be read: {why}"),
        }
    }
}

impl std::error::Error for CallError {}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit_dhcp::v4::client_id;

    fn owner() -> LeaseOwner {
        LeaseOwner { container: "c".into(), network: "n".into(), ifname: "eth0".into() }
    }

    #[test]
    fn each_request_is_read_as_it_was_written() {
        let mut options = ClientOptions::new(client_id(&owner().id()));
        options.provide(60, vec![0, 255]).unwrap();
        let netns = "/run/netns/a".to_owned();
        let order =
            LeaseOrder { owner: owner(), netns: netns.clone(), options, mtu: true, priority: Some(7), timeout_ms: 9 };
        for request in [
            LeaseRequest::Add(order),
            LeaseRequest::Add6(Lease6Order { owner: owner(), netns: netns.clone(), timeout_ms: 9 }),
            LeaseRequest::Del { owner: owner() },
            LeaseRequest::Check {
                owner: owner(),
                netns,
                reported: Some(vec!["10.0.0.5/24".parse().unwrap()]),
                families: vec![LeaseFamily::V4, LeaseFamily::V6],
            },
            LeaseRequest::Gc { network: "n".into(), valid: vec![("c".into(), "eth0".into())] },
            LeaseRequest::Status,
            LeaseRequest::List,
            LeaseRequest::End,
        ] {
            let line = line(&request);
            assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
            assert_eq!(parse_request(&line), Ok(request));
        }
    }

    /// As another release of the same version may write it: without the members that came later, and with one that comes later.
    #[test]
    fn a_request_of_another_release_is_read() {
        let options = ClientOptions::new(client_id(&owner().id()));
        let owner_text = r#""owner":{"container":"c","network":"n","ifname":"eth0","later":1}"#;
        let options_text = serde_json::to_string(&options).unwrap();
        let order = format!(r#"{{{owner_text},"netns":"/n","options":{options_text},"later":[]}}"#);
        let timeout_ms = LeaseOrder::TIMEOUT_MS;
        let netns = "/n".to_owned();
        let cases = [
            (
                format!(r#"{{"add":{order}}}"#),
                LeaseRequest::Add(LeaseOrder {
                    owner: owner(),
                    netns: netns.clone(),
                    options,
                    mtu: true,
                    priority: None,
                    timeout_ms,
                }),
            ),
            (
                format!(r#"{{"add6":{order}}}"#),
                LeaseRequest::Add6(Lease6Order { owner: owner(), netns: netns.clone(), timeout_ms }),
            ),
            (
                format!(r#"{{"check":{{{owner_text},"netns":"/n"}}}}"#),
                LeaseRequest::Check { owner: owner(), netns, reported: None, families: vec![LeaseFamily::V4] },
            ),
        ];
        for (message, wanted) in cases {
            let line = format!(r#"{{"version":1,"message":{message},"later":true}}"#);
            assert_eq!(parse_request(line.as_bytes()).as_ref(), Ok(&wanted), "{line}");
        }
    }

    #[test]
    fn a_reply_of_another_release_is_read() {
        let lease = crate::record::tests::record("c").lease;
        let mut text = serde_json::to_value(&lease).unwrap();
        text["later"] = serde_json::json!({});
        let parameters = text["parameters"].as_object_mut().unwrap();
        parameters.retain(|name, _| name == "dns");
        parameters.insert("later".to_owned(), serde_json::json!([1]));
        let read = |message: serde_json::Value| {
            let line = serde_json::json!({"version": 1, "message": message, "later": 1}).to_string();
            parse_reply(line.as_bytes()).unwrap()
        };
        let wanted = LeaseReply::Lease { lease: Box::new(lease.clone()), is_new: true };
        assert_eq!(read(serde_json::json!({"lease": {"lease": text, "later": 0}})), wanted);
        let report = LeaseReport {
            owner: owner(),
            family: LeaseFamily::V4,
            netns: String::new(),
            lease: Some(lease),
            lease6: None,
            seconds_left: None,
            hindrance: None,
        };
        let leases = serde_json::json!({"leases": {"leases": [{"owner": owner(), "lease": text, "later": 0}]}});
        assert_eq!(read(leases), LeaseReply::Leases { leases: vec![report] });
    }

    #[test]
    fn another_version_is_refused_with_both() {
        let text = |line: &str| parse_request(line.as_bytes()).unwrap_err();
        let refused = "the request has version 2 of the protocol, and this daemon speaks version 1";
        assert_eq!(text(r#"{"version":2,"message":"new"}"#), refused);
        assert!(text(r#"{"message":"status"}"#).starts_with("the request has no version"));
        assert!(text("GET / HTTP/1.0").starts_with("it is not JSON"));
        assert!(text(r#"{"version":1,"message":"fly"}"#).contains("fly"));
    }
}
