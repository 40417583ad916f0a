//! zone under the campaigns of the test kit. They need root.
#![expect(clippy::expect_used, reason = "a test panics: that is how it fails")]

use std::path::Path;

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{Host, Subject, errno, flood, kill};
use serde_json::json;

// guide: delegating subject
/// zone on a host that has the file. bridge and host-local are beside it.
fn subject() -> Subject {
    let bin = Path::new(env!("CARGO_BIN_EXE_zone")).parent().expect("a directory");
    let conf = json!({"zone": "dmz", "file": "$DIR/zones.json", "dataDir": "$DIR"});
    Subject::new(bin, "zone", conf)
        .on(r#"echo '{"dmz": {"bridge": "br-dmz", "subnet": "10.77.0.0/24"}}' >$DIR/zones.json"#)
        .shared(&["br-dmz"])
}
// guide: end

#[test]
fn an_attachment_leaves_no_trace() {
    life::leaves_no_trace(&subject());
}

#[test]
fn del_succeeds_with_incomplete_input() {
    life::survives_incomplete_dels(&subject());
}

#[test]
fn gc_removes_what_is_invalid_and_nothing_else() {
    life::removes_invalid(&subject());
}

#[test]
fn check_names_every_change() {
    life::names_tampering(
        &subject(),
        &[
            Tampering::inside("ip address flush dev eth0", "10.77.0."),
            Tampering::on_host("ip link set br-dmz down", "br-dmz"),
        ],
    );
}

#[test]
fn sixty_four_at_once_get_sixty_four_addresses() {
    flood::survives(&subject(), 64);
}

#[test]
fn kills_and_failing_calls_leave_nothing() {
    kill::at_every_call(&subject(), 5);
    errno::at_every_call(&subject(), 5);
}

// guide: delegating change
#[test]
fn a_container_is_checked_and_deleted_although_the_file_has_changed() {
    let subject = subject();
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    let file = host.dir().join("zones.json");
    for changed in [r#"{"dmz": {"bridge": "br-new", "subnet": "10.78.0.0/24"}}"#, "{}", "not JSON"] {
        std::fs::write(&file, changed).expect("the file of zones");
        subject.check(&host, "c-one", &container, &result).ok();
    }
    let (code, text) = subject.call(&host, "STATUS", "", "", &[]).refused();
    assert!(code == 50 && text.contains("zones.json"), "{code} {text}");
    std::fs::remove_file(&file).expect("the file of zones");
    subject.del(&host, "c-one", &container, &result);
    assert!(container.links().is_empty(), "its interface is gone");
}
// guide: end

#[test]
fn a_zone_that_the_file_has_not_is_refused_and_those_that_it_has_are_named() {
    let subject = subject();
    let host = subject.host();
    let container = host.container();
    let (code, text) =
        subject.at(host.dir()).with("zone", json!("dmx")).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 7 && text.contains("no zone \"dmx\"") && text.contains("one of: dmz"), "{code} {text}");
    let other: Host = Host::new();
    let (_, text) = subject.at(other.dir()).call(&other, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(text.contains("zones.json"), "{text}");
}
