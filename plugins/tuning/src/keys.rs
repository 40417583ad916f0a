//! The keys of the configuration, and their validation.

use std::fmt;

use cnikit::keys::{Mtu, usable};
use cnikit::resources::Mac;
use cnikit::resources::link_settings::LinkValues;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::TuningPlugin;

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TuningKeys {
    /// Sysctls below `net.` in the container's network namespace. Default: none.
    pub sysctl: Values,
    /// DEL restores the sysctls. Default: false, they stay.
    pub restore_sysctls: bool,
    /// The MAC of the interface. Default: it is not changed.
    pub mac: Option<Mac>,
    /// The interface is in promiscuous mode. Default: false, and then its mode is not changed.
    pub promisc: bool,
    /// The MTU of the interface, in bytes. Default, and 0: it is not changed.
    pub mtu: Mtu,
    /// The length of the interface's transmit queue, in packets. Default: it is not changed.
    #[serde(rename = "txQLen")]
    pub tx_q_len: Option<u32>,
    /// The interface is in all-multicast mode. Default: it is not changed.
    pub allmulti: Option<bool>,
    /// The directory in which the values from before are stored. Default: `/run/cni/tuning`.
    pub data_dir: String,
    /// The settings of one attachment, from the runtime.
    pub args: TuningArgs,
}

/// `args`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TuningArgs {
    /// `args.cni`.
    pub cni: Cni,
}

/// The keys of `args.cni` whose precedence [`Sources`](cnikit::Sources) cannot express.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cni {
    /// Replaces `sysctl`, key by key.
    pub sysctl: Values,
    /// An empty text removes the MAC of the other places.
    pub mac: Option<String>,
}

/// Keys with their values, in the order of the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Values, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some((key, value)) = members.next_entry::<String, Option<String>>()? {
                    if let Some(value) = value {
                        values.push((key, value));
                    }
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl TryFrom<TuningKeys> for TuningPlugin {
    type Error = String;

    fn try_from(keys: TuningKeys) -> Result<TuningPlugin, String> {
        let removes_mac = keys.args.cni.mac.as_deref() == Some("");
        let settings = LinkValues {
            mac: if removes_mac { None } else { keys.mac },
            mtu: keys.mtu.0,
            promisc: keys.promisc.then_some(true),
            allmulti: keys.allmulti,
            tx_queue_length: keys.tx_q_len,
        };
        usable(settings.mac)?;
        let Values(sysctls) = keys.sysctl;
        let Values(overriding) = keys.args.cni.sysctl;
        Ok(TuningPlugin { sysctls, overriding, restores_sysctls: keys.restore_sysctls, settings })
    }
}
