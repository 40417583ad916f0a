//! Network configurations: the files of a directory, and the network list in each.

pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod json_text;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod position;
