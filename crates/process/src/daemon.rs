//! Start a daemon.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::image::Image;
use crate::{Env, Error, Program, kernel};

/// A program that outlives this process.
#[derive(Clone, Debug)]
pub struct Daemon<'a> {
    /// The file, by its absolute path.
    pub path: PathBuf,
    /// `argv[0]`.
    pub name: &'a str,
    /// The other arguments.
    pub args: Vec<OsString>,
    /// The file that it has as its stdin, such as its socket.
    pub stdin: BorrowedFd<'a>,
}

/// Starts the daemon, in a session of its own and as a child of init, see daemon(7). It has a clean environment, works in `/`, and
/// inherits no descriptor but its stdin: stdout and stderr are `/dev/null`.
///
/// # Errors
/// [`Error::NotStarted`] if fork(2) or execve(2) fails.
pub fn start_daemon(daemon: &Daemon<'_>) -> Result<(), Error> {
    start(daemon).map_err(|source| Error::NotStarted { program: daemon.path.clone(), source })
}

#[expect(clippy::disallowed_methods, reason = "the one place that starts daemons")]
fn start(daemon: &Daemon<'_>) -> std::io::Result<()> {
    let program = Program::new(daemon.path.clone(), Env::Clean(&[]))
        .args(daemon.args.clone())
        .limit(0)
        .grace(std::time::Duration::ZERO);
    let image = Image::new(&program, daemon.name.as_ref())?;
    let mut command = Command::new(&daemon.path);
    command.stdin(daemon.stdin.try_clone_to_owned()?).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    kernel::become_independent(&mut command, image);
    // The child ends as soon as it has a child of its own.
    command.spawn()?.wait().map(drop)
}
