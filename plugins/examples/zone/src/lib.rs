//! Attaches containers to the bridge of a zone. A file of the node has the zones, each with its bridge and its subnet.
//!
//! A delegating plugin: it makes the configuration of bridge and host-local, and runs bridge with it. This is the worked example of
//! the guide (`docs/guide-5-chained-plugins.md`). The keys are those of [`ZoneKeys`].
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use cnikit::types::NetConf;
use cnikit::{DelegatingPlugin, Error, Result, UnknownKeys};
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::json;

/// The default of `file`.
const FILE: &str = "/etc/cni/zones.json";
/// The default of `dataDir`.
const DATA_DIR: &str = "/var/lib/cni/zone";
/// The largest file of zones that is read, in bytes.
const LIMIT: usize = 1 << 20;

// guide: delegating keys
/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ZoneKeys {
    /// The name of the zone. Required.
    pub zone: String,
    /// The node's file of zones. Default: `/etc/cni/zones.json`.
    pub file: String,
    /// The directory of the delegate's configurations and of the assigned addresses. Default: `/var/lib/cni/zone`.
    pub data_dir: String,
}

/// A zone in the file.
#[derive(Clone, Debug, Deserialize)]
struct Zone {
    bridge: String,
    subnet: IpNetwork,
}
// guide: end

/// The configuration, validated.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "ZoneKeys")]
pub struct ZonePlugin {
    zone: String,
    file: String,
}

impl TryFrom<ZoneKeys> for ZonePlugin {
    type Error = String;

    fn try_from(keys: ZoneKeys) -> Result<ZonePlugin, String> {
        if keys.zone.is_empty() {
            return Err("there is no zone; hint: set `zone` to one of the node's file of zones".to_owned());
        }
        let file = if keys.file.is_empty() { FILE.to_owned() } else { keys.file };
        Ok(ZonePlugin { zone: keys.zone, file })
    }
}

// guide: zone of the file
impl ZonePlugin {
    /// Reads the zone from the node's file.
    fn find_zone(&self) -> Result<Zone> {
        let text = cnikit_store::read(&self.file, LIMIT)?;
        let zones: BTreeMap<String, Zone> =
            serde_json::from_slice(&text).map_err(|error| Error::config(format!("{}: {error}", self.file)))?;
        let Some(zone) = zones.get(&self.zone) else {
            let names: Vec<&str> = zones.keys().map(String::as_str).collect();
            return Err(Error::config(format!("{} has no zone {:?}", self.file, self.zone))
                .hint(format!("add it, or set `zone` to one of: {}", names.join(", "))));
        };
        Ok(zone.clone())
    }
}
// guide: end

// guide: delegating
impl DelegatingPlugin for ZonePlugin {
    const EXAMPLE: &'static str = r#""zone":"dmz""#;
    const RELEASE: &'static str = concat!("example-", env!("CARGO_PKG_VERSION"));
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Refused;

    fn data_dir(conf: &NetConf) -> PathBuf {
        match conf.text("dataDir") {
            None | Some("") => DATA_DIR.into(),
            Some(path) => path.into(),
        }
    }

    fn config_for_delegate(&self, conf: &NetConf) -> Result<NetConf> {
        let zone = self.find_zone()?;
        let mut delegate = NetConf::default();
        for key in ["name", "cniVersion", "args", "runtimeConfig"] {
            if let Some(value) = conf.get(key) {
                delegate.set(key, value.clone());
            }
        }
        delegate.set("type", "bridge".into());
        delegate.set("bridge", zone.bridge.into());
        delegate.set("isDefaultGateway", true.into());
        let leases = Self::data_dir(conf).join("leases");
        delegate.set("ipam", json!({"type": "host-local", "subnet": zone.subnet, "dataDir": leases}));
        Ok(delegate)
    }
}
// guide: end

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_a_zone_is_refused() {
        for json in ["{}", r#"{"zone":""}"#] {
            let refused = serde_json::from_str::<ZonePlugin>(json).expect_err(json).to_string();
            assert!(refused.contains("there is no zone; hint: set `zone`"), "{json}: {refused}");
        }
    }

    #[test]
    fn the_file_of_the_default_is_named_if_it_is_missing() {
        let plugin: ZonePlugin = serde_json::from_str(r#"{"zone":"dmz","file":""}"#).expect("a configuration");
        assert_eq!(plugin.file, FILE);
    }
}
