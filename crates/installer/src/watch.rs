//! Keeps the plugins installed: places again what is deleted or damaged, until a signal ends it.
//!
//! Rules:
//! - A name that is missing, empty, half-written or not executable is placed again, once it has not changed for [`SETTLE`]: then
//!   whoever is writing or deleting it is done.
//! - A whole file of another program, or of another version of cnikit, is left alone and reported, unless `--reassert all` is
//!   given. Where the binary of cnikit is missing too, the directory was made again: everything is placed, and what its maker adds
//!   within [`REFILL`] is replaced.
//! - Who changes one name again and again is given way to: after [`FREE`] times the next attempt is made a minute later, then two,
//!   up to an hour.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cnikit_process::Deadline;
use cnikit_skel::Plugins;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::flags::{Flags, Reassert};
use crate::install::{self, Damaged, Waiting};
use crate::network_list::NetworkList;
use crate::node::{Item, Kind, Node, View};
use crate::root::{Absent, path_of};
use crate::standing::{Fingerprint, Standing};

/// How often everything is compared although nothing was reported.
const EACH: Duration = Duration::from_mins(1);
/// How long a damaged file has to stay as it is.
const SETTLE: Duration = Duration::from_secs(1);
/// The shortest time between two looks.
const REST: Duration = Duration::from_millis(200);
/// How long a directory that was made again is filled by whoever made it: what comes meanwhile is replaced too.
const REFILL: Duration = Duration::from_mins(1);
/// How long another installation is waited for before the next look.
const LOCKED: Duration = Duration::from_secs(10);
/// The first and the longest time between two attempts after an error.
const RETRY: [Duration; 2] = [Duration::from_secs(2), EACH];
/// How many times a name is placed again without a pause.
const FREE: u32 = 3;
/// The pauses after that.
const PAUSE: [Duration; 2] = [Duration::from_mins(1), Duration::from_hours(1)];

/// A file, by directory and name.
type Key = (usize, String);

/// A file that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Damage {
    standing: Standing,
    fingerprint: Fingerprint,
}

/// How often a file was placed again.
#[derive(Clone, Copy, Debug)]
struct Contest {
    times: u32,
    last: Instant,
}

impl Contest {
    /// The pause before the next attempt.
    fn pause(times: u32) -> Duration {
        match times.checked_sub(FREE) {
            None => Duration::ZERO,
            Some(more) => PAUSE[1].min(PAUSE[0].saturating_mul(1 << more.min(16))),
        }
    }

    fn until(self) -> Instant {
        self.last + Contest::pause(self.times)
    }

    /// Whether it is over: the file stayed in place for long after the pause.
    fn is_over(self, now: Instant) -> bool {
        now.duration_since(self.last) > 2 * Contest::pause(self.times).max(5 * EACH)
    }
}

/// Runs until `SIGTERM` or `SIGINT`.
pub(crate) fn watch(plugins: Plugins, flags: &Flags) -> Result<(), String> {
    let signals = signals()?;
    let mut watch = Watch::new(Node::new(plugins, flags)?, flags)?;
    watch.report_ready(false)?;
    loop {
        let until = watch.step(&signals);
        if has_signal(&signals) {
            return Ok(());
        }
        if wait(&signals, &watch.inotify, until)? {
            return Ok(());
        }
        watch.drain()?;
    }
}

fn signals() -> Result<SignalFd, String> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().map_err(|errno| format!("block signals: {errno}"))?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| format!("signalfd: {errno}"))
}

fn has_signal(signals: &SignalFd) -> bool {
    let mut descriptors = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    poll(&mut descriptors, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Waits for events, first for [`REST`] without looking at them; returns whether a signal has come.
fn wait(signals: &SignalFd, inotify: &Inotify, until: Instant) -> Result<bool, String> {
    let rest = Deadline::after(REST);
    let end = Deadline::after(until.saturating_duration_since(Instant::now()).max(REST));
    for (deadline, count) in [(rest, 1), (end, 2)] {
        let mut descriptors =
            [PollFd::new(signals.as_fd(), PollFlags::POLLIN), PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap_or(PollTimeout::MAX);
        match poll(&mut descriptors[..count], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("poll: {errno}")),
        }
        if descriptors[0].any().unwrap_or_default() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The state between two looks.
struct Watch<'f> {
    node: Node,
    flags: &'f Flags,
    inotify: Inotify,
    watched: BTreeSet<WatchDescriptor>,
    /// Whether everything was placed once.
    is_begun: bool,
    is_ready: Option<bool>,
    damages: BTreeMap<Key, (Damage, Instant)>,
    contests: BTreeMap<Key, Contest>,
    /// When the binary of a directory, by its index, was placed again.
    refilled: BTreeMap<usize, Instant>,
    reported: BTreeMap<Key, Damage>,
    error: Option<(String, Duration)>,
}

impl Watch<'_> {
    fn new(node: Node, flags: &Flags) -> Result<Watch<'_>, String> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|errno| format!("inotify_init: {errno}"))?;
        Ok(Watch {
            node,
            flags,
            inotify,
            watched: BTreeSet::new(),
            is_begun: false,
            is_ready: None,
            damages: BTreeMap::new(),
            contests: BTreeMap::new(),
            refilled: BTreeMap::new(),
            reported: BTreeMap::new(),
            error: None,
        })
    }

    /// Looks once, and does what is due; returns when to look again.
    fn step(&mut self, signals: &SignalFd) -> Instant {
        match self.try_step(signals) {
            Ok(until) => {
                if self.error.take().is_some() {
                    log("it works again");
                }
                until
            }
            Err(why) => {
                let _ = self.report_ready(false);
                let pause = match self.error.take() {
                    Some((last, pause)) if last == why => (2 * pause).min(RETRY[1]),
                    _ => {
                        log(&format!("{why}; it is tried again"));
                        RETRY[0]
                    }
                };
                self.error = Some((why, pause));
                Instant::now() + pause
            }
        }
    }

    fn try_step(&mut self, signals: &SignalFd) -> Result<Instant, String> {
        if let Some(path) = &self.flags.network_list {
            self.node.list = Some(NetworkList::read(path, &self.flags.pod_cidrs.read()?)?);
        }
        self.arm()?;
        let waiting = Waiting { limit: LOCKED.min(self.flags.wait), is_given_up: &|| has_signal(signals) };
        if !self.is_begun {
            let done = self.node.install(&install::all(self.flags.reassert), Damaged::Kept, &waiting)?;
            let view = self.node.look(Absent::Report)?;
            for line in install::summary(&self.node, &done, &view) {
                log(&line);
            }
            self.is_begun = true;
            self.arm()?;
        }
        let view = self.node.look(Absent::Report)?;
        let now = Instant::now();
        let (due, mut until) = self.due(&view, now);
        if due.is_empty() {
            let is_ready = view.items.iter().all(|item| !self.needs(&view, item));
            self.report_ready(is_ready)?;
            return Ok(until);
        }
        self.report_ready(false)?;
        let is_due = |view: &View, item: &Item| due.contains(&key(item)) && self.needs(view, item);
        let done = self.node.install(&is_due, Damaged::Dropped, &waiting)?;
        for line in &done.kept {
            log(line);
        }
        for item in view.items.iter().filter(|item| due.contains(&key(item))) {
            log(&format!("placed again {}: {}", self.node.shown(&view, item).display(), item.standing.text()));
            self.count(item, now);
            if item.kind == Kind::Binary {
                self.refilled.insert(item.place, now);
            }
        }
        // Files that were just placed are read once more, because directories may have been made for them.
        until = until.min(now + SETTLE);
        Ok(until)
    }

    /// Whether a file is to be placed. Another version that was placed meanwhile is another installation's.
    fn needs(&self, view: &View, item: &Item) -> bool {
        let reassert = self.flags.reassert;
        let is_refilled = self.refilled.get(&item.place).is_some_and(|since| since.elapsed() < REFILL);
        match item.standing {
            Standing::OtherVersion => reassert == Reassert::All || item.kind == Kind::NetworkList,
            Standing::Foreign if is_refilled => true,
            _ => view.is_wanted(item, reassert),
        }
    }

    /// The files that are to be placed now, and the time of the next look.
    fn due(&mut self, view: &View, now: Instant) -> (BTreeSet<Key>, Instant) {
        let mut due = BTreeSet::new();
        let mut until = now + EACH;
        let mut damages = BTreeMap::new();
        for item in view.items.iter().filter(|item| item.standing != Standing::Current) {
            let key = key(item);
            let damage = Damage { standing: item.standing, fingerprint: item.fingerprint };
            if !self.needs(view, item) {
                self.report_foreign(view, item, damage);
                continue;
            }
            let since = match self.damages.get(&key) {
                Some((before, since)) if *before == damage => *since,
                _ => now,
            };
            let mut at = since + SETTLE;
            if let Some(contest) = self.contests.get(&key).filter(|contest| !contest.is_over(now)) {
                at = at.max(contest.until());
            }
            if at <= now {
                due.insert(key.clone());
            } else {
                until = until.min(at);
            }
            damages.insert(key, (damage, since));
        }
        self.damages = damages;
        self.reported
            .retain(|one, _| view.items.iter().any(|item| key(item) == *one && item.standing != Standing::Current));
        (due, until)
    }

    fn report_foreign(&mut self, view: &View, item: &Item, damage: Damage) {
        if self.reported.get(&key(item)) != Some(&damage) {
            log(&format!("left alone {}: {}", self.node.shown(view, item).display(), item.standing.text()));
            self.reported.insert(key(item), damage);
        }
    }

    fn count(&mut self, item: &Item, now: Instant) {
        let before = self.contests.get(&key(item)).filter(|contest| !contest.is_over(now)).map_or(0, |one| one.times);
        let times = before + 1;
        self.contests.insert(key(item), Contest { times, last: now });
        let pause = Contest::pause(times);
        if !pause.is_zero() {
            log(&format!(
                "{}: something changes it again and again ({times} times): the next attempt is in {} s at the earliest",
                item.name,
                pause.as_secs()
            ));
        }
    }

    /// Watches every directory on the paths, before their files are read.
    fn arm(&mut self) -> Result<(), String> {
        let mut watched = BTreeSet::new();
        for path in self.node.places.plugins.iter().chain(&self.node.places.networks).chain(&self.node.places.tools) {
            for directory in self.node.root.visited(path)? {
                watched.insert(self.add(&directory)?);
            }
        }
        for gone in self.watched.difference(&watched) {
            // This fails if the kernel has removed it with its directory.
            let _ = self.inotify.rm_watch(*gone);
        }
        self.watched = watched;
        Ok(())
    }

    fn add(&self, directory: &Rc<OwnedFd>) -> Result<WatchDescriptor, String> {
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let added = self.inotify.add_watch(path_of(directory).as_str(), events);
        added.map_err(|errno| format!("inotify_add_watch: {errno}"))
    }

    fn drain(&self) -> Result<(), String> {
        loop {
            match self.inotify.read_events() {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(format!("inotify: {errno}")),
            }
        }
    }

    /// Makes or removes the ready file, and notifies systemd, when that has changed.
    fn report_ready(&mut self, is_ready: bool) -> Result<(), String> {
        if self.is_ready == Some(is_ready) {
            return Ok(());
        }
        if let Some(path) = &self.flags.ready_file {
            let failed = |error: std::io::Error| format!("--ready-file {}: {error}", path.display());
            if is_ready {
                std::fs::write(path, "ready\n").map_err(failed)?;
            } else {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
                    _ => {}
                }
            }
        }
        if is_ready {
            notify_systemd()?;
        }
        self.is_ready = Some(is_ready);
        Ok(())
    }
}

fn key(item: &Item) -> Key {
    (item.place, item.name.clone())
}

/// Sends `READY=1`; see `sd_notify(3)`.
#[expect(clippy::disallowed_methods, reason = "systemd says by the environment where it listens")]
fn notify_systemd() -> Result<(), String> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let failed = |error: std::io::Error| format!("NOTIFY_SOCKET {}: {error}", name.display());
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(Path::new(&name)),
    };
    let socket = UnixDatagram::unbound().map_err(failed)?;
    socket.send_to_addr(b"READY=1", &address.map_err(failed)?).map(drop).map_err(failed)
}

fn log(text: &str) {
    // Nobody is left to tell if this fails.
    let _ = writeln!(std::io::stderr().lock(), "cni-plugins: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_changes_a_name_again_and_again_is_given_way_to() {
        let seconds: Vec<u64> = (0..=12).map(|times| Contest::pause(times).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 0, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600]);
        assert_eq!(Contest::pause(u32::MAX), PAUSE[1]);
        let last = Instant::now();
        let contest = Contest { times: 4, last };
        assert!(!contest.is_over(contest.until()) && contest.is_over(last + Duration::from_mins(11)));
    }
}
