//! The output of plugins, and the results and errors that a runtime returns for it.

use std::error::Error as _;

use cnikit_libcni::{Error, FailureKind, NetworkList, Networks};
use serde_json::json;

use crate::node::{Node, container, list, of_version};

#[test]
fn a_success_without_a_usable_result_is_a_failure_that_quotes_it() {
    let cases = [
        ("", "it succeeded without a result"),
        (" \n", "it succeeded without a result"),
        ("hello", "said \"hello\""),
        (r#"{"code": 7, "msg": "bad"}"#, "its exit status is 0, but it printed an error: bad (code 7)"),
        (r#"{"code": 0, "msg": "bad"}"#, "it printed an error: bad (code 0)"),
        (r#"{"code": 7, "msg": ""}"#, "(code 7)"),
        (r#"{"cniVersion": "1.1.0", "ips": 1}"#, "ips"),
    ];
    for (text, why) in cases {
        let node = Node::new();
        node.prints("ADD first", text);
        let error = node.runtime.add(&list("net", &["first", "second"]), &container("c1")).unwrap_err();
        let failure = error.failures()[0];
        assert!(matches!(failure.kind, FailureKind::InvalidOutput(_)) && failure.code().is_none());
        let message = error.to_string();
        let begin = "plugin type=\"first\" name=\"net\" (1 of 2) failed (add) on eth0: its answer cannot be parsed: ";
        assert!(message.starts_with(begin) && message.contains(why), "{text}: {message}");
        assert!(message.contains("; hint: check whether that program is a CNI plugin"), "{message}");
        assert_eq!((node.called().len(), error.code()), (1, 103));
    }
    let empty = Node::new();
    empty.prints("ADD first", "");
    let error = empty.runtime.add(&list("net", &["first"]), &container("c1")).unwrap_err().to_string();
    assert!(error.contains("said nothing"), "{error}");
}

#[test]
fn a_result_gets_the_version_that_it_does_not_name() {
    let ips = json!([{"address": "10.9.0.2/24"}]);
    let cases = [
        (json!({"ips": ips}), json!({"ips": ips, "cniVersion": "1.0.0"})),
        (json!({"ips": ips, "cniVersion": ""}), json!({"ips": ips, "cniVersion": "1.0.0"})),
        (json!({"ips": ips, "cniVersion": "1.1.0", "x": 1}), json!({"ips": ips, "cniVersion": "1.1.0", "x": 1})),
        // A number under `code` alone makes no error of a result.
        (json!({"ips": ips, "code": 0}), json!({"ips": ips, "code": 0, "cniVersion": "1.0.0"})),
        (json!({"ips": ips, "code": "7"}), json!({"ips": ips, "code": "7", "cniVersion": "1.0.0"})),
    ];
    for (printed, expected) in cases {
        let node = Node::new();
        node.prints("ADD first", &printed);
        let result = node.runtime.add(&of_version("1.0.0", &["first"]), &container("c1")).unwrap();
        assert_eq!(result, expected, "{printed}");
    }
    let node = Node::new();
    node.prints("ADD first", "null");
    let result = node.runtime.add(&of_version("1.0.0", &["first"]), &container("c1"));
    assert_eq!(result.unwrap()["cniVersion"], "1.0.0");
}

#[test]
fn the_error_of_a_plugin_is_told_once_with_its_place_in_the_list() {
    let cases = [
        (json!({"code": 7, "msg": "no range", "details": "more"}), "no range: more (code 7)"),
        (json!({"code": 7, "msg": "no range"}), "no range (code 7)"),
        // The details of our plugins begin with the call, which is named already.
        (
            json!({"code": 7, "msg": "no range", "details": "first DEL, network net, container c1; hint: add one"}),
            "no range; hint: add one (code 7)",
        ),
        (json!({"code": 7, "msg": "no range", "details": "first DEL, network net, container c1"}), "no range (code 7)"),
    ];
    for (object, end) in cases {
        let node = Node::new();
        node.exits("DEL first", 1, &object);
        let error = node.runtime.del(&list("net", &["first"]), &container("c1")).unwrap_err();
        let expected = format!("plugin type=\"first\" name=\"net\" (1 of 1) failed (delete) on eth0: {end}");
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.failures()[0].kind.hint(), None);
    }
}

#[test]
fn a_plugin_that_fails_without_an_error_object_has_died() {
    let node = Node::new();
    node.exits("ADD first", 2, "oops");
    let error = node.runtime.add(&list("net", &["first"]), &container("c1")).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("died without an error object: exit status 2") && message.contains("oops"), "{message}");
    assert_eq!((error.code(), error.failures()[0].code()), (103, None));
    assert!(message.contains("hint: this is a defect of that plugin"), "{message}");
}

#[test]
fn the_source_of_an_error_is_the_first_one_that_caused_it() {
    let node = Node::new();
    let net = list("net", &["first"]);
    node.fails("ADD first", 100, "no range");
    let error = node.runtime.add(&net, &container("c1")).unwrap_err();
    let failure = error.source().unwrap();
    assert_eq!(failure.to_string(), error.to_string());
    assert_eq!(failure.source().unwrap().to_string(), "no range");
    node.prints("ADD first", "hello");
    let error = node.runtime.add(&net, &container("c1")).unwrap_err();
    assert!(error.source().unwrap().source().is_none());
    let networks = Networks::new(node.runtime.clone()).with(net);
    let error = networks.setup(&container("c2")).unwrap_err();
    assert!(error.source().unwrap().downcast_ref::<Error>().unwrap().source().is_some());
    let error = NetworkList::parse(b"{").unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), error.to_string());
    assert!(Error::Cancelled.source().is_none());
}
