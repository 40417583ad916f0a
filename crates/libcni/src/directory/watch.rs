//! Tells when the networks that a runtime uses change.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use cnikit_process::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::directory::inotify::{Armed, Heard};
use crate::{Error, NetworkSelector, Selection};

/// For so long nothing may happen before the directory is read: who installs several files does it in one go.
const QUIET: Duration = Duration::from_millis(100);

/// How long a file that is being written is waited for. A writer that takes longer is taken at its word.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Watches the directory of a [`NetworkSelector`], and tells what it chooses whenever that changes.
///
/// It starts no thread. Either [`Watcher::wait`] blocks, or its file descriptor ([`AsFd`]) is polled: whenever that is
/// readable, [`Watcher::poll`] does what there is to do. The first answer is what is there.
///
/// The directory may be missing, come, go and come again; it, its files and every directory on the way to them may be
/// symbolic links that are turned elsewhere, as Kubernetes does with `..data` in a mounted `ConfigMap`. Changes that
/// follow each other within 100 ms are one. A file that somebody holds open and writes, or that ends before its
/// document does, is waited for, at most 3 s, so that half of a configuration neither counts nor lets another network
/// take its place. Where the plugins are asked ([`NetworkSelector::runtime`]), their directories are watched too: a network can
/// be used as soon as its plugins are there.
///
/// An error, such as that the directory cannot be listed, is not the end: it is tried again when something changes, and
/// after 3 s. What inotify(7) does not see is not seen: changes that another machine makes on a network file system, and
/// what is mounted over a directory.
///
/// ```
/// use std::time::Duration;
/// use cnikit_libcni::{NetworkSelector, SelectionPolicy, Watcher};
/// # let dir = tempfile::tempdir()?;
/// let conf_dir = dir.path().join("net.d");
/// let mut watcher = Watcher::new(NetworkSelector { dir: conf_dir.clone(), policy: SelectionPolicy::FirstValid, runtime: None })?;
/// let first = watcher.wait(Duration::from_secs(10))?.expect("the first answer is what is there");
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
    armed: Armed,
    timer: TimerFd,
    /// Readable when either of the two is.
    either: Epoll,
    /// Since when something has changed that was not answered, and when it last did.
    unsettled: Option<Unsettled>,
    told: Option<Selection>,
}

#[derive(Clone, Copy, Debug)]
struct Unsettled {
    since: Instant,
    due: Instant,
}

impl Watcher {
    /// Begins to watch the directory of `selector`.
    ///
    /// # Errors
    /// [`Error::Watch`] if the kernel gives no inotify instance, timer or epoll instance; the text names the limit.
    pub fn new(selector: NetworkSelector) -> Result<Watcher, Error> {
        let failed = |errno| Error::of_watch(&selector.dir, errno);
        let armed = Armed::new().map_err(failed)?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        for fd in [armed.as_fd(), timer.as_fd()] {
            either.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        }
        let now = Instant::now();
        let unsettled = Some(Unsettled { since: now, due: now });
        let watcher = Watcher { selector, armed, timer, either, unsettled, told: None };
        watcher.wake_after(Duration::ZERO)?;
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
            if let Some(chosen) = self.poll()? {
                return Ok(Some(chosen));
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

    /// As [`Watcher::wait`], without waiting for changes. Call it whenever the file descriptor is readable, which it also is
    /// when a timer has expired. Where plugins are called, it takes as long as they do.
    ///
    /// # Errors
    /// [`Error::Watch`] if a directory cannot be watched, and [`Error::Configuration`] if it cannot be listed. The watch
    /// continues: call it again.
    pub fn poll(&mut self) -> Result<Option<Selection>, Error> {
        self.listen()?;
        let Some(Unsettled { since, due }) = self.unsettled else { return self.rest() };
        let now = Instant::now();
        let give_up = since + TIMEOUT;
        if now < due || (self.armed.is_written() && now < give_up) {
            return self.again_at(if now < due { due } else { give_up }, now);
        }
        let chosen = match self.arm().and_then(|()| self.selector.select()) {
            Ok(chosen) => chosen,
            Err(error) => return self.failed(error, now),
        };
        // What happened meanwhile may have been read in its middle.
        let is_disturbed = self.listen()?;
        if now < give_up && (is_disturbed || self.selector.is_open(&chosen, TIMEOUT)) {
            return self.again_at(Instant::now() + QUIET, now);
        }
        self.armed.forget_writers();
        self.unsettled = is_disturbed.then(|| Unsettled { since: now, due: now + QUIET });
        if is_disturbed {
            self.again_at(now + QUIET, now)?
        } else {
            self.rest()?
        };
        let is_new = self.told.as_ref().is_none_or(|told| !is_same(told, &chosen));
        self.told = Some(chosen.clone());
        Ok(is_new.then_some(chosen))
    }

    /// It is tried again later, for nothing else may come that would wake anybody; what is chosen then is told in any case.
    fn failed(&mut self, error: Error, now: Instant) -> Result<Option<Selection>, Error> {
        let due = now + TIMEOUT;
        self.told = None;
        self.unsettled = Some(Unsettled { since: due, due });
        self.again_at(due, now)?;
        Err(error)
    }

    /// The last selection, with the files that were skipped.
    pub fn last(&self) -> Option<&Selection> {
        self.told.as_ref()
    }

    /// Takes in what happened; whether anything did that counts.
    fn listen(&mut self) -> Result<bool, Error> {
        let heard = self.armed.listen().map_err(|errno| Error::of_watch(&self.selector.dir, errno))?;
        if heard == Heard::Nothing {
            return Ok(false);
        }
        let now = Instant::now();
        let since = self.unsettled.map_or(now, |unsettled| unsettled.since);
        // Somebody who never stops changing things gets an answer too.
        self.unsettled = Some(Unsettled { since, due: (now + QUIET).min(since + TIMEOUT).max(now) });
        Ok(true)
    }

    fn arm(&mut self) -> Result<(), Error> {
        let path = self.selector.runtime.as_ref().map(|runtime| runtime.path.as_str());
        let bins = path.unwrap_or_default().split(':').filter(|dir| !dir.is_empty());
        self.armed.arm(&self.selector.dir, bins).map_err(|errno| Error::of_watch(&self.selector.dir, errno))
    }

    fn again_at(&mut self, due: Instant, now: Instant) -> Result<Option<Selection>, Error> {
        self.wake_after(due.saturating_duration_since(now))?;
        Ok(None)
    }

    /// Nothing is to be done until something happens.
    fn rest(&self) -> Result<Option<Selection>, Error> {
        self.timer.unset().map_err(|errno| Error::of_watch(&self.selector.dir, errno))?;
        Ok(None)
    }

    fn wake_after(&self, duration: Duration) -> Result<(), Error> {
        // Zero would never come.
        let duration = TimeSpec::from_duration(duration.max(Duration::from_millis(1)));
        self.timer
            .set(Expiration::OneShot(duration), TimerSetTimeFlags::empty())
            .map_err(|errno| Error::of_watch(&self.selector.dir, errno))
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }
}

/// Whether a runtime would do the same: it does not matter to it what was passed over.
fn is_same(one: &Selection, other: &Selection) -> bool {
    (&one.networks, one.default) == (&other.networks, other.default)
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

    /// What a loop does that polls many: it looks only when the descriptor is readable.
    fn next(watcher: &mut Watcher, patience: Duration) -> Option<Result<Selection, Error>> {
        let deadline = Deadline::after(patience);
        while !deadline.passed() {
            let timeout = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap();
            if poll(&mut [PollFd::new(watcher.as_fd(), PollFlags::POLLIN)], timeout).unwrap() > 0
                && let Some(said) = watcher.poll().transpose()
            {
                return Some(said);
            }
        }
        None
    }

    #[test]
    fn a_loop_that_polls_the_descriptor_is_told_all_and_woken_for_nothing_else() {
        let dir = TempDir::new().unwrap();
        let mut watcher = watcher(&dir);
        let name = |said: Option<Result<Selection, Error>>| {
            let chosen = said.unwrap().unwrap();
            chosen.default_network().map(|network| network.list.name.clone())
        };
        assert_eq!(name(next(&mut watcher, LONG)), None);
        fs::create_dir(dir.path().join("net.d")).unwrap();
        fs::write(dir.path().join("net.d/a.conf"), r#"{"name": "a", "type": "t"}"#).unwrap();
        assert_eq!(name(next(&mut watcher, LONG)).as_deref(), Some("a"));
        assert!(next(&mut watcher, QUIET * 3).is_none());
        // Others may do something in the directories above, which wakes it now and then; it is not awake for ever.
        let rests = |watcher: &mut Watcher| {
            assert!(watcher.poll().unwrap().is_none());
            poll(&mut [PollFd::new(watcher.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 0
        };
        assert!((0..100).any(|_| rests(&mut watcher)), "the descriptor stays readable");
    }

    #[test]
    fn the_kernels_limits_are_named_with_the_switch_that_raises_them() {
        for (errno, switch) in [(Errno::EMFILE, "max_user_instances"), (Errno::ENOSPC, "max_user_watches")] {
            let error = Error::of_watch("/etc/cni/net.d".as_ref(), errno).to_string();
            assert!(error.starts_with("/etc/cni/net.d: cannot be watched: ") && error.contains(switch), "{error}");
        }
    }

    #[test]
    fn after_an_error_it_goes_on_and_tells_what_is_there() {
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
        let chosen = watcher.wait(LONG).unwrap().unwrap();
        assert_eq!(chosen, Selection::default());
    }
}
