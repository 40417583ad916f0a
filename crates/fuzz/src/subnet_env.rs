//! Fuzz target: `subnet.env`, the file that flanneld writes.

use std::fs;

use cnikit::{DelegatingPlugin, NetConf, Result, code};
use cnikit_types::Value;
use flannel::FlannelPlugin;
use ipnetwork::IpNetwork;
use serde_json::json;

/// Checks that the delegate's configuration has networks without host bits, and that a file with the same values gives the same
/// configuration.
pub(crate) fn run(data: &[u8]) {
    match delegate_conf(data) {
        Ok(conf) => {
            let again = delegate_conf(subnet_env_of(&conf).as_bytes()).expect("what was read can be read again");
            assert_eq!(again, conf);
        }
        Err(error) => {
            assert!(error.code == code::INVALID_CONFIG && error.hint.is_some(), "{error:?}");
            assert!(error.msg.starts_with("failed to load flannel 'subnet.env' file: "), "{error:?}");
        }
    }
}

/// Makes the delegate's configuration from the content of the file.
fn delegate_conf(content: &[u8]) -> Result<NetConf> {
    let dir = tempfile::tempdir().expect("there is a temporary directory");
    let file = dir.path().join("subnet.env");
    fs::write(&file, content).expect("it can be written to");
    let text = json!({"name": "n", "type": "flannel", "subnetFile": file}).to_string();
    let conf = NetConf::parse(text.as_bytes()).expect("it is a configuration");
    conf.read::<FlannelPlugin>().expect("every key is of its type").config_for_delegate(&conf)
}

/// Writes a `subnet.env` with the values of the delegate's configuration.
fn subnet_env_of(conf: &NetConf) -> String {
    let list = |key: &str| conf.at(&["ipam", key]).and_then(Value::as_array).expect("it is a list").iter();
    let networks: Vec<String> = list("routes").map(|route| network(&route["dst"])).collect();
    let subnets: Vec<String> = list("ranges").map(|set| network(&set[0]["subnet"])).collect();
    assert!(!networks.is_empty() && !subnets.is_empty(), "{conf:?}");
    let mtu = conf.get("mtu").and_then(Value::as_u64).expect("it is an MTU");
    assert!(u32::try_from(mtu).is_ok(), "it is an MTU");
    let masquerades = conf.get("ipMasq") == Some(&Value::Bool(false));
    format!(
        "FLANNEL_NETWORK={}\nFLANNEL_SUBNET={}\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masquerades}\n",
        networks.join(","),
        subnets.join(",")
    )
}

/// A network, written without host bits.
fn network(value: &Value) -> String {
    let text = value.as_str().expect("it is a text");
    let network: IpNetwork = text.parse().expect("it is a network");
    assert_eq!(network.ip(), network.network());
    text.to_owned()
}
