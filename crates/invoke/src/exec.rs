//! Execute another plugin.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use cnikit_process::{self as process, CancellationToken, Deadline, Ended, Env, Program};
use cnikit_types::{CniError, document, printable};

use crate::Error;
use crate::tail::tail;

/// The default time limit of a plugin: more than the 208 s that upstream's dhcp can need.
pub const EXEC_TIMEOUT: Duration = Duration::from_mins(4);

/// The limit on a plugin's stdout, and on its stderr, in bytes: results are a few kilobytes, logs may be long.
const LIMIT: usize = 16 << 20;

/// The time between `SIGTERM` and `SIGKILL`, in which the plugin can clean up.
const GRACE: Duration = Duration::from_secs(5);

/// The protocol's parameters for this call (section 2 of the specification). All are set, also empty ones, so that the plugin
/// inherits none of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// More names and values, set last.
    pub extra: Vec<(String, String)>,
    /// The caller's role, which decides what else the plugin inherits from our own environment.
    pub caller: Caller,
}

/// The role of the process that executes a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// A runtime: the plugin gets all of its environment, as with upstream's libcni.
    #[default]
    Runtime,
    /// Another plugin, which delegates: the same without `LD_PRELOAD` and `LD_AUDIT`.
    Plugin,
}

/// Variables that load other code into a program; see ld.so(8). Our plugins are linked statically and ignore them, and do not pass
/// them on to a plugin that may be linked dynamically.
const LOADER: &[&str] = &["LD_PRELOAD", "LD_AUDIT"];

/// The output of a plugin that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginOutput {
    /// Its stdout, unchanged: the result.
    pub stdout: Vec<u8>,
    /// Its stderr, the log, which has already been passed on to our stderr.
    pub stderr: Vec<u8>,
}

/// Runs `plugin` with these parameters and this configuration on stdin, and waits until it ends or the deadline passes.
///
/// Exit status 0 is success, whatever the plugin wrote. If this process dies, the kernel kills the plugin; see
/// [`process::run()`] for the requirement on the calling thread.
///
/// # Errors
/// [`Error::Refused`] for another exit status with an error object on stdout, [`Error::Died`] without one,
/// [`Error::NotStarted`] if execve(2) fails, [`Error::Deadline`] if the plugin was ended at the deadline.
pub fn exec(plugin: &Path, environment: &Environment, stdin: &[u8], deadline: Deadline) -> Result<PluginOutput, Error> {
    exec_by(plugin, environment, stdin, |program| process::run(program, deadline))
}

/// As [`exec()`], and ends the plugin with all the processes that it started when `cancel` is cancelled.
///
/// # Errors
/// As [`exec()`], and [`Error::Cancelled`].
pub fn exec_cancellable(
    plugin: &Path,
    environment: &Environment,
    stdin: &[u8],
    deadline: Deadline,
    cancel: &CancellationToken,
) -> Result<PluginOutput, Error> {
    exec_by(plugin, environment, stdin, |program| process::run_while(program, deadline, cancel))
}

fn exec_by(
    plugin: &Path,
    environment: &Environment,
    stdin: &[u8],
    run: impl FnOnce(&Program) -> Result<Ended, process::Error>,
) -> Result<PluginOutput, Error> {
    let program = Program::new(plugin, environment.env()).stdin(stdin.to_owned()).limit(LIMIT).grace(GRACE);
    let outcome = run(&program);
    pass_on(outcome.as_ref().map_or_else(process::Error::stderr, |ended| &ended.stderr));
    match outcome? {
        ended if ended.how.is_success() => Ok(PluginOutput { stdout: ended.stdout, stderr: ended.stderr }),
        ended => Err(refusal(plugin, &ended)),
    }
}

impl Environment {
    fn env(&self) -> Env {
        let without = match self.caller {
            Caller::Runtime => &[],
            Caller::Plugin => LOADER,
        };
        Env::Inherited { without, set: self.variables() }
    }

    fn variables(&self) -> Vec<(OsString, OsString)> {
        let own = [
            ("CNI_COMMAND", &self.command),
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_NETNS", &self.netns),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_ARGS", &self.args),
            ("CNI_PATH", &self.path),
        ];
        let mut variables: Vec<(OsString, OsString)> = Vec::new();
        for (name, value) in own {
            variables.push((name.into(), value.into()));
        }
        for (name, value) in &self.extra {
            variables.push((name.into(), value.into()));
        }
        variables
    }
}

/// Writes the plugin's stderr to ours, with control characters escaped: ours may be a terminal, and the log may contain names that
/// a tenant chose. A failed write is not an error.
fn pass_on(stderr: &[u8]) {
    let _ = io::stderr().write_all(printable(&String::from_utf8_lossy(stderr)).as_bytes());
}

/// The plugin's own error if it wrote one, otherwise how it ended.
fn refusal(plugin: &Path, ended: &Ended) -> Error {
    match error_object(&ended.stdout) {
        Some(error) => Error::Refused(with_log(error, &tail(&ended.stderr))),
        None => Error::Died {
            plugin: plugin.to_owned(),
            how: ended.how.to_string(),
            stdout: tail(&ended.stdout),
            stderr: tail(&ended.stderr),
        },
    }
}

/// Parses an error object, which has a code or a message. A result that was written before the plugin died has neither.
fn error_object(stdout: &[u8]) -> Option<CniError> {
    let value = document::parse_plainly(stdout).ok()?;
    let is_error = value.get("code").is_some() || value.get("msg").is_some();
    is_error.then(|| serde_json::from_value(value).ok())?
}

fn with_log(error: CniError, log: &str) -> CniError {
    let details = match (error.details.filter(|details| !details.is_empty()), log.is_empty()) {
        (details, true) => details,
        (None, false) => Some(format!("stderr: {log}")),
        (Some(details), false) => Some(format!("{details}; stderr: {log}")),
    };
    CniError { details, ..error }
}
