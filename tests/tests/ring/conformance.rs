//! The program `cni-conformance` on our plugins whose links many kernels lack. `docs/conformance.md` has its results with campaigns
//! too.

use cnikit_testkit::campaign::{self, runs_all_cases};
use cnikit_testkit::need::Need;
use cnikit_tests::campaign_subjects::FIRST_VRF;
use cnikit_tests::conformance_run::Run;
use cnikit_tests::{bin, dual_stack};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] =
    &[test!(one_of_the_plugins_conforms needs Need::IPVLAN, Need::VLAN, Need::DUMMY, Need::VRF)];

/// A plugin takes minutes in an emulated machine, so one is chosen by chance. `CNIKIT_CAMPAIGNS=whole` runs all, with all tests.
fn one_of_the_plugins_conforms() {
    let all = [ipvlan, vlan, dummy, vrf_behind_a_bridge];
    if runs_all_cases() {
        all.iter().for_each(|test| test());
    } else if let Some(test) = fastrand::Rng::with_seed(campaign::seed()).choice(all) {
        test();
    }
}

const MASTER: [&str; 2] = [
    "--setup",
    "ip link add master0 type veth peer name outer0 && ip address add 10.77.0.1/24 dev outer0 && \
     ip link set master0 up && ip link set outer0 up",
];

/// What takes most of the time, and what the modules of the plugins run too.
const LONG: [&str; 2] = ["--skip", "errors,parallel,trace,foreign,del,del-wrong,gc-running"];

/// Runs the tests except campaigns.
fn conforms(plugin: &str, conf: Value, options: &[&str]) {
    let bridge = json!({"type": "bridge", "isDefaultGateway": true, "ipam": dual_stack()});
    let mut named = conf;
    named["name"] = json!("testnet");
    let run = Run::with(&[("net.json", named), ("list.conflist", json!({"name": "testnet", "plugins": [bridge]}))]);
    let path = bin().join(plugin).display().to_string();
    let usual = ["--plugin", &path, "--conf", "net.json", "--campaigns", "never"];
    let skipped: &[&str] = if runs_all_cases() { &[] } else { &LONG };
    let output = run.run(&[&usual[..], options, skipped].concat());
    assert!(output.exit == 0 && output.stdout.contains(" 0 failed, "), "{output:?}");
}

fn ipvlan() {
    conforms("ipvlan", json!({"master": "master0", "ipam": dual_stack()}), &MASTER);
}

fn vlan() {
    conforms("vlan", json!({"master": "master0", "vlanId": "$NUMBER", "ipam": dual_stack()}), &MASTER);
}

fn dummy() {
    conforms("dummy", json!({"ipam": dual_stack()}), &[]);
}

fn vrf_behind_a_bridge() {
    let path = bin().display().to_string();
    let first = format!("nsenter --net=$NETNS sh -c \"{FIRST_VRF}\"");
    let options = ["--chain", "list.conflist", "--cni-path", &path, "--setup-container", &first];
    conforms("vrf", json!({"vrfname": "red"}), &options);
}
