//! Rules of nftables for a resource of your own: the socket, opened once per call, and rules replaced with an undo step.
//!
//! The types of rules are those of [`cnikit_nftables`]. The rules of an attachment in a table of your own need nothing else than
//! [`ensure`] and [`verify`] in the resource, and [`release`] and [`sweep`] in its kind; [`comment`] is what they are found by.

use std::rc::Rc;

use cnikit_nftables::{
    Error as NftablesError, InstalledRule, LONGEST_COMMENT, Nftables, OwnerFilter, Replacement, Rule, Rules, Snapshot,
    TableLayout,
};
use cnikit_plan::{ApplyContext, Drifts, GcContext, ReleaseContext, Shared};
use cnikit_resources::alias::{self, Marks};
use cnikit_skel::{AttachmentId, Error, Journal, Result, log};

use crate::backend::{Backend, RuleBackend};

pub use cnikit_nftables;

/// The socket for nftables that all resources of one ADD, or all kinds of one DEL or GC, share; `shared` is that of their context.
/// `None` if the kernel has no netfilter.
///
/// # Errors
/// The kernel's.
pub fn shared_nftables(shared: &Shared) -> Result<Option<Rc<Nftables>>> {
    let opened = shared.get(|| Ok(Nftables::if_any()?.map(Rc::new)))?;
    Ok(opened.as_ref().clone())
}

/// The comment of an attachment's rules: the hashes of its tag, by which DEL and GC find them, and the tag in clear as far as it
/// fits.
pub fn comment(tag: &AttachmentId) -> String {
    let text = alias::of(tag).replace(|letter: char| letter == '"' || letter.is_control(), "");
    alias::cut(text, LONGEST_COMMENT)
}

/// Gives an attachment these rules, in this order, and no others in this table: those that exist stay. Their comments are
/// replaced by [`comment`]. This is `ensure` and `restore` of a resource.
///
/// # Errors
/// A rule that cannot be encoded; the kernel lacks `nf_tables` or refuses the rules.
pub fn ensure(layout: &TableLayout, rules: Vec<Rule>, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
    let tag = &context.tag;
    let undo_name = format!("rules of {tag} in {layout}");
    let nftables = Nftables::here()?;
    replace(&nftables, layout, owned_by(tag), &commented(rules, tag), &undo_name, journal)?;
    Ok(())
}

/// Compares the rules that an attachment has in this table with these. This is `verify` of a resource.
///
/// # Errors
/// The rules cannot be read. A difference is not an error.
pub fn verify(layout: &TableLayout, rules: Vec<Rule>, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
    let tag = &context.tag;
    drifts.extend(Nftables::here()?.verify(layout, owned_by(tag), &commented(rules, tag))?);
    Ok(())
}

/// Removes the rules that an attachment has in this table. This is `release` of a kind; the table and its chains stay.
///
/// # Errors
/// The kernel's. That there are no rules, or no `nf_tables`, is not an error.
pub fn release(layout: &TableLayout, context: &ReleaseContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    log_removed(nftables.release(layout, owned_by(&context.tag))?, layout);
    Ok(())
}

/// Removes the rules of this network in this table that belong to no valid attachment. This is `sweep` of a kind.
///
/// # Errors
/// The kernel's.
pub fn sweep(layout: &TableLayout, context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let marks = Marks::of(context);
    let keep = |comment: &str| !marks.is_stale_text(comment);
    log_removed(nftables.sweep(layout, &alias::network_mark(&context.network), keep)?, layout);
    Ok(())
}

/// Checks for STATUS that the kernel accepts a table; it makes nothing.
///
/// # Errors
/// The kernel lacks `nf_tables`, or refuses to be asked.
pub fn available(layout: &TableLayout) -> Result<()> {
    Ok(Nftables::here()?.verify(layout, "-", &[]).map(drop)?)
}

/// Selects the rules of an attachment.
fn owned_by(tag: &AttachmentId) -> OwnerFilter {
    OwnerFilter::Commented(alias::mark_of(tag))
}

fn commented(mut rules: Vec<Rule>, tag: &AttachmentId) -> Vec<Rule> {
    for rule in &mut rules {
        rule.comment = Some(comment(tag));
    }
    rules
}

fn log_removed(count: usize, layout: &TableLayout) {
    if count > 0 {
        log::info(format_args!("removed {count} rules of {layout}"));
    }
}

/// Replaces the rules of an owner in one transaction. The undo step is in the journal before the change is made, because the reply
/// may be lost: the roll-back puts back the rules from before, which may be a running container's. `undo_name` names it in the log.
///
/// # Errors
/// As [`Nftables::replace`].
pub fn replace(
    nftables: &Nftables,
    layout: &TableLayout,
    filter: OwnerFilter,
    rules: impl Into<Rules>,
    undo_name: &str,
    journal: &mut Journal,
) -> cnikit_nftables::Result<()> {
    let mut replacement = nftables.begin_replace(layout, filter, rules)?;
    while !replacement.is_done() {
        let snapshot = replacement.read()?;
        commit(&mut replacement, snapshot, undo_name, journal)?;
    }
    Ok(())
}

impl RuleBackend {
    /// The error of a transaction. If this kernel does not support the rules, it names what they need.
    pub(crate) fn explained_nftables(self, error: NftablesError) -> Error {
        let RuleBackend { what, nftables_needs, .. } = self;
        if !lacks_feature(&error) {
            return error.into();
        }
        let instead = self.or_choose(Backend::Iptables);
        Error::from(error)
            .hint(format!("{what} of nftables need a kernel with {nftables_needs}: load these modules, {instead}"))
    }
}

/// The attachment whose rules STATUS has the kernel try. No attachment has an empty name.
pub(crate) fn unnamed() -> AttachmentId {
    AttachmentId { network: String::new(), container: String::new(), ifname: String::new() }
}

/// Whether the kernel lacks something that the rules need. For the module of an expression or of a type of chains, which it could
/// not load, it answers `ENOENT`.
pub(crate) fn lacks_feature(error: &NftablesError) -> bool {
    error.unsupported() || error.is_absent()
}

/// Records how to undo a replacement, and commits it. The undo step comes first: the change may be made and the reply lost.
///
/// # Errors
/// As [`Replacement::commit`].
pub(crate) fn commit<'a>(
    replacement: &mut Replacement<'a>,
    snapshot: Snapshot<'a>,
    undo_name: &str,
    journal: &mut Journal,
) -> cnikit_nftables::Result<()> {
    // If a part of the changes was made, the undo step of the first attempt puts back the rules from before.
    if snapshot.begun() {
        return replacement.commit(snapshot);
    }
    let layout = replacement.layout().clone();
    let filter = replacement.filter().clone();
    let before: Vec<InstalledRule> = snapshot.before().to_vec();
    let undo = journal.undo(&undo_name.to_owned(), move |_| Nftables::here()?.put_back(&layout, filter, &before));
    replacement.commit(snapshot)?;
    // Nothing was changed. The next attempt records the rules that it finds.
    if !replacement.is_done() && !replacement.has_begun() {
        journal.strike(undo);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_with_the_mark_and_is_one_that_the_kernel_takes() {
        for network in ["n\"\n".repeat(90), "n".repeat(300)] {
            let tag = AttachmentId { network, container: "c".into(), ifname: "eth0".into() };
            let text = comment(&tag);
            assert!(text.starts_with(&alias::mark_of(&tag)) && text.len() <= LONGEST_COMMENT, "{text}");
            assert!(!text.contains(['"', '\n']) && text.contains(" n"), "{text}");
        }
    }
}
