//! dnsmasq as the DHCP server of a bridge on a test's host.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_process::{Deadline, Env, Error, Program, find_program};
use cnikit_testkit::{Container, Host};

use crate::running_server::RunningServer;
use crate::world::UNTIL_DETECTED;

/// The bridge.
pub const DHCP_BRIDGE: &str = "br-dhcp";
/// The address of the bridge and of the server on it.
pub const DHCP_SERVER: &str = "10.99.0.1";

/// The address of IPv6 of the bridge and of the server on it.
pub const DHCP6_SERVER: &str = "fd00:99::1";
/// dnsmasq's options for leases of IPv6 with router advertisements, whose prefix is on the link and not for addresses.
pub const DHCP6_OPTIONS: [&str; 3] =
    ["--dhcp-range=fd00:99::10,fd00:99::50,64,2m", "--enable-ra", "--dhcp-option=option6:dns-server,[fd00:99::53]"];

/// The longest time until it serves, and until it has ended.
const START: Duration = Duration::from_secs(10);
/// The time between two looks for its file.
const PAUSE: Duration = Duration::from_millis(10);

/// A running dnsmasq. It ends with the value, and with the process.
pub struct Dnsmasq {
    running: Option<RunningServer>,
    dir: PathBuf,
}

/// Makes the bridge, with its address.
pub fn dhcp_bridge(host: &Host) {
    host.sh(&format!("ip link add {DHCP_BRIDGE} type bridge && ip address add {DHCP_SERVER}/24 dev {DHCP_BRIDGE}"));
    host.sh(&format!("ip link set {DHCP_BRIDGE} up"));
}

/// Gives the bridge, or the server's interface, its address of IPv6.
pub fn dhcp6_address(host: &Host) {
    host.sh(&format!("ip address add {DHCP6_SERVER}/64 dev {DHCP_BRIDGE} nodad"));
    host.sh(UNTIL_DETECTED);
}

/// A host with the bridge, and another one in the same network for the server: what the host sends to its own bridge would not be
/// heard.
pub fn dhcp_site() -> (Host, Host) {
    let (host, site) = (Host::new(), Host::new());
    let path = path_of(&site);
    host.sh(&format!("ip link add {DHCP_BRIDGE} type bridge && ip link set {DHCP_BRIDGE} up"));
    host.sh(&format!("ip link add uplink type veth peer name {DHCP_BRIDGE} netns {path} && ip link set uplink up"));
    host.sh(&format!("ip link set uplink master {DHCP_BRIDGE}"));
    site.sh(&format!("ip address add {DHCP_SERVER}/24 dev {DHCP_BRIDGE} && ip link set {DHCP_BRIDGE} up"));
    (host, site)
}

/// Connects a master of the host with the server's interface by a wire.
pub fn dhcp_server_on_wire(host: &Host, site: &Host, master: &str) {
    let path = path_of(site);
    host.sh(&format!("ip link add {master} type veth peer name {DHCP_BRIDGE} netns {path} && ip link set {master} up"));
    site.sh(&format!("ip address add {DHCP_SERVER}/24 dev {DHCP_BRIDGE} && ip link set {DHCP_BRIDGE} up"));
}

/// Connects a master of the host with a site by a wire. The server's interface there is in this VLAN.
pub fn dhcp_server_in_vlan(host: &Host, site: &Host, master: &str, vlan: u16) {
    host.sh(&format!(
        "ip link add {master} type veth peer name wire0 netns {} && ip link set {master} up",
        path_of(site)
    ));
    site.sh(&format!("ip link set wire0 up && ip link add link wire0 name {DHCP_BRIDGE} type vlan id {vlan}"));
    site.sh(&format!("ip address add {DHCP_SERVER}/24 dev {DHCP_BRIDGE} && ip link set {DHCP_BRIDGE} up"));
}

/// A path to the namespace of a host.
fn path_of(host: &Host) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd())
}

/// Connects a container to the bridge by a link of this name that is up and has no address. `port` is unique on the host.
pub fn connect(host: &Host, container: &Container, port: &str, link: &str) {
    host.sh(&format!("ip link add {port} type veth peer name {link} netns {}", container.path()));
    host.sh(&format!("ip link set {port} master {DHCP_BRIDGE} up"));
    container.sh(&format!("ip link set {link} up"));
}

impl Dnsmasq {
    /// Starts it for leases of two minutes, its shortest, of these addresses (`10.99.0.10,10.99.0.20`), with further options. Its
    /// files stay in the host's directory, so the next one knows the leases of this one.
    pub fn start(host: &Host, range: &str, options: &[&str]) -> Dnsmasq {
        let dir = host.dir().join("dnsmasq");
        fs::create_dir_all(&dir).unwrap();
        let pid_file = dir.join("pid");
        let _ = fs::remove_file(&pid_file);
        let mut args = vec![
            "--keep-in-foreground".to_owned(),
            "--conf-file=/dev/null".to_owned(),
            "--user=root".to_owned(),
            "--port=0".to_owned(),
            "--bind-interfaces".to_owned(),
            "--dhcp-authoritative".to_owned(),
            "--no-ping".to_owned(),
            format!("--interface={DHCP_BRIDGE}"),
            format!("--dhcp-range={range},255.255.255.0,2m"),
            format!("--pid-file={}", pid_file.display()),
            format!("--dhcp-leasefile={}", dir.join("leases").display()),
            format!("--log-facility={}", dir.join("log").display()),
        ];
        args.extend(options.iter().map(|option| (*option).to_owned()));
        let program = Program::new(
            find_program("dnsmasq").expect("dnsmasq is installed (Debian's dnsmasq-base)"),
            Env::Clean(&[]),
        )
        .args(args.into_iter().map(Into::into).collect());
        let server = Dnsmasq { running: Some(RunningServer::start(host, program)), dir };
        server.await_file(&pid_file);
        server
    }

    /// Waits for the file that it writes when its sockets are bound.
    fn await_file(&self, file: &Path) {
        let deadline = Deadline::after(START);
        while !file.exists() {
            let has_ended = self.running.as_ref().is_none_or(RunningServer::has_ended);
            assert!(!has_ended && deadline.pause(PAUSE), "dnsmasq does not serve: {}", self.log());
        }
    }

    /// The leases that it has given, one a line: expiry, hardware address, address, name, client identifier.
    pub fn leases(&self) -> Vec<String> {
        let file = fs::read_to_string(self.dir.join("leases")).unwrap_or_default();
        file.lines().map(str::to_owned).collect()
    }

    /// Waits until its leases are so.
    pub fn await_leases(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let deadline = Deadline::after(START);
        while !is_so(&self.leases()) {
            assert!(deadline.pause(PAUSE), "{what}: {:?}; {}", self.leases(), self.log());
        }
    }

    /// What it has logged, of all that served on this host.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let ended = self.running.take().map(RunningServer::stop);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Err(Error::Cancelled { .. }))), "dnsmasq ended by itself: {}", self.log());
        }
    }
}
