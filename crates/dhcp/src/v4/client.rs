//! The client: a state machine (RFC 2131, section 4.4) that gets time and packets and answers with packets, a deadline and events.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use cnikit_netlink::Mac;
use dhcproto::v4::MessageType;
use ipnetwork::Ipv4Network;

use super::hindrance::Hindrance;
use super::lease::{Lease, LossReason};
use super::options::ClientOptions;
use super::rate::RateLimit;
use super::reply::{self, Reply, ReplyKind};
use super::request::Request;
use super::timing::{Timing, renewal_wait};
use super::{arp, frame};
use crate::exchange::Exchange;
use crate::probing::{Watch, WatchStep};

/// The hardware address of every host on the link.
const EVERYONE: Mac = Mac([0xff; 6]);

/// How often the former address is requested before the client begins again, if the link does not have that address.
const FORMER_REQUESTS: u32 = 2;

/// What a client sends, and how patient it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// The hardware address of its link.
    pub mac: Mac,
    /// Its options.
    pub options: ClientOptions,
    /// Its waiting times.
    pub timing: Timing,
    /// Whether servers are asked to broadcast their replies, for links that receive no unicast before they have an address.
    pub broadcast: bool,
}

/// A packet to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// An IPv4 packet, in a frame to this hardware address.
    Packet {
        /// Where the frame is sent to.
        to: Mac,
        /// The packet with its header.
        packet: Vec<u8>,
    },
    /// A UDP datagram that the kernel routes, from port 68 of the client's address to port 67 of the server's.
    Datagram {
        /// The client's address.
        from: Ipv4Addr,
        /// The server's address.
        to: Ipv4Addr,
        /// The payload.
        payload: Vec<u8>,
    },
    /// An ARP packet, in a frame to every host of the link.
    Arp(Vec<u8>),
}

/// Something that the caller acts upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// There is a lease, and no other host has answered for its address. If one does so in the next seconds, the lease is lost.
    Bound(Lease),
    /// The lease was renewed; its parameters may have changed, its address has not.
    Renewed(Lease),
    /// The lease has ended: its address must not be used any more. The client goes on to get another one.
    Lost {
        /// The former lease.
        lease: Lease,
        /// Why.
        reason: LossReason,
    },
    /// Another host uses the address that a server assigned. It was declined, and the client goes on.
    Declined {
        /// The address.
        address: Ipv4Addr,
        /// The hardware address of the other host.
        by: Mac,
    },
}

#[derive(Debug)]
enum State {
    /// Not started, or released.
    Idle,
    /// Until the deadline, after a setback.
    Waiting,
    /// A DHCPDISCOVER was sent, perhaps with the address that the client had before.
    Selecting { wanted: Option<Ipv4Addr> },
    /// An offer is requested.
    Requesting { server: Ipv4Addr, server_mac: Mac, address: Ipv4Addr },
    /// There is the lease of before a restart, and nothing was sent yet. `in_use`: the link has its address.
    Restored { lease: Lease, in_use: bool },
    /// The former address is requested (INIT-REBOOT). `in_use`: the link has the address.
    Rebooting { lease: Lease, in_use: bool, refusal: Option<Box<Reply>> },
    /// ARP probes are sent for the address of a new lease.
    Probing { lease: Lease, sent: u32 },
    /// There is a lease.
    Bound { lease: Lease },
    /// The server is asked to renew it.
    Renewing { lease: Lease },
    /// Any server is asked to renew it.
    Rebinding { lease: Lease },
}

/// A client for one link. It does no I/O; the caller
///
/// - calls [`Client::start`], [`Client::reboot`] or [`Client::restore`] once,
/// - passes it the packets that it receives, and calls [`Client::advance`] at its [`Client::deadline`],
/// - after each of these calls sends what [`Client::transmit`] returns, and acts on each [`Client::event`].
///
/// `now` is the time on any clock that does not go backwards and runs while the machine sleeps (`CLOCK_BOOTTIME`).
pub struct Client {
    settings: ClientSettings,
    random: Box<dyn FnMut() -> u32 + Send>,
    state: State,
    exchange: Exchange,
    deadline: Option<Duration>,
    /// When it began to ask for a lease (`secs`).
    began: Duration,
    /// Refusals in a row.
    refusals: u32,
    setback: Option<Hindrance>,
    /// While there is a lease: the probes for its address that follow, and the other host that answered one.
    watch: Option<Watch<Mac>>,
    rate: RateLimit,
    outbox: VecDeque<Transmit>,
    events: VecDeque<ClientEvent>,
}

impl Client {
    /// A client that has not started. `random` returns numbers that no other host can predict.
    pub fn new(settings: ClientSettings, random: impl FnMut() -> u32 + Send + 'static) -> Self {
        Self {
            settings,
            random: Box::new(random),
            state: State::Idle,
            exchange: Exchange::default(),
            deadline: None,
            began: Duration::ZERO,
            refusals: 0,
            setback: None,
            watch: None,
            rate: RateLimit::default(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Asks for a lease, of this address if the server has no reason against it.
    pub fn start(&mut self, now: Duration, wanted: Option<Ipv4Addr>) {
        self.began = now;
        self.begin(now, State::Selecting { wanted });
    }

    /// Asks for the lease that the client had before it was restarted (INIT-REBOOT): [`Client::restore`] and [`Client::confirm`].
    pub fn reboot(&mut self, now: Duration, lease: Lease, in_use: bool) {
        self.restore(now, lease, in_use);
        self.confirm(now);
    }

    /// Has the lease that the client had before it was restarted, and sends nothing before [`Client::confirm`]: the clients of one
    /// caller need not all ask at once. `in_use`: the link has its address now, so it is not probed for, and the lease is used
    /// until it ends if no server answers.
    pub fn restore(&mut self, now: Duration, lease: Lease, in_use: bool) {
        self.deadline = if in_use { lease.expires_at() } else { None };
        self.state = State::Restored { lease, in_use };
        self.advance(now);
    }

    /// Asks whether the restored lease is valid still (INIT-REBOOT), or for its address if it has ended. Otherwise it does nothing.
    pub fn confirm(&mut self, now: Duration) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Restored { lease, in_use: true } if lease.has_expired(now) => {
                self.lose(now, lease, LossReason::Expired);
            }
            State::Restored { lease, .. } if lease.has_expired(now) => self.start(now, Some(lease.address)),
            State::Restored { lease, in_use } => {
                self.began = now;
                self.begin(now, State::Rebooting { lease, in_use, refusal: None });
            }
            same => self.state = same,
        }
    }

    /// Whether the server is asked about the lease of before a restart.
    pub fn is_confirming(&self) -> bool {
        matches!(self.state, State::Rebooting { .. })
    }

    /// Gives the lease back (DHCPRELEASE), if there is one, and stops. Returns whether there is a packet to send.
    ///
    /// No server answers, so nothing is sent again; but a server on the link gets it in a second frame too, which is for everyone:
    /// its hardware address may have changed, as that of a bridge does with its ports.
    pub fn release(&mut self, now: Duration) -> bool {
        let (server, server_mac, address, prefix) = match std::mem::replace(&mut self.state, State::Idle) {
            State::Restored { lease, .. } if lease.has_expired(now) => {
                self.stop();
                return false;
            }
            State::Requesting { server, server_mac, address } => (server, server_mac, address, None),
            State::Restored { lease, .. }
            | State::Rebooting { lease, .. }
            | State::Probing { lease, .. }
            | State::Bound { lease }
            | State::Renewing { lease }
            | State::Rebinding { lease } => (lease.server, lease.server_mac, lease.address, lease.parameters.prefix),
            State::Idle | State::Waiting | State::Selecting { .. } => {
                self.stop();
                return false;
            }
        };
        self.stop();
        self.exchange = self.new_exchange(now);
        let request = Request { own: Some(address), server: Some(server), ..self.request(now, MessageType::Release) };
        let payload = self.encode(&request);
        let packet = frame::packet(address, server, &payload);
        self.outbox.push_back(Transmit::Packet { to: server_mac, packet: packet.clone() });
        let subnet = prefix.and_then(|prefix| Ipv4Network::new(address, prefix).ok());
        if subnet.is_some_and(|subnet| subnet.contains(server)) {
            self.outbox.push_back(Transmit::Packet { to: EVERYONE, packet });
        }
        true
    }

    /// Handles an IPv4 packet that the link received from this hardware address. What is not a reply to the request that was sent
    /// last is ignored, and so is everything if there is too much of it.
    pub fn receive(&mut self, now: Duration, from: Mac, packet: &[u8]) {
        let payload = frame::payload(packet)
            .filter(|payload| !from.is_multicast() && reply::is_for(payload, self.exchange.xid, self.settings.mac));
        let Some(payload) = payload else {
            self.rate.note_foreign(now);
            return;
        };
        if self.rate.admit(now)
            && let Some(reply) = Reply::parse(payload)
        {
            self.answered(now, from, reply);
        }
    }

    /// The number of the request that was sent last: replies have it too.
    pub fn xid(&self) -> u32 {
        self.exchange.xid
    }

    /// The hardware address of the link was changed. Requests and probes have the new one from now on.
    pub fn set_mac(&mut self, mac: Mac) {
        self.settings.mac = mac;
    }

    /// Handles an ARP packet that the link received.
    pub fn receive_arp(&mut self, now: Duration, packet: &[u8]) {
        if !self.rate.admit(now) {
            return;
        }
        let Some(address) = self.probed() else { return };
        let Some(by) = arp::conflict(packet, self.settings.mac, address) else { return };
        if let Some(watch) = &mut self.watch {
            watch.note(now, by);
        } else if let State::Probing { lease, .. } = &self.state {
            let server = lease.server;
            self.decline(now, address, server, by);
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
            State::Waiting => self.begin(now, State::Selecting { wanted: None }),
            // Its address must not be used any more; another one is asked for when the caller says so.
            State::Restored { lease, in_use: true } => {
                self.events.push_back(ClientEvent::Lost { lease: lease.clone(), reason: LossReason::Expired });
                self.deadline = None;
                self.state = State::Restored { lease, in_use: false };
            }
            State::Rebooting { lease, in_use: true, .. }
            | State::Bound { lease }
            | State::Renewing { lease }
            | State::Rebinding { lease }
                if lease.has_expired(now) =>
            {
                self.lose(now, lease, LossReason::Expired);
            }
            State::Bound { lease } | State::Renewing { lease } if is_due(lease.rebinding_at(), now) => {
                self.begin(now, State::Rebinding { lease });
            }
            State::Bound { lease } => self.begin(now, State::Renewing { lease }),
            same => {
                self.state = same;
                self.attempt(now);
            }
        }
    }

    /// When [`Client::advance`] has to be called next; `None` if only a packet can change anything.
    pub fn deadline(&self) -> Option<Duration> {
        let watch = self.watch.as_ref().map(|watch| watch.due);
        self.deadline.into_iter().chain(watch).min()
    }

    /// Until when packets are ignored because too many came; `None` if they are handled. The caller need not read them until then.
    pub fn closed_until(&self, now: Duration) -> Option<Duration> {
        self.rate.closed_until(now)
    }

    /// The next packet to send.
    pub fn transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Whether replies are awaited. Otherwise the caller needs no socket for them.
    pub fn is_listening(&self) -> bool {
        match self.state {
            State::Idle | State::Waiting | State::Restored { .. } | State::Probing { .. } | State::Bound { .. } => {
                false
            }
            State::Selecting { .. }
            | State::Requesting { .. }
            | State::Rebooting { .. }
            | State::Renewing { .. }
            | State::Rebinding { .. } => true,
        }
    }

    /// The address that is probed for. While there is one, the caller needs a socket for ARP packets.
    pub fn probed(&self) -> Option<Ipv4Addr> {
        match &self.state {
            State::Probing { lease, .. } => Some(lease.address),
            State::Bound { lease } | State::Renewing { lease } | State::Rebinding { lease } if self.watch.is_some() => {
                Some(lease.address)
            }
            _ => None,
        }
    }

    /// The lease whose address is in use.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Bound { lease }
            | State::Renewing { lease }
            | State::Rebinding { lease }
            | State::Restored { lease, in_use: true }
            | State::Rebooting { lease, in_use: true, .. } => Some(lease),
            _ => None,
        }
    }

    /// What keeps the client from having a lease or from renewing it; `None` if nothing does.
    pub fn hindrance(&self, now: Duration) -> Option<Hindrance> {
        let packet = match self.state {
            State::Idle | State::Bound { .. } => return None,
            State::Restored { .. } => return Some(Hindrance::Unconfirmed),
            State::Waiting | State::Probing { .. } => return self.setback.clone(),
            State::Selecting { .. } => "DHCPDISCOVER",
            State::Requesting { .. } => "DHCPREQUEST",
            State::Rebooting { .. } => "DHCPREQUEST for the former address",
            State::Renewing { .. } => "DHCPREQUEST to renew the lease",
            State::Rebinding { .. } => "DHCPREQUEST to any server to renew the lease",
        };
        let Exchange { began, sent, .. } = self.exchange;
        if sent == 1 && self.setback.is_some() {
            return self.setback.clone();
        }
        Some(Hindrance::Unanswered { packet, sent, waited: now.saturating_sub(began) })
    }

    // ------------------------------------------------------------------------------------------------------- requests

    fn new_exchange(&mut self, now: Duration) -> Exchange {
        Exchange { xid: (self.random)(), began: now, sent: 0 }
    }

    /// Enters the state and sends its request.
    fn begin(&mut self, now: Duration, state: State) {
        self.exchange = self.new_exchange(now);
        self.state = state;
        self.attempt(now);
    }

    /// Sends the request of the state, for the first time or again, or gives it up.
    fn attempt(&mut self, now: Duration) {
        let most = self.settings.timing.requests;
        match &self.state {
            // A caller may wait for an address, and a server that does not know the lease is silent.
            State::Rebooting { in_use: false, .. } if self.exchange.sent >= most.min(FORMER_REQUESTS) => {
                self.give_up(now);
                return;
            }
            State::Requesting { .. } | State::Rebooting { .. } if self.exchange.sent >= most => {
                self.give_up(now);
                return;
            }
            State::Probing { sent, .. } => {
                if *sent >= self.settings.timing.probing.awaited {
                    self.finish_probing(now);
                } else {
                    self.probe(now);
                }
                return;
            }
            _ => {}
        }
        self.exchange.sent += 1;
        let chance = (self.random)();
        let wait = self.settings.timing.wait(self.exchange.sent, chance);
        let request = self.request(now, MessageType::Request);
        let (request, end) = match &self.state {
            State::Idle | State::Waiting | State::Restored { .. } | State::Bound { .. } | State::Probing { .. } => {
                return;
            }
            State::Selecting { wanted } => {
                (Request { kind: MessageType::Discover, wanted: *wanted, ..request }, now + wait)
            }
            State::Requesting { server, address, .. } => {
                (Request { wanted: Some(*address), server: Some(*server), ..request }, now + wait)
            }
            State::Rebooting { lease, in_use, .. } => {
                let end = lease.expires_at().filter(|_| *in_use).unwrap_or(Duration::MAX);
                (Request { wanted: Some(lease.address), ..request }, end.min(now + wait))
            }
            State::Renewing { lease } => {
                (Request { own: Some(lease.address), ..request }, next_renewal(lease, lease.rebinding_at(), now))
            }
            State::Rebinding { lease } => {
                (Request { own: Some(lease.address), ..request }, next_renewal(lease, lease.expires_at(), now))
            }
        };
        self.deadline = Some(end);
        let payload = self.encode(&request);
        let transmit = match (&self.state, request.own) {
            (State::Renewing { lease }, _) => Transmit::Datagram { from: lease.address, to: lease.server, payload },
            (_, own) => {
                let from = own.unwrap_or(Ipv4Addr::UNSPECIFIED);
                Transmit::Packet { to: EVERYONE, packet: frame::packet(from, Ipv4Addr::BROADCAST, &payload) }
            }
        };
        self.outbox.push_back(transmit);
    }

    fn request(&self, now: Duration, kind: MessageType) -> Request {
        let secs = now.saturating_sub(self.began).as_secs();
        Request {
            kind,
            xid: self.exchange.xid,
            secs: u16::try_from(secs).unwrap_or(u16::MAX),
            broadcast: self.settings.broadcast,
            own: None,
            wanted: None,
            server: None,
        }
    }

    fn encode(&self, request: &Request) -> Vec<u8> {
        request.encode(self.settings.mac, &self.settings.options)
    }

    /// After the last repetition of a request.
    fn give_up(&mut self, now: Duration) {
        let hindrance = self.hindrance(now);
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Rebooting { lease, in_use: true, refusal: Some(refusal) } => {
                self.refused(now, Some(lease), *refusal);
            }
            // It may be used until it ends (RFC 2131, section 3.2).
            State::Rebooting { lease, in_use: true, refusal: None } => self.settle(lease),
            State::Rebooting { lease, .. } => {
                self.setback = hindrance;
                self.begin(now, State::Selecting { wanted: Some(lease.address) });
            }
            _ => {
                self.setback = hindrance;
                self.begin(now, State::Selecting { wanted: None });
            }
        }
    }

    // -------------------------------------------------------------------------------------------------------- replies

    /// Handles a reply with the number of the current exchange.
    fn answered(&mut self, now: Duration, from: Mac, reply: Reply) {
        match (&mut self.state, reply.kind) {
            (State::Selecting { .. }, ReplyKind::Offer) => {
                self.state = State::Requesting { server: reply.server, server_mac: from, address: reply.address };
                // The number is that of the offer (RFC 2131, section 4.4.1).
                self.exchange = Exchange { began: now, sent: 0, ..self.exchange };
                self.attempt(now);
            }
            (State::Requesting { server, address, .. }, ReplyKind::Ack)
                if (*server, *address) == (reply.server, reply.address) =>
            {
                let lease = self.leased(from, reply);
                self.begin_probing(now, lease);
            }
            (State::Requesting { server, .. }, ReplyKind::Nak) if *server == reply.server => {
                self.refused(now, None, reply);
            }
            (State::Rebooting { lease, in_use, .. }, ReplyKind::Ack) if lease.address == reply.address => {
                let is_used = *in_use;
                let lease = self.leased(from, reply);
                if is_used { self.renew(lease) } else { self.begin_probing(now, lease) }
            }
            (State::Rebooting { lease, refusal, .. }, ReplyKind::Nak) if lease.server != reply.server => {
                // A server that knows nothing of the lease. If its own server answers too, that counts.
                *refusal = Some(Box::new(reply));
            }
            (State::Rebooting { lease, in_use, .. }, ReplyKind::Nak) => {
                let lost = in_use.then(|| lease.clone());
                self.refused(now, lost, reply);
            }
            // Only its own server was asked.
            (State::Renewing { lease }, _) if lease.server != reply.server => {}
            (State::Renewing { lease } | State::Rebinding { lease }, ReplyKind::Ack)
                if lease.address == reply.address =>
            {
                let lease = self.leased(from, reply);
                self.renew(lease);
            }
            (State::Renewing { lease } | State::Rebinding { lease }, ReplyKind::Nak) => {
                let lost = lease.clone();
                self.refused(now, Some(lost), reply);
            }
            _ => {}
        }
    }

    /// The lease of a reply. It counts from the first request, which the server cannot have answered earlier.
    fn leased(&self, from: Mac, reply: Reply) -> Lease {
        Lease {
            address: reply.address,
            server: reply.server,
            server_mac: from,
            since: self.exchange.began,
            times: reply.times,
            parameters: reply.parameters,
        }
    }

    /// There is a new lease: no setback counts any more.
    fn settle(&mut self, lease: Lease) {
        self.refusals = 0;
        self.setback = None;
        self.deadline = lease.renewal_at();
        self.state = State::Bound { lease };
    }

    fn bind(&mut self, lease: Lease) {
        self.events.push_back(ClientEvent::Bound(lease.clone()));
        self.settle(lease);
    }

    fn renew(&mut self, lease: Lease) {
        self.events.push_back(ClientEvent::Renewed(lease.clone()));
        self.settle(lease);
    }

    fn refused(&mut self, now: Duration, lost: Option<Lease>, reply: Reply) {
        let address = match (&lost, &self.state) {
            (Some(lease), _) | (None, State::Rebooting { lease, .. }) => lease.address,
            (None, State::Requesting { address, .. }) => *address,
            (None, _) => reply.address,
        };
        let Reply { server, message, .. } = reply;
        self.watch = None;
        self.setback = Some(Hindrance::Refused { server, address, message: message.clone() });
        if let Some(lease) = lost {
            self.began = now;
            self.events.push_back(ClientEvent::Lost { lease, reason: LossReason::Refused { server, message } });
        }
        self.refusals += 1;
        let chance = (self.random)();
        self.wait_until(now + self.settings.timing.wait(self.refusals, chance));
    }

    fn lose(&mut self, now: Duration, lease: Lease, reason: LossReason) {
        let wanted = Some(lease.address);
        self.watch = None;
        self.events.push_back(ClientEvent::Lost { lease, reason });
        self.start(now, wanted);
    }

    fn wait_until(&mut self, end: Duration) {
        self.state = State::Waiting;
        self.deadline = Some(end);
    }

    fn stop(&mut self) {
        self.state = State::Idle;
        self.deadline = None;
        self.watch = None;
        self.outbox.clear();
    }

    // --------------------------------------------------------------------------------------------------------- probes

    fn begin_probing(&mut self, now: Duration, lease: Lease) {
        self.state = State::Probing { lease, sent: 0 };
        self.attempt(now);
    }

    fn probe(&mut self, now: Duration) {
        let chance = (self.random)();
        let State::Probing { lease, sent } = &mut self.state else { return };
        *sent += 1;
        self.outbox.push_back(Transmit::Arp(arp::probe(self.settings.mac, lease.address)));
        self.deadline = Some(now + self.settings.timing.probe_wait(chance));
    }

    /// No other host answered a probe in time. Those that follow find a host that answers later.
    fn finish_probing(&mut self, now: Duration) {
        if let State::Probing { lease, .. } = std::mem::replace(&mut self.state, State::Idle) {
            let address = lease.address;
            self.bind(lease);
            if self.settings.timing.probing.later > 0 {
                self.watch = Some(Watch::new(now, (self.random)()));
                self.announce(address);
            }
        }
    }

    /// Sends the next probe for the address of the lease, or gives the address up.
    fn step_watch(&mut self, now: Duration) {
        let chance = (self.random)();
        let Some(watch) = &mut self.watch else { return };
        let step = watch.step(now, self.settings.timing.probing, chance);
        let Some(lease) = self.lease() else { return };
        match step {
            WatchStep::Probe => {
                let address = lease.address;
                self.outbox.push_back(Transmit::Arp(arp::probe(self.settings.mac, address)));
                self.announce(address);
            }
            WatchStep::Conflict(by) => {
                let lease = lease.clone();
                let (address, server) = (lease.address, lease.server);
                self.events.push_back(ClientEvent::Lost { lease, reason: LossReason::InUse { by } });
                self.began = now;
                self.decline(now, address, server, by);
            }
            WatchStep::End => self.watch = None,
        }
    }

    /// Hosts that know the address with the hardware address of its former holder correct that (RFC 5227, section 2.3).
    fn announce(&mut self, address: Ipv4Addr) {
        self.outbox.push_back(Transmit::Arp(arp::announcement(self.settings.mac, address)));
    }

    fn decline(&mut self, now: Duration, address: Ipv4Addr, server: Ipv4Addr, by: Mac) {
        self.watch = None;
        self.exchange = self.new_exchange(now);
        let request = self.request(now, MessageType::Decline);
        let request = Request { wanted: Some(address), server: Some(server), ..request };
        let payload = self.encode(&request);
        let packet = frame::packet(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, &payload);
        self.outbox.push_back(Transmit::Packet { to: EVERYONE, packet });
        self.events.push_back(ClientEvent::Declined { address, by });
        self.setback = Some(Hindrance::InUse { address, by });
        self.wait_until(now + self.settings.timing.decline_wait);
    }
}

fn is_due(time: Option<Duration>, now: Duration) -> bool {
    time.is_some_and(|time| time <= now)
}

/// The time at which an unanswered request to renew the lease is repeated. `end` is the end of this phase: T2, or the expiry.
fn next_renewal(lease: &Lease, end: Option<Duration>, now: Duration) -> Duration {
    let left = end.unwrap_or(now).saturating_sub(now);
    now + renewal_wait(left, lease.times.expiry.unwrap_or_default())
}
