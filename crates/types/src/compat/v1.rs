//! The result of 1.0.0 and 1.1.0: the shape of [`CniResult`] itself.
//!
//! The members that 1.1.0 added to interfaces and routes are read and written in 1.0.0 too, as upstream does.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::object::{INTERFACE, Object, dns, route};
use crate::{CniResult, Dns, Interface, Ip, ReadError, Route, address::canonical, read};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    #[serde(rename = "cniVersion")]
    _version: Value,
    interfaces: Vec<Interface>,
    ips: Vec<Ip>,
    routes: Vec<Route>,
    dns: Dns,
    #[serde(rename = "*")]
    extra: Map<String, Value>,
}

/// Reads a document of this shape.
pub(super) fn up(value: &Value) -> Result<CniResult, ReadError> {
    let Document { interfaces, ips, routes, dns, extra, .. } = read(value)?;
    Ok(CniResult { interfaces, ips, routes, dns, extra })
}

/// Writes a document of this shape.
pub(super) fn down(answer: &CniResult) -> Object {
    Object::default()
        .with_list("interfaces", &answer.interfaces, interface)
        .with_list("ips", &answer.ips, ip)
        .with_list("routes", &answer.routes, route)
        .with_some("dns", (!answer.dns.is_empty()).then(|| dns(&answer.dns)))
        .and(&answer.extra, &["cniVersion", "interfaces", "ips", "routes", "dns"])
}

fn interface(interface: &Interface) -> Value {
    Object::default()
        .with("name", interface.name.as_str())
        .with_text("mac", &interface.mac)
        .with_number("mtu", interface.mtu)
        .with_text("sandbox", &interface.sandbox)
        .with_text("socketPath", &interface.socket_path)
        .with_text("pciID", &interface.pci_id)
        .and(&interface.extra, &INTERFACE)
        .into()
}

fn ip(ip: &Ip) -> Value {
    Object::default()
        .with_some("interface", ip.interface)
        .with("address", canonical(ip.address).to_string())
        .with_ip("gateway", ip.gateway)
        .and(&ip.extra, &["interface", "address", "gateway"])
        .into()
}
