//! What an attachment changed, stored in a file of its own until DEL or GC undoes it.
//!
//! The file is `CONTAINER_IFNAME.HASH.json` in `dataDir`; the hash is that of the attachment's tag. It names the attachment and its
//! namespace, as that of [`saved_settings`](crate::saved_settings) does. It is complete and synced before anything is changed, so
//! it may list what was never made: every entry is compared with the kernel before it is undone.

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, GcContext, ReleaseContext};
use cnikit_skel::{AttachmentId, Errors, Journal, NetnsLookup, Result, log};
use cnikit_store::{Directory, check_version};
use cnikit_types::{NetConf, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::alias::hex;
use crate::saved_settings::Owner;

/// The version of the format that is written, and the newest that is read.
const FORMAT: u64 = 1;
/// The longest file name without hash and ending, in bytes. The kernel takes 255, and a temporary file needs some of them.
const LONGEST: usize = 160;
/// The largest file that is read, in bytes.
const LIMIT: usize = 64 << 20;
/// The modes of a file and of the directory.
const MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// The content of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored<T> {
    version: u64,
    owner: Owner,
    state: T,
}

/// Undoes a state in its namespace, where the interface has this name.
pub(crate) type Undo<T> = fn(&T, ifname: &str, netns: &Netns) -> Result<()>;

/// The directory of the files: `dataDir`, otherwise `default`. DEL and GC read nothing else of the configuration.
pub(crate) fn data_dir(conf: &NetConf, default: &str) -> PathBuf {
    match conf.text("dataDir") {
        None | Some("") => default.into(),
        Some(path) => path.into(),
    }
}

/// The state that was stored for this attachment in this namespace; `None` if there is none, or if it is of another namespace.
///
/// # Errors
/// The file cannot be read, or a later release wrote it.
pub(crate) fn find<T: DeserializeOwned>(context: &ApplyContext, dir: &Path) -> Result<Option<T>> {
    let Some(directory) = Directory::open_if_any(dir)? else { return Ok(None) };
    let name = file_name(&context.tag);
    let stored = match read::<T>(&directory, &name)? {
        Found::Valid(stored) => stored,
        Found::Newer(version) => {
            check_version(directory.path().join(&name), version, FORMAT)?;
            return Ok(None);
        }
        Found::Absent | Found::Damaged => return Ok(None),
    };
    if stored.owner.is(&context.tag) && stored.owner.is_same(&Owner::of(context)?) {
        return Ok(Some(stored.state));
    }
    Ok(None)
}

/// Stores the state, before anything is changed. The journal puts back what was stored before.
pub(crate) fn record<T: Serialize>(context: &ApplyContext, dir: &Path, journal: &mut Journal, state: &T) -> Result<()> {
    let directory = Directory::make(dir, DIRECTORY_MODE)?;
    let name = file_name(&context.tag);
    let stored = Stored { version: FORMAT, owner: Owner::of(context)?, state };
    let before = match directory.read(&name, LIMIT) {
        Err(error) if error.is_garbage() => None,
        found => found?.map(|(content, _)| content),
    };
    let previous = PreviousFile { dir: dir.to_owned(), name: name.clone(), before };
    // As long as something of the new state may still be there, DEL needs the new file.
    let _ = journal.undo_if_clean(&previous, PreviousFile::put_back);
    Ok(directory.replace_and_sync(&name, serde_json::to_string(&stored)?.as_bytes(), MODE)?)
}

/// A file as it was before this ADD, for the journal.
#[derive(Clone)]
struct PreviousFile {
    dir: PathBuf,
    name: String,
    before: Option<Vec<u8>>,
}

impl PreviousFile {
    fn put_back(&self) -> Result<()> {
        let directory = Directory::open(&self.dir)?;
        directory.discard_unfinished_of(&self.name)?;
        match &self.before {
            Some(content) => directory.replace(&self.name, content, MODE)?,
            None => {
                directory.remove(&self.name)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for PreviousFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record in {}", self.dir.join(&self.name).display())
    }
}

/// Undoes the stored state of one attachment, if its namespace still exists, and removes the file. Returns whether there was one.
pub(crate) fn release<T: DeserializeOwned>(context: &ReleaseContext, dir: &Path, undo: Undo<T>) -> Result<bool> {
    let Some(directory) = Directory::open_if_any(dir)? else { return Ok(false) };
    let name = file_name(&context.tag);
    directory.discard_unfinished_of(&name)?;
    let stored = match read::<T>(&directory, &name)? {
        Found::Valid(stored) if stored.owner.is(&context.tag) => stored,
        Found::Absent => return Ok(false),
        Found::Newer(version) => {
            warn_of_newer(&directory, &name, version);
            remove_file(&directory, &name)?;
            return Ok(false);
        }
        Found::Valid(_) | Found::Damaged => {
            remove_file(&directory, &name)?;
            return Ok(false);
        }
    };
    if let Some(netns) = stored.owner.namespace(&context.netns)? {
        undo(&stored.state, &context.tag.ifname, &netns)?;
    }
    directory.remove(&name)?;
    Ok(true)
}

/// Undoes the states of this network's attachments that are not valid any more, and removes their files.
pub(crate) fn sweep<T: DeserializeOwned>(context: &GcContext, dir: &Path, undo: Undo<T>) -> Result<()> {
    let Some(directory) = Directory::open_if_any(dir)? else { return Ok(()) };
    directory.discard_unfinished()?;
    let mut errors = Errors::default();
    for name in directory.list()? {
        if let Ok(name) = name.into_string()
            && name.strip_suffix(".json").is_some()
        {
            errors.note(sweep_file(context, &directory, &name, undo));
        }
    }
    errors.finish()
}

fn sweep_file<T: DeserializeOwned>(
    context: &GcContext,
    directory: &Directory,
    name: &str,
    undo: Undo<T>,
) -> Result<()> {
    let Stored { owner, state, .. } = match read::<T>(directory, name)? {
        Found::Valid(stored) => *stored,
        Found::Newer(version) => {
            warn_of_newer(directory, name, version);
            return Ok(());
        }
        Found::Absent | Found::Damaged => return Ok(()),
    };
    if owner.network != context.network || context.valid.has(&owner.container, &owner.ifname) {
        return Ok(());
    }
    if owner.is_doubtful()? {
        return Ok(()); // DEL is told which namespace it is
    }
    if let Some(netns) = owner.namespace(&NetnsLookup::Empty)? {
        undo(&state, &owner.ifname, &netns)?;
    }
    directory.remove(name)?;
    Ok(())
}

/// What is found under a name.
enum Found<T> {
    Absent,
    /// It is not a file, or its content cannot be parsed.
    Damaged,
    /// A later release wrote it, in this version.
    Newer(u64),
    Valid(Box<Stored<T>>),
}

fn read<T: DeserializeOwned>(directory: &Directory, name: &str) -> Result<Found<T>> {
    let found = match directory.read(name, LIMIT) {
        Err(error) if error.is_garbage() => {
            log::warn(format_args!("{error}: nothing is undone by it"));
            return Ok(Found::Damaged);
        }
        found => found?,
    };
    let Some((content, _)) = found else { return Ok(Found::Absent) };
    match parse(&content) {
        Ok(parsed) => Ok(parsed),
        Err(error) => {
            let path = directory.path().join(name);
            log::warn(format_args!("{} is damaged, nothing is undone by it: {error}", path.display()));
            Ok(Found::Damaged)
        }
    }
}

/// Parses a file. The version is checked first: of a later version nothing else is read.
fn parse<T: DeserializeOwned>(content: &[u8]) -> Result<Found<T>, serde_json::Error> {
    let whole: Value = serde_json::from_slice(content)?;
    if let Some(version) = whole.get("version").and_then(Value::as_u64)
        && version > FORMAT
    {
        return Ok(Found::Newer(version));
    }
    Ok(Found::Valid(Box::new(Stored::deserialize(whole)?)))
}

/// Logs that DEL or GC undoes nothing by a file of a later version.
fn warn_of_newer(directory: &Directory, name: &str, version: u64) {
    if let Err(newer) = check_version(directory.path().join(name), version, FORMAT) {
        log::warn(format_args!("{newer}: nothing is undone by it"));
    }
}

/// Removes a file that cannot be used. Anything that is not a file was not made by a plugin, and stays.
fn remove_file(directory: &Directory, name: &str) -> Result<()> {
    if directory.facts(name)?.is_some_and(|facts| facts.regular) {
        directory.remove(name)?;
    }
    Ok(())
}

fn file_name(tag: &AttachmentId) -> String {
    let hash = hex(&tag.hash()[..16]);
    let mut clear = format!("{}_{}.", tag.container, tag.ifname);
    if clear.len() > LONGEST {
        clear.clear();
    }
    format!("{clear}{hash}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    #[test]
    fn each_attachment_has_a_file_of_its_own_and_the_longest_container_id_has_a_name() {
        let names = [tag("n", "c"), tag("m", "c"), tag("n", &"c".repeat(400))].map(|tag| file_name(&tag));
        assert!(names[0].starts_with("c_eth0.") && names[0] != names[1], "{names:?}");
        assert!(names.iter().all(|name| name.len() < 200), "{names:?}");
    }

    #[test]
    fn a_damaged_file_differs_from_one_of_a_later_version() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let owner = r#""owner":{"network":"n","container":"c","ifname":"eth0","boot":"b","cookie":7,"netns":"/x"}"#;
        for (text, is_expected) in [
            (format!(r#"{{"version":1,{owner},"state":3}}"#), (|found| matches!(found, Found::Valid(_))) as fn(_) -> _),
            (format!(r#"{{"version":2,{owner},"state":"other"}}"#), |found| matches!(found, Found::Newer(2))),
            (format!(r#"{{"version":1,{owner},"state":"three"}}"#), |found| matches!(found, Found::Damaged)),
            ("{".to_owned(), |found| matches!(found, Found::Damaged)),
        ] {
            std::fs::write(dir.path().join("a"), &text).unwrap();
            assert!(is_expected(read::<u32>(&directory, "a").unwrap()), "{text}");
        }
        std::fs::create_dir(dir.path().join("b")).unwrap();
        assert!(matches!(read::<u32>(&directory, "b").unwrap(), Found::Damaged));
        assert!(matches!(read::<u32>(&directory, "c").unwrap(), Found::Absent));
    }
}
