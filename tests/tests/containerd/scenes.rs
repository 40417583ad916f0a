//! What happens to pods: each function is a scene.

use std::collections::BTreeSet;
use std::thread;

use cnikit_tests::runtimes::{PodSandbox, Sandbox};

use crate::libcni::{self, Verb};
use crate::stage::{Scene, Stage, Subject};

/// The scenes of a subject.
pub(crate) fn of(subject: Subject) -> Vec<Scene> {
    // Upstream's STATUS does not detect a disk that cannot be written to.
    let tells = subject.version == "1.1.0" && subject.maker.is_ours();
    ALL.iter().copied().chain(tells.then_some(scene("the disk is read-only", the_disk_is_read_only))).collect()
}

const ALL: [Scene; 6] = [
    scene("two pods talk", two_pods_talk),
    scene("containerd is killed", containerd_is_killed),
    Scene {
        // Its DEL returns before it removes the rules. The link, too, it leaves to the kernel, which the scene waits for.
        theirs_leaves: &["nft: ", "iptables: ", "ip6tables: "],
        ..scene("the namespace is gone", the_namespace_is_gone)
    },
    scene("twenty at once", twenty_at_once),
    scene("removed twice", removed_twice),
    scene("the other's libcni", the_other_libcni),
];

const fn scene(name: &'static str, play: fn(&mut Stage)) -> Scene {
    Scene { name, play, theirs_leaves: &[] }
}

/// With both families. A port of one is reached from the node, from the other pod, and from the pod itself.
fn two_pods_talk(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    let two = stage.run("two", 0);
    stage.node.assert_made_by_its_maker();
    let in_one = stage.serve(&one);
    let in_two = stage.serve(&two);
    stage.assert_reaches(&in_one, &two);
    stage.assert_reaches(&in_two, &one);
    stage.assert_served(8080);
    for from in [in_one, in_two] {
        let line = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 10.89.0.1 8080";
        let (_, output) = stage.cri.exec(&from, &["/bin/sh", "-c", line]).unwrap();
        assert!(output.ends_with("served\n"), "{output}");
    }
    stage.leave(&one);
    stage.leave(&two);
}

/// Without containerd the pods go on running. Afterwards they are unchanged, and new ones can be started.
fn containerd_is_killed(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    let two = stage.run("two", 0);
    let in_one = stage.serve(&one);
    stage.cri.kill();
    assert!(stage.cri.is_ready().is_err(), "containerd answers though it was killed");
    stage.assert_served(8080);
    stage.cri.start_again();
    for pod in [&one, &two] {
        assert_eq!(stage.cri.status(&pod.id).unwrap(), (true, pod.addresses.clone()));
    }
    stage.assert_reaches(&in_one, &two);
    stage.assert_served(8080);
    let three = stage.run("three", 0);
    assert!(three.addresses != one.addresses && three.addresses != two.addresses, "{three:?}");
    stage.assert_reaches(&in_one, &three);
    [one, two, three].iter().for_each(|pod| stage.leave(pod));
}

/// The namespace was unmounted and unlinked: the first DEL comes with an empty `CNI_NETNS`.
fn the_namespace_is_gone(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.node.sh(&format!("umount --lazy {0} && rm {0}", one.netns));
    stage.leave(&one);
    if !stage.node.maker.is_ours() {
        stage.wait_until_no_veth();
    }
}

/// All addresses are different, every pod answers, and all are removed at once.
fn twenty_at_once(stage: &mut Stage) {
    let cri = &stage.cri;
    let run = |n: usize| cri.run(&PodSandbox { name: format!("crowd-{n}"), host_port: 0 });
    let pods: Vec<_> = thread::scope(|scope| {
        let runs: Vec<_> = (0..20).map(|n| scope.spawn(move || run(n))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let pods: Result<Vec<Sandbox>, String> = pods.into_iter().collect();
    let pods = pods.unwrap_or_else(|error| panic!("{error}\n{}", stage.cri.log_tail()));
    pods.iter().for_each(|pod| stage.saw(pod));
    let addresses: BTreeSet<&str> = pods.iter().flat_map(|pod| &pod.addresses).map(String::as_str).collect();
    assert_eq!(addresses.len(), 40, "{addresses:?}");
    let addresses: Vec<&str> = addresses.into_iter().collect();
    let ping = "ping -n -q -c 3 -i 0.2 -w 5 $a >/dev/null || echo $a";
    let line = format!("for a in {}; do {{ {ping}; }} & done; wait", addresses.join(" "));
    assert_eq!(stage.node.sh(&line), "", "these do not answer");
    thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(|| stage.leave(pod)))));
}

/// Removed while it runs, and once more; and stopped twice before that.
fn removed_twice(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    for _ in 0..2 {
        stage.cri.remove(&one.id).unwrap();
    }
    let two = stage.run("two", 8080);
    for _ in 0..2 {
        stage.cri.stop(&two.id).unwrap();
    }
    for _ in 0..2 {
        stage.cri.remove(&two.id).unwrap();
    }
}

/// Our libcni deletes an attachment of containerd's libcni, which is upstream's, with the result that this cached; and vice versa.
fn the_other_libcni(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    let in_one = stage.serve(&one);
    let result = format!("/var/lib/cni/results/cnikit-{}-eth0", one.id);
    let eth0 = |stage: &Stage| stage.cri.exec(&in_one, &["/bin/ip", "link", "show", "eth0"]).unwrap().0;
    assert!(stage.node.try_sh(&format!("test -s {result}")).0 && eth0(stage), "ADD by Go's libcni");
    libcni::ask(stage.node, Verb::Del, &one);
    assert!(!stage.node.try_sh(&format!("test -e {result}")).0 && !eth0(stage), "DEL by ours left something");
    assert!(!stage.node.try_sh("curl -sS --max-time 1 http://127.0.0.1:8080/").0, "DEL by ours left the port");
    libcni::ask(stage.node, Verb::Add, &one);
    assert!(stage.node.try_sh(&format!("test -s {result}")).0 && eth0(stage), "ADD by ours");
    stage.assert_served(8080);
    stage.leave(&one);
    assert!(!stage.node.try_sh(&format!("test -e {result}")).0, "DEL by Go's libcni left the result of ours");
}

/// By our STATUS the node is not ready as long as no address could be reserved, and the reason is reported.
fn the_disk_is_read_only(stage: &mut Stage) {
    stage.node.sh("mount -t tmpfs -o ro tmpfs /var/lib/cni/networks");
    let unready = stage.cri.is_ready().unwrap_err();
    assert!(unready.contains("NetworkReady") && unready.contains("host-local"), "{unready}");
    assert!(unready.contains("/var/lib/cni/networks"), "{unready}");
    stage.node.sh("umount --lazy /var/lib/cni/networks");
    stage.cri.is_ready().unwrap();
}
