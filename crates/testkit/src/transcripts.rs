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

mod ground;
mod play;
mod scene;
mod twist;

use std::collections::BTreeSet;
use std::sync::Mutex;

pub use ground::Ground;
use play::{Replay, assert_conforms, call, with_keys};
pub use scene::{RecordedCall, RecordedScene, read};
use twist::Twist;

use crate::campaign::{CampaignReport, chance, conclude, sample};
use crate::crowd::{caught, each};
use crate::env::subject::Subject;

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
pub fn survives(subject: &Subject, scenes: &[RecordedScene], most: usize) -> Vec<CampaignReport> {
    assert!(!scenes.is_empty(), "{}: there are no scenes", subject.title);
    let twisted = Twist::ALL.into_iter().map(|twist| twisted(subject, scenes, twist, most));
    let cut = std::iter::once_with(|| cut_short(subject, scenes, most * CUTS));
    conclude(twisted.chain(cut).collect())
}

fn twisted(subject: &Subject, scenes: &[RecordedScene], twist: Twist, most: usize) -> CampaignReport {
    let what = format!("transcripts {} {}", format!("{twist:?}").to_lowercase(), subject.title);
    let report = CampaignReport { drawn: twist.is_drawn(), ..CampaignReport::new(what, "scenes", scenes.len()) };
    let killed = Mutex::new(0);
    let mut report = campaign(report, scenes.iter().collect(), most, |scene: &RecordedScene| {
        let mut replay = Replay::new(subject, twist);
        let about = format!("{} {twist:?} to {}", scene.name, subject.title);
        let played = caught(|| replay.play(scene, &mut chance(&about)));
        *killed.lock().unwrap() += replay.killed;
        (replay.failed, played.map_err(|found| format!("{about}: {found}")))
    });
    if twist.kills() && report.findings.is_empty() && *killed.lock().unwrap() == 0 {
        report.findings.push(format!("{}: nobody was killed", report.what));
    }
    report.say()
}

/// Every request that differs, without its end.
fn cut_short(subject: &Subject, scenes: &[RecordedScene], most: usize) -> CampaignReport {
    let mut ground = Ground::of(subject);
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for (scene, call) in scenes.iter().flat_map(|scene| scene.calls.iter().map(move |call| (scene, call))) {
        if seen.insert((call.env["CNI_COMMAND"].clone(), call.stdin.clone())) {
            let env = ground.environment(call);
            requests.push((scene, call, env, ground.fill(&with_keys(&call.stdin, subject)).into_bytes()));
        }
    }
    let lengths = |request: usize| (0..requests[request].3.len()).map(move |length| (request, length));
    let all: Vec<_> = (0..requests.len()).flat_map(lengths).collect();
    let report = CampaignReport::new(format!("transcripts cut short {}", subject.title), "lengths", all.len());
    let mut report = campaign(report, all, most, |(request, length)| {
        let (scene, sent, env, stdin) = &requests[request];
        let tried = caught(|| {
            let said = call(&ground.host, subject, env, &stdin[..length]);
            assert_conforms(sent, &said);
            assert!(said.exit == 1 || sent.is("VERSION"), "{said:?}");
        });
        let about = || format!("{}: {}, call {}, its first {length} bytes", subject.title, scene.name, sent.seq);
        (1, tried.map_err(|found| format!("{}: {found}", about())))
    });
    let came = ground.came();
    report.findings.extend((!came.is_empty()).then(|| format!("{}: came {came:#?}", report.what)));
    report.say()
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
    each(
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
