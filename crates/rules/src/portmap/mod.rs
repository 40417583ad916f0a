//! Port mappings: DNAT of host ports to the container. Needs the feature `portmap`.
//!
//! ```
//! use cnikit_rules::portmap::{L4Protocol, Mapping};
//!
//! let web = Mapping { host_port: 8080, container_port: 80, protocol: L4Protocol::Tcp, host_address: None };
//! assert_eq!(web.dnat_target([10, 1, 0, 2].into()), Some("10.1.0.2:80".parse().unwrap()));
//! ```

mod backend;
mod conflict;
mod flows;
mod guard;
mod iptables;
mod mapping;
mod nftables;

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::Netlink;
pub use cnikit_nftables::L4Protocol;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result};

use self::backend::BACKEND;
use self::conflict::{Conflict, refuse_or_log};
use self::guard::{AttachmentGuard, IngressLink};
pub use self::mapping::{Mapping, Mark, Masquerades, OnPortConflict, PortMap};
use crate::backend::{Backend, Comparison, Loopback};
use crate::choice::{self, ChosenBackend};
use crate::iptables::Opening;

/// The port mappings of one attachment, published on the host.
pub struct PublishedPorts {
    map: PortMap,
    /// The tables that programs have been reading since preflight.
    prefetched: Cell<Option<Opening>>,
    /// Whether an earlier ADD published the ports.
    restores: Cell<bool>,
}

/// DEL and GC remove the rules of both backends, whatever the configuration says by then.
pub const KIND: Kind = Kind { name: BACKEND.kind, release, sweep, outlives_link: true };

/// One backend next to the rules of the other. If both have rules for one port, the packet is changed by the table that was created
/// later, whichever container came first. So a port that leads to another container by the other backend gets no rule.
struct CheckedBackend {
    verify: fn(&PortMap, &AttachmentId) -> Result<Comparison>,
    /// The conflicts with rules of the other backend. No program is started to find them.
    conflicts: fn(&PortMap, &AttachmentId) -> Result<Vec<Conflict>>,
}

const IPTABLES: CheckedBackend = CheckedBackend { verify: iptables::verify, conflicts: nftables::conflicts };
const NFTABLES: CheckedBackend = CheckedBackend { verify: nftables::verify, conflicts: iptables::conflicts };

impl CheckedBackend {
    /// The mappings without those in conflict with the other backend. Conflicts are refused if so configured.
    fn without_conflicts(&self, map: &PortMap, tag: &AttachmentId) -> Result<PortMap> {
        let conflicts = (self.conflicts)(map, tag)?;
        refuse_or_log(map, &conflicts)?;
        Ok(without(map, &conflicts))
    }

    fn compare(&self, map: &PortMap, tag: &AttachmentId) -> Result<Comparison> {
        let compared = (self.verify)(map, tag)?;
        if compared.drifts.is_empty() || map.on_conflict == OnPortConflict::Refuse {
            return Ok(compared);
        }
        let published = without(map, &(self.conflicts)(map, tag)?);
        if published.mappings.len() == map.mappings.len() {
            return Ok(compared);
        }
        if published.mappings.is_empty() {
            return Ok(Comparison { any: true, loopback: Loopback::Unpublished, ..Comparison::default() });
        }
        (self.verify)(&published, tag)
    }
}

fn without(map: &PortMap, conflicts: &[Conflict]) -> PortMap {
    map.without(conflicts.iter().map(|conflict| &conflict.mapping))
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
        let map = self.write_rules(&context.tag, journal)?;
        let installed = AttachmentGuard::of(&context.tag)?;
        guard::note_undo(&installed, &context.tag, journal);
        admit_connections(&map, context, &installed, self.restores.get())?;
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        choice::restore(self, context, journal, || {
            let backend = self.map.backend.of_restore(|| nftables::has_any(&self.map, &context.tag))?;
            let again = PublishedPorts::of(PortMap { backend, ..self.map.clone() });
            again.restores.set(true);
            Ok(again)
        })
    }

    /// An attachment in conflict with the other backend is restored alone.
    fn enqueue(&self, context: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
        self.refuse(context)?;
        let map = &self.map;
        let tag = &context.tag;
        let by_nftables = match map.backend {
            Backend::Automatic if nftables::has_any(map, tag)? => return Ok(false),
            backend => backend == Backend::Nftables,
        };
        let backend = if by_nftables { NFTABLES } else { IPTABLES };
        if !(backend.conflicts)(map, tag)?.is_empty() {
            return Ok(false);
        }
        if by_nftables { nftables::enqueue(map, tag, batch) } else { iptables::enqueue(map, tag, batch) }
    }

    fn finish_batch(&self, context: &ApplyContext, made: bool, _journal: &mut Journal) -> Result<()> {
        let mut drifts = Drifts::default();
        verify_localnet(&self.map, context, Loopback::Guarded, &mut drifts)?;
        if !made && drifts.texts().is_empty() {
            return Ok(());
        }
        admit_connections(&self.map, context, &AttachmentGuard::of(&context.tag)?, true)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let compared = BACKEND.compare(
            self.map.backend,
            || NFTABLES.compare(&self.map, &context.tag),
            || IPTABLES.compare(&self.map, &context.tag),
        )?;
        let loopback = compared.loopback;
        drifts.extend(compared.drifts.into_iter().map(|text| format!("port mappings: {text}")));
        verify_localnet(&self.map, context, loopback, drifts)
    }
}

impl PublishedPorts {
    /// Publishes these mappings.
    pub fn of(map: PortMap) -> PublishedPorts {
        PublishedPorts { map, prefetched: Cell::default(), restores: Cell::default() }
    }

    /// Refuses mappings that must not or cannot be published. Every call that makes rules starts here: ADD and RESTORE of one
    /// attachment by `preflight`, RESTORE of many by `enqueue`.
    fn refuse(&self, context: &ApplyContext) -> Result<()> {
        refuse_targets(&self.map, context.host()?)?;
        if self.map.backend == Backend::Nftables {
            nftables::preflight(&self.map)
        } else {
            iptables::preflight(&self.map)
        }
    }

    /// Writes the rules, and returns the mappings that have rules.
    fn write_rules(&self, tag: &AttachmentId, journal: &mut Journal) -> Result<PortMap> {
        let map = &self.map;
        match BACKEND.choose(map.backend, self.prefetched.take(), || iptables::open(map))? {
            ChosenBackend::Iptables(opened) => {
                let published = IPTABLES.without_conflicts(map, tag)?;
                iptables::ensure(&published, opened, tag, journal)?;
                Ok(published)
            }
            ChosenBackend::Nftables => {
                if map.backend == Backend::Automatic {
                    nftables::preflight(map)?;
                }
                let published = NFTABLES.without_conflicts(map, tag)?;
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

/// The link to the container, if packets from the host's loopback are routed there: that needs `route_localnet` of the link.
fn localnet_link(map: &PortMap, host: &Netlink) -> Result<Option<IngressLink>> {
    if map.masquerades == Masquerades::Nothing {
        return Ok(None);
    }
    let Some(address) = map.target(true) else { return Ok(None) };
    let Some(route) = host.route_for(address)? else { return Ok(None) };
    // The link of an address of the host could be `lo`, whose settings affect all traffic of the host.
    if route.is_of_host() {
        return Ok(None);
    }
    let Some(index) = route.index else { return Ok(None) };
    IngressLink::of(host, host.link_at(index)?).map(Some)
}

/// Refuses addresses to which no port may lead: those of the host itself, its loopback included, and those that no container can
/// have. A tenant may have requested the address, and the port would lead to a service of the host, or with a link-local address to
/// one that only the host may reach, such as the metadata service of a cloud.
fn refuse_targets(map: &PortMap, host: &Netlink) -> Result<()> {
    for ipv4 in [true, false] {
        let Some(address) = map.target(ipv4) else { continue };
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

/// Admits connections that the rules alone do not: from the host's loopback, and of flows that the kernel still sends elsewhere.
fn admit_connections(map: &PortMap, context: &ApplyContext, installed: &AttachmentGuard, restores: bool) -> Result<()> {
    match localnet_link(map, context.host()?)? {
        Some(ingress) => guard::ensure(&ingress, installed, restores)?,
        None => guard::release_if_any(installed)?,
    }
    flows::forget_stale(&map.flows());
    Ok(())
}

fn verify_localnet(map: &PortMap, context: &ApplyContext, loopback: Loopback, drifts: &mut Drifts) -> Result<()> {
    if loopback == Loopback::Unpublished {
        return Ok(());
    }
    match localnet_link(map, context.host()?)? {
        Some(ingress) => guard::verify(&ingress, &context.tag, loopback == Loopback::Guarded, drifts),
        None => Ok(()),
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

fn release(context: &ReleaseContext) -> Result<()> {
    // The guard is released last: it stays if the upstream plugin has published ports, and those are the rules that are left.
    Errors::from_iter([nftables::release(context), iptables::release(context), guard::release(context)]).finish()
}

fn sweep(context: &GcContext) -> Result<()> {
    Errors::from_iter([nftables::sweep(context), iptables::sweep(context), guard::sweep(context)]).finish()
}

/// Checks for STATUS that this host can publish ports with this backend.
///
/// # Errors
/// The backend cannot be used: its programs or a feature of the kernel are missing.
pub fn available(backend: Backend) -> Result<()> {
    BACKEND.available(backend, nftables::available)
}

#[cfg(test)]
mod tests {
    use OnPortConflict::{KeepFirst, Refuse};

    use super::*;

    /// Mappings of these ports of the host.
    fn map(ports: &[u16], on_conflict: OnPortConflict) -> PortMap {
        let tried = PortMap::tried([10, 1, 0, 2].into());
        let of = |port: &u16| Mapping { host_port: *port, ..tried.mappings[0].clone() };
        PortMap { mappings: ports.iter().map(of).collect(), on_conflict, ..tried.clone() }
    }

    #[test]
    fn a_port_that_stays_with_a_container_of_the_other_backend_is_not_missed() {
        let tag = AttachmentId { network: "n".into(), container: "c1".into(), ifname: "eth0".into() };
        let verify = |map: &PortMap, _: &AttachmentId| {
            let missing = |mapping: &Mapping| (mapping.host_port == 80).then(|| format!("{mapping} is missing"));
            Ok(Comparison { drifts: map.mappings.iter().filter_map(missing).collect(), ..Comparison::default() })
        };
        let conflicts = |map: &PortMap, _: &AttachmentId| {
            let conflict = |mapping: &Mapping| {
                (mapping.host_port == 80).then(|| Conflict { mapping: mapping.clone(), holder: "c2".into() })
            };
            Ok(map.mappings.iter().filter_map(conflict).collect())
        };
        let other = CheckedBackend { verify, conflicts };
        let of = |backend: &CheckedBackend, ports: &[u16], on_conflict| {
            let compared = backend.compare(&map(ports, on_conflict), &tag).unwrap();
            (compared.drifts.len(), compared.any, compared.loopback == Loopback::Unpublished)
        };
        assert_eq!(of(&other, &[80, 81], KeepFirst), (0, false, false));
        assert_eq!(of(&other, &[80, 81], Refuse), (1, false, false));
        assert_eq!(of(&other, &[80], KeepFirst), (0, true, true), "it has no rule, and so no loopback");
        assert_eq!(of(&other, &[81], KeepFirst), (0, false, false));
        let free = CheckedBackend { verify, conflicts: |_, _| Ok(Vec::new()) };
        assert_eq!(of(&free, &[80, 81], KeepFirst), (1, false, false), "nobody has it");

        let kept = other.without_conflicts(&map(&[80, 81], KeepFirst), &tag).unwrap();
        assert_eq!(kept.mappings, map(&[81], KeepFirst).mappings);
        let said = other.without_conflicts(&map(&[80, 81], Refuse), &tag).unwrap_err().to_string();
        assert!(said.contains("tcp 80 of the host leads to c2 already"), "{said}");
        assert_eq!(free.without_conflicts(&map(&[80, 81], Refuse), &tag).unwrap().mappings.len(), 2);
        let shown = PublishedPorts::of(map(&[80, 81], Refuse)).to_string();
        assert!(shown.starts_with("port mappings: ") && shown.contains(", "), "{shown}");
    }

    #[test]
    fn addresses_that_no_container_can_have_are_recognised() {
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
}
