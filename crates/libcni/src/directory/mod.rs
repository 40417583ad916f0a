//! A directory of configurations: the networks that a runtime selects from it, changes of that, and validation of its files.

pub(crate) mod inotify;
pub(crate) mod plugin_keys;
pub(crate) mod select;
pub(crate) mod subnets;
pub(crate) mod validate;
pub(crate) mod value_type;
pub(crate) mod watch;
