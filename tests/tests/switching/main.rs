//! A node with twenty running containers goes from upstream's plugins, or from an earlier release of cnikit, to this release by
//! each way to install it, and back: traffic flows, others start and end meanwhile, and no ADD or DEL fails.
//! `scripts/test packages` starts it.
//!
//! A run takes some of them by chance; with `CNIKIT_CAMPAIGNS=whole` all. The earlier release is commit b2fe807; in a clone without
//! history it cannot be built, and those tests are reported as not run.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what was not run is part of what a test program says")]

mod ways;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cnikit_testkit::campaign::sample;
use cnikit_tests::earlier;
use cnikit_tests::release_files::file;
use cnikit_tests::switched::{SwitchedNode, execute_until};
use libtest_mimic::{Arguments, Completion, Trial};

use ways::{Machine, RPM, WAYS, Way};

/// What is on the node at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Upstream's newest release.
    Upstream,
    /// Hard links to one file, as the earlier release was installed.
    Earlier,
}

/// How many of the ways a run takes that does not take all.
const SOME: usize = 4;

fn main() -> ExitCode {
    let has_earlier = earlier().join(".complete").exists();
    let mut cases = Vec::new();
    for way in WAYS.into_iter().filter(|way| way.is_made()) {
        cases.extend([(Before::Upstream, way), (Before::Earlier, way)]);
    }
    let mut trials: Vec<Trial> = sample("switching", cases, SOME)
        .into_iter()
        .map(|(before, way)| {
            let from = if before == Before::Upstream { "upstream" } else { "the_earlier_release" };
            Trial::ignorable_test(format!("a_node_in_use::from_{from}_by_{}_and_back", way.name()), move || {
                if before == Before::Earlier && !has_earlier {
                    return Ok(Completion::ignored_with("needs the history of the repository"));
                }
                there_and_back(before, way);
                Ok(Completion::Completed)
            })
        })
        .collect();
    if !has_earlier {
        let unknown = trials.iter().filter(|trial| trial.name().contains("earlier")).count();
        println!("releases: {unknown} not run here for want of b2fe807\n");
    }
    if Way::Rpm.is_made() {
        trials.push(Trial::test("an_rpm_is_upgraded_downgraded_and_removed", || {
            upgrade_rpm();
            Ok(())
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A plugin is executed meanwhile, and is always there.
fn upgrade_rpm() {
    let machine = Machine::new(Way::Rpm);
    let [own, newer] = [0, 1].map(|which| file(which, RPM, ".x86_64.rpm"));
    machine.place_upstream();
    let upstream = machine.bytes_of("bridge");
    machine.rpm(&format!("--install '{}'", own.display()));
    let plugin = machine.root().join("opt/cni/bin/bridge");
    let stop = AtomicBool::new(false);
    let (times, failures) = thread::scope(|scope| {
        let busy = scope.spawn(|| execute_until(&plugin, &stop));
        machine.rpm(&format!("--upgrade '{}'", newer.display()));
        machine.rpm(&format!("--upgrade --oldpackage '{}'", own.display()));
        let is_whole = machine.has_this_release();
        machine.rpm("--erase cnikit");
        stop.store(true, Ordering::Relaxed);
        assert!(is_whole);
        busy.join().unwrap()
    });
    assert_eq!(failures, Vec::<String>::new());
    assert!(times > 0);
    assert!(machine.bytes_of("bridge") == upstream);
    for path in ["usr/bin/cnitool", "usr/lib/cnikit", "usr/share/doc/cnikit"] {
        assert!(!machine.root().join(path).exists(), "{path} is left");
    }
}

fn there_and_back(before: Before, way: Way) {
    let machine = Machine::new(way);
    match before {
        Before::Upstream => machine.place_upstream(),
        Before::Earlier => machine.place_earlier(),
    }
    let first = machine.bytes_of("bridge");
    let node = SwitchedNode::new(machine.root(), way.plugins());
    // tar removes a file before it writes the one of the same name: docs/packages.md.
    let exchange = |exchange: &dyn Fn() -> String| match way {
        Way::UntarOver => node.exchange_between_calls(exchange),
        _ => node.exchange(exchange),
    };
    let printed = exchange(&|| machine.install());
    assert!(machine.has_this_release(), "{printed}");
    let printed = match before {
        Before::Upstream => exchange(&|| machine.back_to_upstream()),
        Before::Earlier => exchange(&|| machine.back_to_earlier()),
    };
    match before {
        Before::Upstream => assert!(machine.bytes_of("bridge") == first, "{printed}"),
        Before::Earlier => assert!(machine.bytes_of("cni-plugins") == first, "{printed}"),
    }
    node.end();
}
