//! What leaves the network leaves under the host's address.

mod iptables;
mod nftables;

use std::cell::Cell;
use std::fmt;

use cnikit_plan::{Drifts, Kind, Made, Remains, Resource, Scene, Stale};
use cnikit_skel::{Errors, Journal, Result, Tag, log};
use ipnetwork::IpNetwork;

/// Packets of these addresses to anywhere outside their network, multicast apart, are masqueraded.
///
/// Tables, chains, rules and comments are the reference's, so that its DEL removes ours and ours removes the reference's.
#[doc(alias = "ipMasq")]
pub struct Masquerade {
    addresses: Vec<IpNetwork>,
    backend: Backend,
    /// What programs have been reading since it was judged: it takes as long as to make the link, which is made meanwhile.
    opening: Cell<Option<iptables::Opening>>,
}

/// What masquerade rules are written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ipMasqBackend")]
pub enum Backend {
    /// iptables, where a mixed or downgraded node looks for them, if its programs are there and work; else nftables.
    #[default]
    Automatic,
    /// The programs of iptables.
    Iptables,
    /// nftables, over netlink.
    Nftables,
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

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        let standing = match self.backend {
            Backend::Iptables => iptables::verify(self, &scene.tag)?,
            Backend::Nftables => nftables::verify(self, &scene.tag)?,
            Backend::Automatic => self.standing(&scene.tag)?,
        };
        drifts.extend(standing.drifts.into_iter().map(|text| format!("masquerade: {text}")));
        Ok(())
    }
}

/// How one backend's rules compare with what is wanted.
struct Standing {
    /// Something of this attachment is there.
    any: bool,
    /// What is missing or different.
    drifts: Vec<String>,
}

impl Masquerade {
    /// Of the container's addresses, with their prefixes.
    pub fn of(addresses: Vec<IpNetwork>, backend: Backend) -> Masquerade {
        Masquerade { addresses, backend, opening: Cell::default() }
    }

    /// What ADD chose may not be what it would choose today: whichever has something of this attachment is the one. In
    /// nftables that is certain, while a chain of iptables may be there for another interface.
    fn standing(&self, tag: &Tag) -> Result<Standing> {
        let nftables = nftables::verify(self, tag);
        if nftables.as_ref().is_ok_and(|standing| standing.any) {
            return nftables;
        }
        let iptables = iptables::verify(self, tag)?;
        if iptables.any {
            return Ok(iptables);
        }
        if iptables::usable()?.is_err() {
            nftables?;
        }
        let drift = "there are rules neither in iptables nor in nftables";
        Ok(Standing { any: false, drifts: vec![drift.to_owned()] })
    }
}

impl fmt::Display for Masquerade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(|one| one.ip().to_string()).collect();
        write!(f, "masquerade {} on the host ({})", addresses.join(", "), self.backend)
    }
}

/// As a dry run says it.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "iptables where it works, else nftables",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
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
    match backend {
        Backend::Automatic => iptables::usable()?.or_else(|_| nftables::available()),
        Backend::Iptables => iptables::available(),
        Backend::Nftables => nftables::available(),
    }
}
