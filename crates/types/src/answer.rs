//! The result of an ADD, in the shape of the newest version.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Dns, ReadError, Route, Version, address, compat, limit, member, route};

/// What ADD made, and `prevResult` of later calls (specification, section 5).
///
/// Always in the shape of the newest version; [`CniResult::read`] and [`CniResult::write`] convert. `extra` holds the members
/// of foreign plugins that the specification does not know, here and in every part, so that they survive a chain.
#[derive(Clone, Debug, Default, PartialEq)]
#[doc(alias = "Result")]
pub struct CniResult {
    /// Interfaces made or found, on both sides.
    pub interfaces: Vec<Interface>,
    /// Addresses assigned.
    pub ips: Vec<Ip>,
    /// Routes made.
    pub routes: Vec<Route>,
    /// How the container is to resolve names.
    pub dns: Dns,
    /// Members that the specification does not know.
    pub extra: Map<String, Value>,
}

/// One of a result's `interfaces`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name, where it is.
    pub name: String,
    /// Its hardware address as text; empty if it is not said.
    pub mac: String,
    /// Its MTU in bytes.
    #[serde(deserialize_with = "route::non_zero")]
    pub mtu: Option<u32>,
    /// The path of its network namespace, exactly as `CNI_NETNS` gave it; empty on the host.
    pub sandbox: String,
    /// The absolute path of a socket file that belongs to it (vhost-user); empty if there is none.
    #[serde(rename = "socketPath")]
    pub socket_path: String,
    /// The PCI address of its device; empty if it is not said.
    #[serde(rename = "pciID")]
    pub pci_id: String,
    /// Members that the specification does not know.
    #[serde(rename = "*")]
    pub extra: Map<String, Value>,
}

/// One of a result's `ips`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Ip {
    /// Which of `interfaces` has it, from 0; some plugins send -1 for none.
    #[serde(default)]
    pub interface: Option<i64>,
    /// The address, host bits and all, with the prefix length of its network.
    #[serde(deserialize_with = "address::cidr")]
    pub address: IpNetwork,
    /// The gateway of its network.
    #[serde(default, deserialize_with = "address::optional")]
    pub gateway: Option<IpAddr>,
    /// Members that the specification does not know.
    #[serde(rename = "*", default)]
    pub extra: Map<String, Value>,
}

impl Ip {
    /// An address without interface and gateway.
    pub fn new(address: IpNetwork) -> Ip {
        Ip { interface: None, address, gateway: None, extra: Map::new() }
    }
}

impl CniResult {
    /// Reads a result of any version and converts it to the newest; `null` is an empty result.
    ///
    /// The document's own `cniVersion` decides which shape it has, `fallback` if that key is missing or empty. The version is
    /// returned with the result.
    ///
    /// # Errors
    /// A `cniVersion` that was never published ([`Wrong::Value`](crate::Wrong::Value)) or that is not a text, and a key of the
    /// result with the wrong type or an invalid value. The error's path names the key.
    pub fn read(value: &Value, fallback: Version) -> Result<(Version, CniResult), ReadError> {
        let version = version(value, fallback)?;
        Ok((version, compat::up(version, value)?))
    }

    /// Judges how many interfaces, addresses and routes it has.
    ///
    /// # Errors
    /// The first list that has more than [`limit::RESULT`].
    pub fn check_size(&self) -> Result<(), ReadError> {
        let lists = [("interfaces", self.interfaces.len()), ("ips", self.ips.len()), ("routes", self.routes.len())];
        lists.into_iter().try_for_each(|(key, found)| {
            limit::count("entries", found, limit::RESULT).map_err(|error| error.under(key))
        })
    }

    /// The result as a document of `version`, without what that version cannot express.
    ///
    /// It never fails: 0.1.0 and 0.2.0 keep one address a family, and without any say no more than `dns`.
    pub fn write(&self, version: Version) -> Value {
        compat::down(version, self)
    }
}

fn version(value: &Value, fallback: Version) -> Result<Version, ReadError> {
    let own = value.as_object().and_then(|object| member::lookup(object, "cniVersion"));
    let Some((key, own)) = own else { return Ok(fallback) };
    let text = own.as_str().ok_or_else(|| ReadError::wrong_type("expected a text such as \"1.1.0\"").under(key))?;
    if text.is_empty() {
        return Ok(fallback);
    }
    Version::exact(text).ok_or_else(|| ReadError::value(format!("unsupported CNI result version {text:?}")).under(key))
}
