//! The files that `scripts/release` makes, on a Debian that debootstrap made: `scripts/test packages` starts this program, in
//! namespaces of its own.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

mod agent;
mod archives;
mod debian;
