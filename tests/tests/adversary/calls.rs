//! The input of a call, the namespaces that it may enter, and the environment of the programs that it starts.

use std::path::Path;

use cnikit_testkit::{Host, HostSnapshot};
use cnikit_tests::served::served;
use cnikit_tests::way::{PROGRAMS, on_path, script, scripts};
use cnikit_tests::{bin, flannel, installed, macvlan, traced};
use serde_json::{Value, json};

use crate::actor::as_another_user;
use crate::names::{Scene, refused, with_iptables};
use crate::rows;

/// A foreign IPAM plugin or delegate, which logs its descriptors and returns an address.
fn foreign(dir: &Path, log: &Path) {
    let result = r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}]}"#;
    script(dir, "foreign", &format!("{}; cat >/dev/null; echo '{result}'", noting(log)));
}

/// A shell line that logs all descriptors of a program that it starts, because a redirection would add one of the shell's own.
fn noting(log: &Path) -> String {
    let list = "{fd: os.readlink(\"/proc/self/fd/\" + fd) for fd in os.listdir(\"/proc/self/fd\") if os.path.exists(\"/proc/self/fd/\" + fd)}";
    let lines = format!("[fd + \" \" + target for fd, target in {list}.items()]");
    format!("python3 -Ic 'import os; fds = {lines}; print(*fds, sep=\"\\n\", file=open(\"{}\", \"a\"))'", log.display())
}

/// Each line is descriptor 0, 1 or 2, or one that this very test was started with, and plugins with it.
fn assert_only_stdio(log: &Path, who: &str) {
    let before = tempfile::tempdir().unwrap();
    let before = before.path().join("log");
    Host::new().sh(&noting(&before));
    let before = std::fs::read_to_string(before).unwrap();
    let noted = std::fs::read_to_string(log).unwrap_or_default();
    assert!(noted.lines().count() >= 3, "{who} was started, and noted {noted:?}");
    for line in noted.lines() {
        let (number, target) = line.split_once(' ').unwrap();
        let is_usual = number.parse::<u32>().is_ok_and(|number| number <= 2);
        assert!(is_usual || before.lines().any(|had| had == line), "{who} has got {line}");
        assert!(!target.contains("socket") && !target.contains("net:["), "{who} has got {line}");
    }
}

#[test]
fn a_program_that_a_plugin_starts_inherits_stdin_stdout_and_stderr_alone() {
    for plugin in rows::plugins(14) {
        let host = Host::new();
        let log = tempfile::tempdir().unwrap();
        let programs = host.dir().to_owned();
        let log = log.path().join("log");
        for name in PROGRAMS {
            scripts(&programs, name, &format!("{}; exec /usr/sbin/{name} \"$@\"", noting(&log)));
        }
        let scene = Scene::of(&on_path(&with_iptables(plugin), &programs));
        scene.call("ADD", &scene.conf(), &[]).ok();
        scene.call("DEL", &scene.conf(), &[]).ok();
        assert_only_stdio(&log, &format!("{plugin}'s iptables"));
    }
    for subject in [served("bridge"), served("ptp"), macvlan(), flannel()] {
        let mut scene = Scene::of(&subject);
        let dir = scene.host.dir().to_owned();
        let log = scene.host.dir().join("log");
        foreign(&dir, &log);
        let mut conf = scene.conf();
        if subject.plugin == "flannel" {
            conf["delegate"] = json!({"type": "foreign"});
        } else {
            conf["ipam"] = json!({"type": "foreign"});
        }
        scene.subject.env.push(("CNI_PATH".into(), format!("{}:{}", dir.display(), bin().display())));
        for verb in ["ADD", "DEL"] {
            scene.call(verb, &conf, &[]).ok();
        }
        assert_only_stdio(&log, &format!("{}'s foreign plugin", subject.plugin));
    }
}

/// The calls that open, make or enter a namespace or mount. iptables, which is not ours, is not traced.
const CALLS: &str = "setns,unshare,clone,clone3,mount,umount2,move_mount,open_tree,fsopen,pivot_root,chroot,chdir,fchdir,open,openat,\
    openat2,creat,socket,socketpair,accept,accept4,pipe,pipe2,dup,dup2,dup3,memfd_create,epoll_create1,eventfd2,inotify_init1,pidfd_open";

#[test]
fn a_call_enters_network_namespaces_alone_and_all_its_descriptors_are_closed_on_exec() {
    for plugin in rows::plugins_here(20) {
        let mut scene = Scene::of(&served(plugin));
        let (traced, calls) = traced(&scene.subject, CALLS);
        scene.subject.bin = traced.path().to_owned();
        let result = scene.call("ADD", &scene.conf(), &[]).ok();
        let mut seen = calls();
        let mut conf = scene.conf();
        conf["prevResult"] = result;
        for verb in ["CHECK", "DEL"] {
            scene.call(verb, &conf, &[]).ok();
            seen.extend(calls());
        }
        let enters = ["bridge", "loopback", "macvlan", "ptp", "sbr", "tuning"].contains(&plugin);
        assert!(!enters || seen.iter().any(|call| call.starts_with("setns(")), "{plugin}: {seen:#?}");
        for call in &seen {
            let (name, _) = call.split_once('(').unwrap_or((call, ""));
            let holds = match name {
                "setns" => call.contains("CLONE_NEWNET"),
                "clone" | "clone3" => {
                    call.contains("CLONE_VM") || call.contains("SIGCHLD") || !call.contains("CLONE_NEW")
                }
                "open" | "openat" | "openat2" | "socket" | "socketpair" | "pipe2" | "accept4" | "memfd_create"
                | "epoll_create1" | "eventfd2" | "inotify_init1" => call.contains("CLOEXEC"),
                "pidfd_open" => true, // always closed on exec
                _ => {
                    !call.contains('(')
                        || call.starts_with("---")
                        || call.starts_with("+++")
                        || call.starts_with("<...")
                }
            };
            assert!(holds && !call.contains("CLONE_NEWNS") && !call.contains("ns/mnt"), "{plugin}: {call}");
        }
    }
}

#[test]
fn a_relative_path_of_programs_is_not_searched() {
    for plugin in rows::plugins(18) {
        let scene = Scene::of(&with_iptables(plugin));
        let here = scene.host.dir().join("here");
        std::fs::create_dir(&here).unwrap();
        PROGRAMS.iter().for_each(|name| scene.evil(&here.join(name)));
        std::fs::write(here.join("stdin"), scene.conf().to_string()).unwrap();
        for path in [".", ".:", "", ":", "here:../here", "./.:/usr/sbin"] {
            for verb in ["ADD", "DEL"] {
                scene.host.try_sh(&format!(
                    "cd {} && CNI_COMMAND={verb} CNI_CONTAINERID=c-one CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={bin} PATH='{path}' \
                     {bin}/{plugin} <stdin",
                    here.display(), scene.container.path(), bin = bin().display()
                ));
            }
            scene.assert_nothing_ran(&format!("{plugin} with PATH={path:?}"));
        }
    }
}

#[test]
fn an_empty_entry_of_cni_path_is_not_the_working_directory() {
    for plugin in rows::plugins(17) {
        let scene = Scene::of(&served(plugin));
        let mut conf = scene.conf();
        let key = if plugin == "flannel" { "delegate" } else { "ipam" };
        conf[key]["type"] = json!("evil");
        scene.evil(&scene.host.dir().join("evil"));
        std::fs::write(scene.host.dir().join("stdin"), conf.to_string()).unwrap();
        for path in [":", "::", "/nonexistent:"] {
            let (succeeded, output) = scene.host.try_sh(&format!(
                "cd {} && CNI_COMMAND=ADD CNI_CONTAINERID=c-one CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={path} {}/{plugin} <stdin",
                scene.host.dir().display(), scene.container.path(), bin().display()
            ));
            assert!(!succeeded && output.contains("\"code\""), "{plugin} {path}: {output}");
            scene.assert_nothing_ran(&format!("{plugin} with CNI_PATH={path}"));
        }
    }
}

/// The result of a plugin before this one, or of its own ADD.
fn prev(scene: &Scene) -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": scene.container.path()}],
           "ips": [{"address": "10.77.0.9/24", "interface": 0}]})
}

#[test]
fn cni_netns_is_a_network_namespace_and_not_the_hosts_own() {
    for plugin in rows::plugins(23) {
        let scene = Scene::of(&served(plugin));
        let below = tempfile::tempdir().unwrap(); // no snapshot reads the FIFO
        let dir = below.path().display().to_string();
        scene.host.sh(&format!(
            "mkfifo {dir}/fifo; touch {dir}/file; ln -s /proc/self/ns/net {dir}/link; mkdir {dir}/directory"
        ));
        let before = HostSnapshot::of(&scene.host);
        let below = ["fifo", "file", "directory", "link", "gone"].map(|name| format!("{dir}/{name}"));
        let named = [
            "/dev/zero",
            "/dev/tty",
            "/proc/self/ns/mnt",
            "/proc/self/ns/net",
            "/proc/self/ns",
            "/proc/1",
            "/proc/self/root",
            "\u{1b}",
        ];
        for netns in below.iter().map(String::as_str).chain(named) {
            let path = [("CNI_NETNS", netns)];
            let mut conf = scene.conf();
            conf["prevResult"] = prev(&scene);
            for verb in ["ADD", "CHECK"] {
                let output = scene.call(verb, &conf, &path);
                refused(&output, &format!("{plugin} {verb} of {netns}"));
                let code = output.json()["code"].as_u64().unwrap();
                assert!([3, 4, 8, 100].contains(&code), "{plugin} {verb} of {netns}: {output:?}");
            }
            let output = scene.call("DEL", &scene.conf(), &path);
            assert!(output.exit == 0 || output.json()["code"].is_u64(), "{plugin} DEL of {netns}: {output:?}");
        }
        HostSnapshot::of(&scene.host).assert_unchanged_since(
            &before,
            &["directory: ", "conf/lo", "UP,LOOPBACK"],
            plugin,
        );
    }
}

/// Inputs, and whether each must be refused by every plugin.
fn inputs(conf: &Value) -> Vec<(&'static str, Vec<u8>, bool)> {
    let text = conf.to_string();
    let with = |more: &str| format!("{{{more},{}", &text[1..]).into_bytes();
    let mut not_utf8 = text.replace("\"testnet\"", "\"?\"").into_bytes();
    let at = not_utf8.iter().position(|byte| *byte == b'?').unwrap();
    not_utf8[at] = 0xff;
    let deep = [br#"{"x":"#.as_slice(), &b"[".repeat(100_000), &b"]".repeat(100_000), b"}"].concat();
    let mut long = text.clone().into_bytes();
    long.resize(17 << 20, b' ');
    vec![
        ("17 MB", long, true),
        ("100,000 lists in each other", deep, true),
        ("a name that is not UTF-8", not_utf8, true),
        ("half a surrogate", with(r#""x":"\ud800""#), false),
        ("a huge number", with(r#""x":1e999999999,"mtu":1e999999999,"vlan":1e999999999,"txQLen":1e999999999"#), false),
        ("a number of 100,000 digits", with(&format!(r#""mtu":{}"#, "9".repeat(100_000))), false),
        ("keys twice", with(r#""name":"a","name":"b","ipam":{},"ipam":5,"runtimeConfig":[],"type":"x""#), false),
        ("a zero byte", with(r#""x":"a\u0000b","name":"a\u0000b""#), false),
    ]
}

#[test]
fn no_input_makes_a_plugin_panic_or_print_more_than_one_document() {
    for plugin in rows::plugins(38) {
        let scene = Scene::of(&served(plugin));
        for (what, stdin, has_to_fail) in inputs(&scene.conf()) {
            for verb in ["ADD", "DEL"] {
                let output = scene.subject.call_raw(&scene.host, verb, "c-one", &scene.container.path(), &stdin, &[]);
                let what = format!("{plugin} {verb} with {what}");
                assert!(!output.stderr.contains("panicked"), "{what}: {}", output.stderr);
                match output.exit {
                    0 => assert!(!has_to_fail && (output.stdout.is_empty() || output.json().is_object()), "{what}"),
                    _ => refused(&output, &what),
                }
            }
        }
    }
}

fn tuned(key: &str, value: &str) -> Scene {
    Scene::of(&served("tuning").with("sysctl", json!({key: value.trim()})))
}

/// The written value is the current one, so a sysctl that is wrongly allowed does not change the machine.
#[test]
fn tuning_takes_no_name_of_a_setting_that_leads_out_of_net() {
    let value = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    for key in [
        "kernel.core_pattern",
        "kernel/core_pattern",
        "../kernel/core_pattern",
        "net/../kernel/core_pattern",
        "net.../kernel/core_pattern",
        "net/ipv4/conf/../../../kernel/core_pattern",
        "/proc/sys/kernel/core_pattern",
        "net//../kernel/core_pattern",
        "IFNAME/../kernel/core_pattern",
    ] {
        let scene = tuned(key, &value);
        refused(&scene.call("ADD", &scene.conf(), &[]), key);
    }
}

/// Whether each of these is per namespace depends on the kernel: if it is, only the container's changes.
#[test]
fn tuning_sets_nothing_of_the_whole_machine() {
    let names = [
        "core/rmem_max",
        "core/wmem_max",
        "netfilter/nf_conntrack_max",
        "nf_conntrack_max",
        "ipv4/tcp_mem",
        "ipv4/udp_mem",
    ];
    for name in names {
        let scene = Scene::of(&served("tuning"));
        let read = || scene.host.try_sh(&format!("cat /proc/sys/net/{name}"));
        let before = read();
        let value = before.1.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(1_000_000);
        let mut conf = scene.conf();
        conf["sysctl"] = json!({format!("net/{name}"): (value + 4096).to_string()});
        let output = scene.call("ADD", &conf, &[]);
        assert_eq!(read(), before, "{name}");
        if output.exit != 0 {
            refused(&output, name);
            continue;
        }
        assert!(scene.container.sh(&format!("cat /proc/sys/net/{name}")).starts_with(&(value + 4096).to_string()));
    }
}

#[test]
fn a_plugin_that_another_user_runs_is_refused_by_the_kernel_and_changes_nothing() {
    let open = tempfile::tempdir().unwrap(); // to whom everybody may go
    let dir = open.path().display();
    Host::new().sh(&format!("chmod 755 {dir}; cp {}/bridge {dir}/cni-plugins", bin().display()));
    for plugin in rows::plugins(46) {
        let scene = Scene::of(&served(plugin));
        std::os::unix::fs::symlink("cni-plugins", open.path().join(plugin)).unwrap();
        let stdin = open.path().join("stdin");
        std::fs::write(&stdin, scene.conf().to_string()).unwrap();
        scene.host.sh(&format!("chmod 644 {}", stdin.display()));
        let before = HostSnapshot::of(&scene.host);
        let inside = HostSnapshot::inside(&scene.container);
        for verb in ["ADD", "DEL", "GC"] {
            let call = format!(
                "CNI_COMMAND={verb} CNI_CONTAINERID=c-one CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={dir} {dir}/{plugin} <{dir}/stdin",
                scene.container.path()
            );
            let (succeeded, output) = scene.host.try_sh(&as_another_user(&call));
            let is_pure = plugin == "static" && verb != "GC"; // it only returns its input
            assert!(succeeded || output.contains("\"code\""), "{plugin} {verb}: {output}");
            assert!(verb != "ADD" || succeeded == is_pure, "{plugin} {verb}: {output}");
        }
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], plugin);
        HostSnapshot::inside(&scene.container).assert_unchanged_since(&inside, &[], plugin);
    }
}

/// Accepted or refused, and soon: a documented limit may refuse any verb except DEL.
#[test]
fn a_hundred_and_fifty_thousand_addresses_in_prev_result_are_fast() {
    // Written once, and put into the text of each configuration.
    let address = |n: u32| format!(r#"{{"address":"10.{}.{}.{}/8","interface":0}}"#, n >> 16, n >> 8 & 255, n & 255);
    let ips: Vec<String> = (0..150_000).map(address).collect();
    let ips = format!("[{}]", ips.join(","));
    for plugin in rows::plugins_here(39) {
        let mut scene = Scene::of(&served(plugin));
        scene.subject.bin = installed().to_owned();
        let mut conf = scene.conf();
        conf["prevResult"] = prev(&scene);
        conf["prevResult"]["ips"] = json!("IPS");
        let stdin = conf.to_string().replacen("\"IPS\"", &ips, 1).into_bytes();
        let is_chained = ["bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"].contains(&plugin);
        for verb in ["ADD", "CHECK", "DEL"].into_iter().skip(if is_chained { 0 } else { 2 }) {
            let begun = std::time::Instant::now();
            let output = scene.subject.call_raw(&scene.host, verb, "c-one", &scene.container.path(), &stdin, &[]);
            // 2 s at most on an idle machine.
            assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{plugin} {verb}: {:?}", begun.elapsed());
            assert!(!output.stderr.contains("panicked"), "{plugin} {verb}: {}", output.stderr);
            if verb == "DEL" {
                output.ok();
            } else if output.exit != 0 {
                refused(&output, &format!("{plugin} {verb}"));
                assert!(output.stdout.len() < 100_000, "{plugin} {verb}: an error of {} bytes", output.stdout.len());
            }
        }
    }
}
