//! The result of 0.1.0 and 0.2.0: one address per family, each with its routes, and no interfaces.
//!
//! Route attributes are read, as upstream does, but not written, because 0.3.0 and later versions added them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::object::{Object, ROUTE, dns};
use crate::{CniResult, Dns, Ip, ReadError, Route, address, read};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    #[serde(rename = "cniVersion")]
    _version: Value,
    ip4: Option<Family>,
    ip6: Option<Family>,
    dns: Dns,
    #[serde(rename = "*")]
    extra: Map<String, Value>,
}

#[derive(Deserialize)]
struct Family {
    #[serde(deserialize_with = "address::cidr")]
    ip: IpNetwork,
    #[serde(default, deserialize_with = "address::optional")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(rename = "*", default)]
    extra: Map<String, Value>,
}

/// Reads a document of this shape; IPv4 comes first.
pub(super) fn up(value: &Value) -> Result<CniResult, ReadError> {
    let Document { ip4, ip6, dns, extra, .. } = read(value)?;
    let mut answer = CniResult { dns, extra, ..CniResult::default() };
    for Family { ip, gateway, routes, extra } in [ip4, ip6].into_iter().flatten() {
        answer.ips.push(Ip { interface: None, address: ip, gateway, extra });
        answer.routes.extend(routes);
    }
    Ok(answer)
}

/// Writes a document of this shape: the first address of each family with that family's routes.
pub(super) fn down(answer: &CniResult) -> Object {
    Object::default()
        .with_some("ip4", family(answer, IpNetwork::is_ipv4))
        .with_some("ip6", family(answer, IpNetwork::is_ipv6))
        .with("dns", dns(&answer.dns))
        .and(&answer.extra, &["cniVersion", "ip4", "ip6", "dns", "interfaces", "ips", "routes"])
}

fn family(answer: &CniResult, is_of: fn(&IpNetwork) -> bool) -> Option<Object> {
    let ip = answer.ips.iter().find(|ip| is_of(&address::canonical(ip.address)))?;
    let routes: Vec<&Route> = answer.routes.iter().filter(|route| is_of(&address::canonical(route.dst))).collect();
    let object = Object::default()
        .with("ip", address::canonical(ip.address).to_string())
        .with_ip("gateway", ip.gateway)
        .with_list("routes", &routes, |old| route(old))
        .and(&ip.extra, &["ip", "gateway", "routes", "version", "interface", "address"]);
    Some(object)
}

fn route(route: &Route) -> Value {
    Object::default()
        .with("dst", address::canonical(route.dst).to_string())
        .with_ip("gw", route.gw)
        .and(&route.extra, &ROUTE)
        .into()
}
