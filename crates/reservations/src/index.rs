//! A hash table in a file: which addresses an owner holds, without reading every file.
//!
//! It is a memory of the network's directory, never the truth. Its header says of which state of the directory it is the
//! *whole* truth: directory, [change stamp](ChangeStamp), boot. While the directory still has that stamp, an owner that is
//! not found here holds nothing. The stamp is written last ([`Index::seal`]), so an index whose writer was killed
//! describes no state at all and is built anew.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use cnikit_store::{ChangeStamp, Directory, FileTime};

use crate::boot::Boot;
use crate::record::{Record, SIZE, Slot, array, checksum};

/// Of which state of which directory an index is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// In which boot it was written; across a power cut nothing else is certain.
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
    /// Slots in the table: a power of two.
    slots: u32,
    /// Those that are not empty.
    used: u32,
    /// Records of files whose content cannot be read.
    unreadable: u32,
}

const MAGIC: &[u8; 8] = b"allocs01";
const HEADER: usize = 128;
const FEWEST: u32 = 64;
/// Slots that one read fetches.
const STRIDE: u32 = 16;

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let State { boot, directory, stamp } = self.state;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(boot.id.to_le_bytes());
        bytes.extend(boot.machine().unwrap_or(0).to_le_bytes());
        bytes.extend([directory.0, directory.1].iter().flat_map(|part| part.to_le_bytes()));
        bytes.extend([stamp.modified.seconds, stamp.modified.nanoseconds].iter().flat_map(|part| part.to_le_bytes()));
        bytes.extend([self.slots, self.used, self.unreadable].iter().flat_map(|part| part.to_le_bytes()));
        // Last: an index of an earlier version has zeros here, so it is never taken for complete.
        bytes.extend([stamp.changed.seconds, stamp.changed.nanoseconds].iter().flat_map(|part| part.to_le_bytes()));
        let mut whole: [u8; HEADER] = array(&bytes);
        let sum = checksum(&whole[..HEADER - 4]);
        whole[HEADER - 4..].copy_from_slice(&sum);
        whole
    }

    fn parse(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER).filter(|bytes| bytes.starts_with(MAGIC))?;
        if checksum(&bytes[..HEADER - 4]) != bytes[HEADER - 4..] {
            return None;
        }
        let long = |at: usize| u128::from_le_bytes(array(&bytes[at..]));
        let number = |at: usize| u64::from_le_bytes(array(&bytes[at..]));
        let signed = |at: usize| i64::from_le_bytes(array(&bytes[at..]));
        let short = |at: usize| u32::from_le_bytes(array(&bytes[at..]));
        let time = |at| FileTime { seconds: signed(at), nanoseconds: signed(at + 8) };
        let state = State {
            boot: Boot::of(long(8), Some(long(24)).filter(|machine| *machine != 0)),
            directory: (number(40), number(48)),
            stamp: ChangeStamp { modified: time(56), changed: time(84) },
        };
        let header = Header { state, slots: short(72), used: short(76), unreadable: short(80) };
        (header.slots.is_power_of_two() && header.slots >= FEWEST && header.used < header.slots).then_some(header)
    }
}

impl Index {
    /// Opens an index if it is complete for this state.
    pub(crate) fn open(place: &Directory, name: &str, state: &State) -> io::Result<Option<Index>> {
        let Some(file) = place.open_parts(name).map_err(io::Error::other)? else { return Ok(None) };
        let mut bytes = [0; HEADER];
        file.read_exact_at(&mut bytes, 0)?;
        let header = Header::parse(&bytes).filter(|header| header.state == *state);
        Ok(header.map(|header| Index { file, header }))
    }

    /// Everything that an index of whatever state still tells: torn parts are passed over.
    pub(crate) fn remains(place: &Directory, name: &str) -> Option<(State, Vec<Record>)> {
        let (bytes, _) = place.read(name, 1 << 30).ok()??;
        let header = Header::parse(&bytes)?;
        Some((header.state, records(&bytes[HEADER..])))
    }

    /// Writes a new index of these records, which is complete for no state until it is [sealed](Index::seal).
    pub(crate) fn build(place: &Directory, name: &str, state: State, records: &[Record]) -> io::Result<Index> {
        let count = u32::try_from(records.len()).map_err(io::Error::other)?;
        let slots = count.saturating_mul(3).next_power_of_two().max(FEWEST);
        let unsealed = State { stamp: ChangeStamp::default(), ..state };
        let unreadable = records.iter().filter(|record| record.unreadable).count() as u64;
        let unreadable = u32::try_from(unreadable).map_err(io::Error::other)?;
        let header = Header { state: unsealed, slots, used: count, unreadable };
        let mut bytes = vec![0; HEADER + slots as usize * SIZE];
        bytes[..HEADER].copy_from_slice(&header.to_bytes());
        fill(&mut bytes[HEADER..], slots, records);
        place.replace(name, &bytes, 0o600).map_err(io::Error::other)?;
        let file = place.open_parts(name).map_err(io::Error::other)?;
        Ok(Index { file: file.ok_or(io::ErrorKind::NotFound)?, header })
    }

    /// Declares it complete for the state of the directory that bears this stamp.
    pub(crate) fn seal(&mut self, stamp: ChangeStamp) -> io::Result<()> {
        self.header.state.stamp = stamp;
        self.file.write_all_at(&self.header.to_bytes(), 0)
    }

    /// The state that it was last sealed for.
    pub(crate) fn state(&self) -> State {
        self.header.state
    }

    /// How many files cannot be read.
    pub(crate) fn unreadable(&self) -> u32 {
        self.header.unreadable
    }

    /// The records of an owner's number.
    pub(crate) fn find(&self, owner: u64) -> io::Result<Vec<Record>> {
        let mut found = Vec::new();
        self.search(owner, |_, slot| match slot {
            Slot::Empty => Some(()),
            Slot::Full(record) if record.owner == owner => {
                found.push(record);
                None
            }
            _ => None,
        })?;
        Ok(found)
    }

    /// All records. A table with a torn slot does not know what stood there: that is an error.
    pub(crate) fn all(&self) -> io::Result<Vec<Record>> {
        let mut bytes = vec![0; self.header.slots as usize * SIZE];
        self.file.read_exact_at(&mut bytes, HEADER as u64)?;
        if bytes.chunks(SIZE).any(|slot| Slot::parse(slot) == Slot::Torn) {
            return Err(torn());
        }
        Ok(records(&bytes))
    }

    /// Adds a record. `false`: the table is half full, build a larger one.
    pub(crate) fn insert(&mut self, record: Record) -> io::Result<bool> {
        if self.header.used.saturating_mul(2) >= self.header.slots {
            return Ok(false);
        }
        let free = |at, slot| matches!(slot, Slot::Empty | Slot::Removed).then_some((at, slot));
        let (at, was) = self.search(record.owner, free)?;
        self.write(at, Slot::Full(record))?;
        self.header.used += u32::from(was == Slot::Empty);
        self.header.unreadable += u32::from(record.unreadable);
        Ok(true)
    }

    /// Removes an owner's record of an address, if it is there.
    pub(crate) fn remove(&mut self, owner: u64, address: IpAddr) -> io::Result<()> {
        let found = self.search(owner, |at, slot| match slot {
            Slot::Empty => Some(None),
            Slot::Full(record) if (record.owner, record.address) == (owner, address) => Some(Some((at, record))),
            _ => None,
        })?;
        let Some((at, record)) = found else { return Ok(()) };
        // Where no search passes on to the next slot, none needs to pass through this one.
        let ends = self.read((at + 1) % self.header.slots, 1)?[0] == Slot::Empty;
        self.write(at, if ends { Slot::Empty } else { Slot::Removed })?;
        self.header.used -= u32::from(ends);
        self.header.unreadable -= u32::from(record.unreadable);
        Ok(())
    }

    /// Removes many records, given by owner and address, in one pass over the table: one by one, each record of an owner who has
    /// thousands would be searched for from the owner's first slot on.
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
        for at in (0..table.len()).rev() {
            // Where no search passes on to the next slot, none needs to pass through this one.
            if table[at] == Slot::Removed && table[(at + 1) % table.len()] == Slot::Empty {
                table[at] = Slot::Empty;
            }
            used += u32::from(table[at] != Slot::Empty);
        }
        let bytes: Vec<u8> = table.into_iter().flat_map(Slot::to_bytes).collect();
        self.file.write_all_at(&bytes, HEADER as u64)?;
        self.header.unreadable = unreadable;
        self.header.used = used;
        Ok(())
    }

    /// Looks at slot after slot from the owner's own on, until `look` says what it came for.
    fn search<T>(&self, owner: u64, mut look: impl FnMut(u32, Slot) -> Option<T>) -> io::Result<T> {
        let mut at = home(owner, self.header.slots);
        for _ in 0..=self.header.slots / STRIDE + 1 {
            let count = STRIDE.min(self.header.slots - at);
            for (slot, number) in self.read(at, count)?.into_iter().zip(at..) {
                if slot == Slot::Torn {
                    return Err(torn());
                }
                if let Some(found) = look(number, slot) {
                    return Ok(found);
                }
            }
            at = (at + count) % self.header.slots;
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "no empty slot"))
    }

    fn read(&self, at: u32, count: u32) -> io::Result<Vec<Slot>> {
        let mut bytes = vec![0; count as usize * SIZE];
        self.file.read_exact_at(&mut bytes, offset(at))?;
        Ok(bytes.chunks(SIZE).map(Slot::parse).collect())
    }

    fn write(&self, at: u32, slot: Slot) -> io::Result<()> {
        self.file.write_all_at(&slot.to_bytes(), offset(at))
    }
}

fn torn() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "torn slot")
}

fn offset(slot: u32) -> u64 {
    HEADER as u64 + u64::from(slot) * SIZE as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder of a division by a u32 is one")]
fn home(owner: u64, slots: u32) -> u32 {
    (owner % u64::from(slots)) as u32
}

fn records(bytes: &[u8]) -> Vec<Record> {
    let full = |slot| if let Slot::Full(record) = slot { Some(record) } else { None };
    bytes.chunks(SIZE).map(Slot::parse).filter_map(full).collect()
}

/// Puts records into the bytes of an empty table that has room. In the order of their homes, those of one owner are put one
/// behind the other without a search from the first one on.
fn fill(table: &mut [u8], slots: u32, records: &[Record]) {
    let mut by_home: Vec<(u32, &Record)> = records.iter().map(|record| (home(record.owner, slots), record)).collect();
    by_home.sort_by_key(|(home, _)| *home);
    let mut next = 0;
    for (home, record) in by_home {
        next = next.max(home as usize);
        while is_used(table, next % slots as usize) {
            next += 1;
        }
        let at = next % slots as usize;
        table[at * SIZE..][..SIZE].copy_from_slice(&Slot::Full(*record).to_bytes());
    }
}

fn is_used(table: &[u8], slot: usize) -> bool {
    table[slot * SIZE..][..SIZE].iter().any(|byte| *byte != 0)
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

    /// An index grows as the ledger would have it grow.
    fn insert(index: &mut Index, place: &Directory, new: Record) {
        if !index.insert(new).unwrap() {
            let all = index.all().unwrap();
            *index = Index::build(place, "net", index.state(), &all).unwrap();
            assert!(index.insert(new).unwrap());
        }
    }

    #[test]
    fn a_table_behaves_as_a_map_does_through_ten_thousand_changes() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Directory::open(temporary.path()).unwrap();
        let mut index = Index::build(&place, "net", state(&place), &[]).unwrap();
        let mut model = HashMap::<u64, u32>::new();
        let mut seed = 7_u64;
        for step in 0..10_000_u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few homes, so that chains collide, wrap round the end and run through removed slots.
            let owner = (seed >> 33) % 300 * 64 + 60;
            if let Some(last) = model.remove(&owner) {
                index.remove(owner, record(owner, last).address).unwrap();
            } else {
                insert(&mut index, &place, record(owner, step));
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
    fn records_that_are_removed_together_leave_all_others_to_be_found() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Directory::open(temporary.path()).unwrap();
        // Chains that collide, and one that wraps round the end.
        let all: Vec<Record> = (0..600).map(|n| record(u64::from(n) % 5 * 63 + 2040, n)).collect();
        for keep in [0, 1, 2, 3] {
            let mut index = Index::build(&place, "net", state(&place), &all).unwrap();
            let (gone, rest): (Vec<Record>, Vec<Record>) = all.iter().partition(|record| record.inode % 4 > keep);
            index.remove_all(&gone.iter().map(|record| (record.owner, record.address)).collect()).unwrap();
            for owner in 0..5 {
                let wanted: Vec<Record> = rest.iter().filter(|one| one.owner == owner * 63 + 2040).copied().collect();
                assert_eq!(index.find(owner * 63 + 2040).unwrap(), wanted, "{keep}, {owner}");
            }
            for record in &gone {
                insert(&mut index, &place, *record);
            }
            assert_eq!(index.all().unwrap().len(), all.len());
        }
    }

    #[test]
    fn the_slots_of_records_that_are_removed_together_are_empty_again() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Directory::open(temporary.path()).unwrap();
        let all: Vec<Record> = (0..600).map(|n| record(7, n)).collect();
        let mut index = Index::build(&place, "net", state(&place), &all).unwrap();
        index.remove_all(&all[1..].iter().map(|record| (record.owner, record.address)).collect()).unwrap();
        assert_eq!((index.header.used, index.all().unwrap()), (1, vec![all[0]]));
    }

    #[test]
    fn it_is_opened_only_for_the_state_that_it_was_sealed_for() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Directory::open(temporary.path()).unwrap();
        let sealed = state(&place);
        let mut index = Index::build(&place, "net", sealed, &[record(3, 4)]).unwrap();
        assert!(Index::open(&place, "net", &sealed).unwrap().is_none(), "not sealed yet");
        index.seal(STAMP).unwrap();
        assert_eq!(Index::open(&place, "net", &sealed).unwrap().unwrap().find(3).unwrap(), [record(3, 4)]);
        let others = [
            State { stamp: ChangeStamp { modified: FileTime { nanoseconds: 7, ..MODIFIED }, ..STAMP }, ..sealed },
            State { stamp: ChangeStamp { changed: FileTime { seconds: 7, nanoseconds: 7 }, ..STAMP }, ..sealed },
            State { directory: (0, 0), ..sealed },
            State { boot: Boot::of(2, Some(2)), ..sealed },
        ];
        for other in others {
            assert!(Index::open(&place, "net", &other).unwrap().is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_torn_table_is_an_error_and_its_whole_parts_are_still_told() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Directory::open(temporary.path()).unwrap();
        let mut index = Index::build(&place, "net", state(&place), &[record(3, 4), record(9, 5)]).unwrap();
        index.seal(STAMP).unwrap();
        index.file.write_all_at(&[0xff; 5], offset(3) + 20).unwrap();
        assert!(index.find(3).is_err());
        assert!(index.all().is_err(), "a sweep of what is left would pass over what was lost");
        assert_eq!(Index::remains(&place, "net").unwrap().1, [record(9, 5)]);
    }

    #[test]
    fn a_header_with_any_bit_turned_is_none() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Directory::open(temporary.path()).unwrap();
        let bytes = Index::build(&place, "net", state(&place), &[]).unwrap().header.to_bytes();
        assert!(Header::parse(&bytes).is_some());
        for bit in 0..HEADER * 8 {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&torn).is_none(), "bit {bit}");
        }
    }
}
