//! `restore`: makes rules again that another program has flushed.

use cnikit_libcni::{Cache, CachedAttachment, Error, ErrorContext, State};
use serde_json::{Value, json};

use crate::cli::Restore;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print_to_stderr, warn};

/// Calls RESTORE of the plugins of every attachment whose namespace exists. Existing rules and links are not changed.
pub(crate) fn restore(common: &Common, out: Output, args: &Restore) -> Result {
    let runtime = environment::runtime(common);
    let mut all = attachments(&runtime.cache)?;
    if let Some(network) = &args.network {
        all.retain(|cached| cached.attachment_of(network).is_some());
    }
    let mut to_restore = Vec::new();
    let mut skipped = Vec::new();
    for cached in &all {
        match skip_reason(cached) {
            None => to_restore.push(cached),
            Some(reason) => skipped.push((cached, reason)),
        }
    }
    if !out.json {
        let action = if args.dry_run { "would restore" } else { "restoring" };
        for cached in &to_restore {
            print_to_stderr(&format!("{action} {}", name(cached)));
        }
        for (cached, reason) in &skipped {
            print_to_stderr(&format!("skipping {}: {reason}", name(cached)));
        }
    }
    let mut failures = Vec::new();
    if !args.dry_run {
        for (cached, done) in to_restore.iter().zip(runtime.restore_all(&to_restore)) {
            warn(&done.report.warnings);
            if let Err(error) = done.outcome {
                let context = ErrorContext::new(name(cached), error);
                failures.push(Failure::from(Error::Several(vec![context])));
            }
        }
    }
    let attachments: Vec<Value> = all.iter().map(document).collect();
    out.finish(json!({"dryRun": args.dry_run, "attachments": attachments}), failures)
}

/// All attachments of a cache, each with the path of its namespace.
pub(crate) fn attachments(cache: &Cache) -> Result<Vec<CachedAttachment>> {
    Ok(cache.attachments()?.into_iter().map(with_namespace).collect())
}

/// The attachment with the path of its namespace. Earlier versions of upstream's libcni, such as that of containerd 1.6, do not
/// cache it: then it is that of the interface in the result.
pub(crate) fn with_namespace(mut cached: CachedAttachment) -> CachedAttachment {
    cached.at.netns = cached.summary().netns;
    cached
}

/// The reason for which an attachment is skipped; `None` if its namespace exists.
pub(crate) fn skip_reason(cached: &CachedAttachment) -> Option<String> {
    match cached.state {
        State::Attached => cached.lost_namespace(),
        State::Adding => Some("it is being added".to_owned()),
        State::Interrupted => Some("its ADD was interrupted".to_owned()),
        State::Unreadable => Some(cached.problems.concat()),
    }
}

/// Network, container and interface; the file if that cannot be read.
pub(crate) fn name(cached: &CachedAttachment) -> String {
    if cached.network.is_empty() {
        return cached.file.display().to_string();
    }
    format!("{}/{}/{}", cached.network, cached.at.container_id, cached.at.ifname)
}

fn document(cached: &CachedAttachment) -> Value {
    let reason = skip_reason(cached);
    json!({
        "network": cached.network,
        "container": cached.at.container_id,
        "ifname": cached.at.ifname,
        "running": reason.is_none(),
        "why": reason,
    })
}
