//! A host to which recorded calls are sent.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::recording::RecordedCall;
use crate::env::host::{Container, Host};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{EarlierPlugins, Subject};

/// A host for one scene, with what the placeholders stand for.
#[derive(Debug)]
pub struct ReplayHost {
    /// Where the plugins run.
    pub host: Host,
    /// Where they are.
    bin: PathBuf,
    before: HostSnapshot,
    /// The network of each bridge that the scene came to.
    bridges: BTreeMap<String, String>,
    /// Where the paths of namespaces are.
    run: TempDir,
    containers: BTreeMap<String, Container>,
    /// What a chained plugin stands on.
    after: Option<EarlierPlugins>,
}

impl ReplayHost {
    /// On a fresh host, with a directory of plugins.
    pub fn new(bin: &Path, host: Host) -> ReplayHost {
        ReplayHost {
            before: HostSnapshot::of(&host),
            host,
            bin: bin.to_owned(),
            bridges: BTreeMap::new(),
            run: tempfile::tempdir().unwrap(),
            containers: BTreeMap::new(),
            after: None,
        }
    }

    /// The same, and whoever is called finds in each container what it stands on.
    pub(super) fn of(subject: &Subject) -> ReplayHost {
        ReplayHost { after: subject.after.clone(), ..ReplayHost::new(&subject.bin, subject.host()) }
    }

    /// What a runtime does before a call without being seen: Podman gives a removed network's bridge name to the next
    /// network, after it has removed the bridge itself.
    pub fn remove_reused_bridge(&mut self, call: &RecordedCall) {
        let conf = call.conf();
        let (Some(bridge), Some(network)) = (conf["bridge"].as_str(), conf["name"].as_str()) else { return };
        let before = self.bridges.insert(bridge.to_owned(), network.to_owned());
        if before.is_some_and(|before| before != network) {
            self.host.sh(&format!("[ ! -e /proc/sys/net/ipv4/conf/{bridge} ] || ip link del {bridge}"));
        }
    }

    /// The variables of a call, its namespace made if it is not there.
    pub fn environment(&mut self, call: &RecordedCall) -> Vec<(String, String)> {
        if let Some(name) = call.namespace().filter(|name| !self.containers.contains_key(*name)) {
            let container = self.host.container();
            let path = self.path(name);
            self.after.iter().for_each(|after| after.make(&self.host, &container));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(container.path(), path).unwrap();
            self.containers.insert(name.to_owned(), container);
        }
        self.ensure_interface(call);
        call.env.iter().map(|(key, value)| (key.clone(), self.fill_placeholders(value))).collect()
    }

    /// A chained plugin finds the interface that it is called for, whose name may be another one in each network.
    fn ensure_interface(&self, call: &RecordedCall) {
        let container = call.namespace().and_then(|name| self.containers.get(name)).filter(|_| self.after.is_some());
        if let (Some(container), Some(ifname)) = (container, call.env.get("CNI_IFNAME").filter(|name| !name.is_empty()))
        {
            let make = format!("ip link add {ifname} type veth && ip link set {ifname} up");
            container.sh(&format!("[ -e /proc/sys/net/ipv4/conf/{ifname} ] || {{ {make}; }}"));
        }
    }

    /// The configuration keeps its spelling: only the directory of what a plugin keeps comes in.
    pub fn fill_placeholders(&self, text: &str) -> String {
        let leases = format!(r#""dataDir":"{}","type":"host-local""#, self.leases().display());
        let lent = format!(r#""dataDir":"{}","type":"tuning""#, self.host.dir().join("tuning").display());
        text.replace("@NETNS@", &self.run.path().join("netns").to_string_lossy())
            .replace("@BIN@", &self.bin.to_string_lossy())
            .replace("@STATE@/bin", &self.bin.to_string_lossy())
            .replace(r#""type":"host-local""#, &leases)
            .replace(r#""type":"tuning""#, &lent)
    }

    /// Where host-local keeps what it gave.
    pub fn leases(&self) -> PathBuf {
        self.host.dir().join("leases")
    }

    /// A namespace goes away.
    pub fn remove_netns(&mut self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
        self.containers.remove(name);
    }

    /// What came since it was new.
    pub fn added_lines(&self) -> Vec<String> {
        HostSnapshot::of(&self.host).added_since(&self.before, &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.run.path().join("netns").join(name)
    }
}
