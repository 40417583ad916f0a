//! The list of the plugins of a binary, as a value.

use std::io::Write;

use crate::input::Input;

/// The plugins of this binary: a plain list, passed down from `main` in every call. A plugin's own binary passes an empty one.
pub type Plugins = &'static [Entry];

/// One plugin of this binary.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name that configurations have as `type`.
    pub name: &'static str,
    /// Serves one call as a process would, with a journal and an error object of its own.
    pub serve: Serve,
    /// [`Plugin::EXAMPLE`](crate::Plugin::EXAMPLE).
    pub example: &'static str,
}

/// Serves one call: the plugin's name, the input, the plugins of the binary, and the output; returns the exit status.
pub type Serve = fn(&str, Input, Plugins, &mut dyn Write) -> u8;

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
