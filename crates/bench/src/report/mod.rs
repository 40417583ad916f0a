//! The report of a run: statistics, verdicts, tables.

pub(crate) mod figures;
pub(crate) mod table;
pub(crate) mod verdict;
