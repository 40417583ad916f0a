//! Calls a plugin in a process that may be killed.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cnikit_process::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::env::subject::CallOutput;

/// The longest time of a call, also when many run at the same time.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The value of `CallOutput::exit` after `SIGKILL`.
pub(super) const KILLED: i32 = -9;

/// Runs a plugin on the calling thread's host. If it has not ended after `kill_after`, it is killed: only that process, while its
/// children run on. The crate `process` would kill its process group.
pub(super) fn call(
    program: &Path,
    env: &[(String, String)],
    stdin: &[u8],
    kill_after: Option<Duration>,
) -> io::Result<CallOutput> {
    #[expect(clippy::disallowed_methods, reason = "a kill must not reach other processes of the group")]
    let mut command = Command::new(program);
    command.envs(env.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // A program that ends without reading all of it reports the reason on stdout.
        let _ = input.write_all(stdin);
    }
    match kill_after {
        Some(after) => {
            Deadline::never().pause(after);
            child.kill()?;
        }
        None => wait(&mut child)?,
    }
    let ended = child.wait_with_output()?;
    let exit = ended.status.signal().map_or(ended.status.code().unwrap_or_default(), |signal| -signal);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(CallOutput { exit, stdout: text(&ended.stdout), stderr: text(&ended.stderr) })
}

/// Waits until the program writes to stdout or ends.
fn wait(child: &mut Child) -> io::Result<()> {
    let Some(stdout) = &child.stdout else { return Ok(()) };
    let deadline = Deadline::after(TIMEOUT);
    loop {
        let timeout = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => break,
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    child.kill()?;
    let mut stderr_text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut stderr_text)?;
    }
    child.wait()?;
    Err(io::Error::other(format!("it runs after {TIMEOUT:?}: {stderr_text}")))
}
