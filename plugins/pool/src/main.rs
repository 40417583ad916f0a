//! The CNI plugin pool as a binary of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnikit::main::<cnikit::Ipam<pool::PoolPlugin>>()
}
