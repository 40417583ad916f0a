//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use cnikit_testkit::campaign::runs_all_cases;

use crate::checks::{CHECKS, Check, Level};

/// Tests a CNI plugin of any language, or a chain of plugins.
///
/// The plugin is called in network namespaces that this program creates; the machine's network is not touched. Without root it
/// needs user namespaces. Exit status: 0 if every test up to --level passes, 1 if one fails, 2 if nothing could be tested.
#[derive(Parser, Clone, Debug)]
#[command(name = "cni-conformance", version)]
pub(crate) struct CommandLine {
    /// The plugin's file. Plugins that it delegates to are looked up beside it, then in --cni-path
    #[arg(long, value_name = "FILE", required_unless_present_any = ["chain", "list"])]
    pub plugin: Option<PathBuf>,
    /// Its configuration: one JSON object with the plugin's keys. `$DIR` in it is a directory of each test's own; `"$NUMBER"` a
    /// number, and `$PLACE` two bytes of an IPv4 address, that no other container has
    #[arg(long, value_name = "FILE", required_unless_present_any = ["chain", "list"])]
    pub conf: Option<PathBuf>,
    /// A network list (.conflist). With --plugin its plugins are called before it; without, the list is tested as a whole
    #[arg(long, value_name = "FILE")]
    pub chain: Option<PathBuf>,
    /// The key `ipam` of the configuration: JSON, a file with JSON, or `host-local` for one with both families
    #[arg(long, value_name = "JSON|FILE|host-local")]
    pub with_ipam: Option<String>,
    /// Directories of the other plugins, as in `CNI_PATH`
    #[arg(long, value_name = "DIR:DIR")]
    pub cni_path: Option<String>,
    /// A shell line that prepares each host, for example adds a master. `$DIR` in it is the host's directory
    #[arg(long, value_name = "LINE", default_value = ":")]
    pub setup: String,
    /// A shell line that prepares the host for each container, for example adds the device that it gets, `pairend$NUMBER`: links
    /// whose names begin with `pairend` are not compared. `$NUMBER`, `$PLACE` and `$DIR` in it are as in the configuration,
    /// `$NETNS` is the path of the container's namespace
    #[arg(long, value_name = "LINE", default_value = ":")]
    pub setup_container: String,
    /// A directory in which the plugin has state; each host gets an empty one there. /var/lib/cni always is one
    #[arg(long, value_name = "DIR")]
    pub state: Vec<PathBuf>,
    /// Another variable for each call, for example `CNI_ARGS`
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// What attachments share, so that it may stay after the last DEL: lines of a snapshot with this text are not leftovers
    #[arg(long, value_name = "TEXT")]
    pub may_stay: Vec<String>,
    /// The highest level to test
    #[arg(long, value_enum, default_value_t = Level::Excellent)]
    pub level: Level,
    /// Only these tests
    #[arg(long, value_name = "TEST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Not these tests
    #[arg(long, value_name = "TEST", value_delimiter = ',')]
    pub skip: Vec<String>,
    /// How many calls of each verb are killed, and how many made to fail; `CNIKIT_CAMPAIGNS=whole` tries each system call
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub cases: usize,
    /// When the campaigns run, which take minutes: `kill`, `recorded`, `fault` and `terminate`
    #[arg(long, value_enum, default_value_t = Campaigns::Always)]
    pub campaigns: Campaigns,
    /// A directory of recorded calls to replay, in place of those of containerd and Podman that this program has
    #[arg(long, value_name = "DIR")]
    pub transcripts: Option<PathBuf>,
    /// The form of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where the report is written to, if not to stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// List the tests, and run none
    #[arg(long)]
    pub list: bool,
}

/// When the campaigns run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Campaigns {
    /// With all other tests.
    Always,
    /// A campaign is skipped once a test of its level, or of one below, has failed.
    IfPassed,
    /// Not at all.
    Never,
}

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// Test Anything Protocol, version 14.
    Tap,
    /// The XML of `JUnit`.
    Junit,
    /// One JSON document.
    Json,
}

impl CommandLine {
    /// The tests of --level, --only and --skip.
    ///
    /// # Errors
    /// A name that no test has.
    pub(crate) fn chosen_checks(&self) -> Result<Vec<&'static Check>, String> {
        for name in self.only.iter().chain(&self.skip) {
            if !CHECKS.iter().any(|check| check.id == name) {
                return Err(format!("there is no test {name:?}; hint: `cni-conformance --list` prints all"));
            }
        }
        let is_named = |names: &[String], check: &Check| names.iter().any(|name| name == check.id);
        let mut chosen: Vec<&Check> = CHECKS.iter().filter(|check| check.level <= self.level).collect();
        chosen.retain(|check| self.only.is_empty() || is_named(&self.only, check));
        chosen.retain(|check| !is_named(&self.skip, check));
        Ok(chosen)
    }

    /// The command line that runs one test again.
    pub(crate) fn again(&self, id: &str, seed: u64) -> String {
        let whole = if runs_all_cases() { "CNIKIT_CAMPAIGNS=whole " } else { "" };
        let mut words = vec![format!("{whole}CNIKIT_SEED={seed}"), "cni-conformance".to_owned()];
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("--{name} {}", quoted(&value))));
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        option("plugin", path(&self.plugin));
        option("conf", path(&self.conf));
        option("chain", path(&self.chain));
        option("with-ipam", self.with_ipam.clone());
        option("cni-path", self.cni_path.clone());
        for (name, line) in [("setup", &self.setup), ("setup-container", &self.setup_container)] {
            option(name, Some(line.clone()).filter(|line| line != ":"));
        }
        self.state.iter().for_each(|dir| option("state", Some(dir.display().to_string())));
        self.env.iter().for_each(|one| option("env", Some(one.clone())));
        self.may_stay.iter().for_each(|text| option("may-stay", Some(text.clone())));
        option("cases", Some(self.cases.to_string()));
        option("transcripts", path(&self.transcripts));
        option("only", Some(id.to_owned()));
        words.join(" ")
    }
}

/// A word of a shell line.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_that_repeats_a_test_means_the_same() {
        let words = [
            "cni-conformance",
            "--plugin",
            "./x y",
            "--conf",
            "a.json",
            "--setup",
            "ip link add 'm' up",
            "--may-stay",
            "cni0",
            "--cases",
            "7",
        ];
        let line = CommandLine::parse_from(words);
        let again = line.again("kill", 5);
        assert!(again.starts_with("CNIKIT_SEED=5 cni-conformance --plugin './x y' --conf a.json "), "{again}");
        assert!(
            again.contains(r"--setup 'ip link add '\''m'\'' up'") && again.ends_with("--cases 7 --only kill"),
            "{again}"
        );
    }

    #[test]
    fn the_levels_and_names_choose_tests() {
        let chosen = |more: &[&str]| {
            let words = [&["cni-conformance", "--plugin", "x", "--conf", "y"], more].concat();
            CommandLine::parse_from(words).chosen_checks().map(|checks| checks.len())
        };
        assert_eq!(chosen(&[]), Ok(CHECKS.len()));
        assert!(chosen(&["--level", "specification"]).unwrap() < CHECKS.len());
        assert_eq!(chosen(&["--only", "kill,gc"]), Ok(2));
        assert_eq!(chosen(&["--skip", "kill"]), Ok(CHECKS.len() - 1));
        assert!(chosen(&["--only", "kil"]).unwrap_err().contains("there is no test \"kil\""));
    }
}
