//! Calls a plugin in this process, and checks what holds for the output of every call.

use std::io::Write;

use cnikit::about::Help;
use cnikit::types::{CniError, Version, document};
use cnikit::{Entry, Input, Plugin, Plugins, code, serve};
use serde_json::Value;

/// The output of a call.
pub(crate) struct PluginReply {
    /// Whether the exit status was 0.
    pub(crate) success: bool,
    /// The JSON document on stdout; `None` if stdout was empty.
    pub(crate) document: Option<Value>,
}

/// Parses a call from bytes: command, container ID, namespace, interface, arguments, path and stdin, with a NUL between them.
///
/// The namespace `own` is that of the calling thread. Any other name becomes a path that does not exist, so that the fuzzer opens
/// nothing of this machine.
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
    let mut input = Input::new(command, bytes());
    input.container_id = container_id;
    input.netns = netns;
    input.ifname = ifname;
    input.args = args;
    input.path = path;
    input.netns_override = true;
    input
}

/// Makes the input of a dry run (PLAN) with these `CNI_ARGS` and this configuration.
pub(crate) fn plan(args: &str, stdin: &[u8]) -> Input {
    let mut input = Input::new("PLAN", stdin);
    input.container_id = "c".into();
    input.ifname = "eth0".into();
    args.clone_into(&mut input.args);
    input
}

/// Calls a plugin and checks its output: at most one document, and a complete error if the call failed.
pub(crate) fn call<P: Plugin>(input: Input, plugins: Plugins) -> PluginReply {
    let mut stdout = Vec::new();
    let status = serve::<P>("fuzzed", input, plugins, &mut stdout);
    let document = (!stdout.is_empty()).then(|| document::parse(&stdout).expect("stdout is one document"));
    let success = status == 0;
    if !success {
        check_error(document.as_ref().expect("an error has a document"));
    }
    PluginReply { success, document }
}

/// Checks an error: it has a code other than that of a defect, a message, the call that failed, a hint, and a CNI version that
/// exists.
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

/// Makes this program a plugin that other plugins can find on `CNI_PATH`: its directory, and a registry whose entry runs `serve`.
pub(crate) fn plugin_entry(serve: fn(&str, Input, Plugins, &mut dyn Write) -> u8) -> (String, Plugins) {
    let file = std::env::current_exe().expect("this program has a file");
    let name = file.file_name().expect("it has a name").to_string_lossy().into_owned();
    let directory = file.parent().expect("it is in a directory").display().to_string();
    let name: &'static str = Box::leak(name.into_boxed_str());
    (directory, Box::leak(Box::new([Entry { name, serve, help: Help { example: "", release: "" }, role: None }])))
}
