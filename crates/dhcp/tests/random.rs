//! The client among lossy, lying and refusing servers, by chance: what always holds.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

#[expect(dead_code, reason = "the scripted tests use all of it")]
mod script;

use std::time::Duration;

use cnikit_dhcp::v4::{ClientEvent, Lease, Transmit};
use dhcproto::v4::MessageType;
use fastrand::Rng;
use proptest::prelude::*;
use script::{ADDRESS, OTHER, Packet, Run, SERVER, Sent, Server, sent};

/// What a caller of the client knows of its lease.
#[derive(Default)]
struct Caller {
    lease: Option<Lease>,
    sent: u32,
}

impl Caller {
    /// Takes what the client sends and says. Events come in the only order that makes sense.
    fn take(&mut self, run: &mut Run) -> Vec<Sent> {
        for event in run.events() {
            match event {
                ClientEvent::Bound(lease) => {
                    assert!(self.lease.is_none(), "a second lease");
                    self.lease = Some(lease);
                }
                ClientEvent::Renewed(lease) => {
                    let former = self.lease.replace(lease.clone());
                    assert_eq!(former.unwrap().address, lease.address, "another address without a loss");
                }
                ClientEvent::Lost { lease, .. } => assert_eq!(self.lease.take(), Some(lease)),
                ClientEvent::Declined { .. } => assert!(self.lease.is_none()),
            }
        }
        assert_eq!(run.client.lease(), self.lease.as_ref());
        let packets = run.take();
        self.sent += u32::try_from(packets.len()).unwrap();
        packets.iter().filter(|packet| !matches!(packet, Transmit::Arp(_))).map(sent).collect()
    }
}

/// What a server of this kind replies, or another host.
fn replies(rng: &mut Rng, request: &Sent) -> Vec<Packet> {
    let mut replies = Vec::new();
    for server in [SERVER, OTHER] {
        let server = Server { lease: [1, 7, 120, 3_600, u32::MAX][rng.usize(..5)], ..server };
        let reply = match rng.u8(..10) {
            0 | 1 => continue, // lost
            2 => server.nak(request),
            3 => server.ack(request),
            4 => server.offer(request),
            _ if request.kind() == MessageType::Discover => server.offer(request),
            _ => server.reply(request, MessageType::Ack, request.wanted().unwrap_or(request.message.ciaddr())),
        };
        replies.push(if rng.u8(..8) == 0 { damaged(rng, reply) } else { reply });
    }
    replies
}

/// The packet with some bytes changed, or cut.
fn damaged(rng: &mut Rng, mut packet: Packet) -> Packet {
    for _ in 0..rng.u8(1..6) {
        let at = rng.usize(..packet.packet.len());
        packet.packet[at] = rng.u8(..);
    }
    if rng.bool() {
        packet.packet.truncate(rng.usize(..packet.packet.len()));
    }
    packet
}

fn one_life(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut run = Run::new(seed);
    let start = run.now;
    run.client.start(run.now, None);
    let mut caller = Caller::default();
    for _ in 0..200 {
        for request in caller.take(&mut run) {
            for reply in replies(&mut rng, &request) {
                run.now += Duration::from_millis(rng.u64(..50));
                run.reply(&reply);
                caller.take(&mut run);
            }
        }
        if rng.u8(..20) == 0 {
            run.arp_reply([ADDRESS, OTHER.address][rng.usize(..2)]);
            caller.take(&mut run);
        }
        // The machine sleeps at times.
        let late = if rng.u8(..10) == 0 { rng.u64(..10_000) } else { 0 };
        let Some(deadline) = run.client.deadline() else { break };
        run.now = deadline.max(run.now) + Duration::from_secs(late);
        let mut steps = 0;
        while run.client.deadline().is_some_and(|deadline| deadline <= run.now) {
            run.client.advance(run.now);
            steps += 1;
            assert!(steps < 4, "it runs in circles");
        }
        caller.take(&mut run);
        assert!(!run.client.lease().is_some_and(|lease| lease.has_expired(run.now)), "a lease that has ended");
    }
    // A lease of a second has a few packets a second, and its first probes are a twentieth of one apart.
    let seconds = u32::try_from(run.now.saturating_sub(start).as_secs()).unwrap();
    assert!(caller.sent <= 12 + 7 * seconds, "{} packets in {seconds} s", caller.sent);
    assert!(run.client.release(run.now) || caller.lease.is_none());
    assert_eq!((run.client.lease(), run.client.deadline()), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_has_one_valid_lease_or_none_and_floods_nobody(seed: u64) {
        one_life(seed);
    }

    #[test]
    fn no_packet_is_too_strange(from: [u8; 6], packet in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut run = Run::started();
        run.take();
        run.receive(cnikit_netlink::Mac(from), &packet);
        prop_assert!(run.is_silent());
        let mut run = Run::requested();
        run.take();
        run.client.receive_arp(run.now, &packet);
        prop_assert!(run.is_silent());
    }
}
