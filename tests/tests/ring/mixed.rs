//! Upstream's plugins and ours on one node, in VLANs and on ipvlans.

use cnikit_testkit::need::Need;
use cnikit_tests::mixed::{UpstreamRelease, alike, ipvlans, vlans};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(vlans_are_like_the_packaged_ones needs Need::BRIDGE_VLAN_FILTERING),
    test!(vlans_are_like_the_newest_ones needs Need::BRIDGE_VLAN_FILTERING),
    test!(ipvlans_are_like_the_newest_ones needs Need::IPVLAN),
];

fn vlans_are_like_the_packaged_ones() {
    alike(UpstreamRelease::Packaged, &vlans());
}

fn vlans_are_like_the_newest_ones() {
    alike(UpstreamRelease::Newest, &vlans());
}

fn ipvlans_are_like_the_newest_ones() {
    alike(UpstreamRelease::Newest, &ipvlans());
}
