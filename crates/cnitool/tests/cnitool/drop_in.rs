//! The behaviour of upstream's cnitool that scripts rely on.

use crate::bench::{Bench, json};

const ONE: &str = r#"{"cniVersion": "1.1.0", "name": "one", "plugins": [{"type": "first"}]}"#;
const OLD: &str = r#"{"cniVersion": "1.0.0", "name": "old", "plugins": [{"type": "first"}]}"#;
const ANSWER: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [], "dns": {}}' ;;"#;

#[test]
fn further_arguments_are_ignored_and_options_may_be_anywhere() {
    let bench = Bench::new();
    bench.file("one.conflist", ONE);
    bench.plugin("first", ANSWER);
    let netns = bench.netns();
    for line in ["add one NS more words -i lo", "-ilo add one NS", "add --ifname=lo one NS", "-i=lo add one NS"] {
        let (printed, errors) = bench.says(0, &line.replace("NS", &netns));
        assert!(printed.starts_with("{\n    \"cniVersion\": \"1.1.0\"") && printed.ends_with('}'), "{printed}");
        assert_eq!(errors, "");
    }
    let [cached] = &bench.cached_files()[..] else { panic!("{:?}", bench.cached_files()) };
    assert!(cached.display().to_string().ends_with("-lo"), "an interface that was named");
    bench.says(0, &format!("del one {netns} -i lo"));
    let output = bench.run(&["add", "one", &netns, "-i", ""], &[("CNI_IFNAME", "eth7")]);
    assert!(
        output.status.success() && bench.cached_files()[0].display().to_string().ends_with("-eth7"),
        "an empty one is none"
    );
}

#[test]
fn check_del_gc_and_status_write_nothing_to_stdout() {
    let bench = Bench::new();
    bench.file("one.conflist", ONE);
    bench.plugin("first", ANSWER);
    let netns = bench.netns();
    bench.says(0, &format!("add one {netns}"));
    bench.calls();
    for verb in ["check", "status", "gc", "del"] {
        assert_eq!(bench.says(0, &format!("{verb} one {netns}")).0, "", "{verb}");
    }
    assert_eq!(bench.calls(), ["CHECK first", "STATUS first", "GC first", "DEL first"]);
    let document = bench.json(&format!("del one {netns}"));
    assert_eq!(
        (&document["verb"], &document["network"], &document["netns"]),
        (&"del".into(), &"one".into(), &netns.into())
    );
}

#[test]
fn status_needs_no_namespace_and_a_version_without_it_is_success() {
    let bench = Bench::new();
    bench.file("one.conflist", ONE);
    bench.file("old.conflist", OLD);
    bench.plugin("first", r#"STATUS) echo '{"cniVersion": "1.1.0", "code": 50, "msg": "not yet"}'; exit 1 ;;"#);
    bench.says(0, "status old");
    assert_eq!(bench.calls(), [""; 0]);
    let (_, errors) = bench.says(1, "status one");
    assert!(errors.contains("not yet (code 50)") && errors.lines().count() == 1, "{errors}");
    let (document, _) = bench.says(1, "--json status one");
    assert_eq!(json(&document)["error"]["plugins"][0]["code"], 50);
    assert_eq!(json(&document)["error"]["status"], 1);
}

#[test]
fn help_is_printed_and_an_invalid_command_line_ends_with_1() {
    let bench = Bench::new();
    for line in ["", "help", "--help", "help add", "add --help", "ipam reclaim -h", "ipam", "netns", "config"] {
        let (printed, errors) = bench.says(0, line);
        assert!(printed.contains("Usage: cnitool") && errors.is_empty(), "{line}: {printed}");
    }
    for command in ["add", "gc", "show", "ipam usage", "config explain", "validate", "netns del", "init", "man"] {
        assert!(bench.says(0, &format!("{command} --help")).0.contains(":\n  cnitool "), "{command}");
    }
    assert!(bench.says(0, "--version").0.starts_with("cnitool cnikit-"));
    assert!(bench.says(0, "version").0.starts_with("cnitool cnikit-"));
    let (_, errors) = bench.says(1, "frob");
    assert_eq!(errors, "Error: unknown command \"frob\" for \"cnitool\"; hint: run `cnitool --help`\n");
    let (printed, errors) = bench.says(1, "add one");
    assert!(printed.is_empty() && errors.starts_with("Error: ") && errors.contains("<NETNS>"), "{errors}");
    let (document, _) = bench.says(1, "--json add one");
    assert!(json(&document)["error"]["message"].as_str().unwrap().contains("<NETNS>"));
}

#[test]
fn completions_and_man_pages_have_every_command() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish"] {
        for spelling in ["completions", "completion"] {
            let (script, _) = bench.says(0, &format!("{spelling} {shell}"));
            assert!(["reclaim", "within-pid-namespace", "live"].iter().all(|word| script.contains(word)), "{shell}");
        }
    }
    let dir = bench.path("man1");
    let document = bench.json(&format!("man {}", dir.display()));
    let pages = document["pages"].as_array().unwrap();
    for page in ["cnitool.1", "cnitool-add.1", "cnitool-ipam-reclaim.1", "cnitool-netns-del.1"] {
        assert!(pages.contains(&page.into()), "{page}: {pages:?}");
    }
    let text = std::fs::read_to_string(dir.join("cnitool-ipam-reclaim.1")).unwrap();
    assert!(text.contains("dry\\-run") && text.contains("Example"), "{text}");
}

#[test]
fn version_lists_the_versions_of_each_plugin_and_the_missing_plugins() {
    let bench = Bench::new();
    bench.file(
        "two.conflist",
        r#"{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "loopback"}, {"type": "none"}]}"#,
    );
    let (printed, errors) = bench.says(1, "version two");
    assert!(printed.lines().any(|line| line.starts_with("loopback") && line.contains("1.0.0")), "{printed}");
    assert!(errors.contains("\"none\""), "{errors}");
    bench.file("one.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    let document = bench.json("version lo");
    assert_eq!(document["plugins"][0]["plugin"], "loopback");
    assert!(document["plugins"][0]["versions"].as_array().unwrap().contains(&"0.4.0".into()));
}
