//! Rules of nftables for the packets that come in by one port: one or more chains per attachment, and the rules that jump to them.
//!
//! They are made before the container can send. The port is set down before they are removed.

use cnikit_netlink::{Batch, Link, LinkChange, Netlink};
use cnikit_nftables::{
    Chain, ChainOwner, Hook, HookKind, HookPoint, LONGEST_COMMENT, Mac, Nftables, OwnedChain, OwnerFilter, Rule, Rules,
    TableFamily, TableLayout,
};
use cnikit_plan::{ApplyContext, Drifts, GcContext, ReleaseContext};
use cnikit_resources::alias::{self, AliasOwner, Marks, hex};
use cnikit_resources::veth;
use cnikit_skel::{AttachmentId, Error, Journal, Result, log};

use crate::nftables::{lacks_feature, replace, shared_nftables, unnamed};

/// The longest name of a chain, in bytes.
#[doc(alias = "NFT_NAME_MAXLEN")]
pub(crate) const LONGEST_CHAIN: usize = 255;

/// One kind of rules per port.
pub(crate) struct PortRules {
    /// The name in errors and logs.
    pub(crate) what: &'static str,
    /// The key of the configuration, for CHECK; the comments of the rules begin with it.
    pub(crate) key: &'static str,
    pub(crate) family: TableFamily,
    pub(crate) table: &'static str,
    pub(crate) table_comment: Option<&'static str>,
    /// The base chains with hook and priority. The first one has the rule that jumps to the chains of a port.
    pub(crate) base: &'static [(&'static str, HookPoint, i32)],
    /// The prefix and suffix of each chain of an attachment; the id of the attachment is between them. A chain comes before those
    /// that it jumps to.
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// Whether the id is a hash. Otherwise it is `CONTAINER-IFNAME` as in upstream's names, if that fits.
    pub(crate) hashed: bool,
    /// The hint for kernels that do not support the rules.
    pub(crate) lacking: &'static str,
}

/// The rules of one port.
pub(crate) struct Content {
    /// The rules in each base chain.
    pub(crate) base: Vec<Vec<Rule>>,
    /// The rules in each chain of the attachment.
    pub(crate) own: Vec<Vec<Rule>>,
}

/// The chains of one port, and the rules in base chains that jump to them.
struct PortGuard {
    layout: TableLayout,
    jumps: Rules,
}

impl PortRules {
    /// Makes the rules of a port, or replaces those that differ. `content` returns the rules for chains of these names.
    ///
    /// # Errors
    /// The kernel does not support the rules, or all names of the chains are in use.
    pub(crate) fn put(
        &self,
        tag: &AttachmentId,
        content: &dyn Fn(&[String]) -> Content,
        journal: &mut Journal,
    ) -> Result<()> {
        let nftables = Nftables::here()?;
        let guard = self.guard(&nftables, tag, content, &[ChainOwner::NoChain, ChainOwner::This])?;
        let undo_name = format!("{} of {tag}", self.what);
        replace(&nftables, &guard.layout, self.filter(tag), guard.jumps, &undo_name, journal)
            .map_err(|error| self.with_hint(error))
    }

    /// Reports rules that are missing or different.
    pub(crate) fn verify(
        &self,
        tag: &AttachmentId,
        content: &dyn Fn(&[String]) -> Content,
        drifts: &mut Drifts,
    ) -> Result<()> {
        let nftables = Nftables::here()?;
        let guard = match self.guard(&nftables, tag, content, &[ChainOwner::This]) {
            Ok(guard) => guard,
            Err(_) => self.guard(&nftables, tag, content, &[ChainOwner::NoChain])?,
        };
        let found = nftables.verify(&guard.layout, self.filter(tag), guard.jumps)?;
        drifts.extend(found.into_iter().map(|text| format!("{}: {text}", self.key)));
        Ok(())
    }

    /// Removes the rules of an attachment. If none of its chains exists, no rule jumps there, and nothing else is read.
    pub(crate) fn release(&self, context: &ReleaseContext) -> Result<()> {
        let tag = &context.tag;
        let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
        let layout = self.empty_layout(tag);
        // Chains with hashed ids are created and deleted in one transaction: either all exist or none.
        let asked = if self.hashed { 1 } else { layout.owned_chains.len() };
        let first = self.layout(layout.owned_chains.iter().take(asked).cloned());
        if nftables.has_owned_chains(&first)? {
            let host = context.host()?;
            set_down(host, veth::host_end(host, tag)?.as_ref())?;
            self.log_removed(nftables.release(&layout, self.filter(tag))?);
        }
        Ok(())
    }

    /// Removes the rules of this network that belong to no valid attachment. Rules without a network stay: they may be of a running
    /// container that the upstream plugins attached.
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
        let marks = Marks::of(context);
        let mut batch = Batch::new();
        for link in host.links_of_kind("veth")? {
            if marks.is_stale(&link) {
                batch.set_link_if_present(link.index, &down());
            }
        }
        host.send(batch)?;
        self.log_removed(nftables.sweep(&layout, network, keep)?);
        Ok(())
    }

    /// Checks for STATUS that the kernel supports these rules, by trying those of an attachment without a name.
    pub(crate) fn available(&self, content: &dyn Fn(&[String]) -> Content) -> Result<()> {
        let unnamed = unnamed();
        let guard = self.named(&unnamed, &hex(&unnamed.hash()[..16]), content);
        let tried = Nftables::here().and_then(|here| here.rehearse(&guard.layout, self.filter(&unnamed), guard.jumps));
        tried.map_err(|error| self.with_hint(error))
    }

    /// The rules with the first id whose chains have one of these owners. Joined with hyphens, two attachments may have the same
    /// id.
    fn guard(
        &self,
        nftables: &Nftables,
        tag: &AttachmentId,
        content: &dyn Fn(&[String]) -> Content,
        owners: &[ChainOwner],
    ) -> Result<PortGuard> {
        for id in self.ids(tag) {
            let guard = self.named(tag, &id, content);
            if owners.contains(&nftables.chain_owner(&guard.layout, self.filter(tag))?) {
                return Ok(guard);
            }
        }
        Err(Error::conflict(format!("all names of the chains of {tag} are taken by other attachments")))
    }

    fn named(&self, tag: &AttachmentId, id: &str, content: &dyn Fn(&[String]) -> Content) -> PortGuard {
        let wanted = self.chains(id);
        let Content { mut base, own } = content(&wanted);
        let comment = shortened(self.comment(tag));
        base.iter_mut().flatten().for_each(|rule| rule.comment = Some(comment.clone()));
        let mut chains: Vec<OwnedChain> = self.names(tag).map(|name| OwnedChain { name, rules: Vec::new() }).collect();
        for (name, mut rules) in wanted.into_iter().zip(own) {
            rules.iter_mut().for_each(|rule| rule.comment = Some(comment.clone()));
            if let Some(chain) = chains.iter_mut().find(|chain| chain.name == name) {
                chain.rules = rules;
            }
        }
        PortGuard { layout: self.layout(chains.into_iter()), jumps: Rules(base) }
    }

    /// The table, which other programs may have chains in too.
    fn layout(&self, owned_chains: impl Iterator<Item = OwnedChain>) -> TableLayout {
        let chain = |(name, hook, priority): &(&'static str, HookPoint, i32)| {
            let hook = Hook { kind: HookKind::Filter, hook: *hook, priority: *priority };
            Chain { name, comment: None, hook: Some(hook) }
        };
        TableLayout {
            table_comment: self.table_comment,
            chains: self.base.iter().map(chain).collect(),
            rule_chains: self.base.iter().map(|(name, ..)| *name).collect(),
            owned_chains: owned_chains.collect(),
            ..TableLayout::of(self.family, self.table)
        }
    }

    /// The table with all chains that an attachment may have, without rules.
    pub(crate) fn empty_layout(&self, tag: &AttachmentId) -> TableLayout {
        self.layout(self.names(tag).map(|name| OwnedChain { name, rules: Vec::new() }))
    }

    /// The ids in the names of an attachment's chains, in order of preference: upstream's if it fits, then a hash, which has no
    /// hyphen and so is no id of upstream.
    pub(crate) fn ids(&self, tag: &AttachmentId) -> impl Iterator<Item = String> {
        let plain = format!("{}-{}", tag.container, tag.ifname);
        let mut ids = Vec::new();
        if !self.hashed && self.chains(&plain).iter().all(|name| name.len() <= LONGEST_CHAIN) {
            ids.push(plain);
        }
        ids.push(hex(&tag.hash()[..16]));
        ids.into_iter()
    }

    /// All names that chains of this attachment can have. A chain comes before those that it jumps to.
    pub(crate) fn names(&self, tag: &AttachmentId) -> impl Iterator<Item = String> {
        self.ids(tag).flat_map(|id| self.chains(&id))
    }

    fn chains(&self, id: &str) -> Vec<String> {
        self.names.iter().map(|(before, behind)| format!("{before}{id}{behind}")).collect()
    }

    pub(crate) fn comment(&self, tag: &AttachmentId) -> String {
        format!("{}-{}-{}", self.key, tag.container, tag.ifname)
    }

    /// The rules of an attachment: those with its tag, and those of the upstream plugins, which have no network.
    fn filter(&self, tag: &AttachmentId) -> OwnerFilter {
        OwnerFilter::Owned { owner: alias::mark_of(tag), comment: Some(self.comment(tag)) }
    }

    fn log_removed(&self, count: usize) {
        if count > 0 {
            log::info(format_args!("removed the {} of an attachment: {count} rules led there", self.what));
        }
    }

    fn with_hint(&self, error: cnikit_nftables::Error) -> Error {
        if lacks_feature(&error) { Error::from(error).hint(self.lacking) } else { error.into() }
    }
}

/// A comment that fits. The owner is in the user data of the rule too, so a comment can be cut.
pub(crate) fn shortened(comment: String) -> String {
    alias::cut(comment, LONGEST_COMMENT)
}

/// Sets a port down before its rules are removed: the container may still run, and the link is removed later.
fn set_down(host: &Netlink, port: Option<&Link>) -> Result<()> {
    let mut batch = Batch::new();
    if let Some(port) = port {
        batch.set_link_if_present(port.index, &down());
    }
    Ok(host.send(batch)?)
}

fn down() -> LinkChange {
    LinkChange::default().up(false)
}

/// The port of a container that is attached, and the MAC that the container may use.
pub(crate) struct GuardedPort {
    pub(crate) port: Link,
    /// The MAC that the container may use.
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
    /// The port is found by the tag in its alias, if it has one: the container could rename its interface, or give the name to an
    /// interface of another network. Only a port that other plugins made is found by the container's interface.
    pub(crate) fn find(context: &ApplyContext, requested: Option<Mac>) -> Result<Option<GuardedPort>> {
        let tag = &context.tag;
        let host = context.host()?;
        let end = context.container()?.find_recent_link(&tag.ifname)?;
        let port = match (veth::host_end(host, tag)?, &end) {
            (Some(port), _) if alias::owner(&port, tag) == AliasOwner::This => Some(port),
            (_, Some(end)) => veth::host_end_of(host, &context.netns, end)?,
            (_, None) => None,
        };
        let Some(port) = port else { return Ok(None) };
        if alias::owner(&port, tag) == AliasOwner::Another {
            return Ok(None);
        }
        let live = match end {
            Some(end) if end.lower == Some(port.index) => end.mac,
            _ => None,
        };
        let recorded: Option<Mac> = context.recorded().and_then(|one| one.mac.parse().ok());
        let mac = veth::mac(tag, recorded.or(requested));
        Ok(Some(GuardedPort { port, mac, live, recorded: recorded.is_some() }))
    }

    /// Refuses to restore a port whose container has a MAC that no result records. A port of ours still gets its rules (`put`), for
    /// the MAC that ADD set: without rules, the container could use any. The rules stay although RESTORE fails.
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
        Err(Error::conflict(text)
            .hint("the result of ADD has no MAC that could confirm the change: DEL and ADD the attachment"))
    }
}
