//! One of us at a time at work on what all of a network namespace share.

use std::os::fd::AsFd;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_skel::{Error, Result, code};
use cnikit_store::Lock;

/// How long another one is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

/// Keeps others of us that do the same away, until the lock is dropped. The namespace has to be opened for this alone: the lock
/// is on what was opened. `others` says what they do, for people.
#[doc(alias = "flock")]
pub(crate) fn alone(netns: &Netns, others: &str) -> Result<Lock> {
    let locked = |error: &dyn std::fmt::Display| {
        let text = format!("this network namespace could not be locked against others that {others}: {error}");
        Error::new(code::TRY_AGAIN, text).remedy("try again")
    };
    let opened = netns.as_fd().try_clone_to_owned().map_err(|error| locked(&error))?;
    Lock::on(opened, PATIENCE).map_err(|error| locked(&error))
}
