//! The replay of one transcript to one plugin.

use std::collections::BTreeMap;

use fastrand::Rng;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::recording::{RecordedCall, Transcript};
use super::replay_host::ReplayHost;
use super::variation::{CallCounts, Step, Variation, key};
use crate::env::host::Host;
use crate::env::subject::{CallOutput, Subject};
use crate::syscall_trace::{self, Syscall, SyscallVerdict};

/// Keys of a subject's configuration that do not replace the recorded ones.
const RECORDED: [&str; 3] = ["cniVersion", "name", "type"];

/// Keys that a runtime adds.
const OF_THE_RUNTIME: [&str; 5] =
    ["prevResult", "runtimeConfig", "args", "cni.dev/valid-attachments", "cni.dev/attachments"];

/// One replay of a transcript to one plugin.
pub(super) struct Replay<'a> {
    subject: &'a Subject,
    variation: Variation,
    host: ReplayHost,
    /// The last result of ADD of each attachment.
    answers: BTreeMap<String, Value>,
    /// How many ADDs succeeded.
    pub(super) added: usize,
    /// How many calls failed or were killed.
    pub(super) failed: usize,
    pub(super) killed: usize,
}

impl Replay<'_> {
    pub(super) fn new(subject: &Subject, variation: Variation) -> Replay<'_> {
        let host = ReplayHost::of(subject);
        Replay { subject, variation, host, answers: BTreeMap::new(), added: 0, failed: 0, killed: 0 }
    }

    /// Makes all calls, then a DEL of each attachment by a runtime that lost its state. Panics if a property does not hold.
    pub(super) fn play(&mut self, transcript: &Transcript, chance: &mut Rng) {
        let counts = if self.variation.kills() { count_syscalls(transcript, self.subject) } else { CallCounts::new() };
        let steps = self.variation.of(transcript, &counts, chance);
        for (at, step) in steps.iter().enumerate() {
            self.step(step);
            if self.variation == Variation::Replayed
                && let Some(name) = step.call.namespace()
                && !steps[at + 1..].iter().any(|later| later.call.namespace() == Some(name))
            {
                self.host.remove_netns(name);
            }
        }
        transcript.final_dels().for_each(|call| self.step(&Step { call, killed_at: None }));
        let left = transcript.left(self.host.added_lines(), &self.subject.shared);
        assert!(left.is_empty(), "left {left:#?}");
    }

    fn step(&mut self, step: &Step) {
        if self.variation == Variation::Replayed {
            self.host.remove_reused_bridge(&step.call);
        }
        let env = self.host.environment(&step.call);
        let stdin = self.host.fill_placeholders(&step.call, &self.stdin(&step.call));
        let output = match step.killed_at {
            Some(at) => killed_call(&self.host.host, self.subject, &env, stdin.as_bytes(), at, &mut 0),
            None => call(&self.host.host, self.subject, &env, stdin.as_bytes()),
        };
        self.failed += usize::from(output.exit != 0);
        if output.exit == -(Signal::SIGKILL as i32) && step.killed_at.is_some() {
            self.killed += 1;
            assert!(output.stdout.is_empty() || is_one_document(&output.stdout), "{output:?}");
            return;
        }
        assert_conforms(&step.call, &output);
        // Addresses that were requested when it was recorded need not be in the ranges of another IPAM configuration.
        let is_same = step.call.plugin == self.subject.plugin && self.subject.conf.get("ipam").is_none();
        let has_to = self.variation == Variation::Replayed && is_same && step.call.exit == 0;
        assert!(!has_to || output.exit == 0, "call {} succeeded when it was recorded: {output:?}", step.call.seq);
        if step.call.is("ADD") && output.exit == 0 {
            self.added += 1;
            self.answers.insert(step.call.attachment(), output.json());
        }
    }

    /// The stdin of a call. CHECK gets the result of the ADD; other calls are as recorded, unless the subject has keys of its own.
    fn stdin(&self, call: &RecordedCall) -> String {
        let answer = self.answers.get(&call.attachment()).filter(|_| call.is("CHECK"));
        let stdin = with_keys(call, self.subject);
        let Some(answer) = answer else { return stdin };
        let mut conf: Value = serde_json::from_str(&stdin).unwrap();
        conf["prevResult"] = answer.clone();
        conf.to_string()
    }
}

/// The configuration of a recorded call, with the keys of the subject in place of the recorded ones. An ADD that was recorded
/// without a result of earlier plugins gets that of the subject's. If neither is needed, the text is not changed.
pub(super) fn with_keys(call: &RecordedCall, subject: &Subject) -> String {
    let mut conf = call.conf();
    if !subject.takes_foreign_keys
        && let Some(keys) = conf.as_object_mut()
    {
        keys.retain(|key, _| RECORDED.contains(&key.as_str()) || OF_THE_RUNTIME.contains(&key.as_str()));
    }
    let own = subject.conf.as_object().into_iter().flatten().filter(|(key, _)| !RECORDED.contains(&key.as_str()));
    own.for_each(|(key, value)| conf[key] = value.clone());
    if call.is("ADD") && conf.get("prevResult").is_none() {
        subject.add_prev_result(&mut conf);
    }
    if conf == call.conf() { call.stdin.clone() } else { conf.to_string() }
}

/// Replays the transcript once to count the system calls of each call.
fn count_syscalls(transcript: &Transcript, subject: &Subject) -> CallCounts {
    let mut host = ReplayHost::of(subject);
    let mut counts = CallCounts::new();
    for call in &transcript.calls {
        let env = host.environment(call);
        let stdin = host.fill_placeholders(call, &with_keys(call, subject));
        let mut calls = 0;
        killed_call(&host.host, subject, &env, stdin.as_bytes(), usize::MAX, &mut calls);
        counts.insert(key(call), calls);
    }
    counts
}

pub(super) fn call(host: &Host, subject: &Subject, env: &[(String, String)], stdin: &[u8]) -> CallOutput {
    CallOutput::from(host.run(&subject.bin.join(&subject.plugin), env, stdin))
}

/// Makes a call, and kills it after `at` system calls, unless it ends before. Counts its system calls in `calls`.
fn killed_call(
    host: &Host,
    subject: &Subject,
    env: &[(String, String)],
    stdin: &[u8],
    at: usize,
    calls: &mut usize,
) -> CallOutput {
    let decide = |call: &Syscall| count_or_kill(call, at, calls);
    let program = subject.bin.join(&subject.plugin);
    host.enter(|| syscall_trace::run(&program, env, stdin, &[], decide)).unwrap().0
}

/// Counts the calls of the plugin itself, and kills it after `at` of them.
fn count_or_kill(call: &Syscall, at: usize, calls: &mut usize) -> SyscallVerdict {
    if call.process > 0 {
        return SyscallVerdict::GoOn;
    }
    *calls += 1;
    if *calls > at { SyscallVerdict::Signal(Signal::SIGKILL) } else { SyscallVerdict::GoOn }
}

/// Asserts that the output conforms to the specification: one result, nothing, or one error.
pub(super) fn assert_conforms(call: &RecordedCall, output: &CallOutput) {
    assert!(!output.stderr.contains("panicked") && !output.stdout.contains("panicked"), "{output:?}");
    match output.exit {
        0 if call.is("ADD") => assert!(output.json()["cniVersion"].is_string(), "{output:?}"),
        0 if call.is("VERSION") => assert!(output.json()["supportedVersions"].is_array(), "{output:?}"),
        0 => assert_eq!(output.stdout, "", "{output:?}"),
        1.. => {
            let error = output.json();
            let codes = [1..12, 50..52, 100..u64::MAX];
            let known = error["code"].as_u64().is_some_and(|code| codes.iter().any(|range| range.contains(&code)));
            assert!(known && error["msg"].as_str().is_some_and(|text| !text.is_empty()), "{output:?}");
        }
        _ => panic!("{output:?}"),
    }
}

fn is_one_document(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}
