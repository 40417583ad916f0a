//! The findings of a validator in the files of a directory, with plugins that are functions in this process.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use cnikit_libcni::{PluginKey, PluginKeys, RoutedSubnet, Severity, Validator};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::node::{Node, names};

/// A validator of these files, with the keys of two plugins and of an IPAM plugin.
fn validator(dir: &TempDir, files: &[(&str, &str)]) -> Validator {
    for (name, text) in files {
        let file = dir.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let keys = |plugin: &str, keys: &[&str]| PluginKeys {
        plugin: plugin.into(),
        keys: keys.iter().map(|key| (*key).into()).collect(),
    };
    let plugins = vec![
        keys("first", &["bridge", "mtu", "runtimeConfig.mac", "runtimeConfig.dns"]),
        keys("second", &["table"]),
        keys("third", &["type", "subnet", "ranges", "rangeStart", "runtimeConfig.ips"]),
    ];
    Validator { dir: dir.path().to_owned(), plugins, ..Validator::default() }
}

/// The findings, each as one line with the name of its file alone.
fn found(validator: &Validator) -> Vec<String> {
    let dir = format!("{}/", validator.dir.display());
    validator.validate().unwrap().iter().map(|finding| finding.to_string().replace(&dir, "")).collect()
}

/// The findings of a directory with one file.
fn found_in(name: &str, text: &str) -> Vec<String> {
    let dir = TempDir::new().unwrap();
    found(&validator(&dir, &[(name, text)]))
}

/// A list with these plugins.
fn list(plugins: &str) -> String {
    format!(r#"{{"cniVersion": "1.1.0", "name": "net", "plugins": [{plugins}]}}"#)
}

#[test]
fn every_key_of_a_list_and_of_its_plugins_is_known_or_told() {
    let unknown = "a list has no such key; its keys are case-sensitive";
    let cases = [
        (list(r#"{"type": "first", "mtu": 1500, "capabilities": {"mac": true}}"#), vec![]),
        (list(r#"{"type": "none", "anything": 1}"#), vec![]),
        (
            r#"{"cniversion": "1.1.0", "name": "net", "plugins": [{"type": "none"}]}"#.to_owned(),
            vec![format!("warning: n.conflist:1:2: cniversion: {unknown}; hint: did you mean `cniVersion`?")],
        ),
        (
            r#"{"cniVersion": "1.1.0", "name": "net", "disableChek": true, "zzzz": 1, "plugins": [{"type": "none"}]}"#.to_owned(),
            vec![
                format!("warning: n.conflist:1:40: disableChek: {unknown}; hint: did you mean `disableCheck`?"),
                format!("warning: n.conflist:1:61: zzzz: {unknown}; hint: remove it, or correct its name"),
            ],
        ),
        (
            list(r#"{"type": "first", "mut": 1, "runtimeConfig": {}}"#),
            vec![
                "warning: n.conflist:1:70: plugins[0].mut: first has no such key; hint: did you mean `mtu`?".to_owned(),
                "warning: n.conflist:1:80: plugins[0].runtimeConfig: only a runtime sets it: it is not passed to the plugin; hint: remove it"
                    .to_owned(),
            ],
        ),
        (
            list(r#"{"type": "none", "ipam": {"type": "third", "subnett": "10.1.0.0/16"}}"#),
            vec!["warning: n.conflist:1:95: plugins[0].ipam.subnett: third has no such key; hint: did you mean `subnet`?".to_owned()],
        ),
        (
            list(r#"{"type": "none", "ipam": {"type": 7}}"#),
            vec!["error: n.conflist:1:78: plugins[0].ipam.type: expected a text, found 7; hint: write the name of an IPAM plugin".to_owned()],
        ),
        (list(r#"{"type": "none", "ipam": {"type": null}}"#), vec![]),
        (
            // The runtime passes it, so it is not what was meant.
            list(r#"{"type": "first", "mac": "02:00:00:00:00:01"}"#),
            vec!["warning: n.conflist:1:70: plugins[0].mac: first has no such key; hint: remove it, or correct its name".to_owned()],
        ),
        (
            list(r#"{"type": "first", "mtu": 1, "mtu": 2}"#),
            vec!["error: n.conflist:1:80: plugins[0].mtu: is given more than once; hint: remove all but one of them".to_owned()],
        ),
        (
            r#"{"cniVersion": "1.1.0", "name": "net", "name": "net", "plugins": [{"type": "none"}]}"#.to_owned(),
            vec!["warning: n.conflist:1:40: name: is given more than once; hint: remove all but one of them".to_owned()],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(found_in("n.conflist", &text), expected, "{text}");
    }
}

#[test]
fn a_text_that_is_not_json_is_told_with_its_place() {
    let whole = "complete the file; a program should write it under another name in this directory, then rename it";
    let cases = [
        ("", format!("1:1: the file is empty; hint: {whole}")),
        (" \n", format!("2:1: the file is empty; hint: {whole}")),
        ("{\n\"name\":", format!("2:7: unexpected end of file; hint: {whole}")),
        ("\u{feff}{}", "1:1: the file begins with a byte order mark; hint: save it as UTF-8 without one".to_owned()),
        ("{\n  name: 1}", "2:3: not JSON: key must be a string; hint: correct it at that place".to_owned()),
    ];
    for (text, expected) in cases {
        assert_eq!(found_in("n.conflist", text), [format!("error: n.conflist:{expected}")], "{text:?}");
    }
    let large = found_in("n.conflist", &format!(r#"{{"plugins": [{}0]}}"#, "0,".repeat(600_000)));
    let expected =
        "error: n.conflist:1:1: the document has more than 524288 values, which is the limit; hint: make it smaller";
    assert_eq!(large, [expected]);
}

#[test]
fn everything_that_makes_a_network_invalid_is_told_at_once() {
    let all = r#"{"cniVersion": 1, "name": "../up", "disableCheck": 3, "disableGC": "x",
"plugins": [{"type": 1, "capabilities": {"mac": 1, "dns": "x", "ips": true}}, 5, {"capabilities": []}, {"type": "t"}]}"#;
    let single = r#"{"cniVersion": "1.1.0", "name": "net", "type": 1, "capabilities": {"mac": 1}}"#;
    let cases: [(&str, &str, &[&str]); 8] = [
        (
            "n.conflist",
            all,
            &[
                "1:2: cniVersion: is not a text",
                "1:19: name: invalid characters found in network name: \"../up\"",
                "1:36: disableCheck: is not true or false",
                "1:55: disableGC: is not true or false",
                "2:14: plugins[0].type: is not a text",
                "2:42: plugins[0].capabilities.mac: is not true or false",
                "2:52: plugins[0].capabilities.dns: is not true or false",
                "2:79: plugins[1]: is not an object",
                "2:82: plugins[2].type: missing 'type'",
                "2:83: plugins[2].capabilities: is not an object",
            ],
        ),
        ("n.conflist", r#"{"plugins": []}"#, &["1:1: name: is missing", "1:2: plugins: no plugins in list"]),
        ("n.conflist", r#"{"name": "net", "plugins": {}}"#, &["1:17: plugins: is not a list"]),
        (
            "n.conflist",
            r#"{"cniVersions": [1], "name": "net", "plugins": [{"type": "t"}]}"#,
            &["1:18: cniVersions[0]: is not a text"],
        ),
        (
            "n.conflist",
            r#"{"disableGC": "False", "disableCheck": "TRUE", "name": "net", "plugins": [{"type": "t"}]}"#,
            &[],
        ),
        ("n.conf", r#"{"name": "net", "plugins": {}}"#, &["1:1: type: missing 'type'"]),
        ("n.conf", single, &["1:40: type: is not a text", "1:68: capabilities.mac: is not true or false"]),
        (
            "n.conflist",
            single,
            &[
                "1:1: plugins: no plugin configs found",
                "1:40: type: a list has no such key; its keys are case-sensitive",
                "1:51: capabilities: a list has no such key; its keys are case-sensitive",
            ],
        ),
    ];
    for (name, text, expected) in cases {
        let found = found_in(name, text);
        let told: Vec<&str> = found.iter().map(|finding| finding.split_once("; hint: ").unwrap().0).collect();
        let told: Vec<&str> = told.iter().map(|text| text.split_once(&format!("{name}:")).unwrap().1).collect();
        assert_eq!(told, expected, "{name}: {text}");
    }
}

#[test]
fn each_key_has_a_hint_of_its_own() {
    let hint_of = |name: &str, text: &str| found_in(name, text)[0].split_once("; hint: ").unwrap().1.to_owned();
    let of_name = "give the network a name of letters, digits, `_`, `.` and `-`, a letter or digit first";
    let of_type = "name the plugin's file on CNI_PATH";
    let of_list = "this is a list: rename the file to end in .conflist";
    let cases = [
        ("n.conflist", r#"{"name": "/", "plugins": [{"type": "t"}]}"#, of_name),
        ("n.conflist", r#"{"name": "n", "plugins": []}"#, "list at least one plugin, as an object with a `type`"),
        ("n.conflist", r#"{"name": "n", "plugins": [{}]}"#, of_type),
        (
            "n.conflist",
            r#"{"name": "n", "disableGC": 1, "plugins": [{"type": "t"}]}"#,
            "write true or false, or leave it out",
        ),
        (
            "n.conflist",
            r#"{"name": "n", "cniVersion": 1, "plugins": [{"type": "t"}]}"#,
            "write a version such as \"1.1.0\"",
        ),
        ("n.conf", r#"{"name": "n", "type": 1}"#, of_type),
        ("n.conf", r#"{"name": "n", "plugins": []}"#, of_list),
        ("n.conf", r#"{"name": "/", "plugins": []}"#, of_list),
        // A plugin may have a key of this name.
        ("n.conf", r#"{"name": "n", "plugins": [], "type": 1}"#, of_type),
    ];
    for (name, text, hint) in cases {
        assert_eq!(hint_of(name, text), hint, "{name}: {text}");
    }
    let of_others = found_in("n.conf", r#"{"name": "n", "plugins": [], "cniVersion": 1}"#);
    assert!(of_others[1].ends_with("; hint: write a version such as \"1.1.0\""), "{of_others:?}");
}

/// Puts something at a path.
type Make = fn(&Path);

#[test]
fn what_is_no_file_is_told_by_its_kind() {
    let other = "; hint: remove it, or give it another name";
    let cases: [(&str, Make, String); 7] = [
        ("a directory", |path| fs::create_dir(path).unwrap(), format!("is a directory, not a file{other}")),
        ("a FIFO", |path| mkfifo(path, Mode::S_IRWXU).unwrap(), format!("is a FIFO, not a file{other}")),
        ("a socket", |path| drop(UnixListener::bind(path).unwrap()), format!("is a socket, not a file{other}")),
        ("a device", |path| symlink("/dev/null", path).unwrap(), format!("is a device, not a file{other}")),
        (
            "a link to nothing",
            |path| symlink("/nonexistent/x", path).unwrap(),
            "is a link to /nonexistent/x, which is not there; hint: create the target of the link, or remove the link"
                .into(),
        ),
        (
            "a link to itself",
            |path| symlink(path, path).unwrap(),
            "cannot be read: Too many levels of symbolic links (os error 40); hint: remove it, or put a file there"
                .into(),
        ),
        (
            "a file that is too large",
            |path| File::create(path).unwrap().set_len((16 << 20) + 1).unwrap(),
            format!("is larger than 16 MiB: plugins do not read longer configurations{other}"),
        ),
    ];
    for (what, make, expected) in cases {
        let dir = TempDir::new().unwrap();
        make(&dir.path().join("n.conf"));
        assert_eq!(found(&validator(&dir, &[])), [format!("error: n.conf: {expected}")], "{what}");
    }
    // The longest file is read; its zeros are not JSON.
    let dir = TempDir::new().unwrap();
    File::create(dir.path().join("n.conf")).unwrap().set_len(16 << 20).unwrap();
    assert!(found(&validator(&dir, &[]))[0].starts_with("error: n.conf:1:1: not JSON: "));
    let gone = validator(&dir, &[]).validate_file(&dir.path().join("gone.conf")).unwrap();
    assert!(gone[0].to_string().ends_with("gone.conf: is not there any more; hint: try again"));
}

#[test]
fn a_single_plugin_has_its_keys_at_the_top() {
    assert_eq!(found_in("n.conf", r#"{"cniVersion": "1.1.0", "name": "net", "type": "first"}"#), [""; 0]);
    let text = r#"{"cniVersion": "1.1.0", "name": "net", "type": "first", "mtu": 1, "mtu": 2, "bridg": "b"}"#;
    let expected = [
        "error: n.conf:1:67: mtu: is given more than once; hint: remove all but one of them",
        "warning: n.conf:1:77: bridg: first has no such key; hint: did you mean `bridge`?",
    ];
    assert_eq!(found_in("n.conf", text), expected);
}

#[test]
fn a_capability_has_a_plugin_that_declares_it_and_one_that_supports_it() {
    let declared = |capabilities: &str, ipam: &str| {
        list(&format!(r#"{{"type": "first", "capabilities": {{{capabilities}}}{ipam}}}"#))
    };
    let unsupported =
        "plugins[0].capabilities.ips: first does not support this capability; hint: remove it, or correct its name";
    let cases = [
        (declared(r#""mac": true"#, ""), vec![]),
        (declared(r#""ips": false"#, ""), vec![]),
        (declared(r#""ips": true"#, ""), vec![format!("warning: n.conflist:1:87: {unsupported}")]),
        (declared(r#""ips": true"#, r#", "ipam": {"type": "third"}"#), vec![]),
        (declared(r#""zzzz": true"#, r#", "ipam": {"type": "none"}"#), vec![]),
        (
            declared(r#""mack": true"#, r#", "ipam": {"type": "third"}"#),
            vec!["warning: n.conflist:1:87: plugins[0].capabilities.mack: first does not support this capability; hint: did you mean `mac`?".to_owned()],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(found_in("n.conflist", &text), expected, "{text}");
    }
    let dir = TempDir::new().unwrap();
    let capabilities = vec!["mac".to_owned(), "dns".to_owned()];
    let files = [("n.conflist", &*declared(r#""mac": true"#, ""))];
    let findings = found(&Validator { capabilities, ..validator(&dir, &files) });
    let expected = r#"warning: n.conflist:1:40: plugins: no plugin of the network takes the capability "dns", which the runtime will pass; hint: add "capabilities": {"dns": true} to the plugin that needs it"#;
    assert_eq!(findings, [expected]);
}

#[test]
fn each_plugin_is_asked_once_for_its_versions_and_told_where_it_is_named() {
    let node = Node::new();
    let dir = TempDir::new().unwrap();
    let files = [
        ("a.conflist", &*list(r#"{"type": "first", "ipam": {"type": "third"}}, {"type": "first"}, {"type": "secnd"}"#)),
        ("b.conflist", r#"{"cniVersion": "0.4.0", "name": "b", "plugins": [{"type": "first"}]}"#),
        ("c.conf", r#"{"cniVersion": "1.1.0", "name": "c", "type": "second"}"#),
        ("d.conf", r#"{"cniVersion": "1.1.0", "name": "d", "type": "zzzzzz"}"#),
    ];
    node.prints("VERSION third", "hello");
    node.fails("VERSION second", 42, "no");
    let findings = found(&Validator { runtime: Some(node.runtime.clone()), ..validator(&dir, &files) });
    let calls = node.calls();
    let mut called = names(&calls);
    called.sort_unstable();
    assert_eq!(called, ["VERSION first", "VERSION second", "VERSION third"]);
    assert_eq!(findings.len(), 5, "{findings:?}");
    let begins = [
        "error: a.conflist:1:79: plugins[0].ipam.type: third's answer to VERSION cannot be read: ",
        "error: a.conflist:1:118: plugins[2].type: failed to find plugin \"secnd\" in path [/nonexistent]; hint: did you mean `second`? If not, ",
        "error: b.conflist:1:51: plugins[0].type: first does not support version 0.4.0, only 0.3.1, 1.0.0, 1.1.0; hint: set `cniVersion` to one of these",
        "error: c.conf:1:38: type: no; hint: find out why second fails",
        "error: d.conf:1:38: type: failed to find plugin \"zzzzzz\" in path [/nonexistent]; hint: install it there",
    ];
    for (finding, begin) in findings.iter().zip(begins) {
        assert!(finding.starts_with(begin), "{finding}");
    }
    let validator = Validator { runtime: Some(node.runtime.clone()), ..validator(&dir, &[]) };
    let codes: Vec<u32> = validator.validate().unwrap().iter().map(|finding| finding.error.code).collect();
    assert_eq!(codes, [6, 7, 1, 42, 7]);
}

#[test]
fn a_plugin_of_a_known_name_that_is_not_installed_is_not_said_to_mean_itself() {
    let node = Node::new();
    let dir = TempDir::new().unwrap();
    let files = [("a.conflist", &*list(r#"{"type": "bridge"}"#))];
    let mut validator = Validator { runtime: Some(node.runtime.clone()), ..validator(&dir, &files) };
    validator.plugins.push(PluginKeys { plugin: "bridge".into(), keys: Vec::new() });
    let findings = found(&validator);
    assert!(
        findings[0].contains("failed to find plugin \"bridge\"") && !findings[0].contains("did you mean"),
        "{findings:?}"
    );
}

#[test]
fn the_second_network_of_a_name_is_told_and_lists_come_first() {
    let single = |name: &str| format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "type": "none"}}"#);
    let dir = TempDir::new().unwrap();
    let files = [
        ("10-a.conf", &*single("net")),
        ("20-a.conflist", &*list(r#"{"type": "none"}"#)),
        ("30-b.conf", &*single("other")),
        // Not a network that could be found.
        ("40-c.conf", r#"{"cniVersion": 1, "name": "other", "type": "none"}"#),
    ];
    let findings = found(&validator(&dir, &files));
    let expected = "warning: 10-a.conf:1:25: name: network \"net\" is also in 20-a.conflist, which is found first; \
                    hint: remove one of the files, or give its network another name";
    assert_eq!(findings[0], expected);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[1].starts_with("error: 40-c.conf:1:2: cniVersion: "), "{findings:?}");
}

#[test]
fn plugins_in_other_files_belong_to_their_list_and_are_told_there() {
    let dir = TempDir::new().unwrap();
    let files = [
        ("n.conflist", r#"{"cniVersion": "1.1.0", "name": "net"}"#),
        ("net/10-a.conf", r#"{"type": "first", "bridg": "b"}"#),
        ("net/20-b.conf", "{"),
        ("alone.conflist", r#"{"cniVersion": "1.1.0", "name": "net2", "loadOnlyInlinedPlugins": true}"#),
        ("net2/10-a.conf", r#"{"type": "first", "bridg": "b"}"#),
    ];
    let findings = found(&validator(&dir, &files));
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert!(
        findings[0].starts_with("error: alone.conflist:1:1: ") && findings[0].contains("no plugin"),
        "{findings:?}"
    );
    assert_eq!(findings[1], "warning: net/10-a.conf:1:19: bridg: first has no such key; hint: did you mean `bridge`?");
    assert!(findings[2].starts_with("error: net/20-b.conf:1:1: "), "{findings:?}");
    let empty = found_in("n.conflist", r#"{"cniVersion": "1.1.0", "name": "net"}"#);
    assert!(empty.len() == 1 && empty[0].starts_with("error: n.conflist:1:1: "), "{empty:?}");
}

#[test]
fn addresses_that_two_networks_assign_or_another_route_leads_to_are_told() {
    let ranges = |name: &str, link: &str, subnet: &str| {
        format!(
            r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "first", "bridge": "{link}",
 "ipam": {{"type": "host-local", "subnet": "{subnet}"}}}}]}}"#
        )
    };
    let dir = TempDir::new().unwrap();
    let files = [
        ("a.conflist", &*ranges("a", "cni0", "10.1.0.0/16")),
        ("b.conflist", &*ranges("b", "cni1", "10.1.4.0/24")),
        ("c.conflist", &*ranges("c", "cni2", "10.2.0.0/24")),
    ];
    let route = |network: &str, device: &str| RoutedSubnet { network: network.parse().unwrap(), device: device.into() };
    let routes = vec![route("0.0.0.0/0", "eth0"), route("10.1.0.0/16", "cni0"), route("10.2.0.0/16", "tun0")];
    let findings = found(&Validator { routes, ..validator(&dir, &files) });
    let expected = [
        "warning: b.conflist:2:33: plugins[0].ipam.subnet: 10.1.4.0/24 overlaps 10.1.0.0/16 of network \"a\" in a.conflist; hint: give each network addresses of its own",
        "warning: c.conflist:2:33: plugins[0].ipam.subnet: 10.2.0.0/24 overlaps the host's route to 10.2.0.0/16 over tun0; hint: give the network addresses that no other network uses",
    ];
    assert_eq!(findings, expected);
    // A network that cannot be used assigns nothing.
    fs::write(dir.path().join("a.conflist"), ranges("a", "cni0", "10.1.0.0/16").replace("\"1.1.0\"", "1")).unwrap();
    let findings = found(&validator(&dir, &[]));
    assert!(findings.len() == 1 && findings[0].starts_with("error: a.conflist:1:2: cniVersion"), "{findings:?}");
}

#[test]
fn one_file_has_twenty_findings_at_most() {
    for (count, told) in [(19, 19), (20, 20), (21, 20)] {
        let keys: Vec<String> = (0..count).map(|number| format!(r#", "zzzz{number}": 1"#)).collect();
        let keys = keys.concat();
        let plugin = list(&format!(r#"{{"type": "first"{keys}}}"#));
        assert_eq!(found_in("n.conflist", &plugin).len(), told);
        let in_list = format!(r#"{{"cniVersion": "1.1.0", "name": "net", "plugins": [{{"type": "none"}}]{keys}}}"#);
        assert_eq!(found_in("n.conflist", &in_list).len(), told);
    }
}

#[test]
fn errors_of_all_kinds_together_are_twenty_at_most() {
    let keys = |count: usize| (0..count).map(|number| format!(r#", "zzzz{number}": 1"#)).collect::<Vec<_>>().concat();
    let text = format!(
        r#"{{"cniVersion": "1.1.0", "name": "net"{}, "plugins": [{{"type": "first"{}}}]}}"#,
        keys(15),
        keys(15)
    );
    assert_eq!(found_in("n.conflist", &text).len(), 20);
}

#[test]
fn a_value_of_a_wrong_type_and_a_missing_key_are_told_with_their_path() {
    let dir = TempDir::new().unwrap();
    let plugins = r#"{"type": "first", "mtu": "x", "ipam": {"type": "third", "rangeStart": 5}}"#;
    let mut validator = validator(&dir, &[("n.conflist", &*list(plugins))]);
    let typed =
        |path: &str, value: &str, is_required| PluginKey { value: value.parse().unwrap(), is_required, ..path.into() };
    validator.plugins[0].keys = vec![typed("mtu", "integer", false), typed("bridge", "", true)];
    validator.plugins[2].keys = vec![typed("rangeStart", "string: address", false)];
    let expected = [
        "1:52: plugins[0].bridge: is missing; hint: correct it: see the documentation of first",
        "1:70: plugins[0].mtu: ",
        "1:108: plugins[0].ipam.rangeStart: ",
    ];
    let findings = found(&validator);
    assert_eq!(findings.len(), expected.len(), "{findings:?}");
    for (finding, begin) in findings.iter().zip(expected) {
        assert!(finding.starts_with(&format!("error: n.conflist:{begin}")), "{findings:?}");
    }
}

#[test]
fn one_file_can_be_validated_alone() {
    let dir = TempDir::new().unwrap();
    let validator = validator(
        &dir,
        &[
            ("a.conflist", &*list(r#"{"type": "first", "mut": 1}"#)),
            ("b.conflist", &*list(r#"{"type": "first"}"#)),
            ("c.txt", "{"),
        ],
    );
    let findings = validator.validate_file(&dir.path().join("a.conflist")).unwrap();
    assert_eq!((findings.len(), findings[0].severity), (1, Severity::Warning));
    assert_eq!(validator.validate_file(&dir.path().join("b.conflist")).unwrap(), []);
    let error = validator.validate_file(&dir.path().join("c.txt")).unwrap_err().to_string();
    assert!(error.contains("runtimes read only files that end in .conflist, .conf or .json"), "{error}");
    let error = validator.validate_file(&dir.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("hint: rename the file"), "{error}");
    let missing = Validator { dir: dir.path().join("c.txt"), ..validator };
    assert!(missing.validate().is_err());
}
