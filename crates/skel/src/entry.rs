//! The list of the plugins of a binary, as a value.

use std::io::Write;
use std::process::ExitCode;

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
    /// [`Plugin::ROLE`](crate::Plugin::ROLE).
    pub role: Option<Role>,
}

/// What a plugin starts its own binary as, besides serving calls: for a step that needs a process of its own.
#[derive(Clone, Copy)]
pub struct Role {
    /// The first argument of such a process.
    pub argument: &'static str,
    /// The work, with the other arguments.
    pub run: fn(&[String]) -> ExitCode,
}

impl Role {
    /// Runs the role that this process was started in; `None` if it was started to serve a call.
    pub(crate) fn of_process(roles: impl IntoIterator<Item = Role>) -> Option<ExitCode> {
        let arguments: Vec<String> =
            std::env::args_os().skip(1).map(|one| one.to_string_lossy().into_owned()).collect();
        let (first, rest) = arguments.split_first()?;
        let role = roles.into_iter().find(|role| role.argument == first)?;
        Some((role.run)(rest))
    }
}

/// Serves one call: the plugin's name, the input, the plugins of the binary, and the output; returns the exit status.
pub type Serve = fn(&str, Input, Plugins, &mut dyn Write) -> u8;

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
