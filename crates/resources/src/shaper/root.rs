//! The shaper at the root of a link: a `tbf` with the handle `1:`, and what is below it.

use std::fmt;

use cnikit_netlink::{Batch, Link, Netlink, Qdisc, QdiscPlace, ROOT_HANDLE, Tbf};
use cnikit_plan::Drifts;
use cnikit_skel::{Error, Journal, Result, code};

use crate::shaper::RateLimit;

/// The kind of the discipline that may be below the `tbf`.
const FQ_CODEL: &str = "fq_codel";

/// The shaper of a link as it was before this ADD, for the journal.
#[derive(Clone)]
struct OldRoot {
    host: Netlink,
    link: Link,
    before: Option<(Tbf, bool)>,
}

impl OldRoot {
    fn put_back(&self) -> Result<()> {
        match &self.before {
            Some((tbf, fq_codel)) => write(&self.host, &self.link, tbf, *fq_codel),
            None => remove(&self.host, &self.link),
        }
    }
}

impl fmt::Display for OldRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit of {}", self.link.name)
    }
}

/// Limits the rate at which a link sends. A limit that it has already is changed in place.
pub(crate) fn ensure(host: &Netlink, link: &Link, limit: &RateLimit, journal: &mut Journal) -> Result<()> {
    let before = find(host, link)?;
    let wanted = limit.tbf(link.mtu);
    if let Some((tbf, fq_codel)) = &before
        && is_same(&wanted, tbf)
        && *fq_codel == limit.has_fq_codel()
    {
        return Ok(());
    }
    let old = OldRoot { host: host.clone(), link: link.clone(), before };
    let _ = journal.undo(&old, OldRoot::put_back);
    write(host, link, &wanted, limit.has_fq_codel())
}

/// Checks that the root of a link is the kernel's own or a shaper.
pub(crate) fn preflight(host: &Netlink, link: &Link) -> Result<()> {
    find(host, link).map(drop)
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
pub(crate) fn verify(host: &Netlink, link: &Link, limit: &RateLimit, drifts: &mut Drifts) -> Result<()> {
    let name = &link.name;
    let wanted = limit.tbf(link.mtu);
    let root = host.find_qdisc(link.index, QdiscPlace::Root)?;
    let Some(found) = root.as_ref().and_then(|root| root.tbf) else {
        let found = root.as_ref().map_or("none", |root| &root.kind);
        drifts.compare(format!("qdisc of {name}"), Tbf::KIND, found);
        return Ok(());
    };
    drifts.compare(format!("rate of {name} in bytes per second"), wanted.rate, found.rate);
    drifts.compare(format!("limit of the queue of {name} in bytes"), wanted.limit, found.limit);
    if !is_same_buffer(&wanted, &found) {
        drifts.compare(format!("burst of {name} in ticks of {} ns", Tbf::TICK), wanted.buffer, found.buffer);
    }
    drifts.compare(format!("{FQ_CODEL} of {name}"), limit.has_fq_codel(), has_fq_codel(host, link)?);
    Ok(())
}

/// The shaper of a link, and whether `fq_codel` is below it.
fn find(host: &Netlink, link: &Link) -> Result<Option<(Tbf, bool)>> {
    let Some(root) = host.find_qdisc(link.index, QdiscPlace::Root)? else { return Ok(None) };
    match root.tbf {
        Some(tbf) if is_shaper(&root) => Ok(Some((tbf, has_fq_codel(host, link)?))),
        _ => {
            let text =
                format!("{} has a root qdisc of another program: {} {:x}:", link.name, root.kind, root.handle >> 16);
            Err(Error::conflict(text).hint(format!("remove it with `tc qdisc del dev {} root`", link.name)))
        }
    }
}

fn has_fq_codel(host: &Netlink, link: &Link) -> Result<bool> {
    let below = host.find_qdisc(link.index, QdiscPlace::BelowTbf)?;
    Ok(below.is_some_and(|below| below.kind == FQ_CODEL))
}

fn is_shaper(root: &Qdisc) -> bool {
    root.kind == Tbf::KIND && root.handle == ROOT_HANDLE
}

fn is_same(wanted: &Tbf, found: &Tbf) -> bool {
    (wanted.rate, wanted.limit) == (found.rate, found.limit) && is_same_buffer(wanted, found)
}

/// Where the kernel was given bytes, it computes the ticks from them by a multiplication that has 31 exact bits.
fn is_same_buffer(wanted: &Tbf, found: &Tbf) -> bool {
    let rounding = if wanted.burst.is_some() { 32 } else { 0 };
    wanted.buffer.abs_diff(found.buffer) <= rounding
}

/// A shaper whose queue is of another kind is made anew: there is no way to give a `tbf` its own queue back.
fn write(host: &Netlink, link: &Link, tbf: &Tbf, fq_codel: bool) -> Result<()> {
    let mut batch = Batch::new();
    if has_fq_codel(host, link)? != fq_codel {
        remove(host, link)?;
    }
    batch.set_tbf(link.index, tbf);
    if fq_codel {
        batch.set_qdisc_below_tbf(link.index, FQ_CODEL);
    }
    match host.send(batch) {
        Err(error) if error.errno == nix::libc::ENOENT => Err(unknown_kind(&error, fq_codel)),
        sent => Ok(sent?),
    }
}

/// The kernel answers "no such file" if it has no discipline of this kind.
fn unknown_kind(error: &cnikit_netlink::Error, fq_codel: bool) -> Error {
    let more = if fq_codel { " or no fq_codel" } else { "" };
    Error::new(code::SYSTEM, format!("this kernel has no tbf{more}"))
        .detail(error.to_string())
        .hint("`modprobe sch_tbf`, `modprobe sch_fq_codel`, or boot a kernel that has them")
}
