//! What the IPAM plugin `pool` and its agent share.
//!
//! A pool is a set of ranges that many nodes allocate addresses from. It is cut into blocks. An engine, such as etcd, records which
//! node owns a block; the files of that node record who holds an address of it. Nothing else decides.
//!
//! Parts, in reading order:
//!
//! - [`PoolDefinition`]: a pool, and its blocks by number.
//! - [`EngineKeys`] and the records: what the engine stores.
//! - [`NodeFiles`]: the files of a node.
//! - [`pool_usage`]: how much of the node's blocks is in use.
//! - [`ask_agent`], [`tell_agent`] and [`AgentListener`]: the messages between the plugin and the agent.
//!
//! Nothing here does input or output through a network: the agent alone speaks with the engine.
#![forbid(unsafe_code)]

mod definition;
mod error;
mod give_back;
mod local;
mod message;
mod record;
mod usage;

pub use definition::{
    AfterBoot, BlockOrder, PoolBlock, PoolConfig, PoolDefinition, PoolFamily, PoolRangeConfig, check_pool_name,
};
pub use error::Error;
pub use give_back::start_give_back;
pub use local::{
    LONGEST_NETWORK, LocalBlock, LocalNode, LocalPools, LocalUnused, LockedNetwork, MOST_BLOCKS, NetworkFiles,
    NodeFiles, OpenNodeFiles, UnusedBlock,
};
pub use message::{
    AGENT_SOCKET, AgentCallError, AgentConnection, AgentError, AgentListener, AgentReply, AgentRequest, MESSAGE_LIMIT,
    StickyWant, Want, ask_agent, parse_reply, parse_request, tell_agent,
};
pub use record::{
    BlockRecord, BlockState, EngineKeys, FenceRecord, Incarnation, KeyOfEngine, NodeRecord, NodeState, SessionRecord,
    StaticRecord, StickyRecord, UnheldRecord, UsageRecord, VALUE_LIMIT, check_namespace, check_node_name, read_record,
    write_record,
};
pub use usage::{PoolUsage, pool_usage};
