//! The shaper at the root of a link, with the handle `1:`, and what is below it: a `tbf` where everything counts, and otherwise an
//! `htb` with one class and filters.

use std::fmt;

use cnikit_netlink::{Batch, FilterRule, HtbClass, Link, LinkChange, Netlink, Qdisc, QdiscPlace, ROOT_HANDLE, Tbf};
use cnikit_plan::Drifts;
use cnikit_skel::{Error, Journal, Result, code};

use crate::shaper::RateLimit;
use crate::shaper::counted_traffic::UNLIMITED;

/// The kinds of disciplines besides `tbf`.
const FQ_CODEL: &str = "fq_codel";
const HTB: &str = "htb";

/// A shaper, in the units of the kernel.
#[derive(Clone, Debug)]
struct Shaper {
    /// Rate, queue and bucket. Those of an `htb` are its class and the queue of that; with `fq_codel` the queue has no length.
    bucket: Tbf,
    fq_codel: bool,
    /// Which packets are limited; none: all of them, by a `tbf`.
    filters: Vec<FilterRule>,
}

impl Shaper {
    fn wanted(limit: &RateLimit, link: &Link, filters: Vec<FilterRule>) -> Shaper {
        let bucket = if filters.is_empty() { limit.tbf(link.mtu) } else { limit.class(link.mtu) };
        Shaper { bucket, fq_codel: limit.has_fq_codel(), filters }
    }

    fn kind(&self) -> &'static str {
        if self.filters.is_empty() { Tbf::KIND } else { HTB }
    }

    fn has_fifo(&self) -> bool {
        self.kind() == HTB && !self.fq_codel
    }

    /// Whether a shaper that was found is as this one.
    fn is_met_by(&self, found: &Shaper) -> bool {
        self.fq_codel == found.fq_codel
            && self.filters == found.filters
            && self.bucket.rate == found.bucket.rate
            && (self.bucket.limit == found.bucket.limit || !self.compares_limit())
            && is_same_buffer(&self.bucket, &found.bucket)
    }

    /// Adds what makes this the root of a link, or changes it. The root and its filters are new if there are any `filters`.
    fn add_to(&self, batch: &mut Batch, link: &Link, filters: &[FilterRule]) {
        if self.kind() == HTB {
            let class = HtbClass { rate: self.bucket.rate, buffer: self.bucket.buffer };
            if !filters.is_empty() {
                batch.add_htb(link.index, UNLIMITED);
            }
            batch.set_htb_class(link.index, &class);
            if self.has_fifo() {
                batch.set_fifo_below_root(link.index, self.bucket.limit);
            }
        } else {
            batch.set_tbf(link.index, &self.bucket);
        }
        if self.fq_codel {
            batch.set_qdisc_below_root(link.index, FQ_CODEL);
        }
        for rule in filters {
            batch.add_filter(link.index, QdiscPlace::Root, rule);
        }
    }

    fn compares_limit(&self) -> bool {
        self.kind() == Tbf::KIND || self.has_fifo()
    }
}

/// The shaper of a link as it was before this ADD, for the journal.
#[derive(Clone)]
struct OldRoot {
    host: Netlink,
    link: Link,
    before: Option<Shaper>,
}

impl OldRoot {
    fn put_back(&self) -> Result<()> {
        match &self.before {
            Some(before) => write(&self.host, &self.link, before, &Root::read(&self.host, &self.link)?),
            None => remove(&self.host, &self.link),
        }
    }
}

impl fmt::Display for OldRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit of {}", self.link.name)
    }
}

/// Limits the rate at which a link sends what these filters assign to the limit, or everything without filters. A limit that it has
/// already is changed, in place if the discipline is the same.
pub(crate) fn ensure(
    host: &Netlink,
    link: &Link,
    limit: &RateLimit,
    filters: Vec<FilterRule>,
    journal: &mut Journal,
) -> Result<()> {
    let found = find(host, link)?;
    let before = found.shaper();
    let wanted = Shaper::wanted(limit, link, filters);
    if let Some(before) = before
        && wanted.is_met_by(before)
    {
        return Ok(());
    }
    let old = OldRoot { host: host.clone(), link: link.clone(), before: before.cloned() };
    let _ = journal.undo(&old, OldRoot::put_back);
    write(host, link, &wanted, &found)
}

/// Limits the rate of a link that this call has made, which has no root of its own, after the other changes of a batch, and
/// brings the link up. The undo of the link undoes this too.
pub(crate) fn begin(host: &Netlink, link: &Link, limit: &RateLimit, mut batch: Batch) -> Result<()> {
    let wanted = Shaper::wanted(limit, link, Vec::new());
    wanted.add_to(&mut batch, link, &[]);
    batch.set_link(link.index, &LinkChange::default().up(true));
    send(host, batch, &wanted)
}

/// Checks that the root of a link is the kernel's own or a shaper.
pub(crate) fn preflight(host: &Netlink, link: &Link) -> Result<()> {
    find(host, link).map(drop)
}

/// Removes a limit that an earlier ADD made and this one does not have.
pub(crate) fn lift(host: &Netlink, link: &Link, journal: &mut Journal) -> Result<()> {
    let Root::Shaper(before) = Root::read(host, link)? else { return Ok(()) };
    let old = OldRoot { host: host.clone(), link: link.clone(), before };
    let _ = journal.undo(&old, OldRoot::put_back);
    remove(host, link)
}

/// Removes the shaper of a link. One that is not there is success, and so is a root of another program.
pub(crate) fn remove(host: &Netlink, link: &Link) -> Result<()> {
    match host.find_qdisc(link.index, QdiscPlace::Root)? {
        Some(root) if is_shaper(&root) => {
            let mut batch = Batch::new();
            batch.delete_qdisc(link.index, QdiscPlace::Root);
            Ok(host.send(batch)?)
        }
        _ => Ok(()),
    }
}

/// Compares the shaper of a link with a limit.
pub(crate) fn verify(
    host: &Netlink,
    link: &Link,
    limit: &RateLimit,
    filters: Vec<FilterRule>,
    drifts: &mut Drifts,
) -> Result<()> {
    let name = &link.name;
    let wanted = Shaper::wanted(limit, link, filters);
    let root = host.find_qdisc(link.index, QdiscPlace::Root)?;
    let kind = root.as_ref().map_or("none", |root| root.kind.as_str());
    if kind != wanted.kind() {
        drifts.compare(format!("qdisc of {name}"), wanted.kind(), kind);
        return Ok(());
    }
    let found = match &root {
        Some(root) => read(host, link, root)?,
        None => None,
    };
    let Some(found) = found else {
        drifts.unless(false, || format!("class 1:1 of {name}: wanted, found none"));
        return Ok(());
    };
    drifts.compare(format!("rate of {name} in bytes per second"), wanted.bucket.rate, found.bucket.rate);
    if wanted.compares_limit() {
        let what = format!("limit of the queue of {name} in bytes");
        drifts.compare(what, wanted.bucket.limit, found.bucket.limit);
    }
    if !is_same_buffer(&wanted.bucket, &found.bucket) {
        let what = format!("burst of {name} in ticks of {} ns", Tbf::TICK);
        drifts.compare(what, wanted.bucket.buffer, found.bucket.buffer);
    }
    drifts.compare(format!("{FQ_CODEL} of {name}"), wanted.fq_codel, found.fq_codel);
    if wanted.filters != found.filters {
        drifts.compare(format!("filters of {name}"), listed(&wanted.filters), listed(&found.filters));
    }
    Ok(())
}

/// Filters in words.
pub(crate) fn listed(rules: &[FilterRule]) -> String {
    let rules: Vec<String> = rules.iter().map(FilterRule::to_string).collect();
    format!("[{}]", rules.join(", "))
}

/// What a link has as its root.
enum Root {
    /// What the kernel chose.
    Kernels,
    /// A shaper; `None` if it has no limit, because it was made halfway or its class is gone.
    Shaper(Option<Shaper>),
    /// A discipline of another program.
    Foreign(Qdisc),
}

impl Root {
    fn read(host: &Netlink, link: &Link) -> Result<Root> {
        match host.find_qdisc(link.index, QdiscPlace::Root)? {
            None => Ok(Root::Kernels),
            Some(root) if is_shaper(&root) => Ok(Root::Shaper(read(host, link, &root)?)),
            Some(root) => Ok(Root::Foreign(root)),
        }
    }

    fn shaper(&self) -> Option<&Shaper> {
        match self {
            Root::Shaper(shaper) => shaper.as_ref(),
            Root::Kernels | Root::Foreign(_) => None,
        }
    }
}

/// The root of a link.
///
/// # Errors
/// The root is another program's, or the kernel cannot be asked.
fn find(host: &Netlink, link: &Link) -> Result<Root> {
    match Root::read(host, link)? {
        Root::Foreign(Qdisc { kind, handle, .. }) => {
            let text = format!("{} has a root qdisc of another program: {kind} {:x}:", link.name, handle >> 16);
            Err(Error::conflict(text).hint(format!("remove it with `tc qdisc del dev {} root`", link.name)))
        }
        root => Ok(root),
    }
}

/// Reads the shaper whose root this is; `None` if it has no limit, because it was made halfway or its class is gone.
fn read(host: &Netlink, link: &Link, root: &Qdisc) -> Result<Option<Shaper>> {
    let below = host.find_qdisc(link.index, QdiscPlace::BelowRoot)?;
    let fq_codel = below.as_ref().is_some_and(|below| below.kind == FQ_CODEL);
    if let Some(bucket) = root.tbf {
        return Ok(Some(Shaper { bucket, fq_codel, filters: Vec::new() }));
    }
    let Some(class) = host.find_htb_class(link.index)? else { return Ok(None) };
    let limit = below.and_then(|below| below.fifo_limit).unwrap_or_default();
    let bucket = Tbf { rate: class.rate, limit, buffer: class.buffer, burst: None };
    let mut filters = Vec::new();
    for filter in host.filters(link.index, QdiscPlace::Root)? {
        if let Some(rule) = filter.rule {
            filters.push(rule);
        }
    }
    Ok(Some(Shaper { bucket, fq_codel, filters }))
}

/// Whether a root is that of a limit. Of the classful ones it is one that leaves other packets to the class that marks it.
fn is_shaper(root: &Qdisc) -> bool {
    let is_of_a_kind = root.kind == Tbf::KIND || root.kind == HTB && root.default_class == Some(UNLIMITED);
    is_of_a_kind && root.handle == ROOT_HANDLE
}

/// Where the kernel was given bytes, it computes the ticks from them by a multiplication that has 31 exact bits.
fn is_same_buffer(wanted: &Tbf, found: &Tbf) -> bool {
    let rounding = if wanted.burst.is_some() { 32 } else { 0 };
    wanted.buffer.abs_diff(found.buffer) <= rounding
}

/// Writes a shaper in place of what the link has. One of another kind, or with other filters or another kind of queue, is made
/// anew: there is no way to give a `tbf` its own queue back. What waits in the old queue is dropped.
fn write(host: &Netlink, link: &Link, wanted: &Shaper, found: &Root) -> Result<()> {
    let mut filters = wanted.filters.as_slice();
    match found {
        Root::Kernels => {}
        Root::Shaper(Some(found)) if found.fq_codel == wanted.fq_codel && found.filters == wanted.filters => {
            filters = &[];
        }
        Root::Shaper(_) | Root::Foreign(_) => remove(host, link)?,
    }
    let mut batch = Batch::new();
    wanted.add_to(&mut batch, link, filters);
    send(host, batch, wanted)
}

/// Sends a batch that writes a shaper.
fn send(host: &Netlink, batch: Batch, wanted: &Shaper) -> Result<()> {
    match host.send(batch) {
        Err(error) if error.errno == nix::libc::ENOENT => Err(unknown_kind(&error, wanted)),
        sent => Ok(sent?),
    }
}

/// The kernel answers "no such file" if it has no discipline of this kind.
fn unknown_kind(error: &cnikit_netlink::Error, wanted: &Shaper) -> Error {
    let kind = wanted.kind();
    let classifier = if kind == HTB { " or no u32" } else { "" };
    let more = if wanted.fq_codel { " or no fq_codel" } else { "" };
    Error::new(code::SYSTEM, format!("this kernel has no {kind}{classifier}{more}"))
        .detail(error.to_string())
        .hint("`modprobe sch_tbf`, `modprobe sch_htb cls_u32`, `modprobe sch_fq_codel`, or boot a kernel that has them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shaper::{CountedTraffic, USUAL_LATENCY};

    fn shaper(fq_codel: bool, subnets: &[&str]) -> Shaper {
        let subnets: Vec<String> = subnets.iter().map(|subnet| (*subnet).to_owned()).collect();
        let filters = CountedTraffic::checked(&subnets, &[]).unwrap().of_ingress();
        let limit = RateLimit::checked(8_000_000, 800_000, USUAL_LATENCY, fq_codel).unwrap();
        let mut link = Link::default();
        link.mtu = 1500;
        Shaper::wanted(&limit, &link, filters)
    }

    #[test]
    fn a_limit_of_everything_is_a_tbf_and_one_of_a_part_an_htb_with_a_queue_of_its_own() {
        for (shaper, kind, has_fifo, compares_limit) in [
            (shaper(false, &[]), "tbf", false, true),
            (shaper(true, &[]), "tbf", false, true),
            (shaper(false, &["10.0.0.0/8"]), "htb", true, true),
            (shaper(true, &["10.0.0.0/8"]), "htb", false, false),
        ] {
            assert_eq!((shaper.kind(), shaper.has_fifo(), shaper.compares_limit()), (kind, has_fifo, compares_limit));
        }
    }

    #[test]
    fn a_shaper_is_met_by_one_with_all_its_properties() {
        let changes: [fn(&mut Shaper); 5] = [
            |found| found.fq_codel = !found.fq_codel,
            |found| found.filters.clear(),
            |found| found.bucket.rate += 1,
            |found| found.bucket.limit += 1,
            |found| found.bucket.buffer += 1,
        ];
        let wanted = shaper(false, &["10.0.0.0/8"]);
        assert!(wanted.is_met_by(&wanted));
        for (place, change) in changes.into_iter().enumerate() {
            let mut found = wanted.clone();
            change(&mut found);
            assert!(!wanted.is_met_by(&found), "{place}");
        }
        // fq_codel has a limit of its own, in packets.
        let wanted = shaper(true, &["10.0.0.0/8"]);
        let mut found = wanted.clone();
        found.bucket.limit += 1;
        assert!(wanted.is_met_by(&found));
    }

    #[test]
    fn a_bucket_in_bytes_may_be_rounded_and_one_in_ticks_may_not() {
        let tbf = |buffer, burst| Tbf { rate: 1, limit: 1, buffer, burst };
        for (burst, found, is_same) in [
            (None, 100, true),
            (None, 101, false),
            (Some(1), 68, true),
            (Some(1), 132, true),
            (Some(1), 133, false),
            (Some(1), 67, false),
        ] {
            assert_eq!(is_same_buffer(&tbf(100, burst), &tbf(found, None)), is_same, "{burst:?} {found}");
        }
    }

    #[test]
    fn a_root_is_a_shaper_by_its_kind_its_handle_and_the_class_of_what_is_not_limited() {
        let qdisc = |kind: &str, handle, default_class| Qdisc {
            handle,
            kind: kind.to_owned(),
            tbf: None,
            default_class,
            fifo_limit: None,
        };
        for (root, is_ours) in [
            (qdisc("tbf", ROOT_HANDLE, None), true),
            (qdisc("htb", ROOT_HANDLE, Some(UNLIMITED)), true),
            (qdisc("htb", ROOT_HANDLE, Some(1)), false),
            (qdisc("htb", ROOT_HANDLE, None), false),
            (qdisc("tbf", ROOT_HANDLE + 1, None), false),
            (qdisc("htb", 0, Some(UNLIMITED)), false),
            (qdisc("fq_codel", ROOT_HANDLE, Some(UNLIMITED)), false),
        ] {
            assert_eq!(is_shaper(&root), is_ours, "{root:?}");
        }
    }

    #[test]
    fn only_a_root_that_is_a_shaper_has_one() {
        assert!(Root::Kernels.shaper().is_none() && Root::Shaper(None).shaper().is_none());
        assert!(Root::Shaper(Some(shaper(false, &[]))).shaper().is_some());
    }
}
