//! The subject of a test: a plugin with a configuration.

use std::path::{Path, PathBuf};

use cnikit::Version;
use serde_json::{Value, json};

use crate::env::host::{Container, Host};
use crate::env::shared_state::SHARED;

/// A plugin binary and the configuration it is tested with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Subject {
    /// The directory of plugins: `CNI_PATH`.
    pub bin: PathBuf,
    /// The name of the plugin's binary.
    pub plugin: String,
    /// The name in reports of campaigns: the plugin's name, unless [`Subject::called`] sets another.
    pub title: String,
    /// The network configuration, without keys that the runtime adds for a verb.
    pub conf: Value,
    /// Additional variables of every call, with the placeholders of [`Subject::after`] and `$DIR`. They replace those of the
    /// protocol.
    pub env: Vec<(String, String)>,
    /// The plugins before it in the chain, if it is a chained plugin.
    pub after: Option<EarlierPlugins>,
    /// A shell line that prepares a new host for the plugin, for example adds a master. `$DIR` in it is the host's directory.
    pub host_setup: &'static str,
    /// A shell line that prepares the host for each container, for example adds a device that the plugin moves into it, with the
    /// placeholders of [`Subject::after`] and `$DIR`. A container may get the number of one that has gone. Links of the host whose
    /// names begin with `pairend` are not in a [`HostSnapshot`](crate::HostSnapshot), because they come and go with containers.
    pub container_setup: &'static str,
    /// A shell line that another process repeats on the host while many calls run at once: it has to succeed, and to leave things
    /// as they were. Empty: there is none.
    pub background: &'static str,
    /// Another implementation, which makes some of the calls of a flood: see [`Subject::beside`](fn@Subject::beside).
    pub beside: Option<PathBuf>,
    /// The size of each host's disk in KiB; `None`: it is the machine's. See [`Subject::on_small_disk`].
    pub disk: Option<u32>,
    /// Texts of lines that may stay on the host after the last DEL: see [`Subject::shared`](fn@Subject::shared).
    pub shared: Vec<&'static str>,
    /// Directories in which the plugin has state at a fixed place, such as `/var/lib/cni`: each host has its own ones. See
    /// [`Host::with_own`].
    pub state: Vec<PathBuf>,
    /// Whether the gateways of its results answer a ping, so that campaigns may require it.
    pub gateways_answer: bool,
    /// Whether recorded calls have the recorded keys of other plugins, which a plugin may refuse.
    pub takes_foreign_keys: bool,
}

/// Simulates the plugins before a chained one. See [`Subject::after`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EarlierPlugins {
    /// A shell line that makes in the container what these plugins make there.
    pub made: String,
    /// The result of their ADD, in the version of the configuration.
    pub result: Value,
}

impl EarlierPlugins {
    /// Runs the line in a container of this host.
    pub(crate) fn make(&self, host: &Host, container: &Container) {
        container.sh(&filled(&self.made, &container.path()).replace("$HOST", &host.path()));
    }
}

/// Replaces the placeholders of a container in a text: see [`Subject::after`].
pub(crate) fn filled(text: &str, netns: &str) -> String {
    // The last part of the path is the number of a descriptor, perhaps followed by `-that-is-gone`.
    let number = netns.rsplit('/').next().and_then(|name| name.split('-').next()?.parse::<u16>().ok()).unwrap_or(1);
    text.replace("\"$NUMBER\"", &number.to_string())
        .replace("$NUMBER", &number.to_string())
        .replace("$PLACE", &format!("{}.{}", number / 256, number % 256))
        .replace("$NETNS", netns)
}

/// Runs the line of [`Subject::container_setup`] for a container.
pub(crate) fn prepare_host(line: &str, host: &Host, container: &Container) {
    if line != ":" {
        host.sh(&filled(&line.replace("$DIR", &host.dir().display().to_string()), &container.path()));
    }
}

/// Exit status and output of a call.
#[derive(Clone, Debug)]
pub struct CallOutput {
    /// The exit status; negative: a signal.
    pub exit: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CallOutput {
    /// Parses stdout as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON document on stdout of a call that has to succeed; null if stdout is empty.
    pub fn ok(self) -> Value {
        assert!(self.exit == 0, "exit status {}: {}{}", self.exit, self.stdout, self.stderr);
        if self.stdout.is_empty() { Value::Null } else { self.json() }
    }

    /// Panics unless the call succeeded and printed nothing, as a verb without a result has to.
    pub(crate) fn silent(&self, what: &str) {
        let CallOutput { exit, stdout, stderr } = self;
        assert!(*exit == 0, "{what}: exit status {exit}: {stdout}{stderr}");
        assert!(stdout.is_empty(), "{what} prints {stdout:?}");
    }

    /// Code and message of a call that has to fail with exactly one error object.
    pub fn refused(&self) -> (u64, String) {
        assert_eq!(self.exit, 1, "it should have failed: {self:?}");
        self.error()
    }

    /// Code and message of the one error object on stdout, with any exit status.
    pub(crate) fn error(&self) -> (u64, String) {
        let error = self.json();
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (error["code"].as_u64().unwrap(), format!("{}; {}", text("msg"), text("details")))
    }
}

/// Converts the output of [`Host::run`].
impl From<(i32, Vec<u8>, Vec<u8>)> for CallOutput {
    fn from((exit, stdout, stderr): (i32, Vec<u8>, Vec<u8>)) -> CallOutput {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        CallOutput { exit, stdout: text(stdout), stderr: text(stderr) }
    }
}

/// The list of valid attachments of these containers, for GC.
pub(crate) fn attachments<T: AsRef<str>>(ids: impl IntoIterator<Item = T>) -> Value {
    ids.into_iter().map(|id| json!({"containerID": id.as_ref(), "ifname": "eth0"})).collect()
}

/// The addresses of a result, without prefix lengths.
pub(crate) fn addresses(result: &Value) -> impl Iterator<Item = &str> {
    let ips = result["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str());
    ips.map(|address| address.split('/').next().unwrap_or_default())
}

/// Whether the IPAM plugin has a file for each address.
fn stores_reservations(ipam: &Value) -> bool {
    ["host-local", "pool"].iter().any(|plugin| ipam["type"] == *plugin)
}

impl Subject {
    /// A plugin in a directory with a configuration; `name`, `type` and `cniVersion` are added if they are absent.
    pub fn new(bin: &Path, plugin: &str, mut conf: Value) -> Subject {
        for (key, value) in [("cniVersion", "1.1.0"), ("name", "testnet"), ("type", plugin)] {
            if conf.get(key).is_none() {
                conf[key] = value.into();
            }
        }
        let bin = bin.to_owned();
        let plugin = plugin.to_owned();
        Subject {
            bin,
            title: plugin.clone(),
            plugin,
            conf,
            env: Vec::new(),
            after: None,
            host_setup: ":",
            container_setup: ":",
            background: "",
            beside: None,
            disk: None,
            shared: SHARED.to_vec(),
            state: Vec::new(),
            gateways_answer: true,
            takes_foreign_keys: true,
        }
    }

    /// Returns the subject with another title, for campaigns.
    #[must_use]
    pub fn called(&self, title: &str) -> Subject {
        Subject { title: title.to_owned(), ..self.clone() }
    }

    /// Returns the plugin of the same name in another directory.
    #[must_use]
    pub fn in_directory(&self, bin: impl Into<PathBuf>) -> Subject {
        Subject { bin: bin.into(), ..self.clone() }
    }

    /// Returns the subject with these environment variables for each call, in place of its own ones.
    #[must_use]
    pub fn with_env(&self, env: Vec<(String, String)>) -> Subject {
        Subject { env, ..self.clone() }
    }

    /// Returns the subject with a shell line that prepares each host: see [`Subject::host_setup`].
    #[must_use]
    pub fn on(&self, host_setup: &'static str) -> Subject {
        Subject { host_setup, ..self.clone() }
    }

    /// Returns the subject with a shell line that another process repeats: see [`Subject::background`](field@Subject::background).
    #[must_use]
    pub fn background(&self, background: &'static str) -> Subject {
        Subject { background, ..self.clone() }
    }

    /// Returns the subject with the directory of another implementation, for example upstream's. In a flood it makes some of the
    /// ADDs, CHECKs and DELs on the same network; its calls are not killed.
    #[must_use]
    pub fn beside(&self, bin: impl Into<PathBuf>) -> Subject {
        Subject { beside: Some(bin.into()), ..self.clone() }
    }

    /// Returns the subject with a file system of this many KiB in the directory of each host. During a flood another process fills
    /// it again and again: ADD and STATUS may fail then, with the error of a full disk, and any other call has to succeed.
    #[must_use]
    pub fn on_small_disk(&self, kib: u32) -> Subject {
        Subject { disk: Some(kib), ..self.clone() }
    }

    /// Returns the subject with more state that attachments share, so that it may stay after the last DEL: a line of a
    /// [`HostSnapshot`](crate::HostSnapshot) that contains one of these texts is no leftover, unless it names the attachment. At
    /// the beginning these are [`life::SHARED`](crate::life::SHARED), which cnikit's own plugins need.
    #[must_use]
    pub fn shared(&self, texts: &[&'static str]) -> Subject {
        Subject { shared: [&self.shared, texts].concat(), ..self.clone() }
    }

    /// Creates a host and prepares it for the plugin.
    pub fn host(&self) -> Host {
        let mut host = Host::new();
        if let Some(kib) = self.disk {
            host = host.on_small_disk(kib);
        }
        let host = host.with_own(&self.state);
        host.sh(&self.host_setup.replace("$DIR", &host.dir().display().to_string()));
        host
    }

    /// Returns the subject with one key of the configuration changed.
    #[must_use]
    pub fn with(&self, key: &str, value: Value) -> Subject {
        let mut changed = self.clone();
        changed.conf[key] = value;
        changed
    }

    /// Returns the subject after other plugins of a chain: a shell line that makes in a container what they make there, and their
    /// result.
    ///
    /// In both, in the configuration and in [`Subject::env`], `$NETNS` is replaced by the container's path; `$NUMBER` by a number
    /// from 3 on that no other container has at the time (`"$NUMBER"` becomes a number in JSON too); `$PLACE` by the same number as
    /// the last two bytes of an IPv4 address. In the line `$HOST` is replaced by the path of the host's namespace.
    #[must_use]
    pub fn after(&self, made: &str, result: Value) -> Subject {
        Subject { after: Some(EarlierPlugins { made: made.to_owned(), result }), ..self.clone() }
    }

    /// Whether an earlier plugin of the chain made the interface.
    pub(crate) fn is_chained(&self) -> bool {
        self.after.as_ref().is_some_and(|after| after.result["interfaces"].is_array())
    }

    /// Creates a container, prepares the host for it, and makes in it what earlier plugins of the chain make, such as an interface.
    pub fn container(&self, host: &Host) -> Container {
        let container = host.container();
        prepare_host(self.container_setup, host, &container);
        self.after.iter().for_each(|after| after.make(host, &container));
        container
    }

    /// The configuration of a call, as the runtime makes it: an ADD has the result of the earlier plugins, and so has a dry run if
    /// the configuration has no result of its own.
    pub(crate) fn conf_of(&self, verb: &str, netns: &str) -> Value {
        let mut conf = self.conf.clone();
        if verb == "ADD" || verb == "PLAN" && conf.get("prevResult").is_none() {
            self.add_prev_result(&mut conf);
        }
        serde_json::from_str(&filled(&conf.to_string(), netns)).unwrap()
    }

    /// Gives a configuration the result of the earlier plugins, in its version.
    pub(crate) fn add_prev_result(&self, conf: &mut Value) {
        if let Some(after) = &self.after {
            conf["prevResult"] = after.result.clone();
            conf["prevResult"]["cniVersion"] = conf["cniVersion"].clone();
        }
    }

    /// Returns the subject with its state in this directory: `$DIR` in the configuration, in [`Subject::env`] and in
    /// [`Subject::after`] is replaced by the path, and host-local gets a `dataDir` in it.
    #[must_use]
    pub fn at(&self, dir: &Path) -> Subject {
        let mut moved = self.clone();
        let here = |text: &str| text.replace("$DIR", &dir.display().to_string());
        let here_in = |value: &Value| serde_json::from_str(&here(&value.to_string())).unwrap();
        moved.conf = here_in(&moved.conf);
        moved.env.iter_mut().for_each(|(_, value)| *value = here(value));
        if let Some(after) = &mut moved.after {
            *after = EarlierPlugins { made: here(&after.made), result: here_in(&after.result) };
        }
        if moved.conf["ipam"]["type"] == "host-local" {
            moved.conf["ipam"]["dataDir"] = json!(dir.join("leases"));
        }
        moved
    }

    /// The directory of the network's reservations, if the configuration uses host-local or pool with a `dataDir`.
    pub(crate) fn reservations(&self) -> Option<PathBuf> {
        let dir = self.conf["ipam"]["dataDir"].as_str().filter(|_| stores_reservations(&self.conf["ipam"]));
        dir.map(|dir| Path::new(dir).join(self.network()))
    }

    /// The plugins that a call runs: the plugin itself, a delegate, and the IPAM plugin, as far as the configuration names them.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &str> {
        let named = ["delegate", "ipam"].map(|key| self.conf[key]["type"].as_str());
        std::iter::once(self.plugin.as_str()).chain(named.into_iter().flatten())
    }

    /// Whether it is called in at least this version of the specification.
    pub fn speaks(&self, version: Version) -> bool {
        let text = self.conf["cniVersion"].as_str().unwrap_or_default();
        Version::exact(text).is_some_and(|own| own >= version)
    }

    /// The name of the network.
    pub fn network(&self) -> &str {
        self.conf["name"].as_str().unwrap()
    }

    /// Calls the plugin once, as a runtime does, with additional keys of the configuration.
    pub fn call(&self, host: &Host, verb: &str, id: &str, netns: &str, more: &[(&str, Value)]) -> CallOutput {
        let mut conf = self.conf_of(verb, netns);
        for (key, value) in more {
            conf[*key] = value.clone();
        }
        self.call_raw(host, verb, id, netns, conf.to_string().as_bytes(), &[])
    }

    /// Calls the plugin once with these bytes on stdin and these additional variables.
    pub fn call_raw(
        &self,
        host: &Host,
        verb: &str,
        id: &str,
        netns: &str,
        stdin: &[u8],
        more: &[(&str, &str)],
    ) -> CallOutput {
        let env = self.environment(verb, id, netns, more);
        CallOutput::from(host.run(&self.bin.join(&self.plugin), &env, stdin))
    }

    /// The variables of a call; `more` replaces those with the same names.
    pub(crate) fn environment(
        &self,
        verb: &str,
        id: &str,
        netns: &str,
        more: &[(&str, &str)],
    ) -> Vec<(String, String)> {
        let path = self.bin.to_string_lossy();
        let usual = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", ""),
            ("CNI_PATH", &path),
        ];
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let own = self.env.iter().map(|(key, value)| (key.clone(), filled(value, netns)));
        let mut variables: Vec<(String, String)> = Vec::new();
        for (key, value) in usual.iter().map(owned).chain(own).chain(more.iter().map(owned)) {
            // A program sees the first of two variables with one name.
            variables.retain(|(earlier, _)| *earlier != key);
            variables.push((key, value));
        }
        variables
    }

    /// Runs ADD and returns the result. Panics if it fails.
    pub fn add(&self, host: &Host, id: &str, container: &Container) -> Value {
        self.call(host, "ADD", id, &container.path(), &[]).ok()
    }

    /// Runs DEL with the result of the ADD. Panics if it fails.
    pub fn del(&self, host: &Host, id: &str, container: &Container, result: &Value) {
        self.call(host, "DEL", id, &container.path(), &[("prevResult", result.clone())]).ok();
    }

    /// Runs GC with the attachments of these containers as the valid ones.
    pub fn gc(&self, host: &Host, valid: &[&str]) -> CallOutput {
        self.call(host, "GC", "", "", &[("cni.dev/valid-attachments", attachments(valid))])
    }

    /// Runs CHECK with the result of the ADD.
    pub fn check(&self, host: &Host, id: &str, container: &Container, result: &Value) -> CallOutput {
        self.call(host, "CHECK", id, &container.path(), &[("prevResult", result.clone())])
    }
}
