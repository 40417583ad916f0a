//! Revisions are compared and never counted, so worlds that differ in the numbers alone are one: each is renumbered by rank.

use cnikit_pool_protocol::{ChangeKind, Guard, Outcome, Standing, Step, Transaction};

use crate::machine::{Late, Process};
use crate::world::World;

/// Calls a function with each revision of a world, and puts what it returns in its place.
fn visit(world: &mut World, call: &mut dyn FnMut(i64) -> i64) {
    for stored in world.store.values.values_mut() {
        stored.revision = call(stored.revision);
    }
    for late in &mut world.late {
        match late {
            Late::Transaction(transaction) => visit_transaction(transaction, call),
            Late::Request(request) => request.map_revisions(call),
        }
    }
    if let Some(defines) = &mut world.defines {
        defines.map_revisions(call);
    }
    for machine in &mut world.machines {
        machine.view.session = call(machine.view.session);
        for revision in machine.view.pools.values_mut() {
            *revision = call(*revision);
        }
        for block in &mut machine.view.blocks {
            block.epoch = call(block.epoch);
        }
        match &mut machine.process {
            Process::Down | Process::Idle => {}
            Process::Surveying(values) => {
                for (_, stored) in values {
                    stored.revision = call(stored.revision);
                }
            }
            Process::Planned(steps) => steps.iter_mut().for_each(|step| visit_step(step, call)),
            Process::Asked(step, transaction, rest) => {
                visit_step(step, call);
                visit_transaction(transaction, call);
                rest.iter_mut().for_each(|step| visit_step(step, call));
            }
            Process::Executing(step, execution, rest, _) => {
                visit_step(step, call);
                execution.map_revisions(call);
                rest.iter_mut().for_each(|step| visit_step(step, call));
            }
            Process::Answered(step, outcome, rest) => {
                visit_step(step, call);
                if let Outcome::Committed(revisions) = outcome {
                    for revision in revisions {
                        *revision = call(*revision);
                    }
                }
                rest.iter_mut().for_each(|step| visit_step(step, call));
            }
        }
    }
}

fn visit_transaction(transaction: &mut Transaction, call: &mut dyn FnMut(i64) -> i64) {
    for guard in &mut transaction.guards {
        if let Guard::Unchanged(_, revision) | Guard::NoneSince(_, revision) = guard {
            *revision = call(*revision);
        }
    }
}

fn visit_standing(standing: &mut Standing, call: &mut dyn FnMut(i64) -> i64) {
    standing.session = call(standing.session);
    standing.node = call(standing.node);
}

fn visit_step(step: &mut Step, call: &mut dyn FnMut(i64) -> i64) {
    match step {
        Step::RecordBoot | Step::RecordFence | Step::NewIncarnation | Step::Refused => {}
        Step::Change(change) => match &mut change.kind {
            ChangeKind::Activate(epoch)
            | ChangeKind::Confirm(epoch)
            | ChangeKind::Seal(epoch)
            | ChangeKind::Remove(epoch) => *epoch = call(*epoch),
            ChangeKind::Unconfirm | ChangeKind::Lose => {}
        },
        Step::OpenSession { found } => *found = call(*found),
        Step::Register { session } => *session = call(*session),
        Step::Renew { epoch, standing, .. } => {
            *epoch = call(*epoch);
            visit_standing(standing, call);
        }
        Step::Claim { standing, .. } => visit_standing(standing, call),
        Step::ClaimSticky { transaction, .. } => visit_transaction(transaction, call),
        Step::Discard { epoch, .. } => *epoch = call(*epoch),
        Step::Release { epoch, held, .. } => {
            *epoch = call(*epoch);
            *held = call(*held);
        }
    }
}

/// Numbers the revisions of a world 1, 2, 3 in their order; 0, which means none, stays.
pub(crate) fn renumber(world: &mut World) {
    let mut found = vec![0];
    visit(world, &mut |revision| {
        found.push(revision);
        revision
    });
    found.sort_unstable();
    found.dedup();
    let rank = |rank: usize| i64::try_from(rank).unwrap();
    world.store.revision = rank(found.len());
    if found.last() != Some(&rank(found.len() - 1)) {
        visit(world, &mut |revision| rank(found.binary_search(&revision).unwrap()));
    }
}
