//! The one JSON document that leaves on stdout.

use std::io::{self, Write};

use cnikit_types::{CniError, CniResult, Version, limit, printable};
use serde_json::{Value, json};

use crate::error::{Error, Result, code};
use crate::input::Input;
use crate::plugin::DryRunReport;
use crate::restore_batch::LIST;

/// The document of an ADD, in the shape of the version that was asked for.
pub(crate) fn result(answer: &CniResult, version: Version) -> Vec<u8> {
    line(&answer.write(version))
}

/// The document of a VERSION.
pub(crate) fn versions() -> Vec<u8> {
    line(&json!({"cniVersion": Version::NEWEST, "supportedVersions": Version::ALL}))
}

/// The document of a PLAN.
pub(crate) fn plan(outline: &DryRunReport) -> Vec<u8> {
    let mut document = json!({"plan": outline.steps});
    if outline.example != CniResult::default() {
        document["example"] = outline.example.write(Version::NEWEST);
    }
    line(&document)
}

/// The document of a RESTORE of many: each attachment of the list, with the error object where it failed.
pub(crate) fn restored(plugin: &str, all: &[(Input, Result<()>)]) -> Vec<u8> {
    let version = Version::NEWEST.as_str();
    let each = |(input, outcome): &(Input, Result<()>)| {
        let mut one = json!({"containerID": input.container_id, "ifname": input.ifname});
        if let Err(error) = outcome {
            one["error"] = json!(object(plugin, input, version, error));
        }
        one
    };
    line(&json!({"cniVersion": version, LIST: all.iter().map(each).collect::<Vec<_>>()}))
}

/// Writes and flushes: only then has an answer got out.
pub(crate) fn send(out: &mut dyn Write, document: &[u8]) -> Result<()> {
    let sent = out.write_all(document).and_then(|()| out.flush());
    sent.map_err(|error| {
        Error::new(code::IO, format!("the answer could not be written to stdout: {error}"))
            .hint("the runtime has to keep stdout open until the plugin ends")
    })
}

/// Writes the error object; to stderr, in words, if it cannot be written either.
pub(crate) fn refuse(out: &mut dyn Write, plugin: &str, input: &Input, version: &str, error: &Error) {
    if let Ok(value) = serde_json::to_value(object(plugin, input, version, error))
        && let Err(broken) = send(out, &line(&value))
    {
        print_to_stderr(plugin, &broken.detail(error.to_string()));
    }
}

/// The error object, with the call that it is about.
fn object(plugin: &str, input: &Input, version: &str, error: &Error) -> CniError {
    let mut object = error.object(version);
    let context = context(plugin, input);
    let details = object.details.map_or(context.clone(), |details| format!("{context}; {details}"));
    object.details = Some(limit::shortened(details));
    object
}

/// Says on stderr what cannot be said on stdout.
pub(crate) fn print_to_stderr(plugin: &str, error: &Error) {
    let _ = writeln!(io::stderr(), "{}", printable(&format!("{plugin}: {error}")));
}

/// Which call this is: plugin, verb, network, container, interface, as far as they are known.
fn context(plugin: &str, input: &Input) -> String {
    let network = crate::request::network_name(input);
    let known = [("network", network.as_str()), ("container", &input.container_id), ("interface", &input.ifname)];
    let said = known.iter().filter(|(_, value)| !value.is_empty()).map(|(what, value)| format!(", {what} {value}"));
    format!("{plugin} {}{}", input.command, said.collect::<String>())
}

fn line(document: &Value) -> Vec<u8> {
    let mut bytes = document.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}
