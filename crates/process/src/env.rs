//! The environment of a program, and the search for programs of the host.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The directories that are searched for programs of the host after those of `PATH`: the caller's may lack some.
const USUAL: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// Which environment a program gets. There is no default: the caller has to choose.
#[derive(Clone, Debug)]
pub enum Env {
    /// A `PATH` of absolute directories, those of our variables that are listed here, and nothing else.
    ///
    /// For programs of the host: variables that our caller sets must not reach them (`LD_PRELOAD`, `XTABLES_LIBDIR`, `BASH_ENV`).
    Clean(&'static [&'static str]),
    /// All our variables except those in `without`; then `set`, which takes precedence.
    Inherited {
        /// Names that are left out.
        without: &'static [&'static str],
        /// Names and values that are set.
        set: Vec<(OsString, OsString)>,
    },
}

impl Env {
    /// All variables of this process, overridden by `set`.
    pub fn inherited(set: Vec<(OsString, OsString)>) -> Self {
        Self::Inherited { without: &[], set }
    }

    /// Names and values, sorted by name.
    #[expect(clippy::disallowed_methods, reason = "a program inherits variables whose meaning is not ours")]
    pub(crate) fn variables(&self) -> BTreeMap<OsString, OsString> {
        match self {
            Self::Clean(pass) => {
                let passed = pass.iter().filter_map(|name| Some((OsString::from(name), env::var_os(name)?)));
                passed.chain([("PATH".into(), search_path())]).collect()
            }
            Self::Inherited { without, set } => {
                let own = env::vars_os().filter(|(name, _)| !without.iter().any(|left_out| name == left_out));
                own.chain(set.iter().cloned()).collect()
            }
        }
    }
}

/// The first executable file of this name in the absolute directories of `PATH`, then in the standard directories.
///
/// Relative and empty entries of `PATH` are ignored: with them root would run a program of the owner of the working directory.
#[doc(alias = "which")]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = search_path();
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_program(file))
}

#[expect(clippy::disallowed_methods, reason = "which program of a name is the administrator's, only PATH tells")]
fn search_path() -> OsString {
    absolute_entries(&env::var_os("PATH").unwrap_or_default())
}

/// The absolute directories of a `PATH`, then the standard ones, each once.
fn absolute_entries(path: &OsStr) -> OsString {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in env::split_paths(path).chain(env::split_paths(USUAL)) {
        if entry.is_absolute() && !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    // The entries were split at colons, so they contain none and can be joined again.
    env::join_paths(entries).unwrap_or_else(|_| USUAL.into())
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_and_empty_entries_of_path_are_ignored() {
        assert_eq!(
            absolute_entries(OsStr::new(".::bin:/own:../x:/usr/bin:")),
            format!("/own:/usr/bin:{}", { USUAL.replace(":/usr/bin", "") }).as_str()
        );
        assert_eq!(absolute_entries(OsStr::new("")), USUAL);
    }

    #[test]
    fn a_program_is_found_by_an_absolute_path() {
        assert!(find_program("sh").is_some_and(|file| file.is_absolute()));
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }
}
