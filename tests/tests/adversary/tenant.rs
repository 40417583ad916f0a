//! A tenant chooses the values of runtimeConfig, `args` and `CNI_ARGS`.

use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject};
use cnikit_tests::way::{WITHOUT_RESULT, started_by};
use cnikit_tests::{MASTER, dual_stack, subject, written_down};
use serde_json::{Value, json};

/// Where a tenant writes.
#[derive(Clone, Copy, Debug)]
enum Place {
    RuntimeConfig,
    ArgsCni,
    CniArgs,
}

const PLACES: [Place; 3] = [Place::RuntimeConfig, Place::ArgsCni, Place::CniArgs];

/// The same with these addresses requested.
fn requesting(subject: &Subject, place: Place, addresses: &[&str]) -> Subject {
    match place {
        Place::RuntimeConfig => subject.with("runtimeConfig", json!({"ips": addresses})),
        Place::ArgsCni => subject.with("args", json!({"cni": {"ips": addresses}})),
        Place::CniArgs => with_args(subject, &format!("IP={}", addresses.join(","))),
    }
}

fn with_args(subject: &Subject, args: &str) -> Subject {
    let mut changed = subject.clone();
    changed.env.push(("CNI_ARGS".to_owned(), format!("IgnoreUnknown=1;{args}")));
    changed
}

/// The files of host-local that a refused ADD may leave: its directories, its lock and its index, but no reservation.
const KEPT: [&str; 4] =
    ["directory: leases", "file: leases/<network>/lock", "file: leases/.idx/<network> = ", "last_reserved_ip."];

/// Adds a container, which has to fail and to leave nothing.
fn refused(subject: &Subject, host: &Host, container: &Container) -> (u64, String) {
    let before = HostSnapshot::of(host);
    let inside = HostSnapshot::inside(container);
    let output = subject.call(host, "ADD", "c-tenant", &container.path(), &[]).refused();
    HostSnapshot::of(host).assert_unchanged_since(&before, &KEPT, &output.1);
    HostSnapshot::inside(container).assert_unchanged_since(&inside, &[], &output.1);
    output
}

/// Runs ADD, CHECK and DEL for a container. Returns the result.
fn served(subject: &Subject, host: &Host) -> Value {
    let container = host.container();
    let result = subject.add(host, "c-served", &container);
    subject.check(host, "c-served", &container, &result).ok();
    subject.del(host, "c-served", &container, &result);
    result
}

fn addresses_of(result: &Value) -> Vec<&str> {
    result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect()
}

/// A bridge that is the gateway of addresses that the operator configured, or of requested ones.
fn gateway_bridge() -> Subject {
    subject("bridge", json!({"isGateway": true, "ipam": written_down()}))
}

/// The network's own addresses, other than those that it assigns without a request.
const OWN: [&str; 2] = ["10.77.0.9/24", "fd00:77::9/64"];

mod requested_addresses {
    use cnikit_tests::references;

    use super::*;

    #[test]
    fn a_prefix_that_the_configuration_does_not_name_never_becomes_a_route_of_the_host() {
        let host = Host::new();
        let container = host.container();
        let masquerading = subject("bridge", json!({"ipMasq": true, "ipam": written_down()}));
        let without_addresses = subject("bridge", json!({"isDefaultGateway": true, "ipam": {"type": "static"}}));
        for subject in [gateway_bridge(), masquerading, without_addresses] {
            for place in PLACES {
                let before = HostSnapshot::of(&host);
                let inside = HostSnapshot::inside(&container);
                for addresses in [
                    &["8.8.8.9/8"][..],
                    &["2001:db8::9/16"],
                    &["10.77.0.9/24", "2001:db8::9/64"],
                    &["10.77.0.9/8"],
                    &["10.78.0.9/24"],
                    &["::ffff:8.8.8.9/104"],
                ] {
                    let asking = requesting(&subject, place, addresses);
                    // static assigns the configured addresses in addition to those of CNI_ARGS; the result is refused all the same.
                    let (code, text) = asking.call(&host, "ADD", "c-tenant", &container.path(), &[]).refused();
                    assert_eq!(code, if matches!(place, Place::CniArgs) { 4 } else { 7 }, "{text}");
                    assert!(text.contains("`ipam.allowedSubnets`"), "{place:?} {addresses:?}: {text}");
                }
                let what = format!("{place:?}");
                HostSnapshot::of(&host).assert_unchanged_since(&before, &KEPT, &what);
                HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], &what);
            }
        }
    }

    /// The upstream static, which Go's decoder reads the request for, may stand behind our bridge.
    #[test]
    fn a_request_in_any_spelling_that_an_ipam_plugin_of_upstream_understands_is_bounded() {
        let host = Host::new();
        let container = host.container();
        for bin in references() {
            let mut subject = gateway_bridge().with("cniVersion", json!("1.0.0"));
            let path = format!("{}:{}", bin.display(), subject.bin.display());
            subject.env.push(("CNI_PATH".to_owned(), path));
            for key in ["ips", "IPS", "ip\u{17f}", "IP\u{17f}"] {
                let asking = subject.with("args", json!({"cni": {key: ["8.8.8.9/8"]}}));
                let (code, text) = refused(&asking, &host, &container);
                assert!(code == 7 && text.contains("`ipam.allowedSubnets`"), "{key}: {code} {text}");
            }
        }
    }

    #[test]
    fn ptp_gives_the_host_no_route_to_an_address_that_the_configuration_does_not_name() {
        let host = Host::new();
        let container = host.container();
        let subject = subject("ptp", json!({"ipMasq": true, "ipam": {"type": "static", "allowedSubnets": []}}));
        let named = subject.with("ipam", written_down());
        for (subject, args) in [
            (&subject, "IP=8.8.8.9/24;GATEWAY=8.8.8.1"),
            (&named, "IP=8.8.8.9/24;GATEWAY=8.8.8.1"),
            (&named, "IP=2001:db8::9/64;GATEWAY=2001:db8::1"),
            (&named, "IP=10.77.0.9/16;GATEWAY=10.77.0.1"),
            // With a gateway other than the operator's, any address of the network could become one of the host.
            (&named, "IP=10.77.0.9/24;GATEWAY=10.77.0.8"),
        ] {
            let (code, text) = refused(&with_args(subject, args), &host, &container);
            assert!(code == 4 && text.contains("`ipam.allowedSubnets`"), "{args}: {code} {text}");
        }
        let result = served(&with_args(&named, "IP=10.77.0.9/24,fd00:77::9/64;GATEWAY=10.77.0.1,fd00:77::1"), &host);
        assert_eq!(addresses_of(&result)[2..], OWN);
    }

    #[test]
    fn an_address_of_a_subnet_that_the_configuration_names_is_given() {
        for place in PLACES {
            let host = Host::new();
            let result = served(&requesting(&gateway_bridge(), place, &OWN), &host);
            assert!(addresses_of(&result).ends_with(&OWN), "{result}");
            let bridge = host.sh("ip -br address show cni0");
            assert!(bridge.contains("10.77.0.1/24") && bridge.contains("fd00:77::1/64"), "{bridge}");
        }
        for place in PLACES {
            let host = Host::new();
            let ipam = json!({"type": "static", "allowedSubnets": ["10.79.0.0/16", "fd00:79::/64"]});
            let allowed = gateway_bridge().with("ipam", ipam);
            let own = ["10.79.1.9/16", "fd00:79::9/64"];
            assert_eq!(addresses_of(&served(&requesting(&allowed, place, &own), &host)), own);
            // The gateway's prefix is the operator's. Otherwise the first container could exclude all later ones.
            let narrow = requesting(&allowed, place, &["10.79.1.9/24"]);
            let (_, text) = refused(&narrow, &host, &host.container());
            assert!(text.contains("10.79.1.9/24 with gateway 10.79.1.1 was requested"), "{text}");
        }
    }

    #[test]
    fn host_local_gives_what_is_requested_in_its_ranges() {
        for place in PLACES {
            let host = Host::new();
            let keys = json!({"isGateway": true, "ipMasq": true, "ipam": dual_stack()});
            for subject in [subject("bridge", keys), subject("ptp", json!({"ipam": dual_stack()}))] {
                let subject = subject.at(host.dir());
                if matches!(place, Place::CniArgs) {
                    // The request is for one family; the plugin chooses the address of the other one.
                    let result = served(&with_args(&subject, "IP=fd00:77::9"), &host);
                    assert_eq!(addresses_of(&result)[1], OWN[1]);
                } else {
                    assert_eq!(addresses_of(&served(&requesting(&subject, place, &OWN), &host)), OWN);
                }
            }
        }
    }

    #[test]
    fn ranges_of_the_runtime_count_where_the_network_leaves_them_to_it() {
        let host = Host::new();
        let ranges = json!({"ipRanges": [[{"subnet": "10.79.0.0/24"}]], "ips": ["10.79.0.9"]});
        let leaving = subject("bridge", json!({"isGateway": true, "ipam": {"type": "host-local"}})).at(host.dir());
        let result = served(&leaving.with("runtimeConfig", ranges.clone()), &host);
        assert_eq!(addresses_of(&result), ["10.79.0.9/24"]);
        let own = leaving.with("ipam", dual_stack()).with("bridge", json!("cni1")).at(host.dir());
        let (code, text) = refused(&own.with("runtimeConfig", ranges), &host, &host.container());
        assert!(code == 7 && text.contains("runtimeConfig.ips"), "{text}");
        let ranges = json!({"ipRanges": [[{"subnet": "8.0.0.0/8"}]]});
        let (code, text) = refused(&own.with("runtimeConfig", ranges.clone()), &host, &host.container());
        assert!(code == 7 && text.contains("runtimeConfig.ipRanges"), "{text}");
        // static does not assign addresses from these ranges, so they have no effect.
        let mut both = ranges;
        both["ips"] = json!(["8.8.8.9/8"]);
        let (code, text) = refused(&gateway_bridge().with("runtimeConfig", both), &host, &host.container());
        assert!(code == 7 && text.contains("runtimeConfig.ips"), "{text}");
    }

    #[test]
    fn a_link_on_which_the_host_gets_nothing_takes_any_prefix_unless_the_operator_bounds_it() {
        let foreign = ["8.8.8.9/8", "2001:db8::9/16"];
        for place in PLACES {
            let host = Host::new();
            let layer2 = subject("bridge", json!({"ipam": {"type": "static"}}));
            assert_eq!(addresses_of(&served(&requesting(&layer2, place, &foreign), &host)), foreign);
            assert!(!host.sh("ip address show cni0").contains("8.8.8"), "the host gets nothing");
            let bounded = layer2.with("ipam", json!({"type": "static", "allowedSubnets": ["10.77.0.0/24"]}));
            let (_, text) = refused(&requesting(&bounded, place, &foreign), &host, &host.container());
            assert!(text.contains("8.8.8.9/8 is in no subnet in which addresses may be requested"), "{text}");
        }
    }
}

mod the_hosts_own_addresses {
    use super::*;

    fn names(output: &(u64, String), address: &str, link: &str) {
        let expected = format!("the container cannot have {address}: the host has it on {link}");
        assert!(output.0 == 101 && output.1.contains(&expected), "{output:?}");
    }

    #[test]
    fn the_gateway_of_a_bridge_is_given_to_no_container() {
        let host = Host::new();
        for place in PLACES {
            for own in ["10.77.0.1/24", "fd00:77::1/64"] {
                let asking = requesting(&gateway_bridge(), place, &[own]);
                names(&refused(&asking, &host, &host.container()), own.split('/').next().unwrap(), "cni0");
            }
        }
        let configured = json!({"type": "static", "addresses": [{"address": "10.77.0.1/24", "gateway": "10.77.0.1"}]});
        names(&refused(&gateway_bridge().with("ipam", configured), &host, &host.container()), "10.77.0.1", "cni0");
    }

    #[test]
    fn an_address_that_the_operator_gave_to_a_bridge_is_given_to_no_container() {
        let host = Host::new();
        host.sh("ip link add cni0 type bridge && ip link set cni0 up && ip address add 10.77.0.254/24 dev cni0");
        host.sh("ip address add fd00:77::fe/64 dev cni0 nodad");
        for is_gateway in [false, true] {
            let subject = gateway_bridge().with("isGateway", json!(is_gateway));
            let ipv6 = requesting(&subject, Place::RuntimeConfig, &["fd00:77::fe/64"]);
            names(&refused(&ipv6, &host, &host.container()), "fd00:77::fe", "cni0");
            let ipv4 = requesting(&subject, Place::RuntimeConfig, &["10.77.0.254/24"]);
            names(&refused(&ipv4, &host, &host.container()), "10.77.0.254", "cni0");
        }
        let mapped =
            requesting(&gateway_bridge().with("isGateway", json!(false)), Place::ArgsCni, &["::ffff:10.77.0.254/120"]);
        names(&refused(&mapped, &host, &host.container()), "10.77.0.254", "cni0");
        let ranges = json!({"type": "host-local", "subnet": "10.77.0.0/24", "rangeStart": "10.77.0.254"});
        let unasked = subject("bridge", json!({"ipam": ranges})).at(host.dir());
        names(&refused(&unasked, &host, &host.container()), "10.77.0.254", "cni0");
    }

    #[test]
    fn the_gateway_of_ptp_is_given_to_no_container() {
        let host = Host::new();
        let subject = subject("ptp", json!({"ipam": {"type": "static", "allowedSubnets": ["10.77.0.0/24"]}}));
        let own = with_args(&subject, "IP=10.77.0.1/24;GATEWAY=10.77.0.1");
        names(&refused(&own, &host, &host.container()), "10.77.0.1", "the host end");
        // Nor that of another container's host end.
        let running = host.container();
        let args = "IP=10.77.0.9/24;GATEWAY=10.77.0.1";
        with_args(&subject, args).add(&host, "c-running", &running);
        let other = with_args(&subject, "IP=10.77.0.1/24;GATEWAY=10.77.0.2");
        let (code, text) = refused(&other, &host, &host.container());
        assert!(code == 101 && text.contains("the host routes 10.77.0.1 to veth"), "{text}");
    }

    #[test]
    fn on_a_master_host_and_container_may_have_one_address() {
        let host = Host::new();
        host.sh(MASTER);
        host.sh("ip address add 10.77.0.9/24 dev master0");
        let subject = subject("macvlan", json!({"master": "master0", "enabledad": false, "ipam": {"type": "static"}}));
        let result = served(&requesting(&subject, Place::RuntimeConfig, &["10.77.0.9/24"]), &host);
        assert_eq!(addresses_of(&result), ["10.77.0.9/24"]);
    }
}

mod requested_macs {
    use std::thread;

    use cnikit_tests::references;

    use super::*;

    const MAC: &str = "02:00:00:00:66:01";

    fn layer2() -> Subject {
        subject("bridge", json!({}))
    }

    fn requesting_mac(subject: &Subject, place: Place, mac: &str) -> Subject {
        match place {
            Place::RuntimeConfig => subject.with("runtimeConfig", json!({"mac": mac})),
            Place::ArgsCni => subject.with("args", json!({"cni": {"mac": mac}})),
            Place::CniArgs => with_args(subject, &format!("MAC={mac}")),
        }
    }

    /// The MAC of an interface of a result.
    fn mac_of(result: &Value, name: &str) -> String {
        let interfaces = result["interfaces"].as_array().unwrap();
        let found = interfaces.iter().find(|one| one["name"].as_str().unwrap().starts_with(name)).unwrap();
        found["mac"].as_str().unwrap().to_owned()
    }

    /// The MAC in a line of ip(8).
    fn address_of(line: &str) -> String {
        line.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
    }

    /// A request for this MAC is refused from each source, with and without macspoofchk, and the error names the holder.
    fn is_held(host: &Host, mac: &str, holder: &str) {
        for place in PLACES {
            for macspoofchk in [false, true] {
                let asking = requesting_mac(&layer2().with("macspoofchk", json!(macspoofchk)), place, mac);
                let (code, text) = refused(&asking, host, &host.container());
                let expected = format!("the requested MAC {mac} is held by {holder}");
                assert!(code == 101 && text.contains(&expected), "{place:?}: {code} {text}");
            }
        }
    }

    #[test]
    fn the_macs_of_the_bridge_and_of_its_ports_are_given_to_no_container() {
        let host = Host::new();
        let one = host.container();
        let result = layer2().add(&host, "c-one", &one);
        let end = result["interfaces"][1]["name"].as_str().unwrap();
        is_held(&host, &mac_of(&result, "cni0"), "bridge cni0");
        is_held(&host, &mac_of(&result, "veth"), &format!("{end}, a port of bridge cni0"));
        // As the gateway of a VLAN: one end has the addresses, the other is the port.
        host.sh("ip link add gw0 address 02:00:00:00:66:77 type veth peer name gw1 && ip link set gw1 master cni0");
        is_held(&host, "02:00:00:00:66:77", "a machine behind gw1, a port of bridge cni0");
        host.sh("ip link add uplink0 address 02:00:00:00:66:78 type veth && ip link set uplink0 master cni0");
        is_held(&host, "02:00:00:00:66:78", "uplink0, a port of bridge cni0");
    }

    #[test]
    fn the_mac_of_a_running_container_is_given_to_no_other() {
        let host = Host::new();
        let one = host.container();
        let two = host.container();
        let result = layer2().add(&host, "c-one", &one);
        requesting_mac(&layer2(), Place::RuntimeConfig, MAC).add(&host, "c-two", &two);
        is_held(&host, &mac_of(&result, "eth0"), "testnet/c-one/eth0, by port veth");
        is_held(&host, MAC, "testnet/c-two/eth0, by port veth");
        // Another network on the same bridge.
        let other = requesting_mac(&layer2().with("name", json!("othernet")), Place::CniArgs, MAC);
        assert!(refused(&other, &host, &host.container()).1.contains("testnet/c-two/eth0"));
        // On another bridge no container has it.
        let elsewhere = layer2().with("bridge", json!("cni1"));
        served(&requesting_mac(&elsewhere, Place::RuntimeConfig, MAC), &host);
    }

    #[test]
    fn a_mac_changed_inside_neither_frees_it_nor_takes_another() {
        let host = Host::new();
        let one = host.container();
        let own = mac_of(&layer2().add(&host, "c-one", &one), "eth0");
        one.sh(&format!("ip link set eth0 address {MAC}"));
        is_held(&host, &own, "testnet/c-one/eth0");
        assert_eq!(mac_of(&served(&requesting_mac(&layer2(), Place::RuntimeConfig, MAC), &host), "eth0"), MAC);
    }

    #[test]
    fn the_mac_of_a_container_of_the_upstream_plugin_is_found_too() {
        for bin in references() {
            let host = Host::new();
            let container = host.container();
            let theirs = layer2().with("cniVersion", json!("1.0.0")).in_directory(bin);
            theirs.add(&host, "c-theirs", &container);
            let mac = address_of(&container.sh("ip -o link show eth0"));
            is_held(&host, &mac, "a machine behind veth");
        }
    }

    #[test]
    fn a_container_that_restarts_with_its_fixed_mac_is_served() {
        let host = Host::new();
        let fixed = requesting_mac(&layer2().with("macspoofchk", json!(true)), Place::RuntimeConfig, MAC);
        let first = host.container();
        let beside = host.container();
        let neighbour = layer2().add(&host, "c-neighbour", &beside);
        let port = neighbour["interfaces"][1]["name"].as_str().unwrap();
        let result = fixed.add(&host, "c-first", &first);
        // The bridge has learned it, here and on another port.
        host.sh(&format!("bridge fdb replace {MAC} dev {port} master dynamic"));
        fixed.del(&host, "c-first", &first, &result);
        host.sh(&format!("bridge fdb replace {MAC} dev {port} master dynamic"));
        // A namespace of one process, so that a program that another test starts at the same time does not inherit a descriptor of
        // it.
        let started = host.sh("unshare --net sleep 1000 >/dev/null 2>&1 & \
             until [ $(readlink /proc/$!/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.01; done; echo $!");
        let second = started.trim();
        let output = fixed.call(&host, "ADD", "c-second", &format!("/proc/{second}/ns/net"), &[]).ok();
        let end = output["interfaces"][1]["name"].as_str().unwrap();
        // The namespace ends without a DEL. The kernel removes the link some time later, which is not waited for. But until an RCU
        // grace period after the plugin's end its netlink socket holds the namespace, and for the kernel it is alive.
        host.sh(&format!(
            "id=$(ip -o link show {end} | sed -n 's/.* link-netnsid \\([0-9]*\\).*/\\1/p'); test -n \"$id\"; kill {second}; \
             while ip netns list-id target-nsid $id >/dev/null 2>&1; do sleep 0.002; done"
        ));
        let third = host.container();
        // A netlink socket, as the plugin's, lets its namespace go only an RCU grace period after it was closed: about 10 ms.
        let attempt = |_| {
            let output = fixed.call(&host, "ADD", "c-third", &third.path(), &[]);
            if output.exit == 0 {
                return Some(output.json());
            }
            assert!(output.refused().1.contains("is held by testnet/c-second"), "{output:?}");
            host.sh("sleep 0.02");
            None
        };
        let result = (0..250).find_map(attempt).unwrap();
        assert_eq!(mac_of(&result, "eth0"), MAC);
        fixed.check(&host, "c-third", &third, &result).ok();
    }

    #[test]
    fn one_of_many_concurrent_requests_for_one_mac_gets_it() {
        let host = Host::new();
        let before = host.container();
        layer2().add(&host, "c-before", &before);
        let fixed = requesting_mac(&layer2(), Place::RuntimeConfig, MAC);
        for round in 0..12 {
            let containers: Vec<Container> = (0..6).map(|_| host.container()).collect();
            let outputs: Vec<_> = thread::scope(|scope| {
                let call = |(n, container): (usize, &Container)| {
                    let fixed = &fixed;
                    let host = &host;
                    let path = container.path();
                    let id = format!("c-{round}-{n}");
                    scope.spawn(move || fixed.call(host, "ADD", &id, &path, &[]))
                };
                let running: Vec<_> = containers.iter().enumerate().map(call).collect();
                running.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let given = outputs.iter().filter(|one| one.exit == 0).count();
            assert_eq!(given, 1, "round {round}: {outputs:#?}");
            let refused: Vec<_> =
                outputs.iter().filter(|one| one.exit != 0).map(cnikit_testkit::CallOutput::refused).collect();
            assert!(refused.iter().all(|(code, text)| *code == 101 && text.contains(" is held by ")), "{refused:#?}");
            let holder = outputs.iter().position(|one| one.exit == 0).unwrap();
            fixed.del(&host, &format!("c-{round}-{holder}"), &containers[holder], &outputs[holder].json());
            assert_eq!(host.sh("ip -br link show master cni0").lines().count(), 1, "the losers left nothing");
        }
    }

    fn tuning(host: &Host, place: Place, mac: &str) -> Subject {
        requesting_mac(&subject("tuning", json!({"dataDir": host.dir().join("tuning")})), place, mac)
    }

    fn tune(
        host: &Host,
        tuning: &Subject,
        verb: &str,
        (id, container, prev): (&str, &Container, &Value),
    ) -> CallOutput {
        tuning.call(host, verb, id, &container.path(), &[("prevResult", prev.clone())])
    }

    #[test]
    fn tuning_refuses_a_mac_that_is_in_use_on_the_bridge() {
        let host = Host::new();
        let one = host.container();
        let two = host.container();
        let neighbour = layer2().add(&host, "c-one", &one);
        let own = layer2().add(&host, "c-two", &two);
        let end = own["interfaces"][1]["name"].as_str().unwrap();
        let before = (HostSnapshot::of(&host), HostSnapshot::inside(&two));
        let held = [
            (mac_of(&neighbour, "cni0"), "bridge cni0".to_owned()),
            (mac_of(&neighbour, "eth0"), "testnet/c-one/eth0, by port veth".to_owned()),
            (mac_of(&own, "veth"), format!("{end}, a port of bridge cni0")),
        ];
        for (mac, holder) in &held {
            for place in PLACES {
                let output = tune(&host, &tuning(&host, place, mac), "ADD", ("c-two", &two, &own));
                let (code, text) = output.refused();
                let expected = format!("the requested MAC {mac} is held by {holder}");
                assert!(code == 101 && text.contains(&expected), "{place:?}: {code} {text}");
            }
        }
        HostSnapshot::of(&host).assert_unchanged_since(&before.0, &[], "refused");
        HostSnapshot::inside(&two).assert_unchanged_since(&before.1, &[], "refused");
        // It has another MAC now, and its former one may be requested again.
        for mac in [MAC, &mac_of(&own, "eth0")] {
            let tuning = tuning(&host, Place::RuntimeConfig, mac);
            let result = tune(&host, &tuning, "ADD", ("c-two", &two, &own)).ok();
            assert_eq!(address_of(&two.sh("ip -o link show eth0")), mac);
            tune(&host, &tuning, "CHECK", ("c-two", &two, &result)).ok();
        }
    }

    #[test]
    fn the_mac_that_tuning_gave_a_container_is_given_to_no_other() {
        let host = Host::new();
        let one = host.container();
        let two = host.container();
        let first = layer2().add(&host, "c-one", &one);
        let second = layer2().add(&host, "c-two", &two);
        let own = mac_of(&first, "eth0");
        let before = HostSnapshot::of(&host);
        let tuned = tuning(&host, Place::RuntimeConfig, MAC);
        tune(&host, &tuned, "ADD", ("c-one", &one, &first)).ok();
        is_held(&host, MAC, "testnet/c-one/eth0, by port veth");
        let (code, text) = tune(&host, &tuned, "ADD", ("c-two", &two, &second)).refused();
        assert!(code == 101 && text.contains("is held by testnet/c-one/eth0"), "{text}");
        // A change inside the container has no effect, as with a MAC that bridge set.
        one.sh("ip link set eth0 address 02:00:00:00:66:99");
        is_held(&host, MAC, "testnet/c-one/eth0, by port veth");
        one.sh(&format!("ip link set eth0 address {MAC}"));
        tune(&host, &tuned, "DEL", ("c-one", &one, &first)).ok();
        HostSnapshot::of(&host).assert_unchanged_since(&before, &["tuning"], "the port's alias is as before");
        is_held(&host, &own, "testnet/c-one/eth0, by port veth");
        tune(&host, &tuned, "ADD", ("c-two", &two, &second)).ok();
    }

    /// Its last step has succeeded by then.
    #[test]
    fn tuning_that_cannot_write_its_result_gives_the_ports_alias_back() {
        let host = Host::new();
        let one = host.container();
        let first = layer2().add(&host, "c-one", &one);
        let before = HostSnapshot::of(&host);
        let tuned = tuning(&host, Place::RuntimeConfig, MAC);
        let (lost, _dir) = started_by(&tuned, WITHOUT_RESULT);
        assert_ne!(tune(&host, &lost, "ADD", ("c-one", &one, &first)).exit, 0);
        HostSnapshot::of(&host).assert_unchanged_since(&before, &["tuning"], "after a failed ADD");
    }

    /// Otherwise the network that attached the container would no longer find its host end.
    #[test]
    fn tuning_of_another_network_leaves_the_ports_alias_alone() {
        let host = Host::new();
        let one = host.container();
        let first = layer2().add(&host, "c-one", &one);
        let before = HostSnapshot::of(&host);
        let tuned = tuning(&host, Place::RuntimeConfig, MAC).with("name", json!("othernet"));
        tune(&host, &tuned, "ADD", ("c-one", &one, &first)).ok();
        assert_eq!(address_of(&one.sh("ip -o link show eth0")), MAC);
        HostSnapshot::of(&host).assert_unchanged_since(&before, &["tuning"], "after ADD");
    }

    /// The host end of ptp is not a port of a bridge, so there is no neighbour.
    #[test]
    fn tuning_compares_no_mac_where_the_host_end_is_no_port_of_a_bridge() {
        let host = Host::new();
        let one = host.container();
        let two = host.container();
        let ptp = subject("ptp", json!({"ipam": dual_stack()})).at(host.dir());
        let first = ptp.add(&host, "c-one", &one);
        let second = ptp.add(&host, "c-two", &two);
        let mac = mac_of(&first, "eth0");
        tune(&host, &tuning(&host, Place::RuntimeConfig, &mac), "ADD", ("c-two", &two, &second)).ok();
        assert_eq!(address_of(&two.sh("ip -o link show eth0")), mac);
    }

    #[test]
    fn at_most_one_of_many_concurrent_tunings_to_one_mac_succeeds() {
        let host = Host::new();
        let containers: Vec<Container> = (0..4).map(|_| host.container()).collect();
        let attached = |(n, container): (usize, &Container)| layer2().add(&host, &format!("c-{n}"), container);
        let results: Vec<Value> = containers.iter().enumerate().map(attached).collect();
        let tuned = tuning(&host, Place::RuntimeConfig, MAC);
        for round in 0..12 {
            let outputs: Vec<CallOutput> = thread::scope(|scope| {
                let call = |n: usize| {
                    let tuned = &tuned;
                    let host = &host;
                    let of = (&containers[n], &results[n]);
                    scope.spawn(move || tune(host, tuned, "ADD", (&format!("c-{n}"), of.0, of.1)))
                };
                let running: Vec<_> = (0..containers.len()).map(call).collect();
                running.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let given = outputs.iter().filter(|one| one.exit == 0).count();
            assert!(given <= 1, "round {round}: {outputs:#?}");
            let have = containers.iter().filter(|one| address_of(&one.sh("ip -o link show eth0")) == MAC).count();
            assert_eq!(have, given, "round {round}: the others have their own again");
            for (n, container) in containers.iter().enumerate() {
                tune(&host, &tuned, "DEL", (&format!("c-{n}"), container, &results[n])).ok();
            }
        }
    }

    #[test]
    fn on_one_master_the_kernel_refuses_a_mac_that_a_macvlan_or_the_master_has() {
        let host = Host::new();
        host.sh(MASTER);
        let subject = subject("macvlan", json!({"master": "master0"}));
        let one = host.container();
        let first = subject.with("mac", json!(MAC)).add(&host, "c-one", &one);
        assert_eq!(mac_of(&first, "eth0"), MAC);
        for mac in [MAC, &address_of(&host.sh("ip -o link show master0"))] {
            for place in PLACES {
                let (code, text) = refused(&requesting_mac(&subject, place, mac), &host, &host.container());
                assert!([100, 101].contains(&code), "{code} {text}");
            }
        }
    }
}
