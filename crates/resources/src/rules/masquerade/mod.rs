//! What leaves the network leaves under the host's address.

mod iptables;
mod nftables;

use std::cell::Cell;
use std::fmt;

use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{AttachmentId, Errors, Journal, Result, log};
use ipnetwork::IpNetwork;

use crate::rules::backend::Backend;
use crate::rules::iptables::Opening;
use crate::rules::undo;

/// Packets of these addresses to anywhere outside their network, multicast apart, are masqueraded.
///
/// Tables, chains, rules and comments are the reference's, so that its DEL removes ours and ours removes the reference's.
#[doc(alias = "ipMasq")]
pub struct Masquerade {
    addresses: Vec<IpNetwork>,
    backend: Backend,
    /// What programs have been reading since it was judged: it takes as long as to make the link, which is made meanwhile.
    opening: Cell<Option<Opening>>,
}

/// DEL and GC remove what either backend wrote, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: "masquerade", release, sweep, outlives_link: true };

impl Resource for Masquerade {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        if self.backend != Backend::Nftables {
            self.opening.set(Some(iptables::begin_open(self, &context.tag)));
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let tag = &context.tag;
        let opening = || self.opening.take().unwrap_or_else(|| iptables::begin_open(self, tag));
        let made = match self.backend {
            Backend::Nftables => nftables::ensure(self, tag, journal),
            Backend::Iptables => iptables::ensure(self, opening().finish()?, tag, journal),
            Backend::Automatic => match opening().finish_if_usable()? {
                Ok(opened) => iptables::ensure(self, opened, tag, journal),
                Err(unusable) => {
                    log::info(format_args!("masquerade with nftables: {unusable}"));
                    nftables::ensure(self, tag, journal)
                }
            },
        };
        made.map(|()| Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        undo::restore(self, context, journal)
    }

    fn enqueue(&self, context: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
        match self.backend {
            Backend::Nftables => nftables::enqueue(self, &context.tag, batch)?,
            Backend::Automatic if nftables::has_any(&context.tag)? => return Ok(false),
            Backend::Iptables | Backend::Automatic => iptables::enqueue(self, &context.tag, batch),
        }
        Ok(true)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let standing = self.backend.standing(
            || nftables::verify(self, &context.tag),
            || iptables::verify(self, &context.tag),
            || Ok(iptables::PLACE.usable()?.is_ok()),
        )?;
        drifts.extend(standing.drifts.into_iter().map(|text| format!("masquerade: {text}")));
        Ok(())
    }
}

impl Masquerade {
    /// Of the container's addresses, with their prefixes.
    pub fn of(addresses: Vec<IpNetwork>, backend: Backend) -> Masquerade {
        Masquerade { addresses, backend, opening: Cell::default() }
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
    backend.available(iptables::PLACE, nftables::available)
}
