//! The programs of iptables: find and run them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_nftables::Nftables;
use cnikit_process::{Deadline, Env, Program, Running, begin, find_program};

use crate::changes::{Changes, END_MARKER};
use crate::error::{Error, Result};
use crate::installed_chains::{Chains, InstalledChains};
use crate::kernel_table::KernelTable;
use crate::read_scope::{ListedChains, ReadScope};
use crate::table::Table;
use crate::variant::{IpVersion, Variant};

/// The variables of our environment that the programs get, besides `PATH`: those that iptables(8) documents for operators.
///
/// `XTABLES_LIBDIR`, which xtables reads too, is not among them: it names the directory of libraries that are loaded as root.
const PASSED_ON: &[&str] = &["XTABLES_LOCKFILE"];
/// How long a program may run; it waits for other programs that change rules ([`LOCK_WAIT`]).
const TIMEOUT: Duration = Duration::from_mins(1);
/// The text that `iptables-save` prints in place of a table that it cannot express.
const INCOMPATIBLE: &str = "is incompatible";
/// How long the legacy programs wait for their common lock, in seconds.
#[doc(alias = "xtables.lock")]
const LOCK_WAIT: &str = "5";
/// The most that a program may print, in bytes: more than a million rules.
const MAX_OUTPUT: usize = 256 << 20;

/// The pair of programs that reads and changes the tables of one version of IP.
///
/// If the kernel has rules of a variant whose programs are not installed, only the names of the programs are known. Then every
/// function that would run one of them returns [`Error::Missing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    version: IpVersion,
    pair: std::result::Result<Pair, MissingProgram>,
}

/// The files of the two programs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    save: PathBuf,
    restore: PathBuf,
}

/// The name of a program that is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MissingProgram(String);

impl Programs {
    /// Finds the programs that the administrator chose: `iptables-save` and `iptables-restore` on `PATH`, or in the usual
    /// directories.
    ///
    /// # Errors
    /// [`Error::Missing`] if one of them is not installed.
    pub fn find(version: IpVersion) -> Result<Self> {
        Ok(Self { version, pair: Ok(Pair::find(&version.to_string())?) })
    }

    /// The programs that read the installed chains among `chains`, with those chains: none, one or two pairs, since each variant
    /// has its own.
    ///
    /// No program is started. `nftables` is asked instead; it is `None` if the kernel has no netfilter. Of the legacy variant only
    /// whether the table was ever used is known. The programs of a variant may be missing; that does not hide the other variant.
    ///
    /// # Errors
    /// [`Error::Netlink`] if the kernel cannot be asked.
    pub fn reaching(
        nftables: Option<&Nftables>,
        version: IpVersion,
        table: &'static str,
        chains: Chains,
    ) -> Result<Vec<(Self, InstalledChains)>> {
        let mut found: Vec<(Self, InstalledChains)> = Vec::new();
        for variant in Variant::ALL {
            let Some(installed) = InstalledChains::of(nftables, variant, version, table, chains)? else { continue };
            let programs = Self::for_variant(version, variant);
            if found.iter().all(|(other, _)| *other != programs) {
                found.push((programs, installed));
            }
        }
        Ok(found)
    }

    #[cfg(test)]
    pub(crate) fn of(version: IpVersion, save: PathBuf, restore: PathBuf) -> Self {
        Self { version, pair: Ok(Pair { save, restore }) }
    }

    fn for_variant(version: IpVersion, variant: Variant) -> Self {
        let find_named = || Pair::find(&format!("{version}-{variant}"));
        let pair = match Pair::find(&version.to_string()) {
            Ok(chosen) => chosen.or_named(variant, find_named),
            Err(_) => find_named(),
        };
        Self { version, pair }
    }

    /// Whether these are surely the programs of the variant in `nf_tables`.
    pub(crate) fn are_of_nf_tables(&self) -> bool {
        self.pair.as_ref().is_ok_and(|pair| pair.variant() == Some(Variant::NfTables))
    }

    /// The table as the kernel has it, if these programs surely change `nf_tables`.
    pub(crate) fn kernel_table(&self, table: &'static str) -> Option<KernelTable> {
        if !self.are_of_nf_tables() {
            return None;
        }
        KernelTable::read(self.version, table)
    }

    /// Starts printing the whole table.
    pub(crate) fn begin_save(&self, table: &'static str) -> Result<Saving> {
        let save = self.pair()?.save.clone();
        Ok(Saving { started: RunningProgram::start(&save, &["-t", table], Vec::new())?, save })
    }

    /// Starts printing some chains. `iptables-restore` does that with `-S` among its changes; here there are no changes.
    pub(crate) fn begin_list(&self, table: &str, listed: ListedChains) -> Result<Listing> {
        let mut input = format!("*{table}\n");
        for chain in &listed.names {
            input.extend(["-S ", chain, "\n"]);
        }
        input.push_str("COMMIT\n");
        let restore = &self.pair()?.restore;
        Ok(Listing { started: RunningProgram::start(restore, &["--noflush"], input.into_bytes())?, listed })
    }

    /// Starts making changes.
    pub(crate) fn begin(&self, table: &str, changes: &Changes) -> Result<Changing> {
        let args = ["--noflush", "-w", LOCK_WAIT, "--verbose"];
        let started = RunningProgram::start(&self.pair()?.restore, &args, changes.input(table))?;
        Ok(Changing(Some(started)))
    }

    pub(crate) fn version(&self) -> IpVersion {
        self.version
    }

    fn pair(&self) -> Result<&Pair> {
        self.pair.as_ref().map_err(|missing| missing.clone().into())
    }
}

impl Pair {
    fn find(name: &str) -> std::result::Result<Self, MissingProgram> {
        let find = |program: String| find_program(&program).ok_or(MissingProgram(program));
        Ok(Self { save: find(format!("{name}-save"))?, restore: find(format!("{name}-restore"))? })
    }

    /// The programs for a variant: these, which the administrator chose, if they are surely of that variant; otherwise the programs
    /// with the variant in their names. If there are none, these again, unless they are surely of the other variant.
    ///
    /// A script may choose anew each time it runs, and another variant than the one whose rules are installed.
    #[doc(alias = "iptables-wrappers")]
    fn or_named(
        self,
        variant: Variant,
        find_named: impl FnOnce() -> std::result::Result<Self, MissingProgram>,
    ) -> std::result::Result<Self, MissingProgram> {
        match self.variant() {
            Some(own) if own == variant => Ok(self),
            Some(_) => find_named(),
            None => find_named().or(Ok(self)),
        }
    }

    /// All programs of a variant are links to one file with the variant in its name; a script of the administrator is not.
    fn variant(&self) -> Option<Variant> {
        let file = self.save.canonicalize().ok()?;
        let name = file.file_name()?.to_string_lossy();
        Variant::ALL.into_iter().find(|variant| name.contains(&format!("-{variant}-")))
    }
}

impl From<MissingProgram> for Error {
    fn from(MissingProgram(program): MissingProgram) -> Self {
        Self::Missing { program }
    }
}

/// A program that runs, and its command line for messages.
struct RunningProgram {
    running: Running,
    command: String,
}

impl RunningProgram {
    fn start(path: &Path, args: &[&str], stdin: Vec<u8>) -> Result<Self> {
        let program = Program::new(path, Env::Clean(PASSED_ON))
            .args(args.iter().map(OsString::from).collect())
            .stdin(stdin)
            .limit(MAX_OUTPUT);
        let running = begin(&program, Deadline::after(TIMEOUT)).map_err(Error::Process)?;
        Ok(Self { running, command: format!("{} {}", path.display(), args.join(" ")) })
    }

    /// Waits until the program exits, and returns its stdout.
    fn finish(self) -> Result<Vec<u8>> {
        let ended = self.running.finish().map_err(Error::Process)?;
        if ended.how.is_success() {
            return Ok(ended.stdout);
        }
        Err(Error::Failed { program: self.command, how: ended.how, stderr: one_line(&ended.stderr) })
    }
}

/// A table that `iptables-save` is printing.
pub(crate) struct Saving {
    started: RunningProgram,
    save: PathBuf,
}

impl Saving {
    /// Waits until the table is printed.
    pub(crate) fn finish(self, scope: &ReadScope) -> Result<Table> {
        let table = scope.table;
        let stdout = self.started.finish()?;
        let output = String::from_utf8_lossy(&stdout);
        if let Some(read) = Table::read(&output, table, scope.line_text) {
            return Ok(read);
        }
        if output.contains(INCOMPATIBLE) {
            return Err(Error::Incompatible { program: self.save, table });
        }
        // A program that cannot write its output prints nothing at all, and succeeds.
        Err(Error::Unread { program: format!("{} -t {table}", self.save.display()) })
    }
}

/// Chains that `iptables-restore` is printing.
pub(crate) struct Listing {
    started: RunningProgram,
    listed: ListedChains,
}

impl Listing {
    /// Waits until the chains are printed. Returns `None` if not all of them are: another program may have removed one meanwhile,
    /// or have added rules to it that iptables cannot express.
    pub(crate) fn finish(self, scope: &ReadScope) -> Option<Table> {
        let stdout = self.started.finish().ok()?;
        Table::read_listed(&String::from_utf8_lossy(&stdout), self.listed, scope.line_text)
    }
}

/// Changes that a program is making, or that are made already.
#[must_use = "only Changing::finish returns whether the changes were made"]
pub struct Changing(Option<RunningProgram>);

impl Changing {
    /// Changes that were made without a program.
    pub(crate) const MADE: Self = Self(None);

    /// Waits until the changes are made.
    ///
    /// # Errors
    /// [`Error::Failed`] if the program refused them; then none of them is made. [`Error::Unread`] if the program succeeded before
    /// it had read all of them. [`Error::Process`] if it did not exit in time.
    pub fn finish(self) -> Result<()> {
        let Some(started) = self.0 else { return Ok(()) };
        let program = started.command.clone();
        let stdout = started.finish()?;
        if String::from_utf8_lossy(&stdout).contains(END_MARKER) { Ok(()) } else { Err(Error::Unread { program }) }
    }
}

/// The lines of an output that are not empty, separated by `; `.
fn one_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(save: &Path) -> Pair {
        Pair { save: save.to_owned(), restore: PathBuf::from("/restore") }
    }

    #[test]
    fn programs_named_after_the_variant_win_over_an_unknown_choice() {
        let script = pair(Path::new("/nowhere/iptables-save"));
        let own = pair(Path::new("/own/iptables-nft-save"));
        let absent = MissingProgram("iptables-nft-save".into());
        assert_eq!(script.clone().or_named(Variant::NfTables, || Ok(own.clone())), Ok(own));
        assert_eq!(script.clone().or_named(Variant::NfTables, || Err(absent)), Ok(script));
    }

    #[test]
    fn a_choice_of_a_known_variant_is_used_for_that_variant_only() {
        let place = std::env::temp_dir().join(format!("cnikit-programs-{}", std::process::id()));
        let file = place.join("xtables-legacy-multi");
        let link = place.join("iptables-save");
        std::fs::create_dir(&place).unwrap();
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let chosen = pair(&link);
        let own = pair(Path::new("/own/iptables-legacy-save"));
        let absent = || MissingProgram("iptables-nft-save".into());
        let taken = chosen.clone().or_named(Variant::Legacy, || Ok(own));
        let left = chosen.clone().or_named(Variant::NfTables, || Err(absent()));
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!(taken, Ok(chosen));
        assert_eq!(left, Err(absent()));
    }

    /// iptables-restore takes a stdin that it cannot read for one that is empty, and succeeds.
    #[test]
    fn changes_that_were_not_read_are_not_taken_for_made() {
        let reads_nothing = PathBuf::from("/bin/true");
        let programs = Programs::of(IpVersion::V4, reads_nothing.clone(), reads_nothing);
        let done = programs.begin("nat", &Changes::default()).unwrap().finish();
        assert!(matches!(done, Err(Error::Unread { program }) if program.starts_with("/bin/true --noflush")));
    }

    #[test]
    fn missing_programs_are_an_error_when_they_are_run() {
        let programs = Programs { version: IpVersion::V4, pair: Pair::find("cnikit-no-such") };
        let missing = |error| matches!(error, Error::Missing { program } if program == "cnikit-no-such-save");
        assert!(missing(programs.begin_save("nat").err().unwrap()));
        assert!(missing(programs.begin("nat", &Changes::default()).err().unwrap()));
    }
}
