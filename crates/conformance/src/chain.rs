//! A plugin that calls the plugins of a list, as a runtime does, so that a chain is tested as one plugin.
//!
//! Its configuration has the plugins in the key `plugins`. ADD and CHECK call them in order, DEL in reverse order; all plugins are
//! called for DEL, GC and STATUS, and the first error is reported at the end. If ADD of a plugin fails, those before it get a DEL;
//! that plugin gets one only if it was not it that reported the error.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use cnikit_process::{Deadline, Env, How, Program};
use serde_json::{Map, Value, json};

/// The name under which this program is that plugin.
pub(crate) const NAME: &str = "cni-conformance-chain";

/// The longest time that a plugin may run.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Keys of the list that each plugin gets, because a runtime adds them.
const FROM_THE_RUNTIME: [&str; 5] =
    ["runtimeConfig", "args", "cni.dev/valid-attachments", "cni.dev/attachments", "prevResult"];

/// Serves one call.
pub(crate) fn main() -> ExitCode {
    let mut stdin = Vec::new();
    let verb = variable("CNI_COMMAND");
    let served = std::io::stdin()
        .read_to_end(&mut stdin)
        .map_err(|error| refusal(5, &format!("read stdin: {error}")))
        .and_then(|_| serve(&verb, &stdin));
    let (status, stdout) = match served {
        Ok(stdout) => (0, stdout),
        Err(failure) => (failure.status, failure.stdout),
    };
    let mut out = std::io::stdout();
    if let Err(error) = out.write_all(&stdout).and_then(|()| out.flush()) {
        if verb == "ADD" && status == 0 {
            let _ = serve("DEL", &stdin); // the caller does not learn of what was added
        }
        let _ = writeln!(std::io::stderr(), "write the result to stdout: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::from(status)
}

/// A call that failed.
struct Failure {
    status: u8,
    stdout: Vec<u8>,
    /// Whether the plugin reported it, and not this program: then it has undone what it did.
    is_of_plugin: bool,
}

fn refusal(code: u32, msg: &str) -> Failure {
    let stdout = json!({"cniVersion": "1.1.0", "code": code, "msg": msg}).to_string().into_bytes();
    Failure { status: 1, stdout, is_of_plugin: false }
}

#[expect(clippy::disallowed_methods, reason = "it is called as a plugin is")]
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn serve(verb: &str, stdin: &[u8]) -> Result<Vec<u8>, Failure> {
    let list: Value =
        serde_json::from_slice(stdin).map_err(|error| refusal(6, &format!("decode the list: {error}")))?;
    let Some(list) = list.as_object() else { return Err(refusal(6, "decode the list: it is not an object")) };
    if verb == "VERSION" {
        return versions();
    }
    let plugins = list.get("plugins").and_then(Value::as_array).cloned().unwrap_or_default();
    match verb {
        "ADD" => add(list, &plugins),
        "DEL" => all(verb, list, plugins.iter().rev()),
        "CHECK" => plugins.iter().try_fold(Vec::new(), |_, plugin| call(verb, list, plugin, None)),
        _ => all(verb, list, plugins.iter()),
    }
}

/// Each plugin gets the result of the one before it.
fn add(list: &Map<String, Value>, plugins: &[Value]) -> Result<Vec<u8>, Failure> {
    let mut result = Vec::new();
    for (n, plugin) in plugins.iter().enumerate() {
        let before = if result.is_empty() { None } else { Some(&result[..]) };
        match call("ADD", list, plugin, before) {
            Ok(answer) => result = answer,
            Err(failure) => {
                let added = if failure.is_of_plugin { &plugins[..n] } else { &plugins[..=n] };
                let _ = all("DEL", list, added.iter().rev()); // the failure of ADD is reported
                return Err(failure);
            }
        }
    }
    Ok(result)
}

/// Calls all plugins. Returns the first failure.
fn all<'a>(
    verb: &str,
    list: &Map<String, Value>,
    plugins: impl Iterator<Item = &'a Value>,
) -> Result<Vec<u8>, Failure> {
    let mut failure = None;
    for plugin in plugins {
        if let Err(failed) = call(verb, list, plugin, None) {
            failure.get_or_insert(failed);
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Vec::new()),
    }
}

/// Calls one plugin with its keys and those of the list that a runtime adds. Returns its stdout.
fn call(verb: &str, list: &Map<String, Value>, plugin: &Value, before: Option<&[u8]>) -> Result<Vec<u8>, Failure> {
    let mut conf = plugin.as_object().cloned().unwrap_or_default();
    let kept = ["cniVersion", "name"].into_iter().chain(FROM_THE_RUNTIME);
    for key in kept.filter(|key| list.contains_key(*key)) {
        conf.insert(key.to_owned(), list[key].clone());
    }
    if let Some(before) = before {
        let result = serde_json::from_slice(before)
            .map_err(|error| refusal(6, &format!("decode the result of the plugin before: {error}")))?;
        conf.insert("prevResult".to_owned(), result);
    }
    let kind = conf.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    exec(verb, &kind, Value::Object(conf).to_string().into_bytes())
}

/// Runs a plugin of `CNI_PATH` for a verb, with this process's other variables.
fn exec(verb: &str, kind: &str, stdin: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let path = cnikit_invoke::find(kind, &variable("CNI_PATH")).map_err(|error| refusal(103, &error.to_string()))?;
    let program =
        Program::new(path, Env::inherited(vec![("CNI_COMMAND".into(), verb.into())])).stdin(stdin).limit(64 << 20);
    let ended = cnikit_process::run(&program, Deadline::after(TIMEOUT))
        .map_err(|error| refusal(103, &format!("run {kind}: {error}")))?;
    let _ = std::io::stderr().write_all(&ended.stderr);
    match ended.how {
        How::Exit(0) => Ok(ended.stdout),
        How::Exit(status) => {
            let status = u8::try_from(status).unwrap_or(1);
            Err(Failure { status, stdout: ended.stdout, is_of_plugin: true })
        }
        How::Signal(signal) => Err(refusal(103, &format!("{kind} died by signal {signal}"))),
    }
}

/// The versions that all plugins support.
fn versions() -> Result<Vec<u8>, Failure> {
    let mut common: Option<BTreeSet<String>> = None;
    for kind in variable(PLUGINS).split(',') {
        let answer = exec("VERSION", kind, br#"{"cniVersion": "1.0.0"}"#.to_vec())?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let listed = answer["supportedVersions"].as_array().into_iter().flatten();
        let own: BTreeSet<String> = listed.filter_map(|one| one.as_str().map(str::to_owned)).collect();
        common = Some(common.map_or(own.clone(), |common| common.intersection(&own).cloned().collect()));
    }
    let common = common.unwrap_or_default();
    Ok(json!({"cniVersion": common.last(), "supportedVersions": common}).to_string().into_bytes())
}

/// The variable with the types of the plugins, which a call of VERSION has no list of.
pub(crate) const PLUGINS: &str = "CNI_CONFORMANCE_PLUGINS";
