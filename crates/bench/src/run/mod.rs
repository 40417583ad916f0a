//! One run: the calls and their measurements.

pub(crate) mod idle;
pub(crate) mod measure;
pub(crate) mod paths;
pub(crate) mod profile;
