//! The cache of results: what ADD returned, stored until DEL, and what an unfinished ADD was about to do.

pub(crate) mod entry;
pub(crate) mod file_name;
pub(crate) mod lock;
pub(crate) mod record;
pub(crate) mod results;
pub(crate) mod summary;
