//! Recorded requests of real runtimes, replayed with our binaries: they return the same results as upstream did, and at the end
//! nothing of any container is left. The files are described in `tests/transcripts/README.md`.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::path::Path;

use cnikit_testkit::campaign::runs_all_cases;
use cnikit_testkit::life::SHARED;
use cnikit_testkit::parallel::for_each;
use cnikit_testkit::transcripts::{RecordedCall, ReplayHost, Transcript};
use cnikit_testkit::{CallOutput, Host};
use cnikit_tests::bin;
use cnikit_tests::transcripts::scenes;
use serde_json::{Value, json};

/// Scenes and calls in which our result differs from upstream's, and the reason why that is right.
const DIFFERENCES: [(&str, &[u64], &str); 8] = [
    (
        "podman-4.3-add-fails",
        &[27],
        "the reference's roll-back had left a bridge with a MAC of zeros, on which its next ADD failed; ours has its own MAC",
    ),
    (
        "podman-4.3-add-fails",
        &[33],
        "its DEL asked for an iptables chain that the failed ADD had not come to; absent is success",
    ),
    (
        "podman-4.3-ipv6",
        &[29],
        "a port of ::1: the reference's rule has no effect, because the kernel lets nothing from ::1 leave the host; ours says so",
    ),
    (
        "podman-4.3-killed",
        &[14],
        "the port leads to a container of whose end Podman says nothing; the reference adds a rule that no packet comes to",
    ),
    (
        "containerd-1.6-bandwidth-sbr",
        &[22, 24, 30, 40, 46, 52],
        "a DEL without a namespace: upstream's sbr fails, so the DELs of the plugins before it are never called; ours succeeds",
    ),
    ("containerd-1.6-cni-031-firewall", &[4, 6, 8, 10], OLD),
    ("containerd-1.7-cni-031-firewall", &[4, 6], OLD),
    ("containerd-2.1-cni-031-firewall", &[4, 6], OLD),
];
const OLD: &str = "the reference's firewall does not speak 0.3.1; ours does";

/// How a scene is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variation {
    /// In order, with upstream's cached results. A namespace is removed when no later call names it.
    AsRecorded,
    /// With our results instead of upstream's.
    OurAnswers,
    /// Each DEL is sent twice. The namespaces stay, so that a DEL without their path has to remove their links.
    DelsTwice,
    /// DELs that follow each other are sent in the opposite order; the namespaces stay.
    DelsBackwards,
}

const VARIATIONS: [Variation; 4] =
    [Variation::AsRecorded, Variation::OurAnswers, Variation::DelsTwice, Variation::DelsBackwards];

/// The backends: the default of the plugins, which is iptables; and one that is set in each configuration that has the key. In the
/// short form each variation of a scene uses one of them, and in the next scene the other.
const BACKENDS: [&str; 2] = ["", "nftables"];

/// The plugins that write rules, and the name of the key.
const WRITING: [(&str, &str); 3] = [("bridge", "ipMasqBackend"), ("portmap", "backend"), ("firewall", "backend")];

/// The state of a replay.
struct Replay<'a> {
    scene: &'a Transcript,
    variation: Variation,
    backend: &'static str,
    ground: ReplayHost,
    /// Our result of the ADD of each existing attachment, by each plugin of its chain, in the order of the calls.
    attached: Vec<(RecordedCall, Value)>,
}

impl Replay<'_> {
    fn in_order(&self) -> Vec<RecordedCall> {
        let mut calls = self.scene.calls.clone();
        if self.variation == Variation::DelsBackwards {
            calls.chunk_by_mut(|one, next| one.is("DEL") && next.is("DEL")).for_each(<[RecordedCall]>::reverse);
        }
        calls
    }

    /// Must a call succeed? `None`: either is right.
    fn expects(&self, call: &RecordedCall) -> Option<bool> {
        let as_the_reference = call.exit == 0;
        let differs = DIFFERENCES.iter().any(|(scene, seqs, _)| *scene == self.scene.name && seqs.contains(&call.seq));
        match self.variation {
            Variation::DelsBackwards if call.is("DEL") && !as_the_reference => None,
            _ => Some(as_the_reference != differs),
        }
    }

    /// The part of a result that must be equal to upstream's: all except MACs, MTUs and the name of the host end. An empty `dns` is
    /// equal to none, and the version of an address is redundant: upstream's loopback writes neither.
    fn compared_part(&self, answer: &Value) -> Value {
        let interfaces = answer["interfaces"].as_array().into_iter().flatten();
        let name = |one: &Value| one["name"].as_str().filter(|name| !name.starts_with("veth")).map(str::to_owned);
        let interfaces: Vec<_> = interfaces.map(|one| json!([name(one), one["sandbox"].is_string()])).collect();
        let ips = answer["ips"].as_array().into_iter().flatten();
        let address = |ip: &Value| if self.is_concurrent() { Value::Null } else { ip["address"].clone() };
        let ips: Vec<_> = ips.map(|ip| json!([address(ip), ip["gateway"], ip["interface"]])).collect();
        let dns = Some(&answer["dns"]).filter(|dns| **dns != json!({}));
        json!([answer["cniVersion"], interfaces, ips, answer["routes"], dns, answer["ip4"], answer["ip6"]])
    }

    /// Were several pods started at once, so that chance gave each its address?
    fn is_concurrent(&self) -> bool {
        let name = &self.scene.name;
        name.starts_with("containerd") && (name.ends_with("parallel") || name.ends_with("two-networks"))
    }

    /// Whether host-local's directory was not usable when this was recorded.
    fn is_obstructed(&self, call: &RecordedCall) -> bool {
        self.scene.name.ends_with("del-fails") && call.exit != 0
    }

    fn all(&mut self) {
        let calls = self.in_order();
        for (at, call) in calls.iter().enumerate() {
            self.one(call);
            let named_later = |name: &str| calls[at + 1..].iter().any(|later| later.namespace() == Some(name));
            if let Some(name) = call.namespace().filter(|name| !named_later(name)) {
                self.forget(name);
            }
        }
        let abandoned = std::mem::take(&mut self.attached);
        abandoned.into_iter().rev().for_each(|(add, _)| self.one(&add.without_netns()));
    }

    fn one(&mut self, call: &RecordedCall) {
        let times = if call.is("DEL") && self.variation == Variation::DelsTwice { 2 } else { 1 };
        for _ in 0..times {
            let output = self.say(call);
            self.assert_expected(call, &output);
        }
    }

    fn assert_expected(&mut self, call: &RecordedCall, output: &CallOutput) {
        let expected = self.expects(call);
        let about = format!("{}, call {}: {output:?}", self.title(), call.seq);
        if output.exit != 0 {
            assert_ne!(expected, Some(true), "{about}");
            output.refused();
            return;
        }
        assert_ne!(expected, Some(false), "{about}");
        if call.is("ADD") {
            let answer = output.json();
            let ours = self.compared_part(&answer);
            let theirs = self.compared_part(&call.answer);
            assert!(call.exit != 0 || ours == theirs, "{about}: ours {ours}, the reference's {theirs}");
            self.attached.retain(|(add, _)| !is_same(add, call));
            self.attached.push((call.clone(), answer));
        } else if call.is("DEL") {
            assert_eq!(output.stdout, "", "{about}");
            self.attached.retain(|(add, _)| !is_same(add, call));
        } else if call.is("VERSION") {
            assert!(output.json()["supportedVersions"].as_array().unwrap().contains(&json!("0.4.0")), "{about}");
        }
    }

    /// Sends a recorded call, with the values of the placeholders.
    fn say(&mut self, call: &RecordedCall) -> CallOutput {
        self.ground.remove_reused_bridge(call);
        let env = self.ground.environment(call);
        let stdin = self.written(&self.ground.fill_placeholders(call, &self.stdin(call)));
        let program = bin().join(&call.plugin);
        let send = || self.ground.host.run(&program, &env, stdin.as_bytes());
        let ended = if self.is_obstructed(call) { with_a_file_for(&self.ground.leases(), send) } else { send() };
        CallOutput::from(ended)
    }

    /// A runtime caches the result of ADD for DEL. If the configuration changed between them, the version of the result changes
    /// too.
    fn stdin(&self, call: &RecordedCall) -> String {
        let is_its = |(add, _): &&(RecordedCall, Value)| add.attachment() == call.attachment();
        let ours = self.attached.iter().rev().find(is_its).map(|(_, answer)| answer);
        let mut conf = call.conf();
        match ours.filter(|_| self.variation == Variation::OurAnswers && conf.get("prevResult").is_some()) {
            Some(ours) if ours["cniVersion"] == conf["cniVersion"] => {
                conf["prevResult"] = ours.clone();
                conf.to_string()
            }
            _ => call.stdin.clone(),
        }
    }

    /// A configuration with this backend in its key, instead of the recorded one if there is one: Podman sends an empty text.
    fn written(&self, stdin: &str) -> String {
        let asked = WRITING.iter().filter(|_| !self.backend.is_empty());
        asked.fold(stdin.to_owned(), |text, (plugin, key)| {
            let named = format!(r#""type":"{plugin}""#);
            let text = text.replace(&format!(r#""{key}":"","#), "");
            text.replace(&named, &format!(r#""{key}":"{}",{named}"#, self.backend))
        })
    }

    fn title(&self) -> String {
        format!("{} {:?} {}", self.scene.name, self.variation, self.backend).trim_end().to_owned()
    }

    /// Removes a namespace, unless it has to stay.
    fn forget(&mut self, name: &str) {
        if [Variation::AsRecorded, Variation::OurAnswers].contains(&self.variation) {
            self.ground.remove_netns(name);
        }
    }
}

/// Of one plugin for one attachment?
fn is_same(one: &RecordedCall, other: &RecordedCall) -> bool {
    one.plugin == other.plugin && one.attachment() == other.attachment()
}

/// Puts a file where a directory is expected, for the time of one call.
fn with_a_file_for<T>(dir: &Path, work: impl FnOnce() -> T) -> T {
    let aside = dir.with_extension("aside");
    fs::rename(dir, &aside).unwrap();
    fs::write(dir, "").unwrap();
    let done = work();
    fs::remove_file(dir).unwrap();
    fs::rename(aside, dir).unwrap();
    done
}

/// Each variation has its own host, so that each assigns the recorded addresses. At the end nothing of any container is left.
fn replay(scene: &Transcript, place: usize) {
    for (variation, backend) in VARIATIONS.iter().enumerate().flat_map(|(n, variation)| {
        let both = BACKENDS.map(|backend| (*variation, backend));
        if runs_all_cases() { both.to_vec() } else { vec![both[(n + place) % both.len()]] }
    }) {
        let ground = ReplayHost::new(bin(), Host::new());
        let mut replay = Replay { scene, variation, backend, ground, attached: Vec::new() };
        replay.all();
        let left = scene.left(replay.ground.added_lines(), &SHARED);
        assert!(left.is_empty(), "{} left {left:#?}", replay.title());
    }
}

/// So many scenes of a runtime: most of the time they wait for links to go.
const AT_ONCE: usize = 4;

fn replay_all(of: &str, expected: usize) {
    let scenes = scenes(of);
    assert_eq!(scenes.len(), expected, "scenes of {of}");
    let places: Vec<(usize, &Transcript)> = scenes.iter().enumerate().collect();
    for_each(AT_ONCE, &places, || (), |(), (place, scene)| replay(scene, *place));
}

#[test]
fn containerd_1_6_and_1_7_are_served_as_by_upstream() {
    replay_all("containerd-1.", 21);
}

#[test]
fn containerd_2_1_is_served_as_by_upstream() {
    replay_all("containerd-2.1", 17);
}

#[test]
fn podman_is_served_as_by_upstream() {
    replay_all("podman-4.3", 14);
}

#[test]
fn every_scene_has_a_runtime_and_every_difference_a_scene() {
    let all = scenes("");
    assert_eq!(all.len(), 21 + 17 + 14);
    for (name, seqs, _) in DIFFERENCES {
        let scene = all.iter().find(|scene| scene.name == name).unwrap();
        assert!(seqs.iter().all(|seq| scene.calls.iter().any(|call| call.seq == *seq)), "{name} {seqs:?}");
    }
}
