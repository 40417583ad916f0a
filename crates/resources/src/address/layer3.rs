//! Addresses and routes of the container's end.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use cnikit_netlink::{Address, Batch, KernelRoute, Link, LinkChange, MAIN_TABLE, Netlink, NewAddress};
use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_process::Deadline;
use cnikit_skel::{Error, Journal, Result, log};
use cnikit_types::{Ip, limit};
use ipnetwork::IpNetwork;

use crate::address::{ipv6_ready, router_adverts};
use crate::link::veth;

/// The container's interface has these addresses and routes, and is up: one batch.
#[derive(Clone, Debug)]
pub struct Layer3 {
    /// The interface.
    pub ifname: String,
    /// Its addresses.
    pub addresses: Vec<IpNetwork>,
    /// Each address brings a route to its prefix, as usual.
    pub prefix_routes: bool,
    /// Routes, in the order in which they are made; each over this interface.
    pub routes: Vec<KernelRoute>,
    /// Whether others on the segment may hold the same IPv6 address.
    pub detection: Detection,
    /// It may configure itself further from router advertisements, as the kernel does by default.
    pub slaac: bool,
    /// The segment is told of the addresses when the interface comes up (IPv4 and IPv6).
    pub announce: bool,
}

/// Duplicate address detection (RFC 4862).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DAD")]
pub enum Detection {
    /// The segment is ours, and the IPAM plugin's word counts: addresses are usable at once.
    Off,
    /// Detect, and wait for the outcome.
    Full,
}

impl Detection {
    /// [`Detection::Full`] if it is wished, else none.
    pub fn wished(wish: bool) -> Detection {
        if wish { Detection::Full } else { Detection::Off }
    }
}

/// As long as the reference waits. The kernel needs one to two seconds.
const DETECTION: Duration = Duration::from_secs(5);
/// How long CHECK waits for what settles by itself.
const SETTLING: Duration = Duration::from_secs(2);

/// The kind that these are of.
pub const KIND: Kind = Kind::goes_with_link("layer 3");

impl Resource for Layer3 {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        let crooked = self.routes.iter().find(|route| route.dst.ip() != route.dst.network());
        crooked.map_or(Ok(()), |route| {
            let dst = route.dst;
            let straight = route.dst.network();
            Err(Error::config(format!("the route to {dst} has host bits: its network is {straight}/{}", dst.prefix()))
                .hint("correct `dst` of this route in the IPAM plugin's configuration"))
        })
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        context.netns.enter(|inside| self.settings(inside))??;
        let container = context.container()?;
        let link = container.link(&self.ifname)?;
        container.send(self.batch(link.index))?;
        if self.has_ipv6() {
            self.wait_for_addresses(context, &link)?;
        }
        if veth::is_veth(&link) {
            // Until then the host's answers to the container's first packets would be lost.
            veth::host_end_of(context.host()?, &context.netns, &link)?
                .map_or(Ok(()), |end| veth::wait_running(context.host()?, &end))?;
        }
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let container = context.container()?;
        let Some(link) = container.find_recent_link(&self.ifname)? else { return Ok(()) };
        drifts.unless(link.up, || format!("{}: wanted up, found down", self.ifname));
        self.verify_addresses(&self.settled(context, &link)?, may_pass(&link), drifts);
        self.verify_routes(&container.routes_of(link.index)?, drifts);
        Ok(())
    }
}

impl Layer3 {
    fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(IpNetwork::is_ipv6)
    }

    /// What has to be said in the container's /proc/sys before the interface comes up.
    fn settings(&self, inside: &Inside) -> Result<()> {
        let ifname = &self.ifname;
        if !self.slaac {
            router_adverts::ignore_router_adverts(inside, ifname, &router_adverts::ALL)?;
        }
        if self.has_ipv6() {
            for link in ["lo", ifname] {
                sysctl::set(inside, &format!("net/ipv6/conf/{link}/disable_ipv6"), "0")?;
            }
            sysctl::set(inside, &format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1")?;
        }
        let detect = if self.detection == Detection::Full { "1" } else { "0" };
        let mut wishes = vec![("ipv6", "accept_dad", detect)];
        wishes.extend((self.detection == Detection::Full).then_some(("ipv6", "enhanced_dad", "1")));
        wishes.extend(self.announce.then_some(("ipv4", "arp_notify", "1")));
        wishes.extend(self.announce.then_some(("ipv6", "ndisc_notify", "1")));
        for (family, setting, value) in wishes {
            // A kernel without the family has none of them, and then nobody needs them.
            let _ = sysctl::set(inside, &format!("net/{family}/conf/{ifname}/{setting}"), value);
        }
        Ok(())
    }

    /// Addresses while the link is down, so that coming up announces them; then routes.
    fn batch(&self, index: u32) -> Batch {
        let mut batch = Batch::new();
        for address in &self.addresses {
            let no_dad = self.detection == Detection::Off;
            let new = NewAddress { address: *address, no_dad, no_prefix_route: !self.prefix_routes, scope: 0 };
            batch.add_address(index, &new);
        }
        batch.set_link(index, &LinkChange { up: Some(true), ..LinkChange::default() });
        // A container on two networks gets a default route from each.
        for route in &self.routes {
            batch.add_route_beside(&KernelRoute { index: Some(index), ..route.clone() });
        }
        batch
    }

    /// Waits until IPv6 addresses can be used. While packets cannot pass they cannot, and nobody knows for how long.
    fn wait_for_addresses(&self, context: &ApplyContext, link: &Link) -> Result<()> {
        let container = context.container()?;
        let can_settle = may_pass(&container.link(&self.ifname)?)
            && (self.detection == Detection::Off || self.detect(container, link.index)?);
        if can_settle {
            return ipv6_ready::wait_ipv6_ready(container, &self.addresses);
        }
        log::info(format_args!("{} passes no packets yet: its addresses can be used when it does", self.ifname));
        Ok(())
    }

    /// Waits for the outcome of detection, which comes as an event; not for longer than packets may pass. Says whether there
    /// was one.
    fn detect(&self, container: &Netlink, index: u32) -> Result<bool> {
        let ours = |one: &&Address| self.addresses.contains(&one.address);
        let decided = |found: &[Address]| {
            found.iter().filter(ours).any(|one| one.dad_failed) || found.iter().filter(ours).all(|one| !one.tentative)
        };
        let passes = || container.link_at(index).map(|link| may_pass(&link));
        let ready = |found: &[Address]| decided(found) || passes().is_ok_and(|passes| !passes);
        let found = match container.wait_addresses(index, Deadline::after(DETECTION), ready) {
            Err(error) if error.timed_out() && !container.link_at(index)?.running => return Ok(false),
            found => found?,
        };
        found.iter().filter(ours).find(|one| one.dad_failed).map_or(Ok(decided(&found)), |one| {
            Err(Error::conflict(format!("somebody else on the segment of {} has {}", self.ifname, one.address))
                .hint("duplicate address detection found it: give this network addresses of its own"))
        })
    }

    /// The addresses; those still under detection get a moment.
    fn settled(&self, context: &ApplyContext, link: &Link) -> Result<Vec<Address>> {
        let container = context.container()?;
        let found = container.addresses(link.index)?;
        let waits =
            |one: &Address| may_pass(link) && one.tentative && !one.dad_failed && self.addresses.contains(&one.address);
        if !found.iter().any(waits) {
            return Ok(found);
        }
        let settled = |found: &[Address]| !found.iter().any(waits);
        Ok(container.wait_addresses(link.index, Deadline::after(SETTLING), settled).unwrap_or(found))
    }

    fn verify_addresses(&self, found: &[Address], passes: bool, drifts: &mut Drifts) {
        let texts: Vec<String> = found.iter().map(|one| one.address.to_string()).collect();
        for wanted in &self.addresses {
            let there = found.iter().find(|one| one.address == *wanted);
            drifts.unless(there.is_some(), || {
                format!("address of {}: wanted {wanted}, found [{}]", self.ifname, limit::first(&texts, " "))
            });
            drifts.unless(there.is_none_or(|one| !(one.dad_failed || one.tentative && passes)), || {
                format!(
                    "address of {}: wanted {wanted} usable, found it under duplicate address detection",
                    self.ifname
                )
            });
        }
    }

    /// The routes that the kernel makes with the addresses.
    fn by_prefix(&self) -> Vec<KernelRoute> {
        let brought = self.addresses.iter().filter(|address| self.prefix_routes && !is_whole(**address));
        brought
            .filter_map(|address| IpNetwork::new(address.network(), address.prefix()).ok())
            .map(KernelRoute::to)
            .collect()
    }

    /// A route counts as present in any table: plugins further on may have moved it.
    fn verify_routes(&self, found: &[KernelRoute], drifts: &mut Drifts) {
        let mut ways: HashMap<IpNetwork, Vec<&KernelRoute>> = HashMap::new();
        found.iter().for_each(|one| ways.entry(one.dst).or_default().push(one));
        for wanted in self.routes.iter().chain(&self.by_prefix()) {
            let near = ways.get(&wanted.dst).map(Vec::as_slice).unwrap_or_default();
            drifts.unless(near.iter().any(|one| is_satisfied(wanted, one)), || {
                let near: Vec<String> = near.iter().copied().map(text).collect();
                format!("route of {}: wanted {}, found [{}]", self.ifname, text(wanted), limit::first(&near, ", "))
            });
        }
    }
}

/// Whether packets pass, or will in a moment: there is somebody at the other end, and nobody has yet to let the link in (802.1X)
/// or is testing it.
#[doc(alias = "IF_OPER_DORMANT")]
fn may_pass(link: &Link) -> bool {
    link.carrier && !["DORMANT", "TESTING"].contains(&&*link.operstate)
}

/// An address of a network of its own: there is no route to make.
fn is_whole(address: IpNetwork) -> bool {
    address.prefix() == if address.is_ipv4() { 32 } else { 128 }
}

/// The routes of an answer as the kernel gets them: one without a gateway goes by that of the first address of its family
/// that has one, unless its scope says that it needs none; a gateway outside every prefix is reached directly.
pub fn routes(ips: &[Ip], routes: &[cnikit_types::Route]) -> Vec<KernelRoute> {
    let usual = |ipv4| ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == ipv4);
    let on_link = |gateway| ips.iter().any(|ip| ip.address.contains(gateway));
    let mut seen = HashSet::new();
    let kernels = |route: &cnikit_types::Route| {
        let needs_none = route.scope.is_some_and(|scope| scope >= SCOPE_LINK);
        let gateway = route.gw.or_else(|| usual(route.dst.is_ipv4()).filter(|_| !needs_none));
        KernelRoute {
            gateway,
            onlink: gateway.is_some_and(|gateway| !on_link(gateway)),
            priority: route.priority,
            mtu: route.mtu,
            advmss: route.advmss,
            table: route.table.unwrap_or(MAIN_TABLE),
            scope: route.scope,
            ..KernelRoute::to(route.dst)
        }
    };
    routes.iter().map(kernels).filter(|route| seen.insert(route.clone())).collect()
}

/// The layer 3 of an interface on a segment with others, who are told of it; none without addresses.
pub fn on_segment(ifname: &str, ips: &[Ip], given: &[cnikit_types::Route], detection: Detection) -> Option<Layer3> {
    let layer3 = Layer3 {
        ifname: ifname.to_owned(),
        addresses: ips.iter().map(|ip| ip.address).collect(),
        prefix_routes: true,
        routes: routes(ips, given),
        detection,
        slaac: false,
        announce: true,
    };
    (!ips.is_empty()).then_some(layer3)
}

/// `RT_SCOPE_LINK`: on the link itself.
pub const SCOPE_LINK: u8 = 253;

/// What was said of the way to one destination holds; what was not said is not compared.
fn is_satisfied(wanted: &KernelRoute, found: &KernelRoute) -> bool {
    let said = |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
    (wanted.gateway.is_none() || wanted.gateway == found.gateway)
        && (wanted.source.is_none() || wanted.source == found.source)
        && said(wanted.priority, found.priority)
        && said(wanted.mtu, found.mtu)
        && said(wanted.advmss, found.advmss)
        && (wanted.scope.is_none() || wanted.dst.is_ipv6() || wanted.scope == found.scope)
}

fn text(route: &KernelRoute) -> String {
    let mut text = route.dst.to_string();
    let mut say =
        |what: &str, value: Option<String>| value.iter().for_each(|value| text.extend([" ", what, " ", value]));
    say("via", route.gateway.map(|gateway| gateway.to_string()));
    say("src", route.source.map(|source| source.to_string()));
    say("metric", route.priority.map(|value| value.to_string()));
    say("mtu", route.mtu.map(|value| value.to_string()));
    say("advmss", route.advmss.map(|value| value.to_string()));
    say("scope", route.scope.map(|value| value.to_string()));
    say("table", (route.table != MAIN_TABLE).then(|| route.table.to_string()));
    text
}

impl fmt::Display for Layer3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let routes: Vec<String> = self.routes.iter().map(text).collect();
        write!(f, "{} up with {}", self.ifname, addresses.join(", "))?;
        if !routes.is_empty() {
            write!(f, "; routes {}", routes.join(", "))?;
        }
        f.write_str(if self.detection == Detection::Full { "; duplicate address detection" } else { "" })?;
        f.write_str(if self.slaac { "; router advertisements are followed" } else { "" })
    }
}
