//! Every system call fails once, with each error that it plausibly returns.

use cnikit_testkit::{Host, errno};
use cnikit_tests::{each_subject, is_chosen};

/// So many failures of a verb, in the short form.
const FAILURES: usize = 2;

macro_rules! faults {
    ($($name:ident: $subject:expr $(, $more:ident)*;)+) => {$(
        mod $name {
            #[test]
            fn meets_every_error() {
                let subject = $subject;
                if super::is_chosen(&format!("errno {}", subject.title)) {
                    super::errno::at_every_call(&subject, super::FAILURES);
                }
            }
        }
    )+};
}
each_subject!(faults);

/// If a fault makes `/run` unusable, plugins put their lock files in `/var/lib/cnikit`: not on the machine, but in a directory that
/// is removed with the mount namespace of the test program. The rest of `/var/lib` is the machine's.
#[test]
fn files_in_var_lib_cnikit_are_removed_with_the_test_program() {
    let host = Host::new();
    let needs = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/lib.sh");
    let others = "ls -A /var/lib | grep -vx cnikit";
    let name = format!("netns-of-test-{}", std::process::id());
    let line = format!(
        ". {needs}; settle_in; {others}; test ! -e /var/lib/cnikit; mkdir -p /var/lib/cnikit/locks; : >/var/lib/cnikit/locks/{name}"
    );
    let seen = host.sh(&format!("unshare --mount bash -ec '{line}'"));
    assert_eq!(seen, host.sh(others));
    assert!(!std::path::Path::new("/var/lib/cnikit/locks").join(name).exists());
}
