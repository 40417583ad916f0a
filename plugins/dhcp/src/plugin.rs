//! The verbs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cnikit::types::{Args, Ip};
use cnikit::{
    Addresses, AttachmentSpec, Check, Del, Error, Gc, IpamPlugin, Journal, NetConf, Result, Role, Status, code, log,
};
use cnikit_dhcp_daemon::{CallError, LeaseOwner, LeaseRecords, LeaseReply, LeaseRequest, call, start_own_daemon};

use crate::configuration::{DhcpPlugin, data_dir, owner, socket};

/// How long the daemon may take for anything but a lease: it answers at once.
const AT_ONCE: Duration = Duration::from_secs(20);

impl IpamPlugin for DhcpPlugin {
    const EXAMPLE: &'static str = r#""ipam":{"type":"dhcp"}"#;
    const ROLE: Option<Role> = Some(Role { argument: "daemon", run: cnikit_dhcp_daemon::run });

    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses> {
        let order = self.order(at)?;
        let owner = order.owner.clone();
        let starts_daemon = self.starts_daemon()?;
        let (socket, request, timeout) = (socket(&at.conf), LeaseRequest::Add(order), self.timeout() + AT_ONCE);
        let mut answered = call(&socket, &request, timeout);
        if starts_daemon && matches!(answered, Err(CallError::NotRunning { .. })) {
            start_own_daemon(&socket, &data_dir(&at.conf))
                .map_err(|why| Error::new(code::SYSTEM, format!("the DHCP daemon is not started: {why}")))?;
            answered = call(&socket, &request, timeout);
        }
        let reply = succeeded(answered, &at.conf)?;
        let LeaseReply::Lease { lease, is_new } = reply else { return Err(unexpected(&reply)) };
        if is_new {
            let _ = journal.undo(&OwnedLease { conf: at.conf.clone(), owner }, OwnedLease::release);
        }
        for option in &lease.parameters.ignored {
            log::warn(format_args!("the DHCP server {} sends an option {option} that cannot be used", lease.server));
        }
        self.addresses(&lease)
    }

    fn release(del: &Del) -> Result<()> {
        release(&del.call.conf, &owner(&del.tag))
    }

    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let order = self.order(at)?;
        let reported = check.prev.ips.iter().map(|ip| ip.address).collect();
        let request = LeaseRequest::Check { owner: order.owner, netns: order.netns, reported };
        match ask(&at.conf, &request, AT_ONCE)? {
            LeaseReply::Done => Ok(()),
            LeaseReply::Drift { differences } => {
                let mut differences = differences.into_iter();
                let mut error = Error::new(code::DRIFT, differences.next().unwrap_or_default());
                for difference in differences {
                    error = error.detail(difference);
                }
                Err(error.hint("restart the container, so that it gets a lease again"))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn sweep(gc: &Gc) -> Result<()> {
        let valid: Vec<(String, String)> =
            gc.valid.iter().map(|(container, ifname)| (container.to_owned(), ifname.to_owned())).collect();
        let request = LeaseRequest::Gc { network: gc.network.clone(), valid: valid.clone() };
        request_or_note(&gc.call.conf, &request, |records| Ok(records.note_garbage(&gc.network, &valid)?))
    }

    fn status(&self, status: &Status) -> Result<()> {
        let none = LeaseOwner { container: String::new(), network: String::new(), ifname: String::new() };
        self.options(&none, &Args::default())?;
        let answered = call(&socket(&status.call.conf), &LeaseRequest::Status, AT_ONCE);
        if self.starts_daemon()? && matches!(answered, Err(CallError::NotRunning { .. })) {
            return Ok(()); // the next ADD starts it
        }
        succeeded(answered, &status.call.conf).map(drop)
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let owner = owner(&at.tag);
        self.options(&owner, &at.args)?;
        let start = if self.starts_daemon()? { ", which is started if it does not run," } else { "" };
        let seconds = self.timeout().as_secs();
        let step = format!(
            "ask the DHCP daemon at {}{start} for a lease for {}, at most {seconds} s",
            socket(&at.conf).display(),
            owner
        );
        // An address for documentation (RFC 5737): which one the server would assign, nobody knows.
        let example = Ip { gateway: Some("192.0.2.1".parse()?), ..Ip::new("192.0.2.2/24".parse()?) };
        Ok((vec![step], Addresses { ips: vec![example], ..Addresses::default() }))
    }
}

/// The lease of one ADD, for the journal.
#[derive(Clone)]
struct OwnedLease {
    conf: NetConf,
    owner: LeaseOwner,
}

impl OwnedLease {
    fn release(&self) -> Result<()> {
        release(&self.conf, &self.owner)
    }
}

impl fmt::Display for OwnedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DHCP lease of {}", self.owner)
    }
}

/// Gives the owner's lease back.
fn release(conf: &NetConf, owner: &LeaseOwner) -> Result<()> {
    let request = LeaseRequest::Del { owner: owner.clone() };
    request_or_note(conf, &request, |records| Ok(records.note_release(owner)?))
}

/// Sends the request. If no daemon runs, it is noted for the next one.
fn request_or_note(
    conf: &NetConf,
    request: &LeaseRequest,
    note: impl FnOnce(&LeaseRecords) -> Result<()>,
) -> Result<()> {
    let answered = call(&socket(conf), request, AT_ONCE);
    let Err(CallError::NotRunning { .. }) = answered else {
        return answered.map_err(|error| explained(&error, conf)).and_then(done);
    };
    let dir = data_dir(conf);
    if !dir.exists() {
        return Ok(()); // no daemon has ever had a lease
    }
    note(&LeaseRecords::open(&dir)?)?;
    // A daemon that has started meanwhile may have read the notes before this one was there.
    match call(&socket(conf), request, AT_ONCE) {
        Err(CallError::NotRunning { .. }) => {
            log::warn("no DHCP daemon runs: what is to be given back is noted for the next one");
            Ok(())
        }
        answered => answered.map_err(|error| explained(&error, conf)).and_then(done),
    }
}

fn done(reply: LeaseReply) -> Result<()> {
    match reply {
        LeaseReply::Failed { message } => Err(Error::new(code::SYSTEM, message)),
        _ => Ok(()),
    }
}

/// Calls the daemon.
fn ask(conf: &NetConf, request: &LeaseRequest, timeout: Duration) -> Result<LeaseReply> {
    succeeded(call(&socket(conf), request, timeout), conf)
}

/// The daemon's reply; a failure that it reports is an error.
fn succeeded(answered: Result<LeaseReply, CallError>, conf: &NetConf) -> Result<LeaseReply> {
    match answered {
        Ok(LeaseReply::Failed { message }) => Err(Error::new(code::SYSTEM, message)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(explained(&error, conf)),
    }
}

/// The error of a call, with what to do.
fn explained(error: &CallError, conf: &NetConf) -> Error {
    let hint = match error {
        CallError::NotRunning { .. } => {
            let path: PathBuf = socket(conf);
            format!("start it: `dhcp daemon -socketpath {}`, or set `ipam.daemon` to \"auto\"", path.display())
        }
        CallError::Foreign { .. } => {
            "stop that program and start `dhcp daemon` of the same release as this plugin, or choose another socket by \
             `ipam.daemonSocketPath`"
                .to_owned()
        }
        CallError::Late(_) | CallError::Broken(_) | CallError::Unreadable(_) => {
            "look at the daemon's log, and restart it: leases survive that".to_owned()
        }
    };
    Error::new(code::SYSTEM, error.to_string()).hint(hint)
}

fn unexpected(reply: &LeaseReply) -> Error {
    Error::new(code::SYSTEM, format!("the DHCP daemon answers {reply:?}, which is no answer to this request"))
        .hint("start `dhcp daemon` of the same release as this plugin")
}
