//! The CNI plugin host-local as a binary of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnikit::main::<cnikit::Ipam<host_local::HostLocalPlugin>>()
}
