//! The output of the tool: text, tables, trees, JSON documents, progress.

pub(crate) mod format;
pub(crate) mod plugin_progress;
pub(crate) mod print;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;
pub(crate) mod tree;
