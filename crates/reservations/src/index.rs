//! A hash table in a file: the addresses that an owner holds, so that not every file has to be read.
//!
//! The index is a cache of the network's directory; the files are the truth. Its header has the [`State`] of the directory for
//! which the index is complete: while the directory still has that state, an owner that is not in the index holds no address. The
//! stamp is written last ([`Index::seal`]), so an index whose writer was killed is complete for no state and is built again.
//!
//! The file is a header and a table of slots. The records of an owner begin at the slot that the owner's number gives, its *home*,
//! and each is in the first slot from there that was free when it was added (linear probing).

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use cnikit_store::{ChangeStamp, Directory, FileTime};

use crate::boot::Boot;
use crate::record::{Record, SIZE, Slot, array, checksum};

/// The state of a directory for which an index is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The boot in which the index was written. After a power cut its other parts prove nothing.
    pub(crate) boot: Boot,
    /// Device and inode of the directory.
    pub(crate) directory: (u64, u64),
    /// The directory's stamp.
    pub(crate) stamp: ChangeStamp,
}

/// The index of one network's directory, open.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    header: Header,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    state: State,
    /// The number of slots in the table, a power of two.
    slots: u32,
    /// The number of slots that are not empty.
    used: u32,
    /// The number of records of files whose content cannot be read.
    unreadable: u32,
}

const MAGIC: &[u8; 8] = b"allocs01";
/// Bytes of a header.
const HEADER: usize = 128;
/// The fewest slots of a table.
const FEWEST: u32 = 64;
/// The most slots that one read fetches.
const STRIDE: u32 = 16;

impl Header {
    /// The fields in their order, zeros, and the checksum in the last four bytes. All numbers are little-endian.
    fn to_bytes(self) -> [u8; HEADER] {
        let State { boot, directory: (device, inode), stamp } = self.state;
        let fields = [
            &MAGIC[..],
            &boot.id.to_le_bytes(),
            &boot.machine().unwrap_or(0).to_le_bytes(),
            &device.to_le_bytes(),
            &inode.to_le_bytes(),
            &stamp.modified.seconds.to_le_bytes(),
            &stamp.modified.nanoseconds.to_le_bytes(),
            &self.slots.to_le_bytes(),
            &self.used.to_le_bytes(),
            &self.unreadable.to_le_bytes(),
            // At the end: an index of an earlier version has zeros here, so it is never taken for complete.
            &stamp.changed.seconds.to_le_bytes(),
            &stamp.changed.nanoseconds.to_le_bytes(),
        ];
        let mut bytes: [u8; HEADER] = array(&fields.concat());
        let sum = checksum(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&sum);
        bytes
    }

    /// Parses a header; `None` if its checksum is wrong or it has another format.
    fn parse(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER)?;
        if !bytes.starts_with(MAGIC) || checksum(&bytes[..HEADER - 4]) != bytes[HEADER - 4..] {
            return None;
        }
        let mut fields = Fields(&bytes[MAGIC.len()..]);
        let boot_id = u128::from_le_bytes(fields.next());
        let machine = u128::from_le_bytes(fields.next());
        let device = u64::from_le_bytes(fields.next());
        let inode = u64::from_le_bytes(fields.next());
        let modified = fields.next_time();
        let slots = u32::from_le_bytes(fields.next());
        let used = u32::from_le_bytes(fields.next());
        let unreadable = u32::from_le_bytes(fields.next());
        let changed = fields.next_time();
        if !slots.is_power_of_two() || slots < FEWEST || used >= slots {
            return None;
        }
        let machine = if machine == 0 { None } else { Some(machine) };
        let state = State {
            boot: Boot::of(boot_id, machine),
            directory: (device, inode),
            stamp: ChangeStamp { modified, changed },
        };
        Some(Header { state, slots, used, unreadable })
    }
}

/// The bytes of a header that have not been parsed yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let field = array(self.0);
        self.0 = self.0.get(N..).unwrap_or_default();
        field
    }

    fn next_time(&mut self) -> FileTime {
        let seconds = i64::from_le_bytes(self.next());
        let nanoseconds = i64::from_le_bytes(self.next());
        FileTime { seconds, nanoseconds }
    }
}

impl Index {
    /// Opens an index if it is complete for this state.
    pub(crate) fn open(indexes: &Directory, name: &str, state: &State) -> io::Result<Option<Index>> {
        let Some(file) = indexes.open_parts(name).map_err(io::Error::other)? else { return Ok(None) };
        let mut bytes = [0; HEADER];
        file.read_exact_at(&mut bytes, 0)?;
        match Header::parse(&bytes) {
            Some(header) if header.state == *state => Ok(Some(Index { file, header })),
            _ => Ok(None),
        }
    }

    /// The state and the records of an index that may not be complete. Torn slots are skipped.
    pub(crate) fn recover(indexes: &Directory, name: &str) -> Option<(State, Vec<Record>)> {
        let (bytes, _) = indexes.read(name, 1 << 30).ok()??;
        let header = Header::parse(&bytes)?;
        Some((header.state, records(&bytes[HEADER..])))
    }

    /// Writes a new index of these records, which is complete for no state until it is [sealed](Index::seal). A third of its slots
    /// is used at most.
    pub(crate) fn build(indexes: &Directory, name: &str, state: State, records: &[Record]) -> io::Result<Index> {
        let used = u32::try_from(records.len()).map_err(io::Error::other)?;
        let unreadable = records.iter().filter(|record| record.unreadable).count();
        let unreadable = u32::try_from(unreadable).map_err(io::Error::other)?;
        let slots = used.saturating_mul(3).next_power_of_two().max(FEWEST);
        let unsealed = State { stamp: ChangeStamp::default(), ..state };
        let header = Header { state: unsealed, slots, used, unreadable };
        let mut bytes = vec![0; HEADER + slots as usize * SIZE];
        bytes[..HEADER].copy_from_slice(&header.to_bytes());
        fill(&mut bytes[HEADER..], slots, records);
        indexes.replace(name, &bytes, 0o600).map_err(io::Error::other)?;
        let file = indexes.open_parts(name).map_err(io::Error::other)?;
        Ok(Index { file: file.ok_or(io::ErrorKind::NotFound)?, header })
    }

    /// Marks the index as complete for the directory with this stamp.
    pub(crate) fn seal(&mut self, stamp: ChangeStamp) -> io::Result<()> {
        self.header.state.stamp = stamp;
        self.file.write_all_at(&self.header.to_bytes(), 0)
    }

    /// The state for which it was last sealed.
    pub(crate) fn state(&self) -> State {
        self.header.state
    }

    /// The number of files that cannot be read.
    pub(crate) fn unreadable(&self) -> u32 {
        self.header.unreadable
    }

    /// The records with this owner's number.
    pub(crate) fn find(&self, owner: u64) -> io::Result<Vec<Record>> {
        let mut search = self.search(owner);
        let mut found = Vec::new();
        loop {
            match search.next_slot()? {
                (_, Slot::Empty) => return Ok(found),
                (_, Slot::Full(record)) if record.owner == owner => found.push(record),
                _ => {}
            }
        }
    }

    /// All records. A torn slot is an error, because its record is lost.
    pub(crate) fn all(&self) -> io::Result<Vec<Record>> {
        let mut bytes = vec![0; self.header.slots as usize * SIZE];
        self.file.read_exact_at(&mut bytes, HEADER as u64)?;
        if bytes.chunks(SIZE).any(|slot| Slot::parse(slot) == Slot::Torn) {
            return Err(torn());
        }
        Ok(records(&bytes))
    }

    /// Adds a record. Returns false if half of the table is used: then a larger one must be built.
    pub(crate) fn insert(&mut self, record: Record) -> io::Result<bool> {
        if self.header.used.saturating_mul(2) >= self.header.slots {
            return Ok(false);
        }
        let mut search = self.search(record.owner);
        let (position, was_empty) = loop {
            match search.next_slot()? {
                (position, Slot::Empty) => break (position, true),
                (position, Slot::Removed) => break (position, false),
                _ => {}
            }
        };
        self.write(position, Slot::Full(record))?;
        self.header.used += u32::from(was_empty);
        self.header.unreadable += u32::from(record.unreadable);
        Ok(true)
    }

    /// Removes an owner's record of an address, if it exists.
    pub(crate) fn remove(&mut self, owner: u64, address: IpAddr) -> io::Result<()> {
        let mut search = self.search(owner);
        let (position, record) = loop {
            match search.next_slot()? {
                (_, Slot::Empty) => return Ok(()),
                (position, Slot::Full(record)) if record.owner == owner && record.address == address => {
                    break (position, record);
                }
                _ => {}
            }
        };
        // If the next slot is empty, every search ends there at the latest, so it can end here as well.
        let next = self.read((position + 1) % self.header.slots, 1)?[0];
        if next == Slot::Empty {
            self.write(position, Slot::Empty)?;
            self.header.used -= 1;
        } else {
            self.write(position, Slot::Removed)?;
        }
        self.header.unreadable -= u32::from(record.unreadable);
        Ok(())
    }

    /// Removes many records, given by owner and address, in one pass over the table. To remove them one by one, each would be
    /// searched from its owner's home on, which takes long if one owner has thousands.
    pub(crate) fn remove_all(&mut self, gone: &HashSet<(u64, IpAddr)>) -> io::Result<()> {
        let mut table = self.read(0, self.header.slots)?;
        let mut unreadable = self.header.unreadable;
        for slot in &mut table {
            match *slot {
                Slot::Torn => return Err(torn()),
                Slot::Full(record) if gone.contains(&(record.owner, record.address)) => {
                    *slot = Slot::Removed;
                    unreadable -= u32::from(record.unreadable);
                }
                _ => {}
            }
        }
        let mut used = 0;
        for position in (0..table.len()).rev() {
            // As in `remove`: a search can end here if it would end at the next slot.
            if table[position] == Slot::Removed && table[(position + 1) % table.len()] == Slot::Empty {
                table[position] = Slot::Empty;
            }
            used += u32::from(table[position] != Slot::Empty);
        }
        let bytes: Vec<u8> = table.into_iter().flat_map(Slot::to_bytes).collect();
        self.file.write_all_at(&bytes, HEADER as u64)?;
        self.header.unreadable = unreadable;
        self.header.used = used;
        Ok(())
    }

    /// A search from the home of this owner on.
    fn search(&self, owner: u64) -> Search<'_> {
        let slots = self.header.slots;
        Search {
            index: self,
            position: home(owner, slots),
            fetched: Vec::new().into_iter(),
            reads_left: slots / STRIDE + 2,
        }
    }

    /// Reads `count` slots from position `first` on.
    fn read(&self, first: u32, count: u32) -> io::Result<Vec<Slot>> {
        let mut bytes = vec![0; count as usize * SIZE];
        self.file.read_exact_at(&mut bytes, offset(first))?;
        Ok(bytes.chunks(SIZE).map(Slot::parse).collect())
    }

    fn write(&self, position: u32, slot: Slot) -> io::Result<()> {
        self.file.write_all_at(&slot.to_bytes(), offset(position))
    }
}

/// The slots from an owner's home on, round the end of the table. The caller stops at the first empty slot at the latest.
struct Search<'a> {
    index: &'a Index,
    /// The position of the next slot.
    position: u32,
    /// The slots from there on that have been read.
    fetched: std::vec::IntoIter<Slot>,
    /// How often the table may still be read: after that, all of it was searched.
    reads_left: u32,
}

impl Search<'_> {
    /// The next slot with its position.
    ///
    /// # Errors
    /// The slot is torn, no slot of the table is empty, or the file cannot be read.
    fn next_slot(&mut self) -> io::Result<(u32, Slot)> {
        let slots = self.index.header.slots;
        if self.fetched.as_slice().is_empty() {
            if self.reads_left == 0 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no empty slot"));
            }
            self.reads_left -= 1;
            let count = STRIDE.min(slots - self.position);
            self.fetched = self.index.read(self.position, count)?.into_iter();
        }
        let position = self.position;
        self.position = (position + 1) % slots;
        match self.fetched.next() {
            Some(Slot::Torn) | None => Err(torn()),
            Some(slot) => Ok((position, slot)),
        }
    }
}

fn torn() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "torn slot")
}

/// The offset in the file of a slot.
fn offset(position: u32) -> u64 {
    HEADER as u64 + u64::from(position) * SIZE as u64
}

/// The position at which a search for an owner begins.
#[expect(clippy::cast_possible_truncation, reason = "the remainder of a division by a u32 is one")]
fn home(owner: u64, slots: u32) -> u32 {
    (owner % u64::from(slots)) as u32
}

/// The records in the bytes of a table.
fn records(table: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    for bytes in table.chunks(SIZE) {
        if let Slot::Full(record) = Slot::parse(bytes) {
            records.push(record);
        }
    }
    records
}

/// Writes records into the bytes of an empty table that has room for them. They are written in the order of their homes, so the
/// search for a free slot continues where the last one ended. Otherwise each of thousands of records of one owner would be searched
/// from its home on.
fn fill(table: &mut [u8], slots: u32, records: &[Record]) {
    let slots_in_table = slots as usize;
    let mut by_home: Vec<(u32, &Record)> = records.iter().map(|record| (home(record.owner, slots), record)).collect();
    by_home.sort_by_key(|(home, _)| *home);
    // It is not reduced to the size of the table before it is used, so that it only grows.
    let mut next = 0;
    for (home, record) in by_home {
        next = next.max(home as usize);
        while is_used(table, next % slots_in_table) {
            next += 1;
        }
        let position = next % slots_in_table;
        table[position * SIZE..][..SIZE].copy_from_slice(&Slot::Full(*record).to_bytes());
    }
}

fn is_used(table: &[u8], position: usize) -> bool {
    table[position * SIZE..][..SIZE].iter().any(|byte| *byte != 0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use cnikit_store::Facts;

    use super::*;

    const MODIFIED: FileTime = FileTime { seconds: -9, nanoseconds: 8 };
    const STAMP: ChangeStamp = ChangeStamp { modified: MODIFIED, changed: FileTime { seconds: 7, nanoseconds: 6 } };

    fn state(directory: &Directory) -> State {
        State { boot: Boot::of(1, Some(2)), directory: directory.identity(), stamp: STAMP }
    }

    fn record(owner: u64, last: u32) -> Record {
        let facts = Facts { inode: last.into(), changed: 1, size: 1, regular: true };
        Record::new(owner, std::net::Ipv4Addr::from(0x0a00_0000 + last).into(), facts)
    }

    /// Inserts a record; builds a larger index if necessary, as the ledger does.
    fn insert(index: &mut Index, indexes: &Directory, new: Record) {
        if !index.insert(new).unwrap() {
            let all = index.all().unwrap();
            *index = Index::build(indexes, "net", index.state(), &all).unwrap();
            assert!(index.insert(new).unwrap());
        }
    }

    #[test]
    fn a_table_behaves_as_a_map_does_through_ten_thousand_changes() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let mut index = Index::build(&indexes, "net", state(&indexes), &[]).unwrap();
        let mut model = HashMap::<u64, u32>::new();
        let mut seed = 7_u64;
        for step in 0..10_000_u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few homes, so that chains collide, wrap round the end and run through removed slots.
            let owner = (seed >> 33) % 300 * 64 + 60;
            if let Some(last) = model.remove(&owner) {
                index.remove(owner, record(owner, last).address).unwrap();
            } else {
                insert(&mut index, &indexes, record(owner, step));
                model.insert(owner, step);
            }
            let other = (seed >> 20) % 300 * 64 + 60;
            let wanted: Vec<Record> = model.get(&other).map(|last| record(other, *last)).into_iter().collect();
            assert_eq!(index.find(other).unwrap(), wanted, "step {step}");
        }
        assert_eq!(index.all().unwrap().len(), model.len());
        assert!(index.header.slots <= 4096, "removed slots are cleared when it grows: {}", index.header.slots);
    }

    #[test]
    fn records_are_found_after_others_are_removed_together() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        // Chains that collide, and one that wraps round the end.
        let all: Vec<Record> = (0..600).map(|n| record(u64::from(n) % 5 * 63 + 2040, n)).collect();
        for keep in [0, 1, 2, 3] {
            let mut index = Index::build(&indexes, "net", state(&indexes), &all).unwrap();
            let (gone, rest): (Vec<Record>, Vec<Record>) = all.iter().partition(|record| record.inode % 4 > keep);
            index.remove_all(&gone.iter().map(|record| (record.owner, record.address)).collect()).unwrap();
            for owner in 0..5 {
                let wanted: Vec<Record> = rest.iter().filter(|one| one.owner == owner * 63 + 2040).copied().collect();
                assert_eq!(index.find(owner * 63 + 2040).unwrap(), wanted, "{keep}, {owner}");
            }
            for record in &gone {
                insert(&mut index, &indexes, *record);
            }
            assert_eq!(index.all().unwrap().len(), all.len());
        }
    }

    #[test]
    fn the_slots_of_records_that_are_removed_together_are_empty_again() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let all: Vec<Record> = (0..600).map(|n| record(7, n)).collect();
        let mut index = Index::build(&indexes, "net", state(&indexes), &all).unwrap();
        index.remove_all(&all[1..].iter().map(|record| (record.owner, record.address)).collect()).unwrap();
        assert_eq!((index.header.used, index.all().unwrap()), (1, vec![all[0]]));
    }

    #[test]
    fn a_record_behind_those_that_are_removed_together_is_still_found() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        // In the middle of a table whose first slot is empty.
        let all: Vec<Record> = (0..4).map(|n| record(7, n)).collect();
        let mut index = Index::build(&indexes, "net", state(&indexes), &all).unwrap();
        index.remove_all(&all[1..3].iter().map(|record| (record.owner, record.address)).collect()).unwrap();
        assert_eq!(index.find(7).unwrap(), [all[0], all[3]]);
    }

    #[test]
    fn records_that_come_and_go_do_not_fill_the_table() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let mut index = Index::build(&indexes, "net", state(&indexes), &[record(7, 0), record(7, 1)]).unwrap();
        for n in 2..200 {
            index.remove(7, record(7, n - 2).address).unwrap();
            assert!(index.insert(record(7, n)).unwrap(), "full after {n} records, of which two exist");
        }
        assert_eq!(index.all().unwrap().len(), 2);
    }

    #[test]
    fn an_index_is_opened_only_for_the_state_it_was_sealed_for() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let sealed = state(&indexes);
        let mut index = Index::build(&indexes, "net", sealed, &[record(3, 4)]).unwrap();
        assert!(Index::open(&indexes, "net", &sealed).unwrap().is_none(), "not sealed yet");
        index.seal(STAMP).unwrap();
        assert_eq!(Index::open(&indexes, "net", &sealed).unwrap().unwrap().find(3).unwrap(), [record(3, 4)]);
        let others = [
            State { stamp: ChangeStamp { modified: FileTime { nanoseconds: 7, ..MODIFIED }, ..STAMP }, ..sealed },
            State { stamp: ChangeStamp { changed: FileTime { seconds: 7, nanoseconds: 7 }, ..STAMP }, ..sealed },
            State { directory: (0, 0), ..sealed },
            State { boot: Boot::of(2, Some(2)), ..sealed },
        ];
        for other in others {
            assert!(Index::open(&indexes, "net", &other).unwrap().is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_torn_table_is_an_error_and_its_intact_records_are_recovered() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let mut index = Index::build(&indexes, "net", state(&indexes), &[record(3, 4), record(9, 5)]).unwrap();
        index.seal(STAMP).unwrap();
        index.file.write_all_at(&[0xff; 5], offset(3) + 20).unwrap();
        assert!(index.find(3).is_err());
        assert!(index.all().is_err(), "a sweep of the other records would miss the lost one");
        assert!(index.remove_all(&HashSet::new()).is_err());
        assert_eq!(Index::recover(&indexes, "net").unwrap().1, [record(9, 5)]);
    }

    #[test]
    fn only_the_record_of_the_address_is_removed_and_its_slot_is_empty_again() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        // Alone in the first, a middle and the last slot, where the next one is the first again.
        for owner in [0, 7, 63] {
            let mut index = Index::build(&indexes, "net", state(&indexes), &[record(owner, 1)]).unwrap();
            index.remove(owner, record(owner, 2).address).unwrap();
            index.remove(owner + 64, record(owner, 1).address).unwrap();
            assert_eq!((index.header.used, index.all().unwrap()), (1, vec![record(owner, 1)]));
            index.remove(owner, record(owner, 1).address).unwrap();
            assert_eq!((index.header.used, index.all().unwrap().len()), (0, 0), "{owner}");
        }
        // Before another record, be it in the first slot, the slot stays in use.
        for (owner, next) in [(7, 8), (63, 64)] {
            let records = [record(owner, 1), record(next, 2)];
            let mut index = Index::build(&indexes, "net", state(&indexes), &records).unwrap();
            index.remove(owner, records[0].address).unwrap();
            assert_eq!((index.header.used, index.find(next).unwrap()), (2, vec![records[1]]));
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_counted() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let unreadable = |last| Record { unreadable: true, ..record(7, last) };
        let mut index = Index::build(&indexes, "net", state(&indexes), &[record(7, 1), unreadable(2)]).unwrap();
        let key = |record: Record| (record.owner, record.address);
        assert_eq!(index.unreadable(), 1);
        for last in 3..7 {
            assert!(index.insert(unreadable(last)).unwrap());
        }
        assert_eq!(index.unreadable(), 5);
        index.remove(7, unreadable(2).address).unwrap();
        index.remove(7, record(7, 1).address).unwrap();
        assert_eq!(index.unreadable(), 4);
        index.remove_all(&[unreadable(3), unreadable(4), record(7, 9)].map(key).into()).unwrap();
        assert_eq!(index.unreadable(), 2);
    }

    #[test]
    fn a_table_without_an_empty_slot_is_an_error_and_not_searched_for_ever() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let index = Index::build(&indexes, "net", state(&indexes), &[]).unwrap();
        for position in 0..index.header.slots {
            index.write(position, Slot::Full(record(position.into(), position))).unwrap();
        }
        assert_eq!(index.find(7).unwrap_err().to_string(), "no empty slot");
    }

    #[test]
    fn a_header_of_a_table_that_cannot_be_is_invalid() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let of = |slots, used| Header { state: state(&indexes), slots, used, unreadable: 0 }.to_bytes();
        for (slots, used, is_valid) in [(64, 63, true), (64, 64, false), (96, 0, false), (32, 0, false)] {
            assert_eq!(Header::parse(&of(slots, used)).is_some(), is_valid, "{slots}, {used}");
        }
    }

    #[test]
    fn a_header_with_any_flipped_bit_is_invalid() {
        let temporary = tempfile::tempdir().unwrap();
        let indexes = Directory::open(temporary.path()).unwrap();
        let bytes = Index::build(&indexes, "net", state(&indexes), &[]).unwrap().header.to_bytes();
        assert!(Header::parse(&bytes).is_some());
        for bit in 0..HEADER * 8 {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&torn).is_none(), "bit {bit}");
        }
    }
}
