//! The runtime's calls of plugins, its cache and its results, with plugins that are functions in this process.
//!
//! The same with real plugins in network namespaces, and with programs that violate the specification, is in `tests/tests`.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

#[cfg(feature = "async")]
mod background;
mod collection;
mod deletion;
mod listing;
mod networks;
mod node;
mod output;
mod restore;
mod validation;
mod verbs;
mod waiting;
mod watching;
