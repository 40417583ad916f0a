//! Masquerade: SNAT of packets that leave the container's network.

mod backend;
mod iptables;
mod nftables;

use std::cell::Cell;
use std::fmt;

use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{Errors, Journal, Result};
use ipnetwork::IpNetwork;

use self::backend::BACKEND;
use crate::backend::Backend;
use crate::choice::{self, ChosenBackend};
use crate::iptables::Opening;

/// Masquerades packets from a container's addresses to destinations outside of their networks, except multicast.
///
/// Tables, chains, rules and comments are those of the upstream plugins, so that a DEL of either removes the rules of the other.
#[doc(alias = "ipMasq")]
pub struct Masquerade {
    addresses: Vec<IpNetwork>,
    backend: Backend,
    /// The tables that programs have been reading since preflight. That takes as long as to make the link, which is made meanwhile.
    prefetched: Cell<Option<Opening>>,
}

/// DEL and GC remove the rules of both backends, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: BACKEND.kind, release, sweep, outlives_link: true };

impl Resource for Masquerade {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        if self.backend != Backend::Nftables {
            self.prefetched.set(Some(iptables::open(&self.addresses, &context.tag)?));
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let tag = &context.tag;
        let open = || iptables::open(&self.addresses, tag);
        match BACKEND.choose(self.backend, self.prefetched.take(), open)? {
            ChosenBackend::Iptables(opened) => iptables::ensure(&self.addresses, opened, tag, journal)?,
            ChosenBackend::Nftables => nftables::ensure(&self.addresses, tag, journal)?,
        }
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        choice::restore(self, context, journal, || {
            let backend = self.backend.of_restore(|| nftables::has_any(&context.tag))?;
            Ok(Masquerade::of(self.addresses.clone(), backend))
        })
    }

    fn enqueue(&self, context: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
        let tag = &context.tag;
        match self.backend {
            Backend::Nftables => nftables::enqueue(&self.addresses, tag, batch)?,
            Backend::Automatic if nftables::has_any(tag)? => return Ok(false),
            Backend::Iptables | Backend::Automatic => iptables::enqueue(&self.addresses, tag, batch)?,
        }
        Ok(true)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let compared = BACKEND.compare(
            self.backend,
            || nftables::verify(&self.addresses, &context.tag),
            || iptables::verify(&self.addresses, &context.tag),
        )?;
        drifts.extend(compared.drifts.into_iter().map(|text| format!("masquerade: {text}")));
        Ok(())
    }
}

impl Masquerade {
    /// Masquerades these addresses of a container, given with their prefixes.
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

fn release(context: &ReleaseContext) -> Result<()> {
    Errors::from_iter([nftables::release(context), iptables::release(context)]).finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    Errors::from_iter([nftables::sweep(context), iptables::sweep(context)]).finish()
}

/// Checks for STATUS that this host can masquerade with this backend.
///
/// # Errors
/// The backend cannot be used: its programs or a feature of the kernel are missing.
pub fn available(backend: Backend) -> Result<()> {
    BACKEND.available(backend, nftables::available)
}
