//! The networks of one container: attached one after another, all of them or none.

use std::panic;
use std::thread::{self, ScopedJoinHandle};

use cnikit_types::Version;
use serde_json::{Value, json};

use crate::cache::lock::Locks;
use crate::runtime::verbs::OnFailure;
use crate::{
    Attachment, CachedAttachment, Error, ErrorContext, Merged, NetworkList, Runtime, State, ValidAttachment, Warnings,
};

/// The name of the loopback's network in upstream's runtimes.
const LOOPBACK: &str = "cni-loopback";

/// The networks that every container of a runtime gets, each with its interface.
#[doc(alias = "go-cni")]
#[derive(Clone, Debug)]
pub struct Networks {
    /// The runtime that runs the plugins.
    pub runtime: Runtime,
    /// The networks, in the order of ADD.
    pub networks: Vec<Network>,
    /// The prefix of the names of interfaces.
    pub prefix: String,
    /// How many networks are required besides the loopback.
    pub least: usize,
}

/// One network, with the name of its interface.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Network {
    /// The network.
    pub list: NetworkList,
    /// The interface in the container.
    pub ifname: String,
}

impl Networks {
    /// No networks yet. At least one is required besides the loopback, and their interfaces are `eth0`, `eth1` and so on.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, networks: Vec::new(), prefix: "eth".to_owned(), least: 1 }
    }

    /// Sets the prefix of the interfaces of networks that are added later.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// Sets how many networks are required besides the loopback before a container is attached.
    #[must_use]
    pub fn at_least(self, count: usize) -> Self {
        Self { least: count, ..self }
    }

    /// Adds a network with the next interface.
    #[must_use]
    pub fn with(self, list: NetworkList) -> Self {
        let ifname = format!("{}{}", self.prefix, self.count());
        self.with_as(list, &ifname)
    }

    /// Adds a network with this interface.
    #[must_use]
    pub fn with_as(mut self, list: NetworkList, ifname: &str) -> Self {
        self.networks.push(Network { list, ifname: ifname.to_owned() });
        self
    }

    /// Adds the container's `lo` before all others, in a version that every loopback plugin supports and that has CHECK.
    #[must_use]
    pub fn with_loopback(mut self) -> Self {
        let conf = json!({"cniVersion": Version::V0_4_0.as_str(), "name": LOOPBACK, "plugins": [{"type": "loopback"}]});
        if let Ok(list) = NetworkList::parse(conf.to_string().as_bytes()) {
            self.networks.insert(0, Network { list, ifname: "lo".to_owned() });
        }
        self
    }

    /// Checks that as many networks are loaded as are required, and that each could serve an ADD.
    ///
    /// # Errors
    /// [`Error::TooFew`], and as [`Runtime::status`] for the first network that could not (code 50 or 51).
    pub fn status(&self) -> Result<(), Error> {
        self.check_count()?;
        for network in &self.networks {
            self.runtime.status(&network.list)?;
        }
        Ok(())
    }

    /// Attaches a container to all networks, one after another. `container` has everything but the interface.
    ///
    /// If one fails, those before it are detached again, except those that were attached before: the container has all new
    /// networks or none.
    ///
    /// # Errors
    /// [`Error::TooFew`], [`Error::Name`], [`Error::Busy`] and [`Error::Cancelled`] before any plugin runs. [`Error::Several`] with
    /// the network that failed, and with every error of the roll-back.
    pub fn setup(&self, container: &Attachment) -> Result<Merged, Error> {
        let _locks = self.begin(container)?;
        let new = self.new_networks(container);
        let mut merged = Merged::default();
        let mut done = Vec::new();
        for network in &self.networks {
            match self.runtime.add_or_undo_locked(&network.list, &network.of(container)) {
                Ok(result) => {
                    merged.join(&network.list.name, &network.ifname, &container.netns, result);
                    if new.contains(&network) {
                        done.push(network);
                    }
                }
                Err(error) => return Err(self.undo(container, done, vec![network.error(error)])),
            }
        }
        Ok(merged)
    }

    /// As [`Networks::setup`], all networks at once.
    ///
    /// The specification requires one operation at a time for a container (section 3, "Lifecycle & ordering"): plugins that write
    /// the same routes, sysctls or files of one container may fail or undo each other's work. Use it only with plugins that are
    /// known not to conflict.
    ///
    /// # Errors
    /// As [`Networks::setup`], with every network that failed.
    pub fn setup_at_once(&self, container: &Attachment) -> Result<Merged, Error> {
        let _locks = self.begin(container)?;
        let new = self.new_networks(container);
        let add = |network: &Network| self.runtime.add_or_undo_locked(&network.list, &network.of(container));
        let results: Vec<thread::Result<Result<Value, Error>>> = thread::scope(|scope| {
            let running: Vec<_> = self.networks.iter().map(|network| scope.spawn(move || add(network))).collect();
            running.into_iter().map(ScopedJoinHandle::join).collect()
        });
        let mut merged = Merged::default();
        let mut done = Vec::new();
        let mut errors = Vec::new();
        for (network, result) in self.networks.iter().zip(results) {
            match result.unwrap_or_else(|panic| panic::resume_unwind(panic)) {
                Ok(result) => {
                    merged.join(&network.list.name, &network.ifname, &container.netns, result);
                    if new.contains(&network) {
                        done.push(network);
                    }
                }
                Err(error) => errors.push(network.error(error)),
            }
        }
        if errors.is_empty() { Ok(merged) } else { Err(self.undo(container, done, errors)) }
    }

    /// The networks to which the container is not attached yet.
    fn new_networks(&self, container: &Attachment) -> Vec<&Network> {
        let is_new = |network: &&Network| !self.runtime.is_attached(&network.list, &network.of(container));
        self.networks.iter().filter(is_new).collect()
    }

    /// Compares the container with the cached results, network by network, up to the first difference. A network whose version
    /// has no CHECK is skipped.
    ///
    /// # Errors
    /// [`Error::Several`] with the first network that differs or fails, and [`Error::Busy`] or [`Error::Cancelled`] while
    /// waiting for locks.
    pub fn check(&self, container: &Attachment) -> Result<(), Error> {
        let _locks = self.runtime.lock_if_possible(&self.names(), container, &mut Warnings::default())?;
        for network in &self.networks {
            if !network.list.is_checked().unwrap_or(false) {
                continue;
            }
            if let Err(error) = self.runtime.check_locked(&network.list, &network.of(container)) {
                return Err(Error::Several(vec![network.error(error)]));
            }
        }
        Ok(())
    }

    /// Detaches a container from all networks, the last one first, even after a failure. Networks that are no longer loaded but are
    /// in the cache are included.
    ///
    /// # Errors
    /// [`Error::Several`] with everything that failed, and [`Error::Busy`] or [`Error::Cancelled`] while waiting for locks.
    pub fn remove(&self, container: &Attachment) -> Result<Warnings, Error> {
        let mut report = Warnings::default();
        let mut others = self.runtime.cache.attachments_of(&container.container_id).unwrap_or_default();
        others.retain(|cached| self.is_other(cached));
        let mut names = self.names();
        names.extend(others.iter().map(|cached| cached.network.as_str()));
        let _locks = self.runtime.lock_if_possible(&names, container, &mut report)?;
        let mut errors = Vec::new();
        for cached in &others {
            let at = Attachment { netns: container.netns.clone(), ..cached.at.clone() };
            match cached.list().and_then(|list| self.del(&list, &at)) {
                Ok(done) => report.warnings.extend(done.warnings),
                Err(error) => errors.push(context(&cached.network, &at.ifname, error)),
            }
        }
        for network in self.networks.iter().rev() {
            match self.del(&network.list, &network.of(container)) {
                Ok(done) => report.warnings.extend(done.warnings),
                Err(error) => errors.push(network.error(error)),
            }
        }
        Error::of(errors)?;
        Ok(report)
    }

    fn del(&self, list: &NetworkList, at: &Attachment) -> Result<Warnings, Error> {
        self.runtime.del_locked(list, at, OnFailure::Continue, Warnings::default())
    }

    /// Runs GC on each network. These containers are valid there: each with the interface that the network has now, and with those
    /// in the cache.
    ///
    /// # Errors
    /// [`Error::Cache`] if the cache cannot be listed; nothing is removed then. [`Error::Several`] with everything that failed.
    pub fn gc(&self, containers: &[&str]) -> Result<Warnings, Error> {
        let cached = self.runtime.cache.attachments()?;
        let mut report = Warnings::default();
        let mut errors = Vec::new();
        for network in &self.networks {
            match self.runtime.gc(&network.list, &valid(network, containers, &cached)) {
                Ok(done) => report.warnings.extend(done.warnings),
                Err(error) => errors.push(network.error(error)),
            }
        }
        Error::of(errors)?;
        Ok(report)
    }

    /// Makes the checks that need no plugin, and takes the locks.
    fn begin(&self, container: &Attachment) -> Result<Locks, Error> {
        self.check_count()?;
        for network in &self.networks {
            network.of(container).check_names(&network.list.name)?;
        }
        self.runtime.lock(&self.names(), container)
    }

    /// Detaches the container from these networks, and adds the errors of these DELs.
    fn undo(&self, container: &Attachment, done: Vec<&Network>, mut errors: Vec<ErrorContext>) -> Error {
        let undoing = Runtime { cancel: None, ..self.runtime.clone() };
        for network in done.into_iter().rev() {
            let at = network.of(container);
            if let Err(error) = undoing.del_locked(&network.list, &at, OnFailure::Continue, Warnings::default()) {
                errors.push(ErrorContext { what: format!("and undoing {}", network.what()), error });
            }
        }
        Error::Several(errors)
    }

    fn check_count(&self) -> Result<(), Error> {
        let found = self.count();
        if found < self.least { Err(Error::TooFew { found, wanted: self.least }) } else { Ok(()) }
    }

    fn count(&self) -> usize {
        self.networks.iter().filter(|network| network.list.name != LOOPBACK).count()
    }

    fn names(&self) -> Vec<&str> {
        self.networks.iter().map(|network| network.list.name.as_str()).collect()
    }

    /// Whether a cached attachment can be read and is not one of these networks'.
    fn is_other(&self, cached: &CachedAttachment) -> bool {
        let is_own = |network: &Network| network.list.name == cached.network && network.ifname == cached.at.ifname;
        cached.state != State::Unreadable && !self.networks.iter().any(is_own)
    }
}

impl Network {
    fn of(&self, container: &Attachment) -> Attachment {
        container.clone().on(&self.ifname)
    }

    fn what(&self) -> String {
        format!("network {}, {}", self.list.name, self.ifname)
    }

    fn error(&self, error: Error) -> ErrorContext {
        context(&self.list.name, &self.ifname, error)
    }
}

/// The valid attachments of a network: each container with the interface that the network has now, and with those in the cache.
fn valid(network: &Network, containers: &[&str], cached: &[CachedAttachment]) -> Vec<ValidAttachment> {
    let mut all = Vec::new();
    for id in containers {
        all.push(ValidAttachment { container_id: (*id).to_owned(), ifname: network.ifname.clone() });
    }
    for known in cached {
        if let Some(attachment) = known.attachment_of(&network.list.name)
            && containers.contains(&attachment.container_id.as_str())
        {
            all.push(attachment);
        }
    }
    all.sort();
    all.dedup();
    all
}

/// An error of one network and interface.
fn context(network: &str, ifname: &str, error: Error) -> ErrorContext {
    ErrorContext { what: format!("network {network}, {ifname}"), error }
}
