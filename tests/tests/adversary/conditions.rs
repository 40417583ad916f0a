//! `conditionsV4` and `conditionsV6` of portmap with options of iptables that are not matches.

use std::path::Path;

use cnikit_testkit::{CallOutput, Container, Host, Subject};
use cnikit_tests::subject;
use cnikit_tests::way::{Way, on_path, script};
use serde_json::json;

/// Options of iptables, ip6tables and their restore programs that match nothing, with the letter of each that has one.
const NO_MATCHES: [(&str, &str); 29] = [
    ("append", "A"),
    ("check", "C"),
    ("delete", "D"),
    ("delete-chain", "X"),
    ("exact", "x"),
    ("flush", "F"),
    ("goto", "g"),
    ("help", "h"),
    ("insert", "I"),
    ("ipv4", "4"),
    ("ipv6", "6"),
    ("jump", "j"),
    ("line-numbers", ""),
    ("list", "L"),
    ("list-rules", "S"),
    ("modprobe", "M"),
    ("new-chain", "N"),
    ("numeric", "n"),
    ("policy", "P"),
    ("protocol", "p"),
    ("rename-chain", "E"),
    ("replace", "R"),
    ("set-counters", "c"),
    ("table", "t"),
    ("verbose", "v"),
    ("version", "V"),
    ("wait", "w"),
    ("wait-interval", "W"),
    ("zero", "Z"),
];

/// Publishes a port under conditions.
fn publish(host: &Host, container: &Container, portmap: &Subject, words: &[&str]) -> CallOutput {
    let prev = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": container.path()}],
        "ips": [{"address": "10.1.2.3/24", "interface": 0}],
    });
    let portmap = portmap.with("conditionsV4", json!(words));
    portmap.call(host, "ADD", "c-one", &container.path(), &[("prevResult", prev)])
}

fn portmap() -> Subject {
    let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    subject("portmap", json!({"backend": "iptables", "runtimeConfig": {"portMappings": mappings}}))
}

/// Calls `iptables-restore` in a mount namespace in which it cannot see that the kernel module is loaded, so that it starts the
/// program that loads modules.
fn restore_unloaded(host: &Host, half: Way, words: &str) -> (bool, String) {
    let lines = format!(r"*nat\n:X - [0:0]\n-A X {words} -m recent --set -j RETURN\nCOMMIT\n");
    let restore = format!("printf '{lines}' | iptables-{}-restore --noflush", half.half());
    host.try_sh(&format!("unshare --mount sh -c \"mount -t tmpfs none /proc; {restore}\""))
}

#[test]
fn no_condition_names_a_program_that_is_started() {
    let host = Host::new();
    let container = Host::new().container();
    let program = host.dir().join("program");
    let ran = host.dir().join("ran");
    script(host.dir(), "program", &format!("echo \"$@\" >> {}", ran.display()));
    let path = program.display().to_string();
    let mut forms: Vec<Vec<String>> = Vec::new();
    for end in "mo".len()..="modprobe".len() {
        let option = &"modprobe"[..end];
        forms.extend([vec![format!("--{option}={path}")], vec![format!("--{option}"), path.clone()]]);
    }
    forms.extend(["-M", "-fM", "-4M", "-f4M"].map(|letters| vec![format!("{letters}{path}")]));
    forms.push(vec!["-M".into(), path.clone()]);
    for form in &forms {
        // The attack: iptables starts the program.
        restore_unloaded(&host, Way::IptablesLegacy, &form.join(" "));
        assert!(std::fs::remove_file(&ran).is_ok(), "{form:?} starts no program: the test shows nothing");
        for half in Way::HALVES {
            let words: Vec<&str> = form.iter().map(String::as_str).collect();
            let programs = half.directory();
            let (code, text) = publish(&host, &container, &on_path(&portmap(), programs.path()), &words).refused();
            assert_eq!(code, 7, "{form:?}: {text}");
            assert!(text.contains("is not a match"), "{form:?}: {text}");
        }
    }
    assert!(!Path::new(&ran).exists());
    // Accepted conditions start no program, with either variant.
    for half in Way::HALVES {
        restore_unloaded(&host, half, "-f -m mark --mark 1");
    }
    assert!(!Path::new(&ran).exists());
}

/// Each refused option, with as many values as it could have, is either refused by iptables itself or leaves the rule without a
/// change.
#[test]
fn nothing_that_is_refused_is_a_match() {
    let host = Host::new();
    let container = Host::new().container();
    let long = NO_MATCHES.iter().map(|(option, _)| format!("--{option}"));
    let short = NO_MATCHES.iter().filter(|(_, letter)| !letter.is_empty()).map(|(_, letter)| format!("-{letter}"));
    let forms: Vec<String> = long.chain(short).collect();
    for form in &forms {
        let (code, text) = publish(&host, &container, &portmap(), &[form]).refused();
        assert!(code == 7 && text.contains(&format!("{form:?} is not a match")), "{text}");
    }
    for half in Way::HALVES.map(Way::half) {
        let mut lines = Vec::new();
        for form in &forms {
            for values in ["", " 1", " 1 1", " RETURN", " tcp"] {
                let made = format!("T -N X; T -A X -i eth9 {form}{values}; T -S X; T -F X; T -X X");
                lines.push(format!("echo '? {form}{values}'; {made}"));
            }
        }
        let table = format!("T() {{ iptables-{half} -t nat \"$@\" </dev/null 2>/dev/null; }}");
        let (_, output) = host.try_sh(&format!("{table}\n{}\ntrue", lines.join("\n")));
        let mut form = "";
        let mut rules = 0;
        for line in output.lines() {
            form = line.strip_prefix("? ").unwrap_or(form);
            let Some(rule) = line.strip_prefix("-A X") else { continue };
            rules += 1;
            let is_target = [" -j RETURN", " -g RETURN"].iter().any(|target| rule.ends_with(target));
            // portmap writes the protocol itself, and a rule accepts only one.
            let is_protocol = form.starts_with("-p ") || form.starts_with("--protocol ");
            assert!(rule == " -i eth9" || is_target || is_protocol, "{half}: {form}: {rule}");
        }
        assert!(rules > 10, "{half}: iptables made {rules} rules: the test shows nothing:\n{output}");
    }
}

/// No option of any installed extension is mistaken for one of iptables itself.
#[test]
fn every_option_of_every_match_is_taken() {
    let host = Host::new();
    let container = Host::new().container();
    let list = "ls /usr/lib/*/xtables";
    let mut tried = 0;
    for file in host.sh(list).lines() {
        let name = ["libxt_", "libipt_"].iter().find_map(|prefix| file.strip_prefix(prefix)?.strip_suffix(".so"));
        let is_match = |name: &&str| !name.starts_with(|first: char| first.is_ascii_uppercase()) && *name != "standard";
        let Some(name) = name.filter(is_match) else { continue };
        let (_, help) = host.try_sh(&format!("iptables -m {name} -h"));
        let Some((_, own)) = help.split_once("print package version.") else { panic!("{name}: {help}") };
        let letters = |c: char| !c.is_ascii_lowercase() && c != '-';
        let options: Vec<&str> = own.split(letters).filter(|word| word.starts_with("--") && word.len() > 3).collect();
        tried += options.len();
        let words: Vec<&str> = ["-m", name].into_iter().chain(options).collect();
        let output = publish(&host, &container, &portmap(), &words);
        if output.exit != 0 {
            let (code, text) = output.refused();
            assert!(code != 7 && !text.contains("is not a match"), "{words:?}: {text}");
        }
    }
    assert!(tried > 150, "{tried} options were tried");
    let taken = ["-f", "-m", "recent", "--set", "--name", "seen", "!", "-s", "192.0.2.0/24", "--out-interface", "eth+"];
    publish(&host, &container, &portmap(), &taken).ok();
}
