//! hashed under the campaigns of the test kit. They need root.
#![expect(clippy::expect_used, reason = "a test panics: that is how it fails")]

use std::collections::BTreeSet;
use std::path::Path;

use cnikit_testkit::{Host, Subject, crash, errno, flood, kill, life};
use serde_json::{Value, json};

// guide: subject
/// hashed by itself, as an interface plugin calls it.
fn subject() -> Subject {
    let bin = Path::new(env!("CARGO_BIN_EXE_hashed")).parent().expect("a directory");
    let ipam = json!({"type": "hashed", "subnet": "10.77.0.0/24", "dataDir": "$DIR/hashed"});
    Subject::new(bin, "hashed", json!({"ipam": ipam}))
        .shared(&["directory: hashed", "file: hashed/<network>/lock = \"\""])
}
// guide: end

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().expect("an address").to_owned()
}

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
fn check_names_a_reservation_that_is_gone_or_another_one() {
    let host = Host::new();
    let container = host.container();
    let subject = subject().at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    host.sh(&format!(
        "cd {}/hashed/testnet && mv 10.77.* \"10.77.0.254 $(ls | sed -n 's/^10[^ ]* //p')\"",
        host.dir().display()
    ));
    let (code, text) = subject.check(&host, "c-one", &container, &result).refused();
    assert!(code == 102 && text.contains("the reservation of testnet/c-one/eth0 is 10.77.0.254"), "{code} {text}");
    host.sh(&format!("rm {}/hashed/testnet/10.77.*", host.dir().display()));
    let (code, text) = subject.check(&host, "c-one", &container, &result).refused();
    assert!(code == 102 && text.contains("testnet/c-one/eth0 has no reservation"), "{code} {text}");
}

#[test]
fn sixty_four_at_once_get_sixty_four_addresses() {
    flood::survives(&subject(), 64);
}

#[test]
fn kills_failing_calls_and_power_cuts_leave_no_reservation() {
    kill::at_every_call(&subject(), 8);
    errno::at_every_call(&subject(), 8);
    let small = json!({"type": "hashed", "subnet": "10.77.0.0/28", "dataDir": "$DIR/hashed"});
    crash::survives(&subject().with("ipam", small), 8);
}

// guide: same
#[test]
fn a_container_gets_its_address_again_unless_another_one_has_it() {
    let host = Host::new();
    let container = host.container();
    let subject = subject().at(host.dir());
    let first = subject.add(&host, "web-1", &container);
    subject.del(&host, "web-1", &container, &first);
    let again = subject.add(&host, "web-1", &container);
    assert_eq!(address(&again), address(&first));
    subject.del(&host, "web-1", &container, &again);

    let elsewhere = Host::new();
    let there = subject.at(elsewhere.dir()).add(&elsewhere, "web-1", &container);
    assert_eq!(address(&there), address(&first), "the same on every host");
}
// guide: end

#[test]
fn a_full_subnet_says_so_and_a_second_add_keeps_what_the_first_got() {
    let host = Host::new();
    let container = host.container();
    let ipam = json!({"type": "hashed", "subnet": "10.77.0.0/29", "dataDir": host.dir().join("hashed")});
    let small = subject().with("ipam", ipam);
    let ids = ["c-1", "c-2", "c-3", "c-4", "c-5"];
    let given: BTreeSet<String> = ids.iter().map(|id| address(&small.add(&host, id, &container))).collect();
    assert_eq!(given, (2..7).map(|n| format!("10.77.0.{n}/29")).collect());
    let (_, text) = small.call(&host, "ADD", "c-6", &container.path(), &[]).refused();
    assert!(text.contains("every address of the subnet is reserved"), "{text}");
    let (code, text) = small.call(&host, "ADD", "c-1", &container.path(), &[]).refused();
    assert!(code == 104 && text.contains("testnet/c-1/eth0 has 10.77.0."), "{code} {text}");
    assert_eq!(host.sh(&format!("ls {}/hashed/testnet | grep -c 10", host.dir().display())).trim(), "5");
}

#[test]
fn a_dry_run_shows_the_address_that_add_would_give() {
    let host = Host::new();
    let container = host.container();
    let subject = subject().at(host.dir());
    let plan = subject.call(&host, "PLAN", "web-1", "", &[]).ok();
    let given = address(&subject.add(&host, "web-1", &container));
    let given = given.split('/').next().expect("an address");
    assert_eq!(plan["plan"][0], format!("reserve {given} for testnet/web-1/eth0"), "{plan}");
}
