//! The file in which a plugin stores what it changed until DEL: under attack, and from an earlier boot.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnikit_testkit::{Host, HostSnapshot, Subject};
use serde_json::{Value, json};

/// What another user puts in place of a file, and the shell line that makes it there.
pub const SPOILS: [(&str, &str); 4] = [
    ("a FIFO", "mkfifo"),
    ("a link", "ln -s /etc/passwd"),
    ("a dangling link", "ln -s /tmp/cnikit-adversary-made"),
    ("a device", "mknod --mode=666"),
];

/// The file that the dangling link would make.
pub const MADE_BY_SPOIL: &str = "/tmp/cnikit-adversary-made";

/// A process that waits for the other end of a FIFO waits for ever; the test kit kills it after two minutes.
pub const SOON: Duration = Duration::from_mins(1);

/// Replaces a file with one of [`SPOILS`].
pub fn spoil(host: &Host, path: &Path, make: &str) {
    let path = path.display();
    let end = if make.starts_with("mknod") { " c 1 3" } else { "" };
    host.sh(&format!("rm -f {path}; {make} {path}{end}"));
}

/// The only file in the `dataDir` of a subject.
pub fn state_file(subject: &Subject) -> PathBuf {
    let files = state_files(subject);
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// The files there.
pub fn state_files(subject: &Subject) -> Vec<PathBuf> {
    let dir = subject.conf["dataDir"].as_str().unwrap();
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Asserts that calls neither wait for what is in place of the file, nor follow it. ADD puts a file of its own there; DEL and GC
/// leave it.
pub fn opens_no_spoiled_file(subject: &Subject) {
    let users = fs::read("/etc/passwd").unwrap();
    for (what, make) in SPOILS {
        let host = subject.host();
        let subject = subject.at(host.dir());
        let title = format!("{}, {what}", subject.title);
        let container = subject.container(&host);
        let call = |verb: &str, more: &[(&str, Value)]| {
            let began = Instant::now();
            let (id, path) = if verb == "GC" { ("", String::new()) } else { ("c-one", container.path()) };
            let output = subject.call(&host, verb, id, &path, more);
            assert!(began.elapsed() < SOON, "{title}: {verb} took {:?}", began.elapsed());
            output
        };
        let result = call("ADD", &[]).ok();
        let file = state_file(&subject);
        call("DEL", &[("prevResult", result)]).ok();
        spoil(&host, &file, make);
        let result = call("ADD", &[]).ok();
        let facts = fs::symlink_metadata(&file).unwrap();
        assert!(facts.is_file() && facts.mode() & 0o7777 == 0o600, "{title}: {facts:?}");
        call("CHECK", &[("prevResult", result.clone())]).ok();
        spoil(&host, &file, make);
        call("DEL", &[("prevResult", result)]).ok();
        call("GC", &[("cni.dev/valid-attachments", json!([]))]).ok();
        assert!(
            !fs::symlink_metadata(&file).unwrap().is_file(),
            "{title}: what is not a file was made by another program"
        );
        assert!(!Path::new(MADE_BY_SPOIL).exists(), "{title}");
    }
    assert_eq!(fs::read("/etc/passwd").unwrap(), users, "{}", subject.title);
}

/// Asserts that DEL gives nothing back by a file of an earlier boot, and removes it. The numbers of namespaces and links begin anew
/// with each boot, so that what the file names may be another container's.
pub fn forgets_an_earlier_boot(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let one = subject.container(&host);
    let result = subject.add(&host, "c-one", &one);
    let file = state_file(&subject);
    let mut stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(stored["owner"]["boot"].is_string(), "{stored}");
    stored["owner"]["boot"] = json!("00000000-0000-4000-8000-000000000000");
    fs::write(&file, stored.to_string()).unwrap();
    let two = subject.container(&host);
    let before = HostSnapshot::of(&host);
    let inside = [&one, &two].map(HostSnapshot::inside);
    subject.del(&host, "c-one", &two, &result);
    assert_eq!(state_files(&subject), Vec::<PathBuf>::new(), "{}", subject.title);
    let title = &subject.title;
    for (container, inside) in [&one, &two].into_iter().zip(&inside) {
        HostSnapshot::inside(container).assert_unchanged_since(inside, &[], title);
    }
    let name = file.file_name().unwrap().to_str().unwrap();
    HostSnapshot::of(&host).assert_unchanged_since(&before, &[name, "leases"], title);
}

/// Asserts that a dry run plans something, and changes nothing on the host and in the container.
pub fn changes_nothing_in_a_dry_run(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let snapshots = || (HostSnapshot::of(&host), HostSnapshot::inside(&container));
    let before = snapshots();
    let output = subject.call(&host, "PLAN", "c-one", &container.path(), &[]).ok();
    assert!(output["plan"].as_array().is_some_and(|steps| !steps.is_empty()), "{}: {output}", subject.title);
    let after = snapshots();
    after.0.assert_unchanged_since(&before.0, &[], &subject.title);
    after.1.assert_unchanged_since(&before.1, &[], &subject.title);
    let result = subject.add(&host, "c-one", &container);
    assert!(snapshots() != before, "{}: ADD changes nothing either", subject.title);
    subject.del(&host, "c-one", &container, &result);
}
