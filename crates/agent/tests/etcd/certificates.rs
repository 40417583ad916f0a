//! Mutual TLS: etcd that asks its clients for certificates.

use cnikit_agent::engine::{Engine, EtcdEngine, Listing};
use cnikit_testing::Host;

use crate::cluster::{Cluster, runtime};
use crate::node::Node;

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
