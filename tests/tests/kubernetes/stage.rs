//! A cluster on which scenes are played one after the other, and the leftovers of each.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cnikit_testkit::HostSnapshot;
use cnikit_tests::kubernetes::{ADDRESS, Cluster};
use cnikit_tests::runtimes::{HINTS, IMAGE, ReadyPod, file_in, with_backend};
use serde_json::{Value, json};

use crate::scenes::Scene;

/// The backend of rules of the network list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    /// The plugins choose.
    Default,
    Nftables,
}

impl Backend {
    pub(crate) const ALL: [Backend; 2] = [Backend::Default, Backend::Nftables];

    /// The network list of the page.
    pub(crate) fn list(self) -> Value {
        let list = file_in("docs/kubernetes.md", "/etc/cni/net.d/10-pods.conflist");
        let list = serde_json::from_str(&list).unwrap();
        match self {
            Backend::Default => list,
            Backend::Nftables => with_backend(list, "nftables"),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Default => "default",
            Backend::Nftables => "nftables",
        })
    }
}

/// The directory of kustomize's files.
pub(crate) fn manifests() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/all/kubernetes").into()
}

/// The cluster of all scenes, once there is one.
#[derive(Default)]
pub(crate) struct Shared(Mutex<Option<Stage>>);

impl Shared {
    /// Plays a scene, and looks for its leftovers. If it fails, the cluster ends.
    pub(crate) fn play(&self, backend: Backend, scene: &Scene) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = Instant::now();
        // The chains that the plugins have made for one backend stay, and would go with a reboot.
        let running = shared.take().filter(|stage| stage.backend == backend);
        let mut stage = running.unwrap_or_else(|| Stage::new(backend));
        let ready = Instant::now();
        (scene.play)(&mut stage);
        stage.assert_left_alone(scene.name);
        let (before, took) = (ready - begin, ready.elapsed());
        println!(
            "kubernetes, {backend}, {}: {:.1} s, after {:.1} s",
            scene.name,
            took.as_secs_f32(),
            before.as_secs_f32()
        );
        *shared = Some(stage);
    }

    /// Ends the cluster.
    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Where scenes are played.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) backend: Backend,
    /// The node without a pod. A bridge that pods had stays.
    before: HostSnapshot,
}

impl Stage {
    fn new(backend: Backend) -> Stage {
        let cluster = Cluster::start(&backend.list());
        // It adds its chains when it starts, later than it says that it is ready.
        let chains = "iptables-save | grep -q -e '-A KUBE-POSTROUTING .* MASQUERADE'";
        cluster.wait_until("the kubelet has its chains", || cluster.node.try_sh(chains).0);
        let mut stage = Stage { cluster, backend, before: HostSnapshot::default() };
        stage.begin_anew();
        stage
    }

    /// From now on the state after a first pod is the one that scenes have to return to.
    pub(crate) fn begin_anew(&mut self) {
        self.run("first", 8080);
        self.delete("first");
        self.wait_until_no_pod_is_left();
        self.before = HostSnapshot::of(&self.cluster.node.host);
    }

    /// Creates a pod that serves a page at port 80, which is mapped to a port of the node; 0 for none.
    pub(crate) fn create(&self, name: &str, host_port: u16) {
        self.cluster.apply(&pod(name, host_port));
    }

    /// Creates a pod and waits until it is ready.
    pub(crate) fn run(&self, name: &str, host_port: u16) -> ReadyPod {
        self.create(name, host_port);
        self.wait_until_ready(name);
        self.sandbox(name)
    }

    pub(crate) fn wait_until_ready(&self, name: &str) {
        self.cluster.kubectl_line(&format!("kubectl wait --for=condition=Ready --timeout=100s pod/{name}"));
    }

    /// What containerd knows of a pod: it has exactly one sandbox that is ready.
    pub(crate) fn sandbox(&self, name: &str) -> ReadyPod {
        let mut found = self.cluster.cri.ready();
        found.retain(|pod| pod.name == name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.remove(0)
    }

    /// Deletes a pod and waits until the API server does not know it.
    pub(crate) fn delete(&self, name: &str) {
        self.cluster.kubectl_line(&format!("kubectl delete --timeout=100s pod {name}"));
    }

    /// Waits until a page is served at a port of the node: from the node by two addresses, and from another machine.
    pub(crate) fn wait_until_served(&self, port: u16) {
        self.wait_until_page_is(port, "served");
    }

    pub(crate) fn wait_until_page_is(&self, port: u16, page: &str) {
        let from_node = |address: &str| self.cluster.node.try_sh(&curl(address, port)).1 == format!("{page}\n");
        self.cluster.wait_until(&format!("port {port} serves {page:?}"), || from_node("127.0.0.1"));
        assert!(from_node(ADDRESS), "{ADDRESS} from the node");
        let (_, output) = self.cluster.outside.try_sh(&curl(ADDRESS, port));
        assert_eq!(output, format!("{page}\n"), "{ADDRESS} from outside");
    }

    /// Whether a page is served at a port of the node, now.
    pub(crate) fn is_served(&self, port: u16) -> bool {
        self.cluster.outside.try_sh(&curl(ADDRESS, port)).1 == "served\n"
    }

    /// The addresses that are reserved on the node, of both families.
    pub(crate) fn reserved(&self) -> Vec<String> {
        let files = self.cluster.node.sh("find /var/lib/cni/networks/pods -type f -name '*[.:]*' -printf '%f\\n'");
        files.lines().filter(|name| name.parse::<std::net::IpAddr>().is_ok()).map(str::to_owned).collect()
    }

    fn wait_until_no_pod_is_left(&self) {
        let Cluster { node, cri, .. } = &self.cluster;
        self.cluster.wait_until("containerd has no pod", || cri.ready().is_empty());
        let none = "! pgrep containerd-shim >/dev/null && test -z \"$(ls /run/netns)\"";
        self.cluster.wait_until("no shim and no namespace is left", || node.try_sh(none).0);
    }

    fn assert_left_alone(&self, when: &str) {
        self.assert_no_leftovers(when, &[]);
    }

    /// After a reboot the bridge is another one.
    pub(crate) fn assert_only_the_bridge_is_new(&self) {
        self.assert_no_leftovers("after the reboot", &["link: cni0: "]);
    }

    fn assert_no_leftovers(&self, when: &str, but: &[&str]) {
        self.wait_until_no_pod_is_left();
        let left = HostSnapshot::leftovers(&self.cluster.node.host, &self.before, &[&HINTS, but].concat());
        assert_eq!(left, None, "{when}");
    }
}

fn curl(address: &str, port: u16) -> String {
    format!("curl -sS --max-time 5 http://{address}:{port}/ 2>&1")
}

pub(crate) fn pod(name: &str, host_port: u16) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(host_port, "served")})
}

/// What a pod is to be that serves a page.
pub(crate) fn spec(host_port: u16, page: &str) -> Value {
    let line = format!("echo {page} >/www/index.html && exec httpd -f -p '[::]:80' -h /www");
    let ports = if host_port == 0 { json!([]) } else { json!([{"containerPort": 80, "hostPort": host_port}]) };
    json!({
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "containers": [{
            "name": "web", "image": IMAGE, "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", line], "ports": ports,
        }],
    })
}
