//! Run one verb with the plugins of a list.

use cnikit_invoke::{Caller, Environment, Error as PluginError, PluginOutput, tail};
use cnikit_process::Deadline;
use cnikit_types::{CniError, CniResult, Version, code, document};
use serde_json::{Value, json};

use crate::config::list::or_first;
use crate::runtime::executor::PluginCall;
use crate::{Attachment, Error, Failure, FailureKind, ListedPlugin, NetworkList, Runtime, ValidAttachment};

/// The error of a plugin that is older than the verb VERSION.
const BEFORE_VERSION: &str = "unknown CNI_COMMAND: VERSION";

/// One verb for an attachment, run with the plugins of a list. Plugins are given by their index in the list.
pub(crate) struct Chain<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) list: &'a NetworkList,
    pub(crate) attachment: &'a Attachment,
    pub(crate) verb: &'static str,
}

impl Chain<'_> {
    pub(crate) fn indices(&self) -> std::ops::Range<usize> {
        0..self.list.plugins.len()
    }

    fn listed(&self, index: usize) -> &ListedPlugin {
        &self.list.plugins[index]
    }

    /// The plugin's type.
    pub(crate) fn plugin(&self, index: usize) -> &str {
        &self.listed(index).plugin
    }

    pub(crate) fn check_installed(&self, index: usize) -> Result<(), Failure> {
        match self.runtime.executor.find(self.plugin(index), &self.runtime.plugin_path()) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.call_failure(index, error)),
        }
    }

    /// ADD: each plugin in order, its result passed to the next; returns the last result.
    pub(crate) fn add(&self) -> Result<Value, Failure> {
        let mut result = None;
        for index in self.indices() {
            let stdout = self.exec(index, result.as_ref())?;
            result = Some(self.result(index, &stdout)?);
        }
        Ok(result.unwrap_or_default())
    }

    /// DEL: each plugin, the last one first; up to the first failure if `fail_fast`.
    pub(crate) fn del(&self, previous: Option<&Value>, fail_fast: bool) -> Result<(), Error> {
        let mut failures = Vec::new();
        for index in self.indices().rev() {
            if let Err(failure) = self.exec(index, previous) {
                let is_last = fail_fast || failure.is_cancelled();
                failures.push(failure);
                if is_last {
                    break;
                }
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Error::Plugins(failures)) }
    }

    /// Calls one plugin for the attachment; returns its stdout.
    pub(crate) fn exec(&self, index: usize, previous: Option<&Value>) -> Result<Vec<u8>, Failure> {
        self.exec_with(index, &self.listed(index).stdin(self.list, self.attachment, previous))
    }

    /// GC: passes the valid attachments to one plugin, under both names of the key.
    pub(crate) fn collect(&self, index: usize, valid: &[ValidAttachment]) -> Result<(), Failure> {
        let mut listed = Vec::new();
        for one in valid {
            listed.push(json!({"containerID": one.container_id, "ifname": one.ifname}));
        }
        let text = Value::Array(listed).to_string();
        let keys = ["cni.dev/valid-attachments", "cni.dev/attachments"].map(|key| (key, text.clone()));
        self.exec_with(index, &self.listed(index).stdin_with(self.list, &keys))?;
        Ok(())
    }

    /// STATUS of one plugin.
    pub(crate) fn status(&self, index: usize) -> Result<(), Failure> {
        self.exec_with(index, &self.listed(index).stdin_with(self.list, &[]))?;
        Ok(())
    }

    /// Calls one plugin with this configuration; returns its stdout.
    pub(crate) fn exec_with(&self, index: usize, stdin: &[u8]) -> Result<Vec<u8>, Failure> {
        match self.runtime.exec(self.plugin(index), &self.environment(), stdin) {
            Ok(output) => Ok(output.stdout),
            Err(error) => Err(self.call_failure(index, error)),
        }
    }

    fn environment(&self) -> Environment {
        Environment {
            command: self.verb.to_owned(),
            container_id: self.attachment.container_id.clone(),
            netns: self.attachment.netns.clone(),
            ifname: self.attachment.ifname.clone(),
            args: self.attachment.args_text(),
            path: self.runtime.plugin_path(),
            extra: self.runtime.trace.iter().flat_map(crate::TraceContext::variables).collect(),
            caller: Caller::Runtime,
        }
    }

    /// The result of ADD as the plugin returned it; its version is the list's if it has none.
    fn result(&self, index: usize, stdout: &[u8]) -> Result<Value, Failure> {
        let invalid = |why: String| self.invalid_output(index, &why, stdout);
        if stdout.trim_ascii().is_empty() {
            return Err(invalid("it succeeded without a result".to_owned()));
        }
        let mut result = document::parse_plainly(stdout).map_err(|error| invalid(error.to_string()))?;
        if let Some(error) = error_object(&result) {
            return Err(invalid(format!(
                "its exit status is 0, but it printed an error: {error} (code {})",
                error.code
            )));
        }
        let fallback = Version::exact(&self.list.version).unwrap_or(Version::NEWEST);
        let (version, parsed) = CniResult::read(&result, fallback).map_err(|error| invalid(error.to_string()))?;
        match result.as_object_mut() {
            None => result = parsed.write(version),
            Some(members) if members.get("cniVersion").and_then(Value::as_str).is_none_or(str::is_empty) => {
                members.insert("cniVersion".to_owned(), version.as_str().into());
            }
            Some(_) => {}
        }
        Ok(result)
    }

    /// The example of a result in a reply to PLAN, if there is one, in the version of the list.
    pub(crate) fn example(&self, stdout: &[u8]) -> Option<Value> {
        let reply = document::parse_plainly(stdout).ok()?;
        let (_, example) = CniResult::read(reply.get("example")?, Version::NEWEST).ok()?;
        Some(example.write(Version::exact(&self.list.version).unwrap_or(Version::NEWEST)))
    }

    /// The steps in a reply to PLAN.
    pub(crate) fn steps(&self, index: usize, stdout: &[u8]) -> Result<Vec<String>, Failure> {
        match parse_steps(stdout) {
            Some(steps) => Ok(steps),
            None => Err(self.invalid_output(index, "no list of steps under `plan`", stdout)),
        }
    }

    pub(crate) fn failure(&self, index: usize, kind: FailureKind) -> Failure {
        Failure {
            verb: self.verb,
            plugin: self.plugin(index).to_owned(),
            network: self.list.name.as_str().into(),
            ifname: self.attachment.ifname.as_str().into(),
            position: index + 1,
            of: self.list.plugins.len(),
            kind,
        }
    }

    fn call_failure(&self, index: usize, error: PluginError) -> Failure {
        self.failure(index, FailureKind::Call(Box::new(error)))
    }

    fn invalid_output(&self, index: usize, why: &str, stdout: &[u8]) -> Failure {
        self.failure(index, self.runtime.invalid_output(self.plugin(index), why, stdout))
    }
}

impl Runtime {
    pub(crate) fn chain<'a>(
        &'a self,
        verb: &'static str,
        list: &'a NetworkList,
        attachment: &'a Attachment,
    ) -> Chain<'a> {
        Chain { runtime: self, list, attachment, verb }
    }

    /// Finds and calls a plugin.
    fn exec(&self, plugin: &str, environment: &Environment, stdin: &[u8]) -> Result<PluginOutput, PluginError> {
        let file = self.executor.find(plugin, &self.plugin_path())?;
        let deadline = Deadline::after(self.timeout);
        self.executor.exec(&file, &PluginCall { environment, stdin, deadline, cancel: self.cancel.as_ref() })
    }

    /// The failure of a plugin whose output does not conform to the specification.
    fn invalid_output(&self, plugin: &str, why: &str, stdout: &[u8]) -> FailureKind {
        let file = self.executor.find(plugin, &self.plugin_path()).unwrap_or_else(|_| plugin.into());
        let end = tail(stdout);
        let quoted = if end.is_empty() { "nothing".to_owned() } else { format!("\"{end}\"") };
        FailureKind::InvalidOutput(format!("{why}; {} said {quoted}", file.display()))
    }

    /// VERSION: the versions that a plugin supports.
    pub(crate) fn supported_versions(&self, plugin: &str) -> Result<Vec<String>, FailureKind> {
        // As upstream does: old plugins check all variables, also for VERSION.
        let dummy = || "dummy".to_owned();
        let environment = Environment {
            command: "VERSION".to_owned(),
            netns: dummy(),
            ifname: dummy(),
            path: dummy(),
            ..Environment::default()
        };
        let stdin = json!({"cniVersion": Version::NEWEST.as_str()}).to_string();
        match self.exec(plugin, &environment, stdin.as_bytes()) {
            Ok(output) => {
                parse_versions(&output.stdout).map_err(|why| self.invalid_output(plugin, &why, &output.stdout))
            }
            Err(PluginError::Refused(error)) if error.msg == BEFORE_VERSION => Ok(vec!["0.1.0".to_owned()]),
            Err(error) => Err(FailureKind::Call(Box::new(error))),
        }
    }
}

fn parse_steps(stdout: &[u8]) -> Option<Vec<String>> {
    let reply = document::parse_plainly(stdout).ok()?;
    let steps = reply.get("plan")?.as_array()?;
    steps.iter().map(|step| step.as_str().map(str::to_owned)).collect()
}

/// The reply to VERSION. One of version 0.2.0 may leave `supportedVersions` out.
fn parse_versions(stdout: &[u8]) -> Result<Vec<String>, String> {
    let reply = document::parse_plainly(stdout).map_err(|error| error.to_string())?;
    let Some(listed) = reply.get("supportedVersions").and_then(Value::as_array) else {
        return match reply.get("cniVersion").and_then(Value::as_str) {
            Some("0.2.0") => Ok(["0.1.0", "0.2.0"].map(str::to_owned).into()),
            _ => Err("no `supportedVersions`".to_owned()),
        };
    };
    let versions: Option<Vec<String>> = listed.iter().map(|version| version.as_str().map(str::to_owned)).collect();
    versions.ok_or_else(|| "`supportedVersions` is not a list of strings".to_owned())
}

/// Why a plugin that supports these versions cannot serve a list with another one; see [`or_first`] for a list without a version.
pub(crate) fn unsupported(version: &str, supported: &[String]) -> Option<FailureKind> {
    let wanted = or_first(version);
    if supported.iter().any(|version| version == wanted) {
        return None;
    }
    let listed = supported.join(", ");
    Some(FailureKind::UnsupportedVersion(format!("does not support version {wanted}, only {listed}")))
}

/// An error object that came with success. A result is parsed as an error with code 0 and no message.
fn error_object(result: &Value) -> Option<CniError> {
    if !result.get("code")?.is_number() {
        return None;
    }
    let error: CniError = serde_json::from_value(result.clone()).ok()?;
    if error.code == 0 && error.msg.is_empty() { None } else { Some(error) }
}

impl Failure {
    /// Whether it failed because the caller cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(&self.kind, FailureKind::Call(error) if matches!(**error, PluginError::Cancelled { .. }))
    }

    /// Whether the ADD cannot have created anything: the first plugin reports that there is no such container.
    pub(crate) fn is_of_nothing(&self) -> bool {
        self.position == 1 && self.code() == Some(code::UNKNOWN_CONTAINER)
    }
}
