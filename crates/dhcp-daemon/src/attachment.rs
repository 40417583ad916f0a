//! One lease: its client, its sockets while an exchange runs, and what happens to its interface.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cnikit_dhcp::v4::{
    Client, ClientEvent, ClientOptions, ClientSettings, Lease, LeaseTimes, LossReason, Timing, Transmit,
};
use cnikit_dhcp::{ArpSocket, LinkSocket, RoutedSocket};
use cnikit_netlink::Mac;
use cnikit_netns::Netns;
use ipnetwork::IpNetwork;

use crate::closing::SocketSlot;
use crate::held::{HeldLease, LISTENING, STEPS, Step};
use crate::interface::Revisited;
use crate::log::log;
use crate::protocol::{LeaseFamily, LeaseOrder, LeaseOwner, LeaseReply, LeaseReport};
use crate::record::{LeaseRecords, LoweredMtu, Place, Record};
use crate::uplink::Uplink;
use crate::{clock, interface};

/// How clients behave: the daemon's flags.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) timing: Timing,
    pub(crate) broadcast: bool,
}

/// What was ordered.
pub(crate) struct Terms {
    options: ClientOptions,
    mtu: bool,
    priority: Option<u32>,
}

/// The lease that an owner had in a namespace that is gone.
pub(crate) enum FormerLease {
    /// It was given back. It had this address.
    Released(Ipv4Addr),
    /// The server still has it: that of an earlier boot (INIT-REBOOT).
    Held(Box<Lease>),
}

/// A lease of an earlier boot, whose clock tells nothing now: the server knows whether it has ended.
fn endless(lease: Lease) -> Lease {
    Lease { times: LeaseTimes { renewal: Duration::MAX, rebinding: Duration::MAX, expiry: None }, ..lease }
}

/// An owner's lease, or the attempt to get one.
pub(crate) struct Attachment {
    owner: LeaseOwner,
    place: Place,
    uplink: Option<Uplink>,
    terms: Terms,
    client: Client,
    /// The last lease that the client had.
    lease: Option<Lease>,
    /// What a lease has done to the MTU of the interface.
    lowered_mtu: Option<LoweredMtu>,
    link: SocketSlot<LinkSocket>,
    arp: SocketSlot<ArpSocket>,
    routed: Option<RoutedSocket>,
    /// Until when the sockets are open.
    listening: Duration,
    /// Until when an order waits for its first lease; `None` once that was reported.
    ordered: Option<Duration>,
}

impl Attachment {
    /// Begins to get a lease, until this time. `former` is the lease that the owner had elsewhere, whose address is requested.
    pub(crate) fn order(
        order: LeaseOrder,
        (place, uplink): (Place, Option<Uplink>),
        former: Option<FormerLease>,
        behaviour: Behaviour,
        until: Duration,
    ) -> Attachment {
        let LeaseOrder { owner, options, mtu, priority, .. } = order;
        let mut attachment = Attachment::new(owner, (place, uplink), Terms { options, mtu, priority }, behaviour);
        let now = clock::now();
        match former {
            None => attachment.client.start(now, None),
            Some(FormerLease::Released(address)) => attachment.client.start(now, Some(address)),
            Some(FormerLease::Held(lease)) => attachment.client.reboot(now, endless(*lease), false),
        }
        attachment.ordered = Some(until);
        attachment
    }

    /// Goes on with a lease of the disk, about which no server is asked yet. `has_address`: the interface has its address.
    pub(crate) fn resume(record: Record, has_address: bool, behaviour: Behaviour) -> Attachment {
        let Record { owner, place, uplink, options, mtu, lowered_mtu, priority, lease, .. } = record;
        let mut attachment = Attachment::new(owner, (place, uplink), Terms { options, mtu, priority }, behaviour);
        attachment.client.restore(clock::now(), lease.clone(), has_address);
        attachment.lowered_mtu = lowered_mtu;
        attachment.lease = Some(lease);
        attachment
    }

    /// Gives back a lease of the disk whose interface is gone. It may be of an earlier boot, whose clock tells nothing now.
    pub(crate) fn release_record(mut record: Record, behaviour: Behaviour) {
        record.lease = endless(record.lease);
        Attachment::resume(record, false, behaviour).release(clock::now());
    }

    fn new(
        owner: LeaseOwner,
        (place, uplink): (Place, Option<Uplink>),
        terms: Terms,
        behaviour: Behaviour,
    ) -> Attachment {
        let Behaviour { timing, broadcast } = behaviour;
        let broadcast = broadcast || uplink.as_ref().is_some_and(|uplink| uplink.is_ipvlan);
        let settings = ClientSettings { mac: place.mac, options: terms.options.clone(), timing, broadcast };
        Attachment {
            owner,
            place,
            uplink,
            terms,
            // Where the kernel has no random numbers, nothing works.
            client: Client::new(settings, || getrandom::u32().unwrap_or_default()),
            lease: None,
            lowered_mtu: None,
            link: SocketSlot::EMPTY,
            arp: SocketSlot::EMPTY,
            routed: None,
            listening: Duration::ZERO,
            ordered: None,
        }
    }

    /// What keeps it from having a lease, or from renewing it.
    fn hindrance(&self, now: Duration) -> Option<String> {
        Some(format!("{} on {}", self.client.hindrance(now)?, self.place.link))
    }

    fn handle(&mut self, event: ClientEvent, now: Duration, records: &LeaseRecords, step: &mut Step) {
        match event {
            ClientEvent::Bound(lease) => *step = self.bound(lease, now, records),
            ClientEvent::Renewed(lease) => {
                self.ordered = None;
                self.renewed(lease.clone(), records);
                step.reply = Some(LeaseReply::Lease { lease: Box::new(lease), is_new: false });
            }
            ClientEvent::Lost { lease, reason } => {
                let why = match reason {
                    LossReason::Expired => "no server renewed it in time".to_owned(),
                    LossReason::Refused { server, message } => format!("{server} refused to renew it {message}"),
                    LossReason::InUse { by } => format!("{by} uses it too, and answered after the lease was reported"),
                };
                log(&self.owner, format!("{} is lost: {why}", lease.address));
                self.lease = Some(lease);
                self.change("take the address from the interface", interface::remove_address);
            }
            ClientEvent::Declined { address, by } => {
                log(&self.owner, format!("{address} is declined: {by} already uses it"));
            }
        }
    }

    /// There is a lease. The first one of an order is reported, and its caller gives the address to the interface; later ones are
    /// given to it here.
    fn bound(&mut self, lease: Lease, now: Duration, records: &LeaseRecords) -> Step {
        let is_first = self.ordered.is_some();
        if is_first && lease.parameters.prefix.is_none() {
            return self.fail(now, "DHCP option Subnet Mask not found in DHCPACK".to_owned());
        }
        if self.lease.as_ref().is_some_and(|former| former.address != lease.address) {
            // The reply may have been late: the plugin that ordered the lease then configured the former address after it was lost.
            self.change("take the former address from the interface", interface::remove_address);
        }
        self.lease = Some(lease.clone());
        if let Err(why) = self.store(records) {
            if is_first {
                return self.fail(now, format!("the lease cannot be recorded: {why}"));
            }
            log(&self.owner, format!("the lease is not recorded: {why}"));
        }
        if is_first {
            self.ordered = None;
        } else {
            log(&self.owner, format!("it has {} now", lease.address));
            self.change("configure the interface", |netns, record| interface::configure(netns, record, None));
        }
        self.set_mtu(records);
        Step { reply: Some(LeaseReply::Lease { lease: Box::new(lease), is_new: is_first }), is_over: false }
    }

    fn renewed(&mut self, lease: Lease, records: &LeaseRecords) {
        let former = self.lease.replace(lease);
        if let Err(why) = self.store(records) {
            log(&self.owner, format!("the renewal is not recorded: {why}"));
        }
        if let (Some(before), Some(lease)) = (&former, &self.lease)
            && before.parameters != lease.parameters
        {
            let changes = interface::changes(before, lease);
            log(&self.owner, format!("the server has changed {changes}: the interface gets that"));
            let configure = |netns: &Netns, record: &Record| interface::configure(netns, record, former.as_ref());
            self.change("configure the interface", configure);
            self.set_mtu(records);
        }
    }

    /// Gives the interface the MTU of the lease, and records the one that it had.
    fn set_mtu(&mut self, records: &LeaseRecords) {
        let Some(record) = self.record() else { return };
        let changed = match interface::reopen(&self.place) {
            Ok(Some(netns)) => interface::set_mtu(&netns, &record),
            Ok(None) => return,
            Err(why) => Err(why),
        };
        match changed {
            Ok(None) => {}
            Ok(Some(change)) => {
                let LoweredMtu { from, to } = change;
                log(
                    &self.owner,
                    format!("{} has an MTU of {to} now, as the server says, and at most {from}", self.place.link),
                );
                self.lowered_mtu = Some(change);
                if let Err(why) = self.store(records) {
                    log(&self.owner, format!("the MTU is not recorded: {why}"));
                }
            }
            Err(why) => log(&self.owner, format!("set the MTU of the interface: {why}")),
        }
    }

    /// Uses the name and the hardware address that the interface has now, from now on. Returns whether the interface exists.
    fn revisit(&mut self) -> bool {
        let leased: Vec<IpAddr> = self.lease.iter().map(|lease| lease.address.into()).collect();
        let found = interface::revisit(&self.owner, &mut self.place, &leased);
        if found == Revisited::OtherMac {
            self.client.set_mac(self.place.mac);
            self.link.clear();
        }
        found != Revisited::Gone
    }

    /// No caller waits for the order any more. If the interface had a lease before, the client goes on.
    fn expire(&mut self, now: Duration, message: String) -> Step {
        if self.lease.is_none() {
            return self.fail(now, message);
        }
        self.ordered = None;
        Step { reply: Some(LeaseReply::Failed { message }), is_over: false }
    }

    /// Gives up an order.
    fn fail(&mut self, now: Duration, message: String) -> Step {
        self.client.release(now);
        Step { reply: Some(LeaseReply::Failed { message }), is_over: true }
    }

    fn record(&self) -> Option<Record> {
        Some(Record {
            version: Record::FORMAT,
            owner: self.owner.clone(),
            place: self.place.clone(),
            uplink: self.uplink.clone(),
            options: self.terms.options.clone(),
            mtu: self.terms.mtu,
            lowered_mtu: self.lowered_mtu,
            priority: self.terms.priority,
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
    fn change(&self, what: &str, work: impl FnOnce(&Netns, &Record) -> Result<(), String>) {
        let Some(record) = self.record() else { return };
        let changed = match interface::reopen(&self.place) {
            Ok(Some(netns)) => work(&netns, &record),
            Ok(None) => return,
            Err(why) => Err(why),
        };
        if let Err(why) = changed {
            log(&self.owner, format!("{what}: {why}"));
        }
    }

    /// Opens the sockets that the client needs, sends, and closes those that it does not need any more. `false`: the namespace or
    /// the interface is gone.
    fn send(&mut self, now: Duration) -> bool {
        let packets = self.packets();
        if !self.deliver(&packets, now) {
            return false;
        }
        self.close_idle(now);
        true
    }

    /// What the client wants to send.
    fn packets(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.client.transmit()).collect()
    }

    /// Sends the packets by the interface. `false`: the namespace or the interface is gone.
    fn deliver(&mut self, packets: &[Transmit], now: Duration) -> bool {
        if packets.is_empty() {
            return true;
        }
        self.listening = now + LISTENING;
        let netns = match interface::reopen(&self.place) {
            Ok(Some(netns)) => netns,
            Ok(None) => return false,
            Err(why) => {
                log(&self.owner, why);
                return true;
            }
        };
        for packet in packets {
            if let Err(error) = self.send_one(&netns, packet) {
                log(&self.owner, error);
                if !self.revisit() {
                    return false;
                }
            }
        }
        true
    }

    /// Closes the sockets that the client does not need any more.
    fn close_idle(&mut self, now: Duration) {
        if !self.client.is_listening() || self.listening <= now && self.lease.is_some() {
            self.link.clear();
            self.routed = None;
        }
        if self.client.probed().is_none() {
            self.arp.clear();
        }
    }

    fn send_one(&mut self, netns: &Netns, packet: &Transmit) -> cnikit_dhcp::Result<()> {
        let Place { link: name, index, mac, .. } = &self.place;
        match (packet, self.client.probed()) {
            (Transmit::Arp(_), Some(address)) if self.arp.is_empty() => {
                self.arp.set(ArpSocket::open(netns, name, *index, address)?);
            }
            (Transmit::Packet { .. } | Transmit::Datagram { .. }, _) if self.link.is_empty() => {
                self.link.set(LinkSocket::open(netns, name, *index, *mac)?);
            }
            _ => {}
        }
        if let (Transmit::Packet { .. } | Transmit::Datagram { .. }, Some(link)) = (packet, self.link.get_mut()) {
            link.expect(self.client.xid())?;
        }
        match (packet, self.link.get(), self.arp.get()) {
            (Transmit::Packet { to, packet }, Some(link), _) => link.send(*to, packet),
            (Transmit::Datagram { from, to, payload }, _, _) => {
                let routed = RoutedSocket::open(netns, name, *index, *from)?;
                routed.send(*to, payload)?;
                self.routed = Some(routed);
                Ok(())
            }
            (Transmit::Arp(packet), _, Some(arp)) => arp.send(packet),
            _ => Ok(()),
        }
    }
}

impl HeldLease for Attachment {
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
        self.client.is_confirming()
    }

    fn current(&self) -> Option<LeaseReply> {
        self.client.lease().map(|lease| LeaseReply::Lease { lease: Box::new(lease.clone()), is_new: false })
    }

    fn last_address(&self) -> Option<Ipv4Addr> {
        self.lease.as_ref().map(|lease| lease.address)
    }

    fn report(&self, now: Duration) -> LeaseReport {
        let lease = self.client.lease();
        let left = lease.and_then(Lease::expires_at).map(|end| end.saturating_sub(now).as_secs());
        LeaseReport {
            owner: self.owner.clone(),
            family: LeaseFamily::V4,
            netns: self.place.netns.clone(),
            lease: lease.cloned(),
            lease6: None,
            seconds_left: left,
            hindrance: self.hindrance(now),
        }
    }

    fn differences(&self, reported: Option<&[IpNetwork]>, now: Duration) -> Result<Vec<String>, String> {
        let Some(record) = self.record().filter(|_| self.client.lease().is_some()) else {
            let why = self.hindrance(now).unwrap_or_default();
            return Ok(vec![format!("{} has no lease at the moment: {why}", self.place.link)]);
        };
        match interface::reopen(&self.place)? {
            Some(netns) => interface::differences(&netns, &record, reported),
            None => Ok(vec![format!("the network namespace {} is gone", self.place.netns)]),
        }
    }

    fn deadline(&self, now: Duration) -> Option<Duration> {
        let mut deadline = self.client.deadline();
        let mut sooner = |time: Option<Duration>| {
            if let Some(time) = time {
                deadline = Some(deadline.map_or(time, |earlier| earlier.min(time)));
            }
        };
        sooner(self.ordered);
        if !self.link.is_empty() {
            sooner(Some(self.listening));
        }
        if !self.link.is_empty() || !self.arp.is_empty() {
            sooner(self.client.closed_until(now));
        }
        deadline
    }

    fn sockets(&self, now: Duration) -> Vec<BorrowedFd<'_>> {
        if self.client.closed_until(now).is_some() {
            return Vec::new();
        }
        let mut sockets = Vec::new();
        if let Some(link) = self.link.get() {
            sockets.push(link.as_fd());
        }
        if let Some(arp) = self.arp.get() {
            sockets.push(arp.as_fd());
        }
        sockets
    }

    fn receive(&mut self, now: Duration) {
        while self.client.closed_until(now).is_none() {
            match self.link.get().map(LinkSocket::receive) {
                Some(Ok(Some((from, packet)))) => self.client.receive(now, from, &packet),
                Some(Err(_)) => self.link.clear(), // the link went down: the next request opens a new one
                Some(Ok(None)) | None => break,
            }
        }
        while self.client.closed_until(now).is_none() {
            match self.arp.get().map(ArpSocket::receive) {
                Some(Ok(Some(packet))) => self.client.receive_arp(now, &packet),
                Some(Err(_)) => self.arp.clear(),
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
        for _ in 0..STEPS {
            self.client.advance(now);
            while let Some(event) = self.client.event() {
                if !step.is_over {
                    self.handle(event, now, records, &mut step);
                }
            }
            if step.is_over || self.client.deadline().is_none_or(|deadline| deadline > now) {
                break;
            }
        }
        if !step.is_over && self.ordered.is_some_and(|until| until <= now) {
            let why = self.hindrance(now).unwrap_or_else(|| "the address is still probed for".to_owned());
            step = self.expire(now, format!("no lease for {}: {why}", self.place.link));
        }
        if !self.send(now) {
            self.release(now);
            step.is_over = true;
            step.reply = Some(LeaseReply::Failed { message: format!("{} is gone", self.place.netns) });
        }
        step
    }

    fn release(&mut self, now: Duration) -> bool {
        self.revisit();
        if !self.client.release(now) {
            return false;
        }
        let packets = self.packets();
        if self.deliver(&packets, now) {
            self.close_idle(now);
            return false;
        }
        let gone = "its network namespace or interface is gone";
        match &self.uplink {
            None => log(&self.owner, format!("{gone}: the lease is not given back, and ends by itself")),
            Some(uplink) => match uplink.send(&frames(packets)) {
                Ok(()) => log(&self.owner, format!("{gone}: the lease is given back by {}", uplink.link)),
                Err(why) => log(&self.owner, format!("{gone}, and the lease ends by itself: {why}")),
            },
        }
        false
    }
}

/// The packets that go to a hardware address.
fn frames(packets: Vec<Transmit>) -> Vec<(Mac, Vec<u8>)> {
    let mut frames = Vec::new();
    for packet in packets {
        if let Transmit::Packet { to, packet } = packet {
            frames.push((to, packet));
        }
    }
    frames
}
