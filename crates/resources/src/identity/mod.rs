//! The attachment that a link belongs to: the alias, and the record of the ADD.

pub mod alias;
pub(crate) mod recorded;
