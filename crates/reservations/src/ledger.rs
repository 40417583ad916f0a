//! The owners of the addresses, from the index while it is complete, otherwise from the files.
//!
//! The network's lock is held all the time. A record in the index is checked against its file. That an address has no record is
//! trusted only while the directory has the stamp that the index was sealed with. If a check fails, or the index cannot be read or
//! written, all files of the directory are read once; the result is never wrong.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use cnikit_store::{ChangeStamp, Directory, Error as StoreError, Facts};

use crate::boot::Boot;
use crate::error::{Error, ErrorKind};
use crate::files::Files;
use crate::index::{Index, State};
use crate::owner::{Content, Owner, number};
use crate::record::Record;

/// The paths outside of the networks' directories. Their names begin with a dot, which is not allowed in a network's name.
#[derive(Debug)]
pub(crate) struct StorePaths {
    /// The network's name, which is also the name of its index.
    pub(crate) network: String,
    /// The directory of indexes, if it could be created.
    pub(crate) indexes: Option<Directory>,
    /// The directory for the network's garbage; created when there is any.
    pub(crate) garbage: std::path::PathBuf,
    /// The present boot, if its id is available.
    pub(crate) boot: Option<Boot>,
    /// Logs events that do not fail a call.
    pub(crate) log: fn(&str),
}

/// The most records that are removed from the index one by one.
const ONE_BY_ONE: usize = 64;

/// The reservations of one network.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    files: &'a Files,
    paths: &'a StorePaths,
    records: Records,
    changed: bool,
}

#[derive(Debug)]
enum Records {
    /// A complete index.
    Indexed(Index),
    /// The records of all files, which were read because no index is complete and none can be written.
    Listed(Vec<Record>),
}

/// The records of an older index, for files that have not changed.
#[derive(Default)]
pub(crate) struct Memory {
    records: HashMap<IpAddr, Record>,
    /// The index is of this boot and was last complete at this time of the file system, in nanoseconds. A file that was last
    /// changed before, and still has the recorded facts, is not read again.
    complete_at: Option<u64>,
    /// The index is of an earlier boot, so files that have not changed since are older than this boot.
    earlier_boot: bool,
}

impl Memory {
    /// The records of the index of a network's directory, even if it is not complete.
    pub(crate) fn of(files: &Directory, indexes: Option<&Directory>, network: &str, boot: Option<&Boot>) -> Memory {
        let remains = indexes.and_then(|indexes| Index::recover(indexes, network));
        let (Some((state, records)), Some(boot)) = (remains, boot) else { return Memory::default() };
        let directory = files.identity();
        // Device numbers change from boot to boot, so only the directory's own inode number is compared across one.
        let same_directory = state.directory.1 == directory.1;
        let earlier_boot = same_directory && boot.follows(&state.boot) && files.is_local();
        let same_boot = state.directory == directory && *boot == state.boot;
        let complete_at = same_boot.then(|| state.stamp.changed.as_nanoseconds());
        let records = records.into_iter().map(|record| (record.address, record)).collect();
        Memory { records, complete_at, earlier_boot }
    }

    /// The record of an address, if it proves that the file with these facts has not been changed since. A file that was last
    /// changed in the clock tick in which the index was completed, or later, may have been replaced within that tick, so its record
    /// proves nothing.
    fn untouched(&self, address: IpAddr, facts: Facts) -> Option<&Record> {
        let record = self.records.get(&address)?;
        let is_older = self.complete_at.is_some_and(|complete_at| record.changed < complete_at);
        (!record.unreadable && is_older && record.is_of(facts)).then_some(record)
    }

    /// Whether the record proves that this owner's file is older than this boot.
    pub(crate) fn is_of_earlier_boot(&self, address: IpAddr, owner: &Owner, facts: Facts) -> bool {
        let Some(record) = self.records.get(&address) else { return false };
        if record.unreadable || !record.is_of(facts) {
            return false;
        }
        (self.complete_at.is_some() && record.earlier_boot) || (self.earlier_boot && record.owner == owner.number())
    }
}

impl<'a> Ledger<'a> {
    pub(crate) fn open(files: &'a Files, paths: &'a StorePaths) -> Result<Ledger<'a>, Error> {
        let mut ledger = Ledger { files, paths, records: Records::Listed(Vec::new()), changed: false };
        match ledger.complete_index() {
            Some(index) => ledger.records = Records::Indexed(index),
            None => ledger.read_all()?,
        }
        Ok(ledger)
    }

    /// The records whose files still name this owner.
    pub(crate) fn held_by(&mut self, owner: &Owner) -> Result<Vec<Record>, Error> {
        if let Some(held) = self.confirmed(owner) {
            return Ok(held);
        }
        self.read_all()?;
        self.confirmed(owner).ok_or_else(|| self.unsteady())
    }

    /// All records.
    pub(crate) fn all(&mut self) -> Result<Vec<Record>, Error> {
        if let Records::Indexed(index) = &self.records {
            match index.all() {
                Ok(all) => return Ok(all),
                Err(_) => self.read_all()?,
            }
        }
        match &self.records {
            Records::Listed(all) => Ok(all.clone()),
            Records::Indexed(index) => Ok(index.all().unwrap_or_default()),
        }
    }

    /// The addresses whose files cannot be read. This is cheap if there are none.
    pub(crate) fn unreadable(&mut self) -> Result<Vec<IpAddr>, Error> {
        if matches!(&self.records, Records::Indexed(index) if index.unreadable() == 0) {
            return Ok(Vec::new());
        }
        Ok(self.all()?.iter().filter(|record| record.unreadable).map(|record| record.address).collect())
    }

    /// Tries again to read the files that could not be read. If one can be read now, all files are read again.
    pub(crate) fn retry_unreadable(&mut self) -> Result<(), Error> {
        for address in self.unreadable()? {
            if let Ok(Some((Content::Of(_), _))) = self.files.read(address) {
                return self.read_all();
            }
        }
        Ok(())
    }

    /// The error of a file that the kernel does not let us read: it may belong to any owner. A file of garbage belongs to none.
    pub(crate) fn unread(&mut self) -> Result<Option<StoreError>, Error> {
        for address in self.unreadable()? {
            match self.files.read(address) {
                Err(error) if !error.is_garbage() => return Ok(Some(error)),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Reserves an address; `false` if it is reserved already.
    pub(crate) fn create(&mut self, address: IpAddr, owner: &Owner) -> Result<bool, Error> {
        let Some(facts) = self.files.create(address, owner)? else { return Ok(false) };
        if let Err(refusal) = self.insert_record(Record::new(owner.number(), address, facts)) {
            self.files.remove(address)?;
            return Err(refusal);
        }
        Ok(true)
    }

    /// Frees an address that this call reserved. No other process can have changed its file, because the lock is held.
    pub(crate) fn undo(&mut self, address: IpAddr, owner: &Owner) -> Result<(), Error> {
        self.files.remove(address)?;
        self.remove_record(owner.number(), address)
    }

    /// Gives an address to another owner, if its file has not changed since it was proven to be of an earlier boot.
    pub(crate) fn take_over(&mut self, old: &Record, owner: &Owner) -> Result<bool, Error> {
        let found = self.files.directory.facts(&old.address.to_string())?;
        if !old.earlier_boot || !found.is_some_and(|facts| old.is_of(facts)) {
            return Ok(false);
        }
        self.changed = true;
        match self.files.renew(old.address, owner) {
            Ok(Some(facts)) => {
                self.remove_record(old.owner, old.address)?;
                self.insert_record(Record::new(owner.number(), old.address, facts))?;
            }
            // The old file may exist or not, so all files are read again.
            Ok(None) => {
                self.read_all()?;
                return Ok(false);
            }
            Err(error) => {
                self.read_all()?;
                return Err(error.into());
            }
        }
        (self.paths.log)(&format!("{} was reserved before this boot; {owner} has it now", old.address));
        Ok(true)
    }

    /// Frees addresses. Returns those that were freed, and the errors of the others.
    pub(crate) fn remove(&mut self, records: &[Record]) -> Result<(Vec<IpAddr>, Vec<Error>), Error> {
        let mut gone = Vec::new();
        let mut refused = Vec::new();
        for record in records {
            match self.files.remove(record.address) {
                Ok(_) => gone.push((record.owner, record.address)),
                Err(error) => refused.push(Error::from(error)),
            }
        }
        let freed = gone.iter().map(|held| held.1).collect();
        self.remove_records(gone)?;
        Ok((freed, refused))
    }

    /// Marks the index as complete for the current directory. If it cannot be written it stays unsealed.
    pub(crate) fn seal(&mut self) {
        let Records::Indexed(index) = &mut self.records else { return };
        if !self.changed {
            return;
        }
        if let Ok(Some(stamp)) = self.files.directory.stamp_anew() {
            // If it cannot be written, the next caller only has to read all files.
            let _ = index.seal(stamp);
        }
    }

    fn insert_record(&mut self, record: Record) -> Result<(), Error> {
        self.changed = true;
        match &mut self.records {
            Records::Listed(all) => all.push(record),
            Records::Indexed(index) => match index.insert(record) {
                Ok(true) => {}
                Ok(false) if self.grow(record) => {}
                _ => self.read_all()?,
            },
        }
        Ok(())
    }

    fn remove_record(&mut self, owner: u64, address: IpAddr) -> Result<(), Error> {
        self.remove_records(vec![(owner, address)])
    }

    /// Removes records from the index, one by one if they are few, because a pass over the whole table takes longer.
    fn remove_records(&mut self, gone: Vec<(u64, IpAddr)>) -> Result<(), Error> {
        if gone.is_empty() {
            return Ok(());
        }
        self.changed = true;
        match &mut self.records {
            Records::Listed(all) => {
                let gone: HashSet<(u64, IpAddr)> = gone.into_iter().collect();
                all.retain(|record| !gone.contains(&(record.owner, record.address)));
            }
            Records::Indexed(index) => {
                let forgotten = if gone.len() > ONE_BY_ONE {
                    index.remove_all(&gone.into_iter().collect())
                } else {
                    gone.iter().try_for_each(|(owner, address)| index.remove(*owner, *address))
                };
                if forgotten.is_err() {
                    self.read_all()?;
                }
            }
        }
        Ok(())
    }

    fn grow(&mut self, record: Record) -> bool {
        let (Records::Indexed(index), Some(indexes)) = (&self.records, &self.paths.indexes) else { return false };
        let Ok(mut records) = index.all() else { return false };
        records.push(record);
        match Index::build(indexes, &self.paths.network, index.state(), &records) {
            Ok(larger) => {
                self.records = Records::Indexed(larger);
                true
            }
            Err(_) => false,
        }
    }

    /// The records of this owner, checked against their files; `None` if a file differs from its record.
    fn confirmed(&self, owner: &Owner) -> Option<Vec<Record>> {
        let found = match &self.records {
            Records::Indexed(index) => index.find(owner.number()).ok()?,
            Records::Listed(all) => all.iter().copied().filter(|record| record.owner == owner.number()).collect(),
        };
        let mut held = Vec::new();
        for record in found.into_iter().filter(|record| !record.unreadable) {
            match self.files.read(record.address).ok()?? {
                (Content::Of(other), facts) if other == *owner => {
                    held.push(Record { earlier_boot: record.earlier_boot && record.is_of(facts), ..record });
                }
                // Another owner has the same number.
                (Content::Of(other), _) if other.number() == record.owner => {}
                _ => return None,
            }
        }
        Some(held)
    }

    /// The error if even records that were just read differ from the files, so that the owners are unknown.
    fn unsteady(&self) -> Error {
        let path = self.files.directory.resolved();
        let text = format!("the reservations in {} have just been changed by another program", path.display());
        Error::new(ErrorKind::Disk, text).hint(
            "try again; if that does not help, find the file that cannot be read, or the program that changes them without the lock",
        )
    }

    fn complete_index(&self) -> Option<Index> {
        let state = self.state(self.files.directory.stamp().ok()?)?;
        Index::open(self.paths.indexes.as_ref()?, &self.paths.network, &state).ok()?
    }

    fn state(&self, stamp: ChangeStamp) -> Option<State> {
        Some(State { boot: self.paths.boot?, directory: self.files.directory.identity(), stamp })
    }

    /// Reads all files, moves garbage aside, and builds the index again if possible.
    fn read_all(&mut self) -> Result<(), Error> {
        let memory = self.memory();
        // The stamp is set before the files are read: a program that changes them meanwhile without the lock changes the stamp too.
        let mut stamp = self.files.directory.stamp_anew().ok().flatten();
        let mut records = Vec::new();
        let mut garbage = Vec::new();
        for address in self.files.addresses()? {
            match self.examine(address, &memory) {
                Seen::Gone => {}
                Seen::Garbage => garbage.push(address),
                Seen::Taken(record) => records.push(record),
            }
        }
        if !garbage.is_empty() {
            for address in garbage {
                if let Some(record) = self.set_aside(address) {
                    records.push(record);
                }
            }
            stamp = self.files.directory.stamp_anew().ok().flatten();
        }
        self.records = match self.build_index(stamp, &records) {
            Some(index) => Records::Indexed(index),
            None => Records::Listed(records),
        };
        self.changed = false;
        Ok(())
    }

    fn build_index(&self, stamp: Option<ChangeStamp>, records: &[Record]) -> Option<Index> {
        let stamp = stamp?;
        let indexes = self.paths.indexes.as_ref()?;
        let state = self.state(stamp)?;
        match Index::build(indexes, &self.paths.network, state, records).and_then(|index| sealed(index, stamp)) {
            Ok(index) => Some(index),
            Err(error) => {
                (self.paths.log)(&format!("the index cannot be written: {error}"));
                None
            }
        }
    }

    fn memory(&self) -> Memory {
        let indexes = self.paths.indexes.as_ref();
        Memory::of(&self.files.directory, indexes, &self.paths.network, self.paths.boot.as_ref())
    }

    fn examine(&self, address: IpAddr, memory: &Memory) -> Seen {
        let facts = self.files.directory.facts(&address.to_string()).ok().flatten();
        if let Some(record) = facts.and_then(|facts| memory.untouched(address, facts)) {
            return Seen::Taken(*record);
        }
        match self.files.read(address) {
            Ok(None) => Seen::Gone,
            Ok(Some((Content::Lost, _))) => Seen::Garbage,
            Ok(Some((Content::Of(owner), facts))) => {
                let earlier_boot = memory.is_of_earlier_boot(address, &owner, facts);
                Seen::Taken(Record { earlier_boot, ..Record::new(owner.number(), address, facts) })
            }
            Ok(Some((Content::Unreadable, _))) => self.unreadable_record(address, "it names no owner"),
            Err(error) => self.unreadable_record(address, &error.to_string()),
        }
    }

    fn unreadable_record(&self, address: IpAddr, why: &str) -> Seen {
        let path = self.files.path_of(address);
        (self.paths.log)(&format!("{} counts as reserved, but cannot be read: {why}", path.display()));
        Seen::Taken(nameless(address))
    }

    /// Moves the file of an address aside, which frees the address. If that fails the address counts as reserved.
    fn set_aside(&self, address: IpAddr) -> Option<Record> {
        let to = Directory::make(&self.paths.garbage, 0o700);
        match to.and_then(|to| self.files.directory.set_aside(&address.to_string(), &to)) {
            Ok(()) => {
                let to = self.paths.garbage.display();
                let text = "lost its content in a crash: set aside in";
                (self.paths.log)(&format!("the file of {address} {text} {to}, the address is free"));
                None
            }
            Err(error) => {
                (self.paths.log)(&format!(
                    "the file of {address} lost its content, but stays, and its address counts as reserved: {error}"
                ));
                Some(nameless(address))
            }
        }
    }
}

fn sealed(mut index: Index, stamp: ChangeStamp) -> std::io::Result<Index> {
    index.seal(stamp)?;
    Ok(index)
}

/// The state of an address's file.
enum Seen {
    Gone,
    Garbage,
    Taken(Record),
}

fn nameless(address: IpAddr) -> Record {
    let facts = Facts { inode: 0, changed: 0, size: 0, regular: false };
    Record { unreadable: true, ..Record::new(number(address.to_string().as_bytes()), address, facts) }
}
