//! The `main` of a binary of many plugins.

use std::process::ExitCode;

use crate::about;
use crate::entry::{Entry, Plugins, Role};
use crate::plugin::Plugin;
use crate::serve::{serve, serve_process};

impl Entry {
    /// The entry of a plugin.
    pub const fn of<P: Plugin>(name: &'static str) -> Entry {
        Entry { name, serve: serve::<P>, example: P::EXAMPLE, role: P::ROLE }
    }
}

/// The `main` of a binary of many plugins. It serves the plugin whose name the program is run by, otherwise the one that is its
/// first argument.
pub fn dispatch(plugins: Plugins) -> ExitCode {
    if let Some(code) = Role::of_process(plugins.iter().filter_map(|entry| entry.role)) {
        return code;
    }
    let by_name = |name: &str| plugins.iter().find(|entry| entry.name == name);
    let entry = match by_name(&about::own_name()) {
        Some(entry) => Some(entry),
        None => std::env::args().nth(1).and_then(|name| by_name(&name)),
    };
    match entry {
        Some(entry) => serve_process(entry.name, entry.serve, entry.example, plugins),
        None => about::of_many(plugins),
    }
}
