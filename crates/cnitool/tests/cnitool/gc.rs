//! `gc`.

use cnikit_netns::{Netns, make};

use crate::bench::{Bench, json};

const ONE: &str = r#"{"cniVersion": "1.1.0", "name": "one", "plugins": [{"type": "first"}]}"#;
const ANSWER: &str = r#"ADD) echo '{"cniVersion": "1.1.0", "ips": [], "dns": {}}' ;;"#;

/// Three containers: one exists, the path of one is gone while a process holds its namespace, one is gone.
fn three() -> (Bench, Netns) {
    let bench = Bench::new();
    bench.file("one.conflist", ONE);
    bench.plugin("first", ANSWER);
    for name in ["lives", "held", "gone"] {
        let path = bench.namespace(name);
        bench.says(0, &format!("add one {}", path.display()));
    }
    let held = Netns::open(bench.path("held")).unwrap();
    make::remove(&bench.path("held")).unwrap();
    make::remove(&bench.path("gone")).unwrap();
    bench.calls();
    (bench, held)
}

/// Whether the container of the namespace with this name is cached.
fn is_cached(bench: &Bench, name: &str) -> bool {
    let document = bench.json("list");
    let path = bench.path(name).display().to_string();
    document["attachments"].as_array().unwrap().iter().any(|one| one["netns"]["path"] == path.as_str())
}

#[test]
fn only_the_container_whose_namespace_is_gone_is_deleted() {
    let (bench, held) = three();
    let (printed, errors) = bench.says(0, "gc one --within-pid-namespace");
    assert_eq!(printed, "");
    assert!(errors.contains("keeping one/") && errors.contains("deleting one/"), "{errors}");
    assert_eq!(bench.calls(), ["DEL first", "GC first"]);
    assert!(is_cached(&bench, "lives") && is_cached(&bench, "held") && !is_cached(&bench, "gone"));
    let valid = json(&bench.stdin("first", "GC"))["cni.dev/valid-attachments"].clone();
    assert_eq!(valid.as_array().unwrap().len(), 2, "{valid}");
    drop(held);
    bench.says(0, "gc one --within-pid-namespace");
    assert!(is_cached(&bench, "lives") && !is_cached(&bench, "held"), "nothing holds it any more");
}

#[test]
fn a_dry_run_of_gc_lists_what_would_be_deleted_and_deletes_nothing() {
    let (bench, _held) = three();
    let (printed, errors) = bench.says(0, "gc one --dry-run --within-pid-namespace");
    assert_eq!((printed.as_str(), errors.matches("would delete").count()), ("", 1), "{errors}");
    let document = bench.json("gc one --dry-run --within-pid-namespace");
    let attachments = document["attachments"].as_array().unwrap();
    assert_eq!(attachments.iter().filter(|one| one["valid"] == true).count(), 2, "{document}");
    assert_eq!(bench.calls(), [""; 0]);
    assert!(is_cached(&bench, "gone"));
}

#[test]
fn all_deletes_everything_except_what_keep_names() {
    let (bench, _held) = three();
    let path = bench.path("held").display().to_string();
    let attachments = bench.json("list")["attachments"].clone();
    let held = attachments.as_array().unwrap().iter().find(|one| one["netns"]["path"] == path.as_str()).unwrap();
    let keep = format!("--keep {}/eth0", held["container"].as_str().unwrap());
    bench.says(0, &format!("gc one /any/netns --all {keep}"));
    assert_eq!(bench.calls(), ["DEL first", "DEL first", "GC first"]);
    assert!(is_cached(&bench, "held") && !is_cached(&bench, "lives"));
    bench.says(0, "gc one --all");
    assert_eq!(bench.cached_files().len(), 0);
}

#[test]
fn a_holder_of_an_address_that_is_not_cached_is_valid() {
    let bench = Bench::new();
    let ipam = r#""ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.94.0.0/24"}"#;
    bench.file("one.conflist", &ONE.replace(r#""first""#, &format!(r#""first", {ipam}"#)));
    bench.plugin("first", ANSWER);
    std::fs::create_dir_all(bench.path("leases/one")).unwrap();
    std::fs::write(bench.path("leases/one/10.94.0.7"), "another\r\neth0").unwrap();
    let (_, errors) = bench.says(0, "gc one");
    assert!(errors.contains("keeping one/another/eth0: it holds 10.94.0.7"), "{errors}");
    let valid = json(&bench.stdin("first", "GC"))["cni.dev/valid-attachments"].clone();
    assert_eq!(valid[0]["containerID"], "another");
}

#[test]
fn a_damaged_file_is_reported_and_no_running_container_is_deleted_for_it() {
    let bench = Bench::new();
    bench.file("one.conflist", ONE);
    bench.plugin("first", ANSWER);
    bench.done("add", "one", &[]);
    let file = bench.cached_files().remove(0);
    std::fs::write(&file, "{").unwrap();
    bench.calls();
    for arguments in ["gc one --dry-run", "gc one"] {
        let (_, errors) = bench.says(0, arguments);
        assert!(errors.starts_with("keeping one/cnitool-") && errors.contains("gc --all"), "{errors}");
        assert!(errors.contains(file.to_str().unwrap()) && errors.contains("hint: "), "{errors}");
    }
    assert_eq!(bench.calls(), ["GC first"]);
    let valid = json(&bench.stdin("first", "GC"))["cni.dev/valid-attachments"].clone();
    assert_eq!((bench.cached_files(), &valid[0]["ifname"]), (vec![file], &"eth0".into()));
    let (_, errors) = bench.says(0, "gc one --all");
    assert!(errors.contains("deleting one/cnitool-"), "{errors}");
    assert_eq!((bench.calls(), bench.cached_files().len()), (vec!["DEL first".to_owned(), "GC first".to_owned()], 0));
}

#[test]
fn a_failure_and_what_was_done_are_one_document() {
    let (bench, _held) = three();
    bench.plugin("second", r#"DEL|GC) echo '{"code": 11, "msg": "not now"}'; exit 1 ;; ADD) echo '{}' ;;"#);
    bench.file("one.conflist", &ONE.replace("}]", r#"}, {"type": "second"}, {"type": "absent"}]"#));
    let (printed, _) = bench.says(1, "--json gc one --within-pid-namespace");
    let document = json(&printed);
    assert_eq!(document["attachments"].as_array().unwrap().len(), 3, "{document}");
    assert_eq!(document["error"]["plugins"][0]["code"], 11, "{document}");
    let (printed, _) = bench.says(1, "--json version one");
    assert!(json(&printed)["plugins"].is_array() && json(&printed)["error"]["message"].is_string(), "{printed}");
}

#[test]
fn a_network_with_disable_gc_loses_nothing() {
    let (bench, _held) = three();
    bench.file("one.conflist", &ONE.replace(r#""name""#, r#""disableGC": true, "name""#));
    for arguments in ["gc one --within-pid-namespace", "gc one --all"] {
        let (_, errors) = bench.says(0, arguments);
        assert_eq!((errors.matches("keeping").count(), errors.matches("`disableGC`").count()), (3, 3), "{errors}");
    }
    assert_eq!((bench.calls(), bench.cached_files().len()), (vec![], 3));
}

#[test]
fn an_attachment_is_deleted_without_a_valid_configuration() {
    for (today, why) in [(None, "no net configurations found"), (Some("{"), "unexpected end of file")] {
        let (bench, _held) = three();
        std::fs::remove_file(bench.path("net.d/one.conflist")).unwrap();
        today.into_iter().for_each(|text| bench.file("one.conflist", text));
        let (_, errors) = bench.says(0, &format!("del one {}", bench.path("lives").display()));
        assert!(errors.contains(why) && errors.contains("the cached configuration is used"), "{errors}");
        bench.says(0, "gc one --all");
        assert_eq!(bench.calls(), ["DEL first", "DEL first", "DEL first", "GC first"]);
        assert_eq!(bench.cached_files().len(), 0);
        assert!(bench.says(1, "gc one --all").1.contains(why), "nothing is kept any more");
    }
}
