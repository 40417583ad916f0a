//! Programs that a plugin starts: their search path, their environment, and their output on a terminal.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use cnikit_testkit::{CallOutput, Container, Host, Subject};
use cnikit_tests::way::{PROGRAMS, on_path, script};
use cnikit_tests::{bin, bridge, installed, program, subject, traced};

use crate::actor::as_another_user;
use serde_json::{Value, json};

/// One call that is made with `directory` as the working directory.
fn call_from(directory: &Path, subject: &Subject, host: &Host, verb: &str, netns: &str) -> CallOutput {
    let plugin = subject.bin.join(&subject.plugin);
    script(host.dir(), "from", &format!("cd {} && exec {}", directory.display(), plugin.display()));
    let mut moved = subject.in_directory(host.dir());
    "from".clone_into(&mut moved.plugin);
    let path = subject.bin.to_string_lossy().into_owned();
    let of_subject = subject.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let env: Vec<_> = [("CNI_PATH", path.as_str())].into_iter().chain(of_subject).collect();
    moved.call_raw(host, verb, "c-one", netns, subject.conf.to_string().as_bytes(), &env)
}

/// Names in the environment that a script noted with [`NOTE`], each once.
fn names_in(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    let mut names: Vec<String> = text.lines().filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
    names.sort();
    names.dedup();
    names
}

/// Appends the environment that a shell script was started with to `$0.env`, a variable per line.
const NOTE: &str = "tr '\\0' '\\n' </proc/$$/environ >>";

/// Variables that an attacker may have set in the environment of a runtime, and variables that a runtime usually has.
const HOSTILE: [(&str, &str); 7] = [
    ("LD_PRELOAD", "/nowhere/evil.so"),
    ("LD_AUDIT", "/nowhere/evil.so"),
    ("LD_LIBRARY_PATH", "/nowhere"),
    ("XTABLES_LIBDIR", "/nowhere"),
    ("IPTABLES_LIB_DIR", "/nowhere"),
    ("BASH_ENV", "/nowhere/evil.sh"),
    ("SECRET", "of-the-runtime"),
];

#[test]
fn iptables_inherits_only_path_and_its_lock_file_from_the_caller() {
    let host = Host::new();
    let container = Host::new().container();
    let programs = host.dir().join("programs");
    let log = host.dir().join("env");
    fs::create_dir(&programs).unwrap();
    for name in PROGRAMS {
        let line = format!("{NOTE}{}; exec /usr/sbin/{name} \"$@\"", log.display());
        script(&programs, name, &line);
        script(&programs, &name.replace('-', "-nft-"), &line);
    }
    let lock = host.dir().join("xtables.lock").display().to_string();
    let masquerading = bridge().with("ipMasqBackend", json!("iptables")).at(host.dir());
    let mut subject = on_path(&masquerading, &programs);
    subject.env[0].1 = format!("relative::{}:.", subject.env[0].1);
    subject.env.extend(HOSTILE.map(|(name, value)| (name.to_owned(), value.to_owned())));
    subject.env.push(("XTABLES_LOCKFILE".into(), lock.clone()));
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(names_in(&log), ["PATH", "XTABLES_LOCKFILE"]);
    let noted = fs::read_to_string(&log).unwrap();
    assert!(noted.contains(&format!("XTABLES_LOCKFILE={lock}\n")), "{noted}");
    for path in noted.lines().filter_map(|line| line.strip_prefix("PATH=")) {
        assert!(path.split(':').all(|entry| entry.starts_with('/')), "{path}");
    }
}

/// Row 18: an attacker who owns the working directory of a runtime has put programs of iptables there.
#[test]
fn relative_entries_of_path_are_ignored_for_iptables() {
    let host = Host::new();
    let container = Host::new().container();
    let evil = host.dir().join("evil");
    fs::create_dir(&evil).unwrap();
    PROGRAMS.iter().for_each(|name| script(&evil, name, "touch $0.ran; exit 1"));
    let mut subject = bridge().with("ipMasqBackend", json!("iptables")).at(host.dir());
    for path in [".", "", "../evil", ":", "."] {
        subject.env = vec![("PATH".into(), format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"))];
        call_from(&evil, &subject, &host, "ADD", &container.path()).ok();
        call_from(&evil, &subject, &host, "DEL", &container.path()).ok();
    }
    let ran: Vec<_> = PROGRAMS.iter().filter(|name| evil.join(format!("{name}.ran")).exists()).collect();
    assert!(ran.is_empty(), "{ran:?}");
}

/// A delegated plugin is another program: it gets the environment that the runtime passed to us, as from upstream's plugins, except
/// the variables by which the dynamic loader runs code.
#[test]
fn a_delegated_plugin_gets_the_callers_environment_without_ld_preload_and_ld_audit() {
    let host = Host::new();
    let container = Host::new().container();
    let log = host.dir().join("env");
    let plugins = host.dir().join("plugins");
    fs::create_dir(&plugins).unwrap();
    let answer = r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.9.9/24"}]}'"#;
    script(&plugins, "ipam-of-others", &format!("{NOTE}{}; {answer}", log.display()));
    let mut subject = bridge().with("ipMasq", json!(false)).with("ipam", json!({"type": "ipam-of-others"}));
    subject.env = HOSTILE.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let path = format!("{}:{}", plugins.display(), bin().display());
    subject.env.push(("CNI_PATH".into(), path));
    subject.add(&host, "c-one", &container);
    let names = names_in(&log);
    for name in ["SECRET", "LD_LIBRARY_PATH", "XTABLES_LIBDIR", "CNI_COMMAND", "CNI_CONTAINERID", "PATH"] {
        assert!(names.iter().any(|one| one == name), "{name} is missing: {names:?}");
    }
    for name in ["LD_PRELOAD", "LD_AUDIT"] {
        assert!(names.iter().all(|one| one != name), "{name} was passed on");
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An IPAM plugin that is not ours: it notes its stdin in `$0.stdin` and each verb in `$0.called`.
fn ipam_of_others(directory: &Path) {
    let answer = r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.9.9/24"}]}'"#;
    script(directory, "ipam-of-others", &format!("cat >$0.stdin; echo $CNI_COMMAND >>$0.called; {answer}"));
}

/// A bridge whose IPAM plugin is [`ipam_of_others`], searched in this `CNI_PATH`.
fn over_others(path: &str) -> Subject {
    let mut over = subject("bridge", json!({"bridge": "cni0", "ipam": {"type": "ipam-of-others"}}));
    over.env.push(("CNI_PATH".into(), path.into()));
    over
}

/// An attacker's change of a file or a directory.
type Attack<'a> = &'a dyn Fn(&Path);

/// V9, row 17: root executes a program that an attacker put into the working directory of a runtime whose `CNI_PATH` has a relative
/// entry.
#[test]
fn a_relative_directory_of_plugins_that_another_user_can_change_is_not_used() {
    let host = Host::new();
    let container = Host::new().container();
    let open = host.dir().join("open");
    let plugins = open.join("plugins");
    fs::create_dir_all(&plugins).unwrap();
    ipam_of_others(&plugins);
    let plugin = plugins.join("ipam-of-others");
    let call = |verb: &str, path: &str| {
        let relative = over_others(path);
        call_from(&plugins, &relative, &host, verb, &container.path())
    };
    // It belongs to root, as do all directories above it, and no other user may write there.
    for path in [".", "../plugins", "./no-such-directory:.", ":::."] {
        call("ADD", path).ok();
        call("DEL", path).ok();
    }
    fs::remove_file(plugins.join("ipam-of-others.called")).unwrap();
    let harmless = |what: &Path| mode(what, 0o755);
    let attacks: [(&str, &Path, Attack<'_>); 6] = [
        ("can be written by other users", &plugins, &|path| mode(path, 0o777)),
        ("can be written by other users", &plugins, &|path| mode(path, 0o1777)),
        ("can be written by other users", &plugins, &|path| mode(path, 0o775)),
        ("can be written by other users", &plugin, &|path| mode(path, 0o757)),
        ("can be written by other users", &open, &|path| mode(path, 0o777)),
        ("belongs to user 65534", &open, &|path| chown(path, Some(65534), None).unwrap()),
    ];
    for (why, what, attack) in attacks {
        attack(what);
        for verb in ["ADD", "DEL"] {
            let (code, text) = call(verb, ".:../plugins").refused();
            assert_eq!(code, 103, "{text}");
            assert!(text.contains(why) && text.contains(&what.display().to_string()), "{text}");
        }
        assert!(!plugins.join("ipam-of-others.called").exists(), "the attacker's plugin ran: {why}");
        chown(what, Some(0), None).unwrap();
        harmless(what);
    }
    // If a sticky directory such as /tmp is above a directory of root, no other user can replace that one.
    mode(&open, 0o1777);
    call("ADD", ".").ok();
    call("DEL", ".").ok();
    // An absolute directory is the operator's choice.
    mode(&open, 0o777);
    call("ADD", plugins.to_str().unwrap()).ok();
    call("DEL", plugins.to_str().unwrap()).ok();
    assert_eq!(host.sh("ip -br link show type veth"), "");
}

/// The same if a link and its target belong to root, and another user can replace a directory between them.
#[test]
fn a_relative_plugin_directory_behind_a_replaceable_link_is_not_used() {
    let host = Host::new();
    let container = Host::new().container();
    let plugins = host.dir().join("plugins");
    fs::create_dir_all(&plugins).unwrap();
    ipam_of_others(&plugins);
    let call = |verb: &str, path: &str| call_from(&plugins, &over_others(path), &host, verb, &container.path());
    let between = host.dir().join("between");
    fs::create_dir(&between).unwrap();
    symlink(between.join("second"), plugins.join("first")).unwrap();
    symlink(&plugins, between.join("second")).unwrap();
    for (why, attack) in [
        ("can be written by other users", &(|| mode(&between, 0o777)) as &dyn Fn()),
        ("belongs to user 65534", &|| chown(&between, Some(65534), None).unwrap()),
        ("belongs to user 65534", &|| lchown(between.join("second"), Some(65534), None).unwrap()),
    ] {
        call("ADD", "first").ok();
        call("DEL", "first").ok();
        fs::remove_file(plugins.join("ipam-of-others.called")).unwrap();
        attack();
        let (code, text) = call("ADD", "first").refused();
        assert!(code == 103 && text.contains(why) && text.contains("/between"), "{text}");
        assert!(!plugins.join("ipam-of-others.called").exists(), "the attacker's plugin ran: {why}");
        chown(&between, Some(0), None).unwrap();
        lchown(between.join("second"), Some(0), None).unwrap();
        mode(&between, 0o755);
    }
    assert_eq!(host.sh("ip -br link show type veth"), "");
}

/// An operator's own `CNI_PATH=./bin` still works: cnitool makes it absolute, also for delegates.
#[test]
fn cnitool_makes_relative_directories_of_plugins_absolute() {
    let host = Host::new();
    let container = Host::new().container();
    let here = host.dir().join("here");
    let plugins = here.join("bin");
    fs::create_dir_all(&plugins).unwrap();
    ipam_of_others(&plugins);
    symlink(bin().join("bridge"), plugins.join("bridge")).unwrap();
    mode(&here, 0o777);
    let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "ipam": {"type": "ipam-of-others"}});
    fs::create_dir(here.join("net.d")).unwrap();
    fs::write(here.join("net.d/10-net.conf"), conf.to_string()).unwrap();
    let tool = program("cnitool");
    for path in ["./bin", "bin", "../here/bin", "/no-such-directory:bin"] {
        for verb in ["add", "check", "del"] {
            let cnitool =
                format!("CNI_PATH={path} NETCONFPATH=net.d CNI_CACHE_DIR=cache {} {verb} net", tool.display());
            host.sh(&format!("cd {} && {cnitool} {}", here.display(), container.path()));
        }
    }
    let called = fs::read_to_string(plugins.join("ipam-of-others.called")).unwrap();
    assert_eq!(called, "ADD\nCHECK\nDEL\n".repeat(4));
}

/// On some mounts any user may write to every directory of plugins: a warning, or an error if the node's policy requires it.
#[test]
fn world_writable_plugins_are_reported_or_refused_by_node_policy() {
    let host = Host::new();
    let container = Host::new().container();
    let plugins = host.dir().join("plugins");
    fs::create_dir(&plugins).unwrap();
    ipam_of_others(&plugins);
    let plugin = plugins.join("ipam-of-others");
    let mut over = over_others(plugins.to_str().unwrap());
    over.env.push(("CNI_LOG".into(), "info".into()));
    let call = |verb: &str| over.call(&host, verb, "c-one", &container.path(), &[]);
    let output = call("ADD");
    assert!(!output.stderr.contains("any user may write"), "{output:?}");
    call("DEL").ok();
    for (what, open, usual) in [(&plugins, 0o777, 0o755), (&plugins, 0o1777, 0o755), (&plugin, 0o777, 0o755)] {
        mode(what, open);
        let warning = format!("any user may write to {}", what.display());
        for verb in ["ADD", "DEL"] {
            let output = call(verb);
            assert!(output.exit == 0 && output.stderr.contains(&warning), "{output:?}");
        }
        fs::remove_file(plugins.join("ipam-of-others.called")).unwrap();
        host.with_node_policy(r#"{"refuseWritablePlugins": true}"#, || {
            for verb in ["ADD", "DEL"] {
                let (code, text) = call(verb).refused();
                assert!(code == 103 && text.contains(&warning), "{code} {text}");
            }
            assert!(!plugins.join("ipam-of-others.called").exists(), "a plugin ran that the node refuses");
            mode(what, usual);
            call("ADD").ok();
            call("DEL").ok();
        });
    }
    assert_eq!(host.sh("ip -br link show type veth"), "");
}

/// `args.cni` as Multus copies it from a pod's annotation, in a spelling that a Go plugin would accept too.
fn tenants_args() -> Value {
    json!({"cni": {"mac": "02:11:22:33:44:55", "ips": ["10.77.0.200/24"]}, "CNI": {"mac": "02:11:22:33:44:55"}, "other": 1})
}

#[test]
fn the_node_policy_ignores_args_of_tenants() {
    let host = Host::new();
    let container = Host::new().container();
    let plugins = host.dir().join("plugins");
    fs::create_dir(&plugins).unwrap();
    ipam_of_others(&plugins);
    let mut others = over_others(plugins.to_str().unwrap());
    others.env.push(("CNI_LOG".into(), "info".into()));
    let ours = subject("bridge", json!({"bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}));
    let ours = ours.at(host.dir());
    let more = [("Args", tenants_args()), ("runtimeConfig", json!({"portMappings": []}))];
    let call = |subject: &Subject, verb: &str| subject.call(&host, verb, "c-one", &container.path(), &more);
    let given =
        || -> Value { serde_json::from_slice(&fs::read(plugins.join("ipam-of-others.stdin")).unwrap()).unwrap() };
    // Without the policy they are served, as upstream serves them.
    let result = call(&ours, "ADD").ok();
    assert_eq!(result["ips"][0]["address"], "10.77.0.200/24");
    assert!(container.sh("ip link show eth0").contains("02:11:22:33:44:55"));
    call(&ours, "DEL").ok();
    call(&others, "ADD").ok();
    assert_eq!(given()["Args"], tenants_args());
    call(&others, "DEL").ok();
    for policy in [r#"{"ignoreArgs": true}"#, r#"{"refuseWritablePlugins": false, "ignoreArgs": true}"#] {
        host.with_node_policy(policy, || {
            let result = call(&ours, "ADD").ok();
            assert_eq!(
                result["ips"][0]["address"].as_str().map(|text| text != "10.77.0.200/24"),
                Some(true),
                "{result}"
            );
            assert!(!container.sh("ip link show eth0").contains("02:11:22:33:44:55"));
            call(&ours, "DEL").ok();
            for verb in ["ADD", "DEL"] {
                let output = call(&others, verb);
                assert!(output.exit == 0 && output.stderr.contains("args.cni is ignored"), "{output:?}");
                let given = given();
                assert_eq!(given["Args"], json!({"other": 1}), "{given}");
                assert_eq!(given["runtimeConfig"], json!({"portMappings": []}), "what a runtime says is not shut out");
            }
        });
    }
    host.with_node_policy(r#"{"ignoreArgs": false}"#, || {
        call(&others, "ADD").ok();
        assert_eq!(given()["Args"], tenants_args());
        call(&others, "DEL").ok();
    });
}

/// A network list, a runtime or a tenant cannot set the policy.
#[test]
fn only_root_sets_the_policy_of_the_node() {
    let host = Host::new();
    let container = Host::new().container();
    let ours = subject("bridge", json!({"bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}));
    let mut ours = ours.at(host.dir()).with("ignoreArgs", json!(false)).with("args", tenants_args());
    ours.env = [("NODE_POLICY", "/dev/null"), ("HOME", "/nowhere"), ("XDG_CONFIG_HOME", "/nowhere")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    host.with_node_policy(r#"{"ignoreArgs": true}"#, || {
        let result = ours.add(&host, "c-one", &container);
        assert_ne!(result["ips"][0]["address"], "10.77.0.200/24");
        ours.del(&host, "c-one", &container, &result);
    });
}

/// In the user namespace of rootless Podman, root of the host has no number, and its policy counts all the same.
#[test]
fn the_policy_of_the_hosts_root_counts_in_a_user_namespace() {
    let host = Host::new();
    let status = as_another_user("unshare --user --map-root-user /etc/static");
    let line = format!(
        r#"echo '{{"cniVersion":"1.1.0","name":"n","type":"static","ipam":{{"type":"static"}}}}' | CNI_COMMAND=STATUS CNI_PATH=/etc {status}"#
    );
    for (policy, works, says) in [("{}", true, ""), (r#"{"slip": true}"#, false, "unknown field `slip`")] {
        host.with_node_policy(policy, || {
            // A path that the other user can reach, because the directories of tests are closed to them.
            fs::copy(program("cni-plugins"), "/etc/static").unwrap();
            let (succeeded, text) = host.try_sh(&line);
            assert_eq!(succeeded, works, "{text}");
            assert!(text.contains(says), "{text}");
        });
    }
}

const FILE: &str = "/etc/cnikit/node.json";

/// A host with a policy, a container and the plugin that it is attached by.
struct PolicyNode {
    host: Host,
    container: Container,
    ours: Subject,
}

impl PolicyNode {
    fn new() -> PolicyNode {
        let host = Host::new();
        let container = Host::new().container();
        let keys = json!({"bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}});
        let ours = subject("bridge", keys).at(host.dir());
        PolicyNode { host, container, ours }
    }

    /// After this attack on the policy all verbs fail with this reason, except DEL and GC.
    fn fails(&self, why: &str, attack: &(dyn Fn() + Sync)) {
        let PolicyNode { host, container, ours } = self;
        host.with_node_policy("{}", || {
            let result = ours.add(host, "c-one", container);
            attack();
            let prev = ("prevResult", result.clone());
            for verb in ["ADD", "CHECK", "STATUS", "PLAN"] {
                let id = if verb == "ADD" { "c-two" } else { "c-one" };
                let (code, text) = ours.call(host, verb, id, &container.path(), std::slice::from_ref(&prev)).refused();
                let names = text.contains("the node's policy cannot be used: /etc/");
                assert!(code == 7 && names && text.contains(why), "{verb}: {code} {text}");
            }
            ours.del(host, "c-one", container, &result);
            let none = ("cni.dev/valid-attachments", json!([]));
            ours.call(host, "GC", "", "", &[none]).ok();
        });
        assert_eq!(host.sh("ip -br link show type veth"), "");
    }
}

/// A policy that cannot be trusted or understood fails an ADD, names the file and the cause, and stops no DEL.
#[test]
fn a_policy_that_cannot_be_used_fails_add_and_never_del() {
    let node = PolicyNode::new();
    let fails = |why: &str, attack: &(dyn Fn() + Sync)| node.fails(why, attack);
    let file = || PathBuf::from(FILE);
    for (text, why) in [
        (r#"{"ignoreargs": true}"#, "unknown field `ignoreargs`"),
        (r#"{"ignoreArgs": true, "ignoreArgs": false}"#, "duplicate field `ignoreArgs`"),
        (r#"{"ignoreArgs": "yes"}"#, "invalid type"),
        ("", "EOF"),
        ("[]x", ""),
    ] {
        fails(why, &|| fs::write(FILE, text).unwrap());
    }
    fails("longer than 64 KiB", &|| fs::write(FILE, " ".repeat(1 << 20) + "{}").unwrap());
    fails("users other than root may write to it", &|| mode(&file(), 0o646));
    fails("users other than root may write to it", &|| mode(&file(), 0o664));
    fails("users other than root may write to it", &|| mode(Path::new("/etc/cnikit"), 0o777));
    fails("belongs to user 65534", &|| chown(FILE, Some(65534), None).unwrap());
    fails("not a regular file", &|| {
        fs::remove_file(FILE).unwrap();
        nix::unistd::mkfifo(FILE, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
    });
    fails("", &|| {
        fs::remove_file(FILE).unwrap();
        symlink("node.json", FILE).unwrap();
    });
}

/// Moves the policy to this path, and links to it from its first path.
fn move_policy(to: &str) {
    let to = Path::new(to);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::rename(FILE, to).unwrap();
    symlink(to, FILE).unwrap();
}

/// A link of root to a file of root, in a directory where another user can replace the file or a link to it.
#[test]
fn a_node_policy_behind_a_link_that_users_can_replace_is_refused() {
    let node = PolicyNode::new();
    let fails = |why: &str, attack: &(dyn Fn() + Sync)| node.fails(why, attack);
    fails("users other than root may write to it", &|| {
        move_policy("/etc/real/policy/node.json");
        mode(Path::new("/etc/real/policy"), 0o777);
    });
    fails("users other than root may write to it", &|| {
        move_policy("/etc/real/policy/node.json");
        mode(Path::new("/etc/real/policy"), 0o1777);
    });
    fails("users other than root may write to it", &|| {
        move_policy("/etc/real/policy/node.json");
        mode(Path::new("/etc/real"), 0o775);
    });
    fails("belongs to user 65534", &|| {
        move_policy("/etc/real/policy/node.json");
        chown("/etc/real", Some(65534), None).unwrap();
    });
    fails("belongs to user 65534", &|| {
        move_policy("/etc/real/node.json");
        fs::create_dir("/etc/between").unwrap();
        symlink("/etc/real/node.json", "/etc/between/node.json").unwrap();
        fs::remove_file(FILE).unwrap();
        symlink("../between/node.json", FILE).unwrap();
        lchown("/etc/between/node.json", Some(65534), None).unwrap();
    });
    fails("users other than root may write to it", &|| {
        move_policy("/etc/real/node.json");
        fs::create_dir("/etc/between").unwrap();
        symlink("/etc/real/node.json", "/etc/between/node.json").unwrap();
        fs::remove_file(FILE).unwrap();
        symlink("../between/node.json", FILE).unwrap();
        mode(Path::new("/etc/between"), 0o777);
    });
    // Programs that manage configurations make links, also through a sticky directory.
    node.host.with_node_policy("{}", || {
        move_policy("/etc/sticky/real/node.json");
        mode(Path::new("/etc/sticky"), 0o1777);
        let result = node.ours.add(&node.host, "c-one", &node.container);
        node.ours.del(&node.host, "c-one", &node.container, &result);
    });
}

/// A node without a policy needs one system call for it.
#[test]
fn a_node_without_a_policy_pays_one_open() {
    let host = Host::new();
    let container = Host::new().container();
    let ours = subject("bridge", json!({"bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}));
    let ours = ours.at(host.dir());
    let (directory, calls) = traced(&ours, "%file");
    let traced = ours.in_directory(directory.path());
    let result = traced.add(&host, "c-one", &container);
    let about: Vec<String> = calls().into_iter().filter(|call| call.contains("/etc/cnikit")).collect();
    assert!(about.len() == 1 && about[0].starts_with("open"), "{about:?}");
    ours.del(&host, "c-one", &container, &result);
}

/// Control sequences of a terminal: clear the screen, set the title, move the cursor, write from right to left.
const TERMINAL: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\r\u{202e}\u{7f}";

/// Whether no terminal would execute a part of this text.
fn is_harmless(text: &str) -> bool {
    text.chars().all(|letter| letter == '\n' || letter == '\t' || !(letter.is_control() || letter == '\u{202e}'))
}

/// V11, row 45: plugins and namespaces choose texts that cnitool shows to an operator.
#[test]
fn nothing_of_plugins_and_namespaces_is_obeyed_by_a_terminal() {
    let host = Host::new();
    let container = Host::new().container();
    let plugins = host.dir().join("bin");
    fs::create_dir(&plugins).unwrap();
    let error =
        json!({"cniVersion": "1.1.0", "code": 7, "msg": TERMINAL, "details": format!("{TERMINAL}\nError: forged")});
    fs::write(plugins.join("error.json"), error.to_string()).unwrap();
    fs::write(plugins.join("stderr"), format!("{TERMINAL} log\n")).unwrap();
    script(&plugins, "hostile", "cat ${0%/*}/stderr >&2; cat ${0%/*}/error.json; exit 1");
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": container.path()}],
        "ips": [{"address": "10.9.9.9/24", "interface": 0}],
        "dns": {"domain": TERMINAL},
    });
    fs::write(plugins.join("result.json"), result.to_string()).unwrap();
    script(&plugins, "sly", "cat ${0%/*}/stderr >&2; [ $CNI_COMMAND != ADD ] || cat ${0%/*}/result.json");
    let networks = host.dir().join("net.d");
    fs::create_dir(&networks).unwrap();
    for name in ["hostile", "sly"] {
        let conf = json!({"cniVersion": "1.1.0", "name": name, "type": name, "key": TERMINAL, TERMINAL: 1});
        fs::write(networks.join(format!("10-{name}.conf")), conf.to_string()).unwrap();
    }
    fs::write(networks.join(format!("20-{}.conf", TERMINAL.replace('/', ""))), format!("{{{TERMINAL}")).unwrap();
    // An alias may have any byte.
    let odd = TERMINAL.replace('\r', "");
    container.sh(&format!("ip link add eth0 type veth peer name peer0 && ip link set eth0 alias '{odd}'"));
    let tool = program("cnitool");
    let run = |words: &str| {
        let dirs = format!(
            "CNI_PATH={} NETCONFPATH={} CNI_CACHE_DIR={}",
            plugins.display(),
            networks.display(),
            host.dir().join("cache").display()
        );
        host.try_sh(&format!("{dirs} {} {words}", tool.display()))
    };
    let netns = container.path();
    let (succeeded, output) = run(&format!("add hostile {netns}"));
    assert!(!succeeded && is_harmless(&output), "{output:?}");
    assert!(output.contains("\\u001b[2J") && output.contains("\\u009b31m") && output.contains("\\u202e"), "{output}");
    assert!(output.lines().all(|line| !line.starts_with("Error: forged")), "{output}");
    let (succeeded, output) = run(&format!("add sly {netns} 2>/dev/null"));
    assert!(succeeded && is_harmless(&output), "{output:?}");
    let shown: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(shown["dns"]["domain"], TERMINAL, "escaped, and the same document");
    for words in [
        "list",
        "list --live",
        "list --json",
        "show --json",
        "validate",
        "config explain",
        "validate --json",
        "config explain --json",
        "version sly",
        "version hostile",
        "status hostile",
        "netns list",
        "list --color always",
    ] {
        let (_, output) = run(words);
        let ours = ["0", "1", "2", "31", "32", "33"].map(|code| format!("\u{1b}[{code}m"));
        let foreign = ours.iter().fold(output.clone(), |text, code| text.replace(code, ""));
        assert!(!output.is_empty() && is_harmless(&foreign), "cnitool {words}: {output:?}");
    }
    for verb in ["check", "plan", "del"] {
        let (_, output) = run(&format!("{verb} sly {netns}"));
        assert!(is_harmless(&output), "cnitool {verb}: {output:?}");
    }
    run(&format!("add sly {netns} >/dev/null 2>&1"));
    let (_, listed) = run("list --json");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let text = listed.to_string();
    let id = text.split("cnitool-").nth(1).and_then(|rest| rest.get(..20)).unwrap();
    let (succeeded, output) = run(&format!("show cnitool-{id}"));
    assert!(succeeded && is_harmless(&output), "{output:?}");
}

/// The log of a delegated plugin reaches the runtime's log, or a terminal, through us.
#[test]
fn nothing_of_a_delegated_plugins_log_is_obeyed_by_a_terminal() {
    let host = Host::new();
    let container = Host::new().container();
    let plugins = host.dir().join("plugins");
    fs::create_dir(&plugins).unwrap();
    fs::write(plugins.join("stderr"), format!("{TERMINAL} log\nnext line\n")).unwrap();
    script(&plugins, "ipam-of-others", "cat ${0%/*}/stderr >&2; exit 2");
    let output = over_others(plugins.to_str().unwrap()).call(&host, "ADD", "c-one", &container.path(), &[]);
    assert!(is_harmless(&output.stderr) && output.stderr.contains(" log\nnext line\n"), "{:?}", output.stderr);
    let (code, text) = output.refused();
    assert!(code == 103 && text.contains("log"), "{code} {text}");
}

/// The capabilities that docs/adr/0001-privileges.md lists: a runtime may be restricted to these, and so its plugins. `SYS_PTRACE`
/// is for the path of the namespace, which is in `/proc` of a process that has all capabilities.
#[test]
fn three_capabilities_are_all_that_plugins_need_with_nftables() {
    let host = Host::new();
    let container = Host::new().container();
    let restricted = host.dir().join("restricted");
    fs::create_dir(&restricted).unwrap();
    for name in ["bridge", "portmap", "firewall"] {
        let caps = "-all,+net_admin,+sys_admin,+sys_ptrace";
        let setpriv = format!("exec setpriv --inh-caps=-all --bounding-set={caps} --no-new-privs");
        script(&restricted, name, &format!("{setpriv} {}", bin().join(name).display()));
    }
    let of = |plugin: &str, conf: Value| {
        let mut subject = subject(plugin, conf).at(host.dir()).in_directory(restricted.clone());
        subject.env.push(("CNI_PATH".into(), bin().display().to_string()));
        subject
    };
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    let bridge = of(
        "bridge",
        json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, "ipam": ipam}),
    );
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    let portmap = of("portmap", json!({"backend": "nftables", "runtimeConfig": ports}));
    let firewall = of("firewall", json!({"backend": "nftables"}));
    let result = bridge.add(&host, "c-one", &container);
    for chained in [&portmap, &firewall] {
        chained.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", result.clone())]).ok();
    }
    for subject in [&bridge, &portmap, &firewall] {
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
    }
}

/// docs/adr/0003-static-pie.md: the code of a plugin is at a random address; see elf(5).
#[test]
fn installed_binaries_are_static_and_position_independent() {
    const ET_DYN: u16 = 3;
    const PT_INTERP: u32 = 3;
    let file = fs::read(installed().join("bridge")).unwrap();
    let number = |at: usize, length: usize| {
        file[at..at + length].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    assert_eq!((&file[..4], file[4]), (b"\x7fELF".as_slice(), 2), "ELF of 64 bits");
    assert_eq!(number(16, 2), u64::from(ET_DYN), "it is linked to a fixed address");
    let table = number(32, 8);
    let size = number(54, 2);
    let count = number(56, 2);
    for header in 0..count {
        let at = usize::try_from(table + header * size).unwrap();
        assert_ne!(number(at, 4), u64::from(PT_INTERP), "it needs a dynamic loader");
    }
    assert!(count > 0);
}
