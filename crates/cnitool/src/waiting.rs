//! Plugins are started, and whoever sits at a terminal is told which one is waited for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use cnikit_libcni::{Call, Executor, PluginError, Programs, Said};

use crate::output::{PACE, Progress};

/// As [`Programs`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting;

impl Executor for Waiting {
    fn find(&self, plugin: &str, path: &str) -> Result<PathBuf, PluginError> {
        Programs.find(plugin, path)
    }

    fn ask(&self, plugin: &Path, call: &Call<'_>) -> Result<Said, PluginError> {
        let name = plugin.file_name().unwrap_or_default().to_string_lossy();
        let mut progress = Progress::of(format!("waiting for {name} ({})", call.environment.command));
        if !progress.is_seen() {
            return Programs.ask(plugin, call);
        }
        let (answered, answer) = channel::<()>();
        thread::scope(|scope| {
            // Without a thread nothing is said.
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                while answer.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
                    progress.since();
                }
                progress.end();
            });
            // Here, for the kernel ends a plugin with the thread that started it.
            let said = Programs.ask(plugin, call);
            drop(answered);
            said
        })
    }
}
