//! Installs the plugins on a node, keeps them installed, and removes them: `cni-plugins install|watch|uninstall|verify`.
//!
//! - Every file is whole at any moment: a temporary file in the same directory, on the disk, then one rename.
//! - The binary first, then the plugins' names, then the network list.
//! - A file that is as it should be is not touched: a read-only node passes if nothing is to be done.
//! - A file of another program is kept in `.replaced-by-cnikit`, and put back by `uninstall`.
//! - Paths are resolved below `--root`, and only through directories in which no other user can write.
//!
//! Whose a name is, is decided by what the file is, never by a record: see docs/install.md and docs/adr/0025-installer.md.
//!
//! # Example
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     // The plugins of the binary, and its other arguments.
//!     (cnikit_installer::COMMANDS[0].run)(&[], &["--plugin-dir".into(), "/opt/cni/bin".into()])
//! }
//! ```

mod attachments;
mod flags;
mod install;
mod kernel;
mod network_list;
mod node;
mod place;
mod pod_cidrs;
mod presets;
mod root;
mod runtimes;
mod sources;
mod standing;
mod uninstall;
mod watch;
mod whole;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cnikit_skel::{Command, Plugins};
use nix::sys::stat::{Mode, umask};

use crate::flags::{Flags, Verb};
use crate::install::{Damaged, Waiting};
use crate::node::Node;
use crate::root::{Absent, Root};
use crate::standing::Standing;

/// The commands of the binary of all plugins.
pub const COMMANDS: [Command; 4] = [
    Command {
        name: "install",
        about: "place the plugins on a node",
        run: |plugins, rest| run(Verb::Install, plugins, rest),
    },
    Command {
        name: "watch",
        about: "the same, and place again what is deleted or damaged",
        run: |plugins, rest| run(Verb::Watch, plugins, rest),
    },
    Command {
        name: "uninstall",
        about: "remove them, and put back what they replaced",
        run: |plugins, rest| run(Verb::Uninstall, plugins, rest),
    },
    Command {
        name: "verify",
        about: "compare a node with this release",
        run: |plugins, rest| run(Verb::Verify, plugins, rest),
    },
];

/// The directories of plugins and of network lists with which containerd and CRI-O are configured, of each runtime that is; the
/// usual ones if none is. `root` is the node's root directory.
///
/// # Errors
///
/// The name of a file that cannot be read or understood, and why.
pub fn configured_directories(root: &Path) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let found = runtimes::find(&Root::open(root, None)?, presets::by_name("default")?)?;
    Ok(found.into_iter().map(|one| (one.plugins, one.networks)).collect())
}

/// The exit status for a wrong command line.
const USAGE: u8 = 2;

/// How a command ended.
enum Outcome {
    Done,
    /// The node differs.
    Differs,
}

fn run(verb: Verb, plugins: Plugins, arguments: &[String]) -> ExitCode {
    let flags = match flags::parse(verb, arguments) {
        Ok(Some(flags)) => flags,
        Ok(None) => {
            say(&flags::help(verb));
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            complain(&why);
            return ExitCode::from(USAGE);
        }
    };
    // Modes are those that are given, whatever the caller's umask is.
    umask(Mode::from_bits_truncate(0o022));
    let done = match verb {
        Verb::Install => install(plugins, &flags),
        Verb::Watch => watch::watch(plugins, &flags).map(|()| Outcome::Done),
        Verb::Uninstall => uninstall::uninstall(&flags).map(|lines| {
            say(&format!("{}\n", lines.join("\n")));
            Outcome::Done
        }),
        Verb::Verify => verify(plugins, &flags),
    };
    match done {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Differs) => ExitCode::FAILURE,
        Err(why) => {
            complain(&why);
            ExitCode::FAILURE
        }
    }
}

fn install(plugins: Plugins, flags: &Flags) -> Result<Outcome, String> {
    let node = Node::new(plugins, flags)?;
    let waiting = Waiting { limit: flags.wait, is_given_up: &|| false };
    let done = node.install(&install::all(flags.reassert), Damaged::Kept, &waiting)?;
    let view = node.look(Absent::Report)?;
    for line in install::summary(&node, &done, &view) {
        say(&format!("{line}\n"));
    }
    Ok(Outcome::Done)
}

fn verify(plugins: Plugins, flags: &Flags) -> Result<Outcome, String> {
    let node = Node::new(plugins, flags)?;
    let view = node.look(Absent::Report)?;
    let mut outcome = Outcome::Done;
    for item in &view.items {
        if item.standing != Standing::Current && view.is_wanted(item, flags.reassert) {
            say(&format!("{}: {}\n", node.shown(&view, item).display(), item.standing.text()));
            outcome = Outcome::Differs;
        }
    }
    Ok(outcome)
}

fn say(text: &str) {
    // Nobody reads it if this fails; the exit status says what was done.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "cni-plugins: {text}");
}
