//! The DHCP daemon as a program on a test's host.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_dhcp::v4::{ClientOptions, Lease, client_id};
use cnikit_dhcp_daemon::{CallError, LeaseFamily, LeaseOrder, LeaseOwner, LeaseReply, LeaseReport, LeaseRequest, call};
use cnikit_process::{Deadline, Ended, Env, Error, How, Program, find_program};
use cnikit_testkit::{Container, Host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::dnsmasq::{Dnsmasq, connect, dhcp_bridge};
use crate::running_server::RunningServer;

/// The longest that a call may take on a busy machine.
const LATE: Duration = Duration::from_mins(1);
/// How long an order waits, in milliseconds: it ends before the call does, and its failure says what was missing.
pub const ORDER_MS: u64 = 45_000;
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A running daemon. It ends with the value, and with the process.
pub struct LeaseDaemon {
    running: RunningServer,
    socket: PathBuf,
    pid_file: PathBuf,
}

impl LeaseDaemon {
    /// Starts one for this host, with further flags, and waits until it serves. Its files stay in the host's directory, so the next
    /// one knows the leases of this one.
    pub fn start(host: &Host, flags: &[&str]) -> LeaseDaemon {
        LeaseDaemon::begin(host, flags).serving()
    }

    /// Waits until it serves.
    #[must_use]
    pub fn serving(self) -> LeaseDaemon {
        let daemon = self;
        let deadline = Deadline::after(LATE);
        // While one daemon takes over from another, the socket is that of both.
        while daemon.pid().is_none() || daemon.try_call(&LeaseRequest::Status).is_err() {
            assert!(!daemon.has_ended(), "it ended: {:?}", daemon.finish());
            assert!(deadline.pause(PAUSE), "it does not serve");
        }
        daemon
    }

    /// Starts one, and does not wait for it.
    pub fn begin(host: &Host, flags: &[&str]) -> LeaseDaemon {
        LeaseDaemon::begin_by(host, &[], flags)
    }

    /// Starts one by another program, which gets the daemon's command line after these arguments.
    pub fn begin_by(host: &Host, starter: &[String], flags: &[&str]) -> LeaseDaemon {
        let records = host.dir().join("dhcp-leases").display().to_string();
        let flags = [&["-datadir", records.as_str()], flags].concat();
        LeaseDaemon::begin_in(host, crate::bin(), starter, &flags, &host.dir().join("dhcp.sock"))
    }

    /// Starts the one of this directory of plugins by another program, on this socket. Unlike ours, upstream's has no directory of
    /// records.
    pub fn begin_in(host: &Host, bin: &Path, starter: &[String], flags: &[&str], socket: &Path) -> LeaseDaemon {
        let dir = host.dir().join("dhcp");
        fs::create_dir_all(&dir).unwrap();
        let number = fs::read_dir(&dir).unwrap().count();
        let pid_file = dir.join(format!("pid-{number}"));
        let socket = socket.to_owned();
        let mut line: Vec<OsString> = starter.iter().map(OsString::from).collect();
        line.extend([bin.join("dhcp").into(), "daemon".into()]);
        line.extend(["-pidfile".into(), pid_file.clone().into(), "-socketpath".into(), socket.clone().into()]);
        line.extend(flags.iter().map(Into::into));
        let first = line.remove(0);
        let program = Program::new(
            if starter.is_empty() { first.into() } else { find_program(&first.to_string_lossy()).unwrap() },
            Env::Clean(&[]),
        )
        .args(line)
        .grace(Duration::from_secs(10));
        LeaseDaemon { running: RunningServer::start(host, program), socket, pid_file }
    }

    /// The process's number, once it has started.
    pub fn pid(&self) -> Option<i32> {
        fs::read_to_string(&self.pid_file).ok()?.parse().ok()
    }

    /// Whether its process has ended.
    pub fn has_ended(&self) -> bool {
        self.running.has_ended()
    }

    /// `SIGKILL`.
    pub fn kill(self) {
        kill(Pid::from_raw(self.pid().unwrap()), Signal::SIGKILL).unwrap();
        assert_eq!(self.finish().how, How::Signal(Signal::SIGKILL as i32));
    }

    /// Waits until it has ended by itself.
    pub fn finish(self) -> Ended {
        self.running.finish()
    }

    /// Ends it by a signal, and returns its log.
    pub fn stop(self) -> String {
        let stderr = match self.running.stop() {
            Err(Error::Cancelled { stderr, .. }) => stderr,
            other => panic!("it ended by itself: {other:?}"),
        };
        String::from_utf8_lossy(&stderr).into_owned()
    }

    /// Its reply.
    pub fn call(&self, request: &LeaseRequest) -> LeaseReply {
        self.try_call(request).unwrap()
    }

    /// Its reply.
    ///
    /// # Errors
    /// As [`call`].
    pub fn try_call(&self, request: &LeaseRequest) -> Result<LeaseReply, CallError> {
        call(&self.socket, request, LATE)
    }

    /// The lease of a container's interface, which the daemon may have to get first.
    pub fn add(&self, container: &Container, id: &str) -> Lease {
        match self.call(&LeaseRequest::Add(order(container, id))) {
            LeaseReply::Lease { lease, .. } => *lease,
            other => panic!("{other:?}"),
        }
    }

    /// Gives a container's lease back.
    pub fn del(&self, id: &str) {
        assert_eq!(self.call(&LeaseRequest::Del { owner: owner(id) }), LeaseReply::Done);
    }

    /// All that it has.
    pub fn list(&self) -> Vec<LeaseReport> {
        match self.call(&LeaseRequest::List) {
            LeaseReply::Leases { leases } => leases,
            other => panic!("{other:?}"),
        }
    }

    /// What CHECK finds, if the ADD has reported the lease that there is.
    pub fn check(&self, container: &Container, id: &str) -> Vec<String> {
        let list = self.list();
        let leases = list.iter().filter_map(|one| one.lease.as_ref());
        let networks = leases.map(|one| format!("{}/{}", one.address, one.parameters.prefix.unwrap()).parse().unwrap());
        let request = LeaseRequest::Check {
            owner: owner(id),
            netns: container.path(),
            reported: Some(networks.collect()),
            families: vec![LeaseFamily::V4],
        };
        match self.call(&request) {
            LeaseReply::Done => Vec::new(),
            LeaseReply::Drift { differences } => differences,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until its leases are so.
    pub fn await_list(&self, what: &str, is_so: impl Fn(&[LeaseReport]) -> bool) {
        let deadline = Deadline::after(LATE);
        while !is_so(&self.list()) {
            assert!(deadline.pause(PAUSE), "{what}: {:?}", self.list());
        }
    }
}

/// The files of the records and notes of a host's leases.
pub fn lease_records(host: &Host) -> Vec<PathBuf> {
    let files = fs::read_dir(host.dir().join("dhcp-leases")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths.filter(|path| path.file_name().is_some_and(|name| name != ".lock")).collect()
}

/// Gives a caller half a second to send its request to a stopped daemon. Panics if `is_ready` says that the caller got a reply.
pub fn assert_waits(is_ready: impl Fn() -> bool) {
    let deadline = Deadline::after(Duration::from_millis(500));
    while deadline.pause(Duration::from_millis(50)) {
        assert!(!is_ready());
    }
}

/// Panics unless each thread of the process has five capabilities, can get no other ones, and has a filter of system calls.
pub fn assert_confined(pid: i32) {
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        // SYS_ADMIN, NET_ADMIN, NET_RAW, NET_BIND_SERVICE, SYS_PTRACE.
        for wanted in ["CapPrm:\t0000000000283400", "CapEff:\t0000000000283400", "CapBnd:\t0000000000283400"] {
            assert!(status.contains(wanted), "{wanted}: {status}");
        }
        for wanted in ["CapInh:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.contains(wanted), "{wanted}: {status}");
        }
    }
}

/// Panics unless a daemon that serves has nine threads, however many leases it has: the event loop, and eight that close sockets.
pub fn assert_threads(daemon: &LeaseDaemon) {
    assert_eq!(fs::read_dir(format!("/proc/{}/task", daemon.pid().unwrap())).unwrap().count(), 9);
}

/// A server for a container of the host, and the daemon: what a call of the plugin needs.
pub fn dhcp_servers(host: &Host, container: &Container) -> (Dnsmasq, LeaseDaemon) {
    dhcp_bridge(host);
    connect(host, container, "port0", "eth0");
    (Dnsmasq::start(host, "10.99.0.10,10.99.0.200", &[]), LeaseDaemon::start(host, &[]))
}

/// The owner of the lease of a container's `eth0`.
pub fn owner(id: &str) -> LeaseOwner {
    LeaseOwner { container: id.to_owned(), network: "net".to_owned(), ifname: "eth0".to_owned() }
}

/// An order for a container's `eth0`.
pub fn order(container: &Container, id: &str) -> LeaseOrder {
    let owner = owner(id);
    let options = ClientOptions::new(client_id(&owner.id()));
    LeaseOrder { owner, netns: container.path(), options, mtu: true, priority: None, timeout_ms: ORDER_MS }
}

/// Gives the container's `eth0` the address of the lease, and its routes, as the plugin does that ordered it.
pub fn configure(container: &Container, lease: &Lease) {
    let prefix = lease.parameters.prefix.unwrap();
    container.sh(&format!("ip address add {}/{prefix} dev eth0", lease.address));
    for route in &lease.parameters.routes {
        container.sh(&format!("ip route add {} via {}", route.destination, route.gateway.unwrap()));
    }
}
