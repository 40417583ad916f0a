//! Members and nodes, each a machine in a network namespace of its own, linked by a bridge.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

use cnikit_agent::engine::EtcdSettings;
use cnikit_pool::EngineKeys;
use cnikit_process::CancellationToken;
use cnikit_testing::Host;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::json;

use crate::plugin::Network;
use crate::proxy::{PROXY, Proxy};
use crate::running::{Running, has_own_clock, scaled, slowness};

pub(super) const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");
pub(super) const MEMBERS: usize = 3;
pub(super) const NODES: usize = 5;
/// How long a session outlives what renews it, in seconds: the shortest that a configuration may have.
pub(super) const SESSION: u32 = 3;
/// How large the file system of a node's files is.
const STORE: &str = "8m";
/// How large the file system of a member's data is: two files of its log have 64 MiB each.
const DATA: &str = "400m";

/// A machine on the bridge.
pub(super) struct Machine {
    pub(super) host: Host,
    pub(super) address: String,
}

impl Machine {
    /// Links a machine to the bridge.
    fn new(switch: &Host, number: usize) -> Machine {
        let host = Host::new();
        let address = format!("10.99.0.{number}");
        switch.sh(&format!(
            "ip link add p{number} type veth peer name eth0 netns {} && ip link set p{number} master br0 up",
            host.path()
        ));
        // What comes from an address of the set `cut` is lost.
        host.sh(&format!(
            "ip addr add {address}/24 dev eth0 && ip link set eth0 up && nft 'add table inet nemesis
                add set inet nemesis cut {{ type ipv4_addr; }}
                add chain inet nemesis input {{ type filter hook input priority -300; }}
                add rule inet nemesis input ip saddr @cut drop'"
        ));
        Machine { host, address }
    }

    /// Loses what other machines send to this one.
    pub(super) fn lose_from(&self, others: &[&Machine]) {
        let addresses: Vec<&str> = others.iter().map(|other| other.address.as_str()).collect();
        self.host.sh(&format!("nft add element inet nemesis cut '{{ {} }}'", addresses.join(", ")));
    }

    pub(super) fn lose_nothing(&self) {
        self.host.sh("nft flush set inet nemesis cut");
    }
}

/// A member of etcd.
pub(super) struct Member {
    pub(super) machine: Machine,
    name: String,
    pub(super) running: Mutex<Option<Running>>,
}

impl Member {
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}:2379", self.machine.address)
    }

    /// The file system of its data.
    pub(super) fn data(&self) -> PathBuf {
        self.machine.host.dir().join("data")
    }

    pub(super) fn start(&self, all: &[Member]) {
        let cluster: Vec<String> =
            all.iter().map(|member| format!("{}=http://{}:2380", member.name, member.machine.address)).collect();
        let (client, peer) = (self.endpoint(), format!("http://{}:2380", self.machine.address));
        let command = format!(
            "etcd --name {} --data-dir {} --listen-client-urls {client},http://127.0.0.1:2379 --advertise-client-urls {client} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster {} \
             --heartbeat-interval {} --election-timeout {} --max-wals 2",
            self.name,
            self.data().join("member").display(),
            cluster.join(","),
            50 * slowness(),
            500 * slowness(),
        );
        *self.running.lock().unwrap() = Some(Running::start(&self.machine.host, "etcd", &command));
    }

    pub(super) fn kill(&self) {
        kill(&self.machine.host, &self.running);
    }

    pub(super) fn signal(&self, signal: &str) {
        if let Some(running) = &*self.running.lock().unwrap() {
            running.signal(&self.machine.host, signal);
        }
    }
}

fn kill(host: &Host, running: &Mutex<Option<Running>>) {
    let Some(running) = running.lock().unwrap().take() else { return };
    running.signal(host, "KILL");
    running.finish();
}

/// A node: its files in a small file system, its agent, its boot.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) machine: Machine,
    pub(super) agent: Mutex<Option<Running>>,
    pub(super) proxy: Proxy,
    /// How many containers each of its workers wants.
    pub(super) wanted: AtomicUsize,
    /// How often it was booted.
    pub(super) boots: AtomicUsize,
    pub(super) is_on: AtomicBool,
    /// Kills the plugins that run.
    token: Mutex<CancellationToken>,
    /// Held by each call of a plugin.
    pub(super) calls: RwLock<()>,
}

impl Node {
    fn new(switch: &Host, name: &str, number: usize, endpoints: &[String]) -> Node {
        let machine = Machine::new(switch, number);
        let host = &machine.host;
        // The proxy is in front of one member; the agent knows the others by their addresses.
        let mut known = endpoints.to_vec();
        known.rotate_left(number % endpoints.len());
        let behind = known[0].trim_start_matches("http://").to_owned();
        known[0] = format!("http://{PROXY}");
        let proxy = host.enter(|| Proxy::start(&behind));
        let config = json!({
            "endpoints": known,
            "node": name,
            "dataDir": host.dir().join("store/networks"),
            "socket": agents_socket(host),
            "timeout": 700 * slowness(),
            "session": SESSION * slowness(),
            "grace": slowness(),
            "compare": slowness(),
        });
        std::fs::write(host.dir().join("agent.json"), config.to_string()).unwrap();
        let token = Mutex::new(CancellationToken::new().unwrap());
        let node = Node {
            name: name.to_owned(),
            machine,
            agent: Mutex::new(None),
            proxy,
            wanted: AtomicUsize::new(4),
            boots: AtomicUsize::new(0),
            is_on: AtomicBool::new(true),
            token,
            calls: RwLock::new(()),
        };
        node.draw_boot();
        node
    }

    pub(super) fn store(&self) -> PathBuf {
        self.machine.host.dir().join("store")
    }

    pub(super) fn files(&self) -> PathBuf {
        self.store().join("networks")
    }

    fn boot_file(&self) -> PathBuf {
        self.machine.host.dir().join("boot_id")
    }

    fn draw_boot(&self) {
        let id = format!("{:08x}-0000-4000-8000-{:012x}\n", fastrand::u32(1..), fastrand::u64(1..1 << 48));
        std::fs::write(self.boot_file(), id).unwrap();
    }

    pub(super) fn boot(&self) -> String {
        std::fs::read_to_string(self.boot_file()).unwrap().trim().to_owned()
    }

    /// Has a thread and its programs see this node's boot; it is already in a mount namespace of its own.
    pub(super) fn mount_boot(&self) {
        self.machine.host.sh(&format!("mount --bind {} /proc/sys/kernel/random/boot_id", self.boot_file().display()));
    }

    /// The network, as the plugin's configuration has it on this node.
    pub(super) fn network(&self, families: &[&str]) -> Network {
        let host = &self.machine.host;
        let more = json!({
            "agentSocket": agents_socket(host),
            "agent": AGENT,
            "agentConfig": host.dir().join("agent.json"),
            "families": families,
            "timeout": 2 * slowness(),
        });
        Network::new(&self.files(), &more)
    }

    pub(super) fn start_agent(&self) {
        let host = &self.machine.host;
        let line = format!(
            "unshare --mount --propagation private sh -c 'mount --bind {} /proc/sys/kernel/random/boot_id && \
             exec {AGENT} run --log --config {}'",
            self.boot_file().display(),
            host.dir().join("agent.json").display()
        );
        *self.agent.lock().unwrap() = Some(Running::start(host, "agent", &line));
    }

    pub(super) fn kill_agent(&self) {
        kill(&self.machine.host, &self.agent);
    }

    pub(super) fn signal_agent(&self, signal: &str) {
        if let Some(running) = &*self.agent.lock().unwrap() {
            running.signal(&self.machine.host, signal);
        }
    }

    pub(super) fn agent_listens(&self) -> bool {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(&agents_socket(&self.machine.host)).unwrap()).is_ok()
    }

    pub(super) fn token(&self) -> CancellationToken {
        self.token.lock().unwrap().clone()
    }

    /// Cuts the power: the agent, the plugins, and the process that gives blocks back while no agent runs, are killed. No call is
    /// under way when it returns.
    pub(super) fn power_off(&self) {
        self.is_on.store(false, Ordering::SeqCst);
        self.token().cancel();
        self.kill_agent();
        drop(self.calls.write().unwrap());
        // One that outlived the boot would take every address of the next one for one of an earlier boot.
        let (is_done, printed) = self.kill_give_back();
        assert!(is_done, "{printed}");
    }

    /// Kills the process that gives blocks back while no agent runs. Its command line has the node's own directory. Returns whether
    /// none is left, and what was printed.
    fn kill_give_back(&self) -> (bool, String) {
        let of_node = self.machine.host.dir().display();
        self.machine.host.try_sh(&format!("pkill -KILL -f '[g]ive-back.*{of_node}/' || [ $? = 1 ]"))
    }

    /// Boots it.
    pub(super) fn power_on(&self) {
        self.draw_boot();
        *self.token.lock().unwrap() = CancellationToken::new().unwrap();
        self.boots.fetch_add(1, Ordering::SeqCst);
        self.start_agent();
        self.is_on.store(true, Ordering::SeqCst);
    }
}

/// Where the agent of a node listens.
fn agents_socket(host: &Host) -> PathBuf {
    host.dir().join("agent.sock")
}

/// Everything.
pub(super) struct World {
    pub(super) switch: Host,
    pub(super) members: Vec<Member>,
    pub(super) nodes: Vec<Node>,
    /// A machine for a copy of a node.
    pub(super) clone: Node,
    /// A machine that nothing is cut from.
    pub(super) operator: Machine,
    /// When it was made, by the clock and by the monotonic one.
    began: (SystemTime, Instant),
}

impl World {
    /// Makes the machines. The calling thread has a mount namespace of its own.
    pub(super) fn new() -> World {
        let switch = Host::new();
        switch.sh("ip link add br0 type bridge && ip link set br0 up");
        let mount = |directory: PathBuf, size: &str| {
            let directory = directory.display();
            switch.sh(&format!("mkdir {directory} && mount -t tmpfs -o size={size} tmpfs {directory}"));
        };
        let mut members = Vec::new();
        for n in 0..MEMBERS {
            let machine = Machine::new(&switch, 11 + n);
            let member = Member { machine, name: format!("m{n}"), running: Mutex::new(None) };
            mount(member.data(), DATA);
            members.push(member);
        }
        let endpoints: Vec<String> = members.iter().map(Member::endpoint).collect();
        let mut nodes = Vec::new();
        for n in 0..NODES {
            nodes.push(Node::new(&switch, &format!("n{n}"), 21 + n, &endpoints));
        }
        let clone = Node::new(&switch, "clone", 31, &endpoints);
        for node in nodes.iter().chain([&clone]) {
            mount(node.store(), STORE);
        }
        let operator = Machine::new(&switch, 2);
        let config = json!({"endpoints": endpoints, "node": "operator", "dataDir": operator.host.dir().join("networks"), "timeout": 2_000 * slowness()});
        std::fs::write(operator.host.dir().join("agent.json"), config.to_string()).unwrap();
        World { switch, members, nodes, clone, operator, began: (SystemTime::now(), Instant::now()) }
    }

    /// Sets the clock, which all machines here have, to the time that it is, and so many seconds.
    pub(super) fn set_clock(&self, seconds: i64) {
        assert!(has_own_clock(), "the clock of another machine is not ours");
        let (time, began) = self.began;
        let now = (time + began.elapsed()).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        self.switch.sh(&format!("date --set=@{} >/dev/null", now.cast_signed() + seconds));
    }

    pub(super) fn start(&self) {
        for member in &self.members {
            member.start(&self.members);
        }
    }

    pub(super) fn settings(&self) -> EtcdSettings {
        EtcdSettings {
            endpoints: self.members.iter().map(Member::endpoint).collect(),
            tls: None,
            prefix: EngineKeys::PREFIX.into(),
            timeout: scaled(Duration::from_secs(1)),
            session: (SESSION * slowness()).into(),
        }
    }

    /// Runs the agent's program for the operator.
    pub(super) fn operate(&self, command: &str) -> (bool, String) {
        let host = &self.operator.host;
        host.try_sh(&format!("{AGENT} {command} --config {}", host.dir().join("agent.json").display()))
    }

    pub(super) fn machines_of_members(&self) -> Vec<&Machine> {
        self.members.iter().map(|member| &member.machine).collect()
    }

    /// All machines but one.
    pub(super) fn others(&self, machine: &Machine) -> Vec<&Machine> {
        let all = self.members.iter().map(|member| &member.machine).chain(self.nodes.iter().map(|node| &node.machine));
        all.filter(|other| other.address != machine.address).collect()
    }
}

impl Drop for World {
    /// Ends what a plugin may have started, and unmounts the file systems, so that their directories can be removed.
    fn drop(&mut self) {
        let nodes = || self.nodes.iter().chain([&self.clone]);
        for node in nodes() {
            node.kill_give_back(); // a second panic would abort the test, without the message of the first
        }
        for mounted in nodes().map(Node::store).chain(self.members.iter().map(Member::data)) {
            self.switch.try_sh(&format!("umount --lazy {}", mounted.display()));
        }
    }
}
