use super::*;
use crate::lines::Lines;

const CHAIN: &str = "CNI-7be53730afe4dc6eb2178d03";
const ACCEPT: &str = "-d 10.1.0.0/24 -m comment --comment";

fn names(network: &str, ifname: &str) -> Names {
    Names::of(&AttachmentId { network: network.into(), container: "c1".into(), ifname: ifname.into() })
}

fn ips(texts: &[&str]) -> Vec<IpNetwork> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// An interface of container `c1` of network `n1` with these addresses.
fn step(ifname: &str, addresses: &[&str]) -> Step {
    Step::of(&ips(addresses), IpVersion::V4, &names("n1", ifname))
}

/// An ADD; returns what its roll-back needs.
fn add(lines: &mut Lines, step: &Step) -> Share {
    let (before, changes) = step.decide(&lines.read());
    lines.change(&changes);
    before
}

/// A DEL that knows these addresses.
fn del(lines: &mut Lines, ifname: &str, known: &[&str]) {
    let own = ips(known);
    let names = names("n1", ifname);
    let table = lines.read();
    let released = names.released(&table, |address| own.iter().any(|one| one.ip() == address));
    lines.change(&released.changes_to(&Share::default(), &table, &names.chain));
}

fn gc(lines: &mut Lines, network: &'static str, valid: Vec<Names>) {
    let changes = GcFilter { network, valid }.changes(&lines.read());
    lines.change(&changes);
}

fn drifts(lines: &Lines, step: &Step) -> Vec<String> {
    step.names.differences(&lines.read(), &step.addresses, "nat")
}

fn empty() -> Lines {
    Lines::of("nat", "POSTROUTING")
}

/// Adds the rules that upstream makes of these addresses, which name no interface.
fn upstreams(lines: &mut Lines, addresses: &[&str]) {
    let comment = names("n1", "eth0").jump.replace('"', "\\\"");
    if !lines.chains().iter().any(|chain| chain == CHAIN) {
        let mut changes = Changes::default();
        changes.new_chain(CHAIN);
        lines.change(&changes);
    }
    lines.chain(CHAIN).push(format!("{ACCEPT} \"{comment}\" -j ACCEPT"));
    lines.chain(CHAIN).push(format!("! -d 224.0.0.0/4 -m comment --comment \"{comment}\" -j MASQUERADE"));
    for address in addresses {
        let jump = format!("-s {address}/32 -m comment --comment \"{comment}\" -j {CHAIN}");
        lines.chain("POSTROUTING").push(jump);
    }
}

#[test]
fn an_add_makes_a_jump_and_two_rules_for_each_address_and_its_del_leaves_nothing() {
    let mut lines = empty();
    let step = step("eth0", &["10.1.0.2/24"]);
    add(&mut lines, &step);
    let comment = r#"-m comment --comment "name: \"n1\" id: \"c1\""#;
    let made = [
        "-A POSTROUTING -j OTHER".to_owned(),
        format!("-A POSTROUTING -s 10.1.0.2/32 {comment}\" -j {CHAIN}"),
        format!(r#"-A {CHAIN} -s 10.1.0.2/32 -d 10.1.0.0/24 {comment} if: \"eth0\"" -j ACCEPT"#),
        format!(r#"-A {CHAIN} -s 10.1.0.2/32 ! -d 224.0.0.0/4 {comment} if: \"eth0\"" -j MASQUERADE"#),
    ];
    assert_eq!(lines.rules(), made);
    assert!(step.changes_if_different(&lines.read()).is_empty());
    add(&mut lines, &step);
    assert_eq!(lines.rules(), made);
    let mut twice = lines.clone();
    twice.double();
    let mut again = twice.clone();
    add(&mut again, &step);
    assert_eq!(drifts(&again, &step), [""; 0]);
    del(&mut twice, "eth0", &[]);
    assert_eq!(twice.rules(), ["-A POSTROUTING -j OTHER"; 2]);
    del(&mut lines, "eth0", &[]);
    assert_eq!(lines, empty());
}

#[test]
fn an_address_of_ipv6_has_its_own_multicast_and_versions_without_an_address_no_program() {
    let both = ips(&["10.1.0.2/24", "fd00:1::2/64"]);
    assert_eq!(versions(&both).collect::<Vec<_>>(), IpVersion::ALL);
    assert_eq!(versions(&both[1..]).collect::<Vec<_>>(), [IpVersion::V6]);
    let step = Step::of(&both, IpVersion::V6, &names("n1", "eth0"));
    assert_eq!(step.addresses, both[1..]);
    let mut lines = empty();
    add(&mut lines, &step);
    assert_eq!((lines.count("10.1.0"), lines.count("! -d ff00::/8"), lines.count("-d fd00:1::/64")), (0, 1, 1));
}

#[test]
fn each_of_two_interfaces_in_one_chain_is_removed_alone() {
    let (one, two) = (step("eth0", &["10.1.0.2/24"]), step("eth1", &["10.2.0.2/24", "10.3.0.2/24"]));
    let [mut both, mut first, mut second] = [empty(), empty(), empty()];
    add(&mut first, &one);
    add(&mut second, &two);
    add(&mut both, &one);
    add(&mut both, &two);
    assert_eq!((drifts(&both, &one), drifts(&both, &two)), (Vec::new(), Vec::new()));
    let mut lines = both.clone();
    del(&mut lines, "eth1", &["10.1.0.2/24"]);
    assert_eq!(lines.sorted(), first.sorted(), "the address of another interface is not its own");
    del(&mut lines, "eth0", &[]);
    assert_eq!(lines, empty());
    del(&mut both, "eth0", &[]);
    assert_eq!(both.sorted(), second.sorted());
}

#[test]
fn each_rule_that_is_missing_or_foreign_is_named_and_made_again() {
    let step = step("eth0", &["10.1.0.2/24", "10.2.0.2/24"]);
    let mut whole = empty();
    add(&mut whole, &step);
    assert_eq!(drifts(&whole, &step), [""; 0]);
    for chain in whole.chains() {
        for (number, rule) in whole.clone().chain(&chain).iter().enumerate().filter(|(_, rule)| *rule != "-j OTHER") {
            let mut lines = whole.clone();
            lines.chain(&chain).remove(number);
            assert_eq!(drifts(&lines, &step), [format!("rule `{rule}` is missing from chain {chain} of nat")]);
            let again = step.changes_if_different(&lines.read());
            lines.change(&again);
            assert_eq!(lines.sorted(), whole.sorted());
        }
    }
    let mut more = whole.clone();
    let twice = more.chain(CHAIN)[0].clone();
    more.chain(CHAIN).push(twice.clone());
    assert!(!drifts(&more, &step).is_empty(), "`{twice}` twice");
    assert_eq!(step.differences_without_chains("nat").len(), 6);
}

#[test]
fn a_failed_add_gives_back_what_the_attachment_had() {
    let mut lines = empty();
    add(&mut lines, &step("eth0", &["10.1.0.2/24"]));
    add(&mut lines, &step("eth1", &["10.3.0.2/24"]));
    let had = lines.clone();
    let other = step("eth0", &["10.2.0.2/24"]);
    let before = add(&mut lines, &other);
    assert_eq!((lines.count("10.1.0.2"), lines.count("10.2.0.2"), lines.count("10.3.0.2")), (0, 3, 3));
    let undo = other.put_back(&lines.read(), &before);
    lines.change(&undo);
    assert_eq!(lines.sorted(), had.sorted());
}

#[test]
fn the_rules_of_upstream_are_accepted_and_removed_by_their_address() {
    let mut lines = empty();
    upstreams(&mut lines, &["10.1.0.2"]);
    let step = step("eth0", &["10.1.0.2/24"]);
    assert_eq!(drifts(&lines, &step), [""; 0]);
    let mut less = lines.clone();
    less.chain(CHAIN).remove(0);
    let said = drifts(&less, &step);
    assert!(said.len() == 1 && said[0].contains("-d 10.1.0.0/24") && said[0].contains("is missing"), "{said:?}");
    assert_eq!(names("n1", "eth0").unclaimed(&lines.read()), [IpAddr::from([10, 1, 0, 2]); 1]);
    let mut left = lines.clone();
    del(&mut left, "eth0", &["10.1.0.9/24"]);
    assert_eq!(left, lines, "another interface of the container may have this address");
    del(&mut left, "eth0", &["10.1.0.2/24"]);
    assert_eq!(left, empty());
}

/// Upstream's rules match every address: in a chain that stays they would masquerade the addresses of other interfaces.
#[test]
fn the_rules_of_upstream_go_with_their_last_jump_though_the_chain_stays() {
    let mut lines = empty();
    let other = step("eth1", &["10.2.0.2/24"]);
    add(&mut lines, &other);
    let alone = lines.clone();
    upstreams(&mut lines, &["10.1.0.2", "10.1.0.3"]);
    assert_eq!(drifts(&lines, &other), [""; 0]);
    del(&mut lines, "eth0", &["10.1.0.2/24"]);
    assert_eq!(lines.count("10.1.0.0/24"), 1, "10.1.0.3 still jumps to them");
    del(&mut lines, "eth0", &["10.1.0.3/24"]);
    assert_eq!(lines.sorted(), alone.sorted());
}

#[test]
fn a_jump_of_a_very_old_release_is_removed_by_the_network_of_its_address() {
    let old = |lines: &mut Lines| {
        let jump = names("n1", "eth0").jump.replace('"', "\\\"");
        lines.chain("POSTROUTING").push(format!("-s 10.1.0.0/24 -m comment --comment \"{jump}\" -j {CHAIN}"));
    };
    let mut lines = empty();
    add(&mut lines, &step("eth0", &["10.1.0.2/24"]));
    old(&mut lines);
    del(&mut lines, "eth0", &[]);
    assert_eq!(lines, empty());
    add(&mut lines, &step("eth0", &["10.1.0.2/24"]));
    add(&mut lines, &step("eth1", &["10.2.0.2/24"]));
    old(&mut lines);
    for _ in 0..2 {
        del(&mut lines, "eth1", &[]);
        assert_eq!(lines.count("-s 10.1.0.0/24"), 1, "it has an address of the other interface");
    }
    del(&mut lines, "eth0", &[]);
    assert_eq!(lines, empty());
}

#[test]
fn a_gc_removes_what_is_stale_in_its_network_alone() {
    let valid = || vec![names("n1", "eth0")];
    let mut lines = empty();
    add(&mut lines, &step("eth0", &["10.1.0.2/24"]));
    let first = lines.clone();
    add(&mut lines, &step("eth1", &["10.2.0.2/24"]));
    let other = Step::of(&ips(&["10.9.0.2/24"]), IpVersion::V4, &names("n2", "eth0"));
    let mut with_other = lines.clone();
    add(&mut with_other, &other);
    gc(&mut lines, "n1", valid());
    assert_eq!(lines.sorted(), first.sorted(), "a valid container lost one interface");
    gc(&mut lines, "n2", Vec::new());
    assert_eq!(lines.sorted(), first.sorted());
    gc(&mut lines, "n1", Vec::new());
    assert_eq!(lines, empty());
    gc(&mut with_other, "n1", Vec::new());
    assert_eq!((with_other.count("10.9.0"), with_other.count("10.1.0") + with_other.count("10.2.0")), (3, 0));
    let mut reference = empty();
    upstreams(&mut reference, &["10.1.0.2"]);
    let whole = reference.clone();
    gc(&mut reference, "n1", valid());
    assert_eq!(reference, whole);
    gc(&mut reference, "n1", Vec::new());
    assert_eq!(reference, empty());
    // A killed plugin of upstream leaves a chain without a jump, or a jump to an empty chain.
    for (chain, kept) in [("POSTROUTING", 1), (CHAIN, 0)] {
        let mut killed = whole.clone();
        killed.chain(chain).truncate(kept);
        let stays = killed.clone();
        gc(&mut killed, "n1", valid());
        assert_eq!(killed, stays, "{chain}: the container is valid");
        gc(&mut killed, "n1", Vec::new());
        assert_eq!(killed, empty(), "{chain}");
    }
}
