//! Rules as values: their types, and how they become expressions of the kernel and are read back.

pub(crate) mod compile;
pub(crate) mod decompile;
pub(crate) mod key;
pub(crate) mod parse;
pub(crate) mod set;
pub(crate) mod types;
