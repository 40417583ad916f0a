//! Start a program.

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::Child;
use crate::image::Image;
use crate::pipes::Pipes;
use crate::{Deadline, Labelled, Program, kernel};

/// The pauses before each new attempt to start a file that another process has open for writing, in milliseconds.
const BUSY_PAUSES: [u64; 6] = [20, 50, 120, 300, 600, 1000];

/// Starts the program as the leader of a new process group, with pipes for its three streams.
///
/// A busy file (`ETXTBSY`) is tried again: it is being installed, or a process that the installer has just forked still has it open
/// for writing.
#[doc(alias = "ETXTBSY")]
pub(crate) fn start(
    program: &Program,
    labelled: Option<&Labelled<'_>>,
    deadline: Deadline,
) -> io::Result<(Child, Pipes)> {
    let name = labelled.map_or(program.path.as_os_str(), |labelled| labelled.name.as_ref());
    let mut command = command(Image::new(program, name)?, program, labelled)?;
    let mut spawned = command.spawn();
    for pause in BUSY_PAUSES.map(Duration::from_millis) {
        let busy = spawned.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ExecutableFileBusy);
        if !busy || !deadline.pause(pause) {
            break;
        }
        spawned = command.spawn();
    }
    let mut process = spawned?;
    let pipes = Pipes::new(&mut process, program);
    let mut child = Child::new(process);
    match pipes {
        Ok(pipes) => Ok((child, pipes)),
        Err(error) => Err(child.kill().err().unwrap_or(error)),
    }
}

/// Builds the command. Arguments and environment are in the image; the standard library sets up the streams, the process group and
/// the signal mask.
#[expect(clippy::disallowed_methods, reason = "the one place that starts programs")]
fn command(image: Image, program: &Program, labelled: Option<&Labelled<'_>>) -> io::Result<Command> {
    let mut command = Command::new(&program.path);
    let mut label = None;
    match labelled {
        Some(labelled) => {
            label = Some(CString::new(labelled.label)?);
            command.stdin(labelled.stdin.try_clone_to_owned()?);
        }
        None => drop(command.stdin(Stdio::piped())),
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    kernel::become_bound(&mut command, image, label);
    Ok(command)
}
