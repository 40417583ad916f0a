//! The network lists of the pages in `docs/` that need more of a kernel than many have.

use cnikit_testkit::need::Need;
use cnikit_tests::docs::{Example, examples};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(lists_with_vlans_live needs Need::BRIDGE_VLAN_FILTERING),
    test!(lists_with_ipvlan_live needs Need::IPVLAN),
    test!(lists_with_vrfs_live needs Need::VRF),
    test!(lists_with_vlan_live needs Need::VLAN),
    test!(lists_with_dummy_live needs Need::DUMMY),
    test!(lists_with_tap_live needs Need::TUN),
];

fn lists_with_vlans_live() {
    all_live(&Need::BRIDGE_VLAN_FILTERING);
}

fn lists_with_vrfs_live() {
    all_live(&Need::VRF);
}

fn lists_with_ipvlan_live() {
    all_live(&Need::IPVLAN);
}

fn lists_with_vlan_live() {
    all_live(&Need::VLAN);
}

fn lists_with_dummy_live() {
    all_live(&Need::DUMMY);
}

fn lists_with_tap_live() {
    all_live(&Need::TUN);
}

fn all_live(need: &Need) {
    let tried = examples(Some(need.name()));
    assert!(!tried.is_empty(), "a page shows one");
    tried.iter().for_each(Example::try_out);
}
