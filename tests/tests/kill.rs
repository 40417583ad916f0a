//! Killed at every system call, at any moment, for want of memory: a DEL leaves nothing.

use std::path::Path;

use cnikit_testkit::campaign::at_most;
use cnikit_testkit::watch::{self, Verdict};
use cnikit_testkit::{Container, Host, Subject, kill};
use cnikit_tests::{apart, bin, harmed, harmed_alone, installed, spoofing_bridge, subject, vlan_bridge};
use serde_json::json;

/// So many calls of a verb, in the short form.
const CALLS: usize = 4;
/// So many moments of each plugin, in the short form; 50 in the whole.
const MOMENTS: usize = 5;
/// So many limits of a verb, in the short form.
const LIMITS: usize = 3;

#[test]
fn loopback_and_host_local_are_killed_at_every_call() {
    ["loopback", "host-local"].iter().for_each(|plugin| drop(kill::at_every_call(&harmed_alone(plugin), CALLS)));
}

fn killed(plugin: &str, backend: &str, bin: &Path) {
    kill::at_every_call(&harmed(plugin, backend, bin), CALLS);
}

#[test]
fn bridge_with_nftables_is_killed_at_every_call() {
    killed("bridge", "nftables", installed());
}

#[test]
fn bridge_with_iptables_is_killed_at_every_call() {
    killed("bridge", "iptables", installed());
}

#[test]
fn bridge_with_mac_spoof_check_is_killed_at_every_call() {
    kill::at_every_call(&spoofing_bridge(), CALLS);
}

#[test]
fn bridge_with_a_vlan_is_killed_at_every_call() {
    vlan_bridge("kill").iter().for_each(|bridge| drop(kill::at_every_call(bridge, CALLS)));
}

#[test]
fn ptp_with_nftables_is_killed_at_every_call() {
    killed("ptp", "nftables", installed());
}

#[test]
fn ptp_with_iptables_is_killed_at_every_call() {
    killed("ptp", "iptables", installed());
}

#[test]
fn bridge_and_its_ipam_plugin_are_killed_at_every_call() {
    killed("bridge", "nftables", apart());
}

#[test]
fn ptp_and_its_ipam_plugin_are_killed_at_every_call() {
    killed("ptp", "nftables", apart());
}

/// How many calls there are to try is what others count too.
#[test]
fn the_calls_of_an_undisturbed_run_are_those_that_strace_sees() {
    let (host, program) = (Host::new(), bin().join("loopback"));
    let (first, second, conf) = (host.container(), host.container(), subject("loopback", json!({})).conf.to_string());
    let env = |container: &Container| {
        let netns = container.path();
        let bin = bin().display().to_string();
        let known = [("COMMAND", "ADD"), ("CONTAINERID", "c-one"), ("NETNS", &netns), ("IFNAME", "lo"), ("PATH", &bin)];
        known.map(|(key, value)| (format!("CNI_{key}"), value.to_owned())).to_vec()
    };
    let watched = host.enter(|| watch::run(&program, &env(&first), conf.as_bytes(), &[], |_| Verdict::GoOn));
    let ours: Vec<String> = watched.unwrap().1.calls().map(|(_, _, number)| watch::name(number)).collect();

    let (input, output) = (host.dir().join("conf"), host.dir().join("calls"));
    std::fs::write(&input, conf).unwrap();
    let set: Vec<String> = env(&second).iter().map(|(key, value)| format!("{key}={value}")).collect();
    let line = format!("setarch -R strace -f -o {} {} <{}", output.display(), program.display(), input.display());
    host.sh(&format!("{} {line}", set.join(" ")));
    let said = std::fs::read_to_string(output).unwrap();
    let name = |line: &str| Some(line.split_whitespace().nth(1)?.split_once('(')?.0.to_owned());
    let theirs: Vec<String> = said.lines().filter_map(name).skip_while(|name| name == "execve").collect();
    assert_eq!(ours, theirs);
}

/// It gives its link the last name in a second step, and forgets the first one on DEL.
const HALF: &str = r"#!/bin/sh
conf=$(cat)
case $CNI_COMMAND in
ADD) ip link add a$CNI_CONTAINERID type bridge && ip link set a$CNI_CONTAINERID name b$CNI_CONTAINERID && echo '{}' ;;
DEL) ip link del b$CNI_CONTAINERID 2>/dev/null || true ;;
esac
";

#[test]
fn a_plugin_that_forgets_what_it_made_half_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let bin = tempfile::tempdir().unwrap();
    std::fs::write(bin.path().join("half"), HALF).unwrap();
    std::fs::set_permissions(bin.path().join("half"), PermissionsExt::from_mode(0o755)).unwrap();
    let half = Subject::new(bin.path(), "half", json!({}));
    let reports = kill::tried_at_every_call(&half, 4 * CALLS, |report| report);
    let found: Vec<String> = reports.into_iter().flat_map(|report| report.findings).collect();
    assert!(found.iter().any(|text| text.contains("left on the host")), "{found:?}");
}

/// Each plugin, alone and with its IPAM plugin in another process.
fn each() -> Vec<Subject> {
    let mut subjects = vec![harmed_alone("loopback"), harmed_alone("host-local")];
    for plugin in ["bridge", "ptp"] {
        subjects.extend([harmed(plugin, "nftables", installed()), harmed(plugin, "nftables", apart())]);
    }
    subjects.push(harmed("bridge", "iptables", installed()));
    subjects
}

#[test]
fn whoever_is_terminated_leaves_nothing_that_a_del_does_not_remove() {
    each().iter().for_each(|subject| drop(kill::at_moments(subject, at_most(MOMENTS).min(50))));
}

#[test]
fn whoever_lacks_memory_or_files_leaves_nothing_that_a_del_does_not_remove() {
    each().iter().for_each(|subject| drop(kill::for_want(subject, LIMITS)));
}
