//! Ports of the host that lead to ports of the container.

mod guard;
mod iptables;
mod nftables;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cnikit_conntrack::{Conntrack, Flows};
use cnikit_netlink::Netlink;
pub use cnikit_nftables::L4Protocol;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result, log};
use ipnetwork::IpNetwork;

use self::guard::{HeldGuard, Ingress};
use crate::backend::{self, Backend, Chosen, Comparison, Loopback, RuleBackend};
use crate::iptables::Opening;

/// Ports of the host that lead to ports of the container.
#[derive(Clone, Debug)]
#[doc(alias = "portMappings")]
pub struct PortMap {
    /// In the order in which they were asked for.
    pub mappings: Vec<Mapping>,
    /// The container's addresses with their prefixes. Of each family the first is where connections go.
    pub addresses: Vec<IpNetwork>,
    /// Whose connections leave under the host's address.
    pub masquerades: Masquerades,
    /// How iptables marks what is to be masqueraded.
    pub mark: Mark,
    /// Further matches of this container's rules, in the words of the backend, for IPv4.
    pub conditions_v4: Vec<String>,
    /// The same for IPv6.
    pub conditions_v6: Vec<String>,
    /// What the rules are written with.
    pub backend: Backend,
    /// What happens when a port of the host leads to another container already.
    pub taken: Taken,
}

/// One port of the host, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The port of the host, not 0.
    pub host_port: u16,
    /// The container's port, not 0.
    pub container_port: u16,
    /// The protocol that both are of.
    pub protocol: L4Protocol,
    /// The one address of the host that is meant; absent: every address of the host.
    #[doc(alias = "hostIP")]
    pub host_address: Option<IpAddr>,
}

/// Whose connections to a published port leave under the host's address, so that the answers come back by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "snat")]
#[doc(alias = "masqAll")]
pub enum Masquerades {
    /// Nobody's; the host's own loopback cannot reach the port then.
    Nothing,
    /// The container's own, and those from the host's loopback.
    Hairpin,
    /// Everybody's.
    All,
}

/// How iptables marks what is to be masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// This bit of the packet's mark, 0 to 31.
    #[doc(alias = "markMasqBit")]
    Bit(u8),
    /// A chain of somebody else's that sets the mark, and masquerades what bears it.
    #[doc(alias = "externalSetMarkChain")]
    Chain(String),
}

/// What happens when a port of the host leads to another container already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Taken {
    /// The ADD fails, and its error names the other.
    #[default]
    Refused,
    /// It goes on leading there.
    FirstWins,
}

impl Mapping {
    /// Whether a connection to this address of the host could be meant.
    pub fn is_for(&self, host: IpAddr) -> bool {
        let every = |own: IpAddr| own.is_unspecified() && own.is_ipv4() == host.is_ipv4();
        self.host_address.is_none_or(|own| own == host || every(own))
    }

    /// Whether a connection to one port could be meant by both.
    pub fn meets(&self, other: &Mapping) -> bool {
        let one = |one: &Mapping, other: &Mapping| other.host_address.is_none_or(|host| one.is_for(host));
        (self.host_port, self.protocol) == (other.host_port, other.protocol) && (one(self, other) || one(other, self))
    }

    /// The port of the host, and its protocol.
    fn port(&self) -> (L4Protocol, u16) {
        (self.protocol, self.host_port)
    }

    /// Where it leads when the container has this address; `None` if it is for another family.
    pub fn leads_to(&self, address: IpAddr) -> Option<SocketAddr> {
        let fits = self.host_address.is_none_or(|host| host.is_ipv4() == address.is_ipv4());
        fits.then(|| SocketAddr::new(address, self.container_port))
    }

    /// What the kernel remembers of it, where it led there.
    fn flows_to(&self, target: SocketAddr) -> Flows {
        let address = self.host_address.filter(|host| !host.is_unspecified());
        Flows { protocol: self.protocol.number(), port: self.host_port, address, target }
    }
}

/// As people write it: `tcp 192.0.2.1:8080 to 80`.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mapping { host_port, container_port, protocol, host_address } = self;
        match host_address {
            Some(address) => write!(f, "{protocol} {} to {container_port}", SocketAddr::new(*address, *host_port)),
            None => write!(f, "{protocol} {host_port} to {container_port}"),
        }
    }
}

/// Port mappings as a step of an ADD: what is wanted, and what programs have been reading since preflight.
pub struct PublishedPorts {
    map: PortMap,
    prefetched: Cell<Option<Opening>>,
    /// An earlier ADD published them.
    restores: Cell<bool>,
}

/// How rules for port mappings are written.
const BACKEND: RuleBackend = RuleBackend {
    kind: KIND.name,
    what: "port mappings",
    table: "nat",
    shared: &["PREROUTING", "OUTPUT", "POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"],
    locks: true,
    instead: "or say `\"backend\": \"nftables\"`",
    try_nftables: nftables::available,
};

/// DEL and GC remove what either backend wrote, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: "port mappings", release, sweep, outlives_link: true };

/// A mapping whose port leads to somebody else, and to whom.
type Held = (Mapping, String);

/// What one backend's rules are to be beside those of the other one. Of rules for one port in both, those are asked first whose
/// table is the younger, whoever came first: so what leads elsewhere by the other's has none.
struct OtherBackend {
    verify: fn(&PortMap, &AttachmentId) -> Result<Comparison>,
    /// What the other one leads elsewhere. No program is started to find that out.
    elsewhere: fn(&PortMap, &AttachmentId) -> Result<Vec<Held>>,
}

const IPTABLES: OtherBackend = OtherBackend { verify: iptables::verify, elsewhere: nftables::elsewhere };
const NFTABLES: OtherBackend = OtherBackend { verify: nftables::verify, elsewhere: iptables::elsewhere };

impl OtherBackend {
    /// The mappings that have rules; refuses those that lead elsewhere, unless the first wins.
    fn beside(&self, map: &PortMap, tag: &AttachmentId) -> Result<PortMap> {
        let held = (self.elsewhere)(map, tag)?;
        held.iter().try_for_each(|(mapping, holder)| taken(map, mapping, holder))?;
        Ok(map.without(&held))
    }

    fn compare(&self, map: &PortMap, tag: &AttachmentId) -> Result<Comparison> {
        let compared = (self.verify)(map, tag)?;
        if compared.drifts.is_empty() || map.taken == Taken::Refused {
            return Ok(compared);
        }
        match map.without(&(self.elsewhere)(map, tag)?) {
            less if less.mappings.len() == map.mappings.len() => Ok(compared),
            less if less.mappings.is_empty() => {
                Ok(Comparison { any: true, loopback: Loopback::Unpublished, ..Comparison::default() })
            }
            less => (self.verify)(&less, tag),
        }
    }
}

impl Resource for PublishedPorts {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        self.refuse(context)?;
        if self.map.backend != Backend::Nftables {
            self.prefetched.set(Some(iptables::open(&self.map)?));
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let map = &self.written(&context.tag, journal)?;
        let held = HeldGuard::of(&context.tag)?;
        guard::note_undo(&held, &context.tag, journal);
        map.let_in(context, &held, self.restores.get())?;
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        self.restores.set(true);
        backend::restore(self, context, journal)
    }

    /// Not where a port leads elsewhere by the other backend: that is judged by itself.
    fn enqueue(&self, context: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
        self.refuse(context)?;
        let (map, tag) = (&self.map, &context.tag);
        let by_nftables = match map.backend {
            Backend::Automatic if nftables::has_any(map, tag)? => return Ok(false),
            backend => backend == Backend::Nftables,
        };
        let beside = if by_nftables { NFTABLES } else { IPTABLES };
        if !(beside.elsewhere)(map, tag)?.is_empty() {
            return Ok(false);
        }
        if by_nftables { nftables::enqueue(map, tag, batch) } else { iptables::enqueue(map, tag, batch) }
    }

    fn finish_batch(&self, context: &ApplyContext, made: bool, _journal: &mut Journal) -> Result<()> {
        let mut drifts = Drifts::default();
        self.map.verify_localnet(context, Loopback::Guarded, &mut drifts)?;
        if made || !drifts.texts().is_empty() {
            self.map.let_in(context, &HeldGuard::of(&context.tag)?, true)
        } else {
            Ok(())
        }
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let compared = BACKEND.compare(
            self.map.backend,
            || NFTABLES.compare(&self.map, &context.tag),
            || IPTABLES.compare(&self.map, &context.tag),
        )?;
        let loopback = compared.loopback;
        drifts.extend(compared.drifts.into_iter().map(|text| format!("port mappings: {text}")));
        self.map.verify_localnet(context, loopback, drifts)
    }
}

impl PublishedPorts {
    /// Of these mappings.
    pub fn of(map: PortMap) -> PublishedPorts {
        PublishedPorts { map, prefetched: Cell::default(), restores: Cell::default() }
    }

    /// Refuses mappings that must not or cannot be published. Every call that makes rules starts here: ADD and RESTORE of one
    /// attachment by `preflight`, RESTORE of many by `enqueue`.
    fn refuse(&self, context: &ApplyContext) -> Result<()> {
        self.map.refuse_targets(context.host()?)?;
        if self.map.backend == Backend::Nftables {
            nftables::preflight(&self.map)
        } else {
            iptables::preflight(&self.map)
        }
    }

    /// Has the rules made, and says of which mappings.
    fn written(&self, tag: &AttachmentId, journal: &mut Journal) -> Result<PortMap> {
        let map = &self.map;
        match BACKEND.choose(map.backend, self.prefetched.take(), || iptables::open(map))? {
            Chosen::Iptables(opened) => {
                let published = IPTABLES.beside(map, tag)?;
                iptables::ensure(&published, opened, tag, journal)?;
                Ok(published)
            }
            Chosen::Nftables => {
                if map.backend == Backend::Automatic {
                    nftables::preflight(map)?;
                }
                let published = NFTABLES.beside(map, tag)?;
                nftables::ensure(&published, tag, journal)?;
                Ok(published)
            }
        }
    }
}

impl fmt::Display for PublishedPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mappings: Vec<String> = self.map.mappings.iter().map(Mapping::to_string).collect();
        write!(f, "port mappings: {} ({})", mappings.join(", "), self.map.backend)
    }
}

impl PortMap {
    /// The container's address of one family that connections are sent to.
    pub(crate) fn target(&self, ipv4: bool) -> Option<IpAddr> {
        let addresses = self.addresses.iter().map(IpNetwork::ip);
        let leads = |address: &IpAddr| self.mappings.iter().any(|mapping| mapping.leads_to(*address).is_some());
        addresses.filter(|address| address.is_ipv4() == ipv4).take(1).find(leads)
    }

    /// How many rules it takes, of whichever family takes more.
    pub fn rules_needed(&self) -> usize {
        let networks = [true, false].map(|ipv4| self.networks(ipv4).len());
        let networks = if self.masquerades == Masquerades::Hairpin { networks } else { [1, 1] };
        networks.into_iter().map(|networks| self.mappings.len().saturating_mul(networks + 1)).max().unwrap_or_default()
    }

    /// The networks of the container's addresses of one family, each once.
    fn networks(&self, ipv4: bool) -> Vec<IpNetwork> {
        let mut seen = HashSet::new();
        let own = self.addresses.iter().filter(|address| address.is_ipv4() == ipv4);
        let networks = own.filter_map(|one| IpNetwork::new(one.network(), one.prefix()).ok());
        networks.filter(|network| seen.insert(*network)).collect()
    }

    /// All of it but these mappings.
    fn without(&self, held: &[Held]) -> PortMap {
        let held: HashSet<&Mapping> = held.iter().map(|(mapping, _)| mapping).collect();
        let mappings = self.mappings.iter().filter(|mapping| !held.contains(mapping)).cloned().collect();
        PortMap { mappings, ..self.clone() }
    }

    /// The link that the container is behind, if packets of the host's loopback are to go there: that needs its `route_localnet`.
    fn localnet(&self, host: &Netlink) -> Result<Option<Ingress>> {
        let Some(address) = self.target(true).filter(|_| self.masquerades != Masquerades::Nothing) else {
            return Ok(None);
        };
        // To an address of the host's own there is no link: it could be `lo`, which takes part in all that the host does.
        let route = host.route_for(address)?.filter(|route| !route.is_of_host());
        let Some(index) = route.and_then(|route| route.index) else { return Ok(None) };
        Ingress::of(host, host.link_at(index)?).map(Some)
    }

    /// Refuses addresses to which no port may lead: those of the host itself, on its loopback too, and those that no container
    /// can have. A tenant may have requested the address, and the port would lead to a service of the host, or with a link-local
    /// address to one that the host alone is meant to reach, such as the metadata service of a cloud.
    fn refuse_targets(&self, host: &Netlink) -> Result<()> {
        for address in [true, false].into_iter().filter_map(|ipv4| self.target(ipv4)) {
            let why = match special_purpose(address) {
                Some(why) => why,
                None if address.is_loopback() => "the host's own",
                None if host.route_for(address)?.is_some_and(|route| route.is_of_host()) => "the host's own",
                None => continue,
            };
            return Err(Error::conflict(format!("no port can lead to the address {address}: it is {why}"))
                .hint("give the container an address of its network that the host does not have"));
        }
        Ok(())
    }

    /// Lets in whoever the rules mean: from the host's loopback, and in flows that went elsewhere before.
    fn let_in(&self, context: &ApplyContext, held: &HeldGuard, restores: bool) -> Result<()> {
        match self.localnet(context.host()?)? {
            Some(ingress) => guard::ensure(&ingress, held, restores)?,
            None => guard::release_if_any(held)?,
        }
        forget(&self.flows(), true);
        Ok(())
    }

    fn verify_localnet(&self, context: &ApplyContext, loopback: Loopback, drifts: &mut Drifts) -> Result<()> {
        if loopback == Loopback::Unpublished {
            return Ok(());
        }
        match self.localnet(context.host()?)? {
            Some(ingress) => guard::verify(&ingress, &context.tag, loopback == Loopback::Guarded, drifts),
            None => Ok(()),
        }
    }

    /// What the kernel remembers of these ports.
    fn flows(&self) -> Vec<Flows> {
        let targets = [true, false].into_iter().filter_map(|ipv4| self.target(ipv4));
        let flows = |address: IpAddr| {
            let of = move |mapping: &Mapping| mapping.leads_to(address).map(|target| mapping.flows_to(target));
            self.mappings.iter().filter_map(of)
        };
        targets.flat_map(flows).collect()
    }

    /// One that says nothing of anybody: to try rules with.
    fn tried(to: IpAddr) -> PortMap {
        let mapping = Mapping { host_port: 1, container_port: 1, protocol: L4Protocol::Tcp, host_address: None };
        PortMap {
            mappings: vec![mapping],
            addresses: vec![to.into()],
            masquerades: Masquerades::Hairpin,
            mark: Mark::Bit(13),
            conditions_v4: Vec::new(),
            conditions_v6: Vec::new(),
            backend: Backend::Nftables,
            taken: Taken::Refused,
        }
    }
}

/// Why no port may lead to this address, if so: it is link-local, multicast, broadcast, unspecified or IPv4-mapped. Kubernetes
/// refuses the same as endpoints of a service.
fn special_purpose(address: IpAddr) -> Option<&'static str> {
    if address.is_unspecified() || address.is_multicast() {
        return Some("no container's");
    }
    match address {
        IpAddr::V4(address) if address.is_broadcast() => Some("no container's"),
        IpAddr::V4(address) if address.is_link_local() => Some("link-local"),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Some("no container's"),
        IpAddr::V6(address) if address.is_unicast_link_local() => Some("link-local"),
        _ => None,
    }
}

/// By port of the host: the mappings of that port.
fn by_port<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> HashMap<(L4Protocol, u16), Vec<&'a Mapping>> {
    let mut ports: HashMap<_, Vec<&Mapping>> = HashMap::new();
    mappings.for_each(|mapping| ports.entry(mapping.port()).or_default().push(mapping));
    ports
}

/// What an undo is about.
fn rules_of(tag: &AttachmentId) -> String {
    format!("port mappings of {tag}")
}

/// Says that a port leads to somebody else, or refuses to go on.
fn taken(map: &PortMap, mapping: &Mapping, holder: &str) -> Result<()> {
    let Mapping { protocol, host_port, .. } = mapping;
    let text = format!("{mapping}: {protocol} {host_port} of the host leads to {holder} already");
    match map.taken {
        Taken::Refused => Err(Error::conflict(text).hint(
            "choose another hostPort, or remove that container: if it is gone, a DEL or GC of it frees the port",
        )),
        Taken::FirstWins => {
            log::warn(format_args!("{text}, and goes on leading there"));
            Ok(())
        }
    }
}

/// Has the kernel forget where packets to these ports went. `live`: the rules for them are there; else they are gone. What
/// cannot be forgotten is forgotten in time: no ADD and no DEL fails for it.
fn forget(flows: &[Flows], live: bool) {
    let lasting: Vec<Flows> = flows.iter().filter(|flows| outlasts(flows.protocol)).copied().collect();
    if lasting.is_empty() {
        return;
    }
    let done = Conntrack::here().and_then(|mut tracked| {
        if live { tracked.forget_stale(&lasting, &Netlink::here()?) } else { tracked.forget_led(&lasting) }
    });
    match done {
        Ok(0) => {}
        Ok(count) => log::info(format_args!("had the kernel forget {count} flows to published ports")),
        Err(error) => log::warn(format_args!("flows to published ports may still go elsewhere: {error}")),
    }
}

/// Whether one who goes on sending is led to where nobody answers any more. A connection of TCP ends with whatever it led to,
/// and whoever begins anew does so from another port; of SCTP both ends keep theirs.
fn outlasts(protocol: u8) -> bool {
    protocol != L4Protocol::Tcp.number()
}

fn release(context: &ReleaseContext) -> Result<()> {
    // The rules go first: what the upstream plugin has published is what is left then.
    Errors::from_iter([nftables::release(context), iptables::release(context), guard::release(context)]).finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    Errors::from_iter([nftables::sweep(context), iptables::sweep(context), guard::sweep(context)]).finish()
}

/// Whether this host can publish ports so, for STATUS.
pub fn available(backend: Backend) -> Result<()> {
    BACKEND.available(backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_container_is_reached_by_are_told_from_others() {
        let special = |address: &str| special_purpose(address.parse().unwrap());
        for none in ["0.0.0.0", "224.0.0.9", "239.1.2.3", "255.255.255.255", "::", "ff02::1", "::ffff:127.0.0.1"] {
            assert_eq!(special(none), Some("no container's"), "{none}");
        }
        for link_local in ["169.254.169.254", "169.254.0.1", "fe80::1", "febf::1"] {
            assert_eq!(special(link_local), Some("link-local"), "{link_local}");
        }
        for usual in ["10.0.0.2", "169.253.255.255", "192.0.2.255", "240.0.0.1", "fd00::2", "fec0::1", "2001:db8::1"] {
            assert_eq!(special(usual), None, "{usual}");
        }
    }

    #[test]
    fn what_goes_on_from_the_same_port_is_forgotten() {
        let outlasting =
            [L4Protocol::Tcp, L4Protocol::Udp, L4Protocol::Sctp].map(|protocol| outlasts(protocol.number()));
        assert_eq!(outlasting, [false, true, true]);
    }
}
