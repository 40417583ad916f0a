//! The verbs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cnikit::resources::slaac;
use cnikit::types::{Args, Ip};
use cnikit::{
    Addresses, AttachmentSpec, Check, Del, Error, Gc, IpamPlugin, Journal, NetConf, Result, Role, Status, code, log,
};
use cnikit_dhcp::v4::Lease;
use cnikit_dhcp::v6::Lease6;
use cnikit_dhcp_daemon::{
    CallError, LeaseFamily, LeaseOwner, LeaseRecords, LeaseReply, LeaseRequest, PendingCall, call, start_own_daemon,
};
use cnikit_process::Deadline;
use ipnetwork::IpNetwork;

use crate::configuration::{DhcpPlugin, add, addresses6, data_dir, owner, socket};

/// How long the daemon may take for anything but a lease: it answers at once.
const AT_ONCE: Duration = Duration::from_secs(20);

impl IpamPlugin for DhcpPlugin {
    const EXAMPLE: &'static str = r#""ipam":{"type":"dhcp"}"#;
    const ROLE: Option<Role> = Some(Role { argument: "daemon", run: cnikit_dhcp_daemon::run });

    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses> {
        let order = self.order(at)?;
        let owner = order.owner.clone();
        let families = self.families()?;
        let starts_daemon = self.starts_daemon()?;
        let deadline = Deadline::after(self.timeout());
        if families.v6 || families.slaac {
            slaac::accept_router_adverts(&at.sandbox, &at.tag.ifname, families.slaac)?;
        }
        let mut requests = Vec::new();
        if families.v4 {
            requests.push(LeaseRequest::Add(order));
        }
        if families.v6 {
            requests.push(LeaseRequest::Add6(self.order6(at)?));
        }
        // The daemon works on both at once. If one fails, the journal gives the other one back.
        let mut pending = Vec::new();
        for request in &requests {
            pending.push(self.begin(request, &at.conf, starts_daemon)?);
        }
        let mut addresses = Addresses::default();
        let mut first_error = None;
        for call in pending {
            match leased(call, &at.conf) {
                Ok((reply, is_new)) => {
                    if is_new {
                        let lease = OwnedLease { conf: at.conf.clone(), owner: owner.clone() };
                        let _ = journal.undo(&lease, OwnedLease::release);
                    }
                    match reply {
                        Leased::V4(lease) => {
                            for option in &lease.parameters.ignored {
                                let server = lease.server;
                                log::warn(format_args!(
                                    "the DHCP server {server} sends an option {option} that cannot be used"
                                ));
                            }
                            add(&mut addresses, self.addresses(&lease)?);
                        }
                        Leased::V6(lease) => add(&mut addresses, addresses6(&lease)),
                    }
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        if families.slaac {
            for network in slaac::wait_router_address(&at.sandbox, &at.tag.ifname, deadline)? {
                addresses.ips.push(Ip::new(network));
            }
        }
        Ok(addresses)
    }

    fn release(del: &Del) -> Result<()> {
        release(&del.call.conf, &owner(&del.tag))
    }

    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let order = self.order(at)?;
        let families = self.families()?;
        let reported: Vec<IpNetwork> = check.prev.ips.iter().map(|ip| ip.address).collect();
        let mut differences = Vec::new();
        if families.slaac {
            let ifname = &at.tag.ifname;
            let found = slaac::router_addresses(&at.sandbox, ifname)?;
            if !found.iter().any(|address| reported.contains(address)) {
                differences.push(format!("{ifname} has no address of prevResult by router advertisement"));
            }
        }
        if families.v4 || families.v6 {
            let (owner, netns) = (order.owner, order.netns);
            let (reported, families) = (Some(reported), families.leased());
            let request = LeaseRequest::Check { owner, netns, reported, families };
            match ask(&at.conf, &request, AT_ONCE)? {
                LeaseReply::Done => {}
                LeaseReply::Drift { differences: found } => differences.extend(found),
                other => return Err(unexpected(&other)),
            }
        }
        let mut differences = differences.into_iter();
        let Some(first) = differences.next() else { return Ok(()) };
        let mut error = Error::new(code::DRIFT, first);
        for difference in differences {
            error = error.detail(difference);
        }
        Err(error.hint("restart the container, so that it gets its addresses again"))
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
        if self.families()?.leased().is_empty() {
            return Ok(()); // the kernel alone makes the addresses
        }
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
        let families = self.families()?;
        let (mut steps, mut ips) = (Vec::new(), Vec::new());
        for family in families.leased() {
            let what = if family == LeaseFamily::V6 { "a lease of IPv6" } else { "a lease" };
            steps.push(format!(
                "ask the DHCP daemon at {}{start} for {what} for {owner}, at most {seconds} s",
                socket(&at.conf).display(),
            ));
        }
        if families.slaac {
            let ifname = &at.tag.ifname;
            steps.push(format!("wait for an address of {ifname} by router advertisement, at most {seconds} s"));
        }
        // Addresses for documentation (RFC 5737, RFC 3849): the server chooses the real ones.
        if families.v4 {
            ips.push(Ip { gateway: Some("192.0.2.1".parse()?), ..Ip::new("192.0.2.2/24".parse()?) });
        }
        if families.v6 {
            ips.push(Ip::new("2001:db8::2/128".parse()?));
        }
        if families.slaac {
            ips.push(Ip::new("2001:db8::ff:fe00:2/64".parse()?));
        }
        Ok((steps, Addresses { ips, ..Addresses::default() }))
    }
}

impl DhcpPlugin {
    /// Sends the request to the daemon, which is started if none runs and the configuration says so.
    fn begin(&self, request: &LeaseRequest, conf: &NetConf, starts_daemon: bool) -> Result<PendingCall> {
        let (socket, timeout) = (socket(conf), self.timeout() + AT_ONCE);
        let mut begun = PendingCall::begin(&socket, request, timeout);
        if starts_daemon && matches!(begun, Err(CallError::NotRunning { .. })) {
            start_own_daemon(&socket, &data_dir(conf))
                .map_err(|why| Error::new(code::SYSTEM, format!("the DHCP daemon is not started: {why}")))?;
            begun = PendingCall::begin(&socket, request, timeout);
        }
        begun.map_err(|error| explained(&error, conf))
    }
}

/// A lease of either family.
enum Leased {
    V4(Box<Lease>),
    V6(Box<Lease6>),
}

/// The lease that the daemon replies with, and whether there was none before.
fn leased(call: PendingCall, conf: &NetConf) -> Result<(Leased, bool)> {
    match succeeded(call.finish(), conf)? {
        LeaseReply::Lease { lease, is_new } => Ok((Leased::V4(lease), is_new)),
        LeaseReply::Lease6 { lease, is_new } => Ok((Leased::V6(lease), is_new)),
        other => Err(unexpected(&other)),
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

/// Sends the request. If no daemon of ours does it, it is noted for the next one, because a container has to end whatever happens:
/// perhaps none runs, another program has the socket, or the daemon ends meanwhile.
fn request_or_note(
    conf: &NetConf,
    request: &LeaseRequest,
    note: impl FnOnce(&LeaseRecords) -> Result<()>,
) -> Result<()> {
    match call(&socket(conf), request, AT_ONCE) {
        Err(error) if is_not_served(&error) => {}
        answered => return answered.map_err(|error| explained(&error, conf)).and_then(done),
    }
    let dir = data_dir(conf);
    if !dir.exists() {
        return Ok(()); // no daemon of ours has ever had a lease
    }
    note(&LeaseRecords::open(&dir)?)?;
    // A daemon that has started meanwhile may have read the notes before this one was there.
    match call(&socket(conf), request, AT_ONCE) {
        Err(error) if is_not_served(&error) => {
            log::warn(format_args!("{error}: what is to be given back is noted for the next daemon"));
            Ok(())
        }
        answered => answered.map_err(|error| explained(&error, conf)).and_then(done),
    }
}

/// Whether no daemon of ours has done what was requested, or not all of it.
fn is_not_served(error: &CallError) -> bool {
    match error {
        CallError::NotRunning { .. } | CallError::Foreign { .. } | CallError::Broken(_) => true,
        CallError::Late(_) | CallError::Unreadable(_) => false,
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
