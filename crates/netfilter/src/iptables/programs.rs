//! Which programs there are, and running them.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_process::{Deadline, Program, run};

use super::traces::{Half, stands};
use super::{Changes, Error, Result, Table};

/// Where they are looked for behind what `PATH` says: a runtime may have a poor one.
const USUAL: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";
/// How long one of them may run; it waits for others that change rules ([`LOCK_WAIT`]).
const PATIENCE: Duration = Duration::from_mins(1);
/// How long the legacy programs wait for their common lock, in seconds.
#[doc(alias = "xtables.lock")]
const LOCK_WAIT: &str = "5";
/// The most that a table may be, in bytes of text: more than a million rules.
const LONGEST: usize = 256 << 20;

/// The version of IP, of which each has its own tables and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl IpVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

/// The name of its program, and of its packages.
impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        })
    }
}

/// The pair of programs that reads and changes tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    save: PathBuf,
    restore: PathBuf,
}

impl Programs {
    /// Those that the administrator chose: `iptables-save` and `iptables-restore` on `PATH`, or where they usually are.
    pub fn find(version: IpVersion) -> Result<Self> {
        Self::named(&version.to_string())
    }

    /// Those that reach what stands of a table, or of one chain of it, in either half of iptables: none, one or two, each
    /// with whether the chain is surely there.
    ///
    /// No program is started to find that out. The legacy half tells only whether the table is there at all.
    ///
    /// # Errors
    /// [`Error::Missing`] if the chain is there and no program that reaches it.
    pub fn reaching(version: IpVersion, table: &str, chain: Option<&str>) -> Result<Vec<(Self, bool)>> {
        let mut found: Vec<(Self, bool)> = Vec::new();
        for half in [Half::NfTables, Half::Legacy] {
            if !stands(half, version, table, chain)? {
                continue;
            }
            let surely = half == Half::NfTables && chain.is_some();
            match Self::of_half(version, half) {
                Ok(programs) if found.iter().any(|(same, _)| *same == programs) => {}
                Ok(programs) => found.push((programs, surely)),
                Err(error) if surely => return Err(error),
                Err(_) => {}
            }
        }
        Ok(found)
    }

    /// The administrator's choice if it is for this half or does not tell, else the one that bears its name.
    fn of_half(version: IpVersion, half: Half) -> Result<Self> {
        match Self::find(version) {
            Ok(chosen) if chosen.half().is_none_or(|its| its == half) => Ok(chosen),
            _ => Self::named(&format!("{version}-{half}")),
        }
    }

    fn named(name: &str) -> Result<Self> {
        let find = |program: String| on_path(&program).ok_or(Error::Missing { program });
        Ok(Self { save: find(format!("{name}-save"))?, restore: find(format!("{name}-restore"))? })
    }

    /// All programs of a half are names of one file, which bears the half's name; a script of the administrator's does not.
    fn half(&self) -> Option<Half> {
        let file = self.save.canonicalize().ok()?;
        let name = file.file_name()?.to_string_lossy();
        [Half::NfTables, Half::Legacy].into_iter().find(|half| name.contains(&format!("-{half}-")))
    }

    pub(crate) fn read(&self, table: &'static str, mention: &str) -> Result<Table> {
        let said = started(&self.save, &["-t", table], Vec::new())?;
        let incompatible = || Error::Incompatible { program: self.save.clone(), table };
        Table::read(&String::from_utf8_lossy(&said), table, mention).ok_or_else(incompatible)
    }

    pub(crate) fn change(&self, table: &str, changes: &Changes) -> Result<()> {
        started(&self.restore, &["--noflush", "-w", LOCK_WAIT], changes.input(table)).map(drop)
    }
}

/// Runs it to its end; its stdout.
fn started(path: &Path, args: &[&str], stdin: Vec<u8>) -> Result<Vec<u8>> {
    let program = Program {
        path: path.to_owned(),
        args: args.iter().map(OsString::from).collect(),
        env: Vec::new(),
        stdin,
        limit: LONGEST,
        grace: Duration::from_secs(1),
    };
    let ended = run(&program, Deadline::after(PATIENCE)).map_err(Error::Process)?;
    if ended.how.is_success() {
        return Ok(ended.stdout);
    }
    let program = format!("{} {}", path.display(), args.join(" "));
    Err(Error::Failed { program, how: ended.how, said: one_line(&ended.stderr) })
}

fn one_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

#[expect(clippy::disallowed_methods, reason = "which iptables is the administrator's, PATH alone says")]
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(std::env::split_paths(USUAL));
    // An empty place is the working directory, from where nobody starts programs as root.
    places.filter(|place| place.is_absolute()).map(|place| place.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}
