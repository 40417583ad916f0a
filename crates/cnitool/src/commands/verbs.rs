//! The verbs that go to the plugins.
//!
//! Those that the reference's tool has write to stdout what it writes: ADD its result, the others nothing, unless a document
//! is asked for.

use cnikit_libcni::{Attachment, CachedAttachment, NetworkList, PlannedSteps, Runtime, State, ValidAttachment, load};
use cnikit_netns::{NetnsScan, NetnsStatus};
use cnikit_reservations::Holder;
use serde_json::{Value, json};

use crate::cli::{self, Sight};
use crate::commands::container;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::Look;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{indented, print, print_json, print_to_stderr, warn};
use crate::output::progress::Progress;
use crate::places::places;

/// A list, an attachment, and who carries out what is wanted of them.
struct Network {
    runtime: Runtime,
    list: NetworkList,
    at: Attachment,
}

impl Network {
    /// From arguments and environment, in the order in which the reference looks at them.
    fn of(common: &Common, asked: &cli::Attachment) -> Result<Network> {
        Network::with(list(common, &asked.network)?, common, place(common, asked)?)
    }

    /// As [`Network::of`]; as it was added, if its configuration is not to be had any more.
    fn of_added(common: &Common, asked: &cli::Attachment) -> Result<Network> {
        let at = place(common, asked)?;
        let is_it = |whose: &ValidAttachment| (&whose.container_id, &whose.ifname) == (&at.container_id, &at.ifname);
        Network::with(list_or_kept(common, &asked.network, is_it)?, common, at)
    }

    fn with(list: NetworkList, common: &Common, at: Attachment) -> Result<Network> {
        let (capabilities, args) = (environment::capabilities()?, environment::args()?);
        Ok(Network { runtime: environment::runtime(common), list, at: Attachment { args, capabilities, ..at } })
    }

    fn done(&self, verb: &str) -> Value {
        json!({
            "verb": verb,
            "network": self.list.name,
            "container": self.at.container_id,
            "ifname": self.at.ifname,
            "netns": self.at.netns,
        })
    }
}

/// The list of this name; what was passed over on the way is said.
fn list(common: &Common, network: &str) -> Result<NetworkList> {
    let list = load(&environment::configurations(common), network)?;
    warn(&list.warnings);
    Ok(list)
}

/// The same; where no file has one that can be used, the one with which an attachment that is wanted was added.
fn list_or_kept(common: &Common, network: &str, is_wanted: impl Fn(&ValidAttachment) -> bool) -> Result<NetworkList> {
    list(common, network).or_else(|why| {
        let known = environment::cache(common).attachments().unwrap_or_default();
        let mut wanted = known.iter().filter(|kept| kept.whose(network).is_some_and(|whose| is_wanted(&whose)));
        match wanted.find_map(|kept| kept.list().ok()) {
            Some(list) => {
                warn(&[format!("{}; going by the configuration that was kept", why.text)]);
                Ok(list)
            }
            None => Err(why),
        }
    })
}

/// Container, namespace and interface.
fn place(common: &Common, asked: &cli::Attachment) -> Result<Attachment> {
    let here = std::env::current_dir().map_err(|error| format!("working directory: {error}"))?;
    let netns = container::absolute(&asked.netns, &here).to_string_lossy().into_owned();
    Ok(Attachment::new(container::id_of(&netns), netns).on(environment::ifname(common)))
}

pub(crate) fn add(common: &Common, asked: &cli::Attachment) -> Result {
    let network = Network::of(common, asked)?;
    let result = network.runtime.add(&network.list, &network.at)?;
    print(&indented(&result)?)
}

pub(crate) fn check(common: &Common, out: Output, asked: &cli::Attachment) -> Result {
    let network = Network::of(common, asked)?;
    network.runtime.check(&network.list, &network.at)?;
    if out.json { print_json(&network.done("check")) } else { Ok(()) }
}

pub(crate) fn del(common: &Common, out: Output, asked: &cli::Attachment) -> Result {
    let network = Network::of_added(common, asked)?;
    let report = network.runtime.del(&network.list, &network.at)?;
    warn(&report.warnings);
    if out.json { print_json(&network.done("del")) } else { Ok(()) }
}

pub(crate) fn status(common: &Common, out: Output, asked: &cli::Network) -> Result {
    let list = list(common, &asked.name)?;
    environment::runtime(common).status(&list)?;
    if out.json { print_json(&json!({"verb": "status", "network": list.name, "ready": true})) } else { Ok(()) }
}

/// What would be done, each step below its plugin; a plugin that cannot tell is named with the reason.
pub(crate) fn plan(common: &Common, out: Output, asked: &cli::Attachment) -> Result {
    let network = Network::of(common, asked)?;
    let planned = network.runtime.plan(&network.list, &network.at);
    let all_tell = planned.iter().all(|planned| planned.steps.is_ok());
    if out.json {
        let plugins: Vec<Value> = planned.iter().map(plan_of).collect();
        print_json(&json!({"network": network.list.name, "plugins": plugins}))?;
    } else {
        print(&planned.iter().map(words_of).collect::<String>())?;
    }
    if all_tell { Ok(()) } else { Err(Failure::found()) }
}

fn plan_of(planned: &PlannedSteps) -> Value {
    match &planned.steps {
        Ok(steps) => json!({"plugin": planned.plugin, "steps": steps}),
        Err(failure) => json!({"plugin": planned.plugin, "unableToTell": failure.to_string()}),
    }
}

fn words_of(planned: &PlannedSteps) -> String {
    let lines: Vec<String> = match &planned.steps {
        Ok(steps) => steps.iter().map(|step| format!("  {step}\n")).collect(),
        Err(failure) => vec![format!("  unable to tell: {failure}\n")],
    };
    format!("{}:\n{}", planned.plugin, lines.concat())
}

/// The versions of each plugin of a network; without one, of this tool.
pub(crate) fn version(common: &Common, out: Output, network: Option<&str>) -> Result {
    let own = env!("CARGO_PKG_VERSION");
    let Some(network) = network else {
        let document = json!({"cnitool": own});
        return if out.json { print_json(&document) } else { print(&format!("cnitool cnikit-{own}\n")) };
    };
    let (list, runtime) = (list(common, network)?, environment::runtime(common));
    let mut wrong = Vec::new();
    let mut told = Vec::new();
    for listed in &list.plugins {
        let plugin = listed.plugin.as_str();
        match runtime.versions(plugin) {
            Ok(versions) => told.push((plugin, versions)),
            Err(error) => wrong.push(Failure::from(error)),
        }
    }
    let plugins: Vec<Value> =
        told.iter().map(|(plugin, versions)| json!({"plugin": plugin, "versions": versions})).collect();
    let document = json!({"network": list.name, "version": list.version, "plugins": plugins});
    if !out.json {
        let rows = told.iter().map(|(plugin, versions)| [(*plugin).into(), versions.join(" ").into()]);
        out.table(["PLUGIN", "VERSIONS"], &rows.collect::<Vec<_>>())?;
    }
    out.finish(document, wrong)
}

/// What a GC does with one attachment, and why.
struct Verdict {
    container: String,
    ifname: String,
    keep: bool,
    why: String,
}

/// Deletes what is left of attachments whose namespaces are gone. `--all` deletes every one, as the reference does.
pub(crate) fn gc(common: &Common, out: Output, asked: &cli::Gc) -> Result {
    let list = list_or_kept(common, &asked.network.name, |_| true)?;
    let runtime = environment::runtime(common);
    let verdicts = verdicts(common, &list, &runtime, asked)?;
    let told: Vec<Value> = verdicts.iter().map(Verdict::to_json).collect();
    let document = json!({"network": list.name, "dryRun": asked.dry_run, "attachments": told});
    if !out.json {
        // Stdout stays as the reference leaves it.
        verdicts.iter().for_each(|verdict| print_to_stderr(&verdict.words(asked.dry_run, &list.name)));
    }
    if asked.dry_run {
        return out.finish(document, Vec::new());
    }
    let valid =
        |verdict: &Verdict| ValidAttachment { container_id: verdict.container.clone(), ifname: verdict.ifname.clone() };
    let valid: Vec<ValidAttachment> = verdicts.iter().filter(|verdict| verdict.keep).map(valid).collect();
    let done = runtime.gc(&list, &valid).map(|report| warn(&report.warnings));
    out.finish(document, done.err().map(Failure::from).into_iter().collect())
}

/// What is kept of the network, as far as it tells whose it is.
struct Known {
    whose: ValidAttachment,
    kept: CachedAttachment,
    /// Why the path no longer leads to the namespace.
    lost: Option<String>,
}

fn verdicts(common: &Common, list: &NetworkList, runtime: &Runtime, asked: &cli::Gc) -> Result<Vec<Verdict>> {
    let known =
        |kept: CachedAttachment| Some(Known { whose: kept.whose(&list.name)?, lost: kept.lost_namespace(), kept });
    let known: Vec<Known> = runtime.cache.attachments()?.into_iter().filter_map(known).collect();
    let (look, living) = (Look::new(), living(&known, asked));
    let judge = |one: &Known| {
        let (keep, why) = if list.disable_gc {
            (true, "`disableGC` of the network forbids it".to_owned())
        } else {
            verdict(one, &look, living.as_ref(), asked)
        };
        Verdict { container: one.whose.container_id.clone(), ifname: one.whose.ifname.clone(), keep, why }
    };
    let mut verdicts: Vec<Verdict> = known.iter().map(judge).collect();
    if !asked.all {
        verdicts.extend(unknown(common, list, &verdicts)?);
    }
    Ok(verdicts)
}

/// The living namespaces, if there is anybody whom only they can judge.
fn living(known: &[Known], asked: &cli::Gc) -> Option<NetnsScan> {
    let is_in_doubt = |one: &Known| one.kept.metadata.netns_cookie.is_some() && one.lost.is_some();
    if asked.all || !known.iter().any(is_in_doubt) {
        return None;
    }
    Some(look(asked.sight))
}

/// All living namespaces, which takes as long as there are processes.
pub(crate) fn look(sight: Sight) -> NetnsScan {
    let mut progress = Progress::of("looking for living namespaces");
    let living = NetnsScan::look(sight.scope(), |done, of| progress.count(done, of));
    progress.end();
    living
}

/// Whether it stays, and why.
fn verdict(one: &Known, look: &Look, living: Option<&NetnsScan>, asked: &cli::Gc) -> (bool, String) {
    let Known { whose, kept, lost } = one;
    if asked.keep.contains(&format!("{}/{}", whose.container_id, whose.ifname)) {
        return (true, "as asked".to_owned());
    }
    if asked.all {
        return (false, "all are to go".to_owned());
    }
    match kept.state {
        State::Adding => return (true, "it is being added".to_owned()),
        State::Unreadable => {
            let why = kept.problems.concat();
            return (true, format!("{}: {why}, which proves nothing; hint: del, or gc --all", kept.file.display()));
        }
        State::Attached | State::Interrupted => {}
    }
    let Some(lost) = lost.clone() else {
        let lives =
            if kept.at.netns.is_empty() { "nothing says where its namespace is" } else { "its namespace lives" };
        return (true, lives.to_owned());
    };
    let (Some(living), Some(cookie), Some(true)) = (living, kept.metadata.netns_cookie, look.is_of_now(&kept.metadata))
    else {
        return (false, lost);
    };
    match living.fate(cookie) {
        NetnsStatus::Lives => (true, format!("{lost}, but something holds the namespace itself")),
        NetnsStatus::Unknown(unseen) => (true, format!("{lost}, but it may live on: {unseen}")),
        NetnsStatus::Dead => (false, lost),
    }
}

/// Who holds an address of the network and is not known here: another runtime's, with a cache of its own, it may be.
fn unknown(common: &Common, list: &NetworkList, known: &[Verdict]) -> Result<Vec<Verdict>> {
    let mut found = Vec::new();
    for place in places(common, Some(&list.name), &[])? {
        for reservation in place.store.survey()? {
            let Holder::Of(owner) = reservation.holder else { continue };
            let Some(ifname) = owner.ifname else { continue };
            let is_known = |one: &Verdict| one.container == owner.container && one.ifname == ifname;
            if !reservation.earlier_boot && !known.iter().chain(&found).any(is_known) {
                let why = format!("it holds {}, and is not known here", reservation.address);
                found.push(Verdict { container: owner.container, ifname, keep: true, why });
            }
        }
    }
    Ok(found)
}

impl Verdict {
    fn words(&self, dry_run: bool, network: &str) -> String {
        let deed = match (self.keep, dry_run) {
            (true, _) => "keeping",
            (false, true) => "would delete",
            (false, false) => "deleting",
        };
        format!("{deed} {network}/{}/{}: {}", self.container, self.ifname, self.why)
    }

    fn to_json(&self) -> Value {
        json!({"container": self.container, "ifname": self.ifname, "kept": self.keep, "why": self.why})
    }
}
