//! The runtime, with real plugins in real namespaces, and with plugins that violate the specification.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use cnikit_libcni::{CancellationToken, Deadline, Error, Runtime, State, TraceContext, ValidAttachment};
use cnikit_testkit::HostSnapshot;
use cnikit_tests::program;
use cnikit_tests::scene::{ANSWER, PASS, Scene};
use serde_json::{Value, json};

/// Files that every ADD changes.
const COUNTED: [&str; 2] = ["last_reserved_ip.", ".idx"];

/// A DEL that fails.
const NO: &str = r#"DEL) echo '{"cniVersion": "1.1.0", "code": 11, "msg": "not now"}'; exit 1 ;;"#;

fn valid(container_id: &str) -> ValidAttachment {
    ValidAttachment { container_id: container_id.to_owned(), ifname: "eth0".to_owned() }
}

#[test]
fn every_verb_calls_each_plugin_in_its_order_with_its_own_input() {
    let scene = Scene::new();
    scene.plugin("tail", &format!("{PASS}\nVERSION) echo '{{\"supportedVersions\": [\"1.1.0\"]}}' ;;"));
    let tail = json!({"type": "tail", "capabilities": {"mac": true}});
    let list = scene.list("net", &json!([scene.bridge(), tail]));
    let at = scene.at();
    let runtime = scene.runtime();
    let at = at.with_mac("02:00:00:00:00:07").with_capability("other", true).with_arg("IgnoreUnknown", "1");
    scene.host.enter(|| {
        assert_eq!(runtime.validate(&list).unwrap(), ["mac"]);
        runtime.status(&list).unwrap();
        let result = runtime.add(&list, &at).unwrap();
        assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
        runtime.check(&list, &at).unwrap();
        runtime.gc(&list, &[valid("c1")]).unwrap();
        runtime.check(&list, &at).unwrap();
        runtime.del(&list, &at).unwrap();
        runtime.del(&list, &at).unwrap();
    });
    let calls = ["VERSION", "STATUS", "ADD", "CHECK", "GC", "CHECK", "DEL", "DEL"].map(|verb| format!("{verb} tail"));
    assert_eq!(scene.calls(), calls);
    let read = |verb: &str| -> Value { serde_json::from_str(&scene.stdin("tail", verb)).unwrap() };
    assert_eq!(read("ADD")["runtimeConfig"], json!({"mac": "02:00:00:00:00:07"}));
    assert!(read("ADD")["prevResult"]["ips"].is_array() && read("CHECK")["prevResult"]["ips"].is_array());
    assert_eq!(read("STATUS"), json!({"type": "tail", "name": "net", "cniVersion": "1.1.0"}));
    let listed = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert_eq!(read("GC")["cni.dev/valid-attachments"], listed);
    assert_eq!(read("GC")["cni.dev/attachments"], listed);
    assert_eq!(read("DEL").get("prevResult"), None, "nothing is kept at the second DEL");
    scene.assert_clean("net");
}

#[test]
fn a_failed_add_can_be_undone_at_once_and_leaves_nothing() {
    let scene = Scene::new();
    scene.plugin("tail", r#"ADD) echo '{"cniVersion": "1.1.0", "code": 100, "msg": "no"}'; exit 1 ;;"#);
    let list = scene.list("net", &json!([scene.bridge(), {"type": "tail"}]));
    let runtime = scene.runtime();
    let add = || scene.host.enter(|| runtime.add_with_rollback(&list, &scene.at()).unwrap_err());
    let error = add();
    assert_eq!((error.code(), scene.calls()), (100, vec!["ADD tail".to_owned(), "DEL tail".to_owned()]));
    let first = HostSnapshot::of(&scene.host);
    assert!(add().to_string().contains("plugin type=\"tail\" name=\"net\" (2 of 2) failed (add) on eth0: no"));
    HostSnapshot::of(&scene.host).assert_unchanged_since(
        &first,
        &[&COUNTED[..], &["tail.", "calls"]].concat(),
        "undone",
    );
    scene.assert_clean("net");
}

#[test]
fn a_second_add_that_fails_takes_nothing_from_the_container_that_runs() {
    let scene = Scene::new();
    let list = scene.list("net", &json!([scene.bridge()]));
    let runtime = scene.runtime();
    scene.host.enter(|| {
        runtime.add_with_rollback(&list, &scene.at()).unwrap();
        runtime.add_with_rollback(&list, &scene.at()).unwrap_err();
        runtime.check(&list, &scene.at()).unwrap();
        assert_eq!(runtime.cache.attachments().unwrap()[0].problems, [""; 0]);
        runtime.del(&list, &scene.at()).unwrap();
    });
    scene.assert_clean("net");
}

#[test]
fn del_with_a_missing_plugin_deletes_the_rest_and_can_be_repeated() {
    let scene = Scene::new();
    scene.plugin("tail", PASS);
    let list = scene.list("net", &json!([scene.bridge(), {"type": "tail"}]));
    let runtime = scene.runtime();
    scene.host.enter(|| {
        runtime.add(&list, &scene.at()).unwrap();
        fs::remove_file(scene.path("bin/tail")).unwrap();
        let error = runtime.del(&list, &scene.at()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("failed to find plugin \"tail\"") && text.contains("hint: install it"), "{text}");
        assert_eq!((error.code(), error.failures().len()), (103, 1));
        assert_eq!(scene.leases("net"), [""; 0], "the address is free");
        assert_eq!(scene.state("results"), ["net-c1-eth0"], "to be tried again");
        scene.plugin("tail", PASS);
        runtime.del(&list, &scene.at()).unwrap();
    });
    assert!(scene.stdin("tail", "DEL").contains("prevResult"));
    scene.assert_clean("net");
}

#[test]
fn a_del_with_names_that_cannot_be_cached_calls_the_plugins() {
    let scene = Scene::new();
    scene.plugin("one", ANSWER);
    let list = scene.list("net", &json!([{"type": "one"}]));
    let runtime = scene.runtime();
    for id in ["../../up", "a/b", "", &"c".repeat(300), "line\nbreak"] {
        let at = cnikit_libcni::Attachment::new(id, "");
        runtime.del(&list, &at).unwrap();
        assert_eq!(scene.calls(), ["DEL one"], "{id:?}");
        assert!(matches!(runtime.add(&list, &at).unwrap_err().code(), 4 | 5), "{id:?}");
        assert_eq!(scene.calls(), [""; 0], "{id:?}");
    }
    let args = runtime.add(&list, &scene.at().with_arg("A", "1;B=2")).unwrap_err();
    assert!(args.code() == 4 && args.to_string().contains("CNI_ARGS"), "{args}");
}

#[test]
fn all_failures_of_a_del_are_reported_and_a_strict_one_stops() {
    let scene = Scene::new();
    for name in ["one", "two", "three"] {
        scene.plugin(name, &format!("{ANSWER}\n{NO}"));
    }
    let list = scene.list("net", &json!([{"type": "one"}, {"type": "two"}, {"type": "three"}]));
    let runtime = scene.runtime();
    runtime.add(&list, &scene.at()).unwrap();
    scene.calls();
    let error = runtime.del(&list, &scene.at()).unwrap_err();
    assert_eq!(scene.calls(), ["DEL three", "DEL two", "DEL one"]);
    assert!(error.is_retryable() && error.failures().len() == 3, "{error}");
    let error = runtime.del_fail_fast(&list, &scene.at()).unwrap_err();
    assert_eq!((scene.calls(), error.failures().len()), (vec!["DEL three".to_owned()], 1));
    assert_eq!(scene.state("results"), ["net-c1-eth0"]);
}

#[test]
fn a_del_uses_the_configuration_of_its_add() {
    let scene = Scene::new();
    let then = scene.list("net", &json!([scene.bridge()]));
    let runtime = scene.runtime();
    scene.plugin("other", ANSWER);
    let now = scene.list("net", &json!([{"type": "other"}]));
    scene.host.enter(|| {
        runtime.add(&then, &scene.at().with_arg("IgnoreUnknown", "1")).unwrap();
        runtime.del(&now, &scene.at()).unwrap();
    });
    assert_eq!(scene.calls(), [""; 0], "today's plugin was not asked");
    scene.assert_clean("net");
    scene.plugin("gone", ANSWER);
    let gone = scene.list("net", &json!([{"type": "gone"}]));
    runtime.add(&gone, &scene.at()).unwrap();
    fs::remove_file(scene.path("bin/gone")).unwrap();
    let text = runtime.del(&now, &scene.at()).unwrap_err().to_string();
    assert!(
        text.starts_with("with the configuration of its ADD, which differs from the current one: plugin type=\"gone\""),
        "{text}"
    );
    assert!(runtime.del(&gone, &scene.at()).unwrap_err().to_string().starts_with("plugin type=\"gone\""));
    scene.plugin("gone", ANSWER);
    runtime.del(&now, &scene.at()).unwrap();
    scene.calls();
    scene.host.enter(|| {
        runtime.add(&then, &scene.at()).unwrap();
        let cached = runtime.cache.attachments_of("c1").unwrap().remove(0);
        assert_eq!((cached.state, cached.addresses().len(), &cached.problems[..]), (State::Attached, 2, &[][..]));
        assert!(cached.metadata.netns_cookie.is_some() && cached.age() < Duration::from_mins(1));
        runtime.del_cached(&cached).unwrap();
    });
    scene.assert_clean("net");
}

/// Kills a runtime (the tool) in the midst of an ADD, when the bridge is up and the second plugin runs.
fn killed_in_the_midst(scene: &Scene) {
    scene.plugin("slow", &format!("ADD) sleep 60 ;;\n{ANSWER}"));
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [scene.bridge(), {"type": "slow"}]});
    fs::create_dir(scene.path("net.d")).unwrap();
    fs::write(scene.path("net.d/net.conflist"), list.to_string()).unwrap();
    let dir = scene.host.dir().display();
    let env = format!("NETCONFPATH={dir}/net.d CNI_CACHE_DIR={dir}/state CNI_PATH={}", scene.runtime().path);
    let tool = program("cnitool");
    thread::scope(|scope| {
        let line = format!("echo $$ > {dir}/pid; exec env {env} {} add net {}", tool.display(), scene.container.path());
        let running = scope.spawn(move || scene.host.try_sh(&line));
        scene.until_called("ADD slow");
        let cached = &scene.runtime().cache.attachments().unwrap()[0];
        assert_eq!(cached.state, State::Adding, "{cached:?}");
        scene.host.sh(&format!("kill -9 $(cat {dir}/pid)"));
        assert!(!running.join().unwrap().0);
    });
    assert_eq!(scene.leases("net").len(), 2, "there is something to clear up");
}

#[test]
fn leftovers_of_a_killed_add_are_listed_and_removed_by_del() {
    let scene = Scene::new();
    killed_in_the_midst(&scene);
    let cached = scene.runtime().cache.attachments().unwrap().remove(0);
    assert_eq!((cached.state, &*cached.network), (State::Interrupted, "net"), "{cached:?}");
    assert!(cached.problems[0].contains("DEL removes"), "{cached:?}");
    // The file of the configuration is of no importance any more.
    scene.plugin("other", "");
    let today = scene.list("net", &json!([{"type": "other"}]));
    scene.host.enter(|| scene.runtime().del(&today, &cached.at).unwrap());
    scene.assert_clean("net");
}

#[test]
fn leftovers_of_a_killed_add_are_removed_by_the_next_add() {
    let scene = Scene::new();
    killed_in_the_midst(&scene);
    scene.plugin("other", ANSWER);
    let today = scene.list("net", &json!([{"type": "other"}]));
    let runtime = scene.runtime().at_most(1);
    scene.plugin("slow", &format!("{ANSWER}\n{NO}"));
    let noted = runtime.cache.attachments().unwrap().remove(0);
    let error = scene.host.enter(|| runtime.add(&today, &noted.at).unwrap_err());
    let text = error.to_string();
    assert!(text.starts_with("an earlier ADD was interrupted, and what it made cannot be deleted: "), "{text}");
    assert_eq!((error.code(), scene.calls()), (11, vec!["ADD slow".to_owned(), "DEL slow".to_owned()]));
    scene.plugin("slow", "");
    scene.host.enter(|| runtime.add(&today, &noted.at).unwrap());
    assert_eq!((scene.calls(), scene.leases("net").len()), (vec!["DEL slow".to_owned(), "ADD other".to_owned()], 0));
    runtime.del(&today, &noted.at).unwrap();
    scene.assert_clean("net");
}

#[test]
fn leftovers_of_a_killed_add_are_removed_by_gc() {
    let scene = Scene::new();
    killed_in_the_midst(&scene);
    scene.plugin("other", "");
    let today = scene.list("net", &json!([{"type": "other"}]));
    scene.host.enter(|| scene.runtime().gc(&today, &[]).unwrap());
    assert_eq!(scene.calls(), ["ADD slow", "DEL slow", "GC other"]);
    scene.assert_clean("net");
}

/// Calls cnitool and kills it after this time. Returns whether it had ended before.
fn done_or_killed(scene: &Scene, verb: &str, after: Duration) -> bool {
    let dir = scene.host.dir().display();
    let env = format!("NETCONFPATH={dir}/net.d CNI_CACHE_DIR={dir}/state CNI_PATH={}", scene.runtime().path);
    let tool = program("cnitool");
    let netns = scene.container.path();
    let line = format!("{env} timeout -s KILL {} {} {verb} net {netns}", after.as_secs_f64(), tool.display());
    scene.host.try_sh(&line).0
}

/// Kills the tool at random moments of a verb, after `before`, and clears up in one of the two ways there are.
fn killed_at_any_moment(before: Option<&str>, verb: &str) {
    let scene = Scene::new();
    scene.plugin("tail", PASS);
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [scene.bridge(), {"type": "tail"}]});
    fs::create_dir(scene.path("net.d")).unwrap();
    fs::write(scene.path("net.d/net.conflist"), list.to_string()).unwrap();
    let list = scene.list("net", &list["plugins"]);
    let mut seed = fastrand::Rng::new();
    let mut killed = 0;
    let timeout = Duration::from_mins(5);
    // The shortest that a whole one took, so that the moments are spread over it.
    let mut whole = timeout;
    for round in 0..30 {
        assert!(before.is_none_or(|before| done_or_killed(&scene, before, timeout)));
        let begun = Instant::now();
        let moment = if round < 2 { timeout } else { whole.mul_f64(seed.f64()) };
        if done_or_killed(&scene, verb, moment) {
            whole = whole.min(begun.elapsed());
        } else {
            killed += 1;
        }
        let known = scene.runtime().cache.attachments().unwrap();
        assert!(known.len() <= 1, "{known:?}");
        scene.host.enter(|| match known.first().filter(|_| round % 2 == 0) {
            Some(cached) => drop(scene.runtime().del_cached(cached).unwrap()),
            None => drop(scene.runtime().gc(&list, &[]).unwrap()),
        });
        scene.assert_clean("net");
    }
    assert!(killed > 3, "{killed} of 30 were killed in {whole:?}");
}

#[test]
fn a_runtime_that_is_killed_at_any_moment_of_an_add_leaks_nothing() {
    killed_at_any_moment(None, "add");
}

#[test]
fn a_runtime_that_is_killed_at_any_moment_of_a_del_leaks_nothing() {
    killed_at_any_moment(Some("add"), "del");
}

#[test]
fn gc_deletes_invalid_attachments_unless_the_list_disables_it() {
    let scene = Scene::new();
    let list = scene.list("net", &json!([scene.bridge()]));
    let runtime = scene.runtime();
    let other = scene.host.container();
    let lives = cnikit_libcni::Attachment::new("lives", other.path());
    let mut forbidding = list.clone();
    forbidding.disable_gc = true;
    scene.host.enter(|| {
        runtime.add(&list, &scene.at()).unwrap();
        runtime.add(&list, &lives).unwrap();
        runtime.gc(&forbidding, &[]).unwrap();
        assert_eq!(scene.state("results").len(), 2);
        runtime.gc(&list, &[valid("lives")]).unwrap();
        assert_eq!(scene.state("results"), ["net-lives-eth0"]);
        runtime.check(&list, &lives).unwrap();
        assert_eq!(scene.leases("net").len(), 2);
        runtime.del(&list, &lives).unwrap();
    });
    scene.assert_clean("net");
}

#[test]
fn gc_continues_after_failures_and_omits_a_path_of_another_namespace() {
    let scene = Scene::new();
    scene.plugin("one", &format!("{ANSWER}\nGC) echo '{{\"code\": 7, \"msg\": \"gc of one\"}}'; exit 1 ;;"));
    scene.plugin("two", &format!("{ANSWER}\n{NO}"));
    let list = scene.list("net", &json!([{"type": "one"}, {"type": "two"}]));
    let runtime = scene.runtime();
    let path = scene.path("ns");
    scene.host.sh(&format!("ln -s {} {}", scene.container.path(), path.display()));
    let at = cnikit_libcni::Attachment::new("c1", path.display().to_string());
    runtime.add(&list, &at).unwrap();
    let other = scene.host.container();
    scene.host.sh(&format!("ln -sfn {} {}", other.path(), path.display()));
    assert!(runtime.cache.attachments().unwrap()[0].problems[0].contains("another namespace"));
    scene.calls();
    let error = runtime.gc(&list, &[]).unwrap_err();
    assert_eq!(scene.calls(), ["DEL two", "DEL one", "GC one", "GC two"]);
    let text = error.to_string();
    assert!(text.contains("failed to delete stale attachment c1 eth0: ") && text.contains("gc of one"), "{text}");
    let env = fs::read_to_string(scene.path("one.DEL.env")).unwrap();
    assert!(env.lines().any(|line| line == "CNI_NETNS="), "{env}");
    assert_eq!(scene.state("results"), ["net-c1-eth0"], "the next GC tries again");
}

#[test]
fn calls_for_one_container_are_serialised_and_gc_runs_alone() {
    let scene = Scene::new();
    scene.plugin("slow", r#"ADD) sleep 0.4; echo '{"cniVersion": "1.1.0"}'; echo DONE >>$dir/calls ;;"#);
    let a = scene.list("a", &json!([{"type": "slow"}]));
    let b = scene.list("b", &json!([{"type": "slow"}]));
    let runtime = scene.runtime().at_most(64);
    let add = |list, id: &str| drop(runtime.add(list, &cnikit_libcni::Attachment::new(id, "/ns")).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| add(&a, "one"));
        scope.spawn(|| add(&b, "one"));
    });
    assert_eq!(scene.calls(), ["ADD slow", "DONE", "ADD slow", "DONE"]);
    thread::scope(|scope| {
        scope.spawn(|| add(&a, "two"));
        scope.spawn(|| add(&b, "three"));
    });
    assert_eq!(scene.calls(), ["ADD slow", "ADD slow", "DONE", "DONE"]);
    let all: Vec<ValidAttachment> = ["one", "two", "four"].map(valid).into();
    thread::scope(|scope| {
        scope.spawn(|| add(&a, "four"));
        scene.until_called("ADD slow");
        let collect = scope.spawn(|| drop(runtime.gc(&a, &all).unwrap()));
        // Started after the GC, it waits until the GC has ended.
        Deadline::after(Duration::from_secs(9)).pause(Duration::from_millis(150));
        scope.spawn(|| add(&a, "five"));
        collect.join().unwrap();
    });
    assert_eq!(scene.calls(), ["ADD slow", "DONE", "GC slow", "ADD slow", "DONE"]);
    let bounded = runtime.clone().at_most(1);
    thread::scope(|scope| {
        for id in ["six", "seven"] {
            let runtime = bounded.clone();
            let list = &a;
            scope.spawn(move || drop(runtime.add(list, &cnikit_libcni::Attachment::new(id, "/ns")).unwrap()));
        }
    });
    assert_eq!(scene.calls(), ["ADD slow", "DONE", "ADD slow", "DONE"]);
    assert!(!scene.state("cnikit/locks").iter().any(|name| name.starts_with("c-")));
}

#[test]
fn many_containers_at_once_with_gc_among_them_leave_nothing_and_lose_nothing() {
    let scene = Scene::new();
    let list = scene.list("net", &json!([scene.bridge()]));
    let runtime = scene.runtime();
    let containers: Vec<_> = (0..24).map(|_| scene.host.container()).collect();
    let all: Vec<ValidAttachment> = (0..containers.len()).map(|n| valid(&format!("c{n}"))).collect();
    scene.host.enter(|| {
        thread::scope(|threads| {
            for (n, container) in containers.iter().enumerate() {
                // One runtime each, like separate processes: only the files are shared.
                let list = &list;
                let runtime = Runtime::new(runtime.path.clone(), runtime.cache.clone());
                let home = scene.host.netns().clone();
                threads.spawn(move || {
                    let at = cnikit_libcni::Attachment::new(format!("c{n}"), container.path());
                    for _ in 0..2 {
                        home.enter(|_| {
                            runtime.add(list, &at).unwrap();
                            runtime.check(list, &at).unwrap();
                            runtime.del(list, &at).unwrap();
                        })
                        .unwrap();
                    }
                });
            }
            for _ in 0..6 {
                runtime.gc(&list, &all).unwrap();
            }
        });
    });
    scene.assert_clean("net");
}

#[test]
fn a_lock_timeout_names_the_lock_and_is_retryable() {
    let scene = Scene::new();
    scene.plugin("slow", "ADD) sleep 60 ;;");
    let list = scene.list("net", &json!([{"type": "slow"}]));
    let cancel = CancellationToken::new().unwrap();
    let first = scene.runtime().cancelled_by(&cancel);
    let second = Runtime { waiting: Duration::from_millis(200), ..scene.runtime() };
    thread::scope(|scope| {
        scope.spawn(|| first.add(&list, &scene.at()).unwrap_err());
        scene.until_called("ADD slow");
        let error = second.del(&list, &scene.at()).unwrap_err();
        assert!(matches!(error, Error::Busy(_)) && error.is_retryable(), "{error}");
        assert!(error.to_string().contains("cnikit/locks/c-c1"), "{error}");
        cancel.cancel();
    });
}

#[test]
fn a_caller_that_gives_up_ends_the_plugin_with_all_that_it_started() {
    let scene = Scene::new();
    scene.plugin("slow", "ADD) sleep 61 & echo $! >$dir/grandchild; wait ;;");
    let list = scene.list("net", &json!([{"type": "slow"}, {"type": "slow"}]));
    let cancel = CancellationToken::new().unwrap();
    let runtime = scene.runtime().cancelled_by(&cancel);
    let begun = Instant::now();
    let error = thread::scope(|scope| {
        let adding = scope.spawn(|| runtime.add_with_rollback(&list, &scene.at()).unwrap_err());
        scene.until_called("ADD slow");
        let grandchild = scene.path("grandchild");
        while fs::read_to_string(&grandchild).is_ok_and(|text| text.is_empty()) || !grandchild.exists() {
            assert!(Deadline::after(Duration::from_secs(9)).pause(Duration::from_millis(5)));
        }
        cancel.cancel();
        adding.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(error.to_string().contains("was ended: the caller cancelled it"), "{error}");
    let pid = fs::read_to_string(scene.path("grandchild")).unwrap();
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
    assert_eq!(scene.calls(), ["ADD slow", "DEL slow", "DEL slow"], "and it was undone");
    assert!(matches!(runtime.add(&list, &scene.at()), Err(Error::Cancelled)));
}

#[test]
fn the_trace_context_is_passed_to_every_plugin() {
    let scene = Scene::new();
    scene.plugin("one", ANSWER);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
    let trace = Some(TraceContext { parent: parent.clone(), ..TraceContext::default() });
    let runtime = Runtime { trace, ..scene.runtime() };
    runtime.add(&scene.list("net", &json!([{"type": "one"}])), &scene.at()).unwrap();
    let env = fs::read_to_string(scene.path("one.ADD.env")).unwrap();
    for line in [format!("TRACEPARENT={parent}"), "TRACESTATE=".to_owned()] {
        assert!(env.lines().any(|one| one == line), "{env}");
    }
}

#[test]
fn missing_versions_are_reported_together_and_a_status_has_its_code() {
    let scene = Scene::new();
    scene.plugin("old", "VERSION) echo '{\"cniVersion\": \"0.2.0\"}' ;;");
    scene.plugin("older", r#"*) echo '{"code": 4, "msg": "unknown CNI_COMMAND: VERSION"}'; exit 1 ;;"#);
    scene.plugin("silent", "VERSION) ;;");
    let plugins = json!([{"type": "loopback"}, {"type": "old"}, {"type": "older"}, {"type": "silent"}, {"type": "no"}]);
    let list = scene.list("net", &plugins);
    let runtime = scene.runtime();
    assert_eq!(runtime.versions("old").unwrap(), ["0.1.0", "0.2.0"]);
    assert_eq!(runtime.versions("older").unwrap(), ["0.1.0"]);
    assert!(runtime.versions("loopback").unwrap().contains(&"1.1.0".to_owned()));
    let error = runtime.validate(&list).unwrap_err();
    let text = error.to_string();
    assert_eq!(text.lines().count(), 4, "{text}");
    for part in [
        "type=\"old\" name=\"net\" (2 of 5) failed (version): it does not support version 1.1.0, only 0.1.0, 0.2.0; hint: ",
        "type=\"older\" name=\"net\" (3 of 5) failed (version): it does not support version 1.1.0, only 0.1.0; hint: ",
        "type=\"silent\" name=\"net\" (4 of 5) failed (version): its answer cannot be parsed: ",
        "type=\"no\" name=\"net\" (5 of 5) failed (version): failed to find plugin \"no\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    scene.plugin("busy", r#"STATUS) echo '{"code": 50, "msg": "no daemon"}'; exit 1 ;;"#);
    scene.calls();
    let list = scene.list("net", &json!([{"type": "busy"}, {"type": "silent"}]));
    let error = runtime.status(&list).unwrap_err();
    assert_eq!((error.code(), scene.calls()), (50, vec!["STATUS busy".to_owned()]), "{error}");
    let mut before = list;
    before.version = "1.0.0".to_owned();
    runtime.status(&before).unwrap();
    assert_eq!(scene.calls(), [""; 0], "1.0.0 has no STATUS");
}

/// A plugin's wrong behaviour, and the text of the error.
struct Misbehaviour {
    /// The script without `#!/bin/sh`; `None`: there is no file.
    script: Option<&'static str>,
    mode: u32,
    code: u32,
    says: &'static [&'static str],
}

const fn does(script: &'static str, code: u32, says: &'static [&'static str]) -> Misbehaviour {
    Misbehaviour { script: Some(script), mode: 0o755, code, says }
}

const RESULT: &str = r#"{\"cniVersion\":\"1.1.0\"}"#;

fn misbehaviours() -> Vec<Misbehaviour> {
    vec![
        Misbehaviour { script: None, mode: 0, code: 103, says: &["failed to find plugin \"odd\"", "hint: install it"] },
        Misbehaviour { mode: 0o644, ..does("#!/bin/sh\n", 103, &["bin/odd is not executable", "hint: chmod +x"]) },
        does("#!/no/such/interpreter\n", 103, &["cannot start plugin", "bin/odd", "interpreter", "hint: "]),
        does("\u{1}\u{2}no program", 103, &["cannot start plugin", "bin/odd", "hint: "]),
        does("#!/bin/sh\ncat >/dev/null\n", 103, &["it succeeded without a result", "bin/odd said nothing"]),
        does(
            "#!/bin/sh\necho hello\n",
            103,
            &["its answer cannot be parsed: expected value", "bin/odd said \"hello\""],
        ),
        does("#!/bin/sh\necho '[]'\n", 103, &["its answer cannot be parsed: ", "bin/odd said \"[]\""]),
        does("#!/bin/sh\nhead -c 100000000 /dev/zero\n", 103, &["wrote more than 16777216 bytes to stdout", "bin/odd"]),
        does("#!/bin/sh\necho '{\"ips\": []}{\"ips\": []}'\n", 103, &["trailing characters"]),
        does(
            "#!/bin/sh\necho '{\"ips\": []}{\"code\": 7, \"msg\": \"no\"}'; exit 1\n",
            103,
            &["died without an error object", "\"no\""],
        ),
        does(
            "#!/bin/sh\necho '{\"code\": 7, \"msg\": \"no\"}'\n",
            103,
            &["its exit status is 0, but it printed an error: no (code 7)"],
        ),
        does("#!/bin/sh\necho '{\"code\": 7, \"msg\": \"no\"}'; exit 3\n", 7, &["failed (add) on eth0: no (code 7)"]),
        does("#!/bin/sh\necho why >&2; exit 3\n", 103, &["exit status 3", "stderr: why"]),
        does("#!/bin/sh\nkill -SEGV $$\n", 103, &["signal 11 (SIGSEGV)", "bin/odd"]),
        does("#!/bin/sh\nsleep 60\n", 103, &["did not finish in", "bin/odd", "hint: find out"]),
    ]
}

#[test]
fn a_plugin_that_misbehaves_is_named_with_a_hint_and_loses_nothing() {
    for odd in misbehaviours() {
        let scene = Scene::new();
        let list = scene.list("net", &json!([scene.bridge(), {"type": "odd"}]));
        let runtime = Runtime { timeout: Duration::from_secs(2), ..scene.runtime() };
        if let Some(script) = odd.script {
            scene.file("odd", script, odd.mode);
        }
        let error = scene.host.enter(|| runtime.add_with_rollback(&list, &scene.at()).unwrap_err());
        let text = error.to_string();
        assert!(odd.says.iter().all(|word| text.contains(word)), "{:?}: {text}", odd.says);
        assert_eq!(error.code(), odd.code, "{text}");
        assert!(text.contains("plugin type=\"odd\" name=\"net\" (2 of 2) failed (add) on eth0"), "{text}");
        assert!(odd.code != 103 || text.contains("; hint: "), "{text}");
        assert_eq!(scene.leases("net"), [""; 0], "{text}");
        assert!(!scene.host.sh("ip -o link").contains("veth"), "{text}");
        scene.plugin("odd", "");
        scene.host.enter(|| runtime.del(&list, &scene.at()).unwrap());
        scene.assert_clean("net");
    }
}

#[test]
fn a_plugin_that_leaves_a_daemon_with_its_stdout_is_not_waited_for() {
    let scene = Scene::new();
    scene.plugin("forks", &format!("{}sleep 62 & echo $! >$dir/daemon; echo {RESULT} ;;", "ADD) "));
    let begun = Instant::now();
    scene.runtime().add(&scene.list("net", &json!([{"type": "forks"}])), &scene.at()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
    scene.host.sh(&format!("kill $(cat {})", scene.path("daemon").display()));
}
