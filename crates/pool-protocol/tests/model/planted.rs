//! Errors in the protocol that the model has to find. Each is what an earlier or a simpler design would have been.

use cnikit_pool::{BlockState, KeyOfEngine, NodeState, StaticRecord, UnheldRecord, read_record};
use cnikit_pool_protocol::{
    BlockChange, ChangeKind, Execution, Guard, HeldBlock, KeyRequest, MemoryStore, NodeView, Step, Survey, Transaction,
    WriteOperation, plan,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A block is deleted whatever its epoch.
    DeletionWithoutEpoch,
    /// A fenced incarnation can still claim and renew.
    ClaimWithoutFence,
    /// A sealed block serves again because it was seen to be there, without being written.
    UnsealByReading,
    /// The boot is recorded before the blocks of the boot before are unconfirmed.
    BootFirst,
    /// A block is deleted without having been sealed first.
    ReleaseWithoutSeal,
    /// A fenced node has a new incarnation at once, and keeps its blocks.
    NewIncarnationAtOnce,
    /// The agent does not ask whether its incarnation was fenced.
    FenceIgnored,
    /// A claim that the engine refuses is taken for one that it has executed before.
    ClaimOfTaken,
    /// What a node gives back of a name is deleted, as any other address.
    NameForgotten,
    /// A name takes its address from whoever has it.
    NameTakesHeld,
    /// The files are never compared with the engine, so that what a crash lost is not found.
    NoAdoption,
    /// Of a transaction that is executed one key at a time, the other guards are not read.
    NoCheck,
    /// They are read before the writes and not after them.
    CheckBeforeWrite,
    /// What a refused transaction has created is deleted whatever its revision.
    UndoWithoutRevision,
    /// A definition counts before the blocks were listed.
    DefinitionWithoutMark,
}

impl Planted {
    pub(crate) fn steps(self, view: &NodeView, survey: &Survey, steps: Vec<Step>) -> Vec<Step> {
        match self {
            Planted::BootFirst => {
                let (first, rest) = steps.into_iter().partition(|step| *step == Step::RecordBoot);
                let (mut first, rest): (Vec<Step>, Vec<Step>) = (first, rest);
                first.extend(rest);
                first
            }
            Planted::NewIncarnationAtOnce if view.state == NodeState::Fenced => vec![Step::NewIncarnation],
            Planted::FenceIgnored => plan(view, Some(&Survey { is_fenced: false, ..survey.clone() })),
            Planted::NoAdoption => {
                let known = |step: &Step| match step {
                    Step::Renew { id, .. } => view.blocks.iter().any(|block| block.id == *id),
                    _ => true,
                };
                steps.into_iter().filter(known).collect()
            }
            _ => steps.into_iter().map(|step| self.step(view, step)).collect(),
        }
    }

    fn step(self, view: &NodeView, step: Step) -> Step {
        match (self, &step) {
            (Planted::UnsealByReading, Step::Renew { id, network, epoch, .. }) => {
                let is_sealed = |block: &&HeldBlock| block.id == *id && block.state == BlockState::Sealed;
                if view.blocks.iter().find(is_sealed).is_none() {
                    return step;
                }
                let kind = ChangeKind::Activate(*epoch);
                Step::Change(BlockChange { id: id.clone(), network: network.clone(), kind })
            }
            (Planted::ReleaseWithoutSeal, Step::Change(change)) => {
                let ChangeKind::Seal(epoch) = change.kind else { return step };
                Step::Release { id: change.id.clone(), network: change.network.clone(), epoch, held: epoch, left: None }
            }
            _ => step,
        }
    }

    /// A request about one key, of an execution.
    pub(crate) fn request(self, store: &MemoryStore, execution: &Execution, request: KeyRequest) -> KeyRequest {
        match (self, request) {
            (Planted::UndoWithoutRevision, KeyRequest::Delete { key, revision }) if execution.undoes() => {
                let present = store.values.get(&key).map_or(revision, |stored| stored.revision);
                KeyRequest::Delete { key, revision: present }
            }
            (Planted::DefinitionWithoutMark, KeyRequest::Replace { key, revision, is_pending: true, .. }) => {
                let value = execution.transaction().writes[0].value().unwrap_or_default().to_vec();
                KeyRequest::Replace { key, value, revision, is_pending: false }
            }
            (_, request) => request,
        }
    }

    pub(crate) fn transaction(self, mut transaction: Transaction) -> Transaction {
        match self {
            Planted::DeletionWithoutEpoch => {
                let deletes = transaction.writes.iter().any(|write| matches!(write, WriteOperation::Delete(_)));
                if deletes {
                    transaction.guards.clear();
                }
            }
            Planted::ClaimWithoutFence => {
                let is_fence = |guard: &Guard| matches!(guard, Guard::Absent(KeyOfEngine::Fence { .. }));
                transaction.guards.retain(|guard| !is_fence(guard));
            }
            Planted::ClaimOfTaken => {
                let is_block = |guard: &Guard| matches!(guard, Guard::Absent(KeyOfEngine::Block { .. }));
                transaction.guards.retain(|guard| !is_block(guard));
            }
            Planted::NoCheck => {
                let keys: Vec<KeyOfEngine> = transaction.writes.iter().map(|write| write.key().clone()).collect();
                transaction.guards.retain(|guard| guard.key().is_some_and(|key| keys.contains(key)));
            }
            Planted::NameForgotten => {
                for write in &mut transaction.writes {
                    if let WriteOperation::Put(key @ KeyOfEngine::Static { .. }, value) = write
                        && read_record::<UnheldRecord>(value).is_ok()
                        && read_record::<StaticRecord>(value).is_err()
                    {
                        *write = WriteOperation::Delete(key.clone());
                    }
                }
            }
            Planted::NameTakesHeld => {
                let is_address = |guard: &Guard| matches!(guard.key(), Some(KeyOfEngine::Static { .. }));
                let writes =
                    |write: &WriteOperation| matches!(write, WriteOperation::Put(KeyOfEngine::Static { .. }, _));
                if transaction.writes.iter().any(writes) {
                    transaction.guards.retain(|guard| !is_address(guard));
                }
            }
            _ => {}
        }
        transaction
    }
}
