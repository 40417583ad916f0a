//! The file of released addresses, so that none is given again within its cooldown, and the one that was released first is given
//! first.
//!
//! The time is that since the start of the machine (`CLOCK_BOOTTIME`), with the boot's id, because a clock of the day can be set.
//! An entry of another boot counts as released when this boot began, which is later than it was.
//!
//! The file is a text: a header with the boot, and a line for each release, `MILLISECONDS ADDRESS OWNER`, which is appended. It is
//! written anew, with the last line of each address, when it has doubled, or when its boot has ended. A line that a kill cut off
//! has no complete owner, and is skipped.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use cnikit_store::{Directory, Error as StoreError, PrivateDirectory};
use nix::time::{ClockId, clock_gettime};

use crate::boot::Boot;
use crate::record::Record;

/// The first word of the header.
const MAGIC: &str = "cooling1";
/// Bytes of the header: `MAGIC BOOT LIMIT`, with 32 hexadecimal and 10 decimal digits.
const HEADER: usize = 8 + 1 + 32 + 1 + 10 + 1;
/// The digits of an owner's number.
const OWNER_DIGITS: usize = 16;
/// The size at which a file is written anew, at least, in bytes.
const SMALL: usize = 16 << 10;
/// The largest file that is read, in bytes.
const LARGEST: usize = 16 << 20;
/// How many entries are kept when the file is written anew, and all that are younger than [`KEPT`].
const LATEST: usize = 1024;
/// No cooldown is longer.
const KEPT: Duration = Duration::from_hours(24);

/// Where the released addresses of one network are recorded: a file in a directory that only root can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoolingFile {
    /// The directory above, which exists when an address is released.
    pub base: PathBuf,
    /// The name of the directory, which is created with mode 0700.
    pub directory: &'static str,
    /// The name of the file.
    pub name: String,
}

/// One release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Release {
    /// When, in milliseconds since the start of the machine.
    at: u64,
    /// The number of the owner that held the address.
    owner: u64,
}

/// The last release of each address, and the time now.
#[derive(Debug, Default)]
pub(crate) struct Released {
    releases: HashMap<IpAddr, Release>,
    cooldown: Duration,
    now: Duration,
}

impl Released {
    /// The released addresses; they may have been given since.
    pub(crate) fn addresses(&self) -> HashSet<IpAddr> {
        self.releases.keys().copied().collect()
    }

    /// The addresses whose cooldown has passed, the one that was released first at the beginning.
    pub(crate) fn rested(&self) -> Vec<IpAddr> {
        let mut rested: Vec<(u64, IpAddr)> = Vec::new();
        for (address, release) in &self.releases {
            if self.left(release).is_zero() {
                rested.push((release.at, *address));
            }
        }
        rested.sort_unstable();
        rested.into_iter().map(|(_, address)| address).collect()
    }

    /// The addresses in their cooldown, and how long that still is.
    pub(crate) fn cooling(&self) -> Vec<(IpAddr, Duration)> {
        let mut cooling = Vec::new();
        for (address, release) in &self.releases {
            let left = self.left(release);
            if !left.is_zero() {
                cooling.push((*address, left));
            }
        }
        cooling
    }

    /// How long this address is still not given to this owner; `None` if it can be.
    pub(crate) fn cools_for(&self, address: IpAddr, owner: u64) -> Option<Duration> {
        let release = self.releases.get(&address)?;
        let left = self.left(release);
        (release.owner != owner && !left.is_zero()).then_some(left)
    }

    /// Whether the cooldown of addresses that were held until the last boot ended has passed. They count as released when this boot
    /// began.
    pub(crate) fn is_boot_over(&self) -> bool {
        self.cooldown <= self.now
    }

    fn left(&self, release: &Release) -> Duration {
        (Duration::from_millis(release.at) + self.cooldown).saturating_sub(self.now)
    }
}

/// Whole seconds, rounded up.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

/// The time since the start of the machine, suspended or not.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

impl CoolingFile {
    /// The released addresses. If the file cannot be read, that is logged, and no address is known to be released.
    pub(crate) fn read(&self, boot: Option<&Boot>, cooldown: Duration, log: fn(&str)) -> Released {
        let mut released = Released { releases: HashMap::new(), cooldown, now: now() };
        match self.content() {
            Ok(Some(content)) => released.releases = parse(&content, boot),
            Ok(None) => {}
            Err(error) => log(&format!("released addresses have no cooldown: {error}")),
        }
        released
    }

    fn content(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(directory) = PrivateDirectory::open(&self.base, &[self.directory])? else { return Ok(None) };
        Ok(directory.directory().read(&self.name, LARGEST)?.map(|(content, _)| content))
    }

    /// Appends the release of these addresses. The network's lock is held.
    pub(crate) fn record(&self, boot: Option<&Boot>, records: &[Record]) -> Result<(), String> {
        if records.is_empty() {
            return Ok(());
        }
        let boot = boot.ok_or("the id of the boot cannot be read")?;
        let directory = PrivateDirectory::make(&self.base, &[self.directory]).map_err(|error| error.to_string())?;
        let directory = directory.directory();
        let at = u64::try_from(now().as_millis()).unwrap_or(u64::MAX);
        let mut lines = String::new();
        for record in records {
            write_line(&mut lines, record.address, Release { at, owner: record.owner });
        }
        if self.append(directory, boot, &lines).is_some() {
            return Ok(());
        }
        let content = match directory.read(&self.name, LARGEST) {
            Ok(found) => found.map(|(content, _)| content).unwrap_or_default(),
            Err(error) if error.is_garbage() => {
                // A symbolic link or the like: it is replaced. A directory is not, and then the next step fails.
                Vec::new()
            }
            Err(error) => return Err(error.to_string()),
        };
        let mut releases = parse(&content, Some(boot));
        releases.extend(parse_lines(&lines));
        let content = written(boot, releases, at);
        directory.replace(&self.name, content.as_bytes(), 0o600).map_err(|error| error.to_string())
    }

    /// Appends lines to a file of this boot that is not too long; `None` if it has to be written anew.
    fn append(&self, directory: &Directory, boot: &Boot, lines: &str) -> Option<()> {
        let file = directory.open_parts(&self.name).ok()??;
        let length = file.metadata().ok()?.len();
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).ok()?;
        let (id, limit) = parse_header(&header)?;
        let mut last = [0];
        file.read_exact_at(&mut last, length.checked_sub(1)?).ok()?;
        let is_whole = last == *b"\n";
        if id != boot.id || !is_whole || length + lines.len() as u64 > limit {
            return None;
        }
        file.write_all_at(lines.as_bytes(), length).ok()
    }
}

fn write_line(text: &mut String, address: IpAddr, release: Release) {
    let Release { at, owner } = release;
    let _ = writeln!(text, "{at} {address} {owner:0OWNER_DIGITS$x}");
}

/// A whole file. The oldest entries are left out if there are many.
fn written(boot: &Boot, releases: HashMap<IpAddr, Release>, now: u64) -> String {
    let mut sorted: Vec<(IpAddr, Release)> = releases.into_iter().collect();
    sorted.sort_unstable_by_key(|(address, release)| (release.at, *address));
    let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
    let old = sorted.partition_point(|(_, release)| release.at.saturating_add(kept) < now);
    let first = old.min(sorted.len().saturating_sub(LATEST));
    let mut lines = String::new();
    for (address, release) in &sorted[first..] {
        write_line(&mut lines, *address, *release);
    }
    let limit = (2 * (lines.len() + HEADER)).max(SMALL);
    format!("{MAGIC} {:032x} {limit:010}\n{lines}", boot.id)
}

/// The boot and the limit of a header.
fn parse_header(header: &[u8]) -> Option<(u128, u64)> {
    let text = str::from_utf8(header).ok()?.strip_suffix('\n')?;
    let mut words = text.split(' ');
    let (magic, boot, limit) = (words.next()?, words.next()?, words.next()?);
    if magic != MAGIC || boot.len() != 32 || words.next().is_some() {
        return None;
    }
    Some((u128::from_str_radix(boot, 16).ok()?, limit.parse().ok()?))
}

/// The last release of each address in a file. What cannot be read is skipped.
fn parse(content: &[u8], boot: Option<&Boot>) -> HashMap<IpAddr, Release> {
    let Some(header) = content.get(..HEADER).and_then(parse_header) else { return HashMap::new() };
    let mut releases = parse_lines(&String::from_utf8_lossy(&content[HEADER..]));
    if boot.is_none_or(|boot| boot.id != header.0) {
        for release in releases.values_mut() {
            release.at = 0;
        }
    }
    releases
}

fn parse_lines(text: &str) -> HashMap<IpAddr, Release> {
    let mut releases = HashMap::new();
    for line in text.lines() {
        if let Some((address, release)) = parse_line(line) {
            releases.insert(address, release);
        }
    }
    releases
}

fn parse_line(line: &str) -> Option<(IpAddr, Release)> {
    let mut words = line.split(' ');
    let (at, address, owner) = (words.next()?, words.next()?, words.next()?);
    if owner.len() != OWNER_DIGITS || words.next().is_some() {
        return None;
    }
    let release = Release { at: at.parse().ok()?, owner: u64::from_str_radix(owner, 16).ok()? };
    Some((address.parse().ok()?, release))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Boot = Boot::of(1, None);

    /// The address with this number.
    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    /// The numbers of the addresses in a file with these releases, and the limit in its header.
    fn kept(times: impl IntoIterator<Item = u64>, now: u64) -> (Vec<u32>, u64) {
        let releases = (0..).map(address).zip(times.into_iter().map(|at| Release { at, owner: 1 })).collect();
        let text = written(&BOOT, releases, now);
        let (boot, limit) = parse_header(&text.as_bytes()[..HEADER]).unwrap();
        assert_eq!(boot, BOOT.id);
        let mut numbers = Vec::new();
        for address in parse_lines(&text[HEADER..]).into_keys() {
            let IpAddr::V4(address) = address else { panic!("{address}") };
            numbers.push(u32::from(address) & 0x00ff_ffff);
        }
        numbers.sort_unstable();
        (numbers, limit)
    }

    #[test]
    fn the_oldest_releases_are_left_out_if_there_are_many_and_they_are_old() {
        let day = u64::try_from(KEPT.as_millis()).unwrap();
        let count = LATEST + 10;
        let all: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
        let oldest_five = |n: usize| if n < 5 { 100 } else { 101 };
        // At a day and 100 ms the first five are not older than a day.
        assert_eq!(kept((0..count).map(oldest_five), day + 100).0, all);
        assert_eq!(kept((0..count).map(oldest_five), day + 101).0, all[5..]);
        // All are old, and the last of them are kept.
        assert_eq!(kept((0..count).map(oldest_five), 2 * day).0, all[10..]);
        assert_eq!(kept((0..LATEST).map(oldest_five), 2 * day).0, all[..LATEST]);
    }

    #[test]
    fn a_file_may_grow_to_twice_its_size_and_a_small_one_to_sixteen_kilobytes() {
        assert_eq!(kept([5], 10).1, 16_384);
        let mut text = String::new();
        for n in 0..1000_u32 {
            write_line(&mut text, address(n), Release { at: 5, owner: 1 });
        }
        let (numbers, limit) = kept((0..1000).map(|_| 5), 10);
        assert_eq!((numbers.len(), limit), (1000, 2 * (text.len() + HEADER) as u64));
    }

    #[test]
    fn lines_are_appended_up_to_the_limit_of_the_file() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::open(place.path()).unwrap();
        let file = CoolingFile { base: place.path().to_owned(), directory: ".pool", name: "net".to_owned() };
        let lines = "5 10.0.0.1 0000000000000001\n";
        let header = |boot: u128, limit: usize| format!("{MAGIC} {boot:032x} {limit:010}\n");
        let whole = HEADER + lines.len();
        let cases = [
            (header(1, whole), true),
            (header(1, whole - 1), false),
            (header(1, 0), false),
            (header(2, whole), false),
            (header(1, 2 * whole) + lines, true),
            (header(1, 2 * whole) + "5 10.0.0.1 00", false),
            (header(1, whole)[..HEADER - 1].to_owned(), false),
        ];
        for (content, is_appended) in cases {
            directory.replace("net", content.as_bytes(), 0o600).unwrap();
            assert_eq!(file.append(&directory, &BOOT, lines).is_some(), is_appended, "{content}");
            let now = std::fs::read_to_string(place.path().join("net")).unwrap();
            let expected = if is_appended { content + lines } else { content };
            assert_eq!(now, expected);
        }
        directory.remove("net").unwrap();
        assert_eq!(file.append(&directory, &BOOT, lines), None);
    }

    #[test]
    fn a_header_and_a_line_have_all_their_words_and_no_others() {
        let id = "0".repeat(31) + "1";
        assert_eq!(parse_header(format!("cooling1 {id} 5\n").as_bytes()), Some((1, 5)));
        for text in [
            format!("cooling2 {id} 5\n"),
            format!("cooling1 0{id} 5\n"),
            format!("cooling1 {id} 5 6\n"),
            format!("cooling1 {id} 5"),
            format!("cooling1 {id}\n"),
        ] {
            assert_eq!(parse_header(text.as_bytes()), None, "{text}");
        }
        let release = Release { at: 5, owner: 10 };
        assert_eq!(parse_line("5 10.0.0.1 000000000000000a"), Some((IpAddr::from([10, 0, 0, 1]), release)));
        for line in ["5 10.0.0.1 00a", "5 10.0.0.1 000000000000000a 1", "5 10.0.0.1", "x 10.0.0.1 000000000000000a"] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
