//! List the reservations for operators, and free those of containers that are gone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cnikit_store::{Directory, Error as StoreError, Facts};

use crate::allocator::{Store, free};
use crate::error::Error;
use crate::files::{Files, addresses, read};
use crate::ledger::{Ledger, Memory};
use crate::owner::{Content, Owner};

/// The content of one address's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The address.
    pub address: IpAddr,
    /// The owner.
    pub holder: Holder,
    /// When the file was last changed, which is when the address was allocated.
    pub since: Option<SystemTime>,
    /// Whether the index proves that the file is older than this boot, so that no running container holds the address.
    pub earlier_boot: bool,
}

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// An attachment.
    Of(Owner),
    /// No owner: the file is empty or contains NUL bytes, as after a crash.
    Lost,
    /// Unknown, with the reason; the address counts as allocated.
    Unreadable(String),
}

impl Store {
    /// Lists every reservation, sorted by address. Each file is read once; nothing is locked, created or changed.
    ///
    /// # Errors
    /// The directory of the network or of the indexes cannot be opened or listed (`Disk`). A single file that cannot be read is
    /// in the list.
    pub fn survey(&self) -> Result<Vec<Reservation>, Error> {
        let Some(directory) = Directory::open_if_any(self.directory()?)? else { return Ok(Vec::new()) };
        let indexes = Directory::open_if_any(self.indexes())?;
        let memory = Memory::of(&directory, indexes.as_ref(), &self.network, self.boot.as_ref());
        let mut found: Vec<Reservation> = Vec::new();
        for address in addresses(&directory)? {
            let is_earlier = |owner: &Owner, facts| memory.is_of_earlier_boot(address, owner, facts);
            if let Some(one) = reservation(address, read(&directory, address), is_earlier) {
                found.push(one);
            }
        }
        found.sort_by_key(|one| one.address);
        Ok(found)
    }

    /// Frees the addresses whose reservation is dead according to `is_dead`, under the network's lock. `is_dead` gets each
    /// reservation as it is now, even if it has changed since a [`Store::survey`]. A file that a crash left without content is
    /// moved aside in any case, which frees its address. Returns the freed reservations.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn reclaim(&self, is_dead: impl Fn(&Reservation) -> bool) -> Result<Vec<Reservation>, Error> {
        let Some(files) = Files::find(&self.directory()?, self.timeout)? else { return Ok(Vec::new()) };
        let without_content = lost(&files)?;
        let paths = self.paths();
        let mut ledger = Ledger::open(&files, &paths)?;
        let mut dead = Vec::new();
        let mut freed = Vec::new();
        for record in ledger.all()? {
            let is_earlier = |_: &Owner, facts| record.earlier_boot && record.is_of(facts);
            let found = reservation(record.address, files.read(record.address), is_earlier);
            if let Some(found) = found
                && matches!(found.holder, Holder::Of(_))
                && is_dead(&found)
            {
                dead.push(record);
                freed.push(found);
            }
        }
        self.record_release(&dead);
        let gone: BTreeSet<IpAddr> = free(&mut ledger, &dead)?.into_iter().collect();
        freed.retain(|found| gone.contains(&found.address));
        let left: BTreeSet<IpAddr> = files.addresses()?.into_iter().collect();
        for one in without_content {
            if !left.contains(&one.address) {
                freed.push(one);
            }
        }
        freed.sort_by_key(|found| found.address);
        Ok(freed)
    }

    /// The path of an address's file, for messages.
    pub fn path_of(&self, address: IpAddr) -> PathBuf {
        self.data_dir.join(&self.network).join(address.to_string())
    }

    /// The names of the networks that have a directory below `data_dir`, sorted; empty if `data_dir` does not exist.
    ///
    /// # Errors
    /// `data_dir` cannot be opened or listed (`Disk`).
    pub fn networks(data_dir: &Path) -> Result<Vec<String>, Error> {
        let Some(directory) = Directory::open_if_any(data_dir)? else { return Ok(Vec::new()) };
        let mut networks = Vec::new();
        for name in directory.list()? {
            if let Ok(name) = name.into_string()
                && !name.starts_with('.')
                && data_dir.join(&name).is_dir()
            {
                networks.push(name);
            }
        }
        networks.sort();
        Ok(networks)
    }
}

/// The reservations whose files a crash left without content.
fn lost(files: &Files) -> Result<Vec<Reservation>, Error> {
    let mut lost = Vec::new();
    for address in files.addresses()? {
        match reservation(address, files.read(address), |_, _| false) {
            Some(found) if found.holder == Holder::Lost => lost.push(found),
            _ => {}
        }
    }
    Ok(lost)
}

/// The reservation in a file that was read; `None` if the file is gone.
fn reservation(
    address: IpAddr,
    read: Result<Option<(Content, Facts)>, StoreError>,
    is_earlier: impl Fn(&Owner, Facts) -> bool,
) -> Option<Reservation> {
    let (holder, facts) = match read {
        Ok(None) => return None,
        Ok(Some((Content::Of(owner), facts))) => (Holder::Of(owner), Some(facts)),
        Ok(Some((Content::Lost, facts))) => (Holder::Lost, Some(facts)),
        Ok(Some((Content::Unreadable, facts))) => (Holder::Unreadable("it names no container".to_owned()), Some(facts)),
        Err(error) => (Holder::Unreadable(error.to_string()), None),
    };
    let since = facts.and_then(|facts| UNIX_EPOCH.checked_add(Duration::from_nanos(facts.changed)));
    let earlier_boot = match (&holder, facts) {
        (Holder::Of(owner), Some(facts)) => is_earlier(owner, facts),
        _ => false,
    };
    Some(Reservation { address, holder, since, earlier_boot })
}
