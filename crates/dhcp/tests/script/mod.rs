//! Servers that a test scripts, and a client in virtual time.

use std::net::Ipv4Addr;
use std::time::Duration;

use cnikit_dhcp::v4::{Client, ClientEvent, ClientOptions, ClientSettings, Lease, Timing, Transmit, client_id};
use cnikit_netlink::Mac;
use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use etherparse::{ArpEthIpv4Packet, ArpOperation, IpNumber, Ipv4Header, Ipv4Slice, UdpHeader, UdpSlice};

/// The client's hardware address.
pub(crate) const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The address that [`SERVER`] assigns.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
/// A server.
pub(crate) const SERVER: Server =
    Server { id: Ipv4Addr::new(192, 0, 2, 1), mac: Mac([2, 0, 0, 0, 1, 1]), address: ADDRESS, lease: 3_600, filler: 0 };
/// Another server.
pub(crate) const OTHER: Server = Server {
    id: Ipv4Addr::new(192, 0, 2, 2),
    mac: Mac([2, 0, 0, 0, 1, 2]),
    address: Ipv4Addr::new(192, 0, 2, 60),
    lease: 3_600,
    filler: 0,
};

/// A server that replies as the test says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// Its identifier and address.
    pub(crate) id: Ipv4Addr,
    /// Its hardware address.
    pub(crate) mac: Mac,
    /// The address that it assigns.
    pub(crate) address: Ipv4Addr,
    /// For how many seconds.
    pub(crate) lease: u32,
    /// The number of options of no meaning in its replies.
    pub(crate) filler: u16,
}

/// A packet of a server.
pub(crate) struct Packet {
    /// Where it comes from.
    pub(crate) from: Mac,
    /// With its headers.
    pub(crate) packet: Vec<u8>,
}

/// A message of the client.
pub(crate) struct Sent {
    /// Where the frame is sent to; zeros if it is routed.
    pub(crate) mac: Mac,
    /// Whether the kernel routes it.
    pub(crate) is_routed: bool,
    /// The packet's source.
    pub(crate) from: Ipv4Addr,
    /// The packet's destination.
    pub(crate) to: Ipv4Addr,
    /// The message.
    pub(crate) message: Message,
}

impl Sent {
    pub(crate) fn kind(&self) -> MessageType {
        self.message.opts().msg_type().unwrap()
    }

    pub(crate) fn xid(&self) -> u32 {
        self.message.xid()
    }

    /// The value of an option.
    pub(crate) fn option(&self, code: OptionCode) -> Option<Vec<u8>> {
        let mut wire = Vec::new();
        self.message.opts().get(code)?.encode(&mut Encoder::new(&mut wire)).unwrap();
        Some(wire[2..].to_vec())
    }

    /// The address of option 50.
    pub(crate) fn wanted(&self) -> Option<Ipv4Addr> {
        self.address(OptionCode::RequestedIpAddress)
    }

    /// The address of option 54.
    pub(crate) fn server(&self) -> Option<Ipv4Addr> {
        self.address(OptionCode::ServerIdentifier)
    }

    fn address(&self, code: OptionCode) -> Option<Ipv4Addr> {
        let octets: [u8; 4] = self.option(code)?.try_into().unwrap();
        Some(octets.into())
    }
}

impl Server {
    pub(crate) fn offer(&self, to: &Sent) -> Packet {
        self.reply(to, MessageType::Offer, self.address)
    }

    pub(crate) fn ack(&self, to: &Sent) -> Packet {
        self.reply(to, MessageType::Ack, self.address)
    }

    /// A refusal with an explanation that is not all printable.
    pub(crate) fn nak(&self, to: &Sent) -> Packet {
        let mut message = self.message(to, MessageType::Nak, Ipv4Addr::UNSPECIFIED);
        message.opts_mut().insert(DhcpOption::Message("no lease\nhere".to_owned()));
        self.packet(&message)
    }

    pub(crate) fn reply(&self, to: &Sent, kind: MessageType, address: Ipv4Addr) -> Packet {
        self.packet(&self.message(to, kind, address))
    }

    /// The reply with other options.
    pub(crate) fn with(&self, to: &Sent, kind: MessageType, options: &[DhcpOption]) -> Packet {
        let mut message = self.message(to, kind, self.address);
        for option in options {
            message.opts_mut().insert(option.clone());
        }
        self.packet(&message)
    }

    /// The reply without an option.
    pub(crate) fn without(&self, to: &Sent, kind: MessageType, code: OptionCode) -> Packet {
        let mut message = self.message(to, kind, self.address);
        message.opts_mut().remove(code);
        self.packet(&message)
    }

    /// A DHCPACK with options in the fields `file` and `sname`.
    pub(crate) fn overloaded(&self, to: &Sent) -> Packet {
        let mut message = self.message(to, MessageType::Ack, self.address);
        message.opts_mut().insert(DhcpOption::OptionOverload(3));
        message.set_fname(b"\x0c\x09from-file\xff");
        message.set_sname(b"\x0f\x05sname\xff");
        self.packet(&message)
    }

    fn message(&self, to: &Sent, kind: MessageType, address: Ipv4Addr) -> Message {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(to.xid(), none, address, none, none, to.message.chaddr());
        message.set_opcode(Opcode::BootReply);
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ServerIdentifier(self.id));
        options.insert(DhcpOption::AddressLeaseTime(self.lease));
        options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
        options.insert(DhcpOption::Router(vec![self.id]));
        message
    }

    fn packet(&self, message: &Message) -> Packet {
        let mut payload = Vec::new();
        message.encode(&mut Encoder::new(&mut payload)).unwrap();
        for number in 0..self.filler {
            payload.pop(); // the end
            payload.extend([u8::try_from(200 + number % 40).unwrap(), 1, 1, 255]);
        }
        let length = u16::try_from(8 + payload.len()).unwrap();
        let ip = Ipv4Header::new(length, 64, IpNumber::UDP, self.id.octets(), [255; 4]).unwrap();
        let udp = UdpHeader::with_ipv4_checksum(67, 68, &ip, &payload).unwrap();
        Packet { from: self.mac, packet: [&ip.to_bytes()[..], &udp.to_bytes(), &payload].concat() }
    }
}

/// A client, and the time.
pub(crate) struct Run {
    pub(crate) client: Client,
    pub(crate) now: Duration,
}

impl Run {
    /// A client that has not begun; the seed decides about its random numbers.
    pub(crate) fn new(seed: u64) -> Run {
        let settings = ClientSettings {
            mac: CLIENT,
            options: ClientOptions::new(client_id("c-one/net/eth0")),
            timing: Timing::default(),
            broadcast: false,
        };
        let mut random = fastrand::Rng::with_seed(seed);
        Run { client: Client::new(settings, move || random.u32(..)), now: Duration::from_secs(100) }
    }

    pub(crate) fn started() -> Run {
        let mut run = Run::new(1);
        run.client.start(run.now, None);
        run
    }

    /// It has requested what [`SERVER`] offers.
    pub(crate) fn requested() -> Run {
        let mut run = Run::started();
        let discover = run.message();
        run.reply(&SERVER.offer(&discover));
        run
    }

    pub(crate) fn bound() -> Run {
        Run::bound_for(3_600)
    }

    /// It has a lease of [`SERVER`] for so many seconds.
    pub(crate) fn bound_for(lease: u32) -> Run {
        let mut run = Run::bound_and_watched(lease);
        run.finish_watching();
        run
    }

    /// The same, while its address is still probed for.
    pub(crate) fn bound_and_watched(lease: u32) -> Run {
        let mut run = Run::requested();
        let request = run.message();
        run.reply(&Server { lease, ..SERVER }.ack(&request));
        run.finish_probing();
        run.events();
        run
    }

    /// It was restarted a second after it had got this lease.
    pub(crate) fn rebooted(lease: &Lease, in_use: bool) -> Run {
        let mut run = Run::new(2);
        run.now = lease.since.max(run.now) + Duration::from_secs(1);
        run.client.reboot(run.now, lease.clone(), in_use);
        run
    }

    /// Passes the probes that a lease waits for, none of which is answered.
    pub(crate) fn finish_probing(&mut self) {
        assert!(self.client.probed().is_some());
        while self.client.lease().is_none() {
            self.advance();
        }
        self.take();
    }

    /// Passes the probes for an address in use, none of which is answered.
    fn finish_watching(&mut self) {
        while self.client.probed().is_some() {
            self.advance();
        }
        assert!(self.client.lease().is_some());
        self.take();
    }

    pub(crate) fn advance(&mut self) {
        self.now = self.client.deadline().unwrap().max(self.now);
        self.client.advance(self.now);
    }

    pub(crate) fn reply(&mut self, reply: &Packet) {
        self.receive(reply.from, &reply.packet);
    }

    pub(crate) fn receive(&mut self, from: Mac, packet: &[u8]) {
        self.client.receive(self.now, from, packet);
    }

    /// The host of [`OTHER`] answers for an address.
    pub(crate) fn arp_reply(&mut self, address: Ipv4Addr) {
        let packet = ArpEthIpv4Packet {
            operation: ArpOperation::REPLY,
            sender_mac: OTHER.mac.0,
            sender_ipv4: address.octets(),
            target_mac: CLIENT.0,
            target_ipv4: [0; 4],
        };
        self.client.receive_arp(self.now, &packet.to_bytes());
    }

    pub(crate) fn take(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.client.transmit()).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<ClientEvent> {
        std::iter::from_fn(|| self.client.event()).collect()
    }

    /// Whether nothing is sent and nothing happens.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.take().is_empty() && self.events().is_empty()
    }

    /// The messages that were sent, and nothing else.
    pub(crate) fn messages(&mut self) -> Vec<Sent> {
        self.take().iter().map(sent).collect()
    }

    /// The only message that was sent.
    pub(crate) fn message(&mut self) -> Sent {
        let mut messages = self.messages();
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }

    /// The only packet that was sent, an ARP packet.
    pub(crate) fn arp(&mut self) -> Vec<u8> {
        let mut packets = self.arps();
        assert_eq!(packets.len(), 1);
        packets.remove(0)
    }

    /// The packets that were sent, all of them ARP packets.
    pub(crate) fn arps(&mut self) -> Vec<Vec<u8>> {
        let packet = |transmit| match transmit {
            Transmit::Arp(packet) => packet,
            other => panic!("{other:?}"),
        };
        self.take().into_iter().map(packet).collect()
    }
}

/// What was sent, decoded.
pub(crate) fn sent(transmit: &Transmit) -> Sent {
    let decoded = |payload: &[u8]| Message::decode(&mut Decoder::new(payload)).unwrap();
    match transmit {
        Transmit::Packet { to, packet } => {
            let ip = Ipv4Slice::from_slice(packet).unwrap();
            let udp = UdpSlice::from_slice(ip.payload().payload).unwrap();
            assert_eq!((udp.source_port(), udp.destination_port()), (68, 67));
            let (from, destination) = (ip.header().source_addr(), ip.header().destination_addr());
            Sent { mac: *to, is_routed: false, from, to: destination, message: decoded(udp.payload()) }
        }
        Transmit::Datagram { from, to, payload } => {
            Sent { mac: Mac([0; 6]), is_routed: true, from: *from, to: *to, message: decoded(payload) }
        }
        Transmit::Arp(packet) => panic!("an ARP packet: {packet:?}"),
    }
}
