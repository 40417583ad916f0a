//! GC: what is not valid is deleted, and the plugins get what is.

use std::fs;

use cnikit_libcni::{Attachment, NetworkList, State, ValidAttachment};
use serde_json::json;

use crate::node::{Node, container, list, of_version, with_keys};

fn valid(container_id: &str) -> ValidAttachment {
    ValidAttachment { container_id: container_id.to_owned(), ifname: "eth0".to_owned() }
}

/// Adds the containers `c1` and `c2`.
fn attach(node: &Node, net: &NetworkList) {
    for id in ["c1", "c2"] {
        node.runtime.add(net, &container(id)).unwrap();
    }
}

#[test]
fn attachments_that_are_not_valid_are_deleted_whatever_their_state() {
    let node = Node::new();
    let net = list("net", &["first", "second"]);
    attach(&node, &net);
    node.runtime.add(&list("other", &["first"]), &container("c2")).unwrap();
    node.fails("ADD second", 100, "no");
    node.runtime.add(&net, &Attachment::new("c3", "/nonexistent/ns")).unwrap_err();
    node.calls();
    assert_eq!(node.runtime.gc(&net, &[valid("c1")]).unwrap().warnings, [""; 0]);
    let calls = node.calls();
    let seen: Vec<_> = calls.iter().map(|call| (&*call.name, &*call.environment.container_id)).collect();
    let deleted = [("DEL second", "c2"), ("DEL first", "c2"), ("DEL second", "c3"), ("DEL first", "c3")];
    assert_eq!(seen[..4], deleted);
    assert_eq!(seen[4..], [("GC first", ""), ("GC second", "")]);
    assert_eq!(calls[2].environment.netns, "", "the path of a namespace that is gone may be another's");
    for call in &calls[4..] {
        let expected = json!([{"containerID": "c1", "ifname": "eth0"}]);
        assert_eq!(call.stdin["cni.dev/valid-attachments"], expected);
        assert_eq!(call.stdin["cni.dev/attachments"], expected);
    }
    let left = node.runtime.cache.attachments().unwrap();
    let left: Vec<_> = left.iter().map(|cached| (&*cached.network, &*cached.at.container_id)).collect();
    assert_eq!(left, [("net", "c1"), ("other", "c2")]);
}

#[test]
fn everything_is_done_after_a_failure_and_all_failures_are_told() {
    let node = Node::new();
    let net = list("net", &["first", "second"]);
    attach(&node, &net);
    node.calls();
    node.fails("DEL first", 11, "not now");
    node.fails("GC first", 5, "no file");
    let error = node.runtime.gc(&net, &[]).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    assert!(lines[0].starts_with("failed to delete stale attachment c1 eth0: plugin type=\"first\""), "{error}");
    assert!(lines[1].starts_with("failed to delete stale attachment c2 eth0: "), "{error}");
    assert!(lines[2].starts_with("plugin type=\"first\" name=\"net\" (1 of 2) failed (gc): no file"), "{error}");
    assert_eq!(node.called().len(), 6);
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 2);
}

#[test]
fn an_old_list_has_its_attachments_deleted_and_one_that_disables_gc_nothing() {
    let node = Node::new();
    let old = of_version("1.0.0", &["first"]);
    node.runtime.add(&old, &container("c1")).unwrap();
    node.calls();
    node.runtime.gc(&with_keys("net", "1.1.0", &["first"], &json!({"disableGC": true})), &[]).unwrap();
    assert_eq!(node.called(), [""; 0]);
    node.runtime.gc(&old, &[]).unwrap();
    assert_eq!(node.called(), ["DEL first"]);
}

#[test]
fn nothing_is_told_where_nothing_was_ever_attached() {
    let node = Node::new();
    assert_eq!(node.runtime.gc(&list("net", &["first"]), &[]).unwrap().warnings, [""; 0]);
    assert_eq!(node.called(), ["GC first"]);
}

#[test]
fn a_stale_attachment_is_deleted_with_the_configuration_of_its_add() {
    let node = Node::new();
    node.runtime.add(&list("net", &["first"]), &container("c1")).unwrap();
    node.calls();
    node.runtime.gc(&list("net", &["second"]), &[]).unwrap();
    assert_eq!(node.called(), ["DEL first", "GC second"]);
}

#[test]
fn a_file_that_cannot_be_read_is_kept_while_it_may_be_a_valid_containers() {
    let node = Node::new();
    let net = list("net", &["first"]);
    node.put_result("net-c1-eth1", "damaged");
    assert_eq!(node.cached().state, State::Unreadable);
    node.runtime.gc(&net, &[valid("c1")]).unwrap();
    assert_eq!(node.called(), ["GC first"]);
    node.runtime.gc(&list("other", &["first"]), &[]).unwrap();
    assert_eq!(node.called(), ["GC first"]);
    let report = node.runtime.gc(&net, &[valid("c2")]).unwrap();
    assert_eq!(report.warnings.len(), 1, "{report:?}");
    let calls = node.calls();
    let seen: Vec<_> = calls.iter().map(|call| (&*call.name, &*call.environment.ifname)).collect();
    assert_eq!(seen, [("DEL first", "eth1"), ("GC first", "")]);
    assert!(!node.result_file("net-c1-eth1").exists());
}

#[test]
fn what_killed_runtimes_left_is_removed() {
    let node = Node::new();
    let net = list("net", &["first"]);
    node.runtime.add(&net, &container("c1")).unwrap();
    let lock = node.dir.path().join("cnikit/locks/c-killed");
    fs::write(&lock, "").unwrap();
    let unfinished = node.result_file(".net-c9-eth0.new");
    fs::write(&unfinished, "{").unwrap();
    node.runtime.gc(&net, &[valid("c1")]).unwrap();
    assert!(!lock.exists() && !unfinished.exists());
    assert!(node.result_file("net-c1-eth0").exists());
}
