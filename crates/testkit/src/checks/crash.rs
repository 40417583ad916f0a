//! The power goes: what a plugin had written and never synced is lost, or torn, and every container with it.
//!
//! The real plugin runs, and its files are looked at before each of its system calls ([`crate::syscall_trace`]): what changed from
//! one to the next is what that call wrote. At any of these moments the power goes. What was not synced by then may be there
//! or not: the content of a file is empty, zeros, cut in the middle, or what it was before, while its name is there; a name
//! that was made is not, one that was removed or replaced is back; or all names are as they were some time ago, as a journal
//! has it that was not written since. Then the machine boots, with another boot id and without a container.

mod crash_node;
mod disk;
mod loss;

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::campaign::{CampaignReport, TRIES, conclude, sample};
use crate::env::subject::Subject;
use crate::parallel::{catch_panic, for_each};
use crash_node::{CrashNode, Verb};
use disk::ChangeRecord;
use loss::Loss;

/// One way in which the power can go.
#[derive(Clone, Debug)]
struct PowerCut {
    moment: Arc<Moment>,
    loss: Loss,
    after: Recovery,
}

/// When it goes.
#[derive(Debug)]
struct Moment {
    verb: Verb,
    /// After so many moments at which the call changed something on the disk.
    number: usize,
    /// What was on the disk by then, and what of it would last: where it is something else, this is not the moment.
    records: Vec<ChangeRecord>,
}

/// What a runtime does after the boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recovery {
    /// It adds containers before it deletes those that were there.
    adds_first: bool,
    /// It never asks for a GC, but boots once more.
    boots_again: bool,
}

impl Recovery {
    /// What was held in an earlier boot can only be told by a machine that has a name; see machine-id(5).
    fn all() -> impl Iterator<Item = Recovery> {
        let boots: &[bool] = if cnikit_netns::machine_id().is_some() { &[false, true] } else { &[false] };
        let each = move |adds_first| boots.iter().map(move |again| Recovery { adds_first, boots_again: *again });
        [false, true].into_iter().flat_map(each)
    }
}

/// So many at once: each waits for processes most of the time.
const WORKERS: usize = 6;

/// The power goes at each moment of an ADD, a DEL and a GC, and takes with it whatever it may: afterwards STATUS is well, DEL
/// of each older container succeeds, and so does each ADD; no address is given twice; after a GC, or after one more boot, as
/// many containers find room as did at first; and files whose content was lost are named by somebody.
///
/// The plugin keeps its files below the directory that [`Subject::at`] gives it, and its range, if it gives addresses, has few,
/// four at least: it is filled each time. What a chained plugin changed is given back. Without `CNIKIT_CAMPAIGNS=whole` at most
/// so many scenes a verb are tried, by chance.
pub fn survives(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    let capacity = crash_node::capacity(subject);
    let mut reports = Vec::new();
    for verb in Verb::ALL {
        let all = power_cuts(subject, verb);
        let what = format!("crash {} {}", subject.title, verb.command());
        let mut report = CampaignReport::new(what, "crashes", all.len());
        let chosen = sample(&report.what, all, most);
        let together = Mutex::new(&mut report);
        for_each(
            WORKERS,
            &chosen,
            || (),
            |(), power_cut| together.lock().unwrap().add(try_power_cut(subject, capacity, power_cut)),
        );
        reports.push(report.print());
    }
    conclude(reports)
}

/// Every moment with every loss.
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

/// Until its moment is reached, at last.
fn try_power_cut(subject: &Subject, capacity: usize, power_cut: &PowerCut) -> CampaignReport {
    let mut report = CampaignReport::default();
    let went = catch_panic(|| {
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
    });
    if let Err(found) = went {
        report.findings.push(format!("{}: {power_cut}: {found}", subject.title));
    }
    report
}

impl fmt::Display for PowerCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { verb, number, records } = &*self.moment;
        let last = records.last().map_or("nothing".to_owned(), |last| last.mark.to_string());
        write!(f, "{} at moment {number}, after {last}; {}; {:?}", verb.command(), self.loss, self.after)
    }
}
