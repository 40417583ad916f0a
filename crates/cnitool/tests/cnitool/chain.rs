//! What a chain of plugins is told, and what becomes of it when one of them fails.

use std::fs;

use crate::bench::{Bench, json};

const TWO: &str = r#"{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "first"}, {"type": "second"}]}"#;
const ANSWER: &str =
    r#"ADD) echo '{"cniVersion": "1.0.0", "ips": [], "dns": {}, "x": 123456789012345678901234567890}' ;;"#;
const NO: &str = r#"DEL) echo '{"cniVersion": "1.0.0", "code": 11, "msg": "not now", "details": "busy"}'; exit 1 ;;"#;

#[test]
fn each_plugin_is_given_the_result_before_it_and_del_goes_backwards_with_the_kept_one() {
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
fn a_plugin_that_fails_on_del_keeps_neither_the_others_from_it_nor_the_result_from_a_second_try() {
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
    assert_eq!(bench.kept().len(), 1);
    for name in ["first", "second"] {
        fs::remove_file(bench.path("bin").join(name)).unwrap();
        bench.plugin(name, "");
    }
    bench.done("del", "two", &[]);
    assert!(json(&bench.stdin("first", "DEL")).get("prevResult").is_some());
    assert_eq!(bench.kept().len(), 0);
}

#[test]
fn a_garbled_kept_result_fails_check_and_not_del() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", ANSWER);
    bench.plugin("second", ANSWER);
    bench.done("add", "two", &[]);
    fs::write(&bench.kept()[0], "{").unwrap();
    assert!(bench.refused("check", "two", &[]).contains("kept result"));
    bench.done("del", "two", &[]);
    assert_eq!(bench.kept().len(), 0);
}

#[test]
fn a_plugin_that_is_not_installed_is_found_out_before_the_first_one_runs() {
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
fn a_failed_add_keeps_nothing_and_an_unreadable_answer_is_the_plugins_failure() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", ANSWER);
    bench.plugin("second", "ADD) echo hello ;;");
    let error = bench.refused("add", "two", &[]);
    assert!(error.contains("type=\"second\"") && error.contains("its answer cannot be read"), "{error}");
    assert_eq!(bench.kept().len(), 0);
}

#[test]
fn a_plugins_log_comes_through_and_the_result_alone_is_on_stdout() {
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
        let said = String::from_utf8(output.stderr).unwrap();
        let has = |line: &str| said.lines().any(|one| one == line);
        assert!(has("OWN_PROXY=kept") && has(args) && has(&format!("CNI_COMMAND={}", verb.to_uppercase())), "{said}");
        assert!(!said.contains("outer"), "{said}");
        assert_eq!(has("CNI_NETNS=") && has("CNI_CONTAINERID="), verb == "status", "{said}");
    }
}

#[test]
fn plan_shows_what_each_plugin_would_do_and_names_those_that_cannot_tell() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    bench.plugin("first", r#"PLAN) echo '{"plan": ["make this", "then that"]}' ;;"#);
    bench.plugin("second", r#"PLAN) echo '{"plan": ["and this"]}' ;;"#);
    assert_eq!(bench.done("plan", "two", &[]), "first:\n  make this\n  then that\nsecond:\n  and this\n");
    assert_eq!(bench.kept().len(), 0);
    bench.file("lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    let (words, errors) = bench.says(3, &format!("plan lo {} -i lo", bench.netns()));
    assert!(words.starts_with("loopback:\n  unable to tell: plugin type=\"loopback\" name=\"lo\""), "{words}");
    assert_eq!(errors, "");
}

#[test]
fn check_of_a_version_that_has_none_is_said_before_any_plugin_runs() {
    let bench = Bench::new();
    bench.file("old.conf", r#"{"cniVersion": "0.3.1", "name": "old", "type": "first"}"#);
    bench.plugin("first", ANSWER);
    assert!(bench.refused("check", "old", &[]).contains("does not support the CHECK command"));
    assert_eq!(bench.calls(), [""; 0]);
}

#[test]
fn what_is_wrong_in_the_environment_is_said_with_the_variables_name_after_the_network_was_found() {
    let bench = Bench::new();
    bench.file("two.conflist", TWO);
    assert!(bench.refused("add", "two", &[("CAP_ARGS", "[]")]).contains("CAP_ARGS"));
    assert!(bench.refused("add", "two", &[("CNI_ARGS", "a=")]).contains("invalid CNI_ARGS pair \"a=\""));
    assert!(bench.refused("add", "none", &[("CAP_ARGS", "[]")]).contains("no net configuration with name \"none\""));
    let error = bench.refused("add", "two", &[("CNI_IFNAME", "a/b")]);
    assert!(error.starts_with("Error: ") && error.contains("\"a/b\""), "{error}");
}
