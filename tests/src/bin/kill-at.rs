//! Runs a program, and kills it before its system call with this number: `kill-at NUMBER PROGRAM [ARGUMENT...]`. With 0 nothing is
//! killed, and the number of system calls is printed. The exit status is that of the program, 137 if it was killed.
//!
//! The tests put it into a container of Podman's, where it kills the installer.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "it is part of a test")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program of a test")]

use std::process::ExitCode;

use cnikit_testkit::syscall_trace::{SyscallVerdict, run_command};
use nix::sys::signal::Signal;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let at: usize = words.next().and_then(|word| word.parse().ok()).expect("kill-at NUMBER PROGRAM [ARGUMENT...]");
    let program = words.next().expect("kill-at NUMBER PROGRAM [ARGUMENT...]");
    let arguments: Vec<String> = words.collect();
    let mut calls = 0;
    let (output, _) = run_command(program.as_ref(), &arguments, |_| {
        calls += 1;
        if calls == at { SyscallVerdict::Signal(Signal::SIGKILL) } else { SyscallVerdict::GoOn }
    })
    .unwrap();
    eprint!("{}", output.stderr);
    match at {
        0 => println!("{calls}"),
        _ => print!("{}", output.stdout),
    }
    let status = if output.exit < 0 { 128 - output.exit } else { output.exit };
    ExitCode::from(u8::try_from(status).unwrap())
}
