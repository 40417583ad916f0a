//! Source routing: packets from an address of the container's interface are routed by a table of their own.
//!
//! Rules and tables are in the container. What was changed is stored in a file, so that DEL and GC give it back; see
//! `state_file.rs`. A rule of ours has the protocol number [`PROTOCOL`]; only rules with it, and routes that are
//! exactly as they are stored, are removed.

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_netlink::{Family, Link, MAIN_TABLE, Netlink, RouteCopy, RoutingRule};
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{Error, Journal, NetnsLookup, Result};
use cnikit_store::Directory;
use cnikit_types::{NetConf, limit};
use ipnetwork::IpNetwork;

use crate::address::layer3;
use crate::identity::recorded::has_mac_of;
use crate::routing::changes::RoutingChanges;
use crate::routing::route_index::RouteIndex;
pub use crate::routing::source_state::PROTOCOL;
use crate::routing::source_state::{SourceState, StoredRule};
pub use crate::routing::source_tables::SourceAddress;
use crate::routing::source_tables::{self, WantedRoutes};
use crate::routing::stored_route::StoredRoute;
use crate::routing::tables::{FreeTables, Rules};
use crate::state_file::StateFile;
use crate::{lock_netns, state_file, stored_file};

/// Where states are stored unless `dataDir` is configured. A reboot empties it, and the containers are gone then too.
const DEFAULT_DIR: &str = "/run/cni/sbr";
/// The first table that is chosen automatically.
const FIRST_TABLE: u32 = 100;
/// How many addresses an interface may have: each has a rule, and a table of its own.
const MOST_ADDRESSES: usize = 256;
/// The end of "others that ..." in messages about the lock.
const LOCKED_FOR: &str = "change its routing";

/// Packets from each address are routed by a table: a rule per address.
#[derive(Clone, Debug)]
pub struct SourceRouting {
    /// The interface.
    pub ifname: String,
    /// The addresses, each once.
    pub addresses: Vec<SourceAddress>,
    /// The tables.
    pub tables: SourceTables,
    /// The directory in which the state is stored; see [`data_dir`].
    pub data_dir: PathBuf,
}

/// The tables that packets are routed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceTables {
    /// One for all addresses, whose routes are another program's.
    Fixed(u32),
    /// One per address that nothing uses, with the interface's routes, which leave the main table.
    Automatic {
        /// Routes to the subnets stay in the main table, with the address as source.
        add_source_hints: bool,
    },
}

/// The kind of [`SourceRouting`].
pub const KIND: Kind = Kind { name: "source routing", release, sweep, outlives_link: true };

/// The directory of the states: `dataDir`. DEL and GC read nothing else of the configuration.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    stored_file::data_dir(conf, DEFAULT_DIR)
}

/// Checks that a state could be stored in `dir`.
///
/// # Errors
/// A file could not be created, see [`Directory::probe_at`].
pub fn available(dir: &Path) -> Result<()> {
    Ok(Directory::probe_at(dir)?)
}

impl Resource for SourceRouting {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        if context.record.ips.is_empty() {
            return Err(Error::config(format!("No IP addresses supplied on interface: {}", self.ifname))
                .hint("a plugin that gives the interface an address has to come before this one in the list"));
        }
        if let Err(error) = limit::count("addresses", self.addresses.len(), MOST_ADDRESSES) {
            return Err(Error::config(format!("{}: {error}, and each has a rule", self.ifname)));
        }
        self.link(context.container()?, context).map(drop)
    }

    /// Compares what is wanted with what is there, so a repeated ADD adds nothing. Nothing is changed if the state cannot be
    /// stored.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let _lock = lock_netns::of(&context.netns, LOCKED_FOR)?;
        let container = context.container()?;
        let link = self.link(container, context)?;
        let file = StateFile::open::<SourceState>(context, &self.data_dir)?;
        let before = file.state::<SourceState>(context)?.unwrap_or_default();
        if self.addresses.is_empty() && before == SourceState::default() {
            return Ok(Made::nothing());
        }
        let now = Now::read(container, link.index)?;
        let state = self.wanted_state(container, &before, &now)?;
        let changes = now.changes(&before, &state);
        file.record(&self.data_dir, journal, &state)?;
        let step = Step { container: container.clone(), changes };
        let _ = journal.undo(&step, |step| step.changes.reversed().apply(&step.container));
        step.changes.apply(container)?;
        Ok(Made::nothing())
    }

    /// Without a stored state, as when upstream's plugin made it, the tables are those that the rules name.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let name = &self.ifname;
        let container = context.container()?;
        let Some(link) = container.find_recent_link(name)? else {
            drifts.unless(false, || format!("interface {name}: wanted in the container, found none"));
            return Ok(());
        };
        let state = state_file::find::<SourceState>(context, &self.data_dir)?;
        let now = Now::read(container, link.index)?;
        for address in &self.addresses {
            self.verify_rule(address, state.as_ref(), &now, drifts);
        }
        let Some(state) = state else { return Ok(()) };
        let found = RouteIndex::of(&now.routes);
        for StoredRoute(wanted) in &state.added {
            drifts.unless(found.has(wanted), || {
                format!("route of {name}: wanted {}, found [{}]", text(wanted), now.routes_to(wanted))
            });
        }
        for StoredRoute(moved) in &state.moved {
            drifts.unless(!found.has(moved), || {
                format!("route of {name}: wanted {} not in the main table, found it there", text(moved))
            });
        }
        Ok(())
    }
}

impl SourceRouting {
    fn link(&self, container: &Netlink, context: &ApplyContext) -> Result<Link> {
        let absent = || {
            let text = format!("Cannot find network interface {}: Link not found in {}", self.ifname, context.sandbox);
            Error::conflict(text).hint("a plugin that makes the interface has to come before this one in the list")
        };
        container.find_recent_link(&self.ifname)?.ok_or_else(absent)
    }

    /// The state after this ADD. Addresses keep the table that an earlier ADD chose for them.
    fn wanted_state(&self, container: &Netlink, before: &SourceState, now: &Now) -> Result<SourceState> {
        let mut tables = FreeTables::from(FIRST_TABLE, container, &now.rules)?;
        let mut rules = Rules { all: now.rules.all.clone() };
        let mut state = SourceState { index: now.index, ..SourceState::default() };
        for one in &self.addresses {
            let from = host(one.address);
            let earlier = before.rules.iter().find(|stored| stored.from == from && self.takes(stored.table));
            let stored = match (earlier, self.tables) {
                (Some(earlier), _) => earlier.clone(),
                (None, SourceTables::Fixed(table)) => stored_rule(from, table, &rules),
                (None, SourceTables::Automatic { .. }) => stored_rule(from, tables.take()?, &rules),
            };
            rules.all.push(stored.rule());
            state.rules.push(stored);
        }
        if let SourceTables::Automatic { add_source_hints } = self.tables {
            let mut addresses = Vec::new();
            for (address, rule) in self.addresses.iter().zip(&state.rules) {
                addresses.push((*address, rule.table));
            }
            let main = now.main_routes(before);
            let WantedRoutes { added, removed } =
                source_tables::wanted(&addresses, now.index, &main, add_source_hints)?;
            state.added = StoredRoute::all(added);
            state.moved = StoredRoute::all(removed);
        }
        Ok(state)
    }

    /// Whether the configuration allows an address to keep this table.
    fn takes(&self, table: u32) -> bool {
        match self.tables {
            SourceTables::Fixed(fixed) => fixed == table,
            SourceTables::Automatic { .. } => table >= FIRST_TABLE,
        }
    }

    fn verify_rule(&self, one: &SourceAddress, state: Option<&SourceState>, now: &Now, drifts: &mut Drifts) {
        let from = host(one.address);
        let stored = state.and_then(|state| state.rules.iter().find(|rule| rule.from == from));
        let table = match (self.tables, stored) {
            (SourceTables::Fixed(table), _) => Some(table),
            (SourceTables::Automatic { .. }, stored) => stored.map(|rule| rule.table),
        };
        let of_source = now.rules.all.iter().filter(|rule| rule.source == Some(from) && !rule.has_more);
        let found: Vec<u32> = of_source.map(|rule| rule.table).collect();
        let is_there = match table {
            Some(table) => found.contains(&table),
            None => found.iter().any(|table| self.takes(*table)),
        };
        drifts.unless(is_there, || {
            let wanted = table.map_or_else(|| "a table of its own".to_owned(), |table| table.to_string());
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            let found = limit::first(&found, " ");
            format!("routing rule of {}: wanted from {from} lookup {wanted}, found [{found}]", self.ifname)
        });
    }
}

impl fmt::Display for SourceRouting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.ifname;
        let addresses: Vec<String> = self.addresses.iter().map(|one| one.address.ip().to_string()).collect();
        let addresses =
            if addresses.is_empty() { format!("no address of {name}") } else { limit::first(&addresses, ", ") };
        match self.tables {
            SourceTables::Fixed(table) => write!(f, "packets from {addresses} routed by table {table}")?,
            SourceTables::Automatic { add_source_hints } => {
                write!(f, "packets from {addresses} routed by a free table per address, with the routes of {name}")?;
                f.write_str(if add_source_hints { "; its subnets stay in the main table" } else { "" })?;
            }
        }
        write!(f, "; the changes are stored in {}", self.data_dir.display())
    }
}

/// The changes of this ADD, for the journal.
#[derive(Clone)]
struct Step {
    container: Netlink,
    changes: RoutingChanges,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.fmt(f)
    }
}

/// The rules of the container, and the routes of the interface in all tables.
struct Now {
    index: u32,
    rules: Rules,
    routes: Vec<RouteCopy>,
}

impl Now {
    fn read(container: &Netlink, index: u32) -> Result<Now> {
        Ok(Now { index, rules: Rules::read(container)?, routes: container.route_copies_of(index)? })
    }

    /// The interface's routes in the main table, and those that an earlier ADD has removed from it.
    fn main_routes(&self, before: &SourceState) -> Vec<RouteCopy> {
        let ours = index(&before.added);
        let mut main = Vec::new();
        for route in &self.routes {
            if route.route().table == MAIN_TABLE && !ours.has(route) {
                main.push(route.clone());
            }
        }
        if before.index == self.index {
            let found = RouteIndex::of(&self.routes);
            main.extend(before.moved.iter().map(|StoredRoute(moved)| moved).filter(|moved| !found.has(moved)).cloned());
        }
        main
    }

    /// The changes from the present to the wanted state. Of what is there, only what the earlier state lists is removed.
    fn changes(&self, before: &SourceState, wanted: &SourceState) -> RoutingChanges {
        let mut changes = RoutingChanges::default();
        for stored in &wanted.rules {
            if !self.rules.has(&stored.rule()) {
                changes.add_rules.push(stored.rule());
            }
        }
        for stored in &before.rules {
            if !wanted.rules.contains(stored) && self.rules.has(&stored.rule()) {
                changes.delete_rules.push(stored.rule());
            }
        }
        let found = RouteIndex::of(&self.routes);
        for StoredRoute(route) in &wanted.added {
            if !found.has(route) {
                changes.add_routes.push(route.clone());
            }
        }
        let is_wanted = index(&wanted.added);
        for StoredRoute(route) in &before.added {
            if !is_wanted.has(route) {
                changes.delete_routes.extend(found.find(route).cloned());
            }
        }
        for StoredRoute(moved) in &wanted.moved {
            changes.delete_routes.extend(found.find(moved).cloned());
        }
        if before.index == self.index {
            let stays_moved = index(&wanted.moved);
            for StoredRoute(moved) in &before.moved {
                if !stays_moved.has(moved) && !found.has(moved) {
                    changes.add_routes.push(moved.clone());
                }
            }
        }
        changes
    }

    /// For messages: the routes to the same destination.
    fn routes_to(&self, wanted: &RouteCopy) -> String {
        let mut texts = Vec::new();
        for route in &self.routes {
            if route.route().dst == wanted.route().dst {
                texts.push(text(route));
            }
        }
        limit::first(&texts, ", ")
    }
}

fn index(stored: &[StoredRoute]) -> RouteIndex<'_> {
    RouteIndex::of(stored.iter().map(|StoredRoute(copy)| copy))
}

fn text(copy: &RouteCopy) -> String {
    layer3::text(copy.route())
}

fn stored_rule(from: IpNetwork, table: u32, rules: &Rules) -> StoredRule {
    let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
    StoredRule { from, table, priority: rules.free_priority(family) }
}

/// The address alone, as a prefix.
fn host(address: IpNetwork) -> IpNetwork {
    let length = if address.is_ipv4() { 32 } else { 128 };
    IpNetwork::new(address.ip(), length).unwrap_or(address)
}

fn release(context: &ReleaseContext) -> Result<()> {
    if state_file::release(context, &data_dir(&context.conf), give_back)? {
        return Ok(());
    }
    match &context.netns {
        NetnsLookup::Present(netns) => remove_rules_of_upstream(context, netns),
        _ => Ok(()),
    }
}

fn sweep(context: &GcContext) -> Result<()> {
    state_file::sweep(context, &data_dir(&context.conf), give_back)
}

/// Gives back what the state lists, as far as it is still as ADD left it. The routes return to the main table if the interface
/// still exists.
fn give_back(state: &SourceState, ifname: &str, netns: &Netns) -> Result<()> {
    let _lock = lock_netns::of(netns, LOCKED_FOR)?;
    let container = Netlink::inside(netns)?;
    let mut changes = RoutingChanges::default();
    let is_there = container.find_link(ifname)?.is_some_and(|link| link.index == state.index);
    let mut returned = RoutingChanges::default();
    let now = if is_there {
        Now::read(&container, state.index)?
    } else {
        Now { index: state.index, rules: Rules::read(&container)?, routes: Vec::new() }
    };
    for stored in &state.rules {
        if now.rules.has(&stored.rule()) {
            changes.delete_rules.push(stored.rule());
        }
    }
    let found = RouteIndex::of(&now.routes);
    for StoredRoute(added) in &state.added {
        changes.delete_routes.extend(found.find(added).cloned());
    }
    for StoredRoute(moved) in &state.moved {
        if is_there && !found.has(moved) {
            returned.add_routes.push(moved.clone());
        }
    }
    returned.give_back(&container)?;
    Ok(changes.apply(&container)?)
}

/// Removes the rules that upstream's plugin made for this attachment: it stores nothing, so they are recognised by what it always
/// makes. Their source is an address of the interface, they have nothing but a table, which is none of the kernel's own, and no
/// program named itself in them, as ip(8) does.
fn remove_rules_of_upstream(context: &ReleaseContext, netns: &Netns) -> Result<()> {
    let container = Netlink::inside(netns)?;
    let ifname = &context.tag.ifname;
    let Some(link) = container.find_link(ifname)? else { return Ok(()) };
    if context.prev.is_none() || !has_mac_of(context.prev.as_ref(), ifname, &link) {
        return Ok(()); // the path may be another container's by now
    }
    let addresses: Vec<IpNetwork> = container.addresses(link.index)?.iter().map(|one| host(one.address)).collect();
    let is_upstreams = |rule: &&RoutingRule| {
        let is_own_source = rule.source.is_some_and(|source| addresses.contains(&source));
        is_own_source && !rule.has_more && rule.protocol == UPSTREAMS_PROTOCOL && rule.table != MAIN_TABLE
    };
    let _lock = lock_netns::of(netns, LOCKED_FOR)?;
    let delete_rules = Rules::read(&container)?.all.iter().filter(is_upstreams).cloned().collect();
    RoutingChanges { delete_rules, ..RoutingChanges::default() }.apply(&container)?;
    Ok(())
}

/// The protocol number of a rule whose program names none.
#[doc(alias = "RTPROT_UNSPEC")]
const UPSTREAMS_PROTOCOL: u8 = 0;

#[cfg(test)]
mod tests {
    use cnikit_netlink::KernelRoute;

    use super::*;

    fn route(dst: &str, table: u32) -> RouteCopy {
        let route = KernelRoute { index: Some(3), table, ..KernelRoute::to(dst.parse().unwrap()) };
        RouteCopy::new(&route).unwrap()
    }

    fn rule(from: &str, table: u32) -> StoredRule {
        StoredRule { from: from.parse().unwrap(), table, priority: 32765 }
    }

    fn state(rules: &[&StoredRule], added: &[&RouteCopy], moved: &[&RouteCopy]) -> SourceState {
        let [added, moved] = [added, moved].map(|routes| StoredRoute::all(routes.iter().copied().cloned()));
        SourceState { index: 3, rules: rules.iter().copied().cloned().collect(), added, moved }
    }

    fn now(rules: &[&StoredRule], routes: &[&RouteCopy]) -> Now {
        let rules = Rules { all: rules.iter().map(|stored| stored.rule()).collect() };
        Now { index: 3, rules, routes: routes.iter().copied().cloned().collect() }
    }

    fn texts<'a>(routes: impl IntoIterator<Item = &'a RouteCopy>) -> Vec<String> {
        routes.into_iter().map(|copy| format!("{} {}", copy.route().dst, copy.route().table)).collect()
    }

    #[test]
    fn what_is_missing_is_added_and_only_what_was_ours_is_removed() {
        let (main, own) = (route("10.0.0.0/24", MAIN_TABLE), route("10.0.0.0/24", 100));
        let wanted = state(&[&rule("10.0.0.2/32", 100)], &[&own], &[&main]);
        let nothing = SourceState { index: 3, ..SourceState::default() };
        let foreign = rule("10.0.0.9/32", 100);
        let first = now(&[&foreign], &[&main]).changes(&nothing, &wanted);
        assert_eq!((first.add_rules, first.delete_rules), (vec![wanted.rules[0].rule()], Vec::new()));
        assert_eq!((texts(&first.add_routes), texts(&first.delete_routes)), (texts([&own]), texts([&main])));

        let made = now(&[&wanted.rules[0], &foreign], &[&own]);
        let again = made.changes(&wanted, &wanted);
        assert_eq!(again.to_string(), "changes of 0 routing rules and 0 routes", "a second ADD has nothing to do");

        let back = made.changes(&wanted, &nothing);
        assert_eq!((back.add_rules, back.delete_rules), (Vec::new(), vec![wanted.rules[0].rule()]));
        assert_eq!((texts(&back.add_routes), texts(&back.delete_routes)), (texts([&main]), texts([&own])));

        let elsewhere = now(&[], &[&main]).changes(&wanted, &nothing);
        assert_eq!(elsewhere.to_string(), "changes of 0 routing rules and 0 routes", "all is as it was already");
        let other_link = SourceState { index: 9, ..wanted.clone() };
        assert_eq!(texts(&made.changes(&other_link, &nothing).add_routes), [""; 0], "its routes went with that link");
    }

    #[test]
    fn a_repeated_add_counts_the_routes_that_it_moved_and_not_those_that_it_added() {
        let (first, second) = (route("10.0.0.0/24", MAIN_TABLE), route("10.1.0.0/24", MAIN_TABLE));
        let (own, hint) = (route("10.0.0.0/24", 100), route("10.2.0.0/24", MAIN_TABLE));
        let before = state(&[], &[&own, &hint], &[&first]);
        let there = now(&[], &[&own, &hint, &second]);
        assert_eq!(texts(&there.main_routes(&before)), texts([&second, &first]));
        assert_eq!(texts(&there.main_routes(&SourceState { index: 9, ..before.clone() })), texts([&second]));
        let returned = now(&[], &[&first, &second]);
        assert_eq!(texts(&returned.main_routes(&before)), texts([&first, &second]), "each once");
    }

    #[test]
    fn a_rule_is_missed_unless_its_table_is_the_one_that_was_made_or_is_allowed() {
        let of =
            |tables| SourceRouting { ifname: "eth0".into(), addresses: Vec::new(), tables, data_dir: PathBuf::new() };
        let fixed = of(SourceTables::Fixed(100));
        let automatic = of(SourceTables::Automatic { add_source_hints: false });
        let one = SourceAddress { address: "10.0.0.2/24".parse().unwrap(), gateway: None, has_static_gateway: false };
        let drift = |routing: &SourceRouting, state: Option<&SourceState>, rules: &[&StoredRule]| {
            let mut drifts = Drifts::default();
            routing.verify_rule(&one, state, &now(rules, &[]), &mut drifts);
            drifts.texts().join("; ")
        };
        let [right, other, low] = [100, 101, 99].map(|table| rule("10.0.0.2/32", table));
        assert_eq!(drift(&fixed, None, &[&right]), "");
        let said = "routing rule of eth0: wanted from 10.0.0.2/32 lookup 100, found [101]";
        assert_eq!(drift(&fixed, None, &[&other]), said);
        assert_eq!(drift(&automatic, None, &[&other]), "");
        assert!(drift(&automatic, None, &[&low]).contains("lookup a table of its own, found [99]"));
        let stored = state(&[&right], &[], &[]);
        assert_eq!(drift(&automatic, Some(&stored), &[&other]), said);
        assert!(drift(&automatic, None, &[&rule("10.0.0.3/32", 100)]).ends_with("found []"), "of another address");
        let hints = of(SourceTables::Automatic { add_source_hints: true });
        assert!(fixed.takes(100) && !fixed.takes(101) && automatic.takes(100) && !automatic.takes(99));
        assert!(fixed.to_string().starts_with("packets from no address of eth0 routed by table 100; "), "{fixed}");
        assert!(hints.to_string().contains("its subnets stay in the main table"), "{hints}");
    }
}
