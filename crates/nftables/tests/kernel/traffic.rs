//! Packets: what the rules are for.

use crate::net::Net;
use crate::scene::{frame, masquerade};

#[test]
fn a_masqueraded_container_reaches_a_peer_without_a_route_to_it() {
    let net = Net::new();
    let rules = [masquerade("10.0.0.2", "10.0.0.0/24", "aa-1"), masquerade("fd00::2", "fd00::/64", "aa-1")];
    assert!(!reaches(&net, "192.0.2.2") && !reaches(&net, "2001:db8::2"));
    let nftables = net.host.nftables();
    nftables.replace(&frame(), "aa-1", &rules).unwrap();
    for address in ["192.0.2.2", "2001:db8::2"] {
        assert!(reaches(&net, address), "{address} is not reached:\n{}", state(&net));
    }
    nftables.release(&frame(), "aa-1").unwrap();
    assert!(!reaches(&net, "192.0.2.2") && !reaches(&net, "2001:db8::2"));
}

#[test]
fn a_rule_for_one_address_masquerades_no_other() {
    let net = Net::new();
    net.host.nftables().replace(&frame(), "aa-1", &[masquerade("10.0.0.3", "10.0.0.0/24", "aa-1")]).unwrap();
    assert!(!reaches(&net, "192.0.2.2"));
}

#[test]
fn traffic_inside_the_network_keeps_its_source() {
    let net = Net::new();
    // With this network the outside machine counts as part of the network, so its packets are not masqueraded, and it has no route
    // for its answers.
    net.host.nftables().replace(&frame(), "aa-1", &[masquerade("10.0.0.2", "192.0.2.0/24", "aa-1")]).unwrap();
    assert!(!reaches(&net, "192.0.2.2"));
}

fn reaches(net: &Net, address: &str) -> bool {
    net.container.run("ping", &["-c", "1", "-W", "1", address]).status.success()
}

/// What decides over the way of a packet and its answer, on each machine.
fn state(net: &Net) -> String {
    let mut state = net.host.listing();
    for machine in [&net.container, &net.host, &net.outside] {
        for words in ["address", "-s neighbour", "-6 route show table all", "-s -s link"] {
            let output = machine.run("ip", &words.split(' ').collect::<Vec<_>>());
            state += &String::from_utf8_lossy(&output.stdout);
        }
    }
    state
}
