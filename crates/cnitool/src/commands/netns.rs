//! Network namespaces with a name, where `ip netns` has them.

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_libcni::AttachmentSummary;
use cnikit_netns::make;
use serde_json::{Value, json};

use crate::cli::Netns;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::{Look, Standing};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::table::Cell;
use crate::output::text::Tone;

/// Where names are.
const NAMES: &str = "/run/netns";

pub(crate) fn netns(common: &Common, out: Output, asked: &Netns) -> Result {
    match asked {
        Netns::Add { name } => add(out, &path_of(name)?),
        Netns::Del { name, force, dry_run } => del(common, out, &path_of(name)?, (*force, *dry_run)),
        Netns::List => list(common, out),
    }
}

fn path_of(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        return Ok(std::path::absolute(name).map_err(|error| format!("{name}: {error}"))?);
    }
    if name.is_empty() || name == "." || name == ".." {
        return Err(format!("\"{name}\" is no name of a namespace").into());
    }
    Ok(Path::new(NAMES).join(name))
}

fn add(out: Output, path: &Path) -> Result {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let netns = make::fresh(path)?;
    let path = path.display().to_string();
    if out.json {
        return print_json(&json!({"path": path, "cookie": netns.cookie().ok()}));
    }
    print(&format!("{path}\n"))
}

fn del(common: &Common, out: Output, path: &Path, (force, dry_run): (bool, bool)) -> Result {
    let look = Look::new();
    let standing = look.path(&path.display().to_string());
    if standing == Standing::Gone {
        return Err(format!("{}: no such namespace", path.display()).into());
    }
    let known = environment::cache(common).list()?;
    let there: Vec<String> = known.iter().filter(|kept| is_at(kept, path)).map(name_of).collect();
    if !there.is_empty() && !force {
        let text = format!("{}: attached there: {}", path.display(), there.join(", "));
        return Err(format!("{text}; hint: `cnitool del` them first, or give --force").into());
    }
    if !dry_run {
        if !out.json {
            print_to_stderr(&format!("removing {}", path.display()));
        }
        make::remove(path)?;
    }
    if out.json {
        let path = path.display().to_string();
        return print_json(&json!({"path": path, "removed": !dry_run, "dryRun": dry_run, "attached": there}));
    }
    if dry_run { print(&format!("would remove {}\n", path.display())) } else { Ok(()) }
}

fn list(common: &Common, out: Output) -> Result {
    let (look, known) = (Look::new(), environment::cache(common).list()?);
    let entries = fs::read_dir(NAMES).into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let path = |name: &String| Path::new(NAMES).join(name);
    let attached = |name: &String| known.iter().filter(|kept| is_at(kept, &path(name))).map(name_of).collect();
    let found = names.iter().map(|name| (name, look.path(&path(name).display().to_string()), attached(name)));
    let found: Vec<(&String, Standing, Vec<String>)> = found.collect();
    if out.json {
        let namespace = |(name, standing, attached): &(&String, Standing, Vec<String>)| {
            let path = path(name).display().to_string();
            json!({"name": name, "path": path, "state": standing.word(), "attachments": attached})
        };
        let namespaces: Vec<Value> = found.iter().map(namespace).collect();
        return print_json(&json!({"namespaces": namespaces}));
    }
    let row = |(name, standing, attached): &(&String, Standing, Vec<String>)| {
        let tone = if standing.is_lost() { Tone::Bad } else { Tone::Plain };
        [Cell::from((*name).clone()), Cell::toned(standing.word(), tone), attached.join(" ").into()]
    };
    out.table(["NAME", "NAMESPACE", "ATTACHMENTS"], &found.iter().map(row).collect::<Vec<_>>())
}

fn name_of(kept: &AttachmentSummary) -> String {
    format!("{}/{}/{}", kept.network, kept.container_id, kept.ifname)
}

/// Whether an attachment's namespace has this path. `/var/run` is `/run`, wherever there are both.
fn is_at(kept: &AttachmentSummary, path: &Path) -> bool {
    let plain = |path: &Path| match path.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => path.to_owned(),
    };
    plain(Path::new(&kept.netns)) == plain(path)
}
