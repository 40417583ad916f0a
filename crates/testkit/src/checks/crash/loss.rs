//! Losses: which unsynced changes a power cut destroys.

use std::fmt;
use std::fs;
use std::path::Path;

use super::disk::{ChangeId, ChangeKind, ChangeRecord, ChangedPart, Disk, DiskChange, Entry, change_records};

/// The loss of some changes that were not synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// No loss: all changes reached the disk, as if the process had only been killed.
    Nothing,
    /// The content of one file.
    Content(ChangeId, TornContent),
    /// The contents of all files.
    Contents(TornContent),
    /// One change of a name.
    Name(ChangeId),
    /// Each change of a name from this one on.
    NamesFrom(ChangeId),
    /// The same, and the contents of all files.
    NamesAndContentsFrom(ChangeId),
}

/// The content of a file after its content was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TornContent {
    Empty,
    Zeros,
    /// The first half only.
    Cut,
    /// The first half, followed by zeros.
    HalfZeros,
    /// The old content.
    Old,
}

const TORN: [TornContent; 5] =
    [TornContent::Empty, TornContent::Zeros, TornContent::Cut, TornContent::HalfZeros, TornContent::Old];

impl Loss {
    /// All losses that are possible with these changes.
    pub(super) fn all(records: &[ChangeRecord]) -> Vec<Loss> {
        let mut all = vec![Loss::Nothing];
        all.extend(TORN.map(Loss::Contents));
        for ChangeRecord { mark, .. } in records.iter().filter(|change| !change.durable) {
            let here = || mark.clone();
            match mark.part() {
                ChangedPart::Name => {
                    all.extend([Loss::Name(here()), Loss::NamesFrom(here()), Loss::NamesAndContentsFrom(here())]);
                }
                ChangedPart::Content => all.extend(TORN.map(|torn| Loss::Content(here(), torn))),
            }
        }
        all
    }

    /// Applies the loss to the disk, beginning with the last change.
    pub(super) fn apply(&self, root: &Path, changes: &[DiskChange]) {
        let marks = change_records(changes);
        let place = self.mark().map(|mark| marks.iter().position(|change| change.mark == *mark).unwrap());
        for (number, change) in changes.iter().enumerate().rev().filter(|(_, change)| !change.durable) {
            let path = root.join(&change.path);
            match &change.what {
                ChangeKind::Name { before, .. } if self.loses_name(number, place) => {
                    restore_name(&path, before.as_ref());
                }
                ChangeKind::Content { before, .. } => {
                    self.torn_content(number, place).into_iter().for_each(|torn| tear(&path, before, torn));
                }
                ChangeKind::Name { .. } => {}
            }
        }
    }

    /// The change that is lost, or the first of them.
    fn mark(&self) -> Option<&ChangeId> {
        match self {
            Loss::Nothing | Loss::Contents(_) => None,
            Loss::Content(mark, _) | Loss::Name(mark) | Loss::NamesFrom(mark) | Loss::NamesAndContentsFrom(mark) => {
                Some(mark)
            }
        }
    }

    /// Whether this change of a name is lost. `place` is the position of the loss's own change.
    fn loses_name(&self, number: usize, place: Option<usize>) -> bool {
        match self {
            Loss::Name(_) => place == Some(number),
            Loss::NamesFrom(_) | Loss::NamesAndContentsFrom(_) => place.is_some_and(|first| first <= number),
            _ => false,
        }
    }

    /// What becomes of the content in this change; `None` if it is not lost.
    fn torn_content(&self, number: usize, place: Option<usize>) -> Option<TornContent> {
        match self {
            Loss::Content(_, torn) => (place == Some(number)).then_some(*torn),
            Loss::Contents(torn) => Some(*torn),
            Loss::NamesAndContentsFrom(_) => Some(TornContent::Empty),
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

/// Reverts the change of a name. A removed directory loses its content.
fn restore_name(path: &Path, before: Option<&Entry>) {
    let gone = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match before {
        // The file may have been removed by a later durable change, or with its directory.
        None => drop(gone),
        Some(Entry { content: None, .. }) => fs::create_dir_all(path).unwrap(),
        Some(Entry { content: Some(content), .. }) => {
            // A later change may have removed the directory.
            let _ = fs::write(path, content);
        }
    }
}

/// Replaces the content of a file in place.
fn tear(path: &Path, before: &[u8], torn: TornContent) {
    let Ok(content) = fs::read(path) else { return };
    let half = content.len() / 2;
    let left = match torn {
        TornContent::Empty => Vec::new(),
        TornContent::Zeros => vec![0; content.len()],
        TornContent::Cut => content[..half].to_vec(),
        TornContent::HalfZeros => content[..half].iter().copied().chain(vec![0; content.len() - half]).collect(),
        TornContent::Old => before.to_vec(),
    };
    fs::write(path, left).unwrap();
}

/// Addresses with a reservation whose content is empty or has zeros, which no program writes.
pub(super) fn torn_reservations(disk: &Disk) -> Vec<String> {
    let torn = |content: &[u8]| content.is_empty() || content.contains(&0);
    let named = disk.files().filter(|(_, content)| torn(content)).filter_map(|(path, _)| path.file_name()?.to_str());
    named.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).map(str::to_owned).collect()
}
