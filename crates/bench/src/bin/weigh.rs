//! `cnikit-weigh FILE PROGRAM [ARGUMENT...]`: runs a program, and appends its largest resident set in KiB to a file.
//!
//! Our streams and environment are the program's, and its exit status is ours. The largest resident set (`ru_maxrss` of
//! getrusage(2)) is that of the program and of all that it waited for, and of what there was before execve(2): until then the child
//! shares the memory of this process. So this is a program of its own, smaller than any plugin.

use std::env;
use std::error::Error;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitStatus, waitpid};

#[expect(clippy::print_stderr, reason = "it is a program, and this is how it fails")]
fn main() -> ExitCode {
    match weigh() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("cnikit-weigh: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the exit status of the program, or 255 if a signal ended it.
fn weigh() -> Result<u8, Box<dyn Error>> {
    let words: Vec<CString> = env::args_os().map(|word| CString::new(word.into_vec())).collect::<Result<_, _>>()?;
    let [_, file, program @ ..] = &*words else { return Err("a file and a program are needed".into()) };
    let path = program.first().ok_or("a program is needed")?;
    let pairs =
        env::vars_os().map(|(key, value)| CString::new([key.into_vec(), b"=".to_vec(), value.into_vec()].concat()));
    let environment: Vec<CString> = pairs.collect::<Result<_, _>>()?;
    // std ignores this signal in our process.
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    let child = posix_spawn(path.as_c_str(), &PosixSpawnFileActions::init()?, &attributes, program, &environment)?;
    let ended = waitpid(child, None)?;
    let memory = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    let mut file = OpenOptions::new().append(true).create(true).open(file.to_str()?)?;
    file.write_all(format!("{memory}\n").as_bytes())?;
    match ended {
        WaitStatus::Exited(_, status) => Ok(u8::try_from(status)?),
        _ => Ok(u8::MAX),
    }
}
