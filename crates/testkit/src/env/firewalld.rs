//! A D-Bus daemon and a firewalld of the test's own, separate from those of the machine.
#![expect(clippy::disallowed_methods, reason = "the daemons are processes that run beside the test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cnikit_process::Deadline;

use crate::{Host, cache};

/// Time for firewalld to start: it reads a hundred files in Python, perhaps on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A process that is killed when the value is dropped.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A dbus-daemon that allows everything to every user.
#[derive(Debug)]
pub struct Bus {
    _daemon: Process,
    /// The address, as in `DBUS_SYSTEM_BUS_ADDRESS`.
    pub address: String,
}

impl Bus {
    /// Starts a bus that listens in the host's directory.
    pub fn start(host: &Host) -> Bus {
        Bus::listening(host, &format!("unix:path={}", host.dir().join("bus").display()))
    }

    /// Starts a bus that listens at this address.
    pub fn listening(host: &Host, address: &str) -> Bus {
        let file = host.dir().join("bus.conf");
        fs::write(
            &file,
            format!(
                "<busconfig><listen>{address}</listen><auth>EXTERNAL</auth><policy context=\"default\">
                <allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\"/><allow receive_sender=\"*\"/>
                </policy></busconfig>"
            ),
        )
        .unwrap();
        let mut daemon = Command::new("dbus-daemon");
        daemon.args(["--nofork", "--nopidfile", "--nosyslog", "--print-address=1"]);
        daemon.arg(format!("--config-file={}", file.display())).stdout(Stdio::piped());
        let log = host.dir().join("bus.log");
        daemon.stderr(fs::File::create(&log).unwrap());
        let mut daemon = Process(host.enter(|| daemon.spawn()).expect("install dbus-daemon"));
        // The daemon prints its address when it listens.
        let mut address = String::new();
        BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        assert!(!address.is_empty(), "it does not listen: {}", fs::read_to_string(&log).unwrap_or_default());
        Bus { _daemon: daemon, address }
    }
}

/// A firewalld with its rules in the host's namespace and its files in the host's directory.
#[derive(Debug)]
pub struct FirewalldDaemon {
    _daemon: Process,
}

impl FirewalldDaemon {
    /// Starts firewalld, and waits until it has its name on the bus.
    pub fn start(host: &Host, bus: &Bus) -> FirewalldDaemon {
        let unpacked = cache().join("firewalld/usr");
        assert!(unpacked.is_dir(), "{} is missing: `scripts/test` unpacks it before its tests", unpacked.display());
        let conf = host.dir().join("firewalld");
        let log = host.dir().join("firewalld.log");
        // firewalld would create the second directory itself; of two that start at the same time, one would fail because of that.
        [&conf, Path::new("/run/firewalld")].into_iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        fs::write(conf.join("firewalld.conf"), "DefaultZone=public\nFirewallBackend=nftables\n").unwrap();
        let option = |name: &str, path: &Path| [name.to_owned(), path.display().to_string()];
        // The program is not started by its `#!` line, because that makes Python ignore the environment.
        let mut daemon = Command::new("/usr/bin/python3");
        daemon.arg(unpacked.join("sbin/firewalld")).args(["--nofork", "--nopid", "--log-target", "file"]);
        daemon.args(option("--system-config", &conf)).args(option("--log-file", &log));
        daemon.args(option("--default-config", &unpacked.join("lib/firewalld")));
        daemon.env("PYTHONPATH", unpacked.join("lib/python3/dist-packages"));
        daemon.env("PYTHONDONTWRITEBYTECODE", "1").env("DBUS_SYSTEM_BUS_ADDRESS", &bus.address);
        let mut daemon = Process(host.enter(|| daemon.spawn()).unwrap());
        let deadline = Deadline::after(TIMEOUT);
        let mut client =
            host.enter(|| cnikit_firewalld::Firewalld::connect(Some(&bus.address), deadline)).unwrap().unwrap();
        while !client.is_running().unwrap() {
            assert!(
                daemon.0.try_wait().unwrap().is_none(),
                "it ended: {}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            assert!(deadline.pause(Duration::from_millis(20)), "firewalld does not begin");
        }
        FirewalldDaemon { _daemon: daemon }
    }
}
