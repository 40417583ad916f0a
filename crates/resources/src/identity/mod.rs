//! Which attachment a link belongs to, and what ADD recorded of it.

pub mod alias;
pub(crate) mod recorded;
