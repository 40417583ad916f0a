//! The texts for a person who runs a plugin by hand.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use cnikit_types::Version;

use crate::entry::{Command, Plugins};

/// The version of cnikit.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name and version of the release that cnikit's own plugins are of.
pub const RELEASE: &str = concat!("cnikit-", env!("CARGO_PKG_VERSION"));

/// What the help of a plugin says of it.
#[derive(Clone, Copy, Debug)]
pub struct Help {
    /// [`Plugin::EXAMPLE`](crate::Plugin::EXAMPLE).
    pub example: &'static str,
    /// [`Plugin::RELEASE`](crate::Plugin::RELEASE).
    pub release: &'static str,
}

/// The members of the configuration in the example of the help, unless a plugin has its own ([`Plugin::EXAMPLE`]).
///
/// [`Plugin::EXAMPLE`]: crate::Plugin::EXAMPLE
pub const EXAMPLE: &str = r#""ipam":{"type":"host-local","subnet":"10.99.0.0/24"}"#;

/// The same for chained plugins: the result of the plugins before this one.
pub const CHAINED_EXAMPLE: &str = r#""prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.99.0.2/24"}]}"#;

/// The name that this process was run by: the file name of its first argument.
pub fn own_name() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    Path::new(&called).file_name().unwrap_or(&called).to_string_lossy().into_owned()
}

/// Prints the help or the version of a plugin that was run without `CNI_COMMAND`.
///
/// `--help` and `--version` print to stdout, as other tools do. Without either the help goes to stderr, because a runtime may be
/// reading stdout.
pub(crate) fn by_hand(name: &str, help: Help) -> ExitCode {
    let written = if asked(["--version", "-V"]) {
        writeln!(std::io::stdout(), "{}", line(name, help.release))
    } else if asked(["--help", "-h"]) {
        write!(std::io::stdout(), "{}", text(name, help))
    } else {
        write!(std::io::stderr(), "{}", text(name, help))
    };
    ExitCode::from(u8::from(written.is_err()))
}

/// Prints the help of a binary of many plugins, or with `--list` their names, one per line.
pub(crate) fn of_many(plugins: Plugins, commands: &[Command]) -> ExitCode {
    let names: Vec<&str> = plugins.iter().map(|entry| entry.name).collect();
    let list = names.join("\n");
    let how = "Call it by a plugin's name (its launcher, or a link), or name the plugin as the first argument.";
    let mut operator = String::new();
    for command in commands {
        if operator.is_empty() {
            operator.push_str("\n\nCommands, each with --help:");
        }
        let _ = write!(operator, "\n  cni-plugins {:<10} {}", command.name, command.about);
    }
    let help = format!("{RELEASE}: CNI plugins in one binary:\n{list}\n\n{how}{operator}\n");
    let written = if asked(["--list", "-l"]) {
        writeln!(std::io::stdout(), "{list}")
    } else if asked(["--version", "-V"]) {
        writeln!(std::io::stdout(), "{RELEASE}")
    } else if asked(["--help", "-h"]) {
        write!(std::io::stdout(), "{help}")
    } else {
        let _ = write!(std::io::stderr(), "{help}");
        return ExitCode::FAILURE;
    };
    ExitCode::from(u8::from(written.is_err()))
}

fn asked(flag: [&str; 2]) -> bool {
    std::env::args().skip(1).any(|argument| flag.contains(&argument.as_str()))
}

fn line(name: &str, release: &str) -> String {
    format!("CNI {name} plugin {release}")
}

fn text(name: &str, Help { example, release }: Help) -> String {
    // The plugin is named by its path, because iproute2 has a program `bridge` too.
    let program = std::env::current_exe().unwrap_or_else(|_| Path::new("/opt/cni/bin").join(name));
    let launcher = program.with_file_name(name);
    let path = if launcher.is_file() { launcher } else { program };
    let is_named = path.file_name().is_some_and(|file| file == name);
    let call = if is_named { path.display().to_string() } else { format!("{} {name}", path.display()) };
    let versions: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    let members = if example.is_empty() { String::new() } else { format!(",\n    {example}") };
    format!(
        "{about}
CNI protocol versions supported: {versions}

A container runtime runs this program, with CNI_COMMAND and other variables in the environment and a
JSON object on stdin. To see what an ADD would do, without changing anything:

  echo '{{\"cniVersion\":\"1.1.0\",\"name\":\"try\",\"type\":\"{name}\"{members}}}' |
    CNI_COMMAND=PLAN CNI_CONTAINERID=c1 CNI_IFNAME=eth0 \\
    CNI_PATH={directory} \\
    {call}

Verbs: ADD, CHECK, DEL, GC, STATUS and VERSION of the CNI specification; PLAN, as above; and
RESTORE, which re-creates packet filter rules that another program flushed.

CNI_LOG=info logs one line per call, CNI_LOG=debug one line per step, to stderr or to the file that
CNI_LOG_FILE names.

Error codes: 1 to 11, 50 and 51 as in the CNI specification; 100 the system refused an operation;
101 something exists already; 102 CHECK found a difference; 103 a delegated plugin could not be run;
104 the attachment holds an address already; 199 a defect in the plugin.
",
        directory = path.parent().unwrap_or(Path::new("/opt/cni/bin")).display(),
        about = line(name, release),
        versions = versions.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_called_by_its_file_name() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(own_name(), program.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn the_help_names_the_plugin_and_its_release_and_has_a_call_to_try() {
        let help = text("moody", Help { example: r#""mood":"good""#, release: "moods-1" });
        assert!(help.starts_with("CNI moody plugin moods-1\n"), "{help}");
        assert!(help.contains("\"type\":\"moody\",\n    \"mood\":\"good\"}' |"), "{help}");
        // The program of this test has another name, so it is given the plugin's.
        let program = std::env::current_exe().unwrap();
        assert!(help.contains(&format!("  {} moody\n", program.display())), "{help}");
        let without_example = text("moody", Help { example: "", release: "moods-1" });
        assert!(without_example.contains("\"type\":\"moody\"}' |"), "{without_example}");
    }
}
