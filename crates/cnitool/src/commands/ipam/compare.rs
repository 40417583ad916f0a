//! `ipam check`: the files of the pools' networks, compared with the engine and with the living namespaces.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cnikit_libcni::{AttachmentSummary, State};
use cnikit_pool::{LocalBlock, NodeFiles};
use cnikit_reservations::Holder;
use serde_json::{Value, json};

use super::agent::{ask, words};
use super::{Evidence, Verdict};
use crate::cli::{Compare, ScanScope};
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::table::Cell;
use crate::output::text::Tone;
use crate::stores::{pool_directories, pool_store};

/// The kind of an address that a container has without a reservation.
const NOT_RESERVED: &str = "not-reserved";

/// A difference, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    kind: String,
    what: String,
    hint: String,
}

/// Compares, and prints what differs.
pub(crate) fn check(common: &Common, out: Output, args: &Compare) -> Result {
    let mut findings = Vec::new();
    let mut data_dir = None;
    if !args.local {
        match ask(common, &args.agent, &words(&["check"]), Vec::new()) {
            Ok(document) => {
                data_dir = document["dataDir"].as_str().map(PathBuf::from);
                findings.extend(of_engine(&document));
            }
            Err(failure) => findings.push(Finding {
                kind: "engine-not-compared".to_owned(),
                what: failure.text,
                hint: "use `--local` where there is no agent; the rest is compared nevertheless".to_owned(),
            }),
        }
    }
    let mut dirs: BTreeSet<PathBuf> = pool_directories(common);
    dirs.extend(args.data_dir.iter().cloned());
    dirs.extend(data_dir);
    findings.extend(local_findings(common, &dirs, args.sight)?);
    show(out, &findings)
}

/// Addresses of pools that a container has without a reservation, with what to do: what `ipam check --local` finds besides leaks.
pub(crate) fn unreserved_addresses(common: &Common, sight: ScanScope) -> Result<Vec<(String, String)>> {
    let mut unreserved = Vec::new();
    for found in local_findings(common, &pool_directories(common), sight)? {
        if found.kind == NOT_RESERVED {
            unreserved.push((found.what, found.hint));
        }
    }
    Ok(unreserved)
}

/// What differs between the files and the namespaces at two moments: an ADD or a DEL may be under way at one.
fn local_findings(common: &Common, dirs: &BTreeSet<PathBuf>, sight: ScanScope) -> Result<Vec<Finding>> {
    let mut local = of_namespaces(common, dirs, sight)?;
    if !local.is_empty() {
        let again = of_namespaces(common, dirs, sight)?;
        local.retain(|found| again.contains(found));
    }
    Ok(local)
}

fn show(out: Output, findings: &[Finding]) -> Result {
    if out.json {
        let document = |one: &Finding| json!({"kind": one.kind, "what": one.what, "hint": one.hint});
        print_json(&json!({"findings": findings.iter().map(document).collect::<Vec<Value>>()}))?;
    } else if findings.is_empty() {
        print("files, engine and namespaces agree\n")?;
    } else {
        let row = |one: &Finding| -> [Cell<'static>; 2] {
            [Cell::toned(one.what.clone(), Tone::Bad), Cell::toned(one.hint.clone(), Tone::Plain)]
        };
        let rows: Vec<[Cell<'_>; 2]> = findings.iter().map(row).collect();
        out.table(["FINDING", "WHAT TO DO"], &rows)?;
    }
    if findings.is_empty() { Ok(()) } else { Err(Failure::found()) }
}

fn of_engine(document: &Value) -> Vec<Finding> {
    let text = |one: &Value, member: &str| one[member].as_str().unwrap_or_default().to_owned();
    let mut findings = Vec::new();
    for one in document["findings"].as_array().into_iter().flatten() {
        findings.push(Finding { kind: text(one, "kind"), what: text(one, "what"), hint: text(one, "hint") });
    }
    findings
}

/// The reservations of the networks that have blocks against the living namespaces, and the reverse.
fn of_namespaces(common: &Common, dirs: &BTreeSet<PathBuf>, sight: ScanScope) -> Result<Vec<Finding>> {
    let mut networks = Vec::new();
    for dir in dirs {
        match NodeFiles::new(dir).networks() {
            Ok(names) => networks.extend(names.into_iter().map(|name| (dir, name))),
            Err(error) => print_to_stderr(&format!("Warning: {error}")),
        }
    }
    let mut findings = Vec::new();
    if networks.is_empty() {
        return Ok(findings); // the namespaces of the node need not be entered
    }
    let evidence = Evidence::from_node(common, sight)?;
    for (dir, name) in networks {
        let reservations = pool_store(dir, &name).survey()?;
        findings.extend(unreserved(&evidence, &NodeFiles::new(dir), &name, &reservations));
        for reservation in reservations {
            let assessed = evidence.assess(&name, reservation);
            findings.extend(of_reservation(&name, &assessed));
        }
    }
    Ok(findings)
}

fn of_reservation(network: &str, assessed: &super::Assessed) -> Option<Finding> {
    let address = assessed.reservation.address;
    let (container, ifname) = assessed.owner();
    let what = format!("{address} of {container}/{ifname} in network {network}: {}", assessed.why);
    match assessed.verdict {
        Verdict::Held => None,
        Verdict::Leaked => Some(Finding {
            kind: "leaked".to_owned(),
            what,
            hint: format!("no container has it: cnitool ipam release {address}"),
        }),
        Verdict::Suspected => Some(Finding {
            kind: "suspected".to_owned(),
            what,
            hint: format!("if its container is gone: cnitool ipam release {address} --force"),
        }),
    }
}

/// Containers whose addresses are in a block of the network, and not reserved: another one can get them.
fn unreserved(
    evidence: &Evidence,
    files: &NodeFiles,
    network: &str,
    reservations: &[cnikit_reservations::Reservation],
) -> Vec<Finding> {
    let Ok(open) = files.open() else { return Vec::new() };
    let Ok(blocks) = open.blocks(network) else { return Vec::new() };
    let mut findings = Vec::new();
    for attachment in evidence.attachments.iter().filter(|one| one.network == network) {
        if attachment.state != State::Attached
            || evidence.inspector.attachment(&attachment.netns, &attachment.metadata).is_lost()
        {
            continue;
        }
        for address in addresses(attachment, &blocks) {
            let is_held = reservations.iter().any(|one| {
                let holder = match &one.holder {
                    Holder::Of(owner) => owner.container == attachment.container_id,
                    Holder::Lost | Holder::Unreadable(_) => true,
                };
                one.address == address && holder
            });
            if !is_held {
                findings.push(Finding {
                    kind: NOT_RESERVED.to_owned(),
                    what: format!(
                        "{address} is used by {}/{} of network {network}, and is not reserved for it",
                        attachment.container_id, attachment.ifname
                    ),
                    hint: "restart that container: another one can get the address".to_owned(),
                });
            }
        }
    }
    findings
}

/// The addresses of an attachment that are in a block.
fn addresses(attachment: &AttachmentSummary, blocks: &[LocalBlock]) -> Vec<std::net::IpAddr> {
    let mut found = Vec::new();
    for text in &attachment.addresses {
        if let Ok(address) = text.split('/').next().unwrap_or_default().parse()
            && blocks.iter().any(|block| block.cidr.contains(address))
        {
            found.push(address);
        }
    }
    found
}
