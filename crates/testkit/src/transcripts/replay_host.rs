//! A host on which recorded calls are replayed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::recording::RecordedCall;
use crate::env::host::{Container, Host};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{EarlierPlugins, Subject, filled, prepare_host};

/// host-local's directory on the host.
const LEASES: &str = "leases";

/// The plugins with the key `dataDir`, and their directories on the host.
const STORING: [(&str, &str); 3] = [("host-local", LEASES), ("tuning", "tuning"), ("sbr", "sbr")];

/// A host for one transcript, with the values of its placeholders.
#[derive(Debug)]
pub struct ReplayHost {
    /// The host on which the plugins run.
    pub host: Host,
    /// The directory of plugins.
    bin: PathBuf,
    before: HostSnapshot,
    /// The network of each bridge in the transcript so far.
    bridges: BTreeMap<String, String>,
    /// The directory with the paths of namespaces.
    run: TempDir,
    containers: BTreeMap<String, Container>,
    /// A shell line that prepares the host for each container.
    container_setup: &'static str,
    /// The plugins before a chained one.
    after: Option<EarlierPlugins>,
    /// Whether these made the interface.
    is_chained: bool,
    /// Additional variables of every call.
    env: Vec<(String, String)>,
}

impl ReplayHost {
    /// Starts a replay on a new host, with a directory of plugins.
    pub fn new(bin: &Path, host: Host) -> ReplayHost {
        ReplayHost {
            before: HostSnapshot::of(&host),
            host,
            bin: bin.to_owned(),
            bridges: BTreeMap::new(),
            run: tempfile::tempdir().unwrap(),
            containers: BTreeMap::new(),
            container_setup: ":",
            after: None,
            is_chained: false,
            env: Vec::new(),
        }
    }

    /// Starts a replay for a subject: each container has what earlier plugins of the chain make.
    pub(super) fn of(subject: &Subject) -> ReplayHost {
        let host = subject.host();
        let Subject { container_setup, after, env, .. } = subject.at(host.dir());
        let is_chained = subject.is_chained();
        ReplayHost { container_setup, after, is_chained, env, ..ReplayHost::new(&subject.bin, host) }
    }

    /// Removes a bridge as Podman does between recorded calls: it gives a removed network's bridge name to the next network, after
    /// it has removed the bridge itself.
    pub fn remove_reused_bridge(&mut self, call: &RecordedCall) {
        let conf = call.conf();
        let Some(bridge) = conf["bridge"].as_str() else { return };
        let Some(network) = conf["name"].as_str() else { return };
        let before = self.bridges.insert(bridge.to_owned(), network.to_owned());
        if before.is_some_and(|before| before != network) {
            self.host.sh(&format!("[ ! -e /proc/sys/net/ipv4/conf/{bridge} ] || ip link del {bridge}"));
        }
    }

    /// The variables of a call. Its namespace is created if it does not exist.
    pub fn environment(&mut self, call: &RecordedCall) -> Vec<(String, String)> {
        if let Some(name) = call.namespace()
            && !self.containers.contains_key(name)
        {
            let container = self.host.container();
            let path = self.path(name);
            prepare_host(self.container_setup, &self.host, &container);
            self.after.iter().for_each(|after| after.make(&self.host, &container));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(container.path(), path).unwrap();
            self.containers.insert(name.to_owned(), container);
        }
        self.ensure_interface(call);
        let recorded = call.env.iter();
        let own = self.env.iter().map(|(key, value)| (key, value));
        recorded.chain(own).map(|(key, value)| (key.clone(), self.fill_placeholders(call, value))).collect()
    }

    /// Creates the interface of the call if the plugin is a chained one; its name may differ between networks.
    fn ensure_interface(&self, call: &RecordedCall) {
        let Some(container) = call.namespace().and_then(|name| self.containers.get(name)) else { return };
        let Some(ifname) = call.env.get("CNI_IFNAME") else { return };
        if !self.is_chained || ifname.is_empty() {
            return;
        }
        let make = format!("ip link add {ifname} type veth && ip link set {ifname} up");
        container.sh(&format!("[ -e /proc/sys/net/ipv4/conf/{ifname} ] || {{ {make}; }}"));
    }

    /// Replaces the placeholders in a text of a call: those of transcripts, and those of a [`Subject`]. A plugin that stores files
    /// gets a `dataDir` on this host, unless it has one; the rest of the configuration is not reformatted.
    pub fn fill_placeholders(&self, call: &RecordedCall, text: &str) -> String {
        let container = call.namespace().and_then(|name| self.containers.get(name));
        let text = filled(text, &container.map(Container::path).unwrap_or_default())
            .replace("$DIR", &self.host.dir().to_string_lossy())
            .replace("@NETNS@", &self.run.path().join("netns").to_string_lossy())
            .replace("@BIN@", &self.bin.to_string_lossy())
            .replace("@STATE@/bin", &self.bin.to_string_lossy());
        with_data_directories(text, self.host.dir())
    }

    /// The directory of host-local's reservations.
    pub fn leases(&self) -> PathBuf {
        self.host.dir().join(LEASES)
    }

    /// Removes a namespace.
    pub fn remove_netns(&mut self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
        self.containers.remove(name);
    }

    /// The lines that were added to the host's snapshot since the start.
    pub fn added_lines(&self) -> Vec<String> {
        HostSnapshot::of(&self.host).added_since(&self.before, &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.run.path().join("netns").join(name)
    }
}

/// A configuration with a directory below this one for each plugin in it that stores files, unless it has one.
fn with_data_directories(mut text: String, below: &Path) -> String {
    let conf: Value = serde_json::from_str(&text).unwrap_or_default();
    for (plugin, directory) in STORING {
        let has_own = |keys: &Value| keys["type"] == plugin && keys.get("dataDir").is_some();
        if !has_own(&conf) && !has_own(&conf["ipam"]) {
            let directory = below.join(directory);
            let with_directory = format!(r#""dataDir":"{}","type":"{plugin}""#, directory.display());
            text = text.replace(&format!(r#""type":"{plugin}""#), &with_directory);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_gets_a_directory_unless_its_configuration_has_one() {
        let filled = |text: &str| with_data_directories(text.to_owned(), Path::new("/d"));
        let bridge = r#"{"ipam":{"type":"host-local"},"type":"bridge"}"#;
        assert_eq!(filled(bridge), r#"{"ipam":{"dataDir":"/d/leases","type":"host-local"},"type":"bridge"}"#);
        assert_eq!(filled(r#"{"mtu":1400,"type":"tuning"}"#), r#"{"mtu":1400,"dataDir":"/d/tuning","type":"tuning"}"#);
        for own in [r#"{"dataDir":"/x","type":"sbr"}"#, r#"{"ipam":{"dataDir":"/x","type":"host-local"}}"#, "/a/path"] {
            assert_eq!(filled(own), own);
        }
    }
}
