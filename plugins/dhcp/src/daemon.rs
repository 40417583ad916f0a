//! The daemon that holds the leases, as the plugin calls it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cnikit::types::Value;
use cnikit::{AttachmentId, Error, Gc, Journal, NetConf, Result, code, log};
use cnikit_dhcp_daemon::{
    CallError, LeaseOwner, LeaseRecords, LeaseReply, LeaseRequest, PendingCall, RECORDS, SOCKET, again_while, call,
    start_own_daemon,
};

use crate::addresses::AnyLease;

/// How long the daemon may take for anything but a lease: it answers at once.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Where the daemon is.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) socket: PathBuf,
    /// The directory of its records.
    records: PathBuf,
}

impl Daemon {
    /// The one of these keys; an empty text is the default.
    pub(crate) fn new(socket: &str, records: &str) -> Daemon {
        let path = |text: &str, default: &str| if text.is_empty() { default.into() } else { text.into() };
        Daemon { socket: path(socket, SOCKET), records: path(records, RECORDS) }
    }

    /// The one of a configuration, also where the rest of that is invalid.
    pub(crate) fn of(conf: &NetConf) -> Daemon {
        let text = |key: &str| conf.at(&["ipam", key]).and_then(Value::as_str).unwrap_or_default();
        Daemon::new(text("daemonSocketPath"), text("dataDir"))
    }

    /// Orders leases, and waits for them. If `starts`, a daemon is started unless one runs.
    pub(crate) fn order(
        &self,
        orders: &[LeaseRequest],
        timeout: Duration,
        starts: bool,
        owner: &LeaseOwner,
        journal: &mut Journal,
    ) -> Result<Vec<AnyLease>> {
        // The daemon works on all at once. If one fails, the journal gives the others back.
        let begin = |order| self.begin(order, timeout + AT_ONCE, starts);
        let mut pending = Vec::new();
        for order in orders {
            pending.push((order, begin(order)));
        }
        let mut leases = Vec::new();
        let mut first_error = None;
        for (order, begun) in pending {
            match self.finish(begun, || begin(order)) {
                Ok((lease, is_new)) => {
                    if is_new {
                        let lease = OwnedLease { daemon: self.clone(), owner: owner.clone() };
                        let _ = journal.undo(&lease, OwnedLease::release);
                    }
                    leases.push(lease);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            Some(error) => Err(error),
            None => Ok(leases),
        }
    }

    fn begin(&self, request: &LeaseRequest, timeout: Duration, starts: bool) -> Result<PendingCall, Unserved> {
        let mut begun = PendingCall::begin(&self.socket, request, timeout);
        if starts && matches!(begun, Err(CallError::NotRunning { .. })) {
            start_own_daemon(&self.socket, &self.records).map_err(Unserved::NotStarted)?;
            begun = PendingCall::begin(&self.socket, request, timeout);
        }
        begun.map_err(Unserved::Failed)
    }

    /// The lease that the daemon replies with, and whether there was none before. If the daemon has just been killed, the order is
    /// begun `again`.
    fn finish(
        &self,
        begun: Result<PendingCall, Unserved>,
        again: impl Fn() -> Result<PendingCall, Unserved>,
    ) -> Result<(AnyLease, bool)> {
        let mut begun = Some(begun);
        let finish = || begun.take().unwrap_or_else(&again)?.finish().map_err(Unserved::Failed);
        let is_broken = |error: &Unserved| matches!(error, Unserved::Failed(error) if error.is_broken());
        let answered = match again_while(is_broken, finish) {
            Ok(reply) => Ok(reply),
            Err(Unserved::Failed(error)) => Err(error),
            Err(Unserved::NotStarted(why)) => {
                return Err(Error::new(code::SYSTEM, format!("the DHCP daemon is not started: {why}")));
            }
        };
        match self.succeeded(answered)? {
            LeaseReply::Lease { lease, is_new } => {
                for option in &lease.parameters.ignored {
                    let server = lease.server;
                    log::warn(format_args!("the DHCP server {server} sends an option {option} that cannot be used"));
                }
                Ok((AnyLease::V4(lease), is_new))
            }
            LeaseReply::Lease6 { lease, is_new } => Ok((AnyLease::V6(lease), is_new)),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives the owner's leases back.
    pub(crate) fn release(&self, owner: &LeaseOwner) -> Result<()> {
        let request = LeaseRequest::Del { owner: owner.clone() };
        self.ask_or_note(&request, |records| Ok(records.note_release(owner)?))
    }

    /// Gives back the leases of the network whose attachments are not valid.
    pub(crate) fn sweep(&self, gc: &Gc) -> Result<()> {
        let mut valid = Vec::new();
        for (container, ifname) in gc.valid.iter() {
            valid.push((container.to_owned(), ifname.to_owned()));
        }
        let request = LeaseRequest::Gc { network: gc.network.clone(), valid: valid.clone() };
        self.ask_or_note(&request, |records| Ok(records.note_garbage(&gc.network, &valid)?))
    }

    /// Fails if no daemon serves, unless ADD starts one.
    pub(crate) fn status(&self, starts: bool) -> Result<()> {
        let answered = call(&self.socket, &LeaseRequest::Status, AT_ONCE);
        if starts && matches!(answered, Err(CallError::NotRunning { .. })) {
            return Ok(());
        }
        self.succeeded(answered).map(drop)
    }

    /// The reply to a request that takes no time.
    pub(crate) fn ask(&self, request: &LeaseRequest) -> Result<LeaseReply> {
        self.succeeded(call(&self.socket, request, AT_ONCE))
    }

    /// Sends the request. If no daemon of ours does it, it is noted for the next one, because a container has to end whatever
    /// happens: perhaps none runs, another program has the socket, or the daemon ends meanwhile.
    fn ask_or_note(&self, request: &LeaseRequest, note: impl FnOnce(&LeaseRecords) -> Result<()>) -> Result<()> {
        match call(&self.socket, request, AT_ONCE) {
            Err(error) if is_not_served(&error) => {}
            answered => return self.succeeded(answered).map(drop),
        }
        if !self.records.exists() {
            return Ok(()); // no daemon of ours has ever had a lease
        }
        note(&LeaseRecords::open(&self.records)?)?;
        // A daemon that has started meanwhile may have read the notes before this one was there.
        match call(&self.socket, request, AT_ONCE) {
            Err(error) if is_not_served(&error) => {
                log::warn(format_args!("{error}: what is to be given back is noted for the next daemon"));
                Ok(())
            }
            answered => self.succeeded(answered).map(drop),
        }
    }

    /// The daemon's reply; a failure that it reports is an error.
    fn succeeded(&self, answered: Result<LeaseReply, CallError>) -> Result<LeaseReply> {
        match answered {
            Ok(LeaseReply::Failed { message }) => Err(Error::new(code::SYSTEM, message)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.explained(&error)),
        }
    }

    /// The error of a call, with what to do.
    fn explained(&self, error: &CallError) -> Error {
        let hint = match error {
            CallError::NotRunning { .. } => {
                let socket = self.socket.display();
                format!("start it: `dhcp daemon -socketpath {socket}`, or set `ipam.daemon` to \"auto\"")
            }
            CallError::Foreign { .. } => {
                "stop that program and start `dhcp daemon` of the same release as this plugin, or \
                choose another socket by `ipam.daemonSocketPath`"
                    .to_owned()
            }
            CallError::Late(_) | CallError::Broken(_) | CallError::Unreadable(_) => {
                "look at the daemon's log, and restart it: leases survive that".to_owned()
            }
        };
        Error::new(code::SYSTEM, error.to_string()).hint(hint)
    }
}

/// Why an order has no reply.
enum Unserved {
    /// No daemon runs, and none can be started.
    NotStarted(String),
    Failed(CallError),
}

/// Whether no daemon of ours has done what was requested, or not all of it.
fn is_not_served(error: &CallError) -> bool {
    match error {
        CallError::NotRunning { .. } | CallError::Foreign { .. } | CallError::Broken(_) => true,
        CallError::Late(_) | CallError::Unreadable(_) => false,
    }
}

pub(crate) fn unexpected(reply: &LeaseReply) -> Error {
    Error::new(code::SYSTEM, format!("the DHCP daemon answers {reply:?}, which is no answer to this request"))
        .hint("start `dhcp daemon` of the same release as this plugin")
}

/// Whose lease it is.
pub(crate) fn owner(tag: &AttachmentId) -> LeaseOwner {
    let AttachmentId { network, container, ifname } = tag.clone();
    LeaseOwner { container, network, ifname }
}

/// The lease of one ADD, for the journal.
#[derive(Clone)]
struct OwnedLease {
    daemon: Daemon,
    owner: LeaseOwner,
}

impl OwnedLease {
    fn release(&self) -> Result<()> {
        self.daemon.release(&self.owner)
    }
}

impl fmt::Display for OwnedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DHCP lease of {}", self.owner)
    }
}
