//! Files and locks on the real file system.

#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use cnikit_store::{Directory, Error, PrivateDirectory};
use nix::sys::time::TimeSpec;
use tempfile::TempDir;

const SOON: Duration = Duration::from_millis(60);
const LONG: Duration = Duration::from_secs(20);

fn fresh() -> (TempDir, Directory) {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::make(place.path().join("a/b"), 0o755).unwrap();
    (place, directory)
}

fn names(directory: &Directory) -> Vec<String> {
    let mut names: Vec<String> =
        directory.list().unwrap().into_iter().map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_new_file_appears_whole_and_never_takes_a_name_that_is_taken() {
    let (_place, directory) = fresh();
    let facts = directory.create("one", b"content", 0o640).unwrap().unwrap();
    let file = fs::metadata(directory.path().join("one")).unwrap();
    assert_eq!((file.ino(), file.mode() & 0o777, facts.size, facts.regular), (facts.inode, 0o640, 7, true));
    assert_eq!(directory.facts("one").unwrap(), Some(facts), "nothing touched it since");
    assert!(directory.create("one", b"other", 0o600).unwrap().is_none());
    symlink("nowhere", directory.path().join("link")).unwrap();
    assert!(directory.create("link", b"other", 0o600).unwrap().is_none());
    assert!(directory.create_and_sync("one", b"other", 0o600).unwrap().is_none());
    assert_eq!(directory.read("one", 100).unwrap().unwrap().0, b"content");
    let synced = directory.create_and_sync("two", b"synced", 0o600).unwrap();
    assert_eq!(
        (directory.facts("two").unwrap(), &directory.read("two", 9).unwrap().unwrap().0[..]),
        (synced, &b"synced"[..])
    );
    assert_eq!(names(&directory), ["link", "one", "two"]);
}

#[test]
fn one_of_many_that_create_one_name_succeeds() {
    let (_place, directory) = fresh();
    std::thread::scope(|scope| {
        let directory = &directory;
        let tries: Vec<_> =
            (0..16).map(|n| scope.spawn(move || directory.create("one", &[n; 9], 0o600).unwrap())).collect();
        assert_eq!(tries.into_iter().filter_map(|made| made.join().unwrap()).count(), 1);
    });
    let (content, _) = directory.read("one", 9).unwrap().unwrap();
    assert!(content.iter().all(|byte| *byte == content[0]) && content.len() == 9);
}

#[test]
fn a_renewed_file_is_another_inode() {
    let (_place, directory) = fresh();
    let old = directory.create("one", b"old", 0o600).unwrap().unwrap();
    let new = directory.renew("one", b"new", 0o600).unwrap().unwrap();
    assert_ne!(old.inode, new.inode);
    assert_eq!(directory.read("one", 9).unwrap(), Some((b"new".to_vec(), new)));
}

#[test]
fn a_replaced_file_is_the_old_or_the_new_to_every_reader() {
    let (_place, directory) = fresh();
    directory.replace("one", &[0; 4000], 0o600).unwrap();
    std::thread::scope(|scope| {
        let directory = &directory;
        for writer in 1..4_u8 {
            scope.spawn(move || {
                for size in 0..200 {
                    directory.replace("one", &vec![writer; 4000 - size], 0o600).unwrap();
                }
            });
        }
        for _ in 0..500 {
            let (content, _) = directory.read("one", 4000).unwrap().unwrap();
            assert!(content.len() >= 3801 && content.iter().all(|byte| *byte == content[0]));
        }
    });
    directory.replace_and_sync("one", b"last but one", 0o600).unwrap();
    assert_eq!(directory.read("one", 64).unwrap().unwrap().0, b"last but one");
    directory.replace_durably("one", b"last", 0o600).unwrap();
    assert_eq!(directory.read("one", 9).unwrap().unwrap().0, b"last");
    assert_eq!(names(&directory), ["one"]);
    assert!(directory.remove_durably("one").unwrap());
}

#[test]
fn temporary_files_of_killed_writers_are_removed_and_locked_ones_stay() {
    let (_place, directory) = fresh();
    fs::write(directory.path().join(".one.new"), "half a te").unwrap();
    directory.replace("one", b"whole", 0o600).unwrap();
    assert_eq!(directory.read("one", 9).unwrap().unwrap().0, b"whole");
    fs::write(directory.path().join(".two.new"), "half a te").unwrap();
    let _live = directory.lock(".three.new", 0o600, SOON).unwrap();
    directory.discard_unfinished().unwrap();
    assert_eq!(names(&directory), [".three.new", "one"]);
}

#[test]
fn a_rewritten_hint_has_exactly_its_new_text() {
    let (_place, directory) = fresh();
    for text in ["10.1.2.254", "10.1.3.1", "", "10.1.2.33"] {
        directory.rewrite("hint", text.as_bytes(), 0o600).unwrap();
        assert_eq!(fs::read_to_string(directory.path().join("hint")).unwrap(), text);
    }
}

#[test]
fn a_file_not_small_and_regular_is_garbage_and_an_absent_one_is_none() {
    let (_place, directory) = fresh();
    fs::create_dir(directory.path().join("directory")).unwrap();
    symlink("/etc/passwd", directory.path().join("link")).unwrap();
    fs::write(directory.path().join("long"), [b'x'; 11]).unwrap();
    for name in ["directory", "link", "long"] {
        assert!(directory.read(name, 10).unwrap_err().is_garbage(), "{name}");
    }
    assert_eq!(directory.read("absent", 10).unwrap(), None);
    assert_eq!(directory.facts("absent").unwrap(), None);
    assert!(!directory.remove("absent").unwrap());
}

#[test]
fn no_name_leads_out_of_the_directory() {
    let (_place, directory) = fresh();
    fs::write(directory.path().join("../secret"), "secret").unwrap();
    for name in ["../secret", "..", ".", "", "a/b", "/etc/passwd", "nul\0"] {
        assert!(directory.read(name, 10).is_err(), "{name:?}");
        assert!(directory.create(name, b"x", 0o600).is_err(), "{name:?}");
        assert!(directory.renew(name, b"x", 0o600).is_err(), "{name:?}");
        assert!(directory.rewrite(name, b"x", 0o600).is_err(), "{name:?}");
        assert!(directory.remove(name).is_err(), "{name:?}");
        assert!(directory.set_aside(name, &directory).is_err(), "{name:?}");
    }
    assert!(directory.path().join("../secret").exists());
}

#[test]
fn a_directory_is_resolved_once() {
    let place = tempfile::tempdir().unwrap();
    let one = place.path().join("one");
    let two = place.path().join("two");
    let link = place.path().join("link");
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    symlink(&one, &link).unwrap();
    let directory = Directory::open(&link).unwrap();
    assert!(directory.is_current().unwrap());
    fs::remove_file(&link).unwrap();
    symlink(&two, &link).unwrap();
    directory.create("file", b"x", 0o600).unwrap();
    assert!(one.join("file").exists() && !two.join("file").exists());
    assert!(!directory.is_current().unwrap(), "and it can be told that the path leads elsewhere now");
}

#[test]
fn a_lock_excludes_until_it_is_dropped_and_no_longer_than_the_deadline() {
    let (_place, directory) = fresh();
    let lock = directory.lock("lock", 0o750, LONG).unwrap();
    let began = Instant::now();
    let error = directory.lock("lock", 0o750, SOON).unwrap_err();
    assert!(error.is_deadline() && (SOON..LONG).contains(&began.elapsed()), "{error}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| directory.lock("lock", 0o750, LONG).map(drop));
        drop(lock);
        waiting.join().unwrap().unwrap();
    });
    directory.lock("lock", 0o750, SOON).unwrap();
}

#[test]
fn a_lock_request_that_timed_out_does_not_take_the_lock_later() {
    let (_place, directory) = fresh();
    let lock = directory.lock("lock", 0o750, LONG).unwrap();
    for _ in 0..8 {
        assert!(directory.lock("lock", 0o750, Duration::from_millis(2)).unwrap_err().is_deadline());
    }
    drop(lock);
    directory.lock("lock", 0o750, LONG).unwrap();
    directory.lock("lock", 0o750, LONG).unwrap();
}

#[test]
fn a_shared_lock_excludes_only_an_exclusive_lock() {
    let (_place, directory) = fresh();
    let never = || false;
    let first = directory.share_while("lock", 0o600, LONG, &never).unwrap();
    let second = directory.share_while("lock", 0o600, SOON, &never).unwrap();
    assert!(directory.lock("lock", 0o600, Duration::ZERO).unwrap_err().is_deadline());
    drop(first);
    assert!(directory.lock_while("lock", 0o600, SOON, &never).unwrap_err().is_deadline());
    drop(second);
    let alone = directory.lock_while("lock", 0o600, LONG, &never).unwrap();
    assert!(directory.share_while("lock", 0o600, SOON, &never).unwrap_err().is_deadline());
    drop(alone);
}

#[test]
fn a_cancelled_lock_request_ends_at_once() {
    let (_place, directory) = fresh();
    let _lock = directory.lock("lock", 0o600, LONG).unwrap();
    let began = Instant::now();
    let asked = std::cell::Cell::new(0);
    let given_up = || {
        asked.set(asked.get() + 1);
        asked.get() > 2
    };
    assert!(directory.lock_while("lock", 0o600, 100 * LONG, &given_up).unwrap_err().is_deadline());
    assert!(began.elapsed() < LONG);
}

/// Returns when a process waits for the lock on the file; see `proc_locks(5)`.
fn await_waiter(path: &std::path::Path) {
    let inode = format!(":{} ", fs::metadata(path).unwrap().ino());
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        std::thread::yield_now();
    }
}

#[test]
fn a_lock_reports_whether_it_had_to_wait() {
    let (_place, directory) = fresh();
    let lock = directory.lock("lock", 0o750, LONG).unwrap();
    assert!(!lock.waited());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| directory.lock("lock", 0o750, LONG).unwrap());
        await_waiter(&directory.path().join("lock"));
        drop(lock);
        assert!(waiting.join().unwrap().waited());
    });
}

#[test]
fn a_lock_on_a_removed_file_is_no_lock() {
    let (_place, directory) = fresh();
    let lock = directory.lock("lock", 0o750, LONG).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| directory.lock("lock", 0o750, LONG).unwrap());
        await_waiter(&directory.path().join("lock"));
        directory.remove("lock").unwrap();
        drop(lock);
        let _new = waiting.join().unwrap();
        assert!(directory.lock("lock", 0o750, SOON).unwrap_err().is_deadline(), "the file that is there is locked");
    });
}

/// Changes a file or directory so that it must not be trusted.
type Spoiled = fn(&std::path::Path);

#[test]
fn a_private_directory_and_its_files_are_closed_to_other_users() {
    use nix::unistd::{Uid, chown, geteuid};
    let loose = |path: &std::path::Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let place = tempfile::tempdir().unwrap();
    let make = || PrivateDirectory::make(place.path(), &["a", "b"]);
    let directory = make().unwrap();
    drop(directory.lock("lock", LONG).unwrap());
    let at = |name: &str| place.path().join(name);
    for (name, mode) in [("a", 0o40_700), ("a/b", 0o40_700), ("a/b/lock", 0o100_600)] {
        assert_eq!(fs::metadata(at(name)).unwrap().mode(), mode, "{name}");
    }
    let mut files: Vec<(&str, Spoiled)> = vec![
        ("open to others", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o604)).unwrap()),
        ("of two names", |path| fs::hard_link(path, path.with_extension("2")).unwrap()),
        ("a link", |path| {
            fs::remove_file(path).unwrap();
            symlink("/dev/null", path).unwrap();
        }),
        ("a pipe", |path| {
            fs::remove_file(path).unwrap();
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        }),
    ];
    if geteuid().is_root() {
        files.push(("another user's", |path| chown(path, Some(Uid::from_raw(65534)), None).unwrap()));
    }
    for (what, spoil) in files {
        spoil(&at("a/b/lock"));
        assert!(make().unwrap().lock("lock", LONG).unwrap_err().is_garbage(), "{what}");
        fs::remove_dir_all(at("a/b")).unwrap();
        drop(make().unwrap().lock("lock", LONG).unwrap());
    }
    for name in ["a", "a/b"] {
        loose(&at(name), 0o720);
        assert!(make().unwrap_err().to_string().contains("other users may write there: its mode is 720"));
        loose(&at(name), 0o755);
        make().unwrap();
        if geteuid().is_root() {
            chown(&at(name), Some(Uid::from_raw(65534)), None).unwrap();
            assert!(make().unwrap_err().to_string().contains("belongs to user 65534"));
            chown(&at(name), Some(geteuid()), None).unwrap();
        }
    }
    fs::rename(at("a"), at("elsewhere")).unwrap();
    symlink("elsewhere", at("a")).unwrap();
    assert!(make().is_err(), "no link is followed");
}

#[test]
fn a_lock_file_open_to_other_users_is_closed_to_them() {
    let (_place, directory) = fresh();
    fs::write(directory.path().join("lock"), "").unwrap();
    for mode in [0o644, 0o750] {
        fs::set_permissions(directory.path().join("lock"), fs::Permissions::from_mode(mode)).unwrap();
        drop(directory.lock("lock", 0o600, LONG).unwrap());
        assert_eq!(fs::metadata(directory.path().join("lock")).unwrap().mode() & 0o777, mode & 0o600);
    }
}

#[test]
fn a_pipe_is_never_waited_for() {
    let (_place, directory) = fresh();
    for name in ["lock", "hint", "parts", ".file.new"] {
        nix::unistd::mkfifo(&directory.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    assert!(directory.lock("lock", 0o600, LONG).unwrap_err().is_garbage());
    assert!(directory.rewrite("hint", b"x", 0o600).unwrap_err().is_garbage());
    assert!(directory.open_parts("parts").unwrap_err().is_garbage());
    assert!(directory.replace("file", b"x", 0o600).unwrap_err().is_garbage());
    assert!(directory.read("lock", 10).unwrap_err().is_garbage());
}

#[test]
fn a_file_gets_its_mode_with_its_name() {
    let (_place, directory) = fresh();
    for (mode, mask) in [(0o644, 0o022), (0o644, 0o077), (0o600, 0)] {
        let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(mask));
        directory.replace("file", b"x", mode).unwrap();
        nix::sys::stat::umask(before);
        assert_eq!(
            fs::metadata(directory.path().join("file")).unwrap().mode() & 0o777,
            mode & !mask,
            "{mode:o} {mask:o}"
        );
    }
}

#[test]
fn a_new_stamp_is_like_none_before_and_every_change_leaves_another() {
    let (_place, directory) = fresh();
    let mut before = HashSet::from([directory.stamp().unwrap().modified]);
    for n in 0..2000 {
        let stamp = directory.stamp_anew().unwrap().unwrap();
        assert!(before.insert(stamp.modified), "{stamp:?} was used before");
        assert!(stamp.modified.seconds < 0, "Linux never lets a clock show {stamp:?}");
        assert_eq!(directory.stamp().unwrap(), stamp);
        fs::write(directory.path().join(format!("f{}", n % 2)), "x").unwrap();
        fs::remove_file(directory.path().join(format!("f{}", n % 2))).unwrap();
        let changed = directory.stamp().unwrap();
        assert!(changed.modified.seconds > 0, "change {n} left {changed:?}");
    }
}

#[test]
fn a_reset_modification_time_is_detected_by_the_change_time() {
    let (_place, directory) = fresh();
    let stamp = directory.stamp_anew().unwrap().unwrap();
    let is_later = || {
        fs::write(directory.path().join("restored"), "x").unwrap();
        fs::remove_file(directory.path().join("restored")).unwrap();
        directory.stamp().unwrap().changed > stamp.changed
    };
    while !is_later() {}
    let time = TimeSpec::new(stamp.modified.seconds, stamp.modified.nanoseconds);
    nix::sys::stat::futimens(&directory, &TimeSpec::UTIME_OMIT, &time).unwrap();
    let restored = directory.stamp().unwrap();
    assert_eq!(restored.modified, stamp.modified);
    assert_ne!(restored, stamp);
}

#[test]
fn the_nearest_directory_is_where_one_would_be_made() {
    let (place, directory) = fresh();
    for path in ["a/b", "a/b/c", "a/b/c/d"] {
        let nearest = Directory::nearest(place.path().join(path)).unwrap();
        assert_eq!(nearest.identity(), directory.identity(), "{path}");
    }
    assert!(Directory::nearest("not-here").is_ok(), "the working directory");
    fs::write(directory.path().join("file"), "").unwrap();
    assert!(Directory::nearest(directory.path().join("file")).is_err());
}

#[test]
fn a_foreign_file_is_read_through_links_and_a_fifo_does_not_block() {
    let (_place, directory) = fresh();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "content").unwrap();
    symlink("file", at("link")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(cnikit_store::read(at("link"), 7).unwrap(), b"content");
    assert!(cnikit_store::read(at("none"), 7).unwrap_err().is_absent());
    for (name, limit) in [("file", 6), ("fifo", 7), ("", 7)] {
        assert!(cnikit_store::read(at(name), limit).unwrap_err().is_garbage(), "{name}");
    }
}

#[test]
fn garbage_is_moved_aside_whole() {
    let (place, directory) = fresh();
    let aside = Directory::make(place.path().join("aside"), 0o700).unwrap();
    fs::write(directory.path().join("bad"), [0; 7]).unwrap();
    directory.set_aside("bad", &aside).unwrap();
    assert_eq!(aside.read("bad", 10).unwrap().unwrap().0, [0; 7]);
    assert_eq!(names(&directory), [""; 0]);
    let memory = tempfile::tempdir_in("/dev/shm");
    if let Ok(other) = memory.as_ref().map(|memory| Directory::open(memory.path()).unwrap()) {
        aside.set_aside("bad", &other).unwrap();
        assert_eq!(other.read("bad", 10).unwrap().unwrap().0, [0; 7], "across file systems too");
        assert_eq!(names(&aside), [""; 0]);
    }
}

#[test]
fn a_probe_leaves_no_trace() {
    let (_place, directory) = fresh();
    let before = directory.stamp().unwrap();
    directory.probe().unwrap();
    assert_eq!((names(&directory), directory.stamp().unwrap()), (vec![], before));
}

#[test]
fn an_error_names_operation_path_and_cause_and_leads_to_it() {
    let place = tempfile::tempdir().unwrap();
    let absent: Error = Directory::open(place.path().join("absent")).unwrap_err();
    assert!(absent.is_absent());
    assert_eq!((absent.operation(), absent.path()), ("open directory", place.path().join("absent").as_path()));
    assert!(std::error::Error::source(&absent).is_some_and(<dyn std::error::Error>::is::<std::io::Error>));
    fs::write(place.path().join("file"), "").unwrap();
    assert!(Directory::open(place.path().join("file")).unwrap_err().to_string().contains("Not a directory"));
}
