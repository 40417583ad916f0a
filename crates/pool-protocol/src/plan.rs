//! What a node does next.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cnikit_pool::{BlockState, LONGEST_NETWORK, MOST_BLOCKS, NodeState, PoolFamily};
use cnikit_types::check_network_name;

use super::sticky::{StickyClaim, left_to_name};
use super::survey::{FoundBlock, Survey};
use super::transaction::Transaction;
use super::view::{BlockChange, BlockId, ChangeKind, HeldBlock, NodeView};

/// One step. Those that ask the engine have a transaction: see [`super::transaction_of`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Write the boot into the node's file: no block is active that was not confirmed in it.
    RecordBoot,
    /// Write into the node's file that it was fenced.
    RecordFence,
    /// Write a new incarnation into the node's file: the fenced one has no block any more.
    NewIncarnation,
    /// Change a block in the files.
    Change(BlockChange),
    /// Create the session in the engine, if it is still what was found.
    OpenSession {
        /// The revision of the session that this one replaces, 0 for none.
        found: i64,
    },
    /// Put this incarnation into the node's record.
    Register {
        /// The revision of the session.
        session: i64,
    },
    /// Write the block's record anew, and have it serve.
    Renew {
        /// The block.
        id: BlockId,
        /// The network.
        network: String,
        /// The record.
        value: Vec<u8>,
        /// The revision that the record must still have.
        epoch: i64,
        /// The session's and the node's revision.
        standing: Standing,
    },
    /// Claim blocks, all or none of them.
    Claim {
        /// The blocks.
        ids: Vec<BlockId>,
        /// The network.
        network: String,
        /// The attachment that a static address is for.
        attachment: Option<String>,
        /// The session's and the node's revision.
        standing: Standing,
    },
    /// Delete the block's record, and forget the block.
    Release {
        /// The block.
        id: BlockId,
        /// The network.
        network: String,
        /// The revision that the record must still have.
        epoch: i64,
        /// The epoch in the files, which may be older if an answer was lost.
        held: i64,
        /// What is written instead of the record, if the address stays with a name.
        left: Option<Vec<u8>>,
    },
    /// Delete the record of a block of this incarnation that its files do not have, and that it cannot adopt.
    Discard {
        /// The block.
        id: BlockId,
        /// The revision that the record must still have.
        epoch: i64,
        /// As of [`Step::Release`].
        left: Option<Vec<u8>>,
    },
    /// Claim the addresses of a name.
    ClaimSticky {
        /// The name.
        claim: StickyClaim,
        /// Its addresses.
        addresses: Vec<IpAddr>,
        /// What makes them this node's: see [`super::decide_sticky`].
        transaction: Transaction,
    },
    /// Another machine has this node's name and a session: this one claims nothing.
    Refused,
}

/// The revisions of the session and of the node's record, which a claim needs unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The session's.
    pub session: i64,
    /// The node's record's.
    pub node: i64,
}

impl Survey {
    /// The revisions that a claim of this node needs unchanged; `None` if it may not claim.
    pub fn standing(&self, view: &NodeView) -> Option<Standing> {
        let has_session = self
            .session_record()
            .is_some_and(|session| session.boot == view.boot && session.incarnation == view.incarnation);
        let is_registered = self.node_record().is_some_and(|node| node.incarnation == view.incarnation);
        if self.is_fenced || !has_session || !is_registered {
            return None;
        }
        Some(Standing { session: self.session.as_ref()?.revision, node: self.node.as_ref()?.revision })
    }
}

/// The steps that follow, in their order; none if there is nothing to do. Without a survey, only those that need none.
pub fn plan(view: &NodeView, survey: Option<&Survey>) -> Vec<Step> {
    if view.recorded_boot != view.boot {
        return new_boot(view);
    }
    let Some(survey) = survey else { return Vec::new() };
    if survey.is_fenced || view.state == NodeState::Fenced {
        return fenced(view, survey);
    }
    let session = survey.session.as_ref().map_or(0, |found| found.revision);
    match survey.session_record() {
        None => return vec![Step::OpenSession { found: session }],
        // Of this boot, but of a process or an incarnation before.
        Some(found) if found.boot == view.boot => {
            if session != view.session || found.incarnation != view.incarnation {
                return vec![Step::OpenSession { found: session }];
            }
        }
        Some(found) => return refused(view, found.incarnation == view.incarnation),
    }
    let Some(standing) = survey.standing(view) else { return vec![Step::Register { session }] };
    let mut steps = Vec::new();
    for block in &view.blocks {
        steps.extend(step_of_block(view, block, survey.blocks.get(&block.id), standing));
    }
    steps.extend(adoptions(view, survey, standing));
    for (id, found) in &survey.strays {
        // Of a pool that is not known, nothing is concluded.
        if view.pools.contains_key(&id.pool) && found.is_of(&view.name, view.incarnation) {
            steps.push(discard(id, found));
        }
    }
    steps.retain(|step| is_of_known_pool(view, step));
    steps
}

/// Whether a step makes no block this node's whose pool the node does not know: the definition is a guard of that.
fn is_of_known_pool(view: &NodeView, step: &Step) -> bool {
    match step {
        Step::Renew { id, .. } => view.pools.contains_key(&id.pool),
        Step::Claim { ids, .. } => ids.iter().all(|id| view.pools.contains_key(&id.pool)),
        _ => true,
    }
}

/// After a boot, no block is active. The node's file names the boot only then: until it does, no active block counts as
/// confirmed.
fn new_boot(view: &NodeView) -> Vec<Step> {
    let active = view.blocks.iter().filter(|block| block.state == BlockState::Active);
    let mut steps: Vec<Step> = active.map(|block| change(block, ChangeKind::Unconfirm)).collect();
    steps.push(Step::RecordBoot);
    steps
}

/// A fenced incarnation serves nothing, keeps the blocks of its containers until they are gone, and then ends.
fn fenced(view: &NodeView, survey: &Survey) -> Vec<Step> {
    if view.state == NodeState::Serving {
        return vec![Step::RecordFence];
    }
    // A claim that was executed after its node was fenced has left these; or the fence has not freed them yet.
    let mut steps = Vec::new();
    for (id, found) in survey.blocks.iter().chain(&survey.strays) {
        let is_held = view.blocks.iter().any(|block| block.id == *id);
        if !is_held && found.is_of(&view.name, view.incarnation) {
            steps.push(discard(id, found));
        }
    }
    if view.blocks.is_empty() && steps.is_empty() {
        return vec![Step::NewIncarnation];
    }
    for block in &view.blocks {
        if block.state != BlockState::Lost {
            steps.push(change(block, ChangeKind::Lose));
        } else if !block.in_use {
            steps.push(change(block, ChangeKind::Remove(block.epoch)));
        }
    }
    steps
}

/// Another machine has the session. One with the same incarnation is a clone, or this one is: then neither knows which of their
/// containers have which addresses, and this one serves no new ones.
fn refused(view: &NodeView, is_clone: bool) -> Vec<Step> {
    let mut steps = vec![Step::Refused];
    if is_clone {
        let active = view.blocks.iter().filter(|block| block.state == BlockState::Active);
        steps.extend(active.map(|block| change(block, ChangeKind::Unconfirm)));
    }
    steps
}

fn discard(id: &BlockId, found: &FoundBlock) -> Step {
    Step::Discard { id: id.clone(), epoch: found.stored.revision, left: left_to_name(&found.stored) }
}

fn change(block: &HeldBlock, kind: ChangeKind) -> Step {
    Step::Change(BlockChange { id: block.id.clone(), network: block.network.clone(), kind })
}

fn step_of_block(view: &NodeView, block: &HeldBlock, found: Option<&FoundBlock>, standing: Standing) -> Option<Step> {
    let Some(found) = found else { return step_of_absent(block, standing) };
    if !found.is_of(&view.name, view.incarnation) {
        return step_of_taken(block);
    }
    let epoch = found.stored.revision;
    let renew = || {
        Some(Step::Renew {
            id: block.id.clone(),
            network: block.network.clone(),
            value: found.stored.value.clone(),
            epoch,
            standing,
        })
    };
    match block.state {
        BlockState::Sealed if is_wanted(view, block) && !block.is_gone => renew(),
        BlockState::Sealed => Some(Step::Release {
            id: block.id.clone(),
            network: block.network.clone(),
            epoch,
            held: block.epoch,
            left: left_to_name(&found.stored),
        }),
        BlockState::Unconfirmed if block.epoch == epoch => Some(change(block, ChangeKind::Confirm(epoch))),
        BlockState::Active if block.epoch == epoch => {
            (block.idle && !block.in_use && may_give_back(view, block)).then(|| change(block, ChangeKind::Seal(epoch)))
        }
        BlockState::Active | BlockState::Unconfirmed | BlockState::Lost => renew(),
    }
}

/// The engine has no record of the block: an operator deleted it, or the engine was restored from an older backup. While containers
/// have its addresses it is claimed again.
fn step_of_absent(block: &HeldBlock, standing: Standing) -> Option<Step> {
    match block.state {
        BlockState::Sealed => Some(change(block, ChangeKind::Remove(block.epoch))),
        _ if block.in_use && !block.id.is_static && !block.is_gone => Some(Step::Claim {
            ids: vec![block.id.clone()],
            network: block.network.clone(),
            attachment: None,
            standing,
        }),
        BlockState::Lost if block.in_use => None,
        BlockState::Lost => Some(change(block, ChangeKind::Remove(block.epoch))),
        BlockState::Active | BlockState::Unconfirmed => Some(change(block, ChangeKind::Lose)),
    }
}

/// Another node has the block.
fn step_of_taken(block: &HeldBlock) -> Option<Step> {
    match block.state {
        BlockState::Lost if block.in_use => None,
        BlockState::Sealed | BlockState::Lost => Some(change(block, ChangeKind::Remove(block.epoch))),
        BlockState::Active | BlockState::Unconfirmed => Some(change(block, ChangeKind::Lose)),
    }
}

fn is_wanted(view: &NodeView, block: &HeldBlock) -> bool {
    view.wanted.contains(&(block.network.clone(), block.id.pool.clone(), block.id.family()))
}

/// Whether the network has another active block of the pool, so that a container that starts soon finds an address. A pool that is
/// to drain needs none.
fn may_give_back(view: &NodeView, block: &HeldBlock) -> bool {
    if block.id.is_static || block.is_closing {
        return true;
    }
    let of_family = |other: &&HeldBlock| {
        other.id != block.id && !other.id.is_static && other.network == block.network && other.id.pool == block.id.pool
    };
    let mut others: BTreeMap<PoolFamily, usize> = BTreeMap::new();
    // Of several idle blocks all but the last one, in the order of the files, are given back.
    for other in view.blocks.iter().filter(of_family) {
        let stays = other.state == BlockState::Active && (!other.idle || other.in_use || other.id > block.id);
        *others.entry(other.id.family()).or_default() += usize::from(stays);
    }
    !is_wanted(view, block) && others.get(&block.id.family()).is_some_and(|count| *count > 0)
}

/// Blocks of this incarnation that the files do not have: a claim whose answer was lost, or a crash between claim and files.
fn adoptions(view: &NodeView, survey: &Survey, standing: Standing) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for block in &view.blocks {
        *counts.entry(&block.network).or_default() += 1;
    }
    for (id, found) in &survey.blocks {
        let is_known = view.blocks.iter().any(|block| block.id == *id);
        if is_known || !found.is_of(&view.name, view.incarnation) {
            continue;
        }
        let Some(record) = &found.record else { continue };
        // It becomes the name of a file: who can write to the engine is not trusted with paths.
        if check_network_name(&record.network).is_err() || record.network.len() > LONGEST_NETWORK {
            continue;
        }
        let count = counts.entry(&record.network).or_default();
        *count += 1;
        if *count > MOST_BLOCKS {
            continue;
        }
        steps.push(Step::Renew {
            id: id.clone(),
            network: record.network.clone(),
            value: found.stored.value.clone(),
            epoch: found.stored.revision,
            standing,
        });
    }
    steps
}
