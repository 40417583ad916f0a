//! The verbs for one attachment: order, input, and what is kept.

use std::collections::HashMap;

use cnikit_libcni::{Attachment, Error, State, TraceContext};
use serde_json::{Value, json};

use crate::node::{Node, container, list, names, of_version, with_keys};

#[test]
fn each_plugin_gets_the_result_of_the_one_before_it_and_the_last_result_is_kept() {
    let node = Node::new();
    let list = list("net", &["first", "second", "third"]);
    let at = container("c1").with_arg("A", "1").with_arg("B", "2").with_mac("02:00:00:00:00:07");
    let by_second = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.3/24"}]});
    node.prints("ADD second", &by_second);
    assert_eq!(node.runtime.add(&list, &at).unwrap(), by_second);
    let calls = node.calls();
    assert_eq!(names(&calls), ["ADD first", "ADD second", "ADD third"]);
    assert_eq!(calls[0].stdin.get("prevResult"), None);
    assert_eq!(calls[1].stdin["prevResult"]["ips"][0]["address"], "10.9.0.2/24");
    assert_eq!(calls[2].stdin["prevResult"], by_second);
    for call in &calls {
        let environment = &call.environment;
        assert_eq!((environment.container_id.as_str(), environment.ifname.as_str()), ("c1", "eth0"));
        assert_eq!((environment.args.as_str(), environment.path.as_str()), ("A=1;B=2", "/nonexistent"));
        assert_eq!(call.stdin["runtimeConfig"], json!({"mac": "02:00:00:00:00:07"}));
    }
    assert_eq!(node.runtime.cache.result(&list, &at).unwrap(), Some(by_second.clone()));

    node.runtime.check(&list, &at).unwrap();
    let calls = node.calls();
    assert_eq!(names(&calls), ["CHECK first", "CHECK second", "CHECK third"]);
    assert!(calls.iter().all(|call| call.stdin["prevResult"] == by_second));

    let report = node.runtime.del(&list, &at).unwrap();
    let calls = node.calls();
    assert_eq!(names(&calls), ["DEL third", "DEL second", "DEL first"]);
    assert!(calls.iter().all(|call| call.stdin["prevResult"] == by_second));
    assert_eq!(report.warnings, [""; 0]);
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
}

#[test]
fn names_that_the_specification_does_not_allow_reach_no_plugin() {
    let node = Node::new();
    let list = list("net", &["first"]);
    let long = "x".repeat(16);
    let cases = [
        (container(""), "container"),
        (container("../c1"), "../c1"),
        (container("c1").on(&*long), &*long),
        (container("c1").with_arg("A=B", "1"), "A=B"),
        (container("c1").with_arg("A;B", "1"), "A;B"),
        (container("c1").with_arg("A", "1=2"), "1=2"),
        (container("c1").with_arg("A", "1;B"), "1;B"),
    ];
    for (at, word) in cases {
        for failed in [node.runtime.add(&list, &at), node.runtime.add_with_rollback(&list, &at)] {
            let error = failed.unwrap_err();
            assert!(matches!(error, Error::Name(_)) && error.to_string().contains(word), "{word}: {error}");
            assert_eq!(error.code(), 4);
        }
    }
    let mut unnamed = list;
    unnamed.name = "a/b".to_owned();
    assert!(node.runtime.add(&unnamed, &container("c1")).unwrap_err().to_string().contains("a/b"));
    assert_eq!(node.called(), [""; 0]);
}

#[test]
fn what_a_failed_add_made_stays_known_until_a_del_has_succeeded() {
    let node = Node::new();
    let list = list("net", &["first", "second"]);
    node.fails("ADD second", 100, "no");
    let error = node.runtime.add(&list, &container("c1")).unwrap_err();
    assert_eq!((error.code(), error.failures()[0].position, error.failures()[0].of), (100, 2, 2));
    assert!(!error.is_retryable());
    assert_eq!(node.called(), ["ADD first", "ADD second"]);
    assert_eq!(node.cached().state, State::Interrupted);
    assert_eq!(node.runtime.cache.result(&list, &container("c1")).unwrap(), None);
    node.runtime.del(&list, &container("c1")).unwrap();
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
}

#[test]
fn an_add_that_finds_no_container_leaves_nothing_to_delete() {
    // Error code 3 of the specification, from the first plugin: no plugin has made anything.
    for (failing, code, is_kept) in [("ADD first", 3, false), ("ADD first", 4, true), ("ADD second", 3, true)] {
        let node = Node::new();
        node.fails(failing, code, "no container");
        node.runtime.add(&list("net", &["first", "second"]), &container("c1")).unwrap_err();
        let count = node.runtime.cache.attachments().unwrap().len();
        assert_eq!(count, usize::from(is_kept), "{failing}, {code}");
    }
}

#[test]
fn roll_back_deletes_what_the_add_made_and_nothing_that_was_there_before() {
    let node = Node::new();
    let list = list("net", &["first", "second"]);
    let at = container("c1");
    node.fails("ADD second", 100, "no");
    let error = node.runtime.add_with_rollback(&list, &at).unwrap_err();
    assert_eq!((error.code(), error.failures().len()), (100, 1));
    assert_eq!(node.called(), ["ADD first", "ADD second", "DEL second", "DEL first"]);
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);

    node.fails("DEL first", 11, "not now");
    let error = node.runtime.add_with_rollback(&list, &at).unwrap_err();
    let verbs: Vec<&str> = error.failures().iter().map(|failure| failure.verb).collect();
    assert_eq!((error.code(), verbs), (100, vec!["ADD", "DEL"]));
    assert!(error.to_string().contains("and undoing it failed: "), "{error}");
    assert_eq!(node.cached().state, State::Interrupted);
    node.recovers("DEL first");
    node.recovers("ADD second");
    node.runtime.add_with_rollback(&list, &at).unwrap();
    node.called();

    node.fails("ADD second", 100, "no");
    node.runtime.add_with_rollback(&list, &at).unwrap_err();
    assert_eq!(node.called(), ["ADD first", "ADD second"], "the container runs");
    assert_eq!(node.cached().state, State::Attached);
}

#[test]
fn a_missing_plugin_is_found_before_the_first_one_runs() {
    let node = Node::new();
    let list = list("net", &["first", "missing"]);
    let error = node.runtime.add_with_rollback(&list, &container("c1")).unwrap_err();
    assert!(error.to_string().contains("missing") && error.to_string().contains("(2 of 2)"), "{error}");
    assert_eq!((node.called().len(), node.runtime.cache.attachments().unwrap().len()), (0, 0));
}

#[test]
fn an_interrupted_add_with_another_configuration_is_deleted_before_the_next() {
    let node = Node::new();
    let at = container("c1");
    node.fails("ADD first", 100, "no");
    let before = list("net", &["first", "second"]);
    node.runtime.add(&before, &at).unwrap_err();
    node.runtime.add(&before, &at).unwrap_err();
    assert_eq!(node.called(), ["ADD first", "ADD first"], "the same configuration needs no DEL");

    node.fails("DEL second", 11, "not now");
    let after = list("net", &["third"]);
    let error = node.runtime.add(&after, &at).unwrap_err();
    assert!(
        error.to_string().starts_with("an earlier ADD was interrupted, and what it made cannot be deleted"),
        "{error}"
    );
    assert_eq!(node.called(), ["DEL second", "DEL first"]);
    node.recovers("DEL second");
    node.runtime.add(&after, &at).unwrap();
    assert_eq!(node.called(), ["DEL second", "DEL first", "ADD third"]);
    let cached = node.cached();
    assert_eq!((cached.state, cached.list().unwrap().plugins.len()), (State::Attached, 1));

    node.runtime.add(&before, &at).unwrap_err();
    assert_eq!(node.called(), ["ADD first"], "an attachment that is complete is not deleted");
}

#[test]
fn check_stops_at_the_first_difference_and_is_left_out_where_it_is_disabled() {
    let node = Node::new();
    let at = container("c1");
    let list = list("net", &["first", "second"]);
    node.runtime.add(&list, &at).unwrap();
    node.fails("CHECK first", 100, "differs");
    node.called();
    assert_eq!(node.runtime.check(&list, &at).unwrap_err().failures().len(), 1);
    assert_eq!(node.called(), ["CHECK first"]);
    let disabled = with_keys("net", "1.1.0", &["first"], &json!({"disableCheck": true}));
    node.runtime.check(&disabled, &at).unwrap();
    let error = node.runtime.check(&of_version("0.3.1", &["first"]), &at).unwrap_err();
    assert!(matches!(&error, Error::NoCheck { version } if version == "0.3.1"), "{error}");
    node.runtime.check(&of_version("0.4.0", &["second"]), &at).unwrap();
    assert_eq!(node.called(), ["CHECK second"]);
}

#[test]
fn status_is_asked_since_the_version_that_has_it_up_to_the_first_that_cannot_serve() {
    let node = Node::new();
    node.fails("STATUS second", 50, "no addresses");
    node.runtime.status(&of_version("1.0.0", &["second"])).unwrap();
    assert_eq!(node.called(), [""; 0]);
    let error = node.runtime.status(&list("net", &["first", "second", "third"])).unwrap_err();
    assert_eq!((error.code(), error.failures()[0].position), (50, 2));
    let calls = node.calls();
    assert_eq!(names(&calls), ["STATUS first", "STATUS second"]);
    assert_eq!(calls[0].stdin, json!({"type": "first", "name": "net", "cniVersion": "1.1.0"}));
    assert_eq!((calls[0].environment.container_id.as_str(), calls[0].environment.ifname.as_str()), ("", ""));
}

#[test]
fn validation_names_every_plugin_that_is_missing_or_too_old() {
    let node = Node::new();
    assert_eq!(node.runtime.validate(&list("net", &["first", "second"])).unwrap(), ["mac"]);
    let calls = node.calls();
    assert_eq!(calls.len(), 2);
    let environment = &calls[0].environment;
    assert_eq!(
        (environment.netns.as_str(), environment.ifname.as_str(), environment.path.as_str()),
        ("dummy", "dummy", "dummy")
    );
    assert_eq!(calls[0].stdin, json!({"cniVersion": "1.1.0"}));

    node.prints("VERSION second", &json!({"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}));
    let error = node.runtime.validate(&list("net", &["first", "second", "missing"])).unwrap_err();
    let failures = error.failures();
    let named: Vec<(&str, usize)> =
        failures.iter().map(|failure| (failure.plugin.as_str(), failure.position)).collect();
    assert_eq!(named, [("second", 2), ("missing", 3)]);
    assert!(failures[0].to_string().contains("does not support version 1.1.0, only 0.4.0, 1.0.0"), "{error}");
    // A configuration without a version is one of 0.1.0.
    let error = node.runtime.validate(&of_version("", &["second"])).unwrap_err();
    assert!(error.to_string().contains("does not support version 0.1.0"), "{error}");
}

#[test]
fn the_versions_of_old_plugins_are_known() {
    let node = Node::new();
    let of = |text: &str| {
        node.prints("VERSION first", text);
        node.runtime.versions("first").map_err(|error| error.to_string())
    };
    assert_eq!(of(r#"{"supportedVersions": ["1.0.0"]}"#).unwrap(), ["1.0.0"]);
    assert_eq!(of(r#"{"cniVersion": "0.2.0"}"#).unwrap(), ["0.1.0", "0.2.0"]);
    for (text, why) in [
        (r#"{"cniVersion": "0.3.0"}"#, "no `supportedVersions`"),
        (r#"{"supportedVersions": [1]}"#, "is not a list of strings"),
        ("hello", "hello"),
    ] {
        let error = of(text).unwrap_err();
        assert!(error.contains(why) && error.contains("first") && error.contains("(version)"), "{error}");
    }
    node.fails("VERSION first", 4, "unknown CNI_COMMAND: VERSION");
    assert_eq!(node.runtime.versions("first").unwrap(), ["0.1.0"]);
    node.fails("VERSION first", 4, "unknown");
    assert_eq!(node.runtime.versions("first").unwrap_err().code(), 4);
    assert!(node.runtime.versions("missing").unwrap_err().to_string().contains("missing"));
}

#[test]
fn a_plan_has_the_steps_of_every_plugin_and_passes_their_examples_on() {
    let node = Node::new();
    let example = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.9/24"}]});
    node.prints("PLAN first", &json!({"plan": ["make a link", "set it up"], "example": example}));
    node.fails("PLAN second", 4, "unknown CNI_COMMAND: PLAN");
    node.prints("PLAN third", &json!({"plan": "none"}));
    let planned = node.runtime.plan(&list("net", &["first", "second", "third"]), &container("c1"));
    assert_eq!(planned[0].steps.as_ref().unwrap(), &["make a link", "set it up"]);
    assert_eq!(planned[1].steps.as_ref().unwrap_err().code(), Some(4));
    assert!(planned[2].steps.as_ref().unwrap_err().to_string().contains("no list of steps under `plan`"));
    let names: Vec<&str> = planned.iter().map(|steps| steps.plugin.as_str()).collect();
    assert_eq!(names, ["first", "second", "third"]);
    let calls = node.calls();
    assert_eq!(calls[0].stdin.get("prevResult"), None);
    assert_eq!((&calls[1].stdin["prevResult"], &calls[2].stdin["prevResult"]), (&example, &example));
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
    // The example has the version of the list.
    let node = Node::new();
    node.prints("PLAN first", &json!({"plan": [], "example": example}));
    node.runtime.plan(&of_version("0.4.0", &["first", "second"]), &container("c1"));
    let previous = &node.calls()[1].stdin["prevResult"];
    assert_eq!((&previous["cniVersion"], &previous["ips"][0]["version"]), (&json!("0.4.0"), &json!("4")));
}

#[test]
fn plugins_get_the_trace_of_the_runtime() {
    let mut node = Node::new();
    node.runtime.trace =
        Some(TraceContext { parent: "00-1-2-01".to_owned(), state: "s=1".to_owned(), ..TraceContext::default() });
    node.runtime.add(&list("net", &["first"]), &container("c1")).unwrap();
    let variables: HashMap<String, String> = node.calls()[0].environment.extra.iter().cloned().collect();
    let expected = [("TRACEPARENT", "00-1-2-01"), ("TRACESTATE", "s=1"), ("BAGGAGE", "")];
    assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

#[test]
fn del_repeats_the_arguments_and_capabilities_of_the_add_unless_the_caller_has_its_own() {
    let node = Node::new();
    let list = list("net", &["first"]);
    let mac = |last: &str| format!("02:00:00:00:00:{last}");
    let added = container("c1").with_arg("A", "1").with_mac(&mac("01"));
    let cases: [(Attachment, &str, Value); 3] = [
        (container("c1"), "A=1", json!({"mac": mac("01")})),
        (container("c1").with_arg("A", "2"), "A=2", json!({"mac": mac("01")})),
        (container("c1").with_mac(&mac("02")), "A=1", json!({"mac": mac("02")})),
    ];
    for (at, args, config) in cases {
        node.runtime.add(&list, &added).unwrap();
        node.calls();
        node.runtime.del(&list, &at).unwrap();
        let call = node.calls().remove(0);
        assert_eq!((call.environment.args.as_str(), &call.stdin["runtimeConfig"]), (args, &config));
    }
}
