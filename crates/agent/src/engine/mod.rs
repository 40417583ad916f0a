//! Engines, which record the blocks of all nodes.

mod memory;

pub use memory::MemoryStore;
