//! `cnitool`: attaches containers to networks by hand, and inspects a node.
//!
//! It replaces upstream's cnitool: `add`, `check`, `del`, `gc` and `status` have the same environment, container id, cached results
//! and stdout. The other commands are ours: they list attachments and addresses, find leaked addresses, show the steps of an
//! `add`, and validate configurations.

mod cli;
mod commands;
mod environment;
mod failure;
mod namespace;
mod options;
mod output;
mod plugin_pages;
mod stores;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use cli::{Command, CommandLine, Config, Ipam, New};
use cnikit_memory as _;
use commands::{check, config, doctor, gc, init, ipam, list, netns, new_plugin, restore, schema, shell, show, verbs};
use failure::{Failure, Result};
use options::Common;
use output::format::Output;
use output::print::{print, print_json, print_to_stderr};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let wants_json = arguments.iter().any(|argument| argument == "--json");
    let (common, done) = match cli::parse(&arguments) {
        Ok(line) => (line.common.clone(), run(&line)),
        Err(error) => (Common { json: wants_json, ..Common::default() }, usage(&error)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(environment::output(&common), &failure),
    }
}

fn fail(out: Output, failure: &Failure) -> ExitCode {
    if !failure.text.is_empty() {
        print_to_stderr(&format!("Error: {}", failure.text.replace('\n', "\n       ")));
        if out.json {
            // There is nowhere left to report another error.
            let _ = print_json(&failure.to_json());
        }
    }
    ExitCode::from(failure.status)
}

fn run(line: &CommandLine) -> Result {
    let common = &line.common;
    let out = environment::output(common);
    let Some(command) = &line.command else { return print(&cli::command().render_help().to_string()) };
    match command {
        Command::Add(args) => verbs::add(common, args),
        Command::Check(args) => check::check(common, out, args),
        Command::Del(args) => verbs::del(common, out, args),
        Command::Gc(args) => gc::gc(common, out, args),
        Command::Restore(args) => restore::restore(common, out, args),
        Command::Status(args) => verbs::status(common, out, args),
        Command::Version(args) => verbs::version(common, out, args.network.as_deref()),
        Command::Plan(args) => verbs::plan(common, out, args),
        Command::List(args) => list::list(common, out, args),
        Command::Show(args) => show::show(common, out, args),
        Command::Ipam(Ipam::Usage(args)) => ipam::usage(common, out, args),
        Command::Ipam(Ipam::Leaks(args)) => ipam::leaks(common, out, args),
        Command::Ipam(Ipam::Reclaim(args)) => ipam::reclaim(common, out, args),
        Command::Ipam(Ipam::Release(args)) => ipam::release(common, out, args),
        Command::Ipam(Ipam::Pools(args)) => ipam::pools(common, out, args),
        Command::Ipam(Ipam::Blocks(args)) => ipam::blocks(common, out, args),
        Command::Ipam(Ipam::Check(args)) => ipam::check(common, out, args),
        Command::Ipam(Ipam::Fence(args)) => ipam::fence(common, out, args),
        Command::Ipam(Ipam::Adopt(args)) => ipam::adopt(common, out, args),
        Command::Ipam(Ipam::Import(args)) => ipam::import(common, out, args),
        Command::Config(Config::Explain { dir, runtime }) => config::explain(common, out, dir.as_deref(), *runtime),
        Command::Validate(args) => config::validate(common, out, args.path.as_deref()),
        Command::Schema { plugin } => schema::schema(plugin.as_deref()),
        Command::Doctor(args) => doctor::doctor(common, out, args),
        Command::Netns(args) => netns::netns(common, out, args),
        Command::Init(args) => init::init(common, out, args),
        Command::New(New::Plugin(args)) => new_plugin::new_plugin(out, args),
        Command::Completions { shell } => shell::completions(*shell),
        Command::Man { dir } => shell::man(out, dir),
    }
}

/// Prints the help or the version if the command line requests it. Any other error is an invalid command line, with upstream's exit
/// status 1.
fn usage(error: &clap::Error) -> Result {
    let text = error.to_string();
    match error.kind() {
        // The last is a group of commands, without a command: upstream's tool prints the help, too.
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            print(&text)
        }
        ErrorKind::InvalidSubcommand => {
            let word = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => word.as_str(),
                _ => "",
            };
            // The most similar one is the last.
            let similar = match error.get(ContextKind::SuggestedSubcommand) {
                Some(ContextValue::Strings(names)) => names.last(),
                _ => None,
            };
            let hint = match similar {
                Some(name) => format!("did you mean `{name}`? `cnitool --help` lists all commands"),
                None => "run `cnitool --help`".to_owned(),
            };
            Err(format!("unknown command \"{word}\" for \"cnitool\"; hint: {hint}").into())
        }
        _ => Err(text.trim_start_matches("error: ").trim_end().into()),
    }
}
