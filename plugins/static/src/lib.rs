//! Assigns the configured addresses. It allocates none and stores nothing.
//!
//! The keys under `ipam` are those of [`StaticPlugin`]. Addresses may come from three more places. The last of these that has any
//! is used:
//!
//! 1. `addresses`, and after them those of `IP` in `CNI_ARGS`, which are *added*. An address without a gateway gets the last one of
//!    `GATEWAY` in `CNI_ARGS` that is in its network.
//! 2. `args.cni.ips`, in place of all these.
//! 3. `runtimeConfig.ips`, the capability `ips`, in place of all.
//!
//! Nothing is reserved: an address that is configured twice is assigned twice. So DEL and GC have nothing to do.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use cnikit::types::{Args, Dns, Ip, Route, Version, parse_cidr, parse_ip};
use cnikit::{
    Addresses, AttachmentSpec, Check, Del, Error, Errors, IpamPlugin, Journal, NetConf, Result, Status, code,
    one_address_a_family,
};
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// The keys under `ipam`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StaticPlugin {
    /// The addresses of an attachment, unless the runtime sends others. Default: none.
    addresses: Vec<AddressConfig>,
    /// Routes for the result, unchanged. Default: none.
    routes: Vec<Route>,
    /// `dns` of the result, unchanged. Default: none.
    dns: Dns,
    /// Subnets in which addresses may be requested by `runtimeConfig`, `args` and `CNI_ARGS`, in addition to those of `addresses`.
    /// Default: this plugin allows any.
    #[serde(rename = "allowedSubnets")]
    allowed_subnets: Vec<Cidr>,
}

/// One of `allowedSubnets`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Cidr(IpNetwork);

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Cidr, String> {
        parse_cidr(&text).map(Cidr)
    }
}

/// One of `addresses`. It is validated only if it is used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AddressConfig {
    /// An address with its prefix length: required.
    address: String,
    /// An address of any network. Default: none.
    gateway: String,
}

impl TryFrom<&AddressConfig> for Ip {
    type Error = String;

    fn try_from(written: &AddressConfig) -> Result<Ip, String> {
        let gateway = match written.gateway.as_str() {
            "" => None,
            text => Some(ip(text, "invalid IP address")?),
        };
        Ok(Ip { gateway, ..cidr(&written.address, "the 'address' field is expected to be in CIDR notation")? })
    }
}

/// Parses an address; `invalid` is the error.
fn ip(text: &str, invalid: &str) -> Result<IpAddr, String> {
    parse_ip(text).map_err(|_| format!("{invalid}: {text}"))
}

/// Parses an address with its prefix length; `expected` is the error.
fn cidr(text: &str, expected: &str) -> Result<Ip, String> {
    parse_cidr(text).map(Ip::new).map_err(|_| format!("{expected}, got: '{text}'"))
}

impl StaticPlugin {
    /// The addresses of an attachment, from all places.
    fn addresses(&self, conf: &NetConf, args: &Args, version: Version) -> Result<Addresses> {
        let added = listed(args, "IP", |text| cidr(text, "the 'ip' field is expected to be in CIDR notation"))?;
        self.check_requested(&added, "CNI_ARGS IP", Error::environment)?;
        let gateways = listed(args, "GATEWAY", |text| ip(text, "invalid gateway address"))?;
        let of_args = requested(conf, &["args", "cni", "ips"])?;
        let of_runtime = requested(conf, &["runtimeConfig", "ips"])?;
        self.check_requested(&of_args, "args.cni.ips", Error::config)?;
        self.check_requested(&of_runtime, "runtimeConfig.ips", Error::config)?;
        let ips = if !of_runtime.is_empty() {
            of_runtime
        } else if !of_args.is_empty() {
            of_args
        } else {
            with_gateways([self.configured()?, added].concat(), &gateways)
        };
        one_address_a_family(version, ips.iter().map(|ip| ip.address.is_ipv4()))?;
        Ok(Addresses { ips, routes: self.routes.clone(), dns: self.dns.clone() })
    }

    /// Refuses a requested address outside of the configured subnets, if there is `allowedSubnets`.
    fn check_requested(&self, requested: &[Ip], source: &str, error: fn(String) -> Error) -> Result<()> {
        if self.allowed_subnets.is_empty() {
            return Ok(());
        }
        let mut subnets: Vec<IpNetwork> = self.allowed_subnets.iter().map(|Cidr(subnet)| *subnet).collect();
        for configured in &self.addresses {
            if let Ok(subnet) = parse_cidr(&configured.address) {
                subnets.push(subnet);
            }
        }
        for ip in requested {
            let address = ip.address.ip();
            let prefix = ip.address.prefix();
            if !subnets.iter().any(|subnet| subnet.contains(address) && prefix >= subnet.prefix()) {
                let text = format!("{source}: {} is in no subnet in which addresses may be requested", ip.address);
                return Err(error(text).hint("request another one, or add its subnet to `ipam.allowedSubnets`"));
            }
        }
        Ok(())
    }

    fn configured(&self) -> Result<Vec<Ip>> {
        let mut ips = Vec::with_capacity(self.addresses.len());
        for (n, written) in self.addresses.iter().enumerate() {
            match Ip::try_from(written) {
                Ok(ip) => ips.push(ip),
                Err(text) => {
                    return Err(Error::config(format!("ipam.addresses[{n}]: {text}"))
                        .hint("write an address such as 10.1.2.3/24, and a gateway such as 10.1.2.1"));
                }
            }
        }
        Ok(ips)
    }
}

/// Gives each address without a gateway the last of these that is in its network.
fn with_gateways(mut ips: Vec<Ip>, gateways: &[IpAddr]) -> Vec<Ip> {
    for ip in ips.iter_mut().filter(|ip| ip.gateway.is_none()) {
        ip.gateway = gateways.iter().rfind(|gateway| ip.address.contains(**gateway)).copied();
    }
    ips
}

/// The list under a key of `CNI_ARGS`, with a comma between two elements. An empty text is an empty list.
fn listed<T>(args: &Args, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let Some(texts) = args.get(key) else { return Ok(list) };
    if texts.is_empty() {
        return Ok(list);
    }
    for text in texts.split(',') {
        match parse(text.trim()) {
            Ok(one) => list.push(one),
            Err(why) => {
                return Err(Error::environment(format!("CNI_ARGS {key}: {why}"))
                    .hint("CNI_ARGS has lists such as IP=10.1.2.3/24,2001:db8::3/64"));
            }
        }
    }
    Ok(list)
}

/// The addresses of a list that replaces all others unless it is empty.
fn requested(conf: &NetConf, place: &[&str]) -> Result<Vec<Ip>> {
    let texts: Vec<String> = conf.read_at(place)?.unwrap_or_default();
    let mut ips = Vec::with_capacity(texts.len());
    for (n, text) in texts.iter().enumerate() {
        match cidr(text, "an entry in the 'ips' field is NOT in CIDR notation") {
            Ok(ip) => ips.push(ip),
            Err(why) => {
                return Err(Error::config(format!("{}[{n}]: {why}", place.join(".")))
                    .hint("write the prefix length of each address: 10.1.2.3/24"));
            }
        }
    }
    Ok(ips)
}

impl IpamPlugin for StaticPlugin {
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP", "GATEWAY"]);
    const ENTERS_NETNS: bool = false;
    const EXAMPLE: &'static str =
        r#""ipam":{"type":"static","addresses":[{"address":"10.99.0.2/24","gateway":"10.99.0.1"}]}"#;

    fn acquire(&self, at: &AttachmentSpec, _journal: &mut Journal) -> Result<Addresses> {
        self.addresses(&at.conf, &at.args, at.version)
    }

    fn release(_del: &Del) -> Result<()> {
        Ok(())
    }

    /// Checks that each address is in the record, with its prefix and, if it has one, its gateway.
    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let mut drifts = Errors::default();
        for ip in self.addresses(&at.conf, &at.args, at.version)?.ips {
            drifts.note(check_recorded(&ip, &check.prev.ips, &at.tag.ifname));
        }
        drifts.finish().map_err(|error| error.hint("the configuration was changed since the ADD: DEL, then ADD again"))
    }

    /// Checks that the configuration is valid. It may have no address, because the runtime may send one.
    fn status(&self, status: &Status) -> Result<()> {
        self.addresses(&status.call.conf, &Args::default(), status.call.version).map(drop)
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let addresses = self.addresses(&at.conf, &at.args, at.version)?;
        let texts: Vec<String> = addresses.ips.iter().map(shown).collect();
        let what = if texts.is_empty() { "no address".into() } else { texts.join(" and ") };
        Ok((vec![format!("give {what} to {}", at.tag)], addresses))
    }
}

/// Checks that the address is in the record.
fn check_recorded(wanted: &Ip, record: &[Ip], ifname: &str) -> Result<()> {
    let mut first = None;
    for ip in record.iter().filter(|ip| ip.address.ip() == wanted.address.ip()) {
        if ip.address == wanted.address && (wanted.gateway.is_none() || ip.gateway == wanted.gateway) {
            return Ok(());
        }
        first = first.or(Some(ip));
    }
    let found = first.map_or("none".into(), shown);
    let failed = format!("static: Failed to match addr {} on interface {ifname}", wanted.address.ip());
    Err(Error::new(code::DRIFT, format!("{failed}: wanted {}, found {found}", shown(wanted))))
}

fn shown(ip: &Ip) -> String {
    match ip.gateway {
        Some(gateway) => format!("{} with gateway {gateway}", ip.address),
        None => ip.address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result with these keys in `ipam`, these members next to it and these `CNI_ARGS`.
    fn given(addresses: &str, beside: &str, args: &str) -> Result<String> {
        let conf = format!(r#"{{"ipam":{{"addresses":[{addresses}]}}{beside}}}"#);
        let conf = NetConf::parse(conf.as_bytes()).unwrap_or_default();
        let keys: StaticPlugin = conf.read_at(&["ipam"])?.unwrap_or_default();
        let given = keys.addresses(&conf, &Args::parse(args).unwrap_or_default(), Version::NEWEST)?;
        Ok(given.ips.iter().map(shown).collect::<Vec<_>>().join("; "))
    }

    const ONE: &str = r#"{"address":"10.0.0.5/24"}"#;

    #[test]
    fn those_of_cni_args_are_added_and_the_last_gateway_of_a_network_is_theirs() {
        let args = "IP=10.1.0.5/24, 10.1.0.6/24;GATEWAY=10.1.0.1,10.1.0.2";
        let added = "10.0.0.5/24; 10.1.0.5/24 with gateway 10.1.0.2; 10.1.0.6/24 with gateway 10.1.0.2";
        assert_eq!(given(ONE, "", args), Ok(added.into()));
        assert_eq!(given(ONE, "", "GATEWAY=10.0.0.1,fd00::1"), Ok("10.0.0.5/24 with gateway 10.0.0.1".into()));
        let own = r#"{"address":"10.0.0.5/24","gateway":"192.0.2.1"}"#;
        assert_eq!(given(own, "", "GATEWAY=10.0.0.1"), Ok("10.0.0.5/24 with gateway 192.0.2.1".into()));
    }

    #[test]
    fn addresses_of_the_runtime_replace_configured_ones_unvalidated() {
        let args = r#","args":{"cni":{"ips":["10.10.0.2/24"]}}"#;
        let both = format!(r#"{args},"RuntimeConfig":{{"IPs":["10.10.0.1/24"]}}"#);
        for wrong in [ONE, r#"{"address":"replaced","gateway":"too"}"#] {
            assert_eq!(given(wrong, args, "IP=10.10.0.3/24;GATEWAY=10.10.0.9"), Ok("10.10.0.2/24".into()));
            assert_eq!(given(wrong, &both, "IP=10.10.0.3/24"), Ok("10.10.0.1/24".into()));
        }
        assert_eq!(given(ONE, r#","args":{"cni":{"ips":[]}},"runtimeConfig":null"#, "IP="), Ok("10.0.0.5/24".into()));
        assert!(given(ONE, r#","args":{"cni":{"ips":["x"]}},"runtimeConfig":{"ips":["10.0.0.1/8"]}"#, "").is_err());
    }

    #[test]
    fn allowed_subnets_bound_what_is_requested_but_not_what_is_configured() {
        let given = |more: &str, args: &str| {
            let conf = format!(
                r#"{{"ipam":{{"addresses":[{ONE},{{"address":"fd00::5/64"}}],"allowedSubnets":["10.1.0.0/16"]}}{more}}}"#
            );
            let conf = NetConf::parse(conf.as_bytes()).unwrap();
            let keys: StaticPlugin = conf.read_at(&["ipam"])?.unwrap_or_default();
            keys.addresses(&conf, &Args::parse(args).unwrap(), Version::NEWEST)
        };
        for (more, args) in [
            ("", ""),
            ("", "IP=10.1.2.3/24,10.0.0.9/24,fd00::9/64"),
            (r#","args":{"cni":{"ips":["10.1.2.3/16"]}},"runtimeConfig":{"ips":["10.0.0.9/24"]}"#, ""),
        ] {
            assert!(given(more, args).is_ok(), "{more} {args}");
        }
        for (more, args, code, says) in [
            ("", "IP=10.1.2.3/15", 4, "CNI_ARGS IP: 10.1.2.3/15 is in no subnet"),
            (r#","args":{"cni":{"ips":["8.8.8.9/8"]}}"#, "", 7, "args.cni.ips: 8.8.8.9/8 is in no subnet"),
            (
                r#","runtimeConfig":{"ips":["10.1.2.3/24","fd01::1/64"]}"#,
                "",
                7,
                "runtimeConfig.ips: fd01::1/64 is in no",
            ),
        ] {
            let error = given(more, args).unwrap_err();
            assert!(error.code == code && error.msg.starts_with(says), "{error}");
        }
        let conf = NetConf::parse(br#"{"ipam":{"allowedSubnets":["10.0.0.0"]}}"#).unwrap();
        let error = conf.read_at::<StaticPlugin>(&["ipam"]).unwrap_err().to_string();
        assert!(error.contains("ipam.allowedSubnets[0]"), "{error}");
    }

    #[test]
    fn an_address_is_recorded_with_its_prefix_and_gateway() {
        let of = |text, gateway: &str| Ip {
            gateway: gateway.parse().ok(),
            ..Ip::new(parse_cidr(text).unwrap_or_else(|text| panic!("{text}")))
        };
        let record = [of("10.0.0.4/24", ""), of("10.0.0.5/24", "10.0.0.1")];
        assert_eq!(check_recorded(&of("10.0.0.5/24", ""), &record, "eth0"), Ok(()));
        assert_eq!(check_recorded(&of("10.0.0.5/24", "10.0.0.1"), &record, "eth0"), Ok(()));
        for (address, gateway, found) in [
            ("10.0.0.5/24", "10.0.0.2", "10.0.0.5/24 with gateway 10.0.0.1"),
            ("10.0.0.4/24", "10.0.0.2", "10.0.0.4/24"),
            ("10.0.0.5/16", "", "10.0.0.5/24 with gateway 10.0.0.1"),
            ("10.0.0.6/24", "", "none"),
        ] {
            let error = check_recorded(&of(address, gateway), &record, "eth0").unwrap_err();
            let ends = format!("found {found}");
            assert!(
                error.code == code::DRIFT && error.msg.contains("on interface eth0") && error.msg.ends_with(&ends),
                "{error}"
            );
        }
    }
}
