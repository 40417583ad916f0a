//! Several networks of one container, one after another, all of them or none.

use std::panic;
use std::thread::{self, ScopedJoinHandle};

use cnikit_types::Version;
use serde_json::{Value, json};

use crate::runtime::verbs::OnFailure;
use crate::{
    Attachment, CachedAttachment, Error, ErrorContext, Merged, NetworkList, Runtime, State, ValidAttachment, Warnings,
};

/// The name that runtimes give the network of the container's own loopback.
const LOOPBACK: &str = "cni-loopback";

/// The networks that every container of a runtime gets, each with its interface.
#[doc(alias = "go-cni")]
#[derive(Clone, Debug)]
pub struct Networks {
    /// Who carries it out.
    pub runtime: Runtime,
    /// In the order in which they are set up.
    pub networks: Vec<Network>,
    /// What the names of interfaces begin with.
    pub prefix: String,
    /// How many networks are wanted besides the loopback.
    pub least: usize,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The network.
    pub list: NetworkList,
    /// The interface that the container gets.
    pub ifname: String,
}

impl Networks {
    /// No networks yet. At least one is required besides the loopback, and the interfaces are `eth0`, `eth1` and so on.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, networks: Vec::new(), prefix: "eth".to_owned(), least: 1 }
    }

    /// The prefix of the interfaces of the networks that follow.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// Requires this many networks besides the loopback before a container is set up.
    #[must_use]
    pub fn at_least(self, count: usize) -> Self {
        Self { least: count, ..self }
    }

    /// Adds a network, with the next interface.
    #[must_use]
    pub fn with(self, list: NetworkList) -> Self {
        let ifname = format!("{}{}", self.prefix, self.besides_loopback());
        self.with_as(list, &ifname)
    }

    /// Adds a network, with this interface.
    #[must_use]
    pub fn with_as(mut self, list: NetworkList, ifname: &str) -> Self {
        self.networks.push(Network { list, ifname: ifname.to_owned() });
        self
    }

    /// Adds the container's `lo`, set up before all others; in a version that every loopback plugin supports and that has
    /// CHECK.
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
        self.are_enough()?;
        self.networks.iter().try_for_each(|network| self.runtime.status(&network.list))
    }

    /// Attaches a container to all networks, one after another. `container` has everything but the interface.
    ///
    /// If one fails, those before it are detached again, except those that were attached before: the container has all new
    /// networks or none.
    ///
    /// # Errors
    /// [`Error::TooFew`], [`Error::Name`], [`Error::Busy`] and [`Error::Cancelled`] before any plugin runs. [`Error::Several`]
    /// with the network that failed, and with whatever failed while undoing.
    pub fn setup(&self, container: &Attachment) -> Result<Merged, Error> {
        let _locks = self.begin(container)?;
        let new = self.new_of(container);
        let mut merged = Merged::default();
        for (at, network) in self.networks.iter().enumerate() {
            match self.runtime.add_or_undo_held(&network.list, &network.of(container)) {
                Ok(result) => merged.join(&network.list.name, &network.ifname, &container.netns, result),
                Err(why) => {
                    let done = self.networks[..at].iter().filter(|network| new.contains(network)).collect();
                    return Err(self.undone(container, done, vec![network.told(why)]));
                }
            }
        }
        Ok(merged)
    }

    /// As [`Networks::setup`], all networks at once.
    ///
    /// The specification wants one operation at a time for a container (section 3, "Lifecycle & ordering"): plugins that write
    /// the same routes, sysctls or files of one container may fail or undo each other's work. Choose it only for plugins that
    /// you know.
    ///
    /// # Errors
    /// As [`Networks::setup`], with every network that failed.
    pub fn setup_at_once(&self, container: &Attachment) -> Result<Merged, Error> {
        let _locks = self.begin(container)?;
        let new = self.new_of(container);
        let add = |network: &Network| self.runtime.add_or_undo_held(&network.list, &network.of(container));
        let results: Vec<thread::Result<Result<Value, Error>>> = thread::scope(|scope| {
            let running: Vec<_> = self.networks.iter().map(|network| scope.spawn(move || add(network))).collect();
            running.into_iter().map(ScopedJoinHandle::join).collect()
        });
        let (mut merged, mut done, mut failed) = (Merged::default(), Vec::new(), Vec::new());
        for (network, result) in self.networks.iter().zip(results) {
            match result.unwrap_or_else(|panic| panic::resume_unwind(panic)) {
                Ok(result) => {
                    done.extend(new.contains(&network).then_some(network));
                    merged.join(&network.list.name, &network.ifname, &container.netns, result);
                }
                Err(why) => failed.push(network.told(why)),
            }
        }
        if failed.is_empty() { Ok(merged) } else { Err(self.undone(container, done, failed)) }
    }

    /// The networks that the container is not on yet.
    fn new_of(&self, container: &Attachment) -> Vec<&Network> {
        let is_new = |network: &&Network| !self.runtime.was_there(&network.list, &network.of(container));
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
        let mut checked = self.networks.iter().filter(|network| network.list.is_checked().unwrap_or(false));
        checked.try_for_each(|network| {
            let checked = self.runtime.check_held(&network.list, &network.of(container));
            checked.map_err(|why| Error::Several(vec![network.told(why)]))
        })
    }

    /// Detaches a container from all networks, the last one first, also after a failure; also from networks that are no longer
    /// loaded but that are in the cache.
    ///
    /// # Errors
    /// [`Error::Several`] with everything that failed, and [`Error::Busy`] or [`Error::Cancelled`] while waiting for locks.
    pub fn remove(&self, container: &Attachment) -> Result<Warnings, Error> {
        let mut report = Warnings::default();
        let known = self.runtime.cache.attachments_of(&container.container_id).unwrap_or_default();
        let others: Vec<&CachedAttachment> = known.iter().filter(|kept| self.is_other(kept)).collect();
        let mut names = self.names();
        names.extend(others.iter().map(|kept| kept.network.as_str()));
        let _locks = self.runtime.lock_if_possible(&names, container, &mut report)?;
        let mut failed = Vec::new();
        let mut note = |name: &str, ifname: &str, done: Result<Warnings, Error>| match done {
            Ok(done) => report.warnings.extend(done.warnings),
            Err(why) => failed.push(ErrorContext { what: about(name, ifname), why }),
        };
        let del =
            |list: &NetworkList, at: &Attachment| self.runtime.del_held(list, at, OnFailure::GoOn, Warnings::default());
        for kept in others {
            let at = Attachment { netns: container.netns.clone(), ..kept.at.clone() };
            note(&kept.network, &at.ifname, kept.list().and_then(|list| del(&list, &at)));
        }
        for network in self.networks.iter().rev() {
            note(&network.list.name, &network.ifname, del(&network.list, &network.of(container)));
        }
        Error::of(failed).map(|()| report)
    }

    /// Runs GC on each network, where these containers are the valid ones: each with the interface that it has today, and with
    /// those in the cache.
    ///
    /// # Errors
    /// [`Error::Cache`] if the cache cannot be listed; nothing is removed then. [`Error::Several`] with everything that failed.
    pub fn gc(&self, containers: &[&str]) -> Result<Warnings, Error> {
        let known = self.runtime.cache.attachments()?;
        let (mut report, mut failed) = (Warnings::default(), Vec::new());
        for network in &self.networks {
            let valid = |container_id: &str, ifname: &str| ValidAttachment {
                container_id: container_id.to_owned(),
                ifname: ifname.to_owned(),
            };
            let mut all: Vec<ValidAttachment> = containers.iter().map(|id| valid(id, &network.ifname)).collect();
            let known = known.iter().filter_map(|kept| kept.whose(&network.list.name));
            all.extend(known.filter(|known| containers.contains(&&*known.container_id)));
            all.sort();
            all.dedup();
            match self.runtime.gc(&network.list, &all) {
                Ok(done) => report.warnings.extend(done.warnings),
                Err(why) => failed.push(network.told(why)),
            }
        }
        Error::of(failed).map(|()| report)
    }

    /// Checks what can be judged before anything is done, and takes the locks.
    fn begin(&self, container: &Attachment) -> Result<crate::cache::lock::Locks, Error> {
        self.are_enough()?;
        for network in &self.networks {
            network.of(container).check_names(&network.list.name)?;
        }
        self.runtime.lock(&self.names(), container)
    }

    /// Takes down again what was set up, and adds what fails at that.
    fn undone(&self, container: &Attachment, done: Vec<&Network>, mut failed: Vec<ErrorContext>) -> Error {
        let undoing = Runtime { cancel: None, ..self.runtime.clone() };
        for network in done.into_iter().rev() {
            let undone = undoing.del_held(&network.list, &network.of(container), OnFailure::GoOn, Warnings::default());
            failed
                .extend(undone.err().map(|why| ErrorContext { what: format!("and undoing {}", network.what()), why }));
        }
        Error::Several(failed)
    }

    fn are_enough(&self) -> Result<(), Error> {
        let found = self.besides_loopback();
        if found < self.least { Err(Error::TooFew { found, wanted: self.least }) } else { Ok(()) }
    }

    fn besides_loopback(&self) -> usize {
        self.networks.iter().filter(|network| network.list.name != LOOPBACK).count()
    }

    fn names(&self) -> Vec<&str> {
        self.networks.iter().map(|network| network.list.name.as_str()).collect()
    }

    /// Whether none of these networks would take it down.
    fn is_other(&self, kept: &CachedAttachment) -> bool {
        let is_own = |network: &Network| network.list.name == kept.network && network.ifname == kept.at.ifname;
        kept.state != State::Unreadable && !self.networks.iter().any(is_own)
    }
}

impl Network {
    fn of(&self, container: &Attachment) -> Attachment {
        container.clone().on(&self.ifname)
    }

    fn what(&self) -> String {
        about(&self.list.name, &self.ifname)
    }

    fn told(&self, why: Error) -> ErrorContext {
        ErrorContext { what: self.what(), why }
    }
}

/// Of which network, and which interface of it, something is told.
fn about(network: &str, ifname: &str) -> String {
    format!("network {network}, {ifname}")
}
