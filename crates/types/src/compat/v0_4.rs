//! The result of 0.3.0, 0.3.1 and 0.4.0.
//!
//! Differences from the newest shape: an address has its family in `version`, which is derived on writing and ignored on reading;
//! `dns` is always present; an interface has no `mtu`, `socketPath` and `pciID`. A document of this shape may have any value under
//! these names: it is read, but not written again.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::object::{INTERFACE, Object, dns, route};
use crate::member::is_key;
use crate::{CniResult, Dns, Interface, Ip, ReadError, Route, address::canonical, read};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    #[serde(rename = "cniVersion")]
    _version: Value,
    interfaces: Vec<OldInterface>,
    ips: Vec<Ip>,
    routes: Vec<Route>,
    dns: Dns,
    #[serde(rename = "*")]
    extra: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OldInterface {
    name: String,
    mac: String,
    sandbox: String,
    #[serde(rename = "*")]
    extra: Map<String, Value>,
}

/// Reads a document of this shape.
pub(super) fn up(value: &Value) -> Result<CniResult, ReadError> {
    let Document { interfaces, mut ips, routes, dns, extra, .. } = read(value)?;
    for ip in &mut ips {
        ip.extra.retain(|key, _| !is_key(key, "version"));
    }
    Ok(CniResult { interfaces: interfaces.into_iter().map(Interface::from).collect(), ips, routes, dns, extra })
}

impl From<OldInterface> for Interface {
    fn from(OldInterface { name, mac, sandbox, extra }: OldInterface) -> Interface {
        Interface { name, mac, sandbox, extra, ..Interface::default() }
    }
}

/// Writes a document of this shape.
pub(super) fn down(answer: &CniResult) -> Object {
    Object::default()
        .with_list("interfaces", &answer.interfaces, interface)
        .with_list("ips", &answer.ips, ip)
        .with_list("routes", &answer.routes, route)
        .with("dns", dns(&answer.dns))
        .and(&answer.extra, &["cniVersion", "interfaces", "ips", "routes", "dns"])
}

fn interface(interface: &Interface) -> Value {
    Object::default()
        .with("name", interface.name.as_str())
        .with_text("mac", &interface.mac)
        .with_text("sandbox", &interface.sandbox)
        .and(&interface.extra, &INTERFACE)
        .into()
}

fn ip(ip: &Ip) -> Value {
    Object::default()
        .with("version", if canonical(ip.address).is_ipv4() { "4" } else { "6" })
        .with_some("interface", ip.interface)
        .with("address", canonical(ip.address).to_string())
        .with_ip("gateway", ip.gateway)
        .and(&ip.extra, &["version", "interface", "address", "gateway"])
        .into()
}
