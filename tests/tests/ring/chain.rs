//! Chains whose last plugin puts the interface into a VRF, and its routes into another table.

use cnikit_testkit::HostSnapshot;
use cnikit_testkit::need::Need;
use cnikit_tests::campaign_subjects::FIRST_VRF;
use cnikit_tests::chain::stays_true;
use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::upper::{GATEWAYS, Lan};
use cnikit_tests::world::{UNTIL_DETECTED, ping, ping_once};
use cnikit_tests::{subject, vlan};
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(a_vrf_moves_the_routes_and_one_that_is_gone_is_named needs Need::VRF),
    test!(a_vlan_in_a_vrf_exchanges_packets_in_it_and_without_it_after_del needs Need::VLAN, Need::VRF),
];

fn a_vrf_moves_the_routes_and_one_that_is_gone_is_named() {
    let gone = ("ip route del 10.8.0.0/16 table 70", "route of eth0: wanted 10.8.0.0/16 via 10.77.0.1");
    // 1.1.1 loses the routes, and neither release keeps ptp's route to its gateway.
    stays_true(&["bridge"], &[UpstreamRelease::Newest], &[("vrf", json!({"vrfname": "red", "table": 70}))], &[gone]);
}

fn a_vlan_in_a_vrf_exchanges_packets_in_it_and_without_it_after_del() {
    let lan = Lan::of(&vlan());
    let vlan = vlan().at(lan.host.dir());
    let vrf = subject("vrf", json!({"vrfname": "red", "dataDir": "$DIR/vrf"})).at(lan.host.dir());
    let container = lan.host.container();
    container.sh(FIRST_VRF);
    let before = HostSnapshot::inside(&container);
    let made = vlan.add(&lan.host, "c-one", &container);
    let result = vrf.call(&lan.host, "ADD", "c-one", &container.path(), &[("prevResult", made.clone())]).ok();
    for plugin in [&vlan, &vrf] {
        plugin.check(&lan.host, "c-one", &container, &result).ok();
    }
    container.sh(UNTIL_DETECTED);
    for gateway in GATEWAYS {
        container.sh(&format!("ping -n -q -c 1 -W 10 -I red {gateway}"));
        assert!(!container.try_sh(&ping_once(gateway)).0, "without the VRF there is no route to {gateway}");
    }
    vrf.call(&lan.host, "DEL", "c-one", &container.path(), &[("prevResult", result)]).ok();
    for gateway in GATEWAYS {
        container.sh(&ping(gateway));
    }
    vlan.del(&lan.host, "c-one", &container, &made);
    HostSnapshot::inside(&container).assert_unchanged_since(&before, &[], "after DEL of both");
}
