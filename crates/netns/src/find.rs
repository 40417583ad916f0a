//! What a path that should lead to a network namespace leads to.

use std::path::PathBuf;

use crate::{Error, Netns};

/// What was found at the path, all cases told apart: who cleans up must know a gone namespace from a wrong path.
#[derive(Clone, Debug)]
pub enum NetnsLookup {
    /// A network namespace, not the calling thread's.
    Present(Netns),
    /// No path was given.
    Empty,
    /// Nothing is there: no such file, a dangling symbolic link, a process that has ended.
    Gone,
    /// Something else is there, or the path can lead to nothing.
    NotNetns {
        /// Where.
        path: PathBuf,
        /// What it is, or the kernel's word for what is wrong with the path.
        why: String,
    },
    /// It may be there: the kernel had no memory or no descriptor to tell, or would not.
    Unknown {
        /// Where.
        path: PathBuf,
        /// The kernel's word.
        why: String,
    },
    /// The very namespace that the calling thread is in.
    Own(Netns),
}

/// Finds out what is at `path`. It never fails: that it cannot be determined is a result too ([`NetnsLookup::Unknown`]).
pub fn find(path: &str) -> NetnsLookup {
    if path.is_empty() {
        return NetnsLookup::Empty;
    }
    let not_one = |error: Error| {
        let path = PathBuf::from(path);
        let why = error.why();
        if error.is_verdict() { NetnsLookup::NotNetns { path, why } } else { NetnsLookup::Unknown { path, why } }
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) if error.is_absent() => return NetnsLookup::Gone,
        Err(error) => return not_one(error),
    };
    match netns.is_own() {
        Ok(true) => NetnsLookup::Own(netns),
        Ok(false) => NetnsLookup::Present(netns),
        Err(error) => not_one(error),
    }
}
