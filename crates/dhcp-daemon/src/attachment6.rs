//! One lease of IPv6 addresses: its client, its socket while an exchange runs, and what happens to its interface.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cnikit_dhcp::v6::{
    Client6, Client6Event, Client6Settings, Lease6, Lease6Loss, Transmit6, advertisement_packet, multicast_packet,
};
use cnikit_dhcp::{MulticastSocket, NeighborSocket};
use cnikit_netlink::Mac;
use cnikit_netns::Netns;
use ipnetwork::IpNetwork;

use crate::closing::SocketSlot;
use crate::held::{HeldLease, LISTENING, STEPS, Step};
use crate::interface::{LinkLocal, Revisited};
use crate::log::log;
use crate::protocol::{Lease6Order, LeaseFamily, LeaseOwner, LeaseReply, LeaseReport};
use crate::record::{LeaseRecords, Place, Record6};
use crate::uplink::Uplink;
use crate::{clock, interface};

/// The time between two looks for a link-local address that can be used, while an order waits for it.
const LOOK: Duration = Duration::from_millis(50);

/// An owner's lease of IPv6 addresses, or the attempt to get one.
pub(crate) struct Attachment6 {
    owner: LeaseOwner,
    place: Place,
    uplink: Option<Uplink>,
    settings: Client6Settings,
    client: Client6,
    /// The last lease that the client had.
    lease: Option<Lease6>,
    socket: Option<MulticastSocket>,
    neighbors: SocketSlot<NeighborSocket>,
    /// Until when the socket is open.
    listening: Duration,
    ordered: Option<Duration>,
    /// Until it starts: when it looks for a link-local address next, and what it found.
    before: Option<(Duration, LinkLocal)>,
}

impl Attachment6 {
    /// Begins to get a lease, until this time.
    pub(crate) fn order(order: Lease6Order, (place, uplink): (Place, Option<Uplink>), until: Duration) -> Attachment6 {
        let settings = Client6Settings::of(&order.owner.id());
        let mut attachment = Attachment6::new(order.owner, place, uplink, settings);
        attachment.ordered = Some(until);
        attachment.before = Some((clock::now(), LinkLocal::Absent));
        attachment
    }

    /// Goes on with a lease of the disk, about which no server is asked yet.
    pub(crate) fn resume(record: Record6) -> Attachment6 {
        let Record6 { owner, place, uplink, settings, lease, .. } = record;
        let mut attachment = Attachment6::new(owner, place, uplink, settings);
        attachment.client.restore(clock::now(), lease.clone());
        attachment.lease = Some(lease);
        attachment
    }

    /// Gives back a lease of the disk whose interface is gone. It may be of an earlier boot, whose clock tells nothing now.
    pub(crate) fn release_record(mut record: Record6) {
        let now = clock::now();
        record.lease.since = now;
        (record.lease.renewal, record.lease.rebinding) = (Duration::MAX, Duration::MAX);
        for address in &mut record.lease.addresses {
            address.valid = Duration::MAX;
        }
        Attachment6::resume(record).release(now);
    }

    fn new(owner: LeaseOwner, place: Place, uplink: Option<Uplink>, settings: Client6Settings) -> Attachment6 {
        // Where the kernel has no random numbers, nothing works.
        let client = Client6::new(settings.clone(), || getrandom::u32().unwrap_or_default());
        Attachment6 {
            owner,
            place,
            uplink,
            settings,
            client,
            lease: None,
            socket: None,
            neighbors: SocketSlot::EMPTY,
            listening: Duration::ZERO,
            ordered: None,
            before: None,
        }
    }

    /// What keeps it from having a lease, or from renewing it.
    fn hindrance(&self, now: Duration) -> Option<String> {
        match &self.before {
            Some((_, found)) => Some(format!("{} {found}", self.place.link)),
            None => Some(format!("{} on {}", self.client.hindrance(now)?, self.place.link)),
        }
    }

    /// Starts the client as soon as the interface has a link-local address that can be used. `false`: the interface is gone.
    fn try_start(&mut self, now: Duration) -> bool {
        let Some((due, _)) = &self.before else { return true };
        if *due > now {
            return true;
        }
        match interface::reopen(&self.place)
            .and_then(|netns| interface::link_local(netns.as_ref(), &self.place, &self.leased()))
        {
            Ok(Some(LinkLocal::Usable(_))) => {
                self.before = None;
                self.client.start(now);
            }
            Ok(Some(found)) => self.before = Some((now + LOOK, found)),
            Ok(None) => return false,
            Err(why) => {
                log(&self.owner, why);
                self.before = Some((now + LOOK, LinkLocal::Absent));
            }
        }
        true
    }

    /// The addresses of the last lease.
    fn leased(&self) -> Vec<IpAddr> {
        self.lease.iter().flat_map(|lease| &lease.addresses).map(|one| one.address.into()).collect()
    }

    /// Uses the name and the hardware address that the interface has now, from now on. Returns whether the interface exists.
    fn revisit(&mut self) -> bool {
        let leased = self.leased();
        let found = interface::revisit(&self.owner, &mut self.place, &leased);
        if found == Revisited::OtherMac {
            self.neighbors.clear();
        }
        found != Revisited::Gone
    }

    fn handle(&mut self, event: Client6Event, records: &LeaseRecords, step: &mut Step) {
        match event {
            Client6Event::Bound(lease) => *step = self.bound(lease, records),
            Client6Event::Renewed(lease) => {
                self.ordered = None;
                self.renewed(lease.clone(), records);
                step.reply = Some(LeaseReply::Lease6 { lease: Box::new(lease), is_new: false });
            }
            Client6Event::Lost { lease, reason } => {
                let why = match reason {
                    Lease6Loss::Expired => "no server renewed it in time".to_owned(),
                    Lease6Loss::Refused { status } => format!("the server refused to renew it: {status}"),
                    Lease6Loss::InUse { address, by } => {
                        format!("{by} uses {address} too, and answered after the lease was reported")
                    }
                };
                log(&self.owner, format!("{} is lost: {why}", interface::addresses_text(&lease)));
                self.change("take the addresses from the interface", |netns, place| {
                    interface::configure6(netns, place, &[], &interface::networks6(&lease))
                });
                self.lease = Some(lease);
            }
            Client6Event::Declined { address, by } => {
                log(&self.owner, format!("{address} is declined: {by} already uses it"));
            }
            Client6Event::Released => step.is_over = true,
        }
    }

    /// There is a lease. The first one of an order is reported, and its caller gives the addresses to the interface; later ones are
    /// given to it here.
    fn bound(&mut self, lease: Lease6, records: &LeaseRecords) -> Step {
        let is_first = self.ordered.take().is_some();
        let wanted = interface::networks6(&lease);
        // If they were lost at once, whoever ordered them may have configured them later.
        let mut former = self.lease.as_ref().map(interface::networks6).unwrap_or_default();
        former.retain(|address| !wanted.contains(address));
        self.lease = Some(lease.clone());
        if let Err(why) = self.store(records) {
            if is_first {
                return self.fail(clock::now(), format!("the lease cannot be recorded: {why}"));
            }
            log(&self.owner, format!("the lease is not recorded: {why}"));
        }
        if !is_first {
            log(&self.owner, format!("it has {} now", interface::addresses_text(&lease)));
            self.change("configure the interface", |netns, place| {
                interface::configure6(netns, place, &wanted, &former)
            });
        }
        Step { reply: Some(LeaseReply::Lease6 { lease: Box::new(lease), is_new: is_first }), is_over: false }
    }

    fn renewed(&mut self, lease: Lease6, records: &LeaseRecords) {
        let wanted = interface::networks6(&lease);
        let former = self.lease.replace(lease).map(|former| interface::networks6(&former)).unwrap_or_default();
        if let Err(why) = self.store(records) {
            log(&self.owner, format!("the renewal is not recorded: {why}"));
        }
        if former != wanted {
            log(&self.owner, "the server has changed its addresses: the interface gets them");
            self.change("configure the interface", |netns, place| {
                interface::configure6(netns, place, &wanted, &former)
            });
        }
    }

    /// Gives up an order.
    fn fail(&mut self, now: Duration, message: String) -> Step {
        self.release(now);
        Step { reply: Some(LeaseReply::Failed { message }), is_over: true }
    }

    fn record(&self) -> Option<Record6> {
        Some(Record6 {
            version: Record6::FORMAT,
            owner: self.owner.clone(),
            place: self.place.clone(),
            uplink: self.uplink.clone(),
            settings: self.settings.clone(),
            lease: self.lease.clone()?,
        })
    }

    fn store(&self, records: &LeaseRecords) -> Result<(), String> {
        match self.record() {
            Some(record) => records.write(&record).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Changes the interface. A failure is logged: the lease is as good as before, and CHECK reports the difference.
    fn change(&self, what: &str, work: impl FnOnce(&Netns, &Place) -> Result<(), String>) {
        let changed = match interface::reopen(&self.place) {
            Ok(Some(netns)) => work(&netns, &self.place),
            Ok(None) => return,
            Err(why) => Err(why),
        };
        if let Err(why) = changed {
            log(&self.owner, format!("{what}: {why}"));
        }
    }

    /// What the client wants to send.
    fn packets(&mut self) -> Vec<Transmit6> {
        std::iter::from_fn(|| self.client.transmit()).collect()
    }

    /// Sends the packets by the interface. `false`: the namespace or the interface is gone.
    fn deliver(&mut self, packets: &[Transmit6], now: Duration) -> bool {
        for packet in packets {
            match self.open_for(packet, now) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(why) => {
                    log(&self.owner, why);
                    continue;
                }
            }
            let sent = match (packet, &mut self.socket, self.neighbors.get()) {
                (Transmit6::Message(payload), Some(socket), _) => {
                    socket.expect(self.client.xid()).and_then(|()| socket.send(payload))
                }
                (Transmit6::Packet { to, packet }, _, Some(neighbors)) => neighbors.send(*to, packet),
                (Transmit6::Advertisement(address), _, Some(neighbors)) => {
                    let (to, packet) = advertisement_packet(self.place.mac, *address);
                    neighbors.send(to, &packet)
                }
                _ => Ok(()),
            };
            if let Err(error) = sent {
                log(&self.owner, error);
                // Of a socket that is open already, the kernel has many errors for an interface that is gone.
                if !self.revisit() {
                    return false;
                }
            }
        }
        true
    }

    /// Opens the socket for this packet, unless it is open. `false`: the namespace or the interface is gone.
    fn open_for(&mut self, packet: &Transmit6, now: Duration) -> Result<bool, String> {
        let probed = self.client.probed().map(interface::addresses6).unwrap_or_default();
        match packet {
            Transmit6::Message(_) => {
                self.listening = now + LISTENING;
                if self.socket.is_none() {
                    let Some(socket) = self.open()? else { return Ok(false) };
                    self.socket = Some(socket);
                }
            }
            Transmit6::Packet { .. } | Transmit6::Advertisement(_) => {
                if self.neighbors.get().is_none_or(|socket| socket.addresses() != probed) {
                    let Some(netns) = interface::reopen(&self.place)? else { return Ok(false) };
                    let Place { link, index, mac, .. } = &self.place;
                    let socket = NeighborSocket::open(&netns, link, *index, *mac, probed);
                    self.neighbors.set(socket.map_err(|error| error.to_string())?);
                }
            }
        }
        Ok(true)
    }

    /// The socket on the link-local address; `None` if the namespace or the interface is gone.
    fn open(&self) -> Result<Option<MulticastSocket>, String> {
        let Some(netns) = interface::reopen(&self.place)? else { return Ok(None) };
        let Place { link, index, .. } = &self.place;
        match interface::link_local(Some(&netns), &self.place, &self.leased())? {
            Some(LinkLocal::Usable(address)) => {
                MulticastSocket::open(&netns, link, *index, address).map(Some).map_err(|error| error.to_string())
            }
            Some(found) => Err(format!("{link} {found}")),
            None => Ok(None),
        }
    }
}

impl HeldLease for Attachment6 {
    fn owner(&self) -> &LeaseOwner {
        &self.owner
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn set_path(&mut self, netns: String) {
        self.place.netns = netns;
    }

    fn ordered(&self) -> Option<Duration> {
        self.ordered
    }

    fn await_until(&mut self, until: Duration) {
        self.ordered = Some(until);
    }

    fn confirm(&mut self, now: Duration) {
        self.revisit(); // its name or hardware address may have changed since the restart
        self.client.confirm(now);
    }

    fn is_confirming(&self) -> bool {
        self.client.is_renewing()
    }

    fn current(&self) -> Option<LeaseReply> {
        self.client.lease().map(|lease| LeaseReply::Lease6 { lease: Box::new(lease.clone()), is_new: false })
    }

    fn report(&self, now: Duration) -> LeaseReport {
        let lease = self.client.lease();
        LeaseReport {
            owner: self.owner.clone(),
            family: LeaseFamily::V6,
            netns: self.place.netns.clone(),
            lease: None,
            lease6: lease.cloned(),
            seconds_left: lease.and_then(Lease6::expires_at).map(|end| end.saturating_sub(now).as_secs()),
            hindrance: self.hindrance(now),
        }
    }

    fn differences(&self, reported: Option<&[IpNetwork]>, now: Duration) -> Result<Vec<String>, String> {
        let Some(lease) = self.client.lease() else {
            let why = self.hindrance(now).unwrap_or_default();
            return Ok(vec![format!("{} has no lease of IPv6 at the moment: {why}", self.place.link)]);
        };
        match interface::reopen(&self.place)? {
            Some(netns) => interface::differences6(&netns, &self.place, &interface::networks6(lease), reported),
            None => Ok(vec![format!("the network namespace {} is gone", self.place.netns)]),
        }
    }

    fn deadline(&self, now: Duration) -> Option<Duration> {
        let mut times = vec![self.client.deadline(), self.ordered, self.before.as_ref().map(|(due, _)| *due)];
        if self.socket.is_some() {
            times.push(Some(self.listening));
        }
        if self.socket.is_some() || !self.neighbors.is_empty() {
            times.push(self.client.closed_until(now));
        }
        times.into_iter().flatten().min()
    }

    fn sockets(&self, now: Duration) -> Vec<BorrowedFd<'_>> {
        if self.client.closed_until(now).is_some() {
            return Vec::new();
        }
        let sockets = [self.socket.as_ref().map(AsFd::as_fd), self.neighbors.get().map(AsFd::as_fd)];
        sockets.into_iter().flatten().collect()
    }

    fn receive(&mut self, now: Duration) {
        while self.client.closed_until(now).is_none() {
            match self.socket.as_ref().map(MulticastSocket::receive) {
                Some(Ok(Some(payload))) => self.client.receive(now, &payload),
                Some(Err(_)) => self.socket = None, // the next message opens a new one
                Some(Ok(None)) | None => break,
            }
        }
        while self.client.closed_until(now).is_none() {
            match self.neighbors.get().map(NeighborSocket::receive) {
                Some(Ok(Some((from, packet)))) => self.client.receive_neighbor(now, from, &packet),
                Some(Err(_)) => self.neighbors.clear(),
                Some(Ok(None)) | None => break,
            }
        }
    }

    fn step(&mut self, now: Duration, records: &LeaseRecords) -> Step {
        let mut step = Step::default();
        let is_due = self.client.deadline().is_some_and(|deadline| deadline <= now);
        if is_due && self.ordered.is_none() {
            self.revisit(); // whether it exists shows when something is sent
        }
        let mut is_there = self.try_start(now);
        for _ in 0..STEPS {
            self.client.advance(now);
            while let Some(event) = self.client.event() {
                if !step.is_over {
                    self.handle(event, records, &mut step);
                }
            }
            if step.is_over || self.client.deadline().is_none_or(|deadline| deadline > now) {
                break;
            }
        }
        if !step.is_over && self.ordered.is_some_and(|until| until <= now) {
            let why = self.hindrance(now).unwrap_or_default();
            let message = format!("no lease of IPv6 for {}: {why}", self.place.link);
            self.ordered = None;
            // If the interface had a lease before, the client goes on.
            step = match self.lease {
                None => self.fail(now, message),
                Some(_) => Step { reply: Some(LeaseReply::Failed { message }), is_over: false },
            };
        }
        let packets = self.packets();
        is_there &= self.deliver(&packets, now);
        if !is_there {
            self.release(now);
            step.is_over = true;
            step.reply = Some(LeaseReply::Failed { message: format!("{} is gone", self.place.netns) });
        }
        if !self.client.is_listening() || self.listening <= now && self.lease.is_some() {
            self.socket = None;
        }
        if self.client.probed().is_none() {
            self.neighbors.clear();
        }
        step
    }

    fn release(&mut self, now: Duration) -> bool {
        self.ordered = None;
        self.before = None;
        if !self.client.release(now) {
            return false;
        }
        let packets = self.packets();
        if self.deliver(&packets, now) {
            return true;
        }
        let gone = "its network namespace or interface is gone";
        match &self.uplink {
            None => log(&self.owner, format!("{gone}: the lease of IPv6 is not given back, and ends by itself")),
            Some(uplink) => match uplink.send(&frames(packets, self.place.mac)) {
                Ok(()) => log(&self.owner, format!("{gone}: the lease of IPv6 is given back by {}", uplink.link)),
                Err(why) => log(&self.owner, format!("{gone}, and the lease of IPv6 ends by itself: {why}")),
            },
        }
        false
    }
}

/// Each packet with the hardware address that it is sent to.
fn frames(packets: Vec<Transmit6>, mac: Mac) -> Vec<(Mac, Vec<u8>)> {
    let mut frames = Vec::new();
    for packet in packets {
        frames.push(match packet {
            Transmit6::Message(payload) => multicast_packet(mac, &payload),
            Transmit6::Packet { to, packet } => (to, packet),
            Transmit6::Advertisement(address) => advertisement_packet(mac, address),
        });
    }
    frames
}
