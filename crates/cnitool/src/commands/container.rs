//! The container id of a namespace, by upstream's formula.

use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha512};

/// `cnitool-` and the first ten bytes of the SHA-512 of the path in hexadecimal. Another spelling of the path gives another id.
pub(crate) fn id_of(netns: &str) -> String {
    let hash = Sha512::digest(netns.as_bytes());
    let mut parts = vec!["cnitool-".to_owned()];
    for byte in &hash[..10] {
        parts.push(format!("{byte:02x}"));
    }
    parts.concat()
}

/// The absolute path, without `.`, `..` and double slashes; symbolic links are not resolved.
pub(crate) fn absolute(path: &str, working_directory: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in working_directory.join(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_id_is_that_of_upstream() {
        assert_eq!(id_of("/var/run/netns/x"), "cnitool-4acf487154af9777be71");
        assert_ne!(id_of("/run/netns/x"), id_of("/var/run/netns/x"));
    }

    #[test]
    fn a_path_is_made_absolute_without_reading_the_file_system() {
        let cases = [
            ("/var/run/netns/x", "/var/run/netns/x"),
            ("x", "/home/me/x"),
            ("./../x/", "/home/x"),
            ("/a//b/./../c", "/a/c"),
            ("/../..", "/"),
            ("", "/home/me"),
        ];
        for (path, clean) in cases {
            assert_eq!(absolute(path, Path::new("/home/me")), Path::new(clean), "{path}");
        }
    }
}
