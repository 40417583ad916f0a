//! Thousands of calls at once, some of them killed.

use cnikit_testkit::campaign::is_whole;
use cnikit_testkit::flood;
use cnikit_tests::{flooded, script};
use serde_json::json;

/// How many operations all floods have together.
const OPERATIONS: usize = 20_000;
const WHOLE: usize = 100_000;

#[test]
fn no_flood_leaves_an_orphan_or_gives_an_address_twice() {
    let all = if is_whole() { WHOLE } else { OPERATIONS };
    let subjects = flooded();
    let weights: usize = subjects.iter().map(|(_, weight)| weight).sum();
    for (subject, weight) in &subjects {
        let tally = flood::holds(subject, all * weight / weights);
        assert!(tally.kills > 0 && tally.audits > 0, "nobody was killed, or nobody looked: {tally:?}");
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
    flood::holds(&subject, 1500);
}

#[test]
#[should_panic(expected = "which was there: exit 1: {\"code\":11,")]
fn a_plugin_that_refuses_what_is_there_for_another_reason_is_found() {
    let text = r#"
        here=$(dirname "$0")/$CNI_CONTAINERID
        case $CNI_COMMAND in
        ADD) if [ -e "$here" ]; then echo '{"code":11,"msg":"it is busy already"}'; exit 1; fi; : >"$here" && echo '{}' ;;
        DEL) rm -f "$here" ;;
        esac"#;
    let (_bin, subject) = script(text, json!({}));
    flood::holds(&subject, 500);
}

#[test]
#[should_panic(expected = "10.0.0.9 was given to")]
fn a_plugin_that_gives_an_address_twice_is_found() {
    let (_bin, subject) = script(r#"[ $CNI_COMMAND != ADD ] || echo '{"ips":[{"address":"10.0.0.9/24"}]}'"#, json!({}));
    flood::holds(&subject, 300);
}
