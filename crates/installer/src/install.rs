//! Places all files: the plugins' binary, their names, the tool, and last the network list.

use std::fmt::Write;
use std::path::Path;

use cnikit_launcher::PROGRAM;
use cnikit_store::{Directory, Lock};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use crate::flags::Reassert;
use crate::network_list::{self, NetworkList, Record};
use crate::node::{Item, Kind, Node, View};
use crate::place::{self, KEPT, Staged};
use crate::root::Absent;
use crate::sources::TOOL;
use crate::standing::{NEXT, Standing};

/// The lock file of a directory, which the installer before had too.
pub(crate) const LOCK: &str = ".cnikit-lock";
/// What another program's cnitool is called while ours is in place.
pub(crate) const TOOL_KEPT: &str = "cnitool.replaced-by-cnikit";

/// How a run waits for another one.
pub(crate) struct Waiting<'w> {
    pub(crate) limit: std::time::Duration,
    pub(crate) is_given_up: &'w dyn Fn() -> bool,
}

/// The locks of all directories of a run. Their files are removed at its end.
pub(crate) struct Locked<'d> {
    held: Vec<(&'d Directory, Lock)>,
}

impl<'d> Locked<'d> {
    /// Takes the locks in the order of the paths, so that two runs never wait for each other.
    pub(crate) fn take(directories: Vec<&'d Directory>, waiting: &Waiting<'_>) -> Result<Locked<'d>, String> {
        let mut ordered = directories;
        ordered.sort_by_key(|directory| directory.identity());
        ordered.dedup_by_key(|directory| directory.identity());
        let mut locked = Locked { held: Vec::new() };
        for directory in ordered {
            let lock = directory.lock_while(LOCK, 0o600, waiting.limit, waiting.is_given_up);
            let lock = lock.map_err(|error| {
                if error.is_deadline() {
                    let file = directory.path().join(LOCK);
                    format!(
                        "another installation holds {0}: it works on this directory; hint: `fuser {0}`",
                        file.display()
                    )
                } else {
                    error.to_string()
                }
            })?;
            locked.held.push((directory, lock));
        }
        Ok(locked)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for (directory, _) in &self.held {
            // Who waits for it notices, and locks a file of its own.
            let _ = directory.remove(LOCK);
        }
    }
}

/// Blocks the signals that would end the process between two steps that belong together. A second one is delivered afterwards.
pub(crate) struct Uninterrupted {
    before: SigSet,
}

impl Uninterrupted {
    pub(crate) fn begin() -> Result<Uninterrupted, String> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signals.add(signal);
        }
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before))
            .map_err(|errno| format!("block signals: {errno}"))?;
        Ok(Uninterrupted { before })
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}

/// What becomes of damaged files that are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damaged {
    /// They are kept, if nothing is kept under their name: on a node that is new to us they may be of use to somebody.
    Kept,
    /// They are not: ours were there before.
    Dropped,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Files that were replaced and kept, and where.
    pub(crate) kept: Vec<String>,
    /// Files that were placed.
    pub(crate) placed: Vec<String>,
}

impl Node {
    /// Places the files that `is_wanted` chooses. If nothing is to be done, nothing is written, not even a lock.
    pub(crate) fn install(
        &self,
        is_wanted: &dyn Fn(&View, &Item) -> bool,
        damaged: Damaged,
        waiting: &Waiting<'_>,
    ) -> Result<Done, String> {
        let before = self.look(Absent::Report)?;
        if !before.has_remains && !before.items.iter().any(|item| is_wanted(&before, item)) {
            return Ok(Done::default());
        }
        let made = self.look(Absent::Make)?;
        let directories = directories(&made);
        // The tool's directory is locked by nobody: a file in it is replaced as a whole.
        let _locked = Locked::take(lockable(&made), waiting)?;
        let view = self.look(Absent::Make)?;
        let mut done = Done::default();
        for item in &view.items {
            if item.standing == Standing::Directory {
                return Err(format!("{} is a directory: move it away", self.shown(&view, item).display()));
            }
        }
        for directory in lockable(&made) {
            place::remove_temporaries(directory)?;
        }
        let mut wanted: Vec<&Item> = view.items.iter().filter(|item| is_wanted(&view, item)).collect();
        // All that can fail for want of space is done before any name is changed.
        let mut staged = Vec::new();
        for item in &wanted {
            let (content, mode) = self.content(item.kind);
            staged.push(Some(place::stage(directories[item.place], &item.name, content, mode)?));
        }
        let _uninterrupted = Uninterrupted::begin()?;
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|at| rank(wanted[*at]));
        for at in order {
            let item = wanted[at];
            let directory = directories[item.place];
            let Some(file) = staged[at].take() else { continue };
            let is_kept = is_kept(item, directory, damaged)?;
            self.place(item, directory, file, &view, is_kept, &mut done)?;
        }
        wanted.clear();
        for directory in lockable(&made) {
            if directory.remove(NEXT).map_err(|error| error.to_string())? {
                place::sync(directory)?;
            }
        }
        self.finish_list(&made, &view)?;
        Ok(done)
    }

    /// Keeps what has the name, and renames the new file over it.
    fn place(
        &self,
        item: &Item,
        directory: &Directory,
        file: Staged<'_>,
        view: &View,
        is_kept: bool,
        done: &mut Done,
    ) -> Result<(), String> {
        let shown = self.shown(view, item);
        if is_kept {
            let to = if item.kind == Kind::Tool {
                place::keep_beside(directory, TOOL, TOOL_KEPT)?;
                directory.path().join(TOOL_KEPT)
            } else {
                place::keep(directory, &item.name)?;
                directory.path().join(KEPT)
            };
            done.kept.push(format!("kept {} in {}", shown.display(), to.display()));
        }
        if item.kind == Kind::NetworkList {
            self.record_both(directory, view)?;
        }
        file.place()?;
        place::sync(directory)?;
        done.placed.push(shown.display().to_string());
        Ok(())
    }

    /// Before the list is replaced, the record has both: a run that is killed between leaves a list that is recognised.
    fn record_both(&self, directory: &Directory, view: &View) -> Result<(), String> {
        let Some(list) = &self.list else { return Ok(()) };
        let mut record = list.record();
        match &view.record {
            Some(before) if before.name == record.name => record.digests.extend(before.digests.iter().cloned()),
            // The list had another name: the record of that one is needed until it is removed.
            Some(_) => return Ok(()),
            None => {}
        }
        record.write(directory)
    }

    /// Afterwards the record has this list only.
    fn finish_list(&self, made: &View, view: &View) -> Result<(), String> {
        let Some(list) = &self.list else { return Ok(()) };
        let Some(item) = view.items.iter().find(|item| item.kind == Kind::NetworkList) else { return Ok(()) };
        let directory = directories(made)[item.place];
        let is_placed = is_installed(directory, list)?;
        let record = list.record();
        if !is_placed || Record::read(directory)? == Some(record.clone()) {
            return Ok(());
        }
        if let Some(before) = view.record.as_ref().filter(|before| before.name != record.name) {
            withdraw_list(directory, before)?;
        }
        record.write(directory)?;
        place::sync(directory)
    }
}

fn is_installed(directory: &Directory, list: &NetworkList) -> Result<bool, String> {
    Ok(network_list::installed(directory, &list.name)?.is_some_and(|content| content == list.content))
}

/// Removes a list that was placed, or puts back what it replaced. One that was changed since stays: then this returns false.
pub(crate) fn withdraw_list(directory: &Directory, record: &Record) -> Result<bool, String> {
    let Some(content) = network_list::installed(directory, &record.name)? else { return Ok(true) };
    if !record.is_of(&content) {
        return Ok(false);
    }
    if !place::put_back(directory, &record.name)? {
        place::remove(directory, &record.name)?;
    }
    place::sync(directory)?;
    Ok(true)
}

/// The directories in the order of the places.
pub(crate) fn directories(view: &View) -> Vec<&Directory> {
    view.places.iter().filter_map(|place| place.directory.as_ref()).collect()
}

fn lockable(view: &View) -> Vec<&Directory> {
    let places = view.places.iter().filter(|place| place.kind != Kind::Tool);
    places.filter_map(|place| place.directory.as_ref()).collect()
}

/// The order in which names are changed. A launcher needs a binary, of whichever version; one that is there is replaced after the
/// launchers, because the names of version 0.1 are recognised by it.
fn rank(item: &Item) -> u8 {
    match (item.kind, item.standing) {
        (Kind::Binary, Standing::Missing | Standing::Broken | Standing::Foreign) => 0,
        (Kind::Launcher, _) => 1,
        (Kind::Binary, _) => 2,
        (Kind::Tool, _) => 3,
        (Kind::NetworkList, _) => 4,
    }
}

/// Whether the file is another program's. A damaged one is not kept in the place of a whole one.
fn is_kept(item: &Item, directory: &Directory, damaged: Damaged) -> Result<bool, String> {
    match item.standing {
        Standing::Foreign => Ok(true),
        Standing::Broken if damaged == Damaged::Kept => {
            let is_empty = item.fingerprint.is_some_and(|(_, size, ..)| size == 0);
            let is_piece = item.kind == Kind::Binary && item.name == PROGRAM;
            Ok(!is_empty && !is_piece && !place::is_kept(directory, &item.name)?)
        }
        _ => Ok(false),
    }
}

/// The choice of an installation.
pub(crate) fn all(reassert: Reassert) -> impl Fn(&View, &Item) -> bool {
    move |view, item| view.is_wanted(item, reassert)
}

/// What an installation prints.
pub(crate) fn summary(node: &Node, done: &Done, view: &View) -> Vec<String> {
    let mut lines = done.kept.clone();
    let names = node.sources.names.join(" ");
    let paths = |kind: Kind| {
        let mut paths = Vec::new();
        for place in view.places.iter().filter(|place| place.kind == kind) {
            paths.push(node.root.shown(&place.path).display().to_string());
        }
        paths.join(" and ")
    };
    let mut line = format!("installed {names} in {}", paths(Kind::Launcher));
    if node.sources.tool.is_some() {
        let _ = write!(line, ", {TOOL} in {}", paths(Kind::Tool));
    }
    if let Some(list) = &node.list {
        let _ = write!(line, ", {} in {}", Path::new(&list.name).display(), paths(Kind::NetworkList));
    }
    if done.placed.is_empty() {
        line.push_str(": all was as it should be");
    }
    lines.push(line);
    for item in view.items.iter().filter(|item| item.standing != Standing::Current) {
        lines.push(format!("left alone {}: {}", node.shown(view, item).display(), item.standing.text()));
    }
    lines
}
