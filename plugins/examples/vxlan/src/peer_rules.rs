//! Rules of the host: packets of the VXLAN are accepted from its peers only. Without rules the kernel accepts them from any host.

use std::fmt;

use cnikit::plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit::rules::nftables;
use cnikit::rules::nftables::cnikit_nftables::{
    Chain, Hook, HookKind, HookPoint, L4Protocol, Layer, Match, Rule, TableFamily, TableLayout, Verdict,
};
use cnikit::{Journal, Result};

use crate::config::Segment;

/// Rules that drop packets for this VNI and port from other hosts than the peers.
pub(crate) struct PeerRules {
    pub(crate) segment: Segment,
}

// guide: kind
/// Found by the mark that their comments begin with.
pub(crate) const KIND: Kind = Kind { name: "VXLAN peers", release, sweep, outlives_link: true };

fn release(context: &ReleaseContext) -> Result<()> {
    nftables::release(&layout(), context)
}

fn sweep(context: &GcContext) -> Result<()> {
    nftables::sweep(&layout(), context)
}
// guide: end

// guide: layout
const PEERS: &str = "peers";

/// The table that all VXLANs of a host share. It stays when the last one is gone.
fn layout() -> TableLayout {
    let mut layout = TableLayout::of(TableFamily::Inet, "cnikit_vxlan");
    let hook = Hook { kind: HookKind::Filter, hook: HookPoint::Input, priority: -10 };
    layout.chains = vec![Chain { name: PEERS, comment: None, hook: Some(hook) }];
    layout.rule_chains = vec![PEERS];
    layout
}
// guide: end

// guide: rules
/// The VNI is in bytes 4 to 6 of the VXLAN header, which follows the 8 bytes of the UDP header.
const VNI_OFFSET: u32 = 8 + 4;

impl PeerRules {
    /// One rule per peer, and one that drops the rest. Each is about this VNI, so other VXLANs at the same port are left alone.
    fn rules(&self) -> Vec<Rule> {
        let Segment { vni, port, peers, .. } = &self.segment;
        let of_vni = vec![
            Match::to_port(L4Protocol::Udp, *port),
            Match::Bytes { layer: Layer::Transport, offset: VNI_OFFSET, bytes: vni.to_be_bytes()[1..].to_vec() },
        ];
        let mut rules = Vec::new();
        for peer in peers {
            let matches = [vec![Match::Source(*peer)], of_vni.clone()].concat();
            rules.push(Rule { matches, verdict: Verdict::Accept, comment: None });
        }
        rules.push(Rule { matches: of_vni, verdict: Verdict::Drop, comment: None });
        rules
    }
}
// guide: end

// guide: resource
impl Resource for PeerRules {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        nftables::ensure(&layout(), self.rules(), context, journal)?;
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        nftables::ensure(&layout(), self.rules(), context, journal)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        nftables::verify(&layout(), self.rules(), context, drifts)
    }
}

impl fmt::Display for PeerRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "drop packets of VXLAN {} that are not of its peers (nftables)", self.segment.vni)
    }
}
// guide: end

/// Checks that the kernel takes these rules.
pub(crate) fn available() -> Result<()> {
    nftables::available(&layout())
}
