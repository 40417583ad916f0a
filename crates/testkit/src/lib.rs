//! Tests for CNI plugins of any author: a plugin, a configuration, one line per property.
//!
//! Every test runs in network namespaces that the kit creates and that end with the test, even if it is killed; the kernel is
//! not mocked. A [`Subject`] is a plugin binary with a configuration; each function takes one and panics if the property does
//! not hold:
//!
//! | | holds if |
//! |---|---|
//! | [`life::leaves_no_trace`] | ADD, CHECK, DEL leave nothing, and a second cycle adds nothing even to what is shared |
//! | [`life::survives_incomplete_dels`] | DEL succeeds and leaves nothing with whatever may be missing or wrong, twice, after nothing |
//! | [`life::names_tampering`] | CHECK names each thing that was tampered with |
//! | [`life::names_tampering_of_all`] | and no resource of the plan is forgotten |
//! | [`flood::survives`] | 64 at once: no address twice, no trace |
//! | [`flood::random_calls`] | thousands of calls by 64 workers, some killed: one owner an address, no orphan |
//! | [`soak::Soak`] | the same for hours, interrupted and gone on with |
//! | [`crash::survives`] | the power goes at any moment, with whatever was not synced: no address twice, no ADD refused for ever |
//! | [`mixed::interleaved`] | ADD by one maker's plugin, CHECK and DEL by another's, at random, on one network |
//! | [`mixed::replaced`] | all plugins are exchanged while containers run, and back: no packet is lost, nothing is left |
//! | [`fault::leaves_nothing`] | a fault before every step, with and without a second one in the roll-back |
//! | [`fault::changes_nothing`] | the same of a plugin that changes what others made |
//! | [`kill::at_every_call`] | killed before any system call of ADD, DEL or GC: a DEL leaves nothing, and the next ADD works |
//! | [`kill::at_moments`] | the same with `SIGTERM` at any moment |
//! | [`kill::with_resource_limits`] | the same with a file size and a memory that do not suffice |
//! | [`transcripts::survives`] | what a runtime sent, as it was, cut short, twice, out of order, killed in between: nothing is left |
//! | [`errno::at_every_call`] | any system call fails once: ADD succeeds or leaves nothing, DEL and GC can be repeated |
//!
//! A test with many cases prints one line: how many cases there are, how many were tried and how many survived (see
//! [`campaign::SummaryLine`]). Those of [`kill`], [`errno`], [`crash`] and [`transcripts`] are campaigns: they have more cases than one
//! run has time for, so each tries a random part, and `CNIKIT_CAMPAIGNS=whole` tries everything. `CNIKIT_SEED`, which the line
//! names if the choice was random, repeats the choice.
//!
//! # Example
//!
//! It makes network namespaces, so it needs `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`:
//!
//! ```no_run
//! use cnikit_testkit::{Subject, errno, kill, life, transcripts};
//! use serde_json::json;
//!
//! let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
//! let mine = Subject::new("target/debug".as_ref(), "my-plugin", json!({"ipam": ipam}));
//! life::leaves_no_trace(&mine);
//! kill::at_every_call(&mine, 60);
//! kill::at_moments(&mine, 50);
//! kill::with_resource_limits(&mine, 20);
//! errno::at_every_call(&mine, 80);
//! transcripts::survives(&mine, &transcripts::read("tests/transcripts".as_ref()), 2);
//! ```
//!
//! What a test needs of the kernel, and many kernels lack, is a [`need::Need`].
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test kit panics: that is how a test fails")]
#![expect(clippy::missing_panics_doc, reason = "every function here panics with what it found")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub mod campaign;
mod checks;
mod env;
mod model_node;
pub mod own_process;
pub mod parallel;
pub mod syscall_trace;
pub mod transcripts;

pub use checks::{crash, errno, fault, flood, kill, life, mixed, soak};
pub use env::host::{Container, Host};
pub use env::snapshot::HostSnapshot;
pub use env::subject::{CallOutput, Subject};
pub use env::{firewalld, host, need, snapshot, subject};
pub use model_node::Tally;

/// Where `scripts/lib.sh` keeps what it unpacks and does not install. Programs in it are run: a directory that another user owns or
/// can write in is refused, as `scripts/lib.sh` refuses it.
#[expect(clippy::disallowed_methods, reason = "whoever keeps it elsewhere says so in the environment")]
pub fn cache() -> PathBuf {
    let path = std::env::var_os("CNIKIT_CACHE").map_or_else(|| "/var/tmp/cnikit".into(), PathBuf::from);
    let why = why_untrusted(&path).unwrap_or_default();
    assert!(why.is_empty(), "{} is not used: {why}. Set CNIKIT_CACHE to a directory of your own", path.display());
    path
}

/// Why programs in a directory must not be run; a directory that is not there has none.
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
