//! Finds and calls plugins: as programs, or as functions in this process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cnikit_invoke::{Environment, Error, PluginOutput, exec, exec_cancellable, find};
use cnikit_process::{CancellationToken, Deadline};
use cnikit_types::CniError;

/// Finds and calls plugins.
#[doc(alias = "Exec")]
pub trait Executor: fmt::Debug + Send + Sync {
    /// Finds the file of a plugin in the directories of `path`, a `CNI_PATH`.
    ///
    /// # Errors
    /// As [`cnikit_invoke::find()`]: `plugin` is not a plain name, or no directory has such an executable file.
    fn find(&self, plugin: &str, path: &str) -> Result<PathBuf, Error>;

    /// Calls the plugin, and returns soon after the deadline at the latest, or soon after the caller cancels.
    ///
    /// # Errors
    /// As [`cnikit_invoke::exec()`]: the plugin refused, died, could not be started, did not finish before the deadline, or was
    /// cancelled.
    fn exec(&self, plugin: &Path, call: &PluginCall<'_>) -> Result<PluginOutput, Error>;
}

/// One call of one plugin.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PluginCall<'a> {
    /// The variables of the protocol.
    pub environment: &'a Environment,
    /// The configuration.
    pub stdin: &'a [u8],
    /// The time at which the plugin is terminated.
    pub deadline: Deadline,
    /// With this token the caller cancels the call.
    pub cancel: Option<&'a CancellationToken>,
}

/// Calls plugins as programs, as the specification says.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramExecutor;

impl Executor for ProgramExecutor {
    fn find(&self, plugin: &str, path: &str) -> Result<PathBuf, Error> {
        find(plugin, path)
    }

    fn exec(&self, plugin: &Path, call: &PluginCall<'_>) -> Result<PluginOutput, Error> {
        match call.cancel {
            Some(cancel) => exec_cancellable(plugin, call.environment, call.stdin, call.deadline, cancel),
            None => exec(plugin, call.environment, call.stdin, call.deadline),
        }
    }
}

/// A plugin that is a function: it takes the call, and returns output or an error.
pub type Function = dyn Fn(&PluginCall<'_>) -> Result<PluginOutput, Error> + Send + Sync;

/// Calls some plugins in this process, and all others as programs.
///
/// A function takes precedence over a program with the same name. It is not terminated at the deadline, because nothing can
/// terminate a function.
#[derive(Clone, Default)]
pub struct InProcess {
    plugins: BTreeMap<String, Arc<Function>>,
}

impl InProcess {
    /// Adds a plugin by its `type`.
    #[must_use]
    pub fn with(
        mut self,
        plugin: &str,
        function: impl Fn(&PluginCall<'_>) -> Result<PluginOutput, Error> + Send + Sync + 'static,
    ) -> Self {
        self.plugins.insert(plugin.to_owned(), Arc::new(function));
        self
    }

    /// Adds a plugin that behaves as a process does: it writes its document, and returns its exit status. The `serve` of a plugin
    /// of this SDK is such a function.
    #[must_use]
    pub fn with_served(
        self,
        plugin: &str,
        serve: impl Fn(&PluginCall<'_>, &mut Vec<u8>) -> u8 + Send + Sync + 'static,
    ) -> Self {
        let name = plugin.to_owned();
        self.with(plugin, move |call| {
            let mut stdout = Vec::new();
            match serve(call, &mut stdout) {
                0 => Ok(PluginOutput { stdout, stderr: Vec::new() }),
                status => Err(plugin_error(&name, status, &stdout)),
            }
        })
    }

    fn function(&self, plugin: &Path) -> Option<&Arc<Function>> {
        self.plugins.get(plugin.to_str()?)
    }
}

/// The error of a plugin that failed: its error object, if it wrote one.
fn plugin_error(plugin: &str, status: u8, stdout: &[u8]) -> Error {
    match serde_json::from_slice::<CniError>(stdout) {
        Ok(error) => Error::Refused(error),
        Err(_) => Error::Died {
            plugin: plugin.into(),
            how: format!("exit status {status}"),
            stdout: String::from_utf8_lossy(stdout).into_owned(),
            stderr: String::new(),
        },
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InProcess").field(&self.plugins.keys()).finish()
    }
}

impl Executor for InProcess {
    fn find(&self, plugin: &str, path: &str) -> Result<PathBuf, Error> {
        // The path of a program has a directory, so it is never the same as the name of a function.
        if self.plugins.contains_key(plugin) { Ok(plugin.into()) } else { ProgramExecutor.find(plugin, path) }
    }

    fn exec(&self, plugin: &Path, call: &PluginCall<'_>) -> Result<PluginOutput, Error> {
        match self.function(plugin) {
            Some(function) => function(call),
            None => ProgramExecutor.exec(plugin, call),
        }
    }
}
