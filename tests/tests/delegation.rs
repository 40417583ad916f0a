//! A plugin that delegates stores the delegate's configuration until DEL has succeeded, and affects no other attachment meanwhile.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject};
use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::world::undisturbed;
use cnikit_tests::{bin, flannel, subnet_env, traced};
use serde_json::{Value, json};

/// The stored files on a host, by name.
fn stored_files(host: &Host) -> Vec<String> {
    let Ok(entries) = fs::read_dir(host.dir().join("flannel")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Changes our stored file to upstream's format, which does not name the interface.
fn unmark(file: &Path) {
    let mut bare = read(file);
    bare.as_object_mut().unwrap().remove("cnikit").unwrap();
    fs::write(file, bare.to_string()).unwrap();
}

/// flannel with a shell script as delegate, which writes each verb, interface and configuration into files in its directory.
fn over_script(host: &Host, script: &str) -> Subject {
    let dir = host.dir().join("plugins");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(bin().join("flannel"), dir.join("flannel")).unwrap();
    let path = dir.join("mine");
    let text =
        format!("#!/bin/sh\ncat >$0.stdin\necho $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME >>$0.called\n{script}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let subject = flannel().with("delegate", json!({"type": "mine", "mine": 7})).at(host.dir());
    subject.in_directory(dir)
}

fn called(subject: &Subject) -> Vec<String> {
    fs::read_to_string(subject.bin.join("mine.called")).unwrap_or_default().lines().map(str::to_owned).collect()
}

const ANSWER: &str =
    r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.9.9/24"}],"more":1}'"#;

#[test]
fn the_delegate_gets_the_runtimes_input_and_its_result_is_passed_on() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = over_script(&host, &format!("echo $CNI_ARGS >$0.args; {ANSWER}"));
    let of_runtime = [("runtimeConfig", json!({"mac": "x"})), ("args", json!({"cni": {"ips": []}}))];
    let env = [("CNI_ARGS", "K8S_POD_NAME=p;ANY=thing")];
    let conf = of_runtime.iter().fold(subject.clone(), |subject, (key, value)| subject.with(key, value.clone())).conf;
    let output = subject.call_raw(&host, "ADD", "c-one", &container.path(), conf.to_string().as_bytes(), &env).ok();
    assert_eq!((&output["ips"][0]["address"], &output["more"]), (&json!("10.9.9.9/24"), &json!(1)), "{output}");
    assert_eq!(fs::read_to_string(subject.bin.join("mine.args")).unwrap().trim(), "K8S_POD_NAME=p;ANY=thing");
    let given = read(subject.bin.join("mine.stdin"));
    for (key, value) in of_runtime.iter().chain(&[("mine", json!(7)), ("name", json!("testnet")), ("mtu", json!(1450))])
    {
        assert_eq!(given[key], *value, "{given}");
    }
    assert!(given.get("cnikit").is_none() && given.get("isGateway").is_none() && given["ipam"]["type"] == "host-local");
    let more = [("prevResult", output.clone())];
    subject.call(&host, "CHECK", "c-one", &container.path(), &more).ok();
    let checked = read(subject.bin.join("mine.stdin"));
    assert_eq!((&checked["prevResult"], &checked["runtimeConfig"]), (&output, &json!({"mac": "x"})));
    subject.call(&host, "DEL", "c-one", "", &[("prevResult", json!("garbage"))]).ok();
    assert!(read(subject.bin.join("mine.stdin")).get("prevResult").is_none());
    assert_eq!(called(&subject), ["ADD c-one eth0", "CHECK c-one eth0", "DEL c-one eth0"]);
    subject.call(&host, "DEL", "c-one", "", &[]).ok();
    assert_eq!(called(&subject).len(), 3, "nothing is kept, so there is nothing to delete");
}

/// Nor is an IPAM plugin's.
#[test]
fn a_delegate_of_the_same_binary_is_no_process_of_its_own() {
    let host = Host::new();
    let subject = flannel().at(host.dir());
    for (apart, processes) in [(false, 1), (true, 3)] {
        let plugins = subject.in_directory(if apart { cnikit_tests::apart() } else { bin() }.to_owned());
        let (dir, calls) = traced(&plugins, "execve,clone,clone3,fork,vfork");
        let traced = plugins.in_directory(dir.path());
        let container = host.container();
        let result = traced.add(&host, "c-one", &container);
        // A call that strace shows in two lines ends in the second: `<... execve resumed>) = 0`.
        let is_done = |call: &&String| call.contains("execve") && call.ends_with("= 0");
        let executed = calls().iter().filter(is_done).count();
        assert_eq!(executed, processes, "{:#?}", calls());
        subject.del(&host, "c-one", &container, &result);
    }
}

#[test]
fn the_stored_configuration_is_removed_after_a_successful_del_only() {
    let host = Host::new();
    let container = Host::new().container();
    let fails = r#"if [ $CNI_COMMAND = DEL ] && [ -e $0.broken ]; then echo '{"code":11,"msg":"not yet"}'; exit 1; fi"#;
    let subject = over_script(&host, &format!("{fails}\n{ANSWER}"));
    subject.add(&host, "c-one", &container);
    let broken = subject.bin.join("mine.broken");
    let all = stored_files(&host);
    fs::write(&broken, "").unwrap();
    for _ in 0..2 {
        let (code, text) = subject.call(&host, "DEL", "c-one", "", &[]).refused();
        assert!(code == 11 && text.contains("not yet"), "the delegate's own words: {code} {text}");
        assert_eq!(stored_files(&host), all);
    }
    fs::remove_file(subject.bin.join("mine")).unwrap();
    let (code, text) = subject.call(&host, "DEL", "c-one", "", &[]).refused();
    assert!(
        code == 103 && text.contains("failed to find plugin \"mine\"") && stored_files(&host) == all,
        "{code} {text}"
    );
}

/// A node that returns to this release can have such files.
#[test]
fn a_file_of_a_later_release_refuses_add_and_check_and_a_del_passes_over_it() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = over_script(&host, ANSWER);
    let result = subject.add(&host, "c-one", &container);
    let file = host.dir().join("flannel/c-one");
    let later = fs::read_to_string(&file).unwrap().replace(r#""version":1,"#, r#""version":2,"#);
    fs::write(&file, &later).unwrap();
    for (verb, keys) in [("ADD", vec![]), ("CHECK", vec![("prevResult", result)])] {
        let (code, text) = subject.call(&host, verb, "c-one", &container.path(), &keys).refused();
        let why = format!("read {}: it has version 2 of its format", file.display());
        assert!(code == 100 && text.contains(&why) && text.contains("a later release wrote it"), "{code} {text}");
    }
    subject.call(&host, "DEL", "c-one", "", &[]).ok();
    assert_eq!(called(&subject), ["ADD c-one eth0"], "the delegate's configuration is not known");
    assert_eq!(fs::read_to_string(&file).unwrap(), later);
}

#[test]
fn a_failed_delegate_gets_a_del_unless_its_code_is_101() {
    let failing =
        |code: u32| format!("[ $CNI_COMMAND != ADD ] || {{ echo '{{\"code\":{code},\"msg\":\"no\"}}'; exit 1; }}");
    for (code, verbs) in [(999, vec!["ADD c-one eth0", "DEL c-one eth0"]), (101, vec!["ADD c-one eth0"])] {
        let host = Host::new();
        let container = Host::new().container();
        let subject = over_script(&host, &failing(code));
        assert_eq!(subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused().0, u64::from(code));
        assert_eq!(
            (called(&subject), stored_files(&host)),
            (verbs.into_iter().map(str::to_owned).collect(), Vec::new())
        );
    }
    let host = Host::new();
    let container = Host::new().container();
    let always = over_script(&host, "echo '{\"code\":999,\"msg\":\"no\"}'; exit 1");
    let (_, text) = always.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(text.contains("not everything could be undone"), "{text}");
    assert_eq!(stored_files(&host), ["c-one"], "DEL will need it");
}

/// After a power cut the delegate may have its files and we may have lost ours. A runtime whose ADD failed calls DEL and then ADD
/// again.
#[test]
fn del_without_a_stored_file_reaches_the_delegate() {
    let host = Host::new();
    let subject = flannel().at(host.dir());
    let add = |container: &Container| subject.call(&host, "ADD", "c-one", &container.path(), &[]);
    let cut = host.container();
    add(&cut).ok();
    cut.sh("ip link del eth0");
    fs::remove_file(host.dir().join("flannel/c-one")).unwrap();
    let fresh = host.container();
    assert_eq!(add(&fresh).refused().0, 104);
    subject.call(&host, "DEL", "c-one", &fresh.path(), &[]).ok();
    assert!(stored_files(&host).is_empty());
    add(&fresh).ok();
}

#[test]
fn a_repeated_add_leaves_the_attachment_running_and_deletable() {
    let host = Host::new();
    let subject = flannel().at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    let before = HostSnapshot::of(&host);
    let content = fs::read(host.dir().join("flannel/c-one")).unwrap();
    let again = |subject: &Subject| {
        undisturbed(&container, "10.77.0.1", || subject.call(&host, "ADD", "c-one", &container.path(), &[]))
    };
    let invalid = subject.with("delegate", json!({"vlan": 9999}));
    for (subject, code) in [(&subject, 101), (&invalid, 7)] {
        assert_eq!(again(subject).refused().0, code);
        assert_eq!(fs::read(host.dir().join("flannel/c-one")).unwrap(), content);
    }
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after ADDs that were refused");
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
    assert!(stored_files(&host).is_empty());
}

#[test]
fn del_and_check_use_the_stored_configuration_not_subnet_env() {
    let host = Host::new();
    let file = host.dir().join("subnet.env");
    fs::write(&file, subnet_env(["10.77.3.1/24", "fd00:77:0:3::1/64"], 1400)).unwrap();
    let subject = flannel().with("subnetFile", json!(file)).at(host.dir());
    let before = HostSnapshot::of(&host);
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    fs::write(&file, subnet_env(["10.77.4.1/24", "fd00:77:0:4::1/64"], 1300)).unwrap();
    subject.check(&host, "c-one", &container, &result).ok();
    fs::remove_file(&file).unwrap();
    subject.check(&host, "c-one", &container, &result).ok();
    subject.call(&host, "DEL", "c-one", "", &[]).ok();
    let left = HostSnapshot::of(&host).added_since(&before, &cnikit_testkit::life::SHARED);
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn a_missing_subnet_env_is_an_error_with_its_path() {
    let host = Host::new();
    let container = Host::new().container();
    let file = host.dir().join("not/here.env");
    let subject = flannel().with("subnetFile", json!(file)).at(host.dir());
    let told = |output: &CallOutput, code: u64| {
        let (found, text) = output.refused();
        let yet = format!("flanneld has not written {} yet", file.display());
        assert!(
            found == code && text.contains(&yet) && text.contains("failed to load flannel 'subnet.env' file"),
            "{found}: {text}"
        );
    };
    told(&subject.call(&host, "ADD", "c-one", &container.path(), &[]), 11);
    told(&subject.call(&host, "STATUS", "", "", &[]), 50);
    fs::create_dir(host.dir().join("not")).unwrap();
    fs::write(&file, "FLANNEL_MTU=1450\n").unwrap();
    let (code, text) = subject.call(&host, "STATUS", "", "", &[]).refused();
    assert!(code == 50 && text.contains("is missing FLANNEL_NETWORK"), "{code}: {text}");
    fs::write(&file, subnet_env(["10.77.3.1/24", "fd00:77:0:3::1/64"], 1400)).unwrap();
    subject.call(&host, "STATUS", "", "", &[]).ok();
    let unwritable = subject.with("dataDir", json!("/proc/sys/flannel"));
    let (code, text) = unwritable.call(&host, "STATUS", "", "", &[]).refused();
    assert!(code == 50 && text.contains("no configuration can be stored in /proc/sys/flannel"), "{code}: {text}");
    assert!(stored_files(&host).is_empty());
}

/// The delegate has its rules restored.
#[test]
fn a_restore_reaches_the_delegate() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = flannel().at(host.dir()).with("delegate", json!({"ipMasq": true, "ipMasqBackend": "nftables"}));
    let result = subject.add(&host, "c-one", &container);
    let rules = || host.sh("nft list ruleset");
    let before = rules();
    host.sh("nft flush ruleset");
    let prev = [("prevResult", result.clone())];
    subject.call(&host, "RESTORE", "c-one", &container.path(), &prev).ok();
    assert!(before.contains("masquerade") && rules() == before, "{before}\n{}", rules());
    subject.check(&host, "c-one", &container, &result).ok();
}

#[test]
fn gc_deletes_only_invalid_attachments() {
    let host = Host::new();
    let subject = flannel().at(host.dir());
    let other = subject.with("name", json!("othernet")).with("delegate", json!({"bridge": "cni1"}));
    let other = other.with("ipam", json!({"dataDir": host.dir().join("other")}));
    let containers = [(); 4].map(|()| host.container());
    let result = subject.add(&host, "c-kept", &containers[0]);
    let others = other.add(&host, "c-stale", &containers[1]);
    let before = HostSnapshot::of(&host);
    let all = stored_files(&host);
    subject.add(&host, "c-stale", &containers[2]);
    subject.add(&host, "c-worse", &containers[3]);
    let file = host.dir().join("flannel/c-worse");
    unmark(&file);
    assert_eq!(stored_files(&host).len(), 4);
    let valid = ("cni.dev/valid-attachments", json!([{"containerID": "c-kept", "ifname": "eth0"}]));
    let logging = subject.with_env(vec![("CNI_LOG".into(), "info".into())]);
    let output = logging.call(&host, "GC", "", "", &[valid]);
    assert!(output.stderr.contains("flannel/c-worse stays: it does not name the interface"), "{output:?}");
    output.ok();
    assert!(stored_files(&host).contains(&"c-worse".to_owned()));
    fs::remove_file(&file).unwrap();
    assert_eq!(stored_files(&host), all);
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after GC");
    subject.check(&host, "c-kept", &containers[0], &result).ok();
    other.check(&host, "c-stale", &containers[1], &others).ok();
    other.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", Value::Null)]).ok();
    assert_eq!(stored_files(&host), ["c-kept"]);
}

#[test]
fn gc_forgets_nothing_and_has_the_delegate_look_for_itself() {
    let host = Host::new();
    let container = Host::new().container();
    let env = host.dir().join("subnet.env");
    fs::write(&env, subnet_env(["10.77.3.1/24", "fd00:77:0:3::1/64"], 1400)).unwrap();
    let subject = over_script(&host, ANSWER).with("subnetFile", json!(env));
    let valid = json!([{"containerID": "c-other", "ifname": "eth7"}]);
    let gc = || subject.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", valid.clone())]).ok();
    gc();
    assert_eq!(called(&subject), ["GC eth0"], "nothing is kept, and something may be left");
    let given = read(subject.bin.join("mine.stdin"));
    assert_eq!((&given["cni.dev/valid-attachments"], &given["name"]), (&valid, &json!("testnet")), "{given}");
    // A file of upstream, with a delegate that does nothing in GC.
    subject.add(&host, "c-one", &container);
    unmark(&host.dir().join("flannel/c-one"));
    gc();
    assert_eq!(called(&subject)[2..], ["GC eth0"], "once");
    fs::remove_file(&env).unwrap();
    gc();
    assert_eq!(called(&subject)[3..], ["GC eth0"], "with what was kept");
    assert_eq!(stored_files(&host), ["c-one"]);
    subject.call(&host, "DEL", "c-one", "", &[]).ok();
    gc();
    assert_eq!((called(&subject)[4..].to_vec(), stored_files(&host)), (vec!["DEL c-one eth0".to_owned()], Vec::new()));
}

#[test]
fn a_kill_while_it_is_added_again_loses_neither_configuration() {
    let host = Host::new();
    let container = Host::new().container();
    let script = format!("grep -o '\"mine\":.' $0.stdin >>$0.mine; [ ! -e $0.kills ] || kill -9 $PPID\n{ANSWER}");
    let subject = over_script(&host, &script);
    let other = subject.with("delegate", json!({"type": "mine", "mine": 8}));
    let mine =
        || fs::read_to_string(subject.bin.join("mine.mine")).unwrap().replace("\"mine\":", "").replace('\n', " ");
    subject.add(&host, "c-one", &container);
    let kills = subject.bin.join("mine.kills");
    fs::write(&kills, "").unwrap();
    let killed = other.call(&host, "ADD", "c-one", &container.path(), &[]);
    assert!(killed.exit != 0 && killed.stdout.is_empty(), "{killed:?}");
    fs::remove_file(&kills).unwrap();
    subject.call(&host, "DEL", "c-one", "", &[]).ok();
    assert_eq!((mine().as_str(), stored_files(&host)), ("7 8 7 8 ", Vec::new()), "both ADDs, and a DEL for each");
    // No call is killed: the configuration of the last ADD is stored, at the path where upstream expects it.
    for each in [&subject, &other] {
        each.add(&host, "c-one", &container);
        assert_eq!(stored_files(&host), ["c-one"]);
    }
    subject.call(&host, "DEL", "c-one", "", &[]).ok();
    assert_eq!((mine().as_str(), stored_files(&host)), ("7 8 7 8 7 8 8 ", Vec::new()));
}

#[test]
fn two_networks_of_a_container_have_separate_files() {
    let host = Host::new();
    let one = flannel().at(host.dir());
    let two = one.with("name", json!("othernet")).with("delegate", json!({"bridge": "cni1"}));
    let two = two.with("ipam", json!({"dataDir": host.dir().join("other")}));
    let before = HostSnapshot::of(&host);
    let containers = [host.container(), host.container()];
    one.add(&host, "c-one", &containers[0]);
    two.add(&host, "c-one", &containers[1]);
    assert_eq!(stored_files(&host).len(), 2);
    for subject in [&one, &two] {
        subject.call(&host, "DEL", "c-one", "", &[]).ok();
    }
    assert!(stored_files(&host).is_empty());
    let left = HostSnapshot::of(&host).added_since(&before, &cnikit_testkit::life::SHARED);
    let left: Vec<&String> = left.iter().filter(|line| !line.contains("cni1") && !line.contains("other")).collect();
    assert!(left.is_empty(), "{left:#?}");
}

/// With upstream's bridge, which gets our stored configuration as from upstream's flannel. We delete an attachment from a file of
/// upstream's flannel.
#[test]
fn upstream_and_ours_delete_by_each_others_stored_files() {
    for release in [UpstreamRelease::Packaged, UpstreamRelease::Newest] {
        let host = Host::new();
        let version = json!(release.speaks());
        let subject = flannel().in_directory(both(&host, &release.bin())).with("cniVersion", version).at(host.dir());
        let delegate = json!({"isDefaultGateway": true});
        let subject = subject.with("delegate", delegate);
        let container = host.container();
        let result = subject.add(&host, "c-one", &container);
        let file = host.dir().join("flannel/c-one");
        let content = fs::read(&file).unwrap();
        // As upstream's flannel does: the whole content of the file on stdin, and nothing else.
        let mut of_bridge = subject.in_directory(release.bin());
        "bridge".clone_into(&mut of_bridge.plugin);
        of_bridge.call_raw(&host, "DEL", "c-one", &container.path(), &content, &[]).ok();
        assert!(!host.sh("ip -o link").contains("veth"));
        fs::remove_file(&file).unwrap();
        subject.call(&host, "DEL", "c-one", &container.path(), &[]).ok();

        let result_of_second = subject.add(&host, "c-one", &container);
        assert_eq!(result["interfaces"][0]["name"], result_of_second["interfaces"][0]["name"]);
        unmark(&file);
        let more = [("prevResult", result_of_second)];
        subject.call(&host, "DEL", "c-one", &container.path(), &more).ok();
        assert!(!host.sh("ip -o link").contains("veth") && stored_files(&host).is_empty());
    }
}

#[test]
fn an_upstream_file_of_a_running_interface_is_not_used_for_another() {
    let host = Host::new();
    let subject = flannel().at(host.dir());
    let before = HostSnapshot::of(&host);
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    unmark(&host.dir().join("flannel/c-one"));
    let of_eth1 = |verb: &str, path: &str| {
        subject
            .call_raw(&host, verb, "c-one", path, subject.conf.to_string().as_bytes(), &[("CNI_IFNAME", "eth1")])
            .ok()
    };
    of_eth1("ADD", &container.path());
    assert_eq!(stored_files(&host).len(), 2);
    for left in [1, 1] {
        undisturbed(&container, "10.77.0.1", || of_eth1("DEL", &container.path()));
        assert_eq!(stored_files(&host).len(), left, "the first has gone with its own, the second finds that of eth0");
    }
    subject.check(&host, "c-one", &container, &result).ok();
    subject.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    let left = HostSnapshot::of(&host).added_since(&before, &cnikit_testkit::life::SHARED);
    assert!(left.is_empty() && stored_files(&host).is_empty(), "{left:#?}");
    // No other container runs, so it cannot belong to another one.
    subject.add(&host, "c-one", &container);
    unmark(&host.dir().join("flannel/c-one"));
    container.sh("ip link set lo up; ip link delete eth0");
    subject.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    assert!(stored_files(&host).is_empty());
}

/// Our flannel among upstream's plugins.
fn both(host: &Host, reference: &Path) -> PathBuf {
    let dir = host.dir().join("plugins");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(bin().join("flannel"), dir.join("flannel")).unwrap();
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(reference.join(name), dir.join(name)).unwrap();
    }
    dir
}

#[test]
fn flannel_does_not_delegate_to_itself() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = flannel().with("delegate", json!({"type": "flannel"})).at(host.dir());
    let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 7 && text.contains("flannel cannot delegate to itself"), "{code}: {text}");
    assert!(stored_files(&host).is_empty());
}
