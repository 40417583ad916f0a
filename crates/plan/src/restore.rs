//! RESTORE: make again what other programs have flushed, for one attachment or for many at once.

use std::ops::Range;

use cnikit_skel::{Errors, Journal, Result, each_by_itself, log};

use crate::context::ApplyContext;
use crate::list::Plan;
use crate::resource::Resource;
use crate::restore_batch::{RestoreBatch, RestoreOutcome};

/// Makes again the resources of plans that other programs have flushed. A failed resource does not prevent the following ones.
///
/// # Errors
/// Those of all resources, each named.
pub fn restore(plans: &[&Plan], context: &ApplyContext, journal: &mut Journal) -> Result<()> {
    let mut errors = Errors::default();
    for resource in plans.iter().flat_map(|plan| plan.iter()) {
        errors.note(restore_one(resource, context, journal));
    }
    errors.finish()
}

fn restore_one(resource: &dyn Resource, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
    let restored = log::step(format_args!("restore {resource}"), || resource.restore(context, journal));
    restored.map_err(|error| error.context(resource))
}

/// The plans of one attachment with their context, or the error because of which there are none.
pub type RestorePlan = Result<(Vec<Plan>, ApplyContext)>;

/// For each resource the range of its entries in the batch; `None` if it is restored separately.
type Gathered = Vec<Option<Range<usize>>>;

/// As [`restore`] for many attachments. Returns the outcome of each, in their order.
///
/// Everything that can be made in one batch is made in it. The rest is restored separately, so that a failure of one attachment
/// does not affect the others and is reported for that attachment.
pub fn restore_all(all: Vec<RestorePlan>) -> Vec<Result<()>> {
    let mut batch = RestoreBatch::default();
    let gathered: Vec<Gathered> = all.iter().map(|planned| gather(planned, &mut batch)).collect();
    let outcomes = batch.make();
    let mut results = Vec::new();
    for (planned, entries) in all.into_iter().zip(gathered) {
        results.push(planned.and_then(|(plans, context)| finish(&plans, &context, &entries, &outcomes)));
    }
    results
}

fn resources(plans: &[Plan]) -> impl Iterator<Item = &dyn Resource> {
    plans.iter().flat_map(Plan::iter)
}

fn gather(planned: &RestorePlan, batch: &mut RestoreBatch) -> Gathered {
    let Ok((plans, context)) = planned else { return Vec::new() };
    let mut gathered = Vec::new();
    for resource in resources(plans) {
        let before = batch.len();
        // A resource that cannot be enqueued reports the error when it is restored separately.
        let is_enqueued = resource.enqueue(context, batch).unwrap_or_default();
        gathered.push(is_enqueued.then_some(before..batch.len()));
    }
    gathered
}

/// Completes the resources of one attachment that the batch made, and restores the others separately.
fn finish(plans: &[Plan], context: &ApplyContext, gathered: &Gathered, outcomes: &[RestoreOutcome]) -> Result<()> {
    each_by_itself(|journal| {
        let mut errors = Errors::default();
        for (resource, entries) in resources(plans).zip(gathered) {
            let outcomes = entries.as_ref().map(|entries| &outcomes[entries.clone()]);
            errors.note(finish_one(resource, outcomes, context, journal));
        }
        errors.finish()
    })
}

fn finish_one(
    resource: &dyn Resource,
    outcomes: Option<&[RestoreOutcome]>,
    context: &ApplyContext,
    journal: &mut Journal,
) -> Result<()> {
    match outcomes {
        Some(all) if !all.contains(&RestoreOutcome::Left) => {
            let finished = resource.finish_batch(context, all.contains(&RestoreOutcome::Made), journal);
            finished.map_err(|error| error.context(resource))
        }
        _ => restore_one(resource, context, journal),
    }
}
