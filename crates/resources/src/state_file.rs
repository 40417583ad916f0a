//! What an attachment changed, stored in a file of its own until DEL or GC undoes it.
//!
//! The file is `CONTAINER_IFNAME.HASH.PLUGIN.json` in `dataDir`; the hash is that of the attachment's tag. Several plugins of a
//! chain may have the same `dataDir`. It names the attachment and its namespace, as that of
//! [`saved_settings`](crate::saved_settings) does. It is complete and synced before anything is changed, so
//! it may list what was never made: every entry is compared with the kernel before it is undone.

use std::path::Path;

use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, GcContext, ReleaseContext};
use cnikit_skel::{AttachmentId, Journal, NetnsLookup, Result, log};
use cnikit_store::{Directory, check_version};
use cnikit_types::Value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::alias::hex;
use crate::saved_settings::Owner;
use crate::stored_file::{self, DIRECTORY_MODE, MODE, PreviousFile, StoredFile, remove_unusable, warn_of_newer};

/// The version of the format that is written, and the newest that is read.
const FORMAT: u64 = 1;
/// The longest file name without hash and ending, in bytes. The kernel takes 255, and a temporary file needs some of them.
const LONGEST: usize = 160;
/// The largest file that is read, in bytes.
const LIMIT: usize = 64 << 20;

/// A state that is stored in a file of its own.
pub(crate) trait StoredState: Serialize + DeserializeOwned {
    /// The end of the names of such files: each type has its own.
    const ENDING: &'static str;
}

/// The content of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored<T> {
    version: u64,
    owner: Owner,
    state: T,
}

/// Undoes a state in its namespace, where the interface has this name.
pub(crate) type Undo<T> = fn(&T, ifname: &str, netns: &Netns) -> Result<()>;

/// Undoes a state of this boot, parts of which may still exist where the namespace does not.
pub(crate) type UndoAnywhere<T> = fn(&T, tag: &AttachmentId, netns: Option<&Netns>) -> Result<Undone>;

/// Whether a state was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// All of it: the file is removed.
    Completely,
    /// Part of it can only be undone later: the file stays.
    NotYet,
}

/// The stored state of an attachment, with the name of its file.
pub(crate) struct FoundState<T> {
    pub(crate) name: String,
    pub(crate) owner: Owner,
    pub(crate) state: T,
}

/// The states of this boot that are stored in `dir`, of all attachments.
pub(crate) fn all<T: StoredState>(dir: &Path) -> Result<Vec<FoundState<T>>> {
    let Some(directory) = Directory::open_if_any(dir)? else { return Ok(Vec::new()) };
    let mut states = Vec::new();
    for name in directory.list()? {
        if let Ok(name) = name.into_string()
            && name.ends_with(T::ENDING)
            && let StoredFile::Valid(stored) = read::<T>(&directory, &name)?
            && stored.owner.is_of_this_boot()?
        {
            states.push(FoundState { name, owner: stored.owner, state: stored.state });
        }
    }
    Ok(states)
}

/// Removes the file of a state that was undone.
pub(crate) fn discard(dir: &Path, name: &str) -> Result<()> {
    if let Some(directory) = Directory::open_if_any(dir)? {
        directory.remove(name)?;
    }
    Ok(())
}

/// Replaces the state that [`StateFile::record`] stored in the same call.
pub(crate) fn update<T: StoredState>(context: &ApplyContext, dir: &Path, state: &T) -> Result<()> {
    let directory = Directory::open(dir)?;
    let stored = Stored { version: FORMAT, owner: Owner::of(context)?, state };
    Ok(directory.replace_and_sync(&file_name::<T>(&context.tag), serde_json::to_string(&stored)?.as_bytes(), MODE)?)
}

/// The file of an attachment, which is read once and written at most once in a call.
pub(crate) struct StateFile {
    name: String,
    owner: Owner,
    /// `None` if it does not exist yet.
    directory: Option<Directory>,
    /// `None` if there is no such file, or something else has its name.
    content: Option<Vec<u8>>,
}

impl StateFile {
    /// Reads the file of this attachment.
    pub(crate) fn open<T: StoredState>(context: &ApplyContext, dir: &Path) -> Result<StateFile> {
        let name = file_name::<T>(&context.tag);
        let directory = Directory::open_if_any(dir)?;
        let content = match &directory {
            Some(directory) => match directory.read(&name, LIMIT) {
                Err(error) if error.is_garbage() => {
                    log::warn(format_args!("{error}: nothing is restored from it"));
                    None
                }
                found => found?.map(|(content, _)| content),
            },
            None => None,
        };
        Ok(StateFile { name, owner: Owner::of(context)?, directory, content })
    }

    /// The state that was stored for this attachment in this namespace; `None` if there is none, or if it is of another namespace.
    ///
    /// # Errors
    /// A later release wrote it.
    pub(crate) fn state<T: StoredState>(&self, context: &ApplyContext) -> Result<Option<T>> {
        let (Some(directory), Some(content)) = (&self.directory, &self.content) else { return Ok(None) };
        match stored_file::parsed(directory, &self.name, content, parse::<T>) {
            StoredFile::Valid(stored) if stored.owner.is(&context.tag) && stored.owner.is_same(&self.owner) => {
                Ok(Some(stored.state))
            }
            StoredFile::Newer { version, .. } => {
                check_version(directory.path().join(&self.name), version, FORMAT)?;
                Ok(None)
            }
            StoredFile::Valid(_) | StoredFile::Absent | StoredFile::Damaged => Ok(None),
        }
    }

    /// Stores the state, before anything is changed. The journal puts back what was stored before.
    pub(crate) fn record<T: StoredState>(self, dir: &Path, journal: &mut Journal, state: &T) -> Result<()> {
        let StateFile { name, owner, directory, content: before } = self;
        let directory = match directory {
            Some(directory) => directory,
            None => Directory::make(dir, DIRECTORY_MODE)?,
        };
        let stored = Stored { version: FORMAT, owner, state };
        let previous = PreviousFile { content: "record", dir: dir.to_owned(), name: name.clone(), before };
        // As long as something of the new state may still be there, DEL needs the new file.
        let _ = journal.undo_if_clean(&previous, PreviousFile::put_back);
        Ok(directory.replace_and_sync(&name, serde_json::to_string(&stored)?.as_bytes(), MODE)?)
    }
}

/// The state that was stored for this attachment in this namespace; see [`StateFile::state`].
pub(crate) fn find<T: StoredState>(context: &ApplyContext, dir: &Path) -> Result<Option<T>> {
    StateFile::open::<T>(context, dir)?.state(context)
}

/// Undoes the stored state of one attachment, if its namespace still exists, and removes the file. Returns whether there was one.
pub(crate) fn release<T: StoredState>(context: &ReleaseContext, dir: &Path, undo: Undo<T>) -> Result<bool> {
    release_by(context, dir, |state, tag, netns| undo_inside(undo, state, tag, netns))
}

/// As [`release`], where `undo` is called without the namespace too.
pub(crate) fn release_anywhere<T: StoredState>(
    context: &ReleaseContext,
    dir: &Path,
    undo: UndoAnywhere<T>,
) -> Result<bool> {
    release_by(context, dir, undo)
}

fn undo_inside<T>(undo: Undo<T>, state: &T, tag: &AttachmentId, netns: Option<&Netns>) -> Result<Undone> {
    if let Some(netns) = netns {
        undo(state, &tag.ifname, netns)?;
    }
    Ok(Undone::Completely)
}

fn release_by<T: StoredState>(
    context: &ReleaseContext,
    dir: &Path,
    undo: impl Fn(&T, &AttachmentId, Option<&Netns>) -> Result<Undone>,
) -> Result<bool> {
    let Some(directory) = Directory::open_if_any(dir)? else { return Ok(false) };
    let name = file_name::<T>(&context.tag);
    directory.discard_unfinished_of(&name)?;
    let stored = match read::<T>(&directory, &name)? {
        StoredFile::Valid(stored) if stored.owner.is(&context.tag) => stored,
        StoredFile::Absent => return Ok(false),
        StoredFile::Newer { version, .. } => {
            warn_of_newer(&directory, &name, version, FORMAT);
            remove_unusable(&directory, &name)?;
            return Ok(false);
        }
        StoredFile::Valid(_) | StoredFile::Damaged => {
            remove_unusable(&directory, &name)?;
            return Ok(false);
        }
    };
    undo_stored(&directory, &name, &stored, &context.netns, undo)?;
    Ok(true)
}

/// Undoes a stored state and removes its file. Nothing of a state from before the last boot exists any more.
fn undo_stored<T>(
    directory: &Directory,
    name: &str,
    stored: &Stored<T>,
    given: &NetnsLookup,
    undo: impl Fn(&T, &AttachmentId, Option<&Netns>) -> Result<Undone>,
) -> Result<()> {
    let mut undone = Undone::Completely;
    if stored.owner.is_of_this_boot()? {
        let netns = stored.owner.namespace(given)?;
        undone = undo(&stored.state, &stored.owner.tag(), netns.as_ref())?;
    }
    if undone == Undone::Completely {
        directory.remove(name)?;
    }
    Ok(())
}

/// Undoes the states of this network's attachments that are not valid any more, and removes their files.
pub(crate) fn sweep<T: StoredState>(context: &GcContext, dir: &Path, undo: Undo<T>) -> Result<()> {
    let undo = |state: &T, tag: &AttachmentId, netns: Option<&Netns>| undo_inside(undo, state, tag, netns);
    stored_file::sweep_all(dir, T::ENDING, |directory, name| sweep_file(context, directory, name, undo))
}

/// As [`sweep`], where `undo` is called without the namespace too.
pub(crate) fn sweep_anywhere<T: StoredState>(context: &GcContext, dir: &Path, undo: UndoAnywhere<T>) -> Result<()> {
    stored_file::sweep_all(dir, T::ENDING, |directory, name| sweep_file(context, directory, name, undo))
}

fn sweep_file<T: StoredState>(
    context: &GcContext,
    directory: &Directory,
    name: &str,
    undo: impl Fn(&T, &AttachmentId, Option<&Netns>) -> Result<Undone>,
) -> Result<()> {
    let stored = match read::<T>(directory, name)? {
        StoredFile::Valid(stored) => *stored,
        StoredFile::Newer { version, .. } => {
            warn_of_newer(directory, name, version, FORMAT);
            return Ok(());
        }
        StoredFile::Absent | StoredFile::Damaged => return Ok(()),
    };
    if !stored.owner.is_swept(context)? {
        return Ok(());
    }
    undo_stored(directory, name, &stored, &NetnsLookup::Empty, undo)
}

fn read<T: DeserializeOwned>(directory: &Directory, name: &str) -> Result<StoredFile<Stored<T>>> {
    stored_file::read(directory, name, LIMIT, parse)
}

fn parse<T: DeserializeOwned>(content: &[u8]) -> Result<StoredFile<Stored<T>>, serde_json::Error> {
    let whole: Value = serde_json::from_slice(content)?;
    if let Some(version) = whole.get("version").and_then(Value::as_u64)
        && version > FORMAT
    {
        return Ok(StoredFile::Newer { version, owner: None });
    }
    Ok(StoredFile::Valid(Box::new(Stored::deserialize(whole)?)))
}

fn file_name<T: StoredState>(tag: &AttachmentId) -> String {
    let hash = hex(&tag.hash()[..16]);
    let mut clear = format!("{}_{}.", tag.container, tag.ifname);
    if clear.len() > LONGEST {
        clear.clear();
    }
    format!("{clear}{hash}{}", T::ENDING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Serialize)]
    struct Number(u32);

    impl StoredState for Number {
        const ENDING: &'static str = ".number.json";
    }

    fn tag(network: &str, container: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    #[test]
    fn each_attachment_has_a_file_of_its_own_and_the_longest_container_id_has_a_name() {
        let names = [tag("n", "c"), tag("m", "c"), tag("n", &"c".repeat(400))].map(|tag| file_name::<Number>(&tag));
        assert!(names[0].starts_with("c_eth0.") && names[0] != names[1], "{names:?}");
        assert!(names.iter().all(|name| name.len() < 200 && name.ends_with(".number.json")), "{names:?}");
    }

    #[test]
    fn a_damaged_file_differs_from_one_of_a_later_version() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let owner = r#""owner":{"network":"n","container":"c","ifname":"eth0","boot":"b","cookie":7,"netns":"/x"}"#;
        for (text, is_expected) in [
            (
                format!(r#"{{"version":1,{owner},"state":3}}"#),
                (|found| matches!(found, StoredFile::Valid(_))) as fn(_) -> _,
            ),
            (format!(r#"{{"version":2,{owner},"state":"other"}}"#), |found| {
                matches!(found, StoredFile::Newer { version: 2, .. })
            }),
            (format!(r#"{{"version":1,{owner},"state":"three"}}"#), |found| matches!(found, StoredFile::Damaged)),
            ("{".to_owned(), |found| matches!(found, StoredFile::Damaged)),
        ] {
            std::fs::write(dir.path().join("a"), &text).unwrap();
            assert!(is_expected(read::<Number>(&directory, "a").unwrap()), "{text}");
        }
        std::fs::create_dir(dir.path().join("b")).unwrap();
        assert!(matches!(read::<Number>(&directory, "b").unwrap(), StoredFile::Damaged));
        assert!(matches!(read::<Number>(&directory, "c").unwrap(), StoredFile::Absent));
    }
}
