//! The event loop: one thread, one poll(2) for the socket, its connections and the sockets of all leases.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cnikit_process::Deadline;
use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::attachment::{Attachment, Behaviour, FormerLease};
use crate::attachment6::Attachment6;
use crate::confirmations::Confirmations;
use crate::held::HeldLease;
use crate::interface;
use crate::listener::Listener;
use crate::log::log;
use crate::protocol::{
    LONGEST, Lease6Order, LeaseFamily, LeaseOrder, LeaseOwner, LeaseReply, LeaseRequest, line, parse_request,
};
use crate::record::{LeaseRecords, Place, StoredLeases, StoredRecord};
use crate::uplink::Uplink;
use crate::{DaemonSettings, clock};

/// The connections that are served at a time; more of them wait.
const CONNECTIONS: usize = 512;
/// How long a caller may take to send its request, and to read the reply.
const TALK: Duration = Duration::from_secs(10);
/// The longest time without a look at the clock: while the machine sleeps, poll(2) does not count.
const NAP: Duration = Duration::from_mins(1);

/// How long nothing is tried after accept(2) or poll(2) has failed: usually too many descriptors are open, or memory is short.
const DEAF: Duration = Duration::from_millis(200);
/// How long orders that wait have left when another daemon takes over. It accepts no call before it has the socket.
const HANDOVER: Duration = Duration::from_secs(10);
/// How long the confirmation of a release is waited for. The link is deleted after it.
const CONFIRMATION: Duration = Duration::from_secs(2);

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
    /// The lease that it waits for.
    waits_for: Option<LeaseKey>,
}

/// An owner's lease of one family: its owner's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LeaseKey(String, LeaseFamily);

impl LeaseKey {
    fn new(owner: &LeaseOwner, family: LeaseFamily) -> LeaseKey {
        LeaseKey(owner.id(), family)
    }
}

/// A lease that is given back, until the server confirms it.
struct Release {
    held: Box<dyn HeldLease>,
    until: Duration,
    /// The connection that waits for it.
    caller: Option<u64>,
}

/// What is left to do for an order when it came.
enum Joined {
    /// The lease is there already.
    Answer(LeaseReply),
    /// It waits for the order before it.
    Waits,
    /// A new one is needed. The owner had this address in another place.
    New(Option<Ipv4Addr>),
}

/// What is waited for.
#[derive(Clone, Copy)]
enum Ready {
    Signal,
    Listener,
    Connection(u64),
    /// The lease with this place in the order of their owners.
    Lease(usize),
    /// The release with this place in the list.
    Release(usize),
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
    attachments: BTreeMap<LeaseKey, Box<dyn HeldLease>>,
    releases: Vec<Release>,
    confirmations: Confirmations<LeaseKey>,
    /// Leases of an earlier boot, until their containers come back or are deleted.
    former: BTreeMap<LeaseKey, StoredRecord>,
    /// Until when no connection is accepted.
    deaf_until: Duration,
    connections: BTreeMap<u64, Connection>,
    /// The number of the next connection.
    next: u64,
    /// The connection of the daemon that takes over, and until when it waits for the orders that are served.
    successor: Option<(u64, Duration)>,
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
            releases: Vec::new(),
            confirmations: Confirmations::new(Duration::ZERO, Vec::new(), 0.0),
            deaf_until: Duration::ZERO,
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
            if record.place().boot != boot && !is_released {
                let kept = "its lease is of an earlier boot: its container gets the address again, if it comes back";
                log(record.owner(), kept);
                self.former.insert(LeaseKey::new(record.owner(), record.family()), record);
            } else {
                self.resume(record, is_released);
            }
        }
        let now = clock::now();
        let mut keys: Vec<LeaseKey> = self.attachments.keys().cloned().collect();
        // Those that end first, first; their deadlines are their ends.
        keys.sort_by_key(|key| self.attachments[key].deadline(now).unwrap_or(Duration::MAX));
        self.confirmations = Confirmations::new(now, keys, chance());
        Ok(())
    }

    /// Asks about the next lease of before the restart, if its turn has come.
    fn confirm_next(&mut self, now: Duration) {
        let attachments = &self.attachments;
        let is_unanswered = |key: &LeaseKey| attachments.get(key).is_some_and(|held| held.is_confirming());
        if let Some(key) = self.confirmations.next(now, is_unanswered, chance())
            && let Some(held) = self.attachments.get_mut(&key)
        {
            held.confirm(now);
        }
    }

    fn resume(&mut self, mut record: StoredRecord, is_released: bool) {
        let owner = record.owner().clone();
        let key = LeaseKey::new(&owner, record.family());
        let found = match interface::reopen(record.place()) {
            Ok(Some(netns)) => interface::find_address(&netns, &mut record).map(Some),
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        let has_address = match found {
            Ok(Some(Some(has_address))) => has_address,
            Ok(None | Some(None)) => {
                self.release_record(record);
                return;
            }
            Err(why) => {
                // It may be in use: it is kept until it ends.
                log(&owner, format!("its interface cannot be looked at: {why}"));
                true
            }
        };
        let held: Box<dyn HeldLease> = match record {
            StoredRecord::V4(record) => Box::new(Attachment::resume(record, has_address, self.behaviour)),
            StoredRecord::V6(record) => Box::new(Attachment6::resume(record)),
        };
        if is_released {
            log(&owner, "its DEL came while no daemon ran: the lease is given back now");
            self.release(held, None);
            self.forget(&owner, key.1);
        } else {
            self.attachments.insert(key, held);
        }
    }

    /// Gives back a lease of the disk whose interface is gone.
    fn release_record(&self, record: StoredRecord) {
        let (owner, family) = (record.owner().clone(), record.family());
        match record {
            StoredRecord::V4(record) => Attachment::release_record(record, self.behaviour),
            StoredRecord::V6(record) => Attachment6::release_record(record),
        }
        self.forget(&owner, family);
    }

    /// Gives the lease back. Returns whether the caller has to wait for the server's confirmation.
    fn release(&mut self, mut held: Box<dyn HeldLease>, caller: Option<u64>) -> bool {
        let now = clock::now();
        let is_awaited = held.release(now);
        if is_awaited {
            self.releases.push(Release { held, until: now + CONFIRMATION, caller });
        }
        is_awaited
    }

    /// Serves until a signal comes or another daemon takes over. No lease is given back: the next daemon goes on with them.
    pub(crate) fn serve(mut self) -> Result<DaemonEnd, String> {
        loop {
            let now = clock::now();
            self.confirm_next(now);
            self.step_all(now);
            self.step_releases(now);
            self.drop_late(now);
            self.end_orders(now);
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
                    Ready::Release(place) => {
                        if let Some(release) = self.releases.get_mut(place) {
                            release.held.receive(clock::now());
                        }
                    }
                }
            }
        }
    }

    /// Gives up the orders that still wait when another daemon has waited for them long enough.
    fn end_orders(&mut self, now: Duration) {
        if self.successor.is_none_or(|(_, until)| until > now) {
            return;
        }
        let keys: BTreeSet<LeaseKey> = self.connections.values().filter_map(|one| one.waits_for.clone()).collect();
        for key in keys {
            let message = "the DHCP daemon is being replaced, try again".to_owned();
            self.answer_waiters(&key, &LeaseReply::Failed { message });
            if self.attachments.get(&key).is_some_and(|attachment| attachment.ordered().is_some()) {
                self.give_back(&key, None);
            }
        }
    }

    /// Passes the socket on, once every other caller has its reply. Those that connect meanwhile wait for the next daemon.
    fn hand_over(&mut self) -> Option<Result<DaemonEnd, String>> {
        let (successor, _) = self.successor?;
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
        if self.connections.len() < CONNECTIONS && self.successor.is_none() && self.deaf_until <= now {
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
        for (place, release) in self.releases.iter().enumerate() {
            for socket in release.held.sockets(now) {
                add(Ready::Release(place), socket, PollFlags::POLLIN);
            }
        }
        let left = self.next_deadline(now).saturating_sub(now).min(NAP);
        let timeout = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        match poll(&mut descriptors, PollTimeout::from(timeout)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ENOMEM) => {
                // It may pass, and a daemon that has ended renews no lease.
                log("daemon", "poll: the kernel is short of memory; trying again");
                Deadline::after(DEAF).pause(DEAF);
            }
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
        for release in &self.releases {
            next = next.min(release.held.deadline(now).map_or(release.until, |time| time.min(release.until)));
        }
        for connection in self.connections.values() {
            if let Some(until) = connection.until {
                next = next.min(until);
            }
        }
        if let Some((_, until)) = self.successor
            && until > now
        {
            next = next.min(until);
        }
        if let Some(due) = self.confirmations.deadline() {
            next = next.min(due);
        }
        if self.deaf_until > now { next.min(self.deaf_until) } else { next }
    }

    fn step_all(&mut self, now: Duration) {
        let mut replies = Vec::new();
        for (key, attachment) in &mut self.attachments {
            let step = attachment.step(now, &self.records);
            if step.reply.is_some() || step.is_over {
                replies.push((key.clone(), attachment.owner().clone(), step));
            }
        }
        for (key, owner, step) in replies {
            if let Some(reply) = &step.reply {
                self.answer_waiters(&key, reply);
            }
            if step.is_over {
                self.attachments.remove(&key);
                self.forget(&owner, key.1);
            }
        }
    }

    /// Goes on with what is given back. Who waits for it is answered, whether the server has confirmed it or not.
    fn step_releases(&mut self, now: Duration) {
        let mut place = 0;
        while let Some(release) = self.releases.get_mut(place) {
            let step = release.held.step(now, &self.records);
            if !step.is_over && release.until > now {
                place += 1;
                continue;
            }
            let release = self.releases.swap_remove(place);
            if !step.is_over {
                log(release.held.owner(), "no server has confirmed that the lease of IPv6 is given back");
            }
            if let Some(caller) = release.caller {
                self.answer(caller, &LeaseReply::Done);
            }
        }
    }

    /// Removes the record of a lease that was given back or has no owner.
    fn forget(&self, owner: &LeaseOwner, family: LeaseFamily) {
        if let Err(error) = self.records.remove(owner, family) {
            log(owner, format!("its record is not removed: {error}"));
        }
    }

    // ------------------------------------------------------------------------------------------------------ connections

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS {
            let stream = match self.listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    // It stays ready: without a pause the loop would run all the time.
                    log("socket", format!("no connection is accepted for a moment: {error}"));
                    self.deaf_until = clock::now() + DEAF;
                    return;
                }
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

    /// The caller is gone. An order that no other caller waits for is given up: its lease would have no owner.
    fn abandon(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        let Some(key) = connection.waits_for else { return };
        let is_awaited = self.connections.values().any(|other| other.waits_for.as_ref() == Some(&key));
        let is_ordered = self.attachments.get(&key).is_some_and(|attachment| attachment.ordered().is_some());
        if is_ordered && !is_awaited {
            self.give_back(&key, None);
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

    fn answer_waiters(&mut self, key: &LeaseKey, reply: &LeaseReply) {
        let is_waiter = |(number, one): (&u64, &Connection)| (one.waits_for.as_ref() == Some(key)).then_some(*number);
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
            LeaseRequest::Add6(order) => match self.add6(number, order) {
                Ok(Some(reply)) => reply,
                Ok(None) => return,
                Err(message) => LeaseReply::Failed { message },
            },
            LeaseRequest::Del { owner } => match self.delete(number, &owner) {
                Some(reply) => reply,
                None => return,
            },
            LeaseRequest::Check { owner, netns, reported, families } => {
                self.check(&owner, &netns, reported.as_deref(), &families)
            }
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
                self.successor = Some((number, clock::now() + HANDOVER));
                return;
            }
        };
        self.answer(number, &reply);
    }

    /// The reply, or `None` if the caller has to wait for it.
    fn add(&mut self, number: u64, order: LeaseOrder) -> Result<Option<LeaseReply>, String> {
        let key = LeaseKey::new(&order.owner, LeaseFamily::V4);
        let (place, uplink) = self.locate(&order.netns, &order.owner)?;
        let until = self.until(order.timeout_ms);
        let mut former = match self.former.remove(&key) {
            Some(StoredRecord::V4(record)) => Some(FormerLease::Held(Box::new(record.lease))),
            _ => None,
        };
        match self.join(number, &key, &place, until) {
            Joined::Answer(reply) => return Ok(Some(reply)),
            Joined::Waits => return Ok(None),
            Joined::New(Some(address)) => former = Some(FormerLease::Released(address)),
            Joined::New(None) => {}
        }
        let attachment = Attachment::order(order, (place, uplink), former, self.behaviour, until);
        self.attachments.insert(key.clone(), Box::new(attachment));
        self.await_lease(number, key);
        Ok(None)
    }

    /// The same for IPv6. A server knows its client by its DUID and gives it the same addresses again.
    fn add6(&mut self, number: u64, order: Lease6Order) -> Result<Option<LeaseReply>, String> {
        let key = LeaseKey::new(&order.owner, LeaseFamily::V6);
        let (place, uplink) = self.locate(&order.netns, &order.owner)?;
        let until = self.until(order.timeout_ms);
        self.former.remove(&key);
        match self.join(number, &key, &place, until) {
            Joined::Answer(reply) => return Ok(Some(reply)),
            Joined::Waits => return Ok(None),
            Joined::New(_) => {}
        }
        let attachment = Attachment6::order(order, (place, uplink), until);
        self.attachments.insert(key.clone(), Box::new(attachment));
        self.await_lease(number, key);
        Ok(None)
    }

    fn locate(&self, netns: &str, owner: &LeaseOwner) -> Result<(Place, Option<Uplink>), String> {
        interface::locate(&format!("{}{netns}", self.host_prefix), &owner.ifname)
    }

    /// When an order that waits so long is given up.
    fn until(&self, timeout_ms: u64) -> Duration {
        clock::now() + Duration::from_millis(timeout_ms).min(self.patience)
    }

    /// Has an order share what there is already. A lease of a container that was made anew, whose former interface had it, is given
    /// back.
    fn join(&mut self, number: u64, key: &LeaseKey, place: &Place, until: Duration) -> Joined {
        let Some(existing) = self.attachments.get_mut(key) else { return Joined::New(None) };
        if !existing.place().is_same(place) {
            let address = existing.last_address();
            self.give_back(key, None);
            return Joined::New(address);
        }
        existing.set_path(place.netns.clone());
        if existing.ordered().is_none()
            && let Some(reply) = existing.current()
        {
            return Joined::Answer(reply);
        }
        existing.await_until(until);
        existing.confirm(clock::now());
        self.await_lease(number, key.clone());
        Joined::Waits
    }

    fn await_lease(&mut self, number: u64, key: LeaseKey) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.waits_for = Some(key);
            connection.until = None;
        }
    }

    /// Gives the owner's leases back. The reply, or `None` if the caller has to wait for it.
    fn delete(&mut self, number: u64, owner: &LeaseOwner) -> Option<LeaseReply> {
        self.give_back(&LeaseKey::new(owner, LeaseFamily::V4), None);
        let is_awaited = self.give_back(&LeaseKey::new(owner, LeaseFamily::V6), Some(number));
        for family in [LeaseFamily::V4, LeaseFamily::V6] {
            if let Err(error) = self.records.remove(owner, family) {
                return Some(LeaseReply::Failed { message: error.to_string() });
            }
        }
        if !is_awaited {
            return Some(LeaseReply::Done);
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.until = None;
        }
        None
    }

    /// Gives the lease back, or gives its order up. Returns whether `caller` has to wait for the server's confirmation.
    fn give_back(&mut self, key: &LeaseKey, caller: Option<u64>) -> bool {
        if let Some(record) = self.former.remove(key) {
            self.release_record(record);
        }
        let Some(attachment) = self.attachments.remove(key) else { return false };
        let owner = attachment.owner().clone();
        let is_awaited = self.release(attachment, caller);
        self.forget(&owner, key.1);
        let message = format!("the lease of {owner} was given back meanwhile");
        self.answer_waiters(key, &LeaseReply::Failed { message });
        is_awaited
    }

    fn check(
        &self,
        owner: &LeaseOwner,
        netns: &str,
        reported: Option<&[IpNetwork]>,
        families: &[LeaseFamily],
    ) -> LeaseReply {
        let mut differences = Vec::new();
        for family in families {
            let Some(attachment) = self.attachments.get(&LeaseKey::new(owner, *family)) else {
                differences.push(match family {
                    LeaseFamily::V4 => format!("the DHCP daemon has no lease of {owner}"),
                    LeaseFamily::V6 => format!("the DHCP daemon has no IPv6 lease of {owner}"),
                });
                continue;
            };
            match attachment.differences(reported, clock::now()) {
                Ok(found) => differences.extend(found),
                Err(message) => return LeaseReply::Failed { message },
            }
            let asked = format!("{}{netns}", self.host_prefix);
            match interface::is_at(&asked, attachment.place()) {
                Ok(true) => {}
                Ok(false) => differences.push(format!("the lease is that of another network namespace than {asked}")),
                Err(message) => return LeaseReply::Failed { message },
            }
        }
        if differences.is_empty() { LeaseReply::Done } else { LeaseReply::Drift { differences } }
    }

    fn collect_garbage(&mut self, network: &str, valid: &[(String, String)]) {
        let mut stale = Vec::new();
        for (key, attachment) in &self.attachments {
            if attachment.owner().is_garbage(network, valid) {
                stale.push(key.clone());
            }
        }
        for (key, record) in &self.former {
            if record.owner().is_garbage(network, valid) {
                stale.push(key.clone());
            }
        }
        for key in stale {
            self.give_back(&key, None);
        }
    }
}

/// A number from 0 to 1 by chance.
fn chance() -> f64 {
    f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX)
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

/// Writes what is possible now. Returns whether nothing is left, or the caller no longer reads it.
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
