//! Programs that a plugin starts: where they are looked up, their environment, and what of their output reaches a terminal.

use std::fs;
use std::path::Path;

use cnikit_testkit::{Host, Said, Subject};
use cnikit_tests::way::{PROGRAMS, on_path, script};
use cnikit_tests::{bin, bridge};
use serde_json::json;

/// One call that is made with `directory` as the working directory.
fn call_from(directory: &Path, subject: &Subject, host: &Host, verb: &str, netns: &str) -> Said {
    let plugin = subject.bin.join(&subject.plugin);
    script(host.dir(), "from", &format!("cd {} && exec {}", directory.display(), plugin.display()));
    let moved = Subject { bin: host.dir().to_owned(), plugin: "from".into(), ..subject.clone() };
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

/// What an attacker may have put into the environment of a runtime, and what a runtime usually has there.
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
fn iptables_gets_path_and_its_lock_file_and_nothing_else_of_the_callers_environment() {
    let (host, container) = (Host::new(), Host::new().container());
    let (programs, log) = (host.dir().join("programs"), host.dir().join("env"));
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
    let (host, container) = (Host::new(), Host::new().container());
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

/// A delegated plugin is somebody else's program: it gets what the runtime gave us, as from upstream plugins, except what makes the
/// dynamic loader run code.
#[test]
fn a_delegated_plugin_gets_the_callers_environment_without_ld_preload_and_ld_audit() {
    let (host, container) = (Host::new(), Host::new().container());
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
