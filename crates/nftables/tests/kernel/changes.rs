//! Replacing, putting back, releasing and sweeping rules, while the rules of other programs stay.

use std::time::{Duration, Instant};

use cnikit_netlink::Socket;
use cnikit_nftables::*;

use crate::host::Host;
use crate::scene::{FRAME, added, frame, frame_without_comments, masquerade, replace_inspected};

/// Rules of other programs in the chain of our rules: without comment, with one, with expressions that we never write.
const FOREIGN: &str = r#"
    add rule inet plugins_masquerade masq_checks ip saddr 10.9.0.1 masquerade
    add rule inet plugins_masquerade masq_checks ip saddr 10.9.0.2 counter packets 3 bytes 4 masquerade comment "theirs"
    add rule inet plugins_masquerade masq_checks tcp dport { 80, 443 } masquerade fully-random comment "theirs too"
"#;

fn one(comment: &str) -> Vec<Rule> {
    vec![masquerade("10.0.0.2", "10.0.0.0/24", comment)]
}

fn texts(found: &[InstalledRule]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn replace_returns_the_old_rules_and_put_back_restores_them() {
    let host = Host::new();
    let nftables = host.nftables();
    let old = vec![masquerade("10.0.0.2", "10.0.0.0/24", "aa-1"), masquerade("fd00::2", "fd00::/64", "aa-1")];
    assert_eq!(nftables.replace(&frame(), "aa-1", &old).unwrap(), []);
    let listing = host.listing();
    let before = nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
    assert_eq!(before.iter().filter_map(InstalledRule::rule).cloned().collect::<Vec<_>>(), old);
    assert_eq!(texts(&nftables.rules(&frame(), "aa-1").unwrap()), [one("aa-1")[0].to_string()]);
    nftables.put_back(&frame(), "aa-1", &before).unwrap();
    assert_eq!(host.listing(), listing);
}

/// The caller needs the former rules for its undo step even if the answer to the change is lost.
#[test]
fn the_rules_before_a_change_are_passed_to_the_caller() {
    let host = Host::new();
    let (old, mut looks) = (one("aa-1, old"), 0);
    host.nftables().replace(&frame(), "aa-1", &old).unwrap();
    let note = |looked: &Snapshot<'_>| {
        looks += 1;
        let found = looked.before();
        assert_eq!(found, host.nftables().rules(&frame(), "aa-1").unwrap(), "they still stand");
        assert_eq!(found.iter().filter_map(InstalledRule::rule).cloned().collect::<Vec<_>>(), old);
        Ok::<(), Error>(())
    };
    replace_inspected(&host.nftables(), &frame(), "aa-1", &one("aa-1"), note).unwrap();
    assert_eq!(looks, 1);
}

#[test]
fn a_rule_that_cannot_be_decompiled_is_restored_byte_for_byte() {
    let (host, mut untouched) = (Host::new(), FRAME.to_owned());
    untouched.push_str(
        "add rule inet plugins_masquerade masq_checks ip saddr 10.0.0.7 counter packets 5 bytes 6 \
         tcp dport 80 log prefix \"x\" masquerade random comment \"aa-1\"\n",
    );
    host.nft(&untouched);
    let bytes = host.bytes();
    let nftables = host.nftables();
    let before = nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
    assert_ne!(host.bytes(), bytes);
    assert_eq!(before.len(), 1);
    assert_eq!(before[0].rule(), None);
    assert_eq!(before[0].comment(), Some("aa-1"));
    nftables.put_back(&frame(), "aa-1", &before).unwrap();
    assert_eq!(host.bytes(), bytes);
}

#[test]
fn put_back_of_an_empty_state_removes_the_added_rules() {
    let host = Host::new();
    let nftables = host.nftables();
    let before = nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
    nftables.put_back(&frame(), "aa-1", &before).unwrap();
    assert_eq!(nftables.rules(&frame(), "").unwrap(), []);
}

#[test]
fn the_same_rules_again_change_nothing() {
    let host = Host::new();
    let nftables = host.nftables();
    nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
    let handles = host.handles();
    let before = nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
    assert_eq!(texts(&before), [one("aa-1")[0].to_string()]);
    assert_eq!(host.handles(), handles);
}

#[test]
fn a_rule_without_the_prefix_is_refused() {
    let host = Host::new();
    let error = host.nftables().replace(&frame(), "aa-1", &one("bb-1")).unwrap_err();
    assert!(error.to_string().contains("has to begin with \"aa-1\""), "{error}");
    assert_eq!(host.listing(), "");
}

#[test]
fn foreign_rules_and_other_tables_stay_as_they_are() {
    let host = Host::new();
    host.nft(&format!("{FRAME}{FOREIGN}"));
    for other in ["ip plugins_masquerade", "inet other"] {
        let rule = format!("add rule {other} masq_checks ip saddr 10.0.0.2 masquerade comment \"aa-1\"");
        host.nft(&format!("add table {other}\nadd chain {other} masq_checks\n{rule}"));
    }
    let handles = host.handles();
    let nftables = host.nftables();
    nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
    nftables.replace(&frame(), "aa-1", &one("aa-1, anew")).unwrap();
    assert_eq!(nftables.rules(&frame(), "aa-1").unwrap().len(), 1);
    assert_eq!(nftables.release(&frame(), "aa-1").unwrap(), 1);
    assert_eq!(nftables.sweep(&frame(), "aa", |_| false).unwrap(), 0);
    assert_eq!(host.handles(), handles);
}

#[test]
fn a_frame_that_another_program_made_is_whole_with_comments_and_without() {
    for theirs in [FRAME.to_owned(), frame_without_comments()] {
        let host = Host::new();
        host.nft(&theirs);
        let handles = host.handles();
        let nftables = host.nftables();
        nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
        assert_eq!(nftables.verify(&frame(), "aa-1", &one("aa-1")).unwrap(), [""; 0]);
        nftables.release(&frame(), "aa-1").unwrap();
        assert_eq!(host.handles(), handles);
        // The other program flushes the base chain at its next start; our layout has to be complete after that too.
        host.nft(&theirs);
        assert_eq!(nftables.verify(&frame(), "", &[]).unwrap(), [""; 0]);
    }
}

#[test]
fn rules_that_another_program_made_are_found_by_their_comment() {
    let host = Host::new();
    host.nft(&format!("{FRAME}{}{}", added(&one("aa-1, net: x")[0]), added(&one("aa-2, net: x")[0])));
    let nftables = host.nftables();
    assert_eq!(texts(&nftables.rules(&frame(), "aa-1").unwrap()), [one("aa-1, net: x")[0].to_string()]);
    assert_eq!(nftables.release(&frame(), "aa-1").unwrap(), 1);
    assert_eq!(texts(&nftables.rules(&frame(), "").unwrap()), [one("aa-2, net: x")[0].to_string()]);
}

#[test]
fn a_release_where_nothing_is_makes_nothing() {
    let host = Host::new();
    let nftables = host.nftables();
    assert_eq!(nftables.release(&frame(), "aa-1").unwrap(), 0);
    assert_eq!(nftables.sweep(&frame(), "aa", |_| false).unwrap(), 0);
    assert_eq!(nftables.rules(&frame(), "aa").unwrap(), []);
    assert_eq!(host.listing(), "");
    host.nft("add table inet plugins_masquerade");
    let listing = host.listing();
    assert_eq!(nftables.release(&frame(), "aa-1").unwrap(), 0);
    assert_eq!(host.listing(), listing);
}

#[test]
fn a_sweep_removes_invalid_rules_of_one_network_only() {
    let host = Host::new();
    let nftables = host.nftables();
    for comment in ["aa-1", "aa-2", "aa-3", "bb-1"] {
        nftables.replace(&frame(), comment, &one(comment)).unwrap();
    }
    assert_eq!(nftables.sweep(&frame(), "aa", |comment| comment == "aa-2").unwrap(), 2);
    let left = nftables.rules(&frame(), "").unwrap();
    assert_eq!(left.iter().filter_map(InstalledRule::comment).collect::<Vec<_>>(), ["aa-2", "bb-1"]);
}

#[test]
fn a_sweep_of_thousands_removes_them_all() {
    let host = Host::new();
    host.nft(FRAME);
    // Without privilege the buffer of a socket is small, so nft gets the rules in portions.
    for portion in (0..2345).collect::<Vec<_>>().chunks(200) {
        host.nft(&portion.iter().map(|number| added(&one(&format!("aa-{number}"))[0])).collect::<String>());
    }
    assert_eq!(host.nftables().sweep(&frame(), "aa-", |comment| comment == "aa-2000").unwrap(), 2344);
    assert_eq!(host.nftables().rules(&frame(), "").unwrap().len(), 1);
}

fn closing<T>(socket: T) -> Duration {
    let began = Instant::now();
    drop(socket);
    began.elapsed()
}

/// Closing a netfilter socket waits until the kernel has freed removed rules, so our sockets are left to the kernel to close.
#[test]
fn closing_after_a_removal_does_not_wait_for_the_kernel() {
    let host = Host::new();
    let sockets = || {
        let listed = host.stdout_of("cat", &["/proc/net/netlink"]);
        // The columns are protocol and port; port 0 is the kernel's socket.
        let of =
            |line: &str| line.split_whitespace().nth(1) == Some("12") && line.split_whitespace().nth(2) != Some("0");
        listed.lines().filter(|line| of(line)).count()
    };
    let removed = || {
        let nftables = host.nftables();
        nftables.replace(&frame(), "aa-1", &one("aa-1")).unwrap();
        nftables.release(&frame(), "aa-1").unwrap();
        nftables
    };
    let (mut ours, mut plain) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..20 {
        ours += closing(removed());
        drop(removed());
        plain += closing(Socket::inside(&host.netns, 12).unwrap());
    }
    println!("closed 20 times: ours {ours:?}, a plain one {plain:?}");
    // Other processes may delay both measurements a little, but the kernel's wait is 8 ms or more. There is none with a single
    // processor, on which the rules have been freed by then. Before Linux 6.9 our close waits too.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).take(2).collect();
    let waits = plain > 20 * Duration::from_millis(4) && version >= vec![6, 9];
    assert!(!waits || ours < plain / 2, "ours {ours:?}, a plain one {plain:?}");
    // Every socket is closed by itself, without a garbage collection that another process starts.
    let deadline = Instant::now() + Duration::from_secs(10);
    while sockets() > 0 {
        assert!(Instant::now() < deadline, "{} sockets are left", sockets());
        std::thread::yield_now();
    }
}

#[test]
fn a_refused_rule_leaves_everything_as_it_was_and_is_named() {
    let host = Host::new();
    let hook = Hook { kind: HookKind::Filter, hook: HookPoint::Forward, priority: 0 };
    let chains = vec![Chain { name: "forward", comment: None, hook: Some(hook) }];
    let filter = TableLayout { chains, rule_chains: vec!["forward"], ..TableLayout::of(TableFamily::Inet, "f") };
    // The kernel accepts masquerade in chains of type nat only.
    let error = host.nftables().replace(&filter, "aa-1", &one("aa-1")).unwrap_err();
    assert_eq!(error.errno, 95, "{error}");
    assert!(error.unsupported());
    assert!(error.to_string().starts_with("add rule \"`ip saddr 10.0.0.2"), "{error}");
    assert!(error.to_string().contains("to chain forward of table inet f\": Operation not supported"), "{error}");
    assert_eq!(host.listing(), "");
}

#[test]
fn a_missing_chain_is_an_error_within_seconds() {
    let host = Host::new();
    let lost = Rule { matches: vec![], verdict: Verdict::Goto("nowhere".into()), comment: Some("aa-1".to_owned()) };
    let start = Instant::now();
    let error = host.nftables().replace(&frame(), "aa-1", &[lost]).unwrap_err();
    assert!(error.is_absent(), "{error}");
    assert!(error.object.starts_with("`goto nowhere comment \"aa-1\"` to chain masq_checks"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(host.listing(), "");
}

#[test]
fn a_table_of_another_family_is_another_table() {
    let host = Host::new();
    let ip = TableLayout { family: TableFamily::Ip, prologue: vec![], ..frame() };
    host.nftables().replace(&ip, "aa-1", &one("aa-1")).unwrap();
    assert_eq!(host.nftables().release(&frame(), "aa-1").unwrap(), 0);
    assert_eq!(host.nftables().release(&ip, "aa-1").unwrap(), 1);
}
