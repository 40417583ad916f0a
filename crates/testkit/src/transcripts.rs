//! Replays recorded calls of runtimes: as recorded, truncated, repeated, in another order, or killed.
//!
//! A transcript is a file whose name ends in `.jsonl`. Each line is a JSON object for one call; the lines are in the order in which
//! the calls began.
//!
//! | field | content |
//! |---|---|
//! | `seq` | a number that identifies the call in messages; gaps are allowed |
//! | `plugin` | the called plugin |
//! | `env` | all `CNI_*` variables; `CNI_COMMAND`, `CNI_CONTAINERID`, `CNI_IFNAME` and `CNI_NETNS` are required, and may be empty |
//! | `stdin` | the exact text |
//! | `exit` | the exit status of the recorded plugin |
//! | `stdout` | the result of a successful ADD |
//!
//! Other fields, such as the command that the runtime executed, are for people. `@NETNS@/NAME` is replaced by the path of a
//! container's network namespace, `@BIN@` by the plugin directory. Each host-local, tuning and sbr in the text gets a `dataDir` of
//! the test's own.
//!
//! ```no_run
//! use cnikit_testkit::{Subject, transcripts};
//!
//! let all = transcripts::read("tests/transcripts".as_ref());
//! let mine = Subject::new("target/debug".as_ref(), "my-plugin", serde_json::json!({}));
//! transcripts::survives(&mine, &all, 2);
//! ```

mod recording;
mod replay;
mod replay_host;
mod variation;

use std::collections::BTreeSet;
use std::sync::Mutex;

pub use recording::{RecordedCall, Transcript, read};
use replay::{Replay, assert_conforms, call, with_keys};
pub use replay_host::ReplayHost;
use variation::Variation;

use crate::campaign::{CampaignReport, add_report, conclude, sample, seeded_rng};
use crate::env::host::Host;
use crate::env::subject::Subject;
use crate::parallel::{catch_panic, for_each};

/// The number of replays at the same time.
const WORKERS: usize = 4;
/// How many requests are truncated per transcript of a random sample.
const CUTS: usize = 75;

/// Sends every call of every transcript to the plugin, whichever plugin was called: as recorded; each twice; those of an attachment
/// in another order; at unexpected moments; each killed at some system call, and repeated or not; all of that; and truncated at
/// every length. Each reply conforms to the specification, and after a last DEL of each attachment without its namespace nothing of
/// any container is left. Truncated requests are refused and have no effect. Some ADD succeeds: of the chosen transcripts, or else
/// of any. As recorded, each call succeeds that succeeded when a plugin of the same name was called, unless the subject has an
/// `ipam` of its own.
///
/// The text of a request is not changed, except that the subject's keys other than `cniVersion`, `name` and `type` replace the
/// recorded ones. Without `CNIKIT_CAMPAIGNS=whole` a random choice of at most `most` transcripts of each kind is tried.
pub fn survives(subject: &Subject, transcripts: &[Transcript], most: usize) -> Vec<CampaignReport> {
    replay(subject, transcripts, most, true)
}

/// As [`survives`], for a plugin that has to refuse every ADD, for example because a server that it needs does not run.
pub fn are_refused(subject: &Subject, transcripts: &[Transcript], most: usize) -> Vec<CampaignReport> {
    replay(subject, transcripts, most, false)
}

/// `adds`: whether some ADD has to succeed, or none may.
fn replay(subject: &Subject, transcripts: &[Transcript], most: usize, adds: bool) -> Vec<CampaignReport> {
    assert!(!transcripts.is_empty(), "{}: there are no scenes", subject.title);
    let mut reports = Vec::new();
    let added = Mutex::new(0);
    for variation in Variation::ALL {
        reports.push(replay_all(subject, transcripts, variation, most, &added));
    }
    let added = added.into_inner().unwrap();
    if adds && added == 0 && !transcripts.iter().any(|transcript| adds_as_recorded(subject, transcript)) {
        reports[0].findings.push(format!("{}: no ADD of any scene succeeds, so nothing was tested", subject.title));
    }
    if !adds && added > 0 {
        reports[0].findings.push(format!("{}: {added} ADDs succeeded", subject.title));
    }
    reports.push(cut_short(subject, transcripts, most * CUTS));
    conclude(reports)
}

/// Replays a random sample of the transcripts with one variation.
fn replay_all(
    subject: &Subject,
    transcripts: &[Transcript],
    variation: Variation,
    most: usize,
    added: &Mutex<usize>,
) -> CampaignReport {
    let what = format!("transcripts {} {}", format!("{variation:?}").to_lowercase(), subject.title);
    let report =
        CampaignReport { drawn: variation.is_drawn(), ..CampaignReport::new(what, "scenes", transcripts.len()) };
    let killed = Mutex::new(0);
    let attempt = |transcript: &Transcript| replay_one(subject, transcript, variation, &killed, added);
    let mut report = campaign(report, transcripts.iter().collect(), most, attempt);
    if variation.kills() && report.findings.is_empty() && *killed.lock().unwrap() == 0 {
        report.findings.push(format!("{}: no call was killed", report.what));
    }
    report.print()
}

/// Whether an ADD of the transcript succeeds, sent as recorded. Not every plugin can serve every scene, and a small sample may have
/// none that it can.
fn adds_as_recorded(subject: &Subject, transcript: &Transcript) -> bool {
    let mut replay = Replay::new(subject, Variation::Replayed);
    // What the replay finds is found in the sample that has this scene.
    let _ = catch_panic(|| replay.play(transcript, &mut seeded_rng(&transcript.name)));
    replay.added > 0
}

/// Replays a transcript. Returns the number of failed calls and a finding, and adds to the numbers of killed calls and of ADDs that
/// succeeded.
fn replay_one(
    subject: &Subject,
    transcript: &Transcript,
    variation: Variation,
    killed: &Mutex<usize>,
    added: &Mutex<usize>,
) -> (usize, Result<(), String>) {
    let mut replay = Replay::new(subject, variation);
    let about = format!("{} {variation:?} to {}", transcript.name, subject.title);
    let result = catch_panic(|| replay.play(transcript, &mut seeded_rng(&about)));
    *killed.lock().unwrap() += replay.killed;
    *added.lock().unwrap() += replay.added;
    (replay.failed, result.map_err(|found| format!("{about}: {found}")))
}

/// A distinct request of the transcripts, with its placeholders replaced.
struct Request<'a> {
    transcript: &'a Transcript,
    call: &'a RecordedCall,
    env: Vec<(String, String)>,
    stdin: Vec<u8>,
}

/// Sends every distinct request, truncated at each length.
fn cut_short(subject: &Subject, transcripts: &[Transcript], most: usize) -> CampaignReport {
    let mut replay_host = ReplayHost::of(subject);
    let requests = distinct_requests(subject, transcripts, &mut replay_host);
    let mut all = Vec::new();
    for request in &requests {
        all.extend((0..request.stdin.len()).map(|length| (request, length)));
    }
    let report = CampaignReport::new(format!("transcripts cut short {}", subject.title), "lengths", all.len());
    let mut report = campaign(report, all, most, |(request, length)| {
        let result = catch_panic(|| assert_refused(subject, &replay_host.host, request, length));
        (1, result.map_err(|found| format!("{}: {}: {found}", subject.title, request.describe(length))))
    });
    let came = replay_host.added_lines();
    if !came.is_empty() {
        report.findings.push(format!("{}: came {came:#?}", report.what));
    }
    report.print()
}

fn distinct_requests<'a>(
    subject: &Subject,
    transcripts: &'a [Transcript],
    replay_host: &mut ReplayHost,
) -> Vec<Request<'a>> {
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for transcript in transcripts {
        for call in &transcript.calls {
            if seen.insert((call.env["CNI_COMMAND"].clone(), call.stdin.clone())) {
                let env = replay_host.environment(call);
                let stdin = replay_host.fill_placeholders(call, &with_keys(call, subject)).into_bytes();
                requests.push(Request { transcript, call, env, stdin });
            }
        }
    }
    requests
}

/// Sends the first `length` bytes of a request, which has to be refused; VERSION needs no stdin.
fn assert_refused(subject: &Subject, host: &Host, request: &Request, length: usize) {
    let output = call(host, subject, &request.env, &request.stdin[..length]);
    assert_conforms(request.call, &output);
    assert!(output.exit > 0 || request.call.is("VERSION"), "{output:?}");
}

impl Request<'_> {
    fn describe(&self, length: usize) -> String {
        format!("{}, call {}, its first {length} bytes", self.transcript.name, self.call.seq)
    }
}

/// Tries a random sample of the cases, several at once. `attempt` returns the number of failed calls and a finding.
fn campaign<T: Clone + Sync>(
    report: CampaignReport,
    all: Vec<T>,
    most: usize,
    attempt: impl Fn(T) -> (usize, Result<(), String>) + Sync,
) -> CampaignReport {
    let chosen = sample(&report.what, all, most);
    let together = Mutex::new(report);
    let try_one = |one: &T| {
        let (failed, result) = attempt(one.clone());
        CampaignReport { tried: 1, failed, findings: result.err().into_iter().collect(), ..CampaignReport::default() }
    };
    for_each(WORKERS, &chosen, || (), |(), one| add_report(&together, try_one(one)));
    together.into_inner().unwrap()
}
