//! The transport itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cnikit_netlink::{Batch, Netlink, Socket};
use cnikit_netns::Netns;
use cnikit_process::Deadline;
use netlink_packet_core::NLM_F_DUMP_INTR;

use crate::scene::{address, inside, net, netns, pair};

const ROUTE: isize = 0;
const NETFILTER: isize = 12;
const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const AF_INET6: u8 = 10;
const NLMSG_DONE: u8 = 3;
const REQUEST: u16 = 1;
const REQUEST_ACK: u16 = 5;
const REQUEST_DUMP: u16 = 0x301;

/// An `RTM_GETLINK` request for the link with this index.
fn get_link(flags: u16, sequence: u32, index: i32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(32_u32.to_ne_bytes());
    bytes.extend(RTM_GETLINK.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(index.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

#[test]
fn answers_and_refusals_of_one_datagram_come_with_their_sequence_numbers() {
    let mut socket = Socket::inside(&netns(), ROUTE).unwrap();
    let numbers: Vec<u32> = (0..3).map(|_| socket.next_sequence()).collect();
    let datagram: Vec<u8> =
        [99, 1, 98].iter().zip(&numbers).flat_map(|(index, number)| get_link(REQUEST_ACK, *number, *index)).collect();
    let exchanged = socket.exchange(&datagram, &numbers).unwrap();
    let refused: Vec<(u32, i32)> = exchanged.errors.iter().map(|(number, refusal)| (*number, refusal.errno)).collect();
    assert_eq!(refused, [(numbers[0], libc::ENODEV), (numbers[2], libc::ENODEV)]);
    assert_eq!(exchanged.messages.len(), 1);
    assert_eq!(exchanged.messages[0][8..12], numbers[1].to_ne_bytes());
}

#[test]
fn a_request_without_ack_ends_with_its_answer_or_its_error() {
    let mut socket = Socket::inside(&netns(), ROUTE).unwrap();
    for (index, expected) in [(1, (1, 0)), (99, (0, 1)), (1, (1, 0))] {
        let number = socket.next_sequence();
        let exchanged = socket.exchange(&get_link(REQUEST, number, index), &[number]).unwrap();
        assert_eq!((exchanged.messages.len(), exchanged.errors.len()), expected);
    }
    let numbers = [socket.next_sequence(), socket.next_sequence()];
    let datagram = [get_link(REQUEST, numbers[0], 1), get_link(REQUEST_ACK, numbers[1], 1)].concat();
    let exchanged = socket.exchange(&datagram, &numbers).unwrap();
    let answered: Vec<&[u8]> = exchanged.messages.iter().map(|message| &message[8..12]).collect();
    assert_eq!(answered, numbers.each_ref().map(|number| number.to_ne_bytes()));
}

#[test]
fn an_answer_that_was_not_awaited_is_not_the_next_answer() {
    let mut socket = Socket::inside(&netns(), ROUTE).unwrap();
    let first = socket.next_sequence();
    let second = socket.next_sequence();
    assert_eq!(socket.exchange(&get_link(REQUEST_ACK, first, 1), &[]).unwrap().messages.len(), 0);
    let exchanged = socket.exchange(&get_link(REQUEST_ACK, second, 99), &[second]).unwrap();
    assert_eq!((exchanged.messages.len(), exchanged.errors.len()), (0, 1));
}

#[test]
fn a_dump_has_all_messages_and_a_refused_one_has_the_reason() {
    let (netns, netlink) = inside();
    pair(&netns, &netlink);
    let mut socket = Socket::inside(&netns, ROUTE).unwrap();
    assert_eq!(socket.dump(&get_link(REQUEST_DUMP, 0, 0)).unwrap().len(), 3);
    let error = socket.dump(&get_link(REQUEST_DUMP, 0, 1)).unwrap_err();
    assert_eq!(error.errno, libc::EINVAL);
    assert!(error.kernel.is_some(), "strict checking is on: {error}");
    assert_eq!(socket.dump(&get_link(REQUEST_DUMP, 0, 0)).unwrap().len(), 3);
}

#[test]
fn an_unasked_protocol_is_an_error_with_its_number() {
    let error = Socket::here(9999).err().unwrap();
    assert!(error.errno != 0, "{error}");
    Socket::inside(&netns(), NETFILTER).unwrap();
}

#[test]
fn sixty_four_threads_dump_at_once() {
    let netns = netns();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let mut socket = Socket::inside(&netns, ROUTE).unwrap();
                for _ in 0..20 {
                    assert_eq!(socket.dump(&get_link(REQUEST_DUMP, 0, 0)).unwrap().len(), 1);
                }
            });
        }
    });
}

/// Dumps all IPv6 addresses once, with `change` between the first datagram and the next. Returns whether the kernel marked the
/// dump as interrupted.
#[expect(clippy::unwrap_used, reason = "a witness that cannot see has failed")]
fn is_interrupted_by(netns: &Netns, change: impl FnOnce()) -> bool {
    let socket = netns.enter(|_| netlink_sys::Socket::new(ROUTE).unwrap()).unwrap();
    socket.send_to(&get_addresses(), &netlink_sys::SocketAddr::new(0, 0), 0).unwrap();
    let mut datagram = socket.recv_from_full().unwrap().0;
    change();
    loop {
        let mut rest = &datagram[..];
        while let [a, b, c, d, kind, _, ..] = rest {
            match (message_flags(rest) & NLM_F_DUMP_INTR, *kind) {
                (0, NLMSG_DONE) => return false,
                (0, _) => rest = &rest[u32::from_ne_bytes([*a, *b, *c, *d]).next_multiple_of(4) as usize..],
                _ => return true,
            }
        }
        datagram = socket.recv_from_full().unwrap().0;
    }
}

fn get_addresses() -> Vec<u8> {
    let length = 24_u32.to_ne_bytes();
    let kind = RTM_GETADDR.to_ne_bytes();
    let flags = REQUEST_DUMP.to_ne_bytes();
    [&length[..], &kind, &flags, &[0; 8], &[AF_INET6, 0, 0, 0], &[0; 4]].concat()
}

fn message_flags(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[6], message[7]])
}

/// The most changes that are made while a dump is read.
const CHANGES_PER_DUMP: usize = 40;

#[test]
fn a_dump_that_changes_underway_is_read_again_until_it_is_whole() {
    let (netns, netlink) = inside();
    let (near, far) = pair(&netns, &netlink);
    let mut batch = Batch::new();
    for number in 0..1500 {
        batch.add_address(near.index, &address(&format!("fd00::{number:x}/128")).no_dad(true));
    }
    netlink.send(batch).unwrap();
    // A worker of the kernel takes up each new address some time later (`addrconf_dad_work`), which is a change too.
    let settled = Deadline::after(Duration::from_mins(1));
    while is_interrupted_by(&netns, || ()) {
        assert!(!settled.passed(), "the kernel goes on changing addresses");
    }
    assert!(is_interrupted_by(&netns, || netlink.add_address(far.index, &address("fd09::2/128")).unwrap()));
    let done = AtomicBool::new(false);
    let allowed = AtomicUsize::new(0);
    let changes = AtomicUsize::new(0);
    let deadline = Deadline::after(Duration::from_mins(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let netlink = Netlink::inside(&netns).unwrap();
            while !done.load(Ordering::Relaxed) && !deadline.passed() {
                // Without a limit no attempt would be undisturbed on a slow machine with one processor.
                if changes.load(Ordering::Relaxed) >= allowed.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                netlink.add_address(far.index, &address("fd09::1/128")).unwrap();
                changes.fetch_add(1, Ordering::Relaxed);
                netlink.delete_address(far.index, net("fd09::1/128")).unwrap();
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut socket = Socket::inside(&netns, ROUTE).unwrap();
        let mut dumps = Vec::new();
        // A change waits for every other user of the kernel's lock: those dumps count that saw one.
        while dumps.len() < 20 && !deadline.passed() {
            let before = changes.load(Ordering::Relaxed);
            allowed.store(before + CHANGES_PER_DUMP, Ordering::Relaxed);
            let dump = socket.dump(&get_addresses());
            if changes.load(Ordering::Relaxed) > before {
                dumps.push(dump);
            }
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(dumps.len(), 20, "of {} changes too few were made during a dump", changes.load(Ordering::Relaxed));
        for dump in dumps {
            let mut messages = dump.unwrap();
            assert!(messages.iter().all(|message| message_flags(message) & NLM_F_DUMP_INTR == 0));
            messages.retain(|message| message[20..24] == near.index.to_ne_bytes());
            assert_eq!((messages.len(), messages.iter().collect::<BTreeSet<_>>().len()), (1500, 1500));
        }
    });
}
