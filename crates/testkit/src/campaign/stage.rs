//! A host on which one call after the other is disturbed.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cnikit_process::Deadline;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::scene::{Harm, Scene, Verb};
use crate::host::{Container, Host};
use crate::life::{SHARED, is_traced};
use crate::snapshot::Snapshot;
use crate::subject::{Said, Subject};
use crate::watch::{self, Call, Limit, Trace, Verdict};

/// Hints, for which no promise is made.
const HINTS: [&str; 2] = ["last_reserved_ip.", ".idx"];

/// What becomes another error on its way through the C library: no stack, no thread, no memory.
const TRANSLATED: [i64; 4] = [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_clone3];

/// The attachment that runs all the while.
const OTHER: &str = "c-other";

/// A host with an attachment that runs all the while, or without any, and a container that comes and goes.
pub(super) struct Stage {
    host: Host,
    subject: Subject,
    other: Option<Other>,
    container: Container,
    before: Snapshot,
    inside: Snapshot,
}

struct Other {
    container: Container,
    result: Value,
    inside: Snapshot,
}

/// A scene as it is played: with a name, and a container that is its own if that one is going to vanish.
pub(super) struct Turn<'a> {
    stage: &'a Stage,
    scene: &'a Scene,
    id: String,
    own: Option<Container>,
    /// What `CNI_NETNS` is after the disturbed call.
    path: String,
    /// The attachments that a GC is told of.
    valid: Vec<String>,
}

/// How it went.
pub(super) struct Played {
    /// The harm was done where it should be.
    pub(super) hit: bool,
    pub(super) failed: bool,
}

impl Stage {
    /// For a verb: everything that is shared is there, but for the first ADD on a host.
    pub(super) fn new(subject: &Subject, verb: Verb) -> Stage {
        let host = Host::new();
        let (subject, container) = (subject.at(host.dir()), fresh(&host));
        let other = (verb != Verb::First).then(|| {
            let other = host.container();
            let result = subject.add(&host, OTHER, &other);
            let first = subject.add(&host, "c-first", &container);
            subject.del(&host, "c-first", &container, &first);
            Other { inside: Snapshot::inside(&other), container: other, result }
        });
        let (before, inside) = (Snapshot::of(&host), Snapshot::inside(&container));
        Stage { host, subject, other, container, before, inside }
    }

    /// What is needed before a call: where it removes, something to remove.
    fn prepare(&self, verb: Verb, id: &str, container: &Container) -> Value {
        if verb.adds() { Value::Null } else { self.subject.add(&self.host, id, container) }
    }

    /// The call itself, watched.
    fn watched(
        &self,
        verb: Verb,
        (id, container, valid): (&str, &Container, &[String]),
        limits: &[Limit],
        judge: impl FnMut(&Call) -> Verdict + Send,
    ) -> (Said, Trace) {
        let (mut conf, added) = (self.subject.conf.clone(), self.prepare(verb, id, container));
        let path = if verb == Verb::PoorDel { String::new() } else { container.path() };
        match verb {
            Verb::Del => conf["prevResult"] = added,
            Verb::Gc => conf["cni.dev/valid-attachments"] = attachments(valid),
            _ => {}
        }
        let env = self.subject.environment(verb.command(), id, &path, &[]);
        let (program, stdin) = (self.subject.bin.join(&self.subject.plugin), conf.to_string());
        self.host.enter(|| watch::run(&program, &env, stdin.as_bytes(), limits, judge)).unwrap()
    }

    /// An undisturbed call, and what it calls.
    pub(super) fn undisturbed(&self, verb: Verb, id: &str) -> Trace {
        let valid = [OTHER.to_owned()];
        let (said, trace) = self.watched(verb, (id, &self.container, &valid), &[], |_| Verdict::GoOn);
        said.ok();
        self.subject.call(&self.host, "DEL", id, &self.container.path(), &[]).ok();
        trace
    }

    /// Nothing came, nothing went, and the other attachment runs.
    pub(super) fn audit(&self) {
        let Some(Other { container, result, inside }) = &self.other else { return self.audit_the_first() };
        let after = Snapshot::of(&self.host);
        let came: Vec<String> =
            after.added_since(&self.before, &HINTS).into_iter().filter(|line| !is_chain(line)).collect();
        let went = self.before.added_since(&after, &HINTS);
        assert!(came.is_empty() && went.is_empty(), "left on the host: came {came:#?}, went {went:#?}");
        Snapshot::inside(&self.container).assert_unchanged_since(&self.inside, &[], "left in the container");
        Snapshot::inside(container).assert_unchanged_since(inside, &[], "in another container");
        let check = self.subject.check(&self.host, OTHER, container, result);
        assert_eq!(check.exit, 0, "another attachment: {}", check.stdout);
    }

    /// Something happens while the other attachment talks to its gateways, without a loss.
    pub(super) fn while_another_talks<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(Other { container, result, .. }) = &self.other else { return work() };
        let ips = result["ips"].as_array().filter(|_| !result["interfaces"].is_null());
        let ping = |ip: &Value| Some(format!("ping -n -q -i 0.2 -c 5 -W 2 {}", ip["gateway"].as_str()?));
        let pings: Vec<String> = ips.into_iter().flatten().filter_map(ping).collect();
        let done = AtomicBool::new(pings.is_empty());
        let talk = || {
            while !done.load(Ordering::Relaxed) {
                let said = pings.iter().map(|ping| container.sh(ping));
                said.for_each(|said| {
                    assert!(said.contains(" 0% packet loss"), "another attachment lost packets: {said}");
                });
            }
        };
        thread::scope(|scope| {
            let talks = scope.spawn(talk);
            let worked = catch_unwind(AssertUnwindSafe(work));
            done.store(true, Ordering::Relaxed);
            let talked = talks.join();
            worked.and_then(|done| talked.map(|()| done)).unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// What is shared may have come, or half of it; nothing of the attachment.
    fn audit_the_first(&self) {
        let after = Snapshot::of(&self.host);
        let mut left = after.added_since(&self.before, &SHARED);
        left.extend(after.added_since(&self.before, &[]).into_iter().filter(|line| is_of_one(line)));
        assert!(left.is_empty(), "left on the host: {left:#?}");
        Snapshot::inside(&self.container).assert_unchanged_since(&self.inside, &[], "left in the container");
    }
}

impl<'a> Turn<'a> {
    pub(super) fn new(stage: &'a Stage, scene: &'a Scene, id: String, before: &[Turn<'_>]) -> Turn<'a> {
        let own = scene.gone.then(|| fresh(&stage.host));
        let path = own.as_ref().map_or_else(|| stage.container.path(), |own| format!("{}-that-is-gone", own.path()));
        let valid = [OTHER].into_iter().chain(before.iter().map(|turn| turn.id.as_str())).map(str::to_owned).collect();
        Turn { stage, scene, id, own, path, valid }
    }

    fn container(&self) -> &Container {
        self.own.as_ref().unwrap_or(&self.stage.container)
    }

    /// The disturbed call, and what a runtime does next.
    pub(super) fn play(&mut self, trace: &Trace) -> Played {
        let (stage, scene) = (self.stage, self.scene);
        let limits = if let Harm::Limit(limit) = scene.harm { vec![limit] } else { Vec::new() };
        let call = (self.id.as_str(), self.container(), self.valid.as_slice());
        let (said, went) = stage.watched(scene.verb, call, &limits, |call| verdict(scene, call));
        let (process, place, _) = scene.at;
        // A limit and SIGTERM may come at any moment.
        let hit = !matches!(scene.harm, Harm::Signal(Signal::SIGKILL, _) | Harm::Errno(_))
            || went.agrees_until(trace, process, place);
        if place % 4 == 3 {
            self.own = None; // the kernel clears it away meanwhile; otherwise it only cannot be found
        }
        self.afterwards(&said);
        Played { hit, failed: said.exit != 0 }
    }

    fn afterwards(&self, said: &Said) {
        match (self.scene.harm, self.scene.verb) {
            (Harm::Errno(errno), _) if said.exit >= 0 => self.after_errno(errno, said),
            (_, Verb::Gc) if self.scene.at.1 % 8 < 4 => self.repeat("GC", said),
            _ => self.repeat("DEL", said),
        }
    }

    /// A call that failed itself has undone what it did, or can be repeated; one that succeeded did it.
    fn after_errno(&self, errno: Errno, said: &Said) {
        match self.scene.verb {
            Verb::Add | Verb::First if said.exit == 0 => {
                let check = self.stage.subject.check(&self.stage.host, &self.id, self.container(), &said.json());
                assert_eq!(check.exit, 0, "ADD succeeded, but CHECK says {}", check.stdout);
                self.repeat("DEL", said);
            }
            Verb::Add | Verb::First => self.says_why(errno, said),
            _ if said.exit == 0 => {}
            verb => {
                self.says_why(errno, said);
                self.repeat(verb.command(), said);
            }
        }
    }

    /// In the kernel's words, unless the C library or another program puts it into its own. That stdout cannot be written to is
    /// said on stderr.
    fn says_why(&self, errno: Errno, said: &Said) {
        let text = if said.stdout.is_empty() { said.stderr.clone() } else { said.refused().1 };
        let (process, _, number) = self.scene.at;
        if process > 0 || TRANSLATED.contains(&number.into()) {
            return assert!(!text.is_empty(), "it says nothing: {said:?}");
        }
        let word = io::Error::from_raw_os_error(errno as i32).to_string();
        let word = word.split(" (os").next().unwrap_or_default();
        assert!(text.contains(word), "it does not say {word:?}: {said:?}");
    }

    fn repeat(&self, verb: &str, said: &Said) {
        let valid = if verb == "GC" { vec![("cni.dev/valid-attachments", attachments(&self.valid))] } else { vec![] };
        let next = self.stage.subject.call(&self.stage.host, verb, &self.id, &self.path, &valid);
        assert_eq!((next.exit, next.stdout.as_str()), (0, ""), "{verb} after {said:?}: {}", next.stderr);
    }

    /// The same container once more.
    pub(super) fn again(&self) {
        let Stage { host, subject, .. } = self.stage;
        if self.scene.verb.adds() {
            subject.call(host, "DEL", &self.id, &self.path, &[]).ok(); // of what failed and left nothing
        }
        let newer = self.own.is_some().then(|| fresh(host));
        let container = newer.as_ref().unwrap_or(&self.stage.container);
        let result = subject.add(host, &self.id, container);
        subject.check(host, &self.id, container, &result).ok();
        subject.del(host, &self.id, container, &result);
    }
}

fn verdict(scene: &Scene, call: &Call) -> Verdict {
    match scene.harm {
        _ if (call.process, call.place, call.number) != scene.at => Verdict::GoOn,
        Harm::Errno(_) if tells_of_a_start(call) => Verdict::GoOn,
        Harm::Errno(errno) => Verdict::Fail(errno),
        Harm::Signal(signal, after) => {
            Deadline::never().pause(after);
            Verdict::Signal(signal)
        }
        Harm::Limit(_) => Verdict::GoOn,
    }
}

/// Is this one of the chains that are shared and stay? Whose iptables failed may have taken nftables.
fn is_chain(line: &str) -> bool {
    let ruleset = ["nft: ", "iptables: ", "ip6tables: "].iter().any(|title| line.starts_with(title));
    ruleset && !is_of_one(line) && SHARED.iter().any(|text| line.contains(text))
}

/// Is it about one attachment? Its rules match where a packet comes from.
fn is_of_one(line: &str) -> bool {
    is_traced(line, "c-0") || line.contains(" saddr ") || line.contains("\tsaddr ")
}

/// The standard library learns in these eight bytes whether its child became a program. If it does not learn it, it waits
/// for the child's end, and the child for its stdin: no plugin can help that, and no socket of this kind fails so.
fn tells_of_a_start(call: &Call) -> bool {
    i64::from(call.number) == libc::SYS_recvfrom && call.args[2] == 8
}

/// A container whose loopback was up once: it keeps its IPv4 address for good, and that is the kernel's doing.
fn fresh(host: &Host) -> Container {
    let container = host.container();
    container.sh("ip link set lo up; ip link set lo down");
    container
}

fn attachments(ids: &[String]) -> Value {
    ids.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect()
}
