//! `config` and `validate`: the default network of a directory of configurations, and its errors.

use std::path::{Path, PathBuf};

use cnikit_libcni::{
    Finding, NetworkFile, NetworkSelector, RoutedSubnet, Selection, SelectionPolicy, Severity, SkippedFile, Validator,
};
use cnikit_netlink::{Family, Netlink};
use serde_json::{Value, json};

use crate::cli::RuntimeKind;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json};
use crate::output::text::Tone;
use crate::plugin_pages;

fn directory(common: &Common, dir: Option<&Path>) -> PathBuf {
    match dir {
        Some(dir) => dir.to_owned(),
        None => environment::configurations(common),
    }
}

/// Prints which file is the default network of a runtime, and why the others are not.
pub(crate) fn explain(common: &Common, out: Output, dir: Option<&Path>, runtime: RuntimeKind) -> Result {
    let dir = directory(common, dir);
    if dir.is_file() {
        let hint = "hint: name the directory of configurations; one file: `cnitool validate FILE`";
        return Err(format!("{} is not a directory; {hint}", dir.display()).into());
    }
    let policy = match runtime {
        RuntimeKind::Containerd => SelectionPolicy::FirstFiles(1),
        RuntimeKind::CriO => SelectionPolicy::FirstOfEachName(None),
        RuntimeKind::CriDockerd => SelectionPolicy::FirstValid,
    };
    let selector = NetworkSelector { dir: dir.clone(), policy, runtime: Some(environment::runtime(common)) };
    let selection = selector.select()?;
    if out.json {
        print_json(&document(&dir, &selection))?;
    } else {
        print(&text(out, &dir, &selection))?;
    }
    if selection.default_network().is_some() { Ok(()) } else { Err(Failure::found()) }
}

fn document(dir: &Path, selection: &Selection) -> Value {
    let default = selection.default_network().map(|NetworkFile { file, list, .. }| {
        json!({"file": file.display().to_string(), "network": list.name, "version": list.version})
    });
    let skipped: Vec<Value> = selection.skipped.iter().map(skipped_document).collect();
    json!({"directory": dir.display().to_string(), "default": default, "skipped": skipped})
}

fn skipped_document(skipped: &SkippedFile) -> Value {
    json!({"file": skipped.file.display().to_string(), "why": skipped.to_string()})
}

fn text(out: Output, dir: &Path, selection: &Selection) -> String {
    let first = match selection.default_network() {
        Some(NetworkFile { file, list, .. }) => {
            out.paint(&format!("{}: network {} is the default", file.display(), list.name), Tone::Good)
        }
        None => out.paint(&format!("{}: no file can be the default network", dir.display()), Tone::Bad),
    };
    let mut lines = vec![format!("{first}\n")];
    if selection.default_network().is_none() && selection.skipped.is_empty() {
        lines.push(
            "  it has no configuration file; hint: write one with `cnitool init`, or set `--conf-dir`\n".to_owned(),
        );
    }
    for skipped in &selection.skipped {
        lines.push(format!("  {skipped}\n"));
    }
    lines.concat()
}

/// Prints the errors and warnings about one file, or about the files of a directory.
pub(crate) fn validate(common: &Common, out: Output, path: Option<&Path>) -> Result {
    let path = directory(common, path);
    if !path.exists() {
        let hint = "hint: name a configuration file, or a directory of them";
        return Err(format!("{} does not exist; {hint}", path.display()).into());
    }
    let plugins = plugin_pages::plugin_keys()?;
    let runtime = Some(environment::runtime(common));
    let capabilities = environment::capabilities()?.into_iter().map(|(name, _)| name).collect();
    let validator = Validator { dir: path.clone(), runtime, plugins, capabilities, routes: routes() };
    let findings = if path.is_dir() { validator.validate()? } else { validator.validate_file(&path)? };
    let is_valid = findings.iter().all(|finding| finding.severity != Severity::Error);
    if out.json {
        let documents: Vec<Value> = findings.iter().map(finding_document).collect();
        let kind = if path.is_dir() { "directory" } else { "file" };
        print_json(&json!({kind: path.display().to_string(), "valid": is_valid, "findings": documents}))?;
    } else if findings.is_empty() {
        print(&format!("{}: nothing is wrong\n", path.display()))?;
    } else {
        print(&findings.iter().map(|finding| line(out, finding)).collect::<String>())?;
    }
    if findings.is_empty() { Ok(()) } else { Err(Failure::found()) }
}

fn line(out: Output, finding: &Finding) -> String {
    let tone = if finding.severity == Severity::Error { Tone::Bad } else { Tone::Doubtful };
    out.paint(&finding.to_string(), tone) + "\n"
}

fn finding_document(finding: &Finding) -> Value {
    let error = &finding.error;
    json!({
        "severity": finding.severity.to_string(),
        "file": error.file.display().to_string(),
        "line": error.location.map(|location| location.line),
        "column": error.location.map(|location| location.column),
        "key": error.key,
        "code": error.code,
        "why": error.message,
        "hint": error.hint,
    })
}

/// The routes of the host; empty if they cannot be read.
fn routes() -> Vec<RoutedSubnet> {
    let Ok(netlink) = Netlink::here() else { return Vec::new() };
    let links = netlink.links().unwrap_or_default();
    let mut subnets = Vec::new();
    for family in [Family::V4, Family::V6] {
        for route in netlink.routes(family).unwrap_or_default() {
            if route.is_ordinary()
                && !route.is_default()
                && let Some(link) = links.iter().find(|link| Some(link.index) == route.index)
            {
                subnets.push(RoutedSubnet { network: route.dst, device: link.name.clone() });
            }
        }
    }
    subnets
}
