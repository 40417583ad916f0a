//! Power cuts: data that a plugin had written but not synced is lost or damaged, and all containers are gone.
//!
//! The plugin runs, and its files are compared before each of its system calls ([`crate::syscall_trace`]): a difference was written
//! by the last call. The power may fail at any of these moments. Changes that were not synced by then may be lost: a file may exist
//! with no content, with zeros, truncated, or with its old content; a new name may be missing, and a removed or replaced name may
//! be back; or all names may be as they were some time ago, as with a journal that was not written since. Then the machine boots
//! with another boot ID and without containers.

mod crash_node;
mod disk;
mod loss;

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::campaign::{CampaignReport, TRIES, add_report, conclude, sample};
use crate::env::subject::Subject;
use crate::parallel::{catch_panic, for_each};
use crash_node::{CrashNode, Verb};
use disk::ChangeRecord;
use loss::Loss;

/// One simulated power cut.
#[derive(Clone, Debug)]
struct PowerCut {
    moment: Arc<Moment>,
    loss: Loss,
    after: Recovery,
}

/// The moment of a power cut.
#[derive(Debug)]
struct Moment {
    verb: Verb,
    /// The number of system calls of the verb that changed something on the disk before.
    number: usize,
    /// The changes on the disk until then, and which of them are durable. A run with other changes does not have this moment.
    records: Vec<ChangeRecord>,
}

/// The calls of the runtime after the boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recovery {
    /// ADD for new containers comes before DEL for the old ones.
    adds_first: bool,
    /// No GC; instead the machine reboots once more.
    boots_again: bool,
}

impl Recovery {
    /// All orders of calls. Without a machine ID (machine-id(5)) the store cannot detect reservations of an earlier boot, so the
    /// second reboot is left out.
    fn all() -> impl Iterator<Item = Recovery> {
        let boots: &[bool] = if cnikit_netns::machine_id().is_some() { &[false, true] } else { &[false] };
        let mut all = Vec::new();
        for adds_first in [false, true] {
            for boots_again in boots {
                all.push(Recovery { adds_first, boots_again: *boots_again });
            }
        }
        all.into_iter()
    }
}

/// The number of power cuts that are tried at the same time. Each compares the disk before each system call of the plugin, so more
/// of them than processors only make each other slow, up to the deadline of a call.
const WORKERS: usize = 2;

/// Cuts the power at each moment of an ADD, a DEL and a GC, with each possible loss. Afterwards STATUS, DEL of each old container
/// and every ADD succeed; no address is assigned twice; after a GC or one more reboot the range has room for as many containers as
/// before; and each reservation with lost content is reported.
///
/// The plugin stores its files below the directory that [`Subject::at`] sets. A range of addresses must be small, with at least
/// four addresses, because it is filled each time. A chained plugin has to undo its changes. Without `CNIKIT_CAMPAIGNS=whole` a
/// random choice of at most `most` power cuts per verb is tried.
pub fn survives(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    let capacity = crash_node::capacity(subject);
    let mut reports = Vec::new();
    for verb in Verb::ALL {
        let all = power_cuts(subject, verb);
        let what = format!("crash {} {}", subject.title, verb.command());
        let report = CampaignReport::new(what, "crashes", all.len());
        let chosen = sample(&report.what, all, most);
        let together = Mutex::new(report);
        let attempt = |power_cut: &PowerCut| try_power_cut(subject, capacity, power_cut);
        for_each(WORKERS, &chosen, || (), |(), power_cut| add_report(&together, attempt(power_cut)));
        reports.push(together.into_inner().unwrap().print());
    }
    conclude(reports)
}

/// All power cuts: every moment with every loss and every order of calls.
fn power_cuts(subject: &Subject, verb: Verb) -> Vec<PowerCut> {
    let moments = CrashNode::new(subject).run_until(verb, usize::MAX).moments();
    assert!(moments > 0 || verb == Verb::Gc, "{} writes nothing below its directory", verb.command());
    let mut power_cuts = Vec::new();
    for number in 0..=moments {
        let records = CrashNode::new(subject).run_until(verb, number).change_records();
        let losses = Loss::all(&records);
        let moment = Arc::new(Moment { verb, number, records });
        for loss in losses {
            for after in Recovery::all() {
                power_cuts.push(PowerCut { moment: Arc::clone(&moment), loss: loss.clone(), after });
            }
        }
    }
    power_cuts
}

/// Repeats the verb until the moment is reached, then cuts the power and checks the recovery.
fn try_power_cut(subject: &Subject, capacity: usize, power_cut: &PowerCut) -> CampaignReport {
    let mut report = CampaignReport::default();
    if let Err(found) = catch_panic(|| cut_power_and_recover(subject, capacity, power_cut, &mut report)) {
        report.findings.push(format!("{}: {power_cut}: {found}", subject.title));
    }
    report
}

fn cut_power_and_recover(subject: &Subject, capacity: usize, power_cut: &PowerCut, report: &mut CampaignReport) {
    for _ in 0..TRIES {
        let node = CrashNode::new(subject).run_until(power_cut.moment.verb, power_cut.moment.number);
        if node.change_records() == power_cut.moment.records {
            report.tried = 1;
            report.failed = usize::from(node.died());
            return node.cut_power(&power_cut.loss).reboot_and_verify(capacity, power_cut.after);
        }
        report.repeated += 1;
    }
    panic!("{TRIES} times something else was on the disk by then");
}

impl fmt::Display for PowerCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { verb, number, records } = &*self.moment;
        let last = records.last().map_or("nothing".to_owned(), |last| last.mark.to_string());
        write!(f, "{} at moment {number}, after {last}; {}; {:?}", verb.command(), self.loss, self.after)
    }
}
