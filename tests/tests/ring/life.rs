//! Tests for every kernel: the calls of one attachment, and several at once.

use cnikit_testkit::need::Need;
use cnikit_testkit::{Subject, flood, life};
use cnikit_tests::{dual_stack, macvlan, subject};
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_to_a_bridge_leaves_no_trace),
    test!(an_attachment_by_ptp_leaves_no_trace),
    test!(an_attachment_by_macvlan_leaves_no_trace needs Need::MACVLAN),
    test!(eight_at_once_get_eight_addresses_on_a_bridge),
];

fn bridge() -> Subject {
    subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": dual_stack()}))
}

fn an_attachment_to_a_bridge_leaves_no_trace() {
    life::leaves_no_trace(&bridge());
}

fn an_attachment_by_ptp_leaves_no_trace() {
    life::leaves_no_trace(&subject("ptp", json!({"ipMasq": true, "ipam": dual_stack()})));
}

fn an_attachment_by_macvlan_leaves_no_trace() {
    life::leaves_no_trace(&macvlan());
}

fn eight_at_once_get_eight_addresses_on_a_bridge() {
    flood::survives(&bridge(), 8);
}
