//! One line that summarizes a campaign, for people and scripts.
#![expect(clippy::disallowed_methods, reason = "the variables that choose and collect campaigns")]

use std::fmt;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;

use fastrand::Rng;

/// The summary of a campaign: its name, the number of cases, and the number of findings.
///
/// ```
/// use cnikit_testkit::campaign::SummaryLine;
/// let line = SummaryLine { tried: 60, of: 357, found: 1, ..SummaryLine::new("kill bridge ADD", "calls") };
/// assert_eq!(line.to_string(), "campaign: kill bridge ADD: 60 tried of 357 calls, 59 survived, 1 found");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummaryLine {
    /// The name of the campaign: `kill bridge ADD`.
    pub what: String,
    /// The unit of the cases: `calls`, `failures`, `operations`.
    pub unit: String,
    /// The number of cases that were tried.
    pub tried: usize,
    /// The number of all cases.
    pub of: usize,
    /// The number of cases with a finding; the rest survived.
    pub found: usize,
    /// Remarks, which are printed in brackets at the end.
    pub notes: Vec<String>,
}

impl SummaryLine {
    /// Makes the summary of a campaign with no cases tried yet.
    pub fn new(what: impl Into<String>, unit: impl Into<String>) -> SummaryLine {
        SummaryLine { what: what.into(), unit: unit.into(), ..SummaryLine::default() }
    }

    /// Adds the seed that repeats the random choice: see [`seeded_rng`].
    #[must_use]
    pub fn with_seed(mut self) -> SummaryLine {
        self.notes.push(format!("CNIKIT_SEED={}", seed()));
        self
    }

    /// Prints the line to standard error, which test harnesses do not capture, and appends it to the file that `CNIKIT_EVIDENCE`
    /// names. The path must be absolute, because cargo starts tests in another directory than its own.
    pub fn print(&self) {
        print_evidence(&self.to_string());
    }
}

/// Prints a line as [`SummaryLine::print`] does.
pub(crate) fn print_evidence(line: &str) {
    print_line(line);
    if let Some(path) = std::env::var_os("CNIKIT_EVIDENCE") {
        let path = Path::new(&path);
        assert!(path.is_absolute(), "CNIKIT_EVIDENCE={}: it wants an absolute path", path.display());
        let file = OpenOptions::new().append(true).create(true).open(path);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("CNIKIT_EVIDENCE={}: {error}", path.display()));
    }
}

impl fmt::Display for SummaryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SummaryLine { what, unit, tried, of, found, notes } = self;
        let survived = tried.saturating_sub(*found);
        write!(f, "campaign: {what}: {tried} tried of {of} {unit}, {survived} survived, {found} found")?;
        if notes.is_empty() { Ok(()) } else { write!(f, " ({})", notes.join(", ")) }
    }
}

/// Prints a line that test harnesses do not capture.
pub(crate) fn print_line(text: &str) {
    print_text(&format!("{text}\n"));
}

/// Prints a text that test harnesses do not capture.
pub(crate) fn print_text(text: &str) {
    io::stderr().write_all(text.as_bytes()).expect("standard error can be written to");
}

/// Whether all cases are tried: `CNIKIT_CAMPAIGNS` is `whole`.
pub fn runs_all_cases() -> bool {
    case_limit(0) == usize::MAX
}

/// The most cases that are tried: the number in `CNIKIT_CAMPAIGNS`, no limit if it is `whole`, `short` if it is not set.
pub fn case_limit(short: usize) -> usize {
    match std::env::var("CNIKIT_CAMPAIGNS").as_deref() {
        Err(_) => short,
        Ok("whole") => usize::MAX,
        Ok(number) => number.parse().unwrap_or_else(|error| panic!("CNIKIT_CAMPAIGNS={number}: {error}")),
    }
}

/// The seed of all random choices of this process: `CNIKIT_SEED`, or a random number.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(choose_seed)
}

fn choose_seed() -> u64 {
    match std::env::var("CNIKIT_SEED") {
        Ok(given) => given.parse().unwrap_or_else(|error| panic!("CNIKIT_SEED={given}: {error}")),
        Err(_) => fastrand::u64(..1_000_000_000),
    }
}

/// The random number generator of one campaign: the same for the same [`seed`] and name.
pub fn seeded_rng(what: &str) -> Rng {
    let mut hash = DefaultHasher::new();
    (seed(), what).hash(&mut hash);
    Rng::with_seed(hash.finish())
}
