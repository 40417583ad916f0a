//! A flood of calls for hours, which can be interrupted and continued.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::campaign::seed;
use crate::campaign::summary_line::{print_evidence, print_text};
use crate::checks::flood::BATCH;
use crate::env::subject::Subject;
use crate::model_node::{Node, Tally, Workload};

/// A soak test: its subjects, its length, and the file with its state.
#[derive(Clone, Debug)]
pub struct Soak {
    /// Each subject, with its weight: so many batches (of 2,000 operations) run on one host, one after the other, and its share of
    /// all operations is proportional to it. Each has a title of its own.
    pub subjects: Vec<(Subject, usize)>,
    /// The number of operations, those of earlier runs included.
    pub operations: usize,
    /// The longest time of this run. The current batch is always finished.
    pub time_limit: Duration,
    /// A file that is written after each batch. A later run continues from it.
    pub state: PathBuf,
    /// The name of these plugins in the state file: the date and the commit of their build.
    pub label: String,
}

/// The content of the state file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// One per build of the plugins, in the order of their first runs.
    builds: Vec<Build>,
    /// The counts of each subject, by its title.
    tallies: BTreeMap<String, Tally>,
}

/// The runs with one build of the plugins and the same configurations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    label: String,
    /// See [`Soak::hash`].
    hash: String,
    /// The seed of all random choices; each batch adds its number to it.
    seed: u64,
    batches: u64,
    operations: usize,
    /// The time of all runs together, in seconds.
    seconds: f64,
}

impl Soak {
    /// Floods the subjects until the operations are complete or the time is over. Prints the progress after each batch. Returns the
    /// outcome of all runs together.
    ///
    /// Next is the subject that has made the least of its share, with all its batches. Other plugins than those of earlier runs, or
    /// other configurations, are counted as a build of their own.
    ///
    /// # Errors
    /// The state of earlier runs cannot be read or written; or the plugins were replaced during a batch, which is then not counted.
    pub fn run(&self) -> io::Result<Tally> {
        let mut state = State::read(&self.state)?;
        if let Some(text) = self.done_message(&state) {
            print_text(&format!("soak: {text}\n"));
        } else {
            let hash = self.hash()?;
            state.begin(&self.label, &hash);
            let start = RunStart { begin: Instant::now(), earlier: state.sum().operations, hash };
            while !self.is_over(&state, &start) {
                self.flood_next(&mut state, &start)?;
            }
        }
        Ok(self.end(&state))
    }

    /// Floods the next subject on a host of its own, with one batch at least: to make the host may take longer than the time limit.
    fn flood_next(&self, state: &mut State, start: &RunStart) -> io::Result<()> {
        let (subject, weight) = self.next(state);
        let begin = Instant::now();
        let node = Node::new(&Workload::of(subject));
        let earlier_seconds = state.build().seconds;
        for _ in 0..*weight {
            let mut chance = Rng::with_seed(state.build().seed.wrapping_add(state.build().batches));
            let batch = node.batch(&mut chance, BATCH.min(self.operations - state.sum().operations));
            batch.found.iter().for_each(|found| print_text(&format!("\n{found}\n")));
            self.check_build(&start.hash)?;
            let is_damaged = !batch.found.is_empty();
            state.build().batches += 1;
            state.build().operations += batch.operations;
            state.build().seconds = earlier_seconds + begin.elapsed().as_secs_f64();
            state.tallies.entry(subject.title.clone()).or_default().add(batch);
            state.write(&self.state)?;
            self.progress(state, start);
            if is_damaged || self.is_over(state, start) {
                break;
            }
        }
        Ok(())
    }

    fn is_over(&self, state: &State, start: &RunStart) -> bool {
        state.sum().operations >= self.operations || start.begin.elapsed() >= self.time_limit
    }

    /// The subject that has made the least of its share.
    fn next(&self, state: &State) -> &(Subject, usize) {
        let made = |(subject, weight): &&(Subject, usize)| state.made(subject) / weight;
        self.subjects.iter().min_by_key(made).expect("a soak test has a subject")
    }

    /// A text to print instead of a run, if earlier runs completed all operations.
    ///
    /// # Errors
    /// The state of earlier runs cannot be read.
    pub fn already_done(&self) -> io::Result<Option<String>> {
        Ok(self.done_message(&State::read(&self.state)?))
    }

    fn done_message(&self, state: &State) -> Option<String> {
        let done = state.sum().operations;
        let wanted = self.operations;
        let text = format!(
            "nothing is left to do, for earlier runs made {done} of {wanted} operations: `--anew` forgets them and begins \
             anew, more `--operations` go on"
        );
        (done >= wanted).then_some(text)
    }

    /// Fails if the plugins have changed since the batch began.
    fn check_build(&self, hash: &str) -> io::Result<()> {
        if self.hash()? == hash {
            return Ok(());
        }
        Err(io::Error::other("the plugins were exchanged while they were flooded: this batch is not counted"))
    }

    /// A hash of the plugins' files and of the configurations.
    fn hash(&self) -> io::Result<String> {
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
    fn progress(&self, state: &State, start: &RunStart) {
        let Tally { operations, kills, audits, found, .. } = state.sum();
        let made = operations.saturating_sub(start.earlier).max(1);
        let each = start.begin.elapsed().as_secs_f64() / count(made);
        let left = Duration::from_secs_f64(each * count(self.operations.saturating_sub(operations)));
        let percent = operations * 100 / self.operations.max(1);
        let (erase, end) = if io::stderr().is_terminal() { ("\r\x1b[K", "") } else { ("", "\n") };
        print_text(&format!(
            "{erase}soak: {operations} of {} operations ({percent} %), {kills} killed, {audits} audits, {} found; {:.0} a second, {} left{end}",
            self.operations,
            found.len(),
            1.0 / each,
            hours(left),
        ));
    }

    /// Prints a line for each build, and one for each subject with its share of all operations.
    fn end(&self, state: &State) -> Tally {
        for Build { label, seed, batches, operations, seconds, .. } in
            state.builds.iter().filter(|build| build.batches > 0)
        {
            let time = hours(Duration::from_secs_f64(*seconds));
            print_evidence(&format!(
                "build: {label}: {operations} operations, {batches} batches from seed {seed} in {time}"
            ));
        }
        let weights: usize = self.subjects.iter().map(|(_, weight)| weight).sum();
        for (subject, weight) in &self.subjects {
            let share = self.operations * weight / weights;
            let tally = state.tallies.get(&subject.title).cloned().unwrap_or_default();
            tally.line(format!("soak {}", subject.title), share).print();
        }
        state.sum()
    }
}

/// The time, the earlier operations and the plugins at the begin of a run.
struct RunStart {
    begin: Instant,
    /// The operations of earlier runs.
    earlier: usize,
    /// The hash of the plugins.
    hash: String,
}

impl State {
    /// Reads the state of earlier runs. Without a file, it is empty.
    fn read(path: &Path) -> io::Result<State> {
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                io::Error::other(format!("it is damaged, or of another version of this program, {error}: {HINT}"))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file atomically, so that an interrupted run leaves the old one.
    fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(&new, text)?;
        fs::rename(new, path)
    }

    /// Makes the build with this hash the current one, which is the last.
    fn begin(&mut self, label: &str, hash: &str) {
        let known = self.builds.iter().position(|build| build.hash == hash).map(|at| self.builds.remove(at));
        let new = || Build { label: label.to_owned(), hash: hash.to_owned(), seed: seed(), ..Build::default() };
        self.builds.push(known.unwrap_or_else(new));
    }

    /// The current build.
    fn build(&mut self) -> &mut Build {
        self.builds.last_mut().expect("a run begins with a build")
    }

    /// The number of operations of a subject.
    fn made(&self, subject: &Subject) -> usize {
        self.tallies.get(&subject.title).map_or(0, |tally| tally.operations)
    }

    /// All subjects together.
    fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.tallies.values().cloned().for_each(|tally| sum.add(tally));
        sum
    }
}

/// The hint of an error about the state file.
const HINT: &str = "`--anew` forgets it and begins anew, another `--state` keeps it";

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

    /// A soak test of two plugins that are never called, in a directory.
    fn soak(dir: &Path) -> Soak {
        fs::write(dir.join("plugin"), "one build").unwrap();
        let subject = |title| Subject::new(dir, "plugin", json!({})).called(title);
        let subjects = vec![(subject("light"), 1), (subject("heavy"), 3)];
        let state = dir.join("soak.json");
        Soak { subjects, operations: 1, time_limit: Duration::ZERO, state, label: "today".to_owned() }
    }

    #[test]
    fn plugins_that_were_exchanged_meanwhile_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let soak = soak(dir.path());
        let hash = soak.hash().unwrap();
        soak.check_build(&hash).unwrap();
        fs::write(dir.path().join("plugin"), "another one").unwrap();
        let refused = soak.check_build(&hash).unwrap_err().to_string();
        assert!(refused.contains("exchanged"), "{refused}");
    }

    #[test]
    fn a_build_is_known_again() {
        let mut state = State::default();
        for (label, hash) in [("monday", "a"), ("tuesday", "b"), ("wednesday", "a")] {
            state.begin(label, hash);
            state.build().batches += 1;
        }
        let builds: Vec<_> = state.builds.iter().map(|build| (build.label.as_str(), build.batches)).collect();
        assert_eq!(builds, [("tuesday", 1), ("monday", 2)]);
    }

    #[test]
    fn the_subject_with_the_least_of_its_share_is_next() {
        let dir = tempfile::tempdir().unwrap();
        let soak = soak(dir.path());
        let mut state = State::default();
        let mut order = Vec::new();
        for _ in 0..8 {
            let (subject, _) = soak.next(&state);
            order.push(subject.title.clone());
            state.tallies.entry(subject.title.clone()).or_default().operations += BATCH;
        }
        assert_eq!(order, ["light", "heavy", "heavy", "heavy", "light", "heavy", "heavy", "heavy"]);
    }

    #[test]
    fn a_damaged_file_is_refused_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let soak = soak(dir.path());
        for damaged in ["", "{\"builds\":", "[]", "{\"seed\":1}"] {
            fs::write(&soak.state, damaged).unwrap();
            let refused = soak.run().unwrap_err().to_string();
            assert!(refused.contains("damaged") && refused.contains("--anew"), "{refused}");
        }
    }
}
