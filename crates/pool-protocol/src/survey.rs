//! What the engine says about a node.

use std::collections::{BTreeMap, BTreeSet};

use cnikit_pool::{BlockRecord, Incarnation, KeyOfEngine, NodeRecord, SessionRecord, read_record};
use serde::de::DeserializeOwned;

use super::view::BlockId;

/// A value of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredValue {
    /// The bytes.
    pub value: Vec<u8>,
    /// The revision of its last write. In a list, that of the definition of a pool that does not count yet is negative: no claim is
    /// made by it. See [`super::Execution`].
    pub revision: i64,
}

impl StoredValue {
    /// The record that it is; `None` if it is not one, as a value that another program wrote.
    pub fn record<T: DeserializeOwned>(&self) -> Option<T> {
        read_record(&self.value).ok()
    }
}

/// A block's value, with the record that it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoundBlock {
    /// The value.
    pub stored: StoredValue,
    /// Its owner; `None` if the value is not a record, and the block belongs to no node.
    pub record: Option<BlockRecord>,
}

impl FoundBlock {
    /// Parses a value.
    pub fn of(stored: StoredValue) -> FoundBlock {
        let record = stored.record();
        FoundBlock { stored, record }
    }

    /// Whether it belongs to this incarnation of the node.
    pub fn is_of(&self, node: &str, incarnation: Incarnation) -> bool {
        self.record.as_ref().is_some_and(|record| record.node == node && record.incarnation == incarnation)
    }
}

/// What the engine has of a node: at one revision, or blocks first and then the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Survey {
    /// The session of the node's name.
    pub session: Option<StoredValue>,
    /// The node's record.
    pub node: Option<StoredValue>,
    /// Whether this incarnation was fenced.
    pub is_fenced: bool,
    /// All blocks and static addresses of this incarnation, and those in the node's files whoever owns them.
    pub blocks: BTreeMap<BlockId, FoundBlock>,
    /// Blocks of this incarnation that neither its files nor a pool have: they are given back.
    pub strays: BTreeMap<BlockId, FoundBlock>,
}

impl Survey {
    /// Sets aside the blocks that neither the node's files nor a pool have.
    pub fn set_strays_aside(&mut self, held: &BTreeSet<BlockId>, is_of_pool: impl Fn(&BlockId) -> bool) {
        let is_known = |id: &BlockId| held.contains(id) || is_of_pool(id);
        let (blocks, strays) = std::mem::take(&mut self.blocks).into_iter().partition(|(id, _)| is_known(id));
        self.blocks = blocks;
        self.strays = strays;
    }

    /// Gathers what concerns a node from values of the engine: its session, its record, its fence, and blocks. `held` are the
    /// blocks in the node's files.
    pub fn gather(
        node: &str,
        incarnation: Incarnation,
        held: &BTreeSet<BlockId>,
        values: impl IntoIterator<Item = (KeyOfEngine, StoredValue)>,
    ) -> Survey {
        let mut survey = Survey::default();
        for (key, stored) in values {
            match &key {
                KeyOfEngine::Session(name) if name == node => survey.session = Some(stored),
                KeyOfEngine::Node(name) if name == node => survey.node = Some(stored),
                KeyOfEngine::Fence { node: name, incarnation: fenced } if name == node && *fenced == incarnation => {
                    survey.is_fenced = true;
                }
                KeyOfEngine::Block { .. } | KeyOfEngine::Static { .. } => {
                    let Some(id) = BlockId::of_key(&key) else { continue };
                    let found = FoundBlock::of(stored);
                    if held.contains(&id) || found.is_of(node, incarnation) {
                        survey.blocks.insert(id, found);
                    }
                }
                _ => {}
            }
        }
        survey
    }

    /// Whose session it is.
    pub fn session_record(&self) -> Option<SessionRecord> {
        self.session.as_ref()?.record()
    }

    /// Which incarnation may claim.
    pub fn node_record(&self) -> Option<NodeRecord> {
        self.node.as_ref()?.record()
    }
}
