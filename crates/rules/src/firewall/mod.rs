//! Firewall: rules that accept what containers send and what answers it, and isolate bridges.

mod firewalld;
mod iptables;
mod nftables;

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::Netlink;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result};
use firewalld::FirewalldChoice;

use crate::backend::{Backend, Chosen, Comparison, RuleBackend};
use crate::iptables::Opening;

/// What the container sends is accepted, and what answers it; by its bridge it is cut off from others as far as that is asked.
///
/// Chains, rules and comments are the reference's, so that its CHECK finds ours, its DEL removes ours and ours removes the
/// reference's. As the reference's rules name no container, a marker beside them does: an address that another container has
/// by now keeps its rules, and those of a bridge go with its last container.
#[doc(alias = "FORWARD")]
pub struct Firewall {
    /// Of the container, each once.
    addresses: Vec<IpAddr>,
    ingress: Ingress,
    settings: FirewallSettings,
    /// What programs have been reading since preflight.
    prefetched: Cell<Option<Opening>>,
    /// firewalld, if it was looked for.
    firewalld: Cell<Option<FirewalldChoice>>,
}

/// How, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallSettings {
    /// What rules are written with.
    pub backend: FirewallBackend,
    /// The chain that is the operator's: it is made, comes first, and is never touched again.
    #[doc(alias = "iptablesAdminChainName")]
    pub admin_chain: String,
    /// The zone of firewalld that addresses become sources of.
    #[doc(alias = "firewalldZone")]
    pub zone: String,
}

/// Who may reach containers of a bridge. The names are of links of the host, of which the first bridge is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ingressPolicy")]
pub enum Ingress {
    /// Whoever the host lets.
    Open,
    /// No other bridge that is isolated so.
    SameBridge(Vec<String>),
    /// Nor any other container of the bridge.
    Isolated(Vec<String>),
}

/// What rules are written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirewallBackend {
    /// firewalld if it runs, else iptables, where a mixed or downgraded node looks for them, if its programs are there and
    /// work; else nftables.
    #[default]
    Automatic,
    /// The programs of iptables.
    Iptables,
    /// nftables, over netlink, in a table of its own.
    Nftables,
    /// A zone of firewalld, over D-Bus; what is isolated, as without it.
    Firewalld,
}

/// What rules are to be there.
#[derive(Clone, Copy)]
struct Demand<'a> {
    addresses: &'a [IpAddr],
    /// What these send and what answers it is accepted by rules, not by somebody else.
    accepts: bool,
    isolation: Option<&'a Isolation>,
    admin_chain: &'a str,
}

/// A bridge whose containers are cut off from others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Isolation {
    bridge: String,
    /// From each other too.
    within: bool,
}

/// How firewall rules are written.
const BACKEND: RuleBackend = RuleBackend {
    kind: KIND.name,
    what: "firewall rules",
    table: "filter",
    shared: &["FORWARD", "CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"],
    locks: true,
    instead: "or say `\"backend\": \"nftables\"`",
    try_nftables: nftables::available,
};

/// DEL and GC remove what any backend wrote, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: "firewall", release, sweep, outlives_link: true };

/// The kinds of links that are bridges.
const BRIDGES: [&str; 2] = ["bridge", "openvswitch"];

impl Firewall {
    /// For these addresses of a container.
    pub fn of(addresses: impl IntoIterator<Item = IpAddr>, ingress: Ingress, settings: FirewallSettings) -> Firewall {
        let mut once: Vec<IpAddr> = Vec::new();
        for address in addresses {
            if !once.contains(&address) {
                once.push(address);
            }
        }
        Firewall { addresses: once, ingress, settings, prefetched: Cell::default(), firewalld: Cell::default() }
    }

    /// `accepts`: no zone of firewalld does.
    fn demand<'a>(&'a self, isolation: Option<&'a Isolation>, accepts: bool) -> Demand<'a> {
        Demand { addresses: &self.addresses, accepts, isolation, admin_chain: &self.settings.admin_chain }
    }

    /// Has it made, and says with what: whether with a zone, and with which rules.
    fn make(&self, context: &ApplyContext, journal: &mut Journal) -> Result<(bool, Option<FirewallBackend>)> {
        let isolation = self.isolation(context.host()?)?;
        let prefetched = self.prefetched.take();
        let chosen = self.firewalld.take();
        let FirewalldChoice(zone) = chosen.map_or_else(|| firewalld::chosen(self.settings.backend), Ok)?;
        let demand = self.demand(isolation.as_ref(), zone.is_none());
        let mut written = (zone.is_some(), None);
        if !demand.is_empty() {
            written.1 = Some(self.write(&demand, prefetched, &context.tag, journal)?);
        }
        if let Some(mut firewalld) = zone {
            firewalld::ensure(self, &mut firewalld, (&context.tag, journal))?;
            if demand.is_empty() {
                // Of an ADD before firewalld ran, or of another policy.
                iptables::forget(&context.tag)?;
                nftables::forget((&context.tag, journal))?;
            }
        }
        Ok(written)
    }

    /// Has the rules made, with iptables where it works unless somebody chose, and says with what.
    fn write(
        &self,
        demand: &Demand,
        prefetched: Option<Opening>,
        tag: &AttachmentId,
        journal: &mut Journal,
    ) -> Result<FirewallBackend> {
        match BACKEND.choose(self.settings.backend.of_rules(), prefetched, || iptables::open(demand))? {
            Chosen::Iptables(opened) => {
                iptables::ensure(demand, opened, (tag, journal))?;
                Ok(FirewallBackend::Iptables)
            }
            Chosen::Nftables => {
                nftables::ensure(demand, (tag, journal))?;
                Ok(FirewallBackend::Nftables)
            }
        }
    }

    /// With what it is to be put right: where nobody says it and no zone has it, with what stands already.
    fn standing(&self, context: &ApplyContext) -> Result<FirewallBackend> {
        let chosen = self.settings.backend;
        if chosen != FirewallBackend::Automatic || firewalld::verify(self, &context.tag)?.is_some() {
            return Ok(chosen);
        }
        let isolation = self.isolation(context.host()?)?;
        let demand = self.demand(isolation.as_ref(), true);
        if nftables::verify(&demand, &context.tag).is_ok_and(|standing| standing.any) {
            return Ok(FirewallBackend::Nftables);
        }
        Ok(if iptables::verify(&demand)?.any { FirewallBackend::Iptables } else { chosen })
    }

    /// Whether neither firewalld nor nftables is for what nobody chose.
    fn is_by_iptables(&self, demand: &Demand, tag: &AttachmentId) -> Result<bool> {
        let by_zone =
            firewalld::verify(self, tag)?.is_some() || firewalld::chosen(FirewallBackend::Automatic)?.0.is_some();
        Ok(!by_zone && !nftables::verify(demand, tag).is_ok_and(|standing| standing.any))
    }

    /// What ADD chose may not be what it would choose today: whichever has something of this attachment is the one.
    fn rules(&self, demand: &Demand, tag: &AttachmentId) -> Result<Comparison> {
        match self.settings.backend {
            FirewallBackend::Iptables => return iptables::verify(demand),
            FirewallBackend::Nftables => return nftables::verify(demand, tag),
            FirewallBackend::Automatic | FirewallBackend::Firewalld => {}
        }
        let nftables = nftables::verify(demand, tag);
        if nftables.as_ref().is_ok_and(|standing| standing.any) {
            return nftables;
        }
        let iptables = iptables::verify(demand)?;
        if iptables.any || BACKEND.usable()?.is_ok() {
            return Ok(iptables);
        }
        nftables
    }

    /// What is to be isolated, looked up on the host.
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
            .hint("put firewall behind the plugin bridge in the network's list, or drop ingressPolicy"))
    }
}

impl Demand<'_> {
    /// No rule is wanted.
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() || !self.accepts && self.isolation.is_none()
    }
}

impl FirewallBackend {
    /// What rules are written with beside a zone of firewalld, or without one.
    fn of_rules(self) -> Backend {
        match self {
            Self::Nftables => Backend::Nftables,
            Self::Iptables => Backend::Iptables,
            Self::Automatic | Self::Firewalld => Backend::Automatic,
        }
    }

    /// The one of this name in a configuration.
    pub fn named(name: &str) -> Option<FirewallBackend> {
        [Self::Iptables, Self::Nftables, Self::Firewalld].into_iter().find(|one| one.to_string() == name)
    }
}

impl Ingress {
    fn names(&self) -> Option<(&[String], bool)> {
        match self {
            Ingress::Open => None,
            Ingress::SameBridge(names) => Some((names, false)),
            Ingress::Isolated(names) => Some((names, true)),
        }
    }

    /// As the configuration has it.
    fn word(&self) -> &'static str {
        match self {
            Ingress::Open => "open",
            Ingress::SameBridge(_) => "same-bridge",
            Ingress::Isolated(_) => "isolated",
        }
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
        self.make(context, journal).map(|_| Made::nothing())
    }

    /// What another backend has of this attachment goes then: ADD may have chosen it, and nobody would look after it.
    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        let mut drifts = Drifts::default();
        self.verify(context, &mut drifts)?;
        if drifts.texts().is_empty() {
            return Ok(());
        }
        let settings = FirewallSettings { backend: self.standing(context)?, ..self.settings.clone() };
        let again = Firewall::of(self.addresses.iter().copied(), self.ingress.clone(), settings);
        again.preflight(context)?;
        let (zone, rules) = again.make(context, journal)?;
        if !zone {
            firewalld::forget(&context.tag)?;
        }
        match rules {
            Some(FirewallBackend::Iptables) => nftables::forget((&context.tag, journal)),
            Some(FirewallBackend::Nftables) => iptables::forget(&context.tag),
            _ => Ok(()),
        }
    }

    /// What firewalld has is put right by itself, and so is what stands otherwise than it would be made.
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
        firewalld::forget(&context.tag)?;
        match self.settings.backend {
            FirewallBackend::Nftables => iptables::forget(&context.tag),
            _ => nftables::forget((&context.tag, journal)),
        }
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let isolation = self.isolation(context.host()?).unwrap_or_else(|error| {
            drifts.extend([format!("firewall: {error}")]);
            None
        });
        let zone = firewalld::verify(self, &context.tag)?;
        let demand = self.demand(isolation.as_ref(), zone.is_none());
        let rules = if demand.is_empty() { Comparison::default() } else { self.rules(&demand, &context.tag)? };
        let found = zone.into_iter().chain([rules]).flat_map(|standing| standing.drifts);
        drifts.extend(found.into_iter().map(|text| format!("firewall: {text}")));
        Ok(())
    }
}

impl fmt::Display for Firewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        // Nothing is known of a container without the result of the plugins before this one.
        let addresses = if addresses.is_empty() { "the container".to_owned() } else { addresses.join(", ") };
        write!(f, "accept what {addresses} sends and what answers it")?;
        if let Some((names, _)) = self.ingress.names() {
            let names = if names.is_empty() { "its bridge".to_owned() } else { names.join(", ") };
            write!(f, ", {} on {names}", self.ingress.word())?;
        }
        write!(f, " ({})", self.settings.backend)
    }
}

/// As a dry run says it.
impl fmt::Display for FirewallBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "firewalld if it runs, iptables where it works, else nftables",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Firewalld => "firewalld",
        })
    }
}

fn release(context: &ReleaseContext) -> Result<()> {
    Errors::from_iter([firewalld::release(context), nftables::release(context), iptables::release(context)]).finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    Errors::from_iter([firewalld::sweep(context), nftables::sweep(context), iptables::sweep(context)]).finish()
}

/// Whether this host can filter so, for STATUS.
pub fn available(backend: FirewallBackend) -> Result<()> {
    match backend {
        FirewallBackend::Automatic => BACKEND.available(Backend::Automatic),
        FirewallBackend::Iptables => BACKEND.available(Backend::Iptables),
        FirewallBackend::Nftables => nftables::available(),
        FirewallBackend::Firewalld => firewalld::chosen(backend).map(drop),
    }
}

/// What an undo is about.
fn rules_of(tag: &AttachmentId) -> String {
    format!("firewall rules of {tag}")
}
