//! One call of a plugin in this process, and what every answer promises.

use std::io::Write;

use cnikit::input::Stdin;
use cnikit::types::{CniError, Version, document};
use cnikit::{Entry, Input, Plugin, Plugins, code, serve};
use serde_json::Value;

/// What came back.
pub(crate) struct PluginReply {
    /// Whether it succeeded.
    pub(crate) success: bool,
    /// The one document on stdout, if there was one.
    pub(crate) document: Option<Value>,
}

/// The call that a text is: command, container, namespace, interface, arguments, path, stdin, a NUL between them.
///
/// The namespace is the thread's own if it is called `own`; any other name leads to nothing, so that nothing of this
/// machine is opened.
pub(crate) fn input(data: &[u8]) -> Input {
    let mut fields = data.splitn(7, |byte| *byte == 0);
    let mut bytes = || fields.next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let [command, container_id, netns, ifname, args, path] = std::array::from_fn(|_| text(bytes()));
    let netns = match netns.as_str() {
        "" => netns,
        "own" => "/proc/thread-self/ns/net".to_owned(),
        _ => format!("/nonexistent/{netns}"),
    };
    let stdin = Stdin::Given(bytes().to_vec());
    Input { command, container_id, netns, ifname, args, path, netns_override: true, stdin, ..Input::default() }
}

/// A dry run with this configuration and these arguments.
pub(crate) fn plan(args: &str, stdin: &[u8]) -> Input {
    Input {
        command: "PLAN".into(),
        container_id: "c".into(),
        ifname: "eth0".into(),
        args: args.to_owned(),
        stdin: Stdin::Given(stdin.to_vec()),
        ..Input::default()
    }
}

/// Calls a plugin, and makes sure of all that is promised of any answer.
pub(crate) fn call<P: Plugin>(input: Input, plugins: Plugins) -> PluginReply {
    let mut said = Vec::new();
    let status = serve::<P>("fuzzed", input, plugins, &mut said);
    let document = (!said.is_empty()).then(|| document::parse(&said).expect("what leaves on stdout is one document"));
    let success = status == 0;
    if !success {
        check_error(document.as_ref().expect("a refusal says why"));
    }
    PluginReply { success, document }
}

/// A refusal has a code that is no defect, a text, the call that it is about, a hint, and a version that exists.
fn check_error(document: &Value) {
    let error: CniError = serde_json::from_value(document.clone()).expect("a refusal is an error object");
    let details = error.details.as_deref().unwrap_or_default();
    assert!(error.code != 0 && error.code != code::DEFECT, "{document}");
    assert!(!error.msg.trim().is_empty(), "{document}");
    assert!(details.starts_with("fuzzed "), "{document}");
    assert!(details.contains("hint: "), "{document}");
    assert!(error.cni_version.as_deref().is_some_and(|text| !text.is_empty()), "{document}");
    assert!(error.cni_version.as_deref().and_then(Version::exact).is_some(), "{document}");
}

/// This very program as a plugin that others find on `CNI_PATH`: its directory, and the entry that answers for it.
pub(crate) fn plugin_entry(serve: fn(&str, Input, Plugins, &mut dyn Write) -> u8) -> (String, Plugins) {
    let file = std::env::current_exe().expect("this program has a file");
    let name = file.file_name().expect("it has a name").to_string_lossy().into_owned();
    let directory = file.parent().expect("it is in a directory").display().to_string();
    let name: &'static str = Box::leak(name.into_boxed_str());
    (directory, Box::leak(Box::new([Entry { name, serve }])))
}
