//! A node with upstream's plugins and ours side by side: one adds an attachment that the other checks and removes.
//!
//! Each [`Row`] is a configuration. [`alike`] plays it on fresh hosts with one release of upstream, and compares results and
//! visible state. Every difference must be listed in [`DIFFERENCES`], and every listed difference must occur.

mod differences;
mod rows;
mod state;

pub use differences::{DIFFERENCES, Difference, fits, table};
pub use rows::{Row, dummies, ipvlans, rows, versions, vlan_links, vlans, vrfs};
pub use state::Names;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cnikit_process::Deadline;
use cnikit_testkit::{CallOutput, Container, Host, Subject};
use serde_json::Value;

use crate::world::UNTIL_DETECTED;
use crate::{bin, reference_with_flannel, references};

/// A release of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamRelease {
    /// The one that distributions install: 1.1.1.
    Packaged,
    /// The one that the contract describes: 1.9.1.
    Newest,
    /// The last that had a flannel, 0.9.0, among the plugins of the newest.
    WithFlannel,
}

impl UpstreamRelease {
    /// Where its plugins are.
    pub fn bin(self) -> PathBuf {
        let [packaged, newest] = references();
        match self {
            UpstreamRelease::Packaged => packaged,
            UpstreamRelease::Newest => newest,
            UpstreamRelease::WithFlannel => reference_with_flannel(),
        }
    }

    /// Its number.
    pub fn version(self) -> &'static str {
        match self {
            UpstreamRelease::Packaged => "1.1.1",
            UpstreamRelease::Newest => "1.9.1",
            UpstreamRelease::WithFlannel => "0.9.0",
        }
    }

    /// The newest version of the specification that it supports.
    pub fn speaks(self) -> &'static str {
        match self {
            UpstreamRelease::Packaged => "1.0.0",
            UpstreamRelease::Newest => "1.1.0",
            UpstreamRelease::WithFlannel => "0.4.0",
        }
    }
}

/// The side that executes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Theirs,
    Ours,
}

/// The one container of a story.
const ID: &str = "c-mixed";

/// A fresh host and a fresh container, prepared for one row.
struct Node<'a> {
    row: &'a Row,
    release: UpstreamRelease,
    host: Host,
    container: Container,
    /// The plugins cannot read the row's reservation.
    blind: bool,
}

impl Node<'_> {
    fn new(row: &Row, release: UpstreamRelease) -> Node<'_> {
        let host = Host::new();
        let container = Host::new().container();
        host.sh(row.on_host);
        let host_path = format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd());
        container.sh(&row.inside.replace("$HOST", &host_path));
        for (name, text) in [("resolv.conf", rows::RESOLV_CONF), ("subnet.env", rows::SUBNET_ENV)] {
            std::fs::write(host.dir().join(name), text).unwrap();
        }
        Node { row, release, host, container, blind: false }
    }

    fn call(&self, who: Who, verb: &str, netns: &str, prev: Option<&Value>) -> CallOutput {
        let bin = match who {
            Who::Theirs => self.release.bin(),
            Who::Ours => bin().to_owned(),
        };
        let env = [
            ("CNI_ARGS", self.row.args),
            // Where iptables and nft are.
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let conf = self.row.conf(self.host.dir(), self.release.speaks());
        let bin = if self.blind { self.blinded(&bin) } else { bin };
        let subject = Subject::new(&bin, self.row.plugin, conf).with_env(env);
        let before = self.row.before(netns).filter(|_| verb == "ADD");
        let more: Vec<_> = prev.cloned().or(before).map(|prev| ("prevResult", prev)).into_iter().collect();
        subject.call(&self.host, verb, ID, netns, &more)
    }

    /// The path of the node's reservation.
    fn reservation(&self) -> PathBuf {
        self.host.dir().join("leases/testnet").join(self.row.unreadable)
    }

    /// The plugin in a mount namespace in which reading that reservation fails, as from a bad sector.
    fn blinded(&self, bin: &Path) -> PathBuf {
        let dir = self.host.dir().join("blind");
        let file = self.reservation();
        let plugin = bin.join(self.row.plugin);
        let bad = "/sys/devices/virtual/net/lo/speed";
        let line = format!("mount --bind {bad} {} && exec {}", file.display(), plugin.display());
        std::fs::create_dir_all(&dir).unwrap();
        let script = dir.join(self.row.plugin);
        std::fs::write(&script, format!("#!/bin/sh\nexec unshare --mount sh -c '{line}'\n")).unwrap();
        std::fs::set_permissions(script, PermissionsExt::from_mode(0o755)).unwrap();
        dir
    }

    /// ADD. Its result, and the names that chance gave.
    fn add(&self, who: Who) -> Result<Added, String> {
        let netns = self.container.path();
        let output = add_until_detected(|verb| self.call(who, verb, &netns, None));
        if output.exit != 0 {
            return Err(format!("ADD by {who:?}: {}", refusal(&output)));
        }
        Ok(Added { result: output.json(), names: Names::of(&self.host, &self.container, self.row.keeps()) })
    }

    /// The result of an ADD and its visible state, after duplicate address detection.
    fn seen(&self, added: &Added) -> BTreeSet<String> {
        for (settled, output) in [self.host.try_sh(UNTIL_DETECTED), self.container.try_sh(UNTIL_DETECTED)] {
            assert!(settled, "{}: addresses do not settle: {output}", self.about());
        }
        let mut seen = self.state(added);
        seen.extend(added.names.result(&added.result));
        seen
    }

    fn state(&self, added: &Added) -> BTreeSet<String> {
        added.names.state(&self.host, &self.container)
    }

    /// The outcome of a call with the result of ADD, in one line.
    fn verdict(&self, who: Who, verb: &str, netns: &str, added: &Added) -> String {
        let output = self.call(who, verb, netns, self.row.knows_prev_result().then_some(&added.result));
        added.names.plain(&if output.exit == 0 { SUCCESS.into() } else { refusal(&output) })
    }

    fn about(&self) -> String {
        format!("{} with {}", self.row.id, self.release.version())
    }
}

/// How long upstream's plugins may give up on duplicate address detection.
const DETECTED: Duration = Duration::from_mins(2);

/// Calls ADD. If the plugin gives up on duplicate address detection, as upstream's do after five seconds, it calls DEL, and ADD
/// once more, for two minutes.
///
/// The kernel detects within two seconds, but several times meanwhile it needs its lock for all links (`addrconf_dad_work`). Beside
/// `tests/flood.rs` that took it up to 7.7 seconds.
pub fn add_until_detected(call: impl Fn(&str) -> CallOutput) -> CallOutput {
    let deadline = Deadline::after(DETECTED);
    loop {
        let output = call("ADD");
        if !output.stdout.contains("still has tentative addresses") || deadline.passed() {
            return output;
        }
        call("DEL");
    }
}

/// The error message of a call that failed.
fn refusal(output: &CallOutput) -> String {
    let error: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    format!("refused: {} {} {}", error["code"], text("msg"), text("details")).trim().to_owned()
}

const SUCCESS: &str = "success";

/// The result of an ADD, and its random names.
struct Added {
    result: Value,
    names: Names,
}

/// The lines of each side. A line that only one side has is a difference.
#[derive(Default)]
struct Found {
    theirs: BTreeSet<String>,
    ours: BTreeSet<String>,
    /// Differences that no list can excuse.
    wrong: Vec<String>,
}

/// Each side deletes its own attachment while there is a reservation that cannot be read, so that its owner is unknown.
fn play_unread(row: &Row, release: UpstreamRelease) -> Result<Found, String> {
    let mut found = Found::default();
    for (who, lines) in [(Who::Theirs, &mut found.theirs), (Who::Ours, &mut found.ours)] {
        let mut node = Node::new(row, release);
        let added = node.add(who)?;
        std::fs::write(node.reservation(), "c-other\r\neth0").unwrap();
        node.blind = true;
        lines.insert(format!("own DEL: {}", node.verdict(who, "DEL", &node.container.path(), &added)));
        let left: Vec<_> = std::fs::read_dir(node.host.dir().join("leases/testnet")).unwrap().collect();
        let is_of = |name: &OsStr| name.to_string_lossy().parse::<IpAddr>().is_ok_and(|_| name != row.unreadable);
        if left.into_iter().any(|entry| is_of(&entry.unwrap().file_name())) {
            found.wrong.push(format!("{who:?} leave their own reservation"));
        }
        node.blind = false;
        let output = node.call(who, "DEL", "", None);
        if output.exit != 0 {
            found.wrong.push(format!("DEL by {who:?} once it can be read: {output:?}"));
        }
    }
    Ok(found)
}

/// Plays one row with one release.
fn play(row: &Row, release: UpstreamRelease) -> Result<Found, String> {
    if !row.unreadable.is_empty() {
        return play_unread(row, release);
    }
    let theirs = Node::new(row, release);
    let ours = Node::new(row, release);
    let added = theirs.add(Who::Theirs)?;
    let added_ours = match ours.add(Who::Ours) {
        Ok(added) => added,
        Err(refusal) => return Ok(Found { ours: BTreeSet::from([refusal]), ..Found::default() }),
    };
    let seen = theirs.seen(&added);
    let seen_ours = ours.seen(&added_ours);
    let mut found = Found {
        theirs: seen.difference(&seen_ours).cloned().collect(),
        ours: seen_ours.difference(&seen).cloned().collect(),
        wrong: Vec::new(),
    };
    if row.answers_only {
        return Ok(found);
    }
    let usual = Usual::of(row, release, &seen | &seen_ours)?;
    found.checked(&theirs, &added, &ours, &added_ours, &usual);
    let output = theirs.verdict(Who::Ours, "DEL", &theirs.container.path(), &added);
    found.deleted("of theirs by ours", &output, SUCCESS, &theirs.state(&added), &usual);
    let output = ours.verdict(Who::Theirs, "DEL", &ours.container.path(), &added_ours);
    found.deleted("of ours by theirs", &output, &usual.deleted, &unmarked(ours.state(&added_ours)), &usual);
    found.gone(row, release, &usual)?;
    Ok(found)
}

/// The output and the leftovers of upstream on a node of its own, and what each side makes.
struct Usual {
    checked: String,
    deleted: String,
    left: BTreeSet<String>,
    made: BTreeSet<String>,
    /// What was in the container before a chained plugin.
    before: BTreeSet<String>,
}

impl Usual {
    fn of(row: &Row, release: UpstreamRelease, made: BTreeSet<String>) -> Result<Usual, String> {
        let node = Node::new(row, release);
        let before = match row.before("") {
            Some(_) => Names::of(&node.host, &node.container, row.keeps()).state(&node.host, &node.container),
            None => BTreeSet::new(),
        };
        let added = node.add(Who::Theirs)?;
        let [checked, deleted] =
            ["CHECK", "DEL"].map(|verb| node.verdict(Who::Theirs, verb, &node.container.path(), &added));
        Ok(Usual { checked, deleted, left: node.state(&added), made, before })
    }
}

impl Found {
    /// Each side checks the attachment of the other.
    fn checked(&mut self, theirs: &Node, added: &Added, ours: &Node, added_ours: &Added, usual: &Usual) {
        if !theirs.row.knows_check() {
            return;
        }
        let on_ours = ours.verdict(Who::Theirs, "CHECK", &ours.container.path(), added_ours);
        if on_ours != usual.checked {
            self.theirs.insert(format!("their CHECK of theirs: {}", usual.checked));
            self.ours.insert(format!("their CHECK of ours: {on_ours}"));
        }
        let on_theirs = theirs.verdict(Who::Ours, "CHECK", &theirs.container.path(), added);
        if on_theirs != SUCCESS {
            self.ours.insert(format!("our CHECK of theirs: {on_theirs}"));
        }
    }

    /// DEL must report `has_to` and leave nothing of the attachment. Of shared objects it may leave those that upstream's own DEL
    /// leaves, or those that the other side made instead.
    fn deleted(&mut self, what: &str, output: &str, has_to: &str, left: &BTreeSet<String>, usual: &Usual) {
        if output != has_to {
            self.wrong.push(format!("DEL {what}: {output}"));
        }
        let is_usual = |line: &&String| {
            let was_there = usual.left.contains(*line) || usual.before.contains(*line);
            was_there || usual.made.contains(*line) && !state::is_traced(line, ID)
        };
        self.wrong
            .extend(left.iter().filter(|line| !is_usual(line)).map(|line| format!("left after DEL {what}: {line}")));
    }

    /// Our DEL of an attachment of upstream, whose namespace is gone.
    fn gone(&mut self, row: &Row, release: UpstreamRelease, usual: &Usual) -> Result<(), String> {
        let mut node = Node::new(row, release);
        let added = node.add(Who::Theirs)?;
        let path = format!("{}-that-is-gone", node.container.path());
        node.container = Host::new().container();
        added.names.wait_until_gone(&node.host);
        let output = node.verdict(Who::Ours, "DEL", &path, &added);
        let left: BTreeSet<String> = node.state(&added).into_iter().filter(|line| line.starts_with("host ")).collect();
        self.deleted("of theirs by ours, its namespace gone", &output, SUCCESS, &left, usual);
        Ok(())
    }
}

/// The number of rows at once per processor: half of the time they wait for child processes.
const AT_ONCE: usize = 2;

/// Plays all rows with a release of upstream. Panics with every difference that is not listed, and with every listed one that did
/// not occur.
pub fn alike(release: UpstreamRelease, rows: &[Row]) {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.is_known_to(release)).collect();
    assert!(!rows.is_empty(), "no row is known to {release:?}");
    let next = AtomicUsize::new(0);
    let report = Mutex::new(differences::Report::default());
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..AT_ONCE * processors {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let found = play(row, release);
                    report.lock().unwrap().note(row, release, found, begin.elapsed());
                }
            });
        }
    });
    report.into_inner().unwrap().assert_as_listed(&rows, release);
}

/// The lines without the owners' markers of the firewall: these have no effect, and upstream, which does not use them, leaves them
/// until the next call of ours.
fn unmarked(lines: BTreeSet<String>) -> BTreeSet<String> {
    lines.into_iter().filter(|line| !line.contains("CNI-FORWARD-OWNERS")).collect()
}

/// The time within which the kernel removes a namespace without references.
const GOING: Duration = Duration::from_secs(10);
