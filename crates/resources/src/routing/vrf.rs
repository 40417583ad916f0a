//! VRFs (virtual routing and forwarding): the container's interface becomes a member of a VRF, and its packets are routed by the
//! table of the VRF.
//!
//! The kernel restarts an interface that joins or leaves a VRF: it loses its routes and its IPv6 addresses. The addresses stay
//! because of the setting `keep_addr_on_down`, which is set meanwhile, and the routes are added again, in the other table.
//! What was before is stored in a file, so that DEL and GC give it back; see `state_file.rs`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_netlink::{Address, Link, LinkChange, MAIN_TABLE, Netlink, RouteCopy};
use cnikit_netns::{Inside, Netns, sysctl};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_process::Deadline;
use cnikit_skel::{Error, Journal, NetnsLookup, Result, code};
use cnikit_store::Directory;
use cnikit_types::{NetConf, limit};
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::address::layer3;
use crate::identity::recorded::has_mac_of;
use crate::link::delete_links::delete;
use crate::routing::changes::RoutingChanges;
use crate::routing::route_index::RouteIndex;
use crate::routing::stored_route::StoredRoute;
use crate::routing::tables::{FreeTables, Rules};
use crate::state_file::StateFile;
use crate::state_file::StoredState;
use crate::{lock_netns, state_file, stored_file};

/// Where states are stored unless `dataDir` is configured. A reboot empties it, and the containers are gone then too.
const DEFAULT_DIR: &str = "/run/cni/vrf";
/// The first table that is chosen automatically.
const FIRST_TABLE: u32 = 1;
/// The end of "others that ..." in messages about the lock.
const LOCKED_FOR: &str = "change its routing";
/// The alias of a VRF that was made here, whichever attachment made it.
const ALIAS: &str = "cnikit VRF";
/// The kind of link.
const VRF: &str = "vrf";
/// How long IPv6 addresses may take to be usable again.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Settings of an interface that is about to restart: its IPv6 addresses stay, and they are not detected again.
const KEEPING: [(&str, &str); 2] = [("keep_addr_on_down", "1"), ("accept_dad", "0")];

/// The container's interface is a member of a VRF, which is made if it does not exist. DEL and GC remove the VRF with its last
/// member, if it was made here.
#[derive(Clone, Debug)]
pub struct VrfMember {
    /// The interface.
    pub ifname: String,
    /// The name of the VRF.
    pub vrf: String,
    /// The table of the VRF; otherwise that of an existing VRF, or one that nothing uses.
    pub table: Option<u32>,
    /// The addresses of the interface in the previous result, for CHECK.
    pub addresses: Vec<IpNetwork>,
    /// The directory in which the state is stored; see [`data_dir`].
    pub data_dir: PathBuf,
}

/// The kind of [`VrfMember`].
pub const KIND: Kind = Kind { name: "VRF", release, sweep, outlives_link: true };

/// What one attachment changed in its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VrfState {
    /// The number of the interface.
    index: u32,
    vrf: String,
    table: u32,
    /// This attachment made the VRF.
    is_created: bool,
    /// The routes of the interface from before.
    routes: Vec<StoredRoute>,
    /// The IPv6 settings of the interface from before.
    settings: Vec<(String, String)>,
}

impl StoredState for VrfState {
    const ENDING: &'static str = ".vrf.json";
}

/// The directory of the states: `dataDir`. DEL and GC read nothing else of the configuration but the VRF's name.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    stored_file::data_dir(conf, DEFAULT_DIR)
}

/// Checks that this kernel has VRFs, and that a state could be stored in `dir`.
///
/// # Errors
/// The kernel has no VRFs, or a file could not be created, see [`Directory::probe_at`].
pub fn available(dir: &Path) -> Result<()> {
    known()?;
    Ok(Directory::probe_at(dir)?)
}

/// Checks that this kernel has VRFs.
///
/// # Errors
/// It has none, or cannot be asked.
pub fn known() -> Result<()> {
    if Netlink::here()?.knows_vrf()? { Ok(()) } else { Err(no_vrf()) }
}

impl Resource for VrfMember {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let container = context.container()?;
        let vrf = self.existing(container)?;
        self.free_link(container, context, vrf.as_ref())?;
        if vrf.is_none() {
            if !container.knows_vrf()? {
                return Err(no_vrf());
            }
            self.new_table(container)?;
        }
        Ok(Directory::probe_at(&self.data_dir)?)
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let _lock = lock_netns::of(&context.netns, LOCKED_FOR)?;
        let container = context.container()?;
        let existing = self.existing(container)?;
        let link = self.free_link(container, context, existing.as_ref())?;
        let file = StateFile::open::<VrfState>(context, &self.data_dir)?;
        let before = file.state::<VrfState>(context)?.filter(|state| state.index == link.index);
        let is_member = existing.as_ref().is_some_and(|vrf| link.master == Some(vrf.index));
        if is_member && before.is_some() {
            return Ok(Made::nothing());
        }
        let table = match &existing {
            Some(vrf) => vrf.vrf_table.unwrap_or_default(),
            None => self.new_table(container)?,
        };
        let routes = if is_member { Vec::new() } else { container.route_copies_of(link.index)? };
        let state = VrfState {
            index: link.index,
            vrf: self.vrf.clone(),
            table,
            is_created: existing.is_none(),
            routes: StoredRoute::all(routes.into_iter().filter(|copy| !copy.route().is_of_host())),
            // Those of an earlier ADD that was killed: the interface may still have the settings of a restart.
            settings: match before {
                Some(before) => before.settings,
                None => context.netns.enter(|inside| settings(inside, &self.ifname))?,
            },
        };
        file.record(&self.data_dir, journal, &state)?;
        if is_member {
            return Ok(Made::nothing());
        }
        let step = Step { container: container.clone(), netns: context.netns.clone(), link, state };
        let vrf = match existing {
            Some(vrf) => vrf.index,
            None => step.create_vrf(journal)?,
        };
        let _ = journal.undo(&step, Step::leave);
        step.join(vrf)?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let VrfMember { ifname, vrf: name, .. } = self;
        let container = context.container()?;
        let Some(vrf) = container.find_link(name)? else {
            drifts.unless(false, || format!("VRF {name}: wanted in the container, found none"));
            return Ok(());
        };
        if vrf.kind.as_deref() != Some(VRF) {
            drifts.unless(false, || not_a_vrf(name));
            return Ok(());
        }
        let table = vrf.vrf_table.unwrap_or_default();
        if let Some(wanted) = self.table {
            drifts.compare(format!("table of VRF {name}"), wanted, table);
        }
        drifts.unless(vrf.up, || format!("VRF {name}: wanted up, found down"));
        let Some(link) = container.find_recent_link(ifname)? else {
            drifts.unless(false, || format!("interface {ifname}: wanted in the container, found none"));
            return Ok(());
        };
        drifts.unless(link.master == Some(vrf.index), || format!("failed to find {ifname} associated to vrf {name}"));
        self.verify_addresses(&container.addresses(link.index)?, drifts);
        let state = state_file::find::<VrfState>(context, &self.data_dir)?;
        let Some(state) = state.filter(|state| state.index == link.index) else { return Ok(()) };
        let copies = container.route_copies_of(link.index)?;
        let found = RouteIndex::of(&copies);
        for StoredRoute(route) in &state.routes {
            let wanted = placed(route, MAIN_TABLE, table);
            drifts.unless(found.has(&wanted), || {
                let candidates: Vec<String> = copies
                    .iter()
                    .filter(|copy| copy.route().dst == wanted.route().dst)
                    .map(|copy| layer3::text(copy.route()))
                    .collect();
                let wanted = layer3::text(wanted.route());
                format!("route of {ifname}: wanted {wanted}, found [{}]", limit::first(&candidates, ", "))
            });
        }
        Ok(())
    }
}

impl VrfMember {
    /// The kernel removes the IPv6 addresses of an interface that joins a VRF, unless that is prevented.
    fn verify_addresses(&self, found: &[Address], drifts: &mut Drifts) {
        let texts: Vec<String> = found.iter().map(|one| one.address.to_string()).collect();
        for wanted in &self.addresses {
            let is_there = found.iter().any(|one| one.address == *wanted);
            drifts.unless(is_there, || {
                format!("address of {}: wanted {wanted}, found [{}]", self.ifname, limit::first(&texts, " "))
            });
        }
    }

    /// The VRF if it exists, with the configured table.
    fn existing(&self, container: &Netlink) -> Result<Option<Link>> {
        let name = &self.vrf;
        let Some(vrf) = container.find_link(name)? else { return Ok(None) };
        if vrf.kind.as_deref() != Some(VRF) {
            return Err(Error::conflict(not_a_vrf(name)).hint("choose another `vrfname`"));
        }
        let table = vrf.vrf_table.unwrap_or_default();
        if self.table.is_some_and(|wanted| wanted != table) {
            let text = format!("VRF {name} already exist with different routing table {table}");
            return Err(Error::conflict(text).hint("configure this `table`, remove the key, or use another `vrfname`"));
        }
        Ok(Some(vrf))
    }

    /// The interface, which has no master yet, or has this VRF.
    fn free_link(&self, container: &Netlink, context: &ApplyContext, vrf: Option<&Link>) -> Result<Link> {
        let ifname = &self.ifname;
        let Some(link) = container.find_link(ifname)? else {
            let text = format!("could not get link by name {ifname} in {}", context.sandbox);
            return Err(
                Error::conflict(text).hint("a plugin that makes the interface has to come before this one in the list")
            );
        };
        match link.master {
            Some(master) if vrf.is_none_or(|vrf| vrf.index != master) => {
                let name = container.find_link_at(master)?.map_or_else(|| format!("link {master}"), |link| link.name);
                let text = format!("interface {ifname} has already a master set: {name}");
                Err(Error::conflict(text).hint("an interface is a member of one VRF or bridge"))
            }
            _ => Ok(link),
        }
    }

    /// The table of a VRF that is to be made.
    fn new_table(&self, container: &Netlink) -> Result<u32> {
        let rules = Rules::read(container)?;
        let Some(table) = self.table else { return FreeTables::from(FIRST_TABLE, container, &rules)?.take() };
        let user = table_user(container, &rules, table)?;
        let Some(user) = user else { return Ok(table) };
        let text = format!("table {table} for VRF {} is in use by {user}", self.vrf);
        Err(Error::conflict(text).hint("choose another `table`, or remove the key: then a free one is used"))
    }
}

/// What uses a table: a VRF, a rule or a route.
fn table_user(container: &Netlink, rules: &Rules, table: u32) -> Result<Option<String>> {
    if let Some(vrf) = container.links_of_kind(VRF)?.into_iter().find(|vrf| vrf.vrf_table == Some(table)) {
        return Ok(Some(format!("VRF {}", vrf.name)));
    }
    if let Some(rule) = rules.all.iter().find(|rule| rule.table == table) {
        let source = rule.source.map_or_else(|| "all".to_owned(), |source| source.to_string());
        return Ok(Some(format!("the routing rule {}: from {source} lookup {table}", rule.priority)));
    }
    let route = container.any_route_of(table)?;
    Ok(route.map(|route| format!("the route {}", layer3::text(&route))))
}

impl fmt::Display for VrfMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} a member of VRF {}, ", self.ifname, self.vrf)?;
        match self.table {
            Some(table) => write!(f, "table {table}")?,
            None => f.write_str("a free table unless it exists")?,
        }
        write!(f, "; the old state is stored in {}", self.data_dir.display())
    }
}

fn not_a_vrf(name: &str) -> String {
    format!("Netlink {name} is not a VRF")
}

fn no_vrf() -> Error {
    Error::new(code::SYSTEM, "this kernel has no VRF").hint("`modprobe vrf`, or boot a kernel that has it")
}

fn ipv6_key(ifname: &str, setting: &str) -> String {
    format!("net/ipv6/conf/{ifname}/{setting}")
}

/// The IPv6 settings of an interface that are changed while it restarts. A kernel without IPv6 has none.
fn settings(inside: &Inside, ifname: &str) -> Vec<(String, String)> {
    let mut before = Vec::new();
    for (setting, _) in KEEPING {
        if let Ok(value) = sysctl::read(inside, &ipv6_key(ifname, setting)) {
            before.push((setting.to_owned(), value));
        }
    }
    before
}

/// The route in the table that it belongs to after its interface has changed from one table to another.
fn placed(route: &RouteCopy, from: u32, to: u32) -> RouteCopy {
    if route.route().table == from { route.in_table(to) } else { route.clone() }
}

/// The membership of this attachment, for ADD and for the journal.
#[derive(Clone)]
struct Step {
    container: Netlink,
    netns: Netns,
    link: Link,
    state: VrfState,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in VRF {}", self.link.name, self.state.vrf)
    }
}

impl Step {
    /// Makes the VRF, and returns its number.
    fn create_vrf(&self, journal: &mut Journal) -> Result<u32> {
        let VrfState { vrf, table, .. } = &self.state;
        let undo = journal.undo(self, Step::remove_vrf);
        let made = match self.container.create_vrf(vrf, *table) {
            Err(error) if error.exists() => {
                journal.strike(undo); // it is another program's
                return Err(error.into());
            }
            made => made?,
        };
        let alias = LinkChange::default().alias(ALIAS.to_owned());
        self.container.change(made.index, &alias)?;
        Ok(made.index)
    }

    fn remove_vrf(&self) -> Result<()> {
        match find_vrf(&self.container, &self.state)? {
            Some(vrf) => remove_if_empty(&self.container, &vrf),
            None => Ok(()),
        }
    }

    fn join(&self, vrf: u32) -> Result<()> {
        let wanted = self.state.routes.iter().map(|StoredRoute(route)| placed(route, MAIN_TABLE, self.state.table));
        let wanted: Vec<RouteCopy> = wanted.collect();
        let missing = self.restart(vrf, &wanted)?;
        Ok(RoutingChanges { add_routes: missing, ..RoutingChanges::default() }.apply(&self.container)?)
    }

    /// Takes the interface out of the VRF, if it is in it, and gives back its routes.
    fn leave(&self) -> Result<()> {
        let vrf = find_vrf(&self.container, &self.state)?;
        leave(&self.container, &self.netns, &self.link.name, vrf.as_ref(), &self.state)
    }

    fn restart(&self, master: u32, wanted: &[RouteCopy]) -> Result<Vec<RouteCopy>> {
        restart(&self.container, &self.netns, &self.link, master, &self.state.settings, wanted)
    }
}

/// Gives an interface another master, 0 for none, which restarts it. Returns those of the wanted routes that it does not have then.
fn restart(
    container: &Netlink,
    netns: &Netns,
    link: &Link,
    master: u32,
    settings: &[(String, String)],
    wanted: &[RouteCopy],
) -> Result<Vec<RouteCopy>> {
    let addresses = container.addresses(link.index)?;
    netns.enter(|inside| {
        for (setting, value) in KEEPING {
            set(inside, &link.name, setting, value);
        }
    })?;
    let change = LinkChange::default().master(master);
    let restarted = container.change(link.index, &change);
    let waited = match &restarted {
        Ok(()) => wait_addresses(container, link, &addresses),
        Err(_) => Ok(()),
    };
    netns.enter(|inside| {
        for (setting, value) in settings {
            set(inside, &link.name, setting, value);
        }
    })?;
    restarted?;
    waited?;
    let copies = container.route_copies_of(link.index)?;
    let found = RouteIndex::of(&copies);
    Ok(wanted.iter().filter(|route| !found.has(route)).cloned().collect())
}

/// Gives back the settings that a call, killed during a restart, left at the values of [`KEEPING`].
fn end_restart(netns: &Netns, link: &Link, settings: &[(String, String)]) -> Result<()> {
    Ok(netns.enter(|inside| {
        for (setting, value) in settings {
            let found = sysctl::read(inside, &ipv6_key(&link.name, setting)).unwrap_or_default();
            if KEEPING.contains(&(setting, found.trim())) {
                set(inside, &link.name, setting, value);
            }
        }
    })?)
}

/// Sets an IPv6 setting of an interface. A kernel without IPv6 has no such setting, and needs none.
fn set(inside: &Inside, ifname: &str, setting: &str, value: &str) {
    let _ = sysctl::set(inside, &ipv6_key(ifname, setting), value);
}

/// Waits until the IPv6 addresses that were usable before are usable again.
fn wait_addresses(container: &Netlink, link: &Link, before: &[Address]) -> Result<()> {
    let is_kept = |one: &&Address| one.address.is_ipv6() && one.permanent && one.scope == 0 && !one.tentative;
    let kept: Vec<&Address> = before.iter().filter(is_kept).collect();
    if kept.is_empty() || !link.up || !link.carrier {
        return Ok(());
    }
    let is_usable =
        |now: &[Address], one: &Address| now.iter().any(|found| found.address == one.address && !found.tentative);
    let is_over = |now: &[Address]| kept.iter().all(|one| is_usable(now, one));
    container.wait_addresses(link.index, Deadline::after(TIMEOUT), is_over)?;
    Ok(())
}

/// The VRF of a state, if it is still there.
fn find_vrf(container: &Netlink, state: &VrfState) -> Result<Option<Link>> {
    let found = container.find_link(&state.vrf)?;
    Ok(found.filter(|link| link.kind.as_deref() == Some(VRF) && link.vrf_table == Some(state.table)))
}

/// Takes an interface out of its VRF, if it is a member, and adds its routes to the main table: those that it has in the VRF's
/// table, and those that it had before.
fn leave(container: &Netlink, netns: &Netns, ifname: &str, vrf: Option<&Link>, state: &VrfState) -> Result<()> {
    let Some(link) = container.find_link(ifname)?.filter(|link| link.index == state.index) else { return Ok(()) };
    let copies = container.route_copies_of(link.index)?;
    let mut wanted = Vec::new();
    for copy in copies.iter().filter(|copy| !copy.route().is_of_host()) {
        wanted.push(placed(copy, state.table, MAIN_TABLE));
    }
    let known = RouteIndex::of(&wanted);
    let before: Vec<RouteCopy> =
        state.routes.iter().map(|StoredRoute(route)| route).filter(|route| !known.has(route)).cloned().collect();
    wanted.extend(before);
    let missing = match vrf {
        Some(vrf) if link.master == Some(vrf.index) => restart(container, netns, &link, 0, &state.settings, &wanted)?,
        _ => {
            end_restart(netns, &link, &state.settings)?;
            let found = RouteIndex::of(&copies);
            wanted.iter().filter(|route| !found.has(route)).cloned().collect()
        }
    };
    Ok(RoutingChanges { add_routes: missing, ..RoutingChanges::default() }.give_back(container)?)
}

/// Removes a VRF that has no member any more.
fn remove_if_empty(container: &Netlink, vrf: &Link) -> Result<()> {
    if !container.links_of_master(vrf.index)?.is_empty() {
        return Ok(());
    }
    delete(container, vrf)
}

fn release(context: &ReleaseContext) -> Result<()> {
    if state_file::release(context, &data_dir(&context.conf), give_back)? {
        return Ok(());
    }
    match (&context.netns, context.conf.text("vrfname")) {
        (NetnsLookup::Present(netns), Some(vrf)) => leave_vrf_of_upstream(context, netns, vrf),
        _ => Ok(()),
    }
}

fn sweep(context: &GcContext) -> Result<()> {
    state_file::sweep(context, &data_dir(&context.conf), give_back)
}

fn give_back(state: &VrfState, ifname: &str, netns: &Netns) -> Result<()> {
    let _lock = lock_netns::of(netns, LOCKED_FOR)?;
    let container = Netlink::inside(netns)?;
    let vrf = find_vrf(&container, state)?;
    leave(&container, netns, ifname, vrf.as_ref(), state)?;
    match vrf {
        Some(vrf) if state.is_created || vrf.alias.as_deref() == Some(ALIAS) => remove_if_empty(&container, &vrf),
        _ => Ok(()),
    }
}

/// Takes the interface out of the VRF that upstream's plugin put it into, which stores nothing, and removes the VRF with its last
/// member. The interface has to be the one of prevResult, because the path may be another container's by now. A VRF that was made
/// here is left alone: its members have files.
fn leave_vrf_of_upstream(context: &ReleaseContext, netns: &Netns, name: &str) -> Result<()> {
    let ifname = &context.tag.ifname;
    let container = Netlink::inside(netns)?;
    let _lock = lock_netns::of(netns, LOCKED_FOR)?;
    let Some(vrf) = container.find_link(name)?.filter(|link| link.kind.as_deref() == Some(VRF)) else { return Ok(()) };
    let Some(link) = container.find_link(ifname)?.filter(|link| link.master == Some(vrf.index)) else { return Ok(()) };
    if vrf.alias.as_deref() == Some(ALIAS)
        || context.prev.is_none()
        || !has_mac_of(context.prev.as_ref(), ifname, &link)
    {
        return Ok(());
    }
    let state = VrfState {
        index: link.index,
        vrf: name.to_owned(),
        table: vrf.vrf_table.unwrap_or_default(),
        is_created: false,
        routes: Vec::new(),
        settings: netns.enter(|inside| settings(inside, ifname))?,
    };
    leave(&container, netns, ifname, Some(&vrf), &state)?;
    remove_if_empty(&container, &vrf)
}

#[cfg(test)]
mod tests {
    use cnikit_netlink::KernelRoute;

    use super::*;
    use crate::address::present;

    fn member(table: Option<u32>) -> VrfMember {
        let addresses = ["10.1.0.2/24", "fd00::2/64"].map(|text| text.parse().unwrap()).to_vec();
        VrfMember { ifname: "eth0".into(), vrf: "blue".into(), table, addresses, data_dir: "/run/x".into() }
    }

    #[test]
    fn a_route_of_the_main_table_goes_to_the_table_of_the_vrf_and_back() {
        let route = |table| {
            let route = KernelRoute { index: Some(3), table, ..KernelRoute::to("10.0.0.0/8".parse().unwrap()) };
            RouteCopy::new(&route).unwrap()
        };
        let in_vrf = placed(&route(MAIN_TABLE), MAIN_TABLE, 7);
        assert_eq!(in_vrf.route().table, 7);
        assert_eq!(placed(&in_vrf, 7, MAIN_TABLE).route(), route(MAIN_TABLE).route());
        assert_eq!(placed(&route(9), MAIN_TABLE, 7), route(9), "a table that an operator chose");
    }

    #[test]
    fn an_address_that_the_restart_lost_is_named() {
        let drifts = |there: &[&str]| {
            let there: Vec<Address> = there.iter().map(|text| present(text)).collect();
            let mut drifts = Drifts::default();
            member(None).verify_addresses(&there, &mut drifts);
            drifts.texts().join("; ")
        };
        assert_eq!(drifts(&["fd00::2/64", "10.1.0.2/24"]), "");
        assert_eq!(drifts(&["10.1.0.2/24"]), "address of eth0: wanted fd00::2/64, found [10.1.0.2/24]");
    }

    #[test]
    fn a_membership_is_told_with_its_table() {
        let kept = "; the old state is stored in /run/x";
        assert_eq!(member(Some(7)).to_string(), format!("eth0 a member of VRF blue, table 7{kept}"));
        assert_eq!(member(None).to_string(), format!("eth0 a member of VRF blue, a free table unless it exists{kept}"));
        assert_eq!(ipv6_key("eth0", "accept_dad"), "net/ipv6/conf/eth0/accept_dad");
    }
}
