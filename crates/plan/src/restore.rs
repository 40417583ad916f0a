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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fmt;
    use std::rc::Rc;

    use cnikit_skel::{Error, code};
    use cnikit_types::CniResult;

    use super::*;
    use crate::context::tests::applying;
    use crate::restore_batch::BatchPart;
    use crate::{Drifts, Kind, Made};

    type Deeds = Rc<RefCell<Vec<String>>>;

    /// A resource that is restored separately, or fails to be.
    struct Separate {
        name: &'static str,
        fails: bool,
        deeds: Deeds,
    }

    /// A resource for which the batch has this outcome.
    struct Batched {
        separate: Separate,
        outcome: RestoreOutcome,
    }

    #[derive(Default)]
    struct Outcomes(Vec<RestoreOutcome>);

    impl BatchPart for Outcomes {
        fn make(self: Box<Self>) -> Vec<RestoreOutcome> {
            self.0
        }
    }

    impl Resource for Separate {
        fn kind(&self) -> Kind {
            Kind::goes_with_link("rule")
        }

        fn ensure(&self, _: &ApplyContext, _: &mut Journal) -> Result<Made> {
            Ok(Made::nothing())
        }

        fn restore(&self, _: &ApplyContext, journal: &mut Journal) -> Result<()> {
            self.deeds.borrow_mut().push(format!("{} restored", self.name));
            if self.fails {
                return Err(Error::new(code::SYSTEM, "no"));
            }
            let deeds = Rc::clone(&self.deeds);
            let _undo = journal.undo(&self.name, move |name| {
                deeds.borrow_mut().push(format!("{name} undone"));
                Ok::<(), Error>(())
            });
            Ok(())
        }

        fn verify(&self, _: &ApplyContext, _: &mut Drifts) -> Result<()> {
            Ok(())
        }
    }

    impl fmt::Display for Separate {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.name)
        }
    }

    impl Resource for Batched {
        fn kind(&self) -> Kind {
            self.separate.kind()
        }

        fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
            self.separate.ensure(context, journal)
        }

        fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
            self.separate.restore(context, journal)
        }

        fn enqueue(&self, _: &ApplyContext, batch: &mut RestoreBatch) -> Result<bool> {
            batch.add(|part: &mut Outcomes| {
                part.0.push(self.outcome);
                Ok(())
            })?;
            Ok(true)
        }

        fn finish_batch(&self, _: &ApplyContext, made: bool, _: &mut Journal) -> Result<()> {
            self.separate.deeds.borrow_mut().push(format!("{} finished, made: {made}", self.separate.name));
            if self.separate.fails { Err(Error::new(code::SYSTEM, "no")) } else { Ok(()) }
        }

        fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
            self.separate.verify(context, drifts)
        }
    }

    impl fmt::Display for Batched {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.separate.fmt(f)
        }
    }

    fn separate(name: &'static str, deeds: &Deeds) -> Separate {
        Separate { name, fails: false, deeds: Rc::clone(deeds) }
    }

    fn batched(name: &'static str, outcome: RestoreOutcome, deeds: &Deeds) -> Batched {
        Batched { separate: separate(name, deeds), outcome }
    }

    fn failing(name: &'static str, deeds: &Deeds) -> Separate {
        Separate { fails: true, ..separate(name, deeds) }
    }

    fn of(plan: Plan) -> (Vec<Plan>, ApplyContext) {
        (vec![plan], applying(CniResult::default()))
    }

    #[test]
    fn one_attachment_is_restored_as_far_as_possible() {
        let deeds = Deeds::default();
        let first = Plan::of(failing("a", &deeds)).and(separate("b", &deeds));
        let second = Plan::of(failing("c", &deeds));
        let mut journal = Journal::default();
        let error = restore(&[&first, &second], &applying(CniResult::default()), &mut journal).unwrap_err();
        assert_eq!(error.to_string(), "a: no; also: c: no");
        assert_eq!(*deeds.borrow(), ["a restored", "b restored", "c restored"]);
        assert_eq!(restore(&[], &applying(CniResult::default()), &mut journal), Ok(()));
    }

    #[test]
    fn what_the_batch_has_not_made_is_restored_separately() {
        let deeds = Deeds::default();
        let first = Plan::of(batched("made", RestoreOutcome::Made, &deeds))
            .and(batched("unchanged", RestoreOutcome::Unchanged, &deeds))
            .and(separate("apart", &deeds));
        let second = Plan::of(batched("left", RestoreOutcome::Left, &deeds));
        assert_eq!(restore_all(vec![Ok(of(first)), Ok(of(second))]), [Ok(()), Ok(())]);
        let expected =
            ["made finished, made: true", "unchanged finished, made: false", "apart restored", "left restored"];
        assert_eq!(*deeds.borrow(), expected);
    }

    #[test]
    fn the_failure_of_one_attachment_is_reported_for_it_alone_and_undoes_only_its_own() {
        let deeds = Deeds::default();
        let half = Plan::of(separate("half", &deeds))
            .and(Batched { separate: failing("failed", &deeds), outcome: RestoreOutcome::Made });
        let whole = Plan::of(separate("whole", &deeds));
        let results = restore_all(vec![Err(Error::new(code::SYSTEM, "no plan")), Ok(of(half)), Ok(of(whole))]);
        let texts: Vec<String> = results.into_iter().map(|result| format!("{result:?}")).collect();
        assert!(texts[0].contains("no plan"), "{texts:?}");
        assert!(texts[1].contains("failed: no"), "{texts:?}");
        assert_eq!(texts[2], "Ok(())");
        let expected = ["half restored", "failed finished, made: true", "half undone", "whole restored"];
        assert_eq!(*deeds.borrow(), expected);
    }
}
