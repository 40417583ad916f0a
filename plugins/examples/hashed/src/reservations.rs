//! The reservations of a network: a directory with one empty file per address. The name of a file is the address, the hash of the
//! attachment and the boot, so that no file has to be read.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use cnikit::netns::boot_id;
use cnikit::resources::alias::hex;
use cnikit::{AttachmentId, Error, Errors, Gc, Journal, Result, code};
use cnikit_store::{Directory, Lock};

/// The name of the lock file. It is no address, so it is no reservation.
const LOCK: &str = "lock";
/// The longest time that a call waits for others.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reservations of one network, locked: no other process changes them meanwhile.
pub(crate) struct Reservations {
    directory: Rc<Directory>,
    boot: String,
    _lock: Lock,
}

// guide: reservation
/// One reservation: `10.1.2.3 HASH BOOT`.
struct Reservation {
    file: String,
    address: IpAddr,
    owner: String,
    /// It is of this boot. No container outlives its boot, so the others are void.
    is_current: bool,
}
// guide: end

/// The file of a reservation, for the journal.
#[derive(Clone)]
struct ReservedFile {
    directory: Rc<Directory>,
    file: String,
}

impl Reservations {
    /// Those of a network; the directory is made if it does not exist.
    pub(crate) fn make(data_dir: &str, network: &str) -> Result<Reservations> {
        locked(Directory::make(Path::new(data_dir).join(network), 0o700)?)
    }

    /// Those of a network, if there ever were any.
    pub(crate) fn open(data_dir: &str, network: &str) -> Result<Option<Reservations>> {
        match Directory::open_if_any(Path::new(data_dir).join(network))? {
            Some(directory) => locked(directory).map(Some),
            None => Ok(None),
        }
    }

    // guide: take
    /// Reserves the first of these addresses that is free. The file gets its name at once or not at all, and the undo step is in
    /// the journal before.
    pub(crate) fn take(
        &self,
        tag: &AttachmentId,
        candidates: impl Iterator<Item = IpAddr>,
        journal: &mut Journal,
    ) -> Result<IpAddr> {
        self.remove_where(|one| !one.is_current)?;
        if let Some(held) = self.held_by(tag)? {
            return Err(Error::new(code::HOLDS_ALREADY, format!("{tag} has {held} already")).hint("DEL it first"));
        }
        let taken = self.addresses()?;
        for address in candidates {
            if taken.contains(&address) {
                continue;
            }
            let file = format!("{address} {} {}", hash_of(tag), self.boot);
            let reserved = ReservedFile { directory: Rc::clone(&self.directory), file };
            let _ = journal.undo_if_clean(&reserved, ReservedFile::remove);
            self.directory.create_and_sync(&reserved.file, b"", 0o600)?;
            return Ok(address);
        }
        Err(full())
    }
    // guide: end

    // guide: release
    /// Ends the reservations of an attachment.
    pub(crate) fn release(&self, tag: &AttachmentId) -> Result<()> {
        let own = hash_of(tag);
        self.remove_where(|one| one.owner == own)
    }

    /// Ends the reservations that belong to no valid attachment.
    pub(crate) fn sweep(&self, gc: &Gc) -> Result<()> {
        let mut valid = HashSet::new();
        for (container, ifname) in gc.valid.iter() {
            let network = gc.network.clone();
            let tag = AttachmentId { network, container: container.to_owned(), ifname: ifname.to_owned() };
            valid.insert(hash_of(&tag));
        }
        self.remove_where(|one| !one.is_current || !valid.contains(&one.owner))
    }
    // guide: end

    /// The address of an attachment.
    pub(crate) fn held_by(&self, tag: &AttachmentId) -> Result<Option<IpAddr>> {
        let own = hash_of(tag);
        let mut all = self.list()?.into_iter();
        Ok(all.find(|one| one.is_current && one.owner == own).map(|one| one.address))
    }

    /// All reserved addresses.
    pub(crate) fn addresses(&self) -> Result<HashSet<IpAddr>> {
        Ok(self.list()?.into_iter().filter(|one| one.is_current).map(|one| one.address).collect())
    }

    /// All reservations. Other files are none.
    fn list(&self) -> Result<Vec<Reservation>> {
        let mut found = Vec::new();
        for name in self.directory.list()? {
            let Ok(file) = name.into_string() else { continue };
            let parts: Vec<&str> = file.split(' ').collect();
            let &[address, owner, boot] = parts.as_slice() else { continue };
            let Ok(address) = address.parse() else { continue };
            let owner = owner.to_owned();
            let is_current = boot == self.boot;
            found.push(Reservation { file, address, owner, is_current });
        }
        Ok(found)
    }

    fn remove_where(&self, is_meant: impl Fn(&Reservation) -> bool) -> Result<()> {
        let mut errors = Errors::default();
        for one in self.list()? {
            if is_meant(&one) {
                errors.note(self.directory.remove(&one.file).map(drop));
            }
        }
        errors.finish()
    }
}

impl ReservedFile {
    fn remove(&self) -> Result<()> {
        self.directory.remove(&self.file)?;
        Ok(())
    }
}

impl fmt::Display for ReservedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the reservation {}", self.file)
    }
}

fn locked(directory: Directory) -> Result<Reservations> {
    let lock = directory.lock(LOCK, 0o600, TIMEOUT)?;
    let boot = boot_id()?.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    Ok(Reservations { directory: Rc::new(directory), boot, _lock: lock })
}

fn hash_of(tag: &AttachmentId) -> String {
    hex(&tag.hash()[..16])
}

/// The error of a subnet without a free address.
pub(crate) fn full() -> Error {
    Error::new(code::SYSTEM, "every address of the subnet is reserved").hint("use a larger `ipam.subnet`, or run GC")
}

/// Checks that reservations can be made in this directory.
pub(crate) fn available(data_dir: &str) -> Result<()> {
    Directory::nearest(data_dir)?;
    Ok(())
}
