//! The input of the plugins of a list, and failures of one of them.

use std::fs;

use crate::bench::{Bench, json};

const TWO: &str = r#"{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "first"}, {"type": "second"}]}"#;
const ANSWER: &str =
    r#"ADD) echo '{"cniVersion": "1.0.0", "ips": [], "dns": {}, "x": 123456789012345678901234567890}' ;;"#;
const NO: &str = r#"DEL) echo '{"cniVersion": "1.0.0", "code": 11, "msg": "not now", "details": "busy"}'; exit 1 ;;"#;

#[test]
fn each_plugin_gets_the_previous_result_and_del_runs_backwards_with_the_cached_one() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", ANSWER);
    bench.plugin("second", &ANSWER.replace("[]", r#"[{"address": "10.0.0.2/8"}]"#));
    bench.done("add", "two", &[]);
    bench.done("check", "two", &[]);
    bench.done("del", "two", &[]);
    assert_eq!(bench.calls(), ["ADD first", "ADD second", "CHECK first", "CHECK second", "DEL second", "DEL first"]);
    assert_eq!(json(&bench.stdin("first", "ADD")).get("prevResult"), None);
    assert_eq!(json(&bench.stdin("second", "ADD"))["prevResult"]["ips"], json("[]"));
    assert_eq!(json(&bench.stdin("first", "DEL"))["prevResult"]["ips"][0]["address"], "10.0.0.2/8");
    assert!(bench.stdin("first", "DEL").contains("123456789012345678901234567890"));
    bench.done("del", "two", &[]);
    assert_eq!(json(&bench.stdin("first", "DEL")).get("prevResult"), None, "nothing is kept after a DEL");
}

#[test]
fn a_failing_del_of_one_plugin_stops_no_other_and_can_be_repeated() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", &format!("{ANSWER}\n{NO}"));
    bench.plugin("second", &format!("{ANSWER}\n{NO}"));
    bench.done("add", "two", &[]);
    bench.calls();
    assert_eq!(
        bench.refused("del", "two", &[]),
        "Error: plugin type=\"second\" name=\"two\" (2 of 2) failed (delete) on eth0: not now: busy (code 11)\n       \
         plugin type=\"first\" name=\"two\" (1 of 2) failed (delete) on eth0: not now: busy (code 11)\n"
    );
    assert_eq!(bench.calls(), ["DEL second", "DEL first"]);
    assert_eq!(bench.cached_files().len(), 1);
    for name in ["first", "second"] {
        fs::remove_file(bench.path("bin").join(name)).unwrap();
        bench.plugin(name, "");
    }
    bench.done("del", "two", &[]);
    assert!(json(&bench.stdin("first", "DEL")).get("prevResult").is_some());
    assert_eq!(bench.cached_files().len(), 0);
}

#[test]
fn a_damaged_cached_result_fails_check_and_not_del() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", ANSWER);
    bench.plugin("second", ANSWER);
    bench.done("add", "two", &[]);
    fs::write(&bench.cached_files()[0], "{").unwrap();
    assert!(bench.refused("check", "two", &[]).contains("cached result"));
    bench.done("del", "two", &[]);
    assert_eq!(bench.cached_files().len(), 0);
}

#[test]
fn a_missing_plugin_is_detected_before_the_first_one_runs() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", ANSWER);
    let error = bench.refused("add", "two", &[]);
    assert!(
        error.contains("plugin type=\"second\" name=\"two\" (2 of 2)") && error.contains("failed to find plugin"),
        "{error}"
    );
    assert_eq!(bench.calls(), [""; 0]);
    assert!(bench.refused("del", "two", &[]).contains("second"));
    assert_eq!(bench.calls(), ["DEL first"]);
}

#[test]
fn a_failed_add_caches_nothing_and_invalid_output_is_a_failure() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", ANSWER);
    bench.plugin("second", "ADD) echo hello ;;");
    let error = bench.refused("add", "two", &[]);
    assert!(error.contains("type=\"second\"") && error.contains("its answer cannot be parsed"), "{error}");
    assert_eq!(bench.cached_files().len(), 0);
}

#[test]
fn stderr_of_a_plugin_is_passed_on_and_stdout_has_only_the_result() {
    let bench = Bench::new();
    bench.file("one.conf", r#"{"cniVersion": "1.0.0", "name": "one", "type": "first"}"#);
    bench.plugin("first", "ADD) echo careful >&2; echo null ;;");
    let output = bench.cnitool("add", "one", &[]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "careful\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\n    \"cniVersion\": \"1.0.0\"\n}");
}

#[test]
fn a_plugin_inherits_the_environment_but_nothing_of_an_outer_call() {
    let bench = Bench::new();
    bench.file("one.conf", r#"{"cniVersion": "1.1.0", "name": "one", "type": "first"}"#);
    bench.plugin("first", "STATUS|ADD) env | grep -E '^(OWN|CNI)_' >&2; echo null ;;");
    let outer = ["CONTAINERID", "NETNS", "COMMAND"].map(|name| format!("CNI_{name}"));
    let mut variables: Vec<(&str, &str)> = outer.iter().map(|name| (name.as_str(), "outer")).collect();
    variables.extend([("OWN_PROXY", "kept"), ("CNI_ARGS", "A=1")]);
    for (verb, args) in [("add", "CNI_ARGS=A=1"), ("status", "CNI_ARGS=")] {
        let output = bench.cnitool(verb, "one", &variables);
        let printed = String::from_utf8(output.stderr).unwrap();
        let has = |line: &str| printed.lines().any(|one| one == line);
        assert!(
            has("OWN_PROXY=kept") && has(args) && has(&format!("CNI_COMMAND={}", verb.to_uppercase())),
            "{printed}"
        );
        assert!(!printed.contains("outer"), "{printed}");
        assert_eq!(has("CNI_NETNS=") && has("CNI_CONTAINERID="), verb == "status", "{printed}");
    }
}

#[test]
fn plan_shows_the_steps_of_each_plugin_and_names_those_without_plan() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", r#"PLAN) echo '{"plan": ["make this", "then that"]}' ;;"#);
    bench.plugin("second", r#"PLAN) echo '{"plan": ["and this"]}' ;;"#);
    assert_eq!(bench.done("plan", "two", &[]), "first:\n  make this\n  then that\nsecond:\n  and this\n");
    assert_eq!(bench.cached_files().len(), 0);
    bench.file("lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    let (words, errors) = bench.says(3, &format!("plan lo {} -i lo", bench.netns()));
    assert!(words.starts_with("loopback:\n  unable to tell: plugin type=\"loopback\" name=\"lo\""), "{words}");
    assert_eq!(errors, "");
}

#[test]
fn check_of_a_version_without_check_fails_before_any_plugin_runs() {
    let bench = Bench::new();
    bench.file("old.conf", r#"{"cniVersion": "0.3.1", "name": "old", "type": "first"}"#);
    bench.plugin("first", ANSWER);
    assert!(bench.refused("check", "old", &[]).contains("does not support the CHECK command"));
    assert_eq!(bench.calls(), [""; 0]);
}

#[test]
fn an_invalid_variable_is_named_after_the_network_was_found() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    assert!(bench.refused("add", "two", &[("CAP_ARGS", "[]")]).contains("CAP_ARGS"));
    assert!(bench.refused("add", "two", &[("CNI_ARGS", "a=")]).contains("invalid CNI_ARGS pair \"a=\""));
    assert!(bench.refused("add", "none", &[("CAP_ARGS", "[]")]).contains("no net configuration with name \"none\""));
    let error = bench.refused("add", "two", &[("CNI_IFNAME", "a/b")]);
    assert!(error.starts_with("Error: ") && error.contains("\"a/b\""), "{error}");
}
