//! The plugin `pool` as `scripts/test agent` has built it, called as a runtime calls it.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_process::{CancellationToken, Deadline, Env, Error, How, Program, run_while};
use serde_json::{Value, json};

/// The longest that a call may take.
const LONGEST: Duration = Duration::from_secs(90);

/// A variable of the environment.
pub(crate) fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "how `scripts/test` tells a test what it is to do")]
    std::env::var(name).ok()
}

/// The built plugin. A dependency on its crate would bring async code into its build.
pub(crate) fn plugin() -> PathBuf {
    built("CNIKIT_POOL_PLUGIN")
}

/// A program that `scripts/test agent` has built, by the variable that names it. That it is missing is a failure.
pub(crate) fn built(name: &str) -> PathBuf {
    let path = PathBuf::from(variable(name).unwrap_or_default());
    assert!(path.is_file(), "{name} is {}: `scripts/test agent` builds the program and sets it", path.display());
    path
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// It succeeded. These are the addresses of an ADD.
    Done(Vec<IpAddr>),
    /// It failed with an error of CNI.
    Failed(u64, String),
    /// It was killed.
    Killed,
}

impl Called {
    pub(crate) fn addresses(self) -> Vec<IpAddr> {
        let Called::Done(addresses) = self else { panic!("{self:?}") };
        addresses
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> u64 {
        let Called::Failed(code, _) = self else { panic!("{self:?}") };
        *code
    }
}

/// How a call is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    None,
    /// SIGKILL after this time.
    Kill(Duration),
    /// SIGSTOP after the first time, SIGCONT after the second one.
    Stop(Duration, Duration),
}

/// A network whose addresses the plugin assigns, on a node.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    conf: Value,
    program: PathBuf,
    args: String,
}

impl Network {
    /// The network `pods` of the node whose files are in a directory, with more keys under `ipam`. The agent of the node, if there
    /// is one, has its socket in `run`.
    pub(crate) fn new(files: &Path, more: &Value) -> Network {
        let mut ipam = json!({
            "type": "pool",
            "pool": "blue",
            "dataDir": files,
            "agentSocket": files.join("run/agent.sock"),
            "agent": "/nowhere/cnikit-agent",
            "agentConfig": "/nowhere/agent.json",
        });
        for (key, value) in more.as_object().unwrap() {
            ipam[key] = value.clone();
        }
        Network::of(&ipam, plugin())
    }

    /// The network `pods` with the addresses of another plugin.
    pub(crate) fn of(ipam: &Value, program: PathBuf) -> Network {
        let conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam});
        Network { conf, program, args: String::new() }
    }

    /// The same with another name.
    pub(crate) fn named(mut self, name: &str) -> Network {
        self.conf["name"] = name.into();
        self
    }

    /// The same with `CNI_ARGS`.
    pub(crate) fn with_args(mut self, args: &str) -> Network {
        args.clone_into(&mut self.args);
        self
    }

    pub(crate) fn add(&self, container: &str) -> Called {
        self.call("ADD", container, Disturbance::None, &CancellationToken::new().unwrap())
    }

    pub(crate) fn del(&self, container: &str) -> Called {
        self.call("DEL", container, Disturbance::None, &CancellationToken::new().unwrap())
    }

    /// A CHECK of a container that has this address.
    pub(crate) fn check(&self, container: &str, address: IpAddr) -> Called {
        let mut checked = self.clone();
        checked.conf["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [{"address": format!("{address}/24")}]});
        checked.call("CHECK", container, Disturbance::None, &CancellationToken::new().unwrap())
    }

    /// A GC after which these containers are all that are left.
    pub(crate) fn gc(&self, valid: &[&str]) -> Called {
        let valid = valid.iter().map(|container| json!({"containerID": container, "ifname": "eth0"}));
        let mut collected = self.clone();
        collected.conf["cni.dev/valid-attachments"] = valid.collect();
        collected.call("GC", "", Disturbance::None, &CancellationToken::new().unwrap())
    }

    pub(crate) fn status(&self) -> Called {
        self.call("STATUS", "", Disturbance::None, &CancellationToken::new().unwrap())
    }

    /// Calls the plugin in the namespaces of this thread. A token that is cancelled kills it.
    pub(crate) fn call(&self, verb: &str, container: &str, how: Disturbance, token: &CancellationToken) -> Called {
        let mut set: Vec<(OsString, OsString)> = vec![("CNI_COMMAND".into(), verb.into())];
        if !["GC", "STATUS"].contains(&verb) {
            for (key, value) in [
                ("CNI_CONTAINERID", container),
                // An IPAM plugin does not enter it.
                ("CNI_NETNS", "/proc/self/ns/net"),
                ("CNI_NETNS_OVERRIDE", "1"),
                ("CNI_IFNAME", "eth0"),
            ] {
                set.push((key.into(), value.into()));
            }
        }
        set.push(("CNI_PATH".into(), "/nowhere".into()));
        set.push(("CNI_ARGS".into(), self.args.clone().into()));
        let stdin = self.conf.to_string().into_bytes();
        let (program, deadline) = match how {
            Disturbance::None => (Program::new(&self.program, Env::inherited(set)), Deadline::after(LONGEST)),
            Disturbance::Kill(after) => (Program::new(&self.program, Env::inherited(set)), Deadline::after(after)),
            Disturbance::Stop(first, second) => {
                // The process is the shell's own, so its number is no other's until the shell has waited for it.
                let line = format!(
                    "exec 3<&0; \"$0\" <&3 & sleep {}; kill -STOP $!; sleep {}; kill -CONT $!; wait $!",
                    first.as_secs_f32(),
                    second.as_secs_f32()
                );
                let program = Program::new("/bin/sh", Env::inherited(set));
                (program.args(vec!["-c".into(), line.into(), self.program.clone().into()]), Deadline::after(LONGEST))
            }
        };
        // Without the time for SIGTERM, which ends the plugin as it likes.
        let program = program.stdin(stdin).grace(Duration::ZERO);
        match run_while(&program, deadline, token) {
            Ok(ended) if ended.how == How::Exit(0) => Called::Done(addresses_of(&ended.stdout)),
            Ok(ended) => {
                let said = String::from_utf8_lossy(&ended.stdout);
                let error: Value = serde_json::from_str(&said)
                    .unwrap_or_else(|why| panic!("{verb} {container}: {}: {why}: {said}", ended.how));
                Called::Failed(error["code"].as_u64().unwrap(), format!("{} {}", error["msg"], error["details"]))
            }
            Err(Error::Cancelled { .. }) => Called::Killed,
            Err(_) if matches!(how, Disturbance::Kill(_)) => Called::Killed,
            Err(error) => panic!("{verb} {container}: {error}"),
        }
    }
}

fn addresses_of(stdout: &[u8]) -> Vec<IpAddr> {
    if stdout.is_empty() {
        return Vec::new();
    }
    let result: Value = serde_json::from_slice(stdout).unwrap();
    let mut addresses = Vec::new();
    for ip in result["ips"].as_array().unwrap() {
        let (address, _) = ip["address"].as_str().unwrap().split_once('/').unwrap();
        addresses.push(address.parse().unwrap());
    }
    addresses
}
