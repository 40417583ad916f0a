//! A node whose plugins are functions in this process. Their calls are recorded, and a test sets what they reply.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cnikit_libcni::{Attachment, Cache, CachedAttachment, Environment, InProcess, NetworkList, Runtime};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The plugins of every node.
const PLUGINS: [&str; 3] = ["first", "second", "third"];

/// How long a test waits for an event that has to come.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A node: its plugins, the runtime that calls them, and the directory of its cache.
pub(crate) struct Node {
    pub(crate) dir: TempDir,
    pub(crate) runtime: Runtime,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<Vec<Call>>,
    /// Exit status and stdout, by verb and plugin: `ADD first`.
    replies: Mutex<BTreeMap<String, (u8, String)>>,
}

/// One call of a plugin.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Verb and plugin: `ADD first`.
    pub(crate) name: String,
    pub(crate) environment: Environment,
    pub(crate) stdin: Value,
}

impl Node {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let shared = Arc::new(Shared::default());
        let mut plugins = InProcess::default();
        for plugin in PLUGINS {
            let shared = Arc::clone(&shared);
            plugins = plugins.with_served(plugin, move |call, stdout| {
                let stdin: Value = serde_json::from_slice(call.stdin).unwrap();
                let name = format!("{} {plugin}", call.environment.command);
                let reply = shared.replies.lock().unwrap().get(&name).cloned();
                let (status, text) = reply.unwrap_or_else(|| (0, usual_reply(&call.environment.command, &stdin)));
                shared.calls.lock().unwrap().push(Call { name, environment: call.environment.clone(), stdin });
                stdout.extend(text.into_bytes());
                status
            });
        }
        let cache = Cache::below(dir.path());
        let runtime = Runtime { executor: Arc::new(plugins), waiting: LONG, ..Runtime::new("/nonexistent", cache) };
        Self { dir, runtime, shared }
    }

    /// Sets what a plugin prints when it succeeds.
    pub(crate) fn prints(&self, name: &str, text: &(impl ToString + ?Sized)) {
        self.exits(name, 0, text);
    }

    /// Lets a plugin print this and end with this status.
    pub(crate) fn exits(&self, name: &str, status: u8, text: &(impl ToString + ?Sized)) {
        self.shared.replies.lock().unwrap().insert(name.to_owned(), (status, text.to_string()));
    }

    /// Lets a plugin fail with this error.
    pub(crate) fn fails(&self, name: &str, code: u32, msg: &str) {
        self.exits(name, 1, &json!({"cniVersion": "1.1.0", "code": code, "msg": msg}));
    }

    /// Lets a plugin reply as usual again.
    pub(crate) fn recovers(&self, name: &str) {
        self.shared.replies.lock().unwrap().remove(name);
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.shared.calls.lock().unwrap())
    }

    /// Verb and plugin of each call since the last time.
    pub(crate) fn called(&self) -> Vec<String> {
        names(&self.calls()).into_iter().map(str::to_owned).collect()
    }

    /// The only attachment in the cache.
    pub(crate) fn cached(&self) -> CachedAttachment {
        let mut all = self.runtime.cache.attachments().unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Writes a result to the cache, as another tool may have.
    pub(crate) fn put_result(&self, name: &str, text: &str) {
        fs::create_dir_all(self.dir.path().join("results")).unwrap();
        fs::write(self.result_file(name), text).unwrap();
    }

    /// The path of a cached result.
    pub(crate) fn result_file(&self, name: &str) -> PathBuf {
        self.dir.path().join("results").join(name)
    }
}

/// Verb and plugin of each call.
pub(crate) fn names(calls: &[Call]) -> Vec<&str> {
    calls.iter().map(|call| call.name.as_str()).collect()
}

/// A chained plugin returns prevResult, and the first one an address.
fn usual_reply(verb: &str, stdin: &Value) -> String {
    match verb {
        "ADD" => match stdin.get("prevResult") {
            Some(previous) => previous.to_string(),
            None => json!({"cniVersion": stdin["cniVersion"], "ips": [{"address": "10.9.0.2/24"}]}).to_string(),
        },
        "VERSION" => json!({"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "1.0.0", "1.1.0"]}).to_string(),
        _ => String::new(),
    }
}

/// A network of the newest version with these plugins.
pub(crate) fn list(name: &str, plugins: &[&str]) -> NetworkList {
    with_keys(name, "1.1.0", plugins, &json!({}))
}

/// A network of another version.
pub(crate) fn of_version(version: &str, plugins: &[&str]) -> NetworkList {
    with_keys("net", version, plugins, &json!({}))
}

/// A network with more keys in its list. Each plugin declares the capability `mac`.
pub(crate) fn with_keys(name: &str, version: &str, plugins: &[&str], keys: &Value) -> NetworkList {
    let mut plugins: Vec<Value> = plugins.iter().map(|plugin| json!({"type": plugin})).collect();
    for plugin in &mut plugins {
        plugin["capabilities"] = json!({"mac": true});
    }
    let mut document = json!({"cniVersion": version, "name": name, "plugins": plugins});
    for (key, value) in keys.as_object().unwrap() {
        document[key] = value.clone();
    }
    NetworkList::parse(document.to_string().as_bytes()).unwrap()
}

/// A cached result of network `net` as upstream writes it: without our member, so without a checksum.
pub(crate) fn upstreams_result(container_id: &str) -> Value {
    json!({"kind": "cniCacheV1", "containerId": container_id, "networkName": "net", "ifName": "eth0"})
}

/// The attachment of a container without a namespace: the path of one would have to exist.
pub(crate) fn container(id: &str) -> Attachment {
    Attachment::new(id, "")
}
