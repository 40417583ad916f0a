//! Applies and verifies plans, and releases resources by their kinds. It is independent of every particular kind.

use cnikit_skel::{Error, Errors, Journal, Result, code, log};
use cnikit_types::limit;

use crate::context::{ApplyContext, GcContext, ReleaseContext};
use crate::list::Plan;
use crate::resource::{Drifts, Kind, Made, Resource};

/// Checks a plan before anything is changed.
///
/// # Errors
/// A resource's kind is not in `kinds`, so it could not be undone, or the preflight of a resource finds something in its way.
pub fn preflight(plan: &Plan, kinds: &[Kind], context: &ApplyContext) -> Result<()> {
    listed(plan, kinds)?;
    for resource in plan.iter() {
        resource.preflight(context).map_err(|error| match error.code {
            // The check found the reason and names its object. What the system refused has no name of its own.
            code::INVALID_CONFIG | code::CONFLICT => error,
            _ => error.context(resource),
        })?;
    }
    Ok(())
}

/// Makes the resources of a plan, one after another.
///
/// # Errors
/// The first resource that could not be made; the error names it. The journal has the undo steps of those before it, and of the
/// parts of it that were made.
pub fn apply(plan: &Plan, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
    let mut made = Made::nothing();
    for resource in plan.iter() {
        let one = log::step(resource, || resource.ensure(context, journal));
        let one = one.map_err(|error| error.context(resource))?;
        made.interfaces.extend(one.interfaces);
        made.without_link.extend(one.without_link);
    }
    Ok(made)
}

/// Compares the resources of plans with the actual state.
///
/// # Errors
/// One error that names every difference (code 102), and every resource that could not be read.
pub fn verify(plans: &[&Plan], context: &ApplyContext) -> Result<()> {
    let mut drifts = Drifts::default();
    let mut errors = Errors::default();
    for resource in plans.iter().flat_map(|plan| plan.iter()) {
        let kind = resource.kind();
        let before = drifts.texts().len();
        let looked =
            log::step(format_args!("check {}: {resource}", kind.name), || resource.verify(context, &mut drifts));
        errors.note(looked.map_err(|error| error.context(resource)));
        for drift in &drifts.texts()[before..] {
            log::info(format_args!("drift of {}: {resource}: {drift}", kind.name));
        }
    }
    if !drifts.texts().is_empty() {
        let drifted = Error::new(code::DRIFT, limit::first(drifts.texts(), "; "));
        errors.note(Err(drifted.hint("this was changed after ADD: DEL and ADD create it again")));
    }
    errors.finish()
}

/// Removes the resources of one attachment, the last kind first. A failed kind does not prevent the following ones.
pub fn release(kinds: &[Kind], context: &ReleaseContext) -> Errors {
    let mut errors = begin_release(kinds, context);
    errors.note(context.run_deferred().finish());
    errors
}

/// As [`release`], but without the deferred work of the kinds, which [`ReleaseContext::run_deferred`] completes.
pub fn begin_release(kinds: &[Kind], context: &ReleaseContext) -> Errors {
    let step = |kind: &Kind| {
        let released = log::step(format_args!("release {}", kind.name), || (kind.release)(context));
        released.map_err(|error| error.context(format_args!("release {}", kind.name)))
    };
    kinds.iter().rev().map(step).collect()
}

/// Removes the resources of attachments that are not valid, as [`release`] does.
pub fn sweep(kinds: &[Kind], context: &GcContext) -> Errors {
    let step = |kind: &Kind| {
        let swept = log::step(format_args!("sweep {}", kind.name), || (kind.sweep)(context));
        swept.map_err(|error| error.context(format_args!("sweep {}", kind.name)))
    };
    kinds.iter().rev().map(step).collect()
}

/// Checks that `kinds` has each kind of the plan that outlives the link, and that the plan has each such kind only once.
///
/// A kind that is not listed would never be removed, and two resources of one kind cannot be distinguished by the tag. Both are
/// mistakes of the plugin's author, and are reported on the first ADD.
fn listed(plan: &Plan, kinds: &[Kind]) -> Result<()> {
    let lasting: Vec<Kind> = plan.iter().map(Resource::kind).filter(|kind| kind.outlives_link).collect();
    for (place, kind) in lasting.iter().enumerate() {
        let fault = if !kinds.contains(kind) {
            "is not listed in KINDS, so DEL would leave it behind"
        } else if lasting[..place].contains(kind) {
            "is twice in the plan, but its tag identifies only one"
        } else {
            continue;
        };
        return Err(Error::new(code::DEFECT, format!("defect in the plugin: {} {fault}", kind.name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fmt;

    use cnikit_skel::{NetnsLookup, ValidSet};
    use cnikit_types::{CniResult, Interface};

    use super::*;
    use crate::context::tests::{applying, releasing, sweeping};

    const RULES: Kind = Kind { name: "rules", release: |_| Ok(()), sweep: |_| Ok(()), outlives_link: true };
    const ADDRESS: Kind = Kind::goes_with_link("address");

    struct Thing(Kind);

    impl Resource for Thing {
        fn kind(&self) -> Kind {
            self.0
        }

        fn ensure(&self, _: &ApplyContext, _: &mut Journal) -> Result<Made> {
            Ok(Made::nothing())
        }

        fn verify(&self, _: &ApplyContext, _: &mut Drifts) -> Result<()> {
            Ok(())
        }
    }

    impl fmt::Display for Thing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "some {}", self.0.name)
        }
    }

    #[test]
    fn a_kind_that_outlives_the_link_and_is_not_listed_is_the_authors_mistake() {
        let plan = Plan::of(Thing(ADDRESS)).and(Thing(RULES));
        let error = listed(&plan, &[]).unwrap_err();
        assert_eq!(error.code, code::DEFECT);
        assert!(error.msg.contains("rules is not listed in KINDS"), "{error}");
        assert!(listed(&plan, &[LINK]).is_err(), "another kind is listed");
        assert_eq!(listed(&plan, &[LINK, RULES]), Ok(()));
    }

    #[test]
    fn a_tag_can_tell_only_one_of_a_kind_that_outlives_the_link() {
        let twice = Plan::of(Thing(RULES)).and(Thing(RULES));
        assert!(listed(&twice, &[RULES]).unwrap_err().msg.contains("rules is twice"));
        let addresses = Plan::of(Thing(ADDRESS)).and(Thing(ADDRESS));
        assert_eq!(listed(&addresses, &[]), Ok(()));
    }

    #[test]
    fn a_plan_reads_in_the_order_in_which_it_is_carried_out() {
        let plan = Plan::of(Thing(ADDRESS)).and_each(Some(Thing(RULES))).and_each(None::<Thing>);
        assert_eq!(plan.to_string(), "some address\nsome rules\n");
        assert_eq!(plan.with_at(1, Thing(ADDRESS)).lines(), ["some address", "some address", "some rules"]);
    }

    #[test]
    fn every_difference_has_the_wanted_and_the_found_value() {
        let mut drifts = Drifts::default();
        drifts.compare("MTU of eth0", 1500, 1500);
        drifts.compare("MTU of eth0", 1500, 1400);
        drifts.unless(true, || "not noted".into());
        drifts.unless(false, || "noted".into());
        assert_eq!(drifts.texts(), ["MTU of eth0: wanted 1500, found 1400", "noted"]);
    }

    thread_local! {
        /// What was done, in order. Each test has a thread of its own.
        static DEEDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn deed(what: impl Into<String>) {
        DEEDS.with_borrow_mut(|deeds| deeds.push(what.into()));
    }

    /// A resource that notes what is done with it. Each step of it fails with this code, unless that is 0; CHECK finds these
    /// differences.
    struct Noted {
        name: &'static str,
        fails: u32,
        drifts: &'static [&'static str],
    }

    impl Noted {
        fn step(&self, verb: &str) -> Result<()> {
            deed(format!("{verb} {}", self.name));
            if self.fails == 0 { Ok(()) } else { Err(Error::new(self.fails, "no")) }
        }
    }

    impl Resource for Noted {
        fn kind(&self) -> Kind {
            ADDRESS
        }

        fn preflight(&self, _: &ApplyContext) -> Result<()> {
            self.step("look at")
        }

        fn ensure(&self, _: &ApplyContext, _: &mut Journal) -> Result<Made> {
            self.step("make")?;
            let interface = Interface { name: self.name.to_owned(), ..Interface::default() };
            Ok(Made { without_link: vec![interface.clone()], ..Made::one(interface) })
        }

        fn verify(&self, _: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
            drifts.extend(self.drifts.iter().map(|drift| (*drift).to_owned()));
            self.step("compare")
        }
    }

    impl fmt::Display for Noted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the {}", self.name)
        }
    }

    fn good(name: &'static str) -> Noted {
        Noted { name, fails: 0, drifts: &[] }
    }

    fn bad(name: &'static str, fails: u32) -> Noted {
        Noted { name, fails, drifts: &[] }
    }

    #[test]
    fn a_preflight_stops_at_what_is_in_the_way_and_names_what_the_system_refused() {
        let context = applying(CniResult::default());
        assert_eq!(preflight(&Plan::of(good("link")), &[], &context), Ok(()));
        let refused = preflight(&Plan::of(bad("link", code::SYSTEM)).and(good("route")), &[], &context).unwrap_err();
        assert_eq!(refused.to_string(), "the link: no");
        // These errors name the object in the way.
        for code in [code::CONFLICT, code::INVALID_CONFIG] {
            let taken = preflight(&Plan::of(bad("link", code)), &[], &context).unwrap_err();
            assert_eq!((taken.code, taken.to_string().as_str()), (code, "no"));
        }
        assert_eq!(preflight(&Plan::of(Thing(RULES)).and(good("link")), &[], &context).unwrap_err().code, code::DEFECT);
        assert_eq!(DEEDS.take(), ["look at link"; 4]);
    }

    #[test]
    fn resources_are_made_in_their_order_up_to_the_first_that_fails() {
        let context = applying(CniResult::default());
        let made = apply(&Plan::of(good("a")).and(good("b")), &context, &mut Journal::default()).unwrap();
        let names = |interfaces: &[Interface]| interfaces.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&made.interfaces), ["a", "b"]);
        assert_eq!(names(&made.without_link), ["a", "b"]);
        let plan = Plan::of(good("c")).and(bad("d", code::SYSTEM)).and(good("e"));
        let error = apply(&plan, &context, &mut Journal::default()).unwrap_err();
        assert_eq!(error.to_string(), "the d: no");
        assert_eq!(DEEDS.take(), ["make a", "make b", "make c", "make d"]);
    }

    #[test]
    fn a_check_names_every_difference_and_everything_that_cannot_be_read() {
        let context = applying(CniResult::default());
        let same = Plan::of(good("a")).and(good("b"));
        assert_eq!(verify(&[&same], &context), Ok(()));
        let changed = Plan::of(Noted { name: "c", fails: 0, drifts: &["c is down", "c is renamed"] });
        let more = Plan::of(Noted { name: "d", fails: 0, drifts: &["d is down"] });
        let drifted = verify(&[&same, &changed, &more], &context).unwrap_err();
        assert_eq!((drifted.code, drifted.msg.as_str()), (code::DRIFT, "c is down; c is renamed; d is down"));
        let unreadable = Plan::of(bad("e", code::SYSTEM));
        let error = verify(&[&unreadable, &changed], &context).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::SYSTEM, "the e: no"));
        assert!(error.to_string().contains("c is down; c is renamed"), "{error}");
        let read = ["a", "b", "a", "b", "c", "d", "e", "c"].map(|name| format!("compare {name}"));
        assert_eq!(DEEDS.take(), read);
    }

    const LINK: Kind = Kind {
        name: "link",
        release: |_| {
            deed("release link");
            Err(Error::new(code::SYSTEM, "busy"))
        },
        sweep: |_| {
            deed("sweep link");
            Err(Error::new(code::SYSTEM, "busy"))
        },
        outlives_link: true,
    };

    const MAPPINGS: Kind = Kind {
        name: "mappings",
        release: |context| {
            deed("release mappings");
            context.defer("mappings", |_| {
                deed("the rest of mappings");
                Err(Error::new(code::SYSTEM, "no answer"))
            });
            context.defer("flows", |_| {
                deed("the rest of flows");
                Ok(())
            });
            Ok(())
        },
        sweep: |_| {
            deed("sweep mappings");
            Ok(())
        },
        outlives_link: true,
    };

    const ADDRESSES: Kind = Kind {
        name: "addresses",
        release: |_| {
            deed("release addresses");
            Ok(())
        },
        sweep: |_| {
            deed("sweep addresses");
            Ok(())
        },
        outlives_link: true,
    };

    #[test]
    fn a_failed_kind_prevents_neither_the_others_nor_deferred_work() {
        let error = release(&[ADDRESSES, LINK, MAPPINGS], &releasing(NetnsLookup::Gone)).finish().unwrap_err();
        let deeds = DEEDS.take();
        assert_eq!(deeds[..3], ["release mappings", "release link", "release addresses"]);
        assert_eq!(deeds[3..], ["the rest of mappings", "the rest of flows"]);
        assert_eq!(error.to_string(), "release link: busy; also: release mappings: no answer");
        assert!(sweep(&[ADDRESSES, MAPPINGS], &sweeping(ValidSet::default())).is_empty());
        let error = sweep(&[ADDRESSES, LINK, MAPPINGS], &sweeping(ValidSet::default())).finish().unwrap_err();
        assert_eq!(error.to_string(), "sweep link: busy");
        assert_eq!(DEEDS.take()[2..], ["sweep mappings", "sweep link", "sweep addresses"]);
    }

    #[test]
    fn an_empty_plan_has_no_resources() {
        let plan = Plan::default();
        assert_eq!((plan.len(), plan.is_empty(), plan.lines()), (0, true, Vec::new()));
        let plan = Plan::of(good("a")).and(good("b"));
        assert_eq!((plan.len(), plan.is_empty()), (2, false));
    }
}
