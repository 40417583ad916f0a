//! DEL: also after failures, and with what was recorded.

use std::fs;
use std::os::unix::fs::symlink;

use cnikit_libcni::{Attachment, Error};

use crate::node::{Node, container, list, names, of_version, upstreams_result};

#[test]
fn every_plugin_is_called_after_a_failure_unless_the_caller_wants_to_stop() {
    let node = Node::new();
    let list = list("net", &["first", "second", "third"]);
    let at = container("c1");
    node.runtime.add(&list, &at).unwrap();
    node.called();
    node.fails("DEL second", 11, "not now");
    node.fails("DEL first", 5, "no file");
    let error = node.runtime.del(&list, &at).unwrap_err();
    assert_eq!(error.failures().iter().map(|failure| failure.position).collect::<Vec<_>>(), [2, 1]);
    assert_eq!((error.code(), error.is_retryable()), (11, true));
    assert_eq!(node.called(), ["DEL third", "DEL second", "DEL first"]);
    let error = node.runtime.del_fail_fast(&list, &at).unwrap_err();
    assert_eq!(error.failures().len(), 1);
    assert_eq!(node.called(), ["DEL third", "DEL second"]);
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 1, "it is kept until all have succeeded");
    node.recovers("DEL first");
    node.recovers("DEL second");
    node.runtime.del_fail_fast(&list, &at).unwrap();
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
}

#[test]
fn the_configuration_of_the_add_is_used_and_a_failure_says_so() {
    let node = Node::new();
    let at = container("c1");
    node.runtime.add(&list("net", &["first", "second"]), &at).unwrap();
    node.called();
    let now = list("net", &["third"]);
    node.fails("DEL second", 11, "not now");
    let error = node.runtime.del(&now, &at).unwrap_err();
    assert!(error.to_string().starts_with("with the configuration of its ADD, which differs"), "{error}");
    assert_eq!(node.called(), ["DEL second", "DEL first"]);
    let same = list("net", &["first", "second"]);
    let error = node.runtime.del(&same, &at).unwrap_err();
    assert!(matches!(error, Error::Plugins(_)), "{error}");
    node.recovers("DEL second");
    node.called();
    node.runtime.del(&now, &at).unwrap();
    assert_eq!(node.called(), ["DEL second", "DEL first"]);
    node.runtime.del(&now, &at).unwrap();
    assert_eq!(node.called(), ["DEL third"], "nothing is recorded any more");
}

#[test]
fn a_cached_attachment_is_deleted_without_its_network() {
    let node = Node::new();
    node.runtime.add(&list("net", &["first"]), &Attachment::new("c1", "/nonexistent/ns")).unwrap();
    node.called();
    node.runtime.del_cached(&node.cached()).unwrap();
    let calls = node.calls();
    assert_eq!((calls[0].name.as_str(), calls[0].environment.netns.as_str()), ("DEL first", ""));
    assert_eq!(node.runtime.cache.attachments().unwrap().len(), 0);
}

#[test]
fn a_damaged_file_is_set_aside_with_a_warning() {
    let node = Node::new();
    let list = list("net", &["first"]);
    let at = container("c1");
    node.runtime.add(&list, &at).unwrap();
    node.called();
    node.put_result("net-c1-eth0", "{");
    let error = node.runtime.check(&list, &at).unwrap_err();
    assert!(matches!(error, Error::Cache(_)) && error.to_string().contains("hint: run DEL"), "{error}");
    let report = node.runtime.del(&list, &at).unwrap();
    assert_eq!(report.warnings.len(), 1, "{report:?}");
    assert!(report.warnings[0].contains("net-c1-eth0"), "{report:?}");
    let calls = node.calls();
    assert_eq!((calls.len(), calls[0].stdin.get("prevResult")), (1, None));
    assert!(!node.result_file("net-c1-eth0").exists());
    assert_eq!(fs::read_dir(node.dir.path().join("cnikit/aside")).unwrap().count(), 1);
}

#[test]
fn a_link_in_place_of_a_result_is_set_aside_and_not_followed() {
    let node = Node::new();
    let list = list("net", &["first"]);
    node.runtime.add(&list, &container("c1")).unwrap();
    let elsewhere = node.dir.path().join("elsewhere");
    fs::rename(node.result_file("net-c1-eth0"), &elsewhere).unwrap();
    symlink(&elsewhere, node.result_file("net-c1-eth0")).unwrap();
    node.calls();
    assert_eq!(node.runtime.del(&list, &container("c1")).unwrap().warnings.len(), 1);
    assert_eq!(node.calls()[0].stdin.get("prevResult"), None);
    assert!(elsewhere.exists() && !node.result_file("net-c1-eth0").is_symlink());
}

#[test]
fn a_recorded_configuration_that_cannot_be_used_is_replaced_by_the_callers() {
    let node = Node::new();
    let list = list("net", &["first"]);
    let mut file = upstreams_result("c1");
    file["config"] = "e30=".into();
    node.put_result("net-c1-eth0", &file.to_string());
    let report = node.runtime.del(&list, &container("c1")).unwrap();
    assert!(report.warnings[0].starts_with("done without the cached configuration: "), "{report:?}");
    assert_eq!(node.called(), ["DEL first"]);
    assert!(!node.result_file("net-c1-eth0").exists());
}

#[test]
fn the_result_is_passed_in_the_version_of_the_list_and_not_before_0_4_0() {
    for (version, is_passed) in [("0.3.1", false), ("0.4.0", true), ("1.0.0", true)] {
        let node = Node::new();
        let list = of_version(version, &["first"]);
        node.runtime.add(&list, &container("c1")).unwrap();
        node.calls();
        node.runtime.del(&list, &container("c1")).unwrap();
        let stdin = node.calls().remove(0).stdin;
        assert_eq!(stdin.get("prevResult").is_some(), is_passed, "{version}");
        if is_passed {
            assert_eq!(stdin["prevResult"]["cniVersion"], version);
        }
    }
}

#[test]
fn a_cache_that_cannot_have_locks_does_not_prevent_del_and_check() {
    let node = Node::new();
    let list = list("net", &["first"]);
    fs::write(node.dir.path().join("cnikit"), "a file").unwrap();
    assert!(matches!(node.runtime.add(&list, &container("c1")).unwrap_err(), Error::Cache(_)));
    let report = node.runtime.del(&list, &container("c1")).unwrap();
    assert!(report.warnings[0].starts_with("done without a lock: "), "{report:?}");
    node.runtime.check(&list, &container("c1")).unwrap();
    assert_eq!(node.called(), ["DEL first", "CHECK first"]);
}

#[test]
fn what_is_recorded_of_another_attachment_with_the_same_file_name_is_not_used() {
    let node = Node::new();
    node.runtime.add(&list("a-b", &["first"]), &container("c").with_arg("A", "1")).unwrap();
    node.calls();
    node.runtime.del(&list("a", &["second"]), &container("b-c")).unwrap();
    let calls = node.calls();
    assert_eq!((names(&calls), calls[0].stdin.get("prevResult")), (vec!["DEL second"], None));
    assert_eq!(calls[0].environment.args, "");
    assert_eq!(node.cached().network, "a-b");
}
