//! Names that are more than names: of networks, containers, interfaces, plugins, chains; and words that become rules.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cnikit_testkit::life::SHARED;
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{firewall, publishing};
use cnikit_tests::dnsmasq::Dnsmasq;
use cnikit_tests::lease_daemon::{LeaseDaemon, dhcp_servers};
use cnikit_tests::served::served;
use cnikit_tests::{bin, flannel, program};
use serde_json::{Value, json};

use crate::rows;

/// A host with a plugin, a container, and a program that must never run.
pub(crate) struct Scene {
    pub(crate) host: Host,
    pub(crate) container: Container,
    pub(crate) subject: Subject,
    ran: PathBuf,
    /// What else the plugin needs.
    _servers: Option<(Dnsmasq, LeaseDaemon)>,
}

impl Scene {
    pub(crate) fn of(subject: &Subject) -> Scene {
        let host = subject.host();
        let container = subject.container(&host);
        let subject = subject.at(host.dir());
        let ran = host.dir().join("ran");
        let servers = (subject.plugin == "dhcp").then(|| dhcp_servers(&host, &container));
        Scene { host, container, subject, ran, _servers: servers }
    }

    /// Our plugins in `plugins`, an attacker's plugin at `evil` in the parent directory, and one in `plugins/sub`.
    fn with_evil(subject: &Subject) -> Scene {
        let mut scene = Scene::of(subject);
        let plugins = scene.host.dir().join("plugins");
        std::fs::create_dir_all(plugins.join("sub")).unwrap();
        for name in cnikit_tests::NAMES {
            std::os::unix::fs::symlink(bin().join(name), plugins.join(name)).unwrap();
        }
        scene.evil(&scene.host.dir().join("evil"));
        scene.evil(&plugins.join("sub/evil"));
        scene.subject.bin = plugins;
        scene
    }

    /// A program that creates a file when it is run.
    pub(crate) fn evil(&self, file: &Path) {
        std::fs::write(file, format!("#!/bin/sh\necho \"$0 $*\" >>{}\n", self.ran.display())).unwrap();
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[track_caller]
    pub(crate) fn assert_nothing_ran(&self, when: &str) {
        assert!(!self.ran.exists(), "{when}: {}", std::fs::read_to_string(&self.ran).unwrap_or_default());
    }

    pub(crate) fn call(&self, verb: &str, conf: &Value, more: &[(&str, &str)]) -> CallOutput {
        let stdin = conf.to_string().into_bytes();
        self.subject.call_raw(&self.host, verb, "c-one", &self.container.path(), &stdin, more)
    }

    /// The configuration of a call, with all that is particular to this container.
    pub(crate) fn conf(&self) -> Value {
        let mut conf = self.subject.conf.clone();
        if let Some(after) = &self.subject.after {
            conf["prevResult"] = after.result.clone();
            conf["prevResult"]["cniVersion"] = conf["cniVersion"].clone();
        }
        let text = conf.to_string().replace("$NETNS", &self.container.path());
        serde_json::from_str(&text).unwrap()
    }

    /// A shell line on the host under which its programs are this test's.
    fn try_sh(&self, line: &str) -> (bool, String) {
        self.host.try_sh(line)
    }
}

/// It failed with one error object, whose text has no control character that a terminal would execute.
#[track_caller]
pub(crate) fn refused(output: &CallOutput, what: &str) {
    assert!(output.exit == 1 && !output.stderr.contains("panicked"), "{what}: {output:?}");
    assert!(output.json()["code"].as_u64().is_some_and(|code| code > 0), "{what}: {output:?}");
    assert!(!output.stdout.trim_end().contains(|c: char| c < ' ' && c != '\n'), "{what}: {output:?}");
}

const TYPES: [&str; 8] = ["../evil", "sub/evil", "./sub/evil", "/evil", ".", "..", "ev\0il", "-evil"];

/// By the IPAM plugin, the delegate, and by a chain's plugins.
#[test]
fn a_type_is_a_name_and_never_a_path_cve_2021_20206() {
    for plugin in rows::plugins(10) {
        let scene = Scene::with_evil(&served(plugin));
        let before = HostSnapshot::of(&scene.host);
        let inside = HostSnapshot::inside(&scene.container);
        let absolute = scene.host.dir().join("evil").display().to_string();
        for name in TYPES.into_iter().chain([absolute.as_str()]) {
            let mut conf = scene.conf();
            let key = if plugin == "flannel" { "delegate" } else { "ipam" };
            conf[key]["type"] = json!(name);
            for verb in ["ADD", "CHECK", "DEL", "STATUS"] {
                let output = scene.call(verb, &conf, &[]);
                // DEL and CHECK of flannel use the configuration that ADD stored, and this ADD failed.
                if plugin != "flannel" || verb == "ADD" {
                    refused(&output, &format!("{plugin} {verb} of {name:?}"));
                }
                scene.assert_nothing_ran(&format!("{plugin} {verb} of {name:?}"));
            }
        }
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &["directory: flannel"], plugin);
        HostSnapshot::inside(&scene.container).assert_unchanged_since(&inside, &[], plugin);
    }
}

#[test]
fn flannel_delegates_to_no_path_and_not_to_itself() {
    for name in ["../evil", "sub/evil", "flannel"] {
        let scene = Scene::with_evil(&flannel().with("delegate", json!({"type": name})));
        refused(&scene.call("ADD", &scene.conf(), &[]), name);
        scene.assert_nothing_ran(name);
        assert!(!scene.host.sh("ip -o link").contains("cni0"));
    }
}

/// Texts that cannot be the name of a network or the id of a container.
const NO_NAMES: [&str; 14] = [
    "../x",
    "../../../../tmp/x",
    "a/b",
    "a\nb",
    "a\r\nb",
    "$(touch ran)",
    "`touch ran`",
    "a;b",
    "a|b",
    "\u{e9}",
    "\u{202e}a",
    ".",
    "..",
    "-a",
];

/// Also where prevResult, the namespace or both are missing: those forms of DEL are served otherwise.
#[test]
fn invalid_network_names_and_ids_are_refused_by_every_plugin() {
    for plugin in rows::plugins(12) {
        let scene = Scene::of(&served(plugin));
        let before = HostSnapshot::of(&scene.host);
        for name in NO_NAMES {
            let mut named = scene.conf();
            named["name"] = json!(name);
            named["cni.dev/valid-attachments"] = json!([]);
            let verbs = if name == "../x" { &["ADD", "CHECK", "DEL", "GC", "STATUS"][..] } else { &["ADD", "DEL"] };
            for verb in verbs {
                refused(&scene.call(verb, &named, &[]), &format!("{plugin} {verb}, network {name:?}"));
            }
            for verb in verbs.iter().filter(|verb| !["GC", "STATUS"].contains(verb)) {
                let id = [("CNI_CONTAINERID", name)];
                refused(&scene.call(verb, &scene.conf(), &id), &format!("{plugin} {verb}, container {name:?}"));
            }
        }
        let bare = json!({"cniVersion": "1.1.0", "name": "../x", "type": plugin});
        refused(&scene.call("DEL", &bare, &[("CNI_NETNS", "")]), &format!("{plugin} DEL, bare"));
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], plugin);
    }
}

#[test]
fn an_invalid_interface_name_is_refused_by_every_plugin() {
    for plugin in rows::plugins(13) {
        let scene = Scene::of(&served(plugin));
        let before = HostSnapshot::of(&scene.host);
        for name in ["eth%d", ".", "..", "\u{1b}[2Jx", "a\nb", "a b", "a/b", "a:b", "sixteen-bytes-xx", "\u{7f}x"] {
            for verb in ["ADD", "DEL"] {
                let output = scene.call(verb, &scene.conf(), &[("CNI_IFNAME", name)]);
                refused(&output, &format!("{plugin} {verb}, interface {name:?}"));
            }
        }
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], plugin);
    }
}

/// The kernel has settings under two of these names, and a link under the third.
#[test]
fn an_interface_is_not_called_all_default_or_lo() {
    for plugin in ["bridge", "ptp", "macvlan", "flannel"] {
        let scene = Scene::of(&served(plugin));
        let before = HostSnapshot::of(&scene.host);
        let inside = HostSnapshot::inside(&scene.container);
        for name in ["all", "default", "lo"] {
            let ifname = [("CNI_IFNAME", name)];
            refused(&scene.call("ADD", &scene.conf(), &ifname), &format!("{plugin} {name}"));
            scene.call("DEL", &scene.conf(), &ifname).ok();
            HostSnapshot::inside(&scene.container).assert_unchanged_since(&inside, &[], &format!("{plugin} {name}"));
        }
        let left = HostSnapshot::of(&scene.host).added_since(&before, &SHARED);
        assert!(left.is_empty(), "{plugin}: {left:#?}");
    }
}

/// The subject with rules of iptables.
pub(crate) fn with_iptables(plugin: &str) -> Subject {
    match plugin {
        "firewall" => firewall(bin(), "iptables"),
        "portmap" => publishing(bin(), "iptables"),
        _ => served(plugin).with("ipMasqBackend", json!("iptables")).with("macspoofchk", json!(plugin == "bridge")),
    }
}

/// The environment is bytes, so the call is a shell's.
#[test]
fn an_interface_of_any_bytes_gets_its_rules_of_iptables_and_loses_them() {
    for plugin in rows::plugins(14) {
        for name in ["a\"b", "a'\\''b\\\\", "-j", "eth+", "a;b", "$x", "a\\377b", "!eth0"] {
            let scene = Scene::of(&with_iptables(plugin));
            scene.call("ADD", &scene.conf(), &[]).ok();
            let rules = "for of in iptables ip6tables; do $of-save -t nat; $of-save -t filter; done | grep -v '^#' | sed 's/\\[.*//'";
            let before = scene.host.sh(rules);
            let file = scene.host.dir().join("stdin");
            std::fs::write(&file, scene.conf().to_string()).unwrap();
            let call = |verb: &str| {
                format!(
                    "CNI_COMMAND={verb} CNI_CONTAINERID=c-two CNI_NETNS={} CNI_IFNAME=\"$(printf %b '{name}')\" CNI_PATH={bin} {bin}/{plugin} <{}",
                    scene.container.path(),
                    file.display(),
                    bin = bin().display()
                )
            };
            let (added, output) = scene.try_sh(&call("ADD"));
            if !added {
                let error: Value =
                    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{name}: {error}: {output}"));
                assert!(error["code"].as_u64().is_some(), "{plugin} {name}: {error}");
            }
            scene.host.sh(&call("DEL"));
            assert_eq!(scene.host.sh(rules), before, "{plugin} {name}");
        }
    }
}

#[test]
fn an_id_of_4001_bytes_is_served_and_leaves_nothing() {
    let id = "c".repeat(4001);
    for plugin in rows::plugins_here(15) {
        let more = rows::plugins(14).contains(&plugin).then(|| with_iptables(plugin));
        for subject in [served(plugin)].into_iter().chain(more) {
            let scene = Scene::of(&subject);
            let before = HostSnapshot::of(&scene.host);
            let own = [("CNI_CONTAINERID", id.as_str())];
            let result = scene.call("ADD", &scene.conf(), &own).ok();
            let mut conf = scene.conf();
            conf["prevResult"] = result;
            scene.call("CHECK", &conf, &own).ok();
            for _ in 0..2 {
                scene.call("DEL", &conf, &own).ok();
            }
            let left = HostSnapshot::of(&scene.host).added_since(&before, &SHARED);
            assert!(left.is_empty(), "{plugin}: {left:#?}");
        }
    }
}

/// Values that would become rules if they were passed on unchanged: each adds or names `192.0.2.66`.
fn words_that_are_rules() -> Vec<(&'static str, &'static str, Value)> {
    let mut table = Vec::new();
    let mapping = |key: &str, value: &str| {
        let mut mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        mapping[key] = json!(value);
        json!({"portMappings": [mapping]})
    };
    for evil in ["tcp -s 192.0.2.66", "tcp\n-A INPUT -s 192.0.2.66 -j ACCEPT", "all", "tcp; add rule ip nat x", "-j"] {
        table.push(("portmap", "runtimeConfig", mapping("protocol", evil)));
    }
    for evil in
        ["10.0.0.1 -s 192.0.2.66", "0.0.0.0/0", "10.0.0.1\n-A INPUT -s 192.0.2.66", "192.0.2.66 accept", "!10.0.0.1"]
    {
        table.push(("portmap", "runtimeConfig", mapping("hostIP", evil)));
    }
    for evil in ["X -s 192.0.2.66", "X\n-A INPUT -s 192.0.2.66 -j ACCEPT", "-X", "ACCEPT --x", "a b"] {
        table.push(("portmap", "externalSetMarkChain", json!(evil)));
        table.push(("firewall", "iptablesAdminChainName", json!(evil)));
    }
    for evil in [vec!["-j", "ACCEPT"], vec!["-A", "INPUT"], vec!["-s", "192.0.2.66\n-A INPUT"], vec!["-t", "filter"]] {
        table.push(("portmap", "conditionsV4", json!(evil)));
    }
    table
}

#[test]
fn no_word_of_a_configuration_becomes_a_rule_of_its_own() {
    for (plugin, key, value) in words_that_are_rules() {
        for backend in ["iptables", "nftables"] {
            let subject = match plugin {
                "portmap" => publishing(bin(), backend),
                _ => firewall(bin(), backend),
            };
            let scene = Scene::of(&subject.with(key, value.clone()));
            let before = HostSnapshot::of(&scene.host);
            let output = scene.call("ADD", &scene.conf(), &[]);
            // A key of the other backend is ignored.
            if output.exit != 0 {
                refused(&output, &format!("{plugin} {backend} {key}: {value}"));
                HostSnapshot::of(&scene.host).assert_unchanged_since(
                    &before,
                    &SHARED,
                    &format!("{plugin} {backend} {key}: {value}"),
                );
            }
            assert!(output.exit != 0 || backend == "nftables", "{plugin} {backend} {key}: {value}");
            let rules = scene.host.sh("iptables-save; ip6tables-save; nft list ruleset");
            assert!(!rules.contains("192.0.2.66") && !rules.contains("-A INPUT"), "{key}: {value}: {rules}");
        }
    }
    for key in ["ipMasqBackend", "bridge"] {
        let scene = Scene::of(&served("bridge").with(key, json!("x -j ACCEPT")));
        refused(&scene.call("ADD", &scene.conf(), &[]), key);
    }
}

/// Names as Kubernetes' runtimes use them, which every plugin has to accept.
#[test]
fn hostile_args_of_kubernetes_and_very_many_change_nothing() {
    let hostile = "IgnoreUnknown=1;K8S_POD_NAMESPACE=../../x;K8S_POD_NAME=$(touch ran);K8S_POD_INFRA_CONTAINER_ID=\u{1b}[2J;K8S_POD_UID=`id`";
    let many = format!("IgnoreUnknown=1;K8S_POD_NAME={}", "x".repeat(100_000));
    let pairs = format!("IgnoreUnknown=1{}", ";A=b".repeat(25_000));
    for plugin in rows::plugins_here(37) {
        let scene = Scene::of(&served(plugin));
        let before = HostSnapshot::of(&scene.host);
        for args in [hostile, &many, &pairs] {
            let args = [("CNI_ARGS", args)];
            let result = scene.call("ADD", &scene.conf(), &args).ok();
            let mut conf = scene.conf();
            conf["prevResult"] = result;
            scene.call("CHECK", &conf, &args).ok();
            scene.call("DEL", &conf, &args).ok();
        }
        let left = HostSnapshot::of(&scene.host).added_since(&before, &SHARED);
        assert!(left.is_empty(), "{plugin}: {left:#?}");
    }
}

/// cnitool, whose chains name plugins too.
#[test]
fn a_chain_names_plugins_and_no_paths_cve_2021_20206() {
    let scene = Scene::with_evil(&served("bridge"));
    let dir = scene.host.dir().display();
    for name in TYPES.into_iter().filter(|name| !name.contains('\0')) {
        let conf = json!({"cniVersion": "1.0.0", "name": "evilnet", "plugins": [{"type": name}]});
        std::fs::write(scene.host.dir().join("evil.conflist"), conf.to_string()).unwrap();
        for verb in ["add", "check", "del"] {
            let (_, output) = scene.try_sh(&format!(
                "CNI_PATH={dir}/plugins NETCONFPATH={dir} CNI_CACHE_DIR={dir}/cache {} {verb} evilnet {}",
                program("cnitool").display(),
                scene.container.path()
            ));
            scene.assert_nothing_ran(&format!("{verb} {name}: {output}"));
        }
    }
}
