//! The file that flanneld writes for this host.

use std::collections::{HashMap, HashSet};

use cnikit::types::parse_cidr;
use cnikit::{Error, Result, code};
use ipnetwork::IpNetwork;

/// The largest file that is read, in bytes. flanneld writes some hundred bytes.
const LIMIT: usize = 1 << 20;

/// The content of the file.
#[derive(Debug, PartialEq)]
pub(crate) struct SubnetEnv {
    /// The networks of all hosts: IPv4, then IPv6, without duplicates.
    pub(crate) networks: Vec<IpNetwork>,
    /// The subnets of this host: IPv4, then IPv6.
    pub(crate) subnets: Vec<IpNetwork>,
    /// The MTU of the tunnel, in bytes.
    pub(crate) mtu: u32,
    /// Whether flanneld masquerades.
    pub(crate) ip_masq: bool,
}

impl SubnetEnv {
    /// Reads the file. If it does not exist the code is 11, because flanneld will write it.
    pub(crate) fn read(path: &str) -> Result<SubnetEnv> {
        match cnikit_store::read(path, LIMIT) {
            Ok(content) => match SubnetEnv::parse(&String::from_utf8_lossy(&content), path) {
                Ok(env) => Ok(env),
                Err(text) => Err(not_loaded(Error::config(text))
                    .hint(format!("flanneld writes {path}: check that it runs on this node, and restart it"))),
            },
            Err(error) if error.is_absent() => {
                Err(not_loaded(Error::new(code::TRY_AGAIN, error.to_string())).hint(format!(
                    "flanneld has not written {path} yet: check that it runs on this node, and that `subnetFile` is the file that it writes"
                )))
            }
            Err(error) => Err(not_loaded(error.into())),
        }
    }

    /// Parses lines of `KEY=VALUE`, whose value may be in quotation marks. Other lines are skipped. Of several lines with one key
    /// the last counts. An empty value counts as absent.
    fn parse(text: &str, path: &str) -> Result<SubnetEnv, String> {
        let mut values = HashMap::new();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=') {
                values.insert(key.trim(), bare(value));
            }
        }
        values.retain(|_, value| !value.is_empty());
        let mut networks = listed(&values, NETWORKS)?;
        let subnets = listed(&values, SUBNETS)?;
        let mut missing = Vec::new();
        for keys in [NETWORKS, SUBNETS] {
            if keys.iter().all(|key| !values.contains_key(key)) {
                missing.extend(keys);
            }
        }
        for key in [MTU, IP_MASQ] {
            if !values.contains_key(key) {
                missing.push(key);
            }
        }
        let (Some(mtu), Some(ip_masq), []) = (values.get(MTU), values.get(IP_MASQ), &missing[..]) else {
            return Err(format!("{path} is missing {}", missing.join(", ")));
        };
        let mtu = mtu.parse().map_err(|error| format!("{MTU} is {mtu:?}: {error}"))?;
        let mut seen = HashSet::new();
        networks.retain(|network| seen.insert(*network));
        Ok(SubnetEnv { networks, subnets, mtu, ip_masq: *ip_masq == "true" })
    }
}

fn not_loaded(error: Error) -> Error {
    error.context("failed to load flannel 'subnet.env' file").detail("Check the flannel pod log for this node")
}

/// The networks that these keys list, with a comma between them.
fn listed(values: &HashMap<&str, &str>, keys: [&str; 2]) -> Result<Vec<IpNetwork>, String> {
    let mut networks = Vec::new();
    for key in keys {
        if let Some(list) = values.get(key) {
            for text in list.split(',') {
                networks.push(masked(text)?);
            }
        }
    }
    Ok(networks)
}

const NETWORKS: [&str; 2] = ["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"];
const SUBNETS: [&str; 2] = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"];
const MTU: &str = "FLANNEL_MTU";
const IP_MASQ: &str = "FLANNEL_IPMASQ";

/// A value without blanks and quotation marks around it.
fn bare(value: &str) -> &str {
    let trimmed = value.trim();
    for mark in ['"', '\''] {
        if let Some(quoted) = trimmed.strip_prefix(mark).and_then(|rest| rest.strip_suffix(mark)) {
            return quoted.trim();
        }
    }
    trimmed
}

/// A network without its host bits.
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
    fn networks_and_subnets_are_masked_and_deduplicated() {
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
    fn missing_and_invalid_keys_are_named() {
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
