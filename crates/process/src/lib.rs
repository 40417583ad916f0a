//! Run a program to a deadline, bounded, gone when we are gone. The only `Command`, the only waiting ([`Deadline`]).
//!
//! Whatever happens, [`run()`] comes back soon after its deadline, and then the program has ended and is reaped. Its output
//! is bounded, so that it cannot fill our memory; it is in a process group of its own, so that a deadline ends what it
//! started as well; and the kernel kills it when the thread that runs it dies, a `SIGKILL` included.

mod cancel;
mod child;
mod deadline;
mod env;
mod error;
mod image;
mod kernel;
mod pipes;
mod program;
mod run;

pub use cancel::CancellationToken;
pub use deadline::Deadline;
pub use env::{Env, find_program};
pub use error::{Error, Stream};
pub use program::{Ended, How, Program};
pub use run::{Running, begin, run, run_while};
