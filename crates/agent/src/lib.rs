//! The agent of a node for the plugin `pool`: it claims blocks of addresses from an engine, such as etcd, and gives them back.
//!
//! - [`protocol`]: what to do next, as pure functions.
//! - [`engine`]: what records the blocks.
#![forbid(unsafe_code)]

pub mod engine;
pub mod protocol;
