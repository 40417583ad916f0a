//! The power goes: what a plugin had written and never synced is lost, or torn, and every container with it.
//!
//! The real plugin runs, and its files are looked at before each of its system calls ([`crate::syscall_trace`]): what changed from
//! one to the next is what that call wrote. At any of these moments the power goes. What was not synced by then may be there
//! or not: the content of a file is empty, zeros, cut in the middle, or what it was before, while its name is there; a name
//! that was made is not, one that was removed or replaced is back; or all names are as they were some time ago, as a journal
//! has it that was not written since. Then the machine boots, with another boot id and without a container.

mod disk;
mod loss;
mod node;

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::campaign::{CampaignReport, TRIES, conclude, sample};
use crate::crowd::{caught, each};
use crate::env::subject::Subject;
use disk::Written;
use loss::Loss;
use node::{Node, Verb};

/// One way in which the power can go.
#[derive(Clone, Debug)]
struct Scene {
    moment: Arc<Moment>,
    loss: Loss,
    after: Order,
}

/// When it goes.
#[derive(Debug)]
struct Moment {
    verb: Verb,
    /// After so many moments at which the call changed something on the disk.
    number: usize,
    /// What was on the disk by then, and what of it would last: where it is something else, this is not the moment.
    written: Vec<Written>,
}

/// What a runtime does after the boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// It adds containers before it deletes those that were there.
    adds_first: bool,
    /// It never asks for a GC, but boots once more.
    boots_again: bool,
}

impl Order {
    /// What was held in an earlier boot can only be told by a machine that has a name; see machine-id(5).
    fn all() -> impl Iterator<Item = Order> {
        let boots: &[bool] = if cnikit_netns::machine_id().is_some() { &[false, true] } else { &[false] };
        let each = move |adds_first| boots.iter().map(move |again| Order { adds_first, boots_again: *again });
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
    let room = node::room(subject);
    let mut reports = Vec::new();
    for verb in Verb::ALL {
        let all = scenes(subject, verb);
        let what = format!("crash {} {}", subject.title, verb.command());
        let mut report = CampaignReport::new(what, "crashes", all.len());
        let chosen = sample(&report.what, all, most);
        let together = Mutex::new(&mut report);
        each(WORKERS, &chosen, || (), |(), scene| together.lock().unwrap().add(play(subject, room, scene)));
        reports.push(report.say());
    }
    conclude(reports)
}

/// Every moment with every loss.
fn scenes(subject: &Subject, verb: Verb) -> Vec<Scene> {
    let moments = Node::new(subject).until(verb, usize::MAX).moments();
    assert!(moments > 0 || verb == Verb::Gc, "{} writes nothing below its directory", verb.command());
    let mut scenes = Vec::new();
    for number in 0..=moments {
        let written = Node::new(subject).until(verb, number).written();
        let losses = Loss::all(&written);
        let moment = Arc::new(Moment { verb, number, written });
        for loss in losses {
            for after in Order::all() {
                scenes.push(Scene { moment: Arc::clone(&moment), loss: loss.clone(), after });
            }
        }
    }
    scenes
}

/// Until its moment is reached, at last.
fn play(subject: &Subject, room: usize, scene: &Scene) -> CampaignReport {
    let mut report = CampaignReport::default();
    let went = caught(|| {
        for _ in 0..TRIES {
            let node = Node::new(subject).until(scene.moment.verb, scene.moment.number);
            if node.written() == scene.moment.written {
                report.tried = 1;
                report.failed = usize::from(node.died());
                return node.without(&scene.loss).boots_and_works(room, scene.after);
            }
            report.repeated += 1;
        }
        panic!("{TRIES} times something else was on the disk by then");
    });
    if let Err(found) = went {
        report.findings.push(format!("{}: {scene}: {found}", subject.title));
    }
    report
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { verb, number, written } = &*self.moment;
        let last = written.last().map_or("nothing".to_owned(), |last| last.mark.to_string());
        write!(f, "{} at moment {number}, after {last}; {}; {:?}", verb.command(), self.loss, self.after)
    }
}
