//! Killed at every system call, at any moment, for want of memory: a DEL leaves nothing.

use std::path::Path;

use cnikit_testkit::campaign::at_most;
use cnikit_testkit::{Subject, kill};
use cnikit_tests::{apart, bin, harmed, harmed_alone, spoofing_bridge, vlan_bridge};
use serde_json::json;

/// So many calls of a verb, in the short form.
const CALLS: usize = 8;
/// So many moments of each plugin, in the short form; 50 in the whole.
const MOMENTS: usize = 8;
/// So many limits of a verb, in the short form.
const LIMITS: usize = 3;

#[test]
fn loopback_and_host_local_are_killed_at_every_call() {
    ["loopback", "host-local"].iter().for_each(|plugin| drop(kill::at_every_call(&harmed_alone(plugin), CALLS)));
}

fn killed(plugin: &str, backend: &str, bin: &Path) {
    kill::at_every_call(&harmed(plugin, backend, bin), CALLS);
}

#[test]
fn bridge_with_nftables_is_killed_at_every_call() {
    killed("bridge", "nftables", bin());
}

#[test]
fn bridge_with_iptables_is_killed_at_every_call() {
    killed("bridge", "iptables", bin());
}

#[test]
fn bridge_with_mac_spoof_check_is_killed_at_every_call() {
    kill::at_every_call(&spoofing_bridge(), CALLS);
}

#[test]
fn bridge_with_a_vlan_is_killed_at_every_call() {
    vlan_bridge("kill").iter().for_each(|bridge| drop(kill::at_every_call(bridge, CALLS)));
}

#[test]
fn ptp_with_nftables_is_killed_at_every_call() {
    killed("ptp", "nftables", bin());
}

#[test]
fn ptp_with_iptables_is_killed_at_every_call() {
    killed("ptp", "iptables", bin());
}

#[test]
fn bridge_and_its_ipam_plugin_are_killed_at_every_call() {
    killed("bridge", "nftables", apart());
}

#[test]
fn ptp_and_its_ipam_plugin_are_killed_at_every_call() {
    killed("ptp", "nftables", apart());
}

/// It gives its link the last name in a second step, and forgets the first one on DEL.
const HALF: &str = r"#!/bin/sh
conf=$(cat)
case $CNI_COMMAND in
ADD) ip link add a$CNI_CONTAINERID type bridge && ip link set a$CNI_CONTAINERID name b$CNI_CONTAINERID && echo '{}' ;;
DEL) ip link del b$CNI_CONTAINERID 2>/dev/null || true ;;
esac
";

#[test]
#[should_panic(expected = "left on the host")]
fn a_plugin_that_forgets_what_it_made_half_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let bin = tempfile::tempdir().unwrap();
    std::fs::write(bin.path().join("half"), HALF).unwrap();
    std::fs::set_permissions(bin.path().join("half"), PermissionsExt::from_mode(0o755)).unwrap();
    kill::at_every_call(&Subject::new(bin.path(), "half", json!({})), 8);
}

/// Each plugin, alone and with its IPAM plugin in another process.
fn each() -> Vec<Subject> {
    let mut subjects = vec![harmed_alone("loopback"), harmed_alone("host-local")];
    for plugin in ["bridge", "ptp"] {
        subjects.extend([harmed(plugin, "nftables", bin()), harmed(plugin, "nftables", apart())]);
    }
    subjects.push(harmed("bridge", "iptables", bin()));
    subjects
}

#[test]
fn whoever_is_terminated_leaves_nothing_that_a_del_does_not_remove() {
    each().iter().for_each(|subject| drop(kill::at_moments(subject, at_most(MOMENTS).min(50))));
}

#[test]
fn whoever_lacks_memory_or_files_leaves_nothing_that_a_del_does_not_remove() {
    each().iter().for_each(|subject| drop(kill::for_want(subject, LIMITS)));
}
