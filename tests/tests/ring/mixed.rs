//! Upstream's plugins and ours on one node: the VLANs of bridges, ipvlan, vlan, dummy and vrf.

use cnikit_testkit::Subject;
use cnikit_testkit::mixed::interleaved;
use cnikit_testkit::need::Need;
use cnikit_testkit::snapshot::HINTS;
use cnikit_tests::mixed::{UpstreamRelease, alike, dummies, ipvlans, vlan_links, vlans, vrfs};
use cnikit_tests::{dummy, vlans as vlan_each};

use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(vlans_are_like_the_packaged_ones needs Need::BRIDGE_VLAN_FILTERING),
    test!(vlans_are_like_the_newest_ones needs Need::BRIDGE_VLAN_FILTERING),
    test!(ipvlans_are_like_the_newest_ones needs Need::IPVLAN),
    test!(the_plugin_vlan_is_like_the_packaged_one needs Need::VLAN),
    test!(the_plugin_vlan_is_like_the_newest_one needs Need::VLAN),
    test!(dummies_are_like_the_newest_ones needs Need::DUMMY),
    test!(random_calls_of_our_vlan_and_upstreams_leave_nothing needs Need::VLAN),
    test!(random_calls_of_our_dummy_and_upstreams_leave_nothing needs Need::DUMMY),
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

/// As beside the newest release; with one family, because upstream waits seconds for addresses of the other one.
fn shared(subject: &Subject) -> Subject {
    let release = UpstreamRelease::Newest;
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    let title = format!("{} beside {}", subject.plugin, release.version());
    subject.with("cniVersion", json!(release.speaks())).with("ipam", ipam).called(&title)
}

fn random_calls_of_our_vlan_and_upstreams_leave_nothing() {
    interleaved(&shared(&vlan_each()), &UpstreamRelease::Newest.bin(), 25, &HINTS);
}

fn random_calls_of_our_dummy_and_upstreams_leave_nothing() {
    interleaved(&shared(&dummy()), &UpstreamRelease::Newest.bin(), 25, &HINTS);
}
