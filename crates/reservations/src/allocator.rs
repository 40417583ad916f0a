//! Allocate and release the addresses of one network.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use cnikit_store::Directory;

use crate::allocation::Allocator;
use crate::boot::Boot;
use crate::cooling::{CoolingFile, Released};
use crate::error::{Error, ErrorKind};
use crate::files::Files;
use crate::ledger::{Ledger, StorePaths};
use crate::owner::{Content, Owner};
use crate::record::Record;
use crate::request::{Allocation, AllocationRequest};

/// How long to wait for the lock: reading tens of thousands of files takes a second, and many processes may be waiting.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// How long [`Store::health`] waits for the lock. A store that is in use counts as healthy.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// The allocations of one network, in the directory `<data_dir>/<network>`.
#[derive(Clone, Debug)]
pub struct Store {
    /// The parent of the networks' directories.
    pub data_dir: PathBuf,
    /// The network's name.
    pub network: String,
    /// The present boot, if its id is available; without it no index is used.
    pub boot: Option<Boot>,
    /// Where released addresses are recorded; `None`: nowhere, and then no address has a cooldown.
    pub cooling: Option<CoolingFile>,
    /// How long to wait for the lock.
    pub timeout: Duration,
    /// Logs events that do not fail a call.
    pub log: fn(&str),
}

/// The state of a network's store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Files whose content names no owner. Their addresses count as taken.
    pub unreadable: Vec<PathBuf>,
    /// All addresses that are taken.
    pub taken: Vec<IpAddr>,
}

impl Store {
    /// Allocates one address of each set, or none at all: a failing call removes what it created.
    ///
    /// # Errors
    /// The [`ErrorKind`] is the cause: no set contains a requested address (`Value`), none is free or the requested one is taken
    /// (`Exhausted`), the attachment holds an address already (`HoldsAlready`), the lock is not free in time (`Busy`), or a file or
    /// directory cannot be read or written (`Disk`).
    pub fn acquire(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, Error> {
        let wanted = request.assign()?;
        self.lock()?.allocate(request, &wanted)
    }

    /// Locks the network's directory, which is created if it does not exist.
    ///
    /// # Errors
    /// The lock is not free in time (`Busy`), or the directory cannot be created or opened (`Disk`).
    pub fn lock(&self) -> Result<LockedStore<'_>, Error> {
        Ok(LockedStore { store: self, files: Files::make(&self.directory()?, self.timeout)? })
    }

    /// Frees all addresses that an attachment holds in this network, or, if it holds none, those that an old release of upstream
    /// recorded under the container alone. Returns the freed addresses; it is not an error if there are none.
    ///
    /// # Errors
    /// The lock is not free in time (`Busy`), or a file cannot be read or removed (`Disk`). A file that cannot be read may belong
    /// to this attachment, so it is an error, which is returned after all others are freed.
    pub fn release(&self, owner: &Owner) -> Result<Vec<IpAddr>, Error> {
        let Some(files) = Files::find(&self.directory()?, self.timeout)? else { return Ok(Vec::new()) };
        let paths = self.paths();
        let mut ledger = Ledger::open(&files, &paths)?;
        ledger.retry_unreadable()?;
        let held = match ledger.held_by(owner)? {
            none if none.is_empty() => ledger.held_by(&owner.without_ifname())?,
            held => held,
        };
        let unread = ledger.unread()?;
        self.record_release(&held);
        let freed = free(&mut ledger, &held)?;
        files.discard_uncreated()?;
        match unread {
            None => Ok(freed),
            Some(error) => Err(Error::from(error)
                .within(format_args!("{owner} may hold one more address"))
                .hint("repeat DEL when that file can be read, or remove it if its container has ended")),
        }
    }

    /// Frees those of `addresses` that the attachment still holds. They get no cooldown: an ADD that failed has used them for
    /// nothing.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn give_back(&self, owner: &Owner, addresses: &[IpAddr]) -> Result<(), Error> {
        let Some(files) = Files::find(&self.directory()?, self.timeout)? else { return Ok(()) };
        let paths = self.paths();
        let mut ledger = Ledger::open(&files, &paths)?;
        let mut held = ledger.held_by(owner)?;
        held.retain(|record| addresses.contains(&record.address));
        free(&mut ledger, &held).map(drop)
    }

    /// Checks that an attachment still holds these addresses; with an empty list, that it holds any.
    ///
    /// # Errors
    /// It does not hold them (`Drift`), or as [`Store::release`].
    pub fn confirm(&self, owner: &Owner, addresses: &[IpAddr]) -> Result<(), Error> {
        let Some(files) = Files::find(&self.directory()?, self.timeout)? else {
            return Err(self.holds_none(owner));
        };
        let paths = self.paths();
        let mut ledger = Ledger::open(&files, &paths)?;
        let held = [ledger.held_by(owner)?, ledger.held_by(&owner.without_ifname())?].concat();
        if held.is_empty() {
            return Err(self.holds_none(owner));
        }
        let mut missing = addresses.to_vec();
        missing.retain(|address| held.iter().all(|record| record.address != *address));
        if missing.is_empty() { Ok(()) } else { Err(drift(&files, owner, &missing)) }
    }

    /// Frees every address whose owner is not in `valid`, and returns them. An address that an old release of upstream recorded
    /// under a container alone is not freed while any attachment of that container is valid. Files that are not reservations are
    /// never removed.
    ///
    /// # Errors
    /// As [`Store::release`]. A file that the kernel does not let us read is not removed, and is an error after all others are
    /// freed.
    pub fn sweep(&self, valid: &[Owner]) -> Result<Vec<IpAddr>, Error> {
        let Some(files) = Files::find(&self.directory()?, self.timeout)? else { return Ok(Vec::new()) };
        let paths = self.paths();
        let mut ledger = Ledger::open(&files, &paths)?;
        let owners: HashSet<Owner> = valid.iter().flat_map(|owner| [owner.clone(), owner.without_ifname()]).collect();
        let numbers: HashSet<u64> = owners.iter().map(Owner::number).collect();
        let mut stale = Vec::new();
        let mut unread = None;
        for record in ledger.all()?.into_iter().filter(|record| record.unreadable || !numbers.contains(&record.owner)) {
            match files.read(record.address) {
                Ok(Some((Content::Of(owner), _))) if !owners.contains(&owner) => stale.push(record),
                Err(error) if !error.is_garbage() => unread = Some(error),
                _ => {}
            }
        }
        self.record_release(&stale);
        let freed = free(&mut ledger, &stale)?;
        files.discard_uncreated()?;
        match unread {
            None => Ok(freed),
            Some(error) => Err(error.into()),
        }
    }

    /// Checks that an address could be reserved, apart from whether any is free. Returns problems that do not prevent that.
    ///
    /// # Errors
    /// No file can be created in the directory or its nearest existing parent, or a file cannot be read (`Disk`). A lock that
    /// another process holds is not an error.
    pub fn health(&self) -> Result<Health, Error> {
        let path = self.directory()?;
        if let Err(error) = Directory::probe_at(&path) {
            return Err(Error::from(error).within(format_args!("no reservation can be stored in {}", path.display())));
        }
        let files = match Files::find(&path, HEALTH_TIMEOUT) {
            Ok(Some(files)) => files,
            Ok(None) => return Ok(Health::default()),
            Err(error) if error.kind == ErrorKind::Busy => return Ok(Health::default()),
            Err(error) => return Err(error),
        };
        let paths = self.paths();
        let mut ledger = Ledger::open(&files, &paths)?;
        let unreadable = ledger.unreadable()?.into_iter().map(|address| files.path_of(address)).collect();
        let taken = ledger.all()?.iter().map(|record| record.address).collect();
        Ok(Health { unreadable, taken })
    }

    /// Records that these addresses are released, which they are after this: a kill in between leaves an address that is recorded
    /// and still reserved, and its next release is recorded again. A release never fails because of this.
    pub(crate) fn record_release(&self, records: &[Record]) {
        let Some(cooling) = &self.cooling else { return };
        if let Err(why) = cooling.record(self.boot.as_ref(), records) {
            (self.log)(&format!("the addresses have no cooldown, because their release is not recorded: {why}"));
        }
    }

    fn holds_none(&self, owner: &Owner) -> Error {
        let path = self.data_dir.join(&self.network);
        Error::new(ErrorKind::Drift, format!("host-local: Failed to find address added by container ID: {owner}"))
            .hint(format!("its reservation in {} is gone: restart the container", path.display()))
    }

    pub(crate) fn directory(&self) -> Result<PathBuf, Error> {
        let name = &self.network;
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(Error::value(format!("the network's name {name:?} cannot be the name of a directory")));
        }
        Ok(self.data_dir.join(name))
    }

    pub(crate) fn indexes(&self) -> PathBuf {
        self.data_dir.join(".idx")
    }

    pub(crate) fn paths(&self) -> StorePaths {
        StorePaths {
            network: self.network.clone(),
            indexes: Directory::make(self.indexes(), 0o700).ok(),
            garbage: self.data_dir.join(".aside").join(&self.network),
            boot: self.boot,
            log: self.log,
        }
    }
}

/// A network's store, locked until the value is dropped.
#[derive(Debug)]
pub struct LockedStore<'a> {
    store: &'a Store,
    files: Files,
}

impl LockedStore<'_> {
    /// As [`Store::acquire`], under the lock that is held already.
    ///
    /// # Errors
    /// As [`Store::acquire`].
    pub fn acquire(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, Error> {
        self.allocate(request, &request.assign()?)
    }

    fn allocate(&self, request: &AllocationRequest, wanted: &[Option<IpAddr>]) -> Result<Vec<Allocation>, Error> {
        let paths = self.store.paths();
        let released = match &self.store.cooling {
            Some(cooling) => cooling.read(self.store.boot.as_ref(), request.cooldown, self.store.log),
            None => Released::default(),
        };
        let ledger = Ledger::open(&self.files, &paths)?;
        let mut allocator = Allocator { ledger, files: &self.files, request, released, made: Vec::new() };
        let allocated = allocator.allocate(wanted);
        if allocated.is_err() {
            allocator.roll_back(self.store.log);
        }
        allocator.ledger.seal();
        allocated
    }

    /// All addresses that are reserved.
    ///
    /// # Errors
    /// The directory cannot be listed (`Disk`).
    pub fn reserved(&self) -> Result<Vec<IpAddr>, Error> {
        let paths = self.store.paths();
        let mut ledger = Ledger::open(&self.files, &paths)?;
        Ok(ledger.all()?.iter().map(|record| record.address).collect())
    }

    /// The reserved addresses that a running container may have: without those whose reservation is certainly older than this boot.
    ///
    /// # Errors
    /// The directory cannot be listed (`Disk`).
    pub fn reserved_in_this_boot(&self) -> Result<Vec<IpAddr>, Error> {
        let paths = self.store.paths();
        let mut ledger = Ledger::open(&self.files, &paths)?;
        let mut reserved = Vec::new();
        for record in ledger.all()? {
            let is_older = record.earlier_boot
                && matches!(self.files.read(record.address), Ok(Some((_, facts))) if record.is_of(facts));
            if !is_older {
                reserved.push(record.address);
            }
        }
        Ok(reserved)
    }

    /// The addresses that were released less than `cooldown` ago. They may have been allocated again.
    pub fn cooling(&self, cooldown: Duration) -> Vec<IpAddr> {
        let Some(cooling) = &self.store.cooling else { return Vec::new() };
        let released = cooling.read(self.store.boot.as_ref(), cooldown, self.store.log);
        released.cooling().into_iter().map(|(address, _)| address).collect()
    }
}

/// Frees the records' addresses. All are tried before an error is returned.
pub(crate) fn free(ledger: &mut Ledger, records: &[Record]) -> Result<Vec<IpAddr>, Error> {
    let removed = ledger.remove(records);
    ledger.seal();
    let (freed, refused) = removed?;
    let mut errors = refused.into_iter();
    let Some(mut error) = errors.next() else { return Ok(freed) };
    for other in errors {
        error.text = format!("{}; {}", error.text, other.text);
    }
    Err(error)
}

fn drift(files: &Files, owner: &Owner, missing: &[IpAddr]) -> Error {
    let mut texts = Vec::new();
    for address in missing {
        let found = match files.read(*address) {
            Ok(None) => "not reserved".to_owned(),
            Ok(Some((Content::Of(other), _))) => format!("held by {other}"),
            _ => "not readable".to_owned(),
        };
        let path = files.path_of(*address);
        texts.push(format!("{address}: wanted held by {owner}, found {found} ({})", path.display()));
    }
    Error::new(ErrorKind::Drift, texts.join("; "))
        .hint("restart the container: its address may be assigned to another one")
}
