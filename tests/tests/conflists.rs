//! Configuration directories as they are on real nodes: with invalid or half-written files, mounted, replaced, and read at the same
//! time.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

mod keys;

use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cnikit::{Chained, InterfaceShape, IpamPlugin, Plugin};
use cnikit_libcni::{
    Cache, Error, Finding, NetworkSelector, PluginKey, PluginKeys, Reason, RoutedSubnet, Runtime, Selection,
    SelectionPolicy, Severity, Validator, Watcher, load,
};
use cnikit_process::Deadline;
use cnikit_testkit::Host;
use cnikit_testkit::campaign::{SummaryLine, case_limit, seeded_rng};
use cnikit_tests::docs::{Page, pages};
use cnikit_tests::world::once_within;
use fastrand::Rng;
use tempfile::TempDir;

/// Nothing here takes that long, even on a busy machine, unless a watcher misses an event.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The time in which an unwanted event would have arrived.
const SHORT: Duration = Duration::from_millis(400);

fn list(name: &str) -> String {
    format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "{name}-plugin"}}]}}"#)
}

fn pause(duration: Duration) {
    Deadline::never().pause(duration);
}

fn mkfifo(path: &Path) {
    Host::new().sh(&format!("mkfifo {}", path.display()));
}

/// A file in a directory that is not a network list.
struct Bad {
    what: &'static str,
    make: fn(&Path),
    /// The code of the specification.
    code: u32,
    /// Where in the file, if it is the text that is wrong.
    place: Option<(u32, u32)>,
    /// A part of the error.
    says: &'static str,
    /// Whether the name of the network can be parsed: then it is not reported when another network is selected.
    is_named: bool,
}

fn bad(what: &'static str, code: u32, says: &'static str, make: fn(&Path)) -> Bad {
    Bad { what, make, code, place: None, says, is_named: false }
}

impl Bad {
    const fn at(mut self, line: u32, column: u32) -> Bad {
        self.place = Some((line, column));
        self
    }

    const fn named(mut self) -> Bad {
        self.is_named = true;
        self
    }
}

fn put(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path, text).unwrap();
}

fn bad_files() -> Vec<Bad> {
    vec![
        bad("empty", 6, "the file is empty", |path| put(path, "")).at(1, 1),
        bad("white", 6, "the file is empty", |path| put(path, " \n\n")).at(3, 1),
        bad("torn", 6, "unexpected end of file", |path| put(path, &list("bad")[..60])).at(1, 60),
        bad("NULs", 6, "not JSON", |path| put(path, [0; 4096])).at(1, 1),
        bad("marked", 6, "byte order mark", |path| put(path, format!("\u{feff}{}", list("bad")))).at(1, 1),
        bad("YAML", 6, "not JSON", |path| put(path, "name: bad\n")).at(1, 2),
        bad("trailing", 6, "not JSON: trailing characters", |path| put(path, format!("{}\n}}", list("bad")))).at(2, 1),
        bad("deep", 6, "not JSON: recursion limit", |path| put(path, "[".repeat(1 << 19))).at(1, 128),
        bad("crowded", 6, "the document has more than 524288 values", |path| put(path, "[".repeat(1 << 20))).at(1, 1),
        bad("huge", 5, "is larger than 16 MiB", |path| put(path, " ".repeat((16 << 20) + 1))),
        bad("list", 6, "the document is not an object", |path| put(path, "[]")).at(1, 1),
        bad("nameless", 7, "name: is missing", |path| put(path, r#"{"plugins": [{"type": "t"}]}"#)).at(1, 1).named(),
        bad("numbered", 6, "name: is not a text", |path| put(path, "{\n  \"name\": 5}")).at(2, 3).named(),
        bad("climbing", 7, "name: invalid characters", |path| put(path, r#"{"name": "../up"}"#)).at(1, 2).named(),
        bad("bare", 7, "plugins: no plugin configs found", |path| put(path, r#"{"name": "bad"}"#)).at(1, 1).named(),
        bad("none", 7, "no plugins in list", |path| put(path, r#"{"name": "bad", "plugins": []}"#)).at(1, 17).named(),
        bad("null", 6, "plugins: is not a list", |path| put(path, r#"{"name": "bad", "plugins": null}"#))
            .at(1, 17)
            .named(),
        bad("typeless", 7, "plugins[0].type: missing 'type'", |path| put(path, r#"{"name": "bad", "plugins": [{}]}"#))
            .at(1, 29)
            .named(),
        bad("a directory", 5, "is a directory", |path| fs::create_dir(path).unwrap()),
        bad("a link to nothing", 5, "is a link to /nowhere", |path| symlink("/nowhere", path).unwrap()),
        bad("a link to itself", 5, "cannot be read", |path| symlink(path, path).unwrap()),
        bad("what the kernel does not read", 5, "cannot be read: Input/output", |path| {
            symlink("/proc/self/mem", path).unwrap();
        }),
        // Root can read every other file: this sysctl can be written only.
        bad("what may not be read", 5, "cannot be read: Permission denied", |path| {
            symlink("/proc/sys/net/ipv4/route/flush", path).unwrap();
        }),
        bad("a FIFO", 5, "is a FIFO", mkfifo),
        bad("a socket", 5, "is a socket", |path| drop(UnixListener::bind(path).unwrap())),
        bad("a device", 5, "is a device", |path| symlink("/dev/zero", path).unwrap()),
    ]
}

/// Runs `work` in a thread with a timeout: a reader that waits for a FIFO would never end.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    thread::spawn(move || send.send(work()));
    receive.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{what}: no call returns in time"))
}

fn selector(dir: &Path, rule: SelectionPolicy) -> NetworkSelector {
    NetworkSelector { dir: dir.to_owned(), policy: rule, runtime: None }
}

#[test]
fn a_bad_file_is_reported_with_its_position_and_hides_no_good_one() {
    for bad in bad_files() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("10-bad.conflist");
        (bad.make)(&file);
        put(&dir.path().join("50-good.conflist"), list("good"));
        let path = dir.path().to_owned();
        let (loaded, chosen, findings) = in_time(bad.what, move || {
            let validator = Validator { dir: path.clone(), ..Validator::default() };
            (load(&path, "good"), selector(&path, SelectionPolicy::FirstValid).select(), validator.validate())
        });
        let checked_report = bad.checked_report(&file, &chosen.unwrap());
        let warnings = loaded.unwrap().warnings;
        let expected = if bad.is_named { Vec::new() } else { vec![format!("skipped: {checked_report}")] };
        assert_eq!(warnings, expected, "{}", bad.what);
        let findings: Vec<String> = findings.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(findings, [format!("error: {checked_report}")], "{}", bad.what);
    }
}

impl Bad {
    /// The good network is the default, and the bad file is reported. Returns the text of the report.
    fn checked_report(&self, file: &Path, chosen: &Selection) -> String {
        assert_eq!(chosen.default_network().unwrap().list.name, "good", "{}", self.what);
        let [skipped] = &chosen.skipped[..] else { panic!("{}: {:?}", self.what, chosen.skipped) };
        let Reason::Invalid(defect) = &skipped.reason else { panic!("{}: {skipped}", self.what) };
        let place = defect.location.map(|place| (place.line, place.column));
        assert_eq!((&skipped.file, defect.code, place), (&file.to_owned(), self.code, self.place), "{defect}");
        let text = defect.to_string();
        assert!(text.starts_with(&file.display().to_string()) && text.contains(self.says), "{text}");
        assert!(!defect.hint.is_empty() && text.ends_with(&format!("; hint: {}", defect.hint)), "{text}");
        assert!(!text.contains('\n'), "{text}");
        text
    }
}

#[test]
fn the_bad_network_itself_is_an_error_with_its_code_and_place() {
    for bad in bad_files().into_iter().filter(|bad| bad.is_named && bad.what != "nameless" && bad.what != "numbered") {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("10-bad.conflist");
        (bad.make)(&file);
        let name = if bad.what == "climbing" { "../up" } else { "bad" };
        let error = load(dir.path(), name).unwrap_err();
        assert_eq!(error.code(), bad.code, "{error}");
        let (line, column) = bad.place.unwrap();
        assert!(error.to_string().starts_with(&format!("{}:{line}:{column}: ", file.display())), "{error}");
    }
    let dir = TempDir::new().unwrap();
    assert!(matches!(load(dir.path(), "any").unwrap_err(), Error::NoConfigurations { .. }));
    put(&dir.path().join("10-torn.conf"), "{");
    let error = load(dir.path(), "any").unwrap_err().to_string();
    assert!(
        error.starts_with("no net configuration with name \"any\"") && error.contains("10-torn.conf:1:1: "),
        "{error}"
    );
}

// ------------------------------------------------------------------------------------------------------------- watched

/// A directory that is watched, and the last event of the watcher.
struct Watched {
    dir: TempDir,
    watcher: Watcher,
}

impl Watched {
    /// Watches `net.d`, which exists only if `make` makes it. The first event must have this default.
    fn new(make: impl FnOnce(&Path), first: Option<&str>) -> Watched {
        Watched::choosing(make, |dir| selector(&dir.join("net.d"), SelectionPolicy::FirstValid), first)
    }

    fn choosing(
        make: impl FnOnce(&Path),
        selector: impl FnOnce(&Path) -> NetworkSelector,
        first: Option<&str>,
    ) -> Watched {
        let dir = TempDir::new().unwrap();
        make(dir.path());
        let watcher = Watcher::new(selector(dir.path())).unwrap();
        let mut watched = Watched { dir, watcher };
        watched.says(first);
        watched
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The next event must have this default, and no other may follow it.
    #[track_caller]
    fn says(&mut self, name: Option<&str>) {
        let chosen = self.watcher.wait(TIMEOUT).unwrap().unwrap_or_else(|| panic!("{name:?} was missed"));
        assert_eq!(chosen.default_network().map(|network| network.list.name.as_str()), name, "{:?}", chosen.skipped);
        self.is_silent();
    }

    /// Whether this is its last event, within a long timeout: a busy machine may stop the watcher for longer than any short wait.
    fn comes_to(&mut self, there: &Selection) -> bool {
        let deadline = Deadline::after(TIMEOUT);
        while !deadline.passed() {
            while self.watcher.wait(SHORT).unwrap().is_some() {}
            let last = self.watcher.last().unwrap();
            if (&last.networks, last.default) == (&there.networks, there.default) {
                return true;
            }
        }
        false
    }

    #[track_caller]
    fn is_silent(&mut self) {
        let next = self.watcher.wait(SHORT).unwrap();
        assert!(next.is_none(), "{next:?}");
    }
}

#[test]
fn the_directory_may_come_and_go_with_all_that_leads_to_it() {
    let mut watched = Watched::new(|_| {}, None);
    let net_d = watched.path("net.d");
    let file = watched.path("net.d/10-a.conflist");
    for _ in 0..3 {
        fs::create_dir(&net_d).unwrap();
        watched.is_silent();
        put(&file, list("a"));
        watched.says(Some("a"));
        fs::remove_dir_all(&net_d).unwrap();
        watched.says(None);
    }
    fs::create_dir_all(watched.path("away/net.d")).unwrap();
    put(&watched.path("away/net.d/10-b.conflist"), list("b"));
    fs::rename(watched.path("away/net.d"), &net_d).unwrap();
    watched.says(Some("b"));
    fs::rename(&net_d, watched.path("away/again")).unwrap();
    watched.says(None);
    let deep = watched.path("x/y/net.d");
    let dir = watched.dir.path().to_owned();
    let mut deeper =
        Watched { dir: watched.dir, watcher: Watcher::new(selector(&deep, SelectionPolicy::FirstValid)).unwrap() };
    deeper.says(None);
    fs::create_dir_all(&deep).unwrap();
    put(&deep.join("10-c.conflist"), list("c"));
    deeper.says(Some("c"));
    fs::remove_dir_all(dir.join("x")).unwrap();
    deeper.says(None);
}

#[test]
fn files_that_come_change_and_go_are_seen_and_one_answer_is_given_to_many_changes() {
    let mut watched = Watched::new(|dir| fs::create_dir(dir.join("net.d")).unwrap(), None);
    let file = |name: &str| watched.dir.path().join("net.d").join(name);
    let early = file("10-a.conflist");
    let late = file("20-b.conflist");
    let draft = file(".10-a.tmp");
    put(&late, list("b"));
    put(&early, list("a"));
    watched.says(Some("a"));
    put(&draft, list("c"));
    watched.is_silent();
    fs::rename(&draft, &early).unwrap();
    watched.says(Some("c"));
    fs::remove_file(&late).unwrap();
    watched.is_silent();
    put(&early, list("c"));
    watched.is_silent();
    fs::set_permissions(&early, PermissionsExt::from_mode(0o600)).unwrap();
    watched.is_silent();
    put(&early, list("c").replace("1.1.0", "1.0.0"));
    watched.says(Some("c"));
    fs::remove_file(&early).unwrap();
    watched.says(None);
}

#[test]
fn plugins_beside_a_list_belong_to_it() {
    let make = |dir: &Path| {
        fs::create_dir_all(dir.join("net.d")).unwrap();
        put(&dir.join("net.d/10-a.conflist"), list("a"));
    };
    let mut watched = Watched::new(make, Some("a"));
    fs::create_dir(watched.path("net.d/a")).unwrap();
    watched.is_silent();
    put(&watched.path("net.d/a/10-more.conf"), r#"{"type": "more"}"#);
    watched.says(Some("a"));
    assert_eq!(watched.watcher.last().unwrap().networks[0].list.plugins.len(), 2);
    put(&watched.path("net.d/a/10-more.conf"), r#"{"type": "other"}"#);
    watched.says(Some("a"));
    fs::remove_dir_all(watched.path("net.d/a")).unwrap();
    watched.says(Some("a"));
}

/// Rewrites a file as many programs do: in place, in pieces, with a pause after each.
fn write_slowly(path: &Path, text: &str, pieces: usize, between: Duration) {
    let mut file = OpenOptions::new().write(true).truncate(true).create(true).open(path).unwrap();
    for piece in text.as_bytes().chunks(text.len().div_ceil(pieces)) {
        pause(between);
        file.write_all(piece).unwrap();
    }
}

#[test]
fn half_a_file_neither_counts_nor_lets_another_take_its_place() {
    let make = |dir: &Path| {
        fs::create_dir(dir.join("net.d")).unwrap();
        put(&dir.join("net.d/10-a.conflist"), list("a"));
        put(&dir.join("net.d/20-b.conflist"), list("b"));
    };
    let mut watched = Watched::new(make, Some("a"));
    let file = watched.path("net.d/10-a.conflist");
    // The file is open meanwhile.
    let writer = thread::spawn({
        let file = file.clone();
        move || write_slowly(&file, &list("new-a"), 4, Duration::from_millis(300))
    });
    watched.says(Some("new-a"));
    writer.join().unwrap();
    // Closed after each piece.
    let writer = thread::spawn({
        let file = file.clone();
        move || {
            let text = list("newer-a");
            put(&file, "");
            for piece in text.as_bytes().chunks(20) {
                pause(Duration::from_millis(300));
                let mut file = OpenOptions::new().append(true).open(&file).unwrap();
                file.write_all(piece).unwrap();
            }
        }
    });
    watched.says(Some("newer-a"));
    writer.join().unwrap();
    // The same behind a link of another name.
    let far = watched.path("far.txt");
    put(&far, list("far"));
    symlink(&far, watched.path("net.d/05-far.conflist")).unwrap();
    watched.says(Some("far"));
    let writer = thread::spawn({
        let far = far.clone();
        move || write_slowly(&far, &list("new-far"), 4, Duration::from_millis(300))
    });
    watched.says(Some("new-far"));
    writer.join().unwrap();
    fs::remove_file(&far).unwrap();
    watched.says(Some("newer-a"));
    // The file is overwritten from its beginning and truncated only then: a file that is still being written never looks like this
    // one.
    let writer = thread::spawn(move || {
        let mut open = OpenOptions::new().write(true).open(&file).unwrap();
        open.write_all(list("x").as_bytes()).unwrap();
        pause(Duration::from_secs(1));
        open.set_len(list("x").len() as u64).unwrap();
    });
    watched.says(Some("x"));
    writer.join().unwrap();
}

#[test]
fn a_half_written_file_is_invalid_after_a_delay() {
    let make = |dir: &Path| {
        fs::create_dir(dir.join("net.d")).unwrap();
        put(&dir.join("net.d/10-a.conflist"), list("a"));
        put(&dir.join("net.d/20-b.conflist"), list("b"));
    };
    let mut watched = Watched::new(make, Some("a"));
    let began = Instant::now();
    put(&watched.path("net.d/10-a.conflist"), "{");
    watched.says(Some("b"));
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(
        matches!(&watched.watcher.last().unwrap().skipped[0].reason, Reason::Invalid(defect) if defect.is_cut_short())
    );
}

/// Writes a list, and a torn one that is an hour old.
fn put_an_old_torn_list(dir: &Path) {
    fs::create_dir(dir.join("net.d")).unwrap();
    put(&dir.join("net.d/00-torn.conflist"), "{");
    let torn = OpenOptions::new().write(true).open(dir.join("net.d/00-torn.conflist")).unwrap();
    torn.set_modified(SystemTime::now() - Duration::from_hours(1)).unwrap();
    put(&dir.join("net.d/10-a.conflist"), list("a"));
}

#[test]
fn a_file_torn_long_ago_does_not_delay_the_watcher() {
    let mut watched = Watched::new(put_an_old_torn_list, Some("a"));
    let mut names = ["b", "a"].into_iter().cycle();
    let answers = || {
        let name = names.next();
        put(&watched.path("net.d/10-a.conflist"), list(name.unwrap()));
        let chosen = watched.watcher.wait(TIMEOUT).unwrap().unwrap();
        assert_eq!(chosen.default_network().map(|network| network.list.name.as_str()), name);
    };
    // So long is a file waited for that is being written.
    assert!(once_within(Duration::from_secs(3), answers), "each answer waits for the torn file");
    watched.is_silent();
}

#[test]
fn more_changes_than_the_kernel_remembers_hide_none() {
    let mut watched = Watched::new(|dir| fs::create_dir(dir.join("net.d")).unwrap(), None);
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for number in 0..most.min(40_000) / 2 {
        let file = watched.path(&format!("net.d/{number}"));
        put(&file, "x");
        fs::remove_file(&file).unwrap();
    }
    put(&watched.path("net.d/10-a.conflist"), list("a"));
    watched.says(Some("a"));
}

/// A `ConfigMap` as the kubelet mounts it: each file is a link to one behind `..data`, which is turned to another
/// directory.
fn config_map(dir: &Path, generation: u32, text: &str) {
    let own = format!("..{generation}");
    fs::create_dir(dir.join(&own)).unwrap();
    put(&dir.join(&own).join("10-a.conflist"), text);
    symlink(&own, dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    if generation == 1 {
        symlink("..data/10-a.conflist", dir.join("10-a.conflist")).unwrap();
    } else {
        fs::remove_dir_all(dir.join(format!("..{}", generation - 1))).unwrap();
    }
}

#[test]
fn a_mounted_config_map_is_followed_through_its_swaps() {
    let make = |dir: &Path| {
        fs::create_dir(dir.join("net.d")).unwrap();
        config_map(&dir.join("net.d"), 1, &list("g1"));
    };
    let mut watched = Watched::new(make, Some("g1"));
    for generation in 2..6 {
        config_map(&watched.path("net.d"), generation, &list(&format!("g{generation}")));
        watched.says(Some(&format!("g{generation}")));
    }
}

/// Makes `net.d` a link to `current`, which is a link to one of three directories.
fn put_linked_lists(dir: &Path) {
    for name in ["v1", "v2", "far"] {
        fs::create_dir(dir.join(name)).unwrap();
        put(&dir.join(name).join("10-a.conflist"), list(name));
    }
    symlink("v1", dir.join("current")).unwrap();
    symlink(dir.join("current"), dir.join("net.d")).unwrap();
}

#[test]
fn symlinks_in_the_path_are_followed_when_they_change() {
    let mut watched = Watched::new(put_linked_lists, Some("v1"));
    symlink("v2", watched.path("next")).unwrap();
    fs::rename(watched.path("next"), watched.path("current")).unwrap();
    watched.says(Some("v2"));
    put(&watched.path("v1/10-a.conflist"), list("old"));
    watched.is_silent();
    // A file that is a link to another directory, where it is written and then replaced.
    fs::remove_file(watched.path("v2/10-a.conflist")).unwrap();
    watched.says(None);
    symlink("../far/10-a.conflist", watched.path("v2/10-a.conflist")).unwrap();
    watched.says(Some("far"));
    put(&watched.path("far/10-a.conflist"), list("written"));
    watched.says(Some("written"));
    put(&watched.path("far/new"), list("replaced"));
    fs::rename(watched.path("far/new"), watched.path("far/10-a.conflist")).unwrap();
    watched.says(Some("replaced"));
    fs::remove_file(watched.path("current")).unwrap();
    watched.says(None);
}

#[test]
fn the_watcher_answers_during_endless_writes() {
    let make = |dir: &Path| {
        fs::create_dir(dir.join("net.d")).unwrap();
        put(&dir.join("net.d/10-a.conflist"), list("a"));
    };
    let mut watched = Watched::new(make, Some("a"));
    let file = watched.path("net.d/log");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                put(&file, "noise");
                pause(Duration::from_millis(20));
            }
        });
        put(&watched.path("net.d/05-b.conflist"), list("b"));
        let answer = watched.watcher.wait(TIMEOUT);
        stop.store(true, Ordering::Relaxed);
        let chosen = answer.unwrap().expect("the noise hides it");
        assert_eq!(chosen.default_network().unwrap().list.name, "b");
    });
    watched.is_silent();
}

/// A random change of the directory, which is a link to one of three.
fn disturb(top: &Path, rng: &mut Rng) {
    const FILES: [&str; 4] = ["10-a.conflist", "20-b.conf", "30-c.json", "note.txt"];
    let dir = top.join(*rng.choice(&["v1", "v2", "v3"]).unwrap());
    let file = dir.join(*rng.choice(&FILES).unwrap());
    let name = *rng.choice(&["a", "b", "c"]).unwrap();
    // Errors are ignored: names may exist or be missing because of earlier changes.
    let _ = match rng.u8(..11) {
        0 => fs::create_dir(&dir),
        1 => fs::remove_dir_all(&dir),
        2 => fs::rename(&dir, top.join("v3")),
        3 => fs::remove_file(top.join("net.d")).and_then(|()| symlink(&dir, top.join("net.d"))),
        4 => symlink(&dir, top.join("next")).and_then(|()| fs::rename(top.join("next"), top.join("net.d"))),
        5 => fs::write(top.join("far"), list(name)),
        6 => fs::remove_file(&file).and_then(|()| symlink("../far", &file)),
        7 => fs::remove_file(&file),
        8 => fs::write(&file, "no network at all"),
        9 => fs::write(top.join("draft"), list(name)).and_then(|()| fs::rename(top.join("draft"), &file)),
        _ => fs::write(&file, if file.ends_with(FILES[0]) { list(name) } else { single(name) }),
    };
}

fn single(name: &str) -> String {
    format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "type": "{name}-plugin"}}"#)
}

#[test]
fn after_any_changes_the_last_answer_matches_the_directory() {
    let what = "a watched directory, disturbed";
    let mut rng = seeded_rng(what);
    let mut line = SummaryLine::new(what, "disturbances").with_seed();
    let make = |dir: &Path| {
        fs::create_dir(dir.join("v1")).unwrap();
        symlink("v1", dir.join("net.d")).unwrap();
    };
    let mut watched = Watched::new(make, None);
    let selector = selector(&watched.path("net.d"), SelectionPolicy::FirstOfEachName(None));
    watched.watcher = Watcher::new(selector.clone()).unwrap();
    for _ in 0..case_limit(25).min(2000) {
        for _ in 0..rng.usize(1..8) {
            disturb(watched.dir.path(), &mut rng);
            line.tried += 1;
        }
        line.found += usize::from(!watched.comes_to(&selector.select().unwrap()));
    }
    line.of = line.tried;
    line.print();
    assert_eq!(line.found, 0, "of {} disturbances; CNIKIT_SEED repeats them", line.tried);
}

/// A plugin that reports these versions and supports nothing else.
fn speaking(file: &Path, versions: &str) {
    script(file, &format!("echo '{{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [{versions}]}}'"));
}

#[test]
fn a_network_can_be_used_as_soon_as_its_plugins_are_there_and_speak_its_version() {
    let make = |dir: &Path| {
        fs::create_dir(dir.join("net.d")).unwrap();
        put(&dir.join("net.d/10-a.conflist"), list("a"));
        put(&dir.join("net.d/20-b.conflist"), list("b"));
    };
    let choosing = |dir: &Path| {
        let runtime = Runtime::new(dir.join("bin").to_str().unwrap(), Cache::below(dir));
        NetworkSelector { runtime: Some(runtime), ..selector(&dir.join("net.d"), SelectionPolicy::FirstValid) }
    };
    let mut watched = Watched::choosing(make, choosing, None);
    let why = watched.watcher.last().unwrap().skipped[0].to_string();
    assert!(why.contains("10-a.conflist: ") && why.contains("failed to find plugin \"a-plugin\""), "{why}");
    fs::create_dir(watched.path("bin")).unwrap();
    speaking(&watched.path("draft"), r#""1.1.0""#);
    fs::copy(watched.path("draft"), watched.path("bin/b-plugin")).unwrap();
    watched.says(Some("b"));
    speaking(&watched.path("draft"), r#""0.4.0", "1.0.0""#);
    fs::rename(watched.path("draft"), watched.path("bin/a-plugin")).unwrap();
    watched.is_silent();
    let why = watched.watcher.last().unwrap().skipped[0].to_string();
    assert!(why.contains("does not support") && why.contains("0.4.0, 1.0.0"), "{why}");
    speaking(&watched.path("draft"), r#""1.1.0""#);
    fs::rename(watched.path("draft"), watched.path("bin/a-plugin")).unwrap();
    watched.says(Some("a"));
    fs::remove_dir_all(watched.path("bin")).unwrap();
    watched.says(None);
}

// ----------------------------------------------------------------------------------------------------------- validated

/// The keys of all our plugins, as they report them.
fn known() -> Vec<PluginKeys> {
    let of = |plugin: &str, keys: Vec<keys::Key>| PluginKeys {
        plugin: plugin.to_owned(),
        keys: keys
            .into_iter()
            .map(|key| PluginKey { value: key.kind.parse().unwrap(), ..(&*key.path).into() })
            .collect(),
    };
    let bridge = InterfaceShape::<bridge::BridgePlugin>::SOURCES;
    let bridge_args = InterfaceShape::<bridge::BridgePlugin>::KNOWN_ARGS;
    let ptp = InterfaceShape::<ptp::PtpPlugin>::SOURCES;
    let ptp_args = InterfaceShape::<ptp::PtpPlugin>::KNOWN_ARGS;
    let tuning = Chained::<tuning::TuningPlugin>::SOURCES;
    let tuning_args = Chained::<tuning::TuningPlugin>::KNOWN_ARGS;
    let bandwidth = Chained::<bandwidth::BandwidthPlugin>::SOURCES;
    let tap = InterfaceShape::<tap::TapPlugin>::SOURCES;
    let tap_args = InterfaceShape::<tap::TapPlugin>::KNOWN_ARGS;
    let host_device = InterfaceShape::<host_device::HostDevicePlugin>::SOURCES;
    let args = <host_local::HostLocalPlugin as IpamPlugin>::KNOWN_ARGS;
    let more = ["runtimeConfig.ipRanges", "runtimeConfig.ips", "args.cni.ips"].map(keys::Key::elsewhere);
    vec![
        of("bridge", keys::of_plugin::<bridge::BridgePlugin>(bridge, bridge_args)),
        of("ptp", keys::of_plugin::<ptp::PtpPlugin>(ptp, ptp_args)),
        of("loopback", keys::of_plugin::<loopback::LoopbackPlugin>(&[], None)),
        of("vlan", keys::of_plugin::<vlan::VlanPlugin>(&[], None)),
        of("dummy", keys::of_plugin::<dummy::DummyPlugin>(&[], None)),
        of("tap", keys::of_plugin::<tap::TapPlugin>(tap, tap_args)),
        of("host-device", keys::of_plugin::<host_device::HostDevicePlugin>(host_device, None)),
        of("sbr", keys::of_plugin::<sbr::SbrPlugin>(&[], None)),
        of("tuning", keys::of_plugin::<tuning::TuningPlugin>(tuning, tuning_args)),
        of("vrf", keys::of_plugin::<vrf::VrfPlugin>(&[], None)),
        of("bandwidth", keys::of_plugin::<bandwidth::BandwidthPlugin>(bandwidth, None)),
        of("host-local", [keys::of_plugin::<host_local::HostLocalPlugin>(&[], args), more.to_vec()].concat()),
    ]
}

fn found(findings: &[Finding]) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        writeln!(text, "{finding}").unwrap();
        text
    })
}

#[test]
fn all_examples_of_the_pages_are_valid() {
    let path = format!("{}:/usr/lib/cni", cnikit_tests::bin().display());
    let mut tried = 0;
    for example in pages().iter().flat_map(Page::examples) {
        let dir = TempDir::new().unwrap();
        put(&dir.path().join("10-net.conflist"), example.list.to_string());
        let runtime = Some(Runtime::new(path.as_str(), Cache::below(dir.path())));
        let validator = Validator { dir: dir.path().to_owned(), runtime, plugins: known(), ..Validator::default() };
        assert_eq!(found(&validator.validate().unwrap()), "", "{}", example.place);
        tried += 1;
    }
    assert!(tried > 3, "only {tried} examples were found");
}

const PODS: &str = r#"{
  "cniVersion": "1.1.0",
  "name": "pods",
  "disablecheck": true,
  "plugins": [
    {
      "type": "bridge",
      "isGatway": true,
      "hairpinmode": true,
      "vlanTrunk": [{"minID": 1, "maxID": 5}, {"mindID": 7}],
      "capabilities": {"mac": true, "portMappings": true, "ips": true, "ranges": false},
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16", "gatway": "10.88.0.1"}]]}
    },
    {"type": "porttmap", "snat": true}
  ]
}
"#;

const OTHER: &str = r#"{"cniVersion": "1.1.0", "name": "other", "plugins": [
  {"type": "ptp", "prevResult": {}, "ipam": {"type": "host-local", "subnet": "10.88.4.0/24", "dataDir": "/x"}},
  {"type": "old"}]}
"#;

#[test]
fn every_finding_has_its_line_column_and_hint() {
    let dir = TempDir::new().unwrap();
    let net_d = dir.path().join("net.d");
    let bin = dir.path().join("bin");
    fs::create_dir(&net_d).unwrap();
    fs::create_dir(&bin).unwrap();
    for (name, text) in [
        ("10-pods.conflist", PODS),
        ("20-other.conflist", OTHER),
        ("30-pods.conf", r#"{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "bridge": "br0"}"#),
        ("40-torn.json", "{"),
    ] {
        put(&net_d.join(name), text);
    }
    for plugin in ["bridge", "ptp", "host-local"] {
        speaking(&bin.join(plugin), r#""1.0.0", "1.1.0""#);
    }
    speaking(&bin.join("old"), r#""0.4.0""#);
    let route = |network: &str, device: &str| RoutedSubnet { network: network.parse().unwrap(), device: device.into() };
    let validator = Validator {
        dir: net_d.clone(),
        runtime: Some(Runtime::new(bin.to_str().unwrap(), Cache::below(dir.path()))),
        plugins: known(),
        capabilities: vec!["mac".into()],
        routes: vec![route("0.0.0.0/0", "eth0"), route("10.88.0.0/16", "cni0"), route("10.88.4.128/25", "tun0")],
    };
    let findings = validator.validate().unwrap();
    let text = found(&findings).replace(&format!("{}/", net_d.display()), "");
    let expected = [
        "warning: 10-pods.conflist:4:3: disablecheck: a list has no such key",
        "hint: did you mean `disableCheck`?",
        "warning: 10-pods.conflist:8:7: plugins[0].isGatway: bridge has no such key; hint: did you mean `isGateway`?",
        "warning: 10-pods.conflist:10:48: plugins[0].vlanTrunk[1].mindID: bridge has no such key; hint: did you \
         mean `minID`?",
        "warning: 10-pods.conflist:11:37: plugins[0].capabilities.portMappings: bridge does not support this capability",
        "warning: 10-pods.conflist:12:51: plugins[0].ipam.ranges[0][0].subnet: 10.88.0.0/16 overlaps the host's \
         route to 10.88.4.128/25 over tun0",
        "warning: 10-pods.conflist:12:77: plugins[0].ipam.ranges[0][0].gatway: host-local has no such key; hint: \
         did you mean `gateway`?",
        "error: 10-pods.conflist:14:6: plugins[1].type: failed to find plugin \"porttmap\"",
        "warning: 20-other.conflist:1:42: plugins: no plugin of the network takes the capability \"mac\"",
        "warning: 20-other.conflist:2:19: plugins[0].prevResult: only a runtime sets it",
        "warning: 20-other.conflist:2:68: plugins[0].ipam.subnet: 10.88.4.0/24 overlaps 10.88.0.0/16 of network \
         \"pods\" in 10-pods.conflist",
        "warning: 20-other.conflist:2:68: plugins[0].ipam.subnet: 10.88.4.0/24 overlaps the host's route to \
         10.88.4.128/25 over tun0",
        "error: 20-other.conflist:3:4: plugins[1].type: old does not support version 1.1.0, only 0.4.0; hint: set \
         `cniVersion` to one of these",
        "warning: 30-pods.conf:1:1: plugins: no plugin of the network takes the capability \"mac\"",
        "warning: 30-pods.conf:1:25: name: network \"pods\" is also in 10-pods.conflist, which is found first",
        "error: 40-torn.json:1:1: unexpected end of file",
    ];
    for words in expected {
        assert!(text.contains(words), "{words} is not said:\n{text}");
    }
    assert_eq!(findings.len(), expected.len() - 1, "{text}");
    let is_error = |finding: &&Finding| finding.severity == Severity::Error;
    let codes: Vec<u32> = findings.iter().filter(is_error).map(|finding| finding.error.code).collect();
    assert_eq!(codes, [7, 1, 6]);
}

/// A plugin that cannot be executed: its file, and the reason that is reported.
struct Unfit {
    what: &'static str,
    make: fn(&Path),
    code: u32,
    says: &'static str,
}

fn script(file: &Path, lines: &str) {
    put(file, format!("#!/bin/sh\n{lines}\n"));
    fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Files that no kernel executes: a program without an interpreter, or for no known machine.
fn foreign(file: &Path) {
    put(file, [0x7f; 64]);
    fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
}

const UNFIT: [Unfit; 8] = [
    Unfit { what: "none", make: |_| {}, code: 7, says: "failed to find plugin \"p\" in path" },
    Unfit { what: "no program", make: |file| put(file, "x"), code: 7, says: "p is not executable; hint: chmod +x " },
    Unfit { what: "a directory", make: |file| fs::create_dir(file).unwrap(), code: 7, says: "failed to find plugin" },
    Unfit { what: "of another machine", make: |file| foreign(file), code: 7, says: "cannot start" },
    Unfit { what: "dying", make: |file| script(file, "kill -SEGV $$"), code: 7, says: "signal 11" },
    Unfit {
        what: "babbling",
        make: |file| script(file, "echo hello"),
        code: 6,
        says: "answer to VERSION cannot be read",
    },
    Unfit {
        what: "refusing",
        make: |file| script(file, "echo '{\"code\": 42, \"msg\": \"no\"}'; exit 1"),
        code: 42,
        says: "type: no; ",
    },
    Unfit { what: "hanging", make: |file| script(file, "exec sleep 1000"), code: 7, says: "did not finish" },
];

#[test]
fn a_plugin_that_cannot_serve_is_found_be_it_the_ipam_plugin() {
    for unfit in UNFIT {
        let dir = TempDir::new().unwrap();
        let net_d = dir.path().join("net.d");
        let bin = dir.path().join("bin");
        fs::create_dir(&net_d).unwrap();
        fs::create_dir(&bin).unwrap();
        (unfit.make)(&bin.join("p"));
        speaking(&bin.join("good"), r#""1.1.0""#);
        let lists = [r#"{"type": "good"}, {"type": "p"}"#, r#"{"type": "good", "ipam": {"type": "p"}}"#];
        for (plugins, key) in lists.into_iter().zip(["plugins[1].type", "plugins[0].ipam.type"]) {
            put(
                &net_d.join("10-a.conflist"),
                format!(r#"{{"cniVersion": "1.1.0", "name": "a", "plugins": [{plugins}]}}"#),
            );
            // The good one must end within the timeout, which is the time that the hanging one takes.
            let timeout = Duration::from_secs(if unfit.what == "hanging" { 3 } else { 30 });
            let runtime = Some(Runtime { timeout, ..Runtime::new(bin.to_str().unwrap(), Cache::below(dir.path())) });
            let validator = Validator { dir: net_d.clone(), runtime, ..Validator::default() };
            let findings = validator.validate().unwrap();
            let [finding] = &findings[..] else { panic!("{}: {}", unfit.what, found(&findings)) };
            let text = finding.to_string();
            let defect = &finding.error;
            assert_eq!(
                (finding.severity, defect.code, defect.key.as_str()),
                (Severity::Error, unfit.code, key),
                "{text}"
            );
            assert!(text.contains(unfit.says) && !defect.hint.is_empty(), "{}: {text}", unfit.what);
        }
    }
}

#[test]
fn ten_thousand_mistakes_are_reported_in_a_few_lines_and_soon() {
    let dir = TempDir::new().unwrap();
    let keys: String = (0..10_000).fold(String::new(), |mut text, number| {
        write!(text, r#""isGatewa{number}": true, "#).unwrap();
        text
    });
    let plugins = r#"{"type": "none"}, "#.repeat(10_000);
    let text = format!(r#"{{"name": "a", "plugins": [{plugins}{{{keys}"type": "bridge"}}]}}"#);
    put(&dir.path().join("10-a.conflist"), text);
    let runtime = Some(Runtime::new(dir.path().to_str().unwrap(), Cache::below(dir.path())));
    let validator = Validator { dir: dir.path().to_owned(), plugins: known(), runtime, ..Validator::default() };
    let began = Instant::now();
    let findings = validator.validate().unwrap();
    assert!(findings.len() == 20 && began.elapsed() < TIMEOUT, "{} in {:?}", findings.len(), began.elapsed());
}
