//! What the power takes with it.

use std::fs;
use std::path::Path;

use super::disk::{Change, Disk, Entry, What};

/// Of all changes that were not synced, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// All of them reached the disk: whoever wrote was only killed.
    Nothing,
    /// The content of one file, or of every one.
    Content(usize, Torn),
    Contents(Torn),
    /// One change of a name.
    Name(usize),
    /// Each change of a name from this one on; and the contents of what is left may be lost too.
    NamesFrom(usize),
    NamesAndContentsFrom(usize),
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
    pub(super) fn all(changes: &[Change]) -> Vec<Loss> {
        let lasting = |change: &&(usize, &Change)| !change.1.durable;
        let unsynced: Vec<(usize, &Change)> = changes.iter().enumerate().filter(|one| lasting(&one)).collect();
        let mut all = vec![Loss::Nothing];
        all.extend(TORN.map(Loss::Contents));
        for (number, change) in unsynced {
            match change.what {
                What::Name { .. } => {
                    all.extend([Loss::Name(number), Loss::NamesFrom(number), Loss::NamesAndContentsFrom(number)]);
                }
                What::Content { .. } => all.extend(TORN.map(|torn| Loss::Content(number, torn))),
            }
        }
        all
    }

    /// Does it to the disk: the last change first.
    pub(super) fn strike(self, root: &Path, changes: &[Change]) {
        for (number, change) in changes.iter().enumerate().rev().filter(|(_, change)| !change.durable) {
            let path = root.join(&change.path);
            match &change.what {
                What::Name { before, .. } if self.takes_name(number) => give_back(&path, before.as_ref()),
                What::Content { before, .. } => {
                    self.tears(number).into_iter().for_each(|torn| tear(&path, before, torn));
                }
                What::Name { .. } => {}
            }
        }
    }

    fn takes_name(self, number: usize) -> bool {
        match self {
            Loss::Name(one) => one == number,
            Loss::NamesFrom(first) | Loss::NamesAndContentsFrom(first) => first <= number,
            _ => false,
        }
    }

    fn tears(self, number: usize) -> Option<Torn> {
        match self {
            Loss::Content(one, torn) => (one == number).then_some(torn),
            Loss::Contents(torn) => Some(torn),
            Loss::NamesAndContentsFrom(_) => Some(Torn::Empty),
            _ => None,
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
