//! The daemon's command line: the flags of upstream's daemon, in the syntax of Go.

use std::path::PathBuf;
use std::time::Duration;

use crate::DaemonSettings;

/// The help.
pub(crate) const HELP: &str = "\
Usage: dhcp daemon [FLAGS]

Holds the DHCP leases of containers for the plugin dhcp.

Flags:
  -pidfile PATH            write the process's number to this file
  -hostprefix PATH         put this in front of the socket's path and of the paths of namespaces
  -socketpath PATH         listen on this socket (/run/cni/dhcp.sock)
  -datadir PATH            record the leases in this directory (/var/lib/cni/dhcp)
  -broadcast               ask servers to broadcast their replies
  -timeout DURATION        wait so long for the first reply (2s)
  -resendmax DURATION      wait no longer than this between two requests (1m2s)
  -resendtimeout DURATION  wait no longer than this for a lease (3m28s)
  -help                    print this help
";

/// The parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) settings: DaemonSettings,
    pub(crate) pid_file: Option<PathBuf>,
    /// The listening socket is stdin: for `"daemon": "auto"`.
    pub(crate) is_inherited: bool,
}

/// The flag of [`Flags::is_inherited`].
pub(crate) const INHERITED: &str = "socket-is-stdin";

/// Parses the arguments after `daemon`; `None` if the help is asked for. The error is the text for the user.
pub(crate) fn parse(arguments: &[String]) -> Result<Option<Flags>, String> {
    let mut flags = Flags { settings: DaemonSettings::default(), pid_file: None, is_inherited: false };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(name) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
            return Err(format!("unexpected argument {argument:?}\n{HELP}"));
        };
        let (name, given) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        if name == "h" || name == "help" {
            return Ok(None);
        }
        if name == INHERITED {
            flags.is_inherited = true;
            continue;
        }
        if name == "broadcast" {
            flags.settings.broadcast = match given {
                None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => true,
                Some("0" | "f" | "F" | "false" | "FALSE" | "False") => false,
                Some(other) => return Err(format!("-broadcast={other}: write true or false")),
            };
            continue;
        }
        let mut value = || match given {
            Some(value) => Ok(value),
            None => rest.next().map(String::as_str).ok_or_else(|| format!("-{name} needs a value\n{HELP}")),
        };
        match name {
            "pidfile" => flags.pid_file = pid_file(value()?)?,
            "hostprefix" => value()?.clone_into(&mut flags.settings.host_prefix),
            "datadir" => flags.settings.records = value()?.into(),
            "socketpath" => flags.settings.socket = value()?.into(),
            "timeout" => flags.settings.timing.first_wait = duration(name, value()?)?,
            "resendmax" => flags.settings.timing.longest_wait = duration(name, value()?)?,
            "resendtimeout" => flags.settings.patience = duration(name, value()?)?,
            _ => return Err(format!("there is no flag -{name}\n{HELP}")),
        }
    }
    let DaemonSettings { host_prefix, socket, .. } = &flags.settings;
    flags.settings.socket = format!("{host_prefix}{}", socket.display()).into();
    Ok(Some(flags))
}

fn pid_file(value: &str) -> Result<Option<PathBuf>, String> {
    match value {
        "" => Ok(None),
        path if path.starts_with('/') => Ok(Some(path.into())),
        path => Err(format!("Error writing pidfile {path:?}: path not absolute")),
    }
}

/// A duration as Go writes it: numbers with units, as `1m2.5s`. A micro is written as in Latin-1, as in Greek, or as `u`.
fn duration(name: &str, text: &str) -> Result<Duration, String> {
    let wrong = || format!("-{name} {text}: write a duration such as 10s or 1m30s");
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                "us" | "\u{b5}s" | "\u{3bc}s" => 0.000_001,
                "ns" => 0.000_000_001,
                _ => return Err(wrong()),
            };
        rest = &rest[unit..];
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Result<Flags, String> {
        let arguments: Vec<String> = line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        parse(&arguments).map(|flags| flags.expect("no flag of the help"))
    }

    #[test]
    fn the_flags_of_upstream_are_read() {
        assert_eq!(flags("").unwrap().settings, DaemonSettings::default());
        let all = "-pidfile /p --hostprefix=/host -socketpath /s.sock -broadcast -timeout 3s --resendmax=1m2s -resendtimeout 1.5h -datadir /d";
        let Flags { settings, pid_file, .. } = flags(all).unwrap();
        assert_eq!(pid_file, Some("/p".into()));
        assert_eq!((settings.host_prefix.as_str(), settings.socket), ("/host", "/host/s.sock".into()));
        assert_eq!(settings.records, PathBuf::from("/d"));
        assert!(settings.broadcast && !flags("-broadcast=false").unwrap().settings.broadcast);
        let waits = (settings.timing.first_wait, settings.timing.longest_wait, settings.patience);
        assert_eq!(waits, (Duration::from_secs(3), Duration::from_secs(62), Duration::from_mins(90)));
        for (text, nanoseconds) in [
            ("250ms", 250_000_000),
            ("1500us", 1_500_000),
            ("1500\u{b5}s", 1_500_000),
            ("1500\u{3bc}s", 1_500_000),
            ("2500ns", 2_500),
            ("1s2ms3us4ns", 1_002_003_004),
        ] {
            let found = flags(&format!("-timeout {text}")).unwrap().settings.timing.first_wait;
            assert_eq!(found, Duration::from_nanos(nanoseconds), "{text}");
        }
    }

    #[test]
    fn the_help_is_asked_for_as_in_go() {
        for flag in ["-h", "-help", "--help"] {
            assert_eq!(parse(&["-broadcast".to_owned(), flag.to_owned()]), Ok(None), "{flag}");
        }
        assert!(HELP.lines().all(|line| !line.starts_with('-') && line.chars().count() <= 100), "{HELP}");
    }

    #[test]
    fn a_wrong_command_line_is_explained() {
        for (line, says) in [
            ("start", "unexpected argument \"start\""),
            ("-fast", "there is no flag -fast"),
            ("-timeout", "-timeout needs a value"),
            ("-timeout 10", "write a duration"),
            ("-timeout 10x", "write a duration"),
            ("-timeout 10\u{b5}", "write a duration"),
            ("-timeout 0s", "write a duration"),
            ("-timeout 1e9s", "write a duration"),
            ("-timeout .s", "write a duration"),
            ("-broadcast=maybe", "write true or false"),
            ("-pidfile p", "Error writing pidfile \"p\": path not absolute"),
        ] {
            let error = flags(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
