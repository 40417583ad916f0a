//! The client for IPv6: a state machine (RFC 8415, section 18.2) that gets time and messages and answers with messages, a deadline
//! and events.

use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use cnikit_netlink::Mac;
use dhcproto::v6::MessageType;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::lease::{Lease6, Lease6Address, Lease6Loss};
use super::message::{MAX_ADDRESSES, Reply6, Reply6Kind, Request6, ServerStatus};
use super::neighbor;
use super::raw_options::number;
use super::timing::{self, Repetition};
use crate::ProbeTiming;
use crate::exchange::{Exchange, UNCONFIRMED, write_unanswered};
use crate::probing::{Watch, WatchStep};
use crate::v4::rate::RateLimit;
use crate::v4::timing::jittered;

/// The type of a DUID that is a UUID.
const DUID_UUID: [u8; 2] = [0, 4];
/// The numbers of exchanges have 24 bits.
const XID: u32 = 0x00ff_ffff;
/// Where a message has it, behind its type.
const NUMBER: std::ops::Range<usize> = 1..4;
/// The statuses that end a lease: `NoBinding`, `NotOnLink` (RFC 8415, section 21.13). Any other one may pass.
const LOST: [u16; 2] = [3, 4];
/// The shortest time until a renewal, whatever a server says.
const LEAST_RENEWAL: Duration = Duration::from_secs(1);
/// The wait after a server has refused, before the client begins again.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client6Settings {
    /// Its DUID (RFC 8415, section 11), which has to be the same after a restart.
    pub duid: Vec<u8>,
    /// The number of the association of this link, unique among those with this DUID.
    pub iaid: u32,
}

impl Client6Settings {
    /// The client of this name: the same name is the same client after a restart, and on another interface too. Its DUID has the
    /// form of a UUID (RFC 6355).
    pub fn of(name: &str) -> Client6Settings {
        let digest = Sha256::digest(name);
        let duid = [&DUID_UUID[..], &digest[..16]].concat();
        Client6Settings { duid, iaid: number(&digest[16..]) }
    }
}

/// Something that the caller acts upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client6Event {
    /// There is a lease, and no other host has answered for its addresses. If one does so in the next seconds, the lease is lost.
    Bound(Lease6),
    /// The lease was renewed; its addresses and lifetimes may have changed.
    Renewed(Lease6),
    /// The lease has ended: its addresses must not be used any more. The client goes on to get another one.
    Lost {
        /// The former lease.
        lease: Lease6,
        /// Why.
        reason: Lease6Loss,
    },
    /// Another host uses an address that a server assigned. It was declined, and the client goes on.
    Declined {
        /// The address.
        address: Ipv6Addr,
        /// The hardware address of the other host.
        by: Mac,
    },
    /// The server has confirmed the release, or does not answer.
    Released,
}

/// What keeps a client from having a lease, or from renewing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client6Hindrance {
    /// A message got no answer that could be used.
    Unanswered {
        /// The message, as `SOLICIT`.
        message: &'static str,
        /// How often it was sent.
        sent: u32,
        /// The time since it was sent first.
        waited: Duration,
    },
    /// A server refused.
    Refused(ServerStatus),
    /// Another host uses an address that the server assigned. It was declined.
    InUse {
        /// The address.
        address: Ipv6Addr,
        /// The hardware address of that host.
        by: Mac,
    },
    /// The client was restarted, and has not asked yet.
    Unconfirmed,
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit6 {
    /// The payload of a datagram, from the link-local address to port 547 of [`ALL_SERVERS`].
    Message(Vec<u8>),
    /// An IPv6 packet, in a frame to this hardware address.
    Packet {
        /// Where the frame is sent to.
        to: Mac,
        /// The packet with its header.
        packet: Vec<u8>,
    },
    /// An unsolicited neighbour advertisement of this address: [`advertisement_packet`](super::advertisement_packet) makes it.
    Advertisement(Ipv6Addr),
}

impl fmt::Display for Client6Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client6Hindrance::Unanswered { message, sent, waited } => write_unanswered(f, message, *sent, *waited),
            Client6Hindrance::Refused(status) => write!(f, "the server refused: {}", status.text),
            Client6Hindrance::InUse { address, by } => {
                write!(f, "{by} already uses {address}, which the server assigned; it was declined (DECLINE)")
            }
            Client6Hindrance::Unconfirmed => f.write_str(UNCONFIRMED),
        }
    }
}

#[derive(Debug)]
enum State {
    /// Not started, or released.
    Idle,
    /// Until the deadline, after a refusal.
    Waiting,
    /// There is the lease of before a restart, unless it has ended, and nothing was sent yet.
    Restored { lease: Option<Lease6> },
    /// Servers are looked for.
    Soliciting,
    /// An offer is requested.
    Requesting { server: Vec<u8>, addresses: Vec<Ipv6Addr> },
    /// Duplicates of the addresses of a new lease are detected.
    Probing { lease: Lease6, sent: u32 },
    /// There is a lease.
    Bound { lease: Lease6 },
    /// The server is asked to renew it.
    Renewing { lease: Lease6 },
    /// Any server is asked to renew it.
    Rebinding { lease: Lease6 },
    /// The lease is given back.
    Releasing { lease: Lease6 },
    /// An address that another host uses is given back.
    Declining { lease: Lease6, address: Ipv6Addr },
}

/// A client for one link. It does no I/O; the caller
///
/// - calls [`Client6::start`], [`Client6::reboot`] or [`Client6::restore`] once,
/// - passes it the datagrams for port 546, and calls [`Client6::advance`] at its [`Client6::deadline`],
/// - passes it the packets of neighbour discovery about the addresses of [`Client6::probed`],
/// - after each of these calls sends what [`Client6::transmit`] returns, and acts on each [`Client6::event`].
///
/// `now` is the time on any clock that does not go backwards and runs while the machine sleeps (`CLOCK_BOOTTIME`). The first server
/// that answers is taken, as with IPv4: no container waits for a better one.
pub struct Client6 {
    settings: Client6Settings,
    random: Box<dyn FnMut() -> u32 + Send>,
    state: State,
    exchange: Exchange,
    deadline: Option<Duration>,
    setback: Option<Client6Hindrance>,
    /// Addresses declined in a row.
    declines: u32,
    /// While there is a lease: the probes for its addresses that follow, and the address and the other host that were found.
    watch: Option<Watch<(Ipv6Addr, Mac)>>,
    rate: RateLimit,
    outbox: VecDeque<Transmit6>,
    events: VecDeque<Client6Event>,
}

/// The multicast address of all servers and relays on a link (RFC 8415, section 7.1).
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

impl Client6 {
    /// A client that has not started. `random` returns numbers that no other host can predict.
    pub fn new(settings: Client6Settings, random: impl FnMut() -> u32 + Send + 'static) -> Self {
        Self {
            settings,
            random: Box::new(random),
            state: State::Idle,
            exchange: Exchange::default(),
            deadline: None,
            setback: None,
            declines: 0,
            watch: None,
            rate: RateLimit::default(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Asks for a lease.
    pub fn start(&mut self, now: Duration) {
        self.begin(now, State::Soliciting);
    }

    /// Goes on with the lease that the client had before it was restarted, and renews it: [`Client6::restore`] and
    /// [`Client6::confirm`].
    pub fn reboot(&mut self, now: Duration, lease: Lease6) {
        self.restore(now, lease);
        self.confirm(now);
    }

    /// Has the lease that the client had before it was restarted, and sends nothing before [`Client6::confirm`]: the clients of one
    /// caller need not all ask at once.
    pub fn restore(&mut self, now: Duration, lease: Lease6) {
        self.deadline = lease.expires_at();
        self.state = State::Restored { lease: Some(lease) };
        self.advance(now);
    }

    /// Renews the restored lease, or asks for one if it has ended. Otherwise it does nothing.
    pub fn confirm(&mut self, now: Duration) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Restored { lease: None } => self.start(now),
            State::Restored { lease: Some(lease) } if lease.has_expired(now) => {
                self.lose(now, lease, Lease6Loss::Expired);
            }
            State::Restored { lease: Some(lease) } if lease.rebinding_at().is_some_and(|time| time <= now) => {
                self.begin(now, State::Rebinding { lease });
            }
            State::Restored { lease: Some(lease) } => self.begin(now, State::Renewing { lease }),
            same => self.state = same,
        }
    }

    /// Whether a server is asked to renew the lease.
    pub fn is_renewing(&self) -> bool {
        matches!(self.state, State::Renewing { .. } | State::Rebinding { .. })
    }

    /// Gives the lease back (RELEASE). The caller keeps the link until [`Client6Event::Released`]. Returns whether there is a
    /// message to send.
    pub fn release(&mut self, now: Duration) -> bool {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Restored { lease: Some(lease) }
            | State::Probing { lease, .. }
            | State::Bound { lease }
            | State::Renewing { lease }
            | State::Rebinding { lease } => {
                self.outbox.clear();
                self.watch = None;
                self.begin(now, State::Releasing { lease });
                true
            }
            _ => {
                self.stop();
                false
            }
        }
    }

    /// Handles the payload of a datagram. What is not an answer to the message that was sent last is ignored, and so is everything
    /// if there is too much of it.
    pub fn receive(&mut self, now: Duration, payload: &[u8]) {
        if payload.get(NUMBER) != Some(&self.exchange.xid.to_be_bytes()[1..]) {
            self.rate.note_foreign(now);
            return;
        }
        if self.rate.admit(now)
            && let Some(reply) = Reply6::parse(payload, self.settings.iaid)
            && reply.client == self.settings.duid
        {
            self.answered(now, reply);
        }
    }

    /// The number of the message that was sent last: answers have it too.
    pub fn xid(&self) -> u32 {
        self.exchange.xid
    }

    /// Handles an IPv6 packet of neighbour discovery that the link received from this hardware address of another host.
    pub fn receive_neighbor(&mut self, now: Duration, from: Mac, packet: &[u8]) {
        if !self.rate.admit(now) || from.is_multicast() {
            return;
        }
        let Some(lease) = self.probed() else { return };
        let Some(address) = neighbor::conflict(packet, lease.addresses.iter().map(|one| one.address)) else { return };
        if let Some(watch) = &mut self.watch {
            watch.note(now, (address, from));
        } else if let State::Probing { lease, .. } = std::mem::replace(&mut self.state, State::Idle) {
            self.decline(now, lease, address, from);
        }
    }

    /// Does what is due. It does nothing before the deadline.
    pub fn advance(&mut self, now: Duration) {
        if self.watch.as_ref().is_some_and(|watch| watch.due <= now) {
            self.step_watch(now);
        }
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => self.deadline = None,
            State::Waiting => self.start(now),
            // Its addresses must not be used any more; others are asked for when the caller says so.
            State::Restored { lease: Some(lease) } => {
                self.events.push_back(Client6Event::Lost { lease, reason: Lease6Loss::Expired });
                self.deadline = None;
                self.state = State::Restored { lease: None };
            }
            State::Bound { lease } | State::Renewing { lease } | State::Rebinding { lease }
                if lease.has_expired(now) =>
            {
                self.lose(now, lease, Lease6Loss::Expired);
            }
            State::Bound { lease } | State::Renewing { lease }
                if lease.rebinding_at().is_some_and(|time| time <= now) =>
            {
                self.begin(now, State::Rebinding { lease });
            }
            State::Bound { lease } => self.begin(now, State::Renewing { lease }),
            same => {
                self.state = same;
                self.attempt(now);
            }
        }
    }

    /// When [`Client6::advance`] has to be called next; `None` if only a message can change anything.
    pub fn deadline(&self) -> Option<Duration> {
        let watch = self.watch.as_ref().map(|watch| watch.due);
        self.deadline.into_iter().chain(watch).min()
    }

    /// Until when messages are ignored because too many came; `None` if they are handled.
    pub fn closed_until(&self, now: Duration) -> Option<Duration> {
        self.rate.closed_until(now)
    }

    /// What is to be sent next.
    pub fn transmit(&mut self) -> Option<Transmit6> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Client6Event> {
        self.events.pop_front()
    }

    /// Whether answers are awaited. Otherwise the caller needs no socket.
    pub fn is_listening(&self) -> bool {
        match self.state {
            State::Idle | State::Waiting | State::Restored { .. } | State::Probing { .. } | State::Bound { .. } => {
                false
            }
            State::Soliciting
            | State::Requesting { .. }
            | State::Renewing { .. }
            | State::Rebinding { .. }
            | State::Releasing { .. }
            | State::Declining { .. } => true,
        }
    }

    /// The lease whose addresses are probed for. While there is one, the caller needs a socket for neighbour discovery.
    pub fn probed(&self) -> Option<&Lease6> {
        match &self.state {
            State::Probing { lease, .. } => Some(lease),
            _ if self.watch.is_some() => self.lease(),
            _ => None,
        }
    }

    /// The lease whose addresses are in use.
    pub fn lease(&self) -> Option<&Lease6> {
        match &self.state {
            State::Restored { lease } => lease.as_ref(),
            State::Bound { lease } | State::Renewing { lease } | State::Rebinding { lease } => Some(lease),
            _ => None,
        }
    }

    /// What keeps the client from having a lease or from renewing it; `None` if nothing does.
    pub fn hindrance(&self, now: Duration) -> Option<Client6Hindrance> {
        let message = match self.state {
            State::Idle | State::Bound { .. } => return None,
            State::Restored { .. } => return Some(Client6Hindrance::Unconfirmed),
            State::Waiting | State::Probing { .. } => return self.setback.clone(),
            State::Soliciting => "SOLICIT",
            State::Requesting { .. } => "REQUEST",
            State::Renewing { .. } => "RENEW",
            State::Rebinding { .. } => "REBIND",
            State::Releasing { .. } => "RELEASE",
            State::Declining { .. } => "DECLINE",
        };
        let Exchange { began, sent, .. } = self.exchange;
        if sent == 1 && self.setback.is_some() {
            return self.setback.clone();
        }
        Some(Client6Hindrance::Unanswered { message, sent, waited: now.saturating_sub(began) })
    }

    // ------------------------------------------------------------------------------------------------------- messages

    /// Enters the state and sends its message.
    fn begin(&mut self, now: Duration, state: State) {
        self.exchange = Exchange { xid: (self.random)() & XID, began: now, sent: 0 };
        self.state = state;
        self.attempt(now);
    }

    /// Sends the message of the state, for the first time or again, or gives it up.
    fn attempt(&mut self, now: Duration) {
        let (kind, repetition) = match &self.state {
            State::Idle | State::Waiting | State::Restored { .. } | State::Bound { .. } => return,
            State::Probing { .. } => return self.probe(now),
            State::Soliciting => (MessageType::Solicit, timing::SOLICIT),
            State::Requesting { .. } => (MessageType::Request, timing::REQUEST),
            State::Renewing { .. } => (MessageType::Renew, timing::RENEW),
            State::Rebinding { .. } => (MessageType::Rebind, timing::REBIND),
            State::Releasing { .. } => (MessageType::Release, timing::RELEASE),
            State::Declining { .. } => (MessageType::Decline, timing::DECLINE),
        };
        if repetition.most > 0 && self.exchange.sent >= repetition.most {
            self.give_up(now);
            return;
        }
        self.exchange.sent += 1;
        let payload = self.encode(now, kind);
        self.outbox.push_back(Transmit6::Message(payload));
        self.deadline = Some(self.next_attempt(now, repetition));
    }

    /// When the message is repeated, or the state of the lease changes, whichever is first.
    fn next_attempt(&mut self, now: Duration, repetition: Repetition) -> Duration {
        let chance = (self.random)();
        let next = now.saturating_add(repetition.wait(self.exchange.sent, chance));
        let end = match &self.state {
            State::Renewing { lease } => lease.rebinding_at(),
            State::Rebinding { lease } => lease.expires_at(),
            _ => None,
        };
        end.map_or(next, |end| next.min(end))
    }

    fn encode(&self, now: Duration, kind: MessageType) -> Vec<u8> {
        let mut addresses = Vec::new();
        let mut server = None;
        match &self.state {
            State::Requesting { server: chosen, addresses: offered } => {
                addresses.clone_from(offered);
                server = Some(chosen.as_slice());
            }
            State::Rebinding { lease } => addresses = addresses_of(lease),
            State::Renewing { lease } | State::Releasing { lease } => {
                addresses = addresses_of(lease);
                server = Some(lease.server.as_slice());
            }
            State::Declining { lease, address } => {
                addresses.push(*address);
                server = Some(lease.server.as_slice());
            }
            State::Idle
            | State::Waiting
            | State::Restored { .. }
            | State::Soliciting
            | State::Probing { .. }
            | State::Bound { .. } => {}
        }
        let request = Request6 {
            kind,
            xid: self.exchange.xid,
            elapsed: now.saturating_sub(self.exchange.began),
            duid: &self.settings.duid,
            iaid: self.settings.iaid,
            server,
            addresses: &addresses,
        };
        request.encode()
    }

    /// After the last repetition of a message.
    fn give_up(&mut self, now: Duration) {
        let hindrance = self.hindrance(now);
        match self.state {
            State::Releasing { .. } => self.released(),
            State::Declining { .. } => self.declined(now),
            _ => {
                self.setback = hindrance;
                self.start(now);
            }
        }
    }

    // -------------------------------------------------------------------------------------------------------- replies

    /// Handles a message of a server with the number of the current exchange.
    fn answered(&mut self, now: Duration, reply: Reply6) {
        match (std::mem::replace(&mut self.state, State::Idle), reply.kind) {
            (State::Soliciting, Reply6Kind::Advertise) => self.advertised(now, reply),
            (State::Soliciting, Reply6Kind::Reply) if reply.rapid => self.assigned(now, reply),
            (State::Requesting { server, .. }, Reply6Kind::Reply) if server == reply.server => {
                self.assigned(now, reply);
            }
            (State::Renewing { lease }, Reply6Kind::Reply) if lease.server == reply.server => {
                self.state = State::Renewing { lease: lease.clone() };
                self.renewed(now, lease, reply);
            }
            (State::Rebinding { lease }, Reply6Kind::Reply) => {
                self.state = State::Rebinding { lease: lease.clone() };
                self.renewed(now, lease, reply);
            }
            (State::Releasing { lease }, Reply6Kind::Reply) if lease.server == reply.server => self.released(),
            (State::Declining { lease, .. }, Reply6Kind::Reply) if lease.server == reply.server => self.declined(now),
            (same, _) => self.state = same,
        }
    }

    fn advertised(&mut self, now: Duration, reply: Reply6) {
        if reply.addresses.is_empty() || reply.status.is_some() {
            self.setback = reply.status.map(Client6Hindrance::Refused);
            self.state = State::Soliciting; // another server may have addresses
            return;
        }
        let addresses = reply.addresses.iter().map(|one| one.address).collect();
        self.begin(now, State::Requesting { server: reply.server, addresses });
    }

    /// A server has assigned addresses, or refused to.
    fn assigned(&mut self, now: Duration, reply: Reply6) {
        if reply.addresses.is_empty() {
            self.refused(now, reply.status);
            return;
        }
        let lease = self.leased(reply);
        self.state = State::Probing { lease, sent: 0 };
        self.probe(now);
    }

    /// A server has renewed the lease, does not know it, or cannot renew it now (RFC 8415, section 18.2.10.1).
    fn renewed(&mut self, now: Duration, lease: Lease6, reply: Reply6) {
        let former = addresses_of(&lease);
        let is_ended = former.iter().all(|address| reply.ended.contains(address));
        if reply.addresses.is_empty() {
            let status = reply.status.clone().unwrap_or_else(no_addresses);
            self.setback = Some(Client6Hindrance::Refused(status.clone()));
            if is_ended || LOST.contains(&status.code) {
                self.lose(now, lease, Lease6Loss::Refused { status: status.text });
            }
            // Otherwise the addresses are used until they end, and the message is repeated.
            return;
        }
        let kept = self.kept(&lease, &reply);
        let mut lease = self.leased(reply);
        for address in kept {
            // It is asked for again before it ends, or removed by the renewal after that.
            lease.renewal = lease.renewal.min(address.valid).max(LEAST_RENEWAL);
            lease.addresses.push(address);
        }
        lease.rebinding = lease.rebinding.max(lease.renewal);
        if lease.addresses.iter().any(|one| !former.contains(&one.address)) {
            self.watch = Some(Watch::new(now, (self.random)()));
        }
        self.events.push_back(Client6Event::Renewed(lease.clone()));
        self.settle(lease);
    }

    /// The addresses of the former lease that the reply says nothing about: they keep what is left of their lifetimes, which count
    /// from the first message of this exchange now.
    fn kept(&self, former: &Lease6, reply: &Reply6) -> Vec<Lease6Address> {
        let passed = self.exchange.began.saturating_sub(former.since);
        let left = |time: Duration| if time == Duration::MAX { time } else { time.saturating_sub(passed) };
        let mut kept = Vec::new();
        for one in &former.addresses {
            let is_named = reply.addresses.iter().any(|other| other.address == one.address);
            let one = Lease6Address { preferred: left(one.preferred), valid: left(one.valid), ..*one };
            if !is_named && !reply.ended.contains(&one.address) && !one.valid.is_zero() {
                kept.push(one);
            }
        }
        kept.truncate(MAX_ADDRESSES.saturating_sub(reply.addresses.len()));
        kept
    }

    /// The lease of a reply. It counts from the first message, which the server cannot have answered earlier.
    fn leased(&self, reply: Reply6) -> Lease6 {
        let preferred = reply.addresses.iter().map(|one| one.preferred).min().unwrap_or_default();
        let valid = reply.addresses.iter().map(|one| one.valid).max().unwrap_or_default();
        // The recommended times, if the server leaves the choice to the client.
        let rebinding = chosen(reply.rebinding, part(preferred, 8)).max(LEAST_RENEWAL).min(valid);
        let renewal = chosen(reply.renewal, part(preferred, 5)).max(LEAST_RENEWAL).min(rebinding);
        Lease6 {
            server: reply.server,
            addresses: reply.addresses,
            since: self.exchange.began,
            renewal,
            rebinding,
            dns: reply.dns,
            search: reply.search,
        }
    }

    fn settle(&mut self, lease: Lease6) {
        self.setback = None;
        self.declines = 0;
        self.deadline = lease.renewal_at().or_else(|| lease.expires_at());
        self.state = State::Bound { lease };
    }

    fn refused(&mut self, now: Duration, status: Option<ServerStatus>) {
        self.setback = Some(Client6Hindrance::Refused(status.unwrap_or_else(no_addresses)));
        self.state = State::Waiting;
        self.deadline = Some(now.saturating_add(REFUSED_WAIT));
    }

    fn lose(&mut self, now: Duration, lease: Lease6, reason: Lease6Loss) {
        self.watch = None;
        self.events.push_back(Client6Event::Lost { lease, reason });
        self.start(now);
    }

    fn released(&mut self) {
        self.stop();
        self.events.push_back(Client6Event::Released);
    }

    fn stop(&mut self) {
        self.state = State::Idle;
        self.deadline = None;
        self.watch = None;
        self.outbox.clear();
    }

    // --------------------------------------------------------------------------------------------------------- probes

    /// Sends the next solicitation for the addresses of a new lease, or reports the lease: no other host answered in time.
    fn probe(&mut self, now: Duration) {
        let timing = ProbeTiming::default();
        let chance = (self.random)();
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Probing { lease, sent } if sent < timing.awaited => {
                self.solicit(&lease);
                self.deadline = Some(now + jittered(timing.interval, chance));
                self.state = State::Probing { lease, sent: sent + 1 };
            }
            State::Probing { lease, .. } => {
                self.watch = Some(Watch::new(now, chance));
                self.advertise(&lease);
                self.events.push_back(Client6Event::Bound(lease.clone()));
                self.settle(lease);
            }
            same => self.state = same,
        }
    }

    /// Sends the next solicitation for the addresses in use, or gives up the lease.
    fn step_watch(&mut self, now: Duration) {
        let chance = (self.random)();
        let Some(watch) = &mut self.watch else { return };
        let step = watch.step(now, ProbeTiming::default(), chance);
        let Some(lease) = self.lease().cloned() else { return };
        match step {
            WatchStep::Probe => {
                self.solicit(&lease);
                self.advertise(&lease);
            }
            WatchStep::Conflict((address, by)) => {
                let reason = Lease6Loss::InUse { address, by };
                self.events.push_back(Client6Event::Lost { lease: lease.clone(), reason });
                self.decline(now, lease, address, by);
            }
            WatchStep::End => self.watch = None,
        }
    }

    /// Hosts that know an address with the hardware address of its former holder correct that.
    fn advertise(&mut self, lease: &Lease6) {
        for one in &lease.addresses {
            self.outbox.push_back(Transmit6::Advertisement(one.address));
        }
    }

    fn solicit(&mut self, lease: &Lease6) {
        for one in &lease.addresses {
            let (to, packet) = neighbor::solicitation(one.address);
            self.outbox.push_back(Transmit6::Packet { to, packet });
        }
    }

    fn decline(&mut self, now: Duration, lease: Lease6, address: Ipv6Addr, by: Mac) {
        self.watch = None;
        self.declines += 1;
        self.setback = Some(Client6Hindrance::InUse { address, by });
        self.events.push_back(Client6Event::Declined { address, by });
        self.begin(now, State::Declining { lease, address });
    }

    /// The server has confirmed that an address was declined, or does not answer. It may assign the same one again, so each attempt
    /// waits for longer than the one before.
    fn declined(&mut self, now: Duration) {
        let chance = (self.random)();
        self.state = State::Waiting;
        self.deadline = Some(now.saturating_add(timing::REQUEST.wait(self.declines, chance)));
    }
}

fn addresses_of(lease: &Lease6) -> Vec<Ipv6Addr> {
    lease.addresses.iter().map(|one| one.address).collect()
}

/// The status of a reply that has neither addresses nor a status.
fn no_addresses() -> ServerStatus {
    ServerStatus { code: 2, text: "it assigned no address".to_owned() }
}

/// So many tenths of a time.
fn part(time: Duration, tenths: u32) -> Duration {
    if time == Duration::MAX { time } else { time * tenths / 10 }
}

fn chosen(named: Duration, default: Duration) -> Duration {
    if named.is_zero() { default } else { named }
}
