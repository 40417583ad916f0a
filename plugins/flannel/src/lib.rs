//! Attaches containers to flannel's network, by a delegate, which is bridge unless another plugin is configured.
//!
//! flanneld writes the host's subnet, the networks of all hosts and the MTU of its tunnel into a file. From that file, `delegate`
//! and `ipam`, this plugin makes the configuration of the delegate:
//!
//! | key | value |
//! |---|---|
//! | `name` | the network's |
//! | `type` | `bridge`, unless `delegate` has it |
//! | `mtu` | `FLANNEL_MTU`, unless `delegate` has it |
//! | `ipMasq` | whether flanneld does not masquerade (`FLANNEL_IPMASQ`), unless `delegate` has it |
//! | `isGateway` | true if the delegate is bridge, unless `delegate` has it |
//! | `runtimeConfig` | this plugin's, in place of the one in `delegate` |
//! | `args` | this plugin's, unless `delegate` has it |
//! | `ipam` | this plugin's: its `type` is `host-local` if it has none, its `ranges` are the host's subnets, and routes to the networks are added to its `routes` |
//!
//! The other keys of `delegate` are passed on unchanged. The delegate gets the environment of this call, `CNI_ARGS` included.
#![forbid(unsafe_code)]

mod subnet_env;

use std::path::PathBuf;

use cnikit::types::{Map, NetConf, Route, Value};
use cnikit::{DelegatingPlugin, Result};
use serde::Deserialize;
use serde_json::json;

use subnet_env::SubnetEnv;

const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const DATA_DIR: &str = "/var/lib/cni/flannel";

/// flannel's configuration.
#[derive(Debug, Deserialize)]
#[serde(try_from = "FlannelKeys")]
pub struct FlannelPlugin(FlannelKeys);

/// The keys of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FlannelKeys {
    /// The file that flanneld writes. Default: `/run/flannel/subnet.env`.
    pub subnet_file: String,
    /// The directory in which configurations of the delegate are stored until its DEL. Default: `/var/lib/cni/flannel`. The field
    /// only refuses a value that is not a text: all verbs read the key by [`DelegatingPlugin::data_dir`], because DEL and GC may
    /// have no other valid key.
    pub data_dir: String,
    /// The base of the delegate's configuration. Default: a bridge.
    pub delegate: Map<String, Value>,
    /// The base of its `ipam`. Default: host-local.
    pub ipam: Map<String, Value>,
}

impl Default for FlannelKeys {
    fn default() -> FlannelKeys {
        FlannelKeys {
            subnet_file: SUBNET_FILE.into(),
            data_dir: DATA_DIR.into(),
            delegate: Map::new(),
            ipam: Map::new(),
        }
    }
}

impl TryFrom<FlannelKeys> for FlannelPlugin {
    type Error = String;

    fn try_from(keys: FlannelKeys) -> Result<FlannelPlugin, String> {
        let delegate = NetConf(keys.delegate.clone());
        if delegate.get("type").is_some_and(|value| !value.is_string()) {
            return Err("'delegate' dictionary, if present, must have (string) 'type' field".into());
        }
        for key in ["name", "ipam"] {
            if delegate.get(key).is_some() {
                return Err(format!("'delegate' dictionary must not have '{key}' field, it'll be set by flannel"));
            }
        }
        routes(&NetConf(keys.ipam.clone()))?;
        Ok(FlannelPlugin(keys))
    }
}

/// The routes of `ipam`, unchanged but validated.
fn routes(ipam: &NetConf) -> Result<Vec<Value>, String> {
    if let Err(error) = ipam.read_at::<Vec<Route>>(&["routes"]) {
        return Err(format!("failed to parse ipam.routes: {error}"));
    }
    Ok(ipam.get("routes").and_then(Value::as_array).cloned().unwrap_or_default())
}

impl DelegatingPlugin for FlannelPlugin {
    const EXAMPLE: &'static str = r#""delegate":{"isDefaultGateway":true}"#;

    fn data_dir(conf: &NetConf) -> PathBuf {
        match conf.text("dataDir") {
            None | Some("") => DATA_DIR.into(),
            Some(path) => path.into(),
        }
    }

    fn config_for_delegate(&self, conf: &NetConf) -> Result<NetConf> {
        let FlannelPlugin(keys) = self;
        let env = SubnetEnv::read(&keys.subnet_file)?;
        let mut delegate = NetConf(keys.delegate.clone());
        set_absent(&mut delegate, "type", "bridge");
        let is_bridge = delegate.plugin_type() == Some("bridge");
        set_absent(&mut delegate, "mtu", env.mtu);
        set_absent(&mut delegate, "ipMasq", !env.ip_masq);
        if is_bridge {
            set_absent(&mut delegate, "isGateway", true);
        }
        if let Some(args) = conf.get("args") {
            set_absent(&mut delegate, "args", args.clone());
        }
        for key in ["name", "cniVersion", "runtimeConfig"] {
            if let Some(value) = conf.get(key) {
                delegate.set(key, value.clone());
            }
        }
        delegate.set("ipam", Value::Object(self.ipam(&env)?.0));
        Ok(delegate)
    }
}

impl FlannelPlugin {
    fn ipam(&self, env: &SubnetEnv) -> Result<NetConf> {
        let mut ipam = NetConf(self.0.ipam.clone());
        let mut routes = routes(&ipam).map_err(cnikit::Error::config)?;
        for network in &env.networks {
            routes.push(json!({"dst": network}));
        }
        set_absent(&mut ipam, "type", "host-local");
        ipam.set("ranges", env.subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect());
        ipam.set("routes", routes.into());
        Ok(ipam)
    }
}

fn set_absent(conf: &mut NetConf, key: &str, value: impl Into<Value>) {
    if conf.get(key).is_none() {
        conf.set(key, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The delegate's configuration for this file and these keys.
    fn handed_over(env: &str, keys: &Value) -> Result<Value, String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        std::fs::write(file.path(), env).map_err(|error| error.to_string())?;
        let mut conf = NetConf::parse(keys.to_string().as_bytes()).map_err(|error| error.to_string())?;
        conf.set("subnetFile", json!(file.path()));
        let flannel: FlannelPlugin = conf.read().map_err(|error| error.to_string())?;
        flannel.config_for_delegate(&conf).map(|conf| Value::Object(conf.0)).map_err(|error| error.to_string())
    }

    const ENV: &str = "FLANNEL_NETWORK=10.1.0.0/16,192.168.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_IPV6_NETWORK=fc00::/48\n\
        FLANNEL_IPV6_SUBNET=fc00::1/64\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n";

    #[test]
    fn the_delegate_configuration_merges_subnet_env_and_the_configured_keys() {
        let keys = json!({"name": "n1", "cniVersion": "1.0.0", "type": "flannel", "dns": {"domain": "not passed on"},
            "delegate": {"bridge": "brf", "runtimeConfig": {"ips": []}}, "runtimeConfig": {"mac": "x"}, "args": {"cni": {}},
            "ipam": {"dataDir": "d", "routes": [{"dst": "1.0.0.0/8"}], "ranges": "replaced"}});
        let wanted = json!({"name": "n1", "cniVersion": "1.0.0", "type": "bridge", "bridge": "brf", "isGateway": true,
            "ipMasq": true, "mtu": 1472, "runtimeConfig": {"mac": "x"}, "args": {"cni": {}},
            "ipam": {"type": "host-local", "dataDir": "d", "ranges": [[{"subnet": "10.1.17.0/24"}], [{"subnet": "fc00::/64"}]],
                "routes": [{"dst": "1.0.0.0/8"}, {"dst": "10.1.0.0/16"}, {"dst": "192.168.0.0/16"}, {"dst": "fc00::/48"}]}});
        assert_eq!(handed_over(ENV, &keys), Ok(wanted));
    }

    #[test]
    fn keys_of_the_delegate_are_not_replaced() {
        let keys = |delegate: Value| json!({"name": "n1", "delegate": delegate});
        let said = json!({"IsGateway": false, "ipmasq": false, "MTU": 1300, "type": "bridge"});
        let conf = handed_over(ENV, &keys(said.clone())).unwrap_or_default();
        for (key, value) in said.as_object().into_iter().flatten() {
            assert_eq!(conf[key], *value, "{key}");
        }
        assert_eq!(conf.as_object().map(Map::len), Some(6), "with name and ipam: {conf}");
        let ptp = handed_over(ENV, &keys(json!({"type": "ptp"}))).unwrap_or_default();
        assert!(ptp["type"] == "ptp" && ptp.get("isGateway").is_none() && ptp["ipMasq"] == true, "{ptp}");
    }

    #[test]
    fn keys_that_flannel_sets_are_refused() {
        let refused = |keys: Value| handed_over(ENV, &keys).unwrap_err();
        let of_delegate = |delegate: Value| refused(json!({"name": "n", "delegate": delegate}));
        assert!(of_delegate(json!({"type": 5})).contains("must have (string) 'type' field"));
        assert!(of_delegate(json!({"name": "x"})).contains("must not have 'name' field"));
        assert!(of_delegate(json!({"ipam": {}})).contains("must not have 'ipam' field"));
        let routes = refused(json!({"name": "n", "ipam": {"routes": [{"dst": "x"}]}}));
        assert!(routes.contains("failed to parse ipam.routes: routes[0].dst"), "{routes}");
    }
}
