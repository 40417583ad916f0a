//! RESTORE: all attachments of a network in one call, and one by one where a plugin cannot.

use cnikit_libcni::{Attachment, CachedAttachment, Error, NetworkList, Restored};
use serde_json::{Value, json};

use crate::node::{Call, Node, container, list, upstreams_result};

/// Adds these containers, and returns what is cached of them.
fn added(node: &Node, list: &NetworkList, ids: &[&str]) -> Vec<CachedAttachment> {
    for id in ids {
        node.runtime.add(list, &container(id).with_mac("02:00:00:00:00:01").with_arg("A", *id)).unwrap();
    }
    node.calls();
    let mut all = node.runtime.cache.attachments().unwrap();
    all.retain(|cached| cached.network == list.name);
    all
}

fn restore(node: &Node, all: &[CachedAttachment]) -> Vec<Restored> {
    node.runtime.restore_all(&all.iter().collect::<Vec<_>>())
}

/// The reply of a plugin that restored these containers, with an error for those that have one.
fn reply(of: &[(&str, Option<&str>)]) -> Value {
    let mut all = Vec::new();
    for (id, error) in of {
        let mut one = json!({"containerID": id, "ifname": "eth0"});
        if let Some(msg) = error {
            one["error"] = json!({"cniVersion": "1.1.0", "code": 101, "msg": msg});
        }
        all.push(one);
    }
    json!({"cni.dev/attachments": all})
}

/// Verb and plugin, and the container, which a call for several does not have.
fn seen(calls: &[Call]) -> Vec<(&str, &str)> {
    calls.iter().map(|call| (&*call.name, &*call.environment.container_id)).collect()
}

#[test]
fn each_plugin_is_called_once_for_all_attachments_with_their_own_input() {
    let node = Node::new();
    let net = list("net", &["first", "second"]);
    let all = added(&node, &net, &["c1", "c2"]);
    let both = reply(&[("c1", None), ("c2", None)]);
    node.prints("RESTORE first", &both);
    node.prints("RESTORE second", &both);
    for one in restore(&node, &all) {
        one.outcome.unwrap();
        assert_eq!(one.report.warnings, [""; 0]);
    }
    let calls = node.calls();
    assert_eq!(seen(&calls), [("RESTORE first", ""), ("RESTORE second", "")]);
    let expected = json!({
        "containerID": "c2", "ifname": "eth0", "netns": "", "args": "A=c2",
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]},
        "runtimeConfig": {"mac": "02:00:00:00:00:01"},
    });
    assert_eq!(calls[0].stdin["cni.dev/attachments"][1], expected);
    assert_eq!(calls[1].stdin["cni.dev/attachments"].as_array().unwrap().len(), 2);
}

#[test]
fn what_a_reply_leaves_out_is_restored_alone_and_errors_belong_to_their_attachment() {
    let node = Node::new();
    let net = list("net", &["first", "second", "third"]);
    let all = added(&node, &net, &["c1", "c2", "c3"]);
    node.prints("RESTORE first", &reply(&[("c1", None), ("c2", Some("taken")), ("c3", None)]));
    node.prints("RESTORE second", &reply(&[("c2", None), ("c3", None)]));
    node.fails("RESTORE third", 100, "no list");
    let outcomes = restore(&node, &all);
    let mut calls: Vec<Call> = node.calls();
    assert_eq!(seen(&calls[..3]), [("RESTORE first", ""), ("RESTORE second", ""), ("RESTORE third", "")]);
    calls.drain(..3);
    calls.sort_by(|one, other| one.environment.container_id.cmp(&other.environment.container_id));
    let alone = [("RESTORE second", "c1"), ("RESTORE third", "c1"), ("RESTORE third", "c2"), ("RESTORE third", "c3")];
    assert_eq!(seen(&calls), alone);
    let failed: Vec<Vec<(usize, Option<u32>)>> = outcomes
        .iter()
        .map(|one| {
            let Err(error) = &one.outcome else { return Vec::new() };
            error.failures().iter().map(|failure| (failure.position, failure.code())).collect()
        })
        .collect();
    // `second` prints its list again for c1 alone, which is not an error.
    assert_eq!(failed, [vec![(3, Some(100))], vec![(1, Some(101)), (3, Some(100))], vec![(3, Some(100))]]);
    let error = outcomes[1].outcome.as_ref().unwrap_err().to_string();
    assert!(error.contains("failed (restore) on eth0: taken"), "{error}");
}

#[test]
fn a_plugin_without_restore_is_a_warning_and_the_others_are_called() {
    let node = Node::new();
    let net = list("net", &["first", "second"]);
    let all = added(&node, &net, &["c1", "c2"]);
    node.fails("RESTORE first", 4, "unknown CNI_COMMAND: RESTORE");
    node.prints("RESTORE second", &reply(&[("c1", None), ("c2", None)]));
    let outcomes = restore(&node, &all);
    assert!(outcomes.iter().all(|one| one.outcome.is_ok()));
    assert_eq!(outcomes[0].report.warnings, ["first of network net does not support RESTORE"]);
    assert_eq!(outcomes[1].report.warnings, [""; 0], "it is told once");
    assert_eq!(seen(&node.calls()), [("RESTORE first", ""), ("RESTORE second", "")]);
    let report = node.runtime.restore(&all[0]).unwrap();
    assert_eq!(report.warnings, ["first of network net does not support RESTORE"]);
    assert_eq!(seen(&node.calls()), [("RESTORE first", "c1"), ("RESTORE second", "c1")]);
}

#[test]
fn one_attachment_has_all_its_plugins_called_and_all_failures_told() {
    let node = Node::new();
    let net = list("net", &["first", "second", "third"]);
    let all = added(&node, &net, &["c1"]);
    node.fails("RESTORE first", 100, "no");
    node.fails("RESTORE third", 101, "no");
    let error = node.runtime.restore(&all[0]).unwrap_err();
    assert_eq!(error.failures().iter().map(|failure| failure.position).collect::<Vec<_>>(), [1, 3]);
    let calls = node.calls();
    assert_eq!(seen(&calls), [("RESTORE first", "c1"), ("RESTORE second", "c1"), ("RESTORE third", "c1")]);
    assert!(calls.iter().all(|call| call.stdin["prevResult"]["ips"][0]["address"] == "10.9.0.2/24"));
    let outcomes = restore(&node, &all);
    assert_eq!(outcomes[0].outcome.as_ref().unwrap_err().failures().len(), 2);
}

#[test]
fn networks_and_configurations_are_restored_separately_and_outcomes_keep_their_order() {
    let node = Node::new();
    let mut all = added(&node, &list("b", &["first"]), &["c1", "c2"]);
    all.extend(added(&node, &list("a", &["second"]), &["c1", "c2"]));
    // Another configuration of the same network.
    let more = list("a", &["third"]);
    node.runtime.add(&more, &container("c3")).unwrap();
    all.push(node.runtime.cache.attachment("a", "c3", "eth0").unwrap());
    node.calls();
    node.prints("RESTORE first", &reply(&[("c1", None), ("c2", Some("taken"))]));
    node.prints("RESTORE second", &reply(&[("c1", Some("taken")), ("c2", None)]));
    let outcomes = restore(&node, &all);
    assert_eq!(outcomes.iter().map(|one| one.outcome.is_ok()).collect::<Vec<_>>(), [true, false, false, true, true]);
    let calls = node.calls();
    let mut seen = seen(&calls);
    seen.sort_unstable();
    assert_eq!(seen, [("RESTORE first", ""), ("RESTORE second", ""), ("RESTORE third", "c3")]);
}

#[test]
fn what_is_gone_is_not_restored_and_what_has_changed_is_restored_as_it_is_now() {
    let node = Node::new();
    let net = list("net", &["first"]);
    let all = added(&node, &net, &["c1", "c2", "c3"]);
    node.runtime.del(&net, &container("c1")).unwrap();
    node.runtime.add(&list("net", &["second"]), &container("c2")).unwrap();
    node.calls();
    node.prints("RESTORE first", &reply(&[("c3", None)]));
    for one in restore(&node, &all) {
        one.outcome.unwrap();
    }
    let calls = node.calls();
    assert_eq!(seen(&calls), [("RESTORE first", ""), ("RESTORE second", "c2")]);
    assert_eq!(calls[0].stdin["cni.dev/attachments"].as_array().unwrap().len(), 1);
    // The namespace of this one does not exist.
    node.runtime.add(&net, &Attachment::new("c4", "/nonexistent/ns")).unwrap();
    node.calls();
    node.runtime.restore(&node.runtime.cache.attachment("net", "c4", "eth0").unwrap()).unwrap();
    node.runtime.restore(&all[0]).unwrap();
    assert_eq!(node.called(), [""; 0]);
}

#[test]
fn more_attachments_than_one_call_may_have_are_divided() {
    let node = Node::new();
    let net = list("net", &["first"]);
    let names: Vec<String> = (0..251).map(|number| format!("c{number}")).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    let all = added(&node, &net, &ids);
    node.prints("RESTORE first", &reply(&ids.iter().map(|id| (*id, None)).collect::<Vec<_>>()));
    let outcomes = restore(&node, &all);
    assert!(outcomes.len() == 251 && outcomes.iter().all(|one| one.outcome.is_ok()));
    let calls = node.calls();
    assert_eq!(calls[0].stdin["cni.dev/attachments"].as_array().unwrap().len(), 250);
    assert_eq!(calls.len(), 2, "the last one is alone");
    assert!(!calls[1].environment.container_id.is_empty());
}

#[test]
fn an_attachment_whose_configuration_cannot_be_used_is_an_error_of_its_own() {
    let node = Node::new();
    let net = list("net", &["first"]);
    let mut all = added(&node, &net, &["c1", "c2"]);
    node.put_result("net-c3-eth0", &upstreams_result("c3").to_string());
    all.push(node.runtime.cache.attachment("net", "c3", "eth0").unwrap());
    node.prints("RESTORE first", &reply(&[("c1", None), ("c2", None)]));
    let outcomes = restore(&node, &all);
    assert!(outcomes[0].outcome.is_ok() && outcomes[1].outcome.is_ok());
    assert!(matches!(outcomes[2].outcome.as_ref().unwrap_err(), Error::Configuration(_)));
}

#[test]
fn the_path_of_the_namespace_is_the_callers() {
    let node = Node::new();
    let mut all = added(&node, &list("net", &["first"]), &["c1", "c2"]);
    all[0].at.netns = "/given".to_owned();
    node.runtime.restore(&all[0]).unwrap();
    assert_eq!(node.calls().remove(0).environment.netns, "/given");
    node.prints("RESTORE first", &reply(&[("c1", None), ("c2", None)]));
    restore(&node, &all);
    let listed = &node.calls()[0].stdin["cni.dev/attachments"];
    assert_eq!((&listed[0]["netns"], &listed[1]["netns"]), (&json!("/given"), &json!("")));
}
