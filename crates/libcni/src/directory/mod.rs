//! A directory of configurations: which of its networks a runtime uses, when that changes, and what is wrong with its files.

pub(crate) mod inotify;
pub(crate) mod plugin_keys;
pub(crate) mod select;
pub(crate) mod subnets;
pub(crate) mod validate;
pub(crate) mod watch;
