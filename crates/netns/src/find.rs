//! Look up the network namespace at a path.

use std::path::PathBuf;

use crate::{Error, Netns};

/// The result of [`find`]. All cases are distinct, because a clean-up must treat a removed namespace and a wrong path differently.
#[derive(Clone, Debug)]
pub enum NetnsLookup {
    /// A network namespace, not the calling thread's.
    Present(Netns),
    /// No path was given.
    Empty,
    /// The path does not exist: no such file, a dangling symbolic link, a process that has ended.
    Gone,
    /// The path leads to something else, or is not usable as a path.
    NotNetns {
        /// The path.
        path: PathBuf,
        /// What the file is, or the kernel's error for the path.
        why: String,
    },
    /// It is not known whether a namespace is there: the kernel had no memory or no descriptor left, or refused access.
    Unknown {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        why: String,
    },
    /// The namespace that the calling thread is in.
    Own(Netns),
}

/// Opens the namespace at `path` and classifies what is there. It never fails: an error of the kernel is [`NetnsLookup::Unknown`].
pub fn find(path: &str) -> NetnsLookup {
    if path.is_empty() {
        return NetnsLookup::Empty;
    }
    let not_a_netns = |error: Error| {
        let path = PathBuf::from(path);
        let why = error.why();
        if error.is_verdict() { NetnsLookup::NotNetns { path, why } } else { NetnsLookup::Unknown { path, why } }
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) if error.is_absent() => return NetnsLookup::Gone,
        Err(error) => return not_a_netns(error),
    };
    match netns.is_own() {
        Ok(true) => NetnsLookup::Own(netns),
        Ok(false) => NetnsLookup::Present(netns),
        Err(error) => not_a_netns(error),
    }
}
