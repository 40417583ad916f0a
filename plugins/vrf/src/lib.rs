//! Puts the container's interface into a VRF (virtual routing and forwarding), with its routes.
//!
//! A chained plugin, which comes after the plugin that makes the interface. The VRF is made in the container if it does not exist,
//! and goes with its last member. DEL and GC give the routes back to the main table. The keys are those of [`VrfKeys`].
#![forbid(unsafe_code)]

use cnikit::plan::{Kind, Plan};
use cnikit::resources::vrf::{self, VrfMember};
use cnikit::types::check_ifname;
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Result, Status};
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VrfKeys {
    /// The name of the VRF. Required.
    pub vrfname: String,
    /// The routing table of the VRF. Default, and 0: that of an existing VRF, or one that nothing uses, from 1 up.
    pub table: u32,
    /// The directory in which it is stored what was before. Default: `/run/cni/vrf`.
    #[serde(rename = "dataDir")]
    pub data_dir: String,
}

/// vrf's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "VrfKeys")]
pub struct VrfPlugin {
    name: String,
    table: Option<u32>,
}

impl TryFrom<VrfKeys> for VrfPlugin {
    type Error = String;

    fn try_from(keys: VrfKeys) -> Result<VrfPlugin, String> {
        let VrfKeys { vrfname: name, table, .. } = keys;
        if name.is_empty() {
            return Err("configuration is expected to have a valid vrf name; hint: set `vrfname`".to_owned());
        }
        if let Err(why) = check_ifname(&name) {
            return Err(format!(
                "vrfname {name:?} cannot be the name of a link: {why}; hint: a name has 1 to 15 bytes, without /, :, % and white space"
            ));
        }
        Ok(VrfPlugin { name, table: (table != 0).then_some(table) })
    }
}

impl ChainedPlugin for VrfPlugin {
    const KINDS: &'static [Kind] = &[vrf::KIND];
    const EXAMPLE: &'static str = r#""vrfname":"red""#;

    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        Ok(Plan::of(VrfMember {
            addresses: addresses(at, prev),
            ifname: at.tag.ifname.clone(),
            vrf: self.name.clone(),
            table: self.table,
            data_dir: vrf::data_dir(&at.conf),
        }))
    }

    fn status(&self, status: &Status) -> Result<()> {
        vrf::available(&vrf::data_dir(&status.call.conf))
    }
}

/// The addresses that the previous result gives this interface. An address without an interface may be another one's.
fn addresses(at: &AttachmentSpec, prev: &CniResult) -> Vec<IpNetwork> {
    let mut addresses = Vec::new();
    for ip in &prev.ips {
        let index = ip.interface.and_then(|index| usize::try_from(index).ok());
        let Some(interface) = index.and_then(|index| prev.interfaces.get(index)) else { continue };
        if interface.name == at.tag.ifname && !interface.sandbox.is_empty() {
            addresses.push(ip.address);
        }
    }
    addresses
}
