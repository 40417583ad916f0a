//! An API server and its etcd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_agent::engine::{ApiCredentials, ApiServer, KubernetesSettings};
use cnikit_testing::Host;
use serde_json::{Value, json};

use crate::node::Node;
use crate::running::{Running, eventually, log_of};

/// The definitions of the kinds, and the roles.
const MANIFESTS: [&str; 2] = ["crds.yaml", "rbac.yaml"];

/// Who may ask: an administrator, an operator of pools, the agents, and who watches nodes.
const TOKENS: &str = "admin,admin,admin,system:masters\noperator-token,operator,operator\nagent-token,agent,agent\nwatcher-token,watcher,watcher\n";
const BINDINGS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cnikit-operator}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: operator}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: agent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cnikit-agent}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: agent}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: watcher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cnikit-node-watcher}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: watcher}]
";

pub(crate) struct Cluster {
    pub(crate) host: Host,
    programs: Vec<Running>,
}

impl Cluster {
    /// How many blocks are claimed before the first answer is lost, of a claim of two: each is a request.
    pub(crate) const CLAIMED_UNHEARD: usize = 1;

    /// Starts them, with the kinds and the roles.
    pub(crate) fn start() -> Cluster {
        let cluster = Cluster::without_kinds();
        let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes").join(name);
        for name in MANIFESTS {
            cluster.kubectl(&format!("apply -f {}", file(name).display()));
        }
        let bindings = cluster.host.dir().join("bindings.yaml");
        std::fs::write(&bindings, BINDINGS).unwrap();
        cluster.kubectl(&format!("apply -f {}", bindings.display()));
        cluster.kubectl("wait --for=condition=Established --timeout=60s crd --all");
        cluster.host.enter(|| {
            let node = crate::node::Node::new("ready", cluster.host.dir(), cluster.settings());
            eventually("the roles do not count", || node.try_owners().is_ok());
        });
        cluster
    }

    pub(crate) fn without_kinds() -> Cluster {
        let host = Host::new();
        let dir = host.dir().display().to_string();
        std::fs::write(host.dir().join("tokens"), TOKENS).unwrap();
        for name in ["operator", "agent", "watcher"] {
            std::fs::write(host.dir().join(format!("{name}.token")), format!("{name}-token\n")).unwrap();
        }
        host.sh(&format!("openssl genrsa -out {dir}/accounts.key 2048 2>/dev/null"));
        let etcd = format!(
            "{} --data-dir {dir}/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
             --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
             --initial-cluster default=http://127.0.0.1:2380",
            program("etcd")
        );
        let server = format!(
            "{} --etcd-servers=http://127.0.0.1:2379 --cert-dir={dir}/apiserver --bind-address=127.0.0.1 --secure-port=6443 \
             --advertise-address=192.0.2.10 --service-cluster-ip-range=10.96.0.0/16 --token-auth-file={dir}/tokens \
             --authorization-mode=RBAC --anonymous-auth=false --service-account-issuer=https://kubernetes.default.svc \
             --service-account-key-file={dir}/accounts.key --service-account-signing-key-file={dir}/accounts.key \
             --disable-admission-plugins=ServiceAccount",
            program("kube-apiserver")
        );
        let programs = vec![Running::start(&host, "etcd", &etcd), Running::start(&host, "kube-apiserver", &server)];
        let cluster = Cluster { host, programs };
        eventually("the API server does not serve", || {
            let ready = "curl -sfk --max-time 5 -H 'Authorization: Bearer admin' https://127.0.0.1:6443/readyz";
            cluster.host.try_sh(ready).0
        });
        cluster
    }

    /// Ends the API server at once, and starts nothing.
    pub(crate) fn kill_api_server(&mut self) {
        let server = self.programs.pop().unwrap();
        server.signal(&self.host, "KILL");
        server.finish();
    }

    /// A node with this name, whose files are in the host's directory.
    pub(crate) fn node(&self, name: &str) -> Node {
        Node::new(name, self.host.dir(), self.settings())
    }

    /// Where the API server listens.
    pub(crate) fn address() -> &'static str {
        "127.0.0.1:6443"
    }

    /// What the configuration of an agent or an operator says of the engine; `role` is a user with a token.
    pub(crate) fn engine_config(&self, role: &str) -> Value {
        let dir = self.host.dir();
        json!({"kubernetes": {
            "server": format!("https://{}", Cluster::address()),
            "ca": dir.join("apiserver/apiserver.crt"),
            "token": dir.join(format!("{role}.token")),
        }})
    }

    /// Those of an operator, who also claims.
    pub(crate) fn settings(&self) -> KubernetesSettings {
        self.settings_of("operator")
    }

    pub(crate) fn settings_of(&self, name: &str) -> KubernetesSettings {
        KubernetesSettings {
            server: ApiServer {
                server: format!("https://{}", Cluster::address()),
                ca: self.host.dir().join("apiserver/apiserver.crt"),
                credentials: ApiCredentials::Token(self.host.dir().join(format!("{name}.token"))),
            },
            timeout: Duration::from_secs(5),
            session: Duration::from_secs(3),
        }
    }

    /// The settings with another address.
    pub(crate) fn settings_at(&self, address: &str) -> KubernetesSettings {
        let mut settings = self.settings();
        settings.server.server = format!("https://{address}");
        settings.timeout = Duration::from_secs(2);
        settings
    }

    /// Runs kubectl with all rights; it has to succeed.
    pub(crate) fn kubectl(&self, arguments: &str) -> String {
        let dir = self.host.dir().display().to_string();
        let line = format!(
            "{} --server=https://{} --insecure-skip-tls-verify --token=admin --cache-dir={dir}/kubectl {arguments} 2>&1",
            program("kubectl"),
            Cluster::address()
        );
        let (success, printed) = self.host.try_sh(&line);
        assert!(success, "{arguments}: {printed}\n{}", log_of(self.host.dir(), "kube-apiserver"));
        printed
    }
}

/// The path of a program that `scripts/kubernetes` builds.
fn program(name: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "scripts/test says where Kubernetes was built")]
    let dir = PathBuf::from(std::env::var_os("CNIKIT_KUBERNETES").unwrap());
    dir.join(name).display().to_string()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
