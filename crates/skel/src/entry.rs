//! The list of the plugins of a binary, as a value.

use std::io::Write;
use std::process::ExitCode;

use crate::about::Help;
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
    /// What its help says of it.
    pub help: Help,
    /// [`Plugin::ROLE`](crate::Plugin::ROLE).
    pub role: Option<Role>,
}

/// What the binary of a plugin does besides serving calls, such as a daemon, or a step that needs a process of its own.
#[derive(Clone, Copy)]
pub struct Role {
    /// The first argument of such a process, after the plugin's name if that is not the name of the program.
    pub argument: &'static str,
    /// The work, with the other arguments.
    pub run: fn(&[String]) -> ExitCode,
}

impl Role {
    /// Runs the role if these arguments of the process say so; `None` if it was started to serve a call.
    pub(crate) fn run_if_named(self, arguments: &[String]) -> Option<ExitCode> {
        let (first, rest) = arguments.split_first()?;
        if first == self.argument { Some((self.run)(rest)) } else { None }
    }
}

/// A command of a binary of many plugins for an operator, such as one that installs them.
#[derive(Clone, Copy)]
pub struct Command {
    /// The first argument of the process.
    pub name: &'static str,
    /// One line for the help.
    pub about: &'static str,
    /// The work: the plugins of the binary, and the other arguments.
    pub run: fn(Plugins, &[String]) -> ExitCode,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The arguments of this process after its name.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args_os().skip(1).map(|one| one.to_string_lossy().into_owned()).collect()
}

/// Serves one call: the plugin's name, the input, the plugins of the binary, and the output; returns the exit status.
pub type Serve = fn(&str, Input, Plugins, &mut dyn Write) -> u8;

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
