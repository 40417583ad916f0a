//! What leaves the network leaves under the host's address.

mod iptables;
mod nftables;

use std::cell::Cell;
use std::fmt;

use cnikit_plan::{Drifts, Kind, Made, Remains, Resource, Scene, Stale, Together};
use cnikit_skel::{Errors, Journal, Result, Tag, log};
use ipnetwork::IpNetwork;

use crate::backend::Backend;
use crate::iptables::Opening;
use crate::rules;

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

    fn judge(&self, scene: &Scene) -> Result<()> {
        if self.backend != Backend::Nftables {
            self.opening.set(Some(iptables::begin_open(self, &scene.tag)));
        }
        Ok(())
    }

    fn ensure(&self, scene: &Scene, journal: &mut Journal) -> Result<Made> {
        let tag = &scene.tag;
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

    fn restore(&self, scene: &Scene, journal: &mut Journal) -> Result<()> {
        rules::restore(self, scene, journal)
    }

    fn join(&self, scene: &Scene, together: &mut Together) -> Result<bool> {
        match self.backend {
            Backend::Nftables => nftables::join(self, &scene.tag, together)?,
            Backend::Automatic if nftables::has_any(&scene.tag)? => return Ok(false),
            Backend::Iptables | Backend::Automatic => iptables::join(self, &scene.tag, together),
        }
        Ok(true)
    }

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        let standing = self.backend.standing(
            || nftables::verify(self, &scene.tag),
            || iptables::verify(self, &scene.tag),
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
fn rules_of(tag: &Tag) -> String {
    format!("masquerade rules of {tag}")
}

/// The address without its host bits.
fn network(address: IpNetwork) -> IpNetwork {
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

fn release(remains: &Remains) -> Result<()> {
    Errors::from_iter([nftables::release(remains), iptables::release(remains)]).finish()
}

fn sweep(stale: &Stale) -> Result<()> {
    Errors::from_iter([nftables::sweep(stale), iptables::sweep(stale)]).finish()
}

/// Whether this host can masquerade so, for STATUS.
pub fn available(backend: Backend) -> Result<()> {
    backend.available(iptables::PLACE, nftables::available)
}
