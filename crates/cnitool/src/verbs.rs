//! The verbs that go to the plugins.
//!
//! Those that the reference's tool has write to stdout what it writes: ADD its result, the others nothing, unless a document
//! is asked for.

use cnikit_libcni::{Attachment, Kept, NetworkList, Planned, Runtime, State, Valid, load};
use cnikit_netns::{Fate, Living};
use cnikit_reservations::Holder;
use serde_json::{Value, json};

use crate::command_line::{self, Common, Sight};
use crate::failure::{Failure, Result};
use crate::namespace::Look;
use crate::output::{Output, Progress, indented, print, print_json, say};
use crate::places::places;
use crate::{container, environment};

/// A list, an attachment, and who carries out what is wanted of them.
struct Network {
    runtime: Runtime,
    list: NetworkList,
    at: Attachment,
}

impl Network {
    /// From arguments and environment, in the order in which the reference looks at them.
    fn of(common: &Common, asked: &command_line::Attachment) -> Result<Network> {
        let list = list(common, &asked.network)?;
        let (capabilities, args) = (environment::capabilities()?, environment::args()?);
        let here = std::env::current_dir().map_err(|error| format!("working directory: {error}"))?;
        let netns = container::absolute(&asked.netns, &here).to_string_lossy().into_owned();
        let (container_id, ifname) = (container::id_of(&netns), environment::ifname(common));
        let at = Attachment { container_id, netns, ifname, args, capabilities };
        Ok(Network { runtime: environment::runtime(common), list, at })
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

fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| say(&format!("Warning: {warning}")));
}

pub(crate) fn add(common: &Common, asked: &command_line::Attachment) -> Result {
    let network = Network::of(common, asked)?;
    let result = network.runtime.add(&network.list, &network.at)?;
    print(&indented(&result)?)
}

pub(crate) fn check(common: &Common, out: Output, asked: &command_line::Attachment) -> Result {
    let network = Network::of(common, asked)?;
    network.runtime.check(&network.list, &network.at)?;
    if out.json { print_json(&network.done("check")) } else { Ok(()) }
}

pub(crate) fn del(common: &Common, out: Output, asked: &command_line::Attachment) -> Result {
    let network = Network::of(common, asked)?;
    let report = network.runtime.del(&network.list, &network.at)?;
    warn(&report.warnings);
    if out.json { print_json(&network.done("del")) } else { Ok(()) }
}

pub(crate) fn status(common: &Common, out: Output, asked: &command_line::Network) -> Result {
    let list = list(common, &asked.name)?;
    environment::runtime(common).status(&list)?;
    if out.json { print_json(&json!({"verb": "status", "network": list.name, "ready": true})) } else { Ok(()) }
}

/// What would be done, each step below its plugin; a plugin that cannot tell is named with the reason.
pub(crate) fn plan(common: &Common, out: Output, asked: &command_line::Attachment) -> Result {
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

fn plan_of(planned: &Planned) -> Value {
    match &planned.steps {
        Ok(steps) => json!({"plugin": planned.plugin, "steps": steps}),
        Err(failure) => json!({"plugin": planned.plugin, "unableToTell": failure.to_string()}),
    }
}

fn words_of(planned: &Planned) -> String {
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
    if out.json {
        let plugins: Vec<Value> =
            told.iter().map(|(plugin, versions)| json!({"plugin": plugin, "versions": versions})).collect();
        print_json(&json!({"network": list.name, "version": list.version, "plugins": plugins}))?;
    } else {
        let rows = told.iter().map(|(plugin, versions)| [(*plugin).into(), versions.join(" ").into()]);
        out.table(["PLUGIN", "VERSIONS"], rows.collect())?;
    }
    let texts: Vec<String> = wrong.iter().map(|failure| failure.text.clone()).collect();
    let details = wrong.into_iter().flat_map(|failure| failure.details).collect();
    if texts.is_empty() { Ok(()) } else { Err(Failure { details, ..Failure::new(texts.join("\n")) }) }
}

/// What a GC does with one attachment, and why.
struct Verdict {
    container: String,
    ifname: String,
    keep: bool,
    why: String,
}

/// Deletes what is left of attachments whose namespaces are gone. `--all` deletes every one, as the reference does.
pub(crate) fn gc(common: &Common, out: Output, asked: &command_line::Gc) -> Result {
    let (list, runtime) = (list(common, &asked.network.name)?, environment::runtime(common));
    let verdicts = verdicts(common, &list, &runtime, asked)?;
    if out.json {
        let told: Vec<Value> = verdicts.iter().map(Verdict::to_json).collect();
        print_json(&json!({"network": list.name, "dryRun": asked.dry_run, "attachments": told}))?;
    } else {
        // Stdout stays as the reference leaves it.
        verdicts.iter().for_each(|verdict| say(&verdict.words(asked.dry_run, &list.name)));
    }
    if asked.dry_run {
        return Ok(());
    }
    let valid = |verdict: &Verdict| Valid { container_id: verdict.container.clone(), ifname: verdict.ifname.clone() };
    let valid: Vec<Valid> = verdicts.iter().filter(|verdict| verdict.keep).map(valid).collect();
    let report = runtime.gc(&list, &valid)?;
    warn(&report.warnings);
    Ok(())
}

fn verdicts(common: &Common, list: &NetworkList, runtime: &Runtime, asked: &command_line::Gc) -> Result<Vec<Verdict>> {
    let known: Vec<Kept> = runtime.cache.attachments()?.into_iter().filter(|kept| kept.network == list.name).collect();
    let (look, living) = (Look::new(), living(&known, asked));
    let mut verdicts: Vec<Verdict> = known.iter().map(|kept| judge(kept, &look, living.as_ref(), asked)).collect();
    if !asked.all {
        verdicts.extend(unknown(common, list, &verdicts)?);
    }
    Ok(verdicts)
}

/// The living namespaces, if there is anybody whom only they can judge.
fn living(known: &[Kept], asked: &command_line::Gc) -> Option<Living> {
    let is_in_doubt = |kept: &Kept| kept.note.netns_cookie.is_some() && kept.lost_namespace().is_some();
    if asked.all || !known.iter().any(is_in_doubt) {
        return None;
    }
    Some(look(asked.sight))
}

/// All living namespaces, which takes as long as there are processes.
pub(crate) fn look(sight: Sight) -> Living {
    let mut progress = Progress::of("looking for living namespaces");
    let living = Living::look(sight.scope(), |done, of| progress.at(done, of));
    progress.end();
    living
}

fn judge(kept: &Kept, look: &Look, living: Option<&Living>, asked: &command_line::Gc) -> Verdict {
    let (container, ifname) = (kept.at.container_id.clone(), kept.at.ifname.clone());
    let verdict = |keep, why: String| Verdict { container: container.clone(), ifname: ifname.clone(), keep, why };
    if asked.keep.contains(&format!("{container}/{ifname}")) {
        return verdict(true, "as asked".to_owned());
    }
    if asked.all {
        return verdict(false, "all are to go".to_owned());
    }
    if kept.state == State::Adding {
        return verdict(true, "it is being added".to_owned());
    }
    let Some(lost) = kept.lost_namespace() else { return verdict(true, "its namespace lives".to_owned()) };
    let (Some(living), Some(cookie), Some(true)) = (living, kept.note.netns_cookie, look.is_of_now(&kept.note)) else {
        return verdict(false, lost);
    };
    match living.fate(cookie) {
        Fate::Lives => verdict(true, format!("{lost}, but something holds the namespace itself")),
        Fate::Unknown(unseen) => verdict(true, format!("{lost}, but it may live on: {unseen}")),
        Fate::Dead => verdict(false, lost),
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
