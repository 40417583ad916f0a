//! Plugins that live in this binary.

use std::io::Write;
use std::process::ExitCode;

use crate::about;
use crate::input::Input;
use crate::plugin::Plugin;
use crate::serve::{answer_process, serve};

/// The plugins of this binary: a plain list, handed down from `main` in every call. A plugin's own binary hands down an
/// empty one.
pub type Plugins = &'static [Entry];

/// One plugin of this binary.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name by which configurations ask for it.
    pub name: &'static str,
    /// Answers one call: as a process would, with a journal and an error object of its own.
    pub serve: Serve,
}

/// How a plugin is asked: its name, what it is given, the plugins beside it, where the answer goes; the exit status.
pub type Serve = fn(&str, Input, Plugins, &mut dyn Write) -> u8;

impl Entry {
    /// The entry of a plugin.
    pub const fn of<P: Plugin>(name: &'static str) -> Entry {
        Entry { name, serve: serve::<P> }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The `main` of a binary of many plugins: the one that it is called by, or that its first argument names.
pub fn dispatch(plugins: Plugins) -> ExitCode {
    let named = |name: &str| plugins.iter().find(|entry| entry.name == name);
    let entry = named(&about::own_name()).or_else(|| std::env::args().nth(1).and_then(|name| named(&name)));
    match entry {
        Some(entry) => answer_process(entry.name, entry.serve, plugins),
        None => about::of_many(plugins),
    }
}
