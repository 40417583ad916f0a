//! A host on which calls are disturbed, one after the other.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cnikit_process::Deadline;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::disturbed_call::{CallPosition, Disturbance, DisturbedCall, Verb};
use super::error_text;
use crate::env::host::{Container, Host};
use crate::env::shared_state::names_attachment;
use crate::env::snapshot::{HINTS, HostSnapshot, line_contains};
use crate::env::subject::{CallOutput, Subject, attachments};
use crate::parallel::while_repeating;
use crate::syscall_trace::{self, Limit, Syscall, SyscallTrace, SyscallVerdict};

/// System calls whose errors the C library reports as another error: no stack, no thread, no memory.
const REWORDED: [i64; 4] = [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_clone3];

/// System calls whose failure may kill the plugin. The standard library aborts if an allocation of a few bytes fails, or that of
/// the stack of a signal handler before `main` and in a new thread. musl crashes if its very first call gets no memory for the
/// first thread; before that call, an installed plugin makes only [`ENTRY`]. A plugin cannot prevent that. No other failure may
/// end a plugin by a signal.
const MEMORY: [i64; 4] = [libc::SYS_brk, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mremap];

/// The system call of the installed plugins' entry point, which gets pages for relocated data.
const ENTRY: i64 = libc::SYS_madvise;

/// What `ld.so(8)` of glibc, and that of musl, says of a program whose libraries it cannot load.
const NOT_LOADED: [&str; 2] = ["error while loading shared libraries", "Error loading shared library"];

/// The container ID of the attachment that exists all the time.
const OTHER: &str = "c-other";

/// A host with one permanent attachment (or none), and a container whose attachment is added and deleted.
pub(super) struct CampaignHost {
    host: Host,
    subject: Subject,
    other: Option<OtherAttachment>,
    container: Container,
    /// Taken before the first disturbed call; an undisturbed run needs none.
    before: OnceLock<Baseline>,
}

struct OtherAttachment {
    container: Container,
    result: Value,
}

/// Snapshots from before the disturbed calls.
struct Baseline {
    host: HostSnapshot,
    container: HostSnapshot,
    /// The container of the permanent attachment.
    other: Option<HostSnapshot>,
}

/// One try of a disturbed call, with a container ID, and a container of its own if its namespace is going to be gone.
pub(super) struct Attempt<'a> {
    campaign_host: &'a CampaignHost,
    disturbed: &'a DisturbedCall,
    id: String,
    own: Option<Container>,
    /// For a GC: the container of a second attachment that is not in the list of valid ones, because GC removes several attachments
    /// in another way than one.
    second: Option<Container>,
    /// `CNI_NETNS` of the calls after the disturbed one.
    path: String,
    /// The valid attachments of a GC.
    valid: Vec<String>,
    /// Whether the disturbed call is the first of a program: the C library asks for memory, and cannot report that there is none.
    starting: bool,
}

/// The outcome of a try.
pub(super) struct Outcome {
    /// Whether the disturbance happened at the intended system call.
    pub(super) hit: bool,
    pub(super) failed: bool,
    /// Whether the plugin died because memory was refused.
    pub(super) starved: bool,
}

/// Containers of a call.
struct CallTarget<'a> {
    id: &'a str,
    container: &'a Container,
    second: Option<&'a Container>,
    valid: &'a [String],
}

impl CampaignHost {
    /// Makes a host for a verb. All shared state exists on it, except for the first ADD on a host.
    pub(super) fn new(subject: &Subject, verb: Verb) -> CampaignHost {
        let host = subject.host();
        let container = new_container(subject, &host);
        let subject = subject.at(host.dir());
        let mut other = None;
        if verb != Verb::First {
            let second = subject.container(&host);
            let result = subject.add(&host, OTHER, &second);
            let first = subject.add(&host, "c-first", &container);
            subject.del(&host, "c-first", &container, &first);
            other = Some(OtherAttachment { container: second, result });
        }
        CampaignHost { host, subject, other, container, before: OnceLock::new() }
    }

    fn before(&self) -> &Baseline {
        self.before.get_or_init(|| self.take_baseline())
    }

    fn take_baseline(&self) -> Baseline {
        let other = self.other.as_ref().map(|other| HostSnapshot::inside(&other.container));
        Baseline { host: HostSnapshot::of(&self.host), container: HostSnapshot::inside(&self.container), other }
    }

    /// Adds what the verb is going to remove. Returns the result of that ADD.
    fn prepare(&self, verb: Verb, called: &CallTarget) -> Value {
        if let Some(second) = called.second {
            self.subject.add(&self.host, &second_id(called.id), second);
        }
        if verb.adds() { Value::Null } else { self.subject.add(&self.host, called.id, called.container) }
    }

    fn second(&self, verb: Verb) -> Option<Container> {
        (verb == Verb::Gc).then(|| new_container(&self.subject, &self.host))
    }

    /// Makes the call, and traces its system calls.
    fn traced_call(
        &self,
        verb: Verb,
        called: &CallTarget,
        limits: &[Limit],
        decide: impl FnMut(&Syscall) -> SyscallVerdict + Send,
    ) -> (CallOutput, SyscallTrace) {
        let path = if verb == Verb::IncompleteDel { String::new() } else { called.container.path() };
        let mut conf = self.subject.conf_of(verb.command(), &path);
        let added = self.prepare(verb, called);
        match verb {
            Verb::Del => conf["prevResult"] = added,
            Verb::Gc => conf["cni.dev/valid-attachments"] = attachments(called.valid),
            _ => {}
        }
        let env = self.subject.environment(verb.command(), called.id, &path, &[]);
        let program = self.subject.bin.join(&self.subject.plugin);
        let stdin = conf.to_string();
        self.host.enter(|| syscall_trace::run(&program, &env, stdin.as_bytes(), limits, decide)).unwrap()
    }

    /// Makes an undisturbed call: returns its system calls, and those that must not be made to fail.
    ///
    /// With `gone` it is the call of a container of its own, as in [`Attempt::new`]: a plugin that looks at all links makes more
    /// calls if there is one container more.
    pub(super) fn undisturbed(&self, verb: Verb, gone: bool, id: &str) -> (SyscallTrace, Vec<CallPosition>) {
        let valid = [OTHER.to_owned()];
        let own = gone.then(|| new_container(&self.subject, &self.host));
        let container = own.as_ref().unwrap_or(&self.container);
        let second = self.second(verb);
        let mut infallible = Vec::new();
        let mut probes = RevisionProbes::default();
        let called = CallTarget { id, container, second: second.as_ref(), valid: &valid };
        let decide = |call: &Syscall| {
            let is_probe = probes.has(call);
            if is_probe || reports_exec_to_parent(call) || makes_no_descriptor(call) {
                infallible.push(at(call));
            }
            SyscallVerdict::GoOn
        };
        let (output, trace) = self.traced_call(verb, &called, &[], decide);
        output.ok();
        self.subject.call(&self.host, "DEL", id, &container.path(), &[]).ok();
        (trace, infallible)
    }

    /// Checks that nothing was added or removed, and that the permanent attachment works.
    pub(super) fn audit(&self) {
        let before = self.before();
        HostSnapshot::inside(&self.container).assert_unchanged_since(&before.container, &[], "left in the container");
        let after = HostSnapshot::of(&self.host);
        let shared = &self.subject.shared;
        let (Some(OtherAttachment { container, result }), Some(inside)) = (&self.other, &before.other) else {
            return audit_first_add(&before.host, &after, shared);
        };
        let came: Vec<String> =
            after.added_since(&before.host, &HINTS).into_iter().filter(|line| !is_chain(line, shared)).collect();
        let went = before.host.added_since(&after, &HINTS);
        assert!(came.is_empty() && went.is_empty(), "left on the host: came {came:#?}, went {went:#?}");
        HostSnapshot::inside(container).assert_unchanged_since(inside, &[], "in another container");
        let check = self.subject.check(&self.host, OTHER, container, result);
        assert_eq!(check.exit, 0, "another attachment: {}", check.stdout);
    }

    /// Runs `work` while the permanent attachment pings its gateways; no packet may be lost.
    pub(super) fn while_other_pings<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(OtherAttachment { container, result }) = self.other.as_ref().filter(|_| self.subject.gateways_answer)
        else {
            return work();
        };
        let ips = result["ips"].as_array().filter(|_| !result["interfaces"].is_null());
        let ping = |ip: &Value| Some(format!("ping -n -q -i 0.1 -c 5 -W 2 {}", ip["gateway"].as_str()?));
        let pings: Vec<String> = ips.into_iter().flatten().filter_map(ping).collect();
        if pings.is_empty() {
            return work();
        }
        while_repeating(vec![|| assert_no_packet_loss(container, &pings)], work)
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        campaign_host: &'a CampaignHost,
        disturbed: &'a DisturbedCall,
        id: String,
        before: &[Attempt<'_>],
    ) -> Attempt<'a> {
        campaign_host.before();
        let own = disturbed.gone.then(|| new_container(&campaign_host.subject, &campaign_host.host));
        let path =
            own.as_ref().map_or_else(|| campaign_host.container.path(), |own| format!("{}-that-is-gone", own.path()));
        let valid = [OTHER].into_iter().chain(before.iter().map(|turn| turn.id.as_str())).map(str::to_owned).collect();
        Attempt {
            campaign_host,
            disturbed,
            id,
            own,
            second: campaign_host.second(disturbed.verb),
            path,
            valid,
            starting: false,
        }
    }

    fn container(&self) -> &Container {
        self.own.as_ref().unwrap_or(&self.campaign_host.container)
    }

    /// Makes the disturbed call and the calls that a runtime makes next.
    pub(super) fn run(&mut self, trace: &SyscallTrace) -> Outcome {
        let campaign_host = self.campaign_host;
        let disturbed = self.disturbed;
        let limits = if let Disturbance::Limit(limit) = disturbed.disturbance { vec![limit] } else { Vec::new() };
        let called =
            CallTarget { id: &self.id, container: self.container(), second: self.second.as_ref(), valid: &self.valid };
        let sent = &AtomicBool::new(false);
        let (output, went) = thread::scope(|scope| {
            let later = |pid, signal, after| drop(scope.spawn(move || send_later(pid, signal, after, sent)));
            let mut unordered = UnorderedCalls::new(disturbed, trace);
            campaign_host.traced_call(disturbed.verb, &called, &limits, |call| match &mut unordered {
                Some(unordered) => unordered.verdict(disturbed, call, sent, later),
                None => verdict(disturbed, call, sent, later),
            })
        });
        let (process, place, _) = disturbed.at;
        let mut before = (0..place).rev().filter_map(|before| trace.at(process, before)).map(i64::from);
        self.starting = before.find(|number| *number != ENTRY).is_none_or(|number| number == libc::SYS_execve);
        let hit = match disturbed.disturbance {
            Disturbance::Limit(_) => true,
            Disturbance::Signal(_, after) if !after.is_zero() => sent.load(Ordering::Relaxed),
            _ if !trace.is_ordered() => sent.load(Ordering::Relaxed),
            Disturbance::Signal(Signal::SIGKILL, _) | Disturbance::Errno(_) => went.agrees_until(trace, process, place),
            Disturbance::Signal(..) => went.at(process, place) == Some(disturbed.at.2),
        };
        if place % 4 == 3 {
            // The kernel removes these namespaces meanwhile. In other tries they only cannot be found by path.
            self.own = None;
            self.second = None;
        }
        self.afterwards(&output);
        Outcome { hit, failed: output.exit != 0, starved: self.died_of_refused_memory(&output) }
    }

    /// Whether the plugin died because this try refused memory to it.
    fn died_of_refused_memory(&self, output: &CallOutput) -> bool {
        let (process, _, number) = self.disturbed.at;
        let refused = matches!(self.disturbed.disturbance, Disturbance::Errno(_))
            && process == 0
            && MEMORY.contains(&number.into());
        refused && (output.exit == -(Signal::SIGABRT as i32) || self.starting && output.exit < 0)
    }

    fn afterwards(&self, output: &CallOutput) {
        match (self.disturbed.disturbance, self.disturbed.verb) {
            (Disturbance::Errno(errno), _) if !self.died_of_refused_memory(output) => {
                assert!(output.exit >= 0, "it died by signal {}: {output:?}", -output.exit);
                self.after_errno(errno, output);
            }
            (_, Verb::Gc) if self.disturbed.at.1 % 8 < 4 => self.repeat("GC", output),
            _ => self.repeat("DEL", output),
        }
    }

    /// After a failed system call: a plugin that failed has undone its changes or can be repeated, and one that succeeded did its
    /// work.
    fn after_errno(&self, errno: Errno, output: &CallOutput) {
        match self.disturbed.verb {
            Verb::Add | Verb::First if output.exit == 0 => {
                let check = self.campaign_host.subject.check(
                    &self.campaign_host.host,
                    &self.id,
                    self.container(),
                    &output.json(),
                );
                assert_eq!(check.exit, 0, "ADD succeeded, but CHECK says {}", check.stdout);
                self.repeat("DEL", output);
            }
            Verb::Add | Verb::First => self.assert_reports_cause(errno, output),
            _ if output.exit == 0 => {}
            verb => {
                self.assert_reports_cause(errno, output);
                self.repeat(verb.command(), output);
            }
        }
    }

    /// Asserts that the error names the operation and has the kernel's text for the error number, unless the C library or another
    /// program replaced that text. If stdout cannot be written to, the error is on stderr. A plugin that `ld.so(8)` could not load
    /// has no say.
    fn assert_reports_cause(&self, errno: Errno, output: &CallOutput) {
        if output.stdout.is_empty() && NOT_LOADED.iter().any(|text| output.stderr.contains(text)) {
            return;
        }
        let text = if output.stdout.is_empty() { output.stderr.clone() } else { output.error().1 };
        let (process, _, number) = self.disturbed.at;
        if process > 0 || REWORDED.contains(&number.into()) {
            return assert!(!text.is_empty(), "it says nothing: {output:?}");
        }
        let subject = &self.campaign_host.subject;
        let who = [&subject.plugin, self.disturbed.verb.command(), &self.id, subject.network(), "eth0"];
        if let Some(missing) = error_text::missing(&text, errno, &who) {
            panic!("{missing}: {output:?}");
        }
    }

    fn repeat(&self, verb: &str, output: &CallOutput) {
        let valid = if verb == "GC" { vec![("cni.dev/valid-attachments", attachments(&self.valid))] } else { vec![] };
        let second = self.second_of(verb);
        for id in [Some(&self.id), second.as_ref()].into_iter().flatten() {
            let next = self.campaign_host.subject.call(&self.campaign_host.host, verb, id, &self.path, &valid);
            assert_eq!((next.exit, next.stdout.as_str()), (0, ""), "{verb} after {output:?}: {}", next.stderr);
        }
    }

    /// The second attachment that a runtime deletes if it does not repeat the GC.
    fn second_of(&self, verb: &str) -> Option<String> {
        (self.disturbed.verb == Verb::Gc && verb == "DEL").then(|| second_id(&self.id))
    }

    /// Adds, checks and deletes the same container once more.
    pub(super) fn again(&self) {
        let CampaignHost { host, subject, .. } = self.campaign_host;
        if self.disturbed.verb.adds() {
            subject.call(host, "DEL", &self.id, &self.path, &[]).ok(); // there is nothing to delete after a failed ADD
        }
        let newer = self.own.is_some().then(|| new_container(subject, host));
        let container = newer.as_ref().unwrap_or(&self.campaign_host.container);
        let result = subject.add(host, &self.id, container);
        subject.check(host, &self.id, container, &result).ok();
        subject.del(host, &self.id, container, &result);
    }
}

/// Runs these pings at the same time; none may lose a packet.
fn assert_no_packet_loss(container: &Container, pings: &[String]) {
    let output = container.sh(&format!("{} & wait", pings.join(" & ")));
    let without_loss = output.matches(" 0% packet loss").count();
    assert_eq!(without_loss, pings.len(), "another attachment lost packets: {output}");
}

/// After a first ADD: all or part of the shared state may have been added, but nothing of the attachment.
fn audit_first_add(before: &HostSnapshot, after: &HostSnapshot, shared: &[&str]) {
    let mut left = after.added_since(before, shared);
    left.extend(after.added_since(before, &[]).into_iter().filter(|line| names_one_attachment(line)));
    assert!(left.is_empty(), "left on the host: {left:#?}");
}

/// Decides about a system call. `later` sends a delayed signal; if the process may end before that, the signal is sent here.
fn verdict(
    disturbed: &DisturbedCall,
    call: &Syscall,
    sent: &AtomicBool,
    later: impl FnOnce(Pid, Signal, Duration),
) -> SyscallVerdict {
    let (process, place, _) = disturbed.at;
    match disturbed.disturbance {
        Disturbance::Signal(signal, after)
            if !after.is_zero() && (call.process, call.place) == (process, place + DisturbedCall::LAST) =>
        {
            if sent.swap(true, Ordering::Relaxed) { SyscallVerdict::GoOn } else { SyscallVerdict::Signal(signal) }
        }
        _ if at(call) != disturbed.at => SyscallVerdict::GoOn,
        disturbance => disturb(disturbance, call, later),
    }
}

/// Disturbs this system call.
fn disturb(disturbance: Disturbance, call: &Syscall, later: impl FnOnce(Pid, Signal, Duration)) -> SyscallVerdict {
    match disturbance {
        Disturbance::Errno(errno) => SyscallVerdict::Fail(errno),
        Disturbance::Signal(signal, Duration::ZERO) => SyscallVerdict::Signal(signal),
        Disturbance::Signal(signal, after) => {
            later(call.pid, signal, after);
            SyscallVerdict::GoOn
        }
        Disturbance::Limit(_) => SyscallVerdict::GoOn,
    }
}

/// Finds the call to disturb in a program whose calls have no order: as many calls with its number were made before it as in the
/// undisturbed run.
struct UnorderedCalls {
    before: usize,
}

impl UnorderedCalls {
    /// `None` if the calls of the program have an order.
    fn new(disturbed: &DisturbedCall, trace: &SyscallTrace) -> Option<UnorderedCalls> {
        let (process, place, _) = disturbed.at;
        (!trace.is_ordered()).then(|| UnorderedCalls { before: trace.occurrence(process, place) })
    }

    /// As [`verdict`]. `sent` becomes true if the call is disturbed.
    fn verdict(
        &mut self,
        disturbed: &DisturbedCall,
        call: &Syscall,
        sent: &AtomicBool,
        later: impl FnOnce(Pid, Signal, Duration),
    ) -> SyscallVerdict {
        let (process, _, number) = disturbed.at;
        if (call.process, call.number) != (process, number) || sent.load(Ordering::Relaxed) {
            return SyscallVerdict::GoOn;
        }
        if self.before > 0 {
            self.before -= 1;
            return SyscallVerdict::GoOn;
        }
        let is_infallible = reports_exec_to_parent(call) || makes_no_descriptor(call);
        if is_infallible && matches!(disturbed.disturbance, Disturbance::Errno(_)) {
            return SyscallVerdict::GoOn;
        }
        let verdict = disturb(disturbed.disturbance, call, later);
        if verdict != SyscallVerdict::GoOn {
            sent.store(true, Ordering::Relaxed);
        }
        verdict
    }
}

/// Sends a signal after a delay, unless it was sent already. `sent` becomes true if the process still existed.
fn send_later(pid: Pid, signal: Signal, after: Duration, sent: &AtomicBool) {
    Deadline::never().pause(after);
    if !sent.swap(true, Ordering::Relaxed) {
        sent.store(syscall_trace::is_alive(pid) && kill(pid, signal).is_ok(), Ordering::Relaxed);
    }
}

fn at(call: &Syscall) -> CallPosition {
    (call.process, call.place, call.number)
}

/// The container ID of the second attachment; all have the same length.
fn second_id(id: &str) -> String {
    format!("{id}-too")
}

/// Whether a line is about shared chains, which stay. After a failed iptables the plugin may have used nftables.
fn is_chain(line: &str, shared: &[&str]) -> bool {
    let ruleset = ["nft: ", "iptables: ", "ip6tables: "].iter().any(|title| line.starts_with(title));
    ruleset && !names_one_attachment(line) && shared.iter().any(|text| line_contains(line, text))
}

/// Whether a line is about one attachment. Rules of an attachment match its source address; a rule that looks the address up in a
/// set is shared.
fn names_one_attachment(line: &str) -> bool {
    let own = [" saddr ", "\tsaddr "].iter().any(|word| line.contains(word)) && !line.contains(" saddr @");
    names_attachment(line, "c-0") || own
}

/// Whether this is the read of eight bytes by which the standard library learns if its child has executed a program. If that read
/// fails, the parent waits for the child's end, and the child for its stdin: a plugin cannot prevent that, and this kind of socket
/// does not fail.
fn reports_exec_to_parent(call: &Syscall) -> bool {
    i64::from(call.number) == libc::SYS_recvfrom && call.args[2] == 8
}

/// Whether this is an fcntl(2) that makes no descriptor. Only the commands that make one can fail for lack of descriptors. Others
/// do not fail on an open file, and musl takes -1 for a valid result.
fn makes_no_descriptor(call: &Syscall) -> bool {
    let makes =
        [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].iter().any(|command| u64::try_from(*command) == Ok(call.args[1]));
    i64::from(call.number) == libc::SYS_fcntl && !makes
}

/// The processes of a call that have a netfilter socket, and those that use another one.
#[derive(Default)]
struct RevisionProbes {
    connected: HashSet<usize>,
    probing: HashSet<usize>,
}

impl RevisionProbes {
    /// Whether by this call iptables asks the kernel whether it has a revision of an extension, for which it opens a further
    /// netfilter socket. If it gets no answer, iptables 1.8.9 uses another revision, writes a DNAT rule that its own iptables-save
    /// reads as another address, and succeeds. A plugin cannot prevent that; CHECK finds such a rule.
    fn has(&mut self, call: &Syscall) -> bool {
        let number = i64::from(call.number);
        if number == libc::SYS_socket && is_nfnetlink(call) && !self.connected.insert(call.process) {
            self.probing.insert(call.process);
        }
        match number {
            libc::SYS_close => self.probing.remove(&call.process),
            _ => self.probing.contains(&call.process),
        }
    }
}

/// Whether another program than the plugin opens a socket of nfnetlink.
fn is_nfnetlink(call: &Syscall) -> bool {
    let is = |place: usize, value: i32| u64::try_from(value) == Ok(call.args[place]);
    call.process > 0 && is(0, libc::AF_NETLINK) && is(2, libc::NETLINK_NETFILTER)
}

/// A container whose loopback link was up once, after which the kernel keeps its IPv4 address.
fn new_container(subject: &Subject, host: &Host) -> Container {
    let container = subject.container(host);
    container.sh("ip link set lo up; ip link set lo down");
    container
}
