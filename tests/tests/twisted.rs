//! What real runtimes sent, twisted: cut short, sent twice, out of order, killed in between; to the plugin that it was for
//! and to every other. Whatever comes, each answer is one that the specification knows, and after the last DELs nothing of
//! any container is left.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cnikit_testkit::campaign::{Line, chance, sample};
use cnikit_testkit::crowd::{caught, each};
use cnikit_testkit::watch::{self, Verdict};
use cnikit_testkit::{Host, Said};
use cnikit_tests::bin;
use cnikit_tests::transcripts::{Call, Ground, Scene, scenes};
use fastrand::Rng;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Every plugin of ours.
const PLUGINS: [&str; 4] = ["loopback", "bridge", "ptp", "host-local"];
/// So many scenes of each twist, in the short form.
const REPLAYS: usize = 8;
/// So many requests cut short, in the short form.
const CUTS: usize = 600;
/// So many at once.
const WORKERS: usize = 4;
/// How many system calls the plugin itself makes in each undisturbed call, by attachment and verb.
type Lengths = BTreeMap<(String, String), usize>;

/// What is done to the calls of a scene.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Twist {
    /// Each is sent twice.
    Twice,
    /// Those of an attachment change places.
    Shuffled,
    /// DEL before ADD, two ADDs, CHECK after each ADD and each DEL.
    Misplaced,
    /// Each is killed half-way, and sent again or not.
    Killed,
    /// All of that.
    Everything,
}

impl Twist {
    fn of(self, scene: &Scene, lengths: &Lengths, chance: &mut Rng) -> Vec<Step> {
        let mut calls = scene.calls.clone();
        if [Twist::Shuffled, Twist::Everything].contains(&self) {
            shuffle(&mut calls, chance);
        }
        let mut steps: Vec<Step> = calls.iter().flat_map(|call| self.instead_of(call)).collect();
        if self.kills() {
            steps = steps.into_iter().flat_map(|step| killed(step, lengths, chance)).collect();
        }
        steps
    }

    fn kills(self) -> bool {
        [Twist::Killed, Twist::Everything].contains(&self)
    }

    fn instead_of(self, call: &Call) -> Vec<Step> {
        let verbs: &[&str] = match (self, call.env["CNI_COMMAND"].as_str()) {
            (Twist::Misplaced | Twist::Everything, "ADD") => &["DEL", "ADD", "ADD", "CHECK"],
            (Twist::Misplaced | Twist::Everything, "DEL") => &["DEL", "CHECK"],
            (Twist::Twice, verb) => &[verb, verb],
            (_, verb) => &[verb],
        };
        verbs.iter().map(|verb| Step { call: call.with_verb(verb), killed_at: None }).collect()
    }
}

/// One call, and at which of its system calls it is killed.
#[derive(Clone)]
struct Step {
    call: Call,
    killed_at: Option<usize>,
}

/// The calls of an attachment change places among each other.
fn shuffle(calls: &mut [Call], chance: &mut Rng) {
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, call) in calls.iter().enumerate() {
        places.entry(call.attachment()).or_default().push(place);
    }
    let before = calls.to_vec();
    for places in places.into_values() {
        let mut mixed = places.clone();
        chance.shuffle(&mut mixed);
        places.iter().zip(mixed).for_each(|(place, from)| calls[*place] = before[from].clone());
    }
}

/// A death, and then the call itself or not.
fn killed(step: Step, lengths: &Lengths, chance: &mut Rng) -> Vec<Step> {
    // What was not rehearsed may be as short as the shortest.
    let length = lengths.get(&key(&step.call)).or_else(|| lengths.values().min()).copied();
    let dies = Step { killed_at: length.map(|length| chance.usize(..length)), ..step.clone() };
    if chance.bool() { vec![dies, step] } else { vec![dies] }
}

fn key(call: &Call) -> (String, String) {
    (call.attachment(), call.env["CNI_COMMAND"].clone())
}

/// The scene as it was, on a host of its own, to see how long each call is.
fn rehearsed(scene: &Scene, plugin: &str) -> Lengths {
    let mut ground = Ground::new();
    let mut length = |call: &Call| {
        let (env, stdin, mut calls) = (ground.environment(call), ground.fill(&call.stdin), 0);
        killed_call(&ground.host, plugin, &env, stdin.as_bytes(), usize::MAX, &mut calls);
        (key(call), calls)
    };
    scene.calls.iter().map(&mut length).collect()
}

/// One replay of a scene to one plugin.
struct Replay<'a> {
    plugin: &'a str,
    ground: Ground,
    /// The last answer to the ADD of each attachment.
    answers: BTreeMap<String, Value>,
    sent: usize,
    deaths: usize,
}

impl Replay<'_> {
    fn play(&mut self, scene: &Scene, twist: Twist, chance: &mut Rng) {
        let lengths = if twist.kills() { rehearsed(scene, self.plugin) } else { Lengths::new() };
        twist.of(scene, &lengths, chance).iter().for_each(|step| self.step(step));
        for add in scene.calls.iter().filter(|call| call.is("ADD")) {
            self.step(&Step { call: add.lost(), killed_at: None });
        }
        let left = scene.left(self.ground.came());
        assert!(left.is_empty(), "left {left:#?}");
    }

    fn step(&mut self, step: &Step) {
        self.sent += 1;
        let (env, stdin) = (self.ground.environment(&step.call), self.ground.fill(&self.stdin(&step.call)));
        let said = match step.killed_at {
            Some(at) => killed_call(&self.ground.host, self.plugin, &env, stdin.as_bytes(), at, &mut 0),
            None => call(&self.ground.host, self.plugin, &env, stdin.as_bytes()),
        };
        if said.exit == -(Signal::SIGKILL as i32) && step.killed_at.is_some() {
            self.deaths += 1;
            assert!(said.stdout.is_empty() || is_one_document(&said.stdout), "{said:?}");
            return;
        }
        judge(&step.call, &said);
        if step.call.is("ADD") && said.exit == 0 {
            self.answers.insert(step.call.attachment(), said.json());
        }
    }

    /// CHECK needs the answer to an ADD; what else was sent stays as it was.
    fn stdin(&self, call: &Call) -> String {
        let mut conf = call.conf();
        match self.answers.get(&call.attachment()).filter(|_| call.is("CHECK")) {
            Some(answer) => {
                conf["prevResult"] = answer.clone();
                conf.to_string()
            }
            None => call.stdin.clone(),
        }
    }
}

fn call(host: &Host, plugin: &str, env: &[(String, String)], stdin: &[u8]) -> Said {
    let (exit, stdout, stderr) = host.run(&bin().join(plugin), env, stdin);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Said { exit, stdout: text(stdout), stderr: text(stderr) }
}

/// Unless it ends before; after so many system calls.
fn killed_call(
    host: &Host,
    plugin: &str,
    env: &[(String, String)],
    stdin: &[u8],
    at: usize,
    calls: &mut usize,
) -> Said {
    let judge = |call: &watch::Call| {
        *calls += usize::from(call.process == 0);
        if *calls > at && call.process == 0 { Verdict::Signal(Signal::SIGKILL) } else { Verdict::GoOn }
    };
    host.enter(|| watch::run(&bin().join(plugin), env, stdin, &[], judge)).unwrap().0
}

/// What the specification knows: one result, nothing, or one error.
fn judge(call: &Call, said: &Said) {
    assert!(!said.stderr.contains("panicked") && !said.stdout.contains("panicked"), "{said:?}");
    match said.exit {
        0 if call.is("ADD") => assert!(said.json()["cniVersion"].is_string(), "{said:?}"),
        0 if call.is("VERSION") => assert!(said.json()["supportedVersions"].is_array(), "{said:?}"),
        0 => assert_eq!(said.stdout, "", "{said:?}"),
        1 => {
            let (error, codes) = (said.json(), [1..12, 50..52, 100..1000]);
            let known = error["code"].as_u64().is_some_and(|code| codes.iter().any(|range| range.contains(&code)));
            assert!(known && error["msg"].as_str().is_some_and(|text| !text.is_empty()), "{said:?}");
        }
        _ => panic!("{said:?}"),
    }
}

fn is_one_document(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

/// Tries each of a choice of all, several at once; says it with what they note, and panics with what was found.
fn campaign<T: Copy + Sync>(
    (what, unit): (&str, &str),
    all: Vec<T>,
    short: usize,
    attempt: impl Fn(T) + Sync,
    notes: impl FnOnce() -> Vec<String>,
) {
    let mut line = Line { of: all.len(), ..Line::new(what, unit) };
    let chosen = sample(what, all, short);
    let (tried, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    each(
        WORKERS,
        &chosen,
        || (),
        |(), one| {
            found.lock().unwrap().extend(caught(|| attempt(*one)).err());
            tried.fetch_add(1, Ordering::Relaxed);
        },
    );
    let found = found.into_inner().unwrap();
    (line.tried, line.found, line.notes) = (tried.into_inner(), found.len(), notes());
    line.by_chance().say();
    assert!(found.is_empty(), "{what}: {} found:\n{}", found.len(), found.join("\n"));
}

fn twisted(twist: Twist) {
    let (scenes, what) = (scenes(""), format!("transcripts {twist:?}").to_lowercase());
    let all = (0..scenes.len()).flat_map(|scene| PLUGINS.map(|plugin| (scene, plugin))).collect();
    let (sent, deaths) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let attempt = |(scene, plugin): (usize, &str)| {
        let scene = &scenes[scene];
        let about = format!("{} {twist:?} to {plugin}", scene.name);
        let mut replay = Replay { plugin, ground: Ground::new(), answers: BTreeMap::new(), sent: 0, deaths: 0 };
        let played = caught(|| replay.play(scene, twist, &mut chance(&about)));
        sent.fetch_add(replay.sent, Ordering::Relaxed);
        deaths.fetch_add(replay.deaths, Ordering::Relaxed);
        played.unwrap_or_else(|found| panic!("{about}: {found}"));
    };
    let notes = || twist.kills().then(|| format!("{} killed", deaths.load(Ordering::Relaxed))).into_iter().collect();
    campaign((&what, "scenes and plugins"), all, REPLAYS, attempt, notes);
    assert!(sent.into_inner() > REPLAYS, "calls were sent");
    assert_eq!(deaths.into_inner() > 0, twist.kills(), "somebody was killed, or nobody");
}

#[test]
fn every_call_is_sent_twice() {
    twisted(Twist::Twice);
}

#[test]
fn the_calls_of_an_attachment_change_places() {
    twisted(Twist::Shuffled);
}

#[test]
fn calls_come_where_none_should() {
    twisted(Twist::Misplaced);
}

#[test]
fn calls_are_killed_in_between() {
    twisted(Twist::Killed);
}

#[test]
fn everything_happens_at_once() {
    twisted(Twist::Everything);
}

/// Every request, without its end: it is refused, and nothing at all comes of it.
#[test]
fn every_request_is_cut_short_at_every_length() {
    let (mut ground, mut seen, mut requests) = (Ground::new(), BTreeSet::new(), Vec::new());
    for call in scenes("").into_iter().flat_map(|scene| scene.calls) {
        if seen.insert((call.env["CNI_COMMAND"].clone(), call.stdin.clone())) {
            let env = ground.environment(&call);
            requests.push((call.clone(), env, ground.fill(&call.stdin).into_bytes()));
        }
    }
    let lengths = |request: usize| (0..requests[request].2.len()).map(move |length| (request, length));
    let cuts = (0..requests.len()).flat_map(lengths);
    let all = cuts.flat_map(|(request, length)| PLUGINS.map(|plugin| (request, length, plugin))).collect();
    let attempt = |(request, length, plugin): (usize, usize, &str)| {
        let (sent, env, stdin) = &requests[request];
        let said = call(&ground.host, plugin, env, &stdin[..length]);
        judge(sent, &said);
        assert!(said.exit == 1 || sent.is("VERSION"), "{plugin} took {:?}: {said:?}", &sent.stdin[..length]);
    };
    campaign(("transcripts cut short", "lengths and plugins"), all, CUTS, attempt, Vec::new);
    assert_eq!(ground.came(), Vec::<String>::new());
}
