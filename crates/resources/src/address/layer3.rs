//! Addresses and routes of the container's interface.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use cnikit_netlink::{Address, Batch, KernelRoute, Link, LinkChange, MAIN_TABLE, Netlink, NewAddress};
use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Plan, Resource};
use cnikit_process::Deadline;
use cnikit_skel::{Error, Journal, Result, code, log};
use cnikit_types::{Ip, limit};
use ipnetwork::IpNetwork;

use crate::address::ipv6_ready;
use crate::link::bring_up::BringUp;
use crate::link::ipv6_settings;
pub use crate::link::ipv6_settings::Detection;
use crate::link::veth_ends;

/// The container's interface has these addresses and routes, and is up. All of it is made in one batch.
#[derive(Clone, Debug)]
pub struct Layer3 {
    /// The interface.
    pub ifname: String,
    /// The addresses.
    pub addresses: Vec<IpNetwork>,
    /// The kernel adds a route to the prefix of each address, as usual.
    pub prefix_routes: bool,
    /// The routes, in the order in which they are made; each over this interface.
    pub routes: Vec<KernelRoute>,
    /// Duplicate address detection for the IPv6 addresses.
    pub detection: Detection,
    /// The interface may get more addresses and routes from router advertisements, as the kernel does by default.
    pub slaac: bool,
    /// The addresses are announced in the segment when the interface comes up (IPv4 and IPv6).
    pub announce: bool,
}

/// How long ADD waits for duplicate address detection. The kernel needs one to two seconds, and several times meanwhile its lock
/// for all links: 7.7 seconds were measured beside a flood of calls. Upstream gives up after five.
const DETECTION: Duration = Duration::from_secs(20);
/// How long CHECK waits for addresses that are under detection.
const CHECK_DETECTION: Duration = Duration::from_secs(2);

/// The kind of [`Layer3`].
pub const KIND: Kind = Kind::goes_with_link("layer 3");

impl Resource for Layer3 {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        for KernelRoute { dst, .. } in &self.routes {
            let network = dst.network();
            if dst.ip() != network {
                let text = format!("the route to {dst} has host bits: its network is {network}/{}", dst.prefix());
                return Err(Error::config(text).hint("correct `dst` of this route in the IPAM plugin's configuration"));
            }
        }
        if let Some(address) = self.addresses.iter().find(|address| address.is_ipv6())
            && !sysctl::has_ipv6()?
        {
            let text = format!("{} cannot have {address}: this kernel has no IPv6", self.ifname);
            let hint = "boot it without ipv6.disable=1, or remove IPv6 addresses from the IPAM plugin's configuration";
            return Err(Error::new(code::SYSTEM, text).hint(hint));
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        context.netns.enter(|inside| self.settings(inside))??;
        let container = context.container()?;
        let link = container.link(&self.ifname)?;
        container.send(self.batch(link.index))?;
        if self.has_ipv6() {
            self.wait_for_addresses(context, &link)?;
        }
        if veth_ends::is_veth(&link)
            && let Some(end) = veth_ends::host_end_of(context.host()?, &context.netns, &link)?
            && end.up
        // the other end of a host's device may be down, and stays so
        {
            // Until then the host's answers to the container's first packets would be lost.
            veth_ends::wait_running(context.host()?, &end)?;
        }
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let container = context.container()?;
        let Some(link) = container.find_recent_link(&self.ifname)? else { return Ok(()) };
        drifts.unless(link.up, || format!("{}: wanted up, found down", self.ifname));
        self.verify_addresses(&self.addresses_after_detection(context, &link)?, may_pass(&link), drifts);
        self.verify_routes(&container.routes_of(link.index)?, drifts);
        Ok(())
    }
}

impl Layer3 {
    fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(IpNetwork::is_ipv6)
    }

    /// Sets the sysctls of the interface that have to be set before it comes up.
    fn settings(&self, inside: &Inside) -> Result<()> {
        let ifname = &self.ifname;
        if !self.slaac {
            ipv6_settings::ignore_router_adverts(inside, ifname, &ipv6_settings::ALL)?;
        }
        if self.has_ipv6() {
            for link in ["lo", ifname] {
                sysctl::set(inside, &format!("net/ipv6/conf/{link}/disable_ipv6"), "0")?;
            }
            sysctl::set(inside, &format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1")?;
        }
        let mut settings = Vec::new();
        match self.detection {
            Detection::Off => settings.push(("ipv6", "accept_dad", "0")),
            Detection::Full => settings.extend([("ipv6", "accept_dad", "1"), ("ipv6", "enhanced_dad", "1")]),
        }
        if self.announce {
            settings.extend([("ipv4", "arp_notify", "1"), ("ipv6", "ndisc_notify", "1")]);
        }
        set_of_families(inside, ifname, &settings);
        Ok(())
    }

    /// Adds the addresses while the link is down, so that the kernel announces them when it comes up; then the routes.
    fn batch(&self, index: u32) -> Batch {
        let mut batch = Batch::new();
        for address in &self.addresses {
            let no_dad = self.detection == Detection::Off;
            let new = NewAddress::from(*address).no_dad(no_dad).no_prefix_route(!self.prefix_routes);
            if self.slaac && address.is_ipv6() {
                // The kernel may have made it from a router advertisement already, with the router's lifetime.
                batch.add_address_if_absent(index, &new);
            } else {
                batch.add_address(index, &new);
            }
        }
        batch.set_link(index, &LinkChange::default().up(true));
        // A container on two networks gets a default route from each of them.
        for route in &self.routes {
            batch.add_route_beside(&KernelRoute { index: Some(index), ..route.clone() });
        }
        batch
    }

    /// Waits until the IPv6 addresses can be used. If packets cannot pass yet, they cannot be used, for an unknown time: then ADD
    /// does not wait.
    fn wait_for_addresses(&self, context: &ApplyContext, link: &Link) -> Result<()> {
        let container = context.container()?;
        let is_decided = may_pass(&container.link(&self.ifname)?)
            && (self.detection == Detection::Off || self.detect(container, link.index)?);
        if is_decided {
            return ipv6_ready::wait_ipv6_ready(container, &self.addresses);
        }
        log::info(format_args!("{} is not up yet: its addresses can be used when it is", self.ifname));
        Ok(())
    }

    /// Waits for the outcome of duplicate address detection, as long as packets may pass. Returns whether there was an outcome.
    fn detect(&self, container: &Netlink, index: u32) -> Result<bool> {
        let cannot_pass = || container.link_at(index).is_ok_and(|link| !may_pass(&link));
        let is_over = |found: &[Address]| self.is_decided(found) || cannot_pass();
        let found = match container.wait_addresses(index, Deadline::after(DETECTION), is_over) {
            Err(error) if error.timed_out() && !container.link_at(index)?.running => return Ok(false),
            found => found?,
        };
        if let Some(one) = found.iter().find(|one| one.dad_failed && self.addresses.contains(&one.address)) {
            let text = format!("another host on the segment of {} has {}", self.ifname, one.address);
            return Err(Error::conflict(text)
                .hint("duplicate address detection found it: use addresses in this network that no other host has"));
        }
        Ok(self.is_decided(&found))
    }

    /// Whether detection has failed for one of our addresses, or is finished for all of them.
    fn is_decided(&self, found: &[Address]) -> bool {
        let mut all_usable = true;
        for one in found.iter().filter(|one| self.addresses.contains(&one.address)) {
            if one.dad_failed {
                return true;
            }
            all_usable &= !one.tentative;
        }
        all_usable
    }

    /// The addresses of the link. Waits a moment for those that are still under detection.
    fn addresses_after_detection(&self, context: &ApplyContext, link: &Link) -> Result<Vec<Address>> {
        let container = context.container()?;
        let found = container.addresses(link.index)?;
        let is_waiting = |one: &Address| one.tentative && !one.dad_failed && self.addresses.contains(&one.address);
        if !may_pass(link) || !found.iter().any(is_waiting) {
            return Ok(found);
        }
        let is_over = |now: &[Address]| !now.iter().any(is_waiting);
        Ok(container.wait_addresses(link.index, Deadline::after(CHECK_DETECTION), is_over).unwrap_or(found))
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

    /// The routes that the kernel adds for the prefixes of the addresses.
    fn by_prefix(&self) -> Vec<KernelRoute> {
        let mut routes = Vec::new();
        if !self.prefix_routes {
            return routes;
        }
        for address in &self.addresses {
            if !is_single_address(*address)
                && let Ok(network) = IpNetwork::new(address.network(), address.prefix())
            {
                routes.push(KernelRoute::to(network));
            }
        }
        routes
    }

    /// A route may be in any table, because a later plugin of the chain may have moved it.
    fn verify_routes(&self, found: &[KernelRoute], drifts: &mut Drifts) {
        let mut by_destination: HashMap<IpNetwork, Vec<&KernelRoute>> = HashMap::new();
        for one in found {
            by_destination.entry(one.dst).or_default().push(one);
        }
        for wanted in self.routes.iter().chain(&self.by_prefix()) {
            let candidates = by_destination.get(&wanted.dst).map(Vec::as_slice).unwrap_or_default();
            drifts.unless(candidates.iter().any(|one| is_satisfied(wanted, one)), || {
                let texts: Vec<String> = candidates.iter().copied().map(text).collect();
                format!("route of {}: wanted {}, found [{}]", self.ifname, text(wanted), limit::first(&texts, ", "))
            });
        }
    }
}

/// Sets settings of an interface, each of a family. A kernel without the family does not have its settings, and does not need them.
pub(super) fn set_of_families(inside: &Inside, ifname: &str, settings: &[(&str, &str, &str)]) {
    for (family, setting, value) in settings {
        let _ = sysctl::set(inside, &format!("net/{family}/conf/{ifname}/{setting}"), value);
    }
}

/// Whether packets pass, or will in a moment: the link has a carrier, and is not waiting for authentication (802.1X) or under test.
#[doc(alias = "IF_OPER_DORMANT")]
fn may_pass(link: &Link) -> bool {
    link.carrier && !["DORMANT", "TESTING"].contains(&&*link.operstate)
}

/// Whether a prefix has only one address, so that the kernel adds no route for it.
fn is_single_address(address: IpNetwork) -> bool {
    address.prefix() == if address.is_ipv4() { 32 } else { 128 }
}

/// The routes of a CNI result as the kernel takes them, without duplicates.
///
/// A route without a gateway gets that of the first address of its family that has one, unless its scope needs none. A gateway
/// outside of every prefix is reached directly over the link.
pub fn routes(ips: &[Ip], routes: &[cnikit_types::Route]) -> Vec<KernelRoute> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for route in routes {
        let kernels = kernel_route(ips, route);
        if seen.insert(kernels.clone()) {
            all.push(kernels);
        }
    }
    all
}

fn kernel_route(ips: &[Ip], route: &cnikit_types::Route) -> KernelRoute {
    let needs_gateway = route.scope.is_none_or(|scope| scope < SCOPE_LINK);
    let gateway = match route.gw {
        None if needs_gateway => {
            ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == route.dst.is_ipv4())
        }
        own => own,
    };
    let onlink = gateway.is_some_and(|gateway| !ips.iter().any(|ip| ip.address.contains(gateway)));
    KernelRoute {
        gateway,
        onlink,
        priority: route.priority,
        mtu: route.mtu,
        advmss: route.advmss,
        table: route.table.unwrap_or(MAIN_TABLE),
        scope: route.scope,
        ..KernelRoute::to(route.dst)
    }
}

/// The layer 3 of an interface on a segment with other hosts, to which the addresses are announced; `None` without addresses.
pub fn on_segment(ifname: &str, ips: &[Ip], given: &[cnikit_types::Route], detection: Detection) -> Option<Layer3> {
    if ips.is_empty() {
        return None;
    }
    Some(Layer3 {
        ifname: ifname.to_owned(),
        addresses: ips.iter().map(|ip| ip.address).collect(),
        prefix_routes: true,
        routes: routes(ips, given),
        detection,
        slaac: false,
        announce: true,
    })
}

/// The second plan of an interface that leads nowhere. Without addresses it is only set up.
pub fn on_no_segment(ifname: &str, ips: &[Ip], routes: &[cnikit_types::Route]) -> Plan {
    match on_segment(ifname, ips, routes, Detection::Off) {
        Some(layer3) => Plan::of(Layer3 { announce: false, ..layer3 }),
        None => Plan::of(BringUp { ifname: ifname.to_owned(), slaac: false }),
    }
}

/// The second plan of a macvlan, ipvlan, VLAN or TAP device. An interface without addresses is only set up, unless it `is_up`
/// already.
pub fn on_master(
    ifname: &str,
    ips: &[Ip],
    routes: &[cnikit_types::Route],
    dad: bool,
    slaac: bool,
    is_up: bool,
) -> Plan {
    match on_segment(ifname, ips, routes, Detection::wished(dad)) {
        Some(layer3) => Plan::of(Layer3 { slaac, ..layer3 }),
        None if is_up => Plan::default(),
        None => Plan::of(BringUp { ifname: ifname.to_owned(), slaac }),
    }
}

/// `RT_SCOPE_LINK`: the destination is on the link itself.
pub const SCOPE_LINK: u8 = 253;

/// Whether a route has every property that the wanted one has. Properties that the wanted one lacks are not compared.
fn is_satisfied(wanted: &KernelRoute, found: &KernelRoute) -> bool {
    let has = |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
    (wanted.gateway.is_none() || wanted.gateway == found.gateway)
        && (wanted.source.is_none() || wanted.source == found.source)
        && has(wanted.priority, found.priority)
        && has(wanted.mtu, found.mtu)
        && has(wanted.advmss, found.advmss)
        && (wanted.scope.is_none() || wanted.dst.is_ipv6() || wanted.scope == found.scope)
}

/// A route as `ip route` prints it.
pub(crate) fn text(route: &KernelRoute) -> String {
    let properties = [
        ("via", route.gateway.map(|gateway| gateway.to_string())),
        ("src", route.source.map(|source| source.to_string())),
        ("metric", route.priority.map(|value| value.to_string())),
        ("mtu", route.mtu.map(|value| value.to_string())),
        ("advmss", route.advmss.map(|value| value.to_string())),
        ("scope", route.scope.map(|value| value.to_string())),
        ("table", (route.table != MAIN_TABLE).then(|| route.table.to_string())),
    ];
    let mut text = route.dst.to_string();
    for (name, value) in properties {
        if let Some(value) = value {
            text.extend([" ", name, " ", &value]);
        }
    }
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
        f.write_str(if self.slaac { "; router advertisements are accepted" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use cnikit_types::Route;

    use super::*;
    use crate::address::present;

    fn ips(ips: &[(&str, Option<&str>)]) -> Vec<Ip> {
        let ip = |(address, gateway): &(&str, Option<&str>)| Ip {
            interface: None,
            address: address.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            extra: cnikit_types::Map::default(),
        };
        ips.iter().map(ip).collect()
    }

    fn to(dst: &str) -> KernelRoute {
        KernelRoute::to(dst.parse().unwrap())
    }

    fn route(dst: &str, change: impl FnOnce(&mut Route)) -> Route {
        let mut route = Route::to(dst.parse().unwrap());
        change(&mut route);
        route
    }

    fn layer3(addresses: &[&str], routes: Vec<KernelRoute>) -> Layer3 {
        let addresses: Vec<_> = addresses.iter().map(|address| (*address, None)).collect();
        Layer3 { routes, ..on_segment("eth0", &ips(&addresses), &[], Detection::Full).unwrap() }
    }

    fn address(address: &str, tentative: bool, dad_failed: bool) -> Address {
        Address { tentative, dad_failed, ..present(address) }
    }

    fn drifts(verify: impl FnOnce(&mut Drifts)) -> Vec<String> {
        let mut drifts = Drifts::default();
        verify(&mut drifts);
        drifts.texts().to_vec()
    }

    #[test]
    fn a_route_without_gateway_gets_the_first_of_its_family_unless_its_scope_needs_none() {
        let ips = ips(&[
            ("10.1.0.2/24", None),
            ("10.2.0.2/24", Some("10.2.0.1")),
            ("10.3.0.2/24", Some("10.3.0.1")),
            ("fd00::2/64", Some("fd00::1")),
        ]);
        let via = |dst: &str, scope| {
            kernel_route(&ips, &route(dst, |route| route.scope = scope)).gateway.map(|gateway| gateway.to_string())
        };
        for (dst, scope, gateway) in [
            ("0.0.0.0/0", None, Some("10.2.0.1")),
            ("0.0.0.0/0", Some(0), Some("10.2.0.1")),
            ("0.0.0.0/0", Some(252), Some("10.2.0.1")),
            ("0.0.0.0/0", Some(SCOPE_LINK), None),
            ("0.0.0.0/0", Some(254), None),
            ("::/0", None, Some("fd00::1")),
        ] {
            assert_eq!(via(dst, scope).as_deref(), gateway, "{dst} {scope:?}");
        }
    }

    #[test]
    fn a_gateway_outside_of_every_prefix_is_on_the_link() {
        let ips = ips(&[("10.1.0.2/24", None), ("10.2.0.2/24", None)]);
        for (gateway, onlink) in [(None, false), (Some("10.2.0.9"), false), (Some("10.3.0.1"), true)] {
            let gw = gateway.map(|gateway| gateway.parse().unwrap());
            let kernels = kernel_route(&ips, &route("0.0.0.0/0", |route| route.gw = gw));
            assert_eq!((kernels.gateway, kernels.onlink), (gw, onlink));
        }
    }

    #[test]
    fn a_route_of_the_result_has_its_properties_and_is_made_once() {
        let full = route("192.0.2.0/24", |route| {
            (route.priority, route.mtu, route.advmss, route.table, route.scope) =
                (Some(5), Some(1400), Some(1300), Some(100), Some(SCOPE_LINK));
        });
        let wanted = KernelRoute {
            priority: Some(5),
            mtu: Some(1400),
            advmss: Some(1300),
            table: 100,
            scope: Some(SCOPE_LINK),
            ..to("192.0.2.0/24")
        };
        let other = route("198.51.100.0/24", |_| ());
        assert_eq!(routes(&[], &[full.clone(), other, full]), [wanted, to("198.51.100.0/24")]);
    }

    #[test]
    fn without_addresses_nothing_is_made_on_a_segment_and_an_interface_is_set_up_unless_it_is() {
        let own = ips(&[("10.1.0.2/24", None)]);
        assert!(on_segment("eth0", &[], &[], Detection::Full).is_none());
        let layer3 = on_segment("eth0", &own, &[], Detection::Off).unwrap();
        assert!(layer3.announce && layer3.prefix_routes && !layer3.slaac && layer3.detection == Detection::Off);
        let kinds = |plan: Plan| plan.iter().map(|one| one.kind().name).collect::<Vec<_>>();
        let up = BringUp { ifname: String::new(), slaac: false }.kind().name;
        assert_eq!(kinds(on_no_segment("eth0", &[], &[])), [up]);
        assert_eq!(kinds(on_no_segment("eth0", &own, &[])), [KIND.name]);
        assert_eq!(kinds(on_master("eth0", &own, &[], true, true, true)), [KIND.name]);
        assert_eq!(kinds(on_master("eth0", &[], &[], true, true, false)), [up]);
        assert!(on_master("eth0", &[], &[], true, true, true).is_empty());
    }

    #[test]
    fn ipv6_is_needed_for_an_address_of_ipv6_alone() {
        assert!(layer3(&["10.1.0.2/24", "fd00::2/64"], Vec::new()).has_ipv6());
        assert!(!layer3(&["10.1.0.2/24"], Vec::new()).has_ipv6());
    }

    #[test]
    fn detection_is_decided_when_all_own_addresses_are_usable_or_one_is_not() {
        let layer3 = layer3(&["fd00::2/64", "fd00::3/64"], Vec::new());
        for (found, is_decided) in [
            (vec![address("fd00::2/64", false, false), address("fd00::3/64", false, false)], true),
            (vec![address("fd00::2/64", false, false), address("fd00::3/64", true, false)], false),
            (vec![address("fd00::2/64", true, false), address("fd00::3/64", true, true)], true),
            (vec![address("fd00::2/64", false, false), address("fd00::9/64", true, false)], true),
            (vec![address("fd00::2/64", true, false), address("fd00::9/64", true, true)], false),
        ] {
            assert_eq!(layer3.is_decided(&found), is_decided, "{found:?}");
        }
    }

    #[test]
    fn an_address_has_to_be_there_and_usable_if_packets_pass() {
        let layer3 = layer3(&["fd00::2/64"], Vec::new());
        let missing = "address of eth0: wanted fd00::2/64, found [fd00::3/64]";
        let unusable = "address of eth0: wanted fd00::2/64 usable, found it under duplicate address detection";
        for (found, passes, text) in [
            (address("fd00::2/64", false, false), true, None),
            (address("fd00::3/64", false, false), true, Some(missing)),
            (address("fd00::2/64", true, false), true, Some(unusable)),
            (address("fd00::2/64", true, false), false, None),
            (address("fd00::2/64", false, true), false, Some(unusable)),
        ] {
            let found = [found];
            let drifts = drifts(|drifts| layer3.verify_addresses(&found, passes, drifts));
            assert_eq!(drifts.first().map(String::as_str), text, "{found:?} {passes}");
        }
    }

    #[test]
    fn the_kernel_adds_a_route_for_each_prefix_of_several_addresses() {
        let addresses = ["10.1.0.2/24", "10.2.0.2/32", "fd00::2/64", "fd01::2/128"];
        let layer3 = layer3(&addresses, vec![to("192.0.2.0/24")]);
        assert_eq!(layer3.by_prefix(), [to("10.1.0.0/24"), to("fd00::/64")]);
        assert_eq!(Layer3 { prefix_routes: false, ..layer3.clone() }.by_prefix(), []);
        let found = [to("192.0.2.0/24"), to("fd00::/64")];
        assert_eq!(
            drifts(|drifts| layer3.verify_routes(&found, drifts)),
            ["route of eth0: wanted 10.1.0.0/24, found []"]
        );
    }

    #[test]
    fn each_property_that_a_route_is_wanted_with_is_compared_but_the_scope_of_ipv6() {
        let full = |dst: &str| KernelRoute {
            gateway: Some([10, 1, 0, 1].into()),
            source: Some([10, 1, 0, 2].into()),
            priority: Some(5),
            mtu: Some(1400),
            advmss: Some(1300),
            scope: Some(0),
            table: 100,
            ..to(dst)
        };
        let wanted = full("10.0.0.0/8");
        assert!(is_satisfied(&to("10.0.0.0/8"), &wanted) && is_satisfied(&wanted, &wanted));
        let changes: [fn(&mut KernelRoute); 6] = [
            |route| route.gateway = None,
            |route| route.source = None,
            |route| route.priority = Some(6),
            |route| route.mtu = None,
            |route| route.advmss = None,
            |route| route.scope = Some(SCOPE_LINK),
        ];
        for (place, change) in changes.into_iter().enumerate() {
            let mut found = wanted.clone();
            change(&mut found);
            assert!(!is_satisfied(&wanted, &found), "{place}");
        }
        let other_scope = KernelRoute { scope: None, ..full("fd00::/8") };
        assert!(is_satisfied(&full("fd00::/8"), &other_scope));
        assert_eq!(
            text(&wanted),
            "10.0.0.0/8 via 10.1.0.1 src 10.1.0.2 metric 5 mtu 1400 advmss 1300 scope 0 table 100"
        );
        assert_eq!(text(&to("10.0.0.0/8")), "10.0.0.0/8");
    }

    #[test]
    fn packets_pass_with_a_carrier_unless_the_link_waits() {
        for (carrier, operstate, passes) in [
            (true, "UP", true),
            (true, "UNKNOWN", true),
            (true, "DORMANT", false),
            (true, "TESTING", false),
            (false, "UP", false),
        ] {
            let mut link = Link::default();
            (link.carrier, link.operstate) = (carrier, operstate.into());
            assert_eq!(may_pass(&link), passes, "{carrier} {operstate}");
        }
    }

    #[test]
    fn layer_3_is_printed_with_what_is_unusual() {
        let plain = Layer3 { detection: Detection::Off, ..layer3(&["10.1.0.2/24", "fd00::2/64"], Vec::new()) };
        assert_eq!(plain.to_string(), "eth0 up with 10.1.0.2/24, fd00::2/64");
        let more =
            Layer3 { detection: Detection::Full, slaac: true, routes: vec![to("10.0.0.0/8"), to("::/0")], ..plain };
        assert_eq!(
            more.to_string(),
            "eth0 up with 10.1.0.2/24, fd00::2/64; routes 10.0.0.0/8, ::/0; duplicate address detection; router advertisements \
             are accepted"
        );
    }
}
