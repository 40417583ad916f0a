//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use crate::pod_cidrs::{PodCidrs, parse as pod_cidrs};
use crate::presets::{self, Preset};

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Install,
    Watch,
    Uninstall,
    Verify,
}

/// What is done about a whole file of another program that has a name of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reassert {
    /// It is left alone, unless this directory has never had cnikit.
    Missing,
    /// It is kept, and replaced.
    All,
}

/// The parsed command line.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) root: PathBuf,
    pub(crate) plugin_dirs: Vec<PathBuf>,
    pub(crate) conf_dir: Option<PathBuf>,
    pub(crate) tool_dir: Option<PathBuf>,
    pub(crate) preset: &'static Preset,
    pub(crate) from: Option<PathBuf>,
    pub(crate) network_list: Option<PathBuf>,
    pub(crate) pod_cidrs: PodCidrs,
    pub(crate) without: Vec<String>,
    pub(crate) reassert: Reassert,
    pub(crate) wait: Duration,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) is_forced: bool,
    pub(crate) cache_dirs: Vec<PathBuf>,
    /// A user beside root whose directories are safe.
    pub(crate) trusted: Option<u32>,
}

/// How long another installer may work.
const WAIT: Duration = Duration::from_mins(5);

/// The help: the first line depends on the command.
pub(crate) fn help(verb: Verb) -> String {
    let (usage, what) = match verb {
        Verb::Install => (
            "install [FLAGS]",
            "Places the plugins, then the network list. Each file is replaced as a whole; one that is as it\n\
             should be is not touched. Files of other programs are kept in .replaced-by-cnikit.",
        ),
        Verb::Watch => (
            "watch [FLAGS]",
            "Places the plugins, then the network list, and places again what is deleted or damaged, until it\n\
             gets SIGTERM, which changes nothing on the node.",
        ),
        Verb::Uninstall => {
            ("uninstall [FLAGS]", "Removes the plugins and the network list, and puts back what they replaced.")
        }
        Verb::Verify => (
            "verify [FLAGS]",
            "Compares the node with this release, and prints each difference. Exit status 0: all is the same;\n\
             1: something differs, or could not be read; 2: the command line is wrong.",
        ),
    };
    let mut text = format!("Usage: cni-plugins {usage}\n\n{what}\n\n{PLACES}");
    if verb != Verb::Uninstall {
        text.push_str(FILES);
    }
    text.push_str("\nOther:");
    match verb {
        Verb::Install => text.push_str(REASSERT_ALL),
        Verb::Watch => text.push_str(WATCH),
        Verb::Uninstall => text.push_str(UNINSTALL),
        Verb::Verify => text.push_str(REASSERT_VERIFY),
    }
    text.push_str(OTHER);
    text
}

const PLACES: &str = "\
Where:
  --plugin-dir DIR        a directory of plugins; can be repeated. Otherwise those that the node's
                          containerd and CRI-O are configured with, or /opt/cni/bin
  --conf-dir DIR          the directory of network lists. Otherwise the runtime's, or
                          /etc/cni/net.d
  --preset NAME           k3s, rke2, openshift, microshift, talos, flatcar: where the runtime's
                          configuration is, and the directories without one
  --tool-dir DIR          the directory of cnitool. Without this flag cnitool is left alone
  --root DIR              the node's root directory (/). All paths above, and those in the runtimes'
                          configuration, are below it; no symbolic link leads out of it
";
const FILES: &str = "
What:
  --from DIR              the directory with cni-plugins, cni-launcher and cnitool (this program's)
  --without NAME[,NAME]   leave these plugins' names alone
  --network-list FILE     place this network list, under its file name, after the plugins. In it
                          the strings @podCIDR@, @podCIDRv4@, @podCIDRv6@, @podCIDRRanges@ (of
                          host-local) and @podCIDRRoutes@ are replaced
  --pod-cidr CIDR[,CIDR]  the node's pod ranges, which replace these strings; at most one of each
                          family
  --pod-cidr-file FILE    the same, from a file, with commas, spaces or lines between them
";
// The following begin with a line break and end without one: `\` at the end of a line would drop the blanks of the next line.
const REASSERT_ALL: &str = "
  --reassert missing|all  all: replace files of other programs. missing: do so only if cnikit is
                          not there yet; do not replace files that other programs placed later.
                          Default: all";
const REASSERT_VERIFY: &str = "
  --reassert missing|all  all: a file of another program is a difference. missing: it is none where
                          `install --reassert missing` would not replace it. Default: all";
const WATCH: &str = "
  --reassert missing|all  missing: leave alone, and report, a file that another program has put in
                          the place of ours; place ours where the name is missing, empty or
                          half-written. all: keep a copy of such a file, and place ours.
                          Default: missing
  --ready-file PATH       make this file when all is in place, and remove it while it is not; a
                          path of this process, not below --root. systemd is notified too";
const UNINSTALL: &str = "
  --force                 uninstall although no plugin would be left that can delete attachments
  --cache-dir DIR         where the runtime caches its attachments, in `results`; can be repeated
                          (/var/lib/cni and /run/cni)";
const OTHER: &str = "
  --wait SECONDS          how long to wait for another installation in the same directory (300)
  --trust-user UID        directories may belong to this user too, not to root only
  --help
";

/// Parses the arguments after the command; `None` if the help is asked for.
pub(crate) fn parse(verb: Verb, arguments: &[String]) -> Result<Option<Flags>, String> {
    let mut flags = Flags {
        root: "/".into(),
        plugin_dirs: Vec::new(),
        conf_dir: None,
        tool_dir: None,
        preset: presets::by_name("default")?,
        from: None,
        network_list: None,
        pod_cidrs: PodCidrs::default(),
        without: Vec::new(),
        reassert: if verb == Verb::Watch { Reassert::Missing } else { Reassert::All },
        wait: WAIT,
        ready_file: None,
        is_forced: false,
        cache_dirs: Vec::new(),
        trusted: None,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("force") if verb == Verb::Uninstall => flags.is_forced = true,
            Long(name) => {
                let name = name.to_owned();
                let value = parser.value().map_err(|error| error.to_string())?;
                let value = value.into_string().map_err(|_| format!("--{name}: its value is not UTF-8"))?;
                set(&mut flags, verb, &name, value)?;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(flags))
}

fn set(flags: &mut Flags, verb: Verb, name: &str, value: String) -> Result<(), String> {
    let places = verb != Verb::Uninstall;
    match name {
        "plugin-dir" => flags.plugin_dirs.push(absolute(name, value)?),
        "conf-dir" => flags.conf_dir = Some(absolute(name, value)?),
        "tool-dir" => flags.tool_dir = Some(absolute(name, value)?),
        "cache-dir" if verb == Verb::Uninstall => flags.cache_dirs.push(absolute(name, value)?),
        "preset" => flags.preset = presets::by_name(&value)?,
        "root" => flags.root = value.into(),
        "from" if places => flags.from = Some(value.into()),
        "network-list" if places => flags.network_list = Some(value.into()),
        "pod-cidr" if places => flags.pod_cidrs = PodCidrs::These(pod_cidrs(&value, "--pod-cidr")?),
        "pod-cidr-file" if places => flags.pod_cidrs = PodCidrs::In(value.into()),
        "without" if places => flags.without.extend(value.split(',').map(|one| one.trim().to_owned())),
        "reassert" if places => {
            flags.reassert = match value.as_str() {
                "missing" => Reassert::Missing,
                "all" => Reassert::All,
                other => return Err(format!("--reassert {other}: write missing or all")),
            };
        }
        "ready-file" if verb == Verb::Watch => flags.ready_file = Some(value.into()),
        "trust-user" => {
            flags.trusted =
                Some(value.parse().map_err(|_| format!("--trust-user {value}: write the number of a user"))?);
        }
        "wait" => {
            let seconds = value.parse().map_err(|_| format!("--wait {value}: write a number of seconds"))?;
            flags.wait = Duration::from_secs(seconds);
        }
        other => return Err(format!("there is no flag --{other} here")),
    }
    Ok(())
}

fn absolute(name: &str, value: String) -> Result<PathBuf, String> {
    if value.starts_with('/') { Ok(value.into()) } else { Err(format!("--{name} {value}: write an absolute path")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(verb: Verb, line: &str) -> Result<Option<Flags>, String> {
        parse(verb, &line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_wrong_command_line_is_explained() {
        for (verb, line, says) in [
            (Verb::Install, "now", "unexpected argument \"now\""),
            (Verb::Install, "--fast x", "there is no flag --fast here"),
            (Verb::Install, "--plugin-dir", "missing argument"),
            (Verb::Install, "--plugin-dir bin", "write an absolute path"),
            (Verb::Install, "--force", "--force"),
            (Verb::Uninstall, "--from /x", "there is no flag --from here"),
            (Verb::Verify, "--ready-file /x", "there is no flag --ready-file here"),
            (Verb::Watch, "--reassert some", "write missing or all"),
            (Verb::Watch, "--preset rk3", "hint: default, k3s, rke2"),
            (Verb::Watch, "--wait long", "write a number of seconds"),
            (Verb::Uninstall, "--reassert all", "there is no flag --reassert here"),
        ] {
            let error = parsed(verb, line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn the_help_fits_the_screen_and_has_every_flag() {
        for verb in [Verb::Install, Verb::Watch, Verb::Uninstall, Verb::Verify] {
            let text = help(verb);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            assert!(text.lines().all(|line| !line.starts_with('-')), "{text}");
            let words = text.split_whitespace().map(|word| word.trim_end_matches([',', '.']));
            for flag in words.filter(|word| word.starts_with("--") && *word != "--force") {
                let is_known = !matches!(parsed(verb, &format!("{flag} all")), Err(error) if error.contains("no flag"));
                assert!(is_known, "{flag}");
            }
            assert!(parsed(verb, "--help").unwrap().is_none());
        }
        assert_eq!(parsed(Verb::Install, "").unwrap().unwrap().reassert, Reassert::All);
        assert_eq!(parsed(Verb::Watch, "").unwrap().unwrap().reassert, Reassert::Missing);
    }
}
