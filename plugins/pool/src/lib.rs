//! Allocates addresses of pools that many nodes share.
//!
//! A pool is cut into blocks. An engine, such as etcd, records which node owns a block; the files of that node record who holds an
//! address of it. An agent on the node claims blocks and gives them back; the plugin reads the agent's files, and asks the agent
//! only when the blocks of its network have no free address. So the usual ADD and every DEL do not leave the node.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0",
//!   "name": "pods",
//!   "type": "bridge",
//!   "ipam": { "type": "pool", "pool": "blue", "routes": [{ "dst": "0.0.0.0/0" }] }
//! }
//! ```
//!
//! - ADD takes the address of each family that has been free for the longest time, from the blocks that serve: see [`PoolKeys`] for
//!   the keys under `ipam`. The network's lock is held from reading the blocks to the reservation.
//! - DEL and GC release addresses in whatever state the blocks are, and start their cooldown. CHECK compares.
//! - STATUS fails if this node was fenced, or could not allocate at all. That no address is free is an error of ADD only.
//!
//! The files are those of host-local, and those of [`cnikit_pool::NodeFiles`] beside them.
#![forbid(unsafe_code)]

mod agent;
mod allocation;
mod keys;
mod plugin;
mod refused;
mod sticky;

pub use keys::{DATA_DIR, PoolKeys, PoolPlugin, data_dir};
