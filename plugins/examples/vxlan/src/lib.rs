//! Puts the container into a VXLAN: its interface is an end of the tunnel, and frames to other ends leave by the host in UDP.
//!
//! One container per VNI and port on each host. The rules of the host drop packets for this VNI that are not of its peers. This
//! is the worked example of the guide (`docs/guide-3-plans-and-resources.md`). The keys are those of [`VxlanKeys`].
#![forbid(unsafe_code)]

mod config;
mod link;
mod peer_rules;

pub use config::{VxlanKeys, VxlanPlugin};

use cnikit::plan::{Kind, Plan};
use cnikit::resources::layer3;
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, Result, Sources};

use link::VxlanLink;
use peer_rules::PeerRules;

// guide: shape
impl InterfacePlugin for VxlanPlugin {
    const LINK: Kind = link::KIND;
    const KINDS: &'static [Kind] = &[peer_rules::KIND];
    const SOURCES: Sources = config::SOURCES;
    const EXAMPLE: &'static str =
        r#""vni":100,"peers":["192.0.2.2"],"ipam":{"type":"host-local","subnet":"10.99.0.0/24"}"#;
    const RELEASE: &'static str = concat!("example-", env!("CARGO_PKG_VERSION"));

    fn link(&self, at: &AttachmentSpec) -> Plan {
        // The rules come first: no packet of another host enters, not even before the result is written.
        Plan::of(PeerRules { segment: self.segment.clone() }).and(VxlanLink {
            ifname: at.tag.ifname.clone(),
            segment: self.segment.clone(),
            mtu: self.mtu,
        })
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        // Without duplicate address detection and router advertisements. The link is set up when it has its addresses.
        layer3::on_master(&at.tag.ifname, &addresses.ips, &addresses.routes, false, false, false)
    }

    fn status(&self) -> Result<()> {
        link::available()?;
        peer_rules::available()
    }
}
// guide: end
