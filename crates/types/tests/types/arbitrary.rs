//! Random results and JSON documents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnikit_types::{CniResult, Dns, Interface, Ip, Map, Route, Value};
use ipnetwork::IpNetwork;
use proptest::{
    collection::{vec, vec as list_of},
    option::of,
    prelude::*,
};

/// Any JSON number, most of which fit in no machine type.
fn number() -> impl Strategy<Value = Value> {
    "-?([1-9][0-9]{0,29}|0)(\\.[0-9]{1,9})?([eE][+-]?[0-9]{1,3})?".prop_map(|text| Value::Number(text.parse().unwrap()))
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        number(),
        ".{0,12}".prop_map(Value::from),
        "[0-9a-f:./]{0,12}".prop_map(Value::from),
    ]
}

/// Any JSON value. Its keys are often those of the specification, in any letter case.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key(), inner), 0..6).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Every key of a result in any version.
pub(crate) const KEYS: [&str; 26] = [
    "cniVersion",
    "ip4",
    "ip6",
    "ip",
    "interfaces",
    "ips",
    "routes",
    "dns",
    "name",
    "mac",
    "mtu",
    "sandbox",
    "socketPath",
    "pciID",
    "version",
    "interface",
    "address",
    "gateway",
    "dst",
    "gw",
    "advmss",
    "priority",
    "table",
    "scope",
    "nameservers",
    "domain",
];

fn key() -> impl Strategy<Value = String> {
    prop_oneof![spelling(), "[a-z]{0,3}"]
}

/// A key of a result, in any letter case.
pub(crate) fn spelling() -> impl Strategy<Value = String> {
    (proptest::sample::select(&KEYS[..]), any::<u32>()).prop_map(|(key, bits)| respell(key, bits))
}

/// `key` with letters turned to upper case where `bits` has a one, to lower case elsewhere.
pub(crate) fn respell(key: &str, bits: u32) -> String {
    let turn = |(index, c): (usize, char)| {
        if bits.rotate_right(u32::try_from(index).unwrap()) & 1 == 1 {
            c.to_ascii_uppercase()
        } else {
            c.to_ascii_lowercase()
        }
    };
    key.chars().enumerate().map(turn).collect()
}

/// Members that no version has. A hyphen in their keys distinguishes them from those that a future version may have.
fn extra() -> impl Strategy<Value = Map<String, Value>> {
    let value = prop_oneof![scalar(), vec(scalar(), 0..3).prop_map(Value::from)];
    vec(("x-[a-z]{1,4}", value), 0..3).prop_map(|members| members.into_iter().collect())
}

fn ip() -> impl Strategy<Value = IpAddr> {
    let v6 = any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits)).to_canonical());
    prop_oneof![any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits))), v6]
}

fn network() -> impl Strategy<Value = IpNetwork> {
    (ip(), any::<u8>()).prop_map(|(ip, bits)| IpNetwork::new(ip, bits % if ip.is_ipv4() { 33 } else { 129 }).unwrap())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z0-9:./]{1,12}"]
}

fn optional_number() -> impl Strategy<Value = Option<u32>> {
    of(1..=u32::MAX)
}

fn interface() -> impl Strategy<Value = Interface> {
    (text(), text(), optional_number(), text(), text(), text(), extra()).prop_map(
        |(name, mac, mtu, sandbox, socket_path, pci_id, extra)| Interface {
            name,
            mac,
            mtu,
            sandbox,
            socket_path,
            pci_id,
            extra,
        },
    )
}

fn address() -> impl Strategy<Value = Ip> {
    (of(-1..5_i64), network(), of(ip()), extra()).prop_map(|(interface, address, gateway, extra)| Ip {
        interface,
        address,
        gateway,
        extra,
    })
}

fn route() -> impl Strategy<Value = Route> {
    (
        network(),
        of(ip()),
        optional_number(),
        optional_number(),
        optional_number(),
        of(any::<u32>()),
        of(any::<u8>()),
        extra(),
    )
        .prop_map(|(dst, gw, mtu, advmss, priority, table, scope, extra)| Route {
            dst,
            gw,
            mtu,
            advmss,
            priority,
            table,
            scope,
            extra,
        })
}

fn dns() -> impl Strategy<Value = Dns> {
    (list_of(text(), 0..3), text(), list_of(text(), 0..3), list_of(text(), 0..3), extra())
        .prop_map(|(nameservers, domain, search, options, extra)| Dns { nameservers, domain, search, options, extra })
}

/// Any result that a plugin may have in memory.
pub(crate) fn answer() -> impl Strategy<Value = CniResult> {
    (list_of(interface(), 0..4), list_of(address(), 0..5), list_of(route(), 0..5), dns(), extra())
        .prop_map(|(interfaces, ips, routes, dns, extra)| CniResult { interfaces, ips, routes, dns, extra })
}
