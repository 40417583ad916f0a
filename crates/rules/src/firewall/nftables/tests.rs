use std::net::IpAddr;

use super::*;

fn tag(container: &str) -> AttachmentId {
    AttachmentId { network: "n\"1".into(), container: container.into(), ifname: "eth0".into() }
}

fn isolated(within: bool) -> Isolation {
    Isolation { bridge: "br0".into(), within }
}

/// The rules of an attachment with an address of each version, as nft prints them without their comment.
fn shown(accepts: bool, isolation: Option<&Isolation>) -> Vec<String> {
    let addresses: [IpAddr; 2] = ["10.1.0.2", "fd00::2"].map(|text| text.parse().unwrap());
    let demand = Demand { addresses: &addresses, accepts, isolation, admin_chain: "admins" };
    let rules = rules(&demand, &tag("c1"));
    let comment = format!(" comment \"{}\"", comment(&tag("c1")));
    rules.iter().map(|rule| rule.to_string().strip_suffix(&comment).unwrap().to_owned()).collect()
}

#[test]
fn an_attachment_has_a_rule_per_address_and_one_for_its_bridge() {
    let addresses = ["ip saddr 10.1.0.2 accept", "ip6 saddr fd00::2 accept"];
    assert_eq!(shown(true, None), addresses);
    let through = "iifname \"br0\" oifname \"br0\"";
    assert_eq!(shown(true, Some(&isolated(false))), [addresses[0], addresses[1], &format!("{through} return")]);
    assert_eq!(shown(false, Some(&isolated(true))), [format!("{through} drop")], "firewalld accepts the addresses");
}

#[test]
fn only_containers_that_are_isolated_from_each_other_have_rules_between_ports() {
    assert_eq!(within(None, &tag("c1")), None);
    assert_eq!(within(Some(&isolated(false)), &tag("c1")), None);
    let rules = within(Some(&isolated(true)), &tag("c1")).unwrap();
    let wanted = format!("meta ibrname \"br0\" meta obrname \"br0\" drop comment \"{}\"", comment(&tag("c1")));
    assert_eq!(rules.iter().map(Rule::to_string).collect::<Vec<_>>(), [wanted]);
}

/// A packet is looked up in the sets, so what a rule puts in none of them has no effect.
#[test]
fn each_rule_is_in_the_sets_that_packets_are_looked_up_in() {
    let sets = |rule: &Rule| -> Vec<(&'static str, Key)> {
        let of = |index: &Index| match &index.by {
            IndexBy::Rule(key) => Some((index.set.name, key(rule)?)),
            IndexBy::Owner => None,
        };
        forward().indexes.iter().filter_map(of).collect()
    };
    let from = |text: &str| rule(vec![Match::Source(text.parse().unwrap())], Verdict::Accept);
    let address = |text: &str| vec![KeyValue::Address(text.parse().unwrap())];
    assert_eq!(sets(&from("10.1.0.2")), [(IPV4, address("10.1.0.2"))]);
    assert_eq!(sets(&from("fd00::2")), [(IPV6, address("fd00::2"))]);
    let bridge = || KeyValue::Interface("br0".into());
    let open = [(BRIDGES, vec![bridge()]), (LOOPS, vec![bridge(), bridge()])];
    let of = |within| {
        let isolation = isolated(within);
        rule(through(&isolation, [Direction::In, Direction::Out]), verdict(&isolation))
    };
    assert_eq!(sets(&of(false)), open);
    let closed = (ISOLATED, vec![bridge(), bridge()]);
    assert_eq!(sets(&of(true)), [&open[..], &[closed]].concat());
    let foreign = rule(vec![Match::Source([10, 1, 0, 2].into()), Match::Established], Verdict::Accept);
    assert_eq!(sets(&foreign), []);
    let not = Match::Interface { way: Direction::In, is: false, name: "br0".into() };
    assert_eq!(sets(&rule(vec![not, Match::Established], Verdict::Drop)), []);
}

#[test]
fn a_forwarded_packet_passes_isolation_the_operators_chain_and_what_accepts() {
    let hooks = |layout: &TableLayout| -> Vec<(&'static str, Option<i32>)> {
        layout.chains.iter().map(|chain| (chain.name, chain.hook.as_ref().map(|hook| hook.priority))).collect()
    };
    let prologue = |layout: &TableLayout| -> Vec<String> {
        let [(chain, rules)] = &layout.prologue[..] else { panic!("{layout}") };
        assert_eq!(*chain, FORWARD);
        rules.iter().map(Rule::to_string).collect()
    };
    let inet = forward();
    assert_eq!(hooks(&inet), [(OWNERS, None), (ADMINS, None), (FORWARD, Some(0))]);
    let rules = [
        "iifname . oifname @isolated drop",
        "iifname @bridges oifname @bridges iifname . oifname != @loops drop",
        "jump admins",
        "ip daddr @ipv4 ct state established,related accept",
        "ip saddr @ipv4 accept",
        "ip6 daddr @ipv6 ct state established,related accept",
        "ip6 saddr @ipv6 accept",
    ];
    assert_eq!(prologue(&inet), rules);
    let bridge = bridged();
    assert_eq!(hooks(&bridge), [(OWNERS, None), (FORWARD, Some(-200))]);
    assert_eq!(prologue(&bridge), ["meta ibrname . meta obrname @isolated drop"]);
    for layout in [inet, bridge] {
        assert_eq!(layout.rule_chains, [OWNERS]);
        assert!(layout.table_comment.is_some());
        let owners = layout.indexes.last().unwrap();
        assert!(owners.set.name == OWNERS && matches!(owners.by, IndexBy::Owner));
    }
}

#[test]
fn a_comment_holds_the_mark_and_no_quote_and_the_admins_chain_is_shared_by_its_name() {
    let said = comment(&tag(&"c".repeat(300)));
    assert_eq!(said.len(), LONGEST_COMMENT);
    assert!(said.starts_with(&alias::mark_of(&tag(&"c".repeat(300)))) && !said.contains('"'), "{said}");
    let AdminJump { layout, filter, rules: [jump] } = admin_jump("CNI-ADMIN".into());
    assert_eq!(jump.to_string(), "jump CNI-ADMIN comment \"operator:CNI-ADMIN\"");
    let owner = "operator:CNI-ADMIN".to_owned();
    assert_eq!(filter, OwnerFilter::Owned { comment: Some(owner.clone()), owner });
    assert_eq!(layout.chains.iter().map(|chain| chain.name).collect::<Vec<_>>(), [ADMINS, "CNI-ADMIN"]);
    assert!(layout.chains.iter().all(|chain| chain.hook.is_none()) && layout.rule_chains == [ADMINS]);
}
