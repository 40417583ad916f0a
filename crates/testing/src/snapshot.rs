//! Snapshots: everything that a plugin could leave behind, as text that can be compared.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_process::{Deadline, Env, Program};
use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;

use crate::fingerprint::{self, Objects};
use crate::host::SMALL_DISK;
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

/// A program that prints a part of a snapshot. A program costs more time than its output: one runs only if there is something to
/// list, and one ip(8) prints links, addresses and neighbours. None runs if what it listed in this namespace has not changed since.
struct Part {
    program: &'static str,
    words: &'static [&'static str],
    stdin: &'static str,
    /// The fingerprint of the objects that it lists, if there is one.
    fingerprint: fn() -> Option<u64>,
    /// Whether the lines so far tell of something that it lists.
    is_wanted: fn(&BTreeSet<String>) -> bool,
    /// What a snapshot has of a line of its output.
    line: fn(&str) -> Option<String>,
}

const PARTS: [Part; 10] = [
    Part {
        program: "ip",
        words: &["-o", "-d", "-b", "-"],
        stdin: "link show\naddress show\nneigh show nud permanent\n",
        fingerprint: || fingerprint::of(&[Objects::Links, Objects::Addresses, Objects::Neighbours]),
        is_wanted: always,
        line: link_or_address,
    },
    Part {
        program: "ip",
        words: &["-4", "-b", "-"],
        stdin: ROUTES,
        fingerprint: || fingerprint::of(&[Objects::Names, Objects::Routes4, Objects::Rules4]),
        is_wanted: always,
        line: |line| Some(format!("IPv4: {}", without(line, moving_of_route))),
    },
    Part {
        program: "ip",
        words: &["-6", "-b", "-"],
        stdin: ROUTES,
        fingerprint: || fingerprint::of(&[Objects::Names, Objects::Routes6, Objects::Rules6]),
        is_wanted: always,
        line: ipv6,
    },
    Part {
        program: "tc",
        words: &["qdisc", "show"],
        stdin: "",
        fingerprint: || fingerprint::of(&[Objects::Names, Objects::Qdiscs]),
        is_wanted: always,
        line: |line| Some(qdisc(line)),
    },
    Part {
        program: "bridge",
        words: &["vlan", "show"],
        stdin: "",
        fingerprint: || fingerprint::of(&[Objects::BridgeVlans]),
        is_wanted: has_bridge,
        line: |line| (!line.ends_with("vlan-id")).then(|| format!("vlan: {line}")), // but the heads of the columns
    },
    Part {
        program: "nft",
        words: &["--stateless", "list", "ruleset"],
        stdin: "",
        fingerprint: fingerprint::of_ruleset,
        is_wanted: always,
        line: |line| Some(format!("nft: {line}")),
    },
    Part {
        program: "iptables-save",
        words: &[],
        stdin: "",
        fingerprint: fingerprint::of_ruleset,
        is_wanted: |lines| has_line(lines, "nft: table ip "),
        line: |line| rule("iptables", line),
    },
    Part {
        program: "ip6tables-save",
        words: &[],
        stdin: "",
        fingerprint: fingerprint::of_ruleset,
        is_wanted: |lines| has_line(lines, "nft: table ip6 "),
        line: |line| rule("ip6tables", line),
    },
    Part {
        program: "iptables-legacy-save",
        words: &[],
        stdin: "",
        fingerprint: || None,
        is_wanted: |_| has_legacy("ip_tables_names"),
        line: |line| rule("legacy iptables", line),
    },
    Part {
        program: "ip6tables-legacy-save",
        words: &[],
        stdin: "",
        fingerprint: || None,
        is_wanted: |_| has_legacy("ip6_tables_names"),
        line: |line| rule("legacy ip6tables", line),
    },
];

const ROUTES: &str = "route show table all\nrule show\n";

fn always(_: &BTreeSet<String>) -> bool {
    true
}

fn has_line(lines: &BTreeSet<String>, beginning: &str) -> bool {
    lines.range(beginning.to_owned()..).next().is_some_and(|line| line.starts_with(beginning))
}

fn has_bridge(lines: &BTreeSet<String>) -> bool {
    lines.iter().any(|line| line.starts_with("link: ") && line.contains(" bridge "))
}

/// Whether the kernel has a table of the legacy iptables, by a file with their names.
fn has_legacy(file: &str) -> bool {
    fs::read(format!("/proc/thread-self/net/{file}")).is_ok_and(|names| !names.is_empty())
}

/// A line without its index is `NAME: <FLAGS>` and more for a link, and `NAME inet` and more for an address. Link-local addresses
/// are left out: the kernel adds one to a link some time after it came up.
fn link_or_address(line: &str) -> Option<String> {
    let line = line.split_once(": ").filter(|(index, _)| index.parse::<u32>().is_ok()).map_or(line, |(_, rest)| rest);
    if line.contains("inet6 fe80::") {
        return None;
    }
    let Some(((name, flags), rest)) =
        line.split_once('>').and_then(|(begin, rest)| Some((begin.split_once(": <")?, rest)))
    else {
        return Some(format!("address: {}", without(line, moving_of_address)));
    };
    let name = name.split_once("@if").map_or(name, |(name, _)| name);
    let flags: Vec<&str> = flags.split(',').filter(|flag| !["NO-CARRIER", "LOWER_UP"].contains(flag)).collect();
    Some(format!("link: {name}: <{}> {}", flags.join(","), without(rest, moving_of_link)))
}

/// Routes but those of link-local addresses, and rules.
fn ipv6(line: &str) -> Option<String> {
    let kernels = ["fe80::", "local fe80::", "anycast fe80::", "multicast ff00::"];
    let is_kernels = kernels.iter().any(|begin| line.starts_with(begin));
    (!is_kernels).then(|| format!("IPv6: {}", without(line, moving_of_route)))
}

/// `qdisc KIND HANDLE: ...` without the handle.
fn qdisc(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.get(2).is_some_and(|handle| handle.ends_with(':')) {
        words.remove(2);
    }
    format!("qdisc: {}", words.join(" "))
}

/// A line of iptables-save(8) without its counters. A comment contains the time.
fn rule(title: &str, line: &str) -> Option<String> {
    (!line.starts_with('#')).then(|| format!("{title}: {}", without(line, moving_of_rule)))
}

/// The words of a line, but those that change by themselves: a function tells how many such words begin with a word.
fn without(line: &str, moving: fn(&str) -> usize) -> String {
    let mut words = line.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match moving(word) {
            0 => kept.push(word),
            count => drop(words.by_ref().take(count - 1).last()),
        }
    }
    kept.join(" ")
}

/// The count of promiscuity tells of the macvlans of a link, whose namespaces may still exist.
fn moving_of_link(word: &str) -> usize {
    match word {
        "bridge_id" | "designated_root" | "designated_bridge" | "link-netns" | "link-netnsid" | "state"
        | "promiscuity" | "allmulti" => 2,
        timer if timer.ends_with("_timer") => 2,
        _ => 0,
    }
}

fn moving_of_rule(word: &str) -> usize {
    usize::from(word.starts_with('[') && word.ends_with(']') && word.contains(':'))
}

fn moving_of_address(word: &str) -> usize {
    if ["valid_lft", "preferred_lft"].contains(&word) { 2 } else { 0 }
}

fn moving_of_route(word: &str) -> usize {
    match word {
        "linkdown" => 1,
        "expires" => 2,
        _ => 0,
    }
}

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
    let settings = settings(netns).into_iter().filter(|(path, _)| !MOVING.iter().any(|moving| path.contains(moving)));
    lines.extend(settings.map(|(path, value)| format!("sysctl: {path} = {value}")));
    lines.retain(|line| !line.contains(HOST_END) || LIMITS.iter().any(|limit| line.contains(limit)));
    lines
}

/// What the programs print.
fn shown(netns: &Netns) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let cookie = netns.cookie().ok();
    netns
        .enter(|_| {
            for part in &PARTS {
                if (part.is_wanted)(&lines) {
                    lines.extend(part.lines(cookie));
                }
            }
        })
        .unwrap();
    lines
}

/// The cookie of a namespace, a program with its words, and the fingerprint of the objects that it listed.
type ListKey = (u64, &'static str, &'static [&'static str], u64);

/// The lines of the lists that programs printed last, the latest at the end.
static LISTED: Mutex<VecDeque<(ListKey, Vec<String>)>> = Mutex::new(VecDeque::new());
/// How many of them are kept: those of a few hosts with their containers.
const KEPT: usize = 200;
/// Words of nft(8) for sets whose elements change without a change of the ruleset: they expire, or packets add them.
const CHANGES_ALONE: [&str; 3] = ["timeout", "dynamic", "meter "];

/// The names of host ends that the earlier plugins of a chain made begin with this, in the tests of chained plugins. Such links,
/// and devices that are made for a container, come and go with containers: of them only limits are compared.
const HOST_END: &str = "pairend";
/// Queueing disciplines that limit a host end.
const LIMITS: [&str; 2] = ["qdisc tbf", "qdisc ingress"];

impl Part {
    /// The lines for the calling thread's namespace, which has this cookie.
    fn lines(&self, cookie: Option<u64>) -> Vec<String> {
        let key = || Some((cookie?, self.program, self.words, (self.fingerprint)()?));
        let before = key();
        if let Some((_, lines)) = LISTED.lock().unwrap().iter().rev().find(|(known, _)| Some(*known) == before) {
            return lines.clone();
        }
        let text = self.output();
        let lines: Vec<String> =
            text.lines().map(str::trim_end).filter(|line| !line.is_empty()).filter_map(self.line).collect();
        if let Some(unchanged) = before.filter(|_| key() == before)
            && !CHANGES_ALONE.iter().any(|word| text.contains(word))
        {
            let mut listed = LISTED.lock().unwrap();
            listed.push_back((unchanged, lines.clone()));
            let surplus = listed.len().saturating_sub(KEPT);
            listed.drain(..surplus);
        }
        lines
    }

    /// What the program prints here, if it is installed. What it says on stderr is no part of a snapshot.
    fn output(&self) -> String {
        let Some(path) = cnikit_process::find_program(self.program) else { return String::new() };
        let program = Program::new(path, Env::inherited(Vec::new()))
            .args(self.words.iter().map(Into::into).collect())
            .stdin(self.stdin.into())
            .limit(64 << 20);
        let ended = cnikit_process::run(&program, Deadline::after(Duration::from_mins(1))).unwrap();
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }
}

/// The directory of a network namespace's settings.
const SETTINGS: &str = "/proc/sys/net";
/// More than most settings have, and more than the longest one, in bytes. For each read(2) the kernel clears as many.
const USUAL: usize = 256;
const LONGEST: usize = 64 << 10;

/// The path and the value of every setting below `/proc/sys/net` that can be read in a namespace. There are about 600, and 130 more
/// for each link. So each is opened from its directory, which spares the kernel the walk from the root, and read by one pread(2),
/// which returns all of it.
pub fn settings(netns: &Netns) -> Vec<(String, String)> {
    netns.enter(|_| settings_here()).unwrap()
}

fn settings_here() -> Vec<(String, String)> {
    let mut settings = Vec::new();
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
                _ => {
                    if let Ok(value) = setting(&dir, entry.file_name(), &mut buffer) {
                        settings.push((full, String::from_utf8_lossy(value).trim().to_owned()));
                    }
                }
            }
        }
    }
    settings
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

/// The mounts of the calling thread's namespace that a test is answerable for, without the disks of hosts. Into a namespace whose
/// root is shared (`mount_namespaces(7)`) the rest of the machine's mounts propagate: there, only those below this directory.
fn mounts(dir: &Path) -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
    let mut lines: Vec<&str> = table.lines().filter(|line| line.split(' ').next() != Some(SMALL_DISK)).collect();
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
    fn what_changes_by_itself_is_left_out_of_a_line() {
        let link = "7: eth0@if3: <BROADCAST,NO-CARRIER,UP,LOWER_UP> mtu 1500 state UP promiscuity 1  allmulti 1 gc_timer    0.00 veth";
        assert_eq!(link_or_address(link).unwrap(), "link: eth0: <BROADCAST,UP> mtu 1500 veth");
        let upper = link_or_address("8: v7@eth0: <UP> mtu 1500 link-netnsid 3 vlan id 7").unwrap();
        assert_eq!(upper, "link: v7@eth0: <UP> mtu 1500 vlan id 7");
        let address = "7: eth0    inet 10.0.0.1/24 scope global eth0\\       valid_lft 59sec preferred_lft forever";
        assert_eq!(link_or_address(address).unwrap(), "address: eth0 inet 10.0.0.1/24 scope global eth0\\");
        assert_eq!(link_or_address("7: eth0    inet6 fe80::1/64 scope link"), None);
        let neighbour = "10.0.0.9 dev eth0 lladdr 0a:00:00:00:00:01 PERMANENT";
        assert_eq!(link_or_address(neighbour).unwrap(), format!("address: {neighbour}"));
        assert_eq!(
            ipv6("fd00::/64 dev eth0 expires 12sec linkdown metric 7").unwrap(),
            "IPv6: fd00::/64 dev eth0 metric 7"
        );
        assert_eq!(ipv6("multicast ff00::/8 dev eth0 table local"), None);
        assert_eq!(qdisc("qdisc tbf 8001: dev eth0 root"), "qdisc: qdisc tbf dev eth0 root");
        assert_eq!(rule("iptables", ":INPUT ACCEPT [12:34]").unwrap(), "iptables: :INPUT ACCEPT");
        assert_eq!(rule("iptables", "# Generated on a day"), None);
    }

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
