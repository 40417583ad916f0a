//! The configuration, and the order for a lease that follows from it.

use std::path::PathBuf;
use std::time::Duration;

use cnikit::types::{Args, Dns, Ip, Route, Value};
use cnikit::{Addresses, AttachmentId, AttachmentSpec, Error, NetConf, Result};
use cnikit_dhcp::v4::{ClientOptions, Lease, client_id, option_code};
use cnikit_dhcp::v6::Lease6;
use cnikit_dhcp_daemon::{Lease6Order, LeaseFamily, LeaseOrder, LeaseOwner, RECORDS, SOCKET};
use ipnetwork::{IpNetwork, Ipv4Network};
use serde::Deserialize;

/// The scope of routes to destinations on the link (`RT_SCOPE_LINK`).
const SCOPE_LINK: u8 = 253;
/// The value of `daemon`.
const AUTO: &str = "auto";
/// How long ADD waits by default, in seconds. Runtimes wait a minute or more.
const TIMEOUT: u32 = 50;

/// The keys under `ipam`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DhcpPlugin {
    /// Where addresses come from: `v4`, `v6` (DHCP for IPv6), `slaac` (router advertisements). Default: `v4`.
    families: Vec<String>,
    /// The socket of the daemon. Default: `/run/cni/dhcp.sock`. DEL and GC read it too.
    daemon_socket_path: String,
    /// The directory in which the daemon records leases. Default: `/var/lib/cni/dhcp`. DEL reads it too.
    data_dir: String,
    /// `auto`: ADD starts the daemon if none runs. Default: the daemon is started by something else, such as systemd.
    daemon: String,
    /// The metric of every route of the lease; 0: the kernel's default.
    priority: u32,
    /// How long ADD waits for a lease, in seconds. Default: 50.
    timeout: u32,
    /// Options that are sent to the server. Default: only those that the protocol needs.
    provide: Vec<ProvidedOption>,
    /// Options that the server is asked for, before the usual ones. Default: only the usual ones.
    request: Vec<RequestedOption>,
}

/// One of `provide`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProvidedOption {
    /// The option's name or number: required.
    option: String,
    /// Its value, as text.
    value: String,
    /// Its value, in hexadecimal digits, for a value that is not text.
    hex_value: String,
    /// The key of `CNI_ARGS` that has the value, as text. If it is there, it precedes the other two.
    from_arg: String,
}

/// One of `request`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RequestedOption {
    /// The option's name or number; empty: the entry only has `skipDefault`.
    option: String,
    /// The usual options are not asked for. It counts for the whole list.
    skip_default: bool,
}

impl DhcpPlugin {
    /// The order for the lease of an attachment.
    pub(crate) fn order(&self, at: &AttachmentSpec) -> Result<LeaseOrder> {
        let netns = std::path::absolute(&at.sandbox)?;
        Ok(LeaseOrder {
            owner: owner(&at.tag),
            netns: netns.to_string_lossy().into_owned(),
            options: self.options(&owner(&at.tag), &at.args)?,
            mtu: !has_mtu(&at.conf),
            priority: if self.priority == 0 { None } else { Some(self.priority) },
            timeout_ms: u64::try_from(self.timeout().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// The order for the lease of IPv6.
    pub(crate) fn order6(&self, at: &AttachmentSpec) -> Result<Lease6Order> {
        let LeaseOrder { owner, netns, timeout_ms, .. } = self.order(at)?;
        Ok(Lease6Order { owner, netns, timeout_ms })
    }

    /// Where addresses come from.
    pub(crate) fn families(&self) -> Result<Families> {
        let mut families = Families::default();
        for family in &self.families {
            match family.as_str() {
                "v4" => families.v4 = true,
                "v6" => families.v6 = true,
                "slaac" => families.slaac = true,
                other => {
                    return Err(Error::config(format!("ipam.families: {other:?} is not \"v4\", \"v6\" or \"slaac\""))
                        .hint("name each source of addresses that every ADD has to have"));
                }
            }
        }
        if self.families.is_empty() {
            families.v4 = true;
        }
        Ok(families)
    }

    /// Whether ADD starts the daemon if none runs.
    pub(crate) fn starts_daemon(&self) -> Result<bool> {
        match self.daemon.as_str() {
            "" => Ok(false),
            AUTO => Ok(true),
            other => Err(Error::config(format!("ipam.daemon: {other:?} is not \"{AUTO}\""))
                .hint("remove the key if systemd or something else starts the daemon")),
        }
    }

    /// How long ADD waits.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(if self.timeout == 0 { TIMEOUT } else { self.timeout }))
    }

    pub(crate) fn options(&self, owner: &LeaseOwner, args: &Args) -> Result<ClientOptions> {
        let mut options = ClientOptions::new(client_id(&owner.id()));
        for (n, provided) in self.provide.iter().enumerate() {
            let key = format!("ipam.provide[{n}]");
            let code = code(&provided.option).map_err(|why| Error::config(format!("{key}.option: {why}")))?;
            let value = provided.bytes(args).map_err(|why| Error::config(format!("{key}.hexValue: {why}")))?;
            if value.is_empty() {
                continue; // the runtime does not send the argument: an option without a value means something else
            }
            options.provide(code, value).map_err(|why| Error::config(format!("{key} ({}): {why}", provided.option)))?;
        }
        let mut codes = Vec::new();
        for (n, requested) in self.request.iter().enumerate() {
            if !requested.option.is_empty() {
                let failed = |why| Error::config(format!("ipam.request[{n}].option: {why}"));
                codes.push(code(&requested.option).map_err(failed)?);
            }
        }
        options.request(&codes, self.request.iter().any(|requested| requested.skip_default));
        Ok(options)
    }

    /// The addresses, routes and DNS of a lease.
    pub(crate) fn addresses(&self, lease: &Lease) -> Result<Addresses> {
        let parameters = &lease.parameters;
        let prefix = parameters.prefix.unwrap_or(32);
        let address = Ipv4Network::new(lease.address, prefix)?;
        let gateway = parameters.routers.first().map(|router| (*router).into());
        let mut routes = Vec::new();
        for route in &parameters.routes {
            routes.push(Route {
                gw: route.gateway.map(Into::into),
                scope: if route.gateway.is_none() { Some(SCOPE_LINK) } else { None },
                priority: if self.priority == 0 { None } else { Some(self.priority) },
                ..Route::to(IpNetwork::V4(route.destination))
            });
        }
        let dns = Dns {
            nameservers: parameters.dns.iter().map(ToString::to_string).collect(),
            domain: parameters.domain.clone().unwrap_or_default(),
            search: parameters.search.clone(),
            ..Dns::default()
        };
        Ok(Addresses { ips: vec![Ip { gateway, ..Ip::new(IpNetwork::V4(address)) }], routes, dns })
    }
}

/// The sources of addresses that an ADD has to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
    pub(crate) slaac: bool,
}

impl Families {
    /// Those that the daemon has leases of.
    pub(crate) fn leased(self) -> Vec<LeaseFamily> {
        let mut leased = Vec::new();
        if self.v4 {
            leased.push(LeaseFamily::V4);
        }
        if self.v6 {
            leased.push(LeaseFamily::V6);
        }
        leased
    }
}

/// The addresses and DNS of a lease of IPv6. Which other addresses are on the link, and which router leads elsewhere, is known from
/// router advertisements only.
pub(crate) fn addresses6(lease: &Lease6) -> Addresses {
    let networks = lease.addresses.iter().map(|one| IpNetwork::V6(one.address.into()));
    let dns = Dns {
        nameservers: lease.dns.iter().map(ToString::to_string).collect(),
        search: lease.search.clone(),
        ..Dns::default()
    };
    Addresses { ips: networks.map(Ip::new).collect(), dns, ..Addresses::default() }
}

/// Adds the addresses, routes and DNS of another source.
pub(crate) fn add(all: &mut Addresses, more: Addresses) {
    all.ips.extend(more.ips);
    all.routes.extend(more.routes);
    all.dns.nameservers.extend(more.dns.nameservers);
    for domain in more.dns.search {
        if !all.dns.search.contains(&domain) {
            all.dns.search.push(domain);
        }
    }
    if all.dns.domain.is_empty() {
        all.dns.domain = more.dns.domain;
    }
}

impl ProvidedOption {
    /// The value; the error is that of `hexValue`.
    fn bytes(&self, args: &Args) -> Result<Vec<u8>, String> {
        if !self.from_arg.is_empty()
            && let Some(value) = args.get(&self.from_arg)
        {
            return Ok(value.as_bytes().to_vec());
        }
        if self.hex_value.is_empty() {
            return Ok(self.value.as_bytes().to_vec());
        }
        let wrong = || format!("{:?} is not a sequence of bytes of two hexadecimal digits each", self.hex_value);
        let digits: Vec<char> = self.hex_value.chars().filter(|letter| *letter != ':').collect();
        let mut bytes = Vec::new();
        for pair in digits.chunks(2) {
            let (Some(high), Some(low)) = (digit(pair.first()), digit(pair.get(1))) else { return Err(wrong()) };
            bytes.push(high << 4 | low);
        }
        Ok(bytes)
    }
}

fn digit(letter: Option<&char>) -> Option<u8> {
    u8::try_from(letter?.to_digit(16)?).ok()
}

fn code(name: &str) -> Result<u8, String> {
    option_code(name).ok_or_else(|| {
        format!("{name:?} is no option: write its number, from 0 to 255, or a name such as host-name or user-class")
    })
}

/// Whose lease it is.
pub(crate) fn owner(tag: &AttachmentId) -> LeaseOwner {
    let AttachmentId { network, container, ifname } = tag.clone();
    LeaseOwner { container, network, ifname }
}

/// The daemon's socket, also where the rest of the configuration is invalid.
pub(crate) fn socket(conf: &NetConf) -> PathBuf {
    path(conf, "daemonSocketPath", SOCKET)
}

/// The directory of the daemon's records, also where the rest of the configuration is invalid.
pub(crate) fn data_dir(conf: &NetConf) -> PathBuf {
    path(conf, "dataDir", RECORDS)
}

fn path(conf: &NetConf, key: &str, default: &str) -> PathBuf {
    match conf.at(&["ipam", key]).and_then(|value| value.as_str()) {
        None | Some("") => default.into(),
        Some(path) => path.into(),
    }
}

/// Whether the configuration of the interface says its MTU.
fn has_mtu(conf: &NetConf) -> bool {
    conf.get("mtu").and_then(Value::as_u64).is_some_and(|mtu| mtu > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(keys: &serde_json::Value, args: &str) -> Result<ClientOptions> {
        let plugin: DhcpPlugin = serde_json::from_value(keys.clone()).unwrap();
        let owner = LeaseOwner { container: "c".into(), network: "n".into(), ifname: "eth0".into() };
        plugin.options(&owner, &Args::parse(args).unwrap())
    }

    /// The options as the provided ones by code, and the request list.
    fn sent(keys: &serde_json::Value, args: &str) -> serde_json::Value {
        serde_json::to_value(options(keys, args).unwrap()).unwrap()
    }

    #[test]
    fn values_are_text_or_bytes_or_of_an_argument() {
        let keys = json!({"provide": [
            {"option": "host-name", "value": "x", "fromArg": "K8S_POD_NAME"},
            {"option": "60", "value": "x", "fromArg": "NONE"},
            {"option": "user-class", "hexValue": "00:ff0A"}]});
        let sent = sent(&keys, "K8S_POD_NAME=pod;IgnoreUnknown=1");
        let provided = &sent["provided"];
        assert_eq!(provided["12"], json!(b"pod"));
        assert_eq!(provided["60"], json!(b"x"));
        assert_eq!(provided["77"], json!([0, 255, 10]));
        assert_eq!(provided["61"], json!(b"\0c/n/eth0"));
    }

    #[test]
    fn what_is_requested_precedes_the_usual_options_or_is_all() {
        let more = json!({"request": [{"option": "66"}]});
        assert_eq!(sent(&more, "")["requested"].as_array().unwrap()[..2], [json!(66), json!(121)]);
        let only = json!({"request": [{"option": "routers"}, {"skipDefault": true}]});
        assert_eq!(sent(&only, "")["requested"], json!([3]));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_key() {
        for (keys, says) in [
            (json!({"provide": [{"option": "x"}]}), "ipam.provide[0].option: \"x\" is no option"),
            (json!({"provide": [{"option": ""}]}), "ipam.provide[0].option: \"\" is no option"),
            (json!({"request": [{}, {"option": "256"}]}), "ipam.request[1].option: \"256\" is no option"),
            (
                json!({"provide": [{"option": "53", "value": "a"}]}),
                "ipam.provide[0] (53): the DHCP client writes option 53",
            ),
            (
                json!({"provide": [{"option": "12", "value": "a".repeat(256)}]}),
                "ipam.provide[0] (12): the value has 256",
            ),
            (json!({"provide": [{"option": "12", "hexValue": "0"}]}), "ipam.provide[0].hexValue: \"0\" is not a"),
            (json!({"provide": [{"option": "12", "hexValue": "0g"}]}), "ipam.provide[0].hexValue: \"0g\" is not a"),
        ] {
            let error = options(&keys, "").unwrap_err();
            assert!(error.msg.starts_with(says) && error.code == 7, "{keys}: {error}");
        }
    }
}
