//! Fuzz target: the environment and stdin of a call.

use cnikit::types::{CniResult, Version};
use cnikit::{Add, Check, Del, DryRun, DryRunReport, Gc, Journal, KeySource, NetConf, Plugin, Result, Sources, Status};
use serde::Deserialize;

use crate::plugin_call::{call, input};

/// A plugin that only asserts what the protocol guarantees to plugins.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Witness {
    mac: Option<String>,
}

impl Plugin for Witness {
    const SOURCES: Sources =
        &[("mac", &[KeySource::Runtime("mac"), KeySource::ArgsCni("mac"), KeySource::CniArg("MAC"), KeySource::Key])];
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP", "MAC"]);

    fn add(&self, add: &Add, _: &mut Journal) -> Result<CniResult> {
        check_names(&add.call.conf, &add.attachment.tag);
        assert_ne!(self.mac.as_deref(), Some(""), "an empty text counts as not configured");
        Ok(add.prev.clone().unwrap_or_default())
    }

    fn del(del: &Del) -> Result<()> {
        check_names(&del.call.conf, &del.tag);
        Ok(())
    }

    fn check(&self, check: &Check) -> Result<()> {
        check_names(&check.call.conf, &check.attachment.tag);
        assert!(check.call.version >= Version::V0_4_0);
        Ok(())
    }

    fn gc(gc: &Gc) -> Result<()> {
        assert!(gc.call.version >= Version::V1_1_0);
        assert!(gc.valid.iter().all(|(container, ifname)| gc.valid.has(container, ifname)));
        Ok(())
    }

    fn status(&self, status: &Status) -> Result<()> {
        assert!(status.call.version >= Version::V1_1_0);
        Ok(())
    }

    fn plan(&self, dry_run: &DryRun) -> Result<DryRunReport> {
        check_names(&dry_run.call.conf, &dry_run.attachment.tag);
        Ok(DryRunReport { steps: vec!["nothing".into()], example: dry_run.prev.clone().unwrap_or_default() })
    }
}

/// Checks the names of an attachment: they become parts of the names of files, rules and links.
fn check_names(conf: &NetConf, tag: &cnikit::AttachmentId) {
    assert_eq!(conf.name(), Some(tag.network.as_str()));
    assert!(is_identifier(&tag.network) && is_identifier(&tag.container), "{tag:?}");
    assert!((1..=15).contains(&tag.ifname.len()) && !tag.ifname.contains(['/', '%', '\0']), "{tag:?}");
}

fn is_identifier(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed) && !text.starts_with('.')
}

pub(crate) fn run(data: &[u8]) {
    let input = input(data);
    let conf = NetConf::parse(input.stdin.so_far());
    let command = input.command.clone();
    let reply = call::<Witness>(input, &[]);
    if !reply.success {
        return;
    }
    match (command.as_str(), reply.document) {
        ("ADD", Some(document)) => {
            let conf = conf.expect("an ADD that succeeded had a configuration");
            let version = Version::exact(conf.text("cniVersion").unwrap_or_default()).expect("and a version");
            let prev = conf.get("prevResult").map(|prev| CniResult::read(prev, version).expect("and a result").1);
            assert_eq!(document, prev.unwrap_or_default().write(version), "an unchanged result is passed on");
        }
        ("VERSION", Some(document)) => assert_eq!(document["supportedVersions"].as_array().map(Vec::len), Some(7)),
        ("PLAN", Some(document)) => assert_eq!(document["plan"][0], "nothing"),
        ("DEL" | "CHECK" | "GC" | "STATUS", document) => assert_eq!(document, None, "{command} has nothing to say"),
        (command, document) => panic!("{command} succeeded with {document:?}"),
    }
}
