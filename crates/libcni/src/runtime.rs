//! The verbs, over the plugins of a list.

use cnikit_invoke::{Environment, PATIENCE, ask, find};
use cnikit_process::Deadline;
use cnikit_types::{Answer, Version};
use serde_json::Value;

use crate::{Attachment, Cache, Error, Failure, NetworkList, Why};

/// Carries out what a caller wants of a network.
///
/// Nothing is locked: whoever calls for one attachment from two places at once has to put them in order.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// `CNI_PATH`: where plugins are found.
    pub path: String,
    /// Where results are kept.
    pub cache: Cache,
}

/// What one plugin of a list would do.
#[derive(Debug)]
pub struct Planned {
    /// The plugin's type.
    pub plugin: String,
    /// Its steps in words, or why it does not say.
    pub steps: Result<Vec<String>, Failure>,
}

/// One call that goes to several plugins.
struct Chain<'a> {
    path: &'a str,
    list: &'a NetworkList,
    at: &'a Attachment,
    verb: &'static str,
}

impl Runtime {
    /// Sets the attachment up: each plugin in order, its result given to the next. Returns the last result, and keeps it.
    ///
    /// Names, the room for the result and the plugins' files are checked before the first plugin runs. After a failure
    /// nothing is undone and nothing kept: DEL is the caller's to send (specification, section 2, "ADD").
    pub fn add(&self, list: &NetworkList, at: &Attachment) -> Result<Value, Error> {
        at.check_names(&list.name)?;
        self.cache.check_room(list, at)?;
        let chain = self.chain("ADD", list, at);
        chain.places().try_for_each(|place| chain.is_installed(place))?;
        let mut result = None;
        for place in chain.places() {
            let said = chain.ask(place, result.as_ref())?;
            result = Some(chain.result(place, &said)?);
        }
        let result = result.unwrap_or_default();
        self.cache.keep(list, at, &result)?;
        Ok(result)
    }

    /// Compares the attachment with the kept result: each plugin in order, up to the first that finds a difference.
    pub fn check(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        if list.disable_check {
            return Ok(());
        }
        if !list.is_since(Version::V0_4_0) {
            return Err(Error::NoCheck { version: list.version.clone() });
        }
        let kept = self.cache.result(list, at)?;
        let chain = self.chain("CHECK", list, at);
        chain.places().try_for_each(|place| Ok(chain.ask(place, kept.as_ref()).map(drop)?))
    }

    /// Takes the attachment down: each plugin, the last one first, whatever failed before. What is kept is forgotten when
    /// all have succeeded, so that DEL can be tried again.
    ///
    /// A kept result that cannot be read is no reason to leave anything standing: the plugins are asked without it.
    pub fn del(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let kept = if list.is_since(Version::V0_4_0) { self.cache.result(list, at).unwrap_or_default() } else { None };
        let chain = self.chain("DEL", list, at);
        let failures: Vec<Failure> =
            chain.places().rev().filter_map(|place| chain.ask(place, kept.as_ref()).err()).collect();
        if failures.is_empty() { self.cache.forget(list, at) } else { Err(Error::Plugins(failures)) }
    }

    /// What an ADD would do, in each plugin's words; nothing is touched. An extension: a plugin that does not know it
    /// refuses, and the others are asked all the same.
    #[doc(alias = "dry run")]
    pub fn plan(&self, list: &NetworkList, at: &Attachment) -> Vec<Planned> {
        let chain = self.chain("PLAN", list, at);
        let steps = |place| chain.ask(place, None).and_then(|said| chain.steps(place, &said));
        chain.places().map(|place| Planned { plugin: chain.plugin(place).to_owned(), steps: steps(place) }).collect()
    }

    fn chain<'a>(&'a self, verb: &'static str, list: &'a NetworkList, at: &'a Attachment) -> Chain<'a> {
        Chain { path: &self.path, list, at, verb }
    }
}

impl Chain<'_> {
    fn places(&self) -> std::ops::Range<usize> {
        0..self.list.plugins.len()
    }

    fn plugin(&self, place: usize) -> &str {
        &self.list.plugins[place].plugin
    }

    fn is_installed(&self, place: usize) -> Result<(), Failure> {
        find(self.plugin(place), self.path)
            .map(drop)
            .map_err(|error| self.failure(place, Why::NotDone(Box::new(error))))
    }

    /// Asks one plugin; returns what it wrote to stdout.
    fn ask(&self, place: usize, previous: Option<&Value>) -> Result<Vec<u8>, Failure> {
        let stdin = self.list.plugins[place].stdin(self.list, self.at, previous);
        let said = find(self.plugin(place), self.path)
            .and_then(|file| ask(&file, &self.environment(), &stdin, Deadline::after(PATIENCE)));
        said.map(|said| said.stdout).map_err(|error| self.failure(place, Why::NotDone(Box::new(error))))
    }

    fn environment(&self) -> Environment {
        Environment {
            command: self.verb.to_owned(),
            container_id: self.at.container_id.clone(),
            netns: self.at.netns.clone(),
            ifname: self.at.ifname.clone(),
            args: self.at.args_text(),
            path: self.path.to_owned(),
            extra: Vec::new(),
        }
    }

    /// The answer to ADD as the plugin gave it; its version is the list's if it says none.
    fn result(&self, place: usize, said: &[u8]) -> Result<Value, Failure> {
        let garbled = |why: String| self.failure(place, Why::Garbled(why));
        let mut result: Value = serde_json::from_slice(said).map_err(|error| garbled(error.to_string()))?;
        let fallback = Version::exact(&self.list.version).unwrap_or(Version::NEWEST);
        let (version, answer) = Answer::read(&result, fallback).map_err(|error| garbled(error.to_string()))?;
        match result.as_object_mut() {
            None => result = answer.write(version),
            Some(members) if members.get("cniVersion").and_then(Value::as_str).is_none_or(str::is_empty) => {
                members.insert("cniVersion".to_owned(), version.as_str().into());
            }
            Some(_) => {}
        }
        Ok(result)
    }

    /// The answer to PLAN.
    fn steps(&self, place: usize, said: &[u8]) -> Result<Vec<String>, Failure> {
        let document: Option<Value> = serde_json::from_slice(said).ok();
        let steps = document.as_ref().and_then(|document| document.get("plan")?.as_array());
        let steps = steps.and_then(|steps| steps.iter().map(|step| step.as_str().map(str::to_owned)).collect());
        steps.ok_or_else(|| self.failure(place, Why::Garbled("no list of steps under `plan`".to_owned())))
    }

    fn failure(&self, place: usize, why: Why) -> Failure {
        let of = self.list.plugins.len();
        Failure { verb: self.verb, plugin: self.plugin(place).to_owned(), position: place + 1, of, why }
    }
}
