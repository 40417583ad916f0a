//! `scripts/install`: on a node that has plugins of another maker, and that executes plugins meanwhile.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::disallowed_methods, reason = "it runs a script, on the host itself")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cnikit_process::Deadline;
use cnikit_testkit::campaign::{SummaryLine, case_limit};
use cnikit_testkit::{Host, Subject};
use cnikit_tests::switched::{Until, execute_until};
use cnikit_tests::{NAMES, released};
use serde_json::json;
use tempfile::TempDir;

/// A node: a directory of plugins, one of tools.
struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Node {
        let node = Node { dir: tempfile::tempdir_in(cnikit_tests::built()).unwrap() };
        fs::create_dir(node.plugins()).unwrap();
        fs::create_dir(node.tools()).unwrap();
        node
    }

    fn plugins(&self) -> PathBuf {
        self.dir.path().join("cni bin")
    }

    fn tools(&self) -> PathBuf {
        self.dir.path().join("tools")
    }

    /// Runs the script with the binaries of these tests. Returns whether it succeeded, and its output.
    fn try_script(&self, uninstall: &[&str]) -> (bool, String) {
        let mut script = Command::new(SCRIPT);
        script.env("CNIKIT_BUILT", released());
        let printed = script.args(uninstall).arg(self.plugins()).arg(self.tools()).output().unwrap();
        let text = [printed.stdout, printed.stderr].concat();
        (printed.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn install(&self) -> String {
        let (succeeded, printed) = self.try_script(&[]);
        assert!(succeeded, "{printed}");
        printed
    }

    fn uninstall(&self) -> String {
        let (succeeded, printed) = self.try_script(&["--uninstall", "--force"]);
        assert!(succeeded, "{printed}");
        printed
    }

    /// Another's plugin or tool.
    fn give(&self, path: &str, content: &str) {
        let path = self.dir.path().join(path);
        fs::write(&path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o751)).unwrap();
    }

    /// Every file with its inode, mode, time and content, hidden ones too.
    fn files(&self) -> BTreeMap<PathBuf, (u64, u32, i64, Vec<u8>)> {
        files(self.dir.path())
    }

    fn content(&self, plugin: &str) -> Vec<u8> {
        fs::read(self.plugins().join(plugin)).unwrap()
    }

    fn is_ours(&self, plugin: &str) -> bool {
        self.content(plugin) == fs::read(released().join("cni-launcher")).unwrap()
    }

    fn version(&self, plugin: &str) -> String {
        let printed = Command::new(self.plugins().join(plugin)).arg("--version").output().unwrap();
        String::from_utf8(printed.stdout).unwrap()
    }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, (u64, u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            found.extend(files(&path));
        } else {
            let content = fs::read(&path).unwrap_or_default();
            found.insert(path, (meta.ino(), meta.mode(), meta.mtime(), content));
        }
    }
    found
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install");

/// The VERSION output of upstream's packaged plugins.
const FOREIGN: &str = "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n";

#[test]
fn every_plugin_is_a_file_of_its_own_that_executes_one_binary() {
    let node = Node::new();
    node.install();
    for plugin in NAMES {
        assert_eq!(fs::symlink_metadata(node.plugins().join(plugin)).unwrap().nlink(), 1, "{plugin}");
        assert!(
            node.is_ours(plugin) && node.version(plugin).contains(&format!("CNI {plugin} plugin cnikit")),
            "{plugin}"
        );
    }
    let files = node.files();
    assert_eq!(files.len(), NAMES.len() + 2, "{:?}", files.keys());
    assert_eq!(fs::metadata(node.tools().join("cnitool")).unwrap().mode() & 0o7777, 0o755);
    let size: usize =
        files.iter().filter(|(path, _)| path.starts_with(node.plugins())).map(|(_, file)| file.3.len()).sum();
    assert!(size <= 8 << 20, "{size} bytes");
}

/// How many programs bridge's STATUS executes, itself among them.
fn executed_by_status(host: &Host, node: &Node) -> usize {
    let conf =
        r#"{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.99.0.0/24"}}"#;
    let dir = node.plugins().display().to_string();
    let line = format!(
        "echo '{conf}' | CNI_COMMAND=STATUS CNI_PATH='{dir}' strace -f -qq -e trace=execve -o '{dir}/../trace' '{dir}/bridge' || true"
    );
    host.sh(&line);
    let trace = fs::read_to_string(node.plugins().join("../trace")).unwrap();
    trace.lines().filter(|line| line.contains("execve(") && line.ends_with("= 0")).count()
}

#[test]
fn an_ipam_plugin_is_called_in_the_same_process_only_if_its_launcher_leads_to_the_same_program() {
    let (host, node, other) = (Host::new(), Node::new(), Node::new());
    [&node, &other].iter().for_each(|node| drop(node.install()));
    assert_eq!(executed_by_status(&host, &node), 2, "a launcher and the program");
    let ipam = node.plugins().join("host-local");
    fs::remove_file(&ipam).unwrap();
    std::os::unix::fs::symlink(other.plugins().join("host-local"), &ipam).unwrap();
    assert_eq!(executed_by_status(&host, &node), 4, "the other node's launcher and its program are executed too");
    replace(&node, "host-local", "#!/bin/sh\necho '{\"says\":\"host-local\"}'\n");
    assert!(executed_by_status(&host, &node) > 2, "a program of another maker is executed");
}

/// docs/adr/0003-static-pie.md: with the C library's relocations each call of a plugin takes 0.05 to 0.08 ms longer.
#[cfg(target_arch = "x86_64")]
#[test]
fn installed_programs_map_and_relocate_their_data_before_the_c_library_starts() {
    let host = Host::new();
    let node = Node::new();
    node.install();
    let trace = node.dir.path().join("trace");
    for program in [node.plugins().join("cni-plugins"), node.tools().join("cnitool")] {
        host.sh(&format!("strace -o '{}' '{}' --version", trace.display(), program.display()));
        let calls = fs::read_to_string(&trace).unwrap();
        let second = calls.lines().nth(1).unwrap();
        assert!(second.starts_with("madvise(") && second.contains(", MADV_POPULATE_WRITE)"), "{calls}");
    }
}

/// A way to write a file over another: a shell line, which `$1`, the new file, and `$2`, the plugin's, are given to.
const WRITERS: [(&str, &str); 7] = [
    ("cp", "cp \"$1\" \"$2\""),
    ("cp -f", "cp -f \"$1\" \"$2\""),
    ("cp --remove-destination", "cp --remove-destination \"$1\" \"$2\""),
    ("install", "install -m 0755 \"$1\" \"$2\""),
    ("tar", "tar -C \"${1%/*}\" -c --transform \"s|.*|${2##*/}|\" \"${1##*/}\" | tar -C \"${2%/*}\" -x"),
    ("mv", "cp \"$1\" \"$2.new\" && mv -f \"$2.new\" \"$2\""),
    ("a shell's redirection", "cat \"$1\" >\"$2\""),
];

/// The installers of flannel, Calico and others copy plugins into the directory when they start.
#[test]
fn an_installer_that_writes_over_one_plugin_leaves_the_others_as_they_were() {
    let node = Node::new();
    node.install();
    let new = node.dir.path().join("new");
    fs::copy("/usr/lib/cni/bridge", &new).expect("the packaged reference is installed");
    for (name, line) in WRITERS {
        for plugin in NAMES {
            let before = node.files();
            let target = node.plugins().join(plugin);
            let printed = Command::new("sh").args(["-ec", line, "sh"]).args([&new, &target]).output().unwrap();
            assert!(printed.status.success(), "{name} over {plugin}: {printed:?}");
            assert_eq!(fs::read(&target).unwrap(), fs::read(&new).unwrap(), "{name} over {plugin}");
            let others = |mut files: BTreeMap<PathBuf, _>| (files.remove(&target).is_some(), files);
            assert!(others(node.files()) == others(before), "{name} over {plugin} changed another file");
            let printed = node.install();
            assert!(
                printed.contains(&format!("kept {}", target.display())) && node.is_ours(plugin),
                "{name}: {printed}"
            );
        }
    }
}

/// Networks that have no plugin in common: a main plugin and its IPAM plugin.
const NETWORKS: [[&str; 2]; 2] = [["bridge", "host-local"], ["ptp", "static"]];
/// How many containers start at once.
const CROWD: usize = 64;

/// The configuration of one of many containers.
fn member(node: &Node, [plugin, ipam]: [&str; 2], number: usize) -> Subject {
    let address = format!("10.78.0.{}/24", number + 2);
    let ipam = match ipam {
        "static" => json!({"type": ipam, "addresses": [{"address": address, "gateway": "10.78.0.1"}]}),
        _ => json!({"type": ipam, "subnet": "10.77.0.0/20"}),
    };
    Subject::new(&node.plugins(), plugin, json!({"ipam": ipam}))
}

/// Writes over plugins in one way, as fast as the machine can; then installs them again.
fn write_over_each(node: &Node, new: &Path, names: &[&str], (way, line): (&str, &str)) {
    let script =
        format!("write() {{ {line}; }}; new=$1 dir=$2; shift 2; for name; do write \"$new\" \"$dir/$name\"; done");
    let mut writer = Command::new("nice");
    writer.args(["-n", "-19", "sh", "-ec", &script, "sh"]).args([new, &node.plugins()]).args(names);
    let printed = writer.output().unwrap();
    assert!(printed.status.success(), "{way}: {printed:?}");
    let content = fs::read(new).unwrap();
    for name in NAMES {
        let is_written = node.content(name) == content;
        assert!(if names.contains(&name) { is_written } else { node.is_ours(name) }, "{way}: {name}");
    }
    assert_eq!(node.content("cni-plugins"), fs::read(released().join("cni-plugins")).unwrap(), "{way}");
    node.install();
    assert!(NAMES.iter().all(|name| node.is_ours(name)), "{way}");
}

/// Each name is written over in each way while sixty-four containers start and end, whose network does not need it. No ADD and no
/// DEL fails.
#[test]
fn containers_start_while_an_installer_writes_over_each_plugin_that_they_do_not_need() {
    let node = Node::new();
    node.install();
    let new = node.dir.path().join("new");
    fs::copy("/usr/lib/cni/bridge", &new).expect("the packaged reference is installed");
    let mut written = BTreeSet::new();
    for network in NETWORKS {
        let others: Vec<&str> = NAMES.into_iter().filter(|name| !network.contains(name)).collect();
        let host = Host::new();
        let started = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let until = Until(&is_over);
            for number in 0..CROWD {
                let (host, subject, started, is_over) = (&host, member(&node, network, number), &started, &is_over);
                scope.spawn(move || {
                    let container = subject.container(host);
                    let id = format!("c-{number}");
                    while !is_over.load(Ordering::Relaxed) {
                        let result = subject.add(host, &id, &container);
                        subject.del(host, &id, &container, &result);
                        started.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for way in WRITERS {
                let before = started.load(Ordering::Relaxed);
                write_over_each(&node, &new, &others, way);
                written.extend(others.iter().map(|name| (way.0, *name)));
                let deadline = Deadline::after(Duration::from_mins(1));
                while started.load(Ordering::Relaxed) == before {
                    assert!(deadline.pause(Duration::from_millis(1)), "{}: no container has started", way.0);
                }
            }
            drop(until);
        });
    }
    assert_eq!(written.len(), NAMES.len() * WRITERS.len(), "{written:?}");
}

#[test]
fn uninstalling_leaves_an_empty_node_empty() {
    let node = Node::new();
    node.install();
    node.uninstall();
    assert_eq!(node.files(), BTreeMap::new());
    let (succeeded, printed) = node.try_script(&["--uninstall", "--force"]);
    assert!(!succeeded && printed.contains("not installed"), "{printed}");
}

#[test]
fn replaced_files_are_saved_and_restored_by_uninstallation() {
    let node = Node::new();
    node.give("cni bin/bridge", FOREIGN);
    node.give("cni bin/macvlan", "a plugin that we have not");
    node.give("cni bin/.hidden", "something hidden");
    node.give("tools/cnitool", "another tool");
    std::os::unix::fs::symlink("/nowhere/ptp", node.plugins().join("ptp")).unwrap();
    let before = node.files();
    let printed = node.install();
    assert!(printed.contains("kept") && printed.contains("bridge"), "{printed}");
    assert!(node.is_ours("bridge") && node.is_ours("ptp"));
    node.install();
    node.uninstall();
    assert_eq!(node.files(), before);
}

#[test]
fn a_second_installation_touches_no_file() {
    let node = Node::new();
    node.give("cni bin/bridge", FOREIGN);
    node.install();
    let first = node.files();
    let printed = node.install();
    assert!(node.files() == first, "a file came, went or changed");
    assert!(!printed.contains("kept"), "{printed}");
}

#[test]
fn files_put_over_ours_survive_installation_and_uninstallation() {
    let node = Node::new();
    node.give("cni bin/bridge", FOREIGN);
    node.install();
    replace(&node, "bridge", NEWER);
    node.install();
    assert!(node.is_ours("bridge"));
    replace(&node, "host-local", "this one too");
    node.uninstall();
    let content = |name: &str| fs::read_to_string(node.plugins().join(name)).unwrap();
    assert_eq!((content("bridge").as_str(), content("host-local").as_str()), (NEWER, "this one too"));
    assert_eq!(node.files().len(), 2);
}

/// A later version of it. What is no program would not be kept in the place of one that is.
const NEWER: &str = "#!/bin/sh\necho newer\n";

/// As a package manager does it.
fn replace(node: &Node, name: &str, content: &str) {
    node.give("new", content);
    fs::rename(node.dir.path().join("new"), node.plugins().join(name)).unwrap();
}

#[test]
fn an_installation_that_was_killed_half_way_is_completed_by_the_next() {
    let node = Node::new();
    node.give("cni bin/bridge", FOREIGN);
    let before = node.files();
    node.install();
    // What a kill between two renames leaves of an upgrade from 0.1, whose plugins were hard links: some names are links to its old
    // file, some to its next, some are launchers, one is a temporary name.
    let path = |name: &str| node.plugins().join(name);
    fs::copy(path("cni-plugins"), path(".cnikit-next")).unwrap();
    for (plugin, file) in [("ptp", ".cnikit-next"), ("macvlan", "cni-plugins")] {
        fs::remove_file(path(plugin)).unwrap();
        fs::hard_link(path(file), path(plugin)).unwrap();
    }
    fs::hard_link(path(".cnikit-next"), path(".cnikit-tmp-bridge")).unwrap();
    fs::write(path(".cnikit-tmp-abcdefgh"), "half a file").unwrap();
    let printed = node.install();
    assert!(!printed.contains("kept"), "our own file was taken for another's: {printed}");
    NAMES.iter().for_each(|plugin| assert!(node.is_ours(plugin), "{plugin}"));
    node.uninstall();
    assert_eq!(node.files(), before);
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let node = Node::new();
    let plugins = node.plugins();
    let line = format!(
        "mount -t tmpfs -o size=512k,mode=755 none '{plugins}' && echo old >'{plugins}/bridge' && ! CNIKIT_BUILT='{built}' '{SCRIPT}' \
         '{plugins}' '{tools}' >&2 && ls -A '{plugins}' && cat '{plugins}/bridge'",
        plugins = plugins.display(),
        built = released().display(),
        tools = node.tools().display(),
    );
    let printed = Command::new("unshare").args(["--mount", "sh", "-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "bridge\nold\n", "{printed:?}");
    assert!(String::from_utf8_lossy(&printed.stderr).contains("No space left"), "{printed:?}");
}

/// How many installations the next test makes, in the short form and in the whole.
const INSTALLATIONS: usize = 24;
const ALL_INSTALLATIONS: usize = 134;

#[test]
fn a_node_that_executes_a_plugin_all_the_while_never_sees_a_half() {
    let node = Node::new();
    // Not a script: that is opened a second time, by its interpreter.
    fs::copy("/usr/lib/cni/bridge", node.plugins().join("bridge")).expect("the packaged reference is installed");
    let stop = AtomicBool::new(false);
    let plugin = node.plugins().join("bridge");
    let rounds = case_limit(INSTALLATIONS).min(ALL_INSTALLATIONS);
    let (times, failures) = thread::scope(|scope| {
        let busy = scope.spawn(|| execute_until(&plugin, &stop));
        for round in 0..rounds {
            node.install();
            // Every other time over our own files, otherwise over those of the other maker, which are put back.
            if round % 2 == 0 {
                node.uninstall();
            }
        }
        stop.store(true, Ordering::Relaxed);
        busy.join().unwrap()
    });
    assert_eq!(failures, Vec::<String>::new());
    assert!(times > 2 * rounds, "it was executed {times} times only");
    assert_eq!(node.files().len(), NAMES.len() + 3, "temporary files are left: {:?}", node.files().into_keys());
    let what = "install beside a plugin that is executed";
    SummaryLine { tried: rounds, of: ALL_INSTALLATIONS, ..SummaryLine::new(what, "installations") }.print();
}

#[test]
fn two_installations_at_once_are_one_after_the_other() {
    let node = Node::new();
    node.give("cni bin/bridge", FOREIGN);
    let before = node.files();
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| node.install()))));
    node.uninstall();
    assert_eq!(node.files(), before);
}

/// The texts in a file, as strings(1) prints them.
fn words(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap();
    let words = bytes.split(|byte| !byte.is_ascii_graphic()).filter_map(|word| std::str::from_utf8(word).ok());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[test]
fn installed_binaries_have_no_paths_of_the_build_machine() {
    let bin = cnikit_tests::installed();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_str().unwrap();
    let homes = ["HOME", "CARGO_HOME", "RUSTUP_HOME"].map(|name| std::env::var(name).unwrap_or_default());
    let telling = homes.iter().map(String::as_str).chain(["/root/", "/home/", "/.cargo/", "/.rustup/", root]);
    let telling: Vec<&str> = telling.filter(|path| path.len() > 1).collect();
    for file in [bin.join("cni-plugins"), bin.join("../tool/cnitool")] {
        let words = words(&file);
        // The binary has paths, and they are the same on every machine. Without any, this test could not find others.
        assert!(words.iter().any(|word| word.contains("/cargo/registry/")), "{}", file.display());
        let told: Vec<_> = words.iter().filter(|word| telling.iter().any(|path| word.contains(path))).collect();
        assert!(told.is_empty(), "{}: {told:?}", file.display());
    }
}

/// The target that the script chooses on an ARM machine with these standard libraries, and with this shell script as `rustup`.
fn release_target(there: &[&str], rustup: &str) -> (String, String) {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().display();
    let needs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/lib.sh");
    for target in there {
        fs::create_dir_all(place.path().join(target)).unwrap();
        fs::write(place.path().join(target).join("libstd-1.rlib"), "").unwrap();
    }
    let rustc = format!("case $1 in -vV) echo host: aarch64-unknown-linux-gnu ;; *) echo {root}/$4 ;; esac");
    for (name, script) in [("rustc", rustc.as_str()), ("rustup", rustup)] {
        fs::write(place.path().join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(place.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let line = format!("cd {root}; PATH={root}:$PATH; . '{}'; release_target", needs.display());
    let printed = Command::new("bash").args(["-euc", &line]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
    assert!(printed.status.success(), "{printed:?}");
    (text(printed.stdout), text(printed.stderr))
}

#[test]
fn plugins_are_built_with_musl_or_else_for_the_host_with_a_warning() {
    let host = "aarch64-unknown-linux-gnu";
    let musl = "aarch64-unknown-linux-musl";
    let fetches = "[ \"$*\" = 'target add aarch64-unknown-linux-musl' ] && mkdir $3 && touch $3/libstd-2.rlib";
    assert_eq!(release_target(&[host, musl], "exit 1"), (musl.into(), String::new()));
    assert_eq!(release_target(&[host], fetches), (musl.into(), String::new()));
    let (target, printed) = release_target(&[host], "exit 1");
    assert_eq!(target, host);
    assert!(printed.contains(musl) && printed.contains("not to be had") && !printed.contains('\n'), "{printed}");
}

/// Opened for reading, a FIFO would wait for a writer; the installed C library has constants of its own.
#[test]
fn installed_plugins_refuse_a_pipe_without_opening_it() {
    let host = Host::new();
    let loopback = Subject::new(cnikit_tests::installed(), "loopback", json!({}));
    let pipe = host.dir().join("pipe").display().to_string();
    host.sh(&format!("mkfifo {pipe}"));
    let begin = Instant::now();
    let (code, text) = loopback.call(&host, "ADD", "c-one", &pipe, &[]).refused();
    assert!(text.contains(&pipe) && text.contains("a file"), "{code}: {text}");
    loopback.call(&host, "DEL", "c-one", &pipe, &[]).ok();
    assert!(begin.elapsed() < Duration::from_mins(1), "it waited for a writer: {:?}", begin.elapsed());
}
