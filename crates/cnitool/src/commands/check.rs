//! `check`: CHECK of one container, or of every attachment in the cache, also of those that a runtime added.

use cnikit_libcni::{CachedAttachment, Error, ErrorContext, Runtime, State};
use serde_json::{Value, json};

use crate::cli::Check;
use crate::commands::restore::{attachments, name, skip_reason, with_namespace};
use crate::commands::verbs;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::print;
use crate::output::text::one_line;

/// The outcome for one attachment.
enum Outcome {
    Passed,
    Failed(Failure),
    /// No CHECK was run, or it says nothing, for this reason.
    Skipped(String),
}

pub(crate) fn check(common: &Common, out: Output, args: &Check) -> Result {
    match args.attachment() {
        Some(one) => verbs::check(common, out, &one),
        None => check_all(common, out, args.only.as_deref()),
    }
}

/// CHECK of all attachments, each with its cached configuration and result. Nothing is changed.
fn check_all(common: &Common, out: Output, network: Option<&str>) -> Result {
    let runtime = environment::runtime(common);
    let mut all = attachments(&runtime.cache)?;
    if let Some(network) = network {
        all.retain(|cached| cached.attachment_of(network).is_some());
    }
    let mut documents = Vec::new();
    let mut failures = Vec::new();
    let mut passed = 0;
    for cached in &all {
        let (word, reason) = match check_one(&runtime, cached) {
            Outcome::Passed => {
                passed += 1;
                ("passed", None)
            }
            Outcome::Failed(failure) => {
                let reason = failure.text.clone();
                failures.push(failure);
                ("failed", Some(reason))
            }
            Outcome::Skipped(reason) => ("skipped", Some(reason)),
        };
        if !out.json {
            print(&line(cached, word, reason.as_deref()))?;
        }
        documents.push(document(cached, word, reason.as_deref()));
    }
    if !out.json {
        let failed = failures.len();
        print(&format!("{passed} passed, {failed} failed, {} skipped\n", all.len() - passed - failed))?;
    }
    out.finish(json!({"verb": "check", "attachments": documents}), failures)
}

fn check_one(runtime: &Runtime, cached: &CachedAttachment) -> Outcome {
    if cached.state == State::Unreadable {
        return Outcome::Failed(Failure::new(format!("{}: {}", name(cached), cached.problems.join("; "))));
    }
    if let Some(reason) = skip_reason(cached) {
        return Outcome::Skipped(reason);
    }
    if cached.at.netns.is_empty() {
        return Outcome::Skipped("neither the cache nor the result has the path of its namespace".to_owned());
    }
    let error = match cached.list() {
        Ok(list) if list.disable_check => {
            return Outcome::Skipped("its network list has `disableCheck`".to_owned());
        }
        Ok(list) => match runtime.check(&list, &cached.at) {
            Ok(()) => return Outcome::Passed,
            Err(error @ Error::NoCheck { .. }) => return Outcome::Skipped(error.to_string()),
            Err(error) => error,
        },
        Err(error) => error,
    };
    // A runtime may have deleted the container meanwhile. It does not wait for our locks.
    match runtime.cache.attachment(&cached.network, &cached.at.container_id, &cached.at.ifname) {
        None => return Outcome::Skipped("it was deleted meanwhile".to_owned()),
        Some(now) if now.written != cached.written => return Outcome::Skipped("it was changed meanwhile".to_owned()),
        Some(now) => {
            if let Some(reason) = skip_reason(&with_namespace(now)) {
                return Outcome::Skipped(reason);
            }
        }
    }
    let context = ErrorContext::new(name(cached), error);
    Outcome::Failed(Failure::from(Error::Several(vec![context])))
}

/// The line of an attachment. What a failed CHECK found is printed as an error, after all lines.
fn line(cached: &CachedAttachment, word: &str, reason: Option<&str>) -> String {
    let reason = match reason {
        Some(reason) if word == "skipped" => format!(": {reason}"),
        _ => String::new(),
    };
    format!("{}\n", one_line(format!("{} {word}{reason}", name(cached)).into()))
}

fn document(cached: &CachedAttachment, word: &str, reason: Option<&str>) -> Value {
    json!({
        "network": cached.network,
        "container": cached.at.container_id,
        "ifname": cached.at.ifname,
        "outcome": word,
        "why": reason,
    })
}
