use super::*;
use crate::backend::Backend;
use crate::lines::Lines;
use crate::portmap::{L4Protocol, OnPortConflict};

pub(in super::super) fn portmap() -> PortMap {
    let mapping = |host_port, container_port, protocol, host: Option<&str>| Mapping {
        host_port,
        container_port,
        protocol,
        host_address: host.map(|text| text.parse().unwrap()),
    };
    PortMap {
        mappings: vec![
            mapping(8080, 80, L4Protocol::Tcp, None),
            mapping(8081, 81, L4Protocol::Udp, None),
            mapping(8082, 82, L4Protocol::Tcp, Some("127.0.0.2")),
            mapping(8083, 83, L4Protocol::Sctp, Some("fd00:1::1")),
        ],
        addresses: ["10.1.0.2/24", "fd00:1::2/64"].map(|text| text.parse().unwrap()).to_vec(),
        masquerades: Masquerades::Hairpin,
        mark: Mark::Bit(DEFAULT_BIT),
        conditions_v4: ["-s", "10.9.0.0/16", "!", "-i", "eth9"].map(str::to_owned).to_vec(),
        conditions_v6: Vec::new(),
        backend: Backend::Iptables,
        on_conflict: OnPortConflict::Refuse,
    }
}

pub(in super::super) fn names(network: &str, container: &str, ifname: &str) -> Names {
    Names::of(&AttachmentId { network: network.into(), container: container.into(), ifname: ifname.into() })
}

/// The lines that make them, from nothing.
pub(in super::super) fn made(share: &Share, names: &Names) -> Vec<String> {
    let changes = Share::default().changes_to(share, &Table::default(), &names.chain).to_string();
    changes.lines().map(str::to_owned).collect()
}

/// A table with what these lines say, as if iptables-save said it.
pub(in super::super) fn table(lines: &[String]) -> Table {
    Lines::made_by("nat", ENTRIES, lines).read()
}

/// As portmap 1.9.1 of upstream wrote it, by iptables-save 1.8.9, in its order; the two rules with the mark are ours.
const V4: &str = r#"-N CNI-DN-6ac8013f2d24e893d59dd
-A CNI-DN-6ac8013f2d24e893d59dd -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A CNI-DN-6ac8013f2d24e893d59dd -s 10.1.0.0/24 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -s 127.0.0.1/32 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -p udp -m udp --dport 8081 -j DNAT --to-destination 10.1.0.2:81
-A CNI-DN-6ac8013f2d24e893d59dd -s 10.1.0.0/24 -d 127.0.0.2/32 -p tcp -m tcp --dport 8082 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -s 127.0.0.1/32 -d 127.0.0.2/32 -p tcp -m tcp --dport 8082 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -d 127.0.0.2/32 -p tcp -m tcp --dport 8082 -j DNAT --to-destination 10.1.0.2:82
-A CNI-HOSTPORT-DNAT -s 10.9.0.0/16 ! -i eth9 -p sctp -m comment --comment "dnat name: \"n-1\" id: \"c1\"" -m multiport --dports 8083 -j CNI-DN-6ac8013f2d24e893d59dd
-A CNI-HOSTPORT-DNAT -s 10.9.0.0/16 ! -i eth9 -p tcp -m comment --comment "dnat name: \"n-1\" id: \"c1\"" -m multiport --dports 8080,8082 -j CNI-DN-6ac8013f2d24e893d59dd
-A CNI-HOSTPORT-DNAT -s 10.9.0.0/16 ! -i eth9 -p udp -m comment --comment "dnat name: \"n-1\" id: \"c1\"" -m multiport --dports 8081 -j CNI-DN-6ac8013f2d24e893d59dd"#;

const V6: &str = r#"-N CNI-DN-6ac8013f2d24e893d59dd
-A CNI-DN-6ac8013f2d24e893d59dd -s fd00:1::/64 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -p tcp -m tcp --dport 8080 -j DNAT --to-destination "[fd00:1::2]:80"
-A CNI-DN-6ac8013f2d24e893d59dd -s fd00:1::/64 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -p udp -m udp --dport 8081 -j DNAT --to-destination "[fd00:1::2]:81"
-A CNI-DN-6ac8013f2d24e893d59dd -s fd00:1::/64 -d fd00:1::1/128 -p sctp -m sctp --dport 8083 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-6ac8013f2d24e893d59dd -d fd00:1::1/128 -p sctp -m sctp --dport 8083 -j DNAT --to-destination "[fd00:1::2]:83"
-A CNI-HOSTPORT-DNAT -p sctp -m comment --comment "dnat name: \"n-1\" id: \"c1\"" -m multiport --dports 8083 -j CNI-DN-6ac8013f2d24e893d59dd
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n-1\" id: \"c1\"" -m multiport --dports 8080,8082 -j CNI-DN-6ac8013f2d24e893d59dd
-A CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"n-1\" id: \"c1\"" -m multiport --dports 8081 -j CNI-DN-6ac8013f2d24e893d59dd"#;

#[test]
fn rules_are_equal_to_upstreams_except_for_the_marks_of_the_interface() {
    let names = names("n-1", "c1", "eth0");
    for (version, theirs, skipped) in
        [(IpVersion::V4, V4, "sctp --dport 8083"), (IpVersion::V6, V6, "tcp --dport 8082")]
    {
        let made = made(&Share::wanted(&portmap(), version, &names), &names);
        let (ours, same): (Vec<&String>, Vec<&String>) = made
            .iter()
            .partition(|line| line.contains(&names.owner) || line.starts_with("-A CNI-DN") && !line.contains(" -j "));
        assert_eq!(same, theirs.lines().collect::<Vec<_>>());
        assert_eq!(ours.len(), 3);
        assert!(ours[1].ends_with(skipped), "{ours:?}");
    }
}

#[test]
fn another_mark_or_none_or_everybodys_changes_only_how_the_source_is_marked() {
    let of = |portmap: PortMap| {
        let names = names("n-1", "c1", "eth0");
        let share = Share::wanted(&portmap, IpVersion::V4, &names);
        let rules: Vec<String> = share.blocks[0].rules.iter().take(3).map(ToString::to_string).collect();
        rules
    };
    let last = "-p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80";
    let bit = of(PortMap { mark: Mark::Bit(5), ..portmap() });
    assert_eq!(bit[0], "-s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j MARK --set-xmark 0x20/0x20");
    let chain = of(PortMap { mark: Mark::Chain("KUBE-MARK-MASQ".into()), ..portmap() });
    assert_eq!(chain[1], "-s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ");
    let all = of(PortMap { masquerades: Masquerades::All, ..portmap() });
    assert_eq!(all[..2], ["-p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK", last]);
    assert_eq!(of(PortMap { masquerades: Masquerades::Nothing, ..portmap() })[0], last);
}

#[test]
fn an_installed_share_needs_no_change_and_is_removed_entirely() {
    let names = names("n-1", "c1", "eth0");
    let wanted = Share::wanted(&portmap(), IpVersion::V4, &names);
    let table = table(&made(&wanted, &names));
    let found = names.installed(&table, |_| false);
    assert_eq!(found, wanted);
    assert!(found.changes_to(&wanted, &table, &names.chain).is_empty());
    assert_eq!(found.differences(&wanted, false, &names.chain, "here"), [""; 0]);
    let gone = found.changes_to(&Share::default(), &table, &names.chain).to_string();
    let entries = gone.lines().filter(|line| line.starts_with("-D CNI-HOSTPORT-DNAT")).count();
    assert_eq!((entries, gone.lines().count()), (3, 5), "{gone}");
    assert!(gone.ends_with("-F CNI-DN-6ac8013f2d24e893d59dd\n-X CNI-DN-6ac8013f2d24e893d59dd\n"), "{gone}");
}

#[test]
fn rules_that_are_there_twice_are_made_once_and_removed_entirely() {
    let names = names("n-1", "c1", "eth0");
    let wanted = Share::wanted(&portmap(), IpVersion::V4, &names);
    let mut lines = Lines::made_by("nat", ENTRIES, &made(&wanted, &names));
    let once = lines.clone();
    lines.double();
    let found = names.installed(&lines.read(), |_| false);
    let mut again = lines.clone();
    again.change(&found.changes_to(&wanted, &lines.read(), &names.chain));
    assert_eq!(again.sorted(), once.sorted());
    lines.change(&found.changes_to(&Share::default(), &lines.read(), &names.chain));
    assert_eq!(lines.rules(), [""; 0]);
    assert_eq!(lines.chains(), [ENTRIES]);
}

#[test]
fn of_entries_for_the_same_ports_each_other_owner_has_one() {
    let entry = Share::wanted(&portmap(), IpVersion::V4, &names("n-1", "c1", "eth0")).entries.remove(0);
    let ports = ports_of(&entry).unwrap();
    let installed = [entry.clone(), entry.clone(), entry];
    for (others, own) in [(0, 3), (1, 2), (3, 0)] {
        let others = vec![ports.clone(); others];
        assert_eq!(entries_of(&installed, std::slice::from_ref(&ports), &others, false).len(), own, "{others:?}");
    }
}

#[test]
fn entries_are_the_same_if_none_is_missing_and_none_too_many() {
    let wanted = Share::wanted(&portmap(), IpVersion::V4, &names("n-1", "c1", "eth0"));
    let mut fewer = wanted.clone();
    fewer.entries.remove(0);
    assert!(wanted.has_same_entries(&wanted));
    assert!(!wanted.has_same_entries(&fewer) && !fewer.has_same_entries(&wanted));
}

/// The same for another interface and address, with other ports.
fn second() -> (Names, PortMap) {
    let mut other = portmap();
    other.mappings.iter_mut().for_each(|one| one.host_port += 1000);
    other.addresses = vec!["10.1.0.3/24".parse().unwrap()];
    (names("n-1", "c1", "eth1"), other)
}

/// What these changes leave of a table.
fn after(lines: &[String], changes: &Changes) -> Vec<String> {
    let mut all = Lines::made_by("nat", ENTRIES, lines);
    all.change(changes);
    let (entries, rules): (Vec<String>, Vec<String>) =
        all.rules().into_iter().partition(|line| line.starts_with("-A CNI-HOSTPORT"));
    let chains = all.chains().into_iter().skip(1).map(|chain| format!("-N {chain}"));
    chains.chain(rules).chain(entries).collect()
}

#[test]
fn each_of_two_interfaces_in_one_chain_is_removed_alone() {
    let (first, (second, other)) = (names("n-1", "c1", "eth0"), second());
    let one = Share::wanted(&portmap(), IpVersion::V4, &first);
    let two = Share::wanted(&other, IpVersion::V4, &second);
    let alone = made(&one, &first);
    let both = after(&alone, &Share::default().changes_to(&two, &table(&alone), &second.chain));
    assert_eq!(second.installed(&table(&both), |_| false), two);
    assert_eq!(first.installed(&table(&both), |_| false), one);
    let left = after(&both, &two.changes_to(&Share::default(), &table(&both), &second.chain));
    assert_eq!(left, alone);
    let left = after(&both, &one.changes_to(&Share::default(), &table(&both), &first.chain));
    assert_eq!(left, made(&two, &second));
}

#[test]
fn the_chain_stays_as_long_as_another_interface_has_rules_or_another_program_a_jump() {
    let (first, (second, other)) = (names("n-1", "c1", "eth0"), second());
    let one = Share::wanted(&portmap(), IpVersion::V4, &first);
    let two = Share::wanted(&other, IpVersion::V4, &second);
    let alone = made(&one, &first);
    let mut both = after(&alone, &Share::default().changes_to(&two, &table(&alone), &second.chain));
    // Another program has flushed the entries of the other interface.
    both.retain(|line| two.entries.iter().all(|entry| !line.ends_with(&entry.to_string())));
    let left = after(&both, &one.changes_to(&Share::default(), &table(&both), &first.chain));
    let mut rules = made(&two, &second);
    rules.truncate(left.len());
    assert_eq!(left, rules);
    assert!(left.len() > 1 && left.iter().all(|line| !line.starts_with("-A CNI-HOSTPORT")), "{left:?}");

    let mut lines = Lines::made_by("nat", ENTRIES, &alone);
    let mut theirs = Changes::default();
    theirs.new_chain("THEIRS");
    theirs.append("THEIRS", &one.entries[0]);
    lines.change(&theirs);
    let found = first.installed(&lines.read(), |_| false);
    assert_eq!(found, one);
    lines.change(&found.changes_to(&Share::default(), &lines.read(), &first.chain));
    assert_eq!(lines.rules(), [format!("-A THEIRS {}", one.entries[0])]);
}

/// A container with an interface of upstream and one of ours.
#[test]
fn rules_of_upstream_beside_a_block_are_removed_by_their_address() {
    let (first, (second, other)) = (names("n-1", "c1", "eth0"), second());
    let two = Share::wanted(&other, IpVersion::V4, &second);
    let reference: Vec<String> = V4.lines().map(str::to_owned).collect();
    let both = after(&reference, &Share::default().changes_to(&two, &table(&reference), &second.chain));
    let found = first.installed(&table(&both), |address| address == IpAddr::from([10, 1, 0, 2]));
    assert_eq!((found.blocks.len(), found.upstream.len()), (0, 9));
    let left = after(&both, &found.changes_to(&Share::default(), &table(&both), &first.chain));
    let rules =
        |lines: &[String]| lines.iter().filter(|line| line.starts_with("-A CNI-DN-")).cloned().collect::<Vec<_>>();
    assert_eq!(rules(&left), rules(&made(&two, &second)));
    assert_eq!(second.installed(&table(&both), |_| false), two);
}

#[test]
fn a_changed_mapping_takes_the_place_of_the_old_one_and_comes_back() {
    let names = names("n-1", "c1", "eth0");
    let (before, (_, other)) = (Share::wanted(&portmap(), IpVersion::V4, &names), second());
    let wanted = Share::wanted(&other, IpVersion::V4, &names);
    let lines = made(&before, &names);
    let changed = after(&lines, &before.changes_to(&wanted, &table(&lines), &names.chain));
    assert_eq!(changed, made(&wanted, &names));
    let found = names.installed(&table(&changed), |_| false);
    assert_eq!(after(&changed, &found.changes_to(&before, &table(&changed), &names.chain)), lines);
}

#[test]
fn rules_of_upstream_are_accepted_and_replaced_by_an_add() {
    let names = names("n-1", "c1", "eth0");
    let (lines, wanted) =
        (V4.lines().map(str::to_owned).collect::<Vec<_>>(), Share::wanted(&portmap(), IpVersion::V4, &names));
    let own = |address: IpAddr| address == IpAddr::from([10, 1, 0, 2]);
    let found = names.installed(&table(&lines), own);
    assert_eq!(found.differences(&wanted, false, &names.chain, "here"), [""; 0]);
    let taken_over = after(&lines, &found.changes_to(&wanted, &table(&lines), &names.chain));
    assert_eq!(taken_over, made(&wanted, &names));
    let again = names.installed(&table(&taken_over), own);
    let put_back = after(&taken_over, &again.changes_to(&found, &table(&taken_over), &names.chain));
    assert_eq!(put_back, lines);
    // They lead to an address that is not ours.
    let found = names.installed(&table(&lines), |_| false);
    assert_eq!(found, Share::default());
    assert_eq!(names.unclaimed(&table(&lines)), [IpAddr::from([10, 1, 0, 2]); 1]);
}

#[test]
fn each_thing_that_is_not_as_it_was_made_is_named() {
    let names = names("n-1", "c1", "eth0");
    let wanted = Share::wanted(&portmap(), IpVersion::V4, &names);
    let lines = made(&wanted, &names);
    let said = |lines: &[String]| {
        names.installed(&table(lines), |_| false).differences(&wanted, false, &names.chain, "here").join("; ")
    };
    for place in (1..lines.len()).filter(|place| !lines[*place].contains(&names.owner)) {
        let mut less = lines.clone();
        let gone = less.remove(place);
        let (chain, rule) = gone[3..].split_once(' ').unwrap();
        assert_eq!(said(&less), format!("rule `{rule}` is missing from chain {chain} of here"));
    }
    let mut other = lines.clone();
    other.swap(2, 4);
    assert!(said(&other).contains("in another order"), "{}", said(&other));
    let mut more = lines.clone();
    more.insert(3, format!("-A {} -j RETURN", names.chain));
    assert!(said(&more).contains("rule `-j RETURN` in chain CNI-DN-6ac8013f2d24e893d59dd of here is not wanted"));
}

#[test]
fn a_chain_that_a_killed_upstream_plugin_left_is_removed_by_a_del() {
    let names = names("n-1", "c1", "eth0");
    let lines: Vec<String> = V4.lines().map(str::to_owned).collect();
    let chain = "-F CNI-DN-6ac8013f2d24e893d59dd\n-X CNI-DN-6ac8013f2d24e893d59dd\n";
    for (kept, entries) in [(1..1, 0), (1..2, 0), (10..13, 3)] {
        let left: Vec<String> = lines[..1].iter().chain(&lines[kept]).cloned().collect();
        let table = table(&left);
        let gone = names.installed(&table, |_| false).changes_to(&Share::default(), &table, &names.chain).to_string();
        assert!(gone.ends_with(chain) && gone.lines().count() == entries + 2, "{gone}");
    }
}

#[test]
fn gc_finds_the_rules_of_a_network_by_mark_or_by_chain() {
    let (own, (other, theirs)) = (names("n-1", "c1", "eth0"), second());
    let ours = made(&Share::wanted(&portmap(), IpVersion::V4, &own), &own);
    let both = after(
        &ours,
        &Share::default().changes_to(&Share::wanted(&theirs, IpVersion::V4, &other), &table(&ours), &own.chain),
    );
    let reference: Vec<String> = V4.lines().map(str::to_owned).collect();
    let context =
        |lines: &[String], network: &str, valid: &[Names]| Share::stale(&table(lines), &own.chain, network, valid);
    for lines in [&ours, &both, &reference] {
        assert_eq!(context(lines, "n-2", &[]), None);
        let gone = context(lines, "n-1", &[]).unwrap();
        let left = after(lines, &gone.changes_to(&Share::default(), &table(lines), &own.chain));
        assert_eq!(left, [""; 0]);
    }
    assert_eq!(context(&reference, "n-1", std::slice::from_ref(&other)), None);
    assert_eq!(context(&ours, "n-1", std::slice::from_ref(&own)), None);
    let gone = context(&both, "n-1", std::slice::from_ref(&own)).unwrap();
    assert_eq!(after(&both, &gone.changes_to(&Share::default(), &table(&both), &own.chain)), ours);
    assert_eq!(context(&["-N CNI-DN-6ac8013f2d24e893d59dd".to_owned()], "n-1", &[]), None);
}

#[test]
fn a_comment_is_cut_as_upstream_cuts_it() {
    let long = comment(&AttachmentId { network: "n".repeat(200), container: "c".repeat(100), ifname: "eth0".into() });
    assert_eq!(long.len(), 255);
    assert!(long.starts_with(&format!("dnat name: \"{}\" id: \"ccc", "n".repeat(200))) && long.ends_with("ccc.."));
    let names = names(&"n".repeat(200), &"c".repeat(100), "eth0");
    assert!(is_of(&IptablesRule::any().commented(&names.entry), &"n".repeat(200), &names.chain));
    let cut_network = super::tests::names(&"n".repeat(250), "c1", "eth0");
    assert!(!is_of(&IptablesRule::any().commented(&cut_network.entry), "n", &cut_network.chain));
    assert!(is_chain(&names.chain) && !is_chain("CNI-HOSTPORT-DNAT") && !is_chain("CNI-7be53730afe4dc6eb2178d03"));
    assert!(!is_chain("CNI-DN-6ac8013f") && !is_chain("CNI-DN-of-another-program-xx"));
}
