//! The limit of the rate at which the container's interface sends.

use std::fmt;

use cnikit_netlink::{Batch, Filter, FilterRule, Link, LinkChange, Netlink, NewIfb, QdiscPlace};
use cnikit_netns::Inside;
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result};
use cnikit_types::Interface;

use crate::identity::alias::{self, AliasOwner, Marks};
use crate::link::container_link::{group_of, no_kind, owner};
use crate::link::delete_links::{delete, delete_all};
use crate::link::ipv6_settings;
use crate::shaper::counted_traffic::UNLIMITED;
use crate::shaper::ifb_links::{IFB, NamedLinks, is_ifb};
use crate::shaper::{CountedTraffic, RateLimit, host_end, root};

/// A limit of the rate at which the container's interface sends: what the host end receives is redirected to an ifb with a shaper.
#[derive(Clone, Debug)]
pub struct EgressLimit {
    /// The container's interface.
    pub ifname: String,
    /// The limit; `None` lifts that of an earlier ADD.
    pub limit: Option<RateLimit>,
    /// What counts.
    pub counted: CountedTraffic,
}

/// The ifb is found by its alias, and one that upstream made by upstream's name.
pub const KIND: Kind = Kind { name: "egress limit", release, sweep, outlives_link: true };

impl Resource for EgressLimit {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        if self.limit.is_none() {
            return Ok(());
        }
        let host = context.host()?;
        let from = host_end::of(context, &self.ifname)?;
        let named = NamedLinks::read(host, &context.tag)?;
        Ingress::read(host, &from, named.names())?;
        match named.of(&from)? {
            Some(ifb) => root::preflight(host, &ifb),
            None => named.free_name().map(drop),
        }
    }

    /// A link that was made before, by a call that was repeated or killed, is used and its rate changed.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let Some(limit) = &self.limit else { return lift(context, &self.ifname) };
        let host = context.host()?;
        let from = host_end::of(context, &self.ifname)?;
        let named = NamedLinks::read(host, &context.tag)?;
        let ifb = match named.of(&from)? {
            Some(ifb) => limit_existing(host, &context.tag, ifb, limit, journal)?,
            None => create(host, &context.tag, named.free_name()?, &from, limit, journal)?,
        };
        redirect(&named, &from, &ifb, &self.counted.of_egress(ifb.index), journal)?;
        let mac = ifb.mac.map(|mac| mac.to_string()).unwrap_or_default();
        Ok(Made::one(Interface { name: ifb.name, mac, ..Interface::default() }))
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(limit) = &self.limit else { return Ok(()) };
        let host = context.host()?;
        let from = host_end::of(context, &self.ifname)?;
        let Some(ifb) = NamedLinks::read(host, &context.tag)?.of(&from)? else {
            let ifname = &self.ifname;
            drifts.unless(false, || format!("limit of traffic from {ifname}: wanted an ifb of its own, found none"));
            return Ok(());
        };
        drifts.unless(ifb.up, || format!("{}: wanted up, found down", ifb.name));
        root::verify(host, &ifb, limit, Vec::new(), drifts)?;
        let filters = host.filters(from.index, QdiscPlace::Ingress)?;
        if self.counted != CountedTraffic::All {
            let wanted = self.counted.of_egress(ifb.index);
            let found: Vec<FilterRule> = filters.iter().map_while(|filter| filter.rule).collect();
            if !found.starts_with(&wanted) {
                drifts.compare(format!("filters of {}", from.name), root::listed(&wanted), root::listed(&found));
            }
            return Ok(());
        }
        let is_redirected = filters.first().is_some_and(|filter| filter.redirects_all_to(ifb.index));
        drifts.unless(is_redirected, || {
            format!("filters of {}: wanted first one that redirects all to {}, found {filters:?}", from.name, ifb.name)
        });
        Ok(())
    }
}

impl fmt::Display for EgressLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            Some(limit) => write!(f, "limit of traffic from {}, by an ifb: {limit}{}", self.ifname, self.counted),
            None => write!(f, "no limit of traffic from {}", self.ifname),
        }
    }
}

/// Checks that this kernel can make an ifb.
///
/// # Errors
/// The kernel lacks the kind of link, or cannot be asked.
pub fn available() -> Result<()> {
    if Netlink::here()?.knows_ifb()? { Ok(()) } else { Err(no_kind(IFB, IFB)) }
}

/// The ifb that this ADD makes, for the journal.
#[derive(Clone)]
struct OwnIfb {
    host: Netlink,
    tag: AttachmentId,
    name: String,
}

impl OwnIfb {
    /// Deletes the ifb, if it is this attachment's.
    fn delete(&self) -> Result<()> {
        match self.host.find_link(&self.name)? {
            Some(link) if is_ifb(&link) && owner(&link, &self.tag) == AliasOwner::This => delete(&self.host, &link),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for OwnIfb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{IFB} {}", self.name)
    }
}

/// Makes an ifb with the MTU of the host end, limits it and brings it up. The kernel accepts no alias in the message that makes a
/// link, so a group marks it until the alias is written.
fn create(
    host: &Netlink,
    tag: &AttachmentId,
    name: String,
    from: &Link,
    limit: &RateLimit,
    journal: &mut Journal,
) -> Result<Link> {
    let own = OwnIfb { host: host.clone(), tag: tag.clone(), name: name.clone() };
    let _ = journal.undo(&own, OwnIfb::delete);
    let ifb = match host.create_ifb(&NewIfb { name, mtu: from.mtu, group: group_of(tag) }) {
        Err(error) if error.unsupported() => return Err(no_kind(IFB, IFB).detail(error.to_string())),
        created => created?,
    };
    ipv6_settings::ignore_router_adverts(&Inside::here(), &ifb.name, &ipv6_settings::ALL)?;
    let mut batch = Batch::new();
    name_owner(&mut batch, tag, &ifb);
    root::begin(host, &ifb, limit, batch)?;
    Ok(ifb)
}

/// Limits an ifb that an earlier call made, and brings it up.
fn limit_existing(
    host: &Netlink,
    tag: &AttachmentId,
    ifb: Link,
    limit: &RateLimit,
    journal: &mut Journal,
) -> Result<Link> {
    let mut batch = Batch::new();
    name_owner(&mut batch, tag, &ifb);
    host.send(batch)?;
    root::ensure(host, &ifb, limit, Vec::new(), journal)?;
    host.change(ifb.index, &LinkChange::default().up(true))?;
    Ok(ifb)
}

/// Adds the alias of an ifb that has none. Until the kernel has taken it, the group marks the link: [`redirect`] takes the link out
/// of that.
fn name_owner(batch: &mut Batch, tag: &AttachmentId, ifb: &Link) {
    if ifb.alias.is_none() {
        batch.set_link(ifb.index, &LinkChange::default().alias(alias::of(tag)));
    }
}

/// The ingress of a host end that this ADD adds, for the journal.
#[derive(Clone)]
struct OwnIngress {
    host: Netlink,
    from: Link,
    /// The names of the attachment's ifb.
    ifbs: Vec<String>,
    /// The filters of the ingress that it replaces.
    before: Option<Vec<FilterRule>>,
}

impl OwnIngress {
    /// Deletes the ingress, and adds the one before it again: the container goes on with the limit of the earlier ADD.
    fn undo(&self) -> Result<()> {
        delete_ingress(&self.host, &self.from, &self.ifbs)?;
        let Some(before) = &self.before else { return Ok(()) };
        let mut batch = Batch::new();
        add_ingress(&mut batch, &self.from, before);
        Ok(self.host.send(batch)?)
    }
}

impl fmt::Display for OwnIngress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ingress of {}", self.from.name)
    }
}

/// Removes the limit of an earlier ADD: first the redirection, because what is redirected to a link that is gone is dropped. It is
/// not put back if the ADD fails after it: the plan has this step last.
fn lift(context: &ApplyContext, ifname: &str) -> Result<Made> {
    let host = context.host()?;
    let Some(from) = host_end::to_lift(context, ifname)? else { return Ok(Made::nothing()) };
    let named = NamedLinks::read(host, &context.tag)?;
    if let Some(ifb) = named.of(&from)? {
        delete_ingress(host, &from, named.names())?;
        delete(host, &ifb)?;
    }
    Ok(Made::nothing())
}

/// Redirects what counts of what the host end receives to the ifb, and takes the ifb, which has its alias by now, out of its group.
/// An ingress with other filters, such as to an ifb that is gone, was made by an earlier ADD: [`Ingress::read`] refuses any other.
fn redirect(named: &NamedLinks, from: &Link, ifb: &Link, wanted: &[FilterRule], journal: &mut Journal) -> Result<()> {
    let (host, ifbs) = (named.host(), named.names());
    let ingress = Ingress::read(host, from, ifbs)?;
    let mut batch = Batch::new();
    if ifb.group != 0 {
        batch.set_link(ifb.index, &LinkChange::default().group(0));
    }
    let found = ingress.filters.iter().map(|filter| filter.rule);
    if !found.eq(wanted.iter().copied().map(Some)) {
        let before = ingress.working_rules();
        let own = OwnIngress { host: host.clone(), from: from.clone(), ifbs: ifbs.to_vec(), before };
        let _ = journal.undo(&own, OwnIngress::undo);
        if ingress.is_there {
            batch.delete_qdisc(from.index, QdiscPlace::Ingress);
        }
        add_ingress(&mut batch, from, wanted);
    }
    Ok(host.send(batch)?)
}

fn add_ingress(batch: &mut Batch, from: &Link, rules: &[FilterRule]) {
    batch.add_ingress(from.index);
    for rule in rules {
        batch.add_filter(from.index, QdiscPlace::Ingress, rule);
    }
}

/// The ingress of a host end: there is none, or it has only filters as they are made for a limit.
struct Ingress {
    is_there: bool,
    filters: Vec<Filter>,
}

impl Ingress {
    /// Reads the ingress of an attachment whose ifb has one of these names.
    ///
    /// # Errors
    /// It is another program's or has filters of one, or the kernel cannot be asked.
    fn read(host: &Netlink, from: &Link, ifbs: &[String]) -> Result<Ingress> {
        let Some(ingress) = host.find_qdisc(from.index, QdiscPlace::Ingress)? else {
            return Ok(Ingress { is_there: false, filters: Vec::new() });
        };
        if ingress.kind == "ingress" {
            let filters = host.filters(from.index, QdiscPlace::Ingress)?;
            if are_ours(host, &filters, ifbs)? {
                return Ok(Ingress { is_there: true, filters });
            }
        }
        let text = format!("{} has an ingress qdisc or filters of another program", from.name);
        let hint =
            format!("run `tc filter show dev {} ingress`, and remove the filters that are not needed", from.name);
        Err(Error::conflict(text).hint(hint))
    }

    /// The rules of its filters, if it has a limit that works: no filter leads to a link that is gone.
    fn working_rules(&self) -> Option<Vec<FilterRule>> {
        let rules: Option<Vec<FilterRule>> = self.filters.iter().map(|filter| filter.rule).collect();
        rules.filter(|rules| self.is_there && rules.iter().all(|rule| rule.redirects_to != Some(0)))
    }
}

/// Whether all filters are as they are made for the limit of an attachment, whose ifb has one of these names.
fn are_ours(host: &Netlink, filters: &[Filter], ifbs: &[String]) -> Result<bool> {
    for filter in filters {
        let Some(rule) = &filter.rule else { return Ok(false) };
        let Some(index) = rule.redirects_to else {
            if rule.class == UNLIMITED {
                continue;
            }
            return Ok(false);
        };
        // 0: the link is gone.
        if index != 0
            && let Some(to) = host.find_link_at(index)?
            && !(is_ifb(&to) && ifbs.contains(&to.name))
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Deletes the ingress of a host end, if it is that of a limit by one of these ifbs.
fn delete_ingress(host: &Netlink, from: &Link, ifbs: &[String]) -> Result<()> {
    match host.find_qdisc(from.index, QdiscPlace::Ingress)? {
        Some(ingress) if ingress.kind == "ingress" => {}
        _ => return Ok(()),
    }
    if !are_ours(host, &host.filters(from.index, QdiscPlace::Ingress)?, ifbs)? {
        return Ok(());
    }
    let mut batch = Batch::new();
    batch.delete_qdisc(from.index, QdiscPlace::Ingress);
    Ok(host.send(batch)?)
}

/// Removes the redirection before the ifb: what is redirected to a link that is gone is dropped. The redirection
/// and the ifb are removed last, because they may be all that leads to the host end: they stay if its limit could not be removed.
fn release(context: &ReleaseContext) -> Result<()> {
    let host = context.host()?;
    let host_ends = host_end::to_release(context)?;
    let named = NamedLinks::read(host, &context.tag)?;
    let ifb = match named.marked() {
        Some(ifb) => Some(ifb),
        None => named.unmarked_to_release(context, &host_ends)?,
    };
    for from in &host_ends {
        root::remove(host, from)?;
        delete_ingress(host, from, named.names())?;
    }
    match ifb {
        Some(ifb) => delete(host, &ifb),
        None => Ok(()),
    }
}

/// A host end that redirects to such an ifb loses its limits too. It may exist for longer, and its traffic would be dropped. They
/// are removed in the order of DEL.
fn sweep(context: &GcContext) -> Result<()> {
    let host = context.host()?;
    let marks = Marks::of(context);
    let is_meant = |link: &Link| is_ifb(link) && marks.is_stale(link);
    let links: Vec<Link> = host.links_of_kind(IFB)?.into_iter().filter(is_meant).collect();
    if links.is_empty() {
        return Ok(());
    }
    let mut errors = Errors::default();
    for link in host.links_of_kind("veth")? {
        errors.note(sweep_host_end(host, &link, &links));
    }
    errors.finish()?;
    delete_all(host, &links, is_meant)
}

fn sweep_host_end(host: &Netlink, link: &Link, stale: &[Link]) -> Result<()> {
    let filters = host.filters(link.index, QdiscPlace::Ingress)?;
    let leads_to_stale = |filter: &Filter| stale.iter().any(|ifb| filter.redirects_to() == Some(ifb.index));
    if !filters.iter().any(leads_to_stale) {
        return Ok(());
    }
    root::remove(host, link)?;
    let names: Vec<String> = stale.iter().map(|ifb| ifb.name.clone()).collect();
    delete_ingress(host, link, &names)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_dry_run_names_the_limit_or_says_that_there_is_none() {
        let limit = RateLimit::checked(8_000_000, 800_000, Duration::from_millis(25), false).unwrap();
        let counted = CountedTraffic::Only(vec!["10.0.0.0/8".parse().unwrap()]);
        let shown = |limit| EgressLimit { ifname: "eth0".into(), limit, counted: counted.clone() }.to_string();
        assert_eq!(
            shown(Some(limit.clone())),
            format!("limit of traffic from eth0, by an ifb: {limit}, only 10.0.0.0/8")
        );
        assert_eq!(shown(None), "no limit of traffic from eth0");
    }
}
