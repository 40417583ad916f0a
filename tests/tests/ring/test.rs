//! A test with its needs, and which of them are met here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cnikit_testkit::need::Need;
use libtest_mimic::{Completion, Failed, Trial};

/// A function that panics on failure, and its needs.
#[derive(Clone, Copy)]
pub(crate) struct Test {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(),
}

/// `test!(function)`, `test!(function needs Need::VRF, Need::DUMMY)`: its name is that of its module and of the function.
macro_rules! test {
    ($function:ident $(needs $($need:expr),+)?) => {
        $crate::test::Test {
            module: module_path!(),
            name: stringify!($function),
            needs: &[$($($need),+)?],
            run: $function,
        }
    };
}
pub(crate) use test;

/// The kernel that we run on.
#[derive(Clone)]
pub(crate) struct Here {
    /// What a virtual machine lacks: other needs have to be met, and these must not be. `None`: any need may be unmet.
    lacks: Option<Vec<String>>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// By the name of each need that was probed: the reason why it is not met.
    unmet: BTreeMap<&'static str, Option<String>>,
    not_run: usize,
}

impl Test {
    /// As the harness wants it.
    pub(crate) fn trial(self, here: &Here) -> Trial {
        let here = here.clone();
        let module = self.module.trim_start_matches("ring::");
        Trial::ignorable_test(format!("{module}::{}", self.name), move || here.run(self))
    }
}

impl Here {
    pub(crate) fn new(lacks: Option<Vec<String>>) -> Here {
        Here { lacks, seen: Arc::default() }
    }

    fn run(&self, test: Test) -> Result<Completion, Failed> {
        let unmet: Vec<(&str, String)> =
            test.needs.iter().filter_map(|need| Some((need.name(), self.unmet(need)?))).collect();
        if let Some(lacks) = &self.lacks {
            let is_lacking = |name: &str| lacks.iter().any(|lacking| lacking == name);
            let missing: Vec<&str> =
                unmet.iter().filter(|(name, _)| !is_lacking(name)).map(|(_, why)| &**why).collect();
            if !missing.is_empty() {
                return Err(format!("this machine should have {}", missing.join("\n")).into());
            }
            let met = |need: &&Need| is_lacking(need.name()) && unmet.iter().all(|(name, _)| *name != need.name());
            if let Some(need) = test.needs.iter().find(met) {
                return Err(format!("CNIKIT_LACKS has {}, but this machine has it", need.name()).into());
            }
        }
        if unmet.is_empty() {
            (test.run)();
            return Ok(Completion::Completed);
        }
        self.seen.lock().unwrap().not_run += 1;
        let names: Vec<_> = unmet.iter().map(|(name, _)| *name).collect();
        Ok(Completion::ignored_with(format!("needs {}", names.join(", "))))
    }

    /// Each need is probed once.
    fn unmet(&self, need: &Need) -> Option<String> {
        self.seen.lock().unwrap().unmet.entry(need.name()).or_insert_with(|| need.unmet()).clone()
    }

    /// The tests that were not run here, in the words that `scripts/test` expects.
    pub(crate) fn not_run(&self) -> Option<String> {
        let seen = self.seen.lock().unwrap();
        let wanting: Vec<_> = seen.unmet.iter().filter(|(_, unmet)| unmet.is_some()).map(|(name, _)| *name).collect();
        (seen.not_run > 0).then(|| format!("ring: {} not run here for want of: {}", seen.not_run, wanting.join(", ")))
    }
}
