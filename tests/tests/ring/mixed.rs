//! Upstream's plugins and ours on one node: the VLANs of bridges, ipvlan, vlan, dummy and vrf.

use cnikit_testkit::need::Need;
use cnikit_tests::mixed::{UpstreamRelease, alike, dummies, ipvlans, vlan_links, vlans, vrfs};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(vlans_are_like_the_packaged_ones needs Need::BRIDGE_VLAN_FILTERING),
    test!(vlans_are_like_the_newest_ones needs Need::BRIDGE_VLAN_FILTERING),
    test!(ipvlans_are_like_the_newest_ones needs Need::IPVLAN),
    test!(the_plugin_vlan_is_like_the_packaged_one needs Need::VLAN),
    test!(the_plugin_vlan_is_like_the_newest_one needs Need::VLAN),
    test!(dummies_are_like_the_newest_ones needs Need::DUMMY),
    test!(vrfs_are_like_the_packaged_ones needs Need::VRF),
    test!(vrfs_are_like_the_newest_ones needs Need::VRF),
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

fn the_plugin_vlan_is_like_the_packaged_one() {
    alike(UpstreamRelease::Packaged, &vlan_links());
}

fn the_plugin_vlan_is_like_the_newest_one() {
    alike(UpstreamRelease::Newest, &vlan_links());
}

fn dummies_are_like_the_newest_ones() {
    alike(UpstreamRelease::Newest, &dummies());
}

fn vrfs_are_like_the_packaged_ones() {
    alike(UpstreamRelease::Packaged, &vrfs());
}

fn vrfs_are_like_the_newest_ones() {
    alike(UpstreamRelease::Newest, &vrfs());
}
