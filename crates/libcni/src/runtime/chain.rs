//! One verb that goes to the plugins of a list.

use cnikit_invoke::{Caller, Environment, Error as Refusal, PluginOutput, tail};
use cnikit_process::Deadline;
use cnikit_types::{CniError, CniResult, Version, code, document};
use serde_json::{Value, json};

use crate::config::list::or_first;
use crate::runtime::executor::PluginCall;
use crate::{Attachment, Error, Failure, FailureKind, NetworkList, Runtime, ValidAttachment};

/// What a plugin that does not know VERSION answers to it: it is older than that.
const BEFORE_VERSION: &str = "unknown CNI_COMMAND: VERSION";

/// One call that goes to several plugins.
pub(crate) struct Chain<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) list: &'a NetworkList,
    pub(crate) at: &'a Attachment,
    pub(crate) verb: &'static str,
}

impl Chain<'_> {
    pub(crate) fn places(&self) -> std::ops::Range<usize> {
        0..self.list.plugins.len()
    }

    pub(crate) fn plugin(&self, place: usize) -> &str {
        &self.list.plugins[place].plugin
    }

    pub(crate) fn is_installed(&self, place: usize) -> Result<(), Failure> {
        let found = self.runtime.executor.find(self.plugin(place), &self.runtime.plugin_path());
        found.map(drop).map_err(|error| self.failure(place, FailureKind::NotDone(Box::new(error))))
    }

    /// Sets the attachment up: each plugin in order, its result given to the next.
    pub(crate) fn add(&self) -> Result<Value, Failure> {
        let mut result = None;
        for place in self.places() {
            let said = self.exec(place, result.as_ref())?;
            result = Some(self.result(place, &said)?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Takes it down: each plugin, the last one first, up to the first failure if the caller wants it so.
    pub(crate) fn del(&self, previous: Option<&Value>, stop: bool) -> Result<(), Error> {
        let mut failures = Vec::new();
        for place in self.places().rev() {
            match self.exec(place, previous) {
                Ok(_) => {}
                Err(failure) => {
                    let is_last = stop || failure.is_cancelled();
                    failures.push(failure);
                    if is_last {
                        break;
                    }
                }
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Error::Plugins(failures)) }
    }

    /// Asks one plugin about the attachment; returns what it wrote to stdout.
    pub(crate) fn exec(&self, place: usize, previous: Option<&Value>) -> Result<Vec<u8>, Failure> {
        self.ask_with(place, &self.list.plugins[place].stdin(self.list, self.at, previous))
    }

    /// Tells one plugin which attachments are valid, in both spellings of the key.
    pub(crate) fn collect(&self, place: usize, valid: &[ValidAttachment]) -> Result<(), Failure> {
        let listed: Vec<Value> =
            valid.iter().map(|one| json!({"containerID": one.container_id, "ifname": one.ifname})).collect();
        let text = Value::Array(listed).to_string();
        let keys = ["cni.dev/valid-attachments", "cni.dev/attachments"].map(|key| (key, text.clone()));
        self.ask_with(place, &self.list.plugins[place].stdin_with(self.list, &keys)).map(drop)
    }

    /// Asks one plugin about nothing but itself.
    pub(crate) fn status(&self, place: usize) -> Result<(), Failure> {
        self.ask_with(place, &self.list.plugins[place].stdin_with(self.list, &[])).map(drop)
    }

    pub(crate) fn ask_with(&self, place: usize, stdin: &[u8]) -> Result<Vec<u8>, Failure> {
        let said = self.runtime.ask(self.plugin(place), &self.environment(), stdin);
        said.map(|said| said.stdout).map_err(|error| self.failure(place, FailureKind::NotDone(Box::new(error))))
    }

    fn environment(&self) -> Environment {
        Environment {
            command: self.verb.to_owned(),
            container_id: self.at.container_id.clone(),
            netns: self.at.netns.clone(),
            ifname: self.at.ifname.clone(),
            args: self.at.args_text(),
            path: self.runtime.plugin_path(),
            extra: self.runtime.trace.iter().flat_map(crate::TraceContext::variables).collect(),
            caller: Caller::Runtime,
        }
    }

    /// The answer to ADD as the plugin gave it; its version is the list's if it says none.
    fn result(&self, place: usize, said: &[u8]) -> Result<Value, Failure> {
        let garbled = |why: String| self.failure(place, self.runtime.garbled(self.plugin(place), &why, said));
        if said.trim_ascii().is_empty() {
            return Err(garbled("it succeeded, where ADD wants a result".to_owned()));
        }
        let mut result = document::parse_plainly(said).map_err(|error| garbled(error.to_string()))?;
        if let Some(error) = error_object(&result) {
            return Err(garbled(format!("it succeeded, and said an error: {error} (code {})", error.code)));
        }
        let fallback = Version::exact(&self.list.version).unwrap_or(Version::NEWEST);
        let (version, answer) = CniResult::read(&result, fallback).map_err(|error| garbled(error.to_string()))?;
        match result.as_object_mut() {
            None => result = answer.write(version),
            Some(members) if members.get("cniVersion").and_then(Value::as_str).is_none_or(str::is_empty) => {
                members.insert("cniVersion".to_owned(), version.as_str().into());
            }
            Some(_) => {}
        }
        Ok(result)
    }

    /// The result that ADD might have, if the answer to PLAN has one, in the version of the list.
    pub(crate) fn example(&self, said: &[u8]) -> Option<Value> {
        let document = document::parse_plainly(said).ok()?;
        let (_, example) = CniResult::read(document.get("example")?, Version::NEWEST).ok()?;
        Some(example.write(Version::exact(&self.list.version).unwrap_or(Version::NEWEST)))
    }

    /// The answer to PLAN.
    pub(crate) fn steps(&self, place: usize, said: &[u8]) -> Result<Vec<String>, Failure> {
        let document = document::parse_plainly(said).ok();
        let steps = document.as_ref().and_then(|document| document.get("plan")?.as_array());
        let steps = steps.and_then(|steps| steps.iter().map(|step| step.as_str().map(str::to_owned)).collect());
        let why = "no list of steps under `plan`";
        steps.ok_or_else(|| self.failure(place, self.runtime.garbled(self.plugin(place), why, said)))
    }

    pub(crate) fn failure(&self, place: usize, why: FailureKind) -> Failure {
        Failure {
            verb: self.verb,
            plugin: self.plugin(place).to_owned(),
            network: self.list.name.as_str().into(),
            ifname: self.at.ifname.as_str().into(),
            position: place + 1,
            of: self.list.plugins.len(),
            why,
        }
    }
}

impl Runtime {
    pub(crate) fn chain<'a>(&'a self, verb: &'static str, list: &'a NetworkList, at: &'a Attachment) -> Chain<'a> {
        Chain { runtime: self, list, at, verb }
    }

    /// Finds a plugin and asks it.
    fn ask(&self, plugin: &str, environment: &Environment, stdin: &[u8]) -> Result<PluginOutput, Refusal> {
        let file = self.executor.find(plugin, &self.plugin_path())?;
        let deadline = Deadline::after(self.patience);
        self.executor.exec(&file, &PluginCall { environment, stdin, deadline, cancel: self.cancel.as_ref() })
    }

    /// What a plugin said that is none of the protocol's answers.
    fn garbled(&self, plugin: &str, why: &str, said: &[u8]) -> FailureKind {
        let file = self.executor.find(plugin, &self.plugin_path()).unwrap_or_else(|_| plugin.into());
        let end = match tail(said) {
            end if end.is_empty() => "nothing".to_owned(),
            end => format!("\"{end}\""),
        };
        FailureKind::Garbled(format!("{why}; {} said {end}", file.display()))
    }

    /// Asks a plugin which versions it speaks.
    pub(crate) fn ask_versions(&self, plugin: &str) -> Result<Vec<String>, FailureKind> {
        let dummy = || "dummy".to_owned();
        let command = "VERSION".to_owned();
        let environment =
            Environment { command, netns: dummy(), ifname: dummy(), path: dummy(), ..Environment::default() };
        let stdin = json!({"cniVersion": Version::NEWEST.as_str()}).to_string();
        match self.ask(plugin, &environment, stdin.as_bytes()) {
            Ok(said) => versions(&said.stdout).map_err(|why| self.garbled(plugin, &why, &said.stdout)),
            Err(Refusal::Refused(error)) if error.msg == BEFORE_VERSION => Ok(vec!["0.1.0".to_owned()]),
            Err(error) => Err(FailureKind::NotDone(Box::new(error))),
        }
    }
}

/// The answer to VERSION. One of 0.2.0 need not list what it speaks.
fn versions(said: &[u8]) -> Result<Vec<String>, String> {
    let document = document::parse_plainly(said).map_err(|error| error.to_string())?;
    let own = document.get("cniVersion").and_then(Value::as_str);
    let listed = document.get("supportedVersions").and_then(Value::as_array);
    match (listed, own) {
        (Some(listed), _) => {
            let texts = listed.iter().map(|version| version.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(|| "`supportedVersions` is not a list of strings".to_owned())
        }
        (None, Some("0.2.0")) => Ok(["0.1.0", "0.2.0"].map(str::to_owned).into()),
        (None, _) => Err("no `supportedVersions`".to_owned()),
    }
}

/// Why a plugin that speaks these versions cannot serve a list of one; see [`or_first`] for a list that says none.
pub(crate) fn unspoken(version: &str, spoken: &[String]) -> Option<FailureKind> {
    let wanted = or_first(version);
    let speaks = spoken.iter().any(|version| version == wanted);
    (!speaks).then(|| FailureKind::Unspoken(format!("does not speak version {wanted}, but {}", spoken.join(", "))))
}

/// An error object that came with success; code 0 and an empty text are what a result reads as.
fn error_object(result: &Value) -> Option<CniError> {
    result.get("code").filter(|code| code.is_number())?;
    serde_json::from_value(result.clone()).ok().filter(|error: &CniError| error.code != 0 || !error.msg.is_empty())
}

impl Failure {
    /// Whether it failed because the caller gave up.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(&self.why, FailureKind::NotDone(error) if matches!(**error, Refusal::Cancelled { .. }))
    }

    /// Whether nothing can have been made: the first plugin says that there is no such container.
    pub(crate) fn is_of_nothing(&self) -> bool {
        self.position == 1 && self.code() == Some(code::UNKNOWN_CONTAINER)
    }
}
