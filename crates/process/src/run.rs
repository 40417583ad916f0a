//! The life of a child in one function.

use std::io;
use std::time::Instant;

use crate::child::{Child, start};
use crate::pipes::{Pipes, Stop};
use crate::{Deadline, Ended, Error, Program};

/// Starts the program, gives it its stdin, collects what it writes, and returns when it has ended, whatever its status.
///
/// At the deadline its process group gets `SIGTERM`, then, after [`Program::grace`], `SIGKILL`. A file that is being
/// written (`ETXTBSY`) is tried again for up to two seconds within the deadline. Call it from a thread that stays.
pub fn run(program: &Program, deadline: Deadline) -> Result<Ended, Error> {
    let path = || program.path.clone();
    let begin = Instant::now();
    let (mut child, mut pipes) =
        start(program, deadline).map_err(|source| Error::NotStarted { program: path(), source })?;
    let stop = converse(program, &mut child, &mut pipes, deadline);
    let ended = stop.and_then(|stop| Ok((stop, child.reap()?)));
    let stderr = pipes.stderr.bytes;
    match ended {
        Ok((Stop::Ended, how)) => Ok(Ended { how, stdout: pipes.stdout.bytes, stderr }),
        Ok((Stop::Late, _)) => Err(Error::Deadline { program: path(), after: begin.elapsed(), stderr }),
        Ok((Stop::TooMuch(stream), _)) => Err(Error::TooMuch { program: path(), stream, limit: program.limit, stderr }),
        Err(source) => Err(Error::Lost { program: path(), source }),
    }
}

/// Serves the child until it ends or has to be ended; when this returns, it runs no more.
fn converse(program: &Program, child: &mut Child, pipes: &mut Pipes, deadline: Deadline) -> io::Result<Stop> {
    let stop = pipes.serve(child, deadline);
    match stop {
        Ok(Stop::Ended) => {}
        Ok(Stop::Late) => drop(child.end(pipes, program.grace)?),
        Ok(Stop::TooMuch(_)) => {
            pipes.stop_listening();
            child.end(pipes, program.grace)?;
        }
        Err(_) => drop(child.kill()?),
    }
    stop
}
