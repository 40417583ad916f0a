//! What the IPAM plugin `pool` and its agent share.
//!
//! A pool is a set of ranges that many nodes allocate addresses from. It is cut into blocks. An engine, such as etcd, records which
//! node owns a block; the files of that node record who holds an address of it. Nothing else decides.
//!
//! Parts, in reading order:
//!
//! - [`PoolDefinition`]: a pool, and its blocks by number.
//! - [`EngineKeys`] and the records: what the engine stores.
//!
//! Nothing here does input or output through a network.
#![forbid(unsafe_code)]

mod definition;
mod error;
mod record;

pub use definition::{AfterBoot, BlockOrder, PoolBlock, PoolConfig, PoolDefinition, PoolFamily, PoolRangeConfig};
pub use error::Error;
pub use record::{
    BlockRecord, BlockState, EngineKeys, FenceRecord, Incarnation, KeyOfEngine, NodeRecord, NodeState, SessionRecord,
    StaticRecord, StickyHolder, StickyRecord, VALUE_LIMIT, check_node_name, read_record, write_record,
};
