//! The client for IPv6 in virtual time, with messages that a server could send.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::time::Duration;

use cnikit_dhcp::v6::{
    Client6, Client6Event, Client6Hindrance, Client6Settings, Lease6, Lease6Loss, MAX_ADDRESSES, Reply6, Transmit6,
};
use cnikit_netlink::Mac;
use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, OptionCode, Status, StatusCode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use proptest::prelude::*;

const DUID: [u8; 4] = [0, 4, 1, 2];
const SERVER: [u8; 4] = [0, 3, 9, 9];
const IAID: u32 = 77;
/// The hardware address of another host.
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn address(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

fn client() -> Client6 {
    let mut number = 0_u32;
    let random = move || {
        number = number.wrapping_add(0x4000_0001);
        number
    };
    Client6::new(Client6Settings { duid: DUID.to_vec(), iaid: IAID }, random)
}

/// The next message of a client, which must be of this type and have its DUID and association.
fn sent(client: &mut Client6, kind: MessageType) -> Message {
    let Some(Transmit6::Message(payload)) = client.transmit() else { panic!("no {kind:?} was sent") };
    let message = Message::decode(&mut Decoder::new(&payload)).unwrap();
    assert_eq!(message.msg_type(), kind);
    assert_eq!(message.opts().get(OptionCode::ClientId), Some(&DhcpOption::ClientId(DUID.to_vec())));
    assert!(matches!(message.opts().get(OptionCode::IANA), Some(DhcpOption::IANA(IANA { id: IAID, .. }))));
    message
}

/// The addresses of the association in a message.
fn addresses(message: &Message) -> Vec<Ipv6Addr> {
    let Some(DhcpOption::IANA(association)) = message.opts().get(OptionCode::IANA) else { return Vec::new() };
    let one = |option: &DhcpOption| if let DhcpOption::IAAddr(one) = option { Some(one.addr) } else { None };
    association.opts.iter().filter_map(one).collect()
}

/// What a server says.
struct Answer {
    kind: MessageType,
    server: Vec<u8>,
    client: Vec<u8>,
    iaid: u32,
    times: [u32; 2],
    /// Address, preferred and valid lifetime.
    addresses: Vec<(Ipv6Addr, u32, u32)>,
    status: Option<Status>,
    more: Vec<DhcpOption>,
}

impl Answer {
    fn new(kind: MessageType) -> Answer {
        Answer {
            kind,
            server: SERVER.to_vec(),
            client: DUID.to_vec(),
            iaid: IAID,
            times: [100, 160],
            addresses: vec![(address(5), 200, 300)],
            status: None,
            more: Vec::new(),
        }
    }

    /// The payload that answers a message.
    fn to(&self, request: &Message) -> Vec<u8> {
        let mut message = Message::new_with_id(self.kind, request.xid());
        let options = message.opts_mut();
        options.insert(DhcpOption::ClientId(self.client.clone()));
        options.insert(DhcpOption::ServerId(self.server.clone()));
        let mut association = DhcpOptions::new();
        for (addr, preferred_life, valid_life) in self.addresses.iter().copied() {
            let opts = DhcpOptions::new();
            association.insert(DhcpOption::IAAddr(IAAddr { addr, preferred_life, valid_life, opts }));
        }
        if let Some(status) = self.status {
            association.insert(DhcpOption::StatusCode(StatusCode { status, msg: "because".to_owned() }));
        }
        let [t1, t2] = self.times;
        options.insert(DhcpOption::IANA(IANA { id: self.iaid, t1, t2, opts: association }));
        self.more.iter().for_each(|option| options.insert(option.clone()));
        let mut payload = Vec::new();
        message.encode(&mut Encoder::new(&mut payload)).unwrap();
        payload
    }
}

/// The solicitations that are sent, by the last byte of their target.
fn solicitations(client: &mut Client6) -> Vec<u8> {
    let mut targets = Vec::new();
    while let Some(sent) = client.transmit() {
        if matches!(sent, Transmit6::Advertisement(_)) {
            continue;
        }
        let Transmit6::Packet { packet, .. } = sent else { panic!("{sent:?}") };
        assert_eq!((packet[6], packet[40]), (58, 135), "ICMPv6, a neighbour solicitation");
        targets.push(packet[63]);
    }
    targets.sort_unstable();
    targets
}

/// The advertisement of a host that has the address.
fn advertisement(address: Ipv6Addr) -> Vec<u8> {
    let [mut header, mut message] = [vec![0; 40], vec![0; 24]];
    (header[0], header[5], header[6], header[7]) = (0x60, 24, 58, 255);
    header[8..24].copy_from_slice(&address.octets());
    header[24..26].copy_from_slice(&[0xff, 2]);
    message[0] = 136;
    message[8..].copy_from_slice(&address.octets());
    [header, message].concat()
}

/// Passes the solicitations that a lease waits for, and returns it.
fn probed(client: &mut Client6, now: Duration) -> Lease6 {
    let mut now = now;
    loop {
        if let Some(event) = client.event() {
            let Client6Event::Bound(lease) = event else { panic!("{event:?}") };
            let announced: Vec<Transmit6> = std::iter::from_fn(|| client.transmit()).collect();
            let expected = lease.addresses.iter().map(|one| Transmit6::Advertisement(one.address));
            assert_eq!(announced, expected.collect::<Vec<_>>(), "hosts learn the hardware address");
            return lease;
        }
        assert!(client.probed().is_some() && !solicitations(client).is_empty());
        now = client.deadline().unwrap().max(now);
        client.advance(now);
    }
}

/// Passes the solicitations for addresses in use.
fn watched(client: &mut Client6) {
    while client.probed().is_some() {
        client.advance(client.deadline().unwrap());
        solicitations(client);
    }
}

/// A client that got its lease at this time.
fn bound(now: Duration) -> (Client6, Lease6) {
    let (mut client, lease) = bound_and_watched(now);
    watched(&mut client);
    (client, lease)
}

/// The same, while its addresses are still probed for.
fn bound_and_watched(now: Duration) -> (Client6, Lease6) {
    let mut client = client();
    client.start(now);
    let solicit = sent(&mut client, MessageType::Solicit);
    client.receive(now, &Answer::new(MessageType::Advertise).to(&solicit));
    let request = sent(&mut client, MessageType::Request);
    client.receive(now, &Answer::new(MessageType::Reply).to(&request));
    let lease = probed(&mut client, now);
    (client, lease)
}

#[test]
fn an_offer_is_requested_and_becomes_a_lease() {
    let mut client = client();
    client.start(seconds(10));
    let solicit = sent(&mut client, MessageType::Solicit);
    assert!(
        solicit.opts().get(OptionCode::ServerId).is_none() && solicit.opts().get(OptionCode::RapidCommit).is_some()
    );
    client.receive(seconds(11), &Answer::new(MessageType::Advertise).to(&solicit));
    let request = sent(&mut client, MessageType::Request);
    assert_eq!(request.opts().get(OptionCode::ServerId), Some(&DhcpOption::ServerId(SERVER.to_vec())));
    assert_eq!(addresses(&request), [address(5)]);
    assert_ne!(request.xid(), solicit.xid());
    let servers = vec![address(1), Ipv6Addr::UNSPECIFIED];
    let reply = Answer { more: vec![DhcpOption::DomainNameServers(servers)], ..Answer::new(MessageType::Reply) };
    client.receive(seconds(12), &reply.to(&request));
    let lease = probed(&mut client, seconds(12));
    watched(&mut client);
    assert_eq!((lease.addresses[0].address, &lease.dns[..]), (address(5), &[address(1)][..]));
    assert_eq!((lease.since, lease.renewal, lease.rebinding), (seconds(11), seconds(100), seconds(160)));
    assert_eq!((client.deadline(), client.is_listening()), (Some(seconds(111)), false));
    assert_eq!((client.lease(), client.hindrance(seconds(12))), (Some(&lease), None));
}

#[test]
fn two_messages_are_enough_for_a_server_that_commits_at_once() {
    let mut client = client();
    client.start(seconds(0));
    let solicit = sent(&mut client, MessageType::Solicit);
    let slow = Answer::new(MessageType::Reply);
    client.receive(seconds(0), &slow.to(&solicit));
    assert_eq!(client.event(), None, "a reply to SOLICIT has to say that it commits");
    let rapid = Answer { more: vec![DhcpOption::RapidCommit], ..slow };
    client.receive(seconds(0), &rapid.to(&solicit));
    probed(&mut client, seconds(0));
}

#[test]
fn messages_are_repeated_with_growing_waits_and_one_number() {
    let mut client = client();
    client.start(seconds(0));
    let first = sent(&mut client, MessageType::Solicit);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let due = client.deadline().unwrap();
        client.advance(due.saturating_sub(Duration::from_millis(1)));
        assert!(client.transmit().is_none(), "nothing is due yet");
        client.advance(due);
        assert_eq!(sent(&mut client, MessageType::Solicit).xid(), first.xid());
        waits.push(client.deadline().unwrap().saturating_sub(due));
    }
    assert!(waits.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{waits:?}");
    let why = client.hindrance(seconds(20)).unwrap().to_string();
    assert_eq!(why, "SOLICIT got no answer: it was sent 5 times in 20.0 s");
}

#[test]
fn a_lease_is_renewed_with_its_server_then_with_any_and_then_lost() {
    let (mut client, lease) = bound(seconds(0));
    client.advance(seconds(100));
    let renew = sent(&mut client, MessageType::Renew);
    assert_eq!(renew.opts().get(OptionCode::ServerId), Some(&DhcpOption::ServerId(SERVER.to_vec())));
    let other = Answer { server: vec![0, 3, 1, 1], ..Answer::new(MessageType::Reply) };
    client.receive(seconds(101), &other.to(&renew));
    assert_eq!(client.event(), None, "another server does not renew it yet");
    client.receive(seconds(101), &Answer::new(MessageType::Reply).to(&renew));
    let Some(Client6Event::Renewed(renewed)) = client.event() else { panic!("it was not renewed") };
    assert_eq!((renewed.since, renewed.addresses), (seconds(100), lease.addresses));

    let mut now = client.deadline().unwrap();
    while now < seconds(260) {
        client.advance(now);
        while client.transmit().is_some() {}
        now = client.deadline().unwrap();
    }
    client.advance(now);
    let rebind = sent(&mut client, MessageType::Rebind);
    assert!(rebind.opts().get(OptionCode::ServerId).is_none());
    client.receive(now, &other.to(&rebind));
    let Some(Client6Event::Renewed(renewed)) = client.event() else { panic!("another server did not renew it") };
    assert_eq!(renewed.server, [0, 3, 1, 1]);

    while client.event().is_none() {
        let due = client.deadline().unwrap();
        client.advance(due);
        assert!(due <= renewed.expires_at().unwrap());
    }
    assert_eq!(client.lease(), None);
    let Some(Transmit6::Message(last)) = std::iter::from_fn(|| client.transmit()).last() else { panic!() };
    assert_eq!(Message::decode(&mut Decoder::new(&last)).unwrap().msg_type(), MessageType::Solicit);
}

#[test]
fn a_server_that_does_not_know_the_lease_ends_it() {
    let (mut client, lease) = bound(seconds(0));
    client.advance(seconds(100));
    let renew = sent(&mut client, MessageType::Renew);
    let unknown = Answer { addresses: Vec::new(), status: Some(Status::NoBinding), ..Answer::new(MessageType::Reply) };
    client.receive(seconds(101), &unknown.to(&renew));
    let reason = Lease6Loss::Refused { status: "NoBinding: because".to_owned() };
    assert_eq!(client.event(), Some(Client6Event::Lost { lease, reason }));
    sent(&mut client, MessageType::Solicit);
    assert_eq!(client.hindrance(seconds(101)).unwrap().to_string(), "the server refused: NoBinding: because");
}

/// RFC 8415, section 18.2.10.1.
#[test]
fn a_reply_without_addresses_keeps_the_lease_and_is_asked_for_again() {
    for status in [None, Some(Status::UnspecFail), Some(Status::NoAddrsAvail)] {
        let (mut client, lease) = bound(seconds(0));
        client.advance(seconds(100));
        let renew = sent(&mut client, MessageType::Renew);
        let none = Answer { addresses: Vec::new(), status, ..Answer::new(MessageType::Reply) };
        client.receive(seconds(101), &none.to(&renew));
        assert_eq!((client.event(), client.lease()), (None, Some(&lease)), "{status:?}");
        let mut now = seconds(101);
        let renewed = loop {
            now = client.deadline().unwrap().max(now);
            client.advance(now);
            let again = sent(&mut client, if now < seconds(160) { MessageType::Renew } else { MessageType::Rebind });
            if now >= seconds(160) {
                break again;
            }
            assert_eq!(again.xid(), renew.xid());
        };
        client.receive(now, &Answer::new(MessageType::Reply).to(&renewed));
        assert!(matches!(client.event(), Some(Client6Event::Renewed(_))));
    }
}

#[test]
fn an_address_that_a_renewal_does_not_name_keeps_its_lifetime_and_one_of_lifetime_zero_ends() {
    let mut client = client();
    client.start(seconds(0));
    let solicit = sent(&mut client, MessageType::Solicit);
    let both = vec![(address(5), 200, 300), (address(6), 200, 300)];
    let more = vec![DhcpOption::RapidCommit];
    client.receive(seconds(0), &Answer { addresses: both, more, ..Answer::new(MessageType::Reply) }.to(&solicit));
    probed(&mut client, seconds(0));
    watched(&mut client);
    client.advance(seconds(100));
    let renew = sent(&mut client, MessageType::Renew);
    client.receive(seconds(101), &Answer::new(MessageType::Reply).to(&renew));
    let Some(Client6Event::Renewed(lease)) = client.event() else { panic!() };
    let of = |lease: &Lease6| lease.addresses.iter().map(|one| (one.address, one.valid.as_secs())).collect::<Vec<_>>();
    assert_eq!(of(&lease), [(address(5), 300), (address(6), 200)], "what is left of its lifetime");

    client.advance(seconds(200));
    let renew = sent(&mut client, MessageType::Renew);
    let asked: BTreeSet<Ipv6Addr> = addresses(&renew).into_iter().collect();
    assert_eq!(asked, BTreeSet::from([address(5), address(6)]), "both are asked for");
    let ended = vec![(address(5), 200, 300), (address(6), 0, 0)];
    client.receive(seconds(201), &Answer { addresses: ended, ..Answer::new(MessageType::Reply) }.to(&renew));
    let Some(Client6Event::Renewed(lease)) = client.event() else { panic!() };
    assert_eq!(of(&lease), [(address(5), 300)]);

    client.advance(seconds(300));
    let renew = sent(&mut client, MessageType::Renew);
    let none = vec![(address(5), 0, 0)];
    client.receive(seconds(301), &Answer { addresses: none, ..Answer::new(MessageType::Reply) }.to(&renew));
    assert!(matches!(client.event(), Some(Client6Event::Lost { .. })), "it was the last one");
}

#[test]
fn a_server_without_addresses_is_named_and_the_next_one_is_taken() {
    let mut client = client();
    client.start(seconds(0));
    let solicit = sent(&mut client, MessageType::Solicit);
    let full =
        Answer { addresses: Vec::new(), status: Some(Status::NoAddrsAvail), ..Answer::new(MessageType::Advertise) };
    client.receive(seconds(0), &full.to(&solicit));
    assert!(client.transmit().is_none());
    assert_eq!(client.hindrance(seconds(1)).unwrap().to_string(), "the server refused: NoAddrsAvail: because");
    let other = Answer { server: vec![0, 3, 1, 1], ..Answer::new(MessageType::Advertise) };
    client.receive(seconds(0), &other.to(&solicit));
    let request = sent(&mut client, MessageType::Request);
    let refusal = Answer { server: vec![0, 3, 1, 1], kind: MessageType::Reply, ..full };
    client.receive(seconds(0), &refusal.to(&request));
    assert!(client.transmit().is_none(), "it waits before it begins again");
    client.advance(client.deadline().unwrap());
    sent(&mut client, MessageType::Solicit);
}

#[test]
fn a_release_is_repeated_until_it_is_confirmed_or_four_were_sent() {
    let (mut client, _) = bound(seconds(0));
    assert!(client.release(seconds(5)));
    let release = sent(&mut client, MessageType::Release);
    assert_eq!(addresses(&release), [address(5)]);
    let confirmed = Answer { addresses: Vec::new(), status: Some(Status::Success), ..Answer::new(MessageType::Reply) };
    client.receive(seconds(5), &confirmed.to(&release));
    assert_eq!((client.event(), client.deadline()), (Some(Client6Event::Released), None));

    let (mut client, _) = bound(seconds(0));
    client.release(seconds(5));
    let mut messages = 0;
    while client.event() != Some(Client6Event::Released) {
        messages += std::iter::from_fn(|| client.transmit()).count();
        client.advance(client.deadline().unwrap());
    }
    assert_eq!(messages, 4);
    assert!(!client.release(seconds(60)), "there is nothing to release any more");
}

#[test]
fn an_address_that_another_host_uses_is_declined() {
    let mut client = client();
    client.start(seconds(0));
    let mut wait = Duration::ZERO;
    for _ in 0..4 {
        let solicit = sent(&mut client, MessageType::Solicit);
        let two = vec![(address(5), 200, 300), (address(6), 200, 300)];
        let more = vec![DhcpOption::RapidCommit];
        client.receive(seconds(0), &Answer { addresses: two, more, ..Answer::new(MessageType::Reply) }.to(&solicit));
        assert_eq!(solicitations(&mut client), [5, 6]);
        client.receive_neighbor(seconds(0), OTHER, &advertisement(address(7)));
        assert!(client.transmit().is_none() && client.event().is_none(), "that address is not of the lease");
        client.receive_neighbor(seconds(0), OTHER, &advertisement(address(6)));
        assert_eq!(client.event(), Some(Client6Event::Declined { address: address(6), by: OTHER }));
        let decline = sent(&mut client, MessageType::Decline);
        assert_eq!(decline.opts().get(OptionCode::ServerId), Some(&DhcpOption::ServerId(SERVER.to_vec())));
        assert_eq!((addresses(&decline), client.lease()), (vec![address(6)], None));
        let confirmed = Answer { addresses: Vec::new(), ..Answer::new(MessageType::Reply) };
        client.receive(seconds(1), &confirmed.to(&decline));
        let why = client.hindrance(seconds(1)).unwrap().to_string();
        assert_eq!(why, "02:00:00:00:00:09 already uses fd00::6, which the server assigned; it was declined (DECLINE)");
        // A server that assigns it again and again is asked less and less often.
        let next = client.deadline().unwrap().saturating_sub(seconds(1));
        assert!(next > wait * 3 / 2, "{next:?} after {wait:?}");
        wait = next;
        client.advance(client.deadline().unwrap());
    }
}

#[test]
fn addresses_are_given_up_if_another_host_answers_after_the_lease_was_reported() {
    for is_early in [true, false] {
        let (mut client, lease) = bound_and_watched(seconds(0));
        if !is_early {
            client.advance(client.deadline().unwrap());
            assert_eq!(solicitations(&mut client), [5]);
        }
        client.receive_neighbor(seconds(1), OTHER, &advertisement(address(5)));
        assert_eq!((client.event(), client.lease()), (None, Some(&lease)));
        let due = client.deadline().unwrap();
        assert!(due >= seconds(1), "the caller configures them meanwhile");
        client.advance(due);
        let (address, by) = (address(5), OTHER);
        assert_eq!(client.event(), Some(Client6Event::Lost { lease, reason: Lease6Loss::InUse { address, by } }));
        assert_eq!(client.event(), Some(Client6Event::Declined { address, by }));
        assert_eq!(addresses(&sent(&mut client, MessageType::Decline)), [address]);
        assert_eq!((client.lease(), client.probed()), (None, None));
    }
}

#[test]
fn an_address_that_a_renewal_brings_is_probed_for() {
    let (mut client, _) = bound(seconds(0));
    client.advance(seconds(100));
    let renew = sent(&mut client, MessageType::Renew);
    let other = Answer { addresses: vec![(address(8), 200, 300)], ..Answer::new(MessageType::Reply) };
    client.receive(seconds(101), &other.to(&renew));
    assert!(matches!(client.event(), Some(Client6Event::Renewed(_))));
    client.advance(client.deadline().unwrap());
    assert_eq!(solicitations(&mut client), [5, 8]);
    let (mut client, _) = bound(seconds(0));
    client.advance(seconds(100));
    let renew = sent(&mut client, MessageType::Renew);
    client.receive(seconds(101), &Answer::new(MessageType::Reply).to(&renew));
    assert_eq!(client.probed(), None, "the same address is not");
}

#[test]
fn a_lease_whose_addresses_are_probed_for_is_given_back() {
    let mut client = client();
    client.start(seconds(0));
    let solicit = sent(&mut client, MessageType::Solicit);
    let more = vec![DhcpOption::RapidCommit];
    client.receive(seconds(0), &Answer { more, ..Answer::new(MessageType::Reply) }.to(&solicit));
    assert!(client.release(seconds(0)));
    sent(&mut client, MessageType::Release);
}

#[test]
fn after_a_restart_the_lease_is_renewed_at_once() {
    let (_, lease) = bound(seconds(0));
    for (now, kind) in [(50, MessageType::Renew), (200, MessageType::Rebind)] {
        let mut client = client();
        client.reboot(seconds(now), lease.clone());
        assert_eq!(addresses(&sent(&mut client, kind)), [address(5)]);
        assert_eq!(client.lease(), Some(&lease), "it is in use meanwhile");
    }
    let mut client = client();
    client.reboot(seconds(300), lease.clone());
    assert_eq!(client.event(), Some(Client6Event::Lost { lease, reason: Lease6Loss::Expired }));
    sent(&mut client, MessageType::Solicit);
}

/// So that not all clients of a caller that was restarted ask at once.
#[test]
fn a_restored_client_sends_nothing_until_it_confirms_and_loses_its_lease_at_its_end() {
    let (_, lease) = bound(seconds(0));
    let mut client = client();
    client.restore(seconds(50), lease.clone());
    assert_eq!((client.lease(), client.is_renewing()), (Some(&lease), false));
    assert_eq!(client.transmit(), None);
    assert_eq!(client.hindrance(seconds(50)), Some(Client6Hindrance::Unconfirmed));
    client.confirm(seconds(60));
    assert!(client.is_renewing());
    sent(&mut client, MessageType::Renew);
    client.confirm(seconds(60));
    assert_eq!(client.transmit(), None, "once");

    client.restore(seconds(50), lease.clone());
    assert_eq!(client.deadline(), lease.expires_at());
    client.advance(lease.expires_at().unwrap());
    assert_eq!(client.event(), Some(Client6Event::Lost { lease: lease.clone(), reason: Lease6Loss::Expired }));
    assert_eq!((client.lease(), client.deadline()), (None, None));
    assert_eq!(client.transmit(), None);
    client.confirm(seconds(400));
    sent(&mut client, MessageType::Solicit);

    client.restore(seconds(50), lease);
    assert!(client.release(seconds(50)));
    sent(&mut client, MessageType::Release);
}

#[test]
fn messages_for_others_are_ignored() {
    let mut client = client();
    client.start(seconds(0));
    let solicit = sent(&mut client, MessageType::Solicit);
    let good = || Answer::new(MessageType::Advertise);
    let mut other_number = good().to(&solicit);
    other_number[3] ^= 1;
    let ignored = [
        other_number,
        Answer { client: vec![0, 4, 9, 9], ..good() }.to(&solicit),
        Answer { server: Vec::new(), ..good() }.to(&solicit),
        Answer { server: vec![1; 131], ..good() }.to(&solicit),
        Answer { iaid: IAID + 1, ..good() }.to(&solicit),
        Answer { times: [200, 100], ..good() }.to(&solicit),
        Answer { kind: MessageType::Reconfigure, ..good() }.to(&solicit),
        Answer { addresses: Vec::new(), ..good() }.to(&solicit),
        vec![0; 5_000],
        Vec::new(),
    ];
    for payload in ignored {
        client.receive(seconds(0), &payload);
        assert!(client.transmit().is_none() && client.event().is_none(), "{payload:?}");
    }
    client.receive(seconds(0), &good().to(&solicit));
    sent(&mut client, MessageType::Request);
}

#[test]
fn only_addresses_that_a_host_can_have_are_used_and_not_too_many() {
    let mut answer = Answer::new(MessageType::Reply);
    let bad = ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1"].map(|text| (text.parse().unwrap(), 100, 200));
    answer.addresses = bad.to_vec();
    answer.addresses.extend([(address(1), 300, 200), (address(2), 0, 0)]);
    let request = Message::new(MessageType::Request);
    assert_eq!(Reply6::parse(&answer.to(&request), IAID).unwrap().addresses, []);
    answer.addresses = (1..100).map(|last| (address(last), 100, u32::MAX)).collect();
    let reply = Reply6::parse(&answer.to(&request), IAID).unwrap();
    assert_eq!((reply.addresses.len(), reply.addresses[0].valid), (MAX_ADDRESSES, Duration::MAX));
}

#[test]
fn a_server_cannot_make_a_client_renew_without_a_pause() {
    let mut client = client();
    client.start(seconds(0));
    let solicit = sent(&mut client, MessageType::Solicit);
    let rapid = Answer {
        times: [0, 0],
        addresses: vec![(address(5), 0, 9)],
        more: vec![DhcpOption::RapidCommit],
        ..Answer::new(MessageType::Reply)
    };
    client.receive(seconds(0), &rapid.to(&solicit));
    let lease = probed(&mut client, seconds(0));
    assert_eq!(lease.renewal_at(), Some(seconds(1)));
    assert!(client.deadline().unwrap() >= seconds(1));
}

#[test]
fn a_flood_is_not_parsed() {
    let mut client = client();
    client.start(seconds(1));
    let solicit = sent(&mut client, MessageType::Solicit);
    (0..64).for_each(|_| client.receive(seconds(1), b"x"));
    assert_eq!(client.closed_until(seconds(1)), None, "who has not seen the message takes nothing from the limit");
    let to_another = Answer { client: vec![0, 4, 9, 9], ..Answer::new(MessageType::Advertise) }.to(&solicit);
    (0..64).for_each(|_| client.receive(seconds(1), &to_another));
    assert_eq!(client.closed_until(seconds(1)), Some(seconds(2)));
    client.receive(seconds(1), &Answer::new(MessageType::Advertise).to(&solicit));
    assert!(client.transmit().is_none());
    client.receive(seconds(2), &Answer::new(MessageType::Advertise).to(&solicit));
    sent(&mut client, MessageType::Request);
}

proptest! {
    /// Bytes of any kind, and a good message with bytes changed, cause no panic and no lease of addresses that no host can have.
    #[test]
    fn no_message_breaks_the_parser(noise in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..120, byte: u8) {
        let _ = Reply6::parse(&noise, IAID);
        let mut payload = Answer::new(MessageType::Reply).to(&Message::new(MessageType::Request));
        let length = payload.len();
        payload[at % length] = byte;
        if let Some(reply) = Reply6::parse(&payload, IAID) {
            let bad = |one: &Ipv6Addr| one.is_unspecified() || one.is_multicast() || one.is_loopback();
            prop_assert!(!reply.addresses.iter().any(|one| bad(&one.address) || one.valid.is_zero()));
        }
    }
}
