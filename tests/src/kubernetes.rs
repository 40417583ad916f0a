//! A Kubernetes cluster with one node: etcd, API server, scheduler and controller manager, and a kubelet that asks containerd.
//!
//! All of it runs in the namespaces of one [`Node`] and ends with it. The programs are those that `scripts/kubernetes` builds. This
//! release of the kubelet speaks to containerd 1.6 only, so networks have at most version 1.0.0.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cnikit_testkit::Container;
use serde_json::Value;

use crate::runtimes::{CONFLIST, Containerd, Edition, IMAGE, Maker, Node};

/// The name of the node.
pub const NODE: &str = "node1";

/// What the kubelet needs of a node besides what containerd needs: directories of its own, whose mounts pods see, and settings. It
/// writes settings of the whole kernel where they differ from what it wants; so over these there is a file that it may write.
/// There is no cloud: without the route the kubelet would wait for one to answer. Nothing serves cluster addresses, so the API
/// server has its own on the loopback.
const MORE: &str = r#"
mount -t tmpfs tmpfs /var/log
mkdir -p /var/lib/kubelet /var/lib/etcd /etc/manifests
chmod 0700 /var/lib/etcd
mount --bind /var/lib/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --make-rshared /run
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl/${setting%=*}
    mkdir -p "${file%/*}"
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
echo '127.0.0.1 localhost
192.0.2.10 node1' >/etc/hosts
ip route add prohibit 169.254.169.254
ip address add 10.96.0.1/32 dev lo
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
"#;

/// Who may ask the API server, and how kubectl and the others do it.
const TOKENS: &str = "secret,admin,admin,system:masters\n";
const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "https://127.0.0.1", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: secret}}]
contexts: [{name: here, context: {cluster: here, user: admin}}]
current-context: here
"#;

/// The kubelet evicts nothing, because the disk is the machine's; it looks at its files and reports often.
const KUBELET: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupsPerQOS: true
cgroupRoot: CGROUP
enforceNodeAllocatable: [pods]
failSwapOn: false
clusterDomain: cluster.local
resolvConf: ""
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
syncFrequency: 2s
fileCheckFrequency: 2s
nodeStatusUpdateFrequency: 2s
staticPodPath: /etc/manifests
"#;

/// Ends the processes of all pods, and removes what the kernel and /run had.
const REBOOT: &str = r#"
processes() { pgrep containerd-shim; find /sys/fs/cgroup -path '*CGROUP/*' -name cgroup.procs -exec cat {} +; }
while list=$(processes | sort -u) && test -n "$list"; do kill -KILL $list 2>/dev/null || sleep 0.05; done
awk '$2 ~ "^/run/(containerd|netns/)" { print $2 }' /proc/mounts | sort -r | xargs -r umount --lazy
rm -rf /run/containerd /run/netns/* /run/cnikit
find /sys/fs/cgroup -depth -path '*CGROUP/*' -type d -exec rmdir {} +
ip link delete cni0
nft flush ruleset
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
"#;

/// The controllers that the tests use.
const CONTROLLERS: &str = "daemonset,garbagecollector,job,namespace,nodeipam,nodelifecycle,podgc,root-ca-cert-publisher,serviceaccount,serviceaccount-token";

/// The longest time for something that a busy machine needs seconds for.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A running cluster. It ends with this value.
pub struct Cluster {
    /// Its node.
    pub node: Arc<Node>,
    /// The runtime of the node.
    pub cri: Containerd,
    /// Another machine of the node's network, 192.0.2.1.
    pub outside: Container,
    kubelet: String,
}

/// The address of the node.
pub const ADDRESS: &str = "192.0.2.10";

impl Cluster {
    /// Starts it with our plugins and a network list, and waits until the node is ready for pods.
    pub fn start(list: &Value) -> Cluster {
        let node = Node::with(Maker::Ours, MORE);
        node.write(CONFLIST, &list.to_string());
        let cluster = Cluster::on(node);
        cluster.wait_until_node_is_ready();
        cluster
    }

    /// Starts it with a node that has neither plugins nor a network list.
    pub fn bare() -> Cluster {
        Cluster::on(Node::bare(MORE))
    }

    fn on(node: Node) -> Cluster {
        let node = Arc::new(node);
        let outside = node.host.container();
        connect(&node, &outside);
        start_api_server(&node);
        make_cgroups(&node);
        let cri = Containerd::start_bare(&node, Edition::Packaged);
        let mut cluster = Cluster { node, cri, outside, kubelet: String::new() };
        cluster.wait_until("the API server answers", || cluster.node.try_sh(API_READY).0);
        start_controllers(&cluster.node);
        cluster.start_kubelet();
        let account = "kubectl get node node1 && kubectl get serviceaccount default";
        cluster.wait_until("there are a node and an account", || cluster.try_kubectl_line(account).0);
        cluster
    }

    /// Waits until pods can start on the node.
    pub fn wait_until_node_is_ready(&self) {
        self.kubectl_line(&format!("kubectl wait --for=condition=Ready --timeout=100s node/{NODE}"));
    }

    /// Starts the kubelet, the first time or again.
    pub fn start_kubelet(&mut self) {
        let config = KUBELET.replace("CGROUP", &self.node.cgroup());
        self.node.write("/var/lib/kubelet/config.yaml", &config);
        // The variables keep it from looking for a cloud's credentials.
        let line = format!(
            "AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none {} --config=/var/lib/kubelet/config.yaml \
             --kubeconfig={} --container-runtime=remote \
             --container-runtime-endpoint=unix:///run/containerd/containerd.sock --hostname-override={NODE} \
             --node-ip={ADDRESS} --pod-infra-container-image={IMAGE} --root-dir=/var/lib/kubelet --v=2",
            program("kubelet"),
            kubeconfig(&self.node),
        );
        self.kubelet = self.node.daemon(&line, &log(&self.node, "kubelet"));
    }

    /// Kills the kubelet, and waits until it is gone. Pods go on running.
    pub fn kill_kubelet(&self) {
        self.node.kill(&self.kubelet);
    }

    /// What a reboot of the node does to it: all of its programs end, and what is not on the disk is gone. The API server and the
    /// controllers are those of another machine, so to speak. Then containerd and the kubelet start.
    pub fn reboot(&mut self) {
        self.kill_kubelet();
        self.cri.kill();
        self.node.sh(&REBOOT.replace("CGROUP", &self.node.cgroup()));
        self.cri.start_again();
        self.start_kubelet();
    }

    /// Runs a shell line with kubectl on the node; it has to succeed. Returns its standard output.
    pub fn kubectl_line(&self, line: &str) -> String {
        let (succeeded, output) = self.try_kubectl_line(line);
        assert!(succeeded, "{line}: {output}\n{}", self.report());
        output
    }

    /// Runs a shell line with kubectl on the node. Returns whether it succeeded, and its output.
    pub fn try_kubectl_line(&self, line: &str) -> (bool, String) {
        let kubectl = format!(
            "kubectl() {{ {} --kubeconfig={} --cache-dir={} \"$@\"; }}",
            program("kubectl"),
            kubeconfig(&self.node),
            self.node.scratch().join("kubectl").display()
        );
        self.node.try_sh(&format!("{kubectl}; {line}"))
    }

    /// Creates objects, or changes them.
    pub fn apply(&self, object: &Value) {
        let file = self.node.scratch().join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.kubectl_line(&format!("kubectl apply -f {}", file.display()));
    }

    /// Waits for something that is observed repeatedly.
    pub fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < TIMEOUT, "in vain was waited until {what}\n{}", self.report());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What the parts of the cluster report, for a test that fails.
    fn report(&self) -> String {
        let (_, mut report) = self.try_kubectl_line("kubectl get nodes,pods -A -o wide; kubectl get events -A");
        for name in ["apiserver", "controllers", "kubelet"] {
            let text = std::fs::read_to_string(log(&self.node, name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            write!(report, "\n{name}:\n{end}\n").unwrap();
        }
        report + "containerd:\n" + &self.cri.log_tail()
    }
}

/// Joins the node and another machine by a cable.
fn connect(node: &Node, outside: &Container) {
    node.host.sh(&format!("ip link add node0 type veth peer name eth0 netns {}", outside.path()));
    node.host.sh(&format!("ip address add {ADDRESS}/24 dev node0 && ip link set node0 up"));
    node.host.sh("ip route add default via 192.0.2.1");
    outside.sh("ip address add 192.0.2.1/24 dev eth0 && ip link set eth0 up && ip link set lo up");
}

const API_READY: &str = "curl -sSfk --max-time 5 -H 'Authorization: Bearer secret' https://127.0.0.1/readyz";

fn start_api_server(node: &Node) {
    node.write("/etc/kubernetes/tokens", TOKENS);
    std::fs::write(kubeconfig(node), KUBECONFIG).unwrap();
    node.sh("openssl genrsa -out /etc/kubernetes/accounts.key 2048 2>/dev/null");
    let client = "http://127.0.0.1:2379";
    let peer = "http://127.0.0.1:2380";
    let etcd = format!(
        "{} --data-dir /var/lib/etcd --listen-client-urls {client} --advertise-client-urls {client} \
         --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster default={peer}",
        program("etcd"),
    );
    node.daemon(&etcd, &log(node, "etcd"));
    let server = format!(
        "{} --etcd-servers={client} --cert-dir=/var/lib/apiserver --bind-address=0.0.0.0 --secure-port=443 \
         --advertise-address={ADDRESS} --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true \
         --token-auth-file=/etc/kubernetes/tokens --authorization-mode=RBAC --anonymous-auth=false \
         --service-account-issuer=https://kubernetes.default.svc \
         --service-account-key-file=/etc/kubernetes/accounts.key \
         --service-account-signing-key-file=/etc/kubernetes/accounts.key \
         --kubelet-preferred-address-types=InternalIP",
        program("kube-apiserver"),
    );
    node.daemon(&server, &log(node, "apiserver"));
}

fn start_controllers(node: &Node) {
    let kubeconfig = kubeconfig(node);
    let scheduler = format!("{} --kubeconfig={kubeconfig} --leader-elect=false", program("kube-scheduler"));
    node.daemon(&scheduler, &log(node, "scheduler"));
    let controllers = format!(
        "{} --kubeconfig={kubeconfig} --leader-elect=false --controllers={CONTROLLERS} \
         --service-account-private-key-file=/etc/kubernetes/accounts.key --root-ca-file=/var/lib/apiserver/apiserver.crt \
         --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16",
        program("kube-controller-manager"),
    );
    node.daemon(&controllers, &log(node, "controllers"));
}

/// Makes the control groups below which the kubelet makes those of the pods. Those of the first version need to be told which
/// processors there are.
fn make_cgroups(node: &Node) {
    let name = node.cgroup();
    node.sh(&format!(
        "for below in /sys/fs/cgroup/*/; do mkdir -p $below/{name}; done
         for file in cpus mems; do
             file=/sys/fs/cgroup/cpuset/cpuset.$file
             test ! -e $file || cat $file >${{file%/*}}/{name}/${{file##*/}}
         done"
    ));
}

/// The path of a program of Kubernetes.
pub fn program(name: &str) -> String {
    let dir = cnikit_testkit::cache().join("kubernetes");
    assert!(dir.join(".complete").exists(), "Kubernetes is not built: `scripts/kubernetes` does that");
    dir.join(name).display().to_string()
}

fn kubeconfig(node: &Node) -> String {
    node.scratch().join("kubeconfig").display().to_string()
}

fn log(node: &Node, name: &str) -> PathBuf {
    node.scratch().join(format!("{name}.log"))
}
