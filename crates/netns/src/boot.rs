//! The identity of the running boot and of this machine.

use std::fs::{self, File};

use crate::Error;
use crate::sysctl::value_in;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's id of this boot, a UUID that changes with every boot. See random(4).
///
/// # Errors
/// `/proc/sys/kernel/random/boot_id` cannot be opened or read, for example because `/proc` is not mounted.
pub fn boot_id() -> Result<String, Error> {
    File::open(BOOT_ID).and_then(|file| value_in(&file)).map_err(|source| Error::new("read", BOOT_ID, source))
}

/// The id of this installation, 32 hexadecimal digits; `None` if it has none yet. See machine-id(5).
pub fn machine_id() -> Option<String> {
    let text = fs::read_to_string("/etc/machine-id").ok()?;
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}
