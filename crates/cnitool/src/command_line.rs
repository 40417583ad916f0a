//! What was asked for, from the arguments.

use std::ffi::OsString;

/// The text of `--help`.
pub(crate) const HELP: &str = "\
cnitool adds, checks and deletes a network of a container by hand.

Usage:
  cnitool add   NETWORK NETNS    set up, and print the result
  cnitool check NETWORK NETNS    compare what is there with the result of add
  cnitool del   NETWORK NETNS    take down
  cnitool plan  NETWORK NETNS    print what add would do, and do nothing

NETWORK is the name in a configuration file, NETNS the path of a network namespace (ip netns add NAME makes
/var/run/netns/NAME).

Flags:
  -i, --ifname NAME    the interface in the container (default: CNI_IFNAME, then eth0)
  -h, --help           this text
      --version        the version

Environment:
  NETCONFPATH      directory of configuration files (default /etc/cni/net.d)
  CNI_PATH         directories of plugins, separated by colons (default /opt/cni/bin)
  CNI_ARGS         KEY=VALUE;KEY=VALUE for the plugins
  CAP_ARGS         a JSON object, value by capability: {\"portMappings\": [...]}
  CNI_IFNAME       see --ifname
  CNI_CACHE_DIR    where results are kept, below results/ (default /var/lib/cni)
";

/// A verb that goes to the plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Check,
    Del,
    Plan,
}

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Version,
    Run { verb: Verb, network: String, netns: String, ifname: Option<String> },
}

/// Reads the arguments, without the program's name. Flags may stand anywhere, positions beyond the third say nothing.
pub(crate) fn read(arguments: impl Iterator<Item = OsString>) -> Result<Asked, String> {
    let mut arguments = arguments.map(text);
    let (mut positions, mut ifname) = (Vec::new(), None);
    while let Some(argument) = arguments.next().transpose()? {
        match argument.as_str() {
            "-h" | "--help" => return Ok(Asked::Help),
            "--version" => return Ok(Asked::Version),
            "-i" | "--ifname" => {
                let value = arguments.next().transpose()?;
                ifname = Some(value.ok_or_else(|| usage(&format!("{argument} needs a name")))?);
            }
            flag if flag.starts_with('-') => ifname = Some(joined(flag)?.to_owned()),
            _ => positions.push(argument),
        }
    }
    asked(positions, ifname)
}

fn asked(positions: Vec<String>, ifname: Option<String>) -> Result<Asked, String> {
    let mut positions = positions.into_iter();
    let verb = match positions.next().as_deref() {
        None | Some("help") => return Ok(Asked::Help),
        Some("add") => Verb::Add,
        Some("check") => Verb::Check,
        Some("del") => Verb::Del,
        Some("plan") => Verb::Plan,
        Some(other) => return Err(usage(&format!("unknown command \"{other}\""))),
    };
    match (positions.next(), positions.next()) {
        (Some(network), Some(netns)) => Ok(Asked::Run { verb, network, netns, ifname }),
        _ => Err(usage("NETWORK and NETNS are needed")),
    }
}

/// `--ifname=NAME`, `-i=NAME` or `-iNAME`.
fn joined(flag: &str) -> Result<&str, String> {
    let name = flag.strip_prefix("--ifname=").or_else(|| {
        let name = flag.strip_prefix("-i")?;
        Some(name.strip_prefix('=').unwrap_or(name))
    });
    name.ok_or_else(|| usage(&format!("unknown flag {flag}")))
}

fn text(argument: OsString) -> Result<String, String> {
    argument.into_string().map_err(|argument| format!("argument {} is not UTF-8", argument.display()))
}

fn usage(what: &str) -> String {
    format!("{what}; cnitool --help shows how to call it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Asked, String> {
        read(line.split_whitespace().map(OsString::from))
    }

    fn run(ifname: Option<&str>) -> Asked {
        let ifname = ifname.map(str::to_owned);
        Asked::Run { verb: Verb::Del, network: "net".into(), netns: "/ns".into(), ifname }
    }

    #[test]
    fn flags_may_stand_anywhere_and_in_every_spelling() {
        assert_eq!(of("del net /ns").unwrap(), run(None));
        for line in [
            "-i lo del net /ns",
            "del --ifname lo net /ns",
            "del net /ns --ifname=lo",
            "del net -ilo /ns x",
            "-i=lo del net /ns",
        ] {
            assert_eq!(of(line).unwrap(), run(Some("lo")), "{line}");
        }
    }

    #[test]
    fn no_command_and_help_in_any_place_is_a_call_for_help() {
        for line in ["", "help", "help add", "--help", "add net /ns -h"] {
            assert_eq!(of(line).unwrap(), Asked::Help, "{line}");
        }
        assert_eq!(of("--version").unwrap(), Asked::Version);
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let refused = [
            ("frob net /ns", "unknown command \"frob\""),
            ("add net", "NETWORK and NETNS"),
            ("add --frob", "--frob"),
            ("add -i", "-i needs a name"),
        ];
        for (line, what) in refused {
            let error = of(line).unwrap_err();
            assert!(error.contains(what) && error.contains("--help"), "{line}: {error}");
        }
    }
}
