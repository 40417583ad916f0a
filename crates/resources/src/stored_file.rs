//! Files in which a plugin stores what it changed, until DEL or GC gives it back: what [`saved_settings`](crate::saved_settings)
//! and `state_file.rs` have in common.

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_skel::{AttachmentId, Errors, Result, log};
use cnikit_store::{Directory, check_version};
use cnikit_types::NetConf;

/// The modes of a file and of the directory.
pub(crate) const MODE: u32 = 0o600;
pub(crate) const DIRECTORY_MODE: u32 = 0o700;

/// The directory of the files: `dataDir`, otherwise `default`. DEL and GC read nothing else of the configuration.
pub(crate) fn data_dir(conf: &NetConf, default: &str) -> PathBuf {
    match conf.text("dataDir") {
        None | Some("") => default.into(),
        Some(path) => path.into(),
    }
}

/// A file as it was before this ADD, for the journal.
#[derive(Clone)]
pub(crate) struct PreviousFile {
    /// What such a file has, for the journal's texts.
    pub(crate) content: &'static str,
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    pub(crate) before: Option<Vec<u8>>,
}

impl PreviousFile {
    pub(crate) fn put_back(&self) -> Result<()> {
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
        write!(f, "{} in {}", self.content, self.dir.join(&self.name).display())
    }
}

/// What is found under a name.
#[derive(Debug, PartialEq)]
pub(crate) enum StoredFile<T> {
    Absent,
    /// It is not a file, or its content cannot be parsed.
    Damaged,
    /// A later release wrote it.
    Newer {
        version: u64,
        /// The attachment, if the file names it where this release looks for it.
        owner: Option<AttachmentId>,
    },
    Valid(Box<T>),
}

/// Parses the content of a file: [`StoredFile::Newer`] or [`StoredFile::Valid`]. The version is checked first, because nothing else
/// can be relied on in a file of a later version.
pub(crate) type Parse<T> = fn(&[u8]) -> Result<StoredFile<T>, serde_json::Error>;

/// Reads a file of at most `limit` bytes. A damaged one is logged.
pub(crate) fn read<T>(directory: &Directory, name: &str, limit: usize, parse: Parse<T>) -> Result<StoredFile<T>> {
    let found = match directory.read(name, limit) {
        Err(error) if error.is_garbage() => {
            log::warn(format_args!("{error}: nothing is restored from it"));
            return Ok(StoredFile::Damaged);
        }
        found => found?,
    };
    let Some((content, _)) = found else { return Ok(StoredFile::Absent) };
    Ok(parsed(directory, name, &content, parse))
}

/// Parses what was read from a file. A damaged one is logged.
pub(crate) fn parsed<T>(directory: &Directory, name: &str, content: &[u8], parse: Parse<T>) -> StoredFile<T> {
    match parse(content) {
        Ok(parsed) => parsed,
        Err(error) => {
            let path = directory.path().join(name);
            log::warn(format_args!("{} is damaged, nothing is restored from it: {error}", path.display()));
            StoredFile::Damaged
        }
    }
}

/// Logs that DEL or GC gives nothing back by a file of a later version than `format`.
pub(crate) fn warn_of_newer(directory: &Directory, name: &str, version: u64, format: u64) {
    if let Err(newer) = check_version(directory.path().join(name), version, format) {
        log::warn(format_args!("{newer}: nothing is restored from it"));
    }
}

/// Removes a file that cannot be used. Anything that is not a file was not made by a plugin, and stays.
pub(crate) fn remove_unusable(directory: &Directory, name: &str) -> Result<()> {
    if directory.facts(name)?.is_some_and(|facts| facts.regular) {
        directory.remove(name)?;
    }
    Ok(())
}

/// Calls `sweep` for each file of a directory whose name ends with `ending`, if the directory exists. One that fails does not stop
/// the others.
pub(crate) fn sweep_all(dir: &Path, ending: &str, sweep: impl Fn(&Directory, &str) -> Result<()>) -> Result<()> {
    let Some(directory) = Directory::open_if_any(dir)? else { return Ok(()) };
    directory.discard_unfinished()?;
    let mut errors = Errors::default();
    for name in directory.list()? {
        if let Ok(name) = name.into_string()
            && name.ends_with(ending)
        {
            errors.note(sweep(&directory, &name));
        }
    }
    errors.finish()
}

/// The bytes of hexadecimal digits, as a message of the kernel is stored; `None` if it is something else.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for at in (0..text.len()).step_by(2) {
        bytes.push(u8::from_str_radix(&text[at..at + 2], 16).ok()?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cnikit_skel::Error;

    use super::*;

    #[test]
    fn only_pairs_of_hexadecimal_digits_are_bytes() {
        for (text, bytes) in [
            ("", Some(vec![])),
            ("001fF0", Some(vec![0, 0x1f, 0xf0])),
            ("0", None),
            ("0g", None),
            ("+f", None),
            ("ß", None),
        ] {
            assert_eq!(unhex(text), bytes, "{text}");
        }
    }

    #[test]
    fn the_directory_is_that_of_the_configuration_if_it_names_one() {
        for (key, dir) in [(r#","dataDir":"/own""#, "/own"), (r#","dataDir":"""#, "/usual"), ("", "/usual")] {
            let conf = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"t"{key}}}"#);
            assert_eq!(data_dir(&NetConf::parse(conf.as_bytes()).unwrap(), "/usual"), PathBuf::from(dir), "{conf}");
        }
    }

    #[test]
    fn a_file_is_put_back_as_it_was_or_removed_if_there_was_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let previous = |before: Option<&[u8]>| PreviousFile {
            content: "record",
            dir: dir.path().into(),
            name: "a".into(),
            before: before.map(<[u8]>::to_vec),
        };
        fs::write(&path, "new").unwrap();
        previous(Some(b"old")).put_back().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        previous(None).put_back().unwrap();
        assert!(!path.exists());
        previous(None).put_back().unwrap();
        assert_eq!(previous(None).to_string(), format!("record in {}", path.display()));
    }

    #[test]
    fn of_what_cannot_be_used_only_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        ["file", "dir", "absent"].iter().for_each(|name| remove_unusable(&directory, name).unwrap());
        assert!(!dir.path().join("file").exists() && dir.path().join("dir").exists());
    }

    #[test]
    fn a_sweep_visits_each_file_of_its_kind_although_one_fails() {
        let dir = tempfile::tempdir().unwrap();
        ["a.x", "b.x", "c.y"].iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let visited = std::cell::RefCell::new(Vec::new());
        let visit = |_: &Directory, name: &str| {
            visited.borrow_mut().push(name.to_owned());
            if name == "a.x" { Err(Error::config("a.x cannot be swept")) } else { Ok(()) }
        };
        let error = sweep_all(dir.path(), ".x", visit).unwrap_err().to_string();
        assert!(error.contains("a.x cannot be swept"), "{error}");
        let mut names = visited.take();
        names.sort();
        assert_eq!(names, ["a.x", "b.x"]);
        sweep_all(&dir.path().join("absent"), ".x", |_, _| Err(Error::config("called"))).unwrap();
    }
}
