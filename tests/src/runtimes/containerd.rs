//! containerd on a node, with the CRI requests of a kubelet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::grpc::{self, Message, all, at, number, text};
use super::{IMAGE, Node, file, image};
use crate::copy_program;

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
pub struct Containerd {
    node: Arc<Node>,
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

/// A pod that the kubelet runs.
#[derive(Clone, Debug)]
pub struct ReadyPod {
    /// Its name.
    pub name: String,
    /// Its container id, for CNI too.
    pub id: String,
    /// Its first process, in the node's numbers.
    pub pid: String,
    /// The path of its network namespace on the node.
    pub netns: String,
}

impl Containerd {
    /// Starts it with the page's configuration and imports the image that everything runs from. Waits until it accepts pods.
    pub fn start(node: &Arc<Node>, edition: Edition) -> Containerd {
        let containerd = Containerd::start_bare(node, edition);
        containerd.wait_until_ready();
        containerd
    }

    /// The same, on a node that may have no network yet.
    pub fn start_bare(node: &Arc<Node>, edition: Edition) -> Containerd {
        let configuration = file("/etc/containerd/config.toml") + &BESIDE.replace("IMAGE", IMAGE);
        node.write("/etc/containerd/config.toml", &configuration);
        let archive = node.scratch().join("image.tar");
        image::archive(node.rootfs().as_ref(), IMAGE, &archive);
        let mut containerd = Containerd { node: Arc::clone(node), edition, pid: String::new() };
        containerd.start_process();
        containerd.wait_until(&["RuntimeReady"]);
        containerd.import(&archive);
        containerd
    }

    /// Imports the archive of an image.
    pub fn import(&self, archive: &Path) {
        let ctr = self.edition.bin().join("ctr");
        self.node.sh(&format!("{} -n k8s.io images import --no-unpack {}", ctr.display(), archive.display()));
    }

    /// Imports an image with this name: busybox, and one more program of the node in its `/bin`.
    pub fn import_with_program(&self, name: &str, program: &Path) {
        let rootfs = self.node.scratch().join(name.replace('/', "-"));
        image::rootfs(&rootfs);
        copy_program(program, &rootfs.join("bin").join(program.file_name().unwrap()));
        let archive = rootfs.with_extension("tar");
        image::archive(&rootfs, name, &archive);
        self.import(&archive);
    }

    /// Kills it, and waits until it is gone. Pods go on running.
    pub fn kill(&self) {
        self.node.kill(&self.pid);
    }

    /// Starts it, and waits until it accepts pods.
    pub fn start_again(&mut self) {
        self.start_process();
        self.wait_until_ready();
    }

    /// Ends it if it runs, starts it, and waits until it accepts pods.
    pub fn restart(&mut self) {
        if self.node.try_sh(&format!("test -e /proc/{}", self.pid)).0 {
            self.kill();
        }
        self.start_again();
    }

    fn start_process(&mut self) {
        let line = format!("PATH={}:$PATH containerd", self.edition.bin().display());
        self.pid = self.node.daemon(&line, &self.log_file());
    }

    /// Waits until it accepts pods.
    pub fn wait_until_ready(&self) {
        self.wait_until(&["RuntimeReady", "NetworkReady"]);
    }

    fn wait_until(&self, conditions: &[&str]) {
        let begin = Instant::now();
        while let Err(unready) = self.check(conditions) {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "containerd is not ready: {unready}\n{}",
                self.log_tail()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn log_file(&self) -> PathBuf {
        self.node.scratch().join("containerd.log")
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn call(&self, method: &str, message: &Message) -> Result<Vec<u8>, String> {
        grpc::call(&self.node, SOCKET, &format!("runtime.v1.RuntimeService/{method}"), message)
    }

    /// Checks that runtime and network are ready. With version 1.1.0 this calls the plugins' STATUS.
    ///
    /// # Errors
    /// The first condition that is not met, with its message; or the call failed.
    pub fn is_ready(&self) -> Result<(), String> {
        self.check(&["RuntimeReady", "NetworkReady"])
    }

    fn check(&self, wanted: &[&str]) -> Result<(), String> {
        let reply = self.call("Status", &Message::default())?;
        let conditions = all(at(&reply, &[1]), 1);
        for name in wanted {
            let condition = conditions.iter().find(|condition| at(condition, &[1]) == name.as_bytes());
            let condition = condition.ok_or_else(|| format!("it does not report {name}"))?;
            if number(condition, 2) == 0 {
                return Err(format!("{name}: {}", text(at(condition, &[4]))));
            }
        }
        Ok(())
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
        let info = self.info(id)?;
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().into_iter().flatten();
        let network = namespaces.into_iter().find(|namespace| namespace["type"] == "network");
        let path = network.and_then(|namespace| namespace["path"].as_str());
        path.map(str::to_owned).ok_or_else(|| format!("{id} has no network namespace: {info}"))
    }

    /// What containerd reports of a pod besides CRI's fields.
    fn info(&self, id: &str) -> Result<Value, String> {
        let reply = self.call("PodSandboxStatus", &Message::default().text(1, id).number(2, 1))?;
        serde_json::from_slice(at(&reply, &[2, 2])).map_err(|error| error.to_string())
    }

    /// The pods that are ready, by the name that the kubelet gave them.
    pub fn ready(&self) -> Vec<ReadyPod> {
        let reply = self.call("ListPodSandbox", &Message::default()).unwrap();
        let pods = all(&reply, 1).into_iter().filter(|pod| number(pod, 3) == 0);
        pods.map(|pod| self.ready_pod(&text(at(pod, &[1])), &text(at(pod, &[2, 1]))).unwrap()).collect()
    }

    fn ready_pod(&self, id: &str, name: &str) -> Result<ReadyPod, String> {
        let pid = self.info(id)?["pid"].to_string();
        Ok(ReadyPod { name: name.into(), id: id.into(), pid, netns: self.netns(id)? })
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
