//! The one JSON document on stdout.

use std::io::{self, Write};

use cnikit_types::{CniError, CniResult, Version, limit, printable};
use serde_json::{Value, json};

use crate::error::{Error, Result, code};
use crate::input::Input;
use crate::plugin::DryRunReport;
use crate::restore_batch::LIST;

/// The document of an ADD, in the shape of the configuration's version.
pub(crate) fn result(result: &CniResult, version: Version) -> Vec<u8> {
    line(&result.write(version))
}

/// The document of a VERSION.
pub(crate) fn versions() -> Vec<u8> {
    line(&json!({"cniVersion": Version::NEWEST, "supportedVersions": Version::ALL}))
}

/// The document of a PLAN.
pub(crate) fn plan(report: &DryRunReport) -> Vec<u8> {
    let mut document = json!({"plan": report.steps});
    if report.example != CniResult::default() {
        document["example"] = report.example.write(Version::NEWEST);
    }
    line(&document)
}

/// The document of a RESTORE of many attachments: each of them, with the error object if it failed.
pub(crate) fn restored(plugin: &str, all: &[(Input, Result<()>)]) -> Vec<u8> {
    let version = Version::NEWEST.as_str();
    let mut list = Vec::with_capacity(all.len());
    for (input, outcome) in all {
        let mut one = json!({"containerID": input.container_id, "ifname": input.ifname});
        if let Err(error) = outcome {
            one["error"] = json!(object(plugin, input, version, error));
        }
        list.push(one);
    }
    line(&json!({"cniVersion": version, LIST: list}))
}

/// Writes a document and flushes stdout.
pub(crate) fn send(out: &mut dyn Write, document: &[u8]) -> Result<()> {
    let sent = out.write_all(document).and_then(|()| out.flush());
    sent.map_err(|error| {
        Error::new(code::IO, format!("the answer could not be written to stdout: {error}"))
            .hint("the runtime must keep stdout open until the plugin ends")
    })
}

/// Writes the error object. If that fails, the error is written to stderr as text.
pub(crate) fn refuse(out: &mut dyn Write, plugin: &str, input: &Input, version: &str, error: &Error) {
    if let Ok(value) = serde_json::to_value(object(plugin, input, version, error))
        && let Err(broken) = send(out, &line(&value))
    {
        print_to_stderr(plugin, &broken.detail(error.to_string()));
    }
}

/// The error object, with the call in its details.
fn object(plugin: &str, input: &Input, version: &str, error: &Error) -> CniError {
    let mut object = error.object(version);
    let attachment = attachment(input);
    let context = format!("{plugin} {}{attachment}", input.command);
    let details = match object.details {
        // The details of a delegate name the same attachment.
        Some(details) if !attachment.is_empty() => format!("{context}; {}", details.replace(&attachment, "")),
        Some(details) => format!("{context}; {details}"),
        None => context,
    };
    object.details = Some(limit::shortened(details));
    object
}

/// Writes an error to stderr if it cannot be written to stdout.
pub(crate) fn print_to_stderr(plugin: &str, error: &Error) {
    let _ = writeln!(io::stderr(), "{}", printable(&format!("{plugin}: {error}")));
}

/// `, network NAME, container ID, interface NAME`, as far as they are known.
fn attachment(input: &Input) -> String {
    let network = crate::request::network_name(input);
    let known = [("network", network.as_str()), ("container", &input.container_id), ("interface", &input.ifname)];
    let mut text = String::new();
    for (what, value) in known {
        if !value.is_empty() {
            text.extend([", ", what, " ", value]);
        }
    }
    text
}

fn line(document: &Value) -> Vec<u8> {
    let mut bytes = document.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(document: &[u8]) -> &str {
        std::str::from_utf8(document).unwrap()
    }

    #[test]
    fn a_document_is_one_line() {
        let versions = text(&versions()).to_owned();
        let expected =
            r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
        assert_eq!(versions, format!("{expected}\n"));
        let report = DryRunReport { steps: vec!["smile".into()], example: CniResult::default() };
        assert_eq!(text(&plan(&report)), "{\"plan\":[\"smile\"]}\n");
        let example = CniResult::read(&json!({"ips": [{"address": "10.1.0.7/24"}]}), Version::NEWEST).unwrap().1;
        let document: Value = serde_json::from_slice(&plan(&DryRunReport { example, ..report })).unwrap();
        assert_eq!(document["example"]["ips"][0]["address"], "10.1.0.7/24");
    }

    #[test]
    fn the_details_of_an_error_name_the_call_once() {
        let conf = r#"{"name":"blue"}"#;
        let mut input = Input::new("ADD", conf);
        let delegates =
            Error::config("no mood").detail("host-local ADD, network blue, container c1, interface eth0; is full");
        let plain = Error::config("no mood");
        let details = |input: &Input, error: &Error| object("moody", input, "1.1.0", error).details.unwrap();
        assert_eq!(details(&Input::new("VERSION", ""), &plain), "moody VERSION");
        assert_eq!(
            details(&Input::new("VERSION", ""), &Error::config("no mood").detail("none")),
            "moody VERSION; none"
        );
        input.container_id = "c1".into();
        input.ifname = "eth0".into();
        assert_eq!(details(&input, &plain), "moody ADD, network blue, container c1, interface eth0");
        assert_eq!(
            details(&input, &delegates),
            "moody ADD, network blue, container c1, interface eth0; host-local ADD; is full"
        );
    }
}
