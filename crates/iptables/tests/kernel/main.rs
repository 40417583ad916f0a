//! The real programs of both variants of iptables, and what they write into a real kernel; each test in namespaces of its own.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../../nftables/tests/kernel/host.rs"]
#[expect(dead_code, reason = "the tests of nftables need more of it")]
mod host;
mod programs;
mod xtables_compat;
