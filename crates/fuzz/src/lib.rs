//! Fuzz targets: properties that every parser of foreign bytes has, for any input.
//!
//! A [`Target`] is a function that parses bytes and panics if a property does not hold. Parsing must not panic; but also: parsed
//! data can be written and parsed again, an error names the position and a hint, and messages that we send are parsed as what was
//! meant. The table [`TARGETS`] is used by the tests of this crate (with the stored corpus, mutations of it, and huge inputs) and
//! by `scripts/fuzz`.
#![forbid(unsafe_code)]
#![expect(clippy::expect_used, reason = "a target panics if a property does not hold")]

mod arguments;
mod cached_attachments;
mod conditions;
mod conflist;
mod conntrack;
mod conversion;
mod dbus;
mod delegate;
mod dhcp;
mod dhcp6;
mod dictionary;
mod host_local;
mod iptables;
pub mod mutate;
mod netlink;
mod nftables;
mod plugin_call;
mod plugins;
mod request;
mod runtime_config;
pub mod seeds;
mod store;
mod subnet_env;
mod values;

/// A fuzz target: one parser of foreign bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name, which is also that of its directory in `corpus`.
    pub name: &'static str,
    /// Checks the properties with this input; panics if one does not hold.
    pub run: fn(&[u8]),
    /// Words of the parsed format, which mutations insert.
    pub words: &'static [&'static str],
    /// The length of the longest input that can occur in practice, in bytes.
    pub longest: usize,
}

/// The limit of stdin and of a plugin's output.
const STDIN: usize = 16 << 20;
/// The longest variable of an environment (`MAX_ARG_STRLEN`, execve(2)).
const VARIABLE: usize = 128 << 10;
/// The longest netlink datagram of the kernel.
const DATAGRAM: usize = 64 << 10;

/// The longest packet that a DHCP client reads.
const DHCP_PACKET: usize = 2 << 10;

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
    Target { name: "runtime-config", run: runtime_config::run, words: dictionary::RUNTIME_CONFIG, longest: 4 << 20 },
    Target { name: "netlink", run: netlink::replies, words: dictionary::NUMBERS, longest: DATAGRAM },
    Target { name: "netlink-sent", run: netlink::sent, words: &[], longest: 4 << 10 },
    Target { name: "nftables", run: nftables::replies, words: dictionary::NFTABLES, longest: DATAGRAM },
    Target { name: "nftables-sent", run: nftables::sent, words: &[], longest: 4 << 10 },
    Target { name: "conntrack", run: conntrack::run, words: dictionary::NUMBERS, longest: DATAGRAM },
    Target { name: "dhcp", run: dhcp::run, words: dictionary::DHCP, longest: DHCP_PACKET },
    Target { name: "dhcp6", run: dhcp6::run, words: dictionary::DHCP6, longest: DHCP_PACKET },
    Target { name: "iptables", run: iptables::run, words: dictionary::IPTABLES, longest: 64 << 20 },
    Target { name: "conditions", run: conditions::run, words: dictionary::CONDITIONS, longest: VARIABLE },
    Target { name: "dbus", run: dbus::run, words: dictionary::DBUS, longest: 1 << 20 },
    Target { name: "conflist", run: conflist::run, words: dictionary::LIST, longest: STDIN },
    Target { name: "cached", run: cached_attachments::run, words: dictionary::CACHED, longest: STDIN },
];
