//! One run: starting the calls and measuring them.

pub(crate) mod idle;
pub(crate) mod measure;
pub(crate) mod paths;
pub(crate) mod profile;
pub(crate) mod spawn;
