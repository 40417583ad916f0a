//! The daemon as a program of its own: `lease-daemon -socketpath /run/leases.sock -datadir /var/lib/leases`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    cnikit_dhcp_daemon::run(&arguments)
}
