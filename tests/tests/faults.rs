//! Every system call fails once, with each error that it plausibly gives.

use std::path::Path;

use cnikit_testkit::errno;
use cnikit_tests::{apart, harmed, harmed_alone, installed, spoofing_bridge, vlan_bridge};

/// So many failures of a verb, in the short form.
const FAILURES: usize = 8;

#[test]
fn loopback_and_host_local_meet_every_error() {
    ["loopback", "host-local"].iter().for_each(|plugin| drop(errno::at_every_call(&harmed_alone(plugin), FAILURES)));
}

fn failing(plugin: &str, backend: &str, bin: &Path) {
    errno::at_every_call(&harmed(plugin, backend, bin), FAILURES);
}

#[test]
fn bridge_with_nftables_meets_every_error() {
    failing("bridge", "nftables", installed());
}

#[test]
fn bridge_with_iptables_meets_every_error() {
    failing("bridge", "iptables", installed());
}

#[test]
fn bridge_with_mac_spoof_check_meets_every_error() {
    errno::at_every_call(&spoofing_bridge(), FAILURES);
}

#[test]
fn bridge_with_a_vlan_meets_every_error() {
    vlan_bridge("fault").iter().for_each(|bridge| drop(errno::at_every_call(bridge, FAILURES)));
}

#[test]
fn ptp_with_nftables_meets_every_error() {
    failing("ptp", "nftables", installed());
}

#[test]
fn ptp_with_iptables_meets_every_error() {
    failing("ptp", "iptables", installed());
}

#[test]
fn bridge_and_its_ipam_plugin_meet_every_error() {
    failing("bridge", "nftables", apart());
}

#[test]
fn ptp_and_its_ipam_plugin_meet_every_error() {
    failing("ptp", "nftables", apart());
}
