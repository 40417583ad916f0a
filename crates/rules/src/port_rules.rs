//! Rules of nftables for what one port sends: a chain, or several, for each attachment, and the rules that lead there.
//!
//! They are put in place before the container can send, and a port is shut before they go.

use cnikit_netlink::{Batch, Link, LinkChange, Netlink};
use cnikit_nftables::{
    Chain, ChainOwner, Hook, HookKind, HookPoint, LONGEST_COMMENT, Mac, Nftables, OwnChain, OwnerFilter, Rule, Rules,
    TableFamily, TableLayout,
};
use cnikit_plan::{ApplyContext, Drifts, GcContext, ReleaseContext};
use cnikit_resources::alias::{self, AliasOwner, Marks, hex};
use cnikit_resources::veth;
use cnikit_skel::{AttachmentId, Error, Journal, Result, log};

use crate::backend::{replace, shared_nftables};

/// The longest name of a chain, in bytes.
#[doc(alias = "NFT_NAME_MAXLEN")]
pub(crate) const LONGEST_CHAIN: usize = 255;

/// One sort of such rules.
pub(crate) struct Sort {
    /// For errors and logs.
    pub(crate) what: &'static str,
    /// The key of the configuration, for CHECK; the comments of the rules begin with it.
    pub(crate) key: &'static str,
    pub(crate) family: TableFamily,
    pub(crate) table: &'static str,
    pub(crate) table_comment: Option<&'static str>,
    /// The base chains, and where packets enter them. The first one holds the rule that leads to the chains of a port.
    pub(crate) base: &'static [(&'static str, HookPoint, i32)],
    /// The chains of an attachment are called by its id, between these. Each comes before those that it leads to.
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// The id is a hash; otherwise `CONTAINER-IFNAME` if that fits, as the upstream plugins have it.
    pub(crate) hashed: bool,
    /// What to do where the kernel cannot make them.
    pub(crate) lacking: &'static str,
}

/// The rules of one port.
pub(crate) struct Content {
    /// For each base chain.
    pub(crate) base: Vec<Vec<Rule>>,
    /// For each chain of the attachment.
    pub(crate) own: Vec<Vec<Rule>>,
}

/// What is in place for one port: its chains, and the rules that lead there.
struct Guard {
    layout: TableLayout,
    lead: Rules,
}

impl Sort {
    /// Has the port guarded; what is so already stays. `content` are the rules, in chains of these names.
    pub(crate) fn put(
        &self,
        tag: &AttachmentId,
        content: &dyn Fn(&[String]) -> Content,
        journal: &mut Journal,
    ) -> Result<()> {
        let nftables = Nftables::here()?;
        let guard = self.guard(&nftables, tag, content, &[ChainOwner::NoChain, ChainOwner::This])?;
        let what = format!("{} of {tag}", self.what);
        replace(&nftables, (&guard.layout, self.filter(tag)), guard.lead, (&what, journal))
            .map_err(|error| self.with_hint(error))
    }

    /// Reports what is missing or different.
    pub(crate) fn verify(
        &self,
        tag: &AttachmentId,
        content: &dyn Fn(&[String]) -> Content,
        drifts: &mut Drifts,
    ) -> Result<()> {
        let nftables = Nftables::here()?;
        let claimed = |claim| self.guard(&nftables, tag, content, &[claim]);
        let guard = claimed(ChainOwner::This).or_else(|_| claimed(ChainOwner::NoChain))?;
        let found = nftables.verify(&guard.layout, self.filter(tag), guard.lead)?;
        drifts.extend(found.into_iter().map(|text| format!("{}: {text}", self.key)));
        Ok(())
    }

    /// Where none of its chains exists, no rule leads there, and nothing else is read.
    pub(crate) fn release(&self, context: &ReleaseContext) -> Result<()> {
        let tag = &context.tag;
        let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
        let layout = self.nothing(tag);
        // Of checks that we alone make, all chains come and go in one transaction: it is enough to ask for the first.
        let first = self.layout(layout.own.iter().take(if self.hashed { 1 } else { layout.own.len() }).cloned());
        if nftables.has_own_chains(&first)? {
            let host = context.host()?;
            shut(host, veth::host_end(host, tag)?.as_ref())?;
            self.log_removed(nftables.release(&layout, self.filter(tag))?);
        }
        Ok(())
    }

    /// Rules that name no network may be a running container's that the upstream plugins attached: they stay.
    pub(crate) fn sweep(&self, context: &GcContext) -> Result<()> {
        let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
        let layout = self.layout(std::iter::empty());
        let network = OwnerFilter::Owned { owner: alias::network_mark(&context.network), comment: None };
        let valid: Vec<String> = context.tags().map(|tag| alias::mark_of(&tag)).collect();
        let keep = |owner: &str| valid.iter().any(|mark| mark == owner);
        let found = nftables.rules(&layout, network.clone())?;
        if found.iter().filter_map(cnikit_nftables::InstalledRule::owner).all(keep) {
            return Ok(());
        }
        let host = context.host()?;
        let (marks, mut batch) = (Marks::of(context), Batch::new());
        let links = host.links_of_kind("veth")?;
        links
            .iter()
            .filter(|link| marks.is_stale(link))
            .for_each(|link| batch.set_link_if_present(link.index, &down()));
        host.send(batch)?;
        self.log_removed(nftables.sweep(&layout, network, keep)?);
        Ok(())
    }

    /// Whether the kernel can make these rules, for STATUS: tried with those of an attachment that will never be.
    pub(crate) fn available(&self, content: &dyn Fn(&[String]) -> Content) -> Result<()> {
        let nobody = AttachmentId { network: String::new(), container: String::new(), ifname: String::new() };
        let guard = self.named(&nobody, &hex(&nobody.hash()[..16]), content);
        let tried = Nftables::here().and_then(|here| here.rehearse(&guard.layout, self.filter(&nobody), guard.lead));
        tried.map_err(|error| self.with_hint(error))
    }

    /// Under the first id with which it is so. Identities of two attachments may read alike when they are joined.
    fn guard(
        &self,
        nftables: &Nftables,
        tag: &AttachmentId,
        content: &dyn Fn(&[String]) -> Content,
        claims: &[ChainOwner],
    ) -> Result<Guard> {
        for id in self.ids(tag) {
            let guard = self.named(tag, &id, content);
            if claims.contains(&nftables.chain_owner(&guard.layout, self.filter(tag))?) {
                return Ok(guard);
            }
        }
        Err(Error::conflict(format!("all names of the chains of {tag} are taken by other attachments")))
    }

    fn named(&self, tag: &AttachmentId, id: &str, content: &dyn Fn(&[String]) -> Content) -> Guard {
        let wanted = self.chains(id);
        let Content { mut base, own } = content(&wanted);
        let comment = shortened(self.comment(tag));
        base.iter_mut().flatten().for_each(|rule| rule.comment = Some(comment.clone()));
        let mut chains: Vec<OwnChain> = self.names(tag).map(|name| OwnChain { name, rules: Vec::new() }).collect();
        for (name, mut rules) in wanted.into_iter().zip(own) {
            rules.iter_mut().for_each(|rule| rule.comment = Some(comment.clone()));
            if let Some(chain) = chains.iter_mut().find(|chain| chain.name == name) {
                chain.rules = rules;
            }
        }
        Guard { layout: self.layout(chains.into_iter()), lead: Rules(base) }
    }

    /// The table, which other programs may have chains in too.
    fn layout(&self, own: impl Iterator<Item = OwnChain>) -> TableLayout {
        let chain = |(name, hook, priority): &(&'static str, HookPoint, i32)| {
            let hook = Hook { kind: HookKind::Filter, hook: *hook, priority: *priority };
            Chain { name, comment: None, hook: Some(hook) }
        };
        TableLayout {
            table_comment: self.table_comment,
            chains: self.base.iter().map(chain).collect(),
            rule_chains: self.base.iter().map(|(name, ..)| *name).collect(),
            own: own.collect(),
            ..TableLayout::of(self.family, self.table)
        }
    }

    /// The frame in which this tag wants nothing.
    pub(crate) fn nothing(&self, tag: &AttachmentId) -> TableLayout {
        self.layout(self.names(tag).map(|name| OwnChain { name, rules: Vec::new() }))
    }

    /// What the names of a tag's chains are made of, first choice first: the upstream plugins' where it is theirs and fits,
    /// then a hash, which has no hyphen and so is nobody's first choice.
    pub(crate) fn ids(&self, tag: &AttachmentId) -> impl Iterator<Item = String> {
        let plain = format!("{}-{}", tag.container, tag.ifname);
        let fits = !self.hashed && self.chains(&plain).iter().all(|name| name.len() <= LONGEST_CHAIN);
        fits.then_some(plain).into_iter().chain([hex(&tag.hash()[..16])])
    }

    /// Every name that a chain of this tag can have; each chain before the one that it leads to.
    pub(crate) fn names(&self, tag: &AttachmentId) -> impl Iterator<Item = String> {
        self.ids(tag).flat_map(|id| self.chains(&id))
    }

    fn chains(&self, id: &str) -> Vec<String> {
        self.names.iter().map(|(before, behind)| format!("{before}{id}{behind}")).collect()
    }

    pub(crate) fn comment(&self, tag: &AttachmentId) -> String {
        format!("{}-{}-{}", self.key, tag.container, tag.ifname)
    }

    /// The rules of a tag: those that name it, and those of the upstream plugins, which name no network.
    fn filter(&self, tag: &AttachmentId) -> OwnerFilter {
        OwnerFilter::Owned { owner: alias::mark_of(tag), comment: Some(self.comment(tag)) }
    }

    fn log_removed(&self, count: usize) {
        if count > 0 {
            log::info(format_args!("removed the {} of an attachment: {count} rules led there", self.what));
        }
    }

    fn with_hint(&self, error: cnikit_nftables::Error) -> Error {
        let lacking = error.unsupported() || error.is_absent();
        if lacking { Error::from(error).hint(self.lacking) } else { error.into() }
    }
}

/// A comment that was cut still has its owner beside it.
pub(crate) fn shortened(comment: String) -> String {
    alias::cut(comment, LONGEST_COMMENT)
}

/// A port whose guard goes is shut first: the container may still run, and the link is removed only after this.
fn shut(host: &Netlink, port: Option<&Link>) -> Result<()> {
    let mut batch = Batch::new();
    port.into_iter().for_each(|port| batch.set_link_if_present(port.index, &down()));
    Ok(host.send(batch)?)
}

fn down() -> LinkChange {
    LinkChange { up: Some(false), ..LinkChange::default() }
}

/// The port of a container that is attached, and the MAC that the container may use.
pub(crate) struct GuardedPort {
    pub(crate) port: Link,
    /// The MAC that the container may use, wherever it is known from.
    pub(crate) mac: Mac,
    /// The MAC that the container's interface has now. The container can change it, so no rule may be made from it.
    live: Option<Mac>,
    /// A result of the ADD records `mac`.
    recorded: bool,
}

impl GuardedPort {
    /// The port, or none if the container is not attached. The MAC is the one that the result of the whole chain records,
    /// which includes what a later plugin (tuning) has changed. Results of versions before 0.3.0 record no MAC. Then it is
    /// the MAC that ADD set: the requested one, or the one that is derived from the tag. The container is never asked.
    ///
    /// Nor is it asked which port is its own, where that bears the tag: it could rename its interface, or give the name to that of
    /// another network. Only a port that other plugins made is found by the container's interface.
    pub(crate) fn find(context: &ApplyContext, requested: Option<Mac>) -> Result<Option<GuardedPort>> {
        let (tag, host) = (&context.tag, context.host()?);
        let end = context.container()?.find_recent_link(&tag.ifname)?;
        let by_tag = veth::host_end(host, tag)?.filter(|port| alias::owner(port, tag) == AliasOwner::This);
        let port = match (by_tag, &end) {
            (Some(port), _) => Some(port),
            (None, Some(end)) => veth::host_end_of(host, &context.netns, end)?,
            (None, None) => None,
        };
        let Some(port) = port.filter(|port| alias::owner(port, tag) != AliasOwner::Another) else { return Ok(None) };
        let live = end.filter(|end| end.lower == Some(port.index)).and_then(|end| end.mac);
        let recorded: Option<Mac> = context.recorded().and_then(|one| one.mac.parse().ok());
        let mac = veth::mac(tag, recorded.or(requested));
        Ok(Some(GuardedPort { port, mac, live, recorded: recorded.is_some() }))
    }

    /// Refuses to restore a port whose container has a MAC that nothing vouches for. A port of ours gets its rules all the
    /// same (`put`), for the MAC that it was given: without rules, the container could use any. They stay although RESTORE fails.
    pub(crate) fn refuse_unknown_mac(
        &self,
        context: &ApplyContext,
        put: impl FnOnce(&mut Journal) -> Result<()>,
    ) -> Result<()> {
        let tag = &context.tag;
        let live = match self.live {
            Some(live) if live != self.mac && !self.recorded => live,
            _ => return Ok(()),
        };
        if alias::owner(&self.port, tag) == AliasOwner::This {
            let mut journal = Journal::default();
            put(&mut journal)?;
            journal.commit();
        }
        let text = format!("{} of {tag} has the MAC {live}, but it was given {}", tag.ifname, self.mac);
        Err(Error::conflict(text).hint(
            "the result of ADD records no MAC that could confirm the change: DEL and ADD make the attachment anew",
        ))
    }
}
