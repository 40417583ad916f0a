//! The verbs of the specification, and PLAN.
//!
//! The commands that upstream's cnitool has too write the same to stdout: `add` its result, the others nothing, unless `--json` is
//! given.

use std::path::Path;

use cnikit_libcni::{Attachment, NetworkList, PlannedSteps, Runtime, ValidAttachment, load};
use cnikit_netns::NetnsLookup;
use serde_json::{Value, json};

use crate::cli;
use crate::commands::container;
use crate::commands::netns::NAMED_NAMESPACES;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{indented, print, print_json, warn};

const NETNS_HINT: &str = "NETNS is the path of a network namespace; `cnitool netns list` prints those in /run/netns";

/// A network list, an attachment, and the runtime that runs the plugins.
struct Call {
    runtime: Runtime,
    list: NetworkList,
    at: Attachment,
}

impl Call {
    /// A call from arguments and environment, which are read in upstream's order.
    fn of(common: &Common, args: &cli::Attachment) -> Result<Call> {
        let list = load_list(common, &args.network)?;
        let at = attachment(common, args)?;
        Call::with(list, common, at)
    }

    /// As [`Call::of`], but with the cached configuration if no file has a valid one.
    fn of_attached(common: &Common, args: &cli::Attachment) -> Result<Call> {
        let at = attachment(common, args)?;
        let is_it = |whose: &ValidAttachment| whose.container_id == at.container_id && whose.ifname == at.ifname;
        let list = load_or_cached_list(common, &args.network, is_it)?;
        Call::with(list, common, at)
    }

    fn with(list: NetworkList, common: &Common, mut at: Attachment) -> Result<Call> {
        at.capabilities = environment::capabilities()?;
        at.args = environment::args()?;
        Ok(Call { runtime: environment::runtime(common), list, at })
    }

    /// The failure of a plugin. If the path leads to no namespace, the hint is for the user of this tool.
    fn failure(&self, error: cnikit_libcni::Error) -> Failure {
        let failure = Failure::from(error);
        match cnikit_netns::find(&self.at.netns) {
            NetnsLookup::Gone | NetnsLookup::NotNetns { .. } => with_hint(failure, NETNS_HINT),
            _ => failure,
        }
    }

    /// The document of a call that succeeded.
    fn document(&self, verb: &str) -> Value {
        json!({
            "verb": verb,
            "network": self.list.name,
            "container": self.at.container_id,
            "ifname": self.at.ifname,
            "netns": self.at.netns,
        })
    }
}

/// Loads a list, and prints its warnings.
fn load_list(common: &Common, network: &str) -> Result<NetworkList> {
    let list = load(&environment::configurations(common), network)?;
    warn(&list.warnings);
    Ok(list)
}

/// As [`load_list`]; if no file has a valid one, the cached list of an attachment that `is_wanted`.
pub(crate) fn load_or_cached_list(
    common: &Common,
    network: &str,
    is_wanted: impl Fn(&ValidAttachment) -> bool,
) -> Result<NetworkList> {
    let failure = match load_list(common, network) {
        Ok(list) => return Ok(list),
        Err(failure) => failure,
    };
    for cached in environment::cache(common).attachments().unwrap_or_default() {
        if let Some(attachment) = cached.attachment_of(network)
            && is_wanted(&attachment)
            && let Ok(list) = cached.list()
        {
            warn(&[format!("{}; the cached configuration is used", failure.text)]);
            return Ok(list);
        }
    }
    Err(failure)
}

/// The failure with another hint: that of a plugin is for runtimes.
fn with_hint(mut failure: Failure, hint: &str) -> Failure {
    let text = &failure.text;
    let code = match text.rfind(" (code ") {
        Some(start) if text.ends_with(')') => &text[start..],
        _ => "",
    };
    let what = text.split("; hint: ").next().unwrap_or_default();
    failure.text = format!("{}; hint: {hint}{code}", what.strip_suffix(code).unwrap_or(what));
    failure
}

/// The attachment that the arguments name: container, namespace and interface.
fn attachment(common: &Common, args: &cli::Attachment) -> Result<Attachment> {
    let here = std::env::current_dir().map_err(|error| format!("working directory: {error}"))?;
    let netns = container::absolute(&args.netns, &here).to_string_lossy().into_owned();
    let named = Path::new(NAMED_NAMESPACES).join(&args.netns);
    if !args.netns.contains('/') && !args.netns.is_empty() && !Path::new(&netns).exists() && named.exists() {
        return Err(format!("there is no {netns}; hint: the path of that namespace is {}", named.display()).into());
    }
    Ok(Attachment::new(container::id_of(&netns), netns).on(environment::ifname(common)))
}

pub(crate) fn add(common: &Common, args: &cli::Attachment) -> Result {
    let call = Call::of(common, args)?;
    let result = call.runtime.add(&call.list, &call.at).map_err(|error| call.failure(error))?;
    print(&indented(&result)?)
}

pub(crate) fn check(common: &Common, out: Output, args: &cli::Attachment) -> Result {
    let call = Call::of(common, args)?;
    let Attachment { container_id, ifname, .. } = &call.at;
    let is_added = call.runtime.cache.attachment(&call.list.name, container_id, ifname).is_some();
    if let Err(error) = call.runtime.check(&call.list, &call.at) {
        let failure = call.failure(error);
        return Err(if is_added {
            failure
        } else {
            with_hint(failure, "run `cnitool add` first: the cache has no result of one")
        });
    }
    if out.json { print_json(&call.document("check")) } else { Ok(()) }
}

pub(crate) fn del(common: &Common, out: Output, args: &cli::Attachment) -> Result {
    let call = Call::of_attached(common, args)?;
    let report = call.runtime.del(&call.list, &call.at)?;
    warn(&report.warnings);
    if out.json { print_json(&call.document("del")) } else { Ok(()) }
}

pub(crate) fn status(common: &Common, out: Output, args: &cli::Network) -> Result {
    let list = load_list(common, &args.name)?;
    environment::runtime(common).status(&list)?;
    if out.json { print_json(&json!({"verb": "status", "network": list.name, "ready": true})) } else { Ok(()) }
}

/// Prints the steps of an ADD below each plugin, or why a plugin does not report them.
pub(crate) fn plan(common: &Common, out: Output, args: &cli::Attachment) -> Result {
    let call = Call::of(common, args)?;
    let planned = call.runtime.plan(&call.list, &call.at);
    if out.json {
        let plugins: Vec<Value> = planned.iter().map(plan_document).collect();
        print_json(&json!({"network": call.list.name, "plugins": plugins}))?;
    } else {
        print(&planned.iter().map(plan_text).collect::<String>())?;
    }
    let is_complete = planned.iter().all(|planned| planned.steps.is_ok());
    if is_complete { Ok(()) } else { Err(Failure::found()) }
}

fn plan_document(planned: &PlannedSteps) -> Value {
    match &planned.steps {
        Ok(steps) => json!({"plugin": planned.plugin, "steps": steps}),
        Err(failure) => json!({"plugin": planned.plugin, "error": failure.to_string()}),
    }
}

fn plan_text(planned: &PlannedSteps) -> String {
    let lines: Vec<String> = match &planned.steps {
        Ok(steps) => steps.iter().map(|step| format!("  {step}\n")).collect(),
        Err(failure) => vec![format!("  unable to tell: {failure}\n")],
    };
    format!("{}:\n{}", planned.plugin, lines.concat())
}

/// Prints the versions of each plugin of a network; without a network, that of this tool.
pub(crate) fn version(common: &Common, out: Output, network: Option<&str>) -> Result {
    let own = env!("CARGO_PKG_VERSION");
    let Some(network) = network else {
        let document = json!({"cnitool": own});
        return if out.json { print_json(&document) } else { print(&format!("cnitool cnikit-{own}\n")) };
    };
    let list = load_list(common, network)?;
    let runtime = environment::runtime(common);
    let mut failures = Vec::new();
    let mut plugins = Vec::new();
    let mut rows = Vec::new();
    for listed in &list.plugins {
        let plugin = listed.plugin.as_str();
        match runtime.versions(plugin) {
            Ok(versions) => {
                plugins.push(json!({"plugin": plugin, "versions": versions}));
                rows.push([plugin.into(), versions.join(" ").into()]);
            }
            Err(error) => failures.push(Failure::from(error)),
        }
    }
    if !out.json {
        out.table(["PLUGIN", "VERSIONS"], &rows)?;
    }
    let document = json!({"network": list.name, "version": list.version, "plugins": plugins});
    out.finish(document, failures)
}
