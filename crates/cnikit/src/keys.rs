//! Keys that several plugins have.

use cnikit_resources::Backend;
use cnikit_resources::Mac;
use cnikit_resources::parent::{Master, Which};
use cnikit_types::Dns;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// `mtu`, in bytes. Absent, 0 or less is the kernel's choice, as configurations rely on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mtu(pub Option<u32>);

/// A veth's largest (`ETH_MAX_MTU`).
const LARGEST: i64 = 65535;

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mtu, D::Error> {
        let bytes = i64::deserialize(deserializer)?;
        if bytes > LARGEST {
            return Err(D::Error::custom(format!("an MTU of {bytes} is more than a link can have ({LARGEST})")));
        }
        Ok(Mtu(u32::try_from(bytes).ok().filter(|bytes| *bytes > 0)))
    }
}

/// `mtu` where less than 0 is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedMtu(pub Option<u32>);

impl<'de> Deserialize<'de> for CountedMtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CountedMtu, D::Error> {
        let bytes = i64::deserialize(deserializer)?;
        match u32::try_from(bytes) {
            Ok(bytes) => Ok(CountedMtu(Some(bytes).filter(|bytes| *bytes > 0))),
            Err(_) => Err(D::Error::custom(format!("invalid MTU {bytes}, must be [0, master MTU]"))),
        }
    }
}

/// A switch that is on unless somebody says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct On(pub bool);

impl Default for On {
    fn default() -> On {
        On(true)
    }
}

/// Deserializes a word; an empty one is `None` and means the default. `named` maps a word to its value; `unknown` and `known`
/// are used in the error: what is wrong with the word, and which words there are.
///
/// # Errors
/// The value is not a text, or `named` does not know the word.
pub fn word<'de, D: Deserializer<'de>, W>(
    deserializer: D,
    named: fn(&str) -> Option<W>,
    unknown: &str,
    known: &str,
) -> Result<Option<W>, D::Error> {
    let word = String::deserialize(deserializer)?;
    if word.is_empty() {
        return Ok(None);
    }
    named(&word).map(Some).ok_or_else(|| D::Error::custom(format!("{unknown}: {word:?}: {known} are known")))
}

/// The `master` of an interface: that of this name, else that of the default route.
pub fn master(name: &str, in_container: bool) -> Master {
    let which = if name.is_empty() { Which::OfDefaultRoute } else { Which::Named(name.to_owned()) };
    Master { which, in_container }
}

/// Checks that an interface can have this MAC; `None` passes.
///
/// # Errors
/// The MAC is zero or a multicast address.
pub fn usable(mac: Option<Mac>) -> Result<(), String> {
    let unusable = mac.filter(|mac| mac.is_zero() || mac.is_multicast());
    unusable.map_or(Ok(()), |mac| Err(format!("{mac} cannot be the MAC of an interface: it is a group's or zero")))
}

/// `queues` of a pair of links, each way. Absent is 1, 0 is the kernel's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues(pub Option<u32>);

impl Default for Queues {
    fn default() -> Queues {
        Queues(Some(1))
    }
}

/// The kernel makes no link with more.
const MOST: i64 = 4096;

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Queues, D::Error> {
        let count = i64::deserialize(deserializer)?;
        let counted = u32::try_from(count).ok().filter(|_| count <= MOST);
        let counted =
            counted.ok_or_else(|| D::Error::custom(format!("{count} queues (must be between 0 and {MOST})")))?;
        Ok(Queues(Some(counted).filter(|count| *count > 0)))
    }
}

/// `dns`: replaces the IPAM plugin's as a whole if anything is said; an empty list is something, an empty domain is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DnsOverride {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsOverride {
    /// Puts what is said, if anything, in place of `dns`.
    pub fn replace(&self, dns: &mut Dns) {
        if let Some(said) = self.said() {
            *dns = said;
        }
    }

    fn said(&self) -> Option<Dns> {
        let DnsOverride { nameservers, domain, search, options } = self.clone();
        let said = nameservers.is_some() || !domain.is_empty() || search.is_some() || options.is_some();
        let list = Option::unwrap_or_default;
        let dns = Dns {
            nameservers: list(nameservers),
            domain,
            search: list(search),
            options: list(options),
            ..Dns::default()
        };
        said.then_some(dns)
    }
}

/// `ipMasqBackend`: what rules are written with. Absent, it is found out on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MasqueradeBackend(pub Backend);

impl<'de> Deserialize<'de> for MasqueradeBackend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MasqueradeBackend, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "iptables" => Ok(MasqueradeBackend(Backend::Iptables)),
            "nftables" => Ok(MasqueradeBackend(Backend::Nftables)),
            other => {
                let known = "\"iptables\" and \"nftables\" are known, and without the key the host decides";
                Err(D::Error::custom(format!("unknown ipmasq backend {other:?}: {known}")))
            }
        }
    }
}

/// `ipam`, of which a main plugin reads the type alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IpamType {
    /// The IPAM plugin; empty: none.
    #[serde(rename = "type")]
    pub name: String,
}

impl IpamType {
    /// Judges the key `ipspoofchk`: it needs addresses, from a plugin that does not have to send over the link for them.
    ///
    /// # Errors
    /// There is no IPAM plugin, or it is dhcp.
    pub fn usable_for_spoof_check(&self, ipspoofchk: bool) -> Result<(), String> {
        match self.name.as_str() {
            _ if !ipspoofchk => Ok(()),
            "" => Err("ipspoofchk needs the container's addresses: give the network an `ipam`, or drop the key".into()),
            "dhcp" => {
                Err("ipspoofchk cannot be used with dhcp, which asks for addresses over a link that stays shut until \
                           they are known: use another IPAM plugin, or drop the key"
                    .into())
            }
            _ => Ok(()),
        }
    }
}
