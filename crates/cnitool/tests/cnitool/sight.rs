//! `list`, `show`, `ipam usage` and `netns`, as text and as JSON.

use cnikit_netns::make;

use crate::bench::Bench;

const NET: &str = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [
    {"type": "bridge", "bridge": "cni-t0", "isGateway": true, "ipMasq": true, "ipam": {
     "type": "host-local", "dataDir": "DIR/leases", "ranges": [
        [{"subnet": "10.94.0.0/24", "rangeStart": "10.94.0.5", "rangeEnd": "10.94.0.8"}], [{"subnet": "fd00:94::/64"}]]}}]}"#;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.file("net.conflist", NET);
    for name in ["c1", "c2"] {
        let path = bench.namespace(name);
        bench.says(0, &format!("add net {}", path.display()));
    }
    bench
}

#[test]
fn list_shows_each_attachment_with_its_namespace_and_link() {
    let bench = bench();
    let (printed, errors) = bench.says(0, "list");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("NETWORK") && errors.is_empty(), "{printed}");
    let first = lines.iter().find(|line| line.contains("10.94.0.5/24 fd00:94::2/64")).expect(&printed);
    assert!(first.contains("present") && first.ends_with("attached"), "{printed}");
    assert!(!printed.contains('\x1b'), "no colours where there is no terminal");
    assert!(bench.says(0, "list --color always").0.contains("\x1b[1mNETWORK"));

    let live = bench.json("list --live");
    let one = &live["attachments"][0];
    assert_eq!((&one["network"], &one["ifname"], &one["state"]), (&"net".into(), &"eth0".into(), &"attached".into()));
    assert_eq!((&one["netns"]["state"], &one["link"]), (&"present".into(), &"up".into()));
    assert!(one["netns"]["cookie"].is_u64() && one["ageSeconds"].is_u64() && one["file"].is_string(), "{one}");
    assert!(one["since"].as_str().unwrap().ends_with('Z'));

    let path = one["netns"]["path"].as_str().unwrap().to_owned();
    let name = path.rsplit('/').next().unwrap();
    cnikit_netns::Netns::open(&path).unwrap().enter(|_| crate::bench::stdout_of("ip link delete eth0")).unwrap();
    assert_eq!(bench.json("list --live")["attachments"][0]["link"], "gone");
    make::remove(&bench.path(name)).unwrap();
    assert_eq!(bench.json("list")["attachments"][0]["netns"]["state"], "gone");
    bench.namespace(name);
    let other = bench.json("list --live");
    assert_eq!(other["attachments"][0]["link"], "replaced");
    assert_eq!(bench.json("list --network other")["attachments"], crate::bench::json("[]"));
}

/// containerd 1.6 does not cache the path of the namespace, but the result has it.
#[test]
fn show_takes_the_namespace_from_the_result_if_the_cache_has_none() {
    let bench = Bench::new();
    bench.file("net.conflist", NET);
    let path = bench.namespace("c1").display().to_string();
    bench.says(0, &format!("add net {path}"));
    bench.cache_as_old_libcni();
    for command in ["show", "show c1", &format!("show {path}")] {
        let (tree, _) = bench.says(0, command);
        assert!(
            tree.contains(&format!("namespace {path} (present)")) && tree.contains("eth0 (veth"),
            "{command}: {tree}"
        );
    }
    assert_eq!(bench.json("show")["attachments"][0]["netns"]["state"], "present");
}

#[test]
fn show_has_everything_from_the_namespace_to_the_rules_of_the_host() {
    let bench = bench();
    let id = bench.json("list")["attachments"][0]["container"].as_str().unwrap().to_owned();
    let (tree, _) = bench.says(0, &format!("show {id}"));
    for part in [
        "namespace ",
        "eth0 (veth",
        "address 10.94.0.",
        "host end veth",
        "port of cni-t0 (bridge",
        "rules",
        "cached result",
    ] {
        assert!(tree.contains(part), "{part}: {tree}");
    }
    let document = bench.json(&format!("show {id}"));
    let one = &document["attachments"][0];
    let peer = one["peer"]["name"].as_str().unwrap();
    assert!(bench.host_says("ip -o link show master cni-t0").contains(peer), "{peer}");
    assert_eq!(one["bridge"]["name"], "cni-t0");
    assert_eq!(one["interface"]["name"], "eth0");
    let address = one["addresses"][0].as_str().unwrap().split_once('/').unwrap().0.to_owned();
    let rules = one["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule.as_str().unwrap().contains("MASQUERADE")), "{rules:?}");

    let path = one["netns"]["path"].as_str().unwrap();
    for way in [path, path.rsplit('/').next().unwrap(), &address, &id[..id.len() - 1]] {
        assert_eq!(bench.json(&format!("show {way}"))["attachments"][0]["container"], id.as_str(), "{way}");
    }
    assert_eq!(bench.json("show")["attachments"].as_array().unwrap().len(), 2, "without an id all are shown");
    assert!(bench.says(1, "show cnitool-").1.contains("hint: write more of it"));
    assert!(bench.says(1, "show unknown").1.contains("container id, namespace or address \"unknown\""));
}

#[test]
fn usage_counts_addresses_by_range_and_names_each_holder() {
    let bench = bench();
    let (printed, _) = bench.says(0, "ipam usage --network net");
    let range = printed.lines().find(|line| line.contains("10.94.0.5-10.94.0.8")).unwrap();
    assert_eq!(range.split_whitespace().skip(2).collect::<Vec<_>>(), ["2", "2", "0", "0"], "{printed}");
    assert_eq!(printed.lines().filter(|line| line.contains("held")).count(), 4, "{printed}");
    assert_eq!(bench.says(0, "ipam usage --network net --summary").0.lines().count(), 3);

    let document = bench.json("ipam usage --network net");
    let net = &document["networks"][0];
    let range = &net["ranges"][0];
    assert_eq!((&range["size"], &range["taken"], &range["free"]), (&4.into(), &2.into(), &2.into()));
    assert_eq!(range["gateway"], "10.94.0.1");
    let one = &net["addresses"][0];
    assert_eq!((&one["address"], &one["state"], &one["ifname"]), (&"10.94.0.5".into(), &"held".into(), &"eth0".into()));
    assert!(one["since"].is_string() && one["container"].as_str().unwrap().starts_with("cnitool-"));
    assert_eq!(
        bench.says(0, "ipam leaks --network net --within-pid-namespace").0,
        "no address is leaked or suspected\n"
    );
}

#[test]
fn a_namespace_is_made_and_removed_by_name_unless_a_container_is_attached() {
    let bench = Bench::new();
    bench.file("lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    let path = bench.path("named");
    let document = bench.json(&format!("netns add {}", path.display()));
    assert!(document["path"] == path.to_str().unwrap() && document["cookie"].is_u64(), "{document}");
    bench.says(0, &format!("add lo {} -i lo", path.display()));
    let (_, errors) = bench.says(1, &format!("netns del {}", path.display()));
    assert!(errors.contains("attached there: lo/cnitool-"), "{errors}");
    bench.says(0, &format!("del lo {} -i lo", path.display()));
    let (printed, _) = bench.says(0, &format!("netns del --dry-run {}", path.display()));
    assert_eq!(printed, format!("would remove {}\n", path.display()));
    assert!(path.exists());
    let (_, errors) = bench.says(0, &format!("netns del {}", path.display()));
    assert_eq!(errors, format!("removing {}\n", path.display()));
    assert!(!path.exists());
    bench.says(1, &format!("netns del {}", path.display()));
    bench.says(0, "netns list");
}

#[test]
fn a_relative_path_of_a_namespace_is_resolved_against_the_working_directory() {
    let bench = Bench::new();
    let here = std::env::current_dir().unwrap();
    let name = format!("target-of-test-{}", std::process::id());
    let printed = bench.says(0, &format!("netns add ./{name}")).0;
    assert_eq!(printed, format!("{}\n", here.join(&name).display()), "absolute, so that a runtime finds it");
    bench.says(0, &format!("netns del ./{name}"));
    assert!(!here.join(&name).exists());
}

#[test]
fn the_bare_name_of_a_namespace_is_answered_with_its_path() {
    let bench = Bench::new();
    bench.file("lo.conf", r#"{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}"#);
    let name = format!("bare-{}", std::process::id());
    bench.says(0, &format!("netns add {name}"));
    for verb in ["add", "check", "del", "plan"] {
        let (_, errors) = bench.says(1, &format!("{verb} lo {name} -i lo"));
        assert!(errors.contains(&format!("; hint: the path of that namespace is /run/netns/{name}")), "{errors}");
    }
    bench.says(0, &format!("netns del {name}"));
}

#[test]
fn show_says_that_there_is_nothing_to_show() {
    assert_eq!(Bench::new().says(0, "show").0, "no attachment is in the cache\n");
}

#[test]
fn a_damaged_file_is_listed_as_unreadable() {
    let bench = bench();
    std::fs::write(&bench.cached_files()[0], "{").unwrap();
    let (printed, _) = bench.says(0, "list");
    assert!(printed.contains("unreadable") && printed.contains("attached"), "{printed}");
    assert!(bench.says(0, "list --network net").0.contains("unreadable"), "its name says whose it may be");
    assert!(!bench.says(0, "list --network ne").0.contains("unreadable"));
}
