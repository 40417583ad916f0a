//! Another user of the node holds locks, for as long as they like.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cnikit::plan::{Kind, Plan};
use cnikit::resources::veth;
use cnikit::{Addresses, AttachmentSpec, Error, Input, InterfacePlugin, InterfaceShape, Sources, code, serve};
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::source_routing;
use cnikit_tests::way::script;
use cnikit_tests::world::{Stop, lives_while_locked};
use cnikit_tests::{bin, copy_program, dual_stack, subject};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::actor::as_another_user;

const NOBODY: u32 = 65534;
/// A call that waited for a lock that is never released would fail after a minute. Half of that is much on any machine.
const MUCH: Duration = Duration::from_secs(30);

/// A directory where any user may write.
fn open_to_all() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    dir
}

/// The plugins of a chain, with its IPAM plugin.
const CHAINED: [&str; 4] = ["bridge", "portmap", "firewall", "host-local"];

/// The plugins of a chain that writes rules by iptables, and the verbs of one container's life.
struct Chain {
    bridge: Subject,
    chained: Vec<Subject>,
}

impl Chain {
    fn at(dir: &Path) -> Chain {
        let keys = json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "ipam": dual_stack()});
        let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let ports = json!({"backend": "iptables", "runtimeConfig": {"portMappings": mappings}});
        let chained = [subject("portmap", ports), subject("firewall", json!({"backend": "iptables"}))];
        let chained = chained.iter().map(|subject| subject.at(dir)).collect();
        Chain { bridge: subject("bridge", keys).at(dir), chained }
    }

    fn run_by(self, bin: &Path) -> Chain {
        let by = |subject: Subject| subject.in_directory(bin);
        Chain { bridge: by(self.bridge), chained: self.chained.into_iter().map(by).collect() }
    }

    fn add(&self, host: &Host, id: &str, container: &Container) -> Value {
        let result = self.bridge.add(host, id, container);
        for plugin in &self.chained {
            plugin.call(host, "ADD", id, &container.path(), &[("prevResult", result.clone())]).ok();
        }
        result
    }

    fn del(&self, host: &Host, id: &str, container: &Container, result: &Value) {
        self.chained.iter().rev().for_each(|plugin| plugin.del(host, id, container, result));
        self.bridge.del(host, id, container, result);
    }

    fn gc(&self, host: &Host) {
        for plugin in self.chained.iter().chain([&self.bridge]) {
            plugin.call(host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
        }
    }

    /// A container is added and deleted, another one added and collected: all of it succeeds, and nothing is left. Returns how long
    /// that took.
    fn lives(&self, host: &Host, when: &str) -> Duration {
        let began = Instant::now();
        for deleted in [true, false] {
            let container = host.container();
            let result = self.add(host, "c-one", &container);
            if deleted {
                self.del(host, "c-one", &container, &result);
            } else {
                self.gc(host);
            }
            let rules = host.sh("iptables-save; ip6tables-save");
            assert!(!rules.contains("c-one") && !rules.contains("10.77.0."), "{when}: {rules}");
            assert_eq!(host.try_sh("ip -o link show type veth | grep .").1, "", "{when}");
        }
        began.elapsed()
    }
}

/// While `work` is done, another user opens every file that it can in these places, and the host's namespace, and locks all of it.
/// Returns the list of the locked files.
fn while_another_user_holds_all(host: &Host, mode: &str, places: &[&Path], work: impl FnOnce()) -> String {
    let shared = open_to_all();
    let dir = shared.path().display();
    let places = places.iter().map(|place| place.display().to_string());
    let places: Vec<String> = places.collect();
    let line = format!(
        "cd {dir}
         hold='echo \"$0\" >>{dir}/held; exec sleep 300'
         for file in /proc/self/ns/net $(find {} \\( -type f -o -type d \\) -readable 2>/dev/null); do
             flock --no-fork -n {mode} $file sh -c \"$hold\" $file 2>/dev/null & jobs=\"${{jobs:-}} $!\"
         done
         until grep -q ns/net held; do sleep 0.02; done
         sleep 0.5; echo >ready
         until [ -e stop ]; do sleep 0.05; done
         kill $jobs 2>/dev/null; wait",
        places.join(" ")
    );
    thread::scope(|scope| {
        let holder = scope.spawn(|| host.try_sh(&as_another_user(&line)));
        let stop = Stop(shared.path().join("stop"));
        while !shared.path().join("ready").exists() && !holder.is_finished() {
            thread::yield_now();
        }
        assert!(!holder.is_finished(), "nothing is held");
        work();
        drop(stop);
    });
    fs::read_to_string(shared.path().join("held")).unwrap()
}

/// The plugins where any user reads them, as they are installed: a checkout may be in a directory that only its owner enters.
fn readable_by_all() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let [first, others @ ..] = CHAINED.map(|name| dir.path().join(name));
    copy_program(&bin().join(CHAINED[0]), &first);
    others.iter().for_each(|name| fs::hard_link(&first, name).unwrap());
    dir
}

#[test]
fn locks_of_another_user_delay_no_call() {
    let plugins = readable_by_all();
    for mode in ["--shared", "--exclusive"] {
        let host = Host::new();
        let chain = Chain::at(host.dir()).run_by(plugins.path());
        // The state after a first ADD and DEL: shared chains, a bridge, the files of a network.
        let free = chain.lives(&host, "before");
        let state = host.dir().to_owned();
        fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        let before = HostSnapshot::of(&host);
        let places = [Path::new("/run"), Path::new("/var/lib/cni"), &state, plugins.path()];
        let held = while_another_user_holds_all(&host, mode, &places, || {
            let took = chain.lives(&host, mode);
            assert!(took < 3 * free + MUCH, "{mode}: {took:?}, and {free:?} while nothing was held");
        });
        let dir = format!("{}\n", plugins.path().display());
        assert!(held.contains("/proc/self/ns/net\n") && held.contains(&dir), "{held}");
        assert!(!held.contains("/cnikit"), "{held}");
        HostSnapshot::of(&host).assert_unchanged_since(&before, &cnikit_testkit::snapshot::HINTS, mode);
    }
}

#[test]
fn no_other_user_can_open_a_lock_file() {
    let host = Host::new();
    Chain::at(host.dir()).lives(&host, "");
    let file = Path::new("/run/cnikit/locks").join(format!("netns-{}", host.netns().cookie().unwrap()));
    for (path, mode) in
        [(file.as_path(), 0o100_600), (file.parent().unwrap(), 0o40_700), (Path::new("/run/cnikit"), 0o40_700)]
    {
        let found = fs::symlink_metadata(path).unwrap();
        assert_eq!((found.uid(), found.mode()), (0, mode), "{}", path.display());
    }
    let (opened, output) = host.try_sh(&as_another_user(&format!("cat {}", file.display())));
    assert!(!opened && output.contains("Permission denied"), "{output}");
}

/// Plugins that see `/run` and `/var/lib` as this line of shell makes them, in a mount namespace of their own.
fn seeing(mounts: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in CHAINED {
        let plugin = bin().join(name);
        script(dir.path(), name, &format!("exec unshare -m sh -c '{mounts}; exec {}'", plugin.display()));
    }
    dir
}

/// The plugins log to this file, which shows what they locked.
fn logging(chain: Chain, log: &Path) -> Chain {
    let env = vec![("CNI_LOG".to_owned(), "info".to_owned()), ("CNI_LOG_FILE".to_owned(), log.display().to_string())];
    let of = |subject: Subject| subject.with_env(env.clone());
    Chain { bridge: of(chain.bridge), chained: chain.chained.into_iter().map(of).collect() }
}

#[test]
fn with_a_read_only_run_the_lock_file_is_elsewhere_and_serialises() {
    let host = Host::new();
    let state = tempfile::tempdir().unwrap();
    let plugins = seeing(&format!("mount -t tmpfs -o ro none /run; mount --bind {} /var/lib", state.path().display()));
    let log = host.dir().join("log");
    let chain = logging(Chain::at(host.dir()).run_by(plugins.path()), &log);
    chain.lives(&host, "/run is read-only");
    let output = fs::read_to_string(&log).unwrap();
    assert!(
        output.contains("make directory /run/cnikit: Read-only file system") && !output.contains("is not locked"),
        "{output}"
    );
    let file = state.path().join(format!("cnikit/locks/netns-{}", host.netns().cookie().unwrap()));
    // A call waits for the process that has locked that file.
    let container = host.container();
    let prev = chain.bridge.add(&host, "c-one", &container);
    let ended = host.dir().join("ended");
    let held = host.dir().join("held");
    thread::scope(|scope| {
        // flock(1) runs as long as it holds the lock. `/proc/locks` shows no other locks that it excludes.
        let inode = fs::metadata(&file).unwrap().ino();
        let line = format!(
            "flock {} sh -c 'touch {}; until grep -q -e \"-> FLOCK .*:{inode} \" /proc/locks; do sleep 0.02; done; test ! -e {}'",
            file.display(),
            held.display(),
            ended.display()
        );
        let holder = scope.spawn({
            let host = &host;
            move || host.sh(&line)
        });
        while !held.exists() && !holder.is_finished() {
            thread::yield_now();
        }
        chain.chained[0].call(&host, "ADD", "c-one", &container.path(), &[("prevResult", prev.clone())]).ok();
        fs::write(&ended, "").unwrap();
    });
    chain.del(&host, "c-one", &container, &prev);
}

#[test]
fn without_a_lock_file_another_user_delays_a_call_by_seconds_only() {
    let host = Host::new();
    let plugins = seeing("mount -t tmpfs -o ro none /run; mount -t tmpfs -o ro none /var/lib");
    let log = host.dir().join("log");
    let chain = logging(Chain::at(host.dir()).run_by(plugins.path()), &log);
    chain.lives(&host, "no lock is held");
    let output = fs::read_to_string(&log).unwrap();
    assert!(output.contains("make directory /var/lib/cnikit") && !output.contains("is not locked"), "{output}");
    while_another_user_holds_all(&host, "--shared", &[], || {
        let container = host.container();
        let prev = chain.bridge.add(&host, "c-one", &container);
        let began = Instant::now();
        chain.chained[0].call(&host, "ADD", "c-one", &container.path(), &[("prevResult", prev.clone())]).ok();
        assert!((Duration::from_secs(2)..MUCH).contains(&began.elapsed()), "{:?}", began.elapsed());
        chain.del(&host, "c-one", &container, &prev);
    });
    assert!(fs::read_to_string(&log).unwrap().contains("this network namespace is not locked for calls"));
}

/// sbr changes the tables of a container, whose processes can open the file of their namespace.
#[test]
fn a_lock_of_a_container_on_its_own_namespace_delays_no_call() {
    let sbr = source_routing(bin());
    for mode in ["--shared", "--exclusive"] {
        let took = lives_while_locked(&sbr, mode);
        assert!(took < MUCH, "{mode}: {took:?}");
    }
}

/// Replaces a directory by something else.
type Spoil = fn(&Path);

#[test]
fn a_directory_that_another_user_made_or_may_write_is_not_believed() {
    let ways: [(&str, Spoil, &str); 4] = [
        ("theirs", |at| chown(at, Some(NOBODY), Some(NOBODY)).unwrap(), "it belongs to user 65534"),
        (
            "writable",
            |at| fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap(),
            "other users may write there",
        ),
        (
            "link",
            |at| {
                fs::remove_dir(at).unwrap();
                std::os::unix::fs::symlink("/tmp", at).unwrap();
            },
            "Not a directory",
        ),
        (
            "file",
            |at| {
                fs::remove_dir(at).unwrap();
                fs::write(at, "").unwrap();
            },
            "Not a directory",
        ),
    ];
    for (name, spoil, why) in ways {
        let host = Host::new();
        let run = tempfile::tempdir().unwrap();
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(run.path().join("cnikit")).unwrap();
        spoil(&run.path().join("cnikit"));
        let [at, lib] = [&run, &state].map(|dir| dir.path().display().to_string());
        let plugins = seeing(&format!("mount --bind {at} /run; mount --bind {lib} /var/lib"));
        let log = host.dir().join("log");
        logging(Chain::at(host.dir()).run_by(plugins.path()), &log).lives(&host, name);
        let output = fs::read_to_string(&log).unwrap();
        assert!(output.contains(why), "{name}: {output}");
        assert!(state.path().join("cnikit/locks").is_dir(), "{name}: the next place serves");
        assert!(fs::read_dir(run.path().join("cnikit")).map_or(0, Iterator::count) < 1 || name == "link");
    }
}

/// During an upgrade of a node: releases without lock files lock something else.
#[test]
fn an_older_release_waits_for_this_one_and_is_not_waited_for() {
    let host = Host::new();
    let chain = Chain::at(host.dir());
    thread::scope(|scope| {
        let [held, stop] = ["held", "stop"].map(|name| host.dir().join(name));
        let line = format!(
            "exec 9</proc/self/ns/net; flock 9; touch {}; until [ -e {} ]; do sleep 0.05; done",
            held.display(),
            stop.display()
        );
        let holder = scope.spawn({
            let host = &host;
            move || host.sh(&line)
        });
        let stop = Stop(stop);
        while !held.exists() && !holder.is_finished() {
            thread::yield_now();
        }
        chain.lives(&host, "an older one has it");
        drop(stop);
    });
    // A program of iptables is started with the lock held. At that moment an older release would have to wait.
    let programs = host.dir().join("programs");
    fs::create_dir(&programs).unwrap();
    let seen = host.dir().join("seen");
    let ask = format!(
        "flock -n /proc/self/ns/net true; echo $? >>{}; exec /usr/sbin/iptables-restore \"$@\"",
        seen.display()
    );
    script(&programs, "iptables-restore", &ask);
    let container = host.container();
    let prev = chain.bridge.add(&host, "c-one", &container);
    let portmap = cnikit_tests::way::on_path(&chain.chained[0], &programs);
    portmap.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", prev.clone())]).ok();
    assert_eq!(fs::read_to_string(&seen).unwrap(), "1\n");
    chain.del(&host, "c-one", &container, &prev);
}

/// A bridge whose rules cannot be removed for now.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Busy(bridge::BridgePlugin);

const BUSY: Kind = Kind {
    name: "rules",
    release: |_| Ok(()),
    sweep: |_| Err(Error::new(code::TRY_AGAIN, "this network namespace could not be locked")),
    outlives_link: true,
};

impl InterfacePlugin for Busy {
    const LINK: Kind = veth::KIND;
    const KINDS: &'static [Kind] = &[BUSY];
    const SOURCES: Sources = bridge::BridgePlugin::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = bridge::BridgePlugin::KNOWN_ARGS;

    fn link(&self, at: &AttachmentSpec) -> Plan {
        self.0.link(at)
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        self.0.layer3(at, addresses)
    }
}

/// Whichever lock is held for too long, a rule is never left without its link and its address: the next GC finds all of it.
#[test]
fn gc_that_cannot_have_the_lock_leaves_link_address_and_rules() {
    let host = Host::new();
    let container = Host::new().container();
    let bridge = subject("bridge", json!({"ipam": dual_stack()})).at(host.dir());
    let bridge = bridge.with("cni.dev/valid-attachments", json!([]));
    bridge.add(&host, "c-one", &container);
    let before = HostSnapshot::of(&host);
    let mut input = Input::new("GC", bridge.conf.to_string());
    input.path = bridge.bin.display().to_string();
    let mut output = Vec::new();
    let exit = host.enter(|| serve::<InterfaceShape<Busy>>("bridge", input, &[], &mut output));
    let output: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!((exit, &output["code"]), (1, &json!(code::TRY_AGAIN)), "{output}");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "GC failed");
    bridge.call(&host, "GC", "", "", &[]).ok();
    assert_eq!(host.try_sh("ip -o link show type veth | grep .").1, "");
}

/// Concurrent installations do not disturb each other: each waits for the one before.
#[test]
fn an_installation_waits_for_no_other_user() {
    let host = Host::new();
    let dir = open_to_all();
    // Otherwise the directory would be refused, as others could put another one in its place.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    let bin = dir.path().join("bin");
    let tool = dir.path().join("tool");
    [&bin, &tool].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install");
    let line = format!(
        "CNIKIT_BUILT={} timeout 100 {} {} {}",
        cnikit_tests::released().display(),
        script.display(),
        bin.display(),
        tool.display()
    );
    let held = while_another_user_holds_all(&host, "--exclusive", &[dir.path()], || {
        host.sh(&format!("{line} & {line} & {line}; wait"));
        host.sh(&line);
    });
    assert!(held.contains(&format!("{}\n", bin.display())), "{held}");
    let names = host.sh(&format!("ls -A {}", bin.display()));
    assert!(names.contains("host-local") && !names.contains('.'), "{names}");
}
