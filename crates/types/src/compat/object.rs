//! Build the JSON objects of a result, with their members in the order of the specification.

use std::net::IpAddr;

use serde_json::{Map, Value};

use crate::member::is_key;
use crate::{Dns, Route, Version, address::canonical};

/// An object under construction.
#[derive(Default)]
pub(super) struct Object(Map<String, Value>);

impl Object {
    /// Adds a member.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Object {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a member, if there is a value.
    pub(super) fn with_some(self, key: &str, value: Option<impl Into<Value>>) -> Object {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Adds a text, unless it is empty.
    pub(super) fn with_text(self, key: &str, text: &str) -> Object {
        self.with_some(key, (!text.is_empty()).then_some(text))
    }

    /// Adds a number, unless it is 0, which means absent for these members.
    pub(super) fn with_number(self, key: &str, number: Option<u32>) -> Object {
        self.with_some(key, number.filter(|number| *number != 0))
    }

    /// Adds an address as text, if there is one.
    pub(super) fn with_ip(self, key: &str, ip: Option<IpAddr>) -> Object {
        self.with_some(key, ip.map(|ip| ip.to_canonical().to_string()))
    }

    /// Adds a list, unless it is empty.
    pub(super) fn with_list<T>(self, key: &str, list: &[T], write: impl Fn(&T) -> Value) -> Object {
        self.with_some(key, (!list.is_empty()).then(|| list.iter().map(write).collect::<Vec<Value>>()))
    }

    /// Adds the members that are not in the specification at the end, except those whose keys have a meaning in this shape, in
    /// any letter case: a reader would interpret them as the member itself.
    pub(super) fn and(mut self, extra: &Map<String, Value>, meant: &[&str]) -> Object {
        let foreign = extra.iter().filter(|(key, _)| !meant.iter().any(|meant| is_key(key, meant)));
        self.0.extend(foreign.map(|(key, value)| (key.clone(), value.clone())));
        self
    }

    /// The complete result, with `cniVersion` as its first member.
    pub(super) fn dated(self, version: Version) -> Value {
        let mut dated = Object::default().with("cniVersion", version.as_str());
        dated.0.extend(self.0);
        dated.into()
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Object(object.0)
    }
}

/// `dns`, the same in every version.
pub(super) fn dns(dns: &Dns) -> Value {
    let text = |text: &String| Value::from(text.as_str());
    Object::default()
        .with_list("nameservers", &dns.nameservers, text)
        .with_text("domain", &dns.domain)
        .with_list("search", &dns.search, text)
        .with_list("options", &dns.options, text)
        .and(&dns.extra, &["nameservers", "domain", "search", "options"])
        .into()
}

/// A route with its attributes, as it is written from 0.3.0 on.
pub(super) fn route(route: &Route) -> Value {
    Object::default()
        .with("dst", canonical(route.dst).to_string())
        .with_ip("gw", route.gw)
        .with_number("mtu", route.mtu)
        .with_number("advmss", route.advmss)
        .with_number("priority", route.priority)
        .with_some("table", route.table)
        .with_some("scope", route.scope)
        .and(&route.extra, &ROUTE)
        .into()
}

/// The members of a route.
pub(super) const ROUTE: [&str; 7] = ["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];

/// The members of an interface in the newest shape. An older shape has fewer of them, but does not write unknown members with the
/// other names either: a reader of a newer version would interpret them as the member itself.
pub(super) const INTERFACE: [&str; 6] = ["name", "mac", "mtu", "sandbox", "socketPath", "pciID"];
