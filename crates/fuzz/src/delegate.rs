//! Fuzz target: the output of a delegated plugin.

use std::cell::RefCell;
use std::io::Write;
use std::sync::OnceLock;

use cnikit::types::{CniResult, Version, document};
use cnikit::{Add, Del, Input, Journal, Plugin, Plugins, Result};
use serde::Deserialize;

use crate::plugin_call::{call, input, plugin_entry};

thread_local! {
    /// The output of the delegate.
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A plugin that delegates ADD and returns the result of the delegate.
#[derive(Deserialize)]
struct Asker {}

impl Plugin for Asker {
    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        add.call.delegate(own_entry().1[0].name)?.add(journal)
    }

    fn del(_: &Del) -> Result<()> {
        Ok(())
    }
}

fn own_entry() -> &'static (String, Plugins) {
    static ENTRY: OnceLock<(String, Plugins)> = OnceLock::new();
    ENTRY.get_or_init(|| plugin_entry(reply_as_configured))
}

#[expect(clippy::needless_pass_by_value, reason = "the type of an entry's function")]
fn reply_as_configured(_: &str, input: Input, _: Plugins, out: &mut dyn Write) -> u8 {
    if input.command == "ADD" {
        REPLY.with_borrow(|output| out.write_all(output)).expect("it is written to memory");
    }
    0
}

/// The first byte selects the CNI version of the call; the rest is the delegate's output.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, output)) = data.split_first() else { return };
    let version = Version::ALL[usize::from(*choice) % Version::ALL.len()];
    REPLY.set(output.to_vec());
    let conf = format!(r#"{{"cniVersion":"{version}","name":"n","type":"asker"}}"#);
    let mut asked = input(format!("ADD\0c\0own\0eth0\0\0\0{conf}").as_bytes());
    asked.path.clone_from(&own_entry().0);
    let reply = call::<Asker>(asked, own_entry().1);
    let document = reply.document.expect("an ADD says something");
    let read = document::parse(output).ok().and_then(|value| CniResult::read(&value, version).ok());
    match read.filter(|(_, answer)| !answer.ips.is_empty()) {
        Some((_, answer)) => assert_eq!(document, answer.write(version)),
        None => assert!(!reply.success && document["code"] == 103, "{document}"),
    }
}
