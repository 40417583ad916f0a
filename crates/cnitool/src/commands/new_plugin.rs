//! `new plugin`: writes the crate of a new plugin.
//!
//! The crate is made of the files in `templates/`. Nothing that exists is replaced.

mod name;
mod shapes;
mod template;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::{NewPlugin, Shape};
use crate::failure::{Failure, Result};
use crate::output::format::Output;
use crate::output::print::{print, print_json};

use name::check_plugin_name;
use template::{CrateFile, crate_files};

/// A file that every checkout of cnikit has.
const OF_THE_SDK: &str = "crates/cnikit/Cargo.toml";

/// Writes the crate into a new directory, or an empty one, below the working directory.
pub(crate) fn new_plugin(out: Output, args: &NewPlugin) -> Result {
    let NewPlugin { name, shape, .. } = args;
    check_plugin_name(name)?;
    let sdk = sdk(args.sdk.as_deref())?;
    let directory = Path::new(name);
    check_empty(directory)?;
    let mut files = crate_files(name, *shape, &sdk);
    // The versions that cnikit is tested with. Cargo removes what the plugin does not need.
    if let Ok(lock) = fs::read_to_string(Path::new(&sdk).join("Cargo.lock")) {
        files.push(CrateFile { path: "Cargo.lock".to_owned(), text: lock, is_program: false });
    }
    for file in &files {
        write_new(&directory.join(&file.path), file)?;
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    if out.json {
        let directory = fs::canonicalize(directory).map_err(|error| format!("{name}: {error}"))?;
        return print_json(
            &json!({"directory": directory.display().to_string(), "shape": shape.word(), "sdk": sdk, "files": paths}),
        );
    }
    print(&format!(
        "wrote {name}: {} files of {}, with the crates in {sdk}\nnext: cd {name} && ./attach\n",
        files.len(),
        shape.title()
    ))
}

/// The checkout of cnikit, as an absolute path that can be written into a manifest: the given one, or that which this program is
/// in. The working directory is not searched: another user may own one above it, and the plugin compiles and runs the crates.
fn sdk(given: Option<&Path>) -> Result<String> {
    let found = match given {
        Some(given) => given.to_owned(),
        None => around(std::env::current_exe().ok())
            .ok_or("the crates of cnikit are not published yet; hint: name a checkout of cnikit with `--sdk PATH`")?,
    };
    let failed = |error: std::io::Error| Failure::new(format!("--sdk: {}: {error}", found.display()));
    let path = fs::canonicalize(&found).map_err(failed)?;
    if !path.join(OF_THE_SDK).is_file() {
        let text = format!("--sdk: {} is not a checkout of cnikit: it has no {OF_THE_SDK}", path.display());
        return Err(format!("{text}; hint: name the directory that `git clone` made").into());
    }
    match path.to_str() {
        Some(text) if !text.chars().any(|c| c.is_control() || c == '"' || c == '\\') => Ok(text.to_owned()),
        _ => {
            Err(format!("--sdk: {} cannot be written into a manifest; hint: move the checkout", path.display()).into())
        }
    }
}

/// The checkout that a path is in.
fn around(path: Option<PathBuf>) -> Option<PathBuf> {
    path?.ancestors().find(|above| above.join(OF_THE_SDK).is_file()).map(Path::to_owned)
}

fn check_empty(directory: &Path) -> Result {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", directory.display()));
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.is_dir() => return Err(format!("{} exists already", directory.display()).into()),
        Ok(_) => {}
    }
    if fs::read_dir(directory).map_err(failed)?.next().is_some() {
        let text = format!("{} is not empty", directory.display());
        return Err(format!("{text}; hint: give the plugin another name, or work in another directory").into());
    }
    Ok(())
}

/// Writes a file that does not exist, with the directories that it is in.
fn write_new(path: &Path, file: &CrateFile) -> Result {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
    }
    let mode = if file.is_program { 0o755 } else { 0o644 };
    let mut new = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    new.write_all(file.text.as_bytes()).map_err(failed)
}

impl Shape {
    /// The word of the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Shape::Interface => "interface",
            Shape::Chained => "chained",
            Shape::Ipam => "ipam",
            Shape::Delegating => "delegating",
            Shape::Plain => "plain",
        }
    }

    /// What it is.
    fn title(self) -> &'static str {
        match self {
            Shape::Interface => "an interface plugin",
            Shape::Chained => "a chained plugin",
            Shape::Ipam => "an IPAM plugin",
            Shape::Delegating => "a delegating plugin",
            Shape::Plain => "a plugin without a shape",
        }
    }
}
