//! A bridge whose containers are isolated from each other, with a kernel that passes bridged packets to the packet filter.

use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::world::ping_briefly;
use cnikit_tests::{dual_stack, subject};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(isolated_frames_on_a_bridge_are_dropped_by_the_rules_of_the_host needs Need::BRIDGE_NETFILTER),
    test!(isolated_frames_on_a_bridge_are_dropped_by_the_bridge_table needs Need::BRIDGE_META),
];

/// The number of requests to a container that should answer.
const PATIENT: u8 = 10;

/// Two containers on a bridge with this policy.
struct Two {
    host: Host,
    firewall: Subject,
    containers: [(&'static str, Container, Value); 2],
}

impl Two {
    fn with(backend: &str, policy: &str, shown: u8) -> Two {
        let host = Host::new();
        host.try_sh(&format!(
            "for six in '' 6; do sysctl -qw net.bridge.bridge-nf-call-ip${{six}}tables={shown}; done"
        ));
        let bridge = subject("bridge", json!({"isDefaultGateway": true, "ipam": dual_stack()})).at(host.dir());
        let firewall = subject("firewall", json!({"backend": backend, "ingressPolicy": policy}));
        let containers = ["c-one", "c-two"].map(|id| {
            let container = host.container();
            let result = bridge.add(&host, id, &container);
            firewall.call(&host, "ADD", id, &container.path(), &[("prevResult", result.clone())]).ok();
            firewall.check(&host, id, &container, &result).ok();
            (id, container, result)
        });
        Two { host, firewall, containers }
    }

    /// Whether the first one reaches all of these, with this many tries: on a busy machine a reply may be late.
    fn reaches(&self, addresses: [&str; 2], tries: u8) -> [bool; 2] {
        let command =
            |address| format!("for _ in $(seq {tries}); do {{ {}; }} && exit; done; exit 1", ping_briefly(address));
        addresses.map(|address| self.containers[0].1.try_sh(&command(address)).0)
    }

    /// The other one is reached or not, the gateway is, and nothing is left of it after DEL.
    fn are_cut_off(&self, cut: bool, what: &str) {
        assert_eq!(
            self.reaches(["10.77.0.3", "fd00:77::3"], if cut { 1 } else { PATIENT }),
            [!cut; 2],
            "{what}: {}",
            self.host.sh("nft list ruleset")
        );
        assert_eq!(self.reaches(["10.77.0.1", "fd00:77::1"], PATIENT), [true; 2], "{what}");
        for (id, container, result) in &self.containers {
            self.firewall.del(&self.host, id, container, result);
        }
        assert_eq!(self.reaches(["10.77.0.3", "fd00:77::3"], PATIENT), [true; 2], "{what}: after DEL");
    }
}

fn isolated_frames_on_a_bridge_are_dropped_by_the_rules_of_the_host() {
    for backend in ["iptables", "nftables"] {
        for (policy, cut) in [("same-bridge", false), ("isolated", true)] {
            Two::with(backend, policy, 1).are_cut_off(cut, &format!("{backend} {policy}"));
        }
    }
}

fn isolated_frames_on_a_bridge_are_dropped_by_the_bridge_table() {
    for (policy, cut) in [("same-bridge", false), ("isolated", true)] {
        let two = Two::with("nftables", policy, 0);
        assert_eq!(two.host.sh("nft list tables").contains("table bridge cni_firewall"), cut);
        two.are_cut_off(cut, policy);
    }
}
