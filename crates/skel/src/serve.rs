//! The path of a call: parse, run, print, commit.

use std::io::Write;
use std::process::ExitCode;

use crate::about::{self, Help};
use crate::entry::{Plugins, Serve, arguments};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::journal::Journal;
use crate::log;
use crate::panic::caught;
use crate::plugin::{Plugin, UnknownKeys};
use crate::reply;
use crate::request::{Call, Request};
use crate::restore_batch::{self, parse_request};
use crate::traits::Traits;
use cnikit_types::{NetConf, Version, field_names};

/// The `main` of a plugin that is a binary of its own.
pub fn main<P: Plugin>() -> ExitCode {
    if let Some(code) = P::ROLE.and_then(|role| role.run_if_named(&arguments())) {
        return code;
    }
    serve_process(&about::own_name(), serve::<P>, help_of::<P>(), &[])
}

/// What the help of a plugin says of it.
pub(crate) const fn help_of<P: Plugin>() -> Help {
    Help { example: P::EXAMPLE, release: P::RELEASE }
}

/// Serves the call that this process was started for, or prints the help for a person who ran it.
pub(crate) fn serve_process(name: &str, serve: Serve, help: Help, plugins: Plugins) -> ExitCode {
    let input = Input::of_process();
    if input.command.is_empty() {
        return about::by_hand(name, help);
    }
    serve(name, input, plugins, &mut std::io::stdout().lock()).into()
}

/// Serves one call: writes at most one JSON document, and returns the exit status. A call that failed has been rolled back by then.
pub fn serve<P: Plugin>(name: &str, mut input: Input, plugins: Plugins, out: &mut dyn Write) -> u8 {
    let mut journal = Journal::default();
    let document = match run::<P>(name, &mut input, plugins, &mut journal) {
        Ok(document) => document,
        Err(error) => {
            reply::refuse(out, name, &input, &error_version(&input), &journal.roll_back_for(error));
            return 1;
        }
    };
    match reply::send(out, &document) {
        Ok(()) => {
            journal.commit();
            0
        }
        Err(broken) => {
            // A part of the document may have been written, so no error object must follow it.
            reply::print_to_stderr(name, &journal.roll_back_for(broken));
            1
        }
    }
}

/// Parses the request and runs the verb. Returns the document for stdout, which is empty for most verbs.
fn run<P: Plugin>(name: &str, input: &mut Input, plugins: Plugins, journal: &mut Journal) -> Result<Vec<u8>> {
    let traits = Traits { sources: P::SOURCES, known_args: P::KNOWN_ARGS, enters_netns: P::ENTERS_NETNS };
    let logged = input.clone();
    let work = || {
        let request = parse_request(traits, name, input, plugins)?;
        run_verb::<P>(name, request, journal)
    };
    // A panic is caught within the logged call: its line reports the panic, and the roll-back is not logged as part of it.
    log::call(name, &logged, || caught(work))
}

fn run_verb<P: Plugin>(name: &str, request: Request, journal: &mut Journal) -> Result<Vec<u8>> {
    match request {
        Request::Add(add) => {
            let plugin = configured::<P>(&add.call)?;
            return Ok(reply::result(&plugin.add(&add, journal)?, add.call.version));
        }
        Request::RestoreAll(all) => return Ok(reply::restored(name, &restore_batch::restore::<P>(all))),
        Request::Plan(dry_run) => return Ok(reply::plan(&configured::<P>(&dry_run.call)?.plan(&dry_run)?)),
        Request::Version => return Ok(reply::versions()),
        Request::Check(check) => configured::<P>(&check.call)?.check(&check)?,
        Request::Del(del) => P::del(&del)?,
        Request::Gc(gc) => P::gc(&gc)?,
        Request::Status(status) => configured::<P>(&status.call)?.status(&status)?,
        Request::Restore(check) => check.call.configured::<P>()?.restore(&check, journal)?,
    }
    Ok(Vec::new())
}

/// The plugin with the configuration of a call, by the plugin's rule about keys that it does not know.
fn configured<P: Plugin>(call: &Call) -> Result<P> {
    if P::UNKNOWN_KEYS != UnknownKeys::Ignored {
        let unknown = call.conf.unknown_keys::<P>();
        if let Some(first) = unknown.first() {
            let text = format!("{}: the plugin has no such key", unknown.join(", "));
            match P::UNKNOWN_KEYS {
                UnknownKeys::Refused => {
                    let known = field_names::<P>().unwrap_or_default().join(", ");
                    let hint = format!("remove {first}, or correct its name; the plugin knows {known}");
                    return Err(Error::config(text).hint(hint));
                }
                _ => log::warn(text),
            }
        }
    }
    call.configured()
}

/// The version of an error object: the configuration's if it is known, otherwise the newest.
fn error_version(input: &Input) -> String {
    let conf = NetConf::parse(input.stdin.so_far()).unwrap_or_default();
    let version = conf.text("cniVersion").and_then(Version::exact);
    version.unwrap_or(Version::NEWEST).to_string()
}
