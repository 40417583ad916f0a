//! Addresses that stay with a name: the plugin, two nodes with their agents, and a real etcd.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::operations::{Operated, define, etcdctl};
use crate::plugin::plugin;
use crate::running::eventually;

impl Operated<'_> {
    /// Calls the plugin; returns its document.
    fn call(&self, verb: &str, container: &str, args: &str, more: &Value) -> Value {
        let mut ipam = json!({
            "type": "pool", "pool": "blue", "dataDir": self.dir(), "agentSocket": self.dir().join("run/agent.sock"),
            "agentConfig": "/nonexistent", "timeout": 5,
        });
        for (key, value) in more.as_object().unwrap() {
            ipam[key] = value.clone();
        }
        let conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam});
        let file = self.dir().join("conf.json");
        std::fs::write(&file, conf.to_string()).unwrap();
        let line = format!(
            "CNI_NETNS_OVERRIDE=1 CNI_COMMAND={verb} CNI_CONTAINERID={container} CNI_IFNAME=eth0 CNI_NETNS=/proc/self/ns/net CNI_PATH=/nonexistent \
             CNI_ARGS='IgnoreUnknown=1;{args}' {} <{}",
            plugin().display(),
            file.display()
        );
        let (_, printed) = self.host().try_sh(&line);
        let document = printed.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
        serde_json::from_str(&document).unwrap_or_else(|_| json!({"printed": printed}))
    }

    fn add(&self, container: &str, name: &str) -> Value {
        self.call("ADD", container, &format!("K8S_POD_NAMESPACE=db;K8S_POD_NAME={name}"), &json!({"sticky": true}))
    }

    fn del(&self, container: &str) {
        let deleted = self.call("DEL", container, "K8S_POD_NAMESPACE=db", &json!({"sticky": true}));
        assert_eq!(deleted, json!({"printed": ""}));
    }
}

fn address(result: &Value) -> &str {
    result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result}"))
}

#[test]
fn an_address_stays_with_its_name_on_whichever_node_it_is() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    define(&a);
    let (daemon, other) = (a.start(), b.start());
    let first = a.add("c1", "pg-0");
    let kept = address(&first).to_owned();
    let bare = kept.split('/').next().unwrap().to_owned();
    assert!(bare.starts_with("10.8.0.24") || bare.starts_with("10.8.0.25"), "{first}: a static address");
    assert_ne!(address(&a.add("c2", "pg-1")), kept);

    // While the first container has it, no other one gets it: here, on another node, or by a request.
    let refused = b.add("d1", "pg-0");
    let holder = format!("{bare} of name db/pg-0 belongs to c1/eth0 of network pods on node a");
    assert!(refused["code"] == 11 && refused["msg"].as_str().unwrap().contains(&holder), "{refused}");
    assert_eq!(a.add("c3", "pg-0")["code"], 11);
    let requested = b.call("ADD", "d2", &format!("IP={bare}"), &json!({}));
    assert!(requested["code"] == 11 && requested["msg"].as_str().unwrap().contains("node a"), "{requested}");

    // The next container of the name on the same node gets it at once.
    a.del("c1");
    assert_eq!(address(&a.add("c4", "pg-0")), kept);
    a.del("c4");
    let moved = std::cell::RefCell::new(Value::Null);
    eventually("the address is not given back", || {
        *moved.borrow_mut() = b.add("d1", "pg-0");
        moved.borrow()["ips"].is_array()
    });
    assert_eq!(address(&moved.borrow()), kept);

    // The node of the container is gone for ever.
    other.signal(&cluster.host, "KILL");
    other.finish();
    assert_eq!(a.add("c5", "pg-0")["code"], 11);
    a.done("fence b --by me --force");
    assert_eq!(address(&a.add("c5", "pg-0")), kept);

    // A name that no node has is forgotten.
    let forget = |name: &str| cluster.host.try_sh(&format!("{} 2>&1", a.agent(&format!("forget blue db/{name}"))));
    let (success, printed) = forget("pg-0");
    assert!(!success && printed.contains(&format!("node a has {bare} of name db/pg-0")), "{printed}");
    a.del("c5");
    eventually("the name is held", || forget("pg-0").0);
    let left = etcdctl(&cluster.host, "get --prefix --keys-only /cnikit/v1/");
    assert!(!left.contains("pg-0") && !left.contains(&format!("static/blue/{bare}\n")), "{left}");
    assert!(left.contains("sticky/blue/db/pg-1"), "{left}");
    let unnamed = a.call("ADD", "c6", "K8S_POD_NAMESPACE=db", &json!({"sticky": true}));
    assert!(unnamed["code"] == 7 && unnamed["msg"].as_str().unwrap().contains("K8S_POD_NAME"), "{unnamed}");
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
}

#[test]
fn a_name_that_is_a_path_or_a_key_is_refused_and_nothing_is_written() {
    let cluster = Cluster::start();
    let a = Operated::new(&cluster, "a");
    define(&a);
    let daemon = a.start();
    let keys = || etcdctl(&cluster.host, "get --prefix --keys-only /cnikit/v1/");
    let before = keys();
    let long = "x".repeat(254);
    for (namespace, name) in [
        ("..", "pg-0"),
        ("db", "../../../fence/a"),
        ("db/pg-0", "x"),
        ("db", "pg-0/x"),
        ("db", ".pg-0"),
        ("db", "-pg-0"),
        ("db", "pg 0"),
        ("db", "pg-0\u{e9}"),
        ("db", long.as_str()),
    ] {
        let refused = a.call(
            "ADD",
            "c1",
            &format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"),
            &json!({"sticky": true}),
        );
        assert_eq!(refused["code"], 7, "{namespace} {name}: {refused}");
        assert!(refused["msg"].as_str().unwrap().contains("is not a name or a namespace"), "{refused}");
    }
    assert_eq!(keys(), before);
    assert!(a.add("c1", "pg-0")["ips"].is_array());
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
}

#[test]
fn without_an_agent_the_program_gets_the_addresses_of_names_and_requested_ones() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    define(&a);
    let more = |node: &Operated<'_>, sticky: bool| {
        let config = node.dir().with_extension("json");
        json!({"sticky": sticky, "agent": env!("CARGO_BIN_EXE_cnikit-agent"), "agentConfig": config, "timeout": 40})
    };
    let add = |node: &Operated<'_>, container: &str, name: &str| {
        node.call("ADD", container, &format!("K8S_POD_NAMESPACE=db;K8S_POD_NAME={name}"), &more(node, true))
    };
    let first = add(&a, "c1", "pg-0");
    let kept = address(&first).to_owned();
    assert_ne!(address(&add(&a, "c2", "pg-1")), kept);
    let refused = add(&b, "d1", "pg-0");
    assert!(refused["code"] == 11 && refused["msg"].as_str().unwrap().contains("on node a"), "{refused}");
    assert_eq!(a.call("DEL", "c1", "", &more(&a, true)), json!({"printed": ""}));
    // The process that DEL has started leaves the address to its name.
    let moved = std::cell::RefCell::new(Value::Null);
    eventually("the address is not given back", || {
        *moved.borrow_mut() = add(&b, "d1", "pg-0");
        moved.borrow()["ips"].is_array()
    });
    assert_eq!(address(&moved.borrow()), kept);
    assert_eq!(add(&a, "c3", "pg-0")["code"], 11);

    let requested = a.call("ADD", "c4", "IP=10.8.0.254", &more(&a, false));
    assert_eq!(address(&requested), "10.8.0.254/24", "a static address: {requested}");
    let taken = b.call("ADD", "d4", "IP=10.8.0.254", &more(&b, false));
    assert!(taken["code"] == 11 && taken["msg"].as_str().unwrap().contains("node a"), "{taken}");
}
