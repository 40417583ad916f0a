//! busybox's udhcpd as the DHCP server of a bridge on a test's host: it gives leases of seconds.

use std::fs;

use cnikit_process::{Env, Program, find_program};
use cnikit_testkit::Host;

use crate::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER};
use crate::running_server::RunningServer;

/// Starts one for leases of so many seconds of the addresses from 10.99.0.10 to 10.99.0.20. A client asks again, so a test does
/// not have to wait until it serves.
pub fn udhcpd(host: &Host, seconds: u32) -> RunningServer {
    let dir = host.dir().join("udhcpd");
    fs::create_dir_all(&dir).unwrap();
    let file = |name: &str| dir.join(name).display().to_string();
    let leases = file("leases");
    fs::write(&leases, "").unwrap();
    let pid_file = file("pid");
    let configuration = format!(
        "start 10.99.0.10\nend 10.99.0.20\ninterface {DHCP_BRIDGE}\nmax_leases 10\nlease_file {leases}\npidfile {pid_file}\n\
         min_lease 1\noption lease {seconds}\noption subnet 255.255.255.0\noption router {DHCP_SERVER}\n"
    );
    fs::write(dir.join("conf"), configuration).unwrap();
    let program =
        Program::new(find_program("busybox").expect("busybox is installed (Debian's busybox-static)"), Env::Clean(&[]))
            .args(vec!["udhcpd".into(), "-f".into(), "-a".into(), "50".into(), dir.join("conf").into()]);
    RunningServer::start(host, program)
}
