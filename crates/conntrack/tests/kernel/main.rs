//! Tests against the real kernel, each in namespaces of its own.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod flows;
#[path = "../../../nftables/tests/kernel/host.rs"]
#[expect(dead_code, reason = "the tests of nftables need more of it")]
mod host;
#[path = "../../../nftables/tests/kernel/net.rs"]
mod net;
