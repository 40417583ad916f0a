//! `cni-plugins install`, `watch`, `uninstall` and `verify`: on nodes below a directory, killed at each system call, with each one
//! failing, and while other programs work in the same directory.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::disallowed_methods, reason = "it runs the installer, on the host itself")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cnikit_process::Deadline;
use cnikit_testkit::campaign::{SummaryLine, sample};
use cnikit_testkit::errno::errnos;
use cnikit_testkit::syscall_trace::{self, Syscall, SyscallTrace, SyscallVerdict, name};
use cnikit_tests::{NAMES, released};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A node whose root is a directory.
struct Node {
    dir: TempDir,
}

/// Upstream's packaged plugin: a whole program of another maker.
fn foreign() -> Vec<u8> {
    let [packaged, _] = cnikit_tests::references();
    fs::read(packaged.join("bridge")).unwrap()
}

fn launcher() -> Vec<u8> {
    fs::read(released().join("cni-launcher")).unwrap()
}

/// Path, mode and content of every file.
type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn files(dir: &Path) -> Files {
    let mut found = Files::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let facts = fs::symlink_metadata(&path).unwrap();
        if facts.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), (facts.mode(), fs::read(&path).unwrap_or_default()));
        }
    }
    found
}

impl Node {
    fn new() -> Node {
        let node = Node { dir: tempfile::tempdir_in("/var/tmp").unwrap() };
        fs::set_permissions(node.root(), fs::Permissions::from_mode(0o755)).unwrap();
        node
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn plugin(&self, name: &str) -> PathBuf {
        self.root().join("opt/cni/bin").join(name)
    }

    fn list(&self, name: &str) -> PathBuf {
        self.root().join("etc/cni/net.d").join(name)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn args(&self, line: &str) -> Vec<String> {
        let mut args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        args.insert(1, format!("--root={}", self.root().display()));
        args
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(released().join("cni-plugins"));
        command.args(self.args(line)).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> (i32, String) {
        let printed = self.command(line).output().unwrap();
        let text = [printed.stdout, printed.stderr].concat();
        (printed.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    fn ok(&self, line: &str) -> String {
        let (status, printed) = self.run(line);
        assert_eq!(status, 0, "{line}: {printed}");
        printed
    }

    fn refused(&self, line: &str) -> String {
        let (status, printed) = self.run(line);
        assert_eq!(status, 1, "{line}: {printed}");
        printed
    }

    fn is_ours(&self, name: &str) -> bool {
        fs::read(self.plugin(name)).is_ok_and(|content| content == launcher())
    }

    fn files(&self) -> Files {
        files(self.root())
    }
}

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge",
    "ipam":{"type":"host-local","ranges":"@podCIDRRanges@","routes":"@podCIDRRoutes@"}}]}"#;

#[test]
fn the_directories_of_the_runtime_are_used_and_the_list_comes_last() {
    let node = Node::new();
    node.write(
        "etc/containerd/config.toml",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/usr/lib/cni']\nconf_dir = '/srv/net.d'\n",
    );
    let list = node.write("10-pods.conflist", LIST);
    let line = format!("--network-list {} --pod-cidr 10.9.0.0/24,fd00:9::/64 --tool-dir /usr/bin", list.display());
    let printed = node.ok(&format!("install {line}"));
    assert!(printed.contains("usr/lib/cni") && printed.contains("10-pods.conflist in"), "{printed}");
    let placed: serde_json::Value =
        serde_json::from_slice(&fs::read(node.root().join("srv/net.d/10-pods.conflist")).unwrap()).unwrap();
    let ipam = &placed["plugins"][0]["ipam"];
    assert_eq!(ipam["ranges"], serde_json::json!([[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]]));
    assert_eq!(ipam["routes"], serde_json::json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
    assert!(!node.plugin("bridge").exists(), "the usual directory is not the runtime's");
    assert_eq!(node.ok(&format!("verify {line}")), "");
    let before = node.files();
    assert!(node.ok(&format!("install {line}")).contains("all was as it should be"));
    assert!(node.files() == before);
    node.ok("uninstall --tool-dir /usr/bin");
    let left: Vec<_> =
        node.files().into_keys().map(|path| path.strip_prefix(node.root()).unwrap().to_owned()).collect();
    assert_eq!(left, [Path::new("10-pods.conflist"), Path::new("etc/containerd/config.toml")]);
    assert!(node.refused("uninstall").contains("not installed in"));
}

/// What strace prints of the calls that make and name files, without those that failed.
const FILE_CALLS: &str =
    "trace=open,openat,openat2,creat,write,fsync,fdatasync,rename,renameat,renameat2,link,linkat,symlinkat,mkdirat";

/// The order of the system calls: a power cut between any two of them leaves whole files, and a runtime that reads a network list
/// finds its plugins.
#[test]
fn each_file_is_on_the_disk_before_it_has_its_name_and_the_network_list_is_named_last() {
    let node = Node::new();
    node.write("opt/cni/bin/bridge", foreign());
    node.write("etc/cni/net.d/10-pods.conflist", r#"{"name":"other","plugins":[{"type":"bridge"}]}"#);
    let list = node.write("10-pods.conflist", LIST);
    let calls = node.root().join("calls");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-y", "-s", "64", "-e", FILE_CALLS, "-o"])
        .arg(&calls)
        .arg(released().join("cni-plugins"));
    let line = format!("install --network-list {} --pod-cidr 10.9.0.0/24 --tool-dir /usr/bin", list.display());
    let printed = strace.args(node.args(&line)).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let text = fs::read_to_string(&calls).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" = -1 ")).collect();
    let only = |what: &str, words: &[&str]| {
        let is_it = |place: &usize| words.iter().all(|word| lines[*place].contains(word));
        let found: Vec<usize> = (0..lines.len()).filter(is_it).collect();
        assert_eq!(found.len(), 1, "{what}, {words:?}: {text}");
        found[0]
    };
    let [plugins, lists, tools] = ["opt/cni/bin", "etc/cni/net.d", "usr/bin"].map(|dir| node.root().join(dir));
    let placed = NAMES.into_iter().chain(["cni-plugins"]).map(|name| (&plugins, name));
    let mut named = BTreeMap::new();
    for (dir, name) in placed.chain([(&tools, "cnitool"), (&lists, "10-pods.conflist")]) {
        let temporary = format!(".cnikit-tmp-{name}.new");
        let dir = dir.display();
        let made = only("it is made", &["open", &format!("\"{temporary}\""), "O_EXCL"]);
        let synced = only("it is synced", &["fsync(", &format!("<{dir}/{temporary}>")]);
        let renamed =
            only("it gets its name", &["rename", &format!("\"{temporary}\""), &format!("<{dir}>, \"{name}\"")]);
        let of_content = format!("<{dir}/{temporary}>");
        let last_write = lines.iter().rposition(|line| line.contains("write(") && line.contains(&of_content)).unwrap();
        let in_directory =
            lines.iter().skip(renamed).position(|line| line.contains("fsync(") && line.contains(&format!("<{dir}>")));
        assert!(
            made < last_write && last_write < synced && synced < renamed && in_directory.is_some(),
            "{name}: {text}"
        );
        named.insert(renamed, (name, renamed + in_directory.unwrap()));
    }
    // Each name is on the disk before the next one changes.
    let order: Vec<(usize, (&str, usize))> = named.into_iter().collect();
    assert!(order.windows(2).all(|pair| pair[0].1.1 < pair[1].0), "{order:?}: {text}");
    assert_eq!(order[0].1.0, "cni-plugins", "a launcher needs it");
    assert_eq!(order.last().unwrap().1.0, "10-pods.conflist");
    // What is replaced has its second name before.
    for (dir, name) in [(&plugins, "bridge"), (&lists, "10-pods.conflist")] {
        let kept = only("it is kept", &["rename", &format!("<{}/.replaced-by-cnikit>, \"{name}\"", dir.display())]);
        let replaced = order.iter().find(|(_, (of, _))| *of == name).unwrap().0;
        let synced =
            |line: &&str| line.contains("fsync(") && line.contains(&format!("<{}/.replaced-by-cnikit>", dir.display()));
        assert!(lines[kept..replaced].iter().any(synced), "{name}: {text}");
    }
    // No file is written under a name that a runtime reads.
    for line in
        lines.iter().filter(|line| line.contains("O_CREAT") || line.contains("O_WRONLY") || line.contains("O_RDWR"))
    {
        assert!(line.contains("\".cnikit-"), "{line}");
    }
}

/// Every row of the page's table of presets: the directories, and the file of containerd that names others.
#[test]
fn each_preset_has_the_directories_and_the_configuration_of_the_page() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md")).unwrap();
    let mut names = Vec::new();
    let table = page.lines().skip_while(|line| !line.starts_with("| preset |")).skip(2);
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [preset, configuration, plugins, lists] = cells[..] else { panic!("{row}") };
        names.push(preset);
        let own = if configuration == "as usual" { "/etc/containerd/config.toml" } else { configuration };
        for (file, dir, conf_dir) in [("", plugins, lists), (own, "/srv/plugins", "/srv/lists")] {
            let node = Node::new();
            if configuration != "as usual" {
                // It is not that of the node's runtime.
                node.write("etc/containerd/config.toml", containerd_config("/opt/other", "/etc/other"));
            }
            if !file.is_empty() {
                node.write(&file[1..], containerd_config(dir, conf_dir));
            }
            let list = node.write("10-pods.conflist", LIST);
            let line = format!("--preset {preset} --network-list {} --pod-cidr 10.9.0.0/24", list.display());
            node.ok(&format!("install {line}"));
            let is_there = |path: String| node.root().join(&path[1..]).exists();
            for name in NAMES {
                assert!(is_there(format!("{dir}/{name}")), "{preset}, {file:?}: {name}");
            }
            assert!(is_there(format!("{conf_dir}/10-pods.conflist")), "{preset}, {file:?}: the list");
            node.ok(&format!("verify {line}"));
            node.ok(&format!("uninstall --preset {preset}"));
            let left: Vec<PathBuf> =
                node.files().into_keys().filter(|path| path.extension() != Some("toml".as_ref())).collect();
            assert_eq!(left, [list], "{preset}, {file:?}");
        }
    }
    assert_eq!(names, ["k3s", "rke2", "openshift", "microshift", "talos", "flatcar"]);
}

/// containerd's, of version 3, with these directories.
fn containerd_config(plugins: &str, lists: &str) -> String {
    let section = "[plugins.'io.containerd.cri.v1.runtime'.cni]";
    format!("version = 3\n{section}\nbin_dirs = ['{plugins}']\nconf_dir = '{lists}'\n")
}

#[test]
fn a_list_is_replaced_kept_renamed_and_put_back() {
    let node = Node::new();
    node.write("etc/cni/net.d/10-a.conflist", r#"{"name":"other","plugins":[{"type":"ptp"}]}"#);
    let before = node.files();
    let with = |name: &str, network: &str| {
        let path = node.root().join(format!("../{name}"));
        fs::write(&path, format!(r#"{{"name":"{network}","plugins":[{{"type":"bridge"}}]}}"#)).unwrap();
        let printed = node.ok(&format!("install --network-list {}", path.display()));
        fs::remove_file(path).unwrap();
        printed
    };
    assert!(with("10-a.conflist", "one").contains("kept"));
    assert!(!with("10-a.conflist", "two").contains("kept"), "our own list is not kept");
    assert!(fs::read_to_string(node.list("10-a.conflist")).unwrap().contains("two"));
    with("20-b.conflist", "three");
    assert!(fs::read_to_string(node.list("10-a.conflist")).unwrap().contains("other"), "it is put back");
    assert_eq!(fs::metadata(node.list("20-b.conflist")).unwrap().mode() & 0o7777, 0o600);
    node.ok("uninstall");
    assert!(node.files() == before, "{:?}", node.files().into_keys());
    with("20-b.conflist", "three");
    fs::write(node.list("20-b.conflist"), "{}").unwrap();
    assert!(node.ok("uninstall").contains("was changed since: it stays"));
    assert!(node.list("20-b.conflist").exists() && !node.list(".cnikit-network-list").exists());
}

#[test]
fn a_read_only_node_passes_if_nothing_is_to_be_done() {
    let node = Node::new();
    node.ok("install");
    let script = |change: &str, then: &str| {
        let line = format!(
            "set -e; {change}; mount --bind {root} {root}; mount -o remount,ro,bind {root}; exec {program} {args}",
            root = node.root().display(),
            program = released().join("cni-plugins").display(),
            args = node.args(then).join(" "),
        );
        Command::new("unshare").args(["--mount", "sh", "-c", &line]).output().unwrap()
    };
    for verb in ["install", "verify"] {
        let printed = script("true", verb);
        assert!(printed.status.success(), "{printed:?}");
    }
    let printed = script(&format!("rm {}", node.plugin("vlan").display()), "install");
    let text = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(!printed.status.success() && text.contains("opt/cni/bin") && text.contains("read-only"), "{text}");
}

#[test]
fn verify_lists_each_difference() {
    let node = Node::new();
    node.ok("install");
    fs::remove_file(node.plugin("ptp")).unwrap();
    fs::write(node.plugin("vlan"), "").unwrap();
    fs::copy("/usr/lib/cni/bridge", node.plugin("bridge")).unwrap();
    fs::set_permissions(node.plugin("tap"), fs::Permissions::from_mode(0o700)).unwrap();
    let printed = node.refused("verify");
    for (name, says) in [
        ("bridge", "another program's"),
        ("ptp", "missing"),
        ("tap", "another mode"),
        ("vlan", "empty, half-written or not executable"),
    ] {
        let line = printed.lines().find(|line| line.starts_with(&format!("{}: ", node.plugin(name).display())));
        assert!(line.is_some_and(|line| line.contains(says)), "{name}: {printed}");
    }
    assert_eq!(printed.lines().count(), 4, "{printed}");
    node.ok("verify --without bridge,ptp,tap,vlan");
    // Where cnikit is installed, the file of another program is left alone.
    assert_eq!(node.ok("verify --reassert missing --without ptp,tap,vlan"), "");
    fs::remove_file(node.plugin("cni-plugins")).unwrap();
    assert!(node.refused("verify --reassert missing --without ptp,tap,vlan").contains("bridge: "));
}

#[test]
fn other_users_cannot_choose_what_root_runs() {
    let node = Node::new();
    let dir = node.plugin("");
    fs::create_dir_all(&dir).unwrap();
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, bits) in [(dir.clone(), 0o777), (dir.clone(), 0o1777), (node.root().join("opt"), 0o757)] {
        mode(&path, bits);
        let printed = node.refused("install");
        assert!(printed.contains("other users can write there"), "{bits:o}: {printed}");
        mode(&path, 0o755);
    }
    // A sticky directory on the way is safe, as /tmp is.
    mode(&node.root().join("opt"), 0o1777);
    node.ok("install");
    node.ok("uninstall --force");
    mode(&node.root().join("opt"), 0o755);
    std::os::unix::fs::chown(&dir, Some(4321), None).unwrap();
    let printed = node.refused("install");
    assert!(printed.contains("belongs to user 4321"), "{printed}");
    node.ok("install --trust-user 4321");
    node.ok("uninstall --force --trust-user 4321");
    assert!(node.files().is_empty());
}

#[test]
fn no_symbolic_link_leads_out_of_the_root() {
    let node = Node::new();
    fs::create_dir_all(node.root().join("opt/cni")).unwrap();
    let outside = Node::new();
    fs::create_dir_all(outside.root().join("bin")).unwrap();
    for target in
        [format!("{}/bin", outside.root().display()), format!("../../../../..{}/bin", outside.root().display())]
    {
        symlink(&target, node.root().join("opt/cni/bin")).unwrap();
        node.ok("install");
        assert!(outside.files().is_empty(), "{target}");
        let inside = node.root().join(outside.root().strip_prefix("/").unwrap()).join("bin/bridge");
        assert!(inside.exists(), "{target}: below the root");
        node.ok("uninstall --force");
        fs::remove_file(node.root().join("opt/cni/bin")).unwrap();
    }
    let loops = node.root().join("opt/cni/bin");
    symlink("bin", &loops).unwrap();
    assert!(node.refused("install").contains("Too many symbolic links"));
}

/// A label is an attribute like any other where SELinux is off.
#[test]
fn the_selinux_label_is_that_of_the_replaced_file_or_of_the_directory() {
    let node = Node::new();
    node.write("opt/cni/bin/bridge", foreign());
    let script = "import os,sys\nif sys.argv[1]=='get': print(os.getxattr(sys.argv[2],'security.selinux').decode())\n\
                  else: os.setxattr(sys.argv[2],'security.selinux',sys.argv[3].encode())";
    let label = |args: &[&str]| {
        let printed = Command::new("python3").args(["-c", script]).args(args).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        String::from_utf8(printed.stdout).unwrap().trim().to_owned()
    };
    let path = |name: &str| node.plugin(name).display().to_string();
    label(&["set", &path(""), "system_u:object_r:usr_t:s0"]);
    label(&["set", &path("bridge"), "system_u:object_r:container_runtime_exec_t:s0"]);
    node.ok("install");
    assert_eq!(label(&["get", &path("bridge")]), "system_u:object_r:container_runtime_exec_t:s0");
    assert_eq!(label(&["get", &path("vlan")]), "system_u:object_r:usr_t:s0");
    node.ok("uninstall");
    assert_eq!(label(&["get", &path("bridge")]), "system_u:object_r:container_runtime_exec_t:s0");
}

#[test]
fn uninstalling_is_refused_only_if_attachments_would_be_left_without_plugin() {
    let node = Node::new();
    node.write("opt/cni/bin/bridge", foreign());
    node.ok("install");
    let entry = |name: &str, plugins: &str| {
        use base64ct::Encoding;
        let config = format!(r#"{{"name":"pods","plugins":[{plugins}]}}"#);
        let config = base64ct::Base64::encode_string(config.as_bytes());
        let content = format!(
            r#"{{"kind":"cniCacheV1","containerId":"{name}","config":"{config}","ifName":"eth0","networkName":"pods"}}"#
        );
        node.write(&format!("var/lib/cni/results/pods-{name}-eth0"), content)
    };
    let path = entry("c1", r#"{"type":"bridge","ipam":{"type":"host-local"}}"#);
    let printed = node.refused("uninstall");
    assert!(printed.contains("pods c1 eth0") && printed.contains("host-local"), "{printed}");
    fs::remove_file(path).unwrap();
    entry("c2", r#"{"type":"bridge"}"#);
    assert!(node.ok("uninstall").contains("put back"), "bridge is put back, so it can delete the attachment");
    node.ok("install");
    node.write("var/lib/cni/results/damaged", "{");
    let printed = node.refused("uninstall");
    assert!(printed.contains("damaged") && !printed.contains("c2"), "{printed}");
    assert!(node.is_ours("bridge"), "nothing was done");
    node.ok("uninstall --force");
}

#[test]
fn a_run_waits_for_another_one_and_then_names_the_lock() {
    let node = Node::new();
    node.ok("install");
    fs::remove_file(node.plugin("vlan")).unwrap();
    let lock = node.plugin(".cnikit-lock");
    fs::write(&lock, "").unwrap();
    let mut flock = Command::new("flock");
    let holding = flock.arg(&lock).args(["sh", "-c", "echo; read -r _; true"]);
    let mut holder = holding.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let printed = node.refused("install --wait 1");
    assert!(printed.contains(&format!("holds {}", lock.display())) && printed.contains("fuser"), "{printed}");
    let mut waiting = node.command("install").stdout(Stdio::null()).spawn().unwrap();
    drop(holder.stdin.take());
    assert!(waiting.wait().unwrap().success() && holder.wait().unwrap().success());
    assert!(node.is_ours("vlan") && !lock.exists());
}

#[test]
fn an_earlier_version_without_launchers_is_placed_by_this_one() {
    let node = Node::new();
    let old = node.write("old/cni-plugins", fs::read(released().join("cni-plugins")).unwrap());
    // It is another version: a byte behind its end differs.
    let mut content = fs::read(&old).unwrap();
    content.push(0);
    fs::write(&old, content).unwrap();
    node.ok("install");
    let from = format!("install --from {}", old.parent().unwrap().display());
    node.ok(&from);
    assert_eq!(fs::read(node.plugin("cni-plugins")).unwrap(), fs::read(&old).unwrap());
    assert!(NAMES.iter().all(|name| node.is_ours(name)));
    assert!(node.refused("verify").contains("cni-plugins: it is of another version"));
    node.ok("install --reassert missing");
    node.ok("verify");
}

// --- killed, and with failing system calls

/// A state of a node before a command, which must be the same after the command was undone.
struct Scene {
    title: &'static str,
    line: &'static str,
    /// Prepares the node.
    prepare: fn(&Node),
    /// What completes the work of a run that died.
    complete: &'static str,
}

/// Few names, so that a run makes few calls: of another maker, of another version, missing.
const FEW: &str =
    "--without bandwidth,dhcp,dummy,firewall,host-device,ipvlan,macvlan,portmap,ptp,sbr,static,tap,tuning,vlan,vrf";
const KEPT_NAMES: [&str; 4] = ["bridge", "flannel", "host-local", "loopback"];

fn before_install(node: &Node) {
    node.write("opt/cni/bin/bridge", foreign());
    node.write("opt/cni/bin/loopback", "#!/bin/sh\nexit 1\n");
    node.write("etc/cni/net.d/10-pods.conflist", r#"{"name":"other","plugins":[{"type":"bridge"}]}"#);
    node.write("10-pods.conflist", LIST);
}

fn before_upgrade(node: &Node) {
    before_install(node);
    // As version 0.1 was installed: hard links to one file.
    let binary = node.write("opt/cni/bin/cni-plugins", [&foreign()[..], b"cnikit"].concat());
    for name in ["flannel", "host-local"] {
        fs::hard_link(&binary, node.plugin(name)).unwrap();
    }
}

fn before_uninstall(node: &Node) {
    before_install(node);
    node.ok(&install_line(node, "install"));
}

/// The command line of a run.
fn full_line(node: &Node, verb: &str) -> String {
    if verb == "uninstall" { "uninstall".into() } else { install_line(node, verb) }
}

fn install_line(node: &Node, verb: &str) -> String {
    let list = node.root().join("10-pods.conflist");
    format!("{verb} {FEW} --network-list {} --pod-cidr 10.9.0.0/24", list.display())
}

const SCENES: [Scene; 3] = [
    Scene { title: "install", line: "install", prepare: before_install, complete: "install" },
    Scene { title: "upgrade", line: "install", prepare: before_upgrade, complete: "install" },
    Scene { title: "uninstall", line: "uninstall", prepare: before_uninstall, complete: "uninstall" },
];

impl Scene {
    fn traced(
        &self,
        node: &Node,
        decide: impl FnMut(&Syscall) -> SyscallVerdict,
    ) -> (cnikit_testkit::CallOutput, SyscallTrace) {
        let args = node.args(&full_line(node, self.line));
        syscall_trace::run_command(&released().join("cni-plugins"), &args, decide).unwrap()
    }

    /// Disturbs one call. Afterwards every name is a whole file, old or new, and another run completes the work.
    fn disturb(&self, at: (usize, usize, i32), verdict: SyscallVerdict) -> Result<(), String> {
        let node = Node::new();
        (self.prepare)(&node);
        let old: BTreeMap<&str, Option<Vec<u8>>> =
            KEPT_NAMES.into_iter().map(|name| (name, fs::read(node.plugin(name)).ok())).collect();
        let (output, _) = self.traced(&node, |call| {
            if (call.process, call.place, call.number) == at { verdict } else { SyscallVerdict::GoOn }
        });
        let failed =
            |why: String| Err(format!("{} {verdict:?} at {} {}: {why}; {output:?}", self.title, at.1, name(at.2)));
        for (plugin, old) in old {
            let now = fs::read(node.plugin(plugin)).ok();
            let is_known = now == old
                || now.as_ref().is_some_and(|content| *content == launcher())
                || (plugin == "bridge" && now.as_ref() == Some(&foreign()))
                || (plugin == "loopback" && now.as_deref() == Some(b"#!/bin/sh\nexit 1\n"))
                || (self.line == "uninstall" && now.is_none());
            if !is_known {
                return failed(format!("{plugin} has {:?} bytes", now.map(|content| content.len())));
            }
        }
        match fs::read_to_string(node.list("10-pods.conflist")) {
            Ok(list) if serde_json::from_str::<serde_json::Value>(&list).is_err() => {
                return failed(format!("half of a list: {list}"));
            }
            Err(error) if self.line != "uninstall" => return failed(format!("the list: {error}")),
            _ => {}
        }
        let is_undisturbed = output.exit == 0;
        let is_reported = output.exit == 1 && !output.stderr.is_empty();
        if matches!(verdict, SyscallVerdict::Fail(_)) && !is_undisturbed && !is_reported && output.exit > 0 {
            return failed("it ended without a word".into());
        }
        let (status, printed) = node.run(&full_line(&node, self.complete));
        let is_gone = self.complete == "uninstall" && printed.contains("not installed");
        if status != 0 && !is_gone {
            return failed(format!("the second run: {printed}"));
        }
        self.audit(&node).or_else(failed)
    }

    /// The work is complete, and can be undone.
    fn audit(&self, node: &Node) -> Result<(), String> {
        if self.complete == "install" {
            let (status, printed) = node.run(&install_line(node, "verify"));
            if status != 0 {
                return Err(printed);
            }
            let (status, printed) = node.run("uninstall");
            if status != 0 {
                return Err(printed);
            }
        }
        let wanted = Node::new();
        before_install(&wanted);
        let relative = |node: &Node| -> Files {
            let files = node.files().into_iter();
            files.map(|(path, facts)| (path.strip_prefix(node.root()).unwrap().to_owned(), facts)).collect()
        };
        if relative(node) == relative(&wanted) {
            return Ok(());
        }
        Err(format!("left are {:?}, wanted {:?}", relative(node).into_keys(), relative(&wanted).into_keys()))
    }
}

fn campaign(what: &str, unit: &str, cases: Vec<(usize, (usize, usize, i32), SyscallVerdict)>, short: usize) {
    let of = cases.len();
    let chosen = sample(what, cases, short);
    let tried = chosen.len();
    let found: Vec<String> =
        chosen.into_iter().filter_map(|(scene, at, verdict)| SCENES[scene].disturb(at, verdict).err()).collect();
    SummaryLine { tried, of, found: found.len(), ..SummaryLine::new(what, unit) }.with_seed().print();
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

/// The calls of an undisturbed run of each scene.
fn undisturbed() -> Vec<(usize, (usize, usize, i32))> {
    let mut calls = Vec::new();
    for (index, scene) in SCENES.iter().enumerate() {
        let node = Node::new();
        (scene.prepare)(&node);
        let (output, trace) = scene.traced(&node, |_| SyscallVerdict::GoOn);
        assert_eq!(output.exit, 0, "{output:?}");
        assert!(trace.len() > 100, "{}: only {} system calls", scene.title, trace.len());
        calls.extend(trace.calls().map(|at| (index, at)));
    }
    calls
}

#[test]
fn an_installer_that_is_killed_at_any_system_call_leaves_whole_files() {
    let mut cases = Vec::new();
    for (scene, at) in undisturbed() {
        cases.push((scene, at, SyscallVerdict::Signal(Signal::SIGKILL)));
    }
    campaign("kill installer", "calls", cases, 24);
}

#[test]
fn an_installer_of_which_any_system_call_fails_leaves_whole_files() {
    let mut cases = Vec::new();
    for (scene, at) in undisturbed() {
        let mut errors = errnos(at.2).to_vec();
        if errors.contains(&Errno::ENOSPC) {
            errors.push(Errno::EDQUOT);
        }
        cases.extend(errors.into_iter().map(|errno| (scene, at, SyscallVerdict::Fail(errno))));
    }
    campaign("fault installer", "failures", cases, 24);
}

// --- watch

/// A running `watch`, which is killed at the end of the test.
struct Watch {
    process: Child,
    ready: PathBuf,
    log: PathBuf,
}

impl Watch {
    fn begin(node: &Node, line: &str) -> Watch {
        let [ready, log] = ["ready", "log"].map(|name| node.root().join(name));
        let flags = format!("watch --ready-file {} {line}", ready.display());
        let process = node.command(&flags).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        Watch { process, ready, log }
    }

    fn wait_ready(&self) {
        self.until("it is ready", || self.ready.exists());
    }

    fn until(&self, what: &str, is_true: impl Fn() -> bool) {
        let deadline = Deadline::after(Duration::from_secs(20));
        while !is_true() {
            assert!(deadline.pause(Duration::from_millis(20)), "never: {what}\n{}", self.said());
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends it as an orchestrator does.
    fn end(mut self) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let begun = Instant::now();
        assert!(self.process.wait().unwrap().success(), "{}", self.said());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_is_deleted_or_damaged_is_placed_again_and_what_others_placed_is_left_alone() {
    let node = Node::new();
    let list = node.write("10-pods.conflist", LIST);
    let ranges = node.write("ranges", "10.9.0.0/24\n");
    let line = format!("--network-list {} --pod-cidr-file {}", list.display(), ranges.display());
    let watch = Watch::begin(&node, &line);
    watch.wait_ready();
    assert!(NAMES.iter().all(|name| node.is_ours(name)));
    fs::remove_file(node.plugin("vlan")).unwrap();
    fs::write(node.plugin("ptp"), "").unwrap();
    fs::write(node.plugin("loopback"), &foreign()[..100_000]).unwrap();
    fs::remove_file(node.list("10-pods.conflist")).unwrap();
    let new = node.write("opt/new", foreign());
    fs::rename(new, node.plugin("flannel")).unwrap();
    watch.until("the damage is undone", || ["vlan", "ptp", "loopback"].iter().all(|name| node.is_ours(name)));
    watch.until("the list is back", || node.list("10-pods.conflist").exists());
    watch.until("flannel is reported", || watch.said().contains("flannel: it is another program's"));
    watch.wait_ready();
    assert_eq!(fs::read(node.plugin("flannel")).unwrap(), foreign());
    assert!(
        watch.said().contains("vlan: it is missing") && watch.said().contains("ptp: it is empty"),
        "{}",
        watch.said()
    );
    assert!(!node.plugin(".replaced-by-cnikit").exists(), "damaged files are not kept");
    fs::write(&list, LIST.replace("pods", "changed")).unwrap();
    fs::write(&ranges, "10.10.0.0/24 fd00:10::/64").unwrap();
    fs::write(node.plugin("sbr"), "").unwrap();
    watch.until("the changed list is placed with the changed ranges", || {
        fs::read_to_string(node.list("10-pods.conflist")).is_ok_and(|text| {
            text.contains("changed") && text.contains("10.10.0.0/24") && text.contains("fd00:10::/64")
        })
    });
    watch.until("sbr is placed again", || node.is_ours("sbr"));
    // It removes its lock, and reports that it is ready again.
    watch.until("its work is done", || !node.plugin(".cnikit-lock").exists());
    watch.wait_ready();
    let before = node.files();
    watch.end();
    assert!(node.files().keys().eq(before.keys()), "ending it changes nothing");
}

/// Damages a file without an event of inotify, which reports no change by mmap(2). Closes the file after the second line of input.
const BY_MAP: &str = "import mmap, sys
file = open(sys.argv[1], 'r+b')
memory = mmap.mmap(file.fileno(), 0)
print('open', flush=True)
sys.stdin.readline()
memory[:64] = bytes(64)
print('damaged', flush=True)
sys.stdin.readline()
";

/// How long a call waits for two descriptors at most; `None` if it is another call.
fn longest_wait(call: &Syscall) -> Option<Duration> {
    let number = i64::from(call.number);
    if call.args[1] != 2 {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    if number == nix::libc::SYS_poll {
        return Some(Duration::from_millis(call.args[2]));
    }
    if number != nix::libc::SYS_ppoll {
        return None;
    }
    let mut time = [0; 8]; // the seconds of a timespec
    let memory = fs::File::open(format!("/proc/{}/mem", call.pid)).unwrap();
    memory.read_exact_at(&mut time, call.args[2]).unwrap();
    Some(Duration::from_secs(u64::from_ne_bytes(time)))
}

/// The minute is not waited for: the call that waits so long for events is ended as if it was over.
#[test]
fn everything_is_compared_each_minute_also_without_an_event() {
    let node = Node::new();
    node.ok("install");
    let vlan = node.plugin("vlan");
    let mut damage = Command::new("python3");
    damage.args(["-c", BY_MAP]).arg(&vlan).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut damage = damage.spawn().unwrap();
    let mut said = BufReader::new(damage.stdout.take().unwrap()).lines();
    let mut go_on = damage.stdin.take().unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "open");
    let mut waits = Vec::new();
    let args = node.args("watch");
    let (output, _) = syscall_trace::run_command(&released().join("cni-plugins"), &args, |call| {
        let Some(wait) = longest_wait(call).filter(|wait| *wait > Duration::from_secs(5)) else {
            return SyscallVerdict::GoOn;
        };
        waits.push((wait, node.is_ours("vlan")));
        if waits.len() > 1 {
            return SyscallVerdict::Signal(Signal::SIGTERM);
        }
        writeln!(go_on).unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "damaged");
        assert!(!node.is_ours("vlan"));
        SyscallVerdict::Fail(Errno::EINTR)
    })
    .unwrap();
    drop(go_on);
    assert!(damage.wait().unwrap().success());
    assert_eq!(output.exit, 0, "{output:?}");
    let minute = Duration::from_secs(50)..=Duration::from_mins(1);
    assert!(waits.iter().all(|(wait, _)| minute.contains(wait)), "{waits:?}");
    assert!(waits.len() == 2 && waits[1].1, "it waits, and the file is not placed again: {waits:?}, {output:?}");
    assert!(output.stderr.contains("vlan: it is empty, half-written or not executable"), "{output:?}");
}

/// kubernetes #115629: the upgrade of a package removes the directory and makes it again.
#[test]
fn a_directory_that_is_deleted_and_made_again_is_filled_again() {
    let node = Node::new();
    let list = node.write("10-pods.conflist", LIST);
    let watch = Watch::begin(&node, &format!("--network-list {} --pod-cidr 10.9.0.0/24", list.display()));
    watch.wait_ready();
    let placed = fs::read(node.list("10-pods.conflist")).unwrap();
    for dir in ["opt", "etc/cni/net.d", "etc"] {
        fs::remove_dir_all(node.root().join(dir)).unwrap();
        watch.until("all is back", || {
            node.is_ours("vrf")
                && node.plugin("cni-plugins").exists()
                && fs::read(node.list("10-pods.conflist")).is_ok_and(|content| content == placed)
        });
    }
    watch.wait_ready();
    fs::remove_dir_all(node.root().join("opt/cni/bin")).unwrap();
    for name in ["bridge", "loopback"] {
        node.write(&format!("opt/cni/bin/{name}"), foreign());
    }
    watch.until("all is ours", || NAMES.iter().all(|name| node.is_ours(name)));
    watch.until("it is kept", || {
        fs::read(node.plugin(".replaced-by-cnikit/bridge")).is_ok_and(|kept| kept == foreign())
    });
    watch.end();
}

#[test]
fn another_programs_file_is_replaced_if_that_is_asked_for_and_who_insists_is_given_way_to() {
    let node = Node::new();
    let watch = Watch::begin(&node, "--reassert all");
    watch.wait_ready();
    for round in 0..4 {
        let new = node.write("opt/new", foreign());
        fs::rename(new, node.plugin("flannel")).unwrap();
        if round < 3 {
            watch.until("it is ours again", || node.is_ours("flannel"));
        }
    }
    watch.until("it says so", || watch.said().contains("flannel: something changes it again and again (3 times)"));
    assert!(!Deadline::after(Duration::from_secs(3)).pause(Duration::from_secs(4)));
    assert!(!node.is_ours("flannel") && !watch.ready.exists(), "{}", watch.said());
    assert_eq!(fs::read(node.plugin(".replaced-by-cnikit/flannel")).unwrap(), foreign());
    fs::remove_file(node.plugin("vlan")).unwrap();
    watch.until("other names do not wait", || node.is_ours("vlan"));
    watch.end();
}

/// A small file system at `opt` of a node.
struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    fn new(node: &Node) -> SmallDisk {
        let at = node.root().join("opt");
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m,mode=0755", "tmpfs"]).arg(&at);
        assert!(mount.status().unwrap().success());
        SmallDisk { at }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = fs::File::options().create(true).append(true).open(self.filler()).unwrap();
        let mut written = 0;
        let full = loop {
            match file.write(&[1; 4096]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(full.raw_os_error(), Some(nix::libc::ENOSPC), "after {written} bytes");
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

#[test]
fn on_a_full_disk_names_stay_whole_and_the_others_are_placed_once_there_is_room() {
    let node = Node::new();
    let disk = SmallDisk::new(&node);
    fs::write(disk.filler(), vec![1; 12 << 20]).unwrap(); // the binary needs more than is left
    let watch = Watch::begin(&node, "");
    watch.until("it is logged", || watch.said().contains("No space left on device"));
    assert!(!watch.ready.exists() && node.refused("verify").contains("missing"));
    let names = files(&disk.at).into_keys().filter(|path| *path != disk.filler());
    let visible = names.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
    assert_eq!(visible.collect::<Vec<_>>(), Vec::<PathBuf>::new(), "no launcher is placed before the binary");
    disk.empty();
    watch.wait_ready();
    assert!(watch.said().contains("it works again"), "{}", watch.said());
    node.ok("verify");
    // Another program truncates a name, and the room is taken.
    fs::write(node.plugin("ptp"), "").unwrap();
    disk.fill();
    watch.until("it is not ready", || !watch.ready.exists());
    for name in NAMES.iter().filter(|name| **name != "ptp") {
        assert!(node.is_ours(name), "{name}");
    }
    disk.empty();
    watch.until("ptp is placed again", || node.is_ours("ptp"));
    watch.wait_ready();
    watch.end();
}

#[test]
fn what_is_in_the_way_is_tried_again_and_the_file_of_a_slow_writer_is_waited_for() {
    let node = Node::new();
    let watch = Watch::begin(&node, "");
    watch.wait_ready();
    let content = foreign();
    while !is_copied_steadily(&node.plugin("bridge"), &content) {
        watch.until("it is ours again", || node.is_ours("bridge"));
    }
    watch.until("it is reported", || watch.said().contains("bridge: it is another program's"));
    assert_eq!(fs::read(node.plugin("bridge")).unwrap(), content);
    watch.end();
    let blocked = Node::new();
    fs::create_dir_all(blocked.plugin("vlan")).unwrap();
    let watch = Watch::begin(&blocked, "");
    watch.until("the error is logged", || watch.said().contains("vlan is a directory"));
    assert!(!watch.ready.exists());
    fs::remove_dir(blocked.plugin("vlan")).unwrap();
    watch.wait_ready();
    assert!(watch.said().contains("it works again"));
    watch.end();
}

/// Copies slowly, over more than two seconds. A machine may be so busy that no byte is written for long, which looks like a writer
/// that died: then this returns false.
fn is_copied_steadily(to: &Path, content: &[u8]) -> bool {
    let mut file = fs::File::create(to).unwrap();
    let mut longest = Duration::ZERO;
    for part in content.chunks(content.len() / 12 + 1) {
        let begun = Instant::now();
        file.write_all(part).unwrap();
        Deadline::after(Duration::from_millis(200)).pause(Duration::from_millis(200));
        longest = longest.max(begun.elapsed());
    }
    longest < Duration::from_millis(700)
}

#[test]
fn systemd_is_notified_when_it_is_ready() {
    let node = Node::new();
    let path = node.root().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = node.command("watch");
    let mut process = command.env("NOTIFY_SOCKET", &path).stderr(Stdio::null()).spawn().unwrap();
    let mut message = [0; 64];
    let length = socket.recv(&mut message);
    let is_complete = node.run("verify").0 == 0;
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(&message[..length.unwrap()], b"READY=1");
    assert!(is_complete);
}
