//! What a shell and man(1) want to know of this tool.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::cli::CommandLine;
use crate::failure::{Failure, Result};
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_unescaped};

/// The completions of a shell, on stdout.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "cnitool", &mut script);
    print_unescaped(&String::from_utf8_lossy(&script))
}

/// A page for the tool and one for each command, in a directory.
pub(crate) fn man(out: Output, dir: &Path) -> Result {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    let command = CommandLine::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir).map_err(failed)?;
    let names = fs::read_dir(dir).map_err(failed)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pages: Vec<String> = names.filter(|name| name.starts_with("cnitool") && name.ends_with(".1")).collect();
    pages.sort();
    if out.json {
        return print_json(&serde_json::json!({"directory": dir.display().to_string(), "pages": pages}));
    }
    print(&format!("{} pages in {}\n", pages.len(), dir.display()))
}
