//! Capability arguments (`runtimeConfig`) of one attachment, in all forms that runtimes send.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use serde_json::{Map, Value};

use crate::{NetConf, ReadError, address, member, read};

/// A port of the host that is forwarded to a port of the container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// The port on the host; 0 if there is none.
    #[serde(default)]
    pub host_port: u16,
    /// The port in the container.
    #[serde(default)]
    pub container_port: u16,
    /// The transport protocol; TCP by default.
    #[serde(default)]
    pub protocol: PortProtocol,
    /// The address of the host whose port is forwarded; all addresses by default.
    #[serde(default, rename = "hostIP", deserialize_with = "address::optional")]
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol; parsed in any letter case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortProtocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl PortProtocol {
    /// The protocol's name in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            PortProtocol::Tcp => "tcp",
            PortProtocol::Udp => "udp",
            PortProtocol::Sctp => "sctp",
        }
    }
}

impl<'de> Deserialize<'de> for PortProtocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PortProtocol, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.to_ascii_lowercase().as_str() {
            "tcp" | "" => Ok(PortProtocol::Tcp),
            "udp" => Ok(PortProtocol::Udp),
            "sctp" => Ok(PortProtocol::Sctp),
            _ => Err(D::Error::custom(format!("{text:?} is not tcp, udp or sctp"))),
        }
    }
}

/// Bandwidth limits; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// The rate into the container, in bits per second.
    pub ingress_rate: u64,
    /// The burst above that rate, in bits.
    pub ingress_burst: u64,
    /// The rate out of the container, in bits per second.
    pub egress_rate: u64,
    /// The burst above that rate, in bits.
    pub egress_burst: u64,
}

/// A range of addresses to allocate from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRange {
    /// The network, with its host bits as written. The IPAM plugin refuses a range without it.
    #[serde(default, deserialize_with = "address::optional_cidr")]
    pub subnet: Option<IpNetwork>,
    /// The first address.
    #[serde(default, deserialize_with = "address::optional")]
    pub range_start: Option<IpAddr>,
    /// The last address.
    #[serde(default, deserialize_with = "address::optional")]
    pub range_end: Option<IpAddr>,
    /// The gateway.
    #[serde(default, deserialize_with = "address::optional")]
    pub gateway: Option<IpAddr>,
}

/// The DNS configuration of the container as runtimes send it, whose keys differ from those of [`Dns`](crate::Dns).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RuntimeDns {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Domains to search for short names.
    pub searches: Vec<String>,
    /// Options for the resolver.
    pub options: Vec<String>,
}

/// The capability arguments of a configuration. Each is parsed when its function is called.
///
/// Keys match in any letter case, a `null` list is empty, an empty text is `None`. The error's path starts with `runtimeConfig`.
#[doc(alias = "runtimeConfig")]
#[derive(Clone, Copy, Debug)]
pub struct Capabilities<'a>(&'a NetConf);

impl NetConf {
    /// The capability arguments (`runtimeConfig`).
    pub fn capabilities(&self) -> Capabilities<'_> {
        Capabilities(self)
    }
}

impl Capabilities<'_> {
    /// `mac`: the hardware address for the container's interface.
    ///
    /// # Errors
    /// The value is not a text.
    pub fn mac(self) -> Result<Option<String>, ReadError> {
        self.text("mac")
    }

    /// `ips`: addresses for the container, with or without a prefix length.
    ///
    /// # Errors
    /// The value is not a list of texts.
    pub fn ips(self) -> Result<Vec<String>, ReadError> {
        self.read("ips").map(Option::unwrap_or_default)
    }

    /// `ipRanges`: sets of ranges; an attachment gets one address of each set.
    ///
    /// A flat list, as containerd sends it, is read as one set per family, IPv4 first.
    ///
    /// # Errors
    /// The value is not a list of ranges or of lists of them, or an address or a subnet in it does not parse.
    pub fn ip_ranges(self) -> Result<Vec<Vec<IpRange>>, ReadError> {
        match self.read::<Value>("ipRanges")? {
            Some(Value::Array(flat)) if flat.first().is_some_and(Value::is_object) => {
                self.read("ipRanges").map(Option::unwrap_or_default).map(by_family)
            }
            _ => self.read("ipRanges").map(Option::unwrap_or_default),
        }
    }

    /// `portMappings`: ports of the host that are forwarded to the container.
    ///
    /// # Errors
    /// The value is not a list of mappings, a port is not a number from 0 to 65535, or a protocol or a `hostIP` does not parse.
    pub fn port_mappings(self) -> Result<Vec<PortMapping>, ReadError> {
        self.read("portMappings").map(Option::unwrap_or_default)
    }

    /// `bandwidth`: the bandwidth limits.
    ///
    /// # Errors
    /// The value is not an object, or a limit in it is not a number that fits in 64 bits.
    pub fn bandwidth(self) -> Result<Option<Bandwidth>, ReadError> {
        self.read("bandwidth")
    }

    /// `dns`: the DNS configuration of the container.
    ///
    /// # Errors
    /// The value is not an object of lists of texts.
    pub fn dns(self) -> Result<Option<RuntimeDns>, ReadError> {
        self.read("dns")
    }

    /// `infinibandGUID`: the GUID for the container's InfiniBand interface.
    ///
    /// # Errors
    /// The value is not a text.
    pub fn infiniband_guid(self) -> Result<Option<String>, ReadError> {
        self.text("infinibandGUID")
    }

    /// `aliases`: further names of the container. If they are listed per network, those of this network.
    ///
    /// # Errors
    /// The value is neither a list of texts nor an object of such lists.
    pub fn aliases(self) -> Result<Vec<String>, ReadError> {
        let Some(Value::Object(networks)) = self.read::<Value>("aliases")? else {
            return self.read("aliases").map(Option::unwrap_or_default);
        };
        let name = self.0.name().unwrap_or_default();
        match networks.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(names) => read(names).map_err(|error: ReadError| error.under(name).under("runtimeConfig.aliases")),
        }
    }

    /// `cgroupPath`: the container's control group.
    ///
    /// # Errors
    /// The value is not a text.
    pub fn cgroup_path(self) -> Result<Option<String>, ReadError> {
        self.text("cgroupPath")
    }

    /// `deviceID`: the device, usually a PCI address.
    ///
    /// # Errors
    /// The value is not a text.
    pub fn device_id(self) -> Result<Option<String>, ReadError> {
        self.text("deviceID")
    }

    fn text(self, key: &str) -> Result<Option<String>, ReadError> {
        Ok(self.read(key)?.filter(|text: &String| !text.is_empty()))
    }

    /// Parses one argument; `None` if it is absent.
    fn read<T: DeserializeOwned>(self, key: &str) -> Result<Option<T>, ReadError> {
        let Some((section, config)) = member::lookup(&self.0.0, "runtimeConfig") else { return Ok(None) };
        let arguments: Map<String, Value> = read(&config).map_err(|error| error.under(section))?;
        let Some((key, value)) = member::lookup(&arguments, key) else { return Ok(None) };
        read(&value).map(Some).map_err(|error: ReadError| error.under(key).under(section))
    }
}

fn by_family(flat: Vec<IpRange>) -> Vec<Vec<IpRange>> {
    let is_ipv6 = |range: &IpRange| range.subnet.is_some_and(|subnet| subnet.is_ipv6());
    let (ipv6, others) = flat.into_iter().partition(is_ipv6);
    [others, ipv6].into_iter().filter(|set| !Vec::is_empty(set)).collect()
}
