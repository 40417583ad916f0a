//! Runs a test in namespaces of its own, so that it needs no root and cannot change the machine.

use std::any::type_name;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::thread;

use cnikit_process::find_program;
use nix::mount::{MsFlags, mount};

use crate::host::bring_loopback_up;
use crate::mounts::{RUN, bind, make_private, mount_tmpfs};
use crate::own_process::{is_set, run, run_test_again};

/// The variable that is set in that process: the name of the test.
const APART: &str = "CNIKIT_TEST_NAMESPACES";

/// Flags of unshare(1) that every test gets, and those that not every machine allows.
const ALWAYS: [&str; 4] = ["--net", "--mount", "--fork", "--kill-child"];
const AS_ROOT_OF_ITS_OWN: &str = "--map-root-user";
const PROCESSES: [&str; 2] = ["--pid", "--mount-proc"];

/// Runs the rest of a test in a process of its own that has new network, mount and PID namespaces, and a user namespace in which
/// it is root, unless it is root already. `/run`, `/var/lib/cni` and `/var/lib/cnikit` are empty there, and the loopback is up. All
/// of it ends with the test, even if the test is killed. Where PID namespaces cannot be made (some containers) there is no new one.
///
/// The whole test belongs in `work`: the test program is started again for this test only, and what precedes the call is run in
/// both processes. What the test prints is printed.
///
/// ```no_run
/// # use cnikit_testing::{Host, in_own_namespaces};
/// in_own_namespaces(|| assert!(Host::new().container().links().is_empty()));
/// ```
///
/// # Panics
/// With the output, if the test fails there; and if this machine allows no user namespaces: the message says which setting that is.
pub fn in_own_namespaces<F: FnOnce()>(work: F) {
    static SETTLED: Once = Once::new();
    let names = test_names(thread::current().name(), type_name::<F>());
    if names.iter().any(|name| is_set(APART, name)) {
        SETTLED.call_once(|| settle_in(&[]));
        return work();
    }
    let name = names.first().expect("no test: in_own_namespaces has to be called by a test");
    let flags = unshare_command().unwrap_or_else(|why| panic!("{why}"));
    let (passed, text) = run_test_again(name, APART, flags);
    assert!(!text.contains("\nrunning 0 tests\n"), "{}", no_such_test(name));
    assert!(passed, "{name}, in its own namespaces: {text}");
    #[expect(clippy::print_stdout, reason = "the harness captures it, and shows it if it was asked to")]
    {
        print!("{text}");
    }
}

/// The names that the calling test may have. The harness names a test's thread after it, except with one thread for all tests;
/// then the name of the closure's type tells: `program::module::test::{{closure}}`.
fn test_names(thread: Option<&str>, closure: &str) -> Vec<String> {
    let mut names = Vec::new();
    if let Some(name) = thread.filter(|name| *name != "main") {
        names.push(name.to_owned());
    }
    let function = closure.split("::{{closure}}").next().unwrap_or_default();
    if let Some((_, name)) = function.split_once("::") {
        names.push(name.to_owned());
    }
    names
}

fn no_such_test(name: &str) -> String {
    format!(
        "failed to find the test that calls in_own_namespaces: there is none called {name}\n\
         hint: call it from the test itself, with a closure, or run the tests without `--test-threads=1`"
    )
}

/// unshare(1) with the flags that work on this machine: the words before a program that is to run in namespaces of its own.
///
/// # Errors
/// Why this machine has no namespaces for it, and a hint.
pub fn unshare_command() -> Result<&'static [OsString], &'static str> {
    static FLAGS: OnceLock<Result<Vec<OsString>, String>> = OnceLock::new();
    FLAGS.get_or_init(find_flags).as_deref().map_err(String::as_str)
}

fn find_flags() -> Result<Vec<OsString>, String> {
    let Some(unshare) = find_program("unshare") else {
        return Err("failed to start the program unshare: it is not installed\nhint: install util-linux".to_owned());
    };
    let mut words: Vec<OsString> = vec![unshare.into()];
    words.extend(ALWAYS.map(OsString::from));
    // Root in a container may lack the capability, and then gets it in a user namespace as any other user.
    if !nix::unistd::geteuid().is_root() || attempt(&words).is_err() {
        words.push(AS_ROOT_OF_ITS_OWN.into());
        if let Err(why) = attempt(&words) {
            let setting = namespaces_hint();
            return Err(format!("failed to make namespaces: {why}\nhint: {setting}"));
        }
    }
    let with_processes = [words.clone(), PROCESSES.map(OsString::from).to_vec()].concat();
    Ok(if attempt(&with_processes).is_ok() { with_processes } else { words })
}

/// Runs `true` in such namespaces. An error is what unshare(1) printed.
fn attempt(words: &[OsString]) -> Result<(), String> {
    let ended = run([words, &["true".into()]].concat(), Vec::new());
    if ended.how.is_success() { Ok(()) } else { Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned()) }
}

/// Settings that forbid user namespaces: the file, the value, and what to do.
const SETTINGS: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "this machine allows no user namespaces: `sysctl -w user.max_user_namespaces=15000`, or run the tests as root",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "this machine allows user namespaces to root only: `sysctl -w kernel.unprivileged_userns_clone=1`, or run the tests as root",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor allows user namespaces to few programs: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or run the tests as root",
    ),
];

/// What to do on a machine that refuses user namespaces.
fn namespaces_hint() -> &'static str {
    hint(|path| fs::read_to_string(path).ok())
}

fn hint(read: impl Fn(&str) -> Option<String>) -> &'static str {
    for (path, forbids, what) in SETTINGS {
        if read(path).is_some_and(|value| value.trim() == forbids) {
            return what;
        }
    }
    "a security policy forbids it, such as the seccomp profile of a container: run the tests as root with CAP_SYS_ADMIN, or outside"
}

/// Where plugins have state if nothing else is configured: those of upstream and of cnikit.
const STATE: [&str; 2] = ["/var/lib/cni", "/var/lib/cnikit"];

/// Prepares new namespaces, for a program that made them itself. Nothing of the machine's is seen in `/run`, and what plugins store
/// in `/var/lib/cni`, `/var/lib/cnikit` and these directories goes with the namespaces.
pub fn settle_in(state: &[PathBuf]) {
    mount_tmpfs(Path::new(RUN));
    let real = Path::new("/run/cnikit-testing");
    fs::create_dir(real).unwrap();
    let usual = STATE.iter().map(Path::new);
    usual.chain(state.iter().map(PathBuf::as_path)).for_each(|directory| make_private(directory, real));
    // As the first `ip netns add` makes it, which would otherwise change the snapshots of a test.
    let netns = Path::new("/run/netns");
    fs::create_dir(netns).unwrap();
    bind(netns, netns);
    mount(None::<&str>, netns, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    bring_loopback_up();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_found_by_its_thread_or_by_its_closure() {
        let closure = "kernel::life::works::{{closure}}";
        assert_eq!(test_names(Some("life::works"), closure), ["life::works", "life::works"]);
        assert_eq!(test_names(Some("main"), closure), ["life::works"]);
        assert_eq!(test_names(None, "kernel::works::{{closure}}::{{closure}}"), ["works"]);
        assert_eq!(test_names(None, "fn()"), Vec::<String>::new());
    }

    #[test]
    fn the_setting_that_forbids_user_namespaces_is_named() {
        let with = |setting: &'static str, value: &'static str| {
            hint(move |path| (path == setting).then(|| format!("{value}\n")))
        };
        assert!(with("/proc/sys/user/max_user_namespaces", "0").contains("user.max_user_namespaces="));
        assert!(with("/proc/sys/kernel/unprivileged_userns_clone", "0").contains("kernel.unprivileged_userns_clone=1"));
        let apparmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        assert!(with(apparmor, "1").contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        for (path, value) in [(apparmor, "0"), ("/proc/sys/user/max_user_namespaces", "96365")] {
            assert!(with(path, value).contains("seccomp"), "{path}");
        }
    }

    #[test]
    fn what_unshare_prints_is_the_reason() {
        let unshare = find_program("unshare").unwrap();
        let why = attempt(&[unshare.into(), "--no-such-flag".into()]).unwrap_err();
        assert!(why.contains("no-such-flag"), "{why}");
    }
}
