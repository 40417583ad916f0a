//! A runtime's cache after every kind of damage to its files.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cnikit_libcni::{
    Attachment, Cache, InProcess, NetworkList, Networks, PluginOutput, Runtime, State, ValidAttachment,
};
use cnikit_process::Deadline;
use cnikit_tests::scene::{ANSWER, Scene};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The file of [`at`] in [`list`].
const FILE: &str = "results/net-c1-eth0";

fn list() -> NetworkList {
    NetworkList::parse(br#"{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "one"}]}"#).unwrap()
}

fn at() -> Attachment {
    Attachment::new("c1", "/run/netns/c1").with_arg("IgnoreUnknown", "1").with_mac("02:00:00:00:00:01")
}

/// A runtime whose only plugin is a function: the thousands of DELs test the files, not processes.
fn quick(dir: &Path) -> Runtime {
    let answer = br#"{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]}"#.to_vec();
    let one =
        InProcess::default().with("one", move |_| Ok(PluginOutput { stdout: answer.clone(), stderr: Vec::new() }));
    Runtime { executor: Arc::new(one), ..Runtime::new("", Cache::below(dir)) }
}

/// Replaces a cached attachment with this content and deletes the attachment: that succeeds, and reports what was wrong.
fn survives(dir: &Path, content: &[u8], is_whole: bool, what: &str) {
    let runtime = quick(dir);
    fs::write(dir.join(FILE), content).unwrap();
    let all = runtime.cache.attachments().unwrap();
    assert_eq!(all.len(), 1, "{what}");
    assert_eq!(all[0].state == State::Unreadable, !is_whole, "{what}: {all:?}");
    let report = runtime.del(&list(), &at()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(report.warnings.is_empty(), is_whole, "{what}: {report:?}");
    assert!(is_whole || report.warnings[0].contains(FILE), "{what}: {report:?}");
    assert!(!dir.join(FILE).exists(), "{what}");
    let aside = dir.join("cnikit/aside/net-c1-eth0");
    assert_eq!(aside.exists(), !is_whole, "{what}");
    if !is_whole {
        assert_eq!(fs::read(&aside).unwrap(), content, "{what}");
        fs::remove_file(aside).unwrap();
    }
    assert_eq!(runtime.cache.attachments().unwrap().len(), 0, "{what}");
}

#[test]
fn a_cache_file_with_any_flipped_byte_or_cut_blocks_no_del() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    quick(dir.path()).add(&list(), &at()).unwrap();
    let bytes = fs::read(dir.path().join(FILE)).unwrap();
    survives(dir.path(), &bytes, true, "as it was written");
    // The name of our own member: without it the file is upstream's, and its other members are valid.
    let text = std::str::from_utf8(&bytes).unwrap();
    let name = text.find("\"cnikit\"").unwrap() + 1..text.find("\"cnikit\"").unwrap() + "cnikit".len() + 1;
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << 1;
        survives(dir.path(), &flipped, name.contains(&at), &format!("byte {at} of {text}"));
        survives(dir.path(), &bytes[..at], false, &format!("{at} bytes of {text}"));
    }
}

#[test]
fn an_upstream_cache_file_with_any_flipped_byte_blocks_no_del() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let runtime = quick(dir.path());
    runtime.add(&list(), &at()).unwrap();
    let bytes = fs::read(dir.path().join(FILE)).unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    // It has no checksum, so a file that can be parsed is trusted.
    let theirs = format!("{}}}", &text[..text.find(",\"cnikit\"").unwrap()]);
    for at_byte in 0..theirs.len() {
        let mut flipped = theirs.clone().into_bytes();
        flipped[at_byte] ^= 1 << 1;
        fs::write(dir.path().join(FILE), &flipped).unwrap();
        let what = format!("byte {at_byte} of {theirs}");
        let glanced = runtime.cache.list().unwrap().remove(0);
        let cached = runtime.cache.attachments().unwrap().remove(0);
        assert_eq!((glanced.state, &glanced.container_id), (cached.state, &cached.at.container_id), "{what}");
        let report = match runtime.del(&list(), &at()) {
            Ok(report) => report,
            // A name that may well be a plugin's, which is missing: as if it had been uninstalled.
            Err(error) => {
                let plugin = cached.list().unwrap().plugins.remove(0).plugin;
                assert!(error.to_string().contains(&format!("failed to find plugin \"{plugin}\"")), "{what}: {error}");
                assert!(plugin != "one" && dir.path().join(FILE).exists(), "{what}");
                continue;
            }
        };
        let aside = dir.path().join("cnikit/aside/net-c1-eth0");
        assert!(!dir.path().join(FILE).exists(), "{what}: {report:?}");
        assert_eq!(aside.exists(), cached.state == State::Unreadable, "{what}: {report:?}");
        if aside.exists() {
            assert!(report.warnings[0].contains(FILE) && fs::read(&aside).unwrap() == flipped, "{what}: {report:?}");
            fs::remove_file(aside).unwrap();
        }
    }
}

#[test]
fn a_gc_leaves_what_cannot_be_read_while_it_may_be_a_valid_containers() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let runtime = quick(dir.path());
    let valid = |ifname: &str| ValidAttachment { container_id: "c1".to_owned(), ifname: ifname.to_owned() };
    for (ifname, others) in [("eth0", "eth0"), ("my-if", "eth0")] {
        runtime.add(&list(), &at().on(ifname)).unwrap();
        let file = dir.path().join(format!("results/net-c1-{ifname}"));
        fs::write(&file, "{").unwrap();
        runtime.gc(&list(), &[valid(others)]).unwrap();
        assert!(file.exists(), "{ifname}");
        let networks = Networks::new(runtime.clone()).with(list());
        networks.gc(&["c1"]).unwrap();
        assert!(file.exists(), "{ifname}");
        networks.gc(&["c2"]).unwrap();
        assert!(!file.exists() && dir.path().join(format!("cnikit/aside/net-c1-{ifname}")).exists(), "{ifname}");
    }
}

#[test]
fn an_add_finds_room_where_garbage_was_which_is_set_aside() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("results")).unwrap();
    for garbage in ["", "{", "\0\0"] {
        fs::write(dir.path().join(FILE), garbage).unwrap();
        quick(dir.path()).add(&list(), &at()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cnikit/aside/net-c1-eth0")).unwrap(), garbage);
        assert_eq!(quick(dir.path()).cache.attachments().unwrap()[0].state, State::Attached);
    }
}

/// A file as a later release could write it: another version, and a checksum that fits (FNV-1a of 64 bits).
fn of_a_later_release(text: &str) -> String {
    let (summed, _) = text.rsplit_once(",\"sum\":").unwrap();
    let summed = summed.replace(r#""version":1,"#, r#""version":2,"#);
    let add = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = summed.bytes().fold(0xcbf2_9ce4_8422_2325, add);
    format!("{summed},\"sum\":\"{sum:016x}\"}}}}")
}

/// A node that returns to this release can have such files.
#[test]
fn a_file_of_a_later_release_refuses_add_and_check_and_is_set_aside_by_del() {
    let dir = TempDir::new().unwrap();
    let runtime = quick(dir.path());
    runtime.add(&list(), &at()).unwrap();
    let later = of_a_later_release(&fs::read_to_string(dir.path().join(FILE)).unwrap());
    let why = format!("read {}: it has version 2 of its format", dir.path().join(FILE).display());
    fs::write(dir.path().join(FILE), &later).unwrap();
    let check = runtime.check(&list(), &at()).unwrap_err();
    for error in [check, runtime.add_with_rollback(&list(), &at()).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains(&why) && text.contains("a later release wrote it"), "{text}");
    }
    assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), later, "nothing is taken down");
    assert_eq!(runtime.cache.list().unwrap()[0].state, State::Unreadable);
    assert!(runtime.cache.attachments().unwrap()[0].problems[0].contains(&why));
    survives(dir.path(), later.as_bytes(), false, "of a later release");
}

/// The file as upstream's libcni writes it.
const THEIRS: &str = r#"{"kind":"cniCacheV1","containerId":"c1","config":"CONFIG","ifName":"eth0","networkName":"net","netns":"/run/netns/c1","cniArgs":[["IgnoreUnknown","1"]],"capabilityArgs":{"mac":"02:00:00:00:00:01"},"result":{"cniVersion":"1.1.0","dns":{},"interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.9.0.2/24","interface":0}]}}"#;

#[test]
fn attachments_cached_by_upstream_are_listed_and_deleted() {
    let scene = Scene::new();
    scene.plugin("one", ANSWER);
    fs::create_dir_all(scene.path("state/results")).unwrap();
    // {"cniVersion":"1.1.0","name":"net","plugins":[{"type":"one","capabilities":{"mac":true}}]}
    let config = "eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6Im9uZSIsImNhcGFiaWxpdGllcyI6eyJtYWMiOnRydWV9fV19";
    fs::write(scene.path("state").join(FILE), THEIRS.replace("CONFIG", config)).unwrap();
    let cached = scene.runtime().cache.attachment("net", "c1", "eth0").unwrap();
    assert_eq!((cached.state, cached.addresses()), (State::Attached, vec!["10.9.0.2/24".to_owned()]));
    assert_eq!(cached.problems, ["its namespace /run/netns/c1 is gone"]);
    assert_eq!(cached.at, at());
    scene.runtime().del(&cached.list().unwrap(), &Attachment::new("c1", "")).unwrap();
    let read: Value = serde_json::from_str(&scene.stdin("one", "DEL")).unwrap();
    assert_eq!(read["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
    assert_eq!(read["prevResult"]["ips"][0]["address"], "10.9.0.2/24");
    let env = fs::read_to_string(scene.path("one.DEL.env")).unwrap();
    for line in ["CNI_ARGS=IgnoreUnknown=1", "CNI_NETNS="] {
        assert!(env.lines().any(|one| one == line), "{line}: {env}");
    }
    assert_eq!(scene.state("results"), [""; 0]);
}

/// As the library in Podman 4.3.1 wrote it; its release has no `netns` yet.
const PODMANS: &str = r#"{"kind":"cniCacheV1","containerId":"d63784afbc07","config":"eyJjbmlWZXJzaW9uIjoiMC40LjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6Im9uZSIsICAiY2FwYWJpbGl0aWVzIjp7Im1hYyI6dHJ1ZX19XX0=","ifName":"eth0","networkName":"net","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","c1"]],"capabilityArgs":{"aliases":{"net":["d63784afbc07"]}},"result":{"cniVersion":"0.4.0","dns":{},"interfaces":[{"mac":"02:00:00:00:00:09","name":"eth0","sandbox":"/run/netns/netns-92e38622-15f4-87ca-7e48-6f797fed812d"}],"ips":[{"address":"10.9.0.2/24","interface":0,"version":"4"}]}}"#;

#[test]
fn an_attachment_cached_by_podman_is_complete_and_deleted_by_gc() {
    let scene = Scene::new();
    scene.plugin("one", ANSWER);
    fs::create_dir_all(scene.path("state/results")).unwrap();
    fs::write(scene.path("state/results/net-d63784afbc07-eth0"), PODMANS).unwrap();
    let cached = scene.runtime().cache.attachments_of("d63784afbc07").unwrap().remove(0);
    assert_eq!(
        (cached.state, cached.problems.len(), cached.addresses()),
        (State::Attached, 0, vec!["10.9.0.2/24".to_owned()])
    );
    let namespace = "/run/netns/netns-92e38622-15f4-87ca-7e48-6f797fed812d"; // recorded only in the result
    assert_eq!(
        (cached.summary().netns, scene.runtime().cache.list().unwrap()[0].netns.as_str()),
        (namespace.into(), namespace)
    );
    scene.runtime().gc(&cached.list().unwrap(), &[]).unwrap();
    assert_eq!(scene.calls(), ["DEL one"], "a list of 0.4.0 knows no GC");
    let read: Value = serde_json::from_str(&scene.stdin("one", "DEL")).unwrap();
    assert_eq!(read["prevResult"]["interfaces"][0]["mac"], "02:00:00:00:00:09");
    assert_eq!(scene.state("results"), [""; 0]);
}

#[test]
fn a_cache_file_is_that_of_upstream_with_one_member_more() {
    let dir = TempDir::new().unwrap();
    quick(dir.path()).add(&list(), &at()).unwrap();
    let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
    let cached: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    let theirs: serde_json::Map<String, Value> = serde_json::from_str(THEIRS).unwrap();
    let keys = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<String>>();
    assert_eq!(keys(&cached), [keys(&theirs), vec!["cnikit".to_owned()]].concat());
    for key in ["kind", "containerId", "ifName", "networkName", "netns", "cniArgs", "capabilityArgs"] {
        assert_eq!(cached[key], theirs[key], "{key}");
    }
}

#[test]
fn a_missing_cache_directory_blocks_no_call() {
    let dir = TempDir::new().unwrap();
    let runtime = quick(&dir.path().join("not/yet"));
    assert_eq!(runtime.cache.attachments().unwrap().len(), 0);
    runtime.del(&list(), &at()).unwrap();
    runtime.gc(&list(), &[]).unwrap();
    runtime.add(&list(), &at()).unwrap();
    fs::remove_dir_all(dir.path().join("not")).unwrap();
    runtime.del(&list(), &at()).unwrap();
}

/// Runs `work` on a host, in a thread with a mount namespace of its own.
fn mounted<T: Send>(scene: &Scene, work: impl FnOnce() -> T + Send) -> T {
    scene.host.enter(|| {
        unshare_mounts();
        work()
    })
}

/// Gives this thread a mount namespace of its own.
fn unshare_mounts() {
    #[expect(clippy::disallowed_methods, reason = "a mount namespace, not a network's; it goes with this thread")]
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
}

fn read_only(dir: &Path, on: bool) {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | if on { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    // A file that is open for writing prevents a read-only remount, and a child of another test has our open files until its exec.
    let deadline = Deadline::after(Duration::from_secs(30));
    while let Err(error) = mount(None::<&str>, dir, None::<&str>, flags, None::<&str>) {
        assert!(error == Errno::EBUSY && deadline.pause(Duration::from_millis(5)), "{}: {error}", dir.display());
    }
}

#[test]
fn del_removes_temporary_files_of_a_killed_writer() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = quick(dir.path());
    runtime.add(&list(), &at()).unwrap();
    let left = ["results", "cnikit/intents"].map(|place| dir.path().join(place).join(".net-c1-eth0.new"));
    left.iter().for_each(|file| fs::write(file, "{").unwrap());
    runtime.del(&list(), &at()).unwrap();
    assert!(left.iter().all(|file| !file.exists()));
}

#[test]
fn a_file_in_place_of_a_cache_directory_refuses_add_but_not_del() {
    for (place, is_link) in [("", false), ("results", false), ("results", true), ("cnikit/intents", false)] {
        let dir = tempfile::tempdir().unwrap();
        let runtime = quick(&dir.path().join("state"));
        let misplaced = dir.path().join("state").join(place).components().collect::<std::path::PathBuf>();
        fs::create_dir_all(misplaced.parent().unwrap()).unwrap();
        if is_link {
            std::os::unix::fs::symlink(&misplaced, &misplaced).unwrap();
        } else {
            fs::write(&misplaced, "mine").unwrap();
        }
        let error = runtime.add(&list(), &at()).unwrap_err();
        let text = error.to_string();
        assert!(error.code() == 5 && text.contains(misplaced.to_str().unwrap()), "{place}: {text}");
        assert!(text.contains("something else exists at the path of the directory: move it away"), "{place}: {text}");
        runtime.cache.attachments().unwrap_err();
        let warnings = runtime.del(&list(), &at()).unwrap().warnings;
        assert!(warnings.iter().any(|warning| warning.contains(misplaced.to_str().unwrap())), "{place}: {warnings:?}");
        assert!(misplaced.symlink_metadata().is_ok(), "{place}");
    }
}

#[test]
fn a_read_only_cache_refuses_add_early_and_lets_del_run_the_plugins() {
    let scene = Scene::new();
    let list = scene.list("net", &json!([scene.bridge()]));
    let runtime = scene.runtime();
    let state = scene.path("state");
    fs::create_dir(&state).unwrap();
    mounted(&scene, || {
        mount(Some(&state), &state, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        read_only(&state, true);
        let error = runtime.add(&list, &scene.at()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/state/") && text.contains("read-only: remount it writable"), "{text}");
        assert_eq!((error.code(), scene.leases("net")), (5, Vec::new()));
        read_only(&state, false);
        runtime.add(&list, &scene.at()).unwrap();
        read_only(&state, true);
        let error = runtime.del(&list, &scene.at()).unwrap_err();
        assert!(error.to_string().contains(FILE) && error.code() == 5, "{error}");
        assert_eq!(scene.leases("net"), [""; 0], "the plugins have done it");
        read_only(&state, false);
        assert_eq!(fs::read_dir(state.join("results")).unwrap().count(), 1);
        runtime.del(&list, &scene.at()).unwrap();
        assert_eq!(fs::read_dir(state.join("results")).unwrap().count(), 0);
    });
    scene.assert_clean("net");
}

#[test]
fn a_full_disk_refuses_add_early_and_one_that_fills_loses_nothing() {
    let scene = Scene::new();
    scene.plugin(
        "fills",
        &format!("ADD) cat /dev/zero >$dir/state/full 2>/dev/null; {} ;;", &ANSWER[5..ANSWER.len() - 3]),
    );
    let list = scene.list("net", &json!([scene.bridge(), {"type": "fills"}]));
    let runtime = scene.runtime();
    let state = scene.path("state");
    fs::create_dir(&state).unwrap();
    mounted(&scene, || {
        mount(Some("tmpfs"), &state, Some("tmpfs"), MsFlags::empty(), Some("size=256k")).unwrap();
        let error = runtime.add_with_rollback(&list, &scene.at()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("net-c1-eth0") && text.contains("the file system is full"), "{text}");
        assert_eq!((error.code(), scene.leases("net")), (5, Vec::new()), "{text}: it was undone");
        scene.calls();
        // The space that the undone ADD freed.
        fs::write(state.join("rest"), vec![0; 1 << 18]).unwrap_err();
        let error = runtime.add(&list, &scene.at()).unwrap_err();
        assert!(error.to_string().contains("the file system is full") && error.code() == 5, "{error}");
        assert_eq!(scene.calls(), [""; 0], "no plugin was asked");
        ["full", "rest"].into_iter().for_each(|name| fs::remove_file(state.join(name)).unwrap());
        runtime.add(&list, &scene.at()).unwrap_err();
        let cached = runtime.cache.attachments().unwrap().remove(0);
        assert_eq!((cached.state, scene.leases("net").len()), (State::Interrupted, 2), "{cached:?}");
        runtime.del_cached(&cached).unwrap();
        fs::remove_file(state.join("full")).unwrap();
        assert_eq!(runtime.cache.attachments().unwrap().len(), 0);
    });
    scene.assert_clean("net");
}
