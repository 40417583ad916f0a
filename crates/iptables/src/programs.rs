//! Which programs there are, and running them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_nftables::Nftables;
use cnikit_process::{Deadline, Env, Program, Running, begin, find_program};

use crate::changes::{Changes, LAST};
use crate::installed_chains::{Chains, InstalledChains};
use crate::kernel_table::KernelTable;
use crate::read_scope::{Listed, ReadScope};
use crate::table::Table;
use crate::variant::{IpVersion, Variant};
use crate::{Error, Result};

/// The variables of ours that they get, besides `PATH`: what iptables(8) documents for operators.
///
/// `XTABLES_LIBDIR`, which xtables reads too, is not among them: it names the directory of libraries that are loaded as root.
const PASSED_ON: &[&str] = &["XTABLES_LOCKFILE"];
/// How long one of them may run; it waits for others that change rules ([`LOCK_WAIT`]).
const TIMEOUT: Duration = Duration::from_mins(1);
/// What `iptables-save` says in place of a table that it does not understand.
const INCOMPATIBLE: &str = "is incompatible";
/// How long the legacy programs wait for their common lock, in seconds.
#[doc(alias = "xtables.lock")]
const LOCK_WAIT: &str = "5";
/// The most that a table may be, in bytes of text: more than a million rules.
const LONGEST: usize = 256 << 20;

/// The pair of programs that reads and changes tables.
///
/// It may be known by name alone, where what stands needs a program that is not installed: that is said by whatever would
/// run it, as [`Error::Missing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    version: IpVersion,
    pair: std::result::Result<Pair, Absent>,
}

/// Where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    save: PathBuf,
    restore: PathBuf,
}

/// The name of one that is nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Absent(String);

impl Programs {
    /// Those that the administrator chose: `iptables-save` and `iptables-restore` on `PATH`, or where they usually are.
    ///
    /// # Errors
    /// [`Error::Missing`] if one of them is not there.
    pub fn find(version: IpVersion) -> Result<Self> {
        Ok(Self { version, pair: Ok(Pair::named(&version.to_string())?) })
    }

    /// Those that reach what stands of these chains, in either half of iptables: none, one or two, each with what stands.
    ///
    /// The legacy half tells only whether the table was ever used. No program is started to find that out: `nftables` is
    /// asked, none where the kernel has no netfilter. Where those of one half are missing, the other half is reached all the
    /// same.
    pub fn reaching(
        nftables: Option<&Nftables>,
        version: IpVersion,
        table: &'static str,
        meant: Chains,
    ) -> Result<Vec<(Self, InstalledChains)>> {
        let mut found: Vec<(Self, InstalledChains)> = Vec::new();
        for half in [Variant::NfTables, Variant::Legacy] {
            let Some(traces) = InstalledChains::of(nftables, half, version, table, meant)? else { continue };
            let programs = Self::of_half(version, half);
            if found.iter().all(|(other, _)| *other != programs) {
                found.push((programs, traces));
            }
        }
        Ok(found)
    }

    #[cfg(test)]
    pub(crate) fn of(version: IpVersion, save: PathBuf, restore: PathBuf) -> Self {
        Self { version, pair: Ok(Pair { save, restore }) }
    }

    fn of_half(version: IpVersion, half: Variant) -> Self {
        let own = || Pair::named(&format!("{version}-{half}"));
        let pair = Pair::named(&version.to_string()).map_or_else(|_| own(), |chosen| chosen.or_of(half, own));
        Self { version, pair }
    }

    /// Whether they are surely those of `nf_tables`, and of no other half.
    pub(crate) fn are_of_nf_tables(&self) -> bool {
        self.pair.as_ref().is_ok_and(|pair| pair.half() == Some(Variant::NfTables))
    }

    /// What stands of a table, where these surely change what the kernel can tell of.
    pub(crate) fn kernel_table(&self, table: &'static str) -> Option<KernelTable> {
        self.are_of_nf_tables().then(|| KernelTable::look(self.version, table)).flatten()
    }

    /// Has the whole table read.
    pub(crate) fn begin_read(&self, table: &'static str) -> Result<Saving> {
        let save = self.pair()?.save.clone();
        Ok(Saving { started: Started::new(&save, &["-t", table], Vec::new())?, save })
    }

    /// Has some chains listed, which the program does among changes: here there are none.
    pub(crate) fn begin_list(&self, table: &str, listed: Listed) -> Result<Listing> {
        let mut input = format!("*{table}\n");
        listed.chains.iter().for_each(|chain| input.extend(["-S ", chain, "\n"]));
        input.push_str("COMMIT\n");
        Ok(Listing { started: Started::new(&self.pair()?.restore, &["--noflush"], input.into_bytes())?, listed })
    }

    pub(crate) fn begin(&self, table: &str, changes: &Changes) -> Result<Changing> {
        let restore = &self.pair()?.restore;
        Started::new(restore, &["--noflush", "-w", LOCK_WAIT, "--verbose"], changes.input(table))
            .map(|started| Changing(Some(started)))
    }

    pub(crate) fn version(&self) -> IpVersion {
        self.version
    }

    fn pair(&self) -> Result<&Pair> {
        self.pair.as_ref().map_err(|absent| absent.clone().into())
    }
}

impl Pair {
    fn named(name: &str) -> std::result::Result<Self, Absent> {
        let find = |program: String| find_program(&program).ok_or(Absent(program));
        Ok(Self { save: find(format!("{name}-save"))?, restore: find(format!("{name}-restore"))? })
    }

    /// These, which the administrator chose, if they are surely for this half; else those that bear its name. These too
    /// where there are no such ones and nothing tells that these are for the other half.
    ///
    /// A script may choose anew each time it runs, and lead elsewhere than to what stands.
    #[doc(alias = "iptables-wrappers")]
    fn or_of(
        self,
        half: Variant,
        own: impl FnOnce() -> std::result::Result<Self, Absent>,
    ) -> std::result::Result<Self, Absent> {
        match self.half() {
            Some(its) if its == half => Ok(self),
            Some(_) => own(),
            None => own().or(Ok(self)),
        }
    }

    /// All programs of a half are names of one file, which bears the half's name; a script of the administrator's does not.
    fn half(&self) -> Option<Variant> {
        let file = self.save.canonicalize().ok()?;
        let name = file.file_name()?.to_string_lossy();
        [Variant::NfTables, Variant::Legacy].into_iter().find(|half| name.contains(&format!("-{half}-")))
    }
}

impl From<Absent> for Error {
    fn from(Absent(program): Absent) -> Self {
        Self::Missing { program }
    }
}

/// A program at work, and how to speak of it.
struct Started {
    running: Running,
    program: String,
}

impl Started {
    fn new(path: &Path, args: &[&str], stdin: Vec<u8>) -> Result<Self> {
        let program = Program {
            path: path.to_owned(),
            args: args.iter().map(OsString::from).collect(),
            env: Env::Clean(PASSED_ON),
            stdin,
            limit: LONGEST,
            grace: Duration::from_secs(1),
        };
        let running = begin(&program, Deadline::after(TIMEOUT)).map_err(Error::Process)?;
        Ok(Self { running, program: format!("{} {}", path.display(), args.join(" ")) })
    }

    /// Waits for its end; its stdout.
    fn finish(self) -> Result<Vec<u8>> {
        let ended = self.running.finish().map_err(Error::Process)?;
        if ended.how.is_success() {
            return Ok(ended.stdout);
        }
        Err(Error::Failed { program: self.program, how: ended.how, said: one_line(&ended.stderr) })
    }
}

/// A table that a program is reading.
pub(crate) struct Saving {
    started: Started,
    save: PathBuf,
}

impl Saving {
    /// Waits for it.
    pub(crate) fn finish(self, part: &ReadScope) -> Result<Table> {
        let (said, table) = (self.started.finish()?, part.table);
        let said = String::from_utf8_lossy(&said);
        // One that could not write what it had to say says nothing at all, and succeeds.
        let why = || {
            if said.contains(INCOMPATIBLE) {
                return Error::Incompatible { program: self.save.clone(), table };
            }
            Error::Unread { program: format!("{} -t {table}", self.save.display()) }
        };
        Table::read(&said, table, part.mention).ok_or_else(why)
    }
}

/// Chains that a program is listing.
pub(crate) struct Listing {
    started: Started,
    listed: Listed,
}

impl Listing {
    /// Waits for it. None if it did not list all of them: one may be gone by now, or hold what it does not understand.
    pub(crate) fn finish(self, part: &ReadScope) -> Option<Table> {
        let said = self.started.finish().ok()?;
        Table::read_some(&String::from_utf8_lossy(&said), self.listed, part.mention)
    }
}

/// Changes that a program is making, or that are made.
#[must_use = "whether they were made tells Changing::finish alone"]
pub struct Changing(Option<Started>);

impl Changing {
    /// Those that no program was needed for.
    pub(crate) const MADE: Self = Self(None);

    /// Waits until they are made, or refused as a whole.
    ///
    /// # Errors
    /// [`Error::Unread`] where the program succeeded before it had read them.
    pub fn finish(self) -> Result<()> {
        let Some(started) = self.0 else { return Ok(()) };
        let program = started.program.clone();
        let said = started.finish()?;
        if String::from_utf8_lossy(&said).contains(LAST) { Ok(()) } else { Err(Error::Unread { program }) }
    }
}

fn one_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(save: &Path) -> Pair {
        Pair { save: save.to_owned(), restore: PathBuf::from("/restore") }
    }

    #[test]
    fn a_choice_that_tells_no_half_gives_way_to_programs_that_bear_its_name() {
        let script = pair(Path::new("/nowhere/iptables-save"));
        let (own, absent) = (pair(Path::new("/own/iptables-nft-save")), Absent("iptables-nft-save".into()));
        assert_eq!(script.clone().or_of(Variant::NfTables, || Ok(own.clone())), Ok(own));
        assert_eq!(script.clone().or_of(Variant::NfTables, || Err(absent)), Ok(script));
    }

    #[test]
    fn a_choice_that_tells_its_half_is_taken_for_that_half_alone() {
        let place = std::env::temp_dir().join(format!("cnikit-programs-{}", std::process::id()));
        let (file, link) = (place.join("xtables-legacy-multi"), place.join("iptables-save"));
        std::fs::create_dir(&place).unwrap();
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let (chosen, own) = (pair(&link), pair(Path::new("/own/iptables-legacy-save")));
        let absent = || Absent("iptables-nft-save".into());
        let (taken, left) = (
            chosen.clone().or_of(Variant::Legacy, || Ok(own)),
            chosen.clone().or_of(Variant::NfTables, || Err(absent())),
        );
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
    fn programs_that_are_nowhere_say_so_when_they_are_to_run() {
        let programs = Programs { version: IpVersion::V4, pair: Pair::named("cnikit-no-such") };
        let missing = |error| matches!(error, Error::Missing { program } if program == "cnikit-no-such-save");
        assert!(missing(programs.begin_read("nat").err().unwrap()));
        assert!(missing(programs.begin("nat", &Changes::default()).err().unwrap()));
    }
}
