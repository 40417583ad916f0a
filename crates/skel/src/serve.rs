//! The straight line of a call: judge, answer, print, keep.

use std::io::Write;
use std::process::ExitCode;

use crate::about;
use crate::error::Result;
use crate::input::Input;
use crate::journal::Journal;
use crate::log;
use crate::panic::caught;
use crate::plugin::{Plugin, Traits};
use crate::registry::{Plugins, Serve};
use crate::reply;
use crate::request::{Request, parse_request};
use crate::restore_batch;
use cnikit_types::{NetConf, Version};

/// The `main` of a plugin that is a binary of its own.
pub fn main<P: Plugin>() -> ExitCode {
    answer_process(&about::own_name(), serve::<P>, &[])
}

/// Answers the call that this process was started for, or the person who started it.
pub(crate) fn answer_process(name: &str, serve: Serve, plugins: Plugins) -> ExitCode {
    let input = Input::of_process();
    if input.command.is_empty() {
        return about::by_hand(name);
    }
    serve(name, input, plugins, &mut std::io::stdout().lock()).into()
}

/// Answers one call: exactly one JSON document at most, and the exit status. Whatever failed has been undone by then.
pub fn serve<P: Plugin>(name: &str, mut input: Input, plugins: Plugins, out: &mut dyn Write) -> u8 {
    let mut journal = Journal::default();
    let answered = answer::<P>(name, &mut input, plugins, &mut journal);
    let sent = answered.map(|document| reply::send(out, &document));
    match sent {
        Ok(Ok(())) => {
            journal.commit();
            return 0;
        }
        // Half a document may be out: a second one must not follow it.
        Ok(Err(broken)) => reply::print_to_stderr(name, &journal.undone(broken)),
        Err(error) => reply::refuse(out, name, &input, &error_version(&input), &journal.undone(error)),
    }
    1
}

fn answer<P: Plugin>(name: &str, input: &mut Input, plugins: Plugins, journal: &mut Journal) -> Result<Vec<u8>> {
    let observed = input.clone();
    let judged_and_answered = || {
        Ok(match parse_request(Traits::of::<P>(), name, input, plugins)? {
            Request::Add(add) => reply::result(&add.call.configured::<P>()?.add(&add, journal)?, add.call.version),
            Request::Check(check) => check.call.configured::<P>()?.check(&check).map(|()| Vec::new())?,
            Request::Del(del) => P::del(&del).map(|()| Vec::new())?,
            Request::Gc(gc) => P::gc(&gc).map(|()| Vec::new())?,
            Request::Status(status) => status.call.configured::<P>()?.status(&status).map(|()| Vec::new())?,
            Request::Restore(check) => check.call.configured::<P>()?.restore(&check, journal).map(|()| Vec::new())?,
            Request::RestoreAll(all) => reply::restored(name, &restore_batch::restore::<P>(all)),
            Request::Plan(preview) => reply::plan(&preview.call.configured::<P>()?.plan(&preview)?),
            Request::Version => reply::versions(),
        })
    };
    // Caught within the log's call: the line tells of the panic, and what is undone is not logged as part of it.
    log::call(name, &observed, || caught(judged_and_answered))
}

/// The version an error object is written in: the configuration's if it is known, else the newest.
fn error_version(input: &Input) -> String {
    let conf = NetConf::parse(input.stdin.so_far()).unwrap_or_default();
    let version = conf.text("cniVersion").and_then(Version::exact);
    version.unwrap_or(Version::NEWEST).to_string()
}
