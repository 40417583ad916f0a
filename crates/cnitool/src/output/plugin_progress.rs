//! Runs plugins, and shows on a terminal which one is running.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use cnikit_libcni::{Executor, PluginCall, PluginError, PluginOutput, ProgramExecutor};

use crate::output::progress::{INTERVAL, Progress};

/// As [`ProgramExecutor`], with a line of progress, which is shown once all calls together have taken a second.
#[derive(Debug, Default)]
pub(crate) struct ProgressExecutor {
    began: OnceLock<Instant>,
    calls: AtomicUsize,
}

impl Executor for ProgressExecutor {
    fn find(&self, plugin: &str, path: &str) -> Result<PathBuf, PluginError> {
        ProgramExecutor.find(plugin, path)
    }

    fn exec(&self, plugin: &Path, call: &PluginCall<'_>) -> Result<PluginOutput, PluginError> {
        let name = plugin.file_name().unwrap_or_default().to_string_lossy();
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let what = format!("waiting for {name} ({}, call {number})", call.environment.command);
        let mut progress = Progress::since(*self.began.get_or_init(Instant::now), what);
        if !progress.is_terminal() {
            return ProgramExecutor.exec(plugin, call);
        }
        progress.elapsed();
        let (finished, wait) = channel::<()>();
        thread::scope(|scope| {
            let show = move || {
                while wait.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    progress.elapsed();
                }
                progress.end();
            };
            // Without a thread no progress is shown.
            let _ = thread::Builder::new().spawn_scoped(scope, show);
            // In this thread, because the kernel kills a plugin when the thread that started it ends.
            let output = ProgramExecutor.exec(plugin, call);
            drop(finished);
            output
        })
    }
}
