//! The power goes, and takes with it what was never synced.

use cnikit_testkit::{Subject, crash};
use cnikit_tests::installed;
use serde_json::json;

fn of(plugin: &str) -> Subject {
    let ipam = json!({"type": "host-local", "ranges": [
        [{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.6"}],
        [{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::2", "rangeEnd": "fd00:77::6"}]]});
    Subject::new(installed(), plugin, json!({"ipam": ipam}))
}

#[test]
fn host_local_survives_a_power_cut() {
    crash::survives(&of("host-local"), 200);
}

#[test]
fn bridge_survives_a_power_cut() {
    crash::survives(&of("bridge"), 30);
}
