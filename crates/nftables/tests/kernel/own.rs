//! Chains that belong to one owner, and the owners of rules.

use std::sync::atomic::{AtomicUsize, Ordering};

use cnikit_nftables::*;

use crate::crowd::crowd;
use crate::host::Host;

/// The same rules as another program writes them, without owners.
const THEIRS: &str = r#"
    add table bridge nat
    add chain bridge nat pre { type filter hook prerouting priority -300; }
    add chain bridge nat guard-1
    add chain bridge nat guard-1-mac
    add rule bridge nat guard-1-mac ether saddr 02:00:00:00:00:01 return comment "guard 1"
    add rule bridge nat guard-1-mac drop comment "guard 1"
    add rule bridge nat guard-1 jump guard-1-mac comment "guard 1"
    add rule bridge nat pre iifname "port1" jump guard-1 comment "guard 1"
"#;

fn rule(matches: Vec<Match>, verdict: Verdict, number: usize) -> Rule {
    Rule { matches, verdict, comment: Some(format!("guard {number}")) }
}

fn mac(number: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, u8::try_from(number).unwrap()])
}

/// The chains of one owner with this name: with their rules, or to be removed.
fn chains(name: &str, number: usize, wanted: bool) -> Vec<OwnedChain> {
    let through = vec![rule(vec![], Verdict::Jump(format!("{name}-mac")), number)];
    let checks =
        vec![rule(vec![Match::SourceMac(mac(number))], Verdict::Return, number), rule(vec![], Verdict::Drop, number)];
    let chain = |name: String, rules: Vec<Rule>| OwnedChain { name, rules: if wanted { rules } else { vec![] } };
    vec![chain(name.to_owned(), through), chain(format!("{name}-mac"), checks)]
}

fn layout(owned_chains: Vec<OwnedChain>) -> TableLayout {
    let hook = Hook { kind: HookKind::Filter, hook: HookPoint::Prerouting, priority: -300 };
    let chains = vec![Chain { name: "pre", comment: None, hook: Some(hook) }];
    TableLayout { chains, rule_chains: vec!["pre"], owned_chains, ..TableLayout::of(TableFamily::Bridge, "nat") }
}

fn guard(number: usize) -> TableLayout {
    layout(chains(&format!("guard-{number}"), number, true))
}

fn lead(number: usize) -> [Rule; 1] {
    [rule(vec![Match::from(format!("port{number}"))], Verdict::Jump(format!("guard-{number}")), number)]
}

fn owned(network: &str, number: usize) -> OwnerFilter {
    OwnerFilter::Owned { owner: format!("{network}:{number:02}"), comment: Some(format!("guard {number}")) }
}

fn network(network: &str) -> OwnerFilter {
    OwnerFilter::Owned { owner: format!("{network}:"), comment: None }
}

#[track_caller]
fn add(host: &Host, network: &str, number: usize) -> Vec<InstalledRule> {
    host.nftables().replace(&guard(number), owned(network, number), &lead(number)).unwrap()
}

fn empty() -> String {
    let host = Host::new();
    host.nft(THEIRS.split("add chain bridge nat guard-1\n").next().unwrap());
    host.listing()
}

#[test]
fn the_owner_is_stored_beside_the_comment_and_nft_does_not_list_it() {
    let (ours, theirs) = (Host::new(), Host::new());
    add(&ours, "n1", 1);
    theirs.nft(THEIRS);
    assert_eq!(ours.listing(), theirs.listing());
    let expressions = |host: &Host| host.bytes().replace("\\xc7\\x05n1:01", "");
    assert_ne!(ours.bytes(), theirs.bytes());
    assert_eq!(expressions(&ours), expressions(&theirs));
    // nft can load its own listing again, and its JSON has the comments too.
    let listing = ours.listing();
    let again = Host::new();
    again.nft(&listing);
    assert_eq!(again.listing(), listing);
    assert!(ours.stdout_of("nft", &["--json", "list", "ruleset"]).contains(r#""comment": "guard 1""#));
    let found = ours.nftables().rules(&guard(1), owned("n1", 1)).unwrap();
    assert_eq!((found[0].owner(), found[0].comment(), found[0].chain()), (Some("n1:01"), Some("guard 1"), "pre"));
}

#[test]
fn ports_and_macs_compile_as_nft_compiles_them() {
    let (ours, theirs) = (Host::new(), Host::new());
    let rules = [
        rule(vec![Match::from("p"), Match::SourceMac(mac(7))], Verdict::Drop, 1),
        rule(vec![Match::from("fifteen-letters")], Verdict::Accept, 1),
        rule(vec![Match::from("p"), Match::Source("10.0.0.2".parse().unwrap())], Verdict::Return, 1),
        rule(vec![Match::SourceMac(mac(7)), Match::Source("fd00::2".parse().unwrap())], Verdict::Drop, 1),
    ];
    ours.nftables().replace(&layout(vec![]), "guard 1", &rules).unwrap();
    theirs.nft(THEIRS.split("add chain bridge nat guard-1\n").next().unwrap());
    rules.iter().for_each(|rule| theirs.nft(&format!("add rule bridge nat pre {rule}")));
    assert_eq!(ours.listing(), theirs.listing());
    assert_eq!(ours.bytes(), theirs.bytes());
}

#[test]
fn rules_and_chains_come_and_go_together() {
    let host = Host::new();
    assert_eq!(add(&host, "n1", 1), []);
    assert_eq!(host.nftables().verify(&guard(1), owned("n1", 1), &lead(1)).unwrap(), [""; 0]);
    let handles = host.handles();
    assert_eq!(add(&host, "n1", 1).len(), 4, "the same again, and what was there is told");
    assert_eq!(host.handles(), handles);
    assert_eq!(host.nftables().release(&guard(1), owned("n1", 1)).unwrap(), 1);
    assert_eq!(host.listing(), empty());
    assert_eq!(host.nftables().release(&guard(1), owned("n1", 1)).unwrap(), 0);
}

#[test]
fn put_back_restores_rules_and_chains() {
    let host = Host::new();
    host.nft(THEIRS);
    host.nft("insert rule bridge nat guard-1-mac ether type arp limit rate 9/second accept");
    let bytes = host.bytes();
    let before = add(&host, "n1", 1);
    assert_eq!(before.len(), 5);
    assert_ne!(host.bytes(), bytes);
    host.nftables().put_back(&guard(1), owned("n1", 1), &before).unwrap();
    assert_eq!(host.bytes(), bytes);
    let before = add(&Host::new(), "n1", 1);
    assert_eq!(before, []);
    add(&host, "n1", 2);
    host.nftables().put_back(&guard(2), owned("n1", 2), &[]).unwrap();
    assert_eq!(host.bytes(), bytes);
}

#[test]
fn a_rule_that_names_another_owner_stays_whatever_its_comment() {
    let host = Host::new();
    add(&host, "n1", 1);
    let handles = host.handles();
    let nftables = host.nftables();
    assert_eq!(nftables.chain_owner(&guard(1), owned("n2", 1)).unwrap(), ChainOwner::Other);
    assert_eq!(nftables.chain_owner(&guard(1), owned("n1", 1)).unwrap(), ChainOwner::This);
    assert_eq!(nftables.chain_owner(&guard(2), owned("n1", 2)).unwrap(), ChainOwner::NoChain);
    let error = nftables.replace(&guard(1), owned("n2", 1), &lead(1)).unwrap_err();
    assert!(error.to_string().contains("the rules in it are those of another program"), "{error}");
    assert_eq!(nftables.release(&guard(1), owned("n2", 1)).unwrap(), 0);
    assert_eq!(nftables.sweep(&layout(vec![]), network("n2"), |_| false).unwrap(), 0);
    assert_eq!(host.handles(), handles);
}

#[test]
fn a_rule_without_owner_is_released_by_its_comment_and_never_swept() {
    let host = Host::new();
    host.nft(THEIRS);
    let handles = host.handles();
    assert_eq!(host.nftables().sweep(&layout(vec![]), network("n1"), |_| false).unwrap(), 0);
    assert_eq!(host.handles(), handles);
    assert_eq!(host.nftables().verify(&guard(1), owned("n1", 1), &lead(1)).unwrap(), [""; 0]);
    assert_eq!(host.nftables().release(&guard(1), owned("n1", 1)).unwrap(), 1);
    assert_eq!(host.listing(), empty());
}

#[test]
fn a_sweep_removes_the_chains_of_invalid_owners_only() {
    let host = Host::new();
    for number in 1..=3 {
        add(&host, "n1", number);
    }
    add(&host, "n2", 4);
    assert_eq!(host.nftables().sweep(&layout(vec![]), network("n1"), |owner| owner == "n1:02").unwrap(), 2);
    let listing = host.listing();
    assert!(["guard-1", "guard-3"].iter().all(|gone| !listing.contains(gone)), "{listing}");
    for (network, number) in [("n1", 2), ("n2", 4)] {
        let drifts = host.nftables().verify(&guard(number), owned(network, number), &lead(number)).unwrap();
        assert_eq!(drifts, [""; 0]);
    }
}

#[test]
fn a_chain_in_use_by_another_rule_and_a_foreign_chain_stay() {
    let host = Host::new();
    add(&host, "n1", 1);
    host.nft("add rule bridge nat pre iifname \"port9\" jump guard-1 comment \"theirs\"");
    host.nft("add chain bridge nat theirs; add rule bridge nat theirs accept");
    host.nft("add rule bridge nat guard-1-mac jump theirs");
    assert_eq!(host.nftables().release(&guard(1), owned("n1", 1)).unwrap(), 1);
    let listing = host.listing();
    assert!(listing.contains("iifname \"port9\" jump guard-1 ") && !listing.contains("port1"), "{listing}");
    host.nft("flush chain bridge nat pre");
    host.nftables().release(&guard(1), owned("n1", 1)).unwrap();
    let listing = host.listing();
    assert!(!listing.contains("guard") && listing.contains("chain theirs {"), "{listing}");
}

#[test]
fn chains_of_an_earlier_name_are_removed_when_replaced() {
    let host = Host::new();
    let (first, second) = (|wanted| chains("guard-1", 1, wanted), |wanted| chains("other-1", 1, wanted));
    let both = |one: bool| layout([first(one), second(!one)].concat());
    let to = |name: &str| [rule(vec![Match::from("port1")], Verdict::Jump(name.to_owned()), 1)];
    let nftables = host.nftables();
    nftables.replace(&both(true), owned("n1", 1), &to("guard-1")).unwrap();
    let before = nftables.replace(&both(false), owned("n1", 1), &to("other-1")).unwrap();
    assert!(!host.listing().contains("guard-1") && host.listing().contains("jump other-1-mac"), "{}", host.listing());
    nftables.put_back(&both(false), owned("n1", 1), &before).unwrap();
    assert!(!host.listing().contains("other-1") && host.listing().contains("jump guard-1-mac"), "{}", host.listing());
}

#[test]
fn a_rehearsal_changes_nothing_and_reports_what_would_be_refused() {
    let host = Host::new();
    for _ in 0..3 {
        host.nftables().rehearse(&guard(1), owned("n1", 1), &lead(1)).unwrap();
        assert_eq!(host.listing(), "");
    }
    // The kernel supports chains of type nat in the IP families only.
    let hook = Hook { kind: HookKind::Nat, hook: HookPoint::Prerouting, priority: -300 };
    let impossible = TableLayout { chains: vec![Chain { name: "pre", comment: None, hook: Some(hook) }], ..guard(1) };
    let error = host.nftables().rehearse(&impossible, owned("n1", 1), &lead(1)).unwrap_err();
    assert!(error.to_string().starts_with("add \"chain pre of table bridge nat\": "), "{error}");
    assert!(error.is_absent() || error.unsupported(), "{error}");
    assert_eq!(host.listing(), "");
    add(&host, "n1", 1);
    let handles = host.handles();
    host.nftables().rehearse(&guard(2), owned("n1", 2), &lead(2)).unwrap();
    assert_eq!(host.handles(), handles);
}

#[test]
fn rehearsals_beside_changes_of_the_table_succeed() {
    for _ in 0..5 {
        let host = Host::new();
        crowd(&host, |who, nftables| {
            nftables.rehearse(&guard(99), owned("n1", 99), &lead(99)).unwrap();
            nftables.replace(&guard(who), owned("n1", who), &lead(who)).unwrap();
        });
        assert_eq!(host.nftables().rules(&guard(0), network("n1")).unwrap().len(), 32);
        assert!(!host.listing().contains("guard-99"));
    }
}

#[test]
fn a_crowd_makes_and_removes_chains_at_once_and_two_of_one_owner_make_them_once() {
    let host = Host::new();
    for _ in 0..3 {
        crowd(&host, |who, nftables| {
            let number = who / 2;
            nftables.replace(&guard(number), owned("n1", number), &lead(number)).unwrap();
        });
        assert_eq!(host.nftables().rules(&guard(0), network("n1")).unwrap().len(), 16);
        for number in 0..16 {
            let drifts = host.nftables().verify(&guard(number), owned("n1", number), &lead(number)).unwrap();
            assert_eq!(drifts, [""; 0]);
        }
        let removed = AtomicUsize::new(0);
        crowd(&host, |who, nftables| {
            let count = nftables.release(&guard(who / 2), owned("n1", who / 2)).unwrap();
            removed.fetch_add(count, Ordering::Relaxed);
        });
        assert_eq!((removed.into_inner(), host.listing()), (16, empty()));
    }
}

#[test]
fn without_a_chain_of_ours_foreign_rules_are_not_read() {
    let host = Host::new();
    add(&host, "n1", 1);
    // By its comment this rule is ours, so a dump of the chain would find it.
    host.nft("add rule bridge nat pre accept comment \"guard 2\"");
    assert_eq!(add(&host, "n1", 2), []);
    assert_eq!(host.nftables().release(&guard(3), owned("n1", 3)).unwrap(), 0);
    assert_eq!(host.nftables().release(&guard(2), owned("n1", 2)).unwrap(), 2);
}
