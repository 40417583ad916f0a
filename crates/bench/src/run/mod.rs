//! Calls that are measured: how they are started, and what is taken of them.

pub(crate) mod idle;
pub(crate) mod measure;
pub(crate) mod paths;
pub(crate) mod profile;
pub(crate) mod spawn;
