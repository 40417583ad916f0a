//! A host that runs until the power goes, and boots.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Order;
use super::disk::{Change, Disk, Written, written};
use super::loss::{Loss, lost};
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
const OLDER: [&str; 3] = ["c-one", "c-two", "c-last"];

/// The system calls that sync a file or a directory.
const SYNCS: [i64; 2] = [libc::SYS_fsync, libc::SYS_fdatasync];

/// So often may an ADD be refused that was deleted again.
const ROUNDS: usize = 2;

/// More than any range of a subject has.
const MOST: usize = 64;

/// So many are tried of a plugin that gives no address.
const ENOUGH: usize = 5;

/// A host, and all that changed on its disk.
pub(super) struct Node {
    host: Host,
    subject: Subject,
    changes: Vec<Change>,
    moments: usize,
    died: bool,
}

/// Watches the disk while a plugin runs.
struct Recorder<'a> {
    root: PathBuf,
    disk: Disk,
    changes: &'a mut Vec<Change>,
    moments: usize,
    syncs: Vec<Asked>,
}

/// A sync that was asked for, and may not be done yet.
struct Asked {
    pid: Pid,
    inode: u64,
    /// How many changes there were before it.
    changes: usize,
}

impl Recorder<'_> {
    /// What has changed since it looked last.
    fn look(&mut self) {
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

    fn sees(&mut self, call: &Syscall) {
        self.look();
        // Who asks for something else has had his sync: until then the power takes what it was for.
        for sync in self.syncs.extract_if(.., |sync| sync.pid == call.pid) {
            self.changes[..sync.changes].iter_mut().for_each(|change| change.synced(sync.inode));
        }
        if SYNCS.contains(&call.number.into()) {
            let synced = std::fs::metadata(format!("/proc/{}/fd/{}", call.pid, call.args[0]));
            let inode = synced.map_or(0, |found| found.ino());
            self.syncs.push(Asked { pid: call.pid, inode, changes: self.changes.len() });
        }
    }
}

/// How many containers find room in a range.
pub(super) fn room(subject: &Subject) -> usize {
    let host = Host::new();
    let subject = subject.at(host.dir());
    let add = |n: usize| subject.call(&host, "ADD", &format!("c-{n}"), &subject.container(&host).path(), &[]);
    if addresses(&add(0).ok()).next().is_none() {
        return ENOUGH;
    }
    let room = 1 + (1..MOST).take_while(|n| add(*n).exit == 0).count();
    assert!((4..MOST).contains(&room), "{room} find room: a range of 4 to {MOST} addresses is wanted");
    room
}

impl Node {
    /// Two were added, and one of them deleted.
    pub(super) fn new(subject: &Subject) -> Node {
        let host = Host::new();
        let mut node = Node { subject: subject.at(host.dir()), host, changes: Vec::new(), moments: 0, died: false };
        for (verb, id) in [("ADD", OLDER[0]), ("ADD", OLDER[1]), ("DEL", OLDER[0])] {
            assert_eq!(node.watched(verb, id, &[], usize::MAX), 0, "{verb} of {id}");
        }
        node.moments = 0;
        node
    }

    /// A last call, killed after so many moments at which it changed something.
    pub(super) fn until(mut self, verb: Verb, moments: usize) -> Node {
        let (id, more) = match verb {
            Verb::Add => (OLDER[2], Vec::new()),
            Verb::Del => (OLDER[1], Vec::new()),
            Verb::Gc => ("", vec![("cni.dev/valid-attachments", json!([]))]),
        };
        self.died = self.watched(verb.command(), id, &more, moments) < 0;
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
    pub(super) fn written(&self) -> Vec<Written> {
        written(&self.changes)
    }

    fn watched(&mut self, verb: &str, id: &str, more: &[(&str, Value)], until: usize) -> i32 {
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
            recorder.sees(call);
            if recorder.moments >= until { SyscallVerdict::Signal(Signal::SIGKILL) } else { SyscallVerdict::GoOn }
        };
        let (said, _) = self.host.enter(|| syscall_trace::run(&program, &env, stdin.as_bytes(), &[], decide)).unwrap();
        recorder.look();
        self.moments = recorder.moments;
        said.exit
    }

    /// The power goes, and this with it.
    pub(super) fn without(self, loss: &Loss) -> Node {
        loss.strike(self.host.dir(), &self.changes);
        self
    }

    /// It boots, and whatever a runtime does then succeeds.
    pub(super) fn boots_and_works(self, room: usize, order: Order) {
        let Node { host, subject, .. } = self;
        let mut host = host.rebooted();
        let lost = lost(&Disk::of(host.dir()));
        let mut said = String::new();
        host.in_another_boot(|| {
            let mut after = After::of(&host, &subject, &mut said);
            after.goes_on(order);
            if !order.boots_again {
                after.sweeps();
                after.fills(room);
                after.all_go();
            }
        });
        if order.boots_again {
            host = host.rebooted();
            host.in_another_boot(|| After::of(&host, &subject, &mut said).fills(room));
        }
        let silent = lost.iter().find(|address| !said.contains(address.as_str()));
        assert_eq!(silent, None, "nobody says that the file of this address lost its content: {said}");
    }
}

/// A container, and how it was before a chained plugin changed what others had made in it.
struct Fresh {
    container: Container,
    inside: Option<HostSnapshot>,
}

impl Fresh {
    fn of(subject: &Subject, host: &Host) -> Fresh {
        let container = subject.container(host);
        Fresh { inside: subject.after.as_ref().map(|_| HostSnapshot::inside(&container)), container }
    }
}

/// A host after the boot.
struct After<'a> {
    host: &'a Host,
    subject: &'a Subject,
    /// Who was added since: name, container, result.
    live: Vec<(String, Fresh, Value)>,
    /// All that was said on standard error.
    said: &'a mut String,
}

impl<'a> After<'a> {
    fn of(host: &'a Host, subject: &'a Subject, said: &'a mut String) -> After<'a> {
        After { host, subject, live: Vec::new(), said }
    }

    /// What every runtime does.
    fn goes_on(&mut self, order: Order) {
        self.does("STATUS", "", &[]);
        if order.adds_first {
            self.adds_again(OLDER[1]);
            self.adds("c-new-1");
        }
        for id in OLDER {
            if !self.is_live(id) {
                self.dels(id);
            }
        }
        self.adds("c-new-2");
        self.checks();
    }

    /// As many find room as ever.
    fn fills(&mut self, room: usize) {
        for n in self.live.len()..room {
            self.adds(&format!("c-more-{n}"));
        }
        self.checks();
    }

    fn call(&mut self, verb: &str, id: &str, netns: &str, more: &[(&str, Value)]) -> CallOutput {
        let mut conf = self.subject.conf_of(verb, netns);
        more.iter().for_each(|(key, value)| conf[*key] = value.clone());
        let env = [("CNI_LOG", "info")];
        let said = self.subject.call_raw(self.host, verb, id, netns, conf.to_string().as_bytes(), &env);
        *self.said += &said.stderr;
        said
    }

    fn does(&mut self, verb: &str, id: &str, more: &[(&str, Value)]) {
        let said = self.call(verb, id, "", more);
        assert_eq!(said.exit, 0, "{verb} {id}: {}{}", said.stdout, said.stderr);
    }

    fn is_live(&self, id: &str) -> bool {
        self.live.iter().any(|(live, ..)| live == id)
    }

    /// Its container is gone, and what its namespace was too.
    fn dels(&mut self, id: &str) {
        self.does("DEL", id, &[]);
    }

    fn adds(&mut self, id: &str) {
        let fresh = Fresh::of(self.subject, self.host);
        let said = self.call("ADD", id, &fresh.container.path(), &[]);
        assert_eq!(said.exit, 0, "ADD of {id}: {}", said.stdout);
        self.live.push((id.to_owned(), fresh, said.json()));
    }

    /// Of a name that may be known: if that is refused, it is not for ever. A runtime deletes what it could not add, and tries
    /// again; where half of what a file said is lost, one DEL may find one part, and the next one the other.
    fn adds_again(&mut self, id: &str) {
        let fresh = Fresh::of(self.subject, self.host);
        for _ in 0..ROUNDS {
            let said = self.call("ADD", id, &fresh.container.path(), &[]);
            if said.exit == 0 {
                return self.live.push((id.to_owned(), fresh, said.json()));
            }
            self.dels(id);
        }
        self.adds(id);
    }

    fn sweeps(&mut self) {
        let valid = attachments(self.live.iter().map(|(id, ..)| id));
        self.does("GC", "", &[("cni.dev/valid-attachments", valid)]);
    }

    /// Each has addresses of its own, and they are still its.
    fn checks(&mut self) {
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
    fn all_go(&mut self) {
        for (id, Fresh { container, inside }, result) in std::mem::take(&mut self.live) {
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
    use crate::checks::crash::disk::What;

    /// The recorder sees that this file is synced, and then the next call of the same process.
    fn sync(recorder: &mut Recorder, path: &Path) {
        let file = File::open(path).unwrap();
        let fd = u64::try_from(file.as_raw_fd()).unwrap();
        for number in [libc::SYS_fsync, libc::SYS_getpid] {
            let number = i32::try_from(number).unwrap();
            recorder.sees(&Syscall { process: 0, pid: Pid::this(), place: 0, number, args: [fd, 0, 0, 0, 0, 0] });
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
        recorder.look();
        fs::rename(root.join("old"), &away).unwrap();
        recorder.look();
        fs::rename(&away, root.join("new")).unwrap();
        sync(&mut recorder, &root.join("new"));
        let durable: Vec<(&Path, bool)> = changes
            .iter()
            .filter(|change| matches!(change.what, What::Content { .. }))
            .map(|change| (change.path.as_path(), change.durable))
            .collect();
        assert_eq!(durable, [(Path::new("old"), false), (Path::new("new"), true)]);
    }
}
