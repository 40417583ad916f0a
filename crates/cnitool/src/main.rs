//! `cnitool`: runs a network list against a network namespace that exists, by hand.
//!
//! Drop-in for the reference's `add`, `check` and `del`: the same environment, container id, kept results and output. Errors
//! are said once. `plan` is ours: what an `add` would do.

mod command_line;
mod container;
mod environment;
mod network;

use std::io::{self, Write};
use std::process::ExitCode;

use command_line::{Asked, Verb};
use network::Network;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

fn main() -> ExitCode {
    let done = command_line::read(std::env::args_os().skip(1)).and_then(|asked| answer(&asked));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            say(&format!("Error: {}", text.replace('\n', "\n       ")));
            ExitCode::FAILURE
        }
    }
}

fn answer(asked: &Asked) -> Result<(), String> {
    match asked {
        Asked::Help => print(command_line::HELP.as_bytes()),
        Asked::Version => print(format!("cnitool cnikit-{}\n", env!("CARGO_PKG_VERSION")).as_bytes()),
        Asked::Run { verb, network, netns, ifname } => {
            let network = Network::of_process(network, netns, ifname.as_deref())?;
            network.warnings().iter().for_each(|warning| say(&format!("Warning: {warning}")));
            run(*verb, &network)
        }
    }
}

fn run(verb: Verb, network: &Network) -> Result<(), String> {
    match verb {
        Verb::Add => print(&indented(&network.add()?)?),
        Verb::Check => network.check(),
        Verb::Del => network.del(),
        Verb::Plan => {
            let (words, failures) = network.plan();
            print(words.as_bytes())?;
            if failures.is_empty() { Ok(()) } else { Err(failures) }
        }
    }
}

/// As the reference prints a result: four spaces, no newline at the end.
fn indented(result: &Value) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    result.serialize(&mut serializer).map_err(|error| error.to_string())?;
    Ok(text)
}

fn print(text: &[u8]) -> Result<(), String> {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(|error| format!("stdout: {error}"))
}

/// Nobody is left to tell if stderr is gone.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
