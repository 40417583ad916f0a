//! A name for a container that has none: from the path of its namespace, by the reference's formula.

use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha512};

/// `cnitool-` and the first ten bytes of the path's SHA-512 in hexadecimal. Another spelling is another container.
pub(crate) fn id_of(netns: &str) -> String {
    let hash = Sha512::digest(netns.as_bytes());
    hash.iter().take(10).fold(String::from("cnitool-"), |id, byte| id + &format!("{byte:02x}"))
}

/// The path from the root, without `.`, `..` and double slashes; symbolic links are not looked at.
pub(crate) fn absolute(path: &str, working_directory: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in working_directory.join(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_id_is_the_references() {
        assert_eq!(id_of("/var/run/netns/x"), "cnitool-4acf487154af9777be71");
        assert_ne!(id_of("/run/netns/x"), id_of("/var/run/netns/x"));
    }

    #[test]
    fn a_path_is_made_absolute_without_looking_at_the_disk() {
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
