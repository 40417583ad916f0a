//! The report of a run: verdicts and tables.

pub(crate) mod table;
pub(crate) mod verdict;
