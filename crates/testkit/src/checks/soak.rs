//! A flood of calls for hours, which can be interrupted and continued.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::campaign::summary_line::print_text;
use crate::campaign::{SummaryLine, seed};
use crate::checks::flood::BATCH;
use crate::env::subject::Subject;
use crate::model_node::{Node, Tally, Workload};

/// A soak test: its subjects, its length, and the file with its state.
#[derive(Clone, Debug)]
pub struct Soak {
    /// Each subject, with the number of its batches (of 2,000 operations) in a round. All batches of a round run on one host.
    pub subjects: Vec<(Subject, usize)>,
    /// The number of operations, those of earlier runs included.
    pub operations: usize,
    /// The longest time of this run. The current batch is always finished.
    pub time_limit: Duration,
    /// A file that is written after each batch. A later run continues from it, if the plugins are the same.
    pub state: PathBuf,
}

/// The content of the state file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// The hash of plugins and configurations: see [`Soak::build`].
    #[serde(default)]
    build: String,
    /// The seed of all random choices; each batch adds its number to it.
    seed: u64,
    batches: u64,
    /// The time of all runs together, in seconds.
    seconds: f64,
    tally: Tally,
}

impl Soak {
    /// Floods each subject in turn until the operations are complete or the time is over. Prints the progress after each batch.
    /// Returns the outcome of all runs together.
    ///
    /// # Errors
    /// The state of earlier runs cannot be read or written, or belongs to another build of the plugins or other
    /// configurations; or the plugins were replaced during a batch, which is then not counted.
    pub fn run(&self) -> io::Result<Tally> {
        let mut state = self.load_state()?;
        if let Some(text) = self.done_message(&state) {
            print_text(&format!("soak: {text}\n"));
        }
        let begin = Instant::now();
        let earlier_operations = state.tally.operations;
        let earlier_seconds = state.seconds;
        let round: Vec<&Subject> =
            self.subjects.iter().flat_map(|(subject, batches)| vec![subject; *batches]).collect();
        let mut reusable = None;
        while state.tally.operations < self.operations && begin.elapsed() < self.time_limit {
            let subject = round[usize::try_from(state.batches).unwrap_or_default() % round.len()];
            let node = match reusable.take() {
                Some((of, node)) if std::ptr::eq(of, subject) => node,
                _ => Node::new(&Workload::of(subject)),
            };
            let mut chance = Rng::with_seed(state.seed.wrapping_add(state.batches));
            let one = node.batch(&mut chance, BATCH.min(self.operations - state.tally.operations));
            one.found.iter().for_each(|found| print_text(&format!("\n{found}\n")));
            self.check_build(&state.build)?;
            if one.found.is_empty() {
                reusable = Some((subject, node));
            }
            state.tally.add(one);
            state.batches += 1;
            state.seconds = earlier_seconds + begin.elapsed().as_secs_f64();
            state.write(&self.state)?;
            self.progress(&state, earlier_operations, begin.elapsed());
        }
        Ok(self.end(state))
    }

    /// A text to print instead of a run, if earlier runs completed all operations.
    ///
    /// # Errors
    /// The state of earlier runs cannot be read, or belongs to another build of the plugins or other configurations.
    pub fn already_done(&self) -> io::Result<Option<String>> {
        Ok(self.done_message(&self.load_state()?))
    }

    fn done_message(&self, state: &State) -> Option<String> {
        let done = state.tally.operations;
        let wanted = self.operations;
        let text = format!(
            "nothing is left to do, for earlier runs made {done} of {wanted} operations: `--anew` forgets them and begins \
             anew, more `--operations` go on"
        );
        (done >= wanted).then_some(text)
    }

    /// Reads the state of earlier runs, or makes a new state with a new seed.
    fn load_state(&self) -> io::Result<State> {
        match State::read(&self.state)? {
            None => Ok(State { build: self.build()?, seed: seed(), ..State::default() }),
            Some(state) if state.build == self.build()? => Ok(state),
            Some(_) => Err(io::Error::other(format!(
                "it is of another build of the plugins, or of other configurations: {HINT}"
            ))),
        }
    }

    /// Fails if the plugins have changed since the batch began.
    fn check_build(&self, build: &str) -> io::Result<()> {
        if self.build()? == build {
            return Ok(());
        }
        Err(io::Error::other(
            "the plugins were exchanged while they were flooded: this batch is not counted, and a run with those that \
             were there before goes on without it",
        ))
    }

    /// A hash of the plugins' files and of the configurations.
    fn build(&self) -> io::Result<String> {
        let mut hash = DefaultHasher::new();
        for (subject, batches) in &self.subjects {
            let Subject { bin, plugin: _, title, conf, env, after, .. } = subject;
            let Subject { host_setup, background, beside, disk, shared, state, gateways_answer, .. } = subject;
            let after = after.as_ref().map(|after| (&after.made, after.result.to_string()));
            (title, conf.to_string(), env, after, batches).hash(&mut hash);
            (host_setup, background, disk, shared, state, gateways_answer).hash(&mut hash);
            for dir in std::iter::once(bin).chain(beside) {
                for name in subject.programs() {
                    let path = dir.join(name);
                    let unread = |error| io::Error::other(format!("{}: {error}", path.display()));
                    fs::read(&path).map_err(unread)?.hash(&mut hash);
                }
            }
        }
        Ok(format!("{:016x}", hash.finish()))
    }

    /// Prints the progress: on a terminal over the last line, otherwise as a new line.
    fn progress(&self, state: &State, before: usize, took: Duration) {
        let Tally { operations, kills, audits, found, .. } = &state.tally;
        let each = took.as_secs_f64() / count(operations.saturating_sub(before).max(1));
        let left = Duration::from_secs_f64(each * count(self.operations.saturating_sub(*operations)));
        let percent = operations * 100 / self.operations.max(1);
        let (start, end) = if io::stderr().is_terminal() { ("\r\x1b[K", "") } else { ("", "\n") };
        print_text(&format!(
            "{start}soak: {operations} of {} operations ({percent} %), {kills} killed, {audits} audits, {} found; {:.0} a second, {} left{end}",
            self.operations,
            found.len(),
            1.0 / each,
            hours(left),
        ));
    }

    fn end(&self, state: State) -> Tally {
        let State { seed, batches, seconds, tally, .. } = state;
        let names: Vec<&str> = self.subjects.iter().map(|(subject, _)| subject.title.as_str()).collect();
        let mut line: SummaryLine = tally.line(format!("soak {}", names.join(", ")), self.operations);
        line.notes.push(format!("{batches} batches from seed {seed} in {}", hours(Duration::from_secs_f64(seconds))));
        line.print();
        tally
    }
}

/// The hint of an error about the state file.
const HINT: &str = "`--anew` forgets it and begins anew, another `--state` keeps it";

impl State {
    fn read(path: &Path) -> io::Result<Option<State>> {
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| io::Error::other(format!("it is damaged, {error}: {HINT}"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file atomically, so that an interrupted run leaves the old one.
    fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        fs::rename(new, path)
    }
}

#[expect(clippy::cast_precision_loss, reason = "no count is that large")]
fn count(number: usize) -> f64 {
    number as f64
}

fn hours(time: Duration) -> String {
    let minutes = time.as_secs().div_ceil(60);
    format!("{}:{:02} h", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A soak test of a plugin that is never called, in a directory.
    fn soak(dir: &Path) -> Soak {
        fs::write(dir.join("plugin"), "one build").unwrap();
        let subject = Subject::new(dir, "plugin", json!({}));
        Soak { subjects: vec![(subject, 1)], operations: 1, time_limit: Duration::ZERO, state: dir.join("soak.json") }
    }

    #[test]
    fn plugins_that_were_exchanged_meanwhile_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let soak = soak(dir.path());
        let state = soak.load_state().unwrap();
        soak.check_build(&state.build).unwrap();
        fs::write(dir.path().join("plugin"), "another one").unwrap();
        let refused = soak.check_build(&state.build).unwrap_err().to_string();
        assert!(refused.contains("exchanged"), "{refused}");
        state.write(&soak.state).unwrap();
        let refused = soak.load_state().unwrap_err().to_string();
        assert!(refused.contains("another build") && refused.contains("--anew"), "{refused}");
    }

    #[test]
    fn a_damaged_file_is_refused_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let soak = soak(dir.path());
        for damaged in ["", "{\"seed\":", "[]"] {
            fs::write(&soak.state, damaged).unwrap();
            let refused = soak.load_state().unwrap_err().to_string();
            assert!(refused.contains("damaged") && refused.contains("--anew"), "{refused}");
        }
    }
}
