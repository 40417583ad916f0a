//! What is made of the figures: statistics, verdicts, tables.

pub(crate) mod figures;
pub(crate) mod table;
pub(crate) mod verdict;
