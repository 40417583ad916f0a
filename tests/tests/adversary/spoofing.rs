//! A container sends frames under the MAC or the address of another one.

use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::{subject, written_down};
use serde_json::{Value, json};

use crate::actor::{BROADCAST, DOT1AD, DOT1Q, Ear, ethernet, mac, send, with_net_admin};

/// The interface of the container, as a result lists it.
fn mac_of(result: &Value) -> String {
    result["interfaces"][2]["mac"].as_str().unwrap().to_owned()
}

/// Experiment 5, with the control that the same frames arrive without the key.
#[test]
fn frames_under_anothers_mac_are_dropped_tagged_or_not() {
    for macspoofchk in [true, false] {
        let host = Host::new();
        let [victim, attacker] = [host.container(), host.container()];
        let subject = subject("bridge", json!({"macspoofchk": macspoofchk}));
        let results = [("c-victim", &victim), ("c-attacker", &attacker)].map(|(id, one)| subject.add(&host, id, one));
        let [stolen, own] = results.map(|result| mac(&mac_of(&result)));
        let ears = [(); 2].map(|()| Ear::of(victim.netns()));
        let tags: [&[(u16, u16)]; 5] =
            [&[], &[(DOT1Q, 5)], &[(DOT1AD, 5)], &[(DOT1AD, 5), (DOT1Q, 6)], &[(DOT1Q, 0), (DOT1Q, 0)]];
        let under = |from, text: &[u8]| tags.map(|tags| ethernet(BROADCAST, from, tags, 0x88b5, text));
        send(&attacker, "eth0", &[under(stolen, b"under a stolen MAC"), under(own, b"under its own MAC")].concat());
        let heard = [ears[0].heard(b"under a stolen MAC"), ears[1].heard(b"under its own MAC")];
        let stolen_arrive = if macspoofchk { 0 } else { tags.len() };
        assert_eq!(heard, [stolen_arrive, tags.len()], "macspoofchk {macspoofchk}");
    }
}

mod restore {
    use super::*;

    /// Restores the rules of a container whose result has this version. Returns the error, if there is one.
    fn restored(subject: &Subject, host: &Host, container: &Container, result: &Value) -> Option<String> {
        let output = subject.call(host, "RESTORE", "c-one", &container.path(), &[("prevResult", result.clone())]);
        if output.exit == 0 { None } else { Some(output.refused().1) }
    }

    fn flush(host: &Host) {
        host.sh("nft flush ruleset");
    }

    /// Experiment 7: a container with `NET_ADMIN` changes its MAC, the rules are flushed, and RESTORE puts them back.
    #[test]
    fn restore_lets_no_mac_in_that_the_container_gave_itself() {
        let other = "02:00:00:00:66:66";
        for version in ["0.2.0", "1.0.0"] {
            let host = Host::new();
            let container = Host::new().container();
            let subject = subject("bridge", json!({"macspoofchk": true, "cniVersion": version}));
            let result = subject.add(&host, "c-one", &container);
            let own = container.sh("ip -o link show eth0 | grep -o 'ether [^ ]*'").trim()[6..].to_owned();
            flush(&host);
            assert_eq!(restored(&subject, &host, &container, &result), None, "{version}: with its own MAC");
            assert!(host.sh("nft list ruleset").contains(&format!("ether saddr {own} return")), "{version}");

            container.sh(&with_net_admin(&format!("ip link set eth0 address {other}")));
            flush(&host);
            let refused = restored(&subject, &host, &container, &result);
            let rules = host.sh("nft list ruleset");
            assert!(!rules.contains(other), "{version}: {rules}");
            // The port is guarded whether RESTORE succeeds or not.
            assert!(rules.contains(&format!("ether saddr {own} return")), "{version}: {rules}");
            if version == "0.2.0" {
                let text = refused.unwrap();
                assert!(text.contains(other) && text.contains(&own), "the error names both: {text}");
            } else {
                assert_eq!(refused, None, "the result records the right MAC");
            }
            subject.del(&host, "c-one", &container, &result);
        }
    }

    /// A container with two interfaces and `NET_ADMIN` renames the guarded one, and may give its name to the other one.
    #[test]
    fn restore_guards_the_port_of_an_interface_that_the_container_renamed() {
        let swap = "ip link set eth0 down; ip link set eth0 name eth9; ip link set eth9 up";
        let with_other = "ip link set net1 down; ip link set net1 name eth0; ip link set eth0 up";
        for renaming in [swap.to_owned(), format!("{swap}; {with_other}")] {
            let host = Host::new();
            let container = Host::new().container();
            let guarded = subject("bridge", json!({"macspoofchk": true, "ipspoofchk": true, "ipam": written_down()}));
            let other = subject("bridge", json!({"name": "other", "bridge": "cni1"}));
            let result = guarded.add(&host, "c-one", &container);
            let mut env = other.clone();
            env.env.push(("CNI_IFNAME".to_owned(), "net1".to_owned()));
            env.add(&host, "c-one", &container);
            let port = result["interfaces"][1]["name"].as_str().unwrap();
            container.sh(&with_net_admin(&renaming));
            flush(&host);
            restored(&guarded, &host, &container, &result);
            let rules = host.sh("nft list ruleset");
            for key in ["macspoofchk", "ipspoofchk"] {
                let lead = format!("iifname \"{port}\" jump");
                let guards = rules.lines().filter(|line| line.contains(&lead) && line.contains(&format!("\"{key}-")));
                assert_eq!(guards.count(), 1, "{key}: {renaming}: {rules}");
            }
            guarded.del(&host, "c-one", &container, &result);
            assert!(!host.sh("nft list ruleset").contains(port), "{renaming}");
        }
    }

    #[test]
    fn restore_takes_a_requested_mac_where_the_result_records_none() {
        let host = Host::new();
        let container = Host::new().container();
        let keys = json!({"macspoofchk": true, "cniVersion": "0.2.0", "runtimeConfig": {"mac": "02:00:00:00:00:07"}});
        let subject = subject("bridge", keys);
        let result = subject.add(&host, "c-one", &container);
        flush(&host);
        assert_eq!(restored(&subject, &host, &container, &result), None);
        assert!(host.sh("nft list ruleset").contains("ether saddr 02:00:00:00:00:07 return"));
    }

    /// tuning changed the MAC after bridge; the result of the whole chain records the change.
    #[test]
    fn restore_takes_the_mac_that_a_later_plugin_has_recorded() {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject("bridge", json!({"macspoofchk": true, "cniVersion": "1.0.0"}));
        let mut result = subject.add(&host, "c-one", &container);
        let first = mac_of(&result);
        container.sh("ip link set eth0 address 02:00:00:00:00:09");
        result["interfaces"][2]["mac"] = json!("02:00:00:00:00:09");
        flush(&host);
        assert_eq!(restored(&subject, &host, &container, &result), None);
        let rules = host.sh("nft list ruleset");
        assert!(rules.contains("ether saddr 02:00:00:00:00:09 return") && !rules.contains(&first), "{rules}");
    }
}

/// Experiment 4: frames to 01:80:c2:00:00:00 to 0f, from which the bridge learns before any rule sees them.
mod link_local_groups {
    use super::*;

    /// A neighbour that sends to the victim, and the attacker, all on one bridge with macspoofchk.
    struct Scene {
        host: Host,
        neighbour: Container,
        victim: Container,
        attacker: Container,
        /// Of each of them.
        macs: [[u8; 6]; 3],
        /// CHECK and RESTORE of the victim: their output.
        check: Call,
        restore: Call,
    }

    type Call = Box<dyn Fn(&Host, &Container) -> String>;

    impl Scene {
        /// The bridge is there before the first ADD if `ground` makes it.
        fn on(ground: &str) -> Scene {
            let host = Host::new();
            host.sh(ground);
            let subject = subject("bridge", json!({"macspoofchk": true}));
            let containers = [host.container(), host.container(), host.container()];
            // Otherwise the kernel's own IPv6 messages could make the bridge learn the victim's port again at any moment.
            for container in &containers {
                container.sh("for l in all default; do echo 1 > /proc/sys/net/ipv6/conf/$l/disable_ipv6; done");
            }
            let results = [0, 1, 2].map(|n| subject.add(&host, &format!("c-{n}"), &containers[n]));
            let macs = [0, 1, 2].map(|n| mac(&mac_of(&results[n])));
            let [neighbour, victim, attacker] = containers;
            let call = |verb: &'static str| -> Call {
                let subject = subject.clone();
                let result = results[1].clone();
                Box::new(move |host, victim| {
                    subject.call(host, verb, "c-1", &victim.path(), &[("prevResult", result.clone())]).stdout
                })
            };
            let [check, restore] = ["CHECK", "RESTORE"].map(call);
            Scene { host, neighbour, victim, attacker, macs, check, restore }
        }

        /// Sends one frame to each of the groups under the victim's MAC; the victim spoke before.
        fn attack(&self) {
            let [_, victim, _] = self.macs;
            send(&self.victim, "eth0", &[ethernet(BROADCAST, victim, &[], 0x88b5, b"here i am")]);
            let group = |last: u8| ethernet([0x01, 0x80, 0xc2, 0, 0, last], victim, &[], 0x88b5, b"spoofed");
            send(&self.attacker, "eth0", &(0..16).map(group).collect::<Vec<_>>());
        }

        /// Of ten frames from the neighbour to the victim: how many reach the victim, and how many the attacker.
        fn arrive(&self) -> (usize, usize) {
            let [neighbour, victim, _] = self.macs;
            let ears = [&self.victim, &self.attacker].map(|one| Ear::of(one.netns()));
            let frame = ethernet(victim, neighbour, &[], 0x88b5, b"to the victim");
            send(&self.neighbour, "eth0", &vec![frame; 10]);
            let [at_victim, at_attacker] = ears.map(|ear| ear.heard(b"to the victim"));
            (at_victim, at_attacker)
        }
    }

    #[test]
    fn a_victim_receives_its_traffic_on_a_created_or_adopted_bridge() {
        for ground in [":", "ip link add cni0 type bridge && ip link set cni0 up"] {
            let scene = Scene::on(ground);
            scene.attack();
            assert_eq!(scene.arrive(), (10, 0), "{ground}: {}", scene.host.sh("bridge fdb show br cni0"));
            assert_eq!((scene.check)(&scene.host, &scene.victim), "", "{ground}");
        }
    }

    /// The control: the attack succeeds where the bridge learns from these groups. CHECK reports the option.
    #[test]
    fn without_the_option_the_attacker_gets_all_of_it() {
        let scene = Scene::on(":");
        scene.host.sh("ip link set cni0 type bridge no_linklocal_learn 0");
        scene.attack();
        assert_eq!(scene.arrive(), (0, 10));
        let output = (scene.check)(&scene.host, &scene.victim);
        assert!(output.contains("no_linklocal_learn of cni0: wanted 1, found 0"), "{output}");
        (scene.restore)(&scene.host, &scene.victim);
        scene.attack();
        assert_eq!(scene.arrive(), (10, 0), "after RESTORE");
        assert_eq!((scene.check)(&scene.host, &scene.victim), "");
    }

    /// A bridge of another program that no network with macspoofchk uses keeps its setting.
    #[test]
    fn an_adopted_bridge_is_left_alone_without_macspoofchk() {
        let host = Host::new();
        let container = Host::new().container();
        host.sh("ip link add cni0 type bridge");
        let option = || host.sh("ip -d link show cni0 | grep -o 'no_linklocal_learn [01]'").trim().to_owned();
        subject("bridge", json!({})).add(&host, "c-one", &container);
        assert_eq!(option(), "no_linklocal_learn 0");
        subject("bridge", json!({"macspoofchk": true})).add(&host, "c-two", &host.container());
        assert_eq!(option(), "no_linklocal_learn 1");
    }
}
