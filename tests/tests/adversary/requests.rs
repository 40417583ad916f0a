//! MACs and addresses that a tenant requests by runtimeConfig, `args` and `CNI_ARGS`.

use cnikit_testkit::{HostSnapshot, Subject};
use cnikit_tests::served::served;
use cnikit_tests::subject;
use serde_json::{Value, json};

use crate::names::{Scene, refused};
use crate::rows;

/// Configurations and variables with this request: one for each way to make it.
fn asking(conf: &Value, capability: (&str, Value), variable: &str) -> Vec<(Value, Option<String>)> {
    let (key, value) = capability;
    let [mut runtime, mut args] = [conf.clone(), conf.clone()];
    runtime["runtimeConfig"] = json!({key: value});
    args["args"] = json!({"cni": {key: value}});
    vec![(runtime, None), (args, None), (conf.clone(), Some(variable.to_owned()))]
}

fn assert_refused(scene: &Scene, ways: Vec<(Value, Option<String>)>, what: &str) {
    for (conf, variable) in ways {
        let env: Vec<_> = variable.iter().map(|args| ("CNI_ARGS", args.as_str())).collect();
        refused(&scene.call("ADD", &conf, &env), &format!("{what}: {variable:?} {conf}"));
    }
}

#[test]
fn a_requested_mac_that_is_multicast_or_zero_is_refused() {
    for plugin in rows::plugins(33) {
        let scene = Scene::of(&served(plugin));
        let before = HostSnapshot::of(&scene.host);
        let inside = HostSnapshot::inside(&scene.container);
        let mut conf = scene.conf();
        conf.as_object_mut().unwrap().remove("mac");
        for mac in [
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "33:33:00:00:00:01",
            "01:80:c2:00:00:00",
            "00:00:00:00:00:00",
            "02:00:00:00:00",
            "x",
        ] {
            let mut ways = asking(&conf, ("mac", json!(mac)), &format!("MAC={mac}"));
            if plugin == "tap" {
                ways.remove(1); // it does not read `args`
            }
            assert_refused(&scene, ways, &format!("{plugin} {mac}"));
        }
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &["leases"], plugin);
        HostSnapshot::inside(&scene.container).assert_unchanged_since(&inside, &[], plugin);
    }
}

/// Each plugin that delegates to host-local, and host-local itself.
fn with_addresses(plugin: &str) -> Subject {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24", "rangeEnd": "10.77.0.99"}]]});
    match plugin {
        "host-local" => subject("host-local", json!({"ipam": ipam})),
        _ => served(plugin).with("ipam", ipam),
    }
}

#[test]
fn a_requested_address_of_host_local_is_free_and_in_its_range() {
    for plugin in rows::plugins(35) {
        let scene = Scene::of(&with_addresses(plugin));
        let other = scene.subject.container(&scene.host);
        // Many kernels lack these, and one VLAN of a master is for one container.
        let is_alone = ["dummy", "ipvlan", "tap", "vlan"].contains(&plugin);
        if !is_alone {
            let result = scene.subject.call(&scene.host, "ADD", "c-other", &other.path(), &[]).ok();
            assert_eq!(result["ips"][0]["address"], "10.77.0.2/24", "{plugin}");
        }
        let taken = if is_alone { "10.77.0.1" } else { "10.77.0.2" };
        let conf = scene.conf();
        // The gateway, the network address, broadcast, reserved, behind the range's end, of another subnet, of a family without
        // range.
        for address in [
            "10.77.0.1",
            "10.77.0.0",
            "10.77.0.255",
            taken,
            "10.77.0.100",
            "8.8.8.8",
            "127.0.0.1",
            "fd00:77::5",
            "0.0.0.0",
        ] {
            let mut ways = asking(&conf, ("ips", json!([address])), &format!("IP={address}"));
            if plugin != "host-local" {
                ways.truncate(2); // interface plugins do not accept IP in CNI_ARGS
            }
            assert_refused(&scene, ways, &format!("{plugin} {address}"));
        }
    }
}
