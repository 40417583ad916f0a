//! Sets with a key for each rule, in a layout with published ports.

use cnikit_nftables::*;

use crate::crowd::crowd;
use crate::host::Host;
use crate::scene::replace_inspected;

/// The layout with the rules of one container, as a script for nft.
const BY_NFT: &str = r#"
    add table ip ports { comment "Ports of a host"; }
    add chain ip ports rules
    add chain ip ports gate
    add chain ip ports pre { type nat hook prerouting priority -100; }
    add chain ip ports post { type nat hook postrouting priority 100; }
    add set ip ports used { type inet_proto . inet_service; comment "Ports that rules are for"; }
    add set ip ports owners { type mark . mark; }
    add rule ip ports pre fib daddr type local jump gate
    add rule ip ports gate meta l4proto . th dport @used jump rules
    add rule ip ports rules tcp dport 8080 dnat to 10.0.0.2:80 comment "c1"
    add rule ip ports rules ip daddr 192.0.2.1 udp dport 53 dnat to 10.0.0.2:5353 comment "c1"
    add rule ip ports post ip saddr 10.0.0.2 ip daddr 10.0.0.2 masquerade comment "c1"
    add element ip ports used { tcp . 8080, udp . 53 }
    add element ip ports owners { 0x08a27f07 . 0xb54a6859 }
"#;

/// The script with which another program makes the shared part whenever it adds a rule. It does not use the sets.
const OTHERS: &str = "
    add table ip ports
    add chain ip ports rules
    add chain ip ports gate
    flush chain ip ports gate
    add rule ip ports gate jump rules
";

fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { matches, verdict, comment: None }
}

fn port(rule: &Rule) -> Option<Key> {
    rule.matches.iter().find_map(|one| match one {
        Match::Port { protocol, port, .. } => Some(vec![KeyValue::Protocol(*protocol), KeyValue::Port(*port)]),
        _ => None,
    })
}

fn frame() -> TableLayout {
    let chain = |name, hook: Option<(HookPoint, i32)>| {
        let hook = hook.map(|(hook, priority)| Hook { kind: HookKind::Nat, hook, priority });
        Chain { name, comment: None, hook }
    };
    let fields = vec![Field::Protocol, Field::Port(Side::Destination)];
    let used = Match::InSet { fields, is: true, set: "used".into() };
    let set = |name, key, comment| Set { name, key, comment };
    let ports = set("used", vec![KeyType::Protocol, KeyType::Port], Some("Ports that rules are for"));
    let owners = set("owners", vec![KeyType::Mark, KeyType::Mark], None);
    TableLayout {
        table_comment: Some("Ports of a host"),
        chains: vec![
            chain("rules", None),
            chain("gate", None),
            chain("pre", Some((HookPoint::Prerouting, -100))),
            chain("post", Some((HookPoint::Postrouting, 100))),
        ],
        prologue: vec![
            ("pre", vec![rule(vec![Match::LocalDestination], Verdict::Jump("gate".into()))]),
            ("gate", vec![rule(vec![used], Verdict::Jump("rules".into()))]),
        ],
        jump_conditions: vec![JumpCondition {
            from: vec!["pre"],
            to: vec!["gate", "rules"],
            required: Match::LocalDestination,
        }],
        accepted_prologues: vec![("gate", vec![rule(vec![], Verdict::Jump("rules".into()))])],
        rule_chains: vec!["rules", "post"],
        indexes: vec![
            Index { set: ports, chains: vec!["rules"], by: IndexBy::Rule(port) },
            Index { set: owners, chains: vec!["rules"], by: IndexBy::Owner },
        ],
        ..TableLayout::of(TableFamily::Ip, "ports")
    }
}

fn owned(number: usize) -> OwnerFilter {
    OwnerFilter::Owned { owner: format!("n:{number:02}"), comment: Some(format!("c{number}")) }
}

/// The rule that forwards a port of the host to a container.
fn published(number: usize, port: u16) -> Rule {
    let to = format!("10.0.0.{}:80", number + 1).parse().unwrap();
    let comment = Some(format!("c{number}"));
    Rule { matches: vec![Match::to_port(L4Protocol::Tcp, port)], verdict: Verdict::Dnat(to), comment }
}

fn hairpin(number: usize) -> Rule {
    let address = format!("10.0.0.{}", number + 1).parse().unwrap();
    let matches = vec![Match::Source(address), Match::to(address)];
    Rule { matches, verdict: Verdict::Masquerade, comment: Some(format!("c{number}")) }
}

/// The rules of one published port of a container, in both chains.
fn rules(number: usize, port: u16) -> Rules {
    Rules(vec![vec![published(number, port)], vec![hairpin(number)]])
}

#[track_caller]
fn add(host: &Host, number: usize, port: u16) -> Vec<InstalledRule> {
    host.nftables().replace(&frame(), owned(number), rules(number, port)).unwrap()
}

#[track_caller]
fn rivals(host: &Host, number: usize, port: u16) -> Vec<String> {
    let mut found = Vec::new();
    let judge = |looked: &Snapshot<'_>| {
        found = looked.conflicting_rules("used")?.iter().map(ToString::to_string).collect();
        Err(Error::ours("stop", "here", "only asked"))
    };
    let stopped = replace_inspected(&host.nftables(), &frame(), owned(number), rules(number, port), judge).unwrap_err();
    assert_eq!(stopped.to_string(), "stop \"here\": only asked");
    found
}

/// The ports in the set, as nft lists them.
#[track_caller]
fn used(host: &Host) -> Vec<String> {
    let listing = host.stdout_of("nft", &["list", "set", "ip", "ports", "used"]);
    let Some((_, elements)) = listing.split_once("elements = { ") else { return Vec::new() };
    let elements = elements.split_once(" }").unwrap().0;
    let mut elements: Vec<_> = elements.split(',').map(|one| one.trim().to_owned()).collect();
    elements.sort();
    elements
}

#[track_caller]
fn owners(host: &Host) -> usize {
    host.stdout_of("nft", &["list", "set", "ip", "ports", "owners"]).matches("0x").count() / 2
}

#[track_caller]
fn assert_well(host: &Host, number: usize, port: u16) {
    assert_eq!(host.nftables().verify(&frame(), owned(number), rules(number, port)).unwrap(), [""; 0]);
}

/// The kernel keeps elements in an order of its own.
fn sorted(bytes: &str) -> Vec<&str> {
    let (mut elements, rest): (Vec<_>, Vec<_>) = bytes.lines().partition(|line| line.starts_with("\telement "));
    elements.sort_unstable();
    [elements, rest].concat()
}

#[test]
fn frame_rules_and_set_are_listed_like_nfts_own() {
    let (ours, theirs) = (Host::new(), Host::new());
    let second = Rule {
        matches: vec![Match::to("192.0.2.1".parse().unwrap()), Match::to_port(L4Protocol::Udp, 53)],
        verdict: Verdict::Dnat("10.0.0.2:5353".parse().unwrap()),
        comment: Some("c1".into()),
    };
    let wanted = Rules(vec![vec![published(1, 8080), second], vec![hairpin(1)]]);
    // Without an owner the rules are registered by their comment.
    ours.nftables().replace(&frame(), "c1", wanted.clone()).unwrap();
    theirs.nft(BY_NFT);
    assert_eq!(ours.listing(), theirs.listing());
    assert_eq!(sorted(&ours.bytes()), sorted(&theirs.bytes()));
    assert_eq!(ours.nftables().verify(&frame(), "c1", wanted.clone()).unwrap(), [""; 0]);
    // The layout that nft made is complete for us, and the other way round.
    let handles = theirs.handles();
    theirs.nftables().replace(&frame(), "c1", wanted).unwrap();
    assert_eq!(theirs.handles(), handles);
    let listing = ours.listing();
    let again = Host::new();
    again.nft(&listing);
    assert_eq!(again.listing(), listing);
}

#[test]
fn keys_come_and_go_with_the_rules() {
    let host = Host::new();
    assert_eq!(add(&host, 1, 80), []);
    add(&host, 2, 81);
    assert_eq!((used(&host), owners(&host)), (vec!["tcp . 80".to_owned(), "tcp . 81".to_owned()], 2));
    let handles = host.handles();
    assert_eq!(add(&host, 1, 80).len(), 2, "the same again, and what was there is told");
    assert_eq!(host.handles(), handles);
    assert_eq!(add(&host, 1, 82).len(), 2);
    assert_eq!(used(&host), ["tcp . 81", "tcp . 82"]);
    assert_well(&host, 1, 82);
    assert_eq!(host.nftables().release(&frame(), owned(1)).unwrap(), 2);
    assert_eq!((used(&host), owners(&host)), (vec!["tcp . 81".to_owned()], 1));
    assert_eq!(host.nftables().release(&frame(), owned(1)).unwrap(), 0);
    assert_eq!(
        host.nftables().sweep(&frame(), OwnerFilter::Owned { owner: "n:".into(), comment: None }, |_| false).unwrap(),
        2
    );
    assert_eq!((used(&host), owners(&host)), (Vec::new(), 0));
}

#[test]
fn a_key_stays_while_another_rule_has_it() {
    let host = Host::new();
    add(&host, 1, 80);
    add(&host, 2, 80);
    add(&host, 1, 81);
    assert_eq!(used(&host), ["tcp . 80", "tcp . 81"]);
    assert_eq!(host.nftables().release(&frame(), owned(1)).unwrap(), 2);
    assert_eq!(used(&host), ["tcp . 80"]);
    assert_well(&host, 2, 80);
}

#[test]
fn put_back_restores_rules_and_keys() {
    let host = Host::new();
    add(&host, 1, 80);
    let bytes = host.bytes();
    let before = add(&host, 1, 81);
    assert_eq!((before.len(), used(&host)), (2, vec!["tcp . 81".to_owned()]));
    host.nftables().put_back(&frame(), owned(1), &before).unwrap();
    assert_eq!(host.bytes(), bytes);
    add(&host, 2, 82);
    host.nftables().put_back(&frame(), owned(2), &[]).unwrap();
    assert_eq!(host.bytes(), bytes);
}

#[test]
fn rivals_are_found_by_their_key_and_exclude_the_own_rules() {
    let host = Host::new();
    assert_eq!(rivals(&host, 1, 80), [""; 0]);
    assert_eq!(host.listing(), "");
    add(&host, 1, 80);
    assert_eq!(rivals(&host, 2, 80), [published(1, 80).to_string()]);
    assert_eq!(rivals(&host, 2, 81), [""; 0]);
    assert_eq!(rivals(&host, 1, 80), [""; 0]);
    // A rule without an owner conflicts by its comment.
    host.nft(&format!("add rule ip ports rules {}", published(3, 80)));
    assert_eq!(rivals(&host, 1, 80), [published(3, 80).to_string()]);
    assert_eq!(rivals(&host, 3, 80), [published(1, 80).to_string()]);
}

#[test]
fn rules_of_another_program_are_reached_before_and_after_ours() {
    let host = Host::new();
    host.nft(&format!("{OTHERS}\n add rule ip ports rules {}", published(1, 80)));
    assert_eq!(rivals(&host, 2, 80), [published(1, 80).to_string()], "no set is there yet");
    add(&host, 2, 81);
    assert_eq!(used(&host), ["tcp . 80", "tcp . 81"]);
    let guarded = host.stdout_of("nft", &["list", "chain", "ip", "ports", "gate"]);
    assert!(guarded.contains("@used jump rules") && !guarded.contains("\t\tjump rules"), "{guarded}");
    // The other program's next rule does not go through the set: the rules work, but their keys are missing.
    host.nft(&format!("{OTHERS}\n add rule ip ports rules {}", published(3, 82)));
    assert_well(&host, 2, 81);
    assert_eq!(rivals(&host, 4, 82), [published(3, 82).to_string()]);
    add(&host, 4, 83);
    assert_eq!(used(&host), ["tcp . 80", "tcp . 81", "tcp . 82", "tcp . 83"]);
    assert_eq!(host.stdout_of("nft", &["list", "chain", "ip", "ports", "gate"]), guarded);
    // The rules that it removes leave their keys, which belong to no rule then.
    host.nft("flush chain ip ports rules");
    assert_eq!(rivals(&host, 5, 80), [""; 0]);
    add(&host, 5, 80);
    assert_well(&host, 5, 80);
}

#[test]
fn a_missing_set_or_key_is_named_and_made_again() {
    let drifts = |script: &str| {
        let host = Host::new();
        add(&host, 1, 80);
        add(&host, 2, 81);
        host.nft(script);
        let drifts = host.nftables().verify(&frame(), owned(1), rules(1, 80)).unwrap();
        add(&host, 1, 80);
        assert_well(&host, 1, 80);
        (drifts, host)
    };
    let (missing, host) = drifts("delete element ip ports used { tcp . 80 }");
    assert_eq!(missing, ["element tcp . 80 of set used of table ip ports is missing"]);
    assert_well(&host, 2, 81);
    let (gone, host) = drifts("flush chain ip ports gate; delete set ip ports used");
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert_eq!(gone[1], "set used of table ip ports is missing");
    assert_well(&host, 2, 81);
    let (whole, _) = drifts("delete table ip ports");
    assert_eq!(whole[0], "table ip ports is missing");
}

#[test]
fn a_set_of_another_type_is_named_and_left_alone() {
    let host = Host::new();
    host.nft("add table ip ports; add set ip ports used { type ipv4_addr; }");
    let listing = host.listing();
    let error = host.nftables().replace(&frame(), owned(1), rules(1, 80)).unwrap_err();
    let why = "its keys are of another type, wanted `type inet_proto . inet_service`";
    assert_eq!(error.to_string(), format!("use \"set used of table ip ports\": {why}"));
    assert_eq!(host.listing(), listing);
}

/// If one of many keys is in use, the kernel refuses the transaction; then the inspection finds the owner of the key.
#[test]
fn one_taken_key_of_many_is_reported_before_any_change() {
    let host = Host::new();
    add(&host, 1, 80);
    let listing = host.listing();
    let many =
        |ports: std::ops::Range<u16>| Rules(vec![ports.map(|port| published(2, port)).collect(), vec![hairpin(2)]]);
    let mut seen = Vec::new();
    let mut judge = |looked: &Snapshot<'_>| {
        let rivals = looked.conflicting_rules("used")?;
        seen.push(rivals.len());
        if rivals.is_empty() { Ok(()) } else { Err(Error::ours("take", "a key", "taken")) }
    };
    replace_inspected(&host.nftables(), &frame(), owned(2), many(60..100), &mut judge).unwrap_err();
    assert_eq!(host.listing(), listing);
    replace_inspected(&host.nftables(), &frame(), owned(2), many(81..121), &mut judge).unwrap();
    assert_eq!(seen, [0, 1, 0]);
    assert_eq!(used(&host).len(), 41);
    assert_eq!(host.nftables().verify(&frame(), owned(2), many(81..121)).unwrap(), [""; 0]);
    // A key without a rule has no owner.
    host.nftables().release(&frame(), owned(2)).unwrap();
    host.nft("add element ip ports used { tcp . 99 }");
    host.nftables().replace(&frame(), owned(2), many(81..121)).unwrap();
    assert_eq!(host.nftables().verify(&frame(), owned(2), many(81..121)).unwrap(), [""; 0]);
}

/// A rule of another owner that takes the same key between our read and our change is inspected too.
#[test]
fn a_rival_that_takes_the_key_meanwhile_is_reported_too() {
    let host = Host::new();
    add(&host, 1, 80);
    let mut seen = Vec::new();
    let judge = |looked: &Snapshot<'_>| {
        seen.push(looked.conflicting_rules("used")?.len());
        if seen.len() == 1 {
            add(&host, 2, 80);
        }
        Ok::<(), Error>(())
    };
    replace_inspected(&host.nftables(), &frame(), owned(3), rules(3, 80), judge).unwrap();
    assert_eq!(seen, [1, 2]);
}

/// A set that is filled has the keys of what another program wrote, and its rules are found as before.
#[test]
fn rules_of_another_program_are_its_owners_once_the_register_is_filled() {
    let host = Host::new();
    let theirs = |number, port| {
        let (lead, back) = (published(number, port), hairpin(number));
        host.nft(&format!("{OTHERS}\n add rule ip ports rules {lead}"));
        host.nft(&format!("add chain ip ports post; add rule ip ports post {back}"));
    };
    add(&host, 2, 81);
    theirs(1, 80);
    assert_well(&host, 1, 80);
    add(&host, 3, 82);
    assert_well(&host, 1, 80);
    assert_eq!(add(&host, 1, 80).len(), 2, "they are replaced");
    assert_eq!(host.listing().matches("comment \"c1\"").count(), 2, "{}", host.listing());
    assert_well(&host, 1, 80);
    host.nftables().release(&frame(), owned(1)).unwrap();
    assert_eq!(owners(&host), 2);
    // An older version of that program makes another chain again.
    host.nft(&format!(
        "flush chain ip ports pre; add rule ip ports pre jump rules; add rule ip ports rules {}",
        published(4, 83)
    ));
    assert_eq!(add(&host, 4, 83).len(), 1);
    assert_well(&host, 4, 83);
}

/// Saves and loads the ruleset with nft(8), which does not print owners: the loaded rules only have comments.
#[track_caller]
fn save_and_load(host: &Host) {
    let listing = host.listing();
    host.nft(&format!("flush ruleset\n{listing}"));
    assert_eq!(host.listing(), listing);
}

#[test]
fn rules_that_were_saved_and_loaded_are_their_owners_by_any_of_his_names() {
    let host = Host::new();
    add(&host, 1, 80);
    add(&host, 2, 81);
    let listing = host.listing();
    save_and_load(&host);
    assert_well(&host, 1, 80);
    // A roll-back puts the rules back as they were, including the missing owner.
    let before = add(&host, 1, 82);
    assert!(before.iter().all(|found| found.owner().is_none()), "{before:?}");
    assert_eq!((used(&host), owners(&host)), (vec!["tcp . 81".to_owned(), "tcp . 82".to_owned()], 2));
    host.nftables().put_back(&frame(), owned(1), &before).unwrap();
    assert_well(&host, 1, 80);
    assert_eq!(owners(&host), 2);
    // The next replacement writes them with their owner.
    assert_eq!(add(&host, 1, 80).len(), 2);
    assert_eq!(add(&host, 2, 81).len(), 2);
    assert_eq!(sorted_lines(&host.listing()), sorted_lines(&listing));
    let named = |number| host.nftables().rules(&frame(), owned(number)).unwrap();
    assert!(named(1).iter().chain(&named(2)).all(|found| found.owner().is_some()));
    save_and_load(&host);
    assert_eq!(host.nftables().release(&frame(), owned(1)).unwrap(), 2);
    assert_eq!((used(&host), owners(&host)), (vec!["tcp . 81".to_owned()], 1));
    assert_well(&host, 2, 81);
}

fn sorted_lines(listing: &str) -> Vec<&str> {
    let mut lines: Vec<_> = listing.lines().filter(|line| !line.contains("elements = ")).collect();
    lines.sort_unstable();
    lines
}

/// If the comment begins with the owner, all rules of a network are found by it.
#[test]
fn a_sweep_of_rules_that_were_saved_and_loaded_leaves_no_key() {
    let host = Host::new();
    for number in 1..3 {
        let owner = format!("n:{number}");
        let comment = Some(format!("{owner} other"));
        let rules = [Rule { comment: comment.clone(), ..published(number, 80) }];
        host.nftables().replace(&frame(), OwnerFilter::Owned { owner, comment }, &rules).unwrap();
    }
    save_and_load(&host);
    assert_eq!(host.nftables().sweep(&frame(), "n:", |found| found.starts_with("n:2 ")).unwrap(), 1);
    assert_eq!((used(&host), owners(&host)), (vec!["tcp . 80".to_owned()], 1));
    assert_eq!(host.nftables().sweep(&frame(), "n:", |_| false).unwrap(), 1);
    assert_eq!((used(&host), owners(&host)), (Vec::new(), 0));
}

#[test]
fn a_rule_that_bypasses_a_gate_is_named_and_removed() {
    let host = Host::new();
    add(&host, 1, 80);
    host.nft(
        "add rule ip ports pre jump rules
         add rule ip ports pre fib daddr type local tcp dport 81 jump gate
         add rule ip ports pre tcp dport 80 goto gate
         add rule ip ports pre tcp dport 7 accept",
    );
    let drifts = host.nftables().verify(&frame(), owned(1), rules(1, 80)).unwrap();
    let place = "in chain pre of table ip ports leads other packets to";
    let expected = [format!("rule `jump rules` {place} rules"), format!("rule `tcp dport 80 goto gate` {place} gate")];
    assert_eq!(drifts, expected);
    add(&host, 1, 80);
    assert_well(&host, 1, 80);
    let listing = host.stdout_of("nft", &["list", "chain", "ip", "ports", "pre"]);
    let left: Vec<_> = listing.lines().map(str::trim).skip(3).take_while(|line| *line != "}").collect();
    let ours = "fib daddr type local jump gate";
    assert_eq!(left, [ours, "fib daddr type local tcp dport 81 jump gate", "tcp dport 7 accept"]);
    // The same in a chain that does not begin with its prologue.
    host.nft("insert rule ip ports pre jump gate");
    add(&host, 1, 80);
    assert_eq!(host.stdout_of("nft", &["list", "chain", "ip", "ports", "pre"]), listing);
}

#[test]
fn holders_of_a_key_are_found_with_and_without_the_element_in_the_set() {
    let host = Host::new();
    let key = |port| vec![KeyValue::Protocol(L4Protocol::Tcp), KeyValue::Port(port)];
    let holders = |ports: &[u16]| {
        let keys: Vec<Key> = ports.iter().map(|port| key(*port)).collect();
        let found = host.nftables().rules_with_keys(&frame(), "used", &keys).unwrap();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(holders(&[80]), [""; 0]);
    assert_eq!(host.listing(), "");
    add(&host, 1, 80);
    add(&host, 2, 81);
    assert_eq!(holders(&[82, 81]), [published(2, 81).to_string()]);
    assert_eq!(holders(&[82]), [""; 0]);
    host.nft(&format!("{OTHERS}\n add rule ip ports rules {}", published(3, 82)));
    assert_eq!(holders(&[82]), [published(3, 82).to_string()]);
    assert!(host.nftables().rules_with_keys(&frame(), "unknown", &[]).is_err());
}

/// The comment is the same for two containers; the address shows to which of them a rule belongs.
#[test]
fn rules_without_an_owner_are_matched_by_address() {
    let host = Host::new();
    let meant = |address: &str| OwnerFilter::Attached {
        owner: "n:01".into(),
        comment: "c1".into(),
        addresses: vec![address.parse().unwrap()],
    };
    add(&host, 2, 81);
    for address in ["10.0.0.2", "10.0.1.2"] {
        host.nft(&format!("add rule ip ports rules tcp dport 80 dnat to {address}:80 comment \"c1\""));
        host.nft(&format!("add rule ip ports post ip saddr {address} ip daddr {address} masquerade comment \"c1\""));
    }
    let nftables = host.nftables();
    let found = nftables.rules(&frame(), meant("10.0.1.2")).unwrap();
    let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
    let hairpin = "ip saddr 10.0.1.2 ip daddr 10.0.1.2 masquerade comment \"c1\"";
    assert_eq!(shown, ["tcp dport 80 dnat to 10.0.1.2:80 comment \"c1\"", hairpin]);
    assert_eq!(nftables.release(&frame(), meant("10.0.0.9")).unwrap(), 0);
    assert_eq!(nftables.release(&frame(), meant("10.0.0.2")).unwrap(), 2);
    let listing = host.listing();
    assert!(!listing.contains("10.0.0.2") && listing.contains(hairpin), "{listing}");
}

/// If the rules of other owners were read, a comment would be found with which a rule is ours.
#[test]
fn rules_of_an_unregistered_owner_are_not_searched() {
    let host = Host::new();
    add(&host, 1, 80);
    host.nft(&format!("add rule ip ports rules {}", published(2, 81)));
    let drifts = host.nftables().verify(&frame(), owned(2), rules(2, 81)).unwrap();
    assert_eq!(drifts[0], format!("rule `{}` is missing from chain post of table ip ports", hairpin(2)));
    assert_eq!(
        drifts[1], "element tcp . 81 of set used of table ip ports is missing",
        "but they are when they are verified"
    );
    assert_eq!(add(&host, 2, 82), []);
    assert_eq!(add(&host, 2, 82).len(), 3, "now they are");
}

#[test]
fn a_rule_for_a_chain_that_the_frame_has_not_is_refused() {
    let host = Host::new();
    let many = Rules(vec![vec![], vec![], vec![hairpin(1)]]);
    let error = host.nftables().replace(&frame(), owned(1), many).unwrap_err();
    assert!(error.to_string().contains("no chain for some of them"), "{error}");
    assert_eq!(host.listing(), "");
}

#[test]
fn a_crowd_publishes_and_withdraws_beside_another_program() {
    let host = Host::new();
    for round in 0..3 {
        crowd(&host, |who, nftables| {
            let port = 8000 + u16::try_from(who / 2).unwrap();
            nftables.replace(&frame(), owned(who), rules(who, port)).unwrap();
            if who == 7 {
                host.nft(OTHERS);
            }
        });
        // The next replacement after the other program's change completes the set.
        add(&host, 90, 9000);
        assert_eq!(used(&host).len(), 17, "round {round}");
        for who in 0..32 {
            assert_well(&host, who, 8000 + u16::try_from(who / 2).unwrap());
        }
        crowd(&host, |who, nftables| {
            assert_eq!(nftables.release(&frame(), owned(who)).unwrap(), 2);
        });
        assert_eq!((used(&host), owners(&host)), (vec!["tcp . 9000".to_owned()], 1));
    }
}

/// Makes the rules of many owners in one batch, and returns the outcome for each.
#[track_caller]
fn made(host: &Host, wanted: &[(usize, Rules)]) -> Vec<BatchOutcome> {
    let mut joint = OwnersBatch::default();
    for (number, rules) in wanted {
        joint.add(frame(), owned(*number), rules.clone(), Some("used")).unwrap();
    }
    host.nftables().apply_batch(joint)
}

fn lines(host: &Host) -> Vec<String> {
    let mut lines: Vec<String> = host.listing().lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

#[test]
fn a_batch_for_many_owners_makes_the_same_as_single_calls() {
    let (host, other) = (Host::new(), Host::new());
    // More than fit into one transaction.
    let all = |number: u8| {
        let (owner, first) = (usize::from(number), u16::from(number) * 10);
        let published = (first..first + 10).map(|port| published(owner, port)).collect();
        (owner, Rules(vec![published, vec![hairpin(owner)]]))
    };
    let wanted: Vec<(usize, Rules)> = (10..100).map(all).collect();
    assert_eq!(made(&host, &wanted), [BatchOutcome::Made; 90]);
    for (number, rules) in &wanted {
        other.nftables().replace(&frame(), owned(*number), rules.clone()).unwrap();
    }
    let handles = host.handles();
    assert_eq!(lines(&host), lines(&other));
    assert_eq!(made(&host, &wanted), [BatchOutcome::Unchanged; 90]);
    assert_eq!(host.handles(), handles, "what stands is left alone");
    // The incomplete rules of one owner are made again, and those of the others stay; no key is lost.
    host.nft("flush chain ip ports rules; flush set ip ports used");
    assert_eq!(made(&host, &wanted[..40]), [BatchOutcome::Made; 40]);
    assert_eq!((used(&host).len(), owners(&host)), (400, 90));
    host.nft("delete table ip ports");
    assert_eq!(made(&host, &wanted), [BatchOutcome::Made; 90]);
    assert_eq!(lines(&host), lines(&other));
}

#[test]
fn a_batch_skips_owners_with_conflicting_keys() {
    let host = Host::new();
    host.nft(BY_NFT);
    add(&host, 2, 8082);
    let wanted = [(1, 8080), (3, 8082), (4, 8084), (5, 8084), (6, 8086), (2, 8082), (7, 8080)];
    let wanted = wanted.map(|(number, port)| (number, rules(number, port)));
    let left = BatchOutcome::Skipped;
    assert_eq!(made(&host, &wanted), [left, left, left, left, BatchOutcome::Made, left, left]);
    assert_well(&host, 2, 8082);
    assert_well(&host, 6, 8086);
    for number in [3, 4, 5, 7] {
        assert_eq!(host.nftables().rules(&frame(), owned(number)).unwrap(), []);
    }
    assert_eq!(made(&host, &wanted[4..6]), [BatchOutcome::Unchanged; 2], "an owner that has its rules keeps them");
    let mut joint = OwnersBatch::default();
    joint.add(frame(), owned(1), rules(1, 80), Some("used")).unwrap();
    let error = joint.add(frame(), owned(1), rules(1, 81), Some("used")).unwrap_err();
    assert!(error.to_string().contains("one owner wants two things"), "{error}");
}

#[test]
fn a_transaction_that_is_refused_leaves_all_of_it_and_no_other() {
    let host = Host::new();
    host.nft("add table ip ports; add chain ip ports pre { type filter hook prerouting priority 0; }");
    let mut joint = OwnersBatch::default();
    joint.add(frame(), owned(1), rules(1, 80), None).unwrap();
    joint
        .add(crate::scene::frame(), "aa-1", &[crate::scene::masquerade("10.0.0.2", "10.0.0.0/24", "aa-1")], None)
        .unwrap();
    assert_eq!(host.nftables().apply_batch(joint), [BatchOutcome::Skipped, BatchOutcome::Made]);
}

/// Rules that need several transactions.
fn many(number: usize) -> Rules {
    Rules(vec![(1..=3_000).map(|port| published(number, port)).collect(), vec![hairpin(number)]])
}

fn rules_there(host: &Host) -> usize {
    host.listing().matches("comment \"c").count()
}

#[test]
fn more_rules_than_one_transaction_takes_are_made_replaced_and_removed() {
    let host = Host::new();
    let nftables = host.nftables();
    add(&host, 1, 5_000);
    assert_eq!(nftables.replace(&frame(), owned(2), many(2)).unwrap(), []);
    assert_eq!((rules_there(&host), used(&host).len(), owners(&host)), (3_003, 3_001, 2));
    assert_eq!(nftables.verify(&frame(), owned(2), many(2)).unwrap(), [""; 0]);
    let before = nftables.replace(&frame(), owned(2), rules(2, 80)).unwrap();
    assert_eq!((before.len(), used(&host)), (3_001, vec!["tcp . 5000".to_owned(), "tcp . 80".to_owned()]));
    nftables.put_back(&frame(), owned(2), &before).unwrap();
    assert_eq!(nftables.verify(&frame(), owned(2), many(2)).unwrap(), [""; 0]);
    assert_eq!(nftables.release(&frame(), owned(2)).unwrap(), 3_001);
    assert_eq!((rules_there(&host), used(&host), owners(&host)), (2, vec!["tcp . 5000".to_owned()], 1));
}

/// Adds thousands of ports of two containers, and one of a third container.
fn two_with_many(host: &Host) -> [String; 2] {
    let many = |number| Rules(vec![(1..=6_000).map(|port| published(number, port)).collect(), vec![hairpin(number)]]);
    let nftables = host.nftables();
    nftables.replace(&frame(), owned(1), many(1)).unwrap();
    let alone = host.listing();
    nftables.replace(&frame(), owned(2), many(2)).unwrap();
    add(host, 3, 9_000);
    assert_eq!((rules_there(host), used(host).len(), owners(host)), (12_004, 6_001, 3));
    [alone, host.listing()]
}

fn handles_of(host: &Host, number: usize) -> Vec<u64> {
    host.nftables().rules(&frame(), owned(number)).unwrap().iter().map(InstalledRule::handle).collect()
}

/// To delete each rule, the kernel would walk past all rules that stay, so the chain is flushed and filled again.
#[test]
fn removing_many_rules_refills_their_chain_with_the_others() {
    let host = Host::new();
    let [alone, _] = two_with_many(&host);
    let handles = handles_of(&host, 1);
    assert_eq!(host.nftables().release(&frame(), owned(2)).unwrap(), 6_001);
    let after = handles_of(&host, 1);
    assert!(after.len() == handles.len() && after[0] > handles[6_000], "the rules that stay were added again");
    assert_eq!(after[6_000], handles[6_000], "a chain that loses one rule is left alone");
    assert_eq!((rules_there(&host), used(&host).len(), owners(&host)), (6_003, 6_001, 2));
    assert_eq!(host.nftables().release(&frame(), owned(3)).unwrap(), 2);
    assert_eq!(host.listing(), alone);
}

#[test]
fn a_chain_with_rules_of_another_program_is_never_emptied() {
    let host = Host::new();
    two_with_many(&host);
    host.nft("add rule ip ports rules tcp dport { 7, 8 } dnat to 10.0.0.9:80");
    let handles = handles_of(&host, 1);
    assert_eq!(host.nftables().release(&frame(), owned(2)).unwrap(), 6_001);
    assert_eq!(handles_of(&host, 1), handles);
    assert!(host.listing().contains("{ 7, 8 }"));
}

/// The kernel refuses the last rule, after earlier transactions have made the others.
#[test]
fn a_refused_transaction_of_several_leaves_nothing_once_undone() {
    let host = Host::new();
    add(&host, 1, 5_000);
    let listing = host.listing();
    let mut refused = many(2);
    refused.0[0].push(hairpin(2));
    let mut looked_at = 0;
    let judge = |looked: &Snapshot<'_>| {
        looked_at += 1;
        assert!(looked.before().is_empty() || looked.begun());
        Ok::<(), Error>(())
    };
    replace_inspected(&host.nftables(), &frame(), owned(2), refused, judge).unwrap_err();
    assert!(rules_there(&host) > 2 && looked_at > 0, "some transactions were carried out");
    host.nftables().put_back(&frame(), owned(2), &[]).unwrap();
    assert_eq!(host.listing(), listing);
}

/// A key of another owner makes the second transaction fail; by then the first one has been made.
#[test]
fn several_transactions_are_undone_to_the_state_before_the_first() {
    let host = Host::new();
    let (mut befores, mut meddled) = (Vec::new(), false);
    add(&host, 2, 80);
    let judge = |looked: &Snapshot<'_>| {
        befores.push((looked.begun(), looked.before().len()));
        if !std::mem::replace(&mut meddled, true) {
            // Added to the set after it was read.
            host.nft("add element ip ports used { tcp . 2999 }");
        }
        Ok::<(), Error>(())
    };
    replace_inspected(&host.nftables(), &frame(), owned(2), many(2), judge).unwrap();
    assert_eq!(befores.first(), Some(&(false, 2)));
    assert!(befores[1..].iter().all(|(begun, before)| *before == 2 || *begun), "{befores:?}");
    assert_eq!(host.nftables().verify(&frame(), owned(2), many(2)).unwrap(), [""; 0]);
}
