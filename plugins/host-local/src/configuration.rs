//! The configuration, and its validation.

use std::net::IpAddr;
use std::path::PathBuf;

use cnikit::types::{Args, IpRange, NetConf, Route, Value, Version, limit};
use cnikit::{Error, Result, one_address_a_family};
use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnikit_reservations::{RangeConfig, RangeSet};

use crate::refused::refused;
use crate::text;

/// The default of `dataDir`, in which each network has a directory.
pub const DATA_DIR: &str = "/var/lib/cni/networks";

/// The keys under `ipam`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostLocalPlugin {
    /// The directory in which each network has its own. Default: `/var/lib/cni/networks`.
    data_dir: String,
    /// A resolv.conf(5) whose content becomes the result's `dns`. Default: none.
    resolv_conf: String,
    /// Routes for the result, unchanged.
    routes: Vec<Route>,
    /// Lists of ranges. An attachment gets one address of each list.
    ranges: Vec<Vec<KeysOfRange>>,
    /// One range, in the old form: it is a list of its own, before those of `ranges`. Without it the three keys below are ignored.
    #[serde(deserialize_with = "text::subnet")]
    subnet: Option<IpNetwork>,
    /// The first address of `subnet` that is allocated.
    #[serde(deserialize_with = "text::address")]
    range_start: Option<IpAddr>,
    /// The last address of `subnet` that is allocated.
    #[serde(deserialize_with = "text::address")]
    range_end: Option<IpAddr>,
    /// The gateway of `subnet`.
    #[serde(deserialize_with = "text::address")]
    gateway: Option<IpAddr>,
}

/// The keys of one range.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KeysOfRange {
    #[serde(deserialize_with = "text::subnet")]
    subnet: Option<IpNetwork>,
    #[serde(deserialize_with = "text::address")]
    range_start: Option<IpAddr>,
    #[serde(deserialize_with = "text::address")]
    range_end: Option<IpAddr>,
    #[serde(deserialize_with = "text::address")]
    gateway: Option<IpAddr>,
}

/// The validated configuration, from `ipam`, `runtimeConfig`, `args` and `CNI_ARGS`.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// The range sets, those of `runtimeConfig.ipRanges` first. Their order gives the files `last_reserved_ip.N` their numbers.
    pub(crate) sets: Vec<RangeSet>,
    /// Requested addresses, from `CNI_ARGS`, `args.cni.ips` and `runtimeConfig.ips` together.
    pub(crate) wanted: Vec<IpAddr>,
    /// Routes for the result.
    pub(crate) routes: Vec<Route>,
    /// The resolv.conf(5) for the result's `dns`.
    pub(crate) resolv_conf: Option<String>,
}

impl From<KeysOfRange> for RangeConfig {
    fn from(keys: KeysOfRange) -> RangeConfig {
        RangeConfig { subnet: keys.subnet, start: keys.range_start, end: keys.range_end, gateway: keys.gateway }
    }
}

impl HostLocalPlugin {
    pub(crate) fn checked(&self, conf: &NetConf, args: &Args, version: Version) -> Result<Checked> {
        let sets = self.sets(conf)?;
        validate(&sets, version)?;
        Ok(Checked {
            sets,
            wanted: wanted(conf, args)?,
            routes: self.routes.clone(),
            resolv_conf: (!self.resolv_conf.is_empty()).then(|| self.resolv_conf.clone()),
        })
    }

    fn sets(&self, conf: &NetConf) -> Result<Vec<RangeSet>> {
        let mut configured = of_runtime(conf)?;
        if self.subnet.is_some() {
            configured.push(vec![RangeConfig {
                subnet: self.subnet,
                start: self.range_start,
                end: self.range_end,
                gateway: self.gateway,
            }]);
        }
        for set in &self.ranges {
            configured.push(set.iter().cloned().map(RangeConfig::from).collect());
        }
        if let Err(error) = limit::count("range sets", configured.len(), limit::RANGE_SETS) {
            return Err(Error::config(format!("ipam {error}")).hint("an attachment gets one address of each set"));
        }
        let ranges = configured.iter().map(Vec::len).sum();
        if let Err(error) = limit::count("ranges", ranges, limit::RANGES) {
            return Err(Error::config(format!("ipam {error}")).hint("join ranges that follow one another"));
        }
        let mut sets = Vec::with_capacity(configured.len());
        for (n, set) in configured.iter().enumerate() {
            match RangeSet::try_from(&set[..]) {
                Ok(set) => sets.push(set),
                Err(error) => return Err(refused(error).context(format_args!("invalid range set {n}"))),
            }
        }
        Ok(sets)
    }
}

/// The range sets that an ADD with this configuration allocates from, for tools that inspect a node.
///
/// # Errors
/// A key below `ipam` has the wrong type, or a range is invalid.
pub fn ranges(conf: &NetConf) -> Result<Vec<RangeSet>> {
    conf.read_at::<HostLocalPlugin>(&["ipam"])?.unwrap_or_default().sets(conf)
}

/// The directory of the networks' directories. An invalid value is ignored, because DEL and GC must not fail because of the key.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    match conf.at(&["ipam", "dataDir"]) {
        Some(Value::String(path)) if !path.is_empty() => path.into(),
        _ => DATA_DIR.into(),
    }
}

/// Validates the sets together.
fn validate(sets: &[RangeSet], version: Version) -> Result<()> {
    if sets.is_empty() {
        return Err(Error::config("no IP ranges specified").hint("give `ipam` a `subnet`, or `ranges`"));
    }
    one_address_a_family(version, sets.iter().map(RangeSet::is_ipv4))?;
    let Some((one, other)) = RangeSet::overlap(sets) else { return Ok(()) };
    Err(Error::config(format!("range set {one} overlaps with {other}")).hint(
        "an address may be in one set only; sets of runtimeConfig.ipRanges come first, then `subnet`, then `ranges`",
    ))
}

/// The capability `ipRanges`.
fn of_runtime(conf: &NetConf) -> Result<Vec<Vec<RangeConfig>>> {
    let mut sets = Vec::new();
    for set in conf.capabilities().ip_ranges()? {
        sets.push(set.iter().map(range_config).collect());
    }
    Ok(sets)
}

fn range_config(range: &IpRange) -> RangeConfig {
    RangeConfig { subnet: range.subnet, start: range.range_start, end: range.range_end, gateway: range.gateway }
}

/// The requested addresses.
fn wanted(conf: &NetConf, args: &Args) -> Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    if let Some(text) = args.get("IP")
        && !text.is_empty()
    {
        let Ok(ip) = text::wanted(text) else {
            let refused = format!("ARGS: error parsing value of pair \"IP={text}\": invalid IP address {text}");
            return Err(Error::environment(refused).hint("CNI_ARGS has one address: IP=10.1.2.3"));
        };
        all.push(ip);
    }
    for place in [["args", "cni", "ips"].as_slice(), &["runtimeConfig", "ips"]] {
        let texts: Vec<String> = conf.read_at(place)?.unwrap_or_default();
        for (n, text) in texts.iter().enumerate() {
            match text::wanted(text) {
                Ok(ip) => all.push(ip),
                Err(error) => {
                    return Err(Error::config(format!("{}[{n}]: {error}", place.join(".")))
                        .hint("request an address such as 10.1.2.3, or remove it from the list"));
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use cnikit::code;

    use super::*;

    #[derive(Deserialize)]
    struct Conf {
        ipam: HostLocalPlugin,
    }

    /// Reads a configuration with these members in `ipam` and these next to it.
    fn read_all(ipam: &str, beside: &str, args: &str, version: Version) -> Result<Checked> {
        let conf = NetConf::parse(format!(r#"{{"name":"n","ipam":{{{ipam}}}{beside}}}"#).as_bytes()).unwrap();
        let read: Conf = conf.read()?;
        read.ipam.checked(&conf, &Args::parse(args).unwrap(), version)
    }

    fn of(ipam: &str, beside: &str) -> Result<Checked> {
        read_all(ipam, beside, "", Version::NEWEST)
    }

    fn sets(ipam: &str, beside: &str) -> String {
        let texts: Vec<String> = of(ipam, beside).unwrap().sets.iter().map(ToString::to_string).collect();
        texts.join(" | ")
    }

    fn wanted(beside: &str, args: &str) -> Result<String> {
        let checked = read_all(r#""subnet":"10.0.0.0/24""#, beside, args, Version::NEWEST)?;
        let texts: Vec<String> = checked.wanted.iter().map(ToString::to_string).collect();
        Ok(texts.join(" "))
    }

    #[test]
    fn more_sets_than_are_served_are_refused_before_any_address_is_taken() {
        let sets = |count: usize| {
            let set = |n: usize| format!(r#"[{{"subnet":"10.{}.{}.0/24"}}]"#, n / 256, n % 256);
            of(&format!(r#""ranges":[{}]"#, (0..count).map(set).collect::<Vec<_>>().join(",")), "")
        };
        assert!(sets(limit::RANGE_SETS).is_ok());
        let error = sets(limit::RANGE_SETS + 1).unwrap_err();
        assert_eq!(
            (error.code, &*error.msg),
            (code::INVALID_CONFIG, "ipam has 257 range sets, and at most 256 are allowed")
        );
    }

    #[test]
    fn more_ranges_than_the_limit_are_refused_in_any_number_of_sets() {
        let subnet = |n: usize| format!(r#"{{"subnet":"10.{}.{}.0/24"}}"#, n / 256, n % 256);
        let ranges = |sets: usize, each: usize| {
            let set = |n: usize| (n * each..(n + 1) * each).map(subnet).collect::<Vec<_>>().join(",");
            of(&format!(r#""ranges":[[{}]]"#, (0..sets).map(set).collect::<Vec<_>>().join("],[")), "")
        };
        assert!(ranges(1, limit::RANGES).is_ok() && ranges(16, limit::RANGES / 16).is_ok());
        for (sets, each) in [(1, limit::RANGES + 1), (17, limit::RANGES / 16)] {
            let error = ranges(sets, each).unwrap_err();
            assert!(error.msg.starts_with("ipam has 4") && error.msg.ends_with("ranges, and at most 4096 are allowed"));
        }
    }

    #[test]
    fn sets_come_from_the_runtime_then_the_old_keys_then_the_list() {
        let ipam = r#""ranges":[[{"subnet":"10.3.0.0/30"}],[{"SUBNET":"2001:db8::/126"}]],"Subnet":"10.2.0.0/30","gateway":"""#;
        let runtime = r#","runtimeConfig":{"IPRanges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.1.1.0/30"}]]}"#;
        let all =
            "10.1.0.1-10.1.0.2,10.1.1.1-10.1.1.2 | 10.2.0.1-10.2.0.2 | 10.3.0.1-10.3.0.2 | 2001:db8::1-2001:db8::3";
        assert_eq!(sets(ipam, runtime), all);
    }

    #[test]
    fn a_flat_list_of_the_runtime_is_one_set_a_family() {
        let runtime = r#","runtimeConfig":{"ipRanges":[{"subnet":"10.1.0.0/30"},{"subnet":"2001:db8::/126"},{"subnet":"10.2.0.0/30"}]}"#;
        assert_eq!(sets("", runtime), "10.1.0.1-10.1.0.2,10.2.0.1-10.2.0.2 | 2001:db8::1-2001:db8::3");
        assert_eq!(sets(r#""subnet":"10.0.0.0/30""#, r#","runtimeConfig":{"ipRanges":null}"#), "10.0.0.1-10.0.0.2");
        let refused = of("", r#","runtimeConfig":{"ipRanges":[{"rangeStart":"10.0.0.1"}]}"#).unwrap_err();
        assert_eq!((refused.code, refused.msg.as_str()), (7, "invalid range set 0: IP <nil> not v4 nor v6"));
        let refused = of("", r#","runtimeConfig":{"ipRanges":[[{"subnet":"bad"}]]}"#).unwrap_err();
        assert!(refused.code == 7 && refused.msg.starts_with("runtimeConfig.ipRanges[0][0].subnet: "), "{refused}");
    }

    #[test]
    fn the_other_old_keys_mean_nothing_without_their_subnet() {
        let ipam = r#""rangeStart":"192.0.2.1","gateway":"192.0.2.1","ranges":[[{"subnet":"10.0.0.0/30"}]]"#;
        assert_eq!(sets(ipam, ""), "10.0.0.1-10.0.0.2");
    }

    #[test]
    fn requests_of_all_three_ways_add_up() {
        let beside = r#","args":{"cni":{"ips":["10.0.0.8/30","10.0.0.9"]}},"runtimeConfig":{"ips":["2001:db8::7/64"]}"#;
        assert_eq!(wanted(beside, "IP=10.0.0.7/8").unwrap(), "10.0.0.7 10.0.0.8 10.0.0.9 2001:db8::7");
        assert_eq!(wanted("", "IP=10.0.0.6;IP=10.0.0.7").unwrap(), "10.0.0.7", "the last of two");
        assert_eq!(wanted("", "IP=").unwrap(), "");
    }

    #[test]
    fn a_requested_address_that_is_invalid_is_refused_with_its_source() {
        let refused = |beside: &str, args: &str| {
            let refused = wanted(beside, args).unwrap_err();
            (refused.code, refused.msg)
        };
        let bogus = "ARGS: error parsing value of pair \"IP=bogus\": invalid IP address bogus";
        assert_eq!(refused("", "IP=bogus"), (code::INVALID_ENVIRONMENT, bogus.into()));
        let empty = "args.cni.ips[1]: cannot understand ip: IP <nil> not v4 nor v6";
        assert_eq!(refused(r#","args":{"cni":{"ips":["10.0.0.8",""]}}"#, ""), (code::INVALID_CONFIG, empty.into()));
        let (code, text) = refused(r#","runtimeConfig":{"ips":["10.0.0.8",null]}"#, "");
        assert!(code == code::DECODE && text.starts_with("runtimeConfig.ips[1]: "), "{text}");
        let (code, text) = refused(r#","runtimeConfig":{"ips":"10.0.0.8"}"#, "");
        assert!(code == code::DECODE && text.starts_with("runtimeConfig.ips: "), "{text}");
    }

    #[test]
    fn every_wrong_value_is_refused_in_the_words_people_search_for() {
        let set = |ranges: &str| format!(r#""ranges":[[{{"subnet":"10.9.0.0/24"}}],[{ranges}]]"#);
        let cases = [
            (String::new(), "no IP ranges specified"),
            (set(""), "invalid range set 1: empty range set"),
            (set("{}"), "invalid range set 1: IP <nil> not v4 nor v6"),
            (set(r#"{"subnet":"bad"}"#), "invalid CIDR address: bad"),
            (set(r#"{"subnet":""}"#), "invalid CIDR address: "),
            (set(r#"{"subnet":"10.0.0.0/24","rangeStart":"x"}"#), "invalid IP address: x"),
            (set(r#"{"subnet":"10.0.0.0/31"}"#), "invalid range set 1: Network 10.0.0.0/31 too small to allocate from"),
            (set(r#"{"subnet":"::ffff:10.0.0.0/120"}"#), "invalid range set 1: IPNet IP and Mask version mismatch"),
            (set(r#"{"subnet":"10.0.0.3/24"}"#), "invalid range set 1: Network has host bits set."),
            (
                set(r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.1.1"}"#),
                "RangeStart 10.0.1.1 not in network 10.0.0.0/24",
            ),
            (set(r#"{"subnet":"10.0.0.0/24","rangeEnd":"10.0.1.1"}"#), "RangeEnd 10.0.1.1 not in network 10.0.0.0/24"),
            (
                set(r#"{"subnet":"10.0.0.0/24"},{"subnet":"2001:db8::/64"}"#),
                "invalid range set 1: mixed address families",
            ),
            (
                set(r#"{"subnet":"10.0.0.0/24"},{"subnet":"10.0.0.0/16"}"#),
                "10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.255.254 overlap",
            ),
            (set(r#"{"subnet":"10.0.0.0/8"}"#), "range set 0 overlaps with 1"),
        ];
        for (ipam, text) in cases {
            let refused = of(&ipam, "").unwrap_err();
            assert_eq!(refused.code, code::INVALID_CONFIG, "{ipam}");
            assert!(refused.msg.contains(text), "{ipam}: {} instead of {text}", refused.msg);
        }
    }

    #[test]
    fn every_key_of_a_wrong_type_is_a_decode_error() {
        let keys = ["dataDir", "resolvConf", "subnet", "rangeStart", "rangeEnd", "gateway"];
        let texts = keys.iter().flat_map(|key| ["1", "true", "[]", "{}"].map(|value| format!(r#""{key}":{value}"#)));
        let lists = ["ranges", "routes"]
            .iter()
            .flat_map(|key| ["1", r#""x""#, "{}", "[1]", "[null]"].map(|value| format!(r#""{key}":{value}"#)));
        for ipam in texts.chain(lists) {
            assert_eq!(of(&ipam, "").unwrap_err().code, code::DECODE, "{ipam}");
        }
        for key in keys {
            assert_eq!(
                of(&format!(r#""{key}":null,"ranges":[[{{"subnet":"10.0.0.0/30"}}]]"#), "").unwrap().sets.len(),
                1
            );
        }
    }

    #[test]
    fn two_addresses_of_a_family_need_a_version_with_lists() {
        let ipam = r#""ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.1.0.0/24"}]]"#;
        let refused = read_all(ipam, "", "", Version::V0_2_0).unwrap_err();
        assert_eq!(refused.msg, "CNI version 0.2.0 does not support more than 1 address per family");
        assert!(read_all(ipam, "", "", Version::V0_3_0).is_ok());
        let dual = r#""ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"2001:db8::/64"}]]"#;
        assert!(read_all(dual, "", "", Version::V0_1_0).is_ok());
    }

    #[test]
    fn the_data_directory_is_found_in_an_invalid_configuration() {
        let dir = |text: &str| data_dir(&NetConf::parse(text.as_bytes()).unwrap()).display().to_string();
        assert_eq!(dir(r#"{"ipam":{"dataDir":"/x","ranges":7}}"#), "/x");
        for text in ["{}", r#"{"ipam":7}"#, r#"{"ipam":{"dataDir":""}}"#, r#"{"ipam":{"DATADIR":7}}"#] {
            assert_eq!(dir(text), DATA_DIR, "{text}");
        }
    }
}
