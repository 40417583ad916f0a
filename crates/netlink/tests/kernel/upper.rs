//! Links on top of another link, if the kernel supports them.

use cnikit_netlink::{IpvlanMode, MacvlanMode, NewUpper, UpperKind};

use crate::scene::{inside, ip, pair_up};

const MACVLAN: UpperKind = UpperKind::Macvlan { mode: MacvlanMode::Private, queue: Some(77) };

/// Each kind is created if this kernel supports it, and refused as unsupported otherwise.
#[test]
fn one_is_made_in_another_namespace_by_one_message() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    for upper in [MACVLAN, UpperKind::Ipvlan(IpvlanMode::L3s)] {
        let (here, netlink) = inside();
        let (there, container) = inside();
        let (near, _) = pair_up(&here, &netlink);
        let mac = matches!(upper, UpperKind::Macvlan { .. }).then(|| "0a:00:00:00:00:07".parse().unwrap());
        let wanted = NewUpper::new("eth0", near.index, upper).netns(there.clone()).mac(mac).mtu(1400).group(7).up(true);
        if !netlink.knows_upper(upper).unwrap() {
            assert!(netlink.create_upper(&wanted).unwrap_err().unsupported());
            continue;
        }
        netlink.create_upper(&wanted).unwrap();
        assert_eq!(netlink.links().unwrap().len(), 3, "lo and the pair: nothing came here");
        let made = container.link("eth0").unwrap();
        assert_eq!((made.mtu, made.group, made.up, made.carrier), (1400, 7, true, true));
        assert_eq!(made.mac, mac.or(near.mac));
        assert_eq!((made.lower, made.lower_netns.is_some()), (Some(near.index), true));
        assert_eq!(made.lower_netns, container.namespace_id(&here).unwrap());
        // Linux has such a queue since 5.11.
        let expected = match upper {
            UpperKind::Macvlan { mode, .. } if release.starts_with("5.10.") => UpperKind::Macvlan { mode, queue: None },
            upper => upper,
        };
        assert_eq!(made.upper, Some(expected));
        assert!(ip(&there, "-d link show eth0").contains(if mac.is_some() { "mode private" } else { "mode l3s" }));
        let taken = netlink.create_upper(&wanted).unwrap_err();
        assert!(taken.exists() && taken.to_string().contains("eth0 in "), "{taken}");
    }
}

#[test]
fn one_with_a_number_of_its_own_may_be_called_as_one_here_is() {
    for upper in [MACVLAN, UpperKind::Ipvlan(IpvlanMode::L2)] {
        let (here, netlink) = inside();
        let (there, container) = inside();
        let (near, _) = pair_up(&here, &netlink);
        let name = near.name.clone();
        let index = Some(0x2000_0007);
        let lower = near.index;
        let netns = Some(there);
        let wanted = NewUpper::new(name, lower, upper).index(index).netns(netns);
        if netlink.knows_upper(upper).unwrap() {
            netlink.create_upper(&wanted).unwrap();
            assert_eq!(container.link(&near.name).unwrap().index, 0x2000_0007);
            assert_eq!(netlink.link(&near.name).unwrap().index, near.index, "the one here is still there");
        }
    }
}

#[test]
fn one_on_top_of_a_loopback_is_at_odds_with_it_and_is_no_question_of_the_kernel() {
    let (_netns, netlink) = inside();
    let lower = netlink.link("lo").unwrap().index;
    let on_lo = |upper| NewUpper::new("eth0", lower, upper);
    for upper in [MACVLAN, UpperKind::Ipvlan(IpvlanMode::L2)] {
        let knows = netlink.knows_upper(upper).unwrap();
        let error = netlink.create_upper(&on_lo(upper)).unwrap_err();
        assert_eq!((error.is_at_odds(), error.unsupported()), (knows, !knows), "{error}");
        assert_eq!(netlink.links().unwrap().len(), 1, "asking makes nothing");
    }
}

#[test]
fn modes_have_the_words_of_ip() {
    for word in ["private", "vepa", "bridge", "passthru"] {
        assert_eq!(MacvlanMode::named(word).unwrap().to_string(), word);
    }
    for word in ["l2", "l3", "l3s"] {
        assert_eq!(IpvlanMode::named(word).unwrap().to_string(), word);
    }
    assert_eq!((MacvlanMode::named("source"), IpvlanMode::named("L2")), (None, None));
}
