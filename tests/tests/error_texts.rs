//! The exact texts of the errors that users meet most: `tests/golden/errors.txt`.
//!
//! `CNIKIT_UPDATE=1 cargo test -p cnikit-tests --test error_texts` writes the file again, with the texts as they are. Read what
//! changed.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::disallowed_methods, reason = "a variable requests that the file is written again")]

use std::fmt::Write as _;
use std::path::PathBuf;

use cnikit_testkit::{Container, Host};
use cnikit_tests::{bin, program};
use serde_json::{Value, json};

/// The words at the beginning of the lines of a failure, and what follows them.
///
/// - `host LINE`: a shell line on the host, before the call. `DIR` is the directory of the failure.
/// - `file NAME TEXT`: a file in the directory of configurations.
/// - `first PLUGIN VERB KEYS VARIABLES`: a call that must succeed, for a container `first`, which has a namespace of its own.
/// - `call PLUGIN VERB KEYS VARIABLES`: the call that fails. `KEYS` are JSON without spaces, and are added to those of [`base`];
///   `VARIABLES` are `NAME=VALUE`.
/// - `cnitool ARGUMENTS`: or this one. `NETNS` is the container's namespace.
/// - `= TEXT`: a line of the error.
struct Case {
    /// The lines before the error.
    lines: Vec<String>,
    /// The lines of the error.
    error: Vec<String>,
}

fn golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/errors.txt"))
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(golden()).unwrap();
    let mut all = Vec::new();
    for block in text.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let mut case = Case { lines: Vec::new(), error: Vec::new() };
        for line in block.lines() {
            match line.strip_prefix("= ") {
                Some(error) => case.error.push(error.to_owned()),
                None => case.lines.push(line.to_owned()),
            }
        }
        all.push(case);
    }
    all
}

/// A small valid configuration.
fn base(plugin: &str, dir: &str) -> Value {
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": format!("{dir}/networks")});
    let mut conf = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
    match plugin {
        "loopback" | "flannel" => {}
        "static" => conf["ipam"] = json!({"type": "static", "addresses": [{"address": "10.77.0.9/24"}]}),
        "firewall" | "portmap" | "tuning" | "sbr" | "vrf" | "bandwidth" => {
            conf["prevResult"] = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "NETNS"}],
                "ips": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1", "interface": 0}]});
            if ["tuning", "sbr", "vrf"].contains(&plugin) {
                conf["dataDir"] = json!(format!("{dir}/{plugin}"));
            }
        }
        _ => conf["ipam"] = ipam,
    }
    if ["macvlan", "ipvlan", "vlan"].contains(&plugin) {
        conf["master"] = json!("lo");
    }
    conf
}

/// Adds the members of an object to another; a null removes one.
fn merge(conf: &mut Value, keys: &Value) {
    for (key, value) in keys.as_object().unwrap() {
        match value {
            Value::Null => _ = conf.as_object_mut().unwrap().shift_remove(key),
            Value::Object(_) if conf[key].is_object() => merge(&mut conf[key], value),
            value => conf[key] = value.clone(),
        }
    }
}

/// The host and the containers of one failure.
struct Scene {
    host: Host,
    first: Container,
    container: Container,
    dir: String,
}

impl Scene {
    fn new() -> Scene {
        let host = Host::new();
        let dir = host.dir().display().to_string();
        std::fs::create_dir(host.dir().join("net.d")).unwrap();
        Scene { first: host.container(), container: host.container(), host, dir }
    }

    /// A text with the names of this scene in place of its own.
    fn filled(&self, text: &str, container: &Container) -> String {
        text.replace("NETNS", &container.path()).replace("DIR", &self.dir)
    }

    /// Calls a plugin; returns its exit status and its stdout.
    fn call(&self, words: &str, id: &str, container: &Container) -> (i32, String) {
        let mut words = words.split(' ');
        let (plugin, verb) = (words.next().unwrap(), words.next().unwrap());
        let keys = words.next().unwrap_or("{}");
        let mut conf = base(plugin, &self.dir);
        let stdin = match serde_json::from_str::<Value>(keys) {
            Ok(keys) if !conf_is_text(keys.get("stdin")) => {
                merge(&mut conf, &keys);
                conf.to_string()
            }
            Ok(keys) => keys["stdin"].as_str().unwrap().to_owned(),
            Err(error) => panic!("{keys}: {error}"),
        };
        let mut env: Vec<(String, String)> = Vec::new();
        for (name, value) in [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", &container.path()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", &bin().display().to_string()),
        ] {
            env.push((name.to_owned(), value.to_owned()));
        }
        for word in words {
            let (name, value) = word.split_once('=').unwrap();
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), self.filled(value, container)));
        }
        let stdin = self.filled(&stdin, container);
        let (status, stdout, stderr) = self.host.run(&bin().join(plugin), &env, stdin.as_bytes());
        (status, String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    /// The lines of the error of a case.
    fn error(&self, case: &Case) -> Vec<String> {
        let mut error = Vec::new();
        for line in &case.lines {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "#" => {}
                "host" => _ = self.host.sh(&self.filled(rest, &self.container)),
                "file" => {
                    let (name, text) = rest.split_once(' ').unwrap();
                    let file = self.host.dir().join("net.d").join(name);
                    std::fs::write(file, self.filled(text, &self.container)).unwrap();
                }
                "first" => {
                    let (status, output) = self.call(rest, "first", &self.first);
                    assert_eq!(status, 0, "{line}: {output}");
                }
                "call" => {
                    let (status, output) = self.call(rest, "second", &self.container);
                    assert_eq!(status, 1, "{line}: {output}");
                    error = of_plugin(&serde_json::from_str(&output).unwrap());
                }
                "cnitool" => error = self.cnitool(rest),
                other => panic!("{other} is not the first word of a line: {line}"),
            }
        }
        error.iter().map(|line| self.general(line)).collect()
    }

    fn cnitool(&self, arguments: &str) -> Vec<String> {
        let line = format!(
            "cd {dir} && env -u CNI_ARGS NETCONFPATH={dir}/net.d CNI_PATH={bin} CNI_CACHE_DIR={dir}/cache {tool} {arguments} 2>&1 >/dev/null",
            dir = self.dir,
            bin = bin().display(),
            tool = program("cnitool").display(),
            arguments = self.filled(arguments, &self.container),
        );
        let (is_success, output) = self.host.try_sh(&line);
        assert!(!is_success, "{line}: {output}");
        output.trim_end().lines().map(str::to_owned).collect()
    }

    /// A line with general names in place of those of this scene.
    fn general(&self, line: &str) -> String {
        let mut line = line.replace(&self.dir, "DIR").replace(&bin().display().to_string(), "BIN");
        for (container, name) in [(&self.container, "NETNS"), (&self.first, "FIRST")] {
            line = line.replace(&container.path(), name);
        }
        // A hash of the namespace's path.
        match line.split_once("container cnitool-") {
            Some((before, after)) => {
                let rest = after.trim_start_matches(|letter: char| letter.is_ascii_hexdigit());
                format!("{before}container cnitool-HASH{rest}")
            }
            None => line,
        }
    }
}

fn conf_is_text(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_string)
}

/// The code and the message of an error, and its hint. The other details name the call.
fn of_plugin(error: &Value) -> Vec<String> {
    let details = error["details"].as_str().unwrap();
    let mut lines = vec![format!("{} {}", error["code"], error["msg"].as_str().unwrap())];
    let (_, hint) = details.split_once("hint: ").unwrap_or_else(|| panic!("{error} has no hint"));
    lines.push(format!("hint: {hint}"));
    lines
}

/// Words that no error text has: plainer ones exist.
const AVOIDED: [&str; 12] = [
    "somebody",
    "nobody",
    "stranger",
    "stands",
    "bears",
    "goes by",
    "told",
    "judged",
    "passed over",
    "remedy",
    "but for",
    "the reference",
];

#[test]
fn every_error_has_its_text() {
    let mut text = String::new();
    let mut wrong = Vec::new();
    let all = cases();
    assert!(all.len() >= 80, "{} failures", all.len());
    for case in &all {
        let error = Scene::new().error(case);
        if error != case.error {
            wrong.push(format!(
                "{}:\n  is       {}\n  expected {}",
                case.lines.join("\n"),
                error.join("\n           "),
                case.error.join("\n           ")
            ));
        }
        let whole = error.join(" ");
        let avoided: Vec<&&str> = AVOIDED.iter().filter(|word| whole.contains(**word)).collect();
        if !avoided.is_empty() {
            wrong.push(format!("{whole}: {avoided:?}"));
        }
        if whole.contains(" name=\"") && whole.contains(", network ") {
            wrong.push(format!("{whole}: names the network twice"));
        }
        if !whole.contains("hint: ") && !whole.contains("--help") {
            wrong.push(format!("{} does not say what to do: {whole}", case.lines.join("; ")));
        }
        writeln!(text, "{}\n= {}\n", case.lines.join("\n"), error.join("\n= ")).unwrap();
    }
    if std::env::var_os("CNIKIT_UPDATE").is_some() {
        std::fs::write(golden(), text.trim_end().to_owned() + "\n").unwrap();
    }
    assert!(wrong.is_empty(), "{} texts differ:\n{}", wrong.len(), wrong.join("\n"));
}
