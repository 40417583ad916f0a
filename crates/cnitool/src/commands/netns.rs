//! `netns`: network namespaces with a name, in the directory of `ip netns`.

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_libcni::AttachmentSummary;
use cnikit_netns::make;
use serde_json::{Value, json};

use crate::cli::Netns;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::{PathInspector, PathState};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::table::Cell;
use crate::output::text::Tone;

/// The directory of the namespaces that have a name.
pub(crate) const NAMED_NAMESPACES: &str = "/run/netns";

/// A namespace with a name.
struct Named {
    name: String,
    path: PathBuf,
    state: PathState,
    /// The attachments in it.
    attachments: Vec<String>,
}

pub(crate) fn netns(common: &Common, out: Output, args: &Netns) -> Result {
    match args {
        Netns::Add { name } => add(out, &path_of(name)?),
        Netns::Del { name, force, dry_run } => {
            let path = path_of(name)?;
            let attached = attached(common, &path)?;
            if !attached.is_empty() && !*force {
                let text = format!("{}: attached there: {}", path.display(), attached.join(", "));
                return Err(format!("{text}; hint: run `cnitool del` first, or use --force").into());
            }
            if *dry_run { would_del(out, &path, &attached) } else { del(out, &path, &attached) }
        }
        Netns::List => list(common, out),
    }
}

fn path_of(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        return Ok(std::path::absolute(name).map_err(|error| format!("{name}: {error}"))?);
    }
    if name.is_empty() || name == "." || name == ".." {
        return Err(
            format!("\"{name}\" cannot be the name of a namespace; hint: use a name such as c1, or a path").into()
        );
    }
    Ok(Path::new(NAMED_NAMESPACES).join(name))
}

fn add(out: Output, path: &Path) -> Result {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    if path.exists() {
        let hint = "hint: choose another name, or delete it with `cnitool netns del`";
        return Err(format!("{} already exists; {hint}", path.display()).into());
    }
    let netns = make::fresh(path)?;
    let path = path.display().to_string();
    if out.json {
        return print_json(&json!({"path": path, "cookie": netns.cookie().ok()}));
    }
    print(&format!("{path}\n"))
}

/// The attachments in the namespace at a path, which must exist.
fn attached(common: &Common, path: &Path) -> Result<Vec<String>> {
    if PathInspector::new().path(&path.display().to_string()) == PathState::Gone {
        return Err(format!("{}: no such namespace; hint: run `cnitool netns list`", path.display()).into());
    }
    Ok(names_at(&environment::cache(common).list()?, path))
}

fn would_del(out: Output, path: &Path, attached: &[String]) -> Result {
    if out.json {
        return print_json(&del_document(path, attached, true));
    }
    print(&format!("would remove {}\n", path.display()))
}

fn del(out: Output, path: &Path, attached: &[String]) -> Result {
    if !out.json {
        print_to_stderr(&format!("removing {}", path.display()));
    }
    make::remove(path)?;
    if out.json { print_json(&del_document(path, attached, false)) } else { Ok(()) }
}

fn del_document(path: &Path, attached: &[String], dry_run: bool) -> Value {
    let path = path.display().to_string();
    json!({"path": path, "removed": !dry_run, "dryRun": dry_run, "attached": attached})
}

fn list(common: &Common, out: Output) -> Result {
    let inspector = PathInspector::new();
    let all = environment::cache(common).list()?;
    let entries = fs::read_dir(NAMED_NAMESPACES).into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let path = Path::new(NAMED_NAMESPACES).join(&name);
        let state = inspector.path(&path.display().to_string());
        let attachments = names_at(&all, &path);
        found.push(Named { name, path, state, attachments });
    }
    if out.json {
        let namespaces: Vec<Value> = found.iter().map(Named::to_json).collect();
        return print_json(&json!({"namespaces": namespaces}));
    }
    let rows: Vec<_> = found.iter().map(Named::row).collect();
    out.table(["NAME", "NAMESPACE", "ATTACHMENTS"], &rows)
}

impl Named {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "path": self.path.display().to_string(),
            "state": self.state.word(),
            "attachments": self.attachments,
        })
    }

    fn row(&self) -> [Cell<'_>; 3] {
        let tone = if self.state.is_lost() { Tone::Bad } else { Tone::Plain };
        [self.name.as_str().into(), Cell::toned(self.state.word(), tone), self.attachments.join(" ").into()]
    }
}

/// The names of the attachments whose namespace has this path.
fn names_at(all: &[AttachmentSummary], path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for AttachmentSummary { network, container_id, ifname, netns, .. } in all {
        if without_var(Path::new(netns)) == without_var(path) {
            names.push(format!("{network}/{container_id}/{ifname}"));
        }
    }
    names
}

/// The path with `/run` instead of `/var/run`, which is a link to it.
fn without_var(path: &Path) -> PathBuf {
    match path.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => path.to_owned(),
    }
}
