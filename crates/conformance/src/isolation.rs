//! Runs this program in namespaces of its own, so that the plugin can change nothing of the machine and leave no process on it.
//!
//! The process that was started waits. `init` is the first one of the namespaces, and reaps what plugins leave. Its child, the
//! worker, runs the tests. When `init` ends, the kernel kills every process of its PID namespace.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use cnikit_testkit::unshare_command;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::UNUSABLE;

/// The first argument of `init`.
pub(crate) const INIT: &str = "--init-of-namespaces";

/// `argv[0]` of the worker, which has the arguments of the command line.
pub(crate) const WORKER: &str = "cni-conformance-worker";

/// Starts this program again in new network, mount and PID namespaces, and without root in a user namespace in which it is root.
/// Returns its exit status. Its stdout is this file, if one is named: it is opened here, as a path may lead elsewhere in there.
///
/// # Errors
/// The file cannot be created, or the machine allows no namespaces.
pub(crate) fn run_again(output: Option<&Path>) -> Result<ExitCode, String> {
    let stdout = match output {
        Some(path) => File::create(path).map_err(|error| format!("write {}: {error}", path.display()))?.into(),
        None => Stdio::inherit(),
    };
    let unshare = unshare_command()?;
    let failed = |error: std::io::Error| format!("start cni-conformance in namespaces: {error}");
    // It is closed when this process ends, however that happens.
    let (stdin, lifeline) = std::io::pipe().map_err(failed)?;
    let mut words: Vec<OsString> = unshare[1..].to_vec();
    words.extend([std::env::current_exe().map_err(failed)?.into(), INIT.into()]);
    words.extend(std::env::args_os().skip(1));
    #[expect(clippy::disallowed_methods, reason = "it writes to our stdout, for as long as the tests take")]
    let status = Command::new(&unshare[0]).args(words).stdin(stdin).stdout(stdout).status().map_err(failed)?;
    drop(lifeline);
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(UNUSABLE))),
        None => Err(format!("the tests were ended by {status}")),
    }
}

/// Starts the worker, and reaps every process that ends. Returns the exit status of the worker.
pub(crate) fn init() -> ExitCode {
    // Where no PID namespace can be made, processes whose parent has ended become children of this one nevertheless.
    let _ = prctl::set_child_subreaper(true);
    #[expect(clippy::disallowed_methods, reason = "it writes to our stdout, for as long as the tests take")]
    let worker =
        Command::new("/proc/self/exe").arg0(WORKER).args(std::env::args_os().skip(2)).stdin(Stdio::null()).spawn();
    let worker = match worker {
        Ok(worker) => Pid::from_raw(worker.id().cast_signed()),
        Err(error) => {
            crate::report::print_to_stderr(&format!("cni-conformance: start its worker: {error}"));
            return ExitCode::from(UNUSABLE);
        }
    };
    thread::spawn(move || end_with_parent(worker));
    let status = loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, status)) if pid == worker => break u8::try_from(status).unwrap_or(UNUSABLE),
            Ok(WaitStatus::Signaled(pid, ..)) if pid == worker => break UNUSABLE,
            Err(Errno::ECHILD) => break UNUSABLE,
            _ => {}
        }
    };
    kill_children();
    ExitCode::from(status)
}

/// Makes this process end when `init` does.
pub(crate) fn end_with_init() {
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
}

/// Waits for the end of the process that was started, which has the other end of the pipe at stdin, and ends the worker.
fn end_with_parent(worker: Pid) {
    let _ = std::io::stdin().read(&mut [0]);
    let _ = kill(worker, Signal::SIGKILL);
}

/// Kills the children of `init`, and the processes that become its children by that.
fn kill_children() {
    let init = std::process::id();
    let list = format!("/proc/{init}/task/{init}/children");
    loop {
        let children = fs::read_to_string(&list).unwrap_or_default();
        if children.trim().is_empty() {
            return;
        }
        for pid in children.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw) {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
}
