//! DEL returns as soon as the kernel has unregistered a link: what the next ADD finds, and who reaps the child that waits.

use std::thread;

use cnikit_testkit::{Host, Subject};
use cnikit_tests::campaign_subjects::shaped;
use cnikit_tests::{bin, bridge, installed, macvlan, ptp, tap, traced};
use serde_json::{Value, json};

/// host-local with one address per container: whoever gets it had to wait until it was free.
fn with_addresses_for(containers: u8) -> Subject {
    let range = json!([{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": format!("10.77.0.{}", 1 + containers)}]);
    bridge().with("ipam", json!({"type": "host-local", "ranges": [range]}))
}

#[test]
fn the_next_add_gets_the_only_address_at_once() {
    let host = Host::new();
    let container = host.container();
    let subject = with_addresses_for(1).at(host.dir());
    for _ in 0..30 {
        let result = subject.add(&host, "c-one", &container);
        host.sh("ping -c 1 -W 2 10.77.0.2");
        subject.del(&host, "c-one", &container, &result);
        assert_eq!(host.sh("ip -o link show type veth"), "");
    }
}

#[test]
fn links_that_are_deleted_at_once_are_gone_when_their_calls_have_returned() {
    let host = Host::new();
    let containers: Vec<_> = (0..16).map(|_| host.container()).collect();
    let subject = with_addresses_for(16).at(host.dir());
    for _ in 0..3 {
        let attach = |(n, container)| (format!("c-{n}"), container, subject.add(&host, &format!("c-{n}"), container));
        let attached: Vec<_> = containers.iter().enumerate().map(attach).collect();
        thread::scope(|scope| {
            for (id, container, result) in &attached {
                scope.spawn(|| subject.del(&host, id, container, result));
            }
        });
        assert_eq!(host.sh("ip -o link show type veth"), "");
    }
}

/// A program that is the first process of its PID namespace, attaches and detaches a container 40 times, and reaps only the plugins
/// that it started. It prints how many zombies there are when all others have ended.
const REAPS_NOTHING_ELSE: &str = r#"
import json, os, subprocess, sys, time
plugin, netns, conf = sys.argv[1:]
env = dict(CNI_PATH=os.path.dirname(plugin), CNI_CONTAINERID="c-one", CNI_IFNAME="eth0", CNI_NETNS=netns)
for n in range(40):
    for verb in ("ADD", "DEL"):
        subprocess.run([plugin], input=conf.encode(), env=dict(env, CNI_COMMAND=verb), stdout=subprocess.PIPE, check=True)
def states():
    all = [open(f"/proc/{pid}/stat").read().rsplit(") ")[1][0] for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"]
    return [state for state in all if state != "Z"], len(all)
while states()[0]:
    time.sleep(0.01)
print(states()[1], os.path.getsize("/run/cnikit/children"))
"#;

#[test]
fn a_first_process_that_reaps_nothing_is_left_few_zombies() {
    let host = Host::new();
    let conf: Value = json!({
        "cniVersion": "1.0.0", "name": "test", "type": "bridge", "ipam":
        {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": host.dir().join("leases")},
    });
    std::fs::write(host.dir().join("program"), REAPS_NOTHING_ELSE).unwrap();
    let dir = host.dir().display();
    let plugin = installed().join("bridge");
    let inside = format!(
        "mount -t tmpfs tmpfs /run && touch /run/c-one && unshare --net=/run/c-one true && exec python3 {dir}/program {} /run/c-one \"$0\"",
        plugin.display()
    );
    let shown = host.sh(&format!("unshare --pid --mount-proc --fork --kill-child sh -c '{inside}' '{conf}'"));
    let (zombies, length) = shown.trim().split_once(' ').unwrap();
    assert!((8..=16).contains(&zombies.parse().unwrap()), "there are {zombies}");
    assert!(length.parse::<u32>().unwrap() <= 16 * 4, "a place for each of 16 process IDs: {length} bytes");
}

/// The child is the only process that closes everything, so its `close_range(2)` stands for it.
#[test]
fn each_plugin_that_deletes_a_link_leaves_the_wait_to_a_child() {
    for subject in [bridge(), ptp(), macvlan(), tap(), shaped(bin())] {
        let (directory, calls) = traced(&subject, "close_range");
        let subject = subject.in_directory(directory.path());
        let host = subject.host();
        let subject = subject.at(host.dir());
        let container = subject.container(&host);
        let result = subject.add(&host, "c-one", &container);
        let children = || calls().iter().filter(|call| call.starts_with("close_range")).count();
        assert_eq!(children(), 0);
        subject.del(&host, "c-one", &container, &result);
        assert!(children() >= 2, "{}: {:?}", subject.plugin, calls());
    }
}
