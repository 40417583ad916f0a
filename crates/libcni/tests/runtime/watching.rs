//! What a watcher reports, and when.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnikit_libcni::{NetworkSelector, Runtime, SelectionPolicy, Watcher};
use tempfile::TempDir;

use crate::node::{LONG, Node};

/// The time in which a change would have been reported.
const SHORT: Duration = Duration::from_millis(300);

/// How long a file that is not whole is waited for. On a machine that stands still for so long, what is there is used, rightly.
const PATIENCE: Duration = Duration::from_secs(3);

fn watcher(dir: PathBuf, runtime: Option<Runtime>) -> Watcher {
    Watcher::new(NetworkSelector { dir, policy: SelectionPolicy::FirstOfEachName(None), runtime }).unwrap()
}

/// The names of the networks that are used, once they have changed; `None` if they do not in that time.
fn within(watcher: &mut Watcher, time: Duration) -> Option<Vec<String>> {
    let selection = watcher.wait(time).unwrap()?;
    Some(selection.networks.iter().map(|network| network.list.name.clone()).collect())
}

fn next(watcher: &mut Watcher) -> Vec<String> {
    within(watcher, LONG).unwrap()
}

fn list(name: &str) -> String {
    format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "first"}}]}}"#)
}

fn put(file: &Path, name: &str) {
    fs::write(file, list(name)).unwrap();
}

#[test]
fn files_that_come_change_and_go_are_reported_and_others_are_not() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join("net.d").join(name);
    let mut watcher = watcher(dir.path().join("net.d"), None);
    assert_eq!(next(&mut watcher), [""; 0]);
    fs::create_dir(dir.path().join("net.d")).unwrap();
    put(&path("10-a.conflist"), "a");
    assert_eq!(next(&mut watcher), ["a"]);
    put(&path("readme.txt"), "b");
    put(&path("10-a.conflist"), "a");
    assert_eq!(within(&mut watcher, SHORT), None, "the same networks");
    put(&path("20-b.conf.new"), "b");
    fs::rename(path("20-b.conf.new"), path("20-b.conflist")).unwrap();
    assert_eq!(next(&mut watcher), ["a", "b"]);
    put(&path("20-b.conflist"), "c");
    assert_eq!(next(&mut watcher), ["a", "c"]);
    fs::remove_file(path("10-a.conflist")).unwrap();
    assert_eq!(next(&mut watcher), ["c"]);
    fs::remove_dir_all(dir.path().join("net.d")).unwrap();
    assert_eq!(next(&mut watcher), [""; 0]);
    fs::create_dir(dir.path().join("net.d")).unwrap();
    put(&path("10-d.conflist"), "d");
    assert_eq!(next(&mut watcher), ["d"]);
    assert_eq!(watcher.last().unwrap().networks.len(), 1);
}

#[test]
fn a_file_that_is_being_written_is_read_when_it_is_closed() {
    let dir = TempDir::new().unwrap();
    let mut watcher = watcher(dir.path().to_owned(), None);
    assert_eq!(next(&mut watcher), [""; 0]);
    let mut file = File::create(dir.path().join("10-a.conflist")).unwrap();
    let began = Instant::now();
    file.write_all(list("a").as_bytes()).unwrap();
    let open = within(&mut watcher, SHORT);
    assert!(open.is_none() || began.elapsed() >= PATIENCE, "it may not be whole: {open:?}");
    drop(file);
    if open.is_none() {
        assert_eq!(next(&mut watcher), ["a"]);
    }
}

#[test]
fn half_a_file_is_not_used_and_is_waited_for() {
    let dir = TempDir::new().unwrap();
    put(&dir.path().join("20-b.conflist"), "b");
    let began = Instant::now();
    fs::write(dir.path().join("10-a.conflist"), &list("a")[..30]).unwrap();
    let mut watcher = watcher(dir.path().to_owned(), None);
    let without = within(&mut watcher, SHORT);
    assert!(without.is_none() || began.elapsed() >= PATIENCE, "the first network may come: {without:?}");
    put(&dir.path().join("10-a.conflist"), "a");
    assert_eq!(next(&mut watcher), ["a", "b"]);
}

#[test]
fn the_targets_of_links_are_watched_wherever_they_are() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (version, name) in [("one", "a"), ("two", "b"), ("three", "c")] {
        fs::create_dir_all(path("data").join(version)).unwrap();
        put(&path("data").join(version).join("net.conflist"), name);
    }
    // As in a mounted ConfigMap: net.d/10.conflist -> ../data/current/net.conflist, data/current -> one.
    fs::create_dir(path("net.d")).unwrap();
    symlink("one", path("data/current")).unwrap();
    symlink("../data/current/net.conflist", path("net.d/10.conflist")).unwrap();
    symlink("net.d", path("conf")).unwrap();
    let mut watcher = watcher(path("conf"), None);
    assert_eq!(next(&mut watcher), ["a"]);
    symlink("two", path("data/new")).unwrap();
    fs::rename(path("data/new"), path("data/current")).unwrap();
    assert_eq!(next(&mut watcher), ["b"]);
    put(&path("data/two/net.conflist"), "b2");
    assert_eq!(next(&mut watcher), ["b2"]);
    put(&path("data/one/net.conflist"), "a2");
    assert_eq!(within(&mut watcher, SHORT), None, "no link leads there any more");
    fs::create_dir(path("other.d")).unwrap();
    symlink(path("data/three/net.conflist"), path("other.d/10.conflist")).unwrap();
    symlink("other.d", path("conf.new")).unwrap();
    fs::rename(path("conf.new"), path("conf")).unwrap();
    assert_eq!(next(&mut watcher), ["c"]);
    // A link to itself is not a configuration, and does not stop the watcher.
    symlink("loop.conflist", path("other.d/loop.conflist")).unwrap();
    put(&path("other.d/20.conflist"), "d");
    assert_eq!(next(&mut watcher), ["c", "d"]);
}

#[test]
fn plugins_of_a_list_in_other_files_are_watched() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("10-a.conflist"), r#"{"cniVersion": "1.1.0", "name": "a"}"#).unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    let mut watcher = watcher(dir.path().to_owned(), None);
    assert_eq!(next(&mut watcher), [""; 0]);
    fs::write(dir.path().join("a/10.conf"), r#"{"type": "first"}"#).unwrap();
    assert_eq!(next(&mut watcher), ["a"]);
}

#[test]
fn a_network_is_used_as_soon_as_its_plugins_can_serve_it() {
    let mut node = Node::new();
    let bin = node.dir.path().join("bin");
    let net_d = node.dir.path().join("net.d");
    fs::create_dir(&net_d).unwrap();
    put(&net_d.join("10-a.conflist"), "a");
    node.runtime.path = format!("{}:/nonexistent", bin.display());
    node.fails("VERSION first", 11, "not yet");
    let mut watcher = watcher(net_d, Some(node.runtime.clone()));
    assert_eq!(next(&mut watcher), [""; 0]);
    node.recovers("VERSION first");
    fs::create_dir(&bin).unwrap();
    assert_eq!(next(&mut watcher), ["a"]);
    node.fails("VERSION first", 11, "not any more");
    fs::write(bin.join("anything"), "").unwrap();
    assert_eq!(next(&mut watcher), [""; 0]);
    // A file that becomes executable, and one that is written anew, may be plugins that can serve now.
    node.recovers("VERSION first");
    fs::set_permissions(bin.join("anything"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(next(&mut watcher), ["a"]);
    node.fails("VERSION first", 11, "not any more");
    fs::write(bin.join("anything"), "changed").unwrap();
    assert_eq!(next(&mut watcher), [""; 0]);
}
