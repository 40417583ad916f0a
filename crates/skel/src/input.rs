//! The input of a call, environment and stdin, as values.

use std::io::Read;
use std::path::{Path, PathBuf};

use cnikit_netns::{Netns, NetnsLookup};
use cnikit_types::limit;

use crate::error::{Error, Result, code};
use crate::policy::NodePolicy;

/// A longer stdin is refused, in bytes. No configuration is that long, and a plugin must not use up the node's memory.
const STDIN_LIMIT: u64 = limit::STDIN;

/// Environment and stdin as values, so that a delegate in this process and a test are called like a process.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Input {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// `CNI_NETNS_OVERRIDE` is `1` or `true`: `CNI_NETNS` may be the plugin's own namespace.
    pub netns_override: bool,
    /// The logging of this call.
    pub observe: Observe,
    /// The configuration.
    pub stdin: Stdin,
    /// The node's policy, once it has been read.
    pub node: Option<NodePolicy>,
    /// The namespace that `netns` was found to be, for plugins that are called in this process with the same `netns`.
    pub(crate) sandbox: Option<Netns>,
}

/// Where the configuration comes from.
#[derive(Clone, Debug, Default)]
pub enum Stdin {
    /// The process's standard input, read when it is needed. VERSION never reads it.
    #[default]
    Process,
    /// These bytes.
    Given(Vec<u8>),
}

/// The logging that the operator configured.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Observe {
    /// `CNI_LOG`: off unless it is `info` or `debug`.
    pub level: LogLevel,
    /// `CNI_LOG_FILE`; absent: stderr.
    pub file: Option<PathBuf>,
    /// `TRACEPARENT`, the W3C trace context that this call continues.
    pub traceparent: Option<String>,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LogLevel {
    /// Nothing, at no cost.
    #[default]
    Off,
    /// One line per call.
    Info,
    /// One line per call and per step.
    Debug,
}

impl Input {
    /// Looks the namespace at `netns` up, unless the plugin that called this one in the same process has done so.
    pub(crate) fn find_netns(&self) -> NetnsLookup {
        match &self.sandbox {
            Some(found) if found.path() == Path::new(&self.netns) => NetnsLookup::Present(found.clone()),
            _ => cnikit_netns::find(&self.netns),
        }
    }

    /// A call of this command with this configuration; the other variables are empty.
    pub fn new(command: impl Into<String>, conf: impl Into<Vec<u8>>) -> Input {
        Input { command: command.into(), stdin: Stdin::Given(conf.into()), ..Input::default() }
    }

    /// The input of the call that this process was started for, from its environment.
    pub fn of_process() -> Input {
        Input::from_variables(variable, Stdin::Process)
    }

    /// The input of a call with these variables and this stdin. A variable that is not set is empty.
    pub fn from_variables(variable: impl Fn(&str) -> String, stdin: Stdin) -> Input {
        Input {
            command: variable("CNI_COMMAND"),
            container_id: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            ifname: variable("CNI_IFNAME"),
            args: variable("CNI_ARGS"),
            path: variable("CNI_PATH"),
            netns_override: matches!(variable("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true"),
            observe: Observe::from_variables(variable),
            stdin,
            node: None,
            sandbox: None,
        }
    }
}

impl Observe {
    fn from_variables(variable: impl Fn(&str) -> String) -> Observe {
        let level = match variable("CNI_LOG").to_ascii_lowercase().as_str() {
            "info" => LogLevel::Info,
            "debug" => LogLevel::Debug,
            _ => LogLevel::Off,
        };
        let file = variable("CNI_LOG_FILE");
        let traceparent = variable("TRACEPARENT");
        Observe {
            level,
            file: (!file.is_empty()).then(|| file.into()),
            traceparent: (!traceparent.is_empty()).then_some(traceparent),
        }
    }
}

impl Stdin {
    /// Reads all of it, once (code 5 if it cannot be read, 6 if it is longer than [`STDIN_LIMIT`]).
    pub(crate) fn read(&mut self) -> Result<&[u8]> {
        if matches!(self, Stdin::Process) {
            *self = Stdin::Given(from_process()?);
        }
        if self.so_far().len() as u64 > STDIN_LIMIT {
            let limit = STDIN_LIMIT >> 20;
            return Err(Error::new(code::DECODE, format!("the network config on stdin is longer than {limit} MiB"))
                .hint("a configuration has some kilobytes: check what the runtime sends on stdin"));
        }
        Ok(self.so_far())
    }

    /// What has been read so far.
    pub fn so_far(&self) -> &[u8] {
        if let Stdin::Given(bytes) = self { bytes } else { &[] }
    }
}

fn from_process() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match std::io::stdin().lock().take(STDIN_LIMIT + 1).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(Error::new(code::IO, format!("error reading from stdin: {error}"))
            .hint("give the network's configuration to the plugin's stdin: a pipe, or a file that can be read")),
    }
}

/// The value of a variable. An unset one is like an empty one.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn variable(name: &str) -> String {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The input of a call with these variables.
    fn of(variables: &[(&str, &str)]) -> Input {
        let value =
            |name: &str| variables.iter().find(|(one, _)| *one == name).map_or("", |(_, value)| value).to_owned();
        Input::from_variables(value, Stdin::Given(Vec::new()))
    }

    #[test]
    fn each_variable_has_its_place_and_one_that_is_not_set_is_empty() {
        let input = of(&[
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IP=10.0.0.1"),
            ("CNI_PATH", "/opt/cni/bin"),
        ]);
        assert_eq!([&input.command, &input.container_id, &input.netns], ["ADD", "c1", "/run/netns/c1"]);
        assert_eq!([&input.ifname, &input.args, &input.path], ["eth0", "IP=10.0.0.1", "/opt/cni/bin"]);
        let empty = of(&[]);
        assert_eq!([&empty.command, &empty.container_id, &empty.netns, &empty.path], [""; 4]);
        let is_allowed = |value| of(&[("CNI_NETNS_OVERRIDE", value)]).netns_override;
        assert_eq!(["1", "True", "0", "yes", ""].map(is_allowed), [true, true, false, false, false]);
    }

    #[test]
    fn nothing_is_logged_unless_a_level_is_set() {
        let level = |value| of(&[("CNI_LOG", value)]).observe.level;
        assert_eq!(
            ["", "warn", "info", "DEBUG"].map(level),
            [LogLevel::Off, LogLevel::Off, LogLevel::Info, LogLevel::Debug]
        );
        let unset = of(&[]).observe;
        assert_eq!((unset.file, unset.traceparent), (None, None));
        let set = of(&[("CNI_LOG_FILE", "/var/log/cni"), ("TRACEPARENT", "00-1-2-01")]).observe;
        assert_eq!((set.file, set.traceparent.as_deref()), (Some("/var/log/cni".into()), Some("00-1-2-01")));
    }

    #[test]
    fn the_longest_configuration_is_read_and_a_longer_one_is_refused() {
        let longest = usize::try_from(STDIN_LIMIT).unwrap();
        assert_eq!(Stdin::Given(vec![b' '; longest]).read().unwrap().len(), longest);
        let error = Stdin::Given(vec![b' '; longest + 1]).read().unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (code::DECODE, "the network config on stdin is longer than 16 MiB")
        );
    }

    #[test]
    fn a_namespace_that_the_calling_plugin_has_opened_is_not_looked_up_again() {
        let own = Netns::own().unwrap();
        let mut input = Input::new("ADD", "{}");
        input.netns = own.path().to_str().unwrap().to_owned();
        assert!(matches!(input.find_netns(), NetnsLookup::Own(_)));
        input.sandbox = Some(own);
        assert!(matches!(input.find_netns(), NetnsLookup::Present(_)));
        input.netns = "/nonexistent".to_owned();
        assert!(matches!(input.find_netns(), NetnsLookup::Gone));
    }
}
