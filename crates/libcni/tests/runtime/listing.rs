//! The list of cached attachments: states, problems, and the files of other tools.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cnikit_libcni::{Attachment, Cache, State};
use cnikit_netns::make;
use serde_json::json;

use crate::node::{Node, container, list, upstreams_result};

#[test]
fn each_attachment_has_its_state_and_its_problems() {
    let node = Node::new();
    let net = list("net", &["first"]);
    node.runtime.add(&net, &container("c1")).unwrap();
    node.runtime.add(&net, &Attachment::new("c2", "/nonexistent/ns")).unwrap();
    node.fails("ADD first", 100, "no");
    node.runtime.add(&net, &container("c3")).unwrap_err();
    node.put_result("net-c4-eth0", "damaged");
    let all = node.runtime.cache.attachments().unwrap();
    let states: Vec<_> = all.iter().map(|cached| (&*cached.at.container_id, cached.state)).collect();
    let expected =
        [("c1", State::Attached), ("c2", State::Attached), ("", State::Unreadable), ("c3", State::Interrupted)];
    assert_eq!(states, expected);
    assert_eq!(all[0].problems, [""; 0]);
    assert_eq!(all[1].problems, ["its namespace /nonexistent/ns is gone"]);
    assert_eq!(all[2].problems.len(), 1);
    assert_eq!(all[3].problems, ["its ADD was not completed: DEL removes what it made"]);
    assert_eq!(all[0].addresses(), ["10.9.0.2/24"]);
    assert_eq!((all[2].addresses().len(), all[3].addresses().len()), (0, 0));
    assert_eq!(all[0].list().unwrap().plugins, net.plugins);
    assert!(all[2].list().unwrap_err().to_string().contains("the file has no configuration"));
    assert!(all[0].age().as_secs() < 3600 && all[0].metadata.time.is_some() && all[0].metadata.boot_id.is_some());
}

#[test]
fn an_attachment_is_found_by_its_names_and_by_no_others() {
    let node = Node::new();
    node.runtime.add(&list("net-a", &["first"]), &container("c1")).unwrap();
    node.runtime.add(&list("net", &["first"]), &container("c2")).unwrap();
    let cache = &node.runtime.cache;
    assert_eq!(cache.attachment("net-a", "c1", "eth0").unwrap().at.container_id, "c1");
    // Another attachment whose file would have the same name.
    assert!(cache.attachment("net", "a-c1", "eth0").is_none());
    assert!(cache.attachment("net", "c2", "eth1").is_none());
    assert_eq!(cache.attachments_of("c1").unwrap().len(), 1);
    assert_eq!(cache.attachments_of("c").unwrap().len(), 0);
    let cached = cache.attachment("net", "c2", "eth0").unwrap();
    let named = cached.attachment_of("net").unwrap();
    assert_eq!((&*named.container_id, &*named.ifname), ("c2", "eth0"));
    assert!(cached.attachment_of("net-a").is_none());
}

#[test]
fn a_bare_result_and_one_of_another_boot_are_told() {
    let node = Node::new();
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.4/24"}]});
    node.put_result("net-c1-eth0", &result.to_string());
    let bare = node.cached();
    assert_eq!((bare.state, bare.addresses()), (State::Unreadable, vec!["10.9.0.4/24".to_owned()]));
    assert!(bare.problems[0].starts_with("a bare result"), "{bare:?}");
    let by_name = bare.attachment_of("net").unwrap();
    assert_eq!((&*by_name.container_id, &*by_name.ifname), ("c1", "eth0"));
    assert!(bare.attachment_of("ne").is_none());
    fs::remove_file(node.result_file("net-c1-eth0")).unwrap();

    node.runtime.add(&list("net", &["first"]), &container("c1")).unwrap();
    let mut cached = node.cached();
    assert_eq!(cached.lost_namespace(), None);
    cached.metadata.time = Some(SystemTime::now() - Duration::from_hours(2));
    assert_eq!(cached.age().as_secs() / 3600, 2);
    cached.metadata.boot_id = Some("another".to_owned());
    assert_eq!(cached.lost_namespace().unwrap(), "it is of another boot: its namespace is gone");
}

#[test]
fn a_result_that_cannot_be_read_is_a_problem_of_its_attachment() {
    let node = Node::new();
    let mut file = upstreams_result("c1");
    file["result"] = json!({"cniVersion": "9.9"});
    node.put_result("net-c1-eth0", &file.to_string());
    let problems = node.cached().problems;
    assert_eq!(problems[0], "it has no result that can be read");
    assert!(problems[1].starts_with("its configuration cannot be used: "), "{problems:?}");
}

#[test]
fn a_path_that_leads_to_another_namespace_is_not_passed_to_a_del() {
    let node = Node::new();
    let path = node.dir.path().join("ns");
    let at = Attachment::new("c1", path.to_str().unwrap());
    let deleted_with = || {
        node.calls();
        node.runtime.del_cached(&node.cached()).unwrap();
        node.calls().remove(0).environment.netns
    };
    let _first = make::fresh(&path).unwrap();
    node.runtime.add(&list("net", &["first"]), &at).unwrap();
    assert_eq!(node.cached().problems, [""; 0]);
    assert_eq!(deleted_with(), at.netns);

    node.runtime.add(&list("net", &["first"]), &at).unwrap();
    make::remove(&path).unwrap();
    let _second = make::fresh(&path).unwrap();
    assert_eq!(node.cached().problems, [format!("{} leads to another namespace now", at.netns)]);
    assert_eq!(deleted_with(), "");
    make::remove(&path).unwrap();

    fs::write(&path, "a file").unwrap();
    node.runtime.add(&list("net", &["first"]), &at).unwrap();
    let problems = node.cached().problems;
    assert!(
        problems[0].starts_with(&format!("its namespace {} is not a namespace any more", at.netns)),
        "{problems:?}"
    );
    node.runtime.add(&list("net", &["first"]), &Attachment::new("c1", "/proc/self/ns/net")).unwrap();
    assert_eq!(node.cached().problems, ["its namespace /proc/self/ns/net is the host's own"]);
}

#[test]
fn a_summary_is_the_same_whether_its_file_was_read_as_a_whole_or_not() {
    let node = Node::new();
    let net = list("net", &["first"]);
    let interfaces = json!([{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/ns"}]);
    let result = json!({"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [{"address": "10.9.0.2/24"}]});
    node.prints("ADD first", &result);
    node.runtime.add(&net, &container("c1")).unwrap();
    node.runtime.add(&net, &container("c2")).unwrap();
    // The intent of an ADD whose end was a power cut.
    let intent = node.dir.path().join("cnikit/intents/net-c2-eth0");
    fs::copy(node.result_file("net-c2-eth0"), intent).unwrap();
    node.fails("ADD first", 100, "no");
    node.runtime.add(&net, &container("c3")).unwrap_err();
    node.put_result("net-c4-eth0", "damaged");
    node.put_result("net-c5-eth0", &result.to_string());
    fs::write(node.dir.path().join("results").join(OsStr::from_bytes(b"net-\xff")), "").unwrap();
    fs::write(node.dir.path().join("cnikit/intents/net-c6-eth0"), "damaged").unwrap();

    let summaries = node.runtime.cache.list().unwrap();
    let states: Vec<_> = summaries.iter().map(|one| (&*one.container_id, one.state)).collect();
    let unreadable = ("", State::Unreadable);
    let attached = |id| (id, State::Attached);
    let interrupted = ("c3", State::Interrupted);
    assert_eq!(states, [attached("c1"), attached("c2"), unreadable, unreadable, unreadable, interrupted, unreadable]);
    let mut whole = Vec::new();
    for (cached, summary) in node.runtime.cache.attachments().unwrap().iter().zip(&summaries) {
        assert!(summary.age() < Duration::from_hours(1) || summary.file.as_os_str().as_bytes().ends_with(b"\xff"));
        // The time of a file is that of its last change of any kind in one, and of its content in the other.
        let mut one = cached.summary();
        one.written = summary.written;
        whole.push(one);
    }
    assert_eq!(summaries, whole);
    assert_eq!((summaries[0].mac.as_deref(), &*summaries[0].netns), (Some("02:00:00:00:00:01"), "/ns"));
    let mut old = summaries[0].clone();
    old.metadata.time = Some(SystemTime::now() - Duration::from_hours(2));
    assert_eq!(old.age().as_secs() / 3600, 2);
    assert_eq!(Cache::below(Path::new("/nonexistent")).list().unwrap(), []);
}
