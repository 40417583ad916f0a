//! Every system call fails once, with each error that it plausibly gives.

use cnikit_testkit::{Subject, errno};
use cnikit_tests::{apart, bin, dual_stack};
use serde_json::json;

fn subject(plugin: &str, bin: &std::path::Path) -> Subject {
    let conf = json!({"isDefaultGateway": true, "ipMasq": true, "mtu": 1500, "ipam": dual_stack()});
    Subject::new(bin, plugin, if plugin == "loopback" { json!({}) } else { conf })
}

#[test]
fn loopback_meets_every_error() {
    errno::at_every_call(&subject("loopback", bin()), 80);
}

#[test]
fn host_local_meets_every_error() {
    errno::at_every_call(&subject("host-local", bin()), 80);
}

#[test]
fn bridge_meets_every_error() {
    errno::at_every_call(&subject("bridge", bin()), 80);
}

#[test]
fn ptp_meets_every_error() {
    errno::at_every_call(&subject("ptp", bin()), 80);
}

#[test]
fn bridge_and_its_ipam_plugin_meet_every_error() {
    errno::at_every_call(&subject("bridge", apart()), 80);
}

#[test]
fn ptp_and_its_ipam_plugin_meet_every_error() {
    errno::at_every_call(&subject("ptp", apart()), 80);
}
