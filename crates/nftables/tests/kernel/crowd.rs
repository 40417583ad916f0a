//! Many at once.

use std::thread;

use cnikit_nftables::*;

use crate::host::Host;
use crate::scene::{FRAME, frame, masquerade};

fn rules(who: usize) -> Vec<Rule> {
    let comment = format!("aa-{who:02}, owner");
    let (ipv4, ipv6) = (format!("10.0.0.{}", who + 2), format!("fd00::{:x}", who + 2));
    vec![masquerade(&ipv4, "10.0.0.0/24", &comment), masquerade(&ipv6, "fd00::/64", &comment)]
}

fn prefix(who: usize) -> String {
    format!("aa-{who:02}")
}

/// Lets 32 do this at once, each with a socket of its own, as if they were processes.
pub(crate) fn crowd(host: &Host, work: impl Fn(usize, &Nftables) + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for who in 0..32 {
            scope.spawn(move || work(who, &host.nftables()));
        }
    });
}

#[test]
fn a_crowd_that_finds_nothing_makes_the_frame_once_and_loses_no_rule() {
    for _ in 0..5 {
        let host = Host::new();
        crowd(&host, |who, nftables| drop(nftables.replace(&frame(), &prefix(who), &rules(who)).unwrap()));
        let nftables = host.nftables();
        for who in 0..32 {
            assert_eq!(nftables.verify(&frame(), &prefix(who), &rules(who)).unwrap(), [""; 0]);
        }
        assert_eq!(nftables.rules(&frame(), "").unwrap().len(), 64);
        assert_eq!(host.listing().matches("goto masq_checks").count(), 1);
        crowd(&host, |who, nftables| assert_eq!(nftables.release(&frame(), &prefix(who)).unwrap(), 2));
        assert_eq!(nftables.rules(&frame(), "").unwrap(), []);
    }
}

#[test]
fn a_crowd_that_adds_and_removes_leaves_the_remaining_rules() {
    let host = Host::new();
    crowd(&host, |who, nftables| {
        for _ in 0..20 {
            nftables.replace(&frame(), &prefix(who), &rules(who)).unwrap();
            nftables.replace(&frame(), &prefix(who), &rules(who)[..1]).unwrap();
            assert_eq!(nftables.release(&frame(), &prefix(who)).unwrap(), 1);
        }
        if who % 2 == 0 {
            nftables.replace(&frame(), &prefix(who), &rules(who)).unwrap();
        }
    });
    let nftables = host.nftables();
    assert_eq!(nftables.rules(&frame(), "").unwrap().len(), 32);
    for who in (0..32).step_by(2) {
        assert_eq!(nftables.verify(&frame(), &prefix(who), &rules(who)).unwrap(), [""; 0]);
    }
}

#[test]
fn concurrent_releases_of_the_same_rules_all_succeed() {
    let host = Host::new();
    for _ in 0..20 {
        host.nftables().replace(&frame(), "aa-01", &rules(1)).unwrap();
        let removed = std::sync::atomic::AtomicUsize::new(0);
        crowd(&host, |_, nftables| {
            let count = nftables.release(&frame(), "aa-01").unwrap();
            removed.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(removed.into_inner(), 2);
    }
}

#[test]
fn a_program_that_refills_the_base_chain_meanwhile_disturbs_no_owner() {
    let host = Host::new();
    thread::scope(|scope| {
        let other = scope.spawn(|| (0..40).for_each(|_| host.nft(FRAME)));
        crowd(&host, |who, nftables| {
            while !other.is_finished() {
                nftables.replace(&frame(), &prefix(who), &rules(who)).unwrap();
                assert_eq!(nftables.release(&frame(), &prefix(who)).unwrap(), 2);
            }
            nftables.replace(&frame(), &prefix(who), &rules(who)).unwrap();
        });
    });
    let nftables = host.nftables();
    assert_eq!(nftables.rules(&frame(), "").unwrap().len(), 64);
    assert_eq!(nftables.verify(&frame(), "zz", &[]).unwrap(), [""; 0]);
    assert_eq!(host.listing().matches("goto masq_checks").count(), 1);
}

#[test]
fn repeated_deletion_of_the_table_only_delays_us() {
    let host = Host::new();
    thread::scope(|scope| {
        let vandal = scope.spawn(|| {
            (0..30).for_each(|_| drop(host.run("nft", &["delete", "table", "inet", "plugins_masquerade"])));
        });
        let nftables = host.nftables();
        while !vandal.is_finished() {
            nftables.replace(&frame(), "aa-01", &rules(1)).unwrap();
            nftables.replace(&frame(), "aa-01", &rules(2)[..1].iter().map(renamed).collect::<Vec<_>>()).unwrap();
            nftables.release(&frame(), "aa-01").unwrap();
        }
    });
    host.nftables().replace(&frame(), "aa-01", &rules(1)).unwrap();
    assert_eq!(host.nftables().verify(&frame(), "aa-01", &rules(1)).unwrap(), [""; 0]);
}

fn renamed(rule: &Rule) -> Rule {
    Rule { comment: Some("aa-01, renamed".to_owned()), ..rule.clone() }
}
