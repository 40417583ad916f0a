//! What happens to pods: each function is a scene.

use std::collections::BTreeSet;
use std::time::Instant;

use cnikit_tests::kubernetes::Cluster;
use cnikit_tests::runtimes::CONFLIST;
use serde_json::{Value, json};

use crate::stage::{Stage, spec};

/// A scene, which leaves nothing.
#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) play: fn(&mut Stage),
}

const fn scene(name: &'static str, play: fn(&mut Stage)) -> Scene {
    Scene { name, play }
}

/// All of them.
pub(crate) const ALL: [Scene; 13] = [
    scene("a_port_of_the_node_leads_to_each_of_three_pods_in_turn", three_in_turn),
    scene("containerd_is_killed_and_pods_run_on", containerd_is_killed),
    scene("the_kubelet_is_killed_and_pods_run_on", kubelet_is_killed),
    scene("a_killed_sandbox_is_replaced", sandbox_is_killed),
    scene("a_killed_shim_is_replaced", shim_is_killed),
    scene("a_pod_is_deleted_whose_namespace_is_unlinked", namespace_is_unlinked),
    scene("pods_come_back_after_a_reboot", reboot),
    scene("a_pod_is_forced_away_while_the_kubelet_is_down", forced_away),
    scene("a_port_is_free_again_after_a_pod_was_forced_away", forced_away_and_followed),
    scene("a_pod_is_deleted_while_containerd_is_down", deleted_without_containerd),
    scene("twelve_pods_at_once", twelve_at_once),
    scene("a_range_of_one_address_serves_one_pod_after_the_other", one_address),
    scene("a_daemon_set_is_rolled_out", rollout),
];

/// Reached from the node, from another machine and from itself; commands run in it; and it has an address of both families.
fn three_in_turn(stage: &mut Stage) {
    for n in 0..3 {
        let name = format!("web-{n}");
        let pod = stage.run(&name, 8080);
        stage.wait_until_served(8080);
        let link = stage.cluster.node.sh("ip -o -d link show master cni0");
        assert!(link.contains("alias cnikit:"), "{link}");
        let addresses =
            stage.cluster.kubectl_line(&format!("kubectl exec {name} -- ip -o address show eth0 scope global"));
        for address in stage.reserved() {
            assert!(addresses.contains(&format!(" {address}/")), "{address}: {addresses}");
        }
        assert_eq!(stage.reserved().len(), 2, "{pod:?}");
        let status = stage.cluster.kubectl_line(&format!("kubectl get pod {name} -o jsonpath='{{.status.podIP}}'"));
        assert!(stage.reserved().contains(&status), "the kubelet reports {status}");
        stage.delete(&name);
        assert!(!stage.is_served(8080), "{name} is gone, and its port is served");
    }
}

/// Without containerd pods go on running. Then it knows them, and starts more.
fn containerd_is_killed(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.cluster.cri.kill();
    stage.wait_until_served(8080);
    stage.cluster.cri.start_again();
    assert_eq!(stage.sandbox("one").id, one.id);
    stage.run("two", 8081);
    stage.wait_until_served(8081);
    stage.wait_until_served(8080);
    assert_eq!(restarts(stage, "one"), "0");
    stage.delete("one two");
}

/// The same without the kubelet.
fn kubelet_is_killed(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.cluster.kill_kubelet();
    stage.wait_until_served(8080);
    stage.cluster.start_kubelet();
    stage.run("two", 8081);
    stage.wait_until_served(8081);
    assert_eq!(stage.sandbox("one").id, one.id);
    assert_eq!(restarts(stage, "one"), "0");
    stage.delete("one two");
}

fn restarts(stage: &Stage, name: &str) -> String {
    stage
        .cluster
        .kubectl_line(&format!("kubectl get pod {name} -o jsonpath='{{.status.containerStatuses[0].restartCount}}'"))
}

/// The process that holds a pod's namespaces is killed: the kubelet replaces the sandbox, and nothing of the first one is left.
fn sandbox_is_killed(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.cluster.node.kill(&one.pid);
    wait_until_replaced(stage, &one.id);
    stage.delete("one");
}

/// The same with the program between containerd and the processes of the pod.
fn shim_is_killed(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.wait_until_served(8080);
    let shim = stage.cluster.node.sh(&format!("ps -o ppid= -p {}", one.pid));
    stage.cluster.node.kill(shim.trim());
    wait_until_replaced(stage, &one.id);
    stage.delete("one");
}

/// Pod `one` has another sandbox, with the only addresses that are reserved.
fn wait_until_replaced(stage: &Stage, id: &str) {
    let Cluster { cri, .. } = &stage.cluster;
    let is_another = || cri.ready().iter().any(|pod| pod.name == "one" && pod.id != id);
    stage.cluster.wait_until("there is another sandbox", is_another);
    stage.wait_until_ready("one");
    stage.wait_until_served(8080);
    let reserved = stage.reserved();
    assert_eq!(reserved.len(), 2, "{reserved:?}");
}

/// The DELs of containerd come without a namespace.
fn namespace_is_unlinked(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.cluster.node.sh(&format!("umount --lazy {0} && rm {0}", one.netns));
    stage.delete("one");
}

/// What a reboot leaves is the disk. The pods get sandboxes again, and what the others had reserved is free.
fn reboot(stage: &mut Stage) {
    let pods = ["one", "two", "three"].map(|name| stage.run(name, if name == "one" { 8080 } else { 0 }).id);
    stage.wait_until_served(8080);
    stage.cluster.reboot();
    let cri = &stage.cluster.cri;
    let is_back = || cri.ready().iter().filter(|pod| !pods.contains(&pod.id)).count() == pods.len();
    stage.cluster.wait_until("all pods have sandboxes again", is_back);
    stage.wait_until_served(8080);
    let reserved = stage.reserved();
    assert_eq!(reserved.len(), 6, "{reserved:?}");
    stage.delete("one two three");
    stage.assert_only_the_bridge_is_new();
    stage.begin_anew();
}

/// When the kubelet starts, it finds a pod that the API server does not know.
fn forced_away(stage: &mut Stage) {
    stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.cluster.kill_kubelet();
    stage.cluster.kubectl_line("kubectl delete pod one --grace-period=0 --force 2>&1");
    assert!(stage.is_served(8080), "without a kubelet nothing ends a pod");
    stage.cluster.start_kubelet();
    let Cluster { cri, .. } = &stage.cluster;
    stage.cluster.wait_until("the pod is gone", || cri.ready().is_empty());
    assert!(!stage.is_served(8080));
}

/// The second pod wants the port of one that may still run. It is not given to it before.
fn forced_away_and_followed(stage: &mut Stage) {
    let one = stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.cluster.kubectl_line("kubectl delete pod one --grace-period=0 --force 2>&1");
    let begin = Instant::now();
    stage.create("two", 8080);
    stage.wait_until_ready("two");
    println!("ready after {:.1} s", begin.elapsed().as_secs_f32());
    stage.wait_until_served(8080);
    assert!(stage.cluster.cri.ready().iter().all(|pod| pod.id != one.id), "both have the port");
    stage.delete("two");
}

/// The kubelet asks again until it is there.
fn deleted_without_containerd(stage: &mut Stage) {
    stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.cluster.cri.kill();
    stage.cluster.kubectl_line("kubectl delete pod one --wait=false");
    assert!(stage.is_served(8080));
    stage.cluster.cri.start_again();
    stage.cluster.kubectl_line("kubectl wait --for=delete --timeout=100s pod/one");
    assert!(!stage.is_served(8080));
}

/// All get different addresses.
fn twelve_at_once(stage: &mut Stage) {
    let names: Vec<String> = (0..12).map(|n| format!("crowd-{n}")).collect();
    let metadata = |name: &String| json!({"name": name, "labels": {"of": "crowd"}});
    let pods = names.iter().enumerate().map(|(n, name)| {
        let port = if n < 6 { 8080 + u16::try_from(n).unwrap() } else { 0 };
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name), "spec": spec(port, name)})
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<Value>>()});
    stage.cluster.apply(&list);
    stage.cluster.kubectl_line("kubectl wait --for=condition=Ready --timeout=100s pod --selector=of=crowd");
    let addresses =
        stage.cluster.kubectl_line("kubectl get pod --selector=of=crowd -o jsonpath='{.items[*].status.podIP}'");
    let addresses: BTreeSet<&str> = addresses.split(' ').collect();
    assert_eq!(addresses.len(), 12, "{addresses:?}");
    assert_eq!(stage.reserved().len(), 24);
    for (n, name) in names.iter().enumerate().take(6) {
        stage.wait_until_page_is(8080 + u16::try_from(n).unwrap(), name);
    }
    stage.cluster.kubectl_line("kubectl delete --timeout=100s pod --selector=of=crowd");
}

/// The second pod waits for the address, and says so.
fn one_address(stage: &mut Stage) {
    let mut list = stage.backend.list();
    list["plugins"][0]["ipam"]["ranges"][0][0] =
        json!({"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.77", "rangeEnd": "10.244.1.77"});
    let cluster = &stage.cluster;
    cluster.node.write(CONFLIST, &list.to_string());
    stage.run("one", 8080);
    stage.wait_until_served(8080);
    stage.create("two", 8081);
    let refused = "kubectl get events --field-selector=involvedObject.name=two,reason=FailedCreatePodSandBox -o yaml";
    cluster.wait_until("the second pod is refused", || {
        let (_, events) = cluster.try_kubectl_line(refused);
        events.contains("host-local") && events.contains("10.244.1.77")
    });
    stage.delete("one");
    stage.wait_until_ready("two");
    stage.wait_until_served(8081);
    assert!(stage.reserved().contains(&"10.244.1.77".to_owned()));
    stage.delete("two");
    cluster.node.write(CONFLIST, &stage.backend.list().to_string());
}

/// The pod of the next revision gets the port that the one before has until it ends.
fn rollout(stage: &mut Stage) {
    for page in ["first", "second", "third"] {
        stage.cluster.apply(&daemon_set(page));
        stage.cluster.kubectl_line("kubectl rollout status --timeout=100s daemonset/web");
        stage.wait_until_page_is(8080, page);
        assert_eq!(stage.cluster.cri.ready().len(), 1);
    }
    stage.cluster.kubectl_line("kubectl delete --timeout=100s --cascade=foreground daemonset web");
}

fn daemon_set(page: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"of": "web"}},
            "template": {"metadata": {"labels": {"of": "web"}}, "spec": spec(8080, page)},
        },
    })
}
