//! The program `cnikit-agent`, which does what needs the engine: cnitool has neither credentials nor TLS.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_process::{Deadline, Env, Program, run};
use serde_json::Value;

use crate::cli::AgentProgram;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;

/// The program's name, in a directory of plugins or beside cnitool.
const AGENT: &str = "cnikit-agent";
/// How long one call may take: a fence frees thousands of blocks, each by a transaction.
const PATIENCE: Duration = Duration::from_mins(10);
/// The longest output that is read, in bytes: a list of all blocks.
const OUTPUT: usize = 256 << 20;

/// The program that is to be run.
fn program(common: &Common, args: &AgentProgram) -> Result<PathBuf> {
    if let Some(program) = &args.agent {
        return Ok(program.clone());
    }
    let mut places: Vec<PathBuf> = environment::plugin_directories(common);
    if let Ok(own) = std::env::current_exe()
        && let Some(directory) = own.parent()
    {
        places.push(directory.to_owned());
    }
    let found = places.iter().map(|directory| directory.join(AGENT)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let searched: Vec<String> = places.iter().map(|directory| directory.display().to_string()).collect();
        Failure::new(format!(
            "{AGENT} is in none of {}; hint: install it there, or name it with `--agent`",
            searched.join(", ")
        ))
    })
}

/// Runs `cnikit-agent WORDS… --config FILE`, and returns the document that it prints.
pub(super) fn ask(common: &Common, args: &AgentProgram, words: &[OsString], stdin: Vec<u8>) -> Result<Value> {
    let path = program(common, args)?;
    let mut arguments = words.to_vec();
    if let Some(config) = &args.agent_config {
        arguments.extend(["--config".into(), config.clone().into()]);
    }
    let program = Program::new(&path, Env::Clean(&[])).args(arguments).stdin(stdin).limit(OUTPUT);
    let ended = run(&program, Deadline::after(PATIENCE)).map_err(|error| error.to_string())?;
    if !ended.how.is_success() {
        return Err(Failure::new(reason(&path, &ended.how.to_string(), &String::from_utf8_lossy(&ended.stderr))));
    }
    let document = serde_json::from_slice(&ended.stdout);
    Ok(document.map_err(|error| format!("{} printed no JSON document: {error}", path.display()))?)
}

/// What the program says about its failure: its last lines of stderr, of which the last may be a hint.
fn reason(path: &Path, how: &str, stderr: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in stderr.lines() {
        lines.extend(line.strip_prefix("cnikit-agent: "));
    }
    let Some(last) = lines.pop() else { return format!("{} ended with {how}", path.display()) };
    match (last.strip_prefix("hint: "), lines.pop()) {
        (Some(hint), Some(text)) => format!("{text}; hint: {hint}"),
        _ => last.to_owned(),
    }
}

/// The words of a command line.
pub(super) fn words(texts: &[&str]) -> Vec<OsString> {
    texts.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_with_its_hint_and_without_the_log() {
        let stderr = "cnikit-agent: pools: 1 pools\ncnikit-agent: there is no node x\ncnikit-agent: hint: see list\n";
        assert_eq!(reason(Path::new("/a"), "status 1", stderr), "there is no node x; hint: see list");
        assert_eq!(reason(Path::new("/a"), "status 1", "cnikit-agent: it burns\n"), "it burns");
        assert_eq!(reason(Path::new("/a"), "signal 9", "Killed\n"), "/a ended with signal 9");
    }
}
