//! The plugin that the documentation starts with: short, the same everywhere it is shown, and whole.

use std::path::Path;

use cnikit_testkit::{CallOutput, Container, Host, Subject};
use cnikit_tests::also_released;
use cnikit_tests::built;
use cnikit_tests::program;
use serde_json::{Value, json};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn hello(version: &str) -> Subject {
    program("hello"); // builds the examples too
    Subject::new(&built().join("examples"), "hello", json!({"cniVersion": version}))
}

fn call(verb: &str, version: &str, more: &[(&str, Value)]) -> CallOutput {
    let host = Host::new();
    let container: Container = host.container();
    hello(version).call(&host, verb, "c-one", &container.path(), more)
}

/// The result of a plugin before it in the chain, in this version.
fn prev(version: &str) -> Value {
    match version {
        "0.1.0" | "0.2.0" => json!({"cniVersion": version, "ip4": {"ip": "10.0.0.2/24"}, "dns": {}}),
        "1.0.0" | "1.1.0" => json!({"cniVersion": version, "ips": [{"address": "10.0.0.2/24"}]}),
        _ => json!({"cniVersion": version, "ips": [{"version": "4", "address": "10.0.0.2/24"}], "dns": {}}),
    }
}

#[test]
fn hello_is_twelve_lines_at_most_and_the_readme_shows_the_same_code() {
    let source = read("crates/cnikit/examples/hello.rs");
    let of_the_file = |line: &&str| line.starts_with("//!") || *line == "#[rustfmt::skip]";
    let code: Vec<&str> = source.lines().filter(|line| !of_the_file(line)).collect();
    assert!(source.lines().count() <= 12, "{} lines", source.lines().count());
    assert!(read("README.md").contains(&format!("```rust\n{}\n```", code.join("\n"))), "README.md shows other code");
    assert!(read("crates/cnikit/src/lib.rs").contains("include_str!(\"../examples/hello.rs\")"));
}

#[test]
fn hello_passes_on_what_came_before_it_in_every_version() {
    for version in VERSIONS {
        assert_eq!(call("ADD", version, &[("prevResult", prev(version))]).ok(), prev(version), "{version}");
        let alone = call("ADD", version, &[]).ok();
        assert_eq!(alone["cniVersion"], version);
        assert_eq!(call("DEL", version, &[("prevResult", prev(version))]).ok(), Value::Null, "{version}");
    }
}

#[test]
fn hello_speaks_the_verbs_that_each_version_has() {
    let valid = ("cni.dev/valid-attachments", json!([]));
    for version in VERSIONS {
        let since = |first: &str| version >= first;
        for (verb, first, more) in [
            ("CHECK", "0.4.0", ("prevResult", prev(version))),
            ("STATUS", "1.1.0", valid.clone()),
            ("GC", "1.1.0", valid.clone()),
        ] {
            let output = call(verb, version, &[more]);
            if since(first) {
                assert_eq!(output.ok(), Value::Null, "{verb} {version}");
            } else {
                assert_eq!(output.refused().0, 1, "{verb} {version}");
            }
        }
        assert_eq!(call("VERSION", version, &[]).ok()["supportedVersions"], json!(VERSIONS));
    }
}

#[test]
fn hello_prints_usage_and_reports_that_it_has_no_plan() {
    let host = Host::new();
    let (exit, stdout, stderr) = host.run(&built().join("examples/hello"), &[], b"");
    assert_eq!((exit, stdout.as_slice()), (0, b"".as_slice()));
    assert!(String::from_utf8(stderr).unwrap().contains("CNI hello plugin cnikit-"));
    let (code, text) = call("PLAN", "1.1.0", &[]).refused();
    assert!(code == 4 && text.contains("has no plan"), "{code}: {text}");
}

/// `cnikit-skel` alone, without resources, is enough for a plugin: `plugins/examples/hello-skel`.
#[test]
fn a_plugin_on_skel_alone_has_30_lines_and_less_than_a_megabyte() {
    let lines = read("plugins/examples/hello-skel/src/main.rs").lines().count();
    assert!(lines <= 30, "{lines} lines");
    let bytes = std::fs::metadata(also_released("hello-skel")).unwrap().len();
    assert!(bytes < 1_000_000, "{bytes} bytes");
}

#[test]
fn a_plugin_on_skel_alone_passes_on_the_result_with_its_servers() {
    program("hello-skel");
    let host = Host::new();
    let subject = Subject::new(&built(), "hello-skel", json!({"nameservers": ["10.0.0.53", "fd00::53"]}));
    let before =
        json!({"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}], "dns": {"nameservers": ["10.0.0.1"]}});
    let prev = [("prevResult", before)];
    let result = subject.call(&host, "ADD", "c-one", &host.container().path(), &prev).ok();
    assert_eq!(result["dns"]["nameservers"], json!(["10.0.0.1", "10.0.0.53", "fd00::53"]), "{result}");
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
    let wrong =
        subject.with("nameservers", json!(["10.0.0"])).call(&host, "ADD", "c-one", &host.container().path(), &prev);
    let (code, text) = wrong.refused();
    assert!(code == 7 && text.contains("nameservers[0]"), "{code} {text}");
    subject.call(&host, "DEL", "c-one", "", &prev).ok();
}
