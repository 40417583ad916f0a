//! Configuration: the files of a directory, what is in them, which of them a runtime uses, and what is wrong with them.

pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod inotify;
pub(crate) mod json_text;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod plugin_keys;
pub(crate) mod position;
pub(crate) mod select;
pub(crate) mod subnets;
pub(crate) mod validate;
pub(crate) mod watch;
