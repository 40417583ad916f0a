//! deny under the campaigns of the test kit, and with traffic. They need root.
#![expect(clippy::expect_used, reason = "a test panics: that is how it fails")]

use std::fmt;
use std::path::Path;

use cnikit::netlink::NewLink;
use cnikit::plan::{ApplyContext, Drifts, Kind, Made, Plan, Resource};
use cnikit::resources::alias::hex;
use cnikit::{AttachmentId, AttachmentSpec, ChainedPlugin, CniResult, Journal, Result};
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{Host, Subject, errno, fault, kill};
use deny::DenyPlugin;
use serde_json::json;

// guide: subject
/// deny after a plugin that gave the container an interface with two addresses.
fn subject() -> Subject {
    let bin = Path::new(env!("CARGO_BIN_EXE_deny")).parent().expect("a directory");
    let made =
        "ip link add eth0 type veth peer name veth1 && ip link set eth0 up && ip address add 10.77.0.2/24 dev eth0";
    let result = json!({
        "interfaces": [{"name": "eth0", "sandbox": "$NETNS"}],
        "ips": [{"address": "10.77.0.2/24", "interface": 0}, {"address": "fd00:77::2/64", "interface": 0}]
    });
    Subject::new(bin, "deny", json!({"to": ["169.254.169.254/32", "10.9.0.0/16", "fd09::/64"]}))
        .after(made, result)
        .shared(&["table inet cnikit_deny {"])
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
    let one = "nft delete rule inet cnikit_deny denied handle \
               $(nft -a list chain inet cnikit_deny denied | grep 169.254 | sed 's/.*handle //')";
    life::names_tampering_of_all(
        &subject(),
        &[
            Tampering::on_host(one, "ip daddr 169.254.169.254 drop"),
            Tampering::on_host("nft delete table inet cnikit_deny", "ip6 daddr fd09::/64 drop"),
        ],
    );
}

#[test]
fn a_fault_before_any_step_changes_nothing() {
    assert_eq!(fault::changes_nothing::<DenyPlugin>(&subject()), 2);
}

#[test]
fn kills_and_failing_calls_leave_nothing() {
    kill::at_every_call(&subject(), 5);
    errno::at_every_call(&subject(), 5);
}

// guide: traffic
/// A container that the host routes for, and the two addresses that it tries: one is denied.
#[test]
fn the_denied_network_is_out_of_reach_and_the_others_are_not() {
    let host = Host::new();
    let container = host.container();
    host.sh(&format!("ip link add to0 type veth peer name eth0 netns {}", container.path()));
    host.sh("ip address add 10.77.0.1/24 dev to0; ip link set to0 up; ip link set lo up");
    host.sh("ip address add 169.254.169.254/32 dev lo; ip address add 10.8.0.1/32 dev lo");
    container.sh("ip address add 10.77.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.77.0.1");
    assert!(container.reaches("169.254.169.254"));
    let prev = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": container.path()}],
        "ips": [{"address": "10.77.0.2/24", "interface": 0}]
    });
    let mut alone = subject();
    alone.after = None;
    let result = alone.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", prev)]).ok();
    assert!(container.reaches("10.8.0.1"));
    assert!(!container.try_sh("ping -n -q -c 1 -W 1 169.254.169.254").0, "it is reached");
    alone.del(&host, "c-one", &container, &result);
    assert!(container.reaches("169.254.169.254"));
}
// guide: end

#[test]
fn a_misspelled_key_and_a_missing_address_are_refused() {
    let host = Host::new();
    let mut subject = subject();
    let container = subject.container(&host);
    let (_, text) =
        subject.with("too", json!(["10.0.0.0/8"])).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(text.contains("too"), "{text}");
    let none = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": container.path()}]});
    subject.after = None;
    let (_, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", none)]).refused();
    assert!(
        text.contains("gave eth0 no address") && text.contains("put this plugin after one that has `ipam`"),
        "{text}"
    );
}

// guide: broken
/// A bridge of the host per container, by an author who has forgotten that a later step of an ADD may fail.
struct Forgotten;

const FORGOTTEN: Kind = Kind {
    name: "forgotten bridge",
    release: |context| match context.host()?.find_link(&name_of(&context.tag))? {
        Some(link) => Ok(context.host()?.delete_link(link.index)?),
        None => Ok(()),
    },
    sweep: |_| Ok(()),
    outlives_link: true,
};

fn name_of(tag: &AttachmentId) -> String {
    format!("br{}", hex(&tag.hash()[..6]))
}

impl Resource for Forgotten {
    fn kind(&self) -> Kind {
        FORGOTTEN
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        context.host()?.create_link(&NewLink::new(name_of(&context.tag), "bridge"))?;
        Ok(Made::nothing())
    }

    fn verify(&self, _context: &ApplyContext, _drifts: &mut Drifts) -> Result<()> {
        Ok(())
    }
}
// guide: end

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a bridge of the host")
    }
}

#[derive(serde::Deserialize)]
struct Forgetful {}

impl ChainedPlugin for Forgetful {
    const KINDS: &'static [Kind] = &[FORGOTTEN];

    fn plan(&self, _at: &AttachmentSpec, _prev: &CniResult) -> Result<Plan> {
        Ok(Plan::of(Forgotten))
    }
}

// guide: found
#[test]
#[should_panic(expected = "a fault before step 1: came [\n    \"link: br")]
fn a_missing_undo_step_is_found() {
    fault::changes_nothing::<Forgetful>(&subject());
}
// guide: end
