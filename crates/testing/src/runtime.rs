//! A runtime with one network, for a test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cnikit_libcni::{Attachment, Cache, Error, NetworkList, Runtime, ValidAttachment};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Container, Host};

/// A container runtime with one network: it calls the plugins as container runtimes do, and caches results in a directory of its
/// own. Every method panics with the plugin's error, except those that return it.
///
/// ```no_run
/// # use serde_json::json;
/// # let host = cnikit_testing::Host::new();
/// # let container = host.container();
/// let result = host.runtime("/opt/cni/bin", json!({"type": "loopback"})).add(&container);
/// ```
#[derive(Debug)]
pub struct HostRuntime<'a> {
    host: &'a Host,
    runtime: Runtime,
    /// The cache of results, which is removed with the value.
    _cache: TempDir,
    list: NetworkList,
}

impl Host {
    /// A runtime on this host with plugins of a directory, and a network: a network list (the content of a `.conflist`), or the
    /// configuration of one plugin. `name` and `cniVersion` are added if they are absent, `$DIR` is replaced by the host's
    /// directory, and host-local stores its reservations there.
    pub fn runtime(&self, plugins: impl AsRef<Path>, network: Value) -> HostRuntime<'_> {
        let list = network_list(network, self.dir()).to_string().replace("$DIR", &self.dir().display().to_string());
        let list = NetworkList::parse(list.as_bytes()).unwrap_or_else(|error| panic!("{error}: {list}"));
        let path = std::path::absolute(plugins).unwrap().display().to_string();
        let cache = tempfile::tempdir().unwrap();
        HostRuntime { host: self, runtime: Runtime::new(path, Cache::below(cache.path())), _cache: cache, list }
    }
}

impl HostRuntime<'_> {
    /// Runs ADD for `eth0` of a container and returns the result.
    pub fn add(&self, container: &Container) -> Value {
        self.try_add(container).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs ADD, and DEL if it fails, as runtimes do. An error has the text of the plugin.
    ///
    /// # Errors
    /// The ADD fails.
    pub fn try_add(&self, container: &Container) -> Result<Value, String> {
        self.call(|| self.runtime.add_with_rollback(&self.list, &self.attachment(container)))
    }

    /// Runs CHECK.
    pub fn check(&self, container: &Container) {
        self.try_check(container).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs CHECK. An error has the text of the plugin, which names each difference.
    ///
    /// # Errors
    /// The CHECK fails: it found a difference.
    pub fn try_check(&self, container: &Container) -> Result<(), String> {
        self.call(|| self.runtime.check(&self.list, &self.attachment(container)))
    }

    /// Runs DEL.
    pub fn del(&self, container: &Container) {
        self.call(|| self.runtime.del(&self.list, &self.attachment(container)))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs GC: the attachments of these containers are valid, all others are removed.
    pub fn gc(&self, valid: &[&Container]) {
        let valid: Vec<ValidAttachment> = valid.iter().map(|container| self.valid_attachment(container)).collect();
        self.call(|| self.runtime.gc(&self.list, &valid)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The container as the runtime of `cnikit-libcni` takes it, for what has no method here.
    pub fn attachment(&self, container: &Container) -> Attachment {
        Attachment::new(container.id(), container.path())
    }

    /// The runtime and the network list of `cnikit-libcni`, for what has no method here. Call it in [`Host::enter`]: plugins work
    /// in the namespace of their caller.
    pub fn libcni(&self) -> (&Runtime, &NetworkList) {
        (&self.runtime, &self.list)
    }

    fn valid_attachment(&self, container: &Container) -> ValidAttachment {
        let Attachment { container_id, ifname, .. } = self.attachment(container);
        ValidAttachment { container_id, ifname }
    }

    /// Calls the runtime in the host's namespace.
    fn call<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, String> {
        self.host.enter(work).map_err(|error| error.to_string())
    }
}

/// The document of a network list, with the keys that every list has.
fn network_list(network: Value, dir: &Path) -> Value {
    let mut list = if network.get("plugins").is_some() { network } else { list_of_one(network) };
    for (key, value) in [("cniVersion", "1.1.0"), ("name", "testnet")] {
        if list.get(key).is_none() {
            list[key] = value.into();
        }
    }
    for plugin in list["plugins"].as_array_mut().into_iter().flatten() {
        if plugin["ipam"]["type"] == "host-local" && plugin["ipam"].get("dataDir").is_none() {
            plugin["ipam"]["dataDir"] = json!(dir.join("leases"));
        }
    }
    list
}

/// The list with this plugin, and with its keys that belong to a list.
fn list_of_one(plugin: Value) -> Value {
    let mut list = json!({});
    for key in ["name", "cniVersion"] {
        if let Some(value) = plugin.get(key) {
            list[key] = value.clone();
        }
    }
    list["plugins"] = Value::Array(vec![plugin]);
    list
}

/// A directory of plugins, with links to binaries of several places: the plugin under test and the plugins that it delegates to. It
/// is removed with the value.
///
/// ```no_run
/// # use cnikit_testing::PluginDir;
/// let plugins = PluginDir::of(&["target/debug/my-plugin", "/opt/cni/bin/host-local"]);
/// ```
#[derive(Debug)]
pub struct PluginDir(TempDir);

impl PluginDir {
    /// Links these binaries, each under the name of its file. Panics if one does not exist.
    pub fn of(binaries: &[impl AsRef<Path>]) -> PluginDir {
        let dir = tempfile::tempdir().unwrap();
        link_plugins(dir.path(), binaries);
        PluginDir(dir)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for PluginDir {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// As [`PluginDir::of`], in a directory that stays, such as one below `CARGO_TARGET_TMPDIR`: it is created if it does not exist,
/// and returned. Any number of tests may do that at the same time.
///
/// ```no_run
/// # use cnikit_testing::link_plugins;
/// let plugins = link_plugins("target/tmp/plugins", &["target/debug/my-plugin", "/opt/cni/bin/host-local"]);
/// ```
pub fn link_plugins(dir: impl AsRef<Path>, binaries: &[impl AsRef<Path>]) -> PathBuf {
    let dir = std::path::absolute(dir).unwrap();
    fs::create_dir_all(&dir).unwrap();
    // A link appears complete, by rename, because another test may be calling the one that it replaces.
    let new = tempfile::tempdir_in(&dir).unwrap();
    for binary in binaries {
        let binary = binary.as_ref();
        if let Err(error) = fs::metadata(binary) {
            panic!("{}: {error}\nhint: build it first, and look at the name", binary.display());
        }
        let name = binary.file_name().unwrap();
        // A link keeps its own name: a binary of several plugins is called by it.
        symlink(std::path::absolute(binary).unwrap(), new.path().join(name)).unwrap();
        fs::rename(new.path().join(name), dir.join(name)).unwrap();
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_plugin_is_a_list_and_a_list_stays_one() {
        let dir = Path::new("/tmp/x");
        let local = json!({"type": "host-local", "subnet": "10.0.0.0/24"});
        let list = network_list(json!({"type": "mine", "ipam": local, "name": "n"}), dir);
        let mine = &list["plugins"][0];
        assert_eq!((&list["name"], &list["cniVersion"]), (&json!("n"), &json!("1.1.0")));
        assert_eq!(mine["ipam"]["dataDir"], "/tmp/x/leases");
        let given = json!({"cniVersion": "1.0.0", "name": "m", "plugins": [{"type": "a"}, {"type": "b"}]});
        assert_eq!(network_list(given.clone(), dir), given);
        let own = json!({"type": "host-local", "dataDir": "/elsewhere"});
        assert_eq!(
            network_list(json!({"type": "mine", "ipam": own}), dir)["plugins"][0]["ipam"]["dataDir"],
            "/elsewhere"
        );
    }

    #[test]
    #[should_panic(expected = "build it first")]
    fn a_binary_that_does_not_exist_is_named() {
        PluginDir::of(&["/nowhere/plugin"]);
    }
}
