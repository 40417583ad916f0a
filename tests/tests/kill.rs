//! Killed at every system call, at any moment, for want of memory: a DEL leaves nothing.

use cnikit_testkit::{Subject, kill};
use cnikit_tests::{apart, bin, harmed};
use serde_json::json;

#[test]
fn loopback_is_killed_at_every_call() {
    kill::at_every_call(&harmed("loopback", bin()), 200);
}

#[test]
fn host_local_is_killed_at_every_call() {
    kill::at_every_call(&harmed("host-local", bin()), 200);
}

#[test]
fn bridge_is_killed_at_every_call() {
    kill::at_every_call(&harmed("bridge", bin()), 60);
}

#[test]
fn ptp_is_killed_at_every_call() {
    kill::at_every_call(&harmed("ptp", bin()), 60);
}

#[test]
fn bridge_and_its_ipam_plugin_are_killed_at_every_call() {
    kill::at_every_call(&harmed("bridge", apart()), 60);
}

#[test]
fn ptp_and_its_ipam_plugin_are_killed_at_every_call() {
    kill::at_every_call(&harmed("ptp", apart()), 60);
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
    kill::at_every_call(&Subject::new(bin.path(), "half", json!({})), 30);
}

#[test]
fn whoever_is_terminated_leaves_nothing_that_a_del_does_not_remove() {
    ["loopback", "host-local", "bridge", "ptp"]
        .iter()
        .for_each(|plugin| drop(kill::at_moments(&harmed(plugin, bin()), 50)));
    ["bridge", "ptp"].iter().for_each(|plugin| drop(kill::at_moments(&harmed(plugin, apart()), 50)));
}

#[test]
fn whoever_lacks_memory_or_files_leaves_nothing_that_a_del_does_not_remove() {
    ["loopback", "host-local", "bridge", "ptp"]
        .iter()
        .for_each(|plugin| drop(kill::for_want(&harmed(plugin, bin()), 20)));
    ["bridge", "ptp"].iter().for_each(|plugin| drop(kill::for_want(&harmed(plugin, apart()), 20)));
}
