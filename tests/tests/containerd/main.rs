//! containerd drives the plugins.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::time::Instant;
use cnikit_tests::mixed::Release;
use cnikit_tests::runtimes::*;

fn main() {
    let begin = Instant::now();
    let at = |what: &str| println!("{:>8.2?} {what}", begin.elapsed());
    for (maker, edition, version) in [(Maker::Ours(Release::Packaged), Edition::Packaged, "1.0.0"), (Maker::Theirs(Release::Newest), Edition::Newest, "1.1.0")] {
    maker.bin();
    at("bin");
    let node = Node::new(maker);
    at("node");
    node.write(CONFLIST, &network(version).to_string());
    let mut cri = Containerd::start(&node, edition);
    at(&cri.version());
    let one = cri.run(&Pod { name: "one".into(), host_port: 8080 }).unwrap_or_else(|e| panic!("{e} {}", cri.said()));
    at("run");
    let two = cri.run(&Pod { name: "two".into(), host_port: 0 }).unwrap();
    println!("{one:?}");
    at("run");
    let c1 = cri.container(&one, &["/bin/httpd", "-f", "-p", "[::]:80", "-h", "/www"]).unwrap_or_else(|e| panic!("{e} {}", cri.said()));
    at("container");
    for a in &two.addresses { println!("{:?}", cri.exec(&c1, &["/bin/ping", "-c1", "-W1", a])); at("ping"); }
    println!("{:?}", node.try_sh("curl -sS http://127.0.0.1:8080/")); at("curl");
    cri.kill(); at("kill"); cri.start_again(); at("again");
    for p in [&one, &two] { println!("{:?}", cri.status(&p.id)); cri.stop(&p.id).unwrap(); at("stop"); cri.remove(&p.id).unwrap(); at("remove"); }
    println!("{}", node.sh("find /var/lib/cni; ip -o link; ps -e; ls /run/netns; iptables-save -t nat"));
    drop(cri);
    drop(node); at("drop"); }
}
