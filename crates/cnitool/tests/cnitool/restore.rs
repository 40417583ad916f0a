//! `restore`.

use std::fs;

use cnikit_netns::make;

use crate::bench::{Bench, json};

const ONE: &str =
    r#"{"cniVersion": "1.1.0", "name": "one", "plugins": [{"type": "first"}, {"type": "second"}, {"type": "third"}]}"#;
const KNOWS: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [], "dns": {}}' ;;"#;
const KNOWS_NOT: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [], "dns": {}}' ;;
RESTORE) echo '{"cniVersion": "1.1.0", "code": 4, "msg": "unknown CNI_COMMAND: RESTORE"}'; exit 1 ;;"#;
const FAILS: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [], "dns": {}}' ;;
RESTORE) echo '{"cniVersion": "1.1.0", "code": 11, "msg": "not now"}'; exit 1 ;;"#;

fn bench(first: &str, second: &str, third: &str) -> Bench {
    let bench = Bench::new();
    bench.file("one.conflist", ONE);
    for (name, script) in [("first", first), ("second", second), ("third", third)] {
        bench.plugin(name, script);
    }
    for name in ["lives", "gone"] {
        let path = bench.namespace(name);
        bench.says(0, &format!("add one {}", path.display()));
    }
    make::remove(&bench.path("gone")).unwrap();
    bench.calls();
    bench
}

#[test]
fn restore_calls_each_plugin_of_existing_containers_with_the_result_of_the_add() {
    let bench = bench(KNOWS, KNOWS, KNOWS);
    let (printed, errors) = bench.says(0, "restore");
    assert_eq!(printed, "");
    assert!(errors.contains("restoring one/") && errors.contains("skipping one/"), "{errors}");
    assert_eq!(bench.calls(), ["RESTORE first", "RESTORE second", "RESTORE third"]);
    let given = json(&bench.stdin("third", "RESTORE"));
    assert_eq!((&given["name"], &given["prevResult"]["cniVersion"]), (&"one".into(), &"1.1.0".into()), "{given}");
    let (_, errors) = bench.says(0, "restore --network other");
    assert_eq!((errors.as_str(), bench.calls().len()), ("", 0));
}

#[test]
fn restore_takes_the_namespace_from_the_result_if_the_cache_has_none() {
    let bench = Bench::new();
    bench.file("one.conflist", r#"{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "first"}]}"#);
    let given = bench.path("given");
    let script = r#"ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}]}' ;;
RESTORE) echo "$CNI_NETNS" >GIVEN ;;"#;
    bench.plugin("first", &script.replace("GIVEN", &given.display().to_string()));
    bench.done("add", "one", &[]);
    bench.cache_as_old_libcni();
    bench.says(0, "restore");
    assert_eq!(fs::read_to_string(given).unwrap().trim(), bench.netns());
}

#[test]
fn a_plugin_without_restore_is_named_and_the_others_are_called() {
    let bench = bench(KNOWS, KNOWS_NOT, KNOWS);
    let (_, errors) = bench.says(0, "restore");
    assert!(errors.contains("Warning: second of network one does not support RESTORE"), "{errors}");
    assert_eq!(bench.calls().len(), 3);
}

#[test]
fn a_failing_plugin_is_reported_with_its_attachment_and_the_others_are_called() {
    let bench = bench(FAILS, KNOWS, KNOWS);
    let (_, errors) = bench.says(1, "restore");
    assert!(errors.contains("Error: one/") && errors.contains("not now (code 11)"), "{errors}");
    assert_eq!(bench.calls().len(), 3);
}

#[test]
fn a_dry_run_of_restore_lists_attachments_and_restores_nothing() {
    let bench = bench(KNOWS, KNOWS, KNOWS);
    let (_, errors) = bench.says(0, "restore --dry-run");
    assert_eq!(errors.matches("would restore one/").count(), 1, "{errors}");
    let document = bench.json("restore --dry-run");
    let running = |one: &&serde_json::Value| one["running"] == true;
    assert_eq!(document["attachments"].as_array().unwrap().iter().filter(running).count(), 1, "{document}");
    assert_eq!(bench.calls(), [""; 0]);
}

/// Replies success for each attachment of a list, except for the interface `bad`.
const KNOWS_LISTS: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [], "dns": {}}' ;;
RESTORE) [ -n "$CNI_CONTAINERID" ] || sed 's/^.*"cni.dev.attachments":/{"cni.dev\/attachments":/; s/"ifname":"bad"/&,"error":{"code":101,"msg":"no room"}/' "$DIR/$0.RESTORE" ;;"#;

#[test]
fn a_plugin_without_lists_is_called_for_each_attachment() {
    let bench = bench(KNOWS, KNOWS_NOT, KNOWS);
    bench.plugin("lists", &KNOWS_LISTS.replace("$DIR/$0", &bench.path("lists").display().to_string()));
    bench.file("one.conflist", &ONE.replace("first", "lists"));
    for name in ["eth1", "eth2", "bad"] {
        bench.says(0, &format!("add one {} --ifname {name}", bench.path("lives").display()));
    }
    bench.calls();
    let (_, errors) = bench.says(1, "restore");
    assert!(errors.contains("/bad: plugin type=\"lists\"") && errors.contains("no room (code 101)"), "{errors}");
    assert_eq!(errors.matches("second of network one does not support RESTORE").count(), 2, "{errors}");
    let mut calls = bench.calls();
    calls.sort();
    let counted = |call: &str| calls.iter().filter(|found| *found == call).count();
    assert_eq!(counted("RESTORE lists"), 1, "those that were added with it, at once: {calls:?}");
    // First the attachment that was added before them, then the one of the other list.
    assert_eq!((counted("RESTORE first"), counted("RESTORE second"), counted("RESTORE third")), (1, 2, 5), "{calls:?}");
    let given = json(&bench.stdin("lists", "RESTORE"));
    let listed = given["cni.dev/attachments"].as_array().unwrap();
    assert_eq!((listed.len(), &given["prevResult"]), (3, &serde_json::Value::Null), "{given}");
    assert_eq!(listed[0]["prevResult"]["cniVersion"], "1.1.0", "{given}");
}
