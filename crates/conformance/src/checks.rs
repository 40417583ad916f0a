//! The table of tests.

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;
use cnikit::Version;
use cnikit_testkit::life::DelInput;
use cnikit_testkit::parallel::catch_panic;
use cnikit_testkit::{errno, flood, kill, life, protocol, transcripts};

use crate::case::{Case, Kind};
use crate::report::{CheckResult, Outcome};

/// How much a test asks of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// What the specification says that a plugin must do.
    Specification,
    /// What it says that a plugin should do, and what runtimes rely on after a failure.
    Robust,
    /// Nothing is left or refused whatever fails.
    Excellent,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Specification => "specification",
            Level::Robust => "robust",
            Level::Excellent => "excellent",
        })
    }
}

/// A test.
pub(crate) struct Check {
    /// Its name on the command line.
    pub id: &'static str,
    /// Its level.
    pub level: Level,
    /// What holds if it passes.
    pub title: &'static str,
    /// The sentence of the specification that a finding breaks, with its section; or where the demand comes from.
    pub source: &'static str,
    /// Whether a chain is tested as a whole, so that a finding may be another plugin's.
    is_of_chain: bool,
    /// Whether it disturbs a sample of calls, which takes minutes.
    is_campaign: bool,
    /// The reason why it does not apply to a plugin.
    skip: fn(&Case) -> Option<&'static str>,
    /// Panics with what it finds.
    work: fn(&Case),
}

impl Check {
    /// Runs the test, unless it does not apply, or is a campaign that is not wanted.
    pub(crate) fn run(&'static self, case: &Case, runs_campaigns: bool) -> CheckResult {
        let started = Instant::now();
        let reason = match &case.kind {
            Err(_) if self.id != ADD && self.id != VERSION => Some(NO_ADD),
            _ if self.is_campaign && !runs_campaigns => Some(NOT_WANTED),
            _ => (self.skip)(case),
        };
        let outcome = match reason {
            Some(reason) => Outcome::Skipped(reason),
            None => self.outcome(case),
        };
        CheckResult { check: self, outcome, seconds: started.elapsed().as_secs_f64() }
    }

    /// What the test finds. A finding of a chain is the plugin's only if the plugins before it do not have it without it.
    fn outcome(&self, case: &Case) -> Outcome {
        let found = |case: &Case| catch_panic(|| (self.work)(case)).err();
        let Some(text) = found(case) else { return Outcome::Passed };
        let is_of_others = self.is_of_chain && case.without_last().is_some_and(|shorter| found(&shorter).is_some());
        if is_of_others { Outcome::Skipped(OF_OTHERS) } else { Outcome::Failed(text) }
    }
}

/// The reason to skip all but two tests.
pub(crate) const NO_ADD: &str = "ADD fails";
/// The reason to skip a campaign.
const NOT_WANTED: &str = "the campaigns are not run (--campaigns)";
/// The reasons after which it is not known whether the plugin passes the test.
pub(crate) const UNKNOWN: [&str; 2] = [NO_ADD, NOT_WANTED];
/// The reason if the finding is not about the plugin.
const OF_OTHERS: &str = "the plugins before it alone fail it too";

/// The tests without which no other makes sense.
const VERSION: &str = "version";
const ADD: &str = "add";

/// Containers that are attached at once: as many as on a very busy node.
const AT_ONCE: usize = 64;

fn always(_: &Case) -> Option<&'static str> {
    None
}

fn needs_own_interface(case: &Case) -> Option<&'static str> {
    if case.shorter.is_some() {
        return Some("another plugin of the chain makes the interface");
    }
    (case.kind != Ok(Kind::Interface)).then_some("its result does not have the interface of the call")
}

/// A list is not a plugin: its runtime refuses bad requests.
fn needs_plugin(case: &Case) -> Option<&'static str> {
    case.is_list().then_some("a list without --plugin has no errors of its own")
}

fn needs_chain(case: &Case) -> Option<&'static str> {
    case.shorter.is_none().then_some("there are no plugins before it (--chain)")
}

fn needs_check(case: &Case) -> Option<&'static str> {
    (!case.subject.speaks(Version::V0_4_0)).then_some("CHECK needs version 0.4.0")
}

fn needs_gc(case: &Case) -> Option<&'static str> {
    (!case.subject.speaks(Version::V1_1_0)).then_some("GC and STATUS need version 1.1.0")
}

/// What GC finds by the interface, it cannot find of `lo`.
fn needs_gc_of_own(case: &Case) -> Option<&'static str> {
    let is_other = case.kind == Ok(Kind::OtherInterface);
    needs_gc(case).or_else(|| is_other.then_some("it makes no interface, and allocates nothing"))
}

fn notices(case: &Case) -> Option<&'static str> {
    needs_check(case).or_else(|| needs_own_interface(case))
}

/// The tests, in the order in which they run.
pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: VERSION,
        level: Level::Specification,
        title: "VERSION lists the supported versions, with that of the configuration",
        source: "CNI 1.0.0, section 2, VERSION: \"The plugin should output via standard-out a json-serialized version result object\"",
        is_of_chain: false,
        is_campaign: false,
        skip: always,
        work: |case| protocol::reports_versions(&case.subject),
    },
    Check {
        id: ADD,
        level: Level::Specification,
        title: "ADD succeeds, and its result says what is in the container",
        source: "CNI 1.0.0, section 2, ADD: \"If the CNI plugin is successful, it must output a result structure (see below) on standard out.\"",
        is_of_chain: false,
        is_campaign: false,
        skip: always,
        work: |case| match &case.kind {
            Ok(_) => protocol::results_are_true(&case.subject),
            Err(found) => panic!("ADD fails, so little can be tested: {found}"),
        },
    },
    Check {
        id: "silent",
        level: Level::Specification,
        title: "CHECK passes after ADD, DEL succeeds twice, and neither prints anything",
        source: "CNI 1.0.0, section 2, DEL: \"Plugins MUST accept multiple DEL calls for the same (CNI_CONTAINERID, CNI_IFNAME) pair, and return success if the interface in question, or any modifications added, are missing.\"",
        is_of_chain: true,
        is_campaign: false,
        skip: always,
        work: |case| protocol::prints_nothing_but_results(&case.subject),
    },
    Check {
        id: "convert",
        level: Level::Specification,
        title: "in every supported version the result has the form of that version, and others are refused",
        source: "CNI 1.0.0, section 5: cniVersion is \"The same version supplied on input\"; code 1: \"Incompatible CNI version\"",
        is_of_chain: true,
        is_campaign: false,
        skip: always,
        work: |case| protocol::converts_results(&case.subject),
    },
    Check {
        id: "errors",
        level: Level::Specification,
        title: "a bad request is refused with one error object and the code of the specification",
        source: "CNI 1.0.0, section 2, Errors: \"A plugin must exit with a return code of 0 on success, and non-zero on failure.\"; section 5 has the object and the codes",
        is_of_chain: false,
        is_campaign: false,
        skip: needs_plugin,
        work: |case| {
            // A chained plugin may have all its work on the host.
            let enters = case.last.is_none() && case.kind != Ok(Kind::Ipam);
            protocol::refuses_bad_requests(case.last.as_ref().unwrap_or(&case.subject), enters);
        },
    },
    Check {
        id: "existing",
        level: Level::Specification,
        title: "ADD fails if the interface exists, and leaves it as it is",
        source: "CNI 1.0.0, section 2, ADD: \"If an interface of the requested name already exists in the container, the CNI plugin MUST return with an error.\"",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_own_interface,
        work: |case| protocol::refuses_an_existing_interface(&case.subject),
    },
    Check {
        id: "chained",
        level: Level::Specification,
        title: "the result of the plugins before is passed on",
        source: "CNI 1.0.0, section 2, ADD: \"If the plugin was supplied a prevResult as part of its input configuration, it MUST handle prevResult by either passing it through, or modifying it appropriately.\"",
        is_of_chain: false,
        is_campaign: false,
        skip: needs_chain,
        work: |case| case.shorter.iter().for_each(|shorter| protocol::passes_on_results(shorter, &case.subject)),
    },
    Check {
        id: "status",
        level: Level::Specification,
        title: "STATUS succeeds where ADD succeeds",
        source: "CNI 1.1.0, section 2, STATUS: a plugin that is ready to serve ADD exits with 0",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_gc,
        work: |case| protocol::reports_its_status(&case.subject),
    },
    Check {
        id: "gc-valid",
        level: Level::Specification,
        title: "GC changes nothing of attachments that are valid",
        source: "CNI 1.1.0, section 2, GC: only what belongs to attachments that are not in cni.dev/valid-attachments may be removed",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_gc,
        work: |case| protocol::keeps_valid_attachments(&case.subject),
    },
    Check {
        id: "parallel",
        level: Level::Specification,
        title: "64 containers at once: no address twice, every CHECK passes, nothing is left",
        source: "CNI 1.0.0, section 3: \"Plugins must handle being executed concurrently across different containers. If necessary, they must implement locking on shared resources (e.g. IPAM databases).\"",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_check,
        work: |case| flood::survives(&case.subject, AT_ONCE),
    },
    Check {
        id: "trace",
        level: Level::Robust,
        title: "ADD, CHECK and DEL leave nothing, and a second cycle adds nothing",
        source: "CNI 1.0.0, section 2, DEL: a plugin deletes the interface, or undoes \"any modifications applied in the plugin's ADD functionality\"",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_check,
        work: |case| life::leaves_no_trace(&case.subject),
    },
    Check {
        id: "foreign",
        level: Level::Robust,
        title: "links, addresses, rules and files of other programs are not changed",
        source: "a node has other users than this plugin",
        is_of_chain: true,
        is_campaign: false,
        skip: always,
        work: |case| life::leaves_foreign_objects(&case.subject),
    },
    Check {
        id: "del",
        level: Level::Robust,
        title: "DEL succeeds and leaves nothing with incomplete input, twice, and without ADD",
        source: "CNI 1.0.0, section 2, DEL: \"Plugins should generally complete a DEL action without error even if some resources are missing.\"",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_check,
        work: |case| life::survives_dels(&case.subject, DelInput::Incomplete),
    },
    Check {
        id: "tamper",
        level: Level::Robust,
        title: "CHECK fails after the loss of the interface, an address or a route of the result",
        source: "CNI 1.0.0, section 2, CHECK: \"The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in prevResult, but is missing or in an invalid state.\"",
        is_of_chain: true,
        is_campaign: false,
        skip: notices,
        work: |case| protocol::notices_losses(&case.subject),
    },
    Check {
        id: "gc",
        level: Level::Robust,
        title: "GC removes what is left on the host of containers that have gone",
        source: "CNI 1.1.0, section 2, GC: \"Plugins should generally complete a GC action without error. If an error is encountered, a plugin should continue; removing as many resources as possible\"",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_gc_of_own,
        work: |case| life::removes_gone(&case.subject),
    },
    Check {
        id: "kill",
        level: Level::Robust,
        title: "killed before any system call of ADD, DEL or GC: DEL leaves nothing, and the next ADD works",
        source: "CNI 1.0.0, section 3: \"A delete must still be executed even if the add fails.\"",
        is_of_chain: true,
        is_campaign: true,
        skip: needs_check,
        work: |case| drop(kill::at_every_call(&case.subject, case.cases)),
    },
    Check {
        id: "recorded",
        level: Level::Robust,
        title: "recorded calls of containerd and Podman: as they were, truncated, repeated, in another order, killed",
        source: "runtimes repeat, reorder and lose calls when they or the machine fail",
        is_of_chain: true,
        is_campaign: true,
        skip: needs_check,
        work: |case| drop(transcripts::survives(&case.subject, &case.transcripts, case.transcripts.len().min(2))),
    },
    Check {
        id: "roll-back",
        level: Level::Excellent,
        title: "an ADD that fails because the interface exists leaves nothing, also without DEL",
        source: "a runtime may fail before it calls DEL",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_own_interface,
        work: |case| protocol::rolls_back(&case.subject),
    },
    Check {
        id: "del-wrong",
        level: Level::Excellent,
        title: "DEL with the namespace of another container, or with values of another type, does its work and no harm",
        source: "a path of a process leads to another container when the number of the process is used again",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_check,
        work: |case| life::survives_dels(&case.subject, DelInput::Wrong),
    },
    Check {
        id: "gc-running",
        level: Level::Excellent,
        title: "GC removes attachments that are not valid, although their containers run",
        source: "a container may outlive what its runtime knows of it",
        is_of_chain: true,
        is_campaign: false,
        skip: needs_gc_of_own,
        work: |case| life::removes_invalid(&case.subject),
    },
    Check {
        id: "fault",
        level: Level::Excellent,
        title: "if any system call fails once, ADD succeeds or says why and leaves nothing; DEL and GC can be repeated",
        source: "CNI 1.0.0, section 2, Errors: \"If the plugin encounters an error, it should output an \\\"error\\\" result structure\"",
        is_of_chain: true,
        is_campaign: true,
        skip: needs_check,
        work: |case| drop(errno::at_every_call(&case.subject, case.cases)),
    },
    Check {
        id: "terminate",
        level: Level::Excellent,
        title: "SIGTERM at any moment: DEL leaves nothing, and the next ADD works",
        source: "a runtime ends a plugin that takes too long",
        is_of_chain: true,
        is_campaign: true,
        skip: needs_check,
        work: |case| drop(kill::at_moments(&case.subject, case.cases)),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_test_has_a_name_of_its_own_and_levels_ascend() {
        let names: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
        assert_eq!(names.len(), CHECKS.len());
        assert!(CHECKS.is_sorted_by_key(|check| check.level));
    }
}
