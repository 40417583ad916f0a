//! Keys of configurations that several plugins have in common.

use cnikit_resources::Mac;
use cnikit_resources::parent::{Master, Which};
use cnikit_rules::Backend;
use cnikit_types::{Dns, NetConf, Value};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// `mtu`, in bytes. Absent, 0 or less is the kernel's choice; existing configurations rely on that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mtu(pub Option<u32>);

/// The largest MTU of a veth (`ETH_MAX_MTU`).
const LARGEST: i64 = 65535;

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mtu, D::Error> {
        let bytes = i64::deserialize(deserializer)?;
        if bytes > LARGEST {
            return Err(D::Error::custom(format!("an MTU of {bytes} is more than a link can have ({LARGEST})")));
        }
        Ok(Mtu(u32::try_from(bytes).ok().and_then(nonzero)))
    }
}

fn nonzero(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

/// `mtu` of plugins that refuse a negative one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedMtu(pub Option<u32>);

impl<'de> Deserialize<'de> for CountedMtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CountedMtu, D::Error> {
        let bytes = i64::deserialize(deserializer)?;
        match u32::try_from(bytes) {
            Ok(bytes) => Ok(CountedMtu(nonzero(bytes))),
            Err(_) => Err(D::Error::custom(format!("invalid MTU {bytes}, must be [0, master MTU]"))),
        }
    }
}

/// A boolean key whose default is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct On(pub bool);

impl Default for On {
    fn default() -> On {
        On(true)
    }
}

/// Whether the IPAM plugin needs router advertisements: dhcp does if `ipam.families` has `v6`, whose routes come from routers only,
/// or `slaac`. The interface then accepts them, whatever it does otherwise.
pub fn needs_router_adverts(conf: &NetConf) -> bool {
    let is_dhcp = conf.at(&["ipam", "type"]).and_then(Value::as_str) == Some("dhcp");
    let families = conf.at(&["ipam", "families"]).and_then(Value::as_array);
    is_dhcp && families.is_some_and(|families| families.iter().any(|family| family == "v6" || family == "slaac"))
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
    named(&word).map(Some).ok_or_else(|| D::Error::custom(format!("{unknown}: {word:?}: known are {known}")))
}

/// The `master` of an interface: the link of this name, or that of the default route if there is no name.
pub fn master(name: &str, in_container: bool) -> Master {
    let which = if name.is_empty() { Which::OfDefaultRoute } else { Which::Named(name.to_owned()) };
    Master { which, in_container }
}

/// Checks that an interface can have this MAC; `None` passes.
///
/// # Errors
/// The MAC is zero or a multicast address.
pub fn usable(mac: Option<Mac>) -> Result<(), String> {
    match mac {
        Some(mac) if mac.is_zero() || mac.is_multicast() => Err(format!(
            "{mac} cannot be the MAC of an interface: it is a multicast address, or zero; hint: use another one, such as 0a:58:0a:01:00:02"
        )),
        _ => Ok(()),
    }
}

/// `queues` of each end of a veth pair, in each direction. Absent is 1, 0 is the kernel's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues(pub Option<u32>);

impl Default for Queues {
    fn default() -> Queues {
        Queues(Some(1))
    }
}

/// The largest number of queues that the kernel accepts.
const MOST: i64 = 4096;

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Queues, D::Error> {
        let count = i64::deserialize(deserializer)?;
        match u32::try_from(count) {
            Ok(queues) if count <= MOST => Ok(Queues(nonzero(queues))),
            _ => Err(D::Error::custom(format!("{count} queues (must be between 0 and {MOST})"))),
        }
    }
}

/// `dns`, which replaces the IPAM plugin's as a whole if it has any member. An empty list counts, an empty domain does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DnsOverride {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsOverride {
    /// Replaces `dns` by the configured value, if there is one.
    pub fn replace(&self, dns: &mut Dns) {
        let DnsOverride { nameservers, domain, search, options } = self.clone();
        if nameservers.is_none() && domain.is_empty() && search.is_none() && options.is_none() {
            return;
        }
        *dns = Dns {
            nameservers: nameservers.unwrap_or_default(),
            domain,
            search: search.unwrap_or_default(),
            options: options.unwrap_or_default(),
            ..Dns::default()
        };
    }
}

/// `ipMasqBackend`: the packet filter of the rules. Absent, it is detected on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MasqueradeBackend(pub Backend);

impl<'de> Deserialize<'de> for MasqueradeBackend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MasqueradeBackend, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "iptables" => Ok(MasqueradeBackend(Backend::Iptables)),
            "nftables" => Ok(MasqueradeBackend(Backend::Nftables)),
            other => {
                let known = "\"iptables\" and \"nftables\"";
                Err(D::Error::custom(format!("unknown ipmasq backend {other:?}: known are {known}")))
            }
        }
    }
}

/// `ipam`, of which an interface plugin reads only the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IpamType {
    /// The name of the IPAM plugin; empty: none.
    #[serde(rename = "type")]
    pub name: String,
}

impl IpamType {
    /// Validates the key `ipspoofchk`, which needs addresses from an IPAM plugin that does not send over the link.
    ///
    /// # Errors
    /// There is no IPAM plugin, or it is dhcp.
    pub fn usable_for_spoof_check(&self, ipspoofchk: bool) -> Result<(), String> {
        match self.name.as_str() {
            _ if !ipspoofchk => Ok(()),
            "" => Err("ipspoofchk needs the container's addresses; hint: set `ipam`, or remove `ipspoofchk`".into()),
            "dhcp" => {
                Err("ipspoofchk cannot be used with dhcp, which requests addresses over a link that is down until they are known: use another IPAM plugin, or drop the key"
                    .into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use cnikit_types::Map;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn an_mtu_is_a_number_of_bytes_or_the_kernels_choice() {
        for (bytes, mtu) in [(1, Some(1)), (1400, Some(1400)), (65535, Some(65535)), (0, None), (-7, None)] {
            assert_eq!(read(json!(bytes)), Ok(Mtu(mtu)), "{bytes}");
        }
        assert!(read::<Mtu>(json!(65536)).unwrap_err().contains("an MTU of 65536"));
        assert_eq!(read(json!(1400)), Ok(CountedMtu(Some(1400))));
        assert_eq!(read(json!(0)), Ok(CountedMtu(None)));
        assert!(read::<CountedMtu>(json!(-7)).unwrap_err().contains("invalid MTU -7"));
    }

    #[test]
    fn queues_are_counted_up_to_the_kernels_limit() {
        for (count, queues) in [(0, None), (1, Some(1)), (4, Some(4)), (4096, Some(4096))] {
            assert_eq!(read(json!(count)), Ok(Queues(queues)), "{count}");
        }
        for refused in [-1, 4097] {
            assert!(read::<Queues>(json!(refused)).unwrap_err().contains(&format!("{refused} queues")), "{refused}");
        }
    }

    #[test]
    fn only_dhcp_with_a_family_whose_routes_come_from_routers_needs_router_advertisements() {
        for (ipam, needs) in [
            (json!({"type": "dhcp", "families": ["v6"]}), true),
            (json!({"type": "dhcp", "families": ["v4", "slaac"]}), true),
            (json!({"type": "dhcp", "families": ["v4"]}), false),
            (json!({"type": "dhcp", "families": []}), false),
            (json!({"type": "dhcp"}), false),
            (json!({"type": "static", "families": ["v6"]}), false),
            (json!({"families": ["slaac"]}), false),
        ] {
            let conf = NetConf(Map::from_iter([("ipam".to_owned(), ipam)]));
            assert_eq!(needs_router_adverts(&conf), needs, "{conf:?}");
        }
    }

    #[test]
    fn a_word_is_known_or_empty() {
        let named = |text: &str| (text == "open").then_some(7);
        let read = |text: &str| word(json!(text), named, "unknown door", "\"open\"").map_err(|error| error.to_string());
        assert_eq!(read("open"), Ok(Some(7)));
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("ajar"), Err("unknown door: \"ajar\": known are \"open\"".to_owned()));
    }

    #[test]
    fn a_mac_that_is_zero_or_multicast_is_refused() {
        for (mac, is_usable) in
            [("0a:00:00:00:00:01", true), ("00:00:00:00:00:00", false), ("01:00:5e:00:00:01", false)]
        {
            assert_eq!(usable(Some(mac.parse().unwrap())).is_ok(), is_usable, "{mac}");
        }
        assert_eq!(usable(None), Ok(()));
    }

    #[test]
    fn dns_is_replaced_as_a_whole_by_any_member() {
        let before = Dns { nameservers: vec!["10.0.0.53".into()], domain: "before".into(), ..Dns::default() };
        let empty = Dns::default();
        for (conf, dns) in [
            (json!({}), &before),
            (json!({"domain": ""}), &before),
            (json!({"nameservers": []}), &empty),
            (json!({"search": []}), &empty),
            (json!({"options": []}), &empty),
            (json!({"nameservers": ["fd00::53"]}), &Dns { nameservers: vec!["fd00::53".into()], ..Dns::default() }),
            (json!({"domain": "after"}), &Dns { domain: "after".into(), ..Dns::default() }),
            (json!({"search": ["a"]}), &Dns { search: vec!["a".into()], ..Dns::default() }),
            (json!({"options": ["edns0"]}), &Dns { options: vec!["edns0".into()], ..Dns::default() }),
        ] {
            let mut replaced = before.clone();
            read::<DnsOverride>(conf.clone()).unwrap().replace(&mut replaced);
            assert_eq!(replaced, *dns, "{conf}");
        }
    }

    #[test]
    fn a_backend_of_masquerading_is_named() {
        assert_eq!(read(json!("iptables")), Ok(MasqueradeBackend(Backend::Iptables)));
        assert_eq!(read(json!("nftables")), Ok(MasqueradeBackend(Backend::Nftables)));
        assert!(read::<MasqueradeBackend>(json!("")).unwrap_err().contains("unknown ipmasq backend \"\""));
    }

    #[test]
    fn a_check_for_spoofed_addresses_needs_addresses_that_do_not_come_over_the_link() {
        let refusal = |name: &str, on| IpamType { name: name.to_owned() }.usable_for_spoof_check(on).err();
        assert_eq!(refusal("host-local", true), None);
        assert!(refusal("", true).unwrap().contains("set `ipam`"));
        assert!(refusal("dhcp", true).unwrap().contains("cannot be used with dhcp"));
        assert_eq!([refusal("", false), refusal("dhcp", false)], [None, None]);
    }
}
