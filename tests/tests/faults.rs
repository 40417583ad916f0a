//! Every system call fails once, with each error that it plausibly gives.

use cnikit_testkit::errno;
use cnikit_tests::{apart, bin, harmed};

#[test]
fn loopback_meets_every_error() {
    errno::at_every_call(&harmed("loopback", bin()), 80);
}

#[test]
fn host_local_meets_every_error() {
    errno::at_every_call(&harmed("host-local", bin()), 80);
}

#[test]
fn bridge_meets_every_error() {
    errno::at_every_call(&harmed("bridge", bin()), 80);
}

#[test]
fn ptp_meets_every_error() {
    errno::at_every_call(&harmed("ptp", bin()), 80);
}

#[test]
fn bridge_and_its_ipam_plugin_meet_every_error() {
    errno::at_every_call(&harmed("bridge", apart()), 80);
}

#[test]
fn ptp_and_its_ipam_plugin_meet_every_error() {
    errno::at_every_call(&harmed("ptp", apart()), 80);
}
