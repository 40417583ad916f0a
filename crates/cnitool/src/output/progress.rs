//! Plugins are started, and whoever sits at a terminal is told which one is waited for.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use cnikit_libcni::{Executor, PluginCall, PluginError, PluginOutput, ProgramExecutor};

use crate::output::{PACE, Progress};

/// As [`ProgramExecutor`]; the second after which something is said is that of all calls together.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    begun: OnceLock<Instant>,
    calls: AtomicUsize,
}

impl Executor for Waiting {
    fn find(&self, plugin: &str, path: &str) -> Result<PathBuf, PluginError> {
        ProgramExecutor.find(plugin, path)
    }

    fn exec(&self, plugin: &Path, call: &PluginCall<'_>) -> Result<PluginOutput, PluginError> {
        let name = plugin.file_name().unwrap_or_default().to_string_lossy();
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let what = format!("waiting for {name} ({}, call {number})", call.environment.command);
        let mut progress = Progress::since(*self.begun.get_or_init(Instant::now), what);
        if !progress.is_seen() {
            return ProgramExecutor.exec(plugin, call);
        }
        progress.goes_on();
        let (answered, answer) = channel::<()>();
        thread::scope(|scope| {
            // Without a thread nothing is said.
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                while answer.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
                    progress.goes_on();
                }
                progress.end();
            });
            // Here, for the kernel ends a plugin with the thread that started it.
            let said = ProgramExecutor.exec(plugin, call);
            drop(answered);
            said
        })
    }
}
