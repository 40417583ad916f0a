//! What the power takes with it.

use std::fmt;
use std::fs;
use std::path::Path;

use super::disk::{Change, Disk, Entry, Mark, Part, What, Written, written};

/// Of all changes that were not synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// All of them reached the disk: whoever wrote was only killed.
    Nothing,
    /// The content of one file, or of every one.
    Content(Mark, Torn),
    Contents(Torn),
    /// One change of a name.
    Name(Mark),
    /// Each change of a name from this one on; and the contents of what is left may be lost too.
    NamesFrom(Mark),
    NamesAndContentsFrom(Mark),
}

/// What a file has whose content is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Torn {
    Empty,
    Zeros,
    /// The first half, and no more.
    Cut,
    /// The first half, and zeros.
    HalfZeros,
    /// What it had before.
    Old,
}

const TORN: [Torn; 5] = [Torn::Empty, Torn::Zeros, Torn::Cut, Torn::HalfZeros, Torn::Old];

impl Loss {
    /// Every one that these changes allow.
    pub(super) fn all(written: &[Written]) -> Vec<Loss> {
        let mut all = vec![Loss::Nothing];
        all.extend(TORN.map(Loss::Contents));
        for Written { mark, .. } in written.iter().filter(|change| !change.durable) {
            let here = || mark.clone();
            match mark.part() {
                Part::Name => {
                    all.extend([Loss::Name(here()), Loss::NamesFrom(here()), Loss::NamesAndContentsFrom(here())]);
                }
                Part::Content => all.extend(TORN.map(|torn| Loss::Content(here(), torn))),
            }
        }
        all
    }

    /// Does it to the disk: the last change first.
    pub(super) fn strike(&self, root: &Path, changes: &[Change]) {
        let marks = written(changes);
        let place = self.mark().map(|mark| marks.iter().position(|change| change.mark == *mark).unwrap());
        for (number, change) in changes.iter().enumerate().rev().filter(|(_, change)| !change.durable) {
            let path = root.join(&change.path);
            match &change.what {
                What::Name { before, .. } if self.takes_name(number, place) => give_back(&path, before.as_ref()),
                What::Content { before, .. } => {
                    self.tears(number, place).into_iter().for_each(|torn| tear(&path, before, torn));
                }
                What::Name { .. } => {}
            }
        }
    }

    /// The change that it takes, or takes first.
    fn mark(&self) -> Option<&Mark> {
        match self {
            Loss::Nothing | Loss::Contents(_) => None,
            Loss::Content(mark, _) | Loss::Name(mark) | Loss::NamesFrom(mark) | Loss::NamesAndContentsFrom(mark) => {
                Some(mark)
            }
        }
    }

    /// Of a change, where its own stands at this place.
    fn takes_name(&self, number: usize, place: Option<usize>) -> bool {
        match self {
            Loss::Name(_) => place == Some(number),
            Loss::NamesFrom(_) | Loss::NamesAndContentsFrom(_) => place.is_some_and(|first| first <= number),
            _ => false,
        }
    }

    fn tears(&self, number: usize, place: Option<usize>) -> Option<Torn> {
        match self {
            Loss::Content(_, torn) => (place == Some(number)).then_some(*torn),
            Loss::Contents(torn) => Some(*torn),
            Loss::NamesAndContentsFrom(_) => Some(Torn::Empty),
            _ => None,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Nothing => f.write_str("nothing lost"),
            Loss::Content(mark, torn) => write!(f, "lost {mark}: {torn:?}"),
            Loss::Contents(torn) => write!(f, "lost every content: {torn:?}"),
            Loss::Name(mark) => write!(f, "lost {mark}"),
            Loss::NamesFrom(mark) => write!(f, "lost every name from {mark}"),
            Loss::NamesAndContentsFrom(mark) => write!(f, "lost every content, and every name from {mark}"),
        }
    }
}

/// The name leads where it led before. What stands below a directory goes with it.
fn give_back(path: &Path, before: Option<&Entry>) {
    let gone = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match before {
        // It may be gone since, by a later change that lasted or with the directory above it.
        None => drop(gone),
        Some(Entry { content: None, .. }) => fs::create_dir_all(path).unwrap(),
        Some(Entry { content: Some(content), .. }) => {
            // A later change may have removed the directory.
            let _ = fs::write(path, content);
        }
    }
}

/// The file stays the same one.
fn tear(path: &Path, before: &[u8], torn: Torn) {
    let Ok(content) = fs::read(path) else { return };
    let half = content.len() / 2;
    let left = match torn {
        Torn::Empty => Vec::new(),
        Torn::Zeros => vec![0; content.len()],
        Torn::Cut => content[..half].to_vec(),
        Torn::HalfZeros => content[..half].iter().copied().chain(vec![0; content.len() - half]).collect(),
        Torn::Old => before.to_vec(),
    };
    fs::write(path, left).unwrap();
}

/// Addresses whose files are there and have lost their content, or a part: nobody writes zeros.
pub(super) fn lost(disk: &Disk) -> Vec<String> {
    let torn = |content: &[u8]| content.is_empty() || content.contains(&0);
    let named = disk.files().filter(|(_, content)| torn(content)).filter_map(|(path, _)| path.file_name()?.to_str());
    named.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).map(str::to_owned).collect()
}
