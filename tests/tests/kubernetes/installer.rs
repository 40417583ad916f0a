//! The manifests of `plugins/all/kubernetes`: on a node that has neither plugins nor a network list, and on nodes in use, which
//! have other plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cnikit_testkit::cache;
use cnikit_tests::kubernetes::{Cluster, NODE, program};
use cnikit_tests::runtimes::{CONFLIST, file_in, release_image};
use cnikit_tests::switched::Until;
use cnikit_tests::{NAMES, earlier, references, released};
use serde_json::{Value, json};

use crate::stage::{Backend, manifests, pod};

/// Where the page puts the images.
const REGISTRY: &str = "registry.example";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The digests of all files that are installed, without those that come and go.
const DIGESTS: &str = "cd / && find opt/cni etc/cni -type f ! -name '.cnikit-lock' ! -name '.cnikit-tmp*' \
     -exec sha256sum {} + | sort -k 2";

/// A cluster with the page's directories.
struct Installer {
    cluster: Cluster,
    /// The directory of the operator, with the files of the page and a copy of the manifests beside it.
    mine: PathBuf,
}

/// A scene on a cluster of its own.
pub(crate) type Scene = (&'static str, fn());

pub(crate) const ALL: [Scene; 2] =
    [("life_of_a_node", life_of_a_node), ("a_node_in_use_from_upstream_and_back", from_upstream_and_back)];
/// These need the programs of an earlier release.
pub(crate) const FROM_EARLIER: [Scene; 1] =
    [("a_node_in_use_from_the_earlier_release_and_back", from_the_earlier_release_and_back)];

/// The node gets plugins and list, loses files, gets another list, is upgraded while pods start, and loses all again.
fn life_of_a_node() {
    let installer = Installer::new();
    installer.is_installed();
    installer.files_are_lost();
    installer.its_process_and_its_pod_end();
    installer.another_directory();
    installer.another_list();
    installer.upgraded_while_pods_start();
    installer.uninstalled();
}

/// Upstream's newest release goes to this one and back, by the `DaemonSet` and the Job, while twenty pods run.
fn from_upstream_and_back() {
    let [_, newest] = references();
    let line = format!("mkdir -p /opt/cni/bin && cp {}/* /opt/cni/bin", newest.display());
    let installer = Installer::on_a_node_in_use(&line, &Backend::Default.list());
    let before = installer.cluster.node.sh(PLUGINS);
    let pings = installer.pings();
    installer.switch_to_this_release();
    installer.while_pods_start("the way back", || {
        installer.kubectl("-n kube-system delete --timeout=100s daemonset cnikit");
        let job = installer.kustomized(&installer.mine.with_file_name("kubernetes/uninstall"));
        installer.run_job(&job);
    });
    assert_eq!(installer.cluster.node.sh(PLUGINS), before, "upstream's plugins are not there again");
    installer.end_pods(&pings);
}

/// The release b2fe807, whose names are hard links, goes to this one and back.
fn from_the_earlier_release_and_back() {
    let line = format!(
        "mkdir -p /opt/cni/bin && cd /opt/cni/bin && cp {}/cni-plugins . && for name in $(./cni-plugins --list); do ln cni-plugins $name; done",
        earlier().display()
    );
    let mut list = Backend::Default.list();
    // It had no such plugin.
    list["plugins"].as_array_mut().unwrap().retain(|plugin| plugin["type"] != "bandwidth");
    let installer = Installer::on_a_node_in_use(&line, &list);
    let pings = installer.pings();
    installer.switch_to_this_release();
    installer.while_pods_start("the way back", || {
        installer.kubectl("-n kube-system delete --timeout=100s daemonset cnikit");
        installer.run_job(&installer.job_that_installs(&earlier()));
    });
    let digests = installer
        .cluster
        .node
        .sh(&format!("sha256sum </opt/cni/bin/cni-plugins; sha256sum <{}/cni-plugins", earlier().display()));
    let [placed, wanted] = digests.lines().collect::<Vec<_>>()[..] else { panic!("{digests}") };
    assert_eq!(placed, wanted);
    installer.end_pods(&pings);
}

/// The digests of the plugins, without hidden files.
const PLUGINS: &str = "sha256sum /opt/cni/bin/*";
/// How many pods run on a node in use.
const RUNNING: usize = 20;

/// One object of many.
fn list_of(objects: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": objects})
}

/// A node with twenty running pods.
impl Installer {
    /// A shell line places the plugins.
    fn on_a_node_in_use(place: &str, list: &Value) -> Installer {
        let installer = Installer::new();
        let cluster = &installer.cluster;
        cluster.node.sh(place);
        cluster.node.write(CONFLIST, &list.to_string());
        cluster.wait_until_node_is_ready();
        let pods: Vec<Value> = running().iter().map(|name| pod(name, 0)).collect();
        cluster.apply(&list_of(&pods));
        cluster.wait_until("all pods run", || {
            let phases = installer.kubectl("get pods -o jsonpath='{.items[*].status.phase}'");
            phases.matches("Running").count() == RUNNING
        });
        installer
    }

    /// Each pod pings the machine outside, through the node. The file of each has what ping prints.
    fn pings(&self) -> Vec<(PathBuf, String)> {
        let pods = self.cluster.cri.ready();
        let mut pings = Vec::new();
        for name in running() {
            let netns = &pods.iter().find(|pod| pod.name == name).unwrap().netns;
            let file = self.cluster.node.scratch().join(format!("ping-{name}"));
            let line = format!("nsenter --net={netns} ping -n -i 0.2 192.0.2.1");
            pings.push((file.clone(), self.cluster.node.daemon(&line, &file)));
        }
        pings
    }

    /// Every packet was answered. Then all pods end, and nothing is reserved for them.
    fn end_pods(&self, pings: &[(PathBuf, String)]) {
        for (file, pid) in pings {
            self.cluster.node.sh(&format!("kill -INT {pid}"));
            let summary = || {
                fs::read_to_string(file)
                    .unwrap()
                    .lines()
                    .find(|line| line.contains("packets transmitted"))
                    .map(str::to_owned)
            };
            self.cluster.wait_until("ping has ended", || summary().is_some());
            let line = summary().unwrap();
            let counts: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            // The last one may have been on its way.
            assert!(counts.len() >= 2 && counts[0] > 50 && counts[0] - counts[1] <= 1, "{}: {line}", file.display());
        }
        self.kubectl(&format!("delete --timeout=100s pod {}", running().join(" ")));
        let reserved = "find /var/lib/cni/networks -type f -name '10.*' -o -type f -name 'fd*'";
        self.cluster.wait_until("no address is reserved", || self.cluster.node.sh(reserved).is_empty());
    }

    fn switch_to_this_release(&self) {
        self.while_pods_start("the way to this release", || {
            self.apply(
                &self
                    .kustomized(&self.mine.with_file_name("kubernetes/install"))
                    .replace("localhost/", &format!("{REGISTRY}/")),
            );
            self.wait_until_rolled_out();
        });
        let launcher = fs::read(released().join("cni-launcher")).unwrap().len();
        for name in NAMES {
            let size = self.cluster.node.sh(&format!("stat -c %s /opt/cni/bin/{name}"));
            assert_eq!(size.trim(), launcher.to_string(), "{name}");
        }
    }

    /// The Job that uninstalls, with another command: it places the release in a directory of the node.
    fn job_that_installs(&self, from: &Path) -> String {
        let dir = self.mine.with_file_name("back");
        fs::create_dir(&dir).unwrap();
        let patch = json!([
            {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["install", "--root=/host", "--from=/earlier"]},
            {"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "earlier", "mountPath": "/earlier", "readOnly": true}},
            {"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "earlier", "hostPath": {"path": from}}},
        ]);
        fs::write(dir.join("patch.yaml"), patch.to_string()).unwrap();
        let kustomization =
            "resources: [../kubernetes/uninstall]\npatches: [{path: patch.yaml, target: {kind: Job}}]\n";
        fs::write(dir.join("kustomization.yaml"), kustomization).unwrap();
        self.kustomized(&dir)
    }

    fn run_job(&self, job: &str) {
        self.apply(&job.replace("NODE", NODE).replace("localhost/", &format!("{REGISTRY}/")));
        let job = format!("job/cnikit-uninstall-{NODE}");
        let line = format!("-n kube-system wait --for=condition=Complete --timeout=100s {job}");
        let (is_complete, printed) = self.cluster.try_kubectl_line(&format!("kubectl {line}"));
        assert!(is_complete, "{printed}: {}", self.kubectl(&format!("-n kube-system logs {job}")));
    }
}

/// The names of the pods of a node in use.
fn running() -> Vec<String> {
    (0..RUNNING).map(|number| format!("running-{number}")).collect()
}

impl Installer {
    fn new() -> Installer {
        let cluster = Cluster::bare();
        let scratch = cluster.node.scratch().to_owned();
        cluster.node.sh(&format!("cp -r {} {}/kubernetes", manifests().display(), scratch.display()));
        let mine = scratch.join("mine");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("kustomization.yaml"), file_in("docs/kubernetes.md", "mine/kustomization.yaml")).unwrap();
        fs::copy(scratch.join("kubernetes/network/10-pods.conflist"), mine.join("10-pods.conflist")).unwrap();
        let installer = Installer { cluster, mine };
        installer.import_release(VERSION, "");
        let kubectl = PathBuf::from(program("kubectl"));
        installer.cluster.cri.import_with_program(&format!("{REGISTRY}/kubectl:1.20"), &kubectl);
        installer
    }

    /// Imports the image of a release whose files have these bytes more at their end.
    fn import_release(&self, tag: &str, more: &str) {
        let image = release_image(self.cluster.node.scratch(), &format!("{REGISTRY}/cnikit:{tag}"), more);
        self.cluster.cri.import(&image);
    }

    fn kubectl(&self, line: &str) -> String {
        self.cluster.kubectl_line(&format!("kubectl {line}"))
    }

    /// The page's patch mounts one more directory, and leaves the containers in their order.
    fn another_directory(&self) {
        let dir = self.mine.with_file_name("usr");
        fs::create_dir(&dir).unwrap();
        let patch = "resources: [../mine]\npatches: [{path: usr-lib-cni.yaml}]\n";
        fs::write(dir.join("kustomization.yaml"), patch).unwrap();
        fs::write(dir.join("usr-lib-cni.yaml"), file_in("docs/kubernetes.md", "mine/usr-lib-cni.yaml")).unwrap();
        let made = self.kustomized(&dir);
        assert_eq!(made.matches("mountPath: /host/usr/lib/cni\n").count(), 2, "{made}");
        let [ranges, install] =
            ["ranges", "install"].map(|name| made.find(&format!("\n        name: {name}\n")).unwrap());
        assert!(ranges < install, "{made}");
        fs::write(dir.join("made.yaml"), made).unwrap();
        self.kubectl(&format!("apply --dry-run=server -f {}", dir.join("made.yaml").display()));
    }

    /// What kustomize makes of a directory. That of the cluster's own kubectl is too old.
    fn kustomized(&self, dir: &Path) -> String {
        let kubectl = cache().join("kubectl/usr/bin/kubectl");
        self.cluster.node.sh(&format!("{} kustomize {}", kubectl.display(), dir.display()))
    }

    fn apply(&self, manifests: &str) {
        let file = self.mine.join("applied.yaml");
        fs::write(&file, manifests).unwrap();
        self.kubectl(&format!("apply -f {}", file.display()));
    }

    fn wait_until_rolled_out(&self) {
        self.kubectl("-n kube-system rollout status --timeout=100s daemonset/cnikit");
    }

    /// The installed files with their digests.
    fn installed(&self) -> String {
        let files = self.cluster.node.sh(DIGESTS);
        for name in ["opt/cni/bin/bridge", "opt/cni/bin/cni-plugins", "etc/cni/net.d/10-pods.conflist"] {
            assert!(files.contains(name), "{name} is not among {files}");
        }
        files
    }

    /// The network list on the node.
    fn list(&self) -> Value {
        serde_json::from_str(&self.cluster.node.sh("cat /etc/cni/net.d/10-pods.conflist")).unwrap()
    }

    fn run(&self, name: &str) {
        self.cluster.apply(&pod(name, 0));
        self.kubectl(&format!("wait --for=condition=Ready --timeout=100s pod/{name}"));
    }

    /// A node without a network becomes ready, and its pods have addresses of its own range.
    fn is_installed(&self) {
        let (is_ready, nodes) =
            self.cluster.try_kubectl_line(&format!("kubectl wait --for=condition=Ready --timeout=1s node/{NODE}"));
        assert!(!is_ready, "a node without a network is ready: {nodes}");
        self.apply(&self.kustomized(&self.mine));
        self.wait_until_rolled_out();
        self.cluster.wait_until_node_is_ready();
        let range = self.kubectl(&format!("get node {NODE} -o jsonpath='{{.spec.podCIDR}}'"));
        assert!(range.starts_with("10.244.") && range.ends_with(".0/24"), "{range}");
        assert_eq!(self.list()["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], range.as_str());
        self.run("one");
        let address = self.kubectl("get pod one -o jsonpath='{.status.podIP}'");
        assert_eq!(address.rsplit_once('.').unwrap().0, range.rsplit_once('.').unwrap().0);
        self.has_no_privilege();
    }

    /// The process that stays has no capability, cannot write but in two directories of the node, and has no token.
    fn has_no_privilege(&self) {
        let node = &self.cluster.node;
        let pid = self.pid();
        let status = node.sh(&format!("cat /proc/{pid}/status"));
        for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        let mounts = node.sh(&format!("cat /proc/{pid}/mounts"));
        assert!(!mounts.contains("serviceaccount"), "{mounts}");
        let writable: Vec<&str> = mounts.lines().filter(|line| line.contains(" rw,")).collect();
        let of_node =
            writable.iter().filter_map(|line| line.split(' ').nth(1)).filter(|path| path.starts_with("/host"));
        assert!(of_node.clone().all(|path| path.starts_with("/host/etc") || path == "/host/opt"), "{mounts}");
        assert!(of_node.count() >= 2, "{mounts}");
    }

    fn pid(&self) -> String {
        self.cluster.node.sh("pgrep -f '^/cni-plugins watch'").trim().to_owned()
    }

    /// Another program removes or truncates files and directories, as an upgrade of a package did.
    fn files_are_lost(&self) {
        let node = &self.cluster.node;
        let installed = self.installed();
        for line in [
            "rm -rf /opt/cni",
            "rm /etc/cni/net.d/*",
            ": >/opt/cni/bin/portmap",
            "rm -rf /opt/cni/bin; rm /etc/cni/net.d/*",
        ] {
            node.sh(line);
            let again = || node.try_sh(DIGESTS).1 == installed;
            self.cluster.wait_until(&format!("all is there again after {line:?}"), again);
        }
        self.wait_until_rolled_out();
        self.run("two");
        self.kubectl("delete --timeout=100s pod two");
    }

    /// Neither changes anything.
    fn its_process_and_its_pod_end(&self) {
        let installed = self.installed();
        self.cluster.node.kill(&self.pid());
        assert_eq!(self.installed(), installed, "after the end of its process");
        self.kubectl("-n kube-system delete --timeout=100s pod --selector=app.kubernetes.io/name=cnikit");
        assert_eq!(self.installed(), installed, "after the end of its pod");
        self.wait_until_rolled_out();
        assert_eq!(self.installed(), installed, "after its next pod");
    }

    /// The operator changes the network list.
    fn another_list(&self) {
        let mut list: Value = serde_json::from_slice(&fs::read(self.mine.join("10-pods.conflist")).unwrap()).unwrap();
        list["plugins"][0]["mtu"] = 1400.into();
        fs::write(self.mine.join("10-pods.conflist"), list.to_string()).unwrap();
        self.apply(&self.kustomized(&self.mine));
        self.wait_until_rolled_out();
        assert_eq!(self.list()["plugins"][0]["mtu"], 1400);
        let takes_effect = || {
            self.run("two");
            let mtu = self.kubectl("exec two -- ip link show eth0");
            self.kubectl("delete --timeout=100s pod two");
            mtu.contains("mtu 1400")
        };
        self.cluster.wait_until("containerd uses the list", takes_effect);
    }

    /// Pods start and end all the time: none is refused while each file is replaced.
    fn upgraded_while_pods_start(&self) {
        let next = format!("{VERSION}-next");
        self.import_release(&next, "the next release");
        let manifests = self.kustomized(&self.mine).replace(&format!("cnikit:{VERSION}"), &format!("cnikit:{next}"));
        self.while_pods_start("the upgrade", || {
            self.apply(&manifests);
            self.wait_until_rolled_out();
        });
        for name in ["cni-plugins", "bridge"] {
            let end = self.cluster.node.sh(&format!("tail -c 16 /opt/cni/bin/{name}"));
            assert_eq!(end, "the next release", "{name} has not been upgraded");
        }
    }

    /// Runs something while pods start and end, three at a time. No ADD and no DEL fails.
    fn while_pods_start(&self, what: &str, work: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let until = Until(&is_over);
            let crowd = scope.spawn(|| {
                let mut started = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let names = ["crowd-0", "crowd-1", "crowd-2"];
                    self.cluster.apply(&list_of(&names.map(|name| pod(name, 0))));
                    self.kubectl(&format!("wait --for=condition=Ready --timeout=100s pod {}", names.join(" ")));
                    self.kubectl(&format!("delete --timeout=100s pod {}", names.join(" ")));
                    started += names.len();
                }
                started
            });
            work();
            drop(until);
            println!("{} pods started during {what}", crowd.join().unwrap());
        });
        for reason in ["FailedCreatePodSandBox", "FailedKillPod"] {
            let refused = self.kubectl(&format!("get events --field-selector=reason={reason}"));
            assert!(!refused.contains("pod/"), "{what}: {refused}");
        }
        let log = self.cluster.cri.log();
        let failed: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("failed to setup network") || line.contains("failed to destroy network"))
            .collect();
        assert_eq!(failed, [] as [&str; 0], "{what}");
    }

    /// A running pod needs the plugins for its DEL: then the node keeps them, and the Job says why.
    fn uninstalled(&self) {
        self.kubectl("-n kube-system delete --timeout=100s daemonset cnikit");
        let installed = self.installed();
        let job = self.kustomized(&self.mine.with_file_name("kubernetes/uninstall"));
        let job = job.replace("NODE", NODE).replace("localhost/", &format!("{REGISTRY}/"));
        let name = format!("cnikit-uninstall-{NODE}");
        self.apply(&job);
        self.kubectl(&format!("-n kube-system wait --for=condition=Failed --timeout=100s job/{name}"));
        let printed = self.kubectl(&format!("-n kube-system logs job/{name}"));
        let one = &self.cluster.cri.ready().into_iter().find(|pod| pod.name == "one").unwrap().id;
        assert!(printed.contains(one), "{one} is not named: {printed}");
        assert_eq!(self.installed(), installed, "it was refused");

        self.kubectl("delete --timeout=100s pod one");
        self.kubectl(&format!("-n kube-system delete --timeout=100s job {name}"));
        self.apply(&job);
        self.kubectl(&format!("-n kube-system wait --for=condition=Complete --timeout=100s job/{name}"));
        assert_eq!(self.cluster.node.sh("find /opt/cni/bin /etc/cni/net.d -type f"), "", "left behind");
        self.kubectl(&format!("wait --for=condition=Ready=False --timeout=100s node/{NODE}"));
    }
}
