//! Podman runs the image on a node whose containerd watches the directories that it works in.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_testkit::campaign::{SummaryLine, sample, seeded_rng};
use cnikit_tests::runtimes::{Containerd, Edition, Node, PODMAN_CONF, PodSandbox, Sandbox, release_image};
use cnikit_tests::switched::Until;
use cnikit_tests::{NAMES, copy_program, program};

use crate::stage::manifests;

/// As the manifests have it: no capability, a root that is read-only, and two directories of the node.
const CONFINED: &str = "--network none --read-only --cap-drop all --security-opt no-new-privileges \
     --volume /etc:/host/etc --volume /opt:/host/opt --volume /var/lib/cni:/host/var/lib/cni:ro";
const LIST: &str = "--network-list /list/10-pods.conflist --pod-cidr 10.244.1.0/24,fd00:10:244:1::/64";
/// What the files of the second release end with.
const NEXT: &str = "the next release";
/// The digests of the files that are installed. Podman makes a lock file beside the network list.
const DIGESTS: &str = "sha256sum /opt/cni/bin/* /etc/cni/net.d/*.conflist";
/// How many installers are killed, how many are started for that at most, and how long they live at most, in milliseconds.
const KILLS: usize = 4;
const TRIES: usize = 60;
const LONGEST_LIFE: u32 = 40;
/// The longest time for something that a busy machine needs seconds for.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A scene on a node of its own.
pub(crate) type Scene = (&'static str, fn(Edition));

pub(crate) const ALL: [Scene; 9] = [
    ("a_node_without_a_network_gets_one", first_install),
    ("an_upgrade_disturbs_no_pod_that_starts", upgrade_under_load),
    ("two_installers_at_once_leave_one_release", two_at_once),
    ("killed_installers_leave_plugins_that_serve_pods", killed),
    ("an_installer_killed_at_any_system_call_leaves_plugins_that_serve_pods", killed_at_system_calls),
    ("a_full_disk_leaves_the_earlier_release", full_disk),
    ("a_read_only_node_passes_if_nothing_is_to_be_done", read_only),
    ("deleted_directories_are_made_again", deleted_directories),
    ("the_plugins_of_running_pods_are_not_uninstalled", uninstall),
];

/// Two releases of the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    First,
    Second,
}

impl Release {
    fn tag(self) -> &'static str {
        match self {
            Release::First => "first",
            Release::Second => "second",
        }
    }
}

/// A node with containerd and Podman, and without plugins and network list.
struct Stage {
    node: Arc<Node>,
    cri: Containerd,
}

impl Stage {
    fn new(edition: Edition) -> Stage {
        let node = Arc::new(Node::bare(""));
        let dir = node.scratch().join("list");
        fs::create_dir(&dir).unwrap();
        fs::copy(manifests().join("network/10-pods.conflist"), dir.join("10-pods.conflist")).unwrap();
        node.write("/etc/containers/containers.conf", PODMAN_CONF);
        let cri = Containerd::start_bare(&node, edition);
        let stage = Stage { node, cri };
        for (release, more) in [(Release::First, ""), (Release::Second, NEXT)] {
            let image = release_image(stage.node.scratch(), &format!("localhost/cnikit:{}", release.tag()), more);
            stage.podman(&format!("load --quiet --input {}", image.display()));
        }
        stage
    }

    /// A node on which the first release is installed.
    fn installed(edition: Edition) -> Stage {
        let stage = Stage::new(edition);
        stage.install(Release::First);
        stage.cri.wait_until_ready();
        stage
    }

    fn podman_line(&self, line: &str) -> String {
        let scratch = self.node.scratch().display();
        format!("podman --root {scratch}/storage --runroot {scratch}/podman --storage-driver vfs {line}")
    }

    fn podman(&self, line: &str) -> String {
        self.node.sh(&self.podman_line(line))
    }

    /// The line that runs the image.
    fn run_line(&self, release: Release, flags: &str, command: &str) -> String {
        let cgroup = self.node.cgroup();
        let list: PathBuf = self.node.scratch().join("list");
        self.podman_line(&format!(
            "run --rm --cgroup-parent {cgroup} {CONFINED} --volume {}:/list:ro {flags} localhost/cnikit:{} {command}",
            list.display(),
            release.tag()
        ))
    }

    fn try_run(&self, release: Release, command: &str) -> (bool, String) {
        self.node.try_sh(&self.run_line(release, "", command))
    }

    fn install(&self, release: Release) {
        let (succeeded, printed) = self.try_run(release, &format!("install --root /host {LIST}"));
        assert!(succeeded, "{printed}");
        self.assert_is(release);
    }

    /// Every file is as it is in this release.
    fn assert_is(&self, release: Release) {
        let (same, printed) = self.try_run(release, &format!("verify --root /host {LIST}"));
        assert!(same, "not {}: {printed}", release.tag());
        let files = self.node.sh("find /opt/cni /etc/cni -name '.cnikit-tmp*' -o -name .cnikit-lock");
        assert_eq!(files, "", "left behind");
    }

    /// A pod starts and ends.
    fn run_pod(&self, name: &str) {
        let pod = self.start_pod(name).unwrap();
        self.end_pod(&pod).unwrap();
    }

    fn start_pod(&self, name: &str) -> Result<Sandbox, String> {
        let pod = self.cri.run(&PodSandbox { name: name.into(), host_port: 0 })?;
        assert_eq!(pod.addresses.len(), 2, "{pod:?}");
        assert!(pod.addresses[0].starts_with("10.244.1."), "{pod:?}");
        Ok(pod)
    }

    fn end_pod(&self, pod: &Sandbox) -> Result<(), String> {
        self.cri.stop(&pod.id)?;
        self.cri.remove(&pod.id)
    }

    /// Runs something while pods start and end, four at a time; none may be refused. Returns how many there were.
    fn under_load(&self, work: impl FnOnce()) -> usize {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let start = |n: usize| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let pod = self.start_pod(&format!("load-{n}-{count}"))?;
                    self.end_pod(&pod)?;
                    count += 1;
                }
                Ok::<usize, String>(count)
            };
            let crowd: Vec<_> = (0..4).map(|n| scope.spawn(move || start(n))).collect();
            let until = Until(&is_over);
            work();
            drop(until);
            let counts = crowd.into_iter().map(|one| one.join().unwrap());
            let counts = counts.map(|count| count.unwrap_or_else(|error| panic!("{error}\n{}", self.cri.log_tail())));
            counts.sum()
        })
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Deadline::after(TIMEOUT);
        while !is_so() {
            assert!(
                deadline.pause(Duration::from_millis(100)),
                "in vain was waited until {what}\n{}",
                self.cri.log_tail()
            );
        }
    }
}

/// containerd was not ready, and is so without a restart.
fn first_install(edition: Edition) {
    let stage = Stage::new(edition);
    let unready = stage.cri.is_ready().unwrap_err();
    assert!(unready.starts_with("NetworkReady: "), "{unready}");
    // Another directory than those that the container has is none of the node's: it is not filled in vain.
    let other = format!("install --root /host --plugin-dir /usr/lib/cni {LIST}");
    let (succeeded, printed) = stage.try_run(Release::First, &other);
    assert!(!succeeded && printed.contains("/host/usr: "), "{printed}");
    stage.install(Release::First);
    stage.cri.wait_until_ready();
    let names = stage.node.sh("ls /opt/cni/bin");
    assert!(NAMES.iter().all(|name| names.lines().any(|line| line == *name)), "{names}");
    stage.run_pod("first");
}

fn upgrade_under_load(edition: Edition) {
    let stage = Stage::installed(edition);
    let count = stage.under_load(|| {
        for release in [Release::Second, Release::First, Release::Second, Release::First, Release::Second] {
            stage.install(release);
        }
    });
    assert!(count > 0, "no pod has started");
    println!("{count} pods started during five installations");
}

/// Each waits for the other; the files are those of the one that was last.
fn two_at_once(edition: Edition) {
    let stage = Stage::installed(edition);
    let installs =
        [Release::First, Release::Second].map(|one| stage.run_line(one, "", &format!("install --root /host {LIST}")));
    let [one, other] = installs;
    stage.under_load(|| {
        for _ in 0..3 {
            stage.node.sh(&format!("{one} & first=$!; {other}; wait $first"));
        }
    });
    let is_second = stage.node.sh("tail -c 16 /opt/cni/bin/bridge") == NEXT;
    stage.assert_is(if is_second { Release::Second } else { Release::First });
    stage.run_pod("afterwards");
}

/// Each is killed at a random moment, while pods start and end.
fn killed(edition: Edition) {
    let stage = Stage::installed(edition);
    let mut chance = seeded_rng("killed installers");
    let (mut started, mut died) = (0, 0);
    let count = stage.under_load(|| {
        while died < KILLS && started < TRIES {
            started += 1;
            let release = if started % 2 == 0 { Release::Second } else { Release::First };
            let install = stage.run_line(release, "", &format!("install --root /host {LIST}"));
            let line = format!(
                "{install} >/dev/null & until pid=$(pgrep -f '^/cni-plugins install') || ! kill -0 $!; do :; done 2>/dev/null
                 sleep 0.{:03}; kill -KILL $pid 2>/dev/null || :
                 status=0; wait $! || status=$?; echo $status",
                chance.u32(..LONGEST_LIFE)
            );
            match stage.node.sh(&line).trim() {
                "137" => died += 1,
                status => assert_eq!(status, "0", "it was not killed"),
            }
        }
    });
    println!("{died} of {started} installers were killed, {count} pods started meanwhile");
    assert!(died == KILLS && count > 0);
    // A lock file of a killed one is removed by the next that has something to do, which one of these has.
    let (succeeded, printed) = stage.try_run(Release::First, &format!("install --root /host {LIST}"));
    assert!(succeeded, "{printed}");
    stage.install(Release::Second);
    stage.run_pod("afterwards");
}

/// Each is killed before one of its system calls, while pods start and end: the first installation on a node, and upgrades. The
/// next run completes it. `CNIKIT_CAMPAIGNS=whole` tries each call.
fn killed_at_system_calls(edition: Edition) {
    let stage = Stage::installed(edition);
    let killer = stage.node.scratch().join("kill-at");
    copy_program(&program("kill-at"), &killer);
    let flags = format!("--volume {}:/kill-at:ro --entrypoint /kill-at", killer.display());
    // Returns what it printed, and whether it was killed.
    let install = |release: Release, at: usize| {
        let command = format!("{at} /cni-plugins install --root /host {LIST}");
        let (succeeded, printed) = stage.node.try_sh(&stage.run_line(release, &flags, &command));
        assert!(succeeded || at > 0, "{printed}");
        (printed, !succeeded)
    };
    let (printed, _) = install(Release::Second, 0);
    let calls: usize =
        printed.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or_else(|| panic!("{printed}"));
    assert!(calls > 100, "only {calls} system calls");
    let what = format!("kill installer in Podman, {}", edition.name());
    let chosen = sample(&what, (1..=calls).collect(), KILLS);
    let mut survived = 0;
    let started = stage.under_load(|| {
        for at in &chosen {
            // Whichever was completed last, this one changes files.
            let release = if survived % 2 == 0 { Release::First } else { Release::Second };
            let (printed, was_killed) = install(release, *at);
            // It makes a few calls fewer when it does not have to wait.
            assert!(was_killed || *at > calls / 2, "it made fewer than {at} of {calls} calls: {printed}");
            stage.install(release);
            survived += 1;
        }
    });
    SummaryLine { tried: chosen.len(), of: calls, ..SummaryLine::new(what, "calls") }.with_seed().print();
    println!("{started} pods started meanwhile");
    assert!(started > 0);
    // The first installation: the node has neither plugins nor a network list.
    for at in sample("kill the first installer in Podman", (1..=calls).collect::<Vec<_>>(), KILLS) {
        let (succeeded, printed) = stage.try_run(Release::Second, "uninstall --root /host --force");
        assert!(succeeded, "{printed}");
        install(Release::First, at);
        stage.install(Release::First);
        stage.cri.wait_until_ready();
        stage.run_pod("afterwards");
    }
}

/// The new files do not fit: nothing is changed, and pods start. Then they fit.
fn full_disk(edition: Edition) {
    let stage = Stage::installed(edition);
    let node = &stage.node;
    node.sh("mkdir /run/full && mount -t tmpfs -o mode=0755,size=16m tmpfs /run/full && cp -a /opt/. /run/full && mount --move /run/full /opt");
    node.sh("head -c 16M /dev/zero >/opt/filler 2>/dev/null || :");
    let before = node.sh("sha256sum /opt/cni/bin/*");
    let (succeeded, printed) = stage.try_run(Release::Second, &format!("install --root /host {LIST}"));
    assert!(!succeeded && printed.contains("No space left on device"), "{printed}");
    assert_eq!(node.sh("sha256sum /opt/cni/bin/*"), before);
    stage.run_pod("on-a-full-disk");
    node.sh("rm /opt/filler");
    stage.install(Release::Second);
    stage.run_pod("afterwards");
}

fn read_only(edition: Edition) {
    let stage = Stage::installed(edition);
    stage.node.sh("mount -o remount,ro /opt && mount -o remount,ro /etc/cni");
    stage.install(Release::First);
    let (succeeded, printed) = stage.try_run(Release::Second, &format!("install --root /host {LIST}"));
    assert!(!succeeded && printed.to_lowercase().contains("read-only file system"), "{printed}");
    stage.assert_is(Release::First);
    stage.run_pod("on-a-read-only-node");
}

/// `watch` makes them again, with all that was in them. containerd does not watch directories of plugins. Without its directory of
/// network lists, release 1.6 waits for ever, and 2.1 ends; systemd would start that one again.
fn deleted_directories(edition: Edition) {
    let mut stage = Stage::installed(edition);
    let node = Arc::clone(&stage.node);
    let watch = format!("watch --root /host {LIST}");
    node.sh(&stage.run_line(Release::First, "--detach --name watch", &watch));
    let before = node.sh(DIGESTS);
    for dirs in ["/opt/cni/bin", "/opt/cni", "/etc/cni/net.d"] {
        node.sh(&format!("rm -rf {dirs}"));
        let again = || node.try_sh(DIGESTS).1 == before;
        stage.wait_until(&format!("all is there again after rm -rf {dirs}"), again);
        if dirs == "/etc/cni/net.d" {
            assert!(stage.cri.is_ready().is_err(), "containerd has a network though it was deleted");
            stage.cri.restart();
        }
        stage.run_pod("afterwards");
    }
    stage.podman("kill --signal TERM watch");
    stage.podman("wait watch || :");
    stage.assert_is(Release::First);
}

/// The node has no other plugins, so nothing could delete the pods.
fn uninstall(edition: Edition) {
    let stage = Stage::installed(edition);
    let pods = ["one", "two"].map(|name| stage.start_pod(name).unwrap());
    let before = stage.node.sh(DIGESTS);
    let (succeeded, printed) = stage.try_run(Release::First, "uninstall --root /host");
    assert!(!succeeded && pods.iter().all(|pod| printed.contains(&pod.id)), "{printed}");
    assert_eq!(stage.node.sh(DIGESTS), before, "it was refused");
    pods.iter().for_each(|pod| stage.end_pod(pod).unwrap());
    let (succeeded, printed) = stage.try_run(Release::First, "uninstall --root /host");
    assert!(succeeded, "{printed}");
    assert_eq!(stage.node.sh("find /opt/cni/bin /etc/cni/net.d -type f ! -name cni.lock"), "", "left behind");
    stage.wait_until("containerd has no network", || stage.cri.is_ready().is_err());
}
