//! What a step asks of the engine: writes under guards, all or nothing.

use std::collections::BTreeSet;

use cnikit_pool::{
    BlockRecord, Error, FenceRecord, Incarnation, KeyOfEngine, NodeRecord, SessionRecord, StaticRecord, write_record,
};

use super::plan::{Standing, Step};
use super::sticky::left_to_name;
use super::survey::StoredValue;
use super::view::{BlockChange, BlockId, ChangeKind, NodeView};

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The key does not exist.
    Absent(KeyOfEngine),
    /// The key's last write was in this revision.
    Unchanged(KeyOfEngine, i64),
    /// No key of this part was written after this revision.
    NoneSince(Part, i64),
}

/// A part of the keys that a definition of a pool depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The definitions of all pools.
    Pools,
    /// The blocks of a pool.
    BlocksOf(String),
    /// The static addresses of a pool.
    StaticsOf(String),
}

impl Part {
    /// Whether a key belongs to it.
    pub fn has(&self, key: &KeyOfEngine) -> bool {
        match (self, key) {
            (Part::Pools, KeyOfEngine::Pool(_)) => true,
            (Part::BlocksOf(name), KeyOfEngine::Block { pool, .. })
            | (Part::StaticsOf(name), KeyOfEngine::Static { pool, .. }) => name == pool,
            _ => false,
        }
    }
}

impl Guard {
    /// The key; `None` if it is about several keys.
    pub fn key(&self) -> Option<&KeyOfEngine> {
        match self {
            Guard::Absent(key) | Guard::Unchanged(key, _) => Some(key),
            Guard::NoneSince(..) => None,
        }
    }
}

/// One write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WriteOperation {
    /// Write a value.
    Put(KeyOfEngine, Vec<u8>),
    /// Write a value that goes with the lease of this agent.
    PutLeased(KeyOfEngine, Vec<u8>),
    /// Delete the key.
    Delete(KeyOfEngine),
}

impl WriteOperation {
    /// The key.
    pub fn key(&self) -> &KeyOfEngine {
        match self {
            WriteOperation::Put(key, _) | WriteOperation::PutLeased(key, _) | WriteOperation::Delete(key) => key,
        }
    }

    /// The value; `None` for a deletion.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            WriteOperation::Put(_, value) | WriteOperation::PutLeased(_, value) => Some(value),
            WriteOperation::Delete(_) => None,
        }
    }
}

/// Writes that happen if all guards hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// The guards.
    pub guards: Vec<Guard>,
    /// The writes.
    pub writes: Vec<WriteOperation>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The guards held. Everything was written, in these revisions, one per write and in their order.
    Committed(Vec<i64>),
    /// A guard did not hold. These are the values of the guards' keys, in their order; `None` also for a guard of several keys,
    /// and for what an engine has not read.
    Refused(Vec<Option<StoredValue>>),
}

fn unfenced(view: &NodeView) -> Guard {
    Guard::Absent(KeyOfEngine::Fence { node: view.name.clone(), incarnation: view.incarnation })
}

/// The guards of everything that makes blocks this node's. The last ones are the definitions that the blocks were cut by.
pub(super) fn standing_guards<'a>(
    view: &NodeView,
    standing: Standing,
    ids: impl Iterator<Item = &'a BlockId>,
) -> Vec<Guard> {
    let mut guards = vec![
        Guard::Unchanged(KeyOfEngine::Session(view.name.clone()), standing.session),
        Guard::Unchanged(KeyOfEngine::Node(view.name.clone()), standing.node),
        unfenced(view),
    ];
    let pools: BTreeSet<&String> = ids.map(|id| &id.pool).collect();
    for pool in pools {
        // No key has revision 0: a claim from a pool that the node does not know is refused.
        let revision = view.pools.get(pool).copied().unwrap_or_default();
        guards.push(Guard::Unchanged(KeyOfEngine::Pool(pool.clone()), revision));
    }
    guards
}

/// The transaction of a step; `None` for one that changes the files only.
///
/// # Errors
/// A record would be too long.
pub fn transaction_of(view: &NodeView, step: &Step) -> Result<Option<Transaction>, Error> {
    let transaction = match step {
        Step::RecordBoot | Step::RecordFence | Step::NewIncarnation | Step::Change(_) | Step::Refused => {
            return Ok(None);
        }
        Step::OpenSession { found } => open_session(view, *found)?,
        Step::Register { session } => register(view, *session)?,
        Step::Renew { id, value, epoch, standing, .. } => {
            let mut guards = standing_guards(view, *standing, std::iter::once(id));
            guards.push(Guard::Unchanged(id.key(), *epoch));
            Transaction { guards, writes: vec![WriteOperation::Put(id.key(), value.clone())] }
        }
        Step::Claim { ids, network, attachment, standing } => {
            claim(view, ids, network, attachment.as_deref(), *standing)?
        }
        Step::ClaimSticky { transaction, .. } => transaction.clone(),
        Step::Release { id, epoch, left, .. } | Step::Discard { id, epoch, left } => {
            Transaction { guards: vec![Guard::Unchanged(id.key(), *epoch)], writes: vec![given_up(id, left.clone())] }
        }
    };
    Ok(Some(transaction))
}

fn open_session(view: &NodeView, found: i64) -> Result<Transaction, Error> {
    let key = KeyOfEngine::Session(view.name.clone());
    let record = SessionRecord { boot: view.boot.clone(), incarnation: view.incarnation };
    let guard = if found == 0 { Guard::Absent(key.clone()) } else { Guard::Unchanged(key.clone(), found) };
    Ok(Transaction { guards: vec![guard], writes: vec![WriteOperation::PutLeased(key, write_record(&record)?)] })
}

fn register(view: &NodeView, session: i64) -> Result<Transaction, Error> {
    let record = NodeRecord { incarnation: view.incarnation };
    Ok(Transaction {
        guards: vec![Guard::Unchanged(KeyOfEngine::Session(view.name.clone()), session), unfenced(view)],
        writes: vec![WriteOperation::Put(KeyOfEngine::Node(view.name.clone()), write_record(&record)?)],
    })
}

/// Claims blocks, all or none: both families of an attachment in one transaction.
///
/// # Errors
/// A record would be too long.
pub fn claim(
    view: &NodeView,
    ids: &[BlockId],
    network: &str,
    attachment: Option<&str>,
    standing: Standing,
) -> Result<Transaction, Error> {
    let mut guards = standing_guards(view, standing, ids.iter());
    let mut writes = Vec::new();
    for id in ids {
        guards.push(Guard::Absent(id.key()));
        let value = if id.is_static {
            write_record(&StaticRecord {
                node: view.name.clone(),
                incarnation: view.incarnation,
                network: network.to_owned(),
                attachment: attachment.unwrap_or_default().to_owned(),
                sticky: None,
            })?
        } else {
            write_record(&BlockRecord {
                node: view.name.clone(),
                incarnation: view.incarnation,
                network: network.to_owned(),
            })?
        };
        writes.push(WriteOperation::Put(id.key(), value));
    }
    Ok(Transaction { guards, writes })
}

/// Fences an incarnation of a node: by an operator's word that its containers are gone.
///
/// # Errors
/// The record would be too long.
pub fn fence(node: &str, incarnation: Incarnation, record: &FenceRecord) -> Result<Transaction, Error> {
    let key = KeyOfEngine::Fence { node: node.to_owned(), incarnation };
    Ok(Transaction {
        guards: vec![Guard::Absent(key.clone())],
        writes: vec![WriteOperation::Put(key, write_record(record)?)],
    })
}

/// The write that takes a block from its node: its key is deleted, or left to the name that it stays with.
fn given_up(id: &BlockId, left: Option<Vec<u8>>) -> WriteOperation {
    match left {
        Some(value) => WriteOperation::Put(id.key(), value),
        None => WriteOperation::Delete(id.key()),
    }
}

/// Frees a block of a fenced incarnation. The fence's own revision is a guard, so nothing is freed without it. `found` is the
/// block's record.
pub fn free_fenced(node: &str, incarnation: Incarnation, fence: i64, id: &BlockId, found: &StoredValue) -> Transaction {
    let key = KeyOfEngine::Fence { node: node.to_owned(), incarnation };
    Transaction {
        guards: vec![Guard::Unchanged(key, fence), Guard::Unchanged(id.key(), found.revision)],
        writes: vec![given_up(id, left_to_name(found))],
    }
}

/// What a committed step changes in the files. A refused one changes nothing: the next survey says why.
pub fn settled(step: &Step, outcome: &Outcome) -> Vec<BlockChange> {
    let Outcome::Committed(revisions) = outcome else { return Vec::new() };
    let change = |id: &BlockId, network: &str, kind: ChangeKind| BlockChange {
        id: id.clone(),
        network: network.to_owned(),
        kind,
    };
    match step {
        Step::Renew { id, network, .. } => {
            revisions.first().map(|revision| change(id, network, ChangeKind::Activate(*revision))).into_iter().collect()
        }
        Step::Claim { ids, network, .. } => {
            let activated = |(id, revision): (&BlockId, &i64)| change(id, network, ChangeKind::Activate(*revision));
            ids.iter().zip(revisions).map(activated).collect()
        }
        Step::ClaimSticky { claim, transaction, .. } => {
            let mut changes = Vec::new();
            for (write, revision) in transaction.writes.iter().zip(revisions) {
                if let Some(id) = BlockId::of_key(write.key()) {
                    changes.push(change(&id, &claim.network, ChangeKind::Activate(*revision)));
                }
            }
            changes
        }
        Step::Release { id, network, held, .. } => vec![change(id, network, ChangeKind::Remove(*held))],
        _ => Vec::new(),
    }
}
