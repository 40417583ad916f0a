//! Masquerade: SNAT of packets that leave the container's network.

mod iptables;
mod nftables;

use std::cell::Cell;
use std::fmt;

use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{AttachmentId, Errors, Journal, Result};
use ipnetwork::IpNetwork;

use crate::backend::{self, Backend, Chosen, RuleBackend};
use crate::iptables::Opening;

/// Packets of these addresses to anywhere outside their network, multicast apart, are masqueraded.
///
/// Tables, chains, rules and comments are the reference's, so that its DEL removes ours and ours removes the reference's.
#[doc(alias = "ipMasq")]
pub struct Masquerade {
    addresses: Vec<IpNetwork>,
    backend: Backend,
    /// What programs have been reading since preflight: that takes as long as to make the link, which is made meanwhile.
    prefetched: Cell<Option<Opening>>,
}

/// How masquerade rules are written.
const BACKEND: RuleBackend = RuleBackend {
    kind: KIND.name,
    what: "masquerade rules",
    table: "nat",
    shared: &[],
    locks: false,
    instead: "or say `\"ipMasqBackend\": \"nftables\"`",
    try_nftables: nftables::available,
};

/// DEL and GC remove what either backend wrote, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: "masquerade", release, sweep, outlives_link: true };

impl Resource for Masquerade {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        if self.backend != Backend::Nftables {
            self.prefetched.set(Some(iptables::open(self, &context.tag)?));
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let tag = &context.tag;
        match BACKEND.choose(self.backend, self.prefetched.take(), || iptables::open(self, tag))? {
            Chosen::Iptables(opened) => iptables::ensure(self, opened, tag, journal)?,
            Chosen::Nftables => nftables::ensure(self, tag, journal)?,
        }
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        backend::restore(self, context, journal)
    }

    fn enqueue(&self, context: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
        match self.backend {
            Backend::Nftables => nftables::enqueue(self, &context.tag, batch)?,
            Backend::Automatic if nftables::has_any(&context.tag)? => return Ok(false),
            Backend::Iptables | Backend::Automatic => iptables::enqueue(self, &context.tag, batch)?,
        }
        Ok(true)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let compared = BACKEND.compare(
            self.backend,
            || nftables::verify(self, &context.tag),
            || iptables::verify(self, &context.tag),
        )?;
        drifts.extend(compared.drifts.into_iter().map(|text| format!("masquerade: {text}")));
        Ok(())
    }
}

impl Masquerade {
    /// Of the container's addresses, with their prefixes.
    pub fn of(addresses: Vec<IpNetwork>, backend: Backend) -> Masquerade {
        Masquerade { addresses, backend, prefetched: Cell::default() }
    }
}

impl fmt::Display for Masquerade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(|one| one.ip().to_string()).collect();
        write!(f, "masquerade {} on the host ({})", addresses.join(", "), self.backend)
    }
}

/// What an undo is about.
fn rules_of(tag: &AttachmentId) -> String {
    format!("masquerade rules of {tag}")
}

/// The address without its host bits.
fn network(address: IpNetwork) -> IpNetwork {
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

fn release(context: &ReleaseContext) -> Result<()> {
    Errors::from_iter([nftables::release(context), iptables::release(context)]).finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    Errors::from_iter([nftables::sweep(context), iptables::sweep(context)]).finish()
}

/// Whether this host can masquerade so, for STATUS.
pub fn available(backend: Backend) -> Result<()> {
    BACKEND.available(backend)
}
