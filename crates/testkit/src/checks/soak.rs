//! A flood of calls for hours, which can be interrupted and continued.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::campaign::seed;
use crate::campaign::summary_line::{print_evidence, print_text};
use crate::checks::flood::BATCH;
use crate::env::subject::Subject;
use crate::model_node::{Node, Tally, Workload};

/// So many subjects are flooded at once: those with iptables wait for the kernel most of their time, and leave the processors to
/// the other subjects.
const AT_ONCE: usize = 4;

/// A soak test: its subjects, its length, and the file with its state.
#[derive(Clone, Debug)]
pub struct Soak {
    /// Each subject, with its weight: so many batches (of 2,000 operations) run on one host, one after the other, and its share of
    /// all operations is proportional to it. Each has a title of its own. Four subjects are flooded at once, each on a host of its
    /// own.
    pub subjects: Vec<(Subject, usize)>,
    /// The number of operations, those of earlier runs included.
    pub operations: usize,
    /// The longest time of this run. The current batches are always finished.
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
            return Ok(self.end(&state));
        }
        let hash = self.hash()?;
        state.begin(&self.label, &hash);
        let run = Run::of(self, state, hash);
        let ended: Vec<io::Result<()>> = thread::scope(|scope| {
            let lanes: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| run.flood())).collect();
            lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        ended.into_iter().collect::<io::Result<()>>()?;
        Ok(self.end(&run.shared().state))
    }

    /// The subject that has made the least of its share, of those that are not flooded now.
    fn next(&self, state: &State, busy: &BTreeSet<&str>) -> Option<&(Subject, usize)> {
        let free = self.subjects.iter().filter(|(subject, _)| !busy.contains(subject.title.as_str()));
        free.min_by_key(|(subject, weight)| state.made(subject) / weight)
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

    /// A hash of the configurations and of the plugins' files. Those of the tested plugins are all in their directory: a plugin may
    /// start another program there.
    fn hash(&self) -> io::Result<String> {
        let mut hash = DefaultHasher::new();
        let mut files = BTreeSet::new();
        for (subject, batches) in &self.subjects {
            let Subject { bin, plugin: _, title, conf, env, after, .. } = subject;
            let Subject { host_setup, background, beside, disk, shared, state, gateways_answer, .. } = subject;
            let after = after.as_ref().map(|after| (&after.made, after.result.to_string()));
            (title, conf.to_string(), env, after, batches).hash(&mut hash);
            (host_setup, background, disk, shared, state, gateways_answer).hash(&mut hash);
            for entry in fs::read_dir(bin).map_err(|error| unread(bin, &error))? {
                let path = entry.map_err(|error| unread(bin, &error))?.path();
                if path.is_file() {
                    files.insert(path);
                }
            }
            files.extend(beside.iter().flat_map(|dir| subject.programs().map(|name| dir.join(name))));
        }
        // Without the directories: each run may have new ones.
        let mut contents = BTreeSet::new();
        for path in files {
            let mut content = DefaultHasher::new();
            fs::read(&path).map_err(|error| unread(&path, &error))?.hash(&mut content);
            contents.insert((path.file_name().map(ToOwned::to_owned), content.finish()));
        }
        contents.hash(&mut hash);
        Ok(format!("{:016x}", hash.finish()))
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

/// A run, which several lanes make.
struct Run<'a> {
    soak: &'a Soak,
    begin: Instant,
    /// The operations of earlier runs.
    earlier: usize,
    /// The time of earlier runs with these plugins, in seconds.
    earlier_seconds: f64,
    /// The hash of the plugins.
    hash: String,
    shared: Mutex<Shared<'a>>,
}

/// The part of a run that its lanes share.
struct Shared<'a> {
    state: State,
    /// The titles of the subjects that are flooded now.
    busy: BTreeSet<&'a str>,
    /// The operations of the batches that have begun and are not counted yet.
    under_way: usize,
    /// The batches that have begun, those of earlier runs included.
    begun: u64,
}

/// What is decided about a batch before it begins.
struct Batch {
    operations: usize,
    seed: u64,
}

impl<'a> Run<'a> {
    fn of(soak: &'a Soak, mut state: State, hash: String) -> Run<'a> {
        let earlier = state.sum().operations;
        let Build { seconds: earlier_seconds, batches: begun, .. } = *state.build();
        let shared = Mutex::new(Shared { state, busy: BTreeSet::new(), under_way: 0, begun });
        Run { soak, begin: Instant::now(), earlier, earlier_seconds, hash, shared }
    }

    fn shared(&self) -> MutexGuard<'_, Shared<'a>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane: floods one subject after the other, each on a host of its own. It ends when the other lanes have all subjects.
    fn flood(&self) -> io::Result<()> {
        while let Some((subject, weight, first)) = self.take_subject() {
            let flooded = self.flood_subject(subject, weight, first);
            self.shared().busy.remove(subject.title.as_str());
            flooded?;
        }
        Ok(())
    }

    /// Makes the batches of a subject, at least one: making the host may take longer than the time limit.
    fn flood_subject(&self, subject: &Subject, weight: usize, first: Batch) -> io::Result<()> {
        let node = Node::new(&Workload::of(subject));
        let mut batch = first;
        for left in (0..weight).rev() {
            let tally = node.batch(&mut Rng::with_seed(batch.seed), batch.operations);
            tally.found.iter().for_each(|found| print_text(&format!("\n{found}\n")));
            self.soak.check_build(&self.hash)?;
            let is_damaged = !tally.found.is_empty();
            self.count(subject, &batch, tally)?;
            if is_damaged || left == 0 {
                break;
            }
            let Some(next) = self.begin_batch(&mut self.shared()) else { break };
            batch = next;
        }
        Ok(())
    }

    /// The next subject, its weight, and its first batch; nothing if the operations are complete or the time is over.
    fn take_subject(&self) -> Option<(&'a Subject, usize, Batch)> {
        let mut shared = self.shared();
        let (subject, weight) = self.soak.next(&shared.state, &shared.busy)?;
        let batch = self.begin_batch(&mut shared)?;
        shared.busy.insert(&subject.title);
        Some((subject, *weight, batch))
    }

    fn begin_batch(&self, shared: &mut Shared) -> Option<Batch> {
        let begun = shared.state.sum().operations + shared.under_way;
        let operations = BATCH.min(self.soak.operations.saturating_sub(begun));
        if operations == 0 || self.begin.elapsed() >= self.soak.time_limit {
            return None;
        }
        let seed = shared.state.build().seed.wrapping_add(shared.begun);
        shared.begun += 1;
        shared.under_way += operations;
        Some(Batch { operations, seed })
    }

    fn count(&self, subject: &Subject, batch: &Batch, tally: Tally) -> io::Result<()> {
        let shared = &mut *self.shared();
        shared.under_way -= batch.operations;
        let build = shared.state.build();
        build.batches += 1;
        build.operations += tally.operations;
        build.seconds = self.earlier_seconds + self.begin.elapsed().as_secs_f64();
        shared.state.tallies.entry(subject.title.clone()).or_default().add(tally);
        shared.state.write(&self.soak.state)?;
        self.print_progress(&shared.state);
        Ok(())
    }

    /// Prints the progress: on a terminal over the last line, otherwise as a new line.
    fn print_progress(&self, state: &State) {
        let Tally { operations, kills, audits, found, .. } = state.sum();
        let made = operations.saturating_sub(self.earlier).max(1);
        let each = self.begin.elapsed().as_secs_f64() / count(made);
        let wanted = self.soak.operations;
        let left = Duration::from_secs_f64(each * count(wanted.saturating_sub(operations)));
        let percent = operations * 100 / wanted.max(1);
        let (erase, end) = if io::stderr().is_terminal() { ("\r\x1b[K", "") } else { ("", "\n") };
        print_text(&format!(
            "{erase}soak: {operations} of {wanted} operations ({percent} %), {kills} killed, {audits} audits, {} found; {:.0} a second, {} left{end}",
            found.len(),
            1.0 / each,
            hours(left),
        ));
    }
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

fn unread(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
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

    /// The plugin's own file, and one beside it, which it may execute.
    #[test]
    fn plugins_that_were_exchanged_meanwhile_are_found() {
        for file in ["plugin", "program"] {
            let dir = tempfile::tempdir().unwrap();
            let soak = soak(dir.path());
            fs::write(dir.path().join("program"), "one build").unwrap();
            let hash = soak.hash().unwrap();
            soak.check_build(&hash).unwrap();
            fs::write(dir.path().join(file), "another one").unwrap();
            let refused = soak.check_build(&hash).unwrap_err().to_string();
            assert!(refused.contains("exchanged"), "{refused}");
        }
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
            let (subject, _) = soak.next(&state, &BTreeSet::new()).unwrap();
            order.push(subject.title.clone());
            state.tallies.entry(subject.title.clone()).or_default().operations += BATCH;
        }
        assert_eq!(order, ["light", "heavy", "heavy", "heavy", "light", "heavy", "heavy", "heavy"]);
    }

    #[test]
    fn no_subject_is_flooded_twice_at_once_and_no_more_operations_begin_than_are_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let soak = Soak { operations: BATCH + 5, time_limit: Duration::MAX, ..soak(dir.path()) };
        let mut state = State::default();
        state.begin("today", "hash");
        let run = Run::of(&soak, state, String::new());
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.extend(run.take_subject().map(|(subject, _, batch)| (subject.title.as_str(), batch)));
        }
        let sizes: Vec<_> = taken.iter().map(|(title, batch)| (*title, batch.operations)).collect();
        assert_eq!(sizes, [("light", BATCH), ("heavy", 5)]);
        assert_ne!(taken[0].1.seed, taken[1].1.seed);
        // One that has made fewer than wanted leaves the rest to the next.
        run.count(&soak.subjects[0].0, &taken[0].1, Tally { operations: 10, ..Tally::default() }).unwrap();
        run.shared().busy.clear();
        assert_eq!(run.take_subject().unwrap().2.operations, BATCH - 10);
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
