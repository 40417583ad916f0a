//! A host that runs until a power cut, and reboots.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Recovery;
use super::disk::{ChangeRecord, Disk, DiskChange, change_records};
use super::loss::{Loss, torn_reservations};
use crate::env::host::{Container, Host};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{CallOutput, Subject, addresses, attachments};
use crate::syscall_trace::{self, Syscall, SyscallVerdict};

/// The verb that runs when the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Del,
    Gc,
}

impl Verb {
    pub(super) const ALL: [Verb; 3] = [Verb::Add, Verb::Del, Verb::Gc];

    pub(super) fn command(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Gc => "GC",
        }
    }
}

/// Containers before the power cut: one was added and deleted, one is added, and one is added by the last call.
const EXISTING: [&str; 3] = ["c-one", "c-two", "c-last"];

/// The system calls that sync a file or a directory.
const SYNCS: [i64; 2] = [libc::SYS_fsync, libc::SYS_fdatasync];

/// How often an ADD may fail and be retried after a DEL.
const ROUNDS: usize = 2;

/// More addresses than the range of any subject has.
const MOST: usize = 64;

/// The number of containers for a plugin that assigns no addresses.
const ENOUGH: usize = 5;

/// A host, and all changes on its disk.
pub(super) struct CrashNode {
    host: Host,
    subject: Subject,
    changes: Vec<DiskChange>,
    moments: usize,
    died: bool,
}

/// Records changes on the disk while a plugin runs.
struct Recorder<'a> {
    root: PathBuf,
    disk: Disk,
    changes: &'a mut Vec<DiskChange>,
    moments: usize,
    syncs: Vec<PendingSync>,
}

/// A sync that was started and may not be complete.
struct PendingSync {
    pid: Pid,
    inode: u64,
    /// The number of changes before the sync.
    changes: usize,
}

impl Recorder<'_> {
    /// Records what changed on the disk since the last call.
    fn record_changes(&mut self) {
        let disk = Disk::of(&self.root);
        let inode = self.root.metadata().map_or(0, |found| found.ino());
        let changes = disk.changes_since(&self.disk, inode);
        self.moments += usize::from(!changes.is_empty());
        self.changes.extend(changes);
        let mut there = disk.inodes();
        there.insert(inode);
        for change in self.changes.iter_mut() {
            change.removed |= !there.contains(&change.inode());
        }
        self.disk = disk;
    }

    /// Records changes and syncs before a system call, and kills the process after `until` moments.
    fn decide(&mut self, call: &Syscall, until: usize) -> SyscallVerdict {
        self.before_call(call);
        if self.moments >= until { SyscallVerdict::Signal(Signal::SIGKILL) } else { SyscallVerdict::GoOn }
    }

    /// Records changes and syncs before a system call.
    fn before_call(&mut self, call: &Syscall) {
        self.record_changes();
        // A process that makes its next call has completed its sync. Until then a power cut may lose the synced changes.
        for sync in self.syncs.extract_if(.., |sync| sync.pid == call.pid) {
            self.changes[..sync.changes].iter_mut().for_each(|change| change.synced(sync.inode));
        }
        if SYNCS.contains(&call.number.into()) {
            let synced = std::fs::metadata(format!("/proc/{}/fd/{}", call.pid, call.args[0]));
            let inode = synced.map_or(0, |found| found.ino());
            self.syncs.push(PendingSync { pid: call.pid, inode, changes: self.changes.len() });
        }
    }
}

/// The number of containers that the subject's range has addresses for.
pub(super) fn capacity(subject: &Subject) -> usize {
    let host = Host::new();
    let subject = subject.at(host.dir());
    let add = |n: usize| subject.call(&host, "ADD", &format!("c-{n}"), &subject.container(&host).path(), &[]);
    if addresses(&add(0).ok()).next().is_none() {
        return ENOUGH;
    }
    let capacity = 1 + (1..MOST).take_while(|n| add(*n).exit == 0).count();
    assert!((4..MOST).contains(&capacity), "{capacity} find room: a range of 4 to {MOST} addresses is wanted");
    capacity
}

impl CrashNode {
    /// Makes a host with one container; another one was added and deleted.
    pub(super) fn new(subject: &Subject) -> CrashNode {
        let host = Host::new();
        let mut node =
            CrashNode { subject: subject.at(host.dir()), host, changes: Vec::new(), moments: 0, died: false };
        for (verb, id) in [("ADD", EXISTING[0]), ("ADD", EXISTING[1]), ("DEL", EXISTING[0])] {
            assert_eq!(node.traced_call(verb, id, &[], usize::MAX), 0, "{verb} of {id}");
        }
        node.moments = 0;
        node
    }

    /// Runs a last call, and kills it after this many moments at which it changed something on the disk.
    pub(super) fn run_until(mut self, verb: Verb, moments: usize) -> CrashNode {
        let (id, more) = match verb {
            Verb::Add => (EXISTING[2], Vec::new()),
            Verb::Del => (EXISTING[1], Vec::new()),
            Verb::Gc => ("", vec![("cni.dev/valid-attachments", json!([]))]),
        };
        self.died = self.traced_call(verb.command(), id, &more, moments) < 0;
        self
    }

    pub(super) fn moments(&self) -> usize {
        self.moments
    }

    /// Whether the last call was still running at the power cut.
    pub(super) fn died(&self) -> bool {
        self.died
    }

    /// The changes until the power cut, and which of them are durable.
    pub(super) fn change_records(&self) -> Vec<ChangeRecord> {
        change_records(&self.changes)
    }

    /// Calls the plugin, records its changes, and kills it after `until` moments. Returns the exit status.
    fn traced_call(&mut self, verb: &str, id: &str, more: &[(&str, Value)], until: usize) -> i32 {
        let container = self.subject.container(&self.host);
        let mut conf = self.subject.conf_of(verb, &container.path());
        more.iter().for_each(|(key, value)| conf[*key] = value.clone());
        let env = self.subject.environment(verb, id, &container.path(), &[]);
        let program = self.subject.bin.join(&self.subject.plugin);
        let stdin = conf.to_string();
        let root = self.host.dir().to_owned();
        let disk = Disk::of(&root);
        let changes = &mut self.changes;
        let mut recorder = Recorder { disk, root, changes, moments: 0, syncs: Vec::new() };
        let decide = |call: &Syscall| recorder.decide(call, until);
        let (output, _) =
            self.host.enter(|| syscall_trace::run(&program, &env, stdin.as_bytes(), &[], decide)).unwrap();
        recorder.record_changes();
        self.moments = recorder.moments;
        output.exit
    }

    /// Cuts the power with this loss.
    pub(super) fn cut_power(self, loss: &Loss) -> CrashNode {
        loss.apply(self.host.dir(), &self.changes);
        self
    }

    /// Reboots, and checks that all calls of a runtime succeed and lost reservations are reported.
    pub(super) fn reboot_and_verify(self, capacity: usize, order: Recovery) {
        let CrashNode { host, subject, .. } = self;
        let mut host = host.rebooted();
        let lost = torn_reservations(&Disk::of(host.dir()));
        let mut output = String::new();
        host.in_another_boot(|| RebootedNode::of(&host, &subject, &mut output).make_all_calls(capacity, order));
        if order.boots_again {
            host = host.rebooted();
            host.in_another_boot(|| RebootedNode::of(&host, &subject, &mut output).fill_range(capacity));
        }
        let silent = lost.iter().find(|address| !output.contains(address.as_str()));
        assert_eq!(silent, None, "no call reports that the file of this address lost its content: {output}");
    }
}

/// A container, and its snapshot before a chained plugin changes it.
struct TestContainer {
    container: Container,
    inside: Option<HostSnapshot>,
}

impl TestContainer {
    fn of(subject: &Subject, host: &Host) -> TestContainer {
        let container = subject.container(host);
        TestContainer { inside: subject.after.as_ref().map(|_| HostSnapshot::inside(&container)), container }
    }
}

/// A host after the reboot.
struct RebootedNode<'a> {
    host: &'a Host,
    subject: &'a Subject,
    /// The containers added since the reboot: ID, container, result.
    live: Vec<(String, TestContainer, Value)>,
    /// The stderr of all calls.
    output: &'a mut String,
}

impl<'a> RebootedNode<'a> {
    fn of(host: &'a Host, subject: &'a Subject, output: &'a mut String) -> RebootedNode<'a> {
        RebootedNode { host, subject, live: Vec::new(), output }
    }

    /// Makes the calls of a runtime after the reboot, and fills the range, unless there is going to be a second reboot.
    fn make_all_calls(&mut self, capacity: usize, order: Recovery) {
        self.recover(order);
        if !order.boots_again {
            self.gc();
            self.fill_range(capacity);
            self.del_all();
        }
    }

    /// Makes the calls that every runtime makes after a reboot.
    fn recover(&mut self, order: Recovery) {
        self.succeed("STATUS", "", &[]);
        if order.adds_first {
            self.add_with_retries(EXISTING[1]);
            self.add("c-new-1");
        }
        for id in EXISTING {
            if !self.is_live(id) {
                self.del(id);
            }
        }
        self.add("c-new-2");
        self.check_all();
    }

    /// Adds containers until the range is full, and checks all.
    fn fill_range(&mut self, capacity: usize) {
        for n in self.live.len()..capacity {
            self.add(&format!("c-more-{n}"));
        }
        self.check_all();
    }

    fn call(&mut self, verb: &str, id: &str, netns: &str, more: &[(&str, Value)]) -> CallOutput {
        let mut conf = self.subject.conf_of(verb, netns);
        more.iter().for_each(|(key, value)| conf[*key] = value.clone());
        let env = [("CNI_LOG", "info")];
        let output = self.subject.call_raw(self.host, verb, id, netns, conf.to_string().as_bytes(), &env);
        *self.output += &output.stderr;
        output
    }

    fn succeed(&mut self, verb: &str, id: &str, more: &[(&str, Value)]) {
        let output = self.call(verb, id, "", more);
        assert_eq!(output.exit, 0, "{verb} {id}: {}{}", output.stdout, output.stderr);
    }

    fn is_live(&self, id: &str) -> bool {
        self.live.iter().any(|(live, ..)| live == id)
    }

    /// Deletes an attachment whose container and namespace are gone.
    fn del(&mut self, id: &str) {
        self.succeed("DEL", id, &[]);
    }

    fn add(&mut self, id: &str) {
        let fresh = TestContainer::of(self.subject, self.host);
        let output = self.call("ADD", id, &fresh.container.path(), &[]);
        assert_eq!(output.exit, 0, "ADD of {id}: {}", output.stdout);
        self.live.push((id.to_owned(), fresh, output.json()));
    }

    /// Adds a container with an ID that the plugin may know from before. If that fails, it must not fail for ever: a runtime
    /// deletes what it could not add, and retries. If half of a file was lost, one DEL may find one part and the next DEL the
    /// other.
    fn add_with_retries(&mut self, id: &str) {
        let fresh = TestContainer::of(self.subject, self.host);
        for _ in 0..ROUNDS {
            let output = self.call("ADD", id, &fresh.container.path(), &[]);
            if output.exit == 0 {
                return self.live.push((id.to_owned(), fresh, output.json()));
            }
            self.del(id);
        }
        self.add(id);
    }

    fn gc(&mut self) {
        let valid = attachments(self.live.iter().map(|(id, ..)| id));
        self.succeed("GC", "", &[("cni.dev/valid-attachments", valid)]);
    }

    /// Checks that no two containers share an address, and that CHECK passes for each.
    fn check_all(&mut self) {
        let mut owners: BTreeMap<String, String> = BTreeMap::new();
        for (id, fresh, result) in std::mem::take(&mut self.live) {
            for address in addresses(&result) {
                let other = owners.insert(address.to_owned(), id.clone());
                assert_eq!(other, None, "{address} was given to {id} too");
            }
            let output = self.call("CHECK", &id, &fresh.container.path(), &[("prevResult", result.clone())]);
            assert_eq!(output.exit, 0, "CHECK of {id}: {}", output.stdout);
            self.live.push((id, fresh, result));
        }
    }

    /// Deletes all containers, and checks that a chained plugin undid its changes.
    fn del_all(&mut self) {
        for (id, TestContainer { container, inside }, result) in std::mem::take(&mut self.live) {
            let output = self.call("DEL", &id, &container.path(), &[("prevResult", result)]);
            assert_eq!(output.exit, 0, "DEL of {id}: {}", output.stdout);
            if let Some(before) = inside {
                HostSnapshot::inside(&container).assert_unchanged_since(
                    &before,
                    &[],
                    &format!("in {id} after its DEL"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::path::Path;

    use super::*;
    use crate::checks::crash::disk::ChangeKind;

    /// Simulates a sync of this file and the next system call of the same process.
    fn sync(recorder: &mut Recorder, path: &Path) {
        let file = File::open(path).unwrap();
        let fd = u64::try_from(file.as_raw_fd()).unwrap();
        for number in [libc::SYS_fsync, libc::SYS_getpid] {
            let number = i32::try_from(number).unwrap();
            recorder.before_call(&Syscall {
                process: 0,
                pid: Pid::this(),
                place: 0,
                number,
                args: [fd, 0, 0, 0, 0, 0],
            });
        }
    }

    /// A file that is moved away and back looks to the recorder like a removed file and a new one with the same inode number.
    #[test]
    fn a_sync_of_a_new_file_is_not_of_a_removed_one_with_its_inode() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        let away = place.path().join("away");
        fs::create_dir(&root).unwrap();
        let mut changes = Vec::new();
        let disk = Disk::of(&root);
        let mut recorder = Recorder { root: root.clone(), disk, changes: &mut changes, moments: 0, syncs: Vec::new() };
        fs::write(root.join("old"), "old").unwrap();
        recorder.record_changes();
        fs::rename(root.join("old"), &away).unwrap();
        recorder.record_changes();
        fs::rename(&away, root.join("new")).unwrap();
        sync(&mut recorder, &root.join("new"));
        let durable: Vec<(&Path, bool)> = changes
            .iter()
            .filter(|change| matches!(change.what, ChangeKind::Content { .. }))
            .map(|change| (change.path.as_path(), change.durable))
            .collect();
        assert_eq!(durable, [(Path::new("old"), false), (Path::new("new"), true)]);
    }
}
