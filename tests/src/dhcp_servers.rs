//! Kea and ISC dhcpd as DHCP servers of the bridge of a test's host, beside dnsmasq: they give leases of seconds.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cnikit_process::{Deadline, Env, Error, Program, find_program};
use cnikit_testkit::Host;
use nix::unistd::Pid;
use serde_json::json;

use crate::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER};
use crate::running_server::RunningServer;

/// The longest time until it serves, and until its file is so.
const START: Duration = Duration::from_secs(20);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// The program of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerMaker {
    /// `kea-dhcp4` and `kea-dhcp6`.
    Kea,
    /// `dhcpd`.
    Isc,
}

/// A running server. It ends with the value, and with the process.
pub struct DhcpServer {
    maker: ServerMaker,
    running: Option<RunningServer>,
    dir: PathBuf,
}

impl DhcpServer {
    /// Starts one for leases of so many seconds, of the addresses of 10.99.0.0/24 that end in these numbers, and waits until it
    /// serves. Its files stay in the host's directory, so the next one knows the leases of this one.
    pub fn start(host: &Host, maker: ServerMaker, seconds: u32, pool: [u8; 2]) -> DhcpServer {
        let pool = pool.map(|number| format!("10.99.0.{number}"));
        DhcpServer::start_in(host, maker, seconds, ["10.99.0.0", "24", "255.255.255.0"], &pool)
    }

    /// Starts one for leases of so many seconds, of the addresses from the first to the last of a subnet, which is written with the
    /// length of its prefix and its mask.
    pub fn start_in(
        host: &Host,
        maker: ServerMaker,
        seconds: u32,
        [subnet, prefix, mask]: [&str; 3],
        [first, last]: &[String; 2],
    ) -> DhcpServer {
        let leases = prepare(host, maker, "4").join("leases");
        let conf = match maker {
            ServerMaker::Kea => json!({"Dhcp4": {
                "interfaces-config": {"interfaces": [DHCP_BRIDGE]},
                "lease-database": {"type": "memfile", "name": leases, "lfc-interval": 0},
                "valid-lifetime": seconds, "renew-timer": seconds / 2, "rebind-timer": seconds * 3 / 4,
                "subnet4": [{"subnet": format!("{subnet}/{prefix}"), "pools": [{"pool": format!("{first} - {last}")}],
                    "option-data": [{"name": "routers", "data": DHCP_SERVER}]}]}})
            .to_string(),
            ServerMaker::Isc => format!(
                "authoritative;\nping-check false;\ndefault-lease-time {seconds};\nmax-lease-time {seconds};\n\
                 subnet {subnet} netmask {mask} {{\n range {first} {last};\n option routers {DHCP_SERVER};\n}}\n"
            ),
        };
        DhcpServer::run(host, maker, "4", &conf)
    }

    /// Starts one for IPv6 on the bridge, which needs an address of `fd00:99::/64`, with leases of so many seconds, of which they
    /// are renewed after the half, of the addresses that end in these numbers.
    pub fn start6(host: &Host, maker: ServerMaker, seconds: u32, pool: [u8; 2]) -> DhcpServer {
        let [first, last] = pool.map(|number| format!("fd00:99::{number:x}"));
        let leases = prepare(host, maker, "6").join("leases");
        let conf = match maker {
            ServerMaker::Kea => json!({"Dhcp6": {
                "data-directory": leases.parent(),
                "interfaces-config": {"interfaces": [DHCP_BRIDGE]},
                "lease-database": {"type": "memfile", "name": leases, "lfc-interval": 0},
                "preferred-lifetime": seconds * 3 / 4, "valid-lifetime": seconds,
                "renew-timer": seconds / 2, "rebind-timer": seconds * 2 / 3,
                "subnet6": [{"subnet": "fd00:99::/64", "interface": DHCP_BRIDGE,
                    "pools": [{"pool": format!("{first} - {last}")}],
                    "option-data": [{"name": "dns-servers", "data": "fd00:99::53"}]}]}})
            .to_string(),
            ServerMaker::Isc => format!(
                "default-lease-time {seconds};\nsubnet6 fd00:99::/64 {{\n range6 {first} {last};\n \
                 option dhcp6.name-servers fd00:99::53;\n}}\n"
            ),
        };
        DhcpServer::run(host, maker, "6", &conf)
    }

    fn run(host: &Host, maker: ServerMaker, family: &str, conf: &str) -> DhcpServer {
        let dir = prepare(host, maker, family);
        fs::write(dir.join("conf"), conf).unwrap();
        let file = |name: &str| dir.join(name).into_os_string();
        // Kea opens no socket for an interface that has no carrier when it starts, and does not try again.
        host.sh(&format!(
            "timeout 20 sh -c 'while ip -o link show {DHCP_BRIDGE} | grep -q NO-CARRIER; do sleep 0.01; done'"
        ));
        let (name, args, env) = match maker {
            ServerMaker::Kea => {
                let place = dir.display().to_string();
                let names = ["KEA_PIDFILE_DIR", "KEA_LOCKFILE_DIR", "KEA_LOGGER_DESTINATION"];
                let values = [place.clone(), place, "stderr".to_owned()];
                let set = names.into_iter().zip(values).map(|(name, value)| (name.into(), value.into())).collect();
                let env = Env::Inherited { without: &[], set };
                (format!("kea-dhcp{family}"), vec!["-c".into(), file("conf")], env)
            }
            ServerMaker::Isc => {
                let mut args = vec![format!("-{family}").into(), "-f".into(), "-d".into(), "-cf".into(), file("conf")];
                args.extend(["-lf".into(), file("leases"), "-pf".into(), file("pid"), DHCP_BRIDGE.into()]);
                ("dhcpd".to_owned(), args, Env::Clean(&[]))
            }
        };
        let path =
            find_program(&name).unwrap_or_else(|| panic!("{name} is installed (Debian's kea and isc-dhcp-server)"));
        let grace = Duration::from_secs(2);
        let program = Program::new(path, env).args(args).limit(1 << 22).grace(grace);
        let server = DhcpServer { maker, running: Some(RunningServer::start(host, program)), dir };
        let deadline = Deadline::after(START);
        while !has_port_of_servers(host, family) {
            assert!(deadline.pause(PAUSE), "{maker:?} does not serve: {}", server.stop());
        }
        server
    }

    /// Its file of leases.
    pub fn leases(&self) -> String {
        fs::read_to_string(self.dir.join("leases")).unwrap_or_default()
    }

    /// Whether the last entry of this address in its file says that it is free.
    pub fn is_free(&self, address: &str) -> bool {
        let text = self.leases();
        match self.maker {
            // address,hwaddr,client_id,valid_lifetime: 0 if it was given back. That of IPv6 has one column less before it.
            ServerMaker::Kea => {
                text.lines().rfind(|line| line.starts_with(&format!("{address},"))).is_none_or(|line| {
                    let column = if address.contains(':') { 2 } else { 3 };
                    line.split(',').nth(column) == Some("0")
                })
            }
            ServerMaker::Isc => {
                let Some((_, last)) = text.rsplit_once(&format!("{address} {{")) else { return true };
                let own = last.split('}').next().unwrap_or_default();
                let states = ["free", "released", "abandoned"];
                states.iter().any(|state| own.contains(&format!("  binding state {state};")))
            }
        }
    }

    /// Waits until this address is free.
    pub fn await_free(&self, address: &str) {
        let deadline = Deadline::after(START);
        while !self.is_free(address) {
            assert!(deadline.pause(PAUSE), "{address} is not free: {}", self.leases());
        }
    }

    /// The number of Kea's process, from its file.
    pub fn pid(&self) -> Pid {
        let files = fs::read_dir(&self.dir).unwrap().map(|file| file.unwrap().path());
        let file = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "pid"));
        Pid::from_raw(fs::read_to_string(file.unwrap()).unwrap().trim().parse().unwrap())
    }

    /// Ends it, and returns its log.
    pub fn stop(mut self) -> String {
        match self.running.take().unwrap().stop() {
            Err(Error::Cancelled { stderr, .. }) => String::from_utf8_lossy(&stderr).into_owned(),
            other => panic!("{:?} ended by itself: {other:?}", self.maker),
        }
    }
}

/// Whether a socket of the host has the port of servers. udp(7)
fn has_port_of_servers(host: &Host, family: &str) -> bool {
    let (file, port) = if family == "6" { ("udp6", ":0223") } else { ("udp", ":0043") };
    let sockets = host.enter(|| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap());
    sockets.lines().filter_map(|line| line.split_whitespace().nth(1)).any(|address| address.ends_with(port))
}

/// The directory of a server, with an empty file of leases if it has none.
fn prepare(host: &Host, maker: ServerMaker, family: &str) -> PathBuf {
    let dir = host.dir().join(format!("{maker:?}{family}"));
    fs::create_dir_all(&dir).unwrap();
    let leases = dir.join("leases");
    if !leases.exists() && maker == ServerMaker::Isc {
        fs::write(leases, "").unwrap();
    }
    dir
}
