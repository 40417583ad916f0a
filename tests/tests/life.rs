//! Every configuration through everything that the kit holds a plugin to.

use cnikit::{Entry, Ipam};
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{Host, Subject, fault, flood};
use cnikit_tests::campaign_subjects::{
    crowded_source_routing, firewall, leased, publishing, shaped, source_routing, tuned,
};
use cnikit_tests::tampering::{
    BANDWIDTH, BRIDGE, COMMON, FIREWALL, FIREWALL_NFTABLES, IN_THE_RING, IP_SPOOF, IPTABLES, LAYER2, NFTABLES,
    OF_HOST_DEVICE, PORTS, PTP, SOURCE_ROUTING, SPOOF, TUNING, Thing, WITHOUT_A_HOST_END,
};
use cnikit_tests::{HOST_LOCAL, bin, dual_stack, flannel, interface_subjects, subject, written_down};
use serde_json::json;

fn loopback() -> Subject {
    subject("loopback", json!({}))
}

/// It makes nothing.
fn addresses_written_down() -> Subject {
    subject("static", json!({"ipam": written_down()}))
}

/// It has its addresses from static.
fn bridge_with_static() -> Subject {
    subject("bridge", json!({"isGateway": true, "ipMasq": true, "ipam": written_down()}))
}

fn bridge() -> Subject {
    subject(
        "bridge",
        json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "mtu": 1500, "ipam": dual_stack()}),
    )
}

/// It has no addresses.
fn layer2() -> Subject {
    subject("bridge", json!({})).called("bridge of layer 2")
}

fn ptp() -> Subject {
    subject("ptp", json!({"ipMasq": true, "ipMasqBackend": "nftables", "mtu": 1500, "ipam": dual_stack()}))
}

#[test]
fn an_attachment_leaves_no_trace_and_a_second_one_adds_nothing() {
    let more = [
        loopback(),
        addresses_written_down(),
        bridge_with_static(),
        flannel(),
        tuned(bin()),
        shaped(bin()),
        source_routing(bin()),
        firewall(bin(), "iptables"),
        firewall(bin(), "nftables"),
        publishing(bin(), "iptables"),
        publishing(bin(), "nftables"),
    ];
    interface_subjects().iter().chain(&more).for_each(life::leaves_no_trace);
}

#[test]
fn del_succeeds_with_incomplete_input_of_bridge() {
    life::survives_incomplete_dels(&bridge());
}

#[test]
fn del_succeeds_with_incomplete_input_of_a_bridge_without_layer_3() {
    life::survives_incomplete_dels(&layer2());
}

#[test]
fn del_succeeds_with_incomplete_input_of_static() {
    life::survives_incomplete_dels(&addresses_written_down());
}

#[test]
fn del_succeeds_with_incomplete_input_of_flannel() {
    life::survives_incomplete_dels(&flannel());
}

#[test]
fn del_succeeds_with_incomplete_input_of_ptp() {
    life::survives_incomplete_dels(&ptp());
}

#[test]
fn del_succeeds_with_incomplete_input_of_tuning_and_gives_everything_back() {
    life::survives_incomplete_dels(&tuned(bin()));
}

#[test]
fn del_succeeds_with_incomplete_input_of_sbr_and_gives_everything_back() {
    life::survives_incomplete_dels(&source_routing(bin()));
}

#[test]
fn del_succeeds_with_incomplete_input_of_bandwidth() {
    life::survives_incomplete_dels(&shaped(bin()));
}

#[test]
fn del_succeeds_with_incomplete_input_of_firewall() {
    ["iptables", "nftables"].iter().for_each(|backend| life::survives_incomplete_dels(&firewall(bin(), backend)));
}

#[test]
fn del_succeeds_with_incomplete_input_of_portmap() {
    ["iptables", "nftables"].iter().for_each(|backend| life::survives_incomplete_dels(&publishing(bin(), backend)));
}

#[test]
fn a_fault_before_any_step_of_portmap_leaves_nothing() {
    for backend in ["iptables", "nftables"] {
        let tried = fault::changes_nothing::<portmap::PortmapPlugin>(&publishing(bin(), backend));
        assert_eq!(tried, 2, "the mappings, and the place behind them");
    }
}

#[test]
fn a_fault_before_any_step_of_bridge_leaves_nothing() {
    let tried = fault::leaves_nothing::<bridge::BridgePlugin>(&bridge(), HOST_LOCAL);
    assert_eq!(tried, 9, "2 steps of the link, 5 of layer 3, and the place behind each");
}

/// dhcp, to be called in this process.
static DHCP: &[Entry] = &[Entry::of::<Ipam<dhcp::DhcpPlugin>>("dhcp")];

/// Some of them are met when the lease is there already.
#[test]
fn a_fault_before_any_step_of_bridge_with_dhcp_leaves_nothing() {
    let tried = fault::leaves_nothing::<bridge::BridgePlugin>(&leased(), DHCP);
    assert_eq!(tried, 6, "2 steps of the link, 2 of layer 3, and the place behind each");
}

#[test]
fn a_fault_before_any_step_of_ptp_leaves_nothing() {
    let tried = fault::leaves_nothing::<ptp::PtpPlugin>(&ptp(), HOST_LOCAL);
    assert_eq!(tried, 7, "1 step of the link, 4 of layer 3, and the place behind each");
}

#[test]
fn a_fault_before_any_step_of_tuning_changes_nothing() {
    let tried = fault::changes_nothing::<tuning::TuningPlugin>(&tuned(bin()));
    assert_eq!(tried, 3, "sysctls, the link, and the place behind them");
}

#[test]
fn a_fault_before_any_step_of_sbr_changes_nothing() {
    let tried = fault::changes_nothing::<sbr::SbrPlugin>(&source_routing(bin()));
    assert_eq!(tried, 2, "the routing, and the place behind it");
}

#[test]
fn a_fault_before_any_step_of_bandwidth_changes_nothing() {
    let tried = fault::changes_nothing::<bandwidth::BandwidthPlugin>(&shaped(bin()));
    assert_eq!(tried, 3, "both directions, and the place behind them");
}

#[test]
fn a_fault_before_any_step_of_firewall_changes_nothing() {
    for backend in ["iptables", "nftables"] {
        assert_eq!(fault::changes_nothing::<firewall::FirewallPlugin>(&firewall(bin(), backend)), 2);
    }
}

#[test]
fn a_fault_before_any_step_leaves_nothing_of_iptables_either() {
    let subject = ptp().with("ipMasqBackend", json!("iptables")).called("ptp iptables");
    fault::leaves_nothing::<ptp::PtpPlugin>(&subject, HOST_LOCAL);
}

#[test]
fn sixty_four_at_once_get_sixty_four_addresses_on_a_bridge() {
    flood::survives(&bridge(), 64);
}

#[test]
fn sixteen_at_once_get_sixteen_addresses_from_flannel() {
    flood::survives(&flannel(), 16);
}

#[test]
fn sixty_four_interfaces_are_tuned_at_once() {
    flood::survives(&tuned(bin()), 64);
}

#[test]
fn sixty_four_interfaces_are_routed_by_their_source_at_once() {
    flood::survives(&crowded_source_routing(bin()), 64);
}

#[test]
fn sixty_four_interfaces_are_limited_at_once() {
    flood::survives(&shaped(bin()), 64);
}

#[test]
fn sixty_four_at_once_get_sixty_four_addresses_on_ptp() {
    flood::survives(&ptp(), 64);
}

/// The subjects and how they are tampered with. VLANs are in the ring, because not every kernel has them.
fn tampered() -> Vec<(Subject, Vec<Tampering>)> {
    let by = |things: &[&[Thing]]| things.concat().iter().map(|thing| thing.by).collect();
    let mtu = |subject: Subject| subject.with("mtu", json!(1400));
    let promiscuous = Tampering::on_host("ip link set cni0 promisc off", "wanted promiscuous, found not");
    let down = Tampering::inside("ip link set lo down", "loopback interface is down");
    let spoof =
        mtu(bridge()).with("macspoofchk", json!(true)).with("ipspoofchk", json!(true)).with("promiscMode", json!(true));
    vec![
        (spoof, [by(&[&COMMON, &BRIDGE, &NFTABLES, &SPOOF, &IP_SPOOF]), vec![promiscuous]].concat()),
        (mtu(ptp()), by(&[&COMMON, &PTP, &NFTABLES])),
        (layer2(), by(&[&LAYER2])),
        (loopback(), vec![down]),
        (tuned(bin()), TUNING.to_vec()),
        (shaped(bin()), BANDWIDTH.to_vec()),
        (source_routing(bin()), SOURCE_ROUTING.to_vec()),
        (firewall(bin(), "iptables"), FIREWALL.to_vec()),
        (firewall(bin(), "nftables"), FIREWALL_NFTABLES.to_vec()),
        (publishing(bin(), "nftables"), PORTS.to_vec()),
    ]
}

#[test]
fn check_names_everything_that_was_tampered_with() {
    tampered().iter().for_each(|(subject, tamperings)| life::names_tampering_of_all(subject, tamperings));
}

#[test]
fn check_of_flannel_names_what_its_delegate_misses_and_what_it_misses_itself() {
    let gone = Tampering::on_host("rm -r $DIR/flannel", "the configuration that ADD stored of");
    life::names_tampering(&flannel(), &[COMMON[0].by, NFTABLES[0].by, gone]);
}

#[test]
fn check_names_each_rule_of_iptables_that_was_tampered_with() {
    for subject in [bridge(), ptp()] {
        let title = format!("{} iptables", subject.plugin);
        let subject = subject.with("mtu", json!(1400)).with("ipMasqBackend", json!("iptables")).called(&title);
        life::names_tampering(&subject, &IPTABLES.map(|thing| thing.by));
    }
}

#[test]
fn no_kind_of_resource_is_forgotten() {
    let compared =
        tampered().into_iter().flat_map(|(subject, _)| life::checked_resources(&subject)).collect::<Vec<_>>();
    let is_compared = |kind: &str| compared.iter().any(|one| one.split(": ").next() == Some(kind));
    let kinds = cnikit_resources::ALL.iter().chain(cnikit::rules::ALL).map(|kind| kind.name);
    let elsewhere = [IN_THE_RING.as_slice(), &WITHOUT_A_HOST_END, &OF_HOST_DEVICE].concat();
    let forgotten: Vec<&str> = kinds.filter(|kind| !is_compared(kind) && !elsewhere.contains(kind)).collect();
    assert!(forgotten.is_empty(), "no tampering changes these kinds: {forgotten:?}");
}

#[test]
#[should_panic(expected = "no tampering changes")]
fn a_resource_without_tampering_is_found() {
    let some: Vec<Tampering> = LAYER2[..2].iter().map(|thing| thing.by).collect();
    life::names_tampering_of_all(&layer2().called("bridge of layer 2, meant to be found out"), &some);
}

#[test]
#[should_panic(expected = "1 found, 1 shown")]
fn tampering_that_check_does_not_name_is_found_and_the_rest_is_tried() {
    let harmless = Tampering::on_host("true", "anything");
    life::names_tampering(&layer2().called("bridge of layer 2, meant to be found out"), &[harmless, LAYER2[0].by]);
}

#[test]
fn check_names_every_difference_at_once() {
    // All except those that remove others with them.
    let alone = COMMON.iter().chain(&BRIDGE).chain(&NFTABLES[..1]).map(|thing| thing.by);
    let alone: Vec<_> =
        alone.filter(|one| !["del", "down", "nomaster"].iter().any(|word| one.line.contains(word))).collect();
    assert!(alone.len() > 15);
    life::names_all_at_once(&bridge().with("mtu", json!(1400)), &alone);
}

#[test]
fn check_of_tuning_names_every_difference_at_once() {
    life::names_all_at_once(&tuned(bin()), &TUNING[..TUNING.len() - 1]);
}

#[test]
fn check_of_sbr_names_every_difference_at_once() {
    life::names_all_at_once(&source_routing(bin()), &SOURCE_ROUTING[..SOURCE_ROUTING.len() - 1]);
}

#[test]
fn check_of_bandwidth_names_every_difference_at_once() {
    // The others remove each other.
    life::names_all_at_once(&shaped(bin()), &[BANDWIDTH[1], BANDWIDTH[2], BANDWIDTH[4], BANDWIDTH[5]]);
}

#[test]
fn check_of_firewall_names_every_difference_at_once() {
    // Neither those that remove others with them, nor rules that are added before others.
    let alone = FIREWALL.into_iter().filter(|one| one.line.contains(" -D ")).collect::<Vec<_>>();
    assert_eq!(alone.len(), 8);
    life::names_all_at_once(&firewall(bin(), "iptables"), &alone);
}

#[test]
fn check_asks_the_ipam_plugin_too() {
    let host = Host::new();
    let subject = bridge();
    let subject = subject.at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    std::fs::remove_file(host.dir().join("leases/testnet/10.77.0.2")).unwrap();
    std::fs::remove_file(host.dir().join("leases/testnet/fd00:77::2")).unwrap();
    let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
    assert!(text.contains("host-local"), "{text}");
    subject.del(&host, "c-one", &container, &result);
}

/// Another program writes a rule into it that iptables cannot print.
#[test]
fn a_del_that_cannot_read_the_chain_of_its_attachment_fails_until_it_can() {
    let host = Host::new();
    let subject = bridge().with("ipMasqBackend", json!("iptables")).at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    let chain = host.sh("iptables-nft -t nat -S | sed -n 's/^-N //p'");
    let chain = chain.trim();
    host.sh(&format!("nft add rule ip nat {chain} ct mark 5 return"));
    let prev = ("prevResult", result.clone());
    let (_, text) = subject.call(&host, "DEL", "c-one", &container.path(), &[prev]).refused();
    assert!(text.contains("another program wrote into table nat with nft"), "{text}");
    host.sh(&format!("nft flush chain ip nat {chain}"));
    subject.del(&host, "c-one", &container, &result);
    assert!(!host.sh("iptables-nft -t nat -S").contains(chain));
}
