//! A node on which scenes are played one after the other, and the leftovers of each.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use cnikit_testkit::HostSnapshot;
use cnikit_tests::runtimes::{
    CONFLIST, Containerd, Edition, HINTS, Maker, Node, PodSandbox, Sandbox, UNTIL_SERVED, network, with_backend,
};

/// Which containerd, which plugins, which version.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) edition: Edition,
    pub(crate) version: &'static str,
    pub(crate) maker: Maker,
    /// The backend of rules; `None`: the plugins choose.
    pub(crate) backend: Option<&'static str>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::cni_{}::{}", self.edition.name(), self.version.replace('.', "_"), self.maker.name())?;
        match self.backend {
            Some(backend) => write!(f, "_{backend}"),
            None => Ok(()),
        }
    }
}

/// A scene, and the leftovers of upstream's plugins that are expected after it: kinds of lines of a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) play: fn(&mut Stage),
    pub(crate) theirs_leaves: &'static [&'static str],
}

/// Where scenes are played.
pub(crate) struct Stage<'a> {
    pub(crate) node: &'a Node,
    pub(crate) cri: Containerd,
    /// Every container id and address that was seen, by which traces are known.
    seen: Vec<String>,
}

/// Plays all scenes on one node; after each, nothing of it is left.
pub(crate) fn play(subject: Subject, scenes: &[Scene]) {
    let node = Arc::new(Node::new(subject.maker));
    let list = network(subject.version);
    let list = subject.backend.map_or(list.clone(), |backend| with_backend(list, backend));
    node.write(CONFLIST, &list.to_string());
    let cri = Containerd::start(&node, subject.edition);
    let mut stage = Stage { node: &node, cri, seen: Vec::new() };
    let mut took = Vec::new();
    let first = stage.run("first", 8080);
    stage.leave(&first);
    let mut before = HostSnapshot::of(&node.host);
    for scene in scenes {
        let begin = Instant::now();
        (scene.play)(&mut stage);
        took.push(format!("{} {:.1} s", scene.name, begin.elapsed().as_secs_f32()));
        stage.assert_left_alone(&before, scene);
        before = HostSnapshot::of(&node.host);
    }
    println!("containerd {}, {subject}: {}", stage.cri.version(), took.join(", "));
}

impl Stage<'_> {
    /// Runs a pod with a port of the node; 0 for none.
    pub(crate) fn run(&mut self, name: &str, host_port: u16) -> Sandbox {
        let pod = self.cri.run(&PodSandbox { name: name.into(), host_port });
        let pod = pod.unwrap_or_else(|error| panic!("{name}: {error}\n{}", self.cri.log_tail()));
        self.saw(&pod);
        pod
    }

    /// Remembers a pod.
    pub(crate) fn saw(&mut self, pod: &Sandbox) {
        assert_eq!(pod.addresses.len(), 2, "{pod:?}");
        self.seen.push(pod.id.clone());
        self.seen.extend(pod.addresses.clone());
    }

    /// Stops and removes a pod.
    pub(crate) fn leave(&self, pod: &Sandbox) {
        let left = self.cri.stop(&pod.id).and_then(|()| self.cri.remove(&pod.id));
        left.unwrap_or_else(|error| panic!("{error}\n{}", self.cri.log_tail()));
    }

    /// Starts a container that serves a page at port 80 of both families.
    pub(crate) fn serve(&self, pod: &Sandbox) -> String {
        let httpd = ["/bin/httpd", "-f", "-p", "[::]:80", "-h", "/www"];
        let container = self.cri.container(pod, &httpd);
        let container = container.unwrap_or_else(|error| panic!("{error}\n{}", self.cri.log_tail()));
        let (serves, output) = self.cri.exec(&container, &UNTIL_SERVED).unwrap();
        assert!(serves, "{output}");
        container
    }

    /// Waits until the host has no veth: the kernel removes the links of a namespace some time after the last reference to it.
    pub(crate) fn wait_until_no_veth(&self) {
        let until = "until [ -z \"$(ip -o link show type veth)\" ]; do sleep 0.02; done";
        let (gone, output) = self.node.try_sh(&format!("timeout 60 sh -c '{until}'"));
        assert!(gone, "the namespace is gone, its link is not: {output}");
    }

    /// A container reaches all addresses of a pod.
    pub(crate) fn assert_reaches(&self, container: &str, to: &Sandbox) {
        for address in &to.addresses {
            let (reached, output) = self.cri.exec(container, &["/bin/ping", "-c", "1", "-w", "5", address]).unwrap();
            assert!(reached, "{address}: {output}");
        }
    }

    /// The node gets the page at a port of its own.
    pub(crate) fn assert_served(&self, port: u16) {
        assert_eq!(self.node.sh(&format!("curl -sS --max-time 5 http://127.0.0.1:{port}/")), "served\n");
    }

    /// After our plugins everything is as before; after upstream's, no line names one of its pods.
    fn assert_left_alone(&self, before: &HostSnapshot, scene: &Scene) {
        let after = HostSnapshot::of(&self.node.host);
        if self.node.maker.is_ours() {
            // Our libcni's directories, and the locks of networks, stay for the next call.
            let stays = ["directory: cni/cnikit", "file: cni/cnikit/locks/"];
            return after.assert_unchanged_since(before, &[&HINTS[..], &stays].concat(), scene.name);
        }
        let is_trace = |line: &String| line.contains("veth") || self.seen.iter().any(|mark| line.contains(mark));
        let is_natural = |line: &String| scene.theirs_leaves.iter().any(|kind| line.starts_with(kind));
        let left: Vec<String> = after.added_since(before, &HINTS);
        let left: Vec<String> = left.into_iter().filter(|line| is_trace(line) && !is_natural(line)).collect();
        assert!(left.is_empty(), "{}: the reference left {left:#?}", scene.name);
    }
}
