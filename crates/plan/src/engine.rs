//! Carries plans out, and walks kinds. It knows no kind.

use cnikit_skel::{Error, Errors, Journal, Result, code, log};

use crate::list::Plan;
use crate::resource::{Drifts, Kind, Made};
use crate::scene::{Remains, Scene, Stale};

/// Refuses a plan before anything is touched: one that could not be undone, and one with something in its way.
pub fn judge(plan: &Plan, kinds: &[Kind], scene: &Scene) -> Result<()> {
    listed(plan, kinds)?;
    plan.iter().try_for_each(|resource| resource.judge(scene).map_err(|error| error.while_doing(resource)))
}

/// Makes a plan true, resource by resource.
pub fn apply(plan: &Plan, scene: &Scene, journal: &mut Journal) -> Result<Made> {
    let mut made = Made::nothing();
    for resource in plan.iter() {
        let one = log::step(resource, || resource.ensure(scene, journal));
        made.interfaces.extend(one.map_err(|error| error.while_doing(resource))?.interfaces);
    }
    Ok(made)
}

/// Compares plans with what is: one error that names every difference (code 102).
pub fn verify(plans: &[&Plan], scene: &Scene) -> Result<()> {
    let (mut drifts, mut errors) = (Drifts::default(), Errors::default());
    for resource in plans.iter().flat_map(|plan| plan.iter()) {
        errors.note(resource.verify(scene, &mut drifts).map_err(|error| error.while_doing(resource)));
    }
    if !drifts.texts().is_empty() {
        let drifted = Error::new(code::DRIFT, drifts.texts().join("; "));
        errors.note(Err(drifted.remedy("something changed it after ADD: DEL and ADD make it anew")));
    }
    errors.finish()
}

/// Removes what belongs to one attachment, the kind listed last first, every kind whatever failed before.
pub fn release(kinds: &[Kind], remains: &Remains) -> Errors {
    let step = |kind: &Kind| {
        let released = log::step(format_args!("release {}", kind.name), || (kind.release)(remains));
        released.map_err(|error| error.while_doing(format_args!("release {}", kind.name)))
    };
    kinds.iter().rev().map(step).collect()
}

/// Removes what belongs to no valid attachment, as [`release`] does.
pub fn sweep(kinds: &[Kind], stale: &Stale) -> Errors {
    let step = |kind: &Kind| {
        let swept = log::step(format_args!("sweep {}", kind.name), || (kind.sweep)(stale));
        swept.map_err(|error| error.while_doing(format_args!("sweep {}", kind.name)))
    };
    kinds.iter().rev().map(step).collect()
}

/// A kind that outlives the link and is not listed would never be removed; one that stands twice has one tag for two
/// things. Both are mistakes of the plugin's author, and are said on the first ADD.
fn listed(plan: &Plan, kinds: &[Kind]) -> Result<()> {
    let lasting: Vec<Kind> = plan.iter().map(|resource| resource.kind()).filter(|kind| kind.outlives_link).collect();
    for (place, kind) in lasting.iter().enumerate() {
        let fault = if !kinds.contains(kind) {
            "is not listed in KINDS, so DEL would leave it behind"
        } else if lasting[..place].contains(kind) {
            "stands twice in the plan, but its tag can tell only one"
        } else {
            continue;
        };
        return Err(Error::new(code::DEFECT, format!("defect in the plugin: {} {fault}", kind.name)));
    }
    Ok(())
}
