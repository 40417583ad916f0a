//! `ipam`: the addresses of host-local and of pools with their holders, the leaked ones, and freeing those; and the pools of many
//! nodes, about which the program `cnikit-agent` is asked.
//!
//! Proven and suspected leaks are distinguished. A leak is proven in three cases: by the index, the reservation was made before
//! this boot; a crash left its file without content; or the cookie of its namespace was recorded, and no living namespace has
//! it. A missing path or a missing cached attachment proves nothing, because the address may belong to another runtime.

mod adopt;
mod agent;
mod compare;
mod pools;
mod release;
mod whereabouts;

use std::time::Duration;

use cnikit_libcni::{AttachmentSummary, Cache, CachedAttachment};
use cnikit_netlink::{Link, Netlink};
use cnikit_netns::{NetnsScan, NetnsStatus};
use cnikit_reservations::{Holder, Owner, Range, RangeSet, Reservation};
use serde_json::{Value, json};

use crate::cli::{Leaks, Reclaim, ScanScope, StoreFilter, Usage};
use crate::commands::netns_scan::scan;
use crate::commands::show::is_tagged;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::PathInspector;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json};
use crate::output::table::Cell;
use crate::output::text::Tone;
use crate::output::time::{age, ago, rfc3339};
use crate::stores::{NetworkStore, stores};

pub(crate) use adopt::{adopt, import};
pub(crate) use compare::{check, unreserved_addresses};
pub(crate) use pools::{blocks, fence, pools};
pub(crate) use release::release;

/// The resolution of file times: the kernel's tick, rounded up.
const TICK: Duration = Duration::from_millis(20);

/// Whether a reservation is leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// There is no sign of a leak.
    Held,
    /// There is a sign of a leak, but no proof.
    Suspected,
    /// It is proven that no container holds it.
    Leaked,
}

/// A reservation with its verdict.
#[derive(Debug)]
struct Assessed {
    reservation: Reservation,
    verdict: Verdict,
    why: String,
}

/// The reservations of a network.
struct NetworkUsage {
    network: NetworkStore,
    all: Vec<Assessed>,
}

/// What verdicts are based on.
struct Evidence {
    cache: Cache,
    /// Sorted by [`key`].
    attachments: Vec<AttachmentSummary>,
    inspector: PathInspector,
    node: Option<NodeScan>,
}

/// The living namespaces of the node, and the links of the host.
struct NodeScan {
    namespaces: NetnsScan,
    links: Vec<Link>,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Held => "held",
            Verdict::Suspected => "suspected",
            Verdict::Leaked => "leaked",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Verdict::Held => Tone::Good,
            Verdict::Suspected => Tone::Doubtful,
            Verdict::Leaked => Tone::Bad,
        }
    }
}

/// A verdict with its reason.
fn held(why: impl Into<String>) -> (Verdict, String) {
    (Verdict::Held, why.into())
}

fn suspected(why: impl Into<String>) -> (Verdict, String) {
    (Verdict::Suspected, why.into())
}

fn leaked(why: impl Into<String>) -> (Verdict, String) {
    (Verdict::Leaked, why.into())
}

impl Evidence {
    /// Evidence from the cache and from one stat(2) of the path of each namespace.
    fn from_cache(common: &Common) -> Result<Evidence> {
        let cache = environment::cache(common);
        let mut attachments = cache.list()?;
        attachments.sort_by(|one, other| key(one).cmp(&key(other)));
        Ok(Evidence { cache, attachments, inspector: PathInspector::new(), node: None })
    }

    /// As [`Evidence::from_cache`], with all living namespaces of the node and the links of the host.
    fn from_node(common: &Common, scope: ScanScope) -> Result<Evidence> {
        let links = Netlink::here()?.links()?;
        let namespaces = scan(scope);
        Ok(Evidence { node: Some(NodeScan { namespaces, links }), ..Evidence::from_cache(common)? })
    }

    fn assess(&self, network: &str, reservation: Reservation) -> Assessed {
        let (verdict, why) = match &reservation.holder {
            _ if reservation.earlier_boot => leaked("the index proves that it was reserved before this boot"),
            Holder::Lost => leaked("a crash left its file without content"),
            Holder::Unreadable(why) => suspected(why),
            Holder::Of(owner) => self.verdict(network, owner, &reservation),
        };
        Assessed { reservation, verdict, why }
    }

    fn verdict(&self, network: &str, owner: &Owner, reservation: &Reservation) -> (Verdict, String) {
        let Some(ifname) = &owner.ifname else {
            return suspected("an old release wrote it, without the interface");
        };
        let wanted = (network, owner.container.as_str(), ifname.as_str());
        let Ok(index) = self.attachments.binary_search_by(|attachment| key(attachment).cmp(&wanted)) else {
            return suspected("its attachment is not in the cache");
        };
        let attachment = &self.attachments[index];
        if let (Some(node), Some(cookie)) = (&self.node, attachment.metadata.netns_cookie)
            && self.inspector.is_of_this_boot(&attachment.metadata) == Some(true)
        {
            return match self.cache.attachment(network, &owner.container, ifname) {
                Some(cached) => node.verdict(network, &cached, cookie, reservation),
                None => suspected("its attachment was deleted a moment ago"),
            };
        }
        let state = self.inspector.attachment(&attachment.netns, &attachment.metadata);
        if state.is_lost() {
            let path = if attachment.netns.is_empty() { "none" } else { &attachment.netns };
            return suspected(format!("its namespace ({path}) is {}", state.word()));
        }
        held(format!("its namespace is {}", state.word()))
    }
}

/// The identity of an attachment.
fn key(attachment: &AttachmentSummary) -> (&str, &str, &str) {
    (&attachment.network, &attachment.container_id, &attachment.ifname)
}

impl NodeScan {
    /// The verdict by the recorded cookie of the namespace.
    fn verdict(
        &self,
        network: &str,
        cached: &CachedAttachment,
        cookie: u64,
        reservation: &Reservation,
    ) -> (Verdict, String) {
        let status = self.namespaces.status(cookie);
        if status == NetnsStatus::Lives {
            return held(format!("its namespace exists (cookie {cookie})"));
        }
        if let Some(link) = self.host_end(network, cached) {
            return suspected(format!("its namespace is not found, but its link on the host exists: {link}"));
        }
        if reservation.since.is_none_or(|since| since > cached.written + TICK) {
            return suspected("it was reserved after the cached result was written, by another ADD");
        }
        match status {
            NetnsStatus::Unknown(unseen) => suspected(format!("its namespace is not found, but may exist: {unseen}")),
            _ => leaked(format!("no namespace has its cookie {cookie}")),
        }
    }

    /// The host end of the attachment. The kernel deletes a veth pair with the namespace of either end, so the other end exists
    /// too.
    fn host_end(&self, network: &str, cached: &CachedAttachment) -> Option<&str> {
        let interfaces = cached.cni_result().map(|result| result.interfaces).unwrap_or_default();
        for link in &self.links {
            let is_named = interfaces.iter().any(|interface| is_host_link(interface, link));
            if is_named || is_tagged(link, network, cached) {
                return Some(&link.name);
            }
        }
        None
    }
}

/// Whether an interface of a result is this link of the host, and not a bridge, which other attachments have too.
fn is_host_link(interface: &cnikit_types::Interface, link: &Link) -> bool {
    let Some(mac) = link.mac else { return false };
    interface.sandbox.is_empty()
        && interface.name == link.name
        && interface.mac.eq_ignore_ascii_case(&mac.to_string())
        && link.kind.as_deref() != Some("bridge")
}

/// The reservations of all networks, or of one, with their verdicts.
fn survey(common: &Common, filter: &StoreFilter, evidence: &Evidence) -> Result<Vec<NetworkUsage>> {
    let mut networks = Vec::new();
    for network in stores(common, filter.network.as_deref(), &filter.data_dir)? {
        let mut all = Vec::new();
        for reservation in network.store.survey()? {
            all.push(evidence.assess(&network.store.network, reservation));
        }
        networks.push(NetworkUsage { network, all });
    }
    if networks.is_empty()
        && let Some(network) = &filter.network
    {
        return Err(
            format!("host-local has no network \"{network}\"; hint: name its directory with `--data-dir`").into()
        );
    }
    Ok(networks)
}

/// Prints the used and the free addresses of each range, then each address with its holder.
pub(crate) fn usage(common: &Common, out: Output, args: &Usage) -> Result {
    if args.nodes {
        return pools::usage_of_nodes(common, out, &args.agent);
    }
    let evidence = Evidence::from_cache(common)?;
    let networks = survey(common, &args.filter, &evidence)?;
    if out.json {
        let documents: Vec<Value> = networks.iter().map(|one| one.to_json(!args.summary)).collect();
        return print_json(&json!({"networks": documents}));
    }
    let ranges: Vec<_> = networks.iter().flat_map(NetworkUsage::rows).collect();
    out.table(["NETWORK", "RANGE", "TAKEN", "FREE", "LEAKED", "SUSPECTED"], &ranges)?;
    let addresses: Vec<_> = networks.iter().flat_map(NetworkUsage::reservations).collect();
    if args.summary || addresses.is_empty() {
        return Ok(());
    }
    print("\n")?;
    print_addresses(out, &addresses)
}

/// A reservation of a network.
type OfNetwork<'a> = (&'a NetworkUsage, &'a Assessed);

fn print_addresses(out: Output, reservations: &[OfNetwork<'_>]) -> Result {
    let titles = ["NETWORK", "ADDRESS", "CONTAINER", "INTERFACE", "SINCE", "STATE", "WHY"];
    let rows: Vec<_> = reservations.iter().map(|(network, assessed)| assessed.row(network)).collect();
    out.table(titles, &rows)
}

fn address_documents(reservations: &[OfNetwork<'_>]) -> Vec<Value> {
    reservations.iter().map(|(network, assessed)| assessed.to_json(network)).collect()
}

/// How many reservations of a network are leaked.
#[derive(Debug)]
pub(crate) struct LeakCount {
    pub(crate) network: String,
    /// Proven.
    pub(crate) leaked: usize,
    /// Not proven.
    pub(crate) suspected: usize,
}

/// Counts the leaked reservations of each network.
pub(crate) fn leak_counts(common: &Common, scope: ScanScope) -> Result<Vec<LeakCount>> {
    let filter = StoreFilter { network: None, data_dir: Vec::new() };
    let networks = survey(common, &filter, &Evidence::from_node(common, scope)?)?;
    let mut counts = Vec::new();
    for one in &networks {
        let network = one.network.store.network.clone();
        counts.push(LeakCount {
            network,
            leaked: one.count(Verdict::Leaked),
            suspected: one.count(Verdict::Suspected),
        });
    }
    Ok(counts)
}

/// Prints the reservations that are leaked, or suspected to be.
pub(crate) fn leaks(common: &Common, out: Output, args: &Leaks) -> Result {
    let evidence = Evidence::from_node(common, args.sight)?;
    let networks = survey(common, &args.filter, &evidence)?;
    let mut leaks: Vec<OfNetwork<'_>> = networks.iter().flat_map(NetworkUsage::reservations).collect();
    leaks.retain(|(_, assessed)| assessed.verdict != Verdict::Held);
    if out.json {
        print_json(&json!({"leaks": address_documents(&leaks)}))?;
    } else if leaks.is_empty() {
        print("no address is leaked or suspected\n")?;
    } else {
        print_addresses(out, &leaks)?;
    }
    if leaks.is_empty() { Ok(()) } else { Err(Failure::found()) }
}

/// Frees the reservations that are proven to be leaked.
pub(crate) fn reclaim(common: &Common, out: Output, args: &Reclaim) -> Result {
    let survey = || survey(common, &args.leaks.filter, &Evidence::from_node(common, args.leaks.sight)?);
    let mut networks = survey()?;
    if !args.dry_run && networks.iter().any(|one| one.count(Verdict::Leaked) > 0) {
        confirm(&mut networks, &survey()?);
    }
    let mut freed: Vec<OfNetwork<'_>> = Vec::new();
    let mut failures: Vec<Failure> = Vec::new();
    for network in &networks {
        if args.dry_run {
            freed.extend(network.leaked().into_iter().map(|assessed| (network, assessed)));
            continue;
        }
        match network.reclaim() {
            Ok(all) => freed.extend(all.into_iter().map(|assessed| (network, assessed))),
            // A failure does not prevent that the other networks are reclaimed and reported.
            Err(failure) => failures.push(failure),
        }
    }
    let suspected: usize = networks.iter().map(|one| one.count(Verdict::Suspected)).sum();
    let document = json!({"dryRun": args.dry_run, "freed": address_documents(&freed), "suspected": suspected});
    if !out.json {
        if !freed.is_empty() {
            print_addresses(out, &freed)?;
        }
        let count = freed.len();
        let action = if args.dry_run { "would be released" } else { "released" };
        print(&format!("{count} {action}; {suspected} suspected and kept\n"))?;
    }
    out.finish(document, failures)
}

/// Keeps as leaked only the reservations that a second survey finds leaked too: during the first one a process may have passed a
/// namespace to another process that was scanned already.
fn confirm(networks: &mut [NetworkUsage], again: &[NetworkUsage]) {
    for assessed in networks.iter_mut().flat_map(|network| &mut network.all) {
        if assessed.verdict != Verdict::Leaked {
            continue;
        }
        let mut second = again.iter().flat_map(NetworkUsage::leaked);
        if !second.any(|one| one.reservation == assessed.reservation) {
            assessed.verdict = Verdict::Suspected;
            "a second check did not confirm that it is leaked".clone_into(&mut assessed.why);
        }
    }
}

impl NetworkUsage {
    fn reservations(&self) -> impl Iterator<Item = OfNetwork<'_>> {
        self.all.iter().map(move |assessed| (self, assessed))
    }

    fn leaked(&self) -> Vec<&Assessed> {
        self.all.iter().filter(|assessed| assessed.verdict == Verdict::Leaked).collect()
    }

    /// Frees the leaked reservations; returns those that were freed.
    fn reclaim(&self) -> Result<Vec<&Assessed>> {
        let mut leaked = self.leaked();
        if leaked.is_empty() {
            return Ok(leaked);
        }
        let is_leaked = |found: &Reservation| leaked.iter().any(|assessed| assessed.reservation == *found);
        let freed = self.network.store.reclaim(is_leaked)?;
        leaked.retain(|assessed| freed.iter().any(|one| one.address == assessed.reservation.address));
        Ok(leaked)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.count_in(verdict, |_| true)
    }

    fn count_in(&self, verdict: Verdict, is_in: impl Fn(&Assessed) -> bool) -> usize {
        self.all.iter().filter(|assessed| assessed.verdict == verdict && is_in(assessed)).count()
    }

    fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.network.sets.iter().flat_map(RangeSet::ranges)
    }

    /// Whether the address is in none of the configured ranges.
    fn is_outside(&self, assessed: &Assessed) -> bool {
        !self.ranges().any(|range| range.contains(assessed.reservation.address))
    }

    fn count_outside(&self) -> usize {
        self.all.iter().filter(|assessed| self.is_outside(assessed)).count()
    }

    /// The number of addresses that can be assigned from a range.
    fn size(&self, range: &Range) -> u128 {
        let gateways: Vec<_> = self.network.sets.iter().flat_map(RangeSet::gateways).collect();
        range.size(&gateways)
    }

    /// The number of reserved addresses in a range.
    fn taken(&self, range: &Range) -> u128 {
        self.all.iter().filter(|assessed| range.contains(assessed.reservation.address)).count() as u128
    }

    /// A row for each range, and one for the addresses in no range if there are any.
    fn rows(&self) -> Vec<[Cell<'_>; 6]> {
        let mut rows = Vec::new();
        for range in self.ranges() {
            let taken = self.taken(range);
            let free = self.size(range).saturating_sub(taken);
            let is_in = |assessed: &Assessed| range.contains(assessed.reservation.address);
            rows.push(self.row(range.to_string(), taken, free.to_string(), is_in));
        }
        let outside = self.count_outside();
        if outside > 0 {
            let is_outside = |assessed: &Assessed| self.is_outside(assessed);
            rows.push(self.row("of no configured range".to_owned(), outside as u128, "-".to_owned(), is_outside));
        }
        rows
    }

    fn row(&self, range: String, taken: u128, free: String, is_in: impl Fn(&Assessed) -> bool) -> [Cell<'_>; 6] {
        [
            self.network.store.network.as_str().into(),
            range.into(),
            taken.to_string().into(),
            free.into(),
            count_cell(self.count_in(Verdict::Leaked, &is_in), Tone::Bad),
            count_cell(self.count_in(Verdict::Suspected, &is_in), Tone::Doubtful),
        ]
    }

    fn to_json(&self, with_addresses: bool) -> Value {
        let store = &self.network.store;
        let ranges: Vec<Value> = self.ranges().map(|range| self.range_document(range)).collect();
        let mut document = json!({
            "network": store.network,
            "directory": store.data_dir.join(&store.network).display().to_string(),
            "ranges": ranges,
            "ofNoRange": self.count_outside(),
        });
        if with_addresses {
            document["addresses"] = self.all.iter().map(|assessed| assessed.to_json(self)).collect();
        }
        document
    }

    fn range_document(&self, range: &Range) -> Value {
        let taken = self.taken(range);
        let size = self.size(range);
        let is_in = |assessed: &Assessed| range.contains(assessed.reservation.address);
        json!({
            "subnet": range.subnet().to_string(),
            "start": range.start().to_string(),
            "end": range.end().to_string(),
            "gateway": range.gateway().to_string(),
            "size": number(size),
            "taken": number(taken),
            "free": number(size.saturating_sub(taken)),
            "leaked": self.count_in(Verdict::Leaked, is_in),
            "suspected": self.count_in(Verdict::Suspected, is_in),
        })
    }
}

/// A count, with the tone if it is not zero.
fn count_cell(count: usize, tone: Tone) -> Cell<'static> {
    Cell::toned(count.to_string(), if count > 0 { tone } else { Tone::Plain })
}

/// A count that may be one of IPv6: a number if every JSON reader can hold it, otherwise text.
fn number(count: u128) -> Value {
    match u32::try_from(count) {
        Ok(count) => count.into(),
        Err(_) => count.to_string().into(),
    }
}

impl Assessed {
    /// Container and interface; empty if they are unknown.
    fn owner(&self) -> (&str, &str) {
        match &self.reservation.holder {
            Holder::Of(owner) => (&owner.container, owner.ifname.as_deref().unwrap_or_default()),
            _ => ("", ""),
        }
    }

    fn row<'a>(&'a self, of: &'a NetworkUsage) -> [Cell<'a>; 7] {
        let (container, ifname) = self.owner();
        let since = self.reservation.since.map(|since| age(ago(since)) + " ago").unwrap_or_default();
        [
            of.network.store.network.as_str().into(),
            self.reservation.address.to_string().into(),
            container.into(),
            ifname.into(),
            since.into(),
            Cell::toned(self.verdict.word(), self.verdict.tone()),
            Cell::toned(self.why.as_str(), Tone::Faint),
        ]
    }

    fn to_json(&self, of: &NetworkUsage) -> Value {
        let (container, ifname) = self.owner();
        json!({
            "network": of.network.store.network,
            "address": self.reservation.address.to_string(),
            "container": container,
            "ifname": ifname,
            "since": self.reservation.since.map(rfc3339),
            "state": self.verdict.word(),
            "why": self.why,
            "file": of.network.store.path_of(self.reservation.address).display().to_string(),
        })
    }
}
