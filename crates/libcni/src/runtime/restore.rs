//! RESTORE: rules that somebody has flushed are put back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use cnikit_invoke::Error as Refusal;
use cnikit_types::CniError;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache::lock::Locks;
use crate::cache::results::in_version_of;
use crate::runtime::chain::Chain;
use crate::{
    Attachment, CachedAttachment, Error, ErrorContext, Failure, FailureKind, NetworkList, Runtime, State, Warnings,
};

/// How a plugin that does not know the verb refuses it.
const UNKNOWN: &str = "unknown CNI_COMMAND";
/// Where the attachments are listed, and in the answer what became of them.
const LIST: &str = "cni.dev/attachments";
/// The most that a plugin is handed at once: it opens the namespaces of all, and may have 1,024 files open.
const MOST: usize = 250;
/// How many networks, or attachments by themselves, are at work at once: iptables has one lock for all.
const AT_ONCE: usize = 8;

/// What became of one attachment of many.
#[derive(Debug)]
pub struct Restored {
    /// What somebody should look at, whatever the outcome.
    pub report: Warnings,
    /// Whether all is put back.
    pub outcome: Result<(), Error>,
}

/// An attachment as it is kept now, with the result of its ADD.
type Given = (Attachment, Option<Value>);

/// One attachment on its way.
#[derive(Default)]
struct Course {
    report: Warnings,
    failed: Vec<Failure>,
    left: Left,
}

/// Which plugins have to be asked about an attachment by itself.
enum Left {
    All,
    /// Those at these places of the list.
    At(Vec<usize>),
}

/// What a plugin says of the attachments that it was handed.
#[derive(Deserialize)]
struct RestoreReply {
    #[serde(rename = "cni.dev/attachments")]
    attachments: Vec<ToldOfOne>,
}

#[derive(Deserialize)]
struct ToldOfOne {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    error: Option<CniError>,
}

impl Runtime {
    /// Lets each plugin of a cached attachment make its rules again, as after `nft flush ruleset` or `firewall-cmd --reload`;
    /// links are not changed. It is an extension: a plugin that does not know it is a warning, and the others are called all
    /// the same.
    ///
    /// Nothing is done for an attachment that is no longer cached, or whose namespace is gone.
    ///
    /// # Errors
    /// [`Error::Plugins`] with every plugin that failed, [`Error::Configuration`] if the cached configuration cannot be used,
    /// and [`Error::Busy`] or [`Error::Cancelled`] while waiting for locks.
    pub fn restore(&self, kept: &CachedAttachment) -> Result<Warnings, Error> {
        let Restored { report, outcome } = self.restore_by_itself(kept, &Left::All);
        outcome.map(|()| report)
    }

    /// [`Runtime::restore`] of many: what became of each, in their order. Each plugin of a network is handed all attachments
    /// that were added with one configuration, and asked about one after the other where it does not know how.
    ///
    /// Nobody adds or deletes anything in a network while its plugins are handed a list.
    pub fn restore_all(&self, all: &[&CachedAttachment]) -> Vec<Restored> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (at, kept) in all.iter().enumerate() {
            let alike = |first: &CachedAttachment| (&first.network, &first.config) == (&kept.network, &kept.config);
            match groups.iter_mut().find(|group| group.len() < MOST && alike(all[group[0]])) {
                Some(group) => group.push(at),
                None => groups.push(vec![at]),
            }
        }
        // Lists of one network would wait for each other.
        groups.sort_by_key(|group| &all[group[0]].network);
        let networks: Vec<&[Vec<usize>]> =
            groups.chunk_by(|one, other| all[one[0]].network == all[other[0]].network).collect();
        let of_network = |groups: &&[Vec<usize>]| {
            let together =
                |group: &Vec<usize>| self.restore_together(&group.iter().map(|at| all[*at]).collect::<Vec<_>>());
            groups.iter().flat_map(together).collect::<Vec<_>>()
        };
        let courses = each_at_once(&networks, of_network).into_iter().flatten();
        let mut courses: Vec<(usize, Course)> = groups.iter().flatten().copied().zip(courses).collect();
        courses.sort_by_key(|(at, _)| *at);
        let rest = |(at, course): &(usize, Course)| {
            (!course.left.is_nothing()).then(|| self.restore_by_itself(all[*at], &course.left))
        };
        let rest = each_at_once(&courses, rest);
        courses.into_iter().zip(rest).map(|((_, course), rest)| course.end(rest)).collect()
    }

    /// Hands each plugin all of these, which were added with one configuration.
    fn restore_together(&self, all: &[&CachedAttachment]) -> Vec<Course> {
        let courses = if all.len() > 1 { self.hand_out(all) } else { Ok(Vec::new()) };
        match courses {
            Ok(courses) if !courses.is_empty() => courses,
            // What failed here fails again, in words, for each by itself.
            _ => all.iter().map(|_| Course { left: Left::All, ..Course::default() }).collect(),
        }
    }

    fn hand_out(&self, all: &[&CachedAttachment]) -> Result<Vec<Course>, Error> {
        let (list, nobody) = (all[0].list()?, Attachment::default());
        let _locks = self.waited(|waiting| Locks::of_network(&self.cache, &list.name, waiting))?;
        let (mut courses, mut standing): (Vec<Course>, Vec<(usize, Given)>) = Default::default();
        for (at, kept) in all.iter().enumerate() {
            courses.push(Course::default());
            match self.standing(kept) {
                Some(now) if now.config == kept.config => standing.push((at, given(&list, kept, now)?)),
                Some(_) => courses[at].left = Left::All,
                None => {}
            }
        }
        let _slot = self.slot()?;
        let chain = self.chain("RESTORE", &list, &nobody);
        for place in chain.places() {
            match chain.hand(place, standing.iter().map(|(_, given)| given)) {
                Err(failure) if is_unknown(&failure) => courses[0].report.warnings.push(unknown(&chain, place)),
                told => share(&told.unwrap_or_default(), (&chain, place), &standing, &mut courses),
            }
        }
        Ok(courses)
    }

    /// The same attachment as it is kept now; none if there is nothing to put back for it.
    fn standing(&self, kept: &CachedAttachment) -> Option<CachedAttachment> {
        // A DEL may have come between.
        let now = self.cache.attachment(&kept.network, &kept.at.container_id, &kept.at.ifname);
        now.filter(|now| now.state == State::Attached && now.lost_namespace().is_none())
    }

    /// Asks the plugins at these places, or all of them, about one attachment.
    fn restore_by_itself(&self, kept: &CachedAttachment, left: &Left) -> Restored {
        let mut report = Warnings::default();
        let outcome = self.ask_each(kept, left, &mut report);
        Restored { report, outcome }
    }

    fn ask_each(&self, kept: &CachedAttachment, left: &Left, report: &mut Warnings) -> Result<(), Error> {
        let _locks = self.lock_if_possible(&[&kept.network], &kept.at, report)?;
        let Some(now) = self.standing(kept) else { return Ok(()) };
        let list = now.list()?;
        let is_as_read = now.config == kept.config;
        let (at, result) = given(&list, kept, now)?;
        let _slot = self.slot()?;
        let is_asked = |place: &usize| match left {
            Left::At(places) if is_as_read => places.contains(place),
            _ => true,
        };
        let (chain, mut failed) = (self.chain("RESTORE", &list, &at), Vec::new());
        for place in chain.places().filter(is_asked) {
            match chain.exec(place, result.as_ref()) {
                Err(failure) if is_unknown(&failure) => report.warnings.push(unknown(&chain, place)),
                told => failed.extend(told.err()),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Error::Plugins(failed)) }
    }
}

impl Chain<'_> {
    /// Hands one plugin all of these; what it says became of each.
    fn hand<'g>(&self, place: usize, all: impl Iterator<Item = &'g Given>) -> Result<Vec<ToldOfOne>, Failure> {
        let plugin = &self.list.plugins[place];
        let one = |(at, result): &Given| {
            let said = [("prevResult", result.clone()), ("runtimeConfig", plugin.runtime_config(at))];
            let mut one =
                json!({"containerID": at.container_id, "ifname": at.ifname, "netns": at.netns, "args": at.args_text()});
            said.into_iter().for_each(|(key, value)| value.into_iter().for_each(|value| one[key] = value));
            one
        };
        let listed = Value::Array(all.map(one).collect()).to_string();
        let said = self.ask_with(place, &plugin.stdin_with(self.list, &[(LIST, listed)]))?;
        Ok(serde_json::from_slice(&said).map_or_else(|_| Vec::new(), |answer: RestoreReply| answer.attachments))
    }
}

/// Notes what became of each of those that were handed out. Whoever is not told of is asked about by itself: of a plugin that
/// does not know the list, or failed, that is everybody.
fn share(told: &[ToldOfOne], (chain, place): (&Chain<'_>, usize), all: &[(usize, Given)], courses: &mut [Course]) {
    let told: HashMap<(&str, &str), _> =
        told.iter().map(|one| ((&*one.container_id, &*one.ifname), one.error.as_ref())).collect();
    for (course, (at, _)) in all {
        let course = &mut courses[*course];
        match told.get(&(&*at.container_id, &*at.ifname)) {
            Some(None) => {}
            Some(Some(error)) => {
                let why = FailureKind::NotDone(Box::new(Refusal::Refused((*error).clone())));
                course.failed.push(Failure { ifname: at.ifname.as_str().into(), ..chain.failure(place, why) });
            }
            None => course.left.add(place),
        }
    }
}

impl Course {
    /// What became of it, with what its plugins said when they were asked about it by itself.
    fn end(self, rest: Option<Restored>) -> Restored {
        let Self { mut report, mut failed, .. } = self;
        let outcome = rest.map_or(Ok(()), |rest| {
            report.warnings.extend(rest.report.warnings);
            rest.outcome
        });
        let outcome = match outcome {
            Err(Error::Plugins(more)) => {
                failed.extend(more);
                Ok(())
            }
            told => told,
        };
        failed.sort_by_key(|failure| failure.position);
        let failed = (!failed.is_empty()).then_some(Error::Plugins(failed));
        let told = |why| ErrorContext { what: String::new(), why };
        Restored { report, outcome: Error::of(failed.into_iter().chain(outcome.err()).map(told).collect()) }
    }
}

impl Default for Left {
    fn default() -> Self {
        Self::At(Vec::new())
    }
}

impl Left {
    fn add(&mut self, place: usize) {
        if let Self::At(places) = self {
            places.push(place);
        }
    }

    fn is_nothing(&self) -> bool {
        matches!(self, Self::At(places) if places.is_empty())
    }
}

/// Whom plugins are asked about, and the result of its ADD.
fn given(list: &NetworkList, kept: &CachedAttachment, now: CachedAttachment) -> Result<Given, Error> {
    let result = now.result.map(|result| in_version_of(list, result)).transpose()?;
    Ok((Attachment { netns: kept.at.netns.clone(), ..now.at }, result))
}

fn is_unknown(failure: &Failure) -> bool {
    let is_refusal = |error: &Refusal| matches!(error, Refusal::Refused(error) if error.msg.starts_with(UNKNOWN));
    matches!(&failure.why, FailureKind::NotDone(error) if is_refusal(error))
}

fn unknown(chain: &Chain<'_>, place: usize) -> String {
    format!("{} of network {} does not know RESTORE", chain.plugin(place), chain.list.name)
}

/// What came of each, in their order, some of them at once.
fn each_at_once<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some((at, one)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, all.get(at)?))) {
            let outcome = work(one);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, outcome));
        }
    };
    thread::scope(|scope| (0..AT_ONCE.min(all.len())).for_each(|_| drop(scope.spawn(worker))));
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}
