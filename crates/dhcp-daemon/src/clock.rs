//! The clock of leases.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time since the boot, with the time that the machine slept: leases end while it sleeps (`CLOCK_BOOTTIME`).
pub(crate) fn now() -> Duration {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => Duration::from(time),
        Err(_) => Duration::ZERO, // every kernel has this clock
    }
}
