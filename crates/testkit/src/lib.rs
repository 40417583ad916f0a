//! Tests for CNI plugins of any author: one plugin with a configuration, one function call per property.
//!
//! Every test runs in network namespaces that the kit creates. They end with the test, even if it is killed. The kernel is not
//! mocked. A [`Subject`] is a plugin binary with a configuration; each function takes one and panics if the property does not hold:
//!
//! | function | property |
//! |---|---|
//! | [`protocol`] (eight functions) | results, errors and versions are as the specification has them |
//! | [`life::leaves_no_trace`] | ADD, CHECK and DEL leave nothing; a second cycle adds nothing, not even to shared state |
//! | [`life::survives_incomplete_dels`] | DEL succeeds and leaves nothing: with incomplete or wrong input, repeated, without ADD |
//! | [`life::removes_invalid`] | GC removes what belongs to no valid attachment, also of running containers, and nothing else |
//! | [`life::leaves_foreign_objects`] | links, addresses, rules and files of other programs are not changed |
//! | [`life::names_tampering`] | CHECK names each change that another program made |
//! | [`life::names_tampering_of_all`] | the same, and the changes cover every resource of the plan |
//! | [`flood::survives`] | 64 containers at once: no address is assigned twice, and nothing is left |
//! | [`flood::random_calls`] | thousands of calls by 64 workers, some killed: each address has one owner, and nothing is left |
//! | [`soak::Soak`] | the same for hours, in several runs |
//! | [`crash::survives`] | after a power cut at any moment: no address is assigned twice, and no ADD is refused for ever |
//! | [`mixed::interleaved`] | random ADD, CHECK and DEL by two implementations on one network |
//! | [`mixed::replaced`] | plugins are replaced and replaced back while containers run: no packet is lost, and nothing is left |
//! | [`fault::leaves_nothing`] | a fault before every step, with and without a second fault in the roll-back, leaves nothing |
//! | [`fault::changes_nothing`] | the same for a plugin that changes what other plugins made |
//! | [`kill::at_every_call`] | after a kill before any system call of ADD, DEL or GC, DEL leaves nothing, and the next ADD works |
//! | [`kill::at_moments`] | the same with `SIGTERM` at random moments |
//! | [`kill::with_resource_limits`] | the same with limits of the file size and the memory |
//! | [`transcripts::survives`] | recorded calls of runtimes, also truncated, repeated, in another order or killed, leave nothing |
//! | [`errno::at_every_call`] | if any system call fails once, ADD succeeds or leaves nothing, and DEL and GC can be repeated |
//!
//! A test with many cases prints one line: the number of cases, and how many of them were tried and survived (see
//! [`campaign::SummaryLine`]). The tests in [`kill`], [`errno`], [`crash`] and [`transcripts`] are campaigns: one run has no time
//! for all cases, so each run tries a random part. `CNIKIT_CAMPAIGNS=whole` tries all. `CNIKIT_SEED`, which the line names after a
//! random choice, repeats that choice.
//!
//! # Example
//!
//! The tests create network namespaces, so they need `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, which every user has in
//! [`in_own_namespaces`]:
//!
//! ```no_run
//! use cnikit_testkit::{Subject, errno, in_own_namespaces, kill, life, transcripts};
//! use serde_json::json;
//!
//! let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
//! let mine = Subject::new("target/debug".as_ref(), "my-plugin", json!({"ipam": ipam}));
//! in_own_namespaces(|| {
//!     life::leaves_no_trace(&mine);
//!     kill::at_every_call(&mine, 60);
//!     kill::at_moments(&mine, 50);
//!     kill::with_resource_limits(&mine, 20);
//!     errno::at_every_call(&mine, 80);
//!     transcripts::survives(&mine, &transcripts::read("tests/transcripts".as_ref()), 2);
//! });
//! ```
//!
//! # What a subject has to be
//!
//! - A binary in a directory, with every plugin that it delegates to beside it: in the example above `target/debug` needs a
//!   `host-local`. In a test of your own package cargo names your binary: `env!("CARGO_BIN_EXE_my-plugin")`.
//! - An ADD that succeeds on a new host, which [`Subject::on`] prepares, for example with a master. A run in which no ADD succeeds
//!   fails.
//! - Gateways in the result of its ADD that answer a ping from the container: the campaigns ping them while they disturb calls for
//!   another container. A subject without such a gateway has none in its result.
//! - State in `$DIR`: see [`Subject::at`]. What its last DEL may leave on the host for the next attachment is said by
//!   [`Subject::shared`](fn@Subject::shared).
//!
//! # Run times
//!
//! On two cores, of a plugin whose ADD takes 3 ms: the functions of [`life`] and [`fault`] take one to five seconds,
//! [`flood::survives`] with 64 containers two, [`kill::at_every_call`] and [`errno::at_every_call`] with a sample of 60 about 20;
//! the whole of either takes minutes. A run of `CNIKIT_CAMPAIGNS=whole` over a few plugins takes hours.
//!
//! A [`need::Need`] names a feature of the kernel that a test needs and many kernels lack.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test kit panics: that is how a test fails")]
#![expect(clippy::missing_panics_doc, reason = "every function here panics with what it found")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub mod campaign;
mod checks;
mod env;
mod model_node;
pub mod parallel;
pub mod syscall_trace;
pub mod transcripts;

pub use checks::{crash, errno, fault, flood, kill, life, mixed, protocol, soak};
pub use cnikit_testing::{Container, Host, HostSnapshot, in_own_namespaces, need};
#[doc(hidden)]
pub use cnikit_testing::{can_be_private, settle_in, unshare_command};
pub use env::subject::{CallOutput, Subject};
pub use env::{firewalld, subject};
pub use model_node::Tally;

/// Runs a test in a process of its own, and measures the processor time of a thread.
pub mod own_process {
    pub use cnikit_testing::{in_own_process, processor_time};
}

/// Parts of a [`HostSnapshot`].
pub mod snapshot {
    pub use cnikit_testing::{HINTS, line_contains, settings};
}

/// The directory for files that `scripts/lib.sh` unpacks but does not install. Programs in it are run, so a directory that another
/// user owns or can write to is refused, as `scripts/lib.sh` refuses it.
#[expect(clippy::disallowed_methods, reason = "the environment may name another directory")]
pub fn cache() -> PathBuf {
    let path = std::env::var_os("CNIKIT_CACHE").map_or_else(|| "/var/tmp/cnikit".into(), PathBuf::from);
    let why = why_untrusted(&path).unwrap_or_default();
    assert!(why.is_empty(), "{} is not used: {why}. Set CNIKIT_CACHE to a directory of your own", path.display());
    path
}

/// The reason not to run programs of a directory, or `None`. A directory that does not exist is safe.
fn why_untrusted(path: &Path) -> Option<String> {
    let found = std::fs::symlink_metadata(path).ok()?;
    if !found.is_dir() {
        return Some("it is not a directory".to_owned());
    }
    if found.uid() != nix::unistd::geteuid().as_raw() {
        return Some(format!("it belongs to user {}", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return Some(format!("other users can write there: its mode is {:o}", found.mode() & 0o7777));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn a_cache_that_another_user_may_have_filled_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let [cache, link] = ["cache", "link"].map(|name| place.path().join(name));
        assert_eq!(why_untrusted(&cache), None, "it is not there yet");
        create_dir(&cache).unwrap();
        for (mode, trusted) in [(0o700, true), (0o755, true), (0o777, false), (0o770, false), (0o1777, false)] {
            set_permissions(&cache, Permissions::from_mode(mode)).unwrap();
            assert_eq!(why_untrusted(&cache).is_none(), trusted, "{mode:o}");
        }
        set_permissions(&cache, Permissions::from_mode(0o755)).unwrap();
        symlink(&cache, &link).unwrap();
        assert!(why_untrusted(&link).is_some());
        if nix::unistd::geteuid().is_root() {
            chown(&cache, Some(65534), None).unwrap();
            assert_eq!(why_untrusted(&cache).unwrap(), "it belongs to user 65534");
        }
    }
}
