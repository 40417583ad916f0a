//! Run the verbs for one attachment or network with the plugins of its list.

use cnikit_types::Version;
use serde_json::Value;

use crate::cache::entry::{CacheMetadata, Entry, recorded};
use crate::cache::results::{Record, in_version_of};
use crate::runtime::chain::unsupported;
use crate::{Attachment, CachedAttachment, Error, ErrorContext, Failure, NetworkList, Runtime, State, Warnings};

/// The steps that one plugin of a list would take.
#[derive(Debug)]
#[non_exhaustive]
pub struct PlannedSteps {
    /// The plugin's type.
    pub plugin: String,
    /// Its steps, each in words, or why it does not report them.
    pub steps: Result<Vec<String>, Failure>,
}

/// Whether a DEL continues after a plugin has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Continue,
    Stop,
}

impl Runtime {
    /// Runs ADD: each plugin in order, its result passed to the next. Returns and caches the last result.
    ///
    /// Names, the space for the result and the plugins' files are checked before the first plugin runs; then the intent is
    /// recorded, so that a runtime that is killed leaks nothing. If an earlier ADD with another configuration was interrupted,
    /// its remains are deleted first. After a failure nothing is undone: the caller sends the DEL (specification, section 2,
    /// "ADD"), and until then the intent stays.
    ///
    /// # Errors
    /// [`Error::Name`] for a name that the specification does not allow, [`Error::Busy`] and [`Error::Cancelled`] while waiting
    /// for locks, [`Error::Cache`] if the attachment cannot be recorded, and [`Error::Plugins`] for the plugin that failed.
    pub fn add(&self, list: &NetworkList, at: &Attachment) -> Result<Value, Error> {
        at.check_names(&list.name)?;
        let _locks = self.lock(&[&list.name], at)?;
        self.add_locked(list, at, self.is_attached(list, at))
    }

    /// As [`Runtime::add`], and after a failure sends DEL to the whole list, as a runtime has to, before it returns.
    ///
    /// No DEL is sent if the attachment existed before, because it would remove the attachment of a running container.
    ///
    /// # Errors
    /// As [`Runtime::add`]; [`Error::Several`] if the DEL fails too.
    pub fn add_with_rollback(&self, list: &NetworkList, at: &Attachment) -> Result<Value, Error> {
        at.check_names(&list.name)?;
        let _locks = self.lock(&[&list.name], at)?;
        self.add_or_undo_locked(list, at)
    }

    /// Compares the attachment with the cached result: each plugin in order, up to the first that finds a difference.
    ///
    /// # Errors
    /// [`Error::Plugins`] for the first plugin that finds a difference or fails, [`Error::NoCheck`] before version 0.4.0,
    /// [`Error::Cache`] if the cached result cannot be read, and [`Error::Busy`] or [`Error::Cancelled`] while waiting for
    /// locks.
    pub fn check(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        if !list.is_checked()? {
            return Ok(());
        }
        let _locks = self.lock_if_possible(&[&list.name], at, &mut Warnings::default())?;
        self.check_locked(list, at)
    }

    /// Runs DEL: each plugin, the last one first, also after a failure. The cached attachment is removed when all have
    /// succeeded, so that DEL can be repeated.
    ///
    /// The configuration, arguments and capabilities are those that ADD was given, as far as they are cached, otherwise the
    /// caller's. A cached result that cannot be read does not prevent the DEL: the plugins are called without it, and the file is
    /// set aside.
    ///
    /// # Errors
    /// [`Error::Plugins`] with every plugin that failed, [`Error::Cache`] if the cached attachment cannot be removed, and
    /// [`Error::Busy`] or [`Error::Cancelled`] while waiting for locks.
    pub fn del(&self, list: &NetworkList, at: &Attachment) -> Result<Warnings, Error> {
        self.lock_and_del(list, at, OnFailure::Continue)
    }

    /// As [`Runtime::del`], but stops at the first plugin that fails, as the specification says (section 2, "DEL"): plugins
    /// before it in the list may depend on what it did not remove.
    ///
    /// # Errors
    /// As [`Runtime::del`].
    pub fn del_fail_fast(&self, list: &NetworkList, at: &Attachment) -> Result<Warnings, Error> {
        self.lock_and_del(list, at, OnFailure::Stop)
    }

    /// As [`Runtime::del`], for an attachment from [`Cache::attachments`](crate::Cache::attachments): only the cached
    /// configuration is needed. A path that no longer leads to its namespace is not passed to the plugins.
    ///
    /// # Errors
    /// As [`Runtime::del`] and [`CachedAttachment::list`].
    pub fn del_cached(&self, cached: &CachedAttachment) -> Result<Warnings, Error> {
        let list = cached.list()?;
        self.del(&list, &cached.for_del())
    }

    /// Runs PLAN: the steps of an ADD, as each plugin describes them; nothing is changed. It is an extension: a plugin that does
    /// not support it fails, and the others are still called. Each plugin gets the example result of the plugins before it, if they
    /// report one.
    #[doc(alias = "dry run")]
    pub fn plan(&self, list: &NetworkList, at: &Attachment) -> Vec<PlannedSteps> {
        let chain = self.chain("PLAN", list, at);
        let mut previous: Option<Value> = None;
        let mut all = Vec::new();
        for index in chain.indices() {
            let reply = chain.exec(index, previous.as_ref());
            if let Ok(stdout) = &reply
                && let Some(example) = chain.example(stdout)
            {
                previous = Some(example);
            }
            let steps = reply.and_then(|stdout| chain.steps(index, &stdout));
            all.push(PlannedSteps { plugin: chain.plugin(index).to_owned(), steps });
        }
        all
    }

    /// Runs STATUS: whether an ADD could be served. Versions before 1.1.0 do not have STATUS; the call then succeeds.
    ///
    /// # Errors
    /// [`Error::Plugins`] for the first plugin that could not serve an ADD (code 50 or 51) or that failed, and [`Error::Busy`]
    /// or [`Error::Cancelled`] while waiting for a free slot.
    pub fn status(&self, list: &NetworkList) -> Result<(), Error> {
        if !list.is_since(Version::V1_1_0) {
            return Ok(());
        }
        let _slot = self.slot()?;
        let none = Attachment::default();
        let chain = self.chain("STATUS", list, &none);
        for index in chain.indices() {
            chain.status(index)?;
        }
        Ok(())
    }

    /// The versions that a plugin supports.
    ///
    /// # Errors
    /// [`Error::Plugins`] if it cannot be found or started, or if its reply cannot be parsed.
    pub fn versions(&self, plugin: &str) -> Result<Vec<String>, Error> {
        match self.supported_versions(plugin) {
            Ok(versions) => Ok(versions),
            Err(kind) => Err(Error::from(Failure {
                verb: "VERSION",
                plugin: plugin.to_owned(),
                network: "".into(),
                ifname: "".into(),
                position: 1,
                of: 1,
                kind,
            })),
        }
    }

    /// Checks that all plugins exist and support the list's version; returns the capabilities that any of them declares, each
    /// once.
    ///
    /// # Errors
    /// [`Error::Plugins`] with every plugin that is missing, does not reply or does not support the version.
    #[doc(alias = "ValidateNetworkList")]
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>, Error> {
        let none = Attachment::default();
        let chain = self.chain("VERSION", list, &none);
        let mut failures = Vec::new();
        for index in chain.indices() {
            match self.supported_versions(chain.plugin(index)) {
                Ok(supported) => {
                    if let Some(kind) = unsupported(&list.version, &supported) {
                        failures.push(chain.failure(index, kind));
                    }
                }
                Err(kind) => failures.push(chain.failure(index, kind)),
            }
        }
        if !failures.is_empty() {
            return Err(Error::Plugins(failures));
        }
        let mut all: Vec<String> = list.plugins.iter().flat_map(|listed| listed.capabilities.clone()).collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn add_locked(&self, list: &NetworkList, at: &Attachment, was_attached: bool) -> Result<Value, Error> {
        self.cache.check_space(list, at)?;
        let chain = self.chain("ADD", list, at);
        for index in chain.indices() {
            chain.check_installed(index)?;
        }
        if !was_attached {
            self.del_interrupted(list, at)?;
        }
        let _slot = self.slot()?;
        let metadata = CacheMetadata::now(&at.netns);
        self.cache.begin(list, at, &metadata)?;
        match chain.add() {
            Ok(result) => {
                self.cache.save(list, at, &metadata, &result)?;
                Ok(result)
            }
            Err(failure) => {
                if was_attached || failure.is_of_nothing() {
                    self.cache.withdraw(list, at)?;
                }
                Err(failure.into())
            }
        }
    }

    /// Runs DEL for an interrupted ADD with another configuration, whose intent would be replaced by that of the new ADD.
    fn del_interrupted(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let Some(cached) = self.cache.attachment(&list.name, &at.container_id, &at.ifname) else { return Ok(()) };
        if cached.state == State::Attached || cached.config.as_ref() == Some(&list.recorded()) {
            return Ok(());
        }
        let Ok(recorded) = cached.list() else { return Ok(()) };
        match self.del_locked(&recorded, &cached.for_del(), OnFailure::Continue, Warnings::default()) {
            Ok(_) => Ok(()),
            Err(error) => {
                let what = "an earlier ADD was interrupted, and what it made cannot be deleted".to_owned();
                Err(Error::Several(vec![ErrorContext { what, error }]))
            }
        }
    }

    /// ADD, and DEL if it fails, while the container is locked.
    pub(crate) fn add_or_undo_locked(&self, list: &NetworkList, at: &Attachment) -> Result<Value, Error> {
        let was_attached = self.is_attached(list, at);
        let failed = match self.add_locked(list, at, was_attached) {
            Ok(result) => return Ok(result),
            Err(failed) => failed,
        };
        // Without an intent no plugin was called.
        if was_attached || !self.cache.has_begun(list, at) {
            return Err(failed);
        }
        let undoing = Self { cancel: None, ..self.clone() };
        match undoing.del_locked(list, at, OnFailure::Continue, Warnings::default()) {
            Ok(_) => Err(failed),
            Err(error) => {
                let undo = ErrorContext { what: "and undoing it failed".to_owned(), error };
                Err(Error::Several(vec![failed.into(), undo]))
            }
        }
    }

    /// Whether this attachment has a cached result.
    pub(crate) fn is_attached(&self, list: &NetworkList, at: &Attachment) -> bool {
        self.cache.result(list, at).is_ok_and(|cached| cached.is_some())
    }

    /// CHECK, while the container is locked.
    pub(crate) fn check_locked(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let cached = self.cache.result(list, at)?;
        let _slot = self.slot()?;
        let chain = self.chain("CHECK", list, at);
        for index in chain.indices() {
            chain.exec(index, cached.as_ref())?;
        }
        Ok(())
    }

    fn lock_and_del(&self, list: &NetworkList, at: &Attachment, on_failure: OnFailure) -> Result<Warnings, Error> {
        let mut report = Warnings::default();
        let _locks = self.lock_if_possible(&[&list.name], at, &mut report)?;
        self.del_locked(list, at, on_failure, report)
    }

    /// DEL, while the container is locked. The recorded configuration is used instead of `list` if there is one.
    pub(crate) fn del_locked(
        &self,
        list: &NetworkList,
        at: &Attachment,
        on_failure: OnFailure,
        mut report: Warnings,
    ) -> Result<Warnings, Error> {
        let Record { entry, damage } = self.cache.record(&list.name, at);
        let Entry { at: cached, config, result, .. } = entry.unwrap_or_default();
        let at = with_cached_parameters(at, cached);
        let mut as_added = None;
        if let Some(config) = config {
            match recorded(&config, &list.name) {
                Ok(recorded) => as_added = Some(recorded),
                Err(why) => {
                    report.warnings.push(format!("done without the cached configuration: {why}"));
                }
            }
        }
        report.warnings.extend(damage);
        let used = as_added.as_ref().unwrap_or(list);
        let mut previous = None;
        if let Some(result) = result
            && used.is_since(Version::V0_4_0)
        {
            match in_version_of(used, result) {
                Ok(converted) => previous = Some(converted),
                Err(error) => report.warnings.push(error.to_string()),
            }
        }
        let _slot = self.slot()?;
        let done = self.chain("DEL", used, &at).del(previous.as_ref(), on_failure == OnFailure::Stop);
        match done {
            Ok(()) => {}
            Err(error) if used.plugins == list.plugins => return Err(error),
            Err(error) => {
                // The plugins in the error are those of the recorded configuration.
                let what = "with the configuration of its ADD, which differs from the current one".to_owned();
                return Err(Error::Several(vec![ErrorContext { what, error }]));
            }
        }
        self.cache.forget(&used.name, &at)?;
        Ok(report)
    }
}

/// The attachment with the arguments and capabilities of its ADD, if the caller gives none.
fn with_cached_parameters(at: &Attachment, cached: Attachment) -> Attachment {
    let mut filled = at.clone();
    if filled.args.is_empty() {
        filled.args = cached.args;
    }
    if filled.capabilities.is_empty() {
        filled.capabilities = cached.capabilities;
    }
    filled
}
