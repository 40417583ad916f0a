//! The node's own files, as the protocol sees them, and the changes of a block.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use cnikit_pool::{BlockState, Incarnation, KeyOfEngine, LocalBlock, NodeState, PoolDefinition, PoolFamily};
use ipnetwork::IpNetwork;

/// A block or a static address of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    /// The pool.
    pub pool: String,
    /// The addresses.
    pub cidr: IpNetwork,
    /// Whether it is a static address, which has a key of its own.
    pub is_static: bool,
}

impl BlockId {
    /// Its key in the engine.
    pub fn key(&self) -> KeyOfEngine {
        if self.is_static {
            return KeyOfEngine::Static { pool: self.pool.clone(), address: self.cidr.ip() };
        }
        KeyOfEngine::Block { pool: self.pool.clone(), cidr: self.cidr }
    }

    /// The block that a key names; `None` if it names something else.
    pub fn of_key(key: &KeyOfEngine) -> Option<BlockId> {
        match key {
            KeyOfEngine::Block { pool, cidr } => Some(BlockId { pool: pool.clone(), cidr: *cidr, is_static: false }),
            KeyOfEngine::Static { pool, address } => Some(BlockId::of_static(pool, *address)),
            _ => None,
        }
    }

    /// That of a block in the files.
    pub fn of_local(block: &LocalBlock) -> BlockId {
        BlockId { pool: block.pool.clone(), cidr: block.cidr, is_static: block.is_static }
    }

    /// A static address.
    pub fn of_static(pool: &str, address: IpAddr) -> BlockId {
        BlockId { pool: pool.to_owned(), cidr: IpNetwork::from(address), is_static: true }
    }

    /// What has to be claimed for an address of a pool: the static address, or its block. `None` if the pool has it not, or it is
    /// a gateway.
    pub fn of_address(pool: &PoolDefinition, address: IpAddr) -> Option<BlockId> {
        if pool.static_range_of(address).is_some() {
            return Some(BlockId::of_static(pool.name(), address));
        }
        let cidr = pool.block_with(address)?.cidr;
        Some(BlockId { pool: pool.name().to_owned(), cidr, is_static: false })
    }

    /// Its family.
    pub fn family(&self) -> PoolFamily {
        PoolFamily::of(self.cidr.ip())
    }
}

/// `blue 10.8.0.0/26`.
impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pool, self.cidr)
    }
}

/// A block in the node's files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldBlock {
    /// Which one.
    pub id: BlockId,
    /// The network that it serves.
    pub network: String,
    /// The revision of the last write of its key by this node.
    pub epoch: i64,
    /// Its state.
    pub state: BlockState,
    /// Whether a container has an address of it, or one was released a short time ago.
    pub in_use: bool,
    /// Whether it has had no address in use for so long that it can be given back.
    pub idle: bool,
    /// Whether its pool is closed or has no such block any more, so that the last one is given back too.
    pub is_closing: bool,
    /// Whether its pool has no such block any more, so that it is not claimed again.
    pub is_gone: bool,
}

/// The node: its name, its boot and its files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeView {
    /// The name.
    pub name: String,
    /// The boot id of this moment.
    pub boot: String,
    /// The incarnation of the files.
    pub incarnation: Incarnation,
    /// Whether the node allocates addresses.
    pub state: NodeState,
    /// The boot in which the files were confirmed last.
    pub recorded_boot: String,
    /// The revision in which this process of the agent wrote the session, 0 if it did not: the session of a process before ends
    /// with that one's lease.
    pub session: i64,
    /// The pools that the node knows, with the revision of their definition: a block is not claimed by another definition.
    pub pools: BTreeMap<String, i64>,
    /// The blocks.
    pub blocks: Vec<HeldBlock>,
    /// The networks and pools of which more addresses are wanted.
    pub wanted: BTreeSet<(String, String, PoolFamily)>,
}

impl NodeView {
    /// Whether the node has all these blocks, and they serve.
    pub fn has_all_active(&self, ids: &[BlockId]) -> bool {
        let is_active =
            |id: &BlockId| self.blocks.iter().any(|block| block.id == *id && block.state == BlockState::Active);
        ids.iter().all(is_active)
    }

    /// The blocks after a change.
    pub fn apply(&mut self, change: &BlockChange) {
        let at = self.blocks.iter().position(|block| block.id == change.id);
        let current = at.map(|at| &self.blocks[at]);
        let in_use = current.is_some_and(|block| block.in_use);
        match (at, changed(change, current, in_use)) {
            (Some(at), Some(block)) => self.blocks[at] = block,
            (Some(at), None) => drop(self.blocks.remove(at)),
            (None, Some(block)) => self.blocks.push(block),
            (None, None) => {}
        }
        self.blocks.sort_by(|one, other| one.id.cmp(&other.id));
    }
}

/// A change of one block of a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockChange {
    /// The block.
    pub id: BlockId,
    /// The network.
    pub network: String,
    /// The change.
    pub kind: ChangeKind,
}

/// What changes, and for which epoch that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// It serves: the engine has written it in this revision.
    Activate(i64),
    /// It serves again after a reboot: the engine has it, in this revision.
    Confirm(i64),
    /// It serves no longer until it is confirmed.
    Unconfirm,
    /// It is being given back.
    Seal(i64),
    /// It is not this node's any more.
    Lose,
    /// The files forget it.
    Remove(i64),
}

/// The block after a change that was decided earlier; `None` if the files have it no longer. `current` and `in_use` are read under
/// the network's lock: what was decided without it does not count any more if the block has another epoch, or is in use by now.
pub fn changed(change: &BlockChange, current: Option<&HeldBlock>, in_use: bool) -> Option<HeldBlock> {
    let Some(block) = current else {
        let ChangeKind::Activate(epoch) = change.kind else { return None };
        return Some(HeldBlock {
            id: change.id.clone(),
            network: change.network.clone(),
            epoch,
            state: BlockState::Active,
            in_use,
            idle: false,
            is_closing: false,
            is_gone: false,
        });
    };
    let with = |state: BlockState| Some(HeldBlock { state, ..block.clone() });
    match change.kind {
        ChangeKind::Activate(epoch) => Some(HeldBlock { epoch, state: BlockState::Active, ..block.clone() }),
        ChangeKind::Confirm(epoch) if block.state == BlockState::Unconfirmed && block.epoch == epoch => {
            with(BlockState::Active)
        }
        ChangeKind::Unconfirm if block.state == BlockState::Active => with(BlockState::Unconfirmed),
        ChangeKind::Seal(epoch) if block.state == BlockState::Active && block.epoch == epoch && !in_use => {
            with(BlockState::Sealed)
        }
        ChangeKind::Lose => with(BlockState::Lost),
        ChangeKind::Remove(epoch) => {
            let is_closed = matches!(block.state, BlockState::Sealed | BlockState::Lost);
            if is_closed && block.epoch == epoch && !in_use { None } else { current.cloned() }
        }
        ChangeKind::Confirm(_) | ChangeKind::Unconfirm | ChangeKind::Seal(_) => current.cloned(),
    }
}
