//! Recorded requests of real runtimes, modified, for their plugin and for every other one.

use std::collections::BTreeSet;

use cnikit_testkit::Subject;
use cnikit_testkit::campaign::{SummaryLine, runs_all_cases};
use cnikit_testkit::transcripts::{are_refused, survives};
use cnikit_tests::campaign_subjects::{
    INTERFACE, firewall, interface_result, leased, publishing, shaped, source_routing,
};
use cnikit_tests::transcripts::scenes;
use cnikit_tests::{MASTER_OF_MACVLANS, POOL_FILES, bin, crowded_host_device, is_chosen, script, subject};
use serde_json::json;

/// So many scenes of each kind, in the short form.
const SCENES: usize = 1;

macro_rules! modified_requests {
    ($($name:ident: $subject:expr;)+) => {$(
        #[test]
        fn $name() {
            if is_chosen(concat!("requests to ", stringify!($name))) {
                survives(&$subject, &scenes(""), SCENES);
            }
        }
    )+};
}

modified_requests! {
    loopback: subject("loopback", json!({}));
    bridge: subject("bridge", json!({}));
    ptp: subject("ptp", json!({}));
    macvlan: subject("macvlan", json!({"master": "master0", "enabledad": false})).on(MASTER_OF_MACVLANS);
    tap: subject("tap", json!({}));
    host_device: crowded_host_device(bin()).with("ipam", json!({}));
    flannel: cnikit_tests::flannel();
    host_local: subject("host-local", json!({}));
    static_ipam: subject("static", json!({}));
    pool: pool_of_recorded_networks();
    tuning: subject("tuning", json!({})).after(INTERFACE, interface_result());
    sbr: source_routing(bin());
    bandwidth: shaped(bin());
    portmap_with_nftables: publishing(bin(), "nftables");
    portmap_with_iptables: publishing(bin(), "iptables");
    firewall_with_nftables: firewall(bin(), "nftables").with("ingressPolicy", json!("open"));
    firewall_with_iptables: firewall(bin(), "iptables").with("ingressPolicy", json!("open"));
}

/// pool on a node whose agent has blocks for every recorded network. Without them it would refuse every ADD.
fn pool_of_recorded_networks() -> Subject {
    let calls = scenes("").into_iter().flat_map(|scene| scene.calls);
    let names: BTreeSet<String> = calls.filter_map(|call| Some(call.conf()["name"].as_str()?.to_owned())).collect();
    let names: Vec<String> = names.into_iter().collect();
    let host_setup =
        format!("{POOL_FILES} && for network in {}; do cp testnet.blocks $network.blocks; done", names.join(" "));
    cnikit_tests::pool(bin()).on(host_setup.leak())
}

/// Each lease takes a second, and a scene minutes: too long for a run that tries a part.
#[test]
fn bridge_with_dhcp() {
    let subject = leased();
    if runs_all_cases() {
        survives(&subject, &scenes(""), SCENES);
    } else {
        let what = format!("requests to {}", subject.title);
        SummaryLine { tried: 0, of: 1, ..SummaryLine::new(what, "campaigns") }.print();
    }
}

#[test]
fn dhcp_without_a_daemon() {
    let ipam = json!({"daemonSocketPath": "/nowhere/dhcp.sock", "dataDir": "/nowhere"});
    are_refused(&subject("dhcp", json!({"ipam": ipam})), &scenes(""), SCENES);
}

/// It accepts all requests, valid or not, and leaves a link of each container.
const CARELESS: &str = r#"
case $CNI_COMMAND in
ADD) ip link add veth$$ type veth && echo '{"cniVersion":"0.4.0"}' ;;
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}' ;;
esac
"#;

#[test]
#[should_panic(expected = "left [")]
fn a_plugin_that_leaves_links_and_takes_any_text_is_found() {
    let (_bin, careless) = script(CARELESS, json!({}));
    survives(&careless, &scenes("podman-4.3-run"), 1);
}
