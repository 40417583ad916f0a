//! The client against scripted servers, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

mod script;

use std::net::Ipv4Addr;
use std::time::Duration;

use cnikit_dhcp::v4::{ClientEvent, Hindrance, LossReason, PACKETS_PER_SECOND, Timing};
use cnikit_netlink::Mac;
use dhcproto::v4::{DhcpOption, MessageType, OptionCode};
use script::{ADDRESS, CLIENT, OTHER, Run, SERVER, Server};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const HOUR: Duration = Duration::from_hours(1);

/// The sender's address of each ARP packet: unspecified in a probe, the announced one in an announcement.
fn senders(packets: &[Vec<u8>]) -> Vec<Ipv4Addr> {
    let sender = |packet: &Vec<u8>| <[u8; 4]>::try_from(&packet[14..18]).unwrap().into();
    packets.iter().map(sender).collect()
}

#[test]
fn discover_offer_request_ack_and_two_probes_make_a_lease() {
    let mut run = Run::started();
    let discover = run.message();
    assert_eq!(discover.kind(), MessageType::Discover);
    assert_eq!(
        (discover.from, discover.to, discover.mac),
        (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Mac([0xff; 6]))
    );
    assert_eq!(discover.option(OptionCode::ClientIdentifier), Some(b"\0c-one/net/eth0".to_vec()));
    assert_eq!(discover.option(OptionCode::ParameterRequestList).unwrap()[..3], [121, 1, 3]);
    assert_eq!(discover.message.chaddr(), CLIENT.0);
    assert!(!discover.message.flags().broadcast());

    run.reply(&SERVER.offer(&discover));
    let request = run.message();
    assert_eq!((request.kind(), request.xid()), (MessageType::Request, discover.xid()));
    assert_eq!(request.wanted(), Some(ADDRESS));
    assert_eq!(request.server(), Some(SERVER.id));
    assert_eq!(request.message.ciaddr(), Ipv4Addr::UNSPECIFIED);

    run.reply(&SERVER.ack(&request));
    assert_eq!(run.client.probed(), Some(ADDRESS));
    assert_eq!(run.events(), []);
    let leased = run.now;
    for _ in 0..2 {
        assert_eq!(run.arp().len(), 28);
        run.advance();
    }
    assert!(run.now.saturating_sub(leased) <= Duration::from_millis(125), "no container waits for long");
    // Hosts that know the address with the hardware address of its former holder correct that.
    assert_eq!(senders(&run.arps()), [ADDRESS]);
    let [ClientEvent::Bound(lease)] = &run.events()[..] else { panic!("no lease") };
    assert_eq!((lease.address, lease.server, lease.server_mac), (ADDRESS, SERVER.id, SERVER.mac));
    assert_eq!(lease.parameters.prefix, Some(24));
    assert_eq!(run.client.lease(), Some(lease));
    assert_eq!(run.client.hindrance(run.now), None);
    assert!(!run.client.is_listening());
    // The last probe and another announcement, while the address is in use.
    let bound = run.now;
    run.advance();
    assert!(run.now >= bound + seconds(1) && run.now <= bound + seconds(2));
    assert_eq!((senders(&run.arps()), run.client.probed()), (vec![Ipv4Addr::UNSPECIFIED, ADDRESS], Some(ADDRESS)));
    run.advance();
    assert!(run.is_silent());
    assert_eq!((run.client.probed(), run.client.deadline()), (None, Some(lease.since + HOUR / 2)));
}

#[test]
fn an_address_is_given_up_if_another_host_answers_for_it_after_the_lease_was_reported() {
    for is_early in [true, false] {
        let mut run = Run::bound_and_watched(3_600);
        let lease = run.client.lease().unwrap().clone();
        let bound = run.now;
        if !is_early {
            run.advance();
            run.arps();
            run.now += Duration::from_millis(700);
        }
        run.arp_reply(OTHER.address);
        run.arp_reply(ADDRESS);
        assert!(run.is_silent());
        run.advance();
        assert!(run.now >= bound + seconds(1), "the caller configures it meanwhile");
        let by = OTHER.mac;
        let lost = ClientEvent::Lost { lease, reason: LossReason::InUse { by } };
        assert_eq!(run.events(), [lost, ClientEvent::Declined { address: ADDRESS, by }]);
        let decline = run.message();
        assert_eq!((decline.kind(), decline.wanted()), (MessageType::Decline, Some(ADDRESS)));
        assert_eq!((run.client.lease(), run.client.probed()), (None, None));
        let declined = run.now;
        run.advance();
        assert_eq!(run.now.saturating_sub(declined), Timing::default().decline_wait);
        assert_eq!(run.message().kind(), MessageType::Discover);
    }
}

#[test]
fn an_unanswered_packet_is_repeated_and_named() {
    let mut run = Run::started();
    let first = run.message();
    let mut times = vec![run.now];
    for _ in 0..7 {
        run.advance();
        times.push(run.now);
        let again = run.message();
        assert_eq!((again.kind(), again.xid()), (MessageType::Discover, first.xid()));
    }
    let waits: Vec<u64> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).as_secs()).collect();
    for (at, wanted) in [2, 4, 8, 16, 32, 62, 62].into_iter().enumerate() {
        assert!(waits[at] * 4 >= wanted * 3 - 3 && waits[at] * 4 <= wanted * 5, "{waits:?}");
    }
    let Some(Hindrance::Unanswered { packet: "DHCPDISCOVER", sent: 8, waited }) = run.client.hindrance(run.now) else {
        panic!("{:?}", run.client.hindrance(run.now))
    };
    assert_eq!(waited, run.now.saturating_sub(times[0]));

    run.reply(&SERVER.offer(&first));
    for sent in 1..=4 {
        assert_eq!(run.message().kind(), MessageType::Request);
        let Some(Hindrance::Unanswered { packet, .. }) = run.client.hindrance(run.now) else { panic!() };
        assert_eq!(packet, "DHCPREQUEST", "{sent}");
        run.advance();
    }
    let afresh = run.message();
    assert_eq!(afresh.kind(), MessageType::Discover);
    assert_ne!(afresh.xid(), first.xid());
    let why = run.client.hindrance(run.now).unwrap().to_string();
    assert!(why.starts_with("DHCPREQUEST got no answer: it was sent 4 times in "), "{why}");
}

#[test]
fn what_is_not_a_reply_to_us_is_ignored() {
    let mut run = Run::started();
    let discover = run.message();
    let good = SERVER.offer(&discover);
    let changed = |at: usize, byte: u8| {
        let mut packet = good.packet.clone();
        packet[at] ^= byte;
        packet
    };
    // Positions: the header of IPv4 has 20 bytes, that of UDP 8.
    let cases = [
        (changed(28, 3), "a request"),
        (changed(29, 7), "no Ethernet"),
        (changed(30, 1), "another length of chaddr"),
        (changed(30, 0xff - 6), "chaddr behind the packet's end"),
        (changed(32, 1), "another xid"),
        (changed(28 + 28, 1), "another chaddr"),
        (changed(28 + 236, 1), "another cookie"),
        (changed(23, 1), "another port"),
        (good.packet[..200].to_vec(), "half of it"),
        (SERVER.reply(&discover, MessageType::Ack, ADDRESS).packet, "an ACK before a request"),
        (SERVER.reply(&discover, MessageType::Offer, Ipv4Addr::UNSPECIFIED).packet, "no address"),
        (SERVER.reply(&discover, MessageType::Offer, Ipv4Addr::LOCALHOST).packet, "an address of the loopback"),
        (SERVER.reply(&discover, MessageType::Offer, Ipv4Addr::BROADCAST).packet, "the broadcast address"),
        (SERVER.without(&discover, MessageType::Offer, OptionCode::ServerIdentifier).packet, "no server"),
        (SERVER.without(&discover, MessageType::Offer, OptionCode::MessageType).packet, "no type"),
        (SERVER.with(&discover, MessageType::Offer, &[DhcpOption::AddressLeaseTime(0)]).packet, "a lease of no time"),
    ];
    for (packet, what) in cases {
        run.receive(SERVER.mac, &packet);
        assert!(run.is_silent(), "{what}");
        run.now += seconds(1);
    }
    run.receive(Mac([1, 0, 0x5e, 0, 0, 1]), &good.packet);
    assert!(run.is_silent(), "from a group");
    run.reply(&good);
    let request = run.message();

    for (reply, what) in [
        (OTHER.ack(&request), "another server's ACK"),
        (OTHER.nak(&request), "another server's NAK"),
        (SERVER.reply(&request, MessageType::Ack, OTHER.address), "another address"),
        (SERVER.offer(&request), "a second offer"),
    ] {
        run.reply(&reply);
        assert!(run.is_silent(), "{what}");
    }
    run.reply(&SERVER.ack(&request));
    assert_eq!(run.client.probed(), Some(ADDRESS));
}

#[test]
fn of_two_servers_the_first_offer_counts() {
    let mut run = Run::started();
    let discover = run.message();
    run.reply(&OTHER.offer(&discover));
    run.reply(&SERVER.offer(&discover));
    let request = run.message();
    assert!(run.is_silent());
    assert_eq!((request.server(), request.wanted()), (Some(OTHER.id), Some(OTHER.address)));
}

#[test]
fn a_refusal_starts_over_each_time_later() {
    let mut run = Run::started();
    let mut waits = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..4 {
        let discover = run.message();
        numbers.push(discover.xid());
        run.reply(&SERVER.offer(&discover));
        let request = run.message();
        run.reply(&SERVER.nak(&request));
        assert!(run.is_silent());
        let why = run.client.hindrance(run.now).unwrap().to_string();
        assert_eq!(why, "the server 192.0.2.1 refused 192.0.2.50 (DHCPNAK): no lease?here");
        let refused = run.now;
        run.advance();
        waits.push(run.now.saturating_sub(refused).as_millis());
    }
    assert!(waits.windows(2).all(|pair| pair[1] > pair[0]), "{waits:?}");
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

#[test]
fn a_lease_is_renewed_by_unicast_then_by_broadcast_then_lost() {
    let mut run = Run::bound();
    let start = run.client.lease().unwrap().since;
    run.advance();
    assert_eq!(run.now, start + HOUR / 2);
    let renewal = run.message();
    assert_eq!((renewal.kind(), renewal.from, renewal.to), (MessageType::Request, ADDRESS, SERVER.id));
    assert!(renewal.is_routed);
    assert_eq!((renewal.message.ciaddr(), renewal.wanted(), renewal.server()), (ADDRESS, None, None));
    run.now += seconds(1);
    run.reply(&OTHER.nak(&renewal));
    assert!(run.client.lease().is_some(), "a NAK of a server that has nothing to do with it");
    run.reply(&OTHER.reply(&renewal, MessageType::Ack, ADDRESS));
    assert_eq!(run.events(), [], "nor does its ACK count");
    run.reply(&SERVER.ack(&renewal));
    let [ClientEvent::Renewed(lease)] = &run.events()[..] else { panic!("not renewed") };
    assert_eq!(lease.since, start + HOUR / 2, "from the request on");
    assert!(!run.client.is_listening());

    let mut routed = 0;
    let rebinding = loop {
        run.advance();
        let message = run.message();
        assert_eq!(message.is_routed, run.now < lease.since + HOUR * 7 / 8);
        if !message.is_routed {
            break message;
        }
        routed += 1;
    };
    assert!((4..=6).contains(&routed), "{routed}");
    assert_eq!(run.now, lease.since + HOUR * 7 / 8);
    assert_eq!((rebinding.mac, rebinding.to), (Mac([0xff; 6]), Ipv4Addr::BROADCAST));
    assert_eq!((rebinding.message.ciaddr(), rebinding.wanted(), rebinding.server()), (ADDRESS, None, None));
    run.reply(&OTHER.reply(&rebinding, MessageType::Ack, ADDRESS));
    let [ClientEvent::Renewed(lease)] = &run.events()[..] else { panic!("not renewed") };
    assert_eq!(lease.server, OTHER.id);

    let end = lease.expires_at().unwrap();
    while run.now < end {
        assert!(run.client.lease().is_some());
        run.advance();
    }
    assert_eq!(run.now, end);
    assert!(matches!(&run.events()[..], [ClientEvent::Lost { reason: LossReason::Expired, .. }]));
    assert_eq!(run.client.lease(), None);
    let last = run.messages().pop().unwrap();
    assert_eq!((last.kind(), last.wanted()), (MessageType::Discover, Some(ADDRESS)));
}

#[test]
fn a_refused_renewal_ends_the_lease_at_once() {
    let mut run = Run::bound();
    run.advance();
    let renewal = run.message();
    run.reply(&SERVER.nak(&renewal));
    let [ClientEvent::Lost { lease, reason }] = &run.events()[..] else { panic!("not lost") };
    assert_eq!(lease.address, ADDRESS);
    assert_eq!(reason, &LossReason::Refused { server: SERVER.id, message: "no lease?here".into() });
    assert_eq!(run.client.lease(), None);
    run.advance();
    assert_eq!(run.message().kind(), MessageType::Discover);
}

#[test]
fn a_lease_of_seconds_is_asked_for_several_times_before_it_ends() {
    let mut run = Run::bound_for(8);
    let lease = run.client.lease().unwrap().clone();
    let mut messages = 0;
    while run.now < lease.expires_at().unwrap() {
        run.advance();
        messages += run.messages().len();
    }
    assert!((4..=8).contains(&messages), "{messages}");
    assert!(matches!(&run.events()[..], [ClientEvent::Lost { reason: LossReason::Expired, .. }]));
}

#[test]
fn a_lease_for_ever_has_no_deadline() {
    let run = Run::bound_for(u32::MAX);
    assert_eq!(run.client.deadline(), None);
    assert_eq!(run.client.lease().unwrap().expires_at(), None);
}

#[test]
fn times_out_of_order_are_replaced() {
    let times = |lease, renewal, rebinding| {
        let mut run = Run::requested();
        let request = run.message();
        let times =
            [DhcpOption::AddressLeaseTime(lease), DhcpOption::Renewal(renewal), DhcpOption::Rebinding(rebinding)];
        run.reply(&SERVER.with(&request, MessageType::Ack, &times));
        run.finish_probing();
        let times = run.client.lease().unwrap().times;
        (times.renewal.as_secs(), times.rebinding.as_secs())
    };
    assert_eq!(times(800, 100, 200), (100, 200));
    assert_eq!(times(800, 300, 200), (200, 200), "not after T2");
    assert_eq!(times(800, 900, 900), (400, 700));
    assert_eq!(times(800, 0, 0), (400, 700));
}

#[test]
fn a_restarted_client_asks_for_the_address_that_it_had() {
    let lease = Run::bound().client.lease().unwrap().clone();
    let mut run = Run::rebooted(&lease, false);
    let request = run.message();
    assert_eq!((request.kind(), request.wanted(), request.server()), (MessageType::Request, Some(ADDRESS), None));
    assert_eq!((request.to, request.message.ciaddr()), (Ipv4Addr::BROADCAST, Ipv4Addr::UNSPECIFIED));
    assert_eq!(run.client.lease(), None);
    run.reply(&SERVER.ack(&request));
    run.finish_probing();
    assert!(matches!(&run.events()[..], [ClientEvent::Bound(_)]), "it was probed for");

    let mut run = Run::rebooted(&lease, true);
    assert_eq!(run.client.lease(), Some(&lease), "the link has it");
    let request = run.message();
    run.reply(&SERVER.ack(&request));
    assert!(matches!(&run.events()[..], [ClientEvent::Renewed(_)]));
    assert_eq!(run.client.probed(), None);
}

#[test]
fn a_restarted_client_whose_server_is_silent_uses_the_lease_until_it_ends() {
    let lease = Run::bound().client.lease().unwrap().clone();
    let mut run = Run::rebooted(&lease, true);
    while run.now < lease.expires_at().unwrap() {
        assert_eq!(run.client.lease(), Some(&lease));
        assert_eq!(run.events(), []);
        run.advance();
    }
    assert!(matches!(&run.events()[..], [ClientEvent::Lost { reason: LossReason::Expired, .. }]));

    let mut run = Run::rebooted(&lease, false);
    while run.messages().iter().all(|message| message.kind() == MessageType::Request) {
        run.advance();
    }
    let why = run.client.hindrance(run.now).unwrap().to_string();
    assert!(why.starts_with("DHCPREQUEST for the former address got no answer: it was sent 2 times"), "{why}");
}

#[test]
fn a_restarted_client_whose_lease_has_ended_starts_over() {
    let mut lease = Run::bound_for(10).client.lease().unwrap().clone();
    lease.since = Duration::ZERO;
    let mut run = Run::rebooted(&lease, false);
    assert_eq!(run.message().wanted(), Some(ADDRESS));
    assert_eq!(run.events(), []);
    let mut run = Run::rebooted(&lease, true);
    assert_eq!(run.message().kind(), MessageType::Discover);
    assert!(matches!(&run.events()[..], [ClientEvent::Lost { reason: LossReason::Expired, .. }]));
}

/// So that not all clients of a caller that was restarted ask at once.
#[test]
fn a_restored_client_sends_nothing_until_it_confirms_and_loses_its_lease_at_its_end() {
    let lease = Run::bound().client.lease().unwrap().clone();
    let mut run = Run::rebooted(&lease, true);
    run.client.restore(run.now, lease.clone(), true);
    run.take();
    assert_eq!((run.client.lease(), run.client.is_confirming()), (Some(&lease), false));
    assert_eq!(run.client.hindrance(run.now), Some(Hindrance::Unconfirmed));
    run.now += Duration::from_mins(1);
    run.client.confirm(run.now);
    assert!(run.client.is_confirming());
    let request = run.message();
    assert_eq!((request.kind(), request.wanted()), (MessageType::Request, Some(ADDRESS)));
    run.client.confirm(run.now);
    assert!(run.messages().is_empty(), "once");
    run.reply(&SERVER.ack(&request));
    let [ClientEvent::Renewed(renewed)] = &run.events()[..] else { panic!() };
    assert_eq!(renewed.since, run.now, "it counts from the request");

    run.client.restore(run.now, lease.clone(), true);
    assert_eq!(run.client.deadline(), lease.expires_at());
    run.advance();
    assert!(matches!(&run.events()[..], [ClientEvent::Lost { reason: LossReason::Expired, .. }]));
    assert_eq!((run.client.lease(), run.client.deadline()), (None, None));
    assert!(run.messages().is_empty());
    assert!(!run.client.release(run.now), "it is not given back any more");

    run.client.restore(run.now, lease.clone(), false);
    run.client.confirm(run.now);
    assert_eq!((run.message().kind(), run.events()), (MessageType::Discover, Vec::new()));

    let mut run = Run::rebooted(&lease, true);
    run.client.restore(run.now, lease, true);
    run.take();
    assert!(run.client.release(run.now));
    assert!(run.messages().iter().all(|message| message.kind() == MessageType::Release));
}

/// The lease ends between two requests.
#[test]
fn a_restarted_client_whose_server_is_silent_loses_its_lease_at_its_end() {
    let lease = Run::bound_for(10).client.lease().unwrap().clone();
    let mut run = Run::rebooted(&lease, true);
    while run.events().is_empty() {
        run.advance();
    }
    assert_eq!(Some(run.now), lease.expires_at());
}

#[test]
fn a_refusal_of_its_own_server_counts_at_once_and_of_another_if_its_own_is_silent() {
    let lease = Run::bound().client.lease().unwrap().clone();
    let mut run = Run::rebooted(&lease, true);
    let request = run.message();
    run.reply(&SERVER.nak(&request));
    assert!(matches!(&run.events()[..], [ClientEvent::Lost { .. }]));

    let mut run = Run::rebooted(&lease, true);
    let request = run.message();
    run.reply(&OTHER.nak(&request));
    assert_eq!(run.client.lease(), Some(&lease));
    run.reply(&SERVER.ack(&request));
    assert!(matches!(&run.events()[..], [ClientEvent::Renewed(_)]), "its own server has the last word");

    let mut run = Run::rebooted(&lease, true);
    let request = run.message();
    run.reply(&OTHER.nak(&request));
    for _ in 0..4 {
        run.advance();
    }
    let [ClientEvent::Lost { reason: LossReason::Refused { server, .. }, .. }] = &run.events()[..] else { panic!() };
    assert_eq!(*server, OTHER.id);
}

#[test]
fn an_address_that_another_host_has_is_declined() {
    let mut run = Run::requested();
    let request = run.message();
    run.reply(&SERVER.ack(&request));
    run.arp();
    run.arp_reply(ADDRESS);
    let decline = run.message();
    assert_eq!((decline.kind(), decline.to), (MessageType::Decline, Ipv4Addr::BROADCAST));
    assert_eq!((decline.wanted(), decline.server()), (Some(ADDRESS), Some(SERVER.id)));
    assert_eq!(decline.option(OptionCode::ClientIdentifier), Some(b"\0c-one/net/eth0".to_vec()));
    assert_eq!(run.events(), [ClientEvent::Declined { address: ADDRESS, by: OTHER.mac }]);
    assert_eq!(run.client.hindrance(run.now), Some(Hindrance::InUse { address: ADDRESS, by: OTHER.mac }));
    let declined = run.now;
    run.advance();
    assert_eq!(run.now.saturating_sub(declined), Timing::default().decline_wait);
    assert_eq!(run.message().kind(), MessageType::Discover);
    run.arp_reply(ADDRESS);
    assert!(run.is_silent(), "nothing is probed for now");
}

#[test]
fn an_answer_for_another_address_is_no_conflict() {
    let mut run = Run::requested();
    let request = run.message();
    run.reply(&SERVER.ack(&request));
    run.arp();
    run.arp_reply(OTHER.address);
    assert!(run.is_silent());
    run.finish_probing();
}

#[test]
fn a_lease_is_given_back_by_unicast() {
    let mut run = Run::bound();
    let before = run.client.lease().unwrap().clone();
    assert!(run.client.release(run.now));
    let releases = run.messages();
    let macs: Vec<Mac> = releases.iter().map(|release| release.mac).collect();
    assert_eq!(macs, [before.server_mac, Mac([0xff; 6])], "and for a server on the link in a frame for everyone");
    for release in releases {
        assert_eq!((release.kind(), release.from, release.to), (MessageType::Release, ADDRESS, SERVER.id));
        assert_eq!((release.message.ciaddr(), release.server(), release.wanted()), (ADDRESS, Some(SERVER.id), None));
        assert!(!release.is_routed);
    }
    assert_eq!((run.client.lease(), run.client.deadline()), (None, None));
    assert!(!run.client.release(run.now), "there is none any more");

    let mut run = Run::requested();
    assert_eq!(run.message().kind(), MessageType::Request);
    assert!(run.client.release(run.now), "the server may have assigned it");
    assert_eq!(run.message().kind(), MessageType::Release);

    let mut run = Run::started();
    assert!(!run.client.release(run.now));
    assert!(run.is_silent(), "the DHCPDISCOVER is not sent any more");
}

#[test]
fn a_flood_is_not_handled_and_passes() {
    let mut run = Run::started();
    let discover = run.message();
    let offer = SERVER.offer(&discover);
    let mut other = Run::new(9);
    other.client.start(other.now, None);
    let other_number = OTHER.offer(&other.message());
    for number in 0..PACKETS_PER_SECOND * 2 {
        assert_eq!(run.client.closed_until(run.now), None);
        if number % 2 == 0 { run.receive(OTHER.mac, b"garbage") } else { run.reply(&other_number) }
    }
    assert!(run.is_silent());
    let without_a_kind = SERVER.without(&discover, MessageType::Offer, OptionCode::MessageType);
    for _ in 0..PACKETS_PER_SECOND {
        assert_eq!(run.client.closed_until(run.now), None, "who has not seen the request takes nothing from the limit");
        run.reply(&without_a_kind);
    }
    let end = run.client.closed_until(run.now).unwrap();
    run.reply(&offer);
    assert!(run.is_silent(), "it is one too many");
    run.now = end;
    assert_eq!(run.client.closed_until(run.now), None);
    run.reply(&offer);
    assert_eq!(run.message().kind(), MessageType::Request);
}

#[test]
fn options_in_the_fields_for_names_are_read() {
    let mut run = Run::requested();
    let request = run.message();
    run.reply(&SERVER.overloaded(&request));
    run.finish_probing();
    let parameters = &run.client.lease().unwrap().parameters;
    assert_eq!((parameters.host_name.as_deref(), parameters.domain.as_deref()), (Some("from-file"), Some("sname")));
}

#[test]
fn a_server_with_many_options_gives_a_lease() {
    let mut run = Run::requested();
    let request = run.message();
    run.reply(&Server { filler: 1_500, ..SERVER }.ack(&request));
    run.finish_probing();
}
