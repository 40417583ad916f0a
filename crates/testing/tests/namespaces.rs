//! Tests that run in namespaces of their own, also as an ordinary user.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cnikit_process::{Deadline, Env, Program};
use cnikit_testing::need::Need;
use cnikit_testing::{Host, HostSnapshot, in_own_namespaces};

/// A user without a name, a home and rights.
const ORDINARY: u32 = 54321;

/// Whether this user may run programs as another one. In a user namespace that knows one user only it may not.
const OTHER_USER: Need = Need::new(
    "another-user",
    "setpriv --reuid 54321 --regid 54321 --clear-groups sh -c 'echo user $(id -u)'",
    "user 54321",
);

/// Whether the kernel allows user namespaces to ordinary users.
const USER_NAMESPACES: Need = Need::new(
    "user-namespaces",
    "setpriv --reuid 54321 --regid 54321 --clear-groups unshare --map-root-user --net --mount sh -c 'echo user $(id -u)'",
    "user 0",
);

#[test]
fn the_machine_is_not_seen_and_not_changed() {
    let outside = fs::read_link("/proc/self/ns/net").unwrap();
    in_own_namespaces(|| {
        assert!(nix::unistd::geteuid().is_root());
        let inside = fs::read_link("/proc/self/ns/net").unwrap();
        assert_eq!(Host::machine().sh("cat /proc/net/dev").lines().count(), 3, "only the loopback");
        let mut entries: Vec<_> = fs::read_dir("/run").unwrap().map(|entry| entry.unwrap().file_name()).collect();
        entries.sort();
        assert_eq!(entries, ["cnikit-testing", "netns"]);
        for state in ["/var/lib/cni", "/var/lib/cnikit"] {
            assert_eq!(Path::new(state).read_dir().unwrap().count(), 0, "{state}");
        }
        assert!(Path::new("/var/lib").read_dir().unwrap().count() > 2, "the rest is seen");
        fs::create_dir_all("/var/lib/cni/networks").unwrap();
        fs::write(format!("/run/{}", inside.display()), "").unwrap();
        Host::machine().sh("ip netns add mine && ping -c 1 127.0.0.1");
    });
    // The other process has ended; in it `outside` is the same as `inside`.
    let here = fs::read_link("/proc/self/ns/net").unwrap();
    assert_eq!(here, outside);
}

#[test]
fn a_failure_in_there_is_the_failure_of_the_test() {
    let is_inside = std::env::vars_os().any(|(name, _)| name == "CNIKIT_TEST_NAMESPACES");
    let fails = || in_own_namespaces(|| panic!("failed in process {}", std::process::id()));
    if is_inside {
        return fails();
    }
    let panic = std::panic::catch_unwind(fails).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("a_failure_in_there_is_the_failure_of_the_test, in its own namespaces: "), "{message}");
    assert!(message.contains("failed in process "), "{message}");
}

#[test]
fn a_peer_is_pinged_by_the_host_by_a_container_and_through_the_host() {
    in_own_namespaces(|| {
        let host = Host::new();
        let before = HostSnapshot::of(&host);
        let outside = host.peer("uplink0", "192.0.2.1/24", "192.0.2.2/24").routed_back();
        let container = host.container();
        let neighbour = container.peer("net1", "2001:db8::1/64", "2001:db8::2/64");
        assert!(container.reaches(neighbour.address()) && neighbour.namespace().reaches("2001:db8::1"));
        assert!(outside.namespace().reaches("192.0.2.1"));
        assert!(!container.reaches(outside.address()), "it has no route yet");
        host.sh(&format!(
            "ip link add to-c type veth peer name eth0 netns {} && ip address add 10.9.0.1/24 dev to-c && ip link set to-c up \
             && sysctl -qw net.ipv4.ip_forward=1",
            container.path()
        ));
        container.sh("ip address add 10.9.0.2/24 dev eth0 && ip link set eth0 up && ip route add default via 10.9.0.1");
        assert!(container.reaches(outside.address()), "through the host, which does not masquerade");
        host.sh("ip link del to-c && ip link del uplink0 && sysctl -qw net.ipv4.ip_forward=0");
        assert_eq!(HostSnapshot::leftovers(&host, &before, &[]), None);
    });
}

/// Runs the tests above again as an ordinary user. Where the kernel allows that user no namespaces, the message has to say so.
#[test]
fn an_ordinary_user_needs_no_root() {
    if let Some(unmet) = OTHER_USER.unmet() {
        assert!(is_root_of_a_user_namespace(), "{unmet}");
        println!("the whole program runs as root of a user namespace that knows one user: {unmet}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [dir.path(), &program] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    for test in
        ["the_machine_is_not_seen_and_not_changed", "a_peer_is_pinged_by_the_host_by_a_container_and_through_the_host"]
    {
        let (passed, output) = run_as_ordinary_user(&program, test);
        match USER_NAMESPACES.unmet() {
            None => assert!(passed && output.contains("test result: ok. 1 passed"), "{test}: {output}"),
            Some(unmet) => assert!(!passed && output.contains("\nhint: "), "{unmet}: {test}: {output}"),
        }
    }
}

fn is_root_of_a_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
    let users = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    users.sum::<u64>() <= u64::from(ORDINARY)
}

fn run_as_ordinary_user(program: &Path, test: &str) -> (bool, String) {
    let user = ORDINARY.to_string();
    let mut args = vec!["--reuid", &user, "--regid", &user, "--clear-groups"];
    args.extend([program.to_str().unwrap(), "--exact", test]);
    let setpriv = Program::new(cnikit_process::find_program("setpriv").unwrap(), Env::Clean(&[]))
        .args(args.into_iter().map(Into::into).collect());
    let ended = cnikit_process::run(&setpriv, Deadline::after(std::time::Duration::from_mins(2))).unwrap();
    let output = [ended.stdout, ended.stderr].concat();
    (ended.how.is_success(), String::from_utf8_lossy(&output).into_owned())
}
