//! The keys as they are written, and what is refused of them.

use std::fmt;

use cnikit::keys::{Mtu, usable};
use cnikit::resources::Mac;
use cnikit::resources::link_settings::LinkValues;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::TuningPlugin;

/// The keys as they are written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TuningKeys {
    /// Kernel settings below `net.` of the container's namespace. Default: none.
    pub sysctl: Values,
    /// DEL sets the sysctls back to what they were. Default: false, they stay.
    pub restore_sysctls: bool,
    /// The interface's hardware address. Default: it stays.
    pub mac: Option<Mac>,
    /// The interface takes all packets. Default: false, and then it is left as it is.
    pub promisc: bool,
    /// Of the interface, in bytes. Default, and 0: it stays.
    pub mtu: Mtu,
    /// How many packets the interface's queue takes. Default: it stays.
    #[serde(rename = "txQLen")]
    pub tx_q_len: Option<u32>,
    /// The interface takes the packets of all groups. Default: it stays.
    pub allmulti: Option<bool>,
    /// Where the values from before are kept. Default: `/run/cni/tuning`.
    pub data_dir: String,
    /// What a runtime says of one attachment.
    pub args: TuningArgs,
}

/// `args`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TuningArgs {
    /// `args.cni`.
    pub cni: Cni,
}

/// What is read here of `args.cni`: what no table of precedence can say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cni {
    /// Laid over `sysctl`, key by key.
    pub sysctl: Values,
    /// An empty one takes the MAC away that was said elsewhere.
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
                    values.extend(value.map(|value| (key, value)));
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
        let taken_away = keys.args.cni.mac.as_deref() == Some("");
        let settings = LinkValues {
            mac: keys.mac.filter(|_| !taken_away),
            mtu: keys.mtu.0,
            promisc: keys.promisc.then_some(true),
            allmulti: keys.allmulti,
            tx_queue_length: keys.tx_q_len,
        };
        usable(settings.mac)?;
        let Values(sysctls) = keys.sysctl;
        let Values(overlaid) = keys.args.cni.sysctl;
        Ok(TuningPlugin { sysctls, overlaid, restores_sysctls: keys.restore_sysctls, settings })
    }
}
