//! Who holds what, for people; and what nobody can hold any more, freed.

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

/// What the file of one address says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The address.
    pub address: IpAddr,
    /// Whose it is.
    pub holder: Holder,
    /// When the file was last changed: when the address was given.
    pub since: Option<SystemTime>,
    /// Proven by the index: it was there before this boot, so no container of now holds it.
    pub earlier_boot: bool,
}

/// Whose an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// An attachment's.
    Of(Owner),
    /// Nobody's: the file is empty or of NULs, as a crash leaves it.
    Lost,
    /// Not to be told, with the reason; the address counts as taken.
    Unreadable(String),
}

impl Store {
    /// Every reservation, sorted by address. Each file is read once; nothing is locked, made or changed.
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
            found.extend(reservation(address, read(&directory, address), is_earlier));
        }
        found.sort_by_key(|found| found.address);
        Ok(found)
    }

    /// Frees the addresses whose reservation is dead according to `is_dead`, under the network's lock: reservations that
    /// changed since a [`Store::survey`] are passed to it as they are now. A file that a crash left without content is moved
    /// aside in any case, which frees its address. Returns the freed reservations.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn reclaim(&self, is_dead: impl Fn(&Reservation) -> bool) -> Result<Vec<Reservation>, Error> {
        let Some(files) = Files::find(&self.directory()?, self.patience)? else { return Ok(Vec::new()) };
        let lost: Vec<Reservation> = lost(&files)?;
        let beside = self.beside();
        let mut ledger = Ledger::open(&files, &beside)?;
        let mut dead = Vec::new();
        let mut freed = Vec::new();
        for record in ledger.all()? {
            let is_earlier = |_: &Owner, facts| record.earlier_boot && record.is_of(facts);
            let found = reservation(record.address, files.read(record.address), is_earlier);
            if let Some(found) = found.filter(|found| matches!(found.holder, Holder::Of(_)) && is_dead(found)) {
                dead.push(record);
                freed.push(found);
            }
        }
        let gone: BTreeSet<IpAddr> = free(&mut ledger, &dead)?.into_iter().collect();
        freed.retain(|found| gone.contains(&found.address));
        let left: BTreeSet<IpAddr> = files.addresses()?.into_iter().collect();
        freed.extend(lost.into_iter().filter(|found| !left.contains(&found.address)));
        freed.sort_by_key(|found| found.address);
        Ok(freed)
    }

    /// The path of an address's file, for messages.
    pub fn path_of(&self, address: IpAddr) -> PathBuf {
        self.data_dir.join(&self.network).join(address.to_string())
    }

    /// The names of the networks that have a directory below `data_dir`, sorted; empty if that does not exist.
    ///
    /// # Errors
    /// `data_dir` cannot be opened or listed (`Disk`).
    pub fn networks(data_dir: &Path) -> Result<Vec<String>, Error> {
        let Some(directory) = Directory::open_if_any(data_dir)? else { return Ok(Vec::new()) };
        let is_network = |name: &String| !name.starts_with('.') && data_dir.join(name).is_dir();
        let names = directory.list()?.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.filter(is_network).collect();
        names.sort();
        Ok(names)
    }
}

fn lost(files: &Files) -> Result<Vec<Reservation>, Error> {
    let all = files.addresses()?;
    let found = all.into_iter().filter_map(|address| reservation(address, files.read(address), |_, _| false));
    Ok(found.filter(|found| found.holder == Holder::Lost).collect())
}

/// What a file turned out to say; `None` if it has gone.
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
