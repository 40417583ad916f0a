//! The agent of a node for the plugin `pool`: it claims blocks of addresses from an engine, such as etcd, and gives them back.
//!
//! - [`engine`]: what records the blocks.
//! - [`PoolAgent`]: the steps of the protocol ([`cnikit_pool_protocol`]), executed on the node's files and an engine.
//! - [`daemon`], [`operator`], [`adopt`], [`compare`] and [`cluster_nodes`]: the commands of the program.
#![forbid(unsafe_code)]

pub mod adopt;
mod agent;
pub mod cluster_nodes;
pub mod command_line;
pub mod compare;
pub mod config;
pub mod daemon;
pub mod engine;
mod log;
mod metrics;
pub mod operator;

pub use agent::{AgentFailure, AgentSettings, PoolAgent, give_back};
pub use log::log_steps;
pub use metrics::AgentMetrics;
