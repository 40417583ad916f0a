//! What every reader of foreign bytes promises, for any bytes.
//!
//! A [`Target`] is a function that takes bytes and panics where a promise is broken: not only that reading ends without a
//! panic of its own, but that what was read can be written and read again, that a refusal names the place and the hint,
//! that what we send ourselves is read as what was meant. One table, [`TARGETS`], serves all who bring bytes: the tests of
//! this crate (the kept corpus, mutations of it, huge inputs) and `scripts/fuzz`.
#![forbid(unsafe_code)]
#![expect(clippy::expect_used, reason = "a target panics: that is how it says that a promise is broken")]

mod arguments;
mod cached_attachments;
mod conditions;
mod conflist;
mod conntrack;
mod conversion;
mod dbus;
mod delegate;
mod dictionary;
mod host_local;
mod iptables;
pub mod mutate;
mod netlink;
mod nftables;
mod plugin_call;
mod plugins;
mod request;
pub mod seeds;
mod store;
mod subnet_env;
mod values;

/// One reader of foreign bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its directory in `corpus`.
    pub name: &'static str,
    /// Tries it with these bytes; panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Words that its readers look for, so that a mutation has them at hand.
    pub words: &'static [&'static str],
    /// How long a huge input may be: what can reach it in the field, in bytes.
    pub longest: usize,
}

/// What stdin may bring, and an answer of a plugin.
const STDIN: usize = 16 << 20;
/// The longest variable of an environment; see execve(2).
const VARIABLE: usize = 128 << 10;
/// The longest datagram of the kernel's.
const DATAGRAM: usize = 64 << 10;

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "request", run: request::run, words: dictionary::PROTOCOL, longest: STDIN },
    Target { name: "conversion", run: conversion::run, words: dictionary::RESULT, longest: STDIN },
    Target { name: "arguments", run: arguments::run, words: dictionary::ARGUMENTS, longest: VARIABLE },
    Target { name: "host-local", run: host_local::run, words: dictionary::IPAM, longest: STDIN },
    Target { name: "plugins", run: plugins::run, words: dictionary::KEYS, longest: STDIN },
    Target { name: "delegate", run: delegate::run, words: dictionary::RESULT, longest: STDIN },
    Target { name: "store", run: store::run, words: &[], longest: 4 << 10 },
    Target { name: "subnet-env", run: subnet_env::run, words: dictionary::SUBNET_ENV, longest: 1 << 20 },
    Target { name: "netlink", run: netlink::replies, words: dictionary::NUMBERS, longest: DATAGRAM },
    Target { name: "netlink-sent", run: netlink::sent, words: &[], longest: 4 << 10 },
    Target { name: "nftables", run: nftables::replies, words: dictionary::NFTABLES, longest: DATAGRAM },
    Target { name: "nftables-sent", run: nftables::sent, words: &[], longest: 4 << 10 },
    Target { name: "conntrack", run: conntrack::run, words: dictionary::NUMBERS, longest: DATAGRAM },
    Target { name: "iptables", run: iptables::run, words: dictionary::IPTABLES, longest: 64 << 20 },
    Target { name: "conditions", run: conditions::run, words: dictionary::CONDITIONS, longest: VARIABLE },
    Target { name: "dbus", run: dbus::run, words: dictionary::DBUS, longest: 1 << 20 },
    Target { name: "conflist", run: conflist::run, words: dictionary::LIST, longest: STDIN },
    Target { name: "kept", run: cached_attachments::run, words: dictionary::CACHED, longest: STDIN },
];
