//! Bytes nobody can foretell.

use std::io;

use cnikit_skel::{Error, Result};

/// Random bytes for what is named. Fails with the kernel's error number, as errors of other calls do: getrandom(2), and
/// where it is refused /dev/urandom.
pub(crate) fn bytes<const N: usize>(what: &str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::from(io::Error::from(error)).context(format_args!("no random bytes for {what}")))?;
    Ok(bytes)
}
