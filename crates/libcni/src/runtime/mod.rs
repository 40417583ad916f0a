//! The runtime side of the protocol: it runs the plugins of a network list.

#[cfg(feature = "async")]
pub(crate) mod background;
pub(crate) mod chain;
pub(crate) mod executor;
pub(crate) mod gc;
pub(crate) mod handle;
pub(crate) mod limit;
pub(crate) mod merged;
pub(crate) mod networks;
pub(crate) mod restore;
pub(crate) mod verbs;
