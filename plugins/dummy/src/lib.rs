//! Makes a dummy in the container: an interface that leads nowhere, to have an address on.
//!
//! The keys are those of [`DummyKeys`].
#![forbid(unsafe_code)]

use cnikit::keys::IpamType;
use cnikit::plan::{Kind, Plan};
use cnikit::resources::{dummy, layer3};
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, Result};
use serde::Deserialize;

/// dummy's configuration.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct DummyPlugin(#[expect(dead_code, reason = "the IPAM plugin's keys are read by the shape")] DummyKeys);

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DummyKeys {
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
}

impl InterfacePlugin for DummyPlugin {
    const LINK: Kind = dummy::KIND;

    fn link(&self, at: &AttachmentSpec) -> Plan {
        Plan::of(dummy::Dummy { ifname: at.tag.ifname.clone() })
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        layer3::on_no_segment(&at.tag.ifname, &addresses.ips, &addresses.routes)
    }

    fn status(&self) -> Result<()> {
        dummy::available()
    }
}
