//! A configuration in, a plan in words out: every key of the plugins that make an interface, and every refusal. Nothing here
//! touches the kernel.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use bridge::BridgePlugin;
use cnikit::types::{Dns, Ip, NetConf, Route};
use cnikit::{Addresses, AttachmentId, AttachmentSpec, Input, InterfacePlugin, InterfaceShape, Version, serve};
use dummy::DummyPlugin;
use ipvlan::IpvlanPlugin;
use macvlan::MacvlanPlugin;
use ptp::PtpPlugin;
use serde_json::{Value, json};
use tap::TapPlugin;
use vlan::VlanPlugin;

fn conf(mut keys: Value) -> NetConf {
    keys["cniVersion"] = json!("1.1.0");
    keys["name"] = json!("n");
    NetConf::parse(keys.to_string().as_bytes()).unwrap()
}

fn attachment(conf: &NetConf) -> AttachmentSpec {
    AttachmentSpec {
        tag: AttachmentId { network: "n".into(), container: "c".into(), ifname: "eth0".into() },
        sandbox: "/run/netns/c".into(),
        conf: conf.clone(),
        version: Version::NEWEST,
        args: cnikit::types::Args::default(),
        respelled: Vec::new(),
    }
}

/// `ADDRESS/PREFIX` or `ADDRESS/PREFIX via GATEWAY`, as from an IPAM plugin.
fn addresses(texts: &[&str]) -> Addresses {
    let ip = |text: &&str| {
        let (address, gateway) = text.split_once(" via ").map_or((*text, None), |(address, via)| (address, Some(via)));
        let gateway = gateway.map(|via| via.parse().unwrap());
        Ip { gateway, ..Ip::new(address.parse().unwrap()) }
    };
    Addresses { ips: texts.iter().map(ip).collect(), ..Addresses::default() }
}

/// Both plans of a plugin for these addresses, and the addresses that it completed.
fn made<P: InterfacePlugin>(keys: Value, mut addresses: Addresses) -> Result<(Vec<String>, Addresses), String> {
    let conf = conf(keys);
    let plugin = conf.read::<P>().map_err(|error| error.to_string())?;
    let at = attachment(&conf);
    let mut lines = plugin.link(&at).lines();
    plugin.complete(&mut addresses).map_err(|error| error.to_string())?;
    lines.extend(plugin.layer3(&at, &addresses).lines());
    Ok((lines, addresses))
}

fn bridge(keys: Value, given: &[&str]) -> Vec<String> {
    made::<BridgePlugin>(keys, addresses(given)).unwrap().0
}

/// The plans of bridge with these keys, an IPAM plugin and its addresses.
fn bridge3(mut keys: Value, given: &[&str]) -> Vec<String> {
    keys["ipam"] = json!({"type": "some-ipam"});
    bridge(keys, given)
}

fn ptp(mut keys: Value, given: &[&str]) -> Vec<String> {
    keys["ipam"] = json!({"type": "some-ipam"});
    made::<PtpPlugin>(keys, addresses(given)).unwrap().0
}

const IPV4: &str = "10.77.0.2/24";
const IPV6: &str = "fd00:77::2/64";

const BRIDGE: &str = "bridge cni0 on the host";
const PAIR: &str = "veth pair: eth0 in the container, the other end a port of bridge cni0";
const UP: &str = "eth0 up";
const FORWARDS: &str = "the port of bridge cni0 forwards";
const ADDRESSED: &str = "eth0 up with 10.77.0.2/24";
const TOLD: &str = "the port of bridge cni0 forwards and announces 10.77.0.2 to its neighbours";

#[test]
fn bridge_without_ipam_is_layer_2() {
    let keys = [
        json!({}),
        json!({"ipam": {}}),
        json!({"ipam": {"type": ""}}),
        json!({"bridge": null, "mtu": 0, "vlan": 0, "vlanTrunk": null, "macspoofchk": false, "ipMasqBackend": "nftables"}),
        json!({"mtu": -7, "enabledad": true, "preserveDefaultVlan": true, "unknown": [1]}),
        json!({"isGateway": true, "isDefaultGateway": true, "forceAddress": true, "ipMasq": true}),
    ];
    for keys in keys {
        assert_eq!(bridge(keys.clone(), &[]), [BRIDGE, PAIR, UP, FORWARDS], "{keys}");
    }
}

#[test]
fn every_key_of_bridge_is_seen_in_the_plan() {
    let line = |keys: Value, at: usize| bridge(keys, &[]).swap_remove(at);
    assert_eq!(line(json!({"bridge": "br-1"}), 0), "bridge br-1 on the host");
    assert_eq!(
        line(json!({"bridge": "br-1"}), 1),
        "veth pair: eth0 in the container, the other end a port of bridge br-1"
    );
    assert_eq!(line(json!({"BRIDGE": "a", "Bridge": "br-1"}), 0), "bridge br-1 on the host");
    assert_eq!(line(json!({"promiscMode": true}), 0), format!("{BRIDGE}, promiscuous"));
    assert_eq!(line(json!({"mtu": 1400}), 0), format!("{BRIDGE}, mtu 1400 if it is made"));
    let pair = "veth pair: eth0 in the container, mtu 1400, the other end a port of bridge cni0";
    assert_eq!(line(json!({"mtu": 1400}), 1), pair);
    assert_eq!(line(json!({"hairpinMode": true}), 1), format!("{PAIR}, hairpin"));
    assert_eq!(line(json!({"portIsolation": true}), 1), format!("{PAIR}, isolated"));
    assert_eq!(line(json!({"slaac": false}), 2), "eth0 up, ignoring router advertisements");
    assert_eq!(bridge(json!({"disableContainerInterface": true}), &[]), [BRIDGE, PAIR]);
}

#[test]
fn every_key_of_bridge_that_layer_3_adds_is_seen_in_the_plan() {
    let with = |keys: Value| bridge3(keys, &[IPV4])[2..].to_vec();
    assert_eq!(with(json!({})), [ADDRESSED, TOLD]);
    assert_eq!(with(json!({"slaac": false})), [ADDRESSED, TOLD], "an address given is the only one");
    let gateway = "gateway on cni0: 10.77.0.1/24";
    let forwarding = "forwarding on the host: IPv4";
    assert_eq!(with(json!({"isGateway": true})), [gateway, forwarding, ADDRESSED, TOLD]);
    let forced = format!("{gateway}, in place of any other");
    assert_eq!(with(json!({"isGateway": true, "forceAddress": true})), [&forced, forwarding, ADDRESSED, TOLD]);
    let default = format!("{ADDRESSED}; routes 0.0.0.0/0 via 10.77.0.1");
    assert_eq!(with(json!({"isDefaultGateway": true})), [gateway, forwarding, &default, TOLD]);
    let masquerade = |backend: &str| format!("masquerade 10.77.0.2 on the host ({backend})");
    for backend in ["nftables", "iptables"] {
        let keys = json!({"ipMasq": true, "ipMasqBackend": backend});
        assert_eq!(with(keys), [&masquerade(backend), ADDRESSED, TOLD]);
    }
    let either = masquerade("iptables if it works, otherwise nftables");
    assert_eq!(with(json!({"ipMasq": true})), [&either, ADDRESSED, TOLD]);
    let detecting = format!("{ADDRESSED}; duplicate address detection");
    assert_eq!(with(json!({"enabledad": true})), [&detecting, TOLD]);
}

#[test]
fn vlans_are_seen_in_the_plan() {
    let with = |keys: Value| bridge(keys, &[])[..3].to_vec();
    let filtering = format!("{BRIDGE}, filtering by VLAN");
    let port = "the port of bridge cni0 in VLAN";
    let seen = |keys: Value, vlans: &str| assert_eq!(with(keys), [&filtering, PAIR, &format!("{port} {vlans}")]);
    seen(json!({"vlan": 100}), "100 untagged");
    seen(json!({"vlan": 100, "preserveDefaultVlan": true}), "100 untagged, beside the bridge's default");
    seen(json!({"vlanTrunk": [{"id": 7}]}), "1 untagged, 7 tagged");
    let trunk =
        json!([{"minID": 200, "maxID": 210}, {"id": 211, "minID": 5, "maxID": 5}, {"id": 100}, {}, {"ID": 100}]);
    seen(json!({"vlan": 100, "vlanTrunk": trunk}), "100 untagged, 5, 200-211 tagged");
    for nothing in [json!([]), json!([{}]), json!([{"id": null}])] {
        let made = format!("{filtering} if it is made");
        assert_eq!(
            with(json!({"vlanTrunk": nothing})),
            [&made, PAIR, UP],
            "no VLAN is wanted, but the reference's bridge"
        );
    }
}

#[test]
fn the_gateway_of_a_vlan_is_a_link_of_its_own() {
    let lines = bridge3(json!({"vlan": 100, "isDefaultGateway": true}), &[IPV4]);
    assert_eq!(lines[3], "VLAN gateway cni0.100 on the host: a port of bridge cni0 in VLAN 100 untagged");
    assert_eq!(lines[4], "gateway on cni0.100: 10.77.0.1/24");
    assert_eq!(bridge3(json!({"vlan": 100}), &[IPV4]).len(), 5, "a host that is no gateway is not in the VLAN");
    let trunk = bridge3(json!({"vlanTrunk": [{"id": 7}], "isGateway": true}), &[IPV4]);
    assert_eq!(trunk[3], "gateway on cni0: 10.77.0.1/24", "a trunk alone leaves the gateway on the bridge");
    let layer2 = bridge(json!({"vlan": 100, "isGateway": true}), &[]);
    assert!(layer2.iter().all(|line| !line.contains("cni0.100")), "{layer2:?}");
}

#[test]
fn a_bridge_has_the_gateways_of_all_subnets_each_once() {
    let line = |given: &[&str], at: usize| bridge3(json!({"isDefaultGateway": true}), given).swap_remove(at);
    assert_eq!(line(&[IPV4, IPV6], 2), "gateway on cni0: 10.77.0.1/24, fd00:77::1/64");
    assert_eq!(line(&[IPV4, IPV6], 3), "forwarding on the host: IPv4 and IPv6");
    assert_eq!(line(&[IPV6], 3), "forwarding on the host: IPv6");
    let several = ["10.77.0.2/24", "10.78.0.2/16 via 10.78.9.9", "10.77.0.3/24", "10.77.0.4/24 via 10.77.0.254"];
    assert_eq!(line(&several, 2), "gateway on cni0: 10.77.0.1/24, 10.78.9.9/16, 10.77.0.254/24");
    let all = "10.77.0.2/24, 10.78.0.2/16, 10.77.0.3/24, 10.77.0.4/24";
    assert_eq!(
        line(&several, 4),
        format!("eth0 up with {all}; routes 0.0.0.0/0 via 10.77.0.1"),
        "one default a family"
    );
}

#[test]
fn the_default_gateway_is_the_first_address_of_the_network() {
    for (given, gateway) in
        [("10.77.3.2/16", "10.77.0.1"), ("fd00:77::5:2/64", "fd00:77::1"), ("10.77.0.2/24 via 10.77.0.9", "10.77.0.9")]
    {
        let (_, completed) = made::<BridgePlugin>(json!({"isGateway": true}), addresses(&[given])).unwrap();
        assert_eq!(completed.ips[0].gateway.map(|ip| ip.to_string()).as_deref(), Some(gateway));
        let (_, without) = made::<BridgePlugin>(json!({}), addresses(&[given])).unwrap();
        assert_eq!(without, addresses(&[given]), "without isGateway nothing is made up");
    }
    let last = made::<BridgePlugin>(json!({"isGateway": true}), addresses(&["255.255.255.255/32"])).unwrap_err();
    assert!(last.contains("255.255.255.255/32 leaves no address for a gateway"), "{last}");
}

fn route(dst: &str) -> Route {
    Route::to(dst.parse().unwrap())
}

/// The routes of the result and of the plan, for bridge with a default gateway.
fn routed(routes: Vec<Route>) -> (Vec<String>, String) {
    let given = Addresses { routes, ..addresses(&[IPV4, IPV6]) };
    let (lines, done) = made::<BridgePlugin>(json!({"isDefaultGateway": true, "ipam": {"type": "x"}}), given).unwrap();
    let texts =
        done.routes.iter().map(|route| format!("{} {:?}", route.dst, route.gw.map(|gateway| gateway.to_string())));
    let planned = lines[4].split_once("; routes ").unwrap().1.to_owned();
    (texts.collect(), planned)
}

#[test]
fn a_default_route_is_added_for_a_family_that_has_none() {
    let added = ["0.0.0.0/0 Some(\"10.77.0.1\")", "::/0 Some(\"fd00:77::1\")"];
    let both = "0.0.0.0/0 via 10.77.0.1, ::/0 via fd00:77::1";
    assert_eq!(routed(Vec::new()), (added.map(String::from).to_vec(), both.to_owned()));
    let (texts, planned) = routed(vec![route("0.0.0.0/0")]);
    assert_eq!(texts, ["0.0.0.0/0 None", added[1]], "the IPAM plugin's own stays as it is said");
    assert_eq!(planned, both, "and goes by the gateway");
    let elsewhere = Route { gw: Some("10.77.0.99".parse().unwrap()), ..route("0.0.0.0/0") };
    assert_eq!(routed(vec![elsewhere]).1, "0.0.0.0/0 via 10.77.0.99, ::/0 via fd00:77::1");
}

#[test]
fn every_attribute_of_a_route_is_seen_in_the_plan() {
    let full =
        Route { mtu: Some(1400), advmss: Some(1300), priority: Some(7), table: Some(99), ..route("10.1.0.0/16") };
    let on_link = Route { scope: Some(253), ..route("10.2.0.0/16") };
    let expected = "10.1.0.0/16 via 10.77.0.1 metric 7 mtu 1400 advmss 1300 table 99, 10.2.0.0/16 scope 253, ";
    assert!(routed(vec![full.clone(), full, on_link]).1.starts_with(expected), "said twice is wanted once");
}

#[test]
fn every_key_of_ptp_is_seen_in_the_plan() {
    let given = ["10.77.0.2/24 via 10.77.0.1"];
    let end = "on the host's end: gateway 10.77.0.1, route to 10.77.0.2";
    let pair = "veth pair: eth0 in the container, the other end routed on the host";
    let forwarding = "forwarding on the host: IPv4";
    let up = "eth0 up with 10.77.0.2/24; \
              routes 10.77.0.1/32 src 10.77.0.2 scope 253, 10.77.0.0/24 via 10.77.0.1 src 10.77.0.2";
    assert_eq!(ptp(json!({}), &given), [pair, forwarding, end, up]);
    let masquerade = "masquerade 10.77.0.2 on the host (iptables if it works, otherwise nftables)";
    assert_eq!(ptp(json!({"ipMasq": true}), &given), [pair, forwarding, end, masquerade, up]);
    let narrow = "veth pair: eth0 in the container, mtu 1400, the other end routed on the host";
    assert_eq!(ptp(json!({"mtu": 1400}), &given), [narrow, forwarding, end, up]);
    assert_eq!(ptp(json!({"mtu": -1}), &given), [pair, forwarding, end, up]);
    let wide = "veth pair: eth0 in the container, 4 queues, the other end routed on the host";
    assert_eq!(ptp(json!({"queues": 4}), &given), [wide, forwarding, end, up]);
    assert_eq!(ptp(json!({"queues": 0}), &given), [pair, forwarding, end, up]);
}

#[test]
fn ptp_routes_each_network_by_its_gateway_and_each_gateway_once() {
    let given = ["10.77.0.2/24 via 10.77.0.1", "10.77.0.3/24 via 10.77.0.1", "fd00:77::2/128 via fd00:77::1"];
    let lines = ptp(json!({}), &given);
    let end = "on the host's end: gateway 10.77.0.1, fd00:77::1, route to 10.77.0.2, 10.77.0.3, fd00:77::2";
    assert_eq!(lines[2], end);
    let routes = "routes 10.77.0.1/32 src 10.77.0.2 scope 253, 10.77.0.0/24 via 10.77.0.1 src 10.77.0.2, \
                  fd00:77::1/128 src fd00:77::2";
    assert!(lines[3].ends_with(routes), "{}", lines[3]);
}

/// The DNS of the result if the IPAM plugin returned 10.0.0.1.
fn dns(output: &Value) -> [Dns; 2] {
    let given = || Dns { nameservers: vec!["10.0.0.1".into()], domain: "ipam".into(), ..Dns::default() };
    let given = || Addresses { dns: given(), ..addresses(&["10.77.0.2/24 via 10.77.0.1"]) };
    let keys = json!({"ipam": {"type": "x"}, "dns": output});
    [made::<BridgePlugin>(keys.clone(), given()).unwrap().1.dns, made::<PtpPlugin>(keys, given()).unwrap().1.dns]
}

#[test]
fn configured_dns_replaces_all_dns_of_the_ipam_plugin() {
    for silent in [json!(null), json!({}), json!({"domain": ""}), json!({"search": null}), json!({"unknown": 1})] {
        dns(&silent).iter().for_each(|dns| assert_eq!(dns.nameservers, ["10.0.0.1"], "{silent}"));
    }
    for configured in [json!({"nameservers": []}), json!({"search": []}), json!({"options": []})] {
        dns(&configured).iter().for_each(|dns| assert!(dns.is_empty(), "{configured} {dns:?}"));
    }
    for dns in dns(&json!({"nameservers": ["10.0.0.53"], "search": ["a"], "options": ["ndots:1"]})) {
        assert_eq!((dns.nameservers.as_slice(), dns.domain.as_str()), (["10.0.0.53".to_owned()].as_slice(), ""));
    }
    let layer2 = made::<BridgePlugin>(json!({"dns": {"domain": "d"}}), Addresses::default()).unwrap().1;
    assert_eq!(layer2.dns.domain, "d", "without an IPAM plugin too");
}

/// The lines of the dry run, or the error's code and texts: the whole call from stdin and environment on.
fn preview<P: InterfacePlugin>(plugin: &str, keys: Value, args: &str) -> Result<Vec<String>, (u64, String)> {
    let mut input = Input::new("PLAN", conf(keys).to_vec());
    input.container_id = "c".into();
    input.ifname = "eth0".into();
    input.args = args.into();
    input.path = "/usr/lib/cni".into();
    let mut output = Vec::new();
    let exit = serve::<InterfaceShape<P>>(plugin, input, &[], &mut output);
    let output: Value = serde_json::from_slice(&output).unwrap();
    if exit == 0 {
        return Ok(output["plan"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect());
    }
    Err((output["code"].as_u64().unwrap(), format!("{} {}", output["msg"], output["details"])))
}

#[test]
fn macs_are_checked_before_there_is_a_link_to_send_by() {
    let all = bridge(json!({"macspoofchk": true}), &[]);
    let guarded = format!("{BRIDGE}, learning nothing from link-local groups");
    assert_eq!(
        all[..3],
        [&guarded, "drop frames from the container with another source MAC than its own (nftables)", PAIR]
    );
    let keys = json!({"macspoofchk": true, "runtimeConfig": {"mac": "02:00:00:00:00:01"}});
    let asked = preview::<BridgePlugin>("bridge", keys, "").unwrap();
    assert_eq!(asked[1], "drop frames from the container with another source MAC than 02:00:00:00:00:01 (nftables)");
}

/// The MAC in the plan.
fn mac(keys: Value, args: &str) -> Option<String> {
    let lines = preview::<BridgePlugin>("bridge", keys, args).unwrap_or_else(|error| panic!("{error:?}"));
    let (_, after) = lines[1].split_once(", mac ")?;
    after.split(',').next().map(str::to_owned)
}

#[test]
fn the_mac_comes_from_the_capability_then_from_args_then_from_the_environment() {
    let [runtime, args, env] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];
    let all = json!({"runtimeConfig": {"mac": runtime}, "args": {"cni": {"mac": args}}, "mac": "02:00:00:00:00:09"});
    let cni_args = format!("MAC={env}");
    assert_eq!(mac(all.clone(), &cni_args).as_deref(), Some(runtime));
    let empty = json!({"runtimeConfig": {"mac": ""}, "args": {"cni": {"mac": args}}});
    assert_eq!(mac(empty, &cni_args).as_deref(), Some(args));
    assert_eq!(mac(json!({"runtimeConfig": {}, "args": {"cni": {}}}), &cni_args).as_deref(), Some(env));
    assert_eq!(mac(json!({"mac": runtime}), ""), None, "there is no key of that name");
    assert_eq!(mac(json!({}), "MAC="), None);
    assert_eq!(mac(json!({}), "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02-00-00-00-00-03").as_deref(), Some(env));
    // The packaged plugin is found, and not called because it is not part of this program.
    let lines = preview::<PtpPlugin>("ptp", json!({"ipam": {"type": "host-local"}}), "NO=1").unwrap();
    assert!(lines.iter().all(|line| !line.contains("mac")), "ptp takes none, and leaves CNI_ARGS to others: {lines:?}");
}

/// A configuration that is refused: its keys, the code, the message.
struct Refused(Value, u64, &'static str);

fn refuses<P: InterfacePlugin>(plugin: &str, table: Vec<Refused>) {
    for Refused(keys, code, says) in table {
        let (found, text) = preview::<P>(plugin, keys.clone(), "").unwrap_err();
        assert!(found == code && text.contains(says), "{keys}: wanted {code} {says:?}, found {found} {text}");
    }
}

#[test]
fn bridge_refuses_invalid_configurations_with_the_reason() {
    let mac = |mac: &str| json!({"runtimeConfig": {"mac": mac}});
    refuses::<BridgePlugin>(
        "bridge",
        vec![
            Refused(json!({"vlan": -1}), 7, "invalid VLAN ID -1 (must be between 0 and 4094)"),
            Refused(json!({"vlan": 4095}), 7, "invalid VLAN ID 4095 (must be between 0 and 4094)"),
            Refused(json!({"ipMasqBackend": "ipfw"}), 7, "unknown ipmasq backend"),
            Refused(json!({"ipMasqBackend": ""}), 7, "unknown ipmasq backend"),
            Refused(
                json!({"ipam": {"type": "x"}, "disableContainerInterface": true}),
                7,
                "cannot use IPAM when DisableContainerInterface flag is set",
            ),
            Refused(
                json!({"hairpinMode": true, "promiscMode": true}),
                7,
                "cannot set hairpin mode and promiscuous mode at the same time",
            ),
            Refused(mac("zz"), 7, "zz"),
            Refused(mac("01:00:5e:00:00:01"), 7, "cannot be the MAC of an interface"),
            Refused(mac("00:00:00:00:00:00"), 7, "cannot be the MAC of an interface"),
            Refused(mac("02:00:00:00:00:00:00:01"), 7, "02:00:00:00:00:00:00:01"),
            Refused(json!({"mtu": 65536}), 7, "an MTU of 65536 is more than a link can have (65535)"),
            Refused(json!({"mtu": "1400"}), 6, "mtu"),
            Refused(json!({"queues": 4097}), 7, "4097 queues (must be between 0 and 4096)"),
            Refused(json!({"queues": -1}), 7, "-1 queues (must be between 0 and 4096)"),
            Refused(json!({"bridge": "a-bridge-16-long"}), 7, "interface name is too long"),
            Refused(json!({"bridge": ""}), 7, "interface name is empty"),
            Refused(json!({"bridge": "a/b"}), 7, "contains / or :"),
        ],
    );
}

#[test]
fn bridge_refuses_invalid_trunks_with_their_position() {
    let trunk = |element: Value| json!({"vlanTrunk": [{"id": 7}, element]});
    refuses::<BridgePlugin>(
        "bridge",
        vec![
            Refused(trunk(json!({"id": 0})), 7, "incorrect trunk id parameter 0 (must be between 1 and 4094)"),
            Refused(trunk(json!({"id": 4095})), 7, "incorrect trunk id parameter 4095"),
            Refused(trunk(json!({"id": -1})), 7, "incorrect trunk id parameter -1"),
            Refused(trunk(json!({"minID": 0, "maxID": 5})), 7, "incorrect trunk minID parameter 0"),
            Refused(trunk(json!({"minID": 5, "maxID": 65_541})), 7, "incorrect trunk maxID parameter 65541"),
            Refused(trunk(json!({"minID": 6, "maxID": 5})), 7, "minID is greater than maxID: 6 > 5"),
            Refused(
                trunk(json!({"minID": 6, "id": 5})),
                7,
                "minID and maxID should be configured simultaneously, maxID is missing",
            ),
            Refused(trunk(json!({"maxID": 6})), 7, "simultaneously, minID is missing"),
            Refused(trunk(json!({"id": 5, "minID": null, "maxID": 9})), 7, "vlanTrunk[1]"),
            Refused(trunk(json!(null)), 6, "vlanTrunk[1]"),
            Refused(trunk(json!({"id": "5"})), 6, "vlanTrunk[1].id"),
            Refused(json!({"vlanTrunk": {"id": 5}}), 6, "vlanTrunk"),
        ],
    );
}

#[test]
fn a_vlan_gateway_whose_name_would_be_too_long_is_refused_before_anything_is_made() {
    let keys = |bridge: &str| json!({"bridge": bridge, "vlan": 100, "isGateway": true, "ipam": {"type": "host-local"}});
    let says = "the link of the gateway would be called \\\"br-of-12-chr.100\\\": interface name is too long";
    refuses::<BridgePlugin>("bridge", vec![Refused(keys("br-of-12-chr"), 7, says)]);
    let (_, text) = preview::<BridgePlugin>("bridge", keys("br-of-12-chr"), "").unwrap_err();
    assert!(text.contains("give `bridge` a name shorter than"), "{text}");
    preview::<BridgePlugin>("bridge", keys("br-of-11-ch"), "").unwrap();
    for harmless in [json!({"isGateway": false}), json!({"vlan": 0}), json!({"ipam": {}}), json!({"vlan": 9})] {
        let mut keys = keys("br-of-12-chr");
        keys.as_object_mut().unwrap().extend(harmless.as_object().unwrap().clone());
        let refused = preview::<BridgePlugin>("bridge", keys, "").is_err();
        assert!(!refused, "{harmless}: no link of that name, or a shorter one, is wanted");
    }
}

#[test]
fn ptp_refuses_invalid_configurations_with_the_reason() {
    refuses::<PtpPlugin>(
        "ptp",
        vec![
            Refused(json!({}), 7, "no plugin name provided"),
            Refused(json!({"ipam": {}}), 7, "no plugin name provided"),
            Refused(json!({"ipam": {"type": "x"}, "mtu": 65536}), 7, "an MTU of 65536 is more than a link can have"),
            Refused(json!({"ipam": {"type": "x"}, "ipMasqBackend": "ip6tables"}), 7, "unknown ipmasq backend"),
        ],
    );
    let refused = |given: &[&str]| made::<PtpPlugin>(json!({"ipam": {"type": "x"}}), addresses(given)).unwrap_err();
    assert!(refused(&[IPV4]).contains("10.77.0.2/24 has no gateway of its family"));
    assert!(refused(&["10.77.0.2/24 via fd00:77::1"]).contains("10.77.0.2/24 has no gateway of its family"));
    let half = refused(&["10.77.0.2/24 via 10.77.0.1", IPV6]);
    assert!(half.contains("fd00:77::2/64 has no gateway of its family") && half.contains("hint: "), "{half}");
}

#[test]
fn bridge_refuses_unknown_cni_args_without_ignore_unknown() {
    let refused = |args: &str| preview::<BridgePlugin>("bridge", json!({}), args).unwrap_err();
    assert_eq!(refused("A=1;MAC=").0, 4);
    assert!(refused("A=1;B=2").1.contains(r#"unknown args [\"A=1\", \"B=2\"]"#), "{}", refused("A=1;B=2").1);
    assert!(refused("A=1").1.contains("IgnoreUnknown=1"));
    assert_eq!(refused("nothing").0, 4);
    preview::<BridgePlugin>("bridge", json!({}), "A=1;IgnoreUnknown=true").unwrap();
}

/// The lines of a plugin on a master, for one address by a gateway.
fn on_master<P: InterfacePlugin>(keys: Value) -> Vec<String> {
    made::<P>(keys, addresses(&["10.1.0.2/24 via 10.1.0.1"])).unwrap().0
}

#[test]
fn a_macvlan_is_planned_with_every_key() {
    let ipam = json!({"type": "some-ipam"});
    assert_eq!(
        on_master::<MacvlanPlugin>(json!({"ipam": ipam})),
        [
            "macvlan eth0 in the container, mode bridge, on what has the default route on the host",
            "eth0 up with 10.1.0.2/24; duplicate address detection; router advertisements are accepted",
        ]
    );
    let all = json!({"master": "eth1", "linkInContainer": true, "mode": "vepa", "mtu": 1400, "mac": "0a:00:00:00:00:01",
                     "bcqueuelen": 50, "enabledad": false, "slaac": false, "ipam": ipam});
    assert_eq!(
        on_master::<MacvlanPlugin>(all),
        [
            "macvlan eth0 in the container, mode vepa, bcqueuelen 50, mac 0a:00:00:00:00:01, mtu 1400, on eth1 in the container",
            "eth0 up with 10.1.0.2/24",
        ]
    );
}

#[test]
fn without_addresses_a_link_on_a_master_is_just_up() {
    let planned = |keys: Value| made::<MacvlanPlugin>(keys, Addresses::default()).unwrap().0;
    assert_eq!(
        planned(json!({"master": "eth1"})),
        ["macvlan eth0 in the container, mode bridge, on eth1 on the host, up"],
        "by one message"
    );
    assert_eq!(
        planned(json!({"master": "eth1", "slaac": false})),
        ["macvlan eth0 in the container, mode bridge, on eth1 on the host", "eth0 up, ignoring router advertisements",]
    );
    assert_eq!(
        made::<IpvlanPlugin>(json!({"master": "eth1"}), Addresses::default()).unwrap().0,
        ["ipvlan eth0 in the container, mode l2, on eth1 on the host", "eth0 up"]
    );
}

#[test]
fn an_ipvlan_is_on_what_came_before_it_unless_a_master_is_named() {
    let prev = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth1"}]});
    let first = |keys: Value| on_master::<IpvlanPlugin>(keys).swap_remove(0);
    assert_eq!(
        first(json!({"prevResult": prev, "mode": "l3s", "mtu": 1400})),
        "ipvlan eth0 in the container, mode l3s, mtu 1400, on what was made before on the host"
    );
    assert!(first(json!({"prevResult": prev, "master": "eth2"})).ends_with("on eth2 on the host"));
    assert!(first(json!({"linkInContainer": true})).ends_with("on what has the default route in the container"));
}

#[test]
fn an_empty_mode_is_the_usual_one_and_an_unknown_one_is_refused() {
    assert!(on_master::<MacvlanPlugin>(json!({"mode": ""}))[0].contains("mode bridge"));
    assert!(on_master::<IpvlanPlugin>(json!({"mode": ""}))[0].contains("mode l2"));
    let refused = made::<MacvlanPlugin>(json!({"mode": "source"}), Addresses::default()).unwrap_err();
    assert!(refused.contains("unknown macvlan mode: \"source\""), "{refused}");
    let refused = made::<IpvlanPlugin>(json!({"mode": "bridge"}), Addresses::default()).unwrap_err();
    assert!(refused.contains("unknown ipvlan mode: \"bridge\""), "{refused}");
}

#[test]
fn a_vlan_is_planned_with_every_key() {
    let ipam = json!({"type": "some-ipam"});
    assert_eq!(
        on_master::<VlanPlugin>(json!({"vlanId": 7, "ipam": ipam})),
        [
            "vlan eth0 in the container, VLAN 7, on what has the default route on the host",
            "eth0 up with 10.1.0.2/24; duplicate address detection; router advertisements are accepted",
        ]
    );
    let all = json!({"master": "eth1", "linkInContainer": true, "vlanId": 4094, "protocol": "802.1AD", "mtu": 1400,
                     "enabledad": false, "slaac": false, "ipam": ipam});
    assert_eq!(
        on_master::<VlanPlugin>(all),
        [
            "vlan eth0 in the container, 802.1ad VLAN 4094, mtu 1400, on eth1 in the container",
            "eth0 up with 10.1.0.2/24"
        ]
    );
    assert_eq!(
        made::<VlanPlugin>(json!({"master": "eth1", "vlanId": 0, "protocol": ""}), Addresses::default()).unwrap().0,
        ["vlan eth0 in the container, VLAN 0, on eth1 on the host, up"]
    );
}

#[test]
fn the_number_of_a_vlan_is_required_and_one_that_a_vlan_can_have() {
    let refused = |keys: Value| made::<VlanPlugin>(keys, Addresses::default()).unwrap_err();
    for keys in [json!({}), json!({"vlanId": null})] {
        let output = refused(keys);
        assert!(output.contains("\"vlanId\" field is required"), "{output}");
    }
    for number in [-1, 4095, 65_543] {
        let output = refused(json!({"vlanId": number}));
        assert!(
            output.contains(&format!("invalid VLAN ID {number} (must be between 0 and 4094 inclusive)")),
            "{output}"
        );
    }
}

#[test]
fn a_dummy_is_planned_with_and_without_addresses() {
    assert_eq!(
        on_master::<DummyPlugin>(json!({"ipam": {"type": "some-ipam"}})),
        ["dummy eth0 in the container", "eth0 up with 10.1.0.2/24"]
    );
    assert_eq!(
        made::<DummyPlugin>(json!({}), Addresses::default()).unwrap().0,
        ["dummy eth0 in the container", "eth0 up, ignoring router advertisements"]
    );
}

#[test]
fn a_tap_is_planned_with_every_key() {
    let device = |keys: Value| made::<TapPlugin>(keys, Addresses::default()).unwrap().0[0].clone();
    assert_eq!(
        on_master::<TapPlugin>(json!({"ipam": {"type": "some-ipam"}})),
        ["tap eth0 in the container", "eth0 up with 10.1.0.2/24; duplicate address detection"]
    );
    let all = json!({"multiQueue": true, "mtu": 1400, "mac": "0a:00:00:00:00:01", "owner": 0, "group": 7, "vnetHdr": true,
                     "bridge": "br0"});
    assert_eq!(
        made::<TapPlugin>(all, Addresses::default()).unwrap().0,
        [
            "tap eth0 in the container, owner 0, group 7, multi_queue, vnet_hdr, mac 0a:00:00:00:00:01, mtu 1400, \
             a port of bridge br0 of the container",
            "eth0 up, ignoring router advertisements",
        ]
    );
    // virtio_net_hdr is upstream's default with owner and group.
    assert_eq!(device(json!({"owner": 0})), "tap eth0 in the container, owner 0");
    assert_eq!(device(json!({"owner": 0, "group": 0})), "tap eth0 in the container, owner 0, group 0, vnet_hdr");
    assert_eq!(
        device(json!({"owner": 0, "group": 0, "vnetHdr": false})),
        "tap eth0 in the container, owner 0, group 0"
    );
}
