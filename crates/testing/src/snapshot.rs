//! Snapshots: everything that a plugin could leave behind, as text that can be compared.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_process::{Deadline, Env, Program};
use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;

use crate::{Container, Host};

/// Files of host-local and pool with content that may change: the last reserved address, the index, released addresses. In a
/// `dataDir` `leases` below the host's directory, and in the default one of a host with its own `/var/lib/cni`
/// ([`Host::with_own`]).
pub const HINTS: [&str; 5] = [
    "file: leases/<network>/last_reserved_ip.",
    "file: leases/.idx/<network> = ",
    "file: state/var/lib/cni/networks/<network>/last_reserved_ip.",
    "file: state/var/lib/cni/networks/.idx/<network> = ",
    "file: leases/.pool/<network> = \"cooling1 ",
];

/// The placeholder for a network's name in a text that a line may contain.
const NETWORK: &str = "<network>";

/// A snapshot of a host or container, with one line per object: links with alias and altnames, addresses, routes of all tables,
/// rules, neighbours, queueing disciplines, bridge VLANs, the nftables and all four iptables rulesets, /proc/sys/net, files,
/// mounts.
///
/// ```no_run
/// # use cnikit_testing::{Host, HostSnapshot};
/// # let host = Host::new();
/// let before = HostSnapshot::of(&host);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostSnapshot(BTreeSet<String>);

/// Title, command, and script of sed(1) for each part of a snapshot. The script sees each line of the output after the title. It
/// removes counters (that of promiscuity counts the macvlans of a link, whose namespaces may still exist), times and indexes, and
/// the link-local address and routes that the kernel adds to a link some time after it came up. Commands are skipped if there is
/// nothing to list, because each program costs more time than its output.
const QUERIES: [(&str, &str, &str); 11] = [
    (
        "link",
        "ip -o -d link show",
        "s/: [0-9]+: /: /; s/@if[0-9]+//; s/link-netns(id)? [^ ]+//; s/ (bridge_id|designated_root|designated_bridge) [^ ]+//g; s/ [a-z_]+_timer +[0-9.]+//g; s/,?(NO-CARRIER|LOWER_UP)//g; s/<,/</; s/ state [A-Z]+ / /; s/ promiscuity [0-9]+( +allmulti [0-9]+)?//",
    ),
    (
        "address",
        "ip -o -b - <<END\naddress show\nneigh show nud permanent\nEND",
        "/inet6 fe80::/d; s/: [0-9]+: /: /; s/ (valid|preferred)_lft [^ ]+//g",
    ),
    ("IPv4", "ip -4 -b - <<END\nroute show table all\nrule show\nEND", "s/ linkdown//"),
    (
        "IPv6",
        "ip -6 -b - <<END\nroute show table all\nrule show\nEND",
        "/: (((local|anycast) )?fe80::|multicast ff00::)/d; s/ expires [0-9]+sec//; s/ linkdown//",
    ),
    ("qdisc", "tc qdisc show 2>/dev/null", "s/qdisc ([a-z_]+) [0-9a-f]+:/qdisc \\1/"),
    ("vlan", "bridge vlan show 2>/dev/null", ""),
    ("nft", "rules=$(nft --stateless list ruleset); printf '%s\\n' \"$rules\"", ""),
    ("iptables", "case $rules in *'table ip '*) iptables-save 2>/dev/null ;; esac", RULESET),
    ("ip6tables", "case $rules in *'table ip6 '*) ip6tables-save 2>/dev/null ;; esac", RULESET),
    (
        "legacy iptables",
        "if read -r _ 2>/dev/null </proc/net/ip_tables_names; then iptables-legacy-save 2>/dev/null; fi",
        RULESET,
    ),
    (
        "legacy ip6tables",
        "if read -r _ 2>/dev/null </proc/net/ip6_tables_names; then ip6tables-legacy-save 2>/dev/null; fi",
        RULESET,
    ),
];

/// Removes comments, which contain the time, and counters.
const RULESET: &str = "/^[^:]*: #/d; s/\\[[0-9:]+\\]//";

/// The prefix of a line that is a title.
const TITLE: &str = "== ";

/// Time for the kernel to remove a namespace that no process holds, and the interval of the checks.
const CLEARED: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(100);
/// How many snapshots are compared with the one before, if they take long.
const LEAST: usize = 3;
/// Time for the kernel to detect duplicates of an address: it begins within a second, and takes one.
const DETECTED: Duration = Duration::from_secs(4);

/// The most lines that a finding shows.
const SHOWN: usize = 12;

/// Settings that the kernel changes by itself, such as counters.
const MOVING: [&str; 4] = ["nf_conntrack_count", "route/flush", "fs_verity", "neigh/default/gc_"];

impl HostSnapshot {
    /// Takes a snapshot of a host: its namespace, the files below its directory, and mounts. Where no mounts of other processes
    /// come and go (`/` is not a shared mount), these are all mounts; elsewhere those below its directory.
    pub fn of(host: &Host) -> HostSnapshot {
        let mut lines = namespace(host.netns());
        lines.extend(files(host.dir(), host.dir()));
        lines.extend(host.enter(|| mounts(host.dir())));
        HostSnapshot(lines)
    }

    /// Takes a snapshot of a container's namespace.
    pub fn inside(container: &Container) -> HostSnapshot {
        HostSnapshot(namespace(container.netns()))
    }

    /// The lines that were added, except those that contain one of these texts; see [`line_contains`].
    pub fn added_since(&self, before: &HostSnapshot, but: &[&str]) -> Vec<String> {
        self.0.difference(&before.0).filter(|line| !but.iter().any(|text| line_contains(line, text))).cloned().collect()
    }

    /// Takes a snapshot when nothing changes any more: the kernel adds some routes of an address after a delay.
    pub fn stable(host: &Host) -> HostSnapshot {
        at_rest(Deadline::after(CLEARED), || HostSnapshot::of(host)).unwrap_or_else(|[before, last]| {
            let (came, went) = (last.added_since(&before, &[]), before.added_since(&last, &[]));
            panic!("the host does not come to rest within {CLEARED:?}: came {came:?}, went {went:?}")
        })
    }

    /// The lines that were added on a host and stay, except those that contain one of these texts. The kernel gets time to remove
    /// what belonged to a removed namespace.
    pub fn staying(host: &Host, before: &HostSnapshot, but: &[&str]) -> Vec<String> {
        let deadline = Deadline::after(CLEARED);
        loop {
            let came = HostSnapshot::of(host).added_since(before, but);
            if came.is_empty() || !deadline.pause(TICK) {
                return came;
            }
        }
    }

    /// Lines that were added or removed on a host, except those that contain one of these texts. The kernel gets time to remove
    /// what belonged to a removed namespace. `None` if there is no difference.
    pub fn leftovers(host: &Host, before: &HostSnapshot, but: &[&str]) -> Option<String> {
        let deadline = Deadline::after(CLEARED);
        loop {
            let after = HostSnapshot::of(host);
            let came = after.added_since(before, but);
            let went = before.added_since(&after, but);
            if came.is_empty() && went.is_empty() {
                return None;
            }
            if !deadline.pause(TICK) {
                return Some(format!("came {}, went {}", some(&came), some(&went)));
            }
        }
    }

    /// Panics if a line was added or removed, except those that contain one of these texts.
    pub fn assert_unchanged_since(&self, before: &HostSnapshot, but: &[&str], when: &str) {
        let came = self.added_since(before, but);
        let went = before.added_since(self, but);
        assert!(came.is_empty() && went.is_empty(), "{when}: came {came:#?}, went {went:#?}");
    }
}

/// Takes values until one is like that before it. On a slow machine the first may take longer than the deadline, so at least
/// [`LEAST`] are compared.
///
/// # Errors
/// The last two, if they still differ after the deadline.
fn at_rest<T: PartialEq>(deadline: Deadline, mut take: impl FnMut() -> T) -> Result<T, [T; 2]> {
    let mut last = take();
    let mut compared = 0;
    loop {
        Deadline::never().pause(TICK);
        let next = take();
        compared += 1;
        if next == last {
            return Ok(next);
        }
        if compared >= LEAST && deadline.passed() {
            return Err([last, next]);
        }
        last = next;
    }
}

/// The number of lines, and some of them, for a finding.
fn some(lines: &[String]) -> String {
    format!("{} ({})", lines.len(), lines[..SHOWN.min(lines.len())].join(" | "))
}

/// Whether a line contains a text. `<network>` in the text matches any name of a network, which is the name of a directory or a
/// file that is not hidden.
pub fn line_contains(line: &str, text: &str) -> bool {
    let Some((before, after)) = text.split_once(NETWORK) else { return line.contains(text) };
    for (at, _) in line.match_indices(before) {
        let rest = &line[at + before.len()..];
        let end = rest.find(['/', ' ']).unwrap_or(rest.len());
        if end > 0 && !rest.starts_with('.') && rest[end..].starts_with(after) {
            return true;
        }
    }
    false
}

fn namespace(netns: &Netns) -> BTreeSet<String> {
    let mut lines = shown(netns);
    // While the kernel looks for duplicates of an IPv6 address (RFC 4862) it is marked, and has no routes yet.
    let deadline = Deadline::after(DETECTED);
    while lines.iter().any(|line| line.contains(" tentative ")) && deadline.pause(TICK) {
        lines = shown(netns);
    }
    netns.enter(|_| settings(&mut lines)).unwrap();
    lines.retain(|line| !line.contains(HOST_END) || LIMITS.iter().any(|limit| line.contains(limit)));
    lines
}

/// What the programs print.
fn shown(netns: &Netns) -> BTreeSet<String> {
    run(netns, &script()).lines().map(str::to_owned).collect()
}

/// The names of host ends that the earlier plugins of a chain made begin with this, in the tests of chained plugins. Such links,
/// and devices that are made for a container, come and go with containers: of them only limits are compared.
const HOST_END: &str = "pairend";
/// Queueing disciplines that limit a host end.
const LIMITS: [&str; 2] = ["qdisc tbf", "qdisc ingress"];

/// Makes a shell script that runs all commands and passes the output to one sed(1). The title of each part selects its sed script.
fn script() -> String {
    let mut commands = Vec::new();
    let mut scripts = Vec::new();
    for (title, command, script) in QUERIES {
        commands.push(format!("echo '{TITLE}{title}'; {command}"));
        scripts.push(format!("/^{title}: /{{\n{script}\n}}"));
    }
    let add_title = format!("/^{TITLE}/{{ s///; h; d }}\n/^ *$/d; G; s/^(.*)\\n(.*)$/\\2: \\1/");
    format!("{{\n{}\n}} | sed -E '{add_title}\n{}\ns/ *$//'", commands.join("\n"), scripts.join("\n"))
}

fn run(netns: &Netns, script: &str) -> String {
    let program =
        Program::new("/bin/sh", Env::inherited(Vec::new())).args(vec!["-c".into(), script.into()]).limit(64 << 20);
    let ended = netns.enter(|_| cnikit_process::run(&program, Deadline::after(Duration::from_mins(1))));
    String::from_utf8_lossy(&ended.unwrap().unwrap().stdout).into_owned()
}

/// The directory of a network namespace's settings.
const SETTINGS: &str = "/proc/sys/net";
/// More than most settings have, and more than the longest one, in bytes. For each read(2) the kernel clears as many.
const USUAL: usize = 256;
const LONGEST: usize = 64 << 10;

/// Adds every setting that can be read. A namespace has about 600, and 130 more for each link. So each is opened from its
/// directory, which spares the kernel the walk from the root, and read by one pread(2), which returns all of it.
fn settings(lines: &mut BTreeSet<String>) {
    let mut buffer = vec![0; LONGEST];
    let mut directories = vec![SETTINGS.to_owned()];
    while let Some(path) = directories.pop() {
        let Ok(mut dir) = Dir::open(&*path, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) else { continue };
        let entries: Vec<_> = dir.iter().flatten().collect();
        for entry in entries {
            let Ok(name) = entry.file_name().to_str() else { continue };
            let full = format!("{path}/{name}");
            match entry.file_type() {
                Some(Type::Directory) if [".", ".."].contains(&name) => {}
                Some(Type::Directory) => directories.push(full),
                _ if MOVING.iter().any(|moving| full.contains(moving)) => {}
                _ => {
                    if let Ok(value) = setting(&dir, entry.file_name(), &mut buffer) {
                        lines.insert(format!("sysctl: {full} = {}", String::from_utf8_lossy(value).trim()));
                    }
                }
            }
        }
    }
}

/// The value of a setting, in the buffer.
fn setting<'a>(dir: &Dir, name: &CStr, buffer: &'a mut [u8]) -> nix::Result<&'a [u8]> {
    let file = openat(dir, name, OFlag::O_CLOEXEC, Mode::empty())?;
    let mut length = pread(&file, &mut buffer[..USUAL], 0)?;
    if length == USUAL {
        length = pread(&file, buffer, 0)?;
    }
    Ok(&buffer[..length])
}

fn files(dir: &Path, root: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut lines = BTreeSet::new();
    for path in entries.map(|entry| entry.path()) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if let Ok(target) = fs::read_link(&path) {
            lines.insert(format!("link: {name} to {}", target.display())); // the target itself is not read
        } else if path.is_dir() {
            lines.insert(format!("directory: {name}"));
            lines.extend(files(&path, root));
        } else if path.is_file() {
            let content = read_regular(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            lines.insert(format!("file: {name} = {:?}", content.unwrap_or_default()));
        } else {
            lines.insert(format!("special file: {name}")); // not opened: a FIFO waits for a writer, a device may do anything
        }
    }
    lines
}

/// Reads a regular file. If another program replaced it by a FIFO or a link since it was listed, the open neither waits nor
/// follows.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let mut file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let mut content = Vec::new();
    if file.metadata()?.is_file() {
        file.read_to_end(&mut content)?;
    }
    Ok(content)
}

/// The mounts of the calling thread's namespace that a test is answerable for. Into a namespace whose root is shared
/// (`mount_namespaces(7)`) the rest of the machine's mounts propagate: there, only those below this directory.
fn mounts(dir: &Path) -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
    let mut lines: Vec<&str> = table.lines().collect();
    if root_is_shared(&fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default()) {
        let dir = dir.to_string_lossy();
        lines.retain(|line| line.split(' ').nth(1).is_some_and(|place| place.starts_with(dir.as_ref())));
    }
    lines.iter().map(|line| format!("mount: {line}")).collect()
}

/// Whether `/` is a shared mount, by a table in the form of `proc_pid_mountinfo(5)`: the last line of a place is the visible
/// mount, and its optional fields begin at the seventh.
fn root_is_shared(table: &str) -> bool {
    let root = table.lines().rfind(|line| line.split(' ').nth(4) == Some("/")).unwrap_or_default();
    root.split(' ').skip(6).take_while(|field| *field != "-").any(|field| field.starts_with("shared:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_read_slowly_comes_to_rest_too() {
        let passed = Deadline::after(Duration::ZERO);
        let mut read = [1, 2, 3, 3].into_iter();
        assert_eq!(at_rest(passed, || read.next().unwrap()), Ok(3));
        let mut read = 1..;
        assert_eq!(at_rest(passed, || read.next().unwrap()), Err([3, 4]));
    }

    #[test]
    fn a_fifo_a_socket_and_a_link_to_one_are_named_and_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "text").unwrap();
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let lines: Vec<String> = files(dir.path(), dir.path()).into_iter().collect();
        let link = format!("link: link to {}", at("fifo").display());
        let expected = ["file: file = \"text\"", &link, "special file: fifo", "special file: socket"];
        assert_eq!(lines, expected);
        // Files that replaced a regular file after it was listed.
        assert_eq!(read_regular(&at("fifo")).unwrap(), b"");
        assert!(read_regular(&at("link")).is_err());
    }

    #[test]
    fn a_shared_root_is_recognised() {
        let lines = |root: &str| {
            format!(
                "22 1 8:1 / / rw,relatime {root}- ext4 /dev/sda1 rw\n23 22 0:5 / /proc rw shared:5 - proc proc rw\n"
            )
        };
        assert!(root_is_shared(&lines("shared:1 ")) && root_is_shared(&lines("shared:1 master:3 ")));
        assert!(!root_is_shared(&lines("")) && !root_is_shared(&lines("master:1 ")) && !root_is_shared(""));
        let covered = lines("shared:1 ") + "40 22 0:9 / / rw - overlay overlay rw\n";
        assert!(!root_is_shared(&covered), "the last mount is the visible one");
    }

    #[test]
    fn only_files_that_are_hints_match_hints() {
        let hint = |line: &str| HINTS.iter().any(|text| line_contains(line, text));
        for line in [
            "file: leases/pods/last_reserved_ip.0 = \"10.0.0.2\"",
            "file: leases/.idx/pods = \"\\u{0}\"",
            "file: leases/.pool/pods.cooling = \"cooling1 2b\"",
        ] {
            assert!(hint(line), "{line}");
        }
        for line in [
            "file: leases/.idx/.pods.new = \"\"",
            "file: leases/.idx/pods/x = \"\"",
            "file: leases/pods/10.0.0.2 = \"c-one\\r\\neth0\"",
            "file: leases/.aside/pods/last_reserved_ip.0 = \"\"",
            "directory: leases/.idx",
        ] {
            assert!(!hint(line), "{line}");
        }
    }
}
