//! The power goes: what a plugin had written and never synced is lost, or torn, and every container with it.
//!
//! The real plugin runs, and its files are looked at before each of its system calls ([`crate::watch`]): what changed from
//! one to the next is what that call wrote. At any of these moments the power goes. What was not synced by then may be there
//! or not: the content of a file is empty, zeros, cut in the middle, or what it was before, while its name is there; a name
//! that was made is not, one that was removed or replaced is back; or all names are as they were some time ago, as a journal
//! has it that was not written since. Then the machine boots, with another boot id and without a container.

mod disk;
mod loss;
mod node;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::campaign::{Report, chance, conclude, is_whole};
use crate::subject::Subject;
use loss::Loss;
use node::{Node, Verb};

/// One way in which the power can go.
#[derive(Clone, Copy, Debug)]
struct Scene {
    verb: Verb,
    /// After so many moments at which the call changed something on the disk.
    moment: usize,
    loss: Loss,
    after: Order,
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
/// The plugin keeps its files below the directory that [`Subject::at`] gives it, and its range has few addresses, four at
/// least: it is filled each time. Without `CNIKIT_CAMPAIGNS=whole` at most so many scenes a verb are tried, by chance.
pub fn survives(subject: &Subject, most: usize) -> Vec<Report> {
    let room = node::room(subject);
    let one = |verb: Verb| {
        let mut report = Report::new(format!("crash {} {}", subject.title, verb.command()), "crashes", 0);
        let all = scenes(subject, verb);
        report.of = all.len();
        let chosen = choose(&report.what, all, most);
        play(&mut report, subject, room, &chosen);
        report.line().say();
        report
    };
    conclude(Verb::ALL.into_iter().map(one).collect())
}

/// Every moment with every loss.
fn scenes(subject: &Subject, verb: Verb) -> Vec<Scene> {
    let moments = Node::new(subject).until(verb, usize::MAX).moments();
    assert!(moments > 0 || verb == Verb::Gc, "{} writes nothing below its directory", verb.command());
    let at = |moment: usize| {
        let node = Node::new(subject).until(verb, moment);
        let each = |loss| Order::all().map(move |after| Scene { verb, moment, loss, after });
        Loss::all(node.changes()).into_iter().flat_map(each).collect::<Vec<_>>()
    };
    (0..=moments).flat_map(at).collect()
}

fn choose(what: &str, all: Vec<Scene>, most: usize) -> Vec<Scene> {
    if is_whole() || all.len() <= most {
        return all;
    }
    let mut chance = chance(what);
    chance.choose_multiple(all, most)
}

fn play(report: &mut Report, subject: &Subject, room: usize, scenes: &[Scene]) {
    let (next, together) = (AtomicUsize::new(0), Mutex::new((0, 0, Vec::new())));
    let work = || {
        while let Some(scene) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Scene { verb, moment, loss, after } = *scene;
            let mut died = false;
            let went = catch_unwind(AssertUnwindSafe(|| {
                let node = Node::new(subject).until(verb, moment);
                died = node.died();
                node.without(loss).boots_and_works(room, after);
            }));
            let mut together = together.lock().unwrap();
            together.0 += 1;
            together.1 += usize::from(died);
            if let Err(panic) = went {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                together.2.push(format!("{}: {scene:?}: {text}", subject.title));
            }
        }
    };
    thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    (report.tried, report.failed, report.findings) = together.into_inner().unwrap();
}
