//! What a runtime sent, sent again: as it was, cut short, twice, out of order, killed in between.
//!
//! A scene is a file whose name ends in `.jsonl`: a line a call, in the order in which the calls began, each a JSON object.
//!
//! | field | |
//! |---|---|
//! | `seq` | a number that names the call in messages; gaps are as good |
//! | `plugin` | who was called |
//! | `env` | every `CNI_*` variable; `CNI_COMMAND`, `CNI_CONTAINERID`, `CNI_IFNAME` and `CNI_NETNS` have to be there, empty or not |
//! | `stdin` | the exact text |
//! | `exit` | the exit status of whoever was recorded |
//! | `stdout` | its answer, of an ADD that succeeded |
//!
//! Others, such as what the runtime had been asked to do, are for people. `@NETNS@/NAME` stands for the path of a container's
//! network namespace, `@BIN@` for the plugin directory. Each host-local and tuning in the text gets a `dataDir` of the test's own.
//!
//! ```no_run
//! use cnikit_testkit::{Subject, transcripts};
//!
//! let scenes = transcripts::read("tests/transcripts".as_ref());
//! let mine = Subject::new("target/debug".as_ref(), "my-plugin", serde_json::json!({}));
//! transcripts::survives(&mine, &scenes, 2);
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

use crate::campaign::{CampaignReport, conclude, sample, seeded_rng};
use crate::env::subject::Subject;
use crate::parallel::{catch_panic, for_each};

/// So many at once.
const WORKERS: usize = 4;
/// For each scene that is tried in the short form, so many requests are cut short.
const CUTS: usize = 75;

/// Every call of every scene is sent to the plugin, whoever it was for: as it was recorded; each twice; those of an attachment
/// in another order; where none should come; each killed at some system call, and sent again or not; all of that; and cut
/// short at every length. Each answer is one that the specification knows, and after a last DEL of each attachment, without its
/// namespace, nothing of any container is left. What is cut short is refused, and nothing comes of it. As recorded, what
/// succeeded when this very plugin was called, by name, succeeds.
///
/// The text of a request goes as it is; but the subject's keys, if it has any beside `cniVersion`, `name` and `type`, take the
/// place of the recorded ones. Without `CNIKIT_CAMPAIGNS=whole` at most so many scenes of each kind are tried, by chance.
pub fn survives(subject: &Subject, transcripts: &[Transcript], most: usize) -> Vec<CampaignReport> {
    assert!(!transcripts.is_empty(), "{}: there are no scenes", subject.title);
    let vary = Variation::ALL.into_iter().map(|variation| vary(subject, transcripts, variation, most));
    let cut = std::iter::once_with(|| cut_short(subject, transcripts, most * CUTS));
    conclude(vary.chain(cut).collect())
}

fn vary(subject: &Subject, transcripts: &[Transcript], variation: Variation, most: usize) -> CampaignReport {
    let what = format!("transcripts {} {}", format!("{variation:?}").to_lowercase(), subject.title);
    let report =
        CampaignReport { drawn: variation.is_drawn(), ..CampaignReport::new(what, "scenes", transcripts.len()) };
    let killed = Mutex::new(0);
    let mut report = campaign(report, transcripts.iter().collect(), most, |transcript: &Transcript| {
        let mut replay = Replay::new(subject, variation);
        let about = format!("{} {variation:?} to {}", transcript.name, subject.title);
        let played = catch_panic(|| replay.play(transcript, &mut seeded_rng(&about)));
        *killed.lock().unwrap() += replay.killed;
        (replay.failed, played.map_err(|found| format!("{about}: {found}")))
    });
    if variation.kills() && report.findings.is_empty() && *killed.lock().unwrap() == 0 {
        report.findings.push(format!("{}: nobody was killed", report.what));
    }
    report.print()
}

/// Every request that differs, without its end.
fn cut_short(subject: &Subject, transcripts: &[Transcript], most: usize) -> CampaignReport {
    let mut replay_host = ReplayHost::of(subject);
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for (transcript, call) in
        transcripts.iter().flat_map(|transcript| transcript.calls.iter().map(move |call| (transcript, call)))
    {
        if seen.insert((call.env["CNI_COMMAND"].clone(), call.stdin.clone())) {
            let env = replay_host.environment(call);
            requests.push((
                transcript,
                call,
                env,
                replay_host.fill_placeholders(&with_keys(&call.stdin, subject)).into_bytes(),
            ));
        }
    }
    let lengths = |request: usize| (0..requests[request].3.len()).map(move |length| (request, length));
    let all: Vec<_> = (0..requests.len()).flat_map(lengths).collect();
    let report = CampaignReport::new(format!("transcripts cut short {}", subject.title), "lengths", all.len());
    let mut report = campaign(report, all, most, |(request, length)| {
        let (transcript, sent, env, stdin) = &requests[request];
        let tried = catch_panic(|| {
            let said = call(&replay_host.host, subject, env, &stdin[..length]);
            assert_conforms(sent, &said);
            assert!(said.exit == 1 || sent.is("VERSION"), "{said:?}");
        });
        let about = || format!("{}: {}, call {}, its first {length} bytes", subject.title, transcript.name, sent.seq);
        (1, tried.map_err(|found| format!("{}: {found}", about())))
    });
    let came = replay_host.added_lines();
    report.findings.extend((!came.is_empty()).then(|| format!("{}: came {came:#?}", report.what)));
    report.print()
}

/// Tries each of a choice of all, several at once: how many calls failed, and what was found.
fn campaign<T: Clone + Sync>(
    report: CampaignReport,
    all: Vec<T>,
    most: usize,
    attempt: impl Fn(T) -> (usize, Result<(), String>) + Sync,
) -> CampaignReport {
    let chosen = sample(&report.what, all, most);
    let together = Mutex::new(report);
    for_each(
        WORKERS,
        &chosen,
        || (),
        |(), one| {
            let (failed, tried) = attempt(one.clone());
            let findings = tried.err().into_iter().collect();
            together.lock().unwrap().add(CampaignReport { tried: 1, failed, findings, ..CampaignReport::default() });
        },
    );
    together.into_inner().unwrap()
}
