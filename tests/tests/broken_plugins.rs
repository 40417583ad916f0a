//! Plugins that are broken on purpose, each in one way: the testkit finds every one. And what the testkit finds in none of ours.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bridge::BridgePlugin;
use cnikit::plan::{ApplyContext, Drifts, Kind, Made, Plan, Resource};
use cnikit::types::NetConf;
use cnikit::{Addresses, AttachmentSpec, InterfacePlugin, Journal, Result, Source, Sources};
use cnikit_netlink::NewBridge;
use cnikit_testkit::life::Tampering;
use cnikit_testkit::{Host, Subject, errno, fault, flood, kill, life, transcripts};
use cnikit_tests::transcripts::scenes;
use cnikit_tests::{HOST_LOCAL, dual_stack, each_subject, subject};
use serde::Deserialize;
use serde_json::json;

/// A plugin that is broken: a shell script that is called in its place, and calls it.
struct Broken {
    /// What is wrong with it.
    what: &'static str,
    /// The lines of the script. `$real` is the plugin.
    lines: &'static str,
    /// The check of the testkit that finds it.
    check: fn(&Subject),
    /// A text of the finding.
    finds: &'static str,
}

const BROKEN: &[Broken] = &[
    Broken {
        what: "GC does nothing",
        lines: r#"[ "$CNI_COMMAND" != GC ] || exit 0"#,
        check: life::removes_invalid,
        finds: "after the GC of bridge, with c-valid valid",
    },
    Broken {
        what: "GC removes valid attachments too",
        lines: r#"[ "$CNI_COMMAND" != GC ] || exec sh -c 'sed "s/\"containerID\":\"[^\"]*\"/\"containerID\":\"none\"/g" | "$0"' "$real""#,
        check: life::removes_invalid,
        finds: "after the GC of bridge, with c-valid valid",
    },
    Broken {
        what: "CHECK sees nothing",
        lines: r#"[ "$CNI_COMMAND" != CHECK ] || exit 0"#,
        check: |subject| life::names_tampering(subject, &[Tampering::inside("ip link set eth0 mtu 1300", "mtu")]),
        finds: "CHECK passes",
    },
    Broken {
        what: "DEL does nothing",
        lines: r#"[ "$CNI_COMMAND" != DEL ] || exit 0"#,
        check: life::leaves_no_trace,
        finds: "left on the host",
    },
    Broken {
        what: "DEL needs prevResult",
        lines: r#"if [ "$CNI_COMMAND" = DEL ]; then conf=$(cat); case $conf in *'"prevResult":{"cniVersion"'*) echo "$conf" | "$real" ;; esac; exit; fi"#,
        check: life::survives_incomplete_dels,
        finds: "without prevResult: came",
    },
    Broken {
        what: "DEL needs the namespace",
        lines: r#"if [ "$CNI_COMMAND" = DEL ] && [ ! -e "$CNI_NETNS" ]; then echo '{"code":3,"msg":"no such namespace"}'; exit 1; fi"#,
        check: life::survives_incomplete_dels,
        finds: "no such namespace",
    },
    Broken {
        what: "every container has one address",
        lines: r#"if [ "$CNI_COMMAND" = ADD ]; then set -o pipefail; "$real" | sed 's/10\.77\.0\.[0-9]*\/24/10.77.0.9\/24/'; exit; fi"#,
        check: |subject| flood::survives(subject, 4),
        finds: "an address was given twice",
    },
    Broken {
        what: "two documents on stdout",
        lines: r#""$real" || exit; echo {}; exit"#,
        check: life::leaves_no_trace,
        finds: "trailing characters",
    },
    Broken {
        what: "ADD is refused",
        lines: r#"if [ "$CNI_COMMAND" = ADD ]; then cat >/dev/null; echo '{"cniVersion":"1.0.0","code":7,"msg":"refused"}'; exit 1; fi"#,
        check: |subject| drop(transcripts::survives(subject, &scenes("podman-4.3-run"), 1)),
        finds: "no ADD of any scene succeeds",
    },
    Broken {
        what: "ADD is refused, once more",
        lines: r#"if [ "$CNI_COMMAND" = ADD ]; then cat >/dev/null; echo '{"cniVersion":"1.0.0","code":7,"msg":"refused"}'; exit 1; fi"#,
        check: |subject| flood::random_calls(subject, 10),
        finds: "refused",
    },
    Broken {
        what: "ADD is refused, under kills",
        lines: r#"if [ "$CNI_COMMAND" = ADD ]; then cat >/dev/null; echo '{"cniVersion":"1.0.0","code":7,"msg":"refused"}'; exit 1; fi"#,
        check: |subject| drop(kill::at_every_call(subject, 1)),
        finds: "refused",
    },
    Broken {
        what: "ADD is refused, under faults",
        lines: r#"if [ "$CNI_COMMAND" = ADD ]; then cat >/dev/null; echo '{"cniVersion":"1.0.0","code":7,"msg":"refused"}'; exit 1; fi"#,
        check: |subject| drop(errno::at_every_call(subject, 1)),
        finds: "refused",
    },
];

/// A subject whose plugin is a script in a directory. The plugins that it delegates to are those of the original.
fn broken(original: &Subject, lines: &str, dir: &Path) -> Subject {
    let real = original.bin.join(&original.plugin);
    let script = format!("#!/bin/bash\nreal={}\n{lines}\nexec \"$real\"\n", real.display());
    for entry in std::fs::read_dir(&original.bin).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str() != Some(&original.plugin) {
            std::os::unix::fs::symlink(entry.path(), dir.join(entry.file_name())).unwrap();
        }
    }
    // A program that this process wrote could be open in a child of another thread, and could not be executed then.
    let place = dir.join(&original.plugin);
    std::fs::write(dir.join("script"), script).unwrap();
    Host::new().sh(&format!("install -m 755 {} {}", dir.join("script").display(), place.display()));
    original.in_directory(dir)
}

/// The text of a panic; `None` if there was none.
fn finding(work: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(work)).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
}

fn original() -> Subject {
    subject("bridge", json!({"isDefaultGateway": true, "ipam": dual_stack()}))
}

#[test]
fn each_broken_plugin_is_found_by_its_check() {
    let mut missed = Vec::new();
    for Broken { what, lines, check, finds } in BROKEN {
        let dir = tempfile::tempdir().unwrap();
        let subject = broken(&original(), lines, dir.path());
        match finding(|| check(&subject)) {
            Some(text) if text.contains(finds) => {}
            Some(text) => missed.push(format!("{what}: another finding: {text}")),
            None => missed.push(format!("{what}: nothing was found")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn the_same_checks_find_nothing_in_a_script_that_only_calls_the_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let subject = broken(&original(), ":", dir.path());
    life::removes_invalid(&subject);
    life::leaves_no_trace(&subject);
    flood::survives(&subject, 4);
}

#[test]
fn a_link_that_stays_is_found_unless_the_subject_shares_it() {
    let dir = tempfile::tempdir().unwrap();
    let lines = r#"[ "$CNI_COMMAND" != ADD ] || ip link add kept0 type bridge 2>/dev/null || :"#;
    let subject = broken(&original(), lines, dir.path());
    let found = finding(|| life::leaves_no_trace(&subject)).unwrap_or_default();
    assert!(found.contains("left on the host") && found.contains("kept0"), "{found}");
    life::leaves_no_trace(&subject.shared(&["kept0"]));
}

/// bridge, with a step whose change is not in the journal, so that a roll-back forgets it.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Forgetful(BridgePlugin);

impl InterfacePlugin for Forgetful {
    const LINK: Kind = BridgePlugin::LINK;
    const KINDS: &'static [Kind] = BridgePlugin::KINDS;
    const SOURCES: Sources = BridgePlugin::SOURCES;

    fn link(&self, at: &AttachmentSpec) -> Plan {
        self.0.link(at).with_at(1, Unrecorded(format!("left-{}", at.tag.container)))
    }

    fn source(conf: &NetConf) -> Source {
        BridgePlugin::source(conf)
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.0.complete(addresses)
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        self.0.layer3(at, addresses)
    }
}

/// A link of the host that no roll-back removes.
struct Unrecorded(String);

impl Resource for Unrecorded {
    fn kind(&self) -> Kind {
        Kind::goes_with_link("unrecorded link")
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        context.host()?.create_bridge(&NewBridge::new(self.0.clone()))?;
        Ok(Made::nothing())
    }

    fn verify(&self, _context: &ApplyContext, _drifts: &mut Drifts) -> Result<()> {
        Ok(())
    }
}

impl fmt::Display for Unrecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[test]
fn a_step_that_the_roll_back_forgets_is_found() {
    let found =
        finding(|| assert!(fault::leaves_nothing::<Forgetful>(&original(), HOST_LOCAL) > 0)).unwrap_or_default();
    assert!(found.contains("a fault before step 2") && found.contains("left-c-fault"), "{found}");
    fault::leaves_nothing::<BridgePlugin>(&original(), HOST_LOCAL);
}

/// Variables of a subject, with placeholders, reach the plugin in each kind of call.
#[test]
fn variables_of_a_subject_have_their_placeholders_filled_in() {
    let dir = tempfile::tempdir().unwrap();
    let lines = r#"case "$PLACE $NUMBER_OF" in "$CNI_NETNS "[0-9]*) ;; *) [ -z "$CNI_NETNS" ] || { cat >/dev/null; echo "{\"code\":7,\"msg\":\"not filled in: $PLACE $NUMBER_OF\"}"; exit 1; } ;; esac"#;
    let mut subject = broken(&original(), lines, dir.path());
    subject.env = vec![("PLACE".to_owned(), "$NETNS".to_owned()), ("NUMBER_OF".to_owned(), "$NUMBER".to_owned())];
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    subject.add(&host, "c-one", &container);
}

fn assert_gc(subject: &Subject) {
    // The kernel knows of no loopback link who set it up, and it ends with its container.
    if subject.plugin != "loopback" {
        life::removes_invalid(subject);
    }
}

/// GC of each of our plugins removes the attachments that are not valid, and no other.
mod gc {
    macro_rules! gc {
        ($($name:ident: $subject:expr $(, $more:ident)*;)+) => {$(
            #[test]
            fn $name() {
                super::assert_gc(&$subject);
            }
        )+};
    }
    use super::each_subject;
    each_subject!(gc);
}
