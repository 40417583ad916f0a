//! Paths to the network namespaces of this machine: by a mount, or by a process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// The paths on which network namespaces are mounted, as runtimes and `ip netns` mount them, in the order of the mounts. See
/// `proc_pid_mountinfo(5)`. A path that is covered by another mount is listed too, although something else is found there.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn mounted() -> io::Result<Vec<PathBuf>> {
    Ok(mounts(&std::fs::read_to_string("/proc/self/mountinfo")?).map(|(_, point)| point.into()).collect())
}

/// One path in `/proc` for each network namespace that a process is in, except the namespace of the calling thread. Processes that
/// `/proc` hides, or that end meanwhile, are skipped. See `proc_pid_ns(5)`.
///
/// # Errors
/// `/proc` or the link to the calling thread's namespace cannot be read.
pub fn of_processes() -> io::Result<Vec<PathBuf>> {
    let mut seen = BTreeSet::from([fs::read_link("/proc/thread-self/ns/net")?]);
    let mut ways = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let way = entry?.path().join("ns/net");
        if fs::read_link(&way).is_ok_and(|name| seen.insert(name)) {
            ways.push(way);
        }
    }
    Ok(ways)
}

/// For each mount of a network namespace: its name, `net:[INODE]`, and the path.
pub(crate) fn mounts(table: &str) -> impl Iterator<Item = (&str, String)> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let name = fields.next()?;
        let point = fields.next()?;
        name.starts_with("net:[").then(|| (name, unescaped(point)))
    })
}

/// Decodes a path of `proc_pid_mountinfo(5)`, where space, tab, newline and backslash are three octal digits.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let mut plain = text.to_owned();
    for (escape, character) in escapes {
        plain = plain.replace(escape, character);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_network_namespaces_are_read_with_their_paths() {
        let table = "29 1 0:26 / /run rw shared:5 - tmpfs tmpfs rw\n\
                     90 29 0:4 net:[4026532281] /run/netns/a\\040b rw shared:7 - nsfs nsfs rw\n\
                     91 29 0:4 mnt:[4026532282] /run/mnt rw - nsfs nsfs rw\n";
        let found: Vec<_> = mounts(table).collect();
        assert_eq!(found, [("net:[4026532281]", "/run/netns/a b".to_owned())]);
    }
}
