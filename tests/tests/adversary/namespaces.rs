//! A hostile network namespace: whatever it contains, CHECK, RESTORE and DEL affect no other container.

use std::time::{Duration, Instant};

use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::served::served_together;
use serde_json::{Value, json};

use crate::rows;

/// A victim that runs, and an attacker's container, both attached.
struct Pair {
    host: Host,
    subject: Subject,
    victim: Container,
    attacker: Container,
    result: Value,
    before: HostSnapshot,
    inside: HostSnapshot,
}

impl Pair {
    /// The state of the host is that before the attacker's ADD.
    fn of(plugin: &str) -> Pair {
        let subject = served_together(plugin);
        let subject = match plugin {
            // One port each.
            "portmap" => subject.with(
                "runtimeConfig",
                json!({"portMappings": [{"hostPort": "$NUMBER", "containerPort": 80, "protocol": "tcp"}]}),
            ),
            "static" | "loopback" => panic!("{plugin} shares nothing"),
            _ => subject,
        };
        let host = subject.host();
        let subject = subject.at(host.dir());
        let [victim, attacker] = [(); 2].map(|()| subject.container(&host));
        subject.add(&host, "c-victim", &victim);
        // The first two containers make shared objects, and the second leaves some. These are not a difference.
        let warm = subject.container(&host);
        let result = subject.add(&host, "c-warm", &warm);
        subject.del(&host, "c-warm", &warm, &result);
        let before = HostSnapshot::of(&host);
        let inside = HostSnapshot::inside(&victim);
        let result = subject.add(&host, "c-attacker", &attacker);
        Pair { host, subject, victim, attacker, result, before, inside }
    }

    /// Another attacker on the same host, the last one being gone.
    fn next(self) -> Pair {
        let attacker = self.subject.container(&self.host);
        let result = self.subject.add(&self.host, "c-attacker", &attacker);
        Pair { attacker, result, ..self }
    }

    /// CHECK and RESTORE may fail; DEL succeeds, twice, with and without the result, and only the attacker's is gone.
    fn ends(&self, what: &str) {
        let path = self.attacker.path();
        let prev = ("prevResult", self.result.clone());
        let check = self.subject.call(&self.host, "CHECK", "c-attacker", &path, std::slice::from_ref(&prev));
        assert!(check.exit == 0 || check.json()["code"].is_u64(), "{what}: {check:?}");
        assert!(!check.stderr.contains("panicked"), "{what}: {check:?}");
        let restore = self.subject.call(&self.host, "RESTORE", "c-attacker", &path, std::slice::from_ref(&prev));
        assert!([0, 1].contains(&restore.exit) && !restore.stderr.contains("panicked"), "{what}: {restore:?}");
        self.subject.call(&self.host, "DEL", "c-attacker", &path, std::slice::from_ref(&prev)).ok();
        self.subject.call(&self.host, "DEL", "c-attacker", &path, &[]).ok();
        HostSnapshot::inside(&self.victim).assert_unchanged_since(&self.inside, &[], what);
        let now = HostSnapshot::of(&self.host);
        let went = self.before.added_since(&now, &HINTS);
        assert!(went.is_empty(), "{what}: went {went:#?}");
        let came: Vec<String> =
            now.added_since(&self.before, &HINTS).into_iter().filter(|line| line.contains("c-attacker")).collect();
        assert!(came.is_empty(), "{what}: came {came:#?}");
    }
}

/// Instead of eth0, one end of a pair in nested namespaces, whose indexes are those of the victim's ends.
#[test]
fn a_nested_pair_with_the_victims_indexes_does_no_harm() {
    for plugin in rows::plugins_here(24) {
        let pair = Pair::of(plugin);
        let inner = pair.victim.sh("ip -o link show eth0 | sed 's/:.*//'");
        let outer = pair
            .victim
            .sh("ip -o link show eth0 | sed -n 's/.*eth0@if\\([0-9]*\\):.*/\\1/p; s/.*eth0@[a-z]*\\([0-9]*\\):.*/7/p'");
        let inner = inner.trim();
        let outer = outer.lines().next().unwrap_or("7").trim().to_owned();
        let nested = pair.host.container();
        pair.attacker.sh("ip link del eth0");
        pair.attacker.sh(&format!(
            "ip link add name eth0 index {inner} type veth peer name peer index {} netns {}",
            if outer.is_empty() { "7" } else { &outer },
            nested.path()
        ));
        pair.ends(&format!("{plugin}: a nested pair"));
    }
}

/// Changes that the container's own root can make, with another attachment's tag as alias if the link has one.
const CHANGES: [&str; 6] = [
    "ip link set eth0 down; ip link set eth0 name other0; ip link set other0 up",
    "ip link del eth0; ip link add eth0 type bridge; ip link set eth0 up",
    "ip link set eth0 alias \"$ALIAS\"",
    "ip link del eth0; ip link add eth0 alias \"$ALIAS\" type veth peer name cni0",
    "ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:99; ip address flush dev eth0; ip link set eth0 up",
    "ip link add br type bridge; ip link set eth0 master br; ip link set eth0 name br0 2>/dev/null || true",
];

#[test]
fn an_interface_renamed_replaced_or_with_a_copied_tag_does_no_harm() {
    for plugin in rows::plugins_here(25) {
        let mut pair = Pair::of(plugin);
        let alias = pair.host.sh("ip -o link show | sed -n 's/.*alias \\(.*c-victim.*\\)$/\\1/p'");
        let inside = pair.victim.sh("ip -o link show | sed -n 's/.*alias \\(.*c-victim.*\\)$/\\1/p'");
        let alias = alias.lines().chain(inside.lines()).next().unwrap_or("testnet c-victim eth0").to_owned();
        // The other plugins read the same links.
        let few = ["firewall", "flannel", "portmap"].contains(&plugin);
        for change in &CHANGES[..if few { 2 } else { CHANGES.len() }] {
            pair.attacker.try_sh(&change.replace("$ALIAS", alias.trim()));
            pair.ends(&format!("{plugin}: {change}"));
            pair = pair.next();
        }
        let elsewhere = pair.host.container();
        pair.attacker.try_sh(&format!("ip link set eth0 netns {}", elsewhere.path()));
        pair.ends(&format!("{plugin}: eth0 was moved"));
    }
}

#[test]
fn names_of_links_may_be_any_bytes() {
    for plugin in rows::plugins_here(26) {
        let pair = Pair::of(plugin);
        pair.attacker.sh(
            "e=$(printf '\\033[2J'); x=$(printf '\\377\\376'); ip link add name \"$e\" type bridge; ip link add name \"$x\" type bridge
             ip link set eth0 alias \"$e$x\"; ip link property add dev eth0 altname \"$e$x\"",
        );
        pair.ends(&format!("{plugin}: ESC and non-UTF-8 bytes"));
    }
}

/// Much less than the timeout of a caller: 50 ms on an idle machine may become many times that on a busy one.
///
/// The links are veth pairs. The kernel waits for an RCU grace period for each bridge that it removes and holds the RTNL lock of
/// all namespaces meanwhile: 1,200 bridges stop all other tests of the machine for 20 seconds, 600 pairs for 0.1 seconds.
#[test]
fn twelve_hundred_links_in_a_namespace_delay_del_little() {
    for plugin in rows::plugins_here(27) {
        let pair = Pair::of(plugin);
        pair.attacker.sh("for n in $(seq 600); do echo link add b$n type veth peer name c$n; done | ip -batch -");
        let begun = Instant::now();
        pair.ends(&format!("{plugin}: 1,200 links"));
        assert!(begun.elapsed() < Duration::from_mins(1), "{plugin}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_del_with_the_victims_namespace_changes_nothing_of_it() {
    for plugin in rows::plugins_here(28) {
        let pair = Pair::of(plugin);
        for more in [vec![("prevResult", pair.result.clone())], Vec::new()] {
            pair.subject.call(&pair.host, "DEL", "c-attacker", &pair.victim.path(), &more).ok();
            pair.subject.call(&pair.host, "DEL", "c-unknown", &pair.victim.path(), &more).ok();
        }
        HostSnapshot::inside(&pair.victim).assert_unchanged_since(&pair.inside, &[], plugin);
        let now = HostSnapshot::of(&pair.host);
        let went = pair.before.added_since(&now, &HINTS);
        assert!(went.is_empty(), "{plugin}: went {went:#?}");
    }
}
