//! In a user namespace, where we are root of nothing else.
#![expect(clippy::disallowed_methods, reason = "a process enters a user namespace by unshare(1), a thread cannot")]

use std::process::Command;

use cnikit_nftables::Nftables;

use crate::scene::{frame, masquerade};

/// The variable that is set when this program was started again inside the user namespace.
const INSIDE: &str = "NETFILTER_TEST_INSIDE";

#[test]
fn a_user_namespace_is_enough() {
    if std::env::var_os(INSIDE).is_some() {
        return rules_come_and_go();
    }
    let this = std::env::current_exe().unwrap();
    let again = ["--exact", "unprivileged::a_user_namespace_is_enough"];
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net"]).arg(this).args(again).env(INSIDE, "yes");
    let output = unshare.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 passed"), "{stdout}");
}

fn rules_come_and_go() {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    assert_eq!(map.split_whitespace().nth(2), Some("1"), "this is not the user namespace that the test makes");
    let rules = [masquerade("10.0.0.2", "10.0.0.0/24", "aa-1")];
    let nftables = Nftables::here().unwrap();
    nftables.replace(&frame(), "aa-1", &rules).unwrap();
    assert_eq!(nftables.verify(&frame(), "aa-1", &rules).unwrap(), [""; 0]);
    assert_eq!(nftables.release(&frame(), "aa-1").unwrap(), 1);
}
