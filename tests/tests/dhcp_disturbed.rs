//! The DHCP daemon is killed at each of its system calls, and each of them fails once: no lease is lost, doubled or left.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use cnikit_dhcp_daemon::LeaseRequest;
use cnikit_process::Deadline;
use cnikit_testkit::campaign::{SummaryLine, sample};
use cnikit_testkit::parallel::{catch_panic, for_each};
use cnikit_testkit::{CallOutput, Container, Host, Subject, errno, syscall_trace};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP6_OPTIONS, Dnsmasq, dhcp_site, dhcp6_address};
use cnikit_tests::lease_daemon::{LeaseDaemon, lease_records};
use cnikit_tests::subject;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const RANGE: &str = "10.99.0.10,10.99.0.50";
/// So many cases of each kind, in the short form.
const CASES: usize = 3;
/// The numbers of system calls are below this one.
const CALLS: i32 = 600;
/// How many cases are tried at a time: most of the time they wait.
const WORKERS: usize = 4;
/// The longest time until a daemon serves, or has ended.
const LATE: Duration = Duration::from_secs(40);

/// What happens at a system call of the daemon.
#[derive(Clone, Debug)]
struct Disturbance {
    call: String,
    /// Which of the calls of this name, from 1.
    number: usize,
    /// As strace is told: `signal=SIGKILL`, `error=EIO`.
    what: String,
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:when={}", self.call, self.what, self.number)
    }
}

impl Disturbance {
    fn is_kill(&self) -> bool {
        self.what.starts_with("signal")
    }
}

/// A host, two containers with leases of both families, and the server of another host.
struct Scene {
    host: Host,
    site: Host,
    plugin: Subject,
    kept: Container,
    one: Container,
}

/// How a life of the daemon ended.
struct Life {
    /// The result of the ADD that it served.
    added: Option<Value>,
    is_deleted: bool,
    /// Whether it ended before it was told to, and had served.
    ended_itself: bool,
    log: String,
}

impl Scene {
    fn new() -> Scene {
        let (host, site) = dhcp_site();
        dhcp6_address(&site);
        let (kept, one) = (host.container(), host.container());
        for container in [&kept, &one] {
            // A link-local address can be used at once.
            container.sh("echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad");
        }
        let ipam = json!({"type": "dhcp", "families": ["v4", "v6"], "timeout": 15,
            "daemonSocketPath": host.dir().join("dhcp.sock"), "dataDir": host.dir().join("dhcp-leases")});
        let plugin = subject("bridge", json!({"bridge": DHCP_BRIDGE, "ipam": ipam}));
        Scene { host, site, plugin, kept, one }
    }

    fn call(&self, verb: &str, id: &str, prev: Option<&Value>) -> CallOutput {
        let container = if id == "c-kept" { &self.kept } else { &self.one };
        let prev = prev.map(|prev| ("prevResult", prev.clone()));
        self.plugin.call(&self.host, verb, id, &container.path(), prev.as_slice())
    }

    /// A daemon that is started by strace with these arguments has the leases of one container already, and serves another one
    /// from its ADD to its DEL.
    fn live(&self, traced: &[String], kept: &Value) -> Life {
        let starter = [&["strace", "-f", "-qq"].map(str::to_owned)[..], traced].concat();
        let daemon = LeaseDaemon::begin_by(&self.host, &starter, &[]);
        let deadline = Deadline::after(LATE);
        while !daemon.has_ended() && (daemon.pid().is_none() || daemon.try_call(&LeaseRequest::Status).is_err()) {
            assert!(deadline.pause(Duration::from_millis(10)), "it neither serves nor ends");
        }
        let has_served = !daemon.has_ended();
        let added = self.call("ADD", "c-one", None);
        let added = if added.exit == 0 { Some(added.ok()) } else { None };
        self.call("CHECK", "c-kept", Some(kept));
        if let Some(result) = &added {
            self.call("CHECK", "c-one", Some(result));
        }
        let is_deleted = self.call("DEL", "c-one", added.as_ref()).exit == 0;
        let ended_itself = has_served && daemon.has_ended();
        if !daemon.has_ended()
            && let Some(pid) = daemon.pid()
        {
            // It may end by itself at this moment.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        while !daemon.has_ended() {
            assert!(deadline.pause(Duration::from_millis(10)), "it does not end");
        }
        let log = String::from_utf8_lossy(&daemon.finish().stderr).into_owned();
        Life { added, is_deleted, ended_itself, log }
    }

    /// A whole life with a disturbance, and what the next daemon finds. Panics if a lease is lost, doubled or left.
    fn survive(&self, disturbance: &Disturbance) {
        let server = Dnsmasq::start(&self.site, RANGE, &DHCP6_OPTIONS);
        let daemon = LeaseDaemon::start(&self.host, &[]);
        let kept = self.call("ADD", "c-kept", None).ok();
        daemon.kill();
        let traced = ["-o", "/dev/null", "-e", &format!("inject={disturbance}")].map(str::to_owned);
        let life = self.live(&traced, &kept);
        assert!(disturbance.is_kill() || !life.ended_itself, "the daemon has ended: {}", life.log);
        let daemon = LeaseDaemon::start(&self.host, &[]);
        if !life.is_deleted {
            self.call("DEL", "c-one", life.added.as_ref()).ok();
        }
        daemon.await_list("the other container has its leases", |list| {
            list.len() == 2 && list.iter().all(|one| one.owner.container == "c-kept" && one.hindrance.is_none())
        });
        self.call("CHECK", "c-kept", Some(&kept)).ok();
        assert!(self.one.links().is_empty(), "{:?}", self.one.links());
        self.call("DEL", "c-kept", Some(&kept)).ok();
        assert!(daemon.list().is_empty() && lease_records(&self.host).is_empty(), "{:?}", lease_records(&self.host));
        // A daemon that is killed before its record is written has no lease to give back. A packet that cannot be sent is logged.
        let is_lost = disturbance.is_kill() && life.added.is_none();
        let is_logged = life.log.contains("c-one/");
        let most = if is_lost || is_logged { 2 } else { 0 };
        server.await_leases("all others are given back", |lines| {
            let leases = lines.iter().filter(|line| !line.starts_with("duid ") && !line.is_empty());
            leases.count() <= most
        });
        daemon.stop();
    }
}

/// How often the daemon makes each system call in an undisturbed life.
fn usual_calls() -> BTreeMap<String, usize> {
    let scene = Scene::new();
    let _server = Dnsmasq::start(&scene.site, RANGE, &DHCP6_OPTIONS);
    let daemon = LeaseDaemon::start(&scene.host, &[]);
    let kept = scene.call("ADD", "c-kept", None).ok();
    daemon.kill();
    let calls = scene.host.dir().join("calls");
    let life = scene.live(&["-o".to_owned(), calls.display().to_string()], &kept);
    assert!(life.added.is_some() && life.is_deleted && !life.log.contains("c-one/"), "{}", life.log);
    let text = std::fs::read_to_string(calls).unwrap();
    let first = text.split_whitespace().next().unwrap();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        // `<... poll resumed>`: the end of a call, after one of another thread.
        if let Some((process, call)) = line.split_once(' ')
            && process == first
            && let Some((name, _)) = call.trim_start().split_once('(')
            && !name.starts_with('<')
        {
            *counts.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    counts.remove("execve");
    counts
}

fn errors(call: &str) -> Vec<String> {
    let number = (0..CALLS).find(|number| syscall_trace::name(*number) == call);
    let errnos = number.map(errno::errnos).unwrap_or_default();
    errnos.iter().map(|errno| format!("error={errno:?}")).collect()
}

/// Tries what `disturb` names for each system call.
fn no_lease_is_lost(campaign: &str, disturb: impl Fn(&str) -> Vec<String>) {
    let mut all = Vec::new();
    for (call, count) in usual_calls() {
        for number in 1..=count {
            let cases = disturb(&call).into_iter().map(|what| Disturbance { call: call.clone(), number, what });
            all.extend(cases);
        }
    }
    let of = all.len();
    assert!(of > 300, "{of} cases");
    let cases = sample(campaign, all, CASES);
    let found = Mutex::new(Vec::new());
    for_each(
        WORKERS,
        &cases,
        || (),
        |(), case| {
            let survived = catch_panic(|| Scene::new().survive(case));
            if let Err(why) = survived {
                found.lock().unwrap().push(format!("{case}: {why}"));
            }
        },
    );
    let found = found.into_inner().unwrap();
    SummaryLine { tried: cases.len(), of, found: found.len(), ..SummaryLine::new(campaign, "calls").with_seed() }
        .print();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_lease_is_lost_or_left_if_the_daemon_is_killed_at_a_system_call() {
    no_lease_is_lost("kill the DHCP daemon at a call", |_| vec!["signal=SIGKILL".to_owned()]);
}

#[test]
fn no_lease_is_lost_or_left_if_a_system_call_of_the_daemon_fails() {
    no_lease_is_lost("fault of the DHCP daemon", errors);
}
