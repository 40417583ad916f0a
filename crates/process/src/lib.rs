//! Run a program with a deadline and a limit on its output.
//!
//! Parts, in reading order:
//!
//! - [`run()`]: starts a program, waits until it ends or the deadline passes, and returns its output.
//! - [`Deadline`]: a point in time, and the only sleep of the workspace.
//! - [`Env`]: the environment of a program. It has no default: each caller decides what a program inherits.
//! - [`CancellationToken`]: lets another thread end the wait.
//! - [`start_daemon`]: starts a program that outlives us.
//! - [`SlowSend`]: makes one slow system call in a child process.
//!
//! Design decision: a started program never outlives us, except a daemon that is started as such. A [`SlowSend`]
//! may, too, until one system call returns. A program is in a process group of
//! its own, which a deadline kills as a whole, and the kernel kills it when the thread that started it ends
//! (`PR_SET_PDEATHSIG`, prctl(2)), also after a `SIGKILL`.
//!
//! # Example
//!
//! Run a program with a clean environment for at most five seconds:
//!
//! ```
//! use std::time::Duration;
//!
//! use cnikit_process::{Deadline, Env, Program, find_program, run};
//!
//! let sort = Program::new(find_program("sort").ok_or("there is no sort")?, Env::Clean(&[]))
//!     .args(vec!["-n".into()])
//!     .stdin(b"10\n9\n".to_vec());
//! let ended = run(&sort, Deadline::after(Duration::from_secs(5)))?;
//! assert!(ended.how.is_success());
//! assert_eq!(ended.stdout, b"9\n10\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cancel;
mod child;
mod daemon;
mod deadline;
mod env;
mod error;
mod image;
mod kernel;
mod pipes;
mod program;
mod run;
mod slow_send;
mod start;

pub use cancel::CancellationToken;
pub use daemon::{Daemon, start_daemon};
pub use deadline::Deadline;
pub use env::{Env, find_program};
pub use error::{Error, Stream};
pub use program::{Ended, How, Labelled, Program};
pub use run::{Running, begin, run, run_labelled, run_while};
pub use slow_send::SlowSend;
