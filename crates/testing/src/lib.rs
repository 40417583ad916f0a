//! Tests of CNI plugins with the real kernel, in plain `cargo test` and without root: a namespace, a peer to ping, a snapshot and a
//! runtime in one line each. A plugin's author has this crate as `cnikit::testing`, with the feature `testing` of `cnikit`.
//!
//! ```no_run
//! use cnikit_testing::{Host, HostSnapshot, in_own_namespaces};
//! use serde_json::json;
//!
//! # /*
//! #[test]
//! # */
//! fn a_container_is_attached_and_nothing_stays_behind() {
//!     in_own_namespaces(|| {
//!         let host = Host::new();
//!         let network = host.runtime("target/debug", json!({"type": "my-plugin", "gateway": "10.9.0.1"}));
//!         let before = HostSnapshot::of(&host);
//!         let container = host.container();
//!         network.add(&container);
//!         assert!(container.reaches("10.9.0.1"));
//!         network.check(&container);
//!         network.del(&container);
//!         assert_eq!(HostSnapshot::leftovers(&host, &before, &[]), None);
//!     });
//! }
//! ```
//!
//! | line | what it is |
//! |---|---|
//! | [`in_own_namespaces`] | the rest of the test, in a process with namespaces of its own: root is not needed, and nothing of the machine changes |
//! | [`Host::new()`](Host::new) | a network namespace that is the host, with a directory for state |
//! | [`host.container()`](Host::container) | a network namespace that is a container; [`sh`](Container::sh) runs a line in it, [`reaches`](Container::reaches) pings |
//! | [`host.peer(..)`](Host::peer), [`container.peer(..)`](Container::peer) | another namespace at the other end of a veth pair with addresses |
//! | [`HostSnapshot::of(&host)`](HostSnapshot::of) | everything that a plugin could leave behind, to compare |
//! | [`host.runtime(..)`](Host::runtime) | a runtime with a network: ADD, CHECK, DEL and GC as a container runtime calls them |
//! | [`PluginDir`], [`link_plugins`] | the binaries of several places in one directory, for `CNI_PATH` |
//! | [`need::Need`] | a feature of the kernel that a test needs and many kernels lack |
//!
//! The programs `unshare` (util-linux), `ip` (iproute2) and, for `reaches`, `ping` are needed; a snapshot also reads rules with
//! `nft`, where it is installed.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test kit panics: that is how a test fails")]
#![expect(clippy::missing_panics_doc, reason = "every function here panics with what it found")]
#![forbid(unsafe_code)]

mod fingerprint;
mod host;
mod mounts;
mod namespaces;
pub mod need;
mod own_process;
mod peer;
mod runtime;
mod snapshot;

pub use host::{Container, Host};
#[doc(hidden)] // for cni-conformance
pub use mounts::can_be_private;
pub use namespaces::in_own_namespaces;
#[doc(hidden)]
pub use namespaces::{settle_in, unshare_command};
pub use own_process::{in_own_process, processor_time};
pub use peer::PeerHost;
pub use runtime::{HostRuntime, PluginDir, link_plugins};
pub use snapshot::{HINTS, HostSnapshot, line_contains, settings};
