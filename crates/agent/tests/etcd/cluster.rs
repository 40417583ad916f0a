//! Three members of etcd.

use std::time::Duration;

use cnikit_agent::engine::{Engine, EtcdEngine, EtcdSettings, EtcdTls, Listing};
use cnikit_pool::EngineKeys;
use cnikit_testing::Host;
use serde_json::{Value, json};

use crate::node::Node;
use crate::running::{Running, eventually};

pub(crate) struct Cluster {
    pub(crate) host: Host,
    pub(crate) members: Vec<Option<Running>>,
    /// Further flags of each member, and the scheme of its clients.
    flags: String,
    scheme: &'static str,
}

const MEMBERS: usize = 3;

impl Cluster {
    /// How many blocks are claimed before the first answer is lost, of a claim of two: it is one transaction.
    pub(crate) const CLAIMED_UNHEARD: usize = 2;

    /// Starts the members, and waits until they serve.
    pub(crate) fn start() -> Cluster {
        let cluster = Cluster::begin(Host::new(), "http", String::new());
        cluster.wait_ready(&cluster.settings());
        cluster
    }

    /// Members that write nothing more when they store so many bytes.
    pub(crate) fn with_quota(bytes: usize) -> Cluster {
        let cluster = Cluster::begin(Host::new(), "http", format!("--quota-backend-bytes {bytes}"));
        cluster.wait_ready(&cluster.settings());
        cluster
    }

    /// Starts members whose clients need certificates; `certificates` is their directory.
    pub(crate) fn with_tls(host: Host) -> Cluster {
        let dir = host.dir().display().to_string();
        let tls = format!(
            "--cert-file={dir}/server.pem --key-file={dir}/server.key --client-cert-auth --trusted-ca-file={dir}/ca.pem"
        );
        Cluster::begin(host, "https", tls)
    }

    fn begin(host: Host, scheme: &'static str, flags: String) -> Cluster {
        let mut cluster = Cluster { host, members: Vec::new(), flags, scheme };
        for n in 0..MEMBERS {
            cluster.members.push(Some(cluster.start_member(n)));
        }
        cluster
    }

    /// The members with the addresses at which they reach each other.
    fn peers() -> String {
        let peers: Vec<String> = (0..MEMBERS).map(|n| format!("m{n}=http://127.0.0.1:{}", 2380 + 10 * n)).collect();
        peers.join(",")
    }

    fn start_member(&self, n: usize) -> Running {
        let client = format!("{}://127.0.0.1:{}", self.scheme, 2379 + 10 * n);
        let peer = format!("http://127.0.0.1:{}", 2380 + 10 * n);
        let data = self.host.dir().join(format!("m{n}"));
        let command = format!(
            "etcd --name m{n} --data-dir {} --listen-client-urls {client} --advertise-client-urls {client} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster {} \
             --heartbeat-interval 50 --election-timeout 500 {}",
            data.display(),
            Cluster::peers(),
            self.flags
        );
        Running::start(&self.host, &format!("etcd-{n}"), &command)
    }

    pub(crate) fn endpoint(&self, n: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, 2379 + 10 * n)
    }

    /// What the configuration of an agent or an operator says of the engine.
    pub(crate) fn engine_config(&self, _role: &str) -> Value {
        json!({"endpoints": (0..MEMBERS).map(|n| self.endpoint(n)).collect::<Vec<String>>()})
    }

    pub(crate) fn settings(&self) -> EtcdSettings {
        EtcdSettings {
            endpoints: (0..MEMBERS).map(|n| self.endpoint(n)).collect(),
            tls: None,
            prefix: EngineKeys::PREFIX.into(),
            timeout: Duration::from_secs(2),
            session: 5,
        }
    }

    /// Where the first member listens.
    pub(crate) fn address() -> &'static str {
        "127.0.0.1:2379"
    }

    /// The settings with another address.
    pub(crate) fn settings_at(&self, address: &str) -> EtcdSettings {
        EtcdSettings { endpoints: vec![format!("http://{address}")], ..self.settings() }
    }

    /// A node with this name, whose files are in the host's directory.
    pub(crate) fn node(&self, name: &str) -> Node {
        Node::new(name, self.host.dir(), self.settings())
    }

    /// The settings with a client's certificate, if it has one.
    pub(crate) fn settings_with(&self, identity: Option<&str>) -> EtcdSettings {
        let read = |name: String| std::fs::read(self.host.dir().join(name)).unwrap();
        let identity = identity.map(|name| (read(format!("{name}.pem")), read(format!("{name}.key"))));
        EtcdSettings { tls: Some(EtcdTls { ca: read("ca.pem".into()), identity }), ..self.settings() }
    }

    pub(crate) fn wait_ready(&self, settings: &EtcdSettings) {
        self.host.enter(|| {
            let runtime = runtime();
            let engine = EtcdEngine::new(settings.clone()).unwrap();
            eventually("etcd does not serve", || runtime.block_on(engine.list(&Listing::Pools)).is_ok());
        });
    }

    /// Restores all members from one snapshot, as the operator's handbook says, and starts them.
    pub(crate) fn restore(&mut self, snapshot: &str) {
        for n in 0..MEMBERS {
            self.kill(n);
            let data = self.host.dir().join(format!("m{n}"));
            std::fs::remove_dir_all(&data).unwrap();
            self.host.sh(&format!(
                "ETCDCTL_API=3 etcdctl snapshot restore {snapshot} --data-dir {} --name m{n} --initial-cluster {} \
                 --initial-advertise-peer-urls http://127.0.0.1:{} 2>&1",
                data.display(),
                Cluster::peers(),
                2380 + 10 * n
            ));
        }
        for n in 0..MEMBERS {
            self.members[n] = Some(self.start_member(n));
        }
        self.wait_ready(&self.settings());
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, n: usize) {
        let member = self.members[n].take().unwrap();
        member.signal(&self.host, "KILL");
        member.finish();
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
