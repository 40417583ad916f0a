//! The units of the DHCP daemon under systemd, which is the first process of a PID namespace here.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use cnikit_dhcp_daemon::{LeaseReply, LeaseRequest, call};
use cnikit_process::{Deadline, Env, Program, find_program};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::bin;
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER, Dnsmasq, dhcp_bridge};
use cnikit_tests::running_server::RunningServer;
use cnikit_tests::way::script;
use cnikit_tests::world::{ping, undisturbed};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(the_units_start_the_daemon_with_the_first_call_and_again_when_it_is_killed needs Need::SYSTEMD, Need::NETNS_COOKIE),
    test!(upstreams_units_start_the_daemon_with_the_first_call_and_again_when_it_is_killed needs Need::SYSTEMD, Need::NETNS_COOKIE),
];

/// The targets that the units name, and which pull in nothing here.
const TARGETS: [&str; 8] = ["basic", "multi-user", "network", "shutdown", "sockets", "sysinit", "test", "umount"];

/// The names of the units.
const UNITS: [&str; 2] = ["cni-dhcp.service", "cni-dhcp.socket"];

/// Units with the settings of those that upstream ships, in the order of [`UNITS`]. A node may have them already.
const UPSTREAM: [&str; 2] = [
    "[Unit]
Description=DHCP daemon of CNI
After=network.target cni-dhcp.socket
Requires=cni-dhcp.socket

[Service]
ExecStart=/opt/cni/bin/dhcp daemon

[Install]
WantedBy=multi-user.target
",
    "[Unit]
Description=Socket of the DHCP daemon of CNI
PartOf=cni-dhcp.service

[Socket]
ListenStream=/run/cni/dhcp.sock
SocketMode=0660
SocketUser=root
SocketGroup=root
RemoveOnStop=true

[Install]
WantedBy=sockets.target
",
];

/// The units that this project ships, in the order of [`UNITS`].
fn shipped() -> [String; 2] {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dhcp/systemd");
    UNITS.map(|name| fs::read_to_string(dir.join(name)).unwrap())
}

/// systemd with the units, their socket listening. It ends with the value.
struct Manager<'a> {
    host: &'a Host,
    running: Option<RunningServer>,
}

impl Manager<'_> {
    fn start<'a>(host: &'a Host, texts: &[String; 2]) -> Manager<'a> {
        let dir = host.dir().display();
        let units = host.dir().join("units");
        ["units", "groups", "run", "cni", "state"]
            .iter()
            .for_each(|name| fs::create_dir(host.dir().join(name)).unwrap());
        for name in TARGETS {
            fs::write(units.join(format!("{name}.target")), "[Unit]\nDefaultDependencies=no\n").unwrap();
        }
        for (name, text) in UNITS.iter().zip(texts) {
            fs::write(units.join(name), text).unwrap();
        }
        // What the units name on a node is the test's own: control groups, the plugins, /run except for the network namespaces that
        // are mounted there, then and later.
        let inside = format!(
            "set -e
             umount -R /sys/fs/cgroup 2>/dev/null || :
             mount -t cgroup2 none /sys/fs/cgroup
             mount -t tmpfs tmpfs {dir}/run && mkdir {dir}/run/netns {dir}/run/cni
             mount --rbind /run/netns {dir}/run/netns && mount --bind {dir}/cni {dir}/run/cni
             mount --rbind {dir}/run /run
             mount -t tmpfs tmpfs /opt && mkdir -p /opt/cni/bin && mount --bind {} /opt/cni/bin
             exec env -i container=test PATH=$PATH SYSTEMD_UNIT_PATH={dir}/units SYSTEMD_LOG_TARGET=console \
                 /lib/systemd/systemd --system --unit=test.target --show-status=no",
            bin().display()
        );
        fs::write(host.dir().join("inside"), inside).unwrap();
        // Only this mount namespace, which a process keeps, and the one inside have the mounts of the containers' namespaces.
        // The snapshots of other tests do not. The records of the leases are the test's own too: a daemon of another test that
        // waits for their lock would go on with them when this one's is killed.
        let line = format!(
            "mount -t tmpfs tmpfs /run/netns && mount --make-shared /run/netns && mkdir -p /var/lib/cni &&
             mount --bind {dir}/state /var/lib/cni && {{ sleep 3h & echo $! >{dir}/keeper; }} &&
             mount -t cgroup2 none {dir}/groups && group=$(mktemp -d {dir}/groups/cnikit-XXXXXX) &&
             echo $$ >$group/cgroup.procs && basename $group >{dir}/group &&
             echo $$ >{dir}/pid && exec unshare --cgroup --pid --fork --mount --propagation slave --mount-proc --kill-child \
                 sh {dir}/inside"
        );
        let args = ["--mount", "--propagation", "slave", "sh", "-c", &line];
        let program = Program::new(find_program("unshare").unwrap(), Env::Clean(&[]))
            .args(args.map(Into::into).to_vec())
            .grace(Duration::from_secs(10));
        let manager = Manager { host, running: Some(RunningServer::start(host, program)) };
        manager.systemctl("start cni-dhcp.socket");
        manager
    }

    /// The words before a command that is to run in the mount namespace around the manager.
    fn enter(&self) -> String {
        format!("nsenter -t {} -m", fs::read_to_string(self.host.dir().join("keeper")).unwrap().trim())
    }

    /// Mounts the namespace of a container below `/run/netns`, as runtimes do with those of pods, and returns where.
    fn mount(&self, container: &Container, name: &str) -> String {
        let path = format!("/run/netns/{name}");
        let line = format!("touch {path} && mount --bind {} {path}", container.path());
        self.host.sh(&format!("{} sh -c '{line}'", self.enter()));
        path
    }

    /// The plugin bridge with the IPAM plugin dhcp, where those mounts are, and the socket's directory is `cni`.
    fn bridge(&self) -> Subject {
        let entering = self.host.dir().join("entering");
        fs::create_dir(&entering).unwrap();
        let plugins = bin().display();
        script(&entering, "bridge", &format!("exec {} {plugins}/bridge", self.enter()));
        let ipam = json!({"type": "dhcp", "daemonSocketPath": self.host.dir().join("cni/dhcp.sock")});
        let env = vec![("CNI_PATH".to_owned(), plugins.to_string())];
        Subject::new(&entering, "bridge", json!({"bridge": DHCP_BRIDGE, "ipam": ipam})).with_env(env)
    }

    /// systemctl(1), in the manager's namespaces.
    fn try_systemctl(&self, words: &str) -> (bool, String) {
        let first = format!("$(pgrep -P $(cat {}/pid) systemd)", self.host.dir().display());
        self.host.try_sh(&format!("nsenter -t {first} -m -p systemctl --no-pager {words}"))
    }

    /// Waits until systemctl(1) succeeds, and returns what it says. The manager's socket is not there at once.
    fn systemctl(&self, words: &str) -> String {
        let deadline = Deadline::after(Duration::from_mins(1));
        loop {
            let (succeeded, said) = self.try_systemctl(words);
            if succeeded {
                return said;
            }
            assert!(deadline.pause(Duration::from_millis(50)), "systemctl {words}: {said}");
        }
    }

    /// The state of the socket.
    fn socket_state(&self) -> String {
        self.systemctl("show --value -p ActiveState cni-dhcp.socket").trim().to_owned()
    }

    /// The value of a property of the service.
    fn service(&self, property: &str) -> String {
        self.systemctl(&format!("show --value -p {property} cni-dhcp.service")).trim().to_owned()
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        // The manager removes the directories of `PrivateTmp` with the service, not when it is ended itself.
        self.try_systemctl("stop cni-dhcp.service cni-dhcp.socket");
        self.running.take();
        let dir = self.host.dir().display();
        // The kernel removes the last process from its group some time after it has ended.
        let line = format!(
            "mount -t cgroup2 none {dir}/groups && cd {dir}/groups &&
             timeout 20 sh -c 'until find $(cat {dir}/group) -depth -type d -exec rmdir {{}} + 2>/dev/null; do sleep 0.1; done'"
        );
        let (is_clean, said) = self.host.try_sh(&format!("unshare --mount sh -c '{}'", line.replace('\'', r"'\''")));
        assert!(is_clean || thread::panicking(), "a control group stays: {said}");
    }
}

/// A caller finds the socket as it is on a node; the daemon is started by its call, under the unit's restrictions. Our socket stays
/// when the service is stopped.
fn the_units_start_the_daemon_with_the_first_call_and_again_when_it_is_killed() {
    leases_outlive_the_daemon_under(&shipped(), |manager, server, _| {
        assert_eq!(manager.socket_state(), "active");
        server.await_leases("both leases are given back", <[String]>::is_empty);
    });
}

/// Upstream's socket stops with the service. A DEL meanwhile is noted for the next daemon. The interface is gone by then, and a
/// server on the host itself does not hear that its lease is given back.
fn upstreams_units_start_the_daemon_with_the_first_call_and_again_when_it_is_killed() {
    leases_outlive_the_daemon_under(&UPSTREAM.map(str::to_owned), |manager, server, bridge| {
        assert_eq!(manager.socket_state(), "inactive");
        assert!(!manager.host.dir().join("cni/dhcp.sock").exists());
        manager.systemctl("start cni-dhcp.service");
        bridge.call(manager.host, "STATUS", "", "", &[]).ok();
        let list = call(&manager.host.dir().join("cni/dhcp.sock"), &LeaseRequest::List, Duration::from_mins(1));
        assert_eq!(list.unwrap(), LeaseReply::Leases { leases: Vec::new() });
        assert_eq!(server.leases().len(), 1, "that of the first container was given back by its DEL");
    });
}

fn leases_outlive_the_daemon_under(units: &[String; 2], after_the_del: impl FnOnce(&Manager<'_>, &Dnsmasq, &Subject)) {
    let host = Host::new();
    dhcp_bridge(&host);
    let server = Dnsmasq::start(&host, "10.99.0.10,10.99.0.50", &[]);
    let manager = Manager::start(&host, units);
    assert_eq!(manager.service("ActiveState"), "inactive");
    let bridge = manager.bridge();
    let call = |verb: &str, id: &str, at: &str, keys: &[(&str, Value)]| bridge.call(&host, verb, id, at, keys);

    let [container, later] = [host.container(), host.container()];
    let one = manager.mount(&container, "one");
    let first = call("ADD", "c-one", &one, &[]).json();
    assert!(first["ips"][0]["address"].as_str().is_some_and(|text| text.starts_with("10.99.0.")), "{first}");
    let daemon = manager.service("MainPID");
    assert_ne!(daemon, "0");

    // The lease, the container's traffic and the socket outlive the daemon.
    undisturbed(&container, DHCP_SERVER, || {
        manager.systemctl("kill --signal=KILL --kill-whom=main cni-dhcp.service");
        call("CHECK", "c-one", &one, &[("prevResult", first.clone())]).ok();
        let again = manager.service("MainPID");
        assert!(again != "0" && again != daemon, "{again}");
        manager.systemctl("restart cni-dhcp.service");
        call("CHECK", "c-one", &one, &[("prevResult", first.clone())]).ok();
        assert!(!["0", &again].contains(&manager.service("MainPID").as_str()));
    });
    assert_eq!(server.leases().len(), 1);

    // A namespace that was mounted after the daemon's start.
    let two = manager.mount(&later, "two");
    let second = call("ADD", "c-two", &two, &[]).json();
    assert_ne!(second["ips"][0]["address"], first["ips"][0]["address"], "{second}");
    later.sh(&ping(DHCP_SERVER));
    call("DEL", "c-one", &one, &[("prevResult", first)]).ok();
    manager.systemctl("stop cni-dhcp.service");
    if manager.socket_state() == "active" {
        // The next call starts the daemon again. A DEL may not wait for that on a slow machine, and then the interface is gone.
        call("STATUS", "", "", &[]).ok();
    }
    call("DEL", "c-two", &two, &[("prevResult", second)]).ok();
    after_the_del(&manager, &server, &bridge);
    assert_eq!(manager.service("Result"), "success");
}
