//! The verbs of one attachment or network, over the plugins of its list.

use cnikit_types::Version;
use serde_json::Value;

use crate::cache::entry::{CacheMetadata, recorded};
use crate::cache::results::{Record, in_version_of};
use crate::runtime::chain::unspoken;
use crate::{Attachment, CachedAttachment, Error, ErrorContext, Failure, NetworkList, Runtime, State, Warnings};

/// What one plugin of a list would do.
#[derive(Debug)]
pub struct PlannedSteps {
    /// The plugin's type.
    pub plugin: String,
    /// Its steps in words, or why it does not say.
    pub steps: Result<Vec<String>, Failure>,
}

/// What a DEL does after a plugin has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    GoOn,
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
        self.add_held(list, at, self.was_there(list, at))
    }

    /// As [`Runtime::add`], and after a failure sends DEL to the whole list, as a runtime has to, before it returns.
    ///
    /// It does not if the attachment existed before: DEL would take down a running container's.
    ///
    /// # Errors
    /// As [`Runtime::add`]; [`Error::Several`] if the DEL fails too.
    pub fn add_with_rollback(&self, list: &NetworkList, at: &Attachment) -> Result<Value, Error> {
        at.check_names(&list.name)?;
        let _locks = self.lock(&[&list.name], at)?;
        self.add_or_undo_held(list, at)
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
        self.check_held(list, at)
    }

    /// Runs DEL: each plugin, the last one first, also after a failure. The cached attachment is removed when all have
    /// succeeded, so that DEL can be repeated.
    ///
    /// The configuration, arguments and capabilities are those that ADD was given, as far as they are cached, otherwise the
    /// caller's. A cached result that cannot be read stops no DEL: the plugins are called without it, and the file is set
    /// aside.
    ///
    /// # Errors
    /// [`Error::Plugins`] with every plugin that failed, [`Error::Cache`] if the cached attachment cannot be removed, and
    /// [`Error::Busy`] or [`Error::Cancelled`] while waiting for locks.
    pub fn del(&self, list: &NetworkList, at: &Attachment) -> Result<Warnings, Error> {
        self.del_locked(list, at, OnFailure::GoOn)
    }

    /// As [`Runtime::del`], but stops at the first plugin that fails, as the specification says (section 2, "DEL"): plugins
    /// before it in the list may depend on what it did not remove.
    ///
    /// # Errors
    /// As [`Runtime::del`].
    pub fn del_fail_fast(&self, list: &NetworkList, at: &Attachment) -> Result<Warnings, Error> {
        self.del_locked(list, at, OnFailure::Stop)
    }

    /// As [`Runtime::del`], of an attachment from [`Cache::attachments`](crate::Cache::attachments): only the cached
    /// configuration is needed. A path that no longer leads to its namespace is not passed to the plugins.
    ///
    /// # Errors
    /// As [`Runtime::del`] and [`CachedAttachment::list`].
    pub fn del_kept(&self, kept: &CachedAttachment) -> Result<Warnings, Error> {
        let list = kept.list()?;
        self.del(&list, &kept.at_now())
    }

    /// What an ADD would do, in each plugin's words; nothing is touched. An extension: a plugin that does not know it
    /// refuses, and the others are asked all the same. Each is given the result that those before it might have, as far as
    /// they say.
    #[doc(alias = "dry run")]
    pub fn plan(&self, list: &NetworkList, at: &Attachment) -> Vec<PlannedSteps> {
        let chain = self.chain("PLAN", list, at);
        let mut previous: Option<Value> = None;
        let mut all = Vec::new();
        for place in chain.places() {
            let said = chain.exec(place, previous.as_ref());
            if let Some(example) = said.as_ref().ok().and_then(|said| chain.example(said)) {
                previous = Some(example);
            }
            let steps = said.and_then(|said| chain.steps(place, &said));
            all.push(PlannedSteps { plugin: chain.plugin(place).to_owned(), steps });
        }
        all
    }

    /// Runs STATUS: whether an ADD could be served. Versions before 1.1.0 have no STATUS, which is success.
    ///
    /// # Errors
    /// [`Error::Plugins`] for the first plugin that could not serve an ADD (code 50 or 51) or that failed, and [`Error::Busy`]
    /// or [`Error::Cancelled`] while waiting for a free slot.
    pub fn status(&self, list: &NetworkList) -> Result<(), Error> {
        if !list.is_since(Version::V1_1_0) {
            return Ok(());
        }
        let _slot = self.slot()?;
        let nobody = Attachment::default();
        let chain = self.chain("STATUS", list, &nobody);
        chain.places().try_for_each(|place| Ok(chain.status(place)?))
    }

    /// The versions that a plugin supports.
    ///
    /// # Errors
    /// [`Error::Plugins`] if it cannot be found or started, or if its reply cannot be parsed.
    pub fn versions(&self, plugin: &str) -> Result<Vec<String>, Error> {
        let failed = |why| Failure {
            verb: "VERSION",
            plugin: plugin.to_owned(),
            network: "".into(),
            ifname: "".into(),
            position: 1,
            of: 1,
            why,
        };
        Ok(self.ask_versions(plugin).map_err(failed)?)
    }

    /// Checks that all plugins exist and support the list's version; returns the capabilities that any of them declares, each
    /// once.
    ///
    /// # Errors
    /// [`Error::Plugins`] with every plugin that is missing, does not reply or does not support the version.
    #[doc(alias = "ValidateNetworkList")]
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>, Error> {
        let nobody = Attachment::default();
        let chain = self.chain("VERSION", list, &nobody);
        let failed = |place: usize| {
            let spoken = self.ask_versions(chain.plugin(place));
            let why = spoken.map_or_else(Some, |spoken| unspoken(&list.version, &spoken))?;
            Some(chain.failure(place, why))
        };
        let failures: Vec<Failure> = chain.places().filter_map(failed).collect();
        if !failures.is_empty() {
            return Err(Error::Plugins(failures));
        }
        let mut all: Vec<String> = list.plugins.iter().flat_map(|listed| listed.capabilities.clone()).collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn add_held(&self, list: &NetworkList, at: &Attachment, was_there: bool) -> Result<Value, Error> {
        self.cache.check_room(list, at)?;
        let chain = self.chain("ADD", list, at);
        chain.places().try_for_each(|place| chain.is_installed(place))?;
        if !was_there {
            self.clear_interrupted(list, at)?;
        }
        let _slot = self.slot()?;
        let note = CacheMetadata::now(&at.netns);
        self.cache.begin(list, at, &note)?;
        match chain.add() {
            Ok(result) => {
                self.cache.save(list, at, &note, &result)?;
                Ok(result)
            }
            Err(failure) => {
                if was_there || failure.is_of_nothing() {
                    self.cache.withdraw(list, at)?;
                }
                Err(failure.into())
            }
        }
    }

    /// What is noted of an ADD that did not come to its end would be forgotten when another configuration is noted.
    fn clear_interrupted(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let noted = self.cache.attachment(&list.name, &at.container_id, &at.ifname);
        let is_another = |noted: &CachedAttachment| {
            noted.state != State::Attached && noted.config.as_ref() != Some(&list.recorded())
        };
        let Some(noted) = noted.filter(is_another) else { return Ok(()) };
        let Ok(before) = noted.list() else { return Ok(()) };
        let cleared = self.del_held(&before, &noted.at_now(), OnFailure::GoOn, Warnings::default());
        cleared.map(drop).map_err(|why| {
            let what = "an earlier ADD of it was interrupted, and what that made cannot be deleted".to_owned();
            Error::Several(vec![ErrorContext { what, why }])
        })
    }

    pub(crate) fn add_or_undo_held(&self, list: &NetworkList, at: &Attachment) -> Result<Value, Error> {
        let was_there = self.was_there(list, at);
        self.add_held(list, at, was_there).map_err(|failed| {
            // Without a note nothing was begun.
            if was_there || !self.cache.has_begun(list, at) {
                return failed;
            }
            let undoing = Self { cancel: None, ..self.clone() };
            match undoing.del_held(list, at, OnFailure::GoOn, Warnings::default()) {
                Ok(_) => failed,
                Err(left) => {
                    let failed = ErrorContext { what: String::new(), why: failed };
                    Error::Several(vec![failed, ErrorContext { what: "and undoing it failed".to_owned(), why: left }])
                }
            }
        })
    }

    /// Whether a result of this attachment is kept already.
    pub(crate) fn was_there(&self, list: &NetworkList, at: &Attachment) -> bool {
        self.cache.result(list, at).is_ok_and(|kept| kept.is_some())
    }

    pub(crate) fn check_held(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let kept = self.cache.result(list, at)?;
        let _slot = self.slot()?;
        let chain = self.chain("CHECK", list, at);
        chain.places().try_for_each(|place| Ok(chain.exec(place, kept.as_ref()).map(drop)?))
    }

    fn del_locked(&self, list: &NetworkList, at: &Attachment, on_failure: OnFailure) -> Result<Warnings, Error> {
        let mut report = Warnings::default();
        let _locks = self.lock_if_possible(&[&list.name], at, &mut report)?;
        self.del_held(list, at, on_failure, report)
    }

    pub(crate) fn del_held(
        &self,
        list: &NetworkList,
        at: &Attachment,
        on_failure: OnFailure,
        mut report: Warnings,
    ) -> Result<Warnings, Error> {
        let record = self.cache.record(&list.name, at);
        let at = filled(at, &record);
        let (config, result) = match record.entry {
            Some(entry) => (entry.config, entry.result),
            None => (None, None),
        };
        let mut as_added = None;
        if let Some(config) = config {
            match recorded(&config, &list.name) {
                Ok(list) => as_added = Some(list),
                Err(why) => {
                    report.warnings.push(format!("done without the configuration that was kept: {why}"));
                }
            }
        }
        let is_todays = as_added.as_ref().is_none_or(|as_added| as_added.plugins == list.plugins);
        let list = as_added.as_ref().unwrap_or(list);
        report.warnings.extend(record.damage);
        let mut previous = None;
        if let Some(result) = result
            && list.is_since(Version::V0_4_0)
        {
            match in_version_of(list, result) {
                Ok(result) => previous = Some(result),
                Err(why) => report.warnings.push(why.to_string()),
            }
        }
        let _slot = self.slot()?;
        let done = self.chain("DEL", list, &at).del(previous.as_ref(), on_failure == OnFailure::Stop);
        done.map_err(|why| if is_todays { why } else { by_kept(why) })?;
        self.cache.forget(&list.name, &at)?;
        Ok(report)
    }
}

/// Somebody who knows today's configuration only would not know the plugins that are named.
fn by_kept(why: Error) -> Error {
    Error::Several(vec![ErrorContext { what: "by the configuration of its ADD, which is not today's".to_owned(), why }])
}

/// The attachment with the arguments and capabilities of its ADD, where the caller says none.
fn filled(at: &Attachment, record: &Record) -> Attachment {
    let Some(entry) = &record.entry else { return at.clone() };
    let mut filled = at.clone();
    if filled.args.is_empty() {
        filled.args.clone_from(&entry.at.args);
    }
    if filled.capabilities.is_empty() {
        filled.capabilities.clone_from(&entry.at.capabilities);
    }
    filled
}
