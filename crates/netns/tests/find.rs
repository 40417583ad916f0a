//! `find` distinguishes everything that a path can lead to.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};

use cnikit_netns::{Netns, NetnsLookup, find, make};
use tempfile::tempdir;

fn why(path: &str) -> String {
    match find(path) {
        NetnsLookup::NotNetns { path: named, why } => {
            assert_eq!(named.as_os_str(), path);
            why
        }
        other => panic!("{path} counts as {other:?}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "a process of its own namespace is needed, not a program's answer")]
fn sleeper() -> Child {
    std::process::Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn no_path_is_empty_and_a_missing_one_is_gone() {
    let dir = tempdir().unwrap();
    assert!(matches!(find(""), NetnsLookup::Empty));
    assert!(matches!(find(dir.path().join("missing").to_str().unwrap()), NetnsLookup::Gone));
    assert!(matches!(find(dir.path().join("missing/below").to_str().unwrap()), NetnsLookup::Gone));
    let link = dir.path().join("dangling");
    symlink("nowhere", &link).unwrap();
    assert!(matches!(find(link.to_str().unwrap()), NetnsLookup::Gone));
}

#[test]
fn a_namespace_is_present_also_behind_a_symbolic_link() {
    let dir = tempdir().unwrap();
    let netns = make::anonymous().unwrap();
    let link = dir.path().join("link");
    symlink(netns.path(), &link).unwrap();
    let NetnsLookup::Present(found) = find(link.to_str().unwrap()) else { panic!("not present") };
    assert_eq!(found.cookie().unwrap(), netns.cookie().unwrap());
    assert_eq!(found.path(), link);
}

#[test]
fn a_gone_namespace_differs_from_a_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("ns");
    let text = path.to_str().unwrap();
    make::fresh(&path).unwrap();
    assert!(matches!(find(text), NetnsLookup::Present(_)));
    make::remove(&path).unwrap();
    assert!(matches!(find(text), NetnsLookup::Gone));
    File::create(&path).unwrap();
    assert!(why(text).contains("a file (file system 0x"), "{}", why(text));
    assert!(why(dir.path().to_str().unwrap()).contains("a directory"));
    assert!(why(path.join("below").to_str().unwrap()).contains("Not a directory"));
}

#[test]
fn a_pipe_and_a_terminal_are_refused_without_being_opened() {
    let dir = tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(why(pipe.to_str().unwrap()).contains("a file"));
    assert!(why("/dev/tty").contains("a file"));
}

#[test]
fn other_things_of_proc_are_not_network_namespaces() {
    assert!(why("/proc/self/status").contains("a file"));
    assert!(why("/proc/self/ns").contains("a directory"));
    assert!(why("/proc/self/ns/mnt").contains("another type: mnt"));
    assert!(why("/proc/self/ns/uts").contains("another type: uts"));
    assert!(why("/proc/self/ns/user").contains("another type: user"));
    assert!(why("a\0b").contains("NUL") || why("a\0b").contains("nul"), "{}", why("a\0b"));
}

#[test]
fn the_threads_own_namespace_is_found_by_any_path() {
    assert!(matches!(find("/proc/self/ns/net"), NetnsLookup::Own(_)));
    assert!(matches!(find(&format!("/proc/{}/ns/net", std::process::id())), NetnsLookup::Own(_)));
    let netns = make::anonymous().unwrap();
    let path = netns.path().to_str().unwrap();
    assert!(matches!(netns.enter(|_| find(path)).unwrap(), NetnsLookup::Own(_)));
}

#[test]
fn the_namespace_of_an_ended_process_is_gone_reaped_or_not() {
    let mut child = sleeper();
    let path = format!("/proc/{}/ns/net", child.id());
    assert!(matches!(find(&path), NetnsLookup::Own(_)));
    child.kill().unwrap();
    nix::sys::wait::waitid(
        nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap())),
        nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
    )
    .unwrap();
    let zombie = find(&path);
    child.wait().unwrap();
    assert!(matches!(zombie, NetnsLookup::Gone), "{zombie:?}");
    assert!(matches!(find(&path), NetnsLookup::Gone));
}

#[test]
fn a_made_namespace_outlives_its_path_while_it_is_held() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("ns");
    let netns = make::fresh(&path).unwrap();
    make::remove(&path).unwrap();
    assert!(netns.enter(|_| netns.is_own().unwrap()).unwrap());
}

#[test]
fn making_and_removing_never_harms_a_file_that_was_there() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("precious");
    fs::write(&path, "content").unwrap();
    assert!(make::fresh(&path).is_err());
    assert!(make::remove(&path).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "content");
}

#[test]
fn an_error_has_the_operation_the_path_and_the_kernels_text() {
    let error = Netns::open("/nowhere/at/all").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot open the network namespace /nowhere/at/all: No such file or directory (os error 2)"
    );
    assert_eq!(error.errno(), Some(2));
    assert!(error.is_absent());
}

/// Without `/proc` a namespace cannot be opened, which must not look as if it did not exist. The thread hides `/proc` in a mount
/// namespace of its own, which ends with the thread.
#[test]
#[expect(clippy::disallowed_methods, reason = "a mount namespace, not one of the room's")]
fn a_namespace_is_not_called_gone_because_proc_is() {
    use nix::mount::{MsFlags, mount};
    let dir = tempdir().unwrap();
    let path = dir.path().join("ns");
    make::fresh(&path).unwrap();
    let found = std::thread::spawn({
        let path = path.clone();
        move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let nothing = None::<&str>;
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
            mount(Some("tmpfs"), "/proc", Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
            find(path.to_str().unwrap())
        }
    });
    let found = found.join().unwrap();
    make::remove(&path).unwrap();
    assert!(matches!(found, NetnsLookup::Unknown { why, .. } if why.contains("/proc")));
}
