//! `gc`: deletes the attachments of a network whose namespaces are gone.

use cnikit_libcni::{CachedAttachment, NetworkList, Runtime, State, ValidAttachment};
use cnikit_netns::{NetnsScan, NetnsStatus};
use cnikit_reservations::Holder;
use serde_json::{Value, json};

use crate::cli;
use crate::commands::netns_scan::scan;
use crate::commands::verbs::load_or_cached_list;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::PathInspector;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print_to_stderr, warn};
use crate::stores::stores;

/// Whether the GC keeps an attachment, and why.
struct Verdict {
    attachment: ValidAttachment,
    keep: bool,
    why: String,
}

/// A cached attachment of the network.
struct Candidate {
    attachment: ValidAttachment,
    cached: CachedAttachment,
    /// Why the path no longer leads to the namespace.
    lost: Option<String>,
}

/// Deletes the attachments whose namespaces are gone. With `--all` it deletes all of them, as upstream does.
pub(crate) fn gc(common: &Common, out: Output, args: &cli::Gc) -> Result {
    let list = load_or_cached_list(common, &args.network.name, |_| true)?;
    let runtime = environment::runtime(common);
    let verdicts = verdicts(common, &list, &runtime, args)?;
    let attachments: Vec<Value> = verdicts.iter().map(Verdict::to_json).collect();
    let document = json!({"network": list.name, "dryRun": args.dry_run, "attachments": attachments});
    if !out.json {
        // Upstream's gc writes nothing to stdout.
        for verdict in &verdicts {
            print_to_stderr(&verdict.text(args.dry_run, &list.name));
        }
    }
    if args.dry_run {
        return out.finish(document, Vec::new());
    }
    let mut valid = Vec::new();
    for verdict in verdicts {
        if verdict.keep {
            valid.push(verdict.attachment);
        }
    }
    let mut failures = Vec::new();
    match runtime.gc(&list, &valid) {
        Ok(report) => warn(&report.warnings),
        Err(error) => failures.push(Failure::from(error)),
    }
    out.finish(document, failures)
}

/// A verdict for each attachment of the network.
fn verdicts(common: &Common, list: &NetworkList, runtime: &Runtime, args: &cli::Gc) -> Result<Vec<Verdict>> {
    let mut candidates = Vec::new();
    for cached in runtime.cache.attachments()? {
        if let Some(attachment) = cached.attachment_of(&list.name) {
            candidates.push(Candidate { attachment, lost: cached.lost_namespace(), cached });
        }
    }
    let inspector = PathInspector::new();
    let scan = scan_if_needed(&candidates, args);
    let mut verdicts = Vec::new();
    for candidate in &candidates {
        verdicts.push(if list.disable_gc {
            candidate.keep("`disableGC` of the network forbids it")
        } else {
            candidate.verdict(&inspector, scan.as_ref(), args)
        });
    }
    if !args.all {
        let unknown = unknown_holders(common, list, &verdicts)?;
        verdicts.extend(unknown);
    }
    Ok(verdicts)
}

/// Scans for living namespaces if that can decide about any attachment.
fn scan_if_needed(candidates: &[Candidate], args: &cli::Gc) -> Option<NetnsScan> {
    let is_in_doubt = |one: &Candidate| one.cached.metadata.netns_cookie.is_some() && one.lost.is_some();
    if args.all || !candidates.iter().any(is_in_doubt) {
        return None;
    }
    Some(scan(args.sight))
}

impl Candidate {
    fn keep(&self, why: impl Into<String>) -> Verdict {
        Verdict { attachment: self.attachment.clone(), keep: true, why: why.into() }
    }

    fn delete(&self, why: impl Into<String>) -> Verdict {
        Verdict { attachment: self.attachment.clone(), keep: false, why: why.into() }
    }

    fn verdict(&self, inspector: &PathInspector, scan: Option<&NetnsScan>, args: &cli::Gc) -> Verdict {
        let ValidAttachment { container_id, ifname } = &self.attachment;
        let cached = &self.cached;
        if args.keep.contains(&format!("{container_id}/{ifname}")) {
            return self.keep("`--keep` names it");
        }
        if args.all {
            return self.delete("`--all`");
        }
        match cached.state {
            State::Adding => return self.keep("an add is in progress"),
            State::Unreadable => {
                let why = cached.problems.concat();
                let file = cached.file.display();
                return self.keep(format!("{file}: {why}; hint: run `cnitool del`, or `cnitool gc --all`"));
            }
            State::Attached | State::Interrupted => {}
        }
        let Some(lost) = &self.lost else {
            let is_unknown = cached.at.netns.is_empty();
            return self.keep(if is_unknown {
                "the path of its namespace is not recorded"
            } else {
                "its namespace exists"
            });
        };
        let (Some(scan), Some(cookie)) = (scan, cached.metadata.netns_cookie) else {
            return self.delete(lost);
        };
        if inspector.is_of_this_boot(&cached.metadata) != Some(true) {
            return self.delete(lost);
        }
        match scan.status(cookie) {
            NetnsStatus::Lives => self.keep(format!("{lost}, but the namespace itself exists")),
            NetnsStatus::Unknown(unseen) => self.keep(format!("{lost}, but it may exist: {unseen}")),
            NetnsStatus::Dead => self.delete(lost),
        }
    }
}

/// The attachments that have an address of the network and are not in the cache. They may belong to a runtime with its own cache.
fn unknown_holders(common: &Common, list: &NetworkList, known: &[Verdict]) -> Result<Vec<Verdict>> {
    let mut found: Vec<Verdict> = Vec::new();
    for network in stores(common, Some(&list.name), &[])? {
        for reservation in network.store.survey()? {
            let Holder::Of(owner) = reservation.holder else { continue };
            let Some(ifname) = owner.ifname else { continue };
            let attachment = ValidAttachment { container_id: owner.container, ifname };
            let is_known = known.iter().chain(&found).any(|one| one.attachment == attachment);
            if !reservation.earlier_boot && !is_known {
                let why = format!("it holds {}, and is not in the cache", reservation.address);
                found.push(Verdict { attachment, keep: true, why });
            }
        }
    }
    Ok(found)
}

impl Verdict {
    fn text(&self, dry_run: bool, network: &str) -> String {
        let action = match (self.keep, dry_run) {
            (true, _) => "keeping",
            (false, true) => "would delete",
            (false, false) => "deleting",
        };
        let ValidAttachment { container_id, ifname } = &self.attachment;
        format!("{action} {network}/{container_id}/{ifname}: {}", self.why)
    }

    fn to_json(&self) -> Value {
        let ValidAttachment { container_id, ifname } = &self.attachment;
        json!({"container": container_id, "ifname": ifname, "valid": self.keep, "why": self.why})
    }
}
