//! The life of an attachment: ADD, CHECK and DEL with complete and with incomplete input.

use std::collections::BTreeSet;

use cnikit::Version;
use serde_json::{Value, json};

use crate::campaign::{SummaryLine, assert_no_findings};
use crate::env::host::{Container, Host};
pub use crate::env::shared_state::SHARED;
use crate::env::shared_state::names_attachment;
use crate::env::snapshot::{HINTS, HostSnapshot};
use crate::env::subject::{Subject, filled};
use crate::parallel::catch_panic;

/// Runs ADD, CHECK and DEL: nothing of the attachment is left, and a second cycle adds nothing, not even to shared state.
pub fn leaves_no_trace(subject: &Subject) {
    let host = subject.host();
    let container = subject.container(&host);
    let subject = subject.at(host.dir());
    // The kernel keeps the IPv4 address and the queueing discipline of a loopback link after it was up once.
    container.sh("ip link set lo up; ip link set lo down");
    let before = HostSnapshot::of(&host);
    let inside = HostSnapshot::inside(&container);
    cycle(&subject, &host, &container);
    let first = HostSnapshot::of(&host);
    let left = first.added_since(&before, &subject.shared);
    assert!(left.is_empty(), "{}: left on the host: {left:#?}", subject.plugin);
    let traced: Vec<String> =
        first.added_since(&before, &[]).into_iter().filter(|line| names_attachment(line, "c-one")).collect();
    assert!(traced.is_empty(), "{}: left of the attachment: {traced:#?}", subject.plugin);
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], "in the container after DEL");
    cycle(&subject, &host, &container);
    HostSnapshot::of(&host).assert_unchanged_since(&first, &HINTS, "after a second cycle");
}

fn cycle(subject: &Subject, host: &Host, container: &Container) {
    let result = subject.add(host, "c-one", container);
    subject.check(host, "c-one", container, &result).ok();
    subject.del(host, "c-one", container, &result);
}

/// A DEL with incomplete or wrong input: its name in messages, which of both it is, the value of `CNI_NETNS`, and the keys that the
/// runtime adds to a configuration.
struct IncompleteDel {
    what: &'static str,
    input: DelInput,
    netns: NetnsValue,
    more: fn(&Value, &Value) -> Vec<(String, Value)>,
}

/// Which DELs are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelInput {
    /// What a runtime sends that lost its state, or after the container has gone.
    Incomplete,
    /// What no correct runtime sends: the namespace of another container, and values of another type.
    Wrong,
    /// Both.
    Any,
}

/// The key with the result of ADD.
fn prev_result(value: Value) -> Vec<(String, Value)> {
    vec![("prevResult".to_owned(), value)]
}

/// The keys of a plugin's own, each with a value of a type that no key has.
fn invalid_keys(conf: &Value) -> Vec<(String, Value)> {
    let needed = ["cniVersion", "name", "type", "ipam", "plugins", "delegate", "dataDir"];
    let own = conf.as_object().into_iter().flatten().map(|(key, _)| key).filter(|key| !needed.contains(&key.as_str()));
    own.map(|key| (key.clone(), json!({"no": ["such", "value"]}))).collect()
}

/// The value of `CNI_NETNS` in a DEL.
enum NetnsValue {
    Same,
    Empty,
    Gone,
    AFile,
    ADirectory,
    AnothersContainer,
    TheHosts,
}

const SAME: IncompleteDel =
    IncompleteDel { what: "", input: DelInput::Incomplete, netns: NetnsValue::Same, more: |_, _| vec![] };

const INCOMPLETE_DELS: [IncompleteDel; 12] = [
    IncompleteDel { what: "as it should be", more: |_, result| prev_result(result.clone()), ..SAME },
    IncompleteDel { what: "without prevResult", ..SAME },
    IncompleteDel { what: "with an empty CNI_NETNS", netns: NetnsValue::Empty, ..SAME },
    IncompleteDel {
        what: "with a path that is gone, of a namespace that is not",
        netns: NetnsValue::Gone,
        more: |_, result| prev_result(result.clone()),
        ..SAME
    },
    IncompleteDel { what: "with a file for a namespace", netns: NetnsValue::AFile, ..SAME },
    IncompleteDel { what: "with a directory for a namespace", netns: NetnsValue::ADirectory, ..SAME },
    IncompleteDel {
        what: "with another container's namespace",
        input: DelInput::Wrong,
        netns: NetnsValue::AnothersContainer,
        ..SAME
    },
    IncompleteDel { what: "with the host's namespace", netns: NetnsValue::TheHosts, ..SAME },
    IncompleteDel { what: "with garbage for prevResult", more: |_, _| prev_result(json!("garbage")), ..SAME },
    IncompleteDel {
        what: "with a prevResult of no shape",
        more: |_, _| prev_result(json!({"ips": [{"address": 7}]})),
        ..SAME
    },
    IncompleteDel {
        what: "with garbage for runtimeConfig",
        input: DelInput::Wrong,
        netns: NetnsValue::Empty,
        more: |_, _| vec![("runtimeConfig".to_owned(), json!([1])), ("args".to_owned(), json!(5))],
    },
    IncompleteDel {
        what: "with keys that became invalid",
        input: DelInput::Wrong,
        more: |conf, _| invalid_keys(conf),
        ..SAME
    },
];

/// Checks that DEL succeeds and leaves nothing of the attachment with each kind of incomplete input, when it is repeated, and
/// without an ADD. Another container keeps running, even if `CNI_NETNS` names its namespace. What earlier plugins made before a
/// chained one is not changed. Panics with all that fail.
pub fn survives_incomplete_dels(subject: &Subject) {
    survives_dels(subject, DelInput::Any);
}

/// As [`survives_incomplete_dels`], with some of the kinds of input.
pub fn survives_dels(subject: &Subject, input: DelInput) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let other = subject.container(&host);
    std::fs::write(host.dir().join(A_FILE), "").unwrap();
    let running = subject.add(&host, "c-other", &other);
    let mut found = Vec::new();
    let of_never = || subject.call(&host, "DEL", "c-never", "", &[]).silent("DEL without an ADD");
    found.extend(catch_panic(of_never).err());
    // They are dropped together, because what other plugins made for them on the host goes with them at some later time.
    let mut containers = Vec::new();
    // Each namespace has one loopback link, which does not belong to an attachment: nothing says that DEL has to leave it alone.
    let is_of_loopback = names(&running).eq(["lo"]);
    for (n, incomplete) in INCOMPLETE_DELS.iter().enumerate() {
        let has_no_owner = is_of_loopback && matches!(incomplete.netns, NetnsValue::AnothersContainer);
        let is_chosen = input == DelInput::Any || input == incomplete.input;
        if has_no_owner || !is_chosen {
            continue;
        }
        let container = subject.container(&host);
        let id = format!("c-incomplete-{n}");
        let before = HostSnapshot::of(&host);
        let inside = subject.after.as_ref().map(|_| HostSnapshot::inside(&container));
        let result = subject.add(&host, &id, &container);
        let tried = catch_panic(|| {
            del_twice(&subject, &host, &id, incomplete, &incomplete.netns.path(&host, &container, &other), &result);
            HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, incomplete.what);
            if let Some(inside) = inside {
                HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], incomplete.what);
            }
            let output = subject.check(&host, "c-other", &other, &running);
            assert_eq!(output.exit, 0, "DEL {} hurt another container: {}", incomplete.what, output.stdout);
        });
        if let Err(text) = tried {
            found.push(text);
            // What it left must not count against the next form.
            let _ = subject.call(&host, "DEL", &id, &container.path(), &[("prevResult", result)]);
        }
        containers.push(container);
    }
    assert_no_findings(&found);
    subject.del(&host, "c-other", &other, &running);
}

/// The names of the interfaces of a result. An IPAM plugin's has none.
fn names(result: &Value) -> impl Iterator<Item = &str> {
    result["interfaces"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str())
}

/// A file in the host's directory that is no namespace.
const A_FILE: &str = "a file";

impl NetnsValue {
    /// The value, for a container beside another one.
    fn path(&self, host: &Host, container: &Container, other: &Container) -> String {
        match self {
            NetnsValue::Same => container.path(),
            NetnsValue::Empty => String::new(),
            NetnsValue::Gone => format!("{}-that-is-gone", container.path()),
            NetnsValue::AFile => host.dir().join(A_FILE).display().to_string(),
            NetnsValue::ADirectory => host.dir().display().to_string(),
            NetnsValue::AnothersContainer => other.path(),
            NetnsValue::TheHosts => "/proc/self/ns/net".into(),
        }
    }
}

fn del_twice(subject: &Subject, host: &Host, id: &str, incomplete: &IncompleteDel, path: &str, result: &Value) {
    let keys = (incomplete.more)(&subject.conf, result);
    let keys: Vec<(&str, Value)> = keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    for _ in 0..2 {
        let output = subject.call(host, "DEL", id, path, &keys);
        output.silent(&format!("DEL {}", incomplete.what));
    }
}

/// Objects of other programs on a host: a link with addresses, a route, a rule, a permanent neighbour, a queueing discipline, an
/// nftables table, a file.
const FOREIGN_OBJECTS: &str = "ip link add foreign0 type veth peer name foreign1 && ip link set foreign0 up && ip link set foreign1 up && \
    ip address add 192.0.2.1/24 dev foreign0 && ip address add 2001:db8::1/64 dev foreign0 nodad && \
    ip route add 198.51.100.0/24 via 192.0.2.9 && ip rule add from 198.51.100.7 table 4711 priority 4711 && \
    ip neigh add 192.0.2.9 lladdr 0a:00:00:00:00:09 dev foreign0 nud permanent && tc qdisc add dev foreign1 root pfifo limit 77 && \
    nft 'table inet foreign { set s { type ipv4_addr; elements = { 198.51.100.8 }; }; chain c { type filter hook forward priority 7; ip saddr @s counter accept; }; }' && \
    echo text > \"$DIR/foreign\"";

/// Checks that objects of other programs on the host are the same while a container is attached, after its DEL, and, in version
/// 1.1.0, after a GC without valid attachments.
pub fn leaves_foreign_objects(subject: &Subject) {
    let host = subject.host();
    host.sh(&FOREIGN_OBJECTS.replace("$DIR", &host.dir().display().to_string()));
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let before = HostSnapshot::stable(&host);
    let went = |when: &str| {
        let missing = before.added_since(&HostSnapshot::of(&host), &subject.shared);
        let missing: Vec<String> = missing.into_iter().filter(|line| !line.starts_with("sysctl: ")).collect();
        assert!(missing.is_empty(), "{when}: objects of other programs were changed or removed: {missing:#?}");
    };
    let result = subject.add(&host, "c-one", &container);
    went("after ADD");
    subject.del(&host, "c-one", &container, &result);
    went("after DEL");
    if subject.speaks(Version::V1_1_0) {
        subject.add(&host, "c-one", &container);
        subject.gc(&host, &[]).ok();
        went("after GC");
    }
}

/// The containers of [`removes_invalid`]: two attachments that are not in the list of valid ones, and one that is.
const LOST: &str = "c-lost";
const LOST_TOO: &str = "c-lost-too";
const VALID: &str = "c-valid";

/// Checks that GC removes attachments that are not in the list of valid ones, although their containers run, and nothing of one
/// that is in it. An empty list removes that one too. The namespaces are mounted, as runtimes mount them: a plugin that is called
/// for GC gets no path, and has to find them.
pub fn removes_invalid(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir()).with("cniVersion", json!("1.1.0"));
    let containers = [LOST, LOST_TOO, VALID].map(|_| subject.container(&host));
    containers.iter().for_each(|container| drop(container.sh("ip link set lo up; ip link set lo down")));
    host.with_mounted(&containers, || {
        let [lost, lost_too, valid] = &containers;
        let inside = || containers.each_ref().map(HostSnapshot::inside);
        let (empty, empty_inside) = (HostSnapshot::of(&host), inside());
        let running = subject.add(&host, VALID, valid);
        let (before, before_inside) = (HostSnapshot::of(&host), inside());
        subject.add(&host, LOST, lost);
        subject.add(&host, LOST_TOO, lost_too);
        subject.gc(&host, &[VALID]).ok();
        let when = format!("after the GC of {}, with {VALID} valid", subject.title);
        HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, &when);
        assert_unchanged(&inside(), &before_inside, &when);
        subject.check(&host, VALID, valid, &running).ok();
        subject.gc(&host, &[]).ok();
        let when = format!("after the GC of {}, with none valid", subject.title);
        let left = HostSnapshot::of(&host).added_since(&empty, &subject.shared);
        assert!(left.is_empty(), "{when}: left on the host: {left:#?}");
        assert_unchanged(&inside(), &empty_inside, &when);
    });
}

/// Checks that GC removes what is left on the host of attachments that are not in the list of valid ones, when their containers
/// have gone. An empty list removes the rest.
pub fn removes_gone(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir()).with("cniVersion", json!("1.1.0"));
    let valid = subject.container(&host);
    let lost = subject.container(&host);
    let empty = HostSnapshot::of(&host);
    let running = subject.add(&host, VALID, &valid);
    let before = HostSnapshot::of(&host);
    subject.add(&host, LOST, &lost);
    drop(lost);
    subject.gc(&host, &[VALID]).ok();
    let when = format!("after the GC of {}, with {VALID} valid and the other container gone", subject.title);
    assert_nothing_stays(&subject, &host, &before, &when);
    subject.check(&host, VALID, &valid, &running).ok();
    drop(valid);
    subject.gc(&host, &[]).ok();
    assert_nothing_stays(&subject, &host, &empty, &format!("after the GC of {}, with none valid", subject.title));
}

/// Panics if something of an attachment stays, when the kernel has had time to remove its links with the namespace.
fn assert_nothing_stays(subject: &Subject, host: &Host, before: &HostSnapshot, when: &str) {
    let left = HostSnapshot::staying(host, before, &subject.shared);
    assert!(left.is_empty(), "{when}: left on the host: {left:#?}");
}

fn assert_unchanged(inside: &[HostSnapshot; 3], before: &[HostSnapshot; 3], when: &str) {
    for (place, id) in [LOST, LOST_TOO, VALID].iter().enumerate() {
        inside[place].assert_unchanged_since(&before[place], &[], &format!("in {id} {when}"));
    }
}

/// One change to what a plugin made, and a word that CHECK has to report.
#[derive(Clone, Copy, Debug)]
pub struct Tampering {
    /// A shell line. `$HOSTEND` is replaced by the host end and `$DIR` by the host's directory.
    pub line: &'static str,
    /// Whether the line runs in the container, and not on the host.
    pub inside: bool,
    /// A text that the error has to contain.
    pub names: &'static str,
}

impl Tampering {
    /// A line that runs in the container.
    pub const fn inside(line: &'static str, names: &'static str) -> Tampering {
        Tampering { line, inside: true, names }
    }

    /// A line that runs on the host.
    pub const fn on_host(line: &'static str, names: &'static str) -> Tampering {
        Tampering { line, inside: false, names }
    }
}

/// Checks that CHECK names each change. Prints one line with their number, and panics with those that CHECK does not name.
pub fn names_tampering(subject: &Subject, tamperings: &[Tampering]) {
    let tampered = TamperingResults::by(subject, tamperings);
    tampered.line(subject, tamperings).print();
    assert_no_findings(&tampered.found);
}

/// The results of several changes, made one after the other.
#[derive(Default)]
struct TamperingResults {
    /// The log of each CHECK.
    logs: Vec<String>,
    /// The changes that CHECK did not name, and other failures.
    found: Vec<String>,
}

impl TamperingResults {
    fn by(subject: &Subject, tamperings: &[Tampering]) -> TamperingResults {
        let mut tampered = TamperingResults::default();
        for tampering in tamperings {
            match catch_panic(|| named(subject, tampering)) {
                Ok(log) => tampered.logs.push(log),
                Err(found) => tampered.found.push(format!("{}: {found}", subject.title)),
            }
        }
        tampered
    }

    fn line(&self, subject: &Subject, tamperings: &[Tampering]) -> SummaryLine {
        let count = tamperings.len();
        let what = format!("tamper {}", subject.title);
        SummaryLine { tried: count, of: count, found: self.found.len(), ..SummaryLine::new(what, "things") }
    }
}

/// Makes a change, asserts that CHECK names it, and returns the log of CHECK.
fn named(subject: &Subject, tampering: &Tampering) -> String {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    tamper(&host, &container, &result, tampering);
    let output = subject.check(&host, "c-one", &container, &result);
    assert_eq!(output.exit, 1, "{}: CHECK passes", tampering.line);
    let (code, text) = output.refused();
    assert!(text.contains(tampering.names), "{}: CHECK reports {code}: {text}", tampering.line);
    let log = logged(&subject, &host, &container, &result);
    subject.del(&host, "c-one", &container, &result);
    log
}

/// Returns the log of a CHECK, with `DIR` for the host's directory, and with the placeholders of the configuration, because their
/// values differ between containers.
fn logged(subject: &Subject, host: &Host, container: &Container, result: &Value) -> String {
    let mut conf = subject.conf_of("CHECK", &container.path());
    conf["prevResult"] = result.clone();
    let env = [("CNI_LOG", "debug")];
    let output = subject.call_raw(host, "CHECK", "c-one", &container.path(), conf.to_string().as_bytes(), &env);
    let mut log = output.stderr.replace(&host.dir().display().to_string(), "DIR");
    for text in texts(&subject.conf) {
        let value = filled(text, &container.path());
        if value != *text {
            log = log.replace(&value, text);
        }
    }
    log
}

/// All texts in a configuration.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(elements) => elements.iter().flat_map(texts).collect(),
        Value::Object(members) => members.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// The resources that CHECK compares, as its log names them: `KIND: RESOURCE`.
pub fn checked_resources(subject: &Subject) -> BTreeSet<String> {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let result = subject.add(&host, "c-one", &container);
    let log = logged(&subject, &host, &container, &result);
    let compared = steps(&log, "step", "check ");
    assert!(!compared.is_empty(), "CHECK of {} logs no resource: {log}", subject.title);
    compared
}

/// As [`names_tampering`], and each resource that CHECK compares is changed by one of these. So a new resource of a plan needs a
/// change here that CHECK reports.
pub fn names_tampering_of_all(subject: &Subject, tamperings: &[Tampering]) {
    let mut forgotten = checked_resources(subject);
    let mut tampered = TamperingResults::by(subject, tamperings);
    let resources = forgotten.len();
    for log in &tampered.logs {
        let drifted = steps(log, "msg", "drift of ");
        forgotten.retain(|resource| !drifted.iter().any(|drift| drift.starts_with(resource.as_str())));
    }
    let mut line = tampered.line(subject, tamperings);
    line.notes.push(format!("{} of {resources} resources of the plan drifted", resources - forgotten.len()));
    tampered.found.extend(forgotten.iter().map(|one| format!("{}: no tampering changes {one}", subject.title)));
    line.found = tampered.found.len();
    line.print();
    assert_no_findings(&tampered.found);
}

/// The values of a key in a log that begin with a word, without that word.
fn steps(log: &str, key: &str, word: &str) -> BTreeSet<String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Some(line[key].as_str()?.strip_prefix(word)?.to_owned())).collect()
}

/// Makes all of these changes at once, and checks that CHECK names all of them.
pub fn names_all_at_once(subject: &Subject, tamperings: &[Tampering]) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let result = subject.add(&host, "c-one", &container);
    tamperings.iter().for_each(|tampering| tamper(&host, &container, &result, tampering));
    let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
    for tampering in tamperings {
        assert!(text.contains(tampering.names), "{} is not named: {text}", tampering.line);
    }
}

fn tamper(host: &Host, container: &Container, result: &Value, tampering: &Tampering) {
    let names: Vec<&str> = names(result).collect();
    let end = names.into_iter().rev().find(|name| name.starts_with("veth")).unwrap_or_default();
    let line = tampering.line.replace("$HOSTEND", end).replace("$DIR", &host.dir().display().to_string());
    if tampering.inside {
        container.sh(&line)
    } else {
        host.sh(&line)
    };
}
