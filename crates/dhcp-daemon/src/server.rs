//! The event loop: one thread, one poll(2) for the socket, its connections and the sockets of all leases.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::attachment::{Attachment, Behaviour};
use crate::interface;
use crate::listener::Listener;
use crate::log::log;
use crate::protocol::{LONGEST, LeaseOrder, LeaseOwner, LeaseReply, LeaseRequest, line, parse_request};
use crate::record::{LeaseRecords, Record, StoredLeases};
use crate::{DaemonSettings, clock};

/// The connections that are served at a time; more of them wait.
const CONNECTIONS: usize = 512;
/// How long a caller may take to send its request, and to read the reply.
const TALK: Duration = Duration::from_secs(10);
/// The longest time without a look at the clock: while the machine sleeps, poll(2) does not count.
const NAP: Duration = Duration::from_mins(1);

/// Why the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonEnd {
    /// A signal came.
    Signal,
    /// Another daemon has its socket now.
    Replaced,
}

/// A caller.
struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Until when it may talk; `None` while it waits for a lease.
    until: Option<Duration>,
    /// The owner whose lease it waits for.
    waits_for: Option<String>,
}

/// What is waited for.
#[derive(Clone, Copy)]
enum Ready {
    Signal,
    Listener,
    Connection(u64),
    /// The lease with this place in the order of their owners.
    Lease(usize),
}

/// The daemon's state.
pub(crate) struct Server {
    listener: Listener,
    signals: Option<SignalFd>,
    records: LeaseRecords,
    host_prefix: String,
    behaviour: Behaviour,
    /// The longest time that an order waits.
    patience: Duration,
    attachments: BTreeMap<String, Attachment>,
    /// Leases of an earlier boot, until their containers come back or are deleted.
    former: BTreeMap<String, Record>,
    connections: BTreeMap<u64, Connection>,
    /// The number of the next connection.
    next: u64,
    /// The connection of the daemon that takes over.
    successor: Option<u64>,
}

impl Server {
    pub(crate) fn new(
        settings: &DaemonSettings,
        listener: Listener,
        signals: Option<SignalFd>,
    ) -> Result<Server, String> {
        let records = LeaseRecords::open(&settings.records).map_err(|error| error.to_string())?;
        let mut server = Server {
            listener,
            signals,
            records,
            host_prefix: settings.host_prefix.clone(),
            behaviour: Behaviour { timing: settings.timing, broadcast: settings.broadcast },
            patience: settings.patience,
            attachments: BTreeMap::new(),
            former: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 0,
            successor: None,
        };
        server.resume_all()?;
        Ok(server)
    }

    /// Goes on with the leases of the disk.
    fn resume_all(&mut self) -> Result<(), String> {
        let StoredLeases { records, unusable } = self.records.read_all().map_err(|error| error.to_string())?;
        for why in unusable {
            log("records", why);
        }
        let boot = cnikit_netns::boot_id().map_err(|error| error.to_string())?;
        for (record, is_released) in records {
            if record.place.boot != boot && !is_released {
                log(
                    &record.owner,
                    "its lease is of an earlier boot: its container gets the address again, if it comes back",
                );
                self.former.insert(record.owner.id(), record);
            } else {
                self.resume(record, is_released);
            }
        }
        Ok(())
    }

    fn resume(&mut self, record: Record, is_released: bool) {
        let owner = record.owner.clone();
        let found = match interface::reopen(&record.place) {
            Ok(Some(netns)) => interface::find_address(&netns, &record).map(Some),
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        let has_address = match found {
            Ok(Some(Some(has_address))) => has_address,
            Ok(None | Some(None)) => {
                Attachment::release_record(record, self.behaviour);
                self.forget(&owner);
                return;
            }
            Err(why) => {
                log(&owner, format!("its interface cannot be looked at: {why}"));
                false
            }
        };
        let mut attachment = Attachment::resume(record, has_address, self.behaviour);
        if is_released {
            log(&owner, "its DEL came while no daemon ran: the lease is given back now");
            attachment.release(clock::now());
            self.forget(&owner);
        } else {
            self.attachments.insert(owner.id(), attachment);
        }
    }

    /// Serves until a signal comes or another daemon takes over. No lease is given back: the next daemon goes on with them.
    pub(crate) fn serve(mut self) -> Result<DaemonEnd, String> {
        loop {
            let now = clock::now();
            self.step_all(now);
            self.drop_late(now);
            if let Some(end) = self.hand_over() {
                return end;
            }
            for ready in self.wait(now)? {
                match ready {
                    Ready::Signal => {
                        self.listener.close();
                        return Ok(DaemonEnd::Signal);
                    }
                    Ready::Listener => self.accept(),
                    Ready::Connection(number) => self.talk(number),
                    Ready::Lease(place) => {
                        if let Some(attachment) = self.attachments.values_mut().nth(place) {
                            attachment.receive(clock::now());
                        }
                    }
                }
            }
        }
    }

    /// Passes the socket on, once every other caller has its reply. Those that connect meanwhile wait for the next daemon.
    fn hand_over(&mut self) -> Option<Result<DaemonEnd, String>> {
        let successor = self.successor?;
        if self.connections.keys().any(|number| *number != successor) {
            return None;
        }
        let Some(connection) = self.connections.remove(&successor) else {
            self.successor = None;
            return None;
        };
        match self.listener.pass_on(&connection.stream) {
            Ok(()) => Some(Ok(DaemonEnd::Replaced)),
            Err(error) => {
                log("socket", format!("it is not passed on: {error}"));
                self.successor = None;
                None
            }
        }
    }

    /// Waits for anything, and returns what is ready.
    fn wait(&self, now: Duration) -> Result<Vec<Ready>, String> {
        let mut sources = Vec::new();
        let mut descriptors = Vec::new();
        let mut add = |source: Ready, descriptor, flags| {
            sources.push(source);
            descriptors.push(PollFd::new(descriptor, flags));
        };
        if let Some(signals) = &self.signals {
            add(Ready::Signal, signals.as_fd(), PollFlags::POLLIN);
        }
        if self.connections.len() < CONNECTIONS && self.successor.is_none() {
            add(Ready::Listener, self.listener.socket.as_fd(), PollFlags::POLLIN);
        }
        for (number, connection) in &self.connections {
            let flags = if connection.output.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLOUT };
            add(Ready::Connection(*number), connection.stream.as_fd(), flags);
        }
        for (place, attachment) in self.attachments.values().enumerate() {
            for socket in attachment.sockets(now) {
                add(Ready::Lease(place), socket, PollFlags::POLLIN);
            }
        }
        let left = self.next_deadline(now).saturating_sub(now).min(NAP);
        let timeout = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        match poll(&mut descriptors, PollTimeout::from(timeout)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("poll: {errno}")),
        }
        let mut ready = Vec::new();
        for (source, descriptor) in sources.iter().zip(&descriptors) {
            if descriptor.any().unwrap_or_default() {
                ready.push(*source);
            }
        }
        Ok(ready)
    }

    fn next_deadline(&self, now: Duration) -> Duration {
        let mut next = now + NAP;
        for attachment in self.attachments.values() {
            if let Some(deadline) = attachment.deadline(now) {
                next = next.min(deadline);
            }
        }
        for connection in self.connections.values() {
            if let Some(until) = connection.until {
                next = next.min(until);
            }
        }
        next
    }

    fn step_all(&mut self, now: Duration) {
        let mut replies = Vec::new();
        for (id, attachment) in &mut self.attachments {
            let step = attachment.step(now, &self.records);
            if step.reply.is_some() || step.is_over {
                replies.push((id.clone(), attachment.owner.clone(), step));
            }
        }
        for (id, owner, step) in replies {
            if let Some(reply) = &step.reply {
                self.answer_waiters(&id, reply);
            }
            if step.is_over {
                self.attachments.remove(&id);
                self.forget(&owner);
            }
        }
    }

    /// Removes the record of a lease that was given back or is nobody's.
    fn forget(&self, owner: &LeaseOwner) {
        if let Err(error) = self.records.remove(owner) {
            log(owner, format!("its record is not removed: {error}"));
        }
    }

    // ------------------------------------------------------------------------------------------------------ connections

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS {
            let stream = match self.listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let mut connection = Connection {
                stream,
                input: Vec::new(),
                output: Vec::new(),
                until: Some(clock::now() + TALK),
                waits_for: None,
            };
            match getsockopt(&connection.stream, PeerCredentials) {
                Ok(peer) if peer.uid() == 0 => {}
                Ok(peer) => {
                    let message = format!("only root may call the DHCP daemon, not user {}", peer.uid());
                    connection.output = line(LeaseReply::Failed { message });
                }
                Err(_) => continue,
            }
            if connection.stream.set_nonblocking(true).is_ok() {
                self.connections.insert(self.next, connection);
                self.next += 1;
            }
        }
    }

    /// Reads or writes what is possible now.
    fn talk(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.output.is_empty() {
            let is_done = write_some(connection);
            if is_done {
                self.connections.remove(&number);
            }
            return;
        }
        match read_some(connection) {
            Input::More => {}
            Input::Ended => self.abandon(number),
            Input::Line(request) => match parse_request(&request) {
                Ok(request) => self.handle(number, request),
                Err(message) => self.answer(number, &LeaseReply::Failed { message }),
            },
        }
    }

    /// The caller is gone. An order that nobody else waits for is given up: the lease would be nobody's.
    fn abandon(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        let Some(id) = connection.waits_for else { return };
        let is_awaited = self.connections.values().any(|other| other.waits_for.as_ref() == Some(&id));
        let is_ordered = self.attachments.get(&id).is_some_and(|attachment| attachment.ordered.is_some());
        if is_ordered && !is_awaited {
            self.give_back(&id);
        }
    }

    fn answer(&mut self, number: u64, reply: &LeaseReply) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.output = line(reply);
        connection.waits_for = None;
        connection.until = Some(clock::now() + TALK);
        if write_some(connection) {
            self.connections.remove(&number);
        }
    }

    fn answer_waiters(&mut self, id: &str, reply: &LeaseReply) {
        let is_waiter = |(number, one): (&u64, &Connection)| (one.waits_for.as_deref() == Some(id)).then_some(*number);
        let waiters: Vec<u64> = self.connections.iter().filter_map(is_waiter).collect();
        for number in waiters {
            self.answer(number, reply);
        }
    }

    fn drop_late(&mut self, now: Duration) {
        self.connections.retain(|_, connection| connection.until.is_none_or(|until| until > now));
    }

    // --------------------------------------------------------------------------------------------------------- requests

    fn handle(&mut self, number: u64, request: LeaseRequest) {
        let reply = match request {
            LeaseRequest::Add(order) => match self.add(number, order) {
                Ok(Some(reply)) => reply,
                Ok(None) => return,
                Err(message) => LeaseReply::Failed { message },
            },
            LeaseRequest::Del { owner } => {
                self.give_back(&owner.id());
                match self.records.remove(&owner) {
                    Ok(()) => LeaseReply::Done,
                    Err(error) => LeaseReply::Failed { message: error.to_string() },
                }
            }
            LeaseRequest::Check { owner, netns, reported } => self.check(&owner, &netns, &reported),
            LeaseRequest::Gc { network, valid } => {
                self.collect_garbage(&network, &valid);
                LeaseReply::Done
            }
            LeaseRequest::Status => LeaseReply::Done,
            LeaseRequest::List => {
                let now = clock::now();
                LeaseReply::Leases { leases: self.attachments.values().map(|one| one.report(now)).collect() }
            }
            LeaseRequest::End => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.until = None;
                }
                self.successor = Some(number);
                return;
            }
        };
        self.answer(number, &reply);
    }

    /// The reply, or `None` if the caller has to wait for it.
    fn add(&mut self, number: u64, order: LeaseOrder) -> Result<Option<LeaseReply>, String> {
        let id = order.owner.id();
        let (place, uplink) = interface::locate(&format!("{}{}", self.host_prefix, order.netns), &order.owner.ifname)?;
        let until = clock::now() + Duration::from_millis(order.timeout_ms).min(self.patience);
        let mut wanted = self.former.remove(&id).map(|record| record.lease.address);
        match self.attachments.get_mut(&id) {
            Some(existing) if existing.place == place => {
                if existing.ordered.is_none()
                    && let Some(lease) = existing.current()
                {
                    return Ok(Some(LeaseReply::Lease { lease: Box::new(lease.clone()), is_new: false }));
                }
                existing.ordered = Some(until);
                self.await_lease(number, id);
                return Ok(None);
            }
            Some(existing) => {
                // The container was made anew, and its former interface had the lease.
                wanted = existing.last().map(|lease| lease.address);
                self.give_back(&id);
            }
            None => {}
        }
        let attachment = Attachment::order(order, (place, uplink), wanted, self.behaviour, until);
        self.attachments.insert(id.clone(), attachment);
        self.await_lease(number, id);
        Ok(None)
    }

    fn await_lease(&mut self, number: u64, id: String) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.waits_for = Some(id);
            connection.until = None;
        }
    }

    /// Gives the owner's lease back, or gives its order up.
    fn give_back(&mut self, id: &str) {
        if let Some(record) = self.former.remove(id) {
            let owner = record.owner.clone();
            Attachment::release_record(record, self.behaviour);
            self.forget(&owner);
        }
        let Some(mut attachment) = self.attachments.remove(id) else { return };
        attachment.release(clock::now());
        self.forget(&attachment.owner);
        let message = format!("the lease of {id} was given back meanwhile");
        self.answer_waiters(id, &LeaseReply::Failed { message });
    }

    fn check(&self, owner: &LeaseOwner, netns: &str, reported: &[IpNetwork]) -> LeaseReply {
        let Some(attachment) = self.attachments.get(&owner.id()) else {
            return LeaseReply::Drift { differences: vec![format!("the DHCP daemon has no lease of {owner}")] };
        };
        let mut differences = match attachment.differences(reported, clock::now()) {
            Ok(differences) => differences,
            Err(message) => return LeaseReply::Failed { message },
        };
        let asked = format!("{}{netns}", self.host_prefix);
        match interface::is_at(&asked, &attachment.place) {
            Ok(true) => {}
            Ok(false) => differences.push(format!("the lease is that of another network namespace than {asked}")),
            Err(message) => return LeaseReply::Failed { message },
        }
        if differences.is_empty() { LeaseReply::Done } else { LeaseReply::Drift { differences } }
    }

    fn collect_garbage(&mut self, network: &str, valid: &[(String, String)]) {
        let owners = self.attachments.values().map(|one| &one.owner);
        let owners = owners.chain(self.former.values().map(|record| &record.owner));
        let stale: Vec<String> = owners.filter(|owner| owner.is_garbage(network, valid)).map(LeaseOwner::id).collect();
        for id in stale {
            self.give_back(&id);
        }
    }
}

/// What reading brought.
enum Input {
    More,
    Line(Vec<u8>),
    Ended,
}

fn read_some(connection: &mut Connection) -> Input {
    let mut buffer = [0; 16_384];
    loop {
        match connection.stream.read(&mut buffer) {
            Ok(0) => return Input::Ended,
            // One request a connection: whatever comes while it waits is not read as one.
            Ok(_) if connection.waits_for.is_some() || connection.until.is_none() => {}
            Ok(length) => {
                connection.input.extend(&buffer[..length]);
                if let Some(end) = connection.input.iter().position(|byte| *byte == b'\n') {
                    connection.input.truncate(end);
                    return Input::Line(std::mem::take(&mut connection.input));
                }
                if connection.input.len() > LONGEST {
                    return Input::Ended;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Input::More,
            Err(_) => return Input::Ended,
        }
    }
}

/// Writes what is possible now. Returns whether nothing is left, or nobody reads it.
fn write_some(connection: &mut Connection) -> bool {
    while !connection.output.is_empty() {
        match connection.stream.write(&connection.output) {
            Ok(0) => return true,
            Ok(length) => drop(connection.output.drain(..length)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
    true
}
