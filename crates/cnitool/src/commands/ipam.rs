//! Addresses of host-local: who holds them, which of them nobody can hold any more, and getting those back.
//!
//! What is proven and what only looks so are kept apart. Proven is: the index says that the reservation was there before this
//! boot; a crash left it without content; or the kernel's number of its namespace was recorded, and no living namespace bears
//! it. That a path is gone, or that nothing is kept of an attachment, proves nothing: another runtime may know better.

use std::time::Duration;

use cnikit_libcni::{AttachmentSummary, Cache, CachedAttachment};
use cnikit_netlink::{Link, Netlink};
use cnikit_netns::{NetnsScan, NetnsStatus};
use cnikit_reservations::{Holder, Owner, Range, RangeSet, Reservation};
use serde_json::{Value, json};

use crate::cli::{Leaks, Reclaim, Sight, Usage, Where};
use crate::commands::show::is_tagged;
use crate::commands::verbs::look;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::Look;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json};
use crate::output::table::Cell;
use crate::output::text::Tone;
use crate::output::time::{age, ago, moment};
use crate::places::{Location, places};

/// File times are as coarse as the kernel's tick.
const TICK: Duration = Duration::from_millis(20);

/// What is to be thought of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing speaks against it.
    Held,
    /// Something does, and proves nothing.
    Suspected,
    /// It is proven that nobody holds it.
    Dead,
}

/// A reservation, judged.
#[derive(Debug)]
struct Judged {
    found: Reservation,
    verdict: Verdict,
    why: String,
}

/// A network's reservations, judged.
struct Surveyed {
    place: Location,
    all: Vec<Judged>,
}

/// What reservations are judged by.
struct Evidence {
    cache: Cache,
    /// By [`key`].
    kept: Vec<AttachmentSummary>,
    look: Look,
    thorough: Option<Thorough>,
}

/// What costs a look at the whole machine.
struct Thorough {
    living: NetnsScan,
    links: Vec<Link>,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Held => "held",
            Verdict::Suspected => "suspected",
            Verdict::Dead => "dead",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Verdict::Held => Tone::Good,
            Verdict::Suspected => Tone::Doubtful,
            Verdict::Dead => Tone::Bad,
        }
    }
}

impl Evidence {
    /// What the cache says and one stat of each namespace's path.
    fn cheap(common: &Common) -> Result<Evidence> {
        let cache = environment::cache(common);
        let mut kept = cache.list()?;
        kept.sort_by(|one, other| key(one).cmp(&key(other)));
        Ok(Evidence { cache, kept, look: Look::new(), thorough: None })
    }

    /// That, every living namespace, and the links of the host.
    fn thorough(common: &Common, sight: Sight) -> Result<Evidence> {
        let (links, living) = (Netlink::here()?.links()?, look(sight));
        Ok(Evidence { thorough: Some(Thorough { living, links }), ..Evidence::cheap(common)? })
    }

    fn judge(&self, network: &str, found: Reservation) -> Judged {
        let (verdict, why) = match &found.holder {
            _ if found.earlier_boot => (Verdict::Dead, "the index proves that it was held before this boot".to_owned()),
            Holder::Lost => (Verdict::Dead, "a crash left its file without content".to_owned()),
            Holder::Unreadable(why) => (Verdict::Suspected, why.clone()),
            Holder::Of(owner) => self.of_owner(network, owner, &found),
        };
        Judged { found, verdict, why }
    }

    fn of_owner(&self, network: &str, owner: &Owner, found: &Reservation) -> (Verdict, String) {
        let Some(ifname) = &owner.ifname else {
            return (Verdict::Suspected, "an old release wrote it, without the interface".to_owned());
        };
        let wanted = (network, owner.container.as_str(), ifname.as_str());
        let found_at = self.kept.binary_search_by(|kept| key(kept).cmp(&wanted));
        let Some(kept) = found_at.ok().map(|at| &self.kept[at]) else {
            return (Verdict::Suspected, "nothing is kept of its attachment, which proves nothing".to_owned());
        };
        let standing = self.look.at(&kept.netns, &kept.metadata);
        match (&self.thorough, kept.metadata.netns_cookie, self.look.is_of_now(&kept.metadata)) {
            (Some(thorough), Some(cookie), Some(true)) => {
                match self.cache.attachment(network, &owner.container, ifname) {
                    Some(kept) => thorough.judge(network, &kept, cookie, found),
                    None => (Verdict::Suspected, "its attachment was deleted a moment ago".to_owned()),
                }
            }
            _ if standing.is_lost() => {
                let path = if kept.netns.is_empty() { "none" } else { &kept.netns };
                (Verdict::Suspected, format!("its namespace ({path}) is {}, which proves nothing", standing.word()))
            }
            _ => (Verdict::Held, format!("its namespace is {}", standing.word())),
        }
    }
}

/// What an attachment is known by.
fn key(kept: &AttachmentSummary) -> (&str, &str, &str) {
    (&kept.network, &kept.container_id, &kept.ifname)
}

impl Thorough {
    /// By the recorded number of the namespace.
    fn judge(&self, network: &str, kept: &CachedAttachment, cookie: u64, found: &Reservation) -> (Verdict, String) {
        let fate = self.living.fate(cookie);
        if fate == NetnsStatus::Lives {
            return (Verdict::Held, format!("its namespace lives (cookie {cookie})"));
        }
        if let Some(link) = self.link_of(network, kept) {
            return (
                Verdict::Suspected,
                format!("its namespace is not found, but its link on the host stands: {link}"),
            );
        }
        if found.since.is_none_or(|since| since > kept.written + TICK) {
            return (Verdict::Suspected, "it was given after the kept result was written: by another ADD".to_owned());
        }
        match fate {
            NetnsStatus::Unknown(unseen) => {
                (Verdict::Suspected, format!("its namespace is not found, but may live: {unseen}"))
            }
            _ => (Verdict::Dead, format!("no living namespace bears its cookie {cookie}")),
        }
    }

    /// The host's end of the attachment: a pair goes with the namespace of either end, so the other one lives.
    fn link_of(&self, network: &str, kept: &CachedAttachment) -> Option<&str> {
        let interfaces = kept.cni_result().map(|answer| answer.interfaces).unwrap_or_default();
        let named = |link: &Link| {
            let is_it = |one: &cnikit_types::Interface| {
                let same_mac = link.mac.is_some_and(|mac| one.mac.eq_ignore_ascii_case(&mac.to_string()));
                one.sandbox.is_empty() && one.name == link.name && same_mac && link.kind.as_deref() != Some("bridge")
            };
            interfaces.iter().any(is_it)
        };
        let is_it = |link: &&Link| is_tagged(link, network, kept) || named(link);
        self.links.iter().find(is_it).map(|link| link.name.as_str())
    }
}

fn survey(common: &Common, place: &Where, evidence: &Evidence) -> Result<Vec<Surveyed>> {
    let mut all = Vec::new();
    for place in places(common, place.network.as_deref(), &place.data_dir)? {
        let found = place.store.survey()?;
        let judged = found.into_iter().map(|found| evidence.judge(&place.store.network, found)).collect();
        all.push(Surveyed { place, all: judged });
    }
    if all.is_empty()
        && let Some(network) = &place.network
    {
        return Err(
            format!("no network \"{network}\" of host-local is known; `--data-dir` says where else to look").into()
        );
    }
    Ok(all)
}

/// Per range what is taken and free; then each address with its holder.
pub(crate) fn usage(common: &Common, out: Output, asked: &Usage) -> Result {
    let evidence = Evidence::cheap(common)?;
    let all = survey(common, &asked.place, &evidence)?;
    if out.json {
        let networks: Vec<Value> = all.iter().map(|one| one.to_json(!asked.summary)).collect();
        return print_json(&json!({"networks": networks}));
    }
    let rows: Vec<_> = all.iter().flat_map(Surveyed::rows).collect();
    out.table(["NETWORK", "RANGE", "TAKEN", "FREE", "LEAKED", "SUSPECTED"], &rows)?;
    if asked.summary || all.iter().all(|one| one.all.is_empty()) {
        return Ok(());
    }
    print("\n")?;
    let rows: Vec<_> = all.iter().flat_map(|one| one.all.iter().map(|judged| judged.row(one))).collect();
    out.table(ADDRESSES, &rows)
}

const ADDRESSES: [&str; 7] = ["NETWORK", "ADDRESS", "CONTAINER", "INTERFACE", "SINCE", "STATE", "WHY"];

/// What is not held, as far as can be told.
pub(crate) fn leaks(common: &Common, out: Output, asked: &Leaks) -> Result {
    let evidence = Evidence::thorough(common, asked.sight)?;
    let all = survey(common, &asked.place, &evidence)?;
    let leaks: Vec<(&Surveyed, &Judged)> =
        all.iter().flat_map(|one| one.leaks().map(move |leak| (one, leak))).collect();
    if out.json {
        let told: Vec<Value> = leaks.iter().map(|(one, leak)| leak.to_json(one)).collect();
        print_json(&json!({"leaks": told}))?;
    } else if leaks.is_empty() {
        print("no address is leaked, nor looks so\n")?;
    } else {
        out.table(ADDRESSES, &leaks.iter().map(|(one, leak)| leak.row(one)).collect::<Vec<_>>())?;
    }
    if leaks.is_empty() { Ok(()) } else { Err(Failure::found()) }
}

/// Frees what is proven dead.
pub(crate) fn reclaim(common: &Common, out: Output, asked: &Reclaim) -> Result {
    let look = || survey(common, &asked.leaks.place, &Evidence::thorough(common, asked.leaks.sight)?);
    let mut all = look()?;
    if !asked.dry_run && all.iter().any(|one| one.count(Verdict::Dead, |_| true) > 0) {
        confirm(&mut all, &look()?);
    }
    let suspected: usize = all.iter().map(|one| one.count(Verdict::Suspected, |_| true)).sum();
    let (mut freed, mut failed): (Vec<(&Surveyed, &Judged)>, Vec<Failure>) = (Vec::new(), Vec::new());
    for one in &all {
        let dead: Vec<&Judged> = one.all.iter().filter(|judged| judged.verdict == Verdict::Dead).collect();
        if dead.is_empty() {
            continue;
        }
        let gone = if asked.dry_run {
            dead.iter().map(|judged| judged.found.address).collect()
        } else {
            let is_dead = |found: &Reservation| dead.iter().any(|judged| judged.found == *found);
            // What was freed elsewhere is told all the same.
            let freed = one.place.store.reclaim(is_dead).map_err(|why| failed.push(why.into()));
            freed.unwrap_or_default().into_iter().map(|found| found.address).collect::<Vec<_>>()
        };
        freed
            .extend(dead.into_iter().filter(|judged| gone.contains(&judged.found.address)).map(|judged| (one, judged)));
    }
    let told: Vec<Value> = freed.iter().map(|(one, judged)| judged.to_json(one)).collect();
    let document = json!({"dryRun": asked.dry_run, "freed": told, "suspected": suspected});
    if !out.json {
        if !freed.is_empty() {
            out.table(ADDRESSES, &freed.iter().map(|(one, judged)| judged.row(one)).collect::<Vec<_>>())?;
        }
        let (count, deed) = (freed.len(), if asked.dry_run { "would be freed" } else { "freed" });
        print(&format!("{count} {deed}; {suspected} look leaked, which is not proven, and stay\n"))?;
    }
    out.finish(document, failed)
}

/// What is not dead at a second look stays: a namespace may be handed from one process to another past the first one.
fn confirm(all: &mut [Surveyed], again: &[Surveyed]) {
    let is_dead = |found: &Reservation| {
        let mut judged = again.iter().flat_map(|one| &one.all);
        judged.any(|judged| judged.verdict == Verdict::Dead && judged.found == *found)
    };
    let dead = all.iter_mut().flat_map(|one| &mut one.all).filter(|judged| judged.verdict == Verdict::Dead);
    for judged in dead.filter(|judged| !is_dead(&judged.found)) {
        judged.verdict = Verdict::Suspected;
        "it looked dead, and at a second look did not".clone_into(&mut judged.why);
    }
}

impl Surveyed {
    fn leaks(&self) -> impl Iterator<Item = &Judged> {
        self.all.iter().filter(|judged| judged.verdict != Verdict::Held)
    }

    fn count(&self, verdict: Verdict, of: impl Fn(&Judged) -> bool) -> usize {
        self.all.iter().filter(|judged| judged.verdict == verdict && of(judged)).count()
    }

    fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.place.sets.iter().flat_map(RangeSet::ranges)
    }

    fn is_outside(&self, judged: &Judged) -> bool {
        !self.ranges().any(|range| range.contains(judged.found.address))
    }

    /// How many addresses a range can give.
    fn size(&self, range: &Range) -> u128 {
        let gateways: Vec<_> = self.place.sets.iter().flat_map(RangeSet::gateways).collect();
        range.size(&gateways)
    }

    fn taken(&self, range: &Range) -> u128 {
        self.all.iter().filter(|judged| range.contains(judged.found.address)).count() as u128
    }

    fn rows(&self) -> Vec<[Cell<'_>; 6]> {
        let row = |range: String, taken: u128, free: String, of: &dyn Fn(&Judged) -> bool| {
            let (dead, suspected) = (self.count(Verdict::Dead, of), self.count(Verdict::Suspected, of));
            let marked =
                |count: usize, tone| Cell::toned(count.to_string(), if count > 0 { tone } else { Tone::Plain });
            let network = self.place.store.network.as_str();
            [
                network.into(),
                range.into(),
                taken.to_string().into(),
                free.into(),
                marked(dead, Tone::Bad),
                marked(suspected, Tone::Doubtful),
            ]
        };
        let mut rows: Vec<[Cell<'_>; 6]> = Vec::new();
        for range in self.ranges() {
            let (taken, size) = (self.taken(range), self.size(range));
            let free = size.saturating_sub(taken).to_string();
            rows.push(row(range.to_string(), taken, free, &|judged| range.contains(judged.found.address)));
        }
        let outside = self.all.iter().filter(|judged| self.is_outside(judged)).count();
        if outside > 0 {
            rows.push(row("of no configured range".to_owned(), outside as u128, "-".into(), &|judged| {
                self.is_outside(judged)
            }));
        }
        rows
    }

    fn to_json(&self, with_addresses: bool) -> Value {
        let range = |range: &Range| {
            let (taken, size) = (self.taken(range), self.size(range));
            let within = |judged: &Judged| range.contains(judged.found.address);
            json!({
                "subnet": range.subnet().to_string(),
                "start": range.start().to_string(),
                "end": range.end().to_string(),
                "gateway": range.gateway().to_string(),
                "size": number(size),
                "taken": number(taken),
                "free": number(size.saturating_sub(taken)),
                "dead": self.count(Verdict::Dead, within),
                "suspected": self.count(Verdict::Suspected, within),
            })
        };
        let store = &self.place.store;
        let mut document = json!({
            "network": store.network,
            "directory": store.data_dir.join(&store.network).display().to_string(),
            "ranges": self.ranges().map(range).collect::<Vec<_>>(),
            "ofNoRange": self.all.iter().filter(|judged| self.is_outside(judged)).count(),
        });
        if with_addresses {
            document["addresses"] = self.all.iter().map(|judged| judged.to_json(self)).collect();
        }
        document
    }
}

/// A count that may be one of IPv6: as a number if every reader can hold it, else as text.
fn number(count: u128) -> Value {
    u32::try_from(count).map_or_else(|_| count.to_string().into(), Value::from)
}

impl Judged {
    fn owner(&self) -> (&str, &str) {
        match &self.found.holder {
            Holder::Of(owner) => (&owner.container, owner.ifname.as_deref().unwrap_or_default()),
            _ => ("", ""),
        }
    }

    fn row<'j>(&'j self, of: &'j Surveyed) -> [Cell<'j>; 7] {
        let (container, ifname) = self.owner();
        let since = self.found.since.map(|since| age(ago(since)) + " ago").unwrap_or_default();
        [
            of.place.store.network.as_str().into(),
            self.found.address.to_string().into(),
            container.into(),
            ifname.into(),
            since.into(),
            Cell::toned(self.verdict.word(), self.verdict.tone()),
            Cell::toned(self.why.as_str(), Tone::Faint),
        ]
    }

    fn to_json(&self, of: &Surveyed) -> Value {
        let (container, ifname) = self.owner();
        json!({
            "network": of.place.store.network,
            "address": self.found.address.to_string(),
            "container": container,
            "ifname": ifname,
            "since": self.found.since.map(moment),
            "state": self.verdict.word(),
            "why": self.why,
            "file": of.place.store.path_of(self.found.address).display().to_string(),
        })
    }
}
