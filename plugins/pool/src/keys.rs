//! The keys under `ipam`, their validation, and the addresses and the pool that a request names.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use cnikit::types::{Args, NetConf, Route, Value, limit, parse_cidr, parse_ip};
use cnikit::{Error, KeySource, Result, code};
use cnikit_pool::{AGENT_SOCKET, LocalPools, PoolFamily};
use serde::Deserialize;

/// The default of `dataDir`, in which each network has a directory. It is that of host-local.
pub const DATA_DIR: &str = "/var/lib/cni/networks";
/// The default of `agentConfig`.
const AGENT_CONFIG: &str = "/etc/cnikit/agent.json";
/// The agent's program, in the directory of the plugin, or where its package has it.
const AGENT: &str = "cnikit-agent";
const PACKAGED_AGENT: &str = "/usr/bin/cnikit-agent";
/// How long ADD waits for the agent by default, in seconds.
const TIMEOUT: u32 = 20;
/// The default of `minFree` is at most this.
const MIN_FREE: u32 = 16;

/// The keys under `ipam`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolKeys {
    /// The pool, unless the namespace of the pod has another one.
    pool: String,
    /// Pools that `args.cni.pool` may name besides the one that would be used without it. Default: none.
    allowed_pools: Vec<String>,
    /// Whether the addresses stay with the name of the pod. Default: no.
    sticky: bool,
    /// The families, `v4` and `v6`, of which an attachment gets one address each. Default: those that the pool has.
    families: Vec<PoolFamily>,
    /// Routes for the result, unchanged.
    routes: Vec<Route>,
    /// The directory in which each network has its own, and the agent has its files. Default: `/var/lib/cni/networks`.
    data_dir: String,
    /// How many free addresses of each family the network should have: if there are fewer, the agent is told. Default: a quarter of
    /// a block, at most 16.
    min_free: Option<u32>,
    /// How long ADD waits for the agent if no address is free, in seconds. Default, and 0: 20.
    timeout: u32,
    /// The socket of the agent. Default: `/run/cnikit/agent.sock`.
    agent_socket: String,
    /// The agent's program, which is run if no agent listens. Default: `cnikit-agent` in the directory of the plugin, otherwise in
    /// `/usr/bin`.
    agent: String,
    /// The agent's configuration; without this file the program is not run. Default: `/etc/cnikit/agent.json`.
    agent_config: String,
}

/// The configuration, validated.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "PoolKeys")]
pub struct PoolPlugin {
    pool: String,
    allowed_pools: Vec<String>,
    pub(crate) sticky: bool,
    /// Sorted; empty: those of the pool.
    pub(crate) families: Vec<PoolFamily>,
    pub(crate) routes: Vec<Route>,
    min_free: Option<u32>,
    pub(crate) timeout: Duration,
    pub(crate) agent_socket: PathBuf,
    agent: Option<PathBuf>,
    pub(crate) agent_config: PathBuf,
}

impl TryFrom<PoolKeys> for PoolPlugin {
    type Error = String;

    fn try_from(keys: PoolKeys) -> Result<PoolPlugin, String> {
        let path = |key: &str, text: &str, default: &str| match text {
            "" => Ok(PathBuf::from(default)),
            text if text.starts_with('/') => Ok(PathBuf::from(text)),
            text => Err(format!("{key}: {text:?} is not an absolute path; hint: begin it with a slash")),
        };
        let mut families = keys.families;
        families.sort_unstable();
        families.dedup();
        let agent = path("agent", &keys.agent, "")?;
        Ok(PoolPlugin {
            pool: keys.pool,
            allowed_pools: keys.allowed_pools,
            sticky: keys.sticky,
            families,
            routes: keys.routes,
            min_free: keys.min_free,
            timeout: Duration::from_secs(if keys.timeout == 0 { TIMEOUT } else { keys.timeout }.into()),
            agent_socket: path("agentSocket", &keys.agent_socket, AGENT_SOCKET)?,
            agent: (!agent.as_os_str().is_empty()).then_some(agent),
            agent_config: path("agentConfig", &keys.agent_config, AGENT_CONFIG)?,
        })
    }
}

/// The pool that `args.cni.pool` names, or an empty text.
///
/// # Errors
/// It is not a text (code 6).
pub(crate) fn requested_pool(conf: &NetConf) -> Result<&str> {
    match conf.at(&["args", "cni", "pool"]) {
        None => Ok(""),
        Some(Value::String(name)) => Ok(name),
        Some(other) => Err(Error::new(code::DECODE, format!("{}: {other} is not a text", KeySource::ArgsCni("pool")))),
    }
}

impl PoolPlugin {
    /// The pool of a request: that of the pod's namespace, otherwise that of the configuration. The `requested` one, if it is not
    /// empty, may be another one only if `allowedPools` names it, because tenants can write it.
    pub(crate) fn select(&self, requested: &str, args: &Args, pools: Option<&LocalPools>) -> Result<String> {
        let namespace = args.get("K8S_POD_NAMESPACE").unwrap_or_default();
        let of_namespace = pools.and_then(|pools| pools.select.get(namespace));
        let usual = of_namespace.unwrap_or(&self.pool);
        if !requested.is_empty() && requested != usual {
            if self.allowed_pools.iter().any(|allowed| allowed == requested) {
                return Ok(requested.to_owned());
            }
            let source = KeySource::ArgsCni("pool");
            return Err(Error::config(format!("{source}: pool {requested:?} is not one that this network allows"))
                .hint("add it to `ipam.allowedPools` in the network's configuration, or remove the argument"));
        }
        if usual.is_empty() {
            let text = match namespace {
                "" => "no pool is configured".to_owned(),
                namespace => format!("no pool is configured, and namespace {namespace} has none"),
            };
            return Err(Error::config(text).hint("set `ipam.pool` to the name of a pool"));
        }
        Ok(usual.clone())
    }

    /// The pool that STATUS is about; `None` if each namespace has its own, and a pod of another namespace gets none.
    pub(crate) fn pool_of_status(&self, conf: &NetConf, pools: Option<&LocalPools>) -> Result<Option<String>> {
        let names_none = self.pool.is_empty() && conf.at(&["args", "cni", "pool"]).is_none();
        if names_none && pools.is_some_and(|pools| !pools.select.is_empty()) {
            return Ok(None);
        }
        self.select(requested_pool(conf)?, &Args::default(), pools).map(Some)
    }

    /// How many free addresses there should be, with blocks of this many addresses.
    pub(crate) fn min_free(&self, block: u128) -> u32 {
        self.min_free.unwrap_or_else(|| u32::try_from(block / 4).unwrap_or(u32::MAX).min(MIN_FREE))
    }

    /// The agent's program; `None` if it is not known where this plugin is.
    pub(crate) fn agent(&self) -> Option<PathBuf> {
        if self.agent.is_some() {
            return self.agent.clone();
        }
        let beside = std::env::current_exe().ok()?.parent()?.join(AGENT);
        Some(if beside.exists() { beside } else { PACKAGED_AGENT.into() })
    }
}

/// The directory of the networks' directories. An invalid value is ignored, because DEL and GC must not fail because of the key.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    match conf.at(&["ipam", "dataDir"]) {
        Some(Value::String(path)) if !path.is_empty() => path.into(),
        _ => DATA_DIR.into(),
    }
}

/// The requested addresses: `IP=` of `CNI_ARGS`, `args.cni.ips` and the capability `ips`, each once. A prefix length is ignored.
pub(crate) fn requested(conf: &NetConf, args: &Args) -> Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    if let Some(text) = args.get("IP")
        && !text.is_empty()
    {
        let invalid = |why| Error::environment(format!("CNI_ARGS IP: {why}")).hint("it has one address: IP=10.1.2.3");
        add(&mut all, address(text).map_err(invalid)?);
    }
    for place in [["args", "cni", "ips"].as_slice(), &["runtimeConfig", "ips"]] {
        let texts: Vec<String> = conf.read_at(place)?.unwrap_or_default();
        limit::count("requested addresses", texts.len(), limit::RESULT)?;
        for (n, text) in texts.iter().enumerate() {
            let invalid = |why| {
                Error::config(format!("{}[{n}]: {why}", place.join(".")))
                    .hint("request an address such as 10.1.2.3, or remove it from the list")
            };
            add(&mut all, address(text).map_err(invalid)?);
        }
    }
    Ok(all)
}

fn add(all: &mut Vec<IpAddr>, address: IpAddr) {
    if !all.contains(&address) {
        all.push(address);
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    if text.contains('/') { parse_cidr(text).map(|cidr| cidr.ip()) } else { parse_ip(text) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn plugin(ipam: &str) -> Result<PoolPlugin> {
        let conf = NetConf::parse(format!(r#"{{"name":"n","ipam":{{{ipam}}}}}"#).as_bytes()).unwrap();
        Ok(conf.read_at::<PoolPlugin>(&["ipam"])?.unwrap())
    }

    fn selected(ipam: &str, beside: &str, args: &str) -> Result<String> {
        let conf = NetConf::parse(format!("{{{beside}}}").as_bytes()).unwrap();
        let select = BTreeMap::from([("team-a".to_owned(), "red".to_owned())]);
        let pools = LocalPools { pools: Vec::new(), select };
        plugin(ipam)?.select(requested_pool(&conf)?, &Args::parse(args).unwrap(), Some(&pools))
    }

    #[test]
    fn the_namespace_precedes_the_configuration_and_args_choose_among_the_allowed() {
        let both = r#""pool":"blue","allowedPools":["green"]"#;
        let green = r#""args":{"cni":{"pool":"green"}}"#;
        let in_a = "K8S_POD_NAMESPACE=team-a";
        assert_eq!(selected(both, "", "").unwrap(), "blue");
        assert_eq!(selected(both, "", "K8S_POD_NAMESPACE=other").unwrap(), "blue");
        assert_eq!(selected(both, "", in_a).unwrap(), "red");
        assert_eq!(selected("", "", in_a).unwrap(), "red");
        assert_eq!(selected(both, green, in_a).unwrap(), "green");
        assert_eq!(selected(both, r#""args":{"cni":{"pool":"red"}}"#, in_a).unwrap(), "red", "its own");
        assert_eq!(selected(both, r#""args":{"cni":{"pool":""}}"#, "").unwrap(), "blue");
    }

    #[test]
    fn a_tenant_gets_no_pool_that_the_network_does_not_allow() {
        for (ipam, beside, args, code, says) in [
            (r#""pool":"blue""#, r#""args":{"cni":{"pool":"red"}}"#, "", 7, "args.cni.pool: pool \"red\" is not one"),
            (
                r#""pool":"blue""#,
                r#""args":{"cni":{"pool":"blue"}}"#,
                "K8S_POD_NAMESPACE=team-a",
                7,
                "pool \"blue\" is not one",
            ),
            (r#""pool":"blue""#, r#""args":{"cni":{"pool":7}}"#, "", code::DECODE, "args.cni.pool: 7 is not a text"),
            ("", "", "", 7, "no pool is configured"),
            ("", "", "K8S_POD_NAMESPACE=x", 7, "no pool is configured, and namespace x has none"),
        ] {
            let error = selected(ipam, beside, args).unwrap_err();
            assert!(error.code == code && error.msg.contains(says), "{error}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_page() {
        let plugin = plugin(r#""pool":"blue""#).unwrap();
        assert_eq!(plugin.agent_socket.to_str(), Some("/run/cnikit/agent.sock"));
        assert_eq!(plugin.agent_config.to_str(), Some("/etc/cnikit/agent.json"));
        assert_eq!(plugin.timeout, Duration::from_secs(20));
        assert!(plugin.agent().unwrap().ends_with("cnikit-agent"));
        assert_eq!([64, 16, 1, u128::MAX].map(|block| plugin.min_free(block)), [16, 4, 0, 16]);
    }

    #[test]
    fn invalid_keys_are_refused() {
        for (ipam, says) in [
            (r#""families":["v5"]"#, "v5"),
            (r#""agentSocket":"run/x""#, "agentSocket: \"run/x\" is not an absolute path"),
            (r#""agent":"cnikit-agent""#, "agent: \"cnikit-agent\" is not an absolute path"),
            (r#""agentConfig":"x""#, "agentConfig"),
            (r#""minFree":-1"#, "minFree"),
        ] {
            let error = plugin(ipam).unwrap_err();
            assert!(error.msg.contains(says), "{ipam}: {error}");
        }
        let families = plugin(r#""families":["v6","v4","v6"]"#).unwrap().families;
        assert_eq!(families, [PoolFamily::V4, PoolFamily::V6]);
    }

    #[test]
    fn requests_of_all_three_ways_add_up() {
        let conf = r#"{"args":{"cni":{"ips":["10.0.0.8/30","10.0.0.7"]}},"runtimeConfig":{"ips":["2001:db8::7/64"]}}"#;
        let conf = NetConf::parse(conf.as_bytes()).unwrap();
        let texts: Vec<String> =
            requested(&conf, &Args::parse("IP=10.0.0.7/8").unwrap()).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.7", "10.0.0.8", "2001:db8::7"]);
        let none = NetConf::parse(b"{}").unwrap();
        let error = requested(&none, &Args::parse("IP=x").unwrap()).unwrap_err();
        assert!(error.code == code::INVALID_ENVIRONMENT && error.msg.starts_with("CNI_ARGS IP: "), "{error}");
        let conf = NetConf::parse(br#"{"runtimeConfig":{"ips":["10.0.0.8",""]}}"#).unwrap();
        let error = requested(&conf, &Args::default()).unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("runtimeConfig.ips[1]: "), "{error}");
    }
}
