//! containerd on a node, with the CRI requests of a kubelet.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::grpc::{self, Message, all, at, number, text};
use super::{IMAGE, Node, file, image};

/// Which containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// The packaged release of this machine: 1.6, which supports version 1.0.0 of the specification.
    Packaged,
    /// The newest release: 2.1, which supports 1.1.0 and calls STATUS.
    Newest,
}

impl Edition {
    /// As test names have it.
    pub fn name(self) -> &'static str {
        match self {
            Edition::Packaged => "packaged",
            Edition::Newest => "newest",
        }
    }

    /// The directory of its programs. A runtime finds its shim by the search path.
    fn bin(self) -> PathBuf {
        let dir = match self {
            Edition::Packaged => PathBuf::from("/usr/bin"),
            Edition::Newest => cnikit_testkit::cache().join("containerd/usr/bin"),
        };
        assert!(dir.join("containerd").exists(), "{} has no containerd: `scripts/test` gets it", dir.display());
        dir
    }
}

/// The settings that the tests need besides the configuration of the page: the image, because no registry can be reached; no
/// `oom_score_adj`, which needs a capability that root in a container may not have; and no `AppArmor` profile, which would stay
/// loaded in the machine's kernel.
const BESIDE: &str = r#"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "IMAGE"
  disable_apparmor = true
  restrict_oom_score_adj = true
"#;

const SOCKET: &str = "/run/containerd/containerd.sock";

/// A running containerd. It ends with its node.
pub struct Containerd<'a> {
    node: &'a Node,
    edition: Edition,
    /// In the node's words.
    pid: String,
}

/// The configuration of a pod.
#[derive(Clone, Debug)]
pub struct PodSandbox {
    /// Its name, and its host name.
    pub name: String,
    /// The port of the node that is mapped to port 80 of the pod; 0 for none.
    pub host_port: u16,
}

/// A pod that runs.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its container id, for CNI too.
    pub id: String,
    /// IPv4 first, as the network has it.
    pub addresses: Vec<String>,
    /// The path of its network namespace on the node.
    pub netns: String,
    config: Message,
}

impl<'a> Containerd<'a> {
    /// Starts it with the page's configuration and imports the image that everything runs from.
    pub fn start(node: &'a Node, edition: Edition) -> Containerd<'a> {
        let configuration = file("/etc/containerd/config.toml") + &BESIDE.replace("IMAGE", IMAGE);
        node.write("/etc/containerd/config.toml", &configuration);
        let archive = node.scratch().join("image.tar");
        image::archive(node.rootfs().as_ref(), &archive);
        let mut containerd = Containerd { node, edition, pid: String::new() };
        containerd.start_again();
        let ctr = edition.bin().join("ctr");
        node.sh(&format!("{} -n k8s.io images import --no-unpack {}", ctr.display(), archive.display()));
        containerd
    }

    /// Kills it, and waits until it is gone. Pods go on running.
    pub fn kill(&self) {
        self.node.sh(&format!("kill -KILL {}", self.pid));
        self.node.wait_for(&format!("! test -e /proc/{}", self.pid));
    }

    /// Starts it, and waits until it accepts pods.
    pub fn start_again(&mut self) {
        let path = self.edition.bin();
        let log = self.log();
        let line = format!(
            "PATH={}:$PATH; ulimit -c 0; setsid containerd >>{} 2>&1 </dev/null & echo $!",
            path.display(),
            log.display()
        );
        self.node.sh(&line).trim().clone_into(&mut self.pid);
        let begin = Instant::now();
        while let Err(unready) = self.is_ready() {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "containerd is not ready: {unready}\n{}",
                self.log_tail()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> PathBuf {
        self.node.scratch().join("containerd.log")
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn call(&self, method: &str, message: &Message) -> Result<Vec<u8>, String> {
        grpc::call(self.node, SOCKET, &format!("runtime.v1.RuntimeService/{method}"), message)
    }

    /// Checks that runtime and network are ready. With version 1.1.0 this calls the plugins' STATUS.
    ///
    /// # Errors
    /// The first condition that is not met, with its message; or the call failed.
    pub fn is_ready(&self) -> Result<(), String> {
        let reply = self.call("Status", &Message::default())?;
        let conditions = all(at(&reply, &[1]), 1);
        let unmet = conditions.iter().find(|condition| number(condition, 2) == 0);
        match unmet {
            None if conditions.is_empty() => Err("it names no condition".into()),
            None => Ok(()),
            Some(condition) => Err(format!("{}: {}", text(at(condition, &[1])), text(at(condition, &[4])))),
        }
    }

    /// Its own version.
    pub fn version(&self) -> String {
        text(at(&self.call("Version", &Message::default()).unwrap(), &[3]))
    }

    /// Calls `RunPodSandbox` and returns the sandbox with its addresses.
    ///
    /// # Errors
    /// The message of the call that containerd refused or did not answer.
    pub fn run(&self, pod: &PodSandbox) -> Result<Sandbox, String> {
        let config = self.config(pod);
        let reply = self.call("RunPodSandbox", &Message::default().message(1, &config))?;
        let id = text(at(&reply, &[1]));
        let (_, addresses) = self.status(&id)?;
        Ok(Sandbox { netns: self.netns(&id)?, id, addresses, config })
    }

    fn config(&self, pod: &PodSandbox) -> Message {
        let PodSandbox { name, host_port } = pod;
        let uid = format!("{name}-{host_port}");
        let logs = self.node.scratch().join("logs");
        let metadata = Message::default().text(1, name).text(2, &uid).text(3, "cnikit");
        let port = Message::default().number(2, 80).number(3, u64::from(*host_port));
        let linux = Message::default().text(1, &self.node.cgroup());
        let config = Message::default().message(1, &metadata).text(2, name).text(3, &logs.display().to_string());
        let config = if *host_port == 0 { config } else { config.message(5, &port) };
        config.message(8, &linux)
    }

    /// Whether a pod is ready, and its addresses.
    ///
    /// # Errors
    /// The message of the call that containerd refused or did not answer.
    pub fn status(&self, id: &str) -> Result<(bool, Vec<String>), String> {
        let reply = self.call("PodSandboxStatus", &Message::default().text(1, id))?;
        let status = at(&reply, &[1]);
        let network = at(&reply, &[1, 5]);
        let more = all(network, 2).into_iter().map(|ip| at(ip, &[1]));
        let addresses = [at(network, &[1])].into_iter().chain(more).map(text).filter(|address| !address.is_empty());
        Ok((number(status, 3) == 0, addresses.collect()))
    }

    fn netns(&self, id: &str) -> Result<String, String> {
        let reply = self.call("PodSandboxStatus", &Message::default().text(1, id).number(2, 1))?;
        let info: Value = serde_json::from_slice(at(&reply, &[2, 2])).map_err(|error| error.to_string())?;
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().into_iter().flatten();
        let network = namespaces.into_iter().find(|namespace| namespace["type"] == "network");
        let path = network.and_then(|namespace| namespace["path"].as_str());
        path.map(str::to_owned).ok_or_else(|| format!("{id} has no network namespace: {info}"))
    }

    /// Creates and starts a container in a pod; returns its id.
    ///
    /// # Errors
    /// The message of the call that containerd refused or did not answer.
    pub fn container(&self, pod: &Sandbox, command: &[&str]) -> Result<String, String> {
        let image = Message::default().text(1, IMAGE);
        let container = Message::default().message(1, &Message::default().text(1, "one")).message(2, &image);
        let container = command.iter().fold(container, |container, word| container.text(3, word));
        let container = container.text(11, "one.log").message(15, &Message::default());
        let request = Message::default().text(1, &pod.id).message(2, &container).message(3, &pod.config);
        let id = text(at(&self.call("CreateContainer", &request)?, &[1]));
        self.call("StartContainer", &Message::default().text(1, &id))?;
        Ok(id)
    }

    /// Runs a command in a container; returns whether it succeeded, and its stdout and stderr.
    ///
    /// # Errors
    /// The message of the call that containerd refused or did not answer. A command that fails is not an error.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<(bool, String), String> {
        let request = command.iter().fold(Message::default().text(1, container), |request, word| request.text(2, word));
        let reply = self.call("ExecSync", &request.number(3, 20))?;
        Ok((number(&reply, 3) == 0, text(at(&reply, &[1])) + &text(at(&reply, &[2]))))
    }

    /// Calls `StopPodSandbox`.
    ///
    /// # Errors
    /// The message of the call that containerd refused or did not answer.
    pub fn stop(&self, id: &str) -> Result<(), String> {
        self.call("StopPodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// Calls `RemovePodSandbox`.
    ///
    /// # Errors
    /// The message of the call that containerd refused or did not answer.
    pub fn remove(&self, id: &str) -> Result<(), String> {
        self.call("RemovePodSandbox", &Message::default().text(1, id)).map(drop)
    }
}
