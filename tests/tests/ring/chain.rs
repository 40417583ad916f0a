//! CHECK after a plugin that puts the interface into a VRF, and its routes into another table.

use cnikit_testkit::need::Need;
use cnikit_tests::chain::stays_true;
use cnikit_tests::mixed::UpstreamRelease;
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[test!(a_vrf_moves_the_routes_and_one_that_is_gone_is_named needs Need::VRF)];

fn a_vrf_moves_the_routes_and_one_that_is_gone_is_named() {
    let gone = ("ip route del 10.8.0.0/16 table 70", "route of eth0: wanted 10.8.0.0/16 via 10.77.0.1");
    // 1.1.1 loses the routes, and neither release keeps ptp's route to its gateway.
    stays_true(&["bridge"], &[UpstreamRelease::Newest], &[("vrf", json!({"vrfname": "red", "table": 70}))], &[gone]);
}
