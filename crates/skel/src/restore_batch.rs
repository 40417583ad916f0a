//! One RESTORE of many attachments: a list in the configuration, in place of the variables.
//!
//! A plugin that does not support the list refuses the call, because it has no `CNI_CONTAINERID`, or returns a result without
//! outcomes. Then the runtime calls it for one attachment after the other.

use cnikit_types::{NetConf, Value, limit};
use serde::Deserialize;

use crate::entry::Plugins;
use crate::error::{Error, Result, code};
use crate::input::{Input, Stdin};
use crate::node;
use crate::plugin::Plugin;
use crate::request::{self, Check, Request, RestoreEntry};
use crate::traits::Traits;

/// The key of the list, and of the outcomes in the result.
pub(crate) const LIST: &str = "cni.dev/attachments";

/// An attachment in the list.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    netns: String,
    args: String,
}

/// The keys of a configuration that an entry has instead.
const OF_EACH: [&str; 2] = ["prevResult", "runtimeConfig"];

/// Parses and validates a call: a RESTORE of many attachments, or any other.
pub(crate) fn parse_request(traits: Traits, plugin: &str, input: &mut Input, plugins: Plugins) -> Result<Request> {
    match parse_list(traits, plugin, input, plugins)? {
        Some(all) => Ok(Request::RestoreAll(all)),
        None => request::parse(traits, plugin, input, plugins),
    }
}

/// The attachments of a RESTORE; `None` if it has no list, and is about the attachment of the variables.
fn parse_list(traits: Traits, plugin: &str, input: &mut Input, plugins: Plugins) -> Result<Option<Vec<RestoreEntry>>> {
    if input.command != "RESTORE" || !input.container_id.is_empty() {
        return Ok(None);
    }
    let Ok(mut conf) = NetConf::parse(input.stdin.read()?) else { return Ok(None) };
    let Some(list) = conf.0.remove(LIST) else { return Ok(None) };
    let Value::Array(list) = list else {
        return Err(Error::config(format!("`{LIST}` is not a list")).hint("list the attachments, one object each"));
    };
    // Read once for all of them. If it cannot be read, each entry reports that.
    let _ = node::policy(input);
    let all = conf.to_vec().len().saturating_mul(list.len());
    limit::count("entries", list.len(), limit::MEMBERS)
        .and_then(|()| limit::count("bytes with the configuration of each", all, limit::RESTORED))
        .map_err(|error| Error::from(error.under(LIST)).hint("use several calls with fewer attachments"))?;
    let mut entries = Vec::with_capacity(list.len());
    for entry in list {
        let mut own = Input { stdin: Stdin::default(), ..input.clone() };
        let asked = parse_entry(&conf, &entry, &mut own, traits, plugin, plugins);
        entries.push(RestoreEntry { input: own, asked });
    }
    Ok(Some(entries))
}

/// Parses one attachment of the list as a RESTORE of its own, with this input.
fn parse_entry(
    conf: &NetConf,
    entry: &Value,
    input: &mut Input,
    traits: Traits,
    plugin: &str,
    plugins: Plugins,
) -> Result<Check> {
    *input = input_of_entry(conf, entry, input)?;
    match request::parse(traits, plugin, input, plugins)? {
        Request::Restore(check) => Ok(check),
        _ => Err(Error::new(code::DEFECT, "an attachment of the list became another call")),
    }
}

/// The input of a RESTORE of one attachment alone.
fn input_of_entry(conf: &NetConf, entry: &Value, input: &Input) -> Result<Input> {
    let Value::Object(members) = entry else {
        return Err(
            Error::config(format!("`{LIST}` has a member that is not an object: {entry}")).hint("list objects alone")
        );
    };
    let Entry { container_id, ifname, netns, args } = NetConf(members.clone()).read()?;
    let mut conf = conf.clone();
    for key in OF_EACH {
        if let Some(value) = members.get(key) {
            conf.set(key, value.clone());
        }
    }
    Ok(Input { container_id, ifname, netns, args, stdin: Stdin::Given(conf.to_vec()), ..input.clone() })
}

/// Has the plugin restore each attachment. Returns their outcomes, in the order of the list.
pub(crate) fn restore<P: Plugin>(all: Vec<RestoreEntry>) -> Vec<(Input, Result<()>)> {
    let mut outcomes = Vec::with_capacity(all.len());
    let mut valid = Vec::new();
    for RestoreEntry { input, asked } in all {
        match asked.and_then(|check| Ok((check.call.configured::<P>()?, check))) {
            Ok(configured) => {
                valid.push(configured);
                outcomes.push((input, Ok(())));
            }
            Err(error) => outcomes.push((input, Err(error))),
        }
    }
    let mut restored = P::restore_all(valid).into_iter();
    for (_, outcome) in outcomes.iter_mut().filter(|(_, outcome)| outcome.is_ok()) {
        *outcome = match restored.next() {
            Some(outcome) => outcome,
            None => Err(Error::new(code::DEFECT, "the plugin reported nothing about it")),
        };
    }
    outcomes
}
