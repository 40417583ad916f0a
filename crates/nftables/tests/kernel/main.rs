//! Against a real kernel, with nft(8) as the oracle; each test in namespaces of its own.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod changes;
mod crowd;
mod drifts;
mod host;
mod indexes;
mod listing;
mod net;
mod own;
mod scene;
mod traffic;
mod unprivileged;
