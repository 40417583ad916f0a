//! The node's policy, as a value.

use serde::Deserialize;

/// The content of `/etc/cnikit/node.json`. Without the file everything has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[non_exhaustive]
pub struct NodePolicy {
    /// `args.cni` of a configuration is removed before anything reads it, delegated plugins included.
    pub ignore_args: bool,
    /// A delegated plugin that any user may write to, or whose directory any user may write to, is not run.
    pub refuse_writable_plugins: bool,
}
