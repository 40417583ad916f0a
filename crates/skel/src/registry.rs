//! The `main` of a binary of many plugins.

use std::process::ExitCode;

use crate::about;
use crate::entry::{Command, Entry, Plugins, arguments};
use crate::plugin::Plugin;
use crate::serve::{help_of, serve, serve_process};

impl Entry {
    /// The entry of a plugin.
    pub const fn of<P: Plugin>(name: &'static str) -> Entry {
        Entry { name, serve: serve::<P>, help: help_of::<P>(), role: P::ROLE }
    }
}

/// The `main` of a binary of many plugins. It serves the plugin whose name the program is run by, otherwise the one that is its
/// first argument. A command of this name is run if the first argument is that of no plugin.
pub fn dispatch(plugins: Plugins, commands: &[Command]) -> ExitCode {
    let arguments = arguments();
    let by_name = |name: &str| plugins.iter().find(|entry| entry.name == name);
    let mut rest = &arguments[..];
    let mut named = by_name(&about::own_name());
    if named.is_none()
        && let Some((first, others)) = arguments.split_first()
    {
        rest = others;
        named = by_name(first);
    }
    let Some(entry) = named else { return run_command(plugins, commands, &arguments) };
    if let Some(code) = entry.role.and_then(|role| role.run_if_named(rest)) {
        return code;
    }
    serve_process(entry.name, entry.serve, entry.help, plugins)
}

/// Runs the command that the first argument names, or prints the help.
fn run_command(plugins: Plugins, commands: &[Command], arguments: &[String]) -> ExitCode {
    if let Some((first, rest)) = arguments.split_first() {
        for command in commands {
            if command.name == first {
                return (command.run)(plugins, rest);
            }
        }
    }
    about::of_many(plugins, commands)
}
