//! Kills and failing system calls of a bridge with VLANs: a few calls of each verb, because the virtual machine is slow.

use cnikit_testkit::need::Need;
use cnikit_testkit::{errno, kill};
use cnikit_tests::campaign_subjects::vlan_bridge;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(a_bridge_with_a_vlan_is_killed_at_some_calls needs Need::BRIDGE_VLAN_FILTERING),
    test!(a_bridge_with_a_vlan_meets_some_errors needs Need::BRIDGE_VLAN_FILTERING),
];

/// So many calls of a verb, in the short form.
const CALLS: usize = 1;
/// So many failures of a verb, in the short form.
const FAILURES: usize = 1;

fn a_bridge_with_a_vlan_is_killed_at_some_calls() {
    kill::at_every_call(&vlan_bridge(), CALLS);
}

fn a_bridge_with_a_vlan_meets_some_errors() {
    errno::at_every_call(&vlan_bridge(), FAILURES);
}
