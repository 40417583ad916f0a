//! Firewall: rules that accept traffic of containers and replies to it, and isolate bridges. Needs the feature `firewall`.

mod backend;
mod demand;
mod firewalld;
mod iptables;
mod nftables;
mod settings;

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::Netlink;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result};

use self::backend::BACKEND;
use self::demand::{Demand, Isolation};
use self::firewalld::FirewalldChoice;
pub use self::settings::{FirewallBackend, FirewallSettings, IngressPolicy};
use crate::backend::Comparison;
use crate::choice::ChosenBackend;
use crate::iptables::Opening;

/// Accepts packets from the container and replies to them, and isolates its bridge if so configured.
///
/// Chains, rules and comments are those of the upstream plugins, so that upstream's CHECK finds our rules, and a DEL of either
/// removes the rules of the other. Upstream's rules do not name a container, so each has a marker rule besides: if another
/// container has the address by now, its rules stay, and the rules of a bridge are removed with its last container.
#[doc(alias = "FORWARD")]
pub struct Firewall {
    /// The container's addresses, each once.
    addresses: Vec<IpAddr>,
    ingress: IngressPolicy,
    settings: FirewallSettings,
    /// The tables that programs have been reading since preflight.
    prefetched: Cell<Option<Opening>>,
    /// The connection to firewalld, once it was looked for.
    firewalld: Cell<Option<FirewalldChoice>>,
}

/// What one ADD has written.
struct Written {
    /// The addresses were added to a zone of firewalld.
    in_zone: bool,
    /// The backend of the rules, if there are any.
    rules: Option<FirewallBackend>,
}

/// DEL and GC remove the rules of all backends, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: BACKEND.kind, release, sweep, outlives_link: true };

/// The kinds of links that are bridges.
const BRIDGES: [&str; 2] = ["bridge", "openvswitch"];

impl Firewall {
    /// Accepts traffic of these addresses of a container.
    pub fn of(
        addresses: impl IntoIterator<Item = IpAddr>,
        ingress: IngressPolicy,
        settings: FirewallSettings,
    ) -> Firewall {
        let mut once: Vec<IpAddr> = Vec::new();
        for address in addresses {
            if !once.contains(&address) {
                once.push(address);
            }
        }
        Firewall { addresses: once, ingress, settings, prefetched: Cell::default(), firewalld: Cell::default() }
    }

    /// The wanted rules. `accepts` is false if a zone of firewalld accepts the traffic.
    fn demand<'a>(&'a self, isolation: Option<&'a Isolation>, accepts: bool) -> Demand<'a> {
        Demand { addresses: &self.addresses, accepts, isolation, admin_chain: &self.settings.admin_chain }
    }

    /// Writes the rules and the sources of a zone.
    fn write(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Written> {
        let isolation = self.isolation(context.host()?)?;
        let prefetched = self.prefetched.take();
        let FirewalldChoice(zone) = match self.firewalld.take() {
            Some(chosen) => chosen,
            None => firewalld::chosen(self.settings.backend)?,
        };
        let demand = self.demand(isolation.as_ref(), zone.is_none());
        let mut written = Written { in_zone: zone.is_some(), rules: None };
        if !demand.is_empty() {
            written.rules = Some(self.write_rules(&demand, prefetched, &context.tag, journal)?);
        }
        if let Some(mut firewalld) = zone {
            firewalld::ensure(&self.addresses, &self.settings.zone, &mut firewalld, &context.tag, journal)?;
            if demand.is_empty() {
                // Rules of an ADD before firewalld ran, or with another policy.
                iptables::remove(&context.tag)?;
                nftables::remove(&context.tag, journal)?;
            }
        }
        Ok(written)
    }

    /// Writes the rules, and returns their backend.
    fn write_rules(
        &self,
        demand: &Demand,
        prefetched: Option<Opening>,
        tag: &AttachmentId,
        journal: &mut Journal,
    ) -> Result<FirewallBackend> {
        match BACKEND.choose(self.settings.backend.of_rules(), prefetched, || iptables::open(demand))? {
            ChosenBackend::Iptables(opened) => {
                iptables::ensure(demand, opened, tag, journal)?;
                Ok(FirewallBackend::Iptables)
            }
            ChosenBackend::Nftables => {
                nftables::ensure(demand, tag, journal)?;
                Ok(FirewallBackend::Nftables)
            }
        }
    }

    /// The backend for RESTORE: the configured one, or the one whose rules are installed.
    fn installed_backend(&self, context: &ApplyContext) -> Result<FirewallBackend> {
        let chosen = self.settings.backend;
        if chosen != FirewallBackend::Automatic || self.verify_zone(&context.tag)?.is_some() {
            return Ok(chosen);
        }
        let isolation = self.isolation(context.host()?)?;
        let demand = self.demand(isolation.as_ref(), true);
        if nftables::verify(&demand, &context.tag).is_ok_and(|compared| compared.any) {
            return Ok(FirewallBackend::Nftables);
        }
        Ok(if iptables::verify(&demand)?.any { FirewallBackend::Iptables } else { chosen })
    }

    fn verify_zone(&self, tag: &AttachmentId) -> Result<Option<Comparison>> {
        firewalld::verify(&self.addresses, &self.settings, tag)
    }

    /// Whether `Automatic` means iptables for this attachment: neither firewalld nor nftables has it.
    fn is_by_iptables(&self, demand: &Demand, tag: &AttachmentId) -> Result<bool> {
        let is_in_zone = self.verify_zone(tag)?.is_some() || firewalld::chosen(FirewallBackend::Automatic)?.0.is_some();
        Ok(!is_in_zone && !nftables::verify(demand, tag).is_ok_and(|compared| compared.any))
    }

    /// The bridge that is to be isolated, looked up on the host.
    fn isolation(&self, host: &Netlink) -> Result<Option<Isolation>> {
        let Some((names, within)) = self.ingress.names() else { return Ok(None) };
        for name in names {
            let kind = host.find_link(name)?.and_then(|link| link.kind);
            if kind.is_some_and(|kind| BRIDGES.contains(&kind.as_str())) {
                return Ok(Some(Isolation { bridge: name.clone(), within }));
            }
        }
        let found = if names.is_empty() { "no link of the host".to_owned() } else { names.join(", ") };
        let text = format!("ingressPolicy {:?} needs a bridge, and prevResult has {found}", self.ingress.word());
        Err(Error::config(text)
            .hint("put firewall after the plugin bridge in the network's list, or remove ingressPolicy"))
    }
}

impl Resource for Firewall {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let isolation = self.isolation(context.host()?)?;
        let chosen = firewalld::chosen(self.settings.backend)?;
        let demand = self.demand(isolation.as_ref(), chosen.0.is_none());
        if self.settings.backend != FirewallBackend::Nftables && !demand.is_empty() {
            iptables::preflight(isolation.as_ref())?;
            self.prefetched.set(Some(iptables::open(&demand)?));
        }
        self.firewalld.set(Some(chosen));
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        self.write(context, journal)?;
        Ok(Made::nothing())
    }

    /// Then removes the rules of other backends: ADD may have chosen another one, whose rules would be out of date.
    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        let mut drifts = Drifts::default();
        self.verify(context, &mut drifts)?;
        if drifts.texts().is_empty() {
            return Ok(());
        }
        let settings = FirewallSettings { backend: self.installed_backend(context)?, ..self.settings.clone() };
        let again = Firewall::of(self.addresses.iter().copied(), self.ingress.clone(), settings);
        again.preflight(context)?;
        let written = again.write(context, journal)?;
        if !written.in_zone {
            firewalld::remove(&context.tag)?;
        }
        match written.rules {
            Some(FirewallBackend::Iptables) => nftables::remove(&context.tag, journal),
            Some(FirewallBackend::Nftables) => iptables::remove(&context.tag),
            _ => Ok(()),
        }
    }

    /// An attachment in a zone of firewalld, or with rules of another backend than ADD would choose, is restored alone.
    fn enqueue(&self, context: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
        let isolation = self.isolation(context.host()?)?;
        let demand = self.demand(isolation.as_ref(), true);
        if demand.is_empty() {
            return Ok(false);
        }
        match self.settings.backend {
            FirewallBackend::Nftables => return nftables::enqueue(&demand, &context.tag, batch),
            FirewallBackend::Automatic if !self.is_by_iptables(&demand, &context.tag)? => return Ok(false),
            FirewallBackend::Iptables | FirewallBackend::Automatic => {}
            FirewallBackend::Firewalld => return Ok(false),
        }
        iptables::enqueue(&demand, &context.tag, batch).map(|()| true)
    }

    fn finish_batch(&self, context: &ApplyContext, made: bool, journal: &mut Journal) -> Result<()> {
        if !made {
            return Ok(());
        }
        firewalld::remove(&context.tag)?;
        match self.settings.backend {
            FirewallBackend::Nftables => iptables::remove(&context.tag),
            _ => nftables::remove(&context.tag, journal),
        }
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let isolation = match self.isolation(context.host()?) {
            Ok(isolation) => isolation,
            Err(error) => {
                drifts.extend([format!("firewall: {error}")]);
                None
            }
        };
        let zone = self.verify_zone(&context.tag)?;
        let demand = self.demand(isolation.as_ref(), zone.is_none());
        let mut found = Vec::new();
        if let Some(compared) = zone {
            found.extend(compared.drifts);
        }
        if !demand.is_empty() {
            let compared = BACKEND.compare(
                self.settings.backend.of_rules(),
                || nftables::verify(&demand, &context.tag),
                || iptables::verify(&demand),
            )?;
            found.extend(compared.drifts);
        }
        drifts.extend(found.into_iter().map(|text| format!("firewall: {text}")));
        Ok(())
    }
}

impl fmt::Display for Firewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        // Nothing is known of a container without the result of the plugins before this one.
        let addresses = if addresses.is_empty() { "the container".to_owned() } else { addresses.join(", ") };
        write!(f, "accept packets from {addresses} and the answers")?;
        if let Some((names, _)) = self.ingress.names() {
            let names = if names.is_empty() { "its bridge".to_owned() } else { names.join(", ") };
            write!(f, ", {} on {names}", self.ingress.word())?;
        }
        write!(f, " ({})", self.settings.backend)
    }
}

fn release(context: &ReleaseContext) -> Result<()> {
    Errors::from_iter([firewalld::release(context), nftables::release(context), iptables::release(context)]).finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    Errors::from_iter([firewalld::sweep(context), nftables::sweep(context), iptables::sweep(context)]).finish()
}

/// Checks for STATUS that this host can filter with this backend.
///
/// # Errors
/// The backend cannot be used: its programs or a feature of the kernel are missing, or firewalld does not run.
pub fn available(backend: FirewallBackend) -> Result<()> {
    if backend == FirewallBackend::Firewalld {
        return firewalld::chosen(backend).map(drop);
    }
    BACKEND.available(backend.of_rules(), nftables::available)
}
