//! The identity of the running boot and of this machine.

use std::fs::{self, File};
use std::sync::OnceLock;

use crate::Error;
use crate::sysctl::value_in;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's id of this boot, a UUID that changes with every boot. See random(4).
///
/// # Errors
/// `/proc/sys/kernel/random/boot_id` cannot be opened or read, for example because `/proc` is not mounted.
pub fn boot_id() -> Result<String, Error> {
    static READ: OnceLock<String> = OnceLock::new();
    if let Some(id) = READ.get() {
        return Ok(id.clone());
    }
    let id =
        File::open(BOOT_ID).and_then(|file| value_in(&file)).map_err(|source| Error::new("read", BOOT_ID, source))?;
    Ok(READ.get_or_init(|| id).clone())
}

/// The id of this installation, 32 hexadecimal digits; `None` if it has none yet. See machine-id(5).
///
/// Like the boot's, it is read once: it does not change while a process runs, unless it had none.
pub fn machine_id() -> Option<String> {
    static READ: OnceLock<String> = OnceLock::new();
    if let Some(id) = READ.get() {
        return Some(id.clone());
    }
    let text = fs::read_to_string("/etc/machine-id").ok()?;
    let id = text.trim();
    let is_valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_valid { Some(READ.get_or_init(|| id.to_owned()).clone()) } else { None }
}
