//! Reports changes of the networks that a runtime uses.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use cnikit_process::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::directory::inotify::{Events, Watches};
use crate::{Error, NetworkSelector, Selection};

/// The directory is read when nothing has changed for this time, because several files are usually installed together.
const QUIET: Duration = Duration::from_millis(100);

/// How long to wait for a file that is being written. After that it is read as it is.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Watches the directory of a [`NetworkSelector`], and returns the new selection whenever it changes.
///
/// It starts no thread. Either [`Watcher::wait`] blocks, or the caller polls the file descriptor ([`AsFd`]) and calls
/// [`Watcher::poll`] whenever it is readable. The first selection is the present one.
///
/// The directory may be created, removed and replaced; it, its files and every directory on their paths may be symbolic links whose
/// targets change, such as Kubernetes' `..data` in a mounted `ConfigMap`. Changes within 100 ms of each other are one change. If a
/// program is writing a file, or a file ends before its document does, the watcher waits for it at most 3 s, so that neither half
/// of a configuration nor another network in its place is used. If plugins are validated ([`NetworkSelector::runtime`]), their
/// directories are watched too: a network can be used as soon as its plugins exist.
///
/// After an error, for example because the directory cannot be listed, the watch continues: it is tried again after the next
/// change, and after 3 s. inotify(7) does not report changes by other machines on a network file system, and file systems that are
/// mounted over a directory.
///
/// ```
/// use std::time::Duration;
/// use cnikit_libcni::{NetworkSelector, SelectionPolicy, Watcher};
/// # let dir = tempfile::tempdir()?;
/// let conf_dir = dir.path().join("net.d");
/// let mut watcher = Watcher::new(NetworkSelector { dir: conf_dir.clone(), policy: SelectionPolicy::FirstValid, runtime: None })?;
/// let first = watcher.wait(Duration::from_secs(10))?.expect("the first selection is the present one");
/// assert!(first.default_network().is_none());
///
/// std::fs::create_dir(&conf_dir)?;
/// std::fs::write(conf_dir.join("10-a.conf"), r#"{"name": "a", "type": "bridge", "cniVersion": "1.1.0"}"#)?;
/// let next = watcher.wait(Duration::from_secs(10))?.expect("there is a network now");
/// assert_eq!(next.default_network().unwrap().list.name, "a");
/// assert!(watcher.wait(Duration::from_millis(300))?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "inotify")]
#[derive(Debug)]
pub struct Watcher {
    selector: NetworkSelector,
    watches: Watches,
    timer: TimerFd,
    /// Readable when the watches or the timer are.
    either: Epoll,
    /// Changes after which the directory was not yet read.
    pending: Option<Pending>,
    last: Option<Selection>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// The time of the first change.
    since: Instant,
    /// When the directory is read if nothing else changes.
    due: Instant,
}

impl Watcher {
    /// Begins to watch the directory of `selector`.
    ///
    /// # Errors
    /// [`Error::Watch`] if the kernel gives no inotify instance, timer or epoll instance; the text names the limit.
    pub fn new(selector: NetworkSelector) -> Result<Watcher, Error> {
        let failed = |errno| Error::of_watch(&selector.dir, errno);
        let watches = Watches::new().map_err(failed)?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        for fd in [watches.as_fd(), timer.as_fd()] {
            either.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        }
        let now = Instant::now();
        let pending = Some(Pending { since: now, due: now });
        let watcher = Watcher { selector, watches, timer, either, pending, last: None };
        watcher.set_timer(Duration::ZERO)?;
        Ok(watcher)
    }

    /// Waits until the networks that are used, or the default among them, change, and returns the new selection; `None` if they
    /// did not change in that time. The first call returns the present selection.
    ///
    /// # Errors
    /// As [`Watcher::poll`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Selection>, Error> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(selection) = self.poll()? {
                return Ok(Some(selection));
            }
            if deadline.passed() {
                return Ok(None);
            }
            let timeout = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::of_watch(&self.selector.dir, errno)),
            }
        }
    }

    /// As [`Watcher::wait`], without waiting for changes. Call it whenever the file descriptor is readable, which it also is when a
    /// timer has expired. If plugins are called, it takes as long as they do.
    ///
    /// # Errors
    /// [`Error::Watch`] if a directory cannot be watched, and [`Error::Configuration`] if it cannot be listed. The watch
    /// continues: call it again.
    pub fn poll(&mut self) -> Result<Option<Selection>, Error> {
        self.read_events()?;
        let Some(Pending { since, due }) = self.pending else {
            self.stop_timer()?;
            return Ok(None);
        };
        let now = Instant::now();
        let give_up = since + TIMEOUT;
        if now < due {
            self.wake_at(due, now)?;
            return Ok(None);
        }
        if self.watches.is_file_open() && now < give_up {
            self.wake_at(give_up, now)?;
            return Ok(None);
        }
        let selection = match self.update_watches().and_then(|()| self.selector.select()) {
            Ok(selection) => selection,
            Err(error) => return self.retry(error, now),
        };
        // A file that changed meanwhile may have been read half-written.
        let is_changed = self.read_events()?;
        if now < give_up && (is_changed || self.selector.is_incomplete(&selection, TIMEOUT)) {
            self.wake_at(Instant::now() + QUIET, now)?;
            return Ok(None);
        }
        self.watches.forget_open_files();
        if is_changed {
            self.pending = Some(Pending { since: now, due: now + QUIET });
            self.wake_at(now + QUIET, now)?;
        } else {
            self.pending = None;
            self.stop_timer()?;
        }
        let is_new = self.last.as_ref().is_none_or(|last| !is_same(last, &selection));
        self.last = Some(selection.clone());
        Ok(if is_new { Some(selection) } else { None })
    }

    /// Tries again later, because there may be no further change. The next selection is returned in any case.
    fn retry(&mut self, error: Error, now: Instant) -> Result<Option<Selection>, Error> {
        let due = now + TIMEOUT;
        self.last = None;
        self.pending = Some(Pending { since: due, due });
        self.wake_at(due, now)?;
        Err(error)
    }

    /// The last selection, with the files that were skipped.
    pub fn last(&self) -> Option<&Selection> {
        self.last.as_ref()
    }

    /// Reads the events; returns whether any is relevant.
    fn read_events(&mut self) -> Result<bool, Error> {
        if self.watches.read().map_err(|errno| self.error(errno))? == Events::None {
            return Ok(false);
        }
        let now = Instant::now();
        let since = self.pending.map_or(now, |pending| pending.since);
        // The directory is read after the timeout even if it changes all the time.
        self.pending = Some(Pending { since, due: (now + QUIET).min(since + TIMEOUT).max(now) });
        Ok(true)
    }

    fn update_watches(&mut self) -> Result<(), Error> {
        let path = self.selector.runtime.as_ref().map(|runtime| runtime.path.as_str()).unwrap_or_default();
        let plugin_dirs = path.split(':').filter(|dir| !dir.is_empty());
        self.watches.update(&self.selector.dir, plugin_dirs).map_err(|errno| Error::of_watch(&self.selector.dir, errno))
    }

    /// Makes the file descriptor readable at this time.
    fn wake_at(&self, due: Instant, now: Instant) -> Result<(), Error> {
        self.set_timer(due.saturating_duration_since(now))
    }

    fn stop_timer(&self) -> Result<(), Error> {
        self.timer.unset().map_err(|errno| self.error(errno))
    }

    fn set_timer(&self, duration: Duration) -> Result<(), Error> {
        // A duration of zero would stop the timer.
        let duration = TimeSpec::from_duration(duration.max(Duration::from_millis(1)));
        self.timer.set(Expiration::OneShot(duration), TimerSetTimeFlags::empty()).map_err(|errno| self.error(errno))
    }

    fn error(&self, errno: Errno) -> Error {
        Error::of_watch(&self.selector.dir, errno)
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }
}

/// Whether the used networks and the default are the same. Skipped files do not matter.
fn is_same(one: &Selection, other: &Selection) -> bool {
    one.networks == other.networks && one.default == other.default
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SelectionPolicy;
    use std::fs;
    use tempfile::TempDir;

    const LONG: Duration = Duration::from_mins(1);

    fn watcher(dir: &TempDir) -> Watcher {
        let dir = dir.path().join("net.d");
        Watcher::new(NetworkSelector { dir, policy: SelectionPolicy::FirstValid, runtime: None }).unwrap()
    }

    /// As a caller that polls many descriptors: it calls the watcher only when its descriptor is readable.
    fn next(watcher: &mut Watcher, timeout: Duration) -> Option<Selection> {
        let deadline = Deadline::after(timeout);
        while !deadline.passed() {
            let left = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap();
            if poll(&mut [PollFd::new(watcher.as_fd(), PollFlags::POLLIN)], left).unwrap() > 0
                && let Some(selection) = watcher.poll().unwrap()
            {
                return Some(selection);
            }
        }
        None
    }

    #[test]
    fn the_descriptor_is_readable_after_changes_and_only_then() {
        let dir = TempDir::new().unwrap();
        let mut watcher = watcher(&dir);
        let name = |selection: Option<Selection>| {
            selection.unwrap().default_network().map(|network| network.list.name.clone())
        };
        assert_eq!(name(next(&mut watcher, LONG)), None);
        fs::create_dir(dir.path().join("net.d")).unwrap();
        fs::write(dir.path().join("net.d/a.conf"), r#"{"name": "a", "type": "t"}"#).unwrap();
        assert_eq!(name(next(&mut watcher, LONG)).as_deref(), Some("a"));
        assert!(next(&mut watcher, QUIET * 3).is_none());
        // Other programs may change the directories above, so it may be readable now and then, but not for ever.
        let rests = |watcher: &mut Watcher| {
            assert!(watcher.poll().unwrap().is_none());
            poll(&mut [PollFd::new(watcher.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 0
        };
        assert!((0..100).any(|_| rests(&mut watcher)), "the descriptor stays readable");
    }

    #[test]
    fn an_error_names_the_sysctl_of_the_limit() {
        for (errno, sysctl) in [(Errno::EMFILE, "max_user_instances"), (Errno::ENOSPC, "max_user_watches")] {
            let error = Error::of_watch("/etc/cni/net.d".as_ref(), errno).to_string();
            assert!(error.starts_with("/etc/cni/net.d: cannot be watched: ") && error.contains(sysctl), "{error}");
        }
    }

    #[test]
    fn after_an_error_the_watch_continues() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("net.d");
        fs::write(&path, "no directory").unwrap();
        let mut watcher = watcher(&dir);
        let began = Instant::now();
        let error = watcher.wait(LONG).unwrap_err().to_string();
        assert!(error.contains("net.d: cannot be listed") && error.contains("hint"), "{error}");
        assert!(watcher.wait(LONG).is_err());
        assert!(began.elapsed() >= TIMEOUT, "it spins");
        fs::remove_file(&path).unwrap();
        let selection = watcher.wait(LONG).unwrap().unwrap();
        assert_eq!(selection, Selection::default());
    }
}
