//! One RESTORE of many attachments: a list in the configuration, in place of the variables.
//!
//! A plugin that does not know the list refuses the call, for it has no `CNI_CONTAINERID`, or answers without a word of what
//! became of each: then it is asked of one after the other.

use cnikit_types::{NetConf, Value, limit};
use serde::Deserialize;

use crate::error::{Error, Result, code};
use crate::input::{Input, Stdin};
use crate::journal::Journal;
use crate::node;
use crate::panic::caught;
use crate::plugin::{Plugin, Traits};
use crate::registry::Plugins;
use crate::request::{Check, Request, parse_request};

/// The key of the list, and of what became of each in the answer.
pub(crate) const LIST: &str = "cni.dev/attachments";

/// One attachment of the list, judged as a RESTORE of its own: what is wrong with one is no other's matter.
#[derive(Debug)]
pub struct RestoreEntry {
    /// The call that it would be.
    pub input: Input,
    /// What it asks, or why that cannot be asked.
    pub asked: Result<Check>,
}

/// An attachment as the list has it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    netns: String,
    args: String,
}

/// What an entry says that a configuration says otherwise.
const OF_EACH: [&str; 2] = ["prevResult", "runtimeConfig"];

/// The attachments that a RESTORE is about; none if it has no list, and is about the one of the variables.
pub(crate) fn listed(
    traits: Traits,
    plugin: &str,
    input: &mut Input,
    plugins: Plugins,
) -> Result<Option<Vec<RestoreEntry>>> {
    if input.command != "RESTORE" || !input.container_id.is_empty() {
        return Ok(None);
    }
    let Ok(mut conf) = NetConf::parse(input.stdin.read()?) else { return Ok(None) };
    let Some(list) = conf.0.remove(LIST) else { return Ok(None) };
    let Value::Array(list) = list else {
        return Err(Error::config(format!("`{LIST}` is not a list")).hint("list the attachments, an object each"));
    };
    // Read once for all of them; each says by itself why it cannot be read.
    let _ = node::policy(input);
    let all = conf.to_vec().len().saturating_mul(list.len());
    let counted = limit::count("entries", list.len(), limit::MEMBERS)
        .and_then(|()| limit::count("bytes with the configuration of each", all, limit::RESTORED));
    counted.map_err(|error| Error::from(error.under(LIST)).hint("ask for some of these attachments at a time"))?;
    let each = |entry: Value| {
        let mut input = Input { stdin: Stdin::default(), ..input.clone() };
        let asked =
            of_entry(&conf, &entry, &mut input).and_then(|()| parse_request(traits, plugin, &mut input, plugins));
        let asked = asked.and_then(|request| match request {
            Request::Restore(check) => Ok(check),
            _ => Err(Error::new(code::DEFECT, "an attachment of the list became another call")),
        });
        RestoreEntry { input, asked }
    };
    Ok(Some(list.into_iter().map(each).collect()))
}

/// What is said of one attachment as a call of its own is given it.
fn of_entry(conf: &NetConf, entry: &Value, input: &mut Input) -> Result<()> {
    let Value::Object(said) = entry else {
        return Err(Error::config(format!("`{LIST}` has what is no object: {entry}")).hint("list objects alone"));
    };
    let Entry { container_id, ifname, netns, args } = NetConf(said.clone()).read()?;
    let mut conf = conf.clone();
    for key in OF_EACH {
        if let Some(value) = said.get(key) {
            conf.set(key, value.clone());
        }
    }
    *input = Input { container_id, ifname, netns, args, stdin: Stdin::Given(conf.to_vec()), ..input.clone() };
    Ok(())
}

/// Has the plugin put back what each is about: what became of it, in the order of the list.
pub(crate) fn restore<P: Plugin>(all: Vec<RestoreEntry>) -> Vec<(Input, Result<()>)> {
    let mut told = Vec::new();
    let mut asked = Vec::new();
    for RestoreEntry { input, asked: check } in all {
        let configured = check.and_then(|check| Ok((check.call.configured::<P>()?, check)));
        told.push((input, configured.as_ref().map(drop).map_err(Clone::clone)));
        asked.extend(configured);
    }
    let mut done = P::restore_all(asked).into_iter();
    for (_, outcome) in told.iter_mut().filter(|(_, outcome)| outcome.is_ok()) {
        *outcome =
            done.next().unwrap_or_else(|| Err(Error::new(code::DEFECT, "the plugin does not say what became of it")));
    }
    told
}

/// Runs one of several independent tasks with a journal of its own: if it fails it is undone, and the others are not affected.
///
/// # Errors
/// The error of `work`, or its panic as an error, with the steps of the roll-back that failed.
pub fn each_by_itself(work: impl FnOnce(&mut Journal) -> Result<()>) -> Result<()> {
    let mut journal = Journal::default();
    match caught(|| work(&mut journal)) {
        Ok(()) => {
            journal.commit();
            Ok(())
        }
        Err(error) => Err(journal.undone(error)),
    }
}
