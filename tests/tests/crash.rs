//! A power cut: everything that was never synced is lost.

use cnikit_testkit::{Subject, crash};
use cnikit_tests::campaign_subjects::tuning;
use cnikit_tests::{crowded_host_device, flannel, installed, is_chosen, script, subnet_env, subnet_file};
use serde_json::{Value, json};

/// host-local with five addresses of each family.
fn few() -> Value {
    json!({"type": "host-local", "ranges": [
        [{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.6"}],
        [{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::2", "rangeEnd": "fd00:77::6"}]]})
}

fn of(plugin: &str) -> Subject {
    Subject::new(installed(), plugin, json!({"ipam": few()}))
}

/// One of the plugins that a run tries a third of.
fn survives(subject: &Subject, most: usize) {
    if is_chosen(&format!("power cut {}", subject.title)) {
        crash::survives(subject, most);
    }
}

#[test]
fn host_local_survives_a_power_cut() {
    crash::survives(&of("host-local"), 20);
}

#[test]
fn bridge_survives_a_power_cut() {
    survives(&of("bridge"), 6);
}

#[test]
fn tap_survives_a_power_cut() {
    survives(&of("tap"), 6);
}

/// What the device was, besides the reservations. The boot gives the device back, with or without the file.
#[test]
fn host_device_survives_a_power_cut() {
    survives(&crowded_host_device(installed()).with("ipam", few()), 6);
}

/// The record of saved settings, wherever it is stored: here on a disk.
#[test]
fn tuning_survives_a_power_cut() {
    survives(&tuning(), 8);
}

/// The stored configuration of the delegate, besides the delegate's own files.
#[test]
fn flannel_survives_a_power_cut() {
    let env = subnet_env(["10.77.0.1/29", "fd00:77::1/125"], 1450);
    let few = json!(subnet_file("few.env", &env));
    survives(&flannel().with("subnetFile", few).in_directory(installed()), 4);
}

/// If the file lost its content, its address is never freed.
const NAIVE: &str = r#"
dir=${conf#*\"dataDir\":\"} dir=${dir%%\"*}/testnet
mkdir -p "$dir"
case $CNI_COMMAND in
ADD)
    set -C
    for n in 2 3 4 5 6; do
        if (echo "$CNI_CONTAINERID" >"$dir/10.0.0.$n") 2>/dev/null; then
            echo '{"ips":[{"address":"10.0.0.'$n'/24"}]}' && exit
        fi
    done
    exit 1 ;;
DEL) rm -f $(grep -lx "$CNI_CONTAINERID" "$dir"/* 2>/dev/null) ;;
esac"#;

/// The name of its file is random.
#[test]
#[should_panic(expected = "10 times something else was on the disk by then")]
fn a_moment_that_does_not_come_again_is_found() {
    let (_bin, fickle) =
        script(&NAIVE.replacen("case", ": >\"$dir/.$$\"\ncase", 1), json!({"ipam": {"type": "host-local"}}));
    crash::survives(&fickle, 1);
}

#[test]
#[should_panic(expected = "ADD of c-more-4")]
fn a_plugin_that_does_not_is_found() {
    let (_bin, naive) = script(NAIVE, json!({"ipam": {"type": "host-local"}}));
    crash::survives(&naive, 20);
}
