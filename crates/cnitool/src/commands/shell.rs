//! `completions` and `man`: files for shells and man(1).

use std::fs;
use std::path::Path;

use crate::cli;
use crate::failure::{Failure, Result};
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_unescaped};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "cnitool", &mut script);
    print_unescaped(&String::from_utf8_lossy(&script))
}

/// Writes a page for the tool and one for each command into a directory.
pub(crate) fn man(out: Output, dir: &Path) -> Result {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    let command = cli::documented();
    clap_mangen::generate_to(command, dir).map_err(failed)?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)?.flatten() {
        if let Ok(name) = entry.file_name().into_string()
            && name.starts_with("cnitool")
            && name.ends_with(".1")
        {
            pages.push(name);
        }
    }
    pages.sort();
    if out.json {
        return print_json(&serde_json::json!({"directory": dir.display().to_string(), "pages": pages}));
    }
    print(&format!("{} pages in {}\n", pages.len(), dir.display()))
}
