//! RESTORE: makes the rules of attachments again that another program has flushed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use cnikit_invoke::Error as PluginError;
use cnikit_types::CniError;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache::lock::Locks;
use crate::cache::results::in_version_of;
use crate::runtime::chain::Chain;
use crate::{
    Attachment, CachedAttachment, Error, ErrorContext, Failure, FailureKind, NetworkList, Runtime, State, Warnings,
};

/// The beginning of the error of a plugin that does not support the verb.
const UNKNOWN: &str = "unknown CNI_COMMAND";
/// The key of the attachments in the configuration, and of their outcomes in the reply.
const LIST: &str = "cni.dev/attachments";
/// The most attachments in one call: the plugin opens the namespaces of all, and may have 1,024 files open.
const MOST: usize = 250;
/// How many networks, or single attachments, are restored at the same time: there is one lock for all of iptables.
const WORKERS: usize = 8;

/// The outcome for one attachment of several.
#[derive(Debug)]
#[non_exhaustive]
pub struct Restored {
    /// Warnings, also in case of an error.
    pub report: Warnings,
    /// Whether all its plugins succeeded.
    pub outcome: Result<(), Error>,
}

/// One attachment in a call for several.
struct Prepared {
    /// Its index among the attachments of the call.
    index: usize,
    attachment: Attachment,
    /// The result of its ADD, in the version of the list.
    result: Option<Value>,
}

/// The outcome of a call for several attachments, for one of them.
#[derive(Default)]
struct Attempt {
    report: Warnings,
    failures: Vec<Failure>,
    remaining: Remaining,
}

/// The plugins that still have to be called for an attachment alone.
enum Remaining {
    All,
    /// Those with these indices in the list.
    Only(Vec<usize>),
}

/// A plugin's reply to a call for several attachments.
#[derive(Deserialize)]
struct RestoreReply {
    #[serde(rename = "cni.dev/attachments")]
    attachments: Vec<AttachmentReply>,
}

#[derive(Deserialize)]
struct AttachmentReply {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    error: Option<CniError>,
}

impl Runtime {
    /// Lets each plugin of a cached attachment make its rules again, as after `nft flush ruleset` or `firewall-cmd --reload`; links
    /// are not changed. It is an extension: a plugin that does not support it causes a warning, and the others are still called.
    ///
    /// Nothing is done for an attachment that is no longer cached, or whose namespace is gone.
    ///
    /// # Errors
    /// [`Error::Plugins`] with every plugin that failed, [`Error::Configuration`] if the cached configuration cannot be used,
    /// and [`Error::Busy`] or [`Error::Cancelled`] while waiting for locks.
    pub fn restore(&self, cached: &CachedAttachment) -> Result<Warnings, Error> {
        let Restored { report, outcome } = self.restore_one(cached, &Remaining::All);
        outcome?;
        Ok(report)
    }

    /// As [`Runtime::restore`], for many attachments; returns the outcomes in their order. Each plugin of a network is called once
    /// for all attachments that were added with one configuration. A plugin that does not support such a list is called for one
    /// attachment after another.
    ///
    /// No other call adds or deletes anything in a network while its plugins are called with a list.
    pub fn restore_all(&self, all: &[&CachedAttachment]) -> Vec<Restored> {
        let groups = groups(all);
        // The groups of one network run one after another: they would wait for each other's lock.
        let networks: Vec<&[Vec<usize>]> =
            groups.chunk_by(|one, other| all[one[0]].network == all[other[0]].network).collect();
        let batches = in_parallel(&networks, |groups| self.restore_groups(all, groups));
        let mut indexed: Vec<(usize, Attempt)> = batches.into_iter().flatten().collect();
        indexed.sort_by_key(|(index, _)| *index);
        let remaining = in_parallel(&indexed, |one| self.restore_remaining(all[one.0], &one.1));
        let mut outcomes = Vec::new();
        for ((_, attempt), rest) in indexed.into_iter().zip(remaining) {
            outcomes.push(attempt.finish(rest));
        }
        outcomes
    }

    /// Restores groups one after another; returns the attempt for each attachment, with its index.
    fn restore_groups(&self, all: &[&CachedAttachment], groups: &[Vec<usize>]) -> Vec<(usize, Attempt)> {
        let mut attempts = Vec::new();
        for group in groups {
            let members: Vec<&CachedAttachment> = group.iter().map(|index| all[*index]).collect();
            attempts.extend(group.iter().copied().zip(self.restore_group(&members)));
        }
        attempts
    }

    /// Calls each plugin once for all attachments of a group, which were added with one configuration.
    fn restore_group(&self, all: &[&CachedAttachment]) -> Vec<Attempt> {
        if all.len() > 1
            && let Ok(attempts) = self.restore_batch(all)
        {
            return attempts;
        }
        // The same error occurs again in the call for each attachment, and is reported there.
        all.iter().map(|_| Attempt { remaining: Remaining::All, ..Attempt::default() }).collect()
    }

    fn restore_batch(&self, all: &[&CachedAttachment]) -> Result<Vec<Attempt>, Error> {
        let list = all[0].list()?;
        let _locks = self.wait(|waiting| Locks::of_network(&self.cache, &list.name, waiting))?;
        let mut attempts = Vec::new();
        let mut prepared = Vec::new();
        for (index, cached) in all.iter().enumerate() {
            let mut attempt = Attempt::default();
            match self.restorable(cached) {
                Some(now) if now.config == cached.config => prepared.push(prepare(index, &list, cached, now)?),
                Some(_) => attempt.remaining = Remaining::All,
                None => {}
            }
            attempts.push(attempt);
        }
        let _slot = self.slot()?;
        let none = Attachment::default();
        let chain = self.chain("RESTORE", &list, &none);
        for index in chain.indices() {
            let replies = match chain.restore_list(index, &prepared) {
                Ok(replies) => replies,
                Err(failure) if is_unknown(&failure) => {
                    attempts[0].report.warnings.push(unknown(&chain, index));
                    continue;
                }
                Err(_) => Vec::new(),
            };
            record(&chain, index, &replies, &prepared, &mut attempts);
        }
        Ok(attempts)
    }

    /// The attachment as it is cached now; `None` if there is nothing to restore. A DEL may have run since it was read.
    fn restorable(&self, cached: &CachedAttachment) -> Option<CachedAttachment> {
        let now = self.cache.attachment(&cached.network, &cached.at.container_id, &cached.at.ifname)?;
        if now.state == State::Attached && now.lost_namespace().is_none() { Some(now) } else { None }
    }

    /// Calls the plugins that remain after a call for several attachments.
    fn restore_remaining(&self, cached: &CachedAttachment, attempt: &Attempt) -> Option<Restored> {
        if attempt.remaining.is_empty() {
            return None;
        }
        Some(self.restore_one(cached, &attempt.remaining))
    }

    /// Calls these plugins for one attachment.
    fn restore_one(&self, cached: &CachedAttachment, remaining: &Remaining) -> Restored {
        let mut report = Warnings::default();
        let outcome = self.restore_plugins(cached, remaining, &mut report);
        Restored { report, outcome }
    }

    fn restore_plugins(
        &self,
        cached: &CachedAttachment,
        remaining: &Remaining,
        report: &mut Warnings,
    ) -> Result<(), Error> {
        let _locks = self.lock_if_possible(&[&cached.network], &cached.at, report)?;
        let Some(now) = self.restorable(cached) else { return Ok(()) };
        let list = now.list()?;
        let is_unchanged = now.config == cached.config;
        let Prepared { attachment, result, .. } = prepare(0, &list, cached, now)?;
        let _slot = self.slot()?;
        let chain = self.chain("RESTORE", &list, &attachment);
        let mut failures = Vec::new();
        for index in chain.indices() {
            // Indices are those of the configuration that was read.
            if is_unchanged && !remaining.contains(index) {
                continue;
            }
            match chain.exec(index, result.as_ref()) {
                Ok(_) => {}
                Err(failure) if is_unknown(&failure) => report.warnings.push(unknown(&chain, index)),
                Err(failure) => failures.push(failure),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Error::Plugins(failures)) }
    }
}

impl Chain<'_> {
    /// Calls one plugin for all of these attachments; returns its reply for each. A reply in another form counts as empty.
    fn restore_list(&self, index: usize, all: &[Prepared]) -> Result<Vec<AttachmentReply>, Failure> {
        let plugin = &self.list.plugins[index];
        let mut listed = Vec::new();
        for Prepared { attachment, result, .. } in all {
            let mut one = json!({
                "containerID": attachment.container_id,
                "ifname": attachment.ifname,
                "netns": attachment.netns,
                "args": attachment.args_text(),
            });
            if let Some(result) = result {
                one["prevResult"] = result.clone();
            }
            if let Some(config) = plugin.runtime_config(attachment) {
                one["runtimeConfig"] = config;
            }
            listed.push(one);
        }
        let stdin = plugin.stdin_with(self.list, &[(LIST, Value::Array(listed).to_string())]);
        let stdout = self.exec_with(index, &stdin)?;
        match serde_json::from_slice::<RestoreReply>(&stdout) {
            Ok(reply) => Ok(reply.attachments),
            Err(_) => Ok(Vec::new()),
        }
    }
}

/// Groups attachments that were added to one network with one configuration, sorted by network.
fn groups(all: &[&CachedAttachment]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, cached) in all.iter().enumerate() {
        let is_alike = |group: &Vec<usize>| {
            let first = all[group[0]];
            group.len() < MOST && first.network == cached.network && first.config == cached.config
        };
        match groups.iter().position(is_alike) {
            Some(at) => groups[at].push(index),
            None => groups.push(vec![index]),
        }
    }
    groups.sort_by_key(|group| &all[group[0]].network);
    groups
}

/// Records the replies of one plugin. It is called again for each attachment that is not in its reply: for all of them, if it does
/// not support the list or failed.
fn record(
    chain: &Chain<'_>,
    index: usize,
    replies: &[AttachmentReply],
    prepared: &[Prepared],
    attempts: &mut [Attempt],
) {
    let mut by_name: HashMap<(&str, &str), Option<&CniError>> = HashMap::new();
    for reply in replies {
        by_name.insert((&reply.container_id, &reply.ifname), reply.error.as_ref());
    }
    for Prepared { index: of_attachment, attachment, .. } in prepared {
        let attempt = &mut attempts[*of_attachment];
        match by_name.get(&(&*attachment.container_id, &*attachment.ifname)) {
            Some(None) => {}
            Some(Some(error)) => {
                let kind = FailureKind::Call(Box::new(PluginError::Refused((*error).clone())));
                let failure = chain.failure(index, kind);
                attempt.failures.push(Failure { ifname: attachment.ifname.as_str().into(), ..failure });
            }
            None => attempt.remaining.add(index),
        }
    }
}

impl Attempt {
    /// Combines the outcome with that of the plugins that were called for the attachment alone.
    fn finish(self, rest: Option<Restored>) -> Restored {
        let Self { mut report, mut failures, .. } = self;
        let mut other = None;
        if let Some(rest) = rest {
            report.warnings.extend(rest.report.warnings);
            match rest.outcome {
                Ok(()) => {}
                Err(Error::Plugins(more)) => failures.extend(more),
                Err(error) => other = Some(error),
            }
        }
        failures.sort_by_key(|failure| failure.position);
        let mut errors: Vec<ErrorContext> = Vec::new();
        if !failures.is_empty() {
            errors.push(Error::Plugins(failures).into());
        }
        if let Some(error) = other {
            errors.push(error.into());
        }
        Restored { report, outcome: Error::of(errors) }
    }
}

impl Default for Remaining {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

impl Remaining {
    fn add(&mut self, index: usize) {
        if let Self::Only(indices) = self {
            indices.push(index);
        }
    }

    fn contains(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(indices) => indices.contains(&index),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Only(indices) if indices.is_empty())
    }
}

/// The attachment of a call: as it is cached `now`, with the path of the namespace that was read.
fn prepare(
    index: usize,
    list: &NetworkList,
    cached: &CachedAttachment,
    now: CachedAttachment,
) -> Result<Prepared, Error> {
    let result = match now.result {
        Some(result) => Some(in_version_of(list, result)?),
        None => None,
    };
    Ok(Prepared { index, attachment: Attachment { netns: cached.at.netns.clone(), ..now.at }, result })
}

fn is_unknown(failure: &Failure) -> bool {
    let FailureKind::Call(error) = &failure.kind else { return false };
    matches!(&**error, PluginError::Refused(error) if error.msg.starts_with(UNKNOWN))
}

fn unknown(chain: &Chain<'_>, index: usize) -> String {
    format!("{} of network {} does not support RESTORE", chain.plugin(index), chain.list.name)
}

/// Calls `work` for each element, several at the same time; returns the results in the order of the elements.
fn in_parallel<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(index) else { return };
            let outcome = work(one);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(all.len()) {
            scope.spawn(worker);
        }
    });
    let mut indexed = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    indexed.sort_by_key(|(index, _)| *index);
    indexed.into_iter().map(|(_, outcome)| outcome).collect()
}
