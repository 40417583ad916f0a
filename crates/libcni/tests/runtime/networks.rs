//! Several networks of one container.

use cnikit_libcni::{Attachment, Error, Networks, State};
use serde_json::json;

use crate::node::{Node, container, list, names, of_version};

/// Network `a` of the plugin `first`, and `b` of `second`.
fn two(node: &Node) -> Networks {
    Networks::new(node.runtime.clone()).with(list("a", &["first"])).with(list("b", &["second"]))
}

#[test]
fn each_network_gets_an_interface_of_its_own_and_removal_is_in_reverse_order() {
    let node = Node::new();
    let networks = two(&node);
    let merged = networks.setup(&container("c1")).unwrap();
    let interfaces: Vec<_> = merged.interfaces.iter().map(|one| (&*one.network, &*one.interface.name)).collect();
    assert_eq!(interfaces, [("a", "eth0"), ("b", "eth1")]);
    networks.check(&container("c1")).unwrap();
    networks.remove(&container("c1")).unwrap();
    let calls = node.calls();
    let seen: Vec<_> = calls.iter().map(|call| (&*call.name, &*call.environment.ifname)).collect();
    let expected = [
        ("ADD first", "eth0"),
        ("ADD second", "eth1"),
        ("CHECK first", "eth0"),
        ("CHECK second", "eth1"),
        ("DEL second", "eth1"),
        ("DEL first", "eth0"),
    ];
    assert_eq!(seen, expected);
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
}

#[test]
fn names_and_numbers_of_interfaces_are_the_callers_and_the_loopback_does_not_count() {
    let node = Node::new();
    let networks = Networks::new(node.runtime.clone()).prefix("net").with_loopback();
    let networks =
        networks.with(list("a", &["first"])).with_as(list("b", &["first"]), "vpn0").with(list("c", &["first"]));
    let names: Vec<&str> = networks.networks.iter().map(|network| network.ifname.as_str()).collect();
    assert_eq!(names, ["lo", "net0", "vpn0", "net2"]);
    let loopback = &networks.networks[0].list;
    assert_eq!(
        (&*loopback.name, &*loopback.version, &*loopback.plugins[0].plugin),
        ("cni-loopback", "0.4.0", "loopback")
    );
    assert!(networks.clone().with(list("d", &["first"])).with_loopback().networks[0].ifname == "lo");

    for (least, is_enough) in [(0, true), (3, true), (4, false)] {
        let networks = Networks { networks: networks.networks[1..].to_vec(), ..networks.clone() }.at_least(least);
        assert_eq!(networks.status().is_ok(), is_enough, "{least}");
        match networks.setup(&container("c1")) {
            Ok(_) => assert!(is_enough, "{least}"),
            Err(error) => {
                assert!(matches!(error, Error::TooFew { found: 3, wanted: 4 }), "{error}");
                assert_eq!(error.code(), 50);
            }
        }
    }
    let none = Networks::new(node.runtime.clone()).with_loopback();
    let error = none.setup(&container("c2")).unwrap_err();
    assert_eq!(error.to_string(), "0 networks are loaded, 1 are required; hint: put their configurations in place");
}

#[test]
fn a_network_that_fails_takes_those_before_it_with_it_except_old_ones() {
    for at_once in [false, true] {
        let node = Node::new();
        let networks = two(&node).with(list("c", &["third"]));
        let setup = || {
            let at = container("c1");
            if at_once { networks.setup_at_once(&at) } else { networks.setup(&at) }
        };
        node.runtime.add(&list("a", &["first"]), &container("c1")).unwrap();
        node.fails("ADD third", 100, "no");
        node.called();
        let error = setup().unwrap_err();
        assert!(error.to_string().starts_with("network c, eth2: plugin type=\"third\""), "{error}");
        let mut calls = node.called();
        assert_eq!(calls.last().unwrap(), "DEL second", "{at_once}");
        if at_once {
            calls.sort_by_key(|call| (call.starts_with("DEL"), call.as_str() == "DEL second", call.clone()));
        }
        assert_eq!(calls, ["ADD first", "ADD second", "ADD third", "DEL third", "DEL second"], "{at_once}");
        let cached = node.cached();
        assert_eq!((&*cached.network, cached.state), ("a", State::Attached));

        node.fails("DEL second", 11, "not now");
        let error = setup().unwrap_err();
        assert!(error.to_string().contains("\nand undoing network b, eth1: plugin type=\"second\""), "{error}");
        assert_eq!(error.failures().len(), 2);
        node.recovers("ADD third");
        let merged = setup().unwrap();
        let names: Vec<&str> = merged.results.iter().map(|(network, _)| network.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}

#[test]
fn a_bad_name_of_one_network_stops_all_before_the_first_plugin() {
    let node = Node::new();
    let networks = two(&node).with_as(list("c", &["third"]), "a/b");
    for failed in [networks.setup(&container("c1")), networks.setup_at_once(&container("c1"))] {
        assert!(matches!(failed.unwrap_err(), Error::Name(_)));
    }
    assert_eq!(node.called(), [""; 0]);
}

#[test]
fn check_names_the_first_network_that_differs_and_leaves_out_those_without_it() {
    let node = Node::new();
    let old = Networks::new(node.runtime.clone()).with(of_version("0.3.1", &["first"]));
    let networks = Networks { networks: old.networks, ..two(&node) }.with(list("b", &["second"]));
    networks.check(&container("c1")).unwrap();
    assert_eq!(node.called(), ["CHECK second"]);
    node.fails("CHECK second", 100, "differs");
    let error = networks.check(&container("c1")).unwrap_err();
    assert!(error.to_string().starts_with("network b, eth1: "), "{error}");
}

#[test]
fn status_asks_each_network() {
    let node = Node::new();
    two(&node).status().unwrap();
    assert_eq!(node.called(), ["STATUS first", "STATUS second"]);
    node.fails("STATUS first", 51, "limited");
    assert_eq!(two(&node).status().unwrap_err().code(), 51);
    assert_eq!(node.called(), ["STATUS first"]);
}

#[test]
fn networks_that_are_no_longer_loaded_are_removed_too_and_a_failure_stops_nothing() {
    let node = Node::new();
    two(&node).with(list("c", &["third"])).setup(&container("c1")).unwrap();
    two(&node).setup(&container("c2")).unwrap();
    node.called();
    let networks = Networks::new(node.runtime.clone()).with(list("a", &["first"]));
    node.fails("DEL third", 11, "not now");
    node.fails("DEL first", 5, "no file");
    let error = networks.remove(&Attachment::new("c1", "/given")).unwrap_err();
    let Error::Several(all) = &error else { panic!("{error}") };
    assert_eq!(all.iter().map(|one| &*one.what).collect::<Vec<_>>(), ["network c, eth2", "network a, eth0"]);
    let calls = node.calls();
    assert_eq!(names(&calls), ["DEL second", "DEL third", "DEL first"]);
    assert!(calls.iter().all(|call| call.environment.netns == "/given" && call.environment.container_id == "c1"));
    node.recovers("DEL third");
    node.recovers("DEL first");
    networks.remove(&container("c1")).unwrap();
    assert_eq!(node.runtime.cache.attachments_of("c1").unwrap().len(), 0);
    assert_eq!(node.runtime.cache.attachments_of("c2").unwrap().len(), 2);
}

#[test]
fn gc_keeps_each_container_with_its_interfaces_of_now_and_of_its_add() {
    let node = Node::new();
    two(&node).setup(&container("c1")).unwrap();
    two(&node).setup(&container("c2")).unwrap();
    node.called();
    // b has another interface now.
    let networks = Networks::new(node.runtime.clone()).with(list("b", &["second"])).with(list("d", &["third"]));
    networks.gc(&["c1"]).unwrap();
    let calls = node.calls();
    assert_eq!(names(&calls), ["DEL second", "GC second", "GC third"]);
    assert_eq!((&*calls[0].environment.container_id, &*calls[0].environment.ifname), ("c2", "eth1"));
    let valid = |names: &[&str]| {
        let all: Vec<_> = names.iter().map(|ifname| json!({"containerID": "c1", "ifname": ifname})).collect();
        json!(all)
    };
    assert_eq!(calls[1].stdin["cni.dev/valid-attachments"], valid(&["eth0", "eth1"]));
    assert_eq!(calls[2].stdin["cni.dev/valid-attachments"], valid(&["eth1"]));
    node.fails("GC second", 11, "not now");
    let error = networks.gc(&["c1"]).unwrap_err();
    assert!(error.to_string().starts_with("network b, eth0: "), "{error}");
    assert_eq!(node.called(), ["GC second", "GC third"]);
}

#[test]
fn every_interface_of_a_loaded_network_is_removed() {
    let node = Node::new();
    let networks = two(&node);
    networks.setup(&container("c1")).unwrap();
    node.runtime.add(&list("a", &["first"]), &container("c1").on("eth5")).unwrap();
    node.calls();
    networks.remove(&container("c1")).unwrap();
    let calls = node.calls();
    let seen: Vec<_> = calls.iter().map(|call| (&*call.name, &*call.environment.ifname)).collect();
    assert_eq!(seen, [("DEL first", "eth5"), ("DEL second", "eth1"), ("DEL first", "eth0")]);
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
}
