//! The constants of a plugin, as a value.

use crate::sources::Sources;

/// The constants of a [`Plugin`](crate::Plugin) that the parsing of a request depends on. They are a value, so that the parser is
/// compiled once and not once per plugin.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    /// [`Plugin::SOURCES`](crate::Plugin::SOURCES).
    pub(crate) sources: Sources,
    /// [`Plugin::KNOWN_ARGS`](crate::Plugin::KNOWN_ARGS).
    pub(crate) known_args: Option<&'static [&'static str]>,
    /// [`Plugin::ENTERS_NETNS`](crate::Plugin::ENTERS_NETNS).
    pub(crate) enters_netns: bool,
}
