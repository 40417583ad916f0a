//! static gives each attachment the addresses that somebody wrote down: it chooses none, and keeps nothing.
//!
//! The keys under `ipam` are those of [`StaticPlugin`]. Addresses may be said in three more places, of which the last that says any
//! has the word:
//!
//! 1. `addresses`, and after them those of `IP` in `CNI_ARGS`, which are *added*. One of either without a gateway gets the last
//!    of `GATEWAY` in `CNI_ARGS` that lies in its network.
//! 2. `args.cni.ips`, in place of all these.
//! 3. `runtimeConfig.ips`, the capability `ips`, in place of all.
//!
//! Nothing is reserved: whoever writes an address down twice gives it to two. So DEL and GC have nothing to do.
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
    /// What an attachment is given, unless the runtime says otherwise. Default: nothing.
    addresses: Vec<AddressConfig>,
    /// Routes for the result, passed on as they are. Default: none.
    routes: Vec<Route>,
    /// `dns` of the result, passed on as it is. Default: nothing is said.
    dns: Dns,
    /// Subnets in which addresses may be requested by `runtimeConfig`, `args` and `CNI_ARGS`, beside those of `addresses`.
    /// Default: any, as far as this plugin is concerned.
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

/// One of `addresses` as it is written; it is judged where it counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AddressConfig {
    /// With the length of its prefix: required.
    address: String,
    /// Of any network. Default: none.
    gateway: String,
}

impl TryFrom<&AddressConfig> for Ip {
    type Error = String;

    fn try_from(written: &AddressConfig) -> Result<Ip, String> {
        let gateway = Some(&written.gateway)
            .filter(|text| !text.is_empty())
            .map(|text| ip(text, "invalid IP address"))
            .transpose()?;
        Ok(Ip { gateway, ..cidr(&written.address, "the 'address' field is expected to be in CIDR notation")? })
    }
}

/// An address, or in these words why it is none.
fn ip(text: &str, invalid: &str) -> Result<IpAddr, String> {
    parse_ip(text).map_err(|_| format!("{invalid}: {text}"))
}

/// An address with the length of its prefix, or in these words why it is none.
fn cidr(text: &str, expected: &str) -> Result<Ip, String> {
    parse_cidr(text).map(Ip::new).map_err(|_| format!("{expected}, got: '{text}'"))
}

impl StaticPlugin {
    /// What an attachment is given, from all the places that have a say in it.
    fn given(&self, conf: &NetConf, args: &Args, version: Version) -> Result<Addresses> {
        let added = listed(args, "IP", |text| cidr(text, "the 'ip' field is expected to be in CIDR notation"))?;
        self.check_requested(&added, "CNI_ARGS IP", Error::environment)?;
        let gateways = listed(args, "GATEWAY", |text| ip(text, "invalid gateway address"))?;
        let [of_args, of_runtime] =
            [replacing(conf, &["args", "cni", "ips"])?, replacing(conf, &["runtimeConfig", "ips"])?];
        self.check_requested(&of_args, "args.cni.ips", Error::config)?;
        self.check_requested(&of_runtime, "runtimeConfig.ips", Error::config)?;
        let said_last = [of_runtime, of_args].into_iter().find(|ips| !ips.is_empty());
        let ips = match said_last {
            Some(ips) => ips,
            None => routed([self.configured()?, added].concat(), &gateways),
        };
        one_address_a_family(version, ips.iter().map(|ip| ip.address.is_ipv4()))?;
        Ok(Addresses { ips, routes: self.routes.clone(), dns: self.dns.clone() })
    }

    /// Refuses what was requested outside the subnets that are named, if `allowedSubnets` names any.
    fn check_requested(&self, requested: &[Ip], source: &str, error: fn(String) -> Error) -> Result<()> {
        if self.allowed_subnets.is_empty() {
            return Ok(());
        }
        let configured = self.addresses.iter().filter_map(|written| parse_cidr(&written.address).ok());
        let subnets: Vec<IpNetwork> =
            self.allowed_subnets.iter().map(|Cidr(subnet)| *subnet).chain(configured).collect();
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
        let checked = self.addresses.iter().enumerate().map(|(n, written)| {
            let refused = |text| Error::config(format!("ipam.addresses[{n}]: {text}"));
            Ip::try_from(written)
                .map_err(|text| refused(text).hint("write it like 10.1.2.3/24, its gateway like 10.1.2.1"))
        });
        checked.collect()
    }
}

/// Those without a gateway get the last of these that lies in their network.
fn routed(mut ips: Vec<Ip>, gateways: &[IpAddr]) -> Vec<Ip> {
    for ip in ips.iter_mut().filter(|ip| ip.gateway.is_none()) {
        ip.gateway = gateways.iter().rfind(|gateway| ip.address.contains(**gateway)).copied();
    }
    ips
}

/// The list of a key of `CNI_ARGS`, a comma between any two; an empty text is an empty list.
fn listed<T>(args: &Args, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>> {
    let texts = args.get(key).filter(|text| !text.is_empty()).into_iter().flat_map(|text| text.split(','));
    let checked = texts.map(|text| {
        let refused = |text| Error::environment(format!("CNI_ARGS {key}: {text}"));
        read(text.trim()).map_err(|text| refused(text).hint("CNI_ARGS has lists such as IP=10.1.2.3/24,2001:db8::3/64"))
    });
    checked.collect()
}

/// The addresses of a list that counts in place of all that is said elsewhere, unless it is empty.
fn replacing(conf: &NetConf, place: &[&str]) -> Result<Vec<Ip>> {
    let texts: Vec<String> = conf.read_at(place)?.unwrap_or_default();
    let checked = texts.iter().enumerate().map(|(n, text)| {
        let refused = |text| Error::config(format!("{}[{n}]: {text}", place.join(".")));
        cidr(text, "an entry in the 'ips' field is NOT in CIDR notation")
            .map_err(|text| refused(text).hint("the length of the prefix is part of each: 10.1.2.3/24"))
    });
    checked.collect()
}

impl IpamPlugin for StaticPlugin {
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP", "GATEWAY"]);
    const ENTERS_NETNS: bool = false;

    fn acquire(&self, at: &AttachmentSpec, _journal: &mut Journal) -> Result<Addresses> {
        self.given(&at.conf, &at.args, at.version)
    }

    fn release(_del: &Del) -> Result<()> {
        Ok(())
    }

    /// Each address is in the record, with its prefix and, where one is said, its gateway.
    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let wanted = self.given(&at.conf, &at.args, at.version)?.ips;
        let drifts: Errors = wanted.iter().map(|ip| recorded(ip, &check.prev.ips, &at.tag.ifname)).collect();
        drifts.finish().map_err(|error| error.hint("the configuration was changed since the ADD: DEL, then ADD again"))
    }

    /// That the configuration can be served; it may say no address, for the runtime may.
    fn status(&self, status: &Status) -> Result<()> {
        self.given(&status.call.conf, &Args::default(), status.call.version).map(drop)
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let given = self.given(&at.conf, &at.args, at.version)?;
        let listed: Vec<String> = given.ips.iter().map(shown).collect();
        let what = if listed.is_empty() { "no address".into() } else { listed.join(" and ") };
        Ok((vec![format!("give {what} to {}", at.tag)], given))
    }
}

/// Is the address in the record?
fn recorded(wanted: &Ip, record: &[Ip], ifname: &str) -> Result<()> {
    let found = record.iter().filter(|ip| ip.address.ip() == wanted.address.ip());
    let is_so = |ip: &Ip| ip.address == wanted.address && (wanted.gateway.is_none() || ip.gateway == wanted.gateway);
    if found.clone().any(is_so) {
        return Ok(());
    }
    let found = found.map(shown).next().unwrap_or_else(|| "none".into());
    let failed = format!("static: Failed to match addr {} on interface {ifname}", wanted.address.ip());
    Err(Error::new(code::DRIFT, format!("{failed}: wanted {}, found {found}", shown(wanted))))
}

fn shown(ip: &Ip) -> String {
    let gateway = ip.gateway.map(|gateway| format!(" with gateway {gateway}")).unwrap_or_default();
    format!("{}{gateway}", ip.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given with these keys under `ipam`, these members beside it and these `CNI_ARGS`.
    fn given(addresses: &str, beside: &str, args: &str) -> Result<String> {
        let conf = format!(r#"{{"ipam":{{"addresses":[{addresses}]}}{beside}}}"#);
        let conf = NetConf::parse(conf.as_bytes()).unwrap_or_default();
        let keys: StaticPlugin = conf.read_at(&["ipam"])?.unwrap_or_default();
        let given = keys.given(&conf, &Args::parse(args).unwrap_or_default(), Version::NEWEST)?;
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
    fn what_the_runtime_says_replaces_the_rest_which_is_not_judged() {
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
            keys.given(&conf, &Args::parse(args).unwrap(), Version::NEWEST)
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
    fn an_address_is_recorded_with_its_prefix_and_the_gateway_that_was_said() {
        let of = |text, gateway: &str| Ip {
            gateway: gateway.parse().ok(),
            ..Ip::new(parse_cidr(text).unwrap_or_else(|text| panic!("{text}")))
        };
        let record = [of("10.0.0.4/24", ""), of("10.0.0.5/24", "10.0.0.1")];
        assert_eq!(recorded(&of("10.0.0.5/24", ""), &record, "eth0"), Ok(()));
        assert_eq!(recorded(&of("10.0.0.5/24", "10.0.0.1"), &record, "eth0"), Ok(()));
        for (address, gateway, found) in [
            ("10.0.0.5/24", "10.0.0.2", "10.0.0.5/24 with gateway 10.0.0.1"),
            ("10.0.0.4/24", "10.0.0.2", "10.0.0.4/24"),
            ("10.0.0.5/16", "", "10.0.0.5/24 with gateway 10.0.0.1"),
            ("10.0.0.6/24", "", "none"),
        ] {
            let said = recorded(&of(address, gateway), &record, "eth0").unwrap_err();
            let ends = format!("found {found}");
            assert!(
                said.code == code::DRIFT && said.msg.contains("on interface eth0") && said.msg.ends_with(&ends),
                "{said}"
            );
        }
    }
}
