//! The client for IPv6: a state machine (RFC 8415, section 18.2) that gets time and messages and answers with messages, a deadline
//! and events.

use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use dhcproto::v6::MessageType;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::lease::{Lease6, Lease6Loss};
use super::message::{Reply6, Reply6Kind, Request6, ServerStatus};
use super::raw_options::number;
use super::timing::{self, Repetition};
use crate::exchange::{Exchange, write_unanswered};
use crate::v4::rate::RateLimit;

/// The type of a DUID that is a UUID.
const DUID_UUID: [u8; 2] = [0, 4];
/// The numbers of exchanges have 24 bits.
const XID: u32 = 0x00ff_ffff;
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
    /// There is a lease. The caller lets the kernel detect duplicates of its addresses, and calls [`Client6::decline`] for one.
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
}

impl fmt::Display for Client6Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client6Hindrance::Unanswered { message, sent, waited } => write_unanswered(f, message, *sent, *waited),
            Client6Hindrance::Refused(status) => write!(f, "the server refused: {}", status.text),
        }
    }
}

#[derive(Debug)]
enum State {
    /// Not started, or released.
    Idle,
    /// Until the deadline, after a refusal.
    Waiting,
    /// Servers are looked for.
    Soliciting,
    /// An offer is requested.
    Requesting { server: Vec<u8>, addresses: Vec<Ipv6Addr> },
    /// There is a lease.
    Bound { lease: Lease6 },
    /// The server is asked to renew it.
    Renewing { lease: Lease6 },
    /// Any server is asked to renew it.
    Rebinding { lease: Lease6 },
    /// The lease is given back.
    Releasing { lease: Lease6 },
    /// Addresses that another host uses are given back.
    Declining { lease: Lease6 },
}

/// A client for one link. It does no I/O; the caller
///
/// - calls [`Client6::start`] or [`Client6::reboot`] once,
/// - passes it the datagrams for port 546, and calls [`Client6::advance`] at its [`Client6::deadline`],
/// - after each of these calls sends what [`Client6::transmit`] returns from the link-local address to port 547 of
///   [`ALL_SERVERS`], and acts on each [`Client6::event`].
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
    rate: RateLimit,
    outbox: VecDeque<Vec<u8>>,
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
            rate: RateLimit::default(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Asks for a lease.
    pub fn start(&mut self, now: Duration) {
        self.begin(now, State::Soliciting);
    }

    /// Goes on with the lease that the client had before it was restarted: it is renewed at once.
    pub fn reboot(&mut self, now: Duration, lease: Lease6) {
        if lease.has_expired(now) {
            self.lose(now, lease, Lease6Loss::Expired);
        } else if lease.rebinding_at().is_some_and(|time| time <= now) {
            self.begin(now, State::Rebinding { lease });
        } else {
            self.begin(now, State::Renewing { lease });
        }
    }

    /// Gives the lease back (RELEASE). The caller keeps the link until [`Client6Event::Released`]. Returns whether there is a
    /// message to send.
    pub fn release(&mut self, now: Duration) -> bool {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Bound { lease } | State::Renewing { lease } | State::Rebinding { lease } => {
                self.outbox.clear();
                self.begin(now, State::Releasing { lease });
                true
            }
            _ => {
                self.stop();
                false
            }
        }
    }

    /// Gives back an address that another host uses (DECLINE), and asks for another one. Does nothing if the lease does not have
    /// it.
    pub fn decline(&mut self, now: Duration, address: Ipv6Addr) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Bound { lease } | State::Renewing { lease } | State::Rebinding { lease }
                if lease.addresses.iter().any(|one| one.address == address) =>
            {
                self.begin(now, State::Declining { lease });
            }
            same => self.state = same,
        }
    }

    /// Handles the payload of a datagram. What is not an answer to the message that was sent last is ignored, and so is everything
    /// if there is too much of it.
    pub fn receive(&mut self, now: Duration, payload: &[u8]) {
        if !self.rate.admit(now) {
            return;
        }
        let Some(reply) = Reply6::parse(payload, self.settings.iaid) else { return };
        if reply.xid == self.exchange.xid && reply.client == self.settings.duid {
            self.answered(now, reply);
        }
    }

    /// Does what is due. It does nothing before the deadline.
    pub fn advance(&mut self, now: Duration) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => self.deadline = None,
            State::Waiting => self.start(now),
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
        self.deadline
    }

    /// Until when messages are ignored because too many came; `None` if they are handled.
    pub fn closed_until(&self, now: Duration) -> Option<Duration> {
        self.rate.closed_until(now)
    }

    /// The next payload to send.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Client6Event> {
        self.events.pop_front()
    }

    /// Whether answers are awaited. Otherwise the caller needs no socket.
    pub fn is_listening(&self) -> bool {
        !matches!(self.state, State::Idle | State::Waiting | State::Bound { .. })
    }

    /// The lease whose addresses are in use.
    pub fn lease(&self) -> Option<&Lease6> {
        match &self.state {
            State::Bound { lease } | State::Renewing { lease } | State::Rebinding { lease } => Some(lease),
            _ => None,
        }
    }

    /// What keeps the client from having a lease or from renewing it; `None` if nothing does.
    pub fn hindrance(&self, now: Duration) -> Option<Client6Hindrance> {
        let message = match self.state {
            State::Idle | State::Bound { .. } => return None,
            State::Waiting => return self.setback.clone(),
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
            State::Idle | State::Waiting | State::Bound { .. } => return,
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
        self.outbox.push_back(payload);
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
            State::Renewing { lease } | State::Releasing { lease } | State::Declining { lease } => {
                addresses = addresses_of(lease);
                server = Some(lease.server.as_slice());
            }
            State::Idle | State::Waiting | State::Soliciting | State::Bound { .. } => {}
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
        if matches!(self.state, State::Releasing { .. }) {
            self.released();
        } else {
            self.setback = hindrance;
            self.start(now);
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
                self.renewed(now, lease, reply);
            }
            (State::Rebinding { lease }, Reply6Kind::Reply) => self.renewed(now, lease, reply),
            (State::Releasing { lease }, Reply6Kind::Reply) if lease.server == reply.server => self.released(),
            (State::Declining { lease }, Reply6Kind::Reply) if lease.server == reply.server => self.start(now),
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
        self.events.push_back(Client6Event::Bound(lease.clone()));
        self.settle(lease);
    }

    /// A server has renewed the lease, or does not know it.
    fn renewed(&mut self, now: Duration, lease: Lease6, reply: Reply6) {
        if reply.addresses.is_empty() {
            let status = reply.status.unwrap_or_else(no_addresses);
            self.setback = Some(Client6Hindrance::Refused(status.clone()));
            self.lose(now, lease, Lease6Loss::Refused { status: status.text });
            return;
        }
        let lease = self.leased(reply);
        self.events.push_back(Client6Event::Renewed(lease.clone()));
        self.settle(lease);
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
        self.deadline = lease.renewal_at().or_else(|| lease.expires_at());
        self.state = State::Bound { lease };
    }

    fn refused(&mut self, now: Duration, status: Option<ServerStatus>) {
        self.setback = Some(Client6Hindrance::Refused(status.unwrap_or_else(no_addresses)));
        self.state = State::Waiting;
        self.deadline = Some(now.saturating_add(REFUSED_WAIT));
    }

    fn lose(&mut self, now: Duration, lease: Lease6, reason: Lease6Loss) {
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
        self.outbox.clear();
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
