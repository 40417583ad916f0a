//! The file in which flanneld says what this host has.

use std::collections::HashSet;

use cnikit::types::parse_cidr;
use cnikit::{Error, Result, code};
use ipnetwork::IpNetwork;

/// flanneld writes some hundred bytes.
const LIMIT: usize = 1 << 20;

/// What the file says.
#[derive(Debug, PartialEq)]
pub(crate) struct SubnetEnv {
    /// The networks of all hosts: IPv4, then IPv6, each once.
    pub(crate) networks: Vec<IpNetwork>,
    /// What is this host's: IPv4, then IPv6.
    pub(crate) subnets: Vec<IpNetwork>,
    /// What fits into the tunnel, in bytes.
    pub(crate) mtu: u32,
    /// Does flanneld masquerade?
    pub(crate) ip_masq: bool,
}

impl SubnetEnv {
    /// Reads the file; that it is not there is code 11, for it comes with flanneld.
    pub(crate) fn read(path: &str) -> Result<SubnetEnv> {
        let told = |error: Error| {
            error.context("failed to load flannel 'subnet.env' file").detail("Check the flannel pod log for this node")
        };
        let absent = format!(
            "flanneld has not written {path} yet: see that it runs on this node, and that `subnetFile` is where it writes"
        );
        let content = cnikit_store::read(path, LIMIT).map_err(|error| match error {
            error if error.is_absent() => told(Error::new(code::TRY_AGAIN, error.to_string())).hint(absent),
            other => told(other.into()),
        })?;
        let hint = format!("flanneld writes {path}: see that it runs on this node, and restart it");
        SubnetEnv::parse(&String::from_utf8_lossy(&content), path).map_err(|text| told(Error::config(text)).hint(hint))
    }

    /// Lines of `KEY=VALUE`, the value perhaps in quotation marks; others are passed over, and of one key the last counts. An
    /// empty value is none.
    fn parse(text: &str, path: &str) -> Result<SubnetEnv, String> {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let pairs: Vec<(&str, &str)> = pairs.map(|(key, value)| (key.trim(), bare(value))).collect();
        let last = |key: &str| pairs.iter().rfind(|(name, _)| *name == key).map(|(_, value)| *value);
        let said = |key: &str| last(key).filter(|value| !value.is_empty());
        let each =
            |keys: [&str; 2]| keys.into_iter().filter_map(said).flat_map(|list| list.split(',')).map(masked).collect();
        let networks: Result<Vec<_>, String> = each(NETWORKS);
        let subnets: Result<Vec<_>, String> = each(SUBNETS);
        let mut networks = networks?;
        let subnets = subnets?;
        let missing =
            [NETWORKS, SUBNETS].into_iter().filter(|keys| keys.iter().all(|key| said(key).is_none())).flatten();
        let missing: Vec<&str> = missing.chain([MTU, IP_MASQ].into_iter().filter(|key| said(key).is_none())).collect();
        let (Some(mtu), Some(ip_masq), []) = (said(MTU), said(IP_MASQ), &missing[..]) else {
            return Err(format!("{path} is missing {}", missing.join(", ")));
        };
        let mtu = mtu.parse().map_err(|error| format!("{MTU} is {mtu:?}: {error}"))?;
        let mut seen = HashSet::new();
        networks.retain(|network| seen.insert(*network));
        Ok(SubnetEnv { networks, subnets, mtu, ip_masq: ip_masq == "true" })
    }
}

const NETWORKS: [&str; 2] = ["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"];
const SUBNETS: [&str; 2] = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"];
const MTU: &str = "FLANNEL_MTU";
const IP_MASQ: &str = "FLANNEL_IPMASQ";

/// A value without blanks and quotation marks around it.
fn bare(value: &str) -> &str {
    let value = value.trim();
    let quoted = ['"', '\''].into_iter().find_map(|mark| value.strip_prefix(mark)?.strip_suffix(mark));
    quoted.unwrap_or(value).trim()
}

/// A network, whatever host bits it is written with.
fn masked(text: &str) -> Result<IpNetwork, String> {
    let written = parse_cidr(text.trim()).map_err(|_| format!("invalid CIDR address: {}", text.trim()))?;
    Ok(IpNetwork::new(written.network(), written.prefix()).unwrap_or(written))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let SubnetEnv { networks, subnets, mtu, ip_masq } = SubnetEnv::parse(text, "FILE")?;
        let joined = |list: Vec<IpNetwork>| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        Ok(format!("{} | {} | {mtu} | {ip_masq}", joined(networks), joined(subnets)))
    }

    const BOTH: &str = "FLANNEL_NETWORK=10.1.0.0/16,192.168.1.1/16,10.1.3.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n\
        FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn networks_and_subnets_are_masked_and_each_stands_once() {
        assert_eq!(
            read(BOTH),
            Ok("10.1.0.0/16 192.168.0.0/16 fc00::/48 | 10.1.17.0/24 fc00::/64 | 1472 | true".into())
        );
    }

    #[test]
    fn quotation_marks_blanks_and_other_line_ends_change_nothing() {
        let quoted: String = BOTH.lines().map(|line| line.replacen('=', "=\"", 1) + "\"\r\n").collect();
        let single: String = BOTH.lines().map(|line| line.replacen('=', " = ' ", 1) + " ' \n").collect();
        let spaced = BOTH.replace(',', " , ").replace('\n', " \r\n\n\t");
        let among = format!("# FLANNEL_MTU=1\nFLANNEL_MTU\nOTHER=x\nFLANNEL_MTU=1\nFLANNEL_IPMASQ=\n{BOTH}");
        for text in [quoted, single, spaced, among] {
            assert_eq!(read(&text), read(BOTH), "{text}");
        }
    }

    #[test]
    fn one_family_is_enough_and_an_empty_value_is_none() {
        let ipv6 = "FLANNEL_NETWORK=\nFLANNEL_SUBNET=\"\"\nFLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n\
            FLANNEL_MTU=1450\nFLANNEL_IPMASQ=TRUE";
        assert_eq!(read(ipv6), Ok("fc00::/48 | fc00::/64 | 1450 | false".into()), "only `true` is true");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let all = "FILE is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ";
        assert_eq!(read(""), Err(all.into()));
        let without =
            |key: &str| read(&BOTH.lines().filter(|line| !line.starts_with(key)).collect::<Vec<_>>().join("\n"));
        assert_eq!(without("FLANNEL_MTU"), Err("FILE is missing FLANNEL_MTU".into()));
        assert!(without("FLANNEL_SUBNET").is_ok());
        let with = |line: &str| read(&format!("{BOTH}{line}\n")).unwrap_err();
        assert_eq!(with("FLANNEL_SUBNET=10.1.17.1"), "invalid CIDR address: 10.1.17.1");
        assert_eq!(with("FLANNEL_NETWORK=10.1.0.0/16,"), "invalid CIDR address: ");
        assert!(
            with("FLANNEL_MTU=-1").starts_with("FLANNEL_MTU is \"-1\": invalid digit"),
            "{}",
            with("FLANNEL_MTU=-1")
        );
    }
}
