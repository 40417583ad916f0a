//! Start a program.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::child::Child;
use crate::image::Image;
use crate::kernel::{Start, spawn};
use crate::pipes::Pipes;
use crate::{Deadline, Labelled, Program};

/// The pauses before each new attempt to start a file that another process has open for writing, in milliseconds.
const BUSY_PAUSES: [u64; 6] = [20, 50, 120, 300, 600, 1000];

/// Starts the program as the leader of a new process group, with pipes for its three streams.
///
/// A busy file (`ETXTBSY`) is tried again: it is being installed, or a process that the installer has just started still has it
/// open for writing.
#[doc(alias = "ETXTBSY")]
pub(crate) fn start(
    program: &Program,
    labelled: Option<&Labelled<'_>>,
    deadline: Deadline,
) -> io::Result<(Child, Pipes)> {
    let name = labelled.map_or(program.path.as_os_str(), |labelled| labelled.name.as_ref());
    let image = Image::new(program, name)?;
    let label = labelled.map(|labelled| CString::new(labelled.label)).transpose()?;
    let stdin = labelled.map(|labelled| labelled.stdin.try_clone_to_owned()).transpose()?;
    let (pipes, theirs) = Pipes::new(program, stdin)?;
    let streams = theirs.each_ref().map(AsFd::as_fd);
    let start = Start { image: &image, streams, label: label.as_deref() };
    let mut spawned = spawn(&start);
    for pause in BUSY_PAUSES.map(Duration::from_millis) {
        let busy = spawned.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ExecutableFileBusy);
        if !busy || !deadline.pause(pause) {
            break;
        }
        spawned = spawn(&start);
    }
    Ok((Child::new(spawned?), pipes))
}
