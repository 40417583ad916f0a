//! The SELinux label of a TAP device.
//!
//! The kernel labels such a device as the process that makes it (`tun_dev_alloc_security`), and has no other way to label it:
//! `/proc/thread-self/attr/sockcreate` is for sockets. So this program is executed again under the label, with the open
//! `/dev/net/tun` as its stdin, and makes the device there.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use cnikit_process::{Deadline, Env, How, Labelled, Program, run_labelled};
use cnikit_skel::{Error, Result, Role};
use cnikit_tun::{NewTap, Tap};

/// The file systems that the kernel has: that of SELinux unless it was switched off at the boot.
const FILE_SYSTEMS: &str = "/proc/filesystems";
/// The label of the next program that this thread executes: `proc_pid_attr(5)`.
const EXEC_LABEL: &str = "/proc/thread-self/attr/exec";
/// This program, also after its file was replaced.
const OURSELVES: &str = "/proc/self/exe";
const TIMEOUT: Duration = Duration::from_secs(10);
/// As much of the process's words as is reported.
const LIMIT: usize = 4096;
const MULTI_QUEUE: &str = "multi_queue";
const VNET_HDR: &str = "vnet_hdr";

/// The plugin whose role it is.
const PLUGIN: &str = "tap";

/// The process that makes a device under its label.
pub const ROLE: Role = Role { argument: "make-tap", run: make };

/// Checks that SELinux is on, and that its policy has the label.
pub(crate) fn check(label: &str) -> Result<()> {
    let known = fs::read_to_string(FILE_SYSTEMS).map_err(|error| Error::from(error).context(FILE_SYSTEMS))?;
    if !known.contains("selinuxfs") {
        let text = "selinuxContext is set, but SELinux is off on this node";
        return Err(
            Error::config(text).hint("remove `selinuxContext` from the network's configuration, or boot with SELinux")
        );
    }
    let has = tried(label).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => {
            let text = format!("selinuxContext {label:?} is not a label of this node's policy");
            Error::config(text).detail(error.to_string()).hint("correct `selinuxContext`; `seinfo -t` lists the types")
        }
        _ => Error::from(error).context(format!("selinuxContext {label:?}: {EXEC_LABEL}")),
    })?;
    // Until a policy is loaded the kernel takes any text, and labels everything `kernel`.
    if has.contains(':') {
        return Ok(());
    }
    let text = "selinuxContext is set, but SELinux has no policy on this node";
    Err(Error::config(text).hint("remove `selinuxContext` from the network's configuration, or load a policy"))
}

/// Gives this thread the label for the next program, as the kernel understands it, and takes it away again.
fn tried(label: &str) -> io::Result<String> {
    let mut file = OpenOptions::new().write(true).open(EXEC_LABEL)?;
    file.write_all(label.as_bytes())?;
    let has = fs::read_to_string(EXEC_LABEL);
    file.write_all(b"\n")?;
    has
}

/// Makes the device on an open `/dev/net/tun`, under the label.
pub(crate) fn create(wanted: &NewTap, tap: &Tap, label: &str) -> Result<Option<cnikit_tun::Error>> {
    let mut args = vec![ROLE.argument.into(), wanted.name.clone().into()];
    for (word, is_set) in [(MULTI_QUEUE, wanted.multi_queue), (VNET_HDR, wanted.vnet_hdr)] {
        if is_set {
            args.push(word.into());
        }
    }
    let program = Program::new(OURSELVES, Env::Clean(&[])).args(args).limit(LIMIT);
    let labelled = Labelled { name: PLUGIN, label, stdin: tap.as_fd() };
    let context = || format!("make {} with the SELinux label {label:?}", wanted.name);
    let ended = run_labelled(&program, &labelled, Deadline::after(TIMEOUT));
    match ended.map_err(|error| Error::from(error).context(context()))?.how {
        How::Exit(0) => Ok(None),
        How::Exit(number) => Ok(Some(cnikit_tun::Error::of_process(&wanted.name, number))),
        signal @ How::Signal(_) => {
            Err(Error::new(cnikit_skel::code::SYSTEM, format!("{}: it ended by {signal}", context())))
        }
    }
}

/// Makes the device that the arguments name, on stdin. The exit status is the error number.
fn make(args: &[String]) -> ExitCode {
    let Some((name, words)) = args.split_first() else { return ExitCode::FAILURE };
    let has = |word: &str| words.iter().any(|one| one == word);
    let wanted = NewTap { name: name.clone(), multi_queue: has(MULTI_QUEUE), vnet_hdr: has(VNET_HDR) };
    match wanted.create_on(std::io::stdin().as_fd()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(error.number().and_then(|number| u8::try_from(number).ok()).unwrap_or(1)),
    }
}
