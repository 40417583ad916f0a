//! Versions of the formats of stored files.

use std::io;
use std::path::PathBuf;

use crate::Error;
use crate::error::NewerVersion;

/// Checks that this release can read a stored file: `found` is the version in the file, `newest` the one that this release
/// writes. The caller reads the version before anything else in the file.
///
/// # Errors
/// `found` is above `newest` ([`Error::is_newer_version`]): a later release wrote the file.
pub fn check_version(path: impl Into<PathBuf>, found: u64, newest: u64) -> Result<(), Error> {
    if found <= newest {
        return Ok(());
    }
    Err(Error::new("read", path, io::Error::new(io::ErrorKind::Unsupported, NewerVersion { found, newest })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_version_is_reported_with_file_version_and_hint() {
        check_version("/run/x", 1, 2).unwrap();
        check_version("/run/x", 2, 2).unwrap();
        let error = check_version("/run/x", 3, 2).unwrap_err();
        assert!(error.is_newer_version() && !error.is_garbage() && !error.is_absent());
        assert_eq!(
            error.to_string(),
            "read /run/x: it has version 3 of its format, and this release reads no version above 2 (a later release \
             wrote it: install that release again, or remove the file when its container has ended)"
        );
    }
}
