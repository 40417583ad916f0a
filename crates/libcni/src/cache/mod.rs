//! The cache of results: the result of each ADD, stored until DEL, and the intents of unfinished ADDs.

pub(crate) mod entry;
pub(crate) mod file_name;
pub(crate) mod lock;
pub(crate) mod record;
pub(crate) mod results;
pub(crate) mod summary;
