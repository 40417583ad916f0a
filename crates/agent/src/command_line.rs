//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use cnikit_pool::{AgentRequest, Incarnation, Want, parse_request};
use ipnetwork::IpNetwork;
use lexopt::{Arg, Parser, ValueExt};

use crate::config::CONFIG;
use crate::operator::FenceRequest;

/// The help.
pub const HELP: &str = "\
Usage: cnikit-agent COMMAND [OPTIONS]

Claims blocks of addresses for the IPAM plugin pool of this node, and gives them back.

Commands:
  run                            serve the plugins of this node until SIGTERM
  claim --network N --pool P     claim a block for a network once, without a daemon
      --request JSON               what is wanted instead, as the plugin asks the agent for it
  give-back                      give back the blocks that have been without use for the grace, as
                                 the agent does while it runs
      --wait                       also those that have not been yet, until there is none
  fence NODE                     free the blocks of a node whose containers are gone for ever
      --incarnation ID             of this incarnation (default: of a fence that is not finished,
                                   otherwise the one that is registered)
      --by NAME, --why TEXT        what the record of the fence says
      --force                      although the node has a session, so that its agent seems to run
  watch-nodes                    fence nodes that Kubernetes has given up, until SIGTERM
  define FILE                    write the definition of a pool, from a JSON file
  select NAMESPACE POOL          give the pods of a namespace addresses of a pool, instead of the
                                 pool of their network
      --none                       without POOL: of the pool of their network again
  forget POOL NAMESPACE/NAME     free the addresses that stay with a name, which no node has
  list                           print pools, blocks and nodes as JSON
  check                          compare the files of this node with the engine
  adopt DIR --pool P             claim the blocks that cover the addresses of a network's directory,
                                   which is below dataDir and was written by host-local
      --range CIDR                 all blocks in here, too; may be repeated
      --also-stdin                 addresses on stdin, too: cnitool ipam import
      --dry-run                    only print what would be claimed

Options:
  --config FILE                  the configuration (/etc/cnikit/agent.json)
  --log                          log every step
  --help                         print this help
  --version                      print the version
";

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentCommand {
    /// Serve.
    Run,
    /// Claim once.
    Claim(AgentRequest),
    /// Give unused blocks back.
    GiveBack {
        /// Whether to wait for those whose grace has not passed.
        waits: bool,
    },
    /// Fence a node.
    Fence(FenceRequest),
    /// Fence the nodes that Kubernetes has given up.
    WatchNodes,
    /// Define a pool.
    Define(PathBuf),
    /// Choose the pool of a namespace.
    Select {
        /// The namespace.
        namespace: String,
        /// The pool; `None`: that of each network.
        pool: Option<String>,
    },
    /// Forget a name of a pool.
    Forget {
        /// The pool.
        pool: String,
        /// The namespace.
        namespace: String,
        /// The name in it.
        name: String,
    },
    /// List everything.
    List,
    /// Compare the files with the engine.
    Check,
    /// Claim the blocks that cover the addresses of a directory.
    Adopt(AdoptLine),
    /// Print this.
    Print(String),
}

/// The arguments of `adopt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptLine {
    /// The directory.
    pub directory: PathBuf,
    /// The pool.
    pub pool: String,
    /// Ranges of which all blocks are claimed.
    pub ranges: Vec<IpNetwork>,
    /// Whether further addresses are on stdin.
    pub reads_stdin: bool,
    /// Whether nothing is claimed.
    pub is_dry_run: bool,
}

/// The parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// What is to be done.
    pub command: AgentCommand,
    /// The configuration file.
    pub config: PathBuf,
    /// Whether every step is logged.
    pub log: bool,
}

#[derive(Default)]
struct Given {
    words: Vec<String>,
    config: Option<PathBuf>,
    log: bool,
    network: Option<String>,
    pool: Option<String>,
    incarnation: Option<Incarnation>,
    by: Option<String>,
    why: Option<String>,
    force: bool,
    ranges: Vec<IpNetwork>,
    also_stdin: bool,
    dry_run: bool,
    wait: bool,
    none: bool,
    request: Option<String>,
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// The text for the user.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandLine, String> {
    let mut parser = Parser::from_args(arguments);
    let mut given = Given::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        if let Some(text) = informed(&argument) {
            return Ok(CommandLine { command: AgentCommand::Print(text), config: CONFIG.into(), log: false });
        }
        take(&mut given, &argument.into_owned_name(), &mut parser).map_err(|error| format!("{error}\n\n{HELP}"))?;
    }
    let command = command(&given).map_err(|error| format!("{error}\n\n{HELP}"))?;
    Ok(CommandLine { command, config: given.config.unwrap_or_else(|| CONFIG.into()), log: given.log })
}

fn informed(argument: &Arg<'_>) -> Option<String> {
    match argument {
        Arg::Long("help") | Arg::Short('h') => Some(HELP.to_owned()),
        Arg::Long("version") => Some(format!("cnikit-agent {}\n", env!("CARGO_PKG_VERSION"))),
        _ => None,
    }
}

/// An argument that borrows nothing from the parser.
enum Owned {
    Word(OsString),
    Flag(String),
}

trait IntoOwnedName {
    fn into_owned_name(self) -> Owned;
}

impl IntoOwnedName for Arg<'_> {
    fn into_owned_name(self) -> Owned {
        match self {
            Arg::Value(word) => Owned::Word(word),
            Arg::Long(name) => Owned::Flag(name.to_owned()),
            Arg::Short(letter) => Owned::Flag(letter.to_string()),
        }
    }
}

fn take(given: &mut Given, argument: &Owned, parser: &mut Parser) -> Result<(), String> {
    let name = match argument {
        Owned::Word(word) => {
            given.words.push(word.to_str().ok_or("an argument is not UTF-8")?.to_owned());
            return Ok(());
        }
        Owned::Flag(name) => name.as_str(),
    };
    if name == "log" {
        given.log = true;
        return Ok(());
    }
    let flag = match name {
        "force" => Some(&mut given.force),
        "also-stdin" => Some(&mut given.also_stdin),
        "dry-run" => Some(&mut given.dry_run),
        "wait" => Some(&mut given.wait),
        "none" => Some(&mut given.none),
        _ => None,
    };
    if let Some(flag) = flag {
        *flag = true;
        return Ok(());
    }
    if !["config", "network", "pool", "incarnation", "by", "why", "range", "request"].contains(&name) {
        return Err(format!("there is no option --{name}"));
    }
    let value = parser.value().map_err(|error| error.to_string())?;
    if name == "config" {
        given.config = Some(value.into());
        return Ok(());
    }
    let value = value.string().map_err(|error| error.to_string())?;
    match name {
        "network" => given.network = Some(value),
        "pool" => given.pool = Some(value),
        "by" => given.by = Some(value),
        "why" => given.why = Some(value),
        "request" => given.request = Some(value),
        "range" => given.ranges.push(value.parse().map_err(|error| format!("--range {value}: {error}"))?),
        _ => given.incarnation = Some(value.parse().map_err(|error: cnikit_pool::Error| error.to_string())?),
    }
    Ok(())
}

fn command(given: &Given) -> Result<AgentCommand, String> {
    let words: Vec<&str> = given.words.iter().map(String::as_str).collect();
    let verb = words.first().copied().unwrap_or_default();
    let needed = |value: &Option<String>, name: &str| value.clone().ok_or(format!("{verb} needs --{name}"));
    Ok(match words.as_slice() {
        ["run"] => AgentCommand::Run,
        ["claim"] => AgentCommand::Claim(match &given.request {
            Some(request) => parse_request(request.as_bytes()).map_err(|error| format!("--request: {error}"))?,
            None => AgentRequest::Want(Want {
                network: needed(&given.network, "network")?,
                pool: needed(&given.pool, "pool")?,
                families: Vec::new(),
                free: 1,
                addresses: Vec::new(),
                attachment: None,
            }),
        }),
        ["give-back"] => AgentCommand::GiveBack { waits: given.wait },
        ["fence", node] => AgentCommand::Fence(FenceRequest {
            node: (*node).to_owned(),
            incarnation: given.incarnation,
            by: given.by.clone().unwrap_or_else(|| "an operator".to_owned()),
            why: given.why.clone().unwrap_or_default(),
            force: given.force,
        }),
        ["watch-nodes"] => AgentCommand::WatchNodes,
        ["define", file] => AgentCommand::Define((*file).into()),
        ["select", namespace, pool] if !given.none => {
            AgentCommand::Select { namespace: (*namespace).into(), pool: Some((*pool).into()) }
        }
        ["select", namespace] if given.none => AgentCommand::Select { namespace: (*namespace).into(), pool: None },
        ["select", ..] => return Err("select needs a NAMESPACE and either a POOL or --none".to_owned()),
        ["forget", pool, name] => {
            let (namespace, name) = name.split_once('/').ok_or("forget needs a POOL and a NAMESPACE/NAME")?;
            AgentCommand::Forget { pool: (*pool).into(), namespace: namespace.into(), name: name.into() }
        }
        ["list"] => AgentCommand::List,
        ["check"] => AgentCommand::Check,
        ["adopt", directory] => AgentCommand::Adopt(AdoptLine {
            directory: (*directory).into(),
            pool: needed(&given.pool, "pool")?,
            ranges: given.ranges.clone(),
            reads_stdin: given.also_stdin,
            is_dry_run: given.dry_run,
        }),
        [] => return Err("no command".to_owned()),
        _ => return Err(format!("there is no command {:?}", words.join(" "))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<CommandLine, String> {
        parse(text.split(' ').filter(|word| !word.is_empty()).map(OsString::from))
    }

    #[test]
    fn commands_and_options_come_in_any_order() {
        let run = CommandLine { command: AgentCommand::Run, config: CONFIG.into(), log: false };
        assert_eq!(line("run"), Ok(run.clone()));
        assert_eq!(line("--log --config=/x run"), Ok(CommandLine { config: "/x".into(), log: true, ..run }));
        let want = Want {
            network: "n".into(),
            pool: "p".into(),
            families: Vec::new(),
            free: 1,
            addresses: Vec::new(),
            attachment: None,
        };
        let claim = AgentCommand::Claim(AgentRequest::Want(want));
        assert_eq!(line("claim --network n --pool p --config /x").unwrap().command, claim);
        let request = r#"claim --request {"want":{"network":"n","pool":"p","free":1}}"#;
        assert_eq!(line(request).unwrap().command, claim);
        assert_eq!(line("give-back").unwrap().command, AgentCommand::GiveBack { waits: false });
        assert_eq!(line("give-back --wait").unwrap().command, AgentCommand::GiveBack { waits: true });
        let fence = line("fence --why burnt node-1 --by me").unwrap().command;
        let (node, by, why) = ("node-1".to_owned(), "me".to_owned(), "burnt".to_owned());
        let request = FenceRequest { node, incarnation: None, by, why, force: false };
        assert_eq!(fence, AgentCommand::Fence(request));
        let forced = line("fence n --force").unwrap().command;
        assert!(matches!(forced, AgentCommand::Fence(FenceRequest { force: true, .. })), "{forced:?}");
        let adopt = AdoptLine {
            directory: "/x".into(),
            pool: "p".into(),
            ranges: vec!["10.8.0.0/24".parse().unwrap()],
            reads_stdin: false,
            is_dry_run: true,
        };
        let adopted = line("adopt /x --range 10.8.0.0/24 --dry-run --pool p").unwrap().command;
        assert_eq!(adopted, AgentCommand::Adopt(adopt));
        let select =
            |pool: Option<&str>| AgentCommand::Select { namespace: "db".into(), pool: pool.map(str::to_owned) };
        assert_eq!(line("select db red").unwrap().command, select(Some("red")));
        assert_eq!(line("select --none db").unwrap().command, select(None));
        assert_eq!(line("watch-nodes").unwrap().command, AgentCommand::WatchNodes);
        assert_eq!(line("run -h").unwrap().command, AgentCommand::Print(HELP.into()));
        assert!(HELP.lines().all(|line| line.chars().count() <= 100));
    }

    #[test]
    fn each_command_and_option_of_the_help_is_in_the_manual() {
        let manual = include_str!("../package/cnikit-agent.8").replace("\\-", "-");
        // The further lines of a description are indented by more than an option is.
        let entries = HELP.lines().filter(|line| line.starts_with("  ") && !line.starts_with("         "));
        let words: Vec<&str> = entries.filter_map(|line| line.split_whitespace().next()).collect();
        assert!(words.len() > 20, "{words:?}");
        for word in words {
            let is_there = if word.starts_with("--") {
                manual.contains(word)
            } else {
                manual
                    .lines()
                    .any(|line| line.strip_prefix(".B ").and_then(|rest| rest.split(' ').next()) == Some(word))
            };
            assert!(is_there, "{word} is not in the manual");
        }
    }

    #[test]
    fn a_wrong_command_line_is_explained() {
        for (text, says) in [
            ("", "no command"),
            ("walk", "there is no command \"walk\""),
            ("run run", "there is no command \"run run\""),
            ("run --fast", "there is no option --fast"),
            ("claim --pool p", "claim needs --network"),
            ("claim --request {}", "--request: "),
            ("fence n --incarnation 1", "is not an incarnation"),
            ("run --config", "missing argument"),
            ("forget blue name", "forget needs a POOL and a NAMESPACE/NAME"),
            ("select db", "select needs a NAMESPACE and either a POOL or --none"),
            ("select db red --none", "select needs a NAMESPACE and either a POOL or --none"),
            ("adopt /x", "adopt needs --pool"),
            ("adopt /x --pool p --range 10.8", "--range 10.8"),
        ] {
            let error = line(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
