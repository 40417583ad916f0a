//! A host that runs until the power goes, and boots.

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

/// What is under way when the power goes.
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

/// Who was there before: one of them was deleted again, and one is added or deleted, or swept, when the power goes.
const EXISTING: [&str; 3] = ["c-one", "c-two", "c-last"];

/// The system calls that sync a file or a directory.
const SYNCS: [i64; 2] = [libc::SYS_fsync, libc::SYS_fdatasync];

/// So often may an ADD be refused that was deleted again.
const ROUNDS: usize = 2;

/// More than any range of a subject has.
const MOST: usize = 64;

/// So many are tried of a plugin that gives no address.
const ENOUGH: usize = 5;

/// A host, and all that changed on its disk.
pub(super) struct CrashNode {
    host: Host,
    subject: Subject,
    changes: Vec<DiskChange>,
    moments: usize,
    died: bool,
}

/// Watches the disk while a plugin runs.
struct Recorder<'a> {
    root: PathBuf,
    disk: Disk,
    changes: &'a mut Vec<DiskChange>,
    moments: usize,
    syncs: Vec<PendingSync>,
}

/// A sync that was asked for, and may not be done yet.
struct PendingSync {
    pid: Pid,
    inode: u64,
    /// How many changes there were before it.
    changes: usize,
}

impl Recorder<'_> {
    /// What has changed since it looked last.
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

    fn before_call(&mut self, call: &Syscall) {
        self.record_changes();
        // Who asks for something else has had his sync: until then the power takes what it was for.
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

/// How many containers find room in a range.
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
    /// Two were added, and one of them deleted.
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

    /// A last call, killed after so many moments at which it changed something.
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

    /// Was the last call under way when the power went?
    pub(super) fn died(&self) -> bool {
        self.died
    }

    /// What was on the disk when the power went, and what of it lasts.
    pub(super) fn change_records(&self) -> Vec<ChangeRecord> {
        change_records(&self.changes)
    }

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
        let decide = |call: &Syscall| {
            recorder.before_call(call);
            if recorder.moments >= until { SyscallVerdict::Signal(Signal::SIGKILL) } else { SyscallVerdict::GoOn }
        };
        let (said, _) = self.host.enter(|| syscall_trace::run(&program, &env, stdin.as_bytes(), &[], decide)).unwrap();
        recorder.record_changes();
        self.moments = recorder.moments;
        said.exit
    }

    /// The power goes, and this with it.
    pub(super) fn cut_power(self, loss: &Loss) -> CrashNode {
        loss.apply(self.host.dir(), &self.changes);
        self
    }

    /// It boots, and whatever a runtime does then succeeds.
    pub(super) fn reboot_and_verify(self, capacity: usize, order: Recovery) {
        let CrashNode { host, subject, .. } = self;
        let mut host = host.rebooted();
        let lost = torn_reservations(&Disk::of(host.dir()));
        let mut said = String::new();
        host.in_another_boot(|| {
            let mut after = RebootedNode::of(&host, &subject, &mut said);
            after.recover(order);
            if !order.boots_again {
                after.gc();
                after.fill_range(capacity);
                after.del_all();
            }
        });
        if order.boots_again {
            host = host.rebooted();
            host.in_another_boot(|| RebootedNode::of(&host, &subject, &mut said).fill_range(capacity));
        }
        let silent = lost.iter().find(|address| !said.contains(address.as_str()));
        assert_eq!(silent, None, "nobody says that the file of this address lost its content: {said}");
    }
}

/// A container, and how it was before a chained plugin changed what others had made in it.
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

/// A host after the boot.
struct RebootedNode<'a> {
    host: &'a Host,
    subject: &'a Subject,
    /// Who was added since: name, container, result.
    live: Vec<(String, TestContainer, Value)>,
    /// All that was said on standard error.
    said: &'a mut String,
}

impl<'a> RebootedNode<'a> {
    fn of(host: &'a Host, subject: &'a Subject, said: &'a mut String) -> RebootedNode<'a> {
        RebootedNode { host, subject, live: Vec::new(), said }
    }

    /// What every runtime does.
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

    /// As many find room as ever.
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
        let said = self.subject.call_raw(self.host, verb, id, netns, conf.to_string().as_bytes(), &env);
        *self.said += &said.stderr;
        said
    }

    fn succeed(&mut self, verb: &str, id: &str, more: &[(&str, Value)]) {
        let said = self.call(verb, id, "", more);
        assert_eq!(said.exit, 0, "{verb} {id}: {}{}", said.stdout, said.stderr);
    }

    fn is_live(&self, id: &str) -> bool {
        self.live.iter().any(|(live, ..)| live == id)
    }

    /// Its container is gone, and what its namespace was too.
    fn del(&mut self, id: &str) {
        self.succeed("DEL", id, &[]);
    }

    fn add(&mut self, id: &str) {
        let fresh = TestContainer::of(self.subject, self.host);
        let said = self.call("ADD", id, &fresh.container.path(), &[]);
        assert_eq!(said.exit, 0, "ADD of {id}: {}", said.stdout);
        self.live.push((id.to_owned(), fresh, said.json()));
    }

    /// Of a name that may be known: if that is refused, it is not for ever. A runtime deletes what it could not add, and tries
    /// again; where half of what a file said is lost, one DEL may find one part, and the next one the other.
    fn add_with_retries(&mut self, id: &str) {
        let fresh = TestContainer::of(self.subject, self.host);
        for _ in 0..ROUNDS {
            let said = self.call("ADD", id, &fresh.container.path(), &[]);
            if said.exit == 0 {
                return self.live.push((id.to_owned(), fresh, said.json()));
            }
            self.del(id);
        }
        self.add(id);
    }

    fn gc(&mut self) {
        let valid = attachments(self.live.iter().map(|(id, ..)| id));
        self.succeed("GC", "", &[("cni.dev/valid-attachments", valid)]);
    }

    /// Each has addresses of its own, and they are still its.
    fn check_all(&mut self) {
        let mut owners: BTreeMap<String, String> = BTreeMap::new();
        for (id, fresh, result) in std::mem::take(&mut self.live) {
            for address in addresses(&result) {
                let other = owners.insert(address.to_owned(), id.clone());
                assert_eq!(other, None, "{address} was given to {id} too");
            }
            let said = self.call("CHECK", &id, &fresh.container.path(), &[("prevResult", result.clone())]);
            assert_eq!(said.exit, 0, "CHECK of {id}: {}", said.stdout);
            self.live.push((id, fresh, result));
        }
    }

    /// And what was lent is given back.
    fn del_all(&mut self) {
        for (id, TestContainer { container, inside }, result) in std::mem::take(&mut self.live) {
            let said = self.call("DEL", &id, &container.path(), &[("prevResult", result)]);
            assert_eq!(said.exit, 0, "DEL of {id}: {}", said.stdout);
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

    /// The recorder sees that this file is synced, and then the next call of the same process.
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

    /// A file that is moved away and back is, to the recorder, one that was removed and another one with its inode number.
    #[test]
    fn a_sync_of_a_new_file_is_none_of_a_removed_one_that_had_its_inode_number() {
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
