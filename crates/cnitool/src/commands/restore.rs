//! Rules are put back after somebody flushed them.

use cnikit_libcni::{CachedAttachment, Error, ErrorContext, State};
use serde_json::{Value, json};

use crate::cli::Restore;
use crate::environment;
use crate::failure::Result;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print_to_stderr, warn};

/// Has the plugins of every attachment that lives put back their rules. What stands stays, and no link is touched.
pub(crate) fn restore(common: &Common, out: Output, asked: &Restore) -> Result {
    let runtime = environment::runtime(common);
    let wanted = |kept: &CachedAttachment| asked.network.as_ref().is_none_or(|network| kept.whose(network).is_some());
    let all: Vec<CachedAttachment> = runtime.cache.attachments()?.into_iter().filter(wanted).collect();
    let (going, skipped): (Vec<&CachedAttachment>, Vec<&CachedAttachment>) =
        all.iter().partition(|kept| reason(kept).is_none());
    if !out.json {
        let verb = if asked.dry_run { "would restore" } else { "restoring" };
        going.iter().for_each(|kept| print_to_stderr(&format!("{verb} {}", name(kept))));
        skipped.iter().for_each(|kept| print_to_stderr(&format!("passing over {}: {}", name(kept), why_not(kept))));
    }
    let mut failed = Vec::new();
    if !asked.dry_run {
        for (kept, done) in going.iter().zip(runtime.restore_all(&going)) {
            warn(&done.report.warnings);
            let told = |why| Error::Several(vec![ErrorContext { what: name(kept), error: why }]).into();
            failed.extend(done.outcome.err().map(told));
        }
    }
    let told: Vec<Value> = all.iter().map(document).collect();
    out.finish(json!({"dryRun": asked.dry_run, "attachments": told}), failed)
}

/// Why nothing is put back for it; `None` if it lives.
fn reason(kept: &CachedAttachment) -> Option<String> {
    match kept.state {
        State::Attached => kept.lost_namespace(),
        State::Adding => Some("it is being added".to_owned()),
        State::Interrupted => Some("its ADD has not come to its end".to_owned()),
        State::Unreadable => Some(kept.problems.concat()),
    }
}

fn why_not(kept: &CachedAttachment) -> String {
    reason(kept).unwrap_or_default()
}

fn name(kept: &CachedAttachment) -> String {
    if kept.network.is_empty() {
        return kept.file.display().to_string();
    }
    format!("{}/{}/{}", kept.network, kept.at.container_id, kept.at.ifname)
}

fn document(kept: &CachedAttachment) -> Value {
    let why = reason(kept);
    json!({
        "network": kept.network,
        "container": kept.at.container_id,
        "ifname": kept.at.ifname,
        "lives": why.is_none(),
        "why": why,
    })
}
