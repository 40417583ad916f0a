//! Thousands of calls at once, some of them killed.

use std::time::Duration;

use cnikit_testkit::campaign::{runs_all_cases, sample};
use cnikit_testkit::soak::Soak;
use cnikit_testkit::{Host, Subject, flood};
use cnikit_tests::campaign_subjects::{INTERFACE, interface_result};
use cnikit_tests::{built, dual_stack, flooded, installed, script};
use serde_json::{Value, json};

/// How many operations all floods have together. A run makes half of the floods, by chance; all with `CNIKIT_CAMPAIGNS=whole`.
const OPERATIONS: usize = 3_200;
const WHOLE: usize = 100_000;

#[test]
fn no_flood_leaves_an_orphan_or_gives_an_address_twice() {
    let all = if runs_all_cases() { WHOLE } else { OPERATIONS };
    let subjects = flooded();
    let weights: usize = subjects.iter().map(|(_, weight)| weight).sum();
    let half = subjects.len().div_ceil(2);
    for (subject, weight) in sample("floods", subjects, half) {
        flood::random_calls(&subject, all * weight / weights);
    }
}

#[test]
#[should_panic(expected = "on the host, when all are gone: came")]
fn a_plugin_that_forgets_what_a_kill_left_is_found() {
    let (_bin, subject) = script(
        r#"case $CNI_COMMAND in
        ADD) if [ -e /proc/sys/net/ipv4/conf/b$CNI_CONTAINERID ]; then echo '{"code":101,"msg":"it is there already"}'; exit 1; fi
            ip link add a$$ type bridge && ip link set a$$ name b$CNI_CONTAINERID && echo '{}' ;;
        DEL) ip link del b$CNI_CONTAINERID 2>/dev/null || true ;;
        esac"#,
        json!({}),
    );
    flood::random_calls(&subject, 1500);
}

#[test]
#[should_panic(expected = "not given back in the namespace of")]
fn a_chained_plugin_that_restores_nothing_is_found() {
    let text = r#"[ $CNI_COMMAND != ADD ] || { nsenter --net="$CNI_NETNS" ip link set eth0 mtu 1400 && echo '{}'; }"#;
    let (_bin, subject) = script(text, json!({}));
    flood::random_calls(&subject.after(INTERFACE, interface_result()), 300);
}

#[test]
#[should_panic(expected = "which was there: exit 1: {\"code\":7,")]
fn a_plugin_that_refuses_what_is_there_for_another_reason_is_found() {
    let text = r#"
        here=$(dirname "$0")/$CNI_CONTAINERID
        case $CNI_COMMAND in
        ADD) if [ -e "$here" ]; then echo '{"code":7,"msg":"it is wrong already"}'; exit 1; fi; : >"$here" && echo '{}' ;;
        DEL) rm -f "$here" ;;
        esac"#;
    let (_bin, subject) = script(text, json!({}));
    flood::random_calls(&subject, 500);
}

#[test]
#[should_panic(expected = "calls were refused with code 11")]
fn a_plugin_that_is_always_busy_is_found() {
    let (_bin, subject) =
        script(r#"[ $CNI_COMMAND != STATUS ] || { echo '{"code":11,"msg":"later"}'; exit 1; }; echo '{}'"#, json!({}));
    flood::random_calls(&subject, 500);
}

#[test]
#[should_panic(expected = "RESTORE of c-")]
fn a_plugin_that_cannot_restore_is_found() {
    let text = r#"[ $CNI_COMMAND != RESTORE ] || { echo '{"code":7,"msg":"it is wrong"}'; exit 1; }; echo '{}'"#;
    let (_bin, subject) = script(text, json!({}));
    flood::random_calls(&subject, 1000);
}

#[test]
#[should_panic(expected = "DEL of c-")]
fn a_plugin_that_needs_space_to_delete_is_found() {
    let text = r#"
        here=$(dirname "$0")/$CNI_CONTAINERID
        data=$(printf %s "$conf" | sed -n 's/.*"dataDir":"\([^"]*\)".*/\1/p')
        case $CNI_COMMAND in
        ADD) if [ -e "$here" ]; then echo '{"code":101,"msg":"it is there already"}'; exit 1; fi; : >"$here" && echo '{}' ;;
        DEL) { cd "${data:?}" && echo $$ >$$ && rm -f $$ "$here"; } 2>/dev/null || { echo '{"code":5,"msg":"No space left"}'; exit 1; } ;;
        esac"#;
    let (_bin, subject) = script(text, json!({"dataDir": "$DIR"}));
    flood::random_calls(&subject.on_small_disk(64), 600);
}

#[test]
#[should_panic(expected = "10.0.0.9 was given to")]
fn a_plugin_that_gives_an_address_twice_is_found() {
    let (_bin, subject) = script(r#"[ $CNI_COMMAND != ADD ] || echo '{"ips":[{"address":"10.0.0.9/24"}]}'"#, json!({}));
    flood::random_calls(&subject, 300);
}

/// Otherwise each run would be counted as a build of its own.
#[test]
fn the_configurations_of_a_soak_are_the_same_in_each_run() {
    for (subject, _) in flooded() {
        let after = subject.after.as_ref().map(|after| format!("{} {}", after.made, after.result)).unwrap_or_default();
        let text = format!("{} {:?} {} {}", subject.conf, subject.env, subject.host_setup, after);
        assert!(!text.contains(built().to_str().unwrap()) && !text.contains("/tmp"), "{}: {text}", subject.title);
    }
}

#[test]
fn the_subjects_of_a_soak_have_titles_of_their_own() {
    let mut titles: Vec<_> = flooded().into_iter().map(|(subject, _)| subject.title).collect();
    let all = titles.len();
    titles.sort();
    titles.dedup();
    assert_eq!(titles.len(), all, "{titles:?}");
}

/// Three batches of 2,000 operations.
#[test]
fn a_stopped_soak_is_resumed_and_counts_each_build_of_the_plugins() {
    let host = Host::new();
    let plugin = installed().join("cni-plugins");
    let bin = host.dir().join("bin");
    let state = host.dir().join("soak.json");
    // A program copies it: a child of another thread could inherit our file descriptor, and a file that is open for writing cannot
    // be executed.
    host.sh(&format!("mkdir '{0}' && cp '{1}' '{0}/host-local'", bin.display(), plugin.display()));
    let soak = |operations, time_limit, label: &str| Soak {
        subjects: vec![(Subject::new(&bin, "host-local", json!({"ipam": dual_stack()})), 1)],
        operations,
        time_limit,
        state: state.clone(),
        label: label.to_owned(),
    };
    let builds = || {
        let text = std::fs::read_to_string(&state).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let of = |build: &Value| (build["label"].clone(), build["batches"].clone());
        document["builds"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let half = soak(4000, Duration::from_millis(100), "first").run().unwrap();
    assert!((2000..4000).contains(&half.operations) && half.audits == 1, "the batch under way is finished: {half:?}");
    assert_eq!(soak(4000, Duration::MAX, "").already_done().unwrap(), None);
    let whole = soak(4000, Duration::MAX, "the same").run().unwrap();
    assert!((4000..5000).contains(&whole.operations) && whole.audits == 2 && whole.kills > half.kills, "{whole:?}");
    assert_eq!(builds(), [(json!("first"), json!(2))]);
    // Nothing is left to do, which is reported.
    let over = soak(4000, Duration::MAX, "").already_done().unwrap().unwrap();
    assert!(over.contains("of 4000 operations") && over.contains("--anew"), "{over}");
    assert_eq!(soak(4000, Duration::MAX, "nothing to do").run().unwrap(), whole);
    host.sh(&format!("echo >>'{}/host-local'", bin.display()));
    let more = soak(6000, Duration::MAX, "second").run().unwrap();
    assert!((6000..7000).contains(&more.operations) && more.audits == 3, "{more:?}");
    assert_eq!(builds(), [(json!("first"), json!(2)), (json!("second"), json!(1))]);
}
