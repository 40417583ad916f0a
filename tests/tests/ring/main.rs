//! Tests that declare the features of the kernel that they need, and run on more than one kernel.
//!
//! If a need is not met they are reported as not run, with its name. In the virtual machine (`scripts/test vm`, which sets
//! `CNIKIT_RING=vm`) an unmet need is a failure, unless the machine is meant to lack it: `CNIKIT_LACKS` has the names of such
//! needs, with commas between. `CNIKIT_RING_PART=2/4`: only every fourth test, from the second one on.
//!
//! A module of tests is a `mod` and a word in `main`; a test is a line in its module's `TESTS`.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what was not run is part of what a test program says")]
#![expect(clippy::disallowed_methods, reason = "whether this is the virtual machine is in the environment")]

mod bandwidth;
mod chain;
mod conformance;
mod dhcp;
mod docs;
mod dummy;
mod firewall;
mod host_device;
mod hosts;
mod ipvlan;
mod life;
mod mixed;
mod needs;
mod services;
mod tap;
mod test;
mod vlan;
mod vlan_bridge_faults;
mod vlan_plugin;
mod vrf;
mod vxlan;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use test::Test;

fn main() -> ExitCode {
    let listed = [
        bandwidth::TESTS,
        chain::TESTS,
        conformance::TESTS,
        dhcp::TESTS,
        docs::TESTS,
        dummy::TESTS,
        firewall::TESTS,
        host_device::TESTS,
        hosts::TESTS,
        vlan_bridge_faults::TESTS,
        ipvlan::TESTS,
        life::TESTS,
        mixed::TESTS,
        services::TESTS,
        tap::TESTS,
        vlan::TESTS,
        vlan_plugin::TESTS,
        vrf::TESTS,
        vxlan::TESTS,
    ]
    .concat();
    let tests = [needs::tests(), part_of(listed)].concat();
    let is_vm = std::env::var("CNIKIT_RING").is_ok_and(|ring| ring == "vm");
    let lacks = std::env::var("CNIKIT_LACKS").unwrap_or_default();
    let here = test::Here::new(is_vm.then(|| lacks.split(',').map(str::to_owned).collect()));
    let arguments = Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, tests.into_iter().map(|test| test.trial(&here)).collect());
    if let Some(line) = here.not_run() {
        println!("{line}\n");
    }
    conclusion.exit_code()
}

/// The tests that `CNIKIT_RING_PART` chooses: all, or every nth one, because neighbours in the list take alike long.
fn part_of(tests: Vec<Test>) -> Vec<Test> {
    let Ok(part) = std::env::var("CNIKIT_RING_PART") else { return tests };
    let numbers = part.split_once('/').map(|(n, count)| [n, count].map(str::parse::<usize>));
    match numbers {
        Some([Ok(n @ 1..), Ok(count)]) if n <= count => tests.into_iter().skip(n - 1).step_by(count).collect(),
        _ => panic!("CNIKIT_RING_PART={part}: not such as 2/4"),
    }
}
