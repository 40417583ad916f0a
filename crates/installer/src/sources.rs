//! The files that are installed, read once.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_launcher::{MAX_LENGTH, PROGRAM, is_launcher};
use cnikit_process::{Deadline, Env, Program, run};
use cnikit_skel::Plugins;

use crate::whole::is_whole;

const LAUNCHER: &str = "cni-launcher";
pub(crate) const TOOL: &str = "cnitool";
const LONGEST: u64 = 1 << 27;
/// How long another version may take to print the names of its plugins.
const LISTING: Duration = Duration::from_secs(30);

/// The files and the plugins' names.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) binary: Vec<u8>,
    pub(crate) launcher: Vec<u8>,
    pub(crate) tool: Option<Vec<u8>>,
    pub(crate) names: Vec<String>,
}

impl Sources {
    /// Reads the files in `from`, by default the directory of this program. A version without launchers gets this one's.
    pub(crate) fn read(plugins: Plugins, from: Option<&Path>, needs_tool: bool) -> Result<Sources, String> {
        let own = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
        let beside = own.parent().unwrap_or(Path::new("/")).to_owned();
        let from = from.unwrap_or(&beside);
        let path = from.join(PROGRAM);
        let binary = read(&path)?;
        let launcher = match read(&from.join(LAUNCHER)) {
            Err(_) if from != beside => read(&beside.join(LAUNCHER)),
            launcher => launcher,
        };
        let launcher = launcher.map_err(|error| {
            format!("{error}; hint: --from DIR names the directory with {PROGRAM} and {LAUNCHER} of a release")
        })?;
        if launcher.len() as u64 > MAX_LENGTH || !is_launcher(&launcher) {
            return Err(format!("{} is not a launcher of cnikit", from.join(LAUNCHER).display()));
        }
        let tool = if needs_tool { Some(read(&from.join(TOOL))?) } else { None };
        let names = if is_this_program(&path) { own_names(plugins) } else { ask_names(path)? };
        Ok(Sources { binary, launcher, tool, names })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() || facts.len() > LONGEST || !is_whole(&file, facts.len()) {
        return Err(format!("read {}: it is not a whole program", path.display()));
    }
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

fn is_this_program(path: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|facts| (facts.dev(), facts.ino())).ok();
    identity(path).is_some() && identity(path) == identity(Path::new("/proc/self/exe"))
}

fn own_names(plugins: Plugins) -> Vec<String> {
    plugins.iter().map(|entry| entry.name.to_owned()).collect()
}

/// The names of another version's plugins.
fn ask_names(path: PathBuf) -> Result<Vec<String>, String> {
    let shown = format!("{} --list", path.display());
    let args = vec![OsString::from("--list")];
    let grace = Duration::from_secs(1);
    let path = std::path::absolute(path).map_err(|error| format!("{shown}: {error}"))?;
    let program = Program::new(path, Env::Clean(&[])).args(args).limit(1 << 16).grace(grace);
    let ended = run(&program, Deadline::after(LISTING)).map_err(|error| format!("{shown}: {error}"))?;
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    let is_name = |name: &String| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if !ended.how.is_success() || names.is_empty() || !names.iter().all(is_name) {
        return Err(format!("{shown}: it does not print the names of plugins"));
    }
    Ok(names)
}
