//! A runtime on a host of its own: scripts as plugins beside the real ones, and a directory for all stored files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_libcni::{Attachment, Cache, Deadline, NetworkList, Runtime};
use cnikit_testkit::{Container, Host};
use serde_json::Value;

/// The ADD of a chained plugin that is a script: it returns prevResult.
pub const PASS: &str = r#"ADD) sed 's/.*"prevResult":\(.*\),"\(runtimeConfig\|cniVersion\|name\)".*/\1/; s/.*"prevResult":\(.*\)}$/\1/' $in ;;"#;

/// The ADD of the first plugin of a chain, as a script.
pub const ANSWER: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]}' ;;"#;

/// A host, a container, scripts, and the stored files.
#[derive(Debug)]
pub struct Scene {
    /// Where the runtime runs.
    pub host: Host,
    /// Whom it is about.
    pub container: Container,
}

impl Scene {
    /// With nothing in it.
    pub fn new() -> Scene {
        let host = Host::new();
        let container = host.container();
        fs::create_dir(host.dir().join("bin")).unwrap();
        Scene { host, container }
    }

    /// A path below the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.host.dir().join(name)
    }

    /// A plugin that appends each call to `calls`, writes its stdin to `NAME.VERB` (`$in`) and its environment to `NAME.VERB.env`,
    /// and then executes these cases of `$CNI_COMMAND`; `$dir` is the directory.
    pub fn plugin(&self, name: &str, cases: &str) {
        let dir = self.host.dir().display();
        self.file(
            name,
            &format!(
                "#!/bin/sh\ndir={dir}\nin=$dir/{name}.$CNI_COMMAND\ncat >$in\nenv >$in.env\n\
                 echo $CNI_COMMAND {name} >>$dir/calls\ncase $CNI_COMMAND in\n{cases}\nesac\n"
            ),
            0o755,
        );
    }

    /// A file where plugins are.
    pub fn file(&self, name: &str, text: &str, mode: u32) {
        let file = self.path("bin").join(name);
        let _ = fs::remove_file(&file);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// A runtime with the scripts and our plugins.
    pub fn runtime(&self) -> Runtime {
        let path = format!("{}:{}", self.path("bin").display(), crate::bin().display());
        Runtime { timeout: Duration::from_secs(30), ..Runtime::new(path, Cache::below(&self.path("state"))) }
    }

    /// A list of these plugins.
    pub fn list(&self, name: &str, plugins: &Value) -> NetworkList {
        let text = serde_json::json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins}).to_string();
        NetworkList::parse(text.as_bytes()).unwrap()
    }

    /// A bridge with addresses of both families out of this host's own leases.
    pub fn bridge(&self) -> Value {
        let mut ipam = crate::dual_stack();
        ipam["dataDir"] = serde_json::json!(self.path("leases"));
        serde_json::json!({"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "ipam": ipam})
    }

    /// The container's first interface.
    pub fn at(&self) -> Attachment {
        Attachment::new("c1", self.container.path())
    }

    /// The calls of the scripts since the last time.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        text.lines().map(str::to_owned).collect()
    }

    /// The stdin of a script in its last call.
    pub fn stdin(&self, plugin: &str, verb: &str) -> String {
        fs::read_to_string(self.path(&format!("{plugin}.{verb}"))).unwrap()
    }

    /// The names of the files in a directory below `state`.
    pub fn state(&self, dir: &str) -> Vec<String> {
        names(&self.path("state").join(dir))
    }

    /// The addresses that host-local holds of a network.
    pub fn leases(&self, network: &str) -> Vec<String> {
        let mut names = names(&self.path("leases").join(network));
        names.retain(|name| name.starts_with("10.") || name.starts_with("fd"));
        names
    }

    /// Waits until a call was noted.
    pub fn until_called(&self, call: &str) {
        let deadline = Deadline::after(Duration::from_secs(30));
        let has_come =
            || fs::read_to_string(self.path("calls")).is_ok_and(|calls| calls.lines().any(|one| one == call));
        while !has_come() {
            assert!(deadline.pause(Duration::from_millis(5)), "waited in vain for {call}");
        }
    }

    /// That nothing of any attachment is left: no link, no address, no note.
    pub fn assert_clean(&self, network: &str) {
        assert_eq!(self.leases(network), [""; 0]);
        assert!(!self.host.sh("ip -o link").contains("veth"));
        for dir in ["results", "cnikit/intents"] {
            assert_eq!(self.state(dir), [""; 0], "{dir}");
        }
        let locks: Vec<String> = self.state("cnikit/locks").into_iter().filter(|name| name.starts_with("c-")).collect();
        assert_eq!(locks, [""; 0]);
    }
}

impl Default for Scene {
    fn default() -> Scene {
        Scene::new()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
