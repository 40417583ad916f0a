//! Requested addresses: those of `runtimeConfig`, `args` and `CNI_ARGS`, which tenants may be able to write.
//!
//! The host gets a route, a rule or a gateway address for such an address only if the network's configuration, which the operator
//! writes, names its subnet. The subnets are read from `ipam` in the same way for every IPAM plugin.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use cnikit_skel::{AttachmentSpec, Error, KeySource, Result};
use cnikit_types::{Args, Ip, NetConf, Value, parse_cidr, parse_ip};
use ipnetwork::IpNetwork;

use crate::addresses::Addresses;

/// The state that the host gets because of the addresses of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostState {
    /// Nothing.
    Nothing,
    /// Rules about the addresses.
    Rules,
    /// Routes to the addresses, and their gateways as addresses without a network.
    Routes,
    /// The gateways with the prefixes of the addresses, and so a route to each network.
    Gateways,
}

/// A subnet that the network's configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet {
    network: IpNetwork,
    /// The gateway; absent: any address of the subnet may be the gateway.
    gateway: Option<IpAddr>,
}

/// How many subnets an error lists.
const LISTED: usize = 8;

/// The requested addresses, gateways and ranges.
#[derive(Default)]
struct Requested {
    /// Each address with the place that requested it.
    addresses: HashMap<IpAddr, KeySource>,
    gateways: HashSet<IpAddr>,
    ranges: Vec<IpNetwork>,
}

/// Refuses a requested address for which the host would get state, unless the configuration names its subnet.
pub(crate) fn check(at: &AttachmentSpec, state: HostState, addresses: &Addresses) -> Result<()> {
    if state == HostState::Nothing {
        return Ok(());
    }
    // It assigns no address but those of pools that the operator allows for the network.
    if at.conf.ipam_type() == Some("pool") {
        return Ok(());
    }
    let requested = requested(&at.conf, &at.args);
    if requested.addresses.is_empty() && requested.gateways.is_empty() && requested.ranges.is_empty() {
        return Ok(());
    }
    let subnets = subnets(&at.conf);
    for ip in &addresses.ips {
        let Some(source) = requested.source(ip) else { continue };
        if !is_allowed(&subnets, ip, state) {
            return Err(refusal(ip, source, state, &subnets));
        }
    }
    Ok(())
}

/// The gateways, with the prefixes of their addresses, that come from the reply of a DHCP server, in no subnet that the network's
/// configuration names. Any host of the link can answer as a server.
pub fn gateways_from_dhcp(conf: &NetConf, addresses: &Addresses) -> Vec<IpNetwork> {
    if conf.at(&["ipam", "type"]).and_then(Value::as_str) != Some("dhcp") {
        return Vec::new();
    }
    let subnets = subnets(conf);
    let unnamed = addresses.ips.iter().filter(|ip| !is_allowed(&subnets, ip, HostState::Gateways));
    unnamed.filter_map(|ip| IpNetwork::new(ip.gateway?, ip.address.prefix()).ok()).collect()
}

/// Whether one of the subnets allows the host this state for the address.
fn is_allowed(subnets: &[Subnet], ip: &Ip, state: HostState) -> bool {
    subnets.iter().any(|subnet| subnet.allows(ip, state))
}

fn refusal(ip: &Ip, source: KeySource, state: HostState, subnets: &[Subnet]) -> Error {
    let wanted = match ip.gateway {
        Some(gateway) if state != HostState::Rules => format!("{} with gateway {gateway}", ip.address),
        _ => ip.address.to_string(),
    };
    let listed: Vec<String> = subnets.iter().take(LISTED).map(ToString::to_string).collect();
    let named = match subnets.len().saturating_sub(LISTED) {
        _ if listed.is_empty() => "no subnet".to_owned(),
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    };
    let text = format!("{source}: {wanted} was requested, but the network's configuration names {named}");
    let error = match source {
        KeySource::CniArg(_) | KeySource::CniArgNumber(_) => Error::environment(text),
        _ => Error::config(text),
    };
    let network = network(ip.address);
    error.hint(format!(
        "the host would get a gateway, a route or rules for it: request an address of a subnet of the network, with its \
         prefix length, or add {network} to `ipam.allowedSubnets` in the network's configuration"
    ))
}

impl Requested {
    /// The place that requested the address or its gateway; `None` if neither was requested.
    fn source(&self, ip: &Ip) -> Option<KeySource> {
        let address = ip.address.ip();
        if let Some(source) = self.addresses.get(&address) {
            return Some(*source);
        }
        if ip.gateway.is_some_and(|gateway| self.gateways.contains(&gateway)) {
            return Some(KeySource::CniArg("GATEWAY"));
        }
        self.ranges.iter().any(|range| range.contains(address)).then_some(KeySource::Runtime("ipRanges"))
    }
}

/// Everything that was requested. Values that cannot be parsed are left to the IPAM plugin, which refuses them.
fn requested(conf: &NetConf, args: &Args) -> Requested {
    let mut all = Requested::default();
    for (path, source) in [
        (["runtimeConfig", "ips"].as_slice(), KeySource::Runtime("ips")),
        (&["args", "cni", "ips"], KeySource::ArgsCni("ips")),
    ] {
        for address in texts(conf.at(path)).filter_map(address) {
            all.addresses.entry(address).or_insert(source);
        }
    }
    for address in args.get("IP").unwrap_or_default().split(',').filter_map(address) {
        all.addresses.entry(address).or_insert(KeySource::CniArg("IP"));
    }
    all.gateways.extend(args.get("GATEWAY").unwrap_or_default().split(',').filter_map(address));
    for range in conf.capabilities().ip_ranges().unwrap_or_default().into_iter().flatten() {
        if let Some(subnet) = range.subnet {
            all.ranges.push(network(subnet));
        }
    }
    all
}

/// Parses an address with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    match parse_cidr(text) {
        Ok(cidr) => Some(cidr.ip()),
        Err(_) => parse_ip(text).ok(),
    }
}

/// The subnets that the network's configuration names under `ipam`: those of `allowedSubnets`, of host-local's ranges, and of
/// static's addresses.
///
/// For host-local the sets of `runtimeConfig.ipRanges` count too, if `ipam` names no subnet of their family. Then the operator has
/// left the choice to the runtime, which takes the sets from the node's own configuration.
fn subnets(conf: &NetConf) -> Vec<Subnet> {
    let Some(Value::Object(ipam)) = conf.get("ipam") else { return Vec::new() };
    let ipam = NetConf(ipam.clone());
    let mut all: Vec<Subnet> = Vec::new();
    for text in texts(ipam.get("allowedSubnets")) {
        if let Ok(subnet) = parse_cidr(text) {
            all.push(Subnet { network: network(subnet), gateway: None });
        }
    }
    all.extend(subnet(&ipam, "subnet"));
    for set in list(ipam.get("ranges")) {
        for range in list(Some(set)) {
            all.extend(subnet_of_object(range, "subnet"));
        }
    }
    for address in list(ipam.get("addresses")) {
        all.extend(subnet_of_object(address, "address"));
    }
    if ipam.text("type") == Some("host-local") {
        let configured = all.clone();
        for range in conf.capabilities().ip_ranges().unwrap_or_default().into_iter().flatten() {
            let Some(subnet) = range.subnet else { continue };
            if configured.iter().all(|one| one.network.is_ipv4() != subnet.is_ipv4()) {
                all.push(Subnet { network: network(subnet), gateway: range.gateway });
            }
        }
    }
    all
}

/// The subnet under this key of an object, with the `gateway` of the object if it has one.
fn subnet(conf: &NetConf, key: &str) -> Option<Subnet> {
    let subnet = parse_cidr(conf.text(key)?).ok()?;
    let gateway = conf.text("gateway").and_then(|text| parse_ip(text).ok());
    Some(Subnet { network: network(subnet), gateway })
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}

fn subnet_of_object(value: &Value, key: &str) -> Option<Subnet> {
    let Value::Object(members) = value else { return None };
    subnet(&NetConf(members.clone()), key)
}

/// The network of an address, without the host bits.
fn network(address: IpNetwork) -> IpNetwork {
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

impl Subnet {
    /// Whether the host may get the state for this address.
    ///
    /// On a shared link the gateway has the prefix of the address, so that has to be the subnet's. With any other prefix, the first
    /// container would determine the prefix of the link, and every other container would be refused.
    fn allows(&self, ip: &Ip, state: HostState) -> bool {
        let wanted = network(ip.address);
        let inside = self.network.contains(wanted.ip()) && wanted.prefix() >= self.network.prefix();
        let fits = if state == HostState::Gateways { wanted == self.network } else { inside };
        let gateway_fits = match (ip.gateway, self.gateway) {
            _ if state == HostState::Rules => true,
            (None, _) => true,
            (Some(wanted), Some(own)) => wanted == own,
            (Some(wanted), None) => self.network.contains(wanted),
        };
        fits && gateway_fits
    }
}

/// `SUBNET` or `SUBNET with gateway ADDRESS`, for errors.
impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.network)?;
        match self.gateway {
            Some(gateway) => write!(f, " with gateway {gateway}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::tests::attachment;

    /// The outcome of the check of an address and its gateway with this configuration and these `CNI_ARGS`.
    fn checked(conf: &str, args: &str, address: &str, gateway: &str, state: HostState) -> Result<()> {
        let at = attachment("/n", conf, args);
        let ip = Ip { gateway: parse_ip(gateway).ok(), ..Ip::new(parse_cidr(address).unwrap()) };
        check(&at, state, &Addresses { ips: vec![ip], ..Addresses::default() })
    }

    const ROUTES: HostState = HostState::Routes;
    const GATEWAYS: HostState = HostState::Gateways;

    #[test]
    fn an_address_that_was_not_requested_needs_no_subnet() {
        for conf in ["{}", r#"{"ipam":{"type":"dhcp"}}"#, r#"{"ipam":1,"runtimeConfig":{"ips":["10.0.0.6/24"]}}"#] {
            assert_eq!(checked(conf, "IP=10.0.0.7/24", "10.0.0.5/8", "10.0.0.1", GATEWAYS), Ok(()), "{conf}");
        }
        let conf = r#"{"runtimeConfig":{"ips":["10.0.0.5/8"]}}"#;
        assert_eq!(checked(conf, "", "10.0.0.5/8", "10.0.0.1", HostState::Nothing), Ok(()));
    }

    #[test]
    fn requested_addresses_are_read_from_each_source_in_any_form() {
        for (conf, args, named, code) in [
            (r#"{"RuntimeConfig":{"IPs":["8.8.8.9/8"]}}"#, "", "runtimeConfig.ips", 7),
            (r#"{"runtimeConfig":{"ips":["8.8.8.9"]}}"#, "", "runtimeConfig.ips", 7),
            (r#"{"runtimeConfig":{"ips":["::ffff:8.8.8.9/104"]}}"#, "", "runtimeConfig.ips", 7),
            (r#"{"args":{"cni":{"ips":["8.8.8.9/8"]}}}"#, "", "args.cni.ips", 7),
            ("{}", "IP=10.0.0.1/8, 8.8.8.9/8", "CNI_ARGS IP", 4),
            ("{}", "GATEWAY=8.0.0.1", "CNI_ARGS GATEWAY", 4),
            (
                r#"{"ipam":{"type":"host-local","subnet":"10.0.0.0/8"},"runtimeConfig":{"ipRanges":[[{"subnet":"8.0.0.0/8"}]]}}"#,
                "",
                "runtimeConfig.ipRanges",
                7,
            ),
        ] {
            let error = checked(conf, args, "8.8.8.9/8", "8.0.0.1", GATEWAYS).unwrap_err();
            assert!(error.code == code && error.msg.starts_with(named), "{error}");
            assert!(error.hint.is_some_and(|hint| hint.contains("8.0.0.0/8 to `ipam.allowedSubnets`")));
        }
    }

    #[test]
    fn each_key_that_names_a_subnet_allows_its_addresses() {
        for ipam in [
            r#""subnet":"10.0.0.0/24""#,
            r#""ranges":[[{"subnet":"10.9.0.0/24"},{"subnet":"10.0.0.0/24","gateway":"10.0.0.1"}]]"#,
            r#""addresses":[{"address":"replaced"},{"address":"10.0.0.9/24"}]"#,
            r#""ALLOWEDsubnets":["10.9.0.0/24","10.0.0.0/24"]"#,
            r#""allowedSubnets":["::ffff:10.0.0.0/120"]"#,
            r#""type":"host-local"},"runtimeConfig":{"ips":["10.0.0.5/24"],"ipRanges":[{"subnet":"10.0.0.0/24"}]"#,
        ] {
            let conf = format!(r#"{{"args":{{"cni":{{"ips":["10.0.0.5/24"]}}}},"ipam":{{{ipam}}}}}"#);
            for state in [HostState::Rules, ROUTES, GATEWAYS] {
                assert_eq!(checked(&conf, "", "10.0.0.5/24", "10.0.0.1", state), Ok(()), "{ipam}");
                assert!(checked(&conf, "IP=11.0.0.5/24", "11.0.0.5/24", "11.0.0.1", state).is_err(), "{ipam}");
                assert!(checked(&conf, "", "10.0.0.5/23", "10.0.0.1", state).is_err(), "{ipam}");
            }
        }
    }

    #[test]
    fn a_refusal_says_what_was_requested_and_which_subnets_there_are() {
        let subnets = |count: usize| (0..count).map(|n| format!(r#""10.{n}.0.0/16""#)).collect::<Vec<_>>().join(",");
        let allowed = |count: usize| format!(r#"{{"ipam":{{"allowedSubnets":[{}]}}}}"#, subnets(count));
        let own = r#"{"ipam":{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}}"#.to_owned();
        let eight = (0..8).map(|n| format!("10.{n}.0.0/16")).collect::<Vec<_>>().join(", ");
        for (conf, named) in [
            ("{}".to_owned(), "no subnet".to_owned()),
            (allowed(1), "10.0.0.0/16".to_owned()),
            (own, "10.0.0.0/16 with gateway 10.0.0.1".to_owned()),
            (allowed(8), eight.clone()),
            (allowed(10), format!("{eight} and 2 more")),
        ] {
            for (state, wanted) in [(HostState::Rules, "8.8.8.9/8"), (ROUTES, "8.8.8.9/8 with gateway 8.0.0.1")] {
                let error = checked(&conf, "IP=8.8.8.9/8", "8.8.8.9/8", "8.0.0.1", state).unwrap_err();
                let text =
                    format!("CNI_ARGS IP: {wanted} was requested, but the network's configuration names {named}");
                assert_eq!(error.msg, text);
            }
        }
    }

    #[test]
    fn rules_about_an_address_do_not_depend_on_its_gateway() {
        let conf = r#"{"ipam":{"subnet":"10.0.0.0/24","gateway":"10.0.0.1"}}"#;
        assert_eq!(checked(conf, "IP=10.0.0.5/24", "10.0.0.5/24", "10.0.0.2", HostState::Rules), Ok(()));
        assert!(checked(conf, "IP=10.0.0.5/24", "10.0.0.5/24", "10.0.0.2", ROUTES).is_err());
    }

    #[test]
    fn of_the_gateways_of_a_dhcp_server_those_in_no_named_subnet_are_listed() {
        let ip = |address: &str, gateway: &str| Ip {
            gateway: parse_ip(gateway).ok(),
            ..Ip::new(parse_cidr(address).unwrap())
        };
        let ips = vec![ip("10.0.0.5/24", "10.0.0.1"), ip("fd00::5/64", "fd00::1"), ip("fd01::5/128", "")];
        let addresses = Addresses { ips, ..Addresses::default() };
        let [ipv4, ipv6] = ["10.0.0.1/24", "fd00::1/64"];
        for (ipam, listed) in [
            (r#""type":"dhcp""#, &[ipv4, ipv6][..]),
            (r#""type":"dhcp","allowedSubnets":["10.0.1.0/24"]"#, &[ipv4, ipv6]),
            (r#""type":"dhcp","allowedSubnets":["10.0.0.0/24"]"#, &[ipv6]),
            (r#""type":"dhcp","allowedSubnets":["10.0.0.0/24","fd00::/64"]"#, &[]),
            (r#""type":"host-local""#, &[]),
        ] {
            let conf = NetConf::parse(format!(r#"{{"ipam":{{{ipam}}}}}"#).as_bytes()).unwrap();
            let found: Vec<String> = gateways_from_dhcp(&conf, &addresses).iter().map(ToString::to_string).collect();
            assert_eq!(found, listed, "{ipam}");
        }
    }

    #[test]
    fn keys_that_a_tenant_sets_do_not_define_a_subnet() {
        for conf in [
            r#"{"ipam":{"type":"static"},"runtimeConfig":{"ips":["8.8.8.9/8"],"ipRanges":[[{"subnet":"8.0.0.0/8"}]],"allowedSubnets":["8.0.0.0/8"]}}"#,
            r#"{"ipam":{"type":"static"},"args":{"cni":{"ips":["8.8.8.9/8"],"allowedSubnets":["8.0.0.0/8"],"ipam":{"subnet":"8.0.0.0/8"}}}}"#,
        ] {
            assert!(checked(conf, "allowedSubnets=8.0.0.0/8", "8.8.8.9/8", "8.0.0.1", GATEWAYS).is_err(), "{conf}");
        }
    }

    #[test]
    fn an_address_of_a_pool_needs_no_subnet_in_the_configuration() {
        let conf = r#"{"ipam":{"type":"pool","pool":"blue"},"args":{"cni":{"pool":"blue"}}}"#;
        assert_eq!(checked(conf, "IP=10.0.0.5", "10.0.0.5/24", "10.0.0.1", GATEWAYS), Ok(()));
    }

    #[test]
    fn a_gateway_on_a_shared_link_has_the_prefix_and_the_gateway_of_the_subnet() {
        let conf =
            r#"{"ipam":{"addresses":[{"address":"10.0.0.9/16","gateway":"10.0.0.1"}],"allowedSubnets":["fd00::/64"]}}"#;
        for (address, gateway, routes, gateways) in [
            ("10.0.0.5/16", "10.0.0.1", true, true),
            ("10.0.0.5/24", "10.0.0.1", true, false),
            ("10.0.0.5/16", "10.0.0.2", false, false),
            ("10.0.0.5/16", "", true, true),
            ("fd00::5/64", "fd00::2", true, true),
            ("fd00::5/64", "fd01::1", false, false),
            ("fd00::5/128", "fd00::6", true, false),
        ] {
            let args = format!("IP={address}");
            assert_eq!(checked(conf, &args, address, gateway, ROUTES).is_ok(), routes, "{address} {gateway}");
            assert_eq!(checked(conf, &args, address, gateway, GATEWAYS).is_ok(), gateways, "{address} {gateway}");
            assert_eq!(checked(conf, &args, address, "", HostState::Rules), Ok(()), "{address}");
        }
    }
}
