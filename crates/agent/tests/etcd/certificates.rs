//! Mutual TLS: etcd that asks its clients for certificates.

use std::time::Duration;

use cnikit_agent::engine::{Engine, EtcdEngine, Listing};
use cnikit_agent::operator::fence_node;
use cnikit_testing::Host;

use crate::cluster::{Cluster, runtime};
use crate::node::{Node, fence_of, want};
use crate::running::eventually;

/// Makes a CA, a certificate of the members, one of a node, and one of a node by another CA.
fn make_certificates(host: &Host) {
    let dir = host.dir().display();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    for ca in ["ca", "other-ca"] {
        host.sh(&format!(
            "cd {dir} && openssl req -x509 {key} -subj /CN={ca} -keyout {ca}.key -out {ca}.pem 2>/dev/null"
        ));
    }
    for (name, ca, more) in [
        ("server", "ca", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth"),
        ("node-a", "ca", "extendedKeyUsage=clientAuth"),
        ("node-b", "ca", "extendedKeyUsage=clientAuth"),
        ("operator", "ca", "extendedKeyUsage=clientAuth"),
        ("root", "ca", "extendedKeyUsage=clientAuth"),
        ("stranger", "other-ca", "extendedKeyUsage=clientAuth"),
    ] {
        host.sh(&format!(
            "cd {dir} && printf '{more}\\n' >{name}.ext && \
             openssl req -new {key} -subj /CN={name} -keyout {name}.key -out {name}.csr 2>/dev/null && \
             openssl x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile {name}.ext \
             -out {name}.pem 2>/dev/null"
        ));
    }
}

#[test]
fn only_a_client_with_a_certificate_of_the_ca_is_served() {
    let host = Host::new();
    make_certificates(&host);
    let cluster = Cluster::with_tls(host);
    let known = cluster.settings_with(Some("node-a"));
    cluster.wait_ready(&known);
    let host = &cluster.host;
    host.enter(|| {
        let mut node = Node::new("node-a", host.dir(), known.clone());
        node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}]}"#);
        node.want("pods", 1).unwrap();
        assert_eq!(node.owners().len(), 1);
        let runtime = runtime();
        let mut other_ca = known.clone();
        other_ca.tls.as_mut().unwrap().ca = std::fs::read(host.dir().join("other-ca.pem")).unwrap();
        for (settings, who) in [
            (cluster.settings_with(None), "a client without a certificate"),
            (cluster.settings_with(Some("stranger")), "a client with another CA's certificate"),
            (cluster.settings(), "a client that speaks HTTP or trusts no CA"),
            (other_ca, "a client that trusts another CA"),
        ] {
            let engine = EtcdEngine::new(settings).unwrap();
            assert!(runtime.block_on(engine.list(&Listing::Pools)).is_err(), "{who}");
        }
    });
}

/// The command for a user.
fn etcdctl(host: &Host, user: &str) -> String {
    let dir = host.dir().display();
    format!(
        "ETCDCTL_API=3 etcdctl --endpoints https://127.0.0.1:2379 --cacert {dir}/ca.pem --cert {dir}/{user}.pem \
         --key {dir}/{user}.key"
    )
}

/// Executes the commands of the documentation for two nodes, and enables authentication.
fn make_roles(host: &Host) {
    let documented = include_str!("../../../../docs/agent.md");
    let commands: Vec<&str> = documented.lines().filter(|line| line.starts_with("etcdctl ")).collect();
    assert!(commands.len() >= 10, "{commands:?}");
    let run = |command: &str| host.sh(&command.replacen("etcdctl", &etcdctl(host, "root"), 1));
    for command in commands {
        if command.contains("node-1") {
            run(&command.replace("node-1", "node-a"));
            run(&command.replace("node-1", "node-b"));
        } else {
            run(command);
        }
    }
    run("etcdctl user add root --no-password");
    run("etcdctl user grant-role root root");
    run("etcdctl auth enable");
}

/// The commands of the documentation give a node a role that suffices for its agent, and not for what only operators do.
#[test]
fn the_documented_role_suffices_for_an_agent_and_keeps_it_from_the_keys_of_others() {
    let host = Host::new();
    make_certificates(&host);
    let cluster = Cluster::with_tls(host);
    cluster.wait_ready(&cluster.settings_with(Some("root")));
    let host = &cluster.host;
    make_roles(host);
    host.enter(|| {
        let operator = Node::new("operator", host.dir(), cluster.settings_with(Some("operator")));
        operator.define(
            r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,"cooldown":0,
            "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240"}]}"#,
        );
        let with = |user| cluster.settings_with(Some(user));
        let mut node = Node::booted("node-a", host.dir(), with("node-a"), "boot", Duration::ZERO);
        node.want("pods", 40).unwrap();
        assert!(node.runtime.block_on(node.engine.keep_session()).unwrap());
        let mut asked = want("pods", 1);
        asked.addresses = vec!["10.8.0.245".parse().unwrap()];
        node.agent.serve(&asked).unwrap();
        node.reserve("pods", "container-1");
        eventually("nothing is given back", || {
            node.reconcile().unwrap();
            node.owners().len() == 1
        });
        let mut other = Node::new("node-b", host.dir(), with("node-b"));
        other.want("pods", 1).unwrap();

        // A node writes no key of another's, and none of an operator's.
        let request = fence_of("node-a", true);
        let refused = other.runtime.block_on(fence_node(other.engine.as_ref(), &request)).unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{refused}");
        let mut named = Node::new("node-c", host.dir(), with("node-b"));
        let refused = named.want("pods", 1).unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{refused}");
        for key in ["pools/blue", "select/team-a", "session/node-a", "nodes/node-a", "fence/node-a/x", "nodes/node-bb"]
        {
            let put = format!("{} put /cnikit/v1/{key} x 2>&1", etcdctl(host, "node-b"));
            let (success, printed) = host.try_sh(&put);
            assert!(!success && printed.contains("permission denied"), "{key}: {printed}");
        }
        let (success, printed) = host.try_sh(&format!("{} get /elsewhere 2>&1", etcdctl(host, "node-b")));
        assert!(!success && printed.contains("permission denied"), "{printed}");
        assert_eq!(operator.runtime.block_on(fence_node(operator.engine.as_ref(), &request)).unwrap().1, 1);
    });
}
